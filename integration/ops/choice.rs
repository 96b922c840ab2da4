//! The choice of an address through the whole ADD, against a plain model: sets and a map.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use leasehold::{
    domain::{
        addr::{Family, number},
        lease::Timestamp,
        names::DomainName,
    },
    ops::Refusal,
    store::{
        keys, record,
        record::{PoolDocument, RangeDocument},
        testing::Asked,
    },
};
use tokio::time::Instant;

use super::world::{Dice, World, ip, pool};

/// A range of `size` addresses from `first` on, in a subnet that is now and then just as large.
fn some_range(dice: &mut Dice, third: usize, family: Family, size: usize) -> RangeDocument {
    let mut document = RangeDocument::default();
    let offset = dice.below(3);
    let (base, bits) = match family {
        Family::V4 => (format!("10.{third}.0.0/20"), number(ip(&format!("10.{third}.0.0")))),
        Family::V6 => (format!("fd00:{third}::/64"), number(ip(&format!("fd00:{third}::")))),
    };
    let at = |n: usize| family.address(bits + n as u128).to_string();
    document.subnet = base;
    document.start = Some(at(offset));
    document.end = Some(at(offset + size - 1));
    if dice.below(2) == 0 {
        document.gateway = Some(at(offset + dice.below(size)));
    }
    for _ in 0..dice.below(6) {
        let from = offset + dice.below(size);
        let to = from + dice.below(4);
        document.exclude.push(if dice.below(2) == 0 { at(from) } else { format!("{}-{}", at(from), at(to)) });
    }
    if dice.below(5) == 0 {
        document.exclude.extend((0..size).step_by(2).take(120).map(|n| at(offset + n)));
    }
    document
}

/// What may be leased, one by one: the words of the design, not the code.
fn usable(range: &RangeDocument) -> BTreeSet<IpAddr> {
    let one = |text: &str| ip(text);
    let (first, last) = (one(range.start.as_ref().unwrap()), one(range.end.as_ref().unwrap()));
    let family = Family::of(first);
    let (subnet, length) = range.subnet.split_once('/').unwrap();
    let low = number(one(subnet));
    let high = low + (1u128 << (u32::from(family.bits()) - length.parse::<u32>().unwrap())) - 1;
    let excluded = |n: u128| {
        range.exclude.iter().any(|text| {
            let (a, b) = text.split_once('-').unwrap_or((text, text));
            (number(one(a))..=number(one(b))).contains(&n)
        })
    };
    (number(first)..=number(last))
        .filter(|n| *n != low && (family == Family::V6 || *n != high))
        .filter(|n| range.gateway.as_ref().is_none_or(|g| number(one(g)) != *n))
        .filter(|n| !excluded(*n))
        .map(|n| family.address(n))
        .collect()
}

#[derive(Default)]
struct Model {
    families: Vec<BTreeSet<IpAddr>>,
    held: BTreeMap<usize, Vec<IpAddr>>,
    released: BTreeMap<IpAddr, (Instant, usize)>,
}

impl Model {
    fn taken(&self) -> BTreeSet<IpAddr> {
        self.held.values().flatten().copied().collect()
    }

    fn full(&self) -> Vec<(u128, u128)> {
        let taken = self.taken();
        let size = |set: &BTreeSet<IpAddr>| (set.intersection(&taken).count() as u128, set.len() as u128);
        self.families.iter().map(size).filter(|(used, total)| used == total).collect()
    }
}

async fn play(seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut ranges = Vec::new();
    let families: &[Family] = match dice.below(3) {
        0 => &[Family::V4],
        1 => &[Family::V6],
        _ => &[Family::V4, Family::V6],
    };
    for family in families {
        for third in 0..1 + dice.below(3) {
            let size = match dice.below(8) {
                0 => 1 + dice.below(2_000),
                1 => 1,
                _ => 1 + dice.below(30),
            };
            ranges.push(some_range(&mut dice, third + 1, *family, size));
        }
    }
    ranges.retain(|range| !usable(range).is_empty());
    if ranges.is_empty() {
        return;
    }
    let mut model = Model::default();
    for family in families {
        let of = |r: &&RangeDocument| Family::of(ip(r.start.as_ref().unwrap())) == *family;
        let set: BTreeSet<IpAddr> = ranges.iter().filter(of).flat_map(usable).collect();
        if !set.is_empty() {
            model.families.push(set);
        }
    }
    let world = World::new(&[PoolDocument { ranges, ..pool("p", &[]) }]);
    let node = world.node("n1");
    let smallest = model.families.iter().map(BTreeSet::len).min().unwrap();
    let pods = if smallest > 60 { 40 } else { smallest + 4 };
    for turn in 0..(4 * pods).max(40) {
        let pod = dice.below(pods);
        match dice.below(8) {
            0..5 => {
                let before = model.held.get(&pod).cloned();
                let full = model.full();
                let got = node.add(&format!("shop/p{pod}x"), &format!("c{turn}")).await;
                match (before, got) {
                    (Some(own), Ok(added)) => {
                        let got: Vec<IpAddr> = added.answer.addresses.iter().map(|a| a.address).collect();
                        assert_eq!(got, own, "seed {seed}");
                    }
                    (None, Ok(added)) => {
                        assert!(full.is_empty(), "seed {seed}: {full:?}");
                        let got: Vec<IpAddr> = added.answer.addresses.iter().map(|a| a.address).collect();
                        assert_eq!(got.len(), model.families.len(), "seed {seed}");
                        let taken = model.taken();
                        for (address, set) in got.iter().zip(&model.families) {
                            assert!(set.contains(address), "seed {seed}: {address} is not usable");
                            assert!(!taken.contains(address), "seed {seed}: {address} twice");
                            if let Some((at, by)) = model.released.remove(address) {
                                let cooled = at.elapsed() >= Duration::from_millis(4_999);
                                assert!(by == pod || cooled, "seed {seed}: {address} is hot");
                                let fresh = set.iter().find(|a| {
                                    !taken.contains(a) && !model.released.contains_key(a) && *a != address
                                });
                                let small = set.len() <= 100 && families.len() == 1;
                                let one =
                                    set.iter().map(|a| number(*a) >> 12).collect::<BTreeSet<_>>().len() == 1;
                                assert!(
                                    by == pod || !small || !one || fresh.is_none(),
                                    "seed {seed}: {address} was given back, {fresh:?} never used"
                                );
                            }
                        }
                        model.held.insert(pod, got);
                    }
                    (own, Err(Refusal::Full { pools, .. })) => {
                        assert_eq!(own, None, "seed {seed}");
                        let said = (pools[0].used, pools[0].total);
                        assert!(full.contains(&said), "seed {seed}: {said:?} is none of {full:?}");
                    }
                    (_, Err(error)) => panic!("seed {seed}: {error}\n{}", world.show()),
                }
            }
            5 | 6 => {
                if let Some(own) = model.held.remove(&pod) {
                    let container = world.lease(&format!("shop/p{pod}x")).unwrap();
                    let container = container.value.last().unwrap().container.to_string();
                    assert!(node.del(&format!("shop/p{pod}x"), &container).await, "seed {seed}");
                    for address in own {
                        model.released.insert(address, (Instant::now(), pod));
                    }
                }
            }
            _ => tokio::time::sleep(Duration::from_millis(dice.below(7_000) as u64)).await,
        }
    }
    world.audit();
}

fn paused<F: Future>(future: F) -> F::Output {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

#[test]
fn the_choice_is_a_plain_models() {
    for seed in 1..=100 {
        paused(play(seed));
    }
}

/// A range in which a person has reserved everything but some addresses.
fn almost_full(world: &World, subnet: &str, last: usize, free: &BTreeSet<usize>) {
    let domain = DomainName::new("default").unwrap();
    let base = number(ip(subnet));
    for n in (1..=last).filter(|n| !free.contains(n)) {
        let address = Family::V4.address(base + n as u128);
        world.store.put(&keys::address(&domain, address), record::encode_device("full", Timestamp(1)));
    }
}

#[tokio::test(start_paused = true)]
async fn b089_the_last_free_addresses_of_a_large_pool_are_found_in_few_calls() {
    let mut dice = Dice(77);
    for free in [1, 2, 65] {
        let mut places = BTreeSet::new();
        while places.len() < free {
            places.insert(1 + dice.below(65_534));
        }
        let world = World::new(&[pool("p", &["10.0.0.0/16"])]);
        almost_full(&world, "10.0.0.0", 65_534, &places);
        let (mut calls, mut most) = (0, 0);
        for n in 0..free {
            let node = world.node("n1");
            node.gets(&format!("shop/p{n}"), &format!("c{n}")).await;
            calls += node.way.calls();
            most = most.max(node.way.calls());
        }
        println!("/16 with {free} free: {:.1} calls an ADD, at most {most}", calls as f64 / free as f64);
        assert!(most <= 12, "{most} calls");
        let node = world.node("n1");
        assert_eq!(
            node.refused(&node.ask("shop/late", "late")).await,
            "65534 of 65534 addresses of p are taken"
        );
        println!("    and {} calls to say that it is full", node.way.calls());
        assert!(node.way.calls() <= 12, "{}", node.way.calls());
    }
}

#[tokio::test(start_paused = true)]
async fn b097_a_64_and_a_48_cost_what_a_28_costs() {
    let cost = async |range: RangeDocument, leases: usize| -> Asked {
        let world = World::new(&[PoolDocument { ranges: vec![range], ..pool("p", &[]) }]);
        let node = world.node("n1");
        for n in 0..leases {
            node.gets(&format!("shop/p{n}"), &format!("c{n}")).await;
        }
        world.store.forget();
        for n in 0..100 {
            node.gets(&format!("shop/late{n}"), &format!("late{n}")).await;
            node.del(&format!("shop/late{n}"), &format!("late{n}")).await;
        }
        let asked = world.store.asked();
        println!("{leases} leases: {asked:?}");
        asked
    };
    let range = |subnet: &str, exclude: &[&str]| RangeDocument {
        subnet: subnet.into(),
        exclude: exclude.iter().map(|text| (*text).into()).collect(),
        ..RangeDocument::default()
    };
    let small = cost(range("10.0.0.0/28", &[]), 5).await;
    for (subnet, exclude) in [
        ("fd00::/64", "fd00::-fd00::7fff:ffff:ffff:ffff"),
        ("fd00::/48", "fd00:0:0:8000::-fd00:0:0:ffff:ffff:ffff:ffff:ffff"),
    ] {
        let large = cost(range(subnet, &[exclude]), 10_000).await;
        assert!(large.reads + large.commits <= small.reads + small.commits, "{large:?} {small:?}");
        assert!(large.walked <= 2 * small.walked, "{large:?} {small:?}");
        let world = World::new(&[PoolDocument { ranges: vec![range(subnet, &[exclude])], ..pool("p", &[]) }]);
        let node = world.node("n1");
        let mut request = node.ask("shop/a", "a1");
        let middle = if subnet.ends_with("64") { "fd00::8000:0:0:1" } else { "fd00::7fff:0:0:1" };
        request.requested = vec![ip(middle)];
        node.run(&request).await.unwrap();
        assert!(node.way.calls() <= 4);
    }
}
