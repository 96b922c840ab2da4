//! What an ADD reads before it decides: one transaction for all that its names lead to, for the pools that the node
//! used last and for what it saw free in those that are crowded; one more for the documents of others that the index
//! named.

use std::net::IpAddr;

use super::{Clock, Context, Log, Refusal, commit, memory::MOST_POOLS};
use crate::{
    domain::{
        lease::{Lease, LeaseId, Released},
        names::{DomainName, PoolName, WorkloadName},
        pool::{Pool, Serve},
        select::{self, Asked, Caller, Looked, Unusable},
    },
    journal::{LookedAt, Memory, Spares},
    store::{
        Compare, Entry, Read, Revision, Snapshot, Store, changes, keys,
        keys::AttachmentId,
        record::{self, Frozen, Meta, RecordError, Stored},
    },
};

/// Questions of one read: below etcd's 128 operations.
const QUESTIONS: usize = 100;

/// An address that the node remembered as free, and that is.
#[derive(Debug)]
pub(crate) struct SpareSeen {
    pub(crate) pool: PoolName,
    pub(crate) domain: DomainName,
    pub(crate) address: IpAddr,
    pub(crate) released: Option<Stored<Released>>,
}

/// What an ADD saw.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) revision: Revision,
    /// By the boot-time clock, when it was there.
    pub(crate) read_at: u64,
    pub(crate) meta: Meta,
    pub(crate) frozen: Option<Frozen>,
    pub(crate) lease: Option<Stored<Lease>>,
    pub(crate) workload: Option<WorkloadName>,
    pub(crate) pools: Vec<(PoolName, Result<Stored<Pool>, Unusable>)>,
    /// All of these, as the node remembers them.
    pub(crate) looked_at: Vec<LookedAt>,
    pub(crate) spares: Vec<SpareSeen>,
}

impl View {
    /// The pools without their revisions, as the selection takes them.
    pub(crate) fn looked(&self) -> Vec<(PoolName, Looked)> {
        self.pools
            .iter()
            .map(|(name, pool)| (name.clone(), pool.clone().map(|stored| stored.value)))
            .collect()
    }

    pub(crate) fn pool(&self, name: &PoolName) -> Option<&Stored<Pool>> {
        self.pools.iter().find(|(known, _)| known == name).and_then(|(_, pool)| pool.as_ref().ok())
    }

    /// The compare that a commit resting on this pool needs.
    pub(crate) fn guard(&self, name: &PoolName) -> Option<Compare> {
        self.pool(name).map(changes::pool_as_read)
    }
}

/// An attachment has one lease: the same sandbox under another pod's name is a mistake of its caller. A key that
/// points to a lease of another sandbox is stale, and stops nobody.
async fn refuse_second_holder<S: Store, W, C, L>(
    ctx: &Context<'_, S, W, C, L>,
    other: &LeaseId,
    attachment: &AttachmentId,
) -> Result<(), Refusal> {
    let snapshot = commit::read(ctx.store, &[Read::Get(keys::lease(other))], None, ctx.deadline).await?;
    let lease = snapshot.entry(0).and_then(|entry| record::decode_lease(entry).ok());
    match lease {
        Some(lease) if lease.value.is_bound_to(&attachment.container, &attachment.node) => {
            Err(Refusal::OtherHolder {
                container: attachment.container.clone(),
                holder: other.holder.clone(),
            })
        }
        Some(_) | None => Ok(()),
    }
}

fn pool_of(name: &PoolName, entry: Option<&Entry>) -> Result<Result<Stored<Pool>, Unusable>, RecordError> {
    let Some(entry) = entry else { return Ok(Err(Unusable::Missing)) };
    debug_assert_eq!(keys::pool(name), entry.key);
    match record::decode_pool(entry) {
        Ok(pool) => Ok(Ok(pool)),
        Err(error @ RecordError::Newer { .. }) => Err(error),
        Err(error @ RecordError::Invalid { .. }) => Ok(Err(Unusable::Invalid { reason: error.to_string() })),
    }
}

/// Reads what concerns this caller. `serves` is empty for inline ranges: nobody looks a workload up then.
pub(crate) async fn read<S: Store, W, C: Clock, L>(
    ctx: &Context<'_, S, W, C, L>,
    id: &LeaseId,
    caller: &Caller,
    asked: Option<&Asked>,
    inline: bool,
    attachment: &AttachmentId,
) -> Result<View, Refusal> {
    let serves: Vec<Serve> = if inline { Vec::new() } else { caller.serves() };
    let asked: &[PoolName] = if inline { &[] } else { asked.map_or(&[], |asked| &asked.pools) };
    let mut reads = vec![
        Read::Get(keys::meta()),
        Read::Get(keys::frozen()),
        Read::Get(keys::cluster(&caller.cluster)),
        Read::Get(keys::lease(id)),
    ];
    let mine = reads.len();
    reads.push(Read::Get(keys::attachment(attachment)));
    let first_serve = reads.len();
    reads.extend(serves.iter().map(|serve| Read::keys(keys::serve_of(serve))));
    let first_pool = reads.len();
    // What the node remembers may save the second read, and must not cost another request.
    let room = if inline { 0 } else { QUESTIONS.saturating_sub(first_pool + asked.len()) };
    let mut first: Vec<&PoolName> = asked.iter().collect();
    for LookedAt { serve, pool } in &ctx.memory.pools {
        if first.len() < asked.len() + room.min(MOST_POOLS)
            && serves.contains(serve)
            && !first.contains(&pool)
        {
            first.push(pool);
        }
    }
    reads.extend(first.iter().map(|name| Read::Get(keys::pool(name))));
    let first_spare = reads.len();
    let remembered: Vec<(&Spares, &IpAddr)> = ctx
        .memory
        .spares
        .iter()
        .filter(|spares| spares.network == id.network && first.contains(&&spares.pool))
        .flat_map(|spares| spares.addresses.iter().map(move |address| (spares, address)))
        .take(QUESTIONS.saturating_sub(first_spare) / 2)
        .collect();
    for (Spares { domain, .. }, address) in &remembered {
        reads.push(Read::Get(keys::address(domain, **address)));
        reads.push(Read::Get(keys::released(domain, **address)));
    }
    let snapshot = questions(ctx, &reads).await?;
    let read_at = ctx.clock.boot_clock();

    let meta = record::decode_meta(snapshot.entry(0).ok_or(Refusal::Empty)?)?;
    let frozen = snapshot.entry(1).map(record::decode_frozen);
    snapshot.entry(2).ok_or_else(|| Refusal::Unregistered(caller.cluster.clone()))?;
    let lease = snapshot.entry(3).map(record::decode_lease).transpose()?;
    if let Some(other) = snapshot.entry(mine).and_then(|entry| record::decode_pointer(entry).ok())
        && other != *id
    {
        refuse_second_holder(ctx, &other, attachment).await?;
    }
    let index: Vec<(Serve, PoolName)> = (first_serve..first_pool)
        .flat_map(|at| snapshot.entries(at))
        .filter_map(|entry| keys::parse_serve(&entry.key))
        .collect();
    let mut needed: Vec<&PoolName> = Vec::new();
    let of_lease = lease.iter().flat_map(|lease| &lease.value.addresses).filter_map(|a| a.pool.as_ref());
    for name in asked.iter().chain(index.iter().map(|(_, name)| name)).chain(of_lease) {
        if !needed.contains(&name) {
            needed.push(name);
        }
    }
    let missing: Vec<&PoolName> = needed.iter().copied().filter(|name| !first.contains(name)).collect();
    let reads: Vec<Read> = missing.iter().map(|name| Read::Get(keys::pool(name))).collect();
    let more = questions(ctx, &reads).await?;
    let mut pools = Vec::new();
    for name in needed {
        let entry = match first.iter().position(|known| *known == name) {
            Some(at) => snapshot.entry(first_pool + at),
            None => missing.iter().position(|read| *read == name).and_then(|at| more.entry(at)),
        };
        pools.push((name.clone(), pool_of(name, entry)?));
    }
    let workload = select::workload_of(caller, &index);
    let looked_at = pools.iter().flat_map(|(pool, _)| {
        let by_index = index.iter().filter(move |(_, known)| known == pool).map(|(serve, _)| serve.clone());
        // The index does not lead there, or no more: only this caller is known to need it.
        let by_itself = serves.first().filter(|_| !index.iter().any(|(_, known)| known == pool)).cloned();
        by_index.chain(by_itself).map(|serve| LookedAt { serve, pool: pool.clone() })
    });
    let looked_at = looked_at.collect();
    let spares = remembered.iter().enumerate().filter_map(|(number, (spares, address))| {
        let at = first_spare + 2 * number;
        // Taken since; or its record cannot be read, and then it is never handed out.
        let released = match (snapshot.entry(at), snapshot.entry(at + 1).map(record::decode_released)) {
            (None, released) => released.transpose().ok()?,
            (Some(_), _) => return None,
        };
        let Spares { pool, domain, .. } = spares;
        Some(SpareSeen { pool: pool.clone(), domain: domain.clone(), address: **address, released })
    });
    let spares = spares.collect();
    Ok(View { revision: snapshot.revision, read_at, meta, frozen, lease, workload, pools, looked_at, spares })
}

async fn questions<S: Store, W, C, L>(
    ctx: &Context<'_, S, W, C, L>,
    reads: &[Read],
) -> Result<Snapshot, Refusal> {
    let mut all: Option<Snapshot> = None;
    for chunk in reads.chunks(QUESTIONS) {
        let part = commit::read(ctx.store, chunk, all.as_ref().map(|s| s.revision), ctx.deadline).await?;
        match &mut all {
            Some(all) => all.found.extend(part.found),
            None => all = Some(part),
        }
    }
    Ok(all.unwrap_or(Snapshot { revision: Revision(0), found: Vec::new() }))
}

/// Did the store go back? Then it was restored from a snapshot, and addresses that it believes free may be in use.
pub(crate) fn went_back(memory: &Memory, meta: &Meta, revision: Revision) -> Option<String> {
    (memory.store.as_ref() == Some(&meta.store) && revision < memory.revision)
        .then(|| back(memory.revision, revision))
}

pub(crate) fn back(from: Revision, to: Revision) -> String {
    format!(
        "the store went back from revision {} to {}: restored? run `leasehold adopt`, then `leasehold thaw`",
        from.0, to.0
    )
}

/// The first to see the store behind its own past stops everybody: nothing new is leased until a person looked.
pub(crate) async fn freeze<S: Store, W, C: Clock, L: Log>(
    ctx: &Context<'_, S, W, C, L>,
    why: String,
) -> Result<Frozen, Refusal> {
    let frozen = Frozen { why, by: format!("node {}", ctx.node.node), at: ctx.clock.now() };
    let txn = changes::freeze(&frozen);
    let _ = commit::surely(ctx.store, &txn, ctx.deadline).await?;
    ctx.log.note(&frozen.why);
    Ok(frozen)
}
