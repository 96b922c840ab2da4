//! A node dies for good, or seems to.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{PARTS, alone, site::GRACE};
use crate::support::{parts::lacks, process::report};

/// How long pods tolerate a node that is silent, and their own grace: with the time until it counts as silent what
/// Kubernetes takes before the addresses may be given to anybody.
const TOLERATION: Duration = Duration::from_secs(20);
const POD_GRACE: Duration = Duration::from_secs(10);
/// A kubelet tries again to make a sandbox this long after it failed, at most.
const RETRY: Duration = Duration::from_secs(15);
/// What is ours, and what a busy machine takes.
const OURS: Duration = Duration::from_secs(10);

#[test]
fn the_pods_of_a_dead_node_run_again_with_no_command_to_leasehold() {
    if lacks(&PARTS) {
        return;
    }
    alone("death", |scene| {
        let site = scene.site;
        scene.pool("web", 10, "");
        scene.pool("db", 2, "");
        let tolerations: Vec<_> = ["unreachable", "not-ready"]
            .iter()
            .map(|why| {
                json!({
                    "key": format!("node.kubernetes.io/{why}"), "operator": "Exists", "effect": "NoExecute",
                    "tolerationSeconds": TOLERATION.as_secs(),
                })
            })
            .collect();
        let spread = json!([{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": { "matchLabels": { "app": "web" } },
        }]);
        scene.deployment(
            "web",
            10,
            &json!({ "template": { "spec": {
                "tolerations": tolerations, "terminationGracePeriodSeconds": POD_GRACE.as_secs(),
                "topologySpreadConstraints": spread,
            } } }),
        );
        // It stays until somebody says that the node is out of service.
        scene.stateful_set("db", 2, &json!({}));
        let before = scene.all_running(12);
        let (db, web): (Vec<_>, Vec<_>) = before.into_iter().partition(|pod| pod.name.starts_with("db-"));
        let there = web.iter().filter(|pod| pod.node == "node1").count();
        assert!((1..10).contains(&there), "{web:?}");
        assert!(db.iter().any(|pod| pod.node == "node1"), "{db:?}");

        let dead = Instant::now();
        site.machine("node1").power_off();
        site.wait("the silence to be noticed", || (site.condition("node1")? == "Unknown").then_some(()));
        let noticed = dead.elapsed();
        let after = site.wait("ten pods on the other node", || {
            let all: Vec<_> = scene.pods().into_iter().filter(|pod| pod.name.starts_with("web-")).collect();
            (all.iter().filter(|pod| pod.node == "node2").count() == 10).then_some(all)
        });
        let took = dead.elapsed();
        let out_of_service = Instant::now();
        scene.kubectl("taint node node1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute");
        for pod in db.iter().filter(|pod| pod.node == "node1") {
            let again = scene.successor(pod);
            assert_eq!(again.address, pod.address);
            scene.answers(&again);
        }
        report(&format!(
            "cluster: dead node noticed after {:.1} s, all ten of ten back after {:.1} s; StatefulSet {:.1} s after the taint (Kubernetes looks each 20 s)",
            noticed.as_secs_f32(),
            took.as_secs_f32(),
            out_of_service.elapsed().as_secs_f32()
        ));
        let theirs = GRACE + TOLERATION + POD_GRACE + RETRY;
        assert!(took < theirs + OURS, "{took:?}, of which Kubernetes' own timers are {theirs:?}");
        let mut addresses: Vec<_> = after.iter().map(|pod| pod.address.clone()).collect();
        let mut same: Vec<_> = web.iter().map(|pod| pod.address.clone()).collect();
        addresses.sort();
        same.sort();
        assert_eq!(addresses, same, "the ten of the pool");
        after.iter().for_each(|pod| scene.answers(pod));

        // It comes back after all, and with it DELs of what it remembers.
        site.machine("node1").power_on();
        scene.kubectl("taint node node1 node.kubernetes.io/out-of-service-");
        site.ready("node1");
        scene.all_running(12).iter().for_each(|pod| scene.answers(pod));
    });
}

#[test]
fn who_is_cut_off_keeps_the_address_until_he_is_gone() {
    if lacks(&PARTS) {
        return;
    }
    alone("partition", |scene| {
        let site = scene.site;
        scene.pool("db", 1, "");
        scene.kubectl("cordon node2");
        scene.stateful_set("db", 1, &json!({}));
        let old = scene.running("db-0");
        scene.kubectl("uncordon node2");
        assert_eq!(old.node, "node1");
        let (_, mac) = scene.interface(&old);

        // Nobody hears of the node; its pods are on the LAN as ever.
        site.machine("node1").management.pull();
        site.wait("the silence to be noticed", || (site.condition("node1")? == "Unknown").then_some(()));
        scene.kubectl("delete pod db-0 --force --grace-period=0");
        let said = scene.complaint("db-0", "still answers");
        assert!(said.contains(&mac) && said.contains("node1"), "{said}");
        assert_eq!(site.stranger.answers("eth0", &old.address), [mac]);

        site.machine("node1").power_off();
        let new = scene.successor(&old);
        assert_eq!((new.node.as_str(), &new.address), ("node2", &old.address));
        scene.answers(&new);

        site.machine("node1").power_on();
        site.ready("node1");
        scene.is_sound();
        scene.answers(&scene.running("db-0"));
    });
}
