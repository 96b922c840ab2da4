//! Endpoints that refuse, swallow or freeze, at every place.

use std::time::Duration;

use super::{Stand, journal};
use crate::support::{
    call::Call,
    etcd::Etcd,
    ground,
    parts::{Part, Version, require},
    proxy::Fault,
};

/// What one bad endpoint may cost.
const BUDGET: Duration = Duration::from_secs(2);
/// And if it is the leader.
const WITH_ELECTION: Duration = Duration::from_secs(5);

#[test]
fn b106_one_bad_endpoint_at_any_place_costs_an_add_little() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for (version, ways) in [(Version::V34, 2), (Version::V36, 2), (Version::V36, 3)] {
        let stand = Stand::new(Etcd::with(version), &vec![0; ways], 4);
        let timed = |what: &str| {
            let answer = Call::add(&stand.host).pod("shop/web").container(what).run();
            assert_eq!(answer.addresses().len(), 1);
            let del = Call::del(&stand.host).pod("shop/web").container(what).run();
            del.is_silent();
            (answer.0.took, del.0.took)
        };
        let (usual, _) = timed("usual");
        for fault in [Fault::Refuse, Fault::BlackHole] {
            for place in 0..ways {
                stand.proxies[place].set(fault);
                let (add, del) = timed("c");
                assert!(add < usual + BUDGET, "{fault:?} at {place} of {ways}: ADD took {add:?}");
                assert!(del < usual + BUDGET, "{fault:?} at {place} of {ways}: DEL took {del:?}");
                stand.proxies[place].set(Fault::Pass);
            }
        }
        assert_eq!(journal(&stand.host).len(), 0);
        ground::is_empty(&stand.direct);
    }
}

#[test]
fn b106_a_frozen_member_at_any_place_costs_an_add_little() {
    require!(Part::Etcd(Version::V36));
    let stand = Stand::new(Etcd::with(Version::V36).members(3), &[0, 1, 2], 4);
    for place in 0..3 {
        // A leader that freezes costs an election, whoever asks.
        let leader = stand.etcd.leader();
        stand.etcd.freeze(place);
        let answer = Call::add(&stand.host).pod("shop/web").run();
        stand.etcd.thaw(place);
        assert_eq!(answer.addresses().len(), 1);
        let budget = if place == leader { WITH_ELECTION } else { BUDGET };
        assert!(answer.0.took < budget, "at {place}, leader {leader}: {:?}", answer.0.took);
        Call::del(&stand.host).pod("shop/web").run().is_silent();
    }
}

#[test]
fn b106_when_all_are_down_each_is_named_with_its_cause() {
    require!(Part::Etcd(Version::V36));
    let stand = Stand::new(Etcd::with(Version::V36), &[0, 0, 0], 4);
    stand.proxies[0].set(Fault::Refuse);
    stand.proxies[1].set(Fault::BlackHole);
    stand.proxies[2].set(Fault::Refuse);
    let answer = Call::add(&stand.host).pod("shop/web").run();
    let text = answer.error_text(11);
    for proxy in &stand.proxies {
        assert!(text.contains(&proxy.url("http")), "{text}");
    }
    assert!(text.contains("connection refused") && text.contains("no answer"), "{text}");
    assert!(answer.0.took < Duration::from_secs(10), "{:?}", answer.0.took);
    let check = Call::check(&stand.host)
        .pod("shop/web")
        .field("prevResult", serde_json::json!({"cniVersion": "1.0.0", "ips": []}));
    let _ = check.run().error(11);
    assert_eq!(journal(&stand.host).len(), 0, "nothing was sent");
    ground::is_empty(&stand.direct);
}

#[test]
fn b006_a_store_that_answers_after_half_a_minute_is_given_up_in_time() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let stand = Stand::new(Etcd::with(version), &[0, 0], 4);
        for proxy in &stand.proxies {
            proxy.set(Fault::Delay(Duration::from_secs(30)));
        }
        let answer = Call::add(&stand.host).pod("shop/web").run();
        let _ = answer.error_text(11);
        assert!(answer.0.took < Duration::from_secs(10), "{:?}", answer.0.took);
        let answer = Call::del(&stand.host).pod("shop/web").run();
        answer.is_silent();
        assert!(answer.0.took < Duration::from_millis(5500), "{:?}", answer.0.took);
        assert_eq!(journal(&stand.host).len(), 1);
        ground::is_empty(&stand.direct);
    }
}
