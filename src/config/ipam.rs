//! The `ipam` block of a network's configuration. Tenants write such blocks: it may ask for pools and addresses and
//! bring ranges, but nothing in it says where the store is or who we are.

use std::{net::IpAddr, path::PathBuf};

use serde_json::Value;

use crate::{
    config::table::{Case, Faults, Table, fold, is_secret, show, words},
    domain::{
        addr::{Prefix, parse_address},
        names::PoolName,
        pool::{Dns, Fault, MAX_RANGES, Range, RangeDraft, Route, RouteDraft},
    },
};

/// Why an `ipam` block is refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum IpamError {
    /// There is none, or it is no object.
    Missing,
    /// Store settings, secrets or log files: tenants write such blocks, and `crictl info` prints them. Names only.
    HostKeys(Vec<String>),
    /// Keys that nobody knows.
    Unknown(Vec<Fault>),
    /// Values that are wrong.
    Invalid(Vec<Fault>),
}

/// An address that somebody asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RequestedAddress {
    /// The address.
    pub address: IpAddr,
    /// The prefix length that it was written with, if one was.
    pub length: Option<u8>,
}

impl RequestedAddress {
    /// Reads an address with or without a prefix length.
    ///
    /// # Errors
    /// What is accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = || "must be an IPv4 or IPv6 address, with or without a prefix length".to_owned();
        if text.contains('/') {
            let (address, prefix) = Prefix::parse_host(text).map_err(|_| form())?;
            return Ok(Self { address, length: Some(prefix.length()) });
        }
        parse_address(text).map(|address| Self { address, length: None }).map_err(|_| form())
    }
}

/// Ranges of the `ipam` block, host-local's schema.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InlineRanges {
    /// One address is leased from each set; the ranges of a set are alternatives, in order.
    pub sets: Vec<Vec<Range>>,
}

/// The `ipam` block.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct IpamBlock {
    /// `pool`: tried in this order; empty if nothing is asked.
    pub pools: Vec<PoolName>,
    /// `ips`: empty if nothing is asked.
    pub ips: Vec<RequestedAddress>,
    /// `ranges` and the shorthand.
    pub inline: Option<InlineRanges>,
    /// `routes`.
    pub routes: Vec<Route>,
    /// `dns`.
    pub dns: Dns,
    /// `resolvConf`: the caller reads it and gives the text to [`parse_resolv_conf`].
    pub resolv_conf: Option<PathBuf>,
    /// `dataDir`: host-local's, ignored; said so that it can be logged.
    pub data_dir: Option<String>,
}

const IPAM_KEYS: &[&str] = &[
    "type",
    "pool",
    "ips",
    "ranges",
    "subnet",
    "rangeStart",
    "rangeEnd",
    "gateway",
    "routes",
    "resolvConf",
    "dns",
    "dataDir",
];
const RANGE_KEYS: &[&str] = &["subnet", "rangeStart", "rangeEnd", "gateway"];
const ROUTE_KEYS: &[&str] = &["dst", "gw", "mtu", "advmss", "priority", "table", "scope"];
const DNS_KEYS: &[&str] = &["nameservers", "domain", "search", "options"];

/// Names, folded, that belong to the host file. `etcd…` does, too.
const HOST_WORDS: &[&str] = &[
    "store",
    "storage",
    "datastore",
    "endpoint",
    "endpoints",
    "prefix",
    "local",
    "cacert",
    "ca",
    "cafile",
    "cert",
    "certfile",
    "key",
    "keyfile",
    "tls",
    "username",
    "user",
    "password",
    "passwordfile",
    "passwd",
    "secret",
    "token",
    "log",
    "logfile",
    "loglevel",
    "kubernetes",
    "kubeconfig",
    "cluster",
    "node",
    "nodename",
    "labels",
    "statedir",
    "inlineranges",
    "statuschecksstore",
    "deadlines",
    "stickykinds",
    "journal",
];
impl IpamBlock {
    /// Reads the block of an ADD.
    ///
    /// # Errors
    /// The gravest kind of [`IpamError`], with everything of that kind.
    pub fn parse(ipam: Option<&Value>) -> Result<Self, IpamError> {
        let ipam = ipam.and_then(|value| Table::of("ipam", value, Case::Folded)).ok_or(IpamError::Missing)?;
        let keys = ipam.map.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key);
        let host: Vec<String> = keys.filter(|key| is_host_key(key)).cloned().collect();
        if !host.is_empty() {
            return Err(IpamError::HostKeys(host));
        }
        let (mut unknown, mut faults) = (Faults::default(), Faults::default());
        ipam.only(&mut unknown, IPAM_KEYS);
        ipam.text(&mut faults, "type");
        let mut block =
            Self { data_dir: ipam.text(&mut faults, "dataDir").map(str::to_owned), ..Self::default() };
        if let Some(value) = ipam.get("pool") {
            let names = faults.take("ipam.pool", &show("pool", value), words(value)).unwrap_or_default();
            for name in names {
                block.pools.extend(faults.take("ipam.pool", &name, PoolName::new(name.as_str())));
            }
        }
        if let Some(value) = ipam.get("ips") {
            let texts = faults.take("ipam.ips", &show("ips", value), words(value)).unwrap_or_default();
            for text in texts {
                block.ips.extend(faults.take("ipam.ips", &text, RequestedAddress::parse(&text)));
            }
        }
        block.inline = inline_ranges(&mut faults, &mut unknown, &ipam);
        if block.inline.is_some() && !block.pools.is_empty() {
            faults.push("ipam.pool", "", "stands beside ranges or subnet: only one of them is accepted");
        }
        for (index, route) in ipam.tables(&mut faults, "routes").iter().enumerate() {
            let field = format!("ipam.routes[{index}]");
            route.only(&mut unknown, ROUTE_KEYS);
            let draft = RouteDraft {
                dst: route.text(&mut faults, "dst").unwrap_or_default().into(),
                gw: route.text(&mut faults, "gw").map(str::to_owned),
                mtu: route.number(&mut faults, "mtu").filter(|n| *n != 0),
                advmss: route.number(&mut faults, "advmss").filter(|n| *n != 0),
                priority: route.number(&mut faults, "priority").filter(|n| *n != 0),
                table: route.number(&mut faults, "table"),
                scope: route.number(&mut faults, "scope"),
            };
            match Route::from_draft(&field, &draft) {
                Ok(route) => block.routes.push(route),
                Err(found) => faults.0.extend(found),
            }
        }
        if let Some(dns) = ipam.table(&mut faults, "dns") {
            dns.only(&mut unknown, DNS_KEYS);
            block.dns = Dns {
                nameservers: owned(dns.list(&mut faults, "nameservers")),
                domain: dns.text(&mut faults, "domain").filter(|text| !text.is_empty()).map(str::to_owned),
                search: owned(dns.list(&mut faults, "search")),
                options: owned(dns.list(&mut faults, "options")),
            };
        }
        // host-local takes an empty text for none.
        if ipam.get("resolvConf").is_some_and(|path| path != "") {
            block.resolv_conf = ipam.path(&mut faults, "resolvConf");
        }
        if !unknown.0.is_empty() {
            return Err(IpamError::Unknown(unknown.0));
        }
        if faults.0.is_empty() { Ok(block) } else { Err(IpamError::Invalid(faults.0)) }
    }
}

fn is_host_key(key: &str) -> bool {
    let key = fold(key);
    if IPAM_KEYS.iter().any(|known| known.eq_ignore_ascii_case(&key)) {
        return false;
    }
    key.starts_with("etcd") || HOST_WORDS.contains(&key.as_str()) || is_secret(&key)
}

fn owned(texts: Vec<&str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}

/// host-local's ranges: the shorthand is the first set (as there), then `ranges`.
fn inline_ranges(faults: &mut Faults, unknown: &mut Faults, ipam: &Table<'_>) -> Option<InlineRanges> {
    let before = (faults.0.len(), unknown.0.len());
    let mut drafts: Vec<Vec<(String, RangeDraft)>> = Vec::new();
    if ipam.get("subnet").is_some() {
        drafts.push(vec![("ipam".into(), range_draft(faults, ipam))]);
    } else if let Some(key) = RANGE_KEYS.iter().find(|key| ipam.get(key).is_some()) {
        faults.push(
            ipam.at(key),
            "",
            "needs ipam.subnet beside it; inside ranges it stands in its own range",
        );
    }
    match ipam.get("ranges") {
        None => {}
        Some(Value::Array(sets)) => {
            for (outer, set) in sets.iter().enumerate() {
                let Value::Array(ranges) = set else {
                    let problem = "must be a list of ranges: \"ranges\": [[{\"subnet\": …}]]";
                    faults.push(format!("ipam.ranges[{outer}]"), show("", set), problem);
                    continue;
                };
                let mut out = Vec::new();
                for (inner, range) in ranges.iter().enumerate() {
                    let field = format!("ipam.ranges[{outer}][{inner}]");
                    let Some(table) = Table::of(&field, range, Case::Folded) else {
                        faults.push(field, show("", range), "must be an object with a subnet");
                        continue;
                    };
                    table.only(unknown, RANGE_KEYS);
                    out.push((field, range_draft(faults, &table)));
                }
                if ranges.is_empty() {
                    faults.push(
                        format!("ipam.ranges[{outer}]"),
                        "",
                        "is empty: a set needs at least one range",
                    );
                }
                drafts.push(out);
            }
        }
        Some(other) => {
            let problem = "must be a list of lists: \"ranges\": [[{\"subnet\": …}]]";
            faults.push("ipam.ranges", show("ranges", other), problem);
        }
    }
    let count: usize = drafts.iter().map(Vec::len).sum();
    if count > MAX_RANGES {
        faults.push("ipam.ranges", "", format!("{count} ranges; at most {MAX_RANGES} are accepted"));
        return None;
    }
    let mut found: Vec<(usize, String, Range)> = Vec::new();
    for (set, ranges) in drafts.iter().enumerate() {
        for (field, draft) in ranges {
            match Range::from_draft(field, draft) {
                Ok(range) => {
                    let bounds = range.bounds();
                    if let Some((_, other, _)) = found.iter().find(|(_, _, r)| r.bounds().overlaps(bounds)) {
                        faults.push(field.as_str(), bounds, format!("overlaps {other}"));
                    }
                    let mixed = found.iter().find(|(s, _, r)| *s == set && r.family() != range.family());
                    if let Some((_, other, _)) = mixed {
                        let problem = format!("has another family than {other}: make it a set of its own");
                        faults.push(field.as_str(), bounds, problem);
                    }
                    found.push((set, field.clone(), range));
                }
                Err(wrong) => faults.0.extend(wrong.into_iter().map(host_locals_name)),
            }
        }
    }
    if (faults.0.len(), unknown.0.len()) != before || found.is_empty() {
        return None;
    }
    let gateways: Vec<IpAddr> = found.iter().filter_map(|(_, _, range)| range.gateway()).collect();
    let mut sets: Vec<Vec<Range>> = vec![Vec::new(); drafts.len()];
    for (set, field, range) in found {
        let foreign = gateways.iter().filter(|gateway| range.usable().contains(**gateway)).copied();
        let range = foreign.collect::<Vec<_>>().into_iter().fold(range, Range::also_without);
        if range.usable().is_empty() {
            faults.push(
                field,
                range.bounds(),
                "nothing usable is left beside the gateways of the other ranges",
            );
        }
        sets[set].push(range);
    }
    (faults.0.len() == before.0).then_some(InlineRanges { sets })
}

/// A range of a pool says `start` and `end`, one of an `ipam` block `rangeStart` and `rangeEnd`.
fn host_locals_name(mut fault: Fault) -> Fault {
    for (ours, theirs) in [(".start", ".rangeStart"), (".end", ".rangeEnd")] {
        if let Some(range) = fault.field.strip_suffix(ours) {
            fault.field = format!("{range}{theirs}");
            break;
        }
    }
    fault
}

/// With host-local's default: the gateway is network + 1, unless the subnet is too small to have hosts beside it.
fn range_draft(faults: &mut Faults, table: &Table<'_>) -> RangeDraft {
    let mut text = |key: &str| table.text(faults, key).filter(|text| !text.is_empty()).map(str::to_owned);
    let subnet = text("subnet").unwrap_or_default();
    let (start, end, gateway) = (text("rangeStart"), text("rangeEnd"), text("gateway"));
    let gateway = gateway.or_else(|| {
        let prefix = Prefix::parse(&subnet).ok()?;
        let hosts = prefix.family().bits() - prefix.length();
        (hosts >= 2).then(|| prefix.family().address(prefix.first() + 1).to_string())
    });
    RangeDraft { subnet, start, end, gateway, exclude: Vec::new() }
}

/// What host-local reads from a resolv.conf: `nameserver`, `domain`, `search`, `options`.
#[must_use]
pub fn parse_resolv_conf(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let Some(word) = fields.next() else { continue };
        let mut rest = fields.map(str::to_owned);
        match word {
            "nameserver" => dns.nameservers.extend(rest.next()),
            "domain" => dns.domain = rest.next().or(dns.domain),
            "search" => dns.search.extend(rest),
            "options" => dns.options.extend(rest),
            _ => {} // a comment, or a word of another resolver's
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    #[track_caller]
    fn block(ipam: Value) -> IpamBlock {
        IpamBlock::parse(Some(&ipam)).unwrap()
    }

    #[track_caller]
    fn ranges(ipam: Value, wanted: &str) {
        let sets = block(ipam).inline.unwrap().sets;
        let one = |range: &Range| {
            let gateway = range.gateway().map_or("-".to_owned(), |gateway| gateway.to_string());
            let runs: Vec<String> = range.usable().runs().iter().map(ToString::to_string).collect();
            format!("{} gw {gateway} {}", range.subnet(), runs.join(","))
        };
        let sets: Vec<String> =
            sets.iter().map(|set| set.iter().map(one).collect::<Vec<_>>().join(" or ")).collect();
        assert_eq!(sets.join(" and "), wanted);
    }

    #[test]
    fn host_locals_ranges_with_its_defaults() {
        ranges(json!({"subnet": "10.9.0.0/24"}), "10.9.0.0/24 gw 10.9.0.1 10.9.0.2-10.9.0.254");
        ranges(
            json!({"subnet": "10.9.0.0/24", "rangeStart": "10.9.0.10", "rangeEnd": "10.9.0.20", "gateway": "10.9.0.15"}),
            "10.9.0.0/24 gw 10.9.0.15 10.9.0.10-10.9.0.14,10.9.0.16-10.9.0.20",
        );
        ranges(
            json!({"type": "leasehold", "Subnet": "fd00:9::/64", "ranges": [
                [{"subnet": "10.0.0.0/30"}, {"subnet": "10.0.1.0/31"}], [{"subnet": "10.0.2.7/32"}]]}),
            "fd00:9::/64 gw fd00:9::1 fd00:9::2-fd00:9::ffff:ffff:ffff:ffff and \
             10.0.0.0/30 gw 10.0.0.1 10.0.0.2 or 10.0.1.0/31 gw - 10.0.1.0-10.0.1.1 and \
             10.0.2.7/32 gw - 10.0.2.7",
        );
        // The gateway of one range is not leased from another.
        ranges(
            json!({"ranges": [[{"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.4"}, {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.5", "rangeEnd": "10.0.0.8", "gateway": "10.0.0.3"}]]}),
            "10.0.0.0/24 gw 10.0.0.1 10.0.0.2,10.0.0.4 or 10.0.0.0/24 gw 10.0.0.3 10.0.0.5-10.0.0.8",
        );
        assert_eq!(block(json!({"ranges": null, "subnet": null})).inline, None);
        assert_eq!(block(json!({"ranges": []})).inline, None);
    }

    #[track_caller]
    fn invalid(ipam: Value, wanted: &[&str]) {
        match IpamBlock::parse(Some(&ipam)) {
            Err(IpamError::Invalid(faults)) => {
                assert_eq!(faults.iter().map(ToString::to_string).collect::<Vec<_>>(), wanted);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn inline_ranges_name_field_and_value() {
        invalid(
            json!({"subnet": "10.0.0.1/24", "ranges": [
                [{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.5"}],
                [{"subnet": "10.2.0.0/24", "rangeStart": "10.3.0.1"}, {"subnet": "fd00::/64", "rangeEnd": "10.0.0.1"}],
                [{"subnet": "10.4.0.0/24", "gateway": "10.5.0.1"}], [], [{}], ["x"], "y"]}),
            &[
                "ipam.ranges[3]: is empty: a set needs at least one range",
                "ipam.ranges[5][0]: x: must be an object with a subnet",
                "ipam.ranges[6]: y: must be a list of ranges: \"ranges\": [[{\"subnet\": …}]]",
                "ipam.subnet: 10.0.0.1/24: \"10.0.0.1/24\" has host bits set: the subnet is 10.0.0.0/24",
                "ipam.ranges[0][0].rangeStart: 10.1.0.9: comes after the end 10.1.0.5",
                "ipam.ranges[1][0].rangeStart: 10.3.0.1: is outside the subnet 10.2.0.0/24",
                "ipam.ranges[1][1].rangeEnd: 10.0.0.1: is no IPv6 address, but the subnet fd00::/64 is",
                "ipam.ranges[2][0].gateway: 10.5.0.1: is outside the subnet 10.4.0.0/24",
                "ipam.ranges[4][0].subnet: \"\" is not a subnet in CIDR notation, such as 10.0.0.0/24 or fd00:9::/64",
            ],
        );
        invalid(
            json!({"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00::/64"}], [{"subnet": "10.1.0.0/16"}]]}),
            &[
                "ipam.ranges[0][1]: fd00::1-fd00::ffff:ffff:ffff:ffff: has another family than ipam.ranges[0][0]: make it a set of its own",
                "ipam.ranges[1][0]: 10.1.0.1-10.1.255.254: overlaps ipam.ranges[0][0]",
            ],
        );
        invalid(
            json!({"gateway": "10.0.0.1", "ranges": [[{"subnet": "10.0.0.0/24"}]]}),
            &["ipam.gateway: needs ipam.subnet beside it; inside ranges it stands in its own range"],
        );
        invalid(
            json!({"subnet": "10.0.0.0/24", "pool": "db"}),
            &["ipam.pool: stands beside ranges or subnet: only one of them is accepted"],
        );
        invalid(
            json!({"pool": 5, "ips": "10.0.0.0/40", "routes": [{"dst": "10.1.2.3/16", "mtu": "1"}, 5], "dns": [], "resolvConf": "x"}),
            &[
                "ipam.pool: 5: must be a text, a comma list or an array of texts",
                "ipam.ips: 10.0.0.0/40: must be an IPv4 or IPv6 address, with or without a prefix length",
                "ipam.routes: [{\"dst\":\"10.1.2.3/16\",\"mtu\":\"1\"},5]: must be a list of objects",
                "ipam.dns: []: must be an object",
                "ipam.resolvConf: x: must be an absolute path without ..",
            ],
        );
    }

    #[test]
    fn an_empty_text_is_nothing_as_in_host_local() {
        let empty = block(
            json!({"subnet": "10.9.0.0/24", "rangeStart": "", "rangeEnd": "", "gateway": "", "resolvConf": "", "dataDir": ""}),
        );
        assert_eq!(empty.resolv_conf, None);
        assert_eq!(empty.inline, block(json!({"subnet": "10.9.0.0/24"})).inline);
    }

    #[test]
    fn the_rest_of_the_block() {
        let found = block(json!({
            "type": "leasehold", "pool": "a, b", "ips": ["10.0.0.1/24", "fd00::1"], "dataDir": "/d",
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.0.0.0/8", "gw": "10.9.0.1", "MTU": 1400, "priority": 0, "scope": 0}],
            "dns": {"nameservers": ["10.0.0.53"], "domain": ""}, "resolvConf": "/etc/resolv.conf"
        }));
        assert_eq!(found.pools.iter().map(PoolName::as_str).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(found.ips.iter().map(|ip| ip.length).collect::<Vec<_>>(), [Some(24), None]);
        assert_eq!(found.routes[1].attributes.mtu, Some(1400));
        assert_eq!((found.routes[1].attributes.priority, found.routes[1].attributes.scope), (None, Some(0)));
        assert_eq!((found.dns.nameservers.len(), found.dns.domain.clone()), (1, None));
        assert_eq!(found.data_dir.as_deref(), Some("/d"));
        assert_eq!(found.resolv_conf.as_deref(), Some(Path::new("/etc/resolv.conf")));
        assert_eq!(
            block(json!({"routes": null, "dns": null, "pool": null, "ips": null})),
            IpamBlock::default()
        );
    }

    #[test]
    fn an_unknown_key_is_named_with_its_value_and_the_nearest() {
        let ipam = json!({"range": "10.0.0.0/24", "pols": "db", "routes": [{"dest": "x"}], "colour": "red",
            "ranges": [[{"subnet": "10.0.0.0/24", "range_start": "10.0.0.5"}]]});
        let Err(IpamError::Unknown(faults)) = IpamBlock::parse(Some(&ipam)) else { panic!() };
        let found: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "ipam.range: 10.0.0.0/24: unknown key; did you mean \"ranges\"?",
                "ipam.pols: db: unknown key; did you mean \"pool\"?",
                "ipam.colour: red: unknown key; known are type, pool, ips, ranges, subnet, rangeStart, rangeEnd, gateway, routes, resolvConf, dns, dataDir",
                "ipam.ranges[0][0].range_start: 10.0.0.5: unknown key; did you mean \"rangeStart\"?",
                "ipam.routes[0].dest: x: unknown key; did you mean \"dst\"?",
            ]
        );
    }

    #[test]
    fn store_settings_and_secrets_belong_to_the_host_file() {
        for key in [
            "endpoints",
            "etcd",
            "etcd_host",
            "etcdPassword",
            "cacert",
            "cert",
            "key",
            "username",
            "password",
            "logFile",
            "log_file",
            "log_level",
            "datastore",
            "kubernetes",
            "kubeconfig",
            "store",
            "cluster",
            "node",
            "Passwords",
        ] {
            let ipam = json!({"type": "leasehold", "colour": 1, key: "hunter2"});
            assert_eq!(IpamBlock::parse(Some(&ipam)), Err(IpamError::HostKeys(vec![key.into()])));
        }
        assert_eq!(IpamBlock::parse(None), Err(IpamError::Missing));
        assert_eq!(IpamBlock::parse(Some(&json!([]))), Err(IpamError::Missing));
    }

    #[test]
    fn a_resolv_conf() {
        let dns = parse_resolv_conf(
            "# c\n; d\nnameserver 10.0.0.1\n nameserver\t10.0.0.2 x\nnameserver\ndomain a.b\nsearch a b\nsearch c\noptions ndots:2 edns0\nsortlist x\n",
        );
        assert_eq!(dns.nameservers, ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(dns.domain.as_deref(), Some("a.b"));
        assert_eq!(dns.search, ["a", "b", "c"]);
        assert_eq!(dns.options, ["ndots:2", "edns0"]);
        assert!(parse_resolv_conf("").is_empty());
    }
}
