//! What the callers saw, and whether it can have been: for each address there must be one order of the calls about it,
//! each at some moment between its begin and its end, in which nobody takes what another has and nobody loses what he
//! was given (linearizability, by the search of Wing and Gong). Addresses are independent, so each is judged alone.
//!
//! An address is nobody's, or a pod's: in use by one container, or held for the pod after the end of the last. What a
//! call does to it follows from the design, and is written down here without the code that is judged.
//!
//! | call | answer | then |
//! |---|---|---|
//! | ADD | the address | it was nobody's, or the pod's own: now it is this container's. Not if a container has it whose ADD began later |
//! | ADD | another address | the pod did not have this one |
//! | ADD | refused | nothing, but where the node keeps a journal entry, as for the next |
//! | ADD | none, or in doubt | as the first at any time from then on, or never; and as DEL at any time, or never |
//! | DEL | done | if it was this container's: nobody's, or held where the pod is sticky; otherwise nothing |
//! | DEL | none | the same, or nothing, at any time |
//! | DEL | done, and kept in the journal | the same, until the journal was told |
//! | CHECK | done | it was this container's |
//!
//! After a restore the store knows less than its callers: see [`Restored`].

use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

/// One call of the plugin, as its caller saw it.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) verb: Verb,
    pub(super) pod: String,
    /// Never used again for another sandbox.
    pub(super) container: String,
    /// The number of the node that was called.
    pub(super) node: usize,
    /// Does the pod keep its address?
    pub(super) sticky: bool,
    /// Of one monotonic clock, as all times here.
    pub(super) began: Duration,
    /// When the caller had the answer.
    pub(super) ended: Duration,
    pub(super) answer: Answer,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verb {
    Add,
    Del,
    Check,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Answer {
    /// Of an ADD; and of a CHECK that finds this address where it belongs.
    Address(String),
    /// A DEL that succeeded.
    Done,
    Refused(String),
    /// The caller went away, or the process was killed.
    None,
}

/// How it ended.
#[derive(Debug)]
pub(super) struct End {
    /// Containers of which a node's journal ever had an entry, and when all of it had been told.
    pub(super) journalled: BTreeSet<String>,
    pub(super) told: Duration,
    /// When the store was looked at after that, and what was there: addresses, each with its pod, and the container that
    /// uses it.
    pub(super) looked: Duration,
    pub(super) owners: Vec<(String, String, Option<String>)>,
    /// The store was set back to a snapshot.
    pub(super) restored: Option<Restored>,
}

/// What ended after the snapshot may be there again, what began after it is gone, until an operator gives the living
/// their leases. A journal of before means nothing any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restored {
    /// When the snapshot was there.
    pub(super) from: Duration,
    /// When it had been restored.
    pub(super) at: Duration,
}

/// Says for which addresses there is no such order.
pub(super) fn impossible(calls: &[Call], end: &End) -> Vec<String> {
    let given = calls.iter().filter_map(|call| match &call.answer {
        Answer::Address(address) => Some(address),
        Answer::Done | Answer::Refused(_) | Answer::None => None,
    });
    let addresses: BTreeSet<&String> = given.chain(end.owners.iter().map(|(address, ..)| address)).collect();
    let unexplained = addresses.into_iter().filter_map(|address| {
        let steps = steps_of(address, calls, end);
        let stuck = explain(&steps).err()?;
        Some(format!("{address}: {stuck}\n{}", table(&steps)))
    });
    unexplained.collect()
}

/// Who has an address.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Owner<'a> {
    pod: &'a str,
    /// The container that uses it, and when the ADD that gave it to it began; nothing while it is held.
    container: Option<(&'a str, Duration)>,
}

/// What a call does to one address.
#[derive(Clone, Copy, Debug)]
enum Act<'a> {
    Take {
        pod: &'a str,
        container: &'a str,
    },
    End {
        container: &'a str,
        sticky: bool,
    },
    /// The pod has not this one.
    Elsewhere {
        pod: &'a str,
    },
    Uses {
        container: &'a str,
    },
    /// The pod lives, and an operator gave it its lease back.
    Adopt {
        pod: &'a str,
    },
    /// The last look.
    Is(Option<(&'a str, Option<&'a str>)>),
}

#[derive(Clone, Copy, Debug)]
struct Step<'a> {
    act: Act<'a>,
    from: Duration,
    /// The last moment for it; never, if there is none.
    until: Option<Duration>,
    /// Did it happen at all?
    surely: bool,
}

impl<'a> Step<'a> {
    fn surely(act: Act<'a>, from: Duration, until: Duration) -> Self {
        Self { act, from, until: Some(until), surely: true }
    }

    fn perhaps(act: Act<'a>, from: Duration) -> Self {
        Self { act, from, until: None, surely: false }
    }

    /// The owner after it; nothing where it cannot come now.
    fn after(&self, owner: Option<Owner<'a>>) -> Option<Option<Owner<'a>>> {
        let uses = |container: &str| {
            owner.is_some_and(|owner| owner.container.is_some_and(|(its, _)| its == container))
        };
        match self.act {
            Act::Take { pod, container } => match owner {
                Some(owner) if owner.pod != pod => None,
                Some(Owner { container: Some((its, _)), .. }) if its == container => Some(owner),
                // A newer sandbox's address is not taken.
                Some(Owner { container: Some((_, began)), .. }) if began > self.from => None,
                Some(_) | None => Some(Some(Owner { pod, container: Some((container, self.from)) })),
            },
            Act::End { container, sticky } if uses(container) => {
                Some(owner.filter(|_| sticky).map(|owner| Owner { container: None, ..owner }))
            }
            Act::End { .. } => Some(owner),
            Act::Elsewhere { pod } => owner.is_none_or(|owner| owner.pod != pod).then_some(owner),
            Act::Uses { container } => uses(container).then_some(owner),
            Act::Adopt { pod } => match owner {
                Some(owner) if owner.pod == pod => Some(Some(Owner { container: None, ..owner })),
                Some(_) | None => None,
            },
            Act::Is(seen) => {
                let now = owner.map(|owner| (owner.pod, owner.container.map(|(container, _)| container)));
                (now == seen).then_some(owner)
            }
        }
    }
}

/// All that may have been done to one address. A pod that never shows with it adds nothing: nobody needs an order in which
/// it had it for a while.
fn steps_of<'a>(address: &str, calls: &'a [Call], end: &'a End) -> Vec<Step<'a>> {
    let owner = end.owners.iter().find(|(its, ..)| its == address);
    let here = Answer::Address(address.to_owned());
    let mut pods: BTreeSet<&str> =
        calls.iter().filter(|call| call.answer == here).map(|call| call.pod.as_str()).collect();
    pods.extend(owner.map(|(_, pod, _)| pod.as_str()));
    let mut steps = Vec::new();
    for call in calls.iter().filter(|call| pods.contains(call.pod.as_str())) {
        let Call { pod, container, sticky, began, ended, .. } = call;
        let journalled = end.journalled.contains(container);
        let take = Act::Take { pod, container };
        let release = Act::End { container, sticky: *sticky };
        let again = |take| {
            let restored = end.restored.filter(|restored| *began < restored.from);
            restored.map(|restored| Step::perhaps(take, restored.at))
        };
        match (call.verb, &call.answer) {
            (Verb::Add, answer) if *answer == here => {
                steps.push(Step::surely(take, *began, *ended));
                steps.extend(again(take));
                let adopt = end.restored.map(|restored| Step::perhaps(Act::Adopt { pod }, restored.at));
                steps.extend(adopt.filter(|adopt| *began < adopt.from));
            }
            (Verb::Add, Answer::Address(_)) => {
                steps.push(Step::surely(Act::Elsewhere { pod }, *began, *ended));
            }
            (Verb::Add, Answer::Refused(_)) if !journalled => {}
            (Verb::Add, Answer::Refused(_) | Answer::None | Answer::Done) => {
                steps.extend([Step::perhaps(take, *began), Step::perhaps(release, *began)]);
                steps.extend(again(take));
            }
            (Verb::Del, Answer::None) => steps.push(Step::perhaps(release, *began)),
            (Verb::Del, _) if journalled && end.restored.is_some() => {
                steps.push(Step::perhaps(release, *began));
            }
            (Verb::Del, _) => {
                steps.push(Step::surely(release, *began, if journalled { end.told } else { *ended }));
            }
            (Verb::Check, answer) if *answer == here => {
                steps.push(Step::surely(Act::Uses { container }, *began, *ended));
            }
            (Verb::Check, _) => {}
        }
    }
    let seen = owner.map(|(_, pod, container)| (pod.as_str(), container.as_deref()));
    steps.push(Step::surely(Act::Is(seen), end.looked, end.looked));
    steps
}

/// Looks for an order of all that surely happened, and of what else it needs.
fn explain(steps: &[Step<'_>]) -> Result<(), String> {
    // Whoever must come soonest is tried first; what may wait for ever, last.
    let mut order: Vec<usize> = (0..steps.len()).collect();
    order.sort_by_key(|index| steps[*index].until.unwrap_or(Duration::MAX));
    let sorted: Vec<Step<'_>> = order.iter().map(|index| steps[*index]).collect();
    let mut search =
        Search { steps: &sorted, done: vec![false; sorted.len()], seen: HashSet::new(), best: (0, None) };
    if search.from(None) {
        return Ok(());
    }
    if search.seen.len() >= MOST_STATES {
        return Err(format!("no order found in {MOST_STATES} states"));
    }
    let (count, owner) = search.best;
    Err(format!("no order explains it; at most {count} of {} steps, and then it is {owner:?}", sorted.len()))
}

/// More than this is no answer.
const MOST_STATES: usize = 100_000;

struct Search<'s, 'a> {
    /// In the order in which they are tried.
    steps: &'s [Step<'a>],
    done: Vec<bool>,
    /// Where the search was in vain.
    seen: HashSet<(Vec<bool>, Option<Owner<'a>>)>,
    /// How many steps the longest order has, and who owns the address after it.
    best: (usize, Option<Owner<'a>>),
}

impl<'a> Search<'_, 'a> {
    /// Can the rest follow, with this owner now?
    fn from(&mut self, owner: Option<Owner<'a>>) -> bool {
        // The first of them that must come: nothing that began after its end can come before it.
        let Some(first) = (0..self.steps.len()).find(|at| !self.done[*at] && self.steps[*at].surely) else {
            return true;
        };
        if self.seen.len() >= MOST_STATES || !self.seen.insert((self.done.clone(), owner)) {
            return false;
        }
        let count = self.done.iter().filter(|done| **done).count();
        self.best = if count > self.best.0 { (count, owner) } else { self.best };
        let bound = self.steps[first].until.unwrap_or(Duration::MAX);
        for at in 0..self.steps.len() {
            let step = self.steps[at];
            if self.done[at] || step.from > bound {
                continue;
            }
            let Some(next) = step.after(owner) else { continue };
            if next == owner && !step.surely {
                continue; // nobody needs it
            }
            self.done[at] = true;
            if self.from(next) {
                return true;
            }
            self.done[at] = false;
            // What changes nothing and never will is done at its first chance: no order needs it later.
            if next == owner && self.is_settled(step.act) {
                return false;
            }
        }
        false
    }

    /// Would it change nothing later, either?
    fn is_settled(&self, act: Act<'_>) -> bool {
        match act {
            Act::Take { .. } | Act::Adopt { .. } => false,
            Act::Elsewhere { .. } | Act::Uses { .. } | Act::Is(_) => true,
            Act::End { container, .. } => !self.steps.iter().zip(&self.done).any(|(step, done)| {
                !done && matches!(step.act, Act::Take { container: other, .. } if other == container)
            }),
        }
    }
}

/// The steps for a person, by time.
fn table(steps: &[Step<'_>]) -> String {
    let mut lines: Vec<_> = steps.iter().collect();
    lines.sort_by_key(|step| step.from);
    let line = |step: &&Step<'_>| {
        let until = step.until.map_or_else(|| "…".to_owned(), |until| format!("{until:.3?}"));
        let perhaps = if step.surely { "" } else { " perhaps" };
        format!("  {:>12} – {until:>12}{perhaps} {:?}\n", format!("{:.3?}", step.from), step.act)
    };
    lines.iter().map(line).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::support::chance::Chance;

    const A: &str = "10.1.0.1";

    pub(in crate::members) fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    /// `ADD p c1 [0,1] A`: verb, pod, container, when, and the answer: an address, `done`, `refused`, `none`, `full` (of two),
    /// or `newer:c2` where that container has the lease. A container is on node 0, or as in `c1@2`.
    pub(in crate::members) fn call(line: &str) -> Call {
        let placed = |text: &str| -> (String, usize) {
            let (container, node) = text.split_once('@').unwrap_or((text, "0"));
            (container.into(), node.parse().unwrap())
        };
        let words: Vec<&str> = line.split(' ').collect();
        let [verb, pod, container, when, answer] = words[..] else { panic!("{line}") };
        let (container, node) = placed(container);
        let (began, ended) = when.trim_matches(['[', ']']).split_once(',').unwrap();
        Call {
            verb: match verb {
                "ADD" => Verb::Add,
                "DEL" => Verb::Del,
                "CHECK" => Verb::Check,
                other => panic!("{other}"),
            },
            pod: pod.into(),
            container,
            node,
            sticky: pod.starts_with("sticky"),
            began: seconds(began.parse().unwrap()),
            ended: seconds(ended.parse().unwrap()),
            answer: match answer {
                "A" => Answer::Address(A.into()),
                "B" => Answer::Address("10.1.0.2".into()),
                "done" => Answer::Done,
                "refused" => Answer::Refused("the store is down".into()),
                "none" => Answer::None,
                "full" => Answer::Refused("11 pool lan is full (2 of 2); widen the pool".into()),
                other => {
                    let (container, node) = placed(other.strip_prefix("newer:").unwrap());
                    let what = "11 a newer sandbox of this pod has its lease";
                    Answer::Refused(format!("{what}; container {container} on node n{node}: it is new"))
                }
            },
        }
    }

    /// `owner`: who has A in the end: `nobody`, `p c1`, or `p` who holds it.
    fn judge(lines: &[&str], journalled: &[&str], owner: &str, restored: Option<Restored>) -> Vec<String> {
        let calls: Vec<Call> = lines.iter().map(|line| call(line)).collect();
        let owners = match owner.split_once(' ') {
            Some((pod, container)) => vec![(A.into(), pod.into(), Some(container.into()))],
            None if owner == "nobody" => Vec::new(),
            None => vec![(A.into(), owner.into(), None)],
        };
        let journalled = journalled.iter().map(|container| (*container).to_owned()).collect();
        let all = impossible(
            &calls,
            &End { journalled, told: seconds(99), looked: seconds(100), owners, restored },
        );
        all.into_iter().filter(|text| text.starts_with(A)).collect()
    }

    #[track_caller]
    fn can_be(lines: &[&str], journalled: &[&str], owner: &str) {
        let found = judge(lines, journalled, owner, None);
        assert!(found.is_empty(), "{found:?}");
    }

    #[track_caller]
    fn cannot_be(lines: &[&str], journalled: &[&str], owner: &str) {
        assert_eq!(judge(lines, journalled, owner, None).len(), 1);
    }

    #[test]
    fn one_after_the_other_is_as_it_should_be() {
        can_be(&[], &[], "nobody");
        let life = ["ADD p c1 [0,1] A", "CHECK p c1 [2,3] A", "DEL p c1 [4,5] done", "ADD q c2 [6,7] A"];
        can_be(&life, &[], "q c2");
        can_be(&life[..1], &[], "p c1");
        can_be(&life[..3], &[], "nobody");
    }

    #[test]
    fn two_owners_at_once_are_found() {
        cannot_be(&["ADD p c1 [0,1] A", "ADD q c2 [2,3] A"], &[], "q c2");
        cannot_be(&["ADD p c1 [0,9] A", "ADD q c2 [0,9] A"], &[], "q c2");
        // Not where the first may have gone in time.
        can_be(&["ADD p c1 [0,1] A", "DEL p c1 [2,9] done", "ADD q c2 [3,4] A"], &[], "q c2");
        cannot_be(&["ADD p c1 [0,1] A", "DEL p c1 [5,9] done", "ADD q c2 [3,4] A"], &[], "q c2");
    }

    #[test]
    fn a_lost_release_is_found() {
        cannot_be(&["ADD p c1 [0,1] A", "DEL p c1 [2,3] done"], &[], "p c1");
        cannot_be(&["ADD sticky c1 [0,1] A", "DEL sticky c1 [2,3] done"], &[], "nobody");
        // From a journal it comes later, but it comes.
        let journalled = ["ADD p c1 [0,1] A", "DEL p c1 [2,3] done", "CHECK p c1 [4,5] A"];
        can_be(&journalled, &["c1"], "nobody");
        cannot_be(&journalled, &["c1"], "p c1");
        cannot_be(&journalled, &[], "nobody");
    }

    #[test]
    fn a_lost_lease_is_found() {
        cannot_be(&["ADD p c1 [0,1] A"], &[], "nobody");
        cannot_be(&["ADD p c1 [0,1] A", "ADD p c2 [2,3] B"], &[], "nobody");
        can_be(&["ADD p c1 [0,1] A", "DEL p c1 [2,3] done", "ADD p c2 [4,5] B"], &[], "nobody");
    }

    #[test]
    fn a_stale_take_is_found() {
        let newer = ["ADD p c1 [0,9] A", "ADD p c2 [3,4] A"];
        can_be(&newer, &[], "p c2");
        cannot_be(&newer, &[], "p c1");
        // Also of an ADD that nobody waits for any more.
        cannot_be(&["ADD p c1 [0,1] none", "ADD p c2 [3,4] A"], &[], "p c1");
        can_be(&["ADD p c1 [0,1] none", "ADD p c2 [3,4] A", "DEL p c2 [5,6] done"], &[], "p c1");
    }

    #[test]
    fn a_late_del_of_the_past_touches_no_successor() {
        let late = ["ADD p c1 [0,1] A", "ADD p c2 [2,3] A", "DEL p c1 [4,5] done"];
        can_be(&late, &[], "p c2");
        cannot_be(&late, &[], "nobody");
        cannot_be(&[&late[..], &["ADD q c3 [6,7] A"]].concat(), &[], "q c3");
    }

    #[test]
    fn what_was_not_answered_may_have_been() {
        for owner in ["nobody", "p c1"] {
            can_be(&["ADD p c1 [0,1] none"], &[], owner);
            can_be(&["ADD p c1 [0,1] refused"], &["c1"], owner);
            can_be(&["ADD p c1 [0,1] A", "DEL p c1 [2,3] none"], &[], owner);
        }
        can_be(&["ADD p c1 [0,1] refused"], &[], "nobody");
        cannot_be(&["ADD p c1 [0,1] refused"], &[], "p c1");
        // But it takes nothing from anybody.
        cannot_be(&["ADD q c2 [0,1] A", "ADD p c1 [2,3] none"], &[], "p c1");
        cannot_be(&["ADD p c1 [0,1] A", "DEL p c2 [2,3] none"], &[], "nobody");
    }

    #[test]
    fn a_sticky_pod_keeps_what_it_had() {
        let gone = ["ADD sticky c1 [0,1] A", "DEL sticky c1 [2,3] done"];
        can_be(&gone, &[], "sticky");
        can_be(&[&gone[..], &["ADD sticky c2 [4,5] A"]].concat(), &[], "sticky c2");
        cannot_be(&[&gone[..], &["ADD sticky c2 [4,5] B"]].concat(), &[], "sticky");
        cannot_be(&[&gone[..], &["ADD q c2 [4,5] A"]].concat(), &[], "q c2");
    }

    #[test]
    fn a_restore_brings_back_what_had_ended_and_takes_nothing_from_the_living() {
        let restored = Some(Restored { from: seconds(10), at: seconds(20) });
        let judged = |lines: &[&str], owner: &str| judge(lines, &[], owner, restored).is_empty();
        let ended = ["ADD p c1 [0,1] A", "ADD p c2 [12,13] A", "DEL p c2 [14,15] done"];
        assert!(judged(&ended, "nobody") && judged(&ended, "p c1"));
        assert!(!judged(&ended, "p c2"), "it is younger than the snapshot");
        let lives = ["ADD p c1 [12,13] A"];
        assert!(judged(&lives, "p c1") && judged(&lives, "p"));
        assert!(!judged(&lives, "nobody"), "an operator has seen to it");
        assert!(!judged(&["ADD p c1 [12,13] A", "ADD q c2 [30,31] A"], "q c2"));
        assert!(judged(&["ADD p c1 [12,13] A", "ADD p c2 [30,31] A"], "p c2"));
        assert!(!judged(&["ADD p c1 [12,13] A", "ADD p c2 [30,31] B"], "nobody"));
    }

    #[test]
    fn an_add_that_is_repeated_changes_nothing() {
        can_be(&["ADD p c1 [0,1] A", "ADD p c1 [2,3] A"], &[], "p c1");
        cannot_be(&["ADD p c1 [0,1] A", "ADD p c1 [2,3] A", "DEL p c1 [4,5] done"], &[], "p c1");
    }

    #[test]
    fn many_that_may_come_at_any_time_are_judged_soon() {
        let judged = |count: u64, owner: &str| {
            let lines: Vec<String> = (0..count)
                .flat_map(|n| {
                    let [at, next, last] = [2 * n, 2 * n + 1, 2 * n + 2];
                    let taken = format!("ADD p c{n} [{at},{next}] A");
                    [
                        taken,
                        format!("DEL p c{n} [{next},{last}] done"),
                        format!("ADD p d{n} [{at},{next}] none"),
                    ]
                })
                .collect();
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let names: Vec<String> = (0..count).map(|n| format!("c{n}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            judge(&lines, &names, owner, None).len()
        };
        assert_eq!((judged(40, "nobody"), judged(5, "q e1")), (0, 1));
    }

    /// The search against the plainest of all: every order of every choice.
    #[test]
    fn it_says_what_trying_all_orders_says() {
        fn any_order<'a>(left: &[Step<'a>], owner: Option<Owner<'a>>) -> bool {
            let must: Vec<_> = left.iter().filter(|step| step.surely).collect();
            must.is_empty()
                || (0..left.len()).any(|at| {
                    let (step, mut rest) = (left[at], left.to_vec());
                    rest.remove(at);
                    let in_time = must.iter().all(|other| other.until.is_none_or(|until| step.from <= until));
                    in_time && step.after(owner).is_some_and(|next| any_order(&rest, next))
                })
        }
        let mut chance = Chance(6);
        let (mut yes, mut no) = (0, 0);
        for _ in 0..20_000 {
            let lines: Vec<String> = (0..=chance.below(4))
                .map(|_| {
                    let began = chance.below(8);
                    let (verb, answers): (_, &[&str]) = match chance.below(5) {
                        0..=2 => ("ADD", &["A", "A", "B", "refused", "none"]),
                        3 => ("DEL", &["done", "none"]),
                        _ => ("CHECK", &["A"]),
                    };
                    let pod = *chance.one_of(&["p", "p", "q", "sticky"]).unwrap();
                    let container = format!("{pod}{}", chance.below(2));
                    let answer = chance.one_of(answers).unwrap();
                    format!("{verb} {pod} {container} [{began},{}] {answer}", began + chance.below(4))
                })
                .collect();
            let calls: Vec<Call> = lines.iter().map(|line| call(line)).collect();
            let owners = match *chance.one_of(&["", "p p0", "p p1", "q q0", "sticky"]).unwrap() {
                "" => Vec::new(),
                text => {
                    let (pod, container) =
                        text.split_once(' ').map_or((text, None), |(p, c)| (p, Some(c.into())));
                    vec![(A.to_owned(), pod.into(), container)]
                }
            };
            let journalled = BTreeSet::from(["p1".into()]);
            let end = End { journalled, told: seconds(19), looked: seconds(20), owners, restored: None };
            let steps = steps_of(A, &calls, &end);
            let found = explain(&steps).is_ok();
            assert_eq!(found, any_order(&steps, None), "{lines:?} {end:?}");
            *(if found { &mut yes } else { &mut no }) += 1;
        }
        assert!(yes > 1000 && no > 1000, "{yes} {no}");
    }
}
