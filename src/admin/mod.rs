//! What an operator does to a store: every use case of the command line, generic over the store. No arguments are
//! parsed here, nothing is printed, and the time comes in as an argument.
//!
//! | module | use cases |
//! |---|---|
//! | [`read`] | everything in a store at one revision, page by page |
//! | [`pools`] | apply, create, diff, delete, list |
//! | [`leases`] | list, show, reserve, move, release |
//! | [`clusters`] | add, list, delete; freeze, thaw |
//! | [`check`] | the audit, and what mends it |
//! | [`explain`] | which pool a pod gets an address from, and why |

pub mod check;
pub mod clusters;
pub mod explain;
pub mod known;
pub mod leases;
pub mod pools;
pub mod read;

use std::{collections::HashMap, time::Duration};

use thiserror::Error;

use crate::{
    domain::{
        lease::Holder,
        names::{ClusterName, DomainName, Namespace, NetworkName},
        pool::Fault,
    },
    ops::commit,
    store::{Revision, Store, StoreError, Txn, record::RecordError},
};

/// Why an operator's command was not done.
#[derive(Debug, Error)]
pub enum Error {
    /// The store did not answer as asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record that it rests on cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// There is no such thing.
    #[error("{what}")]
    Missing {
        /// What there is not.
        what: String,
        /// What to do.
        hint: String,
    },
    /// It would do harm.
    #[error("{why}")]
    Refused {
        /// What harm.
        why: String,
        /// What to do.
        hint: String,
    },
    /// What was asked for cannot be.
    #[error("{why}")]
    Wrong {
        /// What is wrong.
        why: String,
        /// What would be right.
        hint: String,
    },
    /// Documents with faults.
    #[error("{}", faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Faults {
        /// All of all documents.
        faults: Vec<DocumentFault>,
    },
    /// Somebody else changed it at the same time.
    #[error("{what} changed meanwhile, and is left as it is")]
    Changed {
        /// What.
        what: String,
    },
}

/// Why a command that changes several things ended half-way, and what it had done until then.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct Halted<T> {
    /// What is done.
    pub done: Vec<T>,
    /// Why the rest is not.
    pub error: Error,
}

impl<T> From<Error> for Halted<T> {
    fn from(error: Error) -> Self {
        Self { done: Vec::new(), error }
    }
}

impl<T> From<StoreError> for Halted<T> {
    fn from(error: StoreError) -> Self {
        Error::from(error).into()
    }
}

impl<T> From<RecordError> for Halted<T> {
    fn from(error: RecordError) -> Self {
        Error::from(error).into()
    }
}

impl<T> From<Halted<T>> for Error {
    fn from(halted: Halted<T>) -> Self {
        halted.error
    }
}

/// A fault of one document.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{origin}: {fault}")]
pub struct DocumentFault {
    /// The file, and which document of it.
    pub origin: String,
    /// What is wrong.
    pub fault: Fault,
}

impl Error {
    /// There is no such thing.
    pub(crate) fn missing(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Missing { what: what.into(), hint: hint.into() }
    }

    /// It would do harm.
    pub(crate) fn refused(why: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Refused { why: why.into(), hint: hint.into() }
    }

    /// It cannot be.
    pub(crate) fn wrong(why: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Wrong { why: why.into(), hint: hint.into() }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Missing { hint, .. } | Self::Refused { hint, .. } | Self::Wrong { hint, .. } => {
                (!hint.is_empty()).then(|| hint.clone())
            }
            Self::Faults { .. } => {
                Some("correct the document and apply it again; nothing was changed".into())
            }
            Self::Changed { .. } => Some("look again, then repeat the command".into()),
            Self::Record(RecordError::Invalid { .. }) => {
                Some("`leasehold check` lists what cannot be read".into())
            }
            Self::Record(RecordError::Newer { .. }) => Some("upgrade this leasehold".into()),
            Self::Store(error) => store_hint(error),
        }
    }
}

fn store_hint(error: &StoreError) -> Option<String> {
    Some(match error {
        StoreError::NotReached { .. } => "`leasehold doctor` asks each endpoint by itself".into(),
        StoreError::Unanswered { .. } => {
            "it may stand, now or later: look before you repeat it (`leasehold check`)".into()
        }
        StoreError::Refused { reason, .. } if reason.contains("too large") => {
            "a record is larger than the store takes: make the document or the text shorter".into()
        }
        StoreError::Refused { .. } => {
            "check user, password and role (changes need the role leasehold-admin)".into()
        }
        StoreError::Credentials { .. } => "`leasehold doctor` shows every file and its dates".into(),
        StoreError::Compacted(_) => "the store changes faster than it can be read: try again".into(),
        StoreError::WentBack { .. } => {
            "if it was restored: `leasehold freeze`, `leasehold adopt`, `leasehold thaw`".into()
        }
    })
}

/// Where a command looks, as its caller narrowed it.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Only this cluster.
    pub cluster: Option<ClusterName>,
    /// The cluster of the host file: what a pod's name means when no cluster is said.
    pub home: Option<ClusterName>,
    /// Only what pods of this namespace have.
    pub namespace: Option<Namespace>,
    /// Only this domain.
    pub domain: Option<DomainName>,
}

impl Scope {
    /// Is this inside?
    #[must_use]
    pub fn takes(&self, cluster: &ClusterName) -> bool {
        self.cluster.as_ref().is_none_or(|only| only == cluster)
    }

    /// Is what it has inside? A container without a pod is in no namespace.
    #[must_use]
    pub fn takes_holder(&self, holder: &Holder) -> bool {
        self.namespace.is_none() || self.namespace.as_ref() == holder.namespace()
    }

    /// Is this domain inside?
    #[must_use]
    pub fn takes_domain(&self, domain: &DomainName) -> bool {
        self.domain.as_ref().is_none_or(|only| only == domain)
    }

    /// Inside of what, in words that follow others: ` in cluster prod-a, in namespace shop`.
    fn words(&self, network: Option<&NetworkName>) -> String {
        let cluster = self.cluster.as_ref().map(|name| format!(" in cluster {name}"));
        let namespace = self.namespace.as_ref().map(|name| format!(" in namespace {name}"));
        let domain = self.domain.as_ref().map(|name| format!(" in domain {name}"));
        let network = network.map(|name| format!(" on network {name}"));
        [cluster, namespace, domain, network].into_iter().flatten().collect::<Vec<_>>().join(",")
    }
}

/// How long a change is sent again: an election of the store's leader must fit.
const SEND_FOR: Duration = Duration::from_secs(10);

/// How a change ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Sent {
    /// It stands.
    Applied(Revision),
    /// Something that it compares has changed.
    Conflict,
}

/// Sends a change until it is answered: see [`commit::surely`].
pub(crate) async fn send<S: Store>(store: &S, txn: &Txn) -> Result<Sent, StoreError> {
    let deadline = tokio::time::Instant::now() + SEND_FOR;
    match commit::surely(store, &commit::shown(txn.clone()), deadline).await? {
        commit::Sent::Applied(revision) => Ok(Sent::Applied(revision)),
        commit::Sent::Conflict(_) => Ok(Sent::Conflict),
    }
}

/// How many of each.
pub(crate) fn tally<K: std::hash::Hash + Eq>(keys: impl IntoIterator<Item = K>) -> HashMap<K, u64> {
    let mut out = HashMap::new();
    for key in keys {
        *out.entry(key).or_default() += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::atomic::{AtomicU32, Ordering};

    use proptest::prelude::*;

    use crate::{
        admin::{
            check::{self, Repair},
            clusters, leases,
            leases::{Filter, Reserve, RowState, Target},
            pools::{self, Change, Rules, Wanted},
            read::{Contents, read_everything},
        },
        domain::{
            addr::Family,
            audit::audit,
            lease::{Binding, Holder, Lease, LeaseId, LeasedAddress, Released, Stamp, Timestamp},
            names::{ContainerId, DomainName, IfName, NodeName, PoolName, StoreId, Uid, WorkloadName},
        },
        store::{
            Entry, Key, Outcome, Read, Snapshot, changes, keys,
            record::{self, Frozen, PoolDocument},
            testing::MemoryStore,
        },
    };

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn wanted(json: &str) -> Wanted {
        let document: PoolDocument = serde_json::from_str(json).unwrap();
        Wanted::read("test", document).unwrap()
    }

    fn shop() -> Wanted {
        wanted(
            r#"{"name":"shop-db","networks":["lan"],"serves":["shop/db"],"ranges":[
                {"subnet":"10.0.0.0/24","start":"10.0.0.1","end":"10.0.0.9","gateway":"10.0.0.254"}],
                "routes":[{"dst":"0.0.0.0/0"}]}"#,
        )
    }

    fn scope() -> Scope {
        Scope { home: Some(ClusterName::new("prod").unwrap()), ..Scope::default() }
    }

    fn pod(text: &str) -> Holder {
        record::parse_holder(text).unwrap()
    }

    fn eth0() -> IfName {
        IfName::new("eth0").unwrap()
    }

    async fn reserve(store: &MemoryStore, what: Reserve) -> Result<Vec<leases::Reserved>, Error> {
        Ok(leases::reserve(store, &scope(), &what, None, &eth0(), NOW, false).await?)
    }

    /// db-0 bound, db-1 reserved, a device, a released address, one pool.
    async fn stocked() -> MemoryStore {
        let store = MemoryStore::new();
        let name = ClusterName::new("prod").unwrap();
        let uid = Uid::new("u-1").unwrap();
        clusters::add(&store, &name, &uid, StoreId::new("s1").unwrap(), false).await.unwrap();
        pools::apply(&store, &[shop()], Rules::default()).await.unwrap();
        for (name, address) in
            [("shop/db-0", "10.0.0.1"), ("shop/db-1", "10.0.0.2"), ("shop/db-2", "10.0.0.3")]
        {
            let addresses = vec![address.parse().unwrap()];
            reserve(&store, Reserve::Pod { holder: pod(name), addresses }).await.unwrap();
        }
        let device = Reserve::Device { address: "10.0.0.200".parse().unwrap(), reason: "printer".into() };
        reserve(&store, device).await.unwrap();
        let target = Target::Holder(pod("shop/db-2"));
        leases::release(&store, &scope(), &target, None, false, NOW, false).await.unwrap();
        bind(&store, "shop/db-0").await;
        store
    }

    /// As ADD does.
    async fn bind(store: &MemoryStore, holder: &str) {
        let Holder::Pod { namespace, name } = pod(holder) else { panic!() };
        let span = keys::leases_of_pod(&scope().home.unwrap(), &namespace, &name);
        let snapshot = store.read(&[Read::list(span)], None).await.unwrap();
        let old = record::decode_lease(snapshot.entry(0).unwrap()).unwrap();
        let mut lease = old.value.clone();
        lease.binding = crate::domain::lease::Binding::Bound(Stamp {
            container: ContainerId::new("c1").unwrap(),
            node: NodeName::new("n1").unwrap(),
            uid: None,
            boot: None,
            boot_clock: 1,
            at: NOW,
        });
        lease.since = NOW;
        let txn = changes::take_over(&old, &lease, &[]);
        assert!(matches!(store.commit(&txn).await, Ok(Outcome::Applied(_))));
    }

    async fn clean(store: &MemoryStore) {
        let contents = read_everything(store).await.unwrap();
        let notes: Vec<String> = audit(&contents.everything).iter().map(ToString::to_string).collect();
        assert!(notes.is_empty(), "{notes:#?}");
    }

    #[track_caller]
    fn fails<T: std::fmt::Debug>(result: Result<T, impl Into<Error>>, text: &str) {
        assert_eq!(result.map_err(Into::into).unwrap_err().to_string(), text);
    }

    #[tokio::test]
    async fn every_use_case_leaves_a_store_that_the_audit_likes() {
        let store = stocked().await;
        clean(&store).await;
        let all = leases::list(&store, &scope(), &Filter::default(), NOW).await.unwrap().1;
        let seen: Vec<String> =
            all.iter().map(|r| format!("{} {}", r.place.as_ref().unwrap(), r.state.as_str())).collect();
        assert_eq!(seen, ["10.0.0.1 bound", "10.0.0.2 reserved", "10.0.0.200 reserved"]);
        let (from, to) = (pod("shop/db-1"), pod("shop/db-9"));
        let moved = leases::move_leases(&store, &scope(), &from, &to, None, NOW, false).await.unwrap();
        assert_eq!(moved.len(), 1);
        clean(&store).await;
        let printer = Target::Address("10.0.0.200".parse().unwrap());
        leases::release(&store, &scope(), &printer, None, false, NOW, false).await.unwrap();
        clean(&store).await;
        let forced = Target::Holder(pod("shop/db-0"));
        let gone = leases::release(&store, &scope(), &forced, None, true, NOW, false).await.unwrap();
        assert!(gone[0].bound && gone[0].unconfirmed);
        clean(&store).await;
    }

    #[tokio::test]
    async fn b141_the_lease_of_a_running_pod_is_not_released() {
        let store = stocked().await;
        let before = store.dump();
        let target = Target::Address("10.0.0.1".parse().unwrap());
        fails(
            leases::release(&store, &scope(), &target, None, false, NOW, false).await,
            "shop/db-0 uses 10.0.0.1 on node n1",
        );
        fails(
            leases::move_leases(&store, &scope(), &pod("shop/db-0"), &pod("shop/db-8"), None, NOW, false)
                .await,
            "shop/db-0 uses 10.0.0.1 on node n1: a bound lease is not moved",
        );
        assert_eq!(store.dump(), before);
    }

    /// The sandbox that had it may still answer while it is taken down.
    #[tokio::test]
    async fn what_another_had_is_asked_for_before_its_next_use() {
        let store = stocked().await;
        let ask = |name: &str, address: &str| Reserve::Pod {
            holder: pod(name),
            addresses: vec![address.parse().unwrap()],
        };
        given_back(&store, "10.0.0.3", "shop/web-0", false);
        given_back(&store, "10.0.0.4", "shop/db-4", false);
        for (name, address, asked_for) in [
            ("shop/db-3", "10.0.0.3", true),
            ("shop/db-4", "10.0.0.4", true),
            ("shop/db-5", "10.0.0.5", false),
        ] {
            reserve(&store, ask(name, address)).await.unwrap();
            assert_eq!(lease_of(&store, name).await.unconfirmed, asked_for, "{name}");
        }
        // Nobody ever ran with what db-5 has.
        let free = [("shop/db-5", "shop/db-6", false), ("shop/db-0", "shop/db-7", true)];
        idle(&store, |lease| lease.since = NOW).await;
        for (from, to, asked_for) in free {
            leases::move_leases(&store, &scope(), &pod(from), &pod(to), None, NOW, false).await.unwrap();
            assert_eq!(lease_of(&store, to).await.unconfirmed, asked_for, "{to}");
        }
        let frozen = Frozen { why: "restored".into(), by: "a person".into(), at: NOW };
        store.put(&keys::frozen(), record::encode_frozen(&frozen));
        reserve(&store, ask("shop/db-8", "10.0.0.8")).await.unwrap();
        assert!(lease_of(&store, "shop/db-8").await.unconfirmed);
    }

    fn default_domain() -> DomainName {
        DomainName::new("default").unwrap()
    }

    fn given_back(store: &MemoryStore, address: &str, by: &str, unconfirmed: bool) -> Key {
        let cluster = ClusterName::new("prod").unwrap();
        let released = Released { at: NOW, by: pod(by), cluster, unconfirmed, declined: None };
        let key = keys::released(&default_domain(), address.parse().unwrap());
        store.put(&key, record::encode_released(&released, None));
        key
    }

    async fn lease_of(store: &MemoryStore, name: &str) -> Lease {
        let contents = read_everything(store).await.unwrap();
        contents.everything.leases.into_iter().find(|lease| lease.id.holder == pod(name)).unwrap()
    }

    /// Ends the sandbox of db-0, without a DEL or by one.
    async fn idle(store: &MemoryStore, change: impl FnOnce(&mut Lease)) {
        let mut lease = lease_of(store, "shop/db-0").await;
        store.delete(&Key::new("v1/attachments/prod/n1/lan/c1/eth0"));
        lease.binding = Binding::Idle(lease.last().cloned());
        change(&mut lease);
        store.put(&keys::lease(&lease.id), record::encode_lease(&lease, None));
    }

    #[tokio::test]
    async fn a_reserved_lease_that_may_run_is_neither_released_nor_moved() {
        let store = stocked().await;
        idle(&store, |lease| {
            lease.binding = Binding::Idle(None);
            (lease.reserved, lease.unconfirmed) = (true, true);
        })
        .await;
        let before = store.dump();
        let why = "10.0.0.1 is reserved for shop/db-0, and unconfirmed";
        let target = Target::Holder(pod("shop/db-0"));
        fails(
            leases::release(&store, &scope(), &target, None, false, NOW, false).await,
            &format!("{why}: its pod, or another, may run with it"),
        );
        let to = pod("shop/db-8");
        fails(
            leases::move_leases(&store, &scope(), &pod("shop/db-0"), &to, None, NOW, false).await,
            &format!("{why}: its pod may run, and is not moved"),
        );
        assert_eq!(store.dump(), before);
        let gone = leases::release(&store, &scope(), &target, None, true, NOW, false).await.unwrap();
        assert!(gone[0].unconfirmed);
    }

    #[tokio::test]
    async fn a_release_by_address_ends_no_lease_that_does_not_list_it() {
        let store = stocked().await;
        names(&store, None, "10.0.0.7", "prod/shop/db-1/lan/eth0");
        let before = store.dump();
        let target = Target::Address("10.0.0.7".parse().unwrap());
        for force in [false, true] {
            fails(
                leases::release(&store, &scope(), &target, None, force, NOW, false).await,
                "10.0.0.7 names the lease of shop/db-1 eth0 on lan, which does not list it",
            );
        }
        assert_eq!(store.dump(), before);
    }

    /// It may be another's since the snapshot.
    #[tokio::test]
    async fn what_is_released_in_a_frozen_store_is_unconfirmed() {
        let store = stocked().await;
        idle(&store, |_| ()).await;
        let frozen = Frozen { why: "restored".into(), by: "a person".into(), at: NOW };
        store.put(&keys::frozen(), record::encode_frozen(&frozen));
        let target = Target::Holder(pod("shop/db-0"));
        let gone = leases::release(&store, &scope(), &target, None, false, NOW, false).await.unwrap();
        assert!(gone[0].unconfirmed && !gone[0].bound);
    }

    #[tokio::test]
    async fn a_person_may_say_that_nobody_answers() {
        let store = stocked().await;
        let key = given_back(&store, "10.0.0.4", "shop/db-4", true);
        let confirm = async |address: &str, dry| {
            leases::confirm(&store, &scope(), address.parse().unwrap(), NOW, dry).await
        };
        let before = store.dump();
        confirm("10.0.0.4", true).await.unwrap();
        // Nor does a release that is repeated.
        let target = Target::Address("10.0.0.4".parse().unwrap());
        fails(
            leases::release(&store, &scope(), &target, None, true, NOW, false).await,
            "nobody has 10.0.0.4 (domains looked in: default)",
        );
        fails(confirm("10.0.0.1", false).await, "shop/db-0 uses 10.0.0.1, or may");
        assert_eq!(store.dump(), before);
        assert_eq!(confirm("10.0.0.4", false).await.unwrap().whose, "nobody; shop/db-4 had it");
        let content = store.read(&[Read::Get(key)], None).await.unwrap();
        let released = record::decode_released(content.entry(0).unwrap()).unwrap().value;
        assert!(!released.unconfirmed && released.by == pod("shop/db-4"));
        fails(confirm("10.0.0.4", false).await, "10.0.0.4 is neither unconfirmed nor declined");
        let held = keys::address(&default_domain(), "fd00::1".parse().unwrap());
        idle(&store, |lease| {
            (lease.reserved, lease.unconfirmed) = (true, true);
            let second = LeasedAddress { address: "fd00::1".parse().unwrap(), ..lease.addresses[0].clone() };
            lease.addresses.push(second);
            store.put(&held, record::encode_pointer(&lease.id));
        })
        .await;
        let confirmed = confirm("10.0.0.1", false).await.unwrap();
        assert_eq!(confirmed.whose, "shop/db-0 eth0 on lan");
        assert_eq!(confirmed.addresses.len(), 2);
        let lease = lease_of(&store, "shop/db-0").await;
        assert!(lease.reserved && !lease.unconfirmed);
    }

    #[tokio::test]
    async fn b013_a_lease_that_takes_what_another_left_is_marked() {
        let store = stocked().await;
        idle(&store, |_| ()).await;
        store.delete(&keys::address(&default_domain(), "10.0.0.1".parse().unwrap()));
        given_back(&store, "10.0.0.1", "shop/db-7", true);
        assert_eq!(mended(&store).await, ["lease-without-address repaired"]);
        assert!(lease_of(&store, "shop/db-0").await.unconfirmed);
        clean(&store).await;
        // Both of its addresses, in one go.
        idle(&store, |lease| {
            lease.unconfirmed = false;
            let second = LeasedAddress { address: "fd00::1".parse().unwrap(), ..lease.addresses[0].clone() };
            lease.addresses.push(second);
        })
        .await;
        store.delete(&keys::address(&default_domain(), "10.0.0.1".parse().unwrap()));
        given_back(&store, "10.0.0.1", "shop/db-7", true);
        given_back(&store, "fd00::1", "shop/db-7", true);
        let mended_now = mended(&store).await;
        let both = ["lease-without-address repaired"; 2];
        assert!(mended_now.starts_with(&both.map(str::to_owned)), "{mended_now:?}");
        assert!(lease_of(&store, "shop/db-0").await.unconfirmed);
        idle(&store, |lease| drop(lease.addresses.pop())).await;
        store.delete(&keys::address(&default_domain(), "fd00::1".parse().unwrap()));
        // Held and released at once: the mark is not lost with the key.
        given_back(&store, "10.0.0.2", "shop/db-7", true);
        assert_eq!(mended(&store).await, ["held-and-released repaired"]);
        assert!(lease_of(&store, "shop/db-1").await.unconfirmed);
        clean(&store).await;
    }

    /// Else a pass would miss its pod, which is scaled away, and give back what is held for it.
    #[tokio::test]
    async fn b013_a_lost_lease_of_an_ordinal_without_a_sandbox_is_kept() {
        let store = stocked().await;
        names(&store, None, "10.0.0.7", "prod/shop/db-7/lan/eth0");
        assert_eq!(mended(&store).await, ["address-without-lease repaired"]);
        let lease = lease_of(&store, "shop/db-7").await;
        assert!(lease.sticky && lease.unconfirmed && !lease.ends_with_its_pod());
    }

    #[tokio::test]
    async fn b125_a_reserved_address_is_nobody_elses() {
        let store = stocked().await;
        let ask = |name: &str, address: &str| Reserve::Pod {
            holder: pod(name),
            addresses: vec![address.parse().unwrap()],
        };
        fails(
            reserve(&store, ask("shop/db-5", "10.0.0.2")).await,
            "10.0.0.2 is held by shop/db-1 eth0 on lan",
        );
        let device = Reserve::Device { address: "10.0.0.200".parse().unwrap(), reason: "again".into() };
        fails(reserve(&store, device).await, "10.0.0.200 is held by a device (printer)");
        fails(
            reserve(&store, ask("shop/web-0", "10.0.0.5")).await,
            "shop/web-0 cannot have 10.0.0.5: pool shop-db does not serve shop/web-0",
        );
        fails(
            reserve(&store, ask("shop/db-5", "10.0.0.100")).await,
            "shop/db-5 cannot have 10.0.0.100: pool shop-db does not give it out (outside its ranges)",
        );
        fails(reserve(&store, ask("shop/db-5", "10.1.0.1")).await, "10.1.0.1 is in the subnet of no pool");
        fails(
            reserve(&store, ask("shop/db-0", "10.0.0.5")).await,
            "shop/db-0 eth0 on lan has 10.0.0.1 already",
        );
        assert!(reserve(&store, ask("shop/db-0", "10.0.0.1")).await.unwrap()[0].marked);
        clean(&store).await;
    }

    #[tokio::test]
    async fn ordinal_0_gets_the_first_address_and_nothing_is_done_by_halves() {
        let store = stocked().await;
        let run = |text: &str| Reserve::Workload {
            namespace: crate::domain::names::Namespace::new("shop").unwrap(),
            name: crate::domain::names::WorkloadName::new("db").unwrap(),
            addresses: crate::domain::addr::AddrRange::parse(text).unwrap(),
        };
        let before = store.dump();
        assert!(reserve(&store, run("10.0.0.4-10.0.0.6")).await.is_err());
        assert_eq!(store.dump(), before);
        let made = reserve(&store, run("10.0.0.1-10.0.0.3")).await.unwrap();
        assert_eq!(made[2].whom, "shop/db-2 eth0 on lan");
        assert_eq!(made[2].addresses[0].to_string(), "10.0.0.3");
        clean(&store).await;
    }

    #[tokio::test]
    async fn b101_a_pool_with_leases_keeps_them_its_domain_and_itself() {
        let store = stocked().await;
        let mut other = shop();
        other.document.domain = Some("dmz".into());
        let other = Wanted::read("test", other.document).unwrap();
        let refused = "pool shop-db: domain default -> dmz: the pool has 2 leases, which are unique in their old domain only";
        fails(pools::apply(&store, std::slice::from_ref(&other), Rules::default()).await, refused);
        let mut small = shop();
        small.document.ranges[0].start = Some("10.0.0.2".into());
        let small = Wanted::read("test", small.document).unwrap();
        let steps = pools::apply(&store, &[small], Rules::default()).await.unwrap();
        assert_eq!(steps[0].outside.len(), 1);
        assert!(
            matches!(&steps[0].change, Change::Changed(fields) if fields[0].to_string() == "~ ranges[0].start: 10.0.0.1 -> 10.0.0.2")
        );
        let rows = pools::list(&store, &scope(), NOW).await.unwrap().1;
        assert_eq!((rows[0].counts.outside, rows[0].counts.size, rows[0].counts.taken), (1, 8, 1));
        let name = PoolName::new("shop-db").unwrap();
        fails(
            pools::delete(&store, std::slice::from_ref(&name), false, false).await,
            "pool shop-db has 2 leases: 10.0.0.1 shop/db-0, 10.0.0.2 shop/db-1",
        );
        pools::delete(&store, &[name], true, false).await.unwrap();
        // Its leases stay, and so does their domain, when somebody makes it anew.
        fails(pools::apply(&store, &[other], Rules::default()).await, refused);
        let contents = read_everything(&store).await.unwrap();
        assert!(audit(&contents.everything).iter().all(|note| note.kind.as_str() == "pool-gone"));
    }

    #[tokio::test]
    async fn b096_no_pool_gives_out_the_gateway_of_another() {
        let store = stocked().await;
        let lan = |start: &str, gateway: &str| {
            wanted(&format!(
                r#"{{"name":"lan","networks":["lan"],"serves":["*/*"],"ranges":[
                {{"subnet":"10.0.0.0/24","start":"{start}","end":"10.0.0.254","gateway":"{gateway}"}}]}}"#
            ))
        };
        fails(
            pools::apply(&store, &[lan("10.0.0.100", "10.0.0.9")], Rules::default()).await,
            "test: ranges[0]: 10.0.0.100-10.0.0.254: holds 10.0.0.254, the gateway of pool shop-db: exclude it\n\
             test: ranges[0].gateway: 10.0.0.9: can be leased from pool shop-db: exclude it there first",
        );
        let steps = pools::apply(&store, &[lan("10.0.0.5", "10.0.0.254")], Rules::default()).await.unwrap();
        assert_eq!(
            steps[0].warnings,
            [
                "IPv4: a gateway alone makes no route; add a default route if pods should use it",
                "overlaps pool shop-db (10.0.0.5-10.0.0.9): no address is leased twice, but either pool can take all of them"
            ]
        );
    }

    #[tokio::test]
    async fn what_is_applied_again_changes_nothing_and_what_is_left_out_is_pruned() {
        let store = stocked().await;
        let before = store.dump();
        let steps = pools::apply(&store, &[shop()], Rules::default()).await.unwrap();
        assert_eq!(steps[0].change, Change::Unchanged);
        assert_eq!(store.dump(), before);
        let lan =
            wanted(r#"{"name":"b","networks":["lan"],"serves":["x/*"],"ranges":[{"subnet":"10.5.0.0/24"}]}"#);
        let prune = Rules { prune: true, ..Rules::default() };
        assert!(matches!(
            pools::apply(&store, std::slice::from_ref(&lan), prune).await,
            Err(Error::Refused { .. })
        ));
        assert_eq!(store.dump(), before);
        let dry = Rules { prune: true, force: true, dry: true, ..Rules::default() };
        assert_eq!(pools::apply(&store, std::slice::from_ref(&lan), dry).await.unwrap().len(), 2);
        assert_eq!(store.dump(), before);
        let only_new = Rules { only_new: true, ..Rules::default() };
        fails(pools::apply(&store, &[shop()], only_new).await, "pool shop-db is there already");
        let both = Rules { prune: true, force: true, ..Rules::default() };
        let steps = pools::apply(&store, &[lan], both).await.unwrap();
        assert_eq!(steps.iter().map(|s| s.change.as_str()).collect::<Vec<_>>(), ["created", "deleted"]);
        assert_eq!(read_everything(&store).await.unwrap().everything.serves.len(), 1);
    }

    #[tokio::test]
    async fn b094_an_address_that_a_pod_has_does_not_become_the_gateway() {
        let store = stocked().await;
        let taken = pools::list(&store, &scope(), NOW).await.unwrap().1[0].counts.taken;
        assert!(taken > 0);
        let has = leases::list(&store, &scope(), &Filter::default(), NOW).await.unwrap().1;
        let row = has.iter().find(|row| row.state == RowState::Bound || row.state == RowState::Held).unwrap();
        let address = row.place.as_ref().unwrap().address;
        let mut document = shop().document;
        document.ranges[0].gateway = Some(address.to_string());
        let before = store.dump();
        let wanted = Wanted::read("test", document).unwrap();
        assert!(matches!(
            pools::apply(&store, &[wanted], Rules::default()).await,
            Err(Error::Refused { .. })
        ));
        assert_eq!(store.dump(), before);
    }

    #[tokio::test]
    async fn b097_a_pool_of_a_64_is_counted_without_walking_it() {
        let store = MemoryStore::new();
        let huge = wanted(
            r#"{"name":"v6","networks":["*"],"serves":["*/*"],"ranges":[{"subnet":"fd00:9::/64"},{"subnet":"10.0.0.0/30"}]}"#,
        );
        pools::apply(&store, &[huge], Rules::default()).await.unwrap();
        let counts = pools::list(&store, &scope(), NOW).await.unwrap().1[0].counts;
        // A pod needs an address of each family: the one with the least free counts.
        assert_eq!((counts.size, counts.free), (2, 2));
        let row = &pools::list(&store, &scope(), NOW).await.unwrap().1[0];
        let (family, counts) = row.families[1];
        assert_eq!((family, counts.size), (Family::V6, (1u128 << 64) - 1));
        assert_eq!((counts.free, counts.used()), (counts.size, 0));
    }

    #[tokio::test]
    async fn a_cluster_has_one_uid_and_a_thaw_makes_another_store_of_it() {
        let store = stocked().await;
        let name = ClusterName::new("prod").unwrap();
        let id = |text: &str| StoreId::new(text).unwrap();
        let uid = |text: &str| Uid::new(text).unwrap();
        assert_eq!(
            clusters::add(&store, &name, &uid("u-1"), id("x"), false).await.unwrap(),
            clusters::Added::Already
        );
        fails(
            clusters::add(&store, &name, &uid("u-2"), id("x"), false).await,
            "cluster prod is registered with UID u-1, not u-2",
        );
        let test = ClusterName::new("test").unwrap();
        fails(
            clusters::add(&store, &test, &uid("u-1"), id("x"), false).await,
            "UID u-1 is registered as cluster prod",
        );
        fails(clusters::delete(&store, &name, false, false).await, "cluster prod has 2 leases");
        fails(clusters::delete(&store, &test, false, false).await, "no cluster test is registered");
        let frozen = clusters::reason("restore".into(), "me".into(), NOW);
        assert_eq!(clusters::freeze(&store, &frozen, false).await.unwrap(), clusters::Freeze::Frozen);
        let again = clusters::reason("other".into(), "you".into(), NOW);
        assert_eq!(
            clusters::freeze(&store, &again, false).await.unwrap(),
            clusters::Freeze::Already(frozen.clone())
        );
        assert_eq!(clusters::thaw(&store, id("s2"), false).await.unwrap(), Some(frozen));
        let contents = read_everything(&store).await.unwrap();
        assert_eq!((contents.meta.unwrap().store, contents.frozen), (id("s2"), None));
        assert_eq!(clusters::thaw(&store, id("s3"), false).await.unwrap(), None);
    }

    #[tokio::test]
    async fn b013_repair_mends_half_pairs_and_leaves_what_it_cannot_know() {
        let store = stocked().await;
        let domain = DomainName::new("default").unwrap();
        let key = |address: &str| keys::address(&domain, address.parse().unwrap());
        // db-1: the lease without its address key. 10.0.0.7: the address key without its lease.
        store.delete(&key("10.0.0.2"));
        let ghost = keys::parse_lease_path("prod/shop/db-7/lan/eth0").unwrap();
        store.put(&key("10.0.0.7"), record::encode_pointer(&ghost));
        // A lease that lists the device's address; a lease that cannot be read, and its address key.
        let stray = keys::parse_lease_path("prod/shop/db-8/lan/eth0").unwrap();
        store.put(
            &keys::lease(&stray),
            &br#"{"v":1,"state":"held","addresses":[{"address":"10.0.0.200","domain":"default"}]}"#[..],
        );
        let newer = keys::parse_lease_path("prod/shop/db-9/lan/eth0").unwrap();
        store.put(&keys::lease(&newer), &br#"{"v":9}"#[..]);
        store.put(&key("10.0.0.9"), record::encode_pointer(&newer));
        let attachment = Key::new("v1/attachments/prod/n1/lan/c9/eth0");
        store.put(&attachment, record::encode_pointer(&ghost));
        store.delete(&Key::new("v1/attachments/prod/n1/lan/c1/eth0"));
        store.delete(&Key::new("v1/serves/shop/db/shop-db"));
        store.put(&Key::new("v1/serves/shop/web/shop-db"), record::encode_serve());
        let contents = read_everything(&store).await.unwrap();
        let notes = audit(&contents.everything);
        let repairs = check::repair(&store, &notes, &contents, NOW).await.unwrap();
        let mut seen: Vec<String> =
            notes.iter().zip(&repairs).map(|(n, r)| format!("{} {}", n.kind.as_str(), r.as_str())).collect();
        seen.sort();
        assert_eq!(
            seen,
            [
                "address-of-another by hand",
                "address-without-lease repaired",
                "lease-without-address repaired",
                "lease-without-attachment repaired",
                "newer by hand",
                "serve-not-indexed repaired",
                "serve-stale repaired",
                "stale-attachment repaired",
            ]
        );
        let after = read_everything(&store).await.unwrap();
        let left: Vec<&str> = audit(&after.everything).iter().map(|n| n.kind.as_str()).collect();
        assert_eq!(left, ["address-of-another", "newer"]);
        // Nothing was freed: the lease is there again, bound by the container that the store knows of it.
        let lease = after.everything.leases.iter().find(|lease| lease.id == ghost).unwrap();
        let bound = lease.bound().map(|stamp| (stamp.container.as_str(), stamp.node.as_str()));
        assert_eq!(bound, Some(("c9", "n1")));
        assert_eq!(lease.addresses[0].pool, Some(PoolName::new("shop-db").unwrap()));
        assert!(lease.sticky && !lease.unconfirmed);
        assert!(!check::preview(&notes, &after, NOW).contains(&Repair::Done));
    }

    /// Mends, and says what became of each note.
    async fn mended(store: &MemoryStore) -> Vec<String> {
        let contents = read_everything(store).await.unwrap();
        let notes = audit(&contents.everything);
        let repairs = check::repair(store, &notes, &contents, NOW).await.unwrap();
        notes.iter().zip(&repairs).map(|(n, r)| format!("{} {}", n.kind.as_str(), r.as_str())).collect()
    }

    /// The keys of an attachment, and of an address, that name a lease.
    fn names(store: &MemoryStore, container: Option<&str>, address: &str, lease: &str) -> LeaseId {
        let id = keys::parse_lease_path(lease).unwrap();
        let domain = DomainName::new("default").unwrap();
        store.put(&keys::address(&domain, address.parse().unwrap()), record::encode_pointer(&id));
        if let Some(container) = container {
            let key = Key::new(format!("v1/attachments/prod/n1/lan/{container}/eth0"));
            store.put(&key, record::encode_pointer(&id));
        }
        id
    }

    #[tokio::test]
    async fn b013_a_lost_lease_is_written_again_from_what_names_it() {
        let store = stocked().await;
        // It had both families; its pod has moved on from 10.0.0.6 and c6, and a container without a pod has another.
        names(&store, Some("c6"), "10.0.0.6", "prod/shop/web-x7k2p/lan/eth0");
        names(&store, None, "fd00::7", "prod/shop/web-x7k2p/lan/eth0");
        let id = names(&store, Some("c7"), "10.0.0.7", "prod/shop/web-x7k2p/lan/eth0");
        let tool = names(&store, None, "10.0.0.8", "prod/_/tool/lan/eth0");
        assert!(mended(&store).await.iter().all(|line| line.ends_with(" repaired")));
        let leases = read_everything(&store).await.unwrap().everything.leases;
        let lease = leases.iter().find(|lease| lease.id == id).unwrap();
        let addresses: Vec<String> = lease.addresses.iter().map(|a| a.address.to_string()).collect();
        assert_eq!(addresses, ["10.0.0.7", "fd00::7"]);
        assert_eq!(lease.bound().unwrap().container.as_str(), "c7");
        assert!(!lease.sticky);
        let tool = leases.iter().find(|lease| lease.id == tool).unwrap();
        assert!(tool.bound().is_none() && tool.unconfirmed && !tool.sticky);
        // What it has moved on from is given back as by the ADD that moved on.
        assert_eq!(mended(&store).await, ["address-not-listed repaired"]);
        let after = read_everything(&store).await.unwrap().everything;
        assert_eq!(audit(&after), []);
        let released = after.released.iter().find(|(p, _)| p.address.to_string() == "10.0.0.6");
        assert!(released.unwrap().1.unconfirmed);
    }

    #[tokio::test]
    async fn b013_what_may_be_in_use_is_left_to_a_person() {
        let store = stocked().await;
        // Was db-0's record put back from an old copy, while its pod runs as c5?
        store.delete(&Key::new("v1/attachments/prod/n1/lan/c1/eth0"));
        names(&store, Some("c5"), "10.0.0.5", "prod/shop/db-0/lan/eth0");
        let before = store.dump();
        let left =
            ["address-not-listed by hand", "lease-without-attachment by hand", "stale-attachment by hand"];
        assert_eq!(mended(&store).await, left);
        // db-7 runs with the address that db-1 lists, and its own lease is lost.
        names(&store, Some("c7"), "10.0.0.2", "prod/shop/db-7/lan/eth0");
        let mut found = mended(&store).await;
        found.retain(|line| !left.contains(&line.as_str()));
        assert_eq!(found, ["address-astray by hand"]);
        let after = store.dump();
        assert!(before.keys().all(|key| after.contains_key(key)));
        assert!(after.contains_key(&Key::new("v1/attachments/prod/n1/lan/c7/eth0")));
    }

    #[tokio::test]
    async fn b013_a_lease_is_not_written_again_while_its_pool_cannot_be_read() {
        let store = stocked().await;
        names(&store, None, "10.0.0.7", "prod/shop/db-7/lan/eth0");
        store.put(&keys::pool(&PoolName::new("shop-db").unwrap()), "{");
        assert!(mended(&store).await.contains(&"address-without-lease by hand".to_owned()));
    }

    #[tokio::test]
    async fn repair_never_frees_what_a_lease_lists() {
        let store = stocked().await;
        let domain = DomainName::new("default").unwrap();
        let key = |address: &str| keys::address(&domain, address.parse().unwrap());
        let attachment = Key::new("v1/attachments/prod/n1/lan/c1/eth0");
        let good = store.dump();
        let other = keys::parse_lease_path("prod/shop/db-1/lan/eth0").unwrap();
        let gone = keys::parse_lease_path("prod/shop/db-7/lan/eth0").unwrap();
        for named in [other, gone] {
            store.put(&key("10.0.0.1"), record::encode_pointer(&named));
            store.put(&attachment, record::encode_pointer(&named));
            let contents = read_everything(&store).await.unwrap();
            let notes = audit(&contents.everything);
            let repairs = check::repair(&store, &notes, &contents, NOW).await.unwrap();
            assert_eq!(repairs, [Repair::Done, Repair::Done], "{notes:?}");
            assert_eq!(store.dump(), good);
        }
    }

    #[tokio::test]
    async fn repair_leaves_a_store_that_went_on_alone() {
        let store = stocked().await;
        let domain = DomainName::new("default").unwrap();
        let address = keys::address(&domain, "10.0.0.2".parse().unwrap());
        store.delete(&address);
        let contents = read_everything(&store).await.unwrap();
        let notes = audit(&contents.everything);
        store.put(&address, record::encode_device("faster", NOW));
        assert_eq!(check::repair(&store, &notes, &contents, NOW).await.unwrap(), [Repair::Changed]);
        assert!(store.dump()[&address].starts_with(br#"{"v":1,"reason":"faster""#));
    }

    #[tokio::test]
    async fn records_that_cannot_be_read_are_listed_and_never_deleted() {
        let store = stocked().await;
        let id = keys::parse_lease_path("prod/shop/db-1/lan/eth0").unwrap();
        store.put(&keys::lease(&id), "{");
        let rows = leases::list(&store, &scope(), &Filter::default(), NOW).await.unwrap().1;
        let row = rows.iter().find(|row| row.state == RowState::Invalid).unwrap();
        assert_eq!(row.key.as_deref(), Some("v1/leases/prod/shop/db-1/lan/eth0"));
        assert_eq!(row.holder(), Some(&id.holder));
        let target = Target::Holder(id.holder.clone());
        assert!(matches!(
            leases::release(&store, &scope(), &target, None, true, NOW, false).await,
            Err(Halted { error: Error::Wrong { .. }, .. })
        ));
    }

    /// In which somebody is faster with a lease than the second commit.
    struct Overtaken {
        store: MemoryStore,
        commits: AtomicU32,
        whose: LeaseId,
    }

    impl Store for Overtaken {
        async fn read(&self, reads: &[Read], at: Option<Revision>) -> Result<Snapshot, StoreError> {
            self.store.read(reads, at).await
        }

        async fn commit(&self, txn: &Txn) -> Result<Outcome, StoreError> {
            if self.commits.fetch_add(1, Ordering::Relaxed) == 1 {
                self.store.delete(&keys::lease(&self.whose));
            }
            self.store.commit(txn).await
        }
    }

    #[tokio::test]
    async fn what_was_done_before_a_change_of_several_ended_is_told() {
        let whose = keys::parse_lease_path("prod/shop/db-1/lan/eth0").unwrap();
        let store = Overtaken { store: stocked().await, commits: AtomicU32::new(0), whose };
        let (namespace, db) = (Namespace::new("shop").unwrap(), WorkloadName::new("db").unwrap());
        let target = Target::Workload(namespace, db);
        let halted = leases::release(&store, &scope(), &target, None, true, NOW, false).await.unwrap_err();
        let done: Vec<&str> = halted.done.iter().map(|gone| gone.whose.as_str()).collect();
        assert_eq!(done, ["shop/db-0 eth0 on lan"]);
        assert_eq!(halted.to_string(), "shop/db-1 eth0 on lan changed meanwhile, and is left as it is");
    }

    /// In which somebody writes before every page but the first, and which is compacted once.
    struct Busy {
        store: MemoryStore,
        pages: AtomicU32,
    }

    impl Store for Busy {
        async fn read(&self, reads: &[Read], at: Option<Revision>) -> Result<Snapshot, StoreError> {
            if at.is_some() {
                let page = self.pages.fetch_add(1, Ordering::Relaxed);
                put_leased(&self.store, 1_000_000 + page);
                self.store.put(&Key::new("v1/addresses/default/4/ffffffff"), "{\"v\":2}");
                if page == 5 {
                    self.store.compact(self.store.revision());
                }
            }
            self.store.read(reads, at).await
        }

        async fn commit(&self, _: &Txn) -> Result<Outcome, StoreError> {
            unreachable!("a list writes nothing")
        }
    }

    fn put_leased(store: &MemoryStore, index: u32) {
        let address = std::net::Ipv4Addr::from(0x0a00_0000 + index);
        let id = format!("prod/shop/db-{index:07}/lan/eth0");
        store.put(
            &Key::new(format!("v1/leases/{id}")),
            format!(r#"{{"v":1,"addresses":[{{"address":"{address}","domain":"default"}}]}}"#),
        );
        let key = Key::new(format!("v1/addresses/default/4/{:08x}", u32::from(address)));
        store.put(&key, format!(r#"{{"v":1,"lease":"{id}"}}"#));
    }

    #[tokio::test]
    async fn b112_a_store_of_many_pages_is_read_at_one_revision() {
        let store = MemoryStore::new();
        for index in 0..25_000u32 {
            put_leased(&store, index);
        }
        let broken = Key::new("v1/addresses/default/4/0a0061a8"); // on the third page
        store.put(&broken, "{\"v\":2}");
        let before = store.revision();
        let busy = Busy { store, pages: AtomicU32::new(0) };
        let (revision, rows) = leases::list(&busy, &scope(), &Filter::default(), NOW).await.unwrap();
        let pages = busy.pages.load(Ordering::Relaxed);
        assert!(pages > 6 + 5, "{pages}");
        // Read again from the beginning: with what was written before the store was compacted.
        let leases = rows.iter().filter(|row| row.state == RowState::Bound || row.state == RowState::Held);
        assert_eq!((leases.count(), rows.len()), (25_000 + 6, 25_000 + 6 + 2));
        assert!(rows.windows(2).all(|pair| pair[0].place < pair[1].place));
        assert_eq!(revision.0, before.0 + 6 * 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: Some(Box::new(proptest::test_runner::FileFailurePersistence::WithSource("regressions"))),
            ..ProptestConfig::default()
        })]

        /// Whatever is spoiled in a good store, the audit sees it.
        #[test]
        fn the_audit_sees_every_spoiled_key(index in any::<prop::sample::Index>(), how in 0..3, garbage in "\\PC{0,12}") {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let store = runtime.block_on(stocked());
            let spoil: Vec<Key> = store.dump().into_keys().filter(|key| {
                ["leases/", "addresses/", "attachments/", "pools/", "serves/"].iter().any(|kind| key.as_str()[3..].starts_with(kind))
            }).collect();
            let key = index.get(&spoil);
            let device = store.dump()[key].starts_with(b"{\"v\":1,\"reason");
            let serve = key.as_str().starts_with("v1/serves/");
            match how {
                0 if !device => store.delete(key),
                1 if !serve => store.put(key, garbage),
                2 if !serve => store.put(key, "{\"v\":2}"),
                _ => return Ok(()),
            }
            let entries: Vec<Entry> = store.dump().into_iter()
                .map(|(key, value)| Entry { key, value, revision: Revision(1) }).collect();
            prop_assert!(!audit(&Contents::of(Revision(1), &entries).everything).is_empty(), "{}", key);
        }
    }
}
