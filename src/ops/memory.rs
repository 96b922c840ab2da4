//! What a node remembers of the store after a use case, and what that says of a lease.

use std::{net::IpAddr, time::Duration};

use super::{Clock, Context, add::TO_ARRIVE};
use crate::{
    domain::{
        lease::LeasedAddress,
        names::{DomainName, NetworkName, PoolName, StoreId},
    },
    journal::{LookedAt, Memory, Sighting, Spares},
    store::Revision,
};

/// More pools than the pods of one node have, mostly; each is a question to the store, in every ADD that it may serve.
pub(super) const MOST_POOLS: usize = 32;
/// Sightings are kept so far apart.
const BETWEEN: Duration = Duration::from_secs(1);
/// Spares of one pool; each is two questions to the store, in every ADD of its network on that node.
pub(super) const MOST_SPARES: usize = 8;
/// Pools whose spares are kept.
const MOST_CROWDED: usize = 4;
/// So many ADDs rest on spares before one has to look again: a pool that has room is to be used by the rules for that.
const USES: u64 = 16;

/// What a search has learnt of its pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Learnt {
    /// Nothing that holds for the next one.
    Nothing,
    /// The first guess was right, or would be mostly.
    Roomy,
    /// It would be wrong mostly; these are free.
    Crowded(Vec<IpAddr>),
    /// Nobody looked, and these of the spares are left.
    Left(Vec<IpAddr>),
}

/// Takes in what a search in this pool has learnt.
pub(super) fn learn(
    memory: &mut Memory,
    network: &NetworkName,
    pool: &PoolName,
    domain: &DomainName,
    learnt: Learnt,
) {
    let at = memory.spares.iter().position(|spares| spares.pool == *pool && spares.network == *network);
    let known = at.map_or(0, |at| memory.spares[at].uses);
    let (addresses, uses) = match learnt {
        Learnt::Nothing => return,
        Learnt::Roomy => (Vec::new(), 0),
        Learnt::Crowded(addresses) => (addresses, USES),
        Learnt::Left(addresses) => (addresses, known.min(USES).saturating_sub(1)),
    };
    at.map(|at| memory.spares.remove(at));
    if uses > 0 {
        let (network, pool, domain) = (network.clone(), pool.clone(), domain.clone());
        memory.spares.insert(0, Spares { network, pool, domain, addresses, uses });
        memory.spares.truncate(MOST_CROWDED);
    }
}

/// Takes in that an address was released, if its pool is crowded.
pub(super) fn released(memory: &mut Memory, network: &NetworkName, address: &LeasedAddress) {
    let crowded = memory.spares.iter_mut().find(|spares| {
        spares.network == *network
            && Some(&spares.pool) == address.pool.as_ref()
            && spares.domain == address.domain
    });
    // It cools: it takes the place of none that may not.
    if let Some(Spares { addresses, .. }) = crowded
        && addresses.len() < MOST_SPARES
        && !addresses.contains(&address.address)
    {
        addresses.push(address.address);
    }
}

impl<S, W, C: Clock, L> Context<'_, S, W, C, L> {
    /// What the node remembers after the store was seen like this, at that time of the boot-time clock.
    pub(super) fn remembers<'p>(
        &'p self,
        store: &StoreId,
        revision: Revision,
        at: u64,
        looked_at: impl Iterator<Item = &'p LookedAt>,
    ) -> Memory {
        let mut pools = Vec::new();
        for pool in looked_at.chain(&self.memory.pools) {
            if pools.len() < MOST_POOLS && !pools.contains(pool) {
                pools.push(pool.clone());
            }
        }
        // One that was further is of a past that a restore has ended.
        let known = self.sightings(store).filter(|sighting| sighting.revision <= revision);
        let mut sightings: Vec<Sighting> = known.cloned().collect();
        let age = |sighting: &Sighting| Duration::from_micros(at.saturating_sub(sighting.at));
        if let Some(boot) = &self.node.boot
            && sightings.first().is_none_or(|latest| age(latest) >= BETWEEN)
        {
            sightings.insert(0, Sighting { revision, boot: boot.clone(), at });
        }
        // Those that are too young to say something to everybody, and the latest that is not.
        let enough = TO_ARRIVE.max(self.node.add_deadline);
        if let Some(old) = sightings.iter().position(|sighting| age(sighting) >= enough) {
            sightings.truncate(old + 1);
        }
        let same = self.memory.store.as_ref() == Some(store);
        let spares = if same { self.memory.spares.clone() } else { Vec::new() };
        Memory { store: Some(store.clone()), revision, pools, sightings, spares }
    }

    /// When the node had seen the store at this revision, as early as it remembers: what was written then is that old
    /// at least, whatever the clocks of others say. `now` is its revision now: more than that was seen before a restore.
    pub(super) fn seen_at(&self, store: &StoreId, revision: Revision, now: Revision) -> Option<u64> {
        self.sightings(store)
            .filter(|sighting| (revision..=now).contains(&sighting.revision))
            .map(|sighting| sighting.at)
            .min()
    }

    /// Those of this store and this boot.
    fn sightings(&self, store: &StoreId) -> impl Iterator<Item = &Sighting> {
        let same = self.memory.store.as_ref() == Some(store);
        let boot = self.node.boot.as_ref();
        self.memory.sightings.iter().filter(move |sighting| same && Some(&sighting.boot) == boot)
    }
}
