//! Sixty-four callers on four nodes: each has pods of its own, whose sandboxes it starts, looks at, starts again here or
//! elsewhere and ends, by whole plugin processes, on a pool that is full at times. They write down what they see.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::history::{Answer, Call, End, Verb, impossible};
use crate::support::{
    call::{self, Cli},
    chance::Chance,
    ground,
    host::HostFile,
    process::{PATIENCE, Running, eventually, report, within},
};

const CALLERS: u64 = 64;
/// Of each caller. The first of every fourth caller is sticky.
const PODS: u64 = 2;
/// So many addresses that it is full at times.
pub(super) const POOL: u32 = 80;
/// Between two calls of one caller, on average: the processors must keep up.
const PAUSE: Duration = Duration::from_millis(500);
/// Beside twice what a call takes meanwhile that does nothing: for the start and the end of the process, and a journal.
const SLACK: Duration = Duration::from_secs(2);
/// As many ADDs as show that all goes on.
const ENOUGH: usize = 50;

/// What a call may take, as the nodes are configured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines {
    pub(super) add: Duration,
    pub(super) del: Duration,
}

impl Deadlines {
    /// The product's defaults.
    pub(super) const USUAL: Self = Self { add: Duration::from_secs(10), del: Duration::from_secs(5) };
    /// Where many calls must come to their deadline.
    pub(super) const SHORT: Self = Self { add: Duration::from_secs(4), del: Duration::from_secs(2) };
}

/// Callers at work, and what they have seen so far.
pub(super) struct Crowd {
    nodes: Vec<HostFile>,
    deadlines: Deadlines,
    start: Instant,
    calls: Mutex<Vec<Call>>,
    /// When the store could not answer, and so need not have.
    excused: Mutex<Vec<(Duration, Duration)>>,
    /// When calls that need no store began and ended.
    idle: Mutex<Vec<(Duration, Duration)>>,
    /// Nobody pauses.
    hurry: AtomicBool,
    over: AtomicBool,
}

/// A pod's sandbox.
#[derive(Clone, Debug)]
struct Sandbox {
    container: String,
    node: usize,
    address: String,
    since: Instant,
}

#[derive(Debug)]
struct Pod {
    name: String,
    sticky: bool,
    /// The one that runs.
    here: Option<Sandbox>,
    /// Those that ran. Their DEL may come, late and more than once.
    dead: Vec<(usize, String)>,
}

impl Crowd {
    /// Lets them work until `act` is done, and judges what they saw.
    pub(super) fn work(nodes: Vec<HostFile>, deadlines: Deadlines, act: impl FnOnce(&Self)) {
        let seconds = |time: Duration| format!("{}s", time.as_secs());
        let setting = json!({ "add": seconds(deadlines.add), "del": seconds(deadlines.del) });
        let crowd = &Self {
            nodes: nodes.into_iter().map(|node| node.with("deadlines", setting.clone())).collect(),
            deadlines,
            start: Instant::now(),
            calls: Mutex::default(),
            excused: Mutex::default(),
            idle: Mutex::default(),
            hurry: AtomicBool::new(false),
            over: AtomicBool::new(false),
        };
        let living = thread::scope(|scope| {
            let callers: Vec<_> =
                (0..CALLERS).map(|number| scope.spawn(move || Caller::new(crowd, number).work())).collect();
            scope.spawn(|| crowd.measure());
            let over = Over(crowd); // they end, too, if this panics
            act(crowd);
            drop(over);
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
        });
        crowd.judge(&living);
    }

    /// Lets something happen while all of them are in the middle of a call.
    pub(super) fn strike<T>(&self, fault: impl FnOnce() -> T) -> T {
        let calls = || lock(&self.calls).len();
        let before = calls();
        self.hurry.store(true, Ordering::SeqCst);
        let all = usize::try_from(CALLERS).unwrap();
        eventually("everybody to call", || (calls() >= before + all).then_some(()));
        let result = fault();
        self.hurry.store(false, Ordering::SeqCst);
        result
    }

    /// Waits until as many ADDs as are enough, each begun from now on, have got an address.
    #[track_caller]
    pub(super) fn goes_on(&self, while_: &str) {
        let begun = self.start.elapsed();
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
            self.start.elapsed() - begun
        ));
    }

    /// Waits until a call that began from now on is refused with these words.
    #[track_caller]
    pub(super) fn is_refused(&self, words: &str) {
        let begun = self.start.elapsed();
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

    /// Does something that the store cannot answer through: a call that meets it may be refused, in time.
    pub(super) fn excused<T>(&self, act: impl FnOnce() -> T) -> T {
        let from = self.start.elapsed();
        let result = act();
        lock(&self.excused).push((from, self.start.elapsed()));
        result
    }

    /// Calls that need no store, all the time: what they take is the machine's.
    fn measure(&self) {
        while !self.over.load(Ordering::SeqCst) {
            let began = self.start.elapsed();
            call::Call::command("VERSION", &self.nodes[0]).run().0.success();
            lock(&self.idle).push((began, self.start.elapsed()));
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn judge(&self, living: &BTreeMap<String, Sandbox>) {
        let calls = lock(&self.calls);
        for node in &self.nodes {
            Cli::new(node).line("flush").run().success();
        }
        let told = self.start.elapsed();
        let leases = ground::leases(&self.nodes[0]);
        let owners: Vec<_> = leases
            .iter()
            .map(|lease| {
                let container = lease.bound().map(|stamp| stamp.container.as_str().to_owned());
                (lease.addresses[0].address.to_string(), lease.id.holder.to_string(), container)
            })
            .collect();
        let journalled = self.journalled();
        report(&format!("{}; {} were in a journal", counted(&calls), journalled.len()));
        let wrong: Vec<_> = calls.iter().filter(|call| !self.is_due(call)).collect();
        assert!(wrong.is_empty(), "{} calls were not served: {wrong:#?}", wrong.len());
        let end = End { journalled, told, looked: self.start.elapsed(), owners };
        let unexplained = impossible(&calls, &end);
        assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
        for (pod, sandbox) in living {
            let has = (sandbox.address.clone(), pod.clone(), Some(sandbox.container.clone()));
            assert!(end.owners.contains(&has), "{pod} lost its lease: {sandbox:?}");
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
                text.contains(&format!("is full ({POOL} of {POOL})"))
                    || text.contains("newer sandbox")
                    || excused && text.starts_with("11 ")
            }
        };
        let deadline = if call.verb == Verb::Del { self.deadlines.del } else { self.deadlines.add };
        let idle = lock(&self.idle).iter().filter(meets).map(|(from, to)| *to - *from).max();
        served && call.ended - call.began <= deadline + SLACK + 2 * idle.unwrap_or_default()
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
            name: format!("shop/w{number}p{at}"),
            sticky: at == 0 && number.is_multiple_of(4),
            here: None,
            dead: Vec::new(),
        };
        Self { crowd, number, chance: Chance(number), pods: (0..PODS).map(pod).collect(), serial: 0 }
    }

    /// The sandboxes that run in the end.
    fn work(mut self) -> Vec<(String, Sandbox)> {
        while !self.crowd.over.load(Ordering::SeqCst) {
            self.pause();
            let at = usize::try_from(self.chance.below(PODS)).unwrap();
            let mut pod = self.pods.swap_remove(at);
            self.turn(&mut pod);
            self.pods.push(pod);
        }
        self.pods.into_iter().filter_map(|pod| Some((pod.name, pod.here?))).collect()
    }

    fn pause(&mut self) {
        let millis = u64::try_from(PAUSE.as_millis()).unwrap();
        let until = Instant::now() + Duration::from_millis(self.chance.below(2 * millis));
        while Instant::now() < until && !self.crowd.hurry.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn turn(&mut self, pod: &mut Pod) {
        let Some(sandbox) = pod.here.clone() else {
            let node = usize::try_from(self.chance.below(self.crowd.nodes.len() as u64)).unwrap();
            return if self.chance.below(8) == 0 {
                self.start_twice(pod, node)
            } else {
                self.start(pod, node)
            };
        };
        match self.chance.below(10) {
            0..=2 => {
                pod.here = None;
                pod.dead.push((sandbox.node, sandbox.container.clone()));
                self.del(pod, sandbox.node, &sandbox.container);
            }
            // Its DEL was lost, or comes late.
            3..=4 => self.start(pod, sandbox.node),
            // Recreated on another node, which is not done before an ADD on the first must have ended.
            5 if sandbox.since.elapsed() > self.crowd.deadlines.add => {
                self.start(pod, (sandbox.node + 1) % self.crowd.nodes.len());
            }
            5..=6 => self.repeat(pod, &sandbox),
            7..=8 => self.check(pod, &sandbox),
            _ => {
                if let Some((node, container)) = self.chance.one_of(&pod.dead).cloned() {
                    self.del(pod, node, &container);
                }
            }
        }
    }

    /// A new sandbox; the one before it is dead.
    fn start(&mut self, pod: &mut Pod, node: usize) {
        self.serial += 1;
        let container = format!("w{}x{}", self.number, self.serial);
        pod.dead.extend(pod.here.take().map(|old| (old.node, old.container)));
        let answer = self.add(pod, node, &container);
        self.settle(pod, node, container, answer);
    }

    /// A runtime that tries again while its first ADD still runs.
    fn start_twice(&mut self, pod: &mut Pod, node: usize) {
        let started = [1, 2].map(|number| {
            let container = format!("w{}x{}", self.number, self.serial + number);
            let began = self.crowd.start.elapsed();
            (self.call("ADD", pod, node, &container).start(), container, began)
        });
        self.serial += 2;
        for (running, container, began) in started {
            let answer = self.added(pod, &container, began, running);
            let replaced = pod.here.take_if(|_| matches!(answer, Answer::Address(_)));
            pod.dead.extend(replaced.map(|old| (old.node, old.container)));
            self.settle(pod, node, container, answer);
        }
    }

    fn add(&mut self, pod: &Pod, node: usize, container: &str) -> Answer {
        /// Sometimes the caller loses patience at any moment.
        const ONE_OF: u64 = 40;
        let began = self.crowd.start.elapsed();
        let mut running = self.call("ADD", pod, node, container).start();
        if self.chance.below(ONE_OF) == 0 {
            thread::sleep(Duration::from_millis(self.chance.below(30)));
            running.kill();
        }
        self.added(pod, container, began, running)
    }

    fn added(&self, pod: &Pod, container: &str, began: Duration, running: Running) -> Answer {
        let finished = call::Answer(running.wait());
        let answer = match finished.0.code() {
            None => Answer::None,
            Some(0) => Answer::Address(address(&finished)),
            Some(_) => refused(&finished),
        };
        self.saw(Verb::Add, pod, container, began, answer.clone());
        answer
    }

    /// What a runtime does about the answer to an ADD.
    fn settle(&self, pod: &mut Pod, node: usize, container: String, answer: Answer) {
        match answer {
            Answer::Address(address) => {
                pod.here = Some(Sandbox { container, node, address, since: Instant::now() });
            }
            Answer::Refused(_) | Answer::None | Answer::Done => {
                self.del(pod, node, &container);
                pod.dead.push((node, container));
            }
        }
    }

    /// ADD of a container that has its address.
    fn repeat(&mut self, pod: &mut Pod, sandbox: &Sandbox) {
        let answer = self.add(pod, sandbox.node, &sandbox.container);
        if !matches!(answer, Answer::Address(_)) {
            pod.here = None;
            self.settle(pod, sandbox.node, sandbox.container.clone(), answer);
        }
    }

    fn del(&self, pod: &Pod, node: usize, container: &str) {
        let began = self.crowd.start.elapsed();
        let finished = self.call("DEL", pod, node, container).run();
        let is_done = finished.0.code() == Some(0) && finished.0.stdout.is_empty();
        let answer = if is_done { Answer::Done } else { refused(&finished) };
        self.saw(Verb::Del, pod, container, began, answer);
    }

    fn check(&self, pod: &Pod, sandbox: &Sandbox) {
        let began = self.crowd.start.elapsed();
        let finished = self.call("CHECK", pod, sandbox.node, &sandbox.container).run();
        let is_well = finished.0.code() == Some(0);
        let answer = if is_well { Answer::Address(sandbox.address.clone()) } else { refused(&finished) };
        self.saw(Verb::Check, pod, &sandbox.container, began, answer);
    }

    fn call(&self, verb: &str, pod: &Pod, node: usize, container: &str) -> call::Call {
        call::Call::command(verb, &self.crowd.nodes[node])
            .pod(&pod.name)
            .container(container)
            .field("args", json!({ "cni": { "sticky": pod.sticky.to_string() } }))
    }

    fn saw(&self, verb: Verb, pod: &Pod, container: &str, began: Duration, answer: Answer) {
        let call = Call {
            verb,
            pod: pod.name.clone(),
            container: container.into(),
            sticky: pod.sticky,
            began,
            ended: self.crowd.start.elapsed(),
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

fn counted(calls: &[Call]) -> String {
    let count = |verb: Verb, is: fn(&Answer) -> bool| {
        calls.iter().filter(|call| call.verb == verb && is(&call.answer)).count()
    };
    let slowest =
        calls.iter().filter(|call| call.verb == Verb::Add).map(|call| call.ended - call.began).max();
    format!(
        "{} calls: {} ADDs with an address, {} refused, {} killed, {} DELs, {} CHECKs; the slowest ADD took {:.1?}",
        calls.len(),
        count(Verb::Add, |answer| matches!(answer, Answer::Address(_))),
        count(Verb::Add, |answer| matches!(answer, Answer::Refused(_))),
        count(Verb::Add, |answer| *answer == Answer::None),
        count(Verb::Del, |answer| *answer == Answer::Done),
        count(Verb::Check, |answer| matches!(answer, Answer::Address(_))),
        slowest.unwrap_or_default(),
    )
}
