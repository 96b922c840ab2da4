//! DELs that the store did not take: written on the node, told later, once.

use std::{fs, thread, time::Duration};

use serde_json::{Value, json};

use super::{Stand, bound, journal, one};
use crate::support::{
    call::{Answer, Call, Cli},
    etcd::Etcd,
    ground,
    host::HostFile,
    parts::{Part, Version, require},
    proxy::Fault,
};

/// A node whose store went down while these pods ran, and that was told that they ended.
fn ended_while_down(size: u32, pods: &[String]) -> Stand {
    let mut stand = Stand::new(Etcd::with(Version::V36), &[0], size);
    stand.host = stand.host.with("deadlines", json!({ "del": "1s" }));
    for pod in pods {
        let _ = Call::add(&stand.host).pod(&format!("shop/{pod}")).container(pod).run().addresses();
    }
    stand.proxies[0].set(Fault::Refuse);
    thread::scope(|scope| {
        for pods in pods.chunks(8) {
            let calls: Vec<_> = pods
                .iter()
                .map(|pod| Call::del(&stand.host).pod(&format!("shop/{pod}")).container(pod))
                .map(|call| scope.spawn(move || call.run().is_silent()))
                .collect();
            calls.into_iter().for_each(|call| call.join().unwrap());
        }
    });
    assert_eq!(journal(&stand.host).len(), pods.len());
    stand.proxies[0].set(Fault::Pass);
    stand
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("web-{n}")).collect()
}

/// A line of the audit trail for each change of this kind.
fn changes(host: &HostFile, event: &str) -> Vec<Value> {
    let lines = host.log();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["event"] == event).collect()
}

fn an_add(host: &HostFile) -> Answer {
    Call::add(host).pod("shop/other").container("O").run()
}

#[test]
fn a_del_while_the_store_is_down_is_told_by_the_next_run() {
    require!(Part::Etcd(Version::V36));
    let stand = ended_while_down(4, &names(1));
    let entry = &journal(&stand.host)[0];
    let store = ground::look(&stand.direct).meta.unwrap().store;
    assert_eq!((&entry["cluster"], &entry["store"]), (&json!("prod-a"), &json!(store.as_str())));
    assert!(stand.host.log().contains("DEL is journalled"), "{}", stand.host.log());
    assert_eq!(bound(&stand.direct), one("shop/web-0", "web-0"));
    let _ = an_add(&stand.host).addresses();
    assert_eq!(bound(&stand.direct), one("shop/other", "O"));
    assert_eq!(journal(&stand.host).len(), 0);
}

#[test]
fn a_del_that_nobody_takes_is_an_error_that_no_runtime_takes_for_success() {
    require!(Part::Etcd(Version::V36));
    let stand = Stand::new(Etcd::with(Version::V36), &[0], 4);
    stand.proxies[0].set(Fault::Refuse);
    // Root may write wherever there is a folder; here is none.
    let file = stand.host.folder().join("file");
    fs::write(&file, "").unwrap();
    for state in [file.join("state"), "/proc/leasehold".into()] {
        let host = HostFile::on(&stand.etcd)
            .endpoints([stand.proxies[0].url("http")])
            .with("stateDir", json!(state))
            .with("deadlines", json!({ "del": "1s" }));
        let answer = Call::del(&host).pod("shop/a").run();
        let text = answer.error_text(11);
        assert!(text.contains("journal") && text.contains(&state.display().to_string()), "{text}");
        assert!(!text.to_lowercase().contains("not found"), "{text}");
        assert!(!text.to_lowercase().contains("no such file"), "{text}");
    }
}

#[test]
fn an_add_of_the_same_attachment_cancels_its_entry() {
    require!(Part::Etcd(Version::V36));
    let stand = ended_while_down(4, &names(1));
    let call = Call::add(&stand.host).pod("shop/web-0").container("web-0");
    let _ = call.run().addresses();
    assert_eq!(journal(&stand.host).len(), 0);
    let _ = an_add(&stand.host).addresses();
    assert_eq!(bound(&stand.direct).len(), 2);
}

#[test]
fn an_add_that_fails_puts_the_entry_back_that_it_cancelled() {
    require!(Part::Etcd(Version::V36));
    let stand = ended_while_down(4, &names(1));
    stand.proxies[0].set(Fault::Refuse);
    let _ = Call::add(&stand.host).pod("shop/web-0").container("web-0").run().error(11);
    assert_eq!(journal(&stand.host).len(), 1);
    stand.proxies[0].set(Fault::Pass);
    let _ = an_add(&stand.host).addresses();
    assert_eq!(bound(&stand.direct), one("shop/other", "O"));
}

#[test]
fn a_full_pool_has_room_when_the_journal_holds_a_del() {
    require!(Part::Etcd(Version::V36));
    let stand = ended_while_down(1, &names(1));
    // Another node does not know; this one tells first.
    let text = an_add(&stand.direct).error_text(11);
    assert!(text.contains("1 of 1"), "{text}");
    assert_eq!(an_add(&stand.host).addresses(), ["10.1.0.1/16"]);
    assert_eq!(bound(&stand.direct), one("shop/other", "O"));
}

#[test]
fn many_processes_replay_at_once_and_each_entry_is_told_once() {
    require!(Part::Etcd(Version::V36));
    let stand = ended_while_down(60, &names(24));
    thread::scope(|scope| {
        for n in 0..8 {
            let call = Call::add(&stand.host).pod(&format!("shop/new-{n}")).container(&format!("new-{n}"));
            scope.spawn(move || assert_eq!(call.run().addresses().len(), 1));
        }
    });
    assert_eq!(journal(&stand.host).len(), 0);
    let bound = bound(&stand.direct);
    assert_eq!(bound.len(), 8);
    assert!(bound.values().all(|container| container.starts_with("new-")), "{bound:?}");
    assert_eq!(changes(&stand.host, "lease.released").len(), 24);
}

#[test]
fn entries_of_another_store_or_cluster_stay() {
    require!(Part::Etcd(Version::V36));
    for (field, value) in [("store", "another"), ("cluster", "prod-b")] {
        let stand = ended_while_down(4, &names(1));
        let folder = stand.host.state().join("journal");
        let file = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
        let mut entry: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        entry[field] = value.into();
        fs::write(&file, entry.to_string()).unwrap();
        let _ = an_add(&stand.host).addresses();
        assert_eq!(journal(&stand.host), [entry]);
        assert_eq!(bound(&stand.direct).len(), 2);
        assert!(stand.host.log().contains(value), "{}", stand.host.log());
    }
}

#[test]
fn an_entry_that_cannot_be_read_stops_nothing() {
    require!(Part::Etcd(Version::V36));
    let stand = ended_while_down(4, &names(2));
    fs::write(stand.host.state().join("journal/aaaa.json"), "{").unwrap();
    let _ = an_add(&stand.host).addresses();
    assert_eq!(bound(&stand.direct), one("shop/other", "O"));
}

#[test]
fn a_replay_that_is_killed_is_ended_by_the_next() {
    require!(Part::Etcd(Version::V36));
    let stand = ended_while_down(40, &names(16));
    for at in 1..=3 {
        // Of the second run the first commit is its own.
        stand.proxies[0].set(Fault::HoldCommit(1 + at));
        let pod = format!("shop/new-{at}");
        let mut running = Call::add(&stand.host).pod(&pod).container(&format!("N{at}")).start();
        stand.proxies[0].held();
        running.kill();
        let _ = running.wait();
        stand.proxies[0].release();
        let _ = bound(&stand.direct);
    }
    let _ = an_add(&stand.host).addresses();
    let bound = bound(&stand.direct);
    assert!(bound.values().all(|container| !container.starts_with("web")), "{bound:?}");
}

#[test]
fn a_store_that_dies_during_the_replay_keeps_nobody_waiting() {
    require!(Part::Etcd(Version::V36));
    let stand = ended_while_down(60, &names(8));
    stand.proxies[0].set(Fault::Delay(Duration::from_millis(60)));
    let answer = an_add(&stand.host);
    assert_eq!(answer.addresses().len(), 1);
    // Some round trips of its own, and half a second for the others.
    assert!(answer.0.took < Duration::from_secs(3), "{:?}", answer.0.took);
    assert!(journal(&stand.host).len() < 8);

    stand.proxies[0].set(Fault::HoldCommit(2));
    let answer = Call::add(&stand.host).pod("shop/last").container("L").run();
    assert_eq!(answer.addresses().len(), 1);
    // Without an end it would wait for its deadline, 10 s.
    assert!(answer.0.took < Duration::from_secs(4), "{:?}", answer.0.took);
    stand.proxies[0].release();
    let _ = bound(&stand.direct);
}

#[test]
fn flush_tells_everything_and_names_what_stays() {
    require!(Part::Etcd(Version::V36));
    let stand = ended_while_down(80, &names(70));
    stand.proxies[0].set(Fault::Refuse);
    let down = Cli::new(&stand.host).line("flush").run();
    assert_eq!(down.code(), Some(1), "{down:?}");
    assert_eq!(journal(&stand.host).len(), 70);
    stand.proxies[0].set(Fault::Pass);
    let flushed = Cli::new(&stand.host).line("flush -o json").run();
    let flushed: serde_json::Value = serde_json::from_str(flushed.success()).unwrap();
    assert_eq!(flushed, json!({ "dryRun": false, "told": 70, "ended": 70, "stay": 0 }));
    assert_eq!(journal(&stand.host).len(), 0);
    ground::is_empty(&stand.direct);
    let _ = Cli::new(&stand.host).line("flush").run().success();
}

#[test]
fn a_gc_tells_the_journal_too() {
    require!(Part::Etcd(Version::V36));
    let stand = ended_while_down(4, &names(1));
    let other = Call::gc(&stand.host).network("lan200").field("cni.dev/valid-attachments", json!([]));
    other.run().is_silent();
    ground::is_empty(&stand.direct);
    assert_eq!(journal(&stand.host).len(), 0);
}

#[test]
fn b016_a_del_on_a_host_without_state_finds_its_lease() {
    require!(Part::Etcd(Version::V36));
    let stand = Stand::new(Etcd::with(Version::V36), &[0], 4);
    let _ = Call::add(&stand.host).pod("shop/a").run().addresses();
    fs::remove_dir_all(stand.host.state()).unwrap();
    Call::del(&stand.host).pod("shop/a").run().is_silent();
    ground::is_empty(&stand.direct);
}
