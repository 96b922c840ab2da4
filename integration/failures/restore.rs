//! A store that was set back to an old backup.

use std::{collections::BTreeMap, fs, path::Path};

use leasehold::{admin::clusters, domain::names::StoreId, host, ops::Clock};
use serde_json::json;

use super::{bound, journal, pool_of};
use crate::{
    documents,
    support::{
        apiserver::Apiserver,
        call::{Answer, Call, Cli},
        etcd::Etcd,
        ground,
        host::HostFile,
        parts::{Part, Version, require},
        process::Finished,
        proxy::{Fault, Proxy},
    },
};

/// A ptp link cannot be asked from outside: its silence is taken for granted, so that this needs no network.
fn add(host: &HostFile, pod: &str, container: &str) -> Call {
    Call::add(host).pod(pod).container(container).field("type", "ptp")
}

#[test]
fn b082_a_store_that_went_back_gives_nothing_new_until_it_is_thawed() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let mut etcd = Etcd::start(version);
        let host = HostFile::on(&etcd);
        pool_of(&host, 4);
        let kept = add(&host, "shop/kept", "K").run().addresses();
        let backup = etcd.backup();
        let lost = add(&host, "shop/lost", "L").run().addresses();
        etcd.set_back(&backup);
        assert_eq!(bound(&host).len(), 1, "the backup does not know of shop/lost");

        // Whoever comes first may be this one, who would have been given the address of shop/lost.
        let text = add(&host, "shop/new", "N").run().error_text(11);
        assert!(text.contains("frozen") && text.contains("went back from revision"), "{text}");
        assert!(text.contains("leasehold adopt") && text.contains("leasehold thaw"), "{text}");
        let frozen = etcd.get("/leasehold/v1/frozen").unwrap();
        assert!(frozen.contains("went back"), "{frozen}");
        // A node that saw nothing is refused, too; so is the pod whose lease is lost.
        let fresh = host.node("n9");
        for (host, pod) in [(&fresh, "shop/new"), (&host, "shop/lost")] {
            let text = add(host, pod, "N").run().error_text(11);
            assert!(text.contains("frozen"), "{text}");
        }
        // Take-overs and DELs go on.
        assert_eq!(add(&host, "shop/kept", "K2").run().addresses(), kept);
        Call::del(&host).pod("shop/lost").container("L").run().is_silent();
        assert_eq!(bound(&host), super::one("shop/kept", "K2"));

        let _ = Cli::new(&host).line("thaw").run().success();
        // The address is not in use any more: its pod's DEL came.
        assert_eq!(add(&host, "shop/new", "N").run().addresses().len(), 1);
        assert_eq!(add(&fresh, "shop/lost", "L2").run().addresses().len(), 1);
        assert!(!lost.is_empty());
        assert_eq!(bound(&host).len(), 3);
        assert_eq!(journal(&host).len(), 0);
    }
}

#[test]
fn b082_a_del_notices_it_too() {
    require!(Part::Etcd(Version::V36));
    let mut etcd = Etcd::start(Version::V36);
    let host = HostFile::on(&etcd);
    pool_of(&host, 4);
    let backup = etcd.backup();
    let _ = add(&host, "shop/lost", "L").run().addresses();
    etcd.set_back(&backup);
    Call::del(&host).pod("shop/lost").container("L").run().is_silent();
    assert!(etcd.get("/leasehold/v1/frozen").is_some());
    // It stays so, however many revisions are written meanwhile.
    for n in 0..20 {
        etcd.put("elsewhere", &n.to_string());
    }
    let text = add(&host, "shop/new", "N").run().error_text(11);
    assert!(text.contains("went back"), "{text}");
}

/// What it has read is of the store's other past, and the address that was free then has somebody since.
#[test]
fn b082_an_add_that_began_before_the_restore_takes_nothing_after_it() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let mut etcd = Etcd::start(version);
        let host = HostFile::on(&etcd);
        pool_of(&host, 1);
        let backup = etcd.backup();
        etcd.put("elsewhere", "1");
        let proxy = Proxy::to(etcd.address(0));
        let other = host.node("n2").endpoints([proxy.url("http")]);
        proxy.set(Fault::HoldCommit(1));
        let late = add(&other, "shop/late", "A").start();
        proxy.held();
        proxy.set(Fault::Refuse);
        let _ = add(&host, "shop/lives", "L").run().addresses();
        etcd.set_back(&backup);
        proxy.set(Fault::Pass);
        let text = Answer(late.wait()).error_text(11);
        assert!(text.contains("frozen") && text.contains("went back"), "{text}");
        assert!(bound(&host).is_empty());
    }
}

#[test]
fn an_entry_from_before_the_thaw_is_not_told() {
    require!(Part::Etcd(Version::V36));
    let mut etcd = Etcd::start(Version::V36);
    let host = HostFile::on(&etcd).with("deadlines", json!({ "del": "1s" }));
    pool_of(&host, 4);
    let _ = add(&host, "shop/a", "A").run().addresses();
    etcd.kill(0);
    Call::del(&host).pod("shop/a").container("A").run().is_silent();
    etcd.restart(0);
    ground::with_store(&host, async |store| {
        let frozen = clusters::reason("a test".into(), "a person".into(), host::HostClock.now());
        clusters::freeze(store, &frozen, false).await.unwrap();
        let fresh = StoreId::new(host::random_id()).unwrap();
        clusters::thaw(store, fresh, false).await.unwrap()
    });
    let _ = add(&host, "shop/b", "B").run().addresses();
    assert_eq!(journal(&host).len(), 1);
    assert_eq!(bound(&host).len(), 2);
    assert!(host.log().contains("after a restore it means nothing"), "{}", host.log());
}

/// A store that is restored, and a cluster that runs on.
#[derive(Debug)]
struct Site {
    etcd: Etcd,
    host: HostFile,
    api: &'static Apiserver,
    namespace: String,
    /// Who runs with which address.
    living: BTreeMap<String, String>,
}

impl Site {
    /// `net`: the pool's addresses begin with `10.net`. The cluster is that of all tests: two must not have the same.
    fn new(version: Version, net: u8) -> Self {
        let etcd = Etcd::start(version);
        let host = HostFile::on(&etcd);
        let api = Apiserver::shared();
        let system = api.get("/api/v1/namespaces/kube-system").unwrap();
        let uid = system["metadata"]["uid"].as_str().unwrap();
        let _ = Cli::new(&host).args(["cluster", "add", "prod-a", "--uid", uid]).run().success();
        ground::pool(
            &host,
            json!({
                "name": "lan", "networks": ["lan100"], "serves": ["*/*"], "coolDown": "0s",
                "ranges": [{
                    "subnet": format!("10.{net}.0.0/16"),
                    "start": format!("10.{net}.0.1"),
                    "end": format!("10.{net}.1.44"),
                }],
            }),
        );
        Self { etcd, host, api, namespace: api.namespace(), living: BTreeMap::new() }
    }

    fn full(&self, pod: &str) -> String {
        format!("{}/{pod}", self.namespace)
    }

    /// A pod that gets an address, at a node, and says so.
    fn starts(&mut self, host: &HostFile, pod: &str, address: Option<&str>) -> String {
        let full = self.full(pod);
        let mut call = add(host, &full, &format!("{pod}-1"));
        if let Some(address) = address {
            call = call.arg("IP", address);
        }
        let given = call.run().addresses()[0].split('/').next().unwrap().to_owned();
        let twice: Vec<_> = self.living.iter().filter(|(_, has)| **has == given).collect();
        assert!(twice.is_empty(), "{pod} gets {given}, with which {twice:?} runs");
        self.api.pod(&self.namespace, pod, "n1");
        let path = format!("/api/v1/namespaces/{}/pods/{pod}", self.namespace);
        self.api.set_status(&path, &json!({ "podIP": given, "podIPs": [{ "ip": given }] }));
        self.living.insert(pod.into(), given.clone());
        given
    }

    fn ends(&mut self, pod: &str) {
        let path = format!("/api/v1/namespaces/{}/pods/{pod}", self.namespace);
        Call::del(&self.host).pod(&self.full(pod)).container(&format!("{pod}-1")).run().is_silent();
        self.api.delete(&path, 0);
        self.living.remove(pod);
    }

    fn person(&self, line: &str) -> Finished {
        let kubeconfig = format!("--kubeconfig={}", self.api.kubeconfig().display());
        let line = Cli::new(&self.host).line(line);
        line.args(["-n", &self.namespace, &kubeconfig]).run()
    }

    /// Each of the living comes back to its own address, on its node.
    #[track_caller]
    fn all_come_back<'a>(&self, on: impl Fn(&str) -> &'a HostFile) {
        for (pod, address) in &self.living {
            let back = add(on(pod), &self.full(pod), &format!("{pod}-2")).run().addresses();
            assert_eq!(back[0].split('/').next().unwrap(), address, "{pod}");
        }
    }
}

#[test]
fn b082_after_a_restore_adopt_gives_the_living_their_leases_and_nobody_else_their_addresses() {
    require!(Part::Etcd(Version::V34), Part::Restore(Version::V34), Part::Apiserver);
    let mut site = Site::new(Version::V34, 75);
    let host = site.host.node("n1");
    for n in 0..4 {
        site.starts(&host, &format!("old-{n}"), None);
    }
    let gone = site.starts(&host, "gone", None);
    let snapshot = site.etcd.snapshot();
    for n in 0..12 {
        site.starts(&host, &format!("new-{n}"), None);
    }
    // What the snapshot knows as the address of one is another's by now.
    site.ends("gone");
    site.starts(&host, "heir", Some(&gone));
    site.etcd.restore(&snapshot, None);

    // The node sees it, and freezes; take-overs go on.
    let text = add(&host, &site.full("next"), "N").run().error_text(11);
    assert!(text.contains("went back from revision") && text.contains("leasehold adopt"), "{text}");
    assert_eq!(
        add(&host, &site.full("old-0"), "old-0-2").run().addresses()[0].split('/').next().unwrap(),
        site.living["old-0"]
    );
    let audit = site.person("check --against-pods -o json");
    assert_eq!(audit.code(), Some(3), "{audit:?}");
    let kinds = |kind: &str| audit.stdout().matches(&format!("\"kind\": \"{kind}\"")).count();
    let found = (kinds("pod-without-lease"), kinds("leased-to-another"), kinds("lease-without-pod"));
    assert_eq!(found, (12, 1, 1), "{}", audit.stdout());
    let tried = site.person("adopt --dry-run");
    assert_eq!(tried.code(), Some(3));
    assert!(
        tried.stderr().starts_with(
            "17 pods, 17 of them running: 12 addresses to adopt (dry run), 4 leased before, 1 conflict"
        ),
        "{tried:?}"
    );

    let adopted = site.person("adopt");
    assert_eq!(adopted.code(), Some(3));
    let conflict = adopted.stdout().lines().find(|line| line.contains("conflict")).unwrap();
    assert!(conflict.contains(&site.full("heir")) && conflict.contains(&site.full("gone")), "{conflict}");
    assert!(adopted.stderr().contains("12 addresses adopted, 4 leased before, 1 conflict"), "{adopted:?}");
    let early = site.person("thaw --dry-run");
    let words = "warning: 1 address that pods run with may be given to others: ";
    assert_eq!((early.stdout(), early.code()), ("store thawed (dry run)\n", Some(3)));
    assert!(early.stderr().starts_with(words), "{early:?}");
    // A slip of the namespace must not look as if all were well.
    for line in ["adopt", "check --against-pods"] {
        let kubeconfig = format!("--kubeconfig={}", site.api.kubeconfig().display());
        let slip = Cli::new(&site.host).line(line).args(["-n", "shpo", &kubeconfig]).run();
        assert_eq!(slip.code(), Some(3), "{slip:?}");
        assert!(slip.stderr().contains("no pods in namespace shpo (is that its name?)"), "{slip:?}");
        assert!(!slip.stderr().contains("when every cluster"), "{slip:?}");
    }
    // A person settles it, as the line says.
    let release = format!("lease release {} --force", site.full("gone"));
    assert!(conflict.contains(&format!("`leasehold {release}`")), "{conflict}");
    let _ = Cli::new(&site.host).line(&release).run().success();
    let again = site.person("adopt -o name");
    assert_eq!(again.success(), format!("lease/{}\n", site.full("heir")));
    assert!(again.stderr().contains("leasehold thaw"), "{again:?}");
    let clean = site.person("check --against-pods");
    assert_eq!((clean.success(), clean.code()), ("", Some(0)), "{clean:?}");

    let _ = Cli::new(&site.host).line("thaw").run().success();
    for n in 0..100 {
        site.starts(&host, &format!("later-{n}"), None);
    }
    site.all_come_back(|_| &host);
    assert_eq!(bound(&site.host).len(), 4 + 13 + 100);
}

#[test]
fn b082_a_restore_that_no_node_notices_is_frozen_by_hand() {
    require!(Part::Etcd(Version::V36), Part::Restore(Version::V36), Part::Apiserver);
    let mut site = Site::new(Version::V36, 76);
    let host = site.host.node("n1");
    site.starts(&host, "old", None);
    let snapshot = site.etcd.snapshot();
    for n in 0..12 {
        site.starts(&host, &format!("new-{n}"), None);
    }
    // With the revision bumped a node that remembers sees nothing; nor does one that ran nothing.
    site.etcd.restore(&snapshot, Some(1_000_000));
    assert!(site.etcd.revision() > 1_000_000);
    let fresh = site.host.node("n9");
    let _ = Cli::new(&site.host).args(["freeze", "--reason", "restored"]).run().success();
    for host in [&host, &fresh] {
        let text = add(host, &site.full("next"), "N").run().error_text(11);
        assert!(text.contains("frozen; ") || text.contains("is frozen"), "{text}");
        assert!(!text.contains("went back"), "{text}");
    }
    assert_eq!(site.person("adopt").code(), Some(0));
    let _ = Cli::new(&site.host).line("thaw").run().success();
    for n in 0..30 {
        site.starts(if n % 2 == 0 { &host } else { &fresh }, &format!("later-{n}"), None);
    }
    let odd = |pod: &str| pod.starts_with("later-") && pod.ends_with(['1', '3', '5', '7', '9']);
    site.all_come_back(|pod| if odd(pod) { &fresh } else { &host });
}

/// The steps of the README, as they stand there.
#[test]
fn the_written_procedure_is_what_happens() {
    require!(Part::Etcd(Version::V34), Part::Restore(Version::V34), Part::Apiserver);
    let mut site = Site::new(Version::V34, 77);
    let host = site.host.node("n1");
    site.starts(&host, "db-0", None);
    let snapshot = site.etcd.snapshot();
    site.starts(&host, "db-1", Some("10.77.0.2"));
    site.starts(&host, "web-7d9c4f6b5d-x7k2p", Some("10.77.0.9"));
    site.etcd.restore(&snapshot, None);
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let words = |text: &str| {
        let text = documents::steady(text).replace("shop/", &site.full(""));
        // How many pods there are is the business of all tests that use this cluster.
        let counts = [" of them running: ", " pods, "];
        let rest = counts.iter().find_map(|end| text.split_once(end)).map(|(_, rest)| rest.to_owned());
        rest.unwrap_or(text)
    };
    let mut commands = 0;
    for block in documents::blocks(&readme).iter().filter(|block| block.how == "restore") {
        let mut lines = block.text.lines().peekable();
        while let Some(line) = lines.next() {
            let line = line.strip_prefix("$ leasehold ").unwrap();
            let mut expected = Vec::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with("$ ")) {
                expected.push(words(line));
            }
            let line: Vec<&str> = line.split('\'').collect();
            let cli = Cli::new(&site.host).line(line[0]).args(line.get(1).copied());
            let cli = cli.env("KUBECONFIG", site.api.kubeconfig());
            let about_pods = line[0].starts_with("adopt") || line[0].starts_with("check");
            let cli = if about_pods { cli.args(["-n", &site.namespace]) } else { cli };
            let finished = cli.run();
            let said = format!("{}{}", finished.stdout(), finished.stderr());
            let said: Vec<String> = said.lines().map(words).collect();
            assert_eq!(said, expected, "README: leasehold {}", line[0]);
            commands += 1;
        }
    }
    assert_eq!(commands, 5);
    for n in 0..20 {
        site.starts(&host, &format!("later-{n}"), None);
    }
    site.all_come_back(|_| &host);
}

#[test]
fn adopt_says_what_is_wrong_with_what_it_is_given() {
    require!(Part::Etcd(Version::V34), Part::Apiserver);
    let site = Site::new(Version::V34, 78);
    let kubeconfig = site.api.kubeconfig().display().to_string();
    let fails = |line: &str, stdin: &str, code: i32, stderr: &str| {
        let line = line.replace("KUBECONFIG", &kubeconfig);
        let finished = Cli::new(&site.host).line(&line).stdin(stdin).run();
        assert_eq!(
            (finished.code(), finished.stdout(), finished.stderr()),
            (Some(code), "", stderr),
            "{line}"
        );
    };
    fails(
        "adopt --from -",
        "shop/db-0\n\n# a remark\nshop/db-1 10.78.0.300\n",
        1,
        "error: standard input, line 1: shop/db-0: must be NS/POD ADDRESS [NETWORK [IFNAME]]\nerror: standard input, line 4: \"10.78.0.300\" is not an IPv4 or IPv6 address\nhint: correct the file; nothing was adopted\n",
    );
    fails(
        "adopt --from none",
        "",
        1,
        "error: --from none cannot be read: No such file or directory (os error 2)\nhint: --from takes a file, or - for standard input; nothing was adopted\n",
    );
    let refused = Cli::new(&site.host).line("check --network lan100").run();
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(refused.stderr().contains("--against-pods"), "{refused:?}");
    fails(
        "adopt --cluster test --kubeconfig KUBECONFIG",
        "",
        1,
        "error: cluster test is not registered (registered: prod-a)\nhint: `leasehold cluster add test --uid \"$(kubectl get namespace kube-system -o jsonpath='{.metadata.uid}')\"`\n",
    );
    for command in ["adopt", "check --against-pods", "reap"] {
        fails(
            &format!("{command} --cluster prd-a --kubeconfig KUBECONFIG"),
            "",
            1,
            "error: cluster prd-a is not registered (registered: prod-a)\nhint: did you mean prod-a? `leasehold cluster list` shows all, `cluster add` registers one\n",
        );
    }
    // A kubeconfig of another cluster than its name says.
    let _ = Cli::new(&site.host)
        .line("cluster add other --uid 11111111-2222-4333-8444-555555555555")
        .run()
        .success();
    let system = site.api.get("/api/v1/namespaces/kube-system").unwrap();
    let found = system["metadata"]["uid"].as_str().unwrap();
    for command in ["adopt", "check --against-pods"] {
        fails(
            &format!("{command} --cluster other --kubeconfig KUBECONFIG"),
            "",
            1,
            &format!(
                "error: another cluster answers: kube-system has UID {found}, cluster other is registered with 11111111-2222-4333-8444-555555555555\nhint: nothing was done; name the right one: --context, --kubeconfig, --cluster\n"
            ),
        );
    }
    let empty = site.person("check --against-pods");
    assert_eq!(empty.code(), Some(3), "{empty:?}");
    let space = &site.namespace;
    let none = format!(
        "the API shows no pods in namespace {space} (is that its name?), so that none was compared\n"
    );
    assert!(empty.stderr().contains(&none), "{empty:?}");
    let none = Cli::new(&site.host).line("adopt --kubeconfig /none").run();
    assert_eq!((none.code(), none.stdout()), (Some(1), ""), "{none:?}");
    assert!(none.stderr().contains("/none"), "{none:?}");
}
