//! An API that does not say the truth: late, empty, refusing, stale, of another cluster, of another thing; and clocks
//! that do not agree. Nothing that lives is given back, and the reason is shown.

use std::{
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use leasehold::{
    domain::{
        kubernetes::{ControllerRef, Finished, Phase, Ready},
        lease::Timestamp,
        names::{ClusterName, Namespace, PodName},
    },
    pods::{ApiError, fake::Question},
    reaper::Options,
    store::record::RetentionDocument,
};

use super::scene::{Scene, given, key, node, uid, why};
use crate::ops::world::{futures_now, pool};

/// `shop/a-x7k2p` and `shop/b-x7k2p` live, `shop/gone-x7k2p` was missed long ago.
async fn two_live_and_one_is_gone() -> Scene {
    let scene = Scene::new();
    for pod in ["shop/a-x7k2p", "shop/b-x7k2p", "shop/gone-x7k2p"] {
        scene.runs(pod, &pod[5..], "n1").await;
    }
    scene.vanishes("shop/gone-x7k2p");
    scene.pass().await;
    scene.wait(600).await;
    scene
}

fn lives(scene: &Scene) {
    let left = scene.world.show();
    for pod in ["shop/a-x7k2p", "shop/b-x7k2p"] {
        assert!(left.contains(&format!("L {pod} bound")), "{left}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_older_than_the_leases_is_found_out_by_the_live_question() {
    let scene = two_live_and_one_is_gone().await;
    // A cache that has stood still since before the pods were made: two of them are missing in every list.
    let hidden = Arc::new(Mutex::new(Vec::new()));
    scene.api.before(move |question, state| {
        let mut hidden = hidden.lock().unwrap();
        match question {
            Question::Pods => {
                for pod in ["shop/a-x7k2p", "shop/b-x7k2p"] {
                    hidden.extend(state.pods.remove(&key(pod)));
                }
            }
            Question::Pod(_) | Question::Identity | Question::Record(_) => {
                state.pods.extend(hidden.drain(..).map(|pod| (pod.key.clone(), pod)));
            }
            Question::Nodes | Question::Node(_) | Question::Controller(..) => {}
        }
        None
    });
    assert_eq!(scene.gives().await, ["shop/gone-x7k2p 8"]);
    for _ in 0..20 {
        scene.wait(30).await;
        let report = scene.pass().await;
        assert!(given(&report).is_empty());
        if report.candidates == 2 {
            assert_eq!(why(&report, "shop/a-x7k2p").unwrap().1, "its pod lives");
        }
        lives(&scene);
    }
}

#[tokio::test(start_paused = true)]
async fn b038_leases_are_read_before_pods_are_listed() {
    let scene = two_live_and_one_is_gone().await;
    let n1 = scene.world.node("n1");
    let mut late = None;
    scene.api.before(move |question, state| {
        match question {
            // Born while the list is made, which does not have it, and shown from then on.
            Question::Pods => {
                futures_now(n1.add("shop/late-x7k2p", "L")).unwrap();
                late = Some(());
            }
            Question::Nodes | Question::Node(_) | Question::Pod(_) => {
                if late.take().is_some() {
                    state.pod(&key("shop/late-x7k2p"), &uid("late"), &node("n1"));
                }
            }
            Question::Identity | Question::Controller(..) | Question::Record(_) => {}
        }
        None
    });
    let report = scene.pass_telling_all().await;
    // It is no case of this pass: nobody missed it, and nothing is written into it.
    assert_eq!(report.leases, 3);
    assert_eq!(given(&report), ["shop/gone-x7k2p 8"]);
    assert_eq!(scene.world.lease("shop/late-x7k2p").unwrap().value.seen, None);
    lives(&scene);
}

#[tokio::test(start_paused = true)]
async fn a_stale_list_that_misses_many_ends_the_giving_back_before_anybody_is_asked() {
    let scene = Scene::new();
    for n in 0..30 {
        scene.runs(&format!("shop/w{n}-x7k2p"), &format!("c{n}"), "n1").await;
    }
    let all = scene.api.state().pods.clone();
    scene.api.state().pods.retain(|key, _| key.namespace.as_str() != "shop");
    scene.pass().await;
    scene.wait(600).await;
    scene.api.state().asked.clear();
    let report = scene.pass().await;
    assert!(given(&report).is_empty());
    let text = report.brakes[0].to_string();
    assert!(text.contains("30") && text.contains("--max-orphans"), "{text}");
    assert!(why(&report, "shop/w1-x7k2p").unwrap().1.starts_with("braked: "));
    assert!(!scene.api.state().asked.iter().any(|question| matches!(question, Question::Pod(_))));
    scene.api.state().pods = all;
    scene.pass().await;
    // Nothing of the false list is remembered.
    scene.vanishes("shop/w1-x7k2p");
    scene.pass().await;
    scene.wait(119).await;
    assert!(scene.gives().await.is_empty());
    scene.wait(1).await;
    assert_eq!(scene.gives().await, ["shop/w1-x7k2p 8"]);
}

#[tokio::test(start_paused = true)]
async fn another_cluster_is_told_by_its_uid_and_nothing_is_written() {
    let scene = two_live_and_one_is_gone().await;
    scene.runs("shop/done-x7k2p", "done", "n1").await;
    assert!(scene.world.node("n1").del("shop/done-x7k2p", "done").await);
    scene.vanishes("shop/done-x7k2p");
    let mine = scene.api.state().clone();
    {
        let mut other = scene.api.state();
        other.identity = uid("another");
        other.pods.clear();
        // By its clock the address that was just given back is long forgotten.
        other.now = Timestamp(other.now.0 + 48 * 3_600_000);
        // A pod of the same name, of a controller that ours has not.
        let pod = other.pod(&key("shop/gone-x7k2p"), &uid("theirs"), &node("n1"));
        pod.controller =
            Some(ControllerRef { kind: "StatefulSet.apps".into(), version: "v1".into(), name: "x".into() });
    }
    let before = scene.store().dump();
    for _ in 0..10 {
        scene.wait(60).await;
        let report = scene.pass_telling_all().await;
        let labels: Vec<_> = report.brakes.iter().map(|brake| brake.label()).collect();
        assert_eq!(labels, ["identity"]);
        let text = report.brakes[0].to_string();
        assert!(text.contains("another") && text.contains("kube-system"), "{text}");
        assert_eq!(scene.store().dump(), before);
    }
    let now = scene.api.state().now;
    *scene.api.state() = mine;
    scene.api.state().now = Timestamp(now.0 - 48 * 3_600_000);
    // The grace of a pod that is missed since then is whole.
    scene.vanishes("shop/a-x7k2p");
    assert_eq!(scene.gives().await, ["shop/gone-x7k2p 8"]);
    scene.wait(119).await;
    assert!(scene.gives().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_unregistered_cluster_is_refused_by_name() {
    let scene = two_live_and_one_is_gone().await;
    scene.store().delete(&leasehold::store::keys::cluster(&ClusterName::new("prod").unwrap()));
    scene.api.state().asked.clear();
    let error = scene.try_pass(Options::default()).await.unwrap_err();
    assert_eq!(error.to_string(), "cluster prod is not registered (registered: none)");
    scene.store().put(&leasehold::store::keys::cluster(&ClusterName::new("prod").unwrap()), "?");
    let error = scene.pass_over_a_spoiled_store(Options::default()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "record v1/clusters/prod cannot be read: expected value at line 1 column 1"
    );
    assert!(scene.api.state().asked.is_empty());
    lives(&scene);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_may_not_be_listed_keep_everything_and_brake() {
    let scene = two_live_and_one_is_gone().await;
    scene.api.before(|question, _| {
        (*question == Question::Nodes).then(|| ApiError::Forbidden {
            verb: "list",
            what: "nodes".into(),
            reason: "RBAC".into(),
        })
    });
    let report = scene.pass().await;
    assert!(given(&report).is_empty());
    assert_eq!(why(&report, "shop/gone-x7k2p").unwrap().1, "not known: may not list nodes: RBAC");
    // Else a reaper that never gives anything back would look like one that has nothing to do.
    assert_eq!(report.brakes.iter().map(|brake| brake.label()).collect::<Vec<_>>(), ["list_incomplete"]);
    assert_eq!(report.troubles, ["nodes: may not list nodes: RBAC"]);
    // What is there is noted all the same: its grace is whole when it is missed again.
    scene.api.state().pod(&key("shop/gone-x7k2p"), &uid("again"), &node("n1"));
    scene.vanishes("shop/b-x7k2p");
    scene.pass().await;
    scene.vanishes("shop/gone-x7k2p");
    scene.api.honest();
    assert!(scene.gives().await.is_empty());
    scene.wait(120).await;
    assert_eq!(scene.gives().await, ["shop/b-x7k2p 8", "shop/gone-x7k2p 8"]);
}

#[tokio::test(start_paused = true)]
async fn controllers_that_may_not_be_read_keep_what_is_held_and_say_so() {
    let scene = Scene::new();
    scene.runs_in_set("shop/db-0", "A", "n1", 1).await;
    scene.pass().await;
    scene.world.node("n1").del("shop/db-0", "A").await;
    scene.vanishes("shop/db-0");
    scene.api.before(|question, _| {
        matches!(question, Question::Controller(..)).then(|| ApiError::Forbidden {
            verb: "get",
            what: "statefulsets shop/db".into(),
            reason: "RBAC".into(),
        })
    });
    for _ in 0..30 {
        scene.wait(60).await;
        let report = scene.pass().await;
        assert!(given(&report).is_empty());
        assert_eq!(report.troubles, ["may not get statefulsets shop/db: RBAC"]);
        assert!(report.needs_a_look());
    }
    assert!(scene.world.show().contains("L shop/db-0 held"), "{}", scene.world.show());
}

#[tokio::test(start_paused = true)]
async fn a_live_answer_of_another_pod_or_node_is_none() {
    let scene = two_live_and_one_is_gone().await;
    scene.api.before(|question, state| {
        if let Question::Pod(asked) = question {
            // As absent as can be, but of somebody else.
            let other = state.pod(asked, &uid("u"), &node("n1"));
            other.key.name = PodName::new("other").unwrap();
            other.deleting = Some(Timestamp(0));
        }
        None
    });
    let report = scene.pass().await;
    assert!(given(&report).is_empty());
    assert_eq!(why(&report, "shop/gone-x7k2p").unwrap().1, "not known: the answer is of pod shop/other");
    scene.api.honest();
    scene.api.state().pods.remove(&key("shop/gone-x7k2p"));
    // The live question about the node is asked when the list of nodes is some seconds old.
    scene.api.before(|question, state| {
        match question {
            Question::Pod(_) => futures_now(tokio::time::advance(Duration::from_secs(6))),
            Question::Node(asked) => state.nodes.get_mut(asked).unwrap().name = node("n2"),
            Question::Identity | Question::Pods | Question::Nodes | Question::Controller(..) => {}
            Question::Record(_) => {}
        }
        None
    });
    let report = scene.pass().await;
    assert!(given(&report).is_empty());
    assert_eq!(why(&report, "shop/gone-x7k2p").unwrap().1, "not known: the answer is of node n2");
    lives(&scene);
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_wants_its_pod_again_at_the_live_question_keeps_what_is_held() {
    // Scaled up again, or made anew.
    for deleted in [false, true] {
        let mut lan = pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.99"]);
        lan.retention = Some(RetentionDocument { when_scaled: Some("Delete".into()), ..Default::default() });
        let scene = Scene::with(&[lan]);
        scene.runs_in_set("shop/db-0", "D", "n2", 1).await;
        scene.pass().await;
        scene.world.node("n2").del("shop/db-0", "D").await;
        scene.vanishes("shop/db-0");
        if deleted {
            scene.api.state().controllers.clear();
            scene.pass().await;
            scene.wait(601).await;
        } else {
            scene.scale("shop/db", 0);
        }
        // What was listed is some seconds old when the candidate is asked for.
        scene.api.before(|question, state| {
            if matches!(question, Question::Pod(_)) {
                futures_now(tokio::time::advance(Duration::from_secs(6)));
                state.stateful_set(&key("shop/db-0").namespace, "db", &uid("set"), 1);
            }
            None
        });
        let report = scene.pass().await;
        assert!(given(&report).is_empty());
        let kept = why(&report, "shop/db-0").unwrap().1;
        assert_eq!(kept, "StatefulSet db wants it", "{deleted}");
        // It is what would have been given back.
        assert_eq!(report.candidates, 1, "{deleted}");
        assert!(scene.world.show().contains("L shop/db-0 held"), "{}", scene.world.show());
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_while_the_controllers_are_asked_for_keeps_its_pods() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.runs_in_set("shop/db-0", "D", "n2", 1).await;
    scene.pass().await;
    scene.world.node("n2").del("shop/db-0", "D").await;
    scene.vanishes("shop/db-0");
    scene.falls_silent("n1");
    scene.leaves("shop/a-x7k2p");
    scene.wait(60).await;
    // The list of nodes has come; the answer about a controller takes a minute.
    scene.api.before(|question, state| {
        if matches!(question, Question::Controller(..)) {
            futures_now(tokio::time::advance(Duration::from_secs(60)));
            state.node(&node("n1")).ready = Ready::True;
        }
        None
    });
    let report = scene.pass().await;
    assert_eq!(report.candidates, 1);
    assert!(given(&report).is_empty(), "{:?}", given(&report));
    let (_, text) = why(&report, "shop/a-x7k2p").unwrap();
    assert!(text.ends_with("but the kubelet of node n1 lives"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_while_candidates_are_asked_for_keeps_its_pods() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.falls_silent("n1");
    scene.leaves("shop/a-x7k2p");
    scene.wait(60).await;
    scene.api.before(|question, state| {
        if matches!(question, Question::Pod(_)) {
            futures_now(tokio::time::advance(Duration::from_secs(6)));
            state.node(&node("n1")).ready = Ready::True;
        }
        None
    });
    let report = scene.pass().await;
    assert_eq!((report.candidates, given(&report).len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_clock_of_the_reaper_that_is_an_hour_off_changes_no_verdict() {
    for minutes in [-60_i64, 60] {
        let scene = Scene::new();
        scene.host.clock.skew.store(minutes * 60_000, Ordering::Relaxed);
        for (pod, on) in [("shop/a-x7k2p", "n1"), ("shop/b-x7k2p", "n2"), ("shop/c-x7k2p", "n1")] {
            scene.runs(pod, &pod[5..], on).await;
        }
        scene.vanishes("shop/a-x7k2p");
        let report = scene.pass().await;
        assert!((report.skew_ms - minutes * 60_000).abs() < 10_000, "{}", report.skew_ms);
        scene.falls_silent("n2");
        scene.leaves("shop/b-x7k2p");
        scene.wait(29).await;
        assert!(scene.gives().await.is_empty(), "{minutes}");
        scene.wait(1).await;
        assert_eq!(scene.gives().await, ["shop/b-x7k2p 5"], "{minutes}");
        scene.wait(89).await;
        assert!(scene.gives().await.is_empty(), "{minutes}");
        scene.wait(1).await;
        assert_eq!(scene.gives().await, ["shop/a-x7k2p 8"], "{minutes}");
        assert!(scene.world.show().contains("L shop/c-x7k2p bound"));
        // Whoever leases the address next is not misled by a time of release that is to come.
        let n3 = scene.world.node("n3");
        n3.gets("web/next-x7k2p", "N").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_of_a_node_that_is_an_hour_off_takes_no_grace_from_its_pods() {
    for minutes in [-60_i64, 60] {
        let scene = Scene::new();
        let pod = "shop/a-x7k2p";
        scene.api.state().pod(&key(pod), &uid("u"), &node("n1"));
        let n1 = scene.world.node("n1");
        n1.clock.skew.store(minutes * 60_000, Ordering::Relaxed);
        n1.gets(pod, "A").await;
        scene.wait(60).await;
        assert!(scene.gives().await.is_empty());
        // Its last container ended just now, says its kubelet by its own clock.
        let said = Timestamp(scene.api.state().now.0 + minutes * 60_000);
        scene.change(pod, |pod| (pod.phase, pod.finished) = (Phase::Succeeded, Finished::At(said)));
        assert!(scene.gives().await.is_empty(), "{minutes}");
        scene.wait(119).await;
        assert!(scene.gives().await.is_empty(), "{minutes}");
        scene.wait(1).await;
        assert_eq!(scene.gives().await, ["shop/a-x7k2p 6"], "{minutes}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_renamed_keeps_its_pods_and_many_renamed_nodes_brake() {
    let scene = Scene::with(&[pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.99"])]);
    for n in 0..30 {
        scene.runs(&format!("shop/w{n}-x7k2p"), &format!("c{n}"), ["n1", "n2", "n3"][n % 3]).await;
    }
    {
        let mut state = scene.api.state();
        state.nodes.clear();
        for name in ["n1.site", "n2.site", "n3.site"] {
            state.node(&node(name));
        }
        for pod in state.pods.values_mut() {
            pod.node = pod.node.take().map(|name| node(&format!("{name}.site")));
        }
    }
    for _ in 0..10 {
        scene.wait(60).await;
        assert!(scene.gives().await.is_empty());
    }
    // A pod that is gone is gone, whatever its node is called now.
    scene.vanishes("shop/w0-x7k2p");
    scene.pass().await;
    scene.wait(120).await;
    assert_eq!(scene.gives().await, ["shop/w0-x7k2p 10"]);
    // But that nearly all nodes are unknown and all pods gone is no crash of a node.
    scene.api.state().pods.retain(|key, _| key.namespace == Namespace::new("kube-system").unwrap());
    scene.pass().await;
    scene.wait(120).await;
    let report = scene.pass().await;
    assert!(given(&report).is_empty());
    assert_eq!(report.brakes.iter().map(|brake| brake.label()).collect::<Vec<_>>(), ["orphans"]);
}

#[tokio::test(start_paused = true)]
async fn an_api_that_stops_answering_does_not_make_an_hour_of_a_pass() {
    let mut scene = Scene::with(&[pool("lan", &["10.0.0.0/16"])]);
    scene.policy.max_orphans = Some(1000);
    for index in 0..200 {
        let pod = format!("shop/web-7d9c4f6b5d-{}", suffix(index));
        scene.runs(&pod, &format!("c{index}"), "n1").await;
        scene.vanishes(&pod);
    }
    scene.pass().await;
    scene.wait(600).await;
    scene.api.state().asked.clear();
    scene.api.before(|question, _| {
        matches!(question, Question::Pod(_)).then(|| ApiError::NotReached {
            server: "https://10.0.0.1:6443".into(),
            reason: "no answer within 30 s".into(),
        })
    });
    let report = scene.pass().await;
    assert!(given(&report).is_empty());
    let asked =
        scene.api.state().asked.iter().filter(|question| matches!(question, Question::Pod(_))).count();
    assert!((16..=32).contains(&asked), "{asked}");
    assert!(
        report.troubles.iter().any(|trouble| trouble.contains("no answer within 30 s")),
        "{:?}",
        report.troubles
    );
    // Answers again: nothing was remembered against it.
    scene.api.honest();
    assert_eq!(scene.gives().await.len(), 200);
}

/// Five letters as Kubernetes makes them.
fn suffix(number: usize) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    (0..5u32).map(|place| char::from(LETTERS[number / LETTERS.len().pow(place) % LETTERS.len()])).collect()
}
