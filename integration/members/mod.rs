//! Three real etcds in namespaces, under sixty-four callers, while one thing after another goes wrong. What the callers
//! saw is held against the rules of ownership; see [`history`].
#![expect(clippy::disallowed_methods, reason = "time limits are of the real clock")]

mod callers;
mod cluster;
mod history;

use callers::{Crowd, Deadlines};
use cluster::{Disks, Slow};

use crate::support::{
    etcd::Etcd,
    parts::{Part, Version, require},
    process::eventually,
};

/// Members are killed, freeze, and are cut off from their peers or from their clients, one after another.
fn one_after_another(version: Version) {
    cluster::run(Etcd::with(version), |cluster| {
        Crowd::work(cluster.nodes(), Deadlines::USUAL, |crowd| {
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
    cluster::run(Etcd::with(version).quota(QUOTA), |cluster| {
        Crowd::work(cluster.nodes(), Deadlines::SHORT, |crowd| {
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
    cluster::run_on(Etcd::with(version).on_disk(), Some(Disks::new(MEBIBYTES)), |cluster| {
        Crowd::work(cluster.nodes(), Deadlines::USUAL, |crowd| {
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
