//! `leasehold install` on a folder that stands for a node, with a real etcd: what is there after each run, whole and in
//! its order, whatever interrupts it.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use serde_json::{Value, json};

use crate::support::{
    call::{Call, Cli},
    etcd::{Etcd, USER, certificates},
    folder::Folder,
    host::HostFile,
    parts::{Part, Version, leasehold, require},
    process::{Finished, Running, eventually, run},
};

const UID: &str = "11111111-2222-4333-8444-555555555555";
const NETWORK: &str = r#"{
  "cniVersion": "1.0.0", "name": "lan100",
  "plugins": [{"type": "macvlan", "master": "eth0", "ipam": {"type": "leasehold"}}]
}"#;

/// A node's disk, and what a DaemonSet would mount.
struct Machine {
    disk: Folder,
    given: Folder,
    endpoints: String,
}

impl Machine {
    fn new(endpoints: &str) -> Self {
        let machine = Self { disk: Folder::in_memory(), given: Folder::new(), endpoints: endpoints.into() };
        fs::create_dir(machine.secret()).unwrap();
        let settings = json!({
            "stateDir": machine.disk.path().join("state"),
            "log": { "file": machine.given.path().join("leasehold.log") }, // no log in /dev/shm
        });
        fs::write(machine.settings(), settings.to_string()).unwrap();
        machine
    }

    /// On an etcd with mutual TLS and a cluster prod-a that has a pool.
    fn on(etcd: &Etcd) -> Self {
        let admin = HostFile::on(etcd);
        Cli::new(&admin).line(&format!("cluster add prod-a --uid {UID}")).run().success();
        let pool = "pool create lan --network lan100 --subnet 10.0.0.0/24 --serves */*";
        Cli::new(&admin).line(pool).run().success();
        let machine = Self::new(&etcd.endpoints().join(","));
        machine.give(&certificates().client);
        machine
    }

    fn secret(&self) -> PathBuf {
        self.given.path().join("secret")
    }

    fn settings(&self) -> PathBuf {
        self.given.path().join("settings.json")
    }

    /// A plain folder with this certificate and key.
    fn give(&self, (cert, key): &(PathBuf, PathBuf)) {
        for (from, name) in [(&certificates().ca, "ca.crt"), (cert, "tls.crt"), (key, "tls.key")] {
            fs::copy(from, self.secret().join(name)).unwrap();
        }
    }

    /// As kubelet lays out a Secret, and swaps it.
    fn give_as_kubelet(&self, version: &str, (cert, key): &(PathBuf, PathBuf)) {
        let folder = self.secret().join(version);
        fs::create_dir(&folder).unwrap();
        for (from, name) in [(&certificates().ca, "ca.crt"), (cert, "tls.crt"), (key, "tls.key")] {
            fs::copy(from, folder.join(name)).unwrap();
            let _ = fs::remove_file(self.secret().join(name));
            symlink(Path::new("..data").join(name), self.secret().join(name)).unwrap();
        }
        symlink(version, self.secret().join("..data_tmp")).unwrap();
        fs::rename(self.secret().join("..data_tmp"), self.secret().join("..data")).unwrap();
    }

    fn network(&self, name: &str) -> PathBuf {
        let path = self.given.path().join(name);
        fs::write(&path, NETWORK).unwrap();
        path
    }

    fn bin(&self) -> PathBuf {
        self.disk.path().join("bin")
    }

    fn net(&self) -> PathBuf {
        self.disk.path().join("net.d")
    }

    fn binary(&self) -> PathBuf {
        self.bin().join("leasehold")
    }

    fn host_file(&self) -> PathBuf {
        self.net().join("leasehold.d/config.json")
    }

    fn config(&self) -> Value {
        serde_json::from_slice(&fs::read(self.host_file()).unwrap()).unwrap()
    }

    /// `leasehold install` of this build, with these words after the folders.
    fn command(&self, program: &Path, words: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().args(["install", "--bin-dir"]).arg(self.bin()).arg("--conf-dir").arg(self.net());
        command.env("LEASEHOLD_SECRET", self.secret()).args(words.split_whitespace());
        command
    }

    fn run(&self, words: &str) -> Finished {
        run(&mut self.command(&leasehold(), words), b"")
    }

    /// What most runs say.
    fn usual(&self) -> String {
        let settings = self.settings();
        format!("--cluster prod-a --node n1 --endpoints {} --settings {}", self.endpoints, settings.display())
    }

    fn install(&self, words: &str) -> Finished {
        self.run(&format!("{} {words}", self.usual()))
    }

    /// Everything on the disk, but for what the plugin itself wrote.
    fn seen(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.bin(), self.net()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    folders.push(entry.path());
                } else {
                    found.insert(entry.path(), fs::read(entry.path()).unwrap());
                }
            }
        }
        found
    }

    fn call(&self, verb: fn(&HostFile) -> Call, host: &HostFile, pod: &str) -> Call {
        let call = verb(host).binary(&self.binary()).env("LEASEHOLD_CONFIG", self.host_file());
        call.pod(pod).container(&pod.replace('/', "-"))
    }
}

/// The changes that were said, by the last part of each path.
fn changes(finished: &Finished) -> Vec<(String, String)> {
    let line = |line: &str| {
        let (path, change) = line.split_once(' ').unwrap();
        let name = Path::new(path).file_name().unwrap().to_str().unwrap().to_owned();
        (if name.starts_with("secret-") { "secret".into() } else { name }, change.to_owned())
    };
    finished.success().lines().map(line).collect()
}

#[track_caller]
fn all(finished: &Finished, change: &str) {
    let found = changes(finished);
    assert!(!found.is_empty() && found.iter().all(|(_, found)| found == change), "{found:?}");
}

#[track_caller]
fn fails(finished: &Finished, code: i32, text: &str) {
    let said = format!("{}{}", finished.stdout(), finished.stderr());
    assert!(finished.code() == Some(code) && said.contains(text), "{:?}: {said}", finished.code());
}

/// A certificate of the same authority, for so many days.
fn certificate(name: &str, days: u32) -> (PathBuf, PathBuf) {
    let script = format!(
        "set -e; openssl ecparam -genkey -name prime256v1 -noout -out {name}.key
         openssl req -new -key {name}.key -subj /CN={name} |
           openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days {days} -extfile extensions -out {name}.crt"
    );
    let folder = certificates().ca.parent().unwrap();
    run(Command::new("/bin/sh").args(["-c", &script]).current_dir(folder), b"").success();
    (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")))
}

/// The same program, but another file.
fn build(folder: &Folder, name: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::copy(leasehold(), &path).unwrap();
    let mut bytes = fs::OpenOptions::new().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut bytes, name.as_bytes()).unwrap();
    path
}

#[test]
fn b140_a_fresh_node_can_lease_a_second_run_touches_nothing_and_other_settings_replace_all() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::with(Version::V36).tls().start();
    let machine = Machine::on(&etcd);
    let network = machine.network("10-lan100.conflist");
    let words = format!("--label rack=a --conflist {}", network.display());
    let dry = machine.install(&format!("{words} --dry-run"));
    all(&dry, "installed (dry run)");
    assert_eq!(machine.seen(), BTreeMap::new());

    let first = machine.install(&words);
    let order: Vec<_> = changes(&first).into_iter().map(|(name, _)| name).collect();
    assert_eq!(order, ["leasehold", "ca.crt", "tls.crt", "tls.key", "config.json", "10-lan100.conflist"]);
    all(&first, "installed");
    assert!(first.stderr().contains("LEASEHOLD_CONFIG="), "{}", first.stderr());
    let config = machine.config();
    assert_eq!((&config["cluster"], &config["node"]), (&json!("prod-a"), &json!("n1")));
    assert_eq!(config["labels"], json!({ "rack": "a" }));
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    let key = PathBuf::from(config["store"]["etcd"]["key"].as_str().unwrap());
    assert_eq!((mode(&key), mode(key.parent().unwrap())), (0o600, 0o700));
    assert_eq!((mode(&machine.host_file()), mode(&machine.net().join("leasehold.d"))), (0o600, 0o700));
    assert_eq!((mode(&machine.binary()), mode(&machine.net().join("10-lan100.conflist"))), (0o755, 0o644));
    // Only what a runtime should take for a network is one.
    let entries = fs::read_dir(machine.net()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["10-lan100.conflist", "leasehold.d"]);

    let host = HostFile::on(&etcd);
    assert_eq!(machine.call(Call::add, &host, "shop/web-0").run().addresses().len(), 1);
    machine.call(Call::del, &host, "shop/web-0").run().is_silent();
    assert_eq!(machine.run("--check").success(), "ready\n");

    let inode = |path: &Path| fs::metadata(path).map(|meta| (meta.ino(), meta.ctime_nsec())).unwrap();
    let before: Vec<_> = machine.seen().keys().map(|path| inode(path)).collect();
    all(&machine.install(&words), "unchanged");
    assert_eq!(machine.seen().keys().map(|path| inode(path)).collect::<Vec<_>>(), before);

    // Other settings replace the host file, and nothing of the old is left in it.
    let again = machine.run(&format!("--cluster prod-a --node n1 --endpoints {} {words}", machine.endpoints));
    assert!(changes(&again).contains(&("config.json".into(), "replaced".into())));
    assert_eq!(machine.config().get("stateDir"), None);
}

#[test]
fn a_renewed_certificate_is_copied_with_its_key() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::with(Version::V36).tls().start();
    let machine = Machine::on(&etcd);
    machine.give_as_kubelet("..1", &certificate("first", 30));
    machine.install("").success();
    let first = machine.config()["store"]["etcd"]["cert"].clone();
    machine.give_as_kubelet("..2", &certificate("second", 30));
    fails(&machine.run("--check"), 3, "the Secret holds something else than what is installed");
    let renewed = changes(&machine.install(""));
    assert_eq!(renewed[0], ("leasehold".into(), "unchanged".into()));
    assert!(renewed.contains(&("config.json".into(), "replaced".into())));
    let second = machine.config()["store"]["etcd"].clone();
    // Calls that began with the old host file still find the old pair, whole.
    assert_ne!(second["cert"], first);
    let parent = |path: &Value| Path::new(path.as_str().unwrap()).parent().unwrap().to_owned();
    assert_eq!(parent(&second["cert"]), parent(&second["key"]));
    assert!(Path::new(first.as_str().unwrap()).exists());
    assert_eq!(machine.run("--check").success(), "ready\n");
    let host = HostFile::on(&etcd);
    assert_eq!(machine.call(Call::add, &host, "shop/web-0").run().addresses().len(), 1);

    // What does not fit is not installed, and what was there stays.
    let before = machine.seen();
    let (_, other) = certificate("third", 30);
    fs::remove_file(machine.secret().join("tls.key")).unwrap();
    fs::copy(other, machine.secret().join("tls.key")).unwrap();
    machine.give_as_kubelet("..3", &(certificate("fourth", 30).0, certificate("fifth", 30).1));
    fails(&machine.install(""), 1, &format!("{}/tls.key: does not belong", machine.secret().display()));
    fails(&machine.run("--check"), 3, "does not belong");
    assert_eq!(machine.seen(), before);
}

#[test]
fn a_certificate_that_ends_soon_is_not_ready() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::with(Version::V36).tls().start();
    let machine = Machine::on(&etcd);
    machine.give(&certificate("short", 5));
    machine.install("").success();
    let soon = machine.run("--check");
    fails(&soon, 3, "tls.crt ends in 4 days: renew it");
    assert_eq!(soon.stdout().lines().count(), 1, "{}", soon.stdout());
    assert_eq!(machine.run("--check --expiry-margin 3d").success(), "ready\n");
    machine.give(&certificates().expired_client);
    fails(&machine.install(""), 1, "tls.crt: expired on");
    fails(&machine.run("--check"), 3, "tls.crt: expired on");
}

#[test]
fn b108_what_is_given_wrong_changes_nothing() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::with(Version::V36).tls().start();
    let machine = Machine::on(&etcd);
    let secret = machine.secret();
    let case = |break_it: &dyn Fn(), code: i32, text: &str| {
        break_it();
        fails(&machine.install(""), code, text);
        assert_eq!(machine.seen(), BTreeMap::new(), "{text}");
        for name in ["ca.crt", "tls.crt", "tls.key"] {
            let _ = fs::remove_dir(secret.join(name));
        }
        let _ = fs::remove_file(secret.join("username"));
        machine.give(&certificates().client);
    };
    let path = |name: &str| format!("{}/{name}", secret.display());
    let at = &secret;
    let gone = |name: &'static str| move || fs::remove_file(at.join(name)).unwrap();
    case(&gone("tls.key"), 1, &format!("{}: is missing beside tls.crt", path("tls.key")));
    case(&gone("tls.crt"), 1, &format!("{}: is missing beside tls.key", path("tls.crt")));
    case(&gone("ca.crt"), 1, &format!("{}: is missing", path("ca.crt")));
    case(&|| fs::write(secret.join("tls.key"), "").unwrap(), 1, &format!("{}: is empty", path("tls.key")));
    case(&|| fs::write(secret.join("tls.crt"), "text").unwrap(), 1, &path("tls.crt"));
    let folder = || {
        fs::remove_file(secret.join("ca.crt")).unwrap();
        fs::create_dir(secret.join("ca.crt")).unwrap();
    };
    case(&folder, 1, &format!("cannot read {}", path("ca.crt")));
    case(&|| fs::write(secret.join("username"), "n1").unwrap(), 1, "password: is missing beside username");
    case(
        &|| fs::copy(&certificates().other_ca, secret.join("ca.crt")).map(drop).unwrap(),
        1,
        &path("ca.crt"),
    );

    // Flags.
    let words = |words: &str| machine.run(words);
    let endpoints = &machine.endpoints;
    fails(&words(&format!("--node n1 --endpoints {endpoints}")), 2, "--cluster NAME is missing");
    fails(&words(&format!("--cluster prod-a --endpoints {endpoints}")), 2, "--node NAME is missing or empty");
    fails(&words("--cluster prod-a --node n1"), 2, "--endpoints URL,… is missing");
    fails(&machine.install("--bin-dir bin"), 2, "--bin-dir");
    fails(&machine.install("--secret-name pem=x"), 2, "pem is none of ca, cert");
    fails(&machine.install("--secret-name cert=node.crt"), 1, "node.crt: is missing beside tls.key");
    fails(&machine.install("--conflist /dev/null"), 1, "*.conflist");
    fs::write(machine.settings(), r#"{"store": {}}"#).unwrap();
    fails(&machine.install(""), 1, "store is not for this file");
    fs::write(machine.settings(), r#"{"deadlines": {"add": "1h"}}"#).unwrap();
    fails(&machine.install(""), 1, "the host file would be wrong: deadlines.add");
    assert_eq!(machine.seen(), BTreeMap::new());
}

#[test]
fn the_store_is_asked_whether_it_is_the_right_one() {
    require!(Part::Etcd(Version::V34));
    let mut etcd = Etcd::with(Version::V34).tls().start();
    let machine = Machine::on(&etcd);
    let cluster = machine.run(&machine.usual().replace("prod-a", "prod-b"));
    fails(&cluster, 1, "cluster prod-b is not registered in this store");
    let hint = "leasehold cluster add prod-b --uid \"$(kubectl get namespace kube-system -o jsonpath='{.metadata.uid}')\"";
    assert!(cluster.stderr().contains(hint), "{}", cluster.stderr());
    etcd.put("/registry/pods/shop/db-0", "{}");
    fails(&machine.install(""), 4, "the etcd of a Kubernetes API server");
    assert_eq!(machine.seen(), BTreeMap::new());
    machine.install("--shared-etcd").success();
    machine.install("--no-check").success();

    // Down: a person is told; a node that stays comes up.
    etcd.kill(0);
    fails(&machine.install(""), 1, "--no-check installs without asking");
    let other = Machine::new(&machine.endpoints);
    other.give(&certificates().client);
    // It does not wait for its next look when it is told to end.
    let words = format!("{} --stay --interval 1h", other.usual());
    let staying = Running::start(&mut other.command(&leasehold(), &words), b"");
    eventually("the host file", || other.host_file().exists().then_some(()));
    staying.signal("TERM");
    let said = staying.wait();
    assert_eq!(said.code(), Some(0));
    assert!(said.stderr().contains("warning: the store could not be asked"), "{}", said.stderr());
}

#[test]
fn a_user_and_a_password_come_from_the_secret() {
    require!(Part::Etcd(Version::V34));
    let etcd = Etcd::with(Version::V34).auth().start();
    let admin = HostFile::on(&etcd);
    Cli::new(&admin).line(&format!("cluster add prod-a --uid {UID}")).run().success();
    let machine = Machine::new(&etcd.endpoints().join(","));
    fs::write(machine.secret().join("username"), format!("{}\n", USER.0)).unwrap();
    fs::write(machine.secret().join("password"), "wrong").unwrap();
    fails(&machine.install(""), 1, "authentication failed");
    assert_eq!(machine.seen(), BTreeMap::new());
    fs::write(machine.secret().join("password"), USER.1).unwrap();
    let done = machine.install("");
    done.success();
    assert_eq!(machine.config()["store"]["etcd"]["username"], USER.0);
    assert!(!fs::read_to_string(machine.host_file()).unwrap().contains(USER.1));
    assert!(!format!("{}{}", done.stdout(), done.stderr()).contains(USER.1));
    assert_eq!(machine.run("--check").success(), "ready\n");
}

#[test]
fn below_a_mounted_root_the_host_s_own_paths_are_written() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::with(Version::V36).tls().start();
    let machine = Machine::on(&etcd);
    let root = machine.disk.path().join("host");
    let as_pod = |words: &str| {
        let mut command = Command::new(leasehold());
        command.env_clear().env("NODE_NAME", "n7").env("LEASEHOLD_SECRET", machine.secret());
        command.env("LEASEHOLD_HOST_ROOT", &root).env("ETCDCTL_ENDPOINTS", &machine.endpoints);
        run(command.arg("install").args(words.split_whitespace()), b"")
    };
    let done = as_pod("--cluster prod-a");
    assert_eq!(done.stderr(), "");
    assert!(done.success().starts_with("/opt/cni/bin/leasehold installed\n"), "{}", done.stdout());
    let host_file = root.join("etc/cni/net.d/leasehold.d/config.json");
    let config: Value = serde_json::from_slice(&fs::read(host_file).unwrap()).unwrap();
    let key = config["store"]["etcd"]["key"].as_str().unwrap();
    assert!(key.starts_with("/etc/cni/net.d/leasehold.d/secret-") && root.join(&key[1..]).exists(), "{key}");
    assert_eq!(config["node"], "n7");
    assert_eq!(as_pod("--check").success(), "ready\n");
    fs::remove_file(root.join(&key[1..])).unwrap();
    fails(&as_pod("--check"), 3, "tls.key");
    as_pod("--cluster prod-a").success();
    fs::write(root.join("opt/cni/bin/leasehold"), "half").unwrap();
    fails(&as_pod("--check"), 3, "opt/cni/bin/leasehold is another build than this one");
    as_pod("--uninstall").success();
    assert!(!root.join("opt/cni/bin/leasehold").exists());
    fails(&as_pod("--check"), 3, "config.json is missing");
}

#[test]
fn uninstall_leaves_no_pod_behind() {
    require!(Part::Etcd(Version::V36));
    let mut etcd = Etcd::with(Version::V36).tls().start();
    let machine = Machine::on(&etcd);
    machine.install(&format!("--conflist {}", machine.network("10-lan100.conflist").display())).success();
    let host = HostFile::on(&etcd);
    machine.call(Call::add, &host, "shop/web-0").run().result();
    let before = machine.seen();
    fails(&machine.run("--uninstall"), 4, "1 leases are bound on node n1");
    machine.call(Call::del, &host, "shop/web-0").run().is_silent();
    etcd.kill(0);
    fails(&machine.run("--uninstall"), 4, "cannot tell whether pods of this node have leases");
    assert_eq!(machine.seen(), before);
    etcd.restart(0);
    all(&machine.run("--uninstall --dry-run"), "removed (dry run)");
    assert_eq!(machine.seen(), before);
    let done = changes(&machine.run("--uninstall"));
    let order: Vec<_> = done.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(order, ["10-lan100.conflist", "config.json", "secret", "leasehold"]);
    assert_eq!(machine.seen(), BTreeMap::new());
    assert!(!machine.net().join("leasehold.d").exists());
    assert_eq!(machine.run("--uninstall").stderr(), "nothing is installed\n");

    machine.install("").success();
    machine.call(Call::add, &host, "shop/web-1").run().result();
    machine.run("--uninstall --force").success();
    assert_eq!(machine.seen(), BTreeMap::new());
}

#[test]
fn a_daemon_copies_what_is_renewed_and_ends_when_told() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::with(Version::V36).tls().start();
    let machine = Machine::on(&etcd);
    let words = format!("{} --stay --interval 1s", machine.usual().replace("prod-a", "prod-b"));
    let staying = Running::start(&mut machine.command(&leasehold(), &words), b"");
    thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(machine.seen(), BTreeMap::new());
    // The cluster is registered, and it goes on by itself.
    let admin = HostFile::on(&etcd);
    Cli::new(&admin).line("cluster add prod-b --uid 33333333-4444-4555-8666-777777777777").run().success();
    let is_ready = || (machine.run("--check").code() == Some(0)).then_some(());
    eventually("the first installation", is_ready);
    let first = machine.config()["store"]["etcd"]["cert"].clone();
    machine.give(&certificate("renewed", 30));
    eventually("the renewed certificate", is_ready);
    assert_ne!(machine.config()["store"]["etcd"]["cert"], first);
    fs::write(machine.binary(), "somebody's").unwrap();
    eventually("the binary", is_ready);
    staying.signal("TERM");
    let said = staying.wait();
    assert_eq!(said.code(), Some(0));
    assert!(said.stderr().contains("error: cluster prod-b is not registered"), "{}", said.stderr());
    assert!(said.stderr().contains("all is right again"), "{}", said.stderr());
    // What goes on being wrong, or right, is not said at each look.
    assert_eq!(said.stderr().matches("is not registered").count(), 1, "{}", said.stderr());
    assert!(!said.stdout().contains("unchanged"), "{}", said.stdout());
}

#[test]
fn b134_the_binary_can_be_run_at_every_moment() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::with(Version::V36).tls().start();
    let machine = Machine::on(&etcd);
    machine.install("").success();
    let builds = Folder::in_memory();
    let programs = ["one", "two"].map(|name| build(&builds, name));
    let host = HostFile::on(&etcd);
    let (ended, replaced) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..50 {
                let words = format!("{} --no-check", machine.usual());
                let done = run(&mut machine.command(&programs[turn % 2], &words), b"");
                let is_new = changes(&done).contains(&("leasehold".into(), "replaced".into()));
                replaced.fetch_add(usize::from(is_new), Ordering::Relaxed);
            }
            ended.store(true, Ordering::Relaxed);
        });
        scope.spawn(|| {
            let mut pods = 0;
            while !ended.load(Ordering::Relaxed) || pods == 0 {
                let pod = format!("shop/web-{pods}");
                assert_eq!(machine.call(Call::add, &host, &pod).run().addresses().len(), 1);
                machine.call(Call::del, &host, &pod).run().is_silent();
                pods += 1;
            }
        });
        let mut runs = 0;
        while runs < 500 || !ended.load(Ordering::Relaxed) {
            let said = run(Command::new(machine.binary()).env_clear().arg("version"), b"");
            assert!(said.success().starts_with("leasehold "), "{runs}");
            runs += 1;
        }
    });
    assert_eq!(replaced.load(Ordering::Relaxed), 50);
}

/// Killed before the first, second, … call of each kind that changes a disk: what is there is whole, and nothing is
/// there without what it needs.
#[test]
fn b134_killed_at_any_step_nothing_is_half() {
    require!(Part::Program("strace"));
    let builds = Folder::in_memory();
    let programs = ["old", "new"].map(|name| build(&builds, name));
    let bytes = programs.clone().map(|path| fs::read(path).unwrap());
    let kills = AtomicUsize::new(0);
    let kill_all = &|upgrade: bool| {
        for call in ["mkdir", "openat", "fchmod", "fsync", "rename", "unlink", "copy_file_range"] {
            for turn in 1.. {
                let machine = Machine::new("http://127.0.0.1:1");
                let network = machine.network("10-lan100.conflist");
                let words = |password: &str| {
                    fs::write(machine.secret().join("username"), "n1").unwrap();
                    fs::write(machine.secret().join("password"), password).unwrap();
                    format!("{} --no-check --conflist {}", machine.usual(), network.display())
                };
                if upgrade {
                    run(&mut machine.command(&programs[0], &words("old")), b"").success();
                }
                let installer = machine.command(&programs[1], &words("new"));
                // Of the files that are opened, only those on the node's disk count.
                let mut command = Command::new("/usr/bin/strace");
                command.env_clear().args(["-qq", "-o", "/dev/null", "-e"]).arg(format!("trace={call}"));
                command.arg("-e").arg(format!("inject={call}:signal=SIGKILL:when={turn}"));
                if call == "openat" {
                    command.arg("-P").arg(machine.net().join("leasehold.d/.config.json.leasehold-new"));
                    command.arg("-P").arg(machine.bin().join(".leasehold.leasehold-new"));
                }
                command.arg(installer.get_program()).args(installer.get_args());
                command.envs(installer.get_envs().filter_map(|(key, value)| Some((key, value?))));
                let finished = run(&mut command, b"");
                let seen = machine.seen();
                let is_whole = |path: &Path, known: &[Vec<u8>]| match seen.get(path) {
                    None => assert!(!upgrade, "{call} {turn}: {path:?} is gone"),
                    Some(found) => assert!(known.contains(found), "{call} {turn}: {path:?} is half"),
                };
                is_whole(&machine.binary(), &bytes);
                is_whole(&machine.net().join("10-lan100.conflist"), &[NETWORK.into()]);
                if seen.contains_key(&machine.net().join("10-lan100.conflist")) {
                    assert!(seen.contains_key(&machine.host_file()), "{call} {turn}");
                }
                if seen.contains_key(&machine.host_file()) {
                    let config = machine.config();
                    let file = PathBuf::from(config["store"]["etcd"]["passwordFile"].as_str().unwrap());
                    let known = [b"old".to_vec(), b"new".to_vec()];
                    assert!(
                        seen.get(&file).is_some_and(|found| known.contains(found)),
                        "{call} {turn}: {config}"
                    );
                    assert_eq!(
                        seen.get(&machine.binary()).map(Vec::len),
                        Some(bytes[0].len()),
                        "{call} {turn}"
                    );
                }
                if finished.killed_by().is_none() {
                    finished.success();
                    break;
                }
                kills.fetch_add(1, Ordering::Relaxed);
                // Whatever was left, the next run puts it right and leaves nothing of it.
                run(&mut machine.command(&programs[1], &words("new")), b"").success();
                assert_eq!(run(&mut machine.command(&programs[1], "--check"), b"").success(), "ready\n");
                let left = machine
                    .seen()
                    .into_keys()
                    .filter(|path| path.to_string_lossy().contains("leasehold-new"));
                assert_eq!(left.collect::<Vec<_>>(), Vec::<PathBuf>::new(), "{call} {turn}");
            }
        }
    };
    thread::scope(|scope| [false, true].map(|upgrade| scope.spawn(move || kill_all(upgrade))).map(drop));
    assert!(kills.load(Ordering::Relaxed) > 40, "{kills:?}");
}

#[test]
fn two_installers_do_not_meet() {
    let machine = Machine::new("http://127.0.0.1:1");
    fs::remove_dir_all(machine.secret()).unwrap();
    let folder = machine.net().join("leasehold.d");
    fs::create_dir_all(&folder).unwrap();
    let lock = fs::File::create(folder.join("install.lock")).unwrap();
    lock.lock().unwrap();
    let mut command = machine.command(&leasehold(), &format!("{} --no-check", machine.usual()));
    command.env_remove("LEASEHOLD_SECRET");
    fails(&run(&mut command, b""), 1, "another `leasehold install` holds");
    assert!(!machine.binary().exists());
    drop(lock);
    run(&mut command, b"").success();
    // It looked at the folder's mode on the way.
    assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
}
