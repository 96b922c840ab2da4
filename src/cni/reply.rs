//! Everything that may stand on stdout, per CNI version; every error -> code, message, details, in one match each.
//!
//! Nothing here decides or logs. A document is one line; who writes it learns whether the reader is still there.

use std::{
    fmt,
    io::{self, Write},
    net::IpAddr,
    path::PathBuf,
};

use serde_json::{Map, Value};

use crate::{
    config::Readable,
    domain::{
        addr::Family,
        pool::{Dns, Fault, Route},
    },
};

/// A version of the CNI specification that this binary speaks.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(missing_docs, reason = "the names are the versions")]
pub enum CniVersion {
    V0_1_0,
    V0_2_0,
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

impl CniVersion {
    /// All, lowest first: the list that VERSION answers.
    pub const ALL: [Self; 7] =
        [Self::V0_1_0, Self::V0_2_0, Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];
    /// What is said where the caller named none that we know.
    pub const NEWEST: Self = Self::V1_1_0;

    /// As CNI writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// The version with exactly this text.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// Has its result room for one address of a family only?
    #[must_use]
    pub fn one_of_a_family(self) -> bool {
        self <= Self::V0_2_0
    }
}

impl fmt::Display for CniVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The numbers that an error document may carry. CNI reserves 1 to 99; ours begin at 100.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Code {
    /// 1: the configuration's CNI version.
    Version,
    /// 2: an unknown field.
    Field,
    /// 4: environment variables.
    Environment,
    /// 5: input or output.
    Io,
    /// 6: cannot be decoded.
    Decode,
    /// 7: configuration.
    Config,
    /// 8: the network namespace.
    Netns,
    /// 11: try again later.
    TryAgain,
    /// 50: ADD cannot be served now (STATUS).
    Unavailable,
    /// 100: the address that was asked for cannot be had.
    AddressUnavailable,
    /// 101: CHECK: no lease, or not this container's, or other addresses.
    LeaseMissing,
    /// 102: a fault of ours.
    Internal,
}

impl Code {
    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Version => 1,
            Self::Field => 2,
            Self::Environment => 4,
            Self::Io => 5,
            Self::Decode => 6,
            Self::Config => 7,
            Self::Netns => 8,
            Self::TryAgain => 11,
            Self::Unavailable => 50,
            Self::AddressUnavailable => 100,
            Self::LeaseMissing => 101,
            Self::Internal => 102,
        }
    }
}

/// Everything that can be said instead of a success. The caller shows `msg; details` to people.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Error {
    /// Variables that the verb needs, in CNI's order.
    EnvMissing(Vec<&'static str>),
    /// `CNI_CONTAINERID` outside CNI's grammar.
    ContainerIdCharacters { id: String },
    /// `CNI_CONTAINERID` over our bound.
    ContainerIdTooLong { why: String },
    /// `CNI_IFNAME` over the kernel's bound.
    IfNameTooLong,
    /// `CNI_IFNAME` is `.` or `..`.
    IfNameDots,
    /// `CNI_IFNAME` outside the kernel's grammar.
    IfNameCharacters,
    /// A verb that we do not know.
    UnknownCommand { command: String },
    /// `CNI_ARGS`, on ADD.
    Args { problem: String },
    /// stdin cannot be read.
    ReadStdin { cause: String },
    /// stdin is no JSON object.
    Decode { cause: String },
    /// `cniVersion` is no text, or no version.
    DecodeVersion { cause: String },
    /// No network name.
    NetworkMissing,
    /// A network name outside CNI's grammar.
    NetworkCharacters { name: String },
    /// A network name over our bound.
    NetworkTooLong { why: String },
    /// A version that is not in the list.
    VersionUnsupported { config: String },
    /// The configuration's version has no such verb.
    VersionTooLow { verb: &'static str },
    /// The verb exists, but we do not know the configuration's version.
    VersionTooHigh { verb: &'static str },
    /// No `ipam` block.
    IpamMissing,
    /// Keys in `ipam` that belong to the host file.
    IpamHostKeys(Vec<String>),
    /// Unknown keys in `ipam`.
    IpamUnknown(Vec<Fault>),
    /// Wrong values in `ipam`.
    IpamInvalid(Vec<Fault>),
    /// A wrong value of one of our keys in `args`, `runtimeConfig` or the pod's annotations.
    Asked { key: String, value: String, problem: String },
    /// GC's list of attachments cannot be read.
    Attachments { key: &'static str, problem: String },
    /// `CNI_NETNS` is the namespace that we run in.
    OwnNetns,
    /// No host file in any of these places.
    HostFileMissing { looked: Vec<PathBuf> },
    /// The host file, or one that it names, cannot be read.
    HostFileRead { path: PathBuf, cause: String },
    /// What is wrong in the host file.
    HostFileInvalid { path: PathBuf, faults: Vec<Fault> },
    /// A secret that others can read.
    SecretReadable(Readable),
    /// 0.1.0 and 0.2.0 have room for one address of a family.
    TooManyOfAFamily { version: CniVersion, family: Family },
    /// A success without an address must not be answered.
    NoAddress,
    /// The answer was not taken.
    Write { cause: String },
    /// Anything that the layers below end with.
    Failure { code: Code, msg: String, details: String },
}

impl Error {
    /// Its number.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::VersionUnsupported { .. } | Self::VersionTooLow { .. } | Self::VersionTooHigh { .. } => {
                Code::Version
            }
            Self::IpamUnknown(_) => Code::Field,
            Self::EnvMissing(_)
            | Self::ContainerIdCharacters { .. }
            | Self::ContainerIdTooLong { .. }
            | Self::IfNameTooLong
            | Self::IfNameDots
            | Self::IfNameCharacters
            | Self::UnknownCommand { .. }
            | Self::Args { .. } => Code::Environment,
            Self::ReadStdin { .. } | Self::HostFileRead { .. } | Self::Write { .. } => Code::Io,
            Self::Decode { .. } | Self::DecodeVersion { .. } => Code::Decode,
            Self::NetworkMissing
            | Self::NetworkCharacters { .. }
            | Self::NetworkTooLong { .. }
            | Self::IpamMissing
            | Self::IpamHostKeys(_)
            | Self::IpamInvalid(_)
            | Self::Asked { .. }
            | Self::Attachments { .. }
            | Self::HostFileMissing { .. }
            | Self::HostFileInvalid { .. }
            | Self::SecretReadable(_)
            | Self::TooManyOfAFamily { .. } => Code::Config,
            Self::OwnNetns => Code::Netns,
            Self::NoAddress => Code::Internal,
            Self::Failure { code, .. } => *code,
        }
    }

    /// One line that names the mistake.
    #[must_use]
    pub fn msg(&self) -> String {
        match self {
            Self::EnvMissing(names) => format!("required env variables [{}] missing", names.join(",")),
            Self::ContainerIdCharacters { .. } => "invalid characters in containerID".into(),
            Self::ContainerIdTooLong { .. } => "invalid CNI_CONTAINERID".into(),
            Self::IfNameTooLong => "interface name is too long".into(),
            Self::IfNameDots => "interface name is . or ..".into(),
            Self::IfNameCharacters => "interface name contains / or : or whitespace characters".into(),
            Self::UnknownCommand { command } => format!("unknown CNI_COMMAND: {command}"),
            Self::Args { .. } => "invalid CNI_ARGS".into(),
            Self::ReadStdin { cause } => format!("error reading from stdin: {}", harmless(cause)),
            Self::Decode { cause } => format!("error unmarshall network config: {cause}"),
            Self::DecodeVersion { cause } => format!("decoding version from network config: {cause}"),
            Self::NetworkMissing => "missing network name".into(),
            Self::NetworkCharacters { .. } => "invalid characters found in network name".into(),
            Self::NetworkTooLong { .. } => "network name is too long".into(),
            Self::VersionUnsupported { .. } => "incompatible CNI versions".into(),
            Self::VersionTooLow { verb } => format!("config version does not allow {verb}"),
            Self::VersionTooHigh { verb } => format!("plugin version does not allow {verb}"),
            Self::IpamMissing => "ipam is missing".into(),
            Self::IpamHostKeys(keys) => {
                let keys: Vec<String> = keys.iter().map(|key| format!("ipam.{key}")).collect();
                let verb = if keys.len() == 1 { "belongs" } else { "belong" };
                format!("{} {verb} to the host file, not into a network's ipam block", keys.join(", "))
            }
            Self::IpamUnknown(faults) => {
                let keys: Vec<String> = faults.iter().map(|f| format!("{} = {}", f.field, f.value)).collect();
                format!("unsupported field in ipam: {}", keys.join(", "))
            }
            Self::IpamInvalid(_) => "invalid ipam configuration".into(),
            Self::Asked { key, value, .. } => format!("invalid {key} = {value}"),
            Self::Attachments { key, .. } => format!("invalid {key}"),
            Self::OwnNetns => "plugin's netns and netns from CNI_NETNS should not be the same".into(),
            Self::HostFileMissing { .. } => "there is no host file".into(),
            Self::HostFileRead { path, .. } => format!("cannot read {}", path.display()),
            Self::HostFileInvalid { path, .. } => format!("invalid host file {}", path.display()),
            Self::SecretReadable(_) => "a secret can be read by others".into(),
            Self::TooManyOfAFamily { version, .. } => {
                format!("CNI version {version} does not support more than 1 address per family")
            }
            Self::NoAddress => "internal error".into(),
            Self::Write { .. } => "the result was not taken".into(),
            Self::Failure { msg, .. } => harmless(msg),
        }
    }

    /// What else there is to say, and what to do; may be empty.
    #[must_use]
    pub fn details(&self) -> String {
        match self {
            Self::EnvMissing(_)
            | Self::IfNameDots
            | Self::IfNameCharacters
            | Self::UnknownCommand { .. }
            | Self::ReadStdin { .. }
            | Self::Decode { .. }
            | Self::DecodeVersion { .. }
            | Self::NetworkMissing
            | Self::VersionTooLow { .. }
            | Self::VersionTooHigh { .. }
            | Self::OwnNetns => String::new(),
            Self::ContainerIdCharacters { id } => id.clone(),
            Self::ContainerIdTooLong { why } | Self::NetworkTooLong { why } => why.clone(),
            Self::IfNameTooLong => "interface name should be less than 16 characters".into(),
            Self::Args { problem } | Self::Asked { problem, .. } | Self::Attachments { problem, .. } => {
                problem.clone()
            }
            Self::NetworkCharacters { name } => name.clone(),
            Self::VersionUnsupported { config } => {
                let known = CniVersion::ALL.map(|version| format!("\"{version}\"")).join(" ");
                format!("config is {config:?}, plugin supports [{known}]")
            }
            Self::IpamMissing => {
                "the network's configuration needs \"ipam\": {\"type\": \"leasehold\"}, an object".into()
            }
            Self::IpamHostKeys(_) => {
                "such blocks are written by tenants and printed by crictl info; see /etc/cni/net.d/leasehold.d/config.json".into()
            }
            Self::IpamUnknown(faults) => {
                let each: Vec<String> =
                    faults.iter().map(|fault| format!("{}: {}", fault.field, fault.problem)).collect();
                each.join("; ")
            }
            Self::IpamInvalid(faults) | Self::HostFileInvalid { faults, .. } => {
                let each: Vec<String> = faults.iter().map(ToString::to_string).collect();
                each.join("; ")
            }
            Self::HostFileMissing { looked } => {
                let looked: Vec<String> = looked.iter().map(|path| path.display().to_string()).collect();
                format!("looked for {}; README.md says how to write it", looked.join(", "))
            }
            Self::HostFileRead { cause, .. } => harmless(cause),
            Self::SecretReadable(readable) => readable.to_string(),
            Self::TooManyOfAFamily { family, .. } => format!(
                "the ranges would give more than one {family} address; use cniVersion 0.3.0 or later, or one range set"
            ),
            Self::NoAddress => "an answer without an address was about to be given".into(),
            Self::Write { cause } => cause.clone(),
            Self::Failure { details, .. } => harmless(details),
        }
    }

    /// The document.
    #[must_use]
    pub fn document(&self, version: CniVersion) -> Value {
        let mut map = Map::new();
        map.insert("cniVersion".into(), version.as_str().into());
        map.insert("code".into(), self.code().number().into());
        map.insert("msg".into(), self.msg().into());
        let details = self.details();
        if !details.is_empty() {
            map.insert("details".into(), details.into());
        }
        Value::Object(map)
    }
}

impl fmt::Display for Error {
    /// `msg; details`, as kubelet shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let details = self.details();
        f.write_str(&self.msg())?;
        if details.is_empty() { Ok(()) } else { write!(f, "; {details}") }
    }
}

impl std::error::Error for Error {}

/// go-cni takes a DEL whose error text holds one of these for a success, and forgets the lease. Causes come from
/// elsewhere, so they are said in other words.
fn harmless(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let rest = &lower[at..];
        if rest.starts_with("not found") {
            out.push_str("missing");
            at += "not found".len();
        } else if rest.starts_with("no such file or directory") {
            out.push_str("the file is missing");
            at += "no such file or directory".len();
        } else {
            let next = text[at..].chars().next().map_or(1, char::len_utf8);
            out.push_str(&text[at..at + next]);
            at += next;
        }
    }
    out
}

/// One address of an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Given {
    /// The address.
    pub address: IpAddr,
    /// The subnet's length.
    pub length: u8,
    /// The gateway, if one is configured.
    pub gateway: Option<IpAddr>,
}

impl Given {
    fn family(&self) -> Family {
        Family::of(self.address)
    }

    fn cidr(&self) -> Value {
        format!("{}/{}", self.address, self.length).into()
    }
}

/// What ADD answers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Answer {
    /// In the order in which they stand on the link.
    pub addresses: Vec<Given>,
    /// Routes of the pool or of the `ipam` block, in order.
    pub routes: Vec<Route>,
    /// Name servers.
    pub dns: Dns,
}

/// Can a result of this version hold addresses of these families? To be asked before anything is leased.
///
/// # Errors
/// [`Error::TooManyOfAFamily`], [`Error::NoAddress`].
pub fn fits(version: CniVersion, families: &[Family]) -> Result<(), Error> {
    if families.is_empty() {
        return Err(Error::NoAddress);
    }
    for family in [Family::V4, Family::V6] {
        if version.one_of_a_family() && families.iter().filter(|f| **f == family).count() > 1 {
            return Err(Error::TooManyOfAFamily { version, family });
        }
    }
    Ok(())
}

/// The document of a successful ADD.
///
/// `dns` is left out where it is empty, which all versions allow (Go's `"dns":{}` of 0.x says the same with more).
///
/// # Errors
/// As [`fits`].
pub fn result(version: CniVersion, answer: &Answer) -> Result<Value, Error> {
    let families: Vec<Family> = answer.addresses.iter().map(Given::family).collect();
    fits(version, &families)?;
    let routes = routes(version, answer);
    let mut map = Map::new();
    map.insert("cniVersion".into(), version.as_str().into());
    match version {
        CniVersion::V0_1_0 | CniVersion::V0_2_0 => {
            for given in &answer.addresses {
                let family = given.family();
                let mut ip = Map::new();
                ip.insert("ip".into(), given.cidr());
                put_gateway(&mut ip, given);
                let own: Vec<Value> =
                    routes.iter().filter(|(f, _)| *f == family).map(|(_, route)| route.clone()).collect();
                if !own.is_empty() {
                    ip.insert("routes".into(), own.into());
                }
                map.insert(format!("ip{}", family.digit()), ip.into());
            }
        }
        CniVersion::V0_3_0
        | CniVersion::V0_3_1
        | CniVersion::V0_4_0
        | CniVersion::V1_0_0
        | CniVersion::V1_1_0 => {
            let ips: Vec<Value> = answer.addresses.iter().map(|given| ip(version, given)).collect();
            map.insert("ips".into(), ips.into());
            if !routes.is_empty() {
                let routes: Vec<Value> = routes.into_iter().map(|(_, route)| route).collect();
                map.insert("routes".into(), routes.into());
            }
        }
    }
    if !answer.dns.is_empty() {
        map.insert("dns".into(), dns(&answer.dns));
    }
    Ok(map.into())
}

fn ip(version: CniVersion, given: &Given) -> Value {
    let mut ip = Map::new();
    if version < CniVersion::V1_0_0 {
        ip.insert("version".into(), given.family().digit().into());
    }
    ip.insert("address".into(), given.cidr());
    put_gateway(&mut ip, given);
    ip.into()
}

fn put_gateway(ip: &mut Map<String, Value>, given: &Given) {
    if let Some(gateway) = given.gateway
        && Family::of(gateway) == given.family()
    {
        ip.insert("gateway".into(), gateway.to_string().into());
    }
}

/// The routes of the families that have an address, none twice: the kernel refuses the second one, and the main
/// plugin then undoes the whole ADD.
fn routes(version: CniVersion, answer: &Answer) -> Vec<(Family, Value)> {
    let mut seen = Vec::new();
    let mut out = Vec::new();
    for route in &answer.routes {
        let family = route.dst.family();
        let mut of_family = answer.addresses.iter().filter(|given| given.family() == family).peekable();
        if of_family.peek().is_none() {
            continue;
        }
        // What the main plugin fills in for a route without `gw`.
        let first = of_family.find_map(|given| given.gateway.filter(|gw| Family::of(*gw) == family));
        let mut attributes = route.attributes;
        // They came with 1.1.0; 1.0.0 has the same major, so its readers must bear them, and newer plugins obey.
        if version < CniVersion::V1_0_0 {
            attributes = Default::default();
        }
        let key = (route.dst, route.gw.or(first), attributes.priority, attributes.table, attributes.scope);
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        // bridge with isDefaultGateway adds a default route of its own unless it sees one with this very gateway.
        let explicit = if route.dst.length() == 0 && attributes.scope.is_none() { first } else { None };
        let mut map = Map::new();
        map.insert("dst".into(), route.dst.to_string().into());
        if let Some(gw) = route.gw.or(explicit) {
            map.insert("gw".into(), gw.to_string().into());
        }
        let numbers = [
            ("mtu", attributes.mtu),
            ("advmss", attributes.advmss),
            ("priority", attributes.priority),
            ("table", attributes.table),
            ("scope", attributes.scope),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                map.insert(name.into(), number.into());
            }
        }
        out.push((family, map.into()));
    }
    out
}

fn dns(dns: &Dns) -> Value {
    let mut map = Map::new();
    let mut list = |name: &str, texts: &[String]| {
        if !texts.is_empty() {
            map.insert(name.into(), texts.to_vec().into());
        }
    };
    list("nameservers", &dns.nameservers);
    list("search", &dns.search);
    list("options", &dns.options);
    if let Some(domain) = &dns.domain {
        map.insert("domain".into(), domain.as_str().into());
    }
    map.into()
}

/// The document of VERSION; `echo` is the caller's version.
#[must_use]
pub fn versions(echo: CniVersion) -> Value {
    let mut map = Map::new();
    map.insert("cniVersion".into(), echo.as_str().into());
    let all: Vec<Value> = CniVersion::ALL.iter().map(|version| version.as_str().into()).collect();
    map.insert("supportedVersions".into(), all.into());
    map.into()
}

/// What is said, on stderr, to a caller without `CNI_COMMAND`. Two lines.
#[must_use]
pub fn about() -> String {
    let known = CniVersion::ALL.map(CniVersion::as_str).join(", ");
    format!("CNI plugin leasehold v{}\nCNI protocol versions supported: {known}\n", env!("CARGO_PKG_VERSION"))
}

/// Writes a document as one line, with one call where the pipe takes it whole.
///
/// # Errors
/// Whatever the writer says; EPIPE means that the caller is gone and never got the answer.
pub fn write(out: &mut impl Write, document: &Value) -> io::Result<()> {
    let mut line = document.to_string();
    line.push('\n');
    out.write_all(line.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use crate::domain::pool::{RouteAttributes, RouteDraft};

    use super::*;

    fn given(cidr: &str, gateway: Option<&str>) -> Given {
        let (address, length) = cidr.split_once('/').unwrap();
        Given {
            address: address.parse().unwrap(),
            length: length.parse().unwrap(),
            gateway: gateway.map(|gw| gw.parse().unwrap()),
        }
    }

    fn route(dst: &str, gw: Option<&str>) -> Route {
        let draft = RouteDraft { dst: dst.into(), gw: gw.map(str::to_owned), ..RouteDraft::default() };
        Route::from_draft("route", &draft).unwrap()
    }

    fn attributed(mut route: Route) -> Route {
        route.attributes = RouteAttributes {
            mtu: Some(1400),
            advmss: Some(1360),
            priority: Some(100),
            table: Some(200),
            scope: Some(0),
        };
        route
    }

    fn answer() -> Answer {
        let text = |text: &str| text.to_owned();
        Answer {
            addresses: vec![
                given("10.9.0.77/24", Some("10.9.0.254")),
                given("fd00:9::77/64", Some("fd00:9::fe")),
            ],
            routes: vec![
                route("0.0.0.0/0", None),
                attributed(route("10.50.0.0/16", Some("10.9.0.253"))),
                route("::/0", None),
            ],
            dns: Dns {
                nameservers: vec![text("10.9.0.53")],
                domain: Some(text("lab.test")),
                search: vec![text("lab.test"), text("svc.lab.test")],
                options: vec![text("ndots:2")],
            },
        }
    }

    const DNS: &str = r#""dns":{"nameservers":["10.9.0.53"],"search":["lab.test","svc.lab.test"],"options":["ndots:2"],"domain":"lab.test"}"#;

    #[track_caller]
    fn prints(version: CniVersion, answer: &Answer, wanted: &str) {
        let mut out = Vec::new();
        write(&mut out, &result(version, answer).unwrap()).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), format!("{wanted}\n"));
    }

    #[test]
    fn point_36_one_address_of_a_family_with_its_routes() {
        for version in [CniVersion::V0_1_0, CniVersion::V0_2_0] {
            prints(
                version,
                &answer(),
                &format!(
                    r#"{{"cniVersion":"{version}","ip4":{{"ip":"10.9.0.77/24","gateway":"10.9.0.254","routes":[{{"dst":"0.0.0.0/0","gw":"10.9.0.254"}},{{"dst":"10.50.0.0/16","gw":"10.9.0.253"}}]}},"ip6":{{"ip":"fd00:9::77/64","gateway":"fd00:9::fe","routes":[{{"dst":"::/0","gw":"fd00:9::fe"}}]}},{DNS}}}"#
                ),
            );
        }
    }

    #[test]
    fn point_37_two_of_a_family_do_not_fit_and_routes_of_the_other_family_are_dropped() {
        let mut two = answer();
        two.addresses.push(given("10.9.1.77/24", None));
        for version in CniVersion::ALL {
            let fits = result(version, &two).is_ok();
            assert_eq!(fits, version > CniVersion::V0_2_0, "{version}");
        }
        assert_eq!(
            result(CniVersion::V0_2_0, &two).unwrap_err(),
            Error::TooManyOfAFamily { version: CniVersion::V0_2_0, family: Family::V4 }
        );
        let mut four = answer();
        four.addresses.pop();
        four.dns = Dns::default();
        prints(
            CniVersion::V0_1_0,
            &four,
            r#"{"cniVersion":"0.1.0","ip4":{"ip":"10.9.0.77/24","gateway":"10.9.0.254","routes":[{"dst":"0.0.0.0/0","gw":"10.9.0.254"},{"dst":"10.50.0.0/16","gw":"10.9.0.253"}]}}"#,
        );
        four.routes.remove(1);
        prints(
            CniVersion::V1_0_0,
            &four,
            r#"{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.77/24","gateway":"10.9.0.254"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.9.0.254"}]}"#,
        );
    }

    #[test]
    fn point_38_40_ips_say_their_version_up_to_0_4_0() {
        for version in [CniVersion::V0_3_0, CniVersion::V0_3_1, CniVersion::V0_4_0] {
            prints(
                version,
                &answer(),
                &format!(
                    r#"{{"cniVersion":"{version}","ips":[{{"version":"4","address":"10.9.0.77/24","gateway":"10.9.0.254"}},{{"version":"6","address":"fd00:9::77/64","gateway":"fd00:9::fe"}}],"routes":[{{"dst":"0.0.0.0/0","gw":"10.9.0.254"}},{{"dst":"10.50.0.0/16","gw":"10.9.0.253"}},{{"dst":"::/0","gw":"fd00:9::fe"}}],{DNS}}}"#
                ),
            );
        }
    }

    #[test]
    fn point_31_39_41_routes_have_attributes_from_1_0_0_on() {
        for version in [CniVersion::V1_0_0, CniVersion::V1_1_0] {
            prints(
                version,
                &answer(),
                &format!(
                    r#"{{"cniVersion":"{version}","ips":[{{"address":"10.9.0.77/24","gateway":"10.9.0.254"}},{{"address":"fd00:9::77/64","gateway":"fd00:9::fe"}}],"routes":[{{"dst":"0.0.0.0/0","gw":"10.9.0.254"}},{{"dst":"10.50.0.0/16","gw":"10.9.0.253","mtu":1400,"advmss":1360,"priority":100,"table":200,"scope":0}},{{"dst":"::/0","gw":"fd00:9::fe"}}],{DNS}}}"#
                ),
            );
        }
    }

    #[track_caller]
    fn routes_of(version: CniVersion, given: Given, routes: &[Route], wanted: &str) {
        let answer = Answer { addresses: vec![given], routes: routes.to_vec(), dns: Dns::default() };
        let document = result(version, &answer).unwrap();
        assert_eq!(document.get("routes").map(Value::to_string).unwrap_or_default(), wanted);
    }

    #[test]
    fn point_42_43_no_route_twice_and_default_routes_say_their_gateway() {
        let four = given("10.9.0.77/24", Some("10.9.0.254"));
        let plain = given("10.9.0.77/24", None);
        let (default, same) = (route("0.0.0.0/0", None), route("0.0.0.0/0", Some("10.9.0.254")));
        let newest = CniVersion::NEWEST;
        routes_of(
            newest,
            four,
            &[default.clone(), same.clone()],
            r#"[{"dst":"0.0.0.0/0","gw":"10.9.0.254"}]"#,
        );
        routes_of(newest, plain, &[default.clone(), default.clone()], r#"[{"dst":"0.0.0.0/0"}]"#);
        // Two next hops are one multipath route.
        let other = route("0.0.0.0/0", Some("10.9.0.253"));
        routes_of(
            newest,
            four,
            &[default, other],
            r#"[{"dst":"0.0.0.0/0","gw":"10.9.0.254"},{"dst":"0.0.0.0/0","gw":"10.9.0.253"}]"#,
        );
        // Two metrics are two routes, but where metrics cannot be said, one.
        let two = [route("10.1.0.0/16", None), attributed(route("10.1.0.0/16", None))];
        routes_of(CniVersion::V0_4_0, four, &two, r#"[{"dst":"10.1.0.0/16"}]"#);
        routes_of(
            newest,
            four,
            &two,
            r#"[{"dst":"10.1.0.0/16"},{"dst":"10.1.0.0/16","mtu":1400,"advmss":1360,"priority":100,"table":200,"scope":0}]"#,
        );
        // An IPv6 gateway does not serve an IPv4 route.
        routes_of(
            newest,
            given("10.9.0.77/24", Some("fe80::1")),
            &[same],
            r#"[{"dst":"0.0.0.0/0","gw":"10.9.0.254"}]"#,
        );
    }

    #[test]
    fn an_answer_without_an_address_is_a_fault_of_ours() {
        assert_eq!(result(CniVersion::NEWEST, &Answer::default()).unwrap_err(), Error::NoAddress);
        assert!(!result(CniVersion::NEWEST, &answer()).unwrap().to_string().contains("interface"));
    }

    #[test]
    fn point_5_version_is_one_line() {
        let mut out = Vec::new();
        write(&mut out, &versions(CniVersion::V0_3_1)).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "{\"cniVersion\":\"0.3.1\",\"supportedVersions\":[\"0.1.0\",\"0.2.0\",\"0.3.0\",\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}\n"
        );
    }

    #[test]
    fn point_1_about_is_two_lines() {
        assert_eq!(
            about(),
            concat!(
                "CNI plugin leasehold v",
                env!("CARGO_PKG_VERSION"),
                "\nCNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n"
            )
        );
    }

    fn fault(field: &str, value: &str, problem: &str) -> Fault {
        Fault { field: field.into(), value: value.into(), problem: problem.into() }
    }

    /// Every variant, its code, and the line that kubelet shows.
    #[test]
    fn every_error_has_a_code_and_a_line() {
        let s = |text: &str| text.to_owned();
        let long = "such blocks are written by tenants and printed by crictl info; see /etc/cni/net.d/leasehold.d/config.json";
        let table: Vec<(Error, u32, String)> = vec![
            (
                Error::EnvMissing(vec!["CNI_NETNS", "CNI_IFNAME"]),
                4,
                s("required env variables [CNI_NETNS,CNI_IFNAME] missing"),
            ),
            (Error::ContainerIdCharacters { id: s("-a") }, 4, s("invalid characters in containerID; -a")),
            (Error::ContainerIdTooLong { why: s("too long") }, 4, s("invalid CNI_CONTAINERID; too long")),
            (
                Error::IfNameTooLong,
                4,
                s("interface name is too long; interface name should be less than 16 characters"),
            ),
            (Error::IfNameDots, 4, s("interface name is . or ..")),
            (Error::IfNameCharacters, 4, s("interface name contains / or : or whitespace characters")),
            (Error::UnknownCommand { command: s("NOPE") }, 4, s("unknown CNI_COMMAND: NOPE")),
            (
                Error::Args { problem: s("K8S_POD_NAME is bad") },
                4,
                s("invalid CNI_ARGS; K8S_POD_NAME is bad"),
            ),
            (Error::ReadStdin { cause: s("bad fd") }, 5, s("error reading from stdin: bad fd")),
            (Error::Decode { cause: s("eof") }, 6, s("error unmarshall network config: eof")),
            (Error::DecodeVersion { cause: s("x") }, 6, s("decoding version from network config: x")),
            (Error::NetworkMissing, 7, s("missing network name")),
            (
                Error::NetworkCharacters { name: s("a b") },
                7,
                s("invalid characters found in network name; a b"),
            ),
            (Error::NetworkTooLong { why: s("w") }, 7, s("network name is too long; w")),
            (
                Error::VersionUnsupported { config: s("1.2.0") },
                1,
                s(
                    "incompatible CNI versions; config is \"1.2.0\", plugin supports [\"0.1.0\" \"0.2.0\" \"0.3.0\" \"0.3.1\" \"0.4.0\" \"1.0.0\" \"1.1.0\"]",
                ),
            ),
            (Error::VersionTooLow { verb: "CHECK" }, 1, s("config version does not allow CHECK")),
            (Error::VersionTooHigh { verb: "GC" }, 1, s("plugin version does not allow GC")),
            (
                Error::IpamMissing,
                7,
                s(
                    "ipam is missing; the network's configuration needs \"ipam\": {\"type\": \"leasehold\"}, an object",
                ),
            ),
            (
                Error::IpamHostKeys(vec![s("endpoints"), s("password")]),
                7,
                format!(
                    "ipam.endpoints, ipam.password belong to the host file, not into a network's ipam block; {long}"
                ),
            ),
            (
                Error::IpamUnknown(vec![fault("ipam.pol", "db", "unknown key; did you mean \"pool\"?")]),
                2,
                s("unsupported field in ipam: ipam.pol = db; ipam.pol: unknown key; did you mean \"pool\"?"),
            ),
            (
                Error::IpamInvalid(vec![fault("a", "b", "c"), fault("d", "", "e")]),
                7,
                s("invalid ipam configuration; a: b: c; d: e"),
            ),
            (
                Error::Asked { key: s("annotation leasehold.io/ip"), value: s("x"), problem: s("p") },
                7,
                s("invalid annotation leasehold.io/ip = x; p"),
            ),
            (
                Error::Attachments { key: "cni.dev/attachments", problem: s("p") },
                7,
                s("invalid cni.dev/attachments; p"),
            ),
            (Error::OwnNetns, 8, s("plugin's netns and netns from CNI_NETNS should not be the same")),
            (
                Error::HostFileMissing { looked: vec!["/a".into(), "/b".into()] },
                7,
                s("there is no host file; looked for /a, /b; README.md says how to write it"),
            ),
            (
                Error::HostFileRead { path: "/a".into(), cause: s("No such file or directory (os error 2)") },
                5,
                s("cannot read /a; the file is missing (os error 2)"),
            ),
            (
                Error::HostFileInvalid { path: "/a".into(), faults: vec![fault("store", "", "is missing")] },
                7,
                s("invalid host file /a; store: is missing"),
            ),
            (
                Error::SecretReadable(Readable { path: "/a".into(), mode: 0o644 }),
                7,
                s(
                    "a secret can be read by others; /a holds a secret and has mode 0644: others can read it; run: chmod 0600 /a",
                ),
            ),
            (
                Error::TooManyOfAFamily { version: CniVersion::V0_2_0, family: Family::V4 },
                7,
                s(
                    "CNI version 0.2.0 does not support more than 1 address per family; the ranges would give more than one IPv4 address; use cniVersion 0.3.0 or later, or one range set",
                ),
            ),
            (Error::NoAddress, 102, s("internal error; an answer without an address was about to be given")),
            (Error::Write { cause: s("Broken pipe") }, 5, s("the result was not taken; Broken pipe")),
            (
                Error::Failure {
                    code: Code::TryAgain,
                    msg: s("store: key not found"),
                    details: s("a Not Found b é"),
                },
                11,
                s("store: key missing; a missing b é"),
            ),
        ];
        for (error, code, line) in table {
            assert_eq!((error.code().number(), error.to_string()), (code, line.clone()), "{error:?}");
            let lower = line.to_lowercase();
            assert!(!lower.contains("not found") && !lower.contains("no such file"), "{line}");
            let document = error.document(CniVersion::V1_0_0);
            assert_eq!(document["cniVersion"], "1.0.0");
            assert_eq!(document["code"], code);
            assert_eq!(document.get("details").is_some(), !error.details().is_empty());
        }
    }

    #[test]
    fn codes_are_cnis_or_from_100_on() {
        let codes = [
            Code::Version,
            Code::Field,
            Code::Environment,
            Code::Io,
            Code::Decode,
            Code::Config,
            Code::Netns,
            Code::TryAgain,
            Code::Unavailable,
            Code::AddressUnavailable,
            Code::LeaseMissing,
            Code::Internal,
        ];
        assert_eq!(codes.map(Code::number), [1, 2, 4, 5, 6, 7, 8, 11, 50, 100, 101, 102]);
    }

    #[test]
    fn a_reader_that_is_gone_is_an_error() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let error = write(&mut Gone, &versions(CniVersion::NEWEST)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
