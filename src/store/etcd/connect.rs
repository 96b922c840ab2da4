//! Which endpoint is asked: one connection to each, a hedge when the first is silent, and what a failure proves.
//!
//! etcd-client balances over endpoints that may be dead, and waits for ever. So each endpoint has a connection of
//! its own here ([`channel`]), and this module chooses.

use std::{
    collections::hash_map::RandomState,
    error::Error,
    future::{Future, poll_fn},
    hash::{BuildHasher, Hasher},
    io,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use etcd_client::{Client, ConnectOptions, KvClient};
use hyper::Uri;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::Code;

use crate::store::{
    Revision, StoreError,
    etcd::{EtcdSettings, Login, channel, tls},
};

/// A read is given up after this; so is connecting for a commit. A cluster whose leader has died needs up to
/// 2 s for the next one, and DEL, which has 5 s, must still write its journal.
const PATIENCE: Duration = Duration::from_secs(4);
/// The same where one endpoint is configured: there giving up is only to begin anew, at the end of the queue of all who
/// connect to a server at once.
const PATIENCE_ALONE: Duration = Duration::from_secs(8);

/// A silent endpoint is joined by the next after this.
const HEDGE: Duration = Duration::from_millis(100);
/// The same with user and password: the server's bcrypt alone takes 80 ms.
const HEDGE_LOGIN: Duration = Duration::from_millis(300);
/// The same for an endpoint that has answered this process before: it lives, and is slow.
const HEDGE_KNOWN: Duration = Duration::from_millis(400);
/// The only endpoint is joined by itself after this: behind a load balancer another connection is to another member, and
/// DEL has 5 s.
const HEDGE_ALONE: Duration = Duration::from_secs(3);
/// A third connection beside two silent ones only now: 10 000 nodes that start at once with TLS keep a server
/// busy for 10 s, and every hedge adds to that.
const CROWD: Duration = Duration::from_secs(1);

/// A whole page of records; gRPC's own limit is 4 MiB. etcd sends at most what a caller's page asks for.
const LARGEST_ANSWER: usize = 64 << 20;

/// A connection to one endpoint, logged in where that is needed.
#[derive(Clone)]
pub(crate) struct Link {
    /// For everything but keys. A copy of it is one of each of its ten clients.
    pub(crate) client: Arc<Client>,
    /// For keys.
    pub(crate) kv: KvClient,
    /// There was a login to be made, and the store wanted none.
    anonymous: bool,
}

/// Why one endpoint did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Cause {
    /// Nothing was sent, or nothing of it can have been looked at.
    NotSent(String),
    /// The same, since the connection had ended.
    Ended(String),
    /// Sent; no answer, or one that proves nothing.
    Unanswered(String),
    /// Refused before it was proposed.
    Refused(String),
    /// The token is no longer good; nothing was applied.
    Stale(String),
    /// A file of ours is wrong; nothing was sent.
    Credentials(StoreError),
    /// The revision asked for is gone.
    Compacted,
    /// It is behind what it answered before.
    WentBack { from: Revision, to: Revision },
}

#[derive(Clone)]
struct Member {
    url: String,
}

struct Route {
    /// Indices of the endpoints, in the order in which they are asked.
    order: Vec<usize>,
    /// Their connections.
    links: Vec<Option<Link>>,
    /// Which of these connections have brought an answer.
    answered: Vec<bool>,
}

/// The endpoints and what is known of them.
pub(crate) struct Endpoints {
    settings: EtcdSettings,
    members: Vec<Member>,
    route: Mutex<Route>,
}

/// What may be behind a connection that ended without a word.
enum Suspect {
    Fault(StoreError),
    Certificate(PathBuf),
}

type Attempt<'a, T> = Pin<Box<dyn Future<Output = Result<T, Cause>> + Send + 'a>>;

impl Endpoints {
    pub(crate) fn new(settings: EtcdSettings) -> Self {
        let mut members: Vec<_> =
            settings.endpoints.iter().map(|endpoint| Member { url: endpoint.to_string() }).collect();
        // One name may stand for many.
        if let [only] = members.as_slice() {
            members.push(only.clone());
        }
        let count = members.len();
        let route =
            Route { order: (0..count).collect(), links: vec![None; count], answered: vec![false; count] };
        Self { settings, members, route: Mutex::new(route) }
    }

    pub(crate) fn url(&self, index: usize) -> &str {
        self.members.get(index).map_or("no endpoint", |member| member.url.as_str())
    }

    pub(crate) fn settings(&self) -> &EtcdSettings {
        &self.settings
    }

    /// Is there one name only? Then it is there twice.
    fn is_alone(&self) -> bool {
        self.settings.endpoints.len() == 1
    }

    /// The order of now.
    pub(crate) fn order(&self) -> Vec<usize> {
        self.route().order.clone()
    }

    /// Asks this one last from now on, and over a new connection.
    pub(crate) fn avoid(&self, index: usize) {
        self.forget(index);
        let mut route = self.route();
        route.order.retain(|other| *other != index);
        route.order.push(index);
    }

    /// Asks this one over a new connection.
    fn forget(&self, index: usize) {
        let mut route = self.route();
        if let Some(link) = route.links.get_mut(index) {
            *link = None;
        }
        if let Some(answered) = route.answered.get_mut(index) {
            *answered = false;
        }
    }

    fn prefer(&self, index: usize) {
        let mut route = self.route();
        if route.order.first() != Some(&index) {
            route.order.retain(|other| *other != index);
            route.order.insert(0, index);
        }
        if let Some(answered) = route.answered.get_mut(index) {
            *answered = true;
        }
    }

    /// Has it answered, over the connection of now?
    pub(crate) fn has_answered(&self, index: usize) -> bool {
        self.route().answered.get(index) == Some(&true)
    }

    fn route(&self) -> MutexGuard<'_, Route> {
        // Nothing panics while it is held, and nothing in it can be half-done.
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection to an endpoint; made if there is none. Not logged in means not made.
    pub(crate) async fn link(&self, index: usize) -> Result<Link, Cause> {
        let made = self.route().links.get(index).cloned().flatten();
        if let Some(link) = made {
            return Ok(link);
        }
        let link = self.connect(self.url(index)).await?;
        if let Some(place) = self.route().links.get_mut(index) {
            *place = Some(link.clone());
        }
        Ok(link)
    }

    async fn connect(&self, url: &str) -> Result<Link, Cause> {
        let uri: Uri = url.parse().map_err(|error| Cause::NotSent(chain(&error)))?;
        let tls = match url.starts_with("https:") {
            true => Some(tls::client_config(&self.settings.tls).map_err(Cause::Credentials)?),
            false => None,
        };
        // No keep-alive: every request has a time limit below the 5 s that etcd wants between two pings.
        let channel =
            channel::connect(&uri, tls).await.map_err(|error| self.transport(&*error, url, false))?;
        let mut anonymous = false;
        let client = match &self.settings.login {
            None => Client::from_channel(channel, None).await,
            Some(Login { username, password }) => {
                let options = ConnectOptions::new().with_user(username, password.expose());
                match Client::from_channel(channel.clone(), Some(options)).await {
                    // As etcd's own client does: a password for a store that asks for none is no fault.
                    Err(etcd_client::Error::GRpcStatus(status))
                        if status.code() == Code::FailedPrecondition =>
                    {
                        anonymous = true;
                        Client::from_channel(channel, None).await
                    }
                    other => other,
                }
            }
        };
        let client = Arc::new(client.map_err(|error| self.of_login(self.cause(error, url)))?);
        let kv = client.kv_client().max_decoding_message_size(LARGEST_ANSWER);
        Ok(Link { client, kv, anonymous })
    }

    /// The same cause, of a request that was only a login.
    fn of_login(&self, cause: Cause) -> Cause {
        let user = self.settings.login.as_ref().map_or("", |login| login.username.as_str());
        match cause {
            Cause::NotSent(reason) | Cause::Ended(reason) | Cause::Unanswered(reason) => {
                Cause::NotSent(reason)
            }
            Cause::Refused(reason) | Cause::Stale(reason) => {
                Cause::Refused(format!("login of user {user:?}: {reason}"))
            }
            Cause::Credentials(_) | Cause::Compacted | Cause::WentBack { .. } => cause,
        }
    }

    /// Asks endpoints in this order until one answers: the next joins when those asked are silent, and at once
    /// when one fails. A refusal is an answer.
    pub(crate) async fn first_answer<'a, T: Send>(
        &'a self,
        order: &[usize],
        at: Option<Revision>,
        ask: impl Fn(usize) -> Attempt<'a, T>,
    ) -> Result<(usize, T), StoreError> {
        let begun = Instant::now();
        let patience = if self.is_alone() { PATIENCE_ALONE } else { PATIENCE };
        let mut waiting = order.iter().copied();
        let mut next = waiting.next();
        let mut running: Vec<(usize, Instant, Attempt<'a, T>)> = Vec::new();
        let mut failed: Vec<String> = Vec::new();
        let mut credentials = None;
        let mut start = begun;
        let mut pause = match next {
            Some(_) if self.is_alone() => HEDGE_ALONE,
            Some(index) if self.has_answered(index) => HEDGE_KNOWN,
            Some(_) if self.settings.login.is_some() => HEDGE_LOGIN,
            _ => HEDGE,
        };
        loop {
            if let Some(index) = next
                && (running.is_empty() || start <= Instant::now())
            {
                running.push((index, Instant::now(), ask(index)));
                next = waiting.next();
                start = Instant::now() + jitter(pause);
                pause *= 2;
                if let [_, .., _] = running.as_slice() {
                    start = start.max(Instant::now() + CROWD);
                }
            }
            if running.is_empty() {
                break;
            }
            let ended = tokio::select! {
                biased;
                ended = first_ended(&mut running) => ended,
                () = sleep_until(start), if next.is_some() => continue,
                () = sleep_until(begun + patience) => break,
            };
            let (index, result) = ended;
            let cause = match result {
                Ok(answer) => {
                    // Those asked before it are silent: not the next to be given a commit.
                    for (silent, ..) in &running {
                        self.avoid(*silent);
                    }
                    self.prefer(index);
                    return Ok((index, answer));
                }
                Err(cause) => cause,
            };
            let endpoint = || self.url(index).to_owned();
            match cause {
                Cause::Refused(reason) | Cause::Stale(reason) => {
                    return Err(StoreError::Refused { endpoint: endpoint(), reason });
                }
                Cause::Compacted => return Err(StoreError::Compacted(at.unwrap_or_default())),
                Cause::WentBack { from, to } => return Err(StoreError::WentBack { from, to }),
                Cause::Credentials(error) => credentials = credentials.or(Some(error)),
                Cause::NotSent(reason) => failed.push(format!("{}: {reason}", endpoint())),
                Cause::Ended(reason) | Cause::Unanswered(reason) => match self.suspect(index) {
                    Some(Suspect::Fault(error)) => credentials = credentials.or(Some(error)),
                    Some(Suspect::Certificate(path)) => failed.push(format!(
                        "{}: {reason}; does it accept the certificate {}?",
                        endpoint(),
                        path.display()
                    )),
                    None => failed.push(format!("{}: {reason}", endpoint())),
                },
            }
            self.avoid(index);
            // It said why: the same name would say the same.
            next = next.filter(|_| !self.is_alone());
            start = Instant::now();
        }
        if let Some(error) = credentials {
            return Err(error);
        }
        running.sort_by_key(|(_, since, _)| *since);
        for (index, since, _) in &running {
            self.avoid(*index);
            let endpoint = format!("{}: ", self.url(*index));
            if !failed.iter().any(|text| text.starts_with(&endpoint)) {
                failed.push(format!("{endpoint}no answer after {} ms", since.elapsed().as_millis()));
            }
        }
        Err(StoreError::NotReached { reason: failed.join("; ") })
    }

    /// A server tells of a certificate that it does not like after the handshake, and may hang up before that is
    /// read. So where TLS never got an answer, the files are looked at.
    fn suspect(&self, index: usize) -> Option<Suspect> {
        let answered = self.has_answered(index);
        if answered || !self.url(index).starts_with("https:") {
            return None;
        }
        tls::fault_in(&self.settings.tls)
            .map(Suspect::Fault)
            .or_else(|| self.settings.tls.cert.clone().map(Suspect::Certificate))
    }

    /// Makes a request that changes nothing; once more over a new connection if the one of now has ended, or a login is
    /// wanted since.
    pub(crate) async fn ask<T, F>(&self, index: usize, request: impl Fn(Link) -> F) -> Result<T, Cause>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let link = self.link(index).await?;
        match self.logged_in(index, &link, &request).await {
            Err(Cause::NotSent(_) | Cause::Ended(_)) => {}
            answer => return answer,
        }
        self.forget(index);
        let link = self.link(index).await?;
        self.logged_in(index, &link, request).await
    }

    /// Makes a request once, and once more after a new login if the token was no longer good. Where no login was wanted
    /// until now, a refusal is no answer: another connection logs in.
    pub(crate) async fn logged_in<T, F>(
        &self,
        index: usize,
        link: &Link,
        request: impl Fn(Link) -> F,
    ) -> Result<T, Cause>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let url = self.url(index);
        let cause = match request(link.clone()).await {
            Ok(answer) => return Ok(answer),
            Err(error) => self.cause(error, url),
        };
        let reason = match cause {
            Cause::Stale(reason) => reason,
            Cause::Refused(reason) if link.anonymous => return Err(Cause::NotSent(reason)),
            Cause::NotSent(_)
            | Cause::Ended(_)
            | Cause::Unanswered(_)
            | Cause::Refused(_)
            | Cause::Credentials(_)
            | Cause::Compacted
            | Cause::WentBack { .. } => return Err(cause),
        };
        match timeout(PATIENCE, link.client.refresh_token()).await {
            Ok(Ok(())) => request(link.clone()).await.map_err(|error| self.cause(error, url)),
            Ok(Err(error)) => Err(self.of_login(self.cause(error, url))),
            Err(_) => Err(Cause::NotSent(format!("{reason}; no answer to a new login"))),
        }
    }

    /// What an error of etcd-client proves.
    fn cause(&self, error: etcd_client::Error, url: &str) -> Cause {
        #[expect(clippy::wildcard_enum_match_arm, reason = "of a foreign enum that grows")]
        let status = match error {
            etcd_client::Error::GRpcStatus(status) => status,
            etcd_client::Error::TransportError(error) => return self.transport(&error, url, true),
            other => return Cause::Unanswered(other.to_string()),
        };
        if let Some(source) = status.source() {
            // Made here, not by the server.
            return self.transport(source, url, true);
        }
        let words = status.message().to_owned();
        let known = |text: &str| words.contains(text);
        match status.code() {
            Code::Unauthenticated | Code::InvalidArgument
                if self.settings.login.is_some()
                    && (known("invalid auth token") || known("revision of auth store is old")) =>
            {
                Cause::Stale(words)
            }
            Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated => Cause::Refused(words),
            Code::OutOfRange if known("compacted") => Cause::Compacted,
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::NotFound
            | Code::AlreadyExists
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss => Cause::Unanswered(format!("{words} ({:?})", status.code())),
        }
    }

    /// What a failure of the connection proves; `sent`: a request may have been on it.
    fn transport(&self, error: &(dyn Error + 'static), url: &str, sent: bool) -> Cause {
        let files = &self.settings.tls;
        let mut ended = false;
        for link in causes(error) {
            ended |= link.is::<channel::Ended>();
            let tls_error = link
                .downcast_ref::<rustls::Error>()
                .or_else(|| link.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref::<rustls::Error>());
            if let Some(rustls::Error::InvalidCertificate(error)) = tls_error {
                return match tls::about_server(error, files, url) {
                    Ok(error) => Cause::Credentials(error),
                    Err(reason) => Cause::NotSent(reason),
                };
            }
            // HTTP/2 keeps only the words of what ended the connection. Such an alert ends the handshake: the
            // server has looked at nothing that came after it.
            let words = link.to_string();
            if let Some((_, alert)) = words.rsplit_once("fatal alert: ")
                && let Some(error) = tls::about_alert(alert, files, url)
            {
                return Cause::Credentials(error);
            }
        }
        if ended {
            return Cause::Ended("the connection ended".to_owned());
        }
        if sent {
            return Cause::Unanswered(chain(error));
        }
        match tls::fault_in(files) {
            Some(fault) if url.starts_with("https:") => Cause::Credentials(fault),
            Some(_) | None => Cause::NotSent(chain(error)),
        }
    }
}

/// The first of these that ends, taken out.
async fn first_ended<T>(running: &mut Vec<(usize, Instant, Attempt<'_, T>)>) -> (usize, Result<T, Cause>) {
    poll_fn(|context| {
        for place in 0..running.len() {
            if let Some((index, _, attempt)) = running.get_mut(place)
                && let Poll::Ready(result) = attempt.as_mut().poll(context)
            {
                let index = *index;
                drop(running.swap_remove(place));
                return Poll::Ready((index, result));
            }
        }
        Poll::Pending
    })
    .await
}

/// A quarter more or less, so that nodes that began together do not go on together.
fn jitter(pause: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 512;
    pause * 3 / 4 + pause * u32::try_from(random).unwrap_or(0) / 1024
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// The last cause says most; tonic's own words ("transport error") say nothing.
fn chain(error: &(dyn Error + 'static)) -> String {
    let last = causes(error).last().unwrap_or(error);
    match last.downcast_ref::<io::Error>().map(io::Error::kind) {
        None | Some(io::ErrorKind::Other | io::ErrorKind::InvalidData) => last.to_string(),
        Some(kind) => kind.to_string(),
    }
}
