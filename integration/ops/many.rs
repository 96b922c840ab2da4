//! Many at once: nobody gets an address twice, nobody is told "full" while one is free, and nobody asks the store
//! more than it must.

use std::{collections::BTreeSet, ops::Range, sync::Arc, time::Duration};

use leasehold::{ops::Refusal, store::testing::MemoryStore};
use tokio::task::JoinSet;

use super::world::{Node, World, addresses, pool};

struct Cost {
    adds: usize,
    calls: usize,
    commits: usize,
    walked: usize,
}

impl Cost {
    fn per_add(&self) -> f64 {
        self.calls as f64 / self.adds as f64
    }
}

fn plain(number: usize) -> String {
    format!("shop/p{number}")
}

/// The pods of these numbers at once, on 64 nodes.
async fn at_once(
    world: &Arc<World>,
    pod: fn(usize) -> String,
    numbers: Range<usize>,
) -> (BTreeSet<String>, Cost) {
    world.store.forget();
    let mut runs = JoinSet::new();
    let mut cost = Cost { adds: numbers.len(), calls: 0, commits: 0, walked: 0 };
    for number in numbers {
        let node = Arc::new(world.node(&format!("n{}", number % 64)));
        runs.spawn(async move {
            let got = node.add(&pod(number), &format!("c{number}")).await;
            (node.way.calls(), node.way.commits(), got)
        });
    }
    let mut all = BTreeSet::new();
    while let Some(run) = runs.join_next().await {
        let (calls, commits, got) = run.unwrap();
        cost.calls += calls;
        cost.commits += commits;
        let got = addresses(&got.unwrap());
        assert!(all.insert(got.clone()), "{got} twice");
    }
    cost.walked = world.store.asked().walked;
    world.audit();
    (all, cost)
}

#[tokio::test(start_paused = true)]
async fn b089_250_at_once_on_250_all_succeed_and_the_251st_is_told_so() {
    for seed in [1, 2, 3] {
        let pools = [pool("p", &["10.0.0.0/24 10.0.0.1-10.0.0.250"])];
        let world = Arc::new(World::of(MemoryStore::with_jitter(seed), &pools));
        let (all, cost) = at_once(&world, plain, 0..250).await;
        assert_eq!(all.len(), 250);
        assert!(cost.per_add() < 8.0, "{}", cost.per_add());
        let late = world.node("n1").add("shop/late", "late").await.unwrap_err();
        assert_eq!(late.to_string(), "250 of 250 addresses of p are taken");
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_at_once_on_exactly_a_thousand() {
    let pools = [pool("p", &["10.0.0.0/22 10.0.0.1-10.0.3.232"])];
    let world = Arc::new(World::of(MemoryStore::with_jitter(7), &pools));
    let (all, cost) = at_once(&world, plain, 0..1_000).await;
    assert_eq!(all.len(), 1_000);
    assert!(cost.per_add() < 8.0, "{}", cost.per_add());
}

#[tokio::test(start_paused = true)]
async fn b088_a_thousand_pods_of_a_thousand_services_at_once_each_with_its_own_pool() {
    let pools: Vec<_> = (0..1_000)
        .map(|n| {
            let mut pool = pool(&format!("db{n}"), &[&format!("10.{}.{}.0/30", n / 250, n % 250)]);
            pool.serves = vec![format!("shop/db{n}")];
            pool.sticky = Some("always".into());
            pool
        })
        .collect();
    let world = Arc::new(World::of(MemoryStore::with_jitter(13), &pools));
    let pod = |n| format!("shop/db{n}-0");
    let (all, cost) = at_once(&world, pod, 0..1_000).await;
    assert_eq!(all.len(), 1_000);
    assert!(cost.per_add() < 8.0, "{}", cost.per_add());
    for n in 0..1_000 {
        let lease = world.lease(&pod(n)).unwrap().value;
        assert_eq!(lease.addresses[0].pool.as_ref().unwrap().as_str(), format!("db{n}"));
        assert!(lease.sticky);
    }
}

#[tokio::test(start_paused = true)]
async fn b077_b078_64_nodes_with_50_pods_each_and_then_churn() {
    let world = Arc::new(World::of(MemoryStore::with_jitter(11), &[pool("p", &["10.0.0.0/20"])]));
    let (all, _) = at_once(&world, plain, 0..3_200).await;
    assert_eq!(all.len(), 3_200);
    let mut runs = JoinSet::new();
    for node in 0..64 {
        let here: Arc<Node> = Arc::new(world.node(&format!("n{node}")));
        runs.spawn(async move {
            for round in 0..6 {
                for pod in (node..3_200).step_by(64).skip(round * 7).take(7) {
                    let name = format!("shop/p{pod}");
                    let container = format!("c{pod}");
                    match (pod / 64 + round) % 3 {
                        0 => assert!(here.del(&name, &container).await),
                        1 => {
                            here.gets(&name, &format!("{container}x")).await;
                        }
                        _ => {
                            assert!(here.del(&name, &container).await);
                            here.gets(&name, &container).await;
                        }
                    }
                }
            }
        });
    }
    while let Some(run) = runs.join_next().await {
        run.unwrap();
    }
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn many_at_once_on_too_few_share_them_and_the_rest_is_told_full_or_cooling() {
    let world =
        Arc::new(World::of(MemoryStore::with_jitter(5), &[pool("p", &["10.0.0.0/24 10.0.0.1-10.0.0.20"])]));
    let mut runs = JoinSet::new();
    for number in 0..60 {
        let node = world.node("n1");
        runs.spawn(async move { node.add(&format!("shop/p{number}"), &format!("c{number}")).await });
    }
    let (mut good, mut full) = (0, 0);
    while let Some(run) = runs.join_next().await {
        match run.unwrap() {
            Ok(_) => good += 1,
            Err(Refusal::Full { pools, .. }) => {
                assert_eq!((pools[0].used, pools[0].total), (20, 20));
                full += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((good, full), (20, 40));
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn many_runs_of_one_pod_leave_one_lease() {
    let world = Arc::new(World::of(MemoryStore::with_jitter(9), &[pool("p", &["10.0.0.0/24"])]));
    let node = Arc::new(world.node("n1"));
    let mut runs = JoinSet::new();
    for number in 0..20 {
        let node = node.clone();
        runs.spawn(async move {
            tokio::time::sleep(Duration::from_millis(number)).await;
            node.add("shop/p", &format!("c{number}")).await.is_ok()
        });
    }
    let mut good = 0;
    while let Some(run) = runs.join_next().await {
        good += usize::from(run.unwrap());
    }
    assert!(good >= 1);
    assert_eq!(world.show().lines().count(), 3, "{}", world.show());
    world.audit();
}

#[tokio::test(start_paused = true)]
async fn b085_b086_many_at_once_cost_few_calls_each_however_full_the_pool_is() {
    // 128 pods with 16 attachments each, on a /20; then as many on what is left of it.
    let world = Arc::new(World::new(&[pool("lan", &["10.8.0.0/20"])]));
    let (first, early) = at_once(&world, plain, 0..2_048).await;
    let (second, late) = at_once(&world, plain, 2_048..3_848).await;
    assert!(first.is_disjoint(&second));
    assert!(early.per_add() <= 5.0 && late.per_add() <= 5.0, "{} {}", early.per_add(), late.per_add());
}
