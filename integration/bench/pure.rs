//! The parts that reach nowhere: which address a newcomer gets, what becomes of a lease, records to text and back.
//! `scripts/bench pure` runs it.
#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::collections::{BTreeMap, BTreeSet};

use divan::Bencher;
use leasehold::{
    domain::{
        choose::{Chooser, FreeOnce, WINDOW, Window},
        kubernetes::{Answer, Finished, Phase, Pod, PodKey},
        lease::{Holder, Lease, Released, Timestamp},
        names::{ClusterName, Namespace, NodeName, PodName, Uid},
        pool::Range,
        pool::RangeDraft,
        reap::{Case, Policy, PoolPolicy, verdict},
    },
    store::{Entry, Revision, keys, record},
};

const NOW: Timestamp = Timestamp(1_767_323_045_000);

fn main() {
    divan::main();
}

/// The key and the record of a bound lease as ADD and the reaper write them.
fn entry() -> Entry {
    let id = keys::parse_lease_path("prod/shop/db-7/lan100/eth0").unwrap();
    let value = br#"{"v":1,"state":"bound","addresses":[{"address":"10.16.3.7","domain":"default","pool":"big"}],"container":"7f8a6d0c5b4e3f2a1908f7e6d5c4b3a2918070f6e5d4c3b2a190807f6e5d4c3b","node":"node-007.example.net","uid":"6f1c2b7e-1d5f-4c35-9a57-00000000abcd","bootId":"0b9d4f3e-52a1-4c9e-8f57-00000000abcd","bootClock":123456789,"at":"2026-01-02T03:04:05.678Z","since":"2026-01-02T03:04:05.678Z","created":"2026-01-01T03:04:05.678Z","sticky":true,"controller":"StatefulSet.apps/db"}"#;
    Entry { key: keys::lease(&id), value: value.to_vec(), revision: Revision(7) }
}

fn lease() -> Lease {
    record::read_lease(&entry()).unwrap()
}

fn holder() -> Holder {
    Holder::Pod { namespace: Namespace::new("shop").unwrap(), name: PodName::new("web-1").unwrap() }
}

/// A window of a /16 with all but one address taken, or all given back.
#[divan::bench(args = ["taken", "given back"])]
fn choose(bencher: Bencher<'_, '_>, window: &str) {
    let draft = RangeDraft { subnet: "10.16.0.0/16".into(), ..RangeDraft::default() };
    let range = Range::from_draft("ranges", &draft).unwrap();
    let (holder, cluster) = (holder(), ClusterName::new("prod").unwrap());
    let first = 0x0a10_8000;
    let mut seen = Window { from: 0x8000, to: 0x8000 + WINDOW - 1, ..Window::default() };
    let numbers = first..first + WINDOW;
    if window == "taken" {
        seen.taken = numbers.filter(|number| number % WINDOW != 99).collect::<BTreeSet<_>>();
    } else {
        let by =
            Holder::Pod { namespace: Namespace::new("shop").unwrap(), name: PodName::new("old").unwrap() };
        let released =
            Released { at: Timestamp(0), by, cluster: cluster.clone(), unconfirmed: false, declined: None };
        let free = |number: u128| FreeOnce {
            released: released.clone(),
            revision: i64::try_from(number).unwrap(),
            waited: false,
            shunned: false,
        };
        seen.released = numbers.map(|number| (number, free(number))).collect::<BTreeMap<_, _>>();
    }
    let chooser =
        Chooser { holder: &holder, cluster: &cluster, now: NOW, cool_down_ms: 5_000, chance: 4_711 };
    bencher.bench(|| chooser.choose(range.usable(), &seen, first + 64));
}

/// One lease of a pass: its pod runs, or is gone.
#[divan::bench(args = ["running", "gone"])]
fn judge(bencher: Bencher<'_, '_>, pod: &str) {
    let (lease, cluster, policy) = (lease(), ClusterName::new("prod").unwrap(), Policy::default());
    let found = Pod {
        key: PodKey { namespace: Namespace::new("shop").unwrap(), name: PodName::new("db-7").unwrap() },
        uid: Uid::new("6f1c2b7e-1d5f-4c35-9a57-00000000abcd").unwrap(),
        node: Some(NodeName::new("node-007.example.net").unwrap()),
        phase: Phase::Running,
        deleting: None,
        finished: Finished::StillRuns,
        created: NOW,
        mirror: None,
        controller: None,
        host_network: false,
        wishes: Vec::new(),
        addresses: Vec::new(),
    };
    let case = Case {
        lease: &lease,
        cluster: &cluster,
        pools: Answer::Present(PoolPolicy::default()),
        pod: if pod == "running" { Answer::Present(&found) } else { Answer::Absent },
        node: Answer::Absent,
        controller: Answer::Absent,
    };
    bencher.bench(|| verdict(&case, &policy, NOW));
}

#[divan::bench]
fn read_a_lease(bencher: Bencher<'_, '_>) {
    let entry = entry();
    bencher.bench(|| record::read_lease(&entry).unwrap());
}

/// Over what was there, whose unknown fields stay.
#[divan::bench]
fn write_a_lease(bencher: Bencher<'_, '_>) {
    let (lease, entry) = (lease(), entry());
    bencher.bench(|| record::encode_lease(&lease, Some(&entry.value)));
}
