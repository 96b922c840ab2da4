//! Plugin processes that are killed as they enter a system call, one at each of those by which they write or hear what
//! became of it. Whatever the dead one had done, the audit is clean, the pod's next ADD is right, DELs that come late
//! leave its successor alone, and in the end nothing is left, in the store or on a node.
//!
//! With `LEASEHOLD_CRASH=all` at every system call that there is (`scripts/crash`).

use std::{
    collections::BTreeMap, env, fs, fs::File, net::IpAddr, panic::catch_unwind, path::Path, time::SystemTime,
};

use serde_json::{Value, json};

use super::{bound, journal, one};
use crate::support::{
    call::{Call, Cli},
    crowd::crowd,
    ground,
    host::HostFile,
    parts::{Part, Version, require},
    process::report,
};

const CALLS: [&str; 14] = [
    "write",
    "writev",
    "sendto",
    "recvfrom",
    "epoll_wait",
    "openat",
    "mkdir",
    "rename",
    "linkat",
    "unlink",
    "pwrite64",
    "ftruncate",
    "fsync",
    "fdatasync",
];

/// Who is killed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Victim {
    /// The first ADD of a pod.
    Add,
    /// An ADD for another container of a pod that has a lease.
    TakeOver,
    /// The same on another node.
    Move,
    /// An ADD for the container that has the lease.
    Repeat,
    /// An ADD that tells the store of another pod's DEL, which is in the node's journal.
    Replay,
    /// An ADD of a container whose DEL is in the node's journal.
    Again,
    /// An ADD whose answer cannot be written.
    Undo,
    Del,
    /// A DEL while the store is down.
    DelToJournal,
    Gc,
}

impl Victim {
    const fn is_add(self) -> bool {
        match self {
            Self::Add
            | Self::TakeOver
            | Self::Move
            | Self::Repeat
            | Self::Replay
            | Self::Again
            | Self::Undo => true,
            Self::Del | Self::DelToJournal | Self::Gc => false,
        }
    }

    /// What it runs under, if these words are to watch it.
    fn under(self, mut words: Vec<String>) -> Vec<String> {
        if self == Self::Undo {
            words.extend(["/bin/sh", "-c", "exec \"$0\" \"$@\" >/dev/full"].map(Into::into));
        }
        words
    }

    /// With which it ends, if nobody kills it.
    fn code(self) -> i32 {
        i32::from(self == Self::Undo)
    }
}

/// Two nodes on which nothing runs.
#[derive(Debug)]
struct Ground {
    node: HostFile,
    other: HostFile,
    /// The first node while the store is down.
    down: HostFile,
    ipam: Value,
    /// Leases have an address of each family, and stay with their pod.
    keeps: bool,
}

const POD: &str = "shop/p";

impl Ground {
    fn on_etcd() -> Self {
        Self::with(false, json!([{ "subnet": "10.1.0.0/28" }]), "auto")
    }

    fn that_keeps() -> Self {
        Self::with(true, json!([{ "subnet": "10.1.0.0/28" }, { "subnet": "fd00:1::/124" }]), "always")
    }

    fn with(keeps: bool, ranges: Value, sticky: &str) -> Self {
        let node = ground::on_etcd();
        ground::pool(
            &node,
            json!({
                "name": "lan", "networks": ["lan100"], "serves": ["*/*"], "coolDown": "0s",
                "ranges": ranges, "sticky": sticky,
            }),
        );
        let down = node.node("n1").endpoints(["http://127.0.0.1:1"]).with("stateDir", json!(node.state()));
        let down = down.with("deadlines", json!({ "del": "1s" }));
        Self { other: node.node("n2"), down, node, ipam: json!({ "type": "leasehold" }), keeps }
    }

    /// The store itself is made by the first call.
    fn on_local() -> Self {
        let node = ground::on_local();
        let ipam = json!({ "type": "leasehold", "subnet": "10.1.0.0/28" });
        Self { other: node.node("n2"), down: node.node("n1"), node, ipam, keeps: false }
    }

    /// What was there before; the pod's addresses.
    fn prepare(&self, victim: Victim) -> Option<Vec<String>> {
        match victim {
            Victim::Add | Victim::Undo => return None,
            Victim::Replay => {
                let gone = |verb, host| self.call(verb, host, "gone").pod("shop/gone").run();
                let _ = gone(Call::add, &self.node).addresses();
                gone(Call::del, &self.down).is_silent();
                return None;
            }
            Victim::TakeOver
            | Victim::Move
            | Victim::Repeat
            | Victim::Again
            | Victim::Del
            | Victim::DelToJournal
            | Victim::Gc => {}
        }
        let had = self.add(&self.node, "c1");
        if victim == Victim::Move {
            ground::bound_long_ago(&self.node, POD);
        }
        if victim == Victim::Again {
            self.call(Call::del, &self.down, "c1").run().is_silent();
        }
        Some(had)
    }

    /// The call that is to die, its node and its container.
    fn call_of(&self, victim: Victim) -> (Call, &HostFile, &'static str) {
        let (verb, node, container) = match victim {
            Victim::Add | Victim::Repeat | Victim::Replay | Victim::Again | Victim::Undo => {
                (Call::add as fn(&_) -> _, &self.node, "c1")
            }
            Victim::TakeOver => (Call::add as _, &self.node, "c2"),
            Victim::Move => (Call::add as _, &self.other, "c2"),
            Victim::Del => (Call::del as _, &self.node, "c1"),
            Victim::DelToJournal => (Call::del as _, &self.down, "c1"),
            Victim::Gc => (Call::gc as _, &self.node, "c1"),
        };
        let call = self.call(verb, node, container);
        let call =
            if victim == Victim::Gc { call.field("cni.dev/valid-attachments", json!([])) } else { call };
        (call, node, container)
    }

    /// Kills a call of the plugin as it enters a system call, and looks. False: it had ended before.
    fn kill(&self, victim: Victim, at: &Moment) -> bool {
        let had = self.prepare(victim);
        let (call, node, container) = self.call_of(victim);
        let ended = call.under(victim.under(at.killing())).run();
        let lived = ended.0.killed_by().is_none();

        // All of it or nothing.
        let leases = ground::leases(&self.node);
        let left = leases.iter().find(|lease| lease.id.holder.to_string() == POD);
        let has = left.map(|lease| lease.addresses.iter().map(|held| cidr(held.address)).collect::<Vec<_>>());
        let by = left.and_then(|lease| lease.bound()).map(|stamp| stamp.container.as_str());
        assert!(had.is_none() || (has.is_none() && !self.keeps) || has == had, "{had:?} became {has:?}");
        assert!(by.is_none_or(|by| ["c1", container].contains(&by)), "{by:?}");
        let in_journal = journal(&self.node).iter().any(|entry| entry["holder"] == POD);
        // What it said, and that it ended well, is true.
        let said = serde_json::from_slice::<Value>(&ended.0.stdout).ok();
        assert!(said.is_some() || ended.0.stdout.is_empty(), "{ended:?}");
        if let Some(said) = &said {
            let told =
                said["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap().to_owned());
            assert_eq!((Some(told.collect()), by), (has.clone(), Some(container)));
        }
        if lived {
            let undone = by.is_none() || in_journal;
            let done = if victim.is_add() && victim != Victim::Undo { said.is_some() } else { undone };
            assert!(done && ended.0.code() == Some(victim.code()), "{ended:?}");
        }

        // An entry of the journal is told by the node's next run, or finds a successor there.
        if in_journal && at.turn.is_multiple_of(2) {
            let other = |verb| self.call(verb, &self.node, "o").pod("shop/other").run();
            let _ = other(Call::add).addresses();
            assert_eq!(bound(&self.node), one("shop/other", "o"));
            other(Call::del).is_silent();
        }
        // Nobody tells that it died: the pod's next sandbox comes, and DELs of the dead come late.
        let living = if victim == Victim::DelToJournal { &self.node } else { node };
        let next = self.add(living, "next");
        assert!(had.or(has).is_none_or(|right| next == right), "{next:?}");
        assert_eq!(next.len(), if self.keeps { 2 } else { 1 });
        self.grow_old();
        for (node, container) in [(&self.node, "c1"), (node, container), (living, container)] {
            self.call(Call::del, node, container).run().is_silent();
        }
        assert_eq!(bound(&self.node), one(POD, "next"));
        self.call(Call::del, living, "next").run().is_silent();
        if self.keeps {
            let kept = ground::leases(&self.node);
            assert!(kept.iter().all(|lease| lease.sticky && lease.bound().is_none()), "{kept:?}");
            for lease in kept {
                let line = format!("lease release {}", lease.id.holder);
                let _ = Cli::new(&self.node).line(&line).run().success();
            }
        }
        ground::is_empty(&self.node);
        self.is_tidy();
        !lived
    }

    fn call(&self, verb: fn(&HostFile) -> Call, node: &HostFile, container: &str) -> Call {
        verb(node).pod(POD).container(container).field("ipam", self.ipam.clone())
    }

    fn add(&self, node: &HostFile, container: &str) -> Vec<String> {
        self.call(Call::add, node, container).run().addresses()
    }

    /// Whatever is on the nodes' disks was written long ago.
    fn grow_old(&self) {
        for node in [&self.node, &self.other] {
            for file in files(&node.state()) {
                let file = File::open(node.state().join(file)).unwrap();
                file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
            }
        }
    }

    /// The nodes keep what they need.
    fn is_tidy(&self) {
        if !journal(&self.node).is_empty() {
            self.grow_old();
            let _ = Cli::new(&self.node).line("flush").run().success();
        }
        for node in [&self.node, &self.other] {
            let unneeded: Vec<_> = files(&node.state())
                .into_iter()
                .filter(|file| !["store.json", "counting.lock"].contains(&file.as_str()))
                .collect();
            assert_eq!(unneeded, Vec::<String>::new());
            // The embedded store; and it once more, if who made it was killed before it took the other name away.
            assert!(files(&node.folder().join("store")).len() <= 2);
        }
    }
}

/// An address with the prefix of its subnet here.
fn cidr(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 28 } else { 124 })
}

/// The files of a folder and of those in it.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()).into_iter().map(|inner| format!("{name}/{inner}")));
        } else {
            found.push(name);
        }
    }
    found
}

/// The n-th system call of a name.
#[derive(Debug)]
struct Moment {
    call: String,
    turn: u32,
}

impl Moment {
    /// All of a call that is left alone. Times differ: another run may make some less of these, or more.
    fn all_of(ground: &Ground, victim: Victim) -> Vec<Self> {
        ground.prepare(victim);
        let trace = ground.node.folder().join("trace");
        let words = ["/usr/bin/strace", "-qq", "-o", trace.to_str().unwrap(), "--"].map(Into::into);
        let ended = ground.call_of(victim).0.under(victim.under(words.into())).run();
        assert_eq!(ended.0.code(), Some(victim.code()), "{ended:?}");
        let mut turns = BTreeMap::new();
        let text = fs::read_to_string(trace).unwrap();
        let calls = text.lines().filter_map(|line| line.split_once('(')).map(|(call, _)| call);
        calls
            .filter(|call| all() || CALLS.contains(call))
            .map(|call| {
                let turn = turns.entry(call.to_owned()).and_modify(|turn| *turn += 1).or_insert(1);
                Self { call: call.into(), turn: *turn }
            })
            .collect()
    }

    /// The program that kills another there.
    fn killing(&self) -> Vec<String> {
        let Self { call, turn } = self;
        let (trace, fault) = (format!("trace={call}"), format!("inject={call}:signal=SIGKILL:when={turn}"));
        ["/usr/bin/strace", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &fault, "--"].map(Into::into).into()
    }
}

fn all() -> bool {
    env::var_os("LEASEHOLD_CRASH").is_some_and(|which| which == "all")
}

/// Kills each of these everywhere, `at_once` at a time.
fn kill_everywhere(fresh: fn() -> Ground, victims: &[Victim], at_once: usize) {
    for victim in victims {
        let moments = Moment::all_of(&fresh(), *victim);
        let killed = crowd(at_once, moments.len(), |n| {
            let moment = &moments[n];
            catch_unwind(|| fresh().kill(*victim, moment))
                .unwrap_or_else(|_| panic!("{victim:?}, {moment:?}"))
        });
        let kills = killed.iter().filter(|killed| **killed).count();
        report(&format!("{victim:?}: {kills} of {} died", moments.len()));
        // One that makes fewer calls than the one that was watched lives, such as one whose answers come in one piece each.
        assert!(kills * 5 >= moments.len() * 3, "{kills} of {}", moments.len());
    }
}

#[test]
fn an_add_that_is_killed_leaves_all_or_nothing() {
    require!(Part::Etcd(Version::V36), Part::Program("strace"));
    let victims = [Victim::Add, Victim::TakeOver, Victim::Repeat, Victim::Again, Victim::Undo];
    kill_everywhere(Ground::on_etcd, &victims, 2);
    // These wait for the wire, and for a store that is down.
    kill_everywhere(Ground::on_etcd, &[Victim::Move, Victim::Replay], 16);
}

#[test]
fn a_kill_leaves_both_addresses_with_the_pod_that_keeps_them() {
    require!(Part::Etcd(Version::V36), Part::Program("strace"));
    kill_everywhere(Ground::that_keeps, &[Victim::Del], 2);
    kill_everywhere(Ground::that_keeps, &[Victim::Move], 16);
}

#[test]
fn a_del_that_is_killed_leaves_all_or_nothing() {
    require!(Part::Etcd(Version::V36), Part::Program("strace"));
    kill_everywhere(Ground::on_etcd, &[Victim::Del, Victim::Gc], 2);
    kill_everywhere(Ground::on_etcd, &[Victim::DelToJournal], 16);
}

#[test]
fn a_kill_leaves_the_embedded_store_whole() {
    require!(Part::Program("strace"));
    let victims = [Victim::Add, Victim::TakeOver, Victim::Repeat, Victim::Del, Victim::Gc];
    kill_everywhere(Ground::on_local, &victims, 2);
}
