//! The ways of an operation to the store, the wire and the API: each call is a point at which the history decides what
//! becomes of it. A commit is a message that may arrive later than its sender lives.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::{
    domain::{
        kubernetes::{self, Controller, ControllerRef, Listed, Live, Pod, PodKey},
        lease::Timestamp,
        names::{ContainerId, Namespace, NodeName, Uid},
    },
    ops::{Change, Clock, Heard, Log, Wire},
    pods::{ApiError, Cluster, Event},
    store::{Key, Outcome, Read, Revision, Snapshot, Store, StoreError, Txn, Write, keys},
};
use tokio::{sync::oneshot, time::Instant};

use super::{
    cluster::State,
    history::{Deed, Fate, Lie},
};

/// When histories begin, by the API server's clock.
pub(crate) const EPOCH: i64 = 1_700_000_000_000;

/// What kind of operation it is, for the rules about who may change what.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    Add,
    Del,
    Gc,
    /// The journal alone.
    Flush,
    Reap,
    /// Who changes pools.
    Person,
    /// Who changes leases by hand.
    Desk,
}

/// An operation: a process that runs shipped code.
pub(crate) struct Op {
    /// See [`role`](Self::role).
    pub(crate) kind: Role,
    /// It tells the node's journal, beside its own work.
    pub(crate) replays: AtomicBool,
    /// What it is, for the story.
    pub(crate) what: String,
    pub(crate) node: Option<usize>,
    /// By how much its clock is off, milliseconds.
    pub(crate) skew: i64,
    /// The sandbox of an ADD.
    pub(crate) sandbox: Option<usize>,
    /// The container of a DEL.
    pub(crate) container: Option<ContainerId>,
    pub(crate) began: Timestamp,
    /// The node's boot-time clock then.
    pub(crate) started: u64,
    pub(crate) fates: Vec<(u8, Fate)>,
    pub(crate) pods: Lie,
    pub(crate) nodes: Lie,
    /// What a person does with it.
    pub(crate) deed: Option<Deed>,
    pub(crate) calls: AtomicUsize,
    /// How many of its calls are held back.
    pub(crate) waits: AtomicUsize,
    pub(crate) killed: AtomicBool,
    /// A commit of it was not answered.
    pub(crate) doubt: AtomicBool,
    /// The attachment that it was told it has bound, and not that it has ended.
    pub(crate) attached: Mutex<Option<Key>>,
    /// Addresses that it asked the wire for, and heard nobody.
    pub(crate) silent: Mutex<Vec<IpAddr>>,
    /// It was refused, which no other call mends.
    pub(crate) refused: AtomicBool,
    /// It took a lease whose last sandbox was never DELed.
    pub(crate) displaced: AtomicBool,
}

impl Op {
    pub(crate) fn new(role: Role, what: String, began: Timestamp) -> Self {
        Self {
            kind: role,
            replays: false.into(),
            what,
            node: None,
            skew: 0,
            sandbox: None,
            container: None,
            began,
            started: 0,
            fates: Vec::new(),
            pods: Lie::None,
            nodes: Lie::None,
            deed: None,
            calls: 0.into(),
            waits: 0.into(),
            killed: false.into(),
            doubt: false.into(),
            attached: Mutex::default(),
            silent: Mutex::default(),
            refused: false.into(),
            displaced: false.into(),
        }
    }

    /// What it does just now.
    pub(crate) fn role(&self) -> Role {
        if self.replays.load(Ordering::Relaxed) { Role::Flush } else { self.kind }
    }

    pub(crate) fn heard_nobody(&self, address: IpAddr) -> bool {
        self.silent.lock().unwrap().contains(&address)
    }

    /// Does something of it stand, or may it come to stand?
    pub(crate) fn may_leave_something(&self) -> bool {
        self.doubt.load(Ordering::Relaxed) || self.attached.lock().unwrap().is_some()
    }

    fn note(&self, txn: &Txn) {
        let mut attached = self.attached.lock().unwrap();
        for write in &txn.writes {
            match write {
                Write::Put(key, _) if keys::parse_attachment(key).is_some() => *attached = Some(key.clone()),
                Write::Delete(key) => drop(attached.take_if(|attached| attached == key)),
                Write::Put(..) | Write::If(..) => {}
            }
        }
    }

    fn fate(&self) -> Option<Fate> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.fates.iter().find(|(at, _)| usize::from(*at) == call).map(|(_, fate)| *fate)
    }
}

/// A message on its way.
pub(crate) struct Flight {
    /// It arrives before this action.
    pub(crate) at: usize,
    pub(crate) op: Arc<Op>,
    pub(crate) role: Role,
    /// A commit that is still to be applied.
    pub(crate) txn: Option<Txn>,
    /// Who waits for it.
    pub(crate) answer: Option<oneshot::Sender<Option<Outcome>>>,
    /// The outcome, where only the answer is on its way.
    pub(crate) outcome: Option<Outcome>,
}

/// One operation's way to everything.
#[derive(Clone)]
pub(crate) struct Way {
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) op: Arc<Op>,
}

struct Waiting<'a>(&'a Op);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waits.fetch_sub(1, Ordering::Relaxed);
    }
}

fn not_reached() -> StoreError {
    StoreError::NotReached { reason: "connection refused".into() }
}

fn unanswered() -> StoreError {
    StoreError::Unanswered {
        endpoint: "https://store.test:2379".into(),
        waited: Duration::from_secs(2),
        reason: "no answer".into(),
    }
}

impl Way {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The process dies here.
    async fn die<T>(&self) -> T {
        self.op.killed.store(true, Ordering::Relaxed);
        std::future::pending().await
    }

    fn send(
        &self,
        later: u8,
        txn: Option<Txn>,
        outcome: Option<Outcome>,
    ) -> oneshot::Receiver<Option<Outcome>> {
        let (answer, wait) = oneshot::channel();
        let mut state = self.state();
        let at = state.step + usize::from(later);
        let (op, role) = (self.op.clone(), self.op.role());
        state.flights.push(Flight { at, op, role, txn, answer: Some(answer), outcome });
        wait
    }

    async fn hold(&self, later: u8, txn: Option<Txn>, outcome: Option<Outcome>) -> Option<Outcome> {
        let wait = self.send(later, txn, outcome);
        self.op.waits.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.op);
        wait.await.ok().flatten()
    }

    /// A call that changes nothing: does it arrive?
    async fn ask(&self) -> bool {
        match self.op.fate() {
            None => true,
            Some(Fate::Hold(later) | Fate::HoldAnswer(later)) => {
                let _ = self.hold(later, None, None).await;
                true
            }
            Some(Fate::Kill | Fate::KillLate(_)) => self.die().await,
            Some(Fate::Fail | Fate::Refused | Fate::Lost | Fate::AnswerLost | Fate::Late(_)) => false,
        }
    }

    fn is_cut(&self) -> bool {
        self.op.node.is_some_and(|node| self.state().nodes[node].is_cut())
    }

    fn apply(&self, txn: &Txn) -> Outcome {
        self.state().apply(txn, &self.op, self.op.role())
    }
}

impl Store for Way {
    async fn read(&self, reads: &[Read], at: Option<Revision>) -> Result<Snapshot, StoreError> {
        if !self.ask().await || self.is_cut() {
            return Err(not_reached());
        }
        let state = self.state();
        crate::world::futures_now(state.store.read(reads, at))
    }

    async fn commit(&self, txn: &Txn) -> Result<Outcome, StoreError> {
        // As the plugin's own watch of its store does: in doubt until answered.
        let before = self.op.doubt.swap(true, Ordering::Relaxed);
        let answer = self.sent(txn).await;
        if !matches!(answer, Err(StoreError::Unanswered { .. })) {
            self.op.doubt.store(before, Ordering::Relaxed);
        }
        if let Ok(Outcome::Applied(_)) = answer {
            self.op.note(txn);
        }
        answer
    }
}

impl Way {
    async fn sent(&self, txn: &Txn) -> Result<Outcome, StoreError> {
        let fate = self.op.fate();
        if self.is_cut() {
            return Err(not_reached());
        }
        match fate {
            None => Ok(self.apply(txn)),
            Some(Fate::Hold(later)) => self.hold(later, Some(txn.clone()), None).await.ok_or_else(unanswered),
            Some(Fate::HoldAnswer(later)) => {
                let outcome = self.apply(txn);
                self.hold(later, None, Some(outcome)).await.ok_or_else(unanswered)
            }
            Some(Fate::Fail) => Err(not_reached()),
            Some(Fate::Refused) => {
                self.op.refused.store(true, Ordering::Relaxed);
                Err(StoreError::Refused {
                    endpoint: "https://store.test:2379".into(),
                    reason: "permission denied".into(),
                })
            }
            Some(Fate::Lost) => Err(unanswered()),
            Some(Fate::AnswerLost) => {
                let _ = self.apply(txn);
                Err(unanswered())
            }
            Some(Fate::Late(later)) => {
                drop(self.send(later, Some(txn.clone()), None));
                Err(unanswered())
            }
            Some(Fate::Kill) => self.die().await,
            Some(Fate::KillLate(0)) => {
                let _ = self.apply(txn);
                self.die().await
            }
            Some(Fate::KillLate(later)) => {
                drop(self.send(later, Some(txn.clone()), None));
                self.die().await
            }
        }
    }
}

impl Wire for Way {
    async fn probe(&self, addresses: &[IpAddr]) -> Heard {
        let heard = self.ask().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let state = self.state();
        let Some(node) = self.op.node.filter(|node| heard && state.nodes[*node].is_heard()) else {
            return Heard::Failed("the link is down".into());
        };
        let claims: Vec<(IpAddr, String)> = addresses
            .iter()
            .filter(|address| state.answers(**address, node, self.op.sandbox))
            .map(|address| (*address, "02:00:00:00:00:99".to_owned()))
            .collect();
        if !claims.is_empty() {
            return Heard::Claims(claims);
        }
        self.op.silent.lock().unwrap().extend(addresses);
        Heard::Silence
    }
}

impl Log for Way {
    fn change(&self, _: &Change) {}

    fn note(&self, _: &str) {}
}

/// The clocks of one host.
pub(crate) struct HostClock {
    pub(crate) began: Instant,
    /// How far the wall clock is off, milliseconds.
    pub(crate) skew: i64,
    /// When it was booted, microseconds since the beginning.
    pub(crate) booted: AtomicU64,
    pub(crate) ticks: AtomicU64,
    pub(crate) chance: AtomicU64,
}

impl Clock for HostClock {
    fn now(&self) -> Timestamp {
        Timestamp(EPOCH + i64::try_from(self.began.elapsed().as_millis()).unwrap() + self.skew)
    }

    fn boot_clock(&self) -> u64 {
        let gone = u64::try_from(self.began.elapsed().as_micros()).unwrap();
        1_000_000 + gone - self.booted.load(Ordering::Relaxed) + self.ticks.fetch_add(1, Ordering::Relaxed)
    }

    fn chance(&self) -> u64 {
        let n = self.chance.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        n ^ (n >> 31)
    }
}

/// The errors of a real API server, in turns.
fn api_error(what: &str, number: usize) -> ApiError {
    match number % 4 {
        0 => ApiError::Answer { what: what.into(), reason: "500 etcdserver: leader changed".into() },
        1 => ApiError::Forbidden { verb: "get", what: what.into(), reason: "403".into() },
        2 => ApiError::Expired { what: what.into() },
        _ => ApiError::NotReached { server: "https://api.test".into(), reason: "timed out".into() },
    }
}

impl Way {
    async fn ask_api(&self, what: &str) -> Result<(), ApiError> {
        let number = self.op.calls.load(Ordering::Relaxed);
        if !self.ask().await {
            return Err(api_error(what, number));
        }
        let state = self.state();
        state.api.state().now = state.now();
        Ok(())
    }
}

impl Cluster for Way {
    async fn identity(&self) -> Result<Uid, ApiError> {
        self.ask_api("namespace kube-system").await?;
        if self.op.pods == Lie::Other {
            return Ok(Uid::new("another").unwrap());
        }
        let api = self.state().api.clone();
        api.identity().await
    }

    async fn pods_that(
        &self,
        keep: &(dyn Fn(&Pod) -> bool + Sync),
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<Listed<Pod>, ApiError> {
        self.ask_api("pods").await?;
        let (all, at): (Vec<Pod>, Timestamp) = {
            let state = self.state();
            (state.pods_as(self.op.pods), state.now())
        };
        progress(all.len());
        let count = all.len();
        Ok(Listed { items: all.into_iter().filter(|pod| keep(pod)).collect(), all: count, at })
    }

    async fn pod(&self, key: &PodKey) -> Result<Live<Pod>, ApiError> {
        self.ask_api("pod").await?;
        let api = self.state().api.clone();
        api.pod(key).await
    }

    async fn nodes(&self) -> Result<Listed<kubernetes::Node>, ApiError> {
        self.ask_api("nodes").await?;
        let state = self.state();
        let items = state.nodes_as(self.op.nodes);
        Ok(Listed { all: items.len(), items, at: state.now() })
    }

    async fn node(&self, name: &NodeName) -> Result<Live<kubernetes::Node>, ApiError> {
        self.ask_api("node").await?;
        let api = self.state().api.clone();
        api.node(name).await
    }

    async fn controller(
        &self,
        namespace: &Namespace,
        controller: &ControllerRef,
    ) -> Result<Live<Controller>, ApiError> {
        self.ask_api("controller").await?;
        let api = self.state().api.clone();
        api.controller(namespace, controller).await
    }

    async fn record(&self, event: &Event) -> Result<(), ApiError> {
        self.ask_api("event").await?;
        let api = self.state().api.clone();
        api.record(event).await
    }
}
