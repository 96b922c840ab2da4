//! `reap --watch` and its port as they are run: the program, a real API server, a real etcd.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use leasehold::{host::HostClock, ops::Clock as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    documents::example,
    manifests::METRICS,
    support::{
        apiserver::Apiserver,
        call::{Call, Cli},
        etcd::{Etcd, USER},
        folder::Folder,
        ground,
        host::HostFile,
        parts::{Part, Version, leasehold, require},
        port::Port,
        process::{Process, eventually, run, within},
    },
};

/// A reaper that watches.
struct Reaper {
    process: Process,
    port: Port,
    said: PathBuf,
    _folder: Folder,
}

impl Reaper {
    fn start(host: &HostFile, kubeconfig: &Path, arguments: &str) -> Self {
        let (port, folder) = (Port::claim(), Folder::new());
        let said = folder.path().join("said");
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", r#"said=$1; shift; exec "$@" 2>"$said""#, "sh"]).arg(&said).arg(leasehold());
        shell.arg("reap").arg("--watch").arg("--kubeconfig").arg(kubeconfig);
        shell.arg(format!("--listen=127.0.0.1:{}", port.number())).args(arguments.split_whitespace());
        shell.env_clear().env("LEASEHOLD_CONFIG", host.path()).env("POD_NAMESPACE", "default");
        let reaper = Self { process: Process::spawn(&shell).unwrap(), port, said, _folder: folder };
        eventually("the first pass", || (reaper.get("/readyz")?.0 == 200).then_some(()));
        reaper
    }

    /// Status and body of a GET.
    fn get(&self, path: &str) -> Option<(u16, String)> {
        let answer = self.raw(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// All that comes back for these bytes until the server hangs up.
    fn raw(&self, request: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port.number())).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        String::from_utf8(answer).ok()
    }

    fn metric(&self, series: &str) -> Option<String> {
        let (_, text) = self.get("/metrics")?;
        let line = text.lines().find(|line| line.rsplit_once(' ').is_some_and(|(name, _)| name == series))?;
        Some(line.rsplit_once(' ')?.1.to_owned())
    }

    fn said(&self) -> Vec<String> {
        fs::read_to_string(&self.said).unwrap().lines().map(Into::into).collect()
    }

    /// SIGTERM: how it ended, and after how long.
    fn stop(self) -> (Option<i32>, Duration) {
        let begun = Instant::now();
        self.process.signal("TERM");
        (self.process.wait().code(), begun.elapsed())
    }
}

fn register(host: &HostFile, server: &Apiserver) {
    let system = server.get("/api/v1/namespaces/kube-system").unwrap();
    let uid = system["metadata"]["uid"].as_str().unwrap();
    Cli::new(host).line(&format!("cluster add prod-a --uid {uid}")).run().success();
}

fn small_pool(host: &HostFile, namespace: &str, last: u32) {
    let line = format!(
        "pool create small --network lan --subnet 10.0.0.0/24 --range 10.0.0.1-10.0.0.{last} --serves {namespace}/*"
    );
    Cli::new(host).line(&line).run().success();
}

/// A pod on a node of its own, and its address.
fn runs(server: &Apiserver, host: &HostFile, namespace: &str, name: &str, node: &str) -> String {
    let made = server.pod(namespace, name, node);
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let add = Call::add(host).network("lan").pod(&format!("{namespace}/{name}")).uid(uid).container(name);
    add.run().addresses()[0].clone()
}

fn has_ended(server: &Apiserver, namespace: &str, name: &str) {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    server.set_status(&path, &json!({ "phase": "Succeeded" }));
}

fn leases_of(host: &HostFile, pod: &str) -> usize {
    ground::leases(host).iter().filter(|lease| lease.id.holder.to_string() == pod).count()
}

fn now() -> Duration {
    Duration::from_millis(u64::try_from(HostClock.now().0).unwrap())
}

fn rfc3339(seconds: u64) -> String {
    let text =
        run(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ", "-d"]).arg(format!("@{seconds}")), b"");
    text.success().trim().to_owned()
}

fn events(server: &Apiserver, namespace: &str) -> Vec<Value> {
    let list = server.get(&format!("/api/v1/namespaces/{namespace}/events")).unwrap();
    list["items"].as_array().unwrap().clone()
}

/// The account of the manifests, which may no more than they say.
fn reaper_of(server: &Apiserver) -> String {
    server.apply(&example("kubernetes/namespace.yaml"));
    server.apply(&example("kubernetes/rbac.yaml"));
    server.token("leasehold", "leasehold-reaper")
}

#[test]
fn a_node_that_dies_gives_its_addresses_back_by_itself_with_two_reapers_at_once() {
    const LOST_AFTER: u64 = 3;
    const GRACE: u64 = 1;
    require!(Part::Apiserver, Part::Etcd(Version::V36));
    let server = Apiserver::start();
    let (etcd, namespace) = (Etcd::start(Version::V36), server.namespace());
    let host = HostFile::on(&etcd);
    register(&host, &server);
    small_pool(&host, &namespace, 10);
    for node in ["n1", "n2", "n3"] {
        server.node(node);
    }
    let pods: Vec<String> = (0..10).map(|index| format!("web-7d9c4f6b5d-x7k2{index}")).collect();
    for pod in &pods[1..] {
        runs(&server, &host, &namespace, pod, "n1");
    }
    // One asks for a pool by an annotation that nobody passed on.
    let path = format!("/api/v1/namespaces/{namespace}/pods/{}", pods[0]);
    let made = server.pod(&namespace, &pods[0], "n2");
    let wish = json!({ "metadata": { "annotations": { "leasehold.io/pool": "other" } } });
    server.call("PATCH", &path, Some(&wish)).success();
    let uid = made["metadata"]["uid"].as_str().unwrap();
    Call::add(&host)
        .network("lan")
        .pod(&format!("{namespace}/{}", pods[0]))
        .uid(uid)
        .container("c0")
        .run()
        .addresses();

    let kubeconfig = server.kubeconfig_of(&reaper_of(&server));
    let arguments = format!("--lost-after {LOST_AFTER}s --interval 10m");
    let other = host.node("n9");
    let (one, two) =
        (Reaper::start(&host, &kubeconfig, &arguments), Reaper::start(&other, &kubeconfig, &arguments));
    let gauge =
        |state: &str| one.metric(&format!("leasehold_pool_addresses{{pool=\"small\",state=\"{state}\"}}"));
    assert_eq!((gauge("bound").as_deref(), gauge("free").as_deref()), (Some("10"), Some("0")));

    // Kubernetes sees the node gone; a moment later its pods are evicted.
    let since = now().as_secs();
    server.node_ready("n1", "Unknown", &rfc3339(since));
    for pod in &pods[1..] {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
        server.delete(&path, u32::try_from(GRACE).unwrap());
    }
    let deleted = now().as_secs_f64();
    let free = within(Duration::from_secs(60), || (ground::leases(&host).len() == 1).then_some(()));
    let back = now().as_secs_f64();
    assert_eq!(free, Some(()), "{:?} {:?}", one.said(), two.said());
    // The grace of the last pod may end after lost-after: the later of the two counts.
    let due = (since as f64 + LOST_AFTER as f64).max(deleted.ceil() + GRACE as f64);
    println!(
        "9 addresses back {:.1} s after Ready became Unknown (--lost-after {LOST_AFTER}s), {:.1} s after they were due",
        back - since as f64,
        back - due
    );
    assert!(back >= since as f64 + LOST_AFTER as f64 && back - due < 4.0, "{back} {due} {:?}", one.said());

    // Each was given back once, by one of the two.
    let lines = format!("{}{}", host.log(), other.log());
    let given = lines.lines().filter(|line| line.contains("lease.released") && line.contains("row 5"));
    assert_eq!(given.count(), 9, "{lines}");
    let told = eventually("the Events", || {
        let told = events(&server, &namespace);
        let reasons: Vec<_> = told.iter().map(|event| event["reason"].as_str().unwrap()).collect();
        ["PoolFull", "AnnotationIgnored", "AddressesGivenBack"]
            .iter()
            .all(|reason| reasons.contains(reason))
            .then_some(told)
    });
    for event in &told {
        let (about, message) = (&event["involvedObject"], event["message"].as_str().unwrap());
        println!("{} {} {}: {message}", event["type"], about["kind"], event["reason"]);
        match event["reason"].as_str().unwrap() {
            "AnnotationIgnored" => assert_eq!(about["uid"], json!(uid)),
            "PoolFull" => assert!(message.starts_with("pool small is full: 10 of 10"), "{message}"),
            _ => assert_eq!((&about["kind"], &about["name"]), (&json!("Namespace"), &json!(namespace))),
        }
    }
    let known = one.get("/metrics").unwrap().1;
    for name in METRICS {
        let bare = name.trim_end_matches("_bucket");
        assert!(known.lines().any(|line| line.starts_with(&format!("# TYPE {bare} "))), "{name}\n{known}");
    }
    for reaper in [one, two] {
        let (code, took) = reaper.stop();
        assert!(code == Some(0) && took < Duration::from_secs(2), "{code:?} {took:?}");
    }
}

#[test]
fn b105_b109_what_happens_to_an_etcd_in_the_life_of_a_reaper_ends_no_watch() {
    require!(Part::Apiserver, Part::Etcd(Version::V36));
    let server = Apiserver::shared();
    let namespace = server.namespace();
    let mut etcd = Etcd::with(Version::V36).auth().argument("--auth-token-ttl=5").start();
    let host = HostFile::on(&etcd);
    register(&host, server);
    small_pool(&host, &namespace, 10);
    let node = format!("{namespace}-n1");
    server.node(&node);
    for name in ["a", "b", "c"] {
        runs(server, &host, &namespace, name, &node);
    }
    let ends = |name: &str, reaper: &Reaper| {
        let pod = format!("{namespace}/{name}");
        has_ended(server, &namespace, name);
        let begun = Instant::now();
        let gone = within(Duration::from_secs(60), || (leases_of(&host, &pod) == 0).then_some(()));
        assert_eq!(gone, Some(()), "{name}: {:?}", reaper.said());
        println!("{name}: given back after {:.1} s", begun.elapsed().as_secs_f64());
    };
    let reaper = Reaper::start(
        &host,
        &server.kubeconfig(),
        "--finished-after 1s --interval 10m --no-events --compact off",
    );
    // Its token ends while it idles, and the revision of the users is another.
    thread::sleep(Duration::from_secs(7));
    etcd.ctl(&["user", "add", "x:y"]).success();
    ends("a", &reaper);
    let before: Vec<_> = reaper.said().into_iter().filter(|line| line.contains("no pass")).collect();
    assert!(before.is_empty(), "{before:?}");

    // Another password: it says so, and goes on when it is the old one again.
    let password = |new: &str| {
        let mut ctl = etcd.etcdctl(&etcd.endpoint(0));
        let set = ctl.args(["user", "passwd", "leasehold", "--interactive=false"]);
        run(set, format!("{new}\n").as_bytes()).success();
    };
    password("another");
    thread::sleep(Duration::from_secs(6));
    has_ended(server, &namespace, "b");
    thread::sleep(Duration::from_secs(8));
    let said = reaper.said();
    let failed: Vec<_> = said.iter().filter(|line| line.contains("no pass: ")).collect();
    assert!(failed.len() == 1 && failed[0].contains("authentication failed"), "{said:?}");
    let count = reaper.metric("leasehold_reap_passes_total{result=\"failed\"}").unwrap();
    println!("8 s of a wrong password: {count} passes failed");
    assert!((1..=6).contains(&count.parse::<u32>().unwrap()), "{count}");
    assert!(!said.iter().any(|line| line.contains("sesame")), "{said:?}");
    password(USER.1);
    ends("b", &reaper);
    assert!(reaper.said().iter().any(|line| line.contains("works again, after ")));

    // Compaction, and another start of the etcd.
    let revision = etcd.revision().to_string();
    etcd.ctl(&["compact", &revision]).success();
    etcd.kill(0);
    etcd.restart(0);
    let lines = reaper.said().len();
    ends("c", &reaper);
    let said = reaper.said();
    let failed = said[lines..].iter().filter(|line| line.contains("no pass: ")).count();
    assert!(failed <= 1, "{said:?}");
    assert_eq!(reaper.stop().0, Some(0));
}

/// How many lines of what it said have this.
fn lines_with(reaper: &Reaper, text: &str) -> usize {
    reaper.said().iter().filter(|line| line.contains(text)).count()
}

#[test]
fn an_api_that_freezes_and_dies_is_told_once_a_minute_and_nothing_is_given_back_meanwhile() {
    /// So long after the last success it is not ready: three intervals, and what a pass took.
    const UNREADY: Duration = Duration::from_secs(15);
    require!(Part::Apiserver, Part::Etcd(Version::V36));
    let mut server = Apiserver::start();
    let (etcd, namespace) = (Etcd::start(Version::V36), server.namespace());
    let host = HostFile::on(&etcd);
    register(&host, &server);
    small_pool(&host, &namespace, 10);
    server.node("n1");
    for name in ["a", "b"] {
        runs(&server, &host, &namespace, name, "n1");
    }
    let arguments = "--finished-after 5s --interval 5s --no-events --compact off";
    let reaper = Reaper::start(&host, &server.kubeconfig(), arguments);
    let began = Instant::now();
    let is_ready = || reaper.get("/readyz").is_some_and(|(status, _)| status == 200);
    let left = |name: &str| leases_of(&host, &format!("{namespace}/{name}"));

    // What would be due stays for as long as nobody answers.
    has_ended(&server, &namespace, "a");
    server.freeze();
    let frozen = Instant::now();
    within(Duration::from_secs(60), || (!is_ready()).then_some(())).expect("it stays ready");
    assert!(frozen.elapsed() > UNREADY - Duration::from_secs(6), "{:?}", frozen.elapsed());
    assert_eq!((left("a"), reaper.get("/healthz").unwrap().0), (1, 200));
    let complains = || (lines_with(&reaper, "no pass: ") == 1).then_some(());
    within(Duration::from_secs(60), complains).expect("it does not say so");
    let thawed = Instant::now();
    server.thaw();
    within(Duration::from_secs(60), || (left("a") == 0).then_some(())).expect("it is not given back");
    eventually("it to be ready", || is_ready().then_some(()));
    println!("frozen {:?}: given back {:?} after the thaw", thawed - frozen, thawed.elapsed());
    eventually("it to say so", || (lines_with(&reaper, "works again, after ") == 1).then_some(()));

    has_ended(&server, &namespace, "b");
    server.kill();
    let killed = Instant::now();
    within(Duration::from_secs(60), || (!is_ready()).then_some(())).expect("it stays ready");
    assert_eq!(left("b"), 1);
    println!("killed: not ready after {:?}", killed.elapsed());
    server.restart();
    let back = Instant::now();
    within(Duration::from_secs(60), || (left("b") == 0).then_some(())).expect("it is not given back");
    eventually("it to be ready", || is_ready().then_some(()));
    println!("killed: given back {:?} after the start", back.elapsed());
    let minutes = began.elapsed().as_secs() / 60 + 1;
    // That passes fail is news after any other line; each of the two is told once a minute at most.
    for line in ["no pass: ", "no hints "] {
        assert!(lines_with(&reaper, line) as u64 <= minutes, "{minutes} {:?}", reaper.said());
    }
    assert_eq!(reaper.stop().0, Some(0));
}

#[test]
fn b109_hints_come_again_from_an_api_that_has_forgotten_where_they_stopped() {
    require!(Part::Apiserver, Part::Etcd(Version::V36));
    let mut server = Apiserver::start();
    let (etcd, namespace) = (Etcd::start(Version::V36), server.namespace());
    let host = HostFile::on(&etcd);
    register(&host, &server);
    small_pool(&host, &namespace, 10);
    server.node("n1");
    for name in ["a", "b", "c"] {
        runs(&server, &host, &namespace, name, "n1");
    }
    // A pass of its own accord would come too late for this test.
    let arguments = "--finished-after 1s --interval 30m --no-events --compact off";
    let reaper = Reaper::start(&host, &server.kubeconfig(), arguments);
    let ends = |server: &Apiserver, name: &str| {
        has_ended(server, &namespace, name);
        let pod = format!("{namespace}/{name}");
        let gone = within(Duration::from_secs(90), || (leases_of(&host, &pod) == 0).then_some(()));
        assert_eq!(gone, Some(()), "{name}: {:?}", reaper.said());
    };
    ends(&server, "a");
    let revision = server.etcd.revision().to_string();
    server.etcd.ctl(&["compact", &revision]).success();
    ends(&server, "b");
    server.restart_compacted();
    ends(&server, "c");
    assert!(lines_with(&reaper, "no hints ") <= 1, "{:?}", reaper.said());
    assert_eq!(lines_with(&reaper, "no pass: "), 0, "{:?}", reaper.said());
    assert_eq!(reaper.stop().0, Some(0));
}

#[test]
fn b105_a_signed_token_that_ends_is_replaced() {
    require!(Part::Apiserver, Part::Etcd(Version::V36));
    let keys = Folder::new();
    let script = "openssl genrsa -out key 2048 && openssl rsa -in key -pubout -out key.pub";
    run(Command::new("/bin/sh").args(["-c", script]).current_dir(keys.path()), b"").success();
    let token = format!(
        "--auth-token=jwt,pub-key={0}/key.pub,priv-key={0}/key,sign-method=RS256,ttl=3s",
        keys.path().display()
    );
    let server = Apiserver::shared();
    let namespace = server.namespace();
    let etcd = Etcd::with(Version::V36).auth().argument(token).start();
    let host = HostFile::on(&etcd);
    register(&host, server);
    small_pool(&host, &namespace, 10);
    let node = format!("{namespace}-n1");
    server.node(&node);
    for name in ["a", "b"] {
        runs(server, &host, &namespace, name, &node);
    }
    let arguments = "--finished-after 1s --interval 10m --no-events --compact off";
    let reaper = Reaper::start(&host, &server.kubeconfig(), arguments);
    // The first token has ended; the second is of another revision of the users.
    for (name, user) in [("a", None), ("b", Some("x:y"))] {
        thread::sleep(Duration::from_secs(5));
        if let Some(user) = user {
            etcd.ctl(&["user", "add", user]).success();
        }
        has_ended(server, &namespace, name);
        let pod = format!("{namespace}/{name}");
        let gone = within(Duration::from_secs(60), || (leases_of(&host, &pod) == 0).then_some(()));
        assert_eq!(gone, Some(()), "{name}: {:?}", reaper.said());
    }
    assert_eq!(lines_with(&reaper, "no pass: "), 0, "{:?}", reaper.said());
    assert_eq!(reaper.stop().0, Some(0));
}

/// What a controller asks for besides what a pass does.
pub(crate) const TO_WATCH: [(&str, &str, &str); 4] = [
    ("", "pods", "watch"),
    ("", "nodes", "watch"),
    ("apps", "statefulsets", "list"),
    ("apps", "statefulsets", "watch"),
];

#[test]
fn each_right_to_watch_is_needed() {
    require!(Part::Apiserver);
    let server = Apiserver::shared();
    let (host, namespace) = (ground::on_etcd(), server.namespace());
    Cli::new(&host).line("cluster delete prod-a").run().success();
    register(&host, server);
    for (index, left_out) in TO_WATCH.iter().enumerate() {
        let account = format!("lacks-{index}");
        server.account(&namespace, &account);
        let mut rules = vec![
            json!({ "apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list"] }),
            json!({ "apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["get"] }),
            json!({ "apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"] }),
        ];
        rules.extend(TO_WATCH.iter().filter(|right| *right != left_out).map(
            |(group, resource, verb)| json!({ "apiGroups": [group], "resources": [resource], "verbs": [verb] }),
        ));
        let name = format!("{namespace}-{account}");
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": namespace }],
        });
        let role = json!({ "metadata": { "name": name }, "rules": rules });
        server.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role);
        server.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding);
        let token = server.token(&namespace, &account);
        let bearer = server.as_bearer(&token);
        // The server learns of a role, all of it, a moment after it has answered.
        eventually("the role", || {
            bearer
                .call("GET", "/api/v1/nodes?limit=1", None)
                .is_ok_and(|answer| answer.status == 200)
                .then_some(())
        });
        let reaper = Reaper::start(&host, &server.kubeconfig_of(&token), "--no-events");
        let (_, resource, verb) = left_out;
        let lacks = format!("may not {verb} {resource}");
        eventually(&lacks, || reaper.said().iter().any(|line| line.contains(&lacks)).then_some(()));
        let others =
            reaper.said().iter().filter(|line| line.contains("may not") && !line.contains(&lacks)).count();
        assert_eq!(others, 0, "{:?}", reaper.said());
        assert_eq!(reaper.stop().0, Some(0));
    }
}

#[test]
fn a_token_that_is_another_is_read_again() {
    require!(Part::Apiserver);
    let server = Apiserver::shared();
    let (host, namespace) = (ground::on_etcd(), server.namespace());
    // The ground's cluster has another UID.
    Cli::new(&host).line("cluster delete prod-a").run().success();
    register(&host, server);
    small_pool(&host, &namespace, 10);
    let node = format!("{namespace}-n1");
    server.node(&node);
    runs(server, &host, &namespace, "a", &node);
    let folder = server.in_cluster(&namespace, "default");
    let binding = json!({
        "metadata": { "name": format!("{namespace}-reaper") },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "kind": "ServiceAccount", "name": "default", "namespace": namespace }],
    });
    server.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding);
    let kubeconfig = folder.join("kubeconfig");
    let document = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        "clusters": [{ "name": "c", "cluster": {
            "server": format!("https://{}", server.address()), "certificate-authority": folder.join("ca.crt"),
        } }],
        "users": [{ "name": "u", "user": { "tokenFile": folder.join("token") } }],
    });
    fs::write(&kubeconfig, document.to_string()).unwrap();
    let reaper = Reaper::start(&host, &kubeconfig, "--finished-after 1s --interval 10s --no-events");
    // The account is made anew: its old tokens are worth nothing.
    server.delete(&format!("/api/v1/namespaces/{namespace}/serviceaccounts/default"), 0);
    server.account(&namespace, "default");
    has_ended(server, &namespace, "a");
    eventually("passes to fail", || {
        let failed = reaper.metric("leasehold_reap_passes_total{result=\"failed\"}")?;
        (failed != "0").then_some(())
    });
    fs::write(folder.join("token"), server.token(&namespace, "default")).unwrap();
    let pod = format!("{namespace}/a");
    let gone = within(Duration::from_secs(100), || (leases_of(&host, &pod) == 0).then_some(()));
    let said = reaper.said();
    assert_eq!(gone, Some(()), "{said:?}");
    assert!(said.iter().any(|line| line.contains("does not accept the credentials")), "{said:?}");
    assert!(said.iter().any(|line| line.contains("works again")), "{said:?}");
}

#[test]
fn the_port_answers_what_it_should_and_a_stranger_cannot_take_it() {
    require!(Part::Apiserver);
    let server = Apiserver::shared();
    let host = ground::on_etcd();
    Cli::new(&host).line("cluster delete prod-a").run().success();
    register(&host, server);
    let reaper = Reaper::start(&host, &server.kubeconfig(), "--interval 10s --no-events");
    assert_eq!(reaper.get("/healthz"), Some((200, "ok\n".into())));
    assert_eq!(reaper.get("/readyz?verbose"), Some((200, "ok\n".into())));
    assert_eq!(reaper.get("/").unwrap().0, 404);
    let (status, text) = reaper.get("/metrics").unwrap();
    assert_eq!(status, 200);
    for line in text.lines() {
        let sample = line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<f64>().is_ok());
        assert!(sample || line.starts_with("# HELP ") || line.starts_with("# TYPE "), "{line}");
    }
    let head = reaper.raw("HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{head}");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
    let post = reaper.raw("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").unwrap();
    assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("allow: GET, HEAD"), "{post}");
    assert!(reaper.raw("nonsense\r\n\r\n").unwrap().starts_with("HTTP/1.1 400 "));
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    assert!(reaper.raw(&long).is_none_or(|answer| answer.starts_with("HTTP/1.1 431 ") || answer.is_empty()));
    // Hundreds that say nothing: the port goes on, and they are shown out.
    let mut idle: Vec<_> =
        (0..300).map(|_| TcpStream::connect(("127.0.0.1", reaper.port.number())).unwrap()).collect();
    for _ in 0..5 {
        assert_eq!(reaper.get("/healthz").unwrap().0, 200);
    }
    let open = fs::read_dir(format!("/proc/{}/fd", reaper.process.pid())).unwrap().count();
    assert!(open < 120, "{open} open files");
    let last = idle.last_mut().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let begun = Instant::now();
    let mut rest = Vec::new();
    let _ = last.read_to_end(&mut rest);
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
}

#[test]
fn one_pass_writes_a_file_for_node_exporter_also_when_it_fails() {
    require!(Part::Apiserver);
    let server = Apiserver::shared();
    let host = ground::on_etcd();
    Cli::new(&host).line("cluster delete prod-a").run().success();
    register(&host, server);
    let file = host.folder().join("leasehold.prom");
    let reap = |kubeconfig: &Path| {
        let cli = Cli::new(&host).line("reap --no-events --kubeconfig").args([kubeconfig]);
        cli.args(["--textfile"]).args([&file]).run()
    };
    let value = |series: &str| {
        let text = fs::read_to_string(&file).unwrap();
        text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<f64>().ok())
    };
    reap(&server.kubeconfig()).success();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    let success = value("leasehold_reap_last_success_timestamp_seconds").unwrap();
    assert!((now().as_secs_f64() - success).abs() < 60.0);
    reap(&server.kubeconfig()).success();
    assert_eq!(value("leasehold_reap_passes_total{result=\"done\"}"), Some(2.0));
    let then = value("leasehold_reap_last_success_timestamp_seconds").unwrap();
    // No API: the time of the last success stays, the failure is counted, nothing is left beside it.
    let nowhere = host.folder().join("nowhere");
    let text = fs::read_to_string(server.kubeconfig()).unwrap();
    fs::write(&nowhere, text.replace(&server.address(), "127.0.0.1:1")).unwrap();
    assert_eq!(reap(&nowhere).code(), Some(1));
    assert_eq!(value("leasehold_reap_passes_total{result=\"failed\"}"), Some(1.0));
    assert_eq!(value("leasehold_reap_last_success_timestamp_seconds"), Some(then));
    assert_eq!(value("leasehold_reap_candidates"), None);
    let beside = fs::read_dir(host.folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let beside: Vec<_> = beside.filter(|name| name.to_string_lossy().contains(".prom.")).collect();
    assert!(beside.is_empty(), "{beside:?}");
    // A file that cannot be written stops no pass. What is no text of metrics is left alone.
    let folder = host.folder().join("folder.prom");
    fs::create_dir(&folder).unwrap();
    for (file, words) in [
        ("/no/such/folder/x.prom", "--textfile /no/such/folder/x.prom: No such file"),
        (folder.to_str().unwrap(), "folder.prom: Is a directory"),
    ] {
        let passed = Cli::new(&host).line("reap --no-events --kubeconfig").args([&server.kubeconfig()]);
        let passed = passed.args(["--textfile", file]).run();
        assert_eq!(passed.code(), Some(3), "{}", passed.stderr());
        assert!(passed.stderr().contains("warning: no metrics, "), "{}", passed.stderr());
        assert!(
            passed.stderr().contains(words) && passed.stderr().contains(" given back, "),
            "{}",
            passed.stderr()
        );
    }
    let refused = Cli::new(&host).line("reap --textfile leasehold.txt").run();
    assert_eq!(refused.code(), Some(2), "{}", refused.stderr());
    assert!(refused.stderr().contains("must end in .prom"), "{}", refused.stderr());
}
