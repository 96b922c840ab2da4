//! One pass that is told to stop, and what it shows on a terminal: the program, a real etcd, and an API by a script.

use std::{fs, path::PathBuf, sync::mpsc, thread, time::Duration};

use leasehold::{
    admin::clusters,
    domain::{
        lease::{Seen, Timestamp},
        names::{ClusterName, StoreId, Uid},
    },
    host,
    pods::testing::{Scenario, Server},
    store::{Outcome, Read, Store as _, changes, keys, record},
};
use serde_json::{Value, json};

use crate::support::{
    call::{Call, Cli},
    ground,
    host::HostFile,
    parts::{Part, Version, require},
    process::{Running, eventually},
    proxy::{Fault, Proxy},
};

/// More than four times what a pass asks for at once.
const DEAD: usize = 70;
/// Longer than it takes to see that a lease is gone.
const SLOW: Scenario = Scenario::Slow(Duration::from_secs(1));

/// A store with leases of pods that are long gone, and the API that says so.
struct Site {
    host: HostFile,
    api: Server,
}

impl Site {
    fn new(scenario: Scenario) -> Self {
        let host = ground::on_etcd();
        Cli::new(&host).line("cluster delete prod-a").run().success();
        ground::with_store(&host, async |store| {
            let (name, fresh) =
                (ClusterName::new("prod-a").unwrap(), StoreId::new(host::random_id()).unwrap());
            clusters::add(store, &name, &Uid::new("cluster-1").unwrap(), fresh, false).await.unwrap();
        });
        let range = json!({ "subnet": "10.0.0.0/24" });
        ground::pool(
            &host,
            json!({ "name": "lan", "networks": ["*"], "serves": ["*/*"], "ranges": [range] }),
        );
        for n in 0..DEAD {
            let pod = format!("shop/web-7d9c4f6b5d-{}", five_letters(n));
            Call::add(&host).pod(&pod).container(&format!("c{n}")).field("type", "ptp").run().addresses();
        }
        ground::with_store(&host, async |store| {
            let found = store.read(&[Read::list(keys::leases())], None).await.unwrap();
            for entry in found.entries(0) {
                let lease = record::decode_lease(entry).unwrap();
                let mut missed = lease.value.clone();
                missed.seen = Some(Seen { missed: Some(Timestamp(1_767_225_600_000)), ..Seen::default() });
                let noted = store.commit(&changes::note(&lease, &missed)).await.unwrap();
                assert!(matches!(noted, Outcome::Applied(_)), "{noted:?}");
            }
        });
        Self { host, api: scripted(scenario) }
    }

    fn reap(&self, more: &str) -> Cli {
        let kubeconfig = self.host.folder().join("kubeconfig");
        let text = json!({
            "current-context": "a",
            "contexts": [{ "name": "a", "context": { "cluster": "a" } }],
            "clusters": [{ "name": "a", "cluster": { "server": self.api.url() } }],
        });
        fs::write(&kubeconfig, text.to_string()).unwrap();
        Cli::new(&self.host).line("reap --no-events --kubeconfig").args([kubeconfig]).line(more)
    }

    fn left(&self) -> usize {
        ground::leases(&self.host).len()
    }

    /// A pass that asks for its first candidates.
    fn begun(&self, more: &str) -> Running {
        let running = self.reap(more).start();
        let asks = || self.api.seen().iter().any(|seen| seen.path.contains("/pods/"));
        eventually("the first candidate", || asks().then_some(()));
        running
    }

    fn textfile(&self) -> PathBuf {
        self.host.folder().join("leasehold.prom")
    }

    fn metric(&self, series: &str) -> Option<String> {
        let text = fs::read_to_string(self.textfile()).unwrap();
        text.lines().find_map(|line| Some(line.strip_prefix(series)?.trim().to_owned()))
    }
}

/// A name's last part, as Kubernetes makes it.
fn five_letters(number: usize) -> String {
    let letters: Vec<char> = "bcdfghjklm".chars().collect();
    format!("{number:05}").chars().map(|digit| letters[digit.to_digit(10).unwrap() as usize]).collect()
}

/// A server that answers from a thread of its own.
fn scripted(scenario: Scenario) -> Server {
    let (sender, server) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            sender.send(Server::start(scenario, 1).await).unwrap();
            std::future::pending::<()>().await;
        });
    });
    server.recv().unwrap()
}

#[test]
fn a_pass_that_is_stopped_ends_what_it_began_and_tells_how_far_it_came() {
    require!(Part::Etcd(Version::V36));
    let site = Site::new(SLOW);
    let file = site.textfile();
    let running = site.reap("-o json --textfile").args([&file]).start();
    eventually("the first that is given back", || (site.left() < DEAD).then_some(()));
    running.signal("TERM");
    let finished = running.wait();
    assert_eq!(finished.code(), Some(3), "{}", finished.stderr());
    let report: Value = serde_json::from_str(finished.stdout()).unwrap();
    let done = DEAD - site.left();
    assert!((1..DEAD).contains(&done), "{done}");
    assert_eq!(report["stopped"], json!({ "by": "SIGTERM", "done": done, "of": DEAD }));
    assert_eq!((&report["givenBack"], &report["kept"]), (&json!(done), &json!({ "stopped": DEAD - done })));
    let words = format!("stopped by SIGTERM after {done} of {DEAD} candidates; the next pass goes on\n");
    assert!(finished.stderr().ends_with(&words), "{}", finished.stderr());
    assert!(finished.took < Duration::from_secs(20), "{:?}", finished.took);
    let passes = |result: &str| site.metric(&format!("leasehold_reap_passes_total{{result=\"{result}\"}}"));
    assert_eq!((passes("stopped"), passes("done")), (Some("1".into()), Some("0".into())));
    assert_eq!(site.metric("leasehold_reap_last_success_timestamp_seconds"), None);
    assert_eq!(site.metric("leasehold_reap_given_back_total{row=\"9\"}"), Some(done.to_string()));

    site.api.play(Scenario::Honest);
    site.reap("--textfile").args([&file]).run().success();
    assert_eq!((site.left(), passes("done")), (0, Some("1".into())));
}

#[test]
fn a_pass_that_is_stopped_while_it_reads_gives_nothing_back() {
    require!(Part::Etcd(Version::V36));
    let site = Site::new(Scenario::Hangs);
    let running = site.reap("--textfile").args([site.textfile()]).start();
    eventually("a question", || (!site.api.seen().is_empty()).then_some(()));
    running.signal("INT");
    let finished = running.wait();
    assert_eq!((finished.code(), finished.stdout()), (Some(3), ""), "{}", finished.stderr());
    let words = "stopped by SIGINT before anything was given back\n";
    assert!(finished.stderr().ends_with(words), "{}", finished.stderr());
    assert_eq!(site.left(), DEAD);
    assert_eq!(site.metric("leasehold_reap_passes_total{result=\"stopped\"}"), Some("1".into()));
}

#[test]
fn a_second_signal_does_not_wait_for_a_store_that_says_nothing() {
    require!(Part::Etcd(Version::V36));
    let mut site = Site::new(SLOW);
    let proxy = Proxy::to(ground::address_of(&site.host));
    site.host = site.host.endpoints([proxy.url("http")]);
    let running = site.begun("");
    proxy.set(Fault::BlackHole);
    // Asked for and confirmed, they wait for the store: ten seconds.
    thread::sleep(Duration::from_secs(2));
    running.signal("TERM");
    thread::sleep(Duration::from_secs(1));
    running.signal("TERM");
    let finished = running.wait();
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr());
    assert!(finished.stderr().contains("SIGTERM: no more is begun"), "{}", finished.stderr());
    assert!(
        finished.stderr().contains("error: ended by SIGTERM with writes under way"),
        "{}",
        finished.stderr()
    );
    assert!(finished.took < Duration::from_secs(9), "{:?}", finished.took);
}

#[test]
fn progress_is_for_a_terminal_alone() {
    require!(Part::Etcd(Version::V36));
    let site = Site::new(SLOW);
    let (said, status) = site.reap("").on_terminal();
    assert_eq!(status.code(), Some(0), "{said}");
    let (progress, rest) = said.rsplit_once("\r\u{1b}[K").unwrap();
    let shown: Vec<&str> = progress.split("\r\u{1b}[K").collect();
    assert!(shown.iter().any(|line| line.ends_with(&format!(" of {DEAD} candidates"))), "{shown:?}");
    assert!(shown.iter().all(|line| !line.contains('\n')), "{shown:?}");
    assert!(rest.contains(&format!("{DEAD} given back")), "{rest}");

    let site = Site::new(SLOW);
    let finished = site.reap("").run();
    assert_eq!(finished.success().matches("given back").count(), DEAD);
    assert!(!finished.stderr().contains(['\r', '\u{1b}']), "{:?}", finished.stderr());
}

#[test]
fn a_table_names_twenty_of_those_that_one_brake_keeps() {
    require!(Part::Etcd(Version::V36));
    let site = Site::new(Scenario::Empty);
    let braked = site.reap("").run();
    assert_eq!((braked.code(), braked.stdout().lines().count()), (Some(3), 1 + 20), "{}", braked.stderr());
    let words = format!("… and {} more that are kept: braked (-o json shows all)\n", DEAD - 20);
    assert!(braked.stderr().starts_with(&words), "{}", braked.stderr());
    let all = site.reap("-o json").run();
    let all: Value = serde_json::from_str(all.stdout()).unwrap();
    assert_eq!(all["items"].as_array().unwrap().len(), DEAD);
    assert_eq!(site.reap("-o wide").run().stdout().lines().count(), 1 + DEAD);
}
