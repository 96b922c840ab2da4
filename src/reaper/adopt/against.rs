//! The audit of a store against the pods that run: `leasehold check --against-pods`.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use super::{super::Step, AdoptError, Claim, Found, Kind, Wanted, identify, plan::plan, runs};
use crate::{
    admin::read::{Contents, read_everything},
    domain::{
        addr::Family,
        kubernetes::{Pod, PodKey},
        lease::{Holder, Lease},
    },
    pods::Cluster,
    store::{Revision, Store},
};

/// How store and pods differ, in one word that does not change.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Trouble {
    /// A pod runs with an address that nobody has: it may be given to another.
    WithoutLease,
    /// A pod runs with an address that is kept for it, as if no sandbox used it.
    Held,
    /// A pod runs with an address that it cannot be given.
    Conflict(Kind),
    /// A lease is bound, and its pod does not exist.
    WithoutPod,
}

impl Trouble {
    /// The word in tables and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WithoutLease => "pod-without-lease",
            Self::Held => "held-of-running-pod",
            Self::Conflict(kind) => kind.as_str(),
            Self::WithoutPod => "lease-without-pod",
        }
    }

    /// Is an address in use twice, or may it be? Else somebody should look, and nothing is in danger.
    #[must_use]
    pub const fn is_danger(self) -> bool {
        match self {
            Self::WithoutLease => true,
            Self::Conflict(kind) => match kind {
                Kind::Leased
                | Kind::Device
                | Kind::Declined
                | Kind::TwoPods
                | Kind::OtherAddress
                | Kind::NotServed
                | Kind::HalfPair
                | Kind::Unreadable => true,
                Kind::Outside | Kind::Network | Kind::NoPod => false,
            },
            Self::Held | Self::WithoutPod => false,
        }
    }
}

/// One difference.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Difference {
    /// In one word.
    pub trouble: Trouble,
    /// Whose.
    pub pod: PodKey,
    /// The address.
    pub address: IpAddr,
    /// Who and why.
    pub why: String,
    /// What to do.
    pub hint: String,
}

/// The audit.
#[derive(Clone, Debug)]
pub struct Against {
    /// The revision at which the store was read last.
    pub revision: Revision,
    /// How many pods were listed that it is about.
    pub pods: usize,
    /// How many of their addresses concern a pool.
    pub compared: usize,
    /// How many of their addresses have their lease.
    pub leased: usize,
    /// The differences, by address.
    pub differences: Vec<Difference>,
}

/// Audits. What differs is looked at twice, before and after the pods were listed: a pod that was just made or has
/// just ended is no difference.
///
/// # Errors
/// [`AdoptError`]: store or pods could not be read in full, or it is another cluster.
pub async fn against<S: Store, K: Cluster>(
    store: &S,
    api: &K,
    wanted: &Wanted<'_>,
    progress: &(dyn Fn(Step) + Sync),
) -> Result<Against, AdoptError> {
    let contents = read_everything(store).await?;
    identify(api, &contents, wanted.cluster).await?;
    let pods = api.pods(&|count| progress(Step::Pods(count))).await?.items;
    let asked = pods.iter().filter(|pod| wanted.takes(&pod.key)).count();
    let mut out = compare(&contents, &pods, wanted);
    out.pods = asked;
    if !out.differences.is_empty() {
        let contents = read_everything(store).await?;
        let again = compare(&contents, &pods, wanted);
        let key = |d: &Difference| (d.trouble, d.pod.clone(), d.address);
        let before: HashSet<_> = out.differences.iter().map(key).collect();
        out = Against { pods: asked, ..again };
        out.differences.retain(|d| before.contains(&key(d)));
    }
    Ok(out)
}

fn compare(contents: &Contents, pods: &[Pod], wanted: &Wanted<'_>) -> Against {
    let claims = plan(contents, pods, &[], wanted);
    let leased = claims.iter().filter(|claim| is_leased(&claim.found)).count();
    let by_key: HashMap<&PodKey, &Pod> = pods.iter().map(|pod| (&pod.key, pod)).collect();
    // Its DEL may have come, while the pod is still going.
    let goes = |claim: &Claim| by_key.get(&claim.pod).is_none_or(|pod| pod.deleting.is_some());
    let mut out: Vec<Difference> = claims
        .iter()
        .filter(|claim| !(matches!(claim.found, Found::Held(_)) && goes(claim)))
        .filter_map(of_claim)
        .collect();
    for lease in contents.everything.leases.iter().filter(|lease| lease.id.cluster == *wanted.cluster) {
        let Holder::Pod { namespace, name } = &lease.id.holder else { continue };
        let key = PodKey { namespace: namespace.clone(), name: name.clone() };
        let asked = wanted.takes(&key) && wanted.network.is_none_or(|only| *only == lease.id.network);
        if !asked || lease.bound().is_none() {
            continue;
        }
        match by_key.get(&key) {
            None => out.extend(without_pod(lease, &key)),
            Some(pod) => out.extend(elsewhere(lease, pod)),
        }
    }
    out.sort_by(|a, b| {
        (a.address.is_ipv6(), a.address, &a.pod, a.trouble).cmp(&(
            b.address.is_ipv6(),
            b.address,
            &b.pod,
            b.trouble,
        ))
    });
    out.dedup_by(|a, b| (a.address, &a.pod, a.trouble) == (b.address, &b.pod, b.trouble));
    Against {
        revision: contents.revision,
        pods: pods.len(),
        compared: claims.len(),
        leased,
        differences: out,
    }
}

fn is_leased(found: &Found) -> bool {
    matches!(found, Found::Leased(_) | Found::Held(_))
}

fn of_claim(claim: &Claim) -> Option<Difference> {
    let (trouble, why, hint) = match &claim.found {
        Found::Leased(_) => return None,
        Found::Held(_) => {
            let why = "runs with it, and its lease is kept as if it did not".to_owned();
            (Trouble::Held, why, "leasehold adopt".to_owned())
        }
        Found::Free => {
            let network = claim.network.as_ref().map_or_else(String::new, |n| format!(" on {n}"));
            let why = format!("runs with it{network} and has no lease");
            (Trouble::WithoutLease, why, "leasehold adopt".to_owned())
        }
        Found::Conflict(conflict) => {
            (Trouble::Conflict(conflict.kind), conflict.why.clone(), conflict.hint.clone())
        }
    };
    Some(Difference { trouble, pod: claim.pod.clone(), address: claim.address, why, hint })
}

fn without_pod<'a>(lease: &'a Lease, pod: &'a PodKey) -> impl Iterator<Item = Difference> + 'a {
    let on = lease.bound().map_or_else(String::new, |stamp| format!(" on node {}", stamp.node));
    lease.addresses.iter().map(move |leased| Difference {
        trouble: Trouble::WithoutPod,
        pod: pod.clone(),
        address: leased.address,
        why: format!("is bound{on}, and there is no such pod"),
        hint: "`leasehold reap --dry-run` says when it is given back".into(),
    })
}

/// The pod shows addresses on the lease's attachment, and the lease has another one of that family.
fn elsewhere<'a>(lease: &'a Lease, pod: &'a Pod) -> impl Iterator<Item = Difference> + 'a {
    let same = |(network, ifname): &(String, String)| {
        let last = network.rsplit_once('/').map_or(network.as_str(), |(_, name)| name);
        let wanted = lease.id.network.as_str();
        (network == wanted || last == wanted) && ifname == lease.id.ifname.as_str()
    };
    let shown: Vec<IpAddr> = pod
        .addresses
        .iter()
        .filter(|shown| shown.attachment.as_ref().is_some_and(same))
        .map(|shown| shown.address)
        .collect();
    let alive = runs(pod);
    lease.addresses.iter().filter_map(move |leased| {
        let family = Family::of(leased.address);
        let others: Vec<IpAddr> = shown.iter().copied().filter(|a| Family::of(*a) == family).collect();
        let other = others.first().copied()?;
        (alive && !others.contains(&leased.address)).then(|| Difference {
            trouble: Trouble::Conflict(Kind::OtherAddress),
            pod: pod.key.clone(),
            address: other,
            why: format!("its lease on {} has {}", lease.id.network, leased.address),
            hint: format!("restart the pod, or `leasehold lease release {}` and adopt", pod.key),
        })
    })
}
