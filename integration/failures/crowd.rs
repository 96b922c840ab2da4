//! Many processes at once, and processes that are killed at any moment.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{bound, pool_of};
use crate::support::{
    call::{Answer, Call},
    chance::Chance,
    crowd::crowd,
    etcd::Etcd,
    ground,
    host::HostFile,
    parts::{Part, Version, require},
    process::report,
};

fn ground_of(version: Version, size: u32) -> (Etcd, HostFile) {
    let etcd = Etcd::start(version);
    let host = HostFile::on(&etcd).with("deadlines", serde_json::json!({ "add": "60s", "del": "50s" }));
    pool_of(&host, size);
    (etcd, host)
}

fn address(answer: &Answer) -> String {
    let mut all = answer.addresses();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// What a crowd of first ADDs took.
fn fill(host: &HostFile, at_once: usize, count: usize) {
    let start = Instant::now();
    let all = crowd(at_once, count, |n| {
        let answer = Call::add(host).pod(&format!("shop/p{n}")).container(&format!("c{n}")).run();
        (address(&answer), answer.0.took)
    });
    let wall = start.elapsed();
    let mut times: Vec<_> = all.iter().map(|(_, took)| *took).collect();
    times.sort_unstable();
    report(&format!(
        "{count} ADDs, {at_once} at a time: {wall:.1?}, each {:?} (half), {:?} (99 %), {:?} (all)",
        times[count / 2],
        times[count * 99 / 100],
        times[count - 1],
    ));
    let mut addresses: Vec<_> = all.into_iter().map(|(address, _)| address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), count, "an address was given twice");
    assert_eq!(bound(host).len(), count);
}

#[test]
fn b077_sixty_four_at_a_time_and_nobody_shares() {
    require!(Part::Etcd(Version::V36));
    let (_etcd, host) = ground_of(Version::V36, 4094);
    fill(&host, 64, 64 * 50);
}

#[test]
fn b089_as_many_at_once_as_there_are_addresses() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let (_etcd, host) = ground_of(version, 250);
        fill(&host, 250, 250);
        let one_more = Call::add(&host).pod("shop/one-more").container("more");
        let text = one_more.run().error_text(11);
        assert!(text.contains("250 of 250"), "{text}");
        // B090, B022: its DEL is no error, and as soon as there is room its next try finds it.
        Call::del(&host).pod("shop/one-more").container("more").run().is_silent();
        Call::del(&host).pod("shop/p7").container("c7").run().is_silent();
        let _ = address(&one_more.run());
        assert_eq!(bound(&host).len(), 250);
    }
}

#[test]
fn b089_a_thousand_on_a_thousand() {
    require!(Part::Etcd(Version::V36));
    let (_etcd, host) = ground_of(Version::V36, 1000);
    fill(&host, 64, 1000);
}

/// Each worker has pods of its own, and knows what it holds; all of them know who lives where.
#[test]
fn b077_churn_loses_nothing_and_gives_nothing_twice() {
    const WORKERS: u64 = 24;
    const PODS: u64 = 4;
    /// Long enough for some thousand calls.
    const FOR: Duration = Duration::from_secs(15);
    require!(Part::Etcd(Version::V36));
    // Tight: at times it is full.
    let (_etcd, host) = ground_of(Version::V36, 60);
    let nodes: Vec<_> = (0..3).map(|n| host.node(&format!("n{n}"))).collect();
    let living: Mutex<HashMap<String, String>> = Mutex::default();
    let (adds, full, dels, late) =
        (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let start = Instant::now();
    let count = |counter: &AtomicU32| counter.fetch_add(1, Ordering::Relaxed);
    let work = |worker: u64| {
        let mut chance = Chance(worker);
        let node = &nodes[usize::try_from(worker % 3).unwrap()];
        // The container that has the pod's lease, and where it lives.
        let mut mine: BTreeMap<u64, (String, String)> = BTreeMap::new();
        let mut dead: Vec<(u64, String)> = Vec::new();
        let mut serial = 0;
        while start.elapsed() < FOR {
            let pod = chance.below(PODS);
            let name = format!("shop/w{worker}p{pod}");
            serial += 1;
            match chance.below(8) {
                0..=3 => {
                    let container = format!("w{worker}x{serial}");
                    let answer = Call::add(node).pod(&name).container(&container).run();
                    if answer.0.code() != Some(0) {
                        let text = answer.error_text(11);
                        assert!(text.contains("60 of 60") && !mine.contains_key(&pod), "{text}");
                        count(&full);
                        continue;
                    }
                    count(&adds);
                    let at = address(&answer);
                    if let Some((old, was)) = mine.insert(pod, (container, at.clone())) {
                        assert_eq!(was, at, "{name} moved");
                        dead.push((pod, old));
                    }
                    let other = living.lock().unwrap().insert(at.clone(), name.clone());
                    assert!(other.as_ref().is_none_or(|other| *other == name), "{at}: {other:?} and {name}");
                }
                4..=5 => {
                    let Some((container, at)) = mine.remove(&pod) else { continue };
                    count(&dels);
                    living.lock().unwrap().remove(&at);
                    Call::del(node).pod(&name).container(&container).run().is_silent();
                    dead.push((pod, container));
                }
                6 => {
                    // Late, and perhaps not for the first time.
                    let Some((pod, container)) = chance.one_of(&dead) else {
                        continue;
                    };
                    count(&late);
                    let name = format!("shop/w{worker}p{pod}");
                    Call::del(node).pod(&name).container(container).run().is_silent();
                }
                _ => {
                    let Some((container, at)) = mine.get(&pod) else { continue };
                    let again = Call::add(node).pod(&name).container(container).run();
                    assert_eq!(address(&again), *at);
                }
            }
        }
        mine.into_iter()
            .map(|(pod, (container, at))| (format!("shop/w{worker}p{pod}"), (container, at)))
            .collect::<Vec<_>>()
    };
    let held: BTreeMap<String, (String, String)> =
        crowd(usize::try_from(WORKERS).unwrap(), usize::try_from(WORKERS).unwrap(), |n| work(n as u64))
            .into_iter()
            .flatten()
            .collect();
    report(&format!(
        "{adds:?} ADDs and {full:?} on a full pool, {dels:?} DELs, {late:?} late ones: {:?}",
        start.elapsed()
    ));
    let leases = ground::leases(&host);
    let stored: BTreeMap<String, (String, String)> = leases
        .iter()
        .map(|lease| {
            let container = lease.bound().unwrap().container.as_str().to_owned();
            (lease.id.holder.to_string(), (container, format!("{}/16", lease.addresses[0].address)))
        })
        .collect();
    assert_eq!(stored, held);
}

#[test]
fn b008_many_sandboxes_of_one_pod_use_one_address() {
    require!(Part::Etcd(Version::V36));
    let (_etcd, host) = ground_of(Version::V36, 4);
    let first = address(&Call::add(&host).pod("shop/p").container("c0").run());
    for n in 1..50 {
        let answer = Call::add(&host).pod("shop/p").container(&format!("c{n}")).run();
        assert_eq!(address(&answer), first);
    }
    let lease = ground::only_lease(&host);
    assert_eq!(lease.bound().unwrap().container.as_str(), "c49");
    // B012, B028: every DEL but the last one's is of the past, in whatever order.
    for n in [3, 0, 48, 3] {
        Call::del(&host).pod("shop/p").container(&format!("c{n}")).run().is_silent();
        assert_eq!(bound(&host), super::one("shop/p", "c49"));
    }
    Call::del(&host).pod("shop/p").container("c49").run().is_silent();
    ground::is_empty(&host);
    Call::del(&host).pod("shop/p").container("c49").run().is_silent();
}

#[test]
fn one_pod_is_added_by_many_at_once_and_one_of_them_has_it() {
    require!(Part::Etcd(Version::V36));
    let (_etcd, host) = ground_of(Version::V36, 8);
    for round in 0..5 {
        let answers = crowd(16, 16, |n| {
            let container = format!("r{round}c{n}");
            (container.clone(), Call::add(&host).pod("shop/p").container(&container).run())
        });
        let won: Vec<_> = answers.iter().filter(|(_, answer)| answer.0.code() == Some(0)).collect();
        assert!(!won.is_empty(), "{:?}", answers[0].1.0.stdout());
        for (_, lost) in answers.iter().filter(|(_, answer)| answer.0.code() != Some(0)) {
            let text = lost.error_text(11);
            assert!(text.contains("newer sandbox"), "{text}");
        }
        let holder = bound(&host)["shop/p"].clone();
        assert!(won.iter().any(|(container, _)| *container == holder), "{holder}");
        for (container, _) in answers.iter().filter(|(container, _)| *container != holder) {
            Call::del(&host).pod("shop/p").container(container).run().is_silent();
        }
        assert_eq!(bound(&host), super::one("shop/p", &holder));
    }
}

#[test]
fn a_kill_at_any_moment_leaves_nothing_half_done() {
    const KILLS: u64 = 200;
    require!(Part::Etcd(Version::V36));
    let (_etcd, host) = ground_of(Version::V36, 8);
    let usual = {
        let answer = Call::add(&host).pod("shop/usual").run();
        Call::del(&host).pod("shop/usual").run().is_silent();
        u64::try_from(answer.0.took.as_micros()).unwrap()
    };
    let mut chance = Chance(9);
    let (mut dead, mut bound_dead) = (0, 0);
    for n in 0..KILLS {
        let pod = format!("shop/p{}", n % 4);
        let container = format!("c{n}");
        let call = if n % 3 == 2 {
            // The container that has it now, if one has.
            let all = bound(&host);
            let Some(container) = all.get(&pod) else { continue };
            Call::del(&host).pod(&pod).container(container)
        } else {
            Call::add(&host).pod(&pod).container(&container)
        };
        let mut running = call.start();
        thread::sleep(Duration::from_micros(chance.below(usual)));
        running.kill();
        let ended = running.wait();
        if ended.killed_by() == Some(9) {
            dead += 1;
            bound_dead += u32::from(bound(&host).get(&pod) == Some(&container));
        }
    }
    report(&format!("{dead} of {KILLS} were killed, {bound_dead} of them had bound a lease"));
    assert!(dead > 20, "{dead} were killed");
    for n in 0..4 {
        let (pod, container) = (format!("shop/p{n}"), format!("last{n}"));
        let had = ground::leases(&host).into_iter().find(|lease| lease.id.holder.to_string() == pod);
        let at = address(&Call::add(&host).pod(&pod).container(&container).run());
        if let Some(had) = had {
            assert_eq!(at, format!("{}/16", had.addresses[0].address));
        }
    }
    let all = bound(&host);
    assert_eq!(all.len(), 4);
    assert!(all.values().all(|container| container.starts_with("last")), "{all:?}");
    for (pod, container) in &all {
        Call::del(&host).pod(pod).container(container).run().is_silent();
    }
    ground::is_empty(&host);
}
