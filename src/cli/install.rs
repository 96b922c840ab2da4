//! `leasehold install`: a node's files from arguments and a Secret, once or for good.

use std::{fs, path::Path, time::Duration};

use serde_json::{Map, Value};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, sleep},
};

use super::{
    End, Ended, FAILED, Failure, REFUSED,
    args::{Global, Install},
    connect, dry, now, print,
    render::say,
};
use crate::{
    config::{EtcdSettings, StoreSettings},
    domain::{
        names::{ClusterName, NodeName},
        pool::parse_duration,
    },
    host,
    install::{
        self, Change, Done, Expected, InstallError, Material, Network, Places, Plan, SecretNames, Wanted,
    },
    store::{Read, Store as _, StoreError, any::AnyStore, keys, record},
};

/// This very program, also when its file was replaced meanwhile.
const OURSELVES: &str = "/proc/self/exe";
/// Where the plugin looks, after `/etc/leasehold`.
const CONF_DIR: &str = "/etc/cni/net.d";
/// What goes on being wrong is said again so often.
const REMIND: Duration = Duration::from_secs(3600);
/// How long the store may be asked; a node that starts waits for it.
const STORE_PATIENCE: Duration = Duration::from_secs(10);

impl Failure {
    fn install(error: InstallError) -> Self {
        let hint = match &error {
            InstallError::File { .. } => {
                "run it as root; in a container with the host's folders mounted below --host-root"
            }
            InstallError::Wrong { .. } | InstallError::Credentials(_) => {
                "put the file right, and run it again"
            }
            InstallError::Config(_) => "correct the flags, or the file of --settings",
            InstallError::Busy(_) => "wait for it, and run it again",
        };
        Self { hint: Some(hint.into()), text: error.to_string(), code: FAILED }
    }
}

impl From<InstallError> for Failure {
    fn from(error: InstallError) -> Self {
        Self::install(error)
    }
}

/// Arguments that fit each other.
struct Task<'a> {
    args: &'a Install,
    global: &'a Global,
    places: Places,
    names: SecretNames,
    margin: Duration,
}

/// Installs, stays, looks, or takes away.
pub(crate) async fn run(global: &Global, args: &Install) -> Ended {
    for (name, path) in
        [("--bin-dir", &args.bin_dir), ("--conf-dir", &args.conf_dir), ("--host-root", &args.host_root)]
    {
        if !path.is_absolute() {
            return Err(Failure::usage(&format!("{name} must be an absolute path, not {}", path.display())));
        }
    }
    let places = Places {
        root: args.host_root.clone(),
        bin_dir: args.bin_dir.clone(),
        conf_dir: args.conf_dir.clone(),
    };
    let margin = duration("--expiry-margin", &args.expiry_margin)?;
    let task = Task { args, global, places, names: names(&args.secret_names)?, margin };
    if args.check {
        return task.look();
    }
    if args.uninstall {
        return task.uninstall().await;
    }
    if global.local.is_some() || global.cacert.is_some() || global.cert.is_some() || global.user.is_some() {
        return Err(Failure::usage(
            "install takes certificates, user and password from the files in --secret DIR; --local, --cacert, --cert, --key, --user and their variables ETCDCTL_… are not for it",
        ));
    }
    if args.stay {
        return task.stay().await;
    }
    let mut asked = None;
    let pass = task.pass(&mut asked).await?;
    for warning in &pass.warnings {
        say(&format!("warning: {warning}"));
    }
    print(&lines(&pass.done, args.write.dry_run))
}

fn duration(flag: &str, text: &str) -> Result<Duration, Failure> {
    parse_duration(text).map_err(|problem| Failure::usage(&format!("{flag}: {text}: {problem}")))
}

fn names(pairs: &[(String, String)]) -> Result<SecretNames, Failure> {
    let mut names = SecretNames::default();
    for (key, file) in pairs {
        let place = match key.as_str() {
            "ca" => &mut names.ca,
            "cert" => &mut names.cert,
            "key" => &mut names.key,
            "username" => &mut names.username,
            "password" => &mut names.password,
            other => {
                return Err(Failure::usage(&format!(
                    "--secret-name: {other} is none of ca, cert, key, username, password"
                )));
            }
        };
        if file.contains('/') {
            return Err(Failure::usage(&format!(
                "--secret-name: {file} is no name of a file in --secret DIR"
            )));
        }
        place.clone_from(file);
    }
    Ok(names)
}

fn lines(done: &[Done], is_dry: bool) -> String {
    let line = |(path, change): &Done| dry(is_dry, &format!("{} {}", path.display(), change.as_str())) + "\n";
    done.iter().map(line).collect()
}

/// What one pass did, and what a person should know.
struct Pass {
    done: Vec<Done>,
    warnings: Vec<String>,
}

/// The store answered for these settings.
type Asked = Option<String>;

impl Task<'_> {
    fn secret(&self) -> Result<Option<Material>, Failure> {
        let Some(folder) = &self.args.secret else { return Ok(None) };
        Ok(Some(install::read_secret(folder, &self.names, now())?))
    }

    fn plan(&self) -> Result<Plan, Failure> {
        let Self { args, global, places, .. } = self;
        let cluster: &ClusterName = global.cluster.as_ref().ok_or_else(|| {
            Failure::usage("--cluster NAME is missing: the name that `leasehold cluster add` registered")
        })?;
        let node = args.node.as_deref().unwrap_or_default();
        if node.is_empty() {
            return Err(Failure::usage(
                "--node NAME is missing or empty: the Node object's name; in a pod set NODE_NAME from the field spec.nodeName",
            ));
        }
        let node = NodeName::new(node).map_err(|error| Failure::usage(&format!("--node: {error}")))?;
        if global.endpoints.is_empty() {
            return Err(Failure::usage("--endpoints URL,… is missing: the members of the etcd"));
        }
        let material = self.secret()?.unwrap_or_default();
        let endpoints: Vec<_> = global
            .endpoints
            .iter()
            .map(|text| connect::endpoint(text.trim(), material.has_ca()))
            .collect::<Result<_, _>>()?;
        let secure = endpoints.iter().any(|endpoint| endpoint.tls);
        if secure && !material.has_ca() {
            let text = match &args.secret {
                None => "https endpoints need --secret DIR with the CA's certificate".into(),
                Some(folder) => {
                    format!(
                        "{} is missing: https endpoints need the CA's certificate",
                        folder.join(&self.names.ca).display()
                    )
                }
            };
            return Err(Failure { text, hint: None, code: FAILED });
        }
        let wanted = Wanted {
            program: OURSELVES.into(),
            endpoints: endpoints.iter().map(ToString::to_string).collect(),
            prefix: global.prefix.as_ref().map(|prefix| format!("/{}", prefix.trim_matches('/'))),
            cluster: cluster.clone(),
            node,
            labels: args.labels.clone(),
            settings: args.settings.as_deref().map_or_else(|| Ok(Map::new()), settings)?,
            material: if secure { material } else { material.without_tls() },
            network: args.conflist.as_deref().map(Network::read).transpose()?,
        };
        Ok(install::plan(places, wanted)?)
    }

    /// Once: read everything, ask the store, write what is not right.
    async fn pass(&self, asked: &mut Asked) -> Result<Pass, Failure> {
        let plan = self.plan()?;
        let mut warnings = Vec::new();
        if self.args.conf_dir != Path::new(CONF_DIR) {
            warnings.push(format!(
                "the plugin looks for its host file in {CONF_DIR}/leasehold.d and /etc/leasehold: set LEASEHOLD_CONFIG={} for the runtime",
                self.places.host_file().display()
            ));
        }
        if let Some(etcd) = plan.store(self.args.secret.as_deref(), &self.names)
            && !self.args.no_check
        {
            let about = format!("{:?} {:?}", plan.config.store, plan.config.cluster);
            if asked.as_ref() != Some(&about) {
                match self.ask(&etcd, &plan.config.cluster).await {
                    Ok(()) => *asked = Some(about),
                    // A node must come up, and its pods with it, whatever the store does.
                    Err(Doubt::Down(error)) if self.args.stay => {
                        warnings
                            .push(format!("the store could not be asked, installed nevertheless: {error}"));
                    }
                    Err(Doubt::Down(error)) => {
                        let hint = "see that it runs and can be reached from here; --no-check installs without asking";
                        return Err(Failure {
                            text: error.to_string(),
                            hint: Some(hint.into()),
                            code: FAILED,
                        });
                    }
                    Err(Doubt::Refused(failure)) => return Err(failure),
                }
            }
        }
        let done = install::carry_out(&self.places, &plan, self.args.write.dry_run, now())?;
        Ok(Pass { done, warnings })
    }

    /// Is it an etcd for us, and are we known there?
    async fn ask(&self, etcd: &EtcdSettings, cluster: &ClusterName) -> Result<(), Doubt> {
        let store = host::open_store(&StoreSettings::Etcd(etcd.clone()), STORE_PATIENCE).await?;
        let AnyStore::Etcd(etcd) = &store else { return Ok(()) };
        let asked = async {
            let is_foreign = !self.args.shared_etcd && etcd.foreign_registry().await?;
            Ok::<_, StoreError>((is_foreign, store.read(&[Read::Get(keys::cluster(cluster))], None).await?))
        };
        let (is_foreign, snapshot) = match tokio::time::timeout(STORE_PATIENCE, asked).await {
            Ok(answer) => answer?,
            Err(_) => {
                let reason = format!("no answer in {} s", STORE_PATIENCE.as_secs());
                return Err(Doubt::Down(StoreError::NotReached { reason }));
            }
        };
        if is_foreign {
            return Err(Doubt::Refused(Failure {
                text: "/registry/ can be read: this is the etcd of a Kubernetes API server".into(),
                hint: Some(
                    "give leasehold an etcd of its own; --shared-etcd if it must be this one, best with a user of its own"
                        .into(),
                ),
                code: REFUSED,
            }));
        }
        let problem = match snapshot.entry(0) {
            None => format!("cluster {cluster} is not registered in this store"),
            Some(entry) => match record::decode_cluster(entry) {
                Ok(_) => return Ok(()),
                Err(error) => format!("the record of cluster {cluster} cannot be read: {error}"),
            },
        };
        Err(Doubt::Refused(Failure {
            text: problem,
            hint: Some(format!(
                "leasehold cluster add {cluster} --uid \"$(kubectl get namespace kube-system -o jsonpath='{{.metadata.uid}}')\""
            )),
            code: FAILED,
        }))
    }

    /// Installs again and again, until it is told to end.
    async fn stay(&self) -> Ended {
        let interval = duration("--interval", &self.args.interval)?.max(Duration::from_secs(1));
        // As the first process of a container we get no signal that nobody listens to.
        let mut end = Ends::listen().map_err(|error| Failure::io(&error))?;
        let mut asked = None;
        let mut told = Told::default();
        let mut is_first = true;
        loop {
            let ended = tokio::select! {
                biased;
                () = end.told() => return Ok(End::Done),
                ended = self.pass(&mut asked) => ended,
            };
            let mut talk = Vec::new();
            match ended {
                Ok(pass) => {
                    let news: Vec<_> = pass
                        .done
                        .into_iter()
                        .filter(|(_, change)| is_first || *change != Change::Unchanged)
                        .collect();
                    print(&lines(&news, false))?;
                    talk.extend(pass.warnings.iter().map(|warning| format!("warning: {warning}")));
                    is_first = false;
                }
                // Nothing that could be put right tomorrow ends it; what the arguments say wrong cannot.
                Err(failure) if failure.code == super::USAGE => return Err(failure),
                Err(failure) => {
                    talk.extend(failure.text.lines().map(|line| format!("error: {line}")));
                    talk.extend(failure.hint.map(|hint| format!("hint: {hint}")));
                }
            }
            talk.extend(self.troubles().into_iter().map(|trouble| format!("not ready: {trouble}")));
            told.tell(talk);
            tokio::select! {
                biased;
                () = end.told() => return Ok(End::Done),
                () = sleep(interval) => {}
            }
        }
    }

    fn troubles(&self) -> Vec<String> {
        let (material, mut found) = match self.secret() {
            Ok(material) => (material, Vec::new()),
            Err(failure) => (None, vec![failure.text]),
        };
        let expected =
            Expected { program: Path::new(OURSELVES), material: material.as_ref(), margin: self.margin };
        found.extend(install::troubles(&self.places, &expected, now()));
        found
    }

    fn look(&self) -> Ended {
        let found = self.troubles();
        if found.is_empty() {
            print("ready\n")?;
            return Ok(End::Done);
        }
        print(&found.iter().map(|trouble| format!("{trouble}\n")).collect::<String>())?;
        Ok(End::Look)
    }

    async fn uninstall(&self) -> Ended {
        let is_dry = self.args.write.dry_run;
        if !self.args.force {
            self.nobody_is_bound().await?;
        }
        let done = install::remove(&self.places, is_dry)?;
        if done.is_empty() {
            say("nothing is installed");
        }
        let state = "/var/lib/leasehold and the log stay: delete them once no end waits in the journal";
        if !is_dry && !done.is_empty() {
            say(state);
        }
        print(&lines(&done, is_dry))
    }

    /// A pod that runs here needs the binary for its DEL.
    async fn nobody_is_bound(&self) -> Result<(), Failure> {
        let forced = "--force takes everything away all the same";
        let unknown = |text: String| Failure {
            text: format!("cannot tell whether pods of this node have leases: {text}"),
            hint: Some(forced.into()),
            code: REFUSED,
        };
        let config = match install::installed(&self.places) {
            Ok(Some(config)) => config,
            Ok(None) => return Ok(()),
            Err(error) => return Err(unknown(error.to_string())),
        };
        let node = match &config.node {
            Some(node) => node.clone(),
            None => NodeName::new(host::hostname()).map_err(|error| unknown(error.to_string()))?,
        };
        let span = keys::attachments_of_node(&config.cluster, &node);
        let asked = async {
            let store = host::open_store(&config.store, STORE_PATIENCE).await?;
            store.read(&[Read::List { span, keys_only: true, limit: None }], None).await
        };
        let answer = tokio::time::timeout(STORE_PATIENCE, asked).await;
        let snapshot = match answer {
            Ok(answer) => answer.map_err(|error| unknown(Failure::of(error.into()).text))?,
            Err(_) => return Err(unknown(format!("no answer in {} s", STORE_PATIENCE.as_secs()))),
        };
        match snapshot.entries(0).len() {
            0 => Ok(()),
            bound => Err(Failure {
                text: format!(
                    "{bound} leases are bound on node {node}: without the plugin their pods cannot be deleted cleanly"
                ),
                hint: Some(format!(
                    "drain the node first (`leasehold lease list --node {node}` shows them); {forced}"
                )),
                code: REFUSED,
            }),
        }
    }
}

/// Why the store did not say yes.
enum Doubt {
    /// It said nothing.
    Down(StoreError),
    /// It said no.
    Refused(Failure),
}

impl From<StoreError> for Doubt {
    fn from(error: StoreError) -> Self {
        match error {
            error @ (StoreError::NotReached { .. }
            | StoreError::Unanswered { .. }
            | StoreError::WentBack { .. }) => Self::Down(error),
            error @ (StoreError::Refused { .. }
            | StoreError::Credentials { .. }
            | StoreError::Compacted(_)) => Self::Refused(Failure::of(error.into())),
        }
    }
}

/// The file of `--settings`.
fn settings(path: &Path) -> Result<Map<String, Value>, Failure> {
    let wrong = |problem: String| Failure {
        text: format!("{}: {problem}", path.display()),
        hint: Some("it holds keys of the host file, such as {\"deadlines\": {\"add\": \"20s\"}}".into()),
        code: FAILED,
    };
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let settings: Map<String, Value> =
        serde_json::from_str(&text).map_err(|error| wrong(format!("is no JSON object: {error}")))?;
    match ["v", "store", "cluster", "node", "labels"].into_iter().find(|key| settings.contains_key(*key)) {
        Some(key) => Err(wrong(format!("{key} is not for this file: flags say it"))),
        None => Ok(settings),
    }
}

/// SIGTERM or SIGINT.
struct Ends(Signal, Signal);

impl Ends {
    fn listen() -> std::io::Result<Self> {
        Ok(Self(signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))
    }

    async fn told(&mut self) {
        tokio::select! { _ = self.0.recv() => {}, _ = self.1.recv() => {} }
    }
}

/// Says what is new at once, and what stays now and then.
#[derive(Default)]
struct Told(Vec<String>, Option<Instant>);

impl Told {
    fn tell(&mut self, talk: Vec<String>) {
        let is_due = self.1.is_none_or(|last| last.elapsed() >= REMIND);
        if talk != self.0 || is_due {
            talk.iter().for_each(|line| say(line));
            let is_wrong = |talk: &[String]| talk.iter().any(|line| !line.starts_with("warning: "));
            if is_wrong(&self.0) && !is_wrong(&talk) {
                say("all is right again");
            }
            *self = Self(talk, Some(Instant::now()));
        }
    }
}

/// `KEY=VALUE`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.into(), value.into())),
        Some(_) | None => Err("must be KEY=VALUE, neither empty".into()),
    }
}
