//! What pods say that they have, held against what the store says: a pure function of both. Nothing is guessed: what
//! could be two things is shown, and left to a person.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use super::{Told, Wanted};
use crate::{
    admin::{leases::closeness, read::Contents},
    domain::{
        addr::Family,
        audit::{Place, Subject},
        kubernetes::{Pod, PodKey, STICKY_WISH},
        lease::{AddressHolder, Binding, Holder, Lease, LeaseId, LeasedAddress, Seen, Timestamp},
        names::{ClusterName, IfName, NetworkName, PoolName},
        pool::{Networks, Pool, Serve},
        select::is_sticky,
        workload,
    },
    store::{Compare, Txn, changes, keys},
};

/// The interface of a pod's own network.
const FIRST_INTERFACE: &str = "eth0";

/// What becomes of a half pair.
const MENDS: &str =
    "the next full pass of the reaper mends it, `leasehold check --repair` at once; then adopt again";

/// An address that a pod runs with, or is said to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Claim {
    /// Whose it is.
    pub pod: PodKey,
    /// The address.
    pub address: IpAddr,
    /// The CNI network, as far as it can be told.
    pub network: Option<NetworkName>,
    /// The interface in the pod.
    pub ifname: IfName,
    /// The pool that gives the address out to this pod, and where the address is unique.
    pub from: Option<LeasedAddress>,
    /// What the store says of it.
    pub found: Found,
}

impl Claim {
    /// The lease that lists it, or would.
    pub(crate) fn lease(&self, cluster: &ClusterName) -> Option<LeaseId> {
        if let Found::Leased(id) | Found::Held(id) = &self.found {
            return Some(id.clone());
        }
        let holder = Holder::Pod { namespace: self.pod.namespace.clone(), name: self.pod.name.clone() };
        let network = self.network.clone()?;
        Some(LeaseId { cluster: cluster.clone(), holder, network, ifname: self.ifname.clone() })
    }
}

/// What the store says of an address that a pod runs with.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Found {
    /// The pod has it.
    Leased(LeaseId),
    /// It is kept for the pod, as if no sandbox used it.
    Held(LeaseId),
    /// Nobody has it.
    Free,
    /// It cannot be given to the pod.
    Conflict(Conflict),
}

/// Why an address cannot be given to the pod that runs with it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Conflict {
    /// In one word.
    pub kind: Kind,
    /// Who, and why.
    pub why: String,
    /// What to do.
    pub hint: String,
}

/// Why, in one word that does not change.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// Another pod has the lease.
    Leased,
    /// It is reserved for a device.
    Device,
    /// A stranger answered on it.
    Declined,
    /// Two pods run with it.
    TwoPods,
    /// The pod has a lease on this network, with another address.
    OtherAddress,
    /// No pool that holds it serves the pod.
    NotServed,
    /// It is in the subnet of a pool of this network, and the pool does not give it out.
    Outside,
    /// Nobody can tell the CNI network.
    Network,
    /// The store has half of a pair of records.
    HalfPair,
    /// A record cannot be read.
    Unreadable,
    /// There is no such pod, or it does not run.
    NoPod,
}

impl Kind {
    /// The word in tables and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Leased => "leased-to-another",
            Self::Device => "device",
            Self::Declined => "declined",
            Self::TwoPods => "two-pods",
            Self::OtherAddress => "other-address",
            Self::NotServed => "not-served",
            Self::Outside => "outside",
            Self::Network => "network-unknown",
            Self::HalfPair => "half-pair",
            Self::Unreadable => "unreadable",
            Self::NoPod => "no-pod",
        }
    }
}

/// Does a sandbox of it have addresses? One that has ended has none soon, and the host's addresses are not the pod's.
pub(crate) fn runs(pod: &Pod) -> bool {
    !pod.host_network && !pod.phase.is_final() && pod.node.is_some()
}

/// What a pod, or a line of a person, says.
struct Said<'a> {
    pod: &'a PodKey,
    /// `None`: no such pod runs.
    runs: Option<&'a Pod>,
    address: IpAddr,
    /// The network in the words of its source: a CNI network, or `namespace/name` of an attachment definition.
    network: Option<&'a str>,
    ifname: IfName,
}

/// Holds them against each other. Sorted by address; what is in no pool's subnet is nobody's business here.
pub(crate) fn plan(contents: &Contents, pods: &[Pod], told: &[Told], wanted: &Wanted<'_>) -> Vec<Claim> {
    let desk = Desk::new(contents, pods, wanted);
    let mut claims: Vec<Claim> = said(pods, told).into_iter().filter_map(|said| desk.claim(said)).collect();
    two_pods(&mut claims);
    two_of_a_family(&mut claims);
    claims.retain(|claim| wanted.namespace.is_none_or(|only| claim.pod.namespace == *only));
    claims.sort_by(|a, b| {
        (a.address.is_ipv6(), a.address, &a.pod).cmp(&(b.address.is_ipv6(), b.address, &b.pod))
    });
    claims
}

fn said<'a>(pods: &'a [Pod], told: &'a [Told]) -> Vec<Said<'a>> {
    let eth0 = || IfName::new(FIRST_INTERFACE);
    let mut out = Vec::new();
    let by_key: HashMap<&PodKey, &Pod> = pods.iter().map(|pod| (&pod.key, pod)).collect();
    for line in told {
        let runs = by_key.get(&line.pod).copied().filter(|pod| runs(pod));
        let Some(ifname) = line.ifname.clone().or_else(|| eth0().ok()) else { continue };
        let network = line.network.as_ref().map(NetworkName::as_str);
        out.push(Said { pod: &line.pod, runs, address: line.address, network, ifname });
    }
    // A line says more of an address than the API does.
    let by_line: HashSet<(&PodKey, IpAddr)> = told.iter().map(|line| (&line.pod, line.address)).collect();
    for pod in pods.iter().filter(|pod| runs(pod)) {
        // `status.podIPs` has the first network's addresses once more, without its name.
        let named: HashSet<IpAddr> = pod
            .addresses
            .iter()
            .filter(|address| address.attachment.is_some())
            .map(|address| address.address)
            .collect();
        for address in &pod.addresses {
            if by_line.contains(&(&pod.key, address.address))
                || address.attachment.is_none() && named.contains(&address.address)
            {
                continue;
            }
            let network = address.attachment.as_ref().map(|(network, _)| network.as_str());
            let ifname = address.attachment.as_ref().and_then(|(_, ifname)| IfName::new(ifname.clone()).ok());
            let Some(ifname) = ifname.or_else(|| eth0().ok()) else { continue };
            let said = Said { pod: &pod.key, runs: Some(pod), address: address.address, network, ifname };
            out.push(said);
        }
    }
    out
}

/// The store, laid out for questions.
struct Desk<'a> {
    wanted: &'a Wanted<'a>,
    pools: Vec<&'a Pool>,
    serves: BTreeSet<Serve>,
    held: HashMap<&'a Place, &'a AddressHolder>,
    leases: HashMap<&'a LeaseId, &'a Lease>,
    listed: HashMap<(&'a crate::domain::names::DomainName, IpAddr), &'a LeaseId>,
    declined: HashMap<&'a Place, &'a str>,
    unreadable: HashMap<&'a Subject, &'a str>,
    pods: HashSet<&'a PodKey>,
}

impl<'a> Desk<'a> {
    fn new(contents: &'a Contents, pods: &'a [Pod], wanted: &'a Wanted<'a>) -> Self {
        let all = &contents.everything;
        let declined = |(place, released): &'a (Place, crate::domain::lease::Released)| {
            released.declined.as_ref().map(|declined| (place, declined.mac.as_str()))
        };
        Self {
            wanted,
            pools: all
                .pools
                .iter()
                .filter(|pool| wanted.domain.is_none_or(|only| pool.domain() == only))
                .filter(|pool| pool.clusters().is_empty() || pool.clusters().contains(wanted.cluster))
                .collect(),
            serves: all.pools.iter().flat_map(|pool| pool.serves().iter().cloned()).collect(),
            held: all.addresses.iter().map(|(place, holder)| (place, holder)).collect(),
            leases: all.leases.iter().map(|lease| (&lease.id, lease)).collect(),
            listed: all
                .leases
                .iter()
                .flat_map(|lease| lease.addresses.iter().map(move |a| ((&a.domain, a.address), &lease.id)))
                .collect(),
            declined: all.released.iter().filter_map(declined).collect(),
            unreadable: all.unreadable.iter().map(|r| (&r.subject, r.reason.as_str())).collect(),
            pods: pods.iter().map(|pod| &pod.key).collect(),
        }
    }

    fn claim(&self, said: Said<'_>) -> Option<Claim> {
        let mut claim = Claim {
            pod: said.pod.clone(),
            address: said.address,
            network: None,
            ifname: said.ifname.clone(),
            from: None,
            found: Found::Free,
        };
        if said.runs.is_none() {
            claim.network = said.network.and_then(|name| NetworkName::new(name.to_owned()).ok());
            let why = format!("pod {} does not run, or there is none", said.pod);
            claim.found = conflict(Kind::NoPod, why, "take the line out of the file");
            return Some(claim);
        }
        let holder = Holder::Pod { namespace: said.pod.namespace.clone(), name: said.pod.name.clone() };
        match self.pool_for(&holder, &said) {
            Source::None => return None,
            Source::Not(not) => claim.found = Found::Conflict(not),
            Source::Pool(pool, network) => {
                let id = LeaseId {
                    cluster: self.wanted.cluster.clone(),
                    holder,
                    network: network.clone(),
                    ifname: said.ifname,
                };
                let domain = pool.domain().clone();
                claim.found = self.state(&id, &Place { domain: domain.clone(), address: said.address });
                claim.network = Some(network);
                claim.from =
                    Some(LeasedAddress { address: said.address, domain, pool: Some(pool.name().clone()) });
            }
        }
        Some(claim)
    }

    /// The pool out of which the pod has its address, and the CNI network.
    fn pool_for(&self, holder: &Holder, said: &Said<'_>) -> Source<'a> {
        let mut fit: Vec<(u8, u32, &PoolName, &'a Pool, NetworkName)> = Vec::new();
        let mut not_served = Vec::new();
        let mut outside = Vec::new();
        let mut unknown: Vec<String> = Vec::new();
        let inside = |pool: &&&Pool| pool.ranges().iter().any(|r| r.subnet().contains(said.address));
        for pool in self.pools.iter().filter(inside) {
            let network = self.network(pool, said.network);
            if matches!(network, On::Another) {
                continue;
            }
            if pool.range_of(said.address).is_none() {
                // Without a name it is as well an address of another network, or of another plugin.
                if matches!(network, On::This(_)) && (said.network.is_some() || self.wanted.network.is_some())
                {
                    outside.push(format!("pool {}", pool.name()));
                }
                continue;
            }
            let Some(close) = closeness(pool, holder, &self.serves) else {
                not_served.push(format!("pool {}", pool.name()));
                continue;
            };
            match network {
                On::This(network) => fit.push((close, pool.priority(), pool.name(), pool, network)),
                // The pod's own lease says it.
                On::Unknown(why) => match self.lease_of(holder, pool, said.address) {
                    Some(id) => fit.push((close, pool.priority(), pool.name(), pool, id.network.clone())),
                    None => unknown.push(why),
                },
                On::Another => {}
            }
        }
        fit.sort_by(|a, b| (a.0, a.1, a.2).cmp(&(b.0, b.1, b.2)));
        let networks: BTreeSet<&NetworkName> = fit.iter().map(|fit| &fit.4).collect();
        if networks.len() > 1 {
            let names: Vec<&str> = networks.iter().map(|name| name.as_str()).collect();
            unknown.push(format!("pools of the networks {} have it", names.join(", ")));
            fit.clear();
        }
        if let Some((_, _, _, pool, network)) = fit.into_iter().next() {
            return Source::Pool(pool, network);
        }
        let address = said.address;
        if !unknown.is_empty() {
            let why = format!("the network is not known: {}", unknown.join("; "));
            return Source::Not(Conflict::new(Kind::Network, why, "say which: --network NAME"));
        }
        if !not_served.is_empty() {
            let why = format!("{} has {address} and does not serve {holder}", not_served.join(", "));
            let hint = "let a pool that has it serve the pod (`leasehold pool apply`), or restart the pod";
            return Source::Not(Conflict::new(Kind::NotServed, why, hint));
        }
        if !outside.is_empty() {
            let why = format!("{address} is not given out by {}", outside.join(", "));
            let hint = "nobody else gets it; the pod gets another one at its next start";
            return Source::Not(Conflict::new(Kind::Outside, why, hint));
        }
        Source::None
    }

    /// The lease of this pod that lists an address of a pool.
    fn lease_of(&self, holder: &Holder, pool: &Pool, address: IpAddr) -> Option<&'a LeaseId> {
        let listed = self.listed.get(&(pool.domain(), address)).copied();
        listed.filter(|id| id.cluster == *self.wanted.cluster && id.holder == *holder)
    }

    /// On which network of this pool an address is that is said to be on this one.
    fn network(&self, pool: &Pool, said: Option<&str>) -> On {
        // An attachment definition has the name of the network, mostly.
        let names = said.map(|said| (said, said.rsplit_once('/').map_or(said, |(_, name)| name)));
        let is_said = |network: &NetworkName| {
            names.is_some_and(|(whole, last)| network.as_str() == whole || network.as_str() == last)
        };
        let known = |network: &&NetworkName| is_said(network);
        let elsewhere = self.pools.iter().find_map(|pool| match pool.networks() {
            Networks::Named(names) => names.iter().find(known),
            Networks::Every => None,
        });
        if let Some(wanted) = self.wanted.network {
            let other = elsewhere.is_some_and(|network| network != wanted);
            let named = match pool.networks() {
                Networks::Named(names) => names.contains(wanted),
                Networks::Every => true,
            };
            return if named && !other { On::This(wanted.clone()) } else { On::Another };
        }
        match (pool.networks(), said, names) {
            (Networks::Named(all), Some(said), _) => match (all.iter().find(known), elsewhere) {
                (Some(network), _) => On::This(network.clone()),
                (None, Some(_)) => On::Another,
                (None, None) => On::Unknown(format!(
                    "the pod says {said}, pool {} names {}",
                    pool.name(),
                    all.iter().map(NetworkName::as_str).collect::<Vec<_>>().join(", ")
                )),
            },
            (Networks::Named(all), None, _) if all.len() == 1 => On::This(all[0].clone()),
            (Networks::Every, Some(said), Some((whole, _))) if said == whole && !said.contains('/') => {
                NetworkName::new(said.to_owned()).map_or_else(|e| On::Unknown(e.to_string()), On::This)
            }
            (Networks::Named(_) | Networks::Every, _, _) => {
                On::Unknown(format!("pool {} is for several networks", pool.name()))
            }
        }
    }

    /// What the store says of an address that this lease would list.
    fn state(&self, id: &LeaseId, place: &Place) -> Found {
        let address = place.address;
        let holder = &id.holder;
        let of_pod = |other: &LeaseId| other.cluster == id.cluster && other.holder == *holder;
        let show = format!("`leasehold lease show {address}` tells more");
        let listed = self.listed.get(&(&place.domain, address)).copied();
        let unreadable = |subject: &Subject| self.unreadable.get(subject).copied();
        match self.held.get(place) {
            Some(AddressHolder::Lease(other)) if listed == Some(other) && of_pod(other) => {
                let id = other.clone();
                let held =
                    self.leases.get(other).is_some_and(|lease| lease.found_running(lease.since).is_some());
                return if held { Found::Held(id) } else { Found::Leased(id) };
            }
            Some(AddressHolder::Lease(other)) if unreadable(&Subject::Lease(other.clone())).is_some() => {
                let why = format!("the lease of {other} cannot be read");
                return conflict(Kind::Unreadable, why, "`leasehold check` says why");
            }
            Some(AddressHolder::Lease(other)) if listed.is_none() => {
                let why = format!("the address is kept for {other}, which has no lease of it");
                return conflict(Kind::HalfPair, why, MENDS);
            }
            Some(AddressHolder::Lease(other)) => {
                let state = self.leases.get(other).map_or("?", |lease| lease.state().as_str());
                let where_ = self.leases.get(other).and_then(|lease| lease.bound());
                let where_ = where_.map_or_else(String::new, |stamp| format!(" on node {}", stamp.node));
                let cluster = if other.cluster == id.cluster {
                    String::new()
                } else {
                    format!(" of cluster {}", other.cluster)
                };
                let why = format!("{other}{cluster} has it ({state}{where_})");
                let gone = match &other.holder {
                    Holder::Pod { namespace, name } => {
                        let key = PodKey { namespace: namespace.clone(), name: name.clone() };
                        other.cluster == id.cluster && !self.pods.contains(&key)
                    }
                    Holder::Container(_) => false,
                };
                let hint = if gone {
                    let holder = &other.holder;
                    let lease = self.leases.get(other);
                    let needs = lease.is_none_or(|lease| lease.bound().is_some() || lease.is_adopted());
                    let force = if needs { " --force" } else { "" };
                    format!(
                        "there is no such pod: `leasehold lease release {holder}{force}`, then adopt again"
                    )
                } else {
                    format!("{show}; restart one of the two pods")
                };
                return conflict(Kind::Leased, why, &hint);
            }
            Some(AddressHolder::Device { reason, .. }) => {
                let why = format!("it is reserved for a device ({reason})");
                return conflict(
                    Kind::Device,
                    why,
                    &format!("{show}; restart the pod, or release the device's"),
                );
            }
            None => {}
        }
        if let Some(why) = unreadable(&Subject::Address(place.clone())) {
            let why = format!("its record cannot be read: {why}");
            return conflict(Kind::Unreadable, why, "`leasehold check` lists what cannot be read");
        }
        if let Some(other) = listed {
            let why = format!("the lease of {other} lists it, and its own record is missing");
            return conflict(Kind::HalfPair, why, MENDS);
        }
        if let Some(why) = unreadable(&Subject::Released(place.clone())) {
            let why = format!("its record cannot be read: {why}");
            return conflict(Kind::Unreadable, why, "`leasehold check` lists what cannot be read");
        }
        if let Some(mac) = self.declined.get(place) {
            let why = format!("{mac} answered on it when it was offered");
            let hint = format!("if that is the pod: `leasehold lease reserve {holder} --address {address}`");
            return conflict(Kind::Declined, why, &hint);
        }
        if let Some(lease) = self.leases.get(id) {
            let has: Vec<String> = lease.addresses.iter().map(|a| a.address.to_string()).collect();
            let why = format!("its lease on {} has {}", id.network, has.join(", "));
            let hint = format!("restart the pod, or `leasehold lease release {holder}` and adopt again");
            return conflict(Kind::OtherAddress, why, &hint);
        }
        if let Some(why) = unreadable(&Subject::Lease(id.clone())) {
            let why = format!("its lease cannot be read: {why}");
            return conflict(Kind::Unreadable, why, "`leasehold check` says why");
        }
        Found::Free
    }
}

/// Where an address comes from.
enum Source<'a> {
    /// A pool that serves the pod, on this network.
    Pool(&'a Pool, NetworkName),
    /// A pool, but.
    Not(Conflict),
    /// No pool: it is none of ours.
    None,
}

/// Is an address on a network of a pool?
enum On {
    This(NetworkName),
    Another,
    Unknown(String),
}

impl Conflict {
    fn new(kind: Kind, why: String, hint: &str) -> Self {
        Self { kind, why, hint: hint.into() }
    }
}

fn conflict(kind: Kind, why: String, hint: &str) -> Found {
    Found::Conflict(Conflict::new(kind, why, hint))
}

/// Of two pods that run with one address nobody can tell whose it is. Where one has the lease, the other's claim is a
/// conflict already.
fn two_pods(claims: &mut [Claim]) {
    let mut pods: BTreeMap<(String, IpAddr), BTreeSet<PodKey>> = BTreeMap::new();
    let place = |claim: &Claim| Some((claim.from.as_ref()?.domain.to_string(), claim.address));
    for claim in claims.iter() {
        pods.extend(
            place(claim).filter(|place| !pods.contains_key(place)).map(|place| (place, BTreeSet::new())),
        );
        if let Some(all) = place(claim).and_then(|place| pods.get_mut(&place)) {
            all.insert(claim.pod.clone());
        }
    }
    for claim in claims.iter_mut().filter(|claim| claim.found == Found::Free) {
        let Some(all) = place(claim).and_then(|place| pods.get(&place)) else { continue };
        let others: Vec<String> =
            all.iter().filter(|pod| **pod != claim.pod).map(ToString::to_string).collect();
        if !others.is_empty() {
            let why = format!("{} runs with it, too", others.join(", "));
            claim.found = conflict(Kind::TwoPods, why, "restart one of them, then adopt again");
        }
    }
}

/// A lease has one address of each family.
fn two_of_a_family(claims: &mut [Claim]) {
    let mut first: HashMap<(PodKey, Option<NetworkName>, IfName, Family), IpAddr> = HashMap::new();
    for claim in claims.iter_mut().filter(|claim| claim.found == Found::Free) {
        let family = Family::of(claim.address);
        let key = (claim.pod.clone(), claim.network.clone(), claim.ifname.clone(), family);
        let kept = *first.entry(key).or_insert(claim.address);
        if kept != claim.address {
            let why = format!(
                "the pod runs with {kept} on the same interface, and a lease has one {family} address"
            );
            claim.found = conflict(Kind::OtherAddress, why, "restart the pod");
        }
    }
}

/// A lease that a pod is to have.
pub(crate) struct Adoption {
    /// The lease.
    pub(crate) id: LeaseId,
    /// How it gets it.
    pub(crate) how: How,
}

/// How a pod gets a lease that fits what it runs with.
pub(crate) enum How {
    /// It is made by this transaction.
    Make(Txn),
    /// It is there, and [is not held for a pod that is away](Lease::found_running).
    Mark,
}

/// The leases of those addresses that nobody has, and those that are there and say that nobody uses them.
pub(crate) fn adoptions(
    contents: &Contents,
    pods: &[Pod],
    claims: &[Claim],
    wanted: &Wanted<'_>,
    now: Timestamp,
) -> Vec<Adoption> {
    let by_key: HashMap<&PodKey, &Pod> = pods.iter().map(|pod| (&pod.key, pod)).collect();
    let pools: HashMap<&PoolName, &Pool> =
        contents.everything.pools.iter().map(|pool| (pool.name(), pool)).collect();
    let mut leases: BTreeMap<LeaseId, Vec<LeasedAddress>> = BTreeMap::new();
    for claim in claims.iter().filter(|claim| claim.found == Found::Free) {
        let (Some(id), Some(from)) = (claim.lease(wanted.cluster), &claim.from) else { continue };
        leases.entry(id).or_default().push(from.clone());
    }
    let adopt = |(id, addresses): (LeaseId, Vec<LeasedAddress>)| {
        let Holder::Pod { namespace, name } = &id.holder else { return None };
        let pod = by_key.get(&PodKey { namespace: namespace.clone(), name: name.clone() })?;
        let mut compares = Vec::new();
        for pool in addresses.iter().filter_map(|address| address.pool.as_ref()) {
            let compare = Compare::Unchanged(keys::pool(pool), contents.revision_of(&keys::pool(pool))?);
            if !compares.contains(&compare) {
                compares.push(compare);
            }
        }
        let takes: Vec<changes::Take> = addresses
            .iter()
            .map(|a| changes::Take {
                address: a.clone(),
                released: contents.revision_of(&keys::released(&a.domain, a.address)),
            })
            .collect();
        let first = addresses.first().and_then(|a| a.pool.as_ref()).and_then(|pool| pools.get(pool));
        // One with a generated suffix does not come back under its name.
        let seen = pod.controller.as_ref().filter(|_| !workload::has_random_suffix(name));
        let seen = seen.map(|owner| Seen { controller: Some(owner.to_string()), ..Seen::default() });
        let lease = Lease {
            sticky: sticky(&id, pod, first.copied(), wanted.sticky_kinds),
            id,
            addresses,
            binding: Binding::Idle(None),
            since: now,
            created: now,
            reserved: false,
            // Its sandbox answers on it, and no DEL of that will end this lease.
            unconfirmed: true,
            seen,
        };
        let how = How::Make(changes::reserve(&lease, &takes, &compares));
        Some(Adoption { id: lease.id, how })
    };
    let held = claims.iter().filter_map(|claim| match &claim.found {
        Found::Held(id) => Some(id),
        Found::Leased(_) | Found::Free | Found::Conflict(_) => None,
    });
    let held: BTreeSet<&LeaseId> = held.collect();
    let mark = |id: &LeaseId| Adoption { id: id.clone(), how: How::Mark };
    leases.into_iter().filter_map(adopt).chain(held.into_iter().map(mark)).collect()
}

/// As the ADD would have decided, and with the controller that it does not know.
fn sticky(id: &LeaseId, pod: &Pod, pool: Option<&Pool>, kinds: &[String]) -> bool {
    let wish = pod.wishes.iter().find(|(name, _)| name == STICKY_WISH);
    let wished = wish.and_then(|(_, value)| value.parse().ok());
    let owner = pod.controller.as_ref().map(ToString::to_string);
    is_sticky(pool, &id.holder, wished, owner.as_deref(), kinds)
}
