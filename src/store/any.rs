//! One of the stores, chosen by the settings.

use super::{
    Fill, Outcome, Read, Revision, Snapshot, Store, StoreError, Txn, Upkeep, etcd::EtcdStore,
    local::LocalStore,
};

/// A store, whichever the host file names.
#[derive(Debug)]
pub enum AnyStore {
    /// In etcd.
    Etcd(Box<EtcdStore>),
    /// In a folder of this host.
    Local(LocalStore),
}

impl Store for AnyStore {
    async fn read(&self, reads: &[Read], at: Option<Revision>) -> Result<Snapshot, StoreError> {
        match self {
            Self::Etcd(store) => store.read(reads, at).await,
            Self::Local(store) => store.read(reads, at).await,
        }
    }

    async fn commit(&self, txn: &Txn) -> Result<Outcome, StoreError> {
        match self {
            Self::Etcd(store) => store.commit(txn).await,
            Self::Local(store) => store.commit(txn).await,
        }
    }
}

impl Upkeep for AnyStore {
    async fn fill(&self) -> Option<Fill> {
        match self {
            Self::Etcd(store) => store.fill().await,
            Self::Local(_) => None,
        }
    }

    async fn compact_to(&self, revision: Revision) -> Result<(), StoreError> {
        match self {
            Self::Etcd(store) => store.compact_to(revision).await,
            // It keeps no history.
            Self::Local(_) => Ok(()),
        }
    }
}
