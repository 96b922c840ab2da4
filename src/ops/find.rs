//! An address for a newcomer: commit first, look after; full only when the counts of one revision say so.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::Hasher,
    mem::replace,
    net::IpAddr,
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    Change, Clock, Context, Heard, Log, Refusal, Usage, Wire, commit,
    memory::{Learnt, MOST_SPARES},
    view::SpareSeen,
};
use crate::{
    domain::{
        addr::{AddrRange, AddrSet, Family, number},
        choose::{Choice, Chooser, FreeOnce, Pick, Spare, WINDOW, Window, rests_ms, window_around},
        lease::{AddressHolder, Declined, Holder, Lease, LeaseId, LeasedAddress},
        names::{ClusterName, DomainName, PoolName},
        pool::{Dns, NodeLost, Pool, ProbeRule, Range, Route},
    },
    store::{
        Compare, Read, Revision, Snapshot, Store, StoreError, Txn, changes,
        changes::Take,
        keys,
        record::{self, Stored},
    },
};

/// Windows of a range that are counted first, spread over it.
const SAMPLES: u128 = 16;
/// Addresses of such a window.
const SAMPLE: u128 = 512;
/// Counts of one transaction: below etcd's 128 operations.
const COUNTS: usize = 100;
/// Intervals of keys that all windows of one commit may have together.
const SPANS: usize = 24;
/// Windows of a range that are read before it counts as having only cooling addresses.
const LOOKS: u32 = 16;
/// Before a range is looked at again whose counts and windows disagree: others are at it.
const BREATH: Duration = Duration::from_millis(10);
/// A window of which no more than this part is free is of a crowded range: a guess would mostly be wrong there.
const CROWDED: u128 = 8;
/// What an ADD leaves itself to answer, and to undo.
const MARGIN: Duration = Duration::from_millis(300);

/// What addresses come from: a pool, or inline ranges.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) label: String,
    pub(crate) pool: Option<PoolName>,
    pub(crate) domain: DomainName,
    /// One address each; the ranges of a slot are alternatives, in order.
    pub(crate) slots: Vec<Vec<Range>>,
    pub(crate) routes: Vec<Route>,
    pub(crate) dns: Dns,
    pub(crate) cool_down: Duration,
    pub(crate) probe: ProbeRule,
    pub(crate) node_lost: NodeLost,
    pub(crate) guard: Option<Compare>,
    /// The pool's document; `None` for inline ranges.
    pub(crate) document: Option<Pool>,
}

/// What a source is asked for: a slot that is kept as it is, wants one address, or any.
#[derive(Clone, Debug)]
pub(crate) enum Want {
    Kept(LeasedAddress),
    This(IpAddr, String),
    Any,
}

/// The end of a search.
#[derive(Debug)]
pub(crate) enum Found {
    /// Bound, at this revision, with these bytes in the store.
    Bound(Box<Stored<Lease>>, Learnt),
    /// What the search rests on has changed: read again.
    Again,
    /// This source is full.
    Full(Usage),
    /// What is free is cooling.
    Cooling { label: String, count: usize, ready_in_ms: i64 },
}

/// The search of one slot.
struct Hunt<'a> {
    ranges: &'a [Range],
    want: Option<(IpAddr, String)>,
    /// The range that is searched.
    at: usize,
    pick: Option<Pick>,
    /// The window that the pick came from; `None` for the first guess.
    window: Option<Window>,
    /// Released keys as this run first saw them.
    seen: BTreeMap<u128, (i64, Instant)>,
    shunned: BTreeSet<u128>,
    /// Of ranges that had only cooling addresses.
    cooling: Option<(usize, i64)>,
    /// Windows that had room and nothing ready.
    looks: u32,
    /// What the node remembered of the range that is searched first, and found free.
    spares: Vec<Spare>,
    /// The range was counted whole, at one revision, and has no room.
    is_full: bool,
}

impl Hunt<'_> {
    fn usable(&self) -> &AddrSet {
        self.ranges[self.at].usable()
    }

    fn family(&self) -> Family {
        self.usable().family()
    }

    /// What the next ADD should know of the range, after this pick: of what is free, so many at most.
    fn learnt(&self, most: usize) -> Learnt {
        let addresses = |free: Vec<u128>| {
            let left = free.into_iter().filter(|number| self.pick.is_none_or(|pick| pick.number != *number));
            left.take(most).map(|number| self.family().address(number)).collect()
        };
        match &self.window {
            None if self.spares.is_empty() => Learnt::Roomy,
            None => Learnt::Left(addresses(self.spares.iter().map(|spare| spare.number).collect())),
            Some(window) => {
                // A guess is right where there is neither key.
                let untouched = u128::try_from(window.untouched(self.usable()).len()).unwrap_or(u128::MAX);
                let few = untouched <= (window.to - window.from) / CROWDED + 1;
                // A window that had to be looked for has room by choice; where the guess went has none.
                if few || self.looks > 0 {
                    Learnt::Crowded(addresses(window.free(self.usable())))
                } else {
                    Learnt::Roomy
                }
            }
        }
    }
}

/// What the next ADD should know of a pool, after these. Nothing can be told by an address that was asked for, or by a part of
/// a lease. Where the range that is searched first has none, no spare is left.
fn learnt_of(hunts: &[(usize, Hunt<'_>)], slots: usize) -> Learnt {
    if hunts.len() < slots || hunts.iter().any(|(_, hunt)| hunt.want.is_some()) {
        return Learnt::Nothing;
    }
    if hunts.iter().any(|(_, hunt)| hunt.at > 0) {
        return Learnt::Left(Vec::new());
    }
    let all = hunts.iter().map(|(_, hunt)| hunt.learnt(MOST_SPARES / hunts.len()));
    all.fold(Learnt::Nothing, |all, one| match (all, one) {
        (Learnt::Nothing | Learnt::Roomy, one) => one,
        (all, Learnt::Nothing | Learnt::Roomy) => all,
        (Learnt::Left(all), Learnt::Left(one)) => Learnt::Left([all, one].concat()),
        (Learnt::Crowded(all) | Learnt::Left(all), Learnt::Crowded(one) | Learnt::Left(one)) => {
            Learnt::Crowded([all, one].concat())
        }
    })
}

/// Where the hash of an identity points, in a set of this size. FNV-1a over the lease's path: the same on every
/// node and in every version.
fn start_of(id: &LeaseId, size: u128) -> u128 {
    struct Fnv(u128);
    impl Hasher for Fnv {
        fn finish(&self) -> u64 {
            0
        }
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 ^= u128::from(*byte);
                self.0 = self.0.wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013B);
            }
        }
    }
    let mut hash = Fnv(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    hash.write(keys::lease_path(id).as_bytes());
    // The high half is mixed in: the low bits of FNV alone are weak.
    (hash.0 ^ (hash.0 >> 64)) % size.max(1)
}

/// Searches one source and binds what it finds.
pub(crate) async fn search<S: Store, W: Wire, C: Clock, L: Log>(
    ctx: &Context<'_, S, W, C, L>,
    source: &Source,
    wants: &[Want],
    spares: &[SpareSeen],
    old: Option<&Stored<Lease>>,
    make: &(dyn Fn(Vec<LeasedAddress>) -> Lease + Sync),
    conflicts: &mut u32,
) -> Result<Found, Refusal> {
    let Lease { id, sticky, .. } = make(Vec::new());
    let mut hunts: Vec<(usize, Hunt<'_>)> = Vec::new();
    for (slot, want) in wants.iter().enumerate() {
        let want = match want {
            Want::Kept(_) => continue,
            Want::This(address, by) => Some((*address, by.clone())),
            Want::Any => None,
        };
        let ranges = source.slots.get(slot).map_or(&[][..], Vec::as_slice);
        if ranges.is_empty() {
            let pool = source.label.clone();
            return Ok(Found::Full(Usage { pool, family: None, used: 0, total: 0 }));
        }
        let at = match &want {
            Some((address, _)) => {
                ranges.iter().position(|range| range.usable().contains(*address)).unwrap_or(0)
            }
            None => 0,
        };
        // A sticky pod comes back, and is to find the address again that was its own: it looks where its name points.
        let spares = match want {
            None if !sticky => spares_of(source, spares, &ranges[at]),
            Some(_) | None => Vec::new(),
        };
        hunts.push((
            slot,
            Hunt {
                ranges,
                want,
                at,
                pick: None,
                window: None,
                seen: BTreeMap::new(),
                shunned: BTreeSet::new(),
                cooling: None,
                looks: 0,
                spares,
                is_full: false,
            },
        ));
    }
    let spans = (SPANS / hunts.len().max(1)).max(1);
    let search = Search { ctx, source, id: &id, spans };
    loop {
        if Instant::now() + MARGIN >= ctx.deadline {
            return Err(Refusal::Contention { conflicts: *conflicts, late: false });
        }
        for (_, hunt) in &mut hunts {
            if let Some(end) = search.next(hunt, *conflicts).await? {
                return Ok(end);
            }
        }
        if search.probe(&mut hunts).await? {
            continue;
        }
        let mut addresses = Vec::with_capacity(wants.len());
        let mut takes = Vec::with_capacity(hunts.len());
        for (slot, want) in wants.iter().enumerate() {
            if let Want::Kept(address) = want {
                addresses.push(address.clone());
                continue;
            }
            let Some((_, Hunt { pick: Some(pick), ranges, at, .. })) = hunts.iter().find(|(s, _)| *s == slot)
            else {
                continue;
            };
            let address = LeasedAddress {
                address: ranges[*at].family().address(pick.number),
                domain: source.domain.clone(),
                pool: source.pool.clone(),
            };
            takes.push(Take { address: address.clone(), released: pick.released.map(Revision) });
            addresses.push(address);
        }
        let lease = make(addresses);
        let guards: Vec<Compare> = source.guard.iter().cloned().collect();
        let mut txn = match old {
            Some(old) => changes::take_over_elsewhere(old, &lease, &takes, &guards, ctx.clock.now()),
            None => changes::bind_new(&lease, &takes, &guards),
        };
        let shape = search.otherwise(&mut txn, &hunts);
        match commit::surely(ctx.store, &txn, ctx.deadline).await? {
            commit::Sent::Applied(revision) => {
                let written = changes::as_written(&txn, lease, revision);
                // A sticky pod had no spares: that its guess was right says little.
                let learnt = if sticky { Learnt::Nothing } else { learnt_of(&hunts, wants.len()) };
                return Ok(Found::Bound(Box::new(written), learnt));
            }
            commit::Sent::Conflict(snapshot) => {
                *conflicts += 1;
                if search.rests_on_another(&snapshot, old) {
                    return Ok(Found::Again);
                }
                for (index, (_, hunt)) in hunts.iter_mut().enumerate() {
                    search.take_in(hunt, &shape.windows[index], &snapshot, true);
                }
            }
        }
    }
}

/// Those of this range of which nobody is to be asked.
fn spares_of(source: &Source, seen: &[SpareSeen], range: &Range) -> Vec<Spare> {
    seen.iter()
        .filter(|spare| Some(&spare.pool) == source.pool.as_ref() && spare.domain == source.domain)
        .filter(|spare| range.usable().contains(spare.address))
        .map(|spare| Spare {
            number: number(spare.address),
            released: spare.released.as_ref().map(|stored| FreeOnce {
                released: stored.value.clone(),
                revision: stored.revision.0,
                waited: false,
                shunned: false,
            }),
        })
        .filter(|spare| spare.released.as_ref().is_none_or(FreeOnce::is_quiet))
        .collect()
}

/// Where in the else-branch the windows stand.
struct Shape {
    windows: Vec<WindowShape>,
}

/// One window: its positions, and the questions that bring its keys: one pair for each run.
struct WindowShape {
    from: u128,
    to: u128,
    first: usize,
    runs: usize,
}

/// Questions of the else-branch before the windows: lease, frozen, pool.
const HEAD: usize = 3;

struct Search<'a, S, W, C, L> {
    ctx: &'a Context<'a, S, W, C, L>,
    source: &'a Source,
    id: &'a LeaseId,
    spans: usize,
}

impl<S: Store, W: Wire, C: Clock, L: Log> Search<'_, S, W, C, L> {
    /// The window around a position: its runs, cut to what one commit may ask.
    fn window(&self, usable: &AddrSet, position: u128, width: u128) -> (u128, u128, Vec<AddrRange>) {
        let (mut from, mut to) = window_around(position, usable.size(), width);
        let mut runs = usable.slice(from, to);
        while runs.len() > self.spans {
            // Shrink around the position until few enough runs are left.
            let quarter = ((to - from) / 4).max(1);
            from = from.saturating_add(quarter).min(position);
            to = to.saturating_sub(quarter).max(position);
            runs = usable.slice(from, to);
        }
        (from, to, runs)
    }

    fn questions(&self, runs: &[AddrRange], reads: &mut Vec<Read>) {
        for run in runs {
            reads.push(Read::keys(keys::addresses_of(&self.source.domain, *run)));
            reads.push(Read::list(keys::released_of(&self.source.domain, *run)));
        }
    }

    fn otherwise(&self, txn: &mut Txn, hunts: &[(usize, Hunt<'_>)]) -> Shape {
        let mut reads = vec![Read::Get(keys::lease(self.id)), Read::Get(keys::frozen())];
        reads.push(match &self.source.pool {
            Some(pool) => Read::keys(keys::Span {
                from: keys::pool(pool).to_string(),
                to: format!("{}\0", keys::pool(pool)),
            }),
            None => Read::Get(keys::meta()),
        });
        let mut windows = Vec::with_capacity(hunts.len());
        for (_, hunt) in hunts {
            let usable = hunt.usable();
            let position = hunt.pick.and_then(|pick| usable.position(pick.number)).unwrap_or(0);
            let width = if hunt.want.is_some() { 1 } else { WINDOW };
            let (from, to, runs) = self.window(usable, position, width);
            windows.push(WindowShape { from, to, first: reads.len(), runs: runs.len() });
            self.questions(&runs, &mut reads);
        }
        txn.otherwise = reads;
        Shape { windows }
    }

    /// Did the lease, the freeze or the pool change? Then choosing again is not enough.
    fn rests_on_another(&self, snapshot: &Snapshot, old: Option<&Stored<Lease>>) -> bool {
        debug_assert!(snapshot.found.len() >= HEAD);
        let lease = snapshot.entry(0).map(|entry| entry.revision) != old.map(|old| old.revision);
        let frozen = snapshot.entry(1).is_some();
        let pool = match &self.source.guard {
            Some(Compare::Unchanged(_, revision)) => {
                snapshot.entry(2).map(|entry| entry.revision) != Some(*revision)
            }
            Some(Compare::Absent(_) | Compare::Value(..) | Compare::NoneSince(..)) | None => false,
        };
        lease || frozen || pool
    }

    /// Takes what was read of a window into the hunt; the pick stays only if it still can be had.
    fn take_in(&self, hunt: &mut Hunt<'_>, shape: &WindowShape, snapshot: &Snapshot, drop_pick: bool) {
        let mut window = Window { from: shape.from, to: shape.to, ..Window::default() };
        for run in 0..shape.runs {
            for entry in snapshot.entries(shape.first + 2 * run) {
                window.taken.extend(keys::parse_held(&entry.key).map(|(_, address)| number(address)));
            }
            for entry in snapshot.entries(shape.first + 2 * run + 1) {
                let Some((_, address)) = keys::parse_released(&entry.key) else { continue };
                let place = number(address);
                // A released key that cannot be read is as good as taken: never handed out.
                let Ok(stored) = record::decode_released(entry) else {
                    window.taken.insert(place);
                    hunt.shunned.insert(place);
                    continue;
                };
                let (revision, now) = (entry.revision.0, Instant::now());
                let first = hunt.seen.entry(place).or_insert((revision, now));
                if first.0 != revision {
                    *first = (revision, now);
                }
                let rests = rests_ms(&stored.value, self.cool_down_ms());
                let waited = now.duration_since(first.1).as_millis() >= u128::try_from(rests).unwrap_or(0);
                let shunned = hunt.shunned.contains(&place);
                window.released.insert(place, FreeOnce { released: stored.value, revision, waited, shunned });
            }
        }
        for place in &hunt.shunned {
            if !window.released.contains_key(place) {
                window.taken.insert(*place);
            }
        }
        let still = hunt.pick.is_some_and(|pick| {
            !window.taken.contains(&pick.number)
                && window.released.get(&pick.number).map(|free| free.revision) == pick.released
        });
        // Of several slots only one may have been lost to another; the others' picks are as good as before.
        if drop_pick && !still {
            hunt.pick = None;
        }
        hunt.window = Some(window);
    }

    fn chooser<'h>(&self, holder: &'h Holder, cluster: &'h ClusterName) -> Chooser<'h> {
        Chooser {
            holder,
            cluster,
            now: self.ctx.clock.now(),
            cool_down_ms: self.cool_down_ms(),
            chance: self.ctx.clock.chance(),
        }
    }

    fn cool_down_ms(&self) -> i64 {
        i64::try_from(self.source.cool_down.as_millis()).unwrap_or(i64::MAX)
    }

    /// Gives the hunt a pick, or says how the search ends.
    async fn next(&self, hunt: &mut Hunt<'_>, conflicts: u32) -> Result<Option<Found>, Refusal> {
        loop {
            if hunt.pick.is_some() {
                return Ok(None);
            }
            let start = start_of(self.id, hunt.usable().size());
            if hunt.window.is_none() {
                hunt.pick = self.chooser(&self.id.holder, &self.id.cluster).spare(&hunt.spares);
                if hunt.pick.is_some() {
                    return Ok(None);
                }
                // Nothing was looked at yet: a guess, unless an address must be known before it is probed or taken.
                if hunt.want.is_none() && self.source.probe != ProbeRule::Always {
                    let number = hunt.usable().nth(start).unwrap_or_else(|| hunt.usable().runs()[0].first());
                    hunt.pick = Some(Pick { number, released: None, probe: false });
                    return Ok(None);
                }
                self.look(hunt, start).await?;
            }
            let window = hunt.window.clone().unwrap_or_default();
            let number = hunt.usable().nth(start).unwrap_or(0);
            let chooser = self.chooser(&self.id.holder, &self.id.cluster);
            match chooser.choose(hunt.usable(), &window, number) {
                Choice::Take(pick) => hunt.pick = Some(pick),
                Choice::Cooling { ready_in_ms, count, future } => {
                    if let Some(place) = future {
                        self.rewrite(hunt, place).await?;
                    }
                    let whole = window.from == 0 && window.to == hunt.usable().size() - 1;
                    hunt.looks += 1;
                    if whole || hunt.want.is_some() || hunt.looks > LOOKS || !self.locate(hunt).await? {
                        let best = hunt.cooling.get_or_insert((0, i64::MAX));
                        *best = (best.0 + count, best.1.min(ready_in_ms));
                        if let Some(end) = self.leave_range(hunt).await? {
                            return Ok(Some(end));
                        }
                    }
                }
                Choice::Nothing => {
                    if let Some((address, by)) = hunt.want.clone() {
                        return Err(self.taken(address, by).await?);
                    }
                    let whole = window.from == 0 && window.to == hunt.usable().size() - 1;
                    hunt.looks += 1;
                    if (whole || hunt.looks > LOOKS || !self.locate(hunt).await?)
                        && let Some(end) = self.leave_range(hunt).await?
                    {
                        return Ok(Some(end));
                    }
                }
            }
            if Instant::now() + MARGIN >= self.ctx.deadline && hunt.pick.is_none() {
                return Err(Refusal::Contention { conflicts, late: false });
            }
        }
    }

    /// Reads the window around where the hash points, or around the address that is wanted.
    async fn look(&self, hunt: &mut Hunt<'_>, start: u128) -> Result<(), Refusal> {
        let (position, width) = match &hunt.want {
            Some((address, _)) => (hunt.usable().position(number(*address)).unwrap_or(0), 1),
            None => (start, WINDOW),
        };
        self.look_at(hunt, position, width, None).await
    }

    async fn look_at(
        &self,
        hunt: &mut Hunt<'_>,
        position: u128,
        width: u128,
        at: Option<Revision>,
    ) -> Result<(), Refusal> {
        let (from, to, runs) = self.window(hunt.usable(), position, width);
        let mut reads = Vec::with_capacity(2 * runs.len());
        self.questions(&runs, &mut reads);
        let snapshot = commit::read(self.ctx.store, &reads, at, self.ctx.deadline).await?;
        self.take_in(hunt, &WindowShape { from, to, first: 0, runs: runs.len() }, &snapshot, false);
        Ok(())
    }

    /// This range has nothing for now: the next one, or the end of the search.
    async fn leave_range(&self, hunt: &mut Hunt<'_>) -> Result<Option<Found>, Refusal> {
        let is_full = replace(&mut hunt.is_full, false);
        if hunt.want.is_none() && hunt.at + 1 < hunt.ranges.len() {
            hunt.at += 1;
            hunt.looks = 0;
            hunt.window = None;
            hunt.spares = Vec::new();
            return Ok(None);
        }
        if let Some((count, ready_in_ms)) = hunt.cooling.take() {
            let wait = Duration::from_millis(u64::try_from(ready_in_ms).unwrap_or(0) + 1);
            if Instant::now() + wait + MARGIN < self.ctx.deadline {
                sleep(wait).await;
                hunt.looks = 0;
                if hunt.want.is_none() {
                    hunt.at = 0;
                }
                let start = start_of(self.id, hunt.usable().size());
                self.look(hunt, start).await?;
                return Ok(None);
            }
            if let Some((address, by)) = hunt.want.clone() {
                let free = hunt.window.as_ref().and_then(|window| window.released.get(&number(address)));
                let reason = match free.and_then(|free| free.released.declined.as_ref()) {
                    Some(declined) => format!(
                        "{} answered on it at {}; it is asked again in {ready_in_ms} ms",
                        declined.mac,
                        record::format_time(declined.at)
                    ),
                    None => format!("it was given back a moment ago and is ready in {ready_in_ms} ms"),
                };
                return Err(Refusal::RequestedTaken { address, by, reason });
            }
            return Ok(Some(Found::Cooling { label: self.source.label.clone(), count, ready_in_ms }));
        }
        // Nothing anywhere: said only when the counts of one revision equal the usable sizes.
        let (used, total) = match hunt.ranges {
            [only] if is_full => (only.usable().size(), only.usable().size()),
            _ => self.count(hunt).await?,
        };
        if used >= total {
            let family = Some(hunt.family());
            return Ok(Some(Found::Full(Usage { pool: self.source.label.clone(), family, used, total })));
        }
        if !hunt.shunned.is_empty() && u128::try_from(hunt.shunned.len()).unwrap_or(0) >= total - used {
            // The rest answers on the wire, taken by strangers, or its records cannot be read.
            let family = Some(hunt.family());
            let left = total - used;
            let pool =
                format!("{} ({left} more answer on the wire, or cannot be asked or read)", self.source.label);
            return Ok(Some(Found::Full(Usage { pool, family, used, total })));
        }
        sleep(BREATH).await;
        hunt.at = 0;
        hunt.looks = 0;
        let start = start_of(self.id, hunt.usable().size());
        self.look(hunt, start).await?;
        Ok(None)
    }

    /// Counts all ranges of the slot at one revision.
    async fn count(&self, hunt: &Hunt<'_>) -> Result<(u128, u128), Refusal> {
        let runs: Vec<AddrRange> =
            hunt.ranges.iter().flat_map(|range| range.usable().runs()).copied().collect();
        let total = hunt.ranges.iter().fold(0u128, |sum, range| sum.saturating_add(range.usable().size()));
        let (counts, _) = self.counts(&runs, None).await?;
        Ok((counts.iter().map(|count| u128::from(*count)).sum(), total))
    }

    /// Counts the held addresses of each run, all at one revision.
    async fn counts(
        &self,
        runs: &[AddrRange],
        at: Option<Revision>,
    ) -> Result<(Vec<u64>, Revision), Refusal> {
        let mut revision = at;
        let mut counts = Vec::with_capacity(runs.len());
        for chunk in runs.chunks(COUNTS) {
            let reads: Vec<Read> =
                chunk.iter().map(|run| Read::Count(keys::addresses_of(&self.source.domain, *run))).collect();
            let snapshot = commit::read(self.ctx.store, &reads, revision, self.ctx.deadline).await?;
            revision.get_or_insert(snapshot.revision);
            counts.extend((0..chunk.len()).map(|index| snapshot.count(index)));
        }
        Ok((counts, revision.unwrap_or_default()))
    }

    /// Counts pieces of the usable set: room of each, and the revision.
    async fn rooms(
        &self,
        usable: &AddrSet,
        pieces: &[(u128, u128)],
        at: Option<Revision>,
    ) -> Result<(Vec<u128>, Revision), Refusal> {
        let mut runs = Vec::new();
        let mut ends = Vec::with_capacity(pieces.len());
        for (from, to) in pieces {
            runs.extend(usable.slice(*from, *to));
            ends.push(runs.len());
        }
        let (counts, revision) = self.counts(&runs, at).await?;
        let mut rooms = Vec::with_capacity(pieces.len());
        let mut begin = 0;
        for (end, (from, to)) in ends.into_iter().zip(pieces) {
            let used: u128 = counts[begin..end].iter().map(|count| u128::from(*count)).sum();
            rooms.push((to - from).saturating_add(1).saturating_sub(used));
            begin = end;
        }
        Ok((rooms, revision))
    }

    /// Finds a window that has room, and reads it at the revision of the count. `false`: the range has none.
    async fn locate(&self, hunt: &mut Hunt<'_>) -> Result<bool, Refusal> {
        match self.try_locate(hunt).await {
            Err(Refusal::Store(StoreError::Compacted(_))) => self.try_locate(hunt).await,
            other => other,
        }
    }

    async fn try_locate(&self, hunt: &mut Hunt<'_>) -> Result<bool, Refusal> {
        let usable = hunt.usable().clone();
        let size = usable.size();
        let chance = u128::from(self.ctx.clock.chance());
        let (mut from, mut to, mut at) = (0, size - 1, None);
        if size > SAMPLES * SAMPLE {
            let step = size / SAMPLES;
            let offset = chance % (step - SAMPLE + 1);
            let pieces: Vec<(u128, u128)> =
                (0..SAMPLES).map(|k| (k * step + offset, k * step + offset + SAMPLE - 1)).collect();
            let (rooms, revision) = self.rooms(&usable, &pieces, None).await?;
            if let Some(piece) = with_room(&pieces, &rooms, chance) {
                ((from, to), at) = (piece, Some(revision));
            }
        }
        // A window that is asked for whole: not too wide, and not in too many runs.
        while to - from >= SAMPLE || usable.slice(from, to).len() > self.spans {
            let pieces = pieces(from, to);
            let (rooms, revision) = self.rooms(&usable, &pieces, at).await?;
            at = Some(revision);
            match with_room(&pieces, &rooms, chance) {
                Some(piece) => (from, to) = piece,
                None => {
                    hunt.is_full = (from, to) == (0, size - 1);
                    return Ok(false);
                }
            }
        }
        let width = to - from + 1;
        self.look_at(hunt, from + width / 2, width, at).await?;
        Ok(true)
    }

    /// A time in the future is rewritten to now: clocks differ.
    async fn rewrite(&self, hunt: &Hunt<'_>, place: u128) -> Result<(), Refusal> {
        let address = hunt.family().address(place);
        let key = keys::released(&self.source.domain, address);
        let snapshot = commit::read(self.ctx.store, &[Read::Get(key)], None, self.ctx.deadline).await?;
        let Some(stored) = snapshot.entry(0).and_then(|entry| record::decode_released(entry).ok()) else {
            return Ok(());
        };
        let now = self.ctx.clock.now();
        if stored.value.at <= now && stored.value.declined.as_ref().is_none_or(|declined| declined.at <= now)
        {
            return Ok(());
        }
        let txn = changes::refresh_released(&self.source.domain, address, &stored, now);
        let _ = commit::surely(self.ctx.store, &txn, self.ctx.deadline).await?;
        self.ctx.log.note(&format!(
            "{address} was given back, or declined, in the future of this node's clock: its time begins now"
        ));
        Ok(())
    }

    /// Who has a requested address.
    async fn taken(&self, address: IpAddr, by: String) -> Result<Refusal, Refusal> {
        let domain = &self.source.domain;
        let reads = [Read::Get(keys::address(domain, address)), Read::Get(keys::released(domain, address))];
        let snapshot = commit::read(self.ctx.store, &reads, None, self.ctx.deadline).await?;
        let unreadable = snapshot.entry(1).and_then(|entry| record::decode_released(entry).err());
        let reason = match snapshot.entry(0).map(record::decode_address) {
            Some(Ok(AddressHolder::Lease(id))) => format!("{id} has it"),
            Some(Ok(AddressHolder::Device { reason, .. })) => format!("reserved: {reason}"),
            Some(Err(error)) => error.to_string(),
            None => unreadable.map_or_else(
                || "somebody else had it a moment ago: try again".into(),
                |error| error.to_string(),
            ),
        };
        Ok(Refusal::RequestedTaken { address, by, reason })
    }

    /// Probes the picks that need it. `true`: somebody answered, or nothing can be known; choose again.
    async fn probe(&self, hunts: &mut [(usize, Hunt<'_>)]) -> Result<bool, Refusal> {
        let needs = |pick: &Pick| match self.source.probe {
            ProbeRule::Always => true,
            ProbeRule::Unconfirmed => pick.probe,
            ProbeRule::Never => false,
        };
        let asked: Vec<IpAddr> = hunts
            .iter()
            .filter_map(|(_, hunt)| hunt.pick.filter(needs).map(|pick| hunt.family().address(pick.number)))
            .collect();
        if asked.is_empty() {
            return Ok(false);
        }
        match self.ctx.wire.probe(&asked).await {
            Heard::Silence => Ok(false),
            Heard::Nowhere(reason) => {
                let doubtful = hunts.iter_mut().find(|(_, hunt)| hunt.pick.is_some_and(|pick| pick.probe));
                let Some((_, hunt)) = doubtful.filter(|_| self.source.node_lost == NodeLost::Keep) else {
                    self.ctx.log.note(&format!("not probed, taken as silence: {reason}"));
                    return Ok(false);
                };
                self.shun(hunt, &format!("nodeLost is keep and it cannot be probed: {reason}"))?;
                Ok(true)
            }
            Heard::Failed(reason) => Err(Refusal::CannotProbe { address: asked[0], reason }),
            Heard::Claims(claims) => {
                for (address, mac) in claims {
                    let hit = hunts.iter_mut().find(|(_, hunt)| {
                        hunt.pick.is_some_and(|pick| hunt.family().address(pick.number) == address)
                    });
                    if let Some((_, hunt)) = hit {
                        self.decline(hunt, address, mac).await?;
                    }
                }
                Ok(true)
            }
        }
    }

    /// This run may not have its pick; others may.
    fn shun(&self, hunt: &mut Hunt<'_>, reason: &str) -> Result<(), Refusal> {
        let Some(pick) = hunt.pick.take() else { return Ok(()) };
        if let Some((address, by)) = hunt.want.clone() {
            return Err(Refusal::RequestedTaken { address, by, reason: reason.into() });
        }
        hunt.shunned.insert(pick.number);
        hunt.spares.retain(|spare| spare.number != pick.number);
        if let Some(window) = &mut hunt.window {
            match window.released.get_mut(&pick.number) {
                Some(free) => free.shunned = true,
                None => {
                    window.taken.insert(pick.number);
                }
            }
        }
        Ok(())
    }

    /// A stranger answers: its MAC goes into the released key, and the address is offered again later, last.
    async fn decline(&self, hunt: &mut Hunt<'_>, address: IpAddr, mac: String) -> Result<(), Refusal> {
        let domain = &self.source.domain;
        let key = keys::released(domain, address);
        let snapshot = commit::read(self.ctx.store, &[Read::Get(key)], None, self.ctx.deadline).await?;
        let old = snapshot.entry(0).map(record::decode_released).transpose()?;
        let declined = Declined { mac: mac.clone(), at: self.ctx.clock.now() };
        let by = (&self.id.holder, &self.id.cluster);
        let txn = changes::decline(domain, address, old.as_ref(), by, declined);
        if let commit::Sent::Applied(_) = commit::surely(self.ctx.store, &txn, self.ctx.deadline).await? {
            self.ctx.log.change(&Change {
                what: "lease.declined",
                lease: Some(self.id.clone()),
                addresses: vec![address],
                pool: self.source.pool.clone(),
                container: None,
                why: format!("{mac} answers on it"),
            });
        }
        self.shun(hunt, &format!("{mac} answers on it"))
    }
}

/// Sixteen pieces of an interval of positions.
fn pieces(from: u128, to: u128) -> Vec<(u128, u128)> {
    let step = (to - from) / SAMPLES + 1;
    (0..SAMPLES)
        .map(|k| {
            (from.saturating_add(k * step), to.min(from.saturating_add(k * step).saturating_add(step - 1)))
        })
        .take_while(|(begin, _)| *begin <= to)
        .collect()
}

/// One of the pieces that have room, by chance: callers that contend spread.
fn with_room(pieces: &[(u128, u128)], rooms: &[u128], chance: u128) -> Option<(u128, u128)> {
    let best = rooms.iter().max().copied().filter(|room| *room > 0)?;
    let good: Vec<(u128, u128)> =
        pieces.iter().zip(rooms).filter(|(_, room)| **room > best / 2).map(|(piece, _)| *piece).collect();
    let index = usize::try_from(chance % u128::try_from(good.len()).unwrap_or(1)).unwrap_or(0);
    good.get(index).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_an_interval_without_overlap() {
        for (from, to) in [(0u128, 511u128), (5, 700), (0, u128::MAX - 1), (3, 65_535)] {
            let parts = pieces(from, to);
            assert_eq!(parts[0].0, from);
            assert_eq!(parts[parts.len() - 1].1, to);
            assert!(parts.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0));
        }
    }
}
