//! Half pairs: an address key without its lease, a lease without its address key, an attachment of nobody. No
//! transaction of ours leaves one; a person with another tool, or a store mended by hand, does (B013).
//!
//! The whole store is looked through with one number a key. Only what looks wrong is read again, with all that hangs on
//! it and all that lists its addresses, of any cluster, and given to the audit and the repairs of `leasehold check`: what
//! those cannot prove stays for a person. A lease that is lost is written again, and the next passes judge it. Where a pod
//! could still lose something, the API is asked for it first.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use super::{
    read::{pages, reason},
    stop::Stop,
};
use crate::{
    admin::{
        self,
        check::{Plans, Repair},
        read::Contents,
    },
    domain::{
        audit::{Kind, Note, Place, audit},
        kubernetes::{Pod, PodKey},
        lease::{AddressHolder, Holder, Lease, LeaseId, Timestamp},
        names::ClusterName,
    },
    pods::{ApiError, Cluster},
    store::{Entry, Key, Read, Revision, Store, StoreError, changes, keys, record},
};

/// More half pairs than that are no accident: a person looks first. Also what one transaction can read again.
const MOST: usize = 100;
/// What one read may ask (etcd's own limit of a transaction).
const READS: usize = 100;
/// What is said of a key that is none of ours.
const NAMES_NOTHING: &str = "the key names nothing";

/// What was found, and what became of it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Mended {
    /// The store was looked through.
    pub looked: bool,
    /// Each half pair, and what became of it.
    pub notes: Vec<(Note, Repair)>,
    /// There are more than a pass mends by itself.
    pub too_many: bool,
    /// Records that cannot be read among what was looked through: key and why. What they are half of is not guessed.
    pub unreadable: Vec<(String, String)>,
}

/// What the store was looked through for.
#[derive(Default)]
pub(super) struct Suspicious {
    /// The keys to look at again.
    keys: BTreeSet<Key>,
    /// Records that cannot be read: key and why.
    unreadable: Vec<(String, String)>,
}

fn hash(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

/// The keys at `at` that contradict the leases of the same revision, and those whose records cannot be read.
pub(super) async fn suspicious<S: Store>(
    store: &S,
    cluster: &ClusterName,
    leases: &[(Lease, Revision)],
    at: Revision,
) -> Result<Suspicious, StoreError> {
    let mut addresses: HashMap<u64, usize> = HashMap::with_capacity(leases.len());
    let mut attachments: HashMap<u64, usize> = HashMap::with_capacity(leases.len());
    for (index, (lease, _)) in leases.iter().enumerate() {
        for leased in &lease.addresses {
            let key = keys::address(&leased.domain, leased.address);
            addresses.insert(hash((key.as_str(), &lease.id)), index);
        }
        if let Some(stamp) = lease.bound() {
            let key = changes::attachment_key(&lease.id, stamp);
            attachments.insert(hash((key.as_str(), &lease.id)), index);
        }
    }
    let mut found = Suspicious::default();
    let mut held: HashSet<u64> = HashSet::with_capacity(leases.len());
    pages(store, &keys::addresses(), Some(at), |entries| {
        for entry in entries {
            let Some(place) = keys::parse_held(&entry.key) else {
                found.unread(entry, NAMES_NOTHING);
                continue;
            };
            held.insert(hash(place));
            match record::decode_address(entry) {
                Ok(AddressHolder::Lease(id)) => found.check(cluster, entry, &id, &mut addresses),
                Ok(AddressHolder::Device { .. }) => {}
                // It says of no cluster that it is its own: each reaper tells of it.
                Err(error) => found.unread(entry, &reason(error)),
            }
        }
    })
    .await?;
    pages(store, &keys::attachments(), Some(at), |entries| {
        for entry in entries {
            match (keys::parse_attachment(&entry.key), record::decode_pointer(entry)) {
                (None, _) => found.unread(entry, NAMES_NOTHING),
                (Some(key), _) if key.cluster != *cluster => {}
                (Some(_), Ok(id)) => found.check(cluster, entry, &id, &mut attachments),
                (Some(_), Err(error)) => found.unread(entry, &reason(error)),
            }
        }
    })
    .await?;
    pages(store, &keys::all_released(), Some(at), |entries| {
        for entry in entries {
            let Some(place) = keys::parse_released(&entry.key) else {
                found.unread(entry, NAMES_NOTHING);
                continue;
            };
            if held.contains(&hash(&place)) {
                found.keys.insert(keys::address(&place.0, place.1));
                found.keys.insert(entry.key.clone());
            }
            if let Err(error) = record::decode_released(entry) {
                found.unread(entry, &reason(error));
            }
        }
    })
    .await?;
    for index in addresses.into_values().chain(attachments.into_values()) {
        found.keys.insert(keys::lease(&leases[index].0.id));
    }
    Ok(found)
}

impl Suspicious {
    /// Does a lease expect this key, which names `id`? What is of another cluster is not ours to judge here.
    fn check(
        &mut self,
        cluster: &ClusterName,
        entry: &Entry,
        id: &LeaseId,
        expected: &mut HashMap<u64, usize>,
    ) {
        if id.cluster == *cluster && expected.remove(&hash((entry.key.as_str(), id))).is_none() {
            self.keys.insert(entry.key.clone());
            self.keys.insert(keys::lease(id));
        }
    }

    fn unread(&mut self, entry: &Entry, why: &str) {
        self.unreadable.push((entry.key.to_string(), why.into()));
    }
}

/// Reads what is suspicious again, with all that hangs on it, and mends what can be mended; `dry`: says what would be.
pub(super) async fn mend<S: Store, K: Cluster>(
    store: &S,
    (api, cluster): (&K, &ClusterName),
    suspicious: Suspicious,
    now: Timestamp,
    dry: bool,
    stop: &Stop,
) -> Result<Mended, admin::Error> {
    let Suspicious { keys: suspicious, unreadable } = suspicious;
    let mut mended = Mended { looked: true, unreadable, ..Mended::default() };
    if suspicious.is_empty() {
        return Ok(mended);
    }
    mended.too_many = suspicious.len() > 2 * MOST;
    let suspicious: BTreeSet<Key> = suspicious.into_iter().take(2 * MOST).collect();
    let contents = read_again(store, suspicious).await?;
    let mut plans = Plans::new(&contents, now);
    for note in audit(&contents.everything).into_iter().filter(|note| is_half(&note.kind)) {
        if stop.is_wanted() {
            break;
        }
        let certain = is_known(&note.kind, cluster) && plans.of(&note).is_some();
        let repair = if !certain || !may(api, cluster, &plans, &note.kind).await {
            Repair::ByHand
        } else if dry || mended.too_many {
            Repair::Possible
        } else {
            plans.mend(store, &note).await?
        };
        mended.notes.push((note, repair));
    }
    Ok(mended)
}

/// The pools, and these keys with all that hangs on them, at one revision.
async fn read_again<S: Store>(store: &S, suspicious: BTreeSet<Key>) -> Result<Contents, StoreError> {
    let mut again = Again { wanted: suspicious, ..Again::default() };
    again.revision = pages(store, &keys::pools(), None, |pools| {
        again.entries.extend(pools.iter().map(|entry| (entry.key.clone(), entry.clone())));
    })
    .await?;
    again.read(store).await?;
    // Clusters share their domains: who lists an address may be a lease of another cluster.
    while again.find_who_lists(store).await? {
        again.read(store).await?;
    }
    let all: Vec<Entry> = again.entries.into_values().collect();
    Ok(Contents::of(again.revision, &all))
}

/// What is read again, all at one revision.
#[derive(Default)]
struct Again {
    wanted: BTreeSet<Key>,
    asked: HashSet<Key>,
    /// The address keys whose listing leases are known.
    looked_up: HashSet<Key>,
    entries: BTreeMap<Key, Entry>,
    revision: Revision,
}

impl Again {
    /// What is read names more: an address its lease, a lease its addresses and its attachment. Three steps end it.
    async fn read<S: Store>(&mut self, store: &S) -> Result<(), StoreError> {
        loop {
            let next: Vec<Key> =
                self.wanted.iter().filter(|key| !self.asked.contains(key)).cloned().collect();
            if next.is_empty() {
                return Ok(());
            }
            for some in next.chunks(READS) {
                let reads: Vec<Read> = some.iter().cloned().map(Read::Get).collect();
                let snapshot = store.read(&reads, Some(self.revision)).await?;
                for entry in (0..reads.len()).filter_map(|index| snapshot.entry(index)) {
                    hangs_on(entry, &mut self.wanted);
                    self.entries.insert(entry.key.clone(), entry.clone());
                }
                self.asked.extend(some.iter().cloned());
            }
        }
    }

    /// Looks through the leases of all clusters for those that list an address in question. `true`: there are some that
    /// are still to be read.
    async fn find_who_lists<S: Store>(&mut self, store: &S) -> Result<bool, StoreError> {
        let is_new = |key: &&Key| keys::parse_held(key).is_some() && !self.looked_up.contains(*key);
        let in_question: HashSet<Key> = self.wanted.iter().filter(is_new).cloned().collect();
        if in_question.is_empty() {
            return Ok(false);
        }
        let mut found = Vec::new();
        pages(store, &keys::leases(), Some(self.revision), |entries| {
            let lists = |entry: &&Entry| {
                record::decode_lease(entry).is_ok_and(|stored| {
                    let mut addresses = stored.value.addresses.iter();
                    addresses
                        .any(|leased| in_question.contains(&keys::address(&leased.domain, leased.address)))
                })
            };
            found.extend(entries.iter().filter(lists).map(|entry| entry.key.clone()));
        })
        .await?;
        self.looked_up.extend(in_question);
        let known = self.wanted.len();
        self.wanted.extend(found);
        Ok(self.wanted.len() > known)
    }
}

/// Is it half a pair? What the audit says of pools is not known here: not all was read.
const fn is_half(kind: &Kind) -> bool {
    match kind {
        Kind::AddressWithoutLease { .. }
        | Kind::AddressNotListed { .. }
        | Kind::AddressAstray { .. }
        | Kind::LeaseWithoutAddress { .. }
        | Kind::LeaseWithoutAttachment { .. }
        | Kind::StaleAttachment { .. }
        | Kind::AttachmentAstray { .. }
        | Kind::HeldAndReleased { .. } => true,
        Kind::ServeNotIndexed { .. }
        | Kind::ServeStale { .. }
        | Kind::AddressOfAnother { .. }
        | Kind::AddressTwice { .. }
        | Kind::TwoOfAFamily { .. }
        | Kind::OutsidePool { .. }
        | Kind::PoolGone { .. }
        | Kind::OtherDomain { .. }
        | Kind::StickyContainer { .. }
        | Kind::Unreadable { .. }
        | Kind::Newer { .. } => false,
    }
}

/// Was everything read that it rests on? Of a lease of another cluster not: what names it is left to its own reaper.
fn is_known(kind: &Kind, cluster: &ClusterName) -> bool {
    let (Kind::AddressWithoutLease { lease, .. }
    | Kind::AddressNotListed { lease, .. }
    | Kind::AddressAstray { named: lease, .. }
    | Kind::LeaseWithoutAttachment { lease, .. }
    | Kind::StaleAttachment { lease, .. }) = kind
    else {
        return true;
    };
    lease.cluster == *cluster
}

/// Does the API say, live, that no pod loses anything by this repair?
async fn may<K: Cluster>(api: &K, cluster: &ClusterName, plans: &Plans<'_>, kind: &Kind) -> bool {
    if let Kind::AddressNotListed { place, lease } = kind {
        return match pod_of(api, cluster, lease).await {
            Some(Ok(found)) => found.is_none_or(|pod| !runs_with(&pod, place)),
            Some(Err(_)) => false,
            None => true,
        };
    }
    let in_doubt = if let Kind::AddressAstray { named, .. } = kind {
        // The store knows no container of it, but its pod may have one.
        Some(named).filter(|id| !plans.has(id))
    } else if let Kind::StaleAttachment { lease, .. } = kind {
        // A pod that runs without its lease and its address is told of, until a person has seen to it.
        Some(lease).filter(|id| plans.is_lost(id))
    } else {
        None
    };
    match in_doubt {
        Some(id) => matches!(pod_of(api, cluster, id).await, Some(Ok(None))),
        None => true,
    }
}

fn runs_with(pod: &Pod, place: &Place) -> bool {
    pod.addresses.iter().any(|shown| shown.address == place.address)
}

/// The pod, as the API shows it now; `None`: of a container without a pod, and of another cluster, it knows nothing.
async fn pod_of<K: Cluster>(
    api: &K,
    cluster: &ClusterName,
    id: &LeaseId,
) -> Option<Result<Option<Pod>, ApiError>> {
    match &id.holder {
        Holder::Pod { namespace, name } if id.cluster == *cluster => {
            let key = PodKey { namespace: namespace.clone(), name: name.clone() };
            Some(api.pod(&key).await.map(|live| live.found))
        }
        Holder::Pod { .. } | Holder::Container(_) => None,
    }
}

/// The other keys that this one must agree with.
fn hangs_on(entry: &Entry, wanted: &mut BTreeSet<Key>) {
    if let Some((domain, address)) = keys::parse_held(&entry.key).or_else(|| keys::parse_released(&entry.key))
    {
        wanted.insert(keys::address(&domain, address));
        wanted.insert(keys::released(&domain, address));
    }
    if keys::parse_held(&entry.key).is_some() || keys::parse_attachment(&entry.key).is_some() {
        wanted.extend(record::decode_pointer(entry).ok().map(|id| keys::lease(&id)));
    }
    if keys::parse_lease(&entry.key).is_some()
        && let Ok(stored) = record::decode_lease(entry)
    {
        let lease = stored.value;
        wanted.extend(lease.bound().map(|stamp| changes::attachment_key(&lease.id, stamp)));
        for leased in &lease.addresses {
            wanted.insert(keys::address(&leased.domain, leased.address));
            wanted.insert(keys::released(&leased.domain, leased.address));
        }
    }
}
