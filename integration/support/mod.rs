//! What the tests stand on: real etcds, a real Kubernetes API, faults between them and us, a LAN of network namespaces,
//! calls as a runtime makes them. Each piece ends what it started, by its own process id or name, when it is dropped.

pub(crate) mod apiserver;
pub(crate) mod call;
pub(crate) mod chance;
pub(crate) mod crowd;
pub(crate) mod door;
pub(crate) mod etcd;
pub(crate) mod folder;
pub(crate) mod ground;
pub(crate) mod host;
pub(crate) mod lan;
pub(crate) mod leftovers;
pub(crate) mod parts;
pub(crate) mod port;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod rest;
pub(crate) mod wire;
