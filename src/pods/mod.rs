//! The Kubernetes API, as the reaper asks it: a complete list or an error, never a part; and one live question at a time.
//!
//! Kubernetes' types and its client end here. Nothing here decides.

mod api;
mod client;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
mod objects;
mod protobuf;
mod settings;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod watch;

use std::future::Future;

use thiserror::Error;

use crate::domain::{
    kubernetes::{Controller, ControllerRef, Listed, Live, Node, Pod, PodKey},
    names::{Namespace, NodeName, Uid},
};

pub use api::Api;
pub use settings::{Choice, Settings, Surroundings};

/// Why the API did not answer as asked. None of them says that anything is absent.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum ApiError {
    /// No connection, no answer in time, or a broken one.
    #[error("{server} not reached: {reason}")]
    NotReached {
        /// The server's URL.
        server: String,
        /// What was seen.
        reason: String,
    },
    /// 401: the credentials are wrong or have expired.
    #[error("{server} does not accept the credentials: {reason}")]
    Unauthorized {
        /// The server's URL.
        server: String,
        /// Its words.
        reason: String,
    },
    /// 403: the role lacks a verb.
    #[error("may not {verb} {what}: {reason}")]
    Forbidden {
        /// Such as `list`.
        verb: &'static str,
        /// Such as `pods`.
        what: String,
        /// The server's words.
        reason: String,
    },
    /// 410: the revision of a page or a watch is compacted away: begin again.
    #[error("{what}: the list expired while it was read (410)")]
    Expired {
        /// Such as `pods`.
        what: String,
    },
    /// Any other status, and what cannot be read as what was asked for.
    #[error("{what}: {reason}")]
    Answer {
        /// Such as `pods shop/db-0`.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The settings: no kubeconfig, no cluster around, a file that cannot be read.
    #[error("{0}")]
    Settings(String),
}

/// An Event to be recorded: what happened, to what, in the words of `kubectl describe`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// What it is about.
    pub about: About,
    /// `Normal` or `Warning`.
    pub warning: bool,
    /// One word in CamelCase, such as `PoolFull`.
    pub reason: &'static str,
    /// A sentence for a person; at most 1 kB is kept.
    pub message: String,
}

/// What an Event is about. It stands in that namespace (`default` for a node).
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum About {
    /// A pod.
    Pod(PodKey, Uid),
    /// The namespace that the reaper runs in: pools and the reaper itself are no objects of the API.
    Namespace(Namespace),
}

/// That something changed, and nothing more: a pass finds out what.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Hint {
    /// A pod was deleted, is being deleted, or has finished.
    Pod,
    /// A node's condition, or its taint of being out of service, changed.
    Node,
    /// A StatefulSet was scaled, made or deleted.
    Controller,
}

/// A cluster's API.
pub trait Cluster: Sync {
    /// The UID of namespace `kube-system`: which cluster this is.
    ///
    /// # Errors
    /// [`ApiError`], as for all the others.
    fn identity(&self) -> impl Future<Output = Result<Uid, ApiError>> + Send;

    /// All pods of all namespaces, by a consistent read, all pages of it; those that `keep` wants are given. A list that
    /// expires is begun again: `keep` may see a pod twice. `progress` is told how many have come.
    ///
    /// # Errors
    /// One page that does not come is an error of the whole.
    fn pods_that(
        &self,
        keep: &(dyn Fn(&Pod) -> bool + Sync),
        progress: &(dyn Fn(usize) + Sync),
    ) -> impl Future<Output = Result<Listed<Pod>, ApiError>> + Send;

    /// All pods of all namespaces.
    ///
    /// # Errors
    /// As above.
    fn pods(
        &self,
        progress: &(dyn Fn(usize) + Sync),
    ) -> impl Future<Output = Result<Listed<Pod>, ApiError>> + Send {
        self.pods_that(&|_| true, progress)
    }

    /// One pod, live.
    ///
    /// # Errors
    /// As above; that it does not exist is none.
    fn pod(&self, key: &PodKey) -> impl Future<Output = Result<Live<Pod>, ApiError>> + Send;

    /// All nodes, by a consistent read.
    ///
    /// # Errors
    /// As above.
    fn nodes(&self) -> impl Future<Output = Result<Listed<Node>, ApiError>> + Send;

    /// One node, live.
    ///
    /// # Errors
    /// As above.
    fn node(&self, name: &NodeName) -> impl Future<Output = Result<Live<Node>, ApiError>> + Send;

    /// One controller, live, by kind and name. A kind that the server does not serve is an error, not an absence.
    ///
    /// # Errors
    /// As above.
    fn controller(
        &self,
        namespace: &Namespace,
        controller: &ControllerRef,
    ) -> impl Future<Output = Result<Live<Controller>, ApiError>> + Send;

    /// Records an Event, or counts one up that says the same.
    ///
    /// # Errors
    /// As above.
    fn record(&self, event: &Event) -> impl Future<Output = Result<(), ApiError>> + Send;
}
