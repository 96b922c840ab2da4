//! What ADD, DEL, CHECK and GC do, a sentence each; field cases by their id.

use std::{sync::atomic::Ordering, time::Duration};

use leasehold::{
    domain::{
        lease::{Binding, Lease, LeasedAddress, Seen, Timestamp},
        names::{BootId, ContainerId, DomainName, IfName, PoolName, StoreId, Uid},
        pool::Range,
    },
    ops::{self, Add, Clock as _, Inline, Refusal},
    store::{
        Key, Outcome, Revision, changes,
        changes::Take,
        keys,
        record::{self, PoolDocument},
        testing::{Fault, FaultyStore, On, Side},
    },
};

use super::world::{Node, World, addresses, asked, draft, id, ip, pool, range};

fn r4() -> PoolDocument {
    pool("r4", &["10.0.0.0/24 10.0.0.10-10.0.0.13"])
}

fn r2() -> PoolDocument {
    pool("r2", &["10.0.0.0/24 10.0.0.10-10.0.0.11"])
}

fn r1() -> PoolDocument {
    pool("r1", &["10.0.0.0/24 10.0.0.10-10.0.0.10"])
}

fn sticky(mut document: PoolDocument) -> PoolDocument {
    document.sticky = Some("always".into());
    document
}

fn with(mut document: PoolDocument, change: impl FnOnce(&mut PoolDocument)) -> PoolDocument {
    change(&mut document);
    document
}

fn dual() -> PoolDocument {
    pool("dual", &["10.0.0.0/24 10.0.0.10-10.0.0.13", "fd00:9::/64 fd00:9::10-fd00:9::13"])
}

/// A person reserves an address for a pod, past all actors.
fn reserve(world: &World, pod: &str, addresses: &[&str], pool: &str) {
    let lease = Lease {
        id: id(pod),
        addresses: addresses
            .iter()
            .map(|address| LeasedAddress {
                address: ip(address),
                domain: DomainName::new("default").unwrap(),
                pool: Some(PoolName::new(pool).unwrap()),
            })
            .collect(),
        binding: Binding::Idle(None),
        since: Timestamp(1),
        created: Timestamp(1),
        sticky: false,
        reserved: true,
        unconfirmed: false,
        seen: None,
    };
    let takes: Vec<Take> =
        lease.addresses.iter().map(|a| Take { address: a.clone(), released: None }).collect();
    assert!(matches!(world.apply_txn(&changes::reserve(&lease, &takes, &[])), Outcome::Applied(_)));
}

fn released_at(address: &str) -> Key {
    keys::released(&DomainName::new("default").unwrap(), ip(address))
}

fn held_at(address: &str) -> Key {
    keys::address(&DomainName::new("default").unwrap(), ip(address))
}

#[tokio::test(start_paused = true)]
async fn a_first_add_leases_an_address_in_one_commit() {
    let world = World::new(&[r1()]);
    let n1 = world.node("n1");
    assert_eq!(n1.gets("shop/web", "c1").await, "10.0.0.10");
    assert_eq!(
        world.show(),
        "A 10.0.0.10 shop/web\nT c1 on n1 shop/web\nL shop/web bound 10.0.0.10 c1 on n1"
    );
    assert_eq!(n1.way.commits(), 1);
    assert_eq!(n1.way.calls(), 3);
    let changes = n1.trail.changes.lock().unwrap();
    assert_eq!((changes[0].what, changes[0].why.as_str()), ("lease.bound", "first ADD"));
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b021_b113_the_same_container_of_a_pod_is_answered_again_without_a_write() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    let first = n1.add("shop/web", "c1").await.unwrap();
    let before = world.store.revision();
    let again = n1.add("shop/web", "c1").await.unwrap();
    assert_eq!(again.answer, first.answer);
    assert!(!again.wrote());
    assert_eq!(n1.way.commits(), 1);
    assert_eq!(world.store.revision(), before);
}

#[tokio::test(start_paused = true)]
async fn b021_the_same_container_is_told_when_its_pool_has_moved_and_what_to_do_helps() {
    let moved = pool("r4", &["10.9.0.0/24 10.9.0.10-10.9.0.13"]);
    let elsewhere = with(moved.clone(), |pool| pool.domain = Some("other".into()));
    for now in [moved, elsewhere] {
        let world = World::new(&[r4()]);
        let n1 = world.node("n1");
        let first = n1.add("shop/web", "c1").await.unwrap();
        let address = first.answer.addresses[0].address;
        world.apply(&now);
        let before = world.store.dump();
        assert_eq!(
            n1.add("shop/web", "c1").await.unwrap_err(),
            Refusal::PoolMoved { address, pool: "r4".into() }
        );
        assert_eq!(world.store.dump(), before);
        world.apply(&r4());
        assert_eq!(n1.add("shop/web", "c1").await.unwrap().answer, first.answer);
        world.apply(&now);
        assert!(n1.gets("shop/web", "c2").await.starts_with("10.9.0."));
        world.audit();
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_a_pod_rewrites_its_lease() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    let first = n1.gets("_/x1", "x1").await;
    let before = world.lease("_/x1").unwrap();
    assert_eq!(n1.gets("_/x1", "x1").await, first);
    let after = world.lease("_/x1").unwrap();
    assert!(after.revision > before.revision);
    assert!(!after.value.sticky);
    assert!(n1.try_del(None, "x1").await.unwrap().lease.is_some());
    assert_eq!(world.lease("_/x1"), None);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b020_the_pods_own_lease_is_taken_over_on_its_node_unasked_also_when_the_pool_is_full() {
    let world = World::new(&[r2()]);
    let n1 = world.node("n1");
    let (a, b) = (n1.gets("shop/a", "a1").await, n1.gets("shop/b", "b1").await);
    assert_eq!((n1.gets("shop/a", "a2").await, n1.gets("shop/b", "b2").await), (a, b));
    assert!(n1.wire.asked().is_empty());
    assert!(!world.show().contains("T a1"));
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b002_b053_b069_a_lease_is_taken_over_from_another_node_when_the_wire_is_silent() {
    let world = World::new(&[sticky(r1())]);
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    n1.gets("shop/db-0", "c1").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut request = n2.ask("shop/db-0", "c2");
    request.uid = Some(Uid::new("u2").unwrap());
    assert_eq!(addresses(&n2.run(&request).await.unwrap()), "10.0.0.10");
    assert_eq!(n2.wire.asked(), ["10.0.0.10"]);
    let lease = world.lease("shop/db-0").unwrap().value;
    assert_eq!(lease.bound().unwrap().uid, request.uid);
    assert_eq!(
        world.show(),
        "A 10.0.0.10 shop/db-0\nT c2 on n2 shop/db-0\nL shop/db-0 bound 10.0.0.10 c2 on n2 sticky"
    );
    assert!(!n1.del("shop/db-0", "c1").await);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_pods_own_address_that_still_answers_elsewhere_is_refused_with_the_mac_and_the_node() {
    let world = World::new(&[r4()]);
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    let address = n1.gets("shop/db-0", "c1").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    n2.wire.hears(&address);
    assert_eq!(
        n2.refused(&n2.ask("shop/db-0", "c2")).await,
        format!("{address} still answers at 02:00:00:00:00:99 (last on node n1)")
    );
    assert!(
        world.lease("shop/db-0").unwrap().value.bound().is_some_and(|stamp| stamp.container.as_str() == "c1")
    );
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn the_successor_of_a_pod_deleted_by_force_waits_on_its_own_node_until_the_old_one_is_silent() {
    let world = World::new(&[sticky(r1())]);
    let mut n1 = world.node("n1");
    let of = |uid: &str, container: &str| {
        let mut request = world.node("n1").ask("shop/db-0", container);
        request.uid = Some(Uid::new(uid).unwrap());
        request
    };
    n1.run(&of("u1", "c1")).await.unwrap();
    // A new sandbox of the same pod: its kubelet has ended the old one.
    n1.wire.hears("10.0.0.10");
    n1.run(&of("u1", "c2")).await.unwrap();
    assert!(n1.wire.asked().is_empty());
    assert!(n1.refused(&of("u2", "c3")).await.contains("still answers"));
    assert!(n1.del("shop/db-0", "c2").await);
    n1.wire.answering.lock().unwrap().clear();
    assert_eq!(addresses(&n1.run(&of("u2", "c4")).await.unwrap()), "10.0.0.10");
    assert_eq!(n1.wire.asked(), ["10.0.0.10"]);
    // No sandbox outlives a boot.
    n1.me.boot = Some(BootId::new("another").unwrap());
    n1.wire.hears("10.0.0.10");
    n1.run(&of("u3", "c5")).await.unwrap();
    assert!(n1.wire.asked().is_empty());
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_lease_bound_elsewhere_a_moment_ago_is_not_taken() {
    let world = World::new(&[r4()]);
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    n1.gets("shop/db-0", "c1").await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(n2.refused(&n2.ask("shop/db-0", "c2")).await.contains("a moment ago"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    n2.gets("shop/db-0", "c2").await;
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn where_nothing_can_be_probed_node_lost_decides() {
    for (rule, good) in [("free", true), ("keep", false)] {
        let world = World::new(&[with(r4(), |p| p.node_lost = Some(rule.into()))]);
        let (n1, n2) = (world.node("n1"), world.node("n2"));
        n1.gets("shop/db-0", "c1").await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        *n2.wire.nowhere.lock().unwrap() = true;
        let answer = n2.add("shop/db-0", "c2").await;
        assert_eq!(answer.is_ok(), good, "{rule}: {answer:?}");
        assert_eq!(n2.trail.notes.lock().unwrap().len(), usize::from(good));
        world.audit();
    }
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_address_goes_to_a_stranger_where_it_cannot_be_probed_only_if_node_lost_is_free() {
    for (rule, good) in [("free", true), ("keep", false)] {
        let world = World::new(&[with(r1(), |p| p.node_lost = Some(rule.into()))]);
        let (n1, n2) = (world.node("n1"), world.node("n2"));
        n1.gets("shop/a", "a1").await;
        assert!(world.reap(&world.judge("shop/a")));
        tokio::time::sleep(Duration::from_secs(60)).await;
        *n2.wire.nowhere.lock().unwrap() = true;
        let answer = n2.add("shop/b", "b1").await;
        assert_eq!(answer.is_ok(), good, "{rule}: {answer:?}");
        world.audit();
    }
}

/// Not the store is too late, nor are others faster: whoever the wire has takes the time.
#[tokio::test(start_paused = true)]
async fn an_add_whose_time_goes_into_asking_the_wire_says_so() {
    let world = World::new(&[with(pool("x", &["10.0.0.0/24"]), |p| p.probe = Some("always".into()))]);
    let n1 = world.node("n1");
    (1..255).for_each(|n| n1.wire.hears(&format!("10.0.0.{n}")));
    let refused = n1.add("shop/a", "a1").await.unwrap_err();
    assert_eq!(refused, Refusal::Contention { conflicts: 0, late: false });
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn probing_always_asks_for_every_new_address_and_never_asks_for_none() {
    for (rule, wanted) in [("always", 1), ("unconfirmed", 0), ("never", 0)] {
        let world = World::new(&[with(r4(), |p| p.probe = Some(rule.into()))]);
        let n1 = world.node("n1");
        let address = n1.gets("shop/a", "a1").await;
        assert_eq!(n1.wire.asked().len(), wanted, "{rule}");
        let n2 = world.node("n2");
        tokio::time::sleep(Duration::from_secs(60)).await;
        if rule == "never" {
            n2.wire.hears(&address);
        }
        n2.gets("shop/a", "a2").await;
        assert_eq!(n2.wire.asked().len(), usize::from(rule != "never"), "{rule}");
        world.audit();
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_on_which_a_stranger_answers_is_declined_and_another_taken() {
    let world = World::new(&[with(r2(), |p| p.probe = Some("always".into()))]);
    let n1 = world.node("n1");
    n1.wire.hears("10.0.0.10");
    assert_eq!(n1.gets("shop/a", "a1").await, "10.0.0.11");
    if n1.wire.asked().len() == 2 {
        assert!(
            world.show().contains("R 10.0.0.10 by shop/a declined 02:00:00:00:00:99"),
            "{}",
            world.show()
        );
    }
    let full = n1.refused(&n1.ask("shop/b", "b1")).await;
    assert!(full.contains("1 of 2") || full.contains("cooling"), "{full}");
    assert!(world.show().contains("R 10.0.0.10 by shop/"), "{}", world.show());
    // The stranger leaves; ten minutes later the address is offered again.
    n1.wire.answering.lock().unwrap().clear();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(n1.gets("shop/b", "b2").await, "10.0.0.10");
    assert_eq!(n1.wire.asked().last().unwrap(), "10.0.0.10");
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b064_b066_a_held_lease_comes_back_to_its_pod_and_to_nobody_else() {
    let world = World::new(&[with(r2(), |p| p.serves = vec!["shop/db".into(), "*/*".into()])]);
    let n1 = world.node("n1");
    let address = n1.gets("shop/db-0", "c0").await;
    for turn in 1..10 {
        assert!(n1.del("shop/db-0", &format!("c{}", turn - 1)).await);
        assert!(world.show().contains(&format!("L shop/db-0 held {address}")), "{}", world.show());
        assert!(!world.show().contains("T c"), "{}", world.show());
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let other = n1.gets("shop/x", &format!("x{turn}")).await;
        assert_ne!(other, address);
        n1.del("shop/x", &format!("x{turn}")).await;
        assert_eq!(n1.gets("shop/db-0", &format!("c{turn}")).await, address);
        assert!(n1.wire.asked().is_empty());
        world.audit();
    }
}

#[tokio::test(start_paused = true)]
async fn b068_the_own_held_lease_counts_before_the_pool_is_called_full() {
    let world = World::new(&[with(r1(), |p| p.serves = vec!["shop/db".into(), "*/*".into()])]);
    let n1 = world.node("n1");
    n1.gets("shop/db-0", "c1").await;
    n1.del("shop/db-0", "c1").await;
    let Err(Refusal::Full { pools, suspects }) = n1.add("shop/x", "x1").await else { panic!("not full") };
    assert_eq!(pools[0].to_string(), "1 of 1 addresses of r1 are taken");
    assert!(suspects[0].starts_with("10.0.0.10 shop/db-0 held since"), "{suspects:?}");
    n1.gets("shop/db-0", "c2").await;
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn dual_stack_is_one_transaction_all_or_nothing() {
    let world = World::new(&[with(dual(), |p| p.ranges[1] = range("fd00:9::/64 fd00:9::10-fd00:9::10"))]);
    let n1 = world.node("n1");
    let both = n1.gets("shop/a", "a1").await;
    assert!(both.contains(" fd00:9::10"), "{both}");
    assert_eq!(n1.way.sent().len(), 1);
    let Err(Refusal::Full { pools, .. }) = n1.add("shop/b", "b1").await else { panic!("not full") };
    assert_eq!((pools[0].used, pools[0].total), (1, 1));
    assert_eq!(world.lease("shop/b"), None);
    world.audit();
    n1.del("shop/a", "a1").await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(n1.gets("shop/b", "b2").await.ends_with("fd00:9::10"));
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b076_half_of_a_dual_stack_lease_is_kept_and_the_other_half_added() {
    let world = World::new(&[with(dual(), |p| {
        p.ranges.pop();
    })]);
    let n1 = world.node("n1");
    let first = n1.gets("shop/a", "a1").await;
    world.apply(&dual());
    let both = n1.gets("shop/a", "a2").await;
    assert!(both.starts_with(&format!("{first} fd00:9::")), "{both}");
    world.audit();
    // And back: the pool has one family again.
    world.apply(&with(dual(), |p| {
        p.ranges.pop();
    }));
    assert_eq!(n1.gets("shop/a", "a3").await, first);
    assert!(world.show().contains("R fd00:9::1"), "{}", world.show());
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b070_b073_b101_a_lease_outside_its_pool_moves_in_one_transaction() {
    let world = World::new(&[sticky(r1())]);
    let n1 = world.node("n1");
    n1.gets("shop/db-0", "c1").await;
    world.apply(&sticky(pool("r1", &["10.0.0.0/24 10.0.0.20-10.0.0.20"])));
    assert_eq!(n1.gets("shop/db-0", "c2").await, "10.0.0.20");
    let told = "shop/db-0 eth0 on lan gets a new address: its address is no longer one that r1 leases to it";
    assert_eq!(*n1.trail.notes.lock().unwrap(), [told]);
    assert_eq!(
        world.show(),
        "A 10.0.0.20 shop/db-0\nT c2 on n1 shop/db-0\nL shop/db-0 bound 10.0.0.20 c2 on n1 sticky\n\
         R 10.0.0.10 by shop/db-0 unconfirmed"
    );
    world.audit();
    // A held lease, DELed as it should be, leaves nothing unconfirmed.
    n1.del("shop/db-0", "c2").await;
    world.apply(&sticky(pool("r1", &["10.0.0.0/24 10.0.0.30-10.0.0.30"])));
    assert_eq!(n1.gets("shop/db-0", "c3").await, "10.0.0.30");
    assert!(
        world.show().contains("R 10.0.0.20 by shop/db-0\n")
            || world.show().ends_with("R 10.0.0.20 by shop/db-0")
    );
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b101_del_works_when_the_pool_is_gone_and_an_add_of_the_pod_says_what_is_missing() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    n1.gets("shop/a", "a1").await;
    world.delete_pool("r4");
    assert!(n1.refused(&n1.ask("shop/a", "a2")).await.contains("no pool serves shop/a on network lan"));
    assert!(n1.del("shop/a", "a1").await);
    assert_eq!(world.lease("shop/a"), None);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_asked_for_now_takes_the_place_of_the_old_one() {
    let world = World::new(&[r4(), pool("other", &["10.0.1.0/24"])]);
    let n1 = world.node("n1");
    let mut request = n1.ask("shop/a", "a1");
    request.asked = asked(&["r4"]);
    n1.run(&request).await.unwrap();
    let mut request = n1.ask("shop/a", "a2");
    request.asked = asked(&["other"]);
    assert!(addresses(&n1.run(&request).await.unwrap()).starts_with("10.0.1."));
    world.audit();
    assert_eq!(world.show().matches("A 10").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn asked_pools_are_tried_in_order_and_one_that_may_not_be_used_is_an_error() {
    let other = with(pool("other", &["10.0.1.0/24"]), |p| p.serves = vec!["shop/db".into()]);
    let world = World::new(&[r1(), pool("second", &["10.0.2.0/24"]), other]);
    let n1 = world.node("n1");
    let mut request = n1.ask("shop/a", "a1");
    request.asked = asked(&["r1", "second"]);
    assert_eq!(addresses(&n1.run(&request).await.unwrap()), "10.0.0.10");
    let mut request = n1.ask("shop/b", "b1");
    request.asked = asked(&["r1", "second"]);
    assert!(addresses(&n1.run(&request).await.unwrap()).starts_with("10.0.2."));
    request = n1.ask("shop/c", "c1");
    request.asked = asked(&["second", "other"]);
    assert_eq!(
        n1.refused(&request).await,
        "pool other (asked for by annotation leasehold.io/pool): does not serve shop/c (serves: shop/db)"
    );
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_full_pool_passes_on_to_the_next_and_the_last_error_names_both() {
    let near = with(pool("near", &["10.0.1.0/24 10.0.1.9-10.0.1.9"]), |p| p.serves = vec!["shop/web".into()]);
    let world = World::new(&[r1(), near]);
    let n1 = world.node("n1");
    assert_eq!(n1.gets("shop/web-7d9c4f6b5d-x7k2p", "c1").await, "10.0.1.9");
    assert_eq!(n1.gets("shop/web-7d9c4f6b5d-zzzzz", "c2").await, "10.0.0.10");
    assert_eq!(
        n1.refused(&n1.ask("shop/web-7d9c4f6b5d-bbbbb", "c3")).await,
        "1 of 1 addresses of near are taken; 1 of 1 addresses of r1 are taken"
    );
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn no_pool_names_every_name_that_was_looked_for() {
    let world = World::new(&[with(r4(), |p| p.serves = vec!["shop/db".into()])]);
    let n1 = world.node("n1");
    let Err(Refusal::NoPool { looked_for, .. }) = n1.add("shop/web-7d9c4f6b5d-x7k2p", "c1").await else {
        panic!("a pool was found")
    };
    assert_eq!(looked_for, ["shop/web-7d9c4f6b5d-x7k2p", "shop/web-7d9c4f6b5d", "shop/web", "shop/*", "*/*"]);
}

#[tokio::test(start_paused = true)]
async fn a_sticky_pod_on_a_wrong_node_is_refused_and_another_gets_a_new_address() {
    let pools = || {
        [
            with(pool("left", &["10.0.1.0/24"]), |p| p.nodes = vec!["n1".into()]),
            with(pool("right", &["10.0.2.0/24"]), |p| p.nodes = vec!["n2".into()]),
        ]
    };
    let world = World::new(&pools().map(sticky));
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    n1.gets("shop/db-0", "c1").await;
    n1.del("shop/db-0", "c1").await;
    let refused = n2.refused(&n2.ask("shop/db-0", "c2")).await;
    assert!(refused.ends_with("for this pod, but is not for node n2 (nodes: n1)"), "{refused}");
    world.audit();

    let world = World::new(&pools());
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    n1.gets("shop/db-0", "c1").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(n2.gets("shop/db-0", "c2").await.starts_with("10.0.2."));
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_reserved_lease_is_taken_by_its_pod_and_reserved_again_after_del() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    reserve(&world, "shop/a", &["10.0.0.12"], "r4");
    assert_eq!(n1.gets("shop/a", "a1").await, "10.0.0.12");
    world.audit();
    n1.del("shop/a", "a1").await;
    assert!(world.show().contains("L shop/a reserved 10.0.0.12"), "{}", world.show());
    for other in ["b", "c", "d"] {
        assert_ne!(n1.gets(&format!("shop/{other}"), other).await, "10.0.0.12");
    }
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_reserved_address_that_does_not_fit_is_an_error_not_another_address() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    reserve(&world, "shop/a", &["10.0.0.99"], "r4");
    assert!(n1.refused(&n1.ask("shop/a", "a1")).await.starts_with("10.0.0.99 is reserved for this pod, but"));
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b125_an_address_reserved_for_a_device_is_never_leased() {
    let world = World::new(&[r2()]);
    let n1 = world.node("n1");
    let domain = DomainName::new("default").unwrap();
    let txn = changes::reserve_device(&domain, ip("10.0.0.11"), None, "printer", Timestamp(1));
    assert!(matches!(world.apply_txn(&txn), Outcome::Applied(_)));
    assert_eq!(n1.gets("shop/a", "a1").await, "10.0.0.10");
    assert_eq!(n1.refused(&n1.ask("shop/b", "b1")).await, "2 of 2 addresses of r2 are taken");
    let mut request = n1.ask("shop/b", "b1");
    request.requested = vec![ip("10.0.0.11")];
    assert!(n1.refused(&request).await.ends_with("is not free: reserved: printer"));
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b104_a_requested_address_is_given_or_the_error_says_what_failed() {
    let document = with(r4(), |p| {
        p.ranges[0].gateway = Some("10.0.0.13".into());
        p.ranges[0].exclude = vec!["10.0.0.12".into()];
    });
    let world = World::new(&[document]);
    let n1 = world.node("n1");
    let wish = |pod: &str, address: &str| {
        let mut request = n1.ask(&format!("shop/{pod}"), pod);
        request.requested = vec![ip(address)];
        request
    };
    assert_eq!(addresses(&n1.run(&wish("a", "10.0.0.11")).await.unwrap()), "10.0.0.11");
    let by = "(annotation leasehold.io/ip)";
    assert_eq!(
        n1.refused(&wish("b", "10.0.0.11")).await,
        format!("requested address 10.0.0.11 {by} is not free: shop/a eth0 on lan has it")
    );
    for (outside, why) in [
        ("10.0.0.12", "excluded"),
        ("10.0.0.13", "the gateway"),
        ("10.0.0.14", "outside its ranges"),
        ("10.0.1.1", "outside its ranges"),
        ("10.0.0.0", "the network address"),
        ("10.0.0.255", "the broadcast address"),
        ("fd00::1", "no IPv6 range"),
    ] {
        assert_eq!(
            n1.refused(&wish("b", outside)).await,
            format!("requested address {outside} {by} is in no pool that may be used: r4 ({why})")
        );
    }
    // The pod's own lease does not hide that it asks for something else.
    let mut other = wish("a", "fd00::1");
    other.container = ContainerId::new("a9").unwrap();
    assert!(n1.refused(&other).await.contains("is in no pool"), "other family");
    world.audit();
    // One that cools down is waited for, also if it is the only thing in the pool.
    n1.del("shop/a", "a").await;
    assert_eq!(addresses(&n1.run(&wish("b", "10.0.0.11")).await.unwrap()), "10.0.0.11");
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b104_half_of_a_lease_kept_does_not_make_a_requested_address_outside_of_the_pool_another_one() {
    let world = World::new(&[dual()]);
    let n1 = world.node("n1");
    n1.gets("shop/a", "a1").await;
    let mut request = n1.ask("shop/a", "a2");
    for (outside, why) in
        [("fd00:9::99", "outside its ranges"), ("fd00:9::", "the subnet-router anycast address")]
    {
        request.requested = vec![ip(outside)];
        assert_eq!(
            n1.refused(&request).await,
            format!(
                "requested address {outside} (annotation leasehold.io/ip) is in no pool that may be used: dual ({why})"
            )
        );
    }
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_asks_for_another_address_gets_that_one_and_leaves_the_old() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    let mut request = n1.ask("shop/a", "a1");
    request.requested = vec![ip("10.0.0.11")];
    n1.run(&request).await.unwrap();
    let mut request = n1.ask("shop/a", "a2");
    request.requested = vec![ip("10.0.0.12")];
    assert_eq!(addresses(&n1.run(&request).await.unwrap()), "10.0.0.12");
    assert!(world.show().contains("R 10.0.0.11 by shop/a unconfirmed"));
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn while_frozen_a_take_over_is_probed_and_nothing_new_is_leased() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    let address = n1.gets("shop/a", "a1").await;
    world.freeze("restore");
    assert_eq!(n1.gets("shop/a", "a2").await, address);
    assert_eq!(n1.wire.asked(), std::slice::from_ref(&address));
    assert_eq!(n1.refused(&n1.ask("shop/b", "b1")).await, "the store is frozen: restore");
    n1.wire.hears(&address);
    assert!(n1.refused(&n1.ask("shop/a", "a3")).await.contains("still answers"));
    assert!(n1.del("shop/a", "a2").await);
    world.audit();
}

/// The store may have been set back: what it gives back may be another's since the snapshot.
#[tokio::test(start_paused = true)]
async fn what_a_del_ends_in_a_frozen_store_is_unconfirmed() {
    for late in [false, true] {
        let world = World::new(&[r4()]);
        let address = world.node("n1").gets("shop/a", "a1").await;
        let n1 = world.node("n1");
        let freezes = |world: &World| {
            let store = world.store.clone();
            move || async move {
                let frozen = record::Frozen { why: "restored".into(), by: "me".into(), at: Timestamp(0) };
                store.put(&keys::frozen(), record::encode_frozen(&frozen));
            }
        };
        if late {
            n1.way.at(On::Commit(0), Side::Before, freezes(&world));
        } else {
            freezes(&world)().await;
        }
        assert!(n1.del("shop/a", "a1").await);
        assert!(world.show().contains(&format!("R {address} by shop/a unconfirmed")), "{}", world.show());
    }
}

/// Whoever was leased it just now is heard only later, whatever the pool's cool-down is.
#[tokio::test(start_paused = true)]
async fn an_address_that_was_given_back_unconfirmed_rests_also_for_its_own_pod() {
    let world = World::new(&[with(r1(), |p| {
        p.sticky = Some("never".into());
        p.cool_down = Some("0s".into());
    })]);
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    for (pod, node, container) in [("shop/a", &n1, "a2"), ("shop/b", &n2, "b1")] {
        n1.gets("shop/a", "a1").await;
        let stored = world.lease("shop/a").unwrap();
        let _ = world.apply_txn(&changes::give_back(&stored, true, n1.clock.now()));
        let began = tokio::time::Instant::now();
        node.gets(pod, container).await;
        assert!(began.elapsed() >= Duration::from_secs(5), "{pod}: {:?}", began.elapsed());
        assert_eq!(node.wire.asked(), ["10.0.0.10"]);
        assert!(node.del(pod, container).await);
    }
}

/// Nothing is known of who had it but that it may come on the wire yet.
#[tokio::test(start_paused = true)]
async fn what_was_reserved_from_another_is_asked_for_when_it_can_be_heard() {
    let world = World::new(&[r4()]);
    reserve(&world, "shop/db-0", &["10.0.0.10"], "r4");
    let stored = world.lease("shop/db-0").unwrap();
    let n1 = world.node("n1");
    let taken = Lease { unconfirmed: true, since: n1.clock.now(), ..stored.value.clone() };
    let _ = world.apply_txn(&changes::note(&stored, &taken));
    let began = tokio::time::Instant::now();
    n1.gets("shop/db-0", "A").await;
    assert!(began.elapsed() >= Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(n1.wire.asked(), ["10.0.0.10"]);
}

#[tokio::test(start_paused = true)]
async fn b082_the_first_node_that_sees_the_store_go_back_freezes_it() {
    let world = World::new(&[r4()]);
    let mut n1 = world.node("n1");
    n1.memory.store = Some(StoreId::new("s1").unwrap());
    n1.memory.revision = Revision(1_000_000);
    let refused = n1.refused(&n1.ask("shop/a", "a1")).await;
    assert!(refused.contains("the store went back from revision 1000000 to"), "{refused}");
    assert!(world.store.dump().contains_key(&keys::frozen()));
    let n2 = world.node("n2");
    assert!(n2.refused(&n2.ask("shop/b", "b1")).await.contains("frozen"));
    // Another store than the one that is remembered is no restore.
    let world = World::new(&[r4()]);
    let mut n1 = world.node("n1");
    n1.memory.store = Some(StoreId::new("s0").unwrap());
    n1.memory.revision = Revision(1_000_000);
    n1.gets("shop/a", "a1").await;
}

#[tokio::test(start_paused = true)]
async fn an_add_that_began_before_the_freeze_does_not_lease_after_it() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    let store = world.store.clone();
    n1.way.at(On::Commit(0), Side::Before, move || async move {
        let frozen = record::Frozen { why: "now".into(), by: "me".into(), at: Timestamp(0) };
        store.put(&keys::frozen(), record::encode_frozen(&frozen));
    });
    assert_eq!(n1.refused(&n1.ask("shop/a", "a1")).await, "the store is frozen: now");
    assert_eq!(world.lease("shop/a"), None);
}

#[tokio::test(start_paused = true)]
async fn an_empty_store_and_an_unregistered_cluster_are_named() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    world.store.delete(&keys::cluster(&n1.me.cluster));
    assert_eq!(n1.refused(&n1.ask("shop/a", "a1")).await, "cluster prod is not registered");
    world.store.delete(&keys::meta());
    assert_eq!(n1.refused(&n1.ask("shop/a", "a1")).await, "the store holds no leasehold data");
    assert!(!n1.del("shop/a", "a1").await);
}

#[tokio::test(start_paused = true)]
async fn b136_a_record_that_cannot_be_read_or_is_newer_is_neither_handed_out_nor_lost() {
    for (value, wanted) in [
        ("rubbish", "cannot be read"),
        (r#"{"v":9,"addresses":[]}"#, "has version 9, this leasehold knows up to 1"),
    ] {
        let world = World::new(&[r1()]);
        let n1 = world.node("n1");
        let key = keys::lease(&id("shop/a"));
        world.store.put(&key, value);
        world.store.put(&held_at("10.0.0.10"), record::encode_pointer(&id("shop/a")));
        assert!(n1.refused(&n1.ask("shop/a", "a1")).await.contains(wanted));
        assert_eq!(n1.refused(&n1.ask("shop/b", "b1")).await, "1 of 1 addresses of r1 are taken");
        let del = n1.try_del(Some("shop/a"), "a1").await;
        assert_eq!(del.is_err(), value.contains("\"v\":9"), "{del:?}");
        n1.gc(&[]).await.unwrap();
        assert_eq!(world.store.dump()[&key], value.as_bytes());
    }
}

/// A lease as the first format had it: no version, no UID, boot or time.
#[tokio::test(start_paused = true)]
async fn b136_a_lease_of_the_first_format_is_ended_by_its_container_and_taken_over_by_its_pod() {
    let old = r#"{"state":"bound","container":"a1","node":"n1","addresses":[{"address":"10.0.0.10","domain":"default","pool":"r4"}]}"#;
    for attached in [true, false] {
        let world = World::new(&[r4()]);
        let n1 = world.node("n1");
        let puts = || {
            world.store.put(&keys::lease(&id("shop/a")), old);
            world.store.put(&held_at("10.0.0.10"), record::encode_pointer(&id("shop/a")));
            let lease = world.lease("shop/a").unwrap().value;
            let attachment = changes::attachment_key(&lease.id, lease.bound().unwrap());
            if attached {
                world.store.put(&attachment, record::encode_pointer(&lease.id));
            }
        };
        puts();
        assert!(!n1.del("shop/a", "a2").await, "another's");
        assert!(n1.del("shop/a", "a1").await);
        assert_eq!(world.show(), "R 10.0.0.10 by shop/a");
        world.audit();
        world.store.delete(&released_at("10.0.0.10"));
        puts();
        assert_eq!(n1.gets("shop/a", "a2").await, "10.0.0.10");
        assert!(!n1.del("shop/a", "a1").await, "the old container's, late");
        assert!(n1.del("shop/a", "a2").await);
        assert_eq!(world.show(), "R 10.0.0.10 by shop/a");
        world.audit();
    }
}

#[tokio::test(start_paused = true)]
async fn a_released_key_that_cannot_be_read_keeps_its_address_and_the_pool_is_called_full() {
    for value in ["rubbish", r#"{"v":7}"#] {
        let world = World::new(&[r2()]);
        let n1 = world.node("n1");
        world.store.put(&released_at("10.0.0.10"), value);
        assert_eq!(n1.gets("shop/a", "a1").await, "10.0.0.11");
        let error = n1.add("shop/b", "b1").await.unwrap_err();
        assert!(matches!(error, Refusal::Full { .. }), "{error}");
        assert_eq!(world.store.dump()[&released_at("10.0.0.10")], value.as_bytes());
        world.audit();
    }
}

#[tokio::test(start_paused = true)]
async fn b032_b081_an_address_given_back_is_not_reused_while_others_are_free_and_waited_for_else() {
    let world = World::new(&[r2()]);
    let n1 = world.node("n1");
    let a = n1.gets("shop/a", "a1").await;
    n1.del("shop/a", "a1").await;
    let b = world.node("n2").gets("shop/b", "b1").await;
    assert_ne!(a, b);
    let before = tokio::time::Instant::now();
    let n3 = world.node("n3");
    assert_eq!(n3.gets("shop/c", "c1").await, a);
    let waited = before.elapsed();
    assert!(waited >= Duration::from_millis(4_900) && waited < Duration::from_secs(7), "{waited:?}");
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn the_own_released_address_is_not_waited_for() {
    let world = World::new(&[r1()]);
    let n1 = world.node("n1");
    n1.gets("shop/a", "a1").await;
    n1.del("shop/a", "a1").await;
    let before = tokio::time::Instant::now();
    n1.gets("shop/a", "a2").await;
    assert!(before.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn b124_a_long_cool_down_is_said_not_waited_for() {
    let world = World::new(&[with(r2(), |p| p.cool_down = Some("30s".into()))]);
    let n1 = world.node("n1");
    n1.gets("shop/a", "a1").await;
    n1.gets("shop/b", "b1").await;
    n1.del("shop/a", "a1").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = tokio::time::Instant::now();
    assert_eq!(
        n1.refused(&n1.ask("shop/c", "c1")).await,
        "1 addresses of r2 are cooling down, the first is ready in 20000 ms"
    );
    assert!(before.elapsed() < Duration::from_secs(1));
    tokio::time::sleep(Duration::from_secs(15)).await;
    n1.gets("shop/c", "c2").await;
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_release_in_the_future_of_this_clock_costs_one_cool_down() {
    let world = World::new(&[r1()]);
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    n1.clock.skew.store(7_200_000, Ordering::Relaxed);
    n1.gets("shop/a", "a1").await;
    n1.del("shop/a", "a1").await;
    let before = tokio::time::Instant::now();
    n2.gets("shop/b", "b1").await;
    assert!(before.elapsed() < Duration::from_secs(7), "{:?}", before.elapsed());
    assert!(before.elapsed() >= Duration::from_millis(4_900), "{:?}", before.elapsed());
    world.audit();
    // One from a clock far behind is past its cool-down: only the order of revisions says more.
    n2.clock.skew.store(-7_200_000, Ordering::Relaxed);
    n2.del("shop/b", "b1").await;
    n1.gets("shop/c", "c1").await;
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b022_b026_del_of_what_is_unknown_is_success_and_a_full_pool_recovers() {
    let world = World::new(&[r1()]);
    let n1 = world.node("n1");
    n1.gets("shop/a", "a1").await;
    assert_eq!(n1.refused(&n1.ask("shop/b", "b1")).await, "1 of 1 addresses of r1 are taken");
    assert!(!n1.del("shop/b", "b1").await);
    assert!(n1.del("shop/a", "a1").await);
    assert!(!n1.del("shop/a", "a1").await);
    n1.gets("shop/b", "b2").await;
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b012_b028_b029_a_late_del_does_not_touch_the_successor() {
    let world = World::new(&[r1()]);
    let n1 = world.node("n1");
    n1.gets("shop/a", "a1").await;
    n1.gets("shop/a", "a2").await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert!(!n1.del("shop/a", "a1").await);
    assert!(!n1.del("shop/a", "a1").await);
    assert!(world.show().contains("bound 10.0.0.10 a2"));
    assert!(n1.del("shop/a", "a2").await);
    assert_eq!(world.show(), "R 10.0.0.10 by shop/a");
    assert!(!n1.del("shop/a", "a1").await);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b001_a_late_del_of_a_reaped_lease_does_not_touch_the_stranger_that_has_the_address() {
    let world = World::new(&[r1()]);
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    n1.gets("shop/a", "a1").await;
    assert!(world.reap(&world.judge("shop/a")));
    assert_eq!(n2.gets("shop/b", "b1").await, "10.0.0.10");
    assert_eq!(n2.wire.asked(), ["10.0.0.10"]);
    assert!(!n1.del("shop/a", "a1").await);
    assert!(world.show().contains("L shop/b bound 10.0.0.10 b1"));
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b016_del_finds_the_lease_by_its_attachment_alone() {
    let world = World::new(&[r1()]);
    let n1 = world.node("n1");
    n1.gets("shop/a", "a1").await;
    assert_eq!(n1.try_del(None, "a1").await.unwrap().lease, Some(id("shop/a")));
    world.audit();
    // Or by a wrong pod's name: what counts is the container.
    n1.gets("shop/a", "a2").await;
    assert_eq!(n1.try_del(Some("shop/zzz"), "a2").await.unwrap().lease, Some(id("shop/a")));
    // Or by the pod's name, where the attachment was lost.
    n1.gets("shop/a", "a3").await;
    let lease = world.lease("shop/a").unwrap().value;
    world.store.delete(&changes::attachment_key(&lease.id, lease.bound().unwrap()));
    assert!(n1.del("shop/a", "a3").await);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b008_fifty_adds_without_a_del_use_one_address() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    let first = n1.gets("shop/a", "c0").await;
    for turn in 1..50 {
        assert_eq!(n1.gets("shop/a", &format!("c{turn}")).await, first);
    }
    assert_eq!(world.show().lines().count(), 3);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b024_b128_two_interfaces_of_a_pod_have_leases_of_their_own() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    let on = |ifname: &str, container: &str| {
        let mut request = n1.ask("shop/a", container);
        request.ifname = IfName::new(ifname).unwrap();
        request
    };
    let one = addresses(&n1.run(&on("net1", "c1")).await.unwrap());
    let two = addresses(&n1.run(&on("net2", "c1")).await.unwrap());
    assert_ne!(one, two);
    assert_eq!(addresses(&n1.run(&on("net1", "c2")).await.unwrap()), one);
    let mut end = n1.end_of(Some("shop/a"), "c2");
    end.ifname = IfName::new("net1").unwrap();
    assert!(ops::del(&n1.context(Duration::from_secs(5)), &end, "DEL").await.unwrap().lease.is_some());
    assert!(world.show().contains(&format!("bound {two}")));
    assert_eq!(world.show().matches("L shop/a").count(), 1);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b074_a_rolling_update_in_a_tight_range_is_told_the_numbers_and_recovers() {
    let world = World::new(&[with(r2(), |p| p.cool_down = Some("15s".into()))]);
    let n1 = world.node("n1");
    let old = n1.gets("shop/web-7d9c4f6b5d-bbbbb", "a").await;
    n1.gets("shop/web-7d9c4f6b5d-ccccc", "b").await;
    let next = || n1.ask("shop/web-7d9c4f6b5d-ddddd", "c");
    assert_eq!(n1.refused(&next()).await, "2 of 2 addresses of r2 are taken");
    n1.del("shop/web-7d9c4f6b5d-bbbbb", "a").await;
    // When the next one is free, as soon as that is known.
    let hint = "1 addresses of r2 are cooling down, the first is ready in 15000 ms";
    assert_eq!(n1.refused(&next()).await, hint);
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(addresses(&n1.run(&next()).await.unwrap()), old);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b050_gc_ends_only_what_is_of_this_node_and_network_and_not_valid() {
    let world = World::new(&[with(pool("p", &["10.0.0.0/24"]), |p| {
        p.networks = vec!["*".into()];
        p.serves = vec!["shop/db".into(), "*/*".into()];
    })]);
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    for (pod, container) in [("shop/a", "a1"), ("shop/b", "b1"), ("shop/db-0", "d1")] {
        n1.gets(pod, container).await;
    }
    n2.gets("shop/c", "a9").await;
    let mut other = n1.ask("shop/a", "a1");
    other.caller.network = leasehold::domain::names::NetworkName::new("lan2").unwrap();
    n1.run(&other).await.unwrap();
    n1.gc(&["a1"]).await.unwrap();
    let shown = world.show();
    assert!(shown.contains("L shop/a bound") && shown.contains("L shop/c bound"), "{shown}");
    assert!(!shown.contains("L shop/b") && shown.contains("L shop/db-0 held"), "{shown}");
    assert!(!shown.contains("unconfirmed"), "{shown}");
    world.audit();
    n1.gc(&[]).await.unwrap();
    let shown = world.show();
    assert_eq!(shown.matches("L shop/a bound").count(), 1, "{shown}");
    assert!(shown.contains("L shop/c bound"), "{shown}");
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn gc_pages_through_more_than_a_thousand_attachments() {
    let world = World::new(&[pool("p", &["10.0.0.0/20"])]);
    let n1 = world.node("n1");
    for number in 0..1_203 {
        n1.gets(&format!("shop/p{number}"), &format!("c{number}")).await;
    }
    n1.gc(&["c7"]).await.unwrap();
    assert_eq!(world.show().matches("L shop/").count(), 1);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn gc_goes_on_after_a_failure_and_reports_it() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    for pod in ["a", "b", "c"] {
        n1.gets(&format!("shop/{pod}"), pod).await;
    }
    let key = keys::lease(&id("shop/b"));
    world.store.put(&key, r#"{"v":9}"#);
    assert!(n1.gc(&[]).await.is_err());
    assert_eq!(world.show().matches("L shop/").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn b132_check_knows_its_container_and_its_addresses() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    let check = async |container: &str, believed: Option<&[&str]>| {
        let believed = believed.map(|list| list.iter().map(|a| ip(a)).collect::<Vec<_>>());
        let container = ContainerId::new(container).unwrap();
        ops::check(&n1.context(Duration::from_secs(5)), &id("shop/a"), &container, believed.as_deref()).await
    };
    assert_eq!(check("a1", None).await.unwrap_err().to_string(), "shop/a eth0 on lan has no lease");
    let address = n1.gets("shop/a", "a1").await;
    check("a1", None).await.unwrap();
    check("a1", Some(&[&address, "192.168.7.7"])).await.unwrap();
    assert!(check("a1", Some(&["192.168.7.7"])).await.is_err());
    n1.gets("shop/a", "a2").await;
    assert!(check("a1", None).await.is_err());
    check("a2", None).await.unwrap();
    n1.del("shop/a", "a2").await;
    assert!(check("a2", None).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn undo_is_what_del_does_and_leaves_a_take_over_unconfirmed() {
    let undo = async |world: &World, node: &super::world::Node, pod: &str, container: &str| {
        let added = node.add(pod, container).await.unwrap();
        ops::undo(&node.context(Duration::from_secs(5)), &added).await.unwrap();
        world.audit();
    };
    let world = World::new(&[r1()]);
    let n1 = world.node("n1");
    undo(&world, &n1, "shop/a", "a1").await;
    assert_eq!(world.show(), "R 10.0.0.10 by shop/a");
    n1.gets("shop/a", "a2").await;
    // The kubelet has ended a2, as far as this node is concerned.
    undo(&world, &n1, "shop/a", "a3").await;
    assert_eq!(world.show(), "R 10.0.0.10 by shop/a");
    n1.gets("shop/a", "a4").await;
    let n2 = world.node("n2");
    tokio::time::sleep(Duration::from_secs(60)).await;
    undo(&world, &n2, "shop/a", "a5").await;
    assert_eq!(world.show(), "R 10.0.0.10 by shop/a unconfirmed");

    let world = World::new(&[sticky(r1())]);
    let n1 = world.node("n1");
    undo(&world, &n1, "shop/a", "a1").await;
    assert!(world.show().ends_with("L shop/a held 10.0.0.10 a1 on n1 sticky"), "{}", world.show());
    n1.gets("shop/a", "a2").await;
    let n2 = world.node("n2");
    tokio::time::sleep(Duration::from_secs(60)).await;
    undo(&world, &n2, "shop/a", "a3").await;
    assert!(
        world.show().ends_with("L shop/a held 10.0.0.10 a3 on n2 sticky unconfirmed"),
        "{}",
        world.show()
    );
    // The mark stays until somebody has listened.
    n1.wire.hears("10.0.0.10");
    assert!(n1.refused(&n1.ask("shop/a", "a4")).await.contains("still answers"));
    n1.wire.answering.lock().unwrap().clear();
    n1.gets("shop/a", "a4").await;
    assert!(!world.show().contains("unconfirmed"));
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn undo_does_nothing_to_a_lease_that_a_newer_sandbox_has() {
    let world = World::new(&[r1()]);
    let n1 = world.node("n1");
    let added = n1.add("shop/a", "a1").await.unwrap();
    n1.gets("shop/a", "a2").await;
    ops::undo(&n1.context(Duration::from_secs(5)), &added).await.unwrap();
    assert!(world.show().contains("bound 10.0.0.10 a2"));
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn what_the_reaper_saw_of_the_controller_makes_a_pod_sticky_and_missed_is_forgotten() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    n1.gets("shop/db-0", "c1").await;
    let old = world.lease("shop/db-0").unwrap();
    assert!(!old.value.sticky);
    let mut noted = old.value.clone();
    noted.seen = Some(Seen {
        controller: Some("StatefulSet.apps/db".into()),
        missed: Some(Timestamp(5)),
        ..Seen::default()
    });
    assert!(matches!(world.apply_txn(&changes::note(&old, &noted)), Outcome::Applied(_)));
    n1.gets("shop/db-0", "c2").await;
    let lease = world.lease("shop/db-0").unwrap().value;
    assert!(lease.sticky);
    assert_eq!(lease.seen.unwrap().missed, None);
}

#[tokio::test(start_paused = true)]
async fn b093_b094_gateway_network_and_broadcast_are_never_leased_and_the_gateway_is_answered() {
    let world = World::new(&[with(pool("p", &["10.0.0.0/29"]), |p| {
        p.ranges[0].gateway = Some("10.0.0.3".into());
    })]);
    let n1 = world.node("n1");
    let mut all = Vec::new();
    for number in 0..5 {
        let added = n1.add(&format!("shop/p{number}"), &format!("c{number}")).await.unwrap();
        assert_eq!(added.answer.addresses[0].gateway, Some(ip("10.0.0.3")));
        assert_eq!(added.answer.addresses[0].length, 29);
        all.push(addresses(&added));
    }
    all.sort();
    assert_eq!(all, ["10.0.0.1", "10.0.0.2", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
    assert_eq!(n1.refused(&n1.ask("shop/p9", "c9")).await, "5 of 5 addresses of p are taken");
}

#[tokio::test(start_paused = true)]
async fn b102_no_gateway_is_guessed_and_a_bridge_keeps_the_first_address() {
    let world = World::new(&[pool("p", &["10.0.0.0/30"])]);
    let n1 = world.node("n1");
    let mut request = n1.ask("shop/a", "a1");
    request.avoid_first = true;
    let added = n1.run(&request).await.unwrap();
    assert_eq!((addresses(&added).as_str(), added.answer.addresses[0].gateway), ("10.0.0.2", None));
    request = n1.ask("shop/b", "b1");
    request.avoid_first = true;
    assert_eq!(n1.refused(&request).await, "1 of 1 addresses of p are taken");
    assert_eq!(n1.gets("shop/c", "c1").await, "10.0.0.1");
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_range_of_which_a_bridge_takes_the_only_address_is_full() {
    let world = World::new(&[pool("p", &["10.0.0.0/24 10.0.0.1-10.0.0.1"])]);
    let n1 = world.node("n1");
    let mut request = n1.ask("shop/a", "a1");
    request.avoid_first = true;
    assert_eq!(n1.refused(&request).await, "0 of 0 addresses of p are taken");
}

#[tokio::test(start_paused = true)]
async fn inline_ranges_lease_one_address_of_each_set() {
    let world = World::new(&[]);
    let n1 = world.node("n1");
    let inline = |container: &str, sets: &[&str]| {
        let mut request = n1.ask("shop/a", container);
        let sets = sets.iter().map(|text| vec![Range::from_draft("ranges", &draft(text)).unwrap()]).collect();
        request.inline = Some(Inline { sets });
        request
    };
    let sets = ["10.0.0.0/24 10.0.0.10-10.0.0.11", "10.0.1.0/24 10.0.1.10-10.0.1.11"];
    let first = addresses(&n1.run(&inline("a1", &sets)).await.unwrap());
    assert!(first.starts_with("10.0.0.1") && first.contains(" 10.0.1.1"), "{first}");
    assert_eq!(addresses(&n1.run(&inline("a2", &sets)).await.unwrap()), first);
    assert_eq!(addresses(&n1.run(&inline("a2", &sets)).await.unwrap()), first);
    // Two sets of one family: the requested address belongs to the set that has it.
    let mut request = inline("a3", &sets);
    let wanted = if first.ends_with("10.0.1.10") { "10.0.1.11" } else { "10.0.1.10" };
    request.requested = vec![ip(wanted)];
    let third = addresses(&n1.run(&request).await.unwrap());
    assert_eq!(third, format!("{} {wanted}", first.split(' ').next().unwrap()));
    world.audit();
    assert!(n1.del("shop/a", "a3").await);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b065_missing_information_never_makes_a_lease_unfit() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    let value = r#"{"addresses":[{"address":"10.0.0.12","domain":"default","pool":"r4"}]}"#;
    world.store.put(&keys::lease(&id("shop/a")), value);
    world.store.put(&held_at("10.0.0.12"), record::encode_pointer(&id("shop/a")));
    assert_eq!(n1.gets("shop/a", "a1").await, "10.0.0.12");
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b065_a_pool_that_cannot_be_read_takes_no_lease_away() {
    let mine = with(r1(), |p| p.serves = vec!["shop/db".into()]);
    let world = World::new(&[mine, pool("other", &["10.0.1.0/24"])]);
    let n1 = world.node("n1");
    assert_eq!(n1.gets("shop/db-0", "c1").await, "10.0.0.10");
    n1.del("shop/db-0", "c1").await;
    let before = world.show();
    let key = keys::pool(&PoolName::new("r1").unwrap());
    let good = world.store.dump()[&key].clone();
    for spoiled in ["", "{}", "null"] {
        world.store.put(&key, spoiled);
        let refusal = n1.refused(&n1.ask("shop/db-0", "c2")).await;
        assert!(refusal.contains("pool r1") && refusal.contains("cannot be read"), "{refusal}");
        assert_eq!(world.show(), before);
    }
    world.store.put(&key, good);
    assert_eq!(n1.gets("shop/db-0", "c2").await, "10.0.0.10");
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b090_after_exhaustion_all_recover() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    for round in 0..3 {
        for pod in 0..4 {
            n1.gets(&format!("shop/p{pod}-{round}x"), &format!("c{pod}{round}")).await;
        }
        assert!(n1.refused(&n1.ask("shop/late", "late")).await.starts_with("4 of 4"));
        for pod in 0..4 {
            assert!(n1.del(&format!("shop/p{pod}-{round}x"), &format!("c{pod}{round}")).await);
        }
        world.audit();
    }
}

#[tokio::test(start_paused = true)]
async fn b092_b101_many_single_exclusions_do_not_hide_the_last_address() {
    // Every second address is excluded: more runs than one window may ask for.
    let world = World::new(&[with(pool("p", &["10.0.0.0/23"]), |p| {
        p.ranges[0].exclude = (1..255).map(|n| format!("10.0.{}.{}", n / 128, (n % 128) * 2)).collect();
    })]);
    let n1 = world.node("n1");
    let mut count = 0;
    let total = loop {
        match n1.add(&format!("shop/p{count}"), &format!("c{count}")).await {
            Ok(_) => count += 1,
            Err(Refusal::Full { pools, .. }) => break (pools[0].used, pools[0].total),
            Err(error) => panic!("{error} after {count}"),
        }
    };
    assert_eq!(total, (count, count));
    assert_eq!(count, 256);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_changes_while_an_add_works_is_read_again() {
    let world = std::sync::Arc::new(World::new(&[r1()]));
    let n1 = world.node("n1");
    let other = world.clone();
    n1.way.at(On::Commit(0), Side::Before, move || async move {
        other.apply(&pool("r1", &["10.0.0.0/24 10.0.0.77-10.0.0.77"]));
    });
    assert_eq!(n1.gets("shop/a", "a1").await, "10.0.0.77");
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b006_an_add_is_over_at_its_deadline() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    n1.way.fail(On::Commits, Fault::Delay(Duration::from_secs(30)));
    let before = tokio::time::Instant::now();
    let error = n1.add("shop/a", "a1").await.unwrap_err();
    assert!(matches!(error, Refusal::Store(leasehold::store::StoreError::Unanswered { .. })), "{error}");
    assert!(before.elapsed() <= Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn b014_an_answer_that_was_lost_is_found_again() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    n1.way.fail(On::Commit(0), Fault::AnswerLost);
    let added = n1.add("shop/a", "a1").await.unwrap();
    assert!(added.wrote());
    assert_eq!(world.show().matches("L shop/a").count(), 1);
    // And it can be undone: the revision is known.
    ops::undo(&n1.context(Duration::from_secs(5)), &added).await.unwrap();
    assert_eq!(world.lease("shop/a"), None);
    n1.gets("shop/a", "a2").await;
    n1.way.heal();
    n1.way.fail(On::Commit(n1.way.commits()), Fault::AnswerLost);
    n1.del("shop/a", "a2").await;
    assert_eq!(world.lease("shop/a"), None);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_compacted_revision_is_counted_again() {
    let world = World::new(&[pool("p", &["10.0.0.0/20"])]);
    let n1 = world.node("n1");
    for number in 0..4_080 {
        n1.gets(&format!("shop/p{number}"), &format!("c{number}")).await;
    }
    let n2 = world.node("n2");
    n2.way.decide(|call| (call.txn.is_none() && call.of_kind == 3).then_some(Fault::Compacted));
    n2.gets("shop/late", "late").await;
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn one_container_id_on_two_nodes_is_two_sandboxes() {
    let world = World::new(&[r4()]);
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    let first = n1.gets("_/x1", "x1").await;
    // It may not be on the wire yet.
    assert!(n2.refused(&n2.ask("_/x1", "x1")).await.contains("a moment ago"));
    tokio::time::sleep(Duration::from_secs(11)).await;
    n2.wire.hears(first.split('/').next().unwrap());
    assert!(n2.refused(&n2.ask("_/x1", "x1")).await.contains("still answers"));
    assert!(!n2.del("_/x1", "x1").await, "it is n1's");
    assert_eq!(n1.gets("_/x1", "x1").await, first);
    assert!(n1.del("_/x1", "x1").await);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn point_52_an_attachment_has_one_lease_whatever_its_callers_say() {
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    let first = n1.gets("shop/a", "x1").await;
    let refused = n1.refused(&n1.ask("shop/b", "x1")).await;
    assert_eq!(refused, "container x1 has its lease as shop/a");
    assert_eq!(world.lease("shop/b"), None);
    assert_eq!(n1.gets("shop/a", "x1").await, first);
    assert!(n1.del("shop/a", "x1").await);
    n1.gets("shop/b", "x1").await;
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_sticky_pod_that_asks_for_another_pool_is_not_held_to_the_nodes_of_its_old_one() {
    let old =
        with(sticky(pool("old", &["10.0.0.0/24 10.0.0.10-10.0.0.13"])), |p| p.nodes = vec!["n1".into()]);
    let new = sticky(pool("new", &["10.0.1.0/24 10.0.1.10-10.0.1.13"]));
    let world = World::new(&[old, new]);
    let (n1, n2) = (world.node("n1"), world.node("n2"));
    let ask = |node: &Node, container: &str, pool: &str| Add {
        asked: asked(&[pool]),
        ..node.ask("shop/db-0", container)
    };
    n1.run(&ask(&n1, "a1", "old")).await.unwrap();
    n1.del("shop/db-0", "a1").await;
    let moved = n2.run(&ask(&n2, "a2", "new")).await.unwrap();
    assert!(addresses(&moved).starts_with("10.0.1."));
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_reserved_lease_of_which_one_family_does_not_fit_is_an_error() {
    let world = World::new(&[dual()]);
    let n1 = world.node("n1");
    reserve(&world, "shop/a", &["10.0.0.12", "fd00:9::12"], "dual");
    world.apply(&with(dual(), |p| p.ranges[1] = range("fd00:9::/64 fd00:9::20-fd00:9::23")));
    let refused = n1.refused(&n1.ask("shop/a", "a1")).await;
    assert!(refused.starts_with("fd00:9::12 is reserved for this pod, but"), "{refused}");
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_del_whose_answer_was_lost_is_in_the_audit_trail() {
    for pool in [r4(), sticky(r4())] {
        let world = World::new(&[pool]);
        let n1 = world.node("n1");
        n1.gets("shop/db-0", "a1").await;
        let n1 = Node { way: FaultyStore::new(world.store.clone()), ..n1 };
        n1.way.fail(On::Commit(0), Fault::AnswerLost);
        assert!(n1.del("shop/db-0", "a1").await);
        let last = n1.trail.changes.lock().unwrap().last().cloned().unwrap();
        assert!(last.what == "lease.released" || last.what == "lease.held", "{last:?}");
        world.audit();
    }
}

#[tokio::test(start_paused = true)]
async fn entries_of_another_store_do_not_keep_the_others_from_being_told() {
    use leasehold::{
        journal::{Entry, Journal},
        ops::replay,
    };
    let world = World::new(&[r4()]);
    let n1 = world.node("n1");
    n1.gets("shop/a", "a1").await;
    let folder = std::env::temp_dir().join(format!("leasehold-replay-{}", std::process::id()));
    let journal = Journal::new(&folder);
    let end = n1.end_of(Some("shop/a"), "a1");
    let entry = |container: &str, store: Option<&str>| Entry {
        cluster: end.cluster.clone(),
        store: store.map(|id| leasehold::domain::names::StoreId::new(id).unwrap()),
        node: end.node.clone(),
        network: end.network.clone(),
        container: ContainerId::new(container).unwrap(),
        ifname: end.ifname.clone(),
        holder: end.holder.clone(),
        why: "the store was down".into(),
        at: String::new(),
    };
    for n in 0..replay::SOME {
        journal.write(&entry(&format!("old{n}"), Some("another"))).unwrap();
    }
    journal.write(&entry("a1", None)).unwrap();
    let until = tokio::time::Instant::now() + Duration::from_secs(5);
    let done =
        replay::replay(&n1.context(Duration::from_secs(5)), &journal, replay::SOME, until).await.unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!((done.ended, done.left), (1, replay::SOME));
    assert_eq!(world.lease("shop/a"), None);
}

#[tokio::test(start_paused = true)]
async fn b025_a_pod_restarts_before_its_old_sandbox_is_gone() {
    let world = World::new(&[sticky(r2())]);
    let n1 = world.node("n1");
    let (zero, one) = (n1.gets("shop/db-0", "a1").await, n1.gets("shop/db-1", "b1").await);
    assert_eq!(n1.gets("shop/db-0", "a2").await, zero);
    assert!(!n1.del("shop/db-0", "a1").await, "the old sandbox's DEL comes late");
    assert_eq!(n1.gets("shop/db-1", "b2").await, one);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b100_the_last_address_of_a_family_goes_and_comes_again() {
    let world = World::new(&[dual()]);
    let n1 = world.node("n1");
    for round in 0..3 {
        let (pod, container) = (format!("shop/a{round}"), format!("c{round}"));
        assert!(n1.gets(&pod, &container).await.contains(" fd00:9::1"));
        assert!(n1.del(&pod, &container).await);
        world.audit();
    }
}

#[tokio::test(start_paused = true)]
async fn b013_a_lease_that_ends_leaves_alone_what_has_become_anothers() {
    for end in ["DEL", "release", "another address"] {
        let world = World::new(&[r1()]);
        let n1 = world.node("n1");
        let address = n1.gets("shop/x", "x1").await;
        // A person deletes one key, and the next pod gets the address.
        let held = keys::address(&DomainName::new("default").unwrap(), ip(&address));
        world.store.delete(&held);
        assert_eq!(n1.gets("shop/y", "y1").await, address);
        let of_y = world.store.dump()[&held].clone();
        match end {
            "DEL" => assert!(n1.del("shop/x", "x1").await),
            "release" => {
                let lease = world.lease("shop/x").unwrap();
                let outcome = world.apply_txn(&changes::give_back(&lease, true, Timestamp(1)));
                assert!(matches!(outcome, Outcome::Applied(_)));
            }
            _ => {
                world.apply(&pool("r1", &["10.0.0.0/24 10.0.0.20-10.0.0.20"]));
                assert_eq!(n1.gets("shop/x", "x2").await, "10.0.0.20");
            }
        }
        assert_eq!(world.store.dump().get(&held), Some(&of_y), "{end}");
        assert!(!world.show().contains("R 10.0.0.10"), "{end}: {}", world.show());
        assert!(world.show().contains("L shop/y bound 10.0.0.10"));
        world.audit();
    }
}
