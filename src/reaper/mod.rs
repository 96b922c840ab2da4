//! The reaper: gives back what dead pods left behind, and never an address that lives.
//!
//! A pass reads all leases of the cluster at one revision, *then* lists the pods (a pod that is born in between is in the
//! list, or answers when it is asked for), then the nodes and controllers that verdicts need. [`domain::reap`] decides;
//! its brakes stop what looks like a false answer. Each candidate's pod is asked for once more, live; only that proof
//! makes a transaction, and that compares the lease's own revision. What a pass must remember it writes into the lease,
//! where every ADD forgets it: there is no state here, no leader, and two reapers at once are harmless.
//!
//! [`watch`](self::watch()) is the same pass again and again, sooner where the API hints at a change.
//!
//! One failure does not end a pass, but a list that is not complete ends it before anything is given back.
//!
//! [`domain::reap`]: crate::domain::reap

pub mod adopt;
mod compact;
mod count;
mod events;
mod measured;
mod mend;
mod metrics;
mod pass;
mod read;
mod stop;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use thiserror::Error;
use tokio::time::Instant;

pub use self::{
    compact::compact,
    count::count,
    events::{Teller, events},
    measured::Measured,
    mend::Mended,
    metrics::{Metrics, Operation, Passed},
    pass::pass,
    stop::Stop,
    watch::{Talk, Watching, watch},
};
use crate::{
    admin::check::Repair,
    domain::{
        audit::Note,
        kubernetes::PodKey,
        lease::{LeaseId, State, Timestamp},
        names::{ClusterName, NodeName, Uid},
        reap::{Brake, Policy, Row},
    },
    pods::ApiError,
    store::{Revision, StoreError, record::RecordError},
};

/// What a pass stands on.
pub struct Context<'a, S, K, C, L> {
    /// Where leases live.
    pub store: &'a S,
    /// The Kubernetes API.
    pub api: &'a K,
    /// The clocks of this host.
    pub clock: &'a C,
    /// The audit trail.
    pub log: &'a L,
    /// The cluster, as it is registered.
    pub cluster: &'a ClusterName,
    /// Times and limits.
    pub policy: &'a Policy,
    /// Ends a pass early.
    pub stop: &'a Stop,
}

/// How a pass is made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Options {
    /// Nothing is written, and no candidate is asked for live.
    pub dry_run: bool,
    /// The report names every lease, also those that are kept because their pods live.
    pub all: bool,
    /// Half pairs are looked for and mended.
    pub mend: bool,
    /// A pass between full ones: no released key is forgotten, and its time is not written down.
    pub quick: bool,
}

/// How far a pass has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// So many leases are read.
    Leases(usize),
    /// So many pods are listed.
    Pods(usize),
    /// So many of so many candidates are done with.
    Candidates(usize, usize),
    /// The store is looked through for half pairs.
    Mending,
}

/// Why there was no pass.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum PassError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The Kubernetes API.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// It was [stopped](Stop) while it read.
    #[error("stopped before anything was given back")]
    Stopped,
    /// The cluster.
    #[error(transparent)]
    Unregistered(#[from] Unregistered),
    /// The cluster's record cannot be used: nobody knows whose API it should be.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// The cluster's name is not in the store.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("cluster {cluster} is not registered (registered: {})", self.listed())]
pub struct Unregistered {
    /// The name.
    pub cluster: ClusterName,
    /// Those that are.
    pub known: BTreeSet<ClusterName>,
}

impl Unregistered {
    fn listed(&self) -> String {
        let names: Vec<&str> = self.known.iter().map(ClusterName::as_str).collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    }
}

/// What became of a lease.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fate {
    /// It is kept: a label that does not change.
    Kept(&'static str),
    /// It is kept, and what was seen is written into it.
    Noted(&'static str),
    /// It is given back: held from now on, or released.
    GivenBack,
    /// It would be given back, but for `--dry-run`.
    Candidate,
    /// It changed between the list and the end: the next pass looks again.
    Changed,
    /// The store did not take the end: why. The next pass tries again.
    Failed(String),
}

impl Fate {
    /// The word in tables and JSON.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Kept(_) | Self::Noted(_) => "kept",
            Self::GivenBack => "given back",
            Self::Candidate => "to give back",
            Self::Changed => "changed",
            Self::Failed(_) => "failed",
        }
    }
}

/// A lease, and what became of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Judged {
    /// The lease.
    pub id: LeaseId,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its state before.
    pub state: State,
    /// The node of its sandbox.
    pub node: Option<NodeName>,
    /// The row of the table of verdicts.
    pub row: Row,
    /// What became of it.
    pub fate: Fate,
    /// Why, for a person.
    pub why: String,
    /// A person should look at it.
    pub look: bool,
}

/// What a pass did.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The revision at which the leases were read.
    pub revision: Revision,
    /// The API server's clock.
    pub at: Timestamp,
    /// How far this host's clock is ahead of it, milliseconds.
    pub skew_ms: i64,
    /// How many leases the cluster has.
    pub leases: usize,
    /// How many of them are bound.
    pub bound: usize,
    /// How many pods the API listed.
    pub pods: usize,
    /// How many leases the verdicts would end, before brakes.
    pub candidates: usize,
    /// How many are kept, by reason.
    pub kept: BTreeMap<&'static str, usize>,
    /// Records of leases and pools that cannot be read: key and why. Of others, what mended tells.
    pub unreadable: Vec<(String, String)>,
    /// The leases worth a line, or all.
    pub judged: Vec<Judged>,
    /// What stopped the giving-back, or part of it.
    pub brakes: Vec<Brake>,
    /// Half pairs.
    pub mended: Mended,
    /// How many released keys were forgotten.
    pub forgotten: usize,
    /// What failed, and did not end the pass.
    pub troubles: Vec<String>,
    /// What was to be ended or noted waits for the next pass: its live question was not answered, or the store did not
    /// take it.
    pub undone: bool,
    /// Annotations of living pods that their leases do not follow; not all, if they are many.
    pub ignored: Vec<Ignored>,
    /// Somebody [stopped](Stop) it, and it left something undone.
    pub stopped: Option<Stopped>,
    /// When the next verdict is due that waits for nothing but time.
    pub due: Option<Instant>,
    /// How long it took.
    pub took: Duration,
}

/// How far a pass came that was stopped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stopped {
    /// So many candidates it was done with.
    pub done: usize,
    /// Of so many that no brake stopped.
    pub all: usize,
}

/// A pod whose annotation is not followed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ignored {
    /// The pod.
    pub pod: PodKey,
    /// Its UID.
    pub uid: Uid,
    /// What it asked for, what it has, and what to do.
    pub why: String,
}

impl Report {
    /// How many leases were given back.
    #[must_use]
    pub fn given_back(&self) -> usize {
        self.judged.iter().filter(|judged| judged.fate == Fate::GivenBack).count()
    }

    /// The leases that are kept and that a person should look at, with the reason. What stops the whole pass is told
    /// for itself.
    pub fn reported(&self) -> impl Iterator<Item = (&Judged, &'static str)> {
        let kept = |judged: &Judged| match judged.fate {
            Fate::Kept(label) | Fate::Noted(label) => Some(label),
            Fate::GivenBack | Fate::Candidate | Fate::Changed | Fate::Failed(_) => None,
        };
        let looked_at = self.judged.iter().filter(|judged| judged.look);
        looked_at.filter_map(move |judged| Some((judged, kept(judged)?)))
    }

    /// How many half pairs were mended.
    #[must_use]
    pub fn mended_count(&self) -> usize {
        self.mended.notes.iter().filter(|(_, repair)| *repair == Repair::Done).count()
    }

    /// The half pairs that only a person can mend.
    pub fn left_by_hand(&self) -> impl Iterator<Item = &Note> {
        self.mended.notes.iter().filter(|(_, repair)| *repair == Repair::ByHand).map(|(note, _)| note)
    }

    /// All records that cannot be read: key and why.
    pub fn unread(&self) -> impl Iterator<Item = &(String, String)> {
        self.unreadable.iter().chain(&self.mended.unreadable)
    }

    /// Did something stop the giving-back, or part of it?
    #[must_use]
    pub fn braked(&self) -> bool {
        !self.brakes.is_empty()
    }

    /// Is there something that a person should look at?
    #[must_use]
    pub fn needs_a_look(&self) -> bool {
        let left = self.left_by_hand().next().is_some();
        let unread = !self.troubles.is_empty() || self.unread().next().is_some();
        self.braked() || self.stopped.is_some() || self.mended.too_many || left || unread
    }
}

/// What is said of a record that cannot be read.
#[must_use]
pub fn cannot_be_read((key, why): &(String, String)) -> String {
    format!("{key} cannot be read, and is kept: {why}; `leasehold check` says what to do")
}
