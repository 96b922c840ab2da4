//! Where the real parts are, and what a test does without one.

use std::{
    env, fs,
    fs::OpenOptions,
    io::{Write, stderr},
    panic::Location,
    path::{Path, PathBuf},
    thread,
};

/// Two etcds: the oldest that is supported (Debian's) and a current one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Version {
    V34,
    V36,
}

impl Version {
    pub(crate) const BOTH: [Self; 2] = [Self::V34, Self::V36];

    pub(crate) fn program(self, name: &str) -> PathBuf {
        match self {
            Self::V34 => Path::new("/usr/bin").join(name),
            Self::V36 => built("etcd-3.6").join(name),
        }
    }

    /// The program that has `snapshot restore`.
    pub(crate) fn restorer(self) -> PathBuf {
        match self {
            Self::V34 => self.program("etcdctl"),
            Self::V36 => built("etcdutl-3.6").join("etcdutl"),
        }
    }
}

/// Two generations of the CNI plugins: 1.1.1 (Debian's, CNI up to 1.0.0) and 1.10 (CNI 1.1.0).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Plugins {
    Debian,
    Current,
}

impl Plugins {
    pub(crate) const BOTH: [Self; 2] = [Self::Debian, Self::Current];

    pub(crate) fn folder(self) -> PathBuf {
        match self {
            Self::Debian => "/usr/lib/cni".into(),
            Self::Current => built("cni-1.10"),
        }
    }
}

/// kubectl, kubelet, or one of the control plane.
pub(crate) fn kubernetes(program: &str) -> PathBuf {
    built("kubernetes-1.34").join(program)
}

/// What a test cannot do without.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Etcd(Version),
    /// What restores a snapshot of this etcd.
    Restore(Version),
    Plugins(Plugins),
    /// The Kubernetes API, and the etcd below it.
    Apiserver,
    /// What a cluster consists of beside that: control plane and kubelet, containerd and runc.
    Cluster,
    /// Root, with the capabilities to make network namespaces and interfaces.
    Root,
    Program(&'static str),
}

impl Part {
    /// Why it is not here; nothing if it is.
    fn absence(self) -> Option<String> {
        match self {
            Self::Etcd(version) => absent(&version.program("etcd")),
            Self::Restore(version) => absent(&version.restorer()),
            Self::Plugins(plugins) => absent(&plugins.folder().join("macvlan")),
            Self::Apiserver => absent(&kubernetes("kube-apiserver"))
                .or_else(|| absent(&kubernetes("kubectl")))
                .or_else(|| absent(&Version::V36.program("etcd"))),
            Self::Cluster => ["kube-controller-manager", "kube-scheduler", "kubelet"]
                .map(kubernetes)
                .into_iter()
                .chain(["/usr/bin/containerd".into(), "/usr/sbin/runc".into()])
                .find_map(|path| absent(&path)),
            Self::Root => {
                (!may_administer_network()).then(|| "not root with CAP_NET_ADMIN and CAP_SYS_ADMIN".into())
            }
            Self::Program(name) => {
                let path = env::var_os("PATH").unwrap_or_default();
                let found = env::split_paths(&path)
                    .chain(["/usr/sbin".into(), "/sbin".into()])
                    .any(|folder| folder.join(name).is_file());
                (!found).then(|| format!("no {name} in PATH"))
            }
        }
    }
}

/// Returns from the test, with a `SKIPPED` line that `scripts/test` counts, unless all the parts are here.
macro_rules! require {
    ($($part:expr),+ $(,)?) => {
        if $crate::support::parts::lacks(&[$($part),+]) {
            return;
        }
    };
}
pub(crate) use require;

/// True, and said, if a part is missing.
///
/// # Panics
///
/// With CI set: there a missing part is a mistake, not a circumstance.
#[track_caller]
pub(crate) fn lacks(parts: &[Part]) -> bool {
    let Some(reason) = parts.iter().find_map(|part| part.absence()) else {
        return false;
    };
    assert!(env::var_os("CI").is_none(), "CI is set, and a part is missing: {reason}");
    let here = Location::caller();
    let test =
        thread::current().name().filter(|name| *name != "main").map_or_else(|| here.to_string(), Into::into);
    let line = format!("SKIPPED {test}: {reason}\n");
    // Not eprintln: the test harness shows that only of tests that fail.
    stderr().write_all(line.as_bytes()).unwrap();
    if let Some(path) = env::var_os("LEASEHOLD_SKIPPED") {
        OpenOptions::new().append(true).create(true).open(path).unwrap().write_all(line.as_bytes()).unwrap();
    }
    true
}

/// The program under test: the one that Cargo built for this run, unless `LEASEHOLD_BIN` names another
/// (`scripts/test` names the release build, which is what is shipped).
pub(crate) fn leasehold() -> PathBuf {
    env::var_os("LEASEHOLD_BIN").map_or_else(|| env!("CARGO_BIN_EXE_leasehold").into(), PathBuf::from)
}

/// What `scripts/parts` built, and where it puts it.
pub(crate) fn built(part: &str) -> PathBuf {
    let parts = env::var_os("LEASEHOLD_PARTS").map(PathBuf::from).unwrap_or_else(|| {
        let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cache");
        cache.unwrap_or_else(home).join("leasehold/parts")
    });
    parts.join(part)
}

fn absent(path: &Path) -> Option<String> {
    (!path.is_file()).then(|| format!("{} is missing (scripts/parts puts it there)", path.display()))
}

fn may_administer_network() -> bool {
    const NET_ADMIN: u32 = 12;
    const SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    [NET_ADMIN, SYS_ADMIN].iter().all(|capability| effective >> capability & 1 == 1)
}

#[test]
fn a_missing_program_is_named() {
    assert_eq!(Part::Program("sh").absence(), None);
    assert_eq!(Part::Program("no-such-program").absence(), Some("no no-such-program in PATH".into()));
}
