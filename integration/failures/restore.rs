//! A store that was set back to an old backup.

use leasehold::{admin::clusters, domain::names::StoreId, host, ops::Clock};
use serde_json::json;

use super::{bound, journal, pool_of};
use crate::support::{
    call::{Call, Cli},
    etcd::Etcd,
    ground,
    host::HostFile,
    parts::{Part, Version, require},
};

/// A ptp link cannot be asked from outside: its silence is taken for granted, so that this needs no network.
fn add(host: &HostFile, pod: &str, container: &str) -> Call {
    Call::add(host).pod(pod).container(container).field("type", "ptp")
}

#[test]
fn b082_a_store_that_went_back_gives_nothing_new_until_it_is_thawed() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let mut etcd = Etcd::start(version);
        let host = HostFile::on(&etcd);
        pool_of(&host, 4);
        let kept = add(&host, "shop/kept", "K").run().addresses();
        let backup = etcd.backup();
        let lost = add(&host, "shop/lost", "L").run().addresses();
        etcd.set_back(&backup);
        assert_eq!(bound(&host).len(), 1, "the backup does not know of shop/lost");

        // Whoever comes first may be this one, who would have been given the address of shop/lost.
        let text = add(&host, "shop/new", "N").run().error_text(11);
        assert!(text.contains("frozen") && text.contains("went back from revision"), "{text}");
        assert!(text.contains("leasehold lease list") && text.contains("leasehold thaw"), "{text}");
        let frozen = etcd.get("/leasehold/v1/frozen").unwrap();
        assert!(frozen.contains("went back"), "{frozen}");
        // A node that saw nothing is refused, too; so is the pod whose lease is lost.
        let fresh = host.node("n9");
        for (host, pod) in [(&fresh, "shop/new"), (&host, "shop/lost")] {
            let text = add(host, pod, "N").run().error_text(11);
            assert!(text.contains("frozen"), "{text}");
        }
        // Take-overs and DELs go on.
        assert_eq!(add(&host, "shop/kept", "K2").run().addresses(), kept);
        Call::del(&host).pod("shop/lost").container("L").run().is_silent();
        assert_eq!(bound(&host), super::one("shop/kept", "K2"));

        let _ = Cli::new(&host).line("thaw").run().success();
        // The address is not in use any more: its pod's DEL came.
        assert_eq!(add(&host, "shop/new", "N").run().addresses().len(), 1);
        assert_eq!(add(&fresh, "shop/lost", "L2").run().addresses().len(), 1);
        assert!(!lost.is_empty());
        assert_eq!(bound(&host).len(), 3);
        assert_eq!(journal(&host).len(), 0);
    }
}

#[test]
fn b082_a_del_notices_it_too() {
    require!(Part::Etcd(Version::V36));
    let mut etcd = Etcd::start(Version::V36);
    let host = HostFile::on(&etcd);
    pool_of(&host, 4);
    let backup = etcd.backup();
    let _ = add(&host, "shop/lost", "L").run().addresses();
    etcd.set_back(&backup);
    Call::del(&host).pod("shop/lost").container("L").run().is_silent();
    assert!(etcd.get("/leasehold/v1/frozen").is_some());
    // It stays so, however many revisions are written meanwhile.
    for n in 0..20 {
        etcd.put("elsewhere", &n.to_string());
    }
    let text = add(&host, "shop/new", "N").run().error_text(11);
    assert!(text.contains("went back"), "{text}");
}

#[test]
fn an_entry_from_before_the_thaw_is_not_told() {
    require!(Part::Etcd(Version::V36));
    let mut etcd = Etcd::start(Version::V36);
    let host = HostFile::on(&etcd).with("deadlines", json!({ "del": "1s" }));
    pool_of(&host, 4);
    let _ = add(&host, "shop/a", "A").run().addresses();
    etcd.kill(0);
    Call::del(&host).pod("shop/a").container("A").run().is_silent();
    etcd.restart(0);
    ground::with_store(&host, async |store| {
        let frozen = clusters::reason("a test".into(), "a person".into(), host::HostClock.now());
        clusters::freeze(store, &frozen, false).await.unwrap();
        let fresh = StoreId::new(host::random_id()).unwrap();
        clusters::thaw(store, fresh, false).await.unwrap()
    });
    let _ = add(&host, "shop/b", "B").run().addresses();
    assert_eq!(journal(&host).len(), 1);
    assert_eq!(bound(&host).len(), 2);
    assert!(host.log().contains("after a restore it means nothing"), "{}", host.log());
}
