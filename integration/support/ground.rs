//! Ground to stand on: a store that is set up, a look at all that is in it, and what the reaper would do to it.

use std::{
    process,
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

use leasehold::{
    admin::{
        clusters,
        pools::{self, Rules, Wanted},
        read::{Contents, read_everything},
    },
    domain::{
        audit::{Severity, audit},
        lease::{Declined, Lease, Released, Timestamp},
        names::{ClusterName, StoreId, Uid},
    },
    host,
    ops::Clock,
    store::{
        Outcome, Read, Store, Txn,
        any::AnyStore,
        changes, keys,
        record::{self, Frozen, Stored},
    },
};
use serde_json::{Value, json};

use super::{etcd::Etcd, host::HostFile, parts::Version, process::PATIENCE};

/// A node of a registered cluster, on a part of an etcd that nobody else uses. The etcd itself is shared: a test that
/// kills or freezes one starts its own.
pub(crate) fn on_etcd() -> HostFile {
    static ETCD: LazyLock<Etcd> = LazyLock::new(|| Etcd::start(Version::V36));
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut settings = ETCD.settings();
    settings["prefix"] =
        json!(format!("/leasehold-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let host = HostFile::on(&ETCD).with("store", json!({ "etcd": settings }));
    register(&host);
    host
}

/// The same on an embedded store, which registers its cluster itself.
pub(crate) fn on_local() -> HostFile {
    HostFile::local()
}

/// `127.0.0.1:port` of the etcd in a host file, for a proxy before it.
pub(crate) fn address_of(host: &HostFile) -> String {
    let settings = host::read(Some(host.path().into())).unwrap();
    match settings.config.store {
        leasehold::config::StoreSettings::Etcd(etcd) => {
            format!("{}:{}", etcd.endpoints[0].host, etcd.endpoints[0].port)
        }
        leasehold::config::StoreSettings::Local(_) => panic!("no etcd there"),
    }
}

/// Registers the host file's cluster.
pub(crate) fn register(host: &HostFile) {
    let cluster = cluster_of(host);
    let uid = Uid::new("11111111-2222-3333-4444-555555555555").unwrap();
    with_store(host, async |store| {
        let fresh = StoreId::new(host::random_id()).unwrap();
        clusters::add(store, &cluster, &uid, fresh, false).await.unwrap();
    });
}

/// Makes a pool what this document says.
#[track_caller]
pub(crate) fn pool(host: &HostFile, document: Value) {
    let wanted = Wanted::read("test", serde_json::from_value(document).unwrap()).unwrap();
    with_store(host, async |store| {
        pools::apply(store, &[wanted], Rules::default()).await.unwrap();
    });
}

/// Everything in the store. Nothing in it may break an invariant.
#[track_caller]
pub(crate) fn look(host: &HostFile) -> Contents {
    let contents = with_store(host, async |store| read_everything(store).await.unwrap());
    let notes = audit(&contents.everything);
    let broken: Vec<_> = notes.iter().filter(|note| note.severity == Severity::Error).collect();
    assert!(broken.is_empty(), "{broken:?}");
    contents
}

/// All leases.
#[track_caller]
pub(crate) fn leases(host: &HostFile) -> Vec<Lease> {
    look(host).everything.leases
}

/// The only lease.
#[track_caller]
pub(crate) fn only_lease(host: &HostFile) -> Lease {
    let mut all = leases(host);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Nobody has an address.
#[track_caller]
pub(crate) fn is_empty(host: &HostFile) {
    let everything = look(host).everything;
    let left = (&everything.leases, &everything.addresses, &everything.attachments);
    assert!(left.0.is_empty() && left.1.is_empty() && left.2.is_empty(), "{left:?}");
}

/// What the store says of an address that was given back.
#[track_caller]
pub(crate) fn released(host: &HostFile, address: &str) -> Option<Released> {
    let all = look(host).everything.released;
    all.into_iter().find(|(place, _)| place.address.to_string() == address).map(|(_, released)| released)
}

/// The hardware address of who answered on it when it was offered.
#[track_caller]
pub(crate) fn declined(host: &HostFile, address: &str) -> Option<String> {
    released(host, address)?.declined.map(|Declined { mac, .. }| mac)
}

/// What a verdict of the reaper does to the lease of a pod: its sandbox may still answer.
#[track_caller]
pub(crate) fn give_back(host: &HostFile, pod: &str) {
    with_store(host, async |store| {
        let lease = stored(store, pod).await;
        let now = host::HostClock.now();
        applied(store, &changes::unbind(&lease, true, now)).await;
    });
}

/// The lease of a pod as if it had been bound this much earlier: before what an ADD on another node still waits for.
#[track_caller]
pub(crate) fn bound_long_ago(host: &HostFile, pod: &str) {
    with_store(host, async |store| {
        let lease = stored(store, pod).await;
        let mut older = lease.value.clone();
        let leasehold::domain::lease::Binding::Bound(stamp) = &mut older.binding else { panic!("{older:?}") };
        stamp.at = Timestamp(stamp.at.0 - 3_600_000);
        applied(store, &changes::note(&lease, &older)).await;
    });
}

/// `leasehold freeze`.
pub(crate) fn freeze(host: &HostFile) {
    with_store(host, async |store| {
        let frozen = Frozen { why: "a test".into(), by: "a person".into(), at: host::HostClock.now() };
        clusters::freeze(store, &frozen, false).await.unwrap();
    });
}

/// Does something with the store of a host file.
#[track_caller]
pub(crate) fn with_store<T>(host: &HostFile, act: impl AsyncFnOnce(&AnyStore) -> T) -> T {
    let settings = host::read(Some(host.path().into())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(async {
        let store = settings.open_store(PATIENCE).await.unwrap();
        act(&store).await
    });
    runtime.shutdown_background();
    result
}

async fn stored(store: &AnyStore, pod: &str) -> Stored<Lease> {
    let found = store.read(&[Read::list(keys::leases())], None).await.unwrap();
    let all = found.entries(0).iter().map(|entry| record::decode_lease(entry).unwrap());
    let mut of_pod = all.filter(|lease| lease.value.id.holder.to_string() == pod);
    of_pod.next().unwrap_or_else(|| panic!("{pod} has no lease"))
}

async fn applied(store: &AnyStore, txn: &Txn) {
    let outcome = store.commit(txn).await.unwrap();
    assert!(matches!(outcome, Outcome::Applied(_)), "{outcome:?}");
}

fn cluster_of(host: &HostFile) -> ClusterName {
    host::read(Some(host.path().into())).unwrap().config.cluster
}

#[test]
fn a_pool_is_there_and_nobody_has_anything() {
    let host = on_local();
    pool(
        &host,
        json!({ "name": "lan", "networks": ["*"], "serves": ["*/*"], "ranges": [{ "subnet": "10.0.0.0/24" }] }),
    );
    assert_eq!(look(&host).everything.pools.len(), 1);
    assert_eq!(look(&host).clusters.len(), 1);
    is_empty(&host);
}
