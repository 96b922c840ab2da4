//! How many addresses of each pool are what, for metrics and Events: the store goes by in pages, and is not kept.

use super::read::pages;
use crate::{
    admin::{
        pools::{PoolRow, Tally},
        read,
    },
    domain::lease::Timestamp,
    store::{Store, StoreError, keys, record},
};

/// The pools, counted at one revision.
///
/// # Errors
/// [`StoreError`].
pub async fn count<S: Store>(store: &S, now: Timestamp) -> Result<Vec<PoolRow>, StoreError> {
    let mut stored = Vec::new();
    let at = pages(store, &keys::pools(), None, |entries| stored.extend(read::stored_pools(entries))).await?;
    let mut tally = Tally::new(&stored, now);
    pages(store, &keys::leases(), Some(at), |entries| {
        for lease in entries.iter().filter_map(|entry| record::decode_lease(entry).ok()) {
            tally.lease(&lease.value);
        }
    })
    .await?;
    pages(store, &keys::addresses(), Some(at), |entries| {
        entries.iter().for_each(|entry| tally.address_entry(entry));
    })
    .await?;
    pages(store, &keys::all_released(), Some(at), |entries| {
        entries.iter().for_each(|entry| tally.released_entry(entry));
    })
    .await?;
    Ok(tally.rows())
}
