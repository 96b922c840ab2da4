//! The audit of a store, and what mends it.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use super::{
    Error, Sent,
    leases::{closeness, serves_of},
    read::Contents,
    send,
};
use crate::{
    domain::{
        addr::Family,
        audit::{Attachment, Kind, Note, Place, Subject},
        lease::{AddressHolder, Binding, Holder, Lease, LeaseId, LeasedAddress, Stamp, Timestamp},
        names::DomainName,
        pool::{Networks, Pool, Serve, StickyRule},
        select::is_sticky,
        workload::ordinal,
    },
    store::{Compare, Key, Read, Revision, Store, Txn, Write, keys, record, repairs},
};

/// What became of a note.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Repair {
    /// Only a person can decide.
    ByHand,
    /// It can be mended.
    Possible,
    /// It is mended.
    Done,
    /// The store went on meanwhile: check again.
    Changed,
}

impl Repair {
    /// The word in tables and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ByHand => "by hand",
            Self::Possible => "repairable",
            Self::Done => "repaired",
            Self::Changed => "changed meanwhile",
        }
    }
}

/// A note in words: what is wrong, and what mends it, did, or must be done.
#[must_use]
pub fn text(note: &Note, repair: Repair) -> String {
    match (repair, note.kind.remedy()) {
        (Repair::Done, Some(remedy)) => format!("{}; the repair {remedy}", note.kind.finding()),
        (Repair::Possible | Repair::Changed, Some(_)) => note.to_string(),
        (Repair::ByHand, _) | (_, None) => format!("{}; {}", note.kind.finding(), note.kind.advice()),
    }
}

/// What mends the notes of a store: its contents, laid out by lease.
///
/// Nothing here frees what a pod may use. A lease that is lost is written again from the keys that name it, and then ends
/// as any other: by its container, or by a verdict with all its proofs. An address that its lease does not list is
/// released only if an ADD has come after it, which would have released it, too.
#[derive(Debug)]
pub struct Plans<'a> {
    contents: &'a Contents,
    now: Timestamp,
    leases: HashMap<&'a LeaseId, &'a Lease>,
    listed: HashSet<(&'a DomainName, IpAddr)>,
    /// The addresses, and the attachments, that name a lease, be it there or not.
    held: HashMap<&'a LeaseId, Vec<&'a Place>>,
    pointing: HashMap<&'a LeaseId, Vec<&'a Attachment>>,
    serves: BTreeSet<Serve>,
    /// What became of the leases that were to be written again: several notes are of one.
    restored: HashMap<LeaseId, Repair>,
    /// The leases that a repair has marked, as they stand since.
    marked: HashMap<Key, Revision>,
}

impl<'a> Plans<'a> {
    /// The plans for these contents.
    #[must_use]
    pub fn new(contents: &'a Contents, now: Timestamp) -> Self {
        let all = &contents.everything;
        let mut held: HashMap<&LeaseId, Vec<&Place>> = HashMap::new();
        for (place, holder) in &all.addresses {
            if let AddressHolder::Lease(id) = holder {
                held.entry(id).or_default().push(place);
            }
        }
        let bound = |lease: &'a Lease| Some((Attachment::of(&lease.id, lease.bound()?), &lease.id));
        let bound: HashMap<Attachment, &LeaseId> = all.leases.iter().filter_map(bound).collect();
        let mut pointing: HashMap<&LeaseId, Vec<&Attachment>> = HashMap::new();
        for (attachment, id) in &all.attachments {
            // What another lease is bound by says nothing of this one.
            if bound.get(attachment).is_none_or(|owner| *owner == id) {
                pointing.entry(id).or_default().push(attachment);
            }
        }
        let listed = |lease: &'a Lease| lease.addresses.iter().map(|a| (&a.domain, a.address));
        Self {
            contents,
            now,
            leases: all.leases.iter().map(|lease| (&lease.id, lease)).collect(),
            listed: all.leases.iter().flat_map(listed).collect(),
            held,
            pointing,
            serves: serves_of(&all.pools),
            restored: HashMap::new(),
            marked: HashMap::new(),
        }
    }

    /// The transaction that mends a note; `None` where only a person can decide.
    #[must_use]
    pub fn of(&self, note: &Note) -> Option<Txn> {
        let at = |key| self.marked.get(&key).copied().or_else(|| self.contents.revision_of(&key));
        let is_read = |place: &Place, released: Option<Revision>| {
            released.is_none() || self.contents.everything.released.iter().any(|(free, _)| free == place)
        };
        match &note.kind {
            Kind::AddressWithoutLease { lease, .. } => self.restore(lease),
            Kind::AddressNotListed { place, lease } => {
                let held = at(keys::address(&place.domain, place.address))?;
                let released = at(keys::released(&place.domain, place.address));
                let moved_on = self.attached_at(self.leases.get(lease)?).is_some_and(|then| then > held);
                let lease_at = at(keys::lease(lease))?;
                (moved_on && is_read(place, released))
                    .then(|| repairs::free_address(place, held, lease, lease_at, released, self.now))
            }
            Kind::AddressAstray { place, lease, named } => {
                let held = at(keys::address(&place.domain, place.address))?;
                let released = at(keys::released(&place.domain, place.address));
                let other = (named, at(keys::lease(named)));
                let certain = match self.leases.get(named) {
                    Some(named) => self.is_whole(named),
                    None => !self.pointing.contains_key(named),
                };
                let lease = (lease, at(keys::lease(lease))?);
                (certain && is_read(place, released))
                    .then(|| repairs::give_address(place, held, lease, other, released))
            }
            Kind::LeaseWithoutAddress { lease, place } => {
                let released = at(keys::released(&place.domain, place.address));
                let read = at(keys::lease(lease))?;
                // A released key that cannot be read is never deleted.
                is_read(place, released).then(|| repairs::take_address(lease, read, place, released))
            }
            Kind::LeaseWithoutAttachment { lease, attachment } => {
                // Its container is in doubt if another one's attachment names it, too.
                let certain = !self.pointing.contains_key(lease);
                let read = at(keys::lease(lease))?;
                certain.then(|| repairs::attach(lease, read, attachment))
            }
            Kind::StaleAttachment { attachment, lease } => {
                if self.restored_by(note).is_some() {
                    return self.restore(lease);
                }
                let certain = self.leases.get(lease).is_none_or(|lease| self.is_whole(lease));
                let read = at(repairs::attachment_key(attachment))?;
                certain.then(|| repairs::detach(attachment, read, lease, at(keys::lease(lease))))
            }
            Kind::AttachmentAstray { attachment, lease, named } => {
                let read = at(repairs::attachment_key(attachment))?;
                let named = (named, at(keys::lease(named)));
                Some(repairs::give_attachment(attachment, read, (lease, at(keys::lease(lease))?), named))
            }
            Kind::HeldAndReleased { place } => {
                let held = at(keys::address(&place.domain, place.address))?;
                let released = at(keys::released(&place.domain, place.address))?;
                is_read(place, Some(released)).then(|| repairs::drop_released(place, held, released))
            }
            Kind::ServeNotIndexed { serve, pool } => Some(repairs::index(serve, pool, at(keys::pool(pool))?)),
            Kind::ServeStale { serve, pool } => {
                let read = at(keys::serve(serve, pool))?;
                Some(repairs::unindex(serve, pool, read, at(keys::pool(pool))))
            }
            Kind::AddressOfAnother { .. }
            | Kind::AddressTwice { .. }
            | Kind::TwoOfAFamily { .. }
            | Kind::OutsidePool { .. }
            | Kind::PoolGone { .. }
            | Kind::OtherDomain { .. }
            | Kind::StickyContainer { .. }
            | Kind::Unreadable { .. }
            | Kind::Newer { .. } => None,
        }
    }

    /// Is the lease there?
    #[must_use]
    pub fn has(&self, id: &LeaseId) -> bool {
        self.leases.contains_key(id)
    }

    /// Is the lease of this pod gone, and every address that named it? Of a container without a pod nobody asks.
    #[must_use]
    pub fn is_lost(&self, id: &LeaseId) -> bool {
        !self.has(id) && !self.held.contains_key(id) && matches!(id.holder, Holder::Pod { .. })
    }

    /// The lease that the repair of this note writes again.
    #[must_use]
    pub fn restored_by<'n>(&self, note: &'n Note) -> Option<&'n LeaseId> {
        if let Kind::AddressWithoutLease { lease, .. } = &note.kind {
            return Some(lease);
        }
        // What says on which node an address may be in use is kept as long as that address names the lease.
        let Kind::StaleAttachment { lease, .. } = &note.kind else { return None };
        (!self.has(lease) && self.held.contains_key(lease)).then_some(lease)
    }

    /// Mends what the note says, if that can be mended.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn mend<S: Store>(&mut self, store: &S, note: &Note) -> Result<Repair, Error> {
        let restores = self.restored_by(note);
        if let Some(known) = restores.and_then(|id| self.restored.get(id)) {
            return Ok(*known);
        }
        let Some(mut txn) = self.of(note) else { return Ok(Repair::ByHand) };
        if let Some(id) = self.doubts(note)
            && let Some(entry) = store.read(&[Read::Get(keys::lease(id))], None).await?.entry(0)
        {
            let stored = record::decode_lease(entry)?;
            if stored.value.bound().is_some() {
                return Ok(Repair::Changed);
            }
            repairs::mark(&mut txn, &stored);
        }
        let repair = match send(store, &txn).await? {
            Sent::Applied(revision) => {
                let writes = txn.writes.iter().filter_map(Write::key);
                let leases = writes.filter(|key| keys::parse_lease(key).is_some());
                self.marked.extend(leases.map(|key| (key.clone(), revision)));
                Repair::Done
            }
            Sent::Conflict => Repair::Changed,
        };
        if let Some(id) = restores {
            self.restored.insert(id.clone(), repair);
        }
        Ok(repair)
    }

    /// The lease that takes an address which another may use: it is not bound, and its ADD must ask the wire first.
    fn doubts<'n>(&'n self, note: &'n Note) -> Option<&'n LeaseId> {
        let held = &self.contents.everything.addresses;
        let found = if let Kind::HeldAndReleased { place } = &note.kind {
            let holder = held.iter().find(|(held, _)| held == place).map(|(_, holder)| holder);
            if let Some(AddressHolder::Lease(id)) = holder { Some((id, place)) } else { None }
        } else if let Kind::AddressAstray { lease, place, .. } | Kind::LeaseWithoutAddress { lease, place } =
            &note.kind
        {
            Some((lease, place))
        } else {
            None
        };
        let (id, place) = found?;
        let released = self.contents.everything.released.iter().find(|(free, _)| free == place);
        let (_, released) = released?;
        let own = released.by == id.holder && released.cluster == id.cluster;
        let clean = own && !released.unconfirmed && released.declined.is_none();
        let lease = self.leases.get(id)?;
        (!clean && lease.bound().is_none() && !lease.unconfirmed).then_some(id)
    }

    /// When the container that has the lease was attached.
    fn attached_at(&self, lease: &Lease) -> Option<Revision> {
        let own = Attachment::of(&lease.id, lease.bound()?);
        self.pointing.get(&lease.id)?.contains(&&own).then_some(())?;
        self.contents.revision_of(&repairs::attachment_key(&own))
    }

    /// Is its container the one that the store has attached, or has it none?
    fn is_whole(&self, lease: &Lease) -> bool {
        lease.bound().is_none() || self.attached_at(lease).is_some()
    }

    /// Writes a lease again from what still names it. It is bound by the newest attachment, so that its DEL ends it, else
    /// held, as an adopted one: a verdict ends that with its pod.
    fn restore(&self, id: &LeaseId) -> Option<Txn> {
        let at = |key: Key| self.contents.revision_of(&key);
        let mut held: Vec<(&Place, Revision)> = Vec::new();
        for place in self.held.get(id)? {
            if !self.listed.contains(&(&place.domain, place.address)) {
                held.push((place, at(keys::address(&place.domain, place.address))?));
            }
        }
        // Of a family what was written last, and all that was written with it: the pod has moved on from the rest.
        let newest = |(place, _): &(&Place, Revision)| {
            let family = Family::of(place.address);
            held.iter().filter(|(other, _)| Family::of(other.address) == family).map(|(_, at)| *at).max()
        };
        let mut kept: Vec<(&Place, Revision)> =
            held.iter().copied().filter(|one| newest(one) == Some(one.1)).collect();
        kept.sort_by_key(|(place, _)| (place.address.is_ipv6(), place.address));
        let mut addresses = Vec::new();
        let mut pools: Vec<&Pool> = Vec::new();
        for (place, _) in &kept {
            let pool = self.pool_of(id, place).ok()?;
            pools.extend(pool);
            let pool = pool.map(|pool| pool.name().clone());
            addresses.push(LeasedAddress { address: place.address, domain: place.domain.clone(), pool });
        }
        let mut compares = Vec::new();
        for pool in &pools {
            let key = keys::pool(pool.name());
            let compare = Compare::Unchanged(key.clone(), at(key)?);
            if !compares.contains(&compare) {
                compares.push(compare);
            }
        }
        let is_own = |attachment: &Attachment| {
            let Attachment { cluster, network, ifname, .. } = attachment;
            (cluster, network, ifname) == (&id.cluster, &id.network, &id.ifname)
        };
        let mut attachments: Vec<(&Attachment, Revision)> = Vec::new();
        for attachment in self.pointing.get(id).into_iter().flatten().filter(|one| is_own(one)) {
            attachments.push((attachment, at(repairs::attachment_key(attachment))?));
        }
        let stamp = attachments.iter().max_by_key(|(_, at)| *at).map(|(attachment, _)| Stamp {
            container: attachment.container.clone(),
            node: attachment.node.clone(),
            uid: None,
            boot: None,
            boot_clock: 0,
            at: self.now,
        });
        let first = pools.first().copied();
        let lease = Lease {
            // Who kept it without a sandbox kept it for a pod that comes back: a person sees it, if it does not.
            sticky: is_sticky(first, &id.holder, None, None, &[])
                || stamp.is_none()
                    && first.is_none_or(|pool| pool.sticky() != StickyRule::Never)
                    && matches!(&id.holder, Holder::Pod { name, .. } if ordinal(name).is_some()),
            id: id.clone(),
            addresses,
            unconfirmed: stamp.is_none(),
            binding: stamp.map_or(Binding::Idle(None), Binding::Bound),
            since: self.now,
            created: self.now,
            reserved: false,
            seen: None,
        };
        let held: Vec<Revision> = kept.iter().map(|(_, at)| *at).collect();
        (!held.is_empty()).then(|| repairs::restore(&lease, &held, &attachments, &compares))
    }

    /// The pool that would lease the address to this holder, else any that has it; `None`: of inline ranges, or of a pool
    /// that is gone.
    ///
    /// # Errors
    /// It may be of a pool that cannot be read.
    fn pool_of(&self, id: &LeaseId, place: &Place) -> Result<Option<&'a Pool>, ()> {
        let all = &self.contents.everything;
        let named = |networks: &Networks| match networks {
            Networks::Every => true,
            Networks::Named(names) => names.contains(&id.network),
        };
        let fits = |pool: &&Pool| {
            *pool.domain() == place.domain
                && named(pool.networks())
                && (pool.clusters().is_empty() || pool.clusters().contains(&id.cluster))
                && pool.range_of(place.address).is_some()
        };
        let rank = |pool: &&'a Pool| {
            let close = closeness(pool, &id.holder, &self.serves).unwrap_or(u8::MAX);
            (close, pool.priority(), pool.name())
        };
        let found = all.pools.iter().filter(fits).min_by_key(rank);
        let unknown = all.unreadable.iter().any(|record| matches!(record.subject, Subject::Pool(_)));
        if found.is_none() && unknown { Err(()) } else { Ok(found) }
    }
}

/// What can be mended, without mending it.
#[must_use]
pub fn preview(notes: &[Note], contents: &Contents, now: Timestamp) -> Vec<Repair> {
    let plans = Plans::new(contents, now);
    let can = |note| if plans.of(note).is_some() { Repair::Possible } else { Repair::ByHand };
    notes.iter().map(can).collect()
}

/// Mends what can be mended. Each repair compares all that its note rests on.
///
/// # Errors
/// [`Error::Store`].
pub async fn repair<S: Store>(
    store: &S,
    notes: &[Note],
    contents: &Contents,
    now: Timestamp,
) -> Result<Vec<Repair>, Error> {
    let mut plans = Plans::new(contents, now);
    let mut out = Vec::with_capacity(notes.len());
    for note in notes {
        out.push(plans.mend(store, note).await?);
    }
    Ok(out)
}
