//! What a node remembers of its pools saves an ADD its second read, and changes nothing else. What it remembers of when it
//! looked at the store saves a take-over its wait.

use std::{sync::atomic::Ordering, time::Duration};

use leasehold::{
    domain::{
        names::{BootId, PoolName},
        pool::{Serve, parse_serve},
    },
    journal::{LookedAt, Memory},
    ops::Refusal,
    store::{Revision, keys, record::PoolDocument},
};
use tokio::time::{Instant, sleep};

use super::world::{Node, World, addresses, asked, pool};

fn serving(name: &str, subnet: &str, serves: &str) -> PoolDocument {
    let mut document = pool(name, &[subnet]);
    document.serves = vec![serves.into()];
    document
}

/// Of a pool that serves everything.
fn looked_at(pool: &str) -> LookedAt {
    LookedAt { serve: Serve::Everything, pool: PoolName::new(pool).unwrap() }
}

fn looked_at_for(serve: &str, pool: &str) -> LookedAt {
    LookedAt { serve: parse_serve(serve).unwrap(), ..looked_at(pool) }
}

fn names(names: &[&str]) -> Vec<LookedAt> {
    names.iter().map(|name| looked_at(name)).collect()
}

/// The reads and the commits of an ADD, which the node remembers.
async fn cost(node: &mut Node, pod: &str, container: &str) -> (usize, usize) {
    let (calls, commits) = (node.way.calls(), node.way.commits());
    let added = node.add(pod, container).await.unwrap();
    node.memory = added.memory;
    let commits = node.way.commits() - commits;
    (node.way.calls() - calls - commits, commits)
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_was_used_before_costs_no_read() {
    let mut db = serving("db", "10.0.1.0/24", "shop/db");
    db.sticky = Some("always".into());
    let world = World::new(&[pool("lan", &["10.0.0.0/24"]), db]);
    let mut n1 = world.node("n1");
    assert_eq!(cost(&mut n1, "shop/a", "a1").await, (2, 1));
    assert_eq!(cost(&mut n1, "shop/a", "a1").await, (1, 0));
    assert_eq!(cost(&mut n1, "shop/a", "a2").await, (1, 1));
    assert_eq!(cost(&mut n1, "shop/b", "b1").await, (1, 1));
    assert_eq!(n1.memory.pools, names(&["lan"]));
    // One of its two pools is new here.
    assert_eq!(cost(&mut n1, "shop/db-0", "d1").await, (2, 1));
    assert_eq!(n1.memory.pools, [looked_at_for("shop/db", "db"), looked_at("lan")]);
    // A DEL knows no pools, and forgets none.
    n1.memory = n1.try_del(Some("shop/db-0"), "d1").await.unwrap().memory;
    assert_eq!(n1.memory.pools, [looked_at_for("shop/db", "db"), looked_at("lan")]);
    assert_eq!(cost(&mut n1, "shop/db-0", "d2").await, (1, 1));
    // The latest come first.
    assert_eq!(cost(&mut n1, "shop/a", "a3").await, (1, 1));
    assert_eq!(n1.memory.pools, [looked_at("lan"), looked_at_for("shop/db", "db")]);
    // Another node has not used them.
    assert_eq!(cost(&mut world.node("n2"), "shop/c", "c1").await, (2, 1));
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_pool_the_index_no_longer_names_is_known_from_memory_too() {
    let world = World::new(&[serving("old", "10.0.0.0/24", "shop/a"), pool("lan", &["10.0.1.0/24"])]);
    let mut n1 = world.node("n1");
    assert_eq!(cost(&mut n1, "shop/a", "a1").await, (2, 1));
    world.apply(&serving("old", "10.0.0.0/24", "shop/other"));
    assert_eq!(cost(&mut n1, "shop/a", "a1").await, (1, 0));
    assert_eq!(n1.memory.pools, [looked_at("lan"), looked_at_for("shop/a", "old")]);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_remembered_pool_that_this_pod_does_not_lead_to_is_as_if_never_read() {
    let mut first = serving("first", "10.0.9.0/24", "*/*");
    first.priority = Some(1);
    let other = serving("other", "10.0.8.0/24", "shop/db");
    let world = World::new(&[pool("lan", &["10.0.0.0/24"]), first, other]);
    // The index says who serves whom: this pool's own list does not count.
    for key in world.store.dump().into_keys() {
        if keys::parse_serve(&key).is_some_and(|(_, name)| name.as_str() == "first") {
            world.store.delete(&key);
        }
    }
    let key = |name: &str| keys::pool(&PoolName::new(name).unwrap());
    world.store.put(&key("newer"), r#"{"v":9}"#);
    world.store.put(&key("invalid"), "{");
    let remembered = names(&["newer", "invalid", "gone", "first", "other", "lan"]);
    let mut n1 = world.node("n1");
    n1.memory.pools.clone_from(&remembered);
    assert!(n1.gets("shop/a", "a1").await.starts_with("10.0.0."));
    assert_eq!(n1.way.calls(), 2);
    // Memory is what was needed, and then what was there.
    let added = n1.add("shop/a", "a1").await.unwrap();
    assert_eq!(added.memory.pools, names(&["lan", "newer", "invalid", "gone", "first", "other"]));
    assert!(n1.trail.notes.lock().unwrap().is_empty());

    // Without a pool for it, a pod is told the same.
    world.delete_pool("lan");
    let calls = n1.way.calls();
    let refused = n1.add("shop/b", "b1").await.unwrap_err();
    assert_eq!(n1.way.calls(), calls + 1);
    let Refusal::NoPool { near, .. } = &refused else { panic!("{refused}") };
    assert!(near.is_empty(), "{near:?}");
    n1.memory = Memory::default();
    assert_eq!(n1.add("shop/b", "b1").await.unwrap_err(), refused);
}

#[tokio::test(start_paused = true)]
async fn a_needed_pool_that_cannot_be_used_says_the_same_from_memory() {
    for spoiled in [r#"{"v":9}"#, "{"] {
        let world = World::new(&[pool("lan", &["10.0.0.0/24"])]);
        let mut n1 = world.node("n1");
        n1.gets("shop/a", "a1").await;
        world.store.put(&keys::pool(&PoolName::new("lan").unwrap()), spoiled);
        let refused = n1.refused(&n1.ask("shop/a", "a2")).await;
        n1.memory.pools = names(&["lan"]);
        let calls = n1.way.calls();
        assert_eq!(n1.refused(&n1.ask("shop/a", "a2")).await, refused);
        assert_eq!(n1.way.calls(), calls + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn memory_of_pools_has_an_end_and_never_costs_a_request() {
    let numbered = |count: u8| -> Vec<String> { (0..count).map(|n| format!("p{n}")).collect() };
    let pools: Vec<PoolDocument> =
        (0..90).map(|n| pool(&format!("p{n}"), &[&format!("10.0.{n}.0/24")])).collect();
    let world = World::new(&pools);
    let mut n1 = world.node("n1");
    // More pools serve it than a node remembers.
    assert_eq!(cost(&mut n1, "shop/a", "a1").await, (2, 1));
    assert_eq!(n1.memory.pools.len(), 32);
    assert_eq!(cost(&mut n1, "shop/b", "b1").await, (2, 1));

    // Whatever the file said.
    n1.memory.pools = (0..1000).map(|n| looked_at(&format!("x{n}"))).collect();
    assert_eq!(cost(&mut n1, "shop/c", "c1").await, (2, 1));
    assert_eq!(n1.memory.pools.len(), 32);
    // A request that has room for few of them takes few.
    n1.memory.pools = (0..1000).map(|n| looked_at(&format!("x{n}"))).collect();
    let all = numbered(90);
    let mut request = n1.ask("shop/d", "d1");
    request.asked = asked(&all.iter().map(String::as_str).collect::<Vec<_>>());
    let calls = n1.way.calls();
    assert!(!addresses(&n1.run(&request).await.unwrap()).is_empty());
    assert_eq!(n1.way.calls(), calls + 2);
    world.audit();
}

/// The node's clock is five minutes ahead, so that another's lease of just now looks old. How long its take-over waits.
async fn wait(n1: &Node, pod: &str) -> Duration {
    n1.clock.skew.store(300_000, Ordering::Relaxed);
    let began = Instant::now();
    n1.add(pod, &format!("{}-b", &pod[5..])).await.unwrap();
    n1.clock.skew.store(0, Ordering::Relaxed);
    began.elapsed()
}

/// A DEL of nothing: it sees the store.
async fn looks(node: &mut Node) {
    node.memory = node.try_del(None, "nothing").await.unwrap().memory;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_the_node_could_see_some_seconds_ago_is_taken_over_at_once() {
    let world = World::new(&[pool("lan", &["10.0.0.0/24"])]);
    let (mut n1, n2) = (world.node("n1"), world.node("n2"));
    let second = Duration::from_secs(1);
    for pod in ["shop/old-0", "shop/old-1", "shop/old-2", "shop/old-3"] {
        n2.add(pod, &format!("{}-a", &pod[5..])).await.unwrap();
    }
    assert!(wait(&n1, "shop/old-0").await > 5 * second, "it never looked");
    looks(&mut n1).await;
    sleep(3 * second).await;
    let waited = wait(&n1, "shop/old-1").await;
    assert!(waited > 2 * second && waited < 3 * second, "it looked three seconds ago: {waited:?}");
    // What it saw then is not forgotten for what it sees now, and says nothing of what was bound since.
    n2.add("shop/new-0", "new-0-a").await.unwrap();
    looks(&mut n1).await;
    assert!(wait(&n1, "shop/old-2").await < second);
    assert!(wait(&n1, "shop/new-0").await > 4 * second);
    // Another boot has another boot-time clock.
    n1.me.boot = Some(BootId::new("boot-n1-again").unwrap());
    assert!(wait(&n1, "shop/old-3").await > 5 * second);
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_never_rests_has_an_old_sighting_all_the_same() {
    let world = World::new(&[pool("lan", &["10.0.0.0/24"])]);
    let mut n1 = world.node("n1");
    for _ in 0..40 {
        looks(&mut n1).await;
        sleep(Duration::from_millis(500)).await;
    }
    let at: Vec<u64> = n1.memory.sightings.iter().map(|sighting| sighting.at).collect();
    // One that is old enough, and those since.
    assert!((11..=12).contains(&at.len()), "{at:?}");
    assert!(at.windows(2).all(|pair| pair[0] - pair[1] >= 1_000_000), "{at:?}");
    assert!((10_000_000..12_000_000).contains(&(at[0] - at[at.len() - 1])), "{at:?}");
}

/// It saw the store further than it is now: that was another past, and what is written from here on comes to the same
/// revisions.
#[tokio::test(start_paused = true)]
async fn what_was_seen_of_a_past_that_is_gone_is_forgotten() {
    let world = World::new(&[pool("lan", &["10.0.0.0/24"])]);
    let mut n1 = world.node("n1");
    looks(&mut n1).await;
    n1.memory.sightings[0].revision = Revision(1_000);
    sleep(Duration::from_secs(2)).await;
    looks(&mut n1).await;
    let seen: Vec<Revision> = n1.memory.sightings.iter().map(|sighting| sighting.revision).collect();
    assert_eq!(seen, [world.store.revision()]);
}

/// Another node has frozen the store, which may have been set back: what this one saw then may be another past's.
#[tokio::test(start_paused = true)]
async fn what_was_seen_says_nothing_while_the_store_is_frozen() {
    let world = World::new(&[pool("lan", &["10.0.0.0/24"])]);
    let (mut n1, n2) = (world.node("n1"), world.node("n2"));
    n2.add("shop/old-0", "old-0-a").await.unwrap();
    looks(&mut n1).await;
    sleep(Duration::from_secs(6)).await;
    world.freeze("it was restored");
    assert!(wait(&n1, "shop/old-0").await > Duration::from_secs(5));
}

/// The bytes that an ADD is answered.
async fn answered(world: &World, node: &Node, pod: &str) -> usize {
    let before = world.store.asked().answered;
    node.add(pod, &format!("{}-c", &pod[5..])).await.unwrap();
    world.store.asked().answered - before
}

#[tokio::test(start_paused = true)]
async fn a_pool_of_another_workload_is_not_asked_for() {
    let of_db = |number: u8| serving(&format!("db-{number}"), &format!("10.1.{number}.0/24"), "shop/db");
    let of_all = pool("lan", &["10.0.0.0/24"]);
    let world = World::new(&[vec![of_all], (0..9).map(of_db).collect()].concat());
    let mut n1 = world.node("n1");
    assert_eq!(cost(&mut n1, "shop/a", "a1").await, (2, 1));
    let few = answered(&world, &n1, "shop/b").await;
    assert_eq!(cost(&mut n1, "shop/db-0", "d1").await, (2, 1));
    assert_eq!(n1.memory.pools.len(), 10);
    assert_eq!(answered(&world, &n1, "shop/c").await, few);
    // They are not forgotten.
    n1.memory = n1.add("shop/d", "d2").await.unwrap().memory;
    assert_eq!(cost(&mut n1, "shop/db-1", "e1").await, (1, 1));
    world.audit();
}

/// A pool whose every address somebody had: a guess meets a released key.
#[tokio::test(start_paused = true)]
async fn a_pool_whose_addresses_all_were_used_is_crowded_too() {
    let mut document = pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.19"]);
    document.cool_down = Some("0s".into());
    let world = World::new(&[document]);
    let mut n1 = world.node("n1");
    for number in 0..10 {
        n1.add(&format!("shop/first-{number}"), &format!("f{number}")).await.unwrap();
    }
    for number in 0..10 {
        assert!(n1.del(&format!("shop/first-{number}"), &format!("f{number}")).await);
    }
    assert_eq!(cost(&mut n1, "shop/a", "a1").await, (2, 2));
    for number in 0..20 {
        let (pod, container) = (format!("shop/next-{number}"), format!("n{number}"));
        let expected = if number == 16 { (1, 2) } else { (1, 1) };
        assert_eq!(cost(&mut n1, &pod, &container).await, expected, "{number}");
        n1.memory = n1.try_del(Some(&pod), &container).await.unwrap().memory;
    }
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn spares_end_where_they_help_nobody() {
    let world = World::new(&[pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.29", "10.0.1.0/24"])]);
    let mut n1 = world.node("n1");
    for number in 0..19 {
        n1.memory = n1.add(&format!("shop/first-{number}"), &format!("f{number}")).await.unwrap().memory;
    }
    assert!(!n1.memory.spares.is_empty());
    // Others take what is left of the first range; so the second is searched.
    let n2 = world.node("n2");
    for number in 0..2 {
        n2.add(&format!("shop/other-{number}"), &format!("o{number}")).await.unwrap();
    }
    for number in 0..16 {
        n1.memory = n1.add(&format!("shop/next-{number}"), &format!("n{number}")).await.unwrap().memory;
    }
    assert_eq!(n1.memory.spares, []);
    world.audit();
}

/// What was just given back cools. It must not push out what can be had.
#[tokio::test(start_paused = true)]
async fn what_cools_pushes_no_spare_out() {
    let world = World::new(&[pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.29"])]);
    let mut n1 = world.node("n1");
    let pod = |number: usize| (format!("shop/p-{number}"), format!("c{number}"));
    for number in 0..19 {
        let (pod, container) = pod(number);
        n1.memory = n1.add(&pod, &container).await.unwrap().memory;
    }
    let usable: Vec<_> = n1.memory.spares.iter().flat_map(|spares| spares.addresses.clone()).collect();
    assert_eq!(usable.len(), 1);
    for number in 0..9 {
        let (pod, container) = pod(number);
        n1.memory = n1.try_del(Some(&pod), &container).await.unwrap().memory;
    }
    assert_eq!(n1.memory.spares[0].addresses.len(), 8);
    assert_eq!(cost(&mut n1, "shop/next", "n").await, (1, 1));
    assert_eq!(n1.gets("shop/next", "n").await, usable[0].to_string());
    world.audit();
}
