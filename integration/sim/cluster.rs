//! What is true: pods, nodes, sandboxes and what they answer on, and the store. What the API says comes from here, and so
//! does what a probe hears.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
};

use leasehold::{
    domain::{
        audit::Place,
        kubernetes::{self, ControllerRef, Finished, Phase, Pod, PodKey, Ready, Wants},
        lease::{Holder, Lease, LeaseId, Timestamp},
        names::{BootId, ClusterName, ContainerId, IfName, Namespace, NetworkName, NodeName, PodName, Uid},
    },
    journal::{Entry, Memory},
    ops::{Added, Identity},
    pods::fake::FakeCluster,
    store::{
        Key, keys,
        record::{self, Frozen},
        testing::MemoryStore,
    },
};
use tokio::time::Instant;

use super::{
    history::{BARE, JOB, Lie, NODES, ORDINALS, PODS, SLOTS, Setting},
    oracle::Mirror,
    way::{EPOCH, Flight, HostClock, Op},
};
use crate::world::ADD_DEADLINE;

/// So long after its last word a node is ready, as the API has it.
const UNNOTICED_MS: i64 = 40_000;
/// A sandbox whose DEL has come still answers for so long: macvlan calls it before the link is removed.
pub(crate) const LINGER_MS: i64 = 2_000;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Link {
    Whole,
    /// Neither store nor API hear it.
    NoControl,
    /// Nobody hears it.
    None,
}

pub(crate) struct NodeTruth {
    pub(crate) alive: bool,
    pub(crate) link: Link,
    pub(crate) boots: u32,
    pub(crate) clock: Arc<HostClock>,
    pub(crate) me: Arc<Identity>,
    /// What its disk keeps of DELs that the store did not take.
    pub(crate) journal: Vec<Filed>,
    pub(crate) memory: Memory,
    /// Since when it is ready without a break, as the API has it; `None`: it is not.
    pub(crate) ready: Option<Timestamp>,
    /// Since when it says nothing.
    pub(crate) silent: Option<Timestamp>,
}

impl NodeTruth {
    pub(crate) fn is_cut(&self) -> bool {
        !self.alive || self.link != Link::Whole
    }

    pub(crate) fn is_heard(&self) -> bool {
        self.alive && self.link != Link::None
    }
}

/// A file of a node's journal.
#[derive(Clone, Debug)]
pub(crate) struct Filed {
    pub(crate) entry: Entry,
    pub(crate) at: Timestamp,
    pub(crate) locked: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stage {
    /// Its ADD works.
    Starting,
    /// Its ADD has answered, and it runs.
    Up,
    /// It never ran.
    Failed,
    /// It runs no more.
    Down,
}

/// A sandbox: a life of a container.
pub(crate) struct Sandbox {
    pub(crate) slot: usize,
    pub(crate) container: ContainerId,
    pub(crate) holder: Holder,
    pub(crate) uid: Option<Uid>,
    pub(crate) node: usize,
    pub(crate) stage: Stage,
    pub(crate) addresses: Vec<IpAddr>,
    /// It answers until then, though it is down.
    pub(crate) lingers: Timestamp,
    /// Its node was cut off without a sound, and came back with it: nothing is promised.
    pub(crate) exempt: bool,
    /// Its DEL has reached the store.
    pub(crate) ended: bool,
}

/// Everything.
pub(crate) struct State {
    pub(crate) began: Instant,
    pub(crate) absent_after_ms: i64,
    /// How many actions have happened.
    pub(crate) step: usize,
    pub(crate) store: MemoryStore,
    pub(crate) mirror: Mirror,
    pub(crate) flights: Vec<Flight>,
    pub(crate) api: Arc<FakeCluster>,
    pub(crate) nodes: Vec<NodeTruth>,
    pub(crate) reapers: Vec<Arc<HostClock>>,
    pub(crate) sandboxes: Vec<Sandbox>,
    /// The pod in each slot, as the API has it or had it last.
    pub(crate) pods: [Option<(PodKey, Uid)>; PODS],
    /// When each pod that was there went last.
    pub(crate) gone: BTreeMap<PodKey, Timestamp>,
    pub(crate) counter: u32,
    /// Since when the StatefulSet wants each ordinal, or has been absent.
    pub(crate) wanted: [Option<Timestamp>; ORDINALS],
    pub(crate) set: Option<(usize, Timestamp)>,
    pub(crate) set_gone: Timestamp,
    /// How often the StatefulSet was made, and the Deployment's template changed.
    pub(crate) sets: u32,
    pub(crate) rolled: usize,
    /// When each pod ended.
    pub(crate) ended: BTreeMap<Uid, Timestamp>,
    /// What was noted by a pass that a list did not say the truth to: it may be wrong.
    pub(crate) false_notes: BTreeSet<(Key, Timestamp)>,
    /// By how much the clock was off that wrote when this was given back, milliseconds.
    pub(crate) given: BTreeMap<Place, i64>,
    /// Taken by a node whose clock is not that of who gave it back: no cool-down is promised, and whoever had it may be heard
    /// until then.
    pub(crate) hasty: BTreeMap<IpAddr, Timestamp>,
    /// Old lists, where an action wants one.
    pub(crate) before: Vec<(Vec<Pod>, Vec<kubernetes::Node>)>,
    /// What is broken.
    pub(crate) faults: Vec<String>,
    /// What happened, if somebody reads it.
    pub(crate) story: Option<Vec<String>>,
}

pub(crate) fn node_name(node: usize) -> NodeName {
    NodeName::new(format!("n{}", node + 1)).unwrap()
}

fn shop() -> Namespace {
    Namespace::new("shop").unwrap()
}

fn identity(node: usize, boots: u32) -> Arc<Identity> {
    Arc::new(Identity {
        cluster: ClusterName::new("prod").unwrap(),
        node: node_name(node),
        labels: Vec::new(),
        boot: Some(BootId::new(format!("boot-{}-{boots}", node + 1)).unwrap()),
        sticky_kinds: vec!["StatefulSet.apps".into()],
        add_deadline: ADD_DEADLINE,
    })
}

/// The lease of a holder: there is one network and one interface.
pub(crate) fn lease_id(holder: &Holder) -> LeaseId {
    LeaseId {
        cluster: ClusterName::new("prod").unwrap(),
        holder: holder.clone(),
        network: NetworkName::new("lan").unwrap(),
        ifname: IfName::new("eth0").unwrap(),
    }
}

pub(crate) fn lease_key(holder: &Holder) -> Key {
    leasehold::store::keys::lease(&lease_id(holder))
}

impl State {
    pub(crate) fn new(setting: &Setting, began: Instant, told: bool) -> Self {
        let clock = |index: usize| {
            Arc::new(HostClock {
                began,
                skew: setting.skews[index],
                booted: 0.into(),
                ticks: 0.into(),
                chance: (index as u64).wrapping_mul(0x1234_5678_9ABC_DEF1).into(),
            })
        };
        let start = Timestamp(EPOCH);
        let api = FakeCluster::new(Uid::new("kube-system").unwrap(), start);
        let nodes: Vec<NodeTruth> = (0..NODES)
            .map(|node| NodeTruth {
                alive: true,
                link: Link::Whole,
                boots: 0,
                clock: clock(node),
                me: identity(node, 0),
                journal: Vec::new(),
                memory: Memory::default(),
                ready: Some(start),
                silent: None,
            })
            .collect();
        {
            let mut state = api.state();
            for node in 0..NODES {
                state.node(&node_name(node));
            }
            // No cluster is without any pod: an empty list is a brake.
            let proxy = PodKey {
                namespace: Namespace::new("kube-system").unwrap(),
                name: PodName::new("proxy").unwrap(),
            };
            state.pod(&proxy, &Uid::new("proxy").unwrap(), &node_name(0));
        }
        Self {
            began,
            absent_after_ms: i64::try_from(setting.absent_after_s).unwrap() * 1000,
            step: 0,
            store: MemoryStore::new(),
            mirror: Mirror::default(),
            flights: Vec::new(),
            api: Arc::new(api),
            nodes,
            reapers: (NODES..setting.skews.len()).map(clock).collect(),
            sandboxes: Vec::new(),
            pods: [const { None }; PODS],
            gone: BTreeMap::new(),
            counter: 0,
            wanted: [None; ORDINALS],
            set: None,
            set_gone: start,
            sets: 0,
            rolled: 0,
            ended: BTreeMap::new(),
            false_notes: BTreeSet::new(),
            given: BTreeMap::new(),
            hasty: BTreeMap::new(),
            before: Vec::new(),
            faults: Vec::new(),
            story: told.then(Vec::new),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(EPOCH + i64::try_from(self.began.elapsed().as_millis()).unwrap())
    }

    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        let at = self.now().0 - EPOCH;
        if let Some(story) = &mut self.story {
            story.push(format!("{:>9.3} s  {}", at as f64 / 1000.0, line()));
        }
    }

    pub(crate) fn fault(&mut self, text: String) {
        self.tell(|| format!("BROKEN: {text}"));
        self.faults.push(text);
    }

    // ---- the API

    pub(crate) fn remember_lists(&mut self) {
        let lists = (self.pods_as(Lie::None), self.nodes_as(Lie::None));
        self.before.push(lists);
    }

    /// The list of pods, as the API gives it.
    pub(crate) fn pods_as(&self, lie: Lie) -> Vec<Pod> {
        let mut pods: Vec<Pod> = match lie {
            Lie::Empty => Vec::new(),
            Lie::Stale(ago) if !self.before.is_empty() => {
                self.before[self.before.len().saturating_sub(1 + usize::from(ago))].0.clone()
            }
            Lie::None | Lie::Late(_) | Lie::Stale(_) | Lie::Other => {
                self.api.state().pods.values().cloned().collect()
            }
        };
        if let Lie::Late(slot) = lie
            && let Some(Some((key, _))) = self.pods.get(usize::from(slot))
        {
            pods.retain(|pod| pod.key != *key);
        }
        if lie == Lie::Other {
            pods.retain(|pod| pod.key.namespace != shop());
        }
        pods
    }

    pub(crate) fn nodes_as(&self, lie: Lie) -> Vec<kubernetes::Node> {
        let mut nodes: Vec<kubernetes::Node> = match lie {
            Lie::Empty => Vec::new(),
            Lie::Stale(ago) if !self.before.is_empty() => {
                self.before[self.before.len().saturating_sub(1 + usize::from(ago))].1.clone()
            }
            Lie::None | Lie::Late(_) | Lie::Stale(_) | Lie::Other => {
                self.api.state().nodes.values().cloned().collect()
            }
        };
        if let Lie::Late(node) = lie {
            nodes.retain(|known| known.name != node_name(usize::from(node) % NODES));
        }
        nodes
    }

    /// The pod of this holder, as the API has it now.
    pub(crate) fn pod_of(&self, holder: &Holder) -> Option<Pod> {
        let Holder::Pod { namespace, name } = holder else { return None };
        let key = PodKey { namespace: namespace.clone(), name: name.clone() };
        self.api.state().pods.get(&key).cloned()
    }

    pub(crate) fn gone_at(&self, holder: &Holder) -> Option<Timestamp> {
        let Holder::Pod { namespace, name } = holder else { return None };
        self.gone.get(&PodKey { namespace: namespace.clone(), name: name.clone() }).copied()
    }

    pub(crate) fn pod_in(&self, slot: usize) -> Option<Pod> {
        let (key, _) = self.pods[slot].as_ref()?;
        self.api.state().pods.get(key).cloned()
    }

    /// Its containers run, or will, and it need not go yet.
    pub(crate) fn lives(&self, pod: &Pod) -> bool {
        !pod.phase.is_final() && pod.deleting.is_none_or(|due| due > self.now())
    }

    fn name_in(&mut self, slot: usize) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        self.counter += 1;
        let suffix = |mut n: usize| {
            let mut out = String::new();
            for _ in 0..5 {
                out.push(char::from(LETTERS[n % LETTERS.len()]));
                n /= LETTERS.len();
            }
            out
        };
        let n = self.counter as usize * 7919;
        match slot {
            0..ORDINALS => format!("db-{slot}"),
            JOB => format!("work-{}", suffix(n)),
            BARE => "solo".into(),
            _ => format!("{}-{}", self.replica_set(), suffix(n)),
        }
    }

    /// Of Deployment `web`, with the hash of its template.
    fn replica_set(&self) -> String {
        format!("web-{}", ["7d9c4f6b5d", "5c8f6d9b74", "6b5d7d9c4f", "84f5c8b6d"][self.rolled % 4])
    }

    /// The Deployment has another template.
    pub(crate) fn roll(&mut self) {
        self.rolled += 1;
        (ORDINALS..JOB).for_each(|slot| self.delete_pod(slot));
    }

    /// Makes the slot's pod; `None`: nobody wants it, it is there, or no node is ready.
    pub(crate) fn create(&mut self, slot: usize, node: usize) -> Option<String> {
        if self.pod_in(slot).is_some() || (slot < ORDINALS && self.wanted[slot].is_none()) {
            return None;
        }
        let node =
            (0..NODES).map(|more| (node + more) % NODES).find(|node| self.nodes[*node].ready.is_some())?;
        let name = self.name_in(slot);
        let key = PodKey { namespace: shop(), name: PodName::new(name.as_str()).unwrap() };
        let uid = Uid::new(format!("u{}", self.counter)).unwrap();
        let controller = |kind: &str, name: &str| {
            Some(ControllerRef { kind: kind.into(), version: "v1".into(), name: name.into() })
        };
        let (now, replica_set) = (self.now(), self.replica_set());
        let mut api = self.api.state();
        api.now = now;
        let pod = api.pod(&key, &uid, &node_name(node));
        pod.controller = match slot {
            0..ORDINALS => controller("StatefulSet.apps", "db"),
            JOB => controller("Job.batch", "work"),
            BARE => None,
            _ => controller("ReplicaSet.apps", &replica_set),
        };
        drop(api);
        self.pods[slot] = Some((key, uid));
        Some(format!("{name} on n{}", node + 1))
    }

    /// The object goes.
    pub(crate) fn remove(&mut self, slot: usize) {
        let now = self.now();
        if let Some((key, _)) = &self.pods[slot]
            && self.api.state().pods.remove(key).is_some()
        {
            self.gone.insert(key.clone(), now);
        }
    }

    pub(crate) fn change_pod(&mut self, slot: usize, change: impl FnOnce(&mut Pod)) {
        if let Some((key, _)) = &self.pods[slot]
            && let Some(pod) = self.api.state().pods.get_mut(key)
        {
            change(pod);
        }
    }

    pub(crate) fn delete_pod(&mut self, slot: usize) {
        let due = Timestamp(self.now().0 + 30_000);
        self.change_pod(slot, |pod| pod.deleting = pod.deleting.or(Some(due)));
    }

    /// The StatefulSet wants so many from now on; `None`: it is deleted.
    pub(crate) fn set_wants(&mut self, replicas: Option<usize>) {
        let now = self.now();
        let key = (shop(), "StatefulSet.apps/db".to_owned());
        match replicas {
            Some(count) => {
                // Made anew it is another object of the same name.
                self.sets += u32::from(self.set.is_none());
                let uid = Uid::new(format!("set{}", self.sets)).unwrap();
                self.api.state().stateful_set(&shop(), "db", &uid, count as u64);
                let since = self.set.map_or(now, |(_, since)| since);
                self.set = Some((count, since));
            }
            None => {
                self.api.state().controllers.remove(&key);
                if self.set.take().is_some() {
                    self.set_gone = now;
                }
            }
        }
        for ordinal in 0..ORDINALS {
            if ordinal < replicas.unwrap_or(0) {
                self.wanted[ordinal] = self.wanted[ordinal].or(Some(now));
            } else {
                self.wanted[ordinal] = None;
                self.delete_pod(ordinal);
            }
        }
    }

    /// A person freezes the store, or thaws it.
    pub(crate) fn freeze(&mut self, frozen: Option<&Frozen>) {
        let now = self.now();
        match frozen {
            Some(frozen) => self.store.put(&keys::frozen(), record::encode_frozen(frozen)),
            None => self.store.delete(&keys::frozen()),
        }
        self.mirror.frozen = frozen.map(|_| self.mirror.frozen.unwrap_or(now));
    }

    // ---- nodes

    pub(crate) fn falls_silent(&mut self, node: usize) {
        let now = self.now();
        self.nodes[node].silent.get_or_insert(now);
    }

    /// The API has a node that says nothing as ready, for a while.
    pub(crate) fn notice_silence(&mut self) {
        let now = self.now();
        for (node, here) in self.nodes.iter_mut().enumerate() {
            let Some(since) = here.silent.map(|at| Timestamp(at.0 + UNNOTICED_MS)) else { continue };
            if since > now {
                continue;
            }
            here.ready = None;
            if let Some(known) = self.api.state().nodes.get_mut(&node_name(node))
                && matches!(known.ready, Ready::True | Ready::False)
            {
                known.ready = Ready::Unknown { since };
            }
        }
    }

    /// All its sandboxes and processes are gone.
    pub(crate) fn crash(&mut self, node: usize) {
        self.nodes[node].alive = false;
        self.falls_silent(node);
        for sandbox in self.sandboxes.iter_mut().filter(|sandbox| sandbox.node == node) {
            if matches!(sandbox.stage, Stage::Up | Stage::Starting) {
                sandbox.stage = Stage::Down;
            }
            sandbox.lingers = Timestamp(0);
        }
    }

    /// It is back.
    pub(crate) fn back(&mut self, node: usize) {
        if !self.nodes[node].alive {
            let gone = u64::try_from(self.began.elapsed().as_micros()).unwrap();
            let here = &mut self.nodes[node];
            here.boots += 1;
            here.me = identity(node, here.boots);
            here.clock.booted.store(gone, Ordering::Relaxed);
            here.alive = true;
        }
        if self.nodes[node].link == Link::None {
            let now = self.now();
            for index in 0..self.sandboxes.len() {
                let lives = self.is_living(index);
                let sandbox = &mut self.sandboxes[index];
                // Nobody could hear it, nor one whose DEL has come and that still answers for a moment.
                let answers = sandbox.stage == Stage::Up || sandbox.lingers > now;
                sandbox.exempt |= sandbox.node == node && answers && !lives;
            }
        }
        self.nodes[node].link = Link::Whole;
        self.nodes[node].silent = None;
        let now = self.now();
        self.nodes[node].ready.get_or_insert(now);
        let mut api = self.api.state();
        let known = api.node(&node_name(node));
        (known.ready, known.out_of_service) = (Ready::True, false);
    }

    // ---- sandboxes

    /// A sandbox of a pod that lives, on the pod's own node.
    pub(crate) fn is_living(&self, index: usize) -> bool {
        let sandbox = &self.sandboxes[index];
        if sandbox.stage != Stage::Up {
            return false;
        }
        if sandbox.slot >= PODS {
            return true;
        }
        self.pod_of(&sandbox.holder).is_some_and(|pod| {
            Some(&pod.uid) == sandbox.uid.as_ref()
                && pod.node == Some(node_name(sandbox.node))
                && self.lives(&pod)
        })
    }

    /// The newest sandboxes of a slot first.
    pub(crate) fn sandboxes_of(&self, slot: usize) -> Vec<usize> {
        (0..self.sandboxes.len()).rev().filter(|index| self.sandboxes[*index].slot == slot).collect()
    }

    /// Does somebody answer for this address, as `from` hears it?
    pub(crate) fn answers(&self, address: IpAddr, from: usize, asking: Option<usize>) -> bool {
        let now = self.now();
        self.nodes[from].is_heard()
            && self.sandboxes.iter().enumerate().any(|(index, sandbox)| {
                Some(index) != asking
                    && (sandbox.stage == Stage::Up || sandbox.lingers > now)
                    && self.nodes[sandbox.node].is_heard()
                    && sandbox.addresses.contains(&address)
            })
    }

    /// A sandbox is started; its number.
    pub(crate) fn start(&mut self, slot: usize, holder: Holder, uid: Option<Uid>, node: usize) -> usize {
        self.counter += 1;
        let container = match &holder {
            Holder::Pod { .. } => ContainerId::new(format!("c{}", self.counter)).unwrap(),
            Holder::Container(id) => id.clone(),
        };
        self.sandboxes.push(Sandbox {
            slot,
            container,
            holder,
            uid,
            node,
            stage: Stage::Starting,
            addresses: Vec::new(),
            lingers: Timestamp(0),
            exempt: false,
            ended: false,
        });
        self.sandboxes.len() - 1
    }

    /// A sandbox leaves; with a DEL on its way its link stays for a moment.
    pub(crate) fn leave(&mut self, index: usize, deleted: bool) {
        let now = self.now();
        let sandbox = &mut self.sandboxes[index];
        match sandbox.stage {
            Stage::Up => {
                sandbox.stage = Stage::Down;
                if deleted {
                    sandbox.lingers = Timestamp(now.0 + LINGER_MS);
                }
            }
            Stage::Starting => sandbox.stage = Stage::Failed,
            Stage::Failed | Stage::Down => {}
        }
    }

    /// An ADD answers.
    pub(crate) fn answered(&mut self, op: &Op, added: &Added) {
        let Some(index) = op.sandbox else { return };
        let addresses: Vec<IpAddr> = added.answer.addresses.iter().map(|a| a.address).collect();
        self.tell(|| format!("{} answers {addresses:?}", op.what));
        let sandbox = &mut self.sandboxes[index];
        match sandbox.stage {
            Stage::Starting => {
                sandbox.stage = Stage::Up;
                sandbox.addresses = addresses;
            }
            Stage::Up if sandbox.addresses != addresses => {
                let text = format!(
                    "ADD of {} again answers {addresses:?}, its first answer was {:?}",
                    sandbox.container, sandbox.addresses
                );
                self.fault(text);
            }
            // Nobody waits for it any more.
            Stage::Up | Stage::Failed | Stage::Down => {}
        }
    }

    pub(crate) fn lease_of(&self, holder: &Holder) -> Option<&Lease> {
        self.mirror.leases.get(&lease_key(holder))
    }

    pub(crate) fn set_controller(&self) -> Option<Wants> {
        let key = (shop(), "StatefulSet.apps/db".to_owned());
        self.api.state().controllers.get(&key).map(|known| known.wants.clone())
    }

    /// The holder of a slot's container without a pod.
    pub(crate) fn container_in(slot: usize) -> Holder {
        debug_assert!((PODS..SLOTS).contains(&slot));
        Holder::Container(ContainerId::new(format!("box{}", slot - PODS)).unwrap())
    }

    pub(crate) fn finish(&mut self, slot: usize, timed: bool) {
        let Some(pod) = self.pod_in(slot) else { return };
        let node = (0..NODES).find(|node| pod.node == Some(node_name(*node))).unwrap_or(0);
        let now = self.now();
        self.ended.entry(pod.uid).or_insert(now);
        let at = Timestamp(now.0 + self.nodes[node].clock.skew);
        self.change_pod(slot, |pod| {
            pod.phase = Phase::Succeeded;
            if timed && pod.finished == Finished::Unsaid {
                pod.finished = Finished::At(at);
            }
        });
    }
}

/// All leases of the mirror, in short words.
pub(crate) fn show(leases: &BTreeMap<Key, Lease>) -> String {
    let line = |lease: &Lease| {
        let addresses: Vec<String> = lease.addresses.iter().map(|a| a.address.to_string()).collect();
        let by = lease.last().map(|s| format!(" {} on {}", s.container, s.node)).unwrap_or_default();
        format!("{} {} {}{by}", lease.id.holder, lease.state().as_str(), addresses.join(" "))
    };
    leases.values().map(line).collect::<Vec<_>>().join("; ")
}
