//! `config-examples/kubernetes/`: what each file must say for its job, and what a real API server says to it.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::Command,
};

use serde_json::{Value, json};

use crate::{
    documents::{blocks, example, root},
    reap::{
        controller::TO_WATCH,
        real::{EVENTS, LATE, RIGHTS},
    },
    support::{
        apiserver::Apiserver,
        call::Cli,
        etcd::{Etcd, certificates},
        folder::Folder,
        host::HostFile,
        parts::{Part, Version, kubernetes, leasehold, require},
        port::Port,
        process::{Running, eventually, run},
    },
};

fn documents(name: &str) -> Vec<Value> {
    serde_saphyr::from_multiple::<Value>(&example(&format!("kubernetes/{name}"))).unwrap()
}

fn one(name: &str, kind: &str) -> Value {
    let mut found = documents(name).into_iter().filter(|document| document["kind"] == kind);
    let document = found.next().unwrap_or_else(|| panic!("{name} has no {kind}"));
    assert!(found.next().is_none(), "{name} has two of {kind}");
    document
}

/// The pod of a workload, of whatever kind.
fn pod_of(workload: &Value) -> &Value {
    let spec = &workload["spec"];
    let template = if spec.get("jobTemplate").is_some() { &spec["jobTemplate"]["spec"] } else { spec };
    &template["template"]["spec"]
}

/// B060, and what every workload of ours keeps to.
#[test]
fn b060_every_workload_runs_when_the_network_does_not() {
    for (name, kind) in [
        ("installer.yaml", "DaemonSet"),
        ("reaper-cronjob.yaml", "CronJob"),
        ("reaper-deployment.yaml", "Deployment"),
    ] {
        let workload = one(name, kind);
        let pod = pod_of(&workload);
        assert_eq!((&pod["hostNetwork"], &pod["dnsPolicy"]), (&json!(true), &json!("Default")), "{name}");
        let container = &pod["containers"][0];
        assert_eq!(pod["containers"].as_array().unwrap().len(), 1);
        let security = &container["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"], false, "{name}");
        assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
        assert_eq!(security["capabilities"], json!({ "drop": ["ALL"] }), "{name}");
        assert_eq!(security.get("privileged"), None, "{name}");
        assert_eq!(security["seccompProfile"], json!({ "type": "RuntimeDefault" }), "{name}");
        assert!(container["resources"]["limits"]["memory"].is_string(), "{name}");
        // An image from scratch has no shell and no PATH.
        assert_eq!(container["command"], json!(["/leasehold"]), "{name}");
        assert_eq!(workload["metadata"]["namespace"], "leasehold");
    }
}

/// The program knows every argument: `--help` after an unknown one is an error.
#[test]
fn the_workloads_say_what_the_program_understands() {
    for (name, kind) in [
        ("installer.yaml", "DaemonSet"),
        ("reaper-cronjob.yaml", "CronJob"),
        ("reaper-deployment.yaml", "Deployment"),
    ] {
        let workload = one(name, kind);
        let container = &pod_of(&workload)["containers"][0];
        let probe = container["readinessProbe"]["exec"]["command"].as_array().map(|words| &words[1..]);
        for words in [container["args"].as_array().unwrap().as_slice()].into_iter().chain(probe) {
            let words = words.iter().map(|word| word.as_str().unwrap().replace("$(CLUSTER)", "prod-a"));
            let finished = run(Command::new(leasehold()).env_clear().args(words).arg("--help"), b"");
            assert_eq!(finished.code(), Some(0), "{name}: {}", finished.stderr());
        }
    }
}

/// The reaper of a manifest, as a kubelet starts it, but for what is mounted and the port; it may ask the API as we do.
fn started(
    manifest: &str,
    kind: &str,
    store: &Etcd,
    secret: &[(&str, &str)],
    api: &Path,
    folder: &Folder,
) -> Command {
    let workload = serde_saphyr::from_multiple::<Value>(manifest).unwrap();
    let workload = workload.into_iter().find(|document| document["kind"] == kind).unwrap();
    let container = &pod_of(&workload)["containers"][0];
    let mut command = Command::new(leasehold());
    command.env_clear().env("KUBECONFIG", api);
    for (name, text) in secret {
        fs::write(folder.path().join(name), text).unwrap();
    }
    for entry in container["env"].as_array().unwrap() {
        let from = &entry["valueFrom"];
        let value = match (entry["value"].as_str(), from["configMapKeyRef"]["key"].as_str()) {
            (Some(value), _) => value.replace("/etc/leasehold-secret", folder.path().to_str().unwrap()),
            (None, Some("cluster")) => "prod-a".to_owned(),
            (None, Some("endpoints")) => store.endpoints().join(","),
            (None, _) => {
                let key = from["secretKeyRef"]["key"].as_str().unwrap();
                secret
                    .iter()
                    .find(|(name, _)| *name == key)
                    .unwrap_or_else(|| panic!("no {key}"))
                    .1
                    .to_owned()
            }
        };
        command.env(entry["name"].as_str().unwrap(), value);
    }
    let args = container["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
    command.args(args.map(|word| word.replace("$(CLUSTER)", "prod-a")));
    command
}

#[test]
fn the_reapers_make_passes_with_what_their_manifests_give_them() {
    require!(Part::Apiserver, Part::Etcd(Version::V36));
    let api = Apiserver::shared().kubeconfig();
    let system = Apiserver::shared().get("/api/v1/namespaces/kube-system").unwrap();
    let register = format!("cluster add prod-a --uid {}", system["metadata"]["uid"].as_str().unwrap());
    let files = certificates();
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    let (ca, cert, key) = (text(&files.ca), text(&files.client.0), text(&files.client.1));
    let by_certificate = [("ca.crt", ca.as_str()), ("tls.crt", &cert), ("tls.key", &key)];
    let cronjob = example("kubernetes/reaper-cronjob.yaml");
    let folder = Folder::new();

    let etcd = Etcd::with(Version::V36).tls().start();
    Cli::new(&HostFile::on(&etcd)).line(&register).run().success();
    let finished = run(&mut started(&cronjob, "CronJob", &etcd, &by_certificate, &api, &folder), b"");
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr());
    assert!(finished.stderr().contains("0 given back"), "{}", finished.stderr());

    let deployment = example("kubernetes/reaper-deployment.yaml");
    let port = Port::claim();
    assert!(deployment.contains("--listen=:9402"));
    let here = deployment.replace("--listen=:9402", &format!("--listen=127.0.0.1:{}", port.number()));
    let watch = Running::start(&mut started(&here, "Deployment", &etcd, &by_certificate, &api, &folder), b"");
    eventually("the first pass", || {
        let mut stream = TcpStream::connect(("127.0.0.1", port.number())).ok()?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200 ").then_some(())
    });
    watch.signal("TERM");
    assert_eq!(watch.wait().code(), Some(0));

    // The comment in them, where the etcd wants a password.
    let etcd = Etcd::with(Version::V36).auth().start();
    Cli::new(&HostFile::on(&etcd)).line(&register).run().success();
    etcd.ctl(&["user", "add", "reaper:sesame"]).success();
    etcd.ctl(&["user", "grant-role", "reaper", "root"]).success();
    let by_password = [("username", "reaper"), ("password", "sesame")];
    for (text, kind) in [(&cronjob, "CronJob"), (&deployment, "Deployment")] {
        let lines = text.lines().filter(|line| {
            !["CACERT,", "CERT,", "KEY,"].iter().any(|name| line.contains(&format!("name: ETCDCTL_{name}")))
        });
        let text: String =
            lines.map(|line| line.replacen("# - {name: ETCDCTL_", "- {name: ETCDCTL_", 1) + "\n").collect();
        let text = text.replace("--watch, \"--listen=:9402\", ", "");
        let finished = run(&mut started(&text, kind, &etcd, &by_password, &api, &folder), b"");
        assert_eq!(finished.code(), Some(0), "{kind}: {}", finished.stderr());
    }
}

#[test]
fn the_installer_reaches_every_node_and_no_api() {
    let set = one("installer.yaml", "DaemonSet");
    let pod = pod_of(&set);
    assert_eq!(pod["tolerations"], json!([{ "operator": "Exists" }]));
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(one("installer.yaml", "ServiceAccount")["automountServiceAccountToken"], false);
    assert_eq!(set["spec"]["updateStrategy"]["type"], "RollingUpdate");
    let container = &pod["containers"][0];
    let probe = container["readinessProbe"]["exec"]["command"].as_array().unwrap();
    assert_eq!(probe[..3], ["/leasehold", "install", "--check"].map(|word| json!(word)));
    assert!(probe.contains(&json!("--expiry-margin=7d")));
    // It mounts the two folders that it writes, and no more of the host.
    let volumes = pod["volumes"].as_array().unwrap().iter();
    let host: BTreeSet<_> = volumes.filter_map(|volume| volume["hostPath"]["path"].as_str()).collect();
    assert_eq!(host, BTreeSet::from(["/opt/cni/bin", "/etc/cni/net.d"]));
    for path in host {
        let mounted = container["volumeMounts"].as_array().unwrap().iter();
        assert!(mounted.map(|mount| &mount["mountPath"]).any(|at| *at == format!("/host{path}")), "{path}");
    }
    let named = |name: &str| container["env"].as_array().unwrap().iter().find(|entry| entry["name"] == name);
    assert_eq!(named("NODE_NAME").unwrap()["valueFrom"]["fieldRef"]["fieldPath"], "spec.nodeName");
    assert_eq!(named("LEASEHOLD_HOST_ROOT").unwrap()["value"], "/host");
}

#[test]
fn b060_the_cronjob_outlives_the_crash_that_it_is_for() {
    let job = one("reaper-cronjob.yaml", "CronJob");
    let spec = &job["spec"];
    assert_eq!((&spec["schedule"], &spec["concurrencyPolicy"]), (&json!("* * * * *"), &json!("Replace")));
    assert_eq!(spec["jobTemplate"]["spec"]["backoffLimit"], 0);
    assert!(spec["jobTemplate"]["spec"]["activeDeadlineSeconds"].as_u64().unwrap() <= 300);
    assert!(spec["successfulJobsHistoryLimit"].as_u64().unwrap() <= 3);
    let pod = pod_of(&job);
    assert_eq!(pod["restartPolicy"], "Never");
    assert_eq!(pod["containers"][0]["args"][0], "reap");
    let deployment = one("reaper-deployment.yaml", "Deployment");
    for pod in [pod, pod_of(&deployment)] {
        for key in ["not-ready", "unreachable"] {
            let key = format!("node.kubernetes.io/{key}");
            let toleration =
                json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0 });
            assert!(pod["tolerations"].as_array().unwrap().contains(&toleration), "{key}");
        }
        assert_eq!(pod["serviceAccountName"], "leasehold-reaper");
        assert_eq!(pod["containers"][0]["securityContext"]["runAsNonRoot"], true);
    }
    let container = &pod_of(&deployment)["containers"][0];
    for word in ["reap", "--watch", "--listen=:9402"] {
        assert!(container["args"].as_array().unwrap().contains(&json!(word)), "{word}");
    }
    assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/healthz");
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");
}

#[test]
fn the_reaper_may_do_what_it_does_and_nothing_else() {
    let role = one("rbac.yaml", "ClusterRole");
    let mut may = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for resource in rule["resources"].as_array().unwrap() {
            for verb in rule["verbs"].as_array().unwrap() {
                let group = rule["apiGroups"][0].as_str().unwrap();
                let names = rule.get("resourceNames").map_or(String::new(), Value::to_string);
                may.insert(format!(
                    "{} {group}/{}{names}",
                    verb.as_str().unwrap(),
                    resource.as_str().unwrap()
                ));
            }
        }
    }
    let mut wanted: BTreeSet<String> = BTreeSet::new();
    for resource in ["/pods", "/nodes", "apps/statefulsets"] {
        wanted.extend(["get", "list", "watch"].map(|verb| format!("{verb} {resource}")));
    }
    wanted.insert(r#"get /namespaces["kube-system"]"#.into());
    wanted.extend(["create", "patch"].map(|verb| format!("{verb} /events")));
    assert_eq!(may, wanted);
    // Each of them is shown to be needed on a real API.
    let named = |name: &str| if name.is_empty() { String::new() } else { format!("[\"{name}\"]") };
    let of_passes = RIGHTS.iter().chain(&EVENTS).chain([&LATE]);
    let mut shown: BTreeSet<String> = of_passes
        .map(|(group, resource, verb, name)| format!("{verb} {group}/{resource}{}", named(name)))
        .collect();
    shown.extend(TO_WATCH.iter().map(|(group, resource, verb)| format!("{verb} {group}/{resource}")));
    assert_eq!(may, shown);
}

/// The metrics that there are; alerts and dashboard name no others.
pub(crate) const METRICS: [&str; 16] = [
    "leasehold_pool_addresses",
    "leasehold_reap_brakes",
    "leasehold_reap_candidates",
    "leasehold_reap_given_back_total",
    "leasehold_reap_half_pairs",
    "leasehold_reap_kept",
    "leasehold_reap_last_success_timestamp_seconds",
    "leasehold_reap_pass_duration_seconds",
    "leasehold_reap_passes_total",
    "leasehold_reap_reported",
    "leasehold_reap_troubles",
    "leasehold_store_alarms",
    "leasehold_store_quota_bytes",
    "leasehold_store_request_duration_seconds",
    "leasehold_store_request_duration_seconds_bucket",
    "leasehold_store_size_bytes",
];

fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("leasehold_")).map(Into::into).collect()
}

#[test]
fn alerts_and_dashboard_name_metrics_that_there_are() {
    let known: BTreeSet<String> = METRICS.map(Into::into).into();
    let rule = one("prometheus-rule.yaml", "PrometheusRule");
    let mut alerts = BTreeSet::new();
    for group in rule["spec"]["groups"].as_array().unwrap() {
        for alert in group["rules"].as_array().unwrap() {
            let expression = alert["expr"].as_str().unwrap();
            let named = metrics_in(expression);
            assert!(!named.is_empty() && named.is_subset(&known), "{expression}");
            assert!(alert["annotations"]["summary"].is_string() && alert["labels"]["severity"].is_string());
            alerts.insert(alert["alert"].as_str().unwrap().to_owned());
        }
    }
    let wanted = [
        "PoolNearlyFull",
        "PoolFull",
        "NoReap",
        "ReapBrake",
        "ReapTroubles",
        "Doubtful",
        "HalfPairs",
        "StoreNearQuota",
        "StoreAlarm",
    ];
    assert_eq!(alerts, wanted.map(|name| format!("Leasehold{name}")).into());
    let text = example("kubernetes/grafana-dashboard.json");
    let board: Value = serde_json::from_str(&text).unwrap();
    let mut shown = BTreeSet::new();
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            shown.extend(metrics_in(target["expr"].as_str().unwrap()));
        }
    }
    let mut wanted = known;
    wanted.remove("leasehold_store_request_duration_seconds"); // by its buckets
    assert_eq!(shown, wanted);
}

#[test]
fn all_that_is_there_can_be_applied_at_once() {
    let customization = one("kustomization.yaml", "Kustomization");
    let text = example("kubernetes/kustomization.yaml");
    for file in fs::read_dir(root().join("config-examples/kubernetes")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let is_named = text.contains(&format!("- {name}\n"));
        assert_eq!(is_named, name.ends_with(".yaml") && name != "kustomization.yaml", "{name}");
    }
    let order: Vec<_> =
        customization["resources"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(order[0], "namespace.yaml");
    assert!(order.contains(&"installer.yaml") && order.contains(&"rbac.yaml"));
}

/// The kind of the Prometheus operator: its fields of rules, with what it asks of them.
fn prometheus_rules() -> Value {
    let duration = json!({ "type": "string", "pattern": "^(0|([0-9]+(y|w|d|h|ms|m|s))+)$" });
    let (text, texts) = (
        json!({ "type": "string" }),
        json!({ "type": "object", "additionalProperties": { "type": "string" } }),
    );
    let rule = json!({
        "type": "object",
        "required": ["expr"],
        "properties": {
            "alert": text, "record": text, "labels": texts, "annotations": texts,
            "for": duration, "keep_firing_for": duration,
            "expr": { "x-kubernetes-int-or-string": true },
        },
    });
    let group = json!({
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": { "type": "string", "minLength": 1 }, "labels": texts,
            "interval": duration, "query_offset": duration, "limit": { "type": "integer" },
            "partial_response_strategy": { "type": "string" },
            "rules": { "type": "array", "items": rule },
        },
    });
    let groups = json!({
        "type": "array", "items": group,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
    });
    let schema = json!({
        "type": "object",
        "required": ["spec"],
        "properties": { "spec": { "type": "object", "properties": { "groups": groups } } },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "prometheusrules.monitoring.coreos.com" },
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {
                "kind": "PrometheusRule", "listKind": "PrometheusRuleList",
                "plural": "prometheusrules", "singular": "prometheusrule",
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
            }],
        },
    })
}

#[test]
fn a_real_api_takes_the_alerts_and_nothing_that_is_no_alert() {
    require!(Part::Apiserver);
    let server = Apiserver::shared();
    let namespace = server.namespace();
    let kinds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    server.create(kinds, &prometheus_rules());
    let path = format!("/apis/monitoring.coreos.com/v1/namespaces/{namespace}/prometheusrules");
    eventually("the kind to be served", || (server.call("GET", &path, None).status == 200).then_some(()));
    let text = example("kubernetes/prometheus-rule.yaml")
        .replace("namespace: leasehold\n", &format!("namespace: {namespace}\n"));
    let apply = |text: &str| server.kubectl_with(&["apply", "--validate=strict", "--filename=-"], text);
    apply(&text).success();
    let found = server.get(&format!("{path}/leasehold")).unwrap();
    assert_eq!(found["spec"], one("prometheus-rule.yaml", "PrometheusRule")["spec"]);
    for (right, wrong, said) in [
        ("for: 15m", "fro: 15m", "unknown field"),
        ("for: 15m", "for: soon", "should match"),
        ("expr: max(", "expression: max(", "expr"),
        ("alert: LeaseholdDoubtful", "alert: [LeaseholdDoubtful]", "alert"),
        ("summary: The etcd is", "summary: 1 #", "summary"),
        ("groups:", "rules:", "unknown field"),
    ] {
        assert!(text.contains(right), "{right}");
        let refused = apply(&text.replacen(right, wrong, 1));
        assert_eq!(refused.code(), Some(1), "{wrong}: {}", refused.stdout());
        assert!(refused.stderr().contains(said), "{wrong}: {}", refused.stderr());
    }
}

/// A pod, or a Deployment of it, that asks for a pool.
fn asking(kind: &str, name: &str, namespace: &str, pool: Option<&str>) -> Value {
    let mut metadata = json!({ "labels": { "app": name } });
    if let Some(pool) = pool {
        metadata["annotations"] = json!({ "leasehold.io/pool": pool });
    }
    let mut spec = json!({ "containers": [{ "name": "main", "image": "none" }] });
    if kind == "Job" {
        spec["restartPolicy"] = json!("Never");
        return json!({
            "apiVersion": "batch/v1", "kind": kind, "metadata": { "name": name, "namespace": namespace },
            "spec": { "template": { "metadata": metadata, "spec": spec } },
        });
    }
    if kind == "Pod" {
        metadata["name"] = json!(name);
        metadata["namespace"] = json!(namespace);
        return json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec });
    }
    json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": metadata, "spec": spec },
        },
    })
}

#[test]
fn a_real_api_takes_the_manifests_and_refuses_what_the_policy_forbids() {
    require!(Part::Apiserver, Part::Etcd(Version::V36));
    let etcd = Etcd::start(Version::V36);
    let host = HostFile::on(&etcd);
    let server = Apiserver::start();

    // The README's own commands.
    let programs = Folder::new();
    for (name, path) in [("leasehold", leasehold()), ("kubectl", kubernetes("kubectl"))] {
        std::os::unix::fs::symlink(path, programs.path().join(name)).unwrap();
    }
    let path = std::env::join_paths([programs.path(), "/usr/bin".as_ref(), "/bin".as_ref()]).unwrap();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let mut commands = 0;
    for block in blocks(&readme).into_iter().filter(|block| block.how == "cluster") {
        for line in block.text.lines() {
            let mut command = Command::new("/bin/bash");
            command.env_clear().current_dir(root()).args(["-euc", line.strip_prefix("$ ").unwrap()]);
            command.env("PATH", &path).env("HOME", programs.path()).env("KUBECONFIG", server.kubeconfig());
            let finished = run(command.env("LEASEHOLD_CONFIG", host.path()), b"");
            assert_eq!(finished.code(), Some(0), "README:{}: {line}\n{}", block.line, finished.stderr());
            commands += 1;
        }
    }
    assert!(commands > 1);
    let clusters = Cli::new(&host).line("cluster list --no-headers").run();
    assert!(clusters.success().starts_with("prod-a "), "{}", clusters.stdout());
    for path in [
        "/apis/apps/v1/namespaces/leasehold/daemonsets/leasehold-installer",
        "/apis/batch/v1/namespaces/leasehold/cronjobs/leasehold-reaper",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/leasehold-reaper",
        "/api/v1/namespaces/leasehold/secrets/leasehold-node",
    ] {
        assert!(server.get(path).is_some(), "{path}");
    }
    server.apply(&example("kubernetes/reaper-deployment.yaml"));

    // The policy.
    server.apply(&example("kubernetes/pool-policy.yaml"));
    for (name, allowed) in [("shop", Some("shop-db, lan")), ("tools", Some("*")), ("other", None)] {
        let mut namespace = json!({ "metadata": { "name": name } });
        if let Some(allowed) = allowed {
            namespace["metadata"]["annotations"] = json!({ "leasehold.io/allowed-pools": allowed });
        }
        server.create("/api/v1/namespaces", &namespace);
        server.account(name, "default");
    }
    let ask = |kind: &str, name: &str, namespace: &str, pool: Option<&str>| {
        let collection = match kind {
            "Pod" => format!("/api/v1/namespaces/{namespace}/pods"),
            "Job" => format!("/apis/batch/v1/namespaces/{namespace}/jobs"),
            _ => format!("/apis/apps/v1/namespaces/{namespace}/{}s", kind.to_lowercase()),
        };
        server.call("POST", &collection, Some(&asking(kind, name, namespace, pool)))
    };
    // A new policy is heard of within moments.
    let refused = eventually("the policy to be heard of", || {
        let answer = ask("Pod", "first", "other", Some("lan"));
        if answer.status == 201 {
            server.delete("/api/v1/namespaces/other/pods/first", 0);
            return None;
        }
        Some(answer)
    });
    assert_eq!(refused.status, 403);
    let said = format!("{refused:?}");
    assert!(said.contains("lan may not be asked for in namespace other"), "{said}");
    for (kind, name, namespace, pool, status) in [
        ("Pod", "none", "other", None, 201),
        ("Pod", "empty", "other", Some(""), 201),
        ("Pod", "allowed", "shop", Some("lan"), 201),
        ("Pod", "two", "shop", Some("shop-db , lan"), 201),
        ("Pod", "part", "shop", Some("lan,secret"), 403),
        ("Pod", "like", "shop", Some("la"), 403),
        ("Pod", "any", "tools", Some("secret"), 201),
        ("Deployment", "web", "other", Some("lan"), 403),
        ("Deployment", "web", "other", None, 201),
        ("Deployment", "web", "shop", Some("lan"), 201),
        ("StatefulSet", "db", "shop", Some("secret"), 403),
        ("DaemonSet", "log", "other", Some("lan"), 403),
        ("DaemonSet", "log", "shop", Some("lan"), 201),
        ("ReplicaSet", "web", "other", Some("lan"), 403),
        ("Job", "once", "other", Some("lan"), 403),
        ("Job", "once", "shop", Some("lan"), 201),
    ] {
        let answer = ask(kind, name, namespace, pool);
        assert_eq!(answer.status, status, "{kind} {name} in {namespace}: {answer:?}");
    }
    // Nobody gets round it afterwards.
    let late = json!({ "metadata": { "annotations": { "leasehold.io/pool": "secret" } } });
    let changed = server.call("PATCH", "/api/v1/namespaces/other/pods/none", Some(&late));
    assert_eq!(changed.status, 403, "{changed:?}");
    // What was let in stays, whatever its namespace may have now.
    let narrower = json!({ "metadata": { "annotations": { "leasehold.io/allowed-pools": null } } });
    server.call("PATCH", "/api/v1/namespaces/shop", Some(&narrower)).success();
    let label = json!({ "metadata": { "labels": { "seen": "yes" } } });
    eventually("the narrower namespace to be heard of", || {
        (ask("Pod", "late", "shop", Some("lan")).status == 403).then_some(()).or_else(|| {
            server.delete("/api/v1/namespaces/shop/pods/late", 0);
            None
        })
    });
    server.call("PATCH", "/api/v1/namespaces/shop/pods/allowed", Some(&label)).success();
    // What is going may lose its finalizers, whatever it asks for meanwhile.
    let pod = "/api/v1/namespaces/shop/pods/two";
    let held = json!({ "metadata": { "finalizers": ["example.net/hold"] } });
    server.call("PATCH", pod, Some(&held)).success();
    server.delete(pod, 0);
    let going =
        json!({ "metadata": { "finalizers": null, "annotations": { "leasehold.io/pool": "secret" } } });
    server.call("PATCH", pod, Some(&going)).success();
}
