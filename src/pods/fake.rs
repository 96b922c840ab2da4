//! A cluster's API in memory, for tests: it says what it was told, and lies where a test wants it to.
//!
//! Stricter than a real one: it answers nothing that it was not told, and its clock stands still unless a test moves it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{ApiError, Cluster, Event};
use crate::domain::{
    kubernetes::{Controller, ControllerRef, Finished, Listed, Live, Node, Phase, Pod, PodKey, Ready, Wants},
    lease::Timestamp,
    names::{Namespace, NodeName, Uid},
};

/// A question that was asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Question {
    /// Which cluster is this?
    Identity,
    /// All pods.
    Pods,
    /// One pod.
    Pod(PodKey),
    /// All nodes.
    Nodes,
    /// One node.
    Node(NodeName),
    /// One controller.
    Controller(Namespace, ControllerRef),
    /// An Event.
    Record(Event),
}

/// What the cluster is.
#[derive(Clone, Debug)]
pub struct State {
    /// UID of kube-system.
    pub identity: Uid,
    /// The server's clock.
    pub now: Timestamp,
    /// The pods.
    pub pods: BTreeMap<PodKey, Pod>,
    /// The nodes.
    pub nodes: BTreeMap<NodeName, Node>,
    /// The controllers, by namespace and `StatefulSet.apps/db`.
    pub controllers: BTreeMap<(Namespace, String), Controller>,
    /// What was asked.
    pub asked: Vec<Question>,
}

/// Looks at a question before it is answered: may change the cluster, or answer an error instead.
pub type Hook = Box<dyn FnMut(&Question, &mut State) -> Option<ApiError> + Send>;

/// The API.
pub struct FakeCluster {
    state: Mutex<State>,
    hook: Mutex<Option<Hook>>,
}

impl FakeCluster {
    /// A cluster without anything.
    #[must_use]
    pub fn new(identity: Uid, now: Timestamp) -> Self {
        let state = State {
            identity,
            now,
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            controllers: BTreeMap::new(),
            asked: Vec::new(),
        };
        Self { state: Mutex::new(state), hook: Mutex::new(None) }
    }

    /// The cluster as it is, to look at and to change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on asked before each answer.
    pub fn before(&self, hook: impl FnMut(&Question, &mut State) -> Option<ApiError> + Send + 'static) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
    }

    /// It says the truth again.
    pub fn honest(&self) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn asked(&self, question: Question) -> Result<MutexGuard<'_, State>, ApiError> {
        let mut state = self.state();
        let mut hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        let error = hook.as_mut().and_then(|hook| hook(&question, &mut state));
        state.asked.push(question);
        error.map_or(Ok(state), Err)
    }
}

impl State {
    /// A node whose kubelet lives.
    pub fn node(&mut self, name: &NodeName) -> &mut Node {
        self.nodes.entry(name.clone()).or_insert_with(|| Node {
            name: name.clone(),
            ready: Ready::True,
            out_of_service: false,
        })
    }

    /// A running pod on a node; one that was there is replaced.
    pub fn pod(&mut self, key: &PodKey, uid: &Uid, node: &NodeName) -> &mut Pod {
        let pod = Pod {
            key: key.clone(),
            uid: uid.clone(),
            node: Some(node.clone()),
            phase: Phase::Running,
            deleting: None,
            finished: Finished::Unsaid,
            created: self.now,
            mirror: None,
            controller: None,
            host_network: false,
            wishes: Vec::new(),
            addresses: Vec::new(),
        };
        self.pods.remove(key);
        self.pods.entry(key.clone()).or_insert(pod)
    }

    /// A StatefulSet of apps.
    pub fn stateful_set(&mut self, namespace: &Namespace, name: &str, uid: &Uid, replicas: u64) {
        let wants = Wants::Ordinals { start: 0, replicas, reserved: Vec::new() };
        let key = (namespace.clone(), format!("StatefulSet.apps/{name}"));
        self.controllers.insert(key, Controller { uid: uid.clone(), wants });
    }
}

impl Cluster for FakeCluster {
    async fn identity(&self) -> Result<Uid, ApiError> {
        Ok(self.asked(Question::Identity)?.identity.clone())
    }

    async fn pods_that(
        &self,
        keep: &(dyn Fn(&Pod) -> bool + Sync),
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<Listed<Pod>, ApiError> {
        let state = self.asked(Question::Pods)?;
        progress(state.pods.len());
        let items = state.pods.values().filter(|pod| keep(pod)).cloned().collect();
        Ok(Listed { items, all: state.pods.len(), at: state.now })
    }

    async fn pod(&self, key: &PodKey) -> Result<Live<Pod>, ApiError> {
        let state = self.asked(Question::Pod(key.clone()))?;
        Ok(Live { found: state.pods.get(key).cloned(), at: state.now })
    }

    async fn nodes(&self) -> Result<Listed<Node>, ApiError> {
        let state = self.asked(Question::Nodes)?;
        let items: Vec<Node> = state.nodes.values().cloned().collect();
        Ok(Listed { all: items.len(), items, at: state.now })
    }

    async fn node(&self, name: &NodeName) -> Result<Live<Node>, ApiError> {
        let state = self.asked(Question::Node(name.clone()))?;
        Ok(Live { found: state.nodes.get(name).cloned(), at: state.now })
    }

    async fn controller(
        &self,
        namespace: &Namespace,
        controller: &ControllerRef,
    ) -> Result<Live<Controller>, ApiError> {
        let state = self.asked(Question::Controller(namespace.clone(), controller.clone()))?;
        let key = (namespace.clone(), controller.to_string());
        Ok(Live { found: state.controllers.get(&key).cloned(), at: state.now })
    }

    async fn record(&self, event: &Event) -> Result<(), ApiError> {
        self.asked(Question::Record(event.clone())).map(|_| ())
    }
}
