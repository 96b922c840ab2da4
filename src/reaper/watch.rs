//! The controller: the same pass again and again.
//!
//! | what | when |
//! |---|---|
//! | a full pass: half pairs, released keys, history | every interval, whatever happened, or did not |
//! | a quick pass after hints | a second after the last one; while they go on, every five |
//! | a quick pass when a verdict is due that waited for time alone | right then: a node that dies costs its `lost-after`, not an interval |
//! | after a failure | after a pause that doubles up to a minute; hints do not shorten it |
//!
//! Between two passes there is at least as long as the last one took: what others ask of store and API comes first.
//! Nothing rests on a hint. What is remembered from pass to pass is when to look again, and what was told; so there may
//! be two of these.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{
    Context, Fate, Judged, Metrics, Options, PassError, Report, Teller, cannot_be_read, compact, count, pass,
};
use crate::{
    admin::check::{Repair, text},
    domain::{
        lease::LeaseId,
        names::Namespace,
        reap::{BRAKED, Row, UNKNOWN_ANSWER},
        words,
    },
    ops::{Clock, Log},
    pods::{Cluster, Hint},
    store::{Store, StoreError, Upkeep},
};

/// What changes together is seen together: a drained node deletes its pods within a second.
const SETTLE: Duration = Duration::from_secs(1);
/// While hints go on, a pass is made so often all the same.
const MOST_WAIT: Duration = Duration::from_secs(5);
/// Two passes do not follow each other closer than this.
const LEAST_GAP: Duration = Duration::from_secs(1);
/// A verdict is due at a whole second of the API's clock; no use in being there a moment too early.
const SURELY: Duration = Duration::from_millis(20);
/// A lease that somebody changed under a pass is looked at again after this.
const CHANGED: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// Between two lines about what goes on failing.
const TALK: Duration = Duration::from_secs(60);
/// Counting pools reads what a pass does not; figures that are so old are no worse for a person.
const COUNT_AGAIN: Duration = Duration::from_secs(60);

/// How it watches.
pub struct Watching<'a> {
    /// Between two full passes.
    pub interval: Duration,
    /// Full passes look for half pairs and mend them.
    pub mend: bool,
    /// Events are recorded; in this namespace if they are about no other.
    pub events: Option<Namespace>,
    /// History of the store that is older is forgotten, where nobody else forgets it.
    pub compact: Option<Duration>,
    /// Where it counts.
    pub metrics: &'a Metrics,
    /// How it talks.
    pub talk: &'a Talk<'a>,
}

/// Lines for a person: each that is news, and what goes on failing at most once a minute. That passes fail is news,
/// whatever was told before, and that they work again.
pub struct Talk<'a> {
    say: &'a (dyn Fn(&str) + Sync),
    last: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    /// When a complaint was last told.
    at: Option<Instant>,
    /// Since when passes fail, how many did, and whether that was told.
    failing: Option<(Instant, u32, bool)>,
    /// When it was last told that passes fail.
    failure: Option<Instant>,
    /// The complaint that was told last, of passes that did not fail.
    text: String,
}

impl<'a> Talk<'a> {
    /// By this voice.
    pub fn new(say: &'a (dyn Fn(&str) + Sync)) -> Self {
        Self { say, last: Mutex::default() }
    }

    /// The hints do not come: why. A pass that fails has said so itself.
    pub fn no_hints(&self, why: &str) {
        self.complain(false, || format!("no hints from the API, passes go on: {why}"));
    }

    fn failed(&self, error: &PassError, now: Instant) {
        let mut told = self.told();
        let (since, passes, _) = told.failing.get_or_insert((now, 0, false));
        *passes += 1;
        let (since, passes) = (*since, *passes);
        if told.failure.is_none_or(|at| at.elapsed() >= TALK) {
            told.at = None;
        }
        drop(told);
        let said = self.complain(true, || match passes {
            1 => format!("no pass: {error}; nothing is given back until it works again, trying on"),
            _ => format!(
                "no pass: {error}; failing for {} s, {passes} times by now, trying on",
                since.elapsed().as_secs()
            ),
        });
        if said {
            let mut told = self.told();
            told.failure = told.at;
            told.failing = told.failing.map(|(since, passes, _)| (since, passes, true));
        }
    }

    fn works(&self) {
        let failed = self.told().failing.take();
        if let Some((since, passes, true)) = failed {
            let after = since.elapsed().as_secs();
            let failed = words::count(passes as usize, "pass");
            (self.say)(&format!("works again, after {after} s and {failed} that failed"));
        }
    }

    /// What a pass met that did not end it; `None` ends what was told.
    fn trouble(&self, text: Option<String>) {
        let mut told = self.told();
        let Some(text) = text else {
            let over = std::mem::take(&mut told.text);
            drop(told);
            if !over.is_empty() {
                (self.say)(&format!("over: {over}"));
            }
            return;
        };
        let known = told.text == text;
        // The same goes on: said again by and by.
        if known && told.at.is_some_and(|at| at.elapsed() < TALK * 10) {
            return;
        }
        drop(told);
        let said = self.complain(false, || text.clone());
        if said {
            self.told().text = text;
        }
    }

    /// A line, if the last complaint is a minute old.
    fn complain(&self, failing: bool, text: impl FnOnce() -> String) -> bool {
        let mut told = self.told();
        if told.at.is_some_and(|at| at.elapsed() < TALK) || (told.failing.is_some() && !failing) {
            return false;
        }
        told.at = Some(Instant::now());
        drop(told);
        (self.say)(&text());
        true
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is remembered from pass to pass.
struct Rhythm {
    /// The next full pass.
    full: Instant,
    /// The next quick one, if a verdict is due.
    due: Option<Instant>,
    /// Nothing happens before.
    not_before: Instant,
    /// Failures in a row, of passes and of single ends.
    failures: u32,
}

/// Watches until it is dropped. Between two commits that is harmless: [`Measured::close`](super::Measured::close).
pub async fn watch<S: Store + Upkeep, K: Cluster, C: Clock, L: Log>(
    context: &Context<'_, S, K, C, L>,
    watching: &Watching<'_>,
    hints: mpsc::Receiver<Hint>,
) -> Infallible {
    let mut hints = Some(hints);
    let now = Instant::now();
    let mut rhythm = Rhythm { full: now, due: None, not_before: now, failures: 0 };
    let mut teller = watching.events.clone().map(Teller::new);
    let mut counted: Option<Instant> = None;
    let mut may_compact = true;
    // Only full passes look for them.
    let mut halves: Vec<String> = Vec::new();
    let mut known: BTreeSet<(LeaseId, &'static str)> = BTreeSet::new();
    loop {
        watching.metrics.turn();
        rhythm.wait(&mut hints).await;
        watching.metrics.turn();
        let begun = Instant::now();
        let full = rhythm.full <= begun;
        let options = Options { dry_run: false, all: false, mend: full && watching.mend, quick: !full };
        match pass(context, options, &|_| {}).await {
            Ok(mut report) => {
                watching.talk.works();
                rhythm.passed(&report, begun, watching.interval, context.clock.chance());
                let mut pools = Vec::new();
                if full || counted.is_none_or(|at| at.elapsed() >= COUNT_AGAIN) {
                    counted = Some(Instant::now());
                    match count(context.store, context.clock.now()).await {
                        Ok(rows) => {
                            watching.metrics.pools(&rows);
                            pools = rows;
                        }
                        Err(error) => report.troubles.push(format!("pools were not counted: {error}")),
                    }
                    watching.metrics.fill(context.store.fill().await);
                }
                if let Some(teller) = &mut teller {
                    report.troubles.extend(teller.tell(context.api, &report, &pools, context.cluster).await);
                }
                if let Some(keep) = watching.compact.filter(|_| full && may_compact) {
                    match compact(context.store, context.cluster, keep, report.at).await {
                        Ok(_) => {}
                        Err(StoreError::Refused { reason, .. }) => {
                            may_compact = false;
                            watching.talk.note(&format!(
                                "the store's history is not compacted: {reason}; run etcd with --auto-compaction-retention=1h, and this with --compact off"
                            ));
                        }
                        Err(error) => {
                            report.troubles.push(format!("the store's history was not compacted: {error}"));
                        }
                    }
                }
                watching.metrics.passed(&report, context.clock.now());
                if report.mended.looked {
                    halves = left_over(&report);
                }
                tell(watching.talk, &report, &halves);
                known = tell_reported(watching.talk, &report, &known);
            }
            Err(error) => {
                watching.metrics.failed();
                watching.talk.failed(&error, begun);
                rhythm.failed(watching.interval, context.clock.chance());
            }
        }
    }
}

impl Talk<'_> {
    /// News.
    fn note(&self, text: &str) {
        (self.say)(text);
    }
}

/// What is left of half pairs for a person, and what could not be read while they were looked for.
fn left_over(report: &Report) -> Vec<String> {
    let too_many = report.mended.too_many.then(|| {
        "too many half pairs to mend by itself; look at `leasehold check`, then `leasehold check --repair`".into()
    });
    let by_hand = report.left_by_hand().map(|note| format!("by hand: {}", text(note, Repair::ByHand)));
    let unread = report.mended.unreadable.iter().map(cannot_be_read);
    too_many.into_iter().chain(by_hand).chain(unread).collect()
}

fn tell(talk: &Talk<'_>, report: &Report, halves: &[String]) {
    if let Some(line) = line(report) {
        talk.note(&line);
    }
    let brakes = report.brakes.iter().map(|brake| format!("brake: {brake}"));
    let mut texts: Vec<String> =
        brakes.chain(report.troubles.iter().cloned()).chain(halves.iter().cloned()).collect();
    texts.extend(report.unreadable.iter().map(cannot_be_read));
    let more = texts.len().saturating_sub(1);
    let text = texts.into_iter().next().map(|first| match more {
        0 => first,
        more => format!("{first} (and {more} more; `leasehold reap --dry-run` shows all)"),
    });
    talk.trouble(text);
}

/// Tells of leases that a person should look at and that were not told of before; all that are to be known from now on.
/// Why brakes hold, and what a live question met, is told for the pass.
fn tell_reported(
    talk: &Talk<'_>,
    report: &Report,
    known: &BTreeSet<(LeaseId, &'static str)>,
) -> BTreeSet<(LeaseId, &'static str)> {
    let told = |judged: &Judged, reason: &str| {
        reason == BRAKED || (reason == UNKNOWN_ANSWER && judged.row != Row::Doubt)
    };
    let (mut all, mut news) = (BTreeSet::new(), Vec::new());
    for (judged, reason) in report.reported().filter(|(judged, reason)| !told(judged, reason)) {
        let key = (judged.id.clone(), reason);
        if !known.contains(&key) {
            news.push(judged);
        }
        all.insert(key);
    }
    if let Some(first) = news.first() {
        let more = match news.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more; `leasehold reap --dry-run` shows all)"),
        };
        talk.note(&format!("look at {}, kept by row {}: {}{more}", first.id, first.row, first.why));
    }
    all
}

/// What a pass did, if it did something.
fn line(report: &Report) -> Option<String> {
    /// Leases that one line names.
    const NAMED: usize = 5;
    let given: Vec<String> = report
        .judged
        .iter()
        .filter(|judged| judged.fate == Fate::GivenBack)
        .map(|judged| {
            let addresses: Vec<String> = judged.addresses.iter().map(ToString::to_string).collect();
            format!("{} of {} by row {}", addresses.join(","), judged.id.holder, judged.row)
        })
        .collect();
    let mut parts = Vec::new();
    if !given.is_empty() {
        let more = match given.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let named = given.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        parts.push(format!("{} given back ({named}{more})", given.len()));
    }
    for (count, what) in [(report.mended_count(), "half pairs mended"), (report.forgotten, "forgotten")] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    (!parts.is_empty()).then(|| {
        format!(
            "{}; {}, {}, in {:.1}s",
            parts.join(", "),
            words::count(report.leases, "lease"),
            words::count(report.pods, "pod"),
            report.took.as_secs_f64()
        )
    })
}

impl Rhythm {
    /// Until the next pass.
    async fn wait(&self, hints: &mut Option<mpsc::Receiver<Hint>>) {
        let mut hinted: Option<(Instant, Instant)> = None;
        loop {
            let settled = hinted.map(|(first, last)| (last + SETTLE).min(first + MOST_WAIT));
            let next = [Some(self.full), self.due, settled].into_iter().flatten().min().unwrap_or(self.full);
            tokio::select! {
                biased;
                () = sleep_until(next.max(self.not_before)) => return,
                hint = next_hint(hints) => {
                    let now = Instant::now();
                    match hint {
                        Some(_) => hinted = Some((hinted.map_or(now, |(first, _)| first), now)),
                        // Nobody sends any more: without them it is the interval that counts.
                        None => *hints = None,
                    }
                }
            }
        }
    }

    fn passed(&mut self, report: &Report, begun: Instant, interval: Duration, chance: u64) {
        let now = Instant::now();
        if self.full <= begun {
            self.full = (begun + interval).max(now + LEAST_GAP);
        }
        self.not_before = now + report.took.max(LEAST_GAP);
        self.due = report.due.map(|due| due + SURELY);
        let any = |fate: fn(&Fate) -> bool| report.judged.iter().any(|judged| fate(&judged.fate));
        if any(|fate| *fate == Fate::Changed) {
            self.due = Some(self.due.map_or(now + CHANGED, |due| due.min(now + CHANGED)));
        }
        if any(|fate| matches!(fate, Fate::Failed(_))) {
            self.failures += 1;
            let again = now + pause(self.failures, interval, chance);
            self.not_before = self.not_before.max(again);
            self.due = Some(self.due.map_or(again, |due| due.min(again)));
        } else {
            self.failures = 0;
        }
    }

    fn failed(&mut self, interval: Duration, chance: u64) {
        self.failures += 1;
        self.not_before = Instant::now() + pause(self.failures, interval, chance);
        self.due = Some(self.not_before);
    }
}

async fn next_hint(hints: &mut Option<mpsc::Receiver<Hint>>) -> Option<Hint> {
    match hints {
        Some(hints) => hints.recv().await,
        None => std::future::pending().await,
    }
}

/// Doubles up to a minute (never above the interval), a quarter more or less.
fn pause(failures: u32, interval: Duration, chance: u64) -> Duration {
    let doubled = FIRST_PAUSE * 2u32.saturating_pow(failures.saturating_sub(1).min(10));
    let pause = doubled.min(LAST_PAUSE).min(interval.max(FIRST_PAUSE));
    pause * 3 / 4 + pause * u32::try_from(chance % 512).unwrap_or(0) / 1024
}
