//! New pods in place of old ones: rollouts, scaling, controllers that come and go, drains.

use serde_json::json;

use super::{PARTS, alone, calm, scene::Pod};
use crate::support::parts::lacks;

fn addresses(pods: &[Pod]) -> Vec<&str> {
    pods.iter().map(|pod| pod.address.as_str()).collect()
}

#[test]
fn a_rolling_update_works_with_as_many_addresses_as_pods() {
    if lacks(&PARTS) {
        return;
    }
    calm("rolling", |scene| {
        scene.pool("web", 4, "");
        scene.pool("api", 4, "");
        scene.pool("db", 3, "");
        let surge = |surge: u32, unavailable: u32| json!({ "strategy": { "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } } });
        scene.deployment("web", 4, &surge(0, 1));
        scene.deployment("api", 4, &surge(1, 1));
        scene.stateful_set("db", 3, &json!({}));
        let before = scene.all_running(11);
        let new = r#"{"spec":{"template":{"metadata":{"annotations":{"release":"2"}}}}}"#;
        for controller in ["deployment/web", "deployment/api", "statefulset/db"] {
            scene.kubectl(&format!("patch {controller} --patch {new}"));
        }
        for controller in ["deployment/web", "deployment/api", "statefulset/db"] {
            scene.kubectl_for(&format!("rollout status {controller} --timeout=20s"));
        }
        let after = scene.all_running(11);
        assert!(after.iter().all(|pod| before.iter().all(|old| old.uid != pod.uid)));
        let db = |pods: &[Pod]| -> Vec<_> {
            let db = pods.iter().filter(|pod| pod.name.starts_with("db-"));
            db.map(|pod| (pod.name.clone(), pod.address.clone())).collect()
        };
        assert_eq!(db(&after), db(&before));
        after.iter().for_each(|pod| scene.answers(pod));
    });
}

#[test]
fn what_is_scaled_down_keeps_or_loses_its_address_as_the_pool_says() {
    if lacks(&PARTS) {
        return;
    }
    calm("scaling", |scene| {
        scene.pool("kept", 4, "--when-scaled Retain");
        scene.pool("lost", 4, "--when-scaled Delete");
        for name in ["kept", "lost"] {
            scene.stateful_set(name, 4, &json!({}));
        }
        let before = scene.all_running(8);
        // A pass must have seen once whose pods they are; the controller's may come later than we.
        scene.site.cli("reap").success();
        scene.kubectl("scale statefulset kept lost --replicas=2");
        scene.all_running(4);
        let bound = ["kept-0 bound", "kept-1 bound"];
        let held = ["kept-2 held", "kept-3 held", "lost-0 bound", "lost-1 bound"];
        scene.leases_are(&[&bound[..], &held[..]].concat());
        scene.kubectl("scale statefulset kept lost --replicas=4");
        let after = scene.all_running(8);
        assert_eq!(addresses(&after[..4]), addresses(&before[..4]));
        after.iter().for_each(|pod| scene.answers(pod));
    });
}

#[test]
fn a_controller_that_is_made_anew_in_time_has_its_addresses() {
    if lacks(&PARTS) {
        return;
    }
    calm("anew", |scene| {
        scene.pool("db", 3, "");
        scene.stateful_set("db", 2, &json!({}));
        let before = scene.all_running(2);
        scene.kubectl("delete statefulset db");
        scene.all_running(0);
        scene.leases_are(&["db-0 held", "db-1 held"]);
        scene.stateful_set("db", 2, &json!({}));
        let after = scene.all_running(2);
        assert_eq!(addresses(&after), addresses(&before));
        after.iter().for_each(|pod| scene.answers(pod));

        // Ten minutes, for a person in a hurry.
        scene.kubectl("delete statefulset db");
        scene.all_running(0);
        scene.site.wait("the end of the wait for a controller", || {
            // Those of other tests are as gone.
            scene.site.cli("reap --owner-after 1s --max-orphans 1000");
            scene.leases().is_empty().then_some(())
        });
        scene.stateful_set("db", 2, &json!({}));
        scene.all_running(2).iter().for_each(|pod| scene.answers(pod));
    });
}

#[test]
fn a_drained_nodes_pods_take_their_addresses_with_them() {
    if lacks(&PARTS) {
        return;
    }
    alone("drain", |scene| {
        scene.pool("db", 4, "");
        scene.stateful_set("db", 4, &json!({}));
        let before = scene.all_running(4);
        assert!(before.iter().any(|pod| pod.node == "node1"), "{before:?}");
        scene.kubectl("create poddisruptionbudget db --selector=app=db --max-unavailable=1");
        scene.kubectl("cordon node1");
        let selector = "--pod-selector=app=db --ignore-daemonsets --timeout=20s";
        scene.kubectl_for(&format!("drain node1 {selector}"));
        let after = scene.site.wait("four pods on the other node", || {
            let pods = scene.all_running(4);
            pods.iter().all(|pod| pod.node == "node2").then_some(pods)
        });
        scene.kubectl("uncordon node1");
        assert_eq!(addresses(&after), addresses(&before));
        after.iter().for_each(|pod| scene.answers(pod));
    });
}
