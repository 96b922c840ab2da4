//! `leasehold reap`: one pass. What became of each lease, why, and by which row of the table of verdicts.
//!
//! The JSON of a pass: `revision`, `at`, `cluster`, `dryRun`, `tookSeconds`, `leases`, `bound`, `pods`, `candidates`,
//! `givenBack`, `kept` (how many, by reason), `brakes` (`brake`, `text`), `mended`, `forgotten`, `troubles`, and
//! `items`, one a lease: `namespace`, `pod`, `container`, `network`, `ifname`, `addresses`, `state`, `node`, `row`,
//! `verdict` (`kept`, `given back`, `to give back`, `changed`, `failed`), `reason` (of what is kept), `why`.

use std::{
    io::{IsTerminal as _, Write as _},
    sync::Mutex,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    End, Ended, FAILED, Failure, ListRow, Listing,
    args::{Format, Global, Reap},
    connect::{self, Site},
    print,
    render::{self, Column, say, text, wide},
};
use crate::{
    domain::{lease::Holder, names::ClusterName, reap::Policy},
    host::HostClock,
    reaper::{self, Fate, Judged, Options, PassError, Report, Step},
    store::record::format_time,
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
    let api = connect::api(&args.api)?;
    let policy = policy(site, args)?;
    let context = reaper::Context {
        store: &site.store,
        api: &api,
        clock: &HostClock,
        log: &site.trail,
        cluster: &cluster,
        policy: &policy,
    };
    let options = Options {
        dry_run: args.write.dry_run,
        all: matches!(global.output, Format::Wide | Format::Json | Format::Yaml),
        mend: !args.no_mend,
    };
    let meter = Meter::new();
    let report = reaper::pass(&context, options, &|step| meter.show(step)).await;
    meter.clear();
    let report = report.map_err(failure)?;
    show(global, &cluster, options, report)
}

/// The cluster whose leases are looked at: asked for, or the host file's.
fn cluster(site: &Site, global: &Global) -> Result<ClusterName, Failure> {
    global.cluster.clone().or_else(|| site.scope.home.clone()).ok_or_else(|| {
        Failure::usage(
            "whose leases? name the cluster as it is registered: --cluster NAME (`leasehold cluster list`)",
        )
    })
}

fn policy(site: &Site, args: &Reap) -> Result<Policy, Failure> {
    let least = crate::domain::reap::MIN_ABSENT_AFTER;
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
    let own = site.host.iter().flat_map(|host| &host.config.sticky_kinds);
    for kind in own.chain(&args.sticky_kinds) {
        if !policy.sticky_kinds.contains(kind) {
            policy.sticky_kinds.push(kind.clone());
        }
    }
    Ok(policy)
}

fn failure(error: PassError) -> Failure {
    let hint = match &error {
        PassError::Store(error) => return error.clone().into(),
        PassError::Api(_) => "nothing was given back; the next pass begins anew".into(),
        PassError::Unregistered { cluster, .. } => format!(
            "`leasehold cluster add {cluster} --uid \"$(kubectl get namespace kube-system -o jsonpath='{{.metadata.uid}}')\"`"
        ),
    };
    Failure { text: error.to_string(), hint: Some(hint), code: FAILED }
}

fn show(global: &Global, cluster: &ClusterName, options: Options, report: Report) -> Ended {
    let inside = |judged: &Judged| {
        global.namespace.as_ref().is_none_or(|only| match &judged.id.holder {
            Holder::Pod { namespace, .. } => namespace == only,
            Holder::Container(_) => false,
        })
    };
    let documents = matches!(global.output, Format::Json | Format::Yaml);
    if documents {
        let items: Vec<Value> = report.judged.iter().filter(|judged| inside(judged)).map(item).collect();
        let whole = document(cluster, options, &report, items);
        let text = render::document(&whole, global.output).map_err(|text| Failure {
            text,
            hint: None,
            code: FAILED,
        })?;
        print(&text)?;
    } else {
        let rows: Vec<ListRow> = report
            .judged
            .iter()
            .filter(|judged| inside(judged))
            .filter(|judged| {
                global.output != Format::Name || matches!(judged.fate, Fate::GivenBack | Fate::Candidate)
            })
            .map(|judged| ListRow {
                cells: cells(judged),
                name: format!("lease/{}", judged.id.holder),
                json: Value::Null,
            })
            .collect();
        if !rows.is_empty() {
            print(&Listing { revision: report.revision, columns: COLUMNS, rows }.text(global, true)?)?;
        }
    }
    talk(options, &report);
    Ok(if report.braked() || report.mended.too_many { End::Look } else { End::Done })
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

fn document(cluster: &ClusterName, options: Options, report: &Report, items: Vec<Value>) -> Value {
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
        "unreadable": report.unreadable.iter().map(|(key, why)| json!({"key": key, "why": why})).collect::<Vec<_>>(),
        "brakes": report.brakes.iter()
            .map(|brake| json!({"brake": brake.label(), "text": brake.to_string()})).collect::<Vec<_>>(),
        "mended": report.mended.notes.iter()
            .map(|(note, repair)| json!({"text": note.to_string(), "repair": repair.as_str()})).collect::<Vec<_>>(),
        "forgotten": report.forgotten,
        "troubles": report.troubles,
        "items": items,
    })
}

/// A clock that is off by more says so: what is compared is the API server's alone, but leases hold nodes' times.
const SKEW_MS: i64 = 10_000;

fn talk(options: Options, report: &Report) {
    for brake in &report.brakes {
        say(&format!("brake: {brake}"));
    }
    for trouble in &report.troubles {
        say(&format!("warning: {trouble}"));
    }
    for (key, why) in &report.unreadable {
        say(&format!("warning: {key} cannot be read, and is kept: {why}"));
    }
    for (note, repair) in &report.mended.notes {
        say(&format!("{}: {note}", repair.as_str()));
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
        "{} leases ({} bound), {} pods: {ends}, {} kept, {} forgotten, in {:.1}s",
        report.leases,
        report.bound,
        report.pods,
        report.kept.values().sum::<usize>(),
        report.forgotten,
        report.took.as_secs_f64()
    )
}

/// Progress on a terminal, one line that is written over; nothing elsewhere, and nothing for what is quick.
struct Meter {
    shown: Option<Mutex<Instant>>,
}

impl Meter {
    const QUICK: Duration = Duration::from_millis(300);

    fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal().then(|| Mutex::new(Instant::now())) }
    }

    fn show(&self, step: Step) {
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

    fn clear(&self) {
        if self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
