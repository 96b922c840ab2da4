//! Stores for tests: one in memory that is stricter than etcd, one that fails as it is told, and the suite that
//! every store passes.
//!
//! - [`MemoryStore`] is the contract, and nothing that only one store happens to allow.
//! - [`FaultyStore`] stands for one actor's way to the store. Give each actor its own, around clones of one
//!   [`MemoryStore`]: calls are counted by actor, and a message that is held back outlives the actor.
//! - [`suite!`](crate::suite) makes one test of each body in [`suite`].
//!
//! A commit is a message: it may be applied at any time after it was sent, also after its sender gave up or died.
//! The three ways to write that down:
//!
//! | what happens | plan |
//! |---|---|
//! | the sender waits, others act, then it is applied | [`Fault::InFlight`], [`FaultyStore::deliver`] |
//! | the sender gives up, then it is applied | [`Fault::Late`], [`FaultyStore::deliver`] |
//! | the sender is killed, then it is applied | [`Fault::InFlight`], abort the task, [`FaultyStore::deliver`] |

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{oneshot, watch};

use super::{
    Compare, Entry, Fill, Found, Key, Outcome, Read, Revision, Snapshot, Span, Store, StoreError, Txn,
    Upkeep, Write,
};

/// The most compares, writes or reads in one transaction: etcd's `--max-txn-ops`.
pub const MAX_OPERATIONS: usize = 128;
/// The most bytes in one request: etcd's `--max-request-bytes`.
pub const MAX_BYTES: usize = 1_572_864;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---- in memory

/// What a store was asked so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Asked {
    /// Calls of `read`.
    pub reads: usize,
    /// Calls of `commit`.
    pub commits: usize,
    /// Commits that were applied.
    pub applied: usize,
    /// Keys that the server walked, counts included.
    pub walked: usize,
    /// Bytes of keys and values in the answers.
    pub answered: usize,
}

/// The contract in memory. A clone is the same store; [`fork`](Self::fork) is another with the same content.
#[derive(Clone, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
}

/// What a key was since which revision, oldest first; `None` is a deletion.
type Versions = Vec<(i64, Option<Vec<u8>>)>;

#[derive(Clone)]
struct State {
    revision: i64,
    compacted: i64,
    keys: BTreeMap<Key, Versions>,
    log: Vec<(Txn, bool)>,
    asked: Asked,
    /// Where tasks take turns: a xorshift state, or one turn each time.
    jitter: Option<u64>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            revision: 1,
            compacted: 0,
            keys: BTreeMap::new(),
            log: Vec::new(),
            asked: Asked::default(),
            jitter: None,
        }
    }
}

impl State {
    fn current(&self, key: &Key) -> Option<(i64, &[u8])> {
        let (revision, value) = self.keys.get(key)?.last()?;
        Some((*revision, value.as_deref()?))
    }

    fn inside(&self, span: &Span) -> impl Iterator<Item = (&Key, &Versions)> {
        // An interval that runs backwards is empty.
        let to = span.to.clone().max(span.from.clone());
        self.keys.range(Key::new(span.from.clone())..Key::new(to))
    }

    fn inside_at(&self, span: &Span, at: i64) -> impl Iterator<Item = (&Key, i64, &[u8])> {
        self.inside(span).filter_map(move |(key, versions)| {
            let (revision, value) = versions.iter().rev().find(|(revision, _)| *revision <= at)?;
            Some((key, *revision, value.as_deref()?))
        })
    }

    fn answer(&mut self, read: &Read, at: i64) -> Found {
        let entry = |(key, revision, value): (&Key, i64, &[u8]), keys_only: bool| Entry {
            key: key.clone(),
            value: if keys_only { Vec::new() } else { value.to_vec() },
            revision: Revision(revision),
        };
        let (found, walked) = match read {
            Read::Get(key) => {
                let only = Span { from: key.as_str().to_owned(), to: format!("{key}\0") };
                (Found::Entries(self.inside_at(&only, at).map(|found| entry(found, false)).collect()), 1)
            }
            Read::List { span, keys_only, limit } => {
                let limit = limit.map_or(usize::MAX, |limit| limit as usize);
                // The server counts the whole interval whatever the limit.
                let walked = self.inside_at(span, at).count();
                let found = self.inside_at(span, at).take(limit).map(|found| entry(found, *keys_only));
                (Found::Entries(found.collect()), walked)
            }
            Read::Count(span) => {
                let count = self.inside_at(span, at).count();
                (Found::Count(count as u64), count)
            }
        };
        self.asked.walked += walked;
        if let Found::Entries(entries) = &found {
            self.asked.answered +=
                entries.iter().map(|entry| entry.key.as_str().len() + entry.value.len()).sum::<usize>();
        }
        found
    }

    fn snapshot(&mut self, reads: &[Read], at: Option<Revision>) -> Result<Snapshot, StoreError> {
        let revision = at.map_or(self.revision, |at| at.0);
        if revision < self.compacted {
            return Err(StoreError::Compacted(Revision(revision)));
        }
        assert!(
            (1..=self.revision).contains(&revision),
            "read at revision {revision}, but the store is at {}: whose revision is that?",
            self.revision
        );
        let found = reads.iter().map(|read| self.answer(read, revision)).collect();
        Ok(Snapshot { revision: Revision(if at.is_some() { revision } else { self.revision }), found })
    }

    fn holds(&self, compare: &Compare) -> bool {
        match compare {
            Compare::Absent(key) => self.current(key).is_none(),
            Compare::Unchanged(key, revision) => {
                self.current(key).is_some_and(|(current, _)| current == revision.0)
            }
            Compare::Value(key, value) => self.current(key).is_some_and(|(_, current)| current == value),
            Compare::NoneSince(span, revision) => {
                self.inside_at(span, self.revision).all(|(_, written, _)| written <= revision.0)
            }
        }
    }

    fn apply(&mut self, txn: &Txn) -> Outcome {
        self.asked.commits += 1;
        let holds = txn.compares.iter().all(|compare| self.holds(compare));
        self.log.push((txn.clone(), holds));
        if !holds {
            let revision = self.revision;
            let found = txn.otherwise.iter().map(|read| self.answer(read, revision)).collect();
            return Outcome::Conflict(Snapshot { revision: Revision(revision), found });
        }
        self.asked.applied += 1;
        let next = self.revision + 1;
        let left_out = |write: &&Write| !matches!(write, Write::If(compare, _) if !self.holds(compare));
        let writes: Vec<&Write> = txn.writes.iter().filter(left_out).flat_map(Write::parts).collect();
        for write in writes {
            let (key, value) = match write {
                Write::Put(key, value) => (key, Some(value.clone())),
                // The deletion of what is not there is no write: the revision stays.
                Write::Delete(key) if self.current(key).is_none() => continue,
                Write::Delete(key) => (key, None),
                Write::If(..) => panic!("a condition inside a condition"),
            };
            self.keys.entry(key.clone()).or_default().push((next, value));
            self.revision = next;
        }
        Outcome::Applied(Revision(self.revision))
    }

    fn turns(&mut self) -> u64 {
        let Some(seed) = &mut self.jitter else { return 1 };
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed % 5
    }
}

fn check_reads(reads: &[Read]) {
    assert!(reads.len() <= MAX_OPERATIONS, "{} reads in one call, etcd takes {MAX_OPERATIONS}", reads.len());
    for read in reads {
        match read {
            Read::Get(key) => assert!(!key.as_str().is_empty(), "a read of an empty key"),
            Read::List { span, limit, .. } => {
                assert!(*limit != Some(0), "a list of {span:?} with limit 0: for etcd that is no limit");
                assert!(!span.from.is_empty(), "an interval from the empty key: {span:?}");
            }
            Read::Count(span) => assert!(!span.from.is_empty(), "an interval from the empty key: {span:?}"),
        }
    }
}

fn check_txn(txn: &Txn) {
    let most = MAX_OPERATIONS;
    assert!(txn.compares.len() <= most, "{} compares in one txn, etcd takes {most}", txn.compares.len());
    assert!(txn.writes.len() <= most, "{} writes in one txn, etcd takes {most}", txn.writes.len());
    check_reads(&txn.otherwise);
    let mut written = BTreeSet::new();
    let mut bytes = 0;
    for write in txn.writes.iter().flat_map(Write::parts) {
        let Some(key) = write.key() else { panic!("a condition inside a condition") };
        assert!(!key.as_str().is_empty(), "a write of an empty key");
        assert!(written.insert(key), "{key} is written twice in one txn, etcd refuses that");
        bytes += key.as_str().len();
        if let Write::Put(_, value) = write {
            bytes += value.len();
        }
    }
    for compare in &txn.compares {
        match compare {
            Compare::Absent(_) => {}
            Compare::Unchanged(key, revision) => {
                assert!(revision.0 > 0, "{key} compared with revision {}: say Absent", revision.0);
            }
            Compare::Value(_, value) => bytes += value.len(),
            Compare::NoneSince(span, revision) => {
                assert!(revision.0 > 0, "{span:?} compared with revision {}: read first", revision.0);
            }
        }
    }
    assert!(bytes <= MAX_BYTES, "{bytes} bytes in one txn, etcd takes {MAX_BYTES}");
}

impl MemoryStore {
    /// An empty store. Each call lets the other tasks of the runtime take one turn before and one after it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Each call lets the other tasks take a number of turns drawn from this seed.
    #[must_use]
    pub fn with_jitter(seed: u64) -> Self {
        let store = Self::new();
        lock(&store.state).jitter = Some(seed | 1);
        store
    }

    /// A store restored from a dump: the content is the same, revisions begin anew and come again.
    #[must_use]
    pub fn restored(dump: BTreeMap<Key, Vec<u8>>) -> Self {
        let store = Self::new();
        {
            let mut state = lock(&store.state);
            state.revision += 1;
            let revision = state.revision;
            state.keys = dump.into_iter().map(|(key, value)| (key, vec![(revision, Some(value))])).collect();
        }
        store
    }

    /// Another store with the content, the history and the revisions of this one.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self { state: Arc::new(Mutex::new(lock(&self.state).clone())) }
    }

    /// Takes back everything since the fork, for all clones: a restore of the store in place.
    pub fn become_like(&self, other: &Self) {
        let other = lock(&other.state).clone();
        *lock(&self.state) = other;
    }

    /// All keys and values.
    #[must_use]
    pub fn dump(&self) -> BTreeMap<Key, Vec<u8>> {
        let state = lock(&self.state);
        let current = |key: &Key| state.current(key).map(|(_, value)| (key.clone(), value.to_vec()));
        state.keys.keys().filter_map(current).collect()
    }

    /// Each commit that came, and whether it was applied.
    #[must_use]
    pub fn log(&self) -> Vec<(Txn, bool)> {
        lock(&self.state).log.clone()
    }

    /// Empties the log and sets the counters to zero.
    pub fn forget(&self) {
        let mut state = lock(&self.state);
        state.log.clear();
        state.asked = Asked::default();
    }

    /// What was asked since the start, or since [`forget`](Self::forget).
    #[must_use]
    pub fn asked(&self) -> Asked {
        lock(&self.state).asked
    }

    /// The store's revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        Revision(lock(&self.state).revision)
    }

    /// Writes past all actors: neither counted nor logged.
    pub fn put(&self, key: &Key, value: impl Into<Vec<u8>>) {
        let mut state = lock(&self.state);
        state.revision += 1;
        let revision = state.revision;
        state.keys.entry(key.clone()).or_default().push((revision, Some(value.into())));
    }

    /// Deletes past all actors: neither counted nor logged.
    pub fn delete(&self, key: &Key) {
        let mut state = lock(&self.state);
        if state.current(key).is_some() {
            state.revision += 1;
            let revision = state.revision;
            state.keys.entry(key.clone()).or_default().push((revision, None));
        }
    }

    /// Forgets all history before this revision, which itself can still be read.
    pub fn compact(&self, at: Revision) {
        let mut state = lock(&self.state);
        assert!(at.0 <= state.revision, "compaction at {}, the store is at {}", at.0, state.revision);
        state.compacted = state.compacted.max(at.0);
        state.keys.retain(|_, versions| {
            let old = versions.iter().take_while(|(revision, _)| *revision <= at.0).count();
            versions.drain(..old.saturating_sub(1));
            !matches!(versions.as_slice(), [(revision, None)] if *revision <= at.0)
        });
    }

    async fn take_turns(&self) {
        let turns = lock(&self.state).turns();
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: Vec<u8>| String::from_utf8_lossy(&value).into_owned();
        f.debug_map().entries(self.dump().into_iter().map(|(key, value)| (key, text(value)))).finish()
    }
}

impl Store for MemoryStore {
    async fn read(&self, reads: &[Read], at: Option<Revision>) -> Result<Snapshot, StoreError> {
        check_reads(reads);
        self.take_turns().await;
        let found = {
            let mut state = lock(&self.state);
            state.asked.reads += 1;
            state.snapshot(reads, at)
        };
        self.take_turns().await;
        found
    }

    async fn commit(&self, txn: &Txn) -> Result<Outcome, StoreError> {
        check_txn(txn);
        self.take_turns().await;
        let outcome = lock(&self.state).apply(txn);
        self.take_turns().await;
        Ok(outcome)
    }
}

// ---- with faults

/// What becomes of one call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// Not reached: nothing was sent.
    NotReached,
    /// Refused before it was proposed.
    Refused,
    /// A commit: unanswered, and never applied. A read: not reached.
    Lost,
    /// A commit: applied, and its answer is lost. A read: not reached.
    AnswerLost,
    /// A commit: unanswered now, and held back until [`FaultyStore::deliver`]. A read: not reached.
    Late,
    /// Sent; the answer comes when [`FaultyStore::deliver`] has let it arrive, to whoever still waits then.
    InFlight,
    /// Like any other, after this long.
    Delay(Duration),
    /// A read: the revision is compacted. A commit: not reached.
    Compacted,
}

/// Which call of an actor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum On {
    /// The n-th call, reads and commits counted, from 0.
    Call(usize),
    /// The n-th read, from 0.
    Read(usize),
    /// The n-th commit, from 0.
    Commit(usize),
    /// This call and all after it.
    From(usize),
    /// Every commit.
    Commits,
}

/// A call about to be made.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Its number among all calls of the actor, from 0.
    pub number: usize,
    /// Its number among its own kind, from 0.
    pub of_kind: usize,
    /// What is committed; none for a read.
    pub txn: Option<&'a Txn>,
}

impl On {
    fn meets(self, call: &Call<'_>) -> bool {
        match self {
            Self::Call(n) => call.number == n,
            Self::Read(n) => call.txn.is_none() && call.of_kind == n,
            Self::Commit(n) => call.txn.is_some() && call.of_kind == n,
            Self::From(n) => call.number >= n,
            Self::Commits => call.txn.is_some(),
        }
    }
}

/// Before the call is made, or after its answer came and before the actor sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// Nothing was sent yet.
    Before,
    /// The store has done it; the actor does not know yet.
    After,
}

type Hook = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;
type Decide = Box<dyn FnMut(&Call<'_>) -> Option<Fault> + Send>;

/// One actor's way to a store, with a plan of what goes wrong. A clone is the same way and the same plan.
#[derive(Clone)]
pub struct FaultyStore<S> {
    store: S,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Default)]
struct Plan {
    calls: usize,
    reads: usize,
    commits: usize,
    faults: Vec<(On, Fault)>,
    decide: Option<Decide>,
    hooks: Vec<(On, Side, Hook)>,
    sent: Vec<Txn>,
    held: Vec<Held>,
}

struct Held {
    /// None for a read.
    txn: Option<Txn>,
    delivered: bool,
    /// Lets the sender go on, if it is still there; with the answer, if it is a commit.
    answer: Option<oneshot::Sender<Option<Result<Outcome, StoreError>>>>,
}

/// Holds an actor at one point of its run.
pub struct Gate {
    reached: watch::Receiver<bool>,
    open: watch::Sender<bool>,
}

impl Gate {
    /// Waits until the actor stands at the gate.
    pub async fn reached(&mut self) {
        let _ = self.reached.wait_for(|reached| *reached).await;
    }

    /// Does the actor stand at the gate, or has it been there?
    #[must_use]
    pub fn is_reached(&self) -> bool {
        *self.reached.borrow()
    }

    /// Lets the actor go on. A gate that is dropped opens, too.
    pub fn resume(&self) {
        self.open.send_replace(true);
    }
}

/// What the errors of a [`FaultyStore`] name as their endpoint.
pub const ENDPOINT: &str = "https://store.test:2379";

fn not_reached() -> StoreError {
    StoreError::NotReached { reason: format!("{ENDPOINT}: connection refused") }
}

fn unanswered() -> StoreError {
    StoreError::Unanswered {
        endpoint: ENDPOINT.into(),
        waited: Duration::from_secs(2),
        reason: "no answer".into(),
    }
}

impl<S: Store> FaultyStore<S> {
    /// A way on which nothing goes wrong yet.
    pub fn new(store: S) -> Self {
        Self { store, plan: Arc::default() }
    }

    /// The store at the end of the way.
    pub const fn inner(&self) -> &S {
        &self.store
    }

    /// Plans a fault. The first that was planned for a call wins.
    pub fn fail(&self, on: On, fault: Fault) -> &Self {
        lock(&self.plan).faults.push((on, fault));
        self
    }

    /// Asks for each call that no planned fault meets.
    pub fn decide(&self, decide: impl FnMut(&Call<'_>) -> Option<Fault> + Send + 'static) -> &Self {
        lock(&self.plan).decide = Some(Box::new(decide));
        self
    }

    /// From here on nothing goes wrong; what is held back stays so, counters go on.
    pub fn heal(&self) -> &Self {
        let mut plan = lock(&self.plan);
        plan.faults.clear();
        plan.decide = None;
        plan.hooks.clear();
        drop(plan);
        self
    }

    /// Lets somebody else act at this point. Once.
    pub fn at<F, Fut>(&self, on: On, side: Side, act: F) -> &Self
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        lock(&self.plan).hooks.push((on, side, Box::new(move || Box::pin(act()))));
        self
    }

    /// Holds the actor at this point until the gate is opened.
    #[must_use]
    pub fn pause(&self, on: On, side: Side) -> Gate {
        let (reached, is_reached) = watch::channel(false);
        let (open, mut is_open) = watch::channel(false);
        self.at(on, side, move || async move {
            reached.send_replace(true);
            let _ = is_open.wait_for(|open| *open).await;
        });
        Gate { reached: is_reached, open }
    }

    /// How many calls were made: the number of the next one.
    #[must_use]
    pub fn calls(&self) -> usize {
        lock(&self.plan).calls
    }

    /// How many commits were sent or tried.
    #[must_use]
    pub fn commits(&self) -> usize {
        lock(&self.plan).commits
    }

    /// Every commit of this actor, in its order, whatever became of it.
    #[must_use]
    pub fn sent(&self) -> Vec<Txn> {
        lock(&self.plan).sent.clone()
    }

    /// How many messages were ever held back: the number of the next one.
    #[must_use]
    pub fn held(&self) -> usize {
        lock(&self.plan).held.len()
    }

    /// Lets the held message arrive now, also if its sender is gone; how the commit ended, if it is one.
    ///
    /// # Panics
    /// If no such message is held, or it was delivered before.
    pub async fn deliver(&self, index: usize) -> Option<Outcome> {
        let (txn, answer) = {
            let mut plan = lock(&self.plan);
            let count = plan.held.len();
            let Some(held) = plan.held.get_mut(index) else {
                panic!("message {index} of {count} held back was to be delivered")
            };
            assert!(!held.delivered, "message {index} was delivered before");
            held.delivered = true;
            (held.txn.take(), held.answer.take())
        };
        let result = match &txn {
            Some(txn) => Some(self.store.commit(txn).await),
            None => None,
        };
        if let Some(answer) = answer {
            // The sender may be gone.
            let _ = answer.send(result.clone());
        }
        match result? {
            Ok(outcome) => Some(outcome),
            Err(error) => panic!("message {index} could not be delivered: {error}"),
        }
    }

    /// Lets all messages that are still held arrive, in the order in which they were sent.
    pub async fn deliver_all(&self) -> Vec<Option<Outcome>> {
        let mut outcomes = Vec::new();
        for index in 0..self.held() {
            let waiting = lock(&self.plan).held.get(index).is_some_and(|held| !held.delivered);
            if waiting {
                outcomes.push(self.deliver(index).await);
            }
        }
        outcomes
    }

    fn hold(&self, txn: Option<&Txn>) -> oneshot::Receiver<Option<Result<Outcome, StoreError>>> {
        let (answer, wait) = oneshot::channel();
        lock(&self.plan).held.push(Held { txn: txn.cloned(), delivered: false, answer: Some(answer) });
        wait
    }

    /// Counts the call, and says what becomes of it and who acts around it.
    fn begin(&self, txn: Option<&Txn>) -> (Option<Fault>, Vec<Hook>, Vec<Hook>) {
        let mut guard = lock(&self.plan);
        let plan = &mut *guard;
        let kind = if txn.is_some() { &mut plan.commits } else { &mut plan.reads };
        let call = Call { number: plan.calls, of_kind: *kind, txn };
        *kind += 1;
        plan.calls += 1;
        plan.sent.extend(txn.cloned());
        let planned = plan.faults.iter().find(|(on, _)| on.meets(&call)).map(|(_, fault)| *fault);
        let fault = planned.or_else(|| plan.decide.as_mut().and_then(|decide| decide(&call)));
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let mut rest = Vec::new();
        for (on, side, hook) in plan.hooks.drain(..) {
            match side {
                _ if !on.meets(&call) => rest.push((on, side, hook)),
                Side::Before => before.push(hook),
                Side::After => after.push(hook),
            }
        }
        plan.hooks = rest;
        (fault, before, after)
    }

    async fn faulty_read(
        &self,
        fault: Option<Fault>,
        reads: &[Read],
        at: Option<Revision>,
    ) -> Result<Snapshot, StoreError> {
        match fault {
            None => {}
            Some(Fault::NotReached | Fault::Lost | Fault::AnswerLost | Fault::Late) => {
                return Err(not_reached());
            }
            Some(Fault::Refused) => {
                return Err(StoreError::Refused {
                    endpoint: ENDPOINT.into(),
                    reason: "permission denied".into(),
                });
            }
            Some(Fault::Compacted) => {
                return Err(StoreError::Compacted(at.unwrap_or_default()));
            }
            Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(Fault::InFlight) => {
                self.hold(None).await.map_err(|_| not_reached())?;
            }
        }
        self.store.read(reads, at).await
    }

    async fn faulty_commit(&self, fault: Option<Fault>, txn: &Txn) -> Result<Outcome, StoreError> {
        match fault {
            None => {}
            Some(Fault::NotReached | Fault::Compacted) => return Err(not_reached()),
            Some(Fault::Refused) => {
                return Err(StoreError::Refused {
                    endpoint: ENDPOINT.into(),
                    reason: "permission denied".into(),
                });
            }
            Some(Fault::Lost) => return Err(unanswered()),
            Some(Fault::AnswerLost) => {
                let _ = self.store.commit(txn).await?;
                return Err(unanswered());
            }
            Some(Fault::Late) => {
                drop(self.hold(Some(txn)));
                return Err(unanswered());
            }
            Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(Fault::InFlight) => {
                return match self.hold(Some(txn)).await {
                    Ok(Some(result)) => result,
                    Ok(None) | Err(_) => Err(unanswered()),
                };
            }
        }
        self.store.commit(txn).await
    }
}

impl Upkeep for MemoryStore {
    async fn fill(&self) -> Option<Fill> {
        Some(Fill { size: 1 << 20, quota: Some(2 << 30), alarms: 0 })
    }

    async fn compact_to(&self, revision: Revision) -> Result<(), StoreError> {
        self.compact(revision);
        Ok(())
    }
}

impl<S: Store + Upkeep> Upkeep for FaultyStore<S> {
    async fn fill(&self) -> Option<Fill> {
        self.store.fill().await
    }

    async fn compact_to(&self, revision: Revision) -> Result<(), StoreError> {
        self.store.compact_to(revision).await
    }
}

impl<S: Store> Store for FaultyStore<S> {
    async fn read(&self, reads: &[Read], at: Option<Revision>) -> Result<Snapshot, StoreError> {
        let (fault, before, after) = self.begin(None);
        for hook in before {
            hook().await;
        }
        let result = self.faulty_read(fault, reads, at).await;
        for hook in after {
            hook().await;
        }
        result
    }

    async fn commit(&self, txn: &Txn) -> Result<Outcome, StoreError> {
        let (fault, before, after) = self.begin(Some(txn));
        for hook in before {
            hook().await;
        }
        let result = self.faulty_commit(fault, txn).await;
        for hook in after {
            hook().await;
        }
        result
    }
}

// ---- the suite

/// A store to test, and what must outlive it: a folder, a server.
pub struct Fixture<S> {
    /// An empty store.
    pub store: S,
    /// Dropped after the test.
    pub keep: Box<dyn std::any::Any + Send>,
}

impl<S> Fixture<S> {
    /// A store that needs nothing.
    pub fn of(store: S) -> Self {
        Self { store, keep: Box::new(()) }
    }
}

/// One test of each body in [`suite`](mod@crate::store::testing::suite), in a module of this name.
///
/// The constructor is an async function without arguments that returns `Option<Fixture<S>>`: an empty store, or
/// none where there cannot be one here; it then has printed why.
#[macro_export]
macro_rules! suite {
    ($name:ident, $constructor:path) => {
        $crate::suite!($name, $constructor,
            read_your_writes
            an_empty_store_answers
            one_revision_for_all_reads
            a_revision_is_that_of_the_last_write
            the_revision_grows_with_every_write
            what_changes_nothing_is_applied
            absent_and_deleted_are_the_same
            unchanged_is_the_last_write_only
            value_is_to_the_byte
            none_since_of_an_empty_interval
            none_since_of_keys_written_before_and_after
            none_since_does_not_see_deletions
            all_compares_or_nothing
            otherwise_is_read_at_its_revision
            put_after_delete_is_a_new_key
            lists_are_intervals_in_order
            lists_without_values_and_with_limits
            counts
            pages_meet_no_key_twice
            an_old_revision_is_as_it_was_or_compacted
            one_of_many_wins
            no_update_is_lost
            big_values
            any_bytes
            a_part_may_have_a_condition_of_its_own
            as_many_operations_as_etcd_takes
        );
    };
    ($name:ident, $constructor:path, $($body:ident)+) => {
        mod $name {
            $(
                #[tokio::test]
                async fn $body() {
                    let fixture: Option<$crate::store::testing::Fixture<_>> = $constructor().await;
                    let Some(fixture) = fixture else { return };
                    $crate::store::testing::suite::$body(::std::sync::Arc::new(fixture.store)).await;
                    drop(fixture.keep);
                }
            )+
        }
    };
}

/// What every store does. Each body wants an empty store.
pub mod suite {
    use std::{collections::BTreeMap, sync::Arc};

    use super::{
        Compare, Entry, Found, Key, MAX_OPERATIONS, Outcome, Read, Revision, Snapshot, Span, Store,
        StoreError, Txn, Write,
    };

    /// A store that tasks can share.
    pub trait Shared: Store + Send + Sync + 'static {}
    impl<S: Store + Send + Sync + 'static> Shared for S {}

    fn key(text: &str) -> Key {
        Key::new(format!("v1/{text}"))
    }

    fn put(name: &str, value: &str) -> Write {
        Write::Put(key(name), value.into())
    }

    fn delete(name: &str) -> Write {
        Write::Delete(key(name))
    }

    fn folder(name: &str) -> Span {
        Span::prefix(&format!("v1/{name}/"))
    }

    #[track_caller]
    fn ok<T>(result: Result<T, StoreError>) -> T {
        match result {
            Ok(value) => value,
            Err(error) => panic!("{error}"),
        }
    }

    #[track_caller]
    fn applied(outcome: Outcome) -> Revision {
        match outcome {
            Outcome::Applied(revision) => revision,
            Outcome::Conflict(snapshot) => panic!("not applied: {snapshot:?}"),
        }
    }

    #[track_caller]
    fn conflict(outcome: Outcome) -> Snapshot {
        match outcome {
            Outcome::Conflict(snapshot) => snapshot,
            Outcome::Applied(revision) => panic!("applied at {revision:?}"),
        }
    }

    async fn commit(store: &impl Store, compares: Vec<Compare>, writes: Vec<Write>) -> Outcome {
        ok(store.commit(&Txn { compares, writes, otherwise: Vec::new() }).await)
    }

    async fn write(store: &impl Store, writes: Vec<Write>) -> Revision {
        applied(commit(store, Vec::new(), writes).await)
    }

    async fn read(store: &impl Store, reads: Vec<Read>) -> Snapshot {
        ok(store.read(&reads, None).await)
    }

    async fn get(store: &impl Store, name: &str) -> Option<Entry> {
        read(store, vec![Read::Get(key(name))]).await.entry(0).cloned()
    }

    async fn text(store: &impl Store, name: &str) -> Option<String> {
        get(store, name).await.map(|entry| String::from_utf8_lossy(&entry.value).into_owned())
    }

    async fn holds(store: &impl Store, compare: Compare) -> bool {
        match commit(store, vec![compare], Vec::new()).await {
            Outcome::Applied(_) => true,
            Outcome::Conflict(_) => false,
        }
    }

    fn names(entries: &[Entry]) -> Vec<&str> {
        entries.iter().map(|entry| entry.key.as_str().trim_start_matches("v1/")).collect()
    }

    /// A commit is seen by the next read.
    pub async fn read_your_writes<S: Shared>(store: Arc<S>) {
        write(&*store, vec![put("a", "1"), put("b", "2")]).await;
        assert_eq!(text(&*store, "a").await.as_deref(), Some("1"));
        assert_eq!(text(&*store, "b").await.as_deref(), Some("2"));
        write(&*store, vec![put("a", "3"), delete("b")]).await;
        assert_eq!(text(&*store, "a").await.as_deref(), Some("3"));
        assert_eq!(text(&*store, "b").await, None);
    }

    /// Nothing is there, and that is an answer.
    pub async fn an_empty_store_answers<S: Shared>(store: Arc<S>) {
        let reads = vec![Read::Get(key("a")), Read::list(folder("f")), Read::Count(folder("f"))];
        let found = read(&*store, reads).await.found;
        assert_eq!(found, vec![Found::Entries(vec![]), Found::Entries(vec![]), Found::Count(0)]);
        assert_eq!(read(&*store, Vec::new()).await.found, vec![]);
    }

    /// All answers of a read are of one moment: a writer changes two keys together, readers never see one alone.
    pub async fn one_revision_for_all_reads<S: Shared>(store: Arc<S>) {
        write(&*store, vec![put("a", "0"), put("z/b", "0")]).await;
        let writer = tokio::spawn({
            let store = Arc::clone(&store);
            async move {
                for n in 1..40 {
                    let text = n.to_string();
                    write(&*store, vec![put("a", &text), put("z/b", &text)]).await;
                    tokio::task::yield_now().await;
                }
            }
        });
        for _ in 0..40 {
            let snapshot = read(&*store, vec![Read::Get(key("a")), Read::list(folder("z"))]).await;
            let values: Vec<_> =
                [0, 1].iter().map(|&n| snapshot.entry(n).map(|entry| &entry.value)).collect();
            assert_eq!(values.first(), values.last());
            assert!(snapshot.entry(0).is_some_and(|entry| entry.revision <= snapshot.revision));
            tokio::task::yield_now().await;
        }
        assert!(writer.await.is_ok());
    }

    /// A key has the revision of the commit that wrote it last, whatever is written elsewhere.
    pub async fn a_revision_is_that_of_the_last_write<S: Shared>(store: Arc<S>) {
        let first = write(&*store, vec![put("a", "1"), put("b", "1")]).await;
        let second = write(&*store, vec![put("b", "2")]).await;
        let snapshot = read(&*store, vec![Read::Get(key("a")), Read::Get(key("b"))]).await;
        assert_eq!(snapshot.entry(0).map(|entry| entry.revision), Some(first));
        assert_eq!(snapshot.entry(1).map(|entry| entry.revision), Some(second));
        assert!(snapshot.revision >= second);
    }

    /// Also with the write of the same value, and with a deletion.
    pub async fn the_revision_grows_with_every_write<S: Shared>(store: Arc<S>) {
        let mut last = Revision(0);
        for writes in [vec![put("a", "1")], vec![put("a", "1")], vec![delete("a")], vec![put("b", "1")]] {
            let revision = write(&*store, writes).await;
            assert!(revision > last, "{revision:?} after {last:?}");
            last = revision;
        }
        assert!(read(&*store, vec![Read::Get(key("b"))]).await.revision >= last);
    }

    /// A commit without writes, and the deletion of what is not there.
    pub async fn what_changes_nothing_is_applied<S: Shared>(store: Arc<S>) {
        let first = write(&*store, vec![put("a", "1")]).await;
        assert!(applied(commit(&*store, vec![Compare::Unchanged(key("a"), first)], vec![]).await) >= first);
        assert!(write(&*store, vec![delete("b")]).await >= first);
        assert_eq!(get(&*store, "a").await.map(|entry| entry.revision), Some(first));
    }

    /// A key that was never written and one that is deleted.
    pub async fn absent_and_deleted_are_the_same<S: Shared>(store: Arc<S>) {
        assert!(holds(&*store, Compare::Absent(key("a"))).await);
        let first = write(&*store, vec![put("a", "1")]).await;
        assert!(!holds(&*store, Compare::Absent(key("a"))).await);
        write(&*store, vec![delete("a")]).await;
        assert!(holds(&*store, Compare::Absent(key("a"))).await);
        assert!(!holds(&*store, Compare::Unchanged(key("a"), first)).await);
        assert!(!holds(&*store, Compare::Value(key("a"), b"1".to_vec())).await);
        assert!(!holds(&*store, Compare::Value(key("a"), Vec::new())).await);
        let snapshot = read(&*store, vec![Read::Get(key("a")), Read::Count(Span::prefix("v1/"))]).await;
        assert_eq!((snapshot.entry(0), snapshot.count(1)), (None, 0));
    }

    /// Not an earlier one, not a later one, not that of a key written beside it.
    pub async fn unchanged_is_the_last_write_only<S: Shared>(store: Arc<S>) {
        let first = write(&*store, vec![put("a", "1")]).await;
        let second = write(&*store, vec![put("a", "1")]).await;
        let other = write(&*store, vec![put("b", "1")]).await;
        assert!(!holds(&*store, Compare::Unchanged(key("a"), first)).await);
        assert!(holds(&*store, Compare::Unchanged(key("a"), second)).await);
        assert!(!holds(&*store, Compare::Unchanged(key("a"), other)).await);
        assert!(!holds(&*store, Compare::Unchanged(key("c"), other)).await);
    }

    /// No prefix of it, and no value without a key.
    pub async fn value_is_to_the_byte<S: Shared>(store: Arc<S>) {
        write(&*store, vec![put("a", "one"), put("empty", "")]).await;
        for (name, value, expected) in [
            ("a", "one", true),
            ("a", "on", false),
            ("a", "one ", false),
            ("a", "", false),
            ("empty", "", true),
            ("b", "", false),
        ] {
            let compare = Compare::Value(key(name), value.into());
            assert_eq!(holds(&*store, compare).await, expected, "{name} {value:?}");
        }
    }

    /// It holds, whatever the revision.
    pub async fn none_since_of_an_empty_interval<S: Shared>(store: Arc<S>) {
        let first = write(&*store, vec![put("a", "1"), put("g/1", "1")]).await;
        assert!(holds(&*store, Compare::NoneSince(folder("f"), first)).await);
        let neighbours = Span { from: "v1/g/2".into(), to: "v1/h".into() };
        assert!(holds(&*store, Compare::NoneSince(neighbours, Revision(first.0 - 1))).await);
    }

    /// It holds from the revision of the newest key on.
    pub async fn none_since_of_keys_written_before_and_after<S: Shared>(store: Arc<S>) {
        let start = write(&*store, vec![put("a", "1")]).await;
        let first = write(&*store, vec![put("f/1", "1")]).await;
        let second = write(&*store, vec![put("f/2", "1")]).await;
        let later = write(&*store, vec![put("g/1", "1")]).await;
        for (since, expected) in [(start, false), (first, false), (second, true), (later, true)] {
            assert_eq!(holds(&*store, Compare::NoneSince(folder("f"), since)).await, expected, "{since:?}");
        }
        let only_first = Span { from: "v1/f/1".into(), to: "v1/f/2".into() };
        assert!(holds(&*store, Compare::NoneSince(only_first, first)).await);
        write(&*store, vec![put("f/1", "1")]).await;
        assert!(!holds(&*store, Compare::NoneSince(folder("f"), later)).await);
    }

    /// Only what is there has a revision.
    pub async fn none_since_does_not_see_deletions<S: Shared>(store: Arc<S>) {
        let first = write(&*store, vec![put("f/1", "1")]).await;
        write(&*store, vec![put("f/2", "1")]).await;
        assert!(!holds(&*store, Compare::NoneSince(folder("f"), first)).await);
        write(&*store, vec![delete("f/2")]).await;
        assert!(holds(&*store, Compare::NoneSince(folder("f"), first)).await);
    }

    /// One compare that fails, at any place, and no write is there.
    pub async fn all_compares_or_nothing<S: Shared>(store: Arc<S>) {
        let first = write(&*store, vec![put("a", "1")]).await;
        let right = [
            Compare::Absent(key("n")),
            Compare::Unchanged(key("a"), first),
            Compare::Value(key("a"), b"1".to_vec()),
            Compare::NoneSince(folder("f"), first),
        ];
        let wrong = Compare::Absent(key("a"));
        for place in 0..=right.len() {
            let mut compares = right.to_vec();
            compares.insert(place, wrong.clone());
            let writes = vec![put("a", "2"), put("b", "2")];
            conflict(commit(&*store, compares, writes).await);
            let snapshot = read(&*store, vec![Read::Get(key("a")), Read::Get(key("b"))]).await;
            assert_eq!(snapshot.entry(0).map(|entry| entry.revision), Some(first));
            assert_eq!(snapshot.entry(1), None);
        }
        let writes = vec![put("a", "2"), put("b", "2"), delete("n")];
        let second = applied(commit(&*store, right.to_vec(), writes).await);
        let snapshot = read(&*store, vec![Read::Get(key("a")), Read::Get(key("b"))]).await;
        for index in 0..2 {
            assert_eq!(snapshot.entry(index).map(|entry| entry.revision), Some(second));
        }
    }

    /// Every kind of read, with what the others wrote.
    pub async fn otherwise_is_read_at_its_revision<S: Shared>(store: Arc<S>) {
        write(&*store, vec![put("a", "1"), put("f/1", "x"), put("f/2", "y")]).await;
        let last = write(&*store, vec![put("a", "2")]).await;
        let txn = Txn {
            compares: vec![Compare::Absent(key("a"))],
            writes: vec![put("f/3", "z")],
            otherwise: vec![
                Read::Get(key("a")),
                Read::Get(key("none")),
                Read::list(folder("f")),
                Read::keys(folder("f")),
                Read::Count(folder("f")),
            ],
        };
        let snapshot = conflict(ok(store.commit(&txn).await));
        assert!(snapshot.revision >= last);
        assert_eq!(snapshot.found.len(), 5);
        assert_eq!(snapshot.entry(0).map(|entry| entry.value.as_slice()), Some(&b"2"[..]));
        assert_eq!(snapshot.entry(0).map(|entry| entry.revision), Some(last));
        assert_eq!(snapshot.entry(1), None);
        assert_eq!(names(snapshot.entries(2)), ["f/1", "f/2"]);
        assert!(snapshot.entries(3).iter().all(|entry| entry.value.is_empty()));
        assert_eq!(snapshot.count(4), 2);
        // What was found can be compared with.
        let compares =
            vec![Compare::Unchanged(key("a"), last), Compare::NoneSince(folder("f"), snapshot.revision)];
        applied(commit(&*store, compares, vec![put("f/3", "z")]).await);
    }

    /// With a revision of its own; a compare with its last life fails.
    pub async fn put_after_delete_is_a_new_key<S: Shared>(store: Arc<S>) {
        let first = write(&*store, vec![put("a", "1")]).await;
        write(&*store, vec![delete("a")]).await;
        let third = applied(commit(&*store, vec![Compare::Absent(key("a"))], vec![put("a", "1")]).await);
        assert!(third > first);
        assert!(!holds(&*store, Compare::Unchanged(key("a"), first)).await);
        assert!(holds(&*store, Compare::Unchanged(key("a"), third)).await);
        assert_eq!(get(&*store, "a").await.map(|entry| entry.revision), Some(third));
    }

    /// By bytes; the end is not inside.
    pub async fn lists_are_intervals_in_order<S: Shared>(store: Arc<S>) {
        let all = ["e", "f", "f-", "f/", "f/0", "f/1", "f/1/2", "f/~", "f/é", "f0", "g"];
        let shuffled = [7, 2, 9, 0, 5, 10, 3, 8, 1, 6, 4];
        for index in shuffled {
            write(&*store, all.get(index).map(|name| put(name, "x")).into_iter().collect()).await;
        }
        let span = |from: &str, to: &str| Span { from: format!("v1/{from}"), to: format!("v1/{to}") };
        for (span, expected) in [
            (folder("f"), &all[3..9]),
            (Span::prefix("v1/"), &all[..]),
            (span("f", "f0"), &all[1..9]),
            (span("f/1", "f/1\0"), &all[5..6]),
            (span("f/1\0", "f/~"), &all[6..7]),
            (span("f/2", "f/3"), &[]),
            (span("h", "z"), &[]),
        ] {
            let snapshot = read(&*store, vec![Read::list(span.clone())]).await;
            assert_eq!(names(snapshot.entries(0)), expected, "{span:?}");
        }
    }

    /// Revisions come all the same.
    pub async fn lists_without_values_and_with_limits<S: Shared>(store: Arc<S>) {
        let first = write(&*store, vec![put("f/1", "one"), put("f/2", "two"), put("f/3", "three")]).await;
        let list = |keys_only, limit| Read::List { span: folder("f"), keys_only, limit };
        let reads = vec![
            list(false, None),
            list(true, None),
            list(false, Some(2)),
            list(true, Some(1)),
            list(false, Some(9)),
        ];
        let snapshot = read(&*store, reads).await;
        assert_eq!((0..5).map(|index| snapshot.count(index)).collect::<Vec<_>>(), [3, 3, 2, 1, 3]);
        for index in 0..5 {
            for entry in snapshot.entries(index) {
                assert_eq!(entry.revision, first);
                assert_eq!(entry.value.is_empty(), index == 1 || index == 3, "{index} {entry:?}");
            }
        }
        assert_eq!(names(snapshot.entries(2)), ["f/1", "f/2"]);
    }

    /// Of the interval, whatever its size.
    pub async fn counts<S: Shared>(store: Arc<S>) {
        for page in 0..3 {
            let writes = (0..100).map(|n| put(&format!("f/{page}{n:02}"), "x")).collect();
            write(&*store, writes).await;
        }
        let span = Span { from: "v1/f/050".into(), to: "v1/f/150".into() };
        let reads = vec![Read::Count(folder("f")), Read::Count(span), Read::Count(folder("g"))];
        let snapshot = read(&*store, reads).await;
        assert_eq!((0..3).map(|index| snapshot.count(index)).collect::<Vec<_>>(), [300, 100, 0]);
    }

    /// Page after page, at the revision of the first where the store still has it.
    pub async fn pages_meet_no_key_twice<S: Shared>(store: Arc<S>) {
        let expected: Vec<String> = (0..50).map(|n| format!("f/{n:02}")).collect();
        write(&*store, expected.iter().map(|name| put(name, name)).collect()).await;
        let (mut met, mut span, mut at) = (Vec::new(), folder("f"), None);
        loop {
            let page = Read::List { span: span.clone(), keys_only: false, limit: Some(7) };
            let snapshot = ok(store.read(&[page], at).await);
            let Some(last) = snapshot.entries(0).last() else { break };
            span = span.after(&last.key);
            at = Some(snapshot.revision);
            met.extend(names(snapshot.entries(0)).into_iter().map(str::to_owned));
        }
        assert_eq!(met, expected);
    }

    /// A store may forget the past, but never tell another.
    pub async fn an_old_revision_is_as_it_was_or_compacted<S: Shared>(store: Arc<S>) {
        let reads = [
            Read::Get(key("a")),
            Read::Get(key("b")),
            Read::list(Span::prefix("v1/")),
            Read::Count(Span::prefix("v1/")),
        ];
        let mut past: BTreeMap<Revision, Snapshot> = BTreeMap::new();
        for writes in [
            vec![put("a", "1"), put("f/1", "1")],
            vec![put("b", "1")],
            vec![put("a", "2"), delete("b")],
            vec![delete("a"), put("f/2", "1")],
            vec![put("a", "3"), put("b", "3")],
        ] {
            write(&*store, writes).await;
            let snapshot = ok(store.read(&reads, None).await);
            let again = ok(store.read(&reads, Some(snapshot.revision)).await);
            assert_eq!(again.found, snapshot.found, "the present is no past");
            past.insert(snapshot.revision, snapshot);
        }
        for (revision, snapshot) in past {
            match store.read(&reads, Some(revision)).await {
                Ok(found) => assert_eq!(found.found, snapshot.found, "{revision:?}"),
                Err(StoreError::Compacted(asked)) => assert_eq!(asked, revision),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// All read that the key is absent, one puts it; the others find who.
    pub async fn one_of_many_wins<S: Shared>(store: Arc<S>) {
        let tasks: Vec<_> = (0..16)
            .map(|n| {
                let store = Arc::clone(&store);
                tokio::spawn(async move {
                    let me = n.to_string();
                    let absent = get(&*store, "race").await.is_none();
                    tokio::task::yield_now().await;
                    let txn = Txn {
                        compares: vec![Compare::Absent(key("race"))],
                        writes: vec![put("race", &me), put(&format!("winner/{me}"), "x")],
                        otherwise: vec![Read::Get(key("race"))],
                    };
                    match ok(store.commit(&txn).await) {
                        Outcome::Applied(_) => {
                            assert!(absent);
                            None
                        }
                        Outcome::Conflict(found) => found.entry(0).map(|entry| entry.value.clone()),
                    }
                })
            })
            .collect();
        let mut lost = Vec::new();
        for task in tasks {
            match task.await {
                Ok(found) => lost.extend(found),
                Err(error) => panic!("{error}"),
            }
        }
        let winner = get(&*store, "race").await.map(|entry| entry.value).unwrap_or_default();
        assert_eq!(lost, vec![winner; 15]);
        assert_eq!(read(&*store, vec![Read::Count(folder("winner"))]).await.count(0), 1);
    }

    /// Each of several tasks adds to one number, reading and comparing, until all are through.
    pub async fn no_update_is_lost<S: Shared>(store: Arc<S>) {
        write(&*store, vec![put("sum", "0")]).await;
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let store = Arc::clone(&store);
                tokio::spawn(async move {
                    let mut left = 10;
                    while left > 0 {
                        let Some(entry) = get(&*store, "sum").await else { panic!("the sum is gone") };
                        tokio::task::yield_now().await;
                        let sum: u32 = String::from_utf8_lossy(&entry.value).parse().unwrap_or(0);
                        let compares = vec![Compare::Unchanged(key("sum"), entry.revision)];
                        let writes = vec![put("sum", &(sum + 1).to_string())];
                        if let Outcome::Applied(_) = commit(&*store, compares, writes).await {
                            left -= 1;
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            assert!(task.await.is_ok());
        }
        assert_eq!(text(&*store, "sum").await.as_deref(), Some("80"));
    }

    /// One of a MiB, and many of some KiB that are more together than one message of gRPC may be.
    pub async fn big_values<S: Shared>(store: Arc<S>) {
        let big: Vec<u8> = (0..1_048_576_u32).map(|n| n.to_le_bytes()[usize::from(n % 7 == 0)]).collect();
        write(&*store, vec![Write::Put(key("big"), big.clone())]).await;
        assert!(get(&*store, "big").await.is_some_and(|entry| entry.value == big));
        assert!(holds(&*store, Compare::Value(key("big"), big.clone())).await);
        let part = "x".repeat(100_000);
        for page in 0..6 {
            let writes = (0..10).map(|n| put(&format!("f/{page}{n}"), &part)).collect();
            write(&*store, writes).await;
        }
        let snapshot = read(&*store, vec![Read::list(folder("f"))]).await;
        assert_eq!(snapshot.count(0), 60);
        assert!(snapshot.entries(0).iter().all(|entry| entry.value.len() == part.len()));
    }

    /// A condition of a part: what it guards is done or left out, and the rest is done.
    pub async fn a_part_may_have_a_condition_of_its_own<S: Shared>(store: Arc<S>) {
        write(&*store, vec![put("a", "mine"), put("b", "yours")]).await;
        let given_back = |name: &str| {
            let released = put(&format!("r/{name}"), "x");
            Write::If(Compare::Value(key(name), b"mine".to_vec()), vec![delete(name), released])
        };
        let all = ["a", "b", "none"].map(given_back).into_iter().chain([put("c", "1")]).collect();
        write(&*store, all).await;
        for (name, value) in [
            ("a", None),
            ("r/a", Some("x")),
            ("b", Some("yours")),
            ("r/b", None),
            ("r/none", None),
            ("c", Some("1")),
        ] {
            assert_eq!(text(&*store, name).await.as_deref(), value, "{name}");
        }
        let before = read(&*store, vec![Read::Get(key("b"))]).await.revision;
        write(&*store, vec![given_back("b")]).await;
        assert_eq!(read(&*store, vec![Read::Get(key("b"))]).await.revision, before, "nothing was written");
    }

    /// Values are bytes, not text.
    pub async fn any_bytes<S: Shared>(store: Arc<S>) {
        let value: Vec<u8> = (0..=u8::MAX).collect();
        write(&*store, vec![Write::Put(key("a"), value.clone()), Write::Put(key("empty"), Vec::new())]).await;
        assert_eq!(get(&*store, "a").await.map(|entry| entry.value), Some(value));
        assert_eq!(get(&*store, "empty").await.map(|entry| entry.value), Some(Vec::new()));
    }

    /// 128 compares, 128 writes, 128 reads.
    pub async fn as_many_operations_as_etcd_takes<S: Shared>(store: Arc<S>) {
        let all: Vec<String> = (0..MAX_OPERATIONS).map(|n| format!("f/{n:03}")).collect();
        let txn = Txn {
            compares: all.iter().map(|name| Compare::Absent(key(name))).collect(),
            writes: all.iter().map(|name| put(name, "x")).collect(),
            otherwise: all.iter().map(|name| Read::Get(key(name))).collect(),
        };
        applied(ok(store.commit(&txn).await));
        let snapshot = conflict(ok(store.commit(&txn).await));
        assert_eq!(snapshot.found.len(), MAX_OPERATIONS);
        assert!((0..MAX_OPERATIONS).all(|index| snapshot.count(index) == 1));
        let reads: Vec<Read> = all.iter().map(|name| Read::Get(key(name))).collect();
        assert_eq!(read(&*store, reads).await.found, snapshot.found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn memory() -> Option<Fixture<MemoryStore>> {
        Some(Fixture::of(MemoryStore::new()))
    }

    async fn jittery() -> Option<Fixture<MemoryStore>> {
        Some(Fixture::of(MemoryStore::with_jitter(42)))
    }

    async fn faultless() -> Option<Fixture<FaultyStore<MemoryStore>>> {
        Some(Fixture::of(FaultyStore::new(MemoryStore::new())))
    }

    crate::suite!(memory_store, super::memory);
    crate::suite!(memory_store_with_jitter, super::jittery);
    crate::suite!(faulty_store_without_faults, super::faultless);

    fn key(text: &str) -> Key {
        Key::new(text)
    }

    fn put(text: &str) -> Txn {
        Txn {
            compares: vec![Compare::Absent(key(text))],
            writes: vec![Write::Put(key(text), b"x".to_vec())],
            otherwise: vec![],
        }
    }

    fn is_there(store: &MemoryStore, text: &str) -> bool {
        store.dump().contains_key(&key(text))
    }

    #[tokio::test]
    #[should_panic(expected = "k is written twice in one txn")]
    async fn a_key_written_twice_is_refused() {
        let writes = vec![Write::Delete(key("k")), Write::Put(key("k"), vec![])];
        let _ = MemoryStore::new().commit(&Txn { writes, ..Txn::default() }).await;
    }

    #[tokio::test]
    #[should_panic(expected = "129 compares in one txn, etcd takes 128")]
    async fn too_many_compares_are_refused() {
        let compares = (0..129).map(|n| Compare::Absent(key(&n.to_string()))).collect();
        let _ = MemoryStore::new().commit(&Txn { compares, ..Txn::default() }).await;
    }

    #[tokio::test]
    #[should_panic(expected = "129 writes in one txn, etcd takes 128")]
    async fn too_many_writes_are_refused() {
        let writes = (0..129).map(|n| Write::Delete(key(&n.to_string()))).collect();
        let _ = MemoryStore::new().commit(&Txn { writes, ..Txn::default() }).await;
    }

    #[tokio::test]
    #[should_panic(expected = "129 reads in one call, etcd takes 128")]
    async fn too_many_otherwise_reads_are_refused() {
        let otherwise = (0..129).map(|n| Read::Get(key(&n.to_string()))).collect();
        let _ = MemoryStore::new().commit(&Txn { otherwise, ..Txn::default() }).await;
    }

    #[tokio::test]
    #[should_panic(expected = "1572865 bytes in one txn, etcd takes 1572864")]
    async fn too_many_bytes_are_refused() {
        let writes = vec![Write::Put(key("k"), vec![0; MAX_BYTES])];
        let _ = MemoryStore::new().commit(&Txn { writes, ..Txn::default() }).await;
    }

    #[tokio::test]
    #[should_panic(expected = "k compared with revision 0: say Absent")]
    async fn a_compare_with_no_revision_is_refused() {
        let compares = vec![Compare::Unchanged(key("k"), Revision(0))];
        let _ = MemoryStore::new().commit(&Txn { compares, ..Txn::default() }).await;
    }

    #[tokio::test]
    #[should_panic(expected = "read at revision 7, but the store is at 1")]
    async fn a_read_of_the_future_is_refused() {
        let _ = MemoryStore::new().read(&[], Some(Revision(7))).await;
    }

    #[tokio::test]
    async fn history_is_kept_until_it_is_compacted() {
        let store = MemoryStore::new();
        store.put(&key("a"), "1");
        let first = store.revision();
        store.put(&key("a"), "2");
        store.put(&key("b"), "2");
        store.delete(&key("b"));
        let last = store.revision();
        let read = [Read::Get(key("a")), Read::Get(key("b"))];
        let value = |snapshot: &Snapshot| snapshot.entry(0).unwrap().value.clone();
        assert_eq!(value(&store.read(&read, Some(first)).await.unwrap()), b"1");
        assert_eq!(value(&store.read(&read, None).await.unwrap()), b"2");
        store.compact(last);
        assert_eq!(store.read(&read, Some(first)).await, Err(StoreError::Compacted(first)));
        let now = store.read(&read, Some(last)).await.unwrap();
        assert_eq!((value(&now), now.entry(1)), (b"2".to_vec(), None));
    }

    #[tokio::test]
    async fn a_fork_goes_its_own_way_and_a_restore_begins_anew() {
        let store = MemoryStore::new();
        store.put(&key("a"), "1");
        let fork = store.fork();
        store.put(&key("b"), "1");
        assert!(!is_there(&fork, "b"));
        assert_eq!(fork.revision().0 + 1, store.revision().0);
        let restored = MemoryStore::restored(store.dump());
        assert_eq!(restored.dump(), store.dump());
        assert!(restored.revision() < store.revision());
        store.become_like(&fork);
        assert_eq!(store.dump(), fork.dump());
    }

    #[tokio::test]
    async fn what_was_asked_is_counted_and_logged() {
        let store = MemoryStore::new();
        let _ = store.commit(&put("f/1")).await;
        let _ = store.commit(&put("f/1")).await;
        let _ = store.read(&[Read::Count(Span::prefix("f/")), Read::Get(key("f/1"))], None).await;
        assert_eq!(store.log(), [(put("f/1"), true), (put("f/1"), false)]);
        assert_eq!(store.asked(), Asked { reads: 1, commits: 2, applied: 1, walked: 2, answered: 4 });
        store.forget();
        assert_eq!((store.log().len(), store.asked()), (0, Asked::default()));
    }

    /// What a commit answers under a fault, and whether it stands.
    #[track_caller]
    fn case(fault: Fault, expected: &str, stands: bool) {
        let memory = MemoryStore::new();
        let store = FaultyStore::new(memory.clone());
        store.fail(On::Commit(1), fault);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let answer = runtime.block_on(async {
            let _ = store.commit(&put("first")).await;
            store.commit(&put("k")).await
        });
        let text = match answer {
            Ok(Outcome::Applied(_)) => "applied".to_owned(),
            Ok(Outcome::Conflict(_)) => "conflict".to_owned(),
            Err(error) => error.to_string(),
        };
        assert_eq!(text, expected, "{fault:?}");
        assert_eq!(is_there(&memory, "k"), stands, "{fault:?}");
        assert!(is_there(&memory, "first"));
        assert_eq!(store.sent(), [put("first"), put("k")]);
    }

    #[test]
    fn faults_of_a_commit() {
        let not_reached = "store not reached: https://store.test:2379: connection refused";
        let unanswered = "no answer from https://store.test:2379 after 2000 ms: no answer";
        let refused = "https://store.test:2379 refused the request: permission denied";
        case(Fault::NotReached, not_reached, false);
        case(Fault::Compacted, not_reached, false);
        case(Fault::Refused, refused, false);
        case(Fault::Lost, unanswered, false);
        case(Fault::AnswerLost, unanswered, true);
        case(Fault::Late, unanswered, false);
        case(Fault::Delay(Duration::from_millis(1)), "applied", true);
    }

    #[tokio::test]
    async fn faults_of_a_read() {
        let store = FaultyStore::new(MemoryStore::new());
        for (fault, expected) in [
            (Fault::NotReached, Err(not_reached())),
            (Fault::Lost, Err(not_reached())),
            (Fault::AnswerLost, Err(not_reached())),
            (Fault::Late, Err(not_reached())),
            (Fault::Compacted, Err(StoreError::Compacted(Revision(1)))),
        ] {
            store.heal().fail(On::Call(store.calls()), fault);
            let found = store.read(&[], Some(Revision(1))).await;
            assert_eq!(found.map(|_| ()), expected, "{fault:?}");
            assert!(store.read(&[], None).await.is_ok());
        }
    }

    #[tokio::test]
    async fn a_late_message_meets_the_state_of_its_arrival() {
        let memory = MemoryStore::new();
        let store = FaultyStore::new(memory.clone());
        store.fail(On::Commits, Fault::Late);
        assert!(store.commit(&put("a")).await.is_err());
        assert!(store.commit(&put("b")).await.is_err());
        memory.put(&key("a"), "a stranger's");
        assert!(matches!(store.deliver(0).await, Some(Outcome::Conflict(_))));
        assert!(!is_there(&memory, "b"));
        assert!(matches!(store.deliver(1).await, Some(Outcome::Applied(_))));
        assert!(is_there(&memory, "b"));
    }

    #[tokio::test]
    #[should_panic(expected = "message 0 was delivered before")]
    async fn a_message_arrives_once() {
        let store = FaultyStore::new(MemoryStore::new());
        store.fail(On::Commits, Fault::Late);
        let _ = store.commit(&put("a")).await;
        store.deliver(0).await;
        store.deliver(0).await;
    }

    #[tokio::test]
    async fn the_sender_of_a_message_in_flight_may_wait_or_be_gone() {
        let memory = MemoryStore::new();
        let store = FaultyStore::new(memory.clone());
        store.fail(On::Commits, Fault::InFlight);
        let commit = |text: &'static str| {
            let store = store.clone();
            tokio::spawn(async move { store.commit(&put(text)).await })
        };
        let (patient, killed) = (commit("a"), commit("b"));
        while store.held() < 2 {
            tokio::task::yield_now().await;
        }
        killed.abort();
        assert!(killed.await.is_err());
        assert!(memory.dump().is_empty());
        assert_eq!(store.deliver_all().await.len(), 2);
        assert!(matches!(patient.await.unwrap(), Ok(Outcome::Applied(_))));
        assert!(is_there(&memory, "a") && is_there(&memory, "b"));
    }

    #[tokio::test]
    async fn an_actor_is_held_at_a_gate() {
        let memory = MemoryStore::new();
        let store = FaultyStore::new(memory.clone());
        for (side, text, seen) in [(Side::Before, "a", false), (Side::After, "b", true)] {
            let mut gate = store.pause(On::Call(store.calls()), side);
            assert!(!gate.is_reached());
            let actor = tokio::spawn({
                let store = store.clone();
                async move { store.commit(&put(text)).await }
            });
            gate.reached().await;
            assert_eq!(is_there(&memory, text), seen);
            assert!(!actor.is_finished());
            gate.resume();
            assert!(actor.await.unwrap().is_ok());
            assert!(is_there(&memory, text));
        }
    }

    #[tokio::test]
    async fn another_acts_at_an_exact_point() {
        let memory = MemoryStore::new();
        let store = FaultyStore::new(memory.clone());
        let other = memory.clone();
        store.at(On::Commit(0), Side::Before, move || async move { other.put(&key("k"), "other's") });
        assert!(matches!(store.commit(&put("k")).await, Ok(Outcome::Conflict(_))));
        memory.delete(&key("k"));
        assert!(matches!(store.commit(&put("k")).await, Ok(Outcome::Applied(_))));
    }

    #[tokio::test]
    async fn a_plan_may_be_a_function() {
        let store = FaultyStore::new(MemoryStore::new());
        store
            .fail(On::Read(0), Fault::Refused)
            .decide(|call| call.txn.is_none().then_some(Fault::NotReached).filter(|_| call.number < 3));
        assert!(matches!(store.read(&[], None).await, Err(StoreError::Refused { .. })));
        assert!(matches!(store.read(&[], None).await, Err(StoreError::NotReached { .. })));
        assert!(store.commit(&put("k")).await.is_ok());
        assert!(store.read(&[], None).await.is_ok());
        assert_eq!((store.calls(), store.commits()), (4, 1));
    }

    #[tokio::test]
    async fn from_one_call_on_the_store_is_down() {
        let store = FaultyStore::new(MemoryStore::new());
        store.fail(On::From(1), Fault::NotReached);
        assert!(store.read(&[], None).await.is_ok());
        assert!(store.commit(&put("k")).await.is_err());
        assert!(store.read(&[], None).await.is_err());
        store.heal();
        assert!(store.commit(&put("k")).await.is_ok());
    }
}
