//! The controller in memory, with paused time: when it looks, what it says, and that nothing rests on a hint.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::Duration,
};

use leasehold::{
    domain::{
        kubernetes::{Finished, Phase, Ready},
        lease::Timestamp,
        names::{ClusterName, Namespace},
        reap::Brake,
    },
    ops::Log,
    pods::{
        About, ApiError, Event, Hint,
        fake::{Question, State},
    },
    reaper::{self, Measured, Metrics, Talk, Watching},
    store::{
        Key, Read, Revision, Store as _, StoreError, keys,
        testing::{Fault, FaultyStore, MemoryStore},
    },
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::scene::{Scene, key, node, uid};
use crate::ops::world::{Trail, id, pool};

const HOUR: Duration = Duration::from_secs(3600);

/// A reaper that watches a scene, and what it said.
struct Reaper {
    said: Mutex<Vec<String>>,
    metrics: Metrics,
    interval: Duration,
    compact: Option<Duration>,
    began: Instant,
}

impl Reaper {
    fn new(scene: &Scene) -> Self {
        let began = Instant::now();
        // The API's clock goes with the paused one, in whole seconds as its answers have it.
        let base = scene.api.state().now.0;
        scene.api.before(move |_, state| {
            tick(state, base, began);
            None
        });
        Self { said: Mutex::default(), metrics: Metrics::new(), interval: HOUR, compact: None, began }
    }

    /// Every this long a full pass.
    fn every(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Watches while the script runs; it gets the sender of hints.
    async fn during(&self, scene: &Scene, script: impl AsyncFnOnce(&mpsc::Sender<Hint>)) {
        self.on(scene, &scene.host.way, &scene.trail, script).await;
    }

    async fn on(
        &self,
        scene: &Scene,
        store: &FaultyStore<MemoryStore>,
        log: &impl Log,
        script: impl AsyncFnOnce(&mpsc::Sender<Hint>),
    ) {
        let cluster = ClusterName::new("prod").unwrap();
        let store = Measured::new(store, &self.metrics);
        let context = reaper::Context {
            store: &store,
            api: &scene.api,
            clock: &scene.host.clock,
            log,
            cluster: &cluster,
            policy: &scene.policy,
            stop: &scene.stop,
        };
        let say = |text: &str| self.said.lock().unwrap().push(text.to_owned());
        let talk = Talk::new(&say);
        let watching = Watching {
            interval: self.interval,
            mend: true,
            events: Some(Namespace::new("leasehold").unwrap()),
            compact: self.compact,
            metrics: &self.metrics,
            talk: &talk,
        };
        let (sender, hints) = mpsc::channel(16);
        tokio::select! {
            never = reaper::watch(&context, &watching, hints) => match never {},
            () = script(&sender) => {}
        }
        scene.world.audit();
    }

    /// What was said since the last time.
    fn said(&self) -> Vec<String> {
        std::mem::take(&mut *self.said.lock().unwrap())
    }

    fn metric(&self, series: &str) -> Option<u64> {
        let text = self.metrics.text();
        text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    /// How many passes have come to their end, and when one last did all its work.
    fn ended(&self) -> (u64, u64) {
        let passes = self.metric("leasehold_reap_passes_total{result=\"done\"}").unwrap();
        (passes, self.metric("leasehold_reap_last_success_timestamp_seconds").unwrap())
    }

    /// Passes went on since then, and none did all its work.
    fn only_ends_since(&self, before: (u64, u64)) {
        let now = self.ended();
        assert!(now.0 > before.0 + 1 && now.1 == before.1, "{before:?} {now:?}");
    }

    /// The seconds since it began.
    fn elapsed(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }
}

fn tick(state: &mut State, base: i64, began: Instant) {
    let gone = i64::try_from(began.elapsed().as_secs()).unwrap();
    state.now = Timestamp(base / 1000 * 1000 + gone * 1000);
}

fn passes(scene: &Scene) -> usize {
    scene.api.state().asked.iter().filter(|question| **question == Question::Pods).count()
}

fn recorded(scene: &Scene) -> Vec<Event> {
    let asked = scene.api.state().asked.clone();
    let event = |question| if let Question::Record(event) = question { Some(event) } else { None };
    asked.into_iter().filter_map(event).collect()
}

/// Until the pod has no lease that is bound any more.
async fn is_given_back(scene: &Scene, pod: &str) {
    let bound = || scene.world.lease(pod).is_some_and(|lease| lease.value.bound().is_some());
    while bound() {
        sleep(Duration::from_millis(10)).await;
    }
}

fn down() -> ApiError {
    ApiError::NotReached { server: "https://api".into(), reason: "connection refused".into() }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_kept_to_the_second_and_not_to_the_interval() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    let reaper = Reaper::new(&scene);
    reaper
        .during(&scene, async |hints| {
            sleep(Duration::from_secs(10)).await;
            scene.vanishes("shop/a-x7k2p");
            hints.send(Hint::Pod).await.unwrap();
            is_given_back(&scene, "shop/a-x7k2p").await;
        })
        .await;
    // Seen after a second, given back two minutes later.
    let took = reaper.elapsed() - 10.0;
    assert!((120.0..122.2).contains(&took), "{took}");
    assert_eq!(passes(&scene), 3);
    let said = reaper.said();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("1 given back (10.0.0."), "{said:?}");
    assert!(said[0].contains(" of shop/a-x7k2p by row 8); 1 lease, 1 pod, in "), "{said:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_dies_costs_lost_after_and_a_second() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    let reaper = Reaper::new(&scene);
    reaper
        .during(&scene, async |hints| {
            sleep(Duration::from_millis(10_400)).await;
            {
                let mut state = scene.api.state();
                let now = Timestamp(state.now.0 / 1000 * 1000 + 10_000);
                state.node(&node("n1")).ready = Ready::Unknown { since: now };
                state.pods.get_mut(&key("shop/a-x7k2p")).unwrap().deleting = Some(now);
            }
            hints.send(Hint::Node).await.unwrap();
            is_given_back(&scene, "shop/a-x7k2p").await;
        })
        .await;
    let took = reaper.elapsed() - 10.4;
    assert!((29.6..31.1).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn hints_that_go_on_make_a_pass_every_five_seconds() {
    let scene = Scene::new();
    let reaper = Reaper::new(&scene);
    reaper
        .during(&scene, async |hints| {
            sleep(Duration::from_secs(2)).await;
            for _ in 0..250 {
                let _ = hints.try_send(Hint::Pod);
                sleep(Duration::from_millis(200)).await;
            }
            let many = passes(&scene);
            assert!((1 + 9..=1 + 10).contains(&many), "{many}");
            sleep(Duration::from_secs(600)).await;
            assert_eq!(passes(&scene), many + 1);
        })
        .await;
    assert!(reaper.said().is_empty());
}

#[tokio::test(start_paused = true)]
async fn b110_without_any_hint_the_result_is_the_same() {
    let mut ends = Vec::new();
    for hinted in [true, false] {
        let scene = Scene::new();
        for pod in ["shop/a-x7k2p", "shop/b-x7k2p", "shop/c-x7k2p"] {
            scene.runs(pod, &pod[5..6].to_uppercase(), "n1").await;
        }
        let reaper = Reaper::new(&scene).every(Duration::from_secs(60));
        reaper
            .during(&scene, async |hints| {
                sleep(Duration::from_secs(5)).await;
                scene.vanishes("shop/a-x7k2p");
                scene.vanishes("shop/b-x7k2p");
                if hinted {
                    hints.send(Hint::Pod).await.unwrap();
                }
                sleep(Duration::from_secs(300)).await;
            })
            .await;
        let show = scene.world.show();
        ends.push(show.lines().map(|line| line.split(" at ").next().unwrap().to_owned()).collect::<Vec<_>>());
    }
    assert_eq!(ends[0], ends[1]);
    assert!(ends[0].iter().any(|line| line.contains("by shop/a-x7k2p unconfirmed")), "{ends:?}");
}

#[tokio::test(start_paused = true)]
async fn an_api_that_is_down_for_an_hour_is_told_once_a_minute_and_asked_no_more_often() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    let reaper = Reaper::new(&scene).every(Duration::from_secs(300));
    let base = scene.api.state().now.0;
    let began = reaper.began;
    reaper
        .during(&scene, async |hints| {
            sleep(Duration::from_secs(10)).await;
            scene.api.before(|_, _| Some(down()));
            scene.vanishes("shop/a-x7k2p");
            let before = scene.api.state().asked.len();
            for _ in 0..3600 {
                let _ = hints.try_send(Hint::Pod);
                sleep(Duration::from_secs(1)).await;
            }
            let asked = scene.api.state().asked.len() - before;
            let said = reaper.said();
            println!("an hour without the API: {asked} questions, {} lines", said.len());
            assert!((55..90).contains(&asked), "{asked}");
            assert!((30..=60).contains(&said.len()), "{}: {said:?}", said.len());
            assert_eq!(
                said[0],
                "no pass: https://api not reached: connection refused; nothing is given back until it works again, trying on"
            );
            assert!(said[30].contains("failing for "), "{said:?}");
            assert!(reaper.metrics.ready(Duration::from_secs(300)).is_err());
            assert_eq!(reaper.metrics.alive(Duration::from_secs(300)), Ok(()));
            scene.api.before(move |_, state| {
                tick(state, base, began);
                None
            });
            is_given_back(&scene, "shop/a-x7k2p").await;
        })
        .await;
    let said = reaper.said();
    assert!(said[0].starts_with("works again, after 36"), "{said:?}");
    assert!(said[1].starts_with("1 given back"), "{said:?}");
    assert_eq!(said.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn that_passes_fail_is_told_at_once_whatever_was_told_before_and_that_they_work_again_once() {
    let scene = Scene::new();
    let reaper = Reaper::new(&scene).every(Duration::from_secs(10));
    let base = scene.api.state().now.0;
    let began = reaper.began;
    reaper
        .during(&scene, async |_| {
            sleep(Duration::from_secs(35)).await;
            assert_eq!(reaper.said(), [""; 0]);
            // A trouble that is no end of a pass, just before.
            let broken = keys::lease(&id("shop/broken"));
            scene.store().put(&broken, "?");
            sleep(Duration::from_secs(10)).await;
            assert_eq!(reaper.said().len(), 1);
            // The API, then the store.
            for store in [false, true] {
                if store {
                    scene.host.way.decide(|_| Some(Fault::Refused));
                } else {
                    scene.api.before(|_, _| Some(down()));
                }
                sleep(Duration::from_secs(25)).await;
                let said = reaper.said();
                assert!(said.len() == 1 && said[0].starts_with("no pass: "), "{said:?}");
                scene.host.way.heal();
                scene.host.way.decide(|_| None);
                scene.api.before(move |_, state| {
                    tick(state, base, began);
                    None
                });
                // What is down again within the minute is not told again.
                sleep(Duration::from_secs(60)).await;
                let said = reaper.said();
                let again = said.iter().filter(|line| line.starts_with("works again, after ")).count();
                assert_eq!(again, 1, "{said:?}");
            }
            scene.store().delete(&broken);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn b105_a_store_that_refuses_is_asked_seldom() {
    let scene = Scene::new();
    let reaper = Reaper::new(&scene).every(Duration::from_secs(300));
    scene.host.way.decide(|_| Some(Fault::Refused));
    reaper
        .during(&scene, async |_| {
            sleep(HOUR).await;
            let (calls, said) = (scene.host.way.calls(), reaper.said());
            println!("an hour of refusals: {calls} calls, {} lines", said.len());
            assert!((50..90).contains(&calls), "{calls}");
            assert!(said.len() <= 60, "{}", said.len());
            assert!(said[0].contains("refused the request: permission denied"), "{said:?}");
            scene.host.way.heal();
            scene.host.way.decide(|_| None);
            sleep(Duration::from_secs(80)).await;
        })
        .await;
    assert!(reaper.said()[0].starts_with("works again"));
}

#[tokio::test(start_paused = true)]
async fn two_reapers_at_once_do_each_other_no_harm() {
    let scene = Scene::new();
    for index in 0..8 {
        scene.runs(&format!("shop/a{index}-x7k2p"), &format!("A{index}"), "n1").await;
    }
    let (one, two) = (Reaper::new(&scene), Reaper::new(&scene));
    let other = scene.world.node("other");
    let (trail, second_trail) = (Trail::default(), Trail::default());
    let script = async |hints: &mpsc::Sender<Hint>| {
        sleep(Duration::from_secs(5)).await;
        for index in 0..8 {
            scene.api.state().pods.remove(&key(&format!("shop/a{index}-x7k2p")));
        }
        hints.send(Hint::Pod).await.unwrap();
        sleep(Duration::from_secs(300)).await;
    };
    tokio::join!(
        one.on(&scene, &scene.host.way, &trail, script),
        two.on(&scene, &other.way, &second_trail, script),
    );
    assert!(!scene.world.show().contains("L shop/a"), "{}", scene.world.show());
    // Each lease was ended once, by one of them.
    let changes =
        |trail: &Trail| trail.changes.lock().unwrap().iter().filter(|c| c.what == "lease.released").count();
    assert_eq!(changes(&trail) + changes(&second_trail), 8);
}

#[tokio::test(start_paused = true)]
async fn an_end_that_the_store_does_not_take_is_tried_again_before_the_interval() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.vanishes("shop/a-x7k2p");
    let reaper = Reaper::new(&scene);
    reaper
        .during(&scene, async |_| {
            sleep(Duration::from_secs(60)).await;
            scene.host.way.decide(|call| call.txn.map(|_| Fault::NotReached));
            let before = reaper.ended();
            sleep(Duration::from_secs(120)).await;
            reaper.only_ends_since(before);
            scene.host.way.decide(|_| None);
            is_given_back(&scene, "shop/a-x7k2p").await;
            sleep(Duration::from_secs(1)).await;
            assert!(reaper.ended().1 >= before.1 + 120);
        })
        .await;
    assert!(reaper.elapsed() < 260.0, "{}", reaper.elapsed());
    let said = reaper.said();
    assert!(said[0].contains("shop/a-x7k2p eth0 on lan: store not reached"), "{said:?}");
    assert_eq!(said.iter().filter(|line| line.starts_with("over: ")).count(), 1, "{said:?}");
    assert!(said.len() <= 4, "{said:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pass_whose_live_questions_are_not_answered_has_not_done_its_work() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.vanishes("shop/a-x7k2p");
    let reaper = Reaper::new(&scene).every(Duration::from_secs(60));
    let (base, began) = (scene.api.state().now.0, reaper.began);
    reaper
        .during(&scene, async |_| {
            sleep(Duration::from_secs(90)).await;
            let before = reaper.ended();
            scene.api.before(move |question, state| {
                tick(state, base, began);
                let forbidden =
                    || ApiError::Forbidden { verb: "get", what: "pods".into(), reason: "RBAC".into() };
                matches!(question, Question::Pod(_)).then(forbidden)
            });
            sleep(Duration::from_secs(240)).await;
            reaper.only_ends_since(before);
            assert!(reaper.metrics.ready(Duration::from_secs(60)).is_err());
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_a_person_should_look_at_is_counted_and_told_once() {
    let scene = Scene::new();
    for pod in ["shop/a-x7k2p", "shop/b-x7k2p"] {
        scene.runs(pod, &pod[5..6], "n1").await;
    }
    let reaper = Reaper::new(&scene).every(Duration::from_secs(60));
    let reported = || reaper.metric("leasehold_reap_reported{reason=\"kubelet_lives\"}");
    let line =
        |pod: &str| format!("look at shop/{pod}-x7k2p eth0 on lan, kept by row 3: pod deleting, overdue 1");
    reaper
        .during(&scene, async |_| {
            scene.leaves("shop/a-x7k2p");
            sleep(Duration::from_secs(890)).await;
            assert_eq!((reported(), reaper.said()), (None, vec![]));
            sleep(Duration::from_secs(70)).await;
            let said = reaper.said();
            assert!(said.len() == 1 && said[0].starts_with(&line("a")), "{said:?}");
            scene.leaves("shop/b-x7k2p");
            sleep(Duration::from_secs(840)).await;
            assert_eq!((reported(), reaper.said()), (Some(1), vec![]));
            // A pass that fails forgets the count, and not what was told.
            scene.host.way.decide(|_| Some(Fault::Refused));
            sleep(Duration::from_secs(60)).await;
            assert_eq!(reported(), None);
            scene.host.way.decide(|_| None);
            sleep(Duration::from_secs(120)).await;
            assert_eq!(reported(), Some(2));
            let said = reaper.said();
            let told: Vec<_> = said.iter().filter(|text| text.starts_with("look at ")).collect();
            assert!(told.len() == 1 && told[0].starts_with(&line("b")), "{said:?}");
            scene.vanishes("shop/a-x7k2p");
            scene.vanishes("shop/b-x7k2p");
            sleep(Duration::from_secs(300)).await;
            assert_eq!(reported(), None);
        })
        .await;
}

/// A finished pod of a StatefulSet that no pass has seen: its controller is noted before its lease ends.
async fn the_controller_is_to_be_noted_first() -> Scene {
    let scene = Scene::new();
    scene.runs_in_set("shop/db-0", "A", "n1", 1).await;
    let mut state = scene.api.state();
    let long_ago = Timestamp(state.now.0 - 3_600_000);
    let pod = state.pods.get_mut(&key("shop/db-0")).unwrap();
    (pod.created, pod.finished, pod.phase) = (long_ago, Finished::At(long_ago), Phase::Succeeded);
    drop(state);
    scene
}

#[tokio::test(start_paused = true)]
async fn a_note_that_the_store_does_not_take_is_tried_again_seldom() {
    let scene = the_controller_is_to_be_noted_first().await;
    let reaper = Reaper::new(&scene);
    reaper
        .during(&scene, async |hints| {
            scene.host.way.decide(|call| call.txn.map(|_| Fault::NotReached));
            for _ in 0..600 {
                sleep(Duration::from_secs(1)).await;
                let _ = hints.try_send(Hint::Pod);
            }
        })
        .await;
    assert!((5..25).contains(&passes(&scene)), "{}", passes(&scene));
}

#[tokio::test(start_paused = true)]
async fn what_is_braked_is_not_looked_at_each_second() {
    let scene = the_controller_is_to_be_noted_first().await;
    scene.api.state().identity = uid("another");
    let reaper = Reaper::new(&scene).every(Duration::from_secs(300));
    reaper.during(&scene, async |_| sleep(Duration::from_secs(600)).await).await;
    assert!(passes(&scene) <= 4, "{}", passes(&scene));
}

#[tokio::test(start_paused = true)]
async fn b009_only_full_passes_mend_and_forget() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    let reaper = Reaper::new(&scene).every(Duration::from_secs(600));
    reaper
        .during(&scene, async |hints| {
            sleep(Duration::from_secs(10)).await;
            let lease = scene.world.lease("shop/a-x7k2p").unwrap();
            let address = &lease.value.addresses[0];
            scene.store().delete(&keys::address(&address.domain, address.address));
            hints.send(Hint::Pod).await.unwrap();
            sleep(Duration::from_secs(60)).await;
            assert!(reaper.said().is_empty());
            sleep(Duration::from_secs(540)).await;
        })
        .await;
    let said = reaper.said();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("1 half pairs mended; "), "{said:?}");
}

#[tokio::test(start_paused = true)]
async fn b013_half_pairs_that_only_a_person_can_mend_are_told_of_until_they_are_mended() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    let lease = scene.world.lease("shop/a-x7k2p").unwrap();
    let address = &lease.value.addresses[0];
    // Its pod runs, and of all that says so only its attachment is left.
    scene.store().delete(&keys::address(&address.domain, address.address));
    scene.store().delete(&keys::lease(&lease.value.id));
    let reaper = Reaper::new(&scene).every(Duration::from_secs(300));
    let gauge = |count: u32| {
        let text = reaper.metrics.text();
        assert!(text.lines().any(|line| line == format!("leasehold_reap_half_pairs {count}")), "{text}");
    };
    let left = "by hand: attachment eth0 of container A on lan, node n1 names the lease of shop/a-x7k2p eth0 on lan, which is not bound by it; the pod may run by it: restart the pod, or `leasehold adopt` gives it a lease";
    reaper
        .during(&scene, async |hints| {
            sleep(Duration::from_secs(10)).await;
            gauge(1);
            // What a quick pass does not look for is not over.
            hints.send(Hint::Pod).await.unwrap();
            sleep(Duration::from_secs(100)).await;
            assert!(passes(&scene) >= 2);
            gauge(1);
            assert_eq!(reaper.said(), [left]);
            scene.vanishes("shop/a-x7k2p");
            sleep(Duration::from_secs(300)).await;
            gauge(0);
        })
        .await;
    let said = reaper.said();
    assert!(said[0].starts_with("1 half pairs mended; "), "{said:?}");
    assert_eq!(said[1..], [format!("over: {left}")], "{said:?}");
}

#[tokio::test(start_paused = true)]
async fn an_address_key_that_cannot_be_read_is_told_of_until_it_can() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    let key = Key::new("v1/addresses/default/4/0b000001");
    scene.store().put(&key, "?");
    let reaper = Reaper::new(&scene).every(Duration::from_secs(300));
    let gauge = |count: u32| {
        let text = reaper.metrics.text();
        assert!(text.lines().any(|line| line == format!("leasehold_reap_troubles {count}")), "{text}");
    };
    let told = format!(
        "{key} cannot be read, and is kept: expected value at line 1 column 1; `leasehold check` says what to do"
    );
    reaper
        .during(&scene, async |hints| {
            sleep(Duration::from_secs(10)).await;
            gauge(1);
            // A quick pass does not look at it: it is not over.
            hints.send(Hint::Pod).await.unwrap();
            sleep(Duration::from_secs(100)).await;
            assert!(passes(&scene) >= 2);
            gauge(1);
            assert_eq!(reaper.said(), std::slice::from_ref(&told));
            scene.store().delete(&key);
            sleep(Duration::from_secs(300)).await;
            gauge(0);
        })
        .await;
    assert_eq!(reaper.said(), [format!("over: {told}")]);
}

#[tokio::test(start_paused = true)]
async fn history_is_forgotten_but_for_an_hour() {
    let scene = Scene::new();
    let mut reaper = Reaper::new(&scene).every(Duration::from_secs(300));
    reaper.compact = Some(HOUR);
    let begin = scene.store().revision();
    let read = |at: Revision| {
        let store = scene.store().clone();
        async move { store.read(&[Read::Get(keys::meta())], Some(at)).await.map(|_| ()) }
    };
    reaper
        .during(&scene, async |_| {
            sleep(Duration::from_secs(3500)).await;
            assert_eq!(read(begin).await, Ok(()));
            let then = scene.store().revision();
            sleep(Duration::from_secs(900)).await;
            assert_eq!(read(begin).await, Err(StoreError::Compacted(begin)));
            assert_eq!(read(then).await, Ok(()));
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn events_tell_what_a_person_of_the_cluster_should_know_and_tell_it_once() {
    let scene = Scene::with(&[pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.11"])]);
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    let n1 = scene.world.node("n1");
    let mut request = n1.ask("shop/b-x7k2p", "B");
    request.uid = Some(uid("uid-b"));
    n1.run(&request).await.unwrap();
    scene.api.state().pod(&key("shop/b-x7k2p"), &uid("uid-b"), &node("n1")).wishes =
        vec![("leasehold.io/pool".into(), "db".into())];
    let reaper = Reaper::new(&scene).every(Duration::from_secs(60));
    reaper
        .during(&scene, async |_| {
            sleep(Duration::from_secs(300)).await;
            let told = recorded(&scene);
            let heads: Vec<_> = told.iter().map(|event| (event.reason, event.warning)).collect();
            assert_eq!(heads, [("PoolFull", true), ("AnnotationIgnored", true)], "{told:?}");
            assert_eq!(told[0].about, About::Namespace(Namespace::new("leasehold").unwrap()));
            let full =
                "pool lan is full: 2 of 2 addresses are in use (2 bound, 0 held); a new pod gets none.";
            assert!(told[0].message.starts_with(full), "{told:?}");
            assert_eq!(told[1].about, About::Pod(key("shop/b-x7k2p"), uid("uid-b")));
            let ignored = "annotation leasehold.io/pool: db did not reach leasehold: its pool is lan.";
            assert!(told[1].message.starts_with(ignored), "{told:?}");
            scene.vanishes("shop/a-x7k2p");
            is_given_back(&scene, "shop/a-x7k2p").await;
            sleep(Duration::from_secs(1)).await;
            let told = recorded(&scene);
            assert_eq!(told.len(), 3, "{told:?}");
            assert_eq!((told[2].reason, told[2].warning), ("AddressesGivenBack", false));
            assert_eq!(told[2].about, About::Namespace(Namespace::new("shop").unwrap()));
            assert!(told[2].message.starts_with("1 given back: 10.0.0.1"), "{told:?}");
            // All pods gone at once: a list that is not true.
            scene.api.state().pods.clear();
            sleep(Duration::from_secs(300)).await;
            let told = recorded(&scene);
            assert_eq!(told.len(), 4, "{told:?}");
            assert_eq!(told[3].reason, "BrakeFired");
            let empty = Brake::Empty { list: "pods", bound: 1 };
            assert!(told[3].message.ends_with(&empty.to_string()), "{told:?}");
        })
        .await;
    let said = reaper.said();
    assert_eq!(said.iter().filter(|line| line.starts_with("brake: ")).count(), 1, "{said:?}");
    let text = reaper.metrics.text();
    for line in [
        "leasehold_pool_addresses{pool=\"lan\",state=\"size\"} 2",
        "leasehold_reap_brakes{brake=\"list_empty\"} 1",
        "leasehold_reap_given_back_total{row=\"8\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_not_taken_is_a_trouble_and_no_end() {
    let scene = Scene::with(&[pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.10"])]);
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    let reaper = Reaper::new(&scene).every(Duration::from_secs(60));
    let (base, began) = (scene.api.state().now.0, reaper.began);
    scene.api.before(move |question, state| {
        tick(state, base, began);
        let refusal = || ApiError::Forbidden { verb: "create", what: "events".into(), reason: "no".into() };
        matches!(question, Question::Record(_)).then(refusal)
    });
    reaper
        .during(&scene, async |_| {
            sleep(Duration::from_secs(5)).await;
            scene.vanishes("shop/a-x7k2p");
            is_given_back(&scene, "shop/a-x7k2p").await;
        })
        .await;
    let said = reaper.said();
    assert!(said[0].starts_with("an Event was not recorded: may not create events: no"), "{said:?}");
    assert!(reaper.metrics.text().contains("leasehold_reap_troubles 1\n"));
}

#[tokio::test(start_paused = true)]
async fn a_closed_door_lets_a_commit_under_way_end_and_none_begin() {
    let scene = Scene::new();
    let metrics = Metrics::new();
    let way = FaultyStore::new(scene.store().clone());
    way.decide(|_| Some(Fault::Delay(Duration::from_secs(2))));
    let store = Measured::new(&way, &metrics);
    let txn = leasehold::store::Txn::default();
    let began = Instant::now();
    let first = async {
        let _ = store.commit(&txn).await;
        began.elapsed()
    };
    let close = async {
        sleep(Duration::from_secs(1)).await;
        store.close().await;
        began.elapsed()
    };
    let (first, closed) = tokio::join!(first, close);
    assert!(first <= closed && closed < Duration::from_millis(2050), "{first:?} {closed:?}");
    let late = tokio::time::timeout(Duration::from_secs(60), store.commit(&txn)).await;
    assert!(late.is_err());
    assert_eq!(way.commits(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_readme_names_every_metric_and_no_other() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    let reaper = Reaper::new(&scene);
    reaper.during(&scene, async |_| sleep(Duration::from_secs(1)).await).await;
    let text = reaper.metrics.text();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let readme = std::fs::read_to_string(crate::documents::root().join("README.md")).unwrap();
    let words = readme.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let named: BTreeSet<&str> = words.filter(|word| word.starts_with("leasehold_")).collect();
    assert_eq!(named, types.collect());
}

/// Of a PromQL expression: each metric with the text between its braces.
fn selectors(expression: &str) -> Vec<(&str, &str)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = expression.match_indices("leasehold_").map(|(at, _)| &expression[at..]);
    starts
        .map(|rest| {
            let name = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
            let labels = rest[name.len()..].strip_prefix('{').and_then(|rest| rest.split_once('}'));
            (name, labels.map_or("", |(labels, _)| labels))
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn alerts_and_dashboard_ask_for_what_the_metrics_have() {
    let scene = Scene::new();
    scene.runs("shop/a-x7k2p", "A", "n1").await;
    scene.store().put(&leasehold::store::Key::new("v1/pools/bad"), "?"); // something to report
    let reaper = Reaper::new(&scene);
    reaper.during(&scene, async |_| sleep(Duration::from_secs(1)).await).await;
    let text = reaper.metrics.text();
    let kinds: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let has = |name: &str, label: &str, value: &str| {
        // What a scene keeps is not all that can be kept.
        let reason =
            label == "reason" && BTreeSet::from(["pod_exists", "owner_wants_it", "reserved"]).contains(value);
        reason
            || text.lines().any(|line| {
                line.starts_with(&format!("{name}{{")) && line.contains(&format!("{label}=\"{value}\""))
            })
    };
    let example = |name: &str| crate::documents::example(&format!("kubernetes/{name}"));
    let rules: serde_json::Value = serde_saphyr::from_str(&example("prometheus-rule.yaml")).unwrap();
    let board: serde_json::Value = serde_json::from_str(&example("grafana-dashboard.json")).unwrap();
    let rules = rules["spec"]["groups"][0]["rules"].as_array().unwrap().iter().map(|rule| &rule["expr"]);
    let panels =
        board["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut matched = 0;
    for expression in rules.chain(panels.map(|target| &target["expr"])).map(|expr| expr.as_str().unwrap()) {
        for (name, labels) in selectors(expression) {
            for matcher in labels.split(',').filter(|matcher| !matcher.is_empty()) {
                let (label, values) = matcher.split_once(['=', '!']).unwrap();
                let values = values.trim_matches(['=', '~', '"']);
                for value in values.split('|').filter(|value| !value.starts_with('$')) {
                    assert!(has(name, label, value), "{label}={value:?} in {expression}\n{text}");
                    matched += 1;
                }
            }
            let counts = expression.contains(&format!("rate({name}"));
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let kind = kinds.get(name).or_else(|| kinds.get(family.unwrap_or_default()));
            assert_eq!(counts, matches!(kind, Some(&("counter" | "histogram"))), "{expression}: {kind:?}");
        }
        for list in expression.split("by (").skip(1) {
            for label in list.split(')').next().unwrap().split(',').map(str::trim) {
                let known = selectors(expression).into_iter().any(|(name, _)| {
                    text.lines().any(|line| line.starts_with(name) && line.contains(&format!("{label}=\"")))
                });
                assert!(known, "{label} in {expression}");
            }
        }
    }
    assert!(matched > 10, "{matched}");
}
