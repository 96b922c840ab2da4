//! Every cell of the two tables, in words. Numbers are seconds from now: `-30` was half a minute ago.

use std::{collections::BTreeSet, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::domain::{
    kubernetes::{Finished, Phase, PodKey, Ready, Wants},
    lease::{Binding, Declined, LeaseId, LeasedAddress, Stamp},
    names::{ContainerId, DomainName, IfName, NetworkName, Uid},
    pool::{Draft, RangeDraft},
};

const NOW: Timestamp = Timestamp(1_800_000_000_000);

fn at(seconds: &str) -> Timestamp {
    Timestamp(NOW.0 + seconds.parse::<i64>().unwrap() * 1000)
}

/// What a verdict rests on, owned.
#[derive(Clone, Debug)]
struct World {
    lease: Lease,
    cluster: ClusterName,
    pools: Answer<PoolPolicy>,
    pod: Answer<Pod>,
    node: Answer<Node>,
    controller: Answer<Controller>,
}

impl World {
    fn case(&self) -> Case<'_> {
        Case {
            lease: &self.lease,
            cluster: &self.cluster,
            pools: self.pools.clone(),
            pod: self.pod.as_ref(),
            node: self.node.as_ref(),
            controller: self.controller.as_ref(),
        }
    }

    fn verdict(&self) -> Verdict {
        verdict(&self.case(), &Policy::default(), NOW)
    }
}

fn words(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split_whitespace().map(|word| word.split_once('=').unwrap_or((word, "")))
}

/// `bound`, `held`, `adopted`, `reserved` or `container`; of pod shop/db-0, container c1 on n1, UID u1, bound an hour ago.
fn lease(text: &str) -> Lease {
    let holder =
        Holder::Pod { namespace: Namespace::new("shop").unwrap(), name: PodName::new("db-0").unwrap() };
    let stamp = Stamp {
        container: ContainerId::new("c1").unwrap(),
        node: NodeName::new("n1").unwrap(),
        uid: Some(Uid::new("u1").unwrap()),
        boot: None,
        boot_clock: 1,
        at: at("-3600"),
    };
    let address = LeasedAddress {
        address: "10.0.0.1".parse().unwrap(),
        domain: DomainName::new("default").unwrap(),
        pool: None,
    };
    let mut lease = Lease {
        id: LeaseId {
            cluster: ClusterName::new("prod").unwrap(),
            holder,
            network: NetworkName::new("lan").unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        },
        addresses: vec![address],
        binding: Binding::Bound(stamp.clone()),
        since: at("-3600"),
        created: at("-3600"),
        sticky: false,
        reserved: false,
        unconfirmed: false,
        seen: None,
    };
    for (word, value) in words(text) {
        match word {
            "bound" => {}
            "held" => lease.binding = Binding::Idle(Some(stamp.clone())),
            "adopted" => lease.binding = Binding::Idle(None),
            "reserved" => {
                lease.reserved = true;
                lease.binding = Binding::Idle(None);
            }
            "assigned" => lease.reserved = true,
            "container" => lease.id.holder = Holder::Container(stamp.container.clone()),
            "sticky" => lease.sticky = true,
            "name" => {
                let namespace = Namespace::new("shop").unwrap();
                lease.id.holder = Holder::Pod { namespace, name: PodName::new(value).unwrap() };
            }
            "since" => lease.since = at(value),
            "missed" => lease.seen.get_or_insert_default().missed = Some(at(value)),
            "doubt" => lease.seen.get_or_insert_default().doubt = Some(at(value)),
            "seen" => lease.seen.get_or_insert_default().controller = Some(value.into()),
            other => panic!("{other}"),
        }
    }
    lease
}

fn answer<T>(text: &str, present: impl Fn(&str) -> T) -> Answer<T> {
    match text {
        "absent" => Answer::Absent,
        "unknown" => Answer::Unknown("500".into()),
        _ => Answer::Present(present(text)),
    }
}

fn controller_ref(text: &str) -> ControllerRef {
    let (kind, name) = text.split_once('/').unwrap();
    ControllerRef { kind: kind.into(), version: "v1".into(), name: name.into() }
}

/// A phase; made half an hour ago, on node n1, UID u1, of the lease's name.
fn pod(text: &str, of: &Lease) -> Answer<Pod> {
    answer(text, |text| {
        let name = match &of.id.holder {
            Holder::Pod { name, .. } => name.clone(),
            Holder::Container(_) => PodName::new("db-0").unwrap(),
        };
        let mut pod = Pod {
            key: PodKey { namespace: Namespace::new("shop").unwrap(), name },
            uid: Uid::new("u1").unwrap(),
            node: Some(NodeName::new("n1").unwrap()),
            phase: Phase::Running,
            deleting: None,
            finished: Finished::Unsaid,
            created: at("-1800"),
            mirror: None,
            controller: None,
            host_network: false,
            wishes: vec![],
            addresses: vec![],
        };
        for (word, value) in words(text) {
            match word {
                "Pending" => pod.phase = Phase::Pending,
                "Running" => pod.phase = Phase::Running,
                "Succeeded" => pod.phase = Phase::Succeeded,
                "Failed" => pod.phase = Phase::Failed,
                "Unknown" => pod.phase = Phase::Unknown,
                "deleting" => pod.deleting = Some(at(value)),
                "finished" => pod.finished = Finished::At(at(value)),
                "runs" => pod.finished = Finished::StillRuns,
                "created" => pod.created = at(value),
                "uid" => pod.uid = Uid::new(value).unwrap(),
                "mirror" => pod.mirror = Some(value.into()),
                "node" => pod.node = Some(NodeName::new(value).unwrap()),
                "unscheduled" => pod.node = None,
                "namespace" => pod.key.namespace = Namespace::new(value).unwrap(),
                "of" => pod.controller = Some(controller_ref(value)),
                "wish" => pod.wishes.push(("leasehold.io/sticky".into(), value.into())),
                other => panic!("{other}"),
            }
        }
        pod
    })
}

/// `True`, `False` or `Unknown=-30`; `off` is out of service.
fn node(text: &str) -> Answer<Node> {
    answer(text, |text| {
        let mut node = Node { name: NodeName::new("n1").unwrap(), ready: Ready::True, out_of_service: false };
        for (word, value) in words(text) {
            match word {
                "True" => node.ready = Ready::True,
                "False" => node.ready = Ready::False,
                "Unknown" => node.ready = Ready::Unknown { since: at(value) },
                "Unsaid" => node.ready = Ready::Unsaid,
                "off" => node.out_of_service = true,
                "name" => node.name = NodeName::new(value).unwrap(),
                other => panic!("{other}"),
            }
        }
        node
    })
}

/// `all`, or how many from which; `without=1,2` are reserved.
fn controller(text: &str) -> Answer<Controller> {
    answer(text, |text| {
        let (mut from, mut count, mut without, mut all) = (0, 0, vec![], false);
        for (word, value) in words(text) {
            match word {
                "all" => all = true,
                "replicas" => count = value.parse().unwrap(),
                "start" => from = value.parse().unwrap(),
                "without" => without = value.split(',').map(|n| n.parse().unwrap()).collect(),
                other => panic!("{other}"),
            }
        }
        let wants = if all {
            Wants::All
        } else {
            Wants::Ordinals { start: from, replicas: count, reserved: without }
        };
        Controller { uid: Uid::new("s1").unwrap(), wants }
    })
}

/// `plain`, or what differs from a pool that says nothing.
fn pools(text: &str) -> Answer<PoolPolicy> {
    answer(text, |text| {
        let mut pools = PoolPolicy::default();
        for (word, value) in words(text) {
            match word {
                "plain" => {}
                "keep" => pools.node_lost = NodeLost::Keep,
                "always" => pools.sticky = StickyRule::Always,
                "never" => pools.sticky = StickyRule::Never,
                "deleted=retain" | "retain" => pools.retention.when_deleted = Retain::Retain,
                "shrink" => pools.retention.when_scaled = Retain::Delete,
                "hold" => pools.retention.hold_for = Duration::from_secs(value.parse().unwrap()),
                other => panic!("{other}"),
            }
        }
        pools
    })
}

fn world(lease_: &str, pod_: &str, node_: &str, controller_: &str, pools_: &str) -> World {
    let lease = lease(lease_);
    World {
        pod: pod(pod_, &lease),
        lease,
        cluster: ClusterName::new("prod").unwrap(),
        pools: pools(pools_),
        node: node(node_),
        controller: controller(controller_),
    }
}

/// `1 keep pod_lives`; `8 note missed: not_missed_long_enough`; `5 give: pod deleting, …`; `!` is reported. That it is
/// noted as in doubt is left out: [`in_doubt`].
fn say(verdict: &Verdict) -> String {
    let row = verdict.row();
    let keep = |kept: &Kept| format!("{}{}", kept.why.label(), if kept.report { "!" } else { "" });
    match verdict {
        Verdict::Keep(kept) => format!("{row} keep {}", keep(kept)),
        Verdict::Note(kept, note) if *note == Note { doubt: note.doubt, ..Note::default() } => {
            format!("{row} keep {}", keep(kept))
        }
        Verdict::Note(kept, note) => {
            let missed = match note.missed {
                Missed::Same => None,
                Missed::First(first) => {
                    assert_eq!(first, NOW, "a first time is now");
                    Some("missed")
                }
                Missed::Cleared => Some("cleared"),
            };
            let controller = note.controller.as_deref();
            let sticky = note.sticky.then_some("sticky");
            let parts: Vec<&str> = [missed, controller, sticky].into_iter().flatten().collect();
            format!("{row} note {}: {}", parts.join(" "), keep(kept))
        }
        Verdict::Give(give) => format!("{row} give: {}", give.text()),
    }
}

#[track_caller]
fn row(lease: &str, pod: &str, node: &str, wanted: &str) {
    row_of("plain", lease, pod, node, wanted);
}

#[track_caller]
fn row_of(pools: &str, lease: &str, pod: &str, node: &str, wanted: &str) {
    let found = say(&world(lease, pod, node, "unknown", pools).verdict());
    assert_eq!(found, wanted, "{lease} | {pod} | {node} | {pools}");
}

/// Every state that a node can be in, as an answer.
const NODES: [&str; 13] = [
    "True",
    "False",
    "Unknown=-5",
    "Unknown=-600",
    "Unknown=60",
    "True off",
    "False off",
    "Unknown=-5 off",
    "Unsaid",
    "Unsaid off",
    "absent",
    "unknown",
    "True name=n2",
];

#[test]
fn row_1_a_pod_that_lives_keeps() {
    for node in NODES {
        row("bound", "Pending", node, "1 keep pod_lives");
        row("bound", "Running", node, "1 keep pod_lives");
        row("bound", "Unknown", node, "1 keep pod_lives");
        row("bound sticky", "Running", node, "1 keep pod_lives");
        row("bound assigned", "Running", node, "1 keep pod_lives");
        row("bound missed=-900", "Running", node, "1 note cleared: pod_lives");
    }
    row("bound", "Running uid=u2 created=-60", "absent", "1 keep pod_lives");
    row("bound", "Running node=n2", "absent", "1 keep pod_lives");
    row("bound", "Pending unscheduled", "absent", "1 keep pod_lives");
    // Nothing is given, so nothing rests on the pool.
    row_of("unknown", "bound", "Running", "True", "1 keep pod_lives");
}

#[test]
fn row_2_a_pod_that_has_time_to_leave_keeps() {
    for node in NODES {
        row("bound", "Running deleting=1", node, "2 keep terminating");
        row("bound", "Pending deleting=3600", node, "2 keep terminating");
        row("bound missed=-900", "Running deleting=1", node, "2 note cleared: terminating");
    }
    // Its end is what a node that cannot be asked has not confirmed.
    for node in ["Unknown=-600", "absent", "Unknown=-600 off"] {
        row("bound", "Failed deleting=1", node, "2 keep terminating");
    }
}

#[test]
fn row_3_a_kubelet_that_lives_ends_its_pods() {
    for node in ["True", "False", "True off"] {
        row("bound", "Running deleting=0", node, "3 keep kubelet_lives");
        row("bound", "Unknown deleting=-899", node, "3 keep kubelet_lives");
        row("bound", "Running deleting=-900", node, "3 keep kubelet_lives!");
        row_of("keep", "bound", "Running deleting=-60", node, "3 keep kubelet_lives");
        row("bound missed=-60", "Running deleting=-60", node, "3 note cleared: kubelet_lives");
    }
}

#[test]
fn rows_4_and_5_a_pod_that_should_be_gone_on_a_node_that_cannot_be_asked() {
    row("bound", "Running deleting=0", "Unknown=0", "4 keep node_unknown");
    row("bound", "Running deleting=-600", "Unknown=-29", "4 keep node_unknown");
    row("bound", "Running deleting=-600", "Unknown=60", "4 keep node_unknown");
    row_of("keep", "bound", "Running deleting=-600", "Unknown=-29", "4 keep node_lost_keep");
    row_of("unknown", "bound", "Running deleting=-600", "Unknown=-29", "4 keep node_unknown");
    let given = [
        ("Unknown=-30", "5 give: pod deleting, node n1 unreachable 30s"),
        ("Unknown=-192", "5 give: pod deleting, node n1 unreachable 3m12s"),
        ("False off", "5 give: pod deleting, node n1 out of service"),
        ("Unknown=-1 off", "5 give: pod deleting, node n1 out of service"),
        ("absent", "5 give: pod deleting, there is no node n1"),
    ];
    for (node, wanted) in given {
        row("bound", "Running deleting=0", node, wanted);
        row("bound sticky", "Pending deleting=-5", node, wanted);
        row("bound assigned", "Unknown deleting=-5", node, wanted);
        row("bound", "Running deleting=0 uid=u2", node, wanted);
        row_of("keep", "bound", "Running deleting=0", node, "5 keep node_lost_keep!");
        row_of("unknown", "bound", "Running deleting=0", node, "15 keep unknown_answer");
    }
    // A pod that names no node has run on the lease's.
    row("bound", "Running deleting=0 unscheduled", "absent", "5 give: pod deleting, there is no node n1");
}

#[test]
fn row_6_a_pod_that_has_ended_gives_after_its_teardown() {
    for node in ["True", "False", "True off", "False off"] {
        row("bound", "Succeeded finished=-119", node, "6 keep finishing");
        row("bound", "Succeeded finished=-120", node, "6 give: pod succeeded 2m ago");
        row("bound sticky", "Failed finished=-125", node, "6 give: pod failed 2m5s ago");
        row("bound", "Failed deleting=60 finished=-120", node, "6 give: pod failed 2m ago");
        row("bound", "Failed deleting=-60 finished=-60", node, "6 keep finishing");
        // It does not say when: counted from a note.
        row("bound", "Failed", node, "6 note missed: finishing");
        row("bound missed=-119", "Failed", node, "6 keep finishing");
        row("bound missed=-120", "Failed", node, "6 give: pod failed 2m ago");
        // A note of the future, and one of an earlier pod, are none; nor is an end that is to come.
        row("bound missed=1", "Failed", node, "6 note missed: finishing");
        row("bound missed=-600", "Failed created=-599", node, "6 note missed: finishing");
        row("bound", "Failed finished=7200", node, "6 note missed: finishing");
        row("bound missed=-120", "Failed finished=7200", node, "6 give: pod failed 2m ago");
        row("bound missed=-120", "Failed finished=-1", node, "6 give: pod failed 2m ago");
        row_of("keep", "bound", "Succeeded finished=-120", node, "6 give: pod succeeded 2m ago");
        row_of("unknown", "bound", "Succeeded finished=-120", node, "15 keep unknown_answer");
    }
}

#[test]
fn row_6_a_container_that_runs_has_not_ended_with_its_pod() {
    for node in ["True", "False", "True off", "False off"] {
        row("bound", "Failed runs", node, "6 keep container_runs");
        row("bound doubt=-600", "Failed runs", node, "6 keep container_runs");
        row("bound doubt=-899", "Succeeded runs deleting=-600", node, "6 keep container_runs");
        row("bound doubt=-900", "Failed runs", node, "6 keep container_runs!");
        row("adopted doubt=-900", "Failed runs", node, "6 keep container_runs!");
        // What was counted until it said so counts no more.
        row("bound missed=-600", "Failed runs", node, "6 note cleared: container_runs");
        row("bound doubt=-9999", "Failed finished=-119", node, "6 keep finishing");
    }
    // Nobody is there who could know.
    row("bound", "Failed runs", "Unknown=-30", "7 give: pod ended, node n1 unreachable 30s");
    row("bound", "Failed runs", "absent", "7 give: pod ended, there is no node n1");
}

#[test]
fn row_7_an_end_that_the_node_did_not_tell_counts_as_a_lost_node() {
    row("bound", "Failed finished=-600", "Unknown=-29", "7 keep node_unknown");
    row("bound", "Succeeded", "Unknown=0", "7 keep node_unknown");
    row_of("keep", "bound", "Failed", "Unknown=-29", "7 keep node_lost_keep");
    let given = [
        ("Unknown=-30", "7 give: pod ended, node n1 unreachable 30s"),
        ("Unknown=-1 off", "7 give: pod ended, node n1 out of service"),
        ("absent", "7 give: pod ended, there is no node n1"),
    ];
    for (node, wanted) in given {
        row("bound", "Failed", node, wanted);
        row("bound", "Succeeded finished=-1", node, wanted);
        row("bound", "Failed deleting=0", node, wanted);
        row_of("keep", "bound", "Failed", node, "7 keep node_lost_keep!");
    }
}

#[test]
fn row_8_a_pod_must_be_missed_by_two_passes_and_for_long() {
    for node in ["True", "False", "True off", "False off"] {
        row("bound", "absent", node, "8 note missed: not_missed_long_enough");
        row("bound missed=0", "absent", node, "8 keep not_missed_long_enough");
        row("bound missed=-119", "absent", node, "8 keep not_missed_long_enough");
        row("bound missed=-120", "absent", node, "8 give: pod absent for 2m");
        row("bound sticky missed=-130", "absent", node, "8 give: pod absent for 2m10s");
        row("bound assigned missed=-130", "absent", node, "8 give: pod absent for 2m10s");
        row("bound missed=1", "absent", node, "8 note missed: not_missed_long_enough");
        row_of("keep", "bound missed=-120", "absent", node, "8 give: pod absent for 2m");
        row_of("unknown", "bound missed=-120", "absent", node, "15 keep unknown_answer");
        row_of("unknown", "bound missed=-86400", "absent", node, "15 keep unknown_answer!");
    }
}

#[test]
fn row_9_a_silent_node_must_be_lost_as_well() {
    row("bound", "absent", "Unknown=-600", "9 note missed: not_missed_long_enough");
    row("bound missed=-119", "absent", "Unknown=-600", "9 keep not_missed_long_enough");
    row("bound missed=-600", "absent", "Unknown=-29", "9 keep node_unknown");
    row("bound missed=-600", "absent", "Unknown=-1 off", "9 keep node_unknown");
    let given = "9 give: pod absent for 2m, node n1 unreachable 30s";
    row("bound missed=-120", "absent", "Unknown=-30", given);
    row_of("keep", "bound missed=-120", "absent", "Unknown=-30", given);
    row("bound missed=60", "absent", "Unknown=-600", "9 note missed: not_missed_long_enough");
}

#[test]
fn row_10_a_node_that_is_gone_needs_no_more_than_an_absent_pod() {
    row("bound", "absent", "absent", "10 note missed: not_missed_long_enough");
    row("bound missed=-119", "absent", "absent", "10 keep not_missed_long_enough");
    let given = "10 give: pod absent for 2m, and there is no node n1";
    row("bound missed=-120", "absent", "absent", given);
    row("bound name=etcd-n1 missed=-120", "absent", "absent", given);
    row_of("keep", "bound missed=-120", "absent", "absent", given);
}

#[test]
fn row_11_a_static_pod_runs_whether_it_is_shown_or_not() {
    for node in ["True", "False", "Unknown=-600", "False off"] {
        row("bound name=etcd-n1", "absent", node, "11 note missed: static_pod!");
        row("bound name=etcd-n1 missed=-9999", "absent", node, "11 keep static_pod!");
        row("bound name=etcd seen=Node/n1 missed=-9999", "absent", node, "11 keep static_pod!");
    }
    row(
        "bound name=etcd-n1 seen=StatefulSet.apps/etcd missed=-120",
        "absent",
        "True",
        "8 give: pod absent for 2m",
    );
    row("bound name=etcdn1 missed=-120", "absent", "True", "8 give: pod absent for 2m");
    row("bound name=etcd-n12 missed=-120", "absent", "True", "8 give: pod absent for 2m");
}

/// An adopted lease knows no node. That of a static pod may be written again by a repair, with nothing that was seen.
#[test]
fn an_adopted_lease_ends_with_its_pod_unless_that_is_perhaps_static() {
    let given = "8 give: adopted, pod absent for 2m";
    for node in ["absent", "unknown"] {
        row("adopted seen=ReplicaSet.apps/web missed=-120", "absent", node, given);
    }
    row("adopted", "absent", "absent", "8 note missed: not_missed_long_enough");
    row("adopted missed=-119", "absent", "absent", "8 keep not_missed_long_enough");
    row("adopted missed=-120", "absent", "absent", given);
    for node in ["True", "False", "Unknown=-600", "False off"] {
        row("adopted name=etcd-n1", "absent", node, "11 note missed: static_pod!");
        row("adopted name=etcd-n1 missed=-9999", "absent", node, "11 keep static_pod!");
        row("adopted name=etcd seen=Node/n1 missed=-9999", "absent", node, "11 keep static_pod!");
    }
    // No such node, or another one's answer.
    row("adopted name=etcd-n1 missed=-120", "absent", "absent", given);
    row("adopted name=etcd seen=Node/n1 missed=-120", "absent", "absent", given);
    for lease in ["adopted name=etcd-n1 missed=-120", "adopted name=etcd seen=Node/n1 missed=-120"] {
        row(lease, "absent", "True name=n2", "15 keep unknown_answer");
        row(lease, "absent", "unknown", "15 keep unknown_answer");
    }
    row("adopted", "Running", "unknown", "1 keep pod_lives");
    row("adopted", "Running deleting=-60", "True", "3 keep kubelet_lives");
    row("adopted", "Running deleting=-60", "absent", "5 give: pod deleting, there is no node n1");
    row("adopted", "Failed finished=-120", "True", "6 give: pod failed 2m ago");
    // What is sticky is held for its pod.
    row("adopted sticky name=bare missed=-9999", "absent", "absent", "12 no owner keep no_owner");
}

#[test]
fn rows_13_and_13a_what_no_pod_can_end() {
    for pod in ["Running", "Failed finished=-9999", "absent", "unknown"] {
        for node in NODES {
            row("reserved missed=-9999", pod, node, "13 keep reserved");
            row("container missed=-9999", pod, node, "13a keep no_pod_identity!");
        }
    }
}

#[test]
fn row_14_what_cannot_be_read_is_kept_and_told() {
    assert_eq!(say(&unreadable("v is 9")), "14 keep unreadable!");
    assert_eq!(unreadable("v is 9").text(), "cannot be read: v is 9");
}

#[test]
fn row_15_what_was_not_answered_keeps() {
    for node in NODES {
        row("bound missed=-9999", "unknown", node, "15 keep unknown_answer");
        row("held missed=-9999", "unknown", node, "15 keep unknown_answer");
    }
    for pod in ["absent", "Running deleting=-60", "Failed finished=-999"] {
        row("bound", pod, "unknown", "15 keep unknown_answer");
        row("bound", pod, "True name=n2", "15 keep unknown_answer");
    }
    row("bound missed=-9999", "absent", "unknown", "15 keep unknown_answer");
    // A node without the condition: its kubelet may come up.
    row("bound missed=-9999", "absent", "Unsaid", "15 keep unknown_answer");
    row("bound", "Running deleting=-60", "Unsaid", "15 keep unknown_answer");
    row("bound", "Failed finished=-999", "Unsaid", "15 keep unknown_answer");
    row("bound name=etcd-n1 missed=-9999", "absent", "Unsaid", "11 keep static_pod!");
    row("bound", "Running deleting=-60", "Unsaid off", "5 give: pod deleting, node n1 out of service");
    text(
        "bound",
        "Running deleting=-60",
        "Unsaid",
        "unknown",
        "plain",
        "not known: node n1 has no condition Ready",
    );
    // That the pod is there is known all the same.
    row("bound missed=-9999", "Running deleting=-60", "unknown", "15 note cleared: unknown_answer");
    let mut other = world("bound missed=-9999", "absent", "True", "absent", "plain");
    other.cluster = ClusterName::new("test").unwrap();
    assert_eq!(say(&other.verdict()), "15 keep other_cluster");
    other.lease = lease("held");
    assert_eq!(say(&other.verdict()), "15 keep other_cluster");
}

#[track_caller]
fn held(lease: &str, controller: &str, pools: &str, wanted: &str) {
    let found = say(&world(&format!("held {lease}"), "absent", "unknown", controller, pools).verdict());
    assert_eq!(found, wanted, "{lease} | {controller} | {pools}");
}

const DB: &str = "seen=StatefulSet.apps/db";

#[test]
fn held_while_its_pod_exists() {
    for pod in ["Pending", "Running", "Failed finished=-9999", "Running deleting=-9999"] {
        row_of("hold=1", "held", pod, "absent", "12 wanted keep pod_exists");
        row_of("hold=1", "held missed=-9999", pod, "absent", "12 wanted note cleared: pod_exists");
        row_of("unknown", "held", pod, "unknown", "12 wanted keep pod_exists");
    }
}

#[test]
fn held_while_its_ordinal_is_wanted() {
    let wanted = "12 wanted keep owner_wants_it";
    let scaled = "12 scaled keep scaled_down";
    held(&format!("name=db-2 {DB}"), "replicas=3", "plain", wanted);
    held(&format!("name=db-2 {DB}"), "replicas=3", "hold=1", wanted);
    held(
        &format!("name=db-2 {DB} missed=-9999"),
        "replicas=3",
        "plain",
        "12 wanted note cleared: owner_wants_it",
    );
    held(&format!("name=db-3 {DB}"), "replicas=3", "plain", scaled);
    held(&format!("name=db-0 {DB}"), "replicas=0", "plain", scaled);
    held(&format!("name=db-4 {DB}"), "replicas=3 start=5", "plain", scaled);
    held(&format!("name=db-5 {DB}"), "replicas=3 start=5", "plain", wanted);
    held(&format!("name=db-7 {DB}"), "replicas=3 start=5", "plain", wanted);
    held(&format!("name=db-8 {DB}"), "replicas=3 start=5", "plain", scaled);
    // Five digits of a suffix's alphabet are an ordinal all the same, where the controller is known.
    held(&format!("name=db-22456 {DB}"), "replicas=3", "plain", scaled);
    // A name that tells no ordinal of this controller: that it exists is enough.
    held(&format!("name=db {DB}"), "replicas=3", "plain", wanted);
    held(&format!("name=web-7 {DB}"), "replicas=3", "plain", wanted);
    held(&format!("name=db-x {DB}"), "replicas=3", "plain", wanted);
    held(&format!("name=db-7 {DB}"), "all", "shrink", wanted);
}

#[test]
fn reserved_ordinals_are_left_out_and_not_counted() {
    let kruise = "seen=StatefulSet.apps.kruise.io/db";
    let case = |name: &str, controller: &str, wanted: bool| {
        let wanted = if wanted { "12 wanted keep owner_wants_it" } else { "12 scaled keep scaled_down" };
        held(&format!("name={name} {kruise}"), controller, "plain", wanted);
    };
    // 0, 2, 4
    for (ordinal, wanted) in [(0, true), (1, false), (2, true), (3, false), (4, true), (5, false)] {
        case(&format!("db-{ordinal}"), "replicas=3 without=1,3", wanted);
        case(&format!("db-{ordinal}"), "replicas=3 without=3,1,1,9", wanted);
    }
    // 6, 8: what is reserved below the start counts for nothing
    for (ordinal, wanted) in [(1, false), (5, false), (6, true), (7, false), (8, true), (9, false)] {
        case(&format!("db-{ordinal}"), "replicas=2 start=5 without=1,5,7", wanted);
    }
}

#[test]
fn b072_scaled_down_is_what_the_pool_says() {
    let lease = format!("name=db-3 {DB}");
    held(&lease, "replicas=3", "plain", "12 scaled keep scaled_down");
    held(&lease, "replicas=3", "shrink", "12 scaled give: StatefulSet db scaled to 3, whenScaled Delete");
    held(&lease, "replicas=3", "retain", "12 scaled keep scaled_down");
    held(&format!("{lease} missed=-9999"), "replicas=3", "plain", "12 scaled note cleared: scaled_down");
    held(&lease, "replicas=4", "shrink", "12 wanted keep owner_wants_it");
}

#[test]
fn an_absent_controller_may_be_made_anew() {
    held(DB, "absent", "plain", "12 owner absent note missed: owner_not_missed_long_enough");
    held(
        &format!("{DB} missed=-599"),
        "absent",
        "plain",
        "12 owner absent keep owner_not_missed_long_enough",
    );
    let given = "12 owner absent give: StatefulSet db gone for 10m, whenDeleted Delete";
    held(&format!("{DB} missed=-600"), "absent", "plain", given);
    held(&format!("{DB} missed=-600"), "absent", "shrink", given);
    held(&format!("{DB} missed=-600"), "absent", "retain", "12 owner absent keep owner_gone");
    let again = "12 owner absent note missed: owner_not_missed_long_enough";
    held(&format!("{DB} missed=1"), "absent", "plain", again);
    held(&format!("{DB} missed=-600"), "unknown", "plain", "15 keep unknown_answer");
    held(&format!("{DB} missed=-600"), "absent", "unknown", "15 keep unknown_answer");
    // It is back: the note is gone, and the next absence is counted from its own first pass.
    held(&format!("{DB} missed=-600"), "replicas=1", "plain", "12 wanted note cleared: owner_wants_it");
}

#[test]
fn a_controller_that_nobody_knows_keeps_and_is_doubtful_after_a_day() {
    held("", "absent", "plain", "12 no owner keep no_owner");
    held("since=-86399", "absent", "plain", "12 no owner keep no_owner");
    held("since=-86400", "absent", "plain", "12 no owner keep no_owner!");
    held("name=db", "unknown", "plain", "12 no owner keep no_owner");
    // Of a kind that nobody reads.
    held("seen=Job.batch/db", "unknown", "plain", "12 no owner keep owner_kind_not_read");
    held("seen=Job.batch/db since=-86400", "unknown", "plain", "12 no owner keep owner_kind_not_read!");
    // The StatefulSet of its name is evidence for it only.
    held("", "replicas=1", "plain", "12 wanted keep owner_wants_it");
    held("name=db-1", "replicas=1", "plain", "12 no owner keep no_owner");
    held("name=db-1", "replicas=1", "shrink", "12 no owner keep no_owner");
    held("missed=-9999", "absent", "plain", "12 no owner keep no_owner");
    held("", "unknown", "plain", "15 keep unknown_answer");
    held("since=-86400", "unknown", "plain", "15 keep unknown_answer");
}

/// From the first pass that keeps it so it is noted, and after a day of that, reported.
#[track_caller]
fn in_doubt(lease: &str, pod: &str, node: &str, controller: &str, pools: &str, label: &str) {
    let doubt = |since: &str| {
        let world = world(&format!("{lease} {since}"), pod, node, controller, pools);
        let verdict = world.verdict();
        let kept = verdict.kept().unwrap();
        assert_eq!(kept.why.label(), label, "{world:?}");
        let noted = if let Verdict::Note(_, note) = &verdict { note.doubt } else { Missed::Same };
        (noted, kept.report)
    };
    let first = doubt("").1;
    assert_eq!(doubt(""), (Missed::First(NOW), first));
    assert_eq!(doubt("doubt=1"), (Missed::First(NOW), first));
    assert_eq!(doubt("doubt=-82800"), (Missed::Same, first || label == "container_runs"));
    assert_eq!(doubt("doubt=-90000"), (Missed::Same, true));
}

#[test]
fn what_doubt_keeps_is_noted_and_reported_after_a_day() {
    let job = "held seen=Job.batch/db";
    let lost = "Running deleting=-60";
    in_doubt("held", "absent", "unknown", "absent", "plain", "no_owner");
    in_doubt(job, "absent", "unknown", "unknown", "plain", "owner_kind_not_read");
    in_doubt(&format!("held {DB}"), "absent", "unknown", "replicas=1", "unknown", "unknown_answer");
    in_doubt(&format!("held {DB}"), "absent", "unknown", "unknown", "plain", "unknown_answer");
    in_doubt("bound", lost, "Unknown=-60", "unknown", "keep", "node_lost_keep");
    in_doubt("bound", lost, "Unknown=-1", "unknown", "keep", "node_lost_keep");
    in_doubt("bound", "Failed", "absent", "unknown", "keep", "node_lost_keep");
    in_doubt("bound", "Failed runs", "True", "unknown", "plain", "container_runs");
    in_doubt("bound", lost, "absent", "unknown", "unknown", "unknown_answer");
    in_doubt("bound missed=-600", "absent", "True", "unknown", "unknown", "unknown_answer");
    // What is known again is in doubt no more.
    for (lease, pod, controller) in [
        ("bound", "Running", "unknown"),
        ("bound", "Running deleting=60", "unknown"),
        ("bound", "Failed finished=-1", "unknown"),
        ("held", "Running", "unknown"),
        ("held seen=StatefulSet.apps/db", "absent", "replicas=1"),
        ("held seen=StatefulSet.apps/db", "absent", "absent"),
    ] {
        let world = world(&format!("{lease} doubt=-90000"), pod, "True", controller, "plain");
        let Verdict::Note(kept, note) = world.verdict() else { panic!("{world:?}") };
        assert_eq!((note.doubt, kept.report), (Missed::Cleared, false), "{world:?}");
        assert_eq!(note.write(&world.lease).seen.and_then(|seen| seen.doubt), None);
    }
}

#[test]
fn hold_for_is_an_upper_limit_of_what_nobody_wants() {
    let given = "12 holdFor give: held for 1h, holdFor 1h";
    held("name=db-1", "absent", "hold=3601", "12 no owner keep no_owner");
    held("name=db-1", "absent", "hold=3600", given);
    held("name=db-1", "replicas=1", "hold=3600", given);
    held("name=db", "unknown", "hold=3600", given);
    held("seen=Job.batch/db", "unknown", "hold=3600", given);
    held(&format!("name=db-1 {DB}"), "replicas=1", "hold=3600", given);
    held(&format!("name=db-1 {DB}"), "replicas=2", "hold=3600", "12 wanted keep owner_wants_it");
    held(&format!("{DB} missed=-600"), "absent", "retain hold=3600", given);
    held(DB, "absent", "hold=3600", "12 owner absent note missed: owner_not_missed_long_enough");
    let waits = "12 owner absent keep owner_not_missed_long_enough";
    held(&format!("{DB} missed=-599"), "absent", "retain hold=3600", waits);
    held(DB, "unknown", "hold=1", "15 keep unknown_answer");
    held("", "unknown", "hold=1", "15 keep unknown_answer");
    held("name=db-1", "absent", "hold=0", "12 no owner keep no_owner");
}

#[test]
fn what_the_pod_shows_is_noted() {
    let shown = "Running of=StatefulSet.apps/db";
    row("bound", shown, "True", "1 note StatefulSet.apps/db sticky: pod_lives");
    row("bound sticky", shown, "True", "1 note StatefulSet.apps/db: pod_lives");
    row("bound seen=StatefulSet.apps/db", shown, "True", "1 note sticky: pod_lives");
    row("bound sticky seen=StatefulSet.apps/db", shown, "True", "1 keep pod_lives");
    row("bound sticky seen=Job.batch/db", shown, "True", "1 note StatefulSet.apps/db: pod_lives");
    row("bound missed=-9", shown, "True", "1 note cleared StatefulSet.apps/db sticky: pod_lives");
    row("held", shown, "True", "12 wanted note StatefulSet.apps/db: pod_exists");
    // Pool and annotation come before the controller, and nothing takes the mark away.
    for pools in ["always", "never", "unknown"] {
        row_of(pools, "bound", shown, "True", "1 note StatefulSet.apps/db: pod_lives");
    }
    row("bound", &format!("{shown} wish=false"), "True", "1 note StatefulSet.apps/db: pod_lives");
    row("bound", "Running of=Job.batch/db", "True", "1 note Job.batch/db: pod_lives");
    row("bound sticky seen=Job.batch/db", "Running of=Job.batch/db", "True", "1 keep pod_lives");
    // One that does not come back under its name is not worth a write.
    row(
        "bound name=web-7d9c4f6b5d-x7k2p",
        "Running of=ReplicaSet.apps/web-7d9c4f6b5d",
        "True",
        "1 keep pod_lives",
    );
    row("reserved", shown, "True", "13 keep reserved");
}

#[test]
fn a_controller_is_noted_before_its_lease_ends() {
    let gone = "Running deleting=-60 of=StatefulSet.apps/db";
    row("bound", gone, "absent", "5 note StatefulSet.apps/db sticky: controller_first");
    row("bound sticky", gone, "absent", "5 note StatefulSet.apps/db: controller_first");
    row("bound seen=StatefulSet.apps/db", gone, "absent", "5 note sticky: controller_first");
    let given = "5 give: pod deleting, there is no node n1";
    row("bound sticky seen=StatefulSet.apps/db", gone, "absent", given);
    // It is released, and nobody will ask who wants it.
    row("bound", "Running deleting=-60 of=Job.batch/db", "absent", given);
    let ended = "Succeeded finished=-120 of=Job.batch/db";
    row("bound", ended, "True", "6 give: pod succeeded 2m ago");
    row("bound sticky", ended, "True", "6 note Job.batch/db: controller_first");
}

#[test]
fn a_note_changes_what_it_names_and_nothing_else() {
    let old = lease("bound missed=-60 seen=StatefulSet.apps/db");
    let all = Note {
        controller: Some("X/y".into()),
        missed: Missed::First(NOW),
        doubt: Missed::First(NOW),
        sticky: true,
    };
    assert_eq!(all.write(&old), lease("bound missed=0 doubt=0 seen=X/y sticky"));
    assert_eq!(Note::default().write(&old), old);
    let cleared = Note { missed: Missed::Cleared, ..Note::default() };
    assert_eq!(cleared.write(&old), lease("bound seen=StatefulSet.apps/db"));
    assert_eq!(cleared.write(&lease("bound missed=-60 sticky")), lease("bound sticky"));
}

#[track_caller]
fn asks(lease_: &str, pod_: &str, node: Option<&str>, controller: Option<&str>) {
    let lease = lease(lease_);
    let found = needs(&lease, &pod(pod_, &lease).as_ref(), &Policy::default());
    let sought = found.node.map(|sought| match sought {
        Sought::Named(name) => name.to_string(),
        Sought::Hinted(pod) => format!("of {pod}"),
    });
    assert_eq!(sought.as_deref(), node, "{lease_} | {pod_}");
    assert_eq!(
        found.controller.map(|c| format!("{c} {}", c.version)).as_deref(),
        controller,
        "{lease_} | {pod_}"
    );
}

#[test]
fn only_what_a_verdict_needs_is_asked() {
    asks("bound", "Running", None, None);
    asks("bound", "unknown", None, None);
    asks("bound", "absent", Some("n1"), None);
    asks("bound", "Running deleting=-60 node=n2", Some("n2"), None);
    asks("bound", "Failed node=n2", Some("n2"), None);
    asks("bound", "Failed unscheduled", Some("n1"), None);
    asks("adopted", "Running", None, None);
    asks("adopted", "Failed node=n2", Some("n2"), None);
    asks("adopted", "absent", Some("of db-0"), None);
    asks("adopted seen=Node/n2", "absent", Some("n2"), None);
    asks("adopted seen=StatefulSet.apps/db", "absent", None, None);
    asks("adopted sticky", "absent", None, Some("StatefulSet.apps/db v1"));
    asks("held", "Running", None, None);
    asks("held", "unknown", None, None);
    asks("held", "absent", None, Some("StatefulSet.apps/db v1"));
    asks("held name=bare", "absent", None, None);
    asks("held seen=StatefulSet.apps/db", "absent", None, Some("StatefulSet.apps/db v1"));
    asks("held seen=StatefulSet.apps.kruise.io/x", "absent", None, Some("StatefulSet.apps.kruise.io/x "));
    asks("held seen=Job.batch/db", "absent", None, None);
    asks("reserved", "absent", None, None);
    asks("container", "absent", None, None);
}

#[test]
fn b037_a_pod_without_status_lives() {
    row("bound", "Pending created=-600", "True", "1 keep pod_lives");
}

#[test]
fn b041_a_pod_that_is_there_at_the_live_question_keeps() {
    let listed = world("bound missed=-600", "absent", "True", "unknown", "plain");
    let Verdict::Give(give) = listed.verdict() else { panic!() };
    let live = World { pod: pod("Pending uid=u2", &listed.lease), ..listed };
    assert_eq!(confirm(&give, &live.case(), &[], &Policy::default(), NOW), Err(Keep::PodLives));
}

#[test]
fn b046_a_live_question_without_an_answer_keeps() {
    let listed = world("bound missed=-600", "absent", "True", "unknown", "plain");
    let Verdict::Give(give) = listed.verdict() else { panic!() };
    for (pod_, node_) in [("unknown", "True"), ("absent", "unknown")] {
        let live = World { pod: pod(pod_, &listed.lease), node: node(node_), ..listed.clone() };
        let found = confirm(&give, &live.case(), &[], &Policy::default(), NOW);
        assert_eq!(found, Err(Keep::UnknownAnswer { reason: "500".into() }));
    }
}

#[test]
fn b048_a_lease_that_has_changed_is_judged_anew() {
    let listed = world("bound missed=-600", "absent", "True", "unknown", "plain");
    let Verdict::Give(give) = listed.verdict() else { panic!() };
    assert!(confirm(&give, &listed.case(), &[], &Policy::default(), NOW).is_ok());
    let touched = World { lease: lease("bound sticky missed=-600"), ..listed.clone() };
    assert_eq!(confirm(&give, &touched.case(), &[], &Policy::default(), NOW), Err(Keep::Changed));
    let brakes = [Brake::Orphans { orphans: 21, bound: 21, limit: None, strange: false }];
    let found = confirm(&give, &listed.case(), &brakes, &Policy::default(), NOW).unwrap_err();
    assert_eq!(found.label(), "braked");
}

#[test]
fn what_a_false_list_does_not_show_is_not_noted() {
    let braked = |brake_: Brake| {
        let world = world("bound", "absent", "True", "unknown", "plain");
        say(&brake(world.verdict(), &[brake_]))
    };
    let kept = "8 keep not_missed_long_enough";
    let (cluster, uid) = (ClusterName::new("prod").unwrap(), |text: &str| Uid::new(text).unwrap());
    assert_eq!(braked(Brake::Empty { list: "pods", bound: 1 }), kept);
    assert_eq!(braked(Brake::Incomplete { reason: "410".into() }), kept);
    assert_eq!(braked(Brake::Identity { cluster, registered: uid("a"), found: uid("b") }), kept);
    let noted = "8 note missed: not_missed_long_enough";
    assert_eq!(braked(Brake::Orphans { orphans: 21, bound: 21, limit: None, strange: false }), noted);
    assert_eq!(braked(Brake::Silent { silent: 3, nodes: 3 }), noted);
}

#[test]
fn b052_no_clock_of_a_node_counts() {
    for since in ["-7200", "7200"] {
        let mut world = world("bound", "absent", "True", "unknown", "plain");
        let Binding::Bound(stamp) = &mut world.lease.binding else { panic!() };
        stamp.at = at(since);
        (world.lease.since, world.lease.created) = (at(since), at(since));
        assert_eq!(say(&world.verdict()), "8 note missed: not_missed_long_enough");
        world.lease.seen.get_or_insert_default().missed = Some(at("-119"));
        assert_eq!(say(&world.verdict()), "8 keep not_missed_long_enough");
        world.lease.seen.get_or_insert_default().missed = Some(at("-120"));
        assert_eq!(say(&world.verdict()), "8 give: pod absent for 2m");
    }
}

#[test]
fn b054_leaving_on_a_node_that_was_shut_down() {
    for (pools, node, wanted) in [
        ("plain", "True", "3 keep kubelet_lives"),
        ("plain", "False", "3 keep kubelet_lives"),
        ("plain", "False off", "5 give: pod deleting, node n1 out of service"),
        ("plain", "Unknown=-60", "5 give: pod deleting, node n1 unreachable 1m"),
        ("keep", "False off", "5 keep node_lost_keep!"),
        ("keep", "Unknown=-60", "5 keep node_lost_keep!"),
    ] {
        row_of(pools, "bound", "Running deleting=-60", node, wanted);
        row_of(pools, "bound", "Running", node, "1 keep pod_lives");
    }
}

#[test]
fn b056_a_job_that_is_done_gives_and_one_that_restarts_keeps() {
    row("bound name=job-x7k2p", "Succeeded finished=-120", "True", "6 give: pod succeeded 2m ago");
    row("bound name=job-x7k2p", "Running", "True", "1 keep pod_lives");
}

#[test]
fn b058_a_pod_made_anew_that_never_asked_is_reported() {
    row("bound", "Running uid=u2 created=-1800", "True", "1 keep unclaimed!");
    row("bound", "Running uid=u1 created=-1800", "True", "1 keep pod_lives");
    row("bound", "Running uid=u2 created=-899", "True", "1 keep pod_lives");
    row("bound", "Running uid=u2 created=-2700", "True", "1 keep pod_lives");
    row("bound", "Pending uid=u2 created=-1800", "True", "1 keep pod_lives");
    row("bound", "Running uid=u2 mirror=u1 created=-1800", "True", "1 keep pod_lives");
}

#[test]
fn b062_the_same_name_in_another_namespace_is_another_pod() {
    row("bound missed=-600", "Failed finished=-600 namespace=default", "True", "15 keep unknown_answer");
    row("bound missed=-600", "Running namespace=default", "True", "15 keep unknown_answer");
}

#[test]
fn b118_a_mirror_pod_is_its_static_pod() {
    row("bound name=x-n1 missed=-9999", "absent", "True", "11 keep static_pod!");
    row("bound name=x-n1", "Running uid=m1 mirror=u1", "True", "1 keep pod_lives");
    row("bound name=x-n1", "Running uid=m1 mirror=u1 of=Node/n1", "True", "1 note Node/n1: pod_lives");
}

#[test]
fn an_absence_below_the_life_of_an_add_is_not_waited_for_less() {
    let policy = Policy { absent_after: Duration::from_secs(1), ..Policy::default() };
    for (missed, wanted) in [("-14", "8 keep not_missed_long_enough"), ("-15", "8 give: pod absent for 15s")]
    {
        let world = world(&format!("bound missed={missed}"), "absent", "True", "unknown", "plain");
        assert_eq!(say(&verdict(&world.case(), &policy, NOW)), wanted);
    }
}

#[track_caller]
fn text(lease: &str, pod: &str, node: &str, controller: &str, pools: &str, wanted: &str) {
    assert_eq!(world(lease, pod, node, controller, pools).verdict().text(), wanted);
}

#[test]
fn every_reason_is_a_sentence_with_its_figures() {
    let text_of =
        |lease: &str, pod: &str, node: &str, wanted: &str| text(lease, pod, node, "unknown", "plain", wanted);
    text_of("bound", "Running", "True", "its pod lives");
    text_of("bound", "Running uid=u2", "True", "its pod was made anew 30m ago and has not asked for it");
    text_of("bound", "Running deleting=30", "True", "pod deleting, has 30s left");
    text_of(
        "bound",
        "Running deleting=-90",
        "True",
        "pod deleting, overdue 1m30s, but the kubelet of node n1 lives",
    );
    text_of("bound", "Running deleting=-90", "Unknown=-10", "node n1 unreachable 10s, given back in 20s");
    text_of("bound", "Failed finished=-12", "True", "pod ended, given back in 1m48s");
    text_of(
        "bound doubt=-60",
        "Failed runs",
        "True",
        "pod ended, seen so for 1m, but a container of it runs",
    );
    text_of("bound missed=-12", "absent", "True", "pod missed 12s, given back in 1m48s");
    text_of("bound name=a-n1", "absent", "True", "pod missed, but perhaps a static pod of node n1");
    text_of("held", "Running", "True", "its pod exists");
    text_of("bound", "unknown", "True", "not known: 500");
    text_of("reserved", "absent", "True", "reserved");
    text_of("container", "absent", "True", "a container without a pod: ended by DEL, GC or a person");
    let lost = "there is no node n1, nodeLost keep";
    text("bound", "Running deleting=-90", "absent", "unknown", "keep", lost);
    let held = |lease: &str, controller: &str, pools: &str, wanted: &str| {
        text(&format!("held name=db-7 {lease}"), "absent", "unknown", controller, pools, wanted);
    };
    held(DB, "replicas=8", "plain", "StatefulSet db wants it");
    held(DB, "replicas=5", "plain", "StatefulSet db scaled to 5, whenScaled Retain");
    held(&format!("{DB} missed=-60"), "absent", "plain", "StatefulSet db missed 1m, decided in 9m");
    held(&format!("{DB} missed=-900"), "absent", "retain", "StatefulSet db gone for 15m, whenDeleted Retain");
    held("", "absent", "plain", "held for 1h, and no controller known that wants it");
    held("seen=Job.batch/db", "unknown", "plain", "held for 1h, and Job db is of no kind in stickyKinds");
    let first = "its controller StatefulSet.apps/db is noted first";
    text_of("bound", "Running deleting=-90 of=StatefulSet.apps/db", "absent", first);
}

fn pool(change: impl Fn(&mut Draft)) -> Pool {
    let mut draft = Draft {
        name: "p".into(),
        networks: vec!["lan".into()],
        serves: vec!["*/*".into()],
        ranges: vec![RangeDraft { subnet: "10.0.0.0/24".into(), ..RangeDraft::default() }],
        ..Draft::default()
    };
    change(&mut draft);
    Pool::from_draft(&draft).unwrap()
}

#[test]
fn a_pool_that_says_nothing_and_inline_ranges_are_alike() {
    let plain = pool(|_| {});
    assert_eq!(PoolPolicy::of_pool(&plain), PoolPolicy::default());
    assert_eq!(PoolPolicy::of_lease(&lease("bound"), |_| panic!()), Answer::Present(PoolPolicy::default()));
}

#[test]
fn of_two_pools_what_keeps_the_longest_counts() {
    let keeps = pool(|d| {
        d.node_lost = Some("keep".into());
        d.when_deleted = Some("Retain".into());
        d.when_scaled = Some("Delete".into());
        d.hold_for = Some("1h".into());
        d.sticky = Some("never".into());
    });
    let plain = pool(|d| d.hold_for = Some("2h".into()));
    let endless = pool(|_| {});
    let mut lease = lease("bound");
    let address = lease.addresses[0].clone();
    let named = |name: &str| LeasedAddress { pool: Some(PoolName::new(name).unwrap()), ..address.clone() };
    let find = |name: &PoolName| match name.as_str() {
        "keeps" => Answer::Present(&keeps),
        "plain" => Answer::Present(&plain),
        "endless" => Answer::Present(&endless),
        "broken" => Answer::Unknown("v is 9".into()),
        _ => Answer::Absent,
    };
    for order in [["keeps", "plain"], ["plain", "keeps"]] {
        lease.addresses = order.iter().map(|name| named(name)).collect();
        let Answer::Present(found) = PoolPolicy::of_lease(&lease, find) else { panic!() };
        assert_eq!((found.node_lost, found.sticky), (NodeLost::Keep, StickyRule::Never));
        let hold_for = Duration::from_secs(7200);
        let wanted = Retention { when_deleted: Retain::Retain, when_scaled: Retain::Retain, hold_for };
        assert_eq!(found.retention, wanted);
    }
    for order in [["keeps", "endless"], ["endless", "keeps"]] {
        lease.addresses = order.iter().map(|name| named(name)).collect();
        let Answer::Present(found) = PoolPolicy::of_lease(&lease, find) else { panic!() };
        assert_eq!(found.retention.hold_for, Duration::ZERO);
    }
    for (other, why) in [("broken", "pool broken: v is 9"), ("gone", "there is no pool gone")] {
        lease.addresses = vec![named("plain"), named(other)];
        assert_eq!(PoolPolicy::of_lease(&lease, find), Answer::Unknown(why.into()));
    }
    lease.addresses = vec![];
    assert!(matches!(PoolPolicy::of_lease(&lease, find), Answer::Unknown(_)));
}

#[track_caller]
fn forgotten(at_: &str, unconfirmed: bool, declined: Option<&str>, wanted: bool) {
    let declined = declined.map(|text| Declined { mac: "02:11:22:33:44:55".into(), at: at(text) });
    let lease = lease("bound");
    let released =
        Released { at: at(at_), by: lease.id.holder, cluster: lease.id.cluster, unconfirmed, declined };
    assert_eq!(is_forgotten(&released, NOW), wanted);
}

#[test]
fn a_released_key_is_forgotten_after_a_day_unless_somebody_may_answer() {
    forgotten("-86400", false, None, true);
    forgotten("-86399", false, None, false);
    forgotten("-999999", true, None, false);
    forgotten("60", false, None, false);
    forgotten("-86400", false, Some("-86400"), true);
    forgotten("-999999", false, Some("-86399"), false);
    forgotten("-999999", true, Some("-999999"), false);
}

const LEASES: [&str; 29] = [
    "bound",
    "bound sticky",
    "bound assigned missed=-600",
    "bound missed=-120",
    "bound missed=-119",
    "bound missed=60",
    "bound sticky missed=-9999 seen=StatefulSet.apps/db",
    "bound name=etcd-n1 missed=-9999",
    "bound name=etcd seen=Node/n1",
    "bound name=web-7d9c4f6b5d-x7k2p missed=-600",
    "adopted",
    "adopted missed=-120",
    "adopted name=etcd-n1 missed=-9999",
    "adopted name=etcd seen=Node/n1 missed=-600",
    "adopted sticky seen=StatefulSet.apps/db missed=-600",
    "reserved",
    "container missed=-600",
    "held",
    "held name=bare",
    "held missed=-600",
    "held sticky seen=StatefulSet.apps/db",
    "held sticky seen=StatefulSet.apps/db missed=-600",
    "held sticky seen=StatefulSet.apps/db missed=-599 since=-599",
    "held sticky seen=StatefulSet.apps/db missed=60",
    "held name=db-7 seen=StatefulSet.apps/db",
    "held seen=Job.batch/db since=-99999",
    "held doubt=-99999",
    "bound doubt=-600",
    "held seen=StatefulSet.apps.kruise.io/db missed=-600",
];
const PODS: [&str; 20] = [
    "absent",
    "absent",
    "unknown",
    "Running",
    "Pending unscheduled",
    "Unknown of=StatefulSet.apps/db",
    "Running uid=u2",
    "Running deleting=0",
    "Running deleting=1",
    "Running deleting=-900 of=StatefulSet.apps/db",
    "Pending deleting=-900 node=n2",
    "Succeeded",
    "Failed finished=-119",
    "Failed finished=-120 of=Job.batch/db",
    "Failed finished=600",
    "Failed runs",
    "Succeeded runs deleting=-60",
    "Failed created=-60",
    "Failed deleting=60",
    "Succeeded finished=-600 deleting=-60 wish=true",
];
const CONTROLLERS: [&str; 6] =
    ["absent", "absent", "unknown", "all", "replicas=3", "replicas=2 start=4 without=4,7"];
const POOLS: [&str; 7] = ["plain", "keep", "shrink", "retain hold=3600", "hold=3600", "unknown", "never"];

fn worlds() -> impl Strategy<Value = World> {
    let pick = |words: &'static [&'static str]| prop::sample::select(words);
    (pick(&LEASES), pick(&PODS), pick(&NODES), pick(&CONTROLLERS), pick(&POOLS))
        .prop_map(|(lease, pod, node, controller, pools)| world(lease, pod, node, controller, pools))
}

fn is_give(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Give(_))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4096,
        failure_persistence: Some(Box::new(proptest::test_runner::FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_lives_is_never_given(world in worlds()) {
        if let Answer::Present(pod) = &world.pod
            && !pod.phase.is_final()
            && pod.deleting.is_none()
        {
            prop_assert!(!is_give(&world.verdict()));
        }
    }

    #[test]
    fn what_may_be_static_is_never_given_while_its_node_is_there(world in worlds()) {
        let Holder::Pod { name, .. } = &world.lease.id.holder else { return Ok(()) };
        let seen = seen_controller(&world.lease);
        let is_static = seen.map_or(name.as_str().ends_with("-n1"), |seen| seen.starts_with("Node/"));
        let runs = world.lease.state() == State::Bound || world.lease.ends_with_its_pod();
        if is_static && runs && matches!((&world.pod, &world.node), (Answer::Absent, Answer::Present(_))) {
            prop_assert!(!is_give(&world.verdict()));
        }
    }

    #[test]
    fn doubt_never_gives(world in worlds()) {
        let needs = needs(&world.lease, &world.pod.as_ref(), &Policy::default());
        let unknown = || "unknown";
        let mut doubts = vec![
            World { pod: pod(unknown(), &world.lease), ..world.clone() },
            World { pools: pools(unknown()), ..world.clone() },
        ];
        if needs.node.is_some() {
            doubts.push(World { node: node(unknown()), ..world.clone() });
        }
        if needs.controller.is_some() {
            doubts.push(World { controller: controller(unknown()), ..world });
        }
        for doubt in doubts {
            prop_assert!(!is_give(&doubt.verdict()), "{doubt:?}");
        }
    }

    #[test]
    fn what_nobody_needs_to_ask_changes_nothing(world in worlds()) {
        let needs = needs(&world.lease, &world.pod.as_ref(), &Policy::default());
        let mut blind = world.clone();
        if needs.node.is_none() {
            blind.node = node("unknown");
        }
        if needs.controller.is_none() {
            blind.controller = controller("unknown");
        }
        prop_assert_eq!(blind.verdict(), world.verdict());
    }

    #[test]
    fn what_is_given_now_is_given_later(world in worlds(), later in 0i64..200_000) {
        if is_give(&world.verdict()) {
            let later = Timestamp(NOW.0 + later * 1000);
            prop_assert!(is_give(&verdict(&world.case(), &Policy::default(), later)));
        }
    }

    #[test]
    fn one_pass_alone_ends_nothing_that_is_absent(world in worlds()) {
        let runs = world.lease.state() == State::Bound || world.lease.ends_with_its_pod();
        let absent = matches!(world.pod, Answer::Absent) && runs;
        if absent && world.lease.seen.as_ref().is_none_or(|seen| seen.missed.is_none()) {
            prop_assert!(!is_give(&world.verdict()));
        }
    }

    #[test]
    fn what_was_noted_is_not_noted_again(world in worlds()) {
        if let Verdict::Note(_, note) = world.verdict() {
            let lease = note.write(&world.lease);
            prop_assert_ne!(&lease, &world.lease);
            let next = World { lease, ..world };
            prop_assert!(!matches!(next.verdict(), Verdict::Note(..)), "{:?}", next.verdict());
        }
    }

    #[test]
    fn nothing_is_confirmed_that_a_verdict_keeps(listed in worlds(), live in worlds(), pulled in 0usize..4) {
        let brakes = [
            Brake::Silent { silent: 3, nodes: 3 },
            Brake::Orphans { orphans: 21, bound: 21, limit: None, strange: false },
            Brake::Empty { list: "pods", bound: 1 },
        ];
        let brakes = &brakes[..pulled];
        if let Verdict::Give(give) = listed.verdict() {
            let other = live.lease != listed.lease;
            let same = World { lease: listed.lease.clone(), ..live.clone() };
            let found = confirm(&give, &same.case(), brakes, &Policy::default(), NOW);
            let second = same.verdict();
            let stopped = brakes.iter().any(|brake| brake.stops(second.row()));
            prop_assert_eq!(found.is_ok(), is_give(&second) && !stopped);
            if let Ok(confirmed) = found {
                prop_assert_eq!(confirmed.lease(), &listed.lease);
                prop_assert_eq!(confirmed.row(), second.row());
            }
            let found = confirm(&give, &live.case(), brakes, &Policy::default(), NOW);
            prop_assert!(!other || found == Err(Keep::Changed));
        }
    }
}

#[test]
fn every_label_is_one_word_and_its_own() {
    let node = || NodeName::new("n1").unwrap();
    let text = String::new;
    let all = [
        Keep::PodLives,
        Keep::Unclaimed { age_ms: 0 },
        Keep::Terminating { left_ms: 0 },
        Keep::KubeletLives { node: node(), overdue_ms: 0 },
        Keep::NodeUnknown { node: node(), silent_ms: 0, left_ms: 0 },
        Keep::NodeLostKeep { lost: text() },
        Keep::Finishing { left_ms: 0 },
        Keep::ContainerRuns { ended_ms: 0 },
        Keep::NotMissedLongEnough { missed_ms: 0, left_ms: 0 },
        Keep::StaticPod { node: node() },
        Keep::PodExists,
        Keep::OwnerWantsIt { owner: text() },
        Keep::ScaledDown { owner: text(), replicas: 0 },
        Keep::OwnerMissed { owner: text(), missed_ms: 0, left_ms: 0 },
        Keep::OwnerGone { owner: text(), missed_ms: 0 },
        Keep::NoOwner { held_ms: 0 },
        Keep::OwnerKind { owner: text(), held_ms: 0 },
        Keep::ControllerFirst { owner: text() },
        Keep::Reserved,
        Keep::NoPodIdentity,
        Keep::Unreadable { reason: text() },
        Keep::UnknownAnswer { reason: text() },
        Keep::OtherCluster { cluster: ClusterName::new("x").unwrap() },
        Keep::Braked { by: "x", text: text() },
        Keep::Changed,
    ];
    let labels: BTreeSet<&str> = all.iter().map(Keep::label).collect();
    assert_eq!(labels.len(), all.len());
    assert!(labels.iter().all(|label| label.chars().all(|c| c.is_ascii_lowercase() || c == '_')));
}
