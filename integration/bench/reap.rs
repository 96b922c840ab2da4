//! A pass of the reaper over 100 000 leases, of which 2 000 are dead: its own processor time and its memory.
//!
//! The store is a real etcd, filled as ADD fills it. The API server is a few lines here, since a real one would need a
//! quarter of an hour to take so many pods; its pods are one of a real server, under so many names. `scripts/bench-reap`
//! runs this on the release build.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may panic, and prints")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use leasehold::{
    domain::{
        lease::{Binding, Lease, LeasedAddress, Seen, Stamp, Timestamp},
        names::{BootId, ClusterName, ContainerId, DomainName, NodeName, PoolName, Uid},
    },
    store::{
        Outcome, Store as _, Txn, changes,
        etcd::{Endpoint, EtcdSettings, EtcdStore, TlsFiles},
        keys,
        record::{self, PoolDocument, RangeDocument},
    },
};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};
use tokio::time::Instant;

const LEASES: u32 = 100_000;
/// Each 50th pod is dead.
const DEAD_EACH: u32 = 50;
const NODES: u32 = 500;
const KUBE_SYSTEM: &str = "0b5a2f6e-6f0f-4a58-9d4a-5d8f2f6f1a11";
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// etcd's limit of 128 operations in a transaction: a lease has three keys.
const AT_ONCE: usize = 40;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let Some(binary) = arguments.next() else {
        println!("usage: cargo bench --bench reap -- BINARY [json]   (or scripts/bench-reap)");
        return;
    };
    let folder = std::env::temp_dir().join(format!("leasehold-bench-reap-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut etcd = Etcd::start(&folder);
    println!("filling an etcd with {LEASES} leases …");
    let filled = Instant::now();
    fill(&etcd.client);
    println!("filled in {:.0} s", filled.elapsed().as_secs_f64());
    // A server that speaks no protobuf, for a comparison.
    let api = serve(arguments.next().as_deref() == Some("json"));
    let config = folder.join("kubeconfig");
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"Config","current-context":"x","contexts":[{{"name":"x","context":{{"cluster":"c","user":"u"}}}}],"clusters":[{{"name":"c","cluster":{{"server":"http://{api}"}}}}],"users":[{{"name":"u","user":{{}}}}]}}"#
    );
    std::fs::write(&config, text).unwrap();

    let before = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let began = Instant::now();
    let output = Command::new(&binary)
        .args([
            "--endpoints",
            &etcd.client,
            "--cluster",
            "prod",
            "reap",
            "-o",
            "name",
            "--no-events",
            "--kubeconfig",
        ])
        .arg(&config)
        .env_remove("CNI_COMMAND")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let wall = began.elapsed();
    let after = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1_000_000.0;
    let own = seconds(after.user_time()) - seconds(before.user_time()) + seconds(after.system_time())
        - seconds(before.system_time());
    let given = output.stdout.lines().count();
    println!("{:<34} {:>10} {:>10}", "", "measured", "goal");
    println!("{:<34} {:>10} {:>10}", "leases given back", given, LEASES / DEAD_EACH);
    println!("{:<34} {:>9.2}s {:>10}", "processor time of the reaper", own, "5s");
    println!(
        "{:<34} {:>6.0} MiB {:>10}",
        "most memory of the reaper",
        after.max_rss() as f64 / 1024.0,
        "150 MiB"
    );
    println!("{:<34} {:>9.1}s {:>10}", "wall, store and API on this machine", wall.as_secs_f64(), "-");
    etcd.process.kill().unwrap();
    etcd.process.wait().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(output.status.success(), "{}", output.status);
    let goal = given == (LEASES / DEAD_EACH) as usize && own <= 5.0 && after.max_rss() <= 150 * 1024;
    assert!(goal, "a goal was missed");
}

struct Etcd {
    process: Child,
    client: String,
}

impl Etcd {
    fn start(folder: &std::path::Path) -> Self {
        let port = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let client = format!("http://127.0.0.1:{}", port());
        let peer = format!("http://127.0.0.1:{}", port());
        let log = std::fs::File::create(folder.join("etcd.log")).unwrap();
        let process = Command::new("etcd")
            .arg("--data-dir")
            .arg(folder.join("etcd"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}"), "--unsafe-no-fsync"])
            .stderr(log)
            .spawn()
            .unwrap();
        Self { process, client }
    }
}

fn namespace(number: u32) -> String {
    format!("shop-{:02}", number % 40)
}

fn name(number: u32) -> String {
    // A Deployment's: nobody remembers its controller.
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut suffix = String::new();
    let mut rest = number as usize;
    for _ in 0..5 {
        suffix.push(char::from(LETTERS[rest % LETTERS.len()]));
        rest /= LETTERS.len();
    }
    format!("web-7d9c4f6b5d-{suffix}")
}

fn node(number: u32) -> String {
    format!("node-{:03}.example.net", number % NODES)
}

fn fill(client: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let settings = EtcdSettings {
            endpoints: vec![Endpoint::parse(client).unwrap()],
            prefix: "/leasehold".into(),
            tls: TlsFiles::default(),
            login: None,
        };
        let store = EtcdStore::open(settings).unwrap();
        let cluster = record::Cluster { uid: Uid::new(KUBE_SYSTEM).unwrap(), last_reap: None };
        let prod = ClusterName::new("prod").unwrap();
        let mut first = Txn::default();
        let put = leasehold::store::Write::Put;
        first.writes.push(put(keys::cluster(&prod), record::encode_cluster(&cluster, None)));
        let pool = PoolDocument {
            name: "big".into(),
            networks: vec!["lan100".into()],
            serves: vec!["*/*".into()],
            ranges: vec![RangeDocument { subnet: "10.0.0.0/8".into(), ..RangeDocument::default() }],
            ..PoolDocument::default()
        };
        let big = PoolName::new("big").unwrap();
        first.writes.push(put(keys::pool(&big), record::encode_pool(&pool)));
        until_answered(&store, &first).await;
        for from in (0..LEASES).step_by(AT_ONCE) {
            let mut together = Txn::default();
            for number in from..(from + u32::try_from(AT_ONCE).unwrap()).min(LEASES) {
                let lease = lease(number, &big);
                let take = changes::Take { address: lease.addresses[0].clone(), released: None };
                together.writes.extend(changes::bind_new(&lease, &[take], &[]).writes);
            }
            until_answered(&store, &together).await;
        }
    });
}

async fn until_answered(store: &EtcdStore, txn: &Txn) {
    for _ in 0..100 {
        match store.commit(txn).await {
            Ok(Outcome::Applied(_)) => return,
            Ok(Outcome::Conflict(_)) => panic!("nothing was compared"),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    panic!("the store does not answer");
}

fn lease(number: u32, pool: &PoolName) -> Lease {
    let at = Timestamp(1_700_000_000_000);
    let path = format!("prod/{}/{}/lan100/eth0", namespace(number), name(number));
    let address = std::net::Ipv4Addr::from(0x0a01_0000 + number);
    Lease {
        id: keys::parse_lease_path(&path).unwrap(),
        addresses: vec![LeasedAddress {
            address: address.into(),
            domain: DomainName::new("default").unwrap(),
            pool: Some(pool.clone()),
        }],
        binding: Binding::Bound(Stamp {
            container: ContainerId::new(format!("{number:064x}")).unwrap(),
            node: NodeName::new(node(number)).unwrap(),
            uid: Some(Uid::new(format!("6f1c2b7e-1d5f-4c35-9a57-{number:012x}")).unwrap()),
            boot: Some(BootId::new(format!("0b9d4f3e-52a1-4c9e-8f57-{:012x}", number % NODES)).unwrap()),
            boot_clock: u64::from(number),
            at,
        }),
        since: at,
        created: at,
        sticky: false,
        reserved: false,
        unconfirmed: false,
        // A pass has missed the dead ones already.
        seen: number.is_multiple_of(DEAD_EACH).then_some(Seen { missed: Some(at), ..Seen::default() }),
    }
}

/// Serves the API on a thread for each connection; gives its address.
fn serve(json_alone: bool) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            thread::spawn(move || answer(connection.unwrap(), json_alone));
        }
    });
    address
}

fn answer(connection: TcpStream, json_alone: bool) {
    let mut lines = BufReader::new(connection.try_clone().unwrap());
    let mut out = connection;
    loop {
        let mut request = String::new();
        if lines.read_line(&mut request).unwrap_or(0) == 0 {
            return;
        }
        let mut header = String::from("-");
        let mut protobuf = false;
        while !header.trim().is_empty() {
            header.clear();
            if lines.read_line(&mut header).unwrap_or(0) == 0 {
                return;
            }
            let header = header.to_ascii_lowercase();
            protobuf |= !json_alone && header.starts_with("accept:") && header.contains(PROTOBUF);
        }
        let path = request.split(' ').nth(1).unwrap_or_default();
        let (status, media_type, body) = reply(path, protobuf);
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nDate: Mon, 30 Nov 2026 12:00:00 GMT\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if out.write_all(head.as_bytes()).and_then(|()| out.write_all(&body)).is_err() {
            return;
        }
    }
}

fn reply(path: &str, protobuf: bool) -> (&'static str, &'static str, Vec<u8>) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let value = |name: &str| {
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    };
    let json = |value: Value| ("200 OK", JSON, value.to_string().into_bytes());
    match path {
        "/api/v1/namespaces/kube-system" => {
            json(json!({ "kind": "Namespace", "metadata": { "name": "kube-system", "uid": KUBE_SYSTEM } }))
        }
        "/api/v1/pods" => {
            let from: u32 = value("continue").unwrap_or(0);
            let end = (from + value("limit").unwrap_or(500)).min(LEASES);
            let next = if end < LEASES { end.to_string() } else { String::new() };
            let living = (from..end).filter(|number| !number.is_multiple_of(DEAD_EACH));
            match protobuf {
                true => ("200 OK", PROTOBUF, list_in_protobuf(&next, living)),
                false => ("200 OK", JSON, list_in_json(&next, living)),
            }
        }
        "/api/v1/nodes" => {
            let nodes: Vec<Value> = (0..NODES).map(|number| ready(&node(number))).collect();
            json(json!({ "kind": "NodeList", "metadata": { "resourceVersion": "7" }, "items": nodes }))
        }
        // Asked for where the list is no longer of just now.
        _ if path.starts_with("/api/v1/nodes/") => json(ready(path.rsplit('/').next().unwrap_or_default())),
        _ => {
            let name = path.rsplit('/').next().unwrap_or_default();
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound",
                "message": format!("pods {name:?} not found"), "details": { "name": name, "kind": "pods" }, "code": 404,
            });
            ("404 Not Found", JSON, status.to_string().into_bytes())
        }
    }
}

fn ready(node: &str) -> Value {
    let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    json!({ "kind": "Node", "metadata": { "name": node }, "status": { "conditions": [ready] } })
}

fn list_in_json(next: &str, numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    let meta = json!({ "resourceVersion": "7", "continue": next });
    let mut body =
        format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{meta},"items":["#).into_bytes();
    for (index, number) in numbers.enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend(pod(include_bytes!("pod.json").trim_ascii_end(), number));
    }
    body.extend(b"]}");
    body
}

fn list_in_protobuf(next: &str, numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    fn field(tag: u32, value: &[u8], out: &mut Vec<u8>) {
        prost::encoding::encode_key(tag, prost::encoding::WireType::LengthDelimited, out);
        prost::encoding::encode_varint(value.len() as u64, out);
        out.extend(value);
    }
    let (mut meta, mut list, mut kind, mut body) = (Vec::new(), Vec::new(), Vec::new(), b"k8s\0".to_vec());
    field(2, b"7", &mut meta);
    field(3, next.as_bytes(), &mut meta);
    field(1, &meta, &mut list);
    for number in numbers {
        field(2, &pod(include_bytes!("pod.pb"), number), &mut list);
    }
    field(1, b"v1", &mut kind);
    field(2, b"PodList", &mut kind);
    field(1, &kind, &mut body);
    field(2, &list, &mut body);
    body
}

/// This one's, of a pod as kube-apiserver 1.34 wrote it: a Deployment's with one container, a volume, probes, conditions
/// and two managers of its fields. All lengths stay.
fn pod(template: &[u8], number: u32) -> Vec<u8> {
    let mut pod = template.to_vec();
    for (old, new) in [
        ("shop-00", namespace(number)),
        ("web-7d9c4f6b5d-bbbbb", name(number)),
        ("node-000.example.net", node(number)),
        ("00000000-0000-0000-0000-000000000000", format!("6f1c2b7e-1d5f-4c35-9a57-{number:012x}")),
    ] {
        let at = pod.windows(old.len()).position(|part| part == old.as_bytes()).unwrap();
        pod[at..at + old.len()].copy_from_slice(new.as_bytes());
    }
    pod
}
