//! Three real etcds in namespaces, under sixty-four callers, while one thing after another goes wrong. What the callers
//! saw is held against the rules of ownership, see [`history`], and what they were told instead of an address against what
//! they saw, see [`refusals`], and against the store's own history, see [`witness`].
#![expect(clippy::disallowed_methods, reason = "time limits are of the real clock")]

mod callers;
mod cluster;
mod history;
mod refusals;
mod witness;

use std::{collections::BTreeMap, thread, time::Duration};

use callers::{Crowd, Sandbox, Ways};
use cluster::{Authority, Disks, MEMBERS, Setting, Slow};
use serde_json::{Value, json};

use crate::{
    documents,
    support::{
        apiserver::Apiserver,
        call::{Call, Cli},
        etcd::Etcd,
        host::HostFile,
        lan::Host,
        parts::{Part, Version, require},
        process::{Finished, eventually, report},
    },
};

/// Members are killed, freeze, and are cut off from their peers or from their clients, one after another.
fn one_after_another(version: Version) {
    cluster::run(Etcd::with(version), Setting::default(), |cluster| {
        Crowd::work(cluster.nodes(), Ways::usual(), |crowd| {
            crowd.goes_on("all well");

            let (follower, _) = cluster.follower_and_leader();
            crowd.strike(|| cluster.etcd.kill(follower));
            crowd.goes_on("a follower is killed");
            cluster.etcd.restart(follower);

            let (_, leader) = cluster.follower_and_leader();
            crowd.strike(|| cluster.etcd.kill(leader));
            crowd.goes_on("the leader is killed");
            cluster.etcd.restart(leader);
            crowd.goes_on("it is back");

            let (_, leader) = cluster.follower_and_leader();
            crowd.strike(|| cluster.etcd.freeze(leader));
            crowd.goes_on("the leader is frozen");
            cluster.etcd.thaw(leader);
            crowd.goes_on("it thaws");

            // It goes on leading for a moment, and its clients still reach it.
            let (_, leader) = cluster.follower_and_leader();
            crowd.strike(|| cluster.peers[leader].pull());
            crowd.goes_on("the leader is cut off from its peers");
            cluster.peers[leader].plug();
            crowd.goes_on("its peers hear it again");

            let (_, leader) = cluster.follower_and_leader();
            crowd.strike(|| cluster.sites[leader].unplug());
            crowd.goes_on("the leader is cut off from its clients");
            cluster.sites[leader].plug();

            // What was sent to them, and to the third, is in doubt.
            let (follower, leader) = cluster.follower_and_leader();
            crowd.excused(|| {
                crowd.strike(|| {
                    cluster.etcd.freeze(leader);
                    cluster.etcd.freeze(follower);
                });
                crowd.journals_more();
                cluster.etcd.thaw(leader);
                cluster.etcd.thaw(follower);
                let _ = cluster.etcd.leader();
            });
            crowd.goes_on("two were frozen");
        });
    });
}

/// The store is compacted and defragmented, and then full to its quota, and freed.
fn upkeep(version: Version) {
    const QUOTA: u64 = 16 << 20;
    cluster::run(Etcd::with(version).quota(QUOTA), Setting::default(), |cluster| {
        Crowd::work(cluster.nodes(), Ways::short_of_time(), |crowd| {
            crowd.goes_on("all well");
            for _ in 0..2 {
                cluster.compact();
                cluster.defragment();
            }
            crowd.goes_on("compacted and defragmented");
            crowd.excused(|| {
                cluster.fill();
                crowd.is_refused("database space exceeded");
                cluster.free();
            });
            crowd.goes_on("full, and freed");
        });
    });
}

/// Disks that are slow, and a disk that is full: its member ends.
fn disks(version: Version) {
    const MEBIBYTES: u32 = 200;
    let setting = Setting { disks: Some(Disks::new(MEBIBYTES)), ..Setting::default() };
    cluster::run(Etcd::with(version).on_disk(), setting, |cluster| {
        Crowd::work(cluster.nodes(), Ways::usual(), |crowd| {
            crowd.goes_on("all well");
            let (_, leader) = cluster.follower_and_leader();
            let slow = Slow::down(&cluster.etcd, leader);
            crowd.goes_on("the leader's disk is slow");
            slow.end();

            let (_, leader) = cluster.follower_and_leader();
            let disks = cluster.disks.as_ref().unwrap();
            crowd.strike(|| disks.fill(leader));
            eventually("the member to end", || (!cluster.etcd.is_alive(leader)).then_some(()));
            crowd.goes_on("the leader's disk is full");
            disks.free(leader);
            cluster.etcd.restart(leader);
            crowd.goes_on("it has room again");
        });
    });
}

/// Certificates are renewed, of each member and of the nodes; then everybody must be a user, and each role is at work.
fn secrets(version: Version) {
    let authority = Authority::new();
    let api = Apiserver::shared();
    let setting = Setting { server: Some(api.address()), ..Setting::default() };
    cluster::run(Etcd::with(version).tls_with(authority.secrets()), setting, |cluster| {
        Crowd::work(cluster.nodes_of(&uid_of(api), 1).with_users(), Ways::at_leisure(), |crowd| {
            crowd.goes_on("all well");
            for (number, member) in ["m0", "m1", "m2"].into_iter().enumerate() {
                authority.issue(member);
                crowd.strike(|| authority.replace(member));
                assert!(cluster.shows(number, &authority.pair(member).0));
            }
            crowd.goes_on("each member has a new certificate");
            authority.issue("client-2");
            authority.replace("client-2");
            let (cert, key) = authority.pair("client-2");
            for node in &crowd.nodes {
                node.change(|document| {
                    document["store"]["etcd"]["cert"] = json!(cert);
                    document["store"]["etcd"]["key"] = json!(key);
                });
            }
            crowd.goes_on("each node has a new certificate");

            documents::make_roles(&cluster.etcd, version).success();
            cluster.etcd.make_root();
            crowd.strike(|| cluster.etcd.enable_auth());
            crowd.goes_on("everybody is a user");
            let reaper = cluster::as_user(crowd.admin.node("reaper"), "leasehold-reaper-prod-a");
            thread::scope(|scope| {
                scope.spawn(|| {
                    a_person_works(&crowd.admin);
                    a_reaper_works(api, &crowd.admin, &crowd.nodes[0], &reaper);
                });
                crowd.goes_on("a person and a reaper work");
            });
            for host in [&crowd.admin, &reaper] {
                Cli::new(host).line("check").run().success();
            }
        });
    });
}

/// The pool of all is changed beneath them, and a device gets an address and gives it back.
fn a_person_works(admin: &HostFile) {
    const ROUNDS: u8 = 2;
    let person = |line: &str| Cli::new(admin).line(line).run().success().to_owned();
    person(
        "pool create side --network lan100 --subnet 10.1.0.0/16 --range 10.1.1.1-10.1.1.9 --serves none/none",
    );
    let document = person("pool show lan -o yaml");
    for round in 1..=ROUNDS {
        let server = format!("10.1.2.{round}");
        apply(admin, &with_dns(&document, &server)).success();
        assert!(person("pool show lan -o yaml").contains(&server));
        person("lease reserve 10.1.1.1 --reason printer");
        assert!(person("lease show 10.1.1.1").contains("printer"));
        assert!(person("lease list").contains("10.1.1.1 "));
        person("lease release 10.1.1.1");
        assert!(!person("lease list").contains("10.1.1.1 "));
    }
}

/// A pod that has ended gives its address back, beside many that the API does not know, which are missed for the first time.
/// What a person does with a pool, a reaper may not.
fn a_reaper_works(api: &Apiserver, admin: &HostFile, node: &HostFile, reaper: &HostFile) {
    let namespace = api.namespace();
    let (pod, its) = (format!("{namespace}/job-7d9c4f6b5d-x7k2p"), format!("{namespace}-n1"));
    let person = |line: &str| Cli::new(admin).line(line).run().success().to_owned();
    let pool = "pool create jobs --network lan100 --subnet 10.1.0.0/16 --range 10.1.3.1-10.1.3.9";
    person(&format!("{pool} --serves {namespace}/*"));
    assert_eq!(Call::add(node).pod(&pod).container("job").run().addresses().len(), 1);
    api.node(&its);
    let name = pod.rsplit('/').next().unwrap();
    api.pod(&namespace, name, &its);
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    api.set_status(&path, &json!({ "phase": "Succeeded" }));

    let kubeconfig = format!("--kubeconfig={}", api.kubeconfig().display());
    let pass = || {
        // The callers' are never missed for so long.
        let graces = ["--finished-after=1s", "--absent-after=1h", "--owner-after=1h"];
        let finished = Cli::new(reaper).args(["reap", "-o", "json", &kubeconfig]).args(graces).run();
        let report: Value =
            serde_json::from_str(finished.stdout()).unwrap_or_else(|error| panic!("{error}: {finished:?}"));
        assert_eq!(report["troubles"], json!([]), "{report}");
        report
    };
    // The first sees that it has ended.
    let first = pass();
    assert_eq!(first["givenBack"], 0, "{first}");
    thread::sleep(Duration::from_millis(1_100));
    let second = pass();
    assert_eq!(second["givenBack"], 1, "{second}");
    assert!(!person("lease list").contains(&pod));

    let document = person("pool show jobs -o yaml");
    let refused = apply(reaper, &with_dns(&document, "10.1.2.9"));
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    assert!(refused.stderr().contains("permission denied"), "{refused:?}");
    assert_eq!(person("pool show jobs -o yaml"), document);
}

fn apply(host: &HostFile, document: &str) -> Finished {
    Cli::new(host).line("pool apply -f -").stdin(document).run()
}

fn with_dns(document: &str, server: &str) -> String {
    format!("{}\ndns: {{nameservers: [{server}]}}\n", document.trim_end())
}

/// By which a cluster is registered.
fn uid_of(api: &Apiserver) -> String {
    let system = api.get("/api/v1/namespaces/kube-system").unwrap();
    system["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// A snapshot is restored on all members. Where its revisions go on far above (`bump`), no node can notice. Another `net` for
/// each: the pods of all of them are on one API.
fn restore(version: Version, bump: Option<u64>, net: u8) {
    let api = Apiserver::shared();
    let namespace = api.namespace();
    let setting = Setting { server: Some(api.address()), ..Setting::default() };
    cluster::run(Etcd::with(version), setting, |cluster| {
        Crowd::work(cluster.nodes_of(&uid_of(api), net), Ways::in_namespace(&namespace), |crowd| {
            crowd.goes_on("all well");
            let (snapshot, made) = (cluster.etcd.snapshot(), crowd.now());
            // What was under way when it was made rests on the same past, and is not to be told from a call of later.
            crowd.paused(|_| ());
            crowd.goes_on("there is a snapshot");
            crowd.excused(|| {
                crowd.strike(|| (0..usize::from(MEMBERS)).for_each(|member| cluster.etcd.kill(member)));
                if bump.is_some() {
                    cluster.sites.iter().for_each(Host::unplug);
                }
                cluster.etcd.restore(&snapshot, bump);
                if bump.is_some() {
                    let freeze = ["freeze", "--reason", "restored"];
                    let _ = Cli::new(&crowd.admin).args(freeze).run().success();
                    cluster.sites.iter().for_each(Host::plug);
                }
                crowd.was_restored(made);
                crowd.is_refused("frozen");
                crowd.paused(|living| {
                    adopt(api, &namespace, &crowd.admin, living);
                    crowd.renew();
                });
            });
            crowd.goes_on("restored, adopted and thawed");
        });
    });
}

/// What an operator does, by the README.
fn adopt(api: &Apiserver, namespace: &str, admin: &HostFile, living: &BTreeMap<String, Sandbox>) {
    let name = |pod: &str| pod.rsplit('/').next().unwrap().to_owned();
    api.pods(namespace, &living.keys().map(|pod| (name(pod), "n1".into())).collect::<Vec<_>>());
    for (pod, sandbox) in living {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{}", name(pod));
        api.set_status(&path, &json!({ "podIP": sandbox.address, "podIPs": [{ "ip": sandbox.address }] }));
    }
    let kubeconfig = format!("--kubeconfig={}", api.kubeconfig().display());
    let adopt = || Cli::new(admin).args(["adopt", "-o", "json", "-n", namespace, &kubeconfig]).run();
    let first = adopt();
    let answer: Value =
        serde_json::from_slice(&first.stdout).unwrap_or_else(|error| panic!("{error}: {first:?}"));
    let conflicts: Vec<&Value> =
        answer["items"].as_array().unwrap().iter().filter(|item| item["result"] == "conflict").collect();
    for conflict in &conflicts {
        // The lease of one that has ended since the snapshot.
        let advice = conflict["do"].as_str().unwrap();
        let line = advice.split('`').find_map(|part| part.strip_prefix("leasehold ")).unwrap();
        Cli::new(admin).line(line).run().success();
    }
    report(&format!(
        "{} adopted, {} leased before, {} conflicts",
        answer["adopted"],
        answer["leased"],
        conflicts.len()
    ));
    adopt().success();
    let _ = Cli::new(admin).line("thaw").run().success();
}

#[test]
fn members_of_3_4_that_die_freeze_and_are_cut_off_cost_nobody_an_address() {
    require!(Part::Root, Part::Etcd(Version::V34));
    one_after_another(Version::V34);
}

#[test]
fn members_of_3_6_that_die_freeze_and_are_cut_off_cost_nobody_an_address() {
    require!(Part::Root, Part::Etcd(Version::V36));
    one_after_another(Version::V36);
}

#[test]
fn upkeep_of_3_4_costs_nobody_an_address() {
    require!(Part::Root, Part::Etcd(Version::V34));
    upkeep(Version::V34);
}

#[test]
fn upkeep_of_3_6_costs_nobody_an_address() {
    require!(Part::Root, Part::Etcd(Version::V36));
    upkeep(Version::V36);
}

#[test]
fn disks_of_3_4_that_are_slow_or_full_cost_nobody_an_address() {
    require!(Part::Root, Part::Program("strace"), Part::Etcd(Version::V34));
    disks(Version::V34);
}

#[test]
fn disks_of_3_6_that_are_slow_or_full_cost_nobody_an_address() {
    require!(Part::Root, Part::Program("strace"), Part::Etcd(Version::V36));
    disks(Version::V36);
}

#[test]
fn new_certificates_and_users_of_3_4_cost_nobody_an_address() {
    require!(Part::Root, Part::Program("openssl"), Part::Apiserver, Part::Etcd(Version::V34));
    secrets(Version::V34);
}

#[test]
fn new_certificates_and_users_of_3_6_cost_nobody_an_address() {
    require!(Part::Root, Part::Program("openssl"), Part::Apiserver, Part::Etcd(Version::V36));
    secrets(Version::V36);
}

#[test]
fn a_restore_of_3_4_costs_nobody_an_address() {
    require!(Part::Root, Part::Apiserver, Part::Etcd(Version::V34), Part::Restore(Version::V34));
    restore(Version::V34, None, 79);
}

#[test]
fn a_restore_of_3_6_costs_nobody_an_address() {
    require!(Part::Root, Part::Apiserver, Part::Etcd(Version::V36), Part::Restore(Version::V36));
    restore(Version::V36, None, 80);
}

#[test]
fn a_restore_of_3_6_with_bumped_revisions_costs_nobody_an_address() {
    require!(Part::Root, Part::Apiserver, Part::Etcd(Version::V36), Part::Restore(Version::V36));
    restore(Version::V36, Some(1_000_000), 81);
}
