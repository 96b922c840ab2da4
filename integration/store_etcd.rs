//! The store on real etcds: what it says, whom it asks, and what it makes of every kind of failure.
#![expect(clippy::disallowed_methods, reason = "time limits are of the real clock")]

use std::{
    fs, io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{
    domain::lease::Timestamp,
    store::{
        Compare, Entry, Found, Key, Outcome, Read, Revision, Span, Store, StoreError, Txn, Upkeep as _,
        Write,
        etcd::{Endpoint, EtcdSettings, EtcdStore, Login, Secret, TlsFiles, check_files},
        testing::Fixture,
    },
};

use crate::support::{
    etcd::{Etcd, ROOT, USER, certificates},
    folder::Folder,
    parts::{Part, Version, lacks, require},
    process::{eventually, run},
    proxy::{Fault, Proxy},
};

/// What one bad endpoint may cost, at any place.
const BUDGET: Duration = Duration::from_secs(2);
/// What a DEL has.
const DEL: Duration = Duration::from_secs(5);
/// And if the others elect a leader meanwhile.
const WITH_ELECTION: Duration = Duration::from_secs(5);

fn settings(endpoints: &[String]) -> EtcdSettings {
    EtcdSettings {
        endpoints: endpoints.iter().map(|text| Endpoint::parse(text).unwrap()).collect(),
        prefix: "/leasehold".into(),
        tls: TlsFiles::default(),
        login: None,
    }
}

fn open(endpoints: &[String]) -> EtcdStore {
    EtcdStore::open(settings(endpoints)).unwrap()
}

fn tls_files() -> TlsFiles {
    let files = certificates();
    TlsFiles {
        cacert: Some(files.ca.clone()),
        cert: Some(files.client.0.clone()),
        key: Some(files.client.1.clone()),
    }
}

fn with_tls(endpoints: &[String], tls: TlsFiles) -> EtcdStore {
    EtcdStore::open(EtcdSettings { tls, ..settings(endpoints) }).unwrap()
}

fn with_user(endpoints: &[String], (user, password): (&str, &str)) -> EtcdStore {
    let login = Some(Login { username: user.into(), password: Secret::new(password.into()) });
    EtcdStore::open(EtcdSettings { login, ..settings(endpoints) }).unwrap()
}

fn block<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(future);
    runtime.shutdown_background();
    result
}

fn key(text: &str) -> Key {
    Key::new(text)
}

fn put(name: &str, value: &str) -> Write {
    Write::Put(key(name), value.into())
}

fn writes(writes: Vec<Write>) -> Txn {
    Txn { writes, ..Txn::default() }
}

fn when(compare: Compare) -> Txn {
    Txn { compares: vec![compare], ..Txn::default() }
}

async fn applied(store: &EtcdStore, txn: &Txn) -> Revision {
    match store.commit(txn).await.unwrap() {
        Outcome::Applied(revision) => revision,
        Outcome::Conflict(snapshot) => panic!("conflict: {snapshot:?}"),
    }
}

async fn holds(store: &EtcdStore, compare: Compare) -> bool {
    matches!(store.commit(&when(compare)).await.unwrap(), Outcome::Applied(_))
}

/// A run as ADD makes it: one read, one commit.
async fn read_and_commit(store: &EtcdStore) -> Result<Outcome, StoreError> {
    store.read(&[Read::Get(key("v1/meta")), Read::Get(key("v1/frozen"))], None).await?;
    store.commit(&writes(vec![put("v1/x", "1")])).await
}

/// An etcd of its own for each body: they speak of revisions.
async fn fixture(version: Version, auth: bool) -> Option<Fixture<EtcdStore>> {
    if lacks(&[Part::Etcd(version)]) {
        return None;
    }
    let options = Etcd::with(version);
    let etcd = if auth { options.auth() } else { options }.start();
    let endpoints = etcd.endpoints();
    let store = if auth { with_user(&endpoints, USER) } else { open(&endpoints) };
    Some(Fixture { store, keep: Box::new(etcd) })
}

async fn v34() -> Option<Fixture<EtcdStore>> {
    fixture(Version::V34, false).await
}

async fn v36() -> Option<Fixture<EtcdStore>> {
    fixture(Version::V36, false).await
}

async fn v36_with_a_user() -> Option<Fixture<EtcdStore>> {
    fixture(Version::V36, true).await
}

leasehold::suite!(suite_3_4, super::v34);
leasehold::suite!(suite_3_6, super::v36);
leasehold::suite!(suite_3_6_with_a_user, super::v36_with_a_user);

#[test]
fn what_is_written_is_read_at_one_revision() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let etcd = Etcd::start(version);
        etcd.put("/leasehold", "a neighbour");
        etcd.put("/leaseholdv1/a", "a neighbour");
        etcd.put("/leasehold/v1/b", "old");
        block(async {
            let store = open(&etcd.endpoints());
            let first = applied(&store, &writes(vec![put("v1/a", "1"), put("v1/b", "2")])).await;
            let entry =
                |name: &str, value: &str| Entry { key: key(name), value: value.into(), revision: first };
            let span = Span::prefix("v1/");
            let list = |keys_only, limit| Read::List { span: span.clone(), keys_only, limit };
            let reads = [
                Read::Get(key("v1/a")),
                Read::Get(key("v1/none")),
                list(false, None),
                list(true, None),
                list(false, Some(1)),
                Read::Count(span.clone()),
            ];
            let all = vec![
                Found::Entries(vec![entry("v1/a", "1")]),
                Found::Entries(vec![]),
                Found::Entries(vec![entry("v1/a", "1"), entry("v1/b", "2")]),
                Found::Entries(vec![entry("v1/a", ""), entry("v1/b", "")]),
                Found::Entries(vec![entry("v1/a", "1")]),
                Found::Count(2),
            ];
            let together = store.read(&reads, None).await.unwrap();
            assert_eq!((together.revision, &together.found), (first, &all));
            for (read, found) in reads.iter().zip(&all) {
                let alone = store.read(std::slice::from_ref(read), None).await.unwrap();
                assert_eq!((alone.revision, &alone.found[..]), (first, &[found.clone()][..]));
            }

            let second =
                applied(&store, &writes(vec![Write::Delete(key("v1/a")), Write::Delete(key("v1/none"))]))
                    .await;
            assert!(second > first);
            assert_eq!(store.read(&reads, Some(first)).await.unwrap().found, all);
            assert_eq!(store.read(&reads[..1], Some(first)).await.unwrap().found, all[..1]);
            let now = store.read(&reads, None).await.unwrap();
            assert_eq!((now.entries(0), now.count(5), now.revision), (&[][..], 1, second));
        });
    }
}

#[test]
fn a_commit_is_applied_if_all_holds_and_else_reads() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let etcd = Etcd::start(version);
        block(async {
            let store = open(&etcd.endpoints());
            let txn = Txn {
                compares: vec![Compare::Absent(key("a"))],
                writes: vec![put("a", "1")],
                otherwise: vec![Read::Get(key("a")), Read::Count(Span { from: "a".into(), to: "b".into() })],
            };
            let at = applied(&store, &txn).await;
            let Outcome::Conflict(seen) = store.commit(&txn).await.unwrap() else { panic!("applied twice") };
            assert_eq!(
                (seen.revision, seen.entry(0).unwrap().value.as_slice(), seen.count(1)),
                (at, &b"1"[..], 1)
            );

            assert!(holds(&store, Compare::Unchanged(key("a"), at)).await);
            assert!(!holds(&store, Compare::Unchanged(key("a"), Revision(at.0 - 1))).await);
            assert!(!holds(&store, Compare::Unchanged(key("none"), at)).await);
            assert!(holds(&store, Compare::Value(key("a"), b"1".to_vec())).await);
            assert!(!holds(&store, Compare::Value(key("a"), b"2".to_vec())).await);
            assert!(!holds(&store, Compare::Value(key("none"), vec![])).await);
            assert!(!holds(&store, Compare::Absent(key("a"))).await);

            applied(&store, &writes(vec![Write::Delete(key("a"))])).await;
            assert!(holds(&store, Compare::Absent(key("a"))).await, "a deleted key is absent");
        });
    }
}

#[test]
fn none_since_sees_every_write_of_its_interval_and_no_other() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let etcd = Etcd::start(version);
        block(async {
            let store = open(&etcd.endpoints());
            let span = Span::prefix("r/");
            let since = |revision| Compare::NoneSince(span.clone(), revision);
            assert!(holds(&store, since(Revision(1))).await, "an empty interval");
            let first = applied(&store, &writes(vec![put("q/a", "1"), put("s/a", "1")])).await;
            assert!(holds(&store, since(Revision(first.0 - 1))).await, "neighbours");
            let second = applied(&store, &writes(vec![put("r/a", "1")])).await;
            assert!(!holds(&store, since(first)).await);
            assert!(holds(&store, since(second)).await);
            let third = applied(&store, &writes(vec![put("r/b", "1")])).await;
            assert!(!holds(&store, since(second)).await, "one of two");
            assert!(holds(&store, since(third)).await);
        });
    }
}

#[test]
fn b112_a_page_of_more_than_four_megabytes_and_a_compacted_revision() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let etcd = Etcd::start(version);
        block(async {
            let store = open(&etcd.endpoints());
            let large = "x".repeat(10_000);
            for part in 0..10 {
                let page = (0..100).map(|index| put(&format!("big/{part}{index:02}"), &large)).collect();
                applied(&store, &writes(page)).await;
            }
            let all = [Read::list(Span::prefix("big/"))];
            let seen = store.read(&all, None).await.unwrap();
            assert_eq!(seen.entries(0).len(), 1000);

            let next = applied(&store, &writes(vec![put("a", "1")])).await;
            store.compact_to(next).await.unwrap();
            store.compact_to(next).await.unwrap();
            let gone = store.read(&all, Some(seen.revision)).await;
            assert_eq!(gone, Err(StoreError::Compacted(seen.revision)));
            assert_eq!(store.read(&all, Some(next)).await.unwrap().count(0), 1000);
        });
    }
}

#[test]
fn more_than_etcd_takes_is_refused_before_it_is_sent() {
    block(async {
        let store = open(&["http://127.0.0.1:1".into()]);
        let many = |count: usize| writes((0..count).map(|index| put(&format!("k{index}"), "")).collect());
        assert!(matches!(store.commit(&many(129)).await, Err(StoreError::Refused { .. })));
        assert!(matches!(store.commit(&many(128)).await, Err(StoreError::NotReached { .. })));
        let reads = vec![Read::Get(key("a")); 129];
        assert!(matches!(store.read(&reads, None).await, Err(StoreError::Refused { .. })));
    });
}

#[test]
fn a_request_that_etcd_refuses_is_refused() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let etcd = Etcd::start(version);
        block(async {
            let store = open(&etcd.endpoints());
            let twice = writes(vec![put("a", "1"), Write::Delete(key("a"))]);
            let Err(StoreError::Refused { endpoint, reason }) = store.commit(&twice).await else {
                panic!("not refused")
            };
            assert_eq!(endpoint, etcd.endpoint(0));
            assert!(reason.contains("duplicate key"), "{reason}");
        });
    }
}

/// Accepts nothing and drops what knocks: the kernel's queue of it is full.
struct Deaf {
    listener: TcpListener,
    _queue: Vec<TcpStream>,
}

impl Deaf {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let mut queue = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
            queue.push(stream);
        }
        Self { listener, _queue: queue }
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.listener.local_addr().unwrap())
    }
}

#[test]
fn b106_one_bad_endpoint_at_any_place_costs_little() {
    require!(Part::Etcd(Version::V36));
    for tls in [false, true] {
        let etcd = if tls { Etcd::with(Version::V36).tls().start() } else { Etcd::start(Version::V36) };
        let scheme = if tls { "https" } else { "http" };
        let good: Vec<_> = (0..2).map(|_| Proxy::to(etcd.address(0))).collect();
        let bad = Proxy::to(etcd.address(0));
        let deaf = Deaf::new();
        for (name, fault) in
            [("refused", Some(Fault::Refuse)), ("frozen", Some(Fault::BlackHole)), ("dropped", None)]
        {
            if let Some(fault) = fault {
                bad.set(fault);
            }
            let url = if fault.is_some() { bad.url(scheme) } else { deaf.url(scheme) };
            for count in [2, 3] {
                for place in 0..count {
                    let mut endpoints: Vec<_> =
                        good.iter().take(count - 1).map(|proxy| proxy.url(scheme)).collect();
                    endpoints.insert(place, url.clone());
                    let store = if tls { with_tls(&endpoints, tls_files()) } else { open(&endpoints) };
                    let begun = Instant::now();
                    let outcome = block(read_and_commit(&store));
                    let took = begun.elapsed();
                    assert!(matches!(outcome, Ok(Outcome::Applied(_))), "{name} {place}: {outcome:?}");
                    assert!(took < BUDGET, "{name} at {place} of {count}, tls {tls}: {took:?}");
                    // And without a read before it: nobody gets a commit who has not answered.
                    let store = if tls { with_tls(&endpoints, tls_files()) } else { open(&endpoints) };
                    let begun = Instant::now();
                    let outcome = block(store.commit(&writes(vec![put("v1/y", "1")])));
                    let took = begun.elapsed();
                    assert!(matches!(outcome, Ok(Outcome::Applied(_))), "{name} {place}: {outcome:?}");
                    assert!(took < BUDGET, "commit, {name} at {place} of {count}, tls {tls}: {took:?}");
                }
            }
        }
    }
}

#[test]
fn two_silent_of_three_are_passed_too() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::start(Version::V36);
    let (one, two) = (Proxy::to(etcd.address(0)), Deaf::new());
    one.set(Fault::BlackHole);
    let store = open(&[one.url("http"), two.url("http"), etcd.endpoint(0)]);
    let begun = Instant::now();
    assert!(matches!(block(read_and_commit(&store)), Ok(Outcome::Applied(_))));
    assert!(begun.elapsed() < BUDGET, "{:?}", begun.elapsed());
}

#[test]
fn b106_a_frozen_member_of_three_at_any_place() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let etcd = Etcd::with(version).members(3).start();
        let leader = etcd.leader();
        let frozen = (leader + 1) % 3;
        etcd.freeze(frozen);
        for place in 0..3 {
            let mut endpoints = vec![etcd.endpoint(leader), etcd.endpoint((leader + 2) % 3)];
            endpoints.insert(place, etcd.endpoint(frozen));
            // On a busy machine the two that are left may hold an election: that is theirs, not the frozen one's.
            let tries: Vec<_> = (0..3)
                .map(|_| {
                    let begun = Instant::now();
                    (block(read_and_commit(&open(&endpoints))), begun.elapsed())
                })
                .collect();
            let within = |most: Duration| {
                move |(outcome, took): &(_, Duration)| {
                    matches!(outcome, Ok(Outcome::Applied(_))) && *took < most
                }
            };
            assert!(tries.iter().all(within(WITH_ELECTION)), "{place}: {tries:?}");
            assert!(tries.iter().any(within(BUDGET)), "{place}: {tries:?}");
        }
        etcd.thaw(frozen);
    }
}

#[test]
fn a_member_that_freezes_after_the_read_costs_one_attempt() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::start(Version::V36);
    let (first, second) = (Proxy::to(etcd.address(0)), Proxy::to(etcd.address(0)));
    let store = open(&[first.url("http"), second.url("http")]);
    block(async {
        store.read(&[Read::Get(key("a"))], None).await.unwrap();
        first.set(Fault::BlackHole);
        let begun = Instant::now();
        let txn = writes(vec![put("a", "1")]);
        let Err(StoreError::Unanswered { endpoint, waited, .. }) = store.commit(&txn).await else {
            panic!("answered")
        };
        assert_eq!(endpoint, first.url("http"));
        assert!(waited >= Duration::from_millis(1400), "{waited:?}");
        applied(&store, &txn).await;
        assert!(begun.elapsed() < BUDGET, "{:?}", begun.elapsed());
    });
}

#[test]
fn a_member_that_was_silent_once_gets_no_commit_unasked() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::start(Version::V36);
    let proxies = || [(); 3].map(|()| Proxy::to(etcd.address(0)));
    block(async {
        // On a busy machine the second is so slow at times that the third is asked, too: then again.
        let mut tries = 0;
        let ([_first, second, _third], store) = loop {
            let [first, second, third] = proxies();
            let store = open(&[first.url("http"), second.url("http"), third.url("http")]);
            store.read(&[Read::Get(key("a"))], None).await.unwrap();
            first.set(Fault::BlackHole);
            store.read(&[Read::Get(key("a"))], None).await.unwrap();
            match (first.connections(), second.connections(), third.connections()) {
                (1, 1, 0) => break ([first, second, third], store),
                other => assert!(tries < 10, "{other:?}"),
            }
            tries += 1;
        };
        second.set(Fault::Refuse);
        let begun = Instant::now();
        let mut outcome = store.commit(&writes(vec![put("a", "1")])).await;
        if matches!(outcome, Err(StoreError::Unanswered { .. })) {
            outcome = store.commit(&writes(vec![put("a", "1")])).await; // it was cut while it was sent
        }
        assert!(matches!(outcome, Ok(Outcome::Applied(_))), "{outcome:?}");
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    });
}

#[test]
fn an_answer_that_is_lost_is_unanswered_and_the_next_goes_elsewhere() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        for (fault, landed) in [(Fault::SwallowAnswer(1), true), (Fault::LoseCommit(1), false)] {
            let etcd = Etcd::start(version);
            let (first, second) = (Proxy::to(etcd.address(0)), Proxy::to(etcd.address(0)));
            let store = open(&[first.url("http"), second.url("http")]);
            block(async {
                store.read(&[Read::Get(key("a"))], None).await.unwrap();
                first.set(fault);
                let txn = Txn {
                    compares: vec![Compare::Absent(key("a"))],
                    writes: vec![put("a", "1")],
                    otherwise: vec![Read::Get(key("a"))],
                };
                let lost = store.commit(&txn).await;
                assert!(matches!(lost, Err(StoreError::Unanswered { .. })), "{fault:?}: {lost:?}");
                assert_eq!((first.connections(), second.connections()), (1, 0));
                let again = store.commit(&txn).await.unwrap();
                assert_eq!(matches!(again, Outcome::Conflict(_)), landed, "{fault:?}: {again:?}");
                assert_eq!((first.connections(), second.connections()), (1, 1));
                let commits =
                    |proxy: &Proxy| proxy.transactions().iter().filter(|txn| txn.is_commit()).count();
                assert_eq!((commits(&first), commits(&second)), (1, 1), "each was sent once");
            });
        }
    }
}

#[test]
fn a_connection_that_dies_between_two_requests_is_made_again() {
    require!(Part::Etcd(Version::V36));
    let mut etcd = Etcd::start(Version::V36);
    let endpoints = etcd.endpoints();
    let store = open(&endpoints);
    block(async {
        store.read(&[Read::Get(key("a"))], None).await.unwrap();
        etcd.kill(0);
        // That it ended is known before anything is sent: nothing is in doubt.
        let refused = store.commit(&writes(vec![put("a", "1")])).await;
        assert!(matches!(refused, Err(StoreError::NotReached { .. })), "{refused:?}");
        etcd.restart(0);
        store.read(&[Read::Get(key("a"))], None).await.unwrap();
        applied(&store, &writes(vec![put("a", "1")])).await;
        // Nor where another listens there by then: it goes over a new connection, on which something was read before.
        etcd.kill(0);
        etcd.restart(0);
        applied(&store, &writes(vec![put("a", "2")])).await;
    });
}

/// One name with two servers behind it that take turns: this etcd, and one that takes what comes and says nothing. Returns
/// its URL, and counts whom it sent to whom.
fn behind_a_balancer(address: String) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    thread::spawn(move || {
        let mut silent = Vec::new();
        for client in listener.incoming() {
            let client = client.unwrap();
            if counted.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
                silent.push(client);
                continue;
            }
            let server = TcpStream::connect(&address).unwrap();
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    (url, count)
}

#[test]
fn a_dead_server_behind_the_only_name_is_passed_in_the_time_of_a_del() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::start(Version::V36);
    let (url, connections) = behind_a_balancer(etcd.address(0));
    let store = open(&[url]);
    let begun = Instant::now();
    block(async {
        store.read(&[Read::Get(key("a"))], None).await.unwrap();
        assert!(begun.elapsed() < DEL, "{:?}", begun.elapsed());
        // Now it is known who answers.
        applied(&store, &writes(vec![put("a", "1")])).await;
        assert!(begun.elapsed() < DEL, "{:?}", begun.elapsed());
        store.read(&[Read::Get(key("a"))], None).await.unwrap();
    });
    assert_eq!(connections.load(Ordering::SeqCst), 2);
    assert_eq!(block(store.status()).len(), 1, "one was configured");
}

#[test]
fn a_slow_answer_of_the_only_endpoint_is_waited_for_on_its_connection() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::start(Version::V36);
    let proxy = Proxy::to(etcd.address(0));
    proxy.set(Fault::Delay(Duration::from_millis(500)));
    let store = open(&[proxy.url("http")]);
    block(store.read(&[Read::Get(key("a"))], None)).unwrap();
    assert_eq!(proxy.connections(), 1);
    // Its answer is taken, though another connection was made meanwhile.
    proxy.set(Fault::Delay(Duration::from_secs(2)));
    let store = open(&[proxy.url("http")]);
    block(store.read(&[Read::Get(key("a"))], None)).unwrap();
    assert_eq!(proxy.connections(), 3);
}

#[test]
fn a_store_that_went_back_says_so_once() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let mut etcd = Etcd::start(version);
        let backup = etcd.backup();
        block(async {
            let store = open(&etcd.endpoints());
            let from = applied(&store, &writes(vec![put("a", "1")])).await;
            etcd.set_back(&backup);
            let to = Revision(etcd.revision());
            tokio::time::sleep(Duration::from_millis(100)).await; // it sees the end of its connection, or not
            let txn = writes(vec![put("b", "1")]);
            let mut outcome = store.commit(&txn).await;
            if matches!(outcome, Err(StoreError::NotReached { .. } | StoreError::Unanswered { .. })) {
                outcome = store.commit(&txn).await;
            }
            assert_eq!(outcome, Err(StoreError::WentBack { from, to }));
            assert_eq!(etcd.get("/leasehold/v1/b"), None);
            assert!(applied(&store, &txn).await > to);
        });
    }
}

#[test]
fn when_all_are_down_each_is_named_with_its_cause() {
    let refusing = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = refusing.local_addr().unwrap();
    drop(refusing);
    let deaf = Deaf::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    let endpoints = [format!("http://{address}"), deaf.url("http"), silent_url.clone()];
    let begun = Instant::now();
    let Err(StoreError::NotReached { reason }) = block(read_and_commit(&open(&endpoints))) else {
        panic!("reached")
    };
    assert!(reason.starts_with(&format!("http://{address}: connection refused; ")), "{reason}");
    assert!(reason.contains(&format!("{}: no answer after ", deaf.url("http"))), "{reason}");
    assert!(reason.contains(&format!("{silent_url}: no answer after ")), "{reason}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());

    let endpoints = [format!("http://{address}"), format!("http://{address}/")];
    let begun = Instant::now();
    let refused = block(open(&endpoints).commit(&writes(vec![put("a", "1")])));
    let Err(StoreError::NotReached { reason }) = refused else { panic!("{refused:?}") };
    assert_eq!(reason.matches("connection refused").count(), 2, "{reason}");
    assert!(begun.elapsed() < Duration::from_secs(1), "at once, not at the deadline");

    let nowhere = block(open(&["http://no-such-host.invalid:2379".into()]).read(&[], None));
    let Err(StoreError::NotReached { reason }) = nowhere else { panic!("{nowhere:?}") };
    assert!(reason.starts_with("http://no-such-host.invalid:2379: "), "{reason}");
}

#[test]
fn a_name_is_looked_up() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::start(Version::V36);
    let url = etcd.endpoint(0).replace("127.0.0.1", "localhost");
    assert!(matches!(block(read_and_commit(&open(&[url]))), Ok(Outcome::Applied(_))));
}

#[test]
fn a_full_quota_is_unanswered() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let etcd = Etcd::with(version).quota(100_000).start();
        block(async {
            let store = open(&[etcd.endpoint(0), etcd.endpoint(0)]);
            let large = "x".repeat(10_000);
            let mut told = Vec::new();
            // It looks at the file, which grows ten times a second: a fast machine writes much in between.
            for index in 0..5_000 {
                if let Err(error) = store.commit(&writes(vec![put(&format!("fill/{index}"), &large)])).await {
                    // A machine that stands still for a while makes other errors, too.
                    let full = matches!(&error, StoreError::Unanswered { reason, .. } if reason.contains("database space exceeded"));
                    told.push(error);
                    if full {
                        break;
                    }
                }
            }
            let Some(StoreError::Unanswered { reason, .. }) = told.last() else { panic!("{told:?}") };
            assert!(reason.contains("database space exceeded"), "{told:?}");
            assert!(store.read(&[Read::Count(Span::prefix("fill/"))], None).await.unwrap().count(0) > 0);
            let complaints = store.status().await.remove(0).answer.unwrap().complaints;
            assert!(complaints.iter().any(|text| text.contains("NOSPACE")), "{complaints:?}");
        });
    }
}

#[test]
fn a_user_may_do_what_its_role_says() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let etcd = Etcd::with(version).auth().start();
        let endpoints = etcd.endpoints();
        etcd.put("/registry/a", "1");
        block(async {
            let store = with_user(&endpoints, USER);
            applied(&store, &writes(vec![put("v1/a", "1")])).await;
            assert!(!store.foreign_registry().await.unwrap(), "it may not know");
            assert!(with_user(&endpoints, ROOT).foreign_registry().await.unwrap());
            assert!(store.status().await.remove(0).answer.is_ok());

            let elsewhere = EtcdSettings { prefix: "/other".into(), ..with_user_settings(&endpoints, USER) };
            let refused = EtcdStore::open(elsewhere).unwrap().commit(&writes(vec![put("a", "1")])).await;
            let Err(StoreError::Refused { reason, .. }) = refused else { panic!("{refused:?}") };
            assert!(reason.contains("permission denied"), "{reason}");

            let refused = open(&endpoints).read(&[Read::Get(key("a"))], None).await;
            assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
        });
    }
}

fn with_user_settings(endpoints: &[String], (user, password): (&str, &str)) -> EtcdSettings {
    let login = Some(Login { username: user.into(), password: Secret::new(password.into()) });
    EtcdSettings { login, ..settings(endpoints) }
}

#[test]
fn b105_a_wrong_password_is_refused_once_and_named() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let etcd = Etcd::with(version).auth().start();
        let proxy = Proxy::to(etcd.address(0));
        let store = with_user(&[proxy.url("http"), etcd.endpoint(0)], (USER.0, "wrong"));
        let begun = Instant::now();
        let refused = block(store.commit(&writes(vec![put("a", "1")])));
        let Err(StoreError::Refused { reason, .. }) = refused else { panic!("{refused:?}") };
        assert!(reason.starts_with("login of user \"leasehold\": "), "{reason}");
        assert!(reason.contains("authentication failed"), "{reason}");
        assert_eq!(proxy.connections(), 1);
        assert!(begun.elapsed() < BUDGET);
        assert!(!format!("{store:?}").contains("wrong"));
    }
}

#[test]
fn b105_a_token_that_is_no_longer_good_is_renewed() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let etcd = Etcd::with(version).auth().start();
        let proxy = Proxy::to(etcd.address(0));
        let store = with_user(&[proxy.url("http")], USER);
        // etcd forgets a user's tokens when its password is set; the connection stays.
        let expire = || {
            let mut passwd = etcd.etcdctl(&etcd.endpoint(0));
            let password = format!("{}\n", USER.1);
            run(passwd.args(["user", "passwd", USER.0, "--interactive=false"]), password.as_bytes())
                .success();
        };
        block(async {
            applied(&store, &writes(vec![put("a", "1")])).await;
            expire();
            assert_eq!(store.read(&[Read::Get(key("a"))], None).await.unwrap().entries(0).len(), 1);
            expire();
            applied(&store, &writes(vec![put("a", "2")])).await;
            assert_eq!(proxy.connections(), 1);

            etcd.ctl(&["user", "delete", USER.0]).success();
            let begun = Instant::now();
            let refused = store.commit(&writes(vec![put("a", "3")])).await;
            let Err(StoreError::Refused { reason, .. }) = refused else { panic!("{refused:?}") };
            assert!(reason.starts_with("login of user \"leasehold\": "), "{reason}");
            assert!(begun.elapsed() < BUDGET, "no loop");
        });
    }
}

#[test]
fn a_password_for_a_store_without_users_is_no_fault() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let etcd = Etcd::start(version);
        let store = with_user(&etcd.endpoints(), USER);
        assert!(matches!(block(read_and_commit(&store)), Ok(Outcome::Applied(_))));
    }
}

#[test]
fn b105_a_login_that_nobody_wanted_is_made_when_it_is_wanted() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let mut etcd = Etcd::start(version);
        etcd.make_user();
        etcd.make_root();
        block(async {
            let [reader, writer] = [(); 2].map(|()| with_user(&etcd.endpoints(), USER));
            for store in [&reader, &writer] {
                applied(store, &writes(vec![put("v1/a", "1")])).await;
            }
            etcd.enable_auth();
            assert_eq!(reader.read(&[Read::Get(key("v1/a"))], None).await.unwrap().entries(0).len(), 1);
            // A commit that is refused for want of a login is sent over another connection.
            applied(&writer, &writes(vec![put("v1/a", "2")])).await;
        });
    }
}

#[test]
fn b108_every_fault_of_a_file_is_named() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36), Part::Program("openssl"));
    let files = certificates();
    let folder = Folder::new();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let missing = folder.path().join("missing");
    let empty = file("empty", "");
    let text = file("text", "not PEM\n");
    let directory = folder.path().join("directory");
    fs::create_dir(&directory).unwrap();
    let future = in_the_future(folder.path());
    let version1 = (folder.path().join("version1.crt"), future.1.clone());
    let encrypted = folder.path().join("encrypted");
    let mut openssl = Command::new("openssl");
    openssl.args(["pkcs8", "-topk8", "-passout", "pass:x", "-in"]).arg(&files.client.1);
    run(openssl.arg("-out").arg(&encrypted), b"").success();

    let good = tls_files();
    let cacert = |path: &Path| TlsFiles { cacert: Some(path.into()), ..good.clone() };
    let cert = |path: &Path| TlsFiles { cert: Some(path.into()), ..good.clone() };
    let key_file = |path: &Path| TlsFiles { key: Some(path.into()), ..good.clone() };
    let pair = |(cert, key): &(PathBuf, PathBuf)| TlsFiles {
        cert: Some(cert.clone()),
        key: Some(key.clone()),
        ..good.clone()
    };
    let other_key = format!("does not belong to the certificate {}", files.client.0.display());
    let cases: Vec<(TlsFiles, &Path, &str)> = vec![
        (cacert(&missing), &missing, "no such file"),
        (cert(&missing), &missing, "no such file"),
        (key_file(&missing), &missing, "no such file"),
        (cacert(&directory), &directory, "is a directory"),
        (cert(&directory), &directory, "is a directory"),
        (key_file(&directory), &directory, "is a directory"),
        (cacert(&empty), &empty, "is empty"),
        (cert(&empty), &empty, "is empty"),
        (key_file(&empty), &empty, "is empty"),
        (cacert(&text), &text, "holds no PEM certificate"),
        (cert(&text), &text, "holds no PEM certificate"),
        (key_file(&text), &text, "holds no PEM key"),
        (key_file(&encrypted), &encrypted, "is encrypted: a key without a passphrase is needed"),
        (key_file(&files.server.1), &files.server.1, &other_key),
        (pair(&files.expired_client), &files.expired_client.0, "expired on 20"),
        (pair(&version1), &version1.0, "cannot be used: "),
        (pair(&future), &future.0, "not valid before 2100-01-01T00:00:00Z"),
    ];
    let now = Timestamp(jiff::Timestamp::now().as_millisecond());
    for version in Version::BOTH {
        let etcd = Etcd::with(version).tls().start();
        let endpoints = etcd.endpoints();
        for (tls, path, expected) in &cases {
            let named = |error: &StoreError| {
                let StoreError::Credentials { path: found, reason } = error else {
                    panic!("{tls:?}: {error:?}")
                };
                assert_eq!(found, &path.display().to_string());
                assert!(reason.starts_with(expected), "{reason} is not {expected}");
            };
            named(&check_files(&EtcdSettings { tls: tls.clone(), ..settings(&endpoints) }, now).unwrap_err());
            named(&block(read_and_commit(&with_tls(&endpoints, tls.clone()))).unwrap_err());
            named(
                &block(with_tls(&endpoints, tls.clone()).commit(&writes(vec![put("a", "1")]))).unwrap_err(),
            );
        }

        let wrong = block(read_and_commit(&with_tls(&endpoints, cacert(&files.other_ca)))).unwrap_err();
        let reason = format!("did not sign the certificate that {} shows", etcd.endpoint(0));
        let path = files.other_ca.display().to_string();
        assert_eq!(wrong, StoreError::Credentials { path, reason });

        // A certificate that the server does not know.
        let stranger = stranger(folder.path());
        let refused = block(read_and_commit(&with_tls(&endpoints, pair(&stranger)))).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(&stranger.0.display().to_string()) && text.contains("accept"), "{text}");
        assert!(text.contains(&etcd.endpoint(0)), "{text}");

        let none = TlsFiles { cert: None, key: None, ..good.clone() };
        let refused = block(read_and_commit(&with_tls(&endpoints, none))).unwrap_err();
        assert!(matches!(refused, StoreError::NotReached { .. }), "{refused:?}");

        assert!(matches!(
            block(read_and_commit(&with_tls(&endpoints, good.clone()))),
            Ok(Outcome::Applied(_))
        ));
        // Plain text to a port that speaks TLS.
        let plain = endpoints[0].replace("https", "http");
        let refused = block(read_and_commit(&open(std::slice::from_ref(&plain)))).unwrap_err();
        assert!(matches!(refused, StoreError::NotReached { .. }), "{refused:?}");
    }

    let dates =
        check_files(&EtcdSettings { tls: good.clone(), ..settings(&["http://a:1".into()]) }, now).unwrap();
    assert_eq!(dates.iter().map(|dates| &dates.path).collect::<Vec<_>>(), [&files.ca, &files.client.0]);
    let days = dates[1].not_after.since(now) / 86_400_000;
    assert!((28..=30).contains(&days), "{days}");
}

#[test]
fn a_server_for_another_name_is_named() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::with(Version::V36).tls().start();
    let other = etcd.endpoint(0).replace("127.0.0.1", "127.0.0.2");
    let proxy_port = etcd.address(0).rsplit_once(':').unwrap().1.to_owned();
    let _here = Forward::start(&format!("127.0.0.2:{proxy_port}"), &etcd.address(0));
    let refused = block(read_and_commit(&with_tls(std::slice::from_ref(&other), tls_files()))).unwrap_err();
    let expected = format!("{other}: its certificate is not for 127.0.0.2 but for ");
    let StoreError::NotReached { reason } = &refused else { panic!("{refused:?}") };
    assert!(reason.starts_with(&expected), "{reason}");
    // The next one is asked all the same.
    let store = with_tls(&[other, etcd.endpoint(0)], tls_files());
    assert!(matches!(block(read_and_commit(&store)), Ok(Outcome::Applied(_))));
}

/// Passes one address on to another.
struct Forward;

impl Forward {
    fn start(from: &str, to: &str) -> Self {
        let listener = TcpListener::bind(from).unwrap();
        let to = to.to_owned();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&to) else { continue };
                let (mut up, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (mut client, mut server) = (client, server);
                std::thread::spawn(move || std::io::copy(&mut up, &mut server));
                std::thread::spawn(move || std::io::copy(&mut down, &mut client));
            }
        });
        Self
    }
}

/// A certificate of version 1, and one whose time is to come.
fn in_the_future(folder: &Path) -> (PathBuf, PathBuf) {
    let files = certificates();
    let script = r#"
        set -e
        mkdir -p db && : >db/index && echo 01 >db/serial
        printf '[ca]\ndefault_ca=x\n[x]\ndatabase=db/index\nserial=db/serial\nnew_certs_dir=db\ndefault_md=sha256\npolicy=p\nx509_extensions=e\n[e]\nextendedKeyUsage=clientAuth\n[p]\ncommonName=supplied\n' >ca.cnf
        openssl ecparam -genkey -name prime256v1 -noout -out future.key
        openssl req -new -key future.key -subj /CN=future -out future.csr
        openssl ca -batch -config ca.cnf -cert "$CA" -keyfile "${CA%.crt}.key" -in future.csr -out future.crt \
          -startdate 21000101000000Z -enddate 21010101000000Z -notext
        openssl x509 -req -in future.csr -CA "$CA" -CAkey "${CA%.crt}.key" -set_serial 7 -days 3 -out version1.crt
    "#;
    run(Command::new("/bin/sh").args(["-c", script]).env("CA", &files.ca).current_dir(folder), b"").success();
    (folder.join("future.crt"), folder.join("future.key"))
}

fn stranger(folder: &Path) -> (PathBuf, PathBuf) {
    let script = r"
        set -e
        openssl req -x509 -newkey rsa:2048 -nodes -keyout stranger.key -subj /CN=stranger -days 30 -out stranger.crt
    ";
    run(Command::new("/bin/sh").args(["-c", script]).current_dir(folder), b"").success();
    (folder.join("stranger.crt"), folder.join("stranger.key"))
}

#[test]
fn a_proxy_in_the_environment_is_ignored() {
    require!(Part::Etcd(Version::V36));
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "store_etcd::two_silent_of_three_are_passed_too"]);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
        again.env(name, "http://127.0.0.1:1");
    }
    assert!(run(&mut again, b"").success().contains("1 passed"));
}

#[test]
fn an_api_servers_store_is_recognised() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let etcd = Etcd::start(version);
        block(async {
            let store = open(&etcd.endpoints());
            let inside =
                EtcdSettings { prefix: "/registry/leasehold/".into(), ..settings(&etcd.endpoints()) };
            let inside = EtcdStore::open(inside).unwrap();
            assert!(!store.foreign_registry().await.unwrap());
            applied(&inside, &writes(vec![put("v1/meta", "{}")])).await;
            assert_eq!(etcd.get("/registry/leasehold/v1/meta").as_deref(), Some("{}"));
            assert!(!inside.foreign_registry().await.unwrap());
            assert!(store.foreign_registry().await.unwrap());
            etcd.put("/registry/pods/a", "1");
            assert!(inside.foreign_registry().await.unwrap());
        });
    }
}

#[test]
fn each_member_says_how_it_is() {
    require!(Part::Etcd(Version::V34), Part::Etcd(Version::V36));
    for version in Version::BOTH {
        let mut etcd = Etcd::with(version).members(3).start();
        let leader = etcd.leader();
        let down = (leader + 1) % 3;
        etcd.kill(down);
        let store = open(&etcd.endpoints());
        let all = block(store.status());
        assert_eq!(all.iter().map(|one| one.endpoint.clone()).collect::<Vec<_>>(), etcd.endpoints());
        for (index, one) in all.iter().enumerate() {
            match &one.answer {
                Ok(member) => {
                    assert!(index != down && member.has_leader && member.leader == (index == leader));
                    assert!(member.version.starts_with("3.") && member.size > 0 && member.in_use > 0);
                    assert_eq!(member.quota.is_some(), version == Version::V36);
                    assert_eq!(member.complaints, Vec::<String>::new());
                }
                Err(error) => {
                    assert_eq!(index, down);
                    assert!(error.to_string().contains("connection refused"), "{error}");
                }
            }
        }
        let _ = eventually("the store to answer", || block(read_and_commit(&store)).ok());
    }
}

/// A member that is cut off from the others must not answer from what it last knew.
#[test]
fn b114_a_member_without_its_majority_answers_no_read() {
    require!(Part::Etcd(Version::V36));
    let etcd = Etcd::with(Version::V36).members(3).start();
    let alone = EtcdStore::open(settings(&[etcd.endpoint(0)])).unwrap();
    let key = Key::new("v1/meta");
    let reads = [Read::Get(key)];
    block(async {
        assert!(alone.read(&reads, None).await.is_ok());
        etcd.freeze(1);
        etcd.freeze(2);
        // It may still lead for a moment, but it cannot prove it.
        let answer = alone.read(&reads, None).await;
        assert!(matches!(answer, Err(StoreError::NotReached { .. })), "{answer:?}");
    });
}
