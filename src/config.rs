//! Text of the host file and of the `ipam` block -> settings. It gets text: it reads no file and no environment.
//!
//! Both are strict, since they are ours: an unknown key is a mistake, and all mistakes are reported at once, each
//! with path, value and what is accepted. No text of a fault shows a secret.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use thiserror::Error;

use crate::{
    config::table::{Case, Faults, Table, show},
    domain::{
        names::{ClusterName, NodeName},
        pool::{Fault, format_duration, parse_duration},
        reap::STICKY_KINDS,
    },
    store::etcd::{Endpoint, Secret},
};

mod ipam;
mod table;

pub use ipam::{InlineRanges, IpamBlock, IpamError, RequestedAddress, parse_resolv_conf};
pub use table::{lookup, words};

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
                faults.push("the file", "", format!("is not JSON: {error}"));
                return Err(faults.0);
            }
        };
        let Some(root) = Table::of("", &value, Case::Exact) else {
            faults.push("the file", show("", &value), "must be a JSON object");
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
                    let problem =
                        "is missing: the name that `leasehold cluster add NAME --uid UID` registered";
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
                "cluster: is missing: the name that `leasehold cluster add NAME --uid UID` registered",
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
        host_faults("[]", &["the file: []: must be a JSON object"]);
        assert!(HostConfig::parse("{").unwrap_err()[0].to_string().contains("is not JSON: EOF"));
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
}
