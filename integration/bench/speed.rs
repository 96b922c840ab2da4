//! How fast it is: each row of the table of goals, on real etcds, with whole processes. `scripts/bench` runs this on the
//! release build, and says how.
//!
//! A ratio is taken in one run, in turns, so that the load of the machine is the same for both sides. Data of etcd and of
//! host-local lie on the same disk, and etcd waits for it.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may panic, and prints")]

mod crowds;
mod growth;
mod large;
mod machine;
mod measure;
mod plot;
mod reap;
mod report;
mod single;
#[path = "../support/mod.rs"]
#[expect(dead_code, unused_imports, unused_macros, reason = "the tests use more of it")]
mod support;
mod weight;
mod whereabouts;
mod world;

use std::{path::PathBuf, process::ExitCode};

use measure::Bench;
use report::Row;
use support::{
    parts::{Part, Plugins, Version, lacks},
    process,
};

/// Rows that come from one stand, and what measures them.
struct Stand {
    rows: &'static [&'static str],
    measure: fn(&Bench) -> Vec<Row>,
    /// Only where it is asked for by its whole name.
    extra: bool,
}

const fn stand(rows: &'static [&'static str], measure: fn(&Bench) -> Vec<Row>) -> Stand {
    Stand { rows, measure, extra: false }
}

const STANDS: &[Stand] = &[
    stand(&["add-0", "add-110", "mtls-0", "mtls-110", "del-0", "del-110"], single::calls),
    stand(&["take-over", "unchanged"], single::sticky),
    stand(&["many", "nearly-all", "wide", "list", "bytes", "bystander"], large::large),
    stand(&["crowd", "crowd-exact", "crowd-failed", "crowd-host-local"], crowds::crowds),
    stand(&["crowd-whereabouts"], whereabouts::crowd),
    stand(&["nearly-full-failed", "nearly-full-p99", "one-too-many"], crowds::nearly_full),
    stand(&["connections"], crowds::connections),
    stand(&["reap-cpu", "reap-memory"], reap::reap),
    Stand { extra: true, ..stand(&["reap-json-cpu", "reap-json-memory"], reap::reap_json) },
    stand(&["memory"], weight::memory),
    stand(&["binary"], weight::binary),
];

fn main() -> ExitCode {
    let mut bench = Bench { runs: 200, rounds: 10, callers: 1_000, bare: PathBuf::new() };
    let (mut folder, mut filters) = (None, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} wants a value"));
        match argument.as_str() {
            "--runs" => bench.runs = value().parse().unwrap(),
            "--rounds" => bench.rounds = value().parse().unwrap(),
            "--callers" => bench.callers = value().parse().unwrap(),
            "--bare" => bench.bare = value().into(),
            "--out" => folder = Some(PathBuf::from(value())),
            "--bench" | "--test" => {} // cargo's own
            filter => filters.push(filter.to_owned()),
        }
    }
    if bench.bare.as_os_str().is_empty() {
        println!("usage: scripts/bench");
        return ExitCode::SUCCESS;
    }
    if lacks(&[Part::Etcd(Version::V36), Part::Plugins(Plugins::Current)]) {
        return ExitCode::FAILURE;
    }
    machine::refuse_memory();
    let wanted = |stand: &&Stand| {
        if filters.is_empty() || stand.extra {
            return !stand.extra || filters.iter().any(|filter| stand.rows.contains(&filter.as_str()));
        }
        stand.rows.iter().any(|row| filters.iter().any(|filter| row.contains(filter)))
    };
    let before = machine::load();
    let mut rows = Vec::new();
    for stand in STANDS.iter().filter(wanted) {
        process::report(&format!("measuring {} …", stand.rows.join(", ")));
        let measured = (stand.measure)(&bench);
        assert!(measured.iter().map(|row| row.name).eq(stand.rows.iter().copied()), "{measured:?}");
        rows.extend(measured);
    }
    let facts = machine::facts(&bench, before);
    print!("{}", report::table(&rows));
    if let Some(folder) = folder {
        if filters.is_empty() || filters.iter().any(|filter| filter == "growth") {
            process::report("drawing how it grows …");
            growth::draw(&bench, &folder);
        }
        report::write(&folder, &facts, &rows);
    }
    let missed = rows.iter().filter(|row| row.is_met() != Some(true)).count();
    println!("\n{} of {} goals met", rows.len() - missed, rows.len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
