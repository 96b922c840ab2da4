//! What stops the giving-back of a pass: signs that the answers are false, though each of them was well-formed. None of
//! them needs a person for the crash of a node.

use std::{collections::BTreeSet, fmt};

use super::{Keep, Kept, MAX_ORPHANS, MAX_ORPHANS_PERCENT, Policy, Row, Verdict};
use crate::domain::{
    kubernetes::{Node, Ready},
    names::{ClusterName, NodeName, Uid},
};

/// Fewer silent nodes than this are nodes that died, not a network that did.
const MIN_SILENT: usize = 3;

/// Is the cluster that answers the one whose leases these are?
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Identity {
    /// It is.
    Same,
    /// Its `kube-system` has another UID.
    Differs {
        /// As it was registered.
        registered: Uid,
        /// As it answers.
        found: Uid,
    },
    /// Nobody registered it.
    Unregistered,
    /// It was not answered.
    Unknown(String),
}

/// What a pass found, of one cluster.
#[derive(Clone, Debug)]
pub struct Pass<'a> {
    /// The cluster.
    pub cluster: &'a ClusterName,
    /// Who answers.
    pub identity: Identity,
    /// How many leases of pods are bound.
    pub bound: usize,
    /// The nodes that these name.
    pub named: &'a BTreeSet<NodeName>,
    /// How many pods were listed, or why not all.
    pub pods: Result<usize, String>,
    /// The nodes, or why not all.
    pub nodes: Result<&'a [Node], String>,
    /// The row of each lease that would be given back.
    pub gives: &'a [Row],
}

/// A reason to give nothing back, or not by some rows.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "the fields are the figures of the text")]
pub enum Brake {
    /// Another cluster answers, or perhaps another.
    Identity { cluster: ClusterName, identity: Identity },
    /// A list is empty while leases are bound.
    Empty { list: &'static str, bound: usize },
    /// A list is not complete.
    Incomplete { list: &'static str, reason: String },
    /// More pods are absent than is likely.
    Orphans { orphans: usize, bound: usize, limit: Option<usize> },
    /// More nodes are silent than is likely: the network is, or what listens to them.
    Silent { silent: usize, nodes: usize },
}

/// The brakes that a pass pulls.
#[must_use]
pub fn brakes(pass: &Pass<'_>, policy: &Policy) -> Vec<Brake> {
    let mut out = Vec::new();
    if pass.identity != Identity::Same {
        out.push(Brake::Identity { cluster: pass.cluster.clone(), identity: pass.identity.clone() });
    }
    let counts = [("pods", pass.pods.clone()), ("nodes", pass.nodes.clone().map(<[Node]>::len))];
    for (list, count) in counts {
        match count {
            Ok(0) if pass.bound > 0 => out.push(Brake::Empty { list, bound: pass.bound }),
            Ok(_) => {}
            Err(reason) => out.push(Brake::Incomplete { list, reason }),
        }
    }
    let orphans = orphans(pass);
    let too_many = match policy.max_orphans {
        Some(limit) => orphans > limit,
        None => orphans > MAX_ORPHANS && orphans * 100 > pass.bound * MAX_ORPHANS_PERCENT,
    };
    if too_many {
        out.push(Brake::Orphans { orphans, bound: pass.bound, limit: policy.max_orphans });
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
/// leases name do not exist, it is the names that are wrong, and nothing is known of their kubelets.
fn orphans(pass: &Pass<'_>) -> usize {
    let exists =
        |name: &NodeName| pass.nodes.as_ref().is_ok_and(|nodes| nodes.iter().any(|n| n.name == *name));
    let missing = pass.named.iter().filter(|name| !exists(name)).count();
    let names_are_wrong = is_most(missing, pass.named.len());
    let is_orphan = |row: &&Row| **row == Row::Missed || (**row == Row::MissedNoNode && names_are_wrong);
    pass.gives.iter().filter(is_orphan).count()
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

    /// Does it stop what this row gives back? A list in doubt stops what rests on an absence; a cluster in doubt, all.
    #[must_use]
    pub const fn stops(&self, row: Row) -> bool {
        match self {
            Self::Identity { .. } | Self::Empty { .. } | Self::Incomplete { .. } => true,
            Self::Orphans { .. } => {
                matches!(row, Row::Missed | Row::MissedSilent | Row::MissedNoNode | Row::Held(_))
            }
            Self::Silent { .. } => matches!(row, Row::Lost | Row::EndedSilent | Row::MissedSilent),
        }
    }
}

impl fmt::Display for Brake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Identity { cluster, identity } => match identity {
                Identity::Same => write!(f, "cluster {cluster} is the registered one"),
                Identity::Differs { registered, found } => write!(
                    f,
                    "the API server is not of cluster {cluster}: kube-system has UID {found}, registered is {registered}; mend the kubeconfig or the cluster's name"
                ),
                Identity::Unregistered => {
                    write!(f, "cluster {cluster} is not registered; run leasehold cluster add {cluster}")
                }
                Identity::Unknown(why) => {
                    write!(f, "nobody can tell whether the API server is of cluster {cluster}: {why}")
                }
            },
            Self::Empty { list, bound } => write!(
                f,
                "the list of {list} is empty, and {bound} leases are bound; look at what the API server says"
            ),
            Self::Incomplete { list, reason } => write!(f, "the list of {list} is not complete: {reason}"),
            Self::Orphans { orphans, bound, limit } => {
                write!(f, "{orphans} of {bound} bound leases have no pod, though their nodes live")?;
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

/// A verdict that a brake stops keeps.
#[must_use]
pub fn brake(verdict: Verdict, brakes: &[Brake]) -> Verdict {
    let row = verdict.row();
    match (verdict, brakes.iter().find(|brake| brake.stops(row))) {
        (Verdict::Give(_), Some(by)) => {
            let why = Keep::Braked { by: by.label(), text: by.to_string() };
            Verdict::Keep(Kept { row, why, report: true })
        }
        (verdict, _) => verdict,
    }
}
