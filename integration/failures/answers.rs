//! Commits without an answer: swallowed, lost, held and delivered late, refused by a quota after they were written.

use std::{
    fs, thread,
    time::{Duration, SystemTime},
};

use serde_json::json;

use super::{Stand, bound, journal, one};
use crate::support::{
    call::{Answer, Call},
    etcd::Etcd,
    ground,
    host::HostFile,
    parts::{Part, Version, require},
    process::eventually,
    proxy::{Fault, Proxy},
    wire::Txn,
};

/// What one silent endpoint may cost.
const BUDGET: Duration = Duration::from_secs(2);

const FAULTS: [Fault; 2] = [Fault::SwallowAnswer(1), Fault::LoseCommit(1)];

/// One etcd behind two endpoints.
fn two_ways(version: Version) -> Stand {
    Stand::new(Etcd::with(version), &[0, 0], 4)
}

/// The commit was sent by both ways, and it was the same.
fn sent_again(first: &Proxy, second: &Proxy, skip: usize) {
    let commits =
        |proxy: &Proxy| -> Vec<_> { proxy.transactions().into_iter().filter(Txn::is_commit).collect() };
    let (first, second) = (commits(first), commits(second));
    assert_eq!(first.len(), skip + 1);
    assert_eq!(first[skip..], second);
}

#[test]
fn b014_an_add_without_an_answer_is_sent_again_elsewhere() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        for fault in FAULTS {
            let stand = two_ways(version);
            stand.proxies[0].set(fault);
            let answer = Call::add(&stand.host).pod("shop/db-0").container("A").run();
            assert_eq!(answer.addresses().len(), 1);
            assert!(answer.0.took < BUDGET, "{:?}", answer.0.took);
            sent_again(&stand.proxies[0], &stand.proxies[1], 0);
            let lease = ground::only_lease(&stand.direct);
            assert_eq!(answer.addresses(), [format!("{}/16", lease.addresses[0].address)]);
            assert_eq!(bound(&stand.direct), one("shop/db-0", "A"));
            assert_eq!(journal(&stand.host).len(), 0);
        }
    }
}

#[test]
fn b014_a_take_over_without_an_answer_is_sent_again_elsewhere() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        for fault in FAULTS {
            let stand = two_ways(version);
            let call = Call::add(&stand.host).pod("shop/db-0");
            let before = call.clone().container("A").run().addresses();
            stand.proxies[0].set(fault);
            let after = call.container("B").run();
            assert_eq!(after.addresses(), before);
            assert!(after.0.took < BUDGET, "{:?}", after.0.took);
            sent_again(&stand.proxies[0], &stand.proxies[1], 1);
            assert_eq!(bound(&stand.direct), one("shop/db-0", "B"));
            // The sandbox before it is DELed late.
            Call::del(&stand.host).pod("shop/db-0").container("A").run().is_silent();
            assert_eq!(bound(&stand.direct), one("shop/db-0", "B"));
        }
    }
}

#[test]
fn b014_a_del_without_an_answer_is_sent_again_elsewhere() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        for fault in FAULTS {
            for sticky in [false, true] {
                let stand = two_ways(version);
                let add = Call::add(&stand.host)
                    .pod("shop/db-0")
                    .field("args", json!({ "cni": { "sticky": sticky.to_string() } }));
                let before = add.run().addresses();
                stand.proxies[0].set(fault);
                let answer = Call::del(&stand.host).pod("shop/db-0").run();
                answer.is_silent();
                assert!(answer.0.took < BUDGET, "{:?}", answer.0.took);
                sent_again(&stand.proxies[0], &stand.proxies[1], 1);
                assert_eq!(journal(&stand.host).len(), 0);
                if sticky {
                    assert_eq!(ground::only_lease(&stand.direct).state().as_str(), "held");
                    assert_eq!(add.container("c2").run().addresses(), before);
                } else {
                    ground::is_empty(&stand.direct);
                }
            }
        }
    }
}

#[test]
fn a_gc_without_an_answer_is_sent_again_elsewhere() {
    require!(Part::Etcd(Version::V36));
    for fault in FAULTS {
        let stand = two_ways(Version::V36);
        for pod in ["a", "b", "c"] {
            let _ = Call::add(&stand.host).pod(&format!("shop/{pod}")).container(pod).run().addresses();
        }
        stand.proxies[0].set(fault);
        let valid = json!([{ "containerID": "b", "ifname": "eth0" }]);
        Call::gc(&stand.host).field("cni.dev/valid-attachments", valid).run().is_silent();
        assert_eq!(bound(&stand.direct), one("shop/b", "b"));
    }
}

#[test]
fn an_undo_without_an_answer_is_sent_again_elsewhere() {
    require!(Part::Etcd(Version::V36));
    for fault in [Fault::SwallowAnswer(2), Fault::LoseCommit(2)] {
        let stand = two_ways(Version::V36);
        stand.proxies[0].set(fault);
        let answer = Call::add(&stand.host).pod("shop/db-0").start_deaf().wait();
        assert_eq!(answer.code(), Some(1));
        ground::is_empty(&stand.direct);
        assert_eq!(journal(&stand.host).len(), 0);
    }
}

#[test]
fn every_answer_of_two_endpoints_is_lost_and_the_lease_stands_once() {
    require!(Part::Etcd(Version::V36));
    let stand = two_ways(Version::V36);
    for proxy in &stand.proxies {
        proxy.set(Fault::SwallowAnswer(1));
    }
    assert_eq!(Call::add(&stand.host).pod("shop/db-0").run().addresses().len(), 1);
    assert_eq!(bound(&stand.direct), one("shop/db-0", "c1"));
}

/// A node whose only way holds the commit: it gives up at its deadline of one second.
fn held(version: Version) -> (Stand, Answer) {
    let mut stand = Stand::new(Etcd::with(version), &[0], 4);
    stand.host = stand.host.with("deadlines", json!({ "add": "1s", "del": "1s" }));
    stand.proxies[0].set(Fault::HoldCommit(1));
    let answer = Call::add(&stand.host).pod("shop/db-0").container("A").run();
    (stand, answer)
}

#[test]
fn a_commit_that_lands_after_add_gave_up_is_ended_by_the_next_run() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let (stand, answer) = held(version);
        let text = answer.error_text(11);
        assert!(text.contains(&stand.proxies[0].url("http")), "{text}");
        assert!(answer.0.took < BUDGET, "{:?}", answer.0.took);
        assert_eq!(journal(&stand.host).len(), 1, "{text}");
        stand.proxies[0].release();
        assert_eq!(bound(&stand.direct), one("shop/db-0", "A"), "it landed");
        let _ = Call::add(&stand.host).pod("shop/other").container("O").run().addresses();
        assert_eq!(bound(&stand.direct), one("shop/other", "O"));
        assert_eq!(journal(&stand.host).len(), 0);
    }
}

#[test]
fn a_commit_that_lands_after_the_retry_leaves_the_retry_its_lease() {
    require!(Part::Etcd(Version::V36));
    let (stand, answer) = held(Version::V36);
    let _ = answer.error(11);
    let before = Call::add(&stand.host).pod("shop/db-0").container("B").run().addresses();
    stand.proxies[0].release();
    assert_eq!(bound(&stand.direct), one("shop/db-0", "B"));
    assert_eq!(Call::add(&stand.host).pod("shop/db-0").container("C").run().addresses(), before);
    Call::del(&stand.host).pod("shop/db-0").container("A").run().is_silent();
    assert_eq!(bound(&stand.direct), one("shop/db-0", "C"));
}

#[test]
fn a_commit_that_lands_before_the_retry_is_taken_over() {
    require!(Part::Etcd(Version::V36));
    let (stand, answer) = held(Version::V36);
    let _ = answer.error(11);
    stand.proxies[0].release();
    let landed = ground::only_lease(&stand.direct).addresses[0].address;
    // The entry of A is replayed by this run, after its answer.
    let answer = Call::add(&stand.host).pod("shop/db-0").container("B").run();
    assert_eq!(answer.addresses(), [format!("{landed}/16")]);
    assert_eq!(bound(&stand.direct), one("shop/db-0", "B"));
    assert_eq!(journal(&stand.host).len(), 1, "it ended nothing, and is young");
}

#[test]
fn a_commit_that_lands_after_its_entry_was_told_is_ended_all_the_same() {
    require!(Part::Etcd(Version::V36));
    let (stand, answer) = held(Version::V36);
    let _ = answer.error(11);
    // As runtimes do after an ADD that failed; and somebody else's run.
    Call::del(&stand.host).pod("shop/db-0").container("A").run().is_silent();
    let other = Call::add(&stand.host).pod("shop/other").container("O").run().addresses();
    assert_eq!(journal(&stand.host).len(), 1);
    stand.proxies[0].release();
    assert_eq!(bound(&stand.direct).len(), 2, "it landed");
    assert_eq!(Call::add(&stand.host).pod("shop/other").container("O").run().addresses(), other);
    assert_eq!(bound(&stand.direct), one("shop/other", "O"));
    assert_eq!(journal(&stand.host).len(), 0);
}

#[test]
fn an_entry_that_ends_nothing_goes_when_it_is_old() {
    require!(Part::Etcd(Version::V36));
    let (stand, answer) = held(Version::V36);
    let _ = answer.error(11);
    let next = Call::add(&stand.host).pod("shop/db-0").container("B");
    let _ = next.run().addresses();
    assert_eq!(journal(&stand.host).len(), 1);
    let entry = fs::read_dir(stand.host.state().join("journal")).unwrap().next().unwrap().unwrap();
    let file = fs::File::options().append(true).open(entry.path()).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(61)).unwrap();
    let _ = next.run().addresses();
    assert_eq!(journal(&stand.host).len(), 0);
    assert_eq!(bound(&stand.direct), one("shop/db-0", "B"));
}

#[test]
fn a_commit_that_lands_after_its_process_was_killed_is_ended_by_del() {
    require!(Part::Etcd(Version::V36));
    let stand = Stand::new(Etcd::with(Version::V36), &[0], 4);
    stand.proxies[0].set(Fault::HoldCommit(1));
    let mut running = Call::add(&stand.host).pod("shop/db-0").container("A").start();
    stand.proxies[0].held();
    running.kill();
    assert_eq!(running.wait().killed_by(), Some(9));
    stand.proxies[0].release();
    assert_eq!(bound(&stand.direct), one("shop/db-0", "A"));
    Call::del(&stand.host).pod("shop/db-0").container("A").run().is_silent();
    ground::is_empty(&stand.direct);
}

#[test]
fn an_add_that_is_terminated_leaves_an_entry_for_what_it_sent() {
    require!(Part::Etcd(Version::V36));
    let stand = Stand::new(Etcd::with(Version::V36), &[0], 4);
    stand.proxies[0].set(Fault::HoldCommit(1));
    let running = Call::add(&stand.host).pod("shop/db-0").container("A").start();
    stand.proxies[0].held();
    running.signal("TERM");
    let text = Answer(running.wait()).error_text(11);
    assert!(text.contains("terminated"), "{text}");
    assert_eq!(journal(&stand.host).len(), 1);
    stand.proxies[0].release();
    Call::del(&stand.host).pod("shop/none").container("none").run().is_silent();
    ground::is_empty(&stand.direct);
}

#[test]
fn a_del_that_lands_after_it_gave_up_is_harmless_to_the_next_life() {
    require!(Part::Etcd(Version::V36));
    let mut stand = Stand::new(Etcd::with(Version::V36), &[0], 4);
    stand.host = stand.host.with("deadlines", json!({ "add": "1s", "del": "1s" }));
    let call = Call::add(&stand.host).pod("shop/db-0");
    let before = call.clone().container("A").run().addresses();
    stand.proxies[0].set(Fault::HoldCommit(1));
    Call::del(&stand.host).pod("shop/db-0").container("A").run().is_silent();
    assert_eq!(journal(&stand.host).len(), 1);
    assert_eq!(call.container("B").run().addresses(), before);
    stand.proxies[0].release();
    assert_eq!(bound(&stand.direct), one("shop/db-0", "B"));
}

/// The history of an ADD whose commit is still on its way when it is refused for another reason: while it waits, the
/// pod's next sandbox takes a lease and gives it back. Then nothing that the first commit compares has changed.
#[test]
fn an_add_that_is_refused_after_an_unanswered_commit_leaves_an_entry_too() {
    require!(Part::Etcd(Version::V36));
    let stand = Stand::new(Etcd::with(Version::V36), &[0, 0], 4);
    let pod = |call: fn(&HostFile) -> Call, host| call(host).pod("shop/db-0");
    let asks = |address: &str| json!({ "ips": [address] });
    stand.proxies[0].set(Fault::HoldCommit(1));
    stand.proxies[1].set(Fault::HoldCommit(1));
    let first = pod(Call::add, &stand.host).container("A").field("runtimeConfig", asks("10.1.0.1/16"));
    let running = first.start();
    stand.proxies[0].held();
    let next = pod(Call::add, &stand.direct).container("B").field("runtimeConfig", asks("10.1.0.2/16"));
    assert_eq!(next.run().addresses(), ["10.1.0.2/16"]);
    stand.proxies[1].held();
    stand.proxies[1].release();
    let text = Answer(running.wait()).error_text(11);
    assert!(text.contains("newer sandbox"), "{text}");
    assert_eq!(journal(&stand.host).len(), 1, "{text}");

    pod(Call::del, &stand.direct).container("B").run().is_silent();
    stand.proxies[0].release();
    assert_eq!(bound(&stand.direct), one("shop/db-0", "A"), "it landed");
    Call::del(&stand.host).pod("shop/none").container("none").run().is_silent();
    ground::is_empty(&stand.direct);
}

#[test]
fn a_member_that_thaws_later_applies_nothing_twice() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let stand = Stand::new(Etcd::with(version).members(3), &[0, 1, 2], 4);
        stand.proxies[0].set(Fault::HoldCommit(1));
        let running = Call::add(&stand.host).pod("shop/db-0").container("A").start();
        stand.proxies[0].held();
        stand.etcd.freeze(0);
        let answer = thread::scope(|scope| {
            // It is delivered to the member that does not read it yet.
            let late = scope.spawn(|| stand.proxies[0].release());
            let answer = Answer(running.wait());
            assert_eq!(answer.addresses().len(), 1);
            stand.etcd.thaw(0);
            late.join().unwrap();
            answer
        });
        assert!(answer.0.took < Duration::from_secs(10), "{:?}", answer.0.took);
        assert_eq!(bound(&stand.direct), one("shop/db-0", "A"));
        assert_eq!(ground::look(&stand.direct).everything.addresses.len(), 1);
    }
}

#[test]
fn a_member_that_thaws_after_add_gave_up_leaks_nothing() {
    require!(Part::Etcd(Version::V36));
    let mut stand = Stand::new(Etcd::with(Version::V36).members(3), &[0], 4);
    stand.host = stand.host.with("deadlines", json!({ "add": "1s" }));
    stand.proxies[0].set(Fault::HoldCommit(1));
    let running = Call::add(&stand.host).pod("shop/db-0").container("A").start();
    stand.proxies[0].held();
    stand.etcd.freeze(0);
    thread::scope(|scope| {
        let late = scope.spawn(|| stand.proxies[0].release());
        let _ = Answer(running.wait()).error(11);
        assert_eq!(journal(&stand.host).len(), 1);
        stand.etcd.thaw(0);
        late.join().unwrap();
    });
    // The next run on the node tells the journal, wherever the commit is.
    eventually("the cluster to answer", || {
        let answer = Call::add(&stand.host).pod("shop/other").container("O").run();
        (answer.0.code() == Some(0)).then_some(())
    });
    assert_eq!(bound(&stand.direct), one("shop/other", "O"));
}

#[test]
fn a_quota_is_no_answer_and_del_is_told_when_there_is_room() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let mut stand = Stand::new(Etcd::with(version).quota(300_000), &[0], 8);
        stand.host = stand.host.with("deadlines", json!({ "add": "2s", "del": "1s" }));
        let _ = Call::add(&stand.host).pod("shop/a").container("A").run().addresses();
        let large = "x".repeat(20_000);
        let full = (0..60).any(|n| stand.etcd.ctl(&["put", &format!("fill/{n}"), &large]).code() != Some(0));
        assert!(full, "the quota was never reached");

        let refused = Call::add(&stand.host).pod("shop/b").container("B").run();
        let text = refused.error_text(11);
        assert!(text.contains("database space exceeded"), "{text}");
        assert!(refused.0.took < Duration::from_secs(3), "{:?}", refused.0.took);
        assert_eq!(journal(&stand.host).len(), 1, "ADD may have written");
        let told = Call::del(&stand.host).pod("shop/a").container("A").run();
        told.is_silent();
        assert!(told.0.took < Duration::from_secs(2), "{:?}", told.0.took);
        // An etcd that does not count what a transaction inside a transaction puts has taken it, though it is full.
        let journalled = journal(&stand.host).len() == 2;
        assert_eq!(journalled, stand.host.log().contains("DEL is journalled"), "{}", stand.host.log());
        assert_eq!(journalled, !bound(&stand.direct).is_empty());

        stand.etcd.ctl(&["del", "--prefix", "fill/"]).success();
        stand.etcd.ctl(&["compact", &stand.etcd.revision().to_string()]).success();
        stand.etcd.ctl(&["defrag"]).success();
        stand.etcd.ctl(&["alarm", "disarm"]).success();
        let _ = Call::add(&stand.host).pod("shop/c").container("C").run().addresses();
        assert_eq!(bound(&stand.direct), one("shop/c", "C"));
        let left = journal(&stand.host);
        assert!(left.iter().all(|entry| entry["container"] == "B"), "{left:?}");
    }
}
