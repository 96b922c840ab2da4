//! Somebody answers on an address: real strangers and forgotten sandboxes on a LAN of namespaces.

use serde_json::{Value, json};

use crate::support::{
    call::Call,
    door::Door,
    ground,
    host::HostFile,
    lan::{Host, Lan, Namespace},
    parts::{Part, Plugins, Version, require},
};

/// A node `n1` on a LAN, from which a store can be reached.
struct Bed {
    host: HostFile,
    lan: Lan,
    node: Host,
    _door: Door,
}

impl Bed {
    /// Its pool has these addresses of 10.0.0.0/24, or of fd00::/64, and these fields.
    fn new(start: &str, end: &str, fields: Value) -> Self {
        let host = ground::on_etcd();
        let subnet = if start.contains(':') { "fd00::/64" } else { "10.0.0.0/24" };
        let mut document = json!({
            "name": "lan", "networks": ["*"], "serves": ["*/*"], "coolDown": "0s",
            "ranges": [{ "subnet": subnet, "start": start, "end": end }],
        });
        document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        ground::pool(&host, document);
        let lan = Lan::new();
        let node = lan.node("n1");
        let door = Door::to(&node, &ground::address_of(&host));
        Self { host, lan, node, _door: door }
    }

    /// ADD as the macvlan plugin passes it on.
    fn add(&self, pod: &str, container: &str) -> Call {
        let call = Call::add(&self.host).inside(&self.node).field("master", "eth0");
        call.pod(pod).container(container)
    }

    /// A pod that keeps its lease, which a verdict ended while its sandbox may still be there.
    fn doubtful(&self, pod: &str) -> String {
        let sticky = json!({ "cni": { "sticky": true } });
        let address = self.add(pod, "old").field("args", sticky).run().addresses().remove(0);
        ground::give_back(&self.host, pod);
        let lease = ground::only_lease(&self.host);
        assert!(lease.unconfirmed && lease.bound().is_none());
        address
    }
}

fn without_length(cidr: &str) -> &str {
    cidr.split_once('/').unwrap().0
}

#[test]
fn a_newcomer_declines_what_a_stranger_uses() {
    require!(Part::Root, Part::Etcd(Version::V36));
    for (start, end) in [("10.0.0.10", "10.0.0.11"), ("fd00::10", "fd00::11")] {
        let bed = Bed::new(start, end, json!({}));
        let first = bed.add("shop/a-1", "a").run().addresses().remove(0);
        let second = bed.add("shop/b-1", "b").run().addresses().remove(0);
        ground::give_back(&bed.host, "shop/a-1");
        ground::give_back(&bed.host, "shop/b-1");
        let stranger = bed.lan.stranger("printer", &[&first]);
        // the longest released comes first
        let answer = bed.add("shop/c-1", "c").run();
        assert_eq!(answer.addresses(), [second.as_str()]);
        let mac = stranger.mac("eth0");
        assert_eq!(ground::declined(&bed.host, without_length(&first)), Some(mac.clone()));
        assert!(ground::released(&bed.host, without_length(&second)).is_none());
        let lease = ground::only_lease(&bed.host);
        assert!(!lease.unconfirmed);
        assert!(bed.host.log().contains("lease.declined") && bed.host.log().contains(&mac));
        let text = bed.add("shop/d-1", "d").run().error_text(11);
        assert!(text.contains("no address ready"), "it is offered again later: {text}");
    }
}

#[test]
fn of_two_families_a_stranger_has_one() {
    require!(Part::Root, Part::Etcd(Version::V36));
    let ranges = json!([
        { "subnet": "10.0.0.0/24", "start": "10.0.0.10", "end": "10.0.0.10" },
        { "subnet": "fd00::/64", "start": "fd00::10", "end": "fd00::11" },
    ]);
    let bed = Bed::new("10.0.0.10", "10.0.0.10", json!({ "ranges": ranges }));
    let both = bed.add("shop/a-1", "a").run().addresses();
    let other = if both[1] == "fd00::10/64" { "fd00::11/64" } else { "fd00::10/64" };
    // the rest of the IPv6 range is as doubtful, and was given back later
    ground::give_back(&bed.host, "shop/a-1");
    let stranger = bed.lan.stranger("printer", &[&both[1]]);
    let sticky = json!({ "cni": { "sticky": true, "ips": [without_length(&both[1])] } });
    let text = bed.add("shop/b-1", "b").field("args", sticky).run().error_text(100);
    assert!(text.contains(without_length(&both[1])) && text.contains(&stranger.mac("eth0")), "{text}");
    ground::is_empty(&bed.host);
    let answer = bed.add("shop/c-1", "c").run();
    assert_eq!(answer.addresses(), [both[0].as_str(), other]);
    assert_eq!(ground::declined(&bed.host, without_length(&both[1])), Some(stranger.mac("eth0")));
    // a pod that keeps both is told of the one
    Call::del(&bed.host).pod("shop/c-1").container("c").run().is_silent();
    stranger.ip("address flush dev eth0 scope global");
    let kept = bed.doubtful("shop/db-0");
    assert_eq!(kept, both[0]);
    let lease = ground::only_lease(&bed.host);
    let six = format!("{}/64", lease.addresses[1].address);
    stranger.add_address("eth0", &six);
    let text = bed.add("shop/db-0", "new").run().error_text(11);
    assert!(text.contains(without_length(&six)) && text.contains(&stranger.mac("eth0")), "{text}");
    stranger.unplug();
    assert_eq!(bed.add("shop/db-0", "new").run().addresses(), [kept, six]);
}

#[test]
fn b120_a_pod_is_told_who_has_its_address_and_no_link_is_touched() {
    require!(Part::Root, Part::Etcd(Version::V36));
    for (start, end) in [("10.0.0.10", "10.0.0.13"), ("fd00::10", "fd00::13")] {
        let bed = Bed::new(start, end, json!({}));
        let address = bed.doubtful("shop/db-0");
        let stranger = bed.lan.stranger("printer", &[&address]);
        let links = bed.node.ip("-json link show");
        let text = bed.add("shop/db-0", "new").run().error_text(11);
        for part in [without_length(&address), &stranger.mac("eth0"), "node n1"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let lease = ground::only_lease(&bed.host);
        assert!(lease.unconfirmed, "a claim takes nothing away");
        stranger.unplug();
        assert_eq!(bed.add("shop/db-0", "new").run().addresses(), [address]);
        let lease = ground::only_lease(&bed.host);
        assert!(!lease.unconfirmed && lease.bound().is_some());
        assert_eq!(bed.node.ip("-json link show"), links, "B120: no link is touched");
    }
}

#[test]
fn a_forgotten_macvlan_sandbox_on_this_node_is_heard() {
    require!(
        Part::Root,
        Part::Etcd(Version::V36),
        Part::Plugins(Plugins::Debian),
        Part::Plugins(Plugins::Current)
    );
    for plugins in Plugins::BOTH {
        for (start, end) in [("10.0.0.10", "10.0.0.10"), ("fd00::10", "fd00::10")] {
            let bed = Bed::new(start, end, json!({}));
            let (old, new) = (Namespace::sandbox(), Namespace::sandbox());
            let add = |pod: &str, container: &str, sandbox: &Namespace| {
                bed.add(pod, container)
                    .plugin("macvlan", plugins)
                    .sandbox(sandbox)
                    .field("mode", "bridge")
                    .run()
            };
            let address = add("shop/a-1", "a", &old).addresses().remove(0);
            ground::give_back(&bed.host, "shop/a-1");
            let mac = old.mac("eth0");
            let text = add("shop/b-1", "b", &new).error_text(11);
            assert!(text.contains("answer on the wire"), "{text}");
            assert_eq!(ground::declined(&bed.host, without_length(&address)), Some(mac.clone()));
            ground::is_empty(&bed.host);
        }
    }
}

#[test]
fn a_sticky_pod_waits_for_its_forgotten_sandbox() {
    require!(Part::Root, Part::Etcd(Version::V36), Part::Plugins(Plugins::Current));
    let bed = Bed::new("10.0.0.10", "10.0.0.13", json!({ "sticky": "always" }));
    let (old, new, newer) = (Namespace::sandbox(), Namespace::sandbox(), Namespace::sandbox());
    let add = |container: &str, sandbox: &Namespace| {
        bed.add("shop/db-0", container)
            .plugin("macvlan", Plugins::Current)
            .sandbox(sandbox)
            .field("mode", "bridge")
            .run()
    };
    let address = add("a", &old).addresses().remove(0);
    ground::give_back(&bed.host, "shop/db-0");
    let text = add("b", &new).error_text(11);
    assert!(text.contains(&old.mac("eth0")) && text.contains("node n1"), "{text}");
    // Not by taking its namespace away: the kernel may come to that a minute later.
    old.ip("link delete eth0");
    assert_eq!(add("c", &newer).addresses(), [address]);
}

#[test]
fn a_take_over_from_another_node_is_probed() {
    require!(Part::Root, Part::Etcd(Version::V36));
    let bed = Bed::new("10.0.0.10", "10.0.0.13", json!({}));
    let elsewhere = bed.host.node("n2");
    let address = Call::add(&elsewhere).pod("shop/db-0").container("old").run().addresses().remove(0);
    let text = bed.add("shop/db-0", "new").run().error_text(11);
    assert!(text.contains("a moment ago") && text.contains("n2"), "{text}");
    ground::bound_long_ago(&bed.host, "shop/db-0");
    let stranger = bed.lan.stranger("old-node", &[&address]);
    let text = bed.add("shop/db-0", "new").run().error_text(11);
    assert!(text.contains(&stranger.mac("eth0")) && text.contains("node n2"), "{text}");
    assert_eq!(ground::only_lease(&bed.host).bound().unwrap().container.as_str(), "old");
    stranger.unplug();
    assert_eq!(bed.add("shop/db-0", "new").run().addresses(), [address]);
    let lease = ground::only_lease(&bed.host);
    let stamp = lease.bound().unwrap();
    assert_eq!((stamp.container.as_str(), stamp.node.as_str()), ("new", "n1"));
}

#[test]
fn without_a_master_the_default_routes_link_is_asked() {
    require!(Part::Root, Part::Etcd(Version::V36));
    let bed = Bed::new("10.0.0.10", "10.0.0.13", json!({}));
    let address = bed.doubtful("shop/db-0");
    let add = || bed.add("shop/db-0", "new").field("master", Value::Null).run();
    let text = add().error_text(11);
    assert!(text.contains("cannot ask the wire") && text.contains("no default route"), "{text}");
    bed.node.ip("address add 10.0.0.100/24 dev eth0");
    bed.node.ip("route add default via 10.0.0.1");
    let stranger = bed.lan.stranger("printer", &[&address]);
    let text = add().error_text(11);
    assert!(text.contains(&stranger.mac("eth0")), "{text}");
    stranger.unplug();
    assert_eq!(add().addresses(), [address]);
}

#[test]
fn a_macvlan_in_passthru_mode_leaves_nowhere_to_ask_from() {
    require!(
        Part::Root,
        Part::Etcd(Version::V36),
        Part::Plugins(Plugins::Debian),
        Part::Plugins(Plugins::Current)
    );
    for plugins in Plugins::BOTH {
        for (rule, freed) in [("free", true), ("keep", false)] {
            let bed = Bed::new("10.0.0.10", "10.0.0.13", json!({ "nodeLost": rule }));
            let address = bed.doubtful("shop/db-0");
            let sandbox = Namespace::sandbox();
            let add = bed
                .add("shop/db-0", "new")
                .plugin("macvlan", plugins)
                .sandbox(&sandbox)
                .field("mode", "passthru");
            let answer = add.run();
            if freed {
                assert_eq!(answer.addresses(), [address]);
            } else {
                let text = answer.error_text(11);
                assert!(text.contains("passthru") && text.contains("nodeLost is keep"), "{text}");
            }
        }
    }
}

#[test]
fn a_bridge_is_a_place_to_ask_from() {
    require!(Part::Root, Part::Etcd(Version::V36));
    let bed = Bed::new("10.0.0.10", "10.0.0.13", json!({}));
    bed.node.ip("link add br0 type bridge");
    bed.node.ip("link set br0 up");
    bed.node.ip("link set eth0 master br0");
    let address = bed.doubtful("shop/db-0");
    let stranger = bed.lan.stranger("printer", &[&address]);
    let add = || bed.add("shop/db-0", "new").field("type", "bridge").field("bridge", "br0").run();
    let text = add().error_text(11);
    assert!(text.contains(&stranger.mac("eth0")), "{text}");
    stranger.unplug();
    assert_eq!(add().addresses(), [address]);
}

#[test]
fn ptp_cannot_ask_and_the_pool_says_what_that_means() {
    require!(Part::Root, Part::Etcd(Version::V36));
    let bed = Bed::new("10.0.0.10", "10.0.0.10", json!({ "nodeLost": "keep" }));
    bed.doubtful("shop/db-0");
    let add = |bed: &Bed, pod: &str| bed.add(pod, "new").field("type", "ptp").run();
    let text = add(&bed, "shop/db-0").error_text(11);
    assert!(text.contains("cannot ask the wire") && text.contains("nodeLost is keep"), "{text}");
    let bed = Bed::new("10.0.0.10", "10.0.0.10", json!({ "nodeLost": "keep" }));
    bed.add("shop/web-1", "old").run().result();
    ground::give_back(&bed.host, "shop/web-1");
    let text = add(&bed, "shop/web-2").error_text(11);
    assert!(text.contains("cannot be asked"), "{text}");

    let bed = Bed::new("10.0.0.10", "10.0.0.10", json!({ "nodeLost": "free" }));
    let address = bed.doubtful("shop/db-0");
    assert_eq!(add(&bed, "shop/db-0").addresses(), [address]);
    assert!(bed.host.log().contains("taken as silence"), "{}", bed.host.log());
}

#[test]
fn probe_always_finds_a_stranger_on_a_fresh_address() {
    require!(Part::Root, Part::Etcd(Version::V36));
    let bed = Bed::new("10.0.0.10", "10.0.0.11", json!({ "probe": "always" }));
    let stranger = bed.lan.stranger("printer", &["10.0.0.10/24"]);
    assert_eq!(bed.add("shop/a-1", "a").run().addresses(), ["10.0.0.11/24"]);
    bed.add("shop/b-1", "b").run().error(11);
    assert_eq!(ground::declined(&bed.host, "10.0.0.10"), Some(stranger.mac("eth0")));

    // a link that cannot be asked from is never taken for silence
    let bed = Bed::new("10.0.0.10", "10.0.0.11", json!({ "probe": "always" }));
    bed.node.ip("link set eth0 down");
    let text = bed.add("shop/c-1", "c").run().error_text(11);
    assert!(text.contains("cannot ask the wire") && text.contains("eth0"), "{text}");

    let never = Bed::new("10.0.0.10", "10.0.0.10", json!({ "probe": "never" }));
    let _stranger = never.lan.stranger("printer", &["10.0.0.10/24"]);
    let address = never.doubtful("shop/db-0");
    assert_eq!(never.add("shop/db-0", "new").run().addresses(), [address]);
}

#[test]
fn a_take_over_while_frozen_is_probed() {
    require!(Part::Root, Part::Etcd(Version::V36));
    let bed = Bed::new("10.0.0.10", "10.0.0.13", json!({ "sticky": "always" }));
    let address = bed.add("shop/db-0", "old").run().addresses().remove(0);
    Call::del(&bed.host).pod("shop/db-0").container("old").run().is_silent();
    ground::freeze(&bed.host);
    let text = bed.add("shop/web-1", "w").run().error_text(11);
    assert!(text.contains("frozen") && text.contains("leasehold thaw"), "{text}");
    let stranger = bed.lan.stranger("printer", &[&address]);
    let text = bed.add("shop/db-0", "new").run().error_text(11);
    assert!(text.contains(&stranger.mac("eth0")), "{text}");
    stranger.unplug();
    assert_eq!(bed.add("shop/db-0", "new").run().addresses(), [address]);
}

#[test]
fn another_probe_is_no_claim() {
    require!(Part::Root, Part::Etcd(Version::V36));
    // two newcomers ask for one address at the same time: neither takes the other's question for an answer
    let bed = Bed::new("10.0.0.10", "10.0.0.10", json!({}));
    bed.add("shop/a-1", "a").run().result();
    ground::give_back(&bed.host, "shop/a-1");
    let both = [bed.add("shop/b-1", "b").start(), bed.add("shop/c-1", "c").start()];
    let answers = both.map(|running| crate::support::call::Answer(running.wait()));
    let good = answers.iter().filter(|answer| answer.0.code() == Some(0)).count();
    assert_eq!(good, 1, "{answers:?}");
    assert_eq!(ground::leases(&bed.host).len(), 1);
}
