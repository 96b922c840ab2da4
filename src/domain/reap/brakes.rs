//! What stops the giving-back of a pass: signs that the answers are false, though each of them was well-formed. None of
//! them needs a person for the crash of a node.

use std::{collections::BTreeSet, fmt};

use super::{Keep, Kept, MAX_ORPHANS, MAX_ORPHANS_PERCENT, Missed, Note, Policy, Row, Verdict};
use crate::domain::{
    kubernetes::{Node, Ready},
    names::{ClusterName, NodeName, Uid},
};

/// Fewer silent nodes than this are nodes that died, not a network that did.
const MIN_SILENT: usize = 3;

/// What a pass found, of one cluster.
#[derive(Clone, Debug)]
pub struct Pass<'a> {
    /// The cluster.
    pub cluster: &'a ClusterName,
    /// The UID of its `kube-system`, as it was registered.
    pub registered: &'a Uid,
    /// The same, as the API answers.
    pub found: &'a Uid,
    /// How many leases of pods are bound.
    pub bound: usize,
    /// The nodes that these name.
    pub named: &'a BTreeSet<NodeName>,
    /// How many pods were listed.
    pub pods: usize,
    /// The nodes, or why not all.
    pub nodes: Result<&'a [Node], String>,
    /// The row of each lease that would be given back, but for those that were adopted.
    pub gives: &'a [Row],
    /// The rows of these. No DEL ends them: a rollout after a restore ends many here, which proves nothing of the list.
    pub adopted: &'a [Row],
}

/// A reason to give nothing back, or not by some rows.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "the fields are the figures of the text")]
pub enum Brake {
    /// Another cluster answers.
    Identity { cluster: ClusterName, registered: Uid, found: Uid },
    /// A list is empty while leases are bound.
    Empty { list: &'static str, bound: usize },
    /// The list of nodes is not complete; without that of the pods there is no pass.
    Incomplete { reason: String },
    /// More pods are absent than is likely.
    Orphans { orphans: usize, bound: usize, limit: Option<usize>, strange: bool },
    /// More nodes are silent than is likely: the network is, or what listens to them.
    Silent { silent: usize, nodes: usize },
}

/// The brakes that a pass pulls.
#[must_use]
pub fn brakes(pass: &Pass<'_>, policy: &Policy) -> Vec<Brake> {
    let mut out = Vec::new();
    if pass.found != pass.registered {
        out.push(Brake::Identity {
            cluster: pass.cluster.clone(),
            registered: pass.registered.clone(),
            found: pass.found.clone(),
        });
    }
    let counts = [("pods", Some(pass.pods)), ("nodes", pass.nodes.as_ref().ok().map(|nodes| nodes.len()))];
    for (list, count) in counts {
        if count == Some(0) && pass.bound > 0 {
            out.push(Brake::Empty { list, bound: pass.bound });
        }
    }
    if let Err(reason) = &pass.nodes {
        out.push(Brake::Incomplete { reason: reason.clone() });
    }
    let (unadopted, adopted, strange) = orphans(pass);
    let orphans = unadopted + adopted;
    let too_many = match policy.max_orphans {
        // Who says a number means it.
        Some(limit) => orphans > limit,
        None => unadopted > MAX_ORPHANS && unadopted * 100 > pass.bound * MAX_ORPHANS_PERCENT,
    };
    if too_many {
        out.push(Brake::Orphans { orphans, bound: pass.bound, limit: policy.max_orphans, strange });
    }
    let nodes = pass.nodes.as_ref().map_or(&[][..], |nodes| nodes);
    // A person who says that a node is off has ended the doubt about it.
    let is_silent = |node: &&Node| matches!(node.ready, Ready::Unknown { .. }) && !node.out_of_service;
    let silent = nodes.iter().filter(is_silent).count();
    if is_most(silent, nodes.len()) {
        out.push(Brake::Silent { silent, nodes: nodes.len() });
    }
    out
}

fn is_most(some: usize, all: usize) -> bool {
    some >= MIN_SILENT && some * 2 > all
}

/// Pods that are absent though their kubelets live. Where a node is gone, its pods are, too; but if most nodes that
/// leases name do not exist, it is the names that are wrong (or the cluster is a copy of the one whose leases these are),
/// and nothing is known of their kubelets: the last that is told. Those that were adopted are counted for themselves.
fn orphans(pass: &Pass<'_>) -> (usize, usize, bool) {
    let exists =
        |name: &NodeName| pass.nodes.as_ref().is_ok_and(|nodes| nodes.iter().any(|n| n.name == *name));
    let missing = pass.named.iter().filter(|name| !exists(name)).count();
    let strange = is_most(missing, pass.named.len());
    let is_orphan = |row: &&Row| match row {
        Row::Missed => true,
        Row::MissedNoNode | Row::Lost | Row::EndedSilent => strange,
        Row::Lives
        | Row::Leaving
        | Row::Overdue
        | Row::Silent
        | Row::Ended
        | Row::MissedSilent
        | Row::Static
        | Row::Held(_)
        | Row::Reserved
        | Row::Container
        | Row::Unreadable
        | Row::Doubt => false,
    };
    let count = |rows: &[Row]| rows.iter().filter(is_orphan).count();
    (count(pass.gives), count(pass.adopted), strange)
}

impl Brake {
    /// For metrics and Events; it does not change.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Identity { .. } => "identity",
            Self::Empty { .. } => "list_empty",
            Self::Incomplete { .. } => "list_incomplete",
            Self::Orphans { .. } => "orphans",
            Self::Silent { .. } => "nodes_silent",
        }
    }

    /// Is nothing that was seen worth a note?
    const fn blinds(&self) -> bool {
        match self {
            Self::Identity { .. } | Self::Empty { .. } | Self::Incomplete { .. } => true,
            Self::Orphans { .. } | Self::Silent { .. } => false,
        }
    }

    /// Does it stop what this row gives back? A list in doubt stops what rests on an absence; a cluster in doubt, all.
    #[must_use]
    pub const fn stops(&self, row: Row) -> bool {
        match self {
            Self::Identity { .. } | Self::Empty { .. } | Self::Incomplete { .. } => true,
            Self::Orphans { strange, .. } => {
                matches!(row, Row::Missed | Row::MissedSilent | Row::MissedNoNode | Row::Held(_))
                    || (*strange && matches!(row, Row::Lost | Row::EndedSilent))
            }
            Self::Silent { .. } => matches!(row, Row::Lost | Row::EndedSilent | Row::MissedSilent),
        }
    }
}

impl fmt::Display for Brake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Identity { cluster, registered, found } => write!(
                f,
                "the API server is not of cluster {cluster}: kube-system has UID {found}, registered is {registered}; mend the kubeconfig or the cluster's name"
            ),
            Self::Empty { list, bound } => write!(
                f,
                "the list of {list} is empty, and {bound} leases are bound; look at what the API server says"
            ),
            Self::Incomplete { reason } => write!(f, "the list of nodes is not complete: {reason}"),
            Self::Orphans { orphans, bound, limit, strange } => {
                let nodes =
                    if *strange { "and most of their nodes do not exist" } else { "though their nodes live" };
                write!(
                    f,
                    "{orphans} of {bound} bound leases would be given back for want of a pod, {nodes}"
                )?;
                match limit {
                    Some(limit) => write!(f, ", and --max-orphans is {limit}")?,
                    None => write!(f, ", more than {MAX_ORPHANS} and {MAX_ORPHANS_PERCENT}%")?,
                }
                write!(f, "; look at reap --dry-run, then run with --max-orphans {orphans}")
            }
            Self::Silent { silent, nodes } => write!(
                f,
                "{silent} of {nodes} nodes are unreachable, more than half: their leases wait; taint those that are surely off with node.kubernetes.io/out-of-service"
            ),
        }
    }
}

/// A verdict that a brake stops keeps. What a list in doubt did not show is not noted as missed either: the first pass
/// after it would be the second to miss it.
#[must_use]
pub fn brake(verdict: Verdict, brakes: &[Brake]) -> Verdict {
    let row = verdict.row();
    let stops = brakes.iter().find(|brake| brake.stops(row));
    let blinded = brakes.iter().any(Brake::blinds);
    let foreign = brakes.iter().any(|brake| matches!(brake, Brake::Identity { .. }));
    match (verdict, stops) {
        (Verdict::Give(_), Some(by)) => {
            let why = Keep::Braked { by: by.label(), text: by.to_string() };
            Verdict::Keep(Kept { row, why, report: true })
        }
        // What is there is not missed, whatever else the list lacks: an old note would take its grace from it.
        (Verdict::Note(kept, note), _) if blinded => {
            if note.missed == Missed::Cleared && !foreign {
                Verdict::Note(kept, Note { missed: note.missed, ..Note::default() })
            } else {
                Verdict::Keep(kept)
            }
        }
        (verdict, _) => verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{lease::Timestamp, reap::Line};

    /// Nodes by their readiness: `T`, `F`, `U`, or `O` for one that is Unknown and out of service.
    fn nodes(states: &str) -> Vec<Node> {
        let node = |(index, state): (usize, char)| Node {
            name: NodeName::new(format!("n{index}")).unwrap(),
            ready: match state {
                'T' => Ready::True,
                'F' => Ready::False,
                _ => Ready::Unknown { since: Timestamp(0) },
            },
            out_of_service: state == 'O',
        };
        states.chars().enumerate().map(node).collect()
    }

    fn named(count: usize) -> BTreeSet<NodeName> {
        (0..count).map(|index| NodeName::new(format!("n{index}")).unwrap()).collect()
    }

    fn rows(row: Row, count: usize) -> Vec<Row> {
        vec![row; count]
    }

    /// A pass that pulls no brake, until something of it is changed.
    #[derive(Debug)]
    struct World {
        found: &'static str,
        bound: usize,
        named: usize,
        pods: usize,
        nodes: Result<Vec<Node>, String>,
        gives: Vec<Row>,
        adopted: Vec<Row>,
    }

    /// `wanted` are the labels, in order.
    #[track_caller]
    fn pulls(change: impl FnOnce(&mut World), limit: Option<usize>, wanted: &[&str]) -> Vec<Brake> {
        let mut world = World {
            found: "a",
            bound: 100,
            named: 3,
            pods: 100,
            nodes: Ok(nodes("TTT")),
            gives: vec![],
            adopted: vec![],
        };
        change(&mut world);
        let (cluster, named) = (ClusterName::new("prod").unwrap(), named(world.named));
        let pass = Pass {
            cluster: &cluster,
            registered: &uid("a"),
            found: &uid(world.found),
            bound: world.bound,
            named: &named,
            pods: world.pods,
            nodes: world.nodes.as_deref().map_err(Clone::clone),
            gives: &world.gives,
            adopted: &world.adopted,
        };
        let found = brakes(&pass, &Policy { max_orphans: limit, ..Policy::default() });
        assert_eq!(found.iter().map(Brake::label).collect::<Vec<_>>(), wanted);
        found
    }

    fn uid(text: &str) -> Uid {
        Uid::new(text).unwrap()
    }

    #[test]
    fn another_cluster_stops_all() {
        pulls(|_| {}, None, &[]);
        let found = pulls(|pass| pass.found = "b", None, &["identity"]);
        assert!(ALL.iter().all(|row| found[0].stops(*row)));
    }

    #[test]
    fn b045_an_empty_or_partial_list_stops_all() {
        let found = pulls(|pass| pass.pods = 0, None, &["list_empty"]);
        assert!(ALL.iter().all(|row| found[0].stops(*row)));
        pulls(|pass| pass.nodes = Ok(vec![]), None, &["list_empty"]);
        pulls(|pass| pass.pods = 1, None, &[]);
        let nothing = |pass: &mut World| (pass.bound, pass.pods, pass.nodes) = (0, 0, Ok(vec![]));
        pulls(nothing, None, &[]);
        let found = pulls(|pass| pass.nodes = Err("403".into()), None, &["list_incomplete"]);
        assert!(ALL.iter().all(|row| found[0].stops(*row)));
    }

    #[track_caller]
    fn orphaned(row: Row, gives: usize, bound: usize, limit: Option<usize>, braked: bool) {
        let gives = rows(row, gives);
        let change = |pass: &mut World| (pass.bound, pass.gives) = (bound, gives);
        pulls(change, limit, if braked { &["orphans"] } else { &[] });
    }

    #[test]
    fn more_orphans_than_a_bad_day_brings() {
        orphaned(Row::Missed, 20, 20, None, false);
        orphaned(Row::Missed, 21, 21, None, true);
        orphaned(Row::Missed, 21, 209, None, true);
        orphaned(Row::Missed, 21, 210, None, false);
        orphaned(Row::Missed, 100, 1000, None, false);
        orphaned(Row::Missed, 101, 1000, None, true);
        // A number of one's own stands alone.
        orphaned(Row::Missed, 100, 100, Some(100), false);
        orphaned(Row::Missed, 101, 10_000, Some(100), true);
        orphaned(Row::Missed, 1, 10_000, Some(0), true);
        orphaned(Row::Missed, 0, 10_000, Some(0), false);
        // Every other row has its own reason.
        for row in ALL.into_iter().filter(|row| *row != Row::Missed) {
            orphaned(row, 100, 100, None, false);
        }
    }

    #[test]
    fn what_was_adopted_counts_against_a_number_of_ones_own() {
        let adopted = |gives: usize, adopted: usize| {
            move |pass: &mut World| {
                (pass.gives, pass.adopted) = (rows(Row::Missed, gives), rows(Row::Missed, adopted));
            }
        };
        pulls(adopted(20, 80), None, &[]);
        pulls(adopted(0, 30), Some(30), &[]);
        pulls(adopted(0, 30), Some(29), &["orphans"]);
        pulls(adopted(1, 30), Some(30), &["orphans"]);
        // What it says to run with does run.
        let found = pulls(adopted(21, 30), None, &["orphans"]);
        assert!(found[0].to_string().ends_with("then run with --max-orphans 51"), "{}", found[0]);
        pulls(adopted(21, 30), Some(51), &[]);
    }

    #[test]
    fn orphans_stop_what_rests_on_an_absence() {
        let gives = rows(Row::Missed, 21);
        let found = pulls(|pass| pass.gives = gives, None, &["orphans"]);
        let stopped: Vec<Row> = ALL.into_iter().filter(|row| found[0].stops(*row)).collect();
        assert_eq!(stopped, [Row::Missed, Row::MissedSilent, Row::MissedNoNode, Row::Held(Line::Scaled)]);
    }

    #[track_caller]
    fn gone(row: Row, gives: usize, states: &str, named: usize, wanted: &[&str]) {
        let (nodes, gives) = (nodes(states), rows(row, gives));
        pulls(|pass| (pass.nodes, pass.named, pass.gives) = (Ok(nodes), named, gives), None, wanted);
    }

    #[test]
    fn the_crash_of_a_node_needs_no_person() {
        // One of three is silent, its pods deleting, ended or absent.
        for row in [Row::Lost, Row::EndedSilent, Row::MissedSilent] {
            gone(row, 33, "TTU", 3, &[]);
        }
        // Or its object was deleted, and its pods with it.
        gone(Row::MissedNoNode, 33, "TT", 3, &[]);
    }

    #[test]
    fn nodes_that_mostly_do_not_exist_are_wrong_names() {
        gone(Row::MissedNoNode, 21, "TT", 5, &["orphans"]);
        gone(Row::MissedNoNode, 20, "TT", 5, &[]);
        gone(Row::MissedNoNode, 21, "TTT", 6, &[]);
        gone(Row::MissedNoNode, 21, "T", 3, &[]);
        // A copy of the cluster, on nodes of its own: its pods are deleted or ended there, not here.
        for row in [Row::Lost, Row::EndedSilent] {
            gone(row, 21, "TT", 5, &["orphans"]);
            gone(row, 21, "TTT", 6, &[]);
        }
        let strange = Brake::Orphans { orphans: 21, bound: 21, limit: None, strange: true };
        assert!(strange.stops(Row::Lost) && strange.stops(Row::EndedSilent) && !strange.stops(Row::Ended));
    }

    #[track_caller]
    fn silent(states: &str, braked: bool) {
        let nodes = nodes(states);
        pulls(|pass| pass.nodes = Ok(nodes), None, if braked { &["nodes_silent"] } else { &[] });
    }

    #[test]
    fn most_nodes_silent_is_the_network() {
        silent("TTU", false);
        silent("TUU", false);
        silent("UU", false);
        silent("UUU", true);
        silent("TTUUU", true);
        silent("TTTUUU", false);
        silent("FFUUU", true);
        silent("TTUUO", false);
        let found = pulls(|pass| pass.nodes = Ok(nodes("UUU")), None, &["nodes_silent"]);
        let stopped: Vec<Row> = ALL.into_iter().filter(|row| found[0].stops(*row)).collect();
        assert_eq!(stopped, [Row::Lost, Row::EndedSilent, Row::MissedSilent]);
    }

    #[test]
    fn a_brake_says_what_it_saw_and_what_to_do() {
        let cluster = || ClusterName::new("prod").unwrap();
        let case = |brake: Brake, wanted: &str| assert_eq!(brake.to_string(), wanted);
        case(
            Brake::Identity { cluster: cluster(), registered: uid("a"), found: uid("b") },
            "the API server is not of cluster prod: kube-system has UID b, registered is a; mend the kubeconfig or the cluster's name",
        );
        case(Brake::Incomplete { reason: "403".into() }, "the list of nodes is not complete: 403");
        case(
            Brake::Empty { list: "pods", bound: 7 },
            "the list of pods is empty, and 7 leases are bound; look at what the API server says",
        );
        case(
            Brake::Orphans { orphans: 21, bound: 100, limit: None, strange: false },
            "21 of 100 bound leases would be given back for want of a pod, though their nodes live, more than 20 and 10%; look at reap --dry-run, then run with --max-orphans 21",
        );
        case(
            Brake::Orphans { orphans: 6, bound: 100, limit: Some(5), strange: false },
            "6 of 100 bound leases would be given back for want of a pod, though their nodes live, and --max-orphans is 5; look at reap --dry-run, then run with --max-orphans 6",
        );
        case(
            Brake::Silent { silent: 3, nodes: 5 },
            "3 of 5 nodes are unreachable, more than half: their leases wait; taint those that are surely off with node.kubernetes.io/out-of-service",
        );
    }

    /// Every row that gives, and some that keep.
    const ALL: [Row; 8] = [
        Row::Lives,
        Row::Lost,
        Row::Ended,
        Row::EndedSilent,
        Row::Missed,
        Row::MissedSilent,
        Row::MissedNoNode,
        Row::Held(Line::Scaled),
    ];
}
