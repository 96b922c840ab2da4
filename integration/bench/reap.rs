//! A pass of the reaper over 100 000 leases, of which 2 000 are dead: its own processor time and its memory.
//!
//! The store is a real etcd, filled as ADD fills it. The API server is a few lines here, since a real one would need a
//! quarter of an hour to take so many pods; its pods have the size of real ones. `scripts/bench-reap` runs this on the
//! release build.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may panic, and prints")]

use std::{
    fmt::Write as _,
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
use tokio::time::Instant;

const LEASES: u32 = 100_000;
/// Each 50th pod is dead.
const DEAD_EACH: u32 = 50;
const NODES: u32 = 500;
const KUBE_SYSTEM: &str = "0b5a2f6e-6f0f-4a58-9d4a-5d8f2f6f1a11";
/// etcd's limit of 128 operations in a transaction: a lease has three keys.
const AT_ONCE: usize = 40;

fn main() {
    let Some(binary) = std::env::args().skip(1).find(|argument| !argument.starts_with('-')) else {
        println!("usage: cargo bench --bench reap -- BINARY   (or scripts/bench-reap)");
        return;
    };
    let folder = std::env::temp_dir().join(format!("leasehold-bench-reap-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut etcd = Etcd::start(&folder);
    println!("filling an etcd with {LEASES} leases …");
    let filled = Instant::now();
    fill(&etcd.client);
    println!("filled in {:.0} s", filled.elapsed().as_secs_f64());
    let api = serve();
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
    assert!(output.status.success(), "{output:?}");
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
        seen: number.is_multiple_of(DEAD_EACH).then_some(Seen { controller: None, missed: Some(at) }),
    }
}

/// Serves the API on a thread for each connection; gives its address.
fn serve() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            thread::spawn(move || answer(connection.unwrap()));
        }
    });
    address
}

fn answer(connection: TcpStream) {
    let mut lines = BufReader::new(connection.try_clone().unwrap());
    let mut out = connection;
    loop {
        let mut request = String::new();
        if lines.read_line(&mut request).unwrap_or(0) == 0 {
            return;
        }
        let mut header = String::from("-");
        while !header.trim().is_empty() {
            header.clear();
            if lines.read_line(&mut header).unwrap_or(0) == 0 {
                return;
            }
        }
        let path = request.split(' ').nth(1).unwrap_or_default();
        let (status, body) = reply(path);
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nDate: Mon, 30 Nov 2026 12:00:00 GMT\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if out.write_all(head.as_bytes()).and_then(|()| out.write_all(body.as_bytes())).is_err() {
            return;
        }
    }
}

fn reply(path: &str) -> (&'static str, String) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let value = |name: &str| {
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
    };
    match path {
        "/api/v1/namespaces/kube-system" => (
            "200 OK",
            format!(
                r#"{{"kind":"Namespace","apiVersion":"v1","metadata":{{"name":"kube-system","uid":"{KUBE_SYSTEM}"}}}}"#
            ),
        ),
        "/api/v1/pods" => {
            let limit: u32 = value("limit").and_then(|text| text.parse().ok()).unwrap_or(500);
            let from: u32 = value("continue").and_then(|text| text.parse().ok()).unwrap_or(0);
            let end = (from + limit).min(LEASES);
            let mut body =
                String::from(r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7""#);
            if end < LEASES {
                let _ = write!(body, r#","continue":"{end}""#);
            }
            body.push_str(r#"},"items":["#);
            let living = (from..end).filter(|number| !number.is_multiple_of(DEAD_EACH));
            for (index, number) in living.enumerate() {
                if index > 0 {
                    body.push(',');
                }
                pod(number, &mut body);
            }
            body.push_str("]}");
            ("200 OK", body)
        }
        "/api/v1/nodes" => {
            let mut body = String::from(
                r#"{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":["#,
            );
            for number in 0..NODES {
                let comma = if number > 0 { "," } else { "" };
                let _ = write!(
                    body,
                    r#"{comma}{{"metadata":{{"name":"{}","uid":"n{number}"}},"status":{{"conditions":[{{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}}]}}}}"#,
                    node(number)
                );
            }
            body.push_str("]}");
            ("200 OK", body)
        }
        _ => {
            let name = path.rsplit('/').next().unwrap_or_default();
            (
                "404 Not Found",
                format!(
                    r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"pods \"{name}\" not found","reason":"NotFound","details":{{"name":"{name}","kind":"pods"}},"code":404}}"#
                ),
            )
        }
    }
}

/// A pod of some 4 KB, as a Deployment's is with one container, a volume, probes and its conditions.
fn pod(number: u32, out: &mut String) {
    let (namespace, name, node) = (namespace(number), name(number), node(number));
    let _ = write!(
        out,
        r#"{{"metadata":{{"name":"{name}","generateName":"web-7d9c4f6b5d-","namespace":"{namespace}","uid":"6f1c2b7e-1d5f-4c35-9a57-{number:012x}","resourceVersion":"{number}","generation":1,"creationTimestamp":"2026-01-02T03:04:05Z","labels":{{"app":"web","pod-template-hash":"7d9c4f6b5d"}},"annotations":{{"prometheus.io/scrape":"true","prometheus.io/port":"9102"}},"ownerReferences":[{{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-7d9c4f6b5d","uid":"9c0f5f8e-0b34-4f3c-8f3a-5f0e5a0c9b11","controller":true,"blockOwnerDeletion":true}}],"managedFields":["#
    );
    for manager in ["kube-controller-manager", "kubelet"] {
        if manager == "kubelet" {
            out.push(',');
        }
        let _ = write!(
            out,
            r#"{{"manager":"{manager}","operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{{"f:metadata":{{"f:generateName":{{}},"f:labels":{{".":{{}},"f:app":{{}},"f:pod-template-hash":{{}}}},"f:ownerReferences":{{".":{{}},"k:{{\"uid\":\"9c0f5f8e-0b34-4f3c-8f3a-5f0e5a0c9b11\"}}":{{}}}}}},"f:spec":{{"f:containers":{{"k:{{\"name\":\"web\"}}":{{".":{{}},"f:image":{{}},"f:imagePullPolicy":{{}},"f:name":{{}},"f:ports":{{".":{{}},"k:{{\"containerPort\":8080,\"protocol\":\"TCP\"}}":{{".":{{}},"f:containerPort":{{}},"f:protocol":{{}}}}}},"f:resources":{{}},"f:terminationMessagePath":{{}},"f:terminationMessagePolicy":{{}}}}}},"f:dnsPolicy":{{}},"f:enableServiceLinks":{{}},"f:restartPolicy":{{}},"f:schedulerName":{{}},"f:securityContext":{{}},"f:terminationGracePeriodSeconds":{{}}}}}}}}"#
        );
    }
    let _ = write!(
        out,
        r#"]}},"spec":{{"volumes":[{{"name":"kube-api-access-x7k2p","projected":{{"sources":[{{"serviceAccountToken":{{"expirationSeconds":3607,"path":"token"}}}},{{"configMap":{{"name":"kube-root-ca.crt","items":[{{"key":"ca.crt","path":"ca.crt"}}]}}}}],"defaultMode":420}}}}],"containers":[{{"name":"web","image":"registry.example.net/shop/web:1.2.3","ports":[{{"containerPort":8080,"protocol":"TCP"}}],"env":[{{"name":"MODE","value":"production"}}],"resources":{{"requests":{{"cpu":"100m","memory":"128Mi"}}}},"volumeMounts":[{{"name":"kube-api-access-x7k2p","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}}],"livenessProbe":{{"httpGet":{{"path":"/healthz","port":8080,"scheme":"HTTP"}},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","serviceAccountName":"default","nodeName":"{node}","securityContext":{{}},"schedulerName":"default-scheduler","tolerations":[{{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}}],"priority":0,"enableServiceLinks":true}},"status":{{"phase":"Running","conditions":[{{"type":"Ready","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-02T03:04:09Z"}},{{"type":"PodScheduled","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-02T03:04:05Z"}}],"hostIP":"192.0.2.1","podIP":"10.1.0.1","podIPs":[{{"ip":"10.1.0.1"}}],"startTime":"2026-01-02T03:04:05Z","containerStatuses":[{{"name":"web","state":{{"running":{{"startedAt":"2026-01-02T03:04:08Z"}}}},"lastState":{{}},"ready":true,"restartCount":0,"image":"registry.example.net/shop/web:1.2.3","imageID":"registry.example.net/shop/web@sha256:{number:064x}","containerID":"containerd://{number:064x}","started":true}}],"qosClass":"Burstable"}}}}"#
    );
}
