//! Use cases of the plugin: read, decide, commit, again on conflict, inside a deadline. Generic over the store, the
//! wire and the clock, so that the simulation runs the very code that ships.
//!
//! | case | round trips |
//! |---|---|
//! | first ADD | one read, one commit |
//! | take-over | one read, one commit |
//! | unchanged container of a pod | one read |
//! | DEL | one read, one commit |
//!
//! An ADD reads once more for pools that its node has not used lately; see [`Memory`].

mod add;
mod check;
pub mod commit;
mod del;
mod find;
mod memory;
pub mod replay;
mod view;

use std::{fmt, net::IpAddr, time::Duration};

use thiserror::Error;
use tokio::time::Instant;

pub use add::{Add, Added, Answer, AssignedAddress, Inline, add, undo};
pub use check::check;
pub use del::{Del, End, collect, del, end_by_container};

use crate::{
    domain::{
        addr::Family,
        lease::{Holder, LeaseId, Timestamp},
        names::{BootId, ClusterName, ContainerId, NodeName, PoolName},
        select::{Caller, Unusable},
    },
    journal::Memory,
    store::{StoreError, record::RecordError},
};

/// Where the plugin runs.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The registered cluster.
    pub cluster: ClusterName,
    /// The node.
    pub node: NodeName,
    /// Labels of the host file.
    pub labels: Vec<(String, String)>,
    /// The kernel's boot ID, where it can be read.
    pub boot: Option<BootId>,
    /// Kinds whose pods come back under their name, such as `StatefulSet.apps`.
    pub sticky_kinds: Vec<String>,
    /// The time an ADD may take: what another node may still be doing.
    pub add_deadline: Duration,
}

/// The clocks.
pub trait Clock: Sync {
    /// The wall clock.
    fn now(&self) -> Timestamp;
    /// The boot-time clock, microseconds; it goes on while the node sleeps.
    fn boot_clock(&self) -> u64;
    /// A number by chance.
    fn chance(&self) -> u64;
}

/// What a look at the wire said.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Heard {
    /// Nobody claims any of the addresses.
    Silence,
    /// These are claimed: address and hardware address.
    Claims(Vec<(IpAddr, String)>),
    /// There is nowhere to listen from (ptp): why.
    Nowhere(String),
    /// The look failed: why. Nothing is known.
    Failed(String),
}

/// The wire.
pub trait Wire: Sync {
    /// Asks whether somebody answers on these addresses.
    fn probe(&self, addresses: &[IpAddr]) -> impl Future<Output = Heard> + Send;
}

/// A change of a lease: who, what, why.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Change {
    /// `lease.bound`, `lease.held`, `lease.released`, `lease.declined`, …
    pub what: &'static str,
    /// The lease.
    pub lease: Option<LeaseId>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Pool, if one.
    pub pool: Option<PoolName>,
    /// The container.
    pub container: Option<ContainerId>,
    /// Why.
    pub why: String,
}

/// Where changes and notes go.
pub trait Log: Sync {
    /// A lease changed.
    fn change(&self, change: &Change);
    /// Something worth a line.
    fn note(&self, text: &str);
}

/// What every use case stands on.
pub struct Context<'a, S, W, C, L> {
    /// Where leases live.
    pub store: &'a S,
    /// The wire.
    pub wire: &'a W,
    /// The clocks.
    pub clock: &'a C,
    /// The audit trail.
    pub log: &'a L,
    /// Where this runs.
    pub node: &'a Identity,
    /// When it must be over.
    pub deadline: Instant,
    /// The node's memory of the store; see [`Memory`].
    pub memory: Memory,
}

/// How full a pool was.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Usage {
    /// The pool, or `inline ranges`.
    pub pool: String,
    /// The family that has nothing left.
    pub family: Option<Family>,
    /// Addresses with a holder.
    pub used: u128,
    /// Addresses that may be leased.
    pub total: u128,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} addresses of {} are taken", self.used, self.total, self.pool)
    }
}

/// Why a use case did not do what was asked. The words for callers are made at the edge.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Refusal {
    /// The store did not answer as asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record that matters cannot be used.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Nothing of ours is in the store.
    #[error("the store holds no leasehold data")]
    Empty,
    /// The cluster is not registered.
    #[error("cluster {0} is not registered")]
    Unregistered(ClusterName),
    /// No pool may be used.
    #[error("no pool serves {} on network {}", caller.holder, caller.network)]
    NoPool {
        /// Who asked.
        caller: Box<Caller>,
        /// All names that were looked for.
        looked_for: Vec<String>,
        /// Pools that serve it and fail another condition.
        near: Vec<(PoolName, Unusable)>,
    },
    /// The pool that was asked for may not be used.
    #[error("pool {pool} (asked for by {by}): {reason}")]
    PoolRefused {
        /// The pool.
        pool: PoolName,
        /// Who asked for it.
        by: String,
        /// The condition.
        reason: Unusable,
    },
    /// Inline ranges are not allowed here.
    #[error("inline ranges are not allowed")]
    InlineRefused,
    /// Nothing new is leased.
    #[error("the store is frozen: {why}")]
    Frozen {
        /// Why.
        why: String,
        /// Who did it.
        by: String,
    },
    /// Every address is taken: counted at one revision.
    #[error("{}", .pools.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Full {
        /// Each pool that was tried.
        pools: Vec<Usage>,
        /// Who looks dead, of the leases in hand.
        suspects: Vec<String>,
    },
    /// What is free is cooling down.
    #[error("{count} addresses of {pool} are cooling down, the first is ready in {ready_in_ms} ms")]
    Cooling {
        /// The pool.
        pool: String,
        /// How many were seen.
        count: usize,
        /// When the first is ready, milliseconds.
        ready_in_ms: i64,
    },
    /// Nothing that could be answered was bound until the deadline.
    #[error("could not commit before the deadline: {conflicts} conflicts")]
    Contention {
        /// How often others were faster, or what was taken for free had been used before.
        conflicts: u32,
        /// It was bound, and the store said so too late.
        late: bool,
    },
    /// A newer sandbox of the pod has the lease.
    #[error("the lease is bound to container {container} on node {node}: {why}")]
    NewerSandbox {
        /// Its container.
        container: ContainerId,
        /// Its node.
        node: NodeName,
        /// What makes it newer.
        why: String,
        /// What the node should remember of the store: with it a later ADD can tell that it is not new any more.
        memory: Box<Memory>,
    },
    /// Another sandbox may just have bound the pod's lease, and there is no time left to let it be heard.
    #[error("the lease, or its address, was another sandbox's, perhaps a moment ago")]
    Arriving {
        /// Its container and node, where they are known.
        last: Option<(ContainerId, NodeName)>,
        /// What the node should remember of the store: with it the next ADD need not wait.
        memory: Box<Memory>,
    },
    /// The sandbox's interface has a lease under another name.
    #[error("container {container} has its lease as {holder}")]
    OtherHolder {
        /// The container.
        container: ContainerId,
        /// Whose lease it is.
        holder: Holder,
    },
    /// Somebody answers on the pod's own address.
    #[error("{address} still answers at {mac}{}", .node.as_ref().map(|n| format!(" (last on node {n})")).unwrap_or_default())]
    StillAnswers {
        /// The address.
        address: IpAddr,
        /// Who answers.
        mac: String,
        /// Where it was last.
        node: Option<NodeName>,
        /// What the node should remember of the store: with it the next ADD need not wait.
        memory: Box<Memory>,
    },
    /// The wire could not be asked, and silence may not be assumed.
    #[error("cannot ask the wire whether {address} is in use: {reason}")]
    CannotProbe {
        /// The address.
        address: IpAddr,
        /// Why.
        reason: String,
    },
    /// A sticky pod on a node that its pool does not serve.
    #[error("pool {pool} holds {address} for this pod, but is {reason}")]
    WrongNode {
        /// The pool.
        pool: PoolName,
        /// The address that is kept.
        address: IpAddr,
        /// The condition.
        reason: Unusable,
    },
    /// A person reserved something that does not fit.
    #[error("{address} is reserved for this pod, but {reason}")]
    ReservedUnfit {
        /// The address.
        address: IpAddr,
        /// What does not fit.
        reason: String,
    },
    /// The container has an address of which its pool does not know prefix length and gateway any more.
    #[error("{address} is in no subnet of {pool} any more")]
    PoolMoved {
        /// The address.
        address: IpAddr,
        /// The pool.
        pool: String,
    },
    /// The requested address is in no pool that may be used.
    #[error("requested address {address} ({by}) is in no pool that may be used: {}", .pools.join(", "))]
    RequestedOutside {
        /// The address.
        address: IpAddr,
        /// Who asked for it.
        by: String,
        /// The pools, each with why it does not give it out.
        pools: Vec<String>,
    },
    /// The requested address is not free.
    #[error("requested address {address} ({by}) is not free: {reason}")]
    RequestedTaken {
        /// The address.
        address: IpAddr,
        /// Who asked for it.
        by: String,
        /// Who has it.
        reason: String,
    },
    /// CHECK: the attachment has no lease, or another.
    #[error("{0}")]
    Check(String),
}

impl Refusal {
    /// What the node should remember of the store, where the next ADD can use it.
    #[must_use]
    pub fn memory(&self) -> Option<&Memory> {
        match self {
            Self::NewerSandbox { memory, .. }
            | Self::Arriving { memory, .. }
            | Self::StillAnswers { memory, .. } => Some(memory),
            Self::Store(_)
            | Self::Record(_)
            | Self::Empty
            | Self::Unregistered(_)
            | Self::NoPool { .. }
            | Self::PoolRefused { .. }
            | Self::InlineRefused
            | Self::Frozen { .. }
            | Self::Full { .. }
            | Self::Cooling { .. }
            | Self::Contention { .. }
            | Self::OtherHolder { .. }
            | Self::CannotProbe { .. }
            | Self::WrongNode { .. }
            | Self::ReservedUnfit { .. }
            | Self::PoolMoved { .. }
            | Self::RequestedOutside { .. }
            | Self::RequestedTaken { .. }
            | Self::Check(_) => None,
        }
    }
}

/// A name for what a caller of this identity is called in texts.
#[must_use]
pub fn lease_id(caller: &Caller, ifname: &crate::domain::names::IfName) -> LeaseId {
    LeaseId {
        cluster: caller.cluster.clone(),
        holder: caller.holder.clone(),
        network: caller.network.clone(),
        ifname: ifname.clone(),
    }
}
