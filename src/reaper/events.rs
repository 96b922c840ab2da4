//! What a pass tells the people of the cluster, as Events: what is worth an Event, and in which words.
//!
//! Deciding that is pure. Recording is best effort: an Event that the API does not take is a trouble, never an end.

use std::collections::{BTreeMap, HashMap};

use tokio::time::{Duration, Instant};

use super::{Fate, Ignored, Report};
use crate::{
    admin::pools::PoolRow,
    domain::{
        kubernetes::{IP_WISH, POOL_WISH, Pod, STICKY_WISH},
        lease::{Holder, Lease},
        names::{ClusterName, Namespace},
        pool::{Pool, Serve},
    },
    pods::{About, ApiError, Cluster, Event},
};

/// Addresses that one Event names.
const NAMED: usize = 10;
/// Pods that one pass tells that their annotations did not arrive.
const MOST_IGNORED: usize = 20;
/// What goes on is told again after so long: Events live for an hour.
const AGAIN: Duration = Duration::from_secs(3600);
/// What was told and is remembered.
const MOST_TOLD: usize = 4096;

const GIVEN_BACK: &str = "AddressesGivenBack";

/// The Events of a pass. `home` is the reaper's own namespace.
#[must_use]
pub fn events(report: &Report, pools: &[PoolRow], cluster: &ClusterName, home: &Namespace) -> Vec<Event> {
    let mut events: Vec<Event> = report
        .brakes
        .iter()
        .map(|brake| Event {
            about: About::Namespace(home.clone()),
            warning: true,
            reason: "BrakeFired",
            message: format!(
                "brake {}: leasehold gives back nothing of cluster {cluster}, or not all: {brake}",
                brake.label()
            ),
        })
        .collect();
    events.extend(given_back(report));
    for row in pools {
        if let Some(pool) = &row.pool {
            events.extend(full(row, pool, cluster, home));
        }
    }
    events.extend(report.ignored.iter().take(MOST_IGNORED).map(|ignored| Event {
        about: About::Pod(ignored.pod.clone(), ignored.uid.clone()),
        warning: true,
        reason: "AnnotationIgnored",
        message: ignored.why.clone(),
    }));
    merged(events)
}

/// Between the messages of one Event.
const AND: &str = " | ";

/// One Event a thing and reason: the API server counts a second one up, and would show its words alone.
fn merged(events: Vec<Event>) -> Vec<Event> {
    let mut merged: Vec<Event> = Vec::new();
    for event in events {
        match merged.iter_mut().find(|old| old.about == event.about && old.reason == event.reason) {
            Some(old) => old.message = format!("{}{AND}{}", old.message, event.message),
            None => merged.push(event),
        }
    }
    merged
}

/// What tells an Event from one that says the same with other figures.
fn subject(event: &Event) -> String {
    let heads: Vec<&str> =
        event.message.split(AND).map(|text| text.split(':').next().unwrap_or_default()).collect();
    format!("{} {}", event.reason, heads.join(AND))
}

/// One Event a namespace.
fn given_back(report: &Report) -> Vec<Event> {
    let mut by_namespace: BTreeMap<&Namespace, Vec<String>> = BTreeMap::new();
    for judged in report.judged.iter().filter(|judged| judged.fate == Fate::GivenBack) {
        let Holder::Pod { namespace, name } = &judged.id.holder else { continue };
        let addresses: Vec<String> = judged.addresses.iter().map(ToString::to_string).collect();
        by_namespace.entry(namespace).or_default().push(format!(
            "{} of {name} ({})",
            addresses.join(" and "),
            judged.why
        ));
    }
    let event = |(namespace, texts): (&Namespace, Vec<String>)| {
        let more = match texts.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let named = texts.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        Event {
            about: About::Namespace(namespace.clone()),
            warning: false,
            reason: GIVEN_BACK,
            message: format!("{} given back: {named}{more}", texts.len()),
        }
    };
    by_namespace.into_iter().map(event).collect()
}

/// In each namespace that the pool serves by name, else in the reaper's own.
fn full(row: &PoolRow, pool: &Pool, cluster: &ClusterName, home: &Namespace) -> Vec<Event> {
    let counts = &row.counts;
    let ours = pool.clusters().is_empty() || pool.clusters().contains(cluster);
    if counts.size == 0 || counts.free > 0 || !ours {
        return Vec::new();
    }
    let mut namespaces: Vec<&Namespace> = pool
        .serves()
        .iter()
        .filter_map(|serve| match serve {
            Serve::Workload(namespace, _) | Serve::Namespace(namespace) => Some(namespace),
            Serve::Everything => None,
        })
        .collect();
    namespaces.sort();
    namespaces.dedup();
    if namespaces.is_empty() {
        namespaces.push(home);
    }
    let mut parts = vec![format!("{} bound", counts.bound), format!("{} held", counts.held)];
    for (count, what) in [
        (counts.reserved, "reserved"),
        (counts.cooling, "cooling down"),
        (counts.declined, "used by strangers"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    let message = format!(
        "pool {} is full: {} of {} addresses are in use ({}); a new pod gets none. Give it another range (`leasehold pool show {} -o yaml`, then `pool apply`), or scale down; `leasehold lease list --pool {}` shows who has them",
        row.name,
        counts.size - counts.free,
        counts.size,
        parts.join(", "),
        row.name,
        row.name,
    );
    let event = |namespace: &Namespace| Event {
        about: About::Namespace(namespace.clone()),
        warning: true,
        reason: "PoolFull",
        message: message.clone(),
    };
    namespaces.into_iter().map(event).collect()
}

/// A pod's annotation that none of its leases follows; `rules`: a pool of them rules on stickiness, whatever is asked.
pub(super) fn contradiction(pod: &Pod, leases: &[&Lease], rules: bool) -> Option<Ignored> {
    let addresses = || leases.iter().flat_map(|lease| &lease.addresses);
    let (wish, value, found) = pod.wishes.iter().find_map(|(wish, value)| {
        let value = value.trim();
        let found = match wish.as_str() {
            POOL_WISH if !value.is_empty() => {
                let pools: Vec<&str> =
                    addresses().map(|leased| leased.pool.as_ref().map_or("", |pool| pool.as_str())).collect();
                (!value.split(',').any(|name| pools.contains(&name.trim()))).then(|| {
                    format!("its pool is {}", pools.first().filter(|p| !p.is_empty()).unwrap_or(&"none"))
                })
            }
            IP_WISH if !value.is_empty() => {
                let asked = value.split(',').map(|text| text.trim().split('/').next().unwrap_or_default());
                let asked: Vec<std::net::IpAddr> = asked.filter_map(|text| text.parse().ok()).collect();
                let all = asked.iter().all(|ip| addresses().any(|leased| leased.address == *ip));
                (!all).then(|| {
                    let has: Vec<String> = addresses().map(|leased| leased.address.to_string()).collect();
                    format!("it has {}", has.join(", "))
                })
            }
            STICKY_WISH if !rules => {
                let asked = match value {
                    "true" => true,
                    "false" => false,
                    _ => return None,
                };
                let is = leases.iter().any(|lease| lease.sticky == asked);
                (!is).then(|| format!("its lease is {}sticky", if asked { "not " } else { "" }))
            }
            _ => None,
        };
        found.map(|found| (wish.clone(), value.to_owned(), found))
    })?;
    let argument = match wish.as_str() {
        POOL_WISH => "pool",
        IP_WISH => "ips",
        _ => "sticky",
    };
    Some(Ignored {
        pod: pod.key.clone(),
        uid: pod.uid.clone(),
        why: format!(
            "annotation {wish}: {value} did not reach leasehold: {found}. Multus and cri-dockerd do not pass annotations on: ask by `cni-args` ({argument}) in k8s.v1.cni.cncf.io/networks. With containerd or CRI-O the network needs the capability io.kubernetes.cri.pod-annotations. If the annotation is younger than the pod, delete the pod"
        ),
    })
}

/// Records Events, and remembers what it told.
#[derive(Debug)]
pub struct Teller {
    home: Namespace,
    told: HashMap<(About, String), Instant>,
}

impl Teller {
    /// A reaper's, in its own namespace.
    #[must_use]
    pub fn new(home: Namespace) -> Self {
        Self { home, told: HashMap::new() }
    }

    /// The Events of a pass, without what was told within the hour. Gives what the API did not take: why.
    pub async fn tell<K: Cluster>(
        &mut self,
        api: &K,
        report: &Report,
        pools: &[PoolRow],
        cluster: &ClusterName,
    ) -> Option<String> {
        let mut trouble = None;
        for event in events(report, pools, cluster, &self.home) {
            let key = (event.about.clone(), subject(&event));
            let again = self.told.get(&key).is_none_or(|at| at.elapsed() >= AGAIN);
            if event.reason != GIVEN_BACK && !again {
                continue;
            }
            match self.record(api, event).await {
                Ok(()) => {
                    if self.told.len() >= MOST_TOLD {
                        self.told.clear();
                    }
                    self.told.insert(key, Instant::now());
                }
                Err(error) => {
                    let unheard =
                        matches!(error, ApiError::NotReached { .. } | ApiError::Unauthorized { .. });
                    trouble.get_or_insert_with(|| format!("an Event was not recorded: {error}"));
                    // The others would wait as long for the same answer.
                    if unheard {
                        break;
                    }
                }
            }
        }
        trouble
    }

    /// A namespace that is gone, or going, takes no Event: what is to be said of it stands in the reaper's own then.
    async fn record<K: Cluster>(&self, api: &K, event: Event) -> Result<(), ApiError> {
        let error = match api.record(&event).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        match (&event.about, &error) {
            (About::Namespace(namespace), ApiError::Answer { .. } | ApiError::Forbidden { .. })
                if *namespace != self.home =>
            {
                let message = format!("namespace {namespace}: {}", event.message);
                let about = About::Namespace(self.home.clone());
                api.record(&Event { about, message, ..event }).await.map_err(|_| error)
            }
            // The pod ended meanwhile, and its namespace with it.
            (About::Namespace(_) | About::Pod(..), _) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::domain::{
        kubernetes::{Finished, Phase, PodKey},
        lease::{Binding, LeaseId, LeasedAddress, Timestamp},
        names::{DomainName, IfName, NetworkName, PodName, PoolName, Uid},
    };

    fn lease(pool: Option<&str>, address: &str, sticky: bool) -> Lease {
        Lease {
            id: LeaseId {
                cluster: ClusterName::new("prod").unwrap(),
                holder: Holder::Pod {
                    namespace: Namespace::new("shop").unwrap(),
                    name: PodName::new("a").unwrap(),
                },
                network: NetworkName::new("lan").unwrap(),
                ifname: IfName::new("eth0").unwrap(),
            },
            addresses: vec![LeasedAddress {
                address: address.parse().unwrap(),
                domain: DomainName::new("default").unwrap(),
                pool: pool.map(|pool| PoolName::new(pool).unwrap()),
            }],
            binding: Binding::Idle(None),
            since: Timestamp(0),
            created: Timestamp(0),
            sticky,
            reserved: false,
            unconfirmed: false,
            seen: None,
        }
    }

    #[track_caller]
    fn case(wish: &str, value: &str, rules: bool, expected: Option<&str>) {
        let pod = Pod {
            key: PodKey { namespace: Namespace::new("shop").unwrap(), name: PodName::new("a").unwrap() },
            uid: Uid::new("u").unwrap(),
            node: None,
            phase: Phase::Running,
            deleting: None,
            finished: Finished::Unsaid,
            created: Timestamp(0),
            mirror: None,
            controller: None,
            host_network: false,
            wishes: vec![(format!("leasehold.io/{wish}"), value.into())],
            addresses: Vec::new(),
        };
        let (one, two) = (lease(Some("lan"), "10.0.0.1", false), lease(Some("db"), "10.0.0.2", false));
        let found = contradiction(&pod, &[&one, &two], rules).map(|ignored| ignored.why);
        let expected =
            expected.map(|text| format!("leasehold.io/{wish}: {value} did not reach leasehold: {text}."));
        match (found, expected) {
            (Some(found), Some(expected)) => assert!(found.contains(&expected), "{found}\n{expected}"),
            (found, expected) => assert_eq!(found, expected),
        }
    }

    #[test]
    fn an_annotation_that_one_of_the_leases_follows_has_arrived() {
        case("pool", "lan", false, None);
        case("pool", " db ", false, None);
        case("pool", "web, lan", false, None);
        case("pool", "web", false, Some("its pool is lan"));
        case("ip", "10.0.0.2", false, None);
        case("ip", "10.0.0.1/24, 10.0.0.2", false, None);
        case("ip", "10.0.0.3", false, Some("it has 10.0.0.1, 10.0.0.2"));
        case("ip", "what", false, None);
        case("sticky", "false", false, None);
        case("sticky", "true", false, Some("its lease is not sticky"));
        case("sticky", "true", true, None);
        case("colour", "red", false, None);
    }
}
