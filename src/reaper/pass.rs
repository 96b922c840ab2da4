//! One pass: read, list, decide, ask again, end, one after the other.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;

use super::{
    Context, Fate, Ignored, Judged, Mended, Options, PassError, Report, Step, Stopped, Unregistered, events,
    mend, read,
};
use crate::{
    domain::{
        kubernetes::{Answer, Controller, ControllerRef, Node, Pod, PodKey, Ready},
        lease::{Holder, Lease, Timestamp},
        names::{Namespace, NodeName, PoolName, Uid},
        pool::{Pool, StickyRule},
        reap::{
            self, Brake, Case, Confirmed, Give, Keep, Kept, Note, PoolPolicy, Row, Sought, UNKNOWN_ANSWER,
            Verdict,
        },
    },
    ops::{Change, Clock, Log, commit},
    pods::{ApiError, Cluster},
    store::{
        Key, Read, Revision, Store, StoreError, Txn, changes, keys,
        record::{self, Stored},
    },
};

/// Requests in flight: enough to hide the way to API and store, few beside what kubelets ask.
const AT_ONCE: usize = 16;
/// A transaction of a pass is sent until answered for so long; the next pass begins anew.
const COMMIT_FOR: Duration = Duration::from_secs(10);
/// What was listed of a node is asked again for a candidate if it is older than this: a node may have come back.
const NODE_FRESH: Duration = Duration::from_secs(5);
/// An API or a store that has stopped answering would make an hour of a pass over many candidates: after so many in a row
/// the rest is left to the next pass.
const MOST_UNHEARD: usize = AT_ONCE;
/// How many released keys one transaction forgets: etcd takes 128 operations.
const FORGET_AT_ONCE: usize = 60;

/// The reason of what a stopped pass did not come to.
const STOPPED: &str = "stopped";

/// Annotations that are not followed, in one report.
const MOST_IGNORED: usize = 100;

/// A pass. See the module above for its order.
///
/// # Errors
/// [`PassError`]: leases or pods could not be listed in full, or it was stopped before they were. Nothing was given back
/// then.
pub async fn pass<S: Store, K: Cluster, C: Clock, L: Log>(
    context: &Context<'_, S, K, C, L>,
    options: Options,
    progress: &(dyn Fn(Step) + Sync),
) -> Result<Report, PassError> {
    let began = Instant::now();
    let stop = context.stop;
    let counted = |count| progress(Step::Leases(count));
    let start = read::start(context.store, context.cluster, &counted);
    let start = stop.or(start).await.ok_or(PassError::Stopped)??;
    let Some(registered) = start.cluster.clone().transpose()? else {
        return Err(Unregistered { cluster: context.cluster.clone(), known: start.known }.into());
    };
    let found = stop.or(context.api.identity()).await.ok_or(PassError::Stopped)??;
    let mut run = Run {
        context,
        pools: &start.pools,
        looked: Looked::default(),
        listed_at: Instant::now(),
        again: Mutex::default(),
        due: Mutex::new(None),
        unheard: AtomicUsize::new(0),
    };
    let by_pod = ByPod::of(&start.leases);
    let lives: Vec<AtomicBool> = start.leases.iter().map(|_| AtomicBool::new(false)).collect();
    // Of the many pods that live, no more than that is kept; but of those that wish something, the wishes.
    let keep = |pod: &Pod| {
        let mut keep = false;
        for index in by_pod.leases_of(&pod.key) {
            let plain = run.lives_plainly(&start.leases[index].0, pod);
            lives[index].store(plain, Ordering::Relaxed);
            keep |= !plain || !pod.wishes.is_empty();
        }
        keep
    };
    let counted = |count| progress(Step::Pods(count));
    let listed = stop.or(context.api.pods_that(&keep, &counted)).await.ok_or(PassError::Stopped)??;
    let (at, count) = (listed.at, listed.all);
    let skew_ms = context.clock.now().since(at);
    let pods: HashMap<&PodKey, &Pod> = listed.items.iter().map(|pod| (&pod.key, pod)).collect();
    let cases: Vec<(&Lease, Seen<'_>)> = start
        .leases
        .iter()
        .zip(&lives)
        .map(|((lease, _), lives)| {
            let seen = if lives.load(Ordering::Relaxed) {
                Seen::Lives
            } else {
                Seen::Otherwise(key_of(lease).and_then(|key| pods.get(&key).copied()))
            };
            (lease, seen)
        })
        .collect();
    let mut troubles = Vec::new();
    run.listed_at = Instant::now();
    let looked = stop.or(look_further(context, &cases, &mut troubles)).await;
    run.looked = looked.ok_or(PassError::Stopped)?;
    let mut verdicts: Vec<Verdict> =
        cases.iter().map(|(lease, seen)| run.verdict(lease, *seen, at)).collect();
    let candidates = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Give(_))).count();
    let gives = |adopted: bool| -> Vec<Row> {
        cases
            .iter()
            .zip(&verdicts)
            .filter(|((lease, _), _)| lease.ends_with_its_pod() == adopted)
            .filter(|(_, verdict)| matches!(verdict, Verdict::Give(_)))
            .map(|(_, verdict)| verdict.row())
            .collect()
    };
    let (gives, adopted) = (gives(false), gives(true));
    let bound = start.leases.iter().filter(|(lease, _)| is_bound_pod(lease)).count();
    let unlisted = matches!(run.looked.nodes, Some(Err(_)));
    // Without anything to stop and without a false answer in sight the nodes are nobody's business.
    let brakes = if candidates == 0 && found == registered && (count > 0 || bound == 0) && !unlisted {
        Vec::new()
    } else {
        if run.looked.nodes.is_none() {
            let nodes = stop.or(list_nodes(context, &mut troubles)).await;
            run.looked.nodes = Some(nodes.ok_or(PassError::Stopped)?);
        }
        run.brakes((&registered, &found), &start.leases, bound, count, (&gives, &adopted))
    };
    verdicts = verdicts.into_iter().map(|verdict| reap::brake(verdict, &brakes)).collect();
    let ignored = run.ignored(&start.leases, &pods);

    let mut report = Report {
        revision: start.revision,
        at,
        skew_ms,
        leases: start.leases.len(),
        bound,
        pods: count,
        candidates,
        kept: BTreeMap::new(),
        unreadable: start.unreadable,
        judged: Vec::new(),
        brakes,
        mended: Mended::default(),
        forgotten: 0,
        troubles,
        undone: false,
        ignored,
        stopped: None,
        due: None,
        took: Duration::ZERO,
    };
    let come = run.act(&start.leases, verdicts, options, progress, &mut report).await;
    report.due = run.due.into_inner().unwrap_or_else(PoisonError::into_inner);
    if options.mend && !stop.is_wanted() {
        progress(Step::Mending);
        // What stops the giving-back stops this, too.
        let look_only = options.dry_run || !report.brakes.is_empty();
        let mended = look_for_halves(context, &start.leases, start.revision, look_only).await;
        match mended {
            Ok(mended) => report.mended = mended,
            Err(why) => report.troubles.push(format!("half pairs were not looked for: {why}")),
        }
    }
    // Another cluster's clock says nothing of what is old here.
    let own = !report.brakes.iter().any(|brake| matches!(brake, Brake::Identity { .. }));
    if !options.dry_run && !options.quick && own && !stop.is_wanted() {
        match forget(context, at).await {
            Ok(count) => report.forgotten = count,
            Err(why) => report.troubles.push(format!("released addresses were not forgotten: {why}")),
        }
        if report.brakes.is_empty()
            && !stop.is_wanted()
            && let Err(why) = write_down(context, at).await
        {
            report.troubles.push(format!("the time of this pass was not written down: {why}"));
        }
    }
    report.stopped = stop.is_wanted().then_some(come);
    report.took = began.elapsed();
    Ok(report)
}

fn is_bound_pod(lease: &Lease) -> bool {
    (lease.bound().is_some() || lease.ends_with_its_pod()) && matches!(lease.id.holder, Holder::Pod { .. })
}

fn key_of(lease: &Lease) -> Option<PodKey> {
    match &lease.id.holder {
        Holder::Pod { namespace, name } => Some(PodKey { namespace: namespace.clone(), name: name.clone() }),
        Holder::Container(_) => None,
    }
}

/// Where the leases of a pod stand: they come in the order of their keys, so those of one pod are neighbours.
struct ByPod<'a>(HashMap<&'a Holder, Range<usize>>);

impl<'a> ByPod<'a> {
    fn of(leases: &'a [(Lease, Revision)]) -> Self {
        let mut places: HashMap<&Holder, Range<usize>> = HashMap::with_capacity(leases.len());
        for (index, (lease, _)) in leases.iter().enumerate() {
            places.entry(&lease.id.holder).or_insert(index..index).end = index + 1;
        }
        Self(places)
    }

    fn leases_of(&self, key: &PodKey) -> Range<usize> {
        let holder = Holder::Pod { namespace: key.namespace.clone(), name: key.name.clone() };
        self.0.get(&holder).cloned().unwrap_or_default()
    }
}

/// What the list of pods said of a lease's pod.
#[derive(Clone, Copy)]
enum Seen<'a> {
    /// It lives, and there is nothing to note.
    Lives,
    /// Something else, or it is not there.
    Otherwise(Option<&'a Pod>),
}

/// What was asked beyond the pods.
#[derive(Default)]
struct Looked {
    /// `None`: nobody needed them.
    nodes: Option<Result<Vec<Node>, String>>,
    controllers: HashMap<(Namespace, ControllerRef), Answer<Controller>>,
}

/// Asks for the nodes and the controllers that verdicts need, and for nothing else.
async fn look_further<S: Store, K: Cluster, C: Clock, L: Log>(
    context: &Context<'_, S, K, C, L>,
    cases: &[(&Lease, Seen<'_>)],
    troubles: &mut Vec<String>,
) -> Looked {
    let mut looked = Looked::default();
    let mut controllers: HashSet<(Namespace, ControllerRef)> = HashSet::new();
    let mut node = false;
    for (lease, seen) in cases {
        let Seen::Otherwise(pod) = seen else { continue };
        let Some(key) = key_of(lease) else { continue };
        let needs = reap::needs(lease, &pod.map_or(Answer::Absent, Answer::Present), context.policy);
        node |= needs.node.is_some();
        controllers.extend(needs.controller.map(|controller| (key.namespace, controller)));
    }
    if node {
        looked.nodes = Some(list_nodes(context, troubles).await);
    }
    let asked = stream::iter(controllers).map(|(namespace, controller)| async move {
        let answer = ask_controller(context.api, &namespace, &controller).await;
        ((namespace, controller), answer)
    });
    let answers: Vec<_> = asked.buffer_unordered(AT_ONCE).collect().await;
    let unknown = answers.iter().filter_map(|(_, answer)| match answer {
        Answer::Unknown(why) => Some(why.clone()),
        Answer::Present(_) | Answer::Absent => None,
    });
    troubles.extend(in_short(unknown.collect()));
    looked.controllers.extend(answers);
    looked
}

/// The first of some errors, which are mostly of one cause.
fn in_short(errors: BTreeSet<String>) -> Option<String> {
    let more = errors.len().saturating_sub(1);
    let first = errors.into_iter().next()?;
    Some(if more == 0 { first } else { format!("{first} (and {more} more)") })
}

async fn ask_controller<K: Cluster>(
    api: &K,
    namespace: &Namespace,
    controller: &ControllerRef,
) -> Answer<Controller> {
    match api.controller(namespace, controller).await {
        Ok(live) => live.found.map_or(Answer::Absent, Answer::Present),
        Err(error) => Answer::Unknown(error.to_string()),
    }
}

async fn list_nodes<S: Store, K: Cluster, C: Clock, L: Log>(
    context: &Context<'_, S, K, C, L>,
    troubles: &mut Vec<String>,
) -> Result<Vec<Node>, String> {
    context.api.nodes().await.map(|listed| listed.items).map_err(|error| {
        troubles.push(format!("nodes: {error}"));
        error.to_string()
    })
}

/// A pass that has its answers.
struct Run<'a, 'c, S, K, C, L> {
    context: &'a Context<'c, S, K, C, L>,
    pools: &'a HashMap<PoolName, Result<Pool, String>>,
    looked: Looked,
    listed_at: Instant,
    /// Nodes that were asked for again, and when.
    again: Mutex<HashMap<NodeName, (Instant, Option<Node>)>>,
    /// When the first of those is due that wait for time alone.
    due: Mutex<Option<Instant>>,
    /// How many questions and commits in a row were not answered.
    unheard: AtomicUsize,
}

impl<S: Store, K: Cluster, C: Clock, L: Log> Run<'_, '_, S, K, C, L> {
    fn pools_of(&self, lease: &Lease) -> Answer<PoolPolicy> {
        PoolPolicy::of_lease(lease, |name| match self.pools.get(name) {
            Some(Ok(pool)) => Answer::Present(pool),
            Some(Err(why)) => Answer::Unknown(why.clone()),
            None => Answer::Absent,
        })
    }

    fn node(&self, sought: &Sought) -> Answer<&Node> {
        match &self.looked.nodes {
            Some(Ok(nodes)) => {
                nodes.iter().find(|node| sought.is(&node.name)).map_or(Answer::Absent, Answer::Present)
            }
            Some(Err(why)) => Answer::Unknown(why.clone()),
            None => Answer::Unknown("the nodes were not asked for".into()),
        }
    }

    fn case<'b>(&'b self, lease: &'b Lease, pod: Answer<&'b Pod>) -> Case<'b> {
        let needs = reap::needs(lease, &pod, self.context.policy);
        let unasked = || "nothing asked for it".to_owned();
        let node = needs.node.map_or_else(|| Answer::Unknown(unasked()), |sought| self.node(&sought));
        let controller = needs.controller.zip(key_of(lease)).map_or_else(
            || Answer::Unknown(unasked()),
            |(controller, key)| match self.looked.controllers.get(&(key.namespace, controller)) {
                Some(answer) => answer.as_ref(),
                None => Answer::Unknown(unasked()),
            },
        );
        Case { lease, cluster: self.context.cluster, pools: self.pools_of(lease), pod, node, controller }
    }

    /// Does the pod live, without a doubt and without anything to note or to report?
    fn lives_plainly(&self, lease: &Lease, pod: &Pod) -> bool {
        let own = lease.bound().is_some_and(|stamp| stamp.uid.as_ref().is_none_or(|uid| *uid == pod.uid));
        let verdict =
            || reap::verdict(&self.case(lease, Answer::Present(pod)), self.context.policy, pod.created);
        own && matches!(verdict(), Verdict::Keep(kept) if kept.why == Keep::PodLives)
    }

    fn verdict(&self, lease: &Lease, seen: Seen<'_>, now: Timestamp) -> Verdict {
        match seen {
            Seen::Lives => Verdict::Keep(Kept { row: Row::Lives, why: Keep::PodLives, report: false }),
            Seen::Otherwise(pod) => {
                let case = self.case(lease, pod.map_or(Answer::Absent, Answer::Present));
                reap::verdict(&case, self.context.policy, now)
            }
        }
    }

    /// A node that may have changed since the list; asked for once in a while, not for each of its pods.
    async fn node_again(&self, name: &NodeName) -> Result<Option<Node>, ApiError> {
        let cached = {
            let again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
            again.get(name).filter(|(at, _)| at.elapsed() < NODE_FRESH).map(|(_, node)| node.clone())
        };
        if let Some(node) = cached {
            return Ok(node);
        }
        let asked = Instant::now();
        let node = self.context.api.node(name).await?.found;
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        again.insert(name.clone(), (asked, node.clone()));
        Ok(node)
    }

    fn brakes(
        &self,
        (registered, found): (&Uid, &Uid),
        leases: &[(Lease, Revision)],
        bound: usize,
        pods: usize,
        (gives, adopted): (&[Row], &[Row]),
    ) -> Vec<Brake> {
        let named: BTreeSet<NodeName> = leases
            .iter()
            .filter(|(lease, _)| is_bound_pod(lease))
            .filter_map(|(lease, _)| lease.bound().map(|stamp| stamp.node.clone()))
            .collect();
        let nodes = match &self.looked.nodes {
            Some(Ok(nodes)) => Ok(nodes.as_slice()),
            Some(Err(why)) => Err(why.clone()),
            None => Err("they were not asked for".into()),
        };
        let cluster = self.context.cluster;
        let pass =
            reap::Pass { cluster, registered, found, bound, named: &named, pods, nodes, gives, adopted };
        reap::brakes(&pass, self.context.policy)
    }

    /// What is kept until some time after `at` is due then.
    fn waits(&self, why: &Keep, at: Instant) {
        let Some(left) = why.left_ms() else { return };
        let then = at + Duration::from_millis(u64::try_from(left).unwrap_or(0));
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        *due = Some(due.map_or(then, |due| due.min(then)));
    }

    /// Living pods whose annotations none of their leases follows.
    fn ignored(&self, leases: &[(Lease, Revision)], pods: &HashMap<&PodKey, &Pod>) -> Vec<Ignored> {
        let mut asking: BTreeMap<&PodKey, (&Pod, Vec<&Lease>)> = BTreeMap::new();
        for (lease, _) in leases {
            let Some(pod) = key_of(lease).and_then(|key| pods.get(&key).copied()) else { continue };
            let is_it = lease.bound().is_some_and(|stamp| stamp.uid.as_ref() == Some(&pod.uid));
            if is_it && !pod.wishes.is_empty() && pod.deleting.is_none() && !pod.phase.is_final() {
                asking.entry(&pod.key).or_insert_with(|| (pod, Vec::new())).1.push(lease);
            }
        }
        let contradiction = |(pod, leases): &(&Pod, Vec<&Lease>)| {
            let rules = |lease: &&Lease| match self.pools_of(lease) {
                Answer::Present(pools) => pools.sticky != StickyRule::Auto,
                Answer::Absent | Answer::Unknown(_) => true,
            };
            events::contradiction(pod, leases, leases.iter().any(rules))
        };
        asking.values().filter_map(contradiction).take(MOST_IGNORED).collect()
    }

    /// Notes and ends, many at once; what is merely kept is counted. How far it came.
    async fn act(
        &self,
        leases: &[(Lease, Revision)],
        verdicts: Vec<Verdict>,
        options: Options,
        progress: &(dyn Fn(Step) + Sync),
        report: &mut Report,
    ) -> Stopped {
        let brakes = report.brakes.clone();
        let mut work = Vec::new();
        for ((lease, revision), verdict) in leases.iter().zip(verdicts) {
            match verdict {
                Verdict::Keep(kept) => {
                    // What was to be noted first waits for the brake that keeps it from that, not for a moment.
                    if !matches!(kept.why, Keep::ControllerFirst { .. }) {
                        self.waits(&kept.why, self.listed_at);
                    }
                    *report.kept.entry(kept.why.label()).or_default() += 1;
                    if options.all || !is_plain(&kept.why) {
                        let fate = Fate::Kept(kept.why.label());
                        report.judged.push(judged(lease, kept.row, fate, kept.why.to_string(), kept.report));
                    }
                }
                verdict @ (Verdict::Note(..) | Verdict::Give(_)) => work.push((lease, *revision, verdict)),
            }
        }
        let all = work.iter().filter(|(_, _, verdict)| matches!(verdict, Verdict::Give(_))).count();
        let done = AtomicUsize::new(0);
        let tasks = stream::iter(work).map(|(lease, revision, verdict)| {
            let (brakes, done) = (&brakes, &done);
            async move {
                match verdict {
                    Verdict::Give(give) => {
                        let ended = self.end(lease, revision, give, brakes, options).await;
                        if ended.fate != Fate::Kept(STOPPED) {
                            progress(Step::Candidates(done.fetch_add(1, Ordering::Relaxed) + 1, all));
                        }
                        ended
                    }
                    Verdict::Note(kept, note) => {
                        let label = kept.why.label();
                        let fate = self.note(lease, revision, &note, label, options).await;
                        if matches!(fate, Fate::Noted(_)) {
                            self.waits(&kept.why, self.listed_at);
                        }
                        judged(lease, kept.row, fate, kept.why.to_string(), kept.report)
                    }
                    Verdict::Keep(kept) => judged(
                        lease,
                        kept.row,
                        Fate::Kept(kept.why.label()),
                        kept.why.to_string(),
                        kept.report,
                    ),
                }
            }
        });
        let ended: Vec<Judged> = tasks.buffer_unordered(AT_ONCE).collect().await;
        let mut unanswered = BTreeSet::new();
        for judged in ended {
            match &judged.fate {
                Fate::Kept(label) if *label == UNKNOWN_ANSWER => {
                    unanswered.insert(judged.why.clone());
                    *report.kept.entry(label).or_default() += 1;
                }
                Fate::Kept(label) | Fate::Noted(label) => *report.kept.entry(label).or_default() += 1,
                Fate::Failed(why) => {
                    report.undone = true;
                    report.troubles.push(format!("{}: {why}", judged.id));
                }
                Fate::GivenBack | Fate::Candidate | Fate::Changed => {}
            }
            report.judged.push(judged);
        }
        // A pass that could not ask again has not done its work, and says so not only in a table.
        report.undone |= !unanswered.is_empty();
        report.troubles.extend(in_short(unanswered));
        report.judged.sort_by(|a, b| a.id.cmp(&b.id));
        Stopped { done: done.into_inner(), all }
    }

    async fn note(
        &self,
        lease: &Lease,
        revision: Revision,
        note: &Note,
        label: &'static str,
        options: Options,
    ) -> Fate {
        if options.dry_run {
            return Fate::Noted(label);
        }
        if self.context.stop.is_wanted() {
            return Fate::Kept(label);
        }
        let change = |stored: &Stored<Lease>| Some(changes::note(stored, &note.write(&stored.value)));
        match self.change(lease, revision, change).await {
            Ok(true) => Fate::Noted(label),
            Ok(false) => Fate::Changed,
            Err(error) => Fate::Failed(error.to_string()),
        }
    }

    /// Asks for the pod of a candidate, live, and ends the lease if the verdict stands.
    async fn end(
        &self,
        lease: &Lease,
        revision: Revision,
        give: Give,
        brakes: &[Brake],
        options: Options,
    ) -> Judged {
        if options.dry_run {
            return judged(lease, give.row(), Fate::Candidate, give.text().to_owned(), true);
        }
        let confirmed = match self.context.stop.or(self.confirm(lease, &give, brakes)).await {
            None => {
                let why = "the pass was stopped before it came to this lease".into();
                return judged(lease, give.row(), Fate::Kept(STOPPED), why, false);
            }
            Some(Ok(confirmed)) => confirmed,
            Some(Err(why)) => {
                self.waits(&why, Instant::now());
                let look = !matches!(why, Keep::PodLives | Keep::Changed);
                return judged(lease, give.row(), Fate::Kept(why.label()), why.to_string(), look);
            }
        };
        let now = self.context.clock.now();
        let fate = match self.change(lease, revision, |stored| changes::reap(&confirmed, stored, now)).await {
            Ok(true) => {
                self.tell(&confirmed);
                Fate::GivenBack
            }
            Ok(false) => Fate::Changed,
            Err(error) => Fate::Failed(error.to_string()),
        };
        judged(lease, confirmed.row(), fate, confirmed.text().to_owned(), true)
    }

    async fn confirm(&self, lease: &Lease, give: &Give, brakes: &[Brake]) -> Result<Confirmed, Keep> {
        let api = self.context.api;
        let unknown = |error: &ApiError| Keep::UnknownAnswer { reason: error.to_string() };
        let Some(key) = key_of(lease) else { return Err(Keep::NoPodIdentity) };
        if self.is_deaf() {
            return Err(Keep::UnknownAnswer { reason: "too many before it were not answered".into() });
        }
        let live = api.pod(&key).await;
        self.heard(!matches!(live, Err(ApiError::NotReached { .. })));
        let live = live.map_err(|error| unknown(&error))?;
        let pod = live.found.as_ref().map_or(Answer::Absent, Answer::Present);
        let mut case = self.case(lease, pod.clone());
        let needs = reap::needs(lease, &pod, self.context.policy);
        // A node that was silent may have come back since the list; and what rests on its silence, or on there being no such
        // node, does not rest on a list alone.
        let is_old = self.listed_at.elapsed() >= NODE_FRESH;
        let lives = matches!(case.node, Answer::Present(node) if matches!(node.ready, Ready::True | Ready::False) && !node.out_of_service);
        let node;
        if let Some(Sought::Named(name)) = needs.node.filter(|_| is_old || !lives) {
            node = self.node_again(&name).await.map_err(|error| unknown(&error))?;
            case.node = node.as_ref().map_or(Answer::Absent, Answer::Present);
        }
        let controller;
        if let Some(wanted) = needs.controller.filter(|_| self.listed_at.elapsed() >= NODE_FRESH) {
            controller = ask_controller(api, &key.namespace, &wanted).await;
            case.controller = controller.as_ref();
        }
        reap::confirm(give, &case, brakes, self.context.policy, live.at)
    }

    fn is_deaf(&self) -> bool {
        self.unheard.load(Ordering::Relaxed) >= MOST_UNHEARD
    }

    fn heard(&self, answered: bool) {
        if answered {
            self.unheard.store(0, Ordering::Relaxed);
        } else {
            self.unheard.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Commits a change of a lease, if it still is as it was listed: `false` if not.
    async fn change(
        &self,
        lease: &Lease,
        revision: Revision,
        txn: impl FnOnce(&Stored<Lease>) -> Option<Txn>,
    ) -> Result<bool, StoreError> {
        if self.is_deaf() {
            return Err(StoreError::NotReached { reason: "too many before it were not answered".into() });
        }
        let changed = self.change_now(lease, revision, txn).await;
        let silent = |error: &StoreError| {
            matches!(error, StoreError::NotReached { .. } | StoreError::Unanswered { .. })
        };
        self.heard(!changed.as_ref().is_err_and(silent));
        changed
    }

    async fn change_now(
        &self,
        lease: &Lease,
        revision: Revision,
        txn: impl FnOnce(&Stored<Lease>) -> Option<Txn>,
    ) -> Result<bool, StoreError> {
        let deadline = Instant::now() + COMMIT_FOR;
        let store = self.context.store;
        let snapshot = commit::read(store, &[Read::Get(keys::lease(&lease.id))], None, deadline).await?;
        let stored = snapshot.entry(0).filter(|entry| entry.revision == revision);
        let Some(stored) = stored.and_then(|entry| record::decode_lease(entry).ok()) else {
            return Ok(false);
        };
        let Some(txn) = txn(&stored) else { return Ok(false) };
        send(store, txn, deadline).await
    }

    fn tell(&self, confirmed: &Confirmed) {
        let lease = confirmed.lease();
        let held = lease.bound().is_some() && (lease.sticky || lease.reserved);
        self.context.log.change(&Change {
            what: if held { "lease.held" } else { "lease.released" },
            lease: Some(lease.id.clone()),
            addresses: addresses(lease),
            pool: lease.addresses.iter().find_map(|leased| leased.pool.clone()),
            container: lease.bound().map(|stamp| stamp.container.clone()),
            why: format!("reaped by row {}: {}", confirmed.row(), confirmed.text()),
        });
    }
}

async fn send<S: Store>(store: &S, txn: Txn, deadline: Instant) -> Result<bool, StoreError> {
    Ok(match commit::surely(store, &commit::shown(txn), deadline).await? {
        commit::Sent::Applied(_) => true,
        commit::Sent::Conflict(_) => false,
    })
}

/// Kept for the plainest reasons: no line but with `all`.
const fn is_plain(why: &Keep) -> bool {
    matches!(why, Keep::PodLives | Keep::PodExists | Keep::OwnerWantsIt { .. } | Keep::Reserved)
}

fn addresses(lease: &Lease) -> Vec<IpAddr> {
    lease.addresses.iter().map(|leased| leased.address).collect()
}

fn judged(lease: &Lease, row: Row, fate: Fate, why: String, look: bool) -> Judged {
    Judged {
        id: lease.id.clone(),
        addresses: addresses(lease),
        state: lease.state(),
        node: lease.bound().map(|stamp| stamp.node.clone()),
        row,
        fate,
        why,
        look,
    }
}

async fn look_for_halves<S: Store, K: Cluster, C: Clock, L: Log>(
    context: &Context<'_, S, K, C, L>,
    leases: &[(Lease, Revision)],
    at: Revision,
    dry: bool,
) -> Result<Mended, String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let found = mend::suspicious(context.store, context.cluster, leases, at);
    let Some(found) = context.stop.or(found).await else { return Ok(Mended::default()) };
    let found = found.map_err(|e| text(&e))?;
    let own = (context.api, context.cluster);
    let mended = mend::mend(context.store, own, found, context.clock.now(), dry, context.stop);
    mended.await.map_err(|e| text(&e))
}

/// Drops the keys of addresses that were given back long ago, by the clock that wrote them or this one's.
async fn forget<S: Store, K: Cluster, C: Clock, L: Log>(
    context: &Context<'_, S, K, C, L>,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let mut old: Vec<Txn> = Vec::new();
    let all = keys::all_released();
    let read = read::pages(context.store, &all, None, |entries| {
        for entry in entries {
            let Some((domain, address)) = keys::parse_released(&entry.key) else { continue };
            let Ok(stored) = record::decode_released(entry) else { continue };
            if reap::is_forgotten(&stored.value, now) {
                old.extend(changes::forget(&domain, address, &stored));
            }
        }
    });
    let Some(read) = context.stop.or(read).await else { return Ok(0) };
    read?;
    let mut count = 0;
    for some in old.chunks(FORGET_AT_ONCE) {
        if context.stop.is_wanted() {
            break;
        }
        let deadline = Instant::now() + COMMIT_FOR;
        let mut together = Txn::default();
        for txn in some {
            together.compares.extend(txn.compares.iter().cloned());
            together.writes.extend(txn.writes.iter().cloned());
        }
        if send(context.store, together, deadline).await? {
            count += some.len();
            continue;
        }
        // One of them was leased meanwhile: each for itself.
        for txn in some {
            count += usize::from(send(context.store, txn.clone(), deadline).await?);
        }
    }
    Ok(count)
}

/// Writes the time of this pass into the cluster's record: who looks sees whether the reaper lives (B060).
async fn write_down<S: Store, K: Cluster, C: Clock, L: Log>(
    context: &Context<'_, S, K, C, L>,
    at: Timestamp,
) -> Result<(), StoreError> {
    let deadline = Instant::now() + COMMIT_FOR;
    let key: Key = keys::cluster(context.cluster);
    let snapshot = commit::read(context.store, &[Read::Get(key)], None, deadline).await?;
    let Some(stored) = snapshot.entry(0).and_then(|entry| record::decode_cluster(entry).ok()) else {
        return Ok(());
    };
    // Another reaper that was faster has written the same.
    send(context.store, changes::reaped(context.cluster, &stored, at), deadline).await.map(|_| ())
}
