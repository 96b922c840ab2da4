//! Many callers at once: whole processes of ten nodes, so many running at a time.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    process::Command,
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    measure::{AT_ONCE, Bench, Ran, Times, in_turns, run_line, together},
    report::{Row, Unit, shown},
    world::{self, Hand, host_local},
};
use crate::support::{
    call::Call,
    etcd::{Etcd, certificates},
    folder::Folder,
    host::HostFile,
    parts::Version,
};

const NODES: usize = 10;

/// Ten nodes of one cluster.
pub(crate) struct Nodes(Vec<HostFile>);

impl Nodes {
    pub(crate) fn on(etcd: &Etcd) -> Self {
        let first = HostFile::on(etcd);
        world::register(&[&first]);
        Self((1..NODES).map(|number| first.node(&format!("n{number}"))).chain([first.node("n0")]).collect())
    }

    pub(crate) fn first(&self) -> &HostFile {
        &self.0[0]
    }

    /// ADDs of so many pods of a pool of its own.
    pub(crate) fn ask(&self, network: &str, at_once: usize, count: usize) -> (Duration, Vec<Ran>) {
        together(at_once, count, |number| {
            let (pod, container) = (format!("shop/web-{number}"), format!("c{number}"));
            let call = Call::add(&self.0[number % NODES]).network(network);
            call.pod(&pod).container(&container).command_line()
        })
    }
}

/// What became of a crowd that all wanted an address.
struct Ended {
    /// Addresses that one got and no other.
    leased: usize,
    /// Refusals that name this number as all of the pool, all taken.
    full: usize,
    /// What one of the others was told.
    other: Option<String>,
    p99: Duration,
}

impl Ended {
    fn of(all: &[Ran], pool: &str, size: usize) -> Self {
        let leased: BTreeSet<IpAddr> = all.iter().filter_map(Ran::leased).collect();
        let is_full = |ran: &&Ran| ran.is_told_full(pool, size);
        Self {
            leased: leased.len(),
            full: all.iter().filter(is_full).count(),
            other: all.iter().find(|ran| ran.leased().is_none() && !is_full(ran)).map(Ran::said),
            p99: all.iter().map(|ran| ran.took).collect::<Times>().percentile(99),
        }
    }
}

/// Notes that stand behind a figure: what somebody was told who should have got an address.
fn complaint(all: &[Ended]) -> String {
    all.iter()
        .find_map(|end| end.other.as_ref())
        .map_or_else(String::new, |said| format!("; one was told: {said}"))
}

/// A thousand on two thousand addresses, on exactly a thousand, as bare transactions, and by host-local, in turns.
pub(crate) fn crowds(bench: &Bench) -> Vec<Row> {
    let etcd = Etcd::with(Version::V36).on_disk().start();
    let nodes = Nodes::on(&etcd);
    let folder = Folder::new();
    let count = bench.callers;
    let (mut roomy, mut exact, mut bare, mut local) =
        (Times::default(), Times::default(), Times::default(), Times::default());
    let (mut ended, mut ended_exact) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds {
        let (wide, tight) = (format!("wide-{round}"), format!("tight-{round}"));
        world::pool(nodes.first(), &wide, &range(round, 2 * count));
        world::pool(nodes.first(), &tight, &range(100 + round, count));
        in_turns(round, 4, |which| match which {
            0 => {
                let (took, all) = nodes.ask(&wide, AT_ONCE, count);
                roomy.push(took);
                ended.push(Ended::of(&all, &wide, 2 * count));
            }
            1 => {
                let (took, all) = nodes.ask(&tight, AT_ONCE, count);
                exact.push(took);
                ended_exact.push(Ended::of(&all, &tight, count));
            }
            2 => bare.push(bare_transactions(bench, &etcd, &wide, (AT_ONCE, count))),
            _ => local.push(host_local_alone(&nodes, &folder.path().join(&wide), round, (AT_ONCE, count))),
        });
    }
    let missing = |ended: &[Ended]| ended.iter().map(|end| count - end.leased).sum::<usize>() as f64;
    let p99 = |ended: &[Ended]| ended.iter().map(|end| end.p99).max().unwrap();
    let figures = format!(
        "of {} on twice as many and on as many; slowest p99 {} and {}{}{}",
        bench.rounds * count,
        shown(p99(&ended)),
        shown(p99(&ended_exact)),
        complaint(&ended),
        complaint(&ended_exact),
    );
    let failed = missing(&ended) + missing(&ended_exact);
    vec![
        Row::ratio(
            "crowd",
            "1 000 ADDs at once on 2 000 addresses ÷ 1 000 bare transactions",
            1.5,
            &roomy,
            &bare,
        ),
        Row::ratio("crowd-exact", "the same on exactly 1 000 addresses", 2.5, &exact, &bare),
        Row::new(
            "crowd-failed",
            "of all of these, ADDs without an address of their own",
            Unit::Count,
            0.0,
            failed,
            figures,
        ),
        Row::ratio(
            "crowd-host-local",
            "1 000 on 1 000 ÷ host-local's 1 000 in a local folder",
            0.5,
            &exact,
            &local,
        ),
    ]
}

/// So many addresses from 10.N.0.1 on.
pub(crate) fn range(second: usize, size: usize) -> Value {
    let (start, end) = ends(second, size);
    json!([{ "subnet": format!("10.{second}.0.0/16"), "start": start, "end": end }])
}

/// The first and the last of them.
pub(crate) fn ends(second: usize, size: usize) -> (String, String) {
    (format!("10.{second}.0.1"), format!("10.{second}.{}.{}", size / 256, size % 256))
}

pub(crate) fn bare<const N: usize>(bench: &Bench, words: [&str; N]) -> Command {
    let mut command = Command::new(&bench.bare);
    command.env_clear().args(words);
    command
}

/// So many transactions, so many at a time.
pub(crate) fn bare_transactions(
    bench: &Bench,
    etcd: &Etcd,
    name: &str,
    (at_once, count): (usize, usize),
) -> Duration {
    let (took, all) = together(at_once, count, |number| {
        let key = format!("{name}-{number}");
        (bare(bench, ["txn", &etcd.endpoint(0), &key]), b"{}".into())
    });
    all.into_iter().for_each(|ran| drop(ran.success()));
    took
}

/// So many ADDs by host-local on as many addresses, so many at a time.
pub(crate) fn host_local_alone(
    nodes: &Nodes,
    folder: &Path,
    second: usize,
    (at_once, count): (usize, usize),
) -> Duration {
    // It leaves out the first address, which it takes for the gateway.
    let (start, end) = ends(second, count + 1);
    let (took, all) = together(at_once, count, |number| {
        let call =
            Call::add(nodes.first()).pod(&format!("shop/web-{number}")).container(&format!("c{number}"));
        host_local(call, folder, &format!("10.{second}.0.0/16"), Some((&start, &end))).command_line()
    });
    all.into_iter().for_each(|ran| drop(ran.success()));
    took
}

/// Pools that are nearly full, and one more caller than there are addresses.
pub(crate) fn nearly_full(bench: &Bench) -> Vec<Row> {
    let etcd = Etcd::with(Version::V36).on_disk().start();
    let nodes = Nodes::on(&etcd);
    // 819 of 4 094 are free.
    world::pool(nodes.first(), "n20", &json!([{ "subnet": "10.20.0.0/20" }]));
    let held = (1..=4_094_u32).filter(|number| number % 5 != 0 && *number != 1);
    Hand::on(nodes.first()).bind(held.clone().map(|number| {
        let address = Ipv4Addr::from(0x0a14_0000 + number).into();
        world::lease("n20", address, &format!("shop/other-{number}"), "other")
    }));
    let free = 4_094 - held.count();
    let (took, all) = nodes.ask("n20", AT_ONCE, 800);
    let end = Ended::of(&all, "n20", 4_094);
    let figures = format!(
        "{free} were free; all took {}; {} of 800 leased{}",
        shown(took),
        end.leased,
        complaint(std::slice::from_ref(&end))
    );
    let mut rows = vec![
        Row::new(
            "nearly-full-failed",
            "800 ADDs at once on a /20 that is 80 % full: failed",
            Unit::Count,
            0.0,
            (800 - end.leased) as f64,
            figures,
        ),
        Row::new(
            "nearly-full-p99",
            "the same, p99",
            Unit::Seconds,
            2.0,
            end.p99.as_secs_f64(),
            String::new(),
        ),
    ];

    let mut wrong = 0;
    let mut slowest = Duration::ZERO;
    let mut ends = Vec::new();
    for round in 0..bench.rounds {
        let network = format!("last-{round}");
        world::pool(nodes.first(), &network, &range(30 + round, 250));
        let (_, all) = nodes.ask(&network, 251, 251);
        let end = Ended::of(&all, &network, 250);
        wrong += end.leased.abs_diff(250) + end.full.abs_diff(1);
        slowest = slowest.max(end.p99);
        ends.push(end);
    }
    let figures =
        format!("of {} times 251; slowest p99 {}{}", bench.rounds, shown(slowest), complaint(&ends));
    let work = "251 ADDs at once on 250 addresses: not leased to 250 and truthfully refused to one";
    rows.push(Row::new("one-too-many", work, Unit::Count, 0.0, wrong as f64, figures));
    rows
}

/// 4 000 fresh connections by mTLS at once.
pub(crate) fn connections(bench: &Bench) -> Vec<Row> {
    const COUNT: usize = 4_000;
    let etcd = Etcd::with(Version::V36).on_disk().tls().start();
    let files = certificates();
    let [ca, cert, key] =
        [&files.ca, &files.client.0, &files.client.1].map(|path| path.display().to_string());
    let command = bare(bench, ["connect", &etcd.endpoint(0), &ca, &cert, &key, &COUNT.to_string()]);
    let ran = run_line((command, Vec::new())).success();
    let report: Value = serde_json::from_slice(&ran.output.stdout).unwrap();
    let failed = report["failed"].as_f64().unwrap();
    let mut figures = format!("the slowest after {:.2} s", report["slowest"].as_f64().unwrap());
    if let Some(why) = report["why"].as_str() {
        figures += &format!("; one was told: {why}");
    }
    let work = "4 000 fresh mTLS connections at once: failed inside 10 s";
    vec![Row::new("connections", work, Unit::Count, 0.0, failed, figures)]
}
