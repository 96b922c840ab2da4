//! What happens in a history: a setting, and a list of actions that a seed draws. An action names slots and nodes, never what
//! earlier actions made: with some of them left out the rest still means something, which is what shrinking needs.

use std::fmt;

use leasehold::store::record::{PoolDocument, RetentionDocument};

use crate::world::{Dice, pool};

/// The nodes.
pub(crate) const NODES: usize = 3;
/// The pods of StatefulSet `db`: the first slots.
pub(crate) const ORDINALS: usize = 3;
/// Then pods of a Deployment, of a Job, a bare one, and two containers without a pod.
pub(crate) const JOB: usize = 6;
pub(crate) const BARE: usize = 7;
pub(crate) const PODS: usize = 8;
pub(crate) const SLOTS: usize = 10;
/// The hosts that the reapers run on.
pub(crate) const REAPERS: usize = 2;

/// What becomes of one call that an operation makes: to the store, the wire or the API.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fate {
    /// It arrives so many actions later.
    Hold(u8),
    /// It arrives now; its answer so many actions later.
    HoldAnswer(u8),
    /// Nothing is sent.
    Fail,
    /// Refused before it is proposed.
    Refused,
    /// It never arrives, and nobody can tell.
    Lost,
    /// It arrives, its answer does not.
    AnswerLost,
    /// No answer; it arrives so many actions later.
    Late(u8),
    /// The process dies, and nothing was sent.
    Kill,
    /// The process dies; what it sent arrives so many actions later.
    KillLate(u8),
}

/// What a list of the API says instead of the truth.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Lie {
    #[default]
    None,
    /// As it was so many actions ago.
    Stale(u8),
    Empty,
    /// The pod in this slot is not in it.
    Late(u8),
    /// It is another cluster that answers.
    Other,
}

/// How a pool is changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Edit {
    /// As it was at first.
    Restore,
    /// The upper half of each range is gone.
    Shrink,
    /// The ranges are elsewhere.
    Move,
    /// It is gone, leases or not.
    Delete,
    /// The first address of each range is excluded.
    Exclude,
    /// It is of another domain, with other ranges.
    Domain,
}

/// What a person does to leases by hand. None of it is forced.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Deed {
    /// `lease release` of the slot's last pod or container.
    Release { slot: usize },
    /// `lease reserve`, of this one of the first addresses, for the slot's pod, whose name comes again.
    Reserve { slot: usize, at: u8 },
    /// `lease move` from one slot's last pod to that of another.
    Move { from: usize, to: usize },
    /// `lease reserve` of one of the first addresses for a device.
    Plug { at: u8 },
    /// `lease release` of one of the first addresses.
    Unplug { at: u8 },
}

/// How a node goes that does not come back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Death {
    /// Nobody says anything of it.
    Silent,
    /// A person says that it is off.
    OutOfService,
    /// Its Node object is deleted.
    Deleted,
}

/// One thing that happens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Action {
    /// A controller makes the pod, on this node or the next that is ready.
    Create {
        slot: usize,
        node: usize,
    },
    /// Its kubelet starts a sandbox: ADD. Of one that runs: the same ADD again.
    Add {
        slot: usize,
        fates: Vec<(u8, Fate)>,
        undone: bool,
    },
    /// A kubelet that has not heard yet starts a sandbox of the slot's last pod that was on another node.
    AddOld {
        slot: usize,
        fates: Vec<(u8, Fate)>,
    },
    /// A DEL of one of the slot's last sandboxes; `stripped` of the pod's name.
    Del {
        slot: usize,
        back: usize,
        stripped: bool,
        fates: Vec<(u8, Fate)>,
    },
    /// The sandbox dies, and its DEL is not sent.
    Stop {
        slot: usize,
    },
    /// GC on a node.
    Gc {
        node: usize,
        fates: Vec<(u8, Fate)>,
    },
    /// `leasehold flush` on a node.
    Flush {
        node: usize,
        fates: Vec<(u8, Fate)>,
    },
    /// `kubectl delete pod`: it has 30 s.
    Delete {
        slot: usize,
    },
    /// `kubectl delete pod --force`.
    Force {
        slot: usize,
    },
    /// The kubelet, or the garbage collection of a node's pods, is done with a pod: its object goes.
    Gone {
        slot: usize,
    },
    /// The containers have ended.
    Finish {
        slot: usize,
        timed: bool,
    },
    /// StatefulSet `db` wants so many.
    Scale {
        replicas: usize,
    },
    SetDelete,
    SetCreate {
        replicas: usize,
    },
    /// Deployment `web` has another template: its pods go, and what is made from now on is of another ReplicaSet.
    Roll,
    Crash {
        node: usize,
    },
    /// The node is back: booted anew if it had crashed, else only heard again.
    Back {
        node: usize,
    },
    /// Store and API do not hear it; the LAN does.
    CutControl {
        node: usize,
    },
    /// Nobody hears it.
    CutAll {
        node: usize,
    },
    /// The Node object of a silent node is deleted.
    NodeDelete {
        node: usize,
    },
    /// Its kubelet lives, and says that it is not ready.
    Sick {
        node: usize,
    },
    /// A person says that a silent node is off.
    Taint {
        node: usize,
    },
    /// A pool is changed or deleted; by `force` also while it has leases.
    Edit {
        pool: usize,
        edit: Edit,
        force: bool,
        fates: Vec<(u8, Fate)>,
    },
    /// A person changes leases.
    Desk {
        deed: Deed,
        fates: Vec<(u8, Fate)>,
    },
    Freeze,
    Thaw,
    Reap {
        host: usize,
        pods: Lie,
        nodes: Lie,
        fates: Vec<(u8, Fate)>,
    },
    Wait {
        ms: u64,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Action {
    /// The same where nothing goes wrong.
    pub(crate) fn plain(&self) -> Self {
        let mut plain = self.clone();
        match &mut plain {
            Self::Add { fates, undone, .. } => {
                fates.clear();
                *undone = false;
            }
            Self::AddOld { fates, .. }
            | Self::Del { fates, .. }
            | Self::Gc { fates, .. }
            | Self::Flush { fates, .. }
            | Self::Edit { fates, .. }
            | Self::Desk { fates, .. } => fates.clear(),
            Self::Reap { fates, pods, nodes, .. } => {
                fates.clear();
                (*pods, *nodes) = (Lie::None, Lie::None);
            }
            Self::Create { .. }
            | Self::Stop { .. }
            | Self::Delete { .. }
            | Self::Force { .. }
            | Self::Gone { .. }
            | Self::Finish { .. }
            | Self::Scale { .. }
            | Self::SetDelete
            | Self::SetCreate { .. }
            | Self::Roll
            | Self::Crash { .. }
            | Self::Back { .. }
            | Self::CutControl { .. }
            | Self::CutAll { .. }
            | Self::NodeDelete { .. }
            | Self::Sick { .. }
            | Self::Taint { .. }
            | Self::Freeze
            | Self::Thaw
            | Self::Wait { .. } => {}
        }
        plain
    }

    pub(crate) const fn is_stale(&self) -> bool {
        matches!(self, Self::Reap { pods: Lie::Stale(_), .. } | Self::Reap { nodes: Lie::Stale(_), .. })
    }
}

/// What a history begins with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    pub(crate) pools: Vec<PoolDocument>,
    /// How far each clock is off, milliseconds: the nodes, then the reapers.
    pub(crate) skews: [i64; NODES + REAPERS],
    pub(crate) absent_after_s: u64,
    /// The node that is dead in the end, until everybody who had something of it has it again.
    pub(crate) dies: Option<(usize, Death)>,
}

/// A history.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct History {
    pub(crate) seed: u64,
    pub(crate) setting: Setting,
    pub(crate) actions: Vec<Action>,
    /// Where each stands in the list that the seed draws, and whether its faults are left out: for the replay.
    pub(crate) kept: Vec<(usize, bool)>,
}

impl History {
    /// What this seed draws.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..8 {
            dice.next();
        }
        let setting = setting(&mut dice);
        let actions = actions(&mut dice);
        let kept = (0..actions.len()).map(|index| (index, false)).collect();
        Self { seed, setting, actions, kept }
    }

    /// `SEED`, or `SEED:3,7!,12`: only these actions, those with `!` without their faults.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (seed, kept) = text.trim().split_once(':').unzip();
        let whole = Self::draw(seed.unwrap_or(text.trim()).parse().ok()?);
        let Some(kept) = kept else { return Some(whole) };
        let mut out = Self { actions: Vec::new(), kept: Vec::new(), ..whole.clone() };
        for part in kept.split(',') {
            let plain = part.ends_with('!');
            let index: usize = part.trim_end_matches('!').parse().ok()?;
            out.keep(whole.actions.get(index)?, index, plain);
        }
        Some(out)
    }

    fn keep(&mut self, action: &Action, index: usize, plain: bool) {
        self.actions.push(if plain { action.plain() } else { action.clone() });
        self.kept.push((index, plain));
    }

    pub(crate) fn replay(&self) -> String {
        let kept: Vec<String> = self
            .kept
            .iter()
            .map(|(index, plain)| format!("{index}{}", if *plain { "!" } else { "" }))
            .collect();
        format!("{}:{}", self.seed, kept.join(","))
    }

    fn without(&self, from: usize, to: usize) -> Self {
        let mut out = self.clone();
        out.actions.drain(from..to);
        out.kept.drain(from..to);
        out
    }

    /// Shorter and shorter ones that still fail, until nothing can be left out.
    pub(crate) fn shrink(self, fails: impl Fn(&Self) -> bool) -> Self {
        let mut best = self;
        let mut chunk = best.actions.len().div_ceil(2).max(1);
        loop {
            let before = best.replay();
            let mut from = 0;
            while from < best.actions.len() {
                let tried = best.without(from, (from + chunk).min(best.actions.len()));
                if fails(&tried) {
                    best = tried;
                } else {
                    from += chunk;
                }
            }
            for index in 0..best.actions.len() {
                let plain = best.actions[index].plain();
                if plain != best.actions[index] {
                    let mut tried = best.clone();
                    tried.actions[index] = plain;
                    tried.kept[index].1 = true;
                    if fails(&tried) {
                        best = tried;
                    }
                }
            }
            if chunk == 1 && best.replay() == before {
                return best;
            }
            chunk = (chunk / 2).max(1);
        }
    }
}

fn setting(dice: &mut Dice) -> Setting {
    let mut pools = match dice.below(5) {
        // One address: everybody wants it.
        0 => vec![pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.10"])],
        1 => vec![pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.13"])],
        2 => vec![pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.17", "fd00::/64 fd00::10-fd00::15"])],
        // Pools of one domain that overlap.
        _ => vec![
            pool("lan", &["10.0.0.0/24 10.0.0.12-10.0.0.18"]),
            pool("db", &["10.0.0.0/24 10.0.0.10-10.0.0.13"]),
        ],
    };
    if let Some(db) = pools.get_mut(1) {
        db.serves = vec!["shop/db".into()];
        if dice.below(3) == 0 {
            db.nodes = vec!["n1".into(), "n2".into()];
        }
    }
    let either = |dice: &mut Dice| Some(if dice.below(2) == 0 { "Delete" } else { "Retain" }.to_owned());
    for pool in &mut pools {
        pool.retention = Some(RetentionDocument {
            when_deleted: either(dice),
            when_scaled: either(dice),
            hold_for: (dice.below(4) == 0).then(|| "1h".into()),
        });
        pool.node_lost = (dice.below(4) == 0).then(|| "keep".into());
        pool.sticky = (dice.below(6) == 0).then(|| "always".into());
        pool.probe = (dice.below(6) == 0).then(|| "always".into());
    }
    let mut skews = [0; NODES + REAPERS];
    if dice.below(3) == 0 {
        for skew in &mut skews {
            *skew = [0, 3_000, -3_000, 60_000, -60_000, 300_000][dice.below(6)];
        }
    }
    let death = [Death::Silent, Death::OutOfService, Death::Deleted][dice.below(3)];
    let dies = (dice.below(2) == 0).then(|| (dice.below(NODES), death));
    Setting { pools, skews, absent_after_s: if dice.below(2) == 0 { 120 } else { 15 }, dies }
}

fn actions(dice: &mut Dice) -> Vec<Action> {
    let mut out = Vec::new();
    let wanted = 20 + dice.below(30);
    out.push(Action::SetCreate { replicas: 1 + dice.below(ORDINALS) });
    for _ in 0..2 + dice.below(4) {
        begin(dice, &mut out);
    }
    while out.len() < wanted {
        match dice.below(8) {
            0 => begin(dice, &mut out),
            1 => scene(dice, &mut out),
            _ => out.push(any(dice)),
        }
    }
    out
}

fn slot(dice: &mut Dice) -> usize {
    // Few pods, so that much happens to each.
    match dice.below(8) {
        0..3 => 0,
        3 => 1 + dice.below(2),
        4 => 3 + dice.below(3),
        5 => JOB + dice.below(2),
        6 => PODS,
        _ => PODS + dice.below(2),
    }
}

fn pod(dice: &mut Dice) -> usize {
    loop {
        let slot = slot(dice);
        if slot < PODS {
            return slot;
        }
    }
}

fn add(dice: &mut Dice, slot: usize) -> Action {
    Action::Add { slot, fates: fates(dice, 7, true), undone: dice.below(16) == 0 }
}

fn del(dice: &mut Dice, slot: usize) -> Action {
    let back = if dice.below(2) == 0 { 0 } else { dice.below(3) };
    Action::Del { slot, back, stripped: dice.below(4) == 0, fates: fates(dice, 3, true) }
}

fn wait(dice: &mut Dice) -> Action {
    Action::Wait {
        ms: [100, 1_000, 6_000, 11_000, 40_000, 130_000, 660_000, 4_000_000, 90_000_000][dice.below(9)],
    }
}

fn reap(dice: &mut Dice) -> Action {
    let lie = |dice: &mut Dice| match dice.below(20) {
        0 => Lie::Stale(u8_below(dice, 12)),
        1 => [Lie::Empty, Lie::Other][dice.below(2)],
        2 | 3 => Lie::Late(u8_below(dice, PODS)),
        _ => Lie::None,
    };
    let (pods, nodes) = (lie(dice), if dice.below(4) == 0 { lie(dice) } else { Lie::None });
    Action::Reap { host: dice.below(REAPERS), pods, nodes, fates: fates(dice, 18, false) }
}

fn u8_below(dice: &mut Dice, end: usize) -> u8 {
    u8::try_from(dice.below(end)).unwrap()
}

/// A pod is made and started.
fn begin(dice: &mut Dice, out: &mut Vec<Action>) {
    let slot = slot(dice);
    if slot < PODS {
        out.push(Action::Create { slot, node: dice.below(NODES) });
    }
    out.push(if dice.below(3) == 0 {
        add(dice, slot)
    } else {
        Action::Add { slot, fates: Vec::new(), undone: false }
    });
}

/// What belongs together and chance alone would seldom put side by side.
fn scene(dice: &mut Dice, out: &mut Vec<Action>) {
    let slot = pod(dice);
    let node = dice.below(NODES);
    match dice.below(12) {
        // It is moved by force.
        0 => out.extend([Action::Force { slot }, Action::Create { slot, node }, add(dice, slot)]),
        // Two passes miss it.
        1 => out.extend([Action::Force { slot }, reap(dice), Action::Wait { ms: 130_000 }, reap(dice)]),
        // Its node falls silent, and it is sent elsewhere.
        2 | 3 => {
            out.push(match dice.below(4) {
                0 => Action::Crash { node },
                1 => Action::CutAll { node },
                _ => Action::CutControl { node },
            });
            let ms = [40_000, 75_000, 130_000][dice.below(3)];
            out.extend([Action::Delete { slot }, Action::Wait { ms }, reap(dice)]);
            if dice.below(2) == 0 {
                out.extend([Action::Force { slot }, Action::Create { slot, node: (node + 1) % NODES }]);
            }
            let next = pod(dice);
            out.extend([Action::Create { slot: next, node: (node + 1) % NODES }, add(dice, next)]);
        }
        // The same container comes again.
        4 => {
            let slot = PODS + dice.below(2);
            out.extend([add(dice, slot), del(dice, slot), add(dice, slot)]);
        }
        // A list misses a pod again and again.
        5 => {
            let lie = Lie::Late(u8_below(dice, PODS));
            let host = dice.below(REAPERS);
            let again = || Action::Reap { host, pods: lie, nodes: Lie::None, fates: Vec::new() };
            out.extend([again(), Action::Wait { ms: 130_000 }, again()]);
        }
        6 => out.extend([
            Action::Scale { replicas: dice.below(ORDINALS + 1) },
            Action::Gone { slot },
            reap(dice),
            Action::Scale { replicas: 1 + dice.below(ORDINALS) },
        ]),
        7 => out.extend([
            Action::SetDelete,
            Action::Gone { slot },
            reap(dice),
            Action::Wait { ms: 660_000 },
            reap(dice),
        ]),
        // What it had is given to another, whose ADD comes at once.
        9 => {
            let to = if dice.below(2) == 0 { slot % ORDINALS } else { BARE };
            let deed = match dice.below(3) {
                0 => Deed::Reserve { slot: to, at: u8_below(dice, 8) },
                1 => Deed::Move { from: slot, to },
                _ => Deed::Release { slot },
            };
            out.extend([
                del(dice, slot),
                Action::Desk { deed, fates: fates(dice, 6, true) },
                Action::Create { slot: to, node },
                Action::Add { slot: to, fates: Vec::new(), undone: false },
            ]);
        }
        // Its ADD hears late that it has an address, and another has taken it over meanwhile.
        8 => {
            let fates = vec![(1 + u8_below(dice, 3), Fate::HoldAnswer(4 + u8_below(dice, 3)))];
            out.extend([
                Action::Force { slot },
                Action::Create { slot, node },
                Action::Add { slot, fates, undone: false },
                Action::Force { slot },
                Action::Create { slot, node: (node + 1) % NODES },
                Action::Wait { ms: [1_000, 3_000, 6_000][dice.below(3)] },
                Action::Add { slot, fates: Vec::new(), undone: false },
                wait(dice),
            ]);
        }
        _ => out.extend([add(dice, slot), add(dice, slot), del(dice, slot)]),
    }
}

fn deed(dice: &mut Dice) -> Deed {
    let (slot, at) = (slot(dice), u8_below(dice, 8));
    match dice.below(6) {
        0 | 1 => Deed::Release { slot },
        2 => Deed::Reserve { slot: if dice.below(3) == 0 { BARE } else { slot % ORDINALS }, at },
        3 => Deed::Move { from: pod(dice), to: pod(dice) },
        4 => Deed::Plug { at },
        _ => Deed::Unplug { at },
    }
}

fn any(dice: &mut Dice) -> Action {
    let (node, slot) = (dice.below(NODES), slot(dice));
    match dice.below(104) {
        0..18 => add(dice, slot),
        18..30 => del(dice, slot),
        30..38 => Action::Create { slot: pod(dice), node },
        38..50 => reap(dice),
        50..60 => wait(dice),
        60..63 => Action::Delete { slot: pod(dice) },
        63..66 => Action::Force { slot: pod(dice) },
        66..70 => Action::Gone { slot: pod(dice) },
        70..73 => Action::Stop { slot },
        73..75 => Action::Finish { slot: JOB + dice.below(2), timed: dice.below(2) == 0 },
        75..78 => Action::AddOld { slot: pod(dice), fates: fates(dice, 5, true) },
        78..80 => Action::Gc { node, fates: fates(dice, 4, true) },
        80 => Action::Flush { node, fates: fates(dice, 6, true) },
        81 => Action::Scale { replicas: dice.below(ORDINALS + 1) },
        82 => Action::SetDelete,
        83 => Action::SetCreate { replicas: 1 + dice.below(ORDINALS) },
        84 | 85 => Action::Crash { node },
        86..90 => Action::Back { node },
        90 | 91 => Action::CutControl { node },
        92 => Action::CutAll { node },
        93 => Action::NodeDelete { node },
        94 if dice.below(2) == 0 => Action::Sick { node },
        94 => Action::Taint { node },
        95..97 => {
            let edits = [Edit::Restore, Edit::Shrink, Edit::Move, Edit::Delete, Edit::Exclude, Edit::Domain];
            let (pool, edit) = (dice.below(2), edits[dice.below(edits.len())]);
            Action::Edit { pool, edit, force: dice.below(2) == 0, fates: fates(dice, 6, true) }
        }
        97 => Action::Freeze,
        98 => Action::Thaw,
        99..103 => Action::Desk { deed: deed(dice), fates: fates(dice, 6, true) },
        _ if dice.below(2) == 0 => {
            Action::Edit { pool: 0, edit: Edit::Restore, force: false, fates: Vec::new() }
        }
        _ => Action::Roll,
    }
}

/// What goes wrong with an operation: mostly nothing.
fn fates(dice: &mut Dice, calls: usize, whole: bool) -> Vec<(u8, Fate)> {
    let count = [0, 0, 0, 1, 1, 2][dice.below(6)];
    (0..count)
        .map(|_| {
            // An ADD on a full pool, with the journal after it, makes many.
            let calls = if dice.below(6) == 0 { 24 } else { calls };
            let call = u8_below(dice, calls);
            // A message may be on its way for the rest of the history.
            let most = if dice.below(6) == 0 { 40 } else { 6 };
            let later = u8_below(dice, most);
            let fate = match dice.below(if whole { 14 } else { 12 }) {
                0..3 => Fate::Hold(1 + later),
                3..5 => Fate::HoldAnswer(1 + later),
                5 => Fate::Fail,
                6 => Fate::Lost,
                7 => Fate::AnswerLost,
                8 => Fate::Late(later),
                9 => Fate::Kill,
                10 => Fate::KillLate(later),
                11 => Fate::Refused,
                _ => Fate::KillLate(1 + later),
            };
            (call, fate)
        })
        .collect()
}
