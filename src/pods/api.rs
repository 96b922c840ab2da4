//! The API of one cluster, asked over HTTP.
//!
//! What may be believed: a list is complete if every page of it came, all of one revision, and none of the pods in it
//! comes twice; a thing is absent if the server says so of this very thing, by kind, group and name, in its own words.
//! A 404 of anybody else (a proxy, a wrong path, a kind that is not served) is an error.

use std::{
    collections::{HashMap, HashSet, hash_map::RandomState},
    fmt,
    hash::{BuildHasher as _, Hash},
    sync::{Mutex, PoisonError},
};

use hyper::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    About, ApiError, Cluster, Event,
    client::{Ask, Client, JSON, PATIENCE, Patience, Reply},
    objects::{self, Bare, ControllerObject, Counted, Group, List, NodeObject, PodObject, Resources},
    protobuf,
    settings::Settings,
};
use crate::domain::{
    kubernetes::{Controller, ControllerRef, Listed, Live, Node, Pod, PodKey},
    lease::Timestamp,
    names::{Namespace, NodeName, PodName, Uid},
};

/// Objects in one page, as kubectl asks for them.
const PAGE: usize = 500;
/// Lists begun anew because a page had expired.
const MOST_RESTARTS: usize = 2;
/// Objects in one list. Kubernetes is made for 150 000 pods; a server that goes on for ever is stopped here.
const MOST_ITEMS: usize = 500_000;
/// Of an Event's message, in bytes: the API takes no more.
const MOST_MESSAGE: usize = 1024;
/// Events whose counts are remembered.
const MOST_COUNTS: usize = 4096;
/// Who says what an Event says.
const REPORTER: &str = "leasehold-reaper";

/// A cluster's API over HTTP. It connects at the first request, inside of a Tokio runtime.
pub struct Api {
    pub(super) client: Client,
    served: Mutex<HashMap<String, Served>>,
    counts: Mutex<HashMap<String, u32>>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("settings", self.client.settings()).finish_non_exhaustive()
    }
}

/// Where the objects of a kind are.
#[derive(Clone, Debug)]
struct Served {
    /// `/apis/apps/v1`.
    path: String,
    group: String,
    /// `statefulsets`.
    resource: String,
    namespaced: bool,
}

/// What is listed, and how it is read.
struct Listing<O, T, K> {
    path: &'static str,
    kind: &'static str,
    what: &'static str,
    accept: &'static str,
    read: fn(&Reply) -> Result<List<O>, String>,
    value: fn(O, Timestamp) -> Result<T, String>,
    key: fn(&T) -> &K,
}

/// A thing that is asked for by name.
struct Thing<'a> {
    group: &'a str,
    resource: &'a str,
    kind: &'a str,
    namespace: Option<&'a str>,
    name: &'a str,
}

impl Api {
    /// Of these settings. Nothing is read or connected yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self::with(settings, PATIENCE)
    }

    /// One that does not wait long.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn impatient(settings: Settings) -> Self {
        let [whole, part] = [1000, 300].map(std::time::Duration::from_millis);
        Self::with(settings, Patience { whole, part })
    }

    fn with(settings: Settings, patience: Patience) -> Self {
        Self { client: Client::new(settings, patience), served: Mutex::default(), counts: Mutex::default() }
    }

    /// The answer to a question, if it is one, and the server's clock.
    async fn ask(&self, ask: &Ask) -> Result<(Reply, Timestamp), ApiError> {
        let reply = self.client.send(ask).await?;
        if reply.status != StatusCode::OK {
            return Err(self.client.refused(&reply, ask));
        }
        let at = clock_of(&reply, ask)?;
        Ok((reply, at))
    }

    pub(super) async fn object<T: DeserializeOwned>(
        &self,
        ask: &Ask,
        kind: &str,
        of: fn(&T) -> Option<&str>,
    ) -> Result<T, ApiError> {
        let (reply, _) = self.ask(ask).await?;
        let object: T = objects::parse(&reply.body).map_err(|reason| ask.wrong(reply.odd(&reason)))?;
        is_kind(of(&object), kind).map_err(|reason| ask.wrong(reason))?;
        Ok(object)
    }

    /// All pages of a list, or an error.
    async fn list<O, T, K: Hash>(
        &self,
        listing: &Listing<O, T, K>,
        keep: &(dyn Fn(&T) -> bool + Sync),
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<Listed<T>, ApiError> {
        let mut restarts = 0;
        loop {
            match self.pages(listing, keep, progress).await {
                Err(ApiError::Expired { .. }) if restarts < MOST_RESTARTS => restarts += 1,
                ended => return ended,
            }
        }
    }

    async fn pages<O, T, K: Hash>(
        &self,
        listing: &Listing<O, T, K>,
        keep: &(dyn Fn(&T) -> bool + Sync),
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<Listed<T>, ApiError> {
        let Listing { path, kind, what, accept, read, value, key } = *listing;
        // One number an object: of most, nothing else is kept.
        let mut seen: HashSet<u64> = HashSet::new();
        let hasher = RandomState::new();
        let (mut all, mut twice) = (0usize, false);
        let mut items = Vec::new();
        let mut first: Option<(String, Timestamp)> = None;
        let mut next: Option<String> = None;
        let mut announced = 0;
        loop {
            let token =
                next.as_ref().map_or_else(String::new, |token| format!("&continue={}", escaped(token)));
            let mut ask = Ask::get("list", what, format!("{path}?limit={PAGE}{token}"));
            ask.accept = accept;
            let (reply, at) = self.ask(&ask).await?;
            let page = read(&reply).map_err(|reason| ask.wrong(reply.odd(&reason)))?;
            drop(reply);
            is_kind(page.kind.as_deref(), kind).map_err(|reason| ask.wrong(reason))?;
            let meta = page.metadata.unwrap_or_default();
            let revision = meta.resource_version.filter(|revision| !revision.is_empty());
            let revision = revision.ok_or_else(|| ask.wrong("the list has no resourceVersion"))?;
            let (begun, at) = first.get_or_insert((revision.clone(), at));
            if *begun != revision {
                return Err(ask.wrong(format!("its pages are of two revisions, {begun} and {revision}")));
            }
            let more = page.items.ok_or_else(|| ask.wrong("the answer has no items"))?;
            let rest = usize::try_from(meta.remaining_item_count.unwrap_or(0)).unwrap_or(usize::MAX);
            announced = announced.max(all.saturating_add(more.len()).saturating_add(rest));
            let empty = more.is_empty();
            for object in more {
                let item = value(object, *at).map_err(|reason| ask.wrong(reason))?;
                twice |= !seen.insert(hasher.hash_one(key(&item)));
                all += 1;
                if keep(&item) {
                    items.push(item);
                }
            }
            progress(all);
            let after = meta.next.filter(|token| !token.is_empty());
            if after.is_none() {
                // More than were announced do no harm; Kubernetes calls the number an estimate.
                if all < announced {
                    return Err(ask.wrong(format!("{all} came, and {announced} were announced")));
                }
                if twice {
                    return Err(wrong(what, "the pages of the list hold the same object twice"));
                }
                return Ok(Listed { items, all, at: *at });
            }
            if empty || after == next || all > MOST_ITEMS {
                return Err(ask.wrong(format!("the list does not end ({all} came)")));
            }
            next = after;
        }
    }

    /// One object by name: it, or that the server says of this very object that it does not exist.
    async fn live<O: DeserializeOwned, T>(
        &self,
        thing: &Thing<'_>,
        path: &str,
        value: impl FnOnce(O, Timestamp) -> Result<T, String>,
        head: fn(&O) -> (Option<&str>, Option<&objects::Meta>),
    ) -> Result<Live<T>, ApiError> {
        let what = match thing.namespace {
            Some(namespace) => format!("{} {namespace}/{}", thing.resource, thing.name),
            None => format!("{} {}", thing.resource, thing.name),
        };
        let ask = Ask::get("get", what, path);
        let reply = self.client.send(&ask).await?;
        if reply.status == StatusCode::NOT_FOUND && is_absent(&reply, thing) {
            return Ok(Live { found: None, at: clock_of(&reply, &ask)? });
        }
        if reply.status != StatusCode::OK {
            return Err(self.client.refused(&reply, &ask));
        }
        let at = clock_of(&reply, &ask)?;
        let object: O = objects::parse(&reply.body).map_err(|reason| ask.wrong(reply.odd(&reason)))?;
        let (kind, meta) = head(&object);
        is_kind(kind, thing.kind).map_err(|reason| ask.wrong(reason))?;
        let is_it = meta.is_some_and(|meta| {
            meta.name.as_deref() == Some(thing.name) && meta.namespace.as_deref() == thing.namespace
        });
        if !is_it {
            return Err(ask.wrong("the answer is about something else"));
        }
        Ok(Live { found: Some(value(object, at).map_err(|reason| ask.wrong(reason))?), at })
    }

    /// Where the objects of a kind are, by discovery; StatefulSets are where they have been since 2017.
    async fn served(&self, controller: &ControllerRef) -> Result<Served, ApiError> {
        if controller.kind == "StatefulSet.apps" {
            return Ok(Served {
                path: "/apis/apps/v1".to_owned(),
                group: "apps".to_owned(),
                resource: "statefulsets".to_owned(),
                namespaced: true,
            });
        }
        let known = || self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(served) = known().get(&controller.kind) {
            return Ok(served.clone());
        }
        let (kind, group) = controller.kind.split_once('.').unwrap_or((&controller.kind, ""));
        let paths = if group.is_empty() {
            vec!["/api/v1".to_owned()]
        } else {
            let ask = Ask::get("get", format!("API group {group}"), format!("/apis/{group}"));
            let found: Group = self.object(&ask, "APIGroup", |group: &Group| group.kind.as_deref()).await?;
            let preferred = found.preferred_version.into_iter();
            let mut versions: Vec<String> = Vec::new();
            for version in preferred.chain(found.versions.into_iter().flatten()).filter_map(|one| one.version)
            {
                if is_plain(&version) && !versions.contains(&version) {
                    versions.push(version);
                }
            }
            versions.into_iter().map(|version| format!("/apis/{group}/{version}")).collect()
        };
        for path in paths {
            let ask = Ask::get("get", format!("API resources of {path}"), path.clone());
            let found: Resources =
                self.object(&ask, "APIResourceList", |list: &Resources| list.kind.as_deref()).await?;
            let mut resources = found.resources.into_iter().flatten();
            // `statefulsets/scale` is a part, not a thing.
            let own = resources.find_map(|one| {
                let name = one.name.filter(|name| one.kind.as_deref() == Some(kind) && is_plain(name))?;
                Some((name, one.namespaced == Some(true)))
            });
            if let Some((resource, namespaced)) = own {
                let served = Served { path, group: group.to_owned(), resource, namespaced };
                known().insert(controller.kind.clone(), served.clone());
                return Ok(served);
            }
        }
        Err(wrong(&controller.to_string(), "the server does not serve this kind"))
    }

    async fn write_event(&self, ask: &Ask) -> Result<(StatusCode, Option<u32>), ApiError> {
        let reply = self.client.send(ask).await?;
        let counted = serde_json::from_slice::<Counted>(&reply.body).ok();
        match reply.status {
            StatusCode::OK | StatusCode::CREATED => Ok((reply.status, counted.and_then(|event| event.count))),
            StatusCode::CONFLICT | StatusCode::NOT_FOUND if reply.status_object().is_some() => {
                Ok((reply.status, None))
            }
            _ => Err(self.client.refused(&reply, ask)),
        }
    }
}

impl Cluster for Api {
    async fn identity(&self) -> Result<Uid, ApiError> {
        let thing = Thing {
            group: "",
            resource: "namespaces",
            kind: "Namespace",
            namespace: None,
            name: "kube-system",
        };
        let uid = |object: Bare, _| {
            let uid = object.metadata.and_then(|meta| meta.uid).ok_or("it has no metadata.uid")?;
            Uid::new(uid).map_err(|error| error.to_string())
        };
        let live = self
            .live(&thing, "/api/v1/namespaces/kube-system", uid, |object| {
                (object.kind.as_deref(), object.metadata.as_ref())
            })
            .await?;
        live.found
            .ok_or_else(|| wrong("namespaces kube-system", "there is none: is this a Kubernetes cluster?"))
    }

    async fn pods_that(
        &self,
        keep: &(dyn Fn(&Pod) -> bool + Sync),
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<Listed<Pod>, ApiError> {
        let pods = Listing {
            path: "/api/v1/pods",
            kind: "PodList",
            what: "pods",
            accept: protobuf::ACCEPT,
            read: |reply| match reply.is_protobuf() {
                true => protobuf::pods(reply.body.clone()),
                false => objects::parse(&reply.body),
            },
            value: |object: PodObject, _| Pod::try_from(object),
            key: |pod| &pod.key,
        };
        self.list(&pods, keep, progress).await
    }

    async fn pod(&self, key: &PodKey) -> Result<Live<Pod>, ApiError> {
        let thing = Thing {
            group: "",
            resource: "pods",
            kind: "Pod",
            namespace: Some(key.namespace.as_str()),
            name: key.name.as_str(),
        };
        let path = format!("/api/v1/namespaces/{}/pods/{}", key.namespace, key.name);
        self.live(
            &thing,
            &path,
            |object: PodObject, _| Pod::try_from(object),
            |object| (object.kind.as_deref(), object.metadata.as_ref()),
        )
        .await
    }

    async fn nodes(&self) -> Result<Listed<Node>, ApiError> {
        let nodes = Listing {
            path: "/api/v1/nodes",
            kind: "NodeList",
            what: "nodes",
            accept: JSON,
            read: |reply| objects::parse(&reply.body),
            value: NodeObject::node,
            key: |node| &node.name,
        };
        self.list(&nodes, &|_| true, &|_| {}).await
    }

    async fn node(&self, name: &NodeName) -> Result<Live<Node>, ApiError> {
        let thing =
            Thing { group: "", resource: "nodes", kind: "Node", namespace: None, name: name.as_str() };
        self.live(&thing, &format!("/api/v1/nodes/{name}"), NodeObject::node, |object| {
            (object.kind.as_deref(), object.metadata.as_ref())
        })
        .await
    }

    async fn controller(
        &self,
        namespace: &Namespace,
        controller: &ControllerRef,
    ) -> Result<Live<Controller>, ApiError> {
        let (kind, group) = controller.kind.split_once('.').unwrap_or((&controller.kind, ""));
        if ![kind, &controller.name].into_iter().all(is_plain) || !(group.is_empty() || is_plain(group)) {
            return Err(wrong(&controller.to_string(), "this is no kind and name"));
        }
        let served = self.served(controller).await?;
        let namespace = Some(namespace.as_str()).filter(|_| served.namespaced);
        let within = namespace.map_or_else(String::new, |namespace| format!("/namespaces/{namespace}"));
        let path = format!("{}{within}/{}/{}", served.path, served.resource, controller.name);
        let thing = Thing {
            group: &served.group,
            resource: &served.resource,
            kind,
            namespace,
            name: &controller.name,
        };
        let stateful = ["StatefulSet.apps", "StatefulSet.apps.kruise.io"].contains(&controller.kind.as_str());
        let live = self
            .live(
                &thing,
                &path,
                |object: ControllerObject, _| object.controller(stateful),
                |object| (object.kind.as_deref(), object.metadata.as_ref()),
            )
            .await;
        if live.is_err() {
            // It may be served elsewhere by now, or not at all.
            self.served.lock().unwrap_or_else(PoisonError::into_inner).remove(&controller.kind);
        }
        live
    }

    async fn record(&self, event: &Event) -> Result<(), ApiError> {
        let (namespace, object, name, uid) = match &event.about {
            About::Pod(key, uid) => {
                let about = json!({
                    "apiVersion": "v1", "kind": "Pod", "namespace": key.namespace.as_str(),
                    "name": key.name.as_str(), "uid": uid.as_str(),
                });
                (&key.namespace, about, key.name.as_str(), uid.as_str())
            }
            About::Namespace(namespace) => {
                let name = namespace.as_str();
                let about =
                    json!({ "apiVersion": "v1", "kind": "Namespace", "namespace": name, "name": name });
                (namespace, about, name, "")
            }
        };
        let event_name = event_name(name, uid, event.reason);
        let message = bounded(&event.message, MOST_MESSAGE);
        let now = jiff::Timestamp::from_second(self.client.clock().0.div_euclid(1000))
            .map_or_else(|_| String::new(), |now| now.to_string());
        let collection = format!("/api/v1/namespaces/{namespace}/events");
        let what = format!("events {namespace}/{event_name}");
        let create = Ask {
            method: Method::POST,
            path: collection.clone(),
            accept: JSON,
            content: Some(JSON),
            body: json!({
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": { "name": event_name, "namespace": namespace.as_str() },
                "involvedObject": object,
                "reason": event.reason,
                "message": message,
                "type": if event.warning { "Warning" } else { "Normal" },
                "count": 1,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "source": { "component": REPORTER },
                "reportingComponent": REPORTER,
                "reportingInstance": REPORTER,
            })
            .to_string()
            .into_bytes(),
            verb: "create",
            what: what.clone(),
        };
        let again = |count: Option<u32>| {
            let mut change = json!({ "lastTimestamp": now, "message": message });
            if let Some(count) = count {
                change["count"] = count.into();
            }
            Ask {
                method: Method::PATCH,
                path: format!("{collection}/{event_name}"),
                accept: JSON,
                content: Some("application/merge-patch+json"),
                body: change.to_string().into_bytes(),
                verb: "patch",
                what: what.clone(),
            }
        };
        let counts = || self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let key = format!("{namespace}/{event_name}");
        let known = counts().get(&key).copied();
        let mut count = None;
        if let Some(known) = known {
            // It is gone after an hour (`--event-ttl`): then it begins again.
            if let (StatusCode::OK, now) = self.write_event(&again(Some(known.saturating_add(1)))).await? {
                count = now;
            }
        }
        if count.is_none() {
            count = match self.write_event(&create).await? {
                (StatusCode::CREATED | StatusCode::OK, _) => Some(1),
                // It is from before this process began. Its count stands in the answer to a change.
                (StatusCode::CONFLICT, _) => {
                    let (_, before) = self.write_event(&again(None)).await?;
                    self.write_event(&again(Some(before.unwrap_or(1).saturating_add(1)))).await?.1
                }
                (status, _) => {
                    return Err(
                        create.wrong(format!("there is no namespace {namespace} ({})", status.as_u16()))
                    );
                }
            };
        }
        let mut counts = counts();
        if counts.len() >= MOST_COUNTS {
            counts.clear();
        }
        counts.insert(key, count.unwrap_or(1));
        Ok(())
    }
}

fn wrong(what: &str, reason: &str) -> ApiError {
    ApiError::Answer { what: what.to_owned(), reason: reason.to_owned() }
}

fn is_kind(found: Option<&str>, wanted: &str) -> Result<(), String> {
    match found {
        Some(found) if found == wanted => Ok(()),
        Some(found) => Err(format!("the answer is a {found:?}, not a {wanted}")),
        None => Err(format!("the answer does not say that it is a {wanted}")),
    }
}

fn clock_of(reply: &Reply, ask: &Ask) -> Result<Timestamp, ApiError> {
    reply
        .date()
        .ok_or_else(|| ask.wrong("the answer has no date, by which the server's clock would be known"))
}

/// Does the server say, in its own words, that this very thing does not exist?
fn is_absent(reply: &Reply, thing: &Thing<'_>) -> bool {
    let Some(status) = reply.status_object() else { return false };
    let details = status.details.unwrap_or_default();
    status.reason.as_deref() == Some("NotFound")
        && status.code.is_none_or(|code| code == 404)
        && details.kind.as_deref() == Some(thing.resource)
        && details.group.as_deref().unwrap_or_default() == thing.group
        && details.name.as_deref() == Some(thing.name)
}

/// A part of a path that means nothing but itself.
fn is_plain(text: &str) -> bool {
    // The grammar of a pod's name is the one that is meant.
    PodName::new(text).is_ok()
}

/// Of a query: everything but the unreserved characters.
pub(super) fn escaped(text: &str) -> String {
    use fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// One name for each thing and reason, so that what happens again is counted up.
fn event_name(name: &str, uid: &str, reason: &str) -> String {
    let hash = Sha256::digest(format!("{name}/{uid}/{reason}"));
    let hex: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    // An Event's name is a DNS name of at most 253 bytes.
    let short = bounded(name, 200).trim_end_matches(['.', '-']).to_ascii_lowercase().replace('_', "-");
    format!("{short}.{hex}")
}

/// At most so many bytes, in whole characters.
fn bounded(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
