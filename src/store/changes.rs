//! The table of transactions: every change that anybody makes to leases and pools, what it compares and what it
//! writes. Nothing else builds a [`Txn`] that writes one of these keys.
//!
//! L lease, A address, R released, T attachment, P pool, C cluster, M meta, F frozen; `=r` as read, `=0` absent, `A=L` names this lease:
//!
//! | change | compares | writes |
//! |---|---|---|
//! | [`bind_new`] | L=0 F=0 P; each A=0, R=0 or =r | put L T A, del R |
//! | [`take_over`] | L=r P | put L T, del the old T (if another key) |
//! | [`take_over_elsewhere`] | L=r F=0 P; new A=0, R=0 or =r | put L T A, del T R(new); if A(old)=L: del A(old), put R(old) |
//! | [`rebind`] | L=r | put L |
//! | [`decline`] | A=0 R=r | put R with the MAC |
//! | [`refresh_released`] | A=0 R=r | put R with the time of now |
//! | [`end`] (DEL, journal, GC) | L=r F=0 or =r | as [`unbind`]; unconfirmed where F is |
//! | [`unbind`] (undo) | L=r | sticky, reserved: put L, del T; other: del L T; if A=L: del A, put R |
//! | [`release`] (a person) | L=r F=0 or =r | as [`give_back`]; unconfirmed where F is, or the lease is bound |
//! | [`give_back`] | L=r | del L T; if A=L: del A, put R |
//! | [`reap`] (a verdict) | L=r | bound: as [`unbind`]; held: as [`give_back`]; always unconfirmed |
//! | [`note`] | L=r | put L |
//! | [`reaped`] | C=r | put C with the time of a pass |
//! | [`register`] | M, C =r or =0 | put those of M and C that are missing |
//! | [`unregister`] | C=r, and perhaps no lease of it written since R | del C |
//! | [`confirm`] (a person) | A=0 R=r | put R without its marks |
//! | [`forget`] | R=r (not marked) | del R |
//! | [`reserve`] | L=0 F=0 or =r, A=0 R=0 or =r, P | put L A, del R |
//! | [`reserve_device`] | A=0 R=0 or =r | put A, del R |
//! | [`release_device`] | A=r | del A, put R |
//! | [`move_lease`] (not bound) | L(from)=r L(to)=0 A=L(from) | put L(to) A, del L(from) |
//! | [`freeze`] | F=0 | put F |
//! | [`thaw`] | F=r, M=r or =0 | del F, put M with another identity |
//! | [`apply_pool`] | P=r or =0 | put P, serves; del serves |
//! | [`delete_pool`] | P=r and no address of its ranges written since R | del P, serves |
//!
//! The compares are of what was read, by revision; a document from a cache on disk is compared by value.

use std::net::IpAddr;

use super::{
    Compare, Key, Read, Revision, Span, Txn, Write, keys,
    keys::AttachmentId,
    record::{self, Cluster, Frozen, Meta, PoolDocument, Stored},
};
use crate::domain::{
    lease::{Binding, Declined, Holder, Lease, LeaseId, LeasedAddress, Released, Seen, Stamp, Timestamp},
    names::{ClusterName, DomainName, PoolName, StoreId, Uid},
    pool::{Pool, Serve},
    reap::Confirmed,
};

/// An address to be taken, and its released key as it was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Take {
    /// The address.
    pub address: LeasedAddress,
    /// The revision of its released key; `None` if there was none.
    pub released: Option<Revision>,
}

/// The compare of a key that was read, or was not there.
#[must_use]
pub fn as_read(key: Key, revision: Option<Revision>) -> Compare {
    match revision {
        Some(revision) => Compare::Unchanged(key, revision),
        None => Compare::Absent(key),
    }
}

fn address_key(address: &LeasedAddress) -> Key {
    keys::address(&address.domain, address.address)
}

fn released_key(address: &LeasedAddress) -> Key {
    keys::released(&address.domain, address.address)
}

/// The attachment key of a lease bound by this run.
#[must_use]
pub fn attachment_key(id: &LeaseId, stamp: &Stamp) -> Key {
    keys::attachment(&AttachmentId {
        cluster: id.cluster.clone(),
        node: stamp.node.clone(),
        network: id.network.clone(),
        container: stamp.container.clone(),
        ifname: id.ifname.clone(),
    })
}

/// A lease as a transaction that was applied at this revision wrote it.
#[must_use]
pub fn as_written(txn: &Txn, lease: Lease, revision: Revision) -> Stored<Lease> {
    let key = keys::lease(&lease.id);
    let raw = txn.writes.iter().find_map(|write| match write {
        Write::Put(written, value) if *written == key => Some(value.clone()),
        Write::Put(..) | Write::Delete(_) | Write::If(..) => None,
    });
    debug_assert!(raw.is_some());
    Stored { value: lease, revision, raw: raw.unwrap_or_default() }
}

impl Txn {
    fn compare(&mut self, compare: Compare) {
        if !self.compares.contains(&compare) {
            self.compares.push(compare);
        }
    }

    fn put(&mut self, key: Key, value: Vec<u8>) {
        self.writes.push(Write::Put(key, value));
    }

    fn delete(&mut self, key: Key) {
        self.writes.push(Write::Delete(key));
    }

    fn take(&mut self, id: &LeaseId, take: &Take) {
        let (held, released) = (address_key(&take.address), released_key(&take.address));
        self.compare(Compare::Absent(held.clone()));
        self.compare(as_read(released.clone(), take.released));
        self.put(held, record::encode_pointer(id));
        if take.released.is_some() {
            self.delete(released);
        }
    }

    /// What a store that was mended by hand says is another's stays the other's: the lease only lists it.
    fn free(&mut self, lease: &Lease, address: &LeasedAddress, released: &Released) {
        let (held, free) = (address_key(address), released_key(address));
        let own = Compare::Value(held.clone(), record::encode_pointer(&lease.id));
        let released = record::encode_released(released, None);
        self.writes.push(Write::If(own, vec![Write::Delete(held), Write::Put(free, released)]));
    }

    fn detach(&mut self, lease: &Lease) {
        if let Some(stamp) = lease.bound() {
            self.delete(attachment_key(&lease.id, stamp));
        }
    }

    fn attach(&mut self, lease: &Lease, old: Option<&Lease>) {
        let Some(stamp) = lease.bound() else { return };
        let key = attachment_key(&lease.id, stamp);
        if let Some(old) = old.and_then(|old| old.bound().map(|stamp| attachment_key(&old.id, stamp)))
            && old != key
        {
            self.delete(old);
        }
        self.put(key, record::encode_pointer(&lease.id));
    }
}

/// A first ADD. `pools` are the compares of the pools that it rests on.
#[must_use]
pub fn bind_new(lease: &Lease, takes: &[Take], pools: &[Compare]) -> Txn {
    let mut txn = Txn::default();
    let key = keys::lease(&lease.id);
    txn.compare(Compare::Absent(key.clone()));
    txn.compare(Compare::Absent(keys::frozen()));
    txn.put(key, record::encode_lease(lease, None));
    txn.attach(lease, None);
    for take in takes {
        txn.take(&lease.id, take);
    }
    for pool in pools {
        txn.compare(pool.clone());
    }
    txn
}

/// An ADD of a pod whose lease fits: same addresses, new container.
#[must_use]
pub fn take_over(old: &Stored<Lease>, lease: &Lease, pools: &[Compare]) -> Txn {
    let mut txn = Txn::default();
    let key = keys::lease(&lease.id);
    txn.compare(Compare::Unchanged(key.clone(), old.revision));
    txn.put(key, record::encode_lease(lease, Some(&old.raw)));
    txn.attach(lease, Some(&old.value));
    for pool in pools {
        txn.compare(pool.clone());
    }
    txn
}

/// An ADD of a pod whose lease does not fit, or not wholly: new addresses in, old ones out, the rest stays.
/// Nothing new is taken while the store is frozen; giving addresses up is not taking.
#[must_use]
pub fn take_over_elsewhere(
    old: &Stored<Lease>,
    lease: &Lease,
    takes: &[Take],
    pools: &[Compare],
    now: Timestamp,
) -> Txn {
    let mut txn = take_over(old, lease, pools);
    if !takes.is_empty() {
        txn.compare(Compare::Absent(keys::frozen()));
    }
    for take in takes {
        txn.take(&lease.id, take);
    }
    // The old sandbox, if one had it, was never DELed: somebody may still answer on the address that it leaves.
    let released = given_back(&old.value, old.value.bound().is_some() || old.value.unconfirmed, now);
    for gone in old.value.addresses.iter().filter(|a| !lease.addresses.iter().any(|b| same_key(a, b))) {
        txn.free(&old.value, gone, &released);
    }
    txn
}

fn same_key(a: &LeasedAddress, b: &LeasedAddress) -> bool {
    a.address == b.address && a.domain == b.domain
}

fn given_back(lease: &Lease, unconfirmed: bool, now: Timestamp) -> Released {
    Released {
        at: now,
        by: lease.id.holder.clone(),
        cluster: lease.id.cluster.clone(),
        unconfirmed,
        declined: None,
    }
}

/// The same container once more, of a caller without a pod: its ID comes again, so a late DEL of its last life
/// must fail.
#[must_use]
pub fn rebind(old: &Stored<Lease>, lease: &Lease) -> Txn {
    note(old, lease)
}

/// A field of a lease that changes nothing of who has what.
#[must_use]
pub fn note(old: &Stored<Lease>, lease: &Lease) -> Txn {
    let mut txn = Txn::default();
    let key = keys::lease(&lease.id);
    txn.compare(Compare::Unchanged(key.clone(), old.revision));
    txn.put(key, record::encode_lease(lease, Some(&old.raw)));
    txn
}

/// The end of a lease's sandbox by its DEL. In a store that is frozen, and may have been set back, its address may be another's
/// since.
#[must_use]
pub fn end(old: &Stored<Lease>, frozen: Option<Revision>, now: Timestamp) -> Txn {
    let mut txn = unbind(old, frozen.is_some(), now);
    txn.compare(as_read(keys::frozen(), frozen));
    txn
}

/// The end of a lease's sandbox. `unconfirmed`: not by its DEL.
#[must_use]
pub fn unbind(old: &Stored<Lease>, unconfirmed: bool, now: Timestamp) -> Txn {
    if !old.value.sticky && !old.value.reserved {
        return give_back(old, unconfirmed, now);
    }
    let mut lease = old.value.clone();
    lease.binding = Binding::Idle(old.value.last().cloned());
    lease.since = now;
    lease.unconfirmed = unconfirmed;
    // It was the pod that was missed; from now on it is the controller that may be.
    let controller = lease.seen.take().and_then(|seen| seen.controller);
    lease.seen = controller.map(|controller| Seen { controller: Some(controller), ..Seen::default() });
    let mut txn = note(old, &lease);
    txn.detach(&old.value);
    txn
}

/// A person ends a lease; and may somebody still answer? Its sandbox may, or in a store that is frozen another's.
#[must_use]
pub fn release(old: &Stored<Lease>, frozen: Option<Revision>, now: Timestamp) -> (Txn, bool) {
    let unconfirmed = old.value.bound().is_some() || old.value.unconfirmed || frozen.is_some();
    let mut txn = give_back(old, unconfirmed, now);
    txn.compare(as_read(keys::frozen(), frozen));
    (txn, unconfirmed)
}

/// The end of a lease: its addresses are released.
#[must_use]
pub fn give_back(old: &Stored<Lease>, unconfirmed: bool, now: Timestamp) -> Txn {
    let mut txn = Txn::default();
    let key = keys::lease(&old.value.id);
    txn.compare(Compare::Unchanged(key.clone(), old.revision));
    txn.delete(key);
    txn.detach(&old.value);
    let released = given_back(&old.value, unconfirmed, now);
    for address in &old.value.addresses {
        txn.free(&old.value, address, &released);
    }
    txn
}

/// The reaper ends a lease: this is its only way. `None` if the lease is no longer the one that was judged.
#[must_use]
pub fn reap(confirmed: &Confirmed, old: &Stored<Lease>, now: Timestamp) -> Option<Txn> {
    if *confirmed.lease() != old.value {
        return None;
    }
    Some(match old.value.binding {
        // No DEL has told that nobody answers any more.
        Binding::Bound(_) => unbind(old, true, now),
        // The DEL of a held one has, but in a store that was set back the address may be another's since.
        Binding::Idle(_) => give_back(old, true, now),
    })
}

/// A stranger answers on a free address. Without a released key (a fresh address, probed) one is made.
#[must_use]
pub fn decline(
    domain: &DomainName,
    address: IpAddr,
    old: Option<&Stored<Released>>,
    by: (&Holder, &ClusterName),
    declined: Declined,
) -> Txn {
    let mut released = old.map_or_else(
        || Released {
            at: declined.at,
            by: by.0.clone(),
            cluster: by.1.clone(),
            unconfirmed: false,
            declined: None,
        },
        |old| old.value.clone(),
    );
    released.declined = Some(declined);
    put_released(domain, address, old, &released)
}

/// A released key whose times lie in the future (clocks differ) begins them now.
#[must_use]
pub fn refresh_released(domain: &DomainName, address: IpAddr, old: &Stored<Released>, now: Timestamp) -> Txn {
    let mut released = old.value.clone();
    released.at = released.at.min(now);
    if let Some(declined) = &mut released.declined {
        declined.at = declined.at.min(now);
    }
    put_released(domain, address, Some(old), &released)
}

/// A person says that nobody answers on a free address, where no probe can.
#[must_use]
pub fn confirm(domain: &DomainName, address: IpAddr, old: &Stored<Released>, now: Timestamp) -> Txn {
    let at = old.value.at.min(now);
    let released = Released { at, unconfirmed: false, declined: None, ..old.value.clone() };
    put_released(domain, address, Some(old), &released)
}

fn put_released(
    domain: &DomainName,
    address: IpAddr,
    old: Option<&Stored<Released>>,
    released: &Released,
) -> Txn {
    let mut txn = Txn::default();
    let key = keys::released(domain, address);
    txn.compare(Compare::Absent(keys::address(domain, address)));
    txn.compare(as_read(key.clone(), old.map(|old| old.revision)));
    txn.put(key, record::encode_released(released, old.map(|old| old.raw.as_slice())));
    txn
}

/// A released key is dropped: the address was given back long ago. `None` while somebody may still answer.
#[must_use]
pub fn forget(domain: &DomainName, address: IpAddr, old: &Stored<Released>) -> Option<Txn> {
    if old.value.unconfirmed {
        return None;
    }
    let mut txn = Txn::default();
    let key = keys::released(domain, address);
    txn.compare(Compare::Unchanged(key.clone(), old.revision));
    txn.delete(key);
    Some(txn)
}

/// A pass of the reaper has come to its end.
#[must_use]
pub fn reaped(name: &ClusterName, old: &Stored<Cluster>, at: Timestamp) -> Txn {
    let mut txn = Txn::default();
    let key = keys::cluster(name);
    txn.compare(Compare::Unchanged(key.clone(), old.revision));
    let next = Cluster { last_reap: Some(at), ..old.value.clone() };
    txn.put(key, record::encode_cluster(&next, Some(&old.raw)));
    txn
}

/// A cluster may lease from now on, in a store that has an identity: its own, else `fresh`. `meta` and `there` are what was
/// read of both.
#[must_use]
pub fn register(
    (name, uid): (&ClusterName, &Uid),
    there: Option<Revision>,
    meta: Option<Revision>,
    fresh: &StoreId,
) -> Txn {
    let mut txn = Txn::default();
    txn.compare(as_read(keys::meta(), meta));
    if meta.is_none() {
        txn.put(keys::meta(), record::encode_meta(&Meta { store: fresh.clone() }));
    }
    let key = keys::cluster(name);
    txn.compare(as_read(key.clone(), there));
    if there.is_none() {
        txn.put(key, record::encode_cluster(&Cluster { uid: uid.clone(), last_reap: None }, None));
    }
    txn
}

/// A cluster is forgotten; `unless` a lease of it was written since.
#[must_use]
pub fn unregister(name: &ClusterName, read: Revision, unless: Option<Revision>) -> Txn {
    let mut txn = Txn::default();
    let key = keys::cluster(name);
    txn.compare(Compare::Unchanged(key.clone(), read));
    if let Some(since) = unless {
        txn.compare(Compare::NoneSince(keys::leases_of(name), since));
    }
    txn.delete(key);
    txn
}

/// A person gives a pod its addresses before it asks. `rests_on` are the compares of the pools and of the freeze.
#[must_use]
pub fn reserve(lease: &Lease, takes: &[Take], rests_on: &[Compare]) -> Txn {
    let mut txn = Txn::default();
    let key = keys::lease(&lease.id);
    txn.compare(Compare::Absent(key.clone()));
    txn.put(key, record::encode_lease(lease, None));
    for take in takes {
        txn.take(&lease.id, take);
    }
    for compare in rests_on {
        txn.compare(compare.clone());
    }
    txn
}

/// A person takes an address for something that is no pod.
#[must_use]
pub fn reserve_device(
    domain: &DomainName,
    address: IpAddr,
    released: Option<Revision>,
    reason: &str,
    now: Timestamp,
) -> Txn {
    let mut txn = Txn::default();
    let (held, free) = (keys::address(domain, address), keys::released(domain, address));
    txn.compare(Compare::Absent(held.clone()));
    txn.compare(as_read(free.clone(), released));
    txn.put(held, record::encode_device(reason, now));
    if released.is_some() {
        txn.delete(free);
    }
    txn
}

/// A person gives a device's address back. Whether the device is gone only it knows: unconfirmed.
#[must_use]
pub fn release_device(
    domain: &DomainName,
    address: IpAddr,
    held: Revision,
    by: (&Holder, &ClusterName),
    now: Timestamp,
) -> Txn {
    let mut txn = Txn::default();
    let key = keys::address(domain, address);
    txn.compare(Compare::Unchanged(key.clone(), held));
    txn.delete(key);
    let released =
        Released { at: now, by: by.0.clone(), cluster: by.1.clone(), unconfirmed: true, declined: None };
    txn.put(keys::released(domain, address), record::encode_released(&released, None));
    txn
}

/// A lease that no sandbox uses goes to another pod. `None` if it is bound. Its last sandbox, if that ended a moment ago, by
/// clocks that differ, may still be heard: the other pod's ADD asks the wire first.
#[must_use]
pub fn move_lease(from: &Stored<Lease>, to: &LeaseId, now: Timestamp) -> Option<Txn> {
    if from.value.bound().is_some() {
        return None;
    }
    let mut lease = from.value.clone();
    lease.id = to.clone();
    lease.since = now;
    lease.seen = None;
    lease.unconfirmed |= from.value.last().is_some() && from.value.since.is_recent(now);
    let (old, new) = (keys::lease(&from.value.id), keys::lease(to));
    let mut txn = Txn::default();
    txn.compare(Compare::Unchanged(old.clone(), from.revision));
    txn.compare(Compare::Absent(new.clone()));
    txn.delete(old);
    txn.put(new, record::encode_lease(&lease, Some(&from.raw)));
    for address in &lease.addresses {
        let held = address_key(address);
        txn.compare(Compare::Value(held.clone(), record::encode_pointer(&from.value.id)));
        txn.put(held, record::encode_pointer(to));
    }
    Some(txn)
}

/// Nothing new is leased from now on. Who comes second finds the reason of the first.
#[must_use]
pub fn freeze(frozen: &Frozen) -> Txn {
    let mut txn = Txn::default();
    txn.compare(Compare::Absent(keys::frozen()));
    txn.put(keys::frozen(), record::encode_frozen(frozen));
    txn.otherwise.push(Read::Get(keys::frozen()));
    txn
}

/// A freeze ends, and the store is another from then on: journals of before are not replayed into it.
#[must_use]
pub fn thaw(frozen: Revision, meta: Option<Revision>, fresh: &StoreId) -> Txn {
    let mut txn = Txn::default();
    txn.compare(Compare::Unchanged(keys::frozen(), frozen));
    txn.compare(as_read(keys::meta(), meta));
    txn.delete(keys::frozen());
    txn.put(keys::meta(), record::encode_meta(&Meta { store: fresh.clone() }));
    txn
}

/// The compare of a pool that was read.
#[must_use]
pub fn pool_as_read(pool: &Stored<Pool>) -> Compare {
    Compare::Unchanged(keys::pool(pool.value.name()), pool.revision)
}

/// A pool is made or changed, and the index of whom it serves with it. `unless` holds intervals of addresses that
/// must not have been written since that revision (a change that is refused while the pool has leases).
#[must_use]
pub fn apply_pool(
    document: &PoolDocument,
    pool: &Pool,
    old: Option<(&[Serve], Revision)>,
    unless: &[(Span, Revision)],
) -> Txn {
    let mut txn = Txn::default();
    let key = keys::pool(pool.name());
    txn.compare(as_read(key.clone(), old.map(|(_, revision)| revision)));
    for (span, revision) in unless {
        txn.compare(Compare::NoneSince(span.clone(), *revision));
    }
    txn.put(key, record::encode_pool(document));
    let before = old.map_or(&[][..], |(serves, _)| serves);
    for serve in before.iter().filter(|serve| !pool.serves().contains(serve)) {
        txn.delete(keys::serve(serve, pool.name()));
    }
    for serve in pool.serves().iter().filter(|serve| !before.contains(serve)) {
        txn.put(keys::serve(serve, pool.name()), record::encode_serve());
    }
    txn
}

/// A pool is deleted. `ranges` are the intervals of its addresses, counted empty of its leases at `since`.
#[must_use]
pub fn delete_pool(
    name: &PoolName,
    serves: &[Serve],
    read: Revision,
    ranges: &[Span],
    since: Revision,
) -> Txn {
    let mut txn = Txn::default();
    let key = keys::pool(name);
    txn.compare(Compare::Unchanged(key.clone(), read));
    for span in ranges {
        txn.compare(Compare::NoneSince(span.clone(), since));
    }
    txn.delete(key);
    for serve in serves {
        txn.delete(keys::serve(serve, name));
    }
    txn
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        kubernetes::Answer,
        names::{ContainerId, IfName, Namespace, NetworkName, NodeName, PodName},
        pool::{NodeLost, Retain, Retention, StickyRule},
        reap::{self, Case, Policy, PoolPolicy, Verdict},
    };
    use std::time::Duration;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn ago(seconds: i64) -> Timestamp {
        Timestamp(NOW.0 - seconds * 1000)
    }

    /// Of a pod that was missed for ten minutes, or held for longer than its pool allows.
    fn lease(bound: bool, sticky: bool, unconfirmed: bool) -> Stored<Lease> {
        let stamp = Stamp {
            container: ContainerId::new("c1").unwrap(),
            node: NodeName::new("n1").unwrap(),
            uid: None,
            boot: None,
            boot_clock: 1,
            at: ago(3600),
        };
        let address = LeasedAddress {
            address: "10.0.0.1".parse().unwrap(),
            domain: DomainName::new("default").unwrap(),
            pool: None,
        };
        let holder =
            Holder::Pod { namespace: Namespace::new("shop").unwrap(), name: PodName::new("bare").unwrap() };
        let id = LeaseId {
            cluster: ClusterName::new("prod").unwrap(),
            holder,
            network: NetworkName::new("lan").unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        };
        let value = Lease {
            id,
            addresses: vec![address],
            binding: if bound { Binding::Bound(stamp) } else { Binding::Idle(Some(stamp)) },
            since: ago(3600),
            created: ago(3600),
            sticky,
            reserved: false,
            unconfirmed,
            seen: Some(Seen { missed: Some(ago(600)), ..Seen::default() }),
        };
        let raw = record::encode_lease(&value, None);
        Stored { value, revision: Revision(7), raw }
    }

    fn confirmed(lease: &Lease) -> Confirmed {
        let retention = Retention {
            when_deleted: Retain::Delete,
            when_scaled: Retain::Retain,
            hold_for: Duration::from_secs(60),
        };
        let case = Case {
            lease,
            cluster: &lease.id.cluster,
            pools: Answer::Present(PoolPolicy {
                node_lost: NodeLost::Free,
                retention,
                sticky: StickyRule::Auto,
            }),
            pod: Answer::Absent,
            node: Answer::Absent,
            controller: Answer::Absent,
        };
        let Verdict::Give(give) = reap::verdict(&case, &Policy::default(), NOW) else { panic!() };
        reap::confirm(&give, &case, &[], &Policy::default(), NOW).unwrap()
    }

    #[test]
    fn what_the_reaper_ends_was_never_deled() {
        let (plain, sticky) = (lease(true, false, false), lease(true, true, false));
        let unconfirmed = |stored: &Stored<Lease>| reap(&confirmed(&stored.value), stored, NOW).unwrap();
        assert_eq!(unconfirmed(&plain), give_back(&plain, true, NOW));
        let held = unconfirmed(&sticky);
        assert_eq!(held, unbind(&sticky, true, NOW));
        // What was missed was the pod: nothing has missed the controller yet.
        let lease = Lease {
            binding: Binding::Idle(sticky.value.last().cloned()),
            since: NOW,
            unconfirmed: true,
            seen: None,
            ..sticky.value.clone()
        };
        let key = keys::lease(&lease.id);
        assert_eq!(held.writes[0], Write::Put(key, record::encode_lease(&lease, Some(&sticky.raw))));
    }

    #[test]
    fn a_held_lease_is_given_back_unconfirmed_whatever_mark_it_has() {
        for mark in [true, false] {
            let held = lease(false, true, mark);
            assert_eq!(reap(&confirmed(&held.value), &held, NOW), Some(give_back(&held, true, NOW)));
        }
    }

    #[test]
    fn b049_a_lease_that_is_not_the_confirmed_one_stays() {
        let judged = lease(true, false, false);
        let proof = confirmed(&judged.value);
        let mut other = judged.clone();
        other.value.sticky = true;
        assert_eq!(reap(&proof, &other, NOW), None);
        assert!(reap(&proof, &judged, NOW).is_some());
    }
}
