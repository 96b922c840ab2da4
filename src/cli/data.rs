//! What lists and records are in JSON and in tables. The fields of the JSON are stable: new ones may come, none goes
//! or changes its meaning.
//!
//! Lease (`lease list`, `lease show`), one item an address:
//!
//! | field | meaning |
//! |---|---|
//! | `address`, `family`, `domain` | the address, `4` or `6`, and the space in which it is unique |
//! | `state` | `bound`, `held`, `reserved`, `invalid`, `released`, `declined` |
//! | `cluster`, `namespace`, `pod`, `container`, `network`, `ifname` | whose it is (or was, if released) |
//! | `pool`, `outside` | its pool; true if the pool does not give it out now |
//! | `node`, `uid`, `bootId` | where it is bound; null if it is not |
//! | `acquired` | when the lease was made |
//! | `since` | since when it is in its state |
//! | `sticky`, `reserved`, `unconfirmed`, `doubtful` | marks |
//! | `controller`, `missedAt`, `doubtAt` | what the reaper saw |
//! | `why` | what the table's last column says |
//! | `key` | of a record that cannot be read: where it stands |
//!
//! Pool (`pool list`): `name`, `networks`, `serves`, `domain`, `priority`, `counts` (`size`, `bound`, `held`,
//! `cooling`, `reserved`, `declined`, `free`, `taken`, `doubt`, `outside`: of the family with the least free, since a
//! pod needs an address of each), `families` (the same of each), `usedPercent`, `unreadable`. Counts above
//! 2^64 are texts, so that no reader rounds them. `pool show -o json|yaml` is the document.

use serde_json::{Map, Value, json};

use super::render::{Column, count, text, wide};
use crate::{
    admin::{
        clusters::ClusterRow,
        leases::{Row, age},
        pools::{Counts, PoolRow},
    },
    domain::{
        addr::Family,
        lease::{Holder, Timestamp},
        pool::{Networks, Pool},
        reap::REAPER_SILENT_AFTER,
    },
    store::record::format_time,
};

/// Columns of `lease list`.
pub(crate) const LEASES: &[Column] = &leases(wide("CLUSTER"));

/// The same where the leases are of several clusters.
pub(crate) const LEASES_OF_SEVERAL: &[Column] = &leases(text("CLUSTER"));

const fn leases(cluster: Column) -> [Column; 14] {
    [
        text("ADDRESS"),
        text("STATE"),
        text("POD"),
        text("IF"),
        text("NETWORK"),
        text("POOL"),
        text("NODE"),
        text("AGE"),
        cluster,
        wide("DOMAIN"),
        wide("CONTAINER"),
        wide("UID"),
        wide("ACQUIRED"),
        text("WHY"),
    ]
}

fn maybe<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// A cell of a text, without the cost of formatting: a list has 65 000 rows.
fn plain(text: Option<&str>) -> String {
    text.unwrap_or_default().to_owned()
}

/// A row of `lease list`; `several`: of several clusters.
pub(crate) fn lease_cells(row: &Row, now: Timestamp, wide: bool, several: bool) -> Vec<String> {
    let lease = row.lease.as_ref();
    let stamp = lease.and_then(|lease| lease.bound());
    let why = match &row.key {
        Some(key) => format!("{key}: {}", row.why),
        None => row.why.clone(),
    };
    let released = row.by.is_some() && row.key.is_none();
    vec![
        maybe(row.place.as_ref().map(|place| place.address)),
        row.state.as_str().into(),
        maybe(row.holder().filter(|_| !released)),
        plain(lease.map(|lease| lease.id.ifname.as_str())),
        plain(lease.map(|lease| lease.id.network.as_str())),
        plain(row.pool.as_ref().map(|pool| pool.as_str())),
        plain(stamp.map(|stamp| stamp.node.as_str())),
        maybe(row.since.map(|since| age(now.since(since)))),
        maybe(row.cluster().filter(|_| wide || several)),
        maybe(row.place.as_ref().filter(|_| wide).map(|place| &place.domain)),
        maybe(stamp.filter(|_| wide).map(|stamp| &stamp.container)),
        maybe(stamp.filter(|_| wide).and_then(|stamp| stamp.uid.as_ref())),
        maybe(lease.filter(|_| wide).map(|lease| format_time(lease.created))),
        why,
    ]
}

/// A lease in JSON.
pub(crate) fn lease_json(row: &Row) -> Value {
    let lease = row.lease.as_ref();
    let stamp = lease.and_then(|lease| lease.bound());
    let (namespace, pod, container) = match row.holder() {
        Some(Holder::Pod { namespace, name }) => (Some(namespace.as_str()), Some(name.as_str()), None),
        Some(Holder::Container(id)) => (None, None, Some(id.as_str())),
        None => (None, None, None),
    };
    let family = row.place.as_ref().map(|place| match Family::of(place.address) {
        Family::V4 => 4,
        Family::V6 => 6,
    });
    json!({
        "address": row.place.as_ref().map(|place| place.address.to_string()),
        "family": family,
        "domain": row.place.as_ref().map(|place| place.domain.as_str()),
        "state": row.state.as_str(),
        "cluster": row.cluster().map(|cluster| cluster.as_str()),
        "namespace": namespace,
        "pod": pod,
        "container": stamp.map(|stamp| stamp.container.as_str()).or(container),
        "network": lease.map(|lease| lease.id.network.as_str()),
        "ifname": lease.map(|lease| lease.id.ifname.as_str()),
        "pool": row.pool.as_ref().map(|pool| pool.as_str()),
        "outside": row.outside,
        "node": stamp.map(|stamp| stamp.node.as_str()),
        "uid": stamp.and_then(|stamp| stamp.uid.as_ref()).map(|uid| uid.as_str()),
        "bootId": stamp.and_then(|stamp| stamp.boot.as_ref()).map(|boot| boot.as_str()),
        "acquired": lease.map(|lease| format_time(lease.created)),
        "since": row.since.map(format_time),
        "sticky": lease.is_some_and(|lease| lease.sticky),
        "reserved": lease.map_or(row.state == crate::admin::leases::RowState::Reserved, |lease| lease.reserved),
        "unconfirmed": row.unconfirmed,
        "doubtful": row.doubtful,
        "controller": lease.and_then(|l| l.seen.as_ref()).and_then(|seen| seen.controller.as_deref()),
        "missedAt": lease.and_then(|l| l.seen.as_ref()).and_then(|seen| seen.missed).map(format_time),
        "doubtAt": lease.and_then(|l| l.seen.as_ref()).and_then(|seen| seen.doubt).map(format_time),
        "why": row.why,
        "key": row.key,
    })
}

/// The name of a lease for `-o name`.
pub(crate) fn lease_name(row: &Row) -> String {
    match (row.holder(), &row.place) {
        (Some(holder), _) => format!("lease/{holder}"),
        (None, Some(place)) => format!("lease/{}", place.address),
        (None, None) => format!("lease/{}", row.key.as_deref().unwrap_or_default()),
    }
}

/// Columns of `pool list`.
pub(crate) const POOLS: &[Column] = &[
    text("NAME"),
    text("NETWORKS"),
    text("SERVES"),
    count("SIZE"),
    count("BOUND"),
    count("HELD"),
    count("COOLING"),
    count("RESERVED"),
    count("DECLINED"),
    count("FREE"),
    count("USED"),
    count("DOUBT"),
    wide("OUTSIDE"),
    wide("DOMAIN"),
    wide("RANGES"),
];

pub(crate) fn networks(pool: &Pool) -> Vec<String> {
    match pool.networks() {
        Networks::Every => vec!["*".into()],
        Networks::Named(names) => names.iter().map(ToString::to_string).collect(),
    }
}

fn serves(pool: &Pool) -> Vec<String> {
    pool.serves().iter().map(ToString::to_string).collect()
}

/// A list in a cell: the first few.
fn few(items: &[String]) -> String {
    const FEW: usize = 3;
    if items.len() <= FEW {
        return items.join(",");
    }
    format!("{},+{}", items[..FEW].join(","), items.len() - FEW)
}

/// A row of `pool list`.
pub(crate) fn pool_cells(row: &PoolRow) -> Vec<String> {
    let Some(pool) = &row.pool else {
        let mut cells = vec![row.name.to_string(), "invalid".into()];
        cells.resize(POOLS.len() - 1, String::new());
        cells.push(row.unreadable.clone().unwrap_or_default());
        return cells;
    };
    let counts = row.counts;
    let ranges: Vec<String> = pool.ranges().iter().map(|range| range.bounds().to_string()).collect();
    vec![
        row.name.to_string(),
        few(&networks(pool)),
        few(&serves(pool)),
        counts.size.to_string(),
        counts.bound.to_string(),
        counts.held.to_string(),
        counts.cooling.to_string(),
        counts.reserved.to_string(),
        counts.declined.to_string(),
        counts.free.to_string(),
        format!("{}%", counts.used()),
        counts.doubt.to_string(),
        counts.outside.to_string(),
        pool.domain().to_string(),
        few(&ranges),
    ]
}

/// A number of any size, exact.
fn number(value: u128) -> Value {
    u64::try_from(value).map_or_else(|_| Value::String(value.to_string()), Value::from)
}

/// A pool in JSON.
pub(crate) fn pool_json(row: &PoolRow) -> Value {
    let pool = row.pool.as_ref();
    let families: Map<String, Value> =
        row.families.iter().map(|(family, counts)| (family.to_string(), counts_json(counts))).collect();
    json!({
        "name": row.name.as_str(),
        "networks": pool.map(networks),
        "serves": pool.map(serves),
        "domain": pool.map(|pool| pool.domain().as_str()),
        "priority": pool.map(Pool::priority),
        "counts": counts_json(&row.counts),
        "families": families,
        "usedPercent": number(row.counts.used()),
        "unreadable": row.unreadable,
    })
}

fn counts_json(counts: &Counts) -> Value {
    json!({
        "size": number(counts.size),
        "bound": number(counts.bound),
        "held": number(counts.held),
        "cooling": number(counts.cooling),
        "reserved": number(counts.reserved),
        "declined": number(counts.declined),
        "free": number(counts.free),
        "taken": number(counts.taken),
        "doubt": number(counts.doubt),
        "outside": number(counts.outside),
    })
}

/// Columns of `cluster list`.
pub(crate) const CLUSTERS: &[Column] = &[text("NAME"), text("UID"), count("LEASES"), text("LAST-REAP")];

/// A row of `cluster list`.
pub(crate) fn cluster_cells(row: &ClusterRow, now: Timestamp) -> Vec<String> {
    let (uid, reap) = match &row.cluster {
        Ok(cluster) => (
            cluster.uid.to_string(),
            cluster.last_reap.map_or_else(|| "never".into(), |at| format!("{} ago", age(now.since(at)))),
        ),
        Err(reason) => ("invalid".into(), reason.clone()),
    };
    vec![row.name.to_string(), uid, row.leases.to_string(), reap]
}

/// What to say of a reaper that has ended no pass for long: what dead pods left does not come back then (B060).
pub(crate) fn reaper_silent(last_reap: Option<Timestamp>, leases: u64, now: Timestamp) -> Option<String> {
    let after = i64::try_from(REAPER_SILENT_AFTER.as_millis()).unwrap_or(i64::MAX);
    match last_reap {
        None if leases > 0 => Some("no pass of the reaper has ever ended".into()),
        Some(at) if now.since(at) >= after => {
            Some(format!("no pass of the reaper has ended for {}", age(now.since(at))))
        }
        None | Some(_) => None,
    }
}

/// A cluster in JSON.
pub(crate) fn cluster_json(row: &ClusterRow) -> Value {
    let cluster = row.cluster.as_ref().ok();
    json!({
        "name": row.name.as_str(),
        "uid": cluster.map(|cluster| cluster.uid.as_str()),
        "leases": row.leases,
        "lastReap": cluster.and_then(|cluster| cluster.last_reap).map(format_time),
        "unreadable": row.cluster.as_ref().err(),
    })
}
