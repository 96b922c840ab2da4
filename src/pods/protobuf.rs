//! Kubernetes' protobuf, in which pods are listed: it is read in a fraction of the time that their JSON takes, since what
//! is not looked at, most of a pod, is stepped over by its length.
//!
//! The numbers are those of `generated.proto` in `k8s.io/api/core/v1` and in `k8s.io/apimachinery` (`meta/v1`, `runtime`).
//! Strings are bytes here: the server takes some that are no UTF-8, and one pod's must not spoil the list of all.

use std::fmt;

use hyper::body::Bytes;
use prost::Message;
use serde::de::IgnoredAny;

use super::objects as json;
use crate::domain::lease::Timestamp;

/// What is asked for: a server, or what stands before it, that knows no protobuf answers in JSON.
pub(super) const ACCEPT: &str = "application/vnd.kubernetes.protobuf, application/json";
/// The media type.
pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// How an answer begins.
const MAGIC: &[u8] = b"k8s\0";

/// What an answer is wrapped in.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    raw: Option<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(bytes = "bytes", optional, tag = "2")]
    kind: Option<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct ListMeta {
    #[prost(bytes = "bytes", optional, tag = "2")]
    resource_version: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    next: Option<Bytes>,
    #[prost(int64, optional, tag = "4")]
    remaining_item_count: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct ObjectMeta {
    #[prost(bytes = "bytes", optional, tag = "1")]
    name: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    namespace: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    uid: Option<Bytes>,
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<Time>,
    #[prost(message, optional, tag = "9")]
    deletion_timestamp: Option<Time>,
    #[prost(message, repeated, tag = "12")]
    annotations: Vec<Annotation>,
    #[prost(message, repeated, tag = "13")]
    owner_references: Vec<OwnerReference>,
}

#[derive(Clone, PartialEq, Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// An entry of the map.
#[derive(Clone, PartialEq, Message)]
struct Annotation {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct OwnerReference {
    #[prost(bytes = "bytes", optional, tag = "1")]
    kind: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    name: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    api_version: Option<Bytes>,
    #[prost(bool, optional, tag = "6")]
    controller: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct PodList {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(message, repeated, tag = "2")]
    items: Vec<Pod>,
}

#[derive(Clone, PartialEq, Message)]
struct Pod {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<PodSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<PodStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct PodSpec {
    #[prost(message, repeated, tag = "2")]
    containers: Vec<Container>,
    #[prost(bytes = "bytes", optional, tag = "10")]
    node_name: Option<Bytes>,
    #[prost(bool, optional, tag = "11")]
    host_network: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct Container {}

#[derive(Clone, PartialEq, Message)]
struct PodStatus {
    #[prost(bytes = "bytes", optional, tag = "1")]
    phase: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "6")]
    pod_ip: Option<Bytes>,
    #[prost(message, repeated, tag = "8")]
    container_statuses: Vec<ContainerStatus>,
    #[prost(message, repeated, tag = "10")]
    init_container_statuses: Vec<ContainerStatus>,
    #[prost(message, repeated, tag = "12")]
    pod_ips: Vec<PodIp>,
    #[prost(message, repeated, tag = "13")]
    ephemeral_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct PodIp {
    #[prost(bytes = "bytes", optional, tag = "1")]
    ip: Option<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStatus {
    #[prost(message, optional, tag = "2")]
    state: Option<State>,
}

#[derive(Clone, PartialEq, Message)]
struct State {
    #[prost(message, optional, tag = "2")]
    running: Option<Running>,
    #[prost(message, optional, tag = "3")]
    terminated: Option<Terminated>,
}

#[derive(Clone, PartialEq, Message)]
struct Running {}

#[derive(Clone, PartialEq, Message)]
struct Terminated {
    #[prost(message, optional, tag = "6")]
    finished_at: Option<Time>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(bytes = "bytes", optional, tag = "3")]
    message: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    reason: Option<Bytes>,
    #[prost(message, optional, tag = "5")]
    details: Option<Details>,
    #[prost(int32, optional, tag = "6")]
    code: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Details {
    #[prost(bytes = "bytes", optional, tag = "1")]
    name: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    group: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    kind: Option<Bytes>,
    #[prost(int32, optional, tag = "5")]
    retry_after_seconds: Option<i32>,
}

/// A list of pods.
pub(super) fn pods(body: Bytes) -> Result<json::List<json::PodObject>, String> {
    let (kind, list) = unwrapped::<PodList>(body)?;
    Ok(json::List {
        kind,
        metadata: list.metadata.map(|meta| json::ListMeta {
            resource_version: text(meta.resource_version),
            next: text(meta.next),
            remaining_item_count: number(meta.remaining_item_count),
        }),
        items: Some(list.items.into_iter().map(json::PodObject::from).collect()),
    })
}

/// How the API says no, if this does.
pub(super) fn status(body: &[u8]) -> Option<json::Status> {
    let (kind, status) = unwrapped::<Status>(Bytes::copy_from_slice(body)).ok()?;
    Some(json::Status {
        kind,
        message: text(status.message),
        reason: text(status.reason),
        code: number(status.code),
        details: status.details.map(|details| json::Details {
            name: text(details.name),
            group: text(details.group),
            kind: text(details.kind),
            retry_after_seconds: number(details.retry_after_seconds),
        }),
    })
}

/// The kind and the object in an answer.
fn unwrapped<T: Message + Default>(body: Bytes) -> Result<(Option<String>, T), String> {
    let odd = |reason: &dyn fmt::Display| format!("the answer is not as expected: {reason}");
    let message =
        body.strip_prefix(MAGIC).ok_or_else(|| odd(&"it is called protobuf, and does not begin so"))?;
    let unknown = Unknown::decode(body.slice_ref(message)).map_err(|error| odd(&error))?;
    let raw = unknown.raw.ok_or_else(|| odd(&"there is no object in it"))?;
    let object = T::decode(raw).map_err(|error| odd(&error))?;
    Ok((unknown.type_meta.and_then(|meta| text(meta.kind)), object))
}

fn text(bytes: Option<Bytes>) -> Option<String> {
    bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn number<T, N: TryFrom<T>>(value: Option<T>) -> Option<N> {
    value?.try_into().ok()
}

fn all<T, J: From<T>>(list: Vec<T>) -> Option<Vec<J>> {
    Some(list.into_iter().map(J::from).collect())
}

/// Go writes its zero time as an empty one.
fn time(time: Option<Time>) -> Option<json::Time> {
    let Time { seconds, nanos } = time.filter(|time| *time != Time::default())?;
    Some(json::Time(Timestamp(seconds.saturating_mul(1000).saturating_add(i64::from(nanos / 1_000_000)))))
}

impl From<Pod> for json::PodObject {
    fn from(pod: Pod) -> Self {
        Self {
            kind: None,
            metadata: pod.metadata.map(json::Meta::from),
            spec: pod.spec.map(|spec| json::PodSpec {
                node_name: text(spec.node_name),
                host_network: spec.host_network,
                containers: Some(json::Count(spec.containers.len())),
            }),
            status: pod.status.map(|status| json::PodStatus {
                phase: text(status.phase),
                pod_ip: text(status.pod_ip),
                pod_ips: all(status.pod_ips),
                container_statuses: all(status.container_statuses),
                init_container_statuses: all(status.init_container_statuses),
                ephemeral_container_statuses: all(status.ephemeral_container_statuses),
            }),
        }
    }
}

impl From<ObjectMeta> for json::Meta {
    fn from(meta: ObjectMeta) -> Self {
        let mut annotations = json::Annotations::default();
        for Annotation { key, value } in meta.annotations {
            let key = json::AnnotationKey::of(&String::from_utf8_lossy(&key));
            if !matches!(key, json::AnnotationKey::Other) {
                annotations.keep(key, text(Some(value)));
            }
        }
        Self {
            name: text(meta.name),
            namespace: text(meta.namespace),
            uid: text(meta.uid),
            generation: None,
            creation_timestamp: time(meta.creation_timestamp),
            deletion_timestamp: time(meta.deletion_timestamp),
            owner_references: all(meta.owner_references),
            annotations,
        }
    }
}

impl From<OwnerReference> for json::Owner {
    fn from(owner: OwnerReference) -> Self {
        Self {
            api_version: text(owner.api_version),
            kind: text(owner.kind),
            name: text(owner.name),
            controller: owner.controller,
        }
    }
}

impl From<PodIp> for json::PodIp {
    fn from(one: PodIp) -> Self {
        Self { ip: text(one.ip) }
    }
}

impl From<ContainerStatus> for json::ContainerStatus {
    fn from(status: ContainerStatus) -> Self {
        let state = status.state.map(|state| json::State {
            running: state.running.map(|_| IgnoredAny),
            terminated: state
                .terminated
                .map(|terminated| json::Terminated { finished_at: time(terminated.finished_at) }),
        });
        Self { state }
    }
}

/// A list of pods or a status, from its JSON.
#[cfg(any(test, feature = "testing"))]
pub(super) fn written(value: &serde_json::Value) -> Option<Vec<u8>> {
    use serde_json::Value;

    fn text(value: &Value) -> Option<Bytes> {
        value.as_str().map(|text| Bytes::copy_from_slice(text.as_bytes()))
    }
    fn all<T>(value: &Value, one: fn(&Value) -> T) -> Vec<T> {
        value.as_array().into_iter().flatten().map(one).collect()
    }
    fn number<N: TryFrom<i64>>(value: &Value) -> Option<N> {
        value.as_i64()?.try_into().ok()
    }
    fn time(value: &Value) -> Option<Time> {
        let time: jiff::Timestamp = value.as_str()?.parse().ok()?;
        Some(Time { seconds: time.as_second(), nanos: time.subsec_nanosecond() })
    }
    fn ended(value: &Value) -> ContainerStatus {
        let ended = &value["state"]["terminated"];
        let terminated = ended.is_object().then(|| Terminated { finished_at: time(&ended["finishedAt"]) });
        let running = value["state"]["running"].is_object().then_some(Running {});
        ContainerStatus { state: Some(State { running, terminated }) }
    }
    fn pod(value: &Value) -> Pod {
        let (meta, spec, status) = (&value["metadata"], &value["spec"], &value["status"]);
        let annotation = |(key, value): (&String, &Value)| Annotation {
            key: key.clone().into_bytes().into(),
            value: text(value).unwrap_or_default(),
        };
        Pod {
            metadata: Some(ObjectMeta {
                name: text(&meta["name"]),
                namespace: text(&meta["namespace"]),
                uid: text(&meta["uid"]),
                creation_timestamp: time(&meta["creationTimestamp"]),
                deletion_timestamp: time(&meta["deletionTimestamp"]),
                annotations: meta["annotations"].as_object().into_iter().flatten().map(annotation).collect(),
                owner_references: all(&meta["ownerReferences"], |owner| OwnerReference {
                    kind: text(&owner["kind"]),
                    name: text(&owner["name"]),
                    api_version: text(&owner["apiVersion"]),
                    controller: owner["controller"].as_bool(),
                }),
            }),
            spec: Some(PodSpec {
                containers: all(&spec["containers"], |_| Container {}),
                node_name: text(&spec["nodeName"]),
                host_network: spec["hostNetwork"].as_bool(),
            }),
            status: Some(PodStatus {
                phase: text(&status["phase"]),
                pod_ip: text(&status["podIP"]),
                container_statuses: all(&status["containerStatuses"], ended),
                init_container_statuses: all(&status["initContainerStatuses"], ended),
                pod_ips: all(&status["podIPs"], |one| PodIp { ip: text(&one["ip"]) }),
                ephemeral_container_statuses: all(&status["ephemeralContainerStatuses"], ended),
            }),
        }
    }

    let (meta, details) = (&value["metadata"], &value["details"]);
    let raw = match value["kind"].as_str()? {
        "Status" => Status {
            message: text(&value["message"]),
            reason: text(&value["reason"]),
            details: Some(Details {
                name: text(&details["name"]),
                group: text(&details["group"]),
                kind: text(&details["kind"]),
                retry_after_seconds: number(&details["retryAfterSeconds"]),
            }),
            code: number(&value["code"]),
        }
        .encode_to_vec(),
        _ => PodList {
            metadata: Some(ListMeta {
                resource_version: text(&meta["resourceVersion"]),
                next: text(&meta["continue"]),
                remaining_item_count: number(&meta["remainingItemCount"]),
            }),
            items: all(&value["items"], pod),
        }
        .encode_to_vec(),
    };
    let type_meta = Some(TypeMeta { kind: text(&value["kind"]) });
    let unknown = Unknown { type_meta, raw: Some(raw.into()) };
    Some([MAGIC, &unknown.encode_to_vec()].concat())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list(text: &str) -> Vec<u8> {
        let pod =
            json!({ "metadata": { "name": "db-0", "annotations": { "a": text, "leasehold.io/ip": text } } });
        written(&json!({ "kind": "PodList", "metadata": { "resourceVersion": "7" }, "items": [pod] }))
            .unwrap()
    }

    /// The API server takes such an annotation from a client that speaks protobuf.
    #[test]
    fn text_that_is_no_utf8_does_not_spoil_the_list() {
        let message: Vec<u8> =
            list("##").into_iter().map(|byte| if byte == b'#' { 0xff } else { byte }).collect();
        let items = pods(message.into()).unwrap().items.unwrap();
        let wishes = &items[0].metadata.as_ref().unwrap().annotations.wishes;
        assert_eq!(*wishes, [("leasehold.io/ip".to_owned(), "\u{fffd}\u{fffd}".to_owned())]);
    }

    #[test]
    fn a_message_that_ends_anywhere_before_its_end_is_none() {
        let whole = list("x");
        assert!(pods(whole.clone().into()).is_ok());
        for end in 0..whole.len() {
            assert!(pods(whole[..end].to_vec().into()).is_err(), "{end} of {} bytes", whole.len());
        }
    }

    #[test]
    fn the_zero_time_is_none() {
        let none = Some(Time::default());
        assert!(time(none).is_none());
        let some = time(Some(Time { seconds: 1, nanos: 999_999_999 }));
        assert_eq!(some.map(|time| time.0), Some(Timestamp(1999)));
    }
}
