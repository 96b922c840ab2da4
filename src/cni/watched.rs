//! The store of one call, which knows whether the call may leave something bound.

use std::{
    fs::File,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::{
    journal::Turn,
    store::{Key, Outcome, Read, Revision, Snapshot, Store, StoreError, Txn, Write, keys},
};

/// A call waits no longer than this in all, and counts without its turn after: who has it may have been stopped.
const TURN_PATIENCE: Duration = Duration::from_secs(2);
/// How often it is looked whose turn it is.
const TURN_PAUSE: Duration = Duration::from_millis(5);

/// A store that remembers commits without an answer, and what was bound; and that counts only when it is its turn.
pub(super) struct Watched<S> {
    store: S,
    turn: Option<Turn>,
    /// Until when it is waited for.
    patience: OnceLock<Instant>,
    doubt: AtomicBool,
    /// The attachment that this call wrote, and did not end.
    attached: Mutex<Option<Key>>,
}

impl<S> Watched<S> {
    pub(super) const fn new(store: S, turn: Option<Turn>) -> Self {
        Self {
            store,
            turn,
            patience: OnceLock::new(),
            doubt: AtomicBool::new(false),
            attached: Mutex::new(None),
        }
    }

    /// Does something of this call stand, or may it come to stand? A commit was not answered: that a later one was
    /// answered, or even refused, does not end it, since what the first one compares may come to hold again. Or an answered
    /// one has bound a lease.
    pub(super) fn may_leave_something(&self) -> bool {
        self.doubt.load(Ordering::Relaxed) || self.attached().is_some()
    }

    fn attached(&self) -> MutexGuard<'_, Option<Key>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for this call's turn among those of the node. `None`: it goes without.
    async fn turn(&self) -> Option<File> {
        let turn = self.turn.as_ref()?;
        let until = self.patience.get_or_init(|| Instant::now() + TURN_PATIENCE);
        loop {
            match turn.take() {
                Ok(None) if Instant::now() < *until => sleep(TURN_PAUSE).await,
                Ok(taken) => return taken,
                Err(_) => return None, // a courtesy, and the store answers without it
            }
        }
    }

    fn note(&self, txn: &Txn) {
        for write in &txn.writes {
            match write {
                Write::Put(key, _) if keys::parse_attachment(key).is_some() => {
                    *self.attached() = Some(key.clone());
                }
                Write::Delete(key) => {
                    self.attached().take_if(|attached| attached == key);
                }
                Write::Put(..) | Write::If(..) => {}
            }
        }
    }
}

impl<S: Store> Store for Watched<S> {
    async fn read(&self, reads: &[Read], at: Option<Revision>) -> Result<Snapshot, StoreError> {
        let counts = reads.iter().any(|read| matches!(read, Read::Count(_)));
        let _turn = if counts { self.turn().await } else { None };
        self.store.read(reads, at).await
    }

    async fn commit(&self, txn: &Txn) -> Result<Outcome, StoreError> {
        // So it stays for a caller whose patience ends in between.
        let before = self.doubt.swap(true, Ordering::Relaxed);
        let answer = self.store.commit(txn).await;
        if !matches!(answer, Err(StoreError::Unanswered { .. })) {
            self.doubt.store(before, Ordering::Relaxed);
        }
        if let Ok(Outcome::Applied(_)) = answer {
            self.note(txn);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::names::{ClusterName, ContainerId, IfName, NetworkName, NodeName},
        store::testing::{Fault, FaultyStore, MemoryStore, On},
    };

    fn txn(writes: Vec<Write>) -> Txn {
        Txn { writes, ..Txn::default() }
    }

    fn attachment(container: &str) -> Key {
        keys::attachment(&keys::AttachmentId {
            cluster: ClusterName::new("prod").unwrap(),
            node: NodeName::new("n1").unwrap(),
            network: NetworkName::new("lan").unwrap(),
            container: ContainerId::new(container).unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        })
    }

    #[tokio::test]
    async fn what_was_bound_is_left_until_it_is_ended() {
        let store = Watched::new(FaultyStore::new(MemoryStore::new()), None);
        let commit = async |writes| store.commit(&txn(writes)).await.is_ok();
        let (own, other) = (attachment("A"), attachment("B"));
        // A take-over, a note, the end of another's.
        assert!(commit(vec![Write::Put(keys::frozen(), Vec::new())]).await);
        assert!(!store.may_leave_something());
        assert!(commit(vec![Write::Delete(other.clone()), Write::Put(own.clone(), Vec::new())]).await);
        assert!(store.may_leave_something());
        assert!(commit(vec![Write::Delete(other)]).await);
        assert!(store.may_leave_something());
        assert!(commit(vec![Write::Delete(own.clone())]).await);
        assert!(!store.may_leave_something());
        // One that was not applied binds nothing, and one that was not answered may.
        store.store.fail(On::Commit(4), Fault::Refused);
        assert!(!commit(vec![Write::Put(own.clone(), Vec::new())]).await);
        assert!(!store.may_leave_something());
        store.store.fail(On::Commit(5), Fault::Lost);
        assert!(!commit(vec![Write::Put(own.clone(), Vec::new())]).await);
        assert!(commit(vec![Write::Put(own.clone(), Vec::new())]).await);
        assert!(commit(vec![Write::Delete(own)]).await);
        assert!(store.may_leave_something());
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_waits_for_its_turn_and_not_for_ever() {
        let state = std::env::temp_dir().join(format!("leasehold-watched-{}", std::process::id()));
        let turn = Turn::new(&state);
        let store = Watched::new(MemoryStore::new(), Some(turn.clone()));
        let began = Instant::now();
        let count = [Read::Count(keys::Span::prefix("v1/"))];
        store.read(&count, None).await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        let others = turn.take().unwrap();
        assert!(others.is_some());
        store.read(&[Read::Get(keys::meta())], None).await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        store.read(&count, None).await.unwrap();
        assert_eq!(began.elapsed(), TURN_PATIENCE);
        store.read(&count, None).await.unwrap();
        assert_eq!(began.elapsed(), TURN_PATIENCE, "in all");
        drop(others);
        store.read(&count, None).await.unwrap();
        assert_eq!(began.elapsed(), TURN_PATIENCE);
        std::fs::remove_dir_all(&state).unwrap();
    }
}
