//! The JSON of the API, as far as it is looked at, and the way from it to values of the domain.
//!
//! Everything is optional and may be null: Go writes an empty list as `[]`, as `null` or not at all. What a value of
//! the domain cannot do without is missed when it is made, with a text that says what.

use std::{fmt, net::IpAddr};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use crate::domain::{
    kubernetes::{
        Controller, ControllerRef, Finished, Node, Phase, Pod, PodAddress, PodKey, Ready, WISH, Wants,
    },
    lease::Timestamp,
    names::{Namespace, NodeName, PodName, Uid},
};

/// The mark of a static pod's picture; its value is the UID that the runtime knows.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// What Multus says of a pod's interfaces.
const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// A person, or a cloud, says that a node is shut down.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Ordinals that may be reserved in one controller. A list that is longer is not understood: then all pods are wanted.
const MOST_RESERVED: u64 = 100_000;

/// `v1/List` of anything. Without `items` it is none.
#[derive(Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
pub(super) struct List<T> {
    pub(super) kind: Option<String>,
    pub(super) metadata: Option<ListMeta>,
    #[serde(default = "Option::default", deserialize_with = "present")]
    pub(super) items: Option<Vec<T>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListMeta {
    pub(super) resource_version: Option<String>,
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
    pub(super) remaining_item_count: Option<u64>,
}

/// An empty list may be written as null.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Vec<T>>, D::Error> {
    Ok(Some(Option::<Vec<T>>::deserialize(from)?.unwrap_or_default()))
}

/// How the API says no.
#[derive(Default, Deserialize)]
pub(super) struct Status {
    pub(super) kind: Option<String>,
    pub(super) message: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) code: Option<u16>,
    pub(super) details: Option<Details>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Details {
    pub(super) name: Option<String>,
    pub(super) group: Option<String>,
    /// The resource (`pods`), whatever the field is called.
    pub(super) kind: Option<String>,
    pub(super) retry_after_seconds: Option<u64>,
}

/// One object, of a kind that is checked by who asked for it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta {
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) generation: Option<i64>,
    pub(super) creation_timestamp: Option<Time>,
    pub(super) deletion_timestamp: Option<Time>,
    pub(super) owner_references: Option<Vec<Owner>>,
    #[serde(default)]
    pub(super) annotations: Annotations,
}

/// RFC 3339.
#[derive(Clone, Copy)]
pub(super) struct Time(pub(super) Timestamp);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Time;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as 2026-01-02T03:04:05Z")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Time, E> {
                let time: jiff::Timestamp =
                    text.parse().map_err(|_| E::custom(format!("{text:?} is no time")))?;
                Ok(Time(Timestamp(time.as_millisecond())))
            }
        }
        from.deserialize_str(Reader)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Owner {
    pub(super) api_version: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) name: Option<String>,
    pub(super) controller: Option<bool>,
}

/// Those that are looked at; the others may be 256 kB.
#[derive(Default)]
pub(super) struct Annotations {
    pub(super) mirror: Option<String>,
    pub(super) networks: Vec<Attached>,
    pub(super) wishes: Vec<(String, String)>,
}

#[derive(Deserialize)]
pub(super) struct Attached {
    name: Option<String>,
    interface: Option<String>,
    ips: Option<Vec<String>>,
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Annotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_unit<E>(self) -> Result<Annotations, E> {
                Ok(Annotations::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
                let mut all = Annotations::default();
                while let Some(key) = map.next_key::<AnnotationKey>()? {
                    if matches!(key, AnnotationKey::Other) {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        all.keep(key, map.next_value()?);
                    }
                }
                Ok(all)
            }
        }
        from.deserialize_any(Reader)
    }
}

impl Annotations {
    pub(super) fn keep(&mut self, key: AnnotationKey, text: Option<String>) {
        match key {
            AnnotationKey::Mirror => self.mirror = text,
            // Anybody may write it, and nothing rests on it.
            AnnotationKey::Networks => {
                self.networks = serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default();
            }
            AnnotationKey::Wish(name) => self.wishes.push((name, text.unwrap_or_default())),
            AnnotationKey::Other => {}
        }
    }
}

pub(super) enum AnnotationKey {
    Mirror,
    Networks,
    Wish(String),
    Other,
}

impl AnnotationKey {
    pub(super) fn of(name: &str) -> Self {
        match name {
            MIRROR => Self::Mirror,
            NETWORK_STATUS => Self::Networks,
            _ if name.starts_with(WISH) => Self::Wish(name.to_owned()),
            _ => Self::Other,
        }
    }
}

impl<'de> Deserialize<'de> for AnnotationKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = AnnotationKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of an annotation")
            }

            fn visit_str<E>(self, text: &str) -> Result<AnnotationKey, E> {
                Ok(AnnotationKey::of(text))
            }
        }
        from.deserialize_str(Reader)
    }
}

/// A list of which only the length matters.
pub(super) struct Count(pub(super) usize);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Count, A::Error> {
                let mut count = 0;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Count(count))
            }
        }
        from.deserialize_seq(Reader)
    }
}

#[derive(Deserialize)]
pub(super) struct PodObject {
    pub(super) kind: Option<String>,
    pub(super) metadata: Option<Meta>,
    pub(super) spec: Option<PodSpec>,
    pub(super) status: Option<PodStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodSpec {
    pub(super) node_name: Option<String>,
    pub(super) host_network: Option<bool>,
    pub(super) containers: Option<Count>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodStatus {
    pub(super) phase: Option<String>,
    #[serde(rename = "podIP")]
    pub(super) pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pub(super) pod_ips: Option<Vec<PodIp>>,
    pub(super) container_statuses: Option<Vec<ContainerStatus>>,
    pub(super) init_container_statuses: Option<Vec<ContainerStatus>>,
    pub(super) ephemeral_container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Deserialize)]
pub(super) struct PodIp {
    pub(super) ip: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct ContainerStatus {
    pub(super) state: Option<State>,
}

#[derive(Deserialize)]
pub(super) struct State {
    pub(super) running: Option<IgnoredAny>,
    pub(super) terminated: Option<Terminated>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Terminated {
    pub(super) finished_at: Option<Time>,
}

impl PodStatus {
    fn phase(&self) -> Phase {
        match self.phase.as_deref() {
            None | Some("" | "Pending") => Phase::Pending,
            Some("Running") => Phase::Running,
            Some("Succeeded") => Phase::Succeeded,
            Some("Failed") => Phase::Failed,
            Some(_) => Phase::Unknown,
        }
    }

    /// When the last container ended; nothing unless the status says it of each one that the pod has.
    fn finished(&self, containers: usize) -> Finished {
        let main = self.container_statuses.as_deref().unwrap_or_default();
        let others = [&self.init_container_statuses, &self.ephemeral_container_statuses];
        let states = main.iter().chain(others.into_iter().flatten().flatten()).map(|one| one.state.as_ref());
        if states.clone().flatten().any(|state| state.running.is_some()) {
            return Finished::StillRuns;
        }
        if main.is_empty() || main.len() < containers {
            return Finished::Unsaid;
        }
        let ends = states.map(|state| Some(state?.terminated.as_ref()?.finished_at?.0));
        let last = ends.collect::<Option<Vec<_>>>().and_then(|ends| ends.into_iter().max());
        last.map_or(Finished::Unsaid, Finished::At)
    }
}

type Fault = String;

fn needed<T>(value: Option<T>, field: &str) -> Result<T, Fault> {
    value.ok_or_else(|| format!("it has no {field}"))
}

impl TryFrom<PodObject> for Pod {
    type Error = Fault;

    fn try_from(object: PodObject) -> Result<Self, Fault> {
        let meta = needed(object.metadata, "metadata")?;
        let name = needed(meta.name, "metadata.name")?;
        let namespace = needed(meta.namespace, "metadata.namespace")?;
        let key = PodKey {
            name: PodName::new(name).map_err(|error| error.to_string())?,
            namespace: Namespace::new(namespace).map_err(|error| error.to_string())?,
        };
        let about = |fault: &dyn fmt::Display| format!("pod {key}: {fault}");
        let spec = object.spec.unwrap_or_default();
        let status = object.status.unwrap_or_default();
        let uid = Uid::new(needed(meta.uid, "metadata.uid").map_err(|error| about(&error))?);
        let node = spec.node_name.filter(|name| !name.is_empty()).map(NodeName::new).transpose();
        let mut controller = None;
        for owner in
            meta.owner_references.into_iter().flatten().filter(|owner| owner.controller == Some(true))
        {
            controller = Some(controller_ref(owner).map_err(|error| about(&error))?);
        }
        let created =
            needed(meta.creation_timestamp, "metadata.creationTimestamp").map_err(|error| about(&error))?;
        Ok(Self {
            uid: uid.map_err(|error| about(&error))?,
            node: node.map_err(|error| about(&error))?,
            phase: status.phase(),
            deleting: meta.deletion_timestamp.map(|time| time.0),
            finished: status.finished(spec.containers.map_or(0, |count| count.0)),
            created: created.0,
            mirror: meta.annotations.mirror,
            controller,
            host_network: spec.host_network.unwrap_or(false),
            wishes: meta.annotations.wishes,
            addresses: addresses(status.pod_ip, status.pod_ips, &meta.annotations.networks),
            key,
        })
    }
}

fn controller_ref(owner: Owner) -> Result<ControllerRef, Fault> {
    let version = needed(owner.api_version, "ownerReferences.apiVersion")?;
    let kind = needed(owner.kind, "ownerReferences.kind")?;
    let name = needed(owner.name, "ownerReferences.name")?;
    Ok(match version.split_once('/') {
        Some((group, version)) => {
            ControllerRef { kind: format!("{kind}.{group}"), version: version.to_owned(), name }
        }
        None => ControllerRef { kind, version, name },
    })
}

fn addresses(first: Option<String>, all: Option<Vec<PodIp>>, networks: &[Attached]) -> Vec<PodAddress> {
    let status = match all.unwrap_or_default() {
        all if all.is_empty() => first.into_iter().collect(),
        all => all.into_iter().filter_map(|entry| entry.ip).collect::<Vec<_>>(),
    };
    let mut found: Vec<PodAddress> = status
        .iter()
        .filter_map(|ip| Some(PodAddress { address: ip.parse::<IpAddr>().ok()?, attachment: None }))
        .collect();
    for network in networks {
        let attachment = network.name.clone().zip(network.interface.clone());
        for ip in network.ips.iter().flatten() {
            if let Ok(address) = ip.parse() {
                found.push(PodAddress { address, attachment: attachment.clone() });
            }
        }
    }
    found.shrink_to_fit();
    found
}

#[derive(Deserialize)]
pub(super) struct NodeObject {
    pub(super) kind: Option<String>,
    pub(super) metadata: Option<Meta>,
    spec: Option<NodeSpec>,
    status: Option<NodeStatus>,
}

#[derive(Deserialize)]
struct NodeSpec {
    taints: Option<Vec<Taint>>,
}

#[derive(Deserialize)]
struct Taint {
    key: Option<String>,
}

#[derive(Deserialize)]
struct NodeStatus {
    conditions: Option<Vec<Condition>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    r#type: Option<String>,
    status: Option<String>,
    last_transition_time: Option<Time>,
}

impl NodeObject {
    /// As of `at`: a condition that does not say since when is as young as it can be.
    pub(super) fn node(self, at: Timestamp) -> Result<Node, Fault> {
        let name = needed(needed(self.metadata, "metadata")?.name, "metadata.name")?;
        let conditions = self.status.and_then(|status| status.conditions);
        let ready = conditions.into_iter().flatten().find(|one| one.r#type.as_deref() == Some("Ready"));
        let mut taints = self.spec.and_then(|spec| spec.taints).into_iter().flatten();
        Ok(Node {
            name: NodeName::new(name).map_err(|error| error.to_string())?,
            ready: match &ready {
                Some(one) if one.status.as_deref() == Some("True") => Ready::True,
                Some(one) if one.status.as_deref() == Some("Unknown") => {
                    Ready::Unknown { since: one.last_transition_time.map_or(at, |time| time.0) }
                }
                Some(_) => Ready::False,
                None => Ready::Unsaid,
            },
            out_of_service: taints.any(|taint| taint.key.as_deref() == Some(OUT_OF_SERVICE)),
        })
    }
}

/// A StatefulSet, Kruise's, or anything else that has metadata.
#[derive(Deserialize)]
pub(super) struct ControllerObject {
    pub(super) kind: Option<String>,
    pub(super) metadata: Option<Meta>,
    /// Whatever a foreign kind has there.
    #[serde(default)]
    spec: serde_json::Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatefulSpec {
    replicas: Option<u64>,
    ordinals: Option<Ordinals>,
    reserve_ordinals: Option<Vec<serde_json::Value>>,
}

#[derive(Deserialize)]
struct Ordinals {
    start: Option<u64>,
}

impl ControllerObject {
    /// What it wants; `stateful` if it is one of the kinds that number their pods.
    pub(super) fn controller(self, stateful: bool) -> Result<Controller, Fault> {
        let uid = needed(needed(self.metadata, "metadata")?.uid, "metadata.uid")?;
        let ordinals = || {
            let spec: StatefulSpec = serde_json::from_value(self.spec).ok()?;
            Some(Wants::Ordinals {
                start: spec.ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0),
                replicas: spec.replicas.unwrap_or(1),
                reserved: reserved(&spec.reserve_ordinals.unwrap_or_default())?,
            })
        };
        Ok(Controller {
            uid: Uid::new(uid).map_err(|error| error.to_string())?,
            // What is not understood wants all: that keeps their leases.
            wants: if stateful { ordinals() } else { None }.unwrap_or(Wants::All),
        })
    }
}

/// Numbers, and ranges such as `"3-5"`.
fn reserved(list: &[serde_json::Value]) -> Option<Vec<u64>> {
    let mut all = Vec::new();
    for one in list {
        let (from, to) = match one.as_str() {
            Some(text) => {
                let (from, to) = text.split_once('-').unwrap_or((text, text));
                (from.trim().parse::<u64>().ok()?, to.trim().parse::<u64>().ok()?)
            }
            None => (one.as_u64()?, one.as_u64()?),
        };
        if from > to || to - from >= MOST_RESERVED || all.len() as u64 >= MOST_RESERVED {
            return None;
        }
        all.extend(from..=to);
    }
    all.sort_unstable();
    all.dedup();
    Some(all)
}

/// `/apis/<group>`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Group {
    pub(super) kind: Option<String>,
    pub(super) preferred_version: Option<GroupVersion>,
    pub(super) versions: Option<Vec<GroupVersion>>,
}

#[derive(Deserialize)]
pub(super) struct GroupVersion {
    pub(super) version: Option<String>,
}

/// `/apis/<group>/<version>`.
#[derive(Deserialize)]
pub(super) struct Resources {
    pub(super) kind: Option<String>,
    pub(super) resources: Option<Vec<Resource>>,
}

#[derive(Deserialize)]
pub(super) struct Resource {
    pub(super) name: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) namespaced: Option<bool>,
}

/// An object of which only this is looked at.
#[derive(Deserialize)]
pub(super) struct Bare {
    pub(super) kind: Option<String>,
    pub(super) metadata: Option<Meta>,
}

/// Of a StatefulSet, as a watch looks at it.
#[derive(Deserialize)]
pub(super) struct WatchedController {
    metadata: Option<Meta>,
    status: Option<Observed>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Observed {
    observed_generation: Option<i64>,
}

impl WatchedController {
    /// Something else is wanted of it than its controller has seen.
    pub(super) fn is_new(&self) -> bool {
        let observed = self.status.as_ref().and_then(|status| status.observed_generation);
        self.metadata
            .as_ref()
            .is_none_or(|meta| meta.deletion_timestamp.is_some() || meta.generation != observed)
    }
}

/// What the server keeps of an Event.
#[derive(Deserialize)]
pub(super) struct Counted {
    pub(super) count: Option<u32>,
}

/// Of JSON, whole and without a rest.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Fault> {
    // Line and column tell a body that was cut from one of another kind.
    serde_json::from_slice(body).map_err(|error| format!("the answer is not as expected: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{super::protobuf, *};

    fn pod(change: impl FnOnce(&mut Value)) -> Result<Pod, Fault> {
        let mut pod = super::super::testing::pod(0);
        change(&mut pod);
        let read = parse::<PodObject>(pod.to_string().as_bytes()).and_then(Pod::try_from);
        if read.is_ok() {
            let message = protobuf::written(&json!({ "kind": "PodList", "items": [pod] })).unwrap();
            let list = protobuf::pods(message.into()).unwrap();
            assert_eq!(list.items.unwrap().pop().map(Pod::try_from), Some(read.clone()), "in protobuf");
        }
        read
    }

    fn ended(at: Option<&str>) -> Value {
        json!({ "name": "c", "state": { "terminated": { "exitCode": 0, "finishedAt": at } } })
    }

    #[track_caller]
    fn finished(status: &Value, expected: impl Into<Option<i64>>) {
        said(
            status,
            expected.into().map_or(Finished::Unsaid, |second| Finished::At(Timestamp(second * 1000))),
        );
    }

    #[track_caller]
    fn said(status: &Value, expected: Finished) {
        let found = pod(|pod| {
            pod["spec"]["containers"] = json!([{ "name": "c" }, { "name": "d" }]);
            pod["status"] = status.clone();
        });
        assert_eq!(found.unwrap().finished, expected, "{status}");
    }

    #[test]
    fn a_pod_has_finished_when_its_status_says_so_of_every_container() {
        let [one, two, three] =
            ["1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z", "1970-01-01T00:00:03Z"].map(Some);
        let both = json!([ended(two), ended(one)]);
        finished(&json!({ "containerStatuses": both }), Some(2));
        finished(&json!({ "containerStatuses": both, "initContainerStatuses": [ended(three)] }), Some(3));
        finished(
            &json!({ "containerStatuses": both, "ephemeralContainerStatuses": [ended(three)] }),
            Some(3),
        );
        let running = json!([{ "name": "c", "state": { "running": {} } }]);
        said(&json!({ "containerStatuses": both, "initContainerStatuses": running }), Finished::StillRuns);
        said(&json!({ "phase": "Failed", "containerStatuses": running }), Finished::StillRuns);
        let waits = json!({ "name": "c", "state": { "waiting": {}, "running": null } });
        finished(&json!({ "containerStatuses": [ended(two), waits] }), None);
        finished(
            &json!({ "containerStatuses": both, "ephemeralContainerStatuses": [{ "name": "e" }] }),
            None,
        );
        finished(&json!({ "containerStatuses": [ended(two), ended(None)] }), None);
        finished(&json!({ "containerStatuses": [ended(two)] }), None);
        finished(&json!({ "phase": "Failed", "reason": "Evicted" }), None);
        finished(&json!(null), None);
    }

    #[test]
    fn annotations_tell_of_mirrors_networks_and_wishes() {
        let network =
            r#"[{"name":"shop/lan","interface":"net1","ips":["10.0.0.7","fd00::7"],"dns":{}},{"name":"x"}]"#;
        let found = pod(|pod| {
            pod["metadata"]["annotations"] = json!({
                MIRROR: "a-hash", NETWORK_STATUS: network, "leasehold.io/ip": "10.0.0.7", "other": null,
            });
            pod["status"] = json!({ "podIP": "10.1.0.1", "podIPs": null });
        })
        .unwrap();
        assert_eq!(found.mirror.as_deref(), Some("a-hash"));
        assert_eq!(found.wishes.len(), 1);
        let shown: Vec<_> =
            found.addresses.iter().map(|one| (one.address.to_string(), one.attachment.clone())).collect();
        let lan = Some(("shop/lan".to_owned(), "net1".to_owned()));
        let expected = [("10.1.0.1", None), ("10.0.0.7", lan.clone()), ("fd00::7", lan)];
        assert_eq!(shown, expected.map(|(address, attachment)| (address.to_owned(), attachment)));
        let odd = pod(|pod| pod["metadata"]["annotations"] = json!({ NETWORK_STATUS: "{" })).unwrap();
        assert_eq!(odd.addresses.len(), 1);
        assert_eq!(pod(|pod| pod["metadata"]["annotations"] = json!(null)).unwrap().wishes, []);
    }

    #[test]
    fn a_pod_that_lacks_something_says_what() {
        for (field, words) in [
            ("name", "it has no metadata.name"),
            ("namespace", "it has no metadata.namespace"),
            ("uid", "pod shop/db-0: it has no metadata.uid"),
            ("creationTimestamp", "pod shop/db-0: it has no metadata.creationTimestamp"),
        ] {
            assert_eq!(pod(|pod| pod["metadata"][field] = json!(null)).unwrap_err(), words);
        }
        let error = pod(|pod| pod["metadata"]["name"] = "a/b".into()).unwrap_err();
        assert!(error.contains("invalid character '/'"), "{error}");
        let error = pod(|pod| pod["metadata"]["deletionTimestamp"] = "soon".into()).unwrap_err();
        assert!(error.contains("\"soon\" is no time"), "{error}");
    }

    #[test]
    fn a_node_is_ready_as_its_condition_says_and_without_one_nobody_knows() {
        let case = |status: Value, expected: Ready| {
            let object = json!({ "metadata": { "name": "n1" }, "status": status }).to_string();
            let object: NodeObject = parse(object.as_bytes()).unwrap();
            assert_eq!(object.node(Timestamp(7)).unwrap().ready, expected, "{status}");
        };
        let ready = |status: &str| json!({ "conditions": [{ "type": "Ready", "status": status }] });
        case(ready("True"), Ready::True);
        case(ready("False"), Ready::False);
        case(ready("Unknown"), Ready::Unknown { since: Timestamp(7) });
        case(json!({ "conditions": [{ "type": "DiskPressure", "status": "False" }] }), Ready::Unsaid);
        case(json!({}), Ready::Unsaid);
        case(json!(null), Ready::Unsaid);
    }

    #[test]
    fn of_owners_the_controller_counts() {
        let owner = |version: &str, controller: bool| json!({ "apiVersion": version, "kind": "K", "name": "n", "controller": controller });
        let found = pod(|pod| {
            pod["metadata"]["ownerReferences"] = json!([owner("v1", false), owner("a.io/v2", true)])
        });
        let controller = found.unwrap().controller.unwrap();
        assert_eq!((controller.kind.as_str(), controller.version.as_str()), ("K.a.io", "v2"));
        let found = pod(|pod| pod["metadata"]["ownerReferences"] = json!([owner("v1", true)]));
        assert_eq!(found.unwrap().controller.unwrap().kind, "K");
    }

    #[track_caller]
    fn wants(spec: &Value, expected: &Wants) {
        let object = json!({ "metadata": { "uid": "u" }, "spec": spec }).to_string();
        let object: ControllerObject = parse(object.as_bytes()).unwrap();
        assert_eq!(object.controller(true).unwrap().wants, *expected, "{spec}");
    }

    #[test]
    fn ordinals_that_are_not_understood_want_all() {
        let ordinals =
            |reserved: &[u64]| Wants::Ordinals { start: 0, replicas: 1, reserved: reserved.to_vec() };
        wants(&json!({}), &ordinals(&[]));
        wants(&json!({ "replicas": null, "reserveOrdinals": null }), &ordinals(&[]));
        wants(&json!({ "reserveOrdinals": [4, "1-2", "2", "9"] }), &ordinals(&[1, 2, 4, 9]));
        for odd in
            [json!([-1]), json!(["2-1"]), json!(["a"]), json!(["0-9999999999"]), json!([1.5]), json!([null])]
        {
            wants(&json!({ "reserveOrdinals": odd }), &Wants::All);
        }
        wants(&json!({ "replicas": -1 }), &Wants::All);
        wants(&json!({ "replicas": "3" }), &Wants::All);
    }
}
