//! A cluster in one process: nodes that run the use cases of the plugin against one store in memory, each with its
//! own clock, its own ear on the wire, and its own way to the store.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{
        Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold::{
    domain::{
        kubernetes::Answer,
        lease::{AddressHolder, Holder, Lease, LeaseId, Timestamp},
        names::{
            BootId, ClusterName, ContainerId, IfName, Namespace, NetworkName, NodeName, PodName, PoolName,
            StoreId, Uid,
        },
        pool::{Draft, Pool, RangeDraft},
        reap::{self, Case, Confirmed, Policy, PoolPolicy, Verdict},
        select::{Asked, Caller},
    },
    journal::Memory,
    ops::{self, Add, Added, Change, Clock, Context, Del, End, Heard, Identity, Log, Refusal, Wire},
    store::{
        Compare, Entry, Key, Outcome, Read, Revision, Span, Store, Txn, Write, changes, keys,
        record::{self, Meta, PoolDocument, RangeDocument, Stored},
        testing::{FaultyStore, MemoryStore},
    },
};
use tokio::time::Instant;

pub(crate) const ADD_DEADLINE: Duration = Duration::from_secs(10);

/// A clock that goes with tokio's, so that a paused runtime waits for nothing.
pub(crate) struct TestClock {
    began: Instant,
    /// How far the wall clock of the node is off, milliseconds.
    pub(crate) skew: AtomicI64,
    ticks: AtomicU64,
    chance: AtomicU64,
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let gone = i64::try_from(self.began.elapsed().as_millis()).unwrap();
        Timestamp(1_700_000_000_000 + gone + self.skew.load(Ordering::Relaxed))
    }

    fn boot_clock(&self) -> u64 {
        let gone = u64::try_from(self.began.elapsed().as_micros()).unwrap();
        1_000_000 + gone + self.ticks.fetch_add(1, Ordering::Relaxed)
    }

    fn chance(&self) -> u64 {
        // A Weyl sequence, mixed: the same in every run of the tests.
        let n = self.chance.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        n ^ (n >> 31)
    }
}

/// What a node hears.
#[derive(Default)]
pub(crate) struct Ear {
    /// Who answers, and with which hardware address.
    pub(crate) answering: Mutex<BTreeMap<IpAddr, String>>,
    /// There is nowhere to listen from.
    pub(crate) nowhere: Mutex<bool>,
    /// Listening fails.
    pub(crate) deaf: Mutex<bool>,
    /// What was asked.
    pub(crate) asked: Mutex<Vec<IpAddr>>,
}

impl Wire for Ear {
    async fn probe(&self, addresses: &[IpAddr]) -> Heard {
        self.asked.lock().unwrap().extend(addresses);
        tokio::time::sleep(Duration::from_millis(300)).await;
        if *self.nowhere.lock().unwrap() {
            return Heard::Nowhere("ptp has no LAN".into());
        }
        if *self.deaf.lock().unwrap() {
            return Heard::Failed("no such device".into());
        }
        let answering = self.answering.lock().unwrap();
        let claims: Vec<(IpAddr, String)> =
            addresses.iter().filter_map(|a| Some((*a, answering.get(a)?.clone()))).collect();
        if claims.is_empty() { Heard::Silence } else { Heard::Claims(claims) }
    }
}

impl Ear {
    pub(crate) fn hears(&self, address: &str) {
        self.answering.lock().unwrap().insert(ip(address), "02:00:00:00:00:99".into());
    }

    /// What was asked since the last time.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap()).iter().map(ToString::to_string).collect()
    }
}

/// The audit trail of a node.
#[derive(Default)]
pub(crate) struct Trail {
    pub(crate) changes: Mutex<Vec<Change>>,
    pub(crate) notes: Mutex<Vec<String>>,
}

impl Log for Trail {
    fn change(&self, change: &Change) {
        self.changes.lock().unwrap().push(change.clone());
    }

    fn note(&self, text: &str) {
        self.notes.lock().unwrap().push(text.into());
    }
}

/// A node.
pub(crate) struct Node {
    pub(crate) way: FaultyStore<MemoryStore>,
    pub(crate) wire: Ear,
    pub(crate) clock: TestClock,
    pub(crate) trail: Trail,
    pub(crate) me: Identity,
    pub(crate) memory: Memory,
}

pub(crate) type Run<'a> = Context<'a, FaultyStore<MemoryStore>, Ear, TestClock, Trail>;

impl Node {
    pub(crate) fn context(&self, deadline: Duration) -> Run<'_> {
        Context {
            store: &self.way,
            wire: &self.wire,
            clock: &self.clock,
            log: &self.trail,
            node: &self.me,
            deadline: Instant::now() + deadline,
            memory: self.memory.clone(),
        }
    }

    /// A request of a pod on this node that begins now.
    pub(crate) fn ask(&self, pod: &str, container: &str) -> Add {
        Add {
            caller: Caller {
                cluster: self.me.cluster.clone(),
                node: self.me.node.clone(),
                labels: self.me.labels.clone(),
                network: NetworkName::new("lan").unwrap(),
                holder: holder(pod),
            },
            container: ContainerId::new(container).unwrap(),
            ifname: IfName::new("eth0").unwrap(),
            uid: None,
            asked: None,
            requested: Vec::new(),
            requested_by: "annotation leasehold.io/ip".into(),
            sticky: None,
            inline: None,
            routes: None,
            dns: None,
            avoid_first: false,
            started: self.clock.boot_clock(),
        }
    }

    pub(crate) async fn run(&self, request: &Add) -> Result<Added, Refusal> {
        ops::add(&self.context(ADD_DEADLINE), request).await
    }

    pub(crate) async fn add(&self, pod: &str, container: &str) -> Result<Added, Refusal> {
        self.run(&self.ask(pod, container)).await
    }

    /// An ADD that must succeed, and its addresses.
    #[track_caller]
    pub(crate) fn gets(&self, pod: &str, container: &str) -> impl Future<Output = String> {
        let request = self.ask(pod, container);
        async move { addresses(&self.run(&request).await.unwrap()) }
    }

    pub(crate) async fn refused(&self, request: &Add) -> String {
        self.run(request).await.unwrap_err().to_string()
    }

    pub(crate) fn end_of(&self, pod: Option<&str>, container: &str) -> Del {
        Del {
            cluster: self.me.cluster.clone(),
            node: self.me.node.clone(),
            network: NetworkName::new("lan").unwrap(),
            container: ContainerId::new(container).unwrap(),
            ifname: IfName::new("eth0").unwrap(),
            holder: pod.map(holder),
        }
    }

    pub(crate) async fn try_del(&self, pod: Option<&str>, container: &str) -> Result<End, Refusal> {
        ops::del(&self.context(Duration::from_secs(5)), &self.end_of(pod, container), "DEL").await
    }

    /// A DEL that must succeed: did it end a lease?
    pub(crate) async fn del(&self, pod: &str, container: &str) -> bool {
        self.try_del(Some(pod), container).await.unwrap().lease.is_some()
    }

    pub(crate) async fn gc(&self, valid: &[&str]) -> Result<(), Refusal> {
        let valid: BTreeSet<(ContainerId, IfName)> = valid
            .iter()
            .map(|container| (ContainerId::new(*container).unwrap(), IfName::new("eth0").unwrap()))
            .collect();
        let network = NetworkName::new("lan").unwrap();
        ops::collect(&self.context(Duration::from_secs(5)), &network, &valid).await
    }
}

/// The store, and what people did to it.
pub(crate) struct World {
    pub(crate) store: MemoryStore,
    began: Instant,
    nodes: AtomicU64,
}

impl World {
    pub(crate) fn new(pools: &[PoolDocument]) -> Self {
        Self::of(MemoryStore::new(), pools)
    }

    pub(crate) fn of(store: MemoryStore, pools: &[PoolDocument]) -> Self {
        let world = Self { store, began: Instant::now(), nodes: AtomicU64::new(0) };
        world.store.put(&keys::meta(), record::encode_meta(&Meta { store: StoreId::new("s1").unwrap() }));
        let cluster = record::Cluster { uid: Uid::new("kube-system").unwrap(), last_reap: None };
        world
            .store
            .put(&keys::cluster(&ClusterName::new("prod").unwrap()), record::encode_cluster(&cluster, None));
        for pool in pools {
            world.apply(pool);
        }
        world
    }

    /// A person applies a pool document, past all actors.
    pub(crate) fn apply(&self, document: &PoolDocument) {
        let pool = Pool::from_draft(&Draft::from(document)).unwrap();
        for key in self.store.dump().into_keys() {
            if keys::parse_serve(&key).is_some_and(|(_, name)| name == *pool.name()) {
                self.store.delete(&key);
            }
        }
        for write in changes::apply_pool(document, &pool, None, &[]).writes {
            match write {
                Write::Put(key, value) => self.store.put(&key, value),
                Write::Delete(key) => self.store.delete(&key),
                Write::If(..) => panic!("a pool's keys have no condition"),
            }
        }
    }

    pub(crate) fn delete_pool(&self, name: &str) {
        let name = PoolName::new(name).unwrap();
        for key in self.store.dump().into_keys() {
            if keys::parse_serve(&key).is_some_and(|(_, pool)| pool == name) {
                self.store.delete(&key);
            }
        }
        self.store.delete(&keys::pool(&name));
    }

    pub(crate) fn freeze(&self, why: &str) {
        let at = Timestamp(0);
        let frozen = record::Frozen { why: why.into(), by: "a person".into(), at };
        self.store.put(&keys::frozen(), record::encode_frozen(&frozen));
    }

    pub(crate) fn node(&self, name: &str) -> Node {
        let n = self.nodes.fetch_add(1, Ordering::Relaxed);
        Node {
            way: FaultyStore::new(self.store.clone()),
            wire: Ear::default(),
            clock: TestClock {
                began: self.began,
                skew: AtomicI64::new(0),
                ticks: AtomicU64::new(n * 1000),
                chance: AtomicU64::new(n.wrapping_mul(0x1234_5678_9ABC_DEF1)),
            },
            trail: Trail::default(),
            me: Identity {
                cluster: ClusterName::new("prod").unwrap(),
                node: NodeName::new(name).unwrap(),
                labels: Vec::new(),
                boot: Some(BootId::new(format!("boot-{name}")).unwrap()),
                sticky_kinds: vec!["StatefulSet.apps".into()],
                add_deadline: ADD_DEADLINE,
            },
            memory: Memory::default(),
        }
    }

    fn entry(&self, key: &Key) -> Option<Entry> {
        let span = Span { from: key.as_str().into(), to: format!("{key}\0") };
        // The store answers at once: nothing is waited for.
        let read = [Read::list(span)];
        let future = self.store.read(&read, None);
        futures_now(future).unwrap().entry(0).cloned()
    }

    pub(crate) fn lease(&self, pod: &str) -> Option<Stored<Lease>> {
        self.entry(&keys::lease(&id(pod))).map(|entry| record::decode_lease(&entry).unwrap())
    }

    pub(crate) fn apply_txn(&self, txn: &Txn) -> Outcome {
        futures_now(self.store.commit(txn)).unwrap()
    }

    /// The reaper's proof that this pod, its node and its controller are gone, and the lease that it is of.
    pub(crate) fn judge(&self, pod: &str) -> (Confirmed, Stored<Lease>) {
        const YEAR_MS: i64 = 365 * 24 * 3_600_000;
        let policy = Policy::default();
        let mut rules = PoolPolicy::default();
        rules.retention.hold_for = Duration::from_secs(60);
        // The first verdict only notes what is missed.
        for year in 1..=2 {
            let seen = self.lease(pod).unwrap();
            let case = Case {
                lease: &seen.value,
                cluster: &seen.value.id.cluster,
                pools: Answer::Present(rules),
                pod: Answer::Absent,
                node: Answer::Absent,
                controller: Answer::Absent,
            };
            let now = Timestamp(1_700_000_000_000 + year * YEAR_MS);
            match reap::verdict(&case, &policy, now) {
                Verdict::Give(give) => {
                    return (reap::confirm(&give, &case, &[], &policy, now).unwrap(), seen);
                }
                Verdict::Note(_, note) => {
                    let noted = changes::note(&seen, &note.write(&seen.value));
                    assert!(matches!(self.apply_txn(&noted), Outcome::Applied(_)));
                }
                Verdict::Keep(kept) => panic!("{kept:?}"),
            }
        }
        panic!("{pod} is still kept")
    }

    /// The reaper ends what it has judged. False: it has changed since.
    pub(crate) fn reap(&self, (confirmed, seen): &(Confirmed, Stored<Lease>)) -> bool {
        let txn = changes::reap(confirmed, seen, Timestamp(1_700_000_000_000)).unwrap();
        matches!(self.apply_txn(&txn), Outcome::Applied(_))
    }

    /// Every lease, address, released key and attachment, in short words, one a line.
    pub(crate) fn show(&self) -> String {
        let mut lines = Vec::new();
        for (key, value) in self.store.dump() {
            let entry = Entry { key: key.clone(), value, revision: Revision(1) };
            if let Some(id) = keys::parse_lease(&key) {
                let Ok(Stored { value: lease, .. }) = record::decode_lease(&entry) else {
                    lines.push(format!("L {} invalid", id.holder));
                    continue;
                };
                let mut line = format!("L {} {}", id.holder, lease.state().as_str());
                for held in &lease.addresses {
                    line += &format!(" {}", held.address);
                }
                if let Some(stamp) = lease.last() {
                    line += &format!(" {} on {}", stamp.container, stamp.node);
                }
                for (set, word) in [
                    (lease.sticky, " sticky"),
                    (lease.reserved, " reserved"),
                    (lease.unconfirmed, " unconfirmed"),
                ] {
                    if set {
                        line += word;
                    }
                }
                lines.push(line);
            } else if let Some((_, address)) = keys::parse_held(&key) {
                lines.push(match record::decode_address(&entry) {
                    Ok(AddressHolder::Lease(id)) => format!("A {address} {}", id.holder),
                    Ok(AddressHolder::Device { reason, .. }) => format!("A {address} device {reason}"),
                    Err(_) => format!("A {address} invalid"),
                });
            } else if let Some((_, address)) = keys::parse_released(&key) {
                let Ok(Stored { value: released, .. }) = record::decode_released(&entry) else {
                    lines.push(format!("R {address} invalid"));
                    continue;
                };
                let mut line = format!("R {address} by {}", released.by);
                if released.unconfirmed {
                    line += " unconfirmed";
                }
                if let Some(declined) = &released.declined {
                    line += &format!(" declined {}", declined.mac);
                }
                lines.push(line);
            } else if let Some(attachment) = keys::parse_attachment(&key) {
                let pod = record::decode_pointer(&entry).map_or("invalid".into(), |id| id.holder.to_string());
                lines.push(format!("T {} on {} {pod}", attachment.container, attachment.node));
            }
        }
        lines.join("\n")
    }

    /// The invariants of the store.
    #[track_caller]
    pub(crate) fn audit(&self) {
        let faults = faults(&self.store);
        assert!(faults.is_empty(), "{faults:#?}\n{}", self.show());
    }
}

/// What is wrong with a store's content: the invariants of the design, checked plainly. Records that cannot be read
/// are nothing wrong.
pub(crate) fn faults(store: &MemoryStore) -> Vec<String> {
    let dump = store.dump();
    let entry = |key: &Key| {
        dump.get(key).map(|v| Entry { key: key.clone(), value: v.clone(), revision: Revision(1) })
    };
    let mut out = Vec::new();
    let mut pools = Vec::new();
    for key in dump.keys() {
        if keys::parse_pool(key).is_some() {
            pools.extend(record::decode_pool(&entry(key).unwrap()).map(|stored| stored.value));
        }
    }
    for key in dump.keys() {
        let entry_here = entry(key).unwrap();
        if let Some(id) = keys::parse_lease(key) {
            let Ok(Stored { value: lease, .. }) = record::decode_lease(&entry_here) else { continue };
            for held in &lease.addresses {
                let address = keys::address(&held.domain, held.address);
                match entry(&address).map(|e| record::decode_address(&e)) {
                    Some(Ok(AddressHolder::Lease(named))) if named == id => {}
                    other => out.push(format!("1: {id} lists {}, its key says {other:?}", held.address)),
                }
                let pool = held.pool.as_ref().and_then(|name| pools.iter().find(|p| p.name() == name));
                if pool.is_some_and(|pool| *pool.domain() != held.domain) {
                    out.push(format!("4: {id} is in another domain than its pool"));
                }
            }
            if let Some(stamp) = lease.bound()
                && !dump.contains_key(&changes::attachment_key(&id, stamp))
            {
                out.push(format!("2: {id} is bound and has no attachment"));
            }
        } else if let Some((domain, address)) = keys::parse_held(key) {
            if dump.contains_key(&keys::released(&domain, address)) {
                out.push(format!("3: {address} has both keys"));
            }
            if let Ok(AddressHolder::Lease(id)) = record::decode_address(&entry_here) {
                let lists = entry(&keys::lease(&id)).is_some_and(|e| match record::decode_lease(&e) {
                    Ok(lease) => {
                        lease.value.addresses.iter().any(|a| a.address == address && a.domain == domain)
                    }
                    Err(_) => true,
                });
                if !lists {
                    out.push(format!("1: {address} names {id}, which does not list it"));
                }
            }
        } else if let Some(attachment) = keys::parse_attachment(key) {
            let Ok(id) = record::decode_pointer(&entry_here) else { continue };
            let right = entry(&keys::lease(&id)).is_some_and(|e| match record::decode_lease(&e) {
                Ok(lease) => lease.value.bound().is_some_and(|s| changes::attachment_key(&id, s) == *key),
                Err(_) => true,
            });
            if !right {
                out.push(format!("2: stranded attachment {attachment:?}"));
            }
        } else if let Some((serve, name)) = keys::parse_serve(key)
            && !pools.iter().any(|pool| *pool.name() == name && pool.serves().contains(&serve))
        {
            out.push(format!("6: the index says that {name} serves {serve}"));
        }
    }
    out
}

/// Runs a future that waits for nobody.
pub(crate) fn futures_now<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn holder(text: &str) -> Holder {
    match text.split_once('/') {
        Some((namespace, name)) if namespace != "_" => {
            Holder::Pod { namespace: Namespace::new(namespace).unwrap(), name: PodName::new(name).unwrap() }
        }
        Some((_, container)) => Holder::Container(ContainerId::new(container).unwrap()),
        None => Holder::Container(ContainerId::new(text).unwrap()),
    }
}

pub(crate) fn id(pod: &str) -> LeaseId {
    LeaseId {
        cluster: ClusterName::new("prod").unwrap(),
        holder: holder(pod),
        network: NetworkName::new("lan").unwrap(),
        ifname: IfName::new("eth0").unwrap(),
    }
}

pub(crate) fn asked(pools: &[&str]) -> Option<Asked> {
    let pools = pools.iter().map(|name| PoolName::new(*name).unwrap()).collect();
    Some(Asked { pools, by: "annotation leasehold.io/pool".into() })
}

pub(crate) fn addresses(added: &Added) -> String {
    added.answer.addresses.iter().map(|a| a.address.to_string()).collect::<Vec<_>>().join(" ")
}

/// A pool of network `lan` that serves everything, with one range: `10.0.0.0/24 10-13` is R4 of the field cases.
pub(crate) fn pool(name: &str, ranges: &[&str]) -> PoolDocument {
    PoolDocument {
        name: name.into(),
        networks: vec!["lan".into()],
        serves: vec!["*/*".into()],
        ranges: ranges.iter().map(|text| range(text)).collect(),
        ..PoolDocument::default()
    }
}

/// `SUBNET START-END`, or a subnet alone.
pub(crate) fn range(text: &str) -> RangeDocument {
    let (subnet, bounds) = text.split_once(' ').map_or((text, None), |(s, b)| (s, Some(b)));
    let (start, end) = bounds.and_then(|b| b.split_once('-')).unzip();
    RangeDocument {
        subnet: subnet.into(),
        start: start.map(Into::into),
        end: end.map(Into::into),
        ..RangeDocument::default()
    }
}

pub(crate) fn draft(text: &str) -> RangeDraft {
    let RangeDocument { subnet, start, end, gateway, exclude } = range(text);
    RangeDraft { subnet, start, end, gateway, exclude }
}

/// A key of the store in one letter and what tells it from its kind.
fn short(key: &Key) -> String {
    if let Some(id) = keys::parse_lease(key) {
        format!("L({})", id.holder)
    } else if let Some((_, address)) = keys::parse_held(key) {
        format!("A({address})")
    } else if let Some((_, address)) = keys::parse_released(key) {
        format!("R({address})")
    } else if let Some(attachment) = keys::parse_attachment(key) {
        format!("T({})", attachment.container)
    } else if let Some(name) = keys::parse_pool(key) {
        format!("P({name})")
    } else if let Some((serve, name)) = keys::parse_serve(key) {
        format!("S({serve} {name})")
    } else if *key == keys::frozen() {
        "F".into()
    } else {
        key.to_string()
    }
}

fn one(write: &Write) -> String {
    match write {
        Write::Put(key, _) => format!("put {}", short(key)),
        Write::Delete(key) => format!("del {}", short(key)),
        Write::If(compare, parts) => {
            let Compare::Value(key, _) = compare else { panic!("{compare:?}") };
            let parts: Vec<String> = parts.iter().map(one).collect();
            format!("[{}=own: {}]", short(key), parts.join(", "))
        }
    }
}

/// A transaction as a line of the design's table.
pub(crate) fn line(txn: &Txn) -> String {
    let mut compares: Vec<String> = txn
        .compares
        .iter()
        .map(|compare| match compare {
            Compare::Absent(key) => format!("{}=0", short(key)),
            Compare::Unchanged(key, _) => format!("{}=r", short(key)),
            Compare::Value(key, _) => format!("{}=value", short(key)),
            Compare::NoneSince(span, _) => format!("none since in {}", span.from),
        })
        .collect();
    let mut writes: Vec<String> = txn.writes.iter().map(one).collect();
    compares.sort();
    writes.sort();
    format!("{} | {}", compares.join(" "), writes.join(" "))
}

/// Chance that is the same in every run: xorshift64*.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from((self.next() >> 16) % u64::try_from(end).unwrap()).unwrap()
    }
}
