//! Every invariant of a store's contents, checked on one snapshot: what `leasehold check` says, and the oracle of
//! every test that touches a store. It repairs nothing.
//!
//! 1. An address key names one lease, and that lease lists the address, or a reservation without a pod; every
//!    address that a lease lists has its key.
//! 2. A lease has an attachment key if and only if it is bound, and that key is of its container and node.
//! 3. No address has both an address key and a released key.
//! 4. Every address of a lease was inside its pool's usable set when it was leased. (A pool may shrink afterwards:
//!    what lies outside now is a warning.) A pool with leases keeps its domain.
//! 5. What ends a lease is a rule about histories: no snapshot shows it.
//! 6. The index of whom the pools serve and the pools' own lists say the same.
//!
//! A record that cannot be read is a note by itself and makes nothing else wrong: what it may say is not guessed.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::IpAddr,
};

use super::{
    addr::Family,
    lease::{AddressHolder, Lease, LeaseId, LeasedAddress, Released, Stamp},
    names::{ClusterName, ContainerId, DomainName, IfName, NetworkName, NodeName, PoolName},
    pool::{Pool, Serve},
};

/// All of a store at one revision.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Everything {
    /// The pools.
    pub pools: Vec<Pool>,
    /// The index of whom they serve.
    pub serves: Vec<(Serve, PoolName)>,
    /// The leases.
    pub leases: Vec<Lease>,
    /// Who holds each address.
    pub addresses: Vec<(Place, AddressHolder)>,
    /// The addresses that were given back.
    pub released: Vec<(Place, Released)>,
    /// The attachments, and the lease that each names.
    pub attachments: Vec<(Attachment, LeaseId)>,
    /// What cannot be read.
    pub unreadable: Vec<Unreadable>,
}

/// An address, and the space in which it is unique.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Place {
    /// The space.
    pub domain: DomainName,
    /// The address.
    pub address: IpAddr,
}

impl Place {
    fn of(leased: &LeasedAddress) -> Self {
        Self { domain: leased.domain.clone(), address: leased.address }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.domain.as_str() == super::pool::DEFAULT_DOMAIN {
            f.pad(&self.address.to_string())
        } else {
            f.pad(&format!("{} (domain {})", self.address, self.domain))
        }
    }
}

/// What an attachment's key says.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(missing_docs, reason = "the names are those of the domain")]
pub struct Attachment {
    pub cluster: ClusterName,
    pub node: NodeName,
    pub network: NetworkName,
    pub container: ContainerId,
    pub ifname: IfName,
}

impl Attachment {
    /// The attachment that a lease bound by this run must have.
    #[must_use]
    pub fn of(id: &LeaseId, stamp: &Stamp) -> Self {
        Self {
            cluster: id.cluster.clone(),
            node: stamp.node.clone(),
            network: id.network.clone(),
            container: stamp.container.clone(),
            ifname: id.ifname.clone(),
        }
    }
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, network, container, ifname, .. } = self;
        f.pad(&format!("{ifname} of container {container} on {network}, node {node}"))
    }
}

/// What a record that cannot be read is about, as far as its key tells.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Subject {
    /// A lease.
    Lease(LeaseId),
    /// Who holds an address.
    Address(Place),
    /// An address that was given back.
    Released(Place),
    /// An attachment.
    Attachment(Attachment),
    /// A pool.
    Pool(PoolName),
    /// The key tells nothing.
    Unknown,
}

/// A record that cannot be read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Unreadable {
    /// Where it stands.
    pub key: String,
    /// What it is about.
    pub subject: Subject,
    /// Why it cannot be read.
    pub reason: String,
    /// A newer leasehold wrote it: nothing is wrong with it.
    pub newer: bool,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Severity {
    /// It may be meant; somebody should look.
    Warning,
    /// An invariant is broken.
    Error,
}

impl Severity {
    /// The word in tables and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// What is wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Kind {
    /// An address key names a lease that is not there.
    AddressWithoutLease { place: Place, lease: LeaseId },
    /// An address key names a lease that does not list the address.
    AddressNotListed { place: Place, lease: LeaseId },
    /// An address key names a lease that is not there or does not list the address; this one alone lists it.
    AddressAstray { place: Place, lease: LeaseId, named: LeaseId },
    /// A lease lists an address that has no key: somebody else could be given it.
    LeaseWithoutAddress { lease: LeaseId, place: Place },
    /// A lease lists an address that somebody else holds.
    AddressOfAnother { lease: LeaseId, place: Place, holder: AddressHolder },
    /// A lease lists one address twice.
    AddressTwice { lease: LeaseId, place: Place },
    /// A lease has two addresses of one family out of pools.
    TwoOfAFamily { lease: LeaseId, family: Family },
    /// A bound lease without its attachment: DEL by container ID cannot find it.
    LeaseWithoutAttachment { lease: LeaseId, attachment: Attachment },
    /// An attachment whose lease is gone, not bound, or of another container or node.
    StaleAttachment { attachment: Attachment, lease: LeaseId },
    /// An attachment names a lease that is not bound by it; this one alone is.
    AttachmentAstray { attachment: Attachment, lease: LeaseId, named: LeaseId },
    /// An address that is held and released.
    HeldAndReleased { place: Place },
    /// An address of a lease that its pool would not give out now.
    OutsidePool { lease: LeaseId, place: Place, pool: PoolName },
    /// A lease out of a pool that is not there.
    PoolGone { lease: LeaseId, place: Place, pool: PoolName },
    /// A lease whose pool is of another domain.
    OtherDomain { lease: LeaseId, place: Place, pool: PoolName, domain: DomainName },
    /// A lease of a caller without a pod that is kept after its end.
    StickyContainer { lease: LeaseId },
    /// A pool serves something that the index does not know: its pods do not find it.
    ServeNotIndexed { serve: Serve, pool: PoolName },
    /// The index knows something that the pool does not serve.
    ServeStale { serve: Serve, pool: PoolName },
    /// A record that cannot be read.
    Unreadable { key: String, subject: Subject, reason: String },
    /// A record of a newer leasehold.
    Newer { key: String, reason: String },
}

/// A finding.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Note {
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub kind: Kind,
}

impl Note {
    fn error(kind: Kind) -> Self {
        Self { severity: Severity::Error, kind }
    }

    fn warning(kind: Kind) -> Self {
        Self { severity: Severity::Warning, kind }
    }
}

impl Kind {
    /// A word for machines.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::AddressWithoutLease { .. } => "address-without-lease",
            Self::AddressNotListed { .. } => "address-not-listed",
            Self::AddressAstray { .. } => "address-astray",
            Self::LeaseWithoutAddress { .. } => "lease-without-address",
            Self::AddressOfAnother { .. } => "address-of-another",
            Self::AddressTwice { .. } => "address-twice",
            Self::TwoOfAFamily { .. } => "two-of-a-family",
            Self::LeaseWithoutAttachment { .. } => "lease-without-attachment",
            Self::StaleAttachment { .. } => "stale-attachment",
            Self::AttachmentAstray { .. } => "attachment-astray",
            Self::HeldAndReleased { .. } => "held-and-released",
            Self::OutsidePool { .. } => "outside-pool",
            Self::PoolGone { .. } => "pool-gone",
            Self::OtherDomain { .. } => "other-domain",
            Self::StickyContainer { .. } => "sticky-container",
            Self::ServeNotIndexed { .. } => "serve-not-indexed",
            Self::ServeStale { .. } => "serve-stale",
            Self::Unreadable { .. } => "unreadable",
            Self::Newer { .. } => "newer",
        }
    }
}

impl Kind {
    /// What is wrong, without what to do.
    #[must_use]
    pub fn finding(&self) -> String {
        match self {
            Self::AddressWithoutLease { place, lease } => {
                format!("{place} is held by the lease of {lease}, which is not there")
            }
            Self::AddressNotListed { place, lease } => {
                format!("{place} is held by the lease of {lease}, which does not list it")
            }
            Self::AddressAstray { place, lease, named } => format!(
                "{place} is held by the lease of {named}, which does not have it, while the lease of {lease} does"
            ),
            Self::LeaseWithoutAddress { lease, place } => {
                format!("the lease of {lease} lists {place}, which nobody holds, so another pod could get it")
            }
            Self::AddressOfAnother { lease, place, holder } => {
                let holder = match holder {
                    AddressHolder::Lease(other) => format!("the lease of {other}"),
                    AddressHolder::Device { reason, .. } => format!("a device ({reason})"),
                };
                format!("the lease of {lease} lists {place}, which {holder} holds")
            }
            Self::AddressTwice { lease, place } => format!("the lease of {lease} lists {place} twice"),
            Self::TwoOfAFamily { lease, family } => {
                format!("the lease of {lease} has two {family} addresses out of pools")
            }
            Self::LeaseWithoutAttachment { lease, attachment } => format!(
                "the lease of {lease} is bound without its attachment ({attachment}), so garbage collection cannot see it"
            ),
            Self::StaleAttachment { attachment, lease } => {
                format!("attachment {attachment} names the lease of {lease}, which is not bound by it")
            }
            Self::AttachmentAstray { attachment, lease, named } => format!(
                "attachment {attachment} names the lease of {named}, but that of {lease} is bound by it"
            ),
            Self::HeldAndReleased { place } => format!("{place} is held and released"),
            Self::OutsidePool { lease, place, pool } => {
                format!("the lease of {lease} has {place}, which pool {pool} does not give out now")
            }
            Self::PoolGone { lease, place, pool } => {
                format!("the lease of {lease} has {place} of pool {pool}, which is not there")
            }
            Self::OtherDomain { lease, place, pool, domain } => {
                format!("the lease of {lease} has {place} of pool {pool}, whose domain is {domain}")
            }
            Self::StickyContainer { lease } => {
                format!("the lease of {lease} belongs to a container, and is marked to be kept after its end")
            }
            Self::ServeNotIndexed { serve, pool } => format!(
                "pool {pool} serves {serve}, but the index does not know, so its pods do not find the pool"
            ),
            Self::ServeStale { serve, pool } => {
                format!("the index says that pool {pool} serves {serve}, which it does not")
            }
            Self::Unreadable { key, subject: Subject::Address(place), reason } => {
                format!("{key}, which says who holds {place}, cannot be read ({reason})")
            }
            Self::Unreadable { key, subject: Subject::Released(place), reason } => {
                format!("{key}, which says that {place} was given back, cannot be read ({reason})")
            }
            Self::Unreadable { key, reason, .. } => format!("{key} cannot be read ({reason})"),
            Self::Newer { key, reason } => format!("{key} was written by a newer leasehold ({reason})"),
        }
    }

    /// What a repair does, where there is one; not each of them is certain in every store.
    #[must_use]
    pub const fn remedy(&self) -> Option<&'static str> {
        Some(match self {
            Self::AddressWithoutLease { .. } => "writes the lease again, which then ends as any other",
            Self::AddressNotListed { .. } => "releases the address, to be probed before its next use",
            Self::AddressAstray { .. } => "gives it the key",
            Self::LeaseWithoutAddress { .. } => "takes it for this lease",
            Self::LeaseWithoutAttachment { .. } => "writes it",
            Self::StaleAttachment { .. } => {
                "deletes it, or writes the lease again that an address still names"
            }
            Self::AttachmentAstray { .. } => "puts it right",
            Self::HeldAndReleased { .. } => "deletes the released key",
            Self::ServeNotIndexed { .. } => "writes the index",
            Self::ServeStale { .. } => "deletes the entry",
            Self::AddressOfAnother { .. }
            | Self::AddressTwice { .. }
            | Self::TwoOfAFamily { .. }
            | Self::OutsidePool { .. }
            | Self::PoolGone { .. }
            | Self::OtherDomain { .. }
            | Self::StickyContainer { .. }
            | Self::Unreadable { .. }
            | Self::Newer { .. } => return None,
        })
    }

    /// What a person does where no repair is certain.
    #[must_use]
    pub const fn advice(&self) -> &'static str {
        match self {
            Self::AddressWithoutLease { .. } => {
                "the reaper of its cluster mends it, and `leasehold check`, once every pool can be read"
            }
            Self::AddressNotListed { .. } => {
                "the pod may run with it: restart the pod, or end its lease, and it is mended"
            }
            Self::AddressAstray { .. } => {
                "the pod of the first may run with it: restart that pod, and it is mended"
            }
            Self::LeaseWithoutAttachment { .. } => {
                "another container's attachment names the lease, too: restart the pod, and it is mended"
            }
            Self::StaleAttachment { .. } => {
                "the pod may run by it: restart the pod, or `leasehold adopt` gives it a lease"
            }
            Self::HeldAndReleased { .. } => "its released key cannot be read: look at it with etcdctl",
            Self::LeaseWithoutAddress { .. }
            | Self::AttachmentAstray { .. }
            | Self::ServeNotIndexed { .. }
            | Self::ServeStale { .. } => "check again",
            Self::AddressOfAnother { .. } => {
                "find out who uses it, then end the wrong lease: `leasehold lease release`"
            }
            Self::AddressTwice { .. } | Self::TwoOfAFamily { .. } => {
                "end it when its pod may restart: `leasehold lease release`"
            }
            Self::OutsidePool { .. } => "it stays until the pod's next start, which gets another address",
            Self::PoolGone { .. } => {
                "make the pool again, or leave it: the pod's next start gets another address"
            }
            Self::OtherDomain { .. } => "apply the pool with its old domain",
            Self::StickyContainer { .. } => "end it: `leasehold lease release`",
            Self::Unreadable { subject, .. } => match subject {
                Subject::Lease(_) => {
                    "it is never handed out and never deleted: put it right with etcdctl, or delete it, and `leasehold check --repair` writes it again if its address names it"
                }
                Subject::Address(_) => {
                    "it is never handed out and never deleted: put it right with etcdctl, or delete it: `leasehold check --repair` writes it again if a lease lists it, else it is free, so look first that nobody uses it"
                }
                Subject::Released(_) => {
                    "it is never handed out and never deleted: look that nobody uses the address, then delete the key with etcdctl"
                }
                Subject::Attachment(_) => {
                    "it is never deleted: delete it with etcdctl, and `leasehold check --repair` writes it again for the lease that is bound by it"
                }
                Subject::Pool(_) => {
                    "nothing new is leased from it: apply it again, `leasehold pool apply`, or `leasehold pool delete`"
                }
                Subject::Unknown => {
                    "it is never used and never deleted: look at it with etcdctl, put it right or delete it"
                }
            },
            Self::Newer { .. } => "upgrade this one",
        }
    }
}

/// What is wrong, and what to do.
impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let finding = self.kind.finding();
        match self.kind.remedy() {
            Some(remedy) => write!(f, "{finding}; `leasehold check --repair` {remedy}"),
            None => write!(f, "{finding}; {}", self.kind.advice()),
        }
    }
}

/// Everything that is wrong with this snapshot, errors first.
#[must_use]
pub fn audit(everything: &Everything) -> Vec<Note> {
    let index = Index::new(everything);
    let mut notes = Vec::new();
    unreadable(everything, &mut notes);
    addresses(everything, &index, &mut notes);
    for lease in &everything.leases {
        lists(lease, &index, &mut notes);
        binding(lease, &index, &mut notes);
        inside_pools(lease, &index, &mut notes);
    }
    attachments(everything, &index, &mut notes);
    serves(everything, &index, &mut notes);
    notes.sort_by_key(|note| std::cmp::Reverse(note.severity));
    notes
}

/// The snapshot by key: nothing below walks one list for each entry of another.
struct Index<'a> {
    leases: HashMap<&'a LeaseId, &'a Lease>,
    holders: HashMap<&'a Place, &'a AddressHolder>,
    released: HashSet<&'a Place>,
    attachments: HashSet<&'a Attachment>,
    pools: HashMap<&'a PoolName, &'a Pool>,
    listed: HashMap<Place, Vec<&'a LeaseId>>,
    bound: HashMap<Attachment, Vec<&'a LeaseId>>,
    unreadable: HashSet<&'a Subject>,
}

impl<'a> Index<'a> {
    fn new(everything: &'a Everything) -> Self {
        let mut listed: HashMap<Place, Vec<&LeaseId>> = HashMap::new();
        let mut bound: HashMap<Attachment, Vec<&LeaseId>> = HashMap::new();
        for lease in &everything.leases {
            for place in lease.addresses.iter().map(Place::of).collect::<HashSet<_>>() {
                listed.entry(place).or_default().push(&lease.id);
            }
            if let Some(stamp) = lease.bound() {
                bound.entry(Attachment::of(&lease.id, stamp)).or_default().push(&lease.id);
            }
        }
        Self {
            leases: everything.leases.iter().map(|lease| (&lease.id, lease)).collect(),
            holders: everything.addresses.iter().map(|(place, holder)| (place, holder)).collect(),
            released: everything.released.iter().map(|(place, _)| place).collect(),
            attachments: everything.attachments.iter().map(|(attachment, _)| attachment).collect(),
            pools: everything.pools.iter().map(|pool| (pool.name(), pool)).collect(),
            listed,
            bound,
            unreadable: everything.unreadable.iter().map(|record| &record.subject).collect(),
        }
    }

    fn cannot_read(&self, subject: &Subject) -> bool {
        self.unreadable.contains(subject)
    }

    /// Does the address's key name a lease that certainly does not have it?
    fn astray(&self, place: &Place, named: &LeaseId) -> bool {
        let has = self.listed.get(place).is_some_and(|leases| leases.contains(&named));
        !has && !self.cannot_read(&Subject::Lease(named.clone()))
    }
}

fn unreadable(everything: &Everything, notes: &mut Vec<Note>) {
    for Unreadable { key, subject, reason, newer } in &everything.unreadable {
        let (key, reason) = (key.clone(), reason.clone());
        notes.push(if *newer {
            Note::warning(Kind::Newer { key, reason })
        } else {
            Note::error(Kind::Unreadable { key, subject: subject.clone(), reason })
        });
    }
}

fn addresses(everything: &Everything, index: &Index<'_>, notes: &mut Vec<Note>) {
    for (place, holder) in &everything.addresses {
        if index.released.contains(place) || index.cannot_read(&Subject::Released(place.clone())) {
            notes.push(Note::error(Kind::HeldAndReleased { place: place.clone() }));
        }
        let AddressHolder::Lease(id) = holder else { continue };
        if !index.astray(place, id) {
            continue;
        }
        let (place, lease) = (place.clone(), id.clone());
        let kind = match index.listed.get(&place).map(Vec::as_slice) {
            // What a lease lists is never released: its pod may run.
            Some([one]) => Kind::AddressAstray { place, lease: (*one).clone(), named: lease },
            Some(_) => continue, // between several only a person decides: the note is on each of them
            None if index.leases.contains_key(id) => Kind::AddressNotListed { place, lease },
            None => Kind::AddressWithoutLease { place, lease },
        };
        notes.push(Note::error(kind));
    }
}

fn lists(lease: &Lease, index: &Index<'_>, notes: &mut Vec<Note>) {
    let id = || lease.id.clone();
    for (position, leased) in lease.addresses.iter().enumerate() {
        let place = Place::of(leased);
        let before = &lease.addresses[..position];
        if before.iter().any(|other| Place::of(other) == place) {
            notes.push(Note::error(Kind::AddressTwice { lease: id(), place }));
            continue;
        }
        let family = Family::of(leased.address);
        if leased.pool.is_some()
            && before.iter().any(|other| other.pool.is_some() && Family::of(other.address) == family)
        {
            notes.push(Note::error(Kind::TwoOfAFamily { lease: id(), family }));
        }
        match index.holders.get(&place) {
            Some(AddressHolder::Lease(holder)) if *holder == lease.id => {}
            Some(AddressHolder::Lease(holder))
                if index.astray(&place, holder) && index.listed.get(&place).is_some_and(|l| l.len() == 1) => {
            }
            Some(holder) => notes.push(Note::error(Kind::AddressOfAnother {
                lease: id(),
                place,
                holder: (*holder).clone(),
            })),
            None if index.cannot_read(&Subject::Address(place.clone())) => {}
            None => notes.push(Note::error(Kind::LeaseWithoutAddress { lease: id(), place })),
        }
    }
}

fn binding(lease: &Lease, index: &Index<'_>, notes: &mut Vec<Note>) {
    if lease.sticky && matches!(lease.id.holder, super::lease::Holder::Container(_)) {
        notes.push(Note::warning(Kind::StickyContainer { lease: lease.id.clone() }));
    }
    let Some(stamp) = lease.bound() else { return };
    let attachment = Attachment::of(&lease.id, stamp);
    if !index.attachments.contains(&attachment)
        && !index.cannot_read(&Subject::Attachment(attachment.clone()))
    {
        notes.push(Note::error(Kind::LeaseWithoutAttachment { lease: lease.id.clone(), attachment }));
    }
}

fn inside_pools(lease: &Lease, index: &Index<'_>, notes: &mut Vec<Note>) {
    for leased in &lease.addresses {
        let Some(name) = &leased.pool else { continue };
        let (id, place, pool) = (lease.id.clone(), Place::of(leased), name.clone());
        match index.pools.get(name) {
            Some(found) if *found.domain() != leased.domain => notes.push(Note::error(Kind::OtherDomain {
                lease: id,
                place,
                pool,
                domain: found.domain().clone(),
            })),
            Some(found) if found.range_of(leased.address).is_none() => {
                notes.push(Note::warning(Kind::OutsidePool { lease: id, place, pool }));
            }
            Some(_) => {}
            None if index.cannot_read(&Subject::Pool(name.clone())) => {}
            None => notes.push(Note::warning(Kind::PoolGone { lease: id, place, pool })),
        }
    }
}

fn attachments(everything: &Everything, index: &Index<'_>, notes: &mut Vec<Note>) {
    for (attachment, id) in &everything.attachments {
        let right = match index.leases.get(id) {
            Some(lease) => lease.bound().is_some_and(|stamp| Attachment::of(id, stamp) == *attachment),
            None => index.cannot_read(&Subject::Lease(id.clone())),
        };
        if !right {
            let (attachment, named) = (attachment.clone(), id.clone());
            notes.push(Note::error(match index.bound.get(&attachment).map(Vec::as_slice) {
                Some([one]) => Kind::AttachmentAstray { attachment, lease: (*one).clone(), named },
                _ => Kind::StaleAttachment { attachment, lease: named },
            }));
        }
    }
}

fn serves(everything: &Everything, index: &Index<'_>, notes: &mut Vec<Note>) {
    let indexed: HashSet<(&Serve, &PoolName)> = everything.serves.iter().map(|(s, p)| (s, p)).collect();
    for pool in &everything.pools {
        for serve in pool.serves().iter().filter(|serve| !indexed.contains(&(*serve, pool.name()))) {
            let (serve, pool) = (serve.clone(), pool.name().clone());
            notes.push(Note::error(Kind::ServeNotIndexed { serve, pool }));
        }
    }
    for (serve, name) in &everything.serves {
        let right = match index.pools.get(name) {
            Some(pool) => pool.serves().contains(serve),
            None => index.cannot_read(&Subject::Pool(name.clone())),
        };
        if !right {
            notes.push(Note::error(Kind::ServeStale { serve: serve.clone(), pool: name.clone() }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        lease::{Binding, Holder, Timestamp},
        names::{Namespace, PodName},
        pool::{Draft, RangeDraft},
    };

    fn id(pod: &str) -> LeaseId {
        LeaseId {
            cluster: ClusterName::new("prod").unwrap(),
            holder: Holder::Pod {
                namespace: Namespace::new("shop").unwrap(),
                name: PodName::new(pod).unwrap(),
            },
            network: NetworkName::new("lan").unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        }
    }

    fn place(address: &str) -> Place {
        Place { domain: DomainName::new("default").unwrap(), address: address.parse().unwrap() }
    }

    fn lease(pod: &str, address: &str, bound: bool) -> Lease {
        let stamp = Stamp {
            container: ContainerId::new("c1").unwrap(),
            node: NodeName::new("n1").unwrap(),
            uid: None,
            boot: None,
            boot_clock: 1,
            at: Timestamp(1),
        };
        let Place { domain, address } = place(address);
        Lease {
            id: id(pod),
            addresses: vec![LeasedAddress { address, domain, pool: Some(PoolName::new("p").unwrap()) }],
            binding: if bound { Binding::Bound(stamp) } else { Binding::Idle(Some(stamp)) },
            since: Timestamp(1),
            created: Timestamp(1),
            sticky: true,
            reserved: false,
            unconfirmed: false,
            seen: None,
        }
    }

    fn released() -> Released {
        Released {
            at: Timestamp(1),
            by: id("x").holder,
            cluster: id("x").cluster,
            unconfirmed: false,
            declined: None,
        }
    }

    /// A bound lease, a held one, a device, a released address, one pool.
    fn good() -> Everything {
        let pool = Pool::from_draft(&Draft {
            name: "p".into(),
            networks: vec!["lan".into()],
            serves: vec!["shop/db".into()],
            ranges: vec![RangeDraft {
                subnet: "10.0.0.0/24".into(),
                end: Some("10.0.0.9".into()),
                ..RangeDraft::default()
            }],
            ..Draft::default()
        })
        .unwrap();
        let bound = lease("db-0", "10.0.0.1", true);
        let device = AddressHolder::Device { reason: "printer".into(), since: Timestamp(1) };
        Everything {
            serves: vec![(pool.serves()[0].clone(), pool.name().clone())],
            pools: vec![pool],
            addresses: vec![
                (place("10.0.0.1"), AddressHolder::Lease(id("db-0"))),
                (place("10.0.0.2"), AddressHolder::Lease(id("db-1"))),
                (place("10.0.0.3"), device),
            ],
            released: vec![(place("10.0.0.4"), released())],
            attachments: vec![(Attachment::of(&bound.id, bound.bound().unwrap()), id("db-0"))],
            leases: vec![bound, lease("db-1", "10.0.0.2", false)],
            unreadable: Vec::new(),
        }
    }

    #[track_caller]
    fn case(spoil: impl FnOnce(&mut Everything), wanted: &[&str]) {
        let mut everything = good();
        spoil(&mut everything);
        let found: Vec<String> = audit(&everything)
            .iter()
            .map(|n| format!("{} {}", n.severity.as_str(), n.kind.as_str()))
            .collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_good_store_has_no_note() {
        case(|_| {}, &[]);
    }

    #[test]
    fn b013_half_pairs_are_seen_from_both_sides() {
        case(|e| drop(e.leases.remove(1)), &["error address-without-lease"]);
        case(|e| drop(e.addresses.remove(0)), &["error lease-without-address"]);
        case(|e| drop(e.leases.remove(0)), &["error address-without-lease", "error stale-attachment"]);
        case(
            |e| e.addresses.push((place("10.0.0.5"), AddressHolder::Lease(id("db-1")))),
            &["error address-not-listed"],
        );
    }

    #[test]
    fn a_key_that_names_the_wrong_lease_belongs_to_the_one_that_lists_it() {
        case(|e| e.addresses[0].1 = AddressHolder::Lease(id("db-1")), &["error address-astray"]);
        case(|e| e.addresses[0].1 = AddressHolder::Lease(id("gone")), &["error address-astray"]);
        case(
            |e| {
                e.addresses[0].1 = AddressHolder::Lease(id("gone"));
                e.leases[1].addresses = e.leases[0].addresses.clone();
                e.addresses.remove(1);
            },
            &["error address-of-another", "error address-of-another"],
        );
        case(|e| e.attachments[0].1 = id("db-1"), &["error attachment-astray"]);
        case(|e| e.attachments[0].1 = id("gone"), &["error attachment-astray"]);
    }

    #[test]
    fn an_address_is_held_or_released() {
        case(|e| e.released.push((place("10.0.0.3"), released())), &["error held-and-released"]);
    }

    #[test]
    fn a_lease_is_bound_with_its_attachment_and_no_other() {
        case(|e| e.attachments.clear(), &["error lease-without-attachment"]);
        case(|e| e.leases[0] = lease("db-0", "10.0.0.1", false), &["error stale-attachment"]);
        case(
            |e| e.attachments[0].0.node = NodeName::new("n2").unwrap(),
            &["error lease-without-attachment", "error stale-attachment"],
        );
    }

    #[test]
    fn b101_an_address_outside_its_pool_is_a_warning() {
        case(
            |e| {
                e.leases[1] = lease("db-1", "10.0.0.200", false);
                e.addresses[1].0 = place("10.0.0.200");
            },
            &["warning outside-pool"],
        );
        case(
            |e| {
                e.pools.clear();
                e.serves.clear();
            },
            &["warning pool-gone", "warning pool-gone"],
        );
    }

    #[test]
    fn a_pool_with_leases_keeps_its_domain() {
        case(
            |e| {
                e.leases[1].addresses[0].domain = DomainName::new("other").unwrap();
                e.addresses[1].0.domain = DomainName::new("other").unwrap();
            },
            &["error other-domain"],
        );
    }

    #[test]
    fn the_index_says_what_the_pools_say() {
        case(|e| e.serves.clear(), &["error serve-not-indexed"]);
        case(|e| e.serves.push((Serve::Everything, PoolName::new("p").unwrap())), &["error serve-stale"]);
        case(|e| e.serves.push((Serve::Everything, PoolName::new("q").unwrap())), &["error serve-stale"]);
    }

    #[test]
    fn a_lease_has_one_address_of_a_family() {
        case(
            |e| {
                let again = e.leases[0].addresses[0].clone();
                e.leases[0].addresses.push(again);
            },
            &["error address-twice"],
        );
        case(
            |e| {
                let more = lease("db-0", "10.0.0.7", true).addresses.remove(0);
                e.leases[0].addresses.push(more);
                e.addresses.push((place("10.0.0.7"), AddressHolder::Lease(id("db-0"))));
            },
            &["error two-of-a-family"],
        );
    }

    #[test]
    fn what_cannot_be_read_makes_nothing_else_wrong() {
        let record = |subject: Subject, newer: bool| Unreadable {
            key: "k".into(),
            subject,
            reason: "r".into(),
            newer,
        };
        case(
            |e| {
                e.leases.remove(0);
                e.unreadable.push(record(Subject::Lease(id("db-0")), false));
            },
            &["error unreadable"],
        );
        case(
            |e| {
                e.addresses.remove(0);
                e.unreadable.push(record(Subject::Address(place("10.0.0.1")), true));
            },
            &["warning newer"],
        );
        case(
            |e| {
                let (attachment, _) = e.attachments.remove(0);
                e.unreadable.push(record(Subject::Attachment(attachment), false));
            },
            &["error unreadable"],
        );
        case(
            |e| {
                e.pools.clear();
                e.unreadable.push(record(Subject::Pool(PoolName::new("p").unwrap()), false));
            },
            &["error unreadable"],
        );
    }

    #[test]
    fn a_note_says_what_and_what_to_do() {
        let mut everything = good();
        everything.leases.remove(1);
        assert_eq!(
            audit(&everything)[0].to_string(),
            "10.0.0.2 is held by the lease of shop/db-1 eth0 on lan, which is not there; `leasehold check --repair` writes the lease again, which then ends as any other"
        );
    }
}
