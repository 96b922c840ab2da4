//! What must hold: the invariants of the store's content after each commit, the rules about who may change what, and what is
//! promised to whoever lives. Written from the design, and not with the code that is judged.
//!
//! Not promised, and so not asked for here:
//!
//! - that a sandbox which was cut off without a sound, and whose pod has gone meanwhile, has its address alone when it comes
//!   back;
//! - a cool-down between nodes whose clocks differ;
//! - two sandboxes of one pod on one node: their kubelet started both.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    ops::Deref,
    sync::atomic::Ordering,
};

use leasehold::{
    domain::{
        addr::Family,
        audit::Place,
        kubernetes::{Pod, Ready, Wants},
        lease::{AddressHolder, Holder, Lease, LeaseId, Released, Stamp, Timestamp},
        names::{NodeName, PoolName},
        pool::{NodeLost, Pool, ProbeRule, Retain, StickyRule},
        workload,
    },
    store::{Entry, Key, Outcome, Read, Store as _, Txn, Write, changes, keys, record},
};

use super::{
    cluster::{LINGER_MS, Stage, State, lease_key, node_name},
    history::{Deed, Lie, NODES, ORDINALS},
    way::{Op, Role},
};
use crate::world::{ADD_DEADLINE, futures_now};

/// `--lost-after` and `--finished-after`.
const LOST_AFTER_MS: i64 = 30_000;
const FINISHED_AFTER_MS: i64 = 120_000;
/// So long after its bind a sandbox is heard, or its ADD has bound it anew, or it never runs.
const ARRIVES_MS: i64 = 5_000;
/// What has ended so long ago is heard no more, whatever a person does with it.
const DESK_MS: i64 = 5_000;
/// Since when a lease is held is a node's clock: off by less than this.
const DOUBT_MS: i64 = 400_000;

/// The store's content, decoded, as the commits made it.
#[derive(Default)]
pub(crate) struct Mirror {
    pub(crate) leases: BTreeMap<Key, Lease>,
    pub(crate) held: BTreeMap<Place, AddressHolder>,
    pub(crate) released: BTreeMap<Place, Released>,
    pub(crate) attachments: BTreeMap<Key, LeaseId>,
    /// The index of whom the pools serve.
    serves: BTreeSet<Key>,
    /// Since when nothing new is leased.
    pub(crate) frozen: Option<Timestamp>,
    /// Each pool, and since when it is so.
    pub(crate) pools: BTreeMap<PoolName, (Pool, Timestamp)>,
}

/// What one commit touched, as it was before.
#[derive(Default)]
struct Before {
    leases: Vec<(Key, Option<Lease>)>,
    held: Vec<Place>,
    released: Vec<(Place, Option<Released>)>,
    attachments: Vec<Key>,
    /// A pool, or the index of whom it serves.
    pools: bool,
}

impl Mirror {
    /// Takes in what the store has under this key now.
    fn take_in(&mut self, key: &Key, entry: Option<Entry>, now: Timestamp, before: &mut Before) {
        if keys::parse_lease(key).is_some() {
            let new = entry.map(|entry| record::decode_lease(&entry).unwrap().value);
            let old = match new {
                Some(new) => self.leases.insert(key.clone(), new),
                None => self.leases.remove(key),
            };
            before.leases.push((key.clone(), old));
        } else if let Some((domain, address)) = keys::parse_held(key) {
            let place = Place { domain, address };
            match entry {
                Some(entry) => {
                    self.held.insert(place.clone(), record::decode_address(&entry).unwrap());
                }
                None => {
                    self.held.remove(&place);
                }
            }
            before.held.push(place);
        } else if let Some((domain, address)) = keys::parse_released(key) {
            let place = Place { domain, address };
            let old = match entry {
                Some(entry) => {
                    let released = record::decode_released(&entry).unwrap().value;
                    self.released.insert(place.clone(), released)
                }
                None => self.released.remove(&place),
            };
            before.released.push((place, old));
        } else if keys::parse_attachment(key).is_some() {
            match entry {
                Some(entry) => {
                    self.attachments.insert(key.clone(), record::decode_pointer(&entry).unwrap());
                }
                None => {
                    self.attachments.remove(key);
                }
            }
            before.attachments.push(key.clone());
        } else if let Some(name) = keys::parse_pool(key) {
            match entry {
                Some(entry) => {
                    self.pools.insert(name, (record::decode_pool(&entry).unwrap().value, now));
                }
                None => {
                    self.pools.remove(&name);
                }
            }
            before.pools = true;
        } else if keys::parse_serve(key).is_some() {
            match entry {
                Some(_) => self.serves.insert(key.clone()),
                None => self.serves.remove(key),
            };
            before.pools = true;
        } else if *key == keys::frozen() {
            self.frozen = entry.map(|_| self.frozen.unwrap_or(now));
        }
    }

    /// The pool of a lease, if it has been the same since then.
    fn pool_since(&self, lease: &Lease, since: Timestamp) -> Option<&Pool> {
        let name = lease.addresses.first()?.pool.as_ref()?;
        self.pools.get(name).filter(|(_, changed)| *changed <= since).map(|(pool, _)| pool)
    }

    /// Invariants 1 to 3, and 6, for what a commit touched.
    fn broken(&self, before: &Before) -> Vec<String> {
        let mut out = Vec::new();
        let serves = |(name, (pool, _)): (&PoolName, &(Pool, Timestamp))| -> Vec<Key> {
            pool.serves().iter().map(|serve| keys::serve(serve, name)).collect()
        };
        if before.pools && !self.pools.iter().flat_map(serves).collect::<BTreeSet<_>>().eq(&self.serves) {
            out.push(format!("6: the index has {:?}", self.serves));
        }
        if before.pools {
            for lease in self.leases.values() {
                for leased in &lease.addresses {
                    let pool = leased.pool.as_ref().and_then(|name| self.pools.get(name));
                    if pool.is_some_and(|(pool, _)| *pool.domain() != leased.domain) {
                        out.push(format!("4: {} has {} of another domain", lease.id.holder, leased.address));
                    }
                }
            }
        }
        for (key, old) in &before.leases {
            let new = self.leases.get(key);
            for leased in new.iter().flat_map(|lease| &lease.addresses) {
                let place = Place { domain: leased.domain.clone(), address: leased.address };
                let id = new.map(|lease| &lease.id);
                if !matches!(self.held.get(&place), Some(AddressHolder::Lease(named)) if Some(named) == id) {
                    out.push(format!("1: {key} lists {place}, whose key says {:?}", self.held.get(&place)));
                }
            }
            for place in old.iter().flat_map(places) {
                let lists = |lease: &Lease| places(lease).any(|listed| listed == place);
                let names = |holder: &&AddressHolder| matches!(holder, AddressHolder::Lease(id) if keys::lease(id) == *key);
                if self.held.get(&place).as_ref().is_some_and(names) && !new.is_some_and(lists) {
                    out.push(format!("1: {place} is left to {key}, which does not list it any more"));
                }
            }
            let attachment = |lease: &Lease| lease.bound().map(|s| changes::attachment_key(&lease.id, s));
            let wanted = new.and_then(attachment);
            if let Some(wanted) = &wanted
                && self.attachments.get(wanted) != new.map(|lease| &lease.id)
            {
                out.push(format!("2: {key} is bound without {wanted}"));
            }
            if let Some(left) = old.as_ref().and_then(attachment).filter(|left| Some(left) != wanted.as_ref())
                && self.attachments.get(&left) == old.as_ref().map(|lease| &lease.id)
            {
                out.push(format!("2: {left} is left"));
            }
        }
        for place in before.held.iter().chain(before.released.iter().map(|(place, _)| place)) {
            let Some(holder) = self.held.get(place) else { continue };
            if self.released.contains_key(place) {
                out.push(format!("3: {place} is held and released"));
            }
            let AddressHolder::Lease(id) = holder else { continue };
            let lease = self.leases.get(&keys::lease(id));
            let lists = |lease: &Lease| {
                lease.addresses.iter().any(|a| a.address == place.address && a.domain == place.domain)
            };
            if !lease.is_some_and(lists) {
                out.push(format!("1: {place} names {id}, which does not list it"));
            }
        }
        for key in &before.attachments {
            let Some(id) = self.attachments.get(key) else { continue };
            let lease = self.leases.get(&keys::lease(id));
            let own = lease.and_then(|lease| lease.bound().map(|s| changes::attachment_key(id, s)));
            if own.as_ref() != Some(key) {
                out.push(format!("2: {key} is of no bound lease"));
            }
        }
        out
    }
}

/// Who changes something, and in which of its roles.
#[derive(Clone, Copy)]
struct Actor<'a> {
    op: &'a Op,
    role: Role,
}

impl Deref for Actor<'_> {
    type Target = Op;

    fn deref(&self) -> &Op {
        self.op
    }
}

fn places(lease: &Lease) -> impl Iterator<Item = Place> {
    lease.addresses.iter().map(|a| Place { domain: a.domain.clone(), address: a.address })
}

/// May a pod there have an address of this pool? Of two pools one is for StatefulSet `db` alone.
fn may_draw(pool: &Pool, holder: &Holder, stamp: &Stamp) -> bool {
    let serves = pool.name().as_str() != "db" || is_of_set(holder);
    serves && (pool.nodes().is_empty() || stamp.node != node_name(2))
}

fn is_of_set(holder: &Holder) -> bool {
    matches!(holder, Holder::Pod { name, .. } if name.as_str().starts_with("db-"))
}

/// The rules of retention, for those who are here.
fn is_sticky(pool: &Pool, holder: &Holder, seen: Option<&str>) -> bool {
    let Holder::Pod { name, .. } = holder else { return false };
    match pool.sticky() {
        StickyRule::Always => is_of_set(holder) || name.as_str() == "solo",
        StickyRule::Never => false,
        StickyRule::Auto => is_of_set(holder) && (pool.name().as_str() == "db" || seen.is_some()),
    }
}

impl State {
    /// A commit arrives.
    pub(crate) fn apply(&mut self, txn: &Txn, op: &Op, role: Role) -> Outcome {
        let outcome = futures_now(self.store.commit(txn)).unwrap();
        if let Outcome::Applied(_) = &outcome {
            self.judge(&txn.writes, Actor { op, role });
        }
        outcome
    }

    fn judge(&mut self, writes: &[Write], op: Actor<'_>) {
        let now = self.now();
        let mut before = Before::default();
        let keys: Vec<Key> = writes.iter().flat_map(Write::parts).filter_map(Write::key).cloned().collect();
        let reads: Vec<Read> = keys.iter().cloned().map(Read::Get).collect();
        let content = futures_now(self.store.read(&reads, None)).unwrap();
        for (index, key) in keys.iter().enumerate() {
            self.mirror.take_in(key, content.entry(index).cloned(), now, &mut before);
        }
        let mut out = self.mirror.broken(&before);
        for (key, old) in &before.leases {
            let new = self.mirror.leases.get(key);
            self.judge_lease(op, old.as_ref(), new, now, &mut out);
        }
        for (place, old) in &before.released {
            self.judge_mark(op, place, old.as_ref(), now, &mut out);
        }
        self.note_clocks(op, &before);
        if self.story.is_some() {
            let lines: Vec<String> = before
                .leases
                .iter()
                .map(|(key, _)| match self.mirror.leases.get(key) {
                    Some(lease) => super::cluster::show(&BTreeMap::from([(key.clone(), lease.clone())])),
                    None => format!(
                        "no lease {}",
                        keys::parse_lease(key).map_or(String::new(), |id| id.holder.to_string())
                    ),
                })
                .collect();
            if !lines.is_empty() {
                self.tell(|| format!("  {} makes: {}", op.what, lines.join("; ")));
            }
        }
        for text in out {
            self.fault(format!("{}: {text}", op.what));
        }
        self.judge_truth();
    }

    /// Whose clocks and lists what was written rests on.
    fn note_clocks(&mut self, op: Actor<'_>, before: &Before) {
        for (place, old) in &before.released {
            let at = |released: &Released| released.at;
            let new = self.mirror.released.get(place).map(at);
            if new.is_none()
                && op.role != Role::Desk
                && self.given.get(place) != Some(&op.skew)
                && self.mirror.held.contains_key(place)
            {
                // Whoever had it may still be heard.
                self.hasty.insert(place.address, Timestamp(self.now().0 + LINGER_MS));
            }
            if new.is_none() || new != old.as_ref().map(at) {
                self.given.remove(place);
                self.given.extend(new.map(|_| (place.clone(), op.skew)));
            }
        }
        for (key, old) in &before.leases {
            let missed = |lease: &Lease| lease.seen.as_ref().and_then(|seen| seen.missed);
            let new = self.mirror.leases.get(key).and_then(missed);
            if op.role == Role::Reap && op.pods != Lie::None && new != old.as_ref().and_then(missed) {
                self.false_notes.extend(new.map(|at| (key.clone(), at)));
            }
        }
    }

    /// By how much the clock of a node is off, milliseconds.
    fn skew_of(&self, node: &NodeName) -> Option<i64> {
        (0..NODES).find(|index| node_name(*index) == *node).map(|index| self.nodes[index].clock.skew)
    }

    /// Invariant 5, first half, and what the design says of each way to change a lease.
    fn judge_lease(
        &self,
        op: Actor<'_>,
        old: Option<&Lease>,
        new: Option<&Lease>,
        now: Timestamp,
        out: &mut Vec<String>,
    ) {
        if let Some(new) = new {
            self.judge_addresses(op, old, new, out);
        }
        if let Some(new) = new
            && op.role == Role::Add
            && new.bound().is_some()
        {
            self.judge_bound(op, old, new, out);
        }
        let Some(old) = old else { return };
        if op.role == Role::Reap && op.pods == Lie::Other {
            out.push(format!("15: changes the lease of {}, and another cluster answers", old.id.holder));
        }
        match (old.bound(), new.and_then(Lease::bound)) {
            (Some(stamp), None) => self.judge_end(op, old, stamp, new, now, out),
            (Some(stamp), Some(next)) if stamp.container != next.container || stamp.node != next.node => {
                self.judge_take_over(op, old, stamp, next, now, out);
            }
            (Some(_), Some(_)) => {
                if let Some(new) = new {
                    Self::judge_note_alone(op, old, new, out);
                }
            }
            (None, Some(_)) => {
                if op.role != Role::Add {
                    out.push(format!("5: binds the lease of {}", old.id.holder));
                }
                if old.unconfirmed {
                    self.judge_silence(op, old, new, "was left unconfirmed", out);
                } else if self.is_frozen_since(op.began) {
                    self.judge_silence(op, old, new, "may be another's in a store that is frozen", out);
                }
            }
            (None, None) => match new {
                None => self.judge_held_end(op, old, now, out),
                Some(new) => Self::judge_note_alone(op, old, new, out),
            },
        }
        if let Some(new) = new
            && op.role == Role::Reap
        {
            self.judge_note(op, old, new, out);
        }
        if let Some(new) = new
            && op.role == Role::Add
        {
            self.judge_return(op, old, new, out);
        }
    }

    /// What changes nothing of who has what.
    fn judge_note_alone(op: Actor<'_>, old: &Lease, new: &Lease, out: &mut Vec<String>) {
        let holder = &old.id.holder;
        if old.addresses != new.addresses {
            out.push(format!("5: {holder} had {:?}, and a note makes it {:?}", old.addresses, new.addresses));
        }
        if op.role == Role::Add {
            return;
        }
        if old.binding != new.binding {
            out.push(format!("5: a note makes the lease of {holder} another run's"));
        }
        if old.unconfirmed != new.unconfirmed {
            out.push(format!("5: a note changes the mark of what {holder} had"));
        }
        let reserves = op.role == Role::Desk && !old.reserved;
        let becomes_sticky = op.role == Role::Reap && !old.sticky;
        if old.reserved != new.reserved && !reserves || old.sticky != new.sticky && !becomes_sticky {
            out.push(format!("5: a note changes for how long {holder} has its addresses"));
        }
    }

    /// A bound lease ends.
    fn judge_end(
        &self,
        op: Actor<'_>,
        old: &Lease,
        stamp: &Stamp,
        new: Option<&Lease>,
        now: Timestamp,
        out: &mut Vec<String>,
    ) {
        let holder = &old.id.holder;
        let whose = format!("the lease of {holder}, bound to {} on {}", stamp.container, stamp.node);
        match op.role {
            Role::Add => {
                let own = op.sandbox.map(|index| &self.sandboxes[index].container);
                if own != Some(&stamp.container) {
                    out.push(format!("5: an ADD ends {whose}"));
                }
                let unconfirmed = match new {
                    Some(held) => held.unconfirmed,
                    None => places(old).all(|place| self.is_unconfirmed(&place)),
                };
                if op.displaced.load(Ordering::Relaxed) && !unconfirmed {
                    out.push(format!("5: an undo ends {whose} as if the sandbox before it had been DELed"));
                }
            }
            Role::Del => {
                if op.container.as_ref() != Some(&stamp.container) {
                    out.push(format!("5: the DEL of another container ends {whose}"));
                }
            }
            Role::Gc | Role::Flush => {
                let runs = self.sandboxes.iter().any(|sandbox| {
                    sandbox.stage == Stage::Up
                        && sandbox.container == stamp.container
                        && node_name(sandbox.node) == stamp.node
                });
                if runs {
                    out.push(format!("5: ends {whose}, which runs"));
                }
            }
            Role::Reap => self.judge_verdict(op, old, stamp, now, out),
            Role::Person => out.push(format!("5: a person's change of a pool ends {whose}")),
            Role::Desk => out.push(format!("5: a person ends {whose}, and has not forced it")),
        }
        match new {
            None if old.sticky || old.reserved => out.push(format!("{whose} was to be kept")),
            Some(_) if !old.sticky && !old.reserved => out.push(format!("{whose} is kept for nobody")),
            Some(held) if op.role == Role::Reap && !held.unconfirmed => {
                out.push(format!("5: a verdict ends {whose} as if it had been DELed"));
            }
            None if op.role == Role::Reap => {
                for place in places(old) {
                    if !self.is_unconfirmed(&place) {
                        out.push(format!("5: a verdict gives {place} back as if it had been DELed"));
                    }
                }
            }
            Some(_) | None => {}
        }
    }

    /// The table of verdicts, on what was true all the time while the pass worked.
    fn judge_verdict(
        &self,
        op: Actor<'_>,
        old: &Lease,
        stamp: &Stamp,
        now: Timestamp,
        out: &mut Vec<String>,
    ) {
        let holder = &old.id.holder;
        if matches!(holder, Holder::Container(_)) {
            out.push(format!("13a: gives back the lease of {holder}"));
            return;
        }
        // A node that is not ready, or not there, by a list is asked for once more; one that was ready is not.
        let told_of_nodes = !matches!(op.nodes, Lie::Stale(_));
        let Some(pod) = self.pod_of(holder) else {
            if self.went_silent(op, stamp, now) && told_of_nodes && self.gone_at(holder) <= Some(op.began) {
                out.push(format!(
                    "9: gives back the lease of {holder} while {} may be heard again",
                    stamp.node
                ));
            }
            let missed = old.seen.as_ref().and_then(|seen| seen.missed);
            let long = missed.is_some_and(|at| now.since(at) >= self.absent_after_ms);
            // One that went while the pass worked may have been judged by another row.
            let went = self.gone_at(holder).is_some_and(|at| at > op.began);
            if !long && !went {
                out.push(format!("8: gives back the lease of {holder}, missed since {missed:?}"));
            }
            return;
        };
        if pod.created > op.began && stamp.uid.as_ref() != Some(&pod.uid) {
            return;
        }
        if self.lives(&pod) {
            out.push(format!("1, 2: gives back the lease of {holder}, which lives as {}", pod.uid));
        }
        if let Some(at) = self.ended.get(&pod.uid)
            && !self.is_noted_falsely(old)
            && now.since(*at) < FINISHED_AFTER_MS + self.skew_of(&stamp.node).unwrap_or(0).min(0)
            && self.is_ready_since(&pod, op.began)
        {
            out.push(format!("6: gives back the lease of {holder} {} ms after its end", now.since(*at)));
        }
        let ended = self.ended.get(&pod.uid).is_some_and(|at| *at <= op.began);
        let due = pod.deleting.is_some_and(|due| due <= op.began);
        if told_of_nodes && (ended || due && !pod.phase.is_final()) {
            self.judge_lost(op, old, &pod, now, out);
        }
    }

    fn is_noted_falsely(&self, lease: &Lease) -> bool {
        let noted = lease.seen.as_ref().and_then(|seen| seen.missed);
        noted.is_some_and(|at| self.false_notes.contains(&(keys::lease(&lease.id), at)))
    }

    fn is_unconfirmed(&self, place: &Place) -> bool {
        self.mirror.released.get(place).is_some_and(|released| released.unconfirmed)
    }

    fn is_frozen_since(&self, at: Timestamp) -> bool {
        self.mirror.frozen.is_some_and(|since| since <= at)
    }

    /// Has the pod's node been ready all the time since then?
    fn is_ready_since(&self, pod: &Pod, at: Timestamp) -> bool {
        let index = (0..NODES).find(|node| pod.node == Some(node_name(*node)));
        index.and_then(|index| self.nodes[index].ready).is_some_and(|since| since <= at)
    }

    /// Has nobody heard of the node since before this began, and not yet for as long as makes it lost?
    fn went_silent(&self, op: Actor<'_>, stamp: &Stamp, now: Timestamp) -> bool {
        let api = self.api.state();
        api.nodes.get(&stamp.node).is_some_and(|node| match node.ready {
            Ready::Unknown { since } => since <= op.began && now.since(since) < LOST_AFTER_MS,
            Ready::True | Ready::False | Ready::Unsaid => false,
        })
    }

    /// Rows 3 to 5, and 7.
    fn judge_lost(&self, op: Actor<'_>, old: &Lease, pod: &Pod, now: Timestamp, out: &mut Vec<String>) {
        let Some(index) = (0..NODES).find(|node| pod.node == Some(node_name(*node))) else { return };
        if !pod.phase.is_final() && self.is_ready_since(pod, op.began) {
            out.push(format!("3: gives back the lease of {}, whose kubelet lives", old.id.holder));
        }
        let api = self.api.state();
        let Some(node) = api.nodes.get(&node_name(index)) else { return };
        let Ready::Unknown { since } = node.ready else { return };
        if node.out_of_service || since > op.began {
            return;
        }
        if now.since(since) < LOST_AFTER_MS {
            out.push(format!("4: gives back the lease of {} after {} ms", old.id.holder, now.since(since)));
        }
        if self.mirror.pool_since(old, op.began).is_some_and(|pool| pool.node_lost() == NodeLost::Keep) {
            out.push(format!("5: gives back the lease of {}, nodeLost is keep", old.id.holder));
        }
    }

    /// A sandbox takes the lease of another.
    fn judge_take_over(
        &self,
        op: Actor<'_>,
        old: &Lease,
        stamp: &Stamp,
        next: &Stamp,
        now: Timestamp,
        out: &mut Vec<String>,
    ) {
        let holder = &old.id.holder;
        let own = op.sandbox.map(|index| &self.sandboxes[index].container);
        if op.role != Role::Add || own != Some(&next.container) {
            out.push(format!("5: binds the lease of {holder} to {}", next.container));
        }
        if stamp.node == next.node {
            if stamp.boot == next.boot && stamp.boot_clock >= op.started {
                out.push(format!(
                    "{holder}: {} takes what the newer {} has",
                    next.container, stamp.container
                ));
            }
            if self.is_frozen_since(op.began) {
                let new = self.mirror.leases.get(&lease_key(holder));
                self.judge_silence(op, old, new, "may be another's in a store that is frozen", out);
            }
            return;
        }
        self.judge_silence(op, old, self.mirror.leases.get(&lease_key(holder)), "is bound elsewhere", out);
        // By true time, though the stamp is of that node's clock.
        let Some(skew) = self.skew_of(&stamp.node) else { return };
        let age = now.since(stamp.at) + skew;
        let least =
            if skew == op.skew { i64::try_from(ADD_DEADLINE.as_millis()).unwrap() } else { ARRIVES_MS };
        if age < least {
            out.push(format!("{holder}: taken from {} {age} ms after it was bound there", stamp.node));
        }
    }

    /// The addresses that a lease keeps were asked for on the wire.
    fn judge_silence(
        &self,
        op: Actor<'_>,
        old: &Lease,
        new: Option<&Lease>,
        why: &str,
        out: &mut Vec<String>,
    ) {
        let Some(new) = new else { return };
        for leased in old.addresses.iter().filter(|a| new.addresses.contains(a)) {
            let never = leased
                .pool
                .as_ref()
                .and_then(|name| self.mirror.pools.get(name))
                .is_some_and(|(pool, _)| pool.probe() == ProbeRule::Never);
            if !never && !op.heard_nobody(leased.address) {
                out.push(format!("8: binds {} unasked, which {why}", leased.address));
            }
        }
    }

    /// Invariant 4, and what may be taken. An ADD of another container leases its pod's addresses again.
    fn judge_addresses(&self, op: Actor<'_>, old: Option<&Lease>, new: &Lease, out: &mut Vec<String>) {
        let container = |lease: &Lease| lease.bound().map(|stamp| stamp.container.clone());
        let leases_again =
            op.role == Role::Add && container(new).is_some() && old.and_then(container) != container(new);
        for leased in &new.addresses {
            let had = old.is_some_and(|old| old.addresses.contains(leased));
            if had && !leases_again {
                continue;
            }
            if op.role == Role::Desk {
                self.judge_errand(op, new, out);
            } else if op.role != Role::Add {
                out.push(format!("5: takes {} for {}", leased.address, new.id.holder));
            } else if !had && self.mirror.frozen.is_some() {
                out.push(format!(
                    "takes {} for {} from a store that is frozen",
                    leased.address, new.id.holder
                ));
            }
            // Whether the other pod gets what is moved to it, its ADD says.
            if matches!(op.deed, Some(Deed::Move { .. })) {
                continue;
            }
            let Some((pool, _)) = leased.pool.as_ref().and_then(|name| self.mirror.pools.get(name)) else {
                out.push(format!("4: {} has no pool", leased.address));
                continue;
            };
            if pool.range_of(leased.address).is_none() {
                out.push(format!("4: {} is not of its pool", leased.address));
            }
            if *pool.domain() != leased.domain {
                out.push(format!("4: {} is of another domain than its pool", leased.address));
            }
            if let Some(stamp) = new.bound()
                && !may_draw(pool, &new.id.holder, stamp)
            {
                out.push(format!("{} on {} draws from pool {}", new.id.holder, stamp.node, pool.name()));
            }
        }
    }

    /// What a person gives a pod that does not run: who had it may still be heard.
    fn judge_errand(&self, op: Actor<'_>, new: &Lease, out: &mut Vec<String>) {
        let reserves = matches!(op.deed, Some(Deed::Reserve { .. }));
        if new.bound().is_some() {
            out.push(format!("5: a person binds the lease of {}", new.id.holder));
        }
        if reserves && self.mirror.frozen.is_some() && !new.unconfirmed {
            out.push(format!("8: {} is to have unasked what a frozen store has as free", new.id.holder));
        }
    }

    /// What an ADD writes into a lease that it binds.
    fn judge_bound(&self, op: Actor<'_>, old: Option<&Lease>, new: &Lease, out: &mut Vec<String>) {
        let holder = &new.id.holder;
        let pool = new.addresses.first().and_then(|a| self.mirror.pools.get(a.pool.as_ref()?));
        let Some((pool, _)) = pool else { return };
        let own = op.sandbox.map(|index| &self.sandboxes[index].container);
        if old.and_then(Lease::bound).is_some_and(|stamp| Some(&stamp.container) == own) {
            return;
        }
        let families = new.addresses.iter().map(|a| Family::of(a.address));
        if !families.eq(pool.families()) {
            out.push(format!("{holder} gets {:?} of a pool of {:?}", new.addresses, pool.families()));
        }
        let seen = old.and_then(|old| old.seen.as_ref()).and_then(|seen| seen.controller.as_deref());
        if new.sticky != is_sticky(pool, holder, seen) {
            out.push(format!("{holder} is sticky: {}, by pool {}, seen {seen:?}", new.sticky, pool.name()));
        }
        if new.seen.as_ref().is_some_and(|seen| seen.missed.is_some()) {
            out.push(format!("{holder} is back, and still missed"));
        }
        let Some(old) = old.filter(|old| old.bound().is_some() || old.unconfirmed) else { return };
        // A kubelet ends a pod's sandbox before it makes the next, and no sandbox outlives a boot.
        let (last, next) = (old.bound(), new.bound());
        let may_live = last.zip(next).is_some_and(|(last, next)| {
            let another = matches!((&last.uid, &next.uid), (Some(old), Some(new)) if old != new);
            last.node != next.node || another && (last.boot.is_none() || last.boot == next.boot)
        });
        if old.unconfirmed || may_live {
            op.displaced.store(true, Ordering::Relaxed);
        }
        for place in places(old).filter(|place| !places(new).any(|kept| kept == *place)) {
            if !self.is_unconfirmed(&place) {
                out.push(format!("5: an ADD gives {place} back as if it had been DELed"));
            }
        }
    }

    /// A pod that is back has its address, if its pool still gives it out.
    fn judge_return(&self, op: Actor<'_>, old: &Lease, new: &Lease, out: &mut Vec<String>) {
        let may_use = |pool: &&Pool| new.bound().is_some_and(|stamp| may_draw(pool, &new.id.holder, stamp));
        let Some(pool) = self.mirror.pool_since(old, op.began).filter(may_use) else { return };
        for leased in &old.addresses {
            if pool.range_of(leased.address).is_some() && !new.addresses.contains(leased) {
                out.push(format!("{} had {}, and is given another address", old.id.holder, leased.address));
            }
        }
    }

    /// The table of retention.
    fn judge_held_end(&self, op: Actor<'_>, old: &Lease, now: Timestamp, out: &mut Vec<String>) {
        let holder = &old.id.holder;
        let Holder::Pod { name, .. } = holder else { return };
        if op.role == Role::Desk {
            let moves = matches!(op.deed, Some(Deed::Move { .. }));
            let recent = old.last().is_some_and(|stamp| {
                let by = self.skew_of(&stamp.node);
                moves && by.is_some_and(|skew| now.since(old.since) + skew < DESK_MS)
            });
            let frozen = self.mirror.frozen.is_some() && !moves;
            for place in places(old).filter(|_| old.unconfirmed || recent || frozen) {
                let moved = match self.mirror.held.get(&place) {
                    Some(AddressHolder::Lease(id)) => self.mirror.leases.get(&keys::lease(id)),
                    Some(AddressHolder::Device { .. }) | None => None,
                };
                if !moved.map_or_else(|| self.is_unconfirmed(&place), |lease| lease.unconfirmed) {
                    out.push(format!("5: {place}, which {holder} had, is to be used unasked"));
                }
            }
            return;
        }
        if op.role != Role::Reap || old.reserved {
            out.push(format!("5: ends the lease that is held for {holder}"));
            return;
        }
        for place in places(old).filter(|place| !self.is_unconfirmed(place)) {
            out.push(format!("5: a verdict gives {place} back as if it had been DELed"));
        }
        if self.pod_of(holder).is_some_and(|pod| pod.created <= op.began) {
            out.push(format!("12: gives back what is held for {holder}, which exists"));
        }
        let Some(pool) = self.mirror.pool_since(old, op.began) else { return };
        let rules = pool.retention();
        let hold_ms = i64::try_from(rules.hold_for.as_millis()).unwrap();
        if hold_ms > 0 && now.since(old.since) >= hold_ms - DOUBT_MS {
            return;
        }
        let owner = old.seen.as_ref().and_then(|seen| seen.controller.as_deref());
        let ordinal = workload::ordinal(name).map(|(_, ordinal)| ordinal as usize);
        let Some(ordinal) = ordinal.filter(|n| *n < ORDINALS && owner == Some("StatefulSet.apps/db")) else {
            out.push(format!("12: gives back what is held for {holder}, which has no owner"));
            return;
        };
        if self.wanted[ordinal].is_some_and(|since| since <= op.began) {
            out.push(format!("12: gives back what is held for {holder}, which is wanted"));
        }
        match self.set {
            Some((_, since)) if since <= op.began && rules.when_scaled == Retain::Retain => {
                out.push(format!("12: gives back what is held for {holder}, whenScaled Retain"));
            }
            Some(_) => {}
            None if self.set_gone > op.began => {}
            None if rules.when_deleted == Retain::Retain => {
                out.push(format!("12: gives back what is held for {holder}, whenDeleted Retain"));
            }
            None => {
                let missed = old.seen.as_ref().and_then(|seen| seen.missed);
                if missed.is_none_or(|at| now.since(at) < 600_000) {
                    out.push(format!(
                        "12: gives back what is held for {holder}, its owner missed since {missed:?}"
                    ));
                }
            }
        }
    }

    /// In the end: what nobody is to have any more is held for nobody.
    pub(crate) fn judge_retention(&mut self) {
        let mut out = Vec::new();
        for lease in self.mirror.leases.values().filter(|lease| lease.bound().is_none()) {
            let owner = lease.seen.as_ref().and_then(|seen| seen.controller.as_deref());
            let pool = lease.addresses.first().and_then(|a| self.mirror.pools.get(a.pool.as_ref()?));
            let (Some((pool, _)), Some("StatefulSet.apps/db")) = (pool, owner) else { continue };
            let Holder::Pod { name, .. } = &lease.id.holder else { continue };
            let Some((_, ordinal)) = workload::ordinal(name).filter(|_| !lease.reserved) else { continue };
            if self.pod_of(&lease.id.holder).is_some() || self.is_wanted(ordinal.into()) {
                continue;
            }
            let rules = pool.retention();
            let rule = if self.set.is_some() { rules.when_scaled } else { rules.when_deleted };
            if rule == Retain::Delete {
                out.push(format!("12: goes on holding what {} had", lease.id.holder));
            }
        }
        for text in out {
            self.fault(text);
        }
    }

    /// A node is dead, and passes have looked: what its pods had is given back, and what ended pods had anywhere.
    pub(crate) fn judge_given_back(&mut self, dead: usize) {
        let mut out = Vec::new();
        for lease in self.mirror.leases.values() {
            let (Some(stamp), Holder::Pod { .. }) = (lease.bound(), &lease.id.holder) else { continue };
            let pool = lease.addresses.first().and_then(|a| self.mirror.pools.get(a.pool.as_ref()?));
            let keeps = pool.is_some_and(|(pool, _)| pool.node_lost() == NodeLost::Keep);
            let goes = match self.pod_of(&lease.id.holder) {
                None => true,
                Some(pod) if pod.node == Some(node_name(dead)) => !keeps && !self.lives(&pod),
                Some(pod) => pod.phase.is_final(),
            };
            if goes {
                out.push(format!(
                    "does not give back what {} had, bound to {} on {}",
                    lease.id.holder, stamp.container, stamp.node
                ));
            }
        }
        for text in out {
            self.fault(text);
        }
    }

    /// In the end: nothing is held for longer than its pool says.
    pub(crate) fn judge_hold_for(&mut self) {
        let now = self.now();
        let mut out = Vec::new();
        for lease in self.mirror.leases.values().filter(|lease| lease.bound().is_none()) {
            let Holder::Pod { name, .. } = &lease.id.holder else { continue };
            let pool = lease.addresses.first().and_then(|a| self.mirror.pools.get(a.pool.as_ref()?));
            let Some((pool, _)) = pool.filter(|(pool, _)| !pool.retention().hold_for.is_zero()) else {
                continue;
            };
            let hold_ms = i64::try_from(pool.retention().hold_for.as_millis()).unwrap();
            let ordinal = workload::ordinal(name).filter(|_| is_of_set(&lease.id.holder));
            let is_wanted = ordinal.is_some_and(|(_, ordinal)| self.is_wanted(ordinal.into()));
            let is_over = now.since(lease.since) >= hold_ms + DOUBT_MS;
            if is_over && !is_wanted && !lease.reserved && self.pod_of(&lease.id.holder).is_none() {
                out.push(format!("12: goes on holding what {} had, holdFor is over", lease.id.holder));
            }
        }
        for text in out {
            self.fault(text);
        }
    }

    /// Only what is not there is missed.
    fn judge_note(&self, op: Actor<'_>, old: &Lease, new: &Lease, out: &mut Vec<String>) {
        let missed = |lease: &Lease| lease.seen.as_ref().and_then(|seen| seen.missed);
        if missed(new).is_none() || missed(new) == missed(old) {
            return;
        }
        match new.bound() {
            Some(stamp) if op.pods == Lie::None => {
                let there = self.pod_of(&new.id.holder).filter(|pod| !pod.phase.is_final());
                if there.is_some_and(|pod| Some(&pod.uid) == stamp.uid.as_ref()) {
                    out.push(format!("misses {}, which has been there since it was bound", new.id.holder));
                }
            }
            None if self.set.is_some_and(|(_, since)| since <= op.began) => {
                out.push(format!("misses the owner of {}, which is there", new.id.holder));
            }
            Some(_) | None => {}
        }
    }

    /// Invariant 5, second half: the mark *unconfirmed*; and the cool-down.
    fn judge_mark(
        &self,
        op: Actor<'_>,
        place: &Place,
        old: Option<&Released>,
        now: Timestamp,
        out: &mut Vec<String>,
    ) {
        let Some(old) = old else { return };
        let taken = match self.mirror.held.get(place) {
            Some(AddressHolder::Lease(id)) => Some(id),
            // It is given back unconfirmed, whatever mark there was.
            Some(AddressHolder::Device { .. }) => return,
            None => None,
        };
        let Some(taken) = taken else {
            let kept = self.mirror.released.get(place).is_some_and(|now| now.unconfirmed);
            if old.unconfirmed && !kept {
                out.push(format!("5: the mark on {place} is lost"));
            }
            return;
        };
        let pool = self
            .mirror
            .leases
            .get(&keys::lease(taken))
            .and_then(|lease| lease.addresses.iter().find(|a| a.address == place.address))
            .and_then(|leased| self.mirror.pools.get(leased.pool.as_ref()?));
        let never = pool.is_some_and(|(pool, _)| pool.probe() == ProbeRule::Never);
        if op.role == Role::Desk {
            // What may still be heard is asked for before its first use.
            let at = self.given.get(place).map(|skew| old.at.0 - skew);
            let recent = old.by != taken.holder && at.is_some_and(|at| now.0 - at < DESK_MS);
            let clean = !old.unconfirmed && old.declined.is_none() && !recent;
            if !clean && !self.mirror.leases.get(&keys::lease(taken)).is_some_and(|lease| lease.unconfirmed) {
                out.push(format!("4, 8: {place} was another's, and is to be used unasked"));
            }
            return;
        }
        if (old.unconfirmed || old.declined.is_some()) && !never && !op.heard_nobody(place.address) {
            out.push(format!("8: takes {place} unasked"));
        }
        let cool_ms = pool.map_or(0, |(pool, _)| i64::try_from(pool.cool_down().as_millis()).unwrap());
        let one_clock = self.given.get(place) == Some(&op.skew);
        // By true time.
        if one_clock && old.by != taken.holder && now.since(old.at) + op.skew < cool_ms {
            out.push(format!("4: takes {place} {} ms after it was given back", now.since(old.at)));
        }
    }

    /// What is promised to whoever lives.
    pub(crate) fn judge_truth(&mut self) {
        let mut out = Vec::new();
        let now = self.now();
        for (index, sandbox) in self.sandboxes.iter().enumerate() {
            let up = sandbox.stage == Stage::Up;
            if up && self.is_living(index) {
                let lease = self.lease_of(&sandbox.holder);
                let own = |lease: &Lease| {
                    lease.bound().is_some_and(|stamp| {
                        stamp.container == sandbox.container && stamp.node == node_name(sandbox.node)
                    }) && lease.addresses.iter().map(|a| a.address).eq(sandbox.addresses.iter().copied())
                };
                if !lease.is_some_and(own) {
                    out.push(format!(
                        "{} lives in {} on n{} with {:?}, and its lease is {}",
                        sandbox.holder,
                        sandbox.container,
                        sandbox.node + 1,
                        sandbox.addresses,
                        lease.map_or("gone".to_owned(), |lease| super::cluster::show(&BTreeMap::from([(
                            lease_key(&sandbox.holder),
                            lease.clone()
                        )])))
                    ));
                }
            }
            if !(up || sandbox.lingers > now) || sandbox.exempt || !self.nodes[sandbox.node].is_heard() {
                continue;
            }
            for other in &self.sandboxes[..index] {
                let there = other.stage == Stage::Up || (up && other.lingers > now);
                let one_kubelet = other.holder == sandbox.holder
                    && (other.node == sandbox.node || other.stage != Stage::Up || !up);
                if !there || one_kubelet || other.exempt || !self.nodes[other.node].is_heard() {
                    continue;
                }
                let both_run = up && other.stage == Stage::Up;
                let is_promised =
                    |a: &&IpAddr| both_run || self.hasty.get(*a).is_none_or(|until| *until <= now);
                let mut shared = sandbox.addresses.iter().filter(|a| other.addresses.contains(a));
                if let Some(twice) = shared.find(is_promised) {
                    out.push(format!(
                        "{twice} is used by {} ({} on n{}) and by {} ({} on n{})",
                        other.holder,
                        other.container,
                        other.node + 1,
                        sandbox.holder,
                        sandbox.container,
                        sandbox.node + 1
                    ));
                }
            }
        }
        for text in out {
            self.fault(text);
        }
    }

    /// Does the StatefulSet want this pod, as the API has it?
    pub(crate) fn is_wanted(&self, ordinal: u64) -> bool {
        matches!(self.set_controller(), Some(Wants::Ordinals { replicas, .. }) if ordinal < replicas)
    }
}
