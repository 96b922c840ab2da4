//! One node: kubelet, containerd, runc and macvlan in namespaces of its own. It has the usual paths, since its mounts are
//! its own; its `/run` is gone after a power loss, its disk is not. All its processes end with the first of them, and that
//! one with ours.

use std::{
    fs,
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::{Mutex, Once},
    time::Duration,
};

use serde_json::json;

use super::image::{self, PAUSE};
use crate::{
    documents::example,
    support::{
        apiserver::Apiserver,
        etcd::{certificate, certificates},
        folder::Folder,
        lan::{Cable, Host, Lan},
        parts::{Plugins, kubernetes},
        process::{Finished, Process, run, within},
    },
};

/// On a machine that has much else to do.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// A node, off at first.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) name: String,
    processes: Mutex<Processes>,
    /// Its `eth0` is the pods' LAN.
    pub(super) host: Host,
    /// Its way to control plane and store.
    pub(super) management: Cable,
    disk: Folder,
    cgroup: String,
}

/// The first of its namespace, as long as the power is on, and those that were started after it.
#[derive(Debug, Default)]
struct Processes {
    init: Option<Process>,
    services: Vec<Process>,
}

/// Mounts what is the node's own over what is the machine's, and then has nothing to do but to take leave of orphans.
const INIT: &str = r#"
disk=$1
hostname "$2"
for folder in etc opt var; do mount --bind "$disk/$folder" "/$folder"; done
mount -t tmpfs tmpfs /run
: >/run/up
while :; do sleep 3600 & wait $!; done
"#;

impl Machine {
    pub(super) fn new(lan: &Lan, management: &Lan, number: u8, api: &Apiserver) -> Self {
        let name = format!("node{number}");
        let host = lan.node(&name);
        let cable = management.cable(&host, "eth1");
        host.add_address("eth0", &format!("{}/22", Ipv4Addr::new(10, 0, 3, number)));
        host.add_address("eth1", &format!("{}/24", Self::address(number)));
        // Nobody runs kube-proxy: the API is at its Service's address by a route.
        host.ip(&format!("route add 10.96.0.0/24 via {}", super::CONTROL));
        let disk = Folder::new();
        let cgroup = format!("{CGROUP}{}-{name}", process::id());
        let processes = Mutex::default();
        let machine = Self { name, processes, host, management: cable, disk, cgroup };
        machine.set_up(number, api);
        machine
    }

    /// For control plane and store.
    fn address(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 8, 0, 10 + number)
    }

    /// What an administrator has put on it before it is a node.
    fn set_up(&self, number: u8, api: &Apiserver) {
        let copy = |from: &str, to: &str| {
            run(Command::new("cp").args(["-a", from]).arg(self.disk.path().join(to)), b"").success();
        };
        copy("/etc", "etc");
        for folder in
            ["opt/cni/bin", "var/lib", "var/log", "var/cache", "var/tmp", "etc/kubernetes/manifests"]
        {
            fs::create_dir_all(self.disk.path().join(folder)).unwrap();
        }
        fs::set_permissions(self.disk.path(), fs::Permissions::from_mode(0o755)).unwrap(); // pods of other users
        std::os::unix::fs::symlink("/run", self.disk.path().join("var/run")).unwrap();
        for plugins in Plugins::BOTH {
            copy(&format!("{}/.", plugins.folder().display()), "opt/cni/bin"); // Debian's has loopback, too
        }
        let _ = fs::remove_dir_all(self.disk.path().join("etc/cni"));
        self.write("etc/cni/net.d/10-lan100.conflist", &example("macvlan.conflist"));
        self.write("etc/containerd/config.toml", &containerd_settings());
        let subject = format!("/O=system:nodes/CN=system:node:{}", self.name);
        let credentials = certificate(&self.name, &subject, &[]);
        let kubeconfig = api.kubeconfig_with(&self.name, &credentials);
        self.write("etc/kubernetes/kubelet.conf", &fs::read_to_string(kubeconfig).unwrap());
        let kubelet = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "x509": { "clientCAFile": certificates().ca },
                "anonymous": { "enabled": false },
            },
            "authorization": { "mode": "AlwaysAllow" },
            "address": Self::address(number),
            "cgroupDriver": "cgroupfs",
            "clusterDNS": ["10.96.0.10"],
            "cgroupRoot": format!("/{}", self.cgroup),
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "enforceNodeAllocatable": [],
            "evictionHard": { "memory.available": "1Mi" },
            "failCgroupV1": false,
            "failSwapOn": false,
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": false,
            "makeIPTablesUtilChains": false,
            "maxPods": 200,
            "nodeStatusUpdateFrequency": "3s",
            "readOnlyPort": 0,
            "resolvConf": "",
            "staticPodPath": "/etc/kubernetes/manifests",
        });
        self.write("etc/kubernetes/kubelet.json", &kubelet.to_string());
    }

    /// Power: containerd and kubelet start, whatever was on the disk is there.
    pub(super) fn power_on(&self) {
        make_cgroups(&self.cgroup);
        self.host.plug();
        self.management.plug();
        let mut init = self.host.command("/usr/bin/unshare");
        init.args(["--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]);
        init.args(["/bin/bash", "-ec", INIT, "init"]).arg(self.disk.path()).arg(&self.name);
        self.processes.lock().unwrap().init = Some(Process::spawn(&init).unwrap());
        self.wait("the node's mounts", || self.root().is_some_and(|root| root.join("run/up").exists()));
        self.start_containerd();
        if self.run("ctr", &["--namespace=k8s.io", "images", "list", "--quiet"]).success().is_empty() {
            image::archives().iter().for_each(|archive| self.import(archive));
        }
        self.start_kubelet();
    }

    pub(super) fn import(&self, archive: &Path) {
        let archive = archive.display().to_string();
        self.run("ctr", &["--namespace=k8s.io", "images", "import", &archive]).success();
    }

    /// The power is lost: no process sees it coming, and nobody says goodbye to the network.
    pub(super) fn power_off(&self) {
        self.host.unplug();
        self.management.pull();
        let Some(first) = self.first() else { return };
        *self.processes.lock().unwrap() = Processes::default();
        let gone = within(PATIENCE, || (!Path::new(&format!("/proc/{first}")).exists()).then_some(()));
        assert!(gone.is_some(), "{} does not end", self.name);
        remove_cgroups(&self.cgroup);
    }

    pub(super) fn start_containerd(&self) {
        self.start("containerd", &["containerd"]);
        self.wait("containerd", || self.run("ctr", &["version"]).code() == Some(0));
    }

    pub(super) fn start_kubelet(&self) {
        let kubelet = kubernetes("kubelet").display().to_string();
        let name = format!("--hostname-override={}", self.name);
        let config = ["--config=/etc/kubernetes/kubelet.json", "--kubeconfig=/etc/kubernetes/kubelet.conf"];
        let address = self.host.addresses("eth1")[0].split('/').next().unwrap().to_owned();
        let address = format!("--node-ip={address}");
        self.start("kubelet", &[&kubelet, config[0], config[1], &name, &address]);
    }

    /// SIGKILL to `containerd` or `kubelet`. Containers go on, and nothing starts it again.
    pub(super) fn kill(&self, service: &str) {
        let script = "kill -KILL $(cat /run/$1.keeper) $(cat /run/$1.pid)";
        self.run("/bin/sh", &["-c", script, "sh", service]).success();
    }

    /// A program that will run on the node.
    pub(super) fn command(&self, program: &str) -> Command {
        let first = self.first().unwrap_or_else(|| panic!("{} is off", self.name));
        let mut command = Command::new("/usr/bin/nsenter");
        command.arg(format!("--target={first}")).args(["--mount", "--uts", "--net", "--pid", "--", program]);
        command
    }

    pub(super) fn run(&self, program: &str, arguments: &[&str]) -> Finished {
        run(self.command(program).args(arguments), b"")
    }

    /// Writes a file on its disk; the path has no `/` at its start.
    pub(super) fn write(&self, path: &str, text: &str) {
        let path = self.disk.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(super) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.disk.path().join(path)).unwrap_or_default()
    }

    pub(super) fn remove(&self, path: &str) {
        fs::remove_file(self.disk.path().join(path)).unwrap();
    }

    /// The network namespace of a container that runs here, for `nsenter --net`.
    pub(super) fn network_of(&self, container: &str) -> Option<PathBuf> {
        Some(self.root()?.join("proc").join(self.pid_of(container)?).join("ns/net"))
    }

    /// A container's first process, as it is called here.
    pub(super) fn pid_of(&self, container: &str) -> Option<String> {
        let tasks = self.root()?.join("run/containerd/io.containerd.runtime.v2.task/k8s.io");
        Some(fs::read_to_string(tasks.join(container).join("init.pid")).ok()?.trim().into())
    }

    /// How its services ended up, for whoever reads of a failure.
    pub(super) fn logs(&self) -> String {
        let mut text = String::new();
        for service in ["containerd", "kubelet"] {
            let log = self.read(&format!("var/log/{service}.log"));
            let errors = |line: &&str| {
                line.starts_with('E') && !line.contains("filesystem") || line.contains("level=error")
            };
            let lines: Vec<_> = log.lines().filter(errors).collect();
            let last = lines[lines.len().saturating_sub(5)..].join("\n");
            text += &format!("--- {} {service}\n{last}\n", self.name);
        }
        text
    }

    /// What it sees as `/`.
    fn root(&self) -> Option<PathBuf> {
        Some(Path::new("/proc").join(self.first()?.to_string()).join("root"))
    }

    /// The first process of its namespace, as it is called outside: the only child of `unshare`.
    fn first(&self) -> Option<u32> {
        let unshare = self.processes.lock().unwrap().init.as_ref()?.pid();
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }

    /// A service that is started again when it ends by itself, as a kubelet does that finds its runtime not ready.
    fn start(&self, service: &str, words: &[&str]) {
        let script = r#"
            service=$1; shift
            echo $$ >/run/$service.keeper
            while :; do
              "$@" >>/var/log/$service.log 2>&1 & echo $! >/run/$service.pid
              wait $!
              sleep 1
            done
        "#;
        let mut command = self.command("/bin/sh");
        command.args(["-c", script, "sh", service]).args(words);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        self.processes.lock().unwrap().services.push(Process::spawn(&command).unwrap());
    }

    #[track_caller]
    fn wait(&self, what: &str, look: impl Fn() -> bool) {
        let seen = within(PATIENCE, || look().then_some(()));
        assert!(seen.is_some(), "{}: waited in vain for {what}\n{}", self.name, self.logs());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.power_off();
    }
}

fn containerd_settings() -> String {
    format!(
        r#"
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  disable_apparmor = true
  # Without the right to lower it (CAP_SYS_RESOURCE) runc would die: "can't get final child's PID from pipe".
  restrict_oom_score_adj = true
"#
    )
}

/// Each kubelet needs a cgroup of its own, and its containers are below it. The name goes on with the process ID.
const CGROUP: &str = "leasehold-test-";
const CGROUPS: &str = "/sys/fs/cgroup";

fn make_cgroups(name: &str) {
    static SWEEP: Once = Once::new();
    SWEEP.call_once(sweep);
    let top = Path::new(CGROUPS);
    if let Ok(controllers) = fs::read_to_string(top.join("cgroup.controllers")) {
        for controller in controllers.split_whitespace() {
            let _ = fs::write(top.join("cgroup.subtree_control"), format!("+{controller}")); // those that can be
        }
        fs::create_dir_all(top.join(name)).unwrap();
        return;
    }
    for hierarchy in fs::read_dir(top).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        let own = hierarchy.path().join(name);
        fs::create_dir_all(&own).unwrap();
        // A new one of these has no processor and no memory, and takes no process.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(all) = fs::read(hierarchy.path().join(file)) {
                fs::write(own.join(file), all).unwrap();
            }
        }
    }
}

/// Takes them away, empty as they are once all processes have ended.
fn remove_cgroups(name: &str) {
    fn remove(folder: &Path) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove(&entry.path());
            }
        }
        let _ = fs::remove_dir(folder);
    }
    remove(&Path::new(CGROUPS).join(name));
    for hierarchy in fs::read_dir(CGROUPS).into_iter().flatten().flatten() {
        remove(&hierarchy.path().join(name));
    }
}

/// Takes away the cgroups of runs that were killed.
fn sweep() {
    let mut folders = vec![PathBuf::from(CGROUPS)];
    folders.extend(fs::read_dir(CGROUPS).into_iter().flatten().flatten().map(|entry| entry.path()));
    for entry in folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten()) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(CGROUP).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove_cgroups(&name);
        }
    }
}
