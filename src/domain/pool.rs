//! A pool: a named set of ranges that serves a workload, a namespace, or everything. If a [`Pool`] exists it is
//! consistent: every fault of a [`Draft`] is found, and all are reported together.

use std::{fmt, net::IpAddr, time::Duration};

use super::{
    addr::{AddrRange, AddrSet, Family, Prefix, number, parse_address},
    names::{ClusterName, DomainName, Namespace, NetworkName, NodeName, PoolName, WorkloadName},
};

/// macvlan calls IPAM's DEL before it removes the link, so an address given back may still answer for a moment.
pub const DEFAULT_COOL_DOWN: Duration = Duration::from_secs(5);
/// Lower comes first; a pool that says nothing stands in the middle.
pub const DEFAULT_PRIORITY: u32 = 100;
/// etcd takes 128 operations in a transaction: 60 old entries out, 60 new ones in, and the pool itself.
pub const MAX_SERVES: usize = 60;
/// Each range of a pool costs keys in one transaction; more ranges than this belong to more pools.
pub const MAX_RANGES: usize = 32;
/// The domain of a pool that names none.
pub const DEFAULT_DOMAIN: &str = "default";

/// One thing that is wrong with a document: where, what stands there, and what is accepted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fault {
    /// The path of the field, such as `ranges[0].start`.
    pub field: String,
    /// Its value as it was given.
    pub value: String,
    /// What is wrong with it and what would be right.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.value.is_empty() {
            write!(f, "{}: {}", self.field, self.problem)
        } else {
            write!(f, "{}: {}: {}", self.field, self.value, self.problem)
        }
    }
}

/// A pool as somebody wrote it: texts that nobody has read yet.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "the fields are those of Pool, which says what they mean")]
pub struct Draft {
    pub name: String,
    pub networks: Vec<String>,
    pub serves: Vec<String>,
    pub clusters: Vec<String>,
    pub nodes: Vec<String>,
    pub priority: Option<u32>,
    pub domain: Option<String>,
    pub ranges: Vec<RangeDraft>,
    pub routes: Vec<RouteDraft>,
    pub dns: Dns,
    pub sticky: Option<String>,
    pub when_deleted: Option<String>,
    pub when_scaled: Option<String>,
    pub hold_for: Option<String>,
    pub node_lost: Option<String>,
    pub cool_down: Option<String>,
    pub probe: Option<String>,
}

/// A range as somebody wrote it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "the fields are those of Range, which says what they mean")]
pub struct RangeDraft {
    pub subnet: String,
    pub start: Option<String>,
    pub end: Option<String>,
    pub gateway: Option<String>,
    pub exclude: Vec<String>,
}

/// A route as somebody wrote it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "the fields are those of Route, which says what they mean")]
pub struct RouteDraft {
    pub dst: String,
    pub gw: Option<String>,
    pub mtu: Option<u32>,
    pub advmss: Option<u32>,
    pub priority: Option<u32>,
    pub table: Option<u32>,
    pub scope: Option<u32>,
}

/// Which networks a pool is for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Networks {
    /// `"*"`, which must be written.
    Every,
    /// These.
    Named(Vec<NetworkName>),
}

/// Whom a pool serves.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Serve {
    /// `namespace/workload`
    Workload(Namespace, WorkloadName),
    /// `namespace/*`
    Namespace(Namespace),
    /// `*/*`
    Everything,
}

impl fmt::Display for Serve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match self {
            Self::Workload(namespace, workload) => format!("{namespace}/{workload}"),
            Self::Namespace(namespace) => format!("{namespace}/*"),
            Self::Everything => "*/*".to_owned(),
        })
    }
}

/// A condition on the node: a name with `*` for any run of characters, or `label=value` from the host file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NodeRule {
    /// A name pattern.
    Name(String),
    /// A label of the host file.
    Label(String, String),
}

impl NodeRule {
    fn parse(text: &str) -> Result<Self, String> {
        if let Some((key, value)) = text.split_once('=') {
            if key.is_empty() || value.is_empty() {
                return Err("a label is written key=value".into());
            }
            return Ok(Self::Label(key.into(), value.into()));
        }
        NodeName::new(text.replace('*', "x")).map_err(|error| error.to_string())?;
        Ok(Self::Name(text.into()))
    }

    /// Does it hold for this node?
    #[must_use]
    pub fn holds(&self, node: &NodeName, labels: &[(String, String)]) -> bool {
        match self {
            Self::Name(pattern) => matches_pattern(pattern, node.as_str()),
            Self::Label(key, value) => labels.iter().any(|(k, v)| k == key && v == value),
        }
    }
}

impl fmt::Display for NodeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(pattern) => f.pad(pattern),
            Self::Label(key, value) => f.pad(&format!("{key}={value}")),
        }
    }
}

/// `*` stands for any run of characters; nothing else is special.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = name.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// A range: alternatives of one family stand in the pool's order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Range {
    subnet: Prefix,
    bounds: AddrRange,
    gateway: Option<IpAddr>,
    exclude: Vec<AddrRange>,
    usable: AddrSet,
}

impl Range {
    /// Reads one; `field` is its path in the document.
    ///
    /// # Errors
    /// Every [`Fault`] it has.
    pub fn from_draft(field: &str, draft: &RangeDraft) -> Result<Self, Vec<Fault>> {
        let mut faults = Faults::default();
        let at = |name: &str| format!("{field}.{name}");
        let Some(subnet) = faults.take(&at("subnet"), &draft.subnet, Prefix::parse(&draft.subnet)) else {
            return Err(faults.0);
        };
        if is_special(subnet) {
            faults.push(
                &at("subnet"),
                &draft.subnet,
                "loopback, multicast and unspecified addresses cannot be leased",
            );
        }
        let family = subnet.family();
        let mut inside = |name: &str, text: &Option<String>, must: bool| {
            let text = text.as_deref()?;
            let address = faults.take(&at(name), text, parse_address(text))?;
            if Family::of(address) != family {
                faults.push(&at(name), text, &format!("is no {family} address, but the subnet {subnet} is"));
                return None;
            }
            if must && !subnet.contains(address) {
                faults.push(&at(name), text, &format!("is outside the subnet {subnet}"));
                return None;
            }
            Some(address)
        };
        let start = inside("start", &draft.start, true);
        let end = inside("end", &draft.end, true);
        let gateway = inside("gateway", &draft.gateway, false);
        if let Some(gateway) = gateway
            && !subnet.contains(gateway)
            && !is_link_local(gateway)
        {
            let allowed =
                if family == Family::V6 { "; a link-local gateway (fe80::/10) is allowed" } else { "" };
            faults.push(
                &at("gateway"),
                &gateway.to_string(),
                &format!("is outside the subnet {subnet}{allowed}"),
            );
        }
        let mut exclude = Vec::new();
        for (index, text) in draft.exclude.iter().enumerate() {
            let name = at(&format!("exclude[{index}]"));
            if let Some(range) = faults.take(&name, text, AddrRange::parse(text)) {
                if range.family() == family {
                    exclude.push(range);
                } else {
                    faults.push(&name, text, &format!("is not {family}, but the subnet {subnet} is"));
                }
            }
        }
        let (low, high) = assignable(subnet);
        let first = start.map_or(low, number);
        let last = end.map_or(high, number);
        let Some(bounds) = AddrRange::of_numbers(family, first, last) else {
            faults.push(
                &at("start"),
                &family.address(first).to_string(),
                &format!("comes after the end {}", family.address(last)),
            );
            return Err(faults.0);
        };
        let mut holes = exclude.clone();
        holes.extend(gateway.and_then(|g| AddrRange::new(g, g).ok()));
        holes.extend(never_assigned(subnet).into_iter().flatten());
        let usable = AddrSet::without(bounds, &holes);
        if usable.is_empty() {
            faults.push(
                field,
                &bounds.to_string(),
                "nothing usable is left after gateway, network, broadcast and exclusions",
            );
        }
        if faults.0.is_empty() {
            Ok(Self { subnet, bounds, gateway, exclude, usable })
        } else {
            Err(faults.0)
        }
    }

    /// The subnet: what a pod gets as its prefix length.
    #[must_use]
    pub const fn subnet(&self) -> Prefix {
        self.subnet
    }

    /// Start and end, both included.
    #[must_use]
    pub const fn bounds(&self) -> AddrRange {
        self.bounds
    }

    /// The gateway, if one is configured: none is guessed.
    #[must_use]
    pub const fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// What must not be leased.
    #[must_use]
    pub fn exclude(&self) -> &[AddrRange] {
        &self.exclude
    }

    /// What may be leased: start to end without gateway, network, broadcast, subnet-router anycast, exclusions.
    #[must_use]
    pub const fn usable(&self) -> &AddrSet {
        &self.usable
    }

    /// Its family.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.subnet.family()
    }

    /// What an address is that it never leases, wherever it starts and ends.
    fn never(&self, address: IpAddr) -> Option<&'static str> {
        if self.gateway == Some(address) {
            return Some("the gateway");
        }
        let [low, high] = never_assigned(self.subnet).map(|end| end.is_some_and(|end| end.contains(address)));
        match self.family() {
            Family::V4 if low => Some("the network address"),
            Family::V4 if high => Some("the broadcast address"),
            Family::V6 if low => Some("the subnet-router anycast address"),
            Family::V4 | Family::V6 => {
                self.exclude.iter().any(|hole| hole.contains(address)).then_some("excluded")
            }
        }
    }

    /// The same range, with one more address never given out.
    #[must_use]
    pub fn also_without(mut self, address: IpAddr) -> Self {
        if let Ok(hole) = AddrRange::new(address, address) {
            self.exclude.push(hole);
            let mut holes = self.exclude.clone();
            holes.extend(self.gateway.and_then(|g| AddrRange::new(g, g).ok()));
            holes.extend(never_assigned(self.subnet).into_iter().flatten());
            self.usable = AddrSet::without(self.bounds, &holes);
        }
        self
    }
}

/// Why none of these ranges leases an address: a few words, to stand behind the name of what they are of.
pub fn why_not_leased<'a>(ranges: impl Iterator<Item = &'a Range> + Clone, address: IpAddr) -> String {
    let family = Family::of(address);
    let mut ranges = ranges.filter(|range| range.family() == family);
    match (ranges.clone().next(), ranges.find_map(|range| range.never(address))) {
        (None, _) => format!("no {family} range"),
        (Some(_), Some(what)) => what.to_owned(),
        (Some(_), None) => "outside its ranges".to_owned(),
    }
}

/// Network and broadcast address (IPv4 up to /30), subnet-router anycast (IPv6 up to /126; RFC 4291 2.6.1).
/// /31 and /32, /127 (RFC 6164) and /128 have none.
fn never_assigned(subnet: Prefix) -> [Option<AddrRange>; 2] {
    let one = |n| AddrRange::of_numbers(subnet.family(), n, n);
    match subnet.family() {
        Family::V4 if subnet.length() <= 30 => [one(subnet.first()), one(subnet.last())],
        Family::V6 if subnet.length() <= 126 => [one(subnet.first()), None],
        Family::V4 | Family::V6 => [None, None],
    }
}

/// The lowest and the highest address that a host of this subnet may have.
fn assignable(subnet: Prefix) -> (u128, u128) {
    let [low, high] = never_assigned(subnet);
    (subnet.first() + u128::from(low.is_some()), subnet.last() - u128::from(high.is_some()))
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(a) => a.is_unicast_link_local(),
    }
}

fn is_special(subnet: Prefix) -> bool {
    let (first, last) = (subnet.family().address(subnet.first()), subnet.family().address(subnet.last()));
    [first, last].iter().any(|a| a.is_loopback() || a.is_multicast() || a.is_unspecified())
}

/// A route of the answer. `gw` absent: the gateway of the address of the same family.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Route {
    /// Destination, without host bits.
    pub dst: Prefix,
    /// Next hop, of the destination's family.
    pub gw: Option<IpAddr>,
    /// Attributes of CNI 1.1 routes.
    pub attributes: RouteAttributes,
}

/// The attributes that CNI 1.1 gave routes; `None` is not printed.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct RouteAttributes {
    /// Path MTU, bytes.
    pub mtu: Option<u32>,
    /// Advertised maximum segment size, bytes.
    pub advmss: Option<u32>,
    /// The metric.
    pub priority: Option<u32>,
    /// The routing table's number.
    pub table: Option<u32>,
    /// The kernel's scope number (253 is link).
    pub scope: Option<u32>,
}

impl Route {
    /// Reads one; `field` is its path in the document.
    ///
    /// # Errors
    /// Every [`Fault`] it has.
    pub fn from_draft(field: &str, draft: &RouteDraft) -> Result<Self, Vec<Fault>> {
        let mut faults = Faults::default();
        let dst = faults.take(&format!("{field}.dst"), &draft.dst, Prefix::parse(&draft.dst));
        let gw = draft.gw.as_deref().filter(|gw| !gw.is_empty());
        let gw = gw.map(|gw| faults.take(&format!("{field}.gw"), gw, parse_address(gw)));
        if let (Some(dst), Some(Some(gw))) = (dst, gw)
            && dst.family() != Family::of(gw)
        {
            faults.push(&format!("{field}.gw"), &gw.to_string(), &format!("is not of the family of {dst}"));
        }
        match dst {
            Some(dst) if faults.0.is_empty() => Ok(Self {
                dst,
                gw: gw.flatten(),
                attributes: RouteAttributes {
                    mtu: draft.mtu,
                    advmss: draft.advmss,
                    priority: draft.priority,
                    table: draft.table,
                    scope: draft.scope,
                },
            }),
            Some(_) | None => Err(faults.0),
        }
    }
}

/// CNI's `dns`, passed on as it is.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[expect(missing_docs, reason = "named by the CNI specification")]
pub struct Dns {
    pub nameservers: Vec<String>,
    pub domain: Option<String>,
    pub search: Vec<String>,
    pub options: Vec<String>,
}

impl Dns {
    /// Says nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.nameservers.is_empty()
            && self.domain.is_none()
            && self.search.is_empty()
            && self.options.is_empty()
    }
}

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum $name { $($(#[$vdoc])* $variant),* }

        impl $name {
            /// The word in the document.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(format!("must be one of: {}", [$($text),*].join(", "))),
                }
            }
        }
    )*};
}

words! {
    /// Whether leases of this pool are sticky.
    StickyRule {
        /// Annotation, controller and name decide.
        Auto = "auto",
        /// All pods without a random suffix.
        Always = "always",
        /// None.
        Never = "never",
    }
    /// What happens to a held lease.
    Retain {
        /// It is given back.
        Delete = "Delete",
        /// It stays held.
        Retain = "Retain",
    }
    /// What is assumed of a node that cannot be asked.
    NodeLost {
        /// It is gone: its addresses may be used again (after a probe, where one can be made).
        Free = "free",
        /// It may live: its addresses stay.
        Keep = "keep",
    }
    /// When an address is asked for on the wire before it is leased.
    ProbeRule {
        /// When somebody may still answer on it.
        Unconfirmed = "unconfirmed",
        /// Every new address.
        Always = "always",
        /// Never.
        Never = "never",
    }
}

/// How long held leases stay.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Retention {
    /// The controller is gone.
    pub when_deleted: Retain,
    /// The controller wants fewer.
    pub when_scaled: Retain,
    /// Upper limit; zero is none.
    pub hold_for: Duration,
}

/// A pool that is right.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pool {
    name: PoolName,
    networks: Networks,
    serves: Vec<Serve>,
    clusters: Vec<ClusterName>,
    nodes: Vec<NodeRule>,
    priority: u32,
    domain: DomainName,
    ranges: Vec<Range>,
    routes: Vec<Route>,
    dns: Dns,
    sticky: StickyRule,
    retention: Retention,
    node_lost: NodeLost,
    cool_down: Duration,
    probe: ProbeRule,
}

impl Pool {
    /// Reads a draft.
    ///
    /// # Errors
    /// Every [`Fault`] it has, in the order of the fields.
    pub fn from_draft(draft: &Draft) -> Result<Self, Vec<Fault>> {
        let mut faults = Faults::default();
        let name = faults.take("name", &draft.name, PoolName::new(draft.name.as_str()));
        let networks = faults.networks(&draft.networks);
        let serves = faults.serves(&draft.serves);
        let clusters = faults.each("clusters", &draft.clusters, |text| ClusterName::new(text));
        let nodes = faults.each("nodes", &draft.nodes, NodeRule::parse);
        let domain = draft.domain.as_deref().unwrap_or(DEFAULT_DOMAIN);
        let domain = faults.take("domain", domain, DomainName::new(domain));
        let ranges = faults.ranges(&draft.ranges);
        let mut routes: Vec<Route> = Vec::new();
        for (index, route) in draft.routes.iter().enumerate() {
            match Route::from_draft(&format!("routes[{index}]"), route) {
                Ok(route) if routes.iter().any(|r| r.dst == route.dst && r.gw == route.gw) => {}
                Ok(route) => routes.push(route),
                Err(found) => faults.0.extend(found),
            }
        }
        for (index, server) in draft.dns.nameservers.iter().enumerate() {
            faults.take(&format!("dns.nameservers[{index}]"), server, parse_address(server));
        }
        let sticky = faults.word("sticky", draft.sticky.as_deref(), StickyRule::Auto, StickyRule::parse);
        let when_deleted = faults.word(
            "retention.whenDeleted",
            draft.when_deleted.as_deref(),
            Retain::Delete,
            Retain::parse,
        );
        let when_scaled =
            faults.word("retention.whenScaled", draft.when_scaled.as_deref(), Retain::Retain, Retain::parse);
        let hold_for =
            faults.word("retention.holdFor", draft.hold_for.as_deref(), Duration::ZERO, parse_duration);
        let node_lost = faults.word("nodeLost", draft.node_lost.as_deref(), NodeLost::Free, NodeLost::parse);
        let cool_down =
            faults.word("coolDown", draft.cool_down.as_deref(), DEFAULT_COOL_DOWN, parse_duration);
        let probe = faults.word("probe", draft.probe.as_deref(), ProbeRule::Unconfirmed, ProbeRule::parse);
        let (Some(name), Some(networks), Some(domain), true) = (name, networks, domain, faults.0.is_empty())
        else {
            return Err(faults.0);
        };
        let retention = Retention { when_deleted, when_scaled, hold_for };
        let priority = draft.priority.unwrap_or(DEFAULT_PRIORITY);
        Ok(Self {
            name,
            networks,
            serves,
            clusters,
            nodes,
            priority,
            domain,
            ranges,
            routes,
            dns: draft.dns.clone(),
            sticky,
            retention,
            node_lost,
            cool_down,
            probe,
        })
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &PoolName {
        &self.name
    }
    /// The CNI networks it is for.
    #[must_use]
    pub const fn networks(&self) -> &Networks {
        &self.networks
    }
    /// Whom it serves; nobody else can draw from it.
    #[must_use]
    pub fn serves(&self) -> &[Serve] {
        &self.serves
    }
    /// Its clusters; empty is every registered one.
    #[must_use]
    pub fn clusters(&self) -> &[ClusterName] {
        &self.clusters
    }
    /// Its nodes; empty is every node.
    #[must_use]
    pub fn nodes(&self) -> &[NodeRule] {
        &self.nodes
    }
    /// Lower first, between pools that serve a pod equally closely.
    #[must_use]
    pub const fn priority(&self) -> u32 {
        self.priority
    }
    /// The space in which its addresses are unique.
    #[must_use]
    pub const fn domain(&self) -> &DomainName {
        &self.domain
    }
    /// Its ranges, in order.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }
    /// Its routes.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }
    /// Its dns.
    #[must_use]
    pub const fn dns(&self) -> &Dns {
        &self.dns
    }
    /// Whether its leases are sticky.
    #[must_use]
    pub const fn sticky(&self) -> StickyRule {
        self.sticky
    }
    /// How long held leases stay.
    #[must_use]
    pub const fn retention(&self) -> Retention {
        self.retention
    }
    /// What is assumed of a node that cannot be asked.
    #[must_use]
    pub const fn node_lost(&self) -> NodeLost {
        self.node_lost
    }
    /// How long an address given back is kept from others.
    #[must_use]
    pub const fn cool_down(&self) -> Duration {
        self.cool_down
    }
    /// When its addresses are probed.
    #[must_use]
    pub const fn probe(&self) -> ProbeRule {
        self.probe
    }

    /// The families it has, IPv4 first.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        [Family::V4, Family::V6]
            .into_iter()
            .filter(|f| self.ranges.iter().any(|r| r.family() == *f))
            .collect()
    }

    /// How many addresses may be leased from it.
    #[must_use]
    pub fn size(&self) -> u128 {
        self.ranges.iter().fold(0u128, |sum, range| sum.saturating_add(range.usable.size()))
    }

    /// The range whose usable set holds the address.
    #[must_use]
    pub fn range_of(&self, address: IpAddr) -> Option<&Range> {
        self.ranges.iter().find(|range| range.usable.contains(address))
    }

    /// Things that are allowed and seldom meant; `pool apply` prints them.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut out = Vec::new();
        for serve in &self.serves {
            if let Serve::Workload(_, workload) = serve
                && workload.as_str().len() > LONGEST_UNCUT_WORKLOAD
            {
                out.push(format!(
                    "serves {serve}: Kubernetes may cut the pods' names of a workload of over {LONGEST_UNCUT_WORKLOAD} characters, and then they are not found under it"
                ));
            }
        }
        for (index, range) in self.ranges.iter().enumerate() {
            for hole in &range.exclude {
                if !hole.overlaps(range.bounds) {
                    out.push(format!("ranges[{index}].exclude {hole} is outside {}", range.bounds));
                }
            }
        }
        if self.serves.is_empty() {
            out.push("serves is empty: nobody can draw from this pool".into());
        }
        for family in self.families() {
            let gateway = self.ranges.iter().any(|r| r.family() == family && r.gateway.is_some());
            let default = self.routes.iter().any(|r| r.dst.family() == family && r.dst.length() == 0);
            if gateway && !default {
                out.push(format!(
                    "{family}: a gateway alone makes no route; add a default route if pods should use it"
                ));
            }
        }
        out
    }
}

/// 63 (a label) less `-`, ten of a template hash, `-` and five of a suffix.
const LONGEST_UNCUT_WORKLOAD: usize = 46;

/// Go's spelling of durations: `300ms`, `5s`, `10m`, `1h30m`, `0s`.
///
/// # Errors
/// What is accepted.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let error = || "must be a duration such as 300ms, 5s, 10m or 1h30m".to_owned();
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(error());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(error)?;
        let count: u64 = rest[..digits].parse().map_err(|_| error())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit_ms: u64 = match &rest[..letters] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(error()),
        };
        let part = count.checked_mul(unit_ms).ok_or_else(error)?;
        total = total.checked_add(Duration::from_millis(part)).ok_or_else(error)?;
        rest = &rest[letters..];
    }
    Ok(total)
}

/// The spelling that [`parse_duration`] reads.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    if !ms.is_multiple_of(1000) {
        return format!("{ms}ms");
    }
    let (mut seconds, mut out) = (ms / 1000, String::new());
    for (unit, size) in [("h", 3600), ("m", 60), ("s", 1)] {
        if seconds >= size {
            out.push_str(&format!("{}{unit}", seconds / size));
            seconds %= size;
        }
    }
    if out.is_empty() { "0s".into() } else { out }
}

/// Collects faults.
#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn push(&mut self, field: &str, value: &str, problem: &str) {
        self.0.push(Fault { field: field.into(), value: value.into(), problem: problem.into() });
    }

    fn take<T, E: fmt::Display>(&mut self, field: &str, value: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.push(field, value, &error.to_string())).ok()
    }

    fn each<T, E: fmt::Display>(
        &mut self,
        field: &str,
        texts: &[String],
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        let mut out = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            out.extend(self.take(&format!("{field}[{index}]"), text, parse(text)));
        }
        out
    }

    fn word<T>(
        &mut self,
        field: &str,
        text: Option<&str>,
        default: T,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> T {
        match text {
            Some(text) => self.take(field, text, parse(text)).unwrap_or(default),
            None => default,
        }
    }

    fn networks(&mut self, texts: &[String]) -> Option<Networks> {
        if texts.is_empty() {
            self.push(
                "networks",
                "",
                "is missing: name the CNI networks this pool is for, or [\"*\"] for every one",
            );
            return None;
        }
        if texts.len() == 1 && texts[0] == "*" {
            return Some(Networks::Every);
        }
        let named = self.each("networks", texts, |text| NetworkName::new(text));
        Some(Networks::Named(named))
    }

    fn serves(&mut self, texts: &[String]) -> Vec<Serve> {
        if texts.len() > MAX_SERVES {
            let problem = format!(
                "{} entries; at most {MAX_SERVES} fit one transaction: serve the namespace (shop/*) or make a second pool",
                texts.len()
            );
            self.push("serves", "", &problem);
        }
        let mut out = self.each("serves", texts, parse_serve);
        let mut seen = Vec::new();
        out.retain(|serve| {
            !seen.contains(serve) && {
                seen.push(serve.clone());
                true
            }
        });
        out
    }

    fn ranges(&mut self, drafts: &[RangeDraft]) -> Vec<Range> {
        if drafts.is_empty() {
            self.push("ranges", "", "is missing: a pool needs at least one range with a subnet");
        }
        if drafts.len() > MAX_RANGES {
            self.push(
                "ranges",
                "",
                &format!("{} ranges; at most {MAX_RANGES} are accepted: make a second pool", drafts.len()),
            );
        }
        let mut out: Vec<Range> = Vec::new();
        for (index, draft) in drafts.iter().enumerate() {
            let field = format!("ranges[{index}]");
            match Range::from_draft(&field, draft) {
                Ok(range) => {
                    if let Some(other) = out.iter().find(|r| r.bounds.overlaps(range.bounds)) {
                        let problem = format!("overlaps {} of the same pool", other.bounds);
                        self.push(&field, &range.bounds.to_string(), &problem);
                    }
                    out.push(range);
                }
                Err(found) => self.0.extend(found),
            }
        }
        for (index, range) in out.iter().enumerate() {
            let foreign = out.iter().filter_map(|r| r.gateway).find(|g| range.usable.contains(*g));
            if let Some(gateway) = foreign {
                self.push(
                    &format!("ranges[{index}]"),
                    &range.bounds.to_string(),
                    &format!("holds {gateway}, the gateway of another range: exclude it"),
                );
            }
        }
        out
    }
}

/// Reads `namespace/workload`, `namespace/*` or `*/*`.
///
/// # Errors
/// What is accepted.
pub fn parse_serve(text: &str) -> Result<Serve, String> {
    let form = || "must be namespace/workload, namespace/* or */*".to_owned();
    let (namespace, workload) = text.split_once('/').ok_or_else(form)?;
    if namespace == "*" {
        return if workload == "*" { Ok(Serve::Everything) } else { Err(form()) };
    }
    let namespace = Namespace::new(namespace).map_err(|error| error.to_string())?;
    if workload == "*" {
        return Ok(Serve::Namespace(namespace));
    }
    let workload = WorkloadName::new(workload).map_err(|error| error.to_string())?;
    Ok(Serve::Workload(namespace, workload))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(subnet: &str, start: &str, end: &str, gateway: &str, exclude: &[&str]) -> RangeDraft {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        RangeDraft {
            subnet: subnet.into(),
            start: some(start),
            end: some(end),
            gateway: some(gateway),
            exclude: exclude.iter().map(|s| (*s).to_owned()).collect(),
        }
    }

    fn draft(ranges: Vec<RangeDraft>) -> Draft {
        Draft {
            name: "shop-db".into(),
            networks: vec!["lan100".into()],
            serves: vec!["shop/db".into()],
            ranges,
            ..Draft::default()
        }
    }

    #[track_caller]
    fn usable(subnet: &str, start: &str, end: &str, gateway: &str, exclude: &[&str], wanted: &str) {
        let pool = Pool::from_draft(&draft(vec![range(subnet, start, end, gateway, exclude)])).unwrap();
        let runs: Vec<String> = pool.ranges()[0].usable().runs().iter().map(ToString::to_string).collect();
        assert_eq!(runs.join(" "), wanted);
    }

    #[test]
    fn b093_network_and_broadcast_are_never_usable() {
        usable("10.0.0.0/24", "", "", "", &[], "10.0.0.1-10.0.0.254");
        usable("10.0.0.0/24", "10.0.0.0", "10.0.0.255", "", &[], "10.0.0.1-10.0.0.254");
        usable("192.168.2.224/28", "192.168.2.225", "192.168.2.230", "", &[], "192.168.2.225-192.168.2.230");
        usable("10.0.0.0/31", "", "", "", &[], "10.0.0.0-10.0.0.1");
        usable("10.0.0.7/32", "", "", "", &[], "10.0.0.7");
        usable("fd00::/127", "", "", "", &[], "fd00::-fd00::1");
        usable("fd00::7/128", "", "", "", &[], "fd00::7");
        usable("fd00:9::/64", "", "", "", &[], "fd00:9::1-fd00:9::ffff:ffff:ffff:ffff");
    }

    #[test]
    fn b092_b094_exclusions_and_gateway_are_never_usable() {
        usable("10.0.0.0/24", "10.0.0.10", "10.0.0.13", "10.0.0.11", &[], "10.0.0.10 10.0.0.12-10.0.0.13");
        usable(
            "10.0.0.0/24",
            "10.0.0.10",
            "10.0.0.13",
            "",
            &["10.0.0.10", "10.0.0.13"],
            "10.0.0.11-10.0.0.12",
        );
        usable(
            "fd00:9::/64",
            "fd00:9::1",
            "fd00:9::f",
            "",
            &["fd00:9::2-fd00:9::4", "fd00:9::3-fd00:9::8"],
            "fd00:9::1 fd00:9::9-fd00:9::f",
        );
        usable("10.0.0.0/24", "10.0.0.10", "10.0.0.13", "", &["10.0.0.12/31"], "10.0.0.10-10.0.0.11");
    }

    #[track_caller]
    fn faults(draft: &Draft, wanted: &[&str]) {
        let found: Vec<String> =
            Pool::from_draft(draft).unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn all_faults_are_reported_at_once_with_field_and_value() {
        let mut bad = draft(vec![
            range("10.0.0.0/24", "10.0.0.9", "10.0.0.5", "", &[]),
            range("10.0.1.0/24", "10.0.2.1", "", "10.0.9.1", &[]),
            range("10.0.3.0/24", "fd00::1", "", "", &["x"]),
        ]);
        bad.networks.clear();
        bad.serves.push("shop".into());
        bad.sticky = Some("maybe".into());
        bad.cool_down = Some("5".into());
        faults(
            &bad,
            &[
                "networks: is missing: name the CNI networks this pool is for, or [\"*\"] for every one",
                "serves[1]: shop: must be namespace/workload, namespace/* or */*",
                "ranges[0].start: 10.0.0.9: comes after the end 10.0.0.5",
                "ranges[1].start: 10.0.2.1: is outside the subnet 10.0.1.0/24",
                "ranges[1].gateway: 10.0.9.1: is outside the subnet 10.0.1.0/24",
                "ranges[2].start: fd00::1: is no IPv4 address, but the subnet 10.0.3.0/24 is",
                "ranges[2].exclude[0]: x: \"x\" is not an IPv4 or IPv6 address",
                "sticky: maybe: must be one of: auto, always, never",
                "coolDown: 5: must be a duration such as 300ms, 5s, 10m or 1h30m",
            ],
        );
    }

    #[test]
    fn a_pool_without_a_usable_address_is_refused() {
        faults(
            &draft(vec![range("10.0.0.0/24", "10.0.0.5", "10.0.0.5", "10.0.0.5", &[])]),
            &["ranges[0]: 10.0.0.5: nothing usable is left after gateway, network, broadcast and exclusions"],
        );
        faults(
            &draft(vec![
                range("10.0.0.0/24", "10.0.0.5", "10.0.0.9", "", &[]),
                range("10.0.0.0/24", "10.0.0.9", "10.0.0.12", "", &[]),
            ]),
            &["ranges[1]: 10.0.0.9-10.0.0.12: overlaps 10.0.0.5-10.0.0.9 of the same pool"],
        );
    }

    #[test]
    fn a_link_local_gateway_is_right_for_ipv6() {
        assert!(Pool::from_draft(&draft(vec![range("fd00:9::/64", "", "", "fe80::1", &[])])).is_ok());
        faults(
            &draft(vec![range("10.0.0.0/24", "", "", "169.254.1.1", &[])]),
            &["ranges[0].gateway: 169.254.1.1: is outside the subnet 10.0.0.0/24"],
        );
    }

    #[track_caller]
    fn pattern(pattern: &str, name: &str, wanted: bool) {
        let node = NodeName::new(name).unwrap();
        assert_eq!(
            NodeRule::parse(pattern).unwrap().holds(&node, &[("rack".into(), "a".into())]),
            wanted,
            "{pattern} {name}"
        );
    }

    #[test]
    fn node_rules() {
        pattern("n*", "n12", true);
        pattern("n*", "m12", false);
        pattern("n12", "n12", true);
        pattern("n12", "n123", false);
        pattern("*-a-*", "x-a-b", true);
        pattern("*b", "ab", true);
        pattern("a*b*c", "abbc", true);
        pattern("a*b*c", "ac", false);
        pattern("rack=a", "n1", true);
        pattern("rack=b", "n1", false);
    }

    #[track_caller]
    fn duration(text: &str, ms: u64) {
        let parsed = parse_duration(text).unwrap();
        assert_eq!(parsed, Duration::from_millis(ms));
        assert_eq!(parse_duration(&format_duration(parsed)), Ok(parsed));
    }

    #[test]
    fn durations_are_gos() {
        duration("0s", 0);
        duration("300ms", 300);
        duration("1h30m", 5_400_000);
        duration("10m", 600_000);
        duration("2d", 172_800_000);
        for bad in ["", "5", "s", "5x", "-5s", "99999999999999999999s", "18446744073709551615h"] {
            assert!(parse_duration(bad).is_err(), "{bad:?}");
        }
    }
}
