//! The node's journal is told to the store.

use std::{io, time::Duration};

use tokio::time::Instant;

use super::{Add, Added, Clock, Context, Del, Log, Refusal, Wire, end_by_container};
use crate::{
    domain::names::StoreId,
    journal::{Entries, Entry, Held as _},
    store::{Read, Store, StoreError, keys, record},
};

/// Entries that one run replays beside its own work.
pub const SOME: usize = 64;
/// And for how long.
const A_WHILE: Duration = Duration::from_millis(500);

/// An entry that ended nothing stays so long: the commit without an answer that it is here for may land later than
/// this run's read. A frozen member applies what it was sent when it thaws, and the DEL of the runtime comes before.
pub const LINGER: Duration = Duration::from_secs(60);

/// What a replay did.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Replayed {
    /// Entries that were told, and are gone.
    pub done: usize,
    /// Of these, how many still had a lease.
    pub ended: usize,
    /// Entries that stay: of another store or cluster, unreadable, refused, or beyond the limit.
    pub left: usize,
    /// Entries that ended nothing, and are too young to go.
    pub lingering: usize,
    /// What the first of those that stay for a reason said.
    pub trouble: Option<String>,
}

/// Replays up to `most` entries until `until`. A failure of the store ends it: what stays is replayed later.
///
/// # Errors
/// The journal's folder cannot be read, or the store's.
pub async fn replay<S: Store, W, C: Clock, L: Log>(
    ctx: &Context<'_, S, W, C, L>,
    journal: &impl Entries,
    most: usize,
    until: Instant,
) -> Result<Replayed, Trouble> {
    let files = journal.list().map_err(Trouble::Journal)?;
    let mut out = Replayed::default();
    if files.is_empty() {
        return Ok(out);
    }
    // The last call must not outlive the time either: a runtime waits for this process to end.
    let Context { store, wire, clock, log, node, deadline, ref memory } = *ctx;
    let ctx =
        &Context { store, wire, clock, log, node, deadline: deadline.min(until), memory: memory.clone() };
    let store = store_id(ctx).await.map_err(Trouble::Store)?;
    // What is not meant for this store costs nothing, and must not keep the rest from being told.
    let mut told = 0;
    for (at, file) in files.iter().enumerate() {
        if told >= most || Instant::now() >= until {
            out.left += files.len() - at;
            break;
        }
        let Some(locked) = journal.lock(file).map_err(Trouble::Journal)? else { continue };
        let entry = match meant(locked.entry(), ctx, store.as_ref()) {
            Ok(entry) => entry,
            Err(reason) => {
                out.left += 1;
                out.trouble.get_or_insert(format!("{}: {reason}", file.display()));
                continue;
            }
        };
        let request = Del {
            cluster: entry.cluster.clone(),
            node: entry.node.clone(),
            network: entry.network.clone(),
            container: entry.container.clone(),
            ifname: entry.ifname.clone(),
            holder: entry.holder.clone(),
        };
        told += 1;
        match end_by_container(ctx, &request).await {
            Ok(end) if end.lease.is_none() && locked.age() < LINGER => out.lingering += 1,
            Ok(end) => {
                out.done += 1;
                out.ended += usize::from(end.lease.is_some());
                locked.remove().map_err(Trouble::Journal)?;
            }
            Err(Refusal::Store(error @ (StoreError::NotReached { .. } | StoreError::Unanswered { .. }))) => {
                return Err(Trouble::Store(error.into()));
            }
            Err(error) => {
                out.left += 1;
                out.trouble.get_or_insert(format!("{}: {error}", file.display()));
            }
        }
    }
    Ok(out)
}

/// Replays some entries beside this run's own work, which is done: what goes wrong is noted.
pub async fn some<S: Store, W, C: Clock, L: Log>(ctx: &Context<'_, S, W, C, L>, journal: &impl Entries) {
    match replay(ctx, journal, SOME, Instant::now() + A_WHILE).await {
        Ok(Replayed { trouble: Some(trouble), .. }) => ctx.log.note(&trouble),
        Ok(Replayed { trouble: None, .. }) => {}
        Err(trouble) => ctx.log.note(&trouble.to_string()),
    }
}

/// Leases; a full pool is full only after this node's own DELs were told.
///
/// # Errors
/// Those of [`add`](fn@super::add).
pub async fn add<S: Store, W: Wire, C: Clock, L: Log>(
    ctx: &Context<'_, S, W, C, L>,
    journal: &impl Entries,
    request: &Add,
) -> Result<Added, Refusal> {
    match super::add(ctx, request).await {
        Err(full @ Refusal::Full { .. }) if !journal.is_empty() => {
            // Half of what is left of the time: the other half is for trying once more.
            let now = Instant::now();
            let until = now + ctx.deadline.saturating_duration_since(now) / 2;
            if let Err(trouble) = replay(ctx, journal, usize::MAX, until).await {
                ctx.log.note(&trouble.to_string());
            }
            match super::add(ctx, request).await {
                Err(Refusal::Contention { .. }) => Err(full),
                other => other,
            }
        }
        other => other,
    }
}

/// Why a replay stopped.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The folder or a file of the journal.
    #[error("the journal cannot be read: {0}")]
    Journal(#[source] io::Error),
    /// The store.
    #[error(transparent)]
    Store(Refusal),
}

async fn store_id<S: Store, W, C, L>(ctx: &Context<'_, S, W, C, L>) -> Result<Option<StoreId>, Refusal> {
    let snapshot = super::commit::read(ctx.store, &[Read::Get(keys::meta())], None, ctx.deadline).await?;
    Ok(snapshot.entry(0).map(record::decode_meta).transpose()?.map(|meta| meta.store))
}

/// The entry, if it is meant for this store.
fn meant<'e, S, W, C, L>(
    entry: Option<&'e Entry>,
    ctx: &Context<'_, S, W, C, L>,
    store: Option<&StoreId>,
) -> Result<&'e Entry, String> {
    let Some(entry) = entry else { return Err("cannot be read; look at it, then delete it".into()) };
    if entry.cluster != ctx.node.cluster {
        return Err(format!("is of cluster {}, this node is of {}", entry.cluster, ctx.node.cluster));
    }
    match (&entry.store, store) {
        (Some(known), Some(now)) if known != now => {
            Err(format!("is of store {known}, this is {now}: after a restore it means nothing; delete it"))
        }
        (Some(_) | None, Some(_) | None) => Ok(entry),
    }
}
