//! Which pools a pod may draw from, in which order, and why not from the others. Nothing that a pod, an annotation
//! or a network says widens what the pools allow; it only chooses among them.

use std::fmt;

use super::{
    lease::Holder,
    names::{ClusterName, NetworkName, NodeName, PoolName, WorkloadName},
    pool::{Networks, Pool, Serve, StickyRule},
    workload,
};

/// Who asks, from where, on which network.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Caller {
    /// The cluster of the host file.
    pub cluster: ClusterName,
    /// The node of the host file.
    pub node: NodeName,
    /// The labels of the host file.
    pub labels: Vec<(String, String)>,
    /// The CNI network's name.
    pub network: NetworkName,
    /// The pod, or the container of a caller without one.
    pub holder: Holder,
}

impl Caller {
    /// The entries of the `serves` index that concern this caller: each candidate for its workload, longest first,
    /// then its namespace, then everything.
    #[must_use]
    pub fn serves(&self) -> Vec<Serve> {
        let mut out = Vec::with_capacity(6);
        if let Holder::Pod { namespace, name } = &self.holder {
            out.extend(workload::candidates(name).into_iter().map(|w| Serve::Workload(namespace.clone(), w)));
            out.push(Serve::Namespace(namespace.clone()));
        }
        out.push(Serve::Everything);
        out
    }
}

/// What was asked for, and where.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Asked {
    /// The pools, in order.
    pub pools: Vec<PoolName>,
    /// The source, such as `annotation leasehold.io/pool`.
    pub by: String,
}

/// How closely a pool serves a caller: closer comes first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Closeness {
    /// `namespace/workload`.
    Workload,
    /// `namespace/*`.
    Namespace,
    /// `*/*`.
    Everything,
}

/// The condition that keeps a pool from being used.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Unusable {
    /// It is not for this network.
    Network { network: NetworkName, accepted: Vec<String> },
    /// It is not for this cluster.
    Cluster { cluster: ClusterName, accepted: Vec<String> },
    /// It is not for this node.
    Node { node: NodeName, accepted: Vec<String> },
    /// It does not serve this pod.
    Serves { holder: Holder, accepted: Vec<String> },
    /// There is no such pool.
    Missing,
    /// Its document cannot be used.
    Invalid { reason: String },
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |accepted: &[String]| accepted.join(", ");
        match self {
            Self::Network { network, accepted } => {
                write!(f, "not for network {network} (networks: {})", list(accepted))
            }
            Self::Cluster { cluster, accepted } => {
                write!(f, "not for cluster {cluster} (clusters: {})", list(accepted))
            }
            Self::Node { node, accepted } => write!(f, "not for node {node} (nodes: {})", list(accepted)),
            Self::Serves { holder, accepted } => {
                write!(f, "does not serve {holder} (serves: {})", list(accepted))
            }
            Self::Missing => f.write_str("there is no such pool"),
            Self::Invalid { reason } => f.write_str(reason),
        }
    }
}

/// The workload of a caller: the longest candidate that the index knows. A pod of a longer name that a pool serves
/// is not of the shorter one, whose addresses are somebody else's identity.
#[must_use]
pub fn workload_of(caller: &Caller, index: &[(Serve, PoolName)]) -> Option<WorkloadName> {
    caller.serves().into_iter().find_map(|serve| match serve {
        Serve::Workload(..) if index.iter().any(|(known, _)| *known == serve) => match serve {
            Serve::Workload(_, workload) => Some(workload),
            Serve::Namespace(_) | Serve::Everything => None,
        },
        Serve::Workload(..) | Serve::Namespace(_) | Serve::Everything => None,
    })
}

/// May this caller draw from the pool, and how close is it?
///
/// # Errors
/// The first condition that fails: network, cluster, serves, node.
pub fn may_use(pool: &Pool, caller: &Caller, workload: Option<&WorkloadName>) -> Result<Closeness, Unusable> {
    if let Networks::Named(names) = pool.networks()
        && !names.contains(&caller.network)
    {
        let accepted = names.iter().map(ToString::to_string).collect();
        return Err(Unusable::Network { network: caller.network.clone(), accepted });
    }
    if !pool.clusters().is_empty() && !pool.clusters().contains(&caller.cluster) {
        let accepted = pool.clusters().iter().map(ToString::to_string).collect();
        return Err(Unusable::Cluster { cluster: caller.cluster.clone(), accepted });
    }
    let closeness = pool.serves().iter().filter_map(|serve| closeness(serve, caller, workload)).min();
    let Some(closeness) = closeness else {
        let accepted = pool.serves().iter().map(ToString::to_string).collect();
        return Err(Unusable::Serves { holder: caller.holder.clone(), accepted });
    };
    if !pool.nodes().is_empty() && !pool.nodes().iter().any(|rule| rule.holds(&caller.node, &caller.labels)) {
        let accepted = pool.nodes().iter().map(ToString::to_string).collect();
        return Err(Unusable::Node { node: caller.node.clone(), accepted });
    }
    Ok(closeness)
}

fn closeness(serve: &Serve, caller: &Caller, workload: Option<&WorkloadName>) -> Option<Closeness> {
    match (serve, &caller.holder) {
        (Serve::Everything, _) => Some(Closeness::Everything),
        (Serve::Namespace(served), Holder::Pod { namespace, .. }) if served == namespace => {
            Some(Closeness::Namespace)
        }
        (Serve::Workload(served, name), Holder::Pod { namespace, .. })
            if served == namespace && Some(name) == workload =>
        {
            Some(Closeness::Workload)
        }
        (Serve::Namespace(_) | Serve::Workload(..), _) => None,
    }
}

/// A pool as it was looked up.
pub type Looked = Result<Pool, Unusable>;

/// The pools that the caller may draw from, in the order in which they are tried; and why not from the others.
///
/// # Errors
/// A pool was asked for that may not be used: never silently another one.
pub fn order(
    looked: &[(PoolName, Looked)],
    caller: &Caller,
    workload: Option<&WorkloadName>,
    asked: Option<&Asked>,
) -> Result<Vec<PoolName>, (PoolName, Unusable)> {
    let find = |name: &PoolName| match looked.iter().find(|(known, _)| known == name) {
        Some((_, Ok(pool))) => may_use(pool, caller, workload).map(|closeness| (closeness, pool.priority())),
        Some((_, Err(reason))) => Err(reason.clone()),
        None => Err(Unusable::Missing),
    };
    if let Some(asked) = asked {
        for name in &asked.pools {
            find(name).map_err(|reason| (name.clone(), reason))?;
        }
        return Ok(asked.pools.clone());
    }
    let mut usable: Vec<(Closeness, u32, &PoolName)> = looked
        .iter()
        .filter_map(|(name, _)| find(name).ok().map(|(closeness, priority)| (closeness, priority, name)))
        .collect();
    usable.sort_unstable();
    Ok(usable.into_iter().map(|(_, _, name)| name.clone()).collect())
}

/// Is the lease of this holder from this pool sticky? `None` for inline ranges, which serve nobody by name.
///
/// `wished` is what annotation or args say; `controller` is what the reaper saw, such as `StatefulSet.apps/db`.
#[must_use]
pub fn is_sticky(
    pool: Option<&Pool>,
    holder: &Holder,
    wished: Option<bool>,
    controller: Option<&str>,
    sticky_kinds: &[String],
) -> bool {
    let Holder::Pod { namespace, name } = holder else { return false };
    if workload::has_random_suffix(name) {
        return false;
    }
    match pool.map(Pool::sticky) {
        Some(StickyRule::Always) => return true,
        Some(StickyRule::Never) => return false,
        Some(StickyRule::Auto) | None => {}
    }
    if let Some(wished) = wished {
        return wished;
    }
    if let Some((kind, _)) = controller.and_then(|controller| controller.split_once('/')) {
        return sticky_kinds.iter().any(|sticky| sticky == kind);
    }
    let Some((base, _)) = workload::ordinal(name) else { return false };
    pool.is_some_and(|pool| {
        pool.serves().iter().any(|serve| match serve {
            Serve::Workload(served, workload) => served == namespace && workload.as_str() == base,
            Serve::Namespace(_) | Serve::Everything => false,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        names::{Namespace, PodName},
        pool::{Draft, RangeDraft},
    };

    fn pool(name: &str, change: impl Fn(&mut Draft)) -> (PoolName, Looked) {
        let mut draft = Draft {
            name: name.into(),
            networks: vec!["lan".into()],
            serves: vec!["*/*".into()],
            ranges: vec![RangeDraft { subnet: "10.0.0.0/24".into(), ..RangeDraft::default() }],
            ..Draft::default()
        };
        change(&mut draft);
        (PoolName::new(name).unwrap(), Ok(Pool::from_draft(&draft).unwrap()))
    }

    fn caller(namespace: &str, pod: &str) -> Caller {
        Caller {
            cluster: ClusterName::new("prod").unwrap(),
            node: NodeName::new("n1").unwrap(),
            labels: vec![("rack".into(), "a".into())],
            network: NetworkName::new("lan").unwrap(),
            holder: Holder::Pod {
                namespace: Namespace::new(namespace).unwrap(),
                name: PodName::new(pod).unwrap(),
            },
        }
    }

    fn index(pools: &[(PoolName, Looked)]) -> Vec<(Serve, PoolName)> {
        pools
            .iter()
            .filter_map(|(name, pool)| pool.as_ref().ok().map(|pool| (name, pool)))
            .flat_map(|(name, pool)| pool.serves().iter().map(|serve| (serve.clone(), name.clone())))
            .collect()
    }

    fn asked(names: &[&str]) -> Asked {
        Asked { pools: names.iter().map(|n| PoolName::new(*n).unwrap()).collect(), by: "annotation".into() }
    }

    #[track_caller]
    fn ordered(
        pools: &[(PoolName, Looked)],
        caller: &Caller,
        asked: Option<&Asked>,
        wanted: Result<&[&str], &str>,
    ) {
        let workload = workload_of(caller, &index(pools));
        let found = order(pools, caller, workload.as_ref(), asked);
        match (found, wanted) {
            (Ok(found), Ok(wanted)) => {
                assert_eq!(found.iter().map(PoolName::as_str).collect::<Vec<_>>(), wanted);
            }
            (Err((name, reason)), Err(wanted)) => assert_eq!(format!("{name}: {reason}"), wanted),
            (found, wanted) => panic!("{found:?} is not {wanted:?}"),
        }
    }

    #[test]
    fn closer_first_then_priority_then_name() {
        let pools = [
            pool("all", |_| {}),
            pool("ns", |d| d.serves = vec!["shop/*".into()]),
            pool("b", |d| d.serves = vec!["shop/web".into()]),
            pool("a", |d| d.serves = vec!["shop/web".into()]),
            pool("first", |d| {
                d.serves = vec!["shop/web".into()];
                d.priority = Some(1);
            }),
            pool("other", |d| d.serves = vec!["shop/db".into()]),
        ];
        ordered(&pools, &caller("shop", "web-7d9c4f6b5d-x7k2p"), None, Ok(&["first", "a", "b", "ns", "all"]));
        ordered(&pools, &caller("till", "web-7d9c4f6b5d-x7k2p"), None, Ok(&["all"]));
    }

    #[test]
    fn a_pod_of_a_longer_workload_is_not_of_the_shorter_one() {
        let pools = [
            pool("web-1", |d| d.serves = vec!["shop/web-1".into()]),
            pool("web", |d| d.serves = vec!["shop/web".into()]),
        ];
        ordered(&pools, &caller("shop", "web-1-x7k2p"), None, Ok(&["web-1"]));
        ordered(
            &pools,
            &caller("shop", "web-1-x7k2p"),
            Some(&asked(&["web"])),
            Err("web: does not serve shop/web-1-x7k2p (serves: shop/web)"),
        );
    }

    #[test]
    fn a_pool_that_was_asked_for_and_may_not_be_used_says_which_condition_failed() {
        let pools = [
            pool("net", |d| d.networks = vec!["lan2".into()]),
            pool("cluster", |d| d.clusters = vec!["prod-b".into()]),
            pool("node", |d| d.nodes = vec!["m*".into(), "rack=b".into()]),
            pool("db", |d| d.serves = vec!["shop/db".into()]),
            pool("fine", |_| {}),
        ];
        let web = caller("shop", "web-0");
        ordered(&pools, &web, Some(&asked(&["net"])), Err("net: not for network lan (networks: lan2)"));
        ordered(
            &pools,
            &web,
            Some(&asked(&["cluster"])),
            Err("cluster: not for cluster prod (clusters: prod-b)"),
        );
        ordered(
            &pools,
            &web,
            Some(&asked(&["fine", "node"])),
            Err("node: not for node n1 (nodes: m*, rack=b)"),
        );
        ordered(&pools, &web, Some(&asked(&["db"])), Err("db: does not serve shop/web-0 (serves: shop/db)"));
        ordered(&pools, &web, Some(&asked(&["x"])), Err("x: there is no such pool"));
        ordered(&pools, &web, None, Ok(&["fine"]));
    }

    #[track_caller]
    fn sticky(pod: &str, rule: &str, serves: &str, wished: Option<bool>, seen: Option<&str>, wanted: bool) {
        let (_, pool) = pool("p", |d| {
            d.sticky = Some(rule.into());
            d.serves = vec![serves.into()];
        });
        let kinds = ["StatefulSet.apps".to_owned()];
        assert_eq!(
            is_sticky(pool.ok().as_ref(), &caller("shop", pod).holder, wished, seen, &kinds),
            wanted,
            "{pod} {rule}"
        );
    }

    #[test]
    fn sticky_is_what_the_first_that_speaks_says() {
        sticky("db-0", "auto", "shop/db", None, None, true);
        sticky("db-0", "auto", "shop/*", None, None, false);
        sticky("db-0", "never", "shop/db", Some(true), None, false);
        sticky("job-1", "auto", "*/*", None, None, false);
        sticky("job-1", "auto", "*/*", Some(true), None, true);
        sticky("db-0", "auto", "shop/db", Some(false), None, false);
        sticky("db-0", "auto", "*/*", None, Some("StatefulSet.apps/db"), true);
        sticky("db-0", "auto", "shop/db", None, Some("Job.batch/db"), false);
        sticky("web-7d9c4f6b5d-x7k2p", "always", "shop/web", Some(true), None, false);
        sticky("etcd", "always", "shop/etcd", None, None, true);
    }
}
