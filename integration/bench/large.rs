//! Large and full ranges: what an ADD costs there, what it reads, whom it disturbs; and a list of all leases.

use std::{
    net::{IpAddr, Ipv4Addr},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use leasehold::domain::lease::Lease;
use serde_json::json;
use tokio::time::Instant;

use super::{
    measure::{AT_ONCE, Bench, Times, in_turns, run, together},
    report::{Row, Unit, shown},
    world::{self, Hand},
};
use crate::support::{
    call::Call,
    chance::Chance,
    etcd::Etcd,
    host::HostFile,
    parts::{Version, leasehold},
    proxy::Proxy,
};

/// The addresses of a /16 but for its network and broadcast ones.
const USABLE: usize = 65_534;
const MANY: usize = 65_000;
/// 99.9 of a hundred.
const NEARLY_ALL: usize = 65_468;

/// A network on an etcd, asked for an address that is given back at once.
struct Place<'a> {
    host: &'a HostFile,
    hand: &'a Hand,
    network: &'static str,
}

impl Place<'_> {
    fn add(&self, number: usize) -> Call {
        let pod = format!("shop/web-{number}");
        Call::add(self.host).network(self.network).pod(&pod).container(&format!("c{number}"))
    }

    fn add_and_forget(&self, number: usize) -> Duration {
        let ran = run(&self.add(number)).success();
        self.end(number, ran.address());
        ran.took
    }

    fn end(&self, number: usize, address: IpAddr) {
        let del = Call::del(self.host).network(self.network).pod(&format!("shop/web-{number}"));
        run(&del.container(&format!("c{number}"))).success();
        self.hand.forget(address);
    }
}

fn turns<const N: usize>(bench: &Bench, places: [&Place<'_>; N]) -> [Times; N] {
    let mut times = std::array::from_fn(|_| Times::default());
    for turn in 0..=bench.runs {
        in_turns(turn, N, |which| {
            let took = places[which].add_and_forget(turn);
            if turn > 0 {
                times[which].push(took);
            }
        });
    }
    times
}

/// What an ADD sends and gets, on average: counted apart from the timed ones, since the proxy costs time.
fn on_the_wire(bench: &Bench, etcd: &Etcd, place: &Place<'_>) -> String {
    let proxy = Proxy::to(etcd.address(0));
    let host = HostFile::on(etcd).endpoints([proxy.url("http")]);
    let (count, mut requests, mut bytes) = (bench.runs.min(20), 0, 0);
    for number in 0..count {
        let before = (proxy.requests(), proxy.answered());
        let ran = run(&Place { host: &host, ..*place }.add(number)).success();
        requests += proxy.requests() - before.0;
        bytes += proxy.answered() - before.1;
        place.end(number, ran.address());
    }
    let mean = |sum: f64| sum / count as f64;
    format!("{:.1} requests, {:.1} KiB", mean(f64::from(requests)), mean(bytes as f64 / 1024.0))
}

pub(crate) fn large(bench: &Bench) -> Vec<Row> {
    // What is empty is on an etcd that is empty, too.
    let (small, big) =
        (Etcd::with(Version::V36).on_disk().start(), Etcd::with(Version::V36).on_disk().start());
    let (on_small, on_big) = (HostFile::on(&small), HostFile::on(&big));
    world::register(&[&on_small, &on_big]);
    world::pool(&on_small, "n28", &json!([{ "subnet": "10.28.0.0/28" }]));
    world::pool(&on_small, "n64", &json!([{ "subnet": "fd00:64::/64" }]));
    world::pool(&on_big, "n16", &json!([{ "subnet": "10.16.0.0/16" }]));
    let (in_small, in_big) = (Hand::on(&on_small), Hand::on(&on_big));
    let n28 = Place { host: &on_small, hand: &in_small, network: "n28" };
    let n64 = Place { network: "n64", ..n28 };
    let n16 = Place { host: &on_big, hand: &in_big, network: "n16" };
    let ratio = |name, work, goal, (etcd, place): (&Etcd, &Place<'_>), ours: &Times, theirs: &Times| {
        let mut row = Row::ratio(name, work, goal, ours, theirs);
        row.figures +=
            &format!("; {} ÷ {}", on_the_wire(bench, etcd, place), on_the_wire(bench, &small, &n28));
        row
    };

    let addresses = shuffled();
    in_big.bind(others(&addresses[..MANY]));
    let [empty, wide, many] = turns(bench, [&n28, &n64, &n16]);
    let work = "ADD in a /16 with 65 000 leases ÷ ADD in an empty /28";
    let mut rows = vec![ratio("many", work, 1.2, (&big, &n16), &many, &empty)];
    let last = [
        ratio("wide", "ADD in a /64 ÷ ADD in an empty /28", 1.2, (&small, &n64), &wide, &empty),
        list(bench, &on_big),
    ];

    in_big.bind(others(&addresses[MANY..NEARLY_ALL]));
    let [empty, nearly] = turns(bench, [&n28, &n16]);
    let work = "ADD in a /16 that is 99.9 % full ÷ ADD in an empty /28";
    rows.push(ratio("nearly-all", work, 2.0, (&big, &n16), &nearly, &empty));
    rows.extend(last);

    in_big.bind(others(&addresses[NEARLY_ALL..]));
    rows.push(bytes(bench, &big));
    rows.push(bystander(&big, &n16));
    rows
}

/// All usable addresses of 10.16.0.0/16, in the same disorder each time.
fn shuffled() -> Vec<IpAddr> {
    let mut all: Vec<u32> = (1..=65_534).collect();
    assert_eq!(all.len(), USABLE);
    let mut chance = Chance(16);
    for last in (1..all.len()).rev() {
        all.swap(last, usize::try_from(chance.below(last as u64 + 1)).unwrap());
    }
    all.into_iter().map(|number| Ipv4Addr::from(0x0a10_0000 + number).into()).collect()
}

fn others(addresses: &[IpAddr]) -> impl Iterator<Item = Lease> {
    addresses.iter().enumerate().map(|(index, address)| {
        let number = leasehold::domain::addr::number(*address);
        let (pod, node) = (
            format!("shop-{:02}/other-{number}", index % 40),
            format!("node-{:03}.example.net", index % 300),
        );
        world::lease("n16", *address, &pod, &node)
    })
}

fn list(bench: &Bench, host: &HostFile) -> Row {
    let (mut wall, mut cpu) = (Times::default(), Times::default());
    for _ in 0..=bench.rounds {
        let mut command = Command::new(&bench.bare);
        command.env_clear().env("LEASEHOLD_CONFIG", host.path());
        let output = command.arg("cost").arg(leasehold()).args(["lease", "list"]).output().unwrap();
        let cost = world::cost(&output);
        wall.push(Duration::from_secs_f64(cost.wall));
        cpu.push(Duration::from_secs_f64(cost.cpu));
        let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(lines, MANY + 1);
    }
    let figures = format!("median of {}; its processor time {}", wall.count(), shown(cpu.median()));
    let measured = wall.median().as_secs_f64();
    Row::new("list", "lease list of 65 000, wall", Unit::Seconds, 1.0, measured, figures)
}

fn bytes(bench: &Bench, etcd: &Etcd) -> Row {
    let proxy = Proxy::to(etcd.address(0));
    let host = HostFile::on(etcd).endpoints([proxy.url("http")]);
    let mut all = Vec::new();
    for number in 0..bench.runs.min(50) {
        let before = proxy.answered();
        let call = Call::add(&host).network("n16").pod(&format!("shop/late-{number}")).container("late");
        let ran = run(&call);
        assert!(ran.is_told_full("n16", USABLE), "{}", ran.said());
        all.push((proxy.answered() - before) as f64 / 1024.0);
    }
    all.sort_by(f64::total_cmp);
    let figures = format!("the most of {}; median {:.1} KiB", all.len(), all[all.len() / 2]);
    Row::new("bytes", "bytes from etcd per ADD in a full /16", Unit::Kib, 64.0, all[all.len() - 1], figures)
}

/// Somebody else's puts into the same etcd.
fn puts(etcd: &Etcd, over: &AtomicBool) -> Times {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = etcd_client::Client::connect([etcd.endpoint(0)], None).await.unwrap();
        let mut times = Times::default();
        while times.count() < 20 || !over.load(Ordering::SeqCst) {
            let began = Instant::now();
            client.put("/bystander", "x", None).await.unwrap();
            times.push(began.elapsed());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        times
    })
}

fn bystander(etcd: &Etcd, full: &Place<'_>) -> Row {
    let alone = puts(etcd, &AtomicBool::new(true));
    let over = AtomicBool::new(false);
    let (beside, told) = thread::scope(|scope| {
        let beside = scope.spawn(|| puts(etcd, &over));
        let (_, all) = together(AT_ONCE, 4 * AT_ONCE, |number| full.add(number).command_line());
        over.store(true, Ordering::SeqCst);
        (beside.join().unwrap(), all.iter().filter(|ran| ran.is_told_full("n16", USABLE)).count())
    });
    let figures = format!(
        "median of {}, p99 {}; alone {}; {told} of {} ADDs were told that it is full",
        beside.count(),
        shown(beside.percentile(99)),
        shown(alone.median()),
        4 * AT_ONCE,
    );
    let measured = beside.median().as_secs_f64() * 1000.0;
    Row::new(
        "bystander",
        "a bystander's put while 64 ADDs run into a full /16",
        Unit::Millis,
        20.0,
        measured,
        figures,
    )
}
