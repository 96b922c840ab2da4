//! What a call costs in round trips, counted on the wire: whole processes on a real etcd. Nothing here is timed.

use serde_json::json;

use crate::support::{
    call::Call,
    etcd::Etcd,
    ground,
    host::HostFile,
    parts::{Part, Version, require},
    proxy::Proxy,
};

/// The reads and the commits of one call.
fn cost(proxy: &Proxy, call: &Call) -> (u32, u32) {
    let commits =
        || u32::try_from(proxy.transactions().iter().filter(|txn| txn.is_commit()).count()).unwrap();
    let (requests, committed, connections) = (proxy.requests(), commits(), proxy.connections());
    call.run().0.success();
    assert_eq!(proxy.connections(), connections + 1);
    let committed = commits() - committed;
    (proxy.requests() - requests - committed, committed)
}

#[test]
fn a_call_makes_no_more_round_trips_than_it_must() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let etcd = Etcd::start(version);
        let proxy = Proxy::to(etcd.address(0));
        let direct = HostFile::on(&etcd);
        let host = HostFile::on(&etcd).endpoints([proxy.url("http")]);
        ground::register(&direct);
        for (name, sticky) in [("web", "never"), ("db", "always")] {
            let pool = json!({
                "name": name, "networks": [name], "serves": ["*/*"], "sticky": sticky,
                "ranges": [{ "subnet": if sticky == "always" { "10.1.0.0/24" } else { "10.2.0.0/24" } }],
            });
            ground::pool(&direct, pool);
        }
        let (web, other, db) = (
            |call: Call, container: &str| call.network("web").pod("shop/web-x7k2p").container(container),
            |call: Call, container: &str| call.network("web").pod("shop/web-zzzzz").container(container),
            |call: Call, container: &str| call.network("db").pod("shop/db-0").container(container),
        );
        let (n2, n3) = (host.node("n2"), host.node("n3"));
        // A node remembers the names of its pools from the first ADD that needed them: its next reads them at once.
        let calls = [
            ("first ADD, pool new to the node", web(Call::add(&host), "c1"), (2, 1)),
            ("the same container's ADD again", web(Call::add(&host), "c1"), (1, 0)),
            ("DEL", web(Call::del(&host), "c1"), (1, 1)),
            ("DEL again", web(Call::del(&host), "c1"), (1, 0)),
            ("first ADD", other(Call::add(&host), "e1"), (1, 1)),
            ("first ADD of a sticky pod", db(Call::add(&host), "d1"), (1, 1)),
            ("take-over of a bound lease", db(Call::add(&host), "d2"), (1, 1)),
            ("DEL of a sticky pod", db(Call::del(&host), "d2"), (1, 1)),
            ("take-over of a held lease", db(Call::add(&host), "d3"), (1, 1)),
            ("DEL of a sticky pod", db(Call::del(&host), "d3"), (1, 1)),
            ("take-over, pool new to the node", db(Call::add(&n2), "d4"), (2, 1)),
            ("DEL of a sticky pod", db(Call::del(&n2), "d4"), (1, 1)),
            ("DEL on a node that never knew it", db(Call::del(&n3), "d4"), (1, 0)),
            ("take-over after nothing but a DEL", db(Call::add(&n3), "d5"), (2, 1)),
        ];
        let costs: Vec<_> = calls.iter().map(|(what, call, _)| (*what, cost(&proxy, call))).collect();
        let expected: Vec<_> = calls.iter().map(|(what, _, expected)| (*what, *expected)).collect();
        assert_eq!(costs, expected, "reads and commits");
    }
}

/// Where nine of ten addresses are taken, a guess is wrong nine times of ten. But a node knows what it saw free.
#[test]
fn a_crowded_pool_costs_no_more_once_the_node_knows_what_is_free() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::start(Version::V36);
    let proxy = Proxy::to(etcd.address(0));
    let direct = HostFile::on(&etcd);
    let host = HostFile::on(&etcd).endpoints([proxy.url("http")]);
    ground::register(&direct);
    let range = json!({ "subnet": "10.3.0.0/24", "start": "10.3.0.1", "end": "10.3.0.10" });
    let pool = json!({
        "name": "few", "networks": ["few"], "serves": ["*/*"], "sticky": "never", "coolDown": "0s", "ranges": [range],
    });
    ground::pool(&direct, pool);
    let call = |call: Call, pod: &str| call.network("few").pod(&format!("shop/{pod}")).container(pod);
    for number in 0..9 {
        call(Call::add(&direct), &format!("held-{number}")).run().0.success();
    }
    let add_and_del = |pod: &str| {
        let cost = cost(&proxy, &call(Call::add(&host), pod));
        call(Call::del(&host), pod).run().0.success();
        cost
    };
    let surprised = (0..100).find(|number| add_and_del(&format!("first-{number}")).1 == 2);
    assert!(surprised.is_some(), "no guess was wrong");
    for number in 0..10 {
        assert_eq!(add_and_del(&format!("next-{number}")), (1, 1), "reads and commits of ADD {number}");
    }
}
