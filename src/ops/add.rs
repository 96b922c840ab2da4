//! ADD: the pod's own lease if it still fits, else an address for it. Commit before the answer, undo if the answer
//! cannot be given.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    Change, Clock, Context, Heard, Log, Refusal, Wire, commit,
    commit::Sent,
    find::{self, Found, Source, Want},
    lease_id,
    memory::{Learnt, learn},
    view,
    view::View,
};
use crate::{
    domain::{
        addr::number,
        choose::{UNCONFIRMED_FOR_MS, WINDOW},
        lease::{AddressHolder, Binding, Holder, Lease, LeaseId, LeasedAddress, Seen, Stamp, Timestamp},
        names::{ContainerId, DomainName, IfName, Uid},
        pool::{
            DEFAULT_COOL_DOWN, DEFAULT_DOMAIN, Dns, NodeLost, Pool, ProbeRule, Range, Route, why_not_leased,
        },
        select::{self, Asked, Caller, Unusable},
    },
    journal::Memory,
    store::{
        Compare, Read, Revision, Store, StoreError, changes, keys,
        keys::AttachmentId,
        record::{self, Frozen, Stored},
    },
};

/// A lease bound in the future of this node's clock by less than this may be of a minute ago on a node whose clock
/// is ahead; by more, that clock says nothing.
const MOST_SKEW_MS: i64 = 10 * 60 * 1000;
/// An ADD answers so soon after the commit that it rests on was sent; later, it commits once more.
const TO_ANSWER: Duration = Duration::from_secs(3);
/// What the main plugin may need from that answer until its interface is heard.
const TO_WIRE: Duration = Duration::from_secs(2);
/// So long after it was committed a lease is on the wire, or its ADD commits once more, or there is no ADD any more.
pub(super) const TO_ARRIVE: Duration = TO_ANSWER.saturating_add(TO_WIRE);
const _: () =
    assert!(TO_ARRIVE.as_millis() == UNCONFIRMED_FOR_MS as u128, "released or held: one time to arrive");
/// What an ADD keeps to ask the wire, and to commit.
const TO_PROBE: Duration = Duration::from_secs(2);
/// What an ADD that was late has beyond its deadline, to take back what it bound.
const TO_TAKE_BACK: Duration = Duration::from_secs(1);
/// Leases that a full pool's error looks at.
const SUSPECTS: usize = 16;

/// What an ADD asks for.
#[derive(Clone, Debug)]
pub struct Add {
    /// Who, where.
    pub caller: Caller,
    /// `CNI_CONTAINERID`.
    pub container: ContainerId,
    /// `CNI_IFNAME`.
    pub ifname: IfName,
    /// The pod's UID, where the runtime sent it.
    pub uid: Option<Uid>,
    /// The pools asked for; `None`: whatever serves the pod.
    pub asked: Option<Asked>,
    /// Addresses asked for, of one source.
    pub requested: Vec<IpAddr>,
    /// That source, for texts.
    pub requested_by: String,
    /// What annotation or args say of stickiness.
    pub sticky: Option<bool>,
    /// Ranges in the network's own configuration.
    pub inline: Option<Inline>,
    /// Routes of the network's own configuration, instead of the pool's.
    pub routes: Option<Vec<Route>>,
    /// dns of the network's own configuration, instead of the pool's.
    pub dns: Option<Dns>,
    /// The main plugin will take the subnet's first address for itself where no gateway is known (bridge).
    pub avoid_first: bool,
    /// The boot-time clock when this run began, microseconds.
    pub started: u64,
}

/// Ranges in the network's own configuration: one address of each set.
#[derive(Clone, Debug)]
pub struct Inline {
    /// The range sets.
    pub sets: Vec<Vec<Range>>,
}

/// An address of the answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AssignedAddress {
    /// The address.
    pub address: IpAddr,
    /// The subnet's length.
    pub length: u8,
    /// The gateway, where one is configured.
    pub gateway: Option<IpAddr>,
}

/// What the pod gets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    /// Its addresses.
    pub addresses: Vec<AssignedAddress>,
    /// Its routes.
    pub routes: Vec<Route>,
    /// Its dns.
    pub dns: Dns,
}

/// An ADD that was done.
#[derive(Debug)]
pub struct Added {
    /// What to print.
    pub answer: Answer,
    /// What this run wrote, for an undo; `None` if it wrote nothing.
    written: Option<Stored<Lease>>,
    /// The sandbox that had the lease before may live: an undo leaves the addresses unconfirmed.
    doubtful: bool,
    /// What the node should remember of the store.
    pub memory: Memory,
}

impl Added {
    /// Did this run write?
    #[must_use]
    pub const fn wrote(&self) -> bool {
        self.written.is_some()
    }
}

/// Leases addresses to a pod, or gives it its own again.
///
/// # Errors
/// [`Refusal`]. After a commit without an answer the lease may still come to stand, and one that was answered too late, or
/// in another past of the store, may not have been taken back: the caller leaves a journal entry that ends it.
pub async fn add<S: Store, W: Wire, C: Clock, L: Log>(
    ctx: &Context<'_, S, W, C, L>,
    request: &Add,
) -> Result<Added, Refusal> {
    let id = lease_id(&request.caller, &request.ifname);
    let mut run = Run { ctx, request, id: &id, first: None, doubtful: false, late: None, conflicts: 0 };
    let refusal = loop {
        if Instant::now() >= ctx.deadline {
            break Refusal::Contention { conflicts: run.conflicts, late: run.late.is_some() };
        }
        match run.once().await {
            Ok(Some(added)) if run.is_late(&added) => run.late = Some(added),
            Ok(Some(added)) => return Ok(added),
            Ok(None) => run.conflicts += 1,
            // Perhaps nobody else sees it. What was bound is of another past: its revision is compared no more, and the
            // caller's journal answers for it.
            Err(Refusal::Store(StoreError::WentBack { from, to })) => {
                let Frozen { why, by, .. } = view::freeze(ctx, view::back(from, to)).await?;
                return Err(Refusal::Frozen { why, by });
            }
            Err(refusal) => break refusal,
        }
    };
    run.take_back_late().await;
    Err(refusal)
}

/// Takes an ADD back whose answer could not be given: what DEL of this container does, if what this run bound stands.
///
/// # Errors
/// The store's; the caller leaves a journal entry.
pub async fn undo<S: Store, W: Wire, C: Clock, L: Log>(
    ctx: &Context<'_, S, W, C, L>,
    added: &Added,
) -> Result<(), Refusal> {
    take_back(ctx, added, "the answer could not be written to stdout").await
}

/// Ends what a run bound, also where a pass has noted it since. What is bound otherwise by now is another run's.
async fn take_back<S: Store, W: Wire, C: Clock, L: Log>(
    ctx: &Context<'_, S, W, C, L>,
    added: &Added,
    why: &str,
) -> Result<(), Refusal> {
    let Some(bound) = &added.written else { return Ok(()) };
    let mut noted;
    let mut written = bound;
    loop {
        let txn = commit::shown(changes::unbind(written, added.doubtful, ctx.clock.now()));
        if let Sent::Applied(_) = commit::surely(ctx.store, &txn, ctx.deadline).await? {
            ctx.log.change(&change_of(&written.value, "lease.undone", why));
            return Ok(());
        }
        let read = [Read::Get(keys::lease(&bound.value.id))];
        let snapshot = commit::read(ctx.store, &read, None, ctx.deadline).await?;
        let Some(entry) = snapshot.entry(0) else { return Ok(()) };
        noted = record::decode_lease(entry)?;
        if noted.value.binding != bound.value.binding {
            return Ok(());
        }
        written = &noted;
    }
}

fn change_of(lease: &Lease, what: &'static str, why: &str) -> Change {
    Change {
        what,
        lease: Some(lease.id.clone()),
        addresses: lease.addresses.iter().map(|a| a.address).collect(),
        pool: lease.addresses.first().and_then(|a| a.pool.clone()),
        container: lease.last().map(|stamp| stamp.container.clone()),
        why: why.into(),
    }
}

/// Whether a lease fits is not said by a pool that cannot be read: its pod keeps it, and waits.
fn refuse_unread(view: &View, lease: &Lease) -> Result<(), Refusal> {
    for name in lease.addresses.iter().filter_map(|held| held.pool.as_ref()) {
        let found = view.pools.iter().find(|(known, _)| known == name).map(|(_, pool)| pool);
        if let Some(Err(reason @ Unusable::Invalid { .. })) = found {
            let (pool, by) = (name.clone(), "its lease".to_owned());
            return Err(Refusal::PoolRefused { pool, by, reason: reason.clone() });
        }
    }
    Ok(())
}

/// How a lease stands to a request.
enum Standing<'v> {
    /// It is wholly what the request wants.
    Fits(&'v Source),
    /// Part of it is: the source, and what each slot wants.
    Partly(&'v Source, Vec<Want>),
    /// Nothing of it is.
    Unfit(String),
}

struct Run<'a, S, W, C, L> {
    ctx: &'a Context<'a, S, W, C, L>,
    request: &'a Add,
    id: &'a LeaseId,
    /// What the lease was bound to when this run first looked.
    first: Option<Option<Stamp>>,
    /// The sandbox that had the lease may live, in any round so far.
    doubtful: bool,
    /// What this run bound, and would be answered too late.
    late: Option<Added>,
    conflicts: u32,
}

impl<S: Store, W: Wire, C: Clock, L: Log> Run<'_, S, W, C, L> {
    /// One round: `None` is a conflict, which goes round again.
    async fn once(&mut self) -> Result<Option<Added>, Refusal> {
        let attachment = AttachmentId {
            cluster: self.id.cluster.clone(),
            node: self.ctx.node.node.clone(),
            network: self.id.network.clone(),
            container: self.request.container.clone(),
            ifname: self.id.ifname.clone(),
        };
        let inline = self.request.inline.is_some();
        let mut view = view::read(
            self.ctx,
            self.id,
            &self.request.caller,
            self.request.asked.as_ref(),
            inline,
            &attachment,
        )
        .await?;
        if let Some(why) = view::went_back(&self.ctx.memory, &view.meta, view.revision)
            && view.frozen.is_none()
        {
            view.frozen = Some(view::freeze(self.ctx, why).await?);
        }
        let lease = view.lease.clone();
        self.first.get_or_insert_with(|| lease.as_ref().and_then(|l| l.value.bound()).cloned());
        match lease {
            Some(lease) if lease.value.is_bound_to(&self.request.container, &self.ctx.node.node) => {
                self.same(&view, &lease).await
            }
            Some(lease) => {
                self.doubtful |= self.leaves_doubt(&lease.value);
                self.own(&view, &lease).await
            }
            None => {
                let sources = self.sources(&view)?;
                self.choose(&view, &sources, None).await
            }
        }
    }

    fn now_stamp(&self) -> Stamp {
        Stamp {
            container: self.request.container.clone(),
            node: self.ctx.node.node.clone(),
            uid: self.request.uid.clone(),
            boot: self.ctx.node.boot.clone(),
            boot_clock: self.ctx.clock.boot_clock(),
            at: self.ctx.clock.now(),
        }
    }

    /// After what was read, and what was written then.
    fn memory(&self, view: &View, written: Option<Revision>) -> Memory {
        let looked_at = view.looked_at.iter();
        let mut memory = self.ctx.remembers(&view.meta.store, view.revision, view.read_at, looked_at);
        memory.revision = memory.revision.max(written.unwrap_or_default());
        memory
    }

    /// Whoever takes a lease from another waits for [`TO_ANSWER`] and [`TO_WIRE`], asks the wire, and commits if the lease is
    /// unchanged. He may be about to, so what was bound longer ago is not answered before it is bound anew.
    fn is_late(&self, added: &Added) -> bool {
        let stamp = added.written.as_ref().and_then(|written| written.value.bound());
        stamp.is_some_and(|stamp| self.since(stamp.boot_clock) > TO_ANSWER)
    }

    /// Ends what this run bound and cannot answer. Best effort: a runtime sends DEL for an ADD that failed, too.
    async fn take_back_late(&mut self) {
        let Some(late) = self.late.take() else { return };
        let Context { store, wire, clock, log, node, deadline, .. } = *self.ctx;
        let deadline = deadline.max(Instant::now() + TO_TAKE_BACK);
        let ctx = Context { store, wire, clock, log, node, deadline, memory: Memory::default() };
        if let Err(trouble) = take_back(&ctx, &late, "its answer would come too late").await {
            log.note(&format!("{} stays bound: {trouble}", self.id));
        }
    }

    /// By the boot-time clock.
    fn since(&self, boot_clock: u64) -> Duration {
        Duration::from_micros(self.ctx.clock.boot_clock().saturating_sub(boot_clock))
    }

    fn is_pod(&self) -> bool {
        matches!(self.id.holder, Holder::Pod { .. })
    }

    /// The same container again: the same answer, and no write for a pod, but where this run wrote already: too late, or
    /// nobody knows when.
    async fn same(&self, view: &View, lease: &Stored<Lease>) -> Result<Option<Added>, Refusal> {
        let source = self.source_of(view, &lease.value)?;
        let answer = self.answer(&source, &lease.value.addresses)?;
        // What stood before this run was answered then, and its container may live.
        let stood = self
            .first
            .iter()
            .flatten()
            .any(|first| first.container == self.request.container && first.node == self.ctx.node.node);
        let ours = self.late.is_some() || self.conflicts > 0 && !stood;
        if self.is_pod() && !ours {
            let memory = self.memory(view, None);
            return Ok(Some(Added { answer, written: None, doubtful: false, memory }));
        }
        let mut next = lease.value.clone();
        next.binding = Binding::Bound(self.now_stamp());
        let mut txn = changes::rebind(lease, &next);
        txn.otherwise = vec![Read::Get(keys::lease(self.id))];
        match commit::surely(self.ctx.store, &txn, self.ctx.deadline).await? {
            Sent::Applied(revision) => {
                let memory = self.memory(view, Some(revision));
                // Not undone where the attachment stood before this run: its container may live.
                let written = ours.then(|| changes::as_written(&txn, next, revision));
                let doubtful = self.late.as_ref().map_or(self.doubtful, |late| late.doubtful);
                Ok(Some(Added { answer, written, doubtful, memory }))
            }
            Sent::Conflict(_) => Ok(None),
        }
    }

    /// The pod has a lease of another container, or of none.
    async fn own(&mut self, view: &View, lease: &Stored<Lease>) -> Result<Option<Added>, Refusal> {
        self.refuse_newer(view, lease)?;
        refuse_unread(view, &lease.value)?;
        let sources = self.sources_or_reserved(view, &lease.value)?;
        if !self.request.requested.is_empty() && !sources.iter().any(|source| self.wants(source).is_some()) {
            return Err(self.outside(&sources));
        }
        match self.standing(&sources, &lease.value) {
            Standing::Fits(source) => self.take_over(view, lease, source).await,
            Standing::Partly(source, wants) => {
                let kept = |held: &LeasedAddress| {
                    wants.iter().any(|want| matches!(want, Want::Kept(a) if a == held))
                };
                if lease.value.reserved
                    && let Some(lost) = lease.value.addresses.iter().find(|held| !kept(held))
                {
                    let reason = format!("{} would not lease it now", source.label);
                    return Err(Refusal::ReservedUnfit { address: lost.address, reason });
                }
                if wants.iter().any(|want| !matches!(want, Want::Kept(_))) {
                    self.refuse_frozen(view)?;
                }
                self.probe_own(view, source, lease).await?;
                let end = self.bind(view, source, &wants, Some(lease)).await?;
                self.end(view, source, Some(lease), end).transpose()
            }
            Standing::Unfit(reason) => {
                if lease.value.reserved {
                    return Err(Refusal::ReservedUnfit { address: lease.value.addresses[0].address, reason });
                }
                self.refuse_wrong_node(view, &lease.value)?;
                if self.may_live(&lease.value) {
                    // None of its addresses is taken; but its pod may live there, and is not to lose them.
                    let own = self.source_of(view, &lease.value).ok();
                    self.probe_own(view, own.as_ref().unwrap_or(&sources[0]), lease).await?;
                }
                self.ctx.log.note(&format!("{} gets a new address: {reason}", self.id));
                self.choose(view, &sources, Some(lease)).await
            }
        }
    }

    /// A newer sandbox's lease is not taken.
    fn refuse_newer(&self, view: &View, lease: &Stored<Lease>) -> Result<(), Refusal> {
        let Some(stamp) = lease.value.bound() else { return Ok(()) };
        let newer = |why: &str| {
            Err(Refusal::NewerSandbox {
                container: stamp.container.clone(),
                node: stamp.node.clone(),
                why: why.into(),
                memory: Box::new(self.memory(view, None)),
            })
        };
        let first = self.first.as_ref().map(|first| first.as_ref().map(|first| &first.container));
        if first.is_some_and(|first| first != Some(&stamp.container)) {
            return newer("it was bound while this ADD worked");
        }
        if stamp.node == self.ctx.node.node {
            if self.is_this_boot(stamp) && stamp.boot_clock >= self.request.started {
                return newer("it was bound after this ADD began");
            }
            return Ok(());
        }
        let age = self.ctx.clock.now().since(stamp.at);
        let window = i64::try_from(self.ctx.node.add_deadline.as_millis()).unwrap_or(i64::MAX);
        if (-MOST_SKEW_MS..window).contains(&age) && self.seen_for(view, lease) < self.ctx.node.add_deadline {
            return newer("by its clock it was bound there a moment ago, and it may not be on the wire yet");
        }
        Ok(())
    }

    fn refuse_frozen(&self, view: &View) -> Result<(), Refusal> {
        match &view.frozen {
            Some(frozen) => Err(Refusal::Frozen { why: frozen.why.clone(), by: frozen.by.clone() }),
            None => Ok(()),
        }
    }

    /// Only the node is wrong: a sticky pod waits for a node of its pool; another gets a new address.
    fn refuse_wrong_node(&self, view: &View, lease: &Lease) -> Result<(), Refusal> {
        let elsewhere = |asked: &Asked| {
            !lease
                .addresses
                .iter()
                .any(|held| held.pool.as_ref().is_some_and(|name| asked.pools.contains(name)))
        };
        if !lease.sticky || self.request.asked.as_ref().is_some_and(elsewhere) {
            return Ok(());
        }
        for held in &lease.addresses {
            let Some(pool) = held.pool.as_ref().and_then(|name| view.pool(name)) else { continue };
            if pool.value.range_of(held.address).is_none() {
                continue;
            }
            let reason = select::may_use(&pool.value, &self.request.caller, view.workload.as_ref());
            if let Err(reason @ Unusable::Node { .. }) = reason {
                let pool = pool.value.name().clone();
                return Err(Refusal::WrongNode { pool, address: held.address, reason });
            }
        }
        Ok(())
    }

    fn sources_or_reserved(&self, view: &View, lease: &Lease) -> Result<Vec<Source>, Refusal> {
        match self.sources(view) {
            Err(refusal @ (Refusal::NoPool { .. } | Refusal::PoolRefused { .. })) => {
                self.refuse_wrong_node(view, lease)?;
                Err(refusal)
            }
            other => other,
        }
    }

    fn standing<'v>(&self, sources: &'v [Source], lease: &Lease) -> Standing<'v> {
        let mut reason = "no pool that may be used holds its address".to_owned();
        for source in sources {
            // Never another address than the one that was asked for.
            let Some(asked) = self.wants(source) else { continue };
            let mut left: Vec<&LeasedAddress> = lease.addresses.iter().collect();
            let wants: Vec<Want> = source
                .slots
                .iter()
                .zip(asked)
                .map(|(ranges, want)| {
                    let kept = left.iter().position(|held| {
                        held.domain == source.domain
                            && held.pool == source.pool
                            && ranges.iter().any(|range| range.usable().contains(held.address))
                            && match &want {
                                Want::This(address, _) => *address == held.address,
                                Want::Kept(_) | Want::Any => true,
                            }
                    });
                    kept.map_or(want, |at| Want::Kept(left.remove(at).clone()))
                })
                .collect();
            let kept = wants.iter().filter(|want| matches!(want, Want::Kept(_))).count();
            if kept == wants.len() && left.is_empty() {
                return Standing::Fits(source);
            }
            if kept > 0 {
                return Standing::Partly(source, wants);
            }
            if lease.addresses.iter().any(|held| held.pool == source.pool) {
                reason = format!("its address is no longer one that {} leases to it", source.label);
            }
        }
        Standing::Unfit(reason)
    }

    async fn take_over(
        &self,
        view: &View,
        lease: &Stored<Lease>,
        source: &Source,
    ) -> Result<Option<Added>, Refusal> {
        self.probe_own(view, source, lease).await?;
        let next =
            self.lease(self.is_sticky(source, Some(lease)), Some(lease), lease.value.addresses.clone());
        let guards: Vec<Compare> = source.guard.iter().cloned().collect();
        let mut txn = changes::take_over(lease, &next, &guards);
        txn.otherwise = vec![Read::Get(keys::lease(self.id))];
        match commit::surely(self.ctx.store, &txn, self.ctx.deadline).await? {
            Sent::Applied(revision) => {
                let written = changes::as_written(&txn, next, revision);
                self.end(view, source, Some(lease), Found::Bound(Box::new(written), Learnt::Nothing))
                    .transpose()
            }
            Sent::Conflict(_) => Ok(None),
        }
    }

    /// May the sandbox that has the lease still be on the wire?
    fn may_live(&self, lease: &Lease) -> bool {
        lease.bound().is_some_and(|stamp| self.outlives(stamp))
    }

    /// May a sandbox that nobody has DELed still be on the wire? A kubelet ends a pod's sandbox before it makes the next. But a
    /// pod that was deleted by force has a successor of its name while it still ends, perhaps on the same node; no sandbox
    /// outlives a boot.
    fn outlives(&self, stamp: &Stamp) -> bool {
        let another = matches!((&stamp.uid, &self.request.uid), (Some(old), Some(new)) if old != new);
        stamp.node != self.ctx.node.node || another && self.is_this_boot(stamp)
    }

    /// May somebody answer on the addresses of this lease who does not run for this pod's next sandbox?
    fn leaves_doubt(&self, lease: &Lease) -> bool {
        lease.unconfirmed || self.may_live(lease)
    }

    /// Was this, of this node, written since it booted?
    fn is_this_boot(&self, stamp: &Stamp) -> bool {
        stamp.boot.is_none() || stamp.boot == self.ctx.node.boot
    }

    /// Whoever has the lease may have bound it just now, and not be heard yet; also who had it, if a pass or a person gave it
    /// back in between. On another node its clock says nothing of that, but that it was long ago.
    async fn let_it_arrive(&self, view: &View, lease: &Stored<Lease>) -> Result<(), Refusal> {
        if lease.value.bound().is_none() && !lease.value.unconfirmed {
            return Ok(());
        }
        let last = lease.value.last();
        if last.is_some_and(|stamp| !self.outlives(stamp)) {
            return Ok(());
        }
        // Of what a person took from somebody nothing but that is known; whoever was found running was heard before.
        if last.is_none() && !lease.value.reserved {
            return Ok(());
        }
        let at = last.map_or(lease.value.since, |stamp| stamp.at);
        let gone = match last.filter(|stamp| stamp.node == self.ctx.node.node) {
            Some(stamp) => self.since(stamp.boot_clock),
            None if self.ctx.clock.now().since(at) > 2 * MOST_SKEW_MS => return Ok(()),
            None => self.seen_for(view, lease),
        };
        let left = TO_ARRIVE.saturating_sub(gone);
        if !left.is_zero() && Instant::now() + left + TO_PROBE > self.ctx.deadline {
            let last = last.map(|stamp| (stamp.container.clone(), stamp.node.clone()));
            return Err(Refusal::Arriving { last, memory: Box::new(self.memory(view, None)) });
        }
        sleep(left).await;
        Ok(())
    }

    /// So long this node has known the lease as it is, at least. A store that is frozen may have been set back, and its
    /// revisions come twice.
    fn seen_for(&self, view: &View, lease: &Stored<Lease>) -> Duration {
        let seen_at = || self.ctx.seen_at(&view.meta.store, lease.revision, view.revision);
        self.since(view.frozen.is_none().then(seen_at).flatten().unwrap_or(view.read_at))
    }

    /// Asks the wire about the pod's own addresses where somebody may still answer on them.
    async fn probe_own(&self, view: &View, source: &Source, lease: &Stored<Lease>) -> Result<(), Refusal> {
        let doubtful = self.leaves_doubt(&lease.value) || view.frozen.is_some();
        if !doubtful || source.probe == ProbeRule::Never {
            return Ok(());
        }
        self.let_it_arrive(view, lease).await?;
        let addresses: Vec<IpAddr> = lease.value.addresses.iter().map(|a| a.address).collect();
        match self.ctx.wire.probe(&addresses).await {
            Heard::Silence => Ok(()),
            Heard::Nowhere(reason) if source.node_lost == NodeLost::Free => {
                self.ctx.log.note(&format!("{}: not probed, taken as silence: {reason}", self.id));
                Ok(())
            }
            Heard::Nowhere(reason) => Err(Refusal::CannotProbe {
                address: addresses[0],
                reason: format!("{reason}, and nodeLost is keep"),
            }),
            Heard::Failed(reason) => Err(Refusal::CannotProbe { address: addresses[0], reason }),
            Heard::Claims(claims) => match claims.into_iter().next() {
                Some((address, mac)) => {
                    let node = lease.value.last().map(|stamp| stamp.node.clone());
                    let memory = Box::new(self.memory(view, None));
                    Err(Refusal::StillAnswers { address, mac, node, memory })
                }
                None => Ok(()),
            },
        }
    }

    /// A new address: of the first source that has one.
    async fn choose(
        &mut self,
        view: &View,
        sources: &[Source],
        old: Option<&Stored<Lease>>,
    ) -> Result<Option<Added>, Refusal> {
        self.refuse_frozen(view)?;
        let (mut full, mut cooling) = (Vec::new(), None);
        let requested = !self.request.requested.is_empty();
        for source in sources {
            let Some(wants) = self.wants(source) else { continue };
            match self.bind(view, source, &wants, old).await? {
                Found::Full(usage) => full.push(usage),
                Found::Cooling { label, count, ready_in_ms } => {
                    cooling.get_or_insert(Refusal::Cooling { pool: label, count, ready_in_ms });
                }
                end @ (Found::Bound(..) | Found::Again) => {
                    return self.end(view, source, old, end).transpose();
                }
            }
        }
        if let Some(cooling) = cooling {
            return Err(cooling);
        }
        if full.is_empty() && requested {
            return Err(self.outside(sources));
        }
        let suspects = match sources.first() {
            Some(source) => self.suspects(source).await,
            None => Vec::new(),
        };
        Err(Refusal::Full { pools: full, suspects })
    }

    /// What each slot of a source wants; `None` if a requested address is in none of them.
    fn wants(&self, source: &Source) -> Option<Vec<Want>> {
        let mut left: Vec<IpAddr> = self.request.requested.clone();
        let wants = source
            .slots
            .iter()
            .map(|ranges| {
                let at = left.iter().position(|a| ranges.iter().any(|range| range.usable().contains(*a)));
                at.map_or(Want::Any, |at| Want::This(left.remove(at), self.request.requested_by.clone()))
            })
            .collect();
        left.is_empty().then_some(wants)
    }

    fn outside(&self, sources: &[Source]) -> Refusal {
        let inside = |address: &IpAddr| {
            sources.iter().any(|s| s.slots.iter().flatten().any(|range| range.usable().contains(*address)))
        };
        let refused = |source: &Source, address| {
            format!("{} ({})", source.label, why_not_leased(source.slots.iter().flatten(), address))
        };
        let by = self.request.requested_by.clone();
        match self.request.requested.iter().find(|address| !inside(address)) {
            Some(address) => Refusal::RequestedOutside {
                address: *address,
                by,
                pools: sources.iter().map(|source| refused(source, *address)).collect(),
            },
            None => Refusal::RequestedTaken {
                address: self.request.requested.last().copied().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
                by,
                reason: "no single pool can give all the requested addresses at once: one of each family"
                    .into(),
            },
        }
    }

    async fn bind(
        &mut self,
        view: &View,
        source: &Source,
        wants: &[Want],
        old: Option<&Stored<Lease>>,
    ) -> Result<Found, Refusal> {
        let mut conflicts = self.conflicts;
        let sticky = self.is_sticky(source, old);
        let make = |addresses| self.lease(sticky, old, addresses);
        let end = find::search(self.ctx, source, wants, &view.spares, old, &make, &mut conflicts).await;
        self.conflicts = conflicts;
        end
    }

    fn is_sticky(&self, source: &Source, old: Option<&Stored<Lease>>) -> bool {
        let seen = old.and_then(|old| old.value.seen.as_ref()).and_then(|seen| seen.controller.as_deref());
        select::is_sticky(
            source.document.as_ref(),
            &self.request.caller.holder,
            self.request.sticky,
            seen,
            &self.ctx.node.sticky_kinds,
        )
    }

    fn lease(&self, sticky: bool, old: Option<&Stored<Lease>>, addresses: Vec<LeasedAddress>) -> Lease {
        let stamp = self.now_stamp();
        let now: Timestamp = stamp.at;
        let controller = old.and_then(|old| old.value.seen.as_ref()).and_then(|seen| seen.controller.clone());
        Lease {
            id: self.id.clone(),
            addresses,
            binding: Binding::Bound(stamp),
            since: now,
            created: old.map_or(now, |old| old.value.created),
            sticky,
            reserved: old.is_some_and(|old| old.value.reserved),
            unconfirmed: false,
            // First missed at is forgotten: the pod is here.
            seen: controller.map(|controller| Seen { controller: Some(controller), ..Seen::default() }),
        }
    }

    /// `None`: read again.
    fn end(
        &self,
        view: &View,
        source: &Source,
        old: Option<&Stored<Lease>>,
        end: Found,
    ) -> Option<Result<Added, Refusal>> {
        let (written, learnt) = match end {
            Found::Bound(written, learnt) => (written, learnt),
            Found::Again => return None,
            Found::Full(usage) => {
                return Some(Err(Refusal::Full { pools: vec![usage], suspects: Vec::new() }));
            }
            Found::Cooling { label, count, ready_in_ms } => {
                return Some(Err(Refusal::Cooling { pool: label, count, ready_in_ms }));
            }
        };
        let why = match old {
            None => "first ADD".to_owned(),
            Some(old) => match old.value.bound() {
                Some(stamp) => {
                    format!("taken over from container {} on node {}", stamp.container, stamp.node)
                }
                None => format!("the pod is back; it was {}", old.value.state().as_str()),
            },
        };
        self.ctx.log.change(&change_of(&written.value, "lease.bound", &why));
        let mut memory = self.memory(view, Some(written.revision));
        if let Some(pool) = &source.pool {
            learn(&mut memory, &self.id.network, pool, &source.domain, learnt);
        }
        Some(self.answer(source, &written.value.addresses).map(|answer| Added {
            answer,
            memory,
            doubtful: old.is_some_and(|old| self.leaves_doubt(&old.value)),
            written: Some(*written),
        }))
    }

    fn answer(&self, source: &Source, addresses: &[LeasedAddress]) -> Result<Answer, Refusal> {
        let mut out = Vec::with_capacity(addresses.len());
        for held in addresses {
            let ranges = || source.slots.iter().flatten();
            let range = ranges()
                .find(|range| range.usable().contains(held.address))
                .or_else(|| ranges().find(|range| range.subnet().contains(held.address)));
            let Some(range) = range else {
                return Err(Refusal::PoolMoved { address: held.address, pool: source.label.clone() });
            };
            out.push(AssignedAddress {
                address: held.address,
                length: range.subnet().length(),
                gateway: range.gateway(),
            });
        }
        let routes = self.request.routes.clone().unwrap_or_else(|| source.routes.clone());
        let dns = self.request.dns.clone().unwrap_or_else(|| source.dns.clone());
        Ok(Answer { addresses: out, routes, dns })
    }

    /// The source that a lease's addresses came from, whether or not it may still be used.
    fn source_of(&self, view: &View, lease: &Lease) -> Result<Source, Refusal> {
        match lease.addresses.first().and_then(|held| held.pool.as_ref()) {
            Some(name) => match view.pools.iter().find(|(known, _)| known == name) {
                Some((_, Ok(pool))) => Ok(self.source(view, &pool.value)),
                Some((_, Err(reason))) => {
                    let by = "its lease".to_owned();
                    Err(Refusal::PoolRefused { pool: name.clone(), by, reason: reason.clone() })
                }
                None => {
                    let by = "its lease".to_owned();
                    Err(Refusal::PoolRefused { pool: name.clone(), by, reason: Unusable::Missing })
                }
            },
            None => self.inline().ok_or(Refusal::InlineRefused),
        }
    }

    fn sources(&self, view: &View) -> Result<Vec<Source>, Refusal> {
        if let Some(inline) = self.inline() {
            return Ok(vec![inline]);
        }
        let caller = &self.request.caller;
        let asked = self.request.asked.as_ref();
        let order = select::order(&view.looked(), caller, view.workload.as_ref(), asked).map_err(
            |(pool, reason)| {
                let by = asked.map(|asked| asked.by.clone()).unwrap_or_default();
                Refusal::PoolRefused { pool, by, reason }
            },
        )?;
        if order.is_empty() {
            let near = view
                .pools
                .iter()
                .filter_map(|(name, pool)| {
                    let reason = match pool {
                        Ok(pool) => select::may_use(&pool.value, caller, view.workload.as_ref()).err()?,
                        Err(reason) => reason.clone(),
                    };
                    Some((name.clone(), reason))
                })
                .collect();
            return Err(Refusal::NoPool {
                caller: Box::new(caller.clone()),
                looked_for: caller.serves().iter().map(ToString::to_string).collect(),
                near,
            });
        }
        let found =
            order.iter().filter_map(|name| view.pool(name)).map(|pool| self.source(view, &pool.value));
        Ok(found.collect())
    }

    fn source(&self, view: &View, pool: &Pool) -> Source {
        let slots = pool.families().into_iter().map(|family| {
            pool.ranges()
                .iter()
                .filter(|range| range.family() == family)
                .filter_map(|range| self.spared(range))
                .collect()
        });
        Source {
            label: pool.name().to_string(),
            pool: Some(pool.name().clone()),
            domain: pool.domain().clone(),
            slots: slots.collect(),
            routes: pool.routes().to_vec(),
            dns: pool.dns().clone(),
            cool_down: pool.cool_down(),
            probe: pool.probe(),
            node_lost: pool.node_lost(),
            guard: view.guard(pool.name()),
            document: Some(pool.clone()),
        }
    }

    fn inline(&self) -> Option<Source> {
        let inline = self.request.inline.as_ref()?;
        Some(Source {
            label: "the inline ranges".into(),
            pool: None,
            domain: DomainName::new(DEFAULT_DOMAIN).ok()?,
            slots: inline
                .sets
                .iter()
                .map(|set| set.iter().filter_map(|range| self.spared(range)).collect())
                .collect(),
            routes: Vec::new(),
            dns: Dns::default(),
            cool_down: DEFAULT_COOL_DOWN,
            probe: ProbeRule::Unconfirmed,
            node_lost: NodeLost::Free,
            guard: None,
            document: None,
        })
    }

    /// A bridge without a gateway takes the subnet's first address for itself; `None` if that leaves nothing.
    fn spared(&self, range: &Range) -> Option<Range> {
        if !self.request.avoid_first || range.gateway().is_some() {
            return Some(range.clone());
        }
        let first = range.family().address(range.subnet().first().saturating_add(1));
        Some(range.clone().also_without(first)).filter(|range| !range.usable().is_empty())
    }

    /// Of a full source: leases that look dead, at most a few, best effort.
    async fn suspects(&self, source: &Source) -> Vec<String> {
        let Some(range) = source.slots.first().and_then(|slot| slot.first()) else { return Vec::new() };
        let mut reads = Vec::new();
        for run in range.usable().slice(0, WINDOW - 1).into_iter().take(SUSPECTS) {
            reads.push(Read::List {
                span: keys::addresses_of(&source.domain, run),
                keys_only: false,
                limit: Some(u32::try_from(SUSPECTS).unwrap_or(u32::MAX)),
            });
        }
        let Ok(snapshot) = commit::read(self.ctx.store, &reads, None, self.ctx.deadline).await else {
            return Vec::new();
        };
        let leases: Vec<Read> = (0..reads.len())
            .flat_map(|at| snapshot.entries(at))
            .filter_map(|entry| match record::decode_address(entry) {
                Ok(AddressHolder::Lease(id)) => Some(Read::Get(keys::lease(&id))),
                Ok(AddressHolder::Device { .. }) | Err(_) => None,
            })
            .take(SUSPECTS)
            .collect();
        let Ok(snapshot) = commit::read(self.ctx.store, &leases, None, self.ctx.deadline).await else {
            return Vec::new();
        };
        let mut out: Vec<(u128, String)> = (0..leases.len())
            .filter_map(|at| snapshot.entry(at))
            .filter_map(|entry| record::decode_lease(entry).ok())
            .filter_map(|lease| {
                let why = match (&lease.value.seen, lease.value.bound()) {
                    (Some(Seen { missed: Some(at), .. }), _) => {
                        format!("missed since {}", record::format_time(*at))
                    }
                    (_, None) => format!(
                        "{} since {}",
                        lease.value.state().as_str(),
                        record::format_time(lease.value.since)
                    ),
                    (_, Some(_)) => return None,
                };
                let address = lease.value.addresses.first()?.address;
                Some((number(address), format!("{address} {} {why}", lease.value.id.holder)))
            })
            .collect();
        out.sort();
        out.into_iter().map(|(_, text)| text).collect()
    }
}
