//! The real main plugins, Debian's and the current ones, with the built program as their IPAM plugin, in namespaces.

use std::{
    fs,
    net::IpAddr,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use serde_json::{Value, json};

use crate::support::{
    call::{Answer, Call},
    door::Door,
    folder::Folder,
    ground,
    host::HostFile,
    lan::{Host, Lan, Namespace},
    parts::{Part, Plugins, Version, leasehold, require},
    process::{Finished, run},
    proxy::{Fault, Proxy},
};

/// A node on a LAN, from which a store can be reached.
struct Bed {
    host: HostFile,
    node: Host,
    _lan: Lan,
    _door: Door,
}

impl Bed {
    fn new() -> Self {
        let host = ground::on_etcd().with("inlineRanges", "allow");
        let lan = Lan::new();
        let node = lan.node("n1");
        let door = Door::to(&node, &ground::address_of(&host));
        Self { host, node, _lan: lan, _door: door }
    }

    /// Both families, a default route each, and a route beyond a router.
    fn pool(&self) {
        let document = json!({
            "name": "lan", "networks": ["lan100"], "serves": ["*/*"], "coolDown": "0s",
            "ranges": [
                { "subnet": "10.0.0.0/24", "start": "10.0.0.10", "end": "10.0.0.20", "gateway": "10.0.0.254" },
                { "subnet": "fd00::/64", "start": "fd00::10", "end": "fd00::20", "gateway": "fd00::fe" },
            ],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "10.50.0.0/16", "gw": "10.0.0.253" }, { "dst": "::/0" }],
        });
        ground::pool(&self.host, document);
    }

    fn call(&self, verb: &str, main: Main, plugins: Plugins, sandbox: &Namespace) -> Call {
        let call =
            Call::command(verb, &self.host).plugin(main.kind(), plugins).inside(&self.node).sandbox(sandbox);
        main.fields().into_iter().fold(call, |call, (name, value)| call.field(name, value))
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Main {
    Macvlan,
    Bridge,
    DefaultBridge,
    Ptp,
    HostDevice,
}

impl Main {
    fn kind(self) -> &'static str {
        match self {
            Self::Macvlan => "macvlan",
            Self::Bridge | Self::DefaultBridge => "bridge",
            Self::Ptp => "ptp",
            Self::HostDevice => "host-device",
        }
    }

    fn fields(self) -> Vec<(&'static str, Value)> {
        match self {
            Self::Macvlan => vec![("master", "eth0".into()), ("mode", "bridge".into())],
            Self::Bridge => vec![("bridge", "br0".into()), ("isGateway", true.into())],
            Self::DefaultBridge => vec![("bridge", "br1".into()), ("isDefaultGateway", true.into())],
            Self::Ptp => Vec::new(),
            Self::HostDevice => vec![("device", "dev0".into())],
        }
    }

    /// What it does not make itself.
    fn prepare(self, node: &Namespace) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if self == Self::HostDevice {
            // a peer whose sandbox went away goes a moment later
            let peer = format!("peer{}", NEXT.fetch_add(1, Ordering::Relaxed));
            node.ip(&format!("link add dev0 type veth peer name {peer}"));
            node.ip(&format!("link set {peer} up"));
        }
    }

    fn clean(self, node: &Namespace) {
        if self == Self::HostDevice {
            node.ip("link del dev0");
        }
    }
}

fn versions(plugins: Plugins) -> &'static [&'static str] {
    const ALL: [&str; 6] = ["0.1.0", "0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
    match plugins {
        Plugins::Debian => &ALL[..5],
        Plugins::Current => &ALL,
    }
}

fn checks(version: &str) -> bool {
    version >= "0.4.0"
}

/// The gateways of the default routes in a sandbox, and of the route beyond the router.
fn routes(sandbox: &Namespace) -> Vec<String> {
    let mut out = Vec::new();
    for family in ["-4", "-6"] {
        let answer: Value = serde_json::from_str(&sandbox.ip(&format!("{family} -json route show"))).unwrap();
        for route in answer.as_array().unwrap() {
            if let (Some(dst), Some(gateway)) = (route["dst"].as_str(), route["gateway"].as_str()) {
                out.push(format!("{dst} via {gateway}"));
            }
        }
    }
    out.sort();
    out
}

fn lives_under(main: Main) {
    require!(
        Part::Root,
        Part::Etcd(Version::V36),
        Part::Plugins(Plugins::Debian),
        Part::Plugins(Plugins::Current)
    );
    let bed = Bed::new();
    bed.pool();
    for plugins in Plugins::BOTH {
        let sandbox = Namespace::sandbox();
        for version in versions(plugins) {
            let what = format!("{main:?} {plugins:?} {version}");
            main.prepare(&bed.node);
            let call =
                |verb: &str| bed.call(verb, main, plugins, &sandbox).pod("shop/web-1").version(version);
            let added = call("ADD").run();
            let result = added.result();
            assert_eq!(result["cniVersion"], *version, "{what}");
            let addresses = added.addresses();
            assert_eq!(addresses.len(), 2, "{what}");
            assert!(
                addresses[0].starts_with("10.0.0.1") || addresses[0] == "10.0.0.20/24",
                "{what}: {addresses:?}"
            );
            assert!(addresses[0].ends_with("/24"), "{what}: {addresses:?}");
            assert!(
                addresses[1].starts_with("fd00::") && addresses[1].ends_with("/64"),
                "{what}: {addresses:?}"
            );
            assert_eq!(sandbox.addresses("eth0"), addresses, "{what}");
            let wanted = ["10.50.0.0/16 via 10.0.0.253", "default via 10.0.0.254", "default via fd00::fe"];
            let seen = routes(&sandbox);
            for route in wanted {
                assert!(seen.iter().any(|seen| seen == route), "{what}: {seen:?}");
            }
            let lease = ground::only_lease(&bed.host);
            let leased: Vec<_> = lease.addresses.iter().map(|held| held.address.to_string()).collect();
            assert!(
                addresses.iter().zip(&leased).all(|(cidr, ip)| cidr.starts_with(&format!("{ip}/"))),
                "{what}"
            );
            if checks(version) {
                call("CHECK").field("prevResult", result.clone()).run().is_silent();
                call("DEL").field("prevResult", result).run().is_silent();
            } else {
                assert!(call("CHECK").run().error_text(1).contains("does not allow CHECK"), "{what}");
                call("DEL").run().is_silent();
            }
            assert!(sandbox.interfaces().is_empty(), "{what}: {:?}", sandbox.interfaces());
            ground::is_empty(&bed.host);
            let again = call("DEL").run();
            if main != Main::HostDevice {
                again.is_silent(); // host-device finds no interface, and never asks us
            }
            main.clean(&bed.node);
            ground::is_empty(&bed.host);
        }
    }
}

#[test]
fn point_74_macvlan() {
    lives_under(Main::Macvlan);
}

#[test]
fn point_74_bridge() {
    lives_under(Main::Bridge);
}

#[test]
fn point_74_77_bridge_that_is_the_default_gateway() {
    lives_under(Main::DefaultBridge);
}

#[test]
fn point_74_ptp() {
    lives_under(Main::Ptp);
}

#[test]
fn point_74_host_device() {
    lives_under(Main::HostDevice);
}

#[test]
fn an_ipv6_router_is_known_by_its_link_local_address() {
    require!(
        Part::Root,
        Part::Etcd(Version::V36),
        Part::Plugins(Plugins::Debian),
        Part::Plugins(Plugins::Current)
    );
    let bed = Bed::new();
    let document = json!({
        "name": "six", "networks": ["lan100"], "serves": ["*/*"], "coolDown": "0s",
        "ranges": [{ "subnet": "fd00::/64", "start": "fd00::10", "end": "fd00::20", "gateway": "fe80::1" }],
        "routes": [{ "dst": "::/0" }],
    });
    ground::pool(&bed.host, document);
    for plugins in Plugins::BOTH {
        // a bridge with isGateway has a link-local address of its own, and refuses a second one
        for main in [Main::Macvlan, Main::Ptp] {
            let sandbox = Namespace::sandbox();
            let call = |verb: &str| bed.call(verb, main, plugins, &sandbox).pod("shop/web-1");
            let result = call("ADD").run().result();
            let seen = routes(&sandbox);
            assert!(
                seen.iter().any(|route| route == "default via fe80::1"),
                "{main:?} {plugins:?}: {seen:?}"
            );
            call("CHECK").field("prevResult", result).run().is_silent();
            call("DEL").run().is_silent();
            ground::is_empty(&bed.host);
        }
    }
}

#[test]
fn point_76_b033_a_later_step_that_fails_leaves_no_lease() {
    require!(
        Part::Root,
        Part::Etcd(Version::V36),
        Part::Plugins(Plugins::Debian),
        Part::Plugins(Plugins::Current)
    );
    let bed = Bed::new();
    bed.pool();
    let unreachable =
        json!({ "type": "leasehold", "routes": [{ "dst": "10.60.0.0/16", "gw": "192.168.99.1" }] });
    for plugins in Plugins::BOTH {
        for main in [Main::Macvlan, Main::Bridge, Main::Ptp, Main::HostDevice] {
            let sandbox = Namespace::sandbox();
            main.prepare(&bed.node);
            let call =
                bed.call("ADD", main, plugins, &sandbox).pod("shop/web-1").field("ipam", unreachable.clone());
            let answer = call.run();
            assert!(answer.0.stdout().contains("unreachable"), "{main:?} {plugins:?}: {answer:?}");
            ground::is_empty(&bed.host);
            assert!(bed.host.log().contains("lease.bound"), "it had been leased");
        }
        let sandbox = Namespace::sandbox();
        let missing = bed.call("ADD", Main::Macvlan, plugins, &sandbox).field("master", "no-such");
        let no_vlan = bed.call("ADD", Main::Bridge, plugins, &sandbox).field("vlan", 5000);
        for call in [missing, no_vlan] {
            assert_eq!(call.run().0.code(), Some(1));
            ground::is_empty(&bed.host);
        }
    }
}

#[test]
fn point_75_our_errors_come_through_whole() {
    require!(
        Part::Root,
        Part::Etcd(Version::V36),
        Part::Plugins(Plugins::Debian),
        Part::Plugins(Plugins::Current)
    );
    let bed = Bed::new();
    let document = json!({
        "name": "one", "networks": ["lan100"], "serves": ["*/*"],
        "ranges": [{ "subnet": "10.0.0.0/24", "start": "10.0.0.10", "end": "10.0.0.10" }],
    });
    ground::pool(&bed.host, document);
    Call::add(&bed.host).pod("shop/first-0").container("first").run().result();
    let ours = Call::add(&bed.host).pod("shop/web-1").run().error(11);
    assert_eq!(ours["msg"], "pool one is full (1 of 1)");
    for plugins in Plugins::BOTH {
        for main in [Main::Macvlan, Main::Bridge, Main::Ptp] {
            let sandbox = Namespace::sandbox();
            let theirs = bed.call("ADD", main, plugins, &sandbox).pod("shop/web-1").run().error(11);
            assert_eq!(
                (&theirs["msg"], &theirs["details"]),
                (&ours["msg"], &ours["details"]),
                "{main:?} {plugins:?}"
            );
        }
    }
    // STATUS is passed on since 1.6
    let proxy = Proxy::to(ground::address_of(&bed.host));
    proxy.set(Fault::Refuse);
    let asking = bed.host.node("n2").endpoints([proxy.url("http")]).with("statusChecksStore", true);
    let sandbox = Namespace::sandbox();
    let status = |host: &HostFile| {
        let call = Call::status(host).plugin("macvlan", Plugins::Current).inside(&bed.node).sandbox(&sandbox);
        call.field("master", "eth0").run()
    };
    status(&bed.host).is_silent();
    assert!(status(&asking).error_text(50).contains(&proxy.url("http")));
}

#[test]
fn b005_who_asks_us_when_the_namespace_is_gone() {
    require!(
        Part::Root,
        Part::Etcd(Version::V36),
        Part::Plugins(Plugins::Debian),
        Part::Plugins(Plugins::Current)
    );
    let bed = Bed::new();
    bed.pool();
    for plugins in Plugins::BOTH {
        for main in [Main::Macvlan, Main::Bridge, Main::Ptp, Main::HostDevice] {
            let sandbox = Namespace::sandbox();
            main.prepare(&bed.node);
            bed.call("ADD", main, plugins, &sandbox).pod("shop/web-1").run().result();
            let del = bed.call("DEL", main, plugins, &sandbox).pod("shop/web-1").env("CNI_NETNS", "");
            drop(sandbox);
            del.run().is_silent();
            if main == Main::HostDevice {
                // it says that all is well and asks nobody: the lease waits for GC or the reaper
                assert_eq!(ground::leases(&bed.host).len(), 1);
                Call::gc(&bed.host).field("cni.dev/valid-attachments", json!([])).run().is_silent();
            }
            ground::is_empty(&bed.host);
        }
    }
}

#[test]
fn a_duplicate_add_through_ptp_ends_the_lease() {
    // ptp asks us first, fails on the veth that is there, and then sends DEL for the very container: nothing that an
    // IPAM plugin sees tells this DEL from a true one. macvlan and bridge notice before they ask.
    require!(
        Part::Root,
        Part::Etcd(Version::V36),
        Part::Plugins(Plugins::Debian),
        Part::Plugins(Plugins::Current)
    );
    let bed = Bed::new();
    bed.pool();
    for plugins in Plugins::BOTH {
        for (main, left) in [(Main::Macvlan, 1), (Main::Bridge, 1), (Main::Ptp, 0)] {
            let sandbox = Namespace::sandbox();
            let call = |verb: &str| bed.call(verb, main, plugins, &sandbox).pod("shop/web-1").run();
            let first = call("ADD").addresses();
            assert_ne!(call("ADD").0.code(), Some(0));
            assert_eq!(ground::leases(&bed.host).len(), left, "{main:?} {plugins:?}");
            assert_eq!(sandbox.addresses("eth0"), first, "its pod goes on with it");
            call("DEL").is_silent();
            ground::is_empty(&bed.host);
        }
    }
}

/// cnitool in a node, with a cache folder of its own.
struct Tool<'a> {
    bed: &'a Bed,
    folder: Folder,
}

impl<'a> Tool<'a> {
    fn new(bed: &'a Bed, version: Option<&str>) -> Self {
        let folder = Folder::new();
        fs::create_dir_all(folder.path().join("net.d")).unwrap();
        fs::create_dir_all(folder.path().join("lib")).unwrap();
        let mut list = json!({
            "name": "lan100",
            "plugins": [
                { "type": "macvlan", "master": "eth0", "ipam": { "type": "leasehold" } },
                { "type": "tuning", "mtu": 1400 },
            ],
        });
        if let Some(version) = version {
            list["cniVersion"] = version.into();
        }
        fs::write(folder.path().join("net.d/lan100.conflist"), list.to_string()).unwrap();
        Self { bed, folder }
    }

    fn run(&self, verb: &str, sandbox: &Namespace) -> Finished {
        let lib = self.folder.path().join("lib");
        // libcni keeps its cache in /var/lib/cni; the machine's own is not ours to fill
        let script = format!("mount --bind {} /var/lib && exec \"$@\"", lib.display());
        let mut command = self.bed.node.command("/usr/bin/unshare");
        let ours = ipam_link(&self.folder);
        let path = std::env::join_paths([ours, Plugins::Current.folder()]).unwrap();
        command.args(["--mount", "/bin/sh", "-c", &script, "sh"]);
        command.arg(Plugins::Current.folder().join("cnitool")).args([verb, "lan100"]).arg(sandbox.path());
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("CNI_PATH", path);
        command.env("NETCONFPATH", self.folder.path().join("net.d"));
        command.env("LEASEHOLD_CONFIG", self.bed.host.path());
        command.env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1;K8S_POD_UID=u1");
        run(&mut command, b"")
    }
}

fn ipam_link(folder: &Folder) -> PathBuf {
    let path = folder.path().join("bin");
    if !path.exists() {
        fs::create_dir(&path).unwrap();
        std::os::unix::fs::symlink(leasehold(), path.join("leasehold")).unwrap();
    }
    path
}

#[test]
fn point_78_cnitool_in_every_version() {
    require!(Part::Root, Part::Etcd(Version::V36), Part::Plugins(Plugins::Current));
    let bed = Bed::new();
    bed.pool();
    let sandbox = Namespace::sandbox();
    let versions = [
        None,
        Some("0.1.0"),
        Some("0.2.0"),
        Some("0.3.0"),
        Some("0.3.1"),
        Some("0.4.0"),
        Some("1.0.0"),
        Some("1.1.0"),
    ];
    for version in versions {
        let tool = Tool::new(&bed, version);
        let named = version.unwrap_or("0.1.0");
        let added = Answer(tool.run("add", &sandbox));
        assert_eq!(added.result()["cniVersion"], named);
        assert_eq!(sandbox.addresses("eth0"), added.addresses());
        let checked = tool.run("check", &sandbox);
        if checks(named) {
            checked.success();
        } else {
            assert_ne!(checked.code(), Some(0));
        }
        if named == "1.1.0" {
            tool.run("status", &sandbox).success();
        }
        assert_eq!(ground::leases(&bed.host).len(), 1);
        tool.run("gc", &sandbox).success();
        ground::is_empty(&bed.host);
        for _ in 0..2 {
            tool.run("del", &sandbox).success();
        }
        assert!(sandbox.interfaces().is_empty());
        ground::is_empty(&bed.host);
    }
}

/// A result without what differs between two right answers: the number of an address inside its subnet, an explicit
/// gateway of a default route that is the gateway anyway, an empty `dns`.
fn shape(mut result: Value) -> Value {
    fn subnet(cidr: &mut Value) {
        let (address, length) = cidr.as_str().unwrap().split_once('/').unwrap();
        // those of the configurations here are /24 and /64
        let begin = match address.parse().unwrap() {
            IpAddr::V4(address) => format!("{:?}", &address.octets()[..3]),
            IpAddr::V6(address) => format!("{:?}", &address.segments()[..4]),
        };
        *cidr = format!("{begin}/{length}").into();
    }
    fn plain(routes: &mut Value, gateways: &[Value]) {
        for route in routes.as_array_mut().into_iter().flatten() {
            if gateways.contains(&route["gw"]) {
                route.as_object_mut().unwrap().remove("gw");
            }
        }
    }
    let gateways: Vec<Value> =
        result["ips"].as_array().into_iter().flatten().map(|ip| ip["gateway"].clone()).collect();
    for ip in result["ips"].as_array_mut().into_iter().flatten() {
        subnet(&mut ip["address"]);
    }
    for family in ["ip4", "ip6"] {
        if result[family].is_object() {
            subnet(&mut result[family]["ip"]);
            let gateway = result[family]["gateway"].clone();
            plain(&mut result[family]["routes"], &[gateway]);
        }
    }
    plain(&mut result["routes"], &gateways);
    let map = result.as_object_mut().unwrap();
    map.retain(|_, value| !value.is_null() && *value != json!({}));
    result
}

#[test]
fn a_host_local_config_moves_over_by_its_type() {
    require!(Part::Etcd(Version::V36), Part::Plugins(Plugins::Debian));
    let host = ground::on_etcd().with("inlineRanges", "allow");
    let resolv = host.folder().join("resolv.conf");
    fs::write(
        &resolv,
        "# by hand\nnameserver 10.0.0.53\nsearch lab.test svc.lab.test\noptions ndots:2\ndomain lab.test\n",
    )
    .unwrap();
    let two_sets = json!([[{ "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.20" }],
                          [{ "subnet": "fd01::/64", "gateway": "fd01::fe" }]]);
    let configs = [
        json!({ "subnet": "10.1.0.0/24" }),
        json!({ "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.20", "gateway": "10.1.0.254",
                "routes": [{ "dst": "0.0.0.0/0" }] }),
        json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }, { "subnet": "10.2.0.0/24" }]],
                "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "192.168.0.0/16", "gw": "10.1.0.3" }] }),
        json!({ "ranges": two_sets, "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }] }),
        json!({ "subnet": "10.3.0.0/24", "ranges": two_sets }),
        json!({ "subnet": "10.1.0.0/24", "resolvConf": resolv }),
        json!({ "subnet": "10.1.0.0/24", "routes": null, "ranges": null }),
        json!({ "subnet": "10.1.0.0/24", "rangeStart": "", "rangeEnd": "", "gateway": "", "resolvConf": "" }),
        json!({ "ranges": [[{ "subnet": "10.1.0.0/24", "gateway": "10.1.0.5", "rangeStart": "10.1.0.5",
                              "rangeEnd": "10.1.0.6" }]] }),
        json!({ "subnet": "10.1.0.0/30", "routes": [{ "dst": "0.0.0.0/0", "gw": "" }] }),
        // what neither takes
        json!({ "subnet": "10.1.0.5/24" }),
        json!({ "subnet": "10.1.0.0/24", "rangeStart": "10.2.0.5" }),
        json!({ "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.20", "rangeEnd": "10.1.0.10" }),
        json!({ "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.1", "rangeEnd": "10.1.0.1" }),
        json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }, { "subnet": "10.1.0.0/25" }]] }),
        json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }, { "subnet": "fd01::/64" }]] }),
        json!({ "ranges": [[]] }),
        json!({ "subnet": "10.1.0.0/24", "resolvConf": "/nonexistent" }),
    ];
    for (number, config) in configs.iter().enumerate() {
        for version in ["0.2.0", "0.3.1", "0.4.0", "1.0.0"] {
            // the same in each version: its own address does not cool down for it
            let id = format!("c{number}");
            let theirs_data = host.folder().join(format!("{id}-{version}"));
            let block = |kind: &str| {
                let mut block = config.clone();
                block["type"] = kind.into();
                block["dataDir"] = json!(theirs_data);
                block
            };
            let ours =
                Call::add(&host).container(&id).version(version).field("ipam", block("leasehold")).run();
            let mut command = Command::new(Plugins::Debian.folder().join("host-local"));
            command
                .env_clear()
                .env("CNI_COMMAND", "ADD")
                .env("CNI_CONTAINERID", &id)
                .env("CNI_IFNAME", "eth0");
            command.env("CNI_NETNS", "/none").env("CNI_PATH", "/none");
            let conf = json!({ "cniVersion": version, "name": "lan100", "ipam": block("host-local") });
            let theirs = Answer(run(&mut command, conf.to_string().as_bytes()));
            if theirs.0.code() == Some(0) {
                assert_eq!(shape(ours.result()), shape(theirs.result()), "{config} {version}");
            } else {
                assert_eq!(ours.0.code(), Some(1), "{config} {version}: {theirs:?} {ours:?}");
            }
            Call::del(&host)
                .container(&id)
                .version(version)
                .field("ipam", block("leasehold"))
                .run()
                .is_silent();
        }
    }
    ground::is_empty(&host);
    assert!(host.log().contains("dataDir"), "it is said that dataDir is ignored");
}
