//! The field cases of the reaper: what freed a living address elsewhere, and what did not come back.

use leasehold::{
    admin::check::Repair,
    domain::{
        kubernetes::PodAddress,
        lease::{Lease, LeaseId, Released, Timestamp},
        names::{ClusterName, DomainName},
    },
    pods::{ApiError, fake::Question},
    reaper::{Options, Report},
    store::{
        Entry, Key, Revision, changes, keys,
        record::{self, Stored},
    },
};

use super::scene::{Scene, given, key, node, uid, why};
use crate::ops::world::{holder, id, pool};

/// Gone from the API, the pod has its lease for as long as `--absent-after`, and not longer.
async fn goes_after_the_grace(scene: &Scene, pod: &str) {
    scene.vanishes(pod);
    assert!(scene.gives().await.is_empty());
    scene.wait(119).await;
    assert!(scene.gives().await.is_empty());
    scene.wait(2).await;
    assert_eq!(scene.gives().await, [format!("{pod} 8")]);
}

#[tokio::test(start_paused = true)]
async fn b009_a_pod_that_vanished_without_del_is_given_back_after_the_grace_and_not_before() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.runs("shop/b-x7k2p", "B", "n1").await;
    goes_after_the_grace(&scene, "shop/a-x7k2p").await;
    let left = scene.world.show();
    assert!(left.contains("by shop/a-x7k2p unconfirmed"), "{left}");
    assert!(left.contains("L shop/b-x7k2p bound"), "{left}");
}

#[tokio::test(start_paused = true)]
async fn b041_a_pod_that_is_back_after_the_list_is_kept() {
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

/// It says neither which pod it was made for nor when.
#[tokio::test(start_paused = true)]
async fn b136_a_lease_of_the_first_format_stays_with_a_pod_of_its_name_and_ends_unconfirmed() {
    let scene = Scene::new();
    let old = r#"{"state":"bound","container":"A","node":"n1","addresses":[{"address":"10.0.0.10","domain":"default","pool":"lan"}]}"#;
    scene.store().put(&keys::lease(&id("shop/a-x7k2p")), old);
    let address = keys::address(&DomainName::new("default").unwrap(), "10.0.0.10".parse().unwrap());
    scene.store().put(&address, record::encode_pointer(&id("shop/a-x7k2p")));
    let attachment = Key::new("v1/attachments/prod/n1/lan/A/eth0");
    scene.store().put(&attachment, record::encode_pointer(&id("shop/a-x7k2p")));
    scene.api.state().pod(&key("shop/a-x7k2p"), &uid("u1"), &node("n1"));
    for _ in 0..3 {
        assert!(scene.gives().await.is_empty());
        scene.wait(600).await;
    }
    goes_after_the_grace(&scene, "shop/a-x7k2p").await;
    assert_eq!(scene.world.show(), "R 10.0.0.10 by shop/a-x7k2p unconfirmed");
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

/// A pass that mends, and what became of each half pair, sorted. A dry run says the same before.
async fn mends(scene: &Scene) -> Vec<(&'static str, Repair)> {
    let found = async |dry_run| {
        let options = Options { mend: true, dry_run, ..Options::default() };
        let report = scene.pass_over_a_spoiled_store(options).await.unwrap();
        let by_hand = report.mended.notes.iter().any(|(_, repair)| *repair == Repair::ByHand);
        assert!(report.needs_a_look() || !by_hand);
        let mut found: Vec<_> =
            report.mended.notes.iter().map(|(note, repair)| (note.kind.as_str(), *repair)).collect();
        found.sort_unstable_by_key(|(kind, _)| *kind);
        found
    };
    let before = scene.store().dump();
    let mut foretold = found(true).await;
    assert_eq!(scene.store().dump(), before);
    for (_, repair) in &mut foretold {
        if *repair == Repair::Possible {
            *repair = Repair::Done;
        }
    }
    let done = found(false).await;
    assert_eq!(done, foretold);
    done
}

const LOST: [(&str, Repair); 2] =
    [("address-without-lease", Repair::Done), ("stale-attachment", Repair::Done)];

/// The record of a lease goes, by another hand.
fn loses_its_lease(scene: &Scene, pod: &str) {
    scene.store().delete(&keys::lease(&id(pod)));
}

fn address_of(scene: &Scene, pod: &str) -> Key {
    let lease = scene.world.lease(pod).unwrap().value;
    keys::address(&lease.addresses[0].domain, lease.addresses[0].address)
}

#[tokio::test(start_paused = true)]
async fn a_lease_or_a_pool_that_cannot_be_read_is_something_to_look_at() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    assert!(!scene.pass().await.needs_a_look());
    scene.store().put(&leasehold::store::keys::lease(&crate::ops::world::id("shop/b-x7k2p")), "?");
    scene.store().put(&Key::new("v1/pools/bad"), "?");
    let report = scene.pass_over_a_spoiled_store(Options::default()).await.unwrap();
    let unread: Vec<&str> = report.unread().map(|(key, _)| key.as_str()).collect();
    assert_eq!(unread, ["v1/leases/prod/shop/b-x7k2p/lan/eth0", "v1/pools/bad"]);
    assert!(report.needs_a_look());
}

#[tokio::test(start_paused = true)]
async fn keys_that_cannot_be_read_are_told_of_and_left_as_they_are() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    let lease = scene.world.lease("shop/a-x7k2p").unwrap().value;
    let newer = r#"{"v":9,"lease":"prod/shop/a-x7k2p/lan/eth0"}"#;
    let device = r#"{"v":1,"reason":"printer"}"#;
    let broken = [
        (address_of(&scene, "shop/a-x7k2p"), "?", "expected value at line 1 column 1"),
        (Key::new("v1/addresses/default/4/0b"), device, "the key names nothing"),
        (Key::new("v1/addresses/default/4/0b000001"), newer, "version 9: a newer leasehold wrote it"),
        (Key::new("v1/attachments/prod/n1"), newer, "the key names nothing"),
        (changes::attachment_key(&lease.id, lease.bound().unwrap()), "{}", "lease: is missing"),
        (Key::new("v1/released/default/4/0b"), "{}", "the key names nothing"),
        (Key::new("v1/released/default/4/0b000002"), "[]", "not a JSON object"),
    ];
    for (key, value, _) in &broken {
        scene.store().put(key, *value);
    }
    // Of another cluster, which has a reaper of its own.
    scene.store().put(&Key::new("v1/attachments/other/n1/lan/X/eth0"), "?");
    let expected = broken.map(|(key, _, why)| (key.to_string(), why.to_owned()));
    let dump = || {
        let mut all = scene.store().dump();
        all.remove(&keys::cluster(&lease.id.cluster)).unwrap();
        all
    };
    let before = dump();
    for (mend, dry_run) in [(true, true), (true, false), (false, false)] {
        let options = Options { mend, dry_run, ..Options::default() };
        let report = scene.pass_over_a_spoiled_store(options).await.unwrap();
        let unread: Vec<_> = report.unread().cloned().collect();
        assert_eq!(unread, if mend { expected.to_vec() } else { Vec::new() });
        assert_eq!(report.needs_a_look(), mend);
        assert_eq!(report.mended.notes, []);
        assert_eq!(dump(), before);
    }
}

#[tokio::test(start_paused = true)]
async fn b013_half_pairs_are_found_and_mended() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.runs("shop/b-x7k2p", "B", "n1").await;
    let before = scene.world.show();
    scene.store().delete(&address_of(&scene, "shop/a-x7k2p"));
    loses_its_lease(&scene, "shop/b-x7k2p");
    let all = [LOST[0], ("lease-without-address", Repair::Done), LOST[1]];
    assert_eq!(mends(&scene).await, all);
    assert_eq!(scene.world.show(), before);
    // Another cluster answers: nothing is believed.
    loses_its_lease(&scene, "shop/b-x7k2p");
    scene.vanishes("shop/b-x7k2p");
    scene.api.state().identity = uid("another");
    let spoiled = scene.world.show();
    assert_eq!(mends_nothing(&scene).await, [Repair::Possible, Repair::Possible]);
    assert_eq!(scene.world.show(), spoiled);
    scene.api.state().identity = uid("kube-system");
    // Nothing is freed by a repair: its pod is missed as any other.
    assert_eq!(mends(&scene).await, LOST);
    assert_eq!(scene.world.show(), before);
    assert!(scene.gives().await.is_empty());
    scene.wait(119).await;
    assert!(scene.gives().await.is_empty());
    scene.wait(2).await;
    assert_eq!(scene.gives().await, ["shop/b-x7k2p 8"]);
    assert!(scene.world.show().contains("by shop/b-x7k2p unconfirmed"), "{}", scene.world.show());
}

/// A pass under a brake.
async fn mends_nothing(scene: &Scene) -> Vec<Repair> {
    let options = Options { mend: true, ..Options::default() };
    let report: Report = scene.pass_over_a_spoiled_store(options).await.unwrap();
    assert!(report.braked());
    report.mended.notes.iter().map(|(_, repair)| *repair).collect()
}

#[tokio::test(start_paused = true)]
async fn b013_a_pod_that_lives_has_its_lost_lease_again() {
    let scene = Scene::new();
    let address = scene.runs("shop/a-x7k2p", "A", "n1").await;
    loses_its_lease(&scene, "shop/a-x7k2p");
    assert_eq!(mends(&scene).await, LOST);
    scene.pass().await;
    scene.wait(600).await;
    assert!(scene.gives().await.is_empty());
    // Its next sandbox takes it over, and its DEL ends it.
    loses_its_lease(&scene, "shop/a-x7k2p");
    assert_eq!(mends(&scene).await, LOST);
    assert_eq!(scene.world.node("n1").gets("shop/a-x7k2p", "A2").await, address);
    assert!(!scene.world.node("n1").del("shop/a-x7k2p", "A").await);
    loses_its_lease(&scene, "shop/a-x7k2p");
    assert_eq!(mends(&scene).await, LOST);
    assert!(scene.world.node("n1").del("shop/a-x7k2p", "A2").await);
    assert_eq!(scene.world.show(), format!("R {address} by shop/a-x7k2p"));
}

#[tokio::test(start_paused = true)]
async fn b013_a_static_pod_that_no_mirror_shows_keeps_its_address_without_its_lease() {
    let scene = Scene::new();
    scene.runs("kube-system/etcd-n1", "E", "n1").await;
    scene.vanishes("kube-system/etcd-n1");
    loses_its_lease(&scene, "kube-system/etcd-n1");
    assert_eq!(mends(&scene).await, LOST);
    scene.pass().await;
    scene.wait(600).await;
    let report = scene.pass().await;
    assert!(given(&report).is_empty());
    assert_eq!(why(&report, "kube-system/etcd-n1").unwrap().0.to_string(), "11");
}

#[tokio::test(start_paused = true)]
async fn b013_it_keeps_it_without_its_attachment_too_until_its_node_is_gone() {
    let scene = Scene::new();
    let address = scene.runs("kube-system/etcd-n1", "E", "n1").await;
    scene.vanishes("kube-system/etcd-n1");
    loses_its_lease(&scene, "kube-system/etcd-n1");
    scene.store().delete(&Key::new("v1/attachments/prod/n1/lan/E/eth0"));
    assert_eq!(mends(&scene).await, LOST[..1]);
    // It was written again as of no sandbox, and of no controller.
    let lease = scene.world.lease("kube-system/etcd-n1").unwrap().value;
    assert!(lease.is_adopted() && lease.seen.is_none(), "{lease:?}");
    scene.pass().await;
    scene.wait(600).await;
    let report = scene.pass().await;
    assert!(given(&report).is_empty());
    assert_eq!(why(&report, "kube-system/etcd-n1").unwrap().0.to_string(), "11");
    scene.api.state().nodes.remove(&node("n1"));
    assert_eq!(scene.gives().await, ["kube-system/etcd-n1 8"]);
    assert!(scene.world.show().contains(&format!("R {address} by kube-system/etcd-n1 unconfirmed")));
}

#[tokio::test(start_paused = true)]
async fn b013_an_address_is_not_given_away_from_a_pod_that_may_run_with_it() {
    let scene = Scene::new();
    scene.runs("shop/dead-x7k2p", "D", "n1").await;
    scene.runs("shop/lives-x7k2p", "L", "n1").await;
    let own = address_of(&scene, "shop/lives-x7k2p");
    let contested = address_of(&scene, "shop/dead-x7k2p");
    // While its key was lost, the other one took it; then that one's lease was lost.
    scene.store().delete(&own);
    scene.store().put(&contested, record::encode_pointer(&id("shop/lives-x7k2p")));
    loses_its_lease(&scene, "shop/lives-x7k2p");
    let before = scene.world.show();
    let by_hand = [("address-astray", Repair::ByHand), ("stale-attachment", Repair::ByHand)];
    assert_eq!(mends(&scene).await, by_hand);
    // Even the store knows no container of it any more: the API knows its pod.
    scene.store().delete(&Key::new("v1/attachments/prod/n1/lan/L/eth0"));
    assert_eq!(mends(&scene).await, by_hand[..1]);
    scene.api.before(|question, _| {
        let down = || ApiError::NotReached { server: "https://api".into(), reason: "down".into() };
        matches!(question, Question::Pod(_)).then(down)
    });
    assert_eq!(mends(&scene).await, by_hand[..1]);
    scene.api.honest();
    assert_eq!(scene.world.show(), before.replace("\nT L on n1 shop/lives-x7k2p", ""));
    scene.vanishes("shop/lives-x7k2p");
    assert_eq!(mends(&scene).await, [("address-astray", Repair::Done)]);
    scene.world.audit();
}

#[tokio::test(start_paused = true)]
async fn b013_what_a_pod_has_moved_on_from_comes_back_while_it_lives() {
    let scene = Scene::new();
    let old = scene.runs("shop/a-x7k2p", "A", "n1").await;
    loses_its_lease(&scene, "shop/a-x7k2p");
    let new = scene.world.node("n1").gets("shop/a-x7k2p", "A2").await;
    assert_ne!(old, new);
    // But not what it runs with, as its API says.
    scene.change("shop/a-x7k2p", |pod| {
        pod.addresses = vec![PodAddress { address: old.parse().unwrap(), attachment: None }];
    });
    let half = |kept| [("address-not-listed", kept), ("stale-attachment", Repair::Done)];
    assert_eq!(mends(&scene).await, half(Repair::ByHand));
    scene.change("shop/a-x7k2p", |pod| pod.addresses.clear());
    assert_eq!(mends(&scene).await, half(Repair::Done)[..1]);
    scene.world.audit();
    let left = scene.world.show();
    assert!(left.contains(&format!("R {old} by shop/a-x7k2p unconfirmed")), "{left}");
    assert!(left.contains(&format!("L shop/a-x7k2p bound {new} A2")), "{left}");
}

#[tokio::test(start_paused = true)]
async fn b013_a_container_without_a_pod_has_its_lost_lease_again() {
    let scene = Scene::new();
    let n1 = scene.world.node("n1");
    let mut ask = n1.ask("shop/tool", "tool");
    ask.caller.holder = holder("_/tool");
    n1.run(&ask).await.unwrap();
    let tool = LeaseId { holder: holder("_/tool"), ..id("shop/tool") };
    scene.store().delete(&keys::lease(&tool));
    assert_eq!(mends(&scene).await, LOST);
    assert_eq!(why(&scene.pass().await, "_/tool").unwrap().0.to_string(), "13a");
    n1.try_del(None, "tool").await.unwrap();
    assert!(!scene.world.show().contains("L _/tool"), "{}", scene.world.show());
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
