//! Calls as a container runtime makes them, and as a person does.
//!
//! ```ignore
//! let answer = Call::add(&host).pod("shop/db-0").container("c1").network("lan100").run();
//! assert_eq!(answer.addresses(), ["10.0.0.1/22"]);
//! Call::del(&host).pod("shop/db-0").container("c1").network("lan100").run().is_silent();
//! Cli::new(&host).args(["lease", "list"]).run().success();
//! ```

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io::Read as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::OnceLock,
};

use nix::pty::openpty;
use serde_json::{Map, Value, json};

use super::{
    folder::Folder,
    host::HostFile,
    lan::Namespace,
    parts::{Plugins, leasehold},
    process::{Finished, Running, run},
};

/// One call of a CNI plugin, ours by default. The environment of the plugin holds nothing but what is set here.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    program: PathBuf,
    /// What runs it, with arguments, outermost first.
    under: Vec<OsString>,
    environment: BTreeMap<String, OsString>,
    arguments: Vec<(String, String)>,
    document: Map<String, Value>,
    stdin: Option<Vec<u8>>,
}

impl Call {
    pub(crate) fn add(host: &HostFile) -> Self {
        Self::command("ADD", host)
    }

    pub(crate) fn del(host: &HostFile) -> Self {
        Self::command("DEL", host)
    }

    pub(crate) fn check(host: &HostFile) -> Self {
        Self::command("CHECK", host)
    }

    pub(crate) fn gc(host: &HostFile) -> Self {
        Self::command("GC", host).version("1.1.0")
    }

    pub(crate) fn status(host: &HostFile) -> Self {
        Self::command("STATUS", host).version("1.1.0")
    }

    /// Any value of `CNI_COMMAND`. The rest is a complete call: container `c1`, `eth0`, network `lan100`, CNI 1.0.0.
    pub(crate) fn command(command: &str, host: &HostFile) -> Self {
        let call = Self {
            program: leasehold(),
            under: Vec::new(),
            environment: BTreeMap::new(),
            arguments: Vec::new(),
            document: Map::new(),
            stdin: None,
        };
        call.env("CNI_COMMAND", command)
            .env("CNI_PATH", "/opt/cni/bin")
            .env("LEASEHOLD_CONFIG", host.path())
            .container("c1")
            .ifname("eth0")
            .env("CNI_NETNS", "/var/run/netns/none")
            .network("lan100")
            .version("1.0.0")
            .field("type", "macvlan")
            .field("ipam", json!({ "type": "leasehold" }))
    }

    /// `namespace/name`, as Kubernetes' runtimes say it in `CNI_ARGS`. Without it the caller is not Kubernetes.
    pub(crate) fn pod(self, pod: &str) -> Self {
        let (namespace, name) = pod.split_once('/').unwrap();
        self.arg("IgnoreUnknown", "1").arg("K8S_POD_NAMESPACE", namespace).arg("K8S_POD_NAME", name)
    }

    pub(crate) fn uid(self, uid: &str) -> Self {
        self.arg("K8S_POD_UID", uid)
    }

    /// Sets one field of `CNI_ARGS`.
    pub(crate) fn arg(mut self, key: &str, value: &str) -> Self {
        self.arguments.retain(|(present, _)| present != key);
        self.arguments.push((key.into(), value.into()));
        self
    }

    pub(crate) fn container(self, id: &str) -> Self {
        self.env("CNI_CONTAINERID", id)
    }

    pub(crate) fn ifname(self, name: &str) -> Self {
        self.env("CNI_IFNAME", name)
    }

    pub(crate) fn network(self, name: &str) -> Self {
        self.field("name", name)
    }

    pub(crate) fn version(self, version: &str) -> Self {
        self.field("cniVersion", version)
    }

    /// Sets a top-level field of the network configuration.
    pub(crate) fn field(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.document.insert(name.into(), value.into());
        self
    }

    /// Sets a field of the `ipam` block.
    pub(crate) fn ipam(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.document["ipam"][name] = value.into();
        self
    }

    /// Any standard input at all, instead of the network configuration.
    pub(crate) fn stdin(mut self, text: impl AsRef<[u8]>) -> Self {
        self.stdin = Some(text.as_ref().into());
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl Into<OsString>) -> Self {
        self.environment.insert(key.into(), value.into());
        self
    }

    pub(crate) fn without_env(mut self, key: &str) -> Self {
        self.environment.remove(key);
        self
    }

    /// Runs a real main plugin, which finds ours through `CNI_PATH`; it must be [`inside`](Self::inside) a node.
    pub(crate) fn plugin(mut self, kind: &str, plugins: Plugins) -> Self {
        let folder = plugins.folder();
        self.program = folder.join(kind);
        let path = std::env::join_paths([ipam_folder(), &folder]).unwrap();
        self.env("CNI_PATH", path).field("type", kind)
    }

    /// Another file of the program than the one under test.
    pub(crate) fn binary(mut self, path: &Path) -> Self {
        self.program = path.to_owned();
        self
    }

    /// In the network of a node, as a runtime calls it.
    pub(crate) fn inside(self, node: &Namespace) -> Self {
        self.under(["/usr/bin/nsenter".into(), format!("--net={}", node.path().display()), "--".into()])
    }

    /// Run by another program, whose words these are.
    pub(crate) fn under(mut self, words: impl IntoIterator<Item = String>) -> Self {
        self.under.extend(words.into_iter().map(Into::into));
        self
    }

    pub(crate) fn sandbox(self, sandbox: &Namespace) -> Self {
        self.env("CNI_NETNS", sandbox.path())
    }

    pub(crate) fn run(&self) -> Answer {
        Answer(self.start().wait())
    }

    /// Starts it and does not wait.
    pub(crate) fn start(&self) -> Running {
        let (mut command, input) = self.command_line();
        Running::start(command.current_dir("/"), &input)
    }

    /// Starts it for a caller who goes away before the answer.
    pub(crate) fn start_deaf(&self) -> Running {
        let (mut command, input) = self.command_line();
        Running::start_deaf(command.current_dir("/"), &input)
    }

    /// The command that is run, and its standard input.
    pub(crate) fn command_line(&self) -> (Command, Vec<u8>) {
        let mut words = self.under.iter().map(OsString::as_os_str).chain([self.program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).env_clear().envs(&self.environment);
        if !self.arguments.is_empty() && !self.environment.contains_key("CNI_ARGS") {
            let pairs: Vec<_> = self.arguments.iter().map(|(key, value)| format!("{key}={value}")).collect();
            command.env("CNI_ARGS", pairs.join(";"));
        }
        let document = || Value::from(self.document.clone()).to_string().into_bytes();
        (command, self.stdin.clone().unwrap_or_else(document))
    }
}

/// What a plugin answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer(pub(crate) Finished);

impl Answer {
    /// The result of a call that succeeded and printed one JSON document.
    #[track_caller]
    pub(crate) fn result(&self) -> Value {
        serde_json::from_str(self.0.success()).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The addresses with their prefix lengths in a result of any CNI version.
    #[track_caller]
    pub(crate) fn addresses(&self) -> Vec<String> {
        let result = self.result();
        let old = [&result["ip4"]["ip"], &result["ip6"]["ip"]];
        let new = result["ips"].as_array().into_iter().flatten().map(|ip| &ip["address"]);
        new.chain(old).filter_map(Value::as_str).map(Into::into).collect()
    }

    /// The error of a call that failed, as a runtime must find it: exit 1, one JSON document, this code.
    #[track_caller]
    pub(crate) fn error(&self, code: u64) -> Value {
        assert_eq!(self.0.code(), Some(1), "{}", self.seen());
        let error: Value =
            serde_json::from_str(self.0.stdout()).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        assert_eq!(error["code"], code, "{}", self.seen());
        error
    }

    /// `msg; details` of such an error: what a person reads in the pod's events.
    #[track_caller]
    pub(crate) fn error_text(&self, code: u64) -> String {
        let error = self.error(code);
        let part = |name: &str| error[name].as_str().filter(|text| !text.is_empty()).map(ToOwned::to_owned);
        [part("msg"), part("details")].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// A call that succeeded and said nothing, as DEL, CHECK, GC and STATUS must.
    #[track_caller]
    pub(crate) fn is_silent(&self) {
        assert_eq!(self.0.success(), "", "{}", self.seen());
    }

    fn seen(&self) -> String {
        format!("stdout: {}\nstderr: {}", self.0.stdout(), self.0.stderr())
    }
}

/// One command line of a person. Only `PATH` and the host file are in the environment.
#[derive(Debug)]
pub(crate) struct Cli {
    command: Command,
    stdin: Vec<u8>,
}

impl Cli {
    pub(crate) fn new(host: &HostFile) -> Self {
        let mut command = Command::new(leasehold());
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LEASEHOLD_CONFIG", host.path());
        command.current_dir(host.folder());
        Self { command, stdin: Vec::new() }
    }

    pub(crate) fn args<S: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments.into_iter().map(Into::into));
        self
    }

    /// The words of a line, split at spaces.
    pub(crate) fn line(self, arguments: &str) -> Self {
        self.args(arguments.split_whitespace())
    }

    pub(crate) fn env(mut self, key: &str, value: impl Into<OsString>) -> Self {
        self.command.env(key, value.into());
        self
    }

    pub(crate) fn stdin(mut self, text: &str) -> Self {
        self.stdin = text.into();
        self
    }

    pub(crate) fn run(mut self) -> Finished {
        run(&mut self.command, &self.stdin)
    }

    /// Talks to a terminal: what it wrote there, and how it ended.
    pub(crate) fn on_terminal(mut self) -> (String, ExitStatus) {
        let terminal = openpty(None, None).unwrap();
        self.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(terminal.slave);
        let mut child = self.command.spawn().unwrap();
        drop(self.command); // and with it our copy of the terminal's end
        let mut said = Vec::new();
        let _ = File::from(terminal.master).read_to_end(&mut said); // a terminal that is closed is an error there
        (String::from_utf8(said).unwrap(), child.wait().unwrap())
    }

    /// Starts it and does not wait.
    pub(crate) fn start(mut self) -> Running {
        Running::start(&mut self.command, &self.stdin)
    }
}

/// A folder with the program under its name as a plugin.
fn ipam_folder() -> &'static Path {
    static FOLDER: OnceLock<Folder> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = Folder::new();
        symlink(leasehold(), folder.path().join("leasehold")).unwrap();
        folder
    });
    folder.path()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::support::{
        lan::Lan,
        parts::{Part, require},
    };

    /// A stand-in for the program: tells what it was given.
    fn spy(host: &HostFile) -> PathBuf {
        let path = host.folder().join("spy");
        fs::write(&path, "#!/bin/sh\n/usr/bin/env | /usr/bin/sort >&2\nexec /bin/cat\n").unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_call_is_what_it_says_and_no_more() {
        let host = HostFile::local();
        let mut call =
            Call::add(&host).pod("shop/db-0").uid("u1").container("c9").ifname("net1").network("lan7");
        call =
            call.version("0.4.0").field("mtu", 1400).ipam("pool", "shop-db").env("X", "1").without_env("X");
        call.program = spy(&host);
        let answer = call.run();
        let document = json!({
            "name": "lan7", "cniVersion": "0.4.0", "type": "macvlan",
            "ipam": { "type": "leasehold", "pool": "shop-db" }, "mtu": 1400,
        });
        assert_eq!(answer.result(), document);
        let expected = [
            "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db-0;K8S_POD_UID=u1",
            "CNI_COMMAND=ADD",
            "CNI_CONTAINERID=c9",
            "CNI_IFNAME=net1",
            "CNI_NETNS=/var/run/netns/none",
            "CNI_PATH=/opt/cni/bin",
            &format!("LEASEHOLD_CONFIG={}", host.path().display()),
            "PWD=/", // the shell's own
        ];
        let seen: Vec<_> = answer.0.stderr().lines().filter(|line| !line.starts_with("_=")).collect();
        let seen: Vec<_> = seen
            .into_iter()
            .filter(|line| !line.starts_with("OLDPWD=") && !line.starts_with("SHLVL="))
            .collect();
        assert_eq!(seen, expected);

        assert_eq!(call.clone().stdin("{").run().0.success(), "{");
        call.clone().stdin("").run().is_silent();
        call.program = "/bin/false".into();
        assert_eq!(call.start().wait().code(), Some(1));
        call.program = spy(&host);
        assert_ne!(call.start_deaf().wait().code(), Some(0));
    }

    #[test]
    fn answers_of_every_version_are_read() {
        let host = HostFile::local();
        let answer = |text: &str, verb: fn(&HostFile) -> Call| {
            let mut call = verb(&host).stdin(text);
            call.program = "/bin/cat".into();
            call.run()
        };
        let old = r#"{"ip4":{"ip":"10.0.0.1/24"},"ip6":{"ip":"fd00::1/64"}}"#;
        let new = r#"{"ips":[{"address":"10.0.0.1/24"},{"address":"fd00::1/64"}]}"#;
        for (text, verb) in [(old, Call::del as fn(&HostFile) -> Call), (new, Call::check)] {
            assert_eq!(answer(text, verb).addresses(), ["10.0.0.1/24", "fd00::1/64"]);
        }
        for verb in [Call::gc, Call::status] {
            assert_eq!(verb(&host).document["cniVersion"], "1.1.0");
        }
        let mut call = Call::add(&host).stdin(r#"{"code":11,"msg":"full","details":"250 of 250"}"#);
        call.program = host.folder().join("failing");
        fs::write(&call.program, "#!/bin/sh\n/bin/cat; exit 1\n").unwrap();
        fs::set_permissions(&call.program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(call.run().error_text(11), "full; 250 of 250");
    }

    #[test]
    fn a_person_has_a_path_and_a_host_file() {
        let host = HostFile::local();
        let mut cli = Cli::new(&host).env("A", "b").args(["one"]).line("two three").stdin("text");
        let environment: BTreeMap<_, _> =
            cli.command.get_envs().map(|(key, _)| (key.to_owned(), ())).collect();
        assert_eq!(environment.into_keys().collect::<Vec<_>>(), ["A", "LEASEHOLD_CONFIG", "PATH"]);
        assert_eq!(cli.command.get_args().collect::<Vec<_>>(), ["one", "two", "three"]);
        cli.command = Command::new("/bin/cat");
        assert_eq!(cli.run().success(), "text");
    }

    #[test]
    fn a_real_plugin_runs_inside_a_node() {
        require!(Part::Root, Part::Plugins(Plugins::Debian), Part::Plugins(Plugins::Current));
        let (lan, host) = (Lan::new(), HostFile::local());
        let node = lan.node("n1");
        for plugins in Plugins::BOTH {
            let sandbox = Namespace::sandbox();
            // host-local stands in for ours: this is about the way there
            let ipam = json!({ "type": "host-local", "subnet": "10.0.0.0/24", "dataDir": host.folder().join("addresses") });
            let call = |verb: fn(&HostFile) -> Call| {
                verb(&host)
                    .plugin("macvlan", plugins)
                    .inside(&node)
                    .sandbox(&sandbox)
                    .field("master", "eth0")
                    .field("ipam", ipam.clone())
            };
            let addresses = call(Call::add).run().addresses();
            assert_eq!(addresses, sandbox.addresses("eth0"));
            call(Call::del).run().is_silent();
            assert!(sandbox.interfaces().is_empty());
            assert!(call(Call::add).program.starts_with(plugins.folder()));
        }
        assert!(ipam_folder().join("leasehold").exists());
    }
}
