//! Pods that are deleted by force: their successors come while they still end.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{
    PARTS, alone,
    scene::{Pod, Scene},
};
use crate::support::parts::lacks;

/// Until the new one runs, and a moment longer, the stranger never hears two.
fn never_two(scene: &Scene<'_>, old: &Pod) -> Pod {
    const MOMENT: Duration = Duration::from_secs(3);
    let begun = Instant::now();
    let mut seen = None;
    loop {
        let heard = scene.site.stranger.answers("eth0", &old.address);
        assert!(heard.len() < 2, "{heard:?} after {:?}", begun.elapsed());
        match seen {
            None => seen = scene.pods().iter().any(|pod| pod.uid != old.uid).then(Instant::now),
            Some(since) if since.elapsed() > MOMENT => break,
            Some(_) => {}
        }
        assert!(begun.elapsed() < super::machine::PATIENCE, "no successor\n{}", scene.site.state());
    }
    scene.successor(old)
}

#[test]
fn a_successor_on_the_same_node_waits_until_the_one_deleted_by_force_is_silent() {
    if lacks(&PARTS) {
        return;
    }
    alone("forced", |scene| {
        scene.pool("db", 1, "");
        scene.kubectl("cordon node2");
        // Force leaves it two seconds of these.
        let slow = json!({ "name": "main", "image": super::image::PAUSE,
            "lifecycle": { "preStop": { "sleep": { "seconds": 15 } } } });
        let spec = json!({ "terminationGracePeriodSeconds": 20, "containers": [slow] });
        scene.stateful_set("db", 1, &json!({ "template": { "spec": spec } }));
        let first = scene.running("db-0");
        scene.answers(&first);
        scene.kubectl("delete pod db-0 --force --grace-period=0");
        let second = never_two(scene, &first);
        assert_eq!(second.address, first.address);
        scene.answers(&second);

        // A kubelet that was away hears of both at once.
        let machine = scene.site.machine("node1");
        machine.kill("kubelet");
        scene.kubectl("delete pod db-0 --force --grace-period=0");
        scene.site.wait("a new db-0", || {
            let pod = scene.site.api.get(&scene.path("pods", "db-0"))?;
            (pod["metadata"]["uid"] != *second.uid).then_some(())
        });
        machine.start_kubelet();
        let third = never_two(scene, &second);
        scene.kubectl("uncordon node2");
        assert_eq!(third.address, first.address);
        scene.answers(&third);
    });
}

#[test]
fn two_pods_that_swap_nodes_have_their_addresses() {
    if lacks(&PARTS) {
        return;
    }
    alone("swap", |scene| {
        let place = |pod: &str, node: &str| scene.pod(pod, &json!({ "spec": { "nodeName": node } }));
        for (pod, node) in [("a", "node1"), ("b", "node2")] {
            scene.pool(pod, 1, "");
            place(pod, node);
        }
        let old = [scene.running("a"), scene.running("b")];
        scene.kubectl("delete pod a b --force --grace-period=0");
        place("a", "node2");
        place("b", "node1");
        for old in &old {
            let new = scene.running(&old.name);
            assert_ne!(new.node, old.node);
            assert_eq!(new.address, old.address);
            scene.answers(&new);
        }
    });
}
