//! A store, with an eye on how long it takes, and a door that can be closed between two commits.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::metrics::{Metrics, Operation};
use crate::store::{Fill, Outcome, Read, Revision, Snapshot, Store, StoreError, Txn, Upkeep};

/// The store of a reaper that is measured and can be told to end.
#[derive(Debug)]
pub struct Measured<'a, S> {
    store: &'a S,
    metrics: &'a Metrics,
    sent: AtomicUsize,
    closed: AtomicBool,
}

impl<'a, S> Measured<'a, S> {
    /// Of this store.
    pub const fn new(store: &'a S, metrics: &'a Metrics) -> Self {
        Self { store, metrics, sent: AtomicUsize::new(0), closed: AtomicBool::new(false) }
    }

    /// From now on no commit begins: whoever wants one waits for ever. Comes back when none is under way; until then the
    /// commits' own futures must be polled. What waits can be dropped then, and nothing is left in doubt.
    pub async fn close(&self) {
        const LOOK: Duration = Duration::from_millis(5);
        self.closed.store(true, Ordering::Relaxed);
        while self.sent.load(Ordering::Relaxed) > 0 {
            sleep(LOOK).await;
        }
    }
}

/// One commit under way, also where its future is dropped.
struct Sent<'a>(&'a AtomicUsize);

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S: Store> Store for Measured<'_, S> {
    async fn read(&self, reads: &[Read], at: Option<Revision>) -> Result<Snapshot, StoreError> {
        let began = Instant::now();
        let answer = self.store.read(reads, at).await;
        self.metrics.asked(Operation::Read, began.elapsed());
        answer
    }

    async fn commit(&self, txn: &Txn) -> Result<Outcome, StoreError> {
        if self.closed.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
        let _sent = Sent(&self.sent);
        let began = Instant::now();
        let answer = self.store.commit(txn).await;
        self.metrics.asked(Operation::Commit, began.elapsed());
        answer
    }
}

impl<S: Store + Upkeep> Upkeep for Measured<'_, S> {
    async fn fill(&self) -> Option<Fill> {
        self.store.fill().await
    }

    async fn compact_to(&self, revision: Revision) -> Result<(), StoreError> {
        self.store.compact_to(revision).await
    }
}
