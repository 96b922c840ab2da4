//! How many addresses of the callers' pool the store held, at each of its revisions: it keeps its history. An operator's look
//! tells which revision there was when. What callers saw is too coarse to say this of a pool that is nearly full.

use std::{collections::BTreeMap, time::Duration};

use leasehold::{
    domain::{addr::AddrRange, names::DomainName},
    store::{Read, Revision, Store as _, StoreError, any::AnyStore, keys},
};
use tokio::time;

/// The store was at this revision at some moment between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) asked: Duration,
    pub(super) answered: Duration,
    pub(super) revision: Revision,
}

/// Looks once; nothing where nobody answers.
pub(super) async fn look(store: &AnyStore, now: impl Fn() -> Duration) -> Option<Look> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let asked = now();
    let answer = time::timeout(PATIENCE, store.read(&[Read::Get(keys::meta())], None)).await;
    let revision = answer.ok()?.ok()?.revision;
    Some(Look { asked, answered: now(), revision })
}

/// The revisions that there may have been from `began` to `ended`; nothing where nobody looked before or after.
pub(super) fn between(looks: &[Look], began: Duration, ended: Duration) -> Option<(i64, i64)> {
    let first = looks.iter().filter(|look| look.answered <= began).map(|look| look.revision).max()?;
    let last = looks.iter().filter(|look| look.asked >= ended).map(|look| look.revision).min()?;
    Some((first.0, last.0))
}

/// What the store says of its past.
pub(super) struct Past<'a> {
    store: &'a AnyStore,
    reads: [Read; 1],
    /// By revision; nothing where the store has forgotten it.
    known: BTreeMap<i64, Option<u64>>,
}

impl<'a> Past<'a> {
    pub(super) fn new(store: &'a AnyStore, range: &str) -> Self {
        let range = AddrRange::parse(range).unwrap();
        let reads = [Read::Count(keys::addresses_of(&DomainName::new("default").unwrap(), range))];
        Self { store, reads, known: BTreeMap::new() }
    }

    /// Were so many held at one of these revisions, or is that forgotten?
    pub(super) async fn may_have_held(&mut self, many: u64, (first, last): (i64, i64)) -> bool {
        for revision in first..=last {
            if !self.known.contains_key(&revision) {
                let held = match self.store.read(&self.reads, Some(Revision(revision))).await {
                    Ok(found) => Some(found.count(0)),
                    Err(StoreError::Compacted(_)) => None,
                    Err(error) => panic!("{error}"),
                };
                self.known.insert(revision, held);
            }
            if self.known[&revision].is_none_or(|held| held >= many) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_before_and_after_a_call_bounds_it() {
        let look = |asked: u64, answered: u64, revision: i64| Look {
            asked: Duration::from_secs(asked),
            answered: Duration::from_secs(answered),
            revision: Revision(revision),
        };
        let looks = [look(1, 2, 10), look(3, 4, 12), look(5, 8, 15), look(9, 10, 19)];
        let between = |began: u64, ended: u64| {
            super::between(&looks, Duration::from_secs(began), Duration::from_secs(ended))
        };
        assert_eq!(between(4, 5), Some((12, 15)));
        // A look that overlaps the call says nothing.
        assert_eq!(between(3, 6), Some((10, 19)));
        assert_eq!(between(4, 9), Some((12, 19)));
        assert_eq!((between(1, 3), between(9, 10)), (None, None));
    }
}
