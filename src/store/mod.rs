//! Where leases live: a small ordered map with revisions, in etcd or in one folder of one host.
//!
//! The contract, in the order in which callers lean on it:
//!
//! 1. A [`Txn`] is one atomic compare-and-write. There is no lock: two callers may read the same snapshot, and
//!    at most one of their commits is applied.
//! 2. A read sees one revision of everything that it asks for, and is linearizable: never a stale answer.
//! 3. A key's revision is that of its last write; it grows with every write of the store. It is compared only by
//!    the run that read it: after a restore of the store revisions come again.
//! 4. [`StoreError::Unanswered`] says nothing about the commit: it may be applied later than any read made
//!    elsewhere afterwards. The only right step is to send the same again; the store sends it elsewhere.
//!
//! What is deliberately absent: locks, leases with a time to live, watches on the path of ADD and DEL, ordering
//! and sorting by the server.

pub mod any;
pub mod changes;
pub mod etcd;
mod json;
pub mod keys;
pub mod local;
pub mod record;
pub mod repairs;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::{future::Future, time::Duration};

use thiserror::Error;

pub use keys::{Key, Span};

/// A revision of the store, or of a key: that of its last write.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Revision(pub i64);

/// One question of a read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Read {
    /// One key.
    Get(Key),
    /// All keys of an interval, in their order. Bound the interval, not the count: a server counts all of it.
    List {
        /// The interval.
        span: Span,
        /// Leave the values out; revisions come all the same.
        keys_only: bool,
        /// At most so many.
        limit: Option<u32>,
    },
    /// How many keys an interval has.
    Count(Span),
}

impl Read {
    /// All keys and values of an interval.
    #[must_use]
    pub const fn list(span: Span) -> Self {
        Self::List { span, keys_only: false, limit: None }
    }

    /// All keys of an interval without values.
    #[must_use]
    pub const fn keys(span: Span) -> Self {
        Self::List { span, keys_only: true, limit: None }
    }
}

/// A key as it was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// Its value; empty where values were left out.
    pub value: Vec<u8>,
    /// The revision of its last write.
    pub revision: Revision,
}

/// The answer to one [`Read`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Found {
    /// To a get (one or none) or a list.
    Entries(Vec<Entry>),
    /// To a count.
    Count(u64),
}

/// Answers of one read, all at one revision, in the order of the questions.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Snapshot {
    /// The store's revision.
    pub revision: Revision,
    /// One answer a question.
    pub found: Vec<Found>,
}

impl Snapshot {
    /// The entries of the answer at `index`; none where that was a count.
    #[must_use]
    pub fn entries(&self, index: usize) -> &[Entry] {
        match self.found.get(index) {
            Some(Found::Entries(entries)) => entries,
            Some(Found::Count(_)) | None => &[],
        }
    }

    /// The entry of a get.
    #[must_use]
    pub fn entry(&self, index: usize) -> Option<&Entry> {
        self.entries(index).first()
    }

    /// The number of a count; of a list, how many entries it brought.
    #[must_use]
    pub fn count(&self, index: usize) -> u64 {
        match self.found.get(index) {
            Some(Found::Count(count)) => *count,
            Some(Found::Entries(entries)) => entries.len() as u64,
            None => 0,
        }
    }
}

/// A condition of a commit. Equality only: `<` is true of an absent key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Compare {
    /// The key does not exist.
    Absent(Key),
    /// The key's last write is this one.
    Unchanged(Key, Revision),
    /// The key's value is this one, to the byte. False of an absent key.
    Value(Key, Vec<u8>),
    /// No key of the interval was written after this revision (deletions are not seen).
    NoneSince(Span, Revision),
}

/// A write of a commit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Write {
    /// Put a value.
    Put(Key, Vec<u8>),
    /// Delete a key; one that does not exist is no error.
    Delete(Key),
    /// Puts and deletions that are left out, and nothing else, if this does not hold before the commit.
    If(Compare, Vec<Self>),
}

impl Write {
    /// The key that is written for certain; `None` of [`Write::If`].
    #[must_use]
    pub const fn key(&self) -> Option<&Key> {
        match self {
            Self::Put(key, _) | Self::Delete(key) => Some(key),
            Self::If(..) => None,
        }
    }

    /// The puts and deletions that it is made of, done or left out together.
    #[must_use]
    pub const fn parts(&self) -> &[Self] {
        match self {
            Self::Put(..) | Self::Delete(_) => std::slice::from_ref(self),
            Self::If(_, writes) => writes.as_slice(),
        }
    }
}

/// One atomic compare-and-write: all compares hold and all writes are applied, or none is and `otherwise` is read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Txn {
    /// What must hold.
    pub compares: Vec<Compare>,
    /// What is written then. No key twice: etcd refuses a put and a delete of one key. What a [`Write::If`] compares is
    /// written by nothing but itself.
    pub writes: Vec<Write>,
    /// What is read if something compared has changed.
    pub otherwise: Vec<Read>,
}

/// How a commit ended.
#[must_use]
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// All compares held: the writes stand, at this revision.
    Applied(Revision),
    /// Something compared has changed; the answers to `otherwise`, at that revision.
    Conflict(Snapshot),
}

/// Why the store did not answer as asked.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum StoreError {
    /// Nothing was sent, or only reads: nothing can have changed.
    #[error("store not reached: {reason}")]
    NotReached {
        /// Each endpoint that was tried, with its cause.
        reason: String,
    },
    /// A commit was sent and no answer came, or one that proves nothing: it may or may not stand, now or later.
    #[error("no answer from {endpoint} after {} ms: {reason}", waited.as_millis())]
    Unanswered {
        /// Where it was sent.
        endpoint: String,
        /// How long was waited.
        waited: Duration,
        /// What was seen.
        reason: String,
    },
    /// Refused before it was proposed: the request, the permission or the credentials are wrong.
    #[error("{endpoint} refused the request: {reason}")]
    Refused {
        /// Who refused.
        endpoint: String,
        /// Its words.
        reason: String,
    },
    /// A certificate, key or CA file, or what it holds, is wrong.
    #[error("{path}: {reason}")]
    Credentials {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The revision that was asked for is compacted away: begin again.
    #[error("revision {} is compacted", .0.0)]
    Compacted(Revision),
    /// It is behind what it has answered before, as after a restore: what was read is of another past. Said once; what is
    /// read from now on is of this one.
    #[error("the store went back from revision {} to {}", from.0, to.0)]
    WentBack {
        /// What was seen of it.
        from: Revision,
        /// Where it is now.
        to: Revision,
    },
}

/// A store. See the module for the contract.
pub trait Store: Sync {
    /// Reads at the latest revision, or at `at`.
    ///
    /// # Errors
    /// [`StoreError`]; never `Unanswered`: a read that is not answered is asked elsewhere, and then not reached.
    fn read(
        &self,
        reads: &[Read],
        at: Option<Revision>,
    ) -> impl Future<Output = Result<Snapshot, StoreError>> + Send;

    /// Sends one transaction, once. After `Unanswered` the next call goes to another endpoint, if there is one.
    ///
    /// # Errors
    /// [`StoreError`].
    fn commit(&self, txn: &Txn) -> impl Future<Output = Result<Outcome, StoreError>> + Send;
}

impl<S: Store> Store for &S {
    fn read(
        &self,
        reads: &[Read],
        at: Option<Revision>,
    ) -> impl Future<Output = Result<Snapshot, StoreError>> + Send {
        (**self).read(reads, at)
    }

    fn commit(&self, txn: &Txn) -> impl Future<Output = Result<Outcome, StoreError>> + Send {
        (**self).commit(txn)
    }
}

/// How full a store is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Fill {
    /// Bytes of its largest member.
    pub size: u64,
    /// At so many bytes it takes no more writes, if it says so.
    pub quota: Option<u64>,
    /// Alarms and other complaints of its members.
    pub alarms: usize,
}

/// What a store has done to it beside reads and commits.
pub trait Upkeep: Sync {
    /// How full it is; `None` where nobody can tell.
    fn fill(&self) -> impl Future<Output = Option<Fill>> + Send;

    /// Forgets what was before this revision, where history is kept at all. Done already is done.
    ///
    /// # Errors
    /// [`StoreError`].
    fn compact_to(&self, revision: Revision) -> impl Future<Output = Result<(), StoreError>> + Send;
}

impl<S: Upkeep> Upkeep for &S {
    fn fill(&self) -> impl Future<Output = Option<Fill>> + Send {
        (**self).fill()
    }

    fn compact_to(&self, revision: Revision) -> impl Future<Output = Result<(), StoreError>> + Send {
        (**self).compact_to(revision)
    }
}
