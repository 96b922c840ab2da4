//! An API server for tests that answers as a script says: well, wrongly, halfway, or not at all. Real TCP, HTTP/1.1.
//! It speaks protobuf with whoever asks for it, as the real one does, unless it is told not to.

#![expect(clippy::wildcard_enum_match_arm, reason = "a scenario is about one question of many")]

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::sleep,
};

use super::{
    Api, Settings,
    client::JSON,
    objects::{self, ControllerObject, List, NodeObject, PodObject},
    protobuf,
};
use crate::domain::{
    kubernetes::{Controller, Node, Pod},
    lease::Timestamp,
};

/// Its clock, unless the script says otherwise.
pub const DATE: &str = "Fri, 02 Jan 2026 03:04:05 GMT";

/// How it answers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Scenario {
    /// As it should.
    #[default]
    Honest,
    /// 401 to all.
    Unauthorized,
    /// 403 to all.
    Forbidden,
    /// 403 to the question for one object of this namespace.
    ForbiddenIn(&'static str),
    /// 410 to the second page, so many times.
    Expired(usize),
    /// 500 to the second page.
    FailsMidway,
    /// The second page breaks off, and its length was told.
    HalfPage,
    /// The second page breaks off, and its length was not told.
    HalfPageOfUnknownLength,
    /// 200, and a proxy's page of HTML.
    NoJson,
    /// A list without objects.
    Empty,
    /// A list whose objects are null.
    Null,
    /// 200 and `{}`.
    Hollow,
    /// Takes the request and says nothing.
    Hangs,
    /// So long after each question for one pod.
    Slow(Duration),
    /// One byte each 50 ms.
    Drips,
    /// 404 in nobody's words.
    Bare404,
    /// 404 in Kubernetes' words, of another name.
    Other404,
    /// 404 in Kubernetes' words, of another kind.
    OtherKind404,
    /// 404 as of a kind that is not served.
    NoResource404,
    /// Another kind than was asked for.
    WrongKind,
    /// Another object than was asked for.
    WrongObject,
    /// The second page is of another revision.
    MovingRevision,
    /// The second page begins with an object of the first.
    Twice,
    /// It announces more than come.
    Fewer,
    /// An object without a name.
    Nameless,
    /// The same token to go on, again and again.
    Endless,
    /// 429 with `Retry-After`, so many times, for so many seconds.
    Busy(usize, u64),
    /// Closes the connection after each answer without a word.
    Resets,
    /// Takes this token, others are refused (401).
    Token(&'static str),
    /// No `Date`.
    NoDate,
    /// Another `Date`.
    Date(&'static str),
    /// Another place.
    Redirects,
    /// Each watch of pods is answered with the next of these texts, and ends; then one that says nothing.
    Watches(&'static [&'static str]),
}

/// A request that it was sent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Seen {
    /// Such as `GET`.
    pub method: String,
    /// With its query.
    pub path: String,
    /// `Authorization`.
    pub authorization: Option<String>,
    /// `User-Agent`.
    pub agent: Option<String>,
    /// `Accept`.
    pub accept: Option<String>,
    /// The connection that it came on, from 1.
    pub connection: usize,
    /// What was sent.
    pub body: Value,
}

#[derive(Debug)]
struct State {
    scenario: Scenario,
    json_alone: bool,
    pods: usize,
    seen: Vec<Seen>,
    failures: usize,
    connections: usize,
    events: Vec<Value>,
}

/// The server. It ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

enum Action {
    /// Status, more headers, body.
    Reply(u16, String, String),
    /// Half of this body, after its whole length or none, and the end of the connection.
    Half {
        length: bool,
        body: String,
    },
    /// A body, and the end of the connection.
    Last(String),
    Hang,
    /// A head, and nothing after it.
    Open,
    Drip(String),
}

impl Server {
    /// Starts one with so many pods, `shop/db-0` and so on, and one node, `n1`.
    ///
    /// # Panics
    /// There is no port.
    #[expect(clippy::unwrap_used, reason = "for tests")]
    pub async fn start(scenario: Scenario, pods: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State {
            scenario,
            json_alone: false,
            pods,
            seen: Vec::new(),
            failures: 0,
            connections: 0,
            events: Vec::new(),
        }));
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                let connection = {
                    let mut state = locked(&state);
                    state.connections += 1;
                    state.connections
                };
                tokio::spawn(async move {
                    let _ = serve(stream, connection, &state).await;
                });
            }
        });
        Self { address, state, task }
    }

    /// Lets it answer otherwise from now on.
    pub fn play(&self, scenario: Scenario) {
        let mut state = locked(&self.state);
        state.scenario = scenario;
        state.failures = 0;
    }

    /// Lets it speak no protobuf.
    pub fn speak_json_alone(&self) {
        locked(&self.state).json_alone = true;
    }

    /// What it was asked.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        locked(&self.state).seen.clone()
    }

    /// The Events that it keeps.
    #[must_use]
    pub fn events(&self) -> Vec<Value> {
        locked(&self.state).events.clone()
    }

    /// Forgets the Events, as a server does after an hour.
    pub fn forget_events(&self) {
        locked(&self.state).events.clear();
    }

    /// `http://127.0.0.1:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A client of it, which waits a second for an answer and a third of one for a part.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    #[expect(clippy::unwrap_used, reason = "for tests")]
    pub fn api(&self) -> Api {
        let text = format!(
            "{{current-context: a, contexts: [{{name: a, context: {{cluster: a}}}}], \
             clusters: [{{name: a, cluster: {{server: {:?}}}}}]}}",
            self.url()
        );
        Api::impatient(Settings::of_texts(&[(PathBuf::from("test"), text)], None).unwrap())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(mut stream: TcpStream, connection: usize, state: &Mutex<State>) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let Some(seen) = receive(&mut stream, &mut buffer, connection).await? else { return Ok(()) };
        let (action, last, date, slow, json_alone) = {
            let mut state = locked(state);
            state.seen.push(seen.clone());
            let action = state.answer(&seen);
            let date = match state.scenario {
                Scenario::NoDate => None,
                Scenario::Date(date) => Some(date),
                _ => Some(DATE),
            };
            let slow = match state.scenario {
                Scenario::Slow(slow) if seen.path.contains("/pods/") => slow,
                _ => Duration::ZERO,
            };
            (action, state.scenario == Scenario::Resets, date, slow, state.json_alone)
        };
        sleep(slow).await;
        let asked = seen.accept.is_some_and(|accept| accept.starts_with(protobuf::MEDIA_TYPE));
        let body = |text: String| {
            let message = serde_json::from_str(&text).ok().and_then(|value| protobuf::written(&value));
            match message.filter(|_| asked && !json_alone) {
                Some(message) => (protobuf::MEDIA_TYPE, message),
                None => (JSON, text.into_bytes()),
            }
        };
        let date = date.map_or_else(String::new, |date| format!("Date: {date}\r\n"));
        match action {
            Action::Reply(status, headers, text) => {
                let (media_type, body) = body(text);
                let headers = match headers.contains("Content-Type") {
                    true => headers,
                    false => format!("{headers}Content-Type: {media_type}\r\n"),
                };
                let length = body.len();
                let head = format!("HTTP/1.1 {status} X\r\n{date}{headers}Content-Length: {length}\r\n\r\n");
                stream.write_all(&[head.as_bytes(), &body].concat()).await?;
            }
            Action::Half { length, body: text } => {
                let (media_type, body) = body(text);
                let length = match length {
                    true => format!("Content-Length: {}", body.len()),
                    false => "Connection: close".to_owned(),
                };
                let head = format!("HTTP/1.1 200 OK\r\n{date}Content-Type: {media_type}\r\n{length}\r\n\r\n");
                stream.write_all(&[head.as_bytes(), &body[..body.len() / 2]].concat()).await?;
                return Ok(());
            }
            Action::Last(text) => {
                let head = format!("HTTP/1.1 200 OK\r\n{date}Connection: close\r\n\r\n");
                stream.write_all((head + &text).as_bytes()).await?;
                return Ok(());
            }
            Action::Hang => {
                sleep(Duration::from_secs(3600)).await;
                return Ok(());
            }
            Action::Open => {
                let head = format!("HTTP/1.1 200 OK\r\n{date}Transfer-Encoding: chunked\r\n\r\n");
                stream.write_all(head.as_bytes()).await?;
                sleep(Duration::from_secs(3600)).await;
                return Ok(());
            }
            Action::Drip(text) => {
                let head = format!("HTTP/1.1 200 OK\r\n{date}Content-Length: {}\r\n\r\n", text.len());
                stream.write_all(head.as_bytes()).await?;
                for byte in text.bytes() {
                    stream.write_all(&[byte]).await?;
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
        if last {
            return Ok(());
        }
    }
}

async fn receive(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    connection: usize,
) -> std::io::Result<Option<Seen>> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|part| part == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
    let header = |name: &str| {
        head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    };
    let length = header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    while buffer.len() < end + length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let body = serde_json::from_slice(&buffer[end..end + length]).unwrap_or_default();
    buffer.drain(..end + length);
    let mut first = head.split_ascii_whitespace();
    let mut word = || first.next().unwrap_or_default().to_owned();
    Ok(Some(Seen {
        method: word(),
        path: word(),
        authorization: header("authorization"),
        agent: header("user-agent"),
        accept: header("accept"),
        connection,
        body,
    }))
}

impl State {
    fn answer(&mut self, seen: &Seen) -> Action {
        let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
        let second = query.contains("continue=");
        if query.contains("watch=1") {
            return self.watch(path);
        }
        match &self.scenario {
            Scenario::Unauthorized => return status(401, "Unauthorized", "Unauthorized", json!({})),
            Scenario::Token(token) if seen.authorization != Some(format!("Bearer {token}")) => {
                return status(401, "Unauthorized", "Unauthorized", json!({}));
            }
            Scenario::Forbidden => return forbidden(),
            Scenario::ForbiddenIn(namespace) if path.contains(&format!("/namespaces/{namespace}/")) => {
                return forbidden();
            }
            Scenario::NoJson => {
                let headers = "Content-Type: text/html\r\n".to_owned();
                return Action::Reply(200, headers, "<html>Welcome</html>".to_owned());
            }
            Scenario::Hollow => return Action::Reply(200, String::new(), "{}".to_owned()),
            Scenario::Hangs => return Action::Hang,
            Scenario::Bare404 => return Action::Reply(404, String::new(), "404 page not found\n".to_owned()),
            Scenario::Other404 => return not_found("", "pods", "other"),
            Scenario::OtherKind404 => return not_found("", "secrets", path.rsplit('/').next().unwrap_or("")),
            Scenario::NoResource404 => {
                let words = "the server could not find the requested resource";
                return status(404, "NotFound", words, json!({}));
            }
            Scenario::Busy(times, seconds) if self.failures < *times => {
                let headers = format!("Retry-After: {seconds}\r\n");
                self.failures += 1;
                return Action::Reply(429, headers, "Too many requests, please try again later.".to_owned());
            }
            Scenario::Redirects => {
                return Action::Reply(302, "Location: http://127.0.0.1:1/\r\n".to_owned(), String::new());
            }
            _ => {}
        }
        if seen.method != "GET" {
            return self.write(&seen.method, path, &seen.body);
        }
        match path {
            "/api/v1/pods" => self.list(query, second),
            "/api/v1/nodes" => reply(
                &json!({ "kind": "NodeList", "metadata": { "resourceVersion": "7" }, "items": [node()] }),
            ),
            "/apis/apps/v1/statefulsets" => reply(
                &json!({ "kind": "StatefulSetList", "metadata": { "resourceVersion": "7" }, "items": [] }),
            ),
            "/api/v1/nodes/n1" => reply(&node()),
            "/api/v1/namespaces/kube-system" => reply(&json!({
                "kind": "Namespace", "metadata": { "name": "kube-system", "uid": "cluster-1" },
            })),
            _ => self.object(path),
        }
    }

    fn watch(&mut self, path: &str) -> Action {
        let Scenario::Watches(texts) = self.scenario else { return Action::Open };
        let text = texts.get(self.failures).filter(|_| path == "/api/v1/pods");
        let Some(text) = text else { return Action::Open };
        self.failures += 1;
        Action::Last((*text).to_owned())
    }

    fn object(&self, path: &str) -> Action {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let pod_of = |name: &str| name.strip_prefix("db-")?.parse::<usize>().ok().filter(|n| *n < self.pods);
        match parts[..] {
            ["api", "v1", "namespaces", "shop", "pods", name] if pod_of(name).is_some() => {
                let mut pod = pod(pod_of(name).unwrap_or(0));
                pod["kind"] = if self.scenario == Scenario::WrongKind { "PodList" } else { "Pod" }.into();
                if self.scenario == Scenario::WrongObject {
                    pod["metadata"]["name"] = "db-77".into();
                }
                reply(&pod)
            }
            ["api", "v1", "namespaces", _, resource, name] | ["api", "v1", resource, name] => {
                not_found("", resource, name)
            }
            ["apis", "apps", "v1", "namespaces", "shop", "statefulsets", "db"] => reply(&json!({
                "kind": "StatefulSet", "metadata": { "name": "db", "namespace": "shop", "uid": "s-1" },
                "spec": { "replicas": 3, "ordinals": { "start": 2 } },
            })),
            ["apis", "apps", "v1", "namespaces", _, resource, name] => not_found("apps", resource, name),
            ["apis", "apps.kruise.io"] => reply(&json!({
                "kind": "APIGroup", "preferredVersion": { "groupVersion": "apps.kruise.io/v1beta1", "version": "v1beta1" },
                "versions": [{ "version": "v1alpha1" }, { "version": "v1beta1" }],
            })),
            ["apis", "apps.kruise.io", "v1beta1"] => reply(&json!({
                "kind": "APIResourceList", "groupVersion": "apps.kruise.io/v1beta1", "resources": [
                    { "name": "statefulsets/scale", "kind": "StatefulSet", "namespaced": true },
                    { "name": "statefulsets", "kind": "StatefulSet", "namespaced": true },
                ],
            })),
            ["apis", "apps.kruise.io", "v1alpha1"] => reply(&json!({
                "kind": "APIResourceList", "resources": [{ "name": "clonesets", "kind": "CloneSet", "namespaced": true }],
            })),
            ["apis", "apps.kruise.io", "v1beta1", "namespaces", "shop", "statefulsets", "db"] => {
                reply(&json!({
                    "kind": "StatefulSet", "metadata": { "name": "db", "namespace": "shop", "uid": "k-1" },
                    "spec": { "replicas": 3, "reserveOrdinals": [5, "1-2"] },
                }))
            }
            ["apis", "apps.kruise.io", _, "namespaces", "shop", "clonesets", "web"] => reply(&json!({
                "kind": "CloneSet", "metadata": {
                    "name": "web", "namespace": "shop", "uid": "c-1", "deletionTimestamp": "2026-01-01T00:00:00Z",
                },
                "spec": { "replicas": "as many as there are" },
            })),
            ["apis", "apps.kruise.io", _, "namespaces", _, resource, name] => {
                not_found("apps.kruise.io", resource, name)
            }
            _ => Action::Reply(404, String::new(), "404 page not found\n".to_owned()),
        }
    }

    fn list(&mut self, query: &str, second: bool) -> Action {
        let value = |name: &str| query.split('&').find_map(|one| one.strip_prefix(name)?.strip_prefix('='));
        let limit: usize = value("limit").and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
        let mut from: usize = value("continue").and_then(|text| text.parse().ok()).unwrap_or(0);
        match self.scenario {
            Scenario::Expired(times) if second && self.failures < times => {
                self.failures += 1;
                return status(410, "Expired", "The provided continue parameter is too old", json!({}));
            }
            Scenario::FailsMidway if second => {
                return status(500, "InternalError", "etcdserver: request timed out", json!({}));
            }
            Scenario::Empty => {
                return reply(
                    &json!({ "kind": "PodList", "metadata": { "resourceVersion": "7" }, "items": [] }),
                );
            }
            Scenario::Null => {
                return reply(
                    &json!({ "kind": "PodList", "metadata": { "resourceVersion": "7" }, "items": null }),
                );
            }
            Scenario::Twice if second => from -= 1,
            _ => {}
        }
        let to = from.saturating_add(limit).min(self.pods);
        let mut items: Vec<Value> = (from..to).map(pod).collect();
        let mut metadata = json!({ "resourceVersion": "7" });
        if to < self.pods {
            metadata["continue"] = to.to_string().into();
            metadata["remainingItemCount"] = (self.pods - to).into();
        }
        match self.scenario {
            Scenario::MovingRevision if second => metadata["resourceVersion"] = "8".into(),
            Scenario::Fewer if second => items.truncate(1),
            Scenario::Endless => metadata["continue"] = "0".into(),
            Scenario::Nameless => {
                if let Some(meta) = items.last_mut().and_then(|item| item["metadata"].as_object_mut()) {
                    meta.remove("name");
                }
            }
            _ => {}
        }
        let kind = if self.scenario == Scenario::WrongKind { "NodeList" } else { "PodList" };
        let text =
            json!({ "kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items }).to_string();
        match self.scenario {
            Scenario::HalfPage if second => Action::Half { length: true, body: text },
            Scenario::HalfPageOfUnknownLength if second => Action::Half { length: false, body: text },
            Scenario::Drips => Action::Drip(text),
            _ => Action::Reply(200, String::new(), text),
        }
    }

    fn write(&mut self, method: &str, path: &str, body: &Value) -> Action {
        let named = |event: &Value, name: &str| event["metadata"]["name"] == name;
        let (name, created) = match method {
            "POST" => (body["metadata"]["name"].as_str().unwrap_or_default(), true),
            _ => (path.rsplit('/').next().unwrap_or_default(), false),
        };
        let known = self.events.iter_mut().find(|event| named(event, name));
        match (known, created) {
            (Some(_), true) => status(409, "AlreadyExists", "events already exists", json!({})),
            (Some(event), false) => {
                for (field, value) in body.as_object().into_iter().flatten() {
                    event[field] = value.clone();
                }
                reply(event)
            }
            (None, true) => {
                self.events.push(body.clone());
                Action::Reply(201, String::new(), body.to_string())
            }
            (None, false) => not_found("", "events", name),
        }
    }
}

fn reply(value: &Value) -> Action {
    Action::Reply(200, String::new(), value.to_string())
}

fn forbidden() -> Action {
    status(403, "Forbidden", "pods is forbidden: User \"reaper\" cannot list resource \"pods\"", json!({}))
}

fn not_found(group: &str, resource: &str, name: &str) -> Action {
    let mut details = json!({ "name": name, "kind": resource });
    if !group.is_empty() {
        details["group"] = group.into();
    }
    status(404, "NotFound", &format!("{resource} {name:?} not found"), details)
}

#[expect(clippy::needless_pass_by_value, reason = "it reads as a literal where it is called")]
fn status(code: u16, reason: &str, message: &str, details: Value) -> Action {
    let value = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "details": details, "code": code,
    });
    Action::Reply(code, String::new(), value.to_string())
}

/// What is made of an object of the API.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Object {
    /// A pod.
    Pod(Box<Pod>),
    /// A list of pods.
    Pods(Vec<Pod>),
    /// A node.
    Node(Node),
    /// A StatefulSet, or whatever else has pods.
    Controller(Controller),
}

/// Reads an object of each kind in JSON, as lists and live answers do; `at` is the server's clock.
#[must_use]
pub fn read_json(text: &[u8], at: Timestamp) -> Vec<Result<Object, String>> {
    let controller =
        |stateful| objects::parse::<ControllerObject>(text).and_then(|object| object.controller(stateful));
    vec![
        objects::parse(text).and_then(pods_of).map(Object::Pods),
        objects::parse::<PodObject>(text).and_then(Pod::try_from).map(Box::new).map(Object::Pod),
        objects::parse::<NodeObject>(text).and_then(|node| node.node(at)).map(Object::Node),
        controller(true).map(Object::Controller),
        controller(false).map(Object::Controller),
    ]
}

/// Reads a list of pods in protobuf.
///
/// # Errors
/// It is none, or one of its pods cannot be read.
pub fn read_protobuf(body: &[u8]) -> Result<Object, String> {
    let _ = protobuf::status(body);
    protobuf::pods(Bytes::copy_from_slice(body)).and_then(pods_of).map(Object::Pods)
}

fn pods_of(list: List<PodObject>) -> Result<Vec<Pod>, String> {
    list.items.ok_or("it has no items")?.into_iter().map(Pod::try_from).collect()
}

/// One pod of the list: running on `n1`, made by StatefulSet `db`.
#[must_use]
pub fn pod(number: usize) -> Value {
    json!({
        "metadata": {
            "name": format!("db-{number}"), "namespace": "shop", "uid": format!("uid-{number}"),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": { "leasehold.io/ip": "10.0.0.1", "other": "x" },
            "ownerReferences": [
                { "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "s-1", "controller": true },
            ],
        },
        "spec": { "nodeName": "n1", "containers": [{ "name": "db" }] },
        "status": { "phase": "Running", "podIPs": [{ "ip": "10.1.0.1" }] },
    })
}

fn node() -> Value {
    json!({
        "kind": "Node",
        "metadata": { "name": "n1" },
        "spec": { "taints": [{ "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown" }] },
        "status": { "conditions": [
            { "type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:00:00Z" },
        ] },
    })
}
