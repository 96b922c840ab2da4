//! Pools: apply, create, diff, delete, list.
//!
//! A change is planned on what was read and sent with compares of it; if somebody else changed a pool meanwhile, it
//! is planned again. What harms is refused; what is seldom meant is a warning.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    net::IpAddr,
};

use serde_json::Value;

use super::{
    DocumentFault, Error, Scope, Sent, known, leases, read, read::StoredPool, read::read_spans, send,
};
use crate::{
    domain::{
        addr::{AddrRange, Family, number},
        audit::Place,
        lease::{Lease, LeaseId, Released, State, Timestamp},
        names::{ClusterName, DomainName, PoolName},
        pool::{Draft, Fault, Pool, Serve},
        words,
    },
    store::{
        Entry, Read, Revision, Span, Store, Txn, changes, keys,
        record::{self, PoolDocument, RecordError},
    },
};

/// A pool that somebody wants.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The file, and which document of it.
    pub origin: String,
    /// As it was written.
    pub document: PoolDocument,
    /// What it means.
    pub pool: Pool,
}

impl Wanted {
    /// Reads a document.
    ///
    /// # Errors
    /// Every fault that it has.
    pub fn read(origin: &str, document: PoolDocument) -> Result<Self, Vec<DocumentFault>> {
        match Pool::from_draft(&Draft::from(&document)) {
            Ok(pool) => Ok(Self { origin: origin.into(), document, pool }),
            Err(faults) => {
                Err(faults.into_iter().map(|fault| DocumentFault { origin: origin.into(), fault }).collect())
            }
        }
    }
}

/// What applying changes in the set of pools.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rules {
    /// Pools that no document names are deleted.
    pub prune: bool,
    /// Pools with leases may be deleted.
    pub force: bool,
    /// A pool of this name must not be there.
    pub only_new: bool,
    /// Nothing is written.
    pub dry: bool,
}

/// What becomes of a pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// It is made.
    Created,
    /// These fields change.
    Changed(Vec<FieldChange>),
    /// It is as it was.
    Unchanged,
    /// It goes.
    Deleted,
}

impl Change {
    /// The word, as kubectl says it.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed(_) => "configured",
            Self::Unchanged => "unchanged",
            Self::Deleted => "deleted",
        }
    }
}

/// A field of a document, before and after.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FieldChange {
    /// Its path, such as `ranges[0].end`.
    pub field: String,
    /// Before.
    pub old: Option<String>,
    /// After.
    pub new: Option<String>,
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.old, &self.new) {
            (Some(old), Some(new)) => write!(f, "~ {}: {old} -> {new}", self.field),
            (None, Some(new)) => write!(f, "+ {}: {new}", self.field),
            (Some(old), None) => write!(f, "- {}: {old}", self.field),
            (None, None) => write!(f, "  {}", self.field),
        }
    }
}

/// One pool of a plan.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name.
    pub name: PoolName,
    /// What becomes of it.
    pub change: Change,
    /// What is seldom meant.
    pub warnings: Vec<String>,
    /// Its leases that lie outside afterwards: they stay until their pods' next start.
    pub outside: Vec<(LeaseId, IpAddr)>,
    make: Option<Make>,
}

#[derive(Clone, Debug)]
enum Make {
    Apply { wanted: Box<Wanted>, old: Option<(Vec<Serve>, Revision)>, guards: Vec<Span> },
    Delete { serves: Vec<Serve>, read: Revision, guards: Vec<Span> },
}

struct Seen {
    revision: Revision,
    pools: Vec<StoredPool>,
    index: HashMap<PoolName, Vec<Serve>>,
    leases: Vec<Lease>,
    unread: usize,
    clusters: BTreeSet<ClusterName>,
}

async fn look<S: Store>(store: &S) -> Result<Seen, Error> {
    let spans = [keys::pools(), keys::serves(), keys::leases(), keys::clusters()];
    let (revision, found) = read_spans(store, &spans).await?;
    let mut index: HashMap<PoolName, Vec<Serve>> = HashMap::new();
    for (serve, pool) in found[1].iter().filter_map(|entry| keys::parse_serve(&entry.key)) {
        index.entry(pool).or_default().push(serve);
    }
    let leases: Vec<Lease> = found[2].iter().filter_map(|entry| read::lease(entry).ok()).collect();
    let unread = found[2].len() - leases.len();
    let clusters = found[3].iter().filter_map(|entry| keys::parse_cluster(&entry.key)).collect();
    Ok(Seen { revision, pools: read::stored_pools(&found[0]), index, leases, unread, clusters })
}

/// How often a plan is made anew because somebody else changed a pool.
const PLANS: usize = 5;

/// Makes the pools what the documents say.
///
/// # Errors
/// [`Error::Faults`], [`Error::Refused`] before anything is written; [`Error::Changed`] if others change pools
/// all the time.
pub async fn apply<S: Store>(store: &S, wanted: &[Wanted], rules: Rules) -> Result<Vec<Step>, Error> {
    let mut done: Vec<Step> = Vec::new();
    for _ in 0..PLANS {
        let state = look(store).await?;
        let steps = plan(&state, wanted, rules)?;
        if rules.dry {
            return Ok(steps);
        }
        let mut since = state.revision;
        let mut changed = false;
        for step in steps {
            if done.iter().any(|earlier| earlier.name == step.name && earlier.change != Change::Unchanged) {
                continue;
            }
            if let Some(make) = &step.make {
                match send(store, &make.txn(&step.name, state.revision, since)).await? {
                    Sent::Applied(revision) => since = revision,
                    Sent::Conflict => {
                        changed = true;
                        break;
                    }
                }
            }
            done.retain(|earlier| earlier.name != step.name);
            done.push(step);
        }
        if !changed {
            return Ok(done);
        }
    }
    Err(Error::Changed { what: "the set of pools".into() })
}

impl Make {
    /// `read`: when everything was read. `since`: our own last change of a pool; nobody else changed one after it, or
    /// what the plan rests on (no pool holds the gateway of another) would not be known.
    fn txn(&self, name: &PoolName, read: Revision, since: Revision) -> Txn {
        match self {
            Self::Apply { wanted, old, guards } => {
                let mut unless: Vec<(Span, Revision)> =
                    guards.iter().map(|span| (span.clone(), read)).collect();
                unless.push((keys::pools(), since));
                let old = old.as_ref().map(|(serves, revision)| (serves.as_slice(), *revision));
                changes::apply_pool(&wanted.document, &wanted.pool, old, &unless)
            }
            Self::Delete { serves, read: revision, guards } => {
                changes::delete_pool(name, serves, *revision, guards, read)
            }
        }
    }
}

fn plan(state: &Seen, wanted: &[Wanted], rules: Rules) -> Result<Vec<Step>, Error> {
    faults_between(state, wanted, rules)?;
    let old: HashMap<&PoolName, &StoredPool> = state.pools.iter().map(|p| (&p.name, p)).collect();
    let mut by_pool: HashMap<&PoolName, Vec<(&LeaseId, Place)>> = HashMap::new();
    for lease in &state.leases {
        for leased in &lease.addresses {
            if let Some(pool) = &leased.pool {
                let place = Place { domain: leased.domain.clone(), address: leased.address };
                by_pool.entry(pool).or_default().push((&lease.id, place));
            }
        }
    }
    let after = pools_after(state, wanted, rules);
    let none = Vec::new();
    let mut steps = Vec::new();
    for item in wanted {
        let name = item.pool.name();
        let leases = by_pool.get(name).unwrap_or(&none);
        let before = old.get(name);
        if let Some(before) = before
            && rules.only_new
        {
            return Err(Error::refused(
                format!("pool {} is there already", before.name),
                format!(
                    "change it with `leasehold pool apply`, beginning with `leasehold pool show {name} -o yaml`"
                ),
            ));
        }
        let mut warnings = item.pool.warnings();
        warnings.extend(overlaps(&item.pool, &after));
        warnings.extend(unregistered(&item.pool, &state.clusters));
        gateway_is_free(&item.pool, leases)?;
        let outside = leases
            .iter()
            .filter(|(_, place)| item.pool.range_of(place.address).is_none())
            .map(|(id, place)| ((*id).clone(), place.address))
            .collect();
        let mut guards = Vec::new();
        let (change, make) = match before {
            None => {
                // Deleted by force, its leases stay with their pods, and count on their domain.
                keeps_domain(name, &item.pool, leases)?;
                (Change::Created, Some((None, true)))
            }
            Some(before) => {
                if let Err(error @ RecordError::Newer { .. }) = &before.pool {
                    return Err(error.clone().into());
                }
                guards = domain_change(before, &item.pool, leases)?;
                let serves = state.index.get(name).cloned().unwrap_or_default();
                let same_index = serves.len() == item.pool.serves().len()
                    && serves.iter().all(|serve| item.pool.serves().contains(serve));
                let fields = differences(&before.entry.value, &item.document);
                let write = !fields.is_empty() || !same_index;
                let change = if write { Change::Changed(fields) } else { Change::Unchanged };
                (change, write.then_some((Some((serves, before.entry.revision)), true)))
            }
        };
        let make =
            make.map(|(old, _)| Make::Apply { wanted: Box::new(item.clone()), old, guards: guards.clone() });
        steps.push(Step { name: name.clone(), change, warnings, outside, make });
    }
    if rules.prune {
        for gone in state.pools.iter().filter(|pool| !wanted.iter().any(|w| *w.pool.name() == pool.name)) {
            steps.push(deletion(state, gone, by_pool.get(&gone.name).unwrap_or(&none), rules.force)?);
        }
    }
    Ok(steps)
}

/// A pool with leases keeps its domain. Gives what must not have changed since.
fn domain_change(
    before: &StoredPool,
    after: &Pool,
    leases: &[(&LeaseId, Place)],
) -> Result<Vec<Span>, Error> {
    match &before.pool {
        // What a lease of yet another domain says is a finding of `check`, and no reason to leave the pool as it is.
        Ok(old) if old.domain() == after.domain() => Ok(Vec::new()),
        Ok(old) => keeps_domain(&before.name, after, leases).map(|()| spans(old)),
        Err(_) => keeps_domain(&before.name, after, leases).map(|()| Vec::new()),
    }
}

/// The gateway answers on its address: a pod that has it would take the network down.
fn gateway_is_free(pool: &Pool, leases: &[(&LeaseId, Place)]) -> Result<(), Error> {
    let is_gateway = |place: &Place| {
        place.domain == *pool.domain()
            && pool.ranges().iter().any(|range| range.gateway() == Some(place.address))
    };
    match leases.iter().find(|(_, place)| is_gateway(place)) {
        Some((id, place)) => Err(Error::refused(
            format!("pool {}: the gateway {} is leased to {}", pool.name(), place.address, id.holder),
            "exclude the address first, and make it the gateway when its pod has another",
        )),
        None => Ok(()),
    }
}

fn keeps_domain(name: &PoolName, after: &Pool, leases: &[(&LeaseId, Place)]) -> Result<(), Error> {
    if let Some((_, place)) = leases.iter().find(|(_, place)| place.domain != *after.domain()) {
        return Err(Error::refused(
            format!(
                "pool {name}: domain {} -> {}: the pool has {} leases, which are unique in their old domain only",
                place.domain,
                after.domain(),
                leases.len()
            ),
            "make a new pool in the new domain, and move the workloads; then delete this one",
        ));
    }
    Ok(())
}

/// Clusters that it is for, and that nobody registered: it may be made before them.
fn unregistered(pool: &Pool, known: &BTreeSet<ClusterName>) -> Vec<String> {
    let unknown = pool.clusters().iter().filter(|name| !known.contains(name));
    let told = unknown.map(|name| {
        let near = known::did_you_mean(name.as_str(), known.iter().map(ClusterName::as_str));
        format!("cluster {name}{near} is not registered: none of its pods gets an address")
    });
    told.collect()
}

fn spans(pool: &Pool) -> Vec<Span> {
    pool.ranges().iter().map(|range| keys::addresses_of(pool.domain(), range.bounds())).collect()
}

fn deletion(
    state: &Seen,
    gone: &StoredPool,
    leases: &[(&LeaseId, Place)],
    force: bool,
) -> Result<Step, Error> {
    if let Err(error @ RecordError::Newer { .. }) = &gone.pool {
        return Err(error.clone().into());
    }
    if !force && !leases.is_empty() {
        let some: Vec<String> =
            leases.iter().take(3).map(|(id, p)| format!("{} {}", p.address, id.holder)).collect();
        let more = if leases.len() > some.len() { ", …" } else { "" };
        return Err(Error::refused(
            format!(
                "pool {} has {}: {}{more}",
                gone.name,
                words::count(leases.len(), "lease"),
                some.join(", ")
            ),
            "release them first; with --force they stay with their pods, which get another address at their next start",
        ));
    }
    if !force && state.unread > 0 {
        return Err(Error::refused(
            format!(
                "pool {}: {} cannot be read, and may be of it",
                gone.name,
                words::count(state.unread, "lease")
            ),
            "`leasehold check` says how to put them right; --force deletes the pool all the same",
        ));
    }
    let mut serves = state.index.get(&gone.name).cloned().unwrap_or_default();
    let guards = match &gone.pool {
        Ok(pool) => {
            serves.extend(pool.serves().iter().filter(|s| !serves.contains(s)).cloned().collect::<Vec<_>>());
            if force { Vec::new() } else { spans(pool) }
        }
        Err(_) => Vec::new(),
    };
    Ok(Step {
        name: gone.name.clone(),
        change: Change::Deleted,
        warnings: Vec::new(),
        outside: leases.iter().map(|(id, place)| ((*id).clone(), place.address)).collect(),
        make: Some(Make::Delete { serves, read: gone.entry.revision, guards }),
    })
}

/// The pools that there are afterwards.
fn pools_after<'a>(state: &'a Seen, wanted: &'a [Wanted], rules: Rules) -> Vec<&'a Pool> {
    let named: BTreeSet<&PoolName> = wanted.iter().map(|w| w.pool.name()).collect();
    let kept = state.pools.iter().filter(|pool| !rules.prune && !named.contains(&pool.name));
    kept.filter_map(|pool| pool.pool.as_ref().ok()).chain(wanted.iter().map(|w| &w.pool)).collect()
}

/// Faults that no document has by itself: one name twice, a usable set that holds another pool's gateway.
fn faults_between(state: &Seen, wanted: &[Wanted], rules: Rules) -> Result<(), Error> {
    let mut faults = Vec::new();
    let mut seen: BTreeMap<&PoolName, &str> = BTreeMap::new();
    for item in wanted {
        if let Some(first) = seen.insert(item.pool.name(), &item.origin) {
            faults.push(DocumentFault {
                origin: item.origin.clone(),
                fault: Fault {
                    field: "name".into(),
                    value: item.pool.name().to_string(),
                    problem: format!("is the name of another document, too ({first})"),
                },
            });
        }
    }
    let after = pools_after(state, wanted, rules);
    for item in wanted {
        for other in after.iter().filter(|other| other.name() != item.pool.name()) {
            if other.domain() != item.pool.domain() {
                continue;
            }
            for (index, range) in item.pool.ranges().iter().enumerate() {
                let mut push = |field: String, value: String, problem: String| {
                    faults.push(DocumentFault {
                        origin: item.origin.clone(),
                        fault: Fault { field, value, problem },
                    });
                };
                for theirs in other.ranges() {
                    if let Some(gateway) = theirs.gateway().filter(|g| range.usable().contains(*g)) {
                        push(
                            format!("ranges[{index}]"),
                            range.bounds().to_string(),
                            format!("holds {gateway}, the gateway of pool {}: exclude it", other.name()),
                        );
                    }
                    if let Some(gateway) = range.gateway().filter(|g| theirs.usable().contains(*g)) {
                        push(
                            format!("ranges[{index}].gateway"),
                            gateway.to_string(),
                            format!("can be leased from pool {}: exclude it there first", other.name()),
                        );
                    }
                }
            }
        }
    }
    faults.dedup();
    if faults.is_empty() { Ok(()) } else { Err(Error::Faults { faults }) }
}

fn overlaps(pool: &Pool, after: &[&Pool]) -> Vec<String> {
    let mut out = Vec::new();
    for other in after.iter().filter(|o| o.name() != pool.name() && o.domain() == pool.domain()) {
        let shared = pool
            .ranges()
            .iter()
            .find_map(|ours| other.ranges().iter().find_map(|theirs| common(ours.bounds(), theirs.bounds())));
        if let Some(shared) = shared {
            out.push(format!(
                "overlaps pool {} ({shared}): no address is leased twice, but either pool can take all of them",
                other.name()
            ));
        }
    }
    out
}

fn common(a: AddrRange, b: AddrRange) -> Option<AddrRange> {
    if !a.overlaps(b) {
        return None;
    }
    AddrRange::of_numbers(a.family(), a.first().max(b.first()), a.last().min(b.last()))
}

/// What differs between a record and a document.
fn differences(old: &[u8], new: &PoolDocument) -> Vec<FieldChange> {
    let mut before = serde_json::from_slice::<Value>(old).unwrap_or(Value::Null);
    let mut after = serde_json::to_value(new).unwrap_or(Value::Null);
    for document in [&mut before, &mut after] {
        if let Value::Object(map) = document {
            map.remove("v");
        }
    }
    let (mut a, mut b) = (BTreeMap::new(), BTreeMap::new());
    flatten("", &before, &mut a);
    flatten("", &after, &mut b);
    let fields: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    fields
        .into_iter()
        .filter(|field| a.get(*field) != b.get(*field))
        .map(|field| FieldChange {
            field: field.clone(),
            old: a.get(field).cloned(),
            new: b.get(field).cloned(),
        })
        .collect()
}

fn flatten(path: &str, value: &Value, out: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, out);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            for (index, value) in list.iter().enumerate() {
                flatten(&format!("{path}[{index}]"), value, out);
            }
        }
        Value::Array(list) => {
            let texts: Vec<String> = list.iter().map(plain).collect();
            if !texts.is_empty() {
                out.insert(path.into(), format!("[{}]", texts.join(", ")));
            }
        }
        Value::Null => {}
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            out.insert(path.into(), plain(value));
        }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// Deletes pools. Their leases, if that is forced, stay with their pods.
///
/// # Errors
/// [`Error::Missing`], [`Error::Refused`] while they have leases.
pub async fn delete<S: Store>(
    store: &S,
    names: &[PoolName],
    force: bool,
    dry: bool,
) -> Result<Vec<Step>, Error> {
    let state = look(store).await?;
    let mut steps = Vec::new();
    for name in names {
        let Some(gone) = state.pools.iter().find(|pool| pool.name == *name) else {
            return Err(no_such_pool(name, state.pools.iter().map(|p| p.name.as_str())));
        };
        let leases: Vec<(&LeaseId, Place)> = state
            .leases
            .iter()
            .flat_map(|lease| lease.addresses.iter().map(move |leased| (lease, leased)))
            .filter(|(_, leased)| leased.pool.as_ref() == Some(name))
            .map(|(lease, l)| (&lease.id, Place { domain: l.domain.clone(), address: l.address }))
            .collect();
        steps.push(deletion(&state, gone, &leases, force)?);
    }
    for step in steps.iter().filter(|_| !dry) {
        let Some(make) = &step.make else { continue };
        if send(store, &make.txn(&step.name, state.revision, state.revision)).await? == Sent::Conflict {
            return Err(Error::Changed { what: format!("pool {}, or its leases,", step.name) });
        }
    }
    Ok(steps)
}

/// There is no pool of this name; the nearest is named.
pub(crate) fn no_such_pool<'a>(name: &PoolName, known: impl IntoIterator<Item = &'a str>) -> Error {
    known::missing(format!("no pool {name}"), name.as_str(), known, "`leasehold pool list`")
}

/// A pool's document, as it was written.
///
/// # Errors
/// [`Error::Missing`].
pub async fn show<S: Store>(store: &S, name: &PoolName) -> Result<(Revision, PoolDocument), Error> {
    let snapshot = store.read(&[Read::Get(keys::pool(name))], None).await?;
    let Some(entry) = snapshot.entry(0) else {
        let (_, found) = read_spans(store, &[keys::pools()]).await?;
        let known: Vec<PoolName> = found[0].iter().filter_map(|e: &Entry| keys::parse_pool(&e.key)).collect();
        return Err(no_such_pool(name, known.iter().map(PoolName::as_str)));
    };
    let mut document: PoolDocument = serde_json::from_slice(&entry.value)
        .map_err(|error| RecordError::Invalid { key: entry.key.to_string(), reason: error.to_string() })?;
    document.v = None;
    Ok((snapshot.revision, document))
}

/// A pool, and how many of its addresses are what.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PoolRow {
    /// Its name.
    pub name: PoolName,
    /// What it means; `None` if its record cannot be read.
    pub pool: Option<Pool>,
    /// Why not.
    pub unreadable: Option<String>,
    /// Counts of the family that has the least free: a pod needs an address of each.
    pub counts: Counts,
    /// Counts of each family.
    pub families: Vec<(Family, Counts)>,
}

/// How many addresses of a pool are what. An address counts for the pool that its lease names; one of a device counts
/// for each pool that could lease it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Usable.
    pub size: u128,
    /// Bound.
    pub bound: u128,
    /// Held.
    pub held: u128,
    /// Given back, and not past the cool-down.
    pub cooling: u128,
    /// Reserved: for a pod that does not run, or a device.
    pub reserved: u128,
    /// A stranger answered on it.
    pub declined: u128,
    /// Nobody has it, it is not cooling, and no stranger has answered on it.
    pub free: u128,
    /// Usable ones that somebody has: of this pool, of an overlapping one, or a device.
    pub taken: u128,
    /// Leases that are kept because nobody knows.
    pub doubt: u128,
    /// Leases of addresses that it does not give out now.
    pub outside: u128,
}

impl Counts {
    /// Per cent of the usable addresses that somebody has, rounded; 100 only if all.
    #[must_use]
    pub fn used(&self) -> u128 {
        if self.size == 0 {
            return 100;
        }
        // A /64 has more addresses than can be multiplied by 200.
        let (mut taken, mut size) = (self.taken, self.size);
        while size > u128::MAX >> 9 {
            taken >>= 1;
            size >>= 1;
        }
        let rounded = (taken * 200 + size) / (size * 2);
        if rounded >= 100 && self.taken < self.size { 99 } else { rounded }
    }
}

/// The pools, at one revision, by name.
///
/// # Errors
/// [`Error::Store`]; [`Error::Missing`] if the cluster or the domain that is asked for is not known.
pub async fn list<S: Store>(
    store: &S,
    scope: &Scope,
    now: Timestamp,
) -> Result<(Revision, Vec<PoolRow>), Error> {
    if scope.cluster.is_some() || scope.domain.is_some() {
        known::check(store, scope, None).await?;
    }
    let spans = [keys::pools(), keys::leases(), keys::addresses(), keys::all_released()];
    let (revision, found) = read_spans(store, &spans).await?;
    let pools = read::stored_pools(&found[0]);
    let mut tally = Tally::new(&pools, now);
    for lease in found[1].iter().filter_map(|entry| read::lease(entry).ok()) {
        tally.lease(&lease);
    }
    for entry in &found[2] {
        tally.address_entry(entry);
    }
    for entry in &found[3] {
        tally.released_entry(entry);
    }
    let rows = tally.rows();
    let of_cluster =
        |pool: &Pool| pool.clusters().is_empty() || pool.clusters().iter().any(|c| scope.takes(c));
    let inside = |row: &PoolRow| {
        row.pool.as_ref().is_none_or(|pool| scope.takes_domain(pool.domain()) && of_cluster(pool))
    };
    Ok((revision, rows.into_iter().filter(inside).collect()))
}

/// Counts pools while leases, address keys and released keys go by, one after the other: nothing of them is kept.
pub(crate) struct Tally<'a> {
    pools: &'a [StoredPool],
    by_name: HashMap<&'a PoolName, usize>,
    /// Usable runs, by family and first address: whose they are.
    runs: HashMap<(&'a DomainName, Family), Vec<Run>>,
    counts: HashMap<(usize, Family), Counts>,
    now: Timestamp,
}

/// A run of usable addresses.
struct Run {
    first: u128,
    last: u128,
    /// The highest `last` up to here: no run before this one reaches further.
    reach: u128,
    pool: usize,
}

impl<'a> Tally<'a> {
    pub(crate) fn new(pools: &'a [StoredPool], now: Timestamp) -> Self {
        let mut runs: HashMap<(&DomainName, Family), Vec<Run>> = HashMap::new();
        for (index, pool) in pools.iter().enumerate() {
            let Ok(pool) = &pool.pool else { continue };
            for range in pool.ranges() {
                let of = runs.entry((pool.domain(), range.family())).or_default();
                of.extend(range.usable().runs().iter().map(|run| Run {
                    first: run.first(),
                    last: run.last(),
                    reach: run.last(),
                    pool: index,
                }));
            }
        }
        for of in runs.values_mut() {
            of.sort_by_key(|run| run.first);
            let mut reach = 0;
            for run in of {
                reach = run.last.max(reach);
                run.reach = reach;
            }
        }
        let by_name = pools.iter().enumerate().map(|(index, pool)| (&pool.name, index)).collect();
        Self { pools, by_name, runs, counts: HashMap::new(), now }
    }

    pub(crate) fn lease(&mut self, lease: &Lease) {
        let doubt = leases::doubt(lease, self.now).is_some();
        for leased in &lease.addresses {
            let Some(index) = leased.pool.as_ref().and_then(|name| self.by_name.get(name)) else { continue };
            let count = self.counts.entry((*index, Family::of(leased.address))).or_default();
            match lease.state() {
                State::Bound => count.bound += 1,
                State::Held => count.held += 1,
                State::Reserved => count.reserved += 1,
            }
            count.doubt += u128::from(doubt);
            let pool = self.pools[*index].pool.as_ref();
            let inside = pool.is_ok_and(|pool| pool.range_of(leased.address).is_some());
            count.outside += u128::from(!inside);
        }
    }

    /// An address that somebody has; `device`: a reservation without a pod.
    fn address(&mut self, place: &Place, device: bool) {
        self.each(place, |_, count| {
            count.taken += 1;
            count.reserved += u128::from(device);
        });
    }

    /// An address key.
    pub(crate) fn address_entry(&mut self, entry: &Entry) {
        if let Some(place) = keys::parse_held(&entry.key) {
            self.address(&read::place(place), leases::is_device(entry));
        }
    }

    /// A released key.
    pub(crate) fn released_entry(&mut self, entry: &Entry) {
        if let Some(place) = keys::parse_released(&entry.key)
            && let Ok(stored) = record::decode_released(entry)
        {
            self.released(&read::place(place), &stored.value);
        }
    }

    fn released(&mut self, place: &Place, released: &Released) {
        let gone = i128::from(self.now.since(released.at));
        self.each(place, |pool, count| {
            if released.declined.is_some() {
                count.declined += 1;
            } else if gone < i128::try_from(pool.cool_down().as_millis()).unwrap_or(i128::MAX) {
                count.cooling += 1;
            }
        });
    }

    /// All pools that could lease it.
    fn each(&mut self, place: &Place, mut act: impl FnMut(&Pool, &mut Counts)) {
        let (family, number) = (Family::of(place.address), number(place.address));
        let Some(runs) = self.runs.get(&(&place.domain, family)) else { return };
        let to = runs.partition_point(|run| run.first <= number);
        for run in runs[..to].iter().rev().take_while(|run| run.reach >= number) {
            if run.last >= number
                && let Ok(pool) = &self.pools[run.pool].pool
            {
                act(pool, self.counts.entry((run.pool, family)).or_default());
            }
        }
    }

    pub(crate) fn rows(mut self) -> Vec<PoolRow> {
        let counts = &mut self.counts;
        let row = |(index, stored): (usize, &StoredPool)| {
            let mut families = Vec::new();
            for family in [Family::V4, Family::V6] {
                let pool = stored.pool.as_ref().ok().filter(|pool| pool.families().contains(&family));
                let count = counts.remove(&(index, family));
                if pool.is_none() && count.is_none() {
                    continue;
                }
                let mut count = count.unwrap_or_default();
                for range in pool.iter().flat_map(|pool| pool.ranges()).filter(|r| r.family() == family) {
                    count.size = count.size.saturating_add(range.usable().size());
                }
                count.free = count.size.saturating_sub(count.taken + count.cooling + count.declined);
                families.push((family, count));
            }
            // What lies outside of all ranges has no size of its own: it is not the tightest.
            let tightest = families.iter().min_by_key(|(_, count)| (count.size == 0, count.free));
            let counts = tightest.map(|(_, count)| *count).unwrap_or_default();
            PoolRow {
                name: stored.name.clone(),
                pool: stored.pool.as_ref().ok().cloned(),
                unreadable: stored.pool.as_ref().err().map(ToString::to_string),
                counts,
                families,
            }
        };
        self.pools.iter().enumerate().map(row).collect()
    }
}
