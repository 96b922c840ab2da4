use std::{path::PathBuf, sync::Mutex};

use super::{
    About, Api, ApiError, Choice, Cluster, Event, Hint, Settings, Surroundings,
    testing::{Scenario, Server},
};
use crate::domain::{
    kubernetes::{ControllerRef, Phase, PodKey, Ready, Wants},
    lease::Timestamp,
    names::{Namespace, NodeName, PodName, Uid},
};

fn key(name: &str) -> PodKey {
    PodKey { namespace: Namespace::new("shop").unwrap(), name: PodName::new(name).unwrap() }
}

fn at(text: &str) -> Timestamp {
    Timestamp(text.parse::<jiff::Timestamp>().unwrap().as_millisecond())
}

fn no_progress(_: usize) {}

#[tokio::test]
async fn a_list_is_all_of_its_pages() {
    let server = Server::start(Scenario::Honest, 1234).await;
    let told = Mutex::new(Vec::new());
    let listed = server.api().pods(&|count| told.lock().unwrap().push(count)).await.unwrap();
    assert_eq!(listed.items.len(), 1234);
    assert_eq!(listed.at, at("2026-01-02T03:04:05Z"));
    assert_eq!(*told.lock().unwrap(), [500, 1000, 1234]);
    let seen = server.seen();
    let paths: Vec<_> = seen.iter().map(|seen| seen.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/api/v1/pods?limit=500",
            "/api/v1/pods?limit=500&continue=500",
            "/api/v1/pods?limit=500&continue=1000"
        ]
    );
    assert!(seen.iter().all(|seen| seen.connection == 1 && seen.agent.as_deref() == Some("leasehold/0.1.0")));
    let accept = Some("application/vnd.kubernetes.protobuf, application/json");
    assert!(seen.iter().all(|seen| seen.accept.as_deref() == accept));
    let pod = &listed.items[7];
    assert_eq!(pod.key, key("db-7"));
    assert_eq!(pod.phase, Phase::Running);
    assert_eq!(pod.controller.as_ref().unwrap().to_string(), "StatefulSet.apps/db");
    assert_eq!(pod.wishes, [("leasehold.io/ip".to_owned(), "10.0.0.1".to_owned())]);
    assert_eq!(pod.addresses[0].address.to_string(), "10.1.0.1");
}

#[tokio::test]
async fn a_server_that_speaks_no_protobuf_is_read_in_json() {
    let server = Server::start(Scenario::Honest, 700).await;
    let api = server.api();
    let in_protobuf = api.pods(&no_progress).await.unwrap();
    server.speak_json_alone();
    assert_eq!(api.pods(&no_progress).await.unwrap(), in_protobuf);
}

#[track_caller]
fn says(error: &ApiError, words: &str) {
    assert!(error.to_string().contains(words), "{error}");
}

async fn list_fails(scenario: Scenario, json_alone: bool, words: &str) {
    let server = Server::start(scenario.clone(), 700).await;
    if json_alone {
        server.speak_json_alone();
    }
    let error = server.api().pods(&no_progress).await.expect_err(&format!("{scenario:?}"));
    assert!(error.to_string().contains(words), "{scenario:?}: {error}");
}

#[tokio::test]
async fn a_list_that_is_not_whole_is_an_error() {
    for (scenario, words) in [
        (Scenario::Unauthorized, "does not accept the credentials: Unauthorized"),
        (Scenario::Forbidden, "may not list pods: pods is forbidden"),
        (Scenario::Expired(3), "pods: the list expired while it was read (410)"),
        (Scenario::FailsMidway, "pods: etcdserver: request timed out (500)"),
        (Scenario::HalfPage, "its answer broke off"),
        (Scenario::NoJson, "pods: the answer is not as expected: expected value at line 1 column 1"),
        (Scenario::Hollow, "the answer does not say that it is a PodList"),
        (Scenario::Hangs, "no answer after 1000 ms"),
        (Scenario::Drips, "no answer after 1000 ms"),
        (Scenario::Bare404, "status 404, and not in Kubernetes' words"),
        (Scenario::NoResource404, "could not find the requested resource (404)"),
        (Scenario::WrongKind, "the answer is a \"NodeList\", not a PodList"),
        (Scenario::MovingRevision, "its pages are of two revisions, 7 and 8"),
        (Scenario::Twice, "the pages of the list hold the same object twice"),
        (Scenario::Fewer, "501 came, and 700 were announced"),
        (Scenario::Nameless, "it has no metadata.name"),
        (Scenario::Endless, "the list does not end (1000 came)"),
        (Scenario::NoDate, "the answer has no date"),
        (Scenario::Date("yesterday"), "the answer has no date"),
        (Scenario::Busy(9, 3600), "status 429"),
        (Scenario::Busy(9, 0), "status 429"),
        (Scenario::Redirects, "status 302"),
    ] {
        list_fails(scenario.clone(), false, words).await;
        list_fails(scenario, true, words).await;
    }
    let words = "(Content-Type text/html; does something stand before the server?)";
    list_fails(Scenario::NoJson, false, words).await;
    list_fails(Scenario::HalfPageOfUnknownLength, false, "not as expected: failed to decode").await;
    list_fails(Scenario::HalfPageOfUnknownLength, true, "not as expected: EOF while parsing").await;
}

#[tokio::test]
async fn what_passes_is_waited_for() {
    for scenario in [Scenario::Expired(2), Scenario::Busy(2, 0), Scenario::Resets] {
        let server = Server::start(scenario.clone(), 700).await;
        let listed = server.api().pods(&no_progress).await;
        assert_eq!(listed.unwrap_or_else(|error| panic!("{scenario:?}: {error}")).items.len(), 700);
    }
}

#[tokio::test]
async fn a_list_may_be_empty() {
    for scenario in [Scenario::Empty, Scenario::Null] {
        let server = Server::start(scenario, 0).await;
        assert_eq!(server.api().pods(&no_progress).await.unwrap().items, []);
    }
}

#[tokio::test]
async fn a_pod_is_absent_when_the_server_says_so_of_it_alone() {
    let server = Server::start(Scenario::Honest, 3).await;
    let api = server.api();
    let there = api.pod(&key("db-2")).await.unwrap();
    assert_eq!(there.found.unwrap().key, key("db-2"));
    let gone = api.pod(&key("db-3")).await.unwrap();
    assert_eq!((gone.found, gone.at), (None, at("2026-01-02T03:04:05Z")));
    for (scenario, words) in [
        (Scenario::Unauthorized, "does not accept the credentials"),
        (Scenario::ForbiddenIn("shop"), "may not get pods shop/db-2"),
        (Scenario::Bare404, "status 404, and not in Kubernetes' words"),
        (Scenario::Other404, "pods \"other\" not found (404)"),
        (Scenario::OtherKind404, "secrets \"db-2\" not found (404)"),
        (Scenario::NoResource404, "could not find the requested resource (404)"),
        (Scenario::WrongKind, "the answer is a \"PodList\", not a Pod"),
        (Scenario::WrongObject, "the answer is about something else"),
        (Scenario::NoJson, "not as expected"),
        (Scenario::Hollow, "does not say that it is a Pod"),
        (Scenario::NoDate, "the answer has no date"),
        (Scenario::Hangs, "no answer after 1000 ms"),
    ] {
        server.play(scenario.clone());
        let error = api.pod(&key("db-2")).await.expect_err(&format!("{scenario:?}"));
        assert!(error.to_string().contains(words), "{scenario:?}: {error}");
    }
    server.play(Scenario::Date("Fri, 02 Jan 2026 03:04:09 GMT"));
    assert_eq!(api.pod(&key("db-2")).await.unwrap().at, at("2026-01-02T03:04:09Z"));
}

#[tokio::test]
async fn nodes_and_the_cluster_are_read() {
    let server = Server::start(Scenario::Honest, 0).await;
    let api = server.api();
    assert_eq!(api.identity().await.unwrap(), Uid::new("cluster-1").unwrap());
    let nodes = api.nodes().await.unwrap();
    assert!(nodes.items[0].out_of_service);
    assert_eq!(nodes.items[0].ready, Ready::Unknown { since: at("2026-01-01T00:00:00Z") });
    assert_eq!(api.node(&NodeName::new("n1").unwrap()).await.unwrap().found, nodes.items.into_iter().next());
    assert_eq!(api.node(&NodeName::new("n2").unwrap()).await.unwrap().found, None);
}

async fn wants(api: &Api, kind: &str, name: &str) -> Result<Option<Wants>, ApiError> {
    let controller = ControllerRef { kind: kind.into(), version: "v1".into(), name: name.into() };
    let live = api.controller(&Namespace::new("shop").unwrap(), &controller).await?;
    Ok(live.found.map(|found| found.wants))
}

#[tokio::test]
async fn a_controller_says_which_pods_it_wants() {
    let server = Server::start(Scenario::Honest, 0).await;
    let api = server.api();
    let ordinals =
        |start, reserved: &[u64]| Wants::Ordinals { start, replicas: 3, reserved: reserved.to_vec() };
    assert_eq!(wants(&api, "StatefulSet.apps", "db").await, Ok(Some(ordinals(2, &[]))));
    assert_eq!(wants(&api, "StatefulSet.apps", "web").await, Ok(None));
    assert_eq!(wants(&api, "StatefulSet.apps.kruise.io", "db").await, Ok(Some(ordinals(0, &[1, 2, 5]))));
    assert_eq!(wants(&api, "StatefulSet.apps.kruise.io", "web").await, Ok(None));
    assert_eq!(wants(&api, "CloneSet.apps.kruise.io", "web").await, Ok(Some(Wants::All)));
    says(&wants(&api, "Foo.apps.kruise.io", "web").await.unwrap_err(), "the server does not serve this kind");
    says(&wants(&api, "Foo.foo.io", "web").await.unwrap_err(), "API group foo.io: status 404");
    says(&wants(&api, "StatefulSet.apps", "../x").await.unwrap_err(), "this is no kind and name");
    let asked = server.seen().iter().filter(|seen| seen.path == "/apis/apps.kruise.io").count();
    assert_eq!(asked, 3, "discovery is remembered");
}

#[tokio::test]
async fn an_event_that_repeats_is_counted() {
    let server = Server::start(Scenario::Honest, 0).await;
    let api = server.api();
    let about = About::Pod(key("db-0"), Uid::new("uid-0").unwrap());
    let event = Event { about, warning: true, reason: "PoolFull", message: "é".repeat(800) };
    for _ in 0..3 {
        api.record(&event).await.unwrap();
    }
    let events = server.events();
    assert_eq!(events.len(), 1);
    assert_eq!((events[0]["count"].as_u64(), events[0]["message"].as_str().unwrap().len()), (Some(3), 1024));
    // Another process: it knows nothing of the count.
    let other = server.api();
    other.record(&event).await.unwrap();
    other.record(&event).await.unwrap();
    assert_eq!(server.events()[0]["count"], 5);
    server.forget_events();
    other.record(&event).await.unwrap();
    assert_eq!(server.events()[0]["count"], 1);
    let other_reason = Event { reason: "Released", ..event };
    other.record(&other_reason).await.unwrap();
    assert_eq!(server.events().len(), 2);
    assert!(server.seen().iter().all(|seen| seen.method != "GET"), "the role need not read events");
}

#[tokio::test]
async fn a_token_that_was_renewed_is_read_again() {
    let server = Server::start(Scenario::Token("one"), 1).await;
    let file = std::env::temp_dir().join(format!("leasehold-token-{}", std::process::id()));
    std::fs::write(&file, "one\n").unwrap();
    let mut settings = server.api().client.settings().clone();
    settings.auth = super::settings::Auth::TokenFile(file.clone());
    let api = Api::new(settings);
    api.pod(&key("db-0")).await.unwrap();
    std::fs::write(&file, "two\n").unwrap();
    server.play(Scenario::Token("two"));
    api.pod(&key("db-0")).await.unwrap();
    server.play(Scenario::Token("three"));
    let error = api.pod(&key("db-0")).await.unwrap_err();
    assert!(matches!(error, ApiError::Unauthorized { .. }), "{error}");
    std::fs::remove_file(file).unwrap();
    assert!(!format!("{api:?}").contains("two"));
}

#[tokio::test]
async fn nobody_there_is_not_reached() {
    let server = Server::start(Scenario::Honest, 0).await;
    let api = server.api();
    drop(server);
    tokio::task::yield_now().await;
    says(&api.identity().await.unwrap_err(), "not reached: connection refused");
}

#[tokio::test]
async fn a_watch_goes_on_where_it_ended_and_begins_anew_when_it_broke() {
    let scripts = &[
        "{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"Pod\",\"metadata\":{\"resourceVersion\":\"9\"}}}\n\
         {\"type\":\"DELETED\",\"object\":{\"metadata\":{\"resourceVersion\":\"11\"}}}\n",
        "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\"}}\n",
        "<html>\n",
    ];
    let server = Server::start(Scenario::Watches(scripts), 0).await;
    let api = server.api();
    let (hints, mut taken) = tokio::sync::mpsc::channel(8);
    let problems = Mutex::new(Vec::new());
    let problem = |error: &ApiError| problems.lock().unwrap().push(error.to_string());
    let three = async {
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(taken.recv().await.unwrap());
        }
        taken.close();
        all
    };
    let ((), all) = tokio::join!(api.follow(&hints, &problem), three);
    // The deletion, and one after each break.
    assert_eq!(all, [Hint::Pod; 3]);
    assert_eq!(problems.lock().unwrap().len(), 1, "{problems:?}");
    let seen = server.seen();
    let from = |seen: &super::testing::Seen| {
        let watch = seen.path.starts_with("/api/v1/pods?watch=1");
        watch.then(|| seen.path.rsplit_once('=').unwrap().1.to_owned())
    };
    assert_eq!(seen.iter().filter_map(from).take(3).collect::<Vec<_>>(), ["7", "11", "7"]);
}

fn around() -> Surroundings {
    Surroundings {
        kubeconfig: None,
        home: None,
        service_host: None,
        service_port: None,
        service_account: PathBuf::from("/nowhere"),
    }
}

#[test]
fn without_anything_it_says_what_to_do() {
    let error = Settings::find(&Choice::default(), &around()).unwrap_err();
    says(&error, "no Kubernetes API is configured: use --kubeconfig");
    let inside = Surroundings { service_host: Some("fd00::1".into()), ..around() };
    says(&Settings::find(&Choice::default(), &inside).unwrap_err(), "/nowhere/token: no such file");
}

fn config(cluster: &str, user: &str) -> Result<Settings, ApiError> {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
    );
    Settings::of_texts(&[(PathBuf::from("/etc/k/config"), text)], None)
}

const GOOD: &str = "server: 'https://[fd00::1]:6443/k8s/c-1/', certificate-authority: ca.crt";

#[test]
fn a_kubeconfig_is_read() {
    let settings = config(GOOD, "token: 'secret-1'").unwrap();
    assert_eq!(settings.to_string(), "https://[fd00::1]:6443/k8s/c-1 (/etc/k/config, context a)");
    let shown = format!("{settings:?}");
    assert!(shown.contains("/etc/k/ca.crt") && !shown.contains("secret-1"), "{shown}");
    let shown = format!("{:?}", config(GOOD, "tokenFile: ../t").unwrap());
    assert!(shown.contains("/etc/k/../t"), "{shown}");
    config(GOOD, "client-certificate: a, client-key-data: YWJj").unwrap();
    config("server: 'http://localhost:8001'", "").unwrap();
    config(
        GOOD,
        "exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, args: [x], env: null, interactiveMode: Never}",
    )
    .unwrap();
}

#[test]
fn a_fault_in_a_kubeconfig_names_file_field_and_way_out() {
    for (cluster, user, words) in [
        (
            "server: 'https://x', insecure-skip-tls-verify: true",
            "",
            "/etc/k/config, cluster \"c\", insecure-skip-tls-verify: whoever answers",
        ),
        (
            "server: 'https://x'",
            "",
            "/etc/k/config, cluster \"c\": certificate-authority is missing: name the file",
        ),
        (
            "server: 'https://x', certificate-authority-data: '%'",
            "",
            "certificate-authority-data: is not base64",
        ),
        ("server: 'http://x'", "", "is http:// to another host"),
        ("server: 'http://127.0.0.1:1'", "token: t", "credentials are not sent over http://"),
        ("server: 'https://u:p@x'", "", "there is a user name in the URL"),
        ("server: 'x:1'", "", "is no URL such as"),
        ("", "", "is no URL such as"),
        (
            "server: 'https://x', certificate-authority: a, proxy-url: 'http://p'",
            "",
            "proxy-url: proxies are not supported",
        ),
        (GOOD, "username: u, password: p", "username: Kubernetes has no passwords any more"),
        (GOOD, "auth-provider: {name: gcp}", "auth-provider: was removed"),
        (GOOD, "as: admin", "as: impersonation is not supported"),
        (GOOD, "client-certificate: a", "there is a client-certificate, and no client-key"),
        (GOOD, "client-key: a", "there is a client-key, and no client-certificate"),
        (
            GOOD,
            "exec: {apiVersion: v1, command: a}",
            "/etc/k/config, user \"u\", exec, apiVersion: \"v1\" is not",
        ),
        (GOOD, "exec: {apiVersion: client.authentication.k8s.io/v1}", "exec, command: is missing"),
        (
            GOOD,
            "exec: {apiVersion: client.authentication.k8s.io/v1, command: a, interactiveMode: Always}",
            "nobody sits here",
        ),
    ] {
        let error = config(cluster, user).expect_err(words);
        says(&error, words);
    }
    let of = |text: &str, context| {
        Settings::of_texts(&[(PathBuf::from("/k"), text.to_owned())], context).unwrap_err()
    };
    says(&of("", None), "/k: no current-context is set: use --context, one of none");
    says(&of("contexts: [{name: b, context: {cluster: c}}]", Some("a")), "/k: no context \"a\"; there is b");
    says(
        &of("contexts: [{name: b, context: {cluster: c}}]", Some("b")),
        "/k: no cluster \"c\", which context \"b\" names",
    );
    let broken = of("contexts: 1\nusers: [{name: u, user: {token: secret-1}}]", None);
    says(&broken, "/k: this is no kubeconfig");
    let unread = of("a: 1\ntoken: {secret-1: [", None);
    says(&unread, ": this is no YAML");
    assert!(![broken, unread].iter().any(|error| error.to_string().contains("secret-1")));
}

#[test]
fn of_several_kubeconfigs_the_first_wins() {
    let files = [
        (PathBuf::from("/a/1"), "contexts: [{name: a, context: {cluster: c, user: u}}]".to_owned()),
        (PathBuf::from("/b/2"), format!("current-context: a\nclusters: [{{name: c, cluster: {{{GOOD}}}}}]")),
        (
            PathBuf::from("/c/3"),
            "users: [{name: u, user: {tokenFile: t}}]\nclusters: [{name: c, cluster: {}}]".to_owned(),
        ),
    ];
    let shown = format!("{:?}", Settings::of_texts(&files, None).unwrap());
    assert!(shown.contains("/b/ca.crt") && shown.contains("/c/t"), "{shown}");
}

#[tokio::test]
async fn a_program_is_asked_for_a_token() {
    let server = Server::start(Scenario::Token("printed"), 1).await;
    let exec = |script: &str| {
        let place = "k, user \"u\", exec".to_owned();
        let mut settings = server.api().client.settings().clone();
        settings.auth = super::settings::Auth::Exec(Box::new(super::settings::Exec {
            place,
            version: "client.authentication.k8s.io/v1".into(),
            command: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            environment: vec![("VALUE".into(), "printed".into())],
            cluster: None,
            hint: None,
        }));
        Api::new(settings)
    };
    let print = r#"echo "{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":$S}""#;
    let with = |status: &str| exec(&format!("S='{status}'; {print}"));
    let token = format!("S=\"{{\\\"token\\\":\\\"$VALUE\\\"}}\"; {print}");
    exec(&token).pod(&key("db-0")).await.unwrap();
    says(
        &with("{\"token\":\"other\"}").pod(&key("db-0")).await.unwrap_err(),
        "does not accept the credentials",
    );
    says(&with("{}").pod(&key("db-0")).await.unwrap_err(), "printed neither a token nor a certificate");
    says(
        &exec("exit 3").pod(&key("db-0")).await.unwrap_err(),
        "k, user \"u\", exec: /bin/sh: failed (exit status: 3)",
    );
    let error = exec("echo '{\"token\": \"secret-1\"'").pod(&key("db-0")).await.unwrap_err();
    says(&error, "did not print an ExecCredential");
    assert!(!error.to_string().contains("secret-1"));
}
