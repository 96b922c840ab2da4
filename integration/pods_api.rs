//! The client of the Kubernetes API on a real one: TLS, accounts, pages, Events, watches.

use std::{collections::BTreeSet, path::Path, sync::Mutex, time::Duration};

use leasehold::{
    domain::{
        kubernetes::{ControllerRef, Finished, Phase, PodKey, Ready, Wants},
        names::{Namespace, NodeName, PodName, Uid},
    },
    pods::{About, Api, ApiError, Choice, Cluster, Event, Hint, Settings, Surroundings},
};
use serde_json::json;
use tokio::{runtime::Runtime, sync::mpsc, time::timeout};

use crate::support::{
    apiserver::Apiserver,
    parts::{Part, require},
    process::eventually,
};

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn nowhere() -> Surroundings {
    Surroundings {
        kubeconfig: None,
        home: None,
        service_host: None,
        service_port: None,
        service_account: "/nowhere".into(),
    }
}

fn of_kubeconfig(path: &Path) -> Api {
    let choice = Choice { kubeconfig: Some(path.to_owned()), context: None };
    Api::new(Settings::find(&choice, &nowhere()).unwrap())
}

fn key(namespace: &str, name: &str) -> PodKey {
    PodKey { namespace: Namespace::new(namespace).unwrap(), name: PodName::new(name).unwrap() }
}

/// An account that may do this to these resources everywhere, as a pod has it.
fn in_cluster(server: &Apiserver, namespace: &str, rules: &str) -> Api {
    server.account(namespace, "reaper");
    let yaml = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: { name: NAMESPACE }
rules: RULES
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: NAMESPACE }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NAMESPACE }
subjects:
- { kind: ServiceAccount, name: reaper, namespace: NAMESPACE }
"#;
    server.apply(&yaml.replace("RULES", rules).replace("NAMESPACE", namespace));
    let address = server.address();
    let (host, port) = address.rsplit_once(':').unwrap();
    let around = Surroundings {
        service_host: Some(host.to_owned()),
        service_port: Some(port.to_owned()),
        service_account: server.in_cluster(namespace, "reaper"),
        ..nowhere()
    };
    Api::new(Settings::find(&Choice::default(), &around).unwrap())
}

#[test]
fn a_list_of_a_real_server_has_all_pages() {
    require!(Part::Apiserver);
    let server = Apiserver::shared();
    let namespace = server.namespace();
    let placed: Vec<_> = (0..1200).map(|n| (format!("web-{n}"), format!("{namespace}-n{}", n % 7))).collect();
    server.pods(&namespace, &placed);
    let told = Mutex::new(Vec::new());
    let api = of_kubeconfig(&server.kubeconfig());
    let listed = runtime().block_on(api.pods(&|count| told.lock().unwrap().push(count))).unwrap();
    let ours: Vec<_> = listed.items.iter().filter(|pod| pod.key.namespace.as_str() == namespace).collect();
    let names: BTreeSet<_> = ours.iter().map(|pod| pod.key.name.as_str().to_owned()).collect();
    assert_eq!(names, placed.iter().map(|(name, _)| name.clone()).collect());
    assert_eq!(ours.len(), 1200);
    assert!(
        ours.iter().all(|pod| pod.phase == Phase::Running && pod.node.is_some() && pod.deleting.is_none())
    );
    assert!(told.lock().unwrap().len() >= 3);
}

/// A list comes in protobuf, one pod in JSON.
#[test]
fn a_list_says_of_each_pod_what_the_pod_says_itself() {
    require!(Part::Apiserver);
    let server = Apiserver::shared();
    let namespace = server.namespace();
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let container =
        |name: &str| json!({ "name": name, "image": "none", "env": [{ "name": "A", "value": "é" }] });
    let owner = |kind: &str, controller: bool| json!({ "apiVersion": "apps.example/v1", "kind": kind, "name": "owner", "uid": kind, "controller": controller });
    let networks = r#"[{"name":"shop/lan","interface":"net1","ips":["10.0.0.7","fd00::7"],"dns":{}}]"#;
    let ended = |name: &str, finished: &str| {
        json!({
            "name": name, "image": "none", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": 0, "finishedAt": finished, "startedAt": "2026-01-01T00:00:00Z" } },
        })
    };
    let [one, two] = ["2026-01-02T00:00:01Z", "2026-01-02T00:00:02Z"];
    let running = json!({ "name": "b", "image": "none", "imageID": "", "ready": true, "restartCount": 0,
        "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } } });
    let cases = [
        ("bare", json!({}), json!({}), json!({})),
        ("placed", json!({}), json!({ "nodeName": "n1.example.net" }), json!({ "phase": "Running" })),
        (
            "owned",
            json!({ "ownerReferences": [owner("Other", false), owner("StatefulSet", true)] }),
            json!({ "nodeName": "n1", "hostNetwork": true }),
            json!({ "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }] }),
        ),
        (
            "noted",
            json!({ "annotations": {
                "kubernetes.io/config.mirror": "a-hash", "k8s.v1.cni.cncf.io/network-status": networks,
                "leasehold.io/pool": "büro", "leasehold.io/ip": "", "other": "x".repeat(200_000),
            } }),
            json!({ "nodeName": "n1" }),
            json!({ "phase": "Pending", "reason": "Waits", "hostIP": "192.0.2.1" }),
        ),
        (
            "ended",
            json!({}),
            json!({ "nodeName": "n1", "initContainers": [container("i")] }),
            json!({
                "phase": "Succeeded", "containerStatuses": [ended("a", two), ended("b", one)],
                "initContainerStatuses": [ended("i", one)],
            }),
        ),
        (
            "half-ended",
            json!({}),
            json!({ "nodeName": "n1" }),
            json!({ "phase": "Failed", "containerStatuses": [ended("a", two), running] }),
        ),
        ("leaving", json!({}), json!({ "nodeName": "n1" }), json!({ "phase": "Running" })),
    ];
    for (name, meta, spec, status) in &cases {
        let mut pod = json!({ "metadata": { "name": name }, "spec": { "containers": [container("a"), container("b")] } });
        for (part, more) in [("metadata", meta), ("spec", spec)] {
            for (field, value) in more.as_object().unwrap() {
                pod[part][field] = value.clone();
            }
        }
        server.create(&pods, &pod);
        server.set_status(&format!("{pods}/{name}"), status);
    }
    server.delete(&format!("{pods}/leaving"), 300);
    let api = of_kubeconfig(&server.kubeconfig());
    runtime().block_on(async {
        let listed = api.pods(&|_| {}).await.unwrap();
        let ours: Vec<_> =
            listed.items.into_iter().filter(|pod| pod.key.namespace.as_str() == namespace).collect();
        assert_eq!(ours.len(), cases.len());
        for pod in ours {
            let live = api.pod(&pod.key).await.unwrap().found.unwrap();
            assert_eq!(pod, live);
            match pod.key.name.as_str() {
                "owned" => assert_eq!((pod.addresses.len(), pod.controller.is_some()), (2, true)),
                "noted" => assert_eq!((pod.addresses.len(), pod.wishes.len()), (2, 2)),
                "ended" => assert!(matches!(pod.finished, Finished::At(_))),
                "half-ended" => assert_eq!(pod.finished, Finished::StillRuns),
                "leaving" => assert!(pod.deleting.is_some()),
                _ => {}
            }
        }
    });
}

#[test]
fn one_object_of_a_real_server_is_there_or_is_not() {
    require!(Part::Apiserver);
    let server = Apiserver::shared();
    let namespace = server.namespace();
    let node = format!("{namespace}-node");
    server.node(&node);
    let made = server.pod(&namespace, "db-0", &node);
    server.stateful_set(&namespace, "db", 3);
    let api = of_kubeconfig(&server.kubeconfig());
    runtime().block_on(async {
        let system = server.get("/api/v1/namespaces/kube-system").unwrap();
        assert_eq!(api.identity().await.unwrap().as_str(), system["metadata"]["uid"].as_str().unwrap());

        let pod = api.pod(&key(&namespace, "db-0")).await.unwrap().found.unwrap();
        assert_eq!(pod.uid.as_str(), made["metadata"]["uid"].as_str().unwrap());
        assert_eq!(api.pod(&key(&namespace, "db-1")).await.unwrap().found, None);
        assert_eq!(api.pod(&key("no-such-namespace", "db-1")).await.unwrap().found, None);
        server.delete(&format!("/api/v1/namespaces/{namespace}/pods/db-0"), 30);
        let live = api.pod(&key(&namespace, "db-0")).await.unwrap();
        let left = live.found.unwrap().deleting.unwrap().since(live.at);
        assert!((20_000..=31_000).contains(&left), "{left} ms");

        let name = NodeName::new(&node).unwrap();
        assert_eq!(api.node(&name).await.unwrap().found.unwrap().ready, Ready::True);
        server.node_ready(&node, "Unknown", "2026-01-01T00:00:00Z");
        let nodes = api.nodes().await.unwrap();
        let found = nodes.items.into_iter().find(|one| one.name == name).unwrap();
        assert!(matches!(found.ready, Ready::Unknown { .. }));
        assert_eq!(api.node(&NodeName::new("no-such-node").unwrap()).await.unwrap().found, None);

        let space = Namespace::new(&namespace).unwrap();
        let of = |kind: &str, name: &str| ControllerRef {
            kind: kind.into(),
            version: "v1".into(),
            name: name.into(),
        };
        let found = api.controller(&space, &of("StatefulSet.apps", "db")).await.unwrap().found.unwrap();
        assert_eq!(found.wants, Wants::Ordinals { start: 0, replicas: 3, reserved: Vec::new() });
        for kind in ["StatefulSet.apps", "ReplicaSet.apps", "Job.batch", "Node", "ConfigMap"] {
            let live = api.controller(&space, &of(kind, "none")).await;
            assert_eq!(live.unwrap_or_else(|error| panic!("{kind}: {error}")).found, None, "{kind}");
        }
        let found = api.controller(&space, &of("Node", &node)).await.unwrap().found.unwrap();
        assert_eq!(found.wants, Wants::All);
        for (kind, words) in [
            ("StatefulSet.apps.kruise.io", "API group apps.kruise.io: status 404"),
            ("Foo.apps", "Foo.apps/none: the server does not serve this kind"),
            ("Foo", "Foo/none: the server does not serve this kind"),
        ] {
            let error = api.controller(&space, &of(kind, "none")).await.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    });
}

#[test]
fn an_account_may_do_what_its_role_says() {
    require!(Part::Apiserver);
    let server = Apiserver::shared();
    let namespace = server.namespace();
    let rules = r#"[{ apiGroups: [""], resources: [pods], verbs: [list] }, { apiGroups: [""], resources: [events], verbs: [create, patch] }]"#;
    let api = in_cluster(server, &namespace, rules);
    server.pod(&namespace, "db-0", "none");
    runtime().block_on(async {
        let mut listed = api.pods(&|_| {}).await;
        // The server hears of a role a moment after it has taken it.
        for _ in 0..50 {
            if listed.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            listed = api.pods(&|_| {}).await;
        }
        let pods = listed.unwrap().items;
        let pod = pods.iter().find(|pod| pod.key == key(&namespace, "db-0")).unwrap();
        let error = api.pod(&pod.key).await.unwrap_err();
        assert!(matches!(&error, ApiError::Forbidden { verb: "get", .. }), "{error}");
        let error = api.nodes().await.unwrap_err();
        assert!(matches!(&error, ApiError::Forbidden { verb: "list", .. }), "{error}");

        let about = About::Pod(pod.key.clone(), pod.uid.clone());
        let event = Event { about, warning: true, reason: "PoolFull", message: "pool db is full".into() };
        for _ in 0..3 {
            api.record(&event).await.unwrap();
        }
        let space = About::Namespace(Namespace::new(&namespace).unwrap());
        api.record(&Event { about: space, warning: false, reason: "Reaped", message: "2 leases".into() })
            .await
            .unwrap();
        let events = server.get(&format!("/api/v1/namespaces/{namespace}/events")).unwrap();
        let mut counts: Vec<_> = events["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| (e["reason"].as_str().unwrap(), e["count"].as_u64().unwrap()))
            .collect();
        counts.sort_unstable();
        assert_eq!(counts, [("PoolFull", 3), ("Reaped", 1)]);
        let described = server.kubectl(&["--namespace", &namespace, "describe", "pod", "db-0"]);
        assert!(described.stdout().contains("pool db is full"), "{}", described.stdout());
    });
}

#[test]
fn a_token_that_is_none_and_a_ca_that_did_not_sign_are_told_apart() {
    require!(Part::Apiserver);
    let server = Apiserver::shared();
    let wrong = of_kubeconfig(&server.kubeconfig_of("nonsense"));
    let error = runtime().block_on(wrong.identity()).unwrap_err();
    assert!(matches!(error, ApiError::Unauthorized { .. }), "{error}");

    let namespace = server.namespace();
    server.account(&namespace, "reaper");
    let folder = server.in_cluster(&namespace, "reaper");
    std::fs::copy(&crate::support::etcd::certificates().client.0, folder.join("ca.crt")).unwrap();
    let address = server.address();
    let (host, port) = address.rsplit_once(':').unwrap();
    let around = Surroundings {
        service_host: Some(host.to_owned()),
        service_port: Some(port.to_owned()),
        service_account: folder,
        ..nowhere()
    };
    let api = Api::new(Settings::find(&Choice::default(), &around).unwrap());
    let error = runtime().block_on(api.identity()).unwrap_err().to_string();
    assert!(error.contains("did not sign the certificate that it shows"), "{error}");
}

#[test]
fn what_changes_is_hinted() {
    require!(Part::Apiserver);
    let server = Apiserver::shared();
    let namespace = server.namespace();
    let node = format!("{namespace}-node");
    server.node(&node);
    server.pod(&namespace, "db-0", &node);
    server.stateful_set(&namespace, "db", 3);
    let api = of_kubeconfig(&server.kubeconfig());
    runtime().block_on(async {
        let (hints, mut taken) = mpsc::channel(1000);
        let following = api.follow(&hints, &|error| eprintln!("{error}"));
        let testing = async {
            let mut wait = async |wanted: Hint, change: &dyn Fn()| {
                // Once more until the watch has begun.
                for _ in 0..40 {
                    change();
                    let hinted = async {
                        while let Some(hint) = taken.recv().await {
                            if hint == wanted {
                                return true;
                            }
                        }
                        false
                    };
                    if timeout(Duration::from_millis(500), hinted).await == Ok(true) {
                        return;
                    }
                }
                panic!("no {wanted:?}");
            };
            let state = Mutex::new(0);
            wait(Hint::Node, &|| {
                *state.lock().unwrap() += 1;
                let odd = *state.lock().unwrap() % 2 == 1;
                server.node_ready(&node, if odd { "Unknown" } else { "True" }, "2026-01-01T00:00:00Z");
            })
            .await;
            wait(Hint::Controller, &|| {
                *state.lock().unwrap() += 1;
                let spec = json!({ "spec": { "replicas": *state.lock().unwrap() } });
                server
                    .call(
                        "PATCH",
                        &format!("/apis/apps/v1/namespaces/{namespace}/statefulsets/db"),
                        Some(&spec),
                    )
                    .success();
            })
            .await;
            wait(Hint::Pod, &|| {
                server.delete(
                    &format!("/api/v1/namespaces/{namespace}/pods/db-0"),
                    1000 - *state.lock().unwrap(),
                );
                *state.lock().unwrap() += 1;
            })
            .await;
        };
        tokio::select! {
            () = following => panic!("it ended"),
            () = testing => {}
        }
    });
}

#[test]
fn a_server_that_was_gone_is_followed_again() {
    require!(Part::Apiserver);
    let mut server = Apiserver::start();
    let api = of_kubeconfig(&server.kubeconfig());
    let uid = runtime();
    let before: Uid = uid.block_on(api.identity()).unwrap();
    uid.block_on(async {
        let (hints, mut taken) = mpsc::channel(1000);
        let problems = Mutex::new(Vec::new());
        let problem = |error: &ApiError| problems.lock().unwrap().push(error.to_string());
        let following = api.follow(&hints, &problem);
        let testing = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            server.kill();
            tokio::time::sleep(Duration::from_secs(1)).await;
            server.restart();
            // For what was not seen.
            timeout(Duration::from_secs(30), taken.recv()).await.unwrap().unwrap();
            assert_eq!(api.identity().await.unwrap(), before, "the connection that was kept is replaced");
        };
        tokio::select! {
            () = following => panic!("it ended"),
            () = testing => {}
        }
        assert_eq!(problems.lock().unwrap().len(), 1, "{problems:?}");
    });
}

#[test]
fn kinds_of_others_are_found_by_discovery() {
    require!(Part::Apiserver);
    // Its own: the shared one has no such group, and a test that says so.
    let server = Apiserver::start();
    let namespace = server.namespace();
    let crd = |group: &str, version: &str, kind: &str, plural: &str| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}"),
                "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/1" } },
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": { "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": kind.to_lowercase() },
                "versions": [{ "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                } } }],
            },
        })
    };
    let kinds = [
        ("apps.kruise.io", "v1beta1", "StatefulSet", "statefulsets"),
        ("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances"),
    ];
    for (group, version, kind, plural) in kinds {
        server.create(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &crd(group, version, kind, plural),
        );
        let collection = format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}");
        let object = json!({
            "apiVersion": format!("{group}/{version}"), "kind": kind, "metadata": { "name": "db" },
            "spec": { "replicas": 3, "reserveOrdinals": [1, "4-5"] },
        });
        eventually("the kind to be served", || {
            (server.call("POST", &collection, Some(&object)).status == 201).then_some(())
        });
    }
    let api = of_kubeconfig(&server.kubeconfig());
    runtime().block_on(async {
        let space = Namespace::new(&namespace).unwrap();
        // A lease remembers no version.
        let of = |kind: &str, name: &str| ControllerRef {
            kind: kind.into(),
            version: String::new(),
            name: name.into(),
        };
        let set = api.controller(&space, &of("StatefulSet.apps.kruise.io", "db")).await.unwrap();
        assert_eq!(
            set.found.unwrap().wants,
            Wants::Ordinals { start: 0, replicas: 3, reserved: vec![1, 4, 5] }
        );
        let machine = api.controller(&space, &of("VirtualMachineInstance.kubevirt.io", "db")).await.unwrap();
        assert_eq!(machine.found.unwrap().wants, Wants::All);
        for kind in ["StatefulSet.apps.kruise.io", "VirtualMachineInstance.kubevirt.io"] {
            assert_eq!(api.controller(&space, &of(kind, "none")).await.unwrap().found, None);
        }
    });
}
