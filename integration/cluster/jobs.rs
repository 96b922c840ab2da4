//! Many short pods through a small pool.

use serde_json::json;

use super::{PARTS, calm, scene::pod_spec};
use crate::support::parts::lacks;

#[test]
fn two_hundred_short_pods_go_through_twenty_addresses() {
    if lacks(&PARTS) {
        return;
    }
    const PODS: u32 = 200;
    calm("jobs", |scene| {
        scene.pool("batch", 20, "");
        let mut spec = pod_spec();
        spec["containers"][0]["args"] = json!(["1"]);
        spec["restartPolicy"] = json!("Never");
        let job = json!({
            "metadata": { "name": "batch" },
            "spec": { "completions": PODS, "parallelism": 20, "template": { "spec": spec } },
        });
        let jobs = format!("/apis/batch/v1/namespaces/{}/jobs", scene.namespace);
        scene.site.api.create(&jobs, &job);
        let mut done = 0;
        while done < u64::from(PODS) {
            // Twenty at a time, however slow the machine.
            done = scene.site.wait(&format!("more than {done} pods to succeed"), || {
                let job = scene.site.api.get(&format!("{jobs}/batch"))?;
                assert_eq!(job["status"]["failed"], json!(null), "{job}");
                job["status"]["succeeded"].as_u64().filter(|now| *now > done)
            });
        }
        scene.leases_are(&[]);
        let pods = scene.site.api.get(&scene.path("pods", "")).unwrap();
        let pods = pods["items"].as_array().unwrap();
        assert_eq!(pods.len(), PODS as usize, "their objects stay");

        // The DELs have done that. Of one that was lost the reaper knows by the pod.
        let name = pods[0]["metadata"]["name"].as_str().unwrap();
        scene.call_plugin("ADD", pods[0]["spec"]["nodeName"].as_str().unwrap(), name, "lost");
        scene.leases_are(&[&format!("{name} bound")]);
        scene.site.cli("reap --finished-after 1s").success();
        scene.leases_are(&[]);
    });
}
