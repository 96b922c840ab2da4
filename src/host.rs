//! The host: its file, its name, its clocks, and the store that the file names. The only place that reads settings
//! from the disk.

use std::{
    ffi::OsString,
    fs::{self, OpenOptions},
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use thiserror::Error;

use crate::{
    config::{self, HostConfig, Password, Readable, StoreSettings},
    domain::{
        lease::Timestamp,
        names::{BootId, ClusterName, NameError, NodeName, StoreId, Uid},
        pool::Fault,
    },
    ops::{Clock, Identity},
    store::{
        Key, StoreError,
        any::AnyStore,
        etcd::{self, EtcdStore, Secret},
        keys,
        local::LocalStore,
        record,
    },
};

/// The cluster of a host without Kubernetes.
pub const LOCAL_CLUSTER: &str = "local";

/// The host file, read and judged.
#[derive(Debug)]
pub struct Host {
    /// Where it was found.
    pub path: PathBuf,
    /// What it says.
    pub config: HostConfig,
    /// The node's name.
    pub node: NodeName,
    /// It is the host's name, since the file has none.
    pub node_is_hostname: bool,
}

/// Why there is no host file to go by.
#[derive(Debug, Error)]
pub enum HostError {
    /// There is none.
    #[error("there is no host file: looked for {}", .looked.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", "))]
    Missing {
        /// Where it was looked for.
        looked: Vec<PathBuf>,
    },
    /// It, or a file that it names, cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// It says something wrong.
    #[error("{}: {}", path.display(), .faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Everything that is wrong.
        faults: Vec<Fault>,
    },
    /// Others can read a secret.
    #[error(transparent)]
    Readable(#[from] Readable),
    /// The host's own name is no node name.
    #[error("the host file names no node, and the host's name is none: {0}")]
    Hostname(#[from] NameError),
}

/// Finds and reads the host file. `named` is the value of `LEASEHOLD_CONFIG`.
///
/// # Errors
/// [`HostError`].
pub fn read(named: Option<OsString>) -> Result<Host, HostError> {
    let looked = config::host_file_candidates(named);
    for path in &looked {
        match fs::read_to_string(path) {
            Ok(text) => return judge(path, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(HostError::Read { path: path.clone(), cause: error.to_string() }),
        }
    }
    Err(HostError::Missing { looked })
}

fn judge(path: &Path, text: &str) -> Result<Host, HostError> {
    let config =
        HostConfig::parse(text).map_err(|faults| HostError::Invalid { path: path.to_owned(), faults })?;
    config::check_mode(path, mode(path)?, config.holds_secret())?;
    for file in config.secret_files() {
        // One that is missing is named by whoever needs it, with the reason.
        if let Ok(bits) = mode(file) {
            config::check_mode(file, bits, true)?;
        }
    }
    let (node, node_is_hostname) = match &config.node {
        Some(node) => (node.clone(), false),
        None => (NodeName::new(hostname())?, true),
    };
    Ok(Host { path: path.to_owned(), config, node, node_is_hostname })
}

fn mode(path: &Path) -> Result<u32, HostError> {
    let meta = fs::metadata(path)
        .map_err(|error| HostError::Read { path: path.to_owned(), cause: error.to_string() })?;
    Ok(meta.mode())
}

/// A resolv.conf has some lines; what is larger is something else.
const LARGEST_RESOLV_CONF: u64 = 64 << 10;

/// Reads a resolv.conf that an `ipam` block names. Tenants write such blocks: neither a device nor a pipe may hold the
/// ADD up, nor fill the node's memory.
///
/// # Errors
/// What the system says, or what else it is.
pub fn read_resolv_conf(path: &Path) -> io::Result<String> {
    let other = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    if !fs::metadata(path)?.is_file() {
        return Err(other("it is no regular file"));
    }
    let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    let mut text = String::new();
    file.take(LARGEST_RESOLV_CONF + 1).read_to_string(&mut text)?;
    if u64::try_from(text.len()).is_ok_and(|length| length > LARGEST_RESOLV_CONF) {
        return Err(other("it is larger than 64 KiB: no resolv.conf"));
    }
    Ok(text)
}

/// The kernel's name of this host; the Node object is lower case.
#[must_use]
pub fn hostname() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_ascii_lowercase()
}

impl Host {
    /// Where the plugin runs.
    #[must_use]
    pub fn identity(&self) -> Identity {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        Identity {
            cluster: self.config.cluster.clone(),
            node: self.node.clone(),
            labels: self.config.labels.clone(),
            boot: boot.and_then(|text| BootId::new(text.trim()).ok()),
            sticky_kinds: self.config.sticky_kinds.clone(),
            add_deadline: self.config.add_deadline,
        }
    }

    /// Opens the store; nothing is connected yet.
    ///
    /// # Errors
    /// A password file that cannot be read, and the store's.
    pub async fn open_store(&self, wait: Duration) -> Result<AnyStore, StoreError> {
        open_store(&self.config.store, wait).await
    }
}

/// Opens the store of these settings.
///
/// # Errors
/// A password file that cannot be read, and the store's.
pub async fn open_store(settings: &StoreSettings, wait: Duration) -> Result<AnyStore, StoreError> {
    match settings {
        StoreSettings::Etcd(settings) => {
            Ok(AnyStore::Etcd(Box::new(EtcdStore::open(etcd_settings(settings)?)?)))
        }
        StoreSettings::Local(folder) => {
            LocalStore::open(folder, wait, initial).await.map(|(store, _)| AnyStore::Local(store))
        }
    }
}

/// The settings as the store takes them, with the password read from its file.
///
/// # Errors
/// [`StoreError::Credentials`] names the file.
pub fn etcd_settings(settings: &config::EtcdSettings) -> Result<etcd::EtcdSettings, StoreError> {
    let tls = settings.tls.as_ref();
    let login = match &settings.auth {
        None => None,
        Some(auth) => Some(etcd::Login {
            username: auth.username.clone(),
            password: match &auth.password {
                Password::Inline(secret) => secret.clone(),
                Password::File(path) => fs::read_to_string(path)
                    .map(|text| Secret::new(text.lines().next().unwrap_or_default().to_owned()))
                    .map_err(|error| StoreError::Credentials {
                        path: path.display().to_string(),
                        reason: error.to_string(),
                    })?,
            },
        }),
    };
    Ok(etcd::EtcdSettings {
        endpoints: settings.endpoints.clone(),
        prefix: settings.prefix.clone(),
        tls: etcd::TlsFiles {
            cacert: tls.map(|tls| tls.cacert.clone()),
            cert: tls.and_then(|tls| tls.identity.as_ref()).map(|(cert, _)| cert.clone()),
            key: tls.and_then(|tls| tls.identity.as_ref()).map(|(_, key)| key.clone()),
        },
        login,
    })
}

/// What a new local store holds: who it is, and its one cluster.
fn initial() -> Vec<(Key, Vec<u8>)> {
    let mut out = Vec::with_capacity(2);
    if let Ok(store) = StoreId::new(random_id()) {
        out.push((keys::meta(), record::encode_meta(&record::Meta { store })));
    }
    if let (Ok(name), Ok(uid)) = (ClusterName::new(LOCAL_CLUSTER), Uid::new(random_id())) {
        out.push((
            keys::cluster(&name),
            record::encode_cluster(&record::Cluster { uid, last_reap: None }, None),
        ));
    }
    out
}

/// 128 bits by chance, from the kernel.
#[must_use]
pub fn random_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/uuid")
        .map(|text| text.trim().to_owned())
        .unwrap_or_else(|_| format!("{:016x}{:016x}", chance(), chance()))
}

fn chance() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The host's clocks: the one place that reads them.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostClock;

impl Clock for HostClock {
    #[expect(clippy::disallowed_methods, reason = "the one wall clock")]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn boot_clock(&self) -> u64 {
        let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map(Duration::from);
        time.map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    }

    fn chance(&self) -> u64 {
        chance()
    }
}
