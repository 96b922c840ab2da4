//! The whole of it under one seed: plugin runs, reapers, pods, nodes, runtimes and the store, in one thread, where each
//! call may fail, wait, or be answered by nobody, each process may die, and each message may arrive after its sender is gone.
//!
//! What runs is what ships: `ops`, `reaper`, `admin` and `domain` on a store in memory. What is true (which sandbox runs where,
//! with which address) is known here alone, and [`oracle`] holds the store against it after each commit. It is a program of
//! its own, since it is optimised and built often: `scripts/mutations` builds it for each fault.
//!
//! ```text
//! scripts/simulate 1000000               a million histories
//! LEASEHOLD_SIM_REPLAY=17:3,5!,9 …       one again, with its story: of seed 17 these actions, `!` without their faults
//! ```

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod cluster;
mod history;
mod oracle;
mod play;
mod way;
#[path = "../ops/world.rs"]
#[expect(dead_code, reason = "the tests of the operations use more of it")]
mod world;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use self::{
    history::History,
    play::{Broken, play},
};

/// Histories of a run that was not told how many: what a debug build plays in seconds.
const COUNT: u64 = 1_000;
/// After so many it is said how far it came: some minutes.
const STEP: u64 = 100_000;

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|text| text.into_string().unwrap())
}

/// A panic of the code under test is as good as a rule that it breaks.
fn tried(history: &History, told: bool) -> Result<Vec<String>, Broken> {
    std::panic::catch_unwind(|| play(history, told)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Broken { what: format!("panic: {}", text.unwrap_or_default()), story: Vec::new() })
    })
}

/// The words of a fault without names and figures: what must stay the same while it is shrunk.
fn kind(broken: &Broken) -> String {
    let word = |word: &&str| !word.chars().any(|c| c.is_ascii_digit() || "/[(".contains(c));
    broken.what.split_whitespace().filter(word).collect::<Vec<_>>().join(" ")
}

fn report(history: History, broken: &Broken) -> String {
    let (seed, wanted) = (history.seed, kind(broken));
    let shortest =
        history.shrink(|shorter| tried(shorter, false).is_err_and(|broken| kind(&broken) == wanted));
    let story = tried(&shortest, true).unwrap_or_else(|broken| broken.story);
    let actions: Vec<String> = shortest.actions.iter().map(|action| format!("  {action}")).collect();
    format!(
        "seed {seed}: {}\nLEASEHOLD_SIM_REPLAY={}\n{}\n{}\nclocks off by {:?} ms",
        broken.what,
        shortest.replay(),
        actions.join("\n"),
        story.join("\n"),
        shortest.setting.skews,
    )
}

#[test]
fn no_history_breaks_a_rule() {
    if let Some(text) = variable("LEASEHOLD_SIM_REPLAY") {
        let history = History::parse(&text).expect("LEASEHOLD_SIM_REPLAY is SEED or SEED:3,5!,9");
        if let Err(broken) = tried(&history, true) {
            panic!("{}\n{}", broken.story.join("\n"), broken.what);
        }
        return;
    }
    let number = |name| variable(name).map(|text| text.parse::<u64>().unwrap());
    let count = number("LEASEHOLD_SIM").unwrap_or(COUNT);
    assert!(count > 0, "no histories are no proof");
    let first = number("LEASEHOLD_SIM_FIRST").unwrap_or(1);
    let next = AtomicU64::new(first);
    let (stop, found) = (AtomicBool::new(false), Mutex::new(None));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    if seed > first && (seed - first).is_multiple_of(STEP) {
                        eprintln!("{} of {count} histories", seed - first);
                    }
                    let history = History::draw(seed);
                    if let Err(broken) = tried(&history, false) {
                        stop.store(true, Ordering::Relaxed);
                        let mut found = found.lock().unwrap();
                        if found.is_none() {
                            *found = Some((history, broken));
                        }
                    }
                }
            });
        }
    });
    if let Some((history, broken)) = found.into_inner().unwrap() {
        panic!("{}", report(history, &broken));
    }
}

#[test]
fn a_seed_plays_the_same_twice() {
    for seed in 1..20 {
        let history = History::draw(seed);
        let story = || tried(&history, true).unwrap_or_else(|broken| panic!("seed {seed}: {}", broken.what));
        let first = story();
        assert!(first.len() > history.actions.len() / 2, "{first:?}");
        assert_eq!(first, story());
        assert_eq!(History::parse(&history.replay()), Some(history));
    }
}
