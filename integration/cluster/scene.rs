//! What one test has of the cluster: a namespace, a pool, pods; and the look at them from outside.

use std::process::Command;

use serde_json::{Value, json};

use super::{image::PAUSE, machine::PATIENCE, site::Site};
use crate::support::process::{Finished, run, within};

/// Ends with [`end`](Self::end), which looks whether all is as it should be.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) site: &'a Site,
    pub(super) namespace: String,
}

/// A pod that runs, as it was seen.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) node: String,
    pub(super) address: String,
    container: String,
}

impl<'a> Scene<'a> {
    pub(super) fn begin(site: &'a Site, name: &str) -> Self {
        let scene = Self { site, namespace: name.into() };
        site.api.create("/api/v1/namespaces", &json!({ "metadata": { "name": name } }));
        let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
        site.wait("the namespace's account", || site.api.get(&account).map(drop));
        scene
    }

    /// The namespace goes, once it is seen that the store is as it should be.
    #[track_caller]
    pub(super) fn end(self) {
        self.is_sound();
        self.site.api.kubectl(&["delete", "namespace", &self.namespace, "--wait=false"]).success();
    }

    /// `check --against-pods` finds nothing, once what is under way has ended.
    #[track_caller]
    pub(super) fn is_sound(&self) {
        let check = "check --against-pods --cluster prod-a";
        let mut last = String::new();
        let sound = within(PATIENCE, || {
            let said = self.site.cli(check);
            last = format!("exit {:?}\n{}{}", said.code(), said.stdout(), said.stderr());
            (said.code() == Some(0)).then_some(())
        });
        assert!(sound.is_some(), "{check}: {last}\n{}", self.site.state());
    }

    /// A pool of so many addresses for a workload of this namespace, of both names. Other pools never have these addresses.
    pub(super) fn pool(&self, workload: &str, size: u32, more: &str) {
        let (first, last) = self.site.addresses(size);
        let pool = format!("pool create {}-{workload} --network lan100 --subnet 10.0.0.0/22", self.namespace);
        let serves = format!("--serves {}/{workload}", self.namespace);
        self.site.cli(&format!("{pool} --range {first}-{last} {serves} {more}")).success();
    }

    /// A StatefulSet; its pods start all at once.
    pub(super) fn stateful_set(&self, name: &str, replicas: u32, more: &Value) {
        let spec = json!({ "serviceName": name, "podManagementPolicy": "Parallel" });
        self.controller("statefulsets", name, replicas, &[&spec, more]);
    }

    pub(super) fn deployment(&self, name: &str, replicas: u32, more: &Value) {
        self.controller("deployments", name, replicas, &[more]);
    }

    fn controller(&self, kind: &str, name: &str, replicas: u32, more: &[&Value]) {
        let mut document = json!({
            "metadata": { "name": name },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": name } },
                "template": { "metadata": { "labels": { "app": name } }, "spec": pod_spec() },
            },
        });
        for more in more {
            merge(&mut document["spec"], more);
        }
        self.site.api.create(&format!("/apis/apps/v1/namespaces/{}/{kind}", self.namespace), &document);
    }

    /// A pod of nobody's.
    pub(super) fn pod(&self, name: &str, more: &Value) {
        let mut document = json!({ "metadata": { "name": name }, "spec": pod_spec() });
        merge(&mut document, more);
        self.site.api.create(&self.path("pods", ""), &document);
    }

    /// `/api/v1/namespaces/…/KIND/NAME`
    pub(super) fn path(&self, kind: &str, name: &str) -> String {
        let path = format!("/api/v1/namespaces/{}/{kind}", self.namespace);
        if name.is_empty() { path } else { format!("{path}/{name}") }
    }

    /// kubectl in this namespace, which must succeed.
    #[track_caller]
    pub(super) fn kubectl(&self, line: &str) -> Finished {
        let words = ["--namespace", &self.namespace].into_iter().chain(line.split_whitespace());
        let finished = self.site.api.kubectl(&words.collect::<Vec<_>>());
        assert_eq!(finished.code(), Some(0), "kubectl {line}: {}", finished.stderr());
        finished
    }

    /// The same for what takes long, as long as it takes.
    #[track_caller]
    pub(super) fn kubectl_for(&self, line: &str) {
        let words: Vec<_> =
            ["--namespace", &self.namespace].into_iter().chain(line.split_whitespace()).collect();
        self.site.wait(&format!("kubectl {line}"), || {
            (self.site.api.kubectl(&words).code() == Some(0)).then_some(())
        });
    }

    /// All that run, by name.
    pub(super) fn pods(&self) -> Vec<Pod> {
        let all = self.site.api.get(&self.path("pods", "")).unwrap();
        let mut pods: Vec<_> = all["items"].as_array().unwrap().iter().filter_map(read).collect();
        pods.sort_by(|one, other| one.name.cmp(&other.name));
        pods
    }

    /// The pod, once it runs.
    #[track_caller]
    pub(super) fn running(&self, name: &str) -> Pod {
        let path = self.path("pods", name);
        self.site.wait(&format!("pod {name} to run"), || read(&self.site.api.get(&path)?))
    }

    /// The pod of that name that comes after this one, once it runs.
    #[track_caller]
    pub(super) fn successor(&self, pod: &Pod) -> Pod {
        let path = self.path("pods", &pod.name);
        self.site.wait(&format!("a successor of {} to run", pod.name), || {
            read(&self.site.api.get(&path)?).filter(|seen| seen.uid != pod.uid)
        })
    }

    /// So many, once they run and no other is left.
    #[track_caller]
    pub(super) fn all_running(&self, count: usize) -> Vec<Pod> {
        self.site.wait(&format!("{count} pods to run in {}", self.namespace), || {
            let all = self.site.api.get(&self.path("pods", "")).unwrap();
            let pods = self.pods();
            (pods.len() == count && all["items"].as_array().unwrap().len() == count).then_some(pods)
        })
    }

    /// The pod, in a container of its node's next life.
    #[track_caller]
    pub(super) fn restarted(&self, pod: &Pod) -> Pod {
        let path = self.path("pods", &pod.name);
        self.site.wait(&format!("{} to run again", pod.name), || {
            read(&self.site.api.get(&path)?).filter(|seen| seen.container != pod.container)
        })
    }

    /// The address is that of the pod's interface, and the stranger hears that interface, and no other, answer on it.
    #[track_caller]
    pub(super) fn answers(&self, pod: &Pod) {
        let (addresses, mac) = self.interface(pod);
        assert_eq!(addresses, [pod.address.as_str()], "{pod:?}");
        assert_eq!(self.site.stranger.answers("eth0", &pod.address), [mac], "{pod:?}");
    }

    /// The process of the pod's container, as it is called on its node.
    pub(super) fn pid_of(&self, pod: &Pod) -> String {
        self.site.machine(&pod.node).pid_of(&pod.container).unwrap()
    }

    /// The container that the pod's CNI plugin was called for.
    pub(super) fn sandbox_of(&self, pod: &Pod) -> String {
        let shown = self.site.cli(&format!("lease list -n {} -o json", self.namespace));
        let shown: Value = serde_json::from_str(shown.success()).unwrap();
        let items = shown["items"].as_array().unwrap();
        let lease = items.iter().find(|item| item["pod"] == *pod.name).unwrap();
        lease["container"].as_str().unwrap().into()
    }

    /// Calls the plugin on a node for a pod of this namespace, as macvlan does for a runtime.
    #[track_caller]
    pub(super) fn call_plugin(&self, command: &str, node: &str, pod: &str, container: &str) {
        let mut plugin = self.site.machine(node).command("/usr/bin/env");
        plugin.args([
            &format!("CNI_COMMAND={command}"),
            "CNI_PATH=/opt/cni/bin",
            "CNI_IFNAME=eth0",
            "CNI_NETNS=/run/netns/none",
            &format!("CNI_CONTAINERID={container}"),
            &format!("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={pod}", self.namespace),
            "/opt/cni/bin/leasehold",
        ]);
        let network = json!({
            "cniVersion": "1.0.0", "name": "lan100", "type": "macvlan", "ipam": { "type": "leasehold" },
        });
        let finished = run(&mut plugin, network.to_string().as_bytes());
        assert_eq!(finished.code(), Some(0), "{command}: {}{}", finished.stdout(), finished.stderr());
    }

    /// Addresses, without the link-local one, and hardware address of the pod's `eth0`.
    #[track_caller]
    pub(super) fn interface(&self, pod: &Pod) -> (Vec<String>, String) {
        let network = self.site.machine(&pod.node).network_of(&pod.container);
        let network = network.unwrap_or_else(|| panic!("no task of {pod:?}"));
        let mut ip = Command::new("/usr/bin/nsenter");
        ip.arg(format!("--net={}", network.display()))
            .args(["--", "/sbin/ip", "-json", "address", "show", "eth0"]);
        let shown: Value = serde_json::from_str(run(&mut ip, b"").success()).unwrap();
        let all = shown[0]["addr_info"].as_array().unwrap().iter().filter(|info| info["scope"] != "link");
        let addresses = all.map(|info| info["local"].as_str().unwrap().into()).collect();
        (addresses, shown[0]["address"].as_str().unwrap().into())
    }

    /// `POD STATE` of each lease of this namespace, in the order of the pods' names.
    pub(super) fn leases(&self) -> Vec<String> {
        let listed = self.site.cli(&format!("lease list -n {} -o json", self.namespace));
        let listed: Value = serde_json::from_str(listed.success()).unwrap();
        let item =
            |item: &Value| format!("{} {}", item["pod"].as_str().unwrap(), item["state"].as_str().unwrap());
        let mut all: Vec<_> = listed["items"].as_array().unwrap().iter().map(item).collect();
        all.sort();
        all
    }

    /// Waits until the leases are these.
    #[track_caller]
    pub(super) fn leases_are(&self, expected: &[&str]) {
        self.site.wait(&format!("leases {expected:?}"), || (self.leases() == expected).then_some(()));
    }

    /// What a person reads of a pod whose network cannot be made, as of the CNI plugin, once it says what is expected.
    #[track_caller]
    pub(super) fn complaint(&self, pod: &str, expected: &str) -> String {
        let path = format!("{}?fieldSelector=involvedObject.name={pod}", self.path("events", ""));
        let mut last = Vec::new();
        let found = within(PATIENCE, || {
            let events = self.site.api.get(&path)?;
            last = events["items"].as_array()?.iter().filter_map(plugin_error).collect();
            last.iter().find(|text| text.contains(expected)).cloned()
        });
        found.unwrap_or_else(|| {
            panic!("no event of {pod} says {expected:?}: {last:#?}\n{}", self.site.state())
        })
    }
}

/// What follows the runtime's own words.
fn plugin_error(event: &Value) -> Option<String> {
    let (_, text) = event["message"].as_str()?.split_once("failed (add): ")?;
    Some(text.into())
}

/// Anything that runs, and ends when it is told.
pub(super) fn pod_spec() -> Value {
    json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 2,
        "containers": [{ "name": "main", "image": PAUSE }],
    })
}

/// Puts the fields of one object into another; a field that both have is merged if it is an object, else replaced.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.as_str()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// If it runs and is to go on running.
fn read(pod: &Value) -> Option<Pod> {
    let (meta, status) = (&pod["metadata"], &pod["status"]);
    if !meta["deletionTimestamp"].is_null() || status["phase"] != "Running" {
        return None;
    }
    let main = &status["containerStatuses"][0];
    let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
    Some(Pod {
        name: text(&meta["name"])?,
        uid: text(&meta["uid"])?,
        node: text(&pod["spec"]["nodeName"])?,
        address: text(&status["podIP"])?,
        container: text(&main["containerID"])
            .filter(|_| main["ready"] == true)?
            .strip_prefix("containerd://")?
            .into(),
    })
}
