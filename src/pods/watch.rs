//! Hints that something changed, from watches. A pass over everything finds the same a little later: nothing rests on
//! a hint, and one that is lost costs time alone.
//!
//! A watch begins where the server is now (a list of one object says where), and nothing is remembered of what there
//! is, but the last state of each node. After every break it begins anew, with a hint for what was not seen.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::{BuildHasher, Hasher},
    sync::Mutex,
    time::Duration,
};

use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{
    Api, ApiError, Hint,
    client::{Ask, Lines},
    objects::{self, List, NodeObject, PodObject, Status, WatchedController},
};
use crate::domain::{
    kubernetes::{Pod, Ready},
    lease::Timestamp,
};

/// The server ends a watch then; another begins.
const WATCH: Duration = Duration::from_secs(300);
/// Bookmarks come about each minute: who sends none for so long is gone.
const SILENCE: Duration = Duration::from_secs(180);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// Between two problems that are told.
const TALK: Duration = Duration::from_secs(60);
/// Nodes whose state is remembered; Kubernetes is made for 5000.
const MOST_NODES: usize = 20_000;

/// What is watched: its path, its kind of list, its name, the hint.
const WATCHED: [(&str, &str, &str, Hint); 3] = [
    ("/api/v1/pods", "PodList", "pods", Hint::Pod),
    ("/api/v1/nodes", "NodeList", "nodes", Hint::Node),
    ("/apis/apps/v1/statefulsets", "StatefulSetList", "statefulsets", Hint::Controller),
];

/// A node's `Ready` and its being out of service, for a comparison.
type Nodes = HashMap<String, (u8, bool)>;

struct Talk<'a> {
    problem: &'a (dyn Fn(&ApiError) + Sync),
    last: Mutex<Option<Instant>>,
}

impl Talk<'_> {
    fn tell(&self, error: &ApiError) {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.is_none_or(|at| at.elapsed() >= TALK) {
            *last = Some(Instant::now());
            drop(last);
            (self.problem)(error);
        }
    }
}

impl Api {
    /// Sends hints until nobody takes them any more. A hint that finds the channel full is dropped: those in it are
    /// still to be answered. `problem` is told at most once a minute why there are none.
    pub async fn follow(&self, hints: &mpsc::Sender<Hint>, problem: &(dyn Fn(&ApiError) + Sync)) {
        let talk = Talk { problem, last: Mutex::new(None) };
        let [pods, nodes, controllers] = WATCHED;
        let all = async {
            tokio::join!(
                self.follow_one(pods, hints, &talk),
                self.follow_one(nodes, hints, &talk),
                self.follow_one(controllers, hints, &talk),
            )
        };
        tokio::select! {
            _ = all => {}
            () = hints.closed() => {}
        }
    }

    async fn follow_one(
        &self,
        watched: (&'static str, &'static str, &'static str, Hint),
        hints: &mpsc::Sender<Hint>,
        talk: &Talk<'_>,
    ) {
        let mut pause = FIRST_PAUSE;
        let mut nodes = Nodes::new();
        let mut resume: Option<String> = None;
        let mut first = true;
        loop {
            let begun = Instant::now();
            let ended = self.watch(watched, hints, &mut resume, &mut first, &mut nodes).await;
            if let Err(error) = ended {
                // What happens until the next watch begins is not seen.
                resume = None;
                // One that went well for a while ends a series of failures.
                if begun.elapsed() > LAST_PAUSE {
                    pause = FIRST_PAUSE;
                }
                // That a revision is compacted away is no problem, but what happens when a break was long.
                if !matches!(error, ApiError::Expired { .. }) {
                    talk.tell(&error);
                }
                sleep(jitter(pause)).await;
                pause = (pause * 2).min(LAST_PAUSE);
            } else {
                pause = FIRST_PAUSE;
                // A server that ends each watch at once is not asked without a pause.
                if begun.elapsed() < FIRST_PAUSE {
                    sleep(jitter(FIRST_PAUSE)).await;
                }
            }
        }
    }

    /// One watch, until the server ends it: then `resume` says where the next one goes on.
    async fn watch(
        &self,
        (path, kind, what, hint): (&'static str, &'static str, &'static str, Hint),
        hints: &mpsc::Sender<Hint>,
        resume: &mut Option<String>,
        first: &mut bool,
        nodes: &mut Nodes,
    ) -> Result<(), ApiError> {
        let from = match resume.take() {
            Some(revision) => revision,
            None => {
                let from = self.revision(path, kind, what).await?;
                if !std::mem::take(first) {
                    let _ = hints.try_send(hint);
                }
                from
            }
        };
        let mut last = from.clone();
        let ask = Ask::get(
            "watch",
            what,
            format!(
                "{path}?watch=1&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={}",
                jitter(WATCH).as_secs(),
                super::api::escaped(&from)
            ),
        );
        let mut lines: Lines = self.client.stream(&ask).await?;
        while let Some(line) = lines.next(&self.client, SILENCE).await? {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let event: Change<'_> = objects::parse(&line).map_err(|reason| ask.wrong(reason))?;
            if event.kind == "ERROR" {
                let status: Status = objects::parse(event.object.get().as_bytes()).unwrap_or_default();
                if status.code == Some(410) {
                    return Err(ApiError::Expired { what: what.to_owned() });
                }
                return Err(ask.wrong(status.message.unwrap_or_else(|| "the watch failed".to_owned())));
            }
            let object = event.object.get().as_bytes();
            let revision: Revision = objects::parse(object).map_err(|reason| ask.wrong(reason))?;
            if let Some(revision) = revision.metadata.and_then(|meta| meta.resource_version) {
                last = revision;
            }
            let deleted = event.kind == "DELETED";
            if event.kind == "BOOKMARK" {
                continue;
            }
            let matters = match hint {
                Hint::Pod => deleted || pod_matters(object),
                Hint::Node => node_matters(object, deleted, nodes),
                Hint::Controller => deleted || event.kind == "ADDED" || controller_matters(object),
            };
            if matters {
                let _ = hints.try_send(hint);
            }
        }
        *resume = Some(last);
        Ok(())
    }

    /// Where the server is now.
    async fn revision(&self, path: &str, kind: &str, what: &str) -> Result<String, ApiError> {
        let ask = Ask::get("list", what, format!("{path}?limit=1"));
        let list: List<IgnoredAny> =
            self.object(&ask, kind, |list: &List<IgnoredAny>| list.kind.as_deref()).await?;
        let revision = list.metadata.and_then(|meta| meta.resource_version).filter(|text| !text.is_empty());
        revision.ok_or_else(|| ask.wrong("the list has no resourceVersion"))
    }
}

#[derive(Deserialize)]
struct Change<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a serde_json::value::RawValue,
}

#[derive(Deserialize)]
struct Revision {
    metadata: Option<RevisionMeta>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RevisionMeta {
    resource_version: Option<String>,
}

/// A change that is not understood matters: a pass says what is wrong.
fn pod_matters(object: &[u8]) -> bool {
    let pod = objects::parse::<PodObject>(object).and_then(Pod::try_from);
    pod.map_or(true, |pod| pod.deleting.is_some() || pod.phase.is_final())
}

fn node_matters(object: &[u8], deleted: bool, nodes: &mut Nodes) -> bool {
    let Ok(node) = objects::parse::<NodeObject>(object).and_then(|object| object.node(Timestamp(0))) else {
        return true;
    };
    let name = node.name.to_string();
    if deleted {
        nodes.remove(&name);
        return true;
    }
    let ready = match node.ready {
        Ready::True => 0,
        Ready::False => 1,
        Ready::Unknown { .. } => 2,
        Ready::Unsaid => 3,
    };
    if nodes.len() >= MOST_NODES {
        nodes.clear();
    }
    let before = nodes.insert(name, (ready, node.out_of_service));
    // One that is seen for the first time matters if it is not as nodes should be.
    before.unwrap_or((0, false)) != (ready, node.out_of_service)
}

/// Its controller has not yet seen what it is to be now, or it is being deleted.
fn controller_matters(object: &[u8]) -> bool {
    objects::parse::<WatchedController>(object).map_or(true, |object| object.is_new())
}

/// A quarter more or less.
fn jitter(pause: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 512;
    pause * 3 / 4 + pause * u32::try_from(random).unwrap_or(0) / 1024
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn bytes(value: &Value) -> Vec<u8> {
        value.to_string().into_bytes()
    }

    #[test]
    fn a_pod_matters_when_it_ends() {
        let pod = |field: &str, inner: &str, value: &str| {
            let mut pod = super::super::testing::pod(0);
            pod[field][inner] = value.into();
            pod_matters(&bytes(&pod))
        };
        assert!(!pod("status", "phase", "Running"));
        assert!(!pod("status", "phase", "Unknown"));
        assert!(pod("status", "phase", "Failed"));
        assert!(pod("metadata", "deletionTimestamp", "2026-01-01T00:00:00Z"));
        assert!(pod_matters(b"{}"), "what is not understood");
    }

    #[test]
    fn a_node_matters_when_it_is_another_than_before() {
        let mut nodes = Nodes::new();
        let mut say = |status: &str, deleted: bool| {
            let ready = json!({ "type": "Ready", "status": status });
            let node = json!({ "metadata": { "name": "n" }, "status": { "conditions": [ready] } });
            node_matters(&bytes(&node), deleted, &mut nodes)
        };
        let said = [say("True", false), say("Unknown", false), say("Unknown", false), say("True", false)];
        assert_eq!(said, [false, true, false, true]);
        assert_eq!([say("True", true), say("Unknown", false)], [true, true]);
    }

    #[test]
    fn a_controller_matters_when_something_else_is_wanted_of_it() {
        let say = |generation: u64, observed: u64| {
            let set = json!({ "metadata": { "generation": generation }, "status": { "observedGeneration": observed } });
            controller_matters(&bytes(&set))
        };
        assert_eq!([say(3, 2), say(3, 3)], [true, false]);
    }
}
