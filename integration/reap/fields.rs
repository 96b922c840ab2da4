//! The field cases of the reaper, one by one: addresses that others took from living pods, and such as never came back.

use std::time::Duration;

use leasehold::{
    admin::{Scope, leases, pools},
    domain::{
        kubernetes::{ControllerRef, Finished, Phase, PodAddress, Ready},
        lease::Timestamp,
        names::{IfName, Namespace, PoolName},
        reap::Policy,
    },
    ops::Clock as _,
    pods::{ApiError, fake::Question},
    reaper::{Fate, Options},
    store::{
        keys,
        record::{PoolDocument, RetentionDocument},
    },
};

use super::scene::{Scene, given, key, node, uid, why};
use crate::ops::world::{futures_now, id, ip, pool};

/// A lan of one pool that says this of retention.
fn retaining(when_deleted: &str, when_scaled: &str, hold_for: &str) -> PoolDocument {
    let mut document = pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.99"]);
    document.sticky = Some("always".into());
    document.retention = Some(RetentionDocument {
        when_deleted: Some(when_deleted.into()),
        when_scaled: Some(when_scaled.into()),
        hold_for: Some(hold_for.into()),
    });
    document
}

/// Passes each half minute for so long: who was given back?
async fn passes(scene: &Scene, seconds: u64) -> Vec<String> {
    let mut all = scene.gives().await;
    for _ in 0..seconds / 30 {
        scene.wait(30).await;
        all.extend(scene.gives().await);
    }
    all
}

#[tokio::test(start_paused = true)]
async fn b010_a_pod_whose_image_never_came_is_kept_while_it_is_pending_and_given_back_when_it_is_gone() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.change("shop/a-x7k2p", |pod| pod.phase = Phase::Pending);
    assert!(passes(&scene, 600).await.is_empty());
    scene.vanishes("shop/a-x7k2p");
    assert!(passes(&scene, 90).await.is_empty());
    assert_eq!(passes(&scene, 60).await, ["shop/a-x7k2p 8"]);
}

#[tokio::test(start_paused = true)]
async fn b017_attachments_that_are_not_the_pods_first_network_come_back_too() {
    let scene = Scene::new();
    scene.api.state().pod(&key("shop/a-x7k2p"), &uid("u"), &node("n1"));
    let n1 = scene.world.node("n1");
    for ifname in ["net1", "net2"] {
        let mut request = n1.ask("shop/a-x7k2p", "A");
        request.ifname = IfName::new(ifname).unwrap();
        n1.run(&request).await.unwrap();
    }
    // eth0 is of another plugin: its address is all that the pod's status shows.
    let shown = PodAddress { address: ip("10.244.0.7"), attachment: None };
    scene.change("shop/a-x7k2p", |pod| pod.addresses = vec![shown]);
    assert!(passes(&scene, 300).await.is_empty());
    scene.vanishes("shop/a-x7k2p");
    assert_eq!(passes(&scene, 150).await, ["shop/a-x7k2p 8", "shop/a-x7k2p 8"]);
}

#[tokio::test(start_paused = true)]
async fn b018_without_the_node_object_a_gone_pod_is_given_back_and_a_present_one_kept() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n9").await;
    scene.runs("shop/b-x7k2p", "B", "n9").await;
    assert!(!scene.api.state().nodes.contains_key(&node("n9")));
    scene.vanishes("shop/a-x7k2p");
    assert_eq!(passes(&scene, 600).await, ["shop/a-x7k2p 10"]);
    assert!(scene.world.show().contains("L shop/b-x7k2p bound"));
}

#[tokio::test(start_paused = true)]
async fn b036_a_pod_that_is_being_ended_keeps_its_address_as_long_as_it_is_there() {
    let scene = Scene::with(&[pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.10"])]);
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    // Its preStop hook talks to the network for an hour.
    let due = Timestamp(scene.api.state().now.0 + 3_600_000);
    scene.change("shop/a-x7k2p", |pod| pod.deleting = Some(due));
    assert!(passes(&scene, 3540).await.is_empty());
    let n2 = scene.world.node("n2");
    let refused = n2.refused(&n2.ask("shop/b-x7k2p", "B")).await;
    assert_eq!(refused, "1 of 1 addresses of lan are taken");
    assert!(passes(&scene, 600).await.is_empty(), "its node answers: nobody else ends it");
}

#[tokio::test(start_paused = true)]
async fn b037_a_pod_that_shows_no_address_yet_is_kept() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.change("shop/a-x7k2p", |pod| (pod.phase, pod.addresses) = (Phase::Pending, Vec::new()));
    assert!(passes(&scene, 600).await.is_empty());
    scene.change("shop/a-x7k2p", |pod| pod.phase = Phase::Unknown);
    assert!(passes(&scene, 600).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn b040_leases_are_alike_whatever_their_interface_is_called() {
    const NAMES: [&str; 4] = ["eth0", "net1", "hello", "vlan100@x"];
    let scene = Scene::new();
    for pod in ["shop/a-x7k2p", "shop/b-x7k2p"] {
        scene.api.state().pod(&key(pod), &uid(&pod.replace('/', "-")), &node("n1"));
        let n1 = scene.world.node("n1");
        for ifname in NAMES {
            let mut request = n1.ask(pod, &pod[5..6]);
            request.ifname = IfName::new(ifname).unwrap();
            n1.run(&request).await.unwrap();
        }
    }
    assert!(passes(&scene, 300).await.is_empty());
    scene.vanishes("shop/a-x7k2p");
    assert_eq!(passes(&scene, 150).await, ["shop/a-x7k2p 8"; NAMES.len()]);
    assert_eq!(scene.world.show().matches("L shop/b-x7k2p bound").count(), NAMES.len());
}

#[tokio::test(start_paused = true)]
async fn b041_a_pod_made_anew_under_its_name_keeps_what_its_predecessor_had() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.vanishes("shop/a-x7k2p");
    scene.pass().await;
    scene.wait(300).await;
    // The news of the deletion is late: the next pod of this name is there already.
    scene.api.state().pod(&key("shop/a-x7k2p"), &uid("next"), &node("n2"));
    let report = scene.pass_telling_all().await;
    assert!(given(&report).is_empty());
    assert_eq!(why(&report, "shop/a-x7k2p").unwrap().1, "its pod lives");
    // And the note of the first pass is gone: a pod that is missed from now on has all its grace.
    scene.vanishes("shop/a-x7k2p");
    assert!(passes(&scene, 90).await.is_empty());
    assert_eq!(passes(&scene, 60).await, ["shop/a-x7k2p 8"]);
}

#[tokio::test(start_paused = true)]
async fn b042_what_addresses_the_pod_shows_is_nobodys_business() {
    let scene = Scene::with(&[pool(
        "lan",
        &["10.0.0.0/24 10.0.0.10-10.0.0.99", "fd00:9::/64 fd00:9::10-fd00:9::99"],
    )]);
    let both = scene.runs("shop/a-x7k2p", "A", "n1").await;
    let first = both.split(' ').next().unwrap();
    for shown in [vec![first], vec![], vec!["10.244.0.9"]] {
        let addresses = |text: &&str| PodAddress { address: ip(text), attachment: None };
        scene.change("shop/a-x7k2p", |pod| pod.addresses = shown.iter().map(addresses).collect());
        assert!(passes(&scene, 300).await.is_empty(), "{shown:?}");
    }
    let left = scene.world.show();
    assert!(left.contains(&format!("L shop/a-x7k2p bound {both}")), "{left}");
}

#[tokio::test(start_paused = true)]
async fn b044_while_a_set_is_scaled_up_and_down_the_survivors_keep_their_addresses() {
    for when_scaled in ["Retain", "Delete"] {
        let scene = Scene::with(&[retaining("Delete", when_scaled, "0s")]);
        let mut before = Vec::new();
        for n in 0..5 {
            before.push(scene.runs_in_set(&format!("shop/db-{n}"), &format!("c{n}"), "n1", 5).await);
        }
        let still = |scene: &Scene, ordinals: std::ops::Range<usize>| {
            for n in ordinals {
                let left = scene.world.show();
                assert!(left.contains(&format!("L shop/db-{n} bound {}", before[n])), "{n} {left}");
            }
        };
        for round in 0..3 {
            scene.scale("shop/db", 3);
            for n in 3..5 {
                scene.leaves(&format!("shop/db-{n}"));
            }
            for tick in 0..20 {
                scene.wait_ms(100).await;
                scene.pass().await;
                still(&scene, 0..3);
                // The kubelet ends one of the two after half a second, the other one without a DEL.
                if tick == 5 {
                    let container = if round == 0 { "c3".into() } else { format!("c3-{}", round - 1) };
                    scene.world.node("n1").del("shop/db-3", &container).await;
                    scene.vanishes("shop/db-3");
                    scene.vanishes("shop/db-4");
                }
            }
            scene.scale("shop/db", 5);
            for (n, old) in before.iter().enumerate().skip(3) {
                let address =
                    scene.runs_in_set(&format!("shop/db-{n}"), &format!("c{n}-{round}"), "n1", 5).await;
                if when_scaled == "Retain" {
                    assert_eq!(address, *old);
                }
            }
            for _ in 0..10 {
                scene.wait_ms(100).await;
                assert!(scene.gives().await.is_empty());
                still(&scene, 0..3);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn b045_b116_a_list_that_does_not_come_whole_gives_nothing_back() {
    let scene = Scene::new();
    for pod in ["shop/a-x7k2p", "shop/b-x7k2p"] {
        scene.runs(pod, &pod[5..], "n1").await;
    }
    scene.vanishes("shop/a-x7k2p");
    scene.pass().await;
    scene.wait(600).await;
    let server = || "https://api.test:6443".to_owned();
    let what = || "pods".to_owned();
    let errors = [
        ApiError::NotReached { server: server(), reason: "connection refused".into() },
        ApiError::Unauthorized { server: server(), reason: "the token is expired".into() },
        ApiError::Forbidden { verb: "list", what: "pods in namespace shop".into(), reason: "RBAC".into() },
        ApiError::Expired { what: what() },
        ApiError::Answer { what: what(), reason: "500 etcdserver: request timed out".into() },
    ];
    let before = scene.store().dump();
    for error in errors {
        for at in [Question::Identity, Question::Pods] {
            let (asked, told) = (at.clone(), error.clone());
            scene.api.before(move |question, _| (*question == asked).then(|| told.clone()));
            let ended = scene.try_pass(Options { mend: true, ..Options::default() }).await;
            assert_eq!(ended.unwrap_err().to_string(), error.to_string(), "{at:?}");
            assert_eq!(scene.store().dump(), before, "{at:?}");
        }
    }
    // An empty list is whole, and no truth.
    let all = scene.api.state().pods.clone();
    scene.api.before(|question, state| {
        if *question == Question::Pods {
            state.pods.clear();
        }
        None
    });
    let report = scene.pass_telling_all().await;
    assert_eq!(report.brakes.iter().map(|brake| brake.label()).collect::<Vec<_>>(), ["list_empty"]);
    assert!(given(&report).is_empty());
    assert!(why(&report, "shop/a-x7k2p").unwrap().1.starts_with("braked: "));
    scene.api.honest();
    scene.api.state().pods = all;
    assert_eq!(scene.gives().await, ["shop/a-x7k2p 8"]);
}

#[tokio::test(start_paused = true)]
async fn b046_where_the_live_question_fails_the_candidate_is_kept_and_the_others_are_not() {
    let scene = Scene::new();
    for pod in ["shop/a-x7k2p", "web/b-x7k2p"] {
        scene.runs(pod, &pod[..3], "n1").await;
        scene.vanishes(pod);
    }
    scene.pass().await;
    scene.wait(300).await;
    for (error, text) in [
        (
            ApiError::NotReached { server: "https://a.test".into(), reason: "timeout".into() },
            "not known: https://a.test not reached: timeout",
        ),
        (
            ApiError::Forbidden { verb: "get", what: "pods shop/a-x7k2p".into(), reason: "RBAC".into() },
            "not known: may not get pods shop/a-x7k2p: RBAC",
        ),
    ] {
        let told = error.clone();
        scene.api.before(move |question, _| {
            (*question == Question::Pod(key("shop/a-x7k2p"))).then(|| told.clone())
        });
        let report = scene.pass().await;
        assert_eq!(why(&report, "shop/a-x7k2p").unwrap().1, text);
        assert!(report.judged.iter().all(|j| !j.id.holder.to_string().contains("a-x7k2p") || j.look));
        assert_eq!(report.kept["unknown_answer"], 1);
        // Not only in a table: a pass that could not ask has not done its work.
        assert!(report.troubles.iter().any(|trouble| trouble.contains("not known")), "{:?}", report.troubles);
    }
    let left = scene.world.show();
    assert!(left.contains("L shop/a-x7k2p bound") && !left.contains("L web/b-x7k2p"), "{left}");
    scene.api.honest();
    assert_eq!(scene.gives().await, ["shop/a-x7k2p 8"]);
}

#[tokio::test(start_paused = true)]
async fn b049_a_pod_that_gave_its_lease_back_and_leased_again_since_the_look_keeps_it() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.vanishes("shop/a-x7k2p");
    scene.pass().await;
    scene.wait(300).await;
    let n1 = scene.world.node("n1");
    scene.api.before(move |question, _| {
        if matches!(question, Question::Pod(_)) {
            assert!(futures_now(n1.del("shop/a-x7k2p", "A")));
            futures_now(n1.add("shop/a-x7k2p", "B")).unwrap();
        }
        None
    });
    assert!(scene.gives().await.is_empty());
    assert!(scene.world.show().contains(" B on n1"), "{}", scene.world.show());
}

#[tokio::test(start_paused = true)]
async fn b052_the_grace_is_counted_from_the_first_look_whatever_time_the_node_wrote() {
    for hours in [-2, 2] {
        let scene = Scene::new();
        let pod = "shop/a-x7k2p";
        scene.api.state().pod(&key(pod), &uid("u"), &node("n1"));
        let n1 = scene.world.node("n1");
        n1.clock.skew.store(hours * 3_600_000, std::sync::atomic::Ordering::Relaxed);
        n1.gets(pod, "A").await;
        assert!(passes(&scene, 60).await.is_empty(), "{hours}");
        scene.vanishes(pod);
        assert!(passes(&scene, 90).await.is_empty(), "{hours}");
        assert_eq!(passes(&scene, 30).await, ["shop/a-x7k2p 8"], "{hours}");
    }
}

/// One pod that its kubelet should have ended ten minutes ago, or not: is it given back?
async fn lost_node(ready: Ready, out_of_service: bool, deleting: bool, node_lost: &str) -> String {
    let mut document = pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.99"]);
    document.node_lost = Some(node_lost.into());
    let scene = Scene::with(&[document]);
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    if deleting {
        scene.leaves("shop/a-x7k2p");
    }
    scene.wait(600).await;
    {
        let mut state = scene.api.state();
        let node = state.node(&node("n1"));
        (node.ready, node.out_of_service) = (ready, out_of_service);
    }
    let report = scene.pass_telling_all().await;
    assert!(report.brakes.is_empty());
    let found = report.judged.iter().find(|judged| judged.id == id("shop/a-x7k2p")).unwrap();
    format!("{} {}", found.row, found.fate.as_str())
}

#[tokio::test(start_paused = true)]
async fn b054_what_becomes_of_a_pod_on_a_node_that_does_not_answer() {
    let now = Timestamp(1_700_000_000_000 + 600_000);
    let ago = |seconds: i64| Ready::Unknown { since: Timestamp(now.0 - seconds * 1000) };
    for (ready, out_of_service, expected) in [
        (Ready::True, false, "3 kept"),
        (Ready::True, true, "3 kept"),
        (Ready::False, false, "3 kept"),
        (Ready::False, true, "5 given back"),
        (ago(29), false, "4 kept"),
        (ago(29), true, "5 given back"),
        (ago(30), false, "5 given back"),
        (ago(30), true, "5 given back"),
    ] {
        let case = format!("{ready:?} {out_of_service}");
        assert_eq!(lost_node(ready, out_of_service, true, "free").await, expected, "{case}");
        let kept = expected.replace("given back", "kept");
        assert_eq!(lost_node(ready, out_of_service, true, "keep").await, kept, "{case} keep");
        for node_lost in ["free", "keep"] {
            assert_eq!(lost_node(ready, out_of_service, false, node_lost).await, "1 kept", "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn b054_the_grace_of_a_pod_is_waited_for_on_a_lost_node_too() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.falls_silent("n1");
    scene.wait(600).await;
    // Ten minutes to end in peace, from now on.
    let due = Timestamp(scene.api.state().now.0 + 600_000);
    scene.change("shop/a-x7k2p", |pod| pod.deleting = Some(due));
    assert!(passes(&scene, 570).await.is_empty());
    assert_eq!(passes(&scene, 30).await, ["shop/a-x7k2p 5"]);
}

#[tokio::test(start_paused = true)]
async fn b056_a_finished_job_gives_its_address_back_and_one_that_starts_again_does_not() {
    let scene = Scene::new();
    for pod in ["shop/done-x7k2p", "shop/failed-x7k2p", "shop/again-x7k2p", "shop/silent-x7k2p"] {
        scene.runs(pod, &pod[5..], "n1").await;
    }
    scene.wait(600).await;
    let now = scene.api.state().now;
    let ends = |phase: Phase, finished: Finished| {
        move |pod: &mut leasehold::domain::kubernetes::Pod| {
            (pod.phase, pod.finished) = (phase, finished);
        }
    };
    scene.change("shop/done-x7k2p", ends(Phase::Succeeded, Finished::At(now)));
    scene.change("shop/failed-x7k2p", ends(Phase::Failed, Finished::At(now)));
    // restartPolicy OnFailure: a container has ended, the pod has not.
    scene.change("shop/again-x7k2p", ends(Phase::Running, Finished::At(now)));
    // Its status does not tell when.
    scene.change("shop/silent-x7k2p", ends(Phase::Failed, Finished::Unsaid));
    assert!(passes(&scene, 90).await.is_empty());
    assert_eq!(passes(&scene, 30).await, ["shop/done-x7k2p 6", "shop/failed-x7k2p 6", "shop/silent-x7k2p 6"]);
    let left = scene.world.show();
    assert_eq!(left.matches("L shop/").count(), 1, "{left}");
    assert!(left.contains("L shop/again-x7k2p bound"), "{left}");
}

#[tokio::test(start_paused = true)]
async fn b057_two_and_a_half_thousand_dead_of_three_thousand_come_back_in_one_pass() {
    const ALL: usize = 3_000;
    const DEAD: usize = 2_500;
    let mut scene = Scene::with(&[pool("lan", &["10.0.0.0/19 10.0.0.10-10.0.31.250"])]);
    let n1 = scene.world.node("n1");
    for n in 0..ALL {
        let pod = format!("shop/a{n}-x7k2p");
        scene.api.state().pod(&key(&pod), &uid(&format!("u{n}")), &node("n1"));
        n1.gets(&pod, &format!("c{n}")).await;
    }
    for n in 0..DEAD {
        scene.vanishes(&format!("shop/a{n}-x7k2p"));
    }
    scene.pass().await;
    scene.wait(120).await;
    let report = scene.pass().await;
    assert_eq!(report.brakes.iter().map(|brake| brake.label()).collect::<Vec<_>>(), ["orphans"]);
    assert!(given(&report).is_empty());
    assert!(
        report.brakes[0].to_string().ends_with("then run with --max-orphans 2500"),
        "{}",
        report.brakes[0]
    );
    scene.policy.max_orphans = Some(DEAD);
    scene.store().forget();
    let report = scene.pass().await;
    assert_eq!(given(&report).len(), DEAD);
    // One a lease, and one for the time of the pass.
    assert_eq!(scene.store().asked().commits, DEAD + 1);
    assert_eq!(scene.world.show().matches("L shop/").count(), ALL - DEAD);
}

#[tokio::test(start_paused = true)]
async fn b058_a_pod_that_no_longer_asks_us_is_shown_as_unclaimed_and_kept() {
    let scene = Scene::new();
    scene.api.state().pod(&key("shop/a-x7k2p"), &uid("u1"), &node("n1"));
    let n1 = scene.world.node("n1");
    let mut request = n1.ask("shop/a-x7k2p", "A");
    request.uid = Some(uid("u1"));
    n1.run(&request).await.unwrap();
    scene.wait(3_600).await;
    // It is made anew without our network.
    scene.api.state().pod(&key("shop/a-x7k2p"), &uid("u2"), &node("n1"));
    assert!(passes(&scene, 870).await.is_empty());
    scene.wait(60).await;
    let report = scene.pass_telling_all().await;
    assert!(given(&report).is_empty());
    let found = report.judged.iter().find(|judged| judged.id == id("shop/a-x7k2p")).unwrap();
    assert_eq!((&found.fate, found.look), (&Fate::Kept("unclaimed"), true), "{found:?}");
}

/// Is it in doubt, as the pass, the list of leases and the count of its pool say?
async fn in_doubt(scene: &Scene, pod: &str) -> [bool; 3] {
    let report = scene.pass_over_a_spoiled_store(Options::default()).await.unwrap();
    let told = report.judged.iter().any(|judged| judged.id == id(pod) && judged.look);
    let (scope, now) = (Scope::default(), scene.host.clock.now());
    let filter = leases::Filter { doubtful: true, ..leases::Filter::default() };
    let (_, listed) = leases::list(scene.store(), &scope, &filter, now).await.unwrap();
    let (_, pools) = pools::list(scene.store(), &scope, now).await.unwrap();
    let listed = listed.iter().any(|row| row.holder() == Some(&id(pod).holder));
    [told, listed, pools.iter().any(|pool| pool.counts.doubt > 0)]
}

/// Not until it has been in doubt for a day, and not when it is known again.
async fn is_doubtful_after_a_day(scene: &Scene, pod: &str, told: bool, settle: impl FnOnce()) {
    const HOUR: u64 = 3600;
    assert_eq!(in_doubt(scene, pod).await, [told, false, false]);
    scene.wait(23 * HOUR).await;
    assert_eq!(in_doubt(scene, pod).await, [told, false, false]);
    scene.wait(2 * HOUR).await;
    assert_eq!(in_doubt(scene, pod).await, [true; 3]);
    settle();
    assert_eq!(in_doubt(scene, pod).await, [false; 3]);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_knows_is_doubtful_after_a_day_in_passes_and_lists_alike() {
    // Held, and nobody knows a controller, or only one of a kind that nobody reads.
    for kind in [None, Some("Job.batch")] {
        let scene = Scene::with(&[retaining("Delete", "Retain", "0s")]);
        scene.runs("shop/db-0", "A", "n1").await;
        scene.change("shop/db-0", |pod| {
            pod.controller =
                kind.map(|kind| ControllerRef { kind: kind.into(), version: "v1".into(), name: "db".into() });
        });
        scene.pass().await;
        scene.world.node("n1").del("shop/db-0", "A").await;
        scene.vanishes("shop/db-0");
        let comes = || {
            scene.api.state().pod(&key("shop/db-0"), &uid("again"), &node("n1"));
        };
        is_doubtful_after_a_day(&scene, "shop/db-0", false, comes).await;
    }
    // Held for a controller that is known, and its pool is gone.
    let scene = Scene::new();
    scene.runs_in_set("shop/db-0", "A", "n1", 1).await;
    scene.pass().await;
    scene.world.node("n1").del("shop/db-0", "A").await;
    scene.vanishes("shop/db-0");
    let lan = keys::pool(&PoolName::new("lan").unwrap());
    let document = scene.store().dump().remove(&lan).unwrap();
    // One that cannot be read is counted; one that is not there is nowhere to be counted.
    scene.store().put(&lan, "?");
    is_doubtful_after_a_day(&scene, "shop/db-0", false, || scene.store().put(&lan, document)).await;
    // Its node is silent, and the pool says that it may live.
    let mut keeps = pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.99"]);
    keeps.node_lost = Some("keep".into());
    let scene = Scene::with(&[keeps]);
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.falls_silent("n1");
    scene.leaves("shop/a-x7k2p");
    scene.wait(60).await;
    let lives = || scene.change("shop/a-x7k2p", |pod| pod.deleting = None);
    is_doubtful_after_a_day(&scene, "shop/a-x7k2p", true, lives).await;
}

#[tokio::test(start_paused = true)]
async fn b061_each_setting_of_a_pass_counts() {
    let gives_at = async |policy: Policy, seconds: u64| {
        let mut scene = Scene::with(&[retaining("Delete", "Retain", "0s")]);
        scene.policy = policy;
        for (pod, on) in [("a-0", "n1"), ("b-0", "n2"), ("c-0", "n1"), ("d-0", "n1")] {
            scene.runs_in_set(&format!("shop/{pod}"), pod, on, 1).await;
        }
        scene.pass().await;
        let now = scene.api.state().now;
        scene.vanishes("shop/a-0");
        scene.falls_silent("n2");
        scene.leaves("shop/b-0");
        scene.change("shop/c-0", |pod| (pod.phase, pod.finished) = (Phase::Succeeded, Finished::At(now)));
        scene.world.node("n1").del("shop/d-0", "d-0").await;
        scene.vanishes("shop/d-0");
        let set = leasehold::domain::names::Namespace::new("shop").unwrap();
        scene.api.state().controllers.remove(&(set, "StatefulSet.apps/d".into()));
        scene.pass().await;
        scene.wait(seconds).await;
        scene.gives().await
    };
    let long = Duration::from_secs(3_600);
    let quiet = || Policy {
        lost_after: long,
        absent_after: long,
        finished_after: long,
        owner_after: long,
        ..Policy::default()
    };
    let seconds = Duration::from_secs;
    assert!(gives_at(quiet(), 100).await.is_empty());
    assert_eq!(gives_at(Policy { lost_after: seconds(100), ..quiet() }, 100).await, ["shop/b-0 5"]);
    assert!(gives_at(Policy { lost_after: seconds(100), ..quiet() }, 99).await.is_empty());
    assert_eq!(gives_at(Policy { absent_after: seconds(100), ..quiet() }, 100).await, ["shop/a-0 8"]);
    assert!(gives_at(Policy { absent_after: seconds(100), ..quiet() }, 99).await.is_empty());
    // Never below the time an ADD can live.
    assert_eq!(gives_at(Policy { absent_after: seconds(0), ..quiet() }, 15).await, ["shop/a-0 8"]);
    assert!(gives_at(Policy { absent_after: seconds(0), ..quiet() }, 14).await.is_empty());
    assert_eq!(gives_at(Policy { finished_after: seconds(100), ..quiet() }, 100).await, ["shop/c-0 6"]);
    assert!(gives_at(Policy { finished_after: seconds(100), ..quiet() }, 99).await.is_empty());
    let owner = ["shop/d-0 12 owner absent"];
    assert_eq!(gives_at(Policy { owner_after: seconds(100), ..quiet() }, 100).await, owner);
    assert!(gives_at(Policy { owner_after: seconds(100), ..quiet() }, 99).await.is_empty());
    // A limit of none stops what rests on an absence, and nothing else.
    let policy = Policy { lost_after: seconds(9), absent_after: seconds(100), ..quiet() };
    assert_eq!(gives_at(policy.clone(), 100).await, ["shop/a-0 8", "shop/b-0 5"]);
    assert_eq!(gives_at(Policy { max_orphans: Some(0), ..policy.clone() }, 100).await, ["shop/b-0 5"]);
    assert_eq!(gives_at(Policy { max_orphans: Some(1), ..policy }, 100).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn b061_kinds_that_come_back_under_their_names_are_those_that_are_set() {
    for (kinds, held) in [(vec!["StatefulSet.apps".to_owned()], false), (vec!["CloneSet.x.io".into()], true)]
    {
        let mut scene = Scene::new();
        scene.policy.sticky_kinds = kinds;
        scene.runs("shop/a-0", "A", "n1").await;
        let controller =
            ControllerRef { kind: "CloneSet.x.io".into(), version: "v1".into(), name: "a".into() };
        scene.change("shop/a-0", |pod| pod.controller = Some(controller));
        scene.pass().await;
        scene.vanishes("shop/a-0");
        assert_eq!(passes(&scene, 150).await, ["shop/a-0 8"]);
        assert_eq!(scene.world.show().contains("L shop/a-0 held"), held, "{}", scene.world.show());
    }
}

#[tokio::test(start_paused = true)]
async fn b061_half_pairs_are_looked_for_or_not_and_a_list_is_short_or_long() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    for all in [false, true] {
        let report = scene.try_pass(Options { all, ..Options::default() }).await.unwrap();
        assert_eq!(report.judged.len(), usize::from(all));
    }
    for mend in [false, true] {
        scene.store().forget();
        scene.try_pass(Options { mend, ..Options::default() }).await.unwrap();
        // Addresses, attachments, released keys.
        let reads = scene.store().asked().reads;
        assert_eq!(reads, if mend { 8 } else { 5 });
    }
}

#[tokio::test(start_paused = true)]
async fn b062_sets_of_one_name_in_two_namespaces_are_two() {
    let scene = Scene::with(&[retaining("Delete", "Retain", "0s")]);
    scene.runs_in_set("kube-system/a-0", "A", "n1", 1).await;
    let lives = scene.runs_in_set("default/a-0", "B", "n1", 1).await;
    scene.pass().await;
    scene.world.node("n1").del("kube-system/a-0", "A").await;
    scene.vanishes("kube-system/a-0");
    let set = leasehold::domain::names::Namespace::new("kube-system").unwrap();
    scene.api.state().controllers.remove(&(set, "StatefulSet.apps/a".into()));
    assert_eq!(passes(&scene, 660).await, ["kube-system/a-0 12 owner absent"]);
    let left = scene.world.show();
    assert!(left.contains(&format!("L default/a-0 bound {lives}")), "{left}");
}

#[tokio::test(start_paused = true)]
async fn b064_b066_ten_lives_of_a_pod_have_one_address_while_others_come_and_the_reaper_passes() {
    let scene = Scene::with(&[pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.40"])]);
    let address = scene.runs_in_set("shop/db-0", "c0", "n1", 1).await;
    scene.pass().await;
    for life in 1..=10 {
        // Half of its ends are told, the others are seen.
        if life % 2 == 0 {
            scene.world.node("n1").del("shop/db-0", &format!("c{}", life - 1)).await;
        }
        scene.vanishes("shop/db-0");
        passes(&scene, 150).await;
        let left = scene.world.show();
        assert!(left.contains(&format!("L shop/db-0 held {address}")), "{life}: {left}");
        // Every process of ours is another one from now on: there is no memory but the store.
        for n in 0..20 {
            let other = scene.world.node("n2");
            let pod = format!("web/w{n}-x7k2p");
            scene.api.state().pod(&key(&pod), &uid(&format!("{life}-{n}")), &node("n2"));
            assert_ne!(other.gets(&pod, &format!("{life}-{n}")).await, address);
        }
        assert_eq!(scene.runs_in_set("shop/db-0", &format!("c{life}"), "n1", 1).await, address);
        scene.pass().await;
    }
}

#[tokio::test(start_paused = true)]
async fn b070_a_pool_that_moved_leaves_one_address_a_pod_and_nothing_to_give_back() {
    let scene = Scene::with(&[retaining("Delete", "Retain", "0s")]);
    scene.runs_in_set("shop/db-0", "A", "n1", 1).await;
    scene.pass().await;
    let mut moved = retaining("Delete", "Retain", "0s");
    moved.ranges = pool("lan", &["10.0.0.0/24 10.0.0.200-10.0.0.220"]).ranges;
    scene.world.apply(&moved);
    assert!(passes(&scene, 60).await.is_empty());
    let next = scene.runs_in_set("shop/db-0", "B", "n1", 1).await;
    assert!(passes(&scene, 900).await.is_empty());
    let left = scene.world.show();
    assert!(left.contains(&format!("L shop/db-0 bound {next} B")), "{left}");
    assert_eq!(left.matches("\nA ").count() + usize::from(left.starts_with("A ")), 1, "{left}");
}

/// A set of three, one of which stays: what its pods have after a while at one replica, and at three again.
async fn scaled_down(document: PoolDocument, seconds: u64) -> (usize, bool) {
    let scene = Scene::with(&[document]);
    let mut before = Vec::new();
    for n in 0..3 {
        before.push(scene.runs_in_set(&format!("shop/db-{n}"), &format!("c{n}"), "n1", 3).await);
    }
    scene.pass().await;
    scene.scale("shop/db", 1);
    for n in 1..3 {
        scene.world.node("n1").del(&format!("shop/db-{n}"), &format!("c{n}")).await;
        scene.vanishes(&format!("shop/db-{n}"));
    }
    passes(&scene, seconds).await;
    let held = scene.world.show().matches(" held ").count();
    // Somebody takes what is free.
    for n in 0..90 - 3 {
        let pod = format!("web/w{n}-x7k2p");
        scene.api.state().pod(&key(&pod), &uid(&format!("w{n}")), &node("n2"));
        let _ = scene.world.node("n2").add(&pod, &format!("w{n}")).await;
    }
    scene.scale("shop/db", 3);
    let mut same = true;
    for (n, old) in before.iter().enumerate().skip(1) {
        let pod = format!("shop/db-{n}");
        scene.api.state().pod(&key(&pod), &uid(&format!("again-{n}")), &node("n1"));
        let added = scene.world.node("n1").add(&pod, &format!("again-{n}")).await;
        same &= added.is_ok_and(|added| crate::ops::world::addresses(&added) == *old);
    }
    scene.world.audit();
    (held, same)
}

#[tokio::test(start_paused = true)]
async fn b072_what_was_scaled_away_is_held_as_long_as_the_pool_says() {
    // `whenScaled: Retain`, which is the default.
    assert_eq!(scaled_down(retaining("Delete", "Retain", "0s"), 3_600).await, (2, true));
    assert_eq!(scaled_down(retaining("Delete", "Delete", "0s"), 30).await.0, 0);
    assert_eq!(scaled_down(retaining("Delete", "Retain", "10m"), 540).await, (2, true));
    assert_eq!(scaled_down(retaining("Delete", "Retain", "10m"), 660).await.0, 0);
}

#[tokio::test(start_paused = true)]
async fn b072_a_pod_that_is_away_while_its_set_wants_it_is_waited_for() {
    let scene = Scene::with(&[retaining("Delete", "Delete", "0s")]);
    scene.runs_in_set("shop/db-2", "A", "n1", 3).await;
    scene.pass().await;
    scene.world.node("n1").del("shop/db-2", "A").await;
    scene.vanishes("shop/db-2");
    assert!(passes(&scene, 3_600).await.is_empty());
    scene.scale("shop/db", 2);
    assert_eq!(scene.gives().await, ["shop/db-2 12 scaled"]);
}

#[tokio::test(start_paused = true)]
async fn an_address_on_which_somebody_may_still_answer_is_remembered_for_ever_and_others_for_a_day() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    let told = scene.runs("shop/b-x7k2p", "B", "n1").await;
    for pod in ["shop/a-x7k2p", "shop/b-x7k2p"] {
        scene.vanishes(pod);
    }
    scene.world.node("n1").del("shop/b-x7k2p", "B").await;
    scene.pass().await;
    scene.wait(120).await;
    assert_eq!(scene.gives().await, ["shop/a-x7k2p 8"]);
    for (hours, left) in [(23, 2), (2, 1), (24 * 30, 1)] {
        scene.wait(hours * 3_600).await;
        scene.pass().await;
        let released = scene.world.show();
        assert_eq!(released.matches("R 10.0.0.").count(), left, "{released}");
        assert!(released.contains("by shop/a-x7k2p unconfirmed"), "{released}");
        assert_eq!(released.contains(&format!("R {told} ")), left == 2, "{released}");
    }
}

#[tokio::test(start_paused = true)]
async fn b072_a_set_that_is_deleted_gives_back_what_it_held_unless_the_pool_retains() {
    for (when_deleted, given_back) in [("Delete", true), ("Retain", false)] {
        let scene = Scene::with(&[retaining(when_deleted, "Retain", "0s")]);
        scene.runs_in_set("shop/db-0", "A", "n1", 1).await;
        scene.pass().await;
        scene.world.node("n1").del("shop/db-0", "A").await;
        scene.vanishes("shop/db-0");
        assert!(passes(&scene, 3_600).await.is_empty());
        let set = || (key("shop/db-0").namespace, "StatefulSet.apps/db".to_owned());
        scene.api.state().controllers.remove(&set());
        assert!(passes(&scene, 540).await.is_empty());
        // Helm and Argo CD make it anew, under another UID: the same owner.
        scene.scale("shop/db", 1);
        assert!(passes(&scene, 60).await.is_empty());
        scene.api.state().controllers.remove(&set());
        assert!(passes(&scene, 570).await.is_empty());
        let gone = passes(&scene, 60).await;
        assert_eq!(gone.as_slice(), if given_back { &["shop/db-0 12 owner absent"][..] } else { &[] });
    }
}

#[tokio::test(start_paused = true)]
async fn b118_a_static_pod_that_the_api_never_shows_is_kept() {
    let scene = Scene::new();
    let n1 = scene.world.node("n1");
    let mut request = n1.ask("kube-system/x-n1", "A");
    request.uid = Some(uid("hash-of-the-manifest"));
    n1.run(&request).await.unwrap();
    assert!(passes(&scene, 3_600).await.is_empty());
    let report = scene.pass().await;
    let (row, text) = why(&report, "kube-system/x-n1").unwrap();
    assert_eq!((row.as_str(), text.as_str()), ("11", "pod missed, but perhaps a static pod of node n1"));
    // Its picture comes, under a UID of its own.
    let owner = ControllerRef { kind: "Node".into(), version: "v1".into(), name: "n1".into() };
    scene.api.state().pod(&key("kube-system/x-n1"), &uid("mirror"), &node("n1")).mirror =
        Some("hash-of-the-manifest".into());
    scene.change("kube-system/x-n1", |pod| pod.controller = Some(owner));
    assert!(passes(&scene, 3_600).await.is_empty());
    // Somebody deletes the picture, which ends nothing.
    scene.vanishes("kube-system/x-n1");
    assert!(passes(&scene, 3_600).await.is_empty());
    // Its node is taken out of the cluster.
    scene.api.state().nodes.remove(&node("n1"));
    assert_eq!(passes(&scene, 60).await, ["kube-system/x-n1 10"]);
}

#[tokio::test(start_paused = true)]
async fn b118b_a_week_in_which_nothing_of_ours_runs_changes_no_lease() {
    let scene = Scene::new();
    for (n, pod) in ["shop/a-x7k2p", "shop/b-x7k2p"].into_iter().enumerate() {
        scene.runs(pod, &format!("c{n}"), "n1").await;
    }
    scene.runs_in_set("shop/db-0", "D", "n2", 1).await;
    let before = scene.store().dump();
    scene.wait(7 * 86_400).await;
    assert_eq!(scene.store().dump(), before);
    // And the first pass after it gives nothing back either, not even of what is gone.
    scene.vanishes("shop/a-x7k2p");
    assert!(scene.gives().await.is_empty());
    assert_eq!(passes(&scene, 150).await, ["shop/a-x7k2p 8"]);
}

#[tokio::test(start_paused = true)]
async fn a_pass_asks_for_nodes_and_controllers_only_if_a_verdict_needs_them() {
    let scene = Scene::new();
    for (pod, on) in [("shop/a-x7k2p", "n1"), ("shop/b-x7k2p", "n2")] {
        scene.runs(pod, &pod[5..6], on).await;
    }
    scene.runs_in_set("shop/db-0", "D", "n1", 1).await;
    let asked = async || {
        scene.api.state().asked.clear();
        scene.pass().await;
        scene.api.state().asked.clone()
    };
    // The first one that sees a controller notes it.
    let quiet = [Question::Identity, Question::Pods];
    for _ in 0..3 {
        assert_eq!(asked().await, quiet);
    }
    // One that leaves may be on a node that is lost, while its grace is over.
    scene.leaves("shop/a-x7k2p");
    assert_eq!(asked().await, [&quiet[..], &[Question::Nodes]].concat());
    scene.change("shop/a-x7k2p", |pod| pod.deleting = None);
    assert_eq!(asked().await, quiet);
    // What is held is wanted by its controller, wherever it ran.
    scene.world.node("n1").del("shop/db-0", "D").await;
    scene.vanishes("shop/db-0");
    let set = ControllerRef { kind: "StatefulSet.apps".into(), version: "v1".into(), name: "db".into() };
    let of_set = Question::Controller(Namespace::new("shop").unwrap(), set);
    assert_eq!(asked().await, [&quiet[..], &[of_set]].concat());
}
