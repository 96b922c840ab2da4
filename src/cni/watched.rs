//! The store of one call, which knows whether a commit of this call may still land unseen.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::store::{Outcome, Read, Revision, Snapshot, Store, StoreError, Txn};

/// A store that remembers commits without an answer.
pub(super) struct Watched<S> {
    store: S,
    doubt: AtomicBool,
}

impl<S> Watched<S> {
    pub(super) const fn new(store: S) -> Self {
        Self { store, doubt: AtomicBool::new(false) }
    }

    /// Was any commit not answered? That a later one was answered, or even refused, does not end it: what the first
    /// one compares may come to hold again.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.doubt.load(Ordering::Relaxed)
    }
}

impl<S: Store> Store for Watched<S> {
    async fn read(&self, reads: &[Read], at: Option<Revision>) -> Result<Snapshot, StoreError> {
        self.store.read(reads, at).await
    }

    async fn commit(&self, txn: &Txn) -> Result<Outcome, StoreError> {
        // So it stays for a caller whose patience ends in between.
        let before = self.doubt.swap(true, Ordering::Relaxed);
        let answer = self.store.commit(txn).await;
        if !matches!(answer, Err(StoreError::Unanswered { .. })) {
            self.doubt.store(before, Ordering::Relaxed);
        }
        answer
    }
}
