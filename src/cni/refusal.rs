//! What the use cases refuse, in the words that kubelet shows: what, which, and what to do.

use super::reply::{Code, Error};
use crate::{
    domain::{lease::Holder, select::Unusable},
    host::HostError,
    ops::Refusal,
    store::StoreError,
};

fn failure(code: Code, msg: impl Into<String>, details: impl Into<String>) -> Error {
    Error::Failure { code, msg: msg.into(), details: details.into() }
}

/// The host file's faults.
#[must_use]
pub(super) fn of_host(error: HostError) -> Error {
    match error {
        HostError::Missing { looked } => Error::HostFileMissing { looked },
        HostError::Read { path, cause } => Error::HostFileRead { path, cause },
        HostError::Invalid { path, faults } => Error::HostFileInvalid { path, faults },
        HostError::Readable(readable) => Error::SecretReadable(readable),
        HostError::Hostname(error) => failure(
            Code::Config,
            "the host file names no node",
            format!("{error}; set \"node\" in the host file"),
        ),
    }
}

/// The store's own troubles.
#[must_use]
pub(super) fn of_store(error: &StoreError) -> Error {
    match error {
        StoreError::NotReached { reason } => {
            failure(Code::TryAgain, "the store cannot be reached", reason.as_str())
        }
        StoreError::Unanswered { endpoint, reason, .. } => {
            failure(Code::TryAgain, "the store did not answer", format!("{endpoint}: {reason}"))
        }
        StoreError::Refused { endpoint, reason } => failure(
            Code::TryAgain,
            "the store refused the request",
            format!(
                "{endpoint}: {reason}; look at the user, its roles and the certificate: leasehold doctor"
            ),
        ),
        StoreError::Credentials { path, reason } => {
            failure(Code::Config, "a credential of the store cannot be used", format!("{path}: {reason}"))
        }
        StoreError::Compacted(_) => {
            failure(Code::TryAgain, "the store was compacted meanwhile", error.to_string())
        }
        StoreError::WentBack { .. } => failure(
            Code::TryAgain,
            "the store went back meanwhile",
            format!("{error}; if it was restored: leasehold freeze, leasehold adopt, leasehold thaw"),
        ),
    }
}

/// The store's own troubles, with the names of those who were asked, where the store did not come to say them: a
/// deadline that ends every try knows none.
#[must_use]
pub(super) fn of_store_at(asked: &str, error: &StoreError) -> Error {
    match (of_store(error), error) {
        (
            Error::Failure { code, msg, details },
            StoreError::NotReached { .. } | StoreError::Unanswered { .. },
        ) if !details.contains(asked) => failure(code, msg, format!("{details}; asked {asked}")),
        (told, _) => told,
    }
}

/// Everything. `asked` names the store.
#[must_use]
pub(super) fn of_at(asked: &str, refusal: &Refusal) -> Error {
    if let Refusal::Store(error) = refusal { of_store_at(asked, error) } else { of(refusal) }
}

/// Everything else.
#[must_use]
pub(super) fn of(refusal: &Refusal) -> Error {
    match refusal {
        Refusal::Store(error) => of_store(error),
        Refusal::Record(error) => failure(
            Code::TryAgain,
            "a record of the store cannot be used",
            format!("{error}; look at it with: leasehold check"),
        ),
        Refusal::Empty => failure(
            Code::Config,
            "the store holds no leasehold data under this prefix",
            "register the cluster first: leasehold cluster add NAME --uid UID (the UID of namespace kube-system)",
        ),
        Refusal::Unregistered(cluster) => failure(
            Code::Config,
            format!("cluster {cluster} is not registered"),
            format!(
                "leasehold cluster add {cluster} --uid \"$(kubectl get namespace kube-system -o jsonpath='{{.metadata.uid}}')\""
            ),
        ),
        Refusal::NoPool { caller, looked_for, near } => {
            let mut details = format!("looked for {}", looked_for.join(", "));
            for (name, reason) in near {
                details.push_str(&format!("; pool {name}: {reason}"));
            }
            let serves = match &caller.holder {
                Holder::Pod { namespace, .. } => format!("{namespace}/WORKLOAD"),
                Holder::Container(_) => "'*/*'".to_owned(),
            };
            details.push_str(&format!(
                "; make one: leasehold pool create NAME --network {} --subnet CIDR --range A-B --serves {serves}",
                caller.network
            ));
            failure(
                Code::Config,
                format!("no pool serves {} on network {}", caller.holder, caller.network),
                details,
            )
        }
        Refusal::PoolRefused { pool, by, reason } => {
            let what = match reason {
                Unusable::Missing => "see: leasehold pool list".to_owned(),
                Unusable::Network { .. }
                | Unusable::Cluster { .. }
                | Unusable::Node { .. }
                | Unusable::Serves { .. }
                | Unusable::Invalid { .. } => format!("see: leasehold pool show {pool}"),
            };
            failure(
                Code::Config,
                format!("pool {pool} may not be used"),
                format!("{reason}; it was asked for by {by}; {what}"),
            )
        }
        Refusal::InlineRefused => failure(
            Code::Config,
            "ranges in the ipam block are not allowed on this node",
            "they belong to pools in the store (leasehold pool create), or set \"inlineRanges\": \"allow\" in the host file",
        ),
        Refusal::Frozen { why, by } => failure(
            Code::TryAgain,
            "the store is frozen: no new address is leased",
            format!("{why} (by {by}); when it is safe: leasehold thaw"),
        ),
        Refusal::Full { pools, suspects } => {
            let mut details = String::new();
            if !suspects.is_empty() {
                details = format!("not in use by a running sandbox: {}; ", suspects.join(", "));
            }
            details.push_str("widen the pool, or see: leasehold pool list, leasehold lease list");
            let full: Vec<String> = pools
                .iter()
                .map(|usage| format!("pool {} is full ({} of {})", usage.pool, usage.used, usage.total))
                .collect();
            failure(Code::TryAgain, full.join(", "), details)
        }
        Refusal::Cooling { pool, count, ready_in_ms } => failure(
            Code::TryAgain,
            format!("pool {pool} has no address ready: {count} cooling down"),
            match ready_in_ms / 1000 {
                0..60 => format!("the first is ready in {ready_in_ms} ms"),
                // Longer than any cool-down of use: a stranger's.
                seconds => format!(
                    "the first is ready in {seconds} s; where a stranger answered, see: leasehold pool list, leasehold lease list --state declined"
                ),
            },
        ),
        Refusal::Contention { conflicts, late } => failure(
            Code::TryAgain,
            format!("could not commit before the deadline, {conflicts} conflicts"),
            match (late, conflicts) {
                (true, _) => "the store answers commits too late: leasehold doctor",
                (false, 0) => {
                    "the time went into waiting for the store and into asking the wire; see who answers there: leasehold lease list --state declined"
                }
                (false, _) => {
                    "others were faster, or what was free answers on the wire; the pool is not full"
                }
            },
        ),
        Refusal::NewerSandbox { container, node, why, memory: _ } => failure(
            Code::TryAgain,
            "a newer sandbox of this pod has its lease",
            format!("container {container} on node {node}: {why}"),
        ),
        Refusal::Arriving { last, memory: _ } => {
            let whose = match last {
                Some((container, node)) => format!("container {container} on node {node}"),
                None => "its address was reserved from another".into(),
            };
            failure(
                Code::TryAgain,
                "another sandbox of this pod has its lease, or had it a moment ago",
                format!("{whose}: it may not be on the wire yet; try again in 5 s"),
            )
        }
        Refusal::OtherHolder { container, holder } => failure(
            Code::TryAgain,
            format!("container {container} has an address on this interface, leased to {holder}"),
            "one attachment has one lease: DEL it first",
        ),
        Refusal::StillAnswers { address, mac, node, memory: _ } => {
            let node = node.as_ref().map(ToString::to_string).unwrap_or_default();
            let last = if node.is_empty() { String::new() } else { format!(", last leased on node {node}") };
            failure(
                Code::TryAgain,
                format!("{address} is this pod's, but {mac} still answers on it"),
                format!(
                    "fence the old sandbox first{last}; as soon as it is silent the pod gets its address"
                ),
            )
        }
        Refusal::CannotProbe { address, reason } => failure(
            Code::TryAgain,
            format!("cannot ask the wire whether {address} is in use"),
            reason.as_str(),
        ),
        Refusal::WrongNode { pool, address, reason } => failure(
            Code::TryAgain,
            format!("{address} is kept for this pod, but pool {pool} is {reason}"),
            "pin the pod to the pool's nodes with nodeAffinity, or release the address: leasehold lease release",
        ),
        Refusal::ReservedUnfit { address, reason } => failure(
            Code::TryAgain,
            format!("{address} is reserved for this pod and cannot be given: {reason}"),
            "release or move the reservation: leasehold lease release, leasehold lease move",
        ),
        Refusal::PoolMoved { address, pool } => failure(
            Code::TryAgain,
            format!("{address} is this container's, but no subnet of {pool} has it any more"),
            "the pool has moved, so nothing says its prefix length and gateway; restart the pod, and it gets another address, or put the subnet back: leasehold pool apply",
        ),
        Refusal::RequestedOutside { address, by, pools } => failure(
            Code::AddressUnavailable,
            format!("requested address {address} is in no pool that may be used"),
            format!("asked for by {by}; pools: {}", pools.join(", ")),
        ),
        Refusal::RequestedTaken { address, by, reason } => failure(
            Code::AddressUnavailable,
            format!("requested address {address} is not free"),
            format!("{reason}; asked for by {by}"),
        ),
        Refusal::Check(text) => failure(Code::LeaseMissing, text.as_str(), ""),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        domain::{
            names::{ClusterName, ContainerId, Namespace, NetworkName, NodeName, PodName, PoolName},
            select::Caller,
        },
        ops::Usage,
        store::{Revision, record::RecordError},
    };

    #[track_caller]
    fn case(refusal: &Refusal, code: u32, text: &str) {
        let error = of(refusal);
        assert_eq!((error.code().number(), error.to_string().as_str()), (code, text));
    }

    fn pool() -> PoolName {
        PoolName::new("shop-db").unwrap()
    }

    fn node() -> NodeName {
        NodeName::new("n1").unwrap()
    }

    /// Every refusal as kubelet shows it: what, which, and what to do.
    #[test]
    fn b133_every_refusal_says_what_which_and_what_to_do() {
        let holder =
            Holder::Pod { namespace: Namespace::new("shop").unwrap(), name: PodName::new("db-0").unwrap() };
        let caller = Caller {
            cluster: ClusterName::new("prod").unwrap(),
            node: node(),
            labels: Vec::new(),
            network: NetworkName::new("lan").unwrap(),
            holder: holder.clone(),
        };
        let not_here = Unusable::Node { node: node(), accepted: vec!["m*".into()] };
        let address = "10.0.0.1".parse().unwrap();
        let usage = Usage { pool: "shop-db".into(), family: None, used: 2, total: 2 };
        let container = ContainerId::new("c1").unwrap();
        case(
            &StoreError::NotReached { reason: "http://a: refused".into() }.into(),
            11,
            "the store cannot be reached; http://a: refused",
        );
        let waited = Duration::from_secs(1);
        let unanswered =
            StoreError::Unanswered { endpoint: "http://a".into(), waited, reason: "no leader".into() };
        case(&unanswered.into(), 11, "the store did not answer; http://a: no leader");
        case(
            &StoreError::Refused { endpoint: "http://a".into(), reason: "denied".into() }.into(),
            11,
            "the store refused the request; http://a: denied; look at the user, its roles and the certificate: leasehold doctor",
        );
        case(
            &StoreError::Credentials { path: "/ca.pem".into(), reason: "expired".into() }.into(),
            7,
            "a credential of the store cannot be used; /ca.pem: expired",
        );
        case(
            &StoreError::Compacted(Revision(5)).into(),
            11,
            "the store was compacted meanwhile; revision 5 is compacted",
        );
        case(
            &RecordError::Newer { key: "v1/meta".into(), found: 2 }.into(),
            11,
            "a record of the store cannot be used; record v1/meta has version 2, this leasehold knows up to 1: upgrade it on this node; look at it with: leasehold check",
        );
        case(
            &Refusal::Empty,
            7,
            "the store holds no leasehold data under this prefix; register the cluster first: leasehold cluster add NAME --uid UID (the UID of namespace kube-system)",
        );
        case(
            &Refusal::Unregistered(caller.cluster.clone()),
            7,
            "cluster prod is not registered; leasehold cluster add prod --uid \"$(kubectl get namespace kube-system -o jsonpath='{.metadata.uid}')\"",
        );
        let no_pool = Refusal::NoPool {
            caller: Box::new(caller),
            looked_for: vec!["shop/db-0".into(), "shop/db".into()],
            near: vec![(pool(), not_here.clone())],
        };
        case(
            &no_pool,
            7,
            "no pool serves shop/db-0 on network lan; looked for shop/db-0, shop/db; pool shop-db: not for node n1 (nodes: m*); make one: leasehold pool create NAME --network lan --subnet CIDR --range A-B --serves shop/WORKLOAD",
        );
        case(
            &Refusal::PoolRefused { pool: pool(), by: "args.cni.pool".into(), reason: Unusable::Missing },
            7,
            "pool shop-db may not be used; there is no such pool; it was asked for by args.cni.pool; see: leasehold pool list",
        );
        case(
            &Refusal::InlineRefused,
            7,
            "ranges in the ipam block are not allowed on this node; they belong to pools in the store (leasehold pool create), or set \"inlineRanges\": \"allow\" in the host file",
        );
        case(
            &Refusal::Frozen { why: "restored".into(), by: "node n1".into() },
            11,
            "the store is frozen: no new address is leased; restored (by node n1); when it is safe: leasehold thaw",
        );
        case(
            &Refusal::Full { pools: vec![usage], suspects: vec!["10.0.0.1 shop/db-1 held".into()] },
            11,
            "pool shop-db is full (2 of 2); not in use by a running sandbox: 10.0.0.1 shop/db-1 held; widen the pool, or see: leasehold pool list, leasehold lease list",
        );
        case(
            &Refusal::Contention { conflicts: 3, late: false },
            11,
            "could not commit before the deadline, 3 conflicts; others were faster, or what was free answers on the wire; the pool is not full",
        );
        case(
            &Refusal::Contention { conflicts: 0, late: false },
            11,
            "could not commit before the deadline, 0 conflicts; the time went into waiting for the store and into asking the wire; see who answers there: leasehold lease list --state declined",
        );
        case(
            &Refusal::NewerSandbox {
                container: container.clone(),
                node: node(),
                why: "it is new".into(),
                memory: Box::default(),
            },
            11,
            "a newer sandbox of this pod has its lease; container c1 on node n1: it is new",
        );
        case(
            &Refusal::Contention { conflicts: 1, late: true },
            11,
            "could not commit before the deadline, 1 conflicts; the store answers commits too late: leasehold doctor",
        );
        case(
            &Refusal::Arriving { last: Some((container.clone(), node())), memory: Box::default() },
            11,
            "another sandbox of this pod has its lease, or had it a moment ago; container c1 on node n1: it may not be on the wire yet; try again in 5 s",
        );
        case(
            &Refusal::OtherHolder { container, holder },
            11,
            "container c1 has an address on this interface, leased to shop/db-0; one attachment has one lease: DEL it first",
        );
        case(
            &Refusal::StillAnswers {
                address,
                mac: "02:00:00:00:00:01".into(),
                node: Some(node()),
                memory: Box::default(),
            },
            11,
            "10.0.0.1 is this pod's, but 02:00:00:00:00:01 still answers on it; fence the old sandbox first, last leased on node n1; as soon as it is silent the pod gets its address",
        );
        case(
            &Refusal::CannotProbe { address, reason: "eth9: no such link".into() },
            11,
            "cannot ask the wire whether 10.0.0.1 is in use; eth9: no such link",
        );
        case(
            &Refusal::WrongNode { pool: pool(), address, reason: not_here },
            11,
            "10.0.0.1 is kept for this pod, but pool shop-db is not for node n1 (nodes: m*); pin the pod to the pool's nodes with nodeAffinity, or release the address: leasehold lease release",
        );
        case(
            &Refusal::ReservedUnfit { address, reason: "its pool moved".into() },
            11,
            "10.0.0.1 is reserved for this pod and cannot be given: its pool moved; release or move the reservation: leasehold lease release, leasehold lease move",
        );
        case(
            &Refusal::PoolMoved { address, pool: pool().to_string() },
            11,
            "10.0.0.1 is this container's, but no subnet of shop-db has it any more; the pool has moved, so nothing says its prefix length and gateway; restart the pod, and it gets another address, or put the subnet back: leasehold pool apply",
        );
        let (by, pools) = ("CNI_ARGS".to_owned(), vec!["shop-db (the gateway)".to_owned()]);
        case(
            &Refusal::RequestedOutside { address, by: by.clone(), pools },
            100,
            "requested address 10.0.0.1 is in no pool that may be used; asked for by CNI_ARGS; pools: shop-db (the gateway)",
        );
        case(
            &Refusal::RequestedTaken { address, by, reason: "shop/db-1 has it".into() },
            100,
            "requested address 10.0.0.1 is not free; shop/db-1 has it; asked for by CNI_ARGS",
        );
        case(&Refusal::Check("there is no lease".into()), 101, "there is no lease");
    }
}
