//! Three etcds, each in a network namespace of its own, with one cable to its clients and another to its peers and its
//! operator: a partition is a cable that is pulled.

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
use crate::{
    documents::PASSWORD,
    support::{
        call::Cli,
        door::Door,
        etcd::{Etcd, Options, Place, Secrets, certificates},
        folder::Folder,
        ground,
        host::HostFile,
        lan::{Cable, Host, Lan},
        process::{Finished, Process, eventually, run as run_command},
    },
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

/// What there is beside.
#[derive(Default)]
pub(super) struct Setting {
    /// For the members' data.
    pub(super) disks: Option<Disks>,
    /// A server out here, `127.0.0.1:port`, that is to be reached from where the clients are.
    pub(super) server: Option<String>,
}

/// Starts a cluster, and runs something where its clients and its operator are.
pub(super) fn run(options: Options, setting: Setting, act: impl FnOnce(&mut Cluster) + Send) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(()); // a machine that is too busy proves nothing
    let _turn = ONE_AT_A_TIME.lock();
    let (clients, peers) = (Lan::new(), Lan::new());
    let outside = clients.node("callers");
    let _control = peers.cable(&outside, "eth1");
    outside.add_address("eth0", "10.98.0.100/24");
    outside.add_address("eth1", "10.99.0.100/24");
    let _door = setting.server.map(|server| Door::to(&outside, &server));
    let disks = setting.disks;
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

/// Who uses the cluster.
pub(super) struct Nodes {
    pub(super) nodes: Vec<HostFile>,
    /// The addresses of their pool.
    pub(super) range: String,
    /// An operator, who may do everything and has a way of his own.
    pub(super) admin: HostFile,
}

impl Nodes {
    /// The same as users with the roles of nodes and of an administrator.
    pub(super) fn with_users(self) -> Self {
        let nodes = self.nodes.into_iter().map(|node| as_user(node, "leasehold-node-prod-a"));
        Self { nodes: nodes.collect(), admin: as_user(self.admin, "leasehold-admin"), ..self }
    }
}

pub(super) fn as_user(host: HostFile, user: &str) -> HostFile {
    host.etcd("username", user).etcd("password", PASSWORD)
}

/// Certificates of the members and their clients.
pub(super) struct Authority(Folder);

impl Authority {
    pub(super) fn new() -> Self {
        let authority = Self(Folder::new());
        for name in ["m0", "m1", "m2", "client"] {
            authority.issue(name);
            authority.replace(name);
        }
        authority
    }

    pub(super) fn secrets(&self) -> Secrets {
        let members = (0..MEMBERS).map(|at| self.pair(&format!("m{at}"))).collect();
        Secrets { ca: certificates().ca.clone(), members, client: self.pair("client") }
    }

    pub(super) fn pair(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.0.path().join(format!("{name}.crt")), self.0.path().join(format!("{name}.key")))
    }

    /// Puts the certificate that was issued last, and its key, in the place of the old, one after the other.
    pub(super) fn replace(&self, name: &str) {
        let (fresh, old) = (self.pair(&format!("{name}.new")), self.pair(name));
        fs::rename(fresh.1, old.1).unwrap();
        fs::rename(fresh.0, old.0).unwrap();
    }

    pub(super) fn issue(&self, name: &str) {
        let script = r#"
            set -e
            openssl ecparam -genkey -name prime256v1 -noout -out $NAME.new.key
            printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' \
              IP:10.98.0.1,IP:10.98.0.2,IP:10.98.0.3,IP:10.99.0.1,IP:10.99.0.2,IP:10.99.0.3 >extensions
            openssl req -new -key $NAME.new.key -subj /CN=$NAME | openssl x509 -req -CA "$CA" -CAkey "${CA%.crt}.key" \
              -set_serial 0x$(openssl rand -hex 8) -days 2 -extfile extensions -out $NAME.new.crt
        "#;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]).env("CA", &certificates().ca).env("NAME", name).current_dir(self.0.path());
        run_command(&mut shell, b"").success();
    }
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
    pub(super) fn nodes(&self) -> Nodes {
        self.nodes_of("11111111-2222-4333-8444-555555555555", 1)
    }

    /// The same of the Kubernetes with this UID. The pool's addresses begin with `10.net`.
    pub(super) fn nodes_of(&self, uid: &str, net: u8) -> Nodes {
        let all = HostFile::on(&self.etcd).with("cluster", "prod-a");
        let ways = (0..MEMBERS).map(|at| self.etcd.control(at.into()));
        let admin = all.node("admin").endpoints(ways);
        Cli::new(&admin).args(["cluster", "add", "prod-a", "--uid", uid]).run().success();
        let subnet = Ipv4Addr::new(10, net, 0, 0);
        let [start, end] = [1, POOL].map(|number| Ipv4Addr::from(u32::from(subnet) + number));
        ground::pool(
            &admin,
            json!({
                // No wire here: silence is taken for granted.
                "name": "lan", "networks": ["lan100"], "serves": ["*/*"], "coolDown": "0s", "probe": "never",
                "ranges": [{
                    "subnet": format!("{subnet}/16"),
                    "start": start,
                    "end": end,
                }],
            }),
        );
        let nodes = (0..4).map(|number| {
            let mut endpoints = self.etcd.endpoints();
            let shift = number % endpoints.len();
            endpoints.rotate_left(shift);
            all.node(&format!("n{number}")).in_memory().endpoints(endpoints)
        });
        Nodes { nodes: nodes.collect(), range: format!("{start}-{end}"), admin }
    }

    /// Any member that does not lead now, and the one that does.
    pub(super) fn follower_and_leader(&self) -> (usize, usize) {
        let leader = self.etcd.leader();
        ((leader + 1) % usize::from(MEMBERS), leader)
    }

    /// Does it show this certificate?
    pub(super) fn shows(&self, member: usize, certificate: &Path) -> bool {
        let files = certificates();
        let mut openssl = Command::new("/usr/bin/openssl");
        openssl
            .args(["s_client", "-connect", &format!("10.99.0.{}:2379", member + 1)])
            .arg("-CAfile")
            .arg(&files.ca);
        openssl.arg("-cert").arg(&files.client.0).arg("-key").arg(&files.client.1);
        let shown = run_command(&mut openssl, b"");
        shown.stdout().contains(fs::read_to_string(certificate).unwrap().trim())
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
        let mut etcdctl = self.etcd.etcdctl(&self.etcd.control(member));
        run_command(etcdctl.arg("--command-timeout=20s").args(arguments), stdin)
    }
}
