//! The built program against a real Kubernetes API and a real etcd: leases made by ADDs as a runtime calls them, and a
//! reaper with exactly the rights that its manifests give it.
#![expect(clippy::disallowed_methods, reason = "the figures are of the real clock")]

use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    documents::make_roles,
    support::{
        apiserver::Apiserver,
        call::{Call, Cli},
        etcd::Etcd,
        ground,
        host::HostFile,
        parts::{Part, Version, leasehold, require},
        process::{Finished, Running, eventually, run},
        proxy::{Fault, Proxy},
    },
};

/// A server, its cluster registered in an etcd, and a namespace of the test's own.
struct Site<'a> {
    server: &'a Apiserver,
    etcd: Etcd,
    host: HostFile,
    namespace: String,
}

impl<'a> Site<'a> {
    fn new(server: &'a Apiserver, etcd: Etcd) -> Self {
        let host = HostFile::on(&etcd);
        let system = server.get("/api/v1/namespaces/kube-system").unwrap();
        let uid = system["metadata"]["uid"].as_str().unwrap();
        let site = Self { namespace: server.namespace(), server, etcd, host };
        site.cli(&format!("cluster add prod-a --uid {uid}")).success();
        site
    }

    fn cli(&self, line: &str) -> Finished {
        Cli::new(&self.host).line(line).run()
    }

    fn pool(&self, range: &str, serves: &str) {
        let pool = format!("pool create lan --network lan100 --subnet 10.0.0.0/16 --range {range}");
        self.cli(&format!("{pool} --serves {serves}")).success();
    }

    /// A pass, as a person on this host asks for it.
    fn reap(&self, more: &str) -> Finished {
        let kubeconfig = self.server.kubeconfig();
        self.cli(&format!("reap --kubeconfig {} {more}", kubeconfig.display()))
    }

    /// What a pass says in JSON, with its exit code.
    fn report(&self, more: &str) -> (Value, i32) {
        let finished = self.reap(&format!("-o json {more}"));
        let report = serde_json::from_str(finished.stdout())
            .unwrap_or_else(|error| panic!("{error}: {}{}", finished.stdout(), finished.stderr()));
        (report, finished.code().unwrap())
    }

    fn key(&self, pod: &str) -> String {
        format!("{}/{pod}", self.namespace)
    }

    /// What a kubelet does on a node for a pod that is there.
    fn add(&self, pod: &str, container: &str, node: &str) {
        self.address(pod, container, node);
    }

    fn address(&self, pod: &str, container: &str, node: &str) -> String {
        // Point to point: nothing can be probed, and nobody is waited for.
        let host = self.host.node(node);
        let call = Call::add(&host).pod(&self.key(pod)).container(container).field("type", "ptp");
        call.run().addresses().remove(0)
    }

    fn del(&self, pod: &str, container: &str, node: &str) {
        let host = self.host.node(node);
        Call::del(&host).pod(&self.key(pod)).container(container).field("type", "ptp").run().is_silent();
    }

    /// Lines `state pod` of the leases in this namespace.
    fn leases(&self) -> Vec<String> {
        let mut all: Vec<String> = ground::leases(&self.host)
            .iter()
            .map(|lease| {
                let pod = lease.id.holder.to_string();
                format!("{} {}", lease.state().as_str(), pod.rsplit('/').next().unwrap())
            })
            .collect();
        all.sort();
        all
    }

    fn pod_path(&self, pod: &str) -> String {
        format!("/api/v1/namespaces/{}/pods/{pod}", self.namespace)
    }

    /// A pod of a StatefulSet, as its controller makes it.
    fn pod_of_set(&self, set: &Value, pod: &str, node: &str) {
        let owner = json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "name": set["metadata"]["name"],
            "uid": set["metadata"]["uid"],
            "controller": true,
        });
        let document = json!({
            "metadata": { "name": pod, "ownerReferences": [owner] },
            "spec": {
                "nodeName": node,
                "automountServiceAccountToken": false,
                "containers": [{ "name": "main", "image": "none.test/none" }],
            },
        });
        self.server.create(&format!("/api/v1/namespaces/{}/pods", self.namespace), &document);
        self.server.set_status(&self.pod_path(pod), &json!({ "phase": "Running" }));
    }

    /// What a pass missed was missed long ago: no test waits for a grace.
    fn missed_long_ago(&self) {
        self.missed_since("2026-01-01T00:00:00Z");
    }

    fn missed_since(&self, time: &str) {
        for (key, value) in self.etcd.dump("/leasehold/v1/leases/") {
            let mut record: Value = serde_json::from_str(&value).unwrap();
            if record["missedAt"].is_string() {
                record["missedAt"] = json!(time);
                self.etcd.put(&key, &record.to_string());
            }
        }
    }

    /// A pod that somebody deleted, on a node that is no more, with its lease: it is given back without any wait.
    fn is_lost(&self, pod: &str, container: &str) {
        self.server.pod(&self.namespace, pod, &format!("{}-no-node", self.namespace));
        self.add(pod, container, "n1");
        self.server.delete(&self.pod_path(pod), 1);
        thread::sleep(Duration::from_millis(2_100));
    }
}

/// The parts of these tests.
macro_rules! parts {
    () => {
        require!(Part::Apiserver, Part::Etcd(Version::V36))
    };
}

/// The time now as Kubernetes writes it.
fn now() -> String {
    let date = run(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]), b"");
    date.success().trim().to_owned()
}

/// Ten addresses, ten pods on three nodes, one of which dies without a DEL. `--lost-after` is short so that the test is;
/// the default adds 27 s to the figure.
#[test]
fn a_node_that_dies_gives_its_addresses_back_without_a_person() {
    parts!();
    let server = Apiserver::start();
    let site = Site::new(&server, Etcd::start(Version::V36));
    for node in ["n1", "n2", "n3"] {
        server.node(node);
    }
    site.pool("10.0.0.10-10.0.0.19", "*/*");
    let set = server.stateful_set(&site.namespace, "db", 3);
    for (n, node) in ["n1", "n2", "n3"].into_iter().enumerate() {
        site.pod_of_set(&set, &format!("db-{n}"), node);
    }
    let web = |n: usize| format!("web-7d9c4f6b5d-x7k2{}", ["b", "c", "d", "f", "g", "h", "j"][n]);
    let on = ["n1", "n1", "n1", "n2", "n2", "n3", "n3"];
    for (n, node) in on.into_iter().enumerate() {
        server.pod(&site.namespace, &web(n), node);
    }
    let db: Vec<String> = ["n1", "n2", "n3"]
        .into_iter()
        .enumerate()
        .map(|(n, node)| site.address(&format!("db-{n}"), &format!("db{n}"), node))
        .collect();
    for (n, node) in on.into_iter().enumerate() {
        site.add(&web(n), &format!("web{n}"), node);
    }
    let full =
        Call::add(&site.host.node("n2")).pod(&site.key("late-7d9c4f6b5d-x7k2b")).container("late").run();
    assert!(full.error_text(11).contains("10 of 10"), "{full:?}");
    // Nothing is wrong: nothing is given back, and the controllers are known from now on.
    let (quiet, code) = site.report("");
    assert_eq!((code, &quiet["givenBack"], &quiet["bound"]), (0, &json!(0), &json!(10)), "{quiet}");
    assert_eq!(quiet["troubles"], json!([]));

    // The node dies. Its kubelet says nothing any more; what was on it is deleted, and nobody confirms that.
    let died = Instant::now();
    server.node_ready("n1", "Unknown", &now());
    let dead = ["db-0".to_owned(), web(0), web(1), web(2)];
    for pod in &dead {
        server.delete(&site.pod_path(pod), 1);
    }
    let (waiting, code) = site.report("--lost-after 10m");
    assert_eq!((code, &waiting["givenBack"], &waiting["brakes"]), (0, &json!(0), &json!([])), "{waiting}");
    let rows = |report: &Value, pod: &str| {
        let items = report["items"].as_array().unwrap();
        let found = items.iter().find(|item| item["pod"] == pod).unwrap();
        format!("{} {}", found["row"].as_str().unwrap(), found["verdict"].as_str().unwrap())
    };
    thread::sleep(Duration::from_millis(2_000));
    let (silent, _) = site.report("--lost-after 10m");
    assert_eq!(rows(&silent, "db-0"), "4 kept");

    // A pool that says that a silent node may live keeps them until a person decides.
    let document = site.cli("pool show lan -o yaml").success().to_owned();
    let keep = format!("{}\nnodeLost: keep\n", document.trim_end());
    Cli::new(&site.host).line("pool apply -f -").stdin(&keep).run().success();
    thread::sleep(Duration::from_secs(3));
    let (kept, code) = site.report("--lost-after 3s");
    assert_eq!((code, &kept["givenBack"]), (0, &json!(0)), "{kept}");
    assert_eq!(rows(&kept, "db-0"), "5 kept");
    assert!(kept["items"].to_string().contains("nodeLost keep"));
    Cli::new(&site.host).line("pool apply -f -").stdin(&document).run().success();

    // Looked at first: nothing is written.
    let before = site.etcd.dump("/leasehold/");
    let dry = site.reap("--lost-after 3s --dry-run");
    assert_eq!(dry.code(), Some(0), "{}", dry.stderr());
    assert_eq!(dry.stdout().matches("to give back").count(), 4, "{}", dry.stdout());
    assert!(dry.stderr().contains("4 would be given back (dry run)"), "{}", dry.stderr());
    assert_eq!(site.etcd.dump("/leasehold/"), before);

    let begun = Instant::now();
    let (report, code) = site.report("--lost-after 3s");
    let (pass, all) = (begun.elapsed(), died.elapsed());
    // One of three silent nodes brakes nothing.
    assert_eq!((code, &report["brakes"]), (0, &json!([])), "{report}");
    assert_eq!(report["givenBack"], 4);
    for pod in &dead {
        assert_eq!(rows(&report, pod), "5 given back");
    }
    eprintln!(
        "a pass over ten leases with four dead: {pass:?} with its start; {all:?} after the node fell silent"
    );
    let states = site.leases();
    assert_eq!(states.iter().filter(|line| line.starts_with("bound ")).count(), 6, "{states:?}");
    assert!(states.contains(&"held db-0".to_owned()), "{states:?}");

    // Others get three of the four; the set's pod has its own again, on another node.
    for n in 0..3 {
        let pod = format!("web-7d9c4f6b5d-z7k2{}", ["b", "c", "d"][n]);
        server.pod(&site.namespace, &pod, "n2");
        let got = site.address(&pod, &format!("next{n}"), "n2");
        assert!(!db.contains(&got), "{got}");
    }
    let full =
        Call::add(&site.host.node("n2")).pod(&site.key("late-7d9c4f6b5d-x7k2b")).container("late").run();
    full.error(11);
    server.delete(&site.pod_path("db-0"), 0);
    site.pod_of_set(&set, "db-0", "n3");
    assert_eq!(site.address("db-0", "again", "n3"), db[0]);
    let (after, code) = site.report("--lost-after 3s");
    assert_eq!((code, &after["givenBack"], &after["bound"]), (0, &json!(0), &json!(10)), "{after}");
    site.cli("check").success();
}

/// `leasehold reap` as it runs in a pod: the service account's folder in its place, and two variables.
fn in_a_pod(site: &Site<'_>, account: &str, more: &str) -> Finished {
    in_a_pod_by(&site.server.address(), site, account, more)
}

/// The same by this way to the server, as `127.0.0.1:port`.
fn in_a_pod_by(address: &str, site: &Site<'_>, account: &str, more: &str) -> Finished {
    let folder = site.server.in_cluster(&site.namespace, account);
    let (host, port) = address.rsplit_once(':').unwrap();
    // In a mount namespace of its own, so that no other process sees it.
    let script = "mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io && \
                  cp -r \"$1\" /run/secrets/kubernetes.io/serviceaccount && shift && exec \"$@\"";
    let mut command = Command::new("/usr/bin/unshare");
    command.args(["--mount", "/bin/sh", "-c", script, "sh"]).arg(folder).arg(leasehold());
    command.args(format!("reap -o json {more}").split_whitespace());
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LEASEHOLD_CONFIG", site.host.path());
    command.env("KUBERNETES_SERVICE_HOST", host).env("KUBERNETES_SERVICE_PORT", port);
    run(&mut command, b"")
}

/// Group, resource, verb and perhaps the one name.
type Right = (&'static str, &'static str, &'static str, &'static str);

/// What one pass asks for to give back; watches are the controller's.
pub(crate) const RIGHTS: [Right; 5] = [
    ("", "pods", "list", ""),
    ("", "pods", "get", ""),
    ("", "nodes", "list", ""),
    ("", "namespaces", "get", "kube-system"),
    ("apps", "statefulsets", "get", ""),
];

/// What a pass asks for where a node is silent or missing, or its list of nodes is old.
pub(crate) const LATE: Right = ("", "nodes", "get", "");

/// What it needs to tell of it, for the first time and again.
pub(crate) const EVENTS: [Right; 2] = [("", "events", "create", ""), ("", "events", "patch", "")];

fn grant(site: &Site<'_>, account: &str, rights: impl Iterator<Item = Right>) {
    site.server.account(&site.namespace, account);
    let rules: Vec<Value> = rights
        .map(|(group, resource, verb, name)| {
            let mut rule = json!({ "apiGroups": [group], "resources": [resource], "verbs": [verb] });
            if !name.is_empty() {
                rule["resourceNames"] = json!([name]);
            }
            rule
        })
        .collect();
    let name = format!("{}-{account}", site.namespace);
    let group = "rbac.authorization.k8s.io";
    let role = json!({ "metadata": { "name": name }, "rules": rules });
    let binding = json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": site.namespace }],
    });
    site.server.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role);
    site.server.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding);
}

#[test]
fn each_right_of_the_reapers_account_is_needed_and_no_other() {
    require!(Part::Apiserver, Part::Etcd(Version::V36), Part::Root);
    let site = Site::new(Apiserver::shared(), Etcd::start(Version::V36));
    site.pool("10.0.0.10-10.0.0.200", "*/*");
    let yaml = site.cli("pool show lan -o yaml").success().to_owned();
    let scaled = format!("{}\nsticky: always\nretention: {{whenScaled: Delete}}\n", yaml.trim_end());
    Cli::new(&site.host).line("pool apply -f -").stdin(&scaled).run().success();
    // One that a node left behind, and one that its set no longer wants.
    let set = site.server.stateful_set(&site.namespace, "db", 1);
    let node = format!("{}-n1", site.namespace);
    site.server.node(&node);
    site.pod_of_set(&set, "db-0", &node);
    site.add("db-0", "db", "n1");
    assert_eq!(site.report("").1, 0);
    site.del("db-0", "db", "n1");
    site.server.delete(&site.pod_path("db-0"), 0);
    let path = format!("/apis/apps/v1/namespaces/{}/statefulsets/db", site.namespace);
    site.server.call("PATCH", &path, Some(&json!({ "spec": { "replicas": 0 } }))).success();
    site.is_lost("lost-7d9c4f6b5d-x7k2b", "lost");

    for (left_out, right) in RIGHTS.iter().enumerate() {
        let account = format!("lacks-{left_out}");
        grant(
            &site,
            &account,
            RIGHTS.iter().filter(|other| *other != right).chain(&EVENTS).chain([&LATE]).copied(),
        );
        let (_, resource, verb, _) = *right;
        // The server learns of a role a moment after it has answered.
        let lacks = format!("may not {verb} {resource}");
        let finished = eventually("the pass to lack one right only", || {
            let finished = in_a_pod(&site, &account, "");
            let all = finished.stderr().matches("may not ").count();
            (all > 0 && all == finished.stderr().matches(&lacks).count()).then_some(finished)
        });
        let ends_all = resource == "namespaces" || *right == RIGHTS[0];
        assert_eq!(finished.code(), Some(if ends_all { 1 } else { 3 }), "{right:?}: {}", finished.stderr());
        if ends_all {
            assert!(finished.stderr().contains("nothing was given back"), "{}", finished.stderr());
        }
        let left = site.leases();
        if resource == "statefulsets" {
            // The other lease does not need it.
            assert_eq!(left, ["held db-0"], "{right:?}");
        } else {
            assert_eq!(left, ["bound lost-7d9c4f6b5d-x7k2b", "held db-0"], "{right:?}");
        }
    }
    // Without the right to tell, it gives back all the same.
    grant(&site, "mute", RIGHTS.iter().chain([&LATE]).copied());
    let mute = eventually("the pass to lack the Events only", || {
        let finished = in_a_pod(&site, "mute", "");
        let all = finished.stderr().matches("may not ").count();
        (all > 0 && all == finished.stderr().matches("may not create events").count()).then_some(finished)
    });
    assert_eq!(mute.code(), Some(3), "{}", mute.stderr());
    assert!(mute.stderr().contains("1 given back"), "{}", mute.stderr());
    assert!(site.leases().is_empty());
    grant(&site, "reaper", RIGHTS.iter().chain(&EVENTS).chain([&LATE]).copied());
    site.is_lost("last-7d9c4f6b5d-x7k2b", "last");
    let finished = eventually("the account to have its rights", || {
        let finished = in_a_pod(&site, "reaper", "");
        (!finished.stderr().contains("may not")).then_some(finished)
    });
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr());
    assert!(site.leases().is_empty());
    // What was told before is counted up.
    grant(&site, "once", RIGHTS.iter().chain(&EVENTS[..1]).chain([&LATE]).copied());
    site.is_lost("again-7d9c4f6b5d-x7k2b", "again");
    let once = eventually("the pass to lack the second telling only", || {
        let finished = in_a_pod(&site, "once", "");
        let all = finished.stderr().matches("may not ").count();
        (all > 0 && all == finished.stderr().matches("may not patch events").count()).then_some(finished)
    });
    assert_eq!(once.code(), Some(3), "{}", once.stderr());
    assert!(once.stderr().contains("1 given back"), "{}", once.stderr());
}

#[test]
fn a_pass_that_takes_long_asks_for_a_silent_node_again_and_needs_the_right_to() {
    require!(Part::Apiserver, Part::Etcd(Version::V36), Part::Root);
    /// Two answers later the list of nodes is older than 5 s.
    const SLOW: Duration = Duration::from_millis(2_600);
    // Its own: each piece of a long list would be as late.
    let server = Apiserver::start();
    let site = Site::new(&server, Etcd::start(Version::V36));
    server.node("n2");
    site.pool("10.0.0.10-10.0.0.200", "*/*");
    let proxy = Proxy::to(site.server.address());
    proxy.set(Fault::Delay(SLOW));
    let way = proxy.url("http").trim_start_matches("http://").to_owned();
    grant(&site, "lacks", RIGHTS.iter().copied());
    grant(&site, "has", RIGHTS.iter().chain([&LATE]).copied());
    let pod = "lost-7d9c4f6b5d-x7k2b";
    site.is_lost(pod, "lost");
    for account in ["lacks", "has"] {
        eventually("the role", || {
            let finished = in_a_pod(&site, account, "--dry-run");
            (!finished.stderr().contains("may not")).then_some(())
        });
    }
    let lacks = in_a_pod_by(&way, &site, "lacks", "--no-events");
    assert_eq!(lacks.code(), Some(3), "{}", lacks.stderr());
    assert!(lacks.stderr().contains("may not get nodes"), "{}", lacks.stderr());
    assert_eq!(site.leases(), [format!("bound {pod}")]);
    let has = in_a_pod_by(&way, &site, "has", "--no-events");
    assert_eq!(has.code(), Some(0), "{}", has.stderr());
    assert!(site.leases().is_empty());
}

#[test]
fn a_brake_that_holds_is_one_event_that_is_counted_up_by_each_pass() {
    require!(Part::Apiserver, Part::Etcd(Version::V36), Part::Root);
    let site = Site::new(Apiserver::shared(), Etcd::start(Version::V36));
    site.pool("10.0.0.10-10.0.0.200", "*/*");
    let node = format!("{}-n1", site.namespace);
    site.server.node(&node);
    let pods = ["lives", "a", "b"].map(|name| format!("{name}-7d9c4f6b5d-x7k2b"));
    for pod in &pods {
        site.server.pod(&site.namespace, pod, &node);
        site.add(pod, pod, &node);
    }
    for pod in &pods[1..] {
        site.server.delete(&site.pod_path(pod), 0);
    }
    assert_eq!(site.report("--no-events").1, 0);
    site.missed_long_ago();
    grant(&site, "reaper", RIGHTS.iter().chain(&EVENTS).copied());
    let pass = || in_a_pod(&site, "reaper", "--max-orphans 1");
    eventually("the role", || (!pass().stderr().contains("may not")).then_some(()));
    let told = || {
        let path = format!("/api/v1/namespaces/{}/events", site.namespace);
        let list = site.server.get(&path).unwrap();
        let mut items = list["items"].as_array().unwrap().clone();
        items.retain(|event| event["reason"] == "BrakeFired");
        assert_eq!(items.len(), 1, "{list}");
        items.remove(0)
    };
    let first = told();
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(1_100));
        let braked = pass();
        assert_eq!(braked.code(), Some(3), "{}", braked.stderr());
    }
    let last = told();
    let count = |event: &Value| event["count"].as_u64().unwrap();
    assert_eq!(count(&last), count(&first) + 2);
    assert_eq!(last["metadata"]["uid"], first["metadata"]["uid"]);
    assert_eq!(last["firstTimestamp"], first["firstTimestamp"]);
    assert!(last["lastTimestamp"].as_str() > first["lastTimestamp"].as_str(), "{first} {last}");
    // It stands in the namespace that the reaper runs in, and is about it.
    let about = (&last["involvedObject"]["kind"], &last["involvedObject"]["name"]);
    assert_eq!(about, (&json!("Namespace"), &json!(site.namespace)));
    assert_eq!(
        (&last["type"], &last["source"]["component"]),
        (&json!("Warning"), &json!("leasehold-reaper"))
    );
    let text = last["message"].as_str().unwrap();
    let head =
        "brake orphans: leasehold gives back nothing of cluster prod-a, or not all: 2 of 3 bound leases";
    assert!(text.starts_with(head), "{text}");
    let shown = site.server.kubectl(&["--namespace", &site.namespace, "get", "events"]);
    assert!(shown.success().contains("BrakeFired"), "{}", shown.stdout());
    assert_eq!(site.leases().len(), 3);
}

#[test]
fn the_reapers_role_in_etcd_is_enough_and_needed() {
    parts!();
    let etcd = Etcd::with(Version::V36).auth().start();
    make_roles(&etcd, Version::V36).success();
    let role = "leasehold-reaper-prod-a";
    etcd.ctl(&["user", "add", "reaper:sesame"]).success();
    etcd.ctl(&["user", "grant-role", "reaper", role]).success();
    let store = json!({ "endpoints": etcd.endpoints(), "username": "reaper", "password": "sesame" });
    let site = Site::new(Apiserver::shared(), etcd);
    let reaper = HostFile::on(&site.etcd).with("store", json!({ "etcd": store }));
    site.pool("10.0.0.10-10.0.0.200", "*/*");
    let pod = "lost-7d9c4f6b5d-x7k2b";
    site.is_lost(pod, "lost");
    let kubeconfig = site.server.kubeconfig();
    let line = format!("reap --kubeconfig {}", kubeconfig.display());
    let works = || {
        site.add(pod, "lost", "n1");
        let finished = Cli::new(&reaper).line(&line).run();
        let ended = finished.stderr().contains("1 given back");
        if finished.code() == Some(0) {
            assert!(ended, "{}", finished.stderr());
        } else {
            assert!(finished.stderr().contains("denied"), "{}", finished.stderr());
        }
        ground::look(&site.host);
        finished.code() == Some(0)
    };
    assert!(works());
    for key in ["", "addresses/", "attachments/prod-a/", "clusters/prod-a", "leases/prod-a/", "released/"] {
        let path = format!("/leasehold/v1/{key}");
        let prefix = format!("--prefix={}", path.ends_with('/'));
        site.etcd.ctl(&["role", "revoke-permission", &prefix, role, &path]).success();
        assert!(!works(), "{key} is not needed");
        make_roles(&site.etcd, Version::V36).success();
        assert!(works(), "after {key}");
    }
    // Nor may it do more.
    for key in ["pools/x", "serves/a/b/x", "meta", "frozen", "clusters/prod-b", "leases/prod-b/x"] {
        let mut put = Command::new(Version::V36.program("etcdctl"));
        put.env_clear().env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", site.etcd.endpoints().join(","));
        put.args(["--user=reaper:sesame", "put", &format!("/leasehold/v1/{key}"), "x"]);
        assert!(run(&mut put, b"").stderr().contains("permission denied"), "{key}");
    }
    // The README says that nobody but root may.
    let mut compact = Command::new(Version::V36.program("etcdctl"));
    compact.env_clear().env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", site.etcd.endpoints().join(","));
    compact.args(["--user=reaper:sesame", "compact", "2"]);
    assert!(run(&mut compact, b"").stderr().contains("permission denied"));
}

#[test]
fn a_pass_reads_pages_of_pods_and_tells_what_it_did_in_json() {
    parts!();
    let site = Site::new(Apiserver::shared(), Etcd::start(Version::V36));
    site.pool("10.0.0.10-10.0.0.200", "*/*");
    let placed: Vec<_> =
        (0..1200).map(|n| (format!("web-{n:04}"), format!("{}-n1", site.namespace))).collect();
    site.server.pods(&site.namespace, &placed);
    let node = format!("{}-n1", site.namespace);
    site.server.node(&node);
    for (container, pod) in [("a", "web-0000"), ("b", "web-0499"), ("c", "web-0500"), ("d", "web-1199")] {
        site.add(pod, container, &node);
    }
    site.add("gone-7d9c4f6b5d-x7k2b", "g", &node);
    let (report, code) = site.report("");
    assert_eq!(code, 0, "{report}");
    assert!(report["pods"].as_u64().unwrap() >= 1200, "{report}");
    let mut fields: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    let expected = [
        "at",
        "bound",
        "brakes",
        "candidates",
        "cluster",
        "dryRun",
        "forgotten",
        "givenBack",
        "items",
        "kept",
        "leases",
        "mended",
        "pods",
        "revision",
        "stopped",
        "tookSeconds",
        "troubles",
        "unreadable",
    ];
    assert_eq!(fields, expected);
    let items = report["items"].as_array().unwrap();
    assert_eq!(items.len(), 5);
    let mut fields: Vec<&str> = items[0].as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    let expected = [
        "addresses",
        "container",
        "failed",
        "ifname",
        "look",
        "namespace",
        "network",
        "node",
        "pod",
        "reason",
        "row",
        "state",
        "verdict",
        "why",
    ];
    assert_eq!(fields, expected);
    for item in items {
        assert_eq!(item["verdict"], "kept", "{item}");
        let row = if item["pod"] == "gone-7d9c4f6b5d-x7k2b" { "8" } else { "1" };
        assert_eq!(item["row"], row, "{item}");
    }
    // Missed twice, and long enough: of four that live none.
    let (soon, _) = site.report("");
    assert_eq!(soon["givenBack"], 0, "{soon}");
    site.missed_long_ago();
    let (report, code) = site.report("");
    assert_eq!((code, &report["givenBack"]), (0, &json!(1)), "{report}");
    assert_eq!(site.leases().len(), 4);

    // Three that go at once, and a limit of two.
    for pod in ["web-0000", "web-0499", "web-0500"] {
        site.server.delete(&site.pod_path(pod), 0);
    }
    site.report("");
    site.missed_long_ago();
    let braked = site.reap("--max-orphans 2");
    assert_eq!(braked.code(), Some(3), "{}", braked.stderr());
    assert!(braked.stderr().contains("--max-orphans is 2"), "{}", braked.stderr());
    assert_eq!(site.leases().len(), 4);
    let (report, code) = site.report("--max-orphans 3");
    assert_eq!((code, &report["givenBack"]), (0, &json!(3)), "{report}");
    assert_eq!(site.leases(), ["bound web-1199"]);
}

#[test]
fn what_a_pass_cannot_reach_or_believe_ends_it_with_a_reason() {
    parts!();
    let site = Site::new(Apiserver::shared(), Etcd::start(Version::V36));
    site.pool("10.0.0.10-10.0.0.200", "*/*");
    // A list without any node is a brake.
    site.server.node(&format!("{}-n2", site.namespace));
    site.is_lost("lost-7d9c4f6b5d-x7k2b", "lost");
    let before = site.etcd.dump("/leasehold/v1/leases/");

    // The store.
    let down = site.reap("--endpoints http://127.0.0.1:1");
    assert_eq!(down.code(), Some(1), "{}", down.stderr());
    assert!(down.stderr().contains("127.0.0.1:1"), "{}", down.stderr());
    // The API.
    let file = site.host.folder().join("nobody-listens");
    let text = fs::read_to_string(site.server.kubeconfig()).unwrap();
    fs::write(&file, text.replace(&site.server.address(), "127.0.0.1:1")).unwrap();
    let gone = site.cli(&format!("reap --kubeconfig {}", file.display()));
    assert_eq!(gone.code(), Some(1));
    assert!(gone.stderr().contains("https://127.0.0.1:1 not reached"), "{}", gone.stderr());
    assert!(gone.stderr().contains("nothing was given back"), "{}", gone.stderr());
    // Credentials that the API does not know, and such as may nothing.
    let file = |token: &str| site.server.kubeconfig_of(token).display().to_string();
    let stranger = site.cli(&format!("reap --kubeconfig {}", file("no-token")));
    assert_eq!(stranger.code(), Some(1));
    assert!(stranger.stderr().contains("does not accept the credentials"), "{}", stranger.stderr());
    let token = site.server.token(&site.namespace, "default");
    let nobody = site.cli(&format!("reap --kubeconfig {}", file(&token)));
    assert_eq!(nobody.code(), Some(1));
    assert!(nobody.stderr().contains("may not get namespaces kube-system"), "{}", nobody.stderr());
    for finished in [&down, &gone, &stranger, &nobody] {
        assert_eq!(finished.stdout(), "");
    }
    // A name that nobody registered.
    let unknown = site.reap("--cluster prod-b");
    assert_eq!(unknown.code(), Some(1));
    assert!(
        unknown.stderr().contains("prod-b is not registered (registered: prod-a)"),
        "{}",
        unknown.stderr()
    );
    assert_eq!(site.etcd.dump("/leasehold/v1/leases/"), before);
    // An API of another cluster.
    let key = "/leasehold/v1/clusters/prod-a";
    let right = site.etcd.get(key).unwrap();
    let mut wrong: Value = serde_json::from_str(&right).unwrap();
    wrong["uid"] = json!("11111111-2222-3333-4444-555555555555");
    site.etcd.put(key, &wrong.to_string());
    let braked = site.reap("");
    assert_eq!(braked.code(), Some(3), "{}", braked.stderr());
    assert!(braked.stderr().contains("the API server is not of cluster prod-a"), "{}", braked.stderr());
    assert_eq!(site.etcd.dump("/leasehold/v1/leases/"), before);
    site.etcd.put(key, &right);
    // Flags that make no sense.
    for flags in ["--absent-after 14s", "--sticky-kind StatefulSet", "--max-orphans x"] {
        assert_eq!(site.reap(flags).code(), Some(2), "{flags}");
    }
    let slow = HostFile::on(&site.etcd).with("deadlines", json!({ "add": "1m" }));
    let line = format!("reap --dry-run --kubeconfig {}", site.server.kubeconfig().display());
    let refused = Cli::new(&slow).line(&format!("{line} --absent-after 64s")).run();
    assert_eq!(refused.code(), Some(2), "{}", refused.stderr());
    assert!(refused.stderr().contains("--absent-after must be at least 65s"), "{}", refused.stderr());
    assert_eq!(Cli::new(&slow).line(&format!("{line} --absent-after 65s")).run().code(), Some(0));
    let done = site.reap("");
    assert_eq!(done.code(), Some(0), "{}", done.stderr());
    assert!(
        done.stdout().contains("given back") && done.stderr().contains("1 given back"),
        "{}",
        done.stdout()
    );
    assert!(site.leases().is_empty());
}

/// Each flag of a pass with its default and with another value, on the built program: in memory, `fields` has the edges.
#[test]
fn b061_each_flag_of_the_reaper_counts() {
    parts!();
    let site = Site::new(Apiserver::shared(), Etcd::start(Version::V36));
    site.pool("10.0.0.10-10.0.0.200", "*/*");
    let node = format!("{}-n1", site.namespace);
    site.server.node(&node);
    let set = site.server.stateful_set(&site.namespace, "db", 1);
    site.pod_of_set(&set, "db-0", &node);
    for pod in ["gone-7d9c4f6b5d-x7k2b", "done-7d9c4f6b5d-x7k2b"] {
        site.server.pod(&site.namespace, pod, &node);
        site.add(pod, pod, &node);
    }
    site.add("db-0", "db", &node);
    // A kind of somebody's own.
    let own = json!({
        "metadata": { "name": "game-0", "ownerReferences": [{
            "apiVersion": "games.test/v1", "kind": "GameSet", "name": "game", "uid": "u1", "controller": true,
        }] },
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": false,
            "containers": [{ "name": "main", "image": "none.test/none" }],
        },
    });
    site.server.create(&format!("/api/v1/namespaces/{}/pods", site.namespace), &own);
    site.add("game-0", "game", &node);
    let sticky = |pod: &str| {
        let all = ground::leases(&site.host);
        all.iter().find(|lease| lease.id.holder.to_string() == site.key(pod)).unwrap().sticky
    };
    assert_eq!(site.report("").1, 0);
    assert_eq!((sticky("db-0"), sticky("game-0")), (true, false));
    // The host file may say the same.
    assert_eq!(site.report("--sticky-kind GameSet.games.test").1, 0);
    assert!(sticky("game-0"));

    // A pod that is gone, one that has ended, a set that is gone: each is noted, and a minute passes for the notes.
    site.server.delete(&site.pod_path("gone-7d9c4f6b5d-x7k2b"), 0);
    site.del("db-0", "db", &node);
    site.server.delete(&site.pod_path("db-0"), 0);
    let path = format!("/apis/apps/v1/namespaces/{}/statefulsets/db", site.namespace);
    site.server.call("DELETE", &path, None).success();
    let ended = json!({ "exitCode": 0, "startedAt": now(), "finishedAt": now() });
    let container = json!({
        "name": "main", "image": "none.test/none", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "terminated": ended },
    });
    let status = json!({ "phase": "Succeeded", "containerStatuses": [container] });
    site.server.set_status(&site.pod_path("done-7d9c4f6b5d-x7k2b"), &status);
    let minute_ago = run(Command::new("date").args(["-u", "-d", "-60 seconds", "+%Y-%m-%dT%H:%M:%SZ"]), b"");
    assert_eq!(site.report("").0["givenBack"], 0);
    site.missed_since(minute_ago.success().trim());
    let given = |more: &str| -> Vec<String> {
        let (report, code) = site.report(more);
        assert_eq!(code, 0, "{report}");
        let items = report["items"].as_array().unwrap().iter();
        items
            .filter(|i| i["verdict"] == "given back")
            .map(|i| i["pod"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(given("").is_empty());
    assert!(given("--absent-after 5m --owner-after 5m --finished-after 5m").is_empty());
    assert_eq!(given("--owner-after 30s"), ["db-0"]);
    assert_eq!(given("--absent-after 30s"), ["gone-7d9c4f6b5d-x7k2b"]);
    thread::sleep(Duration::from_millis(2_100));
    assert_eq!(given("--finished-after 1s"), ["done-7d9c4f6b5d-x7k2b"]);
    assert_eq!(site.leases(), ["bound game-0"]);

    // Half a pair is looked for, or not.
    let address = site.etcd.dump("/leasehold/v1/addresses/").into_keys().next().unwrap();
    site.etcd.del(&address);
    assert_eq!(site.report("--no-mend").0["mended"], json!([]));
    assert_eq!(site.report("--dry-run").0["mended"].as_array().unwrap().len(), 1);
    assert!(site.etcd.get(&address).is_none());
    assert_eq!(site.report("").0["mended"].as_array().unwrap().len(), 1);
    assert!(site.etcd.get(&address).is_some());
}

#[test]
fn b060_a_reaper_that_has_ended_no_pass_for_long_is_warned_of() {
    parts!();
    let site = Site::new(Apiserver::shared(), Etcd::start(Version::V36));
    site.pool("10.0.0.10-10.0.0.200", "*/*");
    let reaper = || {
        let doctor = site.cli("doctor");
        let line =
            doctor.stdout().lines().find(|line| line.contains(" reaper ")).unwrap_or_default().to_owned();
        (line.split_whitespace().next().unwrap_or_default().to_owned(), line)
    };
    let warned =
        || site.cli("cluster list").stderr().contains("warning: cluster prod-a: no pass of the reaper");
    // A new store has nothing that could come back.
    assert_eq!((reaper().0.as_str(), warned()), ("ok", false));
    site.server.pod(&site.namespace, "web-0", "n1");
    site.add("web-0", "w", "n1");
    assert_eq!((reaper().0.as_str(), warned()), ("warn", true), "{}", reaper().1);
    assert_eq!(site.reap("").code(), Some(0));
    assert_eq!((reaper().0.as_str(), warned()), ("ok", false));
    let list = site.cli("cluster list").success().to_owned();
    assert!(list.contains("s ago"), "{list}");
    // It fell silent.
    let key = "/leasehold/v1/clusters/prod-a";
    let mut record: Value = serde_json::from_str(&site.etcd.get(key).unwrap()).unwrap();
    record["lastReap"] = json!("2026-01-01T00:00:00Z");
    site.etcd.put(key, &record.to_string());
    let (status, line) = reaper();
    assert_eq!((status.as_str(), warned()), ("warn", true));
    assert!(line.contains("no pass of the reaper has ended for") && line.contains("CronJob"), "{line}");
}

#[test]
fn a_reaper_that_is_killed_in_the_middle_leaves_nothing_half_done() {
    parts!();
    const ALL: usize = 200;
    let site = Site::new(Apiserver::shared(), Etcd::start(Version::V36));
    site.pool("10.0.0.10-10.0.1.250", "*/*");
    let node = format!("{}-no-node", site.namespace);
    let name = |n: usize| format!("lost-7d9c4f6b5d-{}", suffix(n));
    let placed: Vec<_> = (0..ALL).map(|n| (name(n), node.clone())).collect();
    site.server.pods(&site.namespace, &placed);
    thread::scope(|scope| {
        for part in placed.chunks(ALL / 4) {
            let site = &site;
            scope.spawn(move || {
                for (pod, _) in part {
                    site.add(pod, pod, "n1");
                }
            });
        }
    });
    for (pod, _) in &placed {
        site.server.delete(&site.pod_path(pod), 1);
    }
    thread::sleep(Duration::from_millis(2_100));
    let start = || {
        let mut command = Command::new(leasehold());
        command.env_clear().env("LEASEHOLD_CONFIG", site.host.path()).arg("reap").arg("--kubeconfig");
        Running::start(command.arg(site.server.kubeconfig()), b"")
    };
    // Killed when it has begun to write, and at other times.
    let (mut kills, mut middle, mut pause) = (0, 0, Duration::from_millis(30));
    loop {
        let left = site.leases().len();
        if left == 0 {
            break;
        }
        let mut pass = start();
        thread::sleep(pause);
        pass.kill();
        pass.wait();
        kills += 1;
        // No invariant is broken: `leases` looks at all of them.
        let now = site.leases().len();
        if (1..left).contains(&now) {
            middle += 1;
        }
        if now == left {
            pause += Duration::from_millis(5);
        }
        if middle >= 2 {
            break;
        }
    }
    assert!(middle >= 1, "{kills} kills, none of them in the middle");
    let left = site.leases().len();
    // The rest is ended by two at once, each lease by one of them.
    let both = [start(), start()].map(|pass| {
        let ended = pass.wait();
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr());
        let text = ended.stderr().split(": ").last().unwrap_or_default().to_owned();
        text.split(' ')
            .next()
            .unwrap_or_default()
            .parse::<usize>()
            .unwrap_or_else(|_| panic!("{}", ended.stderr()))
    });
    assert_eq!(both[0] + both[1], left, "{both:?}");
    assert!(site.leases().is_empty());
    eprintln!("{kills} kills, {middle} in the middle; {left} were left to two at once: {both:?}");
    site.cli("check").success();
}

/// Five letters that Kubernetes might draw.
fn suffix(n: usize) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut text = String::from("xy");
    for power in [LETTERS.len() * LETTERS.len(), LETTERS.len(), 1] {
        text.push(char::from(LETTERS[n / power % LETTERS.len()]));
    }
    text
}
