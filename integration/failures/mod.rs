//! Whole plugin processes on real etcds, while something goes wrong: answers that are lost, members that freeze, a
//! quota, a store that is down, a crowd, a kill at any moment, certificates, a restore. After each the audit of the
//! store is clean.
#![expect(clippy::disallowed_methods, reason = "time limits are of the real clock")]

mod answers;
mod crash;
mod crowd;
mod endpoints;
mod journal;
mod restore;
mod secrets;

use std::{collections::BTreeMap, fs, net::Ipv4Addr};

use serde_json::{Value, json};

use crate::support::{
    etcd::{Etcd, Options},
    ground,
    host::HostFile,
    proxy::Proxy,
};

/// A registered cluster on an etcd of its own, reached by way of proxies.
#[derive(Debug)]
struct Stand {
    etcd: Etcd,
    /// The node under test, which knows the proxies only.
    host: HostFile,
    /// Another node, which nothing stands in the way of.
    direct: HostFile,
    proxies: Vec<Proxy>,
}

impl Stand {
    /// With one proxy before each of these members, in this order, and a pool of this size.
    fn new(options: Options, routes: &[usize], size: u32) -> Self {
        let etcd = options.start();
        let direct = HostFile::on(&etcd).with("node", "n2");
        let proxies: Vec<_> = routes.iter().map(|member| Proxy::to(etcd.address(*member))).collect();
        let host = HostFile::on(&etcd).endpoints(proxies.iter().map(|proxy| proxy.url("http")));
        pool_of(&direct, size);
        Self { etcd, host, direct, proxies }
    }
}

/// Registers the cluster and makes a pool of so many addresses from 10.1.0.1 on, which do not cool down.
fn pool_of(host: &HostFile, size: u32) {
    let first = Ipv4Addr::new(10, 1, 0, 1);
    let last = Ipv4Addr::from(u32::from(first) + size - 1);
    ground::register(host);
    ground::pool(
        host,
        json!({
            "name": "lan", "networks": ["lan100"], "serves": ["*/*"], "coolDown": "0s",
            "ranges": [{ "subnet": "10.1.0.0/16", "start": first, "end": last }],
        }),
    );
}

/// The pods that have a bound lease, and the container of each. The audit is clean.
#[track_caller]
fn bound(host: &HostFile) -> BTreeMap<String, String> {
    let leases = ground::leases(host);
    let bound = leases.iter().filter_map(|lease| {
        Some((lease.id.holder.to_string(), lease.bound()?.container.as_str().to_owned()))
    });
    bound.collect()
}

/// What waits in a node's journal.
fn journal(host: &HostFile) -> Vec<Value> {
    let files = fs::read_dir(host.state().join("journal")).into_iter().flatten().flatten();
    let files = files.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "json"));
    files.map(|path| serde_json::from_slice(&fs::read(path).unwrap()).unwrap()).collect()
}

fn one(pod: &str, container: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(pod.to_owned(), container.to_owned())])
}
