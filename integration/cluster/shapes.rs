//! Pods of other kinds: static ones, with two networks, with two families.

use std::{thread, time::Duration};

use serde_json::json;

use super::{PARTS, alone, calm, scene::pod_spec};
use crate::support::{parts::lacks, process::run};

#[test]
fn the_address_of_a_static_pod_is_never_reaped() {
    if lacks(&PARTS) {
        return;
    }
    alone("static", |scene| {
        // Of a namespace that is not there: the API never hears of the pod.
        scene.site.cli("pool create nowhere --network lan100 --subnet 10.0.0.0/22 --range 10.0.2.240-10.0.2.241 --serves nowhere/*").success();
        let machine = scene.site.machine("node1");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "keeper", "namespace": "nowhere" },
            "spec": pod_spec(),
        });
        machine.write("etc/kubernetes/manifests/keeper.json", &pod.to_string());
        let listed = || scene.site.cli("lease list -n nowhere --no-headers").stdout().to_owned();
        scene.site.wait("the static pod's lease", || listed().contains("nowhere/keeper-node1").then_some(()));
        let lease = listed();
        let address = lease.split_whitespace().next().unwrap();
        scene
            .site
            .wait("it to answer", || (scene.site.stranger.answers("eth0", address).len() == 1).then_some(()));
        assert!(scene.site.api.get("/api/v1/namespaces/nowhere/pods/keeper-node1").is_none());
        // As long missed as any other pod may be.
        scene.site.cli("reap --absent-after 15s");
        thread::sleep(Duration::from_secs(16));
        let pass = scene.site.cli("reap --absent-after 15s -o wide");
        let row = |line: &str| line.contains("nowhere/keeper-node1") && line.contains(" 11 ");
        assert!(pass.stdout().lines().any(row), "{}{}", pass.stdout(), pass.stderr());
        assert!(listed().starts_with(address), "{}", listed());

        machine.remove("etc/kubernetes/manifests/keeper.json");
        scene.site.wait("its DEL", || listed().is_empty().then_some(()));
    });
}

#[test]
fn a_pod_has_an_address_of_each_family_and_of_each_network() {
    if lacks(&PARTS) {
        return;
    }
    calm("shapes", |scene| {
        let (first, last) = scene.site.addresses(2);
        let pool = json!({
            "name": "shapes-db", "networks": ["lan100", "lan200"], "serves": ["shapes/db"],
            "ranges": [
                { "subnet": "10.0.0.0/22", "start": first, "end": last },
                { "subnet": "fd00:9::/64", "start": "fd00:9::10", "end": "fd00:9::1f" },
            ],
        });
        scene.site.cli_with("pool apply -f -", &pool.to_string()).success();
        scene.stateful_set("db", 1, &json!({}));
        let pod = scene.running("db-0");
        let (addresses, mac) = scene.interface(&pod);
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        assert_eq!(addresses[0], pod.address);
        assert!(addresses[1].starts_with("fd00:9::1"), "{addresses:?}");
        assert_eq!(scene.site.stranger.answers("eth0", &pod.address), [mac]);

        // A second network, as Multus asks for it: the same container, another interface.
        let second = |command: &str| {
            let machine = scene.site.machine(&pod.node);
            let mut plugin = machine.command("/usr/bin/env");
            plugin.args([
                &format!("CNI_COMMAND={command}"),
                "CNI_PATH=/opt/cni/bin",
                "CNI_IFNAME=net1",
                &format!("CNI_CONTAINERID={}", scene.sandbox_of(&pod)),
                &format!("CNI_NETNS=/proc/{}/ns/net", scene.pid_of(&pod)),
                "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shapes;K8S_POD_NAME=db-0",
                "/opt/cni/bin/macvlan",
            ]);
            let network = json!({
                "cniVersion": "1.0.0", "name": "lan200", "type": "macvlan", "master": "eth1",
                "ipam": { "type": "leasehold" },
            });
            run(&mut plugin, network.to_string().as_bytes())
        };
        let added: serde_json::Value = serde_json::from_str(second("ADD").success()).unwrap();
        let address = added["ips"][0]["address"].as_str().unwrap();
        let address = address.split('/').next().unwrap();
        assert_ne!(address, pod.address);
        // It is on the nodes' other LAN.
        assert_eq!(scene.site.control.answers("eth0", address).len(), 1);
        scene.leases_are(&["db-0 bound", "db-0 bound", "db-0 bound", "db-0 bound"]);
        second("DEL").success();
        scene.leases_are(&["db-0 bound", "db-0 bound", "db-0 held", "db-0 held"]);
    });
}
