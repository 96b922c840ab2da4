//! Row 12: a lease that is held for its pod.

use super::keep::{span, spoken};
use super::{
    Case, Count, DOUBT_AFTER, Keep, Line, Missed, Owner, Policy, Row, Ruling, count, ms, seen_controller,
    seen_missed,
};
use crate::domain::{
    kubernetes::{Answer, Controller, ControllerRef, Pod, Wants},
    lease::Timestamp,
    names::PodName,
    pool::{Retain, Retention},
};

pub(super) fn rule(
    case: &Case<'_>,
    name: &PodName,
    pod: Option<&Pod>,
    policy: &Policy,
    now: Timestamp,
) -> Ruling {
    if pod.is_some() {
        return Ruling::keep(Row::Held(Line::Wanted), Keep::PodExists).missed(Missed::Cleared);
    }
    let retention = match &case.pools {
        Answer::Present(pools) => pools.retention,
        Answer::Absent => return Ruling::doubt("its pools are not known"),
        Answer::Unknown(why) => return Ruling::doubt(why.as_str()),
    };
    match (Owner::of(case.lease, name, policy), &case.controller) {
        (Owner::Known(_) | Owner::Guessed(_), Answer::Unknown(why)) => Ruling::doubt(why.as_str()),
        (Owner::Known(owner) | Owner::Guessed(owner), Answer::Present(controller))
            if wants(controller, &owner, name) =>
        {
            let owner = spoken(&owner.to_string());
            Ruling::keep(Row::Held(Line::Wanted), Keep::OwnerWantsIt { owner }).missed(Missed::Cleared)
        }
        (Owner::Known(owner), Answer::Present(controller)) => {
            scaled(case, &owner, controller, retention, now).missed(Missed::Cleared)
        }
        (Owner::Known(owner), Answer::Absent) => absent(case, &owner, policy, retention, now),
        (Owner::Guessed(_), Answer::Present(_) | Answer::Absent) | (Owner::Nobody, _) => {
            nobody(case, retention, now)
        }
    }
}

fn scaled(
    case: &Case<'_>,
    owner: &ControllerRef,
    controller: &Controller,
    retention: Retention,
    now: Timestamp,
) -> Ruling {
    let owner = spoken(&owner.to_string());
    let replicas = match &controller.wants {
        Wants::Ordinals { replicas, .. } => *replicas,
        Wants::All => 0,
    };
    match retention.when_scaled {
        Retain::Delete => {
            let text = format!("{owner} scaled to {replicas}, whenScaled Delete");
            Ruling::give(Row::Held(Line::Scaled), text)
        }
        Retain::Retain => hold_for(case, retention, now)
            .unwrap_or_else(|| Ruling::keep(Row::Held(Line::Scaled), Keep::ScaledDown { owner, replicas })),
    }
}

/// A controller that is made anew is absent for a moment: nothing is decided, not even by `holdFor`, before owner-after.
fn absent(
    case: &Case<'_>,
    owner: &ControllerRef,
    policy: &Policy,
    retention: Retention,
    now: Timestamp,
) -> Ruling {
    let owner = spoken(&owner.to_string());
    let row = Row::Held(Line::OwnerAbsent);
    match (count(seen_missed(case.lease), policy.owner_after, now), retention.when_deleted) {
        (Count::First, _) => {
            let left_ms = ms(policy.owner_after);
            Ruling::keep(row, Keep::OwnerMissed { owner, missed_ms: 0, left_ms }).missed(Missed::First(now))
        }
        (Count::Waiting { missed_ms, left_ms }, _) => {
            Ruling::keep(row, Keep::OwnerMissed { owner, missed_ms, left_ms })
        }
        (Count::Over { missed_ms }, Retain::Delete) => {
            Ruling::give(row, format!("{owner} gone for {}, whenDeleted Delete", span(missed_ms)))
        }
        (Count::Over { missed_ms }, Retain::Retain) => hold_for(case, retention, now)
            .unwrap_or_else(|| Ruling::keep(row, Keep::OwnerGone { owner, missed_ms })),
    }
}

fn nobody(case: &Case<'_>, retention: Retention, now: Timestamp) -> Ruling {
    hold_for(case, retention, now).unwrap_or_else(|| {
        let held_ms = now.since(case.lease.since);
        let why = match seen_controller(case.lease) {
            Some(seen) => Keep::OwnerKind { owner: spoken(seen), held_ms },
            None => Keep::NoOwner { held_ms },
        };
        Ruling::keep(Row::Held(Line::NoOwner), why).reported(is_old(case, now))
    })
}

/// The upper limit. Since when it is held is a node's clock: good enough for what nobody uses.
fn hold_for(case: &Case<'_>, retention: Retention, now: Timestamp) -> Option<Ruling> {
    let held_ms = now.since(case.lease.since);
    let over = !retention.hold_for.is_zero() && held_ms >= ms(retention.hold_for);
    let text = || format!("held for {}, holdFor {}", span(held_ms), span(ms(retention.hold_for)));
    over.then(|| Ruling::give(Row::Held(Line::HoldFor), text()))
}

fn is_old(case: &Case<'_>, now: Timestamp) -> bool {
    now.since(case.lease.since) >= ms(DOUBT_AFTER)
}

/// Does it want the pod of this name? Where the name does not tell an ordinal of it, that it exists is enough.
fn wants(controller: &Controller, owner: &ControllerRef, pod: &PodName) -> bool {
    let Wants::Ordinals { start, replicas, reserved } = &controller.wants else { return true };
    let digits = pod.as_str().strip_prefix(owner.name.as_str()).and_then(|rest| rest.strip_prefix('-'));
    let Some(ordinal) = digits.and_then(|digits| digits.parse::<u64>().ok()) else { return true };
    let Some(from_start) = ordinal.checked_sub(*start) else { return false };
    let mut left_out: Vec<u64> =
        reserved.iter().copied().filter(|r| (*start..=ordinal).contains(r)).collect();
    left_out.sort_unstable();
    left_out.dedup();
    // How many it wants before this one.
    let place = from_start.saturating_sub(left_out.len() as u64);
    !left_out.contains(&ordinal) && place < *replicas
}
