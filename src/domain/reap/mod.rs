//! The core of the reaper: is a lease kept, noted, or given back? It asks nobody; time is an argument.
//!
//! [`verdict`] is a pure function of the lease, its pod, its node, its controller, the policy and the API server's
//! clock. Doubt keeps: what is not known for certain ([`Answer::Unknown`]) never gives. What is given back is asked for
//! once more, live: [`confirm`] applies the verdict to that answer, and only its [`Confirmed`] can be committed.
//!
//! "Node" is the node that the pod names; the lease's own when the pod is absent, or names none.
//!
//! | | lease | pod | node | verdict |
//! |---|---|---|---|---|
//! | 1 | bound | exists, not deleting, Pending/Running/Unknown, any UID | any | keep |
//! | 2 | bound | deleting, `deletionTimestamp` not reached | any | keep |
//! | 3 | bound | deleting, `deletionTimestamp` passed | Ready=True or False | keep: the kubelet lives; reported after 15 min |
//! | 4 | bound | as 3 | Ready=Unknown, shorter than lost-after | keep |
//! | 5 | bound | as 3 | Ready=Unknown for lost-after; or out of service and not Ready; or no such node | give back (`nodeLost: keep`: keep) |
//! | 6 | bound | Succeeded or Failed | Ready=True or False | give back finished-after after the last container ended; keep while the status says of one that it runs, reported after 15 min |
//! | 7 | bound | Succeeded or Failed | Unknown or no such node | as 4, 5: PodGC writes Failed, too |
//! | 8 | bound | absent | Ready=True or False | give back absent-after after it was first missed |
//! | 9 | bound | absent | Unknown | as 8, and not before lost-after |
//! | 10 | bound | absent | no such node | as 8 |
//! | 11 | bound | absent, perhaps static | exists | keep, reported; without the node: 10 |
//! | 12 | held | – | – | the table of [retention](self#retention) |
//! | 13 | reserved | – | – | keep |
//! | 13a | any, of a container without a pod | – | – | keep, reported: only DEL, GC or a person ends it |
//! | 14 | invalid, or newer than this binary | – | – | keep, reported ([`unreadable`]) |
//! | 15 | any | any error, part of a list, another cluster, a pool that cannot be read | – | keep |
//!
//! Where the table leaves a choice:
//!
//! - A pod that is deleting *and* Succeeded or Failed: its kubelet said that it ended, so 6; with a silent or missing
//!   node 2 while its grace runs, else 7.
//! - 6, when the pod does not say when its last container ended, or says a time that is still to come or before it was
//!   made (that time is the node's clock): counted from a note of the first pass that saw it ended. A note older than
//!   the pod is none.
//! - 6, of a container that runs although its pod has ended: counted from the first pass that saw it so; what is said of
//!   its end counts from then on, as if there had been nothing before.
//! - 9 and 10 give back in spite of `nodeLost: keep`: somebody has taken the pod's object away.
//! - 11: a lease does not know `config.source`. Static is a pod whose controller was seen to be its node; where no
//!   controller was seen, one whose name ends in `-<node>` (of a lease that knows no node, that of any there is). It is
//!   noted as missed, so that it is shown after a day.
//! - 4, 5 and 7 say `nodeLost: keep` from the first moment: nothing will be given back.
//! - A sticky lease's controller is noted first and given back by the next pass: held, nobody would know who wants it.
//! - A lease that was adopted (no sandbox bound it) and is not sticky goes by rows 1 to 8, since no DEL will end it. It
//!   knows no node: absent is row 8, whatever became of the node.
//! - What is kept because nobody knows (`nodeLost: keep`, no controller known, a kind that nobody reads, an answer that did
//!   not come, a pool that is gone) is noted as in doubt, until another verdict takes the note away: it is shown, and
//!   reported, after a day of that.
//! - A lease becomes sticky by a note, never the contrary: `args.cni.sticky` is known to ADD alone, and the next ADD,
//!   which knows that and the controller, decides it anew.
//!
//! # Retention
//!
//! | held, and | then |
//! |---|---|
//! | its pod exists, or its controller wants that ordinal | kept |
//! | scaled down below it | `whenScaled`: Retain or Delete |
//! | controller absent for owner-after, since a pass first missed it (by name; a new UID is the same owner) | `whenDeleted`: Delete or Retain |
//! | no controller known, or of a kind that nobody reads | kept; shown as doubtful after 24 h |
//! | `holdFor` is over, and none of the first line, and no doubt | Delete |
//!
//! Where no controller is known, a StatefulSet of the name without the ordinal is evidence for keeping, never against it.

mod bound;
mod brakes;
mod keep;
mod retention;

use std::time::Duration;

pub use self::{
    brakes::{Brake, Pass, brake, brakes},
    keep::{BRAKED, Keep, Line, Row, UNKNOWN_ANSWER, UNREADABLE},
};
use super::{
    kubernetes::{Answer, Controller, ControllerRef, Node, Pod, STICKY_WISH},
    lease::{Holder, Lease, Released, Seen, State, Timestamp},
    names::{ClusterName, Namespace, NodeName, PodName, PoolName},
    pool::{NodeLost, Pool, Retain, Retention, StickyRule},
    workload,
};

/// Unknown is 50 s of silence already, and somebody has decided that the pod goes: nothing long is added to that.
pub const DEFAULT_LOST_AFTER: Duration = Duration::from_secs(30);
/// Pod objects normally go after DEL; the containers of a force-deleted one need up to this to die.
pub const DEFAULT_ABSENT_AFTER: Duration = Duration::from_secs(120);
/// An ADD lives for 10 s by default, and its pod may be younger than the list: never below this, whatever is set.
pub const MIN_ABSENT_AFTER: Duration = Duration::from_secs(15);
/// The sandbox is torn down after the last container has ended, and DEL comes with that.
pub const DEFAULT_FINISHED_AFTER: Duration = Duration::from_secs(120);
/// Helm and Argo CD delete a controller and make it anew.
pub const DEFAULT_OWNER_AFTER: Duration = Duration::from_secs(600);
/// Up to so many orphans are a bad day, more are perhaps a bad list.
pub const MAX_ORPHANS: usize = 20;
/// Of the bound leases: a large cluster has larger bad days.
pub const MAX_ORPHANS_PERCENT: usize = 10;
/// A kubelet that lives ends a pod within seconds of its grace; one that needs longer needs a person.
pub const STUCK_AFTER: Duration = Duration::from_secs(15 * 60);
/// What doubt keeps is shown after a day.
pub const DOUBT_AFTER: Duration = Duration::from_secs(24 * 3600);
/// A released key has no use after a day: its cool-down is over, and its pod has not come back.
pub const FORGET_AFTER: Duration = Duration::from_secs(24 * 3600);
/// A reaper that has ended no pass for so long does not live: a CronJob makes one a minute, a controller one in a few.
pub const REAPER_SILENT_AFTER: Duration = Duration::from_secs(15 * 60);
/// Kinds whose pods come back under their names.
pub const STICKY_KINDS: [&str; 2] = ["StatefulSet.apps", "StatefulSet.apps.kruise.io"];

/// The times and limits of a reaper.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Policy {
    /// Since Ready became Unknown.
    pub lost_after: Duration,
    /// Since a pass first missed the pod; [`MIN_ABSENT_AFTER`] counts if this is less.
    pub absent_after: Duration,
    /// Since the last container ended.
    pub finished_after: Duration,
    /// Since a pass first missed the controller of a held lease.
    pub owner_after: Duration,
    /// More orphans than this brake a pass; `None`: more than [`MAX_ORPHANS`] and [`MAX_ORPHANS_PERCENT`].
    pub max_orphans: Option<usize>,
    /// Kinds, such as `StatefulSet.apps`, whose pods come back under their names; no other kind is asked for.
    pub sticky_kinds: Vec<String>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            lost_after: DEFAULT_LOST_AFTER,
            absent_after: DEFAULT_ABSENT_AFTER,
            finished_after: DEFAULT_FINISHED_AFTER,
            owner_after: DEFAULT_OWNER_AFTER,
            max_orphans: None,
            sticky_kinds: STICKY_KINDS.iter().map(|kind| (*kind).to_owned()).collect(),
        }
    }
}

/// What the pools of a lease say about its end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PoolPolicy {
    /// What is assumed of a node that cannot be asked.
    pub node_lost: NodeLost,
    /// How long a held lease stays.
    pub retention: Retention,
    /// Whether its leases are sticky.
    pub sticky: StickyRule,
}

impl Default for PoolPolicy {
    /// Of a pool that says nothing, and of inline ranges.
    fn default() -> Self {
        let retention =
            Retention { when_deleted: Retain::Delete, when_scaled: Retain::Retain, hold_for: Duration::ZERO };
        Self { node_lost: NodeLost::Free, retention, sticky: StickyRule::Auto }
    }
}

impl PoolPolicy {
    /// Of one pool.
    #[must_use]
    pub const fn of_pool(pool: &Pool) -> Self {
        Self { node_lost: pool.node_lost(), retention: pool.retention(), sticky: pool.sticky() }
    }

    /// Of a lease: of the pools of its addresses, what keeps the longest. One that is missing or cannot be read could
    /// have said anything.
    pub fn of_lease<'a>(lease: &Lease, find: impl Fn(&PoolName) -> Answer<&'a Pool>) -> Answer<Self> {
        let mut found: Option<Self> = None;
        for address in &lease.addresses {
            let next = match &address.pool {
                None => Self::default(),
                Some(name) => match find(name) {
                    Answer::Present(pool) => Self::of_pool(pool),
                    Answer::Absent => return Answer::Unknown(format!("there is no pool {name}")),
                    Answer::Unknown(why) => return Answer::Unknown(format!("pool {name}: {why}")),
                },
            };
            found = Some(found.map_or(next, |found| found.stricter(next)));
        }
        found.map_or_else(|| Answer::Unknown("it lists no address".into()), Answer::Present)
    }

    fn stricter(self, other: Self) -> Self {
        let retain = |a, b| if a == Retain::Retain { a } else { b };
        let (a, b) = (self.retention, other.retention);
        let unlimited = a.hold_for.is_zero() || b.hold_for.is_zero();
        Self {
            node_lost: if self.node_lost == NodeLost::Keep { self.node_lost } else { other.node_lost },
            retention: Retention {
                when_deleted: retain(a.when_deleted, b.when_deleted),
                when_scaled: retain(a.when_scaled, b.when_scaled),
                hold_for: if unlimited { Duration::ZERO } else { a.hold_for.max(b.hold_for) },
            },
            // A pool that rules on it leaves nothing to the controller.
            sticky: if self.sticky == StickyRule::Auto { other.sticky } else { self.sticky },
        }
    }
}

/// All that a verdict rests on.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    /// The lease.
    pub lease: &'a Lease,
    /// The cluster whose API was asked.
    pub cluster: &'a ClusterName,
    /// What its pools say ([`PoolPolicy::of_lease`]).
    pub pools: Answer<PoolPolicy>,
    /// Its pod.
    pub pod: Answer<&'a Pod>,
    /// The node that [`needs`] seeks.
    pub node: Answer<&'a Node>,
    /// The controller that [`needs`] names.
    pub controller: Answer<&'a Controller>,
}

/// Which node a verdict rests on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Sought {
    /// The one of this name.
    Named(NodeName),
    /// One that this pod may be a static pod of: their names end in that of their node.
    Hinted(PodName),
}

impl Sought {
    /// Is it this one?
    #[must_use]
    pub fn is(&self, node: &NodeName) -> bool {
        match self {
            Self::Named(name) => name == node,
            Self::Hinted(pod) => bound::is_named_after(pod, node),
        }
    }
}

/// What a verdict must know beyond the pod.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Needs {
    /// The node.
    pub node: Option<Sought>,
    /// The controller, in the pod's namespace. A lease does not remember the version of its kind: where
    /// [`ControllerRef::version`] is empty, any that the server has will do.
    pub controller: Option<ControllerRef>,
}

/// Which node and which controller to ask for.
#[must_use]
pub fn needs(lease: &Lease, pod: &Answer<&Pod>, policy: &Policy) -> Needs {
    let Holder::Pod { name, .. } = &lease.id.holder else { return Needs::default() };
    let state = if lease.ends_with_its_pod() { State::Bound } else { lease.state() };
    match (state, pod) {
        (State::Reserved, _) | (_, Answer::Unknown(_)) | (State::Held, Answer::Present(_)) => {
            Needs::default()
        }
        (State::Held, Answer::Absent) => {
            let controller = match Owner::of(lease, name, policy) {
                Owner::Known(owner) | Owner::Guessed(owner) => Some(owner),
                Owner::Nobody => None,
            };
            Needs { node: None, controller }
        }
        (State::Bound, Answer::Present(pod)) if pod.deleting.is_none() && !pod.phase.is_final() => {
            Needs::default()
        }
        (State::Bound, Answer::Present(pod)) => {
            Needs { node: node_of(lease, Some(pod)).map(Sought::Named), controller: None }
        }
        (State::Bound, Answer::Absent) => {
            let node = match node_of(lease, None) {
                Some(name) => Some(Sought::Named(name)),
                None => bound::static_node(lease, name),
            };
            Needs { node, controller: None }
        }
    }
}

fn node_of(lease: &Lease, pod: Option<&Pod>) -> Option<NodeName> {
    pod.and_then(|pod| pod.node.clone()).or_else(|| lease.bound().map(|stamp| stamp.node.clone()))
}

/// Who may want a held lease back.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Owner {
    /// The reaper saw it, and its kind is read.
    Known(ControllerRef),
    /// Nobody saw it: a StatefulSet would have this name.
    Guessed(ControllerRef),
    /// No way to tell, or a kind that nobody reads.
    Nobody,
}

impl Owner {
    fn of(lease: &Lease, pod: &PodName, policy: &Policy) -> Self {
        match seen_controller(lease) {
            Some(seen) => match seen.split_once('/') {
                Some((kind, name)) if policy.sticky_kinds.iter().any(|sticky| sticky == kind) => {
                    let version = if kind == STICKY_KINDS[0] { "v1".to_owned() } else { String::new() };
                    Self::Known(ControllerRef { kind: kind.to_owned(), version, name: name.to_owned() })
                }
                Some(_) | None => Self::Nobody,
            },
            None => workload::ordinal(pod).map_or(Self::Nobody, |(base, _)| {
                Self::Guessed(ControllerRef {
                    kind: STICKY_KINDS[0].to_owned(),
                    version: "v1".into(),
                    name: base.to_owned(),
                })
            }),
        }
    }
}

fn seen_controller(lease: &Lease) -> Option<&str> {
    lease.seen.as_ref().and_then(|seen| seen.controller.as_deref())
}

fn seen_missed(lease: &Lease) -> Option<Timestamp> {
    lease.seen.as_ref().and_then(|seen| seen.missed)
}

fn seen_doubt(lease: &Lease) -> Option<Timestamp> {
    lease.seen.as_ref().and_then(|seen| seen.doubt)
}

/// What is to be done with a lease.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// Nothing.
    Keep(Kept),
    /// It is kept, and what was seen is written into it.
    Note(Kept, Note),
    /// It ends, once a live answer has confirmed it.
    Give(Give),
}

impl Verdict {
    /// The row of the table that says so.
    #[must_use]
    pub const fn row(&self) -> Row {
        match self {
            Self::Keep(kept) | Self::Note(kept, _) => kept.row,
            Self::Give(give) => give.row,
        }
    }

    /// Why it is kept; `None` if it is not.
    #[must_use]
    pub const fn kept(&self) -> Option<&Kept> {
        match self {
            Self::Keep(kept) | Self::Note(kept, _) => Some(kept),
            Self::Give(_) => None,
        }
    }

    /// The reason, for a person.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Keep(kept) | Self::Note(kept, _) => kept.why.to_string(),
            Self::Give(give) => give.text.clone(),
        }
    }
}

/// A lease is kept.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Kept {
    /// The row of the table that says so.
    pub row: Row,
    /// Why.
    pub why: Keep,
    /// A person should look at it.
    pub report: bool,
}

/// What changes in a lease that is kept.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Note {
    /// The controller that its pod has, if the lease did not know it.
    pub controller: Option<String>,
    /// Since when what it needs is missed.
    pub missed: Missed,
    /// Since when it is kept in doubt.
    pub doubt: Missed,
    /// It becomes sticky.
    pub sticky: bool,
}

/// What becomes of [`Seen::missed`], or of [`Seen::doubt`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Missed {
    /// It stays.
    #[default]
    Same,
    /// This pass is the first.
    First(Timestamp),
    /// It is there again.
    Cleared,
}

impl Note {
    /// The lease with what was seen.
    #[must_use]
    pub fn write(&self, lease: &Lease) -> Lease {
        let mut next = lease.clone();
        let mut seen = next.seen.take().unwrap_or_default();
        if self.controller.is_some() {
            seen.controller.clone_from(&self.controller);
        }
        for (noted, place) in [(self.missed, &mut seen.missed), (self.doubt, &mut seen.doubt)] {
            match noted {
                Missed::Same => {}
                Missed::First(at) => *place = Some(at),
                Missed::Cleared => *place = None,
            }
        }
        next.seen = (seen != Seen::default()).then_some(seen);
        next.sticky |= self.sticky;
        next
    }
}

/// A lease is to end: a candidate, until [`confirm`] has asked again.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Give {
    row: Row,
    text: String,
    lease: Box<Lease>,
}

impl Give {
    /// The row of the table that says so.
    #[must_use]
    pub const fn row(&self) -> Row {
        self.row
    }

    /// Why, for a person.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The lease as it was judged.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }
}

/// Proof that a lease's pod was asked for, live, and that the verdict on the answer is to give back, unbraked.
///
/// Only [`confirm`] makes one, and the store takes nothing else from the reaper.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Confirmed(Give);

impl Confirmed {
    /// The row of the table that says so.
    #[must_use]
    pub const fn row(&self) -> Row {
        self.0.row
    }

    /// Why, for a person.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The lease as it was judged.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.0.lease
    }
}

/// The verdict on a candidate once more, on live answers: of the pod, and of the node and the controller as it needs them.
///
/// # Errors
/// Why it is kept all the same.
pub fn confirm(
    give: &Give,
    live: &Case<'_>,
    brakes: &[Brake],
    policy: &Policy,
    now: Timestamp,
) -> Result<Confirmed, Keep> {
    if live.lease != give.lease() {
        return Err(Keep::Changed);
    }
    match brake(verdict(live, policy, now), brakes) {
        Verdict::Give(give) => Ok(Confirmed(give)),
        Verdict::Keep(kept) | Verdict::Note(kept, _) => Err(kept.why),
    }
}

/// What is to be done with a lease. `now` is the API server's clock at its answer.
#[must_use]
pub fn verdict(case: &Case<'_>, policy: &Policy, now: Timestamp) -> Verdict {
    let ruling = rule(case, policy, now);
    let mut note = note(case, &ruling, policy);
    let (kept, missed_for) = match (ruling.end, &case.pools) {
        (End::Give(text), Answer::Present(_)) if !note.comes_first(case.lease) => {
            return Verdict::Give(Give { row: ruling.row, text, lease: Box::new(case.lease.clone()) });
        }
        (End::Give(_), Answer::Present(_)) => {
            let owner = note.controller.clone().unwrap_or_default();
            (Kept { row: ruling.row, why: Keep::ControllerFirst { owner }, report: false }, None)
        }
        (End::Give(_), Answer::Absent) => (Kept::doubt("its pools are not known"), seen_missed(case.lease)),
        (End::Give(_), Answer::Unknown(why)) => (Kept::doubt(why), seen_missed(case.lease)),
        (End::Keep(why, report), _) => (
            Kept { row: ruling.row, why, report },
            seen_missed(case.lease).filter(|_| note.missed == Missed::Same),
        ),
    };
    note.doubt = match seen_doubt(case.lease) {
        None if kept.why.is_doubt() => Missed::First(now),
        Some(since) if kept.why.is_doubt() && since > now => Missed::First(now),
        Some(_) if !kept.why.is_doubt() => Missed::Cleared,
        None | Some(_) => Missed::Same,
    };
    let doubted = seen_doubt(case.lease).filter(|_| note.doubt == Missed::Same);
    let doubtful = [missed_for, doubted].into_iter().flatten().any(|at| now.since(at) >= ms(DOUBT_AFTER));
    let kept = Kept { report: kept.report || doubtful, ..kept };
    if note == Note::default() { Verdict::Keep(kept) } else { Verdict::Note(kept, note) }
}

/// The verdict on a record that is invalid, or newer than this binary: there is no [`Lease`] to make a [`Case`] of.
#[must_use]
pub fn unreadable(reason: &str) -> Verdict {
    Verdict::Keep(Kept {
        row: Row::Unreadable,
        why: Keep::Unreadable { reason: reason.into() },
        report: true,
    })
}

/// Is a released key of no more use? Never while somebody may still answer on its address.
#[must_use]
pub fn is_forgotten(released: &Released, now: Timestamp) -> bool {
    let last = released.declined.as_ref().map_or(released.at, |declined| released.at.max(declined.at));
    !released.unconfirmed && now.since(last) >= ms(FORGET_AFTER)
}

/// What a row says, before it is looked at whether something must be noted.
struct Ruling {
    row: Row,
    end: End,
    missed: Missed,
}

enum End {
    Keep(Keep, bool),
    Give(String),
}

impl Kept {
    fn doubt(why: &str) -> Self {
        Self { row: Row::Doubt, why: Keep::UnknownAnswer { reason: why.into() }, report: false }
    }
}

impl Ruling {
    const fn keep(row: Row, why: Keep) -> Self {
        Self { row, end: End::Keep(why, false), missed: Missed::Same }
    }

    const fn give(row: Row, text: String) -> Self {
        Self { row, end: End::Give(text), missed: Missed::Same }
    }

    fn doubt(reason: impl Into<String>) -> Self {
        Self::keep(Row::Doubt, Keep::UnknownAnswer { reason: reason.into() })
    }

    fn reported(mut self, when: bool) -> Self {
        if let End::Keep(_, report) = &mut self.end {
            *report |= when;
        }
        self
    }

    const fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }
}

fn rule(case: &Case<'_>, policy: &Policy, now: Timestamp) -> Ruling {
    let lease = case.lease;
    if lease.id.cluster != *case.cluster {
        return Ruling::keep(Row::Doubt, Keep::OtherCluster { cluster: lease.id.cluster.clone() });
    }
    let Holder::Pod { namespace, name } = &lease.id.holder else {
        return Ruling::keep(Row::Container, Keep::NoPodIdentity).reported(true);
    };
    if lease.state() == State::Reserved {
        return Ruling::keep(Row::Reserved, Keep::Reserved);
    }
    let pod = match &case.pod {
        Answer::Unknown(why) => return Ruling::doubt(why.as_str()),
        Answer::Present(pod) if !is_of(pod, namespace, name) => {
            return Ruling::doubt(format!("the answer is of pod {}", pod.key));
        }
        Answer::Present(pod) => Some(*pod),
        Answer::Absent => None,
    };
    match lease.bound() {
        Some(stamp) => bound::rule(case, Some(stamp), pod, policy, now),
        None if lease.ends_with_its_pod() => bound::rule(case, None, pod, policy, now),
        None => retention::rule(case, name, pod, policy, now),
    }
}

fn is_of(pod: &Pod, namespace: &Namespace, name: &PodName) -> bool {
    pod.key.namespace == *namespace && pod.key.name == *name
}

/// What the pod shows and the lease does not know.
fn note(case: &Case<'_>, ruling: &Ruling, policy: &Policy) -> Note {
    let lease = case.lease;
    let missed = match ruling.missed {
        Missed::Cleared if seen_missed(lease).is_none() => Missed::Same,
        missed @ (Missed::Same | Missed::First(_) | Missed::Cleared) => missed,
    };
    let mut note = Note { missed, ..Note::default() };
    let (Answer::Present(pod), Holder::Pod { name, .. }) = (&case.pod, &lease.id.holder) else { return note };
    // One with a generated suffix does not come back under its name: a write for each would be for nothing.
    if matches!(ruling.row, Row::Doubt | Row::Reserved) || workload::has_random_suffix(name) {
        return note;
    }
    let Some(controller) = &pod.controller else { return note };
    note.controller = Some(controller.to_string()).filter(|now| seen_controller(lease) != Some(now.as_str()));
    let wished = pod.wishes.iter().any(|(wish, _)| wish == STICKY_WISH);
    let left_to_controller =
        matches!(&case.pools, Answer::Present(pools) if pools.sticky == StickyRule::Auto) && !wished;
    note.sticky = left_to_controller
        && lease.state() == State::Bound
        && !lease.sticky
        && policy.sticky_kinds.contains(&controller.kind);
    note
}

impl Note {
    /// Must it be written before the lease ends? Held without its controller, nobody would know who wants it.
    const fn comes_first(&self, lease: &Lease) -> bool {
        self.sticky || (self.controller.is_some() && lease.sticky)
    }
}

/// How long what is missed has been missed.
enum Count {
    /// Not yet noted, or noted in the future (clocks differ): from now.
    First,
    /// For so long, and so long to go, milliseconds.
    Waiting { missed_ms: i64, left_ms: i64 },
    /// Long enough.
    Over { missed_ms: i64 },
}

fn count(missed: Option<Timestamp>, after: Duration, now: Timestamp) -> Count {
    match missed.map(|missed| now.since(missed)) {
        None | Some(..0) => Count::First,
        Some(missed_ms) if missed_ms >= ms(after) => Count::Over { missed_ms },
        Some(missed_ms) => Count::Waiting { missed_ms, left_ms: ms(after) - missed_ms },
    }
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
