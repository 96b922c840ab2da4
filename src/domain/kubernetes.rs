//! What the Kubernetes API says of pods, nodes and controllers, as far as a verdict on a lease needs it.
//!
//! Times are the API server's: [`Listed::at`] and [`Live::at`] are its own clock at the answer, so that no clock of ours is
//! compared with one of its. Doubt is a variant: what was not answered is [`Answer::Unknown`], never an absence.

use std::{fmt, net::IpAddr};

use super::{
    lease::Timestamp,
    names::{Namespace, NodeName, PodName, Uid},
};

/// What stands before the annotations by which a pod asks.
pub const WISH: &str = "leasehold.io/";
/// It asks for pools.
pub const POOL_WISH: &str = "leasehold.io/pool";
/// It asks for addresses.
pub const IP_WISH: &str = "leasehold.io/ip";
/// It says whether its lease is sticky.
pub const STICKY_WISH: &str = "leasehold.io/sticky";

/// A pod's name in its namespace.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PodKey {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name.
    pub name: PodName,
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.namespace, self.name))
    }
}

/// `status.phase`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Phase {
    /// Not all containers have run yet; also what has no phase.
    Pending,
    /// At least one runs, or will run again.
    Running,
    /// All ended well, and none will run again.
    Succeeded,
    /// All ended, one not well, and none will run again.
    Failed,
    /// Its node could not be asked, or a phase that this version does not know.
    Unknown,
}

impl Phase {
    /// No container of it will run again.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// Kind and name of what made a pod.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct ControllerRef {
    /// `StatefulSet.apps`: the kind, a dot, the group; of the core group the kind alone (`Node`).
    pub kind: String,
    /// The version that the pod names, such as `v1`.
    pub version: String,
    /// Its name, in the pod's namespace.
    pub name: String,
}

impl fmt::Display for ControllerRef {
    /// As a lease remembers it: `StatefulSet.apps/db`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.kind, self.name))
    }
}

/// A pod, as far as a verdict needs it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pod {
    /// Namespace and name.
    pub key: PodKey,
    /// `metadata.uid`. Of a mirror pod it is not the UID that its runtime knows: see [`Pod::mirror`].
    pub uid: Uid,
    /// `spec.nodeName`, once it is scheduled.
    pub node: Option<NodeName>,
    /// `status.phase`.
    pub phase: Phase,
    /// `metadata.deletionTimestamp`: when it is to be gone; the grace is in it.
    pub deleting: Option<Timestamp>,
    /// Whether its containers have ended.
    pub finished: Finished,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// `kubernetes.io/config.mirror`: it is the picture of a static pod, whose UID this is.
    pub mirror: Option<String>,
    /// Its controller, if it has one (`ownerReferences` with `controller: true`).
    pub controller: Option<ControllerRef>,
    /// `spec.hostNetwork`: no runtime asks for an address for it.
    pub host_network: bool,
    /// Its annotations `leasehold.io/…`, name and value.
    pub wishes: Vec<(String, String)>,
    /// `status.podIPs`, and the addresses in the annotation `k8s.v1.cni.cncf.io/network-status`. Nothing is freed by
    /// them: a pod may have others.
    pub addresses: Vec<PodAddress>,
}

/// What the status of a pod says of the end of its containers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Finished {
    /// All have ended, the last one then.
    At(Timestamp),
    /// One of them still runs.
    StillRuns,
    /// It does not say it of every one.
    Unsaid,
}

/// An address that a pod says it has.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PodAddress {
    /// The address.
    pub address: IpAddr,
    /// The CNI network and the interface, where the network status tells.
    pub attachment: Option<(String, String)>,
}

/// A node's condition `Ready`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ready {
    /// Its kubelet says that pods can run.
    True,
    /// Its kubelet says that they cannot: it lives all the same.
    False,
    /// Its kubelet has said nothing for the grace period of the node controller (50 s by default).
    Unknown {
        /// When it became so.
        since: Timestamp,
    },
    /// It has no such condition: its kubelet has not come up yet, or somebody made its object by hand.
    Unsaid,
}

/// A node, as far as a verdict needs it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// Its condition `Ready`.
    pub ready: Ready,
    /// A person, or a cloud, says that it is shut down (taint `node.kubernetes.io/out-of-service`).
    pub out_of_service: bool,
}

/// What a controller wants.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Wants {
    /// The pods with these ordinals: `replicas` of them from `start`, the reserved ones left out and not counted.
    Ordinals {
        /// `spec.ordinals.start`, or 0.
        start: u64,
        /// `spec.replicas`.
        replicas: u64,
        /// `spec.reserveOrdinals` of Kruise's, sorted.
        reserved: Vec<u64>,
    },
    /// Nobody can tell from it which pods; that it exists is enough.
    All,
}

/// A controller that exists.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Controller {
    /// `metadata.uid`.
    pub uid: Uid,
    /// Which pods it wants.
    pub wants: Wants,
}

/// What was answered about one thing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Answer<T> {
    /// It exists.
    Present(T),
    /// The server said, of this very thing, that it does not exist.
    Absent,
    /// Anything else: an error, a refusal, no answer, a question that nobody asked.
    Unknown(String),
}

impl<T> Answer<T> {
    /// The same of a reference.
    pub fn as_ref(&self) -> Answer<&T> {
        match self {
            Self::Present(value) => Answer::Present(value),
            Self::Absent => Answer::Absent,
            Self::Unknown(why) => Answer::Unknown(why.clone()),
        }
    }
}

/// A complete list: all pages of one revision, of all namespaces.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Listed<T> {
    /// All there are, or those that were to be kept.
    pub items: Vec<T>,
    /// How many there are.
    pub all: usize,
    /// The server's clock when the first page was answered.
    pub at: Timestamp,
}

/// One thing, asked for by name just now.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Live<T> {
    /// It, or that it does not exist.
    pub found: Option<T>,
    /// The server's clock at the answer.
    pub at: Timestamp,
}
