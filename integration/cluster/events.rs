//! What a person reads in `kubectl describe pod`, word for word.

use serde_json::json;

use super::{PARTS, alone, calm};
use crate::support::parts::lacks;

#[test]
fn the_event_of_a_pod_without_an_address_says_why_and_what_to_do() {
    if lacks(&PARTS) {
        return;
    }
    calm("events", |scene| {
        scene.pool("db", 1, "");
        scene.stateful_set("db", 1, &json!({}));
        scene.running("db-0");
        scene.kubectl("scale statefulset db --replicas=2");
        assert_eq!(
            scene.complaint("db-1", "pool"),
            "pool events-db is full (1 of 1); widen the pool, or see: leasehold pool list, leasehold lease list"
        );
        scene.pod("web", &json!({}));
        assert_eq!(
            scene.complaint("web", "pool"),
            "no pool serves events/web on network lan100; looked for events/web, events/*, */*; \
             make one: leasehold pool create NAME --network lan100 --subnet CIDR --range A-B --serves events/WORKLOAD"
        );
        let asking = json!({ "metadata": { "annotations": { "leasehold.io/pool": "atlantis" } } });
        scene.pod("asking", &asking);
        assert_eq!(
            scene.complaint("asking", "pool"),
            "pool atlantis may not be used; there is no such pool; it was asked for by the pod's annotation; \
             see: leasehold pool list"
        );
    });
}

#[test]
fn the_event_while_the_store_is_down_says_so() {
    if lacks(&PARTS) {
        return;
    }
    alone("store-down", |scene| {
        scene.pool("web", 1, "");
        scene.site.store.freeze(0);
        scene.pod("web", &json!({}));
        let text = scene.complaint("web", "store");
        scene.site.store.thaw(0);
        let how_long = text.split(' ').rev().nth(1).unwrap();
        assert_eq!(
            text.replace(how_long, "N"),
            "the store cannot be reached; https://10.8.0.1:2379: no answer after N ms"
        );
        scene.answers(&scene.running("web"));
    });
}
