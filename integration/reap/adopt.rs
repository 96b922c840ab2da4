//! Adoption: a store that has lost leases, and the pods that run with their addresses.

use leasehold::{
    admin::{
        Scope,
        leases::{self, Target},
    },
    domain::{
        kubernetes::{ControllerRef, Phase, PodAddress},
        lease::Timestamp,
        names::{ClusterName, DomainName, Namespace, NetworkName},
    },
    pods::{ApiError, fake::Question},
    reaper::{
        Options,
        adopt::{self, AdoptError, Against, Report, Told, Wanted, read_told},
    },
    store::{
        keys,
        testing::{Fault, On, Side},
    },
};

use super::scene::{Scene, given, key, node, uid, why};
use crate::ops::world::{futures_now, id, ip, pool};

/// How adoption is asked for.
#[derive(Default)]
struct Ask {
    cluster: Option<&'static str>,
    network: Option<&'static str>,
    namespace: Option<&'static str>,
    told: Vec<Told>,
    dry: bool,
}

impl Scene {
    /// A pod that runs with these addresses, `10.0.0.10` or `10.0.0.10 network ifname`, and has no lease.
    fn runs_with(&self, pod: &str, addresses: &[&str]) {
        let mut state = self.api.state();
        let made = state.pod(&key(pod), &uid(&format!("uid-{pod}").replace('/', "-")), &node("n1"));
        made.addresses = addresses
            .iter()
            .map(|text| {
                let words: Vec<&str> = text.split(' ').collect();
                let attachment = words.get(1).map(|network| ((*network).to_owned(), words[2].to_owned()));
                PodAddress { address: ip(words[0]), attachment }
            })
            .collect();
    }

    fn owned_by(&self, pod: &str, kind: &str, name: &str) {
        let owner = ControllerRef { kind: kind.into(), version: "v1".into(), name: name.into() };
        self.api.state().pods.get_mut(&key(pod)).unwrap().controller = Some(owner);
    }

    async fn try_adopt(&self, ask: Ask) -> Result<Report, AdoptError> {
        let cluster = ClusterName::new(ask.cluster.unwrap_or("prod")).unwrap();
        let network = ask.network.map(|name| NetworkName::new(name).unwrap());
        let namespace = ask.namespace.map(|name| Namespace::new(name).unwrap());
        let wanted = Wanted {
            cluster: &cluster,
            domain: None,
            namespace: namespace.as_ref(),
            network: network.as_ref(),
            sticky_kinds: &self.policy.sticky_kinds,
        };
        let now = self.api.state().now;
        adopt::adopt(&self.host.way, &self.api, &wanted, &ask.told, now, ask.dry, &|_| {}).await
    }

    async fn adopts(&self, ask: Ask) -> Vec<String> {
        lines(&self.try_adopt(ask).await.unwrap())
    }

    async fn releases(&self, pod: &str, force: bool) -> Result<(), String> {
        let target = Target::Holder(crate::ops::world::holder(pod));
        let (store, now) = (self.store(), self.api.state().now);
        let done = leases::release(store, &Scope::default(), &target, None, force, now, false).await;
        done.map(drop).map_err(|error| error.to_string())
    }

    async fn moves(&self, from: &str, to: &str) -> Result<(), String> {
        let (from, to) = (crate::ops::world::holder(from), crate::ops::world::holder(to));
        let (store, now) = (self.store(), self.api.state().now);
        let done = leases::move_leases(store, &Scope::default(), &from, &to, None, now, false).await;
        done.map(drop).map_err(|error| error.to_string())
    }

    async fn audits(&self) -> Vec<String> {
        let cluster = ClusterName::new("prod").unwrap();
        let wanted =
            Wanted { cluster: &cluster, domain: None, namespace: None, network: None, sticky_kinds: &[] };
        let found: Against = adopt::against(&self.host.way, &self.api, &wanted, &|_| {}).await.unwrap();
        let line = |d: &adopt::Difference| format!("{} {} {}", d.address, d.pod, d.trouble.as_str());
        found.differences.iter().map(line).collect()
    }
}

/// `10.0.0.10 shop/a adopted`, and of a conflict its kind.
fn lines(report: &Report) -> Vec<String> {
    let line = |adopted: &adopt::Adopted| {
        let kind = match &adopted.fate {
            adopt::Fate::Conflict(conflict) => format!(" {}", conflict.kind.as_str()),
            adopt::Fate::Adopted
            | adopt::Fate::Candidate
            | adopt::Fate::Leased
            | adopt::Fate::Gone
            | adopt::Fate::Failed(_) => String::new(),
        };
        format!("{} {} {}{kind}", adopted.claim.address, adopted.claim.pod, adopted.fate.as_str())
    };
    report.addresses.iter().map(line).collect()
}

/// Why it is a conflict, and what to do.
#[track_caller]
fn told_why(report: &Report, pod: &str) -> String {
    let found = report.addresses.iter().find(|adopted| adopted.claim.pod == key(pod));
    let adopt::Fate::Conflict(conflict) = &found.unwrap().fate else { panic!("{found:?}") };
    format!("{} | {}", conflict.why, conflict.hint)
}

fn told(text: &str) -> Ask {
    Ask { told: read_told(text).unwrap(), ..Ask::default() }
}

#[tokio::test(start_paused = true)]
async fn b082_a_pod_without_a_lease_gets_it_while_the_store_is_frozen_and_takes_it_over() {
    let scene = Scene::new();
    scene.world.freeze("restored");
    scene.runs_with("shop/web-x7k2p", &["10.0.0.10"]);
    assert_eq!(scene.audits().await, ["10.0.0.10 shop/web-x7k2p pod-without-lease"]);
    let report = scene.try_adopt(Ask::default()).await.unwrap();
    assert_eq!(lines(&report), ["10.0.0.10 shop/web-x7k2p adopted"]);
    assert_eq!((report.pods, report.running, report.frozen.as_deref()), (2, 2, Some("restored")));
    scene.world.audit();
    let shown = scene.world.show();
    assert_eq!(shown, "A 10.0.0.10 shop/web-x7k2p\nL shop/web-x7k2p held 10.0.0.10 unconfirmed");
    assert_eq!(scene.audits().await, [""; 0]);
    // Again is nothing new.
    let before = scene.store().dump();
    assert_eq!(scene.adopts(Ask::default()).await, ["10.0.0.10 shop/web-x7k2p leased"]);
    assert_eq!(scene.store().dump(), before);
    // A person does not take it away by accident.
    let gone = "shop/web-x7k2p was adopted with 10.0.0.10: its pod ran, and no DEL has come";
    assert_eq!(scene.releases("shop/web-x7k2p", false).await, Err(gone.into()));
    let kept = "shop/web-x7k2p was adopted with 10.0.0.10: its pod may run, and is not moved";
    assert_eq!(scene.moves("shop/web-x7k2p", "shop/else").await, Err(kept.into()));
    // Nobody else gets it, and its pod does, by its next ADD.
    let n1 = scene.world.node("n1");
    assert!(n1.refused(&n1.ask("shop/new", "N")).await.contains("frozen"));
    assert_eq!(n1.gets("shop/web-x7k2p", "W2").await, "10.0.0.10");
    scene.world.audit();
    assert!(n1.del("shop/web-x7k2p", "W2").await);
    assert!(!scene.world.show().contains("L shop/web"));
}

#[tokio::test(start_paused = true)]
async fn the_network_status_says_network_and_interface_and_both_families_are_one_lease() {
    let mut both = pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.99", "fd00::/64 fd00::10-fd00::99"]);
    both.networks = vec!["lan".into(), "lan2".into()];
    let scene = Scene::with(&[both]);
    scene.runs_with(
        "shop/db-0",
        &[
            "10.9.9.9",
            "10.9.9.9 cbr0 eth0",
            "10.0.0.10 kube-system/lan net1",
            "fd00::10 kube-system/lan net1",
        ],
    );
    scene.owned_by("shop/db-0", "StatefulSet.apps", "db");
    // Two networks, and nothing that says which.
    scene.runs_with("shop/web", &["10.0.0.11"]);
    let report = scene.try_adopt(Ask::default()).await.unwrap();
    let wanted = [
        "10.0.0.10 shop/db-0 adopted",
        "10.0.0.11 shop/web conflict network-unknown",
        "fd00::10 shop/db-0 adopted",
    ];
    assert_eq!(lines(&report), wanted);
    assert_eq!(
        told_why(&report, "shop/web"),
        "the network is not known: pool lan is for several networks | say which: --network NAME"
    );
    let shown = scene.world.show();
    assert!(shown.contains("L shop/db-0 held 10.0.0.10 fd00::10 sticky unconfirmed"), "{shown}");
    assert!(!shown.contains("shop/web"), "{shown}");
    let ask = Ask { network: Some("lan2"), ..Ask::default() };
    assert_eq!(scene.adopts(ask).await, ["10.0.0.11 shop/web adopted"]);
    scene.world.audit();
    // Its lease says it from now on.
    assert_eq!(scene.audits().await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn another_name_of_the_network_is_asked_for() {
    let scene = Scene::new();
    scene.runs_with("shop/a", &["10.0.0.10 shop/macvlan-conf net1"]);
    let report = scene.try_adopt(Ask::default()).await.unwrap();
    assert_eq!(
        told_why(&report, "shop/a"),
        "the network is not known: the pod says shop/macvlan-conf, pool lan names lan | say which: --network NAME"
    );
    let ask = Ask { network: Some("lan"), ..Ask::default() };
    assert_eq!(scene.adopts(ask).await, ["10.0.0.10 shop/a adopted"]);
    assert!(scene.world.show().contains("A 10.0.0.10 shop/a"));
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_has_is_shown_and_never_overwritten() {
    let mut db = pool("db", &["10.0.1.0/24 10.0.1.10-10.0.1.99"]);
    db.serves = vec!["shop/db".into()];
    let scene = Scene::with(&[pool("lan", &["10.0.0.0/24 10.0.0.10-10.0.0.99"]), db]);
    let other = scene.runs("shop/other-x7k2p", "O", "n1").await;
    let moved = scene.runs("shop/moved", "M", "n1").await;
    let taken = ["10.0.0.90", "10.0.0.91", "10.0.0.92", "10.0.0.93", "10.0.0.94"];
    let domain = scene.world.lease("shop/moved").unwrap().value.addresses[0].domain.clone();
    let now = Timestamp(1_700_000_000_000);
    let _ = scene.world.apply_txn(&leasehold::store::changes::reserve_device(
        &domain,
        ip(taken[0]),
        None,
        "printer",
        now,
    ));
    let holder = crate::ops::world::holder("shop/gone");
    let by = (&holder, &id("shop/gone").cluster);
    let stranger = leasehold::domain::lease::Declined { mac: "02:00:00:00:00:01".into(), at: now };
    let _ =
        scene.world.apply_txn(&leasehold::store::changes::decline(&domain, ip(taken[1]), None, by, stranger));
    scene.store().put(&keys::address(&domain, ip(taken[3])), "?");
    scene.store().put(
        &keys::address(&domain, ip(taken[4])),
        leasehold::store::record::encode_pointer(&id("shop/half")),
    );
    let left = scene.runs("shop/left-x7k2p", "L", "n1").await;
    scene.vanishes("shop/left-x7k2p");
    scene.runs_with("shop/a-heir", &[&left]);
    scene.runs_with("shop/a-thief", &[&other]);
    scene.runs_with("shop/b-device", &[taken[0]]);
    scene.runs_with("shop/c-declined", &[taken[1]]);
    scene.runs_with("shop/d-twin", &[taken[2]]);
    scene.runs_with("shop/e-twin", &[taken[2]]);
    scene.runs_with("shop/f-unreadable", &[taken[3]]);
    scene.runs_with("shop/g-half", &[taken[4]]);
    scene.runs_with("shop/h-web", &["10.0.1.10"]);
    scene.runs_with("shop/i-outside", &["10.0.0.5 lan eth0"]);
    scene.runs_with("shop/moved", &["10.0.0.95"]);
    scene.runs_with("shop/j-two", &["10.0.0.96", "10.0.0.97"]);
    let before = scene.store().dump();
    let ask = || Ask { dry: true, ..told("shop/ghost 10.0.0.98 lan") };
    let report = scene.try_adopt(ask()).await.unwrap();
    assert_eq!(scene.store().dump(), before);
    let told = |pod: &str| told_why(&report, pod);
    let show = |address: &str| format!("`leasehold lease show {address}` tells more");
    let on = "shop/other-x7k2p eth0 on lan has it (bound on node n1)";
    assert_eq!(told("shop/a-thief"), format!("{on} | {}; restart one of the two pods", show(&other)));
    assert_eq!(
        told("shop/a-heir"),
        "shop/left-x7k2p eth0 on lan has it (bound on node n1) | there is no such pod: `leasehold lease release shop/left-x7k2p --force`, then adopt again"
    );
    assert_eq!(
        told("shop/b-device"),
        format!(
            "it is reserved for a device (printer) | {}; restart the pod, or release the device's",
            show(taken[0])
        )
    );
    assert_eq!(
        told("shop/c-declined"),
        "02:00:00:00:00:01 answered on it when it was offered | if that is the pod: `leasehold lease reserve shop/c-declined --address 10.0.0.91`"
    );
    let twin = "restart one of them, then adopt again";
    assert_eq!(told("shop/d-twin"), format!("shop/e-twin runs with it, too | {twin}"));
    assert_eq!(told("shop/e-twin"), format!("shop/d-twin runs with it, too | {twin}"));
    assert!(told("shop/f-unreadable").starts_with("its record cannot be read: "));
    assert_eq!(
        told("shop/g-half"),
        "the address is kept for shop/half eth0 on lan, which has no lease of it | the next full pass of the reaper mends it, `leasehold check --repair` at once; then adopt again"
    );
    assert_eq!(
        told("shop/h-web"),
        "pool db has 10.0.1.10 and does not serve shop/h-web | let a pool that has it serve the pod (`leasehold pool apply`), or restart the pod"
    );
    assert_eq!(
        told("shop/i-outside"),
        "10.0.0.5 is not given out by pool lan | nobody else gets it; the pod gets another one at its next start"
    );
    assert_eq!(
        told("shop/moved"),
        format!(
            "its lease on lan has {moved} | restart the pod, or `leasehold lease release shop/moved` and adopt again"
        )
    );
    assert_eq!(
        told("shop/ghost"),
        "pod shop/ghost does not run, or there is none | take the line out of the file"
    );
    // What is in no doubt is done all the same.
    let done = scene.adopts(Ask { dry: false, ..ask() }).await;
    let adopted: Vec<_> = done.iter().filter(|line| line.ends_with("adopted")).collect();
    assert_eq!(adopted, ["10.0.0.96 shop/j-two adopted"]);
    assert!(done.contains(&"10.0.0.97 shop/j-two conflict other-address".to_owned()), "{done:?}");
    let after = scene.store().dump();
    for (key, value) in &before {
        assert_eq!(after.get(key), Some(value), "{key} is as it was");
    }
    assert_eq!(after.len(), before.len() + 2);
}

#[tokio::test(start_paused = true)]
async fn b013_half_a_pair_is_no_conflict_after_a_pass_of_the_reaper() {
    let scene = Scene::new();
    let mut taken = Vec::new();
    for (pod, container) in [("shop/a-x7k2p", "A"), ("shop/b-x7k2p", "B")] {
        taken.push(scene.runs(pod, container, "n1").await);
        scene.runs_with(pod, &[taken.last().unwrap()]);
    }
    scene.store().delete(&keys::lease(&id("shop/a-x7k2p")));
    scene.store().delete(&keys::address(&DomainName::new("default").unwrap(), ip(&taken[1])));
    let report = scene.try_adopt(Ask { dry: true, ..Ask::default() }).await.unwrap();
    for pod in ["shop/a-x7k2p", "shop/b-x7k2p"] {
        let told = told_why(&report, pod);
        assert!(told.ends_with(" | the next full pass of the reaper mends it, `leasehold check --repair` at once; then adopt again"), "{told}");
    }
    scene.pass_over_a_spoiled_store(Options { mend: true, ..Options::default() }).await.unwrap();
    let leased = |pod: &str, address: &str| format!("{address} {pod} leased");
    let wanted = [leased("shop/a-x7k2p", &taken[0]), leased("shop/b-x7k2p", &taken[1])];
    let mut adopted = scene.adopts(Ask::default()).await;
    adopted.sort_by_key(|line| line.split_once(' ').unwrap().1.to_owned());
    assert_eq!(adopted, wanted);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_pod_of_ours_is_left_alone() {
    let scene = Scene::new();
    scene.runs_with("shop/host", &["10.0.0.10"]);
    scene.runs_with("shop/done", &["10.0.0.11"]);
    scene.runs_with("shop/flannel", &["10.244.0.3", "10.0.0.5"]);
    scene.runs_with("other/pod", &["10.0.0.12"]);
    {
        let mut state = scene.api.state();
        state.pods.get_mut(&key("shop/host")).unwrap().host_network = true;
        state.pods.get_mut(&key("shop/done")).unwrap().phase = Phase::Succeeded;
    }
    let before = scene.store().dump();
    assert_eq!(scene.adopts(Ask { namespace: Some("shop"), ..Ask::default() }).await, [""; 0]);
    let ask = Ask { dry: true, ..Ask::default() };
    assert_eq!(scene.adopts(ask).await, ["10.0.0.12 other/pod to adopt"]);
    assert_eq!(scene.store().dump(), before);
}

#[tokio::test(start_paused = true)]
async fn b084_a_person_tells_what_the_api_cannot() {
    let scene = Scene::new();
    scene.runs_with("shop/db-0", &["10.244.0.3"]);
    let ask = told("shop/db-0 10.0.0.10 lan net1\n");
    assert_eq!(scene.adopts(ask).await, ["10.0.0.10 shop/db-0 adopted"]);
    let lease = scene.store().dump().into_keys().find_map(|key| keys::parse_lease(&key)).unwrap();
    assert_eq!((lease.network.as_str(), lease.ifname.as_str()), ("lan", "net1"));
    scene.world.audit();
}

#[tokio::test(start_paused = true)]
async fn another_cluster_and_an_unknown_one_are_refused_before_anything_is_written() {
    let scene = Scene::new();
    scene.runs_with("shop/a", &["10.0.0.10"]);
    let before = scene.store().dump();
    let error = scene.try_adopt(Ask { cluster: Some("test"), ..Ask::default() }).await.unwrap_err();
    assert_eq!(error.to_string(), "cluster test is not registered (registered: prod)");
    scene.api.state().identity = uid("elsewhere");
    let error = scene.try_adopt(Ask::default()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "another cluster answers: kube-system has UID elsewhere, cluster prod is registered with kube-system"
    );
    assert_eq!(scene.store().dump(), before);
}

#[tokio::test(start_paused = true)]
async fn b137_killed_or_refused_half_way_and_run_again_it_comes_to_the_same_end() {
    let thirty = || {
        let scene = Scene::new();
        for n in 10..40 {
            scene.runs_with(&format!("shop/web-{n}"), &[&format!("10.0.0.{n}")]);
        }
        scene
    };
    let adopted = |scene: &Scene| scene.world.show().lines().filter(|line| line.starts_with("L ")).count();
    let whole = thirty();
    whole.adopts(Ask::default()).await;

    // From the eleventh commit on the store does not take any more.
    let refused = thirty();
    refused.host.way.decide(|call| (call.txn.is_some() && call.of_kind >= 10).then_some(Fault::Refused));
    let first = refused.try_adopt(Ask::default()).await;
    refused.host.way.heal();
    let done = first.map(|report| report.count(|fate| *fate == adopt::Fate::Adopted)).unwrap_or(10);
    assert_eq!((done, adopted(&refused)), (10, 10));

    // Killed while ten commits are under way: before they are sent, or before they are answered.
    let killed = thirty();
    let sides = [Side::Before, Side::After].into_iter().cycle();
    let pause = |(n, side)| killed.host.way.pause(On::Commit(n), side);
    let mut gates: Vec<_> = (20..30).zip(sides).map(pause).collect();
    tokio::select! {
        _ = killed.try_adopt(Ask::default()) => panic!("it was not killed"),
        () = gates[0].reached() => {}
    }
    assert!((1..30).contains(&adopted(&killed)), "{}", adopted(&killed));
    killed.host.way.heal();
    for scene in [refused, killed] {
        scene.world.audit();
        scene.adopts(Ask::default()).await;
        assert_eq!(scene.world.show(), whole.world.show());
    }
}

#[tokio::test(start_paused = true)]
async fn what_changes_between_the_look_and_the_write_is_looked_at_again() {
    let scene = Scene::new();
    scene.runs_with("shop/a-x7k2p", &["10.0.0.10"]);
    scene.runs_with("shop/b-x7k2p", &["10.0.0.11"]);
    scene.runs_with("shop/c-x7k2p", &["10.0.0.12"]);
    let n1 = scene.world.node("n1");
    scene.api.before(move |question, state| {
        let Question::Pod(pod) = question else { return None };
        match pod.name.as_str() {
            // Its own ADD is faster.
            "a-x7k2p" => {
                let mut request = n1.ask("shop/a-x7k2p", "A");
                request.requested = vec![ip("10.0.0.10")];
                futures_now(n1.run(&request)).unwrap();
            }
            "b-x7k2p" => drop(state.pods.remove(pod)),
            _ => return Some(ApiError::Answer { what: "pods".into(), reason: "no".into() }),
        }
        None
    });
    let wanted =
        ["10.0.0.10 shop/a-x7k2p leased", "10.0.0.11 shop/b-x7k2p gone", "10.0.0.12 shop/c-x7k2p failed"];
    assert_eq!(scene.adopts(Ask::default()).await, wanted);
    scene.world.audit();
    assert!(scene.world.show().contains("L shop/a-x7k2p bound 10.0.0.10 A on n1"));
    assert!(!scene.world.show().contains("10.0.0.11"));
}

#[tokio::test(start_paused = true)]
async fn the_reaper_keeps_what_was_adopted_while_its_pod_exists_and_gives_it_back_after() {
    let scene = Scene::new();
    scene.runs_with("shop/web-x7k2p", &["10.0.0.10"]);
    scene.runs_with("shop/db-0", &["10.0.0.11"]);
    scene.owned_by("shop/db-0", "StatefulSet.apps", "db");
    scene.api.state().stateful_set(&Namespace::new("shop").unwrap(), "db", &uid("set"), 1);
    scene.runs_with("shop/job-abcde", &["10.0.0.12"]);
    scene.adopts(Ask::default()).await;
    assert!(scene.gives().await.is_empty());
    scene.wait(3 * 24 * 3_600).await;
    let report = scene.pass().await;
    assert!(given(&report).is_empty());
    assert!(report.judged.iter().all(|judged| !judged.look), "{:?}", report.judged);
    // A list that is empty ends nothing.
    let pods = std::mem::take(&mut scene.api.state().pods);
    assert!(scene.pass().await.braked());
    scene.api.state().pods = pods;
    // Finished: as a bound one.
    scene.api.state().pods.get_mut(&key("shop/job-abcde")).unwrap().phase = Phase::Succeeded;
    scene.vanishes("shop/web-x7k2p");
    scene.vanishes("shop/db-0");
    assert!(scene.gives().await.is_empty());
    scene.wait(119).await;
    assert!(scene.gives().await.is_empty());
    scene.wait(2).await;
    let report = scene.pass().await;
    let mut ended = given(&report);
    ended.sort();
    assert_eq!(ended, ["shop/job-abcde 6", "shop/web-x7k2p 8"]);
    assert_eq!(why(&report, "shop/web-x7k2p").unwrap().1, "adopted, pod absent for 2m1s");
    let left = scene.world.show();
    assert!(left.contains("R 10.0.0.10 by shop/web-x7k2p unconfirmed"), "{left}");
    assert!(left.contains("L shop/db-0 held 10.0.0.11 sticky unconfirmed"), "{left}");
}

/// A pod of a StatefulSet that runs, and whose lease the store believes held: a snapshot of when it was away.
async fn held_and_running() -> (Scene, String) {
    let mut db = pool("db", &["10.0.0.0/24 10.0.0.10-10.0.0.99"]);
    db.serves = vec!["shop/db".into()];
    let scene = Scene::with(&[db]);
    let address = scene.runs_in_set("shop/db-0", "A", "n1", 1).await;
    assert!(scene.world.node("n1").del("shop/db-0", "A").await);
    scene.runs_with("shop/db-0", &[&address]);
    scene.owned_by("shop/db-0", "StatefulSet.apps", "db");
    (scene, address)
}

#[tokio::test(start_paused = true)]
async fn b082_a_held_lease_whose_pod_runs_is_adopted_and_nothing_is_taken_from_it() {
    let (scene, address) = held_and_running().await;
    assert_eq!(scene.audits().await, [format!("{address} shop/db-0 held-of-running-pod")]);
    let before = scene.store().dump();
    let dry = Ask { dry: true, ..Ask::default() };
    assert_eq!(scene.adopts(dry).await, [format!("{address} shop/db-0 to adopt")]);
    assert_eq!(scene.store().dump(), before);
    assert_eq!(scene.adopts(Ask::default()).await, [format!("{address} shop/db-0 adopted")]);
    let held = format!("A {address} shop/db-0\nL shop/db-0 held {address} sticky unconfirmed");
    assert_eq!(scene.world.show(), held);
    assert_eq!(scene.audits().await, [""; 0]);
    let marked = scene.store().dump();
    assert_eq!(scene.adopts(Ask::default()).await, [format!("{address} shop/db-0 leased")]);
    assert_eq!(scene.store().dump(), marked);
    // As any adopted one.
    let kept = format!("shop/db-0 was adopted with {address}: its pod ran, and no DEL has come");
    assert_eq!(scene.releases("shop/db-0", false).await, Err(kept));
    let kept = format!("shop/db-0 was adopted with {address}: its pod may run, and is not moved");
    assert_eq!(scene.moves("shop/db-0", "shop/db-6").await, Err(kept));
    assert!(scene.gives().await.is_empty());
    // It comes back elsewhere: whoever still answers is heard.
    let n2 = scene.world.node("n2");
    assert_eq!(n2.gets("shop/db-0", "B").await, address);
    assert_eq!(n2.wire.asked(), [address.as_str()]);
    scene.world.audit();
}

#[tokio::test(start_paused = true)]
async fn a_forced_release_of_a_held_lease_whose_pod_runs_is_probed() {
    let (scene, address) = held_and_running().await;
    scene.adopts(Ask::default()).await;
    scene.releases("shop/db-0", true).await.unwrap();
    assert_eq!(scene.world.show(), format!("R {address} by shop/db-0 unconfirmed"));
}

#[tokio::test(start_paused = true)]
async fn a_held_lease_is_marked_while_its_pod_is_ending_and_not_when_an_add_was_faster() {
    let (scene, address) = held_and_running().await;
    scene.leaves("shop/db-0");
    // Its DEL has come, as far as the audit can know.
    assert_eq!(scene.audits().await, [""; 0]);
    let n1 = scene.world.node("n1");
    scene.api.before(move |question, _| {
        if matches!(question, Question::Pod(_)) {
            futures_now(n1.add("shop/db-0", "B")).unwrap();
        }
        None
    });
    assert_eq!(scene.adopts(Ask::default()).await, [format!("{address} shop/db-0 leased")]);
    assert!(scene.world.show().contains(&format!("L shop/db-0 bound {address} B on n1")));
    scene.api.before(|_, _| None);
    assert!(scene.world.node("n1").del("shop/db-0", "B").await);
    assert_eq!(scene.adopts(Ask::default()).await, [format!("{address} shop/db-0 adopted")]);
}

#[tokio::test(start_paused = true)]
async fn what_a_person_reserved_stays_so_and_is_probed_if_its_pod_runs() {
    let (scene, address) = held_and_running().await;
    let stored = scene.world.lease("shop/db-0").unwrap();
    let reserved = leasehold::domain::lease::Lease { reserved: true, ..stored.value.clone() };
    let _ = scene.world.apply_txn(&leasehold::store::changes::note(&stored, &reserved));
    scene.adopts(Ask::default()).await;
    let shown = scene.world.show();
    let line = format!("L shop/db-0 reserved {address} sticky reserved unconfirmed");
    assert!(shown.contains(&line), "{shown}");
    // Nor is it released for a mistake.
    let why =
        format!("{address} is reserved for shop/db-0, and unconfirmed: its pod, or another, may run with it");
    assert_eq!(scene.releases("shop/db-0", false).await, Err(why));
}

#[tokio::test(start_paused = true)]
async fn a_rollout_after_a_restore_pulls_no_brake() {
    let mut scene = Scene::new();
    for index in 10..40 {
        scene.runs_with(&format!("shop/web-7d9c4f6b5d-x7k{index}"), &[&format!("10.0.0.{index}")]);
    }
    scene.adopts(Ask::default()).await;
    for index in 10..40 {
        scene.vanishes(&format!("shop/web-7d9c4f6b5d-x7k{index}"));
    }
    scene.pass().await;
    scene.wait(121).await;
    // But for the one of who said a number.
    scene.policy.max_orphans = Some(29);
    let report = scene.pass().await;
    assert_eq!((report.brakes.len(), given(&report).len()), (1, 0), "{:?}", report.brakes);
    scene.policy.max_orphans = None;
    let report = scene.pass().await;
    assert!(!report.braked(), "{:?}", report.brakes);
    assert_eq!(given(&report).len(), 30);
}

#[tokio::test(start_paused = true)]
async fn the_audit_against_pods_says_what_differs_and_not_what_just_happened() {
    let scene = Scene::new();
    let bound = scene.runs("shop/dead-x7k2p", "D", "n1").await;
    scene.vanishes("shop/dead-x7k2p");
    let has = scene.runs("shop/moved-x7k2p", "M", "n1").await;
    scene.runs_with("shop/moved-x7k2p", &["10.7.7.7 lan eth0"]);
    scene.runs_with("shop/lost", &["10.0.0.98"]);
    scene.runs_with("shop/twin-a", &["10.0.0.97"]);
    scene.runs_with("shop/twin-b", &["10.0.0.97"]);
    let mut wanted = vec![
        format!("{bound} shop/dead-x7k2p lease-without-pod"),
        "10.0.0.97 shop/twin-a two-pods".into(),
        "10.0.0.97 shop/twin-b two-pods".into(),
        "10.0.0.98 shop/lost pod-without-lease".into(),
        "10.7.7.7 shop/moved-x7k2p other-address".into(),
    ];
    assert_ne!(has, "10.7.7.7");
    assert_eq!(scene.audits().await, wanted);
    // While the pods are listed the dead one's DEL comes.
    let n1 = scene.world.node("n1");
    scene.api.before(move |question, _| {
        if *question == Question::Pods {
            futures_now(n1.del("shop/dead-x7k2p", "D"));
        }
        None
    });
    wanted.remove(0);
    assert_eq!(scene.audits().await, wanted);
}
