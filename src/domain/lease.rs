//! A lease: what a pod holds on one attachment.

use std::{fmt, net::IpAddr};

use super::names::{
    BootId, ClusterName, ContainerId, DomainName, IfName, Namespace, NetworkName, NodeName, PodName,
    PoolName, Uid,
};

/// So long after the end of a sandbox, by clocks that are off by up to ten minutes each, a person's change takes it for one
/// that may still be heard.
const STILL_HEARD_MS: i64 = 20 * 60_000;

/// A moment of a wall clock: milliseconds since 1970. Clocks of nodes differ: nothing safe rests on it alone.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Milliseconds from `earlier` to this; negative if this comes first.
    #[must_use]
    pub const fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// May what ended then still be heard? macvlan's DEL calls its IPAM before it removes the link, and clocks of hosts differ.
    #[must_use]
    pub const fn is_recent(self, now: Self) -> bool {
        now.since(self) < STILL_HEARD_MS
    }
}

/// Whose lease it is.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Holder {
    /// A pod: it keeps its lease through every container that runs it.
    Pod {
        /// Its namespace.
        namespace: Namespace,
        /// Its name.
        name: PodName,
    },
    /// A caller without Kubernetes args (cnitool, podman, nerdctl); such a lease is never sticky.
    Container(ContainerId),
}

impl Holder {
    /// Its namespace; a container without a pod has none.
    #[must_use]
    pub const fn namespace(&self) -> Option<&Namespace> {
        match self {
            Self::Pod { namespace, .. } => Some(namespace),
            Self::Container(_) => None,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match self {
            Self::Pod { namespace, name } => format!("{namespace}/{name}"),
            Self::Container(id) => format!("_/{id}"),
        })
    }
}

/// What a lease is keyed by: pod identity, network, interface.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LeaseId {
    /// The registered cluster.
    pub cluster: ClusterName,
    /// Pod or container.
    pub holder: Holder,
    /// The CNI network's name.
    pub network: NetworkName,
    /// The interface in the sandbox.
    pub ifname: IfName,
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} {} on {}", self.holder, self.ifname, self.network))
    }
}

/// The run that bound a lease.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stamp {
    /// `CNI_CONTAINERID`.
    pub container: ContainerId,
    /// The node it ran on.
    pub node: NodeName,
    /// The pod's UID, where the runtime sent it.
    pub uid: Option<Uid>,
    /// The node's boot.
    pub boot: Option<BootId>,
    /// The node's boot-time clock, microseconds, when the bind was sent.
    pub boot_clock: u64,
    /// The node's wall clock.
    pub at: Timestamp,
}

/// An address of a lease, where it is unique, and what it was leased from.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LeasedAddress {
    /// The address.
    pub address: IpAddr,
    /// The space in which it is unique.
    pub domain: DomainName,
    /// The pool; `None` for inline ranges.
    pub pool: Option<PoolName>,
}

/// In use by a sandbox, or not.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Binding {
    /// In use by the sandbox of this run.
    Bound(Stamp),
    /// Not in use; the run that had it last, if one had it.
    Idle(Option<Stamp>),
}

/// The state, in the words of the design.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum State {
    /// In use by a sandbox.
    Bound,
    /// Kept for its pod.
    Held,
    /// Assigned by a person, not in use.
    Reserved,
}

impl State {
    /// The word in tables and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bound => "bound",
            Self::Held => "held",
            Self::Reserved => "reserved",
        }
    }
}

/// A lease.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Lease {
    /// Its key.
    pub id: LeaseId,
    /// Its addresses: at most one a family, or one a range set of inline ranges.
    pub addresses: Vec<LeasedAddress>,
    /// In use, or not.
    pub binding: Binding,
    /// When it became so.
    pub since: Timestamp,
    /// When it was made.
    pub created: Timestamp,
    /// DEL makes it held, not released.
    pub sticky: bool,
    /// A person assigned it: DEL makes it reserved again, and nothing but a person ends it.
    pub reserved: bool,
    /// While idle: the last container was never DELed, somebody may still answer.
    pub unconfirmed: bool,
    /// What the reaper saw.
    pub seen: Option<Seen>,
}

/// What the reaper saw of a lease's pod; every ADD forgets it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Seen {
    /// Kind and name of the controller, such as `StatefulSet.apps/db`.
    pub controller: Option<String>,
    /// When a pass first missed the pod.
    pub missed: Option<Timestamp>,
    /// Since when passes keep it only because they do not know.
    pub doubt: Option<Timestamp>,
}

impl Lease {
    /// The state, in the words of the design.
    #[must_use]
    pub const fn state(&self) -> State {
        match (&self.binding, self.reserved) {
            (Binding::Bound(_), _) => State::Bound,
            (Binding::Idle(_), true) => State::Reserved,
            (Binding::Idle(_), false) => State::Held,
        }
    }

    /// The run that has it, if one has.
    #[must_use]
    pub const fn bound(&self) -> Option<&Stamp> {
        match &self.binding {
            Binding::Bound(stamp) => Some(stamp),
            Binding::Idle(_) => None,
        }
    }

    /// The run that has it or had it last.
    #[must_use]
    pub const fn last(&self) -> Option<&Stamp> {
        match &self.binding {
            Binding::Bound(stamp) => Some(stamp),
            Binding::Idle(last) => last.as_ref(),
        }
    }

    /// Was it made for a pod that was found running? No sandbox ever bound it, and no DEL will end it.
    #[must_use]
    pub const fn is_adopted(&self) -> bool {
        matches!(self.binding, Binding::Idle(None)) && !self.reserved
    }

    /// No sandbox is known to have it, and yet one may: it was adopted, reserved or not.
    #[must_use]
    pub const fn may_run(&self) -> bool {
        matches!(self.binding, Binding::Idle(None)) && (!self.reserved || self.unconfirmed)
    }

    /// What becomes of it when its pod is found running although no sandbox is known to have it: nobody knows that
    /// sandbox's container, no DEL of it will come, and it may answer. What a person assigned stays so. `None`: it says
    /// so already, or it is bound.
    #[must_use]
    pub fn found_running(&self, now: Timestamp) -> Option<Self> {
        let stays = matches!(self.binding, Binding::Idle(None));
        if self.bound().is_some() || stays && self.unconfirmed {
            return None;
        }
        let seen = self.seen.as_ref().and_then(|seen| seen.controller.clone());
        let seen = seen.map(|controller| Seen { controller: Some(controller), ..Seen::default() });
        let (binding, since) =
            if stays { (self.binding.clone(), self.since) } else { (Binding::Idle(None), now) };
        Some(Self { binding, since, unconfirmed: true, seen, ..self.clone() })
    }

    /// Does it end with its pod, as a bound one does, although no sandbox bound it? Nothing else would end it: what is
    /// held otherwise is held for a pod that comes back.
    #[must_use]
    pub const fn ends_with_its_pod(&self) -> bool {
        self.is_adopted() && !self.sticky
    }

    /// Is it bound to this container, as this node knows it? A container without a pod is one of its node: another
    /// node may have one of the same name (cnitool derives it from a path).
    #[must_use]
    pub fn is_bound_to(&self, container: &ContainerId, node: &NodeName) -> bool {
        let own = matches!(self.id.holder, Holder::Pod { .. });
        self.bound().is_some_and(|stamp| stamp.container == *container && (own || stamp.node == *node))
    }
}

/// What an address key says: who has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AddressHolder {
    /// A lease.
    Lease(LeaseId),
    /// A reservation without a pod: a device.
    Device {
        /// Why.
        reason: String,
        /// Since when.
        since: Timestamp,
    },
}

/// An address that was given back.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Released {
    /// When, by the clock of the node that gave it back.
    pub at: Timestamp,
    /// By whom.
    pub by: Holder,
    /// The cluster of that holder.
    pub cluster: ClusterName,
    /// The last container was never DELed: somebody may still answer.
    pub unconfirmed: bool,
    /// A stranger answered on it: its MAC, and when.
    pub declined: Option<Declined>,
}

/// A stranger who answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Declined {
    /// Its hardware address, as `02:11:22:33:44:55`.
    pub mac: String,
    /// When.
    pub at: Timestamp,
}
