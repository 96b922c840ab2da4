//! On real links, in network namespaces made for one test each: `node` has eth0, whose other end is eth0 of `lan`.

use std::io::{BufRead as _, BufReader, Write as _, stderr, stdout};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;

use nix::sched::{CloneFlags, setns};
use tokio::time::sleep;

use super::*;

const NODE: &str = "node";
const LAN: &str = "lan";
const POD: &str = "pod";

/// Says to `another_process` what it is to probe from.
const MASTER: &str = "LEASEHOLD_TEST_MASTER";

/// What `another_process` puts before its answer.
const ANSWER: &str = "another process: ";

/// The namespaces of one test, gone with it.
struct World {
    prefix: String,
}

impl World {
    /// None, with the reason on stderr, where a test may not make network namespaces; in CI that is a failure.
    fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let world = Self { prefix: format!("probe-{}-{n}", std::process::id()) };
        let made = [NODE, LAN, POD].iter().try_for_each(|place| {
            run("ip", &["netns", "add", &world.namespace(place)])?;
            world.try_ip(place, "link set lo up").map(drop)
        });
        if let Err(reason) = made {
            assert!(std::env::var_os("CI").is_none(), "CI must run this test: {reason}");
            // Past the test harness, which shows what a passing test prints to nobody.
            let name = thread::current().name().unwrap_or_default().to_owned();
            writeln!(stderr(), "SKIPPED {name}: needs root and network namespaces: {reason}").unwrap();
            return None;
        }
        world.ip(NODE, &format!("link add eth0 type veth peer name eth0 netns {}", world.namespace(LAN)));
        // The links must say nothing of their own, so that a test can count.
        for place in [NODE, LAN] {
            world.ip(place, "link set eth0 addrgenmode none");
            world.ip(place, "link set eth0 up");
        }
        Some(world)
    }

    fn namespace(&self, place: &str) -> String {
        format!("{}-{place}", self.prefix)
    }

    fn try_ip(&self, place: &str, arguments: &str) -> Result<String, String> {
        let namespace = self.namespace(place);
        let arguments = ["-n", &namespace].into_iter().chain(arguments.split(' ')).collect::<Vec<_>>();
        run("ip", &arguments)
    }

    #[track_caller]
    fn ip(&self, place: &str, arguments: &str) -> String {
        self.try_ip(place, arguments).unwrap()
    }

    fn mac(&self, place: &str, link: &str) -> String {
        let shown = self.ip(place, &format!("link show {link}"));
        let mut words = shown.split_whitespace().skip_while(|&word| word != "link/ether");
        words.nth(1).unwrap().to_owned()
    }

    /// Frames that `lan` has received from the wire.
    fn heard_by_lan(&self) -> u64 {
        let shown = self.ip(LAN, "-s link show eth0");
        let mut lines = shown.lines().skip_while(|line| !line.contains("RX:"));
        lines.nth(1).unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// A macvlan in passthru mode tolerates no other macvlan on its master, in whichever namespace.
    fn has_no_macvlan_on_eth0(&self) -> bool {
        let free = self.try_ip(NODE, "link add link eth0 name pt0 type macvlan mode passthru").is_ok();
        if free {
            self.ip(NODE, "link del pt0");
        }
        free
    }

    fn within<T: Send>(&self, place: &str, act: impl AsyncFnOnce() -> T + Send) -> T {
        let namespace = std::fs::File::open(Path::new("/run/netns").join(self.namespace(place))).unwrap();
        thread::scope(|scope| {
            let thread = scope.spawn(move || {
                setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
                let mut builder = tokio::runtime::Builder::new_current_thread();
                builder.enable_all().build().unwrap().block_on(act())
            });
            thread.join().unwrap()
        })
    }

    /// Opens a port on eth0 in a process of its own, started through another program; with what it answers.
    fn start_another_process(&self, through: &[&str]) -> (Child, String) {
        // `ip netns exec` becomes what it executes.
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.namespace(NODE)])
            .args(through)
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "probe::tests::another_process", "--ignored", "--nocapture"])
            .env(MASTER, "eth0")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let answer = lines.find_map(|line| Some(line.unwrap().split_once(ANSWER)?.1.to_owned()));
        (child, answer.unwrap())
    }

    /// Sends a frame from `lan`, made for the MAC that its eth0 has.
    fn send_from_lan(&self, frame: impl FnOnce(Mac) -> Vec<u8> + Send) {
        self.within(LAN, async || {
            let port = Port::open(&interface("eth0")).await.unwrap();
            port.send(&frame(port.mac())).await.unwrap();
        });
    }

    fn probe(&self, place: &str, from: &Vantage, addresses: &[&str]) -> Result<Vec<String>, ProbeError> {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect::<Vec<_>>();
        let claims = self.within(place, async || probe(from, &addresses).await)?;
        Ok(claims.iter().map(|claim| format!("{} {}", claim.address, claim.mac)).collect())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for place in [NODE, LAN, POD] {
            let _ = run("ip", &["netns", "del", &self.namespace(place)]);
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn macvlan(master: &str) -> Vantage {
    Vantage::Macvlan { master: master.to_owned() }
}

fn interface(name: &str) -> Vantage {
    Vantage::Interface { name: name.to_owned() }
}

fn silence() -> Vec<String> {
    Vec::new()
}

#[test]
fn a_stranger_on_the_lan_is_heard_in_both_families() {
    let Some(world) = World::new() else { return };
    world.ip(LAN, "address add 10.9.0.7/24 dev eth0");
    world.ip(LAN, "address add fd00:9::7/64 dev eth0 nodad");
    let mac = world.mac(LAN, "eth0");
    for from in [macvlan("eth0"), interface("eth0")] {
        let heard = |addresses: &[&str]| world.probe(NODE, &from, addresses).unwrap();
        assert_eq!(heard(&["10.9.0.6", "10.9.0.7", "fd00:9::6"]), [format!("10.9.0.7 {mac}")], "{from:?}");
        assert_eq!(heard(&["10.9.0.6", "fd00:9::7", "fd00:9::6"]), [format!("fd00:9::7 {mac}")], "{from:?}");
    }
}

#[test]
fn a_claim_ends_the_wait() {
    let Some(world) = World::new() else { return };
    world.ip(LAN, "address add 10.9.0.7/24 dev eth0");
    let addresses = ["10.9.0.7".parse().unwrap()];
    let took = world.within(NODE, async || {
        let start = Instant::now();
        probe(&interface("eth0"), &addresses).await.unwrap();
        start.elapsed()
    });
    assert!(took < PROBE_INTERVAL, "{took:?}");
}

#[tokio::test]
async fn without_addresses_nothing_is_opened() {
    assert_eq!(probe(&interface("no such link"), &[]).await.unwrap(), []);
}

#[test]
fn a_silent_wire_is_waited_for_and_hears_three_probes_an_address_and_nothing_else() {
    let Some(world) = World::new() else { return };
    let addresses = (1..=8).flat_map(|n| [format!("10.9.0.{n}"), format!("fd00:9::{n}")]).collect::<Vec<_>>();
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect::<Vec<_>>();
    let before = world.heard_by_lan();
    let took = world.within(NODE, async || {
        let start = Instant::now();
        assert_eq!(probe(&macvlan("eth0"), &addresses).await.unwrap(), []);
        start.elapsed()
    });
    assert!(took >= LISTEN && took < LISTEN * 2, "{took:?}");
    thread::sleep(Duration::from_millis(1200)); // an address of its own would be announced within a second
    assert_eq!(world.heard_by_lan() - before, 3 * 16);
}

#[test]
fn a_forgotten_sandbox_on_the_same_master_is_heard_from_a_macvlan_only() {
    let Some(world) = World::new() else { return };
    let pod = world.namespace(POD);
    world.ip(NODE, &format!("link add link eth0 name net1 netns {pod} type macvlan mode bridge"));
    world.ip(POD, "link set net1 up");
    world.ip(POD, "address add 10.9.0.7/24 dev net1");
    world.ip(POD, "address add fd00:9::7/64 dev net1 nodad");
    let mac = world.mac(POD, "net1");
    for address in ["10.9.0.7", "fd00:9::7"] {
        let heard = |from| world.probe(NODE, &from, &[address]).unwrap();
        assert_eq!(heard(macvlan("eth0")), [format!("{address} {mac}")]);
        assert_eq!(heard(interface("eth0")), silence());
    }
}

#[test]
fn a_pod_and_a_stranger_are_heard_from_a_bridge() {
    let Some(world) = World::new() else { return };
    world.ip(NODE, "link add br0 type bridge");
    // Advertisements go to all nodes; a bridge hears them even where IPv6 is off for it.
    let off = "/proc/sys/net/ipv6/conf/br0/disable_ipv6";
    world.within(NODE, async || std::fs::write(off, "1").unwrap());
    world.ip(NODE, "link set eth0 master br0");
    world.ip(NODE, "link set br0 up");
    world.ip(NODE, &format!("link add veth0 type veth peer name net1 netns {}", world.namespace(POD)));
    world.ip(NODE, "link set veth0 master br0 up");
    world.ip(POD, "link set net1 up");
    for (place, link, n) in [(LAN, "eth0", 7), (POD, "net1", 8)] {
        world.ip(place, &format!("address add 10.9.0.{n}/24 dev {link}"));
        world.ip(place, &format!("address add fd00:9::{n}/64 dev {link} nodad"));
        let mac = world.mac(place, link);
        for address in [format!("10.9.0.{n}"), format!("fd00:9::{n}")] {
            let heard = world.probe(NODE, &interface("br0"), &[&address]).unwrap();
            assert_eq!(heard, [format!("{address} {mac}")]);
        }
    }
    assert_eq!(world.probe(NODE, &interface("br0"), &["10.9.0.9", "fd00:9::9"]).unwrap(), silence());
}

#[test]
fn what_the_link_itself_has_is_claimed() {
    let Some(world) = World::new() else { return };
    world.ip(NODE, "address add 10.9.0.1/24 dev eth0");
    world.ip(NODE, "address add fd00:9::1/64 dev eth0 nodad");
    let mac = world.mac(NODE, "eth0");
    let claims = world.probe(NODE, &macvlan("eth0"), &["10.9.0.1", "10.9.0.2", "fd00:9::1"]).unwrap();
    assert_eq!(claims, [format!("10.9.0.1 {mac}"), format!("fd00:9::1 {mac}")]);
}

#[test]
fn anothers_probe_for_the_same_address_is_no_claim() {
    let Some(world) = World::new() else { return };
    let addresses = ["10.9.0.7", "fd00:9::7"];
    thread::scope(|scope| {
        let probers = [(NODE, macvlan("eth0")), (NODE, macvlan("eth0")), (LAN, interface("eth0"))];
        let probers = probers.map(|(place, from)| {
            let world = &world;
            scope.spawn(move || world.probe(place, &from, &addresses).unwrap())
        });
        for prober in probers {
            assert_eq!(prober.join().unwrap(), silence());
        }
    });
}

#[test]
fn a_request_claims_its_senders_address_and_no_other() {
    let Some(world) = World::new() else { return };
    let mac = world.mac(LAN, "eth0");
    for (asked, expected) in [("10.9.0.7", vec![format!("10.9.0.7 {mac}")]), ("10.9.0.8", silence())] {
        thread::scope(|scope| {
            let prober = scope.spawn(|| world.probe(NODE, &macvlan("eth0"), &[asked]).unwrap());
            thread::sleep(LISTEN / 2);
            world.send_from_lan(|mac| {
                let mut request = arp::probe(mac, "10.9.0.8".parse().unwrap());
                request[28..32].copy_from_slice(&[10, 9, 0, 7]);
                request
            });
            assert_eq!(prober.join().unwrap(), expected);
        });
    }
}

#[test]
fn our_own_packets_are_no_claim() {
    let (own, other) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let mut announcement = arp::probe(own, "10.9.0.7".parse().unwrap());
    announcement[31] = 7;
    assert_eq!(claim(&announcement, own), None);
    assert_eq!(claim(&announcement, other).map(|claim| claim.mac), Some(own));
    announcement[6..12].copy_from_slice(&other.0);
    assert_eq!(claim(&announcement, own), None);
    assert_eq!(claim(&announcement, other), None);
}

#[test]
fn a_node_that_probes_answers_for_its_own_addresses_as_ever() {
    let Some(world) = World::new() else { return };
    world.ip(NODE, "address add 10.9.0.1/24 dev eth0");
    let asked = ["10.9.0.1".parse().unwrap()];
    let (port_opened, wait_for_port) = mpsc::channel();
    let answers = thread::scope(|scope| {
        scope.spawn(|| {
            world.within(NODE, async || {
                let _port = Port::open(&macvlan("eth0")).await.unwrap();
                port_opened.send(()).unwrap();
                sleep(LISTEN).await;
            });
        });
        wait_for_port.recv().unwrap();
        world.within(LAN, async || {
            let port = Port::open(&interface("eth0")).await.unwrap();
            port.send(&question(port.mac(), asked[0])).await.unwrap();
            let until = Instant::now() + PROBE_INTERVAL;
            let mut answers = Vec::new();
            while let Ok(claim) = timeout_at(until, port.hear(&asked)).await {
                answers.push(claim.unwrap().mac.to_string());
            }
            answers
        })
    });
    assert_eq!(answers, [world.mac(NODE, "eth0")]);
}

#[test]
fn a_dead_link_is_an_error_not_silence() {
    let Some(world) = World::new() else { return };
    for from in [macvlan, interface] {
        let fault = |link| world.probe(NODE, &from(link), &["10.9.0.7"]).unwrap_err().to_string();
        assert!(matches!(
            world.probe(NODE, &from("eth9"), &["10.9.0.7"]),
            Err(ProbeError::NoSuchLink { .. })
        ));
        assert!(matches!(world.probe(NODE, &from("lo"), &["10.9.0.7"]), Err(ProbeError::NotEthernet { .. })));
        world.ip(LAN, "link set eth0 down");
        assert_eq!(
            fault("eth0"),
            "link eth0 has no carrier, and a probe from it proves nothing; look at its cable, switch or ports"
        );
        world.ip(NODE, "link set eth0 down");
        assert_eq!(
            fault("eth0"),
            "link eth0 is down, and a probe from it proves nothing; bring it up (ip link set eth0 up)"
        );
        world.ip(NODE, "link set eth0 up");
        world.ip(LAN, "link set eth0 up");
    }
}

#[test]
fn a_link_that_dies_meanwhile_is_an_error_not_silence() {
    let Some(world) = World::new() else { return };
    let addresses = ["10.9.0.7".parse().unwrap()];
    for from in [macvlan("eth0"), interface("eth0")] {
        for (place, kill, revive) in [
            (LAN, "link set eth0 down", "link set eth0 up"),
            (NODE, "link set eth0 down", "link set eth0 up"),
        ] {
            let probed = world.within(NODE, async || {
                let die = async {
                    sleep(LISTEN - PROBE_INTERVAL).await; // no probe is left to be sent
                    thread::scope(|scope| scope.spawn(|| world.ip(place, kill)).join().unwrap());
                };
                tokio::join!(probe(&from, &addresses), die).0
            });
            assert!(probed.is_err(), "{from:?} {place}: {probed:?}");
            world.ip(place, revive);
        }
    }
}

#[test]
fn a_master_in_passthru_mode_is_a_clear_error() {
    let Some(world) = World::new() else { return };
    world.ip(NODE, "link add link eth0 name pt0 type macvlan mode passthru");
    let fault = world.probe(NODE, &macvlan("eth0"), &["10.9.0.7"]).unwrap_err();
    assert!(matches!(fault, ProbeError::Macvlan { .. }), "{fault:?}");
    assert_eq!(
        fault.to_string(),
        "cannot put a temporary macvlan on eth0 to probe from; a macvlan in passthru mode, an ipvlan, a bridge or a \
         bond on eth0 leaves no room for one"
    );
}

#[test]
fn the_temporary_macvlan_is_gone_when_the_probe_ends_or_is_dropped() {
    let Some(world) = World::new() else { return };
    let addresses = ["10.9.0.7".parse().unwrap()];
    let from = macvlan("eth0");
    world.within(NODE, async || assert_eq!(probe(&from, &addresses).await.unwrap(), []));
    assert!(world.has_no_macvlan_on_eth0());
    world.within(NODE, async || {
        let is_there = async {
            sleep(PROBE_INTERVAL / 4).await;
            let world = &world;
            assert!(thread::scope(|scope| scope.spawn(|| !world.has_no_macvlan_on_eth0()).join().unwrap()));
        };
        tokio::select! {
            biased; // the probe opens its port first
            probed = probe(&from, &addresses) => panic!("ended: {probed:?}"),
            () = is_there => (),
        }
    });
    assert!(world.has_no_macvlan_on_eth0());
}

#[test]
fn a_killed_run_leaves_no_macvlan() {
    let Some(world) = World::new() else { return };
    let (mut child, answer) = world.start_another_process(&[]);
    assert_eq!(answer, "opened");
    assert!(!world.has_no_macvlan_on_eth0());
    child.kill().unwrap();
    child.wait().unwrap();
    let gone = (0..500).any(|_| {
        thread::sleep(Duration::from_millis(10));
        world.has_no_macvlan_on_eth0()
    });
    assert!(gone);
}

#[test]
fn a_run_without_capabilities_says_which_it_needs() {
    let Some(world) = World::new() else { return };
    let powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    let (mut child, answer) = world.start_another_process(&powerless);
    child.wait().unwrap();
    assert_eq!(
        answer,
        "not allowed to make a network namespace for a probe from eth0; run with CAP_NET_RAW, CAP_NET_ADMIN and \
         CAP_SYS_ADMIN"
    );
}

/// Not a test: what `World::start_another_process` starts.
#[test]
#[ignore = "started by other tests"]
fn another_process() {
    let Some(master) = std::env::var_os(MASTER) else { return };
    let from = macvlan(master.to_str().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        match Port::open(&from).await {
            Ok(_port) => {
                writeln!(stdout(), "{ANSWER}opened").unwrap();
                sleep(Duration::from_secs(60)).await;
            }
            Err(error) => writeln!(stdout(), "{ANSWER}{error}").unwrap(),
        }
    });
}

#[test]
fn many_probe_from_one_master_at_once() {
    let Some(world) = World::new() else { return };
    world.ip(LAN, "address add 10.9.0.7/24 dev eth0");
    let mac = world.mac(LAN, "eth0");
    thread::scope(|scope| {
        let probers = [0; 8].map(|_| {
            scope.spawn(|| {
                let claims = world.probe(NODE, &macvlan("eth0"), &["10.9.0.7"]).unwrap();
                (claims, world.probe(NODE, &macvlan("eth0"), &["10.9.0.8", "fd00:9::8"]).unwrap())
            })
        });
        for prober in probers {
            assert_eq!(prober.join().unwrap(), (vec![format!("10.9.0.7 {mac}")], silence()));
        }
    });
    assert!(world.has_no_macvlan_on_eth0());
}

#[test]
fn the_default_routes_link_is_of_this_namespace() {
    let Some(world) = World::new() else { return };
    let link = || world.within(NODE, async || default_route_interface().unwrap());
    assert_eq!(link(), None);
    world.ip(NODE, "address add fd00:9::1/64 dev eth0 nodad");
    world.ip(NODE, "route add default via fd00:9::fe");
    assert_eq!(link().as_deref(), Some("eth0"));
    world.ip(NODE, "link add br0 type bridge");
    world.ip(NODE, "link set br0 up");
    world.ip(NODE, "route add default dev br0");
    assert_eq!(link().as_deref(), Some("br0"));
}

/// What a probe costs beside its wait: `cargo test probe::tests::cost -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost() {
    let Some(world) = World::new() else { return };
    world.ip(LAN, "address add 10.9.0.7/24 dev eth0");
    let asked = ["10.9.0.7".parse().unwrap()];
    for from in [macvlan("eth0"), interface("eth0")] {
        world.within(NODE, async || {
            let mut costs = Vec::new();
            for _ in 0..50 {
                let start = Instant::now();
                let port = Port::open(&from).await.unwrap();
                let opened = Instant::now();
                port.send(&question(port.mac(), asked[0])).await.unwrap();
                port.hear(&asked).await.unwrap();
                let heard = Instant::now();
                drop(port);
                costs.push([opened - start, heard - opened, heard.elapsed()]);
            }
            for (n, what) in ["open", "answer", "close"].into_iter().enumerate() {
                let mut column = costs.iter().map(|cost| cost[n]).collect::<Vec<_>>();
                column.sort();
                println!("{from:?} {what}: median {:?}, worst {:?}", column[25], column[49]);
            }
        });
    }
}
