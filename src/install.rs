//! What `leasehold install` does to a node's disk. Each file goes to a temporary one beside it, to the disk, and then
//! takes its name: a runtime finds the old file or the new one, whole, and never one that is open for writing.
//!
//! The order is that of need: binary, certificates, host file, network; the other way round to take them away. A network
//! must not appear before its IPAM.
//!
//! Certificate, key and password of one Secret stand together in a folder named by their content, and only the host file
//! says which folder counts. A call reads the host file once, so it never sees a new certificate with an old key.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::{
    config::{self, EtcdSettings, HostConfig, Password, StoreSettings, TlsSettings},
    domain::{
        lease::Timestamp,
        names::{ClusterName, NodeName},
        pool::Fault,
    },
    host,
    store::{StoreError, etcd},
};

/// What runtimes call: the `type` of the `ipam` block.
const PROGRAM: &str = "leasehold";
/// Beside the networks, but no network.
const FOLDER: &str = "leasehold.d";
const HOST_FILE: &str = "config.json";
/// What was installed beside the host file; the host file itself has no room for it.
const RECORD: &str = "installed.json";
const LOCK: &str = "install.lock";
/// No runtime reads a file of this ending, and no plugin is called so.
const FRESH: &str = "leasehold-new";
/// A folder of secrets.
const SECRETS: &str = "secret-";
/// Where the example keeps the audit trail.
const LOG: &str = "/var/log/leasehold.log";
/// Longer than any ADD: a call that began with the host file of before still finds its certificates.
const OLD_SECRETS_MS: i64 = 120_000;
/// Another installer is done by then.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// kubelet swaps a Secret's folder in one rename; twice in a row is not to be expected.
const SECRET_TRIES: u32 = 5;

const ROOT_ONLY: u32 = 0o600;
const EVERYBODY: u32 = 0o644;
const RUNNABLE: u32 = 0o755;

/// Why something is not installed.
#[derive(Debug, Error)]
pub enum InstallError {
    /// The disk.
    #[error("cannot {doing} {}: {cause}", path.display())]
    File {
        /// What was tried.
        doing: &'static str,
        /// On what, as it is named here.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// A file that was given does not hold what it should.
    #[error("{}: {problem}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The host file would be refused by the plugin.
    #[error("the host file would be wrong: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Config(Vec<Fault>),
    /// A certificate, key or password.
    #[error(transparent)]
    Credentials(#[from] StoreError),
    /// Somebody else installs.
    #[error("another `leasehold install` holds {}", .0.display())]
    Busy(PathBuf),
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> InstallError {
    let path = path.to_owned();
    move |cause| InstallError::File { doing, path, cause }
}

fn wrong(path: &Path, problem: impl Into<String>) -> InstallError {
    InstallError::Wrong { path: path.to_owned(), problem: problem.into() }
}

/// Where things go, as the host names it, and where the host's file system is for us.
#[derive(Clone, Debug)]
pub struct Places {
    /// `/` on the host itself.
    pub root: PathBuf,
    /// The CNI plugins.
    pub bin_dir: PathBuf,
    /// The CNI networks.
    pub conf_dir: PathBuf,
}

impl Places {
    /// A path of the host, as it is named here.
    #[must_use]
    pub fn here(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The binary.
    #[must_use]
    pub fn binary(&self) -> PathBuf {
        self.bin_dir.join(PROGRAM)
    }

    /// The folder of the host file.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.conf_dir.join(FOLDER)
    }

    /// The host file.
    #[must_use]
    pub fn host_file(&self) -> PathBuf {
        self.folder().join(HOST_FILE)
    }

    fn record(&self) -> PathBuf {
        self.folder().join(RECORD)
    }

    /// The same settings with their files as they are named here.
    fn localised(&self, etcd: &EtcdSettings) -> EtcdSettings {
        let mut etcd = etcd.clone();
        if let Some(tls) = &mut etcd.tls {
            tls.cacert = self.here(&tls.cacert);
            tls.identity = tls.identity.as_ref().map(|(cert, key)| (self.here(cert), self.here(key)));
        }
        if let Some(auth) = &mut etcd.auth
            && let Password::File(path) = &auth.password
        {
            auth.password = Password::File(self.here(path));
        }
        etcd
    }
}

/// The names of the files in a Secret's folder.
#[derive(Clone, Debug)]
pub struct SecretNames {
    /// The CA.
    pub ca: String,
    /// Our certificate.
    pub cert: String,
    /// Its key.
    pub key: String,
    /// The user of etcd.
    pub username: String,
    /// The user's password.
    pub password: String,
}

impl Default for SecretNames {
    /// Those of cert-manager, and of Kubernetes' own types of Secrets.
    fn default() -> Self {
        let own = str::to_owned;
        Self {
            ca: own("ca.crt"),
            cert: own("tls.crt"),
            key: own("tls.key"),
            username: own("username"),
            password: own("password"),
        }
    }
}

/// What a Secret holds.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Material {
    /// By the name that each gets on the node.
    files: BTreeMap<&'static str, Vec<u8>>,
    username: Option<String>,
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Material").field("files", &self.files.keys()).finish_non_exhaustive()
    }
}

const CA: &str = "ca.crt";
const CERT: &str = "tls.crt";
const KEY: &str = "tls.key";
const PASSWORD: &str = "password";

impl Material {
    /// The folder for these files: another content, another name.
    fn folder(&self) -> Option<String> {
        if self.files.is_empty() {
            return None;
        }
        let mut hash = Sha256::new();
        for (name, bytes) in &self.files {
            hash.update(name.as_bytes());
            hash.update(bytes.len().to_be_bytes());
            hash.update(bytes);
        }
        let hex: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Some(format!("{SECRETS}{hex}"))
    }

    /// Has it what https needs?
    #[must_use]
    pub fn has_ca(&self) -> bool {
        self.files.contains_key(CA)
    }

    /// Only what a connection without TLS has a use for.
    #[must_use]
    pub fn without_tls(mut self) -> Self {
        self.files.retain(|name, _| *name == PASSWORD);
        self
    }
}

/// Reads a Secret's folder: all of one version, and each file must be of use.
///
/// # Errors
/// A file that is missing beside its partner, cannot be read, does not fit the other, or is not valid now.
pub fn read_secret(folder: &Path, names: &SecretNames, now: Timestamp) -> Result<Material, InstallError> {
    fs::read_dir(folder).map_err(failed("read", folder))?;
    let mut tries = 1..SECRET_TRIES;
    loop {
        // kubelet puts a version into a folder of its own and swaps the link `..data`; all files are links through it.
        let version = fs::canonicalize(folder.join("..data")).unwrap_or_else(|_| folder.to_owned());
        let looked = look_at_secret(folder, &version, names, now);
        let again = fs::canonicalize(folder.join("..data")).unwrap_or_else(|_| folder.to_owned());
        // A plain folder has no such swap: what does not fit now may be half of a copy.
        let settled = match &looked {
            Ok(material) => {
                look_at_secret(folder, &version, names, now).is_ok_and(|other| other == *material)
            }
            Err(_) => version == again,
        };
        if (settled && version == again) || tries.next().is_none() {
            return looked;
        }
        thread::sleep(LOCK_PAUSE);
    }
}

fn look_at_secret(
    folder: &Path,
    version: &Path,
    names: &SecretNames,
    now: Timestamp,
) -> Result<Material, InstallError> {
    let read = |name: &str| match fs::read(version.join(name)) {
        Ok(bytes) if bytes.is_empty() => Err(wrong(&folder.join(name), "is empty")),
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", &folder.join(name))(error)),
    };
    let mut files = BTreeMap::new();
    for (ours, theirs) in
        [(CA, &names.ca), (CERT, &names.cert), (KEY, &names.key), (PASSWORD, &names.password)]
    {
        if let Some(bytes) = read(theirs)? {
            files.insert(ours, bytes);
        }
    }
    let username = match read(&names.username)? {
        None => None,
        Some(bytes) => {
            let text =
                String::from_utf8(bytes).map_err(|_| wrong(&folder.join(&names.username), "is no text"))?;
            Some(text.trim().to_owned())
        }
    };
    let missing =
        |name: &str, other: &str| Err(wrong(&folder.join(name), format!("is missing beside {other}")));
    match (files.contains_key(CERT), files.contains_key(KEY)) {
        (true, false) => return missing(&names.key, &names.cert),
        (false, true) => return missing(&names.cert, &names.key),
        (true, true) | (false, false) => {}
    }
    match (&username, files.contains_key(PASSWORD)) {
        (Some(_), false) => return missing(&names.password, &names.username),
        (None, true) => return missing(&names.username, &names.password),
        (Some(_), true) | (None, false) => {}
    }
    if files.contains_key(CERT) && !files.contains_key(CA) {
        return missing(&names.ca, &names.cert);
    }
    if files.is_empty() {
        let problem =
            format!("holds none of {}, {}, {}, {}", names.ca, names.cert, names.key, names.password);
        return Err(wrong(folder, problem));
    }
    let path = |ours: &str, theirs: &str| files.contains_key(ours).then(|| version.join(theirs));
    let settings = etcd::EtcdSettings {
        endpoints: Vec::new(),
        prefix: String::new(),
        tls: etcd::TlsFiles {
            cacert: path(CA, &names.ca),
            cert: path(CERT, &names.cert),
            key: path(KEY, &names.key),
        },
        login: None,
    };
    match etcd::check_files(&settings, now) {
        Ok(_) => Ok(Material { files, username }),
        // By the name that a person knows, not by that of kubelet's folder of the day.
        Err(StoreError::Credentials { path, reason }) => {
            let path = path.replace(&version.display().to_string(), &folder.display().to_string());
            Err(InstallError::Credentials(StoreError::Credentials { path, reason }))
        }
        Err(other) => Err(other.into()),
    }
}

/// A network to be installed last.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Network {
    name: String,
    text: Vec<u8>,
}

impl Network {
    /// Reads a network of ours.
    ///
    /// # Errors
    /// What is no network, what runtimes would not read, and a network that does not use this plugin.
    pub fn read(path: &Path) -> Result<Self, InstallError> {
        let text = fs::read(path).map_err(failed("read", path))?;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let ending = |wanted: &str| path.extension().is_some_and(|ending| ending == wanted);
        if !(ending("conflist") || ending("conf")) || name.starts_with('.') {
            return Err(wrong(
                path,
                "must be called *.conflist (or *.conf, for a single plugin): runtimes read nothing else",
            ));
        }
        let document: Value =
            serde_json::from_slice(&text).map_err(|error| wrong(path, format!("is not JSON: {error}")))?;
        if document["name"].as_str().is_none_or(str::is_empty) {
            return Err(wrong(path, "has no name: pools say which networks they are for by it"));
        }
        let uses = |plugin: &Value| plugin["ipam"]["type"] == PROGRAM;
        let plugins = document["plugins"].as_array();
        if !plugins.map_or_else(|| uses(&document), |plugins| plugins.iter().any(uses)) {
            return Err(wrong(path, "has no plugin with \"ipam\": {\"type\": \"leasehold\"}"));
        }
        Ok(Self { name: name.to_owned(), text })
    }
}

/// What a node is to have.
#[derive(Debug)]
pub struct Wanted {
    /// The program to install: this one.
    pub program: PathBuf,
    /// Members of the etcd.
    pub endpoints: Vec<String>,
    /// What stands before every key, if it is not the usual.
    pub prefix: Option<String>,
    /// The registered cluster.
    pub cluster: ClusterName,
    /// The Node object's name.
    pub node: NodeName,
    /// Labels that pools ask for.
    pub labels: Vec<(String, String)>,
    /// Other keys of the host file.
    pub settings: Map<String, Value>,
    /// Certificates and password.
    pub material: Material,
    /// The network.
    pub network: Option<Network>,
}

/// The files that make it so, in their order.
#[derive(Debug)]
pub struct Plan {
    /// What the host file will say.
    pub config: HostConfig,
    program: PathBuf,
    secrets: Option<(PathBuf, Material)>,
    host_file: String,
    network: Option<Network>,
}

/// Decides what is written, without a look at the node.
///
/// # Errors
/// A host file that the plugin would refuse.
pub fn plan(places: &Places, wanted: Wanted) -> Result<Plan, InstallError> {
    let Wanted { program, endpoints, prefix, cluster, node, labels, settings, material, network } = wanted;
    let secrets = material.folder().map(|name| places.folder().join(name));
    let mut etcd = json!({ "endpoints": endpoints });
    if let Some(prefix) = prefix {
        etcd["prefix"] = prefix.into();
    }
    let keys = [("cacert", CA), ("cert", CERT), ("key", KEY), ("passwordFile", PASSWORD)];
    for (key, file) in keys.into_iter().filter(|(_, file)| material.files.contains_key(file)) {
        etcd[key] = json!(secrets.as_ref().map(|folder| folder.join(file)));
    }
    if let Some(username) = &material.username {
        etcd["username"] = username.as_str().into();
    }
    let mut document =
        json!({ "v": 1, "store": { "etcd": etcd }, "cluster": cluster.as_str(), "node": node.as_str() });
    if !labels.is_empty() {
        document["labels"] =
            labels.into_iter().map(|(key, value)| (key, Value::from(value))).collect::<Map<_, _>>().into();
    }
    for (key, value) in settings {
        document[&key] = value;
    }
    if document.get("log").is_none() {
        document["log"] = json!({ "file": LOG });
    }
    let host_file = format!("{document:#}\n");
    let config = HostConfig::parse(&host_file).map_err(InstallError::Config)?;
    Ok(Plan { config, program, secrets: secrets.map(|folder| (folder, material)), host_file, network })
}

impl Plan {
    /// The store as the plan's host file has it, with the files where they come from. `None`: no etcd.
    #[must_use]
    pub fn store(&self, secret: Option<&Path>, names: &SecretNames) -> Option<EtcdSettings> {
        let StoreSettings::Etcd(etcd) = &self.config.store else { return None };
        let mut etcd = etcd.clone();
        if let (Some(tls), Some(folder)) = (&mut etcd.tls, secret) {
            let identity =
                tls.identity.is_some().then(|| (folder.join(&names.cert), folder.join(&names.key)));
            *tls = TlsSettings { cacert: folder.join(&names.ca), identity };
        }
        if let (Some(auth), Some(folder)) = (&mut etcd.auth, secret) {
            auth.password = Password::File(folder.join(&names.password));
        }
        Some(etcd)
    }

    /// Everything in the order of need.
    /// `networks`: all that may be there on the way.
    fn steps(&self, places: &Places, networks: &[String]) -> Vec<Step<'_>> {
        let step = |path: PathBuf, content, mode| Step { path, content, mode };
        let mut steps = vec![step(places.binary(), Content::Program(&self.program), RUNNABLE)];
        if let Some((folder, material)) = &self.secrets {
            let files = material.files.iter();
            steps.extend(
                files.map(|(name, bytes)| step(folder.join(name), Content::Bytes(bytes.clone()), ROOT_ONLY)),
            );
        }
        steps.push(step(places.host_file(), Content::Bytes(self.host_file.clone().into_bytes()), ROOT_ONLY));
        steps.push(record_step(places, networks));
        if let Some(network) = &self.network {
            let path = places.conf_dir.join(&network.name);
            steps.push(step(path, Content::Bytes(network.text.clone()), EVERYBODY));
        }
        steps
    }
}

#[derive(Debug)]
enum Content<'a> {
    Bytes(Vec<u8>),
    Program(&'a Path),
}

#[derive(Debug)]
struct Step<'a> {
    path: PathBuf,
    content: Content<'a>,
    mode: u32,
}

/// What became of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Change {
    /// It was not there.
    Installed,
    /// It had another content or mode.
    Replaced,
    /// It was right, and was not touched.
    Unchanged,
    /// It is gone.
    Removed,
}

impl Change {
    /// As it is printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Installed => "installed",
            Self::Replaced => "replaced",
            Self::Unchanged => "unchanged",
            Self::Removed => "removed",
        }
    }
}

/// A file of the host, and what became of it.
pub type Done = (PathBuf, Change);

/// Makes it so, or says what would be done.
///
/// # Errors
/// [`InstallError::File`]; what was written before it stays, and is whole.
pub fn carry_out(
    places: &Places,
    plan: &Plan,
    is_dry: bool,
    now: Timestamp,
) -> Result<Vec<Done>, InstallError> {
    let mut done = Vec::new();
    let folder = places.here(&places.folder());
    let _lock = if is_dry {
        None
    } else {
        fs::create_dir_all(places.here(&places.bin_dir)).map_err(failed("make", &places.bin_dir))?;
        fs::create_dir_all(places.here(&places.conf_dir)).map_err(failed("make", &places.conf_dir))?;
        own_folder(&folder)?;
        Some(lock(&folder)?)
    };
    if let (Some((secrets, _)), false) = (&plan.secrets, is_dry) {
        own_folder(&places.here(secrets))?;
    }
    // One of before stays, unless another takes its place: then there are two for a moment, rather than none.
    let before = recorded_networks(places);
    let mut networks = before.clone();
    networks.extend(
        plan.network.iter().map(|network| network.name.clone()).filter(|name| !before.contains(name)),
    );
    for step in plan.steps(places, &networks) {
        let change = put(&places.here(&step.path), &step.content, step.mode, is_dry)?;
        // The record is ours alone: nobody has to know.
        if step.path != places.record() {
            done.push((step.path, change));
        }
    }
    if let Some(network) = &plan.network
        && networks.len() > 1
    {
        for old in networks.iter().filter(|name| **name != network.name) {
            done.extend(take_away(places, &places.conf_dir.join(old), is_dry)?);
        }
        let step = record_step(places, std::slice::from_ref(&network.name));
        put(&places.here(&step.path), &step.content, step.mode, is_dry)?;
    }
    if !is_dry {
        let host_file = places.here(&places.host_file());
        let age = fs::metadata(&host_file)
            .map_or(0, |meta| now.since(Timestamp(meta.mtime().saturating_mul(1000))));
        if age > OLD_SECRETS_MS {
            let current = plan.secrets.as_ref().map(|(folder, _)| folder.as_path());
            for old in secret_folders(places).into_iter().filter(|folder| Some(folder.as_path()) != current) {
                fs::remove_dir_all(places.here(&old)).map_err(failed("remove", &old))?;
                done.push((old, Change::Removed));
            }
        }
    }
    Ok(done)
}

/// A folder that root alone may read, whoever made it.
fn own_folder(path: &Path) -> Result<(), InstallError> {
    if fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir() && meta.mode() & 0o7777 == 0o700) {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("make", path))?;
    fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(failed("change the mode of", path))?;
    path.parent().map_or(Ok(()), to_disk)
}

/// Held while files change: two installers would take each other's temporary files. It goes with its process.
fn lock(folder: &Path) -> Result<File, InstallError> {
    let path = folder.join(LOCK);
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(ROOT_ONLY).open(&path);
    let file = file.map_err(failed("write", &path))?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            Err(fs::TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
        }
    }
    Err(InstallError::Busy(path))
}

fn put(path: &Path, content: &Content<'_>, mode: u32, is_dry: bool) -> Result<Change, InstallError> {
    let change = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Change::Installed,
        Err(error) => return Err(failed("read", path)(error)),
        Ok(meta) => {
            let right = meta.is_file() && meta.mode() & 0o7777 == mode;
            if right && is_same(path, content)? { Change::Unchanged } else { Change::Replaced }
        }
    };
    if !is_dry && change != Change::Unchanged {
        write_whole(path, content, mode)?;
    }
    Ok(change)
}

fn is_same(path: &Path, content: &Content<'_>) -> Result<bool, InstallError> {
    let there = fs::metadata(path).map_err(failed("read", path))?.len();
    match content {
        Content::Bytes(bytes) => {
            Ok(there == bytes.len() as u64 && fs::read(path).map_err(failed("read", path))? == *bytes)
        }
        Content::Program(source) => same_files(path, source).map_err(failed("read", path)),
    }
}

fn same_files(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut here, mut there) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        let count = one.read(&mut here)?;
        if count == 0 {
            return Ok(true);
        }
        match other.read_exact(&mut there[..count]) {
            Ok(()) if here[..count] == there[..count] => {}
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// Never half, and never open for writing under its name ("text file busy").
fn write_whole(path: &Path, content: &Content<'_>, mode: u32) -> Result<(), InstallError> {
    let fresh = fresh_name(path);
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &fresh)(error)),
        Ok(()) | Err(_) => {}
    }
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(ROOT_ONLY).open(&fresh)?;
        match content {
            Content::Bytes(bytes) => file.write_all(bytes)?,
            Content::Program(source) => drop(io::copy(&mut File::open(source)?, &mut file)?),
        }
        // Whatever the umask is.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    })();
    let named = written.and_then(|()| fs::rename(&fresh, path));
    if let Err(error) = named {
        // The disk may be full: do not keep what cannot be used.
        let _ = fs::remove_file(&fresh);
        return Err(failed("write", path)(error));
    }
    path.parent().map_or(Ok(()), to_disk)
}

fn fresh_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{FRESH}"))
}

/// A name is safe once its folder is.
fn to_disk(folder: &Path) -> Result<(), InstallError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("sync", folder))
}

fn secret_folders(places: &Places) -> Vec<PathBuf> {
    let names = fs::read_dir(places.here(&places.folder())).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<PathBuf> =
        names.filter(|name| name.starts_with(SECRETS)).map(|name| places.folder().join(name)).collect();
    found.sort();
    found
}

fn recorded_networks(places: &Places) -> Vec<String> {
    let text = fs::read(places.here(&places.record())).unwrap_or_default();
    let record: Value = serde_json::from_slice(&text).unwrap_or_default();
    let names = record["networks"].as_array().into_iter().flatten().filter_map(Value::as_str);
    // Nothing but a name in its folder.
    names
        .filter(|name| !name.starts_with('.') && !name.contains('/') && !name.is_empty())
        .map(Into::into)
        .collect()
}

fn record_step(places: &Places, networks: &[String]) -> Step<'static> {
    let text = format!("{:#}\n", json!({ "v": 1, "networks": networks }));
    Step { path: places.record(), content: Content::Bytes(text.into_bytes()), mode: ROOT_ONLY }
}

fn take_away(places: &Places, path: &Path, is_dry: bool) -> Result<Option<Done>, InstallError> {
    let here = places.here(path);
    if fs::symlink_metadata(&here).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(None);
    }
    if !is_dry {
        fs::remove_file(&here).map_err(failed("remove", &here))?;
        here.parent().map_or(Ok(()), to_disk)?;
    }
    Ok(Some((path.to_owned(), Change::Removed)))
}

/// What is installed, with the store's files as they are named here. `None`: no host file.
///
/// # Errors
/// A host file that cannot be read or is wrong.
pub fn installed(places: &Places) -> Result<Option<HostConfig>, InstallError> {
    let path = places.here(&places.host_file());
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", &path)(error)),
    };
    let mut config = HostConfig::parse(&text).map_err(|faults| {
        let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
        wrong(&path, faults.join("; "))
    })?;
    if let StoreSettings::Etcd(etcd) = &config.store {
        config.store = StoreSettings::Etcd(places.localised(etcd));
    }
    Ok(Some(config))
}

/// Takes everything away: the network first, so that no pod finds it without its IPAM, the binary last.
///
/// # Errors
/// [`InstallError::File`]; the rest stays, and another run goes on.
pub fn remove(places: &Places, is_dry: bool) -> Result<Vec<Done>, InstallError> {
    let folder = places.here(&places.folder());
    let _lock = if is_dry || !folder.exists() { None } else { Some(lock(&folder)?) };
    let mut done = Vec::new();
    for network in recorded_networks(places) {
        let network = places.conf_dir.join(network);
        done.extend(take_away(places, &network, is_dry)?);
        if !is_dry {
            take_away(places, &fresh_name(&network), is_dry)?;
        }
    }
    done.extend(take_away(places, &places.host_file(), is_dry)?);
    for secrets in secret_folders(places) {
        if !is_dry {
            fs::remove_dir_all(places.here(&secrets)).map_err(failed("remove", &secrets))?;
        }
        done.push((secrets, Change::Removed));
    }
    if !is_dry {
        for file in [places.record(), fresh_name(&places.host_file()), fresh_name(&places.record())] {
            take_away(places, &file, is_dry)?;
        }
        take_away(places, &places.folder().join(LOCK), is_dry)?;
        match fs::remove_dir(&folder) {
            // What a person put there stays.
            Err(error)
                if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) =>
            {
                return Err(failed("remove", &folder)(error));
            }
            Ok(()) | Err(_) => {}
        }
        take_away(places, &fresh_name(&places.binary()), is_dry)?;
    }
    done.extend(take_away(places, &places.binary(), is_dry)?);
    Ok(done)
}

/// What is asked of an installation.
#[derive(Debug)]
pub struct Expected<'a> {
    /// The program that should be there.
    pub program: &'a Path,
    /// What the Secret holds now, if it is known.
    pub material: Option<&'a Material>,
    /// Certificates must last so long.
    pub margin: Duration,
}

/// Everything that is not as it should be, a line each. Only this node's disk is asked: a probe that asked the store
/// would make every node unready at once.
#[must_use]
pub fn troubles(places: &Places, expected: &Expected<'_>, now: Timestamp) -> Vec<String> {
    let mut found = Vec::new();
    let binary = places.here(&places.binary());
    match fs::metadata(&binary) {
        Err(error) => found.push(format!("cannot read {}: {error}", binary.display())),
        Ok(meta) if !meta.is_file() || meta.mode() & 0o111 == 0 => {
            found.push(format!("{} cannot be executed", binary.display()));
        }
        Ok(_) => match same_files(&binary, expected.program) {
            Ok(true) => {}
            Ok(false) => found.push(format!("{} is another build than this one", binary.display())),
            Err(error) => found.push(format!("cannot read {}: {error}", binary.display())),
        },
    }
    let host_file = places.here(&places.host_file());
    match installed(places) {
        Err(error) => found.push(error.to_string()),
        Ok(None) => found.push(format!("{} is missing", host_file.display())),
        Ok(Some(config)) => {
            let is_secret = |path: &Path| {
                let mode = fs::metadata(path).map_or(0, |meta| meta.mode());
                config::check_mode(path, mode, true).err().map(|error| error.to_string())
            };
            found.extend(is_secret(&host_file));
            found.extend(config.secret_files().into_iter().filter_map(is_secret));
            if let StoreSettings::Etcd(etcd) = &config.store {
                found.extend(credentials(places, etcd, expected, now));
            }
        }
    }
    for network in recorded_networks(places) {
        let path = places.here(&places.conf_dir.join(network));
        if let Err(error) = Network::read(&path) {
            found.push(error.to_string());
        }
    }
    found
}

fn credentials(places: &Places, etcd: &EtcdSettings, expected: &Expected<'_>, now: Timestamp) -> Vec<String> {
    let mut found = Vec::new();
    let margin = i64::try_from(expected.margin.as_millis()).unwrap_or(i64::MAX);
    match host::etcd_settings(etcd).and_then(|settings| etcd::check_files(&settings, now)) {
        Err(error) => found.push(error.to_string()),
        Ok(dates) => {
            // A bundle of CAs keeps old ones: its last counts.
            let mut last: BTreeMap<&Path, Timestamp> = BTreeMap::new();
            for date in &dates {
                let end = last.entry(&date.path).or_insert(date.not_after);
                *end = (*end).max(date.not_after);
            }
            for (path, end) in last {
                let left = end.since(now);
                if left < margin {
                    let days = left / 86_400_000;
                    found.push(format!("the certificate {} ends in {days} days: renew it", path.display()));
                }
            }
        }
    }
    if let Some(material) = expected.material {
        let tls = etcd.tls.as_ref().map(|tls| &tls.cacert);
        let password = etcd.auth.as_ref().and_then(|auth| match &auth.password {
            Password::File(path) => Some(path),
            Password::Inline(_) => None,
        });
        let used = tls.or(password).and_then(|path| path.parent());
        let material = if etcd.tls.is_some() { material.clone() } else { material.clone().without_tls() };
        let wanted = material.folder().map(|name| places.here(&places.folder().join(name)));
        let username = etcd.auth.as_ref().map(|auth| &auth.username);
        if used != wanted.as_deref() || username != material.username.as_ref() {
            found.push("the Secret holds something else than what is installed".into());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ground(PathBuf);

    impl Ground {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("leasehold-install-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn places(&self) -> Places {
            Places {
                root: self.0.join("host"),
                bin_dir: "/opt/cni/bin".into(),
                conf_dir: "/etc/cni/net.d".into(),
            }
        }

        fn plan(&self, program: &str, network: &str) -> Plan {
            let path = self.0.join("program");
            fs::write(&path, program).unwrap();
            let conflist = self.0.join(network);
            fs::write(&conflist, r#"{"name":"lan100","plugins":[{"ipam":{"type":"leasehold"}}]}"#).unwrap();
            let wanted = Wanted {
                program: path,
                endpoints: vec!["http://10.0.0.1:2379".into()],
                prefix: None,
                cluster: ClusterName::new("prod-a").unwrap(),
                node: NodeName::new("n1").unwrap(),
                labels: vec![("rack".into(), "a".into())],
                settings: Map::new(),
                material: Material {
                    files: BTreeMap::from([(PASSWORD, program.as_bytes().to_vec())]),
                    username: Some("n1".into()),
                },
                network: Some(Network::read(&conflist).unwrap()),
            };
            plan(&self.places(), wanted).unwrap()
        }
    }

    impl Drop for Ground {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Cut off after any step, what is there is whole, and nothing is there before what it needs.
    #[test]
    fn every_beginning_of_an_installation_is_sound() {
        let ground = Ground::new("steps");
        let places = ground.places();
        let plan = ground.plan("one", "10-lan.conflist");
        let steps = plan.steps(&places, &[]);
        let paths: Vec<_> = steps.iter().map(|step| step.path.clone()).collect();
        let secrets = &plan.secrets.as_ref().unwrap().0;
        let order = [
            places.binary(),
            secrets.join(PASSWORD),
            places.host_file(),
            places.record(),
            "/etc/cni/net.d/10-lan.conflist".into(),
        ];
        assert_eq!(paths, order);
    }

    #[test]
    fn what_is_right_is_not_written_again() {
        let ground = Ground::new("again");
        let places = ground.places();
        let plan = ground.plan("one", "10-lan.conflist");
        let run = |plan: &Plan, at| carry_out(&places, plan, false, Timestamp(at)).unwrap();
        assert!(run(&plan, 0).iter().all(|(_, change)| *change == Change::Installed));
        assert!(run(&plan, 0).iter().all(|(_, change)| *change == Change::Unchanged));
        let mode = |path: &Path| fs::metadata(places.here(path)).unwrap().mode() & 0o7777;
        assert_eq!(mode(&places.folder()), 0o700);
        assert_eq!((mode(&places.host_file()), mode(&places.binary())), (0o600, 0o755));

        // Another secret: a folder of its own, and the old one stays for calls that have begun.
        let old = plan.secrets.as_ref().unwrap().0.clone();
        let next = ground.plan("two", "20-lan.conflist");
        let done = run(&next, 0);
        assert!(done.contains(&("/etc/cni/net.d/10-lan.conflist".into(), Change::Removed)), "{done:?}");
        assert!(done.contains(&(places.binary(), Change::Replaced)), "{done:?}");
        assert!(places.here(&old).is_dir());
        assert_eq!(run(&next, i64::MAX).last(), Some(&(old.clone(), Change::Removed)));
        assert!(!places.here(&old).exists());

        // Without a word of a network, the one of before stays, and is remembered.
        let without = Plan { network: None, ..ground.plan("two", "20-lan.conflist") };
        assert!(run(&without, 0).iter().all(|(_, change)| *change == Change::Unchanged));
        assert_eq!(recorded_networks(&places), ["20-lan.conflist"]);

        // Somebody's wrong mode is put right.
        fs::set_permissions(places.here(&places.host_file()), Permissions::from_mode(0o644)).unwrap();
        assert!(run(&next, 0).contains(&(places.host_file(), Change::Replaced)));

        let gone: Vec<_> = remove(&places, false).unwrap().into_iter().map(|(path, _)| path).collect();
        assert_eq!(gone.first().unwrap(), Path::new("/etc/cni/net.d/20-lan.conflist"));
        assert_eq!(gone.last(), Some(&places.binary()));
        assert!(!places.here(&places.folder()).exists());
        assert_eq!(remove(&places, false).unwrap(), []);
    }

    #[test]
    fn only_a_network_of_ours_is_installed() {
        let ground = Ground::new("network");
        let case = |name: &str, text: &str| {
            let path = ground.0.join(name);
            fs::write(&path, text).unwrap();
            Network::read(&path).map(|network| network.name).map_err(|error| error.to_string())
        };
        let ours = r#"{"name":"a","type":"macvlan","ipam":{"type":"leasehold"}}"#;
        assert_eq!(case("1.conf", ours).unwrap(), "1.conf");
        assert!(case("1.json", ours).unwrap_err().contains("*.conflist"));
        assert!(case("1.conflist", "{").unwrap_err().contains("not JSON"));
        assert!(case("1.conflist", r#"{"plugins":[]}"#).unwrap_err().contains("no name"));
        let other = r#"{"name":"a","plugins":[{"type":"macvlan","ipam":{"type":"host-local"}}]}"#;
        assert!(case("1.conflist", other).unwrap_err().contains("leasehold"));
    }

    #[test]
    fn a_recorded_name_reaches_nowhere_else() {
        let ground = Ground::new("record");
        let places = ground.places();
        fs::create_dir_all(places.here(&places.folder())).unwrap();
        for (name, expected) in
            [("10-lan.conflist", Some("10-lan.conflist")), ("../../x", None), ("..", None)]
        {
            fs::write(places.here(&places.record()), json!({ "networks": [name] }).to_string()).unwrap();
            assert_eq!(recorded_networks(&places).first().map(String::as_str), expected);
        }
    }
}
