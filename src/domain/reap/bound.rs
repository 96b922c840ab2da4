//! Rows 1 to 11: a lease that a sandbox uses; also one that was adopted for a pod that runs, which knows no sandbox.

use super::{
    Case, Count, Keep, Missed, Policy, Row, Ruling, STUCK_AFTER, Sought, count, keep::span, ms, node_of,
};
use super::{MIN_ABSENT_AFTER, seen_controller, seen_doubt, seen_missed};
use crate::domain::{
    kubernetes::{Answer, Finished, Node, Phase, Pod, Ready},
    lease::{Holder, Lease, Stamp, Timestamp},
    names::{NodeName, PodName},
    pool::NodeLost,
};

pub(super) fn rule(
    case: &Case<'_>,
    stamp: Option<&Stamp>,
    pod: Option<&Pod>,
    policy: &Policy,
    now: Timestamp,
) -> Ruling {
    match pod.map(|pod| (pod, pod.phase.is_final(), pod.deleting)) {
        None => match stamp {
            Some(stamp) => absent(case, stamp, policy, now),
            None => unseen(case, policy, now),
        },
        Some((pod, true, _)) => ended(case, pod, policy, now),
        Some((pod, false, None)) => lives(stamp, pod, now).missed(Missed::Cleared),
        Some((_, false, Some(due))) if due > now => leaving(due, now).missed(Missed::Cleared),
        Some((pod, false, Some(due))) => overdue(case, pod, due, policy, now).missed(Missed::Cleared),
    }
}

/// Row 1.
fn lives(stamp: Option<&Stamp>, pod: &Pod, now: Timestamp) -> Ruling {
    let Some(stamp) = stamp else { return Ruling::keep(Row::Lives, Keep::PodLives) };
    // A runtime that sends UIDs would have written this one. The stamp's time is a node's clock: good for a report.
    let another = stamp.uid.as_ref().is_some_and(|uid| *uid != pod.uid) && pod.mirror.is_none();
    let older = pod.created.since(stamp.at) > ms(STUCK_AFTER);
    let age_ms = now.since(pod.created);
    if another && older && pod.phase == Phase::Running && age_ms >= ms(STUCK_AFTER) {
        return Ruling::keep(Row::Lives, Keep::Unclaimed { age_ms }).reported(true);
    }
    Ruling::keep(Row::Lives, Keep::PodLives)
}

/// Row 2.
const fn leaving(due: Timestamp, now: Timestamp) -> Ruling {
    Ruling::keep(Row::Leaving, Keep::Terminating { left_ms: due.since(now) })
}

/// Rows 3, 4 and 5.
fn overdue(case: &Case<'_>, pod: &Pod, due: Timestamp, policy: &Policy, now: Timestamp) -> Ruling {
    let (name, node) = match node(case, Some(pod)) {
        Ok(found) => found,
        Err(doubt) => return doubt,
    };
    match standing(&name, node, policy, now) {
        Standing::Lives => {
            let overdue_ms = now.since(due);
            Ruling::keep(Row::Overdue, Keep::KubeletLives { node: name, overdue_ms })
                .reported(overdue_ms >= ms(STUCK_AFTER))
        }
        Standing::Unsaid => Ruling::doubt(unsaid(&name)),
        Standing::Silent { silent_ms, left_ms } => wait_silent(case, Row::Silent, name, silent_ms, left_ms),
        Standing::Lost(lost) => give_lost(case, Row::Lost, lost, "pod deleting"),
    }
}

/// Rows 6 and 7, and 2 while the grace runs on a node that cannot confirm the end.
fn ended(case: &Case<'_>, pod: &Pod, policy: &Policy, now: Timestamp) -> Ruling {
    let (name, node) = match node(case, Some(pod)) {
        Ok(found) => found,
        Err(doubt) => return doubt,
    };
    if node.is_some_and(|node| matches!(node.ready, Ready::True | Ready::False)) {
        return finished(case.lease, pod, policy, now);
    }
    if let Some(due) = pod.deleting
        && due > now
    {
        return leaving(due, now);
    }
    match standing(&name, node, policy, now) {
        // No such standing without a kubelet: nothing is given on it.
        Standing::Lives => Ruling::doubt(format!("node {name}")),
        Standing::Unsaid => Ruling::doubt(unsaid(&name)),
        Standing::Silent { silent_ms, left_ms } => {
            wait_silent(case, Row::EndedSilent, name, silent_ms, left_ms)
        }
        Standing::Lost(lost) => give_lost(case, Row::EndedSilent, lost, "pod ended"),
    }
}

/// Row 6. A pass that saw the pod ended knows that it had ended by then, whatever the node's clock says.
fn finished(lease: &Lease, pod: &Pod, policy: &Policy, now: Timestamp) -> Ruling {
    let noted = seen_missed(lease).filter(|noted| *noted >= pod.created && *noted <= now);
    let said = match pod.finished {
        // What is said of the whole pod and of a part of it is not both true: the part may answer.
        Finished::StillRuns => {
            let since = seen_doubt(lease).filter(|since| *since <= now);
            let ended_ms = since.map_or(0, |since| now.since(since));
            return Ruling::keep(Row::Ended, Keep::ContainerRuns { ended_ms })
                .reported(ended_ms >= ms(STUCK_AFTER))
                .missed(Missed::Cleared);
        }
        // A node whose clock is slow says that it ended before it was made.
        Finished::At(said) => Some(said).filter(|said| *said >= pod.created),
        Finished::Unsaid => None,
    };
    let since = match (noted, said) {
        (Some(noted), Some(said)) => Some(noted.min(said)),
        (one, other) => one.or(other),
    };
    match count(since, policy.finished_after, now) {
        Count::First => Ruling::keep(Row::Ended, Keep::Finishing { left_ms: ms(policy.finished_after) })
            .missed(Missed::First(now)),
        Count::Waiting { left_ms, .. } => Ruling::keep(Row::Ended, Keep::Finishing { left_ms }),
        Count::Over { missed_ms } => {
            Ruling::give(Row::Ended, format!("pod {} {} ago", ending(pod.phase), span(missed_ms)))
        }
    }
}

const fn ending(phase: Phase) -> &'static str {
    match phase {
        Phase::Succeeded => "succeeded",
        Phase::Failed => "failed",
        Phase::Pending | Phase::Running | Phase::Unknown => "ended",
    }
}

/// Rows 8 to 11.
fn absent(case: &Case<'_>, stamp: &Stamp, policy: &Policy, now: Timestamp) -> Ruling {
    let (name, node) = match node(case, None) {
        Ok(found) => found,
        Err(doubt) => return doubt,
    };
    let count = count(seen_missed(case.lease), policy.absent_after.max(MIN_ABSENT_AFTER), now);
    let noted = if matches!(count, Count::First) { Missed::First(now) } else { Missed::Same };
    if node.is_some() && is_perhaps_static(case.lease, &stamp.node) {
        return Ruling::keep(Row::Static, Keep::StaticPod { node: name }).reported(true).missed(noted);
    }
    let (row, silent_ms) = match node.map(|node| node.ready) {
        None => (Row::MissedNoNode, None),
        Some(Ready::True | Ready::False) => (Row::Missed, None),
        Some(Ready::Unknown { since }) => (Row::MissedSilent, Some(now.since(since))),
        Some(Ready::Unsaid) => return Ruling::doubt(unsaid(&name)),
    };
    let (missed_ms, left_ms) = match count {
        Count::First => (0, ms(policy.absent_after.max(MIN_ABSENT_AFTER))),
        Count::Waiting { missed_ms, left_ms } => (missed_ms, left_ms),
        Count::Over { missed_ms } => (missed_ms, 0),
    };
    let silent_left_ms = silent_ms.map_or(0, |silent_ms| ms(policy.lost_after).saturating_sub(silent_ms));
    match silent_ms {
        Some(silent_ms) if silent_left_ms > left_ms => {
            let why = Keep::NodeUnknown { node: name, silent_ms, left_ms: silent_left_ms };
            Ruling::keep(row, why).missed(noted)
        }
        _ if left_ms > 0 => Ruling::keep(row, Keep::NotMissedLongEnough { missed_ms, left_ms }).missed(noted),
        Some(silent_ms) => Ruling::give(
            row,
            format!("pod absent for {}, node {name} unreachable {}", span(missed_ms), span(silent_ms)),
        ),
        None if node.is_none() => {
            Ruling::give(row, format!("pod absent for {}, and there is no node {name}", span(missed_ms)))
        }
        None => Ruling::give(row, format!("pod absent for {}", span(missed_ms))),
    }
}

/// Rows 8 and 11 of a lease without a sandbox: its node is not known.
fn unseen(case: &Case<'_>, policy: &Policy, now: Timestamp) -> Ruling {
    let after = policy.absent_after.max(MIN_ABSENT_AFTER);
    let (missed_ms, left_ms, noted) = match count(seen_missed(case.lease), after, now) {
        Count::First => (0, ms(after), Missed::First(now)),
        Count::Waiting { missed_ms, left_ms } => (missed_ms, left_ms, Missed::Same),
        Count::Over { missed_ms } => (missed_ms, 0, Missed::Same),
    };
    let Holder::Pod { name, .. } = &case.lease.id.holder else { return Ruling::doubt("it is of no pod") };
    if let Some(sought) = static_node(case.lease, name) {
        match &case.node {
            Answer::Unknown(why) => return Ruling::doubt(why.as_str()),
            Answer::Present(node) if !sought.is(&node.name) => {
                return Ruling::doubt(format!("the answer is of node {}", node.name));
            }
            Answer::Present(node) => {
                let why = Keep::StaticPod { node: node.name.clone() };
                return Ruling::keep(Row::Static, why).reported(true).missed(noted);
            }
            Answer::Absent => {}
        }
    }
    if left_ms > 0 {
        let why = Keep::NotMissedLongEnough { missed_ms, left_ms };
        return Ruling::keep(Row::Missed, why).missed(noted);
    }
    Ruling::give(Row::Missed, format!("adopted, pod absent for {}", span(missed_ms)))
}

/// The node that a pod is a static one of, if it is one: where a controller was seen, that tells.
pub(super) fn static_node(lease: &Lease, pod: &PodName) -> Option<Sought> {
    match seen_controller(lease) {
        Some(controller) => {
            let name = controller.strip_prefix("Node/")?;
            NodeName::new(name).ok().map(Sought::Named)
        }
        None => Some(Sought::Hinted(pod.clone())),
    }
}

/// A controller that was seen tells: a static pod's is its node. Else its name does, which ends in the node's.
fn is_perhaps_static(lease: &Lease, node: &NodeName) -> bool {
    let Holder::Pod { name, .. } = &lease.id.holder else { return false };
    match seen_controller(lease) {
        Some(controller) => controller.starts_with("Node/"),
        None => is_named_after(name, node),
    }
}

pub(super) fn is_named_after(pod: &PodName, node: &NodeName) -> bool {
    pod.as_str().strip_suffix(node.as_str()).is_some_and(|rest| rest.ends_with('-'))
}

fn wait_silent(case: &Case<'_>, row: Row, node: NodeName, silent_ms: i64, left_ms: i64) -> Ruling {
    if keeps_lost(case) {
        let lost = format!("node {node} unreachable {}", span(silent_ms));
        return Ruling::keep(row, Keep::NodeLostKeep { lost });
    }
    Ruling::keep(row, Keep::NodeUnknown { node, silent_ms, left_ms })
}

fn give_lost(case: &Case<'_>, row: Row, lost: String, pod: &str) -> Ruling {
    if keeps_lost(case) {
        return Ruling::keep(row, Keep::NodeLostKeep { lost }).reported(true);
    }
    Ruling::give(row, format!("{pod}, {lost}"))
}

fn keeps_lost(case: &Case<'_>) -> bool {
    matches!(&case.pools, Answer::Present(pools) if pools.node_lost == NodeLost::Keep)
}

/// Can a node confirm that a pod of it has ended?
enum Standing {
    /// Its kubelet lives.
    Lives,
    /// Nobody has said.
    Unsaid,
    /// It has been silent for so long, and so long is left until it is lost, milliseconds.
    Silent { silent_ms: i64, left_ms: i64 },
    /// No: what a person reads.
    Lost(String),
}

fn standing(name: &NodeName, node: Option<&Node>, policy: &Policy, now: Timestamp) -> Standing {
    let Some(node) = node else { return Standing::Lost(format!("there is no node {name}")) };
    match node.ready {
        Ready::True => Standing::Lives,
        Ready::False | Ready::Unknown { .. } | Ready::Unsaid if node.out_of_service => {
            Standing::Lost(format!("node {name} out of service"))
        }
        Ready::False => Standing::Lives,
        Ready::Unsaid => Standing::Unsaid,
        Ready::Unknown { since } => {
            let silent_ms = now.since(since);
            let left_ms = ms(policy.lost_after).saturating_sub(silent_ms);
            if left_ms > 0 {
                Standing::Silent { silent_ms, left_ms }
            } else {
                Standing::Lost(format!("node {name} unreachable {}", span(silent_ms)))
            }
        }
    }
}

fn unsaid(node: &NodeName) -> String {
    format!("node {node} has no condition Ready")
}

/// The node in question: its name, and what was answered of that very node.
fn node<'a>(case: &Case<'a>, pod: Option<&Pod>) -> Result<(NodeName, Option<&'a Node>), Ruling> {
    let Some(name) = node_of(case.lease, pod) else { return Err(Ruling::doubt("no node is named")) };
    match &case.node {
        Answer::Unknown(why) => Err(Ruling::doubt(why.as_str())),
        Answer::Present(node) if node.name != name => {
            Err(Ruling::doubt(format!("the answer is of node {}", node.name)))
        }
        Answer::Present(node) => Ok((name, Some(node))),
        Answer::Absent => Ok((name, None)),
    }
}
