//! What the benchmark holds the program against, and what it measures it with: a process that does as little as one can,
//! built as the program is (static, optimised, of the same crates).
//!
//! ```text
//! bare txn ENDPOINT KEY                    one connection, one transaction as an ADD's: five compares, three puts
//! bare read-txn ENDPOINT KEY               the same after a read: it cannot know what to compare without one
//! bare connect ENDPOINT CA CERT KEY COUNT  so many connections at once by the program's own code, each reads one key
//! bare cost PROGRAM ARGUMENT…              runs it; the last line of stderr is what it cost
//! ```
//!
//! `cost` is here, since a child's peak memory begins with that of its parent, and this parent is small.
#![expect(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "a part of a benchmark")]

use std::{
    io::Read as _,
    process::{Command, ExitCode},
    time::Duration,
};

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use leasehold::{
    ops::commit,
    store::{
        Read, StoreError,
        etcd::{Endpoint, EtcdSettings, EtcdStore, TlsFiles},
        keys,
    },
};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use tokio::{task::JoinSet, time::Instant};

/// As long as an ADD has.
const DEADLINE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match arguments[..] {
        ["txn", endpoint, key] => runtime().block_on(txn(endpoint, key, false)),
        ["read-txn", endpoint, key] => runtime().block_on(txn(endpoint, key, true)),
        ["connect", endpoint, ca, cert, key, count] => {
            runtime().block_on(connect(endpoint, ca, cert, key, count.parse().unwrap()));
        }
        ["cost", program, ref arguments @ ..] => return cost(program, arguments),
        _ => {
            eprintln!("usage: bare txn|read-txn|connect|cost … (it is for scripts/bench)");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

async fn txn(endpoint: &str, key: &str, read_before: bool) {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input).unwrap();
    let mut client = Client::connect([endpoint], None).await.unwrap();
    let name = |part: &str| format!("/bare/{part}/{key}");
    if read_before {
        assert!(client.get(name("lease"), None).await.unwrap().kvs().is_empty(), "{key} is there");
    }
    let absent = |part: &str| Compare::create_revision(name(part), CompareOp::Equal, 0);
    // As long as the records of an ADD.
    let put = |part: &str, length: usize| TxnOp::put(name(part), vec![b'x'; length], None);
    let txn = Txn::new().when(["lease", "address", "released", "frozen", "pool"].map(absent)).and_then([
        put("lease", 420),
        put("address", 60),
        put("attachment", 60),
    ]);
    assert!(client.txn(txn).await.unwrap().succeeded(), "{key} was there");
    println!("{{}}");
}

async fn connect(endpoint: &str, ca: &str, cert: &str, key: &str, count: usize) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard), hard).unwrap();
    let settings = EtcdSettings {
        endpoints: vec![Endpoint::parse(endpoint).unwrap()],
        prefix: "/leasehold".into(),
        tls: TlsFiles { cacert: Some(ca.into()), cert: Some(cert.into()), key: Some(key.into()) },
        login: None,
    };
    let began = Instant::now();
    let mut all = JoinSet::new();
    for _ in 0..count {
        let settings = settings.clone();
        all.spawn(async move {
            let ask = async {
                let store = EtcdStore::open(settings)?;
                commit::read(&store, &[Read::Get(keys::meta())], None, began + DEADLINE).await?;
                Ok((began.elapsed(), store)) // it stays open until all have answered
            };
            ask.await.map_err(|error: StoreError| error.to_string())
        });
    }
    let ended: Vec<Result<(Duration, EtcdStore), String>> = all.join_all().await;
    let slowest = ended.iter().flatten().map(|(took, _)| took.as_secs_f64()).fold(0.0, f64::max);
    let failures: Vec<&String> = ended.iter().filter_map(|end| end.as_ref().err()).collect();
    let report = serde_json::json!({ "slowest": slowest, "failed": failures.len(), "why": failures.first() });
    println!("{report}");
}

fn cost(program: &str, arguments: &[&str]) -> ExitCode {
    let began = Instant::now();
    let status = Command::new(program).args(arguments).status().unwrap();
    let wall = began.elapsed().as_secs_f64();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1_000_000.0;
    let report = serde_json::json!({
        "wall": wall, "cpu": seconds(usage.user_time()) + seconds(usage.system_time()), "kib": usage.max_rss(),
    });
    eprintln!("{report}");
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
