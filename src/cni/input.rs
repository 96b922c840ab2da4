//! Environment and stdin -> a request, with the callers' quirks; nothing but parsing.
//!
//! The order of evaluation, the texts and the codes are those of CNI's Go library (`pkg/skel`), which callers know.
//! What others own (`args`, `runtimeConfig`, annotations, unknown keys at the top) is read with tolerance, but a
//! wrong value of one of *our* keys in there is an error of ADD. DEL, CHECK, GC and STATUS need names and nothing
//! else: an address must be given back whatever became of the configuration.

use std::{
    ffi::{OsStr, OsString},
    fmt, fs,
    net::IpAddr,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::PathBuf,
};

use serde_json::{Map, Value};

use crate::{
    cni::reply::{CniVersion, Error},
    config::{InlineRanges, IpamBlock, IpamError, RequestedAddress, lookup, words},
    domain::{
        addr::{Prefix, parse_address},
        kubernetes::{IP_WISH as IP, POOL_WISH as POOL, STICKY_WISH as STICKY},
        lease::Holder,
        names::{ContainerId, IfName, NameError, Namespace, NetworkName, PodName, PoolName, Uid},
        pool::{Dns, Route},
    },
};

/// Where runtimes put a pod's annotations, if the main plugin declares the capability.
const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
/// The kubelet's own: `api`, `file` or `http`.
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// GC's list: the specification's HEAD, and the released 1.1.0.
const ATTACHMENTS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// Longer values are cut in error texts.
const SHOWN: usize = 120;

/// The verbs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "CNI's words")]
pub enum Verb {
    Add,
    Check,
    Del,
    Gc,
    Status,
    Version,
}

impl Verb {
    fn of(text: &str) -> Option<Self> {
        match text {
            "ADD" => Some(Self::Add),
            "CHECK" => Some(Self::Check),
            "DEL" => Some(Self::Del),
            "GC" => Some(Self::Gc),
            "STATUS" => Some(Self::Status),
            "VERSION" => Some(Self::Version),
            _ => None,
        }
    }

    /// As CNI writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Check => "CHECK",
            Self::Del => "DEL",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }

    const fn needs_attachment(self) -> bool {
        match self {
            Self::Add | Self::Check | Self::Del => true,
            Self::Gc | Self::Status | Self::Version => false,
        }
    }

    const fn needs_netns(self) -> bool {
        match self {
            Self::Add | Self::Check => true,
            Self::Del | Self::Gc | Self::Status | Self::Version => false,
        }
    }
}

/// What the environment says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Invocation {
    /// No `CNI_COMMAND`: say who we are. stdin is not read.
    About,
    /// `VERSION`: stdin is worth a short look ([`version_of`]), never a wait.
    Version,
    /// Read stdin, then [`Call::request`].
    Call(Call),
}

/// An environment that has passed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Call {
    /// The verb, or one that we do not know: stdin is still judged first.
    command: Result<Verb, String>,
    container: Option<ContainerId>,
    ifname: Option<IfName>,
    netns: Option<OsString>,
    netns_override: bool,
    args: String,
}

/// The thing that is added and deleted, and whose it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Attachment {
    /// The pod, or the container where the caller knows no pod.
    pub holder: Holder,
    /// `CNI_CONTAINERID`.
    pub container: ContainerId,
    /// `CNI_IFNAME`.
    pub ifname: IfName,
    /// The network's name.
    pub network: NetworkName,
    /// `K8S_POD_UID`.
    pub uid: Option<Uid>,
}

/// A request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Command {
    /// Lease.
    Add(Box<AddRequest>),
    /// Is it still so?
    Check(CheckRequest),
    /// Give back.
    Del(DelRequest),
    /// Give back what is not in a list.
    Gc(GcRequest),
    /// Could ADD be served?
    Status(StatusRequest),
    /// Which versions?
    Version {
        /// The version to answer in.
        echo: CniVersion,
    },
    /// Who are you?
    About,
}

/// Who asked for something.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AskedBy {
    /// `runtimeConfig.ips`
    RuntimeConfig,
    /// The pod's annotation.
    Annotation,
    /// `args.cni`
    Args,
    /// `CNI_ARGS`
    Environment,
    /// The `ipam` block.
    Ipam,
}

impl fmt::Display for AskedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::RuntimeConfig => "runtimeConfig",
            Self::Annotation => "the pod's annotation",
            Self::Args => "args.cni",
            Self::Environment => "CNI_ARGS",
            Self::Ipam => "the ipam block",
        })
    }
}

/// Something that was asked for, and by whom. Never empty.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Asked<T> {
    /// By whom; only the highest source counts, sources are never merged.
    pub by: AskedBy,
    /// What, in order.
    pub what: Vec<T>,
}

/// What the main plugin makes, for probing and for the gateway that it may put on itself.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LinkSpec {
    /// The main plugin's `type`.
    pub plugin: String,
    /// `master`
    pub master: Option<String>,
    /// `bridge`, where the plugin is bridge.
    pub bridge: Option<String>,
    /// `vlan` (bridge) or `vlanId` (vlan).
    pub vlan: Option<u16>,
    /// `mode`
    pub mode: Option<String>,
    /// bridge takes the gateway's address: `isGateway`, or `isDefaultGateway`, which implies it.
    pub is_gateway: bool,
    /// bridge adds a default route of its own.
    pub is_default_gateway: bool,
}

impl LinkSpec {
    /// The bridge takes network + 1 for itself where a range has no gateway: it must not be leased then.
    #[must_use]
    pub fn takes_first_address(&self) -> bool {
        self.plugin == "bridge" && self.is_gateway
    }
}

/// ADD.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AddRequest {
    /// The version to answer in.
    pub version: CniVersion,
    /// What is added.
    pub attachment: Attachment,
    /// `CNI_NETNS`; need not exist.
    pub netns: OsString,
    /// `CNI_NETNS_OVERRIDE`
    pub netns_override: bool,
    /// Annotation over `args.cni.pool` over `ipam.pool`.
    pub pools: Option<Asked<PoolName>>,
    /// `runtimeConfig.ips` over `args.cni.ips` over annotation over `CNI_ARGS` over `ipam.ips`.
    pub ips: Option<Asked<RequestedAddress>>,
    /// Annotation over `args.cni.sticky`.
    pub sticky: Option<bool>,
    /// The kubelet says that the pod is (not) static; `None`: it did not say.
    pub static_pod: Option<bool>,
    /// host-local's ranges.
    pub inline: Option<InlineRanges>,
    /// Routes of the `ipam` block.
    pub routes: Vec<Route>,
    /// `dns` of the `ipam` block.
    pub dns: Dns,
    /// `resolvConf` of the `ipam` block.
    pub resolv_conf: Option<PathBuf>,
    /// `dataDir` of the `ipam` block: ignored, worth a log line.
    pub data_dir: Option<String>,
    /// The main plugin.
    pub link: LinkSpec,
}

/// CHECK.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CheckRequest {
    /// The version to answer in.
    pub version: CniVersion,
    /// What is checked.
    pub attachment: Attachment,
    /// The addresses of `prevResult`, in its order; `None` where there is none.
    pub prev_result: Option<Vec<RequestedAddress>>,
}

/// DEL.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DelRequest {
    /// The version to answer in.
    pub version: CniVersion,
    /// What is deleted.
    pub attachment: Attachment,
}

/// GC.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GcRequest {
    /// The version to answer in.
    pub version: CniVersion,
    /// The network.
    pub network: NetworkName,
    /// What is in use; `None`: the caller did not say, and nothing may be given back.
    pub valid: Option<Vec<(ContainerId, IfName)>>,
}

/// STATUS.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StatusRequest {
    /// The version to answer in.
    pub version: CniVersion,
    /// The network.
    pub network: NetworkName,
}

/// Judges the environment; `var` is `std::env::var_os`.
///
/// # Errors
/// In skel's order: a variable that is wrong, at once; then all that are missing, in one error.
pub fn environment(var: impl Fn(&str) -> Option<OsString>) -> Result<Invocation, Error> {
    // "Set but empty" is "missing": libcni really sends empty texts.
    let var = |name: &str| var(name).filter(|value| !value.is_empty());
    let Some(command) = var("CNI_COMMAND") else { return Ok(Invocation::About) };
    let command = command.to_string_lossy().into_owned();
    let verb = Verb::of(&command);
    let mut missing = Vec::new();
    let container = match var("CNI_CONTAINERID") {
        Some(id) => Some(container_id(&id)?),
        None => None,
    };
    if container.is_none() && verb.is_some_and(Verb::needs_attachment) {
        missing.push("CNI_CONTAINERID");
    }
    let netns = var("CNI_NETNS");
    if netns.is_none() && verb.is_some_and(Verb::needs_netns) {
        missing.push("CNI_NETNS");
    }
    let ifname = match var("CNI_IFNAME") {
        Some(name) => Some(interface_name(&name)?),
        None => None,
    };
    if ifname.is_none() && verb.is_some_and(Verb::needs_attachment) {
        missing.push("CNI_IFNAME");
    }
    // CNI_PATH is never needed: the specification asks for it on GC only, where it would be a reason not to free.
    if !missing.is_empty() {
        return Err(Error::EnvMissing(missing));
    }
    if verb == Some(Verb::Version) {
        return Ok(Invocation::Version);
    }
    let netns_override = var("CNI_NETNS_OVERRIDE")
        .is_some_and(|value| value == OsStr::new("1") || value.eq_ignore_ascii_case("true"));
    let args = var("CNI_ARGS").map(|args| args.to_string_lossy().into_owned()).unwrap_or_default();
    let command = verb.ok_or(command);
    Ok(Invocation::Call(Call { command, container, ifname, netns, netns_override, args }))
}

/// Environment and stdin in one step; `stdin` is asked for only where it is needed.
///
/// # Errors
/// As [`environment`] and [`Call::request`].
pub fn parse(
    var: impl Fn(&str) -> Option<OsString>,
    stdin: impl FnOnce() -> Result<Vec<u8>, Error>,
) -> Result<Command, Error> {
    match environment(var)? {
        Invocation::About => Ok(Command::About),
        Invocation::Version => {
            Ok(Command::Version { echo: stdin().map_or(CniVersion::NEWEST, |s| version_of(&s)) })
        }
        Invocation::Call(call) => call.request(&stdin()?),
    }
}

/// The version to answer VERSION and errors in: the caller's, if we know it, else our newest.
#[must_use]
pub fn version_of(stdin: &[u8]) -> CniVersion {
    let conf = serde_json::from_str::<Value>(&String::from_utf8_lossy(stdin));
    let Ok(Value::Object(conf)) = conf else { return CniVersion::NEWEST };
    lookup(&conf, "cniVersion").and_then(Value::as_str).and_then(CniVersion::of).unwrap_or(CniVersion::NEWEST)
}

/// Is the path the network namespace that this process runs in? A path that does not exist is fine.
///
/// # Errors
/// [`Error::OwnNetns`]: for ADD, before anything is leased. DEL gives back all the same.
pub fn refuse_own_netns(netns: &OsStr, overridden: bool) -> Result<(), Error> {
    if overridden {
        return Ok(());
    }
    let inode = |path: &OsStr| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    match (inode(netns), inode(OsStr::new("/proc/self/ns/net"))) {
        (Some(theirs), Some(ours)) if theirs == ours => Err(Error::OwnNetns),
        (Some(_) | None, Some(_) | None) => Ok(()),
    }
}

fn container_id(value: &OsStr) -> Result<ContainerId, Error> {
    // A byte that is no UTF-8 becomes U+FFFD, which the grammar refuses, as Go's does.
    let id = value.to_string_lossy().into_owned();
    ContainerId::new(id.as_str()).map_err(|error| match error {
        NameError::TooLong { .. } => Error::ContainerIdTooLong {
            why: format!("container ID of {} bytes is longer than 512", id.len()),
        },
        NameError::Character { .. } | NameError::Empty { .. } | NameError::Dots { .. } => {
            Error::ContainerIdCharacters { id }
        }
    })
}

fn interface_name(value: &OsStr) -> Result<IfName, Error> {
    if value.as_bytes().len() > 15 {
        return Err(Error::IfNameTooLong);
    }
    // Two names that are no UTF-8 must not become one.
    let name = value.to_str().ok_or(Error::IfNameCharacters)?;
    IfName::new(name).map_err(|error| match error {
        NameError::TooLong { .. } => Error::IfNameTooLong,
        NameError::Dots { .. } => Error::IfNameDots,
        NameError::Character { .. } | NameError::Empty { .. } => Error::IfNameCharacters,
    })
}

impl Call {
    /// The verb, if it is one that we know.
    #[must_use]
    pub fn verb(&self) -> Option<Verb> {
        self.command.as_ref().ok().copied()
    }

    /// Judges stdin.
    ///
    /// # Errors
    /// In skel's order: JSON, network name, verb, version; then, for ADD, everything else.
    pub fn request(self, stdin: &[u8]) -> Result<Command, Error> {
        // Go takes bytes that are no UTF-8 for U+FFFD. A Value first: it takes the last of duplicate keys.
        let decode = |cause: String| Error::Decode { cause };
        let conf: Value = serde_json::from_str(&String::from_utf8_lossy(stdin))
            .map_err(|error| decode(error.to_string()))?;
        let conf = match conf {
            Value::Object(map) => map,
            Value::Null => Map::new(),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(decode("a JSON object is expected".into()));
            }
        };
        let network = network_name(&conf)?;
        let verb = match &self.command {
            Ok(verb) => *verb,
            Err(command) => return Err(Error::UnknownCommand { command: command.clone() }),
        };
        let version = negotiate(verb, &conf)?;
        match verb {
            Verb::Add => self.add(version, network, &conf).map(|add| Command::Add(Box::new(add))),
            Verb::Check => {
                let attachment = self.attachment_leniently(network)?;
                Ok(Command::Check(CheckRequest { version, attachment, prev_result: prev_result(&conf) }))
            }
            Verb::Del => {
                let attachment = self.attachment_leniently(network)?;
                Ok(Command::Del(DelRequest { version, attachment }))
            }
            Verb::Gc => Ok(Command::Gc(GcRequest { version, network, valid: valid_attachments(&conf)? })),
            Verb::Status => Ok(Command::Status(StatusRequest { version, network })),
            Verb::Version => Ok(Command::Version { echo: version }),
        }
    }

    fn ids(&self) -> Result<(ContainerId, IfName), Error> {
        // Both were there, or the environment would have been refused.
        let container = self.container.clone().ok_or_else(|| Error::EnvMissing(vec!["CNI_CONTAINERID"]))?;
        let ifname = self.ifname.clone().ok_or_else(|| Error::EnvMissing(vec!["CNI_IFNAME"]))?;
        Ok((container, ifname))
    }

    /// For DEL and CHECK: whatever is wrong with `CNI_ARGS`, the container is known.
    fn attachment_leniently(&self, network: NetworkName) -> Result<Attachment, Error> {
        let (container, ifname) = self.ids()?;
        let args = Args::of(&self.args);
        let namespace = args.get("K8S_POD_NAMESPACE").and_then(|text| Namespace::new(text).ok());
        let name = args.get("K8S_POD_NAME").and_then(|text| PodName::new(text).ok());
        let holder = match (namespace, name) {
            (Some(namespace), Some(name)) => Holder::Pod { namespace, name },
            (Some(_) | None, Some(_) | None) => Holder::Container(container.clone()),
        };
        let uid = args.get("K8S_POD_UID").and_then(|text| Uid::new(text).ok());
        Ok(Attachment { holder, container, ifname, network, uid })
    }

    fn attachment(&self, network: NetworkName, args: &Args<'_>) -> Result<Attachment, Error> {
        let (container, ifname) = self.ids()?;
        let wrong = |key: &str, error: NameError| Error::Args { problem: format!("{key}: {error}") };
        let holder = match (args.get("K8S_POD_NAMESPACE"), args.get("K8S_POD_NAME")) {
            (Some(namespace), Some(name)) => Holder::Pod {
                namespace: Namespace::new(namespace).map_err(|error| wrong("K8S_POD_NAMESPACE", error))?,
                name: PodName::new(name).map_err(|error| wrong("K8S_POD_NAME", error))?,
            },
            (None, None) => Holder::Container(container.clone()),
            (Some(_), None) => return Err(half("K8S_POD_NAMESPACE", "K8S_POD_NAME")),
            (None, Some(_)) => return Err(half("K8S_POD_NAME", "K8S_POD_NAMESPACE")),
        };
        let uid = args.get("K8S_POD_UID").map(Uid::new).transpose();
        let uid = uid.map_err(|error| wrong("K8S_POD_UID", error))?;
        Ok(Attachment { holder, container, ifname, network, uid })
    }

    fn add(
        self,
        version: CniVersion,
        network: NetworkName,
        conf: &Map<String, Value>,
    ) -> Result<AddRequest, Error> {
        let args = Args::of(&self.args);
        args.judge()?;
        let attachment = self.attachment(network, &args)?;
        let ipam = IpamBlock::parse(lookup(conf, "ipam")).map_err(|error| match error {
            IpamError::Missing => Error::IpamMissing,
            IpamError::HostKeys(keys) => Error::IpamHostKeys(keys),
            IpamError::Unknown(faults) => Error::IpamUnknown(faults),
            IpamError::Invalid(faults) => Error::IpamInvalid(faults),
        })?;
        let runtime = object(conf, "runtimeConfig", "runtimeConfig")?;
        let annotations = match runtime {
            Some(runtime) => object(runtime, ANNOTATIONS, "runtimeConfig's pod annotations")?,
            None => None,
        };
        let cni = match object(conf, "args", "args")? {
            Some(args) => object(args, "cni", "args.cni")?,
            None => None,
        };
        let annotation =
            |key: &str| annotations.and_then(|map| map.get(key)).filter(|value| !value.is_null());
        let from_cni = |key: &str| cni.and_then(|map| lookup(map, key));

        let named = format!("annotation {POOL}");
        let pools = asked(AskedBy::Annotation, &named, annotation(POOL), pool_name)?
            .map_or_else(
                || asked(AskedBy::Args, "args.cni.pool", from_cni("pool"), pool_name),
                |a| Ok(Some(a)),
            )?
            .or_else(|| asked_in_ipam(ipam.pools));

        let mut ips = asked(
            AskedBy::RuntimeConfig,
            "runtimeConfig.ips",
            runtime.and_then(|map| lookup(map, "ips")),
            RequestedAddress::parse,
        )?;
        if ips.is_none() {
            ips = asked(AskedBy::Args, "args.cni.ips", from_cni("ips"), RequestedAddress::parse)?;
        }
        if ips.is_none() {
            ips = asked(
                AskedBy::Annotation,
                &format!("annotation {IP}"),
                annotation(IP),
                RequestedAddress::parse,
            )?;
        }
        if ips.is_none()
            && let Some(text) = args.get("IP")
        {
            let what = text.split(',').map(str::trim).filter(|text| !text.is_empty());
            let what: Result<Vec<_>, Error> = what
                .map(|text| {
                    RequestedAddress::parse(text)
                        .map_err(|problem| Error::Args { problem: format!("IP={text}: {problem}") })
                })
                .collect();
            ips =
                Some(Asked { by: AskedBy::Environment, what: what? }).filter(|asked| !asked.what.is_empty());
        }
        let ips = ips.or_else(|| asked_in_ipam(ipam.ips));

        let sticky = match truth(&format!("annotation {STICKY}"), annotation(STICKY))? {
            Some(sticky) => Some(sticky),
            None => truth("args.cni.sticky", from_cni("sticky"))?,
        };
        let source = annotation(CONFIG_SOURCE).and_then(Value::as_str).filter(|source| !source.is_empty());
        Ok(AddRequest {
            version,
            attachment,
            netns: self.netns.clone().unwrap_or_default(),
            netns_override: self.netns_override,
            pools,
            ips,
            sticky,
            static_pod: source.map(|source| source != "api"),
            inline: ipam.inline,
            routes: ipam.routes,
            dns: ipam.dns,
            resolv_conf: ipam.resolv_conf,
            data_dir: ipam.data_dir,
            link: link(conf),
        })
    }
}

fn half(have: &str, want: &str) -> Error {
    Error::Args { problem: format!("{want} is missing beside {have}: a pod is known by both") }
}

/// `CNI_ARGS`: `K=V` joined by `;`. The first `=` divides, empty pairs are skipped, the last of equal keys wins
/// (Multus repeats them).
struct Args<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Args<'a> {
    fn of(text: &'a str) -> Self {
        let pairs = text.split(';').filter(|pair| !pair.is_empty());
        Self(pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect())
    }

    /// An empty value is none.
    fn get(&self, key: &str) -> Option<&'a str> {
        let last = self.0.iter().rev().find(|(name, _)| *name == key);
        last.map(|(_, value)| *value).filter(|value| !value.is_empty())
    }

    /// Unknown keys need `IgnoreUnknown`.
    fn judge(&self) -> Result<(), Error> {
        let known = [
            "IgnoreUnknown",
            "K8S_POD_NAMESPACE",
            "K8S_POD_NAME",
            "K8S_POD_INFRA_CONTAINER_ID",
            "K8S_POD_UID",
            "IP",
            "MAC",
            "GATEWAY",
        ];
        let word = self.get("IgnoreUnknown").unwrap_or("false");
        let ignore = match word.to_ascii_lowercase().as_str() {
            "1" | "true" => true,
            "0" | "false" => false,
            _ => {
                let problem = format!("IgnoreUnknown={word}: must be one of: 1, true, 0, false");
                return Err(Error::Args { problem });
            }
        };
        match self.0.iter().find(|(key, _)| !known.contains(key)) {
            Some((key, value)) if !ignore => {
                Err(Error::Args { problem: format!("unknown {key}={value}, without IgnoreUnknown=1") })
            }
            Some(_) | None => Ok(()),
        }
    }
}

fn network_name(conf: &Map<String, Value>) -> Result<NetworkName, Error> {
    let name = match lookup(conf, "name") {
        None => return Err(Error::NetworkMissing),
        Some(Value::String(name)) => name.as_str(),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            return Err(Error::Decode { cause: "name must be a text".into() });
        }
    };
    NetworkName::new(name).map_err(|error| match error {
        NameError::Empty { .. } => Error::NetworkMissing,
        NameError::TooLong { .. } => {
            Error::NetworkTooLong { why: format!("network name of {} bytes is longer than 253", name.len()) }
        }
        NameError::Character { .. } | NameError::Dots { .. } => {
            Error::NetworkCharacters { name: name.into() }
        }
    })
}

/// skel's rules: ADD and DEL by exact text; CHECK since 0.4.0, GC and STATUS since 1.1.0, by number first.
fn negotiate(verb: Verb, conf: &Map<String, Value>) -> Result<CniVersion, Error> {
    let text = match lookup(conf, "cniVersion") {
        None => "",
        Some(Value::String(text)) => text.as_str(),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            return Err(Error::DecodeVersion { cause: "cniVersion must be a text".into() });
        }
    };
    let text = if text.is_empty() { CniVersion::V0_1_0.as_str() } else { text };
    let since = match verb {
        Verb::Add | Verb::Del | Verb::Version => None,
        Verb::Check => Some([0, 4, 0]),
        Verb::Gc | Verb::Status => Some([1, 1, 0]),
    };
    if let Some(since) = since {
        let number = semver(text)?;
        if number < since {
            return Err(Error::VersionTooLow { verb: verb.as_str() });
        }
        if number > [1, 1, 0] {
            return Err(Error::VersionTooHigh { verb: verb.as_str() });
        }
    }
    CniVersion::of(text).ok_or_else(|| Error::VersionUnsupported { config: text.into() })
}

fn semver(text: &str) -> Result<[i64; 3], Error> {
    let wrong =
        || Error::DecodeVersion { cause: format!("invalid version {text:?}: must be up to three numbers") };
    let mut out = [0; 3];
    for (index, part) in text.split('.').enumerate() {
        let slot = out.get_mut(index).ok_or_else(wrong)?;
        *slot = part.parse().map_err(|_| wrong())?;
    }
    Ok(out)
}

/// An object that others own; `null` is absent.
fn object<'a>(
    map: &'a Map<String, Value>,
    key: &str,
    named: &str,
) -> Result<Option<&'a Map<String, Value>>, Error> {
    let Some(value) = lookup(map, key) else { return Ok(None) };
    match value.as_object() {
        Some(object) => Ok(Some(object)),
        None => Err(wrong(named, value, "must be an object".into())),
    }
}

fn wrong(key: &str, value: &Value, problem: String) -> Error {
    let value = match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    };
    let cut = value.char_indices().nth(SHOWN).map_or(value.as_str(), |(at, _)| &value[..at]);
    Error::Asked { key: key.into(), value: cut.into(), problem }
}

fn pool_name(text: &str) -> Result<PoolName, String> {
    PoolName::new(text).map_err(|error| error.to_string())
}

/// What one source asks for. An empty text or list asks for nothing: templates print such.
fn asked<T>(
    by: AskedBy,
    named: &str,
    value: Option<&Value>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<Asked<T>>, Error> {
    let Some(value) = value else { return Ok(None) };
    let texts = words(value).map_err(|problem| wrong(named, value, problem))?;
    let what: Result<Vec<T>, String> = texts.iter().map(|text| read(text)).collect();
    let what = what.map_err(|problem| wrong(named, value, problem))?;
    Ok(if what.is_empty() { None } else { Some(Asked { by, what }) })
}

fn asked_in_ipam<T>(what: Vec<T>) -> Option<Asked<T>> {
    if what.is_empty() { None } else { Some(Asked { by: AskedBy::Ipam, what }) }
}

fn truth(named: &str, value: Option<&Value>) -> Result<Option<bool>, Error> {
    let Some(value) = value else { return Ok(None) };
    match value {
        Value::Bool(truth) => Ok(Some(*truth)),
        Value::String(text) if text.is_empty() => Ok(None),
        Value::String(text) if text.eq_ignore_ascii_case("true") => Ok(Some(true)),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Ok(Some(false)),
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            Err(wrong(named, value, "must be true or false".into()))
        }
    }
}

/// The addresses of a result of any version. It is the whole chain's, so what cannot be read is skipped.
fn prev_result(conf: &Map<String, Value>) -> Option<Vec<RequestedAddress>> {
    let result = lookup(conf, "prevResult")?.as_object()?;
    let mut texts: Vec<&Value> = Vec::new();
    for key in ["ip4", "ip6"] {
        texts.extend(lookup(result, key).and_then(Value::as_object).and_then(|ip| lookup(ip, "ip")));
    }
    let ips = lookup(result, "ips").and_then(Value::as_array);
    for ip in ips.into_iter().flatten().filter_map(Value::as_object) {
        texts.extend(lookup(ip, "address"));
    }
    let read = |text: &str| -> Option<RequestedAddress> {
        if let Ok((address, prefix)) = Prefix::parse_host(text) {
            return Some(RequestedAddress { address, length: Some(prefix.length()) });
        }
        let address: IpAddr = parse_address(text).ok()?;
        Some(RequestedAddress { address, length: None })
    };
    Some(texts.into_iter().filter_map(Value::as_str).filter_map(read).collect())
}

/// The union of both keys. A key that is there with `null` is an empty list: ocicni sends that for a network without
/// pods. A list that cannot be read whole is an error: what is not understood must not be given back.
fn valid_attachments(conf: &Map<String, Value>) -> Result<Option<Vec<(ContainerId, IfName)>>, Error> {
    let mut out: Option<Vec<(ContainerId, IfName)>> = None;
    for key in ATTACHMENTS {
        if !conf.keys().any(|name| name.eq_ignore_ascii_case(key)) {
            continue;
        }
        let valid = out.get_or_insert_default();
        let Some(value) = lookup(conf, key) else { continue };
        let wrong = |problem: &str| Error::Attachments { key, problem: problem.into() };
        let list = value.as_array().ok_or_else(|| wrong("must be a list"))?;
        for item in list {
            let item = item.as_object();
            let text = |name: &str| item.and_then(|item| lookup(item, name)).and_then(Value::as_str);
            let (Some(id), Some(ifname)) = (text("containerID"), text("ifname")) else {
                return Err(wrong("each must be an object with containerID and ifname"));
            };
            // A name outside the grammar is none of ours.
            if let (Ok(id), Ok(ifname)) = (ContainerId::new(id), IfName::new(ifname))
                && !valid.contains(&(id.clone(), ifname.clone()))
            {
                valid.push((id, ifname));
            }
        }
    }
    Ok(out)
}

/// Read with tolerance: the main plugin judges its own keys.
fn link(conf: &Map<String, Value>) -> LinkSpec {
    let text = |key: &str| {
        lookup(conf, key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let flag = |key: &str| lookup(conf, key).and_then(Value::as_bool).unwrap_or(false);
    let vlan = lookup(conf, "vlan").or_else(|| lookup(conf, "vlanId")).and_then(Value::as_u64);
    let is_default_gateway = flag("isDefaultGateway");
    LinkSpec {
        plugin: text("type").unwrap_or_default(),
        master: text("master"),
        bridge: text("bridge"),
        vlan: vlan.and_then(|vlan| u16::try_from(vlan).ok()),
        mode: text("mode"),
        is_gateway: is_default_gateway || flag("isGateway"),
        is_default_gateway,
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, os::unix::ffi::OsStringExt};

    use serde_json::json;

    use crate::cni::reply::Code;

    use super::*;

    const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns1;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u1";

    /// A call as a runtime makes it, and its changes.
    #[derive(Clone)]
    struct Caller {
        env: HashMap<String, OsString>,
        stdin: Vec<u8>,
    }

    fn caller(verb: &str) -> Caller {
        let env = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/var/run/netns/none"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
            ("CNI_ARGS", ARGS),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.into())).into();
        Caller { env, stdin: Vec::new() }.conf(&conf("1.1.0"))
    }

    fn conf(version: &str) -> Value {
        json!({"cniVersion": version, "name": "net1", "type": "macvlan", "master": "eth0", "ipam": {"type": "leasehold"}})
    }

    impl Caller {
        fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
            self.env.insert(name.into(), value.into());
            self
        }
        fn without(mut self, name: &str) -> Self {
            self.env.remove(name);
            self
        }
        fn conf(self, conf: &Value) -> Self {
            self.stdin(conf.to_string())
        }
        fn with(self, key: &str, value: Value) -> Self {
            let mut conf: Value = serde_json::from_slice(&self.stdin).unwrap();
            conf[key] = value;
            self.conf(&conf)
        }
        fn stdin(mut self, stdin: impl Into<Vec<u8>>) -> Self {
            self.stdin = stdin.into();
            self
        }
        fn parse(&self) -> Result<Command, Error> {
            parse(|name| self.env.get(name).cloned(), || Ok(self.stdin.clone()))
        }
        #[track_caller]
        fn add(&self) -> AddRequest {
            let Command::Add(add) = self.parse().unwrap() else { panic!("no ADD") };
            *add
        }
        #[track_caller]
        fn attachment(&self) -> Attachment {
            match self.parse().unwrap() {
                Command::Add(add) => add.attachment,
                Command::Check(check) => check.attachment,
                Command::Del(del) => del.attachment,
                Command::Gc(_) | Command::Status(_) | Command::Version { .. } | Command::About => {
                    panic!("no attachment")
                }
            }
        }
        #[track_caller]
        fn gc(&self) -> Option<Vec<String>> {
            let Command::Gc(gc) = self.parse().unwrap() else { panic!() };
            gc.valid.map(|valid| valid.iter().map(|(id, ifname)| format!("{id}/{ifname}")).collect())
        }
        #[track_caller]
        fn fails(&self, code: u32, text: &str) -> Error {
            let error = self.parse().unwrap_err();
            assert_eq!(error.code().number(), code, "{error}");
            assert!(error.to_string().contains(text), "{error}");
            error
        }
    }

    const VERBS: [&str; 6] = ["ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION"];

    #[test]
    fn point_1_without_a_command_we_say_who_we_are() {
        assert_eq!(caller("").parse(), Ok(Command::About));
        assert_eq!(caller("").without("CNI_COMMAND").parse(), Ok(Command::About));
        assert_eq!(parse(|_| None, || panic!("stdin is not read")), Ok(Command::About));
        assert_eq!(caller("").env("CNI_CONTAINERID", "-").parse(), Ok(Command::About));
    }

    #[test]
    fn point_2_unknown_commands() {
        caller("NOPE").fails(4, "unknown CNI_COMMAND: NOPE");
        caller("add").fails(4, "unknown CNI_COMMAND: add");
        caller("NOPE").without("CNI_CONTAINERID").fails(4, "unknown CNI_COMMAND: NOPE");
        // stdin is judged first.
        caller("NOPE").stdin("").fails(6, "unmarshall");
    }

    #[test]
    fn point_5_6_7_version_echoes_and_never_fails() {
        let echo = |stdin: &str| {
            let Command::Version { echo } = caller("VERSION").stdin(stdin).parse().unwrap() else { panic!() };
            echo
        };
        assert_eq!(echo(r#"{"cniVersion":"1.1.0"}"#), CniVersion::V1_1_0);
        assert_eq!(echo(r#"{"cniVersion":"0.3.1"}"#), CniVersion::V0_3_1);
        for other in ["", "{{{", "[]", "{}", r#"{"cniVersion":5}"#, r#"{"cniVersion":"9"}"#] {
            assert_eq!(echo(other), CniVersion::NEWEST, "{other}");
        }
        let alone = parse(
            |name| (name == "CNI_COMMAND").then(|| "VERSION".into()),
            || Err(Error::ReadStdin { cause: "closed".into() }),
        );
        assert_eq!(alone, Ok(Command::Version { echo: CniVersion::NEWEST }));
    }

    #[test]
    fn point_10_11_13_missing_variables_in_one_error() {
        for verb in ["ADD", "CHECK"] {
            for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"] {
                let wanted = Error::EnvMissing(vec![name]);
                assert_eq!(caller(verb).without(name).parse().unwrap_err(), wanted);
                assert_eq!(caller(verb).env(name, "").parse().unwrap_err(), wanted);
            }
        }
        let error = caller("ADD").without("CNI_NETNS").env("CNI_IFNAME", "").fails(4, "missing");
        assert_eq!(error.msg(), "required env variables [CNI_NETNS,CNI_IFNAME] missing");
        for name in ["CNI_CONTAINERID", "CNI_IFNAME"] {
            caller("DEL").without(name).fails(4, name);
        }
    }

    #[test]
    fn the_order_of_evaluation_is_skels() {
        // A wrong value wins over a missing one, before and after it; both win over stdin.
        caller("ADD").env("CNI_CONTAINERID", "-").without("CNI_IFNAME").stdin("x").fails(4, "containerID");
        caller("ADD").env("CNI_IFNAME", ".").without("CNI_CONTAINERID").stdin("x").fails(4, ". or ..");
        caller("ADD").without("CNI_IFNAME").stdin("x").fails(4, "CNI_IFNAME");
        // The name wins over the version, the version over the rest.
        caller("ADD").conf(&json!({"cniVersion": "9"})).fails(7, "missing network name");
        caller("ADD").conf(&json!({"cniVersion": "9", "name": "n"})).fails(1, "incompatible");
        // Wrong values count for verbs that need none, too.
        caller("STATUS").env("CNI_CONTAINERID", "-").fails(4, "containerID");
    }

    #[test]
    fn point_12_14_15_what_is_not_needed() {
        assert!(caller("DEL").without("CNI_NETNS").parse().is_ok());
        assert!(caller("DEL").env("CNI_NETNS", "").parse().is_ok());
        for verb in VERBS {
            assert!(caller(verb).without("CNI_PATH").parse().is_ok(), "{verb}");
        }
        for verb in ["GC", "STATUS"] {
            let mut call = caller(verb);
            for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"] {
                call = call.env(name, "");
            }
            assert!(call.parse().is_ok(), "{verb}");
        }
    }

    #[test]
    fn point_16_container_id_grammar() {
        for verb in ["ADD", "DEL", "CHECK"] {
            for id in ["-a", "_a", ".a", "a b", "a/b", "a%b", "aé", "a\n"] {
                let error =
                    caller(verb).env("CNI_CONTAINERID", id).fails(4, "invalid characters in containerID");
                assert_eq!(error.details(), id);
            }
            for id in ["A.b_c-d", "9", &"a".repeat(300)] {
                assert_eq!(caller(verb).env("CNI_CONTAINERID", id).attachment().container.as_str(), id);
            }
            let bytes = OsString::from_vec(vec![b'a', 0xff]);
            caller(verb).env("CNI_CONTAINERID", bytes).fails(4, "invalid characters in containerID");
            caller(verb).env("CNI_CONTAINERID", "a".repeat(513)).fails(4, "CNI_CONTAINERID");
        }
    }

    #[test]
    fn point_17_interface_name_grammar() {
        let long = "é".repeat(8);
        for (name, text) in [
            ("1234567890123456", "interface name is too long"),
            (long.as_str(), "interface name is too long"),
            (".", "interface name is . or .."),
            ("..", "interface name is . or .."),
            ("a/b", "contains / or : or whitespace"),
            ("a:b", "contains / or : or whitespace"),
            ("a b", "contains / or : or whitespace"),
            ("a\tb", "contains / or : or whitespace"),
            ("a\u{a0}b", "contains / or : or whitespace"),
            ("a\u{85}b", "contains / or : or whitespace"),
        ] {
            caller("ADD").env("CNI_IFNAME", name).fails(4, text);
        }
        for name in ["123456789012345", "eth0.100", "...", "net1", "hello", "vlan100@x"] {
            assert_eq!(caller("ADD").env("CNI_IFNAME", name).attachment().ifname.as_str(), name);
        }
        caller("ADD").env("CNI_IFNAME", OsString::from_vec(vec![b'a', 0xff])).fails(4, "interface name");
    }

    #[test]
    fn point_20_what_is_not_an_object() {
        for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            for stdin in
                ["", "{{{", "[]", "\"x\"", "5", "\u{feff}{\"name\":\"n\"}", "{\"name\":\"n\"}x", "{} {}"]
            {
                caller(verb).stdin(stdin).fails(6, "error unmarshall network config: ");
            }
            let mut ok = caller(verb);
            ok.stdin.extend(b"\n \n");
            assert!(ok.parse().is_ok());
        }
    }

    #[test]
    fn point_21_22_network_names() {
        for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            caller(verb).conf(&json!({"cniVersion": "1.1.0"})).fails(7, "missing network name");
            caller(verb).with("name", json!("")).fails(7, "missing network name");
            caller(verb).with("name", Value::Null).fails(7, "missing network name");
            caller(verb).stdin("null").fails(7, "missing network name");
            caller(verb).with("name", json!(5)).fails(6, "unmarshall");
            for name in ["te%%st", "-net", "a b", "a/b", "../x"] {
                let error = caller(verb)
                    .with("name", json!(name))
                    .fails(7, "invalid characters found in network name");
                assert_eq!(error.details(), name);
            }
            assert!(caller(verb).with("name", json!("a.b-c_d")).parse().is_ok());
            caller(verb).with("name", json!("n".repeat(300))).fails(7, "too long");
        }
    }

    #[test]
    fn point_23_24_others_keys_and_nulls() {
        let add = caller("ADD")
            .with("unknownKey", json!({"a": [1, 2.5, "x", {"b": null}]}))
            .with("capabilities", json!({"ips": true}))
            .with("args", Value::Null)
            .with("runtimeConfig", Value::Null)
            .with("dns", Value::Null)
            .with("prevResult", Value::Null)
            .with("ipam", json!({"type": "leasehold", "routes": null, "dns": null, "pool": null}));
        assert_eq!(add.add(), caller("ADD").add());
        let deep = caller("ADD")
            .with("args", json!({"cni": null, "other": {"pool": 5}}))
            .with("runtimeConfig", json!({"ips": null, ANNOTATIONS: null, "mac": 5, "dns": {"Servers": []}}));
        assert_eq!(deep.add(), caller("ADD").add());
        let none = caller("CHECK").with("prevResult", Value::Null);
        assert!(matches!(none.parse(), Ok(Command::Check(CheckRequest { prev_result: None, .. }))));
    }

    #[test]
    fn stdin_as_go_reads_it() {
        let twice = br#"{"cniVersion":"0.1.0","name":"x","cniVersion":"1.1.0","name":"net1","type":"macvlan","master":"eth0","ipam":{"type":"a","pool":"x"},"ipam":{"type":"leasehold"}}"#;
        assert_eq!(caller("ADD").stdin(*twice).add(), caller("ADD").add());
        let upper = br#"{"CNIVERSION":"1.1.0","NAME":"net1","Type":"macvlan","MASTER":"eth0","IPAM":{"TYPE":"leasehold"}}"#;
        assert_eq!(caller("ADD").stdin(*upper).add(), caller("ADD").add());
        let bytes = b"{\"cniVersion\":\"1.1.0\",\"name\":\"net1\",\"type\":\"macvlan\",\"master\":\"eth0\",\"x\":\"\xff\xfe\",\"ipam\":{\"type\":\"leasehold\"}}";
        assert_eq!(caller("ADD").stdin(*bytes).add(), caller("ADD").add());
    }

    #[test]
    fn point_26_ipam_is_needed_by_add_alone() {
        for ipam in [Value::Null, json!([]), json!("x"), json!(5)] {
            caller("ADD").with("ipam", ipam.clone()).fails(7, "ipam");
            for verb in ["DEL", "CHECK", "GC", "STATUS"] {
                assert!(caller(verb).with("ipam", ipam.clone()).parse().is_ok(), "{verb} {ipam}");
            }
        }
        let bare = json!({"cniVersion": "1.1.0", "name": "net1"});
        caller("ADD").conf(&bare).fails(7, "ipam");
        assert!(caller("DEL").conf(&bare).parse().is_ok());
    }

    #[test]
    fn point_27_unknown_keys_in_ipam() {
        let bad = json!({"type": "leasehold", "pol": "db"});
        let error = caller("ADD").with("ipam", bad.clone()).fails(2, "did you mean \"pool\"?");
        assert!(error.msg().contains("pol") && error.msg().contains("db"));
        let store = json!({"type": "leasehold", "endpoints": "hunter2", "pol": "db"});
        let error =
            caller("ADD").with("ipam", store.clone()).fails(7, "ipam.endpoints belongs to the host file");
        assert!(!error.to_string().contains("hunter2"));
        for verb in ["DEL", "CHECK", "GC", "STATUS"] {
            assert!(caller(verb).with("ipam", bad.clone()).parse().is_ok());
            assert!(caller(verb).with("ipam", store.clone()).parse().is_ok());
        }
    }

    #[test]
    fn point_28_stdin_that_cannot_be_read() {
        let call = caller("ADD");
        let error =
            parse(|name| call.env.get(name).cloned(), || Err(Error::ReadStdin { cause: "EBADF".into() }));
        assert_eq!(error.unwrap_err().code(), Code::Io);
    }

    #[test]
    fn point_30_31_versions() {
        for version in CniVersion::ALL {
            assert_eq!(caller("ADD").conf(&conf(version.as_str())).add().version, version);
        }
        for none in [json!(""), Value::Null] {
            assert_eq!(caller("ADD").with("cniVersion", none).add().version, CniVersion::V0_1_0);
        }
        let absent = json!({"name": "n", "ipam": {}});
        assert_eq!(caller("ADD").conf(&absent).add().version, CniVersion::V0_1_0);
    }

    #[test]
    fn point_32_versions_are_matched_exactly() {
        for verb in ["ADD", "DEL"] {
            for version in ["1.2.0", "2.0.0", "1.0", "0.3.2", "v1.0.0", "1.0.0 ", "abc"] {
                let error = caller(verb).conf(&conf(version)).fails(1, "incompatible CNI versions");
                let wanted = format!(
                    "config is \"{version}\", plugin supports [\"0.1.0\" \"0.2.0\" \"0.3.0\" \"0.3.1\" \"0.4.0\" \"1.0.0\" \"1.1.0\"]"
                );
                assert_eq!(error.details(), wanted);
            }
            caller(verb).with("cniVersion", json!(1)).fails(6, "decoding version from network config");
        }
    }

    #[test]
    fn point_33_34_35_verbs_have_a_first_version() {
        for version in ["", "0.1.0", "0.2.0", "0.3.0", "0.3.1"] {
            caller("CHECK").conf(&conf(version)).fails(1, "config version does not allow CHECK");
        }
        for version in ["", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.0"] {
            caller("GC").conf(&conf(version)).fails(1, "config version does not allow GC");
            caller("STATUS").conf(&conf(version)).fails(1, "config version does not allow STATUS");
        }
        for verb in ["CHECK", "GC", "STATUS"] {
            caller(verb).conf(&conf("1.2.0")).fails(1, &format!("plugin version does not allow {verb}"));
            for bad in ["abc", "1.0.0.0", "v1.1.0", "1..0", "99999999999999999999"] {
                caller(verb).conf(&conf(bad)).fails(6, "version");
            }
            caller(verb).with("cniVersion", json!([])).fails(6, "version");
        }
        for between in ["0.4.5", "1.0"] {
            caller("CHECK").conf(&conf(between)).fails(1, "incompatible CNI versions");
        }
        caller("GC").conf(&conf("1.1")).fails(1, "incompatible CNI versions");
        for version in ["0.4.0", "1.0.0", "1.1.0"] {
            assert!(caller("CHECK").conf(&conf(version)).parse().is_ok());
        }
    }

    fn annotated(annotations: &Value) -> Caller {
        caller("ADD").with("runtimeConfig", json!({ ANNOTATIONS: annotations }))
    }

    fn texts<T: ToString>(asked: Option<Asked<T>>) -> (Option<AskedBy>, Vec<String>) {
        let by = asked.as_ref().map(|asked| asked.by);
        (by, asked.map(|asked| asked.what.iter().map(T::to_string).collect()).unwrap_or_default())
    }

    #[test]
    fn pools_annotation_over_args_over_ipam() {
        let ipam = caller("ADD").with("ipam", json!({"pool": ["a", "b"]}));
        assert_eq!(texts(ipam.add().pools), (Some(AskedBy::Ipam), vec!["a".into(), "b".into()]));
        let args = ipam.with("args", json!({"cni": {"pool": "c, d,"}}));
        assert_eq!(texts(args.add().pools), (Some(AskedBy::Args), vec!["c".into(), "d".into()]));
        let all = args.clone().with("runtimeConfig", json!({ANNOTATIONS: {POOL: "[\"e\", \"f\"]"}}));
        assert_eq!(texts(all.add().pools), (Some(AskedBy::Annotation), vec!["e".into(), "f".into()]));
        let empty = args.with("runtimeConfig", json!({ANNOTATIONS: {POOL: ""}}));
        assert_eq!(empty.add().pools.unwrap().by, AskedBy::Args);
        assert_eq!(caller("ADD").add().pools, None);
    }

    #[test]
    fn point_48_requested_addresses_have_one_source() {
        let show = |call: &Caller| {
            let ips = call.add().ips;
            ips.map(|ips| {
                let each = ips.what.iter().map(|ip| match ip.length {
                    Some(length) => format!("{}/{length}", ip.address),
                    None => ip.address.to_string(),
                });
                (ips.by, each.collect::<Vec<_>>().join(" "))
            })
        };
        let mut call = caller("ADD").with("ipam", json!({"ips": "10.0.0.1"}));
        assert_eq!(show(&call), Some((AskedBy::Ipam, "10.0.0.1".into())));
        call = call.env("CNI_ARGS", format!("{ARGS};IP=10.0.0.2, fd00::2/64"));
        assert_eq!(show(&call), Some((AskedBy::Environment, "10.0.0.2 fd00::2/64".into())));
        call = call.with("runtimeConfig", json!({ANNOTATIONS: {IP: "10.0.0.3"}}));
        assert_eq!(show(&call), Some((AskedBy::Annotation, "10.0.0.3".into())));
        call = call.with("args", json!({"cni": {"ips": ["10.0.0.4/24"]}}));
        assert_eq!(show(&call), Some((AskedBy::Args, "10.0.0.4/24".into())));
        call = call.with(
            "runtimeConfig",
            json!({ANNOTATIONS: {IP: "10.0.0.3"}, "ips": ["10.0.0.5", "::ffff:10.0.0.6"]}),
        );
        assert_eq!(show(&call), Some((AskedBy::RuntimeConfig, "10.0.0.5 10.0.0.6".into())));
        call = call.with("runtimeConfig", json!({"ips": []}));
        assert_eq!(show(&call), Some((AskedBy::Args, "10.0.0.4/24".into())));
        assert_eq!(show(&caller("ADD").env("CNI_ARGS", "IP=")), None);
    }

    #[test]
    fn a_wrong_value_of_one_of_our_keys_is_named() {
        annotated(&json!({IP: "x"})).fails(7, "invalid annotation leasehold.io/ip = x; must be an IPv4");
        annotated(&json!({STICKY: "maybe"}))
            .fails(7, "invalid annotation leasehold.io/sticky = maybe; must be true or false");
        annotated(&json!({POOL: "a b"})).fails(7, "invalid annotation leasehold.io/pool = a b; pool name");
        annotated(&json!({POOL: {"a": 1}})).fails(7, "invalid annotation leasehold.io/pool = {\"a\":1}");
        annotated(&json!("x")).fails(7, "pod annotations = x; must be an object");
        caller("ADD").with("args", json!({"cni": {"ips": 5}})).fails(7, "args.cni.ips = 5");
        caller("ADD").with("args", json!({"cni": {"sticky": 1}})).fails(7, "args.cni.sticky = 1");
        caller("ADD").with("args", json!([])).fails(7, "invalid args = []");
        caller("ADD").with("runtimeConfig", json!({"ips": "10.0.0.1/33"})).fails(7, "runtimeConfig.ips");
        caller("ADD").env("CNI_ARGS", "IP=10.0.0.256").fails(4, "IP=10.0.0.256");
        for verb in ["DEL", "CHECK", "GC", "STATUS"] {
            let call =
                caller(verb).with("runtimeConfig", json!({ANNOTATIONS: {IP: "x"}})).with("args", json!(5));
            assert!(call.env("CNI_ARGS", ";;IP=x;y").parse().is_ok(), "{verb}");
        }
    }

    #[test]
    fn sticky_and_static_pods() {
        assert_eq!((caller("ADD").add().sticky, caller("ADD").add().static_pod), (None, None));
        let args = caller("ADD").with("args", json!({"cni": {"sticky": true, "labels": [{"key": "a"}]}}));
        assert_eq!(args.add().sticky, Some(true));
        let both = args.with("runtimeConfig", json!({ANNOTATIONS: {STICKY: "False"}}));
        assert_eq!(both.add().sticky, Some(false));
        for (source, wanted) in [("api", Some(false)), ("file", Some(true)), ("http", Some(true)), ("", None)]
        {
            assert_eq!(annotated(&json!({CONFIG_SOURCE: source})).add().static_pod, wanted);
        }
    }

    #[test]
    fn point_49_b117_cni_args_are_pairs_of_any_keys() {
        let add = |args: &str| caller("ADD").env("CNI_ARGS", args);
        let pod = Holder::Pod { namespace: Namespace::new("a").unwrap(), name: PodName::new("b").unwrap() };
        for args in [
            "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b",
            "K8S_POD_NAME=b;;K8S_POD_NAMESPACE=a;",
            "K8S_POD_NAME=x;K8S_POD_NAMESPACE=y;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b",
            "foo=bar;K8S_POD_NAME=b;K8S_POD_NAMESPACE=a;IgnoreUnknown=1",
            "IgnoreUnknown=TRUE;foo;K=a=b;K8S_POD_NAME=b; x=y;K8S_POD_NAMESPACE=a",
            "IgnoreUnknown=true;K8S_POD_NAME=b;K8S_POD_NAMESPACE=a;=",
            "MAC=02:00:00:00:00:01;GATEWAY=10.0.0.1;K8S_POD_NAME=b;K8S_POD_NAMESPACE=a",
        ] {
            assert_eq!(add(args).attachment().holder, pod, "{args}");
            assert_eq!(add(args).attachment().uid, None);
        }
        for args in [
            "foo=bar",
            "K",
            "IgnoreUnknown=0;foo=bar",
            "IgnoreUnknown=1;IgnoreUnknown=0;foo=bar",
            " IP=10.0.0.1",
        ] {
            add(args).fails(4, "CNI_ARGS");
        }
        add("IgnoreUnknown=yes").fails(4, "IgnoreUnknown=yes");
        add("K8S_POD_NAMESPACE=a").fails(4, "K8S_POD_NAME is missing");
        add("K8S_POD_NAME=a;K8S_POD_NAMESPACE=").fails(4, "K8S_POD_NAMESPACE is missing");
        add("K8S_POD_NAMESPACE=a;K8S_POD_NAME=b/c").fails(4, "K8S_POD_NAME");
        add("K8S_POD_NAMESPACE=a;K8S_POD_NAME=b\r\n").fails(4, "K8S_POD_NAME");
        add("K8S_POD_UID=a b").fails(4, "K8S_POD_UID");
        assert_eq!(add("K8S_POD_UID=a=b").attachment().uid, Some(Uid::new("a=b").unwrap()));
        let container = Holder::Container(ContainerId::new("c1").unwrap());
        for none in ["", "IgnoreUnknown=1", "K8S_POD_NAMESPACE=;K8S_POD_NAME="] {
            assert_eq!(add(none).attachment().holder, container);
        }
        assert_eq!(caller("ADD").attachment().uid, Some(Uid::new("u1").unwrap()));
        for verb in ["DEL", "CHECK"] {
            for args in [
                "K8S_POD_NAMESPACE=a",
                "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b/c",
                "foo=bar;K;=;;IgnoreUnknown=x",
            ] {
                assert_eq!(
                    caller(verb).env("CNI_ARGS", args).attachment().holder,
                    container,
                    "{verb} {args}"
                );
            }
            let bytes =
                OsString::from_vec(b"IgnoreUnknown=1;X=\xff;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b".to_vec());
            assert_eq!(caller(verb).env("CNI_ARGS", bytes).attachment().holder, pod);
        }
    }

    #[test]
    fn point_50_51_neither_netns_nor_prev_result_matter_to_add() {
        assert_eq!(refuse_own_netns(OsStr::new("/nowhere/at/all"), false), Ok(()));
        assert_eq!(refuse_own_netns(OsStr::new("garbage"), false), Ok(()));
        let own = OsStr::new("/proc/self/ns/net");
        assert_eq!(refuse_own_netns(own, false), Err(Error::OwnNetns));
        assert_eq!(refuse_own_netns(own, true), Ok(()));
        for (value, wanted) in [("1", true), ("TRUE", true), ("true", true), ("0", false), ("yes", false)] {
            assert_eq!(caller("ADD").env("CNI_NETNS_OVERRIDE", value).add().netns_override, wanted);
        }
        let previous = json!({"ips": [{"address": "10.0.0.1/24"}], "cniVersion": "1.0.0"});
        assert_eq!(caller("ADD").with("prevResult", previous).add(), caller("ADD").add());
    }

    #[test]
    fn point_59_65_67_previous_results_of_all_versions() {
        let previous = |value: Value| {
            let Command::Check(check) = caller("CHECK").with("prevResult", value).parse().unwrap() else {
                panic!()
            };
            let show = |ip: &RequestedAddress| format!("{}/{}", ip.address, ip.length.unwrap_or_default());
            check.prev_result.map(|ips| ips.iter().map(show).collect::<Vec<_>>().join(" "))
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(previous(Value::Null), None);
        assert_eq!(previous(json!("x")), None);
        assert_eq!(previous(json!({})), some(""));
        let old =
            json!({"ip4": {"ip": "10.0.0.1/24", "routes": null}, "ip6": {"ip": "fd00::1/64"}, "dns": {}});
        assert_eq!(previous(old), some("10.0.0.1/24 fd00::1/64"));
        let new = json!({"interfaces": [{"name": "eth0"}], "ips": [
            {"version": "4", "interface": 2, "address": "10.0.0.1/24", "gateway": "10.0.0.254"},
            {"address": "x"}, 5, {"address": "fd00::1/64"}, {"address": "10.0.0.9"}], "dns": {}, "routes": [5]});
        assert_eq!(previous(new), some("10.0.0.1/24 fd00::1/64 10.0.0.9/0"));
        for bad in [json!(5), json!({"ips": 5}), json!({"ip4": 5}), json!({"cniVersion": 5})] {
            assert!(caller("DEL").with("prevResult", bad).parse().is_ok());
        }
    }

    #[test]
    fn point_68_69_gc_lists() {
        let list = |ids: &[&str]| {
            Value::from_iter(ids.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})))
        };
        let [new, old] = ATTACHMENTS;
        assert_eq!(caller("GC").gc(), None);
        for key in ATTACHMENTS {
            assert_eq!(caller("GC").with(key, Value::Null).gc(), Some(vec![]));
            assert_eq!(caller("GC").with(key, json!([])).gc(), Some(vec![]));
            assert_eq!(caller("GC").with(key, list(&["a", "b"])).gc().unwrap(), ["a/eth0", "b/eth0"]);
        }
        let both = caller("GC").with(new, list(&["a", "b"])).with(old, list(&["b", "c"]));
        assert_eq!(both.gc().unwrap(), ["a/eth0", "b/eth0", "c/eth0"]);
        assert_eq!(caller("GC").with(new, Value::Null).with(old, list(&["a"])).gc().unwrap(), ["a/eth0"]);
        // What cannot be understood must not end in a lease given back.
        for bad in [
            json!("x"),
            json!({}),
            json!(["x"]),
            json!([{"containerID": "a"}]),
            json!([{"containerID": 5, "ifname": "e"}]),
        ] {
            caller("GC").with(new, bad).fails(7, new);
        }
        assert_eq!(caller("GC").with(new, list(&["-", "a"])).gc().unwrap(), ["a/eth0"]);
    }

    #[test]
    fn point_44_the_link() {
        let link = |conf: Value| caller("ADD").conf(&conf).add().link;
        let bridge = link(
            json!({"name": "n", "type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "vlan": 100, "ipam": {}}),
        );
        assert!(bridge.takes_first_address() && bridge.is_default_gateway);
        assert_eq!((bridge.bridge.as_deref(), bridge.vlan), (Some("cni0"), Some(100)));
        let macvlan = caller("ADD").add().link;
        assert!(!macvlan.takes_first_address());
        assert_eq!((macvlan.plugin.as_str(), macvlan.master.as_deref()), ("macvlan", Some("eth0")));
        let odd =
            link(json!({"name": "n", "type": 5, "master": [], "isGateway": "x", "vlan": -1, "ipam": {}}));
        assert_eq!(odd, LinkSpec::default());
        assert_eq!(link(json!({"name": "n", "type": "vlan", "vlanId": 7, "ipam": {}})).vlan, Some(7));
    }

    const CAPTURED: &str = include_str!("../../integration/fixtures/cni-invocations.json");

    #[test]
    fn every_captured_invocation_is_understood() {
        let captured: Vec<Value> = serde_json::from_str(CAPTURED).unwrap();
        assert_eq!(captured.len(), 55);
        for one in captured {
            let name = one["capture"].as_str().unwrap();
            let env = &one["env"];
            let text = |key: &str| env[key].as_str().map(str::to_owned);
            let stdin = one["stdin"].as_str().unwrap();
            let conf: Value = serde_json::from_str(stdin).unwrap();
            let var = |key: &str| text(key).map(OsString::from);
            let command =
                parse(var, || Ok(stdin.as_bytes().to_vec())).unwrap_or_else(|e| panic!("{name}: {e}"));
            let version =
                conf["cniVersion"].as_str().map_or("1.1.0", |v| if v.is_empty() { "0.1.0" } else { v });
            let attachment = |found: &Attachment| {
                assert_eq!(found.container.as_str(), text("CNI_CONTAINERID").unwrap());
                assert_eq!(found.ifname.as_str(), "eth0");
                assert_eq!(found.network.as_str(), conf["name"]);
                assert_eq!(found.holder.to_string(), "default/web-0", "{name}");
                assert_eq!(found.uid.is_some(), text("CNI_ARGS").unwrap().contains("K8S_POD_UID"), "{name}");
            };
            let ips = |result: &Value| result["ips"].as_array().map_or(0, Vec::len);
            match command {
                Command::Add(add) => {
                    assert_eq!(
                        (text("CNI_COMMAND").as_deref(), add.version.as_str()),
                        (Some("ADD"), version)
                    );
                    attachment(&add.attachment);
                    let inline = add.inline.unwrap();
                    let range = &inline.sets[0][0];
                    assert_eq!(range.gateway().unwrap().to_string(), "10.9.0.254");
                    assert_eq!(range.bounds().first() & 0xffff_ff00, 0x0a09_0000);
                    assert_eq!(add.routes.len(), 1);
                    assert_eq!(add.data_dir.as_deref(), conf["ipam"]["dataDir"].as_str());
                    assert_eq!(add.ips.is_some(), conf["runtimeConfig"]["ips"].is_array(), "{name}");
                    assert_eq!(add.link.plugin, conf["type"]);
                    assert_eq!(add.netns.to_str(), text("CNI_NETNS").as_deref());
                }
                Command::Check(check) => {
                    assert_eq!(
                        (text("CNI_COMMAND").as_deref(), check.version.as_str()),
                        (Some("CHECK"), version)
                    );
                    attachment(&check.attachment);
                    assert_eq!(check.prev_result.unwrap().len(), ips(&conf["prevResult"]));
                }
                Command::Del(del) => {
                    assert_eq!(
                        (text("CNI_COMMAND").as_deref(), del.version.as_str()),
                        (Some("DEL"), version)
                    );
                    attachment(&del.attachment);
                }
                Command::Gc(gc) => {
                    assert_eq!(text("CNI_COMMAND").as_deref(), Some("GC"));
                    assert_eq!(gc.network.as_str(), "gcnet");
                    let wanted = conf.get(ATTACHMENTS[0]).map(|list| list.as_array().map_or(0, Vec::len));
                    assert_eq!(gc.valid.map(|valid| valid.len()), wanted, "{name}");
                }
                Command::Status(status) => {
                    assert_eq!(text("CNI_COMMAND").as_deref(), Some("STATUS"));
                    assert_eq!(status.network.as_str(), conf["name"]);
                }
                Command::Version { echo } => {
                    assert_eq!((text("CNI_COMMAND").as_deref(), echo), (Some("VERSION"), CniVersion::V1_1_0));
                }
                Command::About => panic!("{name}"),
            }
        }
    }
}
