//! What `scripts/demo-cluster` shows. Here nobody listens, and it is one more test.
#![expect(clippy::print_stdout, reason = "it is told to whoever runs it")]

use serde_json::json;

use super::{
    PARTS, alone,
    scene::{Pod, Scene},
};
use crate::support::parts::lacks;

fn step(text: &str) {
    println!("\n# {text}");
}

fn kubectl(scene: &Scene<'_>, line: &str) {
    println!("$ kubectl -n {} {line}", scene.namespace);
    println!("{}", scene.kubectl(line).stdout().trim_end());
}

fn leasehold(scene: &Scene<'_>, line: &str) {
    println!("$ leasehold {line}");
    let finished = scene.site.cli(line);
    println!("{}", format!("{}{}", finished.success(), finished.stderr()).trim_end());
}

/// Asks the LAN.
fn answers(scene: &Scene<'_>, pod: &Pod) {
    scene.answers(pod);
    let (_, mac) = scene.interface(pod);
    println!("stranger$ arping {}   # {mac} answers, {} on {}", pod.address, pod.name, pod.node);
}

#[test]
fn the_story_of_a_service_and_its_addresses() {
    if lacks(&PARTS) {
        return;
    }
    alone("shop", |scene| {
        let site = scene.site;
        step(
            "Two nodes of kubelet, containerd and macvlan on one LAN, an etcd, and Leasehold as its manifests install it",
        );
        println!("$ kubectl -n leasehold get pods -o wide");
        println!(
            "{}",
            site.api.kubectl(&["--namespace=leasehold", "get", "pods", "--output=wide"]).success().trim_end()
        );
        println!("# (An installer counts as ready once it was asked, within half a minute.)");

        step("A range of two addresses for the pods of shop/db");
        let (first, last) = site.addresses(2);
        let pool = "pool create shop-db --network lan100 --subnet 10.0.0.0/22 --serves shop/db";
        leasehold(scene, &format!("{pool} --range {first}-{last}"));

        step("A StatefulSet, whose pods get them; a stranger on the LAN hears them");
        scene.stateful_set("db", 2, &json!({}));
        let before = scene.all_running(2);
        kubectl(scene, "get pods -o wide");
        before.iter().for_each(|pod| answers(scene, pod));

        step("db-0 is deleted, and comes back on the other node, with its address");
        kubectl(scene, &format!("cordon {}", before[0].node));
        kubectl(scene, "delete pod db-0");
        let again = scene.successor(&before[0]);
        kubectl(scene, &format!("uncordon {}", before[0].node));
        kubectl(scene, "get pods -o wide");
        assert_eq!(again.address, before[0].address);
        answers(scene, &again);

        step(&format!("Power loss of {}: no DEL, no goodbye. Then the power is back", again.node));
        site.machine(&again.node).power_off();
        assert!(site.stranger.answers("eth0", &again.address).is_empty());
        println!("stranger$ arping {}   # nobody answers", again.address);
        site.machine(&again.node).power_on();
        let back = scene.restarted(&again);
        kubectl(scene, "get pods -o wide");
        assert_eq!(back.address, before[0].address);
        answers(scene, &back);

        step("A third pod finds the range full, and its Event says what to do");
        kubectl(scene, "scale statefulset db --replicas=3");
        println!("{}", scene.complaint("db-2", "full"));

        step("What the store says, held against the pods");
        leasehold(scene, "lease list -n shop");
        kubectl(scene, "scale statefulset db --replicas=2");
        scene.is_sound();
        leasehold(scene, "check --against-pods");
        println!();
    });
}
