//! Leases: list, show, reserve, move, release.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use super::{
    Error, Halted, Scope, Sent, clusters, known,
    pools::no_such_pool,
    read,
    read::{read_each, read_spans},
    send,
};
use crate::{
    domain::{
        addr::{AddrRange, Family, number},
        audit::{Place, Subject, Unreadable},
        lease::{AddressHolder, Binding, Holder, Lease, LeaseId, LeasedAddress, Released, State, Timestamp},
        names::{
            ClusterName, ContainerId, DomainName, IfName, Namespace, NetworkName, NodeName, PodName,
            PoolName, WorkloadName,
        },
        pool::{DEFAULT_DOMAIN, Networks, Pool, Serve, why_not_leased},
        workload,
    },
    store::{
        Compare, Entry, Read, Revision, Span, Store, StoreError, Txn, changes, keys,
        record::{self, Stored},
    },
};

/// What doubt keeps is shown after a day.
const DOUBT_AFTER_MS: i64 = 24 * 3_600 * 1_000;
/// A reservation of more ordinals is a mistake of typing.
const MAX_ORDINALS: u128 = 4_096;

/// Why a lease is kept although nobody knows whether it should be; `None` if there is no doubt. What is held or bound
/// in doubt the reaper has noted.
#[must_use]
pub fn doubt(lease: &Lease, now: Timestamp) -> Option<&'static str> {
    let seen = lease.seen.as_ref()?;
    let for_a_day = |since: Option<Timestamp>| since.is_some_and(|at| now.since(at) >= DOUBT_AFTER_MS);
    // What is held and sticky misses its controller there, and that is no doubt.
    let of_a_pod = lease.bound().is_some() || lease.ends_with_its_pod();
    if of_a_pod && for_a_day(seen.missed) {
        return Some("pod missed for a day, and nothing proves it dead");
    }
    (lease.state() != State::Reserved && for_a_day(seen.doubt))
        .then_some("kept in doubt for a day, `leasehold reap --dry-run` says why")
}

/// Is this address key a lease's? A pointer begins with its version and "lease"; only what does not is worth reading.
fn is_pointer(entry: &Entry) -> bool {
    entry.value.starts_with(br#"{"v":1,"lease":"#)
}

/// Is this address key a device's?
pub(crate) fn is_device(entry: &Entry) -> bool {
    !is_pointer(entry) && matches!(record::decode_address(entry), Ok(AddressHolder::Device { .. }))
}

/// What an address of a list is.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum RowState {
    /// In use by a sandbox.
    Bound,
    /// Kept for its pod.
    Held,
    /// Assigned by a person.
    Reserved,
    /// Its record cannot be read.
    Invalid,
    /// Given back.
    Released,
    /// A stranger answered on it.
    Declined,
}

impl RowState {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Bound, Self::Held, Self::Reserved, Self::Invalid, Self::Released, Self::Declined];

    /// The word in tables and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bound => "bound",
            Self::Held => "held",
            Self::Reserved => "reserved",
            Self::Invalid => "invalid",
            Self::Released => "released",
            Self::Declined => "declined",
        }
    }
}

/// One address, or a record that cannot be read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Row {
    /// The address; `None` if the record does not tell.
    pub place: Option<Place>,
    /// What it is.
    pub state: RowState,
    /// The lease, if it is one's (or was, of a released address).
    pub lease: Option<Arc<Lease>>,
    /// Whose it was, of a released address.
    pub by: Option<(ClusterName, Holder)>,
    /// Its pool.
    pub pool: Option<PoolName>,
    /// Since when it is in this state.
    pub since: Option<Timestamp>,
    /// Somebody may still answer on it.
    pub unconfirmed: bool,
    /// Its pool would not give it out now.
    pub outside: bool,
    /// Kept because nobody knows.
    pub doubtful: bool,
    /// What a person wants to know of it.
    pub why: String,
    /// The key of a record that cannot be read.
    pub key: Option<String>,
}

impl Row {
    /// The holder.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.lease.as_ref().map(|lease| &lease.id.holder).or(self.by.as_ref().map(|(_, holder)| holder))
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> Option<&ClusterName> {
        self.lease.as_ref().map(|lease| &lease.id.cluster).or(self.by.as_ref().map(|(cluster, _)| cluster))
    }

    /// By address; what has none comes last.
    fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let address = |row: &Self| row.place.as_ref().map(|p| (p.address.is_ipv6(), number(p.address)));
        (self.place.is_none().cmp(&other.place.is_none()))
            .then_with(|| address(self).cmp(&address(other)))
            .then_with(|| self.place.cmp(&other.place))
            .then_with(|| self.key.cmp(&other.key))
    }
}

/// Which addresses.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of pods of this namespace.
    pub namespace: Option<Namespace>,
    /// Of this pool.
    pub pool: Option<PoolName>,
    /// On this node.
    pub node: Option<NodeName>,
    /// In these states; empty is all but released and declined.
    pub states: Vec<RowState>,
    /// On this network.
    pub network: Option<NetworkName>,
    /// Of pods that may belong to this workload, in any namespace if that is `None`.
    pub workload: Option<(Option<Namespace>, WorkloadName)>,
    /// Only what doubt keeps.
    pub doubtful: bool,
}

impl Filter {
    fn state(&self, state: RowState) -> bool {
        if self.states.is_empty() {
            !matches!(state, RowState::Released | RowState::Declined)
        } else {
            self.states.contains(&state)
        }
    }

    /// Does it ask for something that only a lease has?
    fn leases_only(&self) -> bool {
        self.namespace.is_some()
            || self.node.is_some()
            || self.network.is_some()
            || self.workload.is_some()
            || self.doubtful
    }

    fn holder(&self, holder: &Holder) -> bool {
        match holder {
            Holder::Pod { namespace, name } => {
                self.namespace.as_ref().is_none_or(|only| only == namespace)
                    && self.workload.as_ref().is_none_or(|(within, wanted)| {
                        within.as_ref().is_none_or(|only| only == namespace)
                            && workload::candidates(name).contains(wanted)
                    })
            }
            Holder::Container(_) => self.namespace.is_none() && self.workload.is_none(),
        }
    }

    fn lease(&self, lease: &Lease) -> bool {
        self.holder(&lease.id.holder)
            && self.network.as_ref().is_none_or(|only| *only == lease.id.network)
            && self.node.as_ref().is_none_or(|only| lease.bound().is_some_and(|stamp| stamp.node == *only))
    }
}

/// What a list is made of.
#[derive(Default)]
struct Listed {
    pools: Vec<Entry>,
    /// Of the holders that are asked for, and what cannot be read.
    leases: Vec<Result<Arc<Lease>, Box<Unreadable>>>,
    /// Those that are no lease's.
    addresses: Vec<Entry>,
    released: Vec<Entry>,
}

/// The addresses that somebody has, sorted, at one revision.
///
/// # Errors
/// [`Error::Store`]; [`Error::Missing`] if there is nothing, and no such pool, cluster, domain or network is known.
pub async fn list<S: Store>(
    store: &S,
    scope: &Scope,
    filter: &Filter,
    now: Timestamp,
) -> Result<(Revision, Vec<Row>), Error> {
    let leases = scope.cluster.as_ref().map_or_else(keys::leases, keys::leases_of);
    // Of leases alone, an address record matters that cannot be read.
    let leases_only = filter.leases_only() || scope.cluster.is_some();
    let addresses = filter.state(RowState::Invalid) || !leases_only && filter.state(RowState::Reserved);
    let freed = filter.state(RowState::Released) || filter.state(RowState::Declined);
    let spans = [keys::pools(), leases];
    let beside: Vec<Span> =
        [addresses.then(keys::addresses), freed.then(keys::all_released)].into_iter().flatten().collect();
    let take = |found: &mut Listed, index: usize, entry: Entry| match index {
        0 => found.pools.push(entry),
        1 => match read::lease(&entry) {
            Ok(lease) => found.leases.extend(filter.lease(&lease).then(|| Ok(Arc::new(lease)))),
            Err(record) => found.leases.push(Err(record)),
        },
        2 if addresses => found.addresses.extend((!is_pointer(&entry)).then_some(entry)),
        _ => found.released.push(entry),
    };
    let (revision, Listed { pools, leases, addresses, released }) =
        read_each(store, &spans, &beside, Listed::default, take).await?;
    let stored = pools;
    let pools: Vec<Pool> =
        read::stored_pools(&stored).into_iter().filter_map(|stored| stored.pool.ok()).collect();
    let by_name: HashMap<&PoolName, &Pool> = pools.iter().map(|pool| (pool.name(), pool)).collect();
    let mut rows = Vec::with_capacity(leases.len() + 16);
    for lease in leases {
        match lease {
            Ok(lease) => lease_rows(&lease, &by_name, now, &mut rows),
            Err(record) if !filter.leases_only() || may_be(&record, filter) => rows.push(invalid(*record)),
            Err(_) => {}
        }
    }
    let mut others: Vec<Row> = addresses.iter().filter_map(|entry| device_row(entry, &pools)).collect();
    others.retain_mut(|other| {
        let lists = |row: &&Row| row.place == other.place && row.lease.is_some();
        let lease = rows.iter().find(lists).filter(|_| other.state == RowState::Invalid);
        other.pool = other.pool.take().or_else(|| lease.and_then(|row| row.pool.clone()));
        lease.is_some() || !leases_only
    });
    rows.extend(others);
    // What was given back has neither node nor network any more.
    let nowhere = filter.node.is_none() && filter.network.is_none();
    for entry in released.iter().filter(|_| nowhere) {
        rows.extend(released_row(entry, &pools).filter(|row| {
            row.by.as_ref().is_none_or(|(cluster, holder)| scope.takes(cluster) && filter.holder(holder))
        }));
    }
    rows.retain(|row| {
        filter.state(row.state)
            && row.place.as_ref().is_none_or(|place| scope.takes_domain(&place.domain))
            && filter.pool.as_ref().is_none_or(|only| row.pool.as_ref() == Some(only))
            && (!filter.doubtful || row.doubtful)
    });
    // A pool that was deleted by force may still have leases.
    if let (Some(pool), true) = (&filter.pool, rows.is_empty()) {
        let known: Vec<PoolName> = stored.iter().filter_map(|entry| keys::parse_pool(&entry.key)).collect();
        if !known.contains(pool) {
            return Err(no_such_pool(pool, known.iter().map(PoolName::as_str)));
        }
    }
    // Nor must a cluster be registered that has leases.
    if rows.is_empty() && (scope.cluster.is_some() || scope.domain.is_some() || filter.network.is_some()) {
        known::check(store, scope, filter.network.as_ref()).await?;
    }
    rows.sort_by(Row::compare);
    Ok((revision, rows))
}

fn may_be(record: &Unreadable, filter: &Filter) -> bool {
    match &record.subject {
        Subject::Lease(id) => filter.holder(&id.holder) && filter.node.is_none() && !filter.doubtful,
        Subject::Address(_)
        | Subject::Released(_)
        | Subject::Attachment(_)
        | Subject::Pool(_)
        | Subject::Unknown => false,
    }
}

fn lease_rows(lease: &Arc<Lease>, pools: &HashMap<&PoolName, &Pool>, now: Timestamp, rows: &mut Vec<Row>) {
    let state = match lease.state() {
        State::Bound => RowState::Bound,
        State::Held => RowState::Held,
        State::Reserved => RowState::Reserved,
    };
    let doubt = doubt(lease, now);
    for leased in lease.addresses.iter().cloned() {
        let outside = leased.pool.as_ref().and_then(|name| match pools.get(name) {
            None => Some(format!("pool {name} is gone or unreadable")),
            Some(pool) if pool.range_of(leased.address).is_none() => Some(format!("outside pool {name}")),
            Some(_) => None,
        });
        rows.push(Row {
            why: why(lease, doubt, outside.as_deref(), now),
            place: Some(Place { domain: leased.domain, address: leased.address }),
            state,
            by: None,
            pool: leased.pool,
            since: Some(lease.since),
            unconfirmed: lease.unconfirmed,
            outside: outside.is_some(),
            doubtful: doubt.is_some(),
            key: None,
            lease: Some(Arc::clone(lease)),
        });
    }
}

fn why(lease: &Lease, doubt: Option<&str>, outside: Option<&str>, now: Timestamp) -> String {
    let mut parts: Vec<String> = Vec::new();
    let seen = lease.seen.as_ref();
    if let Some(missed) = seen.and_then(|seen| seen.missed) {
        parts.push(format!("pod missed {}", age(now.since(missed))));
    }
    if lease.state() == State::Held {
        match seen.and_then(|seen| seen.controller.as_deref()) {
            _ if lease.ends_with_its_pod() => parts.push("adopted: its pod ran without a lease".into()),
            Some(controller) => parts.push(format!("kept for {controller}")),
            None if lease.sticky => parts.push("sticky".into()),
            None => {}
        }
    }
    if lease.unconfirmed {
        parts.push("unconfirmed".into());
    }
    parts.extend(outside.map(ToOwned::to_owned));
    parts.extend(doubt.map(|doubt| format!("doubtful: {doubt}")));
    parts.join("; ")
}

fn invalid(record: Unreadable) -> Row {
    let place = match &record.subject {
        Subject::Address(place) | Subject::Released(place) => Some(place.clone()),
        Subject::Lease(_) | Subject::Attachment(_) | Subject::Pool(_) | Subject::Unknown => None,
    };
    let by = match record.subject {
        Subject::Lease(id) => Some((id.cluster, id.holder)),
        Subject::Address(_)
        | Subject::Released(_)
        | Subject::Attachment(_)
        | Subject::Pool(_)
        | Subject::Unknown => None,
    };
    Row {
        place,
        state: RowState::Invalid,
        lease: None,
        by,
        pool: None,
        since: None,
        unconfirmed: false,
        outside: false,
        doubtful: false,
        why: if record.newer { format!("newer: {}", record.reason) } else { record.reason },
        key: Some(record.key),
    }
}

/// The row of an address that no lease has: a device's, or unreadable.
fn device_row(entry: &Entry, pools: &[Pool]) -> Option<Row> {
    let Some(place) = keys::parse_held(&entry.key).map(read::place) else {
        return Some(invalid(Unreadable {
            key: entry.key.to_string(),
            subject: Subject::Unknown,
            reason: "the key names nothing".into(),
            newer: false,
        }));
    };
    match record::decode_address(entry) {
        Ok(AddressHolder::Lease(_)) => None,
        Ok(AddressHolder::Device { reason, since }) => Some(Row {
            pool: pool_of(&place, pools),
            place: Some(place),
            state: RowState::Reserved,
            lease: None,
            by: None,
            since: Some(since),
            unconfirmed: false,
            outside: false,
            doubtful: false,
            why: reason,
            key: None,
        }),
        Err(error) => Some(invalid(read::unreadable(Subject::Address(place), error))),
    }
}

fn pool_of(place: &Place, pools: &[Pool]) -> Option<PoolName> {
    let holds = |pool: &&Pool| *pool.domain() == place.domain && pool.range_of(place.address).is_some();
    pools.iter().find(holds).map(|pool| pool.name().clone())
}

fn released_row(entry: &Entry, pools: &[Pool]) -> Option<Row> {
    let place = keys::parse_released(&entry.key).map(read::place)?;
    let released = match record::decode_released(entry) {
        Ok(stored) => stored.value,
        Err(error) => return Some(invalid(read::unreadable(Subject::Released(place), error))),
    };
    let mut parts = vec![format!("was {}", released.by)];
    if released.unconfirmed {
        parts.push("unconfirmed".into());
    }
    if let Some(declined) = &released.declined {
        parts.push(format!("{} answered", declined.mac));
    }
    Some(Row {
        pool: pool_of(&place, pools),
        place: Some(place),
        state: if released.declined.is_some() { RowState::Declined } else { RowState::Released },
        lease: None,
        by: Some((released.cluster, released.by)),
        since: Some(released.declined.map_or(released.at, |declined| declined.at)),
        unconfirmed: released.unconfirmed,
        outside: false,
        doubtful: false,
        why: parts.join("; "),
        key: None,
    })
}

/// A span of time as kubectl prints it: `3m12s`, `41d`.
#[must_use]
pub fn age(milliseconds: i64) -> String {
    let seconds = milliseconds / 1000;
    if seconds < 0 {
        return "0s".into();
    }
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let two = |big: i64, unit: &str, small: i64, rest: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{rest}") }
    };
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 192 {
        two(days, "d", hours % 24, "h")
    } else if days < 730 {
        format!("{days}d")
    } else if days < 2_920 {
        two(days / 365, "y", days % 365, "d")
    } else {
        format!("{}y", days / 365)
    }
}

/// What a command is about.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Target {
    /// An address.
    Address(IpAddr),
    /// A pod's leases; of a container without a pod: `_/ID`.
    Holder(Holder),
    /// The leases of every pod that may belong to this workload.
    Workload(Namespace, WorkloadName),
}

impl Target {
    /// Reads an address, or `namespace/pod`.
    ///
    /// # Errors
    /// What is accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Ok(address) = crate::domain::addr::parse_address(text) {
            return Ok(Self::Address(address));
        }
        record::parse_holder(text)
            .map(Self::Holder)
            .map_err(|error| format!("must be an address or namespace/pod ({error})"))
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Holder(holder) => write!(f, "{holder}"),
            Self::Workload(namespace, workload) => write!(f, "workload {namespace}/{workload}"),
        }
    }
}

/// Everything about an address or a pod: its leases, or who had it.
///
/// # Errors
/// [`Error::Missing`].
pub async fn show<S: Store>(
    store: &S,
    scope: &Scope,
    target: &Target,
    now: Timestamp,
) -> Result<(Revision, Vec<Row>), Error> {
    let found = find(store, scope, target).await?;
    let pools: HashMap<&PoolName, &Pool> = found.pools.iter().map(|pool| (pool.name(), pool)).collect();
    let mut rows = Vec::new();
    for stored in &found.leases {
        lease_rows(&Arc::new(stored.value.clone()), &pools, now, &mut rows);
    }
    if let Target::Address(address) = target {
        rows.retain(|row| row.place.as_ref().is_none_or(|place| place.address == *address));
    }
    for entry in &found.devices {
        rows.extend(device_row(entry, &found.pools));
    }
    for entry in &found.released {
        rows.extend(released_row(entry, &found.pools));
    }
    let orphans = found.orphans.iter().map(|(place, id)| (place, orphaned(id), MENDS_ORPHAN));
    let astray = found.astray.iter().map(|(place, id)| (place, strayed(id), MENDS_ASTRAY));
    rows.extend(orphans.chain(astray).map(|(place, what, mends)| {
        let reason = format!("{what}: {mends}");
        let key = keys::address(&place.domain, place.address).to_string();
        invalid(Unreadable { key, subject: Subject::Address(place.clone()), reason, newer: false })
    }));
    rows.extend(found.unreadable.into_iter().map(invalid));
    if rows.is_empty() {
        return Err(nothing(target, scope, None, &found.domains));
    }
    rows.sort_by(Row::compare);
    Ok((found.revision, rows))
}

fn nothing(
    target: &Target,
    scope: &Scope,
    network: Option<&NetworkName>,
    domains: &BTreeSet<DomainName>,
) -> Error {
    match target {
        Target::Address(address) => {
            // In which domain is said anyway.
            let within = Scope { domain: None, ..scope.clone() }.words(network);
            let names: Vec<&str> = domains.iter().map(DomainName::as_str).collect();
            Error::missing(
                format!("nobody{within} has {address} (domains looked in: {})", names.join(", ")),
                "`leasehold lease list` shows what is leased",
            )
        }
        Target::Holder(_) | Target::Workload(..) => Error::missing(
            format!("{target} has no lease{}", scope.words(network)),
            "`leasehold lease list -A` shows all; `leasehold explain NS/POD` says what the pod would get",
        ),
    }
}

/// An address key without its lease, in words.
fn orphaned(id: &LeaseId) -> String {
    format!("is held by the lease of {id}, which is not there")
}

/// An address key whose lease does not list it, in words.
fn strayed(id: &LeaseId) -> String {
    format!("names the lease of {id}, which does not list it")
}

const MENDS_ASTRAY: &str = "`leasehold check` says what is to be done about it";

fn lists(lease: &Lease, place: &Place) -> bool {
    lease.addresses.iter().any(|a| a.address == place.address && a.domain == place.domain)
}

const MENDS_ORPHAN: &str =
    "`leasehold check --repair` writes that lease again, and so does the reaper; then it can be released";

/// What was found of a target.
struct Findings {
    revision: Revision,
    domains: BTreeSet<DomainName>,
    pools: Vec<Pool>,
    leases: Vec<Stored<Lease>>,
    /// Address keys without a lease.
    devices: Vec<Entry>,
    /// Address keys whose lease is not there.
    orphans: Vec<(Place, LeaseId)>,
    /// Address keys whose lease does not list them.
    astray: Vec<(Place, LeaseId)>,
    released: Vec<Entry>,
    unreadable: Vec<Unreadable>,
}

async fn find<S: Store>(store: &S, scope: &Scope, target: &Target) -> Result<Findings, Error> {
    let (revision, found) = read_spans(store, &[keys::pools()]).await?;
    let pools: Vec<Pool> = read::stored_pools(&found[0]).into_iter().filter_map(|p| p.pool.ok()).collect();
    let mut out = Findings {
        revision,
        domains: BTreeSet::new(),
        pools,
        leases: Vec::new(),
        devices: Vec::new(),
        orphans: Vec::new(),
        astray: Vec::new(),
        released: Vec::new(),
        unreadable: Vec::new(),
    };
    match target {
        Target::Address(address) => find_address(store, scope, *address, &mut out).await?,
        Target::Holder(holder) => {
            for cluster in look_in(store, scope).await? {
                let span = match holder {
                    Holder::Pod { namespace, name } => keys::leases_of_pod(&cluster, namespace, name),
                    Holder::Container(id) => {
                        crate::store::Span::prefix(&format!("v1/leases/{cluster}/_/{id}/"))
                    }
                };
                let (_, found) = read_spans(store, &[span]).await?;
                out.take_leases(&found[0], |_| true);
            }
        }
        Target::Workload(namespace, workload) => {
            let span = scope.cluster.as_ref().map_or_else(keys::leases, keys::leases_of);
            let (_, found) = read_spans(store, &[span]).await?;
            out.take_leases(&found[0], |holder| match holder {
                Holder::Pod { namespace: of, name } => {
                    of == namespace && workload::candidates(name).contains(workload)
                }
                Holder::Container(_) => false,
            });
        }
    }
    out.narrow(scope);
    Ok(out)
}

async fn find_address<S: Store>(
    store: &S,
    scope: &Scope,
    address: IpAddr,
    out: &mut Findings,
) -> Result<(), Error> {
    out.domains = match &scope.domain {
        Some(only) => BTreeSet::from([only.clone()]),
        None => {
            let of_pools = out.pools.iter().map(|pool| pool.domain().clone());
            of_pools.chain(DomainName::new(DEFAULT_DOMAIN).ok()).collect()
        }
    };
    for domain in out.domains.clone() {
        let reads = [Read::Get(keys::address(&domain, address)), Read::Get(keys::released(&domain, address))];
        let snapshot = store.read(&reads, None).await?;
        out.released.extend(snapshot.entries(1).iter().cloned());
        let Some(entry) = snapshot.entry(0) else { continue };
        let place = Place { domain, address };
        match record::decode_address(entry) {
            Ok(AddressHolder::Lease(id)) if !scope.takes(&id.cluster) => {}
            Ok(AddressHolder::Lease(id)) => {
                let snapshot = store.read(&[Read::Get(keys::lease(&id))], None).await?;
                match snapshot.entry(0).map(|entry| (entry, record::decode_lease(entry))) {
                    Some((_, Ok(lease))) if !lists(&lease.value, &place) => out.astray.push((place, id)),
                    Some((entry, _)) => out.take_leases(std::slice::from_ref(entry), |_| true),
                    None => out.orphans.push((place, id)),
                }
            }
            Ok(AddressHolder::Device { .. }) => out.devices.push(entry.clone()),
            Err(error) => out.unreadable.push(read::unreadable(Subject::Address(place), error)),
        }
    }
    Ok(())
}

impl Findings {
    /// Leaves what is inside. A device is in no namespace, and of no cluster.
    fn narrow(&mut self, scope: &Scope) {
        let inside = |id: &LeaseId| scope.takes(&id.cluster) && scope.takes_holder(&id.holder);
        self.leases.retain(|stored| {
            let mut domains = stored.value.addresses.iter().map(|leased| &leased.domain);
            inside(&stored.value.id) && domains.any(|domain| scope.takes_domain(domain))
        });
        self.orphans.retain(|(_, id)| inside(id));
        self.astray.retain(|(_, id)| inside(id));
        self.unreadable.retain(|record| match &record.subject {
            Subject::Lease(id) => inside(id),
            Subject::Address(_)
            | Subject::Released(_)
            | Subject::Attachment(_)
            | Subject::Pool(_)
            | Subject::Unknown => true,
        });
        if scope.cluster.is_some() || scope.namespace.is_some() {
            self.devices.clear();
        }
        self.released.retain(|entry| {
            record::decode_released(entry).map_or(true, |stored| {
                scope.takes(&stored.value.cluster) && scope.takes_holder(&stored.value.by)
            })
        });
    }

    /// What is found can be understood.
    fn is_sound(&self) -> Result<(), Error> {
        if let Some((place, id)) = self.orphans.first() {
            return Err(Error::refused(format!("{place} {}", orphaned(id)), MENDS_ORPHAN));
        }
        if let Some((place, id)) = self.astray.first() {
            return Err(Error::refused(format!("{place} {}", strayed(id)), MENDS_ASTRAY));
        }
        if let (true, Some(record)) = (self.leases.is_empty(), self.unreadable.first()) {
            return Err(Error::wrong(
                format!("record {} cannot be read: {}", record.key, record.reason),
                "nothing that cannot be read is deleted, also not with --force; `leasehold check` says how to put it right",
            ));
        }
        Ok(())
    }

    /// The free addresses that are marked: with what was left there, or heard.
    fn marked(&self, scope: &Scope) -> Result<Vec<(Place, Stored<Released>)>, Error> {
        let mut marked = Vec::new();
        for entry in &self.released {
            let Some((domain, address)) = keys::parse_released(&entry.key) else { continue };
            if scope.takes_domain(&domain) {
                let stored = record::decode_released(entry)?;
                if stored.value.unconfirmed || stored.value.declined.is_some() {
                    marked.push((Place { domain, address }, stored));
                }
            }
        }
        Ok(marked)
    }

    /// Leaves what one command may change: the leases of one cluster, in one domain.
    fn settle(&mut self, scope: &Scope, target: &Target, network: Option<&NetworkName>) -> Result<(), Error> {
        self.leases.retain(|stored| {
            let lease = &stored.value;
            network.is_none_or(|only| lease.id.network == *only)
                && lease.addresses.iter().all(|leased| scope.takes_domain(&leased.domain))
        });
        self.one_cluster(scope, target)?;
        let Target::Address(address) = target else { return Ok(()) };
        let leased = self.leases.iter().flat_map(|stored| &stored.value.addresses);
        let leased = leased.filter(|leased| leased.address == *address).map(|leased| leased.domain.clone());
        let devices = self.devices.iter().filter_map(|entry| keys::parse_held(&entry.key));
        let domains: BTreeSet<DomainName> = leased.chain(devices.map(|(domain, _)| domain)).collect();
        if domains.len() > 1 {
            let why = format!("{address} is leased in several domains: {}", listed(&domains));
            return Err(Error::refused(why, "say which: --domain NAME"));
        }
        Ok(())
    }

    /// The cluster that was said, else the host file's, else the only one that has leases of the target.
    fn one_cluster(&mut self, scope: &Scope, target: &Target) -> Result<(), Error> {
        let all: BTreeSet<ClusterName> = self.leases.iter().map(|s| s.value.id.cluster.clone()).collect();
        match scope.cluster.as_ref().or(scope.home.as_ref()) {
            Some(own) if all.contains(own) => self.leases.retain(|stored| stored.value.id.cluster == *own),
            None if all.len() > 1 => {
                let why = format!("{target} has leases in several clusters: {}", listed(&all));
                return Err(Error::refused(why, "say which: --cluster NAME"));
            }
            Some(own) if !all.is_empty() => {
                let why = format!("{target}: no lease in cluster {own}, but in {}", listed(&all));
                return Err(Error::refused(why, "if that is meant, say so: --cluster NAME"));
            }
            Some(_) | None => {}
        }
        Ok(())
    }

    fn take_leases(&mut self, entries: &[Entry], wanted: impl Fn(&Holder) -> bool) {
        for entry in entries {
            match record::decode_lease(entry) {
                Ok(stored) if wanted(&stored.value.id.holder) => self.leases.push(stored),
                Ok(_) => {}
                Err(error) => {
                    let id = keys::parse_lease(&entry.key);
                    if id.as_ref().is_none_or(|id| wanted(&id.holder)) {
                        let subject = id.map_or(Subject::Unknown, Subject::Lease);
                        self.unreadable.push(read::unreadable(subject, error));
                    }
                }
            }
        }
    }
}

/// The clusters in which a pod's name is looked for: the one that was said, else every registered one.
async fn look_in<S: Store>(store: &S, scope: &Scope) -> Result<BTreeSet<ClusterName>, Error> {
    if let Some(only) = &scope.cluster {
        return Ok(BTreeSet::from([only.clone()]));
    }
    let mut all: BTreeSet<ClusterName> = clusters::names(store).await?.into_iter().collect();
    all.extend(scope.home.clone());
    Ok(all)
}

/// The cluster in which a pod is made to have something: the one that was said, the host file's, the only one.
pub(crate) async fn cluster_of<S: Store>(store: &S, scope: &Scope) -> Result<ClusterName, Error> {
    if let Some(name) = scope.cluster.clone().or_else(|| scope.home.clone()) {
        return Ok(name);
    }
    let mut all = clusters::names(store).await?;
    match (all.pop(), all.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(last), false) => {
            all.push(last);
            let why = format!("there are several clusters: {}", listed(&all));
            Err(Error::refused(why, "say which: --cluster NAME"))
        }
        (None, _) => Err(Error::wrong(
            "no cluster is registered",
            "`leasehold cluster add NAME --uid UID` registers one",
        )),
    }
}

fn listed<'a, T: ToString + 'a>(names: impl IntoIterator<Item = &'a T>) -> String {
    names.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The cluster of a lease that is changed, where the store has others, too.
async fn told_cluster<S: Store>(store: &S, cluster: &ClusterName) -> Result<Option<ClusterName>, Error> {
    let names = clusters::names(store).await?;
    Ok(names.iter().any(|name| name != cluster).then(|| cluster.clone()))
}

/// A lease that is changed, in words.
fn told(id: &LeaseId, cluster: Option<&ClusterName>) -> String {
    cluster.map_or_else(|| id.to_string(), |cluster| format!("{id} of cluster {cluster}"))
}

/// What was released.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Gone {
    /// Whose it was: a lease, or a device with its reason.
    pub whose: String,
    /// The addresses.
    pub addresses: Vec<IpAddr>,
    /// Was it in use by a sandbox?
    pub bound: bool,
    /// They are probed before their next use.
    pub unconfirmed: bool,
}

/// Ends the leases of a target in one cluster: that of the scope, else the host file's, else the only one that has such
/// leases. Their addresses are free to others after the cool-down. `force`: also of pods that use them now.
///
/// # Errors
/// [`Error::Missing`]; [`Error::Refused`] if one is bound, or nothing says which cluster's or which domain's are meant,
/// and then none is released; [`Error::Changed`].
pub async fn release<S: Store>(
    store: &S,
    scope: &Scope,
    target: &Target,
    network: Option<&NetworkName>,
    force: bool,
    now: Timestamp,
    dry: bool,
) -> Result<Vec<Gone>, Halted<Gone>> {
    let mut found = find(store, scope, target).await?;
    found.settle(scope, target, network)?;
    found.is_sound()?;
    if found.leases.is_empty() && found.devices.is_empty() {
        return Err(nothing(target, scope, network, &found.domains).into());
    }
    if let (Some(bound), false) = (found.leases.iter().find(|s| s.value.bound().is_some()), force) {
        let node = bound.value.bound().map_or_else(String::new, |stamp| format!(" on node {}", stamp.node));
        let none = if found.leases.len() > 1 { "; nothing was released" } else { "" };
        return Err(Error::refused(
            format!("{} uses {}{node}{none}", bound.value.id.holder, texts(&bound.value)),
            "delete the pod, and its lease ends with it; --force releases the address of a pod that may still answer on it",
        ).into());
    }
    if let (Some(running), false) = (found.leases.iter().find(|s| s.value.may_run()), force) {
        let (what, why) = unproven(&running.value);
        let hint = if running.value.reserved {
            "if nobody answers on it, say so: `leasehold lease confirm ADDRESS`, or --force"
        } else {
            "delete the pod, and the reaper ends its lease; --force releases the address of a pod that may still answer on it"
        };
        return Err(Error::refused(format!("{what}: {why}"), hint).into());
    }
    let cluster = match found.leases.first() {
        Some(stored) => told_cluster(store, &stored.value.id.cluster).await?,
        None => None,
    };
    let frozen = store.read(&[Read::Get(keys::frozen())], None).await?.entry(0).map(|entry| entry.revision);
    let mut gone = Vec::new();
    for stored in &found.leases {
        let lease = &stored.value;
        let bound = lease.bound().is_some();
        let (txn, unconfirmed) = changes::release(stored, frozen, now);
        if let Err(error) = commit(store, &txn, &lease.id.to_string(), dry).await {
            return Err(Halted { done: gone, error });
        }
        gone.push(Gone {
            whose: told(&lease.id, cluster.as_ref()),
            addresses: lease.addresses.iter().map(|a| a.address).collect(),
            bound,
            unconfirmed,
        });
    }
    for entry in &found.devices {
        let (Some((domain, address)), Ok(AddressHolder::Device { reason, .. })) =
            (keys::parse_held(&entry.key), record::decode_address(entry))
        else {
            continue;
        };
        let by = Holder::Container(device_holder()?);
        let cluster = scope.home.clone().map_or_else(local_cluster, Ok)?;
        let txn = changes::release_device(&domain, address, entry.revision, (&by, &cluster), now);
        if let Err(error) = commit(store, &txn, &address.to_string(), dry).await {
            return Err(Halted { done: gone, error });
        }
        gone.push(Gone {
            whose: format!("a device ({reason})"),
            addresses: vec![address],
            bound: false,
            unconfirmed: true,
        });
    }
    Ok(gone)
}

/// A person says that nobody answers on an address, whatever was left or heard there: its mark goes, that of a free address or
/// of a lease that nobody uses, with all its addresses. Where nothing can be probed nothing else takes it away.
///
/// # Errors
/// [`Error::Missing`] if it bears no mark; [`Error::Refused`] if its pod uses it, was adopted with it, or several domains have
/// it; [`Error::Changed`].
pub async fn confirm<S: Store>(
    store: &S,
    scope: &Scope,
    address: IpAddr,
    now: Timestamp,
    dry: bool,
) -> Result<Gone, Error> {
    let target = Target::Address(address);
    let mut found = find(store, scope, &target).await?;
    found.settle(scope, &target, None)?;
    found.is_sound()?;
    let marked = found.marked(scope)?;
    let leased = found.leases.iter().flat_map(|stored| &stored.value.addresses);
    let leased = leased.filter(|leased| leased.address == address).map(|leased| &leased.domain);
    let domains: BTreeSet<&DomainName> =
        leased.chain(marked.iter().map(|(place, _)| &place.domain)).collect();
    if domains.len() > 1 {
        let why = format!("{address} is known in several domains: {}", listed(domains));
        return Err(Error::refused(why, "say which: --domain NAME"));
    }
    if let Some(stored) = found.leases.first() {
        let lease = &stored.value;
        if lease.bound().is_some() || lease.is_adopted() {
            return Err(Error::refused(
                format!("{} uses {address}, or may", lease.id.holder),
                "what a pod uses is probed before its next use; delete the pod, and its lease ends with it",
            ));
        }
        if !lease.unconfirmed {
            return Err(unmarked(address));
        }
        let txn = changes::note(stored, &Lease { unconfirmed: false, ..lease.clone() });
        commit(store, &txn, &lease.id.to_string(), dry).await?;
        let addresses = lease.addresses.iter().map(|a| a.address).collect();
        return Ok(Gone { whose: lease.id.to_string(), addresses, bound: false, unconfirmed: false });
    }
    let Some((place, released)) = marked.first() else { return Err(unmarked(address)) };
    let txn = changes::confirm(&place.domain, place.address, released, now);
    commit(store, &txn, &place.to_string(), dry).await?;
    let whose = format!("nobody; {} had it", released.value.by);
    Ok(Gone { whose, addresses: vec![address], bound: false, unconfirmed: false })
}

fn unmarked(address: IpAddr) -> Error {
    Error::missing(
        format!("{address} is neither unconfirmed nor declined"),
        format!("`leasehold lease show {address}` tells what it is"),
    )
}

/// A released key names who had the address; a device has no pod.
fn device_holder() -> Result<ContainerId, Error> {
    ContainerId::new("device").map_err(|error| Error::wrong(error.to_string(), ""))
}

fn local_cluster() -> Result<ClusterName, Error> {
    ClusterName::new("local").map_err(|error| Error::wrong(error.to_string(), ""))
}

/// What a lease is that is not bound and may be in use; and why nobody knows.
fn unproven(lease: &Lease) -> (String, &'static str) {
    let (holder, addresses) = (&lease.id.holder, texts(lease));
    if lease.reserved {
        (
            format!("{addresses} is reserved for {holder}, and unconfirmed"),
            "its pod, or another, may run with it",
        )
    } else {
        (format!("{holder} was adopted with {addresses}"), "its pod ran, and no DEL has come")
    }
}

fn texts(lease: &Lease) -> String {
    lease.addresses.iter().map(|a| a.address.to_string()).collect::<Vec<_>>().join(", ")
}

async fn commit<S: Store>(store: &S, txn: &Txn, what: &str, dry: bool) -> Result<(), Error> {
    if dry {
        return Ok(());
    }
    match send(store, txn).await? {
        Sent::Applied(_) => Ok(()),
        Sent::Conflict => Err(Error::Changed { what: what.into() }),
    }
}

/// A lease that went to another pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Moved {
    /// Its old key.
    pub from: LeaseId,
    /// Its new one.
    pub to: LeaseId,
    /// The cluster of both, where the store has others, too.
    pub cluster: Option<ClusterName>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// Gives the leases of a pod that does not run to another that has none, in one cluster, as [`release`].
///
/// # Errors
/// [`Error::Refused`] if nothing says which cluster's is meant, if the lease is bound, if the other pod has one, or if its pool does not serve the other pod.
pub async fn move_leases<S: Store>(
    store: &S,
    scope: &Scope,
    from: &Holder,
    to: &Holder,
    network: Option<&NetworkName>,
    now: Timestamp,
    dry: bool,
) -> Result<Vec<Moved>, Halted<Moved>> {
    if from == to {
        return Err(
            Error::wrong(format!("{from} is moved to itself"), "name another pod to get its lease").into()
        );
    }
    let target = Target::Holder(from.clone());
    let mut found = find(store, scope, &target).await?;
    found.settle(scope, &target, network)?;
    let Some(first) = found.leases.first() else {
        return Err(nothing(&target, scope, network, &found.domains).into());
    };
    let cluster = told_cluster(store, &first.value.id.cluster).await?;
    let index = serves_of(&found.pools);
    let mut plans = Vec::new();
    for stored in &found.leases {
        let lease = &stored.value;
        let to = LeaseId { holder: to.clone(), ..lease.id.clone() };
        for leased in &lease.addresses {
            let pool = leased.pool.as_ref().and_then(|name| found.pools.iter().find(|p| p.name() == name));
            if let Some(pool) = pool
                && closeness(pool, &to.holder, &index).is_none()
            {
                return Err(Error::refused(
                    format!(
                        "pool {} does not serve {}: it would not get {}",
                        pool.name(),
                        to.holder,
                        leased.address
                    ),
                    format!("add it to the pool's serves: `leasehold pool show {} -o yaml`", pool.name()),
                )
                .into());
            }
        }
        if lease.may_run() {
            return Err(Error::refused(
                format!("{}: its pod may run, and is not moved", unproven(lease).0),
                if lease.reserved {
                    "if nobody answers on it, say so first: `leasehold lease confirm ADDRESS`"
                } else {
                    "restart the pod, so that its lease is bound; then delete it"
                },
            )
            .into());
        }
        let Some(txn) = changes::move_lease(stored, &to, now) else {
            let node = lease.bound().map_or_else(String::new, |stamp| format!(" on node {}", stamp.node));
            return Err(Error::refused(
                format!("{} uses {}{node}: a bound lease is not moved", lease.id.holder, texts(lease)),
                "delete the pod first; its lease must be held or reserved",
            )
            .into());
        };
        let snapshot = store.read(&[Read::Get(keys::lease(&to))], None).await?;
        if snapshot.entry(0).is_some() {
            return Err(Error::refused(
                format!("{} has a lease already", to),
                format!("release it first: `leasehold lease release {}`", to.holder),
            )
            .into());
        }
        plans.push((
            txn,
            Moved {
                from: lease.id.clone(),
                addresses: lease.addresses.iter().map(|a| a.address).collect(),
                to,
                cluster: cluster.clone(),
            },
        ));
    }
    let mut out = Vec::new();
    for (txn, moved) in plans {
        if let Err(error) = commit(store, &txn, &moved.from.to_string(), dry).await {
            return Err(Halted { done: out, error });
        }
        out.push(moved);
    }
    Ok(out)
}

/// Whom all pools serve.
pub(crate) fn serves_of(pools: &[Pool]) -> BTreeSet<Serve> {
    pools.iter().flat_map(|pool| pool.serves().iter().cloned()).collect()
}

/// How closely a pool serves a holder: its workload (the longest candidate that any pool serves) before its
/// namespace before everything; `None` if it does not.
pub(crate) fn closeness(pool: &Pool, holder: &Holder, index: &BTreeSet<Serve>) -> Option<u8> {
    let mut ranked: Vec<Serve> = Vec::new();
    if let Holder::Pod { namespace, name } = holder {
        let by_name = workload::candidates(name)
            .into_iter()
            .map(|workload| Serve::Workload(namespace.clone(), workload))
            .find(|serve| index.contains(serve));
        if let Some(serve) = by_name
            && pool.serves().contains(&serve)
        {
            return Some(0);
        }
        ranked.push(Serve::Namespace(namespace.clone()));
    }
    ranked.push(Serve::Everything);
    let place = ranked.iter().position(|serve| pool.serves().contains(serve))?;
    u8::try_from(place + 1).ok()
}

/// What a person reserves.
#[derive(Clone, Debug)]
pub enum Reserve {
    /// These addresses for a pod: one of each family at most.
    Pod {
        /// The pod.
        holder: Holder,
        /// Its addresses.
        addresses: Vec<IpAddr>,
    },
    /// A run of addresses for the ordinals of a workload: ordinal 0 gets the first.
    Workload {
        /// Its namespace.
        namespace: Namespace,
        /// Its name.
        name: WorkloadName,
        /// The run.
        addresses: AddrRange,
    },
    /// An address for something that is no pod.
    Device {
        /// The address.
        address: IpAddr,
        /// What it is.
        reason: String,
    },
}

/// A reservation that was made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reserved {
    /// For whom.
    pub whom: String,
    /// What.
    pub addresses: Vec<IpAddr>,
    /// Where it is unique.
    pub domain: DomainName,
    /// The pod uses it already: its lease is only marked.
    pub marked: bool,
    /// What is seldom meant.
    pub warning: Option<String>,
}

/// Reserves addresses. Everything is checked before the first is written.
///
/// # Errors
/// [`Error::Refused`] if somebody has an address, or the pod another one; [`Error::Wrong`] if no pool that serves the
/// pod has it.
pub async fn reserve<S: Store>(
    store: &S,
    scope: &Scope,
    what: &Reserve,
    network: Option<&NetworkName>,
    ifname: &IfName,
    now: Timestamp,
    dry: bool,
) -> Result<Vec<Reserved>, Halted<Reserved>> {
    let (_, found) = read_spans(store, &[keys::pools()]).await?;
    let pools: Vec<Stored<Pool>> = found[0].iter().filter_map(|e| record::decode_pool(e).ok()).collect();
    let pods: Vec<(Holder, Vec<IpAddr>)> = match what {
        Reserve::Device { address, reason } => {
            return Ok(reserve_device(store, scope, &pools, *address, reason, now, dry).await?);
        }
        Reserve::Pod { holder, addresses } => vec![(holder.clone(), addresses.clone())],
        Reserve::Workload { namespace, name, addresses } => ordinals(namespace, name, *addresses)?,
    };
    let cluster = cluster_of(store, scope).await?;
    let desk = Desk { store, scope, pools: &pools, cluster, ifname, now };
    let mut plans = Vec::new();
    for (holder, addresses) in pods {
        plans.push(desk.plan(holder, &addresses, network).await?);
    }
    let mut out = Vec::new();
    for (txn, reserved) in plans {
        if let Err(error) = commit(store, &txn, &reserved.whom, dry).await {
            return Err(Halted { done: out, error });
        }
        out.push(reserved);
    }
    Ok(out)
}

fn ordinals(
    namespace: &Namespace,
    name: &WorkloadName,
    run: AddrRange,
) -> Result<Vec<(Holder, Vec<IpAddr>)>, Error> {
    if run.size() > MAX_ORDINALS {
        return Err(Error::wrong(
            format!("{run} has {} addresses", run.size()),
            format!("at most {MAX_ORDINALS} ordinals are reserved at once"),
        ));
    }
    (run.first()..=run.last())
        .enumerate()
        .map(|(ordinal, number)| {
            let pod = PodName::new(format!("{name}-{ordinal}"))
                .map_err(|error| Error::wrong(error.to_string(), ""))?;
            let holder = Holder::Pod { namespace: namespace.clone(), name: pod };
            Ok((holder, vec![run.family().address(number)]))
        })
        .collect()
}

/// What planning a reservation for a pod needs.
struct Desk<'a, S> {
    store: &'a S,
    scope: &'a Scope,
    pools: &'a [Stored<Pool>],
    cluster: ClusterName,
    ifname: &'a IfName,
    now: Timestamp,
}

impl<S: Store> Desk<'_, S> {
    async fn plan(
        &self,
        holder: Holder,
        addresses: &[IpAddr],
        network: Option<&NetworkName>,
    ) -> Result<(Txn, Reserved), Error> {
        for (position, address) in addresses.iter().enumerate() {
            let family = Family::of(*address);
            if addresses[..position].iter().any(|other| Family::of(*other) == family) {
                return Err(Error::wrong(
                    format!("two {family} addresses for {holder}"),
                    "a lease has at most one address of each family",
                ));
            }
        }
        let mut leased = Vec::new();
        let mut compares: Vec<Compare> = Vec::new();
        let mut of_network = network.cloned();
        for address in addresses {
            let pool = self.pool_for(&holder, *address, of_network.as_ref())?;
            of_network = Some(match (of_network, pool.value.networks()) {
                (Some(network), _) => network,
                (None, Networks::Named(names)) if names.len() == 1 => names[0].clone(),
                (None, Networks::Named(_) | Networks::Every) => {
                    return Err(Error::wrong(
                        format!("pool {} is for several networks", pool.value.name()),
                        "say which: --network NAME",
                    ));
                }
            });
            let compare = changes::pool_as_read(pool);
            if !compares.contains(&compare) {
                compares.push(compare);
            }
            leased.push(LeasedAddress {
                address: *address,
                domain: pool.value.domain().clone(),
                pool: Some(pool.value.name().clone()),
            });
        }
        let (Some(network), Some(first)) = (of_network, leased.first()) else {
            return Err(Error::wrong("no address", "say which: --address A"));
        };
        let domain = first.domain.clone();
        let id = LeaseId { cluster: self.cluster.clone(), holder, network, ifname: self.ifname.clone() };
        let mut reads = vec![
            Read::Get(keys::lease(&id)),
            Read::Get(keys::cluster(&id.cluster)),
            Read::Get(keys::frozen()),
        ];
        let first = reads.len();
        for a in &leased {
            reads.push(Read::Get(keys::address(&a.domain, a.address)));
            reads.push(Read::Get(keys::released(&a.domain, a.address)));
        }
        let snapshot = self.store.read(&reads, None).await?;
        let unregistered = snapshot.entry(1).is_none();
        let names = clusters::names(self.store).await?;
        let warning = unregistered.then(|| {
            let near = known::did_you_mean(id.cluster.as_str(), names.iter().map(ClusterName::as_str));
            format!("cluster {}{near} is not registered: none of its pods gets an address", id.cluster)
        });
        let several = names.iter().any(|name| *name != id.cluster);
        let whom = told(&id, several.then_some(&id.cluster));
        let mut reserved = Reserved { whom, addresses: addresses.to_vec(), domain, marked: false, warning };
        if let Some(entry) = snapshot.entry(0) {
            let txn = mark(entry, &leased)?;
            reserved.marked = true;
            return Ok((txn, reserved));
        }
        let mut takes = Vec::new();
        // A store that is frozen may not know who uses an address.
        let frozen = snapshot.entry(2).map(|entry| entry.revision);
        compares.push(changes::as_read(keys::frozen(), frozen));
        let mut unconfirmed = frozen.is_some();
        for (position, address) in leased.iter().enumerate() {
            if let Some(entry) = snapshot.entry(first + 2 * position) {
                return Err(taken(self.store, address.address, entry).await?);
            }
            let released = snapshot.entry(first + 2 * position + 1);
            if let Some(entry) = released {
                let value: Released = record::decode_released(entry)?.value;
                // Whoever had it may still answer for a moment.
                unconfirmed |= value.unconfirmed || value.declined.is_some() || value.at.is_recent(self.now);
            }
            takes.push(changes::Take { address: address.clone(), released: released.map(|e| e.revision) });
        }
        let lease = Lease {
            id,
            addresses: leased,
            binding: Binding::Idle(None),
            since: self.now,
            created: self.now,
            sticky: false,
            reserved: true,
            unconfirmed,
            seen: None,
        };
        Ok((changes::reserve(&lease, &takes, &compares), reserved))
    }

    /// The pool out of which the pod would be given this address.
    fn pool_for(
        &self,
        holder: &Holder,
        address: IpAddr,
        network: Option<&NetworkName>,
    ) -> Result<&Stored<Pool>, Error> {
        let index: BTreeSet<Serve> =
            self.pools.iter().flat_map(|pool| pool.value.serves().iter().cloned()).collect();
        let mut why_not = Vec::new();
        let mut best: Option<(u8, u32, &PoolName, &Stored<Pool>)> = None;
        for stored in self.pools {
            let pool = &stored.value;
            if !self.scope.takes_domain(pool.domain())
                || !pool.ranges().iter().any(|range| range.subnet().contains(address))
            {
                continue;
            }
            let close = closeness(pool, holder, &index);
            let reason = if pool.range_of(address).is_none() {
                Some(format!("does not give it out ({})", why_not_leased(pool.ranges().iter(), address)))
            } else if !pool.clusters().is_empty() && !pool.clusters().contains(&self.cluster) {
                Some(format!("is not for cluster {}", self.cluster))
            } else if let (Networks::Named(names), Some(network)) = (pool.networks(), network)
                && !names.contains(network)
            {
                Some(format!("is not for network {network}"))
            } else if close.is_none() {
                Some(format!("does not serve {holder}"))
            } else {
                None
            };
            match (reason, close) {
                (None, Some(close)) => {
                    let found = (close, pool.priority(), pool.name(), stored);
                    let nearer = |b: &(u8, u32, &PoolName, _)| (found.0, found.1, found.2) < (b.0, b.1, b.2);
                    if best.as_ref().is_none_or(nearer) {
                        best = Some(found);
                    }
                }
                (Some(reason), _) => why_not.push(format!("pool {} {reason}", pool.name())),
                (None, None) => {}
            }
        }
        best.map(|(_, _, _, stored)| stored).ok_or_else(|| {
            let why = if why_not.is_empty() {
                let of = self.scope.domain.as_ref();
                let of = of.map_or_else(String::new, |domain| format!(" of domain {domain}"));
                format!("{address} is in the subnet of no pool{of}")
            } else {
                format!("{holder} cannot have {address}: {}", why_not.join("; "))
            };
            Error::wrong(why, "for a device that is no pod: `leasehold lease reserve ADDRESS --reason TEXT`")
        })
    }
}

/// The pod has a lease: with these very addresses it is marked as reserved.
fn mark(entry: &Entry, leased: &[LeasedAddress]) -> Result<Txn, Error> {
    let stored = record::decode_lease(entry)?;
    let same = stored.value.addresses.len() == leased.len()
        && leased.iter().all(|wanted| {
            stored.value.addresses.iter().any(|a| a.address == wanted.address && a.domain == wanted.domain)
        });
    if !same {
        return Err(Error::refused(
            format!("{} has {} already", stored.value.id, texts(&stored.value)),
            format!("release it first: `leasehold lease release {}`", stored.value.id.holder),
        ));
    }
    let lease = Lease { reserved: true, ..stored.value.clone() };
    Ok(changes::note(&stored, &lease))
}

/// Why an address cannot be had that has this key.
async fn taken<S: Store>(store: &S, address: IpAddr, entry: &Entry) -> Result<Error, StoreError> {
    let (whose, frees) = match record::decode_address(entry) {
        Ok(AddressHolder::Lease(id)) => {
            if store.read(&[Read::Get(keys::lease(&id))], None).await?.entry(0).is_none() {
                return Ok(Error::refused(format!("{address} {}", orphaned(&id)), MENDS_ORPHAN));
            }
            (id.to_string(), "`lease release` or `lease move` frees it")
        }
        Ok(AddressHolder::Device { reason, .. }) => {
            (format!("a device ({reason})"), "`lease release` frees it")
        }
        Err(error) => {
            let why = format!("{address} is not free: {error}");
            return Ok(Error::refused(why, "`leasehold check` says how to put it right"));
        }
    };
    Ok(Error::refused(
        format!("{address} is held by {whose}"),
        format!("`leasehold lease show {address}` tells more; {frees}"),
    ))
}

async fn reserve_device<S: Store>(
    store: &S,
    scope: &Scope,
    pools: &[Stored<Pool>],
    address: IpAddr,
    reason: &str,
    now: Timestamp,
    dry: bool,
) -> Result<Vec<Reserved>, Error> {
    let holding: BTreeSet<DomainName> = pools
        .iter()
        .filter(|pool| pool.value.ranges().iter().any(|range| range.subnet().contains(address)))
        .map(|pool| pool.value.domain().clone())
        .collect();
    let domain = match (&scope.domain, holding.len()) {
        (Some(said), _) => said.clone(),
        (None, 0) => DomainName::new(DEFAULT_DOMAIN).map_err(|error| Error::wrong(error.to_string(), ""))?,
        (None, 1) => holding.iter().next().cloned().ok_or_else(|| Error::wrong("no domain", ""))?,
        (None, _) => {
            let names: Vec<&str> = holding.iter().map(DomainName::as_str).collect();
            return Err(Error::wrong(
                format!("{address} is in several domains: {}", names.join(", ")),
                "say which: --domain NAME",
            ));
        }
    };
    let warning = (!holding.contains(&domain))
        .then(|| format!("{address} is in the subnet of no pool of domain {domain}"));
    let reads = [Read::Get(keys::address(&domain, address)), Read::Get(keys::released(&domain, address))];
    let snapshot = store.read(&reads, None).await?;
    if let Some(entry) = snapshot.entry(0) {
        return Err(taken(store, address, entry).await?);
    }
    let released = snapshot.entry(1).map(|entry| entry.revision);
    let txn = changes::reserve_device(&domain, address, released, reason, now);
    commit(store, &txn, &address.to_string(), dry).await?;
    Ok(vec![Reserved {
        whom: format!("a device ({reason})"),
        addresses: vec![address],
        domain,
        marked: false,
        warning,
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn aged(seconds: i64, wanted: &str) {
        assert_eq!(age(seconds * 1000), wanted);
    }

    #[test]
    fn ages_are_kubectls() {
        aged(-5, "0s");
        aged(0, "0s");
        aged(119, "119s");
        aged(120, "2m");
        aged(192, "3m12s");
        aged(600, "10m");
        aged(10_799, "179m");
        aged(10_800, "3h");
        aged(4 * 3_600 + 300, "4h5m");
        aged(9 * 3_600, "9h");
        aged(2 * 86_400, "2d");
        aged(2 * 86_400 + 3_600, "2d1h");
        aged(9 * 86_400, "9d");
        aged(41 * 86_400, "41d");
        aged(800 * 86_400, "2y70d");
        aged(3_000 * 86_400, "8y");
    }
}
