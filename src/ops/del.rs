//! The end of a sandbox: DEL, GC, the journal. The container is compared before anything changes: a late DEL of an
//! old sandbox never touches its successor. Unknown is success.

use std::{collections::BTreeSet, iter};

use super::{Change, Clock, Context, Log, Refusal, commit, commit::Sent, memory::released, view};
use crate::{
    domain::{
        lease::{Holder, Lease, LeaseId},
        names::{ClusterName, ContainerId, IfName, NetworkName, NodeName},
    },
    journal::Memory,
    store::{
        Read, Revision, Store, changes, keys,
        keys::AttachmentId,
        record::{self, RecordError, Stored},
    },
};

/// Attachments of one page.
const PAGE: u32 = 1000;

/// Whose end it is: (network, container, interface), with the holder as a second way to find it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Del {
    /// The cluster.
    pub cluster: ClusterName,
    /// The node.
    pub node: NodeName,
    /// The CNI network's name.
    pub network: NetworkName,
    /// `CNI_CONTAINERID`.
    pub container: ContainerId,
    /// `CNI_IFNAME`.
    pub ifname: IfName,
    /// The pod, if the caller named it.
    pub holder: Option<Holder>,
}

/// How it ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct End {
    /// The lease that was ended; `None`: nothing of this container.
    pub lease: Option<LeaseId>,
    /// What the node should remember of the store.
    pub memory: Memory,
}

/// Ends the lease of a container, if it is still its own.
///
/// # Errors
/// The store's, and a record newer than this binary: the caller journals both.
pub async fn del<S: Store, W, C: Clock, L: Log>(
    ctx: &Context<'_, S, W, C, L>,
    request: &Del,
    why: &str,
) -> Result<End, Refusal> {
    loop {
        let Known { lease, frozen, mut memory } = find(ctx, request).await?;
        let Some(lease) = lease else { return Ok(End { lease: None, memory }) };
        if let Some(revision) = unbind(ctx, &lease, frozen, why).await? {
            memory.revision = memory.revision.max(revision);
            if !lease.value.sticky && !lease.value.reserved {
                let network = &lease.value.id.network;
                lease.value.addresses.iter().for_each(|address| released(&mut memory, network, address));
            }
            return Ok(End { lease: Some(lease.value.id), memory });
        }
    }
}

/// The same, for a caller that has nothing but a container's name: the journal.
///
/// # Errors
/// As [`del`].
pub async fn end_by_container<S: Store, W, C: Clock, L: Log>(
    ctx: &Context<'_, S, W, C, L>,
    request: &Del,
) -> Result<End, Refusal> {
    del(ctx, request, "DEL, from the node's journal").await
}

async fn unbind<S: Store, W, C: Clock, L: Log>(
    ctx: &Context<'_, S, W, C, L>,
    lease: &Stored<Lease>,
    frozen: Option<Revision>,
    why: &str,
) -> Result<Option<Revision>, Refusal> {
    let txn = commit::shown(changes::end(lease, frozen, ctx.clock.now()));
    match commit::surely(ctx.store, &txn, ctx.deadline).await? {
        Sent::Applied(revision) => {
            let what = match (lease.value.sticky, lease.value.reserved) {
                (_, true) => "lease.reserved",
                (true, false) => "lease.held",
                (false, false) => "lease.released",
            };
            ctx.log.change(&Change {
                what,
                lease: Some(lease.value.id.clone()),
                addresses: lease.value.addresses.iter().map(|a| a.address).collect(),
                pool: lease.value.addresses.first().and_then(|a| a.pool.clone()),
                container: lease.value.last().map(|stamp| stamp.container.clone()),
                why: why.into(),
            });
            Ok(Some(revision))
        }
        // Whoever changed it: read again.
        Sent::Conflict(_) => Ok(None),
    }
}

/// What a DEL finds.
struct Known {
    /// The lease that is bound to its container.
    lease: Option<Stored<Lease>>,
    /// The freeze, if there is one: the store may have been set back, and the address may be another's since.
    frozen: Option<Revision>,
    memory: Memory,
}

/// The lease that is bound to this container.
async fn find<S: Store, W, C: Clock, L: Log>(
    ctx: &Context<'_, S, W, C, L>,
    request: &Del,
) -> Result<Known, Refusal> {
    let attachment = keys::attachment(&AttachmentId {
        cluster: request.cluster.clone(),
        node: request.node.clone(),
        network: request.network.clone(),
        container: request.container.clone(),
        ifname: request.ifname.clone(),
    });
    let id = |holder: Holder| LeaseId {
        cluster: request.cluster.clone(),
        holder,
        network: request.network.clone(),
        ifname: request.ifname.clone(),
    };
    let mut ids: Vec<LeaseId> = request.holder.iter().cloned().map(id).collect();
    let container = id(Holder::Container(request.container.clone()));
    if !ids.contains(&container) {
        ids.push(container);
    }
    let mut reads = vec![Read::Get(attachment)];
    reads.extend(ids.iter().map(|id| Read::Get(keys::lease(id))));
    let meta = reads.len();
    reads.push(Read::Get(keys::meta()));
    reads.push(Read::Get(keys::frozen()));
    let mut snapshot = commit::read(ctx.store, &reads, None, ctx.deadline).await?;
    let read_at = ctx.clock.boot_clock();
    let mut memory = Memory::default();
    if let Some(known) = snapshot.entry(meta).map(record::decode_meta).transpose()? {
        if let Some(why) = view::went_back(&ctx.memory, &known, snapshot.revision)
            && snapshot.entry(meta + 1).is_none()
        {
            view::freeze(ctx, why).await?;
            snapshot = commit::read(ctx.store, &reads, None, ctx.deadline).await?;
        }
        memory = ctx.remembers(&known.store, snapshot.revision, read_at, iter::empty());
    }
    let frozen = snapshot.entry(meta + 1).map(|entry| entry.revision);
    let named = match snapshot.entry(0).map(record::decode_pointer) {
        Some(Ok(named)) => Some(named),
        Some(Err(error)) => {
            ctx.log.note(&error.to_string());
            None
        }
        None => None,
    };
    for at in 1..meta {
        if let Some(lease) = ours(ctx, request, snapshot.entry(at))? {
            return Ok(Known { lease: Some(lease), frozen, memory });
        }
    }
    let Some(named) = named.filter(|named| !ids.contains(named)) else {
        return Ok(Known { lease: None, frozen, memory });
    };
    let more = commit::read(ctx.store, &[Read::Get(keys::lease(&named))], None, ctx.deadline).await?;
    Ok(Known { lease: ours(ctx, request, more.entry(0))?, frozen, memory })
}

fn ours<S, W, C, L: Log>(
    ctx: &Context<'_, S, W, C, L>,
    request: &Del,
    entry: Option<&crate::store::Entry>,
) -> Result<Option<Stored<Lease>>, Refusal> {
    let Some(entry) = entry else { return Ok(None) };
    match record::decode_lease(entry) {
        Ok(lease) => {
            Ok(Some(lease).filter(|lease| lease.value.is_bound_to(&request.container, &request.node)))
        }
        Err(error @ RecordError::Newer { .. }) => Err(error.into()),
        // Never deleted silently: `leasehold check` shows it.
        Err(error @ RecordError::Invalid { .. }) => {
            ctx.log.note(&error.to_string());
            Ok(None)
        }
    }
}

/// GC: ends every attachment of this network on this node that is not in `valid`. Goes on after a failure.
///
/// # Errors
/// The first failure, after everything was tried.
pub async fn collect<S: Store, W, C: Clock, L: Log>(
    ctx: &Context<'_, S, W, C, L>,
    network: &NetworkName,
    valid: &BTreeSet<(ContainerId, IfName)>,
) -> Result<(), Refusal> {
    let mut span = keys::attachments_of(&ctx.node.cluster, &ctx.node.node, network);
    let mut failure = None;
    loop {
        let read = Read::List { span: span.clone(), keys_only: false, limit: Some(PAGE) };
        let page = commit::read(ctx.store, &[read], None, ctx.deadline).await?;
        for entry in page.entries(0) {
            let Some(id) = keys::parse_attachment(&entry.key) else { continue };
            if valid.contains(&(id.container.clone(), id.ifname.clone())) {
                continue;
            }
            let holder = record::decode_pointer(entry).ok().map(|lease| lease.holder);
            let request = Del {
                cluster: id.cluster,
                node: id.node,
                network: id.network,
                container: id.container,
                ifname: id.ifname,
                holder,
            };
            if let Err(error) = del(ctx, &request, "GC").await {
                failure.get_or_insert(error);
            }
        }
        match page.entries(0).last() {
            Some(entry) if page.entries(0).len() >= PAGE as usize => span = span.after(&entry.key),
            Some(_) | None => return failure.map_or(Ok(()), Err),
        }
    }
}
