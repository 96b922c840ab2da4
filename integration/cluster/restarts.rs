//! A StatefulSet's pod comes back to its address: deleted, on another node, after a power loss.

use serde_json::json;

use super::{PARTS, alone, scene::Pod};
use crate::support::parts::lacks;

#[test]
fn a_deleted_pod_comes_back_to_its_address_on_whatever_node() {
    if lacks(&PARTS) {
        return;
    }
    alone("deleted", |scene| {
        scene.pool("db", 3, "");
        scene.stateful_set("db", 2, &json!({}));
        let before = scene.all_running(2);
        before.iter().for_each(|pod| scene.answers(pod));

        // While it has nowhere to run, its address is kept: an address that is free would come back, too, as it is the first.
        scene.kubectl("cordon node1 node2");
        scene.kubectl("delete pod db-0");
        scene.leases_are(&["db-0 held", "db-1 bound"]);
        scene.kubectl("uncordon node1 node2");
        let again = scene.successor(&before[0]);
        assert_eq!(again.address, before[0].address);
        scene.answers(&again);

        // Where it was nothing more is scheduled.
        scene.kubectl(&format!("cordon {}", again.node));
        scene.kubectl("delete pod db-0");
        let elsewhere = scene.successor(&again);
        scene.kubectl(&format!("uncordon {}", again.node));
        assert_ne!(elsewhere.node, again.node);
        assert_eq!(elsewhere.address, before[0].address);
        scene.answers(&elsewhere);
        assert_eq!(scene.running("db-1"), before[1]);
    });
}

#[test]
fn after_a_power_loss_every_pod_has_its_address() {
    if lacks(&PARTS) {
        return;
    }
    alone("reboot", |scene| {
        scene.pool("db", 6, "");
        scene.stateful_set("db", 4, &json!({}));
        let before = scene.all_running(4);
        let machine = scene.site.machine("node1");
        let (there, elsewhere): (Vec<Pod>, _) = before.into_iter().partition(|pod| pod.node == "node1");
        assert!(!there.is_empty() && !elsewhere.is_empty(), "{there:?} {elsewhere:?}");

        let sandboxes: Vec<_> = there.iter().map(|pod| scene.sandbox_of(pod)).collect();
        machine.power_off();
        there.iter().for_each(|pod| assert!(scene.site.stranger.answers("eth0", &pod.address).is_empty()));
        machine.power_on();
        for pod in &there {
            let again = scene.restarted(pod);
            assert_eq!((&again.uid, &again.address), (&pod.uid, &pod.address), "the same pod");
            scene.answers(&again);
        }
        // The runtime remembers the old sandboxes. What it says of them comes late, and is nobody's loss.
        for sandbox in &sandboxes {
            let late = format!("TearDown network for sandbox \\\"{sandbox}\\\" successfully");
            scene
                .site
                .wait("a late DEL", || machine.read("var/log/containerd.log").contains(&late).then_some(()));
        }
        // Most of that comes before the new ADD. So once more, and too late for certain.
        for (pod, sandbox) in there.iter().zip(&sandboxes) {
            assert_ne!(scene.sandbox_of(pod), *sandbox);
            scene.call_plugin("DEL", "node1", &pod.name, sandbox);
        }
        there.iter().for_each(|pod| scene.answers(&scene.running(&pod.name)));
        for pod in &elsewhere {
            assert_eq!(&scene.running(&pod.name), pod);
            scene.answers(pod);
        }
        scene.leases_are(&["db-0 bound", "db-1 bound", "db-2 bound", "db-3 bound"]);
    });
}
