//! What callers were told instead of an address, and whether it can have been so.
//!
//! | told | it can have been so if |
//! |---|---|
//! | the pool is full | at one moment of the call each of its addresses may have been somebody's: one that cools down is nobody's |
//! | a newer sandbox has the lease | the ADD of that sandbox may have been done while this one ran; on another node, also a deadline before |
//!
//! Who may have had an address, and when, is seen generously: from the begin of an ADD that may have been done to the end of
//! whatever surely ended it. Of an ADD without an answer nobody knows which address it took, so it may be any. What is
//! called untrue was untrue; of a pool with few addresses free that come and go, calls that take their time cannot tell. There
//! the store itself is asked, see [`super::witness`].
//!
//! From the snapshot of a restore on, nothing is said: the store has a past that its callers do not have.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::history::{Answer, Call, End, Verb};

/// Why there was no address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reason<'a> {
    Full,
    /// This container on the node of this name has the lease.
    Newer(&'a str, &'a str),
}

/// What a refusal says, if it is one of those that are judged here.
pub(super) fn reason(text: &str, pool: u32) -> Option<Reason<'_>> {
    if text.contains(&format!("is full ({pool} of {pool})")) {
        return Some(Reason::Full);
    }
    let (_, who) = text.split_once("a newer sandbox of this pod has its lease; container ")?;
    let (container, at) = who.split_once(" on node ")?;
    Some(Reason::Newer(container, at.split_once(':')?.0))
}

/// Says which ADDs were refused for something that was not so. The pool has so many addresses, and an ADD so much time.
pub(super) fn untrue(calls: &[Call], end: &End, pool: u32, deadline: Duration) -> Vec<String> {
    let (holdings, all) = (holdings(calls, end), usize::try_from(pool).unwrap());
    let judged = calls.iter().filter(|call| call.verb == Verb::Add);
    let judged = judged.filter(|call| end.restored.is_none_or(|restored| call.ended < restored.from));
    let found = judged.filter_map(|call| {
        let Answer::Refused(text) = &call.answer else { return None };
        match reason(text, pool)? {
            Reason::Full => {
                let most = most_at_once(&holdings, call.began, call.ended);
                (most < all).then(|| format!("at most {most} of {pool} had an owner: {call:?}"))
            }
            Reason::Newer(container, node) => {
                let may_be = |other: &&Call| is_newer(other, call, container, node, end, deadline);
                let none = !calls.iter().any(|other| may_be(&other));
                none.then(|| format!("{container} on {node} had no newer sandbox's lease: {call:?}"))
            }
        }
    });
    found.collect()
}

/// Somebody may have had an address.
#[derive(Clone, Copy, Debug)]
struct Holding<'a> {
    /// Nothing where it may be any: only one of a pod.
    address: Option<&'a str>,
    from: Duration,
    /// Never known to have ended, if there is nothing.
    until: Option<Duration>,
}

fn holdings<'a>(calls: &'a [Call], end: &'a End) -> Vec<Holding<'a>> {
    let mut by_pod: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        by_pod.entry(&call.pod).or_default().push(call);
    }
    by_pod.into_iter().flat_map(|(pod, calls)| holdings_of(pod, &calls, end)).collect()
}

/// A pod has one address at a time.
fn holdings_of<'a>(pod: &'a str, calls: &[&'a Call], end: &'a End) -> Vec<Holding<'a>> {
    let left = end.owners.iter().filter(|(_, owner, _)| owner == pod).map(|(address, ..)| address.as_str());
    let left: BTreeSet<&str> = left.collect();
    let adds = || calls.iter().filter(|call| call.verb == Verb::Add);
    let given = adds().filter_map(|call| Some((*call, address_of(call)?)));
    let doubtful = adds().filter(|call| is_in_doubt(call, end)).map(|call| call.began).min();
    let first = given.clone().map(|(call, _)| call.began).chain(doubtful).min();
    let holding = |address, from, until| Holding { address, from, until };
    let mut all = Vec::new();
    if calls.iter().any(|call| call.sticky) {
        // The address that it has once is its own to the end, so it had no other before.
        let own = given.map(|(_, address)| address).chain(left);
        all.extend(own.filter_map(|address| Some(holding(Some(address), first?, None))));
        let unseen = doubtful.filter(|_| end.restored.is_some());
        all.extend(unseen.map(|from| holding(None, from, None)));
        return all;
    }
    all.extend(given.map(|(call, address)| holding(Some(address), call.began, over(call, calls, end))));
    all.extend(left.iter().filter_map(|address| Some(holding(Some(address), first?, None))));
    // If it took one, then a call of the pod was the last to touch it, or it is there in the end.
    let last = calls.iter().map(|call| settled(call, end)).max().filter(|_| end.restored.is_none());
    all.extend(doubtful.map(|from| holding(None, from, last)));
    all
}

/// When what an ADD gave was surely not its container's any more.
fn over(add: &Call, calls: &[&Call], end: &End) -> Option<Duration> {
    let is_del = |call: &Call, container: &str| call.verb == Verb::Del && call.container == container;
    let released = calls.iter().filter(|call| is_del(call, &add.container) && call.began >= add.ended);
    let released = released.filter(|call| call.answer == Answer::Done).map(|call| settled(call, end));
    // The pod's next container took it, and can have had it only after this one.
    let later = calls.iter().filter(|call| address_of(call).is_some() && call.container != add.container);
    let later = later.filter(|next| {
        let its = calls.iter().filter(|call| call.container == next.container);
        let first = its.clone().filter(|call| call.verb == Verb::Add).all(|call| call.began > add.began);
        first && !its.clone().any(|call| call.verb == Verb::Del && call.began <= add.ended)
    });
    released.chain(later.map(|call| call.ended)).min()
}

/// When nothing more came of it.
fn settled(call: &Call, end: &End) -> Duration {
    if end.journalled.contains(&call.container) { end.told.max(call.ended) } else { call.ended }
}

fn address_of(call: &Call) -> Option<&str> {
    match &call.answer {
        Answer::Address(address) if call.verb == Verb::Add => Some(address),
        Answer::Address(_) | Answer::Done | Answer::Refused(_) | Answer::None => None,
    }
}

/// May it have been done although its caller does not know?
fn is_in_doubt(add: &Call, end: &End) -> bool {
    match add.answer {
        Answer::Address(_) => false,
        Answer::Refused(_) => end.journalled.contains(&add.container),
        Answer::Done | Answer::None => true,
    }
}

/// The most addresses that may have been somebody's at one moment from `began` to `ended`.
fn most_at_once(holdings: &[Holding<'_>], began: Duration, ended: Duration) -> usize {
    let meet =
        |holding: &&Holding<'_>| holding.from <= ended && holding.until.is_none_or(|until| until >= began);
    let met: Vec<_> = holdings.iter().filter(meet).collect();
    // More can only be had where another begins.
    let moments: BTreeSet<Duration> = met.iter().map(|holding| holding.from.max(began)).collect();
    let counts = moments.into_iter().map(|moment| {
        let now = |holding: &&&Holding<'_>| {
            holding.from <= moment && holding.until.is_none_or(|until| until >= moment)
        };
        let known: BTreeSet<&str> = met.iter().filter(now).filter_map(|holding| holding.address).collect();
        known.len() + met.iter().filter(now).filter(|holding| holding.address.is_none()).count()
    });
    counts.max().unwrap_or(0)
}

/// May `other`, of this container on this node, have bound the lease so that `add` had to leave it alone?
fn is_newer(other: &Call, add: &Call, container: &str, node: &str, end: &End, deadline: Duration) -> bool {
    let named = other.pod == add.pod && other.container == container && format!("n{}", other.node) == node;
    let doubtful = is_in_doubt(other, end);
    let may_have_bound = other.verb == Verb::Add && (doubtful || address_of(other).is_some());
    // Where an old one is not yet seen on the wire, it is left alone for so long.
    let patience = if other.node == add.node { Duration::ZERO } else { deadline };
    let meets = other.began <= add.ended && (doubtful || other.ended + patience >= add.began);
    named && may_have_bound && meets && container != add.container
}

#[cfg(test)]
mod tests {
    use super::{
        super::history::{
            Restored,
            tests::{call, seconds},
        },
        *,
    };

    /// The pool has A and B. An ADD has ten seconds.
    fn judge(
        lines: &[&str],
        journalled: &[&str],
        owner: Option<(&str, &str)>,
        restored: Option<Restored>,
    ) -> usize {
        let calls: Vec<Call> = lines.iter().map(|line| call(line)).collect();
        let address = |name: &str| address_of(&call(&format!("ADD p c [0,0] {name}"))).unwrap().to_owned();
        let owners = owner.map(|(name, pod)| (address(name), pod.to_owned(), None)).into_iter().collect();
        let journalled = journalled.iter().map(|container| (*container).to_owned()).collect();
        let end = End { journalled, told: seconds(99), looked: seconds(100), owners, restored };
        untrue(&calls, &end, 2, seconds(10)).len()
    }

    #[track_caller]
    fn can_be(lines: &[&str]) {
        assert_eq!(judge(lines, &[], None, None), 0);
    }

    #[track_caller]
    fn cannot_be(lines: &[&str]) {
        assert_eq!(judge(lines, &[], None, None), 1);
    }

    const BOTH: [&str; 2] = ["ADD p c1 [0,1] A", "ADD q c2 [0,1] B"];

    fn and<'a>(lines: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
        [lines, more].concat()
    }

    #[test]
    fn a_pool_is_full_if_all_of_it_is_given() {
        cannot_be(&["ADD r c3 [2,3] full"]);
        cannot_be(&["ADD p c1 [0,1] A", "ADD r c3 [2,3] full"]);
        can_be(&and(&BOTH, &["ADD r c3 [2,3] full"]));
        // Twice the same is one.
        cannot_be(&["ADD p c1 [0,1] A", "CHECK p c1 [1,2] A", "ADD p c1 [2,3] A", "ADD r c3 [4,5] full"]);
        cannot_be(&["ADD p c1 [0,1] A", "ADD p c2 [2,3] A", "ADD r c3 [4,5] full"]);
    }

    #[test]
    fn an_address_that_came_back_before_is_free() {
        cannot_be(&and(&BOTH, &["DEL p c1 [2,3] done", "ADD r c3 [4,5] full"]));
        can_be(&and(&BOTH, &["DEL p c1 [2,4] done", "ADD r c3 [3,5] full"]));
        can_be(&and(&BOTH, &["DEL p c1 [2,3] done", "ADD s c4 [6,9] A", "ADD r c3 [4,7] full"]));
        cannot_be(&and(&BOTH, &["DEL p c1 [2,3] done", "ADD s c4 [6,9] A", "ADD r c3 [4,5] full"]));
        // The DEL of another container ends nothing, and one that began too early perhaps nothing.
        can_be(&and(&BOTH, &["DEL p c9 [2,3] done", "ADD r c3 [4,5] full"]));
        can_be(&["ADD p c1 [0,5] A", "DEL p c1 [2,3] done", "ADD q c2 [0,1] B", "ADD r c3 [6,7] full"]);
    }

    #[test]
    fn all_of_it_must_be_given_at_one_moment() {
        let turns = ["DEL p c1 [2,3] done", "ADD s c4 [6,7] A", "DEL q c2 [2,3] done", "ADD t c5 [7,8] B"];
        can_be(&and(&and(&BOTH, &turns), &["ADD r c3 [4,7] full"]));
        cannot_be(&and(&and(&BOTH, &turns), &["ADD r c3 [4,6] full"]));
        let one_each = ["ADD p c1 [0,1] A", "DEL p c1 [2,3] done", "ADD q c2 [5,6] B", "ADD r c3 [0,9] full"];
        cannot_be(&one_each);
    }

    #[test]
    fn the_del_of_the_last_container_is_what_counts() {
        let moved = and(&BOTH, &["ADD p c3 [2,3] A", "DEL p c1 [4,5] done"]);
        can_be(&and(&moved, &["ADD r c4 [6,7] full"]));
        // That of the first may never come.
        cannot_be(&and(&BOTH, &["ADD p c3 [2,3] A", "DEL p c3 [4,5] done", "ADD r c4 [6,7] full"]));
        let at_once = ["ADD p c1 [0,3] A", "ADD p c3 [1,3] A", "ADD q c2 [0,1] B"];
        cannot_be(&and(&at_once, &["DEL p c3 [4,5] done", "ADD r c4 [6,7] full"]));
        can_be(&and(&at_once, &["DEL p c1 [4,5] done", "ADD r c4 [6,7] full"]));
        // Unless the first may have had it again.
        can_be(&and(&at_once, &["DEL p c3 [3,4] done", "ADD r c4 [6,7] full"]));
        let again = ["ADD p c3 [0,1] A", "ADD p c1 [2,10] A", "ADD p c3 [3,4] A", "ADD q c2 [0,1] B"];
        can_be(&and(&again, &["DEL p c3 [11,12] done", "ADD r c4 [13,14] full"]));
    }

    #[test]
    fn what_was_not_answered_may_have_taken_any() {
        let doubt = ["ADD p c1 [0,1] A", "ADD q c2 [2,3] none", "ADD r c3 [4,5] full"];
        // Nobody gave it back, but then it must be there in the end.
        cannot_be(&doubt);
        assert_eq!(judge(&doubt, &[], Some(("B", "q")), None), 0);
        can_be(&and(&doubt, &["DEL q c2 [6,7] done"]));
        can_be(&and(&doubt, &["DEL q c2 [3,4] done"]));
        cannot_be(&and(&doubt[..2], &["DEL q c2 [3,4] done", "ADD r c3 [5,6] full"]));
        // Not two, though there were two.
        cannot_be(&["ADD q c2 [2,3] none", "ADD q c4 [2,3] none", "ADD r c3 [3,5] full"]);
        // What was refused took nothing.
        cannot_be(&["ADD p c1 [0,1] A", "ADD q c2 [2,3] full", "ADD r c3 [9,9] none"]);
    }

    #[test]
    fn a_journal_is_told_later() {
        let back = and(&BOTH, &["DEL p c1 [2,3] done", "ADD r c3 [4,5] full"]);
        assert_eq!(judge(&back, &["c1"], None, None), 0);
        assert_eq!(judge(&back, &["c2"], None, None), 1);
        let refused = ["ADD p c1 [0,1] A", "ADD q c2 [2,3] refused", "ADD r c3 [4,5] full"];
        assert_eq!(judge(&refused, &["c2"], None, None), 0);
        assert_eq!(judge(&refused, &[], None, None), 1);
    }

    #[test]
    fn what_a_sticky_pod_had_is_given() {
        let gone = ["ADD sticky c1 [0,1] A", "DEL sticky c1 [2,3] done", "ADD q c2 [0,1] B"];
        can_be(&and(&gone, &["ADD r c3 [4,5] full"]));
        // It has one, whatever was not answered.
        let doubt = ["ADD sticky c1 [0,1] none", "ADD sticky c2 [2,3] none", "ADD sticky c4 [8,9] A"];
        cannot_be(&and(&doubt, &["ADD r c3 [4,5] full"]));
        can_be(&and(&doubt, &["ADD q c5 [0,1] B", "ADD r c3 [4,5] full"]));
    }

    #[test]
    fn after_a_snapshot_that_is_restored_nothing_is_said() {
        let restored = Some(Restored { from: seconds(10), at: seconds(20) });
        assert_eq!(judge(&["ADD r c3 [4,5] full"], &[], None, restored), 1);
        assert_eq!(judge(&["ADD r c3 [4,10] full"], &[], None, restored), 0);
        // What a member took late may be gone again.
        let doubt = ["ADD p c1 [0,1] A", "ADD q c2 [2,3] none", "ADD r c3 [4,5] full"];
        assert_eq!(judge(&doubt, &[], None, restored), 0);
        let doubt = ["ADD p c1 [0,1] A", "ADD sticky c2 [2,3] none", "ADD r c3 [4,5] full"];
        assert_eq!((judge(&doubt, &[], None, restored), judge(&doubt, &[], None, None)), (0, 1));
    }

    #[test]
    fn a_newer_sandbox_is_one_that_came_meanwhile() {
        can_be(&["ADD p c1 [0,5] newer:c2", "ADD p c2 [1,2] A"]);
        can_be(&["ADD p c1 [2,5] newer:c2", "ADD p c2 [1,2] A"]);
        can_be(&["ADD p c1 [2,5] newer:c2", "ADD p c2 [5,6] A"]);
        cannot_be(&["ADD p c1 [3,5] newer:c2", "ADD p c2 [1,2] A"]);
        cannot_be(&["ADD p c1 [3,5] newer:c2", "ADD p c2 [6,7] A"]);
        // It must be that of this pod which is named, where it is said to be.
        cannot_be(&["ADD p c1 [0,5] newer:c2", "ADD q c2 [1,2] A"]);
        cannot_be(&["ADD p c1 [0,5] newer:c2", "ADD p c3 [1,2] A"]);
        cannot_be(&["ADD p c1 [0,5] newer:c2@1", "ADD p c2 [1,2] A"]);
        cannot_be(&["ADD p c1 [0,5] newer:c1", "ADD p c1 [1,2] A"]);
        cannot_be(&["ADD p c1 [0,5] newer:c2", "DEL p c2 [1,2] done"]);
    }

    #[test]
    fn a_sandbox_on_another_node_is_new_for_a_deadline() {
        can_be(&["ADD p c1 [12,13] newer:c2@1", "ADD p c2@1 [1,2] A"]);
        cannot_be(&["ADD p c1 [13,14] newer:c2@1", "ADD p c2@1 [1,2] A"]);
        cannot_be(&["ADD p c1@1 [12,13] newer:c2@1", "ADD p c2@1 [1,2] A"]);
    }

    #[test]
    fn a_newer_sandbox_may_have_come_without_an_answer() {
        let newer = |answer: &str, journalled: &[&str]| {
            let other = format!("ADD p c2 [1,2] {answer}");
            judge(&["ADD p c1 [30,31] newer:c2", &other], journalled, None, None)
        };
        assert_eq!((newer("none", &[]), newer("refused", &["c2"]), newer("refused", &[])), (0, 0, 1));
    }
}
