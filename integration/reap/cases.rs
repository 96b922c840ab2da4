//! The field cases of the reaper: what freed a living address elsewhere, and what did not come back.

use leasehold::{
    admin::check::Repair,
    domain::{
        lease::{Lease, LeaseId, Released, Timestamp},
        names::ClusterName,
    },
    pods::fake::Question,
    reaper::{Options, Report},
    store::{
        Entry, Revision, changes, keys,
        record::{self, Stored},
    },
};

use super::scene::{Scene, given, key, node, uid, why};
use crate::ops::world::{id, pool};

#[tokio::test(start_paused = true)]
async fn b009_a_pod_that_vanished_without_del_is_given_back_after_the_grace_and_not_before() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.runs("shop/b-x7k2p", "B", "n1").await;
    scene.vanishes("shop/a-x7k2p");
    assert!(scene.gives().await.is_empty());
    scene.wait(119).await;
    assert!(scene.gives().await.is_empty());
    scene.wait(2).await;
    assert_eq!(scene.gives().await, ["shop/a-x7k2p 8"]);
    let left = scene.world.show();
    assert!(left.contains("by shop/a-x7k2p unconfirmed"), "{left}");
    assert!(left.contains("L shop/b-x7k2p bound"), "{left}");
}

#[tokio::test(start_paused = true)]
async fn b038_a_pod_that_is_born_while_the_pods_are_listed_is_kept() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.vanishes("shop/a-x7k2p");
    scene.pass().await;
    scene.wait(300).await;
    // It is back, but only after the list.
    scene.api.before(|question, state| {
        if matches!(question, Question::Pod(_)) {
            state.pod(&key("shop/a-x7k2p"), &uid("u2"), &node("n1"));
        }
        None
    });
    let report = scene.pass().await;
    assert!(given(&report).is_empty());
    assert_eq!(why(&report, "shop/a-x7k2p").unwrap().1, "its pod lives");
}

#[tokio::test(start_paused = true)]
async fn b048_a_lease_that_changed_after_it_was_read_is_left_alone() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.vanishes("shop/a-x7k2p");
    scene.pass().await;
    scene.wait(300).await;
    // The same node: nothing to probe, so that the ADD waits for nobody.
    let n1 = scene.world.node("n1");
    scene.api.before(move |question, _| {
        if matches!(question, Question::Pod(_)) {
            crate::ops::world::futures_now(n1.add("shop/a-x7k2p", "A2")).unwrap();
        }
        None
    });
    assert!(scene.gives().await.is_empty());
    assert!(scene.world.show().contains("L shop/a-x7k2p bound 10.0.0"));
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_writes_nothing_and_says_what_would_be() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.vanishes("shop/a-x7k2p");
    scene.pass().await;
    scene.wait(300).await;
    let before = scene.store().dump();
    let report = scene.try_pass(Options { dry_run: true, mend: true, ..Options::default() }).await.unwrap();
    assert_eq!(report.candidates, 1);
    assert_eq!(scene.store().dump(), before);
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_keeps_its_address_when_its_node_dies_and_a_deployment_gives_it_back() {
    let scene = Scene::with(&[pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.13"])]);
    let address = scene.runs_in_set("shop/db-0", "A", "n1", 1).await;
    scene.runs("shop/web-x7k2p", "B", "n1").await;
    scene.pass().await;
    scene.falls_silent("n1");
    for pod in ["shop/db-0", "shop/web-x7k2p"] {
        let mut state = scene.api.state();
        let now = state.now;
        state.pods.get_mut(&key(pod)).unwrap().deleting = Some(now);
    }
    assert!(scene.gives().await.is_empty());
    scene.wait(30).await;
    assert_eq!(scene.gives().await, ["shop/db-0 5", "shop/web-x7k2p 5"]);
    let left = scene.world.show();
    assert!(left.contains(&format!("L shop/db-0 held {address}")), "{left}");
    assert!(!left.contains("L shop/web"), "{left}");
}

#[tokio::test(start_paused = true)]
async fn b013_half_pairs_are_found_and_mended() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.runs("shop/b-x7k2p", "B", "n1").await;
    let lease = scene.world.lease("shop/a-x7k2p").unwrap();
    let address = &lease.value.addresses[0];
    scene.store().delete(&leasehold::store::keys::address(&address.domain, address.address));
    scene.store().delete(&leasehold::store::keys::lease(&crate::ops::world::id("shop/b-x7k2p")));
    // Its pod lives: what it may still use is left alone, and told.
    let options = Options { mend: true, ..Options::default() };
    let before = scene.store().dump();
    let report = scene.pass_over_a_spoiled_store(options).await.unwrap();
    let outcomes = |report: &Report| -> Vec<&str> {
        report.mended.notes.iter().map(|(_, repair)| repair.as_str()).collect()
    };
    let mut found = outcomes(&report);
    found.sort_unstable();
    assert_eq!(found, ["by hand", "by hand", "repaired"], "{:?}", report.mended);
    assert!(report.needs_a_look());
    // Only what was missing of the other is there again.
    let mut after = scene.store().dump();
    after.retain(|key, _| before.contains_key(key));
    assert_eq!(after.len(), before.len());
    assert!(scene.world.show().contains("A 10.0.0"), "{}", scene.world.show());
    // Gone, but another cluster answers: nothing is believed.
    scene.vanishes("shop/b-x7k2p");
    scene.api.state().identity = uid("another");
    let report = scene.pass_over_a_spoiled_store(options).await.unwrap();
    assert_eq!(outcomes(&report), ["repairable", "repairable"], "{:?}", report.mended);
    scene.api.state().identity = uid("kube-system");
    let report = scene.pass().await;
    assert_eq!(outcomes(&report), ["repaired", "repaired"], "{:?}", report.mended);
    assert!(scene.world.show().contains("by shop/b-x7k2p unconfirmed"), "{}", scene.world.show());
}

/// A pod of another cluster of the same store, with its lease.
async fn runs_elsewhere(scene: &Scene, pod: &str, container: &str) -> Stored<Lease> {
    let elsewhere = ClusterName::new("other").unwrap();
    let cluster = record::Cluster { uid: uid("another"), last_reap: None };
    scene.store().put(&keys::cluster(&elsewhere), record::encode_cluster(&cluster, None));
    let mut node = scene.world.node("b1");
    node.me.cluster = elsewhere.clone();
    node.gets(pod, container).await;
    let key = keys::lease(&LeaseId { cluster: elsewhere, ..id(pod) });
    let value = scene.store().dump().remove(&key).unwrap();
    record::decode_lease(&Entry { key, value, revision: Revision(1) }).unwrap()
}

#[tokio::test(start_paused = true)]
async fn b013_what_a_lease_of_another_cluster_lists_is_not_freed() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    let lives = runs_elsewhere(&scene, "shop/b-x7k2p", "B").await.value;
    // What it has, to the key; the time of the pass stands in the cluster's record.
    let all = || {
        let mut all = scene.store().dump();
        all.remove(&keys::cluster(&ClusterName::new("prod").unwrap()));
        all
    };
    let before = all();
    let address = keys::address(&lives.addresses[0].domain, lives.addresses[0].address);
    let attachment = changes::attachment_key(&lives.id, lives.bound().unwrap());
    let pass = async || {
        let options = Options { mend: true, ..Options::default() };
        let notes = scene.pass_over_a_spoiled_store(options).await.unwrap().mended.notes;
        notes.iter().map(|(note, repair)| (note.kind.as_str(), *repair)).collect::<Vec<_>>()
    };
    // They name a pod of this cluster that is long gone.
    let wrong = record::encode_pointer(&id("shop/gone-x7k2p"));
    scene.store().put(&attachment, wrong.clone());
    assert_eq!(pass().await, [], "left to the reaper of its own cluster");
    assert_eq!(all()[&attachment], wrong);
    scene.store().put(&address, wrong);
    assert_eq!(pass().await, [("address-astray", Repair::Done), ("attachment-astray", Repair::Done)]);
    assert_eq!(all(), before);
}

#[tokio::test(start_paused = true)]
async fn b013_no_api_says_that_a_pod_of_another_cluster_is_gone() {
    let scene = Scene::new();
    let lives = runs_elsewhere(&scene, "shop/b-x7k2p", "B").await.value;
    let address = &lives.addresses[0];
    // Its lease was deleted by hand, and its address is held and released: found by whoever comes first.
    scene.store().delete(&keys::lease(&lives.id));
    let released = Released {
        at: Timestamp(0),
        by: lives.id.holder.clone(),
        cluster: lives.id.cluster.clone(),
        unconfirmed: false,
        declined: None,
    };
    let key = keys::released(&address.domain, address.address);
    scene.store().put(&key, record::encode_released(&released, None));
    let report = scene.pass_over_a_spoiled_store(Options { mend: true, ..Options::default() }).await.unwrap();
    let mut found: Vec<_> =
        report.mended.notes.iter().map(|(note, repair)| (note.kind.as_str(), *repair)).collect();
    found.sort_unstable_by_key(|(kind, _)| *kind);
    assert_eq!(found, [("address-without-lease", Repair::ByHand), ("held-and-released", Repair::Done)]);
    assert!(scene.store().dump().contains_key(&keys::address(&address.domain, address.address)));
}
