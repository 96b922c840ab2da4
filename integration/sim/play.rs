//! Plays a history: one thread, paused time. An operation is a future that runs shipped code until one of its calls is held
//! back; what its process does around that code (when it leaves an entry in the journal, undo, SIGKILL) is written here as
//! `cni` does it.

use std::{
    collections::BTreeSet,
    future::{Future, poll_fn},
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use leasehold::{
    admin::{
        Error, Scope,
        leases::{self, Reserve, Target},
        pools::{self, Rules, Wanted},
    },
    domain::{
        kubernetes::Ready,
        lease::{Holder, LeasedAddress},
        names::{ClusterName, ContainerId, IfName, NetworkName, PoolName, StoreId, Uid},
        reap::Policy,
        select::Caller,
    },
    journal::{self, Entries, Entry, Memory},
    ops::{self, Add, Clock as _, Del, Refusal, replay},
    reaper::{self, Options},
    store::{
        StoreError, keys,
        record::{self, Frozen, Meta, PoolDocument},
    },
};
use tokio::time::Instant;

use super::{
    cluster::{Filed, Link, Stage, State, node_name},
    history::{Action, Death, Deed, Edit, Fate, History, Lie, NODES, ORDINALS, PODS, SLOTS},
    way::{Op, Role, Way},
};
use crate::world::{ADD_DEADLINE, faults, holder};

const DEL_DEADLINE: Duration = Duration::from_secs(5);
const UNDO_DEADLINE: Duration = Duration::from_secs(5);
const GC_DEADLINE: Duration = Duration::from_secs(60);
/// `leasehold flush` has five minutes; a history is shorter.
const FLUSH_DEADLINE: Duration = Duration::from_secs(60);
/// An operation that one fault of a moment made fail: nobody gives up before.
const PATIENCE_MS: i64 = 2_900;

type Shared = Arc<Mutex<State>>;

/// Why a history is wrong.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    /// What is broken.
    pub(crate) what: String,
    /// What happened, if it was to be told.
    pub(crate) story: Vec<String>,
}

#[derive(Default)]
struct Bell {
    rung: AtomicBool,
    driver: Arc<Mutex<Option<Waker>>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::Relaxed);
        if let Some(driver) = self.driver.lock().unwrap().take() {
            driver.wake();
        }
    }
}

struct Task {
    op: Arc<Op>,
    bell: Arc<Bell>,
    run: Pin<Box<dyn Future<Output = ()>>>,
}

/// Plays it; `told`: to its story.
pub(crate) fn play(history: &History, told: bool) -> Result<Vec<String>, Broken> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(tokio::task::unconstrained(async {
        let mut player = Player::new(history, told);
        player.begin().await;
        for action in &history.actions {
            player.act(action).await;
            if player.is_broken() {
                break;
            }
        }
        if !player.is_broken() {
            player.quiet().await;
        }
        player.end()
    }))
}

struct Player<'h> {
    history: &'h History,
    shared: Shared,
    tasks: Vec<Task>,
    driver: Arc<Mutex<Option<Waker>>>,
    keeps_lists: bool,
}

/// An ADD, DEL or GC on a node, and what its process knows.
struct Process {
    way: Way,
    node: usize,
}

impl Process {
    fn context(&self, deadline: Duration) -> Parts {
        let state = self.way.state();
        let here = &state.nodes[self.node];
        Parts {
            clock: here.clock.clone(),
            me: here.me.clone(),
            deadline: Instant::now() + deadline,
            memory: here.memory.clone(),
        }
    }

    fn journal(&self) -> Journal<'_> {
        Journal { way: &self.way, node: self.node }
    }

    fn leave_entry(&self, container: &ContainerId, holder: &Holder) {
        let mut state = self.way.state();
        let at = state.now();
        let here = &mut state.nodes[self.node];
        let entry = Entry {
            cluster: here.me.cluster.clone(),
            store: here.memory.store.clone(),
            node: here.me.node.clone(),
            network: NetworkName::new("lan").unwrap(),
            container: container.clone(),
            ifname: IfName::new("eth0").unwrap(),
            holder: Some(holder.clone()),
            why: String::new(),
            at: String::new(),
        };
        here.journal.retain(|filed| filed.entry.container != *container);
        here.journal.push(Filed { entry, at, locked: false });
    }

    /// The entry of this attachment is removed before it is added again; `None`: somebody works on it.
    fn cancel(&self, container: &ContainerId) -> Option<bool> {
        let mut state = self.way.state();
        let journal = &mut state.nodes[self.node].journal;
        let Some(at) = journal.iter().position(|filed| filed.entry.container == *container) else {
            return Some(false);
        };
        if journal[at].locked {
            return None;
        }
        journal.remove(at);
        Some(true)
    }

    /// ADD, to its answer and beyond.
    async fn add(self, request: Add, undone: bool) {
        let op = self.way.op.clone();
        let holder = &request.caller.holder;
        let Some(cancelled) = self.cancel(&request.container) else {
            self.failed("its journal entry is locked");
            return;
        };
        let parts = self.context(ADD_DEADLINE);
        match replay::add(&parts.at(&self.way), &self.journal(), &request).await {
            Ok(added) if undone => {
                let parts = self.context(UNDO_DEADLINE);
                let is_undone = !added.wrote() || ops::undo(&parts.at(&self.way), &added).await.is_ok();
                if !is_undone || cancelled {
                    self.leave_entry(&request.container, holder);
                }
                self.failed("its answer is not read");
            }
            Ok(added) => {
                {
                    let mut state = self.way.state();
                    state.answered(&op, &added);
                    state.nodes[self.node].memory = added.memory.clone();
                    state.judge_truth();
                }
                replay::some(&parts.at(&self.way), &self.journal()).await;
            }
            Err(refused) => {
                if op.may_leave_something() || cancelled {
                    self.leave_entry(&request.container, holder);
                }
                if let Some(memory) = refused.memory() {
                    self.way.state().nodes[self.node].memory = memory.clone();
                }
                self.judge_patience(&refused);
                self.failed(&refused.to_string());
            }
        }
    }

    /// One call that fails makes no operation fail: it is made again.
    fn judge_patience(&self, refused: &Refusal) {
        let mut state = self.way.state();
        let took = state.now().since(self.way.op.began);
        let gave_up =
            matches!(refused, Refusal::Store(StoreError::NotReached { .. } | StoreError::Unanswered { .. }));
        if gave_up && took < PATIENCE_MS && !self.way.op.refused.load(Ordering::Relaxed) {
            let what = &self.way.op.what;
            state.fault(format!("{what} gives up after {took} ms: {refused}"));
        }
    }

    fn failed(&self, why: &str) {
        let mut state = self.way.state();
        let what = &self.way.op.what;
        state.tell(|| format!("{what} fails: {why}"));
        if let Some(index) = self.way.op.sandbox {
            state.leave(index, false);
        }
    }

    async fn del(self, request: Del, index: usize) {
        let parts = self.context(DEL_DEADLINE);
        match ops::del(&parts.at(&self.way), &request, "DEL").await {
            Ok(end) => {
                {
                    let mut state = self.way.state();
                    state.sandboxes[index].ended = true;
                    state.nodes[self.node].memory = end.memory;
                }
                replay::some(&parts.at(&self.way), &self.journal()).await;
            }
            Err(refused) => {
                self.judge_patience(&refused);
                let holder = self.way.state().sandboxes[index].holder.clone();
                self.leave_entry(&request.container, &holder);
                // From here on the journal answers for it.
                self.way.state().sandboxes[index].ended = true;
            }
        }
    }

    async fn gc(self, valid: BTreeSet<(ContainerId, IfName)>) {
        let parts = self.context(GC_DEADLINE);
        let network = NetworkName::new("lan").unwrap();
        if ops::collect(&parts.at(&self.way), &network, &valid).await.is_ok() {
            replay::some(&parts.at(&self.way), &self.journal()).await;
        }
    }
}

/// The journal of a node. The name of a file is its container's.
struct Journal<'a> {
    way: &'a Way,
    node: usize,
}

impl Entries for Journal<'_> {
    type Held = Held;

    fn list(&self) -> io::Result<Vec<PathBuf>> {
        let state = self.way.state();
        Ok(state.nodes[self.node].journal.iter().map(|filed| filed.entry.container.as_str().into()).collect())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Held>> {
        let mut state = self.way.state();
        let now = state.now();
        let mut files = state.nodes[self.node].journal.iter_mut();
        let Some(filed) = files.find(|filed| Path::new(filed.entry.container.as_str()) == path) else {
            return Ok(None);
        };
        if std::mem::replace(&mut filed.locked, true) {
            return Ok(None);
        }
        let age = Duration::from_millis(now.since(filed.at).try_into().unwrap_or(u64::MAX));
        self.way.op.replays.store(true, Ordering::Relaxed);
        Ok(Some(Held { way: self.way.clone(), node: self.node, entry: filed.entry.clone(), age }))
    }
}

/// An entry that somebody works on, until he is done or dead.
struct Held {
    way: Way,
    node: usize,
    entry: Entry,
    age: Duration,
}

impl journal::Held for Held {
    fn entry(&self) -> Option<&Entry> {
        Some(&self.entry)
    }

    fn age(&self) -> Duration {
        self.age
    }

    fn remove(self) -> io::Result<()> {
        let container = &self.entry.container;
        self.way.state().nodes[self.node].journal.retain(|filed| filed.entry.container != *container);
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.way.op.replays.store(false, Ordering::Relaxed);
        // A history that is broken off drops its operations while it is looked at.
        let Ok(mut state) = self.way.state.try_lock() else { return };
        for filed in &mut state.nodes[self.node].journal {
            filed.locked &= filed.entry.container != self.entry.container;
        }
    }
}

/// What a person wants of leases.
enum Errand {
    Release(Target),
    Reserve(Reserve),
    Move(Holder, Holder),
}

struct Parts {
    clock: Arc<super::way::HostClock>,
    me: Arc<ops::Identity>,
    deadline: Instant,
    memory: Memory,
}

impl Parts {
    fn at<'a>(&'a self, way: &'a Way) -> ops::Context<'a, Way, Way, super::way::HostClock, Way> {
        ops::Context {
            store: way,
            wire: way,
            clock: &self.clock,
            log: way,
            node: &self.me,
            deadline: self.deadline,
            memory: self.memory.clone(),
        }
    }
}

impl<'h> Player<'h> {
    fn new(history: &'h History, told: bool) -> Self {
        Self {
            history,
            shared: Arc::new(Mutex::new(State::new(&history.setting, Instant::now(), told))),
            tasks: Vec::new(),
            driver: Arc::default(),
            keeps_lists: history.actions.iter().any(Action::is_stale),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.shared.lock().unwrap()
    }

    fn is_broken(&self) -> bool {
        !self.state().faults.is_empty()
    }

    fn end(&mut self) -> Result<Vec<String>, Broken> {
        self.tasks.clear();
        let mut state = self.state();
        let story = state.story.take().unwrap_or_default();
        match state.faults.first().cloned() {
            Some(what) => Err(Broken { what, story }),
            None => Ok(story),
        }
    }

    fn op(&self, role: Role, what: String) -> Op {
        Op::new(role, what, self.state().now())
    }

    fn way(&self, mut op: Op) -> Way {
        if let Some(node) = op.node {
            op.skew = self.state().nodes[node].clock.skew;
        }
        self.state().tell(|| format!("{} {:?}", op.what, op.fates));
        Way { state: self.shared.clone(), op: Arc::new(op) }
    }

    fn spawn(&mut self, way: &Way, run: impl Future<Output = ()> + 'static) {
        let bell = Arc::new(Bell { rung: true.into(), driver: self.driver.clone() });
        self.tasks.push(Task { op: way.op.clone(), bell, run: Box::pin(run) });
    }

    // ---- running

    /// Runs what can run. `false`: nothing could.
    fn turn(&mut self) -> bool {
        let mut any = false;
        let mut index = 0;
        while index < self.tasks.len() {
            let task = &mut self.tasks[index];
            if !task.bell.rung.swap(false, Ordering::Relaxed) {
                index += 1;
                continue;
            }
            any = true;
            let waker = Waker::from(task.bell.clone());
            let ended = task.run.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
            if task.op.killed.load(Ordering::Relaxed) {
                let task = self.tasks.remove(index);
                self.killed(&task.op);
            } else if ended {
                self.tasks.remove(index);
            } else {
                index += 1;
            }
        }
        any
    }

    fn killed(&self, op: &Op) {
        let mut state = self.state();
        state.tell(|| format!("{} is killed", op.what));
        // Its runtime takes a sandbox whose ADD fails for failed, also one that ran.
        if let Some(index) = op.sandbox {
            state.leave(index, false);
        }
    }

    /// Until every operation is done, or held back. Time goes on where one waits for nothing else.
    async fn settle(&mut self) {
        for _ in 0..100_000 {
            if self.turn() {
                continue;
            }
            if self.tasks.iter().all(|task| task.op.waits.load(Ordering::Relaxed) > 0) {
                return;
            }
            self.park().await;
        }
        self.state().fault("an operation does not end".into());
    }

    /// Until a timer rings.
    async fn park(&self) {
        poll_fn(|context| {
            *self.driver.lock().unwrap() = Some(context.waker().clone());
            if self.tasks.iter().any(|task| task.bell.rung.load(Ordering::Relaxed)) {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }

    async fn wait(&mut self, ms: u64) {
        let until = Instant::now() + Duration::from_millis(ms);
        // Whoever waits for a timer is served in time, not afterwards.
        loop {
            self.settle().await;
            let now = Instant::now();
            if now >= until {
                return;
            }
            if self.tasks.is_empty() {
                tokio::time::advance(until - now).await;
                return;
            }
            let sleep = tokio::time::sleep_until(until);
            let mut sleep = std::pin::pin!(sleep);
            poll_fn(|context| {
                *self.driver.lock().unwrap() = Some(context.waker().clone());
                let rung = self.tasks.iter().any(|task| task.bell.rung.load(Ordering::Relaxed));
                if rung { Poll::Ready(()) } else { sleep.as_mut().poll(context) }
            })
            .await;
        }
    }

    /// What is due arrives.
    fn deliver(&mut self, all: bool) {
        loop {
            let flight = {
                let mut state = self.state();
                let step = state.step;
                let Some(at) = state.flights.iter().position(|flight| all || flight.at <= step) else {
                    return;
                };
                state.flights.remove(at)
            };
            let outcome = match &flight.txn {
                Some(txn) => {
                    let mut state = self.state();
                    state.tell(|| format!("what {} sent arrives", flight.op.what));
                    Some(state.apply(txn, &flight.op, flight.role))
                }
                None => flight.outcome,
            };
            if let Some(answer) = flight.answer {
                let _ = answer.send(outcome);
            }
        }
    }

    fn kill(&mut self, which: impl Fn(&Op) -> bool) {
        let (gone, left): (Vec<Task>, Vec<Task>) =
            std::mem::take(&mut self.tasks).into_iter().partition(|task| which(&task.op));
        self.tasks = left;
        for task in gone {
            self.killed(&task.op);
        }
    }

    // ---- beginning

    async fn begin(&mut self) {
        let store = self.state().store.clone();
        store.put(&keys::meta(), record::encode_meta(&Meta { store: StoreId::new("s1").unwrap() }));
        let cluster = record::Cluster { uid: Uid::new("kube-system").unwrap(), last_reap: None };
        store.put(&keys::cluster(&ClusterName::new("prod").unwrap()), record::encode_cluster(&cluster, None));
        for document in self.history.setting.pools.clone() {
            self.edit(document, Edit::Restore, true, &[]).await;
        }
        self.settle().await;
    }

    // ---- actions

    async fn act(&mut self, action: &Action) {
        {
            let mut state = self.state();
            state.step += 1;
            if self.keeps_lists {
                state.remember_lists();
            }
        }
        // No two actions are at the same time: what was before and what after can be told.
        tokio::time::advance(Duration::from_millis(1)).await;
        self.state().notice_silence();
        self.deliver(false);
        self.begin_action(action).await;
        self.settle().await;
        self.state().judge_truth();
    }

    async fn begin_action(&mut self, action: &Action) {
        match action {
            Action::Create { slot, node } => {
                let mut state = self.state();
                if let Some(made) = state.create(*slot, *node) {
                    state.tell(|| format!("the API has {made}"));
                }
            }
            Action::Add { slot, fates, undone } => self.add(*slot, fates, *undone),
            Action::AddOld { slot, fates } => self.add_old(*slot, fates),
            Action::Del { slot, back, stripped, fates } => {
                let sandboxes = self.state().sandboxes_of(*slot);
                if let Some(index) = sandboxes.get(back % sandboxes.len().max(1)) {
                    self.del(*index, *stripped, fates);
                }
            }
            Action::Stop { slot } => {
                let mut state = self.state();
                let up =
                    state.sandboxes_of(*slot).into_iter().find(|i| state.sandboxes[*i].stage == Stage::Up);
                if let Some(index) = up {
                    state.leave(index, false);
                    state.tell(|| format!("the newest sandbox of slot {slot} dies"));
                }
            }
            Action::Gc { node, fates } => self.gc(*node, fates),
            Action::Flush { node, fates } => self.flush(*node, fates),
            Action::Delete { slot } => {
                self.told(action);
                self.state().delete_pod(*slot);
            }
            Action::Force { slot } => {
                self.told(action);
                self.state().remove(*slot);
            }
            Action::Gone { slot } => self.gone(*slot),
            Action::Finish { slot, timed } => {
                self.told(action);
                self.state().finish(*slot, *timed);
            }
            Action::Scale { replicas } if self.state().set.is_some() => {
                self.told(action);
                self.state().set_wants(Some(*replicas));
            }
            Action::Scale { .. } => {}
            Action::SetCreate { replicas } => {
                self.told(action);
                self.state().set_wants(Some(*replicas));
            }
            Action::SetDelete => {
                self.told(action);
                self.state().set_wants(None);
            }
            Action::Roll => {
                self.told(action);
                self.state().roll();
            }
            Action::Crash { node } => {
                self.told(action);
                self.kill(|op| op.node == Some(*node));
                self.state().crash(*node);
            }
            Action::Back { node } => {
                self.told(action);
                self.state().back(*node);
            }
            Action::CutControl { node } => {
                self.told(action);
                let mut state = self.state();
                state.nodes[*node].link = match state.nodes[*node].link {
                    Link::None => Link::None,
                    Link::Whole | Link::NoControl => Link::NoControl,
                };
                state.falls_silent(*node);
            }
            // Nor is what an ADD of a pod that is gone does meanwhile to one that nobody hears.
            Action::CutAll { .. } if self.adds_what_is_gone() => {}
            Action::CutAll { node } => {
                self.told(action);
                self.kill(|op| op.node == Some(*node));
                let mut state = self.state();
                state.nodes[*node].link = Link::None;
                state.falls_silent(*node);
            }
            Action::NodeDelete { node } => {
                let mut state = self.state();
                if state.nodes[*node].is_cut() {
                    state.nodes[*node].ready = None;
                    state.api.state().nodes.remove(&node_name(*node));
                }
            }
            Action::Sick { node } => {
                self.told(action);
                let state = self.state();
                if !state.nodes[*node].is_cut()
                    && let Some(known) = state.api.state().nodes.get_mut(&node_name(*node))
                {
                    known.ready = Ready::False;
                }
            }
            Action::Taint { node } => {
                let state = self.state();
                if state.nodes[*node].is_cut()
                    && let Some(known) = state.api.state().nodes.get_mut(&node_name(*node))
                {
                    known.out_of_service = true;
                }
            }
            Action::Edit { pool, edit, force, fates } => {
                if let Some(document) = self.history.setting.pools.get(*pool).cloned() {
                    self.edit(document, *edit, *force, fates).await;
                }
            }
            Action::Desk { deed, fates } => self.desk(*deed, fates),
            Action::Freeze => {
                let at = self.state().now();
                let frozen = Frozen { why: "a person".into(), by: "a person".into(), at };
                self.state().freeze(Some(&frozen));
            }
            Action::Thaw => self.state().freeze(None),
            Action::Reap { host, pods, nodes, fates } => self.reap(*host, *pods, *nodes, fates),
            Action::Wait { ms } => {
                self.told(action);
                self.wait(*ms).await;
            }
        }
    }

    fn told(&self, action: &Action) {
        self.state().tell(|| action.to_string());
    }

    fn request(&self, index: usize) -> (Add, u64) {
        let state = self.state();
        let sandbox = &state.sandboxes[index];
        let here = &state.nodes[sandbox.node];
        let started = here.clock.boot_clock();
        let request = Add {
            caller: Caller {
                cluster: here.me.cluster.clone(),
                node: here.me.node.clone(),
                labels: Vec::new(),
                network: NetworkName::new("lan").unwrap(),
                holder: sandbox.holder.clone(),
            },
            container: sandbox.container.clone(),
            ifname: IfName::new("eth0").unwrap(),
            uid: sandbox.uid.clone(),
            asked: None,
            requested: Vec::new(),
            requested_by: String::new(),
            sticky: None,
            inline: None,
            routes: None,
            dns: None,
            avoid_first: false,
            started,
        };
        (request, started)
    }

    fn run_add(&mut self, index: usize, fates: &[(u8, Fate)], undone: bool) {
        let (request, started) = self.request(index);
        // A runtime ends what it still does for a container, and its GC, before it adds one.
        let here = self.state().sandboxes[index].node;
        let container = request.container.clone();
        self.kill(|op| {
            op.node == Some(here) && (op.role() == Role::Gc || op.container.as_ref() == Some(&container))
        });
        let (node, what) = {
            let state = self.state();
            let sandbox = &state.sandboxes[index];
            let what = format!("ADD {} {} on n{}", sandbox.holder, sandbox.container, sandbox.node + 1);
            (sandbox.node, what)
        };
        let op = Op {
            node: Some(node),
            sandbox: Some(index),
            started,
            fates: fates.to_vec(),
            ..self.op(Role::Add, what)
        };
        let way = self.way(op);
        let process = Process { way: way.clone(), node };
        self.spawn(&way, process.add(request, undone));
    }

    fn add(&mut self, slot: usize, fates: &[(u8, Fate)], undone: bool) {
        let index = {
            let mut state = self.state();
            let (holder, uid, node) = if slot < PODS {
                let Some(pod) = state.pod_in(slot).filter(|p| !p.phase.is_final() && p.deleting.is_none())
                else {
                    return;
                };
                let Some(node) = (0..NODES).find(|node| pod.node == Some(node_name(*node))) else { return };
                (holder(&pod.key.to_string()), Some(pod.uid), node)
            } else {
                (State::container_in(slot), None, slot - PODS)
            };
            if !state.nodes[node].alive {
                return;
            }
            let own = |i: &usize| state.sandboxes[*i].uid == uid && state.sandboxes[*i].node == node;
            let known: Vec<usize> = state.sandboxes_of(slot).into_iter().filter(own).collect();
            let up = known.iter().copied().find(|i| state.sandboxes[*i].stage == Stage::Up);
            let starting: Vec<usize> =
                known.iter().copied().filter(|i| state.sandboxes[*i].stage == Stage::Starting).collect();
            match up {
                // Answered again; not undone: it would be the runtime that ends what it runs.
                Some(index) => {
                    drop(state);
                    return self.run_add(index, fates, false);
                }
                // Its name is its life, and CNI has one call at a time for a container.
                None if slot >= PODS && self.is_called(&state, &holder) => return,
                None => {}
            }
            for index in starting {
                state.leave(index, false);
            }
            // One kubelet does not run two pods of one name: it has ended the older one, though its DEL may be lost.
            for index in state.sandboxes_of(slot) {
                if state.sandboxes[index].holder == holder && state.sandboxes[index].node == node {
                    state.leave(index, false);
                }
            }
            state.start(slot, holder, uid, node)
        };
        self.run_add(index, fates, undone);
    }

    /// Does a process still work on a sandbox of this holder?
    fn is_called(&self, state: &State, holder: &Holder) -> bool {
        let own = |index: usize| state.sandboxes[index].holder == *holder;
        self.tasks.iter().any(|task| task.op.sandbox.is_some_and(own))
            || state.sandboxes.iter().any(|s| s.holder == *holder && s.stage == Stage::Starting)
    }

    /// Does an ADD work for a pod that the API has no more?
    fn adds_what_is_gone(&self) -> bool {
        let state = self.state();
        self.tasks.iter().filter_map(|task| task.op.sandbox).any(|index| {
            let sandbox = &state.sandboxes[index];
            sandbox.uid.is_some() && state.pod_of(&sandbox.holder).map(|pod| pod.uid) != sandbox.uid
        })
    }

    fn add_old(&mut self, slot: usize, fates: &[(u8, Fate)]) {
        let index = {
            let mut state = self.state();
            // What a node that is cut off without a sound does to others is not promised.
            if state.nodes.iter().any(|node| node.link == Link::None) {
                return;
            }
            let now = state.pod_in(slot);
            let old = state.sandboxes_of(slot).into_iter().find(|index| {
                let sandbox = &state.sandboxes[*index];
                state.nodes[sandbox.node].alive
                    && sandbox.stage != Stage::Up
                    && now.as_ref().is_none_or(|pod| {
                        sandbox.uid.as_ref() != Some(&pod.uid) && pod.node != Some(node_name(sandbox.node))
                    })
            });
            let Some(old) = old else { return };
            let (holder, uid, node) = {
                let sandbox = &state.sandboxes[old];
                (sandbox.holder.clone(), sandbox.uid.clone(), sandbox.node)
            };
            let runs = state.sandboxes.iter().any(|sandbox| {
                sandbox.holder == holder
                    && sandbox.node == node
                    && matches!(sandbox.stage, Stage::Up | Stage::Starting)
            });
            if runs {
                return;
            }
            state.start(slot, holder, uid, node)
        };
        self.run_add(index, fates, false);
    }

    fn del(&mut self, index: usize, stripped: bool, fates: &[(u8, Fate)]) {
        // A runtime kills the ADD that it no longer waits for.
        self.kill(|op| op.sandbox == Some(index));
        let (request, node, what) = {
            let mut state = self.state();
            let sandbox = &state.sandboxes[index];
            let node = sandbox.node;
            if !state.nodes[node].alive {
                return;
            }
            // A container's ID comes again: the runtime ends the life that there is.
            let (slot, container) = (sandbox.slot, sandbox.container.clone());
            let newest = state.sandboxes_of(slot).into_iter().next();
            if slot >= PODS && newest != Some(index) {
                return;
            }
            state.leave(index, true);
            let sandbox = &state.sandboxes[index];
            let holder =
                Some(sandbox.holder.clone()).filter(|h| !stripped && matches!(h, Holder::Pod { .. }));
            let request = Del {
                cluster: ClusterName::new("prod").unwrap(),
                node: node_name(node),
                network: NetworkName::new("lan").unwrap(),
                container,
                ifname: IfName::new("eth0").unwrap(),
                holder,
            };
            let what = format!("DEL {} {} on n{}", sandbox.holder, sandbox.container, node + 1);
            (request, node, what)
        };
        let op = Op {
            node: Some(node),
            container: Some(request.container.clone()),
            fates: fates.to_vec(),
            ..self.op(Role::Del, what)
        };
        let way = self.way(op);
        let process = Process { way: way.clone(), node };
        self.spawn(&way, process.del(request, index));
    }

    fn gc(&mut self, node: usize, fates: &[(u8, Fate)]) {
        let valid = {
            let state = self.state();
            if !state.nodes[node].alive {
                return;
            }
            let valid = state
                .sandboxes
                .iter()
                .filter(|s| s.node == node && matches!(s.stage, Stage::Up | Stage::Starting))
                .map(|s| (s.container.clone(), IfName::new("eth0").unwrap()));
            valid.collect()
        };
        let what = format!("GC on n{}", node + 1);
        let way = self.way(Op { node: Some(node), fates: fates.to_vec(), ..self.op(Role::Gc, what) });
        let process = Process { way: way.clone(), node };
        self.spawn(&way, process.gc(valid));
    }

    fn flush(&mut self, node: usize, fates: &[(u8, Fate)]) {
        if !self.state().nodes[node].alive {
            return;
        }
        let what = format!("flush on n{}", node + 1);
        let way = self.way(Op { node: Some(node), fates: fates.to_vec(), ..self.op(Role::Flush, what) });
        let process = Process { way: way.clone(), node };
        self.spawn(&way, async move {
            let parts = process.context(FLUSH_DEADLINE);
            let (ctx, journal) = (parts.at(&process.way), process.journal());
            // What stays is told by the next.
            let _ = replay::replay(&ctx, &journal, usize::MAX, parts.deadline).await;
        });
    }

    fn gone(&mut self, slot: usize) {
        let mut state = self.state();
        let Some(pod) = state.pod_in(slot).filter(|pod| pod.deleting.is_some() || pod.phase.is_final())
        else {
            return;
        };
        let node = (0..NODES).find(|node| pod.node == Some(node_name(*node))).unwrap_or(0);
        let exists = state.api.state().nodes.contains_key(&node_name(node));
        if exists && state.nodes[node].is_cut() {
            return;
        }
        if !state.nodes[node].is_cut() {
            for index in state.sandboxes_of(slot) {
                if state.sandboxes[index].uid.as_ref() == Some(&pod.uid) {
                    state.leave(index, false);
                }
            }
        }
        state.tell(|| format!("{} is gone", pod.key));
        state.remove(slot);
    }

    async fn edit(&mut self, mut document: PoolDocument, edit: Edit, force: bool, fates: &[(u8, Fate)]) {
        if edit == Edit::Domain {
            document.domain = Some("other".into());
        }
        for range in &mut document.ranges {
            match edit {
                Edit::Restore | Edit::Delete => {}
                Edit::Shrink => range.end.clone_from(&range.start),
                Edit::Move => {
                    let moved =
                        |text: &Option<String>| text.as_ref().map(|a| a.replace("10.0.0.", "10.0.1."));
                    (range.start, range.end) = (moved(&range.start), moved(&range.end));
                    range.subnet = range.subnet.replace("10.0.0.0", "10.0.1.0");
                }
                Edit::Exclude if range.start != range.end => {
                    range.exclude = range.start.iter().cloned().collect();
                }
                Edit::Exclude => {}
                Edit::Domain => {
                    range.subnet = elsewhere(&range.subnet);
                    for end in [&mut range.start, &mut range.end] {
                        *end = end.as_deref().map(elsewhere);
                    }
                }
            }
        }
        let what = format!("{edit:?} of pool {}", document.name);
        let way = self.way(Op { fates: fates.to_vec(), ..self.op(Role::Person, what) });
        let there = way.clone();
        self.spawn(&way, async move {
            if edit == Edit::Delete {
                let _ = pools::delete(&there, &[PoolName::new(document.name).unwrap()], force, false).await;
            } else {
                let wanted = Wanted::read("sim", document).unwrap();
                let _ = pools::apply(&there, &[wanted], Rules::default()).await;
            }
        });
        self.settle().await;
    }

    /// A person changes leases by hand, and is told what does not go.
    fn desk(&mut self, deed: Deed, fates: &[(u8, Fate)]) {
        let last = |slot: usize| -> Option<Holder> {
            match slot {
                0..ORDINALS => Some(holder(&format!("shop/db-{slot}"))),
                PODS.. => Some(State::container_in(slot)),
                _ => self.state().pods[slot].as_ref().map(|(key, _)| holder(&key.to_string())),
            }
        };
        let address = |at: u8| IpAddr::from([10, 0, 0, 10 + at]);
        let errand = match deed {
            Deed::Release { slot } => last(slot).map(|whose| Errand::Release(Target::Holder(whose))),
            Deed::Unplug { at } => Some(Errand::Release(Target::Address(address(at)))),
            Deed::Reserve { slot, at } => last(slot)
                .map(|holder| Errand::Reserve(Reserve::Pod { holder, addresses: vec![address(at)] })),
            Deed::Plug { at } => {
                Some(Errand::Reserve(Reserve::Device { address: address(at), reason: "printer".into() }))
            }
            Deed::Move { from, to } => last(from).zip(last(to)).map(|(from, to)| Errand::Move(from, to)),
        };
        let Some(errand) = errand else { return };
        let way = self.way(Op {
            fates: fates.to_vec(),
            deed: Some(deed),
            ..self.op(Role::Desk, format!("{deed:?}"))
        });
        let there = way.clone();
        self.spawn(&way, async move {
            let now = there.state().now();
            let scope = Scope { home: Some(ClusterName::new("prod").unwrap()), ..Scope::default() };
            let (network, ifname) = (NetworkName::new("lan").unwrap(), IfName::new("eth0").unwrap());
            let network = Some(&network);
            let ended = match errand {
                Errand::Release(target) => {
                    let gone = leases::release(&there, &scope, &target, network, false, now, false);
                    gone.await.map(drop).map_err(Error::from)
                }
                Errand::Reserve(what) => {
                    let made = leases::reserve(&there, &scope, &what, network, &ifname, now, false);
                    made.await.map(drop).map_err(Error::from)
                }
                Errand::Move(from, to) => {
                    let moved = leases::move_leases(&there, &scope, &from, &to, network, now, false);
                    moved.await.map(drop).map_err(Error::from)
                }
            };
            if let Err(why) = ended {
                there.state().tell(|| format!("{} is refused: {why}", there.op.what));
            }
        });
    }

    fn reap(&mut self, host: usize, pods: Lie, nodes: Lie, fates: &[(u8, Fate)]) {
        let mut what = format!("reap {}", host + 1);
        if (pods, nodes) != (Lie::None, Lie::None) {
            what += &format!(" (pods {pods:?}, nodes {nodes:?})");
        }
        let clock = self.state().reapers[host].clone();
        let skew = clock.skew;
        let way = self.way(Op { fates: fates.to_vec(), skew, pods, nodes, ..self.op(Role::Reap, what) });
        let policy = Policy {
            absent_after: Duration::from_secs(self.history.setting.absent_after_s),
            ..Policy::default()
        };
        let there = way.clone();
        self.spawn(&way, async move {
            let cluster = ClusterName::new("prod").unwrap();
            let context = reaper::Context {
                store: &there,
                api: &there,
                clock: &*clock,
                log: &there,
                cluster: &cluster,
                policy: &policy,
                stop: &reaper::Stop::default(),
            };
            let options = Options { mend: true, ..Options::default() };
            let ended = reaper::pass(&context, options, &|_| {}).await;
            let mut state = there.state();
            match ended {
                Ok(report) => {
                    let given = report.given_back();
                    let (candidates, brakes) = (report.candidates, report.brakes.len());
                    state.tell(|| {
                        format!("{} gives back {given} of {candidates}, brakes {brakes}", there.op.what)
                    });
                    if !report.mended.notes.is_empty() {
                        let text = format!("{} finds half pairs: {:?}", there.op.what, report.mended.notes);
                        state.fault(text);
                    }
                }
                Err(error) => state.tell(|| format!("{} fails: {error}", there.op.what)),
            }
        });
    }

    // ---- quiet

    /// Nothing goes wrong any more: everything arrives, every node is back, every kubelet and every controller does its work.
    /// Whoever should have an address gets one, and after a reap nobody else has one.
    async fn quiet(&mut self) {
        self.state().tell(|| "-- quiet".into());
        self.deliver(true);
        self.settle().await;
        self.deliver(true);
        self.settle().await;
        self.state().freeze(None);
        if let Some((node, death)) = self.history.setting.dies {
            self.a_node_dies(node, death).await;
        }
        if self.is_broken() {
            return;
        }
        for node in 0..NODES {
            self.state().back(node);
        }
        self.restore_pools().await;
        self.state().judge_truth();
        // Clocks differ by minutes, and what was declined is offered again.
        self.wait(660_000).await;
        for slot in 0..PODS {
            self.gone(slot);
        }
        self.kubelets().await;
        if self.is_broken() {
            return;
        }
        // What is missed first, and what was missed.
        self.reap_after(&[0, 130_000]).await;
        self.judge_leaks(|slot| slot < PODS);
        // Whose owner is missed first, and whose owner was.
        self.reap_after(&[660_000, 660_000]).await;
        self.state().judge_retention();
        self.wait(6_000).await;
        for slot in 0..SLOTS {
            if !self.is_broken() {
                self.wants_an_address(slot).await;
            }
        }
        if self.is_broken() {
            return;
        }
        self.judge_leaks(|slot| slot < PODS);
        // Of a container without a pod only its runtime can tell that it is gone.
        for node in 0..NODES {
            self.gc(node, &[]);
            self.settle().await;
        }
        self.judge_leaks(|slot| slot >= PODS);
        if self.history.setting.pools.iter().any(is_held_for_so_long) {
            self.wait(2 * 3_600_000).await;
            self.reap_after(&[0, 660_000]).await;
            self.state().judge_hold_for();
        }
    }

    /// Each pool is as it was at first, but where a lease of it is of another domain.
    async fn restore_pools(&mut self) {
        for document in self.history.setting.pools.clone() {
            self.edit(document, Edit::Restore, true, &[]).await;
        }
        let mut state = self.state();
        for document in &self.history.setting.pools {
            let wanted = Wanted::read("sim", document.clone()).unwrap();
            let (name, domain) = (wanted.pool.name(), wanted.pool.domain());
            let mut leased = state.mirror.leases.values().flat_map(|lease| &lease.addresses);
            let stays = leased.any(|a| a.pool.as_ref() == Some(name) && a.domain != *domain);
            let is_back = state.mirror.pools.get(name).is_some_and(|(pool, _)| *pool == wanted.pool);
            if !is_back && !stays {
                state.fault(format!("pool {name} is not as it was applied"));
            }
        }
    }

    /// One node is dead and stays so; nothing else goes wrong any more. What its pods had is given back by the reaper alone,
    /// and so is what ended pods had whose DEL was lost, while the API has them still; and who comes instead of them gets an
    /// address.
    async fn a_node_dies(&mut self, dead: usize, death: Death) {
        self.state().tell(|| format!("-- n{} dies: {death:?}", dead + 1));
        (0..NODES).filter(|node| *node != dead).for_each(|node| self.state().back(node));
        self.kill(|op| op.node == Some(dead));
        self.state().crash(dead);
        self.restore_pools().await;
        // Nobody misses it sooner; and what was declined is offered again.
        self.wait(660_000).await;
        {
            let mut state = self.state();
            state.notice_silence();
            let name = node_name(dead);
            match death {
                Death::Silent => {}
                Death::OutOfService => {
                    if let Some(node) = state.api.state().nodes.get_mut(&name) {
                        node.out_of_service = true;
                    }
                }
                Death::Deleted => drop(state.api.state().nodes.remove(&name)),
            }
            for slot in 0..PODS {
                if state.pod_in(slot).is_some_and(|pod| pod.node == Some(name.clone())) {
                    state.delete_pod(slot);
                }
            }
            for index in 0..state.sandboxes.len() {
                let pod = state.pod_of(&state.sandboxes[index].holder);
                if pod.is_some_and(|pod| pod.phase.is_final()) {
                    state.leave(index, false);
                }
            }
        }
        self.wait(40_000).await;
        for slot in 0..PODS {
            if self.state().pod_in(slot).is_some_and(|pod| !pod.phase.is_final()) {
                self.gone(slot);
            }
        }
        self.kubelets().await;
        // A lease that becomes sticky is noted before anything is given back.
        self.reap_after(&[0, 130_000, 130_000]).await;
        self.state().judge_given_back(dead);
        for slot in 0..PODS {
            if self.is_broken() {
                return;
            }
            let is_there = self.state().pod_in(slot).is_some_and(|pod| pod.node == Some(node_name(dead)));
            if slot < ORDINALS && is_there {
                self.state().remove(slot);
            }
            self.wants_an_address(slot).await;
        }
    }

    /// The kubelets hear what has become of their pods, and end what is to end. What a DEL of theirs was lost for, stays lost.
    async fn kubelets(&mut self) {
        let count = self.state().sandboxes.len();
        for index in 0..count {
            let ends = {
                let state = self.state();
                let up = state.sandboxes[index].stage == Stage::Up;
                let container = state.sandboxes[index].slot >= PODS;
                let newest = state.sandboxes_of(state.sandboxes[index].slot).first() == Some(&index);
                // Of a container without a pod nobody but its runtime knows.
                (up && !state.is_living(index))
                    || (container && newest && !up && !state.sandboxes[index].ended)
            };
            if ends {
                self.del(index, false, &[]);
                self.settle().await;
            }
        }
        for node in 0..NODES {
            self.flush(node, &[]);
            self.settle().await;
        }
    }

    async fn reap_after(&mut self, waits: &[u64]) {
        for ms in waits {
            self.wait(*ms).await;
            self.reap(0, Lie::None, Lie::None, &[]);
            self.settle().await;
        }
    }

    async fn wants_an_address(&mut self, slot: usize) {
        if slot < ORDINALS {
            let mut state = self.state();
            if state.is_wanted(slot as u64) {
                state.create(slot, 0);
            }
        }
        let wanted = {
            let state = self.state();
            // Its runtime starts a container without a pod at any time.
            slot >= PODS || state.pod_in(slot).is_some_and(|pod| state.lives(&pod) && pod.deleting.is_none())
        };
        if !wanted || self.runs(slot) {
            return;
        }
        // Once more after a cool-down.
        for _ in 0..2 {
            self.add(slot, &[], false);
            self.settle().await;
            if self.runs(slot) {
                return;
            }
            self.wait(6_000).await;
        }
        let mut state = self.state();
        if !state.may_lack(slot) {
            let holder = if slot < PODS {
                state.pod_in(slot).map(|pod| pod.key.to_string()).unwrap_or_default()
            } else {
                State::container_in(slot).to_string()
            };
            let leases = super::cluster::show(&state.mirror.leases);
            state.fault(format!("{holder} gets no address; leases: {leases}"));
        }
    }

    fn runs(&self, slot: usize) -> bool {
        let state = self.state();
        state.sandboxes_of(slot).iter().any(|index| state.is_living(*index))
    }

    /// A lease that is bound has a sandbox that runs, or its pod waits for its next one.
    fn judge_leaks(&self, of: impl Fn(usize) -> bool) {
        let mut state = self.state();
        let mut out = faults(&state.store);
        for lease in state.mirror.leases.values() {
            let Some(stamp) = lease.bound() else { continue };
            let pod = matches!(lease.id.holder, Holder::Pod { .. });
            let runs = state.sandboxes.iter().any(|sandbox| {
                sandbox.stage == Stage::Up
                    && sandbox.container == stamp.container
                    && node_name(sandbox.node) == stamp.node
            });
            let waits = state.pod_of(&lease.id.holder).is_some_and(|pod| state.lives(&pod));
            if of(if pod { 0 } else { PODS }) && !runs && !waits {
                out.push(format!(
                    "leaked: {} is bound to {} on {}",
                    lease.id.holder, stamp.container, stamp.node
                ));
            }
        }
        state.judge_truth();
        for text in out {
            state.fault(text);
        }
    }
}

/// The same of the other domain's range.
fn elsewhere(text: &str) -> String {
    text.replace("10.0.0.", "10.0.2.").replace("fd00::", "fd02::")
}

fn is_held_for_so_long(pool: &PoolDocument) -> bool {
    pool.retention.as_ref().is_some_and(|retention| retention.hold_for.is_some())
}

impl State {
    /// Has every address that this slot's pod may have a rightful holder, or may it not start where it is?
    fn may_lack(&self, slot: usize) -> bool {
        let serves = |name: &PoolName| name.as_str() == "lan" || slot < ORDINALS;
        let node = self
            .sandboxes_of(slot)
            .first()
            .map(|index| node_name(self.sandboxes[*index].node))
            .unwrap_or_else(|| node_name(0));
        let may_use = |pool: &leasehold::domain::pool::Pool| {
            pool.nodes().is_empty() || pool.nodes().iter().any(|rule| rule.holds(&node, &[]))
        };
        let full = |pool: &leasehold::domain::pool::Pool| {
            pool.families().into_iter().any(|family| {
                pool.ranges().iter().filter(|range| range.family() == family).all(|range| {
                    let held = self
                        .mirror
                        .held
                        .keys()
                        .filter(|place| range.usable().contains(place.address))
                        .count();
                    held as u128 >= range.usable().size()
                })
            })
        };
        let pools: Vec<_> = self.mirror.pools.iter().filter(|(name, _)| serves(name)).collect();
        // A pod whose pool is not for its node waits for another node.
        let waits = self.sandboxes_of(slot).first().is_some_and(|index| {
            let lease = self.lease_of(&self.sandboxes[*index].holder);
            let names = lease.iter().flat_map(|lease| &lease.addresses).filter_map(|a| a.pool.as_ref());
            names.filter_map(|name| self.mirror.pools.get(name)).any(|(pool, _)| !may_use(pool))
        });
        // A person reserved an address that its pool does not give out now.
        let holder = self.sandboxes_of(slot).first().map(|index| self.sandboxes[*index].holder.clone());
        let lease = holder.and_then(|holder| self.lease_of(&holder)).filter(|lease| lease.reserved);
        let gives = |a: &LeasedAddress| {
            pools
                .iter()
                .any(|(name, (pool, _))| a.pool.as_ref() == Some(name) && pool.range_of(a.address).is_some())
        };
        let unfit = lease.is_some_and(|lease| !lease.addresses.iter().all(gives));
        waits || unfit || pools.iter().all(|(_, (pool, _))| !may_use(pool) || full(pool))
    }
}
