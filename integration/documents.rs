//! What the documents say, done: every file of `config-examples/` on real parts, every block of the README.
//!
//! A file is used as it is. What is put into it is only what a test cannot have: the example's endpoints and the paths
//! in `/etc` and `/var` become those of this run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    fs::File,
    io,
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};
use socket2::SockRef;

use crate::support::{
    call::{Call, Cli},
    etcd::{Etcd, certificates},
    folder::Folder,
    ground,
    host::HostFile,
    lan::{Lan, Namespace},
    parts::{Part, Plugins, Version, leasehold, require},
    process::{Finished, run},
};

const FILES: [&str; 23] = [
    "bridge.conflist",
    "etcd-roles",
    "host-etcd.json",
    "host-local.json",
    "kubernetes/Containerfile",
    "kubernetes/etcd-secret.yaml",
    "kubernetes/grafana-dashboard.json",
    "kubernetes/installer.yaml",
    "kubernetes/kustomization.yaml",
    "kubernetes/namespace.yaml",
    "kubernetes/pool-policy.yaml",
    "kubernetes/prometheus-rule.yaml",
    "kubernetes/rbac.yaml",
    "kubernetes/reaper-cronjob.yaml",
    "kubernetes/reaper-deployment.yaml",
    "kubernetes/settings.yaml",
    "macvlan.conflist",
    "multus.yaml",
    "pools/dual-stack.yaml",
    "pools/lan.yaml",
    "pools/racks.yaml",
    "pools/shop-db.yaml",
    "ptp.conflist",
];

/// The repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn example(name: &str) -> String {
    assert!(FILES.contains(&name), "{name}");
    fs::read_to_string(root().join("config-examples").join(name)).unwrap()
}

#[test]
fn every_example_is_known_to_these_tests() {
    let mut found = BTreeSet::new();
    let mut folders = vec![root().join("config-examples")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(root().join("config-examples")).unwrap();
                found.insert(name.to_str().unwrap().to_owned());
            }
        }
    }
    assert_eq!(found, FILES.iter().map(|name| (*name).to_owned()).collect());
}

/// A cluster on an etcd with mutual TLS, `host-etcd.json` as the host file, and the pools of `pools/`.
fn site() -> (Etcd, HostFile) {
    let etcd = Etcd::with(Version::V36).tls().start();
    let host = HostFile::on(&etcd);
    let made = certificates();
    let mut document: Value = serde_json::from_str(&example("host-etcd.json")).unwrap();
    document["store"]["etcd"]["endpoints"] = json!(etcd.endpoints());
    for (key, folder, file) in [
        ("cacert", "/etc/cni/net.d/leasehold.d/ca.crt", &made.ca),
        ("cert", "/etc/cni/net.d/leasehold.d/node.crt", &made.client.0),
        ("key", "/etc/cni/net.d/leasehold.d/node.key", &made.client.1),
    ] {
        assert_eq!(document["store"]["etcd"][key], folder);
        document["store"]["etcd"][key] = json!(file);
    }
    document["log"]["file"] = json!(host.folder().join("leasehold.log"));
    document["stateDir"] = json!(host.state());
    host.write(&document.to_string());
    Cli::new(&host).line("cluster add prod-a --uid 11111111-2222-4333-8444-555555555555").run().success();
    let pools = root().join("config-examples/pools");
    Cli::new(&host)
        .args(["pool".as_ref(), "apply".as_ref(), "-f".as_ref(), pools.as_os_str()])
        .run()
        .success();
    (etcd, host)
}

/// The etcd of this machine, at the same address inside a node.
struct Tunnel(TcpListener);

impl Tunnel {
    fn open(node: &Namespace, address: String) -> Self {
        let space = node.path();
        let port: u16 = address.rsplit_once(':').unwrap().1.parse().unwrap();
        // A socket stays in the namespace where it was made, whatever its thread does later.
        let listener = thread::spawn(move || {
            setns(File::open(space).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
            TcpListener::bind(("127.0.0.1", port)).unwrap()
        });
        let listener = listener.join().unwrap();
        let accepting = listener.try_clone().unwrap();
        thread::spawn(move || {
            for inner in accepting.incoming() {
                let Ok(inner) = inner else { break };
                let Ok(outer) = TcpStream::connect(&address) else { continue };
                for (mut from, mut to) in
                    [(inner.try_clone().unwrap(), outer.try_clone().unwrap()), (outer, inner)]
                {
                    thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        Self(listener)
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        let _ = SockRef::from(&self.0).shutdown(Shutdown::Both); // ends the accepting thread
    }
}

/// A node with the networks of one folder, called through libcni (cnitool), which reads a file as a runtime does.
struct Node<'a> {
    inside: &'a Namespace,
    host: &'a HostFile,
    networks: Folder,
    cache: Folder,
    programs: Folder,
}

impl<'a> Node<'a> {
    fn new(inside: &'a Namespace, host: &'a HostFile) -> Self {
        let programs = Folder::new();
        symlink(leasehold(), programs.path().join("leasehold")).unwrap();
        Self { inside, host, networks: Folder::new(), cache: Folder::new(), programs }
    }

    fn network(&self, file: &str, text: &str) {
        fs::write(self.networks.path().join(file), text).unwrap();
    }

    fn call(&self, verb: &str, network: &str, pod: &str, sandbox: &Namespace, fills: &Value) -> Finished {
        let plugins = Plugins::Current.folder();
        let (namespace, name) = pod.split_once('/').unwrap();
        // libcni keeps its cache in /var/lib/cni; the machine's own is not ours to fill.
        let script = format!("mount --bind {} /var/lib && exec \"$@\"", self.cache.path().display());
        let mut command = self.inside.command("/usr/bin/unshare");
        command.env_clear().args(["--mount", "/bin/sh", "-c", &script, "sh"]);
        command.arg(plugins.join("cnitool")).args([verb, network]).arg(sandbox.path());
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("CNI_PATH", std::env::join_paths([self.programs.path(), &plugins]).unwrap());
        command.env("NETCONFPATH", self.networks.path()).env("LEASEHOLD_CONFIG", self.host.path());
        command.env("CNI_IFNAME", "eth0").env("CAP_ARGS", fills.to_string());
        command.env("CNI_ARGS", format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}"));
        run(&mut command, b"")
    }

    /// ADD, a look at the interface, CHECK.
    #[track_caller]
    fn add(&self, network: &str, pod: &str, sandbox: &Namespace, fills: &Value) -> Vec<String> {
        let finished = self.call("add", network, pod, sandbox, fills);
        let result: Value = serde_json::from_str(finished.success()).unwrap();
        let ips = result["ips"].as_array().unwrap();
        let addresses: Vec<String> =
            ips.iter().map(|ip| ip["address"].as_str().unwrap().to_owned()).collect();
        assert_eq!(sandbox.addresses("eth0"), addresses);
        self.call("check", network, pod, sandbox, fills).success();
        addresses
    }

    #[track_caller]
    fn del(&self, network: &str, pod: &str, sandbox: &Namespace) {
        self.call("del", network, pod, sandbox, &json!({})).success();
        assert!(!sandbox.interfaces().contains(&"eth0".to_owned()));
    }
}

fn bare(address: &str) -> &str {
    address.split_once('/').unwrap().0
}

/// The pool of a pod's address.
#[track_caller]
fn pool_of(host: &HostFile, pod: &str) -> String {
    let leases = ground::leases(host);
    let lease = leases.iter().find(|lease| lease.id.holder.to_string() == pod).unwrap();
    lease.addresses[0].pool.as_ref().unwrap().to_string()
}

fn annotation(key: &str, value: &str) -> Value {
    json!({ "io.kubernetes.cri.pod-annotations": { format!("leasehold.io/{key}"): value } })
}

#[test]
fn the_macvlan_network_runs() {
    require!(Part::Root, Part::Program("arping"), Part::Etcd(Version::V36), Part::Plugins(Plugins::Current));
    let (etcd, host) = site();
    let lan = Lan::new();
    let (inside, elsewhere) = (lan.node("n1"), lan.node("n2"));
    let _tunnel = Tunnel::open(&inside, etcd.address(0));
    let node = Node::new(&inside, &host);
    node.network("10-lan100.conflist", &example("macvlan.conflist"));

    let sandbox = Namespace::sandbox();
    let addresses = node.add("lan100", "shop/db-0", &sandbox, &json!({}));
    assert_eq!(addresses.len(), 1);
    assert!(elsewhere.hears("eth0", bare(&addresses[0])));
    assert!(sandbox.ip("route show default").contains("via 10.0.3.254"));
    node.del("lan100", "shop/db-0", &sandbox);
    let again = Namespace::sandbox();
    assert_eq!(node.add("lan100", "shop/db-0", &again, &json!({})), addresses);

    // What the runtime fills in: the pod's annotations, and addresses.
    let (asked, fixed) = (Namespace::sandbox(), Namespace::sandbox());
    node.add("lan100", "shop/web-0", &asked, &annotation("pool", "lan"));
    assert_eq!(pool_of(&host, "shop/web-0"), "lan");
    let fills = json!({ "ips": ["10.0.0.200/22"] });
    assert_eq!(node.add("lan100", "shop/web-1", &fixed, &fills), ["10.0.0.200/22"]);
    let by_annotation = Namespace::sandbox();
    let fills = annotation("ip", "10.0.2.9");
    assert_eq!(node.add("lan100", "other/x", &by_annotation, &fills), ["10.0.2.9/22"]);

    // GC comes to a main plugin and goes no further: its word that nothing is in use ends no lease.
    let held = ground::leases(&host).len();
    let gc = Call::gc(&host).plugin("macvlan", Plugins::Current).inside(&inside).field("master", "eth0");
    gc.field("cni.dev/valid-attachments", json!([])).run().is_silent();
    assert_eq!(ground::leases(&host).len(), held);

    // Dual stack: both or none.
    let relay = Namespace::sandbox();
    let addresses = node.add("lan100", "media/relay-0", &relay, &json!({}));
    assert!(addresses[0].starts_with("10.0.0.") && addresses[1].starts_with("fd00:9::"), "{addresses:?}");
}

#[test]
fn the_bridge_network_runs() {
    require!(Part::Root, Part::Program("arping"), Part::Etcd(Version::V36), Part::Plugins(Plugins::Current));
    let (etcd, host) = site();
    let lan = Lan::new();
    let (inside, elsewhere) = (lan.node("n1"), lan.node("n2"));
    let _tunnel = Tunnel::open(&inside, etcd.address(0));
    let node = Node::new(&inside, &host);
    // br0 is the node's, with the network card as a port of it.
    inside.ip("link add br0 type bridge");
    inside.ip("link set br0 up");
    inside.ip("link set eth0 master br0");
    node.network("10-lan200.conflist", &example("bridge.conflist"));
    let sandbox = Namespace::sandbox();
    let addresses = node.add("lan200", "shop/web-0", &sandbox, &json!({}));
    assert!(elsewhere.hears("eth0", bare(&addresses[0])));
    node.del("lan200", "shop/web-0", &sandbox);
    let fixed = Namespace::sandbox();
    let fills = json!({ "ips": ["10.0.0.201/22"] });
    assert_eq!(node.add("lan200", "shop/web-1", &fixed, &fills), ["10.0.0.201/22"]);
}

#[test]
fn the_ptp_network_runs() {
    require!(Part::Root, Part::Program("arping"), Part::Etcd(Version::V36), Part::Plugins(Plugins::Current));
    let (etcd, host) = site();
    let inside = Lan::new().node("n1");
    let _tunnel = Tunnel::open(&inside, etcd.address(0));
    let node = Node::new(&inside, &host);
    node.network("10-routed.conflist", &example("ptp.conflist"));
    let sandbox = Namespace::sandbox();
    let addresses = node.add("routed", "shop/web-0", &sandbox, &json!({}));
    assert!(addresses[0].starts_with("10.64.1."), "rack a: {addresses:?}");
    let route = inside.ip(&format!("route get {}", bare(&addresses[0])));
    let mut words = route.split_whitespace().skip_while(|word| *word != "dev");
    let link = words.nth(1).unwrap();
    assert!(inside.hears(link, bare(&addresses[0])), "{route}");
    node.del("routed", "shop/web-0", &sandbox);
}

#[test]
fn the_network_of_multus_runs() {
    require!(Part::Root, Part::Etcd(Version::V36), Part::Plugins(Plugins::Current));
    let documents = serde_saphyr::from_multiple::<Value>(&example("multus.yaml")).unwrap();
    let [attachment, pod] = &documents[..] else { panic!("{documents:?}") };
    let mut config: Value = serde_json::from_str(attachment["spec"]["config"].as_str().unwrap()).unwrap();
    let annotations = &pod["metadata"]["annotations"];
    let selected = annotations["k8s.v1.cni.cncf.io/networks"].as_str().unwrap();
    let selected: Value = serde_json::from_str(selected).unwrap();
    assert_eq!(selected[0]["name"], attachment["metadata"]["name"]);
    // As Multus does: cni-args of the selection become args.cni of the delegate.
    config["args"] = json!({ "cni": selected[0]["cni-args"] });

    let (etcd, host) = site();
    let inside = Lan::new().node("n1");
    let _tunnel = Tunnel::open(&inside, etcd.address(0));
    let sandbox = Namespace::sandbox();
    let call = |verb: fn(&HostFile) -> Call| {
        let call = verb(&host).plugin("macvlan", Plugins::Current).inside(&inside).sandbox(&sandbox);
        call.pod("shop/web-0").ifname("net1").stdin(config.to_string())
    };
    let asked = selected[0]["cni-args"]["ips"][0].as_str().unwrap();
    assert_eq!(call(Call::add).run().addresses(), [format!("{asked}/22")]);
    assert_eq!(sandbox.addresses("net1"), [format!("{asked}/22")]);
    call(Call::del).run().is_silent();
    assert!(sandbox.interfaces().is_empty());
}

#[test]
fn the_host_file_of_an_etcd_passes_the_doctor() {
    require!(Part::Etcd(Version::V36));
    let (_etcd, host) = site();
    let doctor = Cli::new(&host).args(["doctor"]).run();
    assert_eq!(doctor.code(), Some(0), "{}", doctor.stdout());
    assert!(doctor.stdout().contains("n1 (host file)"));
}

/// `host-local.json` with its paths in a folder of this run.
fn local_host() -> HostFile {
    let host = HostFile::local();
    let mut document: Value = serde_json::from_str(&example("host-local.json")).unwrap();
    assert_eq!(document["store"]["local"], "/var/lib/leasehold/store");
    document["store"]["local"] = json!(host.folder().join("store"));
    document["log"]["file"] = json!(host.folder().join("leasehold.log"));
    document["stateDir"] = json!(host.state());
    host.write(&document.to_string());
    host
}

#[test]
fn the_host_file_of_one_host_needs_no_etcd() {
    let host = local_host();
    let call = |verb: fn(&HostFile) -> Call| verb(&host).network("podman").ipam("subnet", "10.88.0.0/16");
    assert!(call(Call::add).run().addresses()[0].starts_with("10.88."));
    call(Call::del).run().is_silent();
    let doctor = Cli::new(&host).args(["doctor"]).run();
    assert!(doctor.stdout().contains("local, "), "{}", doctor.stdout());
}

#[test]
fn the_pools_serve_whom_they_say() {
    require!(Part::Etcd(Version::V36));
    let (_etcd, host) = site();
    let case = |network: &str, pod: &str, pool: &str| {
        Call::add(&host).network(network).pod(pod).container(&pod.replace('/', "-")).run().result();
        assert_eq!(pool_of(&host, pod), pool, "{pod} on {network}");
    };
    case("lan100", "shop/db-0", "shop-db");
    case("lan100", "shop/web-7d9c4f6b5d-x7k2p", "shop");
    case("lan200", "other/web-0", "lan");
    case("lan100", "media/relay-0", "media");
    case("routed", "other/api-0", "routed");
    let other = host.node("n2").with("labels", json!({ "rack": "b" }));
    Call::add(&other).network("routed").pod("other/api-1").container("c9").run().result();
    assert_eq!(pool_of(&host, "other/api-1"), "routed-b");
    // Once applied, there is nothing to change.
    let pools = root().join("config-examples/pools");
    let same =
        Cli::new(&host).args(["pool".as_ref(), "diff".as_ref(), "-f".as_ref(), pools.as_os_str()]).run();
    assert_eq!(same.code(), Some(0), "{}", same.stdout());
}

/// Of every user that the roles script makes here.
pub(crate) const PASSWORD: &str = "sesame";

/// The roles script with this etcd's etcdctl.
pub(crate) fn make_roles(etcd: &Etcd, version: Version) -> Finished {
    let folder = version.program("etcdctl").parent().unwrap().to_owned();
    let mut command = Command::new("/bin/bash");
    command.env_clear().arg(root().join("config-examples/etcd-roles")).args(["--users", "prod-a"]);
    command.envs(["NODE_PASSWORD", "REAPER_PASSWORD", "ADMIN_PASSWORD"].map(|name| (name, PASSWORD)));
    command.env("PATH", std::env::join_paths([folder, "/usr/bin".into(), "/bin".into()]).unwrap());
    let etcdctl = etcd.etcdctl(&etcd.endpoints().join(","));
    command.envs(etcdctl.get_envs().filter_map(|(name, value)| Some((name, value?))));
    run(&mut command, b"")
}

/// Everything that a node does in the store. False if something of it was not done.
fn node_works(node: &HostFile, admin: &HostFile) -> bool {
    let call = |verb: fn(&HostFile) -> Call, pod: &str, container: &str| {
        verb(node).pod(pod).container(container).run().0.code() == Some(0)
    };
    let add = |pod: &str, container: &str| call(Call::add, pod, container);
    let del = |pod: &str, container: &str| call(Call::del, pod, container);
    let state = |pod: &str| {
        Cli::new(admin).args(["lease", "list", "--no-headers", "-n", pod]).run().stdout().to_owned()
    };
    let web = "web/web-7d9c4f6b5d-x7k2p";
    // A sticky pod: first, again, given back and held.
    let mut done = add("db/db-0", "c1") && add("db/db-0", "c2") && del("db/db-0", "c2");
    done &= state("db").contains(" held ");
    // Another: given back and released, from memory of the store as it was and as it is.
    done &= add(web, "c3") && del(web, "c3");
    done &= state("web").is_empty();
    // The store went back: the node is the first to see it, and freezes it.
    let seen = node.state().join("store.json");
    let Ok(text) = fs::read_to_string(&seen) else { return false };
    let mut sight: Value = serde_json::from_str(&text).unwrap();
    sight["revision"] = json!(1_000_000_000);
    sight.as_object_mut().unwrap().shift_remove("sum");
    fs::write(&seen, sight.to_string()).unwrap();
    done &= !add(web, "c4") && Cli::new(admin).args(["thaw"]).run().stdout() == "store thawed\n";
    fs::remove_file(&seen).unwrap();
    // What the store did not take is in the journal, and would be taken later.
    for entry in fs::read_dir(node.state().join("journal")).into_iter().flatten().flatten() {
        done = false;
        fs::remove_file(entry.path()).unwrap();
    }
    done
}

/// What giving back takes: to read everything, and to end a bound lease and a held one.
fn reaper_works(node: &HostFile, admin: &HostFile, reaper: &HostFile) -> bool {
    let call = |verb: fn(&HostFile) -> Call, pod: &str, container: &str| {
        verb(node).pod(pod).container(container).run().0.code() == Some(0)
    };
    assert!(call(Call::add, "web/web-7d9c4f6b5d-x7k2p", "c7") && call(Call::add, "db/db-1", "c8"));
    assert!(call(Call::del, "db/db-1", "c8"));
    let cli = |host: &HostFile, line: &str| Cli::new(host).line(line).run().code() == Some(0);
    let mut done = ["pool list", "cluster list", "check"].iter().all(|line| cli(reaper, line));
    done &= cli(reaper, "lease release web/web-7d9c4f6b5d-x7k2p --force");
    done &= cli(reaper, "lease release db/db-1");
    // For the next time.
    for line in ["lease release web/web-7d9c4f6b5d-x7k2p --force", "lease release db/db-1"] {
        cli(admin, line);
    }
    done
}

fn roles_are_what_is_needed(version: Version) {
    let etcd = Etcd::with(version).auth().start();
    for _ in 0..2 {
        make_roles(&etcd, version).success();
    }
    let as_user = |user: &str| {
        let store = json!({ "endpoints": etcd.endpoints(), "username": user, "password": PASSWORD });
        HostFile::on(&etcd).with("store", json!({ "etcd": store }))
    };
    let admin = as_user("leasehold-admin");
    let node = as_user("leasehold-node-prod-a");
    let reaper = as_user("leasehold-reaper-prod-a");
    let cli = |line: &str| Cli::new(&admin).line(line).run();
    cli("cluster add prod-a --uid 11111111-2222-4333-8444-555555555555").success();
    cli("pool create all --network lan100 --subnet 10.0.0.0/22 --serves db/db --serves web/*").success();
    assert!(node_works(&node, &admin));

    // Nothing of it can be spared.
    let role = "leasehold-node-prod-a";
    let granted = [
        ("meta", false),
        ("clusters/prod-a", false),
        ("pools/", false),
        ("serves/", false),
        ("addresses/", true),
        ("attachments/prod-a/", true),
        ("frozen", true),
        ("leases/prod-a/", true),
        ("released/", true),
    ];
    for (key, writes) in granted {
        let key = format!("/leasehold/v1/{key}");
        let prefix = format!("--prefix={}", key.ends_with('/'));
        etcd.ctl(&["role", "revoke-permission", &prefix, role, &key]).success();
        assert!(!node_works(&node, &admin), "{key} is not needed");
        if writes {
            etcd.ctl(&["role", "grant-permission", &prefix, role, "read", &key]).success();
            assert!(!node_works(&node, &admin), "{key} need not be written");
        }
        make_roles(&etcd, version).success();
        assert!(node_works(&node, &admin), "after {key}");
    }

    // Nor may it do more.
    let put = |role: &str, key: &str| {
        let mut put = Command::new(version.program("etcdctl"));
        put.env_clear().env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", etcd.endpoints().join(","));
        let key = format!("/leasehold/v1/{key}");
        run(
            put.args([&format!("--user={role}:{PASSWORD}"), "put", &key, r#"{"v":1,"uid":"11111111-2222"}"#]),
            b"",
        )
    };
    for key in ["pools/x", "serves/x", "meta", "clusters/prod-a", "leases/prod-b/x", "attachments/prod-b/x"] {
        assert!(put(role, key).stderr().contains("permission denied"), "{key}");
    }

    // With these rights an installer finds its cluster, and what it may not read is no API server's.
    etcd.put("/registry/pods/shop/db-0", "{}");
    let (secret, machine) = (Folder::new(), Folder::new());
    fs::write(secret.path().join("username"), "leasehold-node-prod-a").unwrap();
    fs::write(secret.path().join("password"), PASSWORD).unwrap();
    let mut install = Command::new(leasehold());
    install
        .env_clear()
        .args(["install", "--cluster=prod-a", "--node=n1", "--endpoints"])
        .arg(etcd.endpoints().join(","));
    install.arg("--host-root").arg(machine.path()).arg("--secret").arg(secret.path());
    run(&mut install, b"").success();
    run(install.arg("--uninstall"), b"").success();

    // The reaper: what it does to a lease can be done by hand as its user. (Its own runs are tested with it.)
    let role = "leasehold-reaper-prod-a";
    assert!(reaper_works(&node, &admin, &reaper));
    for (key, writes) in [
        ("", false),
        ("addresses/", true),
        ("attachments/prod-a/", true),
        ("leases/prod-a/", true),
        ("released/", true),
    ] {
        let key = format!("/leasehold/v1/{key}");
        etcd.ctl(&["role", "revoke-permission", "--prefix=true", role, &key]).success();
        if writes {
            etcd.ctl(&["role", "grant-permission", "--prefix=true", role, "read", &key]).success();
        }
        // etcd 3.4 asks for no right of what a transaction inside a transaction does.
        let asked =
            version == Version::V36 || !["addresses/", "released/"].iter().any(|end| key.ends_with(end));
        assert_eq!(reaper_works(&node, &admin, &reaper), !asked, "{key} is not needed");
        make_roles(&etcd, version).success();
        assert!(reaper_works(&node, &admin, &reaper), "after {key}");
    }
    put(role, "clusters/prod-a").success();
    for key in ["pools/x", "serves/x", "meta", "clusters/prod-b", "leases/prod-b/x", "attachments/prod-b/x"] {
        assert!(put(role, key).stderr().contains("permission denied"), "{key}");
    }
    let role = "leasehold-node-prod-a";

    // What a person does on the node, neither; a reaper has just been there.
    let key = "/leasehold/v1/clusters/prod-a";
    let mut record: Value = serde_json::from_str(&etcd.get(key).unwrap()).unwrap();
    let now = run(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]), b"");
    record["lastReap"] = json!(now.success().trim());
    etcd.put(key, &record.to_string());
    for line in ["doctor", "flush", "lease list --cluster prod-a --network nowhere"] {
        let finished = Cli::new(&node).line(line).run();
        assert_eq!(finished.code(), Some(0), "{line}: {}{}", finished.stdout(), finished.stderr());
    }

    // What an administrator does, needs no root of etcd.
    for line in ["freeze", "thaw", "check", "lease release db/db-0", "pool delete all"] {
        assert_eq!(cli(line).code(), Some(0), "{line}");
    }

    // What somebody granted beside is noticed.
    etcd.ctl(&["role", "grant-permission", role, "read", "/registry/secrets"]).success();
    let noticed = make_roles(&etcd, version);
    assert_eq!(noticed.code(), Some(1));
    assert!(noticed.stderr().contains("> read /registry/secrets"), "{}", noticed.stderr());
}

#[test]
fn b138_the_roles_are_what_is_needed_on_etcd_3_4() {
    require!(Part::Etcd(Version::V34));
    roles_are_what_is_needed(Version::V34);
}

#[test]
fn b138_the_roles_are_what_is_needed_on_etcd_3_6() {
    require!(Part::Etcd(Version::V36));
    roles_are_what_is_needed(Version::V36);
}

// ---- README --------------------------------------------------------------------------------------------------------

/// A block between fences, and the comment before it that says how it is tested.
pub(crate) struct Block {
    pub(crate) line: usize,
    pub(crate) how: String,
    pub(crate) text: String,
}

pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let (mut found, mut how, mut open) = (Vec::new(), String::new(), None);
    for (number, line) in text.lines().enumerate() {
        if let Some(rest) = line.strip_prefix("<!-- test: ") {
            how = rest.trim_end_matches("-->").trim().to_owned();
        } else if line.starts_with("```") {
            open = match open.take() {
                None => Some(Block { line: number + 1, how: std::mem::take(&mut how), text: String::new() }),
                Some(block) => {
                    found.push(block);
                    None
                }
            };
        } else if let Some(block) = &mut open {
            block.text.push_str(line);
            block.text.push('\n');
        }
    }
    assert!(open.is_none() && how.is_empty(), "README: {how}");
    found
}

/// What differs from run to run: ages, identities, times, hardware addresses; and how wide a column is.
pub(crate) fn steady(line: &str) -> String {
    let one = |word: &str| {
        let core = word.trim_matches(|c: char| "()\",;:".contains(c));
        let hex = |part: &str| part.chars().all(|c| c.is_ascii_hexdigit());
        let age = core.len() > 1
            && core.ends_with(['s', 'm', 'h', 'd'])
            && core[..core.len() - 1].parse::<u32>().is_ok();
        let mac = core.len() == 17 && core.split(':').count() == 6 && core.split(':').all(hex);
        let uuid = core.len() == 36 && core.split('-').count() == 5 && core.split('-').all(hex);
        let time = core.len() > 18 && core.ends_with('Z') && core.as_bytes()[10] == b'T';
        let kind = [(age, "AGE"), (mac, "MAC"), (uuid, "UUID"), (time, "TIME")];
        match kind.into_iter().find(|(is, _)| *is) {
            Some((_, name)) => word.replace(core, name),
            None => word.to_owned(),
        }
    };
    line.split_whitespace().map(one).collect::<Vec<_>>().join(" ")
}

/// A cluster and its pools, where the README's commands run one after the other.
struct Reader {
    host: HostFile,
    programs: Folder,
    nodes: BTreeMap<String, HostFile>,
    _etcd: Etcd,
}

impl Reader {
    fn new() -> Self {
        let etcd = Etcd::start(Version::V34);
        let host = HostFile::on(&etcd);
        let programs = Folder::new();
        symlink(leasehold(), programs.path().join("leasehold")).unwrap();
        Self { host, programs, nodes: BTreeMap::new(), _etcd: etcd }
    }

    /// A line of a shell in the repository; paths of the machine are below a folder of this run.
    fn shell(&self, line: &str) -> Finished {
        let built = "target/x86_64-unknown-linux-gnu/release/leasehold";
        let mut line = line.replace(built, leasehold().to_str().unwrap());
        for folder in ["/opt/cni/bin", "/etc/cni/net.d", "/usr/local/bin"] {
            let here = self.host.folder().join("machine").join(&folder[1..]);
            fs::create_dir_all(&here).unwrap();
            line = line.replace(folder, here.to_str().unwrap());
        }
        let mut command = Command::new("/bin/bash");
        command.env_clear().current_dir(root()).args(["-euc", &line]);
        let path =
            std::env::join_paths([self.programs.path(), Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
        run(command.env("PATH", path).env("LEASEHOLD_CONFIG", self.host.path()), b"")
    }

    /// `add shop/db-0 n1`, `del shop/db-0 n1`: what happens on the nodes meanwhile.
    fn event(&mut self, event: &str) {
        let words: Vec<_> = event.split_whitespace().collect();
        let [verb, pod, node] = words[..] else { panic!("{event}") };
        let host = self.nodes.entry(node.to_owned()).or_insert_with(|| self.host.node(node));
        let call = |verb: fn(&HostFile) -> Call| verb(host).pod(pod).container(&pod.replace('/', "-")).run();
        match verb {
            "add" => drop(call(Call::add).result()),
            "refuse" => drop(call(Call::add).error(11)),
            "del" => call(Call::del).is_silent(),
            other => panic!("{other}"),
        }
    }

    /// Some node's log has this line, at whatever time.
    fn logged(&self, block: &Block) {
        let timeless = |line: &str| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            line["ts"] = Value::Null;
            line
        };
        let logs: Vec<String> = self.nodes.values().map(HostFile::log).collect();
        let said: Vec<Value> = logs.iter().flat_map(|log| log.lines()).map(timeless).collect();
        for line in block.text.lines() {
            assert!(said.contains(&timeless(line)), "README:{}: {said:?}", block.line);
        }
    }

    /// Runs what stands after `$ ` and compares what was said.
    fn console(&self, block: &Block) {
        let mut lines = block.text.lines().peekable();
        while let Some(line) = lines.next() {
            let mut command =
                line.strip_prefix("$ ").unwrap_or_else(|| panic!("README:{}: {line}", block.line)).to_owned();
            while command.ends_with('\\') {
                command.truncate(command.len() - 1);
                command.push_str(lines.next().unwrap().trim_start());
            }
            let mut expected = Vec::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with("$ ")) {
                expected.push(steady(line));
            }
            let finished = self.shell(&command);
            let said = format!("{}{}", finished.stdout(), finished.stderr());
            let said: Vec<_> = said.lines().map(steady).filter(|line| !line.is_empty()).collect();
            expected.retain(|line| !line.is_empty());
            assert_eq!(
                said,
                expected,
                "README:{}: {command}\n{}{}",
                block.line,
                finished.stdout(),
                finished.stderr()
            );
        }
    }
}

fn demo() -> String {
    let mut command = Command::new(root().join("scripts/demo"));
    command.env("LEASEHOLD_BIN", leasehold());
    let finished = run(&mut command, b"");
    finished.success().to_owned()
}

/// A host-local configuration with its type changed.
fn migrated(text: &str) {
    let host = local_host();
    let document: Value = serde_json::from_str(text).unwrap();
    let ranges = document["ipam"]["ranges"][0][0]["subnet"].as_str().unwrap();
    let answer = Call::add(&host).stdin(text).run();
    let network = ranges.split('.').next().unwrap();
    assert!(answer.addresses()[0].starts_with(network), "{answer:?}");
}

#[test]
fn the_readme_says_what_happens() {
    require!(Part::Root, Part::Program("arping"), Part::Etcd(Version::V34), Part::Plugins(Plugins::Debian));
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    let mut reader = Reader::new();
    for block in blocks(&text) {
        let line = block.line;
        let (kind, rest) = block.how.split_once([' ', ';']).unwrap_or((&block.how, ""));
        match kind {
            "file" => assert_eq!(block.text, example(rest.trim()), "README:{line}: {rest}"),
            "demo" => {
                let shown = demo();
                let mut said = shown.lines().map(steady);
                for line in block.text.lines().filter(|line| !line.trim().is_empty()).map(steady) {
                    assert!(
                        said.any(|said| said == line),
                        "the demo does not say, in this order: {line}\n{shown}"
                    );
                }
            }
            "shell" => {
                for command in block.text.lines() {
                    reader.shell(command.strip_prefix("$ ").unwrap()).success();
                }
            }
            "console" => {
                rest.split(';')
                    .map(str::trim)
                    .filter(|event| !event.is_empty())
                    .for_each(|event| reader.event(event));
                reader.console(&block);
            }
            "migrated" => migrated(&block.text),
            "programs" => {
                for program in block.text.lines().filter_map(|line| line.split_whitespace().next()) {
                    assert!(root().join(program).is_file(), "README:{line}: {program}");
                }
            }
            "cluster" => {} // manifests.rs runs it on a Kubernetes API
            "restore" => {} // so does failures/restore.rs
            "log" => reader.logged(&block),
            other => panic!("README:{line}: a block must say how it is tested, not {other:?}"),
        }
    }
}

#[test]
fn what_the_documents_name_is_there() {
    for document in ["README.md", "CHANGELOG.md"] {
        let text = fs::read_to_string(root().join(document)).unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
        for link in links.filter(|link| !link.contains("://") && !link.starts_with('#')) {
            let path: PathBuf = root().join(link.split('#').next().unwrap());
            assert!(path.exists(), "{document}: {link}");
        }
    }
}

/// All sources below a folder.
fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

/// `b118b` of `b118b_a_week_in_which…`.
fn case_id(word: &str) -> Option<&str> {
    let number = word.strip_prefix('b')?;
    let digits = number.trim_end_matches('b');
    (digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(word)
}

#[test]
fn each_field_case_is_a_test_of_its_name() {
    let mut text = String::new();
    for folder in ["src", "integration"] {
        sources(&root().join(folder), &mut text);
    }
    // Only what an attribute makes a test of.
    let marked = ["#[test]", "#[tokio::test"].into_iter().flat_map(|mark| text.split(mark).skip(1));
    let names = marked.filter_map(|rest| rest.split_once("fn ")?.1.split('(').next());
    let tests: BTreeSet<&str> = names.flat_map(|name| name.split('_').filter_map(case_id)).collect();
    let listed = fs::read_to_string(root().join("integration/field-cases.md")).unwrap();
    let listed = listed.lines().filter_map(|line| line.strip_prefix("- ")?.split(':').next());
    let listed: BTreeSet<String> = listed.map(str::to_lowercase).collect();
    assert_eq!(listed.len(), 109);
    assert_eq!(tests, listed.iter().map(String::as_str).collect());
}
