//! The edge that a person calls: arguments in, data on stdout, talk on stderr, an exit code.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | failed: store unreachable, bad file |
//! | 2 | wrong usage |
//! | 3 | done, and there is something to look at |
//! | 4 | refused, needs `--force`, or which cluster or domain is meant |
//! | 5 | what is named is not there: a pool, a lease, a cluster, a domain, a network |

mod adopt;
mod args;
mod connect;
mod data;
mod doctor;
mod documents;
mod filters;
mod install;
mod leases;
mod listen;
mod pools;
mod reap;
mod render;

use std::{collections::BTreeMap, error::Error as _, ffi::OsString, io, process::ExitCode, time::Duration};

use clap::CommandFactory as _;
use serde_json::{Value, json};

use self::{
    args::{Cli, ClusterCommand, Command, Format, Global},
    connect::Site,
    render::{Column, Printed, say},
};
#[cfg(feature = "testing")]
use crate::{
    admin::{DocumentFault, pools::Wanted},
    store::record::PoolDocument,
};
use crate::{
    admin::{Error, check, clusters, explain, known, read::read_everything},
    domain::{
        audit::{Severity, audit},
        lease::Timestamp,
        names::StoreId,
        words,
    },
    host::{self, HostClock, HostError},
    ops::Clock as _,
    store::{Revision, StoreError, any::AnyStore, keys, record},
};

/// What `pool apply -f` makes of a text: its pools, and the faults of the others.
#[cfg(feature = "testing")]
#[must_use]
pub fn pools_of(text: &str) -> (Vec<Wanted>, Vec<DocumentFault>) {
    documents::of_text("a text", text)
}

/// What `pool show -o yaml` prints.
///
/// # Errors
/// The writer's.
#[cfg(feature = "testing")]
pub fn yaml_of(pool: &PoolDocument) -> Result<String, String> {
    let value = serde_json::to_value(pool).map_err(|error| error.to_string())?;
    render::document(&value, Format::Yaml)
}

/// How a command ended that did what it was asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// There is nothing more to say.
    Done,
    /// There is something to look at.
    Look,
}

/// How a command ended that did not.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    hint: Option<String>,
    code: u8,
}

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const LOOK: u8 = 3;
const REFUSED: u8 = 4;
const MISSING: u8 = 5;

impl Failure {
    /// A use case failed.
    pub(crate) fn of(error: Error) -> Self {
        let code = match &error {
            Error::Refused { .. } => REFUSED,
            Error::Missing { .. } => MISSING,
            Error::Store(_)
            | Error::Record(_)
            | Error::Wrong { .. }
            | Error::Faults { .. }
            | Error::Changed { .. } => FAILED,
        };
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            let next_text = next.to_string();
            if !text.ends_with(&next_text) {
                text = format!("{text}: {next_text}");
            }
            cause = next.source();
        }
        Self { hint: error.hint(), text, code }
    }

    /// The arguments do not fit each other.
    pub(crate) fn usage(text: &str) -> Self {
        Self {
            text: text.into(),
            hint: Some("`leasehold COMMAND --help` shows examples".into()),
            code: USAGE,
        }
    }

    /// There is no usable host file.
    pub(crate) fn host(error: &HostError) -> Self {
        let hint = match error {
            HostError::Missing { .. } => {
                "say where the store is: --endpoints URL,… (or ETCDCTL_ENDPOINTS), or --local DIR"
            }
            HostError::Read { .. } => "the host file is root's: run it as root, or give --endpoints",
            HostError::Invalid { .. } | HostError::Readable(_) | HostError::Hostname(_) => {
                "correct the file; `leasehold doctor` checks it again"
            }
        };
        Self { text: error.to_string(), hint: Some(hint.into()), code: FAILED }
    }

    fn io(error: &io::Error) -> Self {
        Self { text: format!("cannot write: {error}"), hint: None, code: FAILED }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::of(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::of(error.into())
    }
}

/// What a command gives back: its end, or nobody reads on, or it failed.
pub(crate) type Ended = Result<End, Failure>;

/// Runs a command line; the first argument is the program.
#[must_use]
#[inline(never)] // else a runtime's call pays for its stack, too
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let (cli, takes) = match filters::parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format!("error: {error}"));
            return ExitCode::from(FAILED);
        }
    };
    match runtime.block_on(command(&cli, takes)) {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Look) => ExitCode::from(LOOK),
        Err(failure) => {
            for line in failure.text.lines() {
                say(&format!("error: {line}"));
            }
            if let Some(hint) = &failure.hint {
                say(&format!("hint: {hint}"));
            }
            ExitCode::from(failure.code)
        }
    }
}

async fn command(cli: &Cli, takes: &filters::Row) -> Ended {
    let global = &cli.global;
    filters::check(global, takes)?;
    match &cli.command {
        Command::Version => return print(&format!("leasehold {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Completion { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "leasehold", &mut text);
            return print(&String::from_utf8_lossy(&text));
        }
        Command::Doctor => return doctor::run(global).await,
        Command::Install(args) => return install::run(global, args).await,
        Command::Pool(_)
        | Command::Lease(_)
        | Command::Explain(_)
        | Command::Check(_)
        | Command::Cluster(_)
        | Command::Freeze(_)
        | Command::Thaw(_)
        | Command::Reap(_)
        | Command::Adopt(_)
        | Command::Flush(_) => {}
    }
    let site = connect::open(global).await?;
    match &cli.command {
        Command::Pool(command) => pools::run(&site, global, command).await,
        Command::Lease(command) => leases::run(&site, global, command).await,
        Command::Explain(args) => explained(&site, global, args).await,
        Command::Check(args) => checked(&site, global, args).await,
        Command::Cluster(command) => cluster(&site, global, command).await,
        Command::Freeze(args) => freeze(&site, args).await,
        Command::Thaw(args) => thaw(&site, global, args).await,
        Command::Reap(args) => reap::run(&site, global, args).await,
        Command::Adopt(args) => adopt::run(&site, global, args).await,
        Command::Flush(write) => doctor::flush(&site, global, write.dry_run).await,
        Command::Doctor | Command::Install(_) | Command::Version | Command::Completion { .. } => {
            Ok(End::Done)
        }
    }
}

pub(crate) fn now() -> Timestamp {
    HostClock.now()
}

/// Writes data.
pub(crate) fn print(text: &str) -> Ended {
    match render::out(text) {
        Ok(Printed::Whole | Printed::Closed) => Ok(End::Done),
        Err(error) => Err(Failure::io(&error)),
    }
}

/// Begins what a dry run says.
pub(crate) fn dry(dry: bool, text: &str) -> String {
    if dry { format!("{text} (dry run)") } else { text.to_owned() }
}

/// A list in every format.
pub(crate) struct Listing {
    pub(crate) revision: Revision,
    pub(crate) columns: &'static [Column],
    /// Cells; what tells a changed row from an unchanged one; the name; JSON.
    pub(crate) rows: Vec<ListRow>,
}

/// A row of it.
pub(crate) struct ListRow {
    pub(crate) cells: Vec<String>,
    pub(crate) name: String,
    pub(crate) json: Value,
}

impl Listing {
    pub(crate) fn text(self, global: &Global, headers: bool) -> Result<String, Failure> {
        let wrong = |text: String| Failure { text, hint: None, code: FAILED };
        match global.output {
            Format::Table | Format::Wide => {
                let wide = global.output == Format::Wide;
                if wide && headers {
                    say(&format!("revision {}", self.revision.0));
                }
                let rows: Vec<Vec<String>> = self.rows.into_iter().map(|row| row.cells).collect();
                Ok(render::table(self.columns, rows, wide, headers && !global.no_headers))
            }
            Format::Name => {
                // A lease of two families has two rows, far apart.
                let mut seen = std::collections::HashSet::new();
                let mut out = String::new();
                for row in &self.rows {
                    if seen.insert(&row.name) {
                        out.push_str(&row.name);
                        out.push('\n');
                    }
                }
                Ok(out)
            }
            Format::Json | Format::Yaml => {
                let items = self.rows.into_iter().map(|row| row.json).collect();
                render::document(&render::items(self.revision, items), global.output).map_err(wrong)
            }
        }
    }
}

/// Lines of one kind that a person reads; machines get all.
const MOST_ALIKE: usize = 20;

/// Leaves the first of each kind, and tells how many of it are left out. `None` is never too many.
pub(crate) fn shorten<T, K: Ord>(
    items: impl IntoIterator<Item = T>,
    kind: impl Fn(&T) -> Option<K>,
) -> (Vec<T>, BTreeMap<K, usize>) {
    let mut counts: BTreeMap<K, usize> = BTreeMap::new();
    let left = items.into_iter().filter(|item| {
        kind(item).is_none_or(|kind| {
            let count = counts.entry(kind).or_default();
            *count += 1;
            *count <= MOST_ALIKE
        })
    });
    let left = left.collect();
    counts.retain(|_, count| *count > MOST_ALIKE);
    (left, counts.into_iter().map(|(kind, count)| (kind, count - MOST_ALIKE)).collect())
}

/// What is said of those that are left out.
pub(crate) fn and_more(count: usize, what: &str) -> String {
    format!("… and {count} more {what} (-o json shows all)")
}

/// Warnings of one kind.
pub(crate) fn warn(texts: impl IntoIterator<Item = String>) {
    let (texts, more) = shorten(texts, |_| Some(()));
    for text in texts {
        say(&format!("warning: {text}"));
    }
    for count in more.into_values() {
        say(&and_more(count, "of these"));
    }
}

/// Between two looks of `--watch`.
const WATCH: Duration = Duration::from_secs(2);

/// Prints a list once, or goes on and prints the rows that change.
pub(crate) async fn list<F, Fut>(global: &Global, watch: bool, read: F) -> Ended
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<Listing, Failure>>,
{
    let first = read().await?;
    if !watch {
        return print(&first.text(global, true)?);
    }
    let mut seen: std::collections::HashMap<String, String> =
        first.rows.iter().map(|row| (identity(row), row.json.to_string())).collect();
    let mut text = first.text(global, true)?;
    loop {
        if matches!(render::out(&text).map_err(|error| Failure::io(&error))?, Printed::Closed) {
            return Ok(End::Done);
        }
        tokio::time::sleep(WATCH).await;
        let mut next = match read().await {
            Ok(next) => next,
            Err(failure) => {
                say(&format!("error: {}", failure.text));
                text.clear();
                continue;
            }
        };
        let now: std::collections::HashMap<String, String> =
            next.rows.iter().map(|row| (identity(row), row.json.to_string())).collect();
        for gone in seen.keys().filter(|key| !now.contains_key(*key)) {
            say(&format!("{gone} is gone"));
        }
        next.rows.retain(|row| seen.get(&identity(row)) != now.get(&identity(row)));
        seen = now;
        text = if next.rows.is_empty() { String::new() } else { next.text(global, false)? };
    }
}

fn identity(row: &ListRow) -> String {
    let first = row.cells.first().map_or("", String::as_str);
    if row.name.ends_with(first) { row.name.clone() } else { format!("{} {first}", row.name) }
}

async fn cluster(site: &Site, global: &Global, command: &ClusterCommand) -> Ended {
    match command {
        ClusterCommand::List(watch) => {
            list(global, watch.watch, || async {
                let (revision, rows) = clusters::list(&site.store).await?;
                let now = now();
                if matches!(site.store, AnyStore::Etcd(_)) {
                    for row in &rows {
                        let reaped = row.cluster.as_ref().map_or(Some(now), |cluster| cluster.last_reap);
                        if let Some(silent) = data::reaper_silent(reaped, row.leases, now) {
                            say(&format!("warning: cluster {}: {silent}", row.name));
                        }
                    }
                }
                let rows = rows.iter().map(|row| ListRow {
                    cells: data::cluster_cells(row, now),
                    name: format!("cluster/{}", row.name),
                    json: data::cluster_json(row),
                });
                Ok(Listing { revision, columns: data::CLUSTERS, rows: rows.collect() })
            })
            .await
        }
        ClusterCommand::Add { name, uid, write } => {
            let added = clusters::add(&site.store, name, uid, fresh_id()?, write.dry_run).await?;
            let what = match added {
                clusters::Added::Registered => "registered",
                clusters::Added::Already => "unchanged",
            };
            print(&format!("{}\n", dry(write.dry_run, &format!("cluster/{name} {what}"))))
        }
        ClusterCommand::Delete { name, force, write } => {
            let left = clusters::delete(&site.store, name, *force, write.dry_run).await?;
            if left > 0 {
                let left = words::count(left, "lease");
                say(&format!("warning: of cluster {name} stays in the store: {left}"));
            }
            print(&format!("{}\n", dry(write.dry_run, &format!("cluster/{name} deleted"))))
        }
    }
}

fn fresh_id() -> Result<StoreId, Failure> {
    StoreId::new(host::random_id()).map_err(|error| Error::wrong(error.to_string(), "").into())
}

async fn freeze(site: &Site, args: &args::Freeze) -> Ended {
    let why = args.reason.trim();
    if why.is_empty() {
        return Err(Failure::usage("--reason is empty: every pod that gets no address is told it"));
    }
    let by = site.host.as_ref().map_or_else(host::hostname, |host| host.node.to_string());
    let frozen = clusters::reason(why.to_owned(), by, now());
    match clusters::freeze(&site.store, &frozen, args.write.dry_run).await? {
        clusters::Freeze::Frozen => {
            if !args.write.dry_run {
                say("nothing new is leased until `leasehold thaw`; pods that have an address keep it");
            }
            print(&format!("{}\n", dry(args.write.dry_run, "store frozen")))
        }
        clusters::Freeze::Already(old) => {
            say(&format!("it is frozen since {} by {}: {}", record::format_time(old.at), old.by, old.why));
            print("store unchanged\n")
        }
    }
}

async fn thaw(site: &Site, global: &Global, args: &args::Thaw) -> Ended {
    let dry_run = args.write.dry_run;
    let mut end = End::Done;
    if clusters::frozen(&site.store).await?.is_some() {
        // Who names a cluster wants its pods asked, and no other's.
        known::check(&site.store, &site.scope, None).await?;
        end = say_dangers(site, global, args).await;
    }
    match clusters::thaw(&site.store, fresh_id()?, dry_run).await? {
        Some(old) => {
            say(&format!("it was frozen since {} by {}: {}", record::format_time(old.at), old.by, old.why));
            print(&format!("{}\n", dry(dry_run, "store thawed")))?;
            Ok(end)
        }
        None => {
            say("the store is not frozen");
            print("store unchanged\n")
        }
    }
}

/// An API that does not answer keeps nobody from a thaw.
const ASK_PODS_FOR: Duration = Duration::from_secs(30);

/// What may be given twice from now on.
async fn say_dangers(site: &Site, global: &Global, args: &args::Thaw) -> End {
    let asked = tokio::time::timeout(ASK_PODS_FOR, adopt::against(site, global, None, &args.api)).await;
    let against = match asked {
        Ok(Ok(against)) => against,
        Ok(Err(failure)) => {
            say(&format!("the pods were not asked: {}", failure.text));
            return End::Done;
        }
        Err(_) => {
            say("the pods were not asked: the Kubernetes API says nothing");
            return End::Done;
        }
    };
    let dangers = against.differences.iter().filter(|found| found.trouble.is_danger()).count();
    if dangers == 0 {
        return End::Done;
    }
    say(&format!(
        "warning: {} that pods run with may be given to others: `leasehold check --against-pods` tells which, `leasehold adopt` gives what it can",
        words::count(dangers, "address")
    ));
    End::Look
}

async fn checked(site: &Site, global: &Global, args: &args::Check) -> Ended {
    let contents = read_everything(&site.store).await?;
    let notes = audit(&contents.everything);
    let repairs = if args.repair && !args.write.dry_run {
        check::repair(&site.store, &notes, &contents, now()).await?
    } else {
        check::preview(&notes, &contents, now())
    };
    let against = if args.against_pods {
        Some(adopt::against(site, global, args.network.as_ref(), &args.api).await?)
    } else {
        None
    };
    let all = &contents.everything;
    let counted = format!(
        "{}, {}, {} released, {}, {} at revision {}",
        words::count(all.leases.len(), "lease"),
        words::count(all.addresses.len(), "address"),
        all.released.len(),
        words::count(all.attachments.len(), "attachment"),
        words::count(all.pools.len(), "pool"),
        contents.revision.0
    );
    let mut rows: Vec<ListRow> = notes
        .iter()
        .zip(&repairs)
        .map(|(note, repair)| ListRow {
            cells: vec![note.severity.as_str().into(), repair.as_str().into(), check::text(note, *repair)],
            name: format!("note/{}", note.kind.as_str()),
            json: json!({
                "severity": note.severity.as_str(),
                "kind": note.kind.as_str(),
                "text": check::text(note, *repair),
                "repair": repair.as_str(),
            }),
        })
        .collect();
    let differences = against.as_ref().map_or(&[][..], |against| &against.differences);
    rows.extend(differences.iter().map(adopt::difference));
    let left = !differences.is_empty() || repairs.iter().any(|repair| *repair != check::Repair::Done);
    for (note, repair) in notes.iter().zip(&repairs).filter(|(_, repair)| **repair == check::Repair::Done) {
        site.trail.by_hand("store.repaired", note.kind.as_str(), &[], &check::text(note, *repair));
    }
    say(&counted);
    if let Some(against) = &against {
        let pods = words::count(against.pods, "pod");
        say(&format!("{pods}, {} of their addresses leased to them", against.leased));
        if against.pods == 0 {
            say(&format!("{}, so that none was compared", adopt::no_pods(global)));
        } else if against.compared == 0 {
            say(
                "none of them shows an address of a pool, so that none was compared: look at their annotation k8s.v1.cni.cncf.io/network-status",
            );
        }
    }
    // Without its own record the store takes no ADD. One that cannot be read is among the notes.
    let nameless = contents.meta.is_none()
        && !(all.pools.is_empty() && all.leases.is_empty())
        && !all.unreadable.iter().any(|record| record.key == keys::meta().to_string());
    if nameless {
        say(
            "the store's own record, v1/meta, is missing: every ADD fails until `leasehold cluster add` writes it",
        );
    }
    // A namespace that is named has pods, or is mistyped.
    let missed = global.namespace.is_some() && against.as_ref().is_some_and(|against| against.pods == 0);
    if rows.is_empty() && !nameless && matches!(global.output, Format::Table | Format::Wide) {
        say(if missed { "nothing is wrong in the store" } else { "nothing is wrong" });
        return Ok(if missed { End::Look } else { End::Done });
    }
    const COLUMNS: &[Column] = &[render::text("SEVERITY"), render::text("REPAIR"), render::text("NOTE")];
    let kind = |row: &ListRow| (global.output == Format::Table).then(|| row.name.clone());
    let (rows, left_out) = shorten(rows, kind);
    print(&Listing { revision: contents.revision, columns: COLUMNS, rows }.text(global, true)?)?;
    for (kind, count) in left_out {
        say(&and_more(count, &format!("of {}", kind.trim_start_matches("note/"))));
    }
    if let Some(frozen) = &contents.frozen {
        say(&format!("the store is frozen: {}", frozen.why));
    }
    let errors = notes.iter().filter(|note| note.severity == Severity::Error).count()
        + differences.iter().filter(|found| found.trouble.is_danger()).count();
    let warnings = words::count(notes.len() + differences.len() - errors, "warning");
    say(&format!("{}, {warnings}", words::count(errors, "error")));
    Ok(if left || nameless || missed { End::Look } else { End::Done })
}

async fn explained(site: &Site, global: &Global, args: &args::Explain) -> Ended {
    let holder = record::parse_holder(&args.pod)
        .map_err(|problem| Failure::usage(&format!("{}: {problem}", args.pod)))?;
    filters::within(global.namespace.as_ref(), holder.namespace(), &args.pod)?;
    let own = site.host.as_ref();
    let labels = |node: &crate::domain::names::NodeName| {
        own.filter(|host| host.node == *node).map(|host| host.config.labels.clone()).unwrap_or_default()
    };
    let node = args.node.clone().map(|node| {
        let labels = labels(&node);
        (node, labels)
    });
    let question = explain::Question { holder, network: args.network.clone(), node };
    let now = now();
    let found = explain::explain(&site.store, &site.scope, &question, now).await?;
    let text = match global.output {
        Format::Json | Format::Yaml => render::document(&explain_json(&args.pod, &found), global.output)
            .map_err(|text| Failure { text, hint: None, code: FAILED })?,
        Format::Name => {
            found.pools.iter().filter(|p| p.usable).map(|p| format!("pool/{}\n", p.name)).collect::<String>()
        }
        Format::Table | Format::Wide => explain_text(&args.pod, &found, now),
    };
    print(&text)?;
    Ok(if found.served { End::Done } else { End::Look })
}

fn explain_text(pod: &str, found: &explain::Explanation, now: Timestamp) -> String {
    let node = found.node.as_ref().map_or_else(String::new, |node| format!("  node {node}"));
    let looked: Vec<&str> = found
        .looked_for
        .iter()
        .filter(|name| !name.ends_with("/*"))
        .map(|name| name.split_once('/').map_or(name.as_str(), |(_, workload)| workload))
        .collect();
    let workload = found.workload.as_deref().unwrap_or("-");
    let width = |of: &dyn Fn(&explain::Looked) -> usize| found.pools.iter().map(of).max().unwrap_or(0);
    let (names, serves) = (width(&|p| p.name.as_str().len()), width(&|p| p.serves.len()));
    let pools: Vec<String> = found
        .pools
        .iter()
        .map(|p| format!("{:<names$}  serves {:<serves$}  {}", p.name, p.serves, p.verdict))
        .collect();
    let mut taken = Vec::new();
    if found.running > 0 {
        taken.push(format!("{} by running pods", found.running));
    }
    for row in &found.taken {
        let cells = data::lease_cells(row, now, false, false);
        let node = if cells[6].is_empty() { "-" } else { &cells[6] };
        let whose = if cells[2].is_empty() { "-" } else { &cells[2] };
        taken.push(
            format!("{}  {whose}  {node}  {}  {}", cells[0], row.state.as_str(), row.why).trim_end().into(),
        );
    }
    render::pairs(&[
        ("pod", format!("{pod}{node}  network {}", found.network)),
        ("workload", format!("{workload}   (looked for {})", looked.join(", "))),
        ("pools", if pools.is_empty() { "none serves it".into() } else { pools.join("\n") }),
        ("answer", found.answer.clone()),
        ("taken", taken.join("\n")),
        ("do", found.todo.join("\n")),
    ])
}

fn explain_json(pod: &str, found: &explain::Explanation) -> Value {
    json!({
        "revision": found.revision.0,
        "pod": pod,
        "node": found.node.as_ref().map(|node| node.as_str()),
        "network": found.network.as_str(),
        "workload": found.workload,
        "lookedFor": found.looked_for,
        "pools": found.pools.iter().map(|pool| json!({
            "name": pool.name.as_str(),
            "serves": pool.serves,
            "usable": pool.usable,
            "verdict": pool.verdict,
        })).collect::<Vec<_>>(),
        "answer": found.answer,
        "served": found.served,
        "takenByRunning": found.running,
        "taken": found.taken.iter().map(data::lease_json).collect::<Vec<_>>(),
        "do": found.todo,
    })
}
