//! Transactions that mend what no change of the table leaves behind: half pairs, stale attachments, an index that
//! differs. Each compares everything that the finding rests on, so that a store that went on is left alone.
//!
//! | finding | compares | writes |
//! |---|---|---|
//! | address without lease | each A=r, each T=r, L=0, P=r | put L, del the older T |
//! | address not listed by its lease | A=r L=r, R=0 or =r | del A, put R (unconfirmed) |
//! | address of the wrong lease | A=r L=r L(named)=r or =0, R=0 or =r | put A, del R |
//! | lease without address | L=r A=0, R=0 or =r | put A, del R |
//! | lease without attachment | L=r T=0 | put T |
//! | stale attachment | T=r, L=0 or =r | del T |
//! | attachment of the wrong lease | T=r L=r L(named)=r or =0 | put T |
//! | held and released | A=r R=r | del R |
//! | pool not indexed | P=r S=0 | put S |
//! | stale entry of the index | S=r, P=0 or =r | del S |
//!
//! A lease that is not bound and takes what R has as another's or unconfirmed is marked with it: L=r, put L.

use super::{
    Compare, Key, Revision, Txn, Write,
    changes::as_read,
    keys,
    record::{self, Stored},
};
use crate::domain::{
    audit::{Attachment, Place},
    lease::{Lease, LeaseId, Released, Timestamp},
    names::PoolName,
    pool::Serve,
};

/// The attachment's key.
#[must_use]
pub fn attachment_key(attachment: &Attachment) -> Key {
    let Attachment { cluster, node, network, container, ifname } = attachment.clone();
    keys::attachment(&keys::AttachmentId { cluster, node, network, container, ifname })
}

/// A lease that is not there is written again, with the addresses (`held`) that still name it, bound by the newest of the
/// attachments that do. Nothing is freed: it ends as any other.
#[must_use]
pub fn restore(
    lease: &Lease,
    held: &[Revision],
    attachments: &[(&Attachment, Revision)],
    pools: &[Compare],
) -> Txn {
    let key = keys::lease(&lease.id);
    let own = lease.bound().map(|stamp| Attachment::of(&lease.id, stamp));
    let mut txn = Txn {
        compares: vec![Compare::Absent(key.clone())],
        writes: vec![Write::Put(key, record::encode_lease(lease, None))],
        otherwise: Vec::new(),
    };
    for (leased, revision) in lease.addresses.iter().zip(held) {
        txn.compares.push(Compare::Unchanged(keys::address(&leased.domain, leased.address), *revision));
    }
    for (attachment, revision) in attachments {
        txn.compares.push(Compare::Unchanged(attachment_key(attachment), *revision));
        if own.as_ref() != Some(*attachment) {
            txn.writes.push(Write::Delete(attachment_key(attachment)));
        }
    }
    txn.compares.extend_from_slice(pools);
    txn
}

/// An address that its lease does not list is released. Nobody knows whether a sandbox still has it: unconfirmed.
#[must_use]
pub fn free_address(
    place: &Place,
    held: Revision,
    id: &LeaseId,
    lease: Revision,
    released: Option<Revision>,
    now: Timestamp,
) -> Txn {
    let (address, free) = (held_key(place), released_key(place));
    let record = Released {
        at: now,
        by: id.holder.clone(),
        cluster: id.cluster.clone(),
        unconfirmed: true,
        declined: None,
    };
    Txn {
        compares: vec![
            Compare::Unchanged(address.clone(), held),
            Compare::Unchanged(keys::lease(id), lease),
            as_read(free.clone(), released),
        ],
        writes: vec![Write::Delete(address), Write::Put(free, record::encode_released(&record, None))],
        otherwise: Vec::new(),
    }
}

/// A lease takes the address that it lists, if nobody has it.
#[must_use]
pub fn take_address(id: &LeaseId, lease: Revision, place: &Place, released: Option<Revision>) -> Txn {
    let (address, free) = (held_key(place), released_key(place));
    let mut writes = vec![Write::Put(address.clone(), record::encode_pointer(id))];
    writes.extend(released.map(|_| Write::Delete(free.clone())));
    Txn {
        compares: vec![
            Compare::Unchanged(keys::lease(id), lease),
            Compare::Absent(address),
            as_read(free, released),
        ],
        writes,
        otherwise: Vec::new(),
    }
}

/// A lease takes the address that it alone lists from one that does not have it (`named`; not there: `None`).
#[must_use]
pub fn give_address(
    place: &Place,
    held: Revision,
    (id, lease): (&LeaseId, Revision),
    (named, other): (&LeaseId, Option<Revision>),
    released: Option<Revision>,
) -> Txn {
    let (address, free) = (held_key(place), released_key(place));
    let mut writes = vec![Write::Put(address.clone(), record::encode_pointer(id))];
    writes.extend(released.map(|_| Write::Delete(free.clone())));
    Txn {
        compares: vec![
            Compare::Unchanged(address, held),
            Compare::Unchanged(keys::lease(id), lease),
            as_read(keys::lease(named), other),
            as_read(free, released),
        ],
        writes,
        otherwise: Vec::new(),
    }
}

/// A repair that gives a lease an address which another may use: its ADD asks the wire first.
pub fn mark(txn: &mut Txn, lease: &Stored<Lease>) {
    let key = keys::lease(&lease.value.id);
    let marked = Lease { unconfirmed: true, ..lease.value.clone() };
    txn.compares.push(Compare::Unchanged(key.clone(), lease.revision));
    txn.writes.push(Write::Put(key, record::encode_lease(&marked, Some(&lease.raw))));
}

/// A bound lease gets its attachment.
#[must_use]
pub fn attach(id: &LeaseId, lease: Revision, attachment: &Attachment) -> Txn {
    let key = attachment_key(attachment);
    Txn {
        compares: vec![Compare::Unchanged(keys::lease(id), lease), Compare::Absent(key.clone())],
        writes: vec![Write::Put(key, record::encode_pointer(id))],
        otherwise: Vec::new(),
    }
}

/// A bound lease gets its attachment from one that is not bound by it (`named`; not there: `None`).
#[must_use]
pub fn give_attachment(
    attachment: &Attachment,
    read: Revision,
    (id, lease): (&LeaseId, Revision),
    (named, other): (&LeaseId, Option<Revision>),
) -> Txn {
    let key = attachment_key(attachment);
    Txn {
        compares: vec![
            Compare::Unchanged(key.clone(), read),
            Compare::Unchanged(keys::lease(id), lease),
            as_read(keys::lease(named), other),
        ],
        writes: vec![Write::Put(key, record::encode_pointer(id))],
        otherwise: Vec::new(),
    }
}

/// An attachment that its lease does not know goes.
#[must_use]
pub fn detach(attachment: &Attachment, read: Revision, id: &LeaseId, lease: Option<Revision>) -> Txn {
    let key = attachment_key(attachment);
    Txn {
        compares: vec![Compare::Unchanged(key.clone(), read), as_read(keys::lease(id), lease)],
        writes: vec![Write::Delete(key)],
        otherwise: Vec::new(),
    }
}

/// An address that is held is not released.
#[must_use]
pub fn drop_released(place: &Place, held: Revision, released: Revision) -> Txn {
    let key = released_key(place);
    Txn {
        compares: vec![Compare::Unchanged(held_key(place), held), Compare::Unchanged(key.clone(), released)],
        writes: vec![Write::Delete(key)],
        otherwise: Vec::new(),
    }
}

/// The index learns whom a pool serves.
#[must_use]
pub fn index(serve: &Serve, pool: &PoolName, read: Revision) -> Txn {
    let key = keys::serve(serve, pool);
    Txn {
        compares: vec![Compare::Unchanged(keys::pool(pool), read), Compare::Absent(key.clone())],
        writes: vec![Write::Put(key, record::encode_serve())],
        otherwise: Vec::new(),
    }
}

/// The index forgets what a pool does not serve.
#[must_use]
pub fn unindex(serve: &Serve, name: &PoolName, read: Revision, pool: Option<Revision>) -> Txn {
    let key = keys::serve(serve, name);
    Txn {
        compares: vec![Compare::Unchanged(key.clone(), read), as_read(keys::pool(name), pool)],
        writes: vec![Write::Delete(key)],
        otherwise: Vec::new(),
    }
}

fn held_key(place: &Place) -> Key {
    keys::address(&place.domain, place.address)
}

fn released_key(place: &Place) -> Key {
    keys::released(&place.domain, place.address)
}
