//! Real etcds: one or a cluster, with TLS, users, a quota; frozen, killed, set back.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{LazyLock, OnceLock},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    folder::Folder,
    parts::Version,
    port::Port,
    process::{Finished, Process, eventually, run},
};

/// An etcd of one member or more, answering when it is here and gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Etcd {
    options: Options,
    folder: Folder,
    members: Vec<Member>,
}

/// What kind of etcd it is to be.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    version: Version,
    members: usize,
    places: Vec<Place>,
    tls: Option<Secrets>,
    auth: bool,
    quota: Option<u64>,
    on_disk: bool,
    more: Vec<String>,
}

/// Where a member is, if not on this machine's loopback. Who asks it must be where its clients are.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The command line that its own is added to.
    pub(crate) enter: Vec<String>,
    /// Its addresses: for clients, and for the other members and its operator.
    pub(crate) clients: IpAddr,
    pub(crate) peers: IpAddr,
    /// Its data, if not in the folder of all.
    pub(crate) data: Option<PathBuf>,
}

/// Files of certificates and keys: the authority's certificate, a pair for each member or one for all, the clients' pair.
#[derive(Clone, Debug)]
pub(crate) struct Secrets {
    pub(crate) ca: PathBuf,
    pub(crate) members: Vec<(PathBuf, PathBuf)>,
    pub(crate) client: (PathBuf, PathBuf),
}

impl Options {
    /// One more argument, as etcd takes it.
    pub(crate) fn argument(mut self, argument: impl Into<String>) -> Self {
        self.more.push(argument.into());
        self
    }

    /// A cluster; an odd number.
    pub(crate) fn members(mut self, count: usize) -> Self {
        self.members = count;
        self
    }

    /// A cluster with a member at each of these places.
    pub(crate) fn at(mut self, places: Vec<Place>) -> Self {
        self.members = places.len();
        self.places = places;
        self
    }

    /// Clients must show a certificate of [`certificates`]' authority.
    pub(crate) fn tls(self) -> Self {
        let files = certificates();
        let (ca, client) = (files.ca.clone(), files.client.clone());
        let members = vec![files.server.clone()];
        self.tls_with(Secrets { ca, members, client })
    }

    /// The same with other files.
    pub(crate) fn tls_with(mut self, secrets: Secrets) -> Self {
        self.tls = Some(secrets);
        self
    }

    /// Clients must be a user: [`USER`], who may read and write below `/leasehold`, or [`ROOT`].
    pub(crate) fn auth(mut self) -> Self {
        self.auth = true;
        self
    }

    pub(crate) fn quota(mut self, bytes: u64) -> Self {
        self.quota = Some(bytes);
        self
    }

    /// Data on the disk, where each write waits for it. For measurements; otherwise memory is as good and faster.
    pub(crate) fn on_disk(mut self) -> Self {
        self.on_disk = true;
        self
    }

    pub(crate) fn start(self) -> Etcd {
        // Another process may have taken a port between our look and etcd's: then all again, elsewhere.
        const TRIES: u32 = 3;
        for _ in 1..TRIES {
            if let Some(etcd) = Etcd::try_start(&self) {
                return etcd;
            }
        }
        Etcd::try_start(&self).unwrap_or_else(|| panic!("etcd does not start: {self:?}"))
    }
}

/// Name and password.
pub(crate) const USER: (&str, &str) = ("leasehold", "sesame-4711");
pub(crate) const ROOT: (&str, &str) = ("root", "root-0815");

impl Etcd {
    /// One member, for everybody, in memory.
    pub(crate) fn start(version: Version) -> Self {
        Self::with(version).start()
    }

    pub(crate) fn with(version: Version) -> Options {
        Options {
            version,
            members: 1,
            places: Vec::new(),
            tls: None,
            auth: false,
            quota: None,
            on_disk: false,
            more: Vec::new(),
        }
    }

    /// The URL of one member.
    pub(crate) fn endpoint(&self, member: usize) -> String {
        format!("{}://{}", self.scheme(), self.members[member].site.clients)
    }

    /// The URLs of all.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        (0..self.members.len()).map(|member| self.endpoint(member)).collect()
    }

    /// The same for an operator.
    pub(crate) fn control(&self, member: usize) -> String {
        format!("{}://{}", self.scheme(), self.members[member].site.control)
    }

    /// `127.0.0.1:port` of one member, for a proxy.
    pub(crate) fn address(&self, member: usize) -> String {
        self.members[member].site.clients.clone()
    }

    /// What the host file's `store.etcd` must say to use it.
    pub(crate) fn settings(&self) -> Value {
        let mut settings = json!({ "endpoints": self.endpoints() });
        if let Some(secrets) = &self.options.tls {
            settings["cacert"] = json!(secrets.ca);
            settings["cert"] = json!(secrets.client.0);
            settings["key"] = json!(secrets.client.1);
        }
        if self.options.auth {
            settings["username"] = json!(USER.0);
            settings["password"] = json!(USER.1);
        }
        settings
    }

    /// Stops a member where it stands (SIGSTOP): its connections stay open and nothing answers.
    pub(crate) fn freeze(&self, member: usize) {
        self.process(member).signal("STOP");
    }

    pub(crate) fn thaw(&self, member: usize) {
        self.process(member).signal("CONT");
    }

    /// Kills a member (SIGKILL): connections to it are refused.
    pub(crate) fn kill(&mut self, member: usize) {
        self.members[member].process = None;
    }

    /// Starts a killed member on its old data and port, and waits until it answers.
    pub(crate) fn restart(&mut self, member: usize) {
        self.restart_all(&[member]);
    }

    fn restart_all(&mut self, members: &[usize]) {
        for member in members {
            let process = self.members[*member].spawn();
            self.members[*member].process = Some(process);
        }
        for member in members {
            eventually("etcd to answer again", || {
                assert!(self.is_alive(*member), "etcd ended:\n{}", self.log(*member));
                self.members[*member].is_healthy().then_some(())
            });
        }
    }

    /// Does its process run?
    pub(crate) fn is_alive(&mut self, member: usize) -> bool {
        self.members[member].process.as_mut().is_some_and(Process::is_alive)
    }

    /// The process ID of a member that runs.
    pub(crate) fn pid(&self, member: usize) -> u32 {
        self.process(member).pid()
    }

    /// The member that leads now.
    pub(crate) fn leader(&self) -> usize {
        eventually("a leader", || self.members.iter().position(Member::is_leader))
    }

    /// Stops it, copies its data, starts it again.
    pub(crate) fn backup(&mut self) -> Backup {
        assert_eq!(self.members.len(), 1, "only of one member");
        let folder = Folder::in_memory();
        self.while_stopped(|member| copy(&member.data, &folder.path().join("data")));
        Backup(folder)
    }

    /// Sets it back to what it was: what a restore from an old backup looks like from outside.
    pub(crate) fn set_back(&mut self, backup: &Backup) {
        self.while_stopped(|member| {
            fs::remove_dir_all(&member.data).unwrap();
            copy(&backup.0.path().join("data"), &member.data);
        });
    }

    /// Takes a snapshot, as an operator does.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let folder = Folder::in_memory();
        let file = folder.path().join("snapshot.db").display().to_string();
        // Of one member, whatever their number.
        run(self.etcdctl(&self.control(0)).args(["snapshot", "save", &file]), b"").success();
        Snapshot(folder)
    }

    /// Restores a snapshot on every member, as an operator does: the data is made anew, and with it the IDs of cluster and
    /// members. With `bump` (3.6) the revision goes on that far above the snapshot's, and all before it counts as compacted.
    pub(crate) fn restore(&mut self, snapshot: &Snapshot, bump: Option<u64>) {
        let restorer = self.options.version.restorer();
        self.while_stopped(|member| {
            let mut restore = Command::new(&restorer);
            restore.env_clear().env("ETCDCTL_API", "3").args(["snapshot", "restore"]);
            restore.arg(snapshot.0.path().join("snapshot.db"));
            restore.args(member.arguments.iter().filter(|argument| {
                let names = ["name", "data-dir", "initial-advertise-peer-urls", "initial-cluster"];
                names.iter().any(|name| argument.starts_with(&format!("--{name}=")))
            }));
            if let Some(bump) = bump {
                restore.arg(format!("--bump-revision={bump}")).arg("--mark-compacted");
            }
            fs::remove_dir_all(&member.data).unwrap();
            run(&mut restore, b"").success();
        });
    }

    pub(crate) fn put(&self, key: &str, value: &str) {
        self.ctl(&["put", "--", key, value]).success();
    }

    pub(crate) fn del(&self, key: &str) {
        self.ctl(&["del", key]).success();
    }

    pub(crate) fn get(&self, key: &str) -> Option<String> {
        self.pairs(&["get", key]).0.pop_first().map(|(_, value)| value)
    }

    /// Every key that begins so, with its value.
    pub(crate) fn dump(&self, prefix: &str) -> BTreeMap<String, String> {
        self.pairs(&["get", "--prefix", prefix]).0
    }

    /// The revision of the store.
    pub(crate) fn revision(&self) -> i64 {
        self.pairs(&["get", "leasehold-test/none"]).1
    }

    /// A transaction in etcdctl's language: compares, an empty line, then what follows if they hold, an empty line,
    /// what follows if not, an empty line. True if they held.
    pub(crate) fn txn(&self, script: &str) -> bool {
        let finished = run(self.at_all().arg("txn"), script.as_bytes());
        match finished.success().lines().next() {
            Some("SUCCESS") => true,
            Some("FAILURE") => false,
            other => panic!("etcdctl txn says {other:?}"),
        }
    }

    /// Any other command.
    pub(crate) fn ctl<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Finished {
        run(self.at_all().args(arguments), b"")
    }

    fn at_all(&self) -> Command {
        let all: Vec<String> = (0..self.members.len()).map(|member| self.control(member)).collect();
        self.etcdctl(&all.join(","))
    }

    fn try_start(options: &Options) -> Option<Self> {
        let folder = if options.on_disk { Folder::new() } else { Folder::in_memory() };
        let members = Member::plan(options, folder.path());
        let mut etcd = Self { options: options.clone(), folder, members };
        for member in &mut etcd.members {
            let process = member.spawn();
            member.process = Some(process);
        }
        let started = eventually("etcd to answer", || {
            if !etcd.members.iter_mut().all(|member| member.process.as_mut().unwrap().is_alive()) {
                return Some(false);
            }
            etcd.members.iter().all(Member::is_healthy).then_some(true)
        });
        if started && options.auth {
            etcd.make_user();
            etcd.make_root();
            etcd.enable_auth();
        }
        started.then_some(etcd)
    }

    /// Makes [`USER`], whom nobody asks for before [`enable_auth`](Self::enable_auth).
    pub(crate) fn make_user(&mut self) {
        self.options.auth = false; // nobody is anybody yet
        let user = format!("{}:{}", USER.0, USER.1);
        self.ctl(&["role", "add", "leasehold"]).success();
        self.ctl(&["role", "grant-permission", "leasehold", "--prefix=true", "readwrite", "/leasehold"])
            .success();
        self.ctl(&["user", "add", &user]).success();
        self.ctl(&["user", "grant-role", USER.0, "leasehold"]).success();
    }

    /// Makes [`ROOT`], without whom nothing can be enabled.
    pub(crate) fn make_root(&self) {
        self.ctl(&["user", "add", &format!("{}:{}", ROOT.0, ROOT.1)]).success();
        self.ctl(&["user", "grant-role", ROOT.0, "root"]).success();
    }

    /// From now on everybody must be a user.
    pub(crate) fn enable_auth(&mut self) {
        self.ctl(&["auth", "enable"]).success();
        self.options.auth = true;
    }

    fn while_stopped(&mut self, act: impl Fn(&Member)) {
        for member in &mut self.members {
            if let Some(process) = member.process.take() {
                process.signal("TERM");
                process.wait();
            }
        }
        self.members.iter().for_each(act);
        self.restart_all(&(0..self.members.len()).collect::<Vec<_>>());
    }

    fn process(&self, member: usize) -> &Process {
        self.members[member].process.as_ref().unwrap()
    }

    fn scheme(&self) -> &'static str {
        scheme(&self.options)
    }

    fn log(&self, member: usize) -> String {
        fs::read_to_string(self.folder.path().join(format!("{member}.log"))).unwrap_or_default()
    }

    /// `etcdctl` as root, at these endpoints (members, or proxies before them), still without a command.
    pub(crate) fn etcdctl(&self, endpoints: &str) -> Command {
        let mut command = Command::new(self.options.version.program("etcdctl"));
        command.env_clear().env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", endpoints);
        if let Some(secrets) = &self.options.tls {
            command.env("ETCDCTL_CACERT", &secrets.ca);
            command.env("ETCDCTL_CERT", &secrets.client.0).env("ETCDCTL_KEY", &secrets.client.1);
        }
        if self.options.auth {
            command.env("ETCDCTL_USER", format!("{}:{}", ROOT.0, ROOT.1));
        }
        command
    }

    /// The pairs of a `get`, and the revision of its answer.
    fn pairs(&self, arguments: &[&str]) -> (BTreeMap<String, String>, i64) {
        let finished = run(self.at_all().args(arguments).arg("--write-out=json"), b"");
        let answer: Value = serde_json::from_str(finished.success()).unwrap();
        let text =
            |value: &Value| String::from_utf8_lossy(&base64(value.as_str().unwrap_or(""))).into_owned();
        let pairs = answer["kvs"].as_array().into_iter().flatten();
        let pairs = pairs.map(|pair| (text(&pair["key"]), text(&pair["value"]))).collect();
        (pairs, answer["header"]["revision"].as_i64().unwrap())
    }
}

/// The data of an etcd at one time.
#[derive(Debug)]
pub(crate) struct Backup(Folder);

/// A file of `etcdctl snapshot save`.
#[derive(Debug)]
pub(crate) struct Snapshot(Folder);

#[derive(Debug)]
struct Member {
    program: PathBuf,
    arguments: Vec<String>,
    data: PathBuf,
    site: Site,
    process: Option<Process>,
}

/// Where a member listens: `address:port` each, and how to get there.
#[derive(Debug)]
struct Site {
    enter: Vec<String>,
    clients: String,
    control: String,
    peers: String,
    metrics: String,
    _claims: Vec<Port>,
}

impl Site {
    fn here() -> Self {
        let claims: Vec<_> = (0..3).map(|_| Port::claim()).collect();
        let of = |at: usize| format!("127.0.0.1:{}", claims[at].number());
        Self {
            enter: Vec::new(),
            clients: of(0),
            control: of(0),
            peers: of(1),
            metrics: of(2),
            _claims: claims,
        }
    }

    fn at(place: &Place) -> Self {
        let of = |address, port| SocketAddr::new(address, port).to_string();
        Self {
            enter: place.enter.clone(),
            clients: of(place.clients, 2379),
            control: of(place.peers, 2379),
            peers: of(place.peers, 2380),
            metrics: of(place.peers, 2381),
            _claims: Vec::new(),
        }
    }
}

impl Member {
    fn plan(options: &Options, folder: &Path) -> Vec<Self> {
        let sites: Vec<_> = match &options.places[..] {
            [] => (0..options.members).map(|_| Site::here()).collect(),
            places => places.iter().map(Site::at).collect(),
        };
        let cluster: Vec<_> =
            sites.iter().enumerate().map(|(index, site)| format!("m{index}=http://{}", site.peers)).collect();
        let cluster = cluster.join(",");
        sites
            .into_iter()
            .enumerate()
            .map(|(index, site)| {
                let data = options.places.get(index).and_then(|place| place.data.clone());
                let data = data.unwrap_or_else(|| folder.join(format!("{index}")));
                let url = format!("{}://{}", scheme(options), site.clients);
                let mut listen = vec![url.clone(), format!("{}://{}", scheme(options), site.control)];
                listen.dedup();
                let mut arguments = vec![
                    format!("--name=m{index}"),
                    format!("--data-dir={}", data.display()),
                    format!("--listen-client-urls={}", listen.join(",")),
                    format!("--advertise-client-urls={url}"),
                    format!("--listen-peer-urls=http://{}", site.peers),
                    format!("--initial-advertise-peer-urls=http://{}", site.peers),
                    format!("--initial-cluster={cluster}"),
                    format!("--initial-cluster-token={}", folder.display()),
                    format!("--listen-metrics-urls=http://{}", site.metrics),
                    format!("--log-outputs={}", folder.join(format!("{index}.log")).display()),
                    "--logger=zap".into(),
                    "--bcrypt-cost=4".into(),
                ];
                // One member elects itself, and waits an election timeout before it does: 0.1 s instead of 1. A cluster
                // on a busy machine must not take a late heartbeat for a death.
                let (heartbeat, election) = if options.members == 1 { (10, 100) } else { (50, 500) };
                arguments.extend(options.more.iter().cloned());
                arguments.push(format!("--heartbeat-interval={heartbeat}"));
                arguments.push(format!("--election-timeout={election}"));
                if options.version == Version::V36 && !options.on_disk {
                    arguments.push("--unsafe-no-fsync".into());
                }
                if let Some(quota) = options.quota {
                    arguments.push(format!("--quota-backend-bytes={quota}"));
                }
                if let Some(secrets) = &options.tls {
                    let (cert, key) = &secrets.members[index % secrets.members.len()];
                    arguments.push("--client-cert-auth".into());
                    arguments.push(format!("--trusted-ca-file={}", secrets.ca.display()));
                    arguments.push(format!("--cert-file={}", cert.display()));
                    arguments.push(format!("--key-file={}", key.display()));
                }
                let program = options.version.program("etcd");
                Self { program, arguments, data, site, process: None }
            })
            .collect()
    }

    fn spawn(&self) -> Process {
        let mut line: Vec<&OsStr> = self.site.enter.iter().map(OsStr::new).collect();
        line.push(self.program.as_os_str());
        line.extend(self.arguments.iter().map(OsStr::new));
        Process::spawn(Command::new(line[0]).args(&line[1..])).unwrap()
    }

    fn is_healthy(&self) -> bool {
        self.metrics("/health").is_some_and(|text| text.contains(r#""health":"true""#))
    }

    fn is_leader(&self) -> bool {
        self.process.is_some()
            && self.metrics("/metrics").is_some_and(|text| text.contains("\netcd_server_is_leader 1"))
    }

    /// A page of its plain HTTP port, which wants no certificate and no user.
    fn metrics(&self, page: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.site.metrics).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap(); // a frozen member accepts and says nothing
        write!(stream, "GET {page} HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }
}

fn scheme(options: &Options) -> &'static str {
    if options.tls.is_some() { "https" } else { "http" }
}

/// Paths of certificates and their keys (ECDSA P-256), made once a run.
#[derive(Debug)]
pub(crate) struct Certificates {
    pub(crate) ca: PathBuf,
    /// An authority that signed none of the others.
    pub(crate) other_ca: PathBuf,
    pub(crate) server: (PathBuf, PathBuf),
    pub(crate) client: (PathBuf, PathBuf),
    /// Right in all but its dates.
    pub(crate) expired_client: (PathBuf, PathBuf),
    /// Of the group that a Kubernetes API lets do anything.
    pub(crate) admin: (PathBuf, PathBuf),
    folder: Folder,
}

pub(crate) fn certificates() -> &'static Certificates {
    static MADE: LazyLock<Certificates> = LazyLock::new(|| {
        let folder = Folder::new();
        let script = r#"
            set -e
            authority() {
              openssl ecparam -genkey -name prime256v1 -noout -out $1.key
              openssl req -x509 -new -key $1.key -subj /CN=$1 -days 30 -out $1.crt
            }
            printf 'subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n' >extensions
            authority ca; authority other-ca
        "#;
        run(Command::new("/bin/sh").args(["-c", script]).current_dir(folder.path()), b"").success();
        sign(folder.path(), "server", "/CN=server", 30, "extensions");
        sign(folder.path(), "client", "/CN=client", 30, "extensions");
        sign(folder.path(), "expired", "/CN=expired", -1, "extensions");
        sign(folder.path(), "admin", "/O=system:masters/CN=admin", 30, "extensions");
        let file = |name: &str| folder.path().join(name);
        let pair = |name: &str| (file(&format!("{name}.crt")), file(&format!("{name}.key")));
        Certificates {
            ca: file("ca.crt"),
            other_ca: file("other-ca.crt"),
            server: pair("server"),
            client: pair("client"),
            expired_client: pair("expired"),
            admin: pair("admin"),
            folder,
        }
    });
    &MADE
}

/// One more certificate of the same authority, and its key: for a subject, at addresses beside this machine's loopback.
pub(crate) fn certificate(name: &str, subject: &str, addresses: &[&str]) -> (PathBuf, PathBuf) {
    let folder = certificates().folder.path();
    let at: String = addresses.iter().map(|address| format!(",IP:{address}")).collect();
    let extensions = fs::read_to_string(folder.join("extensions")).unwrap();
    let own = format!("{name}.extensions");
    fs::write(folder.join(&own), extensions.replace(",DNS:", &format!("{at},DNS:"))).unwrap();
    sign(folder, name, subject, 30, &own);
    (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")))
}

fn sign(folder: &Path, name: &str, subject: &str, days: i32, extensions: &str) {
    let script = r#"
        openssl ecparam -genkey -name prime256v1 -noout -out $1.key
        openssl req -new -key $1.key -subj $2 |
          openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days $3 -extfile $4 -out $1.crt
    "#;
    let mut shell = Command::new("/bin/sh");
    shell.args(["-e", "-c", script, "sh", name, subject, &days.to_string(), extensions]);
    run(shell.current_dir(folder), b"").success();
}

fn copy(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-a").args([from, to]), b"").success();
}

/// Decodes what etcdctl wrote; it is trusted to be right.
fn base64(text: &str) -> Vec<u8> {
    static VALUES: OnceLock<[u8; 256]> = OnceLock::new();
    let values = VALUES.get_or_init(|| {
        let mut values = [0; 256];
        let alphabet = (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').chain(*b"+/");
        for (value, letter) in (0..).zip(alphabet) {
            values[usize::from(letter)] = value;
        }
        values
    });
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        bits = bits << 6 | u32::from(values[usize::from(letter)]);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::parts::{Part, require};

    #[test]
    fn base64_of_every_length() {
        assert_eq!(base64(""), b"");
        assert_eq!(base64("Zg=="), b"f");
        assert_eq!(base64("Zm8="), b"fo");
        assert_eq!(base64("Zm9v"), b"foo");
        assert_eq!(base64("+/+/"), [0xfb, 0xff, 0xbf]);
    }

    #[test]
    fn one_member_keeps_what_it_is_given() {
        require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
        for version in Version::BOTH {
            let mut etcd = Etcd::start(version);
            let before = etcd.revision();
            etcd.put("/leasehold/a", r#"{"v":1}"#);
            etcd.put("/leasehold/b", "two\nlines");
            etcd.put("/other", "x");
            let expected = [("/leasehold/a", r#"{"v":1}"#), ("/leasehold/b", "two\nlines")];
            assert_eq!(etcd.dump("/leasehold/"), expected.map(|(k, v)| (k.into(), v.into())).into());
            assert_eq!(etcd.revision(), before + 3);
            etcd.del("/leasehold/a");
            assert_eq!(etcd.get("/leasehold/a"), None);
            let swap = "value(\"/other\") = \"x\"\n\nput /other y\n\n\n";
            assert_eq!((etcd.txn(swap), etcd.txn(swap)), (true, false));
            assert_eq!(etcd.get("/other"), Some("y".into()));

            etcd.kill(0);
            etcd.restart(0);
            assert_eq!(etcd.get("/other"), Some("y".into()));
        }
    }

    #[test]
    fn a_store_can_go_back_in_time() {
        require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
        for version in Version::BOTH {
            let mut etcd = Etcd::start(version);
            etcd.put("/a", "old");
            let (backup, revision) = (etcd.backup(), etcd.revision());
            etcd.put("/a", "new");
            etcd.set_back(&backup);
            assert_eq!((etcd.get("/a"), etcd.revision()), (Some("old".into()), revision));
        }
    }

    #[test]
    fn certificates_and_users_are_asked_for() {
        require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
        for version in Version::BOTH {
            let etcd = Etcd::with(version).tls().auth().start();
            etcd.put("/leasehold/a", "1");
            assert_eq!(etcd.get("/leasehold/a"), Some("1".into()));
            let settings = etcd.settings();
            assert_eq!(settings["endpoints"][0], etcd.endpoint(0));
            let with = |ca: &Path, (cert, key): &(PathBuf, PathBuf), user: &str| {
                let mut ctl = etcd.etcdctl(&etcd.endpoint(0));
                ctl.env("ETCDCTL_CACERT", ca).env("ETCDCTL_CERT", cert).env("ETCDCTL_KEY", key);
                ctl.env("ETCDCTL_USER", user).args([
                    "--dial-timeout=500ms",
                    "--command-timeout=500ms",
                    "get",
                    "/leasehold/a",
                ]);
                run(&mut ctl, b"")
            };
            let (files, user) = (certificates(), format!("{}:{}", USER.0, USER.1));
            assert!(with(&files.ca, &files.client, &user).success().contains("/leasehold/a"));
            assert_ne!(with(&files.ca, &files.client, "leasehold:wrong").code(), Some(0));
            assert_ne!(with(&files.other_ca, &files.client, &user).code(), Some(0));
            assert_ne!(with(&files.ca, &files.expired_client, &user).code(), Some(0));
        }
    }

    #[test]
    fn a_quota_can_be_reached() {
        require!(Part::Etcd(Version::V34));
        let etcd = Etcd::with(Version::V34).quota(100_000).on_disk().start();
        let refused = (0..100).find_map(|index| {
            let put = etcd.ctl(&["put", &format!("/fill/{index}"), &"x".repeat(10_000)]);
            (put.code() != Some(0)).then_some(put)
        });
        assert!(refused.unwrap().stderr().contains("database space exceeded"));
    }

    #[test]
    fn two_of_three_members_go_on() {
        require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
        for version in Version::BOTH {
            let mut etcd = Etcd::with(version).members(3).start();
            assert_eq!(etcd.endpoints().len(), 3);
            let frozen = etcd.leader();
            let other = (frozen + 1) % 3;
            etcd.freeze(frozen);
            let of = |etcd: &Etcd, member: usize, arguments: &[&str]| {
                let mut ctl = etcd.etcdctl(&etcd.endpoint(member));
                run(ctl.args(["--dial-timeout=1s", "--command-timeout=1s"]).args(arguments), b"")
            };
            eventually("the other two to elect a leader", || {
                (of(&etcd, other, &["put", "/a", "1"]).code() == Some(0)).then_some(())
            });
            assert_ne!(of(&etcd, frozen, &["get", "/a"]).code(), Some(0));
            etcd.thaw(frozen);
            eventually("the thawed one to catch up", || {
                (of(&etcd, frozen, &["get", "/a"]).stdout() == "/a\n1\n").then_some(())
            });
            etcd.kill(other);
            eventually("two to go on", || {
                (of(&etcd, frozen, &["put", "/b", "2"]).code() == Some(0)).then_some(())
            });
            etcd.restart(other);
            assert!(
                run(etcd.etcdctl(&etcd.endpoint(other)).args(["get", "/b"]), b"")
                    .success()
                    .starts_with("/b\n2")
            );
        }
    }
}
