//! Forgetting the store's history, where nobody else does: 2 KB a pod fill etcd's quota in a million pods.
//!
//! Every full pass writes its time into the cluster's record, so the store itself knows which revision was the last one an
//! hour ago: no reaper has to have lived for so long, and one pass of a CronJob can do it, too.

use std::time::Duration;

use crate::{
    domain::{lease::Timestamp, names::ClusterName},
    store::{Read, Revision, Store, StoreError, Upkeep, keys, record},
};

/// Passes that are looked back at: an hour of a CronJob's minutes, several times over.
const STEPS: usize = 600;

/// Forgets what is older than `keep`, if it can be told which revision that is. `None`: there is nothing to do, or
/// somebody else keeps less than that.
///
/// # Errors
/// [`StoreError`].
pub async fn compact<S: Store + Upkeep>(
    store: &S,
    cluster: &ClusterName,
    keep: Duration,
    now: Timestamp,
) -> Result<Option<Revision>, StoreError> {
    let keep = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
    let mut at = None;
    for _ in 0..STEPS {
        let snapshot = match store.read(&[Read::Get(keys::cluster(cluster))], at).await {
            Err(StoreError::Compacted(_)) => return Ok(None),
            answer => answer?,
        };
        let Some(entry) = snapshot.entry(0) else { return Ok(None) };
        let last = record::decode_cluster(entry).ok().and_then(|stored| stored.value.last_reap);
        match last {
            Some(last) if now.since(last) >= keep => {
                store.compact_to(entry.revision).await?;
                return Ok(Some(entry.revision));
            }
            Some(_) => at = Some(Revision(entry.revision.0 - 1)),
            None => return Ok(None),
        }
    }
    Ok(None)
}
