//! `leasehold reap`: one pass. What became of each lease, why, and by which row of the table of verdicts.
//!
//! The JSON of a pass: `revision`, `at`, `cluster`, `dryRun`, `tookSeconds`, `leases`, `bound`, `pods`, `candidates`,
//! `givenBack`, `kept` (how many, by reason), `unreadable` (`key`, `why`), `brakes` (`brake`, `text`), `mended` (`text`,
//! `repair`), `forgotten`, `troubles`, `stopped` (null, or `by`, `done`, `of`), and `items`, one a lease: `namespace`, `pod`, `container`, `network`, `ifname`,
//! `addresses`, `state`, `node`, `row`, `verdict` (`kept`, `given back`, `to give back`, `changed`, `failed`), `reason`
//! (of what is kept), `failed` (why the store did not take the end), `why`, `look` (a person should).

use std::{
    io::{IsTerminal as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    time::Instant,
};

use super::{
    End, Ended, FAILED, Failure, ListRow, Listing, and_more,
    args::{Compact, Format, Global, Reap},
    connect::{self, Site},
    listen, print,
    render::{self, Column, say, text, wide},
    shorten, warn,
};
use crate::{
    admin::{self, check},
    domain::{
        lease::Holder,
        names::{ClusterName, Namespace},
        nearest::nearest,
        reap::Policy,
        words,
    },
    host::HostClock,
    ops::{Clock, Log},
    pods::{Api, ApiError, Cluster},
    reaper::{
        self, Fate, Judged, Measured, Metrics, Options, PassError, Report, Step, Stop, Talk, Teller,
        Unregistered, Watching,
    },
    store::{Upkeep as _, any::AnyStore, record::format_time},
};

const COLUMNS: &[Column] = &[
    text("ADDRESS"),
    text("STATE"),
    text("POD"),
    wide("IF"),
    wide("NETWORK"),
    text("NODE"),
    text("ROW"),
    text("VERDICT"),
    text("WHY"),
];

pub(crate) async fn run(site: &Site, global: &Global, args: &Reap) -> Ended {
    let cluster = cluster(site, global)?;
    let policy = policy(site, args)?;
    if args.watch {
        can_watch(global, args)?;
    }
    let api = connect::api(&args.api)?;
    let metrics = Arc::new(Metrics::new());
    let store = Measured::new(&site.store, &metrics);
    let stop = Stop::default();
    let context = reaper::Context {
        store: &store,
        api: &api,
        clock: &HostClock,
        log: &site.trail,
        cluster: &cluster,
        policy: &policy,
        stop: &stop,
    };
    if args.watch {
        return watch(&context, &api, site, args, &metrics).await;
    }
    let (mut signals, meter, by) = (Signals::listen()?, Meter::new(), OnceLock::new());
    tokio::select! {
        ended = once(&context, global, args, &metrics, &meter, &by) => ended,
        failure = stopped_twice(&mut signals, &stop, &meter, &by) => Err(failure),
    }
}

/// The first signal stops the pass. Ends with the second, which does not wait for what is under way.
async fn stopped_twice(
    signals: &mut Signals,
    stop: &Stop,
    meter: &Meter,
    by: &OnceLock<&'static str>,
) -> Failure {
    let first = signals.next().await;
    let _ = by.set(first);
    stop.stop();
    meter.clear();
    say(&format!("{first}: no more is begun, and what is under way is finished; once more ends it at once"));
    let second = signals.next().await;
    Failure {
        text: format!("ended by {second} with writes under way: the next pass sees what became of them"),
        hint: None,
        code: FAILED,
    }
}

async fn once<C: Clock, L: Log>(
    context: &reaper::Context<'_, Measured<'_, AnyStore>, Api, C, L>,
    global: &Global,
    args: &Reap,
    metrics: &Metrics,
    meter: &Meter,
    by: &OnceLock<&'static str>,
) -> Ended {
    let file = args.textfile.as_deref();
    let resumed = file.is_none_or(|path| is_right(path, resume_metrics(path, metrics)));
    let write = || resumed && file.is_none_or(|path| is_right(path, write_metrics(path, metrics)));
    let options = Options {
        dry_run: args.write.dry_run,
        all: matches!(global.output, Format::Wide | Format::Json | Format::Yaml),
        mend: !args.no_mend,
        quick: false,
    };
    let report = reaper::pass(context, options, &|step| meter.show(step)).await;
    meter.clear();
    let by = || by.get().copied().unwrap_or("a signal");
    let mut report = match report {
        Ok(report) => report,
        Err(error) => {
            let ended = match error {
                PassError::Stopped => {
                    metrics.stopped();
                    say(&format!("stopped by {} before anything was given back", by()));
                    Ok(End::Look)
                }
                error @ (PassError::Store(_)
                | PassError::Api(_)
                | PassError::Unregistered(_)
                | PassError::Record(_)) => {
                    metrics.failed();
                    Err(failure(error))
                }
            };
            write();
            return ended;
        }
    };
    if !options.dry_run && report.stopped.is_none() {
        let whole = context.stop.or(after(context, args, &mut report, metrics)).await;
        if whole.is_none() {
            let left = format!("stopped by {}: pools were not counted, or Events not recorded", by());
            report.troubles.push(left);
        }
    }
    metrics.passed(&report, context.clock.now());
    let written = write();
    let end = show(global, context.cluster, options, report, by())?;
    Ok(if written { end } else { End::Look })
}

/// What one pass does beside giving back.
async fn after<K: Cluster, C: Clock, L: Log>(
    context: &reaper::Context<'_, Measured<'_, AnyStore>, K, C, L>,
    args: &Reap,
    report: &mut Report,
    metrics: &Metrics,
) {
    let mut pools = Vec::new();
    if args.textfile.is_some() || !args.no_events {
        match reaper::count(context.store, context.clock.now()).await {
            Ok(rows) => pools = rows,
            Err(error) => report.troubles.push(format!("pools were not counted: {error}")),
        }
        metrics.pools(&pools);
    }
    if args.textfile.is_some() {
        metrics.fill(context.store.fill().await);
    }
    if !args.no_events {
        let mut teller = Teller::new(own_namespace());
        report.troubles.extend(teller.tell(context.api, report, &pools, context.cluster).await);
    }
    if let Some(Compact::Keep(keep)) = args.compact
        && let Err(error) = reaper::compact(context.store, context.cluster, keep, report.at).await
    {
        report.troubles.push(format!(
            "the store's history was not compacted: {error}; run etcd with --auto-compaction-retention=1h instead"
        ));
    }
}

/// Below this a pass could not end before the next.
const LEAST_INTERVAL: Duration = Duration::from_secs(5);
/// Hints that wait; more say nothing new.
const HINTS: usize = 16;
/// With `--watch`, unless it is said: as etcd's own setting should be.
const KEEP_HISTORY: Duration = Duration::from_secs(3600);
/// A commit that is under way at the end may take so long.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

fn can_watch(global: &Global, args: &Reap) -> Result<(), Failure> {
    if args.interval < LEAST_INTERVAL {
        return Err(Failure::usage("--interval must be at least 5s"));
    }
    if global.output != Format::Table {
        return Err(Failure::usage(
            "--watch prints no leases: leave -o out, and see one pass with --dry-run",
        ));
    }
    Ok(())
}

async fn watch<L: Log>(
    context: &reaper::Context<'_, Measured<'_, AnyStore>, Api, HostClock, L>,
    api: &Api,
    site: &Site,
    args: &Reap,
    metrics: &Arc<Metrics>,
) -> Ended {
    let failed = |text: String| Failure { text, hint: None, code: FAILED };
    let mut signals = Signals::listen()?;
    let serving = match &args.listen {
        Some(wanted) => {
            let bound = async {
                let listener = listen::bind(wanted).await?;
                listener.local_addr().map(|address| (listener, address))
            };
            let (listener, address) = bound.await.map_err(|error| failed(format!("--listen: {error}")))?;
            say(&format!("metrics and health on http://{address}"));
            Some(tokio::spawn(listen::serve(listener, Arc::clone(metrics), args.interval)))
        }
        None => None,
    };
    let voice = |text: &str| {
        say(text);
        site.trail.note(text);
    };
    let talk = Talk::new(&voice);
    let watching = Watching {
        interval: args.interval,
        mend: !args.no_mend,
        events: (!args.no_events).then(own_namespace),
        compact: match args.compact {
            None => Some(KEEP_HISTORY),
            Some(Compact::Keep(keep)) => Some(keep),
            Some(Compact::Off) => None,
        },
        metrics,
        talk: &talk,
    };
    let (sender, hints) = mpsc::channel(HINTS);
    let no_hints = |error: &ApiError| talk.no_hints(&error.to_string());
    let working = async {
        tokio::select! {
            never = reaper::watch(context, &watching, hints) => match never {},
            () = async {
                api.follow(&sender, &no_hints).await;
                std::future::pending::<()>().await;
            } => {}
        }
    };
    tokio::pin!(working);
    tokio::select! {
        () = &mut working => {}
        _ = signals.next() => {}
    }
    // A commit that was sent is waited for, so that nothing is left in doubt; no other begins.
    let closed = async {
        tokio::select! {
            () = &mut working => {}
            () = context.store.close() => {}
        }
    };
    let _ = tokio::time::timeout(CLOSE_WITHIN, closed).await;
    if let Some(serving) = serving {
        serving.abort();
    }
    Ok(End::Done)
}

/// The signals that ask for an end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let listen = || {
            let terminate = signal(SignalKind::terminate())?;
            signal(SignalKind::interrupt()).map(|interrupt| Self { terminate, interrupt })
        };
        listen().map_err(|error: std::io::Error| Failure {
            text: format!("signals cannot be taken: {error}"),
            hint: None,
            code: FAILED,
        })
    }

    /// The next one's name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Where Events go that are about no namespace.
fn own_namespace() -> Namespace {
    const FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
    let named = std::env::var_os("POD_NAMESPACE").and_then(|name| name.into_string().ok());
    let named = named.or_else(|| std::fs::read_to_string(FILE).ok());
    named
        .and_then(|name| Namespace::new(name.trim()).ok())
        .or_else(|| Namespace::new("default").ok())
        .unwrap_or_else(|| unreachable!("default is a namespace"))
}

/// Totals go on from what the last pass wrote. What is no text is not ours to replace.
fn resume_metrics(path: &Path, metrics: &Metrics) -> std::io::Result<()> {
    match std::fs::read_to_string(path) {
        Ok(before) => metrics.go_on_from(&before),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// A file that is wrong is said, and stops no pass.
fn is_right(path: &Path, done: std::io::Result<()>) -> bool {
    if let Err(error) = &done {
        say(&format!(
            "warning: no metrics, --textfile {}: {error}; it must be a text file in a folder that can be written",
            path.display()
        ));
    }
    done.is_ok()
}

/// Whole or not at all: node_exporter may read at any moment. It runs as nobody, so everybody may read.
fn write_metrics(path: &Path, metrics: &Metrics) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    // It is taken for one of its own only if it ends in .prom.
    let aside = path.with_file_name(name);
    let write = || {
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).open(&aside)?;
        file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
        file.write_all(metrics.text().as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&aside, path)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&aside)))
}

/// The cluster whose leases are looked at: asked for, or the host file's.
pub(crate) fn cluster(site: &Site, global: &Global) -> Result<ClusterName, Failure> {
    global.cluster.clone().or_else(|| site.scope.home.clone()).ok_or_else(|| {
        Failure::usage(
            "whose leases? name the cluster as it is registered: --cluster NAME (`leasehold cluster list`)",
        )
    })
}

fn policy(site: &Site, args: &Reap) -> Result<Policy, Failure> {
    let least = least_absent_after(site.host.as_ref().map(|host| host.config.add_deadline));
    if args.absent_after < least {
        return Err(Failure::usage(&format!(
            "--absent-after must be at least {}s: an ADD may live so long, and its pod be younger than the list",
            least.as_secs()
        )));
    }
    let mut policy = Policy {
        lost_after: args.lost_after,
        absent_after: args.absent_after,
        finished_after: args.finished_after,
        owner_after: args.owner_after,
        max_orphans: args.max_orphans,
        ..Policy::default()
    };
    policy.sticky_kinds = sticky_kinds(site, &args.sticky_kinds);
    Ok(policy)
}

/// `add` is the host file's deadline of an ADD: that of the nodes, if the reaper has a file as they have.
fn least_absent_after(add: Option<Duration>) -> Duration {
    /// What a pod may be younger than the list that does not show it.
    const MARGIN: Duration = Duration::from_secs(5);
    let least = crate::domain::reap::MIN_ABSENT_AFTER;
    add.map_or(least, |add| least.max(add + MARGIN))
}

/// Those that are always known, the host file's, and these.
pub(crate) fn sticky_kinds(site: &Site, more: &[String]) -> Vec<String> {
    let mut kinds = Policy::default().sticky_kinds;
    let own = site.host.iter().flat_map(|host| &host.config.sticky_kinds);
    for kind in own.chain(more) {
        if !kinds.contains(kind) {
            kinds.push(kind.clone());
        }
    }
    kinds
}

fn failure(error: PassError) -> Failure {
    let hint = match &error {
        PassError::Store(error) => return error.clone().into(),
        PassError::Record(error) => return admin::Error::from(error.clone()).into(),
        PassError::Stopped => "the next pass begins anew".into(),
        PassError::Api(_) => "nothing was given back; the next pass begins anew".into(),
        PassError::Unregistered(unknown) => register(unknown),
    };
    Failure { text: error.to_string(), hint: Some(hint), code: FAILED }
}

/// A name that is like another was hardly meant to be a new cluster's.
pub(crate) fn register(unknown: &Unregistered) -> String {
    let cluster = &unknown.cluster;
    if let Some(near) = nearest(cluster.as_str(), unknown.known.iter().map(ClusterName::as_str)) {
        return format!(
            "did you mean {near}? `leasehold cluster list` shows all, `cluster add` registers one"
        );
    }
    format!(
        "`leasehold cluster add {cluster} --uid \"$(kubectl get namespace kube-system -o jsonpath='{{.metadata.uid}}')\"`"
    )
}

fn show(global: &Global, cluster: &ClusterName, options: Options, report: Report, by: &str) -> Ended {
    let documents = matches!(global.output, Format::Json | Format::Yaml);
    if documents {
        let items: Vec<Value> = report.judged.iter().map(item).collect();
        let whole = document(cluster, options, &report, items, by);
        let text = render::document(&whole, global.output).map_err(|text| Failure {
            text,
            hint: None,
            code: FAILED,
        })?;
        print(&text)?;
    } else {
        let judged = report.judged.iter().filter(|judged| {
            global.output != Format::Name || matches!(judged.fate, Fate::GivenBack | Fate::Candidate)
        });
        // A brake keeps thousands for one reason.
        let reason = |judged: &&Judged| {
            let Fate::Kept(label) = judged.fate else { return None };
            // Among those, the few that are to be looked at are not left out for the others.
            (global.output == Format::Table).then_some((label, judged.look))
        };
        let (judged, left_out) = shorten(judged, reason);
        let rows: Vec<ListRow> = judged
            .into_iter()
            .map(|judged| ListRow {
                cells: cells(judged),
                name: format!("lease/{}", judged.id.holder),
                json: Value::Null,
            })
            .collect();
        if !rows.is_empty() {
            print(&Listing { revision: report.revision, columns: COLUMNS, rows }.text(global, true)?)?;
        }
        for ((label, _), count) in left_out {
            say(&and_more(count, &format!("that are kept: {label}")));
        }
    }
    talk(options, &report);
    if let Some(come) = report.stopped {
        say(&format!(
            "stopped by {by} after {} of {} candidates; the next pass goes on",
            come.done, come.all
        ));
    }
    Ok(if report.needs_a_look() { End::Look } else { End::Done })
}

fn cells(judged: &Judged) -> Vec<String> {
    let addresses: Vec<String> = judged.addresses.iter().map(ToString::to_string).collect();
    vec![
        addresses.join(","),
        judged.state.as_str().into(),
        judged.id.holder.to_string(),
        judged.id.ifname.to_string(),
        judged.id.network.to_string(),
        judged.node.as_ref().map(ToString::to_string).unwrap_or_default(),
        judged.row.to_string(),
        judged.fate.as_str().into(),
        match &judged.fate {
            Fate::Failed(why) => format!("{why} ({})", judged.why),
            Fate::Kept(_) | Fate::Noted(_) if judged.look => format!("look at it: {}", judged.why),
            Fate::Kept(_) | Fate::Noted(_) | Fate::GivenBack | Fate::Candidate | Fate::Changed => {
                judged.why.clone()
            }
        },
    ]
}

fn item(judged: &Judged) -> Value {
    let (namespace, pod, container) = match &judged.id.holder {
        Holder::Pod { namespace, name } => (Some(namespace.as_str()), Some(name.as_str()), None),
        Holder::Container(id) => (None, None, Some(id.as_str())),
    };
    let (reason, failed) = match &judged.fate {
        Fate::Kept(reason) | Fate::Noted(reason) => (Some(*reason), None),
        Fate::Failed(why) => (None, Some(why.as_str())),
        Fate::GivenBack | Fate::Candidate | Fate::Changed => (None, None),
    };
    json!({
        "namespace": namespace,
        "pod": pod,
        "container": container,
        "network": judged.id.network.as_str(),
        "ifname": judged.id.ifname.as_str(),
        "addresses": judged.addresses,
        "state": judged.state.as_str(),
        "node": judged.node.as_ref().map(|node| node.as_str()),
        "row": judged.row.as_str(),
        "verdict": judged.fate.as_str(),
        "reason": reason,
        "failed": failed,
        "why": judged.why,
        "look": judged.look,
    })
}

fn document(cluster: &ClusterName, options: Options, report: &Report, items: Vec<Value>, by: &str) -> Value {
    json!({
        "revision": report.revision.0,
        "at": format_time(report.at),
        "cluster": cluster.as_str(),
        "dryRun": options.dry_run,
        "tookSeconds": report.took.as_secs_f64(),
        "leases": report.leases,
        "bound": report.bound,
        "pods": report.pods,
        "candidates": report.candidates,
        "givenBack": report.given_back(),
        "kept": report.kept,
        "unreadable": report.unread().map(|(key, why)| json!({"key": key, "why": why})).collect::<Vec<_>>(),
        "brakes": report.brakes.iter()
            .map(|brake| json!({"brake": brake.label(), "text": brake.to_string()})).collect::<Vec<_>>(),
        "mended": report.mended.notes.iter()
            .map(|(note, repair)| json!({"text": check::text(note, *repair), "repair": repair.as_str()})).collect::<Vec<_>>(),
        "forgotten": report.forgotten,
        "troubles": report.troubles,
        "stopped": report.stopped.map(|come| json!({"by": by, "done": come.done, "of": come.all})),
        "items": items,
    })
}

/// A clock that is off by more says so: what is compared is the API server's alone, but leases hold nodes' times.
const SKEW_MS: i64 = 10_000;

fn talk(options: Options, report: &Report) {
    for brake in &report.brakes {
        say(&format!("brake: {brake}"));
    }
    warn(report.troubles.iter().cloned());
    warn(report.unread().map(reaper::cannot_be_read));
    for (note, repair) in &report.mended.notes {
        say(&format!("{}: {}", repair.as_str(), check::text(note, *repair)));
    }
    if report.mended.too_many {
        say(
            "warning: too many half pairs to mend by itself; look at `leasehold check`, then `leasehold check --repair`",
        );
    }
    if report.skew_ms.abs() > SKEW_MS {
        say(&format!(
            "warning: this host's clock is {} s off the API server's: set the clocks (NTP)",
            report.skew_ms / 1000
        ));
    }
    say(&summary(options, report));
}

/// One line of a pass.
pub(crate) fn summary(options: Options, report: &Report) -> String {
    let ends = if options.dry_run {
        format!(
            "{} would be given back (dry run)",
            report.judged.iter().filter(|j| j.fate == Fate::Candidate).count()
        )
    } else {
        format!("{} given back", report.given_back())
    };
    format!(
        "{} ({} bound), {}: {ends}, {} kept, {} forgotten, in {:.1}s",
        words::count(report.leases, "lease"),
        report.bound,
        words::count(report.pods, "pod"),
        report.kept.values().sum::<usize>(),
        report.forgotten,
        report.took.as_secs_f64()
    )
}

/// Progress on a terminal, one line that is written over; nothing elsewhere, and nothing for what is quick.
pub(crate) struct Meter {
    shown: Option<Mutex<Instant>>,
}

impl Meter {
    const QUICK: Duration = Duration::from_millis(300);

    pub(crate) fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal().then(|| Mutex::new(Instant::now())) }
    }

    pub(crate) fn show(&self, step: Step) {
        let Some(shown) = &self.shown else { return };
        let Ok(mut last) = shown.lock() else { return };
        if last.elapsed() < Self::QUICK {
            return;
        }
        *last = Instant::now();
        let text = match step {
            Step::Leases(count) => format!("{count} leases read"),
            Step::Pods(count) => format!("{count} pods listed"),
            Step::Candidates(done, all) => format!("{done} of {all} candidates"),
            Step::Mending => "looking for half pairs".into(),
        };
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
    }

    pub(crate) fn clear(&self) {
        if self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::{lease::State, reap::Row},
        store::{Key, keys},
    };

    #[test]
    fn a_row_says_that_a_person_should_look_at_it() {
        let judged = |fate, look| Judged {
            id: keys::parse_lease(&Key::new("v1/leases/prod/shop/db-0/lan/eth0")).unwrap(),
            addresses: vec![],
            state: State::Bound,
            node: None,
            row: Row::Doubt,
            fate,
            why: "nobody knows".into(),
            look,
        };
        let why = |fate, look| cells(&judged(fate, look)).pop().unwrap();
        assert_eq!(why(Fate::Kept("unknown_answer"), true), "look at it: nobody knows");
        assert_eq!(why(Fate::Kept("unknown_answer"), false), "nobody knows");
        assert_eq!(why(Fate::GivenBack, false), "nobody knows");
    }
}
