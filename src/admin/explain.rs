//! Which pool a pod gets an address from, and why: the same selection as ADD's, told.

use std::collections::BTreeSet;

use super::{Error, Scope, clusters, leases, leases::Row, pools, pools::Counts, read::read_spans};
use crate::{
    domain::{
        lease::{Holder, Lease, State, Timestamp},
        names::{ClusterName, NetworkName, NodeName, PoolName, WorkloadName},
        nearest::nearest,
        pool::{Networks, Pool, Serve},
        select::{self, Caller, Unusable},
    },
    store::{Read, Revision, Store, keys, record},
};

/// Whom it is about.
#[derive(Clone, Debug)]
pub struct Question {
    /// The pod.
    pub holder: Holder,
    /// The CNI network; `None`: that of its lease, or the only one that pools name.
    pub network: Option<NetworkName>,
    /// The node, and its labels if they are known; `None`: that of its lease.
    pub node: Option<(NodeName, Vec<(String, String)>)>,
}

/// A pool that was looked at.
#[derive(Clone, Debug)]
pub struct Looked {
    /// Its name.
    pub name: PoolName,
    /// The entry of its `serves` that is about the pod.
    pub serves: String,
    /// What came of it.
    pub verdict: String,
    /// The pod may draw from it.
    pub usable: bool,
    /// What it has.
    pub counts: Counts,
}

/// The answer.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The revision of the answer.
    pub revision: Revision,
    /// The node that it is about, if one is known.
    pub node: Option<NodeName>,
    /// The network that it is about.
    pub network: NetworkName,
    /// The workload that counts.
    pub workload: Option<String>,
    /// All names that were looked for.
    pub looked_for: Vec<String>,
    /// The pools, in the order in which they are tried.
    pub pools: Vec<Looked>,
    /// The pod's lease.
    pub lease: Option<Lease>,
    /// What the pod gets.
    pub answer: String,
    /// It gets an address.
    pub served: bool,
    /// Who has the addresses of the full pool and may not need them.
    pub taken: Vec<Row>,
    /// How many of them running pods have.
    pub running: usize,
    /// What to do.
    pub todo: Vec<String>,
}

/// Where nothing says on which node the pod runs: a name that no pattern is about.
const NO_NODE: &str = "some-node";
/// More would not be read.
const MOST_TAKEN: usize = 16;

/// Explains.
///
/// # Errors
/// [`Error::Wrong`] if nothing says which network is meant.
pub async fn explain<S: Store>(
    store: &S,
    scope: &Scope,
    question: &Question,
    now: Timestamp,
) -> Result<Explanation, Error> {
    let cluster = leases::cluster_of(store, scope).await?;
    let (revision, found) = read_spans(store, &[keys::serves(), keys::leases_of(&cluster)]).await?;
    let index: Vec<(Serve, PoolName)> = found[0].iter().filter_map(|e| keys::parse_serve(&e.key)).collect();
    let rows = pools::list(store, &Scope::default(), now).await?.1;
    let of_pod: Vec<Lease> = found[1]
        .iter()
        .filter(|entry| keys::parse_lease(&entry.key).is_some_and(|id| id.holder == question.holder))
        .filter_map(|entry| record::decode_lease(entry).ok().map(|stored| stored.value))
        .collect();
    let pools: Vec<&Pool> = rows.iter().filter_map(|row| row.pool.as_ref()).collect();
    let network = network_of(question, &of_pod, &pools)?;
    let lease = of_pod.into_iter().find(|lease| lease.id.network == network);
    let last = lease.as_ref().and_then(|lease| lease.bound().map(|stamp| (stamp.node.clone(), Vec::new())));
    let node = question.node.clone().or(last);
    let (name, labels) = match &node {
        Some(node) => node.clone(),
        None => (NodeName::new(NO_NODE).map_err(|e| Error::wrong(e.to_string(), ""))?, Vec::new()),
    };
    let caller =
        Caller { cluster, node: name, labels, network: network.clone(), holder: question.holder.clone() };
    let workload = select::workload_of(&caller, &index);
    let mut looked: Vec<(select::Closeness, u32, Looked)> = Vec::new();
    let mut other_network = Vec::new();
    for row in &rows {
        let Some(pool) = &row.pool else { continue };
        let Some((closeness, serves)) = serves_it(pool, &caller, workload.as_ref()) else { continue };
        let verdict = select::may_use(pool, &caller, workload.as_ref());
        let usable = match &verdict {
            Ok(_) => true,
            Err(Unusable::Node { .. }) => node.is_none(),
            Err(Unusable::Network { .. }) => {
                other_network.push(row.name.to_string());
                false
            }
            Err(
                Unusable::Cluster { .. }
                | Unusable::Serves { .. }
                | Unusable::Missing
                | Unusable::Invalid { .. },
            ) => false,
        };
        let verdict = match verdict {
            Err(reason) if !usable => format!("not tried: {reason}"),
            Ok(_) | Err(_) => {
                let rules: Vec<String> = pool.nodes().iter().map(ToString::to_string).collect();
                let only = if node.is_none() && !rules.is_empty() {
                    format!(", only on nodes {}", rules.join(", "))
                } else {
                    String::new()
                };
                format!("{} of {} taken{only}", row.counts.taken, row.counts.size)
            }
        };
        let counts = row.counts;
        looked.push((
            closeness,
            pool.priority(),
            Looked { name: row.name.clone(), serves, verdict, usable, counts },
        ));
    }
    looked.sort_by(|a, b| (!a.2.usable, a.0, a.1, &a.2.name).cmp(&(!b.2.usable, b.0, b.1, &b.2.name)));
    let looked: Vec<Looked> = looked.into_iter().map(|(_, _, looked)| looked).collect();
    let mut out = Explanation {
        revision,
        node: node.map(|(name, _)| name),
        network,
        workload: workload.map(|w| w.to_string()),
        looked_for: caller.serves().iter().map(ToString::to_string).collect(),
        pools: looked,
        lease,
        answer: String::new(),
        served: false,
        taken: Vec::new(),
        running: 0,
        todo: Vec::new(),
    };
    answer(store, &caller, &rows, &other_network, now, &mut out).await?;
    Ok(out)
}

/// The closest entry of a pool's `serves` that is about this caller.
fn serves_it(
    pool: &Pool,
    caller: &Caller,
    workload: Option<&crate::domain::names::WorkloadName>,
) -> Option<(select::Closeness, String)> {
    caller.serves().into_iter().filter(|serve| pool.serves().contains(serve)).find_map(|serve| {
        let closeness = match &serve {
            Serve::Workload(_, name) => (Some(name) == workload).then_some(select::Closeness::Workload),
            Serve::Namespace(_) => Some(select::Closeness::Namespace),
            Serve::Everything => Some(select::Closeness::Everything),
        };
        closeness.map(|closeness| (closeness, serve.to_string()))
    })
}

fn network_of(question: &Question, leases: &[Lease], pools: &[&Pool]) -> Result<NetworkName, Error> {
    if let Some(network) = &question.network {
        return Ok(network.clone());
    }
    let of_leases: BTreeSet<&NetworkName> = leases.iter().map(|lease| &lease.id.network).collect();
    let of_pools: BTreeSet<&NetworkName> = pools
        .iter()
        .flat_map(|pool| match pool.networks() {
            Networks::Named(names) => names.as_slice(),
            Networks::Every => &[],
        })
        .collect();
    let known = if of_leases.is_empty() { of_pools } else { of_leases };
    match (known.first(), known.len()) {
        (Some(only), 1) => Ok((*only).clone()),
        (_, 0) => Err(Error::wrong("no pool names a network", "say which: --network NAME")),
        _ => {
            let names: Vec<&str> = known.iter().map(|name| name.as_str()).collect();
            Err(Error::wrong(
                format!("several networks are known: {}", names.join(", ")),
                "say which: --network NAME",
            ))
        }
    }
}

async fn answer<S: Store>(
    store: &S,
    caller: &Caller,
    rows: &[pools::PoolRow],
    other_network: &[String],
    now: Timestamp,
    out: &mut Explanation,
) -> Result<(), Error> {
    let snapshot = store.read(&[Read::Get(keys::cluster(&caller.cluster))], None).await?;
    if snapshot.entry(0).is_none() {
        out.answer = format!("none: cluster {} is not registered (error 7 to the pod)", caller.cluster);
        let known = clusters::names(store).await?;
        let near = nearest(caller.cluster.as_str(), known.iter().map(ClusterName::as_str));
        out.todo.extend(near.map(|near| format!("if {near} is meant, say so: --cluster {near}")));
        out.todo.push(format!("leasehold cluster add {} --uid UID", caller.cluster));
        return Ok(());
    }
    let frozen = clusters::frozen(store).await?;
    if let Some(lease) = &out.lease {
        let own: Vec<String> = lease.addresses.iter().map(|a| a.address.to_string()).collect();
        let own = own.join(", ");
        let fits = lease.addresses.iter().all(|leased| {
            leased.pool.as_ref().is_none_or(|name| {
                out.pools.iter().any(|pool| pool.name == *name && pool.usable)
                    && rows.iter().any(|row| {
                        row.name == *name
                            && row.pool.as_ref().is_some_and(|pool| pool.range_of(leased.address).is_some())
                    })
            })
        });
        if fits {
            let state = match (lease.state(), lease.bound()) {
                (State::Bound, Some(stamp)) => format!("bound on node {}", stamp.node),
                (state, _) => state.as_str().to_owned(),
            };
            out.answer = format!("{own}: its own, {state}");
            out.served = true;
            return Ok(());
        }
        if lease.reserved {
            out.answer =
                format!("none: {own} is reserved for it and does not fit any more (error 11 to the pod)");
            out.todo.push("leasehold lease release, or lease move, or mend the pool".into());
            return Ok(());
        }
        let workload = out.workload.as_deref().and_then(|text| WorkloadName::new(text).ok());
        let kept = lease.addresses.iter().find_map(|leased| {
            let name = leased.pool.as_ref().filter(|_| lease.sticky && out.node.is_some())?;
            let pool = rows.iter().find(|row| row.name == *name)?.pool.as_ref()?;
            pool.range_of(leased.address)?;
            match select::may_use(pool, caller, workload.as_ref()) {
                Err(reason @ Unusable::Node { .. }) => Some((name.clone(), reason)),
                Ok(_) | Err(_) => None,
            }
        });
        if let Some((name, reason)) = kept {
            out.answer =
                format!("none: pool {name} keeps {own} for it, but is {reason} (error 11 to the pod)");
            out.todo.push("pin it to the pool's nodes with nodeAffinity, or: leasehold lease release".into());
            return Ok(());
        }
        out.todo.push(format!("its lease of {own} does not fit any more: the next start ends it"));
    }
    if let Some(frozen) = frozen {
        out.answer = format!("none: the store is frozen: {} (error 11 to the pod)", frozen.why);
        out.todo
            .push("leasehold thaw, once the running pods have their leases back (leasehold adopt)".into());
        return Ok(());
    }
    let usable: Vec<&Looked> = out.pools.iter().filter(|pool| pool.usable).collect();
    if let Some(pool) = usable.iter().find(|pool| pool.counts.free > 0 || pool.counts.cooling > 0) {
        out.answer = if pool.counts.free > 0 {
            format!("an address of pool {} ({} free)", pool.name, pool.counts.free)
        } else {
            format!(
                "an address of pool {}, when the first of {} is past its cool-down",
                pool.name, pool.counts.cooling
            )
        };
        out.served = true;
        return Ok(());
    }
    if let Some(first) = usable.first() {
        out.answer = format!("none: pool {} is full (error 11 to the pod)", first.name);
        let name = first.name.clone();
        who_has_it(store, &name, now, out).await?;
        out.todo.push(format!("widen its ranges: leasehold pool show {name} -o yaml, then pool apply"));
        return Ok(());
    }
    out.answer = format!("none: no pool serves it on network {} (error 7 to the pod)", out.network);
    if !other_network.is_empty() {
        out.todo.push(format!("pools that serve it are for other networks: {}", other_network.join(", ")));
    }
    let serves = match &caller.holder {
        Holder::Pod { namespace, .. } => format!("'{namespace}/*'"),
        Holder::Container(_) => "'*/*'".into(),
    };
    out.todo.push(format!(
        "leasehold pool create NAME --network {} --subnet CIDR --serves {serves}",
        out.network
    ));
    Ok(())
}

async fn who_has_it<S: Store>(
    store: &S,
    name: &PoolName,
    now: Timestamp,
    out: &mut Explanation,
) -> Result<(), Error> {
    let filter = leases::Filter { pool: Some(name.clone()), ..leases::Filter::default() };
    let (_, rows) = leases::list(store, &Scope::default(), &filter, now).await?;
    // One a lease, whatever families it has.
    let running =
        rows.iter().filter(|row| quiet(row)).filter_map(|row| row.lease.as_ref()).map(|lease| &lease.id);
    out.running = running.collect::<std::collections::HashSet<_>>().len();
    out.taken = rows.into_iter().filter(|row| !quiet(row)).take(MOST_TAKEN).collect();
    let first = out.taken.first().and_then(|row| {
        let held = row.state == leases::RowState::Held;
        held.then(|| row.holder().map(ToString::to_string)).flatten()
    });
    if let Some(holder) = first {
        out.todo.push(format!("if it does not come back: leasehold lease release {holder}"));
    }
    Ok(())
}

fn quiet(row: &Row) -> bool {
    row.state == leases::RowState::Bound && row.why.is_empty()
}
