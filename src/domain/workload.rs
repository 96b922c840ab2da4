//! Which workloads a pod may belong to, by its name alone. The name is only looked up, never guessed: every
//! candidate is a key of the index of the pools' `serves`, and the longest that exists counts.
//!
//! Source of the alphabets: `k8s.io/apimachinery/pkg/util/rand` (`bcdfghjklmnpqrstvwxz2456789`) and its
//! `SafeEncodeString` of a template hash, whose input is decimal digits (`456789bcdf`).

use super::names::{PodName, WorkloadName};

/// What `rand.String` draws a pod's suffix from.
const SUFFIX: &str = "bcdfghjklmnpqrstvwxz2456789";
/// What `SafeEncodeString` of a number, a ReplicaSet's template hash, is made of.
const HASH: &str = "456789bcdf";
/// Letters of a generated suffix.
const SUFFIX_LENGTH: usize = 5;
/// Characters that Kubernetes leaves of a name before a suffix: 63 less the suffix.
const CUT_LENGTH: usize = 58;
/// A template hash is the decimal of 32 bits: 1 to 10 characters.
const HASH_LENGTH: usize = 10;

/// The workloads that a pod of this name may belong to, longest first, its own name included.
///
/// 1. the pod's name;
/// 2. without its last part, if that is a number or a generated suffix;
/// 3. if it was a generated suffix: without the part before it, if that is a number or a template hash;
/// 4. and without one more number before that (a CronJob's Job).
#[must_use]
pub fn candidates(pod: &PodName) -> Vec<WorkloadName> {
    let mut names = Vec::with_capacity(4);
    let mut add = |name: &str| names.extend(WorkloadName::new(name).ok());
    add(pod.as_str());
    let Some((rest, last)) = cut(pod.as_str()) else { return names };
    if !is_number(last) && !is_suffix(last) {
        return names;
    }
    add(rest);
    if !is_suffix(last) {
        return names;
    }
    let Some((rest, before)) = cut(rest) else { return names };
    if !is_number(before) && !is_hash(before) {
        return names;
    }
    add(rest);
    if let Some((rest, number)) = cut(rest)
        && is_number(number)
    {
        add(rest);
    }
    names
}

/// Does the name end in a suffix that Kubernetes generated? Such a pod does not come back under its name.
///
/// Of a long name Kubernetes leaves 58 characters before the suffix, and may cut the dash.
#[must_use]
pub fn has_random_suffix(pod: &PodName) -> bool {
    let name = pod.as_str();
    let cut_off = name.len() == CUT_LENGTH + SUFFIX_LENGTH && name.get(CUT_LENGTH..).is_some_and(is_suffix);
    cut_off || cut(name).is_some_and(|(_, last)| is_suffix(last))
}

/// The ordinal of a StatefulSet's pod and the name before it; `None` if the name does not end in a number.
/// A generated suffix that is all digits is no ordinal.
#[must_use]
pub fn ordinal(pod: &PodName) -> Option<(&str, u32)> {
    let (rest, last) = cut(pod.as_str())?;
    if has_random_suffix(pod) || !is_number(last) {
        return None;
    }
    last.parse().ok().map(|ordinal| (rest, ordinal))
}

fn cut(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('-').filter(|(rest, last)| !rest.is_empty() && !last.is_empty())
}

fn is_number(part: &str) -> bool {
    part.bytes().all(|b| b.is_ascii_digit())
}

fn is_suffix(part: &str) -> bool {
    part.len() == SUFFIX_LENGTH && part.chars().all(|c| SUFFIX.contains(c))
}

fn is_hash(part: &str) -> bool {
    part.len() <= HASH_LENGTH && part.chars().all(|c| HASH.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn case(pod: &str, wanted: &[&str]) {
        let found = candidates(&PodName::new(pod).unwrap());
        assert_eq!(found.iter().map(WorkloadName::as_str).collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn every_kind_of_pod_finds_its_workload() {
        case("db-0", &["db-0", "db"]);
        case("db-shard-12", &["db-shard-12", "db-shard"]);
        case("web-7d9c4f6b5d-x7k2p", &["web-7d9c4f6b5d-x7k2p", "web-7d9c4f6b5d", "web"]);
        case("agent-x7k2p", &["agent-x7k2p", "agent"]);
        case("nightly-28765432-x7k2p", &["nightly-28765432-x7k2p", "nightly-28765432", "nightly"]);
        case("ix-3-x7k2p", &["ix-3-x7k2p", "ix-3", "ix"]);
        case("cron-28765432-3-x7k2p", &["cron-28765432-3-x7k2p", "cron-28765432-3", "cron-28765432", "cron"]);
        case("bare", &["bare"]);
        case("bare-pod", &["bare-pod"]);
        case("etcd-node1", &["etcd-node1"]);
    }

    #[test]
    fn five_safe_digits_are_a_suffix() {
        case("db-22456", &["db-22456", "db"]);
        assert!(has_random_suffix(&PodName::new("db-22456").unwrap()));
        assert_eq!(ordinal(&PodName::new("db-22456").unwrap()), None);
        assert_eq!(ordinal(&PodName::new("db-10").unwrap()), Some(("db", 10)));
    }
}
