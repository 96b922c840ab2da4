//! Registered clusters, and the freezing of a store.

use super::{Error, Sent, known::no_such_cluster, read::one, read::read_spans, send, tally};
use crate::{
    domain::{
        lease::Timestamp,
        names::{ClusterName, StoreId, Uid},
        words,
    },
    store::{
        Entry, Read, Revision, Store, Txn, changes, keys,
        record::{self, Cluster, Frozen},
    },
};

/// A registered cluster, and how many leases it has.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ClusterRow {
    /// Its name.
    pub name: ClusterName,
    /// The UID of its namespace kube-system, and the last reap; or why the record cannot be read.
    pub cluster: Result<Cluster, String>,
    /// Its leases.
    pub leases: u64,
}

/// The registered clusters, at one revision.
///
/// # Errors
/// [`Error::Store`].
pub async fn list<S: Store>(store: &S) -> Result<(Revision, Vec<ClusterRow>), Error> {
    let (revision, found) = read_spans(store, &[keys::clusters(), keys::leases()]).await?;
    let counts = tally(found[1].iter().filter_map(|e| keys::parse_lease(&e.key)).map(|id| id.cluster));
    let rows = found[0]
        .iter()
        .filter_map(|entry| {
            let name = keys::parse_cluster(&entry.key)?;
            let cluster = record::decode_cluster(entry).map(|c| c.value).map_err(|error| error.to_string());
            let leases = counts.get(&name).copied().unwrap_or(0);
            Some(ClusterRow { name, cluster, leases })
        })
        .collect();
    Ok((revision, rows))
}

/// What adding a cluster did.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Added {
    /// It is new.
    Registered,
    /// It was registered with this UID.
    Already,
}

/// Registers a cluster with the UID of its namespace kube-system; makes the store's identity, `fresh`, if it has none.
///
/// # Errors
/// [`Error::Refused`] if another UID has the name, or the UID another name.
pub async fn add<S: Store>(
    store: &S,
    name: &ClusterName,
    uid: &Uid,
    fresh: StoreId,
    dry: bool,
) -> Result<Added, Error> {
    let snapshot = store.read(&[Read::Get(keys::meta()), Read::list(keys::clusters())], None).await?;
    let key = keys::cluster(name);
    for entry in snapshot.entries(1) {
        let Ok(found) = record::decode_cluster(entry) else {
            if entry.key == key {
                record::decode_cluster(entry)?;
            }
            continue;
        };
        match (entry.key == key, found.value.uid == *uid) {
            (true, true) if snapshot.entry(0).is_some() => return Ok(Added::Already),
            (true, false) => {
                return Err(Error::refused(
                    format!("cluster {name} is registered with UID {}, not {uid}", found.value.uid),
                    "give this cluster another name; if the old one is gone for good: `leasehold cluster delete`",
                ));
            }
            (false, true) => {
                let other = keys::parse_cluster(&entry.key).map_or_else(String::new, |n| n.to_string());
                return Err(Error::refused(
                    format!("UID {uid} is registered as cluster {other}"),
                    format!("use the name {other}: one cluster with two names would not know its own leases"),
                ));
            }
            (true, true) | (false, false) => {}
        }
    }
    let meta = snapshot.entry(0);
    meta.map(record::decode_meta).transpose()?;
    let there = snapshot.entries(1).iter().find(|entry| entry.key == key).map(|entry| entry.revision);
    let txn = changes::register((name, uid), there, meta.map(|meta| meta.revision), &fresh);
    commit(store, &txn, &format!("cluster {name}"), dry).await?;
    Ok(if there.is_some() { Added::Already } else { Added::Registered })
}

/// Forgets a cluster.
///
/// # Errors
/// [`Error::Refused`] while it has leases, unless forced; [`Error::Missing`].
pub async fn delete<S: Store>(store: &S, name: &ClusterName, force: bool, dry: bool) -> Result<usize, Error> {
    let reads = [Read::Get(keys::cluster(name)), Read::Count(keys::leases_of(name))];
    let snapshot = store.read(&reads, None).await?;
    let Some(entry) = snapshot.entry(0) else {
        return Err(no_such_cluster(name, &names(store).await?.into_iter().collect()));
    };
    let leases = usize::try_from(snapshot.count(1)).unwrap_or(usize::MAX);
    if leases > 0 && !force {
        return Err(Error::refused(
            format!("cluster {name} has {}", words::count(leases, "lease")),
            "release them first; with --force they stay, and nothing can be leased in this cluster",
        ));
    }
    let txn = changes::unregister(name, entry.revision, (!force).then_some(snapshot.revision));
    commit(store, &txn, &format!("cluster {name}"), dry).await?;
    Ok(leases)
}

/// What freezing did.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Freeze {
    /// It is frozen now.
    Frozen,
    /// It was, and stays so for the reason that stands there.
    Already(Frozen),
}

/// Nothing new is leased until [`thaw`]. A store that is frozen keeps its first reason.
///
/// # Errors
/// [`Error::Store`].
pub async fn freeze<S: Store>(store: &S, frozen: &Frozen, dry: bool) -> Result<Freeze, Error> {
    if let Some(entry) = get_frozen(store).await? {
        return Ok(Freeze::Already(record::decode_frozen(&entry)));
    }
    commit(store, &changes::freeze(frozen), "the store's freeze", dry).await?;
    Ok(Freeze::Frozen)
}

/// Ends a freeze and gives the store a new identity.
/// Gives why it was frozen; `None` if it was not.
///
/// # Errors
/// [`Error::Store`].
pub async fn thaw<S: Store>(store: &S, fresh: StoreId, dry: bool) -> Result<Option<Frozen>, Error> {
    let snapshot = store.read(&[Read::Get(keys::frozen()), Read::Get(keys::meta())], None).await?;
    let Some(entry) = snapshot.entry(0) else { return Ok(None) };
    let meta = snapshot.entry(1);
    if let Some(meta) = meta {
        record::decode_meta(meta)?;
    }
    let txn = changes::thaw(entry.revision, meta.map(|meta| meta.revision), &fresh);
    commit(store, &txn, "the store's freeze", dry).await?;
    Ok(Some(record::decode_frozen(entry)))
}

/// Why the store is frozen; `None` if it is not.
///
/// # Errors
/// [`Error::Store`].
pub async fn frozen<S: Store>(store: &S) -> Result<Option<Frozen>, Error> {
    Ok(get_frozen(store).await?.as_ref().map(record::decode_frozen))
}

/// The names of the registered clusters.
pub(crate) async fn names<S: Store>(store: &S) -> Result<Vec<ClusterName>, Error> {
    let (_, found) = read_spans(store, &[keys::clusters()]).await?;
    Ok(found[0].iter().filter_map(|entry| keys::parse_cluster(&entry.key)).collect())
}

/// A frozen record by who and when.
#[must_use]
pub fn reason(why: String, by: String, at: Timestamp) -> Frozen {
    Frozen { why, by, at }
}

async fn get_frozen<S: Store>(store: &S) -> Result<Option<Entry>, Error> {
    let (_, mut found) = read_spans(store, &[one(&keys::frozen())]).await?;
    Ok(found.remove(0).into_iter().next())
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
