//! The audit of a store, and what mends it.

use super::{Error, Sent, read::Contents, send};
use crate::{
    domain::{
        audit::{Kind, Note},
        lease::Timestamp,
    },
    store::{Store, Txn, keys, repairs},
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

/// The transaction that mends a note; `None` where only a person can decide.
#[must_use]
pub fn plan(note: &Note, contents: &Contents, now: Timestamp) -> Option<Txn> {
    let at = |key| contents.revision_of(&key);
    match &note.kind {
        Kind::AddressWithoutLease { place, lease } | Kind::AddressNotListed { place, lease } => {
            let held = at(keys::address(&place.domain, place.address))?;
            let released = at(keys::released(&place.domain, place.address));
            Some(repairs::free_address(place, held, lease, at(keys::lease(lease)), released, now))
        }
        Kind::AddressAstray { place, lease, named } => {
            let held = at(keys::address(&place.domain, place.address))?;
            let released = at(keys::released(&place.domain, place.address));
            let named = (named, at(keys::lease(named)));
            Some(repairs::give_address(place, held, (lease, at(keys::lease(lease))?), named, released))
        }
        Kind::LeaseWithoutAddress { lease, place } => {
            let released = at(keys::released(&place.domain, place.address));
            Some(repairs::take_address(lease, at(keys::lease(lease))?, place, released))
        }
        Kind::LeaseWithoutAttachment { lease, attachment } => {
            Some(repairs::attach(lease, at(keys::lease(lease))?, attachment))
        }
        Kind::StaleAttachment { attachment, lease } => {
            let read = at(repairs::attachment_key(attachment))?;
            Some(repairs::detach(attachment, read, lease, at(keys::lease(lease))))
        }
        Kind::AttachmentAstray { attachment, lease, named } => {
            let read = at(repairs::attachment_key(attachment))?;
            let named = (named, at(keys::lease(named)));
            Some(repairs::give_attachment(attachment, read, (lease, at(keys::lease(lease))?), named))
        }
        Kind::HeldAndReleased { place } => {
            let held = at(keys::address(&place.domain, place.address))?;
            let released = at(keys::released(&place.domain, place.address))?;
            // A released key that cannot be read is never deleted.
            let readable = contents.everything.released.iter().any(|(other, _)| other == place);
            readable.then(|| repairs::drop_released(place, held, released))
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

/// What can be mended, without mending it.
#[must_use]
pub fn preview(notes: &[Note], contents: &Contents, now: Timestamp) -> Vec<Repair> {
    notes
        .iter()
        .map(|note| if plan(note, contents, now).is_some() { Repair::Possible } else { Repair::ByHand })
        .collect()
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
    let mut out = Vec::with_capacity(notes.len());
    for note in notes {
        out.push(match plan(note, contents, now) {
            None => Repair::ByHand,
            Some(txn) => match send(store, &txn).await? {
                Sent::Applied(_) => Repair::Done,
                Sent::Conflict => Repair::Changed,
            },
        });
    }
    Ok(out)
}
