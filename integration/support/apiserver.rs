//! A real Kubernetes API: kube-apiserver on an etcd of its own. Nothing else of Kubernetes runs beside one on this machine's
//! loopback: no controller, no scheduler, no kubelet. What a test makes stays as the test made it, and what it deletes gently
//! stays deleting.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    process::Command,
    sync::{
        Condvar, LazyLock, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    etcd::{Etcd, Place, certificates},
    folder::Folder,
    parts::{Version, kubernetes},
    port::Port,
    process::{Finished, Process, run, within},
    rest::{Answer, Identity, Rest},
};

/// A server that answers when it is here and is gone when it is dropped.
///
/// Paths are those of the API, such as `/api/v1/namespaces/shop/pods/db-0`; documents are JSON.
#[derive(Debug)]
pub(crate) struct Apiserver {
    process: Option<Process>,
    /// What lies below: to freeze it, to set it back.
    pub(crate) etcd: Etcd,
    rest: Rest,
    site: Site,
    folder: Folder,
    _turn: Option<Turn>,
}

/// Where it is, and what it is started with.
#[derive(Debug)]
struct Site {
    /// The command line that its own is added to.
    enter: Vec<String>,
    /// `address:port`
    address: String,
    arguments: Vec<(&'static str, String)>,
    _port: Option<Port>,
}

impl Site {
    fn here() -> Self {
        let port = Port::claim();
        let arguments = vec![
            ("bind-address", "127.0.0.1".into()),
            ("advertise-address", "127.0.0.1".into()),
            ("secure-port", port.number().to_string()),
            ("tls-cert-file", certificates().server.0.display().to_string()),
            ("tls-private-key-file", certificates().server.1.display().to_string()),
        ];
        Self {
            enter: Vec::new(),
            address: format!("127.0.0.1:{}", port.number()),
            arguments,
            _port: Some(port),
        }
    }

    /// On port 443 of every address there.
    fn at(place: &Place, certificate: &(PathBuf, PathBuf)) -> Self {
        let admin = &certificates().admin;
        let arguments = vec![
            ("bind-address", "0.0.0.0".into()),
            ("advertise-address", place.clients.to_string()),
            ("secure-port", "443".into()),
            ("tls-cert-file", certificate.0.display().to_string()),
            ("tls-private-key-file", certificate.1.display().to_string()),
            ("kubelet-client-certificate", admin.0.display().to_string()),
            ("kubelet-client-key", admin.1.display().to_string()),
            ("kubelet-preferred-address-types", "InternalIP".into()),
        ];
        Self { enter: place.enter.clone(), address: format!("{}:443", place.clients), arguments, _port: None }
    }
}

/// A start takes seconds, on a busy machine many.
const PATIENCE: Duration = Duration::from_secs(120);

/// Connections that make many objects.
const AT_ONCE: usize = 4;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

impl Apiserver {
    /// The one that all tests share, in namespaces of their own; nodes need names of their own. It cannot be killed or
    /// frozen, and ends with the test process.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: LazyLock<Apiserver> =
            LazyLock::new(|| Apiserver::launch(Site::here(), Etcd::start(Version::V36), None));
        &SHARED
    }

    /// One for this test alone. There is one of those at a time, the others wait: one test may not have two.
    pub(crate) fn start() -> Self {
        let turn = Some(Turn::take());
        Self::launch(Site::here(), Etcd::start(Version::V36), turn)
    }

    /// One for a whole cluster, on port 443 of a place of its own; its etcd is on the loopback there. Whoever asks it must
    /// be where its clients are.
    pub(crate) fn at(place: &Place, certificate: &(PathBuf, PathBuf)) -> Self {
        let loopback = Place { clients: LOOPBACK, peers: LOOPBACK, ..place.clone() };
        let etcd = Etcd::with(Version::V36).at(vec![loopback]).start();
        Self::launch(Site::at(place, certificate), etcd, None)
    }

    fn launch(site: Site, etcd: Etcd, turn: Option<Turn>) -> Self {
        let folder = Folder::new();
        let files = certificates();
        let admin = Identity::Certificate(&files.admin.0, &files.admin.1);
        let rest = Rest::new(&site.address, &files.ca, admin);
        let mut server = Self { etcd, rest, process: None, site, folder, _turn: turn };
        let mut openssl = Command::new("openssl");
        openssl.args(["ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out"]);
        run(openssl.arg(server.accounts_key()), b"").success();
        server.kubeconfig_with("admin", &files.admin);
        server.spawn();
        server
    }

    /// `address:port`, for a proxy.
    pub(crate) fn address(&self) -> String {
        self.site.address.clone()
    }

    /// What signs the tokens of accounts.
    pub(crate) fn accounts_key(&self) -> PathBuf {
        self.folder.path().join("accounts.key")
    }

    /// The process ID of one that runs.
    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().pid()
    }

    /// Kills it (SIGKILL): connections to it are refused. What it stored stays.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Starts a killed or stopped one on the same port, and waits until it answers.
    pub(crate) fn restart(&mut self) {
        assert!(self.process.is_none(), "still running");
        self.spawn();
    }

    /// Kills it and starts it on an etcd that has forgotten all revisions but the last: whoever asks for what came since
    /// an earlier one is refused (410).
    pub(crate) fn restart_compacted(&mut self) {
        self.kill();
        let revision = self.etcd.revision().to_string();
        self.etcd.ctl(&["compact", &revision]).success();
        self.restart();
    }

    /// Asks it to end (SIGTERM), and waits until it has.
    pub(crate) fn stop(&mut self) {
        let process = self.process.take().unwrap();
        process.signal("TERM");
        process.wait();
    }

    /// Stops it where it stands (SIGSTOP): connections stay open and nothing answers.
    pub(crate) fn freeze(&mut self) {
        self.process.as_ref().unwrap().signal("STOP");
    }

    pub(crate) fn thaw(&mut self) {
        self.process.as_ref().unwrap().signal("CONT");
    }

    /// Asks as the administrator. For answers that may be refusals, and for paths and methods without a helper.
    #[track_caller]
    pub(crate) fn call(&self, method: &str, path: &str, document: Option<&Value>) -> Answer {
        self.rest.call(method, path, document).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// What is there, if it is.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        let answer = self.call("GET", path, None);
        (answer.status != 404).then(|| answer.success())
    }

    /// Makes one object of a collection such as `/api/v1/nodes`.
    #[track_caller]
    pub(crate) fn create(&self, collection: &str, document: &Value) -> Value {
        self.call("POST", collection, Some(document)).success()
    }

    /// Changes some of an object's status; its lists of conditions are merged by type.
    #[track_caller]
    pub(crate) fn set_status(&self, path: &str, status: &Value) -> Value {
        self.call("PATCH", &format!("{path}/status"), Some(&json!({ "status": status }))).success()
    }

    /// Deletes, with so many seconds of grace.
    ///
    /// A pod that has a node and has not ended stays, for ever, since no kubelet says that it is gone: with a
    /// `deletionTimestamp` at the end of the grace. Zero seconds take it away at once, as do all of any other pod; only a
    /// finalizer holds those.
    #[track_caller]
    pub(crate) fn delete(&self, path: &str, grace: u32) {
        let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace });
        self.call("DELETE", path, Some(&options)).success();
    }

    /// A namespace that no other test has, with the account that its pods have by default.
    pub(crate) fn namespace(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.create("/api/v1/namespaces", &named(&name));
        self.account(&name, "default");
        name
    }

    /// A node that is ready.
    pub(crate) fn node(&self, name: &str) -> Value {
        self.create("/api/v1/nodes", &named(name));
        self.node_ready(name, "True", "2020-01-01T00:00:00Z")
    }

    /// A node's condition Ready: `True`, `False` or `Unknown`, since a time in RFC 3339.
    pub(crate) fn node_ready(&self, name: &str, status: &str, since: &str) -> Value {
        let ready = json!({ "type": "Ready", "status": status, "lastTransitionTime": since });
        self.set_status(&format!("/api/v1/nodes/{name}"), &json!({ "conditions": [ready] }))
    }

    /// A pod that runs on a node (which may be one that is not there).
    pub(crate) fn pod(&self, namespace: &str, name: &str, node: &str) -> Value {
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        self.create(&pods, &pod_on(name, node));
        self.set_status(&format!("{pods}/{name}"), &json!({ "phase": "Running" }))
    }

    /// The same for many, as they are named and placed: thousands in seconds.
    pub(crate) fn pods(&self, namespace: &str, placed: &[(String, String)]) {
        let files = certificates();
        thread::scope(|scope| {
            for part in placed.chunks(placed.len().div_ceil(AT_ONCE).max(1)) {
                scope.spawn(move || {
                    let admin = Identity::Certificate(&files.admin.0, &files.admin.1);
                    let rest = Rest::new(&self.address(), &files.ca, admin);
                    let pods = format!("/api/v1/namespaces/{namespace}/pods");
                    let status = json!({ "status": { "phase": "Running" } });
                    for (name, node) in part {
                        rest.call("POST", &pods, Some(&pod_on(name, node))).unwrap().success();
                        let path = format!("{pods}/{name}/status");
                        rest.call("PATCH", &path, Some(&status)).unwrap().success();
                    }
                });
            }
        });
    }

    /// A StatefulSet. Nobody makes its pods.
    pub(crate) fn stateful_set(&self, namespace: &str, name: &str, replicas: u32) -> Value {
        let labels = json!({ "app": name });
        let mut document = named(name);
        document["spec"] = json!({
            "replicas": replicas,
            "serviceName": name,
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": containers() },
        });
        self.create(&format!("/apis/apps/v1/namespaces/{namespace}/statefulsets"), &document)
    }

    /// An account that pods and we can act as. It may do nothing, until a binding that is [applied](Self::apply) says so.
    pub(crate) fn account(&self, namespace: &str, name: &str) {
        self.create(&format!("/api/v1/namespaces/{namespace}/serviceaccounts"), &named(name));
    }

    /// A token of an account, good for an hour: the least that the API gives is ten minutes.
    pub(crate) fn token(&self, namespace: &str, account: &str) -> String {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({ "spec": { "expirationSeconds": 3600 } });
        self.create(&path, &request)["status"]["token"].as_str().unwrap().into()
    }

    /// Asks as somebody else.
    pub(crate) fn as_bearer(&self, token: &str) -> Rest {
        Rest::new(&self.address(), &certificates().ca, Identity::Token(token))
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("admin.kubeconfig")
    }

    /// The kubeconfig of whose token it is.
    pub(crate) fn kubeconfig_of(&self, token: &str) -> PathBuf {
        self.write_kubeconfig(&self.fresh("bearer"), &json!({ "token": token }))
    }

    /// What a pod of this account has below `/var/run/secrets/kubernetes.io/serviceaccount`: `token`, `ca.crt`,
    /// `namespace`. The rest of it is in the environment: `KUBERNETES_SERVICE_HOST` and `_PORT`.
    pub(crate) fn in_cluster(&self, namespace: &str, account: &str) -> PathBuf {
        let folder = self.folder.path().join(self.fresh("in-cluster"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("token"), self.token(namespace, account)).unwrap();
        fs::copy(&certificates().ca, folder.join("ca.crt")).unwrap();
        fs::write(folder.join("namespace"), namespace).unwrap();
        folder
    }

    /// kubectl as the administrator.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Finished {
        self.kubectl_with(arguments, "")
    }

    /// The same with something to read.
    pub(crate) fn kubectl_with(&self, arguments: &[&str], stdin: &str) -> Finished {
        let mut kubectl = Command::new(kubernetes("kubectl"));
        // it keeps what it learns of the API in its home
        kubectl.env_clear().env("HOME", self.folder.path()).env("KUBECONFIG", self.kubeconfig());
        run(kubectl.args(arguments), stdin.as_bytes())
    }

    /// Makes everything in a YAML text what the text says.
    #[track_caller]
    pub(crate) fn apply(&self, yaml: &str) {
        self.kubectl_with(&["apply", "--filename=-"], yaml).success();
    }

    /// The kubeconfig of whose certificate and key these are.
    pub(crate) fn kubeconfig_with(&self, name: &str, (certificate, key): &(PathBuf, PathBuf)) -> PathBuf {
        self.write_kubeconfig(name, &json!({ "client-certificate": certificate, "client-key": key }))
    }

    fn write_kubeconfig(&self, name: &str, user: &Value) -> PathBuf {
        let server = format!("https://{}", self.site.address);
        let cluster = json!({ "server": server, "certificate-authority": certificates().ca });
        let document = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
            "clusters": [{ "name": "test", "cluster": cluster }],
            "users": [{ "name": "test", "user": user }],
        });
        let path = self.folder.path().join(format!("{name}.kubeconfig"));
        fs::write(&path, document.to_string()).unwrap();
        path
    }

    fn fresh(&self, name: &str) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
    }

    fn spawn(&mut self) {
        let files = certificates();
        let key = self.accounts_key().display().to_string();
        let arguments = [
            ("etcd-servers", self.etcd.endpoint(0)),
            ("etcd-compaction-interval", "0".into()), // tests that want it do it
            ("endpoint-reconciler-type", "none".into()), // it would not have a loopback address
            ("service-cluster-ip-range", "10.96.0.0/24".into()),
            ("client-ca-file", files.ca.display().to_string()),
            ("anonymous-auth", "false".into()),
            ("authorization-mode", "Node,RBAC".into()),
            ("service-account-issuer", "https://kubernetes.default.svc".into()),
            ("service-account-key-file", key.clone()),
            ("service-account-signing-key-file", key),
            ("allow-privileged", "true".into()),
        ];
        // The log is what it says: it has no option for a file any more.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", r#"log=$1; shift; exec "$@" >>"$log" 2>&1"#, "sh"]).arg(self.log_path());
        shell.args(&self.site.enter).arg(kubernetes("kube-apiserver"));
        let arguments = arguments.iter().chain(&self.site.arguments);
        shell.args(arguments.map(|(flag, value)| format!("--{flag}={value}")));
        let mut process = Process::spawn(&shell).unwrap();
        let ready = within(PATIENCE, || {
            thread::sleep(Duration::from_millis(20)); // it has better to do than to say that it is not ready
            if !process.is_alive() { Some(false) } else { self.is_ready().then_some(true) }
        });
        assert!(ready == Some(true), "kube-apiserver does not start ({ready:?}):\n{}", self.log());
        self.process = Some(process);
    }

    /// Ready, and with the namespaces that it makes itself.
    fn is_ready(&self) -> bool {
        let paths = ["/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"];
        paths.iter().all(|path| self.rest.call("GET", path, None).is_ok_and(|answer| answer.status == 200))
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("kube-apiserver.log")
    }

    /// The end of it.
    fn log(&self) -> String {
        const LINES: usize = 30;
        let text = fs::read_to_string(self.log_path()).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

/// A document of this name, still empty.
fn named(name: &str) -> Value {
    json!({ "metadata": { "name": name } })
}

fn pod_on(name: &str, node: &str) -> Value {
    let mut document = named(name);
    document["spec"] = containers();
    document["spec"]["nodeName"] = json!(node);
    document
}

fn containers() -> Value {
    json!({
        "automountServiceAccountToken": false,
        "containers": [{ "name": "main", "image": "none.test/none" }],
    })
}

/// Leave to run a server besides the shared one: each takes 300 MB, and while it starts all processors.
#[derive(Debug)]
struct Turn;

static TAKEN: Mutex<Option<thread::ThreadId>> = Mutex::new(None);
static GIVEN_BACK: Condvar = Condvar::new();

impl Turn {
    fn take() -> Self {
        let me = thread::current().id();
        let taken = TAKEN.lock().unwrap();
        if *taken == Some(me) {
            drop(taken);
            panic!("a second server for one test: it would wait for ever");
        }
        *GIVEN_BACK.wait_while(taken, |taken| taken.is_some()).unwrap() = Some(me);
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap() = None;
        GIVEN_BACK.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;
    use crate::support::{
        parts::{Part, require},
        process::eventually,
    };

    #[test]
    fn it_is_a_real_one() {
        require!(Part::Apiserver);
        let server = Apiserver::shared();
        let version = server.get("/version").unwrap();
        assert_eq!(
            [&version["gitVersion"], &version["major"], &version["minor"]],
            ["v1.34.4", "1", "34"].map(|text| json!(text)).each_ref()
        );
        let namespace = server.namespace();
        server.apply(
            &r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: { name: NAMESPACE }
spec:
  matchConstraints:
    resourceRules:
    - { apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps] }
  validations:
  - { expression: "!object.metadata.name.startsWith('bad')", message: that is a bad name }
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: { name: NAMESPACE }
spec:
  policyName: NAMESPACE
  validationActions: [Deny]
  matchResources: { namespaceSelector: { matchLabels: { kubernetes.io/metadata.name: NAMESPACE } } }
"#
            .replace("NAMESPACE", &namespace),
        );
        let refusal = eventually("the policy to be heard of", || {
            let made = server.kubectl(&["--namespace", &namespace, "create", "configmap", "bad"]);
            if made.code() != Some(0) {
                return Some(made.stderr().to_owned());
            }
            server.delete(&format!("/api/v1/namespaces/{namespace}/configmaps/bad"), 0);
            None
        });
        assert!(refusal.contains("that is a bad name"), "{refusal}");
    }

    #[test]
    fn a_token_may_do_what_its_binding_says() {
        require!(Part::Apiserver);
        let server = Apiserver::shared();
        let namespace = server.namespace();
        server.account(&namespace, "reader");
        let yaml = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: { name: reader, namespace: NAMESPACE }
rules:
- { apiGroups: [""], resources: [pods], verbs: [list] }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: { name: reader, namespace: NAMESPACE }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader }
subjects:
- { kind: ServiceAccount, name: reader, namespace: NAMESPACE }
"#;
        server.apply(&yaml.replace("NAMESPACE", &namespace));

        let token = server.token(&namespace, "reader");
        let reader = server.as_bearer(&token);
        let may = |verb: &str| {
            let attributes = json!({ "namespace": namespace, "verb": verb, "resource": "pods" });
            let review = json!({ "spec": { "resourceAttributes": attributes } });
            let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
            reader.call("POST", reviews, Some(&review)).unwrap().success()["status"]["allowed"].clone()
        };
        eventually("the binding to be heard of", || (may("list") == true).then_some(()));
        assert_eq!(may("delete"), json!(false));

        let kubeconfig = server.kubeconfig_of(&token);
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let asked =
            server.kubectl(&[&kubeconfig, "--namespace", &namespace, "auth", "can-i", "list", "pods"]);
        assert_eq!(asked.success(), "yes\n");

        let pod = server.in_cluster(&namespace, "reader");
        let read = |file: &str| fs::read_to_string(pod.join(file)).unwrap();
        assert_eq!(read("namespace"), namespace);
        let inside = Rest::new(&server.address(), &pod.join("ca.crt"), Identity::Token(&read("token")));
        let listed = |namespace: &str| {
            inside.call("GET", &format!("/api/v1/namespaces/{namespace}/pods"), None).unwrap().status
        };
        assert_eq!((listed(&namespace), listed("default")), (200, 403));
        let nobody = server.as_bearer("made.up.token");
        assert_eq!(nobody.call("GET", "/version", None).unwrap().status, 401);
    }

    #[test]
    fn what_is_deleted_gently_stays_deleting() {
        require!(Part::Apiserver);
        let server = Apiserver::shared();
        let namespace = server.namespace();
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let node = format!("{namespace}-n1");
        server.node(&node);
        let unknown = server.node_ready(&node, "Unknown", "2026-02-03T04:05:06Z");
        let ready = &unknown["status"]["conditions"];
        assert_eq!(ready.as_array().unwrap().len(), 1);
        assert_eq!(
            (&ready[0]["status"], &ready[0]["lastTransitionTime"]),
            (&json!("Unknown"), &json!("2026-02-03T04:05:06Z"))
        );
        let set = server.stateful_set(&namespace, "db", 3);
        assert_eq!(set["spec"]["replicas"], json!(3));

        let made = server.pod(&namespace, "db-0", &node);
        assert_eq!((&made["status"]["phase"], &made["spec"]["nodeName"]), (&json!("Running"), &json!(node)));
        assert_eq!(made["metadata"]["deletionTimestamp"], Value::Null);
        let path = format!("{pods}/db-0");
        server.delete(&path, 1);
        let deleting = server.get(&path).unwrap();
        assert!(deleting["metadata"]["deletionTimestamp"].is_string(), "{deleting}");
        assert_eq!(deleting["metadata"]["uid"], made["metadata"]["uid"]);
        server.delete(&path, 0);
        assert_eq!(server.get(&path), None);

        server.pod(&namespace, "job", &node);
        server.set_status(&format!("{pods}/job"), &json!({ "phase": "Succeeded" }));
        server.delete(&format!("{pods}/job"), 30);
        assert_eq!(server.get(&format!("{pods}/job")), None, "one that ended has nothing to end gently");
    }

    #[test]
    fn many_pods_are_made_at_once() {
        require!(Part::Apiserver);
        let server = Apiserver::shared();
        let namespace = server.namespace();
        let placed: Vec<_> =
            (0..100).map(|index| (format!("web-{index}"), format!("n{}", index % 7))).collect();
        server.pods(&namespace, &placed);
        let on_n3 = format!("/api/v1/namespaces/{namespace}/pods?fieldSelector=spec.nodeName%3Dn3");
        let listed = server.get(&on_n3).unwrap();
        let listed = listed["items"].as_array().unwrap();
        assert_eq!(listed.len(), 14);
        assert!(listed.iter().all(|pod| pod["status"]["phase"] == "Running"));
    }

    #[test]
    fn what_it_stored_survives_it() {
        require!(Part::Apiserver);
        let mut server = Apiserver::start();
        let made = server.node("n1");
        let revision = made["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let at_that_time = format!("/api/v1/nodes?resourceVersion={revision}&resourceVersionMatch=Exact");

        server.kill();
        assert!(TcpStream::connect(server.address()).is_err());
        server.restart();
        assert_eq!(server.get("/api/v1/nodes/n1").unwrap()["metadata"], made["metadata"]);
        assert_eq!(server.call("GET", &at_that_time, None).status, 200);

        server.restart_compacted();
        assert_eq!(server.call("GET", &at_that_time, None).status, 410);
        assert_eq!(server.get("/api/v1/nodes/n1").unwrap()["metadata"], made["metadata"]);

        server.freeze();
        let asked = server.kubectl(&["get", "node", "n1", "--request-timeout=500ms"]);
        assert_eq!(asked.code(), Some(1), "{asked:?}");
        assert!(TcpStream::connect(server.address()).is_ok());
        server.thaw();
        server.kubectl(&["get", "node", "n1"]).success();

        server.stop();
        assert!(TcpStream::connect(server.address()).is_err());
    }
}
