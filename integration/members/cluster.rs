//! Three etcds, each in a network namespace of its own, with one cable to its clients and another to its peers: a
//! partition is a cable that is pulled.

use std::{
    fs,
    fs::File,
    io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

use serde_json::json;

use super::callers::POOL;
use crate::support::{
    etcd::{Etcd, Options, Place},
    folder::Folder,
    ground,
    host::HostFile,
    lan::{Cable, Host, Lan},
    process::{Finished, Process, eventually, run as run_command},
};

pub(super) const MEMBERS: u8 = 3;

/// Alive while [`run`] runs.
pub(super) struct Cluster {
    pub(super) etcd: Etcd,
    /// Each member's, where they have such.
    pub(super) disks: Option<Disks>,
    /// Each member's cable to its peers.
    pub(super) peers: Vec<Cable>,
    /// Each member's namespace, whose first cable is that to the clients.
    pub(super) sites: Vec<Host>,
}

/// Starts a cluster, and runs something where its clients are.
pub(super) fn run(options: Options, act: impl FnOnce(&mut Cluster) + Send) {
    run_on(options, None, act);
}

/// The same, with the members' data on disks of their own.
pub(super) fn run_on(options: Options, disks: Option<Disks>, act: impl FnOnce(&mut Cluster) + Send) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(()); // a machine that is too busy proves nothing
    let _turn = ONE_AT_A_TIME.lock();
    let (clients, peers) = (Lan::new(), Lan::new());
    let outside = clients.node("callers");
    outside.add_address("eth0", "10.98.0.100/24");
    let sites: Vec<Host> = (0..MEMBERS).map(|at| clients.node(&format!("m{at}"))).collect();
    let cables: Vec<Cable> = sites.iter().map(|site| peers.cable(site, "eth1")).collect();
    let mut places = Vec::new();
    for (at, site) in (1..).zip(&sites) {
        let (client, peer) = (Ipv4Addr::new(10, 98, 0, at), Ipv4Addr::new(10, 99, 0, at));
        site.add_address("eth0", &format!("{client}/24"));
        site.add_address("eth1", &format!("{peer}/24"));
        let mut enter = vec!["/usr/bin/nsenter".into(), format!("--net={}", site.path().display())];
        enter.extend(disks.as_ref().map(|disks| format!("--mount=/proc/{}/ns/mnt", disks.keeper.pid())));
        enter.push("--".into());
        let data = disks.as_ref().map(|disks| disks.folder.path().join(format!("{}/data", at - 1)));
        places.push(Place { enter, clients: client.into(), peers: peer.into(), data });
    }
    outside.inside(move || {
        let mut cluster = Cluster { etcd: options.at(places).start(), disks, peers: cables, sites };
        act(&mut cluster);
    });
}

/// A small disk for each member, in memory, mounted where nobody else sees it.
pub(super) struct Disks {
    /// The mounts go with it.
    keeper: Process,
    folder: Folder,
}

impl Disks {
    pub(super) fn new(mebibytes: u32) -> Self {
        let folder = Folder::new();
        let script = format!(
            "cd $0 && for n in 0 1 2; do mkdir $n && mount -t tmpfs -o size={mebibytes}m tmpfs $n || exit; done
             : >ready && exec sleep infinity"
        );
        let mut keeper = Command::new("/usr/bin/unshare");
        keeper.args(["--mount", "/bin/sh", "-c", &script]).arg(folder.path());
        let keeper = Process::spawn(&keeper).unwrap();
        eventually("the disks", || folder.path().join("ready").exists().then_some(()));
        Self { keeper, folder }
    }

    /// Leaves no byte free.
    pub(super) fn fill(&self, member: usize) {
        let mut file = File::create(self.filler(member)).unwrap();
        let full = io::copy(&mut io::repeat(0), &mut file).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{full}");
    }

    pub(super) fn free(&self, member: usize) {
        fs::remove_file(self.filler(member)).unwrap();
    }

    fn filler(&self, member: usize) -> PathBuf {
        let folder = self.folder.path().strip_prefix("/").unwrap();
        Path::new("/proc")
            .join(self.keeper.pid().to_string())
            .join("root")
            .join(folder)
            .join(format!("{member}/filler"))
    }
}

/// A member that waits longer each time that it waits for its disk, until this ends.
pub(super) struct Slow {
    strace: Process,
    folder: Folder,
}

impl Slow {
    pub(super) fn down(etcd: &Etcd, member: usize) -> Self {
        let folder = Folder::new();
        let mut strace = Command::new("/usr/bin/strace");
        strace.args(["-f", "-qq", "-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=100000"]);
        strace.arg("-o").arg(folder.path().join("log")).arg(format!("--attach={}", etcd.pid(member)));
        let slow = Self { strace: Process::spawn(&strace).unwrap(), folder };
        eventually("a wait that is longer", || slow.log().contains("(DELAYED)").then_some(()));
        slow
    }

    pub(super) fn end(self) {
        self.strace.signal("INT");
        self.strace.wait();
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Cluster {
    /// A registered cluster with a pool, and four nodes of it. They ask the members in different orders.
    pub(super) fn nodes(&self) -> Vec<HostFile> {
        let first = HostFile::on(&self.etcd);
        ground::register(&first);
        let (start, end) = (Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::from(0x0a01_0000 + POOL));
        ground::pool(
            &first,
            json!({
                // No wire here: silence is taken for granted.
                "name": "lan", "networks": ["lan100"], "serves": ["*/*"], "coolDown": "0s", "probe": "never",
                "ranges": [{ "subnet": "10.1.0.0/16", "start": start, "end": end }],
            }),
        );
        (0..4)
            .map(|number| {
                let mut endpoints = self.etcd.endpoints();
                let shift = number % endpoints.len();
                endpoints.rotate_left(shift);
                first.node(&format!("n{number}")).endpoints(endpoints)
            })
            .collect()
    }

    /// Any member that does not lead now, and the one that does.
    pub(super) fn follower_and_leader(&self) -> (usize, usize) {
        let leader = self.etcd.leader();
        ((leader + 1) % usize::from(MEMBERS), leader)
    }

    /// Any command of etcdctl to one member.
    pub(super) fn ctl(&self, member: usize, arguments: &[&str]) -> Finished {
        self.ctl_with(member, arguments, b"")
    }

    /// Writes what nobody reads until the quota is reached.
    pub(super) fn fill(&self) {
        const TRIES: u32 = 200;
        let large = vec![b'x'; 1_000_000];
        let refused = (0..TRIES).map(|n| self.ctl_with(0, &["put", &format!("fill/{n}")], &large));
        let refused =
            refused.map(|put| put.stderr().to_owned()).find(|text| text.contains("database space exceeded"));
        assert!(refused.is_some(), "the quota was never reached");
    }

    /// What an operator does about it.
    pub(super) fn free(&self) {
        self.ctl(0, &["del", "--prefix", "fill/"]).success();
        self.compact();
        self.defragment();
        self.ctl(0, &["alarm", "disarm"]).success();
    }

    /// Forgets all that is not of now.
    pub(super) fn compact(&self) {
        self.ctl(0, &["compact", "--physical", &self.etcd.revision().to_string()]).success();
    }

    /// Each member, one after another, as is advised.
    pub(super) fn defragment(&self) {
        for member in 0..usize::from(MEMBERS) {
            self.ctl(member, &["defrag"]).success();
        }
    }

    fn ctl_with(&self, member: usize, arguments: &[&str], stdin: &[u8]) -> Finished {
        let mut etcdctl = self.etcd.etcdctl(&self.etcd.endpoint(member));
        run_command(etcdctl.arg("--command-timeout=20s").args(arguments), stdin)
    }
}
