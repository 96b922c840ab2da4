//! What is counted of passes and of the store, and its text for Prometheus (exposition format 0.0.4).
//!
//! It is written by hand: three dozen lines are cheaper than a crate, and one writer serves the port and the file. Series
//! whose labels are known are there from the beginning, at zero: a rate sees the first of them, too.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{Fate, Report};
use crate::{
    admin::{
        check::Repair,
        pools::{Counts, PoolRow},
    },
    domain::{
        lease::Timestamp,
        reap::{Line, Row, UNREADABLE},
    },
    store::Fill,
};

/// How a pass ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Passed {
    /// It came to its end.
    Done,
    /// A brake stopped it, or part of it.
    Braked,
    /// There was none: the store or the API did not answer.
    Failed,
    /// Somebody stopped it.
    Stopped,
}

/// What the store was asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operation {
    /// A read.
    Read,
    /// A commit.
    Commit,
}

/// The labels of [`Passed`], in its order.
const RESULTS: [&str; 4] = ["done", "braked", "failed", "stopped"];
/// The labels of [`Operation`], in its order.
const OPERATIONS: [&str; 2] = ["read", "commit"];
/// The labels of all brakes.
const BRAKES: [&str; 5] = ["identity", "list_empty", "list_incomplete", "orphans", "nodes_silent"];
/// The rows that give back.
const GIVING: [Row; 9] = [
    Row::Lost,
    Row::Ended,
    Row::EndedSilent,
    Row::Missed,
    Row::MissedSilent,
    Row::MissedNoNode,
    Row::Held(Line::Scaled),
    Row::Held(Line::OwnerAbsent),
    Row::Held(Line::HoldFor),
];
/// Upper bounds, seconds: a member answers in milliseconds, one that elects in seconds.
const BOUNDS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// A pass over a large store may take minutes, whatever the interval: who ends it for that never sees its end.
const STILL: Duration = Duration::from_secs(300);

const GIVEN_BACK: &str = "leasehold_reap_given_back_total";
const PASSES: &str = "leasehold_reap_passes_total";
const MENDED: &str = "leasehold_reap_mended_total";
const LEFT: &str = "leasehold_reap_half_pairs";
const FORGOTTEN: &str = "leasehold_reap_forgotten_total";
const ASKED: &str = "leasehold_store_request_duration_seconds";
const LAST_SUCCESS: &str = "leasehold_reap_last_success_timestamp_seconds";

/// The figures of one reaper. They can be read while a pass runs.
#[derive(Debug)]
pub struct Metrics(Mutex<Figures>);

#[derive(Debug)]
struct Figures {
    pools: BTreeMap<String, Counts>,
    candidates: Option<usize>,
    given_back: BTreeMap<&'static str, u64>,
    kept: BTreeMap<&'static str, usize>,
    reported: Option<BTreeMap<&'static str, usize>>,
    took: Option<Duration>,
    last_success: Option<Timestamp>,
    passes: [u64; RESULTS.len()],
    braked: Vec<&'static str>,
    mended: u64,
    left: Option<usize>,
    forgotten: u64,
    troubles: Option<usize>,
    /// Records that cannot be read, beside leases: only full passes see them.
    unread: usize,
    asked: [Histogram; OPERATIONS.len()],
    fill: Option<Fill>,
    /// The last turn of the loop, and the end of the last pass that did its work.
    turn: Instant,
    success: Option<Instant>,
}

#[derive(Debug, Default)]
struct Histogram {
    /// Of each bound, and above.
    counts: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Mutex::new(Figures {
            pools: BTreeMap::new(),
            candidates: None,
            given_back: GIVING.iter().map(|row| (row.as_str(), 0)).collect(),
            kept: BTreeMap::new(),
            reported: None,
            took: None,
            last_success: None,
            passes: [0; RESULTS.len()],
            braked: Vec::new(),
            mended: 0,
            left: None,
            forgotten: 0,
            troubles: None,
            unread: 0,
            asked: Default::default(),
            fill: None,
            turn: Instant::now(),
            success: None,
        }))
    }

    fn figures(&self) -> MutexGuard<'_, Figures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on from the totals, and the time of the last success, of an earlier run's text: a run that ends after one
    /// pass would count to one for ever.
    pub fn go_on_from(&self, text: &str) {
        let mut figures = self.figures();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let mut labels = labels.split('"').skip(1).step_by(2);
            let label = labels.next().unwrap_or_default();
            let histogram = OPERATIONS.iter().position(|operation| *operation == label);
            if let (Some(operation), Some("_sum")) = (histogram, name.strip_prefix(ASKED)) {
                let sum = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                figures.asked[operation].sum = sum.unwrap_or_default();
            }
            let Ok(value) = value.parse::<u64>() else { continue };
            if let (Some(operation), Some("_bucket")) = (histogram, name.strip_prefix(ASKED)) {
                let bound = labels.next().unwrap_or_default();
                let above =
                    BOUNDS.iter().position(|known| known.to_string() == bound).unwrap_or(BOUNDS.len());
                figures.asked[operation].counts[above] = value;
            }
            match name {
                GIVEN_BACK => {
                    if let Some(row) = GIVING.iter().find(|row| row.as_str() == label) {
                        figures.given_back.insert(row.as_str(), value);
                    }
                }
                PASSES => {
                    if let Some(index) = RESULTS.iter().position(|result| *result == label) {
                        figures.passes[index] = value;
                    }
                }
                MENDED => figures.mended = value,
                FORGOTTEN => figures.forgotten = value,
                LAST_SUCCESS => {
                    figures.last_success = i64::try_from(value).ok().map(|at| Timestamp(at * 1000));
                }
                _ => {}
            }
        }
        // What is written of a bound is all that is below it.
        for histogram in &mut figures.asked {
            for bound in (1..histogram.counts.len()).rev() {
                histogram.counts[bound] = histogram.counts[bound].saturating_sub(histogram.counts[bound - 1]);
            }
        }
    }

    /// The loop turns.
    pub(super) fn turn(&self) {
        self.figures().turn = Instant::now();
    }

    /// A pass came to its end; `now` is this host's clock.
    pub fn passed(&self, report: &Report, now: Timestamp) {
        let mut figures = self.figures();
        for judged in report.judged.iter().filter(|judged| judged.fate == Fate::GivenBack) {
            *figures.given_back.entry(judged.row.as_str()).or_default() += 1;
        }
        figures.candidates = Some(report.candidates);
        figures.kept.clone_from(&report.kept);
        let mut reported: BTreeMap<&'static str, usize> = BTreeMap::new();
        for (_, reason) in report.reported() {
            *reported.entry(reason).or_default() += 1;
        }
        if !report.unreadable.is_empty() {
            reported.insert(UNREADABLE, report.unreadable.len());
        }
        figures.reported = Some(reported);
        figures.took = Some(report.took);
        figures.braked = report.brakes.iter().map(|brake| brake.label()).collect();
        figures.mended += report.mended_count() as u64;
        if report.mended.looked {
            let is_left = |repair: Repair| matches!(repair, Repair::ByHand | Repair::Possible);
            figures.left = Some(report.mended.notes.iter().filter(|(_, repair)| is_left(*repair)).count());
            figures.unread = report.mended.unreadable.len();
        }
        figures.forgotten += report.forgotten as u64;
        figures.troubles = Some(report.troubles.len() + report.unreadable.len() + figures.unread);
        let ended = match report.stopped {
            Some(_) => Passed::Stopped,
            None if report.braked() => Passed::Braked,
            None => Passed::Done,
        };
        figures.passes[ended as usize] += 1;
        if ended == Passed::Done && !report.undone {
            figures.last_success = Some(now);
            figures.success = Some(Instant::now());
        }
    }

    /// There was no pass. What the last one found is no longer known.
    pub fn failed(&self) {
        self.no_pass(Passed::Failed);
    }

    /// The same: somebody stopped it before it gave anything back.
    pub fn stopped(&self) {
        self.no_pass(Passed::Stopped);
    }

    fn no_pass(&self, ended: Passed) {
        let mut figures = self.figures();
        figures.passes[ended as usize] += 1;
        figures.candidates = None;
        figures.kept.clear();
        figures.reported = None;
        figures.braked.clear();
        figures.troubles = None;
    }

    /// The pools, as they were counted.
    pub fn pools(&self, rows: &[PoolRow]) {
        self.figures().pools = rows.iter().map(|row| (row.name.to_string(), row.counts)).collect();
    }

    /// How full the store is.
    pub fn fill(&self, fill: Option<Fill>) {
        self.figures().fill = fill;
    }

    /// The store answered, or did not.
    pub fn asked(&self, operation: Operation, took: Duration) {
        let mut figures = self.figures();
        let histogram = &mut figures.asked[operation as usize];
        let seconds = took.as_secs_f64();
        histogram.counts[BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len())] += 1;
        histogram.sum += took;
    }

    /// Does the loop turn? A pass waits for answers a minute or two, never for three intervals of the usual length.
    ///
    /// # Errors
    /// Since when it does not.
    pub fn alive(&self, interval: Duration) -> Result<(), String> {
        let still = self.figures().turn.elapsed();
        if still <= (interval * 3).max(STILL) {
            return Ok(());
        }
        Err(format!("the loop has not turned for {} s", still.as_secs()))
    }

    /// Do passes do their work?
    ///
    /// # Errors
    /// Since when they do not.
    pub fn ready(&self, interval: Duration) -> Result<(), String> {
        let figures = self.figures();
        let Some(success) = figures.success else {
            return Err("no pass has come to its end yet".into());
        };
        let since = success.elapsed();
        if since <= interval * 3 + figures.took.unwrap_or_default() {
            return Ok(());
        }
        Err(format!("the last pass that did its work ended {} s ago", since.as_secs()))
    }

    /// All of it, for Prometheus.
    #[must_use]
    pub fn text(&self) -> String {
        let figures = self.figures();
        let mut out = Text(String::with_capacity(8192));
        figures.write(&mut out);
        out.0
    }
}

impl Figures {
    fn write(&self, out: &mut Text) {
        out.head("leasehold_build_info", "gauge", "1, with the version of this leasehold.");
        out.line("leasehold_build_info", &[("version", env!("CARGO_PKG_VERSION"))], "1");
        self.write_pools(out);
        self.write_passes(out);
        self.write_store(out);
    }

    fn write_pools(&self, out: &mut Text) {
        if self.pools.is_empty() {
            return;
        }
        const NAME: &str = "leasehold_pool_addresses";
        let help = "Addresses of a pool by state, of the family that has the least free. States overlap: size is all usable ones, doubtful those kept because nobody knows.";
        out.head(NAME, "gauge", help);
        for (pool, counts) in &self.pools {
            let states = [
                ("size", counts.size),
                ("bound", counts.bound),
                ("held", counts.held),
                ("cooling", counts.cooling),
                ("reserved", counts.reserved),
                ("declined", counts.declined),
                ("free", counts.free),
                ("doubtful", counts.doubt),
            ];
            for (state, count) in states {
                out.line(NAME, &[("pool", pool), ("state", state)], &number(count));
            }
        }
    }

    fn write_passes(&self, out: &mut Text) {
        if let Some(candidates) = self.candidates {
            let help = "Leases that the last pass would have ended, before brakes and the live question.";
            out.gauge("leasehold_reap_candidates", help, candidates);
        }
        out.head(GIVEN_BACK, "counter", "Leases given back, by the row of the table of verdicts.");
        for (row, count) in &self.given_back {
            out.line(GIVEN_BACK, &[("row", row)], &count.to_string());
        }
        if !self.kept.is_empty() {
            const NAME: &str = "leasehold_reap_kept";
            out.head(NAME, "gauge", "Leases that the last pass kept, by reason.");
            for (reason, count) in &self.kept {
                out.line(NAME, &[("reason", reason)], &count.to_string());
            }
        }
        if let Some(reported) = &self.reported {
            const NAME: &str = "leasehold_reap_reported";
            out.head(
                NAME,
                "gauge",
                "Leases that the last pass kept and that a person should look at, by reason.",
            );
            for (reason, count) in reported {
                out.line(NAME, &[("reason", reason)], &count.to_string());
            }
        }
        if let Some(took) = self.took {
            let help = "How long the last pass took.";
            out.gauge("leasehold_reap_pass_duration_seconds", help, took.as_secs_f64());
        }
        if let Some(at) = self.last_success {
            out.gauge(LAST_SUCCESS, "When a pass last did all its work.", at.0.div_euclid(1000));
        }
        out.head(PASSES, "counter", "Passes, by how they ended.");
        for (result, count) in RESULTS.iter().zip(self.passes) {
            out.line(PASSES, &[("result", result)], &count.to_string());
        }
        const NAME: &str = "leasehold_reap_brakes";
        out.head(NAME, "gauge", "1 where this brake stopped the last pass, or part of it.");
        for brake in BRAKES {
            let on = u8::from(self.braked.contains(&brake));
            out.line(NAME, &[("brake", brake)], &on.to_string());
        }
        out.counter(MENDED, "Half pairs of keys mended.", self.mended);
        if let Some(left) = self.left {
            out.gauge(LEFT, "Half pairs that the last full pass found and did not mend.", left);
        }
        out.counter(FORGOTTEN, "Released keys forgotten.", self.forgotten);
        if let Some(troubles) = self.troubles {
            let help = "What failed in the last pass and did not end it, and records that cannot be read.";
            out.gauge("leasehold_reap_troubles", help, troubles);
        }
    }

    fn write_store(&self, out: &mut Text) {
        out.head(ASKED, "histogram", "How long the store took to answer, or to fail.");
        for (op, histogram) in OPERATIONS.iter().zip(&self.asked) {
            let mut sum = 0;
            let bounds = BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
            for (bound, count) in bounds.zip(histogram.counts) {
                sum += count;
                out.line(&format!("{ASKED}_bucket"), &[("op", op), ("le", &bound)], &sum.to_string());
            }
            out.line(&format!("{ASKED}_sum"), &[("op", op)], &histogram.sum.as_secs_f64().to_string());
            out.line(&format!("{ASKED}_count"), &[("op", op)], &sum.to_string());
        }
        let Some(fill) = self.fill else { return };
        out.gauge("leasehold_store_size_bytes", "Size of the store's largest member.", fill.size);
        if let Some(quota) = fill.quota {
            let help = "Size at which the store takes no more writes.";
            out.gauge("leasehold_store_quota_bytes", help, quota);
        }
        out.gauge("leasehold_store_alarms", "Alarms and complaints of the store's members.", fill.alarms);
    }
}

/// The text as it grows.
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{text}\"", if index == 0 { '{' } else { ',' });
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl ToString) {
        self.head(name, "gauge", help);
        self.line(name, &[], &value.to_string());
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.line(name, &[], &value.to_string());
    }
}

/// A count as Prometheus reads it: a /64 has more than fit into an integer of 64 bits, which is a float there.
fn number(count: u128) -> String {
    if u64::try_from(count).is_ok() { count.to_string() } else { format!("{:e}", count as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_large_numbers_are_as_prometheus_reads_them() {
        let mut out = Text(String::new());
        out.line("a", &[("b", "x\"y\\z\n"), ("c", "")], &number(7));
        out.line("a", &[], &number(1 << 64));
        assert_eq!(out.0, "a{b=\"x\\\"y\\\\z\\n\",c=\"\"} 7\na 1.8446744073709552e19\n");
    }

    #[test]
    fn totals_go_on_from_the_text_before() {
        let first = Metrics::new();
        first.failed();
        first.figures().last_success = Some(Timestamp(1_700_000_000_000));
        first.figures().given_back.insert("12 scaled", 4);
        for millis in [1, 600, 20_000] {
            first.asked(Operation::Commit, Duration::from_millis(millis));
        }
        let second = Metrics::new();
        second.go_on_from(&first.text());
        second.failed();
        second.asked(Operation::Commit, Duration::from_millis(2));
        let text = second.text();
        for line in [
            "leasehold_store_request_duration_seconds_bucket{op=\"commit\",le=\"0.001\"} 1",
            "leasehold_store_request_duration_seconds_bucket{op=\"commit\",le=\"0.0025\"} 2",
            "leasehold_store_request_duration_seconds_bucket{op=\"commit\",le=\"1\"} 3",
            "leasehold_store_request_duration_seconds_bucket{op=\"commit\",le=\"+Inf\"} 4",
            "leasehold_store_request_duration_seconds_sum{op=\"commit\"} 20.603",
            "leasehold_store_request_duration_seconds_count{op=\"read\"} 0",
            "leasehold_reap_passes_total{result=\"failed\"} 2",
            "leasehold_reap_given_back_total{row=\"12 scaled\"} 4",
            "leasehold_reap_last_success_timestamp_seconds 1700000000",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_pass_that_fails_leaves_no_brake_and_no_trouble_of_the_one_before() {
        let metrics = Metrics::new();
        metrics.figures().braked = vec!["nodes_silent"];
        metrics.figures().troubles = Some(3);
        metrics.failed();
        let text = metrics.text();
        let line = "leasehold_reap_brakes{brake=\"nodes_silent\"} 0";
        assert!(text.lines().any(|found| found == line), "{text}");
        assert!(!text.contains("leasehold_reap_troubles"), "{text}");
    }

    #[test]
    fn a_histogram_adds_up() {
        let metrics = Metrics::new();
        for millis in [1, 3, 600, 20_000] {
            metrics.asked(Operation::Commit, Duration::from_millis(millis));
        }
        let text = metrics.text();
        for (bound, count) in [("0.001", 1), ("0.005", 2), ("0.5", 2), ("1", 3), ("10", 3), ("+Inf", 4)] {
            let line = format!(
                "leasehold_store_request_duration_seconds_bucket{{op=\"commit\",le=\"{bound}\"}} {count}"
            );
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.contains("duration_seconds_count{op=\"commit\"} 4\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_stands_still_is_not_alive() {
        let (metrics, interval) = (Metrics::new(), Duration::from_secs(10));
        assert_eq!(metrics.alive(interval), Ok(()));
        assert_eq!(metrics.ready(interval), Err("no pass has come to its end yet".into()));
        // A pass may be slower than a short interval.
        tokio::time::advance(Duration::from_secs(300)).await;
        assert_eq!(metrics.alive(interval), Ok(()));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(metrics.alive(interval), Err("the loop has not turned for 301 s".into()));
        assert_eq!(metrics.alive(Duration::from_secs(101)), Ok(()));
        metrics.turn();
        assert_eq!(metrics.alive(interval), Ok(()));
        metrics.figures().success = Some(Instant::now());
        assert_eq!(metrics.ready(interval), Ok(()));
        tokio::time::advance(Duration::from_secs(31)).await;
        let late = "the last pass that did its work ended 31 s ago";
        assert_eq!(metrics.ready(interval), Err(late.into()));
    }
}
