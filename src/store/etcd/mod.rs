//! The store in etcd.
//!
//! | question | answer |
//! |---|---|
//! | which endpoint | the first of the configured order that answers ([`connect`]); it is kept until it fails |
//! | a read | asked of others too, until one answers; linearizable, always |
//! | a commit | sent once, to one endpoint that has answered a read before; the next one after `Unanswered` goes to another |
//! | proves nothing | every answered error but `InvalidArgument`, `PermissionDenied` and `Unauthenticated` |
//!
//! "database space exceeded" proves nothing either: it was a success for 127 of 128 writers in flight when the
//! quota was crossed. Nothing here decides; nothing retries a commit.

mod channel;
mod connect;
mod tls;

use std::{
    fmt,
    net::Ipv6Addr,
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use etcd_client::{
    Compare as EtcdCompare, CompareOp, DeleteOptions, GetOptions, GetResponse, KeyValue, Txn as EtcdTxn,
    TxnOp, TxnOpResponse,
};
use tokio::time::{Instant, timeout};

use crate::{
    domain::lease::Timestamp,
    store::{
        Compare, Entry, Fill, Found, Key, Outcome, Read, Revision, Snapshot, Span, Store, StoreError, Txn,
        Upkeep, Write,
        etcd::connect::{Cause, Endpoints, Link},
        keys,
    },
};

pub use tls::{CertificateDates, TlsFiles};

/// One attempt at a commit. A member that lives answers in milliseconds; one that fsyncs to a slow disk, in
/// tenths of a second. Two of them must fit into DEL's 5 s, and a dead member may cost 2 s.
const COMMIT_PATIENCE: Duration = Duration::from_millis(1500);

/// A member's status; asked of all at once.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);

/// etcd refuses more in one list of a transaction (`--max-txn-ops`).
const MOST_OPERATIONS: usize = 128;

/// One member of an etcd cluster.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Endpoint {
    /// `https`, or `http`.
    pub tls: bool,
    /// Name or address; an IPv6 address without its brackets.
    pub host: String,
    /// 1 to 65535.
    pub port: u16,
}

impl Endpoint {
    /// Reads `http://host:port` or `https://host:port`.
    ///
    /// # Errors
    /// What is accepted. The text never repeats what was given, which may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let form =
            || "must be http://HOST:PORT or https://HOST:PORT, such as https://10.0.0.1:2379".to_owned();
        let (scheme, rest) = text.trim().split_once("://").ok_or_else(form)?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err(form()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains('@') {
            return Err("must not hold credentials: use username and password or passwordFile".into());
        }
        let (host, port) = rest.rsplit_once(':').ok_or_else(form)?;
        if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
            return Err(form());
        }
        let port: u16 = port.parse().ok().filter(|port| *port != 0).ok_or_else(form)?;
        let host = if let Some(inner) = host.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or_else(form)?;
            inner.parse::<Ipv6Addr>().map_err(|_| form())?;
            inner
        } else {
            host
        };
        let right = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let plain = host.starts_with(|c: char| c.is_ascii_alphanumeric()) && host.chars().all(right);
        if !plain && host.parse::<Ipv6Addr>().is_err() {
            return Err(form());
        }
        Ok(Self { tls, host: host.into(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        if self.host.contains(':') {
            f.pad(&format!("{scheme}://[{}]:{}", self.host, self.port))
        } else {
            f.pad(&format!("{scheme}://{}:{}", self.host, self.port))
        }
    }
}

/// A text that no `Debug`, log line or error shows.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text; the caller drops its own copy.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// The text, for the one place that sends it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A user of etcd's own.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Login {
    /// Its name.
    pub username: String,
    /// Its password.
    pub password: Secret,
}

/// How an etcd is reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EtcdSettings {
    /// In the order in which they are asked.
    pub endpoints: Vec<Endpoint>,
    /// Stands before every key; with or without a slash at its end.
    pub prefix: String,
    /// Certificates and keys.
    pub tls: TlsFiles,
    /// User and password.
    pub login: Option<Login>,
}

/// A store in etcd. It connects at the first request.
pub struct EtcdStore {
    endpoints: Endpoints,
    /// Ends in a slash.
    prefix: String,
    /// The latest revision that was answered.
    seen: AtomicI64,
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore").field("settings", self.endpoints.settings()).finish_non_exhaustive()
    }
}

/// What one member says of itself.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EndpointStatus {
    /// Which.
    pub endpoint: String,
    /// Its answer, or why there is none.
    pub answer: Result<MemberStatus, StoreError>,
}

/// The parts of a member's status that a person can act on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MemberStatus {
    /// Of the server.
    pub version: String,
    /// The size of its file, in bytes.
    pub size: u64,
    /// How much of that is in use.
    pub in_use: u64,
    /// Its quota in bytes; etcd before 3.6 does not say.
    pub quota: Option<u64>,
    /// It leads.
    pub leader: bool,
    /// It knows a leader.
    pub has_leader: bool,
    /// The store's revision, as this member knows it.
    pub revision: Revision,
    /// Alarms (`NOSPACE`, `CORRUPT`) and other complaints, in etcd's words.
    pub complaints: Vec<String>,
}

impl EtcdStore {
    /// A store with these settings. Nothing is read or connected yet.
    ///
    /// # Errors
    /// [`StoreError::NotReached`] without endpoints; [`StoreError::Credentials`] for a certificate without its
    /// key or the other way round, and for an https endpoint without a CA file.
    pub fn open(settings: EtcdSettings) -> Result<Self, StoreError> {
        if settings.endpoints.is_empty() {
            return Err(StoreError::NotReached { reason: "no endpoint is configured".to_owned() });
        }
        settings.tls.pair()?;
        if let (None, Some(endpoint)) =
            (&settings.tls.cacert, settings.endpoints.iter().find(|endpoint| endpoint.tls))
        {
            let reason = format!("a CA file is needed to check the certificate of {endpoint}");
            return Err(StoreError::Credentials { path: "cacert".to_owned(), reason });
        }
        let prefix = format!("{}/", settings.prefix.trim_end_matches('/'));
        Ok(Self { endpoints: Endpoints::new(settings), prefix, seen: AtomicI64::new(0) })
    }

    /// What every endpoint says of itself, in the configured order.
    pub async fn status(&self) -> Vec<EndpointStatus> {
        let all = 0..self.endpoints.settings().endpoints.len();
        let mut asked: Vec<_> = all.map(|index| Box::pin(self.status_of(index))).collect();
        let mut answers = Vec::new();
        // All have begun before the first is waited for.
        std::future::poll_fn(|context| {
            asked.retain_mut(|one| match one.as_mut().poll(context) {
                std::task::Poll::Ready(answer) => {
                    answers.push(answer);
                    false
                }
                std::task::Poll::Pending => true,
            });
            if asked.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        answers.sort_by_key(|(index, _)| *index);
        answers.into_iter().map(|(_, status)| status).collect()
    }

    async fn status_of(&self, index: usize) -> (usize, EndpointStatus) {
        let endpoint = self.endpoints.url(index).to_owned();
        let ask =
            self.endpoints.ask(index, |link| async move { link.client.maintenance_client().status().await });
        let answer = match timeout(STATUS_PATIENCE, ask).await {
            Ok(Ok(status)) => Ok(MemberStatus {
                version: status.version().to_owned(),
                size: unsigned(status.db_size()),
                in_use: unsigned(status.raft_used_db_size()),
                quota: Some(unsigned(status.db_size_quota())).filter(|quota| *quota > 0),
                leader: status.leader() != 0
                    && status.header().is_some_and(|header| header.member_id() == status.leader()),
                has_leader: status.leader() != 0,
                revision: Revision(status.header().map_or(0, |header| header.revision())),
                complaints: status.errors().iter().map(|text| text.trim().to_owned()).collect(),
            }),
            Ok(Err(cause)) => Err(match cause {
                Cause::Credentials(error) => error,
                Cause::Refused(reason) | Cause::Stale(reason) => {
                    StoreError::Refused { endpoint: endpoint.clone(), reason }
                }
                Cause::NotSent(reason) | Cause::Ended(reason) | Cause::Unanswered(reason) => {
                    StoreError::NotReached { reason: format!("{endpoint}: {reason}") }
                }
                Cause::Compacted => StoreError::Compacted(Revision::default()),
                Cause::WentBack { from, to } => StoreError::WentBack { from, to },
            }),
            Err(_) => Err(StoreError::NotReached {
                reason: format!("{endpoint}: no answer after {} ms", STATUS_PATIENCE.as_millis()),
            }),
        };
        (index, EndpointStatus { endpoint, answer })
    }

    /// Is this the etcd of an API server: is there anything under `/registry/` that is not ours? No, where
    /// that may not be read.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn foreign_registry(&self) -> Result<bool, StoreError> {
        let registry = Span::prefix("/registry/");
        let own = Span::prefix(&self.prefix);
        let around = if self.prefix.starts_with(&registry.from) {
            vec![Span { from: registry.from, to: own.from }, Span { from: own.to, to: registry.to }]
        } else {
            vec![registry]
        };
        let reads: Vec<_> =
            around.into_iter().map(|span| Read::List { span, keys_only: true, limit: Some(1) }).collect();
        match self.ask("", &reads, None).await {
            Ok(snapshot) => Ok((0..reads.len()).any(|index| !snapshot.entries(index).is_empty())),
            Err(StoreError::Refused { reason, .. }) if reason.contains("permission denied") => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn ask(&self, prefix: &str, reads: &[Read], at: Option<Revision>) -> Result<Snapshot, StoreError> {
        self.fits(reads.len())?;
        let order = self.endpoints.order();
        let ask = |index| {
            Box::pin(async move {
                let before = self.seen();
                let read = self.endpoints.ask(index, |link| read_once(link, prefix, reads, at));
                self.not_behind(before, read.await?)
            }) as std::pin::Pin<Box<dyn Future<Output = _> + Send + '_>>
        };
        Ok(self.endpoints.first_answer(&order, at, ask).await?.1)
    }

    fn seen(&self) -> Revision {
        Revision(self.seen.load(Ordering::Relaxed))
    }

    /// What was read. A linearizable answer is never behind one that was there `before` it was asked for, unless the
    /// store was set back.
    fn not_behind(&self, before: Revision, (now, snapshot): (Revision, Snapshot)) -> Result<Snapshot, Cause> {
        if now < before {
            self.seen.store(now.0, Ordering::Relaxed);
            return Err(Cause::WentBack { from: before, to: now });
        }
        self.seen.fetch_max(now.0, Ordering::Relaxed);
        Ok(snapshot)
    }

    /// A connection that has brought an answer. A frozen member takes connections, and a server looks at our
    /// certificate after its half of the handshake: a commit on such a connection would be lost in doubt, where
    /// a read is merely asked elsewhere. And the store may have been restored since the connection before it: then
    /// what the commit rests on was read in another past.
    async fn proven(&self, index: usize) -> Result<Link, Cause> {
        let link = self.endpoints.link(index).await?;
        if !self.endpoints.has_answered(index) {
            let (before, meta) = (self.seen(), [Read::Get(keys::meta())]);
            let read =
                self.endpoints.logged_in(index, &link, |link| read_once(link, &self.prefix, &meta, None));
            self.not_behind(before, read.await?)?;
        }
        Ok(link)
    }

    fn fits(&self, operations: usize) -> Result<(), StoreError> {
        if operations <= MOST_OPERATIONS {
            return Ok(());
        }
        Err(StoreError::Refused {
            endpoint: "this client".to_owned(),
            reason: format!("{operations} operations in one transaction; etcd takes {MOST_OPERATIONS}"),
        })
    }
}

/// See [`tls::check_files`].
///
/// # Errors
/// [`StoreError::Credentials`] with the file and the reason.
pub fn check_files(settings: &EtcdSettings, now: Timestamp) -> Result<Vec<CertificateDates>, StoreError> {
    tls::check_files(&settings.tls, now)
}

impl Store for EtcdStore {
    async fn read(&self, reads: &[Read], at: Option<Revision>) -> Result<Snapshot, StoreError> {
        self.ask(&self.prefix, reads, at).await
    }

    async fn commit(&self, txn: &Txn) -> Result<Outcome, StoreError> {
        let Txn { compares, writes, otherwise } = txn;
        self.fits(compares.len().max(writes.len()).max(otherwise.len()))?;
        let prefix = self.prefix.as_str();
        let request = EtcdTxn::new()
            .when(compares.iter().map(|compare| compare_of(prefix, compare)).collect::<Vec<_>>())
            .and_then(writes.iter().map(|write| write_of(prefix, write)).collect::<Vec<_>>())
            .or_else(otherwise.iter().map(|read| read_op(prefix, read, None)).collect::<Vec<_>>());
        let mut order = self.endpoints.order();
        let mut unreachable = Vec::new();
        while !order.is_empty() {
            let connected =
                self.endpoints.first_answer(&order, None, |index| Box::pin(self.proven(index))).await;
            let (index, link) = match connected {
                Ok(connected) => connected,
                Err(StoreError::NotReached { reason }) => {
                    unreachable.push(reason);
                    break;
                }
                Err(error) => return Err(error),
            };
            let begun = Instant::now();
            let endpoint = self.endpoints.url(index).to_owned();
            let sent = self.endpoints.logged_in(index, &link, |mut link| {
                let request = request.clone();
                async move { link.kv.txn(request).await }
            });
            let unanswered = |reason| StoreError::Unanswered {
                endpoint: endpoint.clone(),
                waited: begun.elapsed(),
                reason,
            };
            let answer = match timeout(COMMIT_PATIENCE, sent).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(Cause::NotSent(reason) | Cause::Ended(reason))) => {
                    self.endpoints.avoid(index);
                    order.retain(|other| *other != index);
                    unreachable.push(format!("{endpoint}: {reason}"));
                    continue;
                }
                Ok(Err(Cause::Credentials(error))) => {
                    self.endpoints.avoid(index);
                    return Err(error);
                }
                Ok(Err(Cause::Refused(reason) | Cause::Stale(reason))) => {
                    return Err(StoreError::Refused { endpoint, reason });
                }
                Ok(Err(Cause::Unanswered(reason))) => {
                    self.endpoints.avoid(index);
                    return Err(unanswered(reason));
                }
                Ok(Err(Cause::Compacted | Cause::WentBack { .. })) => {
                    self.endpoints.avoid(index);
                    return Err(unanswered("an answer to another question".to_owned()));
                }
                Err(_) => {
                    self.endpoints.avoid(index);
                    return Err(unanswered("no answer".to_owned()));
                }
            };
            let revision = Revision(answer.header().map_or(0, |header| header.revision()));
            self.seen.fetch_max(revision.0, Ordering::Relaxed);
            if answer.succeeded() {
                return Ok(Outcome::Applied(revision));
            }
            return match found_all(prefix, otherwise, answer.op_responses()) {
                Ok(found) => Ok(Outcome::Conflict(Snapshot { revision, found })),
                Err(reason) => Err(unanswered(reason)),
            };
        }
        Err(StoreError::NotReached { reason: unreachable.join("; ") })
    }
}

impl Upkeep for EtcdStore {
    async fn fill(&self) -> Option<Fill> {
        let members = self.status().await;
        let answers: Vec<_> = members.iter().filter_map(|member| member.answer.as_ref().ok()).collect();
        Some(Fill {
            size: answers.iter().map(|member| member.size).max()?,
            quota: answers.iter().filter_map(|member| member.quota).min(),
            alarms: answers.iter().map(|member| member.complaints.len()).max().unwrap_or(0),
        })
    }

    async fn compact_to(&self, revision: Revision) -> Result<(), StoreError> {
        let order = self.endpoints.order();
        let done = self
            .endpoints
            .first_answer(&order, Some(revision), |index| {
                Box::pin(
                    self.endpoints
                        .ask(index, move |mut link| async move { link.kv.compact(revision.0, None).await }),
                )
            })
            .await;
        match done {
            Ok(_) | Err(StoreError::Compacted(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The revision of the store, and what was read.
async fn read_once(
    mut link: Link,
    prefix: &str,
    reads: &[Read],
    at: Option<Revision>,
) -> Result<(Revision, Snapshot), etcd_client::Error> {
    let bad = |reason: String| etcd_client::Error::Internal(reason);
    if let [read] = reads {
        let (key, options) = read_of(prefix, read, at);
        let answer = link.kv.get(key, Some(options)).await?;
        let now = Revision(answer.header().map_or(0, |header| header.revision()));
        let found = vec![found(prefix, read, answer).map_err(bad)?];
        return Ok((now, Snapshot { revision: at.unwrap_or(now), found }));
    }
    let request =
        EtcdTxn::new().and_then(reads.iter().map(|read| read_op(prefix, read, at)).collect::<Vec<_>>());
    let answer = link.kv.txn(request).await?;
    let now = Revision(answer.header().map_or(0, |header| header.revision()));
    let found = found_all(prefix, reads, answer.op_responses()).map_err(bad)?;
    Ok((now, Snapshot { revision: at.unwrap_or(now), found }))
}

fn full(prefix: &str, key: &str) -> Vec<u8> {
    [prefix.as_bytes(), key.as_bytes()].concat()
}

fn read_of(prefix: &str, read: &Read, at: Option<Revision>) -> (Vec<u8>, GetOptions) {
    // Never `with_serializable`: a member that is cut off would answer from its past.
    let options = GetOptions::new().with_revision(at.map_or(0, |at| at.0));
    match read {
        Read::Get(key) => (full(prefix, key.as_str()), options),
        Read::List { span, keys_only, limit } => {
            let options = options.with_range(full(prefix, &span.to)).with_limit(limit.map_or(0, i64::from));
            (full(prefix, &span.from), if *keys_only { options.with_keys_only() } else { options })
        }
        Read::Count(span) => {
            (full(prefix, &span.from), options.with_range(full(prefix, &span.to)).with_count_only())
        }
    }
}

fn read_op(prefix: &str, read: &Read, at: Option<Revision>) -> TxnOp {
    let (key, options) = read_of(prefix, read, at);
    TxnOp::get(key, Some(options))
}

fn write_of(prefix: &str, write: &Write) -> TxnOp {
    match write {
        Write::Put(key, value) => TxnOp::put(full(prefix, key.as_str()), value.clone(), None),
        Write::Delete(key) => TxnOp::delete(full(prefix, key.as_str()), Some(DeleteOptions::new())),
        Write::If(compare, writes) => {
            let writes: Vec<TxnOp> = writes.iter().map(|write| write_of(prefix, write)).collect();
            TxnOp::txn(EtcdTxn::new().when([compare_of(prefix, compare)]).and_then(writes))
        }
    }
}

fn compare_of(prefix: &str, compare: &Compare) -> EtcdCompare {
    match compare {
        Compare::Absent(key) => EtcdCompare::create_revision(full(prefix, key.as_str()), CompareOp::Equal, 0),
        Compare::Unchanged(key, revision) => {
            EtcdCompare::mod_revision(full(prefix, key.as_str()), CompareOp::Equal, revision.0)
        }
        Compare::Value(key, value) => {
            EtcdCompare::value(full(prefix, key.as_str()), CompareOp::Equal, value.clone())
        }
        // The one comparison with `<`: that it is true of an interval without keys is what is meant.
        Compare::NoneSince(span, revision) => {
            let since = revision.0.saturating_add(1);
            EtcdCompare::mod_revision(full(prefix, &span.from), CompareOp::Less, since)
                .with_range(full(prefix, &span.to))
        }
    }
}

fn found_all(prefix: &str, reads: &[Read], answers: Vec<TxnOpResponse>) -> Result<Vec<Found>, String> {
    if answers.len() != reads.len() {
        return Err(format!("{} answers to {} questions", answers.len(), reads.len()));
    }
    reads
        .iter()
        .zip(answers)
        .map(|(read, answer)| match answer {
            TxnOpResponse::Get(answer) => found(prefix, read, answer),
            TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => {
                Err("an answer to another question".to_owned())
            }
        })
        .collect()
}

fn found(prefix: &str, read: &Read, mut answer: GetResponse) -> Result<Found, String> {
    match read {
        Read::Count(_) => Ok(Found::Count(unsigned(answer.count()))),
        Read::Get(_) | Read::List { .. } => answer
            .take_kvs()
            .into_iter()
            .map(|pair| entry(prefix, pair))
            .collect::<Option<_>>()
            .map(Found::Entries)
            .ok_or_else(|| "a key that was not asked for".to_owned()),
    }
}

fn entry(prefix: &str, pair: KeyValue) -> Option<Entry> {
    let revision = Revision(pair.mod_revision());
    let (key, value) = pair.into_key_value();
    // A key that is no text is a stranger's: it must be seen as such, and must not end every list.
    let key = Key::new(String::from_utf8_lossy(key.strip_prefix(prefix.as_bytes())?));
    Some(Entry { key, value, revision })
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        for good in ["http://a:1", "HTTPS://a.b-c:65535/", "http://[::1]:2379", "http://10.0.0.1:2379"] {
            assert!(Endpoint::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "a",
            "a:1",
            "ftp://a:1",
            "http://a",
            "http://a:",
            "http://a:99999",
            "http://:1",
            "http://a b:1",
            "http://a:1/x",
            "http://[::1:1",
            "http://[x]:1",
            "http://a:+1",
            "http://u@a:1",
            "http://a?b:1",
        ] {
            assert!(Endpoint::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_secret_does_not_show() {
        assert_eq!(format!("{:?}", Secret::new("sesame".into())), "Secret(…)");
    }

    #[track_caller]
    fn refused(endpoints: &[&str], tls: TlsFiles, expected: &str) {
        let settings = EtcdSettings {
            endpoints: endpoints.iter().map(|text| Endpoint::parse(text).unwrap()).collect(),
            prefix: "/leasehold".into(),
            tls,
            login: None,
        };
        assert_eq!(EtcdStore::open(settings).unwrap_err().to_string(), expected);
    }

    #[test]
    fn settings_that_cannot_work_are_refused_at_once() {
        let none = TlsFiles::default();
        refused(&[], none.clone(), "store not reached: no endpoint is configured");
        refused(
            &["http://a:1", "https://b:2379"],
            none.clone(),
            "cacert: a CA file is needed to check the certificate of https://b:2379",
        );
        let cert = TlsFiles { cert: Some("/c".into()), ..none.clone() };
        refused(&["https://b:2379"], cert, "/c: no key is configured for this certificate");
        let key = TlsFiles { key: Some("/k".into()), ..none };
        refused(&["https://b:2379"], key, "/k: no certificate is configured for this key");
    }
}
