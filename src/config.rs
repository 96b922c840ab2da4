//! Text of the host file and of the `ipam` block -> settings. It gets text: it reads no file and no environment.
//!
//! Both are strict, since they are ours: an unknown key is a mistake, and all mistakes are reported at once, each
//! with path, value and what is accepted. No text of a fault shows a secret.

use std::{
    ffi::OsString,
    fmt,
    net::{IpAddr, Ipv6Addr},
    path::{Component, Path, PathBuf},
    time::Duration,
};

use serde_json::{Map, Value};
use thiserror::Error;

use crate::domain::{
    addr::{Prefix, parse_address},
    names::{ClusterName, NodeName, PoolName},
    pool::{Dns, Fault, MAX_RANGES, Range, RangeDraft, Route, RouteDraft, format_duration, parse_duration},
};

/// Names another host file than the usual ones.
pub const CONFIG_VARIABLE: &str = "LEASEHOLD_CONFIG";
/// Beside the networks, in a folder: any `.json` directly in net.d is taken for a network.
const BESIDE_NETWORKS: &str = "/etc/cni/net.d/leasehold.d/config.json";
/// Where administrators look first.
const IN_ETC: &str = "/etc/leasehold/config.json";
/// Journal and cache: must outlive a reboot, must not be in net.d.
const STATE_DIR: &str = "/var/lib/leasehold";
/// Keys of the store begin with it, so that one etcd can be shared with other programs.
const PREFIX: &str = "/leasehold";
/// Without Kubernetes there is one cluster, and it needs a name in the keys.
const LOCAL_CLUSTER: &str = "local";
/// kubelet gives up after 2 min; three attempts and the runtime's own work must fit.
const ADD_DEADLINE: Duration = Duration::from_secs(10);
/// The sooner the journal takes over, the sooner the node's teardown goes on.
const DEL_DEADLINE: Duration = Duration::from_secs(5);
/// Below it no store that elects a leader answers in time.
const SHORTEST_DEADLINE: Duration = Duration::from_secs(1);
/// The reaper's `absent-after` (2 min) must be longer than an ADD can live.
const LONGEST_ADD: Duration = Duration::from_secs(100);
/// containerd gives the DEL after a failed ADD one minute.
const LONGEST_DEL: Duration = Duration::from_secs(50);
/// Some 50 000 lines; with the rotated file twice that.
const LOG_SIZE: u64 = 10 << 20;
/// A cap that one burst of lines does not reach.
const SMALLEST_LOG: u64 = 64 << 10;
/// A log is no archive.
const LARGEST_LOG: u64 = 1 << 30;
/// Kinds whose pods come back under their names: a lease of theirs is sticky.
const STICKY_KINDS: [&str; 2] = ["StatefulSet.apps", "StatefulSet.apps.kruise.io"];
/// Longer values are cut in error texts.
const SHOWN: usize = 120;

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

/// How the store is known to be the store, and we to be us.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TlsSettings {
    /// The CA that signed the members' certificates. No system roots are bundled.
    pub cacert: PathBuf,
    /// Our certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Where the password comes from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Password {
    /// It stands in the host file.
    Inline(Secret),
    /// First line of this file.
    File(PathBuf),
}

/// User and password of etcd.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AuthSettings {
    /// The user.
    pub username: String,
    /// The password.
    pub password: Password,
}

/// How etcd is reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EtcdSettings {
    /// At least one; all with the same scheme.
    pub endpoints: Vec<Endpoint>,
    /// Begins with `/`, does not end with it.
    pub prefix: String,
    /// Present if and only if the endpoints are https.
    pub tls: Option<TlsSettings>,
    /// User and password.
    pub auth: Option<AuthSettings>,
}

/// Where leases live.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StoreSettings {
    /// In etcd.
    Etcd(EtcdSettings),
    /// In this folder, for this host.
    Local(PathBuf),
}

/// Which lines the node log has.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    /// Something did not work.
    Error,
    /// Something looks wrong.
    Warn,
    /// What was done.
    Info,
    /// How it was done.
    Debug,
}

impl Level {
    /// The word in the file and in the log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "error" => Ok(Self::Error),
            "warn" => Ok(Self::Warn),
            "info" => Ok(Self::Info),
            "debug" => Ok(Self::Debug),
            _ => Err("must be one of: error, warn, info, debug".into()),
        }
    }
}

/// The node log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogSettings {
    /// No file: no log.
    pub file: Option<PathBuf>,
    /// The least important lines that are written.
    pub level: Level,
    /// Bytes after which the file becomes `.1`.
    pub max_size: u64,
}

/// The host file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostConfig {
    /// Where leases live.
    pub store: StoreSettings,
    /// The registered cluster; `local` with a local store.
    pub cluster: ClusterName,
    /// The Node object's name; the caller falls back to the hostname.
    pub node: Option<NodeName>,
    /// Labels that pools' `nodes` may ask for.
    pub labels: Vec<(String, String)>,
    /// Journal and cache.
    pub state_dir: PathBuf,
    /// The node log.
    pub log: LogSettings,
    /// May an `ipam` block bring its own ranges? Default: with a local store only.
    pub inline_ranges: bool,
    /// STATUS asks the store, too.
    pub status_checks_store: bool,
    /// ADD answers within it.
    pub add_deadline: Duration,
    /// DEL answers within it.
    pub del_deadline: Duration,
    /// `Kind.group` of controllers whose pods come back under their names; the built-in ones first.
    pub sticky_kinds: Vec<String>,
}

impl HostConfig {
    /// Reads the text of the host file.
    ///
    /// # Errors
    /// Every [`Fault`] it has; none shows a secret.
    pub fn parse(text: &str) -> Result<Self, Vec<Fault>> {
        let mut faults = Faults::default();
        let value: Value = match serde_json::from_str(text) {
            Ok(value) => value,
            Err(error) => {
                faults.push("", "", format!("is not JSON: {error}"));
                return Err(faults.0);
            }
        };
        let Some(root) = Table::of("", &value, Case::Exact) else {
            faults.push("", show("", &value), "must be a JSON object");
            return Err(faults.0);
        };
        root.only(&mut faults, HOST_KEYS);
        if let Some(version) = root.get("v")
            && version.as_u64() != Some(1)
        {
            faults.push("v", show("v", version), "must be 1, the only version this binary knows");
        }
        let store = host_store(&mut faults, &root);
        let cluster = match (root.text(&mut faults, "cluster"), &store) {
            (Some(name), _) => faults.take("cluster", name, ClusterName::new(name)),
            (None, Some(StoreSettings::Local(_))) => ClusterName::new(LOCAL_CLUSTER).ok(),
            (None, Some(StoreSettings::Etcd(_)) | None) => {
                if root.get("cluster").is_none() {
                    let problem = "is missing: the name that `leasehold install --cluster NAME` registered";
                    faults.push("cluster", "", problem);
                }
                None
            }
        };
        let node = root.text(&mut faults, "node");
        let node = node.and_then(|name| faults.take("node", name, NodeName::new(name)));
        let labels = host_labels(&mut faults, &root);
        let state_dir = root.path(&mut faults, "stateDir").unwrap_or_else(|| STATE_DIR.into());
        let log = host_log(&mut faults, &root);
        let inline = root.text(&mut faults, "inlineRanges").and_then(|word| match word {
            "allow" => Some(true),
            "deny" => Some(false),
            _ => {
                faults.push("inlineRanges", word, "must be one of: allow, deny");
                None
            }
        });
        let status_checks_store = root.flag(&mut faults, "statusChecksStore").unwrap_or(false);
        let deadlines = root.table(&mut faults, "deadlines");
        if let Some(deadlines) = &deadlines {
            deadlines.only(&mut faults, &["add", "del"]);
        }
        let mut deadline = |key: &str, default: Duration, longest: Duration| {
            let text = deadlines.as_ref().and_then(|table| table.text(&mut faults, key));
            let Some(text) = text else { return default };
            let field = format!("deadlines.{key}");
            match faults.take(&field, text, parse_duration(text)) {
                Some(found) if (SHORTEST_DEADLINE..=longest).contains(&found) => found,
                Some(_) => {
                    let (low, high) = (format_duration(SHORTEST_DEADLINE), longest.as_secs());
                    faults.push(&field, text, format!("must be between {low} and {high}s inclusive"));
                    default
                }
                None => default,
            }
        };
        let add_deadline = deadline("add", ADD_DEADLINE, LONGEST_ADD);
        let del_deadline = deadline("del", DEL_DEADLINE, LONGEST_DEL);
        let sticky_kinds = host_sticky_kinds(&mut faults, &root);
        let (Some(store), Some(cluster), true) = (store, cluster, faults.0.is_empty()) else {
            return Err(faults.0);
        };
        let inline_ranges = inline.unwrap_or(matches!(store, StoreSettings::Local(_)));
        Ok(Self {
            store,
            cluster,
            node,
            labels,
            state_dir,
            log,
            inline_ranges,
            status_checks_store,
            add_deadline,
            del_deadline,
            sticky_kinds,
        })
    }

    /// Does the host file itself hold a password?
    #[must_use]
    pub const fn holds_secret(&self) -> bool {
        match &self.store {
            StoreSettings::Etcd(etcd) => match &etcd.auth {
                Some(auth) => matches!(auth.password, Password::Inline(_)),
                None => false,
            },
            StoreSettings::Local(_) => false,
        }
    }

    /// The files beside the host file that hold a secret, for [`check_mode`].
    #[must_use]
    pub fn secret_files(&self) -> Vec<&Path> {
        let StoreSettings::Etcd(etcd) = &self.store else { return Vec::new() };
        let key = etcd.tls.as_ref().and_then(|tls| tls.identity.as_ref()).map(|(_, key)| key.as_path());
        let password = etcd.auth.as_ref().and_then(|auth| match &auth.password {
            Password::File(path) => Some(path.as_path()),
            Password::Inline(_) => None,
        });
        key.into_iter().chain(password).collect()
    }
}

/// Where the host file is looked for, first found counts. `named` is the value of [`CONFIG_VARIABLE`]: if it is
/// set, nothing else is looked for.
#[must_use]
pub fn host_file_candidates(named: Option<OsString>) -> Vec<PathBuf> {
    match named.filter(|path| !path.is_empty()) {
        Some(path) => vec![path.into()],
        None => vec![BESIDE_NETWORKS.into(), IN_ETC.into()],
    }
}

/// A file with a secret that others can read.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{path} holds a secret and has mode {mode:04o}: others can read it; run: chmod 0600 {path}", path = path.display())]
pub struct Readable {
    /// The file.
    pub path: PathBuf,
    /// Its permission bits.
    pub mode: u32,
}

/// Refuses a file that holds a secret and that group or others can read (or write).
///
/// # Errors
/// [`Readable`] names file, mode and what to do.
pub fn check_mode(path: &Path, mode_bits: u32, has_secret: bool) -> Result<(), Readable> {
    let mode = mode_bits & 0o7777;
    if has_secret && mode & 0o077 != 0 { Err(Readable { path: path.into(), mode }) } else { Ok(()) }
}

const HOST_KEYS: &[&str] = &[
    "v",
    "store",
    "cluster",
    "node",
    "labels",
    "stateDir",
    "log",
    "inlineRanges",
    "statusChecksStore",
    "deadlines",
    "stickyKinds",
];
const ETCD_KEYS: &[&str] =
    &["endpoints", "prefix", "cacert", "cert", "key", "username", "password", "passwordFile"];

fn host_store(faults: &mut Faults, root: &Table<'_>) -> Option<StoreSettings> {
    let form = "must be {\"etcd\": {…}} for a cluster or {\"local\": \"/dir\"} for one host";
    if root.get("store").is_none() {
        faults.push("store", "", format!("is missing: {form}"));
        return None;
    }
    let store = root.table(faults, "store")?;
    store.only(faults, &["etcd", "local"]);
    match (store.get("etcd"), store.get("local")) {
        (Some(_), None) => {
            let etcd = store.table(faults, "etcd")?;
            host_etcd(faults, &etcd).map(StoreSettings::Etcd)
        }
        (None, Some(_)) => store.path(faults, "local").map(StoreSettings::Local),
        (Some(_), Some(_)) => {
            faults.push("store", "", format!("has both etcd and local: {form}"));
            None
        }
        (None, None) => {
            faults.push("store", "", format!("has neither etcd nor local: {form}"));
            None
        }
    }
}

fn host_etcd(faults: &mut Faults, etcd: &Table<'_>) -> Option<EtcdSettings> {
    let before = faults.0.len();
    etcd.only(faults, ETCD_KEYS);
    let at = |key: &str| etcd.at(key);
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for (index, text) in etcd.list(faults, "endpoints").into_iter().enumerate() {
        let shown = if text.contains('@') { "…" } else { text };
        let field = format!("{}[{index}]", at("endpoints"));
        if let Some(endpoint) = faults.take(&field, shown, Endpoint::parse(text))
            && !endpoints.contains(&endpoint)
        {
            endpoints.push(endpoint);
        }
    }
    if endpoints.is_empty() && faults.0.len() == before {
        faults.push(
            at("endpoints"),
            "",
            "is missing: name at least one, such as [\"https://10.0.0.1:2379\"]",
        );
    }
    let secure = endpoints.iter().any(|endpoint| endpoint.tls);
    if secure && endpoints.iter().any(|endpoint| !endpoint.tls) {
        faults.push(at("endpoints"), "", "mix http and https: all must have the same scheme");
    }
    let prefix = etcd.text(faults, "prefix").unwrap_or(PREFIX);
    let trimmed = prefix.strip_suffix('/').unwrap_or(prefix);
    let odd = |c: char| c.is_whitespace() || c.is_control();
    if !trimmed.starts_with('/') || trimmed.contains("//") || trimmed.contains(odd) {
        faults.push(at("prefix"), prefix, "must be a path such as /leasehold");
    }
    let cacert = etcd.path(faults, "cacert");
    let (cert, key) = (etcd.path(faults, "cert"), etcd.path(faults, "key"));
    for (have, want) in [("cert", "key"), ("key", "cert")] {
        if etcd.get(have).is_some() && etcd.get(want).is_none() {
            faults.push(at(want), "", format!("is missing: {have} is of no use without it"));
        }
    }
    if secure && etcd.get("cacert").is_none() {
        faults.push(
            at("cacert"),
            "",
            "is missing: https needs the CA's certificate, no system roots are bundled",
        );
    }
    if !secure && !endpoints.is_empty() {
        for name in ["cacert", "cert", "key"] {
            if etcd.get(name).is_some() {
                faults.push(at(name), "", "is of no use: the endpoints are http, not https");
            }
        }
    }
    let auth = host_auth(faults, etcd);
    if faults.0.len() > before {
        return None;
    }
    let tls = cacert.filter(|_| secure).map(|cacert| TlsSettings { cacert, identity: cert.zip(key) });
    Some(EtcdSettings { endpoints, prefix: trimmed.into(), tls, auth })
}

fn host_auth(faults: &mut Faults, etcd: &Table<'_>) -> Option<AuthSettings> {
    let username = etcd.text(faults, "username");
    let inline = etcd.text(faults, "password").map(|text| Password::Inline(Secret::new(text.into())));
    let file = etcd.path(faults, "passwordFile").map(Password::File);
    if inline.is_some() && file.is_some() {
        faults.push(etcd.at("passwordFile"), "", "stands beside password: only one of them is accepted");
    }
    let password = inline.or(file);
    match (username, password) {
        (Some(username), Some(password)) => Some(AuthSettings { username: username.into(), password }),
        (None, None) => None,
        (Some(_), None) => {
            faults.push(etcd.at("password"), "", "is missing: username needs password or passwordFile");
            None
        }
        (None, Some(_)) => {
            faults.push(etcd.at("username"), "", "is missing: a password needs it");
            None
        }
    }
}

fn host_labels(faults: &mut Faults, root: &Table<'_>) -> Vec<(String, String)> {
    let Some(labels) = root.table(faults, "labels") else { return Vec::new() };
    let mut out = Vec::new();
    for (key, value) in labels.map {
        match value.as_str() {
            Some(text) if !key.is_empty() && !key.contains('=') && !text.is_empty() => {
                out.push((key.clone(), text.to_owned()));
            }
            Some(_) | None => {
                faults.push(labels.at(key), show(key, value), "a label is \"key\": \"value\", neither empty");
            }
        }
    }
    out
}

fn host_log(faults: &mut Faults, root: &Table<'_>) -> LogSettings {
    let mut settings = LogSettings { file: None, level: Level::Info, max_size: LOG_SIZE };
    let Some(log) = root.table(faults, "log") else { return settings };
    log.only(faults, &["file", "level", "maxSize"]);
    settings.file = log.path(faults, "file").filter(|file| {
        // stdout is the runtime's: one JSON document and nothing else.
        let system = file.starts_with("/dev") || file.starts_with("/proc") || file.starts_with("/sys");
        if system {
            let problem = "must be a file: nothing under /dev, /proc or /sys (stdout is the runtime's)";
            faults.push(log.at("file"), file.display(), problem);
        }
        !system
    });
    if let Some(text) = log.text(faults, "level") {
        settings.level = faults.take(&log.at("level"), text, Level::parse(text)).unwrap_or(Level::Info);
    }
    if let Some(text) = log.text(faults, "maxSize") {
        settings.max_size = faults.take(&log.at("maxSize"), text, parse_size(text)).unwrap_or(LOG_SIZE);
    }
    settings
}

/// `10MiB`, `512KiB`, `1GiB` or plain bytes.
fn parse_size(text: &str) -> Result<u64, String> {
    let form = || "must be a size between 64KiB and 1GiB, such as 10MiB".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let count: u64 = text[..digits].parse().map_err(|_| form())?;
    let unit: u64 = match text[digits..].trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(form()),
    };
    count.checked_mul(unit).filter(|size| (SMALLEST_LOG..=LARGEST_LOG).contains(size)).ok_or_else(form)
}

fn host_sticky_kinds(faults: &mut Faults, root: &Table<'_>) -> Vec<String> {
    let mut kinds: Vec<String> = STICKY_KINDS.iter().map(|kind| (*kind).to_owned()).collect();
    for (index, text) in root.list(faults, "stickyKinds").into_iter().enumerate() {
        let (kind, group) = text.split_once('.').unwrap_or((text, "x"));
        let group_right = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
        let right = kind.starts_with(|c: char| c.is_ascii_uppercase())
            && kind.chars().all(|c| c.is_ascii_alphanumeric())
            && !group.is_empty()
            && group.chars().all(group_right);
        if !right {
            let problem = "must be Kind.group, such as CloneSet.apps.kruise.io";
            faults.push(format!("stickyKinds[{index}]"), text, problem);
        } else if !kinds.iter().any(|known| known == text) {
            kinds.push(text.into());
        }
    }
    kinds
}

/// Why an `ipam` block is refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum IpamError {
    /// There is none, or it is no object.
    Missing,
    /// Store settings, secrets or log files: tenants write such blocks, and `crictl info` prints them. Names only.
    HostKeys(Vec<String>),
    /// Keys that nobody knows.
    Unknown(Vec<Fault>),
    /// Values that are wrong.
    Invalid(Vec<Fault>),
}

/// An address that somebody asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RequestedAddress {
    /// The address.
    pub address: IpAddr,
    /// The prefix length that it was written with, if one was.
    pub length: Option<u8>,
}

impl RequestedAddress {
    /// Reads an address with or without a prefix length.
    ///
    /// # Errors
    /// What is accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = || "must be an IPv4 or IPv6 address, with or without a prefix length".to_owned();
        if text.contains('/') {
            let (address, prefix) = Prefix::parse_host(text).map_err(|_| form())?;
            return Ok(Self { address, length: Some(prefix.length()) });
        }
        parse_address(text).map(|address| Self { address, length: None }).map_err(|_| form())
    }
}

/// Ranges of the `ipam` block, host-local's schema.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InlineRanges {
    /// One address is leased from each set; the ranges of a set are alternatives, in order.
    pub sets: Vec<Vec<Range>>,
}

/// The `ipam` block.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct IpamBlock {
    /// `pool`: tried in this order; empty if nothing is asked.
    pub pools: Vec<PoolName>,
    /// `ips`: empty if nothing is asked.
    pub ips: Vec<RequestedAddress>,
    /// `ranges` and the shorthand.
    pub inline: Option<InlineRanges>,
    /// `routes`.
    pub routes: Vec<Route>,
    /// `dns`.
    pub dns: Dns,
    /// `resolvConf`: the caller reads it and gives the text to [`parse_resolv_conf`].
    pub resolv_conf: Option<PathBuf>,
    /// `dataDir`: host-local's, ignored; said so that it can be logged.
    pub data_dir: Option<String>,
}

const IPAM_KEYS: &[&str] = &[
    "type",
    "pool",
    "ips",
    "ranges",
    "subnet",
    "rangeStart",
    "rangeEnd",
    "gateway",
    "routes",
    "resolvConf",
    "dns",
    "dataDir",
];
const RANGE_KEYS: &[&str] = &["subnet", "rangeStart", "rangeEnd", "gateway"];
const ROUTE_KEYS: &[&str] = &["dst", "gw", "mtu", "advmss", "priority", "table", "scope"];
const DNS_KEYS: &[&str] = &["nameservers", "domain", "search", "options"];

/// Names, folded, that belong to the host file. `etcd…` does, too.
const HOST_WORDS: &[&str] = &[
    "store",
    "storage",
    "datastore",
    "endpoint",
    "endpoints",
    "prefix",
    "local",
    "cacert",
    "ca",
    "cafile",
    "cert",
    "certfile",
    "key",
    "keyfile",
    "tls",
    "username",
    "user",
    "password",
    "passwordfile",
    "passwd",
    "secret",
    "token",
    "log",
    "logfile",
    "loglevel",
    "kubernetes",
    "kubeconfig",
    "cluster",
    "node",
    "nodename",
    "labels",
    "statedir",
    "inlineranges",
    "statuschecksstore",
    "deadlines",
    "stickykinds",
    "journal",
];
/// A slip in one of these must not print what stands behind it.
const SECRET_WORDS: &[&str] = &["password", "passwordfile", "username", "endpoints", "secret", "token"];

impl IpamBlock {
    /// Reads the block of an ADD.
    ///
    /// # Errors
    /// The gravest kind of [`IpamError`], with everything of that kind.
    pub fn parse(ipam: Option<&Value>) -> Result<Self, IpamError> {
        let ipam = ipam.and_then(|value| Table::of("ipam", value, Case::Folded)).ok_or(IpamError::Missing)?;
        let keys = ipam.map.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key);
        let host: Vec<String> = keys.filter(|key| is_host_key(key)).cloned().collect();
        if !host.is_empty() {
            return Err(IpamError::HostKeys(host));
        }
        let (mut unknown, mut faults) = (Faults::default(), Faults::default());
        ipam.only(&mut unknown, IPAM_KEYS);
        ipam.text(&mut faults, "type");
        let mut block =
            Self { data_dir: ipam.text(&mut faults, "dataDir").map(str::to_owned), ..Self::default() };
        if let Some(value) = ipam.get("pool") {
            let names = faults.take("ipam.pool", &show("pool", value), words(value)).unwrap_or_default();
            for name in names {
                block.pools.extend(faults.take("ipam.pool", &name, PoolName::new(name.as_str())));
            }
        }
        if let Some(value) = ipam.get("ips") {
            let texts = faults.take("ipam.ips", &show("ips", value), words(value)).unwrap_or_default();
            for text in texts {
                block.ips.extend(faults.take("ipam.ips", &text, RequestedAddress::parse(&text)));
            }
        }
        block.inline = inline_ranges(&mut faults, &mut unknown, &ipam);
        if block.inline.is_some() && !block.pools.is_empty() {
            faults.push("ipam.pool", "", "stands beside ranges or subnet: only one of them is accepted");
        }
        for (index, route) in ipam.tables(&mut faults, "routes").iter().enumerate() {
            let field = format!("ipam.routes[{index}]");
            route.only(&mut unknown, ROUTE_KEYS);
            let draft = RouteDraft {
                dst: route.text(&mut faults, "dst").unwrap_or_default().into(),
                gw: route.text(&mut faults, "gw").map(str::to_owned),
                mtu: route.number(&mut faults, "mtu").filter(|n| *n != 0),
                advmss: route.number(&mut faults, "advmss").filter(|n| *n != 0),
                priority: route.number(&mut faults, "priority").filter(|n| *n != 0),
                table: route.number(&mut faults, "table"),
                scope: route.number(&mut faults, "scope"),
            };
            match Route::from_draft(&field, &draft) {
                Ok(route) => block.routes.push(route),
                Err(found) => faults.0.extend(found),
            }
        }
        if let Some(dns) = ipam.table(&mut faults, "dns") {
            dns.only(&mut unknown, DNS_KEYS);
            block.dns = Dns {
                nameservers: owned(dns.list(&mut faults, "nameservers")),
                domain: dns.text(&mut faults, "domain").filter(|text| !text.is_empty()).map(str::to_owned),
                search: owned(dns.list(&mut faults, "search")),
                options: owned(dns.list(&mut faults, "options")),
            };
        }
        block.resolv_conf = ipam.path(&mut faults, "resolvConf");
        if !unknown.0.is_empty() {
            return Err(IpamError::Unknown(unknown.0));
        }
        if faults.0.is_empty() { Ok(block) } else { Err(IpamError::Invalid(faults.0)) }
    }
}

fn owned(texts: Vec<&str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}

/// A list of words as people write it: an array of strings, a comma list, or an array inside a string (annotations
/// are strings). Empty entries are skipped.
///
/// # Errors
/// What is accepted.
pub fn words(value: &Value) -> Result<Vec<String>, String> {
    let form = || "must be a text, a comma list or an array of texts".to_owned();
    let each = |items: &[Value]| -> Result<Vec<String>, String> {
        let texts = items.iter().map(|item| item.as_str().ok_or_else(form));
        let texts = texts.map(|text| text.map(|text| text.trim().to_owned()));
        texts.filter(|text| text.as_ref().map_or(true, |text| !text.is_empty())).collect()
    };
    match value {
        Value::Array(items) => each(items),
        Value::String(text) if text.trim_start().starts_with('[') => {
            each(&serde_json::from_str::<Vec<Value>>(text).map_err(|_| form())?)
        }
        Value::String(text) => {
            Ok(text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect())
        }
        Value::Null => Ok(Vec::new()),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err(form()),
    }
}

/// host-local's ranges: the shorthand is the first set (as there), then `ranges`.
fn inline_ranges(faults: &mut Faults, unknown: &mut Faults, ipam: &Table<'_>) -> Option<InlineRanges> {
    let before = (faults.0.len(), unknown.0.len());
    let mut drafts: Vec<Vec<(String, RangeDraft)>> = Vec::new();
    if ipam.get("subnet").is_some() {
        drafts.push(vec![("ipam".into(), range_draft(faults, ipam))]);
    } else if let Some(key) = RANGE_KEYS.iter().find(|key| ipam.get(key).is_some()) {
        faults.push(
            ipam.at(key),
            "",
            "needs ipam.subnet beside it; inside ranges it stands in its own range",
        );
    }
    match ipam.get("ranges") {
        None => {}
        Some(Value::Array(sets)) => {
            for (outer, set) in sets.iter().enumerate() {
                let Value::Array(ranges) = set else {
                    let problem = "must be a list of ranges: \"ranges\": [[{\"subnet\": …}]]";
                    faults.push(format!("ipam.ranges[{outer}]"), show("", set), problem);
                    continue;
                };
                let mut out = Vec::new();
                for (inner, range) in ranges.iter().enumerate() {
                    let field = format!("ipam.ranges[{outer}][{inner}]");
                    let Some(table) = Table::of(&field, range, Case::Folded) else {
                        faults.push(field, show("", range), "must be an object with a subnet");
                        continue;
                    };
                    table.only(unknown, RANGE_KEYS);
                    out.push((field, range_draft(faults, &table)));
                }
                if ranges.is_empty() {
                    faults.push(
                        format!("ipam.ranges[{outer}]"),
                        "",
                        "is empty: a set needs at least one range",
                    );
                }
                drafts.push(out);
            }
        }
        Some(other) => {
            let problem = "must be a list of lists: \"ranges\": [[{\"subnet\": …}]]";
            faults.push("ipam.ranges", show("ranges", other), problem);
        }
    }
    let count: usize = drafts.iter().map(Vec::len).sum();
    if count > MAX_RANGES {
        faults.push("ipam.ranges", "", format!("{count} ranges; at most {MAX_RANGES} are accepted"));
        return None;
    }
    let mut found: Vec<(usize, String, Range)> = Vec::new();
    for (set, ranges) in drafts.iter().enumerate() {
        for (field, draft) in ranges {
            match Range::from_draft(field, draft) {
                Ok(range) => {
                    let bounds = range.bounds();
                    if let Some((_, other, _)) = found.iter().find(|(_, _, r)| r.bounds().overlaps(bounds)) {
                        faults.push(field.as_str(), bounds, format!("overlaps {other}"));
                    }
                    let mixed = found.iter().find(|(s, _, r)| *s == set && r.family() != range.family());
                    if let Some((_, other, _)) = mixed {
                        let problem = format!("has another family than {other}: make it a set of its own");
                        faults.push(field.as_str(), bounds, problem);
                    }
                    found.push((set, field.clone(), range));
                }
                Err(wrong) => faults.0.extend(wrong),
            }
        }
    }
    if (faults.0.len(), unknown.0.len()) != before || found.is_empty() {
        return None;
    }
    let gateways: Vec<IpAddr> = found.iter().filter_map(|(_, _, range)| range.gateway()).collect();
    let mut sets: Vec<Vec<Range>> = vec![Vec::new(); drafts.len()];
    for (set, field, range) in found {
        let foreign = gateways.iter().filter(|gateway| range.usable().contains(**gateway)).copied();
        let range = foreign.collect::<Vec<_>>().into_iter().fold(range, Range::also_without);
        if range.usable().is_empty() {
            faults.push(
                field,
                range.bounds(),
                "nothing usable is left beside the gateways of the other ranges",
            );
        }
        sets[set].push(range);
    }
    (faults.0.len() == before.0).then_some(InlineRanges { sets })
}

/// With host-local's default: the gateway is network + 1, unless the subnet is too small to have hosts beside it.
fn range_draft(faults: &mut Faults, table: &Table<'_>) -> RangeDraft {
    let mut text = |key: &str| table.text(faults, key).filter(|text| !text.is_empty()).map(str::to_owned);
    let subnet = text("subnet").unwrap_or_default();
    let (start, end, gateway) = (text("rangeStart"), text("rangeEnd"), text("gateway"));
    let gateway = gateway.or_else(|| {
        let prefix = Prefix::parse(&subnet).ok()?;
        let hosts = prefix.family().bits() - prefix.length();
        (hosts >= 2).then(|| prefix.family().address(prefix.first() + 1).to_string())
    });
    RangeDraft { subnet, start, end, gateway, exclude: Vec::new() }
}

/// What host-local reads from a resolv.conf: `nameserver`, `domain`, `search`, `options`.
#[must_use]
pub fn parse_resolv_conf(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let Some(word) = fields.next() else { continue };
        let mut rest = fields.map(str::to_owned);
        match word {
            "nameserver" => dns.nameservers.extend(rest.next()),
            "domain" => dns.domain = rest.next().or(dns.domain),
            "search" => dns.search.extend(rest),
            "options" => dns.options.extend(rest),
            _ => {} // a comment, or a word of another resolver's
        }
    }
    dns
}

/// Collects faults.
#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn push(&mut self, field: impl Into<String>, value: impl ToString, problem: impl Into<String>) {
        self.0.push(Fault { field: field.into(), value: cut(value.to_string()), problem: problem.into() });
    }

    fn take<T, E: fmt::Display>(&mut self, field: &str, value: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.push(field, value, error.to_string())).ok()
    }
}

fn cut(text: String) -> String {
    if text.len() <= SHOWN {
        return text;
    }
    let end = (0..=SHOWN).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// How keys are compared: exactly, or as Go's encoding/json does.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Case {
    Exact,
    Folded,
}

/// The value of a key of a JSON object as Go's encoding/json would take it: letters' case does not count, the last
/// one wins, `null` is absent.
#[must_use]
pub fn lookup<'a>(map: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    let mut same = map.iter().filter(|(name, value)| name.eq_ignore_ascii_case(key) && !value.is_null());
    same.next_back().map(|(_, value)| value)
}

/// A JSON object and its path, for faults.
struct Table<'a> {
    path: String,
    map: &'a Map<String, Value>,
    case: Case,
}

impl<'a> Table<'a> {
    fn of(path: &str, value: &'a Value, case: Case) -> Option<Self> {
        value.as_object().map(|map| Self { path: path.into(), map, case })
    }

    fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// `null` is absent.
    fn get(&self, key: &str) -> Option<&'a Value> {
        match self.case {
            Case::Exact => self.map.get(key).filter(|value| !value.is_null()),
            Case::Folded => lookup(self.map, key),
        }
    }

    fn only(&self, faults: &mut Faults, known: &[&str]) {
        for (key, value) in self.map {
            let same = |name: &&str| match self.case {
                Case::Exact => *name == key,
                Case::Folded => name.eq_ignore_ascii_case(key),
            };
            if value.is_null() || known.iter().any(same) {
                continue;
            }
            let problem = match nearest(key, known) {
                Some(name) => format!("unknown key; did you mean {name:?}?"),
                None => format!("unknown key; known are {}", known.join(", ")),
            };
            faults.push(self.at(&cut(key.clone())), self.show(key, value), problem);
        }
    }

    fn wrong(&self, faults: &mut Faults, key: &str, value: &Value, accepted: &str) {
        faults.push(self.at(key), self.show(key, value), format!("must be {accepted}"));
    }

    /// Of our own file, only plain values are shown: a list in the wrong place may hold a password.
    fn show(&self, key: &str, value: &Value) -> String {
        match (self.case, value) {
            (Case::Exact, Value::Array(_)) => "[…]".into(),
            (Case::Exact, Value::Object(_)) => "{…}".into(),
            (Case::Exact | Case::Folded, _) => show(key, value),
        }
    }

    fn text(&self, faults: &mut Faults, key: &str) -> Option<&'a str> {
        let value = self.get(key)?;
        if value.as_str().is_none() {
            self.wrong(faults, key, value, "a text in quotes");
        }
        value.as_str()
    }

    fn flag(&self, faults: &mut Faults, key: &str) -> Option<bool> {
        let value = self.get(key)?;
        if value.as_bool().is_none() {
            self.wrong(faults, key, value, "true or false");
        }
        value.as_bool()
    }

    fn number(&self, faults: &mut Faults, key: &str) -> Option<u32> {
        let value = self.get(key)?;
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        if number.is_none() {
            self.wrong(faults, key, value, "a whole number from 0 to 4294967295");
        }
        number
    }

    /// An absolute path: the working directory is the runtime's.
    fn path(&self, faults: &mut Faults, key: &str) -> Option<PathBuf> {
        let text = self.text(faults, key)?;
        let path = PathBuf::from(text);
        let climbs = path.components().any(|part| part == Component::ParentDir);
        if !path.is_absolute() || climbs || text.contains('\0') {
            faults.push(self.at(key), text, "must be an absolute path without ..");
            return None;
        }
        Some(path)
    }

    fn list(&self, faults: &mut Faults, key: &str) -> Vec<&'a str> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let texts = value.as_array().and_then(|items| items.iter().map(Value::as_str).collect());
        if texts.is_none() {
            self.wrong(faults, key, value, "a list of texts");
        }
        texts.unwrap_or_default()
    }

    fn table(&self, faults: &mut Faults, key: &str) -> Option<Self> {
        let value = self.get(key)?;
        let table = Self::of(&self.at(key), value, self.case);
        if table.is_none() {
            self.wrong(faults, key, value, "an object");
        }
        table
    }

    fn tables(&self, faults: &mut Faults, key: &str) -> Vec<Self> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let tables = value.as_array().and_then(|items| {
            let each = items.iter().enumerate();
            each.map(|(index, item)| Self::of(&format!("{}[{index}]", self.at(key)), item, self.case))
                .collect()
        });
        if tables.is_none() {
            self.wrong(faults, key, value, "a list of objects");
        }
        tables.unwrap_or_default()
    }
}

/// Letters only, lower case: `range_start` and `RangeStart` are the same slip.
fn fold(key: &str) -> String {
    key.chars().filter(|c| !matches!(c, '_' | '-' | '.')).map(|c| c.to_ascii_lowercase()).collect()
}

fn is_host_key(key: &str) -> bool {
    let key = fold(key);
    if IPAM_KEYS.iter().any(|known| known.eq_ignore_ascii_case(&key)) {
        return false;
    }
    key.starts_with("etcd") || HOST_WORDS.contains(&key.as_str()) || is_secret(&key)
}

fn is_secret(folded: &str) -> bool {
    SECRET_WORDS.iter().any(|word| folded.contains(word) || distance(folded, word) <= word.len() / 4)
}

/// A value for an error text: cut, and without what may be a secret.
fn show(key: &str, value: &Value) -> String {
    fn plain(key: &str, value: &Value) -> Value {
        let folded = fold(key);
        if is_secret(&folded) || folded.ends_with("key") {
            return Value::String("…".into());
        }
        match value {
            Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), plain(key, value))).collect(),
            Value::Array(items) => items.iter().map(|item| plain(key, item)).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
        }
    }
    let value = plain(key, value);
    cut(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// The known key that was probably meant.
fn nearest<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    let key = fold(key);
    let limit = if key.len() < 4 { 1 } else { (key.len() / 3).max(2) };
    let scored = known.iter().map(|name| (distance(&key, &fold(name)), *name));
    scored
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Slips between two keys: a letter replaced, added, lost, or swapped with its neighbour. Keys of over 40 bytes are
/// far from every other.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 40 || b.len() > 40 {
        return usize::MAX;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best = (rows[i][j] + usize::from(x != y)).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FULL: &str = r#"{
        "v": 1,
        "store": {"etcd": {"endpoints": ["https://10.0.0.1:2379", "https://[fd00::2]:2379/"], "prefix": "/x/",
                           "cacert": "/p/ca.crt", "cert": "/p/node.crt", "key": "/p/node.key",
                           "username": "node", "password": "hunter2"}},
        "cluster": "prod-a", "node": "n1", "labels": {"rack": "a"}, "stateDir": "/s",
        "log": {"file": "/var/log/leasehold.log", "level": "debug", "maxSize": "64KiB"},
        "inlineRanges": "allow", "statusChecksStore": true,
        "deadlines": {"add": "1m40s", "del": "1s"}, "stickyKinds": ["CloneSet.apps.kruise.io", "StatefulSet.apps"]
    }"#;

    #[test]
    fn a_full_host_file() {
        let config = HostConfig::parse(FULL).unwrap();
        let StoreSettings::Etcd(etcd) = &config.store else { panic!("{config:?}") };
        let endpoints: Vec<String> = etcd.endpoints.iter().map(ToString::to_string).collect();
        assert_eq!(endpoints, ["https://10.0.0.1:2379", "https://[fd00::2]:2379"]);
        assert_eq!(etcd.prefix, "/x");
        assert_eq!(etcd.tls.as_ref().unwrap().identity, Some(("/p/node.crt".into(), "/p/node.key".into())));
        assert_eq!(config.labels, [("rack".to_owned(), "a".to_owned())]);
        assert_eq!((config.log.level, config.log.max_size), (Level::Debug, 65_536));
        assert_eq!((config.add_deadline.as_secs(), config.del_deadline.as_secs()), (100, 1));
        assert_eq!(
            config.sticky_kinds,
            ["StatefulSet.apps", "StatefulSet.apps.kruise.io", "CloneSet.apps.kruise.io"]
        );
        assert!(config.inline_ranges && config.status_checks_store && config.holds_secret());
        assert_eq!(config.secret_files(), [Path::new("/p/node.key")]);
    }

    #[test]
    fn defaults() {
        let config = HostConfig::parse(r#"{"store": {"local": "/d"}, "log": null}"#).unwrap();
        assert_eq!(config.store, StoreSettings::Local("/d".into()));
        assert_eq!(config.cluster.as_str(), "local");
        assert!(config.inline_ranges && !config.status_checks_store && !config.holds_secret());
        assert_eq!(config.state_dir, Path::new("/var/lib/leasehold"));
        assert_eq!(config.log, LogSettings { file: None, level: Level::Info, max_size: 10 << 20 });
        assert_eq!((config.add_deadline, config.del_deadline), (ADD_DEADLINE, DEL_DEADLINE));
        let etcd = r#"{"store": {"etcd": {"endpoints": ["http://e:1"]}}, "cluster": "c"}"#;
        let config = HostConfig::parse(etcd).unwrap();
        assert!(!config.inline_ranges);
        let StoreSettings::Etcd(etcd) = config.store else { panic!() };
        assert_eq!((etcd.prefix.as_str(), etcd.tls, etcd.auth), ("/leasehold", None, None));
    }

    #[test]
    fn b129_no_secret_in_debug_or_in_a_fault() {
        assert!(!format!("{:?}", HostConfig::parse(FULL).unwrap()).contains("hunter2"));
        for bad in [
            r#"{"store": {"etcd": {"endpoints": ["http://u:hunter2@h:1"]}}, "cluster": "c"}"#,
            r#"{"store": {"etcd": {"endpoints": ["http://h:1"], "username": "u", "password": ["hunter2"]}}, "cluster": "c"}"#,
            r#"{"store": {"etcd": {"endpoints": ["http://h:1"], "pasword": "hunter2"}}, "cluster": "c"}"#,
            r#"{"store": {"etcd": ["hunter2"], "etcdx": {"password": "hunter2"}}, "cluster": "c"}"#,
            r#"{"store": {"local": "/x"}, "etcd_password": "hunter2"}"#,
        ] {
            let faults = HostConfig::parse(bad).unwrap_err();
            let text: Vec<String> = faults.iter().map(ToString::to_string).collect();
            let text = text.join("; ");
            assert!(!text.is_empty() && !text.contains("hunter2"), "{text}");
        }
        let mut ipam = json!({"type": "x", "storge": {"password": "hunter2"}, "apikey": "hunter2"});
        assert!(!format!("{:?}", IpamBlock::parse(Some(&ipam))).contains("hunter2"));
        ipam["passwrd"] = "hunter2".into();
        assert_eq!(IpamBlock::parse(Some(&ipam)), Err(IpamError::HostKeys(vec!["passwrd".into()])));
    }

    #[track_caller]
    fn host_faults(text: &str, wanted: &[&str]) {
        let found: Vec<String> =
            HostConfig::parse(text).unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn all_faults_of_the_host_file_at_once() {
        host_faults(
            r#"{"v": 2, "store": {"etcd": {"endpoints": ["http://a:1", "https://b:2", "c:3", "http://d:0"],
                "prefix": "x", "cert": "node.crt", "username": "u", "passwrodFile": "/p"}, "lokal": 1},
                "nod": "n1", "node": "n 1", "labels": {"a": 1}, "stateDir": "/a/../b",
                "log": {"file": "/dev/stdout", "level": "trace", "maxSize": "1KiB", "path": "/x"},
                "inlineRanges": true, "statusChecksStore": "no", "deadlines": {"add": "101s", "del": "x", "dell": "1s"},
                "stickyKinds": ["x"]}"#,
            &[
                "nod: n1: unknown key; did you mean \"node\"?",
                "v: 2: must be 1, the only version this binary knows",
                "store.lokal: 1: unknown key; did you mean \"local\"?",
                "store.etcd.passwrodFile: …: unknown key; did you mean \"passwordFile\"?",
                "store.etcd.endpoints[2]: c:3: must be http://HOST:PORT or https://HOST:PORT, such as https://10.0.0.1:2379",
                "store.etcd.endpoints[3]: http://d:0: must be http://HOST:PORT or https://HOST:PORT, such as https://10.0.0.1:2379",
                "store.etcd.endpoints: mix http and https: all must have the same scheme",
                "store.etcd.prefix: x: must be a path such as /leasehold",
                "store.etcd.cert: node.crt: must be an absolute path without ..",
                "store.etcd.key: is missing: cert is of no use without it",
                "store.etcd.cacert: is missing: https needs the CA's certificate, no system roots are bundled",
                "store.etcd.password: is missing: username needs password or passwordFile",
                "cluster: is missing: the name that `leasehold install --cluster NAME` registered",
                "node: n 1: node name \"n 1\" has an invalid character ' ': letters, digits, '.', '_' and '-' are accepted",
                "labels.a: 1: a label is \"key\": \"value\", neither empty",
                "stateDir: /a/../b: must be an absolute path without ..",
                "log.path: /x: unknown key; known are file, level, maxSize",
                "log.file: /dev/stdout: must be a file: nothing under /dev, /proc or /sys (stdout is the runtime's)",
                "log.level: trace: must be one of: error, warn, info, debug",
                "log.maxSize: 1KiB: must be a size between 64KiB and 1GiB, such as 10MiB",
                "inlineRanges: true: must be a text in quotes",
                "statusChecksStore: no: must be true or false",
                "deadlines.dell: 1s: unknown key; did you mean \"del\"?",
                "deadlines.add: 101s: must be between 1s and 100s inclusive",
                "deadlines.del: x: must be a duration such as 300ms, 5s, 10m or 1h30m",
                "stickyKinds[0]: x: must be Kind.group, such as CloneSet.apps.kruise.io",
            ],
        );
    }

    #[test]
    fn exactly_one_store() {
        let form = "must be {\"etcd\": {…}} for a cluster or {\"local\": \"/dir\"} for one host";
        host_faults(r#"{"cluster": "c"}"#, &[&format!("store: is missing: {form}")]);
        host_faults(
            r#"{"cluster": "c", "store": {}}"#,
            &[&format!("store: has neither etcd nor local: {form}")],
        );
        host_faults(
            r#"{"cluster": "c", "store": {"etcd": {}, "local": "/x"}}"#,
            &[&format!("store: has both etcd and local: {form}")],
        );
        host_faults(
            r#"{"cluster": "c", "store": {"etcd": {}}}"#,
            &["store.etcd.endpoints: is missing: name at least one, such as [\"https://10.0.0.1:2379\"]"],
        );
        host_faults(
            r#"{"cluster": "c", "store": {"etcd": {"endpoints": ["http://a:1"], "cacert": "/x", "password": "x", "passwordFile": "/x"}}}"#,
            &[
                "store.etcd.cacert: is of no use: the endpoints are http, not https",
                "store.etcd.passwordFile: stands beside password: only one of them is accepted",
                "store.etcd.username: is missing: a password needs it",
            ],
        );
        host_faults("[]", &["[]: must be a JSON object".replacen("[]", ": []", 1).as_str()]);
        assert!(HostConfig::parse("{").unwrap_err()[0].to_string().contains("is not JSON: EOF"));
    }

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
    fn the_host_file_is_looked_for_in_two_places_or_one() {
        assert_eq!(host_file_candidates(Some("/x".into())), [PathBuf::from("/x")]);
        for none in [None, Some("".into())] {
            assert_eq!(
                host_file_candidates(none),
                [
                    PathBuf::from("/etc/cni/net.d/leasehold.d/config.json"),
                    "/etc/leasehold/config.json".into()
                ]
            );
        }
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let path = Path::new("/etc/leasehold/config.json");
        for good in [0o100_600, 0o100_400, 0o600] {
            assert_eq!(check_mode(path, good, true), Ok(()));
        }
        assert_eq!(check_mode(path, 0o644, false), Ok(()));
        for (mode, shown) in [(0o100_644, "0644"), (0o100_640, "0640"), (0o100_604, "0604")] {
            assert_eq!(
                check_mode(path, mode, true).unwrap_err().to_string(),
                format!(
                    "/etc/leasehold/config.json holds a secret and has mode {shown}: others can read it; run: chmod 0600 /etc/leasehold/config.json"
                )
            );
        }
    }

    #[track_caller]
    fn block(ipam: Value) -> IpamBlock {
        IpamBlock::parse(Some(&ipam)).unwrap()
    }

    #[track_caller]
    fn ranges(ipam: Value, wanted: &str) {
        let sets = block(ipam).inline.unwrap().sets;
        let one = |range: &Range| {
            let gateway = range.gateway().map_or("-".to_owned(), |gateway| gateway.to_string());
            let runs: Vec<String> = range.usable().runs().iter().map(ToString::to_string).collect();
            format!("{} gw {gateway} {}", range.subnet(), runs.join(","))
        };
        let sets: Vec<String> =
            sets.iter().map(|set| set.iter().map(one).collect::<Vec<_>>().join(" or ")).collect();
        assert_eq!(sets.join(" and "), wanted);
    }

    #[test]
    fn host_locals_ranges_with_its_defaults() {
        ranges(json!({"subnet": "10.9.0.0/24"}), "10.9.0.0/24 gw 10.9.0.1 10.9.0.2-10.9.0.254");
        ranges(
            json!({"subnet": "10.9.0.0/24", "rangeStart": "10.9.0.10", "rangeEnd": "10.9.0.20", "gateway": "10.9.0.15"}),
            "10.9.0.0/24 gw 10.9.0.15 10.9.0.10-10.9.0.14,10.9.0.16-10.9.0.20",
        );
        ranges(
            json!({"type": "leasehold", "Subnet": "fd00:9::/64", "ranges": [
                [{"subnet": "10.0.0.0/30"}, {"subnet": "10.0.1.0/31"}], [{"subnet": "10.0.2.7/32"}]]}),
            "fd00:9::/64 gw fd00:9::1 fd00:9::2-fd00:9::ffff:ffff:ffff:ffff and \
             10.0.0.0/30 gw 10.0.0.1 10.0.0.2 or 10.0.1.0/31 gw - 10.0.1.0-10.0.1.1 and \
             10.0.2.7/32 gw - 10.0.2.7",
        );
        // The gateway of one range is not leased from another.
        ranges(
            json!({"ranges": [[{"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.4"}, {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.5", "rangeEnd": "10.0.0.8", "gateway": "10.0.0.3"}]]}),
            "10.0.0.0/24 gw 10.0.0.1 10.0.0.2,10.0.0.4 or 10.0.0.0/24 gw 10.0.0.3 10.0.0.5-10.0.0.8",
        );
        assert_eq!(block(json!({"ranges": null, "subnet": null})).inline, None);
        assert_eq!(block(json!({"ranges": []})).inline, None);
    }

    #[track_caller]
    fn invalid(ipam: Value, wanted: &[&str]) {
        match IpamBlock::parse(Some(&ipam)) {
            Err(IpamError::Invalid(faults)) => {
                assert_eq!(faults.iter().map(ToString::to_string).collect::<Vec<_>>(), wanted);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn inline_ranges_name_field_and_value() {
        invalid(
            json!({"subnet": "10.0.0.1/24", "ranges": [
                [{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.5"}],
                [{"subnet": "10.2.0.0/24", "rangeStart": "10.3.0.1"}, {"subnet": "fd00::/64", "rangeEnd": "10.0.0.1"}],
                [{"subnet": "10.4.0.0/24", "gateway": "10.5.0.1"}], [], [{}], ["x"], "y"]}),
            &[
                "ipam.ranges[3]: is empty: a set needs at least one range",
                "ipam.ranges[5][0]: x: must be an object with a subnet",
                "ipam.ranges[6]: y: must be a list of ranges: \"ranges\": [[{\"subnet\": …}]]",
                "ipam.subnet: 10.0.0.1/24: \"10.0.0.1/24\" has host bits set: the subnet is 10.0.0.0/24",
                "ipam.ranges[0][0].start: 10.1.0.9: comes after the end 10.1.0.5",
                "ipam.ranges[1][0].start: 10.3.0.1: is outside the subnet 10.2.0.0/24",
                "ipam.ranges[1][1].end: 10.0.0.1: is no IPv6 address, but the subnet fd00::/64 is",
                "ipam.ranges[2][0].gateway: 10.5.0.1: is outside the subnet 10.4.0.0/24",
                "ipam.ranges[4][0].subnet: \"\" is not a subnet in CIDR notation, such as 10.0.0.0/24 or fd00:9::/64",
            ],
        );
        invalid(
            json!({"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00::/64"}], [{"subnet": "10.1.0.0/16"}]]}),
            &[
                "ipam.ranges[0][1]: fd00::1-fd00::ffff:ffff:ffff:ffff: has another family than ipam.ranges[0][0]: make it a set of its own",
                "ipam.ranges[1][0]: 10.1.0.1-10.1.255.254: overlaps ipam.ranges[0][0]",
            ],
        );
        invalid(
            json!({"gateway": "10.0.0.1", "ranges": [[{"subnet": "10.0.0.0/24"}]]}),
            &["ipam.gateway: needs ipam.subnet beside it; inside ranges it stands in its own range"],
        );
        invalid(
            json!({"subnet": "10.0.0.0/24", "pool": "db"}),
            &["ipam.pool: stands beside ranges or subnet: only one of them is accepted"],
        );
        invalid(
            json!({"pool": 5, "ips": "10.0.0.0/40", "routes": [{"dst": "10.1.2.3/16", "mtu": "1"}, 5], "dns": [], "resolvConf": "x"}),
            &[
                "ipam.pool: 5: must be a text, a comma list or an array of texts",
                "ipam.ips: 10.0.0.0/40: must be an IPv4 or IPv6 address, with or without a prefix length",
                "ipam.routes: [{\"dst\":\"10.1.2.3/16\",\"mtu\":\"1\"},5]: must be a list of objects",
                "ipam.dns: []: must be an object",
                "ipam.resolvConf: x: must be an absolute path without ..",
            ],
        );
    }

    #[test]
    fn the_rest_of_the_block() {
        let found = block(json!({
            "type": "leasehold", "pool": "a, b", "ips": ["10.0.0.1/24", "fd00::1"], "dataDir": "/d",
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.0.0.0/8", "gw": "10.9.0.1", "MTU": 1400, "priority": 0, "scope": 0}],
            "dns": {"nameservers": ["10.0.0.53"], "domain": ""}, "resolvConf": "/etc/resolv.conf"
        }));
        assert_eq!(found.pools.iter().map(PoolName::as_str).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(found.ips.iter().map(|ip| ip.length).collect::<Vec<_>>(), [Some(24), None]);
        assert_eq!(found.routes[1].attributes.mtu, Some(1400));
        assert_eq!((found.routes[1].attributes.priority, found.routes[1].attributes.scope), (None, Some(0)));
        assert_eq!((found.dns.nameservers.len(), found.dns.domain.clone()), (1, None));
        assert_eq!(found.data_dir.as_deref(), Some("/d"));
        assert_eq!(found.resolv_conf.as_deref(), Some(Path::new("/etc/resolv.conf")));
        assert_eq!(
            block(json!({"routes": null, "dns": null, "pool": null, "ips": null})),
            IpamBlock::default()
        );
    }

    #[test]
    fn an_unknown_key_is_named_with_its_value_and_the_nearest() {
        let ipam = json!({"range": "10.0.0.0/24", "pols": "db", "routes": [{"dest": "x"}], "colour": "red",
            "ranges": [[{"subnet": "10.0.0.0/24", "range_start": "10.0.0.5"}]]});
        let Err(IpamError::Unknown(faults)) = IpamBlock::parse(Some(&ipam)) else { panic!() };
        let found: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "ipam.range: 10.0.0.0/24: unknown key; did you mean \"ranges\"?",
                "ipam.pols: db: unknown key; did you mean \"pool\"?",
                "ipam.colour: red: unknown key; known are type, pool, ips, ranges, subnet, rangeStart, rangeEnd, gateway, routes, resolvConf, dns, dataDir",
                "ipam.ranges[0][0].range_start: 10.0.0.5: unknown key; did you mean \"rangeStart\"?",
                "ipam.routes[0].dest: x: unknown key; did you mean \"dst\"?",
            ]
        );
    }

    #[test]
    fn store_settings_and_secrets_belong_to_the_host_file() {
        for key in [
            "endpoints",
            "etcd",
            "etcd_host",
            "etcdPassword",
            "cacert",
            "cert",
            "key",
            "username",
            "password",
            "logFile",
            "log_file",
            "log_level",
            "datastore",
            "kubernetes",
            "kubeconfig",
            "store",
            "cluster",
            "node",
            "Passwords",
        ] {
            let ipam = json!({"type": "leasehold", "colour": 1, key: "hunter2"});
            assert_eq!(IpamBlock::parse(Some(&ipam)), Err(IpamError::HostKeys(vec![key.into()])));
        }
        assert_eq!(IpamBlock::parse(None), Err(IpamError::Missing));
        assert_eq!(IpamBlock::parse(Some(&json!([]))), Err(IpamError::Missing));
    }

    #[test]
    fn a_resolv_conf() {
        let dns = parse_resolv_conf(
            "# c\n; d\nnameserver 10.0.0.1\n nameserver\t10.0.0.2 x\nnameserver\ndomain a.b\nsearch a b\nsearch c\noptions ndots:2 edns0\nsortlist x\n",
        );
        assert_eq!(dns.nameservers, ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(dns.domain.as_deref(), Some("a.b"));
        assert_eq!(dns.search, ["a", "b", "c"]);
        assert_eq!(dns.options, ["ndots:2", "edns0"]);
        assert!(parse_resolv_conf("").is_empty());
    }
}
