//! Which address a newcomer gets, out of a window of a range that was looked at. Commit first, look after: the
//! first guess needs no look, and most of the time it is right.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    addr::AddrSet,
    lease::{Holder, Released, Timestamp},
    names::ClusterName,
};

/// Addresses that a conflict brings back: enough to hold a free one in most ranges, small enough not to stall others.
pub const WINDOW: u128 = 128;
/// A declined address is offered again after this and its cool-down, last, and probed: strangers leave, too.
pub const DECLINED_FOR_MS: i64 = 10 * 60 * 1000;
/// The same, where the last sandbox was never DELed: it is no stranger who answers, but most likely that sandbox, and
/// its node ends it as soon as it is heard again.
pub const DECLINED_UNCONFIRMED_FOR_MS: i64 = 60 * 1000;

/// An address whose last sandbox was never DELed rests for so long at least, for its own pod, too: that sandbox may just have
/// been leased it, and is heard by then. It is what an ADD waits for who may not be heard yet.
pub const UNCONFIRMED_FOR_MS: i64 = 5_000;

/// How long an address that was given back rests, milliseconds.
#[must_use]
pub fn rests_ms(released: &Released, cool_down_ms: i64) -> i64 {
    if released.unconfirmed { cool_down_ms.max(UNCONFIRMED_FOR_MS) } else { cool_down_ms }
}

/// A released key as it was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FreeOnce {
    /// What it says.
    pub released: Released,
    /// Its revision: which was given back longest ago, without a clock.
    pub revision: i64,
    /// This run saw it unchanged for as long as it rests, whatever its time says.
    pub waited: bool,
    /// This run found that it may not take it.
    pub shunned: bool,
}

impl FreeOnce {
    /// Nobody is to be asked before it is given.
    #[must_use]
    pub const fn is_quiet(&self) -> bool {
        !self.released.unconfirmed && self.released.declined.is_none()
    }
}

/// What was seen of a window: positions `from..=to` of the usable set.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Window {
    /// First position looked at.
    pub from: u128,
    /// Last position looked at.
    pub to: u128,
    /// Numbers of the addresses that are taken.
    pub taken: BTreeSet<u128>,
    /// Numbers of the addresses that were given back.
    pub released: BTreeMap<u128, FreeOnce>,
}

impl Window {
    /// What nobody has: first what has neither key, then what was released, the longest ago first. Not what has to be
    /// probed, or what this run may not take.
    #[must_use]
    pub fn free(&self, usable: &AddrSet) -> Vec<u128> {
        let mut released: Vec<(i64, u128)> = self
            .released
            .iter()
            .filter(|(number, free)| !self.taken.contains(number) && !free.shunned && free.is_quiet())
            .filter(|(number, _)| usable.contains_number(**number))
            .map(|(number, free)| (free.revision, *number))
            .collect();
        released.sort_unstable();
        let mut free = self.untouched(usable);
        free.extend(released.into_iter().map(|(_, number)| number));
        free
    }

    /// What has neither key.
    #[must_use]
    pub fn untouched(&self, usable: &AddrSet) -> Vec<u128> {
        let runs = usable.slice(self.from, self.to);
        let all = runs.iter().flat_map(|run| run.first()..=run.last());
        all.filter(|number| !self.taken.contains(number) && !self.released.contains_key(number)).collect()
    }
}

/// An address that was looked at by itself, and is not taken: as the node remembered it, from a crowded pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Spare {
    /// Its number.
    pub number: u128,
    /// Its released key, if it has one.
    pub released: Option<FreeOnce>,
}

/// The positions of a window around one, inside a set of this size.
#[must_use]
pub fn window_around(position: u128, size: u128, width: u128) -> (u128, u128) {
    let last = size.saturating_sub(1);
    let from = position.saturating_sub(width / 2).min(last.saturating_sub(width - 1));
    (from, last.min(from.saturating_add(width - 1)))
}

/// An address that may be tried.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pick {
    /// Its number.
    pub number: u128,
    /// The revision of its released key, if it has one.
    pub released: Option<i64>,
    /// Somebody may answer on it.
    pub probe: bool,
}

/// What a window has to offer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Choice {
    /// This one.
    Take(Pick),
    /// Only addresses that are cooling down: the first is ready in so many milliseconds. One whose time lies in the
    /// future (clocks differ) is named, to be rewritten to now.
    Cooling { ready_in_ms: i64, count: usize, future: Option<u128> },
    /// Nothing free.
    Nothing,
}

/// Who chooses, and when.
#[derive(Clone, Copy, Debug)]
pub struct Chooser<'a> {
    /// The newcomer.
    pub holder: &'a Holder,
    /// Its cluster.
    pub cluster: &'a ClusterName,
    /// The clock.
    pub now: Timestamp,
    /// How long an address given back is kept from others, milliseconds.
    pub cool_down_ms: i64,
    /// Chance: spreads callers that contend for the same few addresses.
    pub chance: u64,
}

impl Chooser<'_> {
    fn is_own(&self, free: &FreeOnce) -> bool {
        free.released.by == *self.holder
            && free.released.cluster == *self.cluster
            && free.released.declined.is_none()
    }

    /// Milliseconds until an address may be offered; 0 is now, `None` in the future of this clock.
    fn ready_in(&self, free: &FreeOnce) -> Option<i64> {
        let age = self.now.since(free.released.at);
        let rests = rests_ms(&free.released, self.cool_down_ms);
        let cooling = if free.waited { Some(0) } else { (age >= 0).then(|| (rests - age).max(0)) };
        let Some(declined) = &free.released.declined else { return cooling };
        let age = self.now.since(declined.at);
        let aside = if free.released.unconfirmed { DECLINED_UNCONFIRMED_FOR_MS } else { DECLINED_FOR_MS };
        (age >= 0).then(|| (aside - age).max(cooling.unwrap_or(0)))
    }

    /// The choice, in this order: its own released address; one with neither key; the longest released past its
    /// cool-down, unconfirmed ones after, declined ones last.
    #[must_use]
    pub fn choose(&self, usable: &AddrSet, window: &Window, start: u128) -> Choice {
        let own = window.released.iter().find(|(number, free)| {
            usable.contains_number(**number)
                && !window.taken.contains(number)
                && self.is_own(free)
                && !free.shunned
        });
        if let Some((number, free)) = own {
            let probe = free.released.unconfirmed;
            // No cool-down for its own, but for who may not be heard yet.
            let ready_in = if probe { Self { cool_down_ms: 0, ..*self }.ready_in(free) } else { Some(0) };
            return match ready_in {
                Some(0) => Choice::Take(Pick { number: *number, released: Some(free.revision), probe }),
                Some(ready_in_ms) => Choice::Cooling { ready_in_ms, count: 1, future: None },
                None => Choice::Cooling { ready_in_ms: UNCONFIRMED_FOR_MS, count: 1, future: Some(*number) },
            };
        }
        if let Some(number) = self.untouched(usable, window, start) {
            return Choice::Take(Pick { number, released: None, probe: false });
        }
        let mut best: Option<((bool, bool, i64), Pick)> = None;
        let (mut ready_in_ms, mut count, mut future) = (i64::MAX, 0, None);
        for (number, free) in &window.released {
            if !usable.contains_number(*number) || window.taken.contains(number) || free.shunned {
                continue;
            }
            match self.ready_in(free) {
                Some(0) => {
                    let declined = free.released.declined.is_some();
                    let rank = (declined, free.released.unconfirmed, free.revision);
                    if best.as_ref().is_none_or(|(known, _)| rank < *known) {
                        let probe = declined || free.released.unconfirmed;
                        best = Some((rank, Pick { number: *number, released: Some(free.revision), probe }));
                    }
                }
                Some(wait) => {
                    count += 1;
                    ready_in_ms = ready_in_ms.min(wait);
                }
                None => {
                    count += 1;
                    ready_in_ms = ready_in_ms.min(self.cool_down_ms);
                    future = Some(*number);
                }
            }
        }
        match best {
            Some((_, pick)) => Choice::Take(pick),
            None if count > 0 => Choice::Cooling { ready_in_ms, count, future },
            None => Choice::Nothing,
        }
    }

    /// The choice out of spares: its own, one with neither key, one past its cool-down; of several one by chance, since all
    /// callers of a node have the same. What would have to be probed is left to a look around.
    #[must_use]
    pub fn spare(&self, spares: &[Spare]) -> Option<Pick> {
        let rank = |spare: &Spare| match &spare.released {
            None => Some(1),
            Some(free) if !free.is_quiet() => None,
            Some(free) if self.is_own(free) => Some(0),
            Some(free) => (self.ready_in(free) == Some(0)).then_some(2),
        };
        let best = spares.iter().filter_map(rank).min()?;
        let best: Vec<&Spare> = spares.iter().filter(|spare| rank(spare) == Some(best)).collect();
        let at = usize::try_from(self.chance % best.len() as u64).unwrap_or(0);
        best.get(at).map(|spare| Pick {
            number: spare.number,
            released: spare.released.as_ref().map(|free| free.revision),
            probe: false,
        })
    }

    /// An address with neither key: the `chance`-th after `start`, around the window.
    fn untouched(&self, usable: &AddrSet, window: &Window, start: u128) -> Option<u128> {
        let free = window.untouched(usable);
        if free.is_empty() {
            return None;
        }
        let first = free.iter().position(|number| *number >= start).unwrap_or(0);
        let step = usize::try_from(self.chance % free.len() as u64).unwrap_or(0);
        free.get((first + step) % free.len()).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;
    use crate::domain::{
        addr::AddrRange,
        lease::Declined,
        names::{Namespace, PodName},
    };

    fn pod(name: &str) -> Holder {
        Holder::Pod { namespace: Namespace::new("shop").unwrap(), name: PodName::new(name).unwrap() }
    }

    fn free(by: &str, at: i64, revision: i64) -> FreeOnce {
        FreeOnce {
            released: Released {
                at: Timestamp(at),
                by: pod(by),
                cluster: ClusterName::new("c").unwrap(),
                unconfirmed: false,
                declined: None,
            },
            revision,
            waited: false,
            shunned: false,
        }
    }

    fn set(first: u32, last: u32) -> AddrSet {
        let v4 = |n: u32| IpAddr::V4(Ipv4Addr::from(n));
        AddrSet::without(AddrRange::new(v4(first), v4(last)).unwrap(), &[])
    }

    #[track_caller]
    fn case(window: &Window, wanted: Choice) {
        let (me, cluster) = (pod("me"), ClusterName::new("c").unwrap());
        let chooser = Chooser {
            holder: &me,
            cluster: &cluster,
            now: Timestamp(10_000),
            cool_down_ms: 5_000,
            chance: 0,
        };
        assert_eq!(chooser.choose(&set(10, 13), window, 12), wanted);
    }

    fn window(taken: &[u128], released: &[(u128, FreeOnce)]) -> Window {
        Window {
            from: 0,
            to: 3,
            taken: taken.iter().copied().collect(),
            released: released.iter().cloned().collect(),
        }
    }

    fn take(number: u128, released: Option<i64>, probe: bool) -> Choice {
        Choice::Take(Pick { number, released, probe })
    }

    #[test]
    fn the_order_is_own_then_untouched_then_longest_released_then_unconfirmed_then_declined() {
        let mut doubtful = free("x", 0, 1);
        doubtful.released.unconfirmed = true;
        let mut declined = free("x", 0, 2);
        declined.released.declined =
            Some(Declined { mac: "m".into(), at: Timestamp(10_000 - DECLINED_FOR_MS) });
        let fresh = |n| free("x", 9_000, n);
        let (old, older) = (free("x", 1_000, 9), free("x", 5_000, 8));
        case(&window(&[], &[(10, free("me", 9_999, 7))]), take(10, Some(7), false));
        case(&window(&[12], &[]), take(13, None, false));
        case(&window(&[12, 13], &[(10, old.clone())]), take(11, None, false));
        case(
            &window(&[13], &[(10, old.clone()), (11, older), (12, doubtful.clone())]),
            take(11, Some(8), false),
        );
        case(&window(&[10, 11], &[(12, doubtful), (13, old)]), take(13, Some(9), false));
        case(&window(&[10, 11], &[(12, declined.clone()), (13, fresh(3))]), take(12, Some(2), true));
        let aside = |at| Some(Declined { mac: "m".into(), at: Timestamp(at) });
        declined.released.declined = aside(10_000 - DECLINED_UNCONFIRMED_FOR_MS);
        let mut sandbox = declined.clone();
        sandbox.released.unconfirmed = true;
        case(&window(&[10, 11], &[(12, sandbox.clone()), (13, fresh(3))]), take(12, Some(2), true));
        // Its cool-down, given back a second ago, is not over either.
        let mut young = sandbox.clone();
        (young.released.at, young.released.declined) =
            (Timestamp(9_000), aside(10_000 - DECLINED_UNCONFIRMED_FOR_MS));
        case(
            &window(&[10, 11, 12], &[(13, young)]),
            Choice::Cooling { ready_in_ms: 4_000, count: 1, future: None },
        );
        sandbox.released.declined = aside(10_001 - DECLINED_UNCONFIRMED_FOR_MS);
        case(
            &window(&[10, 11, 13], &[(12, sandbox)]),
            Choice::Cooling { ready_in_ms: 1, count: 1, future: None },
        );
        case(
            &window(&[10, 11], &[(12, declined), (13, fresh(3))]),
            Choice::Cooling { ready_in_ms: 4_000, count: 2, future: None },
        );
        case(&window(&[10, 11, 12, 13], &[]), Choice::Nothing);
    }

    /// Whoever had it may just have been leased it, and comes on the wire yet.
    #[test]
    fn what_nobody_deled_rests_also_for_its_own_pod_and_without_a_cool_down() {
        let unconfirmed = |by, at| {
            let mut free = free(by, at, 7);
            free.released.unconfirmed = true;
            free
        };
        let own = |at| window(&[11, 12, 13], &[(10, unconfirmed("me", at))]);
        case(&own(6_000), Choice::Cooling { ready_in_ms: 1_000, count: 1, future: None });
        case(&own(5_000), take(10, Some(7), true));
        case(&own(10_001), Choice::Cooling { ready_in_ms: 5_000, count: 1, future: Some(10) });
        let (me, cluster) = (pod("me"), ClusterName::new("c").unwrap());
        let now = Timestamp(10_000);
        let chooser = Chooser { holder: &me, cluster: &cluster, now, cool_down_ms: 0, chance: 0 };
        let others = window(&[11, 12, 13], &[(10, unconfirmed("x", 9_000))]);
        let wanted = Choice::Cooling { ready_in_ms: 4_000, count: 1, future: None };
        assert_eq!(chooser.choose(&set(10, 13), &others, 12), wanted);
    }

    #[test]
    fn of_spares_own_then_untouched_then_released_and_nothing_that_must_be_probed() {
        let (me, cluster) = (pod("me"), ClusterName::new("c").unwrap());
        let spare = |number, released| Spare { number, released };
        let choose = |chance, spares: &[Spare]| {
            let now = Timestamp(10_000);
            Chooser { holder: &me, cluster: &cluster, now, cool_down_ms: 5_000, chance }.spare(spares)
        };
        let released = |number, free| spare(number, Some(free));
        let wanted = |number, released| Some(Pick { number, released, probe: false });
        let (old, older) = (released(1, free("x", 5_000, 9)), released(2, free("x", 1_000, 8)));
        let cooling = released(3, free("x", 5_001, 1));
        let ahead = released(4, free("x", 10_001, 1));
        let own = released(5, free("me", 9_999, 7));
        let (fresh, other) = (spare(6, None), spare(7, None));
        assert_eq!(choose(0, &[]), None);
        assert_eq!(choose(0, &[cooling.clone(), ahead.clone()]), None);
        let most = [old.clone(), cooling, ahead, older];
        assert_eq!((choose(4, &most), choose(5, &most)), (wanted(1, Some(9)), wanted(2, Some(8))));
        let fresher = [&most[..], &[fresh, other]].concat();
        assert_eq!(choose(2, &fresher), wanted(6, None));
        assert_eq!(choose(5, &fresher), wanted(7, None));
        assert_eq!(choose(0, &[&fresher[..], std::slice::from_ref(&own)].concat()), wanted(5, Some(7)));
        for doubtful in [own, old] {
            let mut free = doubtful.released.unwrap();
            free.released.unconfirmed = true;
            assert_eq!(choose(0, &[released(8, free.clone())]), None);
            free.released.unconfirmed = false;
            free.released.declined = Some(Declined { mac: "m".into(), at: Timestamp(0) });
            assert_eq!(choose(0, &[released(8, free)]), None);
        }
    }

    #[test]
    fn a_decline_in_the_future_is_named() {
        let mut declined = free("x", 0, 2);
        declined.released.declined = Some(Declined { mac: "m".into(), at: Timestamp(10_001) });
        case(
            &window(&[10, 11, 12], &[(13, declined)]),
            Choice::Cooling { ready_in_ms: 5_000, count: 1, future: Some(13) },
        );
    }

    #[test]
    fn a_release_in_the_future_is_named_and_one_waited_for_is_ready() {
        let mut ahead = free("x", 99_000, 4);
        case(
            &window(&[10, 11, 12], &[(13, ahead.clone())]),
            Choice::Cooling { ready_in_ms: 5_000, count: 1, future: Some(13) },
        );
        ahead.waited = true;
        case(&window(&[10, 11, 12], &[(13, ahead)]), take(13, Some(4), false));
    }

    #[test]
    fn windows_stay_inside_the_set_and_keep_their_width() {
        assert_eq!(window_around(0, 1000, 128), (0, 127));
        assert_eq!(window_around(999, 1000, 128), (872, 999));
        assert_eq!(window_around(500, 1000, 128), (436, 563));
        assert_eq!(window_around(5, 10, 128), (0, 9));
        assert_eq!(window_around(0, 1, 128), (0, 0));
        assert_eq!(window_around(u128::MAX - 1, u128::MAX, 128).1, u128::MAX - 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: Some(Box::new(proptest::test_runner::FileFailurePersistence::WithSource("regressions"))),
            ..ProptestConfig::default()
        })]

        /// Never outside, never excluded, never taken; and whatever is free and ready is found, to the last one.
        #[test]
        fn the_choice_is_a_plain_models(holes in prop::collection::btree_set(0u32..40, 0..20),
                                        taken in prop::collection::btree_set(0u128..40, 0..40),
                                        released in prop::collection::btree_map(0u128..40, (0i64..20_000, any::<bool>()), 0..20),
                                        start in 0u128..50, chance in any::<u64>()) {
            let v4 = |n: u32| IpAddr::V4(Ipv4Addr::from(n));
            let holes: Vec<AddrRange> = holes.iter().map(|n| AddrRange::new(v4(*n), v4(*n)).unwrap()).collect();
            let usable = AddrSet::without(AddrRange::new(v4(0), v4(39)).unwrap(), &holes);
            if usable.is_empty() { return Ok(()); }
            let mut window = Window { from: 0, to: usable.size() - 1, taken: taken.clone(), ..Window::default() };
            for (revision, (number, (at, unconfirmed))) in released.iter().enumerate() {
                let mut one = free("x", *at, i64::try_from(revision).unwrap());
                one.released.unconfirmed = *unconfirmed;
                window.released.insert(*number, one);
            }
            let (me, cluster) = (pod("me"), ClusterName::new("c").unwrap());
            let chooser = Chooser { holder: &me, cluster: &cluster, now: Timestamp(10_000), cool_down_ms: 5_000, chance };
            let ready: BTreeSet<u128> = (0..40u128).filter(|n| usable.contains_number(*n) && !taken.contains(n))
                .filter(|n| released.get(n).is_none_or(|(at, _)| *at <= 5_000)).collect();
            match chooser.choose(&usable, &window, start) {
                Choice::Take(pick) => {
                    prop_assert!(ready.contains(&pick.number));
                    prop_assert_eq!(pick.released.is_some(), released.contains_key(&pick.number));
                    let fresh_exists = ready.iter().any(|n| !released.contains_key(n));
                    prop_assert_eq!(pick.released.is_none(), fresh_exists);
                    if let Some((_, unconfirmed)) = released.get(&pick.number) {
                        prop_assert_eq!(pick.probe, *unconfirmed);
                    }
                }
                Choice::Cooling { .. } | Choice::Nothing => prop_assert!(ready.is_empty()),
            }
        }
    }
}
