//! The histories that the rules of the design prevent, one a rule, as the model of the transactions prints them with
//! that rule switched off. Each comment says which line prevents it here. The rules `uid_keep` and `grace` (the reaper's
//! own patience) are in `reap::faults`; `cancel` is the node's journal, in `failures::journal`.

use std::{sync::Arc, time::Duration};

use leasehold::{
    domain::{
        lease::{Seen, Timestamp},
        names::Uid,
    },
    ops::{self, Refusal},
    store::{
        Outcome, Revision, changes,
        testing::{Fault, On, Side},
    },
};
use tokio::time::Instant;

use super::world::{Node, World, id, pool};

fn one() -> World {
    World::new(&[pool("x", &["10.0.0.0/24 10.0.0.10-10.0.0.10"])])
}

fn bound_to(world: &World, pod: &str, container: &str) -> bool {
    world
        .lease(pod)
        .is_some_and(|l| l.value.bound().is_some_and(|stamp| stamp.container.as_str() == container))
}

/// ADD-A (of this UID) reads that there is no lease, ADD-B of the pod's next sandbox binds it, ADD-A conflicts and
/// reads again.
async fn slow_add_of_an_old_sandbox(uid_a: &str, uid_b: &str) {
    let world = one();
    let mut n1 = world.node("n1");
    // Switches the rule `grace_move` off, which would refuse it too.
    n1.me.add_deadline = Duration::ZERO;
    let n1 = Arc::new(n1);
    let n2 = world.node("n2");
    let mut a = n1.ask("shop/p", "A");
    a.uid = Some(Uid::new(uid_a).unwrap());
    let mut b = n2.ask("shop/p", "B");
    b.uid = Some(Uid::new(uid_b).unwrap());
    let mut gate = n1.way.pause(On::Commit(0), Side::Before);
    let slow = tokio::spawn({
        let n1 = n1.clone();
        async move { n1.run(&a).await }
    });
    gate.reached().await;
    n2.run(&b).await.unwrap();
    gate.resume();
    let refused = slow.await.unwrap().unwrap_err();
    assert!(matches!(refused, Refusal::NewerSandbox { .. }), "{refused}");
    assert!(bound_to(&world, "shop/p", "B"));
    // DEL-A must not free what B has.
    assert!(!n1.del("shop/p", "A").await);
    assert!(bound_to(&world, "shop/p", "B"));
    world.audit();
}

/// Rule `no_steal`: `refuse_newer`, "it was bound while this ADD worked".
#[tokio::test(start_paused = true)]
async fn b030_an_older_sandbox_that_commits_second_does_not_steal_the_lease() {
    slow_add_of_an_old_sandbox("u1", "u2").await;
}

/// Rule `steal_any`: the same line asks for the container, not for the UID.
#[tokio::test(start_paused = true)]
async fn b030_nor_does_it_if_both_sandboxes_are_of_one_uid() {
    slow_add_of_an_old_sandbox("u1", "u1").await;
}

/// Rule `younger`: `refuse_newer`, "it was bound after this ADD began".
#[tokio::test(start_paused = true)]
async fn an_add_that_began_before_the_lease_was_bound_on_its_node_does_not_take_it() {
    let world = one();
    let n1 = world.node("n1");
    let slow = n1.ask("shop/p", "A");
    n1.gets("shop/p", "B").await;
    let refused = n1.run(&slow).await.unwrap_err();
    assert!(matches!(refused, Refusal::NewerSandbox { .. }), "{refused}");
    assert!(bound_to(&world, "shop/p", "B"));
    // After a reboot the boot-time clock begins anew: what was bound before counts as older.
    let mut rebooted = world.node("n1");
    rebooted.me.boot = Some(leasehold::domain::names::BootId::new("next").unwrap());
    let mut request = rebooted.ask("shop/p", "C");
    request.started = 1;
    rebooted.run(&request).await.unwrap();
    world.audit();
}

/// Rule `grace_move`: `refuse_newer`, "it was bound there a moment ago, and may not be on the wire yet".
#[tokio::test(start_paused = true)]
async fn a_lease_bound_elsewhere_is_not_taken_before_that_sandbox_can_answer_a_probe() {
    let world = one();
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    n1.gets("shop/p", "A").await;
    let refused = n2.add("shop/p", "B").await.unwrap_err();
    assert!(matches!(refused, Refusal::NewerSandbox { .. }), "{refused}");
    // The clock of the other node is ahead, by less than anybody believes in.
    let world = one();
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    n1.clock.skew.store(300_000, std::sync::atomic::Ordering::Relaxed);
    n1.gets("shop/p", "A").await;
    let refused = n2.add("shop/p", "B").await.unwrap_err();
    assert!(matches!(refused, Refusal::NewerSandbox { .. }), "{refused}");
}

/// Rules `probe_move` and `superseded`: `probe_own`. A partitioned kubelet starts the old sandbox again.
#[tokio::test(start_paused = true)]
async fn a_partitioned_kubelet_does_not_take_the_lease_from_the_node_that_has_it() {
    let world = one();
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    n1.gets("shop/p", "A").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    // A still answers: n2 does not get it.
    n2.wire.hears("10.0.0.10");
    assert!(matches!(n2.add("shop/p", "B").await, Err(Refusal::StillAnswers { .. })));
    // n1 is fenced: n2 gets it. Then n1 is back and starts its sandbox of the old UID anew.
    n2.wire.answering.lock().unwrap().clear();
    n2.gets("shop/p", "B").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    n1.wire.hears("10.0.0.10");
    assert!(matches!(n1.add("shop/p", "A2").await, Err(Refusal::StillAnswers { .. })));
    assert!(!n1.del("shop/p", "A2").await && !n1.del("shop/p", "A").await);
    assert!(bound_to(&world, "shop/p", "B"));
    world.audit();
}

/// A clock that is five minutes ahead takes what was bound just now for old. So whoever takes a lease waits for as long as an
/// answer may take, and whoever answers later binds once more (found by the simulation, seed 337937).
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_take_over_is_not_given() {
    let (world, n1, n2) = one_ahead();
    let mut gate = n2.way.pause(On::Commit(0), Side::After);
    let slow = in_background(&n2, "A");
    gate.reached().await;
    let began = Instant::now();
    n1.gets("shop/p", "B").await;
    assert!(began.elapsed() > Duration::from_secs(5), "{:?}", began.elapsed());
    gate.resume();
    let refused = slow.await.unwrap().unwrap_err();
    assert!(matches!(refused, Refusal::NewerSandbox { .. }), "{refused}");
    assert!(bound_to(&world, "shop/p", "B"));
    world.audit();
}

/// The same, and the answer is late, but before the take-over: for another wait there is no time. The next ADD need not wait:
/// its node remembers when it looked.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_is_given_after_it_is_bound_once_more() {
    let (world, n1, n2) = one_ahead();
    let mut gate = n2.way.pause(On::Commit(0), Side::After);
    let slow = in_background(&n2, "A");
    gate.reached().await;
    let first = world.lease("shop/p").unwrap().revision;
    let taking = in_background(&n1, "B");
    tokio::time::sleep(Duration::from_secs(4)).await;
    gate.resume();
    slow.await.unwrap().unwrap();
    assert!(world.lease("shop/p").unwrap().revision > first);
    let refused = taking.await.unwrap().unwrap_err();
    let Refusal::Arriving { memory, .. } = refused else { panic!("{refused}") };
    assert!(bound_to(&world, "shop/p", "A"));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut again = world.node("n1");
    again.clock.skew.store(300_000, std::sync::atomic::Ordering::Relaxed);
    again.memory = *memory;
    again.wire.hears("10.0.0.10");
    let began = Instant::now();
    let refused = again.add("shop/p", "B").await.unwrap_err();
    assert!(matches!(refused, Refusal::StillAnswers { .. }), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    world.audit();
}

/// An ADD that finds its own lease after a conflict cannot say how old its commit is: it binds once more.
#[tokio::test(start_paused = true)]
async fn an_own_commit_that_is_found_after_a_conflict_is_not_answered_as_it_is() {
    let (world, _, n2) = one_ahead();
    n2.way.fail(On::Commit(0), Fault::AnswerLost);
    let mut gate = n2.way.pause(On::Commit(0), Side::After);
    let slow = in_background(&n2, "A");
    gate.reached().await;
    let before = note(&world, "shop/p");
    tokio::time::sleep(Duration::from_secs(5)).await;
    gate.resume();
    slow.await.unwrap().unwrap();
    assert!(world.lease("shop/p").unwrap().revision > before, "it answers on a commit of five seconds ago");
    assert!(bound_to(&world, "shop/p", "A"));
    world.audit();
}

/// The store had gone on further when this node looked: what was seen then was of another past.
#[tokio::test(start_paused = true)]
async fn what_was_seen_before_a_restore_says_nothing_of_what_was_bound_since() {
    let (world, n1, n2) = one_ahead();
    n2.gets("shop/p", "A").await;
    let mut restored = world.node("n1");
    restored.clock.skew.store(300_000, std::sync::atomic::Ordering::Relaxed);
    restored.memory = n1.try_del(None, "nothing").await.unwrap().memory;
    tokio::time::sleep(Duration::from_secs(6)).await;
    restored.memory.sightings[0].revision = Revision(1_000);
    let began = Instant::now();
    restored.gets("shop/p", "B").await;
    assert!(began.elapsed() > Duration::from_secs(5), "{:?}", began.elapsed());
    world.audit();
}

/// An ADD whose commits are all answered too late fails, and takes back what it bound.
#[tokio::test(start_paused = true)]
async fn an_add_that_is_late_to_the_end_leaves_nothing() {
    let world = one();
    let n1 = world.node("n1");
    n1.way.decide(|call| {
        (call.txn.is_some() && call.of_kind < 3).then_some(Fault::Delay(Duration::from_millis(4_900)))
    });
    let refused = n1.add("shop/p", "A").await.unwrap_err();
    assert!(matches!(refused, Refusal::Store(_)), "{refused}");
    assert!(world.lease("shop/p").is_none(), "{}", world.show());
    world.audit();
}

/// What is undone then is what was bound last.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_and_cannot_be_given_is_undone() {
    let (world, _, n2) = one_ahead();
    let mut gate = n2.way.pause(On::Commit(0), Side::After);
    let slow = in_background(&n2, "A");
    gate.reached().await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    gate.resume();
    let added = slow.await.unwrap().unwrap();
    ops::undo(&n2.context(Duration::from_secs(3)), &added).await.unwrap();
    assert!(world.lease("shop/p").is_none(), "{}", world.show());
    world.audit();
}

/// A world with two nodes, of which the first's clock is five minutes ahead.
fn one_ahead() -> (World, Arc<Node>, Arc<Node>) {
    let world = one();
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    n1.clock.skew.store(300_000, std::sync::atomic::Ordering::Relaxed);
    (world, Arc::new(n1), Arc::new(n2))
}

/// A pass notes the lease: it is not what was sent any more.
fn note(world: &World, pod: &str) -> Revision {
    let held = world.lease(pod).unwrap();
    let mut noted = held.value.clone();
    noted.seen = Some(Seen { controller: Some("StatefulSet.apps/p".into()), ..Seen::default() });
    let Outcome::Applied(revision) = world.apply_txn(&changes::note(&held, &noted)) else { panic!() };
    revision
}

async fn undo(node: &Node, added: &ops::Added) {
    ops::undo(&node.context(Duration::from_secs(5)), added).await.unwrap();
}

fn in_background(node: &Arc<Node>, container: &str) -> tokio::task::JoinHandle<Result<ops::Added, Refusal>> {
    let (node, request) = (node.clone(), node.ask("shop/p", container));
    tokio::spawn(async move { node.run(&request).await })
}

/// Nor is it given to a caller without a pod, whose name comes again on another node.
#[tokio::test(start_paused = true)]
async fn without_a_pod_too_an_answer_that_comes_after_the_take_over_is_not_given() {
    let (world, n1, n2) = one_ahead();
    let mut gate = n2.way.pause(On::Commit(0), Side::After);
    let slow = tokio::spawn({
        let n2 = n2.clone();
        async move { n2.add("_/X", "X").await }
    });
    gate.reached().await;
    n1.gets("_/X", "X").await;
    gate.resume();
    let refused = slow.await.unwrap().unwrap_err();
    assert!(matches!(refused, Refusal::NewerSandbox { .. }), "{refused}");
    assert_eq!(world.lease("_/X").unwrap().value.bound().unwrap().node.as_str(), "n1");
    world.audit();
}

/// A pass notes the lease between the answer that nobody reads and its undo.
#[tokio::test(start_paused = true)]
async fn an_undo_ends_also_what_a_pass_has_noted_since() {
    let world = one();
    let n1 = world.node("n1");
    let added = n1.add("shop/p", "A").await.unwrap();
    note(&world, "shop/p");
    undo(&n1, &added).await;
    assert!(world.lease("shop/p").is_none(), "{}", world.show());
    // The same container came again since: what stands is another's answer.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let added = n1.add("_/X", "X").await.unwrap();
    n1.gets("_/X", "X").await;
    undo(&n1, &added).await;
    assert!(bound_to(&world, "_/X", "X"));
    world.audit();
}

/// A container that runs is asked for again, a pass notes its lease meanwhile, and the answer is not read.
#[tokio::test(start_paused = true)]
async fn an_undo_leaves_what_stood_before_its_add() {
    let world = one();
    let n1 = Arc::new(world.node("n1"));
    n1.gets("_/X", "X").await;
    let mut gate = n1.way.pause(On::Commit(1), Side::Before);
    let again = tokio::spawn({
        let n1 = n1.clone();
        async move { n1.add("_/X", "X").await }
    });
    gate.reached().await;
    note(&world, "_/X");
    gate.resume();
    undo(&n1, &again.await.unwrap().unwrap()).await;
    assert!(bound_to(&world, "_/X", "X"), "{}", world.show());
    world.audit();
}

/// Under ptp with `nodeLost: keep` nobody could ever take a mark away again: it is left only where somebody may answer.
#[tokio::test(start_paused = true)]
async fn an_undone_take_over_of_a_dead_sandbox_leaves_no_mark() {
    for (sticky, next) in [("always", "shop/p"), ("never", "shop/q")] {
        let mut document = pool("x", &["10.0.0.0/24 10.0.0.10-10.0.0.10"]);
        (document.sticky, document.node_lost) = (Some(sticky.into()), Some("keep".into()));
        let world = World::new(&[document]);
        let n1 = world.node("n1");
        *n1.wire.nowhere.lock().unwrap() = true;
        n1.gets("shop/p", "A").await;
        let added = n1.add("shop/p", "B").await.unwrap();
        undo(&n1, &added).await;
        assert!(!world.show().contains("unconfirmed"), "{}", world.show());
        assert_eq!(n1.gets(next, "C").await, "10.0.0.10");
        world.audit();
    }
}

/// An ADD that finds its own lease after a conflict knows what it took it from.
#[tokio::test(start_paused = true)]
async fn an_undo_after_a_conflict_leaves_a_mark_if_the_sandbox_before_may_live() {
    for before in [None, Some("n1"), Some("n2")] {
        let world = one();
        let n2 = Arc::new(world.node("n2"));
        if let Some(before) = before {
            world.node(before).gets("shop/p", "A").await;
            tokio::time::sleep(Duration::from_secs(1500)).await;
        }
        n2.way.fail(On::Commit(0), Fault::AnswerLost);
        let mut gate = n2.way.pause(On::Commit(0), Side::After);
        let slow = in_background(&n2, "B");
        gate.reached().await;
        note(&world, "shop/p");
        gate.resume();
        undo(&n2, &slow.await.unwrap().unwrap()).await;
        let mark = if before == Some("n1") { " unconfirmed" } else { "" };
        assert_eq!(world.show(), format!("R 10.0.0.10 by shop/p{mark}"), "{before:?}");
        world.audit();
    }
}

/// A pass gives the lease of a node back that seems lost, while that node's ADD has yet to answer. Who takes it next listens
/// when that sandbox can be heard.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_given_back_a_moment_after_it_was_bound_is_not_taken_before_that_sandbox_is_heard() {
    let mut document = pool("x", &["10.0.0.0/24 10.0.0.10-10.0.0.10"]);
    document.sticky = Some("always".into());
    let world = World::new(&[document]);
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    n1.gets("shop/p", "A").await;
    assert!(world.reap(&world.judge("shop/p")));
    let began = Instant::now();
    n2.gets("shop/p", "B").await;
    assert!(began.elapsed() > Duration::from_secs(5), "{:?}", began.elapsed());
    // A sandbox of long ago is heard at once, and what a DEL has ended needs no ear.
    tokio::time::sleep(Duration::from_secs(1500)).await;
    assert!(world.reap(&world.judge("shop/p")));
    let began = Instant::now();
    n1.gets("shop/p", "C").await;
    n1.del("shop/p", "C").await;
    n2.gets("shop/p", "D").await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    world.audit();
}

/// The clock of a node that died was nine minutes ahead: what it bound just before is not of the future for so long.
#[tokio::test(start_paused = true)]
async fn a_lease_that_this_node_saw_long_ago_is_not_new_whatever_the_other_clock_said() {
    let world = one();
    let (n1, mut n2) = (world.node("n1"), world.node("n2"));
    n1.clock.skew.store(540_000, std::sync::atomic::Ordering::Relaxed);
    n1.gets("shop/p", "A").await;
    let refused = n2.add("shop/p", "B").await.unwrap_err();
    assert!(matches!(refused, Refusal::NewerSandbox { .. }), "{refused}");
    n2.memory = refused.memory().unwrap().clone();
    tokio::time::sleep(Duration::from_secs(9)).await;
    let refused = n2.add("shop/p", "B").await.unwrap_err();
    assert!(matches!(refused, Refusal::NewerSandbox { .. }), "{refused}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    n2.wire.hears("10.0.0.10");
    let refused = n2.add("shop/p", "B").await.unwrap_err();
    assert!(matches!(refused, Refusal::StillAnswers { .. }), "{refused}");
    n2.wire.answering.lock().unwrap().clear();
    n2.gets("shop/p", "B").await;
    world.audit();
}

/// The same, where the pool was moved to another subnet in between: the pod that lives loses nothing, though nobody would
/// take its address (found by the simulation, seed 274859).
#[tokio::test(start_paused = true)]
async fn a_moved_pool_does_not_take_the_lease_from_the_node_where_its_pod_answers() {
    let world = one();
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    n1.gets("shop/p", "A").await;
    world.apply(&pool("x", &["10.1.0.0/24 10.1.0.10-10.1.0.10"]));
    tokio::time::sleep(Duration::from_secs(60)).await;
    n2.wire.hears("10.0.0.10");
    let refused = n2.add("shop/p", "B").await.unwrap_err();
    assert!(matches!(refused, Refusal::StillAnswers { .. }), "{refused}");
    assert!(bound_to(&world, "shop/p", "A"));
    // On its own node that kubelet knows.
    n1.wire.hears("10.0.0.10");
    n1.gets("shop/p", "A2").await;
    assert!(bound_to(&world, "shop/p", "A2"));
    world.audit();
    // The node is gone: its successor gets an address of the pool as it is.
    let world = one();
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    n1.gets("shop/p", "A").await;
    world.apply(&pool("x", &["10.1.0.0/24 10.1.0.10-10.1.0.10"]));
    tokio::time::sleep(Duration::from_secs(60)).await;
    n2.gets("shop/p", "B").await;
    assert!(world.show().contains("10.1.0.10"), "{}", world.show());
    world.audit();
}

/// Rule `touch`: `same` writes for a caller without a pod, so the unanswered DEL of its last life fails `L=r`.
#[tokio::test(start_paused = true)]
async fn a_del_that_lands_after_the_same_container_came_again_ends_nothing() {
    let world = one();
    let n1 = Arc::new(world.node("n1"));
    n1.gets("_/X", "X").await;
    n1.way.fail(On::Commit(1), Fault::InFlight);
    let del = tokio::spawn({
        let n1 = n1.clone();
        async move { n1.try_del(None, "X").await }
    });
    while n1.way.held() == 0 {
        tokio::task::yield_now().await;
    }
    del.abort();
    n1.gets("_/X", "X").await;
    assert!(matches!(n1.way.deliver(0).await, Some(Outcome::Conflict(_))));
    assert!(bound_to(&world, "_/X", "X"));
    world.audit();
}

/// Rule `probe_reap`: a verdict leaves the address unconfirmed (`changes::unbind`), and `Search::probe` asks.
#[tokio::test(start_paused = true)]
async fn a_lost_node_that_still_answers_keeps_its_address_from_strangers() {
    let world = one();
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    n1.gets("shop/p", "A").await;
    assert!(world.reap(&world.judge("shop/p")));
    n2.wire.hears("10.0.0.10");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let refused = n2.add("shop/q", "Q").await.unwrap_err();
    assert!(matches!(refused, Refusal::Full { .. } | Refusal::Cooling { .. }), "{refused}");
    assert_eq!(world.show(), "R 10.0.0.10 by shop/p unconfirmed declined 02:00:00:00:00:99");
    // Its own pod, too, is told: the mark is on the address, whoever asks.
    let refused = n2.add("shop/p", "B").await.unwrap_err();
    assert!(matches!(refused, Refusal::Full { .. } | Refusal::Cooling { .. }), "{refused}");
    world.audit();
}

/// Rule `probe_first`: `search` probes before it commits, so a newcomer that dies in between leaves the mark.
#[tokio::test(start_paused = true)]
async fn a_newcomer_that_dies_between_probe_and_commit_leaves_the_mark() {
    let world = one();
    let n1 = world.node("n1");
    n1.gets("shop/p", "A").await;
    assert!(world.reap(&world.judge("shop/p")));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let n2 = Arc::new(world.node("n2"));
    // The first commit guesses that the address was never used; the second knows.
    let mut gate = n2.way.pause(On::Commit(1), Side::Before);
    let newcomer = tokio::spawn({
        let n2 = n2.clone();
        async move { n2.add("shop/q", "Q1").await }
    });
    gate.reached().await;
    newcomer.abort();
    let _ = newcomer.await;
    assert_eq!(world.show(), "R 10.0.0.10 by shop/p unconfirmed");
    let n3 = world.node("n3");
    n3.wire.hears("10.0.0.10");
    assert!(n3.add("shop/q", "Q2").await.is_err());
    assert_eq!(world.show(), "R 10.0.0.10 by shop/p unconfirmed declined 02:00:00:00:00:99");
    world.audit();
}

/// Rule `mark_kept`: `unbind` writes the mark into a sticky lease, `probe_own` asks before it goes, `move_lease` and
/// `take_over_elsewhere` hand it on.
#[tokio::test(start_paused = true)]
async fn the_mark_stays_with_a_held_lease_until_the_wire_was_silent() {
    let sticky = |bounds: &str| {
        let mut document = pool("x", &[&format!("10.0.0.0/24 {bounds}-{bounds}")]);
        document.sticky = Some("always".into());
        document
    };
    let marked = async || {
        let world = World::new(&[sticky("10.0.0.10")]);
        world.node("n1").gets("shop/p", "A").await;
        assert!(world.reap(&world.judge("shop/p")));
        assert!(world.lease("shop/p").unwrap().value.unconfirmed);
        world
    };
    // The own pod, on the same node or another.
    for node in ["n1", "n2"] {
        let world = marked().await;
        let node = world.node(node);
        node.wire.hears("10.0.0.10");
        assert!(matches!(node.add("shop/p", "B").await, Err(Refusal::StillAnswers { .. })));
        assert!(world.lease("shop/p").unwrap().value.unconfirmed);
        node.wire.answering.lock().unwrap().clear();
        node.gets("shop/p", "B").await;
        assert!(!world.lease("shop/p").unwrap().value.unconfirmed);
    }
    // Moved to another pod.
    let world = marked().await;
    let txn = changes::move_lease(&world.lease("shop/p").unwrap(), &id("shop/q"), Timestamp(1)).unwrap();
    assert!(matches!(world.apply_txn(&txn), Outcome::Applied(_)));
    let n2 = world.node("n2");
    n2.wire.hears("10.0.0.10");
    assert!(matches!(n2.add("shop/q", "Q").await, Err(Refusal::StillAnswers { .. })));
    // Given back.
    assert!(world.reap(&world.judge("shop/q")));
    assert_eq!(world.show(), "R 10.0.0.10 by shop/q unconfirmed");
    // Left for another address.
    let world = marked().await;
    world.apply(&sticky("10.0.0.20"));
    world.node("n2").gets("shop/p", "B").await;
    assert!(world.show().contains("R 10.0.0.10 by shop/p unconfirmed"), "{}", world.show());
    world.audit();
}

/// Rule `cmp_R`: `Txn::take` compares the released key, so an address that came and went in between is not taken
/// before its cool-down.
#[tokio::test(start_paused = true)]
async fn an_address_that_was_used_and_given_back_since_the_look_is_not_taken_hot() {
    let world = one();
    let n2 = Arc::new(world.node("n2"));
    let mut gate = n2.way.pause(On::Commit(0), Side::Before);
    let newcomer = tokio::spawn({
        let n2 = n2.clone();
        async move { n2.add("shop/q", "Q").await }
    });
    gate.reached().await;
    let n1 = world.node("n1");
    n1.gets("shop/p", "A").await;
    n1.del("shop/p", "A").await;
    let released = tokio::time::Instant::now();
    gate.resume();
    newcomer.await.unwrap().unwrap();
    assert!(released.elapsed() >= Duration::from_millis(4_900), "{:?}", released.elapsed());
    world.audit();
}

/// Rule `undo_cmp`: `undo` compares the revision that its own run wrote; also if its message lands late.
#[tokio::test(start_paused = true)]
async fn an_undo_does_not_take_the_lease_of_the_retry() {
    let world = one();
    let n1 = Arc::new(world.node("n1"));
    let added = n1.add("shop/p", "A").await.unwrap();
    n1.way.fail(On::Commit(1), Fault::InFlight);
    let undo = tokio::spawn({
        let n1: Arc<Node> = n1.clone();
        async move { ops::undo(&n1.context(Duration::from_secs(5)), &added).await }
    });
    while n1.way.held() == 0 {
        tokio::task::yield_now().await;
    }
    n1.gets("shop/p", "B").await;
    assert!(matches!(n1.way.deliver(0).await, Some(Outcome::Conflict(_))));
    undo.await.unwrap().unwrap();
    assert!(bound_to(&world, "shop/p", "B"));
    world.audit();
}

/// The reaper compares the lease's own revision: whatever an ADD or a DEL did since it looked keeps the lease.
#[tokio::test(start_paused = true)]
async fn b048_b049_a_verdict_on_a_lease_that_was_touched_since_changes_nothing() {
    let world = one();
    let n1 = world.node("n1");
    n1.gets("shop/p", "A").await;
    let judged = world.judge("shop/p");
    n1.gets("shop/p", "B").await;
    assert!(!world.reap(&judged));
    assert!(bound_to(&world, "shop/p", "B"));
    // Released and leased again by the same pod in between.
    let judged = world.judge("shop/p");
    n1.del("shop/p", "B").await;
    n1.gets("shop/p", "C").await;
    assert!(!world.reap(&judged));
    assert!(bound_to(&world, "shop/p", "C"));
    world.audit();
}
