//! HTTP/1.1 to one API server: connections that are kept, TLS, credentials, one request and its answer.
//!
//! | limit | value |
//! |---|---|
//! | to connect, TLS included | 5 s |
//! | one request, with all of its answer | 30 s |
//! | between two parts of an answer | 10 s |
//! | an answer | 128 MiB |
//! | `Retry-After` | followed up to 10 s, three times |
//!
//! Every request that is made here may be made twice: it reads, or it says outright what is to be. So one that fails
//! on a connection that was kept is made once more, on a new one. Certificates and keys are read for each connection, a
//! token's file each minute and after a 401: they are renewed in place.

use std::{
    error::Error,
    io,
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http1::{self, SendRequest},
    header::{self, HeaderMap, HeaderName, HeaderValue},
};
use hyper_util::rt::TokioIo;
use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    pki_types::{ServerName, UnixTime},
};
use serde::Deserialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    net::TcpStream,
    process::Command,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsConnector;

use super::{
    ApiError,
    objects::{Status, Time},
    protobuf,
    settings::{Auth, Exec, Identity, Pem, Secret, Settings},
};
use crate::{
    domain::lease::Timestamp,
    pem::{self, Fault},
};

const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Of requests.
pub(super) const PATIENCE: Patience =
    Patience { whole: Duration::from_secs(30), part: Duration::from_secs(10) };
/// Programs ask servers of their own, and those are far away. It is a part of the request's time.
const EXEC_PATIENCE: Duration = Duration::from_secs(20);
/// What a program prints; a token and a certificate are some kB.
const MOST_PRINTED: u64 = 1 << 20;
const MOST_BODY: usize = 128 << 20;
const MOST_WAIT: Duration = Duration::from_secs(10);
const MOST_RETRIES: usize = 3;
/// The kubelet renews a projected token long before it ends; client-go reads it as often.
const TOKEN_AGE: Duration = Duration::from_secs(60);
/// Connections that are kept while nobody uses them.
const MOST_IDLE: usize = 2;
/// Of a server's words, in characters.
const MOST_WORDS: usize = 300;

/// The media type that every server knows.
pub(super) const JSON: &str = "application/json";

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type Sender = SendRequest<Full<Bytes>>;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) method: Method,
    /// Below the server's own path, with a slash before it.
    pub(super) path: String,
    /// What the answer may be.
    pub(super) accept: &'static str,
    /// What the body is.
    pub(super) content: Option<&'static str>,
    pub(super) body: Vec<u8>,
    /// The verb of the role that it needs.
    pub(super) verb: &'static str,
    /// What it is about, for a person.
    pub(super) what: String,
}

impl Ask {
    pub(super) fn get(verb: &'static str, what: impl Into<String>, path: impl Into<String>) -> Self {
        let (path, what) = (path.into(), what.into());
        Self { method: Method::GET, path, accept: JSON, content: None, body: Vec::new(), verb, what }
    }

    /// An answer that is not as it should be.
    pub(super) fn wrong(&self, reason: impl Into<String>) -> ApiError {
        ApiError::Answer { what: self.what.clone(), reason: reason.into() }
    }
}

/// An answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    pub(super) body: Bytes,
}

/// What a request is signed with.
#[derive(Clone, Default)]
struct Credential {
    /// `Authorization`.
    header: Option<HeaderValue>,
    identity: Option<Identity>,
}

struct Kept {
    credential: Credential,
    until: Until,
}

enum Until {
    /// A 401.
    Refused,
    /// A moment of the clock that does not jump.
    Tick(Instant),
    /// A moment that a program named, by this machine's clock.
    Clock(Timestamp),
}

/// How long is waited for all of an answer, and for its next part.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    pub(super) whole: Duration,
    pub(super) part: Duration,
}

/// A client of one server.
pub(super) struct Client {
    settings: Settings,
    patience: Patience,
    idle: Mutex<Vec<Sender>>,
    kept: tokio::sync::Mutex<Option<Kept>>,
    /// The server's clock at its last answer, and when that was.
    clock: Mutex<Option<(Timestamp, Instant)>>,
}

impl Client {
    pub(super) const fn new(settings: Settings, patience: Patience) -> Self {
        Self {
            settings,
            patience,
            idle: Mutex::new(Vec::new()),
            kept: tokio::sync::Mutex::const_new(None),
            clock: Mutex::new(None),
        }
    }

    pub(super) const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The server's clock now, as its last answer lets it be guessed; this machine's before there was one.
    pub(super) fn clock(&self) -> Timestamp {
        match *locked(&self.clock) {
            Some((at, since)) => {
                Timestamp(at.0.saturating_add(i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX)))
            }
            None => own_clock(),
        }
    }

    /// Asks, and waits for all of the answer, whatever its status.
    ///
    /// # Errors
    /// No answer.
    pub(super) async fn send(&self, ask: &Ask) -> Result<Reply, ApiError> {
        let mut renewed = false;
        let mut waited = 0;
        loop {
            let answer = timeout(self.patience.whole, self.once(ask)).await;
            let reply = answer.map_err(|_| self.silent(self.patience.whole))??;
            if reply.status == StatusCode::UNAUTHORIZED && !renewed && self.renews() {
                renewed = true;
                self.forget().await;
                continue;
            }
            match reply.wait() {
                Some(wait) if wait <= MOST_WAIT && waited < MOST_RETRIES => {
                    waited += 1;
                    sleep(wait).await;
                }
                Some(_) | None => return Ok(reply),
            }
        }
    }

    /// Asks for an answer that has no end. The first part of it is not waited for.
    ///
    /// # Errors
    /// No answer, or one with another status than 200.
    pub(super) async fn stream(&self, ask: &Ask) -> Result<Lines, ApiError> {
        let begin = async {
            let (response, sender) = self.exchange(ask).await?;
            let (parts, body) = response.into_parts();
            if parts.status == StatusCode::OK {
                return Ok(Lines { body, rest: Vec::new(), _sender: sender });
            }
            if parts.status == StatusCode::UNAUTHORIZED && self.renews() {
                self.forget().await;
            }
            let body = self.collect(body, &parts.headers).await?;
            Err(self.refused(&Reply { status: parts.status, headers: parts.headers, body }, ask))
        };
        timeout(self.patience.whole, begin).await.map_err(|_| self.silent(self.patience.whole))?
    }

    async fn once(&self, ask: &Ask) -> Result<Reply, ApiError> {
        let (response, sender) = self.exchange(ask).await?;
        let (parts, body) = response.into_parts();
        let body = self.collect(body, &parts.headers).await?;
        if !sender.is_closed() {
            let mut idle = locked(&self.idle);
            if idle.len() < MOST_IDLE {
                idle.push(sender);
            }
        }
        let reply = Reply { status: parts.status, headers: parts.headers, body };
        if let Some(at) = reply.date() {
            *locked(&self.clock) = Some((at, Instant::now()));
        }
        Ok(reply)
    }

    async fn exchange(&self, ask: &Ask) -> Result<(Response<Incoming>, Sender), ApiError> {
        let credential = self.credential().await?;
        let kept = locked(&self.idle).pop();
        if let Some(mut sender) = kept {
            let request = self.request(ask, &credential)?;
            if sender.ready().await.is_ok()
                && let Ok(response) = sender.send_request(request).await
            {
                return Ok((response, sender));
            }
            // The server has closed it: the others, too.
            locked(&self.idle).clear();
        }
        let request = self.request(ask, &credential)?;
        let mut sender = self.connect(&credential).await?;
        match sender.send_request(request).await {
            Ok(response) => Ok((response, sender)),
            Err(error) => Err(self.broken(&error, &credential)),
        }
    }

    fn request(&self, ask: &Ask, credential: &Credential) -> Result<Request<Full<Bytes>>, ApiError> {
        let server = &self.settings.server;
        let mut request = Request::builder()
            .method(ask.method.clone())
            .uri(format!("{}{}", server.path, ask.path))
            .header(header::HOST, server.authority())
            .header(header::USER_AGENT, concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .header(header::ACCEPT, ask.accept);
        if let Some(content) = ask.content {
            request = request.header(header::CONTENT_TYPE, content);
        }
        if let Some(value) = &credential.header {
            request = request.header(header::AUTHORIZATION, value.clone());
        }
        request
            .body(Full::new(Bytes::from(ask.body.clone())))
            .map_err(|error| ask.wrong(format!("cannot be asked for: {error}")))
    }

    async fn collect(&self, mut body: Incoming, headers: &HeaderMap) -> Result<Bytes, ApiError> {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let mut all = Vec::with_capacity(length.unwrap_or(0_usize).min(4 << 20));
        while let Some(data) = self.part(&mut body, self.patience.part).await? {
            if all.len().saturating_add(data.len()) > MOST_BODY {
                return Err(self.lost(format!("its answer is longer than {} MiB", MOST_BODY >> 20)));
            }
            all.extend_from_slice(&data);
        }
        Ok(all.into())
    }

    async fn part(&self, body: &mut Incoming, patience: Duration) -> Result<Option<Bytes>, ApiError> {
        loop {
            match timeout(patience, body.frame()).await {
                Err(_) => return Err(self.silent(patience)),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => {
                    return Err(self.lost(format!("its answer broke off: {}", last_words(&error))));
                }
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    async fn connect(&self, credential: &Credential) -> Result<Sender, ApiError> {
        let server = &self.settings.server;
        let connect = async {
            let tcp = TcpStream::connect((server.host.as_str(), server.port))
                .await
                .map_err(|error| self.lost(io_words(&error)))?;
            let _ = tcp.set_nodelay(true);
            let stream: Box<dyn Stream> = if server.secure {
                let name = self.settings.name.as_ref().unwrap_or(&server.host).clone();
                let name = ServerName::try_from(name.clone()).map_err(|_| {
                    ApiError::Settings(format!("{name:?} is no name of a server's certificate"))
                })?;
                let connector = TlsConnector::from(Arc::new(self.tls(credential)?));
                let tls = connector.connect(name, tcp).await;
                Box::new(tls.map_err(|error| self.broken(&error, credential))?)
            } else {
                Box::new(tcp)
            };
            let (sender, connection) = http1::handshake(TokioIo::new(stream))
                .await
                .map_err(|error| self.broken(&error, credential))?;
            // It ends when the server closes it, or when nobody asks any more.
            tokio::spawn(async move {
                let _ = connection.await;
            });
            Ok(sender)
        };
        timeout(CONNECT_PATIENCE, connect).await.map_err(|_| self.silent(CONNECT_PATIENCE))?
    }

    fn tls(&self, credential: &Credential) -> Result<ClientConfig, ApiError> {
        let mut roots = RootCertStore::empty();
        if let Some(authority) = &self.settings.authority {
            let place = authority.place();
            for certificate in pem::certificates(&place, &authority.load()?)? {
                roots
                    .add(certificate)
                    .map_err(|error| Fault { place: place.clone(), reason: error.to_string() })?;
            }
        }
        let places = credential.identity.as_ref().map(|(cert, key)| (cert.place(), key.place()));
        let identity = match &credential.identity {
            None => None,
            Some((cert, key)) => Some((
                pem::certificates(&cert.place(), &cert.load()?)?,
                pem::private_key(&key.place(), &key.load()?)?,
            )),
        };
        pem::client(roots, identity, b"http/1.1").map_err(|error| {
            ApiError::Settings(match (error, places) {
                (rustls::Error::InconsistentKeys(_), Some((cert, key))) => {
                    format!("{key}: does not belong to the certificate {cert}")
                }
                (other, Some((cert, _))) => format!("{cert}: cannot be used: {other}"),
                (other, None) => other.to_string(),
            })
        })
    }

    /// Can there be other credentials than those that were refused?
    const fn renews(&self) -> bool {
        matches!(self.settings.auth, Auth::TokenFile(_) | Auth::Exec(_))
    }

    async fn forget(&self) {
        *self.kept.lock().await = None;
        // A connection may carry the old certificate.
        locked(&self.idle).clear();
    }

    async fn credential(&self) -> Result<Credential, ApiError> {
        let mut kept = self.kept.lock().await;
        if let Some(Kept { credential, until }) = &*kept {
            let good = match until {
                Until::Refused => true,
                Until::Tick(at) => Instant::now() < *at,
                Until::Clock(at) => own_clock() < *at,
            };
            if good {
                return Ok(credential.clone());
            }
        }
        let identity = self.settings.identity.clone();
        let (credential, until) = match &self.settings.auth {
            Auth::Nothing => (Credential { header: None, identity }, Until::Refused),
            Auth::Token(token) => {
                (Credential { header: Some(bearer(token, "the token")?), identity }, Until::Refused)
            }
            Auth::TokenFile(path) => {
                let place = path.display().to_string();
                let text = String::from_utf8(pem::load(path)?).unwrap_or_default();
                let header = bearer(&Secret::new(text.trim()), &place)?;
                (Credential { header: Some(header), identity }, Until::Tick(Instant::now() + TOKEN_AGE))
            }
            Auth::Exec(exec) => {
                let (mut credential, until) = run(exec).await?;
                credential.identity = credential.identity.or(identity);
                locked(&self.idle).clear();
                (credential, until)
            }
        };
        *kept = Some(Kept { credential: credential.clone(), until });
        Ok(credential)
    }

    fn lost(&self, reason: impl Into<String>) -> ApiError {
        ApiError::NotReached { server: self.settings.server.to_string(), reason: reason.into() }
    }

    fn silent(&self, patience: Duration) -> ApiError {
        self.lost(format!("no answer after {} ms", patience.as_millis()))
    }

    /// What a failure of a connection tells.
    fn broken(&self, error: &(dyn Error + 'static), credential: &Credential) -> ApiError {
        for cause in causes(error) {
            let tls = cause
                .downcast_ref::<rustls::Error>()
                .or_else(|| cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref::<rustls::Error>());
            let reason = match tls {
                None => continue,
                Some(rustls::Error::InvalidCertificate(
                    CertificateError::UnknownIssuer | CertificateError::BadSignature,
                )) => {
                    let authority = self.settings.authority.as_ref().map_or_else(String::new, Pem::place);
                    format!("{authority} did not sign the certificate that it shows")
                }
                Some(rustls::Error::InvalidCertificate(error)) => pem::not_accepted(error),
                Some(rustls::Error::AlertReceived(alert)) => match &credential.identity {
                    Some((cert, _)) => {
                        format!("it may not accept the certificate {}: {alert:?}", cert.place())
                    }
                    None => format!("it refuses TLS with us: {alert:?}"),
                },
                Some(other) => other.to_string(),
            };
            return self.lost(reason);
        }
        self.lost(last_words(error))
    }

    /// What an answer that is none says.
    pub(super) fn refused(&self, reply: &Reply, ask: &Ask) -> ApiError {
        let status = reply.status_object().unwrap_or_default();
        let words = status.message.filter(|words| !words.is_empty());
        let reason = match &words {
            Some(words) => shortened(words),
            None => format!("status {}, and not in Kubernetes' words", reply.status.as_u16()),
        };
        match reply.status {
            StatusCode::UNAUTHORIZED => {
                ApiError::Unauthorized { server: self.settings.server.to_string(), reason }
            }
            StatusCode::FORBIDDEN if words.is_some() => {
                ApiError::Forbidden { verb: ask.verb, what: ask.what.clone(), reason }
            }
            StatusCode::GONE if words.is_some() => ApiError::Expired { what: ask.what.clone() },
            StatusCode::NOT_FOUND if words.is_none() => ask.wrong(
                "status 404, and not in Kubernetes' words: is the server's URL right, does it serve this?",
            ),
            other => ask.wrong(format!("{reason} ({})", other.as_u16())),
        }
    }
}

impl Reply {
    /// The server's clock, to the second.
    pub(super) fn date(&self) -> Option<Timestamp> {
        let text = self.headers.get(header::DATE)?.to_str().ok()?;
        let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
        Some(Timestamp(date.as_millisecond()))
    }

    /// It is not JSON.
    pub(super) fn is_protobuf(&self) -> bool {
        self.is_called(protobuf::MEDIA_TYPE)
    }

    fn is_called(&self, media_type: &str) -> bool {
        let called = self.header(header::CONTENT_TYPE).split(';').next().unwrap_or_default();
        called.trim().eq_ignore_ascii_case(media_type)
    }

    fn header(&self, name: HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Why it cannot be read, and what it is called if that says more.
    pub(super) fn odd(&self, reason: &str) -> String {
        let (media_type, encoding) =
            (self.header(header::CONTENT_TYPE), self.header(header::CONTENT_ENCODING));
        let called = if !encoding.is_empty() {
            format!("Content-Encoding {encoding}")
        } else if !self.is_protobuf() && !self.is_called(JSON) {
            format!("Content-Type {media_type}")
        } else {
            return reason.to_owned();
        };
        format!("{reason} ({}; does something stand before the server?)", shortened(&called))
    }

    /// The API's own words, if these are.
    pub(super) fn status_object(&self) -> Option<Status> {
        let status = if self.is_protobuf() {
            protobuf::status(&self.body)
        } else {
            serde_json::from_slice(&self.body).ok()
        };
        status.filter(|status| status.kind.as_deref() == Some("Status"))
    }

    /// How long the server wants us to wait before we ask again.
    fn wait(&self) -> Option<Duration> {
        let seconds = || {
            self.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok())
        };
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => {
                let said = || self.status_object()?.details?.retry_after_seconds;
                Some(Duration::from_secs(seconds().or_else(said).unwrap_or(1)))
            }
            StatusCode::SERVICE_UNAVAILABLE => seconds().map(Duration::from_secs),
            _ => None,
        }
    }
}

/// An answer that goes on, line by line.
pub(super) struct Lines {
    body: Incoming,
    rest: Vec<u8>,
    _sender: Sender,
}

/// One object is at most 1.5 MB in etcd, and an event holds one.
const MOST_LINE: usize = 8 << 20;

impl Lines {
    /// The next whole line, or the end.
    ///
    /// # Errors
    /// The connection broke, nothing came for so long, or a line has no end.
    pub(super) async fn next(
        &mut self,
        client: &Client,
        patience: Duration,
    ) -> Result<Option<Vec<u8>>, ApiError> {
        let mut looked = 0;
        loop {
            if let Some(end) = self.rest[looked..].iter().position(|byte| *byte == b'\n') {
                let after = self.rest.split_off(looked + end + 1);
                return Ok(Some(std::mem::replace(&mut self.rest, after)));
            }
            looked = self.rest.len();
            if looked > MOST_LINE {
                return Err(client.lost(format!("an event is longer than {} MiB", MOST_LINE >> 20)));
            }
            match client.part(&mut self.body, patience).await? {
                Some(data) => self.rest.extend_from_slice(&data),
                None => return Ok(None),
            }
        }
    }
}

fn bearer(token: &Secret, place: &str) -> Result<HeaderValue, ApiError> {
    let value = HeaderValue::from_str(&format!("Bearer {}", token.expose())).ok();
    let Some(mut value) = value.filter(|_| !token.expose().is_empty()) else {
        return Err(ApiError::Settings(format!("{place}: is no token")));
    };
    value.set_sensitive(true);
    Ok(value)
}

/// What such a program prints.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    kind: Option<String>,
    api_version: Option<String>,
    status: Option<ExecStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecStatus {
    expiration_timestamp: Option<Time>,
    token: Option<Secret>,
    client_certificate_data: Option<Secret>,
    client_key_data: Option<Secret>,
}

/// Runs the program. It inherits our environment, and sees no terminal.
async fn run(exec: &Exec) -> Result<(Credential, Until), ApiError> {
    let command = exec.command.display();
    let fault = |why: String| ApiError::Settings(format!("{}: {command}: {why}", exec.place));
    let mut info = serde_json::json!({
        "apiVersion": exec.version, "kind": "ExecCredential", "spec": { "interactive": false },
    });
    if let Some(cluster) = &exec.cluster {
        info["spec"]["cluster"] = cluster.clone();
    }
    let mut child = Command::new(&exec.command)
        .args(&exec.arguments)
        .envs(exec.environment.iter().map(|(name, value)| (name, value)))
        .env("KUBERNETES_EXEC_INFO", info.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| {
            let hint = exec.hint.as_deref().map_or_else(String::new, |hint| format!("; {}", shortened(hint)));
            fault(format!("cannot be run: {}{hint}", io_words(&error)))
        })?;
    let mut printed = Vec::new();
    let work = async {
        if let Some(stdout) = child.stdout.take() {
            stdout.take(MOST_PRINTED).read_to_end(&mut printed).await?;
        }
        child.wait().await
    };
    let ended = timeout(EXEC_PATIENCE, work)
        .await
        .map_err(|_| fault(format!("has not ended after {} s", EXEC_PATIENCE.as_secs())))?
        .map_err(|error| fault(io_words(&error)))?;
    if !ended.success() {
        return Err(fault(format!("failed ({ended})")));
    }
    // Not the parser's words, which may show some of what is secret.
    let shape = || fault(format!("did not print an ExecCredential of {}", exec.version));
    let printed: ExecCredential = serde_json::from_slice(&printed).map_err(|_| shape())?;
    let right = printed.kind.as_deref() == Some("ExecCredential")
        && printed.api_version.as_deref() == Some(exec.version.as_str());
    let status = printed.status.filter(|_| right).ok_or_else(shape)?;
    let place = format!("{command} (exec)");
    let header = status.token.as_ref().map(|token| bearer(token, &place)).transpose()?;
    let identity = match (status.client_certificate_data, status.client_key_data) {
        (Some(cert), Some(key)) => {
            let pem =
                |secret: Secret, of: &str| Pem::Inline(format!("{place}, {of}"), secret.expose().into());
            Some((pem(cert, "clientCertificateData"), pem(key, "clientKeyData")))
        }
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            return Err(fault("printed a certificate without its key, or a key alone".to_owned()));
        }
    };
    if header.is_none() && identity.is_none() {
        return Err(fault("printed neither a token nor a certificate".to_owned()));
    }
    let until = status.expiration_timestamp.map_or(Until::Refused, |time| Until::Clock(time.0));
    Ok((Credential { header, identity }, until))
}

impl From<Fault> for ApiError {
    fn from(Fault { place, reason }: Fault) -> Self {
        Self::Settings(format!("{place}: {reason}"))
    }
}

/// This machine's clock, as the TLS library reads it.
fn own_clock() -> Timestamp {
    Timestamp(i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX).saturating_mul(1000))
}

/// Nothing that is done under these locks can fail halfway.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server's words, without what would bend a line of a log.
fn shortened(words: &str) -> String {
    words.chars().take(MOST_WORDS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// The last cause says most.
fn last_words(error: &(dyn Error + 'static)) -> String {
    let last = causes(error).last().unwrap_or(error);
    last.downcast_ref::<io::Error>().map_or_else(|| last.to_string(), io_words)
}

fn io_words(error: &io::Error) -> String {
    #[expect(clippy::wildcard_enum_match_arm, reason = "of a foreign enum that grows")]
    match error.kind() {
        io::ErrorKind::Other | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => error.to_string(),
        kind => kind.to_string(),
    }
}
