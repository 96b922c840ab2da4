//! Each store call of each change fails in turn: before it is sent, with its answer lost, applied only later, or as
//! the last thing that its process did. Nothing that the audit finds, nothing that leaks, and the next ADD of the pod
//! is right.

use std::time::Duration;

use leasehold::{
    domain::{
        lease::{Binding, Lease, LeasedAddress, Timestamp},
        names::{DomainName, PoolName},
        pool::{Draft, Pool},
    },
    ops::{self, Added, Refusal, commit::surely},
    store::{
        Outcome, Read, StoreError, Txn, Write, changes,
        changes::Take,
        testing::{Fault, FaultyStore, On, Side},
    },
};
use tokio::time::Instant;

use super::world::{Node, World, faults, id, ip, pool};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Op {
    New,
    NewWithoutPod,
    TakeOver,
    FromElsewhere,
    Unfit,
    Held,
    SameWithoutPod,
    SameWithPod,
    Cooled,
    Del,
    DelSticky,
    Gc,
    Undo,
    UndoTakeOver,
}

const ALL: [Op; 14] = [
    Op::New,
    Op::NewWithoutPod,
    Op::TakeOver,
    Op::FromElsewhere,
    Op::Unfit,
    Op::Held,
    Op::SameWithoutPod,
    Op::SameWithPod,
    Op::Cooled,
    Op::Del,
    Op::DelSticky,
    Op::Gc,
    Op::Undo,
    Op::UndoTakeOver,
];

impl Op {
    const fn without_pod(self) -> bool {
        matches!(self, Self::NewWithoutPod | Self::SameWithoutPod)
    }

    const fn sticky(self) -> bool {
        matches!(self, Self::Held | Self::DelSticky)
    }

    const fn ends(self) -> bool {
        matches!(self, Self::Del | Self::DelSticky | Self::Gc | Self::Undo | Self::UndoTakeOver)
    }

    const fn pod(self) -> &'static str {
        if self.without_pod() { "_/x1" } else { "shop/a" }
    }

    /// The container of the run under test, and that of the pod's next ADD.
    const fn containers(self) -> (&'static str, &'static str) {
        if self.without_pod() { ("x1", "x1") } else { ("c1", "c2") }
    }
}

struct Stage {
    world: World,
    node: Node,
    added: Option<Added>,
}

async fn set_up(op: Op) -> Stage {
    let mut document = pool("p", &["10.0.0.0/24 10.0.0.10-10.0.0.12", "fd00::/64 fd00::10-fd00::12"]);
    if op.sticky() {
        document.sticky = Some("always".into());
    }
    let world = World::new(&[document.clone()]);
    let node = world.node("n1");
    let (pod, (container, _)) = (op.pod(), op.containers());
    let mut added = None;
    match op {
        Op::New | Op::NewWithoutPod => {}
        Op::TakeOver => {
            node.gets(pod, "c0").await;
        }
        Op::FromElsewhere => {
            world.node("n0").gets(pod, "c0").await;
            tokio::time::sleep(Duration::from_secs(20)).await;
        }
        Op::Unfit => {
            node.gets(pod, "c0").await;
            document.ranges[0].start = Some("10.0.0.20".into());
            document.ranges[0].end = Some("10.0.0.21".into());
            world.apply(&document);
        }
        Op::Held => {
            node.gets(pod, "c0").await;
            node.del(pod, "c0").await;
        }
        Op::Cooled => {
            for other in 0..3 {
                node.gets(&format!("shop/o{other}"), &format!("o{other}")).await;
            }
            for other in 0..3 {
                node.del(&format!("shop/o{other}"), &format!("o{other}")).await;
            }
            tokio::time::sleep(Duration::from_secs(6)).await;
        }
        Op::SameWithoutPod | Op::SameWithPod | Op::Del | Op::DelSticky | Op::Gc => {
            node.gets(pod, container).await;
        }
        Op::Undo => added = Some(node.add(pod, container).await.unwrap()),
        Op::UndoTakeOver => {
            node.gets(pod, "c0").await;
            added = Some(node.add(pod, container).await.unwrap());
        }
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    // A process of its own: its calls are counted from 0.
    let node = Node { way: FaultyStore::new(world.store.clone()), ..node };
    Stage { world, node, added }
}

async fn act(op: Op, stage: &Stage) -> Result<(), Refusal> {
    let (pod, (container, _)) = (op.pod(), op.containers());
    let node = &stage.node;
    if let Some(added) = &stage.added {
        return ops::undo(&node.context(Duration::from_secs(5)), added).await;
    }
    if matches!(op, Op::Del | Op::DelSticky) {
        return node.try_del(Some(pod), container).await.map(|_| ());
    }
    if op == Op::Gc {
        return node.gc(&[]).await.map(|_| ());
    }
    node.add(pod, container).await.map(|_| ())
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Once(Fault),
    From(Fault),
    Gone,
    GoneInFlight,
}

const MODES: [Mode; 11] = [
    Mode::Once(Fault::NotReached),
    Mode::Once(Fault::Refused),
    Mode::Once(Fault::Lost),
    Mode::Once(Fault::AnswerLost),
    Mode::Once(Fault::Late),
    Mode::From(Fault::NotReached),
    Mode::From(Fault::Lost),
    Mode::From(Fault::AnswerLost),
    Mode::From(Fault::Late),
    Mode::Gone,
    Mode::GoneInFlight,
];

/// When what is held back arrives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ArrivesAfter {
    TheRun,
    TheNextAdd,
    ItsDel,
}

fn bound_to(world: &World, pod: &str, container: &str) -> bool {
    world
        .lease(pod)
        .is_some_and(|l| l.value.bound().is_some_and(|stamp| stamp.container.as_str() == container))
}

async fn one(op: Op, call: usize, mode: Mode, arrives: ArrivesAfter) {
    let what = format!("{op:?}, call {call} {mode:?}, {arrives:?}");
    let stage = set_up(op).await;
    let Stage { world, node, .. } = &stage;
    let audit = |at: &str| {
        let found = faults(&world.store);
        assert!(found.is_empty(), "{what}: {at}: {found:#?}\n{}", world.show());
    };
    let (pod, (container, next)) = (op.pod(), op.containers());
    let result = match mode {
        Mode::Once(fault) => {
            node.way.fail(On::Call(call), fault);
            Some(act(op, &stage).await)
        }
        Mode::From(fault) => {
            node.way.fail(On::From(call), fault);
            Some(act(op, &stage).await)
        }
        Mode::Gone | Mode::GoneInFlight => {
            if matches!(mode, Mode::GoneInFlight) {
                node.way.fail(On::Call(call), Fault::InFlight);
            }
            let side = if matches!(mode, Mode::Gone) { Side::After } else { Side::Before };
            let mut gate = node.way.pause(On::Call(call), side);
            tokio::select! {
                biased;
                () = async {
                    gate.reached().await;
                    if matches!(mode, Mode::GoneInFlight) {
                        gate.resume();
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                } => None,
                result = act(op, &stage) => Some(result),
            }
        }
    };
    node.way.heal();
    audit("after the run");
    let unanswered = matches!(result, Some(Err(Refusal::Store(StoreError::Unanswered { .. }))));
    if unanswered {
        assert!(!node.way.sent().is_empty(), "{what}: unanswered, and nothing was sent");
    }
    let deliver = async |at: ArrivesAfter| {
        if arrives != at {
            return;
        }
        let before = node.way.held();
        for outcome in node.way.deliver_all().await.into_iter().flatten() {
            let landed = matches!(outcome, Outcome::Applied(_));
            // A caller that was told anything else than "unanswered" leaves no journal entry.
            let told = result.is_some() && !unanswered;
            assert!(!(landed && told), "{what}: landed after {result:?}\n{}", world.show());
        }
        let _ = before;
        audit("after the delivery");
    };
    deliver(ArrivesAfter::TheRun).await;
    if let Some(Ok(())) = result {
        let bound = bound_to(world, pod, container);
        assert_eq!(bound, !op.ends(), "{what}: {result:?}\n{}", world.show());
    } else if let Some(Err(_)) = result
        && !unanswered
        && !op.ends()
        && !matches!(op, Op::SameWithoutPod | Op::SameWithPod)
    {
        assert!(!bound_to(world, pod, container), "{what}: {result:?}\n{}", world.show());
    }

    tokio::time::sleep(Duration::from_secs(1)).await;
    let later = world.node("n1");
    let got = later.add(pod, next).await;
    assert!(got.is_ok(), "{what}: next ADD: {got:?}\n{}", world.show());
    audit("after the next ADD");
    assert!(bound_to(world, pod, next), "{what}\n{}", world.show());
    let addresses = world.lease(pod).unwrap().value.addresses;
    deliver(ArrivesAfter::TheNextAdd).await;
    let still = world.lease(pod).map(|lease| lease.value.addresses);
    assert_eq!(still, Some(addresses), "{what}: a late message took the next container's lease");
    if !op.without_pod() {
        // What the journal or the runtime does to the container of the run that failed.
        later.del(pod, container).await;
        later.del(pod, "c0").await;
        assert!(bound_to(world, pod, next), "{what}: a late DEL took the next container's lease");
    }
    assert!(later.del(pod, next).await, "{what}");
    audit("after the DEL");
    deliver(ArrivesAfter::ItsDel).await;
    let _ = later.try_del(Some(pod), container).await.unwrap();
    audit("at the end");
    assert_eq!(world.lease(pod).is_some(), op.sticky(), "{what}\n{}", world.show());
    assert!(!world.show().contains("T "), "{what}\n{}", world.show());
    assert_eq!(world.show().contains("A "), op.sticky(), "{what}\n{}", world.show());
}

#[tokio::test(start_paused = true)]
async fn each_call_of_add_del_gc_and_undo_may_fail() {
    for op in ALL {
        let stage = set_up(op).await;
        act(op, &stage).await.unwrap();
        let calls = stage.node.way.calls();
        assert!(calls > 0, "{op:?} makes no call");
        for call in 0..calls {
            for mode in MODES {
                for arrives in [ArrivesAfter::TheRun, ArrivesAfter::TheNextAdd, ArrivesAfter::ItsDel] {
                    one(op, call, mode, arrives).await;
                }
            }
        }
    }
}

/// What a person does, sent until it is answered.
fn persons(world: &World) -> Vec<(&'static str, Txn)> {
    let domain = DomainName::new("default").unwrap();
    let address = |text: &str| LeasedAddress {
        address: ip(text),
        domain: domain.clone(),
        pool: Some(PoolName::new("p").unwrap()),
    };
    let lease = Lease {
        id: id("shop/r"),
        addresses: vec![address("10.0.0.10")],
        binding: Binding::Idle(None),
        since: Timestamp(1),
        created: Timestamp(1),
        sticky: false,
        reserved: true,
        unconfirmed: false,
        seen: None,
    };
    let take = Take { address: lease.addresses[0].clone(), released: None };
    let held = world.lease("shop/h").unwrap();
    let mut document = pool("q", &["10.1.0.0/24"]);
    document.serves = vec!["shop/a".into(), "shop/b".into(), "till/*".into()];
    let made = Pool::from_draft(&Draft::from(&document)).unwrap();
    let mut all = vec![
        ("reserve", changes::reserve(&lease, &[take], &[])),
        (
            "reserve a device",
            changes::reserve_device(&domain, ip("10.0.0.11"), None, "printer", Timestamp(1)),
        ),
        ("move", changes::move_lease(&held, &id("shop/m"), Timestamp(1)).unwrap()),
        ("release", changes::release(&held, None, Timestamp(1)).0),
        ("note", changes::note(&held, &held.value)),
        ("apply", changes::apply_pool(&document, &made, None, &[])),
    ];
    for (_, txn) in &mut all {
        txn.otherwise = txn.writes.iter().filter_map(Write::key).cloned().map(Read::Get).collect();
    }
    all
}

#[tokio::test(start_paused = true)]
async fn each_call_of_what_a_person_does_may_fail() {
    let fresh = || async {
        let mut document = pool("p", &["10.0.0.0/24 10.0.0.10-10.0.0.13"]);
        document.sticky = Some("always".into());
        let world = World::new(&[document]);
        let node = world.node("n1");
        let mut request = node.ask("shop/h", "h1");
        request.requested = vec![ip("10.0.0.13")];
        node.run(&request).await.unwrap();
        node.del("shop/h", "h1").await;
        world
    };
    for index in 0..persons(&fresh().await).len() {
        for fault in [Fault::NotReached, Fault::Refused, Fault::Lost, Fault::AnswerLost, Fault::Late] {
            for forever in [false, true] {
                let world = fresh().await;
                let (what, txn) = persons(&world).swap_remove(index);
                let way = FaultyStore::new(world.store.clone());
                way.fail(if forever { On::From(0) } else { On::Call(0) }, fault);
                let end = surely(&way, &txn, Instant::now() + Duration::from_secs(5)).await;
                world.audit();
                let stands = |world: &World| {
                    txn.writes.iter().flat_map(Write::parts).all(|write| match write {
                        Write::Put(key, value) => world.store.dump().get(key) == Some(value),
                        Write::Delete(key) => !world.store.dump().contains_key(key),
                        Write::If(..) => panic!("a condition inside a condition"),
                    })
                };
                let text = format!("{what} {fault:?} {forever}: {end:?}");
                match &end {
                    Ok(sent) => {
                        assert!(matches!(sent, ops::commit::Sent::Applied(_)), "{text}");
                        assert!(stands(&world), "{text}");
                    }
                    Err(StoreError::Unanswered { .. }) => assert!(!way.sent().is_empty()),
                    Err(_) => assert_eq!(way.held(), 0, "{text}"),
                }
                for outcome in way.deliver_all().await {
                    let landed = matches!(outcome, Some(Outcome::Applied(_)));
                    assert!(!(landed && end.is_ok()), "{text}");
                }
                world.audit();
            }
        }
    }
}
