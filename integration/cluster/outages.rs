//! Something is away for a while: the runtime, the kubelet, the store, the API.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    PARTS, alone,
    scene::{Pod, Scene},
};
use crate::support::{parts::lacks, process::signal};

const MINUTE: Duration = Duration::from_secs(60);

/// Twenty pods in a pool of so many addresses, seen to run.
fn twenty(scene: &Scene<'_>, addresses: u32) -> Vec<Pod> {
    scene.pool("web", addresses, "");
    scene.deployment("web", 20, &json!({}));
    scene.all_running(20)
}

/// Everybody has an address of his own and answers on it, and nothing is left over.
fn settles(scene: &Scene<'_>) {
    let pods = scene.all_running(20);
    pods.iter().for_each(|pod| scene.answers(pod));
    scene.site.wait("as many leases as pods", || (scene.leases().len() == 20).then_some(()));
    scene.is_sound();
}

/// The rest of a minute, of which something happened already.
fn rest_of(minute: Instant) {
    thread::sleep(MINUTE.saturating_sub(minute.elapsed()));
}

#[test]
fn a_runtime_that_dies_while_it_makes_pods_leaves_nothing_behind() {
    if lacks(&PARTS) {
        return;
    }
    alone("runtime", |scene| {
        scene.pool("web", 20, "");
        scene.deployment("web", 20, &json!({}));
        scene.site.wait("some pods to run", || (scene.leases().len() >= 4).then_some(()));
        for machine in &scene.site.machines {
            machine.kill("containerd");
        }
        for machine in &scene.site.machines {
            machine.start_containerd();
        }
        settles(scene);
    });
}

#[test]
fn a_minute_without_a_kubelet_costs_no_address() {
    if lacks(&PARTS) {
        return;
    }
    alone("kubelet", |scene| {
        // Who is deleted there goes on answering, and nobody else gets the address until he is gone.
        let before = twenty(scene, 20);
        let machine = scene.site.machine("node1");
        let minute = Instant::now();
        machine.kill("kubelet");
        let mut there = before.iter().filter(|pod| pod.node == "node1");
        let [one, two] = [there.next(), there.next()].map(|pod| &pod.unwrap().name);
        scene.kubectl(&format!("delete pods {one} {two} --wait=false"));
        rest_of(minute);
        machine.start_kubelet();
        scene.site.ready("node1");
        settles(scene);
    });
}

#[test]
fn a_minute_without_the_store_costs_no_address() {
    if lacks(&PARTS) {
        return;
    }
    alone("store", |scene| {
        let before = twenty(scene, 20);
        let minute = Instant::now();
        scene.site.store.freeze(0);
        scene.kubectl(&format!("delete pods {} {} --wait=false", before[0].name, before[1].name));
        rest_of(minute);
        scene.site.store.thaw(0);
        settles(scene);
    });
}

#[test]
fn a_minute_without_the_api_costs_no_address() {
    if lacks(&PARTS) {
        return;
    }
    alone("api", |scene| {
        let before = twenty(scene, 20);
        let minute = Instant::now();
        scene.kubectl(&format!("delete pods {} {} --wait=false", before[0].name, before[1].name));
        signal(scene.site.api.pid(), "STOP");
        rest_of(minute);
        signal(scene.site.api.pid(), "CONT");
        settles(scene);
    });
}
