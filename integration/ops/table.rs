//! The table of transactions of the design: what each change compares and writes, to the letter. `L` lease, `A`
//! address, `R` released, `T` attachment, `P` pool, `S` whom it serves, `F` frozen; `=r` as read, `=0` absent; in brackets
//! what is done only where the address still names the lease.

use std::time::Duration;

use leasehold::{
    domain::{
        lease::{Binding, Declined, Lease, LeaseId, LeasedAddress, Timestamp},
        names::{DomainName, PoolName},
        pool::{Draft, Pool},
    },
    ops,
    store::{
        Outcome, Txn, changes,
        changes::Take,
        keys,
        record::{self, PoolDocument},
    },
};

use super::world::{Node, World, futures_now, holder, id, ip, line, pool};

/// The lines of what this node sent since the last time.
fn sent(world: &World) -> Vec<String> {
    let lines = world.store.log().iter().map(|(txn, _)| line(txn)).collect();
    world.store.forget();
    lines
}

fn applied(world: &World, txn: &Txn) -> String {
    assert!(matches!(world.apply_txn(txn), Outcome::Applied(_)), "{}", line(txn));
    world.audit();
    world.store.forget();
    line(txn)
}

fn one(text: &str) -> PoolDocument {
    pool("p", &[&format!("10.0.0.0/24 {text}-{text}")])
}

async fn add(node: &Node, pod: &str, container: &str) {
    node.gets(pod, container).await;
}

#[tokio::test(start_paused = true)]
async fn add_new() {
    let world = World::new(&[one("10.0.0.10")]);
    let n1 = world.node("n1");
    add(&n1, "shop/a", "a1").await;
    assert_eq!(
        sent(&world),
        ["A(10.0.0.10)=0 F=0 L(shop/a)=0 P(p)=r R(10.0.0.10)=0 | put A(10.0.0.10) put L(shop/a) put T(a1)"]
    );
    n1.del("shop/a", "a1").await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    world.store.forget();
    add(&n1, "shop/b", "b1").await;
    assert_eq!(
        sent(&world).last().unwrap(),
        "A(10.0.0.10)=0 F=0 L(shop/b)=0 P(p)=r R(10.0.0.10)=r | \
         del R(10.0.0.10) put A(10.0.0.10) put L(shop/b) put T(b1)"
    );
}

#[tokio::test(start_paused = true)]
async fn add_take_over() {
    let world = World::new(&[one("10.0.0.10")]);
    let n1 = world.node("n1");
    add(&n1, "shop/a", "a1").await;
    world.store.forget();
    add(&n1, "shop/a", "a2").await;
    assert_eq!(sent(&world), ["L(shop/a)=r P(p)=r | del T(a1) put L(shop/a) put T(a2)"]);
    // The same attachment key (a lease of another boot, say): put only.
    let lease = world.lease("shop/a").unwrap();
    let txn = changes::take_over(&lease, &lease.value, &[]);
    assert_eq!(applied(&world, &txn), "L(shop/a)=r | put L(shop/a) put T(a2)");
}

#[tokio::test(start_paused = true)]
async fn add_take_over_with_another_address() {
    let world = World::new(&[one("10.0.0.10")]);
    let n1 = world.node("n1");
    add(&n1, "shop/a", "a1").await;
    world.apply(&one("10.0.0.20"));
    world.store.forget();
    add(&n1, "shop/a", "a2").await;
    assert_eq!(
        sent(&world),
        ["A(10.0.0.20)=0 F=0 L(shop/a)=r P(p)=r R(10.0.0.20)=0 | \
          [A(10.0.0.10)=own: del A(10.0.0.10), put R(10.0.0.10)] del T(a1) put A(10.0.0.20) put L(shop/a) put T(a2)"]
    );
    world.apply(&one("10.0.0.10"));
    world.store.forget();
    add(&n1, "shop/a", "a3").await;
    assert_eq!(
        sent(&world).last().unwrap(),
        "A(10.0.0.10)=0 F=0 L(shop/a)=r P(p)=r R(10.0.0.10)=r | \
         [A(10.0.0.20)=own: del A(10.0.0.20), put R(10.0.0.20)] del R(10.0.0.10) del T(a2) put A(10.0.0.10) put L(shop/a) put T(a3)"
    );
}

#[tokio::test(start_paused = true)]
async fn add_of_the_same_container() {
    let world = World::new(&[one("10.0.0.10")]);
    let n1 = world.node("n1");
    add(&n1, "shop/a", "a1").await;
    world.store.forget();
    add(&n1, "shop/a", "a1").await;
    assert_eq!(sent(&world), [""; 0]);
    n1.del("shop/a", "a1").await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    add(&n1, "_/x1", "x1").await;
    world.store.forget();
    add(&n1, "_/x1", "x1").await;
    assert_eq!(sent(&world), ["L(_/x1)=r | put L(_/x1)"]);
}

#[tokio::test(start_paused = true)]
async fn decline_and_a_release_in_the_future() {
    let world = World::new(&[one("10.0.0.10")]);
    let n1 = world.node("n1");
    let domain = DomainName::new("default").unwrap();
    let by = holder("shop/a");
    let declined = Declined { mac: "02:00:00:00:00:01".into(), at: Timestamp(5) };
    let txn = changes::decline(&domain, ip("10.0.0.10"), None, (&by, &n1.me.cluster), declined.clone());
    assert_eq!(applied(&world, &txn), "A(10.0.0.10)=0 R(10.0.0.10)=0 | put R(10.0.0.10)");
    let released = released(&world, "10.0.0.10");
    let txn = changes::decline(&domain, ip("10.0.0.10"), Some(&released), (&by, &n1.me.cluster), declined);
    assert_eq!(applied(&world, &txn), "A(10.0.0.10)=0 R(10.0.0.10)=r | put R(10.0.0.10)");
    let released = self::released(&world, "10.0.0.10");
    let txn = changes::refresh_released(&domain, ip("10.0.0.10"), &released, Timestamp(9));
    assert_eq!(applied(&world, &txn), "A(10.0.0.10)=0 R(10.0.0.10)=r | put R(10.0.0.10)");
}

fn released(world: &World, address: &str) -> record::Stored<leasehold::domain::lease::Released> {
    use leasehold::store::{Read, Store};
    let key = keys::released(&DomainName::new("default").unwrap(), ip(address));
    let read = [Read::Get(key)];
    let snapshot = futures_now(world.store.read(&read, None)).unwrap();
    record::decode_released(snapshot.entry(0).unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn undo_and_del() {
    let world = World::new(&[one("10.0.0.10")]);
    let n1 = world.node("n1");
    let added = n1.add("shop/a", "a1").await.unwrap();
    world.store.forget();
    ops::undo(&n1.context(Duration::from_secs(5)), &added).await.unwrap();
    let released =
        "L(shop/a)=r | [A(10.0.0.10)=own: del A(10.0.0.10), put R(10.0.0.10)] del L(shop/a) del T(a1)";
    assert_eq!(sent(&world), [released]);
    let ended = format!("F=0 {released}");
    add(&n1, "shop/a", "a1").await;
    world.store.forget();
    n1.del("shop/a", "a1").await;
    assert_eq!(sent(&world), std::slice::from_ref(&ended));
    add(&n1, "shop/a", "a1").await;
    world.store.forget();
    n1.gc(&[]).await.unwrap();
    assert_eq!(sent(&world), [ended]);
    n1.del("shop/a", "a1").await;
    assert_eq!(sent(&world), [""; 0]);

    let mut document = one("10.0.0.10");
    document.sticky = Some("always".into());
    world.apply(&document);
    add(&n1, "shop/a", "a1").await;
    world.store.forget();
    n1.del("shop/a", "a1").await;
    assert_eq!(sent(&world), ["F=0 L(shop/a)=r | del T(a1) put L(shop/a)"]);
}

#[tokio::test(start_paused = true)]
async fn what_the_reaper_and_a_person_do_to_a_lease() {
    let world = World::new(&[one("10.0.0.10")]);
    let n1 = world.node("n1");
    add(&n1, "shop/a", "a1").await;
    let lease = world.lease("shop/a").unwrap();
    assert_eq!(applied(&world, &changes::note(&lease, &lease.value)), "L(shop/a)=r | put L(shop/a)");
    assert!(changes::move_lease(&world.lease("shop/a").unwrap(), &id("shop/b"), Timestamp(5)).is_none());
    let lease = world.lease("shop/a").unwrap();
    assert_eq!(
        applied(&world, &changes::give_back(&lease, true, Timestamp(5))),
        "L(shop/a)=r | [A(10.0.0.10)=own: del A(10.0.0.10), put R(10.0.0.10)] del L(shop/a) del T(a1)"
    );
    let domain = DomainName::new("default").unwrap();
    assert!(changes::forget(&domain, ip("10.0.0.10"), &released(&world, "10.0.0.10")).is_none());
    add(&n1, "shop/a", "a2").await;
    n1.del("shop/a", "a2").await;
    let txn = changes::forget(&domain, ip("10.0.0.10"), &released(&world, "10.0.0.10")).unwrap();
    assert_eq!(applied(&world, &txn), "R(10.0.0.10)=r | del R(10.0.0.10)");
}

fn reserved(pod: &str, address: &str) -> Lease {
    Lease {
        id: id(pod),
        addresses: vec![LeasedAddress {
            address: ip(address),
            domain: DomainName::new("default").unwrap(),
            pool: Some(PoolName::new("p").unwrap()),
        }],
        binding: Binding::Idle(None),
        since: Timestamp(1),
        created: Timestamp(1),
        sticky: false,
        reserved: true,
        unconfirmed: false,
        seen: None,
    }
}

#[tokio::test(start_paused = true)]
async fn reserve_move_and_devices() {
    let world = World::new(&[one("10.0.0.10")]);
    let lease = reserved("shop/a", "10.0.0.10");
    let take = Take { address: lease.addresses[0].clone(), released: None };
    let read = {
        use leasehold::store::{Read, Store};
        let read = [Read::Get(keys::pool(&PoolName::new("p").unwrap()))];
        futures_now(world.store.read(&read, None)).unwrap()
    };
    let guard = changes::pool_as_read(&record::decode_pool(read.entry(0).unwrap()).unwrap());
    let txn = changes::reserve(&lease, std::slice::from_ref(&take), &[guard]);
    assert_eq!(
        applied(&world, &txn),
        "A(10.0.0.10)=0 L(shop/a)=0 P(p)=r R(10.0.0.10)=0 | put A(10.0.0.10) put L(shop/a)"
    );
    let to: LeaseId = id("shop/b");
    let txn = changes::move_lease(&world.lease("shop/a").unwrap(), &to, Timestamp(5)).unwrap();
    assert_eq!(
        applied(&world, &txn),
        "A(10.0.0.10)=value L(shop/a)=r L(shop/b)=0 | del L(shop/a) put A(10.0.0.10) put L(shop/b)"
    );
    let txn = changes::give_back(&world.lease("shop/b").unwrap(), false, Timestamp(5));
    assert_eq!(
        applied(&world, &txn),
        "L(shop/b)=r | [A(10.0.0.10)=own: del A(10.0.0.10), put R(10.0.0.10)] del L(shop/b)"
    );
    let released = released(&world, "10.0.0.10");
    let take = Take { released: Some(released.revision), ..take };
    let txn = changes::reserve(&lease, &[take], &[]);
    assert_eq!(
        applied(&world, &txn),
        "A(10.0.0.10)=0 L(shop/a)=0 R(10.0.0.10)=r | del R(10.0.0.10) put A(10.0.0.10) put L(shop/a)"
    );
    let domain = DomainName::new("default").unwrap();
    let txn = changes::reserve_device(&domain, ip("10.0.0.11"), None, "printer", Timestamp(5));
    assert_eq!(applied(&world, &txn), "A(10.0.0.11)=0 R(10.0.0.11)=0 | put A(10.0.0.11)");
    let cluster = world.node("n1").me.cluster;
    let by = holder("shop/a");
    let held = world.store.revision();
    let txn = changes::release_device(&domain, ip("10.0.0.11"), held, (&by, &cluster), Timestamp(6));
    assert_eq!(applied(&world, &txn), "A(10.0.0.11)=r | del A(10.0.0.11) put R(10.0.0.11)");
}

#[tokio::test(start_paused = true)]
async fn pool_apply_and_delete() {
    let world = World::new(&[]);
    let of = |document: &PoolDocument| Pool::from_draft(&Draft::from(document)).unwrap();
    let mut document = one("10.0.0.10");
    document.serves = vec!["shop/a".into(), "shop/b".into()];
    let before = of(&document);
    assert_eq!(
        applied(&world, &changes::apply_pool(&document, &before, None, &[])),
        "P(p)=0 | put P(p) put S(shop/a p) put S(shop/b p)"
    );
    let read = world.store.revision();
    document.serves = vec!["shop/b".into(), "shop/*".into()];
    let txn = changes::apply_pool(&document, &of(&document), Some((before.serves(), read)), &[]);
    assert_eq!(applied(&world, &txn), "P(p)=r | del S(shop/a p) put P(p) put S(shop/* p)");
    let read = world.store.revision();
    let span = keys::addresses_of(&DomainName::new("default").unwrap(), before.ranges()[0].bounds());
    let txn = changes::delete_pool(before.name(), of(&document).serves(), read, &[span], read);
    let wanted = "P(p)=r none since in v1/addresses/default/4/0a00000a | \
                  del P(p) del S(shop/* p) del S(shop/b p)";
    // An address of its ranges that was written since then keeps the pool.
    let other = world.store.fork();
    other.put(
        &keys::address(&DomainName::new("default").unwrap(), ip("10.0.0.10")),
        record::encode_device("x", Timestamp(1)),
    );
    {
        use leasehold::store::Store;
        assert!(matches!(futures_now(other.commit(&txn)).unwrap(), Outcome::Conflict(_)));
    }
    assert_eq!(applied(&world, &txn), wanted);
}
