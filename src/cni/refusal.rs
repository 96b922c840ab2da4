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
        Refusal::Contention { conflicts } => failure(
            Code::TryAgain,
            format!("could not commit before the deadline, {conflicts} conflicts"),
            "others were faster each time; the pool is not full",
        ),
        Refusal::NewerSandbox { container, node, why } => failure(
            Code::TryAgain,
            "a newer sandbox of this pod has its lease",
            format!("container {container} on node {node}: {why}"),
        ),
        Refusal::OtherHolder { container, holder } => failure(
            Code::TryAgain,
            format!("container {container} has an address on this interface, leased to {holder}"),
            "one attachment has one lease: DEL it first",
        ),
        Refusal::StillAnswers { address, mac, node } => {
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
