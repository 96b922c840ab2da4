//! A pass of the reaper over 100 000 leases, of which 2 000 are dead: its own processor time and its memory.
//!
//! The store is a real etcd, filled as ADD fills it. The API server is a few lines here, since a real one would need a
//! quarter of an hour to take so many pods; its pods are one of a real server, under so many names.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::Command,
    thread,
};

use leasehold::domain::{
    lease::{Binding, Lease, Seen},
    names::Uid,
};
use serde_json::{Value, json};

use super::{
    measure::Bench,
    report::{Row, Unit},
    world::{self, Hand},
};
use crate::support::{
    etcd::Etcd,
    host::HostFile,
    parts::{Version, leasehold},
};

const LEASES: u32 = 100_000;
/// Each 50th pod is dead.
const DEAD_EACH: u32 = 50;
const NODES: u32 = 500;
/// That of the registered cluster.
const KUBE_SYSTEM: &str = "11111111-2222-3333-4444-555555555555";
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

pub(crate) fn reap(bench: &Bench) -> Vec<Row> {
    pass(bench, ["reap-cpu", "reap-memory"], "", false)
}

/// The same with an API server that speaks no protobuf, for a comparison.
pub(crate) fn reap_json(bench: &Bench) -> Vec<Row> {
    pass(bench, ["reap-json-cpu", "reap-json-memory"], " (an API of JSON alone)", true)
}

fn pass(bench: &Bench, names: [&'static str; 2], of: &str, json_alone: bool) -> Vec<Row> {
    let etcd = Etcd::start(Version::V36);
    let host = HostFile::on(&etcd);
    world::register(&[&host]);
    world::pool(&host, "lan100", &json!([{ "subnet": "10.0.0.0/8" }]));
    Hand::on(&host).bind((0..LEASES).map(lease));
    let api = serve(json_alone);
    let config = host.folder().join("kubeconfig");
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"Config","current-context":"x","contexts":[{{"name":"x","context":{{"cluster":"c","user":"u"}}}}],"clusters":[{{"name":"c","cluster":{{"server":"http://{api}"}}}}],"users":[{{"name":"u","user":{{}}}}]}}"#
    );
    std::fs::write(&config, text).unwrap();

    let output = Command::new(&bench.bare)
        .env_clear()
        .env("LEASEHOLD_CONFIG", host.path())
        .arg("cost")
        .arg(leasehold())
        .args(["reap", "-o", "name", "--no-events", "--kubeconfig"])
        .arg(&config)
        .output()
        .unwrap();
    let cost = world::cost(&output);
    let given = output.stdout.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(given, (LEASES / DEAD_EACH) as usize, "given back");
    let figures = format!("{:.1} s wall, with store and API on this machine", cost.wall);
    let work = format!("reap of 100 000 leases, 2 000 dead{of}: processor time");
    vec![
        Row::new(names[0], &work, Unit::Seconds, 5.0, cost.cpu, figures),
        Row::new(names[1], &format!("the same{of}: most memory"), Unit::Mib, 150.0, cost.mib, String::new()),
    ]
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

fn uid(number: u32) -> String {
    format!("6f1c2b7e-1d5f-4c35-9a57-{number:012x}")
}

fn lease(number: u32) -> Lease {
    let address = Ipv4Addr::from(0x0a01_0000 + number).into();
    let pod = format!("{}/{}", namespace(number), name(number));
    let mut lease = world::lease("lan100", address, &pod, &node(number));
    if let Binding::Bound(stamp) = &mut lease.binding {
        stamp.uid = Some(Uid::new(uid(number)).unwrap());
    }
    // A pass has missed the dead ones already.
    lease.seen =
        number.is_multiple_of(DEAD_EACH).then_some(Seen { missed: Some(lease.created), ..Seen::default() });
    lease
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
        ("00000000-0000-0000-0000-000000000000", uid(number)),
    ] {
        let at = pod.windows(old.len()).position(|part| part == old.as_bytes()).unwrap();
        pod[at..at + old.len()].copy_from_slice(new.as_bytes());
    }
    pod
}
