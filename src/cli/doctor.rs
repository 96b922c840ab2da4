//! `leasehold doctor` and `leasehold flush`: this node, its files, its store.

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    End, Ended, FAILED, Failure, ListRow, Listing,
    args::{Format, Global},
    connect,
    connect::Site,
    data, dry, now, print, render,
    render::{Column, say},
};
use crate::{
    config::StoreSettings,
    domain::{lease::Timestamp, names::ClusterName},
    host::{self, Host, HostClock, HostError},
    journal::{Entries as _, Journal, Memory},
    ops::{Context, Heard, Identity, Wire, replay},
    store::{
        Read, Store as _,
        any::AnyStore,
        etcd::{self, EtcdStore, MemberStatus},
        keys,
        record::{self, format_time},
    },
    trail::Trail,
};

/// A replay ends when the store does not answer; this only bounds it.
const FLUSH: Duration = Duration::from_secs(300);
/// A certificate that ends sooner is said.
const SOON_MS: i64 = 14 * 86_400 * 1_000;
/// etcd's default quota, where a member does not say its own.
const DEFAULT_QUOTA: u64 = 2 << 30;
/// Clocks that differ by more make cool-downs and ages wrong.
const SKEW_MS: i64 = 5_000;

/// How a thing is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

impl Verdict {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

#[derive(Default)]
struct Report(Vec<(Verdict, &'static str, String, String)>);

impl Report {
    fn ok(&mut self, what: &'static str, text: impl Into<String>) {
        self.0.push((Verdict::Ok, what, text.into(), String::new()));
    }

    fn warn(&mut self, what: &'static str, text: impl Into<String>, todo: impl Into<String>) {
        self.0.push((Verdict::Warn, what, text.into(), todo.into()));
    }

    fn fail(&mut self, what: &'static str, text: impl Into<String>, todo: impl Into<String>) {
        self.0.push((Verdict::Fail, what, text.into(), todo.into()));
    }
}

/// Looks at everything, and goes on after what is wrong.
pub(crate) async fn run(global: &Global) -> Ended {
    let mut report = Report::default();
    let host = host_file(global, &mut report);
    if let Some(host) = &host {
        node(host, &mut report);
    }
    match connect::settings(global, host.as_ref()) {
        Err(failure) => report.fail("store", failure.text, "correct the flags"),
        Ok(StoreSettings::Etcd(etcd)) if etcd.endpoints.is_empty() => {
            report.fail("store", "no endpoint is known", "write a host file, or give --endpoints");
        }
        Ok(settings) => store(&settings, global, host.as_ref(), &mut report).await,
    }
    let look = report.0.iter().any(|(verdict, ..)| *verdict != Verdict::Ok);
    const COLUMNS: &[Column] =
        &[render::text("STATUS"), render::text("WHAT"), render::text("FOUND"), render::text("DO")];
    let rows = report.0.into_iter().map(|(verdict, what, text, todo)| ListRow {
        json: json!({"status": verdict.as_str(), "what": what, "found": text, "do": todo}),
        name: format!("{}/{what}", verdict.as_str()),
        cells: vec![verdict.as_str().into(), what.into(), text, todo],
    });
    let mut global = global.clone();
    if global.output == Format::Wide {
        global.output = Format::Table;
    }
    let listing = Listing { revision: Default::default(), columns: COLUMNS, rows: rows.collect() };
    print(&listing.text(&global, true)?)?;
    Ok(if look { End::Look } else { End::Done })
}

fn host_file(global: &Global, report: &mut Report) -> Option<Host> {
    match connect::host_file(global) {
        Ok(host) => {
            use std::os::unix::fs::MetadataExt as _;
            let mode = fs::metadata(&host.path).map_or(0, |meta| meta.mode() & 0o7777);
            let found = format!("{} (mode {mode:04o})", host.path.display());
            if mode & 0o077 == 0 {
                report.ok("host file", found);
            } else {
                report.warn("host file", found, format!("chmod 0600 {}", host.path.display()));
            }
            Some(host)
        }
        Err(error @ HostError::Missing { .. }) if !global.endpoints.is_empty() || global.local.is_some() => {
            report.ok("host file", format!("{error}; the flags say where the store is"));
            None
        }
        Err(error) => {
            report.fail(
                "host file",
                error.to_string(),
                "`leasehold install` writes one; config-examples has some to start from",
            );
            None
        }
    }
}

fn node(host: &Host, report: &mut Report) {
    if host.node_is_hostname {
        let todo = "write the Node object's name into the host file: the hostname may differ";
        report.warn("node", format!("{} (the host's name)", host.node), todo);
    } else {
        report.ok("node", format!("{} (host file)", host.node));
    }
    let state = &host.config.state_dir;
    match writable(state) {
        Ok(()) => report.ok("state", format!("{} can be written", state.display())),
        Err(error) => {
            let todo = "without it an end that the store does not take is lost; make it, for root only";
            report.fail("state", format!("{}: {error}", state.display()), todo);
        }
    }
    match Journal::new(state).list() {
        Ok(entries) if entries.is_empty() => report.ok("journal", "empty"),
        Ok(entries) => {
            report.warn("journal", format!("{} ends wait for the store", entries.len()), "leasehold flush");
        }
        Err(error) => report.fail("journal", error.to_string(), "see the folder's owner and mode"),
    }
}

/// Makes and removes a file; a folder that is not there yet is made as ADD would.
fn writable(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    if !folder.exists() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let probe = folder.join(format!(".doctor-{}", std::process::id()));
    // As much as an entry of the journal may have: a full disk takes an empty file.
    let written = fs::write(&probe, [b' '; 4096]);
    let removed = fs::remove_file(&probe);
    written.and(removed)
}

async fn store(settings: &StoreSettings, global: &Global, host: Option<&Host>, report: &mut Report) {
    let now = now();
    if let StoreSettings::Etcd(settings) = settings {
        certificates(settings, now, report);
    }
    let store = match host::open_store(settings, Duration::from_secs(5)).await {
        Ok(store) => store,
        Err(error) => {
            report.fail("store", error.to_string(), "see the host file's store");
            return;
        }
    };
    match &store {
        AnyStore::Etcd(etcd) => members(etcd, report).await,
        AnyStore::Local(local) => report.ok("store", format!("local, {}", local.path().display())),
    }
    let cluster = global.cluster.clone().or_else(|| host.map(|host| host.config.cluster.clone()));
    contents(&store, cluster.as_ref(), now, report).await;
}

fn certificates(settings: &crate::config::EtcdSettings, now: Timestamp, report: &mut Report) {
    if settings.tls.is_none() {
        let far =
            settings.endpoints.iter().find(|e| !matches!(e.host.as_str(), "127.0.0.1" | "::1" | "localhost"));
        if let Some(endpoint) = far {
            let found = format!("{endpoint} is not encrypted: whoever is on the way can lease and release");
            report.warn("certificates", found, "use https, cacert, cert and key");
        }
        return;
    }
    match host::etcd_settings(settings).and_then(|settings| etcd::check_files(&settings, now)) {
        Ok(dates) => {
            for date in dates {
                let left = date.not_after.since(now);
                let found = format!("{} until {}", date.path.display(), format_time(date.not_after));
                if left < 0 {
                    report.fail("certificates", found, "it is expired: renew it");
                } else if left < SOON_MS {
                    report.warn("certificates", found, "renew it");
                } else {
                    report.ok("certificates", found);
                }
            }
        }
        Err(error) => report.fail("certificates", error.to_string(), "put the file right"),
    }
}

async fn members(store: &EtcdStore, report: &mut Report) {
    let begun = Instant::now();
    for status in store.status().await {
        match status.answer {
            Ok(member) => member_line(&status.endpoint, &member, report),
            Err(error) => {
                let todo = "start it, or take it out of the endpoints";
                report.fail("endpoint", format!("{}: {error}", status.endpoint), todo);
            }
        }
    }
    let all = begun.elapsed();
    let read = Instant::now();
    if store.read(&[Read::Get(keys::meta())], None).await.is_ok() {
        report.ok(
            "latency",
            format!("{:.1} ms a read; {:.1} ms all members", millis(read.elapsed()), millis(all)),
        );
    }
    match store.foreign_registry().await {
        Ok(true) => {
            let found = "/registry/ can be read: this is an API server's etcd";
            report.warn(
                "etcd",
                found,
                "give leasehold an etcd of its own, or at least a user without that right",
            );
        }
        Ok(false) => report.ok("etcd", "no API server's keys can be read"),
        Err(_) => {}
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn member_line(endpoint: &str, member: &MemberStatus, report: &mut Report) {
    let quota = member.quota.unwrap_or(DEFAULT_QUOTA);
    let mib = |bytes: u64| bytes >> 20;
    let role = if member.leader { ", leader" } else { "" };
    let found = format!(
        "{endpoint}: etcd {}{role}, {} MiB of {} MiB, {} in use, revision {}",
        member.version,
        mib(member.size),
        mib(quota),
        mib(member.in_use),
        member.revision.0
    );
    if let Some(complaint) = member.complaints.first() {
        let todo = if complaint.contains("NOSPACE") || complaint.contains("space") {
            "compact, defragment, then `etcdctl alarm disarm`"
        } else {
            "see etcd's log"
        };
        report.fail("endpoint", format!("{found}: {complaint}"), todo);
    } else if !member.has_leader {
        report.fail("endpoint", format!("{found}: no leader"), "start the other members");
    } else if member.size / 4 >= quota / 5 {
        report.warn("endpoint", found, "compact and defragment, or raise --quota-backend-bytes");
    } else {
        report.ok("endpoint", found);
    }
}

async fn contents(store: &AnyStore, cluster: Option<&ClusterName>, now: Timestamp, report: &mut Report) {
    let mut reads = vec![
        Read::Get(keys::meta()),
        Read::Get(keys::frozen()),
        Read::Count(keys::pools()),
        // A node's role reads those of its own cluster.
        Read::Count(cluster.map_or_else(keys::leases, keys::leases_of)),
    ];
    reads.extend(cluster.map(|name| Read::Get(keys::cluster(name))));
    let snapshot = match store.read(&reads, None).await {
        Ok(snapshot) => snapshot,
        Err(error) => {
            let hint = crate::admin::Error::from(error.clone()).hint().unwrap_or_default();
            report.fail("store", error.to_string(), hint);
            return;
        }
    };
    match snapshot.entry(0).map(record::decode_meta) {
        Some(Ok(meta)) => {
            let (pools, leases) = (snapshot.count(2), snapshot.count(3));
            report.ok("contents", format!("store {}, {pools} pools, {leases} leases", meta.store));
            if pools == 0 {
                report.warn("pools", "none", "leasehold pool create --help");
            }
        }
        Some(Err(error)) => report.fail("contents", error.to_string(), "upgrade this leasehold"),
        None => report.fail("contents", "the store is new", "leasehold cluster add NAME --uid UID"),
    }
    if let Some(name) = cluster {
        match snapshot.entry(4).map(record::decode_cluster) {
            Some(Ok(found)) => {
                report.ok("cluster", format!("{name}, UID {}", found.value.uid));
                let skew = found.value.last_reap.map_or(0, |at| at.since(now));
                if skew > SKEW_MS {
                    let found = format!("the last reap is {} s in the future", skew / 1000);
                    report.warn("clock", found, "set the clocks: NTP");
                }
                // One host without Kubernetes has no pods that an API could miss.
                if matches!(store, AnyStore::Etcd(_)) {
                    match data::reaper_silent(found.value.last_reap, snapshot.count(3), now) {
                        Some(found) => {
                            report.warn("reaper", found, "see its CronJob or Deployment; `leasehold reap`")
                        }
                        None => report.ok("reaper", "ends its passes"),
                    }
                }
            }
            Some(Err(error)) => report.fail("cluster", error.to_string(), "upgrade this leasehold"),
            None => report.fail(
                "cluster",
                format!("{name} is not registered: nothing is leased"),
                format!("leasehold cluster add {name} --uid UID"),
            ),
        }
    }
    match snapshot.entry(1).map(record::decode_frozen) {
        Some(frozen) => {
            let found = format!("since {} by {}: {}", format_time(frozen.at), frozen.by, frozen.why);
            report.fail(
                "frozen",
                found,
                "leasehold thaw, once the running pods have their leases back (leasehold adopt)",
            );
        }
        None => report.ok("frozen", "no"),
    }
}

/// An end asks nobody on the wire.
struct NoWire;

impl Wire for NoWire {
    async fn probe(&self, _addresses: &[std::net::IpAddr]) -> Heard {
        Heard::Nowhere("an end asks nobody".into())
    }
}

/// Tells the node's journal to the store.
pub(crate) async fn flush(site: &Site, global: &Global, is_dry: bool) -> Ended {
    let Some(host) = &site.host else {
        return Err(Failure {
            text: "flush needs a host file: the journal is this node's".into(),
            hint: Some("run it on the node, or give --config FILE".into()),
            code: FAILED,
        });
    };
    let journal = Journal::new(&host.config.state_dir);
    let waiting = journal.list().map_err(|error| Failure {
        text: format!("cannot read the journal in {}: {error}", journal.folder().display()),
        hint: None,
        code: FAILED,
    })?;
    if is_dry || waiting.is_empty() {
        let told = json!({"dryRun": is_dry, "waiting": waiting.len()});
        return flushed(global, &told, &dry(is_dry, &format!("{} ends wait", waiting.len())));
    }
    let identity: Identity = host.identity();
    let log = Trail::of(Some(host));
    let deadline = Instant::now() + FLUSH;
    let context = Context {
        store: &site.store,
        wire: &NoWire,
        clock: &HostClock,
        log: &log,
        node: &identity,
        deadline,
        memory: Memory::default(),
    };
    let done = replay::replay(&context, &journal, usize::MAX, deadline).await.map_err(|error| Failure {
        text: error.to_string(),
        hint: Some("the entries stay; `leasehold doctor` looks at the store".into()),
        code: FAILED,
    })?;
    if let Some(trouble) = &done.trouble {
        say(&format!("warning: {trouble}"));
    }
    let stay = done.left + done.lingering;
    let told = json!({"dryRun": false, "told": done.done, "ended": done.ended, "stay": stay});
    let text = format!("{} ends told, {} of them had a lease; {stay} stay", done.done, done.ended);
    flushed(global, &told, &text)?;
    Ok(if done.left > 0 { End::Look } else { End::Done })
}

fn flushed(global: &Global, told: &Value, text: &str) -> Ended {
    match global.output {
        Format::Json | Format::Yaml => {
            let document = render::document(told, global.output);
            print(&document.map_err(|text| Failure { text, hint: None, code: FAILED })?)
        }
        Format::Table | Format::Wide | Format::Name => print(&format!("{text}\n")),
    }
}
