//! A cluster, its leases, and a reaper that a test moves by hand.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold::{
    domain::{
        kubernetes::{ControllerRef, Pod, PodKey, Ready},
        lease::Timestamp,
        names::{ClusterName, Namespace, NodeName, PodName, Uid},
        reap::{Policy, Row},
    },
    pods::{Cluster, fake::FakeCluster},
    reaper::{self, Fate, Options, PassError, Report, Step, Stop},
    store::{record::PoolDocument, testing::MemoryStore},
};

use crate::ops::world::{Node, Trail, World, pool};

/// A store, nodes, an API and a reaper.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) api: FakeCluster,
    pub(crate) policy: Policy,
    pub(crate) trail: Trail,
    /// Ends passes early.
    pub(crate) stop: Arc<Stop>,
    /// The reaper's own clock.
    pub(crate) host: Node,
}

pub(crate) fn key(pod: &str) -> PodKey {
    let (namespace, name) = pod.split_once('/').unwrap();
    PodKey { namespace: Namespace::new(namespace).unwrap(), name: PodName::new(name).unwrap() }
}

pub(crate) fn uid(text: &str) -> Uid {
    Uid::new(text).unwrap()
}

pub(crate) fn node(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::with(&[pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.99"])])
    }

    pub(crate) fn with(pools: &[PoolDocument]) -> Self {
        let world = World::new(pools);
        let host = world.node("reaper");
        let api = FakeCluster::new(uid("kube-system"), Timestamp(1_700_000_000_000));
        for name in ["n1", "n2", "n3"] {
            api.state().node(&node(name));
        }
        // No cluster is without any pod: an empty list is a brake.
        api.state().pod(&key("kube-system/proxy-n1"), &uid("proxy"), &node("n1"));
        Self { world, api, policy: Policy::default(), trail: Trail::default(), stop: Arc::default(), host }
    }

    /// A pod that runs and has a lease.
    pub(crate) async fn runs(&self, pod: &str, container: &str, on: &str) -> String {
        self.api.state().pod(&key(pod), &uid(&format!("uid-{pod}").replace('/', "-")), &node(on));
        self.world.node(on).gets(pod, container).await
    }

    /// A pod of a StatefulSet.
    pub(crate) async fn runs_in_set(&self, pod: &str, container: &str, on: &str, replicas: u64) -> String {
        let address = self.runs(pod, container, on).await;
        let (name, _) = pod.rsplit_once('-').unwrap();
        let (namespace, name) = name.split_once('/').unwrap();
        let mut state = self.api.state();
        state.stateful_set(&Namespace::new(namespace).unwrap(), name, &uid("set"), replicas);
        let controller =
            ControllerRef { kind: "StatefulSet.apps".into(), version: "v1".into(), name: name.into() };
        state.pods.get_mut(&key(pod)).unwrap().controller = Some(controller);
        address
    }

    /// The pod's object goes, without any DEL.
    pub(crate) fn vanishes(&self, pod: &str) {
        self.api.state().pods.remove(&key(pod)).unwrap();
    }

    /// What is true of a pod's object from now on.
    pub(crate) fn change(&self, pod: &str, change: impl FnOnce(&mut Pod)) {
        change(self.api.state().pods.get_mut(&key(pod)).unwrap());
    }

    /// Somebody deletes the pod, whose grace is over; its object stays until its kubelet has ended it.
    pub(crate) fn leaves(&self, pod: &str) {
        let now = self.api.state().now;
        self.change(pod, |pod| pod.deleting = Some(now));
    }

    /// The StatefulSet wants so many from now on.
    pub(crate) fn scale(&self, set: &str, replicas: u64) {
        let (namespace, name) = set.split_once('/').unwrap();
        self.api.state().stateful_set(&Namespace::new(namespace).unwrap(), name, &uid("set"), replicas);
    }

    /// The node's kubelet falls silent; it is seen so from now on.
    pub(crate) fn falls_silent(&self, name: &str) {
        let mut state = self.api.state();
        let since = state.now;
        state.node(&node(name)).ready = Ready::Unknown { since };
    }

    /// Time goes by, for all clocks.
    pub(crate) async fn wait(&self, seconds: u64) {
        self.wait_ms(seconds * 1000).await;
    }

    pub(crate) async fn wait_ms(&self, ms: u64) {
        tokio::time::advance(Duration::from_millis(ms)).await;
        let mut state = self.api.state();
        state.now = Timestamp(state.now.0 + i64::try_from(ms).unwrap());
    }

    pub(crate) async fn try_pass(&self, options: Options) -> Result<Report, PassError> {
        self.pass_from(&self.host, options).await
    }

    /// A pass of the reaper on this host.
    pub(crate) async fn pass_from(&self, host: &Node, options: Options) -> Result<Report, PassError> {
        self.pass_with(host, &self.api, options).await
    }

    /// A pass that need not leave a store without a fault.
    pub(crate) async fn pass_over_a_spoiled_store(&self, options: Options) -> Result<Report, PassError> {
        self.pass_that(&self.host, &self.api, options, false).await
    }

    /// The same by this way to the API.
    pub(crate) async fn pass_with(
        &self,
        host: &Node,
        api: &impl Cluster,
        options: Options,
    ) -> Result<Report, PassError> {
        self.pass_that(host, api, options, true).await
    }

    async fn pass_that(
        &self,
        host: &Node,
        api: &impl Cluster,
        options: Options,
        audited: bool,
    ) -> Result<Report, PassError> {
        let cluster = ClusterName::new("prod").unwrap();
        let context = reaper::Context {
            store: &host.way,
            api,
            clock: &host.clock,
            log: &self.trail,
            cluster: &cluster,
            policy: &self.policy,
            stop: &self.stop,
        };
        let steps: Mutex<Vec<Step>> = Mutex::default();
        let report = reaper::pass(&context, options, &|step| steps.lock().unwrap().push(step)).await;
        if audited {
            self.world.audit();
        }
        report
    }

    pub(crate) async fn pass(&self) -> Report {
        self.try_pass(Options { mend: true, ..Options::default() }).await.unwrap()
    }

    /// A pass that tells every lease.
    pub(crate) async fn pass_telling_all(&self) -> Report {
        self.try_pass(Options { mend: true, all: true, ..Options::default() }).await.unwrap()
    }

    /// A pass, and who was given back by it, with the row: `shop/a 8`.
    pub(crate) async fn gives(&self) -> Vec<String> {
        given(&self.pass().await)
    }

    pub(crate) fn store(&self) -> &MemoryStore {
        &self.world.store
    }
}

pub(crate) fn given(report: &Report) -> Vec<String> {
    report
        .judged
        .iter()
        .filter(|judged| judged.fate == Fate::GivenBack)
        .map(|judged| format!("{} {}", judged.id.holder, judged.row))
        .collect()
}

/// The line of a lease in a report: row and reason.
pub(crate) fn why(report: &Report, pod: &str) -> Option<(Row, String)> {
    let found = report.judged.iter().find(|judged| judged.id.holder.to_string() == pod)?;
    Some((found.row, found.why.clone()))
}
