//! What the calls meet: pools, leases by the ten thousand, host-local, a hand in the store.

use std::{net::IpAddr, path::Path, process::Output};

use leasehold::{
    config::StoreSettings,
    domain::{
        lease::{Binding, Lease, LeasedAddress, Stamp, Timestamp},
        names::{BootId, ContainerId, DomainName, NodeName, PoolName, Uid},
    },
    host,
    store::{Outcome, Read, Store as _, Txn, Write, any::AnyStore, changes, keys},
};
use serde_json::{Value, json};

use crate::support::{call::Call, ground, host::HostFile, parts::Plugins, process::PATIENCE};

pub(crate) fn register(hosts: &[&HostFile]) {
    hosts.iter().for_each(|host| ground::register(host));
}

/// A pool of the name of the network that it is for. The waiting time of addresses that were given back is none of what
/// is measured: a small pool would soon have no others.
pub(crate) fn pool(host: &HostFile, name: &str, ranges: &Value) {
    let sticky = if name == "db" { "always" } else { "never" };
    ground::pool(
        host,
        json!({
            "name": name, "networks": [name], "serves": ["*/*"], "coolDown": "0s", "sticky": sticky,
            "ranges": ranges,
        }),
    );
}

/// The same call to host-local, with its addresses in this folder; of all of the subnet, or so many.
pub(crate) fn host_local(call: Call, data: &Path, subnet: &str, ends: Option<(&str, &str)>) -> Call {
    let mut range = json!({ "subnet": subnet });
    if let Some((start, end)) = ends {
        range["rangeStart"] = json!(start);
        range["rangeEnd"] = json!(end);
    }
    call.binary(&Plugins::Current.folder().join("host-local"))
        .field("ipam", json!({ "type": "host-local", "dataDir": data, "ranges": [[range]] }))
}

/// Reaches into the store beside all callers.
pub(crate) struct Hand {
    runtime: tokio::runtime::Runtime,
    store: AnyStore,
}

impl Hand {
    pub(crate) fn on(host: &HostFile) -> Self {
        let settings = host::read(Some(host.path().into())).unwrap();
        assert!(matches!(settings.config.store, StoreSettings::Etcd(_)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(settings.open_store(PATIENCE)).unwrap();
        Self { runtime, store }
    }

    pub(crate) fn revision(&self) -> i64 {
        let read = [Read::Get(keys::meta())];
        self.runtime.block_on(self.store.read(&read, None)).unwrap().revision.0
    }

    fn commit(&self, txn: &Txn) {
        let outcome = self.runtime.block_on(self.store.commit(txn)).unwrap();
        assert!(matches!(outcome, Outcome::Applied(_)), "{outcome:?}");
    }

    /// As if nobody had ever had this address.
    pub(crate) fn forget(&self, address: IpAddr) {
        let key = keys::released(&DomainName::new("default").unwrap(), address);
        self.commit(&Txn { writes: vec![Write::Delete(key)], ..Txn::default() });
    }

    /// Binds leases, as ADD writes it.
    pub(crate) fn bind(&self, leases: impl Iterator<Item = Lease>) {
        let mut leases = leases.peekable();
        while leases.peek().is_some() {
            let mut together = Txn::default();
            // etcd's limit is 128 operations in a transaction, and a lease has three keys.
            for lease in leases.by_ref().take(40) {
                let take = changes::Take { address: lease.addresses[0].clone(), released: None };
                together.writes.extend(changes::bind_new(&lease, &[take], &[]).writes);
            }
            self.commit(&together);
        }
    }
}

/// A lease of a pod (`namespace/name`) that is bound on this node, of the pool of this network.
pub(crate) fn lease(network: &str, address: IpAddr, pod: &str, node: &str) -> Lease {
    let at = Timestamp(1_700_000_000_000);
    let number = leasehold::domain::addr::number(address) & 0xffff_ffff;
    Lease {
        id: keys::parse_lease_path(&format!("prod-a/{pod}/{network}/eth0")).unwrap(),
        addresses: vec![LeasedAddress {
            address,
            domain: DomainName::new("default").unwrap(),
            pool: Some(PoolName::new(network).unwrap()),
        }],
        binding: Binding::Bound(Stamp {
            container: ContainerId::new(format!("{number:064x}")).unwrap(),
            node: NodeName::new(node).unwrap(),
            uid: Some(Uid::new(format!("6f1c2b7e-1d5f-4c35-9a57-{number:012x}")).unwrap()),
            boot: Some(BootId::new(format!("0b9d4f3e-52a1-4c9e-8f57-{:012x}", number % 300)).unwrap()),
            boot_clock: u64::try_from(number).unwrap(),
            at,
        }),
        since: at,
        created: at,
        sticky: false,
        reserved: false,
        unconfirmed: false,
        seen: None,
    }
}

/// What a process cost that `bare cost` ran.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) wall: f64,
    pub(crate) cpu: f64,
    pub(crate) mib: f64,
}

/// Reads it from what `bare cost` wrote.
#[track_caller]
pub(crate) fn cost(output: &Output) -> Cost {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let last: Value = serde_json::from_str(said.lines().last().unwrap_or_default()).unwrap();
    let number = |name: &str| last[name].as_f64().unwrap();
    Cost { wall: number("wall"), cpu: number("cpu"), mib: number("kib") / 1024.0 }
}
