//! Why a lease is kept, and which row of the table says so: for a person, and for metrics.

use std::{fmt, time::Duration};

use crate::domain::{
    names::{ClusterName, NodeName},
    pool::format_duration,
};

/// A row of the table of verdicts.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Row {
    /// 1: its pod lives.
    Lives,
    /// 2: its pod is leaving, and has time to.
    Leaving,
    /// 3: its pod should be gone, and its kubelet lives.
    Overdue,
    /// 4: its pod should be gone, and its node has not been silent for long.
    Silent,
    /// 5: its pod should be gone, and its node is lost.
    Lost,
    /// 6: its pod has ended.
    Ended,
    /// 7: its pod is said to have ended, on a node that cannot be asked.
    EndedSilent,
    /// 8: its pod is absent.
    Missed,
    /// 9: its pod is absent, and its node silent.
    MissedSilent,
    /// 10: its pod and its node are absent.
    MissedNoNode,
    /// 11: its pod is absent, and perhaps static.
    Static,
    /// 12: it is held.
    Held(Line),
    /// 13: it is reserved.
    Reserved,
    /// 13a: it is of a container without a pod.
    Container,
    /// 14: it cannot be read.
    Unreadable,
    /// 15: something was not answered.
    Doubt,
}

/// A line of the table of retention.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Line {
    /// Its pod exists, or its controller wants it.
    Wanted,
    /// Its controller wants fewer.
    Scaled,
    /// Its controller is absent.
    OwnerAbsent,
    /// Nobody knows its controller.
    NoOwner,
    /// Its time is over.
    HoldFor,
}

impl Row {
    /// As the table has it, such as `13a`; of row 12 with its line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lives => "1",
            Self::Leaving => "2",
            Self::Overdue => "3",
            Self::Silent => "4",
            Self::Lost => "5",
            Self::Ended => "6",
            Self::EndedSilent => "7",
            Self::Missed => "8",
            Self::MissedSilent => "9",
            Self::MissedNoNode => "10",
            Self::Static => "11",
            Self::Held(Line::Wanted) => "12 wanted",
            Self::Held(Line::Scaled) => "12 scaled",
            Self::Held(Line::OwnerAbsent) => "12 owner absent",
            Self::Held(Line::NoOwner) => "12 no owner",
            Self::Held(Line::HoldFor) => "12 holdFor",
            Self::Reserved => "13",
            Self::Container => "13a",
            Self::Unreadable => "14",
            Self::Doubt => "15",
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The label of [`Keep::UnknownAnswer`].
pub const UNKNOWN_ANSWER: &str = "unknown_answer";
/// The label of [`Keep::Unreadable`].
pub const UNREADABLE: &str = "unreadable";
/// The label of [`Keep::Braked`].
pub const BRAKED: &str = "braked";

/// Why a lease is kept. Figures are milliseconds.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "the fields are the figures of the text")]
pub enum Keep {
    /// Its pod lives.
    PodLives,
    /// Its pod lives under another UID, and that one never asked for the address.
    Unclaimed { age_ms: i64 },
    /// Its pod is leaving, and has time to.
    Terminating { left_ms: i64 },
    /// Its pod should be gone; its kubelet lives, and will end it.
    KubeletLives { node: NodeName, overdue_ms: i64 },
    /// Its node has not been silent for long.
    NodeUnknown { node: NodeName, silent_ms: i64, left_ms: i64 },
    /// Its node is lost, and the pool says that it may live.
    NodeLostKeep { lost: String },
    /// Its pod has ended, and its sandbox is being torn down.
    Finishing { left_ms: i64 },
    /// Its pod has ended, as one part of its status says, and a container of it runs, as another does.
    ContainerRuns { ended_ms: i64 },
    /// Its pod has not been missed for long, or only by this pass.
    NotMissedLongEnough { missed_ms: i64, left_ms: i64 },
    /// A static pod runs whether the API shows it or not.
    StaticPod { node: NodeName },
    /// Held, and its pod exists.
    PodExists,
    /// Held, and its controller wants it.
    OwnerWantsIt { owner: String },
    /// Held; its controller wants fewer, and the pool retains.
    ScaledDown { owner: String, replicas: u64 },
    /// Held; its controller has not been absent for long, or only for this pass.
    OwnerMissed { owner: String, missed_ms: i64, left_ms: i64 },
    /// Held; its controller is gone, and the pool retains.
    OwnerGone { owner: String, missed_ms: i64 },
    /// Held, and nobody knows a controller that could want it.
    NoOwner { held_ms: i64 },
    /// Held for a controller of a kind that nobody reads.
    OwnerKind { owner: String, held_ms: i64 },
    /// Its controller is written into it first.
    ControllerFirst { owner: String },
    /// A person assigned it.
    Reserved,
    /// Of a container without a pod: the API cannot tell.
    NoPodIdentity,
    /// Its record is invalid, or newer than this binary.
    Unreadable { reason: String },
    /// Something was not answered.
    UnknownAnswer { reason: String },
    /// Of a cluster that was not asked.
    OtherCluster { cluster: ClusterName },
    /// A brake stops its row.
    Braked { by: &'static str, text: String },
    /// It is no longer the lease that was judged.
    Changed,
}

impl Keep {
    /// For metrics and JSON; it does not change.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::PodLives => "pod_lives",
            Self::Unclaimed { .. } => "unclaimed",
            Self::Terminating { .. } => "terminating",
            Self::KubeletLives { .. } => "kubelet_lives",
            Self::NodeUnknown { .. } => "node_unknown",
            Self::NodeLostKeep { .. } => "node_lost_keep",
            Self::Finishing { .. } => "finishing",
            Self::ContainerRuns { .. } => "container_runs",
            Self::NotMissedLongEnough { .. } => "not_missed_long_enough",
            Self::StaticPod { .. } => "static_pod",
            Self::PodExists => "pod_exists",
            Self::OwnerWantsIt { .. } => "owner_wants_it",
            Self::ScaledDown { .. } => "scaled_down",
            Self::OwnerMissed { .. } => "owner_not_missed_long_enough",
            Self::OwnerGone { .. } => "owner_gone",
            Self::NoOwner { .. } => "no_owner",
            Self::OwnerKind { .. } => "owner_kind_not_read",
            Self::ControllerFirst { .. } => "controller_first",
            Self::Reserved => "reserved",
            Self::NoPodIdentity => "no_pod_identity",
            Self::Unreadable { .. } => UNREADABLE,
            Self::UnknownAnswer { .. } => UNKNOWN_ANSWER,
            Self::OtherCluster { .. } => "other_cluster",
            Self::Braked { .. } => BRAKED,
            Self::Changed => "changed",
        }
    }
}

impl Keep {
    /// Is it kept because nobody knows? What is looked at again by and by, and not for ever, is no doubt.
    pub(super) const fn is_doubt(&self) -> bool {
        match self {
            Self::NodeLostKeep { .. }
            | Self::ContainerRuns { .. }
            | Self::NoOwner { .. }
            | Self::OwnerKind { .. }
            | Self::UnknownAnswer { .. } => true,
            Self::PodLives
            | Self::Unclaimed { .. }
            | Self::Terminating { .. }
            | Self::KubeletLives { .. }
            | Self::NodeUnknown { .. }
            | Self::Finishing { .. }
            | Self::NotMissedLongEnough { .. }
            | Self::StaticPod { .. }
            | Self::PodExists
            | Self::OwnerWantsIt { .. }
            | Self::ScaledDown { .. }
            | Self::OwnerMissed { .. }
            | Self::OwnerGone { .. }
            | Self::ControllerFirst { .. }
            | Self::Reserved
            | Self::NoPodIdentity
            | Self::Unreadable { .. }
            | Self::OtherCluster { .. }
            | Self::Braked { .. }
            | Self::Changed => false,
        }
    }

    /// Where time alone stands in the way of the next verdict: how long, milliseconds.
    #[must_use]
    pub const fn left_ms(&self) -> Option<i64> {
        match self {
            Self::Terminating { left_ms }
            | Self::NodeUnknown { left_ms, .. }
            | Self::Finishing { left_ms }
            | Self::NotMissedLongEnough { left_ms, .. }
            | Self::OwnerMissed { left_ms, .. } => Some(*left_ms),
            Self::ControllerFirst { .. } => Some(0),
            Self::PodLives
            | Self::Unclaimed { .. }
            | Self::KubeletLives { .. }
            | Self::NodeLostKeep { .. }
            | Self::ContainerRuns { .. }
            | Self::StaticPod { .. }
            | Self::PodExists
            | Self::OwnerWantsIt { .. }
            | Self::ScaledDown { .. }
            | Self::OwnerGone { .. }
            | Self::NoOwner { .. }
            | Self::OwnerKind { .. }
            | Self::Reserved
            | Self::NoPodIdentity
            | Self::Unreadable { .. }
            | Self::UnknownAnswer { .. }
            | Self::OtherCluster { .. }
            | Self::Braked { .. }
            | Self::Changed => None,
        }
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PodLives => f.write_str("its pod lives"),
            Self::Unclaimed { age_ms } => {
                write!(f, "its pod was made anew {} ago and has not asked for it", span(*age_ms))
            }
            Self::Terminating { left_ms } => write!(f, "pod deleting, has {} left", span(*left_ms)),
            Self::KubeletLives { node, overdue_ms } => {
                write!(f, "pod deleting, overdue {}, but the kubelet of node {node} lives", span(*overdue_ms))
            }
            Self::NodeUnknown { node, silent_ms, left_ms } => {
                write!(f, "node {node} unreachable {}, given back in {}", span(*silent_ms), span(*left_ms))
            }
            Self::NodeLostKeep { lost } => write!(f, "{lost}, nodeLost keep"),
            Self::Finishing { left_ms } => write!(f, "pod ended, given back in {}", span(*left_ms)),
            Self::ContainerRuns { ended_ms } => {
                write!(f, "pod ended, seen so for {}, but a container of it runs", span(*ended_ms))
            }
            Self::NotMissedLongEnough { missed_ms, left_ms } => {
                write!(f, "pod missed {}, given back in {}", span(*missed_ms), span(*left_ms))
            }
            Self::StaticPod { node } => write!(f, "pod missed, but perhaps a static pod of node {node}"),
            Self::PodExists => f.write_str("its pod exists"),
            Self::OwnerWantsIt { owner } => write!(f, "{owner} wants it"),
            Self::ScaledDown { owner, replicas } => {
                write!(f, "{owner} scaled to {replicas}, whenScaled Retain")
            }
            Self::OwnerMissed { owner, missed_ms, left_ms } => {
                write!(f, "{owner} missed {}, decided in {}", span(*missed_ms), span(*left_ms))
            }
            Self::OwnerGone { owner, missed_ms } => {
                write!(f, "{owner} gone for {}, whenDeleted Retain", span(*missed_ms))
            }
            Self::NoOwner { held_ms } => {
                write!(f, "held for {}, and no controller known that wants it", span(*held_ms))
            }
            Self::OwnerKind { owner, held_ms } => {
                write!(f, "held for {}, and {owner} is of no kind in stickyKinds", span(*held_ms))
            }
            Self::ControllerFirst { owner } => write!(f, "its controller {owner} is noted first"),
            Self::Reserved => f.write_str("reserved"),
            Self::NoPodIdentity => f.write_str("a container without a pod: ended by DEL, GC or a person"),
            Self::Unreadable { reason } => write!(f, "cannot be read: {reason}"),
            Self::UnknownAnswer { reason } => write!(f, "not known: {reason}"),
            Self::OtherCluster { cluster } => write!(f, "of cluster {cluster}, which was not asked"),
            Self::Braked { text, .. } => write!(f, "braked: {text}"),
            Self::Changed => f.write_str("the lease has changed"),
        }
    }
}

/// Whole seconds, as a person reads them: `3m12s`; from two days on whole hours, `333d2h`.
pub(super) fn span(ms: i64) -> String {
    const HOUR: u64 = 3600;
    let seconds = u64::try_from(ms / 1000).unwrap_or(0);
    let (days, hours) = (seconds / (24 * HOUR), seconds / HOUR % 24);
    match (days, hours) {
        (0..2, _) => format_duration(Duration::from_secs(seconds)),
        (_, 0) => format!("{days}d"),
        _ => format!("{days}d{hours}h"),
    }
}

/// `StatefulSet.apps/db` as a person says it: `StatefulSet db`.
pub(super) fn spoken(controller: &str) -> String {
    let Some((kind, name)) = controller.split_once('/') else { return controller.to_owned() };
    format!("{} {name}", kind.split('.').next().unwrap_or(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_spans_are_days() {
        let case = |seconds: i64, wanted: &str| assert_eq!(span(seconds * 1000), wanted);
        case(192, "3m12s");
        case(47 * 3600 + 59, "47h59s");
        case(48 * 3600, "2d");
        case(50 * 3600 + 59, "2d2h");
        case(7994 * 3600, "333d2h");
        case(-1, "0s");
    }
}
