//! What the Kubernetes API says.

use std::sync::LazyLock;

use leasehold::{
    domain::{
        kubernetes::{Answer, Controller, Node, Pod},
        lease::{Lease, Timestamp},
        names::ClusterName,
        reap::{Case, Policy, PoolPolicy, Verdict, needs, verdict},
    },
    pods::testing::{Object, read_json, read_protobuf},
    store::{Entry, Key, Revision, record},
};

/// A bound lease and a held one of the same pod.
static LEASES: LazyLock<[Lease; 2]> = LazyLock::new(|| {
    [r#""state":"bound","#, r#""state":"held","controller":"StatefulSet.apps/db","missedAt":"2026-01-01T00:00:00Z","#]
        .map(|state| {
            let value = format!(
                r#"{{"v":1,{state}"addresses":[{{"address":"10.0.0.1","domain":"default"}}],"container":"c1","node":"n1",
                "at":"2026-01-01T00:00:00Z","since":"2026-01-01T00:00:00Z","sticky":true}}"#
            );
            let key = Key::new("v1/leases/prod/shop/db-0/lan/eth0");
            record::read_lease(&Entry { key, value: value.into_bytes(), revision: Revision(1) }).unwrap()
        })
});

/// 1970, 2026, and the last day that can be written.
const TIMES: [i64; 3] = [0, 1_800_000_000_000, 253_402_207_200_999];

pub(crate) fn kubernetes(input: &[u8]) {
    let mut objects = read_json(input, Timestamp(TIMES[1]));
    if objects.iter().any(Result::is_ok) {
        // What was cut on its way is nothing at all.
        let whole = input.trim_ascii_end();
        let cut = &whole[..whole.len() - 1];
        assert!(read_json(cut, Timestamp(0)).iter().all(Result::is_err));
    }
    objects.push(read_protobuf(input));
    for object in objects {
        match object {
            Err(reason) => assert!(!reason.is_empty()),
            Ok(Object::Pods(pods)) => pods.iter().for_each(|pod| judge(Some(pod), None, None)),
            Ok(Object::Pod(pod)) => judge(Some(&pod), None, None),
            Ok(Object::Node(node)) => judge(None, Some(&node), None),
            Ok(Object::Controller(controller)) => judge(None, None, Some(&controller)),
        }
    }
}

/// Nobody who lives loses a lease by what is said of one of these, at whatever time.
fn judge(pod: Option<&Pod>, node: Option<&Node>, controller: Option<&Controller>) {
    fn known<T>(thing: Option<&T>) -> Answer<&T> {
        thing.map_or(Answer::Absent, Answer::Present)
    }
    static REAPER: LazyLock<(ClusterName, Policy)> =
        LazyLock::new(|| (ClusterName::new("prod").unwrap(), Policy::default()));
    let (cluster, policy) = &*REAPER;
    for lease in &*LEASES {
        let _ = needs(lease, &known(pod), policy);
        for now in TIMES.map(Timestamp) {
            let case = Case {
                lease,
                cluster,
                pools: Answer::Present(PoolPolicy::default()),
                pod: known(pod),
                node: known(node),
                controller: known(controller),
            };
            let given = matches!(verdict(&case, policy, now), Verdict::Give(_));
            let lives = pod.is_some_and(|pod| pod.deleting.is_none() && !pod.phase.is_final());
            assert!(!given || !lives, "{pod:?}");
        }
    }
}
