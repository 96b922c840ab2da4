//! Sixty-four callers on four nodes: each has pods of its own, whose sandboxes it starts, looks at, starts again here or
//! elsewhere and ends, by whole plugin processes, on a pool that is full at times. They write down what they see.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    fs::File,
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    cluster::Nodes,
    history::{Answer, Call, End, Restored, Verb, impossible},
    refusals::{self, Reason, untrue},
    witness::{self, Look},
};
use crate::support::{
    call::{self, Cli},
    chance::Chance,
    folder::Folder,
    ground,
    host::HostFile,
    process::{PATIENCE, Running, eventually, report, within},
};

const CALLERS: u64 = 64;
/// Of each caller. The first of every fourth caller is sticky.
const PODS: u64 = 2;
/// So many addresses that it is full at times.
pub(super) const POOL: u32 = 92;
/// Beside twice what the machine takes meanwhile for a process that does nothing and a file that is on the disk.
const SLACK: Duration = Duration::from_secs(1);
/// Of a machine that takes longer no more is believed.
const SLOWEST: Duration = Duration::from_secs(2);
/// As many ADDs as show that all goes on.
const ENOUGH: usize = 50;

/// How they work.
#[derive(Clone, Debug)]
pub(super) struct Ways {
    /// What a call may take, as the nodes are configured.
    add: Duration,
    del: Duration,
    /// Between two calls of one caller, on average: the processors must keep up.
    pause: Duration,
    /// Are there pods that keep their addresses while they are away?
    sticky: bool,
    namespace: String,
}

impl Ways {
    /// With the deadlines that are the product's defaults.
    pub(super) fn usual() -> Self {
        Self {
            add: Duration::from_secs(10),
            del: Duration::from_secs(5),
            pause: Duration::from_millis(500),
            sticky: true,
            namespace: "shop".into(),
        }
    }

    /// Where each call costs more, such as a handshake and a login.
    pub(super) fn at_leisure() -> Self {
        Self { pause: Duration::from_secs(1), ..Self::usual() }
    }

    /// Where many calls must come to their deadline.
    pub(super) fn short_of_time() -> Self {
        Self { add: Duration::from_secs(4), del: Duration::from_secs(2), ..Self::usual() }
    }

    /// Where only pods that run are known from elsewhere than the store.
    pub(super) fn in_namespace(namespace: &str) -> Self {
        Self { sticky: false, namespace: namespace.into(), ..Self::usual() }
    }
}

/// Callers at work, and what they have seen so far.
pub(super) struct Crowd {
    pub(super) nodes: Vec<HostFile>,
    pub(super) admin: HostFile,
    /// The addresses that they share.
    range: String,
    ways: Ways,
    start: Instant,
    calls: Mutex<Vec<Call>>,
    /// The sandboxes that run, by pod.
    living: Mutex<BTreeMap<String, Sandbox>>,
    /// Whoever has a turn holds it.
    turns: RwLock<()>,
    /// When the store could not answer, and so need not have.
    excused: Mutex<Vec<(Duration, Duration)>>,
    restored: Mutex<Option<Restored>>,
    /// A sandbox from before is started again before anything else is done with it.
    renewed: Mutex<Duration>,
    /// When what needs no store began and ended.
    idle: Mutex<Vec<(Duration, Duration)>>,
    /// What an operator sees of the store all the time.
    looks: Mutex<Vec<Look>>,
    /// Nobody pauses.
    hurry: AtomicBool,
    over: AtomicBool,
}

/// A pod's sandbox.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    container: String,
    node: usize,
    pub(super) address: String,
    since: Duration,
}

#[derive(Debug)]
struct Pod {
    name: String,
    sticky: bool,
    /// The one that runs.
    here: Option<Sandbox>,
    /// Those that ran. Their DEL may come, late and more than once.
    dead: Vec<Sandbox>,
}

impl Crowd {
    /// Lets them work until `act` is done, and judges what they saw.
    pub(super) fn work(nodes: Nodes, ways: Ways, act: impl FnOnce(&Self)) {
        let seconds = |time: Duration| format!("{}s", time.as_secs());
        let setting = json!({ "add": seconds(ways.add), "del": seconds(ways.del) });
        let crowd = &Self {
            nodes: nodes.nodes.into_iter().map(|node| node.with("deadlines", setting.clone())).collect(),
            admin: nodes.admin,
            range: nodes.range,
            ways,
            start: Instant::now(),
            calls: Mutex::default(),
            living: Mutex::default(),
            turns: RwLock::default(),
            excused: Mutex::default(),
            restored: Mutex::default(),
            renewed: Mutex::default(),
            idle: Mutex::default(),
            looks: Mutex::default(),
            hurry: AtomicBool::new(false),
            over: AtomicBool::new(false),
        };
        thread::scope(|scope| {
            for number in 0..CALLERS {
                scope.spawn(move || Caller::new(crowd, number).work());
            }
            scope.spawn(|| crowd.measure());
            scope.spawn(|| crowd.watch());
            let over = Over(crowd); // they end, too, if this panics
            act(crowd);
            drop(over);
        });
        crowd.judge();
    }

    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Lets something happen while all of them are in the middle of a call.
    pub(super) fn strike<T>(&self, fault: impl FnOnce() -> T) -> T {
        let calls = || lock(&self.calls).len();
        let before = calls();
        self.hurry.store(true, Ordering::SeqCst);
        let all = usize::try_from(CALLERS).unwrap();
        eventually("everybody to call", || (calls() >= before + all).then_some(()));
        self.hurry.store(false, Ordering::SeqCst);
        fault()
    }

    /// Waits until as many ADDs as are enough, each begun from now on, have got an address.
    #[track_caller]
    pub(super) fn goes_on(&self, while_: &str) {
        let begun = self.now();
        let all = within(PATIENCE, || {
            thread::sleep(Duration::from_millis(50));
            let calls = lock(&self.calls);
            let since = calls.iter().filter(|call| call.verb == Verb::Add && call.began >= begun);
            let took: Vec<_> = since
                .filter(|call| matches!(call.answer, Answer::Address(_)))
                .map(|call| call.ended - call.began)
                .collect();
            (took.len() >= ENOUGH).then_some(took)
        });
        let Some(took) = all else {
            let calls = lock(&self.calls);
            let last: Vec<_> = calls.iter().rev().take(20).collect();
            panic!("{while_}: not {ENOUGH} ADDs in {PATIENCE:?}; the last of all: {last:#?}");
        };
        let (count, slowest) = (took.len(), took.iter().max().unwrap());
        report(&format!(
            "{while_}: {count} ADDs in {:.1?}, the slowest in {slowest:.1?}",
            self.now() - begun
        ));
    }

    /// Waits until a call that began from now on is refused with these words.
    #[track_caller]
    pub(super) fn is_refused(&self, words: &str) {
        let begun = self.now();
        eventually(words, || {
            thread::sleep(Duration::from_millis(50));
            let since = |call: &&Call| call.began >= begun;
            lock(&self.calls).iter().rev().take_while(|call| call.ended >= begun).filter(since).find_map(
                |call| matches!(&call.answer, Answer::Refused(text) if text.contains(words)).then_some(()),
            )
        });
    }

    /// Waits until nodes have journalled some more.
    #[track_caller]
    pub(super) fn journals_more(&self) {
        const SOME: usize = 10;
        let count = || self.journalled().len();
        let before = count();
        eventually("ends in a journal", || {
            thread::sleep(Duration::from_millis(100));
            (count() >= before + SOME).then_some(())
        });
    }

    /// Does something while nobody calls, with the sandboxes that run.
    pub(super) fn paused<T>(&self, act: impl FnOnce(&BTreeMap<String, Sandbox>) -> T) -> T {
        let _turns = self.turns.write().unwrap_or_else(PoisonError::into_inner);
        act(&lock(&self.living))
    }

    /// The store is that of this time again.
    pub(super) fn was_restored(&self, from: Duration) {
        *lock(&self.restored) = Some(Restored { from, at: self.now() });
    }

    /// Every sandbox of now is to be started again.
    pub(super) fn renew(&self) {
        *lock(&self.renewed) = self.now();
    }

    /// Does something that the store cannot answer through: a call that meets it may be refused, in time.
    pub(super) fn excused<T>(&self, act: impl FnOnce() -> T) -> T {
        let from = self.now();
        let result = act();
        lock(&self.excused).push((from, self.now()));
        result
    }

    /// A call that needs no store, and what a journal does, all the time: what they take is the machine's.
    fn measure(&self) {
        let folder = Folder::in_memory(); // as the nodes' are
        let file = folder.path().join("entry");
        while !self.over.load(Ordering::SeqCst) {
            let began = self.now();
            call::Call::command("VERSION", &self.nodes[0]).run().0.success();
            fs::write(&file, b"entry").unwrap();
            for path in [&file, folder.path()] {
                File::open(path).unwrap().sync_all().unwrap();
            }
            fs::remove_file(&file).unwrap();
            lock(&self.idle).push((began, self.now()));
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Knows at any time how far the store has come.
    fn watch(&self) {
        const PAUSE: Duration = Duration::from_millis(20);
        ground::with_store(&self.admin, async |store| {
            while !self.over.load(Ordering::SeqCst) {
                let look = witness::look(store, || self.now()).await;
                lock(&self.looks).extend(look);
                tokio::time::sleep(PAUSE).await;
            }
        });
    }

    /// ADDs that were told that the pool is full while the store never held all of it. A store that was restored has another
    /// past.
    fn falsely_full(&self, calls: &[Call]) -> Vec<Call> {
        if lock(&self.restored).is_some() {
            return Vec::new();
        }
        let looks = lock(&self.looks);
        let full = calls.iter().filter(|call| is_told_full(&call.answer));
        let bounded = full.filter_map(|call| Some((call, witness::between(&looks, call.began, call.ended)?)));
        let bounded: Vec<_> = bounded.collect();
        report(&format!("{} were told that the pool is full between two looks at the store", bounded.len()));
        assert!(!bounded.is_empty(), "nobody was told that the pool is full, so nothing is shown of it");
        ground::with_store(&self.admin, async |store| {
            let mut past = witness::Past::new(store, &self.range);
            let mut found = Vec::new();
            for (call, revisions) in bounded {
                if !past.may_have_held(POOL.into(), revisions).await {
                    found.push(call.clone());
                }
            }
            found
        })
    }

    fn judge(&self) {
        let (calls, living, restored) = (lock(&self.calls), lock(&self.living), *lock(&self.restored));
        for node in &self.nodes {
            let flushed = Cli::new(node).line("flush").run();
            // What was journalled before a restore stays.
            assert!(flushed.code() == Some(0) || restored.is_some(), "{flushed:?}");
        }
        let told = self.now();
        let leases = ground::leases(&self.admin);
        let owners: Vec<_> = leases
            .iter()
            .map(|lease| {
                let container = lease.bound().map(|stamp| stamp.container.as_str().to_owned());
                (lease.addresses[0].address.to_string(), lease.id.holder.to_string(), container)
            })
            .collect();
        let journalled = self.journalled();
        report(&format!("{}; {} were in a journal", counted(&calls), journalled.len()));
        let idle = lock(&self.idle).iter().map(|(from, to)| *to - *from).max().unwrap_or_default();
        report(&format!("the machine alone took {idle:.1?} at most"));
        let wrong: Vec<_> = calls
            .iter()
            .filter(|call| !self.is_due(call))
            .map(|call| (call, journalled.contains(&call.container)))
            .collect();
        for (call, journalled) in &wrong {
            let took = call.ended - call.began;
            report(&format!("not served in time, after {took:.1?} (in a journal: {journalled}): {call:?}"));
        }
        assert!(wrong.is_empty(), "{} calls were not served in time", wrong.len());
        let end = End { journalled, told, looked: self.now(), owners, restored };
        let unexplained = impossible(&calls, &end);
        assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
        let untrue = untrue(&calls, &end, POOL, self.ways.add);
        assert!(untrue.is_empty(), "{} were not told the truth: {}", untrue.len(), untrue.join("\n"));
        let falsely = self.falsely_full(&calls);
        assert!(falsely.is_empty(), "the pool was not full for {} calls: {falsely:#?}", falsely.len());
        for (pod, sandbox) in living.iter() {
            let has = |(address, its, _): &(String, String, _)| *address == sandbox.address && its == pod;
            assert!(end.owners.iter().any(has), "{pod} lost its lease: {sandbox:?}");
        }
        assert!(!living.is_empty());
    }

    /// Containers that a node's journal ever had an entry of, as the logs tell.
    fn journalled(&self) -> BTreeSet<String> {
        let logs: Vec<String> = self.nodes.iter().map(HostFile::log).collect();
        let lines = logs
            .iter()
            .flat_map(|log| log.lines())
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let entries = lines.filter(|line| line["event"] == "lease.journaled");
        entries.map(|line| line["container"].as_str().unwrap().to_owned()).collect()
    }

    /// Was it served as it must be, and in its time?
    fn is_due(&self, call: &Call) -> bool {
        let meets = |(from, to): &&(Duration, Duration)| call.began <= *to && *from <= call.ended;
        let served = match &call.answer {
            Answer::Address(_) | Answer::Done | Answer::None => true,
            Answer::Refused(_) if call.verb == Verb::Del => false,
            Answer::Refused(text) => {
                let excused = lock(&self.excused).iter().any(|time| meets(&time));
                // After a restore the store does not know all sandboxes.
                let unknown = call.verb == Verb::Check && lock(&self.restored).is_some();
                // Whether those are true is asked when all is known.
                refusals::reason(text, POOL).is_some()
                    || excused && (text.starts_with("11 ") || unknown && text.starts_with("101 "))
            }
        };
        let deadline = if call.verb == Verb::Del { self.ways.del } else { self.ways.add };
        let idle = lock(&self.idle).iter().filter(meets).map(|(from, to)| *to - *from).max();
        served && call.ended - call.began <= deadline + SLACK + 2 * idle.unwrap_or_default().min(SLOWEST)
    }
}

struct Over<'a>(&'a Crowd);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::SeqCst);
    }
}

struct Caller<'a> {
    crowd: &'a Crowd,
    number: u64,
    chance: Chance,
    pods: Vec<Pod>,
    serial: u32,
}

impl<'a> Caller<'a> {
    fn new(crowd: &'a Crowd, number: u64) -> Self {
        let pod = |at| Pod {
            name: format!("{}/w{number}p{at}", crowd.ways.namespace),
            sticky: crowd.ways.sticky && at == 0 && number.is_multiple_of(4),
            here: None,
            dead: Vec::new(),
        };
        Self { crowd, number, chance: Chance(number), pods: (0..PODS).map(pod).collect(), serial: 0 }
    }

    fn work(mut self) {
        while !self.crowd.over.load(Ordering::SeqCst) {
            self.pause();
            let _turn = self.crowd.turns.read().unwrap_or_else(PoisonError::into_inner);
            let at = usize::try_from(self.chance.below(PODS)).unwrap();
            let mut pod = self.pods.swap_remove(at);
            if pod.here.is_some() {
                lock(&self.crowd.living).remove(&pod.name);
            }
            self.turn(&mut pod);
            if let Some(sandbox) = pod.here.clone() {
                lock(&self.crowd.living).insert(pod.name.clone(), sandbox);
            }
            self.pods.push(pod);
        }
    }

    fn pause(&mut self) {
        let millis = u64::try_from(self.crowd.ways.pause.as_millis()).unwrap();
        let until = Instant::now() + Duration::from_millis(self.chance.below(2 * millis));
        while Instant::now() < until && !self.crowd.hurry.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn turn(&mut self, pod: &mut Pod) {
        let Some(sandbox) = pod.here.clone() else {
            if !pod.sticky {
                // As a Deployment's.
                pod.name = format!("{}/w{}p{}", self.crowd.ways.namespace, self.number, self.serial + 1);
                pod.dead.clear();
            }
            let node = usize::try_from(self.chance.below(self.crowd.nodes.len() as u64)).unwrap();
            return if self.chance.below(8) == 0 {
                self.start_twice(pod, node)
            } else {
                self.start(pod, node)
            };
        };
        if sandbox.since < *lock(&self.crowd.renewed) {
            return self.start(pod, sandbox.node);
        }
        match self.chance.below(10) {
            0..=2 => self.end(pod, sandbox),
            // Its DEL was lost, or comes late.
            3..=4 => self.start(pod, sandbox.node),
            // Recreated on another node, which is not done before an ADD on the first must have ended.
            5 if self.crowd.now() - sandbox.since > self.crowd.ways.add => {
                self.start(pod, (sandbox.node + 1) % self.crowd.nodes.len());
            }
            5..=6 => self.repeat(pod, &sandbox),
            7..=8 => self.check(pod, &sandbox),
            _ => {
                if let Some(dead) = self.chance.one_of(&pod.dead) {
                    self.del(pod, dead.node, &dead.container);
                }
            }
        }
    }

    fn end(&self, pod: &mut Pod, sandbox: Sandbox) {
        pod.here = None;
        self.del(pod, sandbox.node, &sandbox.container);
        pod.dead.push(sandbox);
    }

    /// A new sandbox; the one before it is dead.
    fn start(&mut self, pod: &mut Pod, node: usize) {
        self.serial += 1;
        let container = format!("w{}x{}", self.number, self.serial);
        let answer = self.add(pod, node, &container);
        self.settle(pod, node, container, answer);
    }

    /// A runtime that tries again while its first ADD still runs.
    fn start_twice(&mut self, pod: &mut Pod, node: usize) {
        let started = [1, 2].map(|number| {
            let container = format!("w{}x{}", self.number, self.serial + number);
            let began = self.crowd.now();
            (self.call("ADD", pod, node, &container).start(), container, began)
        });
        self.serial += 2;
        for (running, container, began) in started {
            let answer = self.added(pod, node, &container, began, running);
            self.settle(pod, node, container, answer);
        }
    }

    fn add(&mut self, pod: &Pod, node: usize, container: &str) -> Answer {
        /// Sometimes the caller loses patience at any moment.
        const ONE_OF: u64 = 40;
        let began = self.crowd.now();
        let mut running = self.call("ADD", pod, node, container).start();
        if self.chance.below(ONE_OF) == 0 {
            thread::sleep(Duration::from_millis(self.chance.below(30)));
            running.kill();
        }
        self.added(pod, node, container, began, running)
    }

    fn added(&self, pod: &Pod, node: usize, container: &str, began: Duration, running: Running) -> Answer {
        let finished = call::Answer(running.wait());
        let answer = match finished.0.code() {
            None => Answer::None,
            Some(0) => Answer::Address(address(&finished)),
            Some(_) => refused(&finished),
        };
        self.saw(Verb::Add, pod, (node, container), began, answer.clone());
        answer
    }

    /// What a runtime does about the answer to an ADD.
    fn settle(&self, pod: &mut Pod, node: usize, container: String, answer: Answer) {
        let (old, since) = (pod.here.take(), self.crowd.now());
        match answer {
            Answer::Address(address) => {
                pod.here = Some(Sandbox { container, node, address, since });
                pod.dead.extend(old);
            }
            // All is taken down before it is tried again.
            Answer::Refused(_) | Answer::None | Answer::Done => {
                self.end(pod, Sandbox { container, node, address: String::new(), since });
                if let Some(old) = old {
                    self.end(pod, old);
                }
            }
        }
    }

    /// ADD of a container that has its address.
    fn repeat(&mut self, pod: &mut Pod, sandbox: &Sandbox) {
        if !matches!(self.add(pod, sandbox.node, &sandbox.container), Answer::Address(_)) {
            self.end(pod, sandbox.clone());
        }
    }

    fn del(&self, pod: &Pod, node: usize, container: &str) {
        let began = self.crowd.now();
        let finished = self.call("DEL", pod, node, container).run();
        let is_done = finished.0.code() == Some(0) && finished.0.stdout.is_empty();
        let answer = if is_done { Answer::Done } else { refused(&finished) };
        self.saw(Verb::Del, pod, (node, container), began, answer);
    }

    fn check(&self, pod: &Pod, sandbox: &Sandbox) {
        let began = self.crowd.now();
        let finished = self.call("CHECK", pod, sandbox.node, &sandbox.container).run();
        let is_well = finished.0.code() == Some(0);
        let answer = if is_well { Answer::Address(sandbox.address.clone()) } else { refused(&finished) };
        self.saw(Verb::Check, pod, (sandbox.node, &sandbox.container), began, answer);
    }

    fn call(&self, verb: &str, pod: &Pod, node: usize, container: &str) -> call::Call {
        call::Call::command(verb, &self.crowd.nodes[node])
            .pod(&pod.name)
            .container(container)
            .field("args", json!({ "cni": { "sticky": pod.sticky.to_string() } }))
    }

    fn saw(&self, verb: Verb, pod: &Pod, (node, container): (usize, &str), began: Duration, answer: Answer) {
        let call = Call {
            verb,
            pod: pod.name.clone(),
            container: container.into(),
            node,
            sticky: pod.sticky,
            began,
            ended: self.crowd.now(),
            answer,
        };
        lock(&self.crowd.calls).push(call);
    }
}

/// A caller that panicked has said why, and is no reason for others not to say what they saw.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn address(answer: &call::Answer) -> String {
    let all = answer.addresses();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].split('/').next().unwrap().into()
}

/// Code and words, or all that was said where it is no error of CNI.
fn refused(answer: &call::Answer) -> Answer {
    let error: Value = serde_json::from_slice(&answer.0.stdout).unwrap_or_default();
    Answer::Refused(match error["code"].as_u64() {
        Some(code) if answer.0.code() == Some(1) => {
            let text = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
            format!("{code} {}; {}", text("msg"), text("details"))
        }
        _ => format!("{answer:?}"),
    })
}

fn is_told_full(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused(text) if refusals::reason(text, POOL) == Some(Reason::Full))
}

fn counted(calls: &[Call]) -> String {
    let count = |verb: Verb, is: fn(&Answer) -> bool| {
        calls.iter().filter(|call| call.verb == verb && is(&call.answer)).count()
    };
    let slowest =
        calls.iter().filter(|call| call.verb == Verb::Add).map(|call| call.ended - call.began).max();
    format!(
        "{} calls: {} ADDs with an address, {} refused, {} of them as the pool was full, {} killed, {} DELs, {} CHECKs; the slowest ADD took {:.1?}",
        calls.len(),
        count(Verb::Add, |answer| matches!(answer, Answer::Address(_))),
        count(Verb::Add, |answer| matches!(answer, Answer::Refused(_))),
        count(Verb::Add, is_told_full),
        count(Verb::Add, |answer| *answer == Answer::None),
        count(Verb::Del, |answer| *answer == Answer::Done),
        count(Verb::Check, |answer| matches!(answer, Answer::Address(_))),
        slowest.unwrap_or_default(),
    )
}
