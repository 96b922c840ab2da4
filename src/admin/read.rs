//! Everything in a store at one revision, page by page: no answer may grow with the store (B112).

use std::{cell::RefCell, collections::HashMap, mem};

use super::Error;
use crate::{
    domain::{
        audit::{Attachment, Everything, Place, Subject, Unreadable},
        names::{ClusterName, PoolName},
    },
    store::{
        Entry, Found, Key, Read, Revision, Span, Store, StoreError, keys,
        record::{self, Cluster, Frozen, Meta, RecordError},
    },
};

/// A lease has some 500 bytes, and seldom over 1 000: a page stays below 10 MiB, and the store takes 64. Few pages,
/// since etcd counts the rest of the interval for each.
const PAGE: u32 = 10_000;
/// A pool's document with 60 `serves` and 32 ranges has some 10 KiB.
const POOL_PAGE: u32 = 200;
/// A store that compacts faster than it can be read is not read by trying longer.
const TRIES: usize = 5;

/// What is looked at between two looks at the connection.
const BREATH: usize = 1_000;

/// Reads intervals at one revision, page by page; begins again if that revision is compacted meanwhile.
///
/// # Errors
/// [`StoreError`].
pub async fn read_spans<S: Store>(
    store: &S,
    spans: &[Span],
) -> Result<(Revision, Vec<Vec<Entry>>), StoreError> {
    let none = || vec![Vec::new(); spans.len()];
    read_each(store, spans, &[], none, |found, index, entry| found[index].push(entry)).await
}

/// The same, but hands on each entry, with the index of its interval, while the next page is on its way: a store and
/// its reader work side by side, and what has been looked at need not be kept. The intervals `beside` are read at the
/// same time as `spans`, and their indices follow. `none` is what there is before the first entry.
///
/// # Errors
/// [`StoreError`].
pub(crate) async fn read_each<S: Store, T>(
    store: &S,
    spans: &[Span],
    beside: &[Span],
    none: impl Fn() -> T,
    take: impl Fn(&mut T, usize, Entry),
) -> Result<(Revision, T), StoreError> {
    let mut tries = TRIES;
    loop {
        tries -= 1;
        let out = RefCell::new(none());
        let take = |index, entry| take(&mut out.borrow_mut(), index, entry);
        match read_once(store, spans, beside, &take).await {
            Err(StoreError::Compacted(_)) if tries > 0 => {}
            ended => return ended.map(|at| (at, out.into_inner())),
        }
    }
}

async fn read_once<S: Store>(
    store: &S,
    spans: &[Span],
    beside: &[Span],
    take: &impl Fn(usize, Entry),
) -> Result<Revision, StoreError> {
    let (mut pages, mut others) = (Pages::of(spans, 0), Pages::of(beside, spans.len()));
    // The first answer says at which revision the rest is read.
    let at = pages.turn(store, None, take).await?;
    tokio::try_join!(biased; pages.rest(store, at, take), others.rest(store, at, take))?;
    Ok(at.unwrap_or_default())
}

/// The way through some intervals, one after another.
struct Pages<'a> {
    spans: &'a [Span],
    /// The index that the first of them has.
    first: usize,
    /// Where the next page begins, and in which of them.
    next: Option<(usize, Span)>,
    /// The entries that have come, and of which of them.
    come: (usize, Vec<Entry>),
}

impl<'a> Pages<'a> {
    fn of(spans: &'a [Span], first: usize) -> Self {
        Self { spans, first, next: spans.first().map(|span| (0, span.clone())), come: (0, Vec::new()) }
    }

    /// Hands on the page that has come, and gets the next meanwhile.
    async fn turn<S: Store>(
        &mut self,
        store: &S,
        at: Option<Revision>,
        take: &impl Fn(usize, Entry),
    ) -> Result<Option<Revision>, StoreError> {
        let (index, come) = mem::take(&mut self.come);
        let work = async {
            for (done, entry) in come.into_iter().enumerate() {
                if done % BREATH == 0 {
                    tokio::task::yield_now().await;
                }
                take(self.first + index, entry);
            }
        };
        let Some((index, span)) = self.next.take() else {
            work.await;
            return Ok(at);
        };
        let limit = page_of(&self.spans[index]);
        let reads = [Read::List { span: span.clone(), keys_only: false, limit: Some(limit) }];
        // First the question goes out.
        let (answer, ()) = tokio::join!(biased; store.read(&reads, at), work);
        let mut snapshot = answer?;
        let entries = match snapshot.found.pop() {
            Some(Found::Entries(entries)) => entries,
            Some(Found::Count(_)) | None => Vec::new(),
        };
        self.next = match entries.last() {
            Some(last) if entries.len() >= limit as usize => Some((index, span.after(&last.key))),
            Some(_) | None => self.spans.get(index + 1).map(|span| (index + 1, span.clone())),
        };
        self.come = (index, entries);
        Ok(at.or(Some(snapshot.revision)))
    }

    async fn rest<S: Store>(
        &mut self,
        store: &S,
        at: Option<Revision>,
        take: &impl Fn(usize, Entry),
    ) -> Result<(), StoreError> {
        while self.next.is_some() || !self.come.1.is_empty() {
            self.turn(store, at, take).await?;
        }
        Ok(())
    }
}

fn page_of(span: &Span) -> u32 {
    if *span == keys::pools() { POOL_PAGE } else { PAGE }
}

/// What a store holds.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// The revision at which it was read.
    pub revision: Revision,
    /// What it means.
    pub everything: Everything,
    /// The revision of each key, for compares.
    pub revisions: HashMap<Key, Revision>,
    /// The store's identity, once it has one.
    pub meta: Option<Meta>,
    /// Why nothing new is leased.
    pub frozen: Option<Frozen>,
    /// The registered clusters.
    pub clusters: Vec<(ClusterName, Cluster)>,
}

/// All of it.
///
/// # Errors
/// [`Error::Store`].
pub async fn read_everything<S: Store>(store: &S) -> Result<Contents, Error> {
    let spans = [
        one(&keys::meta()),
        one(&keys::frozen()),
        keys::clusters(),
        keys::pools(),
        keys::serves(),
        keys::leases(),
    ];
    let beside = [keys::addresses(), keys::all_released(), keys::attachments()];
    let take = |contents: &mut Contents, _, entry| contents.take(&entry);
    let (revision, contents) = read_each(store, &spans, &beside, Contents::default, take).await?;
    Ok(Contents { revision, ..contents })
}

/// The interval of one key.
pub(crate) fn one(key: &Key) -> Span {
    Span { from: key.as_str().to_owned(), to: format!("{}\0", key.as_str()) }
}

impl Contents {
    /// Contents of these entries, of any keys of ours.
    #[must_use]
    pub fn of(revision: Revision, entries: &[Entry]) -> Self {
        let mut contents = Self { revision, ..Self::default() };
        for entry in entries {
            contents.take(entry);
        }
        contents
    }

    /// The revision of a key; `None` if it is not there.
    #[must_use]
    pub fn revision_of(&self, key: &Key) -> Option<Revision> {
        self.revisions.get(key).copied()
    }

    fn take(&mut self, entry: &Entry) {
        self.revisions.insert(entry.key.clone(), entry.revision);
        if let Err(unreadable) = self.decode(entry) {
            self.everything.unreadable.push(*unreadable);
        }
    }

    fn decode(&mut self, entry: &Entry) -> Result<(), Box<Unreadable>> {
        let all = &mut self.everything;
        let bad_key = || {
            Box::new(Unreadable {
                key: entry.key.to_string(),
                subject: Subject::Unknown,
                reason: "the key names nothing".into(),
                newer: false,
            })
        };
        let unreadable = |subject, error| Box::new(unreadable(subject, error));
        let (_, rest) = entry.key.as_str().split_once('/').ok_or_else(bad_key)?;
        let kind = rest.split_once('/').map_or(rest, |(kind, _)| kind);
        match kind {
            "meta" => {
                let meta = record::decode_meta(entry).map_err(|e| unreadable(Subject::Unknown, e))?;
                self.meta = Some(meta);
            }
            "frozen" => self.frozen = Some(record::decode_frozen(entry)),
            "clusters" => {
                let name = keys::parse_cluster(&entry.key).ok_or_else(bad_key)?;
                let cluster = record::decode_cluster(entry).map_err(|e| unreadable(Subject::Unknown, e))?;
                self.clusters.push((name, cluster.value));
            }
            "pools" => {
                let name = keys::parse_pool(&entry.key).ok_or_else(bad_key)?;
                let pool = record::decode_pool(entry).map_err(|e| unreadable(Subject::Pool(name), e))?;
                all.pools.push(pool.value);
            }
            "serves" => all.serves.push(keys::parse_serve(&entry.key).ok_or_else(bad_key)?),
            "leases" => all.leases.push(lease(entry)?),
            "addresses" => {
                let place = keys::parse_held(&entry.key).map(place).ok_or_else(bad_key)?;
                let holder = record::decode_address(entry)
                    .map_err(|e| unreadable(Subject::Address(place.clone()), e))?;
                all.addresses.push((place, holder));
            }
            "released" => {
                let place = keys::parse_released(&entry.key).map(place).ok_or_else(bad_key)?;
                let released = record::decode_released(entry)
                    .map_err(|e| unreadable(Subject::Released(place.clone()), e))?;
                all.released.push((place, released.value));
            }
            "attachments" => {
                let attachment = keys::parse_attachment(&entry.key).map(attachment).ok_or_else(bad_key)?;
                let id = record::decode_pointer(entry)
                    .map_err(|e| unreadable(Subject::Attachment(attachment.clone()), e))?;
                all.attachments.push((attachment, id));
            }
            _ => return Err(bad_key()),
        }
        Ok(())
    }
}

/// Reads a lease, or says what it would have been.
pub(crate) fn lease(entry: &Entry) -> Result<crate::domain::lease::Lease, Box<Unreadable>> {
    record::read_lease(entry).map_err(|error| {
        Box::new(unreadable(keys::parse_lease(&entry.key).map_or(Subject::Unknown, Subject::Lease), error))
    })
}

pub(crate) fn unreadable(subject: Subject, error: RecordError) -> Unreadable {
    match error {
        RecordError::Invalid { key, reason } => Unreadable { key, subject, reason, newer: false },
        RecordError::Newer { ref key, found } => {
            Unreadable { key: key.clone(), subject, reason: format!("version {found}"), newer: true }
        }
    }
}

pub(crate) fn place((domain, address): (crate::domain::names::DomainName, std::net::IpAddr)) -> Place {
    Place { domain, address }
}

fn attachment(id: keys::AttachmentId) -> Attachment {
    let keys::AttachmentId { cluster, node, network, container, ifname } = id;
    Attachment { cluster, node, network, container, ifname }
}

/// A pool as it stands in the store.
#[derive(Clone, Debug)]
pub struct StoredPool {
    /// Its name, by its key.
    pub name: PoolName,
    /// Its record.
    pub entry: Entry,
    /// What it means, or why it cannot be read.
    pub pool: Result<crate::domain::pool::Pool, RecordError>,
}

/// The pools among these entries.
#[must_use]
pub fn stored_pools(entries: &[Entry]) -> Vec<StoredPool> {
    entries
        .iter()
        .filter_map(|entry| {
            let name = keys::parse_pool(&entry.key)?;
            let pool = record::decode_pool(entry).map(|stored| stored.value);
            Some(StoredPool { name, entry: entry.clone(), pool })
        })
        .collect()
}
