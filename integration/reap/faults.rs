//! Each store call of a pass goes wrong in turn, the reaper dies at each, a second reaper works in each gap of the first,
//! and each pod comes and goes at each point. The audit finds nothing, nothing that lives loses its lease, and a pass
//! without faults ends where it would have ended without them.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::{
    domain::{
        kubernetes::{self, Controller, ControllerRef, Finished, Listed, Live, Phase, Pod, PodKey},
        names::{Namespace, NodeName, Uid},
    },
    pods::{
        ApiError, Cluster, Event,
        fake::{FakeCluster, Question, State},
    },
    reaper::{Options, PassError, Report, Stopped},
    store::testing::{Fault, On, Side},
};
use tokio::sync::watch;

use super::scene::{Scene, given, key, node, uid};
use crate::ops::world::{Node, pool};

const WHOLE: Options = Options { dry_run: false, all: false, mend: true, quick: false };

/// All that a pass may have to do, at once: who is missed, lost, ended, held for nobody, noted; and who lives.
async fn busy() -> Scene {
    let mut document = pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.99"]);
    document.retention = Some(leasehold::store::record::RetentionDocument {
        when_scaled: Some("Delete".into()),
        ..Default::default()
    });
    let scene = Scene::with(&[document]);
    for (pod, on) in [
        ("shop/lives-x7k2p", "n1"),
        ("shop/missed-x7k2p", "n1"),
        ("shop/lost-x7k2p", "n2"),
        ("shop/ended-x7k2p", "n1"),
    ] {
        scene.runs(pod, &pod[5..], on).await;
    }
    for (pod, on) in [("shop/db-0", "n2"), ("shop/db-1", "n1"), ("shop/db-2", "n1")] {
        scene.runs_in_set(pod, &pod[5..], on, 3).await;
    }
    scene.pass().await;
    scene.vanishes("shop/missed-x7k2p");
    scene.pass().await;
    scene.falls_silent("n2");
    for pod in ["shop/lost-x7k2p", "shop/db-0"] {
        scene.leaves(pod);
    }
    let now = scene.api.state().now;
    scene.change("shop/ended-x7k2p", |pod| (pod.phase, pod.finished) = (Phase::Failed, Finished::At(now)));
    scene.scale("shop/db", 2);
    scene.world.node("n1").del("shop/db-2", "db-2").await;
    scene.vanishes("shop/db-2");
    scene.wait(3_600).await;
    // One that is only noted: nobody missed it before.
    scene.runs("shop/noted-x7k2p", "N", "n1").await;
    scene.vanishes("shop/noted-x7k2p");
    scene
}

const ENDS: [&str; 5] =
    ["shop/db-0 5", "shop/db-2 12 scaled", "shop/ended-x7k2p 6", "shop/lost-x7k2p 5", "shop/missed-x7k2p 8"];

/// What must be true whatever went wrong.
fn living(scene: &Scene, what: &str) {
    scene.world.audit();
    let left = scene.world.show();
    for pod in ["shop/lives-x7k2p", "shop/db-1"] {
        assert!(left.contains(&format!("L {pod} bound")), "{what}: {left}");
    }
}

/// Nothing goes wrong any more: everything is where it belongs.
async fn ends_right(scene: &Scene, what: &str) {
    scene.wait(300).await;
    scene.pass().await;
    scene.wait(300).await;
    scene.pass().await;
    living(scene, what);
    let left = scene.world.show();
    let leases: Vec<&str> = left.lines().filter(|line| line.starts_with("L ")).collect();
    assert_eq!(leases.len(), 3, "{what}: {left}");
    assert!(left.contains("L shop/db-0 held"), "{what}: {left}");
    assert_eq!(left.lines().filter(|line| line.starts_with("R ")).count(), 5, "{what}: {left}");
}

/// The calls of a pass in which nothing goes wrong.
async fn calls() -> usize {
    let scene = busy().await;
    let before = scene.host.way.calls();
    assert_eq!(given(&scene.pass().await), ENDS);
    ends_right(&scene, "no fault").await;
    let scene = busy().await;
    scene.pass().await;
    scene.host.way.calls() - before
}

#[tokio::test(start_paused = true)]
async fn each_store_call_of_a_pass_fails_in_turn() {
    let calls = calls().await;
    assert!(calls > 20, "{calls}");
    let faults = [
        Fault::NotReached,
        Fault::Refused,
        Fault::Lost,
        Fault::AnswerLost,
        Fault::Late,
        Fault::Compacted,
        Fault::Delay(Duration::from_secs(7)),
    ];
    for fault in faults {
        for call in 0..calls {
            let what = format!("{fault:?} at {call}");
            let scene = busy().await;
            scene.host.way.fail(On::Call(scene.host.way.calls() + call), fault);
            let ended = scene.try_pass(WHOLE).await;
            living(&scene, &what);
            if let Ok(report) = &ended {
                // What one answer kept back is sent again: done, and told in the audit trail as done.
                if matches!(fault, Fault::NotReached | Fault::Lost | Fault::AnswerLost | Fault::Late) {
                    assert_eq!(given(report), ENDS, "{what}");
                    assert_eq!(scene.trail.changes.lock().unwrap().len(), ENDS.len(), "{what}");
                }
                let left = scene.world.show();
                for line in given(report) {
                    let pod = line.split(' ').next().unwrap();
                    assert!(!left.contains(&format!("L {pod} bound")), "{what}: {line} {left}");
                }
            }
            // What is late arrives after all, and may meet what another pass has done.
            if call % 2 == 0 {
                let _ = scene.host.way.deliver_all().await;
                living(&scene, &what);
            }
            scene.host.way.heal();
            ends_right(&scene, &what).await;
            let _ = scene.host.way.deliver_all().await;
            living(&scene, &what);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn from_each_store_call_of_a_pass_on_the_store_is_down() {
    let calls = calls().await;
    for fault in [Fault::NotReached, Fault::Refused, Fault::Lost, Fault::AnswerLost] {
        for call in 0..calls {
            let what = format!("{fault:?} from {call}");
            let scene = busy().await;
            scene.host.way.fail(On::From(scene.host.way.calls() + call), fault);
            match scene.try_pass(WHOLE).await {
                // The leases were not read, or it says what it could not do.
                Err(error) => assert!(!error.to_string().is_empty()),
                Ok(report) => assert!(report.needs_a_look(), "{what}"),
            }
            living(&scene, &what);
            scene.host.way.heal();
            ends_right(&scene, &what).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_reaper_dies_at_each_store_call_and_the_next_one_goes_on() {
    let calls = calls().await;
    for side in [Side::Before, Side::After] {
        for call in 0..calls {
            let what = format!("killed {side:?} {call}");
            let scene = busy().await;
            let other = scene.world.node("other");
            let mut gate = other.way.pause(On::Call(call), side);
            tokio::select! {
                ended = scene.pass_from(&other, WHOLE) => panic!("{what}: {ended:?}"),
                () = gate.reached() => {}
            }
            living(&scene, &what);
            ends_right(&scene, &what).await;
        }
    }
}

/// A pass that was stopped ended what it began, told it, and is gone on with.
async fn was_stopped(mut scene: Scene, ended: Result<Report, PassError>, what: &str) -> usize {
    living(&scene, what);
    let told = scene.trail.changes.lock().unwrap().len();
    let done = match ended {
        Ok(report) => {
            let done = given(&report).len();
            assert_eq!(report.stopped, Some(Stopped { done, all: ENDS.len() }), "{what}");
            assert_eq!(report.kept.get("stopped").copied().unwrap_or(0), ENDS.len() - done, "{what}");
            assert!(report.needs_a_look() && report.troubles.is_empty(), "{what}: {:?}", report.troubles);
            done
        }
        Err(error) => {
            assert_eq!(error, PassError::Stopped, "{what}");
            0
        }
    };
    assert_eq!(told, done, "{what}");
    scene.stop = Arc::default();
    ends_right(&scene, what).await;
    done
}

#[tokio::test(start_paused = true)]
async fn a_pass_is_stopped_at_each_store_call_and_the_next_one_goes_on() {
    for call in 0..calls().await {
        let scene = busy().await;
        let other = scene.world.node("other");
        let mut gate = other.way.pause(On::Call(call), Side::Before);
        let stop = async {
            gate.reached().await;
            scene.stop.stop();
            gate.resume();
        };
        let (ended, ()) = tokio::join!(scene.pass_from(&other, WHOLE), stop);
        was_stopped(scene, ended, &format!("stopped at {call}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_pass_begins_with_no_other_candidate() {
    for asked in 1..=ENDS.len() {
        let scene = busy().await;
        let (stop, mut left) = (Arc::clone(&scene.stop), asked);
        scene.api.before(move |question, _| {
            left -= usize::from(matches!(question, Question::Pod(_)));
            if left == 0 {
                stop.stop();
            }
            None
        });
        let ended = scene.try_pass(WHOLE).await;
        scene.api.honest();
        assert_eq!(was_stopped(scene, ended, &format!("stopped after {asked}")).await, asked);
    }
}

/// Lets the others work until it is so.
async fn until(so: impl Fn() -> bool) {
    while !so() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn two_reapers_at_once_do_what_one_does() {
    let calls = calls().await;
    // The first stands at one call while the second works until another one; then the first ends, then the second.
    for first_at in 0..calls {
        for second_at in (0..=calls).step_by(3) {
            let what = format!("{first_at} {second_at}");
            let scene = busy().await;
            let hosts = [scene.world.node("r1"), scene.world.node("r2")];
            let gates = [
                hosts[0].way.pause(On::Call(first_at), Side::Before),
                hosts[1].way.pause(On::Call(second_at), Side::Before),
            ];
            let done = [Cell::new(false), Cell::new(false)];
            let pass = async |n: usize| {
                let report = scene.pass_from(&hosts[n], WHOLE).await.unwrap();
                done[n].set(true);
                report
            };
            let second = async {
                until(|| gates[0].is_reached()).await;
                pass(1).await
            };
            let play = async {
                // One that finds less to do makes fewer calls.
                until(|| gates[0].is_reached() && (gates[1].is_reached() || done[1].get())).await;
                living(&scene, &what);
                gates[0].resume();
                until(|| done[0].get()).await;
                gates[1].resume();
            };
            let (one, two, ()) = tokio::join!(pass(0), second, play);
            living(&scene, &what);
            // Each end was made by one of them.
            let mut ends = given(&one);
            ends.extend(given(&two));
            ends.sort();
            assert_eq!(ends, ENDS, "{what}");
            ends_right(&scene, &what).await;
        }
    }
}

/// An API that holds back one question, or one answer, for as long as a test wants.
struct Held<'a> {
    api: &'a FakeCluster,
    at: (usize, Side),
    count: AtomicUsize,
    is_reached: AtomicBool,
    open: watch::Sender<bool>,
}

impl<'a> Held<'a> {
    fn new(api: &'a FakeCluster, at: (usize, Side)) -> Self {
        Self {
            api,
            at,
            count: AtomicUsize::new(0),
            is_reached: AtomicBool::new(false),
            open: watch::Sender::new(false),
        }
    }

    async fn wait(&self, at: (usize, Side)) {
        if self.at == at {
            self.is_reached.store(true, Ordering::Relaxed);
            let _ = self.open.subscribe().wait_for(|open| *open).await;
        }
    }

    async fn around<T>(&self, ask: impl Future<Output = T>) -> T {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        self.wait((number, Side::Before)).await;
        let answer = ask.await;
        self.wait((number, Side::After)).await;
        answer
    }
}

impl Cluster for Held<'_> {
    async fn identity(&self) -> Result<Uid, ApiError> {
        self.around(self.api.identity()).await
    }

    async fn pods_that(
        &self,
        keep: &(dyn Fn(&Pod) -> bool + Sync),
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<Listed<Pod>, ApiError> {
        self.around(self.api.pods_that(keep, progress)).await
    }

    async fn pod(&self, key: &PodKey) -> Result<Live<Pod>, ApiError> {
        self.around(self.api.pod(key)).await
    }

    async fn nodes(&self) -> Result<Listed<kubernetes::Node>, ApiError> {
        self.around(self.api.nodes()).await
    }

    async fn node(&self, name: &NodeName) -> Result<Live<kubernetes::Node>, ApiError> {
        self.around(self.api.node(name)).await
    }

    async fn controller(
        &self,
        namespace: &Namespace,
        controller: &ControllerRef,
    ) -> Result<Live<Controller>, ApiError> {
        self.around(self.api.controller(namespace, controller)).await
    }

    async fn record(&self, event: &Event) -> Result<(), ApiError> {
        self.around(self.api.record(event)).await
    }
}

/// What happens to one pod in the middle of a pass.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    /// Its next sandbox, on the same node.
    Again(&'static str, &'static str),
    /// Its next sandbox, on another node.
    Moves(&'static str),
    /// The DEL of its sandbox comes after all.
    Del(&'static str, &'static str, &'static str),
    /// DEL, and its next sandbox.
    Both(&'static str, &'static str, &'static str),
    /// Somebody new wants an address.
    Stranger,
}

const MEANWHILE: [Meanwhile; 10] = [
    Meanwhile::Again("shop/missed-x7k2p", "n1"),
    Meanwhile::Again("shop/lost-x7k2p", "n2"),
    Meanwhile::Again("shop/db-0", "n2"),
    Meanwhile::Again("shop/db-2", "n1"),
    Meanwhile::Again("shop/lives-x7k2p", "n1"),
    Meanwhile::Again("shop/noted-x7k2p", "n1"),
    Meanwhile::Moves("shop/db-0"),
    Meanwhile::Del("shop/missed-x7k2p", "missed-x7k2p", "n1"),
    Meanwhile::Both("shop/missed-x7k2p", "missed-x7k2p", "n1"),
    Meanwhile::Stranger,
];

impl Meanwhile {
    /// Kubernetes shows a pod before its kubelet makes a sandbox for it.
    fn shown(self, state: &mut State) {
        let (pod, on) = match self {
            Self::Again(pod, on) | Self::Both(pod, _, on) => (pod, on),
            Self::Moves(pod) => (pod, "n3"),
            Self::Del(..) => return,
            Self::Stranger => ("web/new-x7k2p", "n3"),
        };
        state.pod(&key(pod), &uid("next"), &node(on));
    }

    /// The pod whose sandbox uses its lease from now on.
    async fn acts(self, node: &Node) -> Option<&'static str> {
        let (pod, old) = match self {
            Self::Again(pod, _) | Self::Moves(pod) => (pod, None),
            Self::Del(pod, container, _) => {
                node.try_del(Some(pod), container).await.unwrap();
                return None;
            }
            Self::Both(pod, container, _) => (pod, Some(container)),
            Self::Stranger => ("web/new-x7k2p", None),
        };
        if let Some(container) = old {
            node.try_del(Some(pod), container).await.unwrap();
        }
        node.add(pod, "NEXT").await.unwrap();
        Some(pod)
    }

    fn node(self, scene: &Scene) -> Node {
        scene.world.node(match self {
            Self::Again(_, on) | Self::Del(_, _, on) | Self::Both(_, _, on) => on,
            Self::Moves(_) | Self::Stranger => "n3",
        })
    }
}

#[track_caller]
fn has_its_lease(scene: &Scene, pod: Option<&str>, what: &str) {
    living(scene, what);
    let left = scene.world.show();
    if let Some(pod) = pod {
        let line = left.lines().find(|line| line.starts_with(&format!("L {pod} bound"))).unwrap_or_default();
        assert!(line.contains(" NEXT on "), "{what}: {left}");
    }
}

/// Lets a pod do something while a pass stands somewhere, and looks at it afterwards.
async fn meanwhile_at<T>(
    scene: &Scene,
    meanwhile: Meanwhile,
    what: &str,
    pass: impl Future<Output = T>,
    reached: impl Fn() -> bool,
    resume: impl FnOnce(),
) {
    let done = Cell::new(false);
    let pass = async {
        pass.await;
        done.set(true);
    };
    let play = async {
        until(|| reached() || done.get()).await;
        meanwhile.shown(&mut scene.api.state());
        let pod = meanwhile.acts(&meanwhile.node(scene)).await;
        resume();
        pod
    };
    let ((), pod) = tokio::join!(pass, play);
    has_its_lease(scene, pod, what);
    // Nor does any later pass take it.
    for _ in 0..2 {
        scene.wait(300).await;
        scene.pass().await;
        has_its_lease(scene, pod, what);
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_a_pod_does_at_a_store_call_of_a_pass_its_sandbox_has_its_lease() {
    let calls = calls().await;
    for meanwhile in MEANWHILE {
        for side in [Side::Before, Side::After] {
            for call in 0..calls {
                let what = format!("{meanwhile:?} {side:?} {call}");
                let scene = busy().await;
                let reaper = scene.world.node("r");
                let gate = reaper.way.pause(On::Call(call), side);
                let pass = scene.pass_from(&reaper, WHOLE);
                meanwhile_at(&scene, meanwhile, &what, pass, || gate.is_reached(), || gate.resume()).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_a_pod_does_at_a_question_of_a_pass_its_sandbox_has_its_lease() {
    let scene = busy().await;
    scene.api.state().asked.clear();
    scene.pass().await;
    let questions = scene.api.state().asked.len();
    assert!(questions >= 8, "{questions}");
    for meanwhile in MEANWHILE {
        for side in [Side::Before, Side::After] {
            for question in 0..questions {
                let what = format!("{meanwhile:?} {side:?} {question}");
                let scene = busy().await;
                let api = Held::new(&scene.api, (question, side));
                let pass = scene.pass_with(&scene.host, &api, WHOLE);
                let reached = || api.is_reached.load(Ordering::Relaxed);
                let resume = || {
                    api.open.send_replace(true);
                };
                meanwhile_at(&scene, meanwhile, &what, pass, reached, resume).await;
            }
        }
    }
}

/// Rule `uid_keep` of the model: a pod lives under its name, whatever UID its lease was bound under. Without it the
/// address of its next sandbox would be free between the pod's object and the sandbox's ADD.
#[tokio::test(start_paused = true)]
async fn a_pod_that_lives_under_its_second_uid_keeps_the_lease_of_the_first() {
    let scene = Scene::with(&[pool("x", &["10.0.0.0/24 10.0.0.10-10.0.0.10"])]);
    let n1 = scene.world.node("n1");
    scene.api.state().pod(&key("shop/p"), &uid("u1"), &node("n1"));
    let mut first = n1.ask("shop/p", "A");
    first.uid = Some(uid("u1"));
    n1.run(&first).await.unwrap();
    scene.api.state().pod(&key("shop/p"), &uid("u2"), &node("n1"));
    for _ in 0..20 {
        scene.wait(60).await;
        assert!(scene.gives().await.is_empty());
    }
    assert!(scene.world.node("n2").add("shop/q", "Q").await.is_err());
    let mut second = n1.ask("shop/p", "B");
    second.uid = Some(uid("u2"));
    n1.run(&second).await.unwrap();
    assert!(scene.gives().await.is_empty());
}

/// Rule `grace` of the model: an ADD may have written its lease and not be done with it. While it can live, its pod may
/// be gone from the API, and the sandbox use the address all the same.
#[tokio::test(start_paused = true)]
async fn a_lease_is_kept_for_as_long_as_the_add_that_wrote_it_can_live() {
    let mut scene = Scene::with(&[pool("x", &["10.0.0.0/24 10.0.0.10-10.0.0.10"])]);
    // The least that anybody can set is not less.
    scene.policy.absent_after = Duration::ZERO;
    let n1 = Arc::new(scene.world.node("n1"));
    scene.api.state().pod(&key("shop/p"), &uid("u1"), &node("n1"));
    let mut gate = n1.way.pause(On::Commit(0), Side::After);
    let slow = tokio::spawn({
        let n1 = n1.clone();
        async move { n1.add("shop/p", "A").await }
    });
    gate.reached().await;
    scene.vanishes("shop/p");
    let began = tokio::time::Instant::now();
    while began.elapsed() < crate::ops::world::ADD_DEADLINE {
        assert!(scene.gives().await.is_empty());
        assert!(scene.world.node("n2").add("shop/q", "Q").await.is_err());
        scene.wait_ms(500).await;
    }
    gate.resume();
    // It is over in time, or has undone what it did.
    let ended = slow.await.unwrap();
    assert!(ended.is_ok() || scene.world.lease("shop/p").is_none());
    scene.wait(15).await;
    scene.pass().await;
    assert!(scene.world.lease("shop/p").is_none());
    assert!(scene.world.show().contains("R 10.0.0.10 by shop/p"), "{}", scene.world.show());
}
