//! The whole story on a real cluster: what a user runs, on one machine.
//!
//! Two nodes ([`machine`]) of kubelet, containerd, runc and macvlan, each in namespaces of its own, have two cables: one to
//! the pods' LAN, where a stranger asks who answers, and one to the control plane and to the etcd that Leasehold has for
//! itself, with certificates and the users of `etcd-roles`. Leasehold comes as its README says: its image, the DaemonSet that
//! installs it, the Deployment of the reaper, all of `config-examples/kubernetes` with nothing changed but the settings,
//! the Secret's text and the image's name; the network is `macvlan.conflist`.
//!
//! All tests share one cluster ([`calm`], [`alone`]), which is brought up for the first and taken down after the last. Each
//! has a namespace and a pool of its own ([`scene`]). An address is held to be a pod's if its network namespace says so and
//! the stranger hears that very interface answer. After each test, `leasehold check --against-pods` finds nothing.
#![expect(clippy::disallowed_methods, reason = "a cluster runs by the real clock")]

mod deaths;
mod demo;
mod events;
mod forced;
mod image;
mod jobs;
mod machine;
mod outages;
mod restarts;
mod rollouts;
mod scene;
mod shapes;
mod site;
mod upgrade;

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process::{self, Child},
    sync::{
        LazyLock, PoisonError, RwLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use scene::Scene;
use site::{CONTROL, Site};

use crate::support::{
    leftovers,
    parts::{Part, Plugins, Version},
};

/// What every test here cannot do without.
const PARTS: [Part; 9] = [
    Part::Root,
    Part::Cluster,
    Part::Apiserver,
    Part::Etcd(Version::V36),
    Part::Plugins(Plugins::Debian),
    Part::Plugins(Plugins::Current),
    Part::Program("arping"),
    Part::Program("gcc"),
    Part::Program("strip"),
];

/// The cluster, while there is somebody who wants it.
static CLUSTER: RwLock<Option<Site>> = RwLock::new(None);
static WANTED: AtomicU32 = AtomicU32::new(0);
/// The run may end before the cluster is taken down, by Ctrl-C or since its last test has passed.
static FOLLOWER: LazyLock<Child> = LazyLock::new(|| leftovers::follow(process::id()));

/// A test that leaves nodes, control plane and store as they are. Others of its kind run beside it.
fn calm(name: &str, act: impl FnOnce(&Scene<'_>) + Send) {
    let want = Want::begin();
    loop {
        let cluster = CLUSTER.read().unwrap_or_else(PoisonError::into_inner);
        let Some(site) = cluster.as_ref() else {
            drop(cluster);
            let mut cluster = CLUSTER.write().unwrap_or_else(PoisonError::into_inner);
            cluster.get_or_insert_with(Site::bring_up);
            continue;
        };
        let outcome = attempt(|| site.play(name, act));
        drop(cluster);
        drop(want);
        return outcome.unwrap_or_else(|panic| resume_unwind(panic));
    }
}

/// A test that has the cluster to itself. What it takes away it brings back; if it fails, the next has a new cluster.
fn alone(name: &str, act: impl FnOnce(&Scene<'_>) + Send) {
    let want = Want::begin();
    let mut cluster = CLUSTER.write().unwrap_or_else(PoisonError::into_inner);
    let site = cluster.get_or_insert_with(Site::bring_up);
    let outcome = attempt(|| site.play(name, act));
    if outcome.is_err() {
        *cluster = None;
    }
    drop(cluster);
    drop(want);
    outcome.unwrap_or_else(|panic| resume_unwind(panic));
}

fn attempt(act: impl FnOnce()) -> Result<(), Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(act))
}

/// The cluster stays while anybody has one of these, and a moment longer, for the next.
struct Want;

impl Want {
    fn begin() -> Self {
        LazyLock::force(&FOLLOWER);
        WANTED.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Want {
    fn drop(&mut self) {
        const MOMENT: Duration = Duration::from_secs(3);
        if WANTED.fetch_sub(1, Ordering::SeqCst) == 1 {
            thread::spawn(|| {
                thread::sleep(MOMENT);
                let mut cluster = CLUSTER.write().unwrap_or_else(PoisonError::into_inner);
                if WANTED.load(Ordering::SeqCst) == 0 {
                    *cluster = None;
                }
            });
        }
    }
}
