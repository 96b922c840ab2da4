//! A LAN of network namespaces: a bridge in one, and nodes, strangers and sandboxes in others. The machine's own
//! network is not touched.

use std::{
    collections::BTreeSet,
    fs,
    fs::File,
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use nix::sched::{CloneFlags, setns};
use serde_json::Value;

use super::process::{Finished, PATIENCE, eventually, run, start_nursery};

/// A bridge in a namespace of its own, to which nodes and strangers are plugged.
#[derive(Debug)]
pub(crate) struct Lan {
    bridge: Arc<Namespace>,
    ports: AtomicU32,
}

impl Lan {
    pub(crate) fn new() -> Self {
        let bridge = Namespace::new("lan");
        bridge.ip("link add lan type bridge");
        bridge.ip("link set lan up");
        Self { bridge: bridge.into(), ports: AtomicU32::new(0) }
    }

    /// A namespace whose `eth0` is on the LAN, up, without an address: a node, as macvlan's `master` needs it.
    pub(crate) fn node(&self, name: &str) -> Host {
        let namespace = Namespace::new(name);
        let cable = self.cable(&namespace, "eth0");
        let host = Host { namespace, cable };
        eventually("carrier on eth0", || host.link("eth0").contains("LOWER_UP").then_some(()));
        host
    }

    /// One more interface of a namespace, up, on this LAN, without an address.
    pub(crate) fn cable(&self, namespace: &Namespace, interface: &str) -> Cable {
        let port = format!("port{}", self.ports.fetch_add(1, Ordering::Relaxed));
        self.bridge.ip(&format!("link add {port} type veth peer name {interface} netns {}", namespace.name));
        self.bridge.ip(&format!("link set {port} master lan up"));
        namespace.ip(&format!("link set {interface} up"));
        Cable { port, bridge: Arc::clone(&self.bridge) }
    }

    /// Somebody on the LAN who uses these addresses (`10.0.0.5/24`, `fd00::5/64`) whatever anybody leases.
    pub(crate) fn stranger(&self, name: &str, addresses: &[&str]) -> Host {
        let host = self.node(name);
        for address in addresses {
            host.add_address("eth0", address);
        }
        host
    }
}

/// A namespace with a cable to the LAN.
#[derive(Debug)]
pub(crate) struct Host {
    namespace: Namespace,
    cable: Cable,
}

/// Between an interface and the bridge.
#[derive(Debug)]
pub(crate) struct Cable {
    port: String,
    bridge: Arc<Namespace>,
}

impl Cable {
    pub(crate) fn pull(&self) {
        self.bridge.ip(&format!("link set {} down", self.port));
    }

    pub(crate) fn plug(&self) {
        self.bridge.ip(&format!("link set {} up", self.port));
    }
}

impl Host {
    /// Pulls the cable: still running, and nobody hears it.
    pub(crate) fn unplug(&self) {
        self.cable.pull();
    }

    pub(crate) fn plug(&self) {
        self.cable.plug();
        eventually("carrier on eth0", || self.link("eth0").contains("LOWER_UP").then_some(()));
    }
}

impl std::ops::Deref for Host {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.namespace
    }
}

/// A network namespace with a name that nobody else uses, deleted with this value.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
}

/// The name of each begins so, and goes on with the process ID: what a killed run left can be told and taken away.
const PREFIX: &str = "leasehold";

/// Making the first namespace of a machine makes a mount, and two that do so at once hide each other's.
static MAKING: Mutex<()> = Mutex::new(());

impl Namespace {
    /// An empty namespace, only `lo` and that down, as a runtime makes it for a sandbox.
    pub(crate) fn sandbox() -> Self {
        let namespace = Self::bare("sandbox");
        // A plugin brings the interface up itself; duplicate address detection would hold an IPv6 address back.
        namespace.quiet_ipv6();
        namespace
    }

    pub(crate) fn path(&self) -> PathBuf {
        Path::new("/var/run/netns").join(&self.name)
    }

    /// A command that will run in here. Only the network is another: unlike `ip netns exec`, which hides mounts.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("/usr/bin/nsenter");
        command.arg(format!("--net={}", self.path().display())).arg("--").arg(program.as_ref());
        command
    }

    /// Does something in here, on a thread of its own: what it starts, and what that starts, is in here, too.
    pub(crate) fn inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let file = File::open(self.path()).unwrap();
        start_nursery(); // out here: whatever it starts stays where it is
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(file, CloneFlags::CLONE_NEWNET).unwrap();
                act()
            });
            inside.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Runs a program in here and waits.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Finished {
        run(self.command(program).args(arguments), b"")
    }

    pub(crate) fn add_address(&self, interface: &str, address: &str) {
        // nodad: in use at once, not after a second of asking
        let nodad = if address.contains(':') { " nodad" } else { "" };
        self.ip(&format!("address add {address} dev {interface}{nodad}"));
    }

    /// The addresses of an interface with their prefix lengths, without the IPv6 link-local one.
    pub(crate) fn addresses(&self, interface: &str) -> Vec<String> {
        let answer = self.json(&format!("-json address show dev {interface}"));
        let all = answer[0]["addr_info"].as_array().unwrap();
        let global = all.iter().filter(|info| info["scope"] != "link");
        global.map(|info| format!("{}/{}", info["local"].as_str().unwrap(), info["prefixlen"])).collect()
    }

    pub(crate) fn mac(&self, interface: &str) -> String {
        self.json(&format!("-json link show dev {interface}"))[0]["address"].as_str().unwrap().into()
    }

    /// The names of its interfaces, without `lo`.
    pub(crate) fn interfaces(&self) -> Vec<String> {
        let answer = self.json("-json link show");
        let names = answer.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap());
        names.filter(|name| *name != "lo").map(Into::into).collect()
    }

    /// True if somebody on the LAN of this interface answers an ARP request for an address.
    pub(crate) fn hears(&self, interface: &str, address: &str) -> bool {
        // -0: with the source address 0.0.0.0, so that nobody learns a wrong one from our asking
        let finished = self.run("/usr/sbin/arping", &["-0", "-q", "-c1", "-w1", "-i", interface, address]);
        assert!(finished.took < PATIENCE);
        finished.code() == Some(0)
    }

    /// The hardware addresses of all who answer, each once.
    pub(crate) fn answers(&self, interface: &str, address: &str) -> Vec<String> {
        let finished =
            self.run("/usr/sbin/arping", &["-0", "-r", "-c3", "-W0.2", "-w2", "-i", interface, address]);
        let all: BTreeSet<_> = finished.stdout().split_whitespace().map(Into::into).collect();
        all.into_iter().collect()
    }

    /// `ip ARGUMENTS` in here, which must succeed.
    #[track_caller]
    pub(crate) fn ip(&self, arguments: &str) -> String {
        ip(&format!("-netns {} {arguments}", self.name))
    }

    fn new(label: &str) -> Self {
        let namespace = Self::bare(label);
        namespace.quiet_ipv6();
        namespace.ip("link set lo up");
        namespace
    }

    fn bare(label: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static SWEEP: Once = Once::new();
        SWEEP.call_once(sweep);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}-{}-{number}-{label}", process::id());
        let guard = MAKING.lock();
        ip(&format!("netns add {name}"));
        drop(guard);
        Self { name }
    }

    fn quiet_ipv6(&self) {
        let script = "for f in /proc/sys/net/ipv6/conf/*/accept_dad; do echo 0 >$f; done";
        self.run("/bin/sh", &["-c", script]).success();
    }

    fn link(&self, interface: &str) -> String {
        self.ip(&format!("link show dev {interface}"))
    }

    fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.ip(arguments)).unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = run(Command::new("/sbin/ip").args(["netns", "delete", &self.name]), b"");
    }
}

#[track_caller]
fn ip(arguments: &str) -> String {
    run(Command::new("/sbin/ip").args(arguments.split_whitespace()), b"").success().into()
}

/// Takes away the namespaces of runs that were killed.
fn sweep() {
    for entry in fs::read_dir("/var/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let mut parts = name.split('-');
        let ours = parts.next() == Some(PREFIX);
        if ours && parts.next().is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = run(Command::new("/sbin/ip").args(["netns", "delete", &name]), b""); // another run may be faster
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::parts::{Part, require};

    #[test]
    fn a_stranger_answers_until_unplugged() {
        require!(Part::Root, Part::Program("arping"));
        let lan = Lan::new();
        let node = lan.node("n1");
        let printer = lan.stranger("printer", &["10.0.0.5/24", "fd00::5/64"]);
        assert_eq!(printer.addresses("eth0"), ["10.0.0.5/24", "fd00::5/64"]);
        assert!(node.hears("eth0", "10.0.0.5"));
        assert!(!node.hears("eth0", "10.0.0.6"));
        printer.unplug();
        assert!(!node.hears("eth0", "10.0.0.5"));
        printer.plug();
        assert!(node.hears("eth0", "10.0.0.5"));
        assert_eq!(node.mac("eth0").len(), 17);
    }

    #[test]
    fn two_lans_do_not_meet() {
        require!(Part::Root, Part::Program("arping"));
        let (one, other) = (Lan::new(), Lan::new());
        let _stranger = one.stranger("printer", &["10.0.0.5/24"]);
        assert!(!other.node("n1").hears("eth0", "10.0.0.5"));
    }

    #[test]
    fn a_sandbox_is_empty_and_goes_with_its_value() {
        require!(Part::Root);
        let sandbox = Namespace::sandbox();
        assert!(sandbox.interfaces().is_empty());
        let path = sandbox.path();
        assert!(path.exists());
        drop(sandbox);
        assert!(!path.exists());
    }
}
