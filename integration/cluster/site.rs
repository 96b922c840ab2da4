//! The cluster as a whole: its networks, its control plane, its nodes, and Leasehold installed on it.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    machine::{Machine, PATIENCE},
    scene::Scene,
};
use crate::{
    documents::{example, root},
    support::{
        apiserver::Apiserver,
        call::Cli,
        etcd::{Etcd, Place, Secrets, certificate, certificates},
        folder::Folder,
        host::HostFile,
        lan::{Host, Lan},
        parts::{Version, kubernetes},
        process::{Finished, Process, report, run, within},
    },
};

/// API and store, for nodes and administrators.
pub(super) const CONTROL: &str = "10.8.0.1";
/// Where pods find the API. Nobody runs kube-proxy: it is an address of the control plane.
const SERVICE: &str = "10.96.0.1";

/// How long a node is silent before it counts as such.
pub(super) const GRACE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Site {
    pub(super) machines: Vec<Machine>,
    _managers: [Process; 2],
    pub(super) api: Apiserver,
    /// Leasehold's own.
    pub(super) store: Etcd,
    /// The host file of an administrator.
    pub(super) host: HostFile,
    /// On the pods' LAN.
    pub(super) stranger: Host,
    /// Where the control plane is.
    pub(super) control: Arc<Host>,
    /// Addresses of the LAN.
    given: AtomicU32,
    _logs: Folder,
    _lans: [Lan; 2],
}

impl Site {
    pub(super) fn bring_up() -> Self {
        let begun = Instant::now();
        let (lan, management) = (Lan::new(), Lan::new());
        let control = Arc::new(management.node("control"));
        control.add_address("eth0", &format!("{CONTROL}/24"));
        control.add_address("lo", &format!("{SERVICE}/32"));
        let stranger = lan.stranger("stranger", &["10.0.3.200/22", "fd00:9::200/64"]);
        let logs = Folder::new();
        let address: IpAddr = CONTROL.parse().unwrap();
        let enter = ["/usr/bin/nsenter".into(), format!("--net={}", control.path().display()), "--".into()];
        let place = Place { enter: enter.into(), clients: address, peers: address, data: None };
        let credentials = certificate("control", "/CN=control", &[CONTROL, SERVICE]);

        control.inside(|| {
            let api = Apiserver::at(&place, &credentials);
            let secrets = Secrets {
                ca: certificates().ca.clone(),
                members: vec![credentials],
                client: certificates().client.clone(),
            };
            let store = Etcd::with(Version::V36).tls_with(secrets).at(vec![place.clone()]).start();
            let managers = ["kube-controller-manager", "kube-scheduler"]
                .map(|program| manager(program, &place, &api, &logs));
            let machines: Vec<_> =
                (1..=2).map(|number| Machine::new(&lan, &management, number, &api)).collect();
            let site = Self {
                machines,
                _managers: managers,
                api,
                host: HostFile::on(&store),
                store,
                stranger,
                control: Arc::clone(&control),
                given: AtomicU32::new(0),
                _logs: logs,
                _lans: [lan, management],
            };
            let control_plane = begun.elapsed();
            site.machines.iter().for_each(Machine::power_on);
            site.ready("node1");
            site.ready("node2");
            let nodes = begun.elapsed();
            site.install();
            report(&format!(
                "cluster: up in {:.1} s: control plane {:.1}, nodes {:.1}, Leasehold {:.1}",
                begun.elapsed().as_secs_f32(),
                control_plane.as_secs_f32(),
                (nodes - control_plane).as_secs_f32(),
                (begun.elapsed() - nodes).as_secs_f32()
            ));
            site
        })
    }

    /// What an administrator does, as the README has it.
    fn install(&self) {
        self.make_users();
        let system = self.api.get("/api/v1/namespaces/kube-system").unwrap();
        let uid = system["metadata"]["uid"].as_str().unwrap();
        self.cli(&format!("cluster add prod-a --uid {uid}")).success();
        let folder = self.manifests();
        self.api.kubectl(&["apply", "--kustomize", folder.path().to_str().unwrap()]).success();
        // They are ready after half a minute, when a kubelet that is new asks them for the first time.
        for machine in &self.machines {
            self.wait(&format!("the installer of {}", machine.name), || {
                let host_file = machine.read("etc/cni/net.d/leasehold.d/config.json");
                (!host_file.is_empty()).then_some(())
            });
        }
        self.wait("the reaper", || {
            let path = "/apis/apps/v1/namespaces/leasehold/deployments/leasehold-reaper";
            (self.api.get(path)?["status"]["readyReplicas"] == 2).then_some(())
        });
    }

    /// The roles of `etcd-roles`, and users by certificates.
    fn make_users(&self) {
        let mut roles = Command::new("/bin/bash");
        roles.arg(root().join("config-examples/etcd-roles")).args(["--users", "prod-a"]);
        let etcdctl = self.store.etcdctl(CONTROL);
        let (program, files) = (etcdctl.get_program(), &certificates());
        let folder = Path::new(program).parent().unwrap().to_owned();
        let path = std::env::join_paths([folder, "/usr/bin".into(), "/bin".into()]).unwrap();
        roles.env_clear().env("PATH", path).env("ETCDCTL_ENDPOINTS", self.store.endpoint(0));
        roles.env("ETCDCTL_CACERT", &files.ca).env("ETCDCTL_CERT", &files.client.0);
        run(roles.env("ETCDCTL_KEY", &files.client.1), b"").success();
        // Our own certificate is the administrator's.
        for user in ["root", "client"] {
            self.store.ctl(&["user", "add", "--no-password", user]).success();
            self.store.ctl(&["user", "grant-role", user, "root"]).success();
        }
        self.store.ctl(&["auth", "enable"]).success();
    }

    /// `config-examples/kubernetes`, filled in.
    fn manifests(&self) -> Folder {
        let folder = Folder::new();
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        for name in ["namespace", "installer", "rbac", "reaper-deployment", "reaper-cronjob"] {
            put(&format!("{name}.yaml"), &example(&format!("kubernetes/{name}.yaml")));
        }
        let replaced = |name: &str, pairs: &[(&str, &str)]| {
            let mut text = example(&format!("kubernetes/{name}"));
            for (from, to) in pairs {
                assert_eq!(text.matches(from).count(), 1, "{from} in {name}");
                text = text.replace(from, to);
            }
            put(name, &text);
        };
        let endpoints = "https://10.0.3.11:2379,https://10.0.3.12:2379,https://10.0.3.13:2379";
        replaced("settings.yaml", &[(endpoints, &self.store.endpoints().join(","))]);
        replaced(
            "kustomization.yaml",
            &[
                ("\n- reaper-cronjob.yaml", "\n# - reaper-cronjob.yaml"),
                ("\n# - reaper-deployment.yaml", "\n- reaper-deployment.yaml"),
                ("registry.example/leasehold", "docker.io/library/leasehold"),
            ],
        );
        put("etcd-secret.yaml", &secrets());
        folder
    }

    /// New certificates for nodes and reaper, in the Secrets.
    pub(super) fn renew_certificates(&self) {
        self.api.apply(&secrets());
    }

    /// A person's command, where the control plane is.
    pub(super) fn cli(&self, line: &str) -> Finished {
        self.cli_with(line, "")
    }

    /// The same with something to read.
    pub(super) fn cli_with(&self, line: &str, stdin: &str) -> Finished {
        Cli::new(&self.host).line(line).stdin(stdin).env("KUBECONFIG", self.api.kubeconfig()).run()
    }

    pub(super) fn machine(&self, name: &str) -> &Machine {
        self.machines.iter().find(|machine| machine.name == name).unwrap()
    }

    /// Waits until Kubernetes says so of a node.
    #[track_caller]
    pub(super) fn ready(&self, node: &str) {
        self.wait(&format!("{node} to be ready"), || (self.condition(node)? == "True").then_some(()));
    }

    /// The condition Ready.
    pub(super) fn condition(&self, node: &str) -> Option<String> {
        let node = self.api.get(&format!("/api/v1/nodes/{node}"))?;
        let conditions = node["status"]["conditions"].as_array()?;
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
        ready["status"].as_str().map(Into::into)
    }

    #[track_caller]
    pub(super) fn wait<T>(&self, what: &str, look: impl FnMut() -> Option<T>) -> T {
        within(PATIENCE, look)
            .unwrap_or_else(|| panic!("waited {PATIENCE:?} in vain: {what}\n{}", self.state()))
    }

    pub(super) fn play(&self, name: &str, act: impl FnOnce(&Scene<'_>) + Send) {
        let begun = Instant::now();
        self.control.inside(|| {
            let scene = Scene::begin(self, name);
            act(&scene);
            scene.end();
        });
        report(&format!("cluster: {name} in {:.1} s", begun.elapsed().as_secs_f32()));
    }

    /// So many addresses of the LAN that nobody else has: the first and the last of them.
    pub(super) fn addresses(&self, count: u32) -> (Ipv4Addr, Ipv4Addr) {
        let before = u32::from(Ipv4Addr::new(10, 0, 0, 0)) + self.given.fetch_add(count, Ordering::Relaxed);
        let (first, last) = (Ipv4Addr::from(before + 1), Ipv4Addr::from(before + count));
        assert!(last < Ipv4Addr::new(10, 0, 3, 0), "the nodes' own");
        (first, last)
    }

    /// What a person would look at first.
    pub(super) fn state(&self) -> String {
        let mut text = String::new();
        for arguments in [
            &["get", "pods", "--all-namespaces", "--output=wide"][..],
            &[
                "get",
                "events",
                "--all-namespaces",
                "--sort-by=.lastTimestamp",
                "--field-selector=type=Warning",
            ],
        ] {
            let said = self.api.kubectl(arguments);
            let lines: Vec<_> = said.stdout().lines().collect();
            text += &format!("{}\n", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
        text += self.cli("lease list -o wide").stdout();
        self.machines.iter().map(Machine::logs).fold(text, |text, logs| text + &logs)
    }
}

/// `etcd-secret.yaml`, filled in with certificates that are made for it.
fn secrets() -> String {
    let mut secrets = serde_saphyr::from_multiple::<Value>(&example("kubernetes/etcd-secret.yaml")).unwrap();
    for secret in &mut secrets {
        let user = format!("{}-prod-a", secret["metadata"]["name"].as_str().unwrap());
        let (certificate, key) = certificate(&user, &format!("/CN={user}"), &[]);
        let files = [("ca.crt", &certificates().ca), ("tls.crt", &certificate), ("tls.key", &key)];
        for (name, path) in files {
            assert!(secret["stringData"][name].is_string());
            secret["stringData"][name] = json!(fs::read_to_string(path).unwrap());
        }
    }
    secrets.iter().map(Value::to_string).collect::<Vec<_>>().join("\n---\n")
}

/// Controllers or scheduler, as the administrator.
fn manager(program: &str, place: &Place, api: &Apiserver, logs: &Folder) -> Process {
    let mut shell = Command::new("/bin/sh");
    let log: PathBuf = logs.path().join(format!("{program}.log"));
    shell.args(["-c", r#"log=$1; shift; exec "$@" >>"$log" 2>&1"#, "sh"]).arg(log);
    shell.args(&place.enter).arg(kubernetes(program));
    shell.arg(format!("--kubeconfig={}", api.kubeconfig().display()));
    shell.args(["--leader-elect=false", "--secure-port=0"]);
    if program == "kube-controller-manager" {
        shell.arg(format!("--root-ca-file={}", certificates().ca.display()));
        shell.arg(format!("--service-account-private-key-file={}", api.accounts_key().display()));
        shell.arg(format!("--node-monitor-grace-period={}s", GRACE.as_secs()));
        shell.args(["--node-monitor-period=1s", "--use-service-account-credentials=true"]);
    }
    Process::spawn(&shell).unwrap()
}
