//! What a pass reads of the store, page by page and at one revision: no answer, and no memory but that of the leases
//! themselves, grows with the store.

use std::collections::{BTreeSet, HashMap};

use crate::{
    domain::{
        lease::Lease,
        names::{ClusterName, PoolName, Uid},
        pool::Pool,
    },
    store::{
        Entry, Read, Revision, Span, Store, StoreError, keys,
        record::{self, RecordError},
    },
};

/// A lease has some 500 bytes: a page is some MiB of the memory of a pass. Not smaller: for each, etcd counts the rest.
const PAGE: u32 = 5_000;
/// A store that compacts faster than it can be read is not read by trying longer.
const TRIES: usize = 5;

/// What a pass begins with, all at one revision.
pub(super) struct Start {
    /// The revision.
    pub(super) revision: Revision,
    /// Who the store says that the cluster is; `None`: nobody registered it.
    pub(super) cluster: Option<Result<Uid, RecordError>>,
    /// Its leases, in the order of their keys.
    pub(super) leases: Vec<(Lease, Revision)>,
    /// Records of leases and pools that cannot be read: key and why.
    pub(super) unreadable: Vec<(String, String)>,
    /// The pools; why, where one cannot be read.
    pub(super) pools: HashMap<PoolName, Result<Pool, String>>,
    /// The names of the clusters that are registered.
    pub(super) known: BTreeSet<ClusterName>,
}

/// Reads it; begins again if the revision is compacted meanwhile. `progress` is told how many leases have come.
pub(super) async fn start<S: Store>(
    store: &S,
    cluster: &ClusterName,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Start, StoreError> {
    let mut tries = TRIES;
    loop {
        tries -= 1;
        match start_once(store, cluster, progress).await {
            Err(StoreError::Compacted(_)) if tries > 0 => {}
            ended => return ended,
        }
    }
}

async fn start_once<S: Store>(
    store: &S,
    cluster: &ClusterName,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Start, StoreError> {
    let mut start = Start {
        revision: Revision::default(),
        cluster: None,
        leases: Vec::new(),
        unreadable: Vec::new(),
        pools: HashMap::new(),
        known: BTreeSet::new(),
    };
    let first = pages(store, &keys::leases_of(cluster), None, |entries| {
        for entry in entries {
            match record::decode_lease(entry) {
                Ok(stored) => start.leases.push((stored.value, stored.revision)),
                Err(error) => start.unreadable.push((entry.key.to_string(), reason(error))),
            }
        }
        progress(start.leases.len());
    })
    .await?;
    start.revision = first;
    pages(store, &keys::clusters(), Some(first), |entries| {
        for entry in entries {
            let Some(name) = keys::parse_cluster(&entry.key) else { continue };
            if name == *cluster {
                start.cluster = Some(record::decode_cluster(entry).map(|stored| stored.value.uid));
            }
            start.known.insert(name);
        }
    })
    .await?;
    pages(store, &keys::pools(), Some(first), |entries| {
        for entry in entries {
            let Some(name) = keys::parse_pool(&entry.key) else { continue };
            let pool = record::decode_pool(entry).map(|stored| stored.value).map_err(reason);
            if let Err(why) = &pool {
                start.unreadable.push((entry.key.to_string(), why.clone()));
            }
            start.pools.insert(name, pool);
        }
    })
    .await?;
    Ok(start)
}

pub(super) fn reason(error: RecordError) -> String {
    match error {
        RecordError::Invalid { reason, .. } => reason,
        RecordError::Newer { found, .. } => format!("version {found}: a newer leasehold wrote it"),
    }
}

/// Hands on all entries of an interval, a page at a time, at `at` or at the revision of the first page, which it gives.
pub(super) async fn pages<S: Store>(
    store: &S,
    span: &Span,
    at: Option<Revision>,
    mut each: impl FnMut(&[Entry]),
) -> Result<Revision, StoreError> {
    let mut at = at;
    let mut rest = span.clone();
    loop {
        let read = Read::List { span: rest.clone(), keys_only: false, limit: Some(PAGE) };
        let snapshot = store.read(&[read], at).await?;
        let revision = *at.get_or_insert(snapshot.revision);
        let entries = snapshot.entries(0);
        each(entries);
        match entries.last() {
            Some(last) if entries.len() >= PAGE as usize => rest = span.after(&last.key),
            Some(_) | None => return Ok(revision),
        }
    }
}
