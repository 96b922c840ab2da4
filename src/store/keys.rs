//! The layout of the keys, relative to the configurable prefix.
//!
//! ```text
//! v1/meta                                                  schema, store ID
//! v1/frozen                                                why nothing new is leased
//! v1/clusters/<cluster>                                    the kube-system UID, last reap
//! v1/pools/<pool>                                          the pool document
//! v1/serves/<namespace>/<workload>/<pool>                  index of the pools' `serves`
//! v1/leases/<cluster>/<namespace>/<pod>/<network>/<ifname> the lease
//! v1/addresses/<domain>/<family>/<fixed-width hex>         who holds the address
//! v1/released/<domain>/<family>/<fixed-width hex>          given back
//! v1/attachments/<cluster>/<node>/<network>/<cid>/<ifname> the lease, while bound
//! ```
//!
//! Names exclude `/`; every other byte outside `[A-Za-z0-9._@-]` is percent-encoded, so that no name can reach
//! into another's key (B080). Hex of a fixed width makes a run of addresses one interval of keys.

use std::{fmt, net::IpAddr};

use crate::domain::{
    addr::{AddrRange, Family, number},
    lease::{Holder, LeaseId},
    names::{
        ClusterName, ContainerId, DomainName, IfName, Namespace, NetworkName, NodeName, PodName, PoolName,
    },
    pool::Serve,
};

/// A key, relative to the prefix.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Key(String);

impl Key {
    /// A key of this text; for stores that read keys back, and for tests.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// An interval of keys: `from` included, `to` not.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Span {
    /// The first key.
    pub from: String,
    /// The first key after it.
    pub to: String,
}

impl Span {
    /// All keys that begin with this text, which must end in `/`.
    #[must_use]
    pub fn prefix(text: &str) -> Self {
        // '0' is the byte after '/'.
        Self { from: text.to_owned(), to: format!("{}0", text.trim_end_matches('/')) }
    }

    /// Is the key inside?
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.from.as_str() <= key && key < self.to.as_str()
    }

    /// The rest of the interval after a key: the next page.
    #[must_use]
    pub fn after(&self, key: &Key) -> Self {
        Self { from: format!("{}\0", key.0), to: self.to.clone() }
    }
}

/// The namespace of a holder that is a container.
const NO_NAMESPACE: &str = "_";
/// Any namespace, any workload.
const ANY: &str = "*";

fn escape(part: &str) -> String {
    let mut out = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'@' | b'-') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn unescape(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    let text = String::from_utf8(bytes).ok()?;
    (escape(&text) == part).then_some(text)
}

/// Schema and store ID.
#[must_use]
pub fn meta() -> Key {
    Key("v1/meta".into())
}

/// Why nothing new is leased.
#[must_use]
pub fn frozen() -> Key {
    Key("v1/frozen".into())
}

/// Everything of ours.
#[must_use]
pub fn everything() -> Span {
    Span::prefix("v1/")
}

/// A registered cluster.
#[must_use]
pub fn cluster(name: &ClusterName) -> Key {
    Key(format!("v1/clusters/{name}"))
}

/// All registered clusters.
#[must_use]
pub fn clusters() -> Span {
    Span::prefix("v1/clusters/")
}

/// The name in a cluster's key.
#[must_use]
pub fn parse_cluster(key: &Key) -> Option<ClusterName> {
    ClusterName::new(key.0.strip_prefix("v1/clusters/")?).ok()
}

/// A pool's document.
#[must_use]
pub fn pool(name: &PoolName) -> Key {
    Key(format!("v1/pools/{name}"))
}

/// All pools.
#[must_use]
pub fn pools() -> Span {
    Span::prefix("v1/pools/")
}

/// The name in a pool's key.
#[must_use]
pub fn parse_pool(key: &Key) -> Option<PoolName> {
    PoolName::new(key.0.strip_prefix("v1/pools/")?).ok()
}

fn serve_folder(serve: &Serve) -> String {
    match serve {
        Serve::Workload(namespace, workload) => format!("v1/serves/{namespace}/{workload}/"),
        Serve::Namespace(namespace) => format!("v1/serves/{namespace}/{ANY}/"),
        Serve::Everything => format!("v1/serves/{ANY}/{ANY}/"),
    }
}

/// The index entry of one `serves` of one pool.
#[must_use]
pub fn serve(serve: &Serve, pool: &PoolName) -> Key {
    Key(format!("{}{pool}", serve_folder(serve)))
}

/// All pools that serve this.
#[must_use]
pub fn serve_of(serve: &Serve) -> Span {
    Span::prefix(&serve_folder(serve))
}

/// The whole index.
#[must_use]
pub fn serves() -> Span {
    Span::prefix("v1/serves/")
}

/// Whom an index entry serves, from which pool.
#[must_use]
pub fn parse_serve(key: &Key) -> Option<(Serve, PoolName)> {
    let (serve, pool) = key.0.strip_prefix("v1/serves/")?.rsplit_once('/')?;
    Some((crate::domain::pool::parse_serve(serve).ok()?, PoolName::new(pool).ok()?))
}

/// A lease's path below `v1/leases/`: how records name it.
#[must_use]
pub fn lease_path(id: &LeaseId) -> String {
    let (namespace, name) = match &id.holder {
        Holder::Pod { namespace, name } => (namespace.as_str(), name.as_str()),
        Holder::Container(container) => (NO_NAMESPACE, container.as_str()),
    };
    format!("{}/{namespace}/{name}/{}/{}", id.cluster, id.network, escape(id.ifname.as_str()))
}

/// A lease.
#[must_use]
pub fn lease(id: &LeaseId) -> Key {
    Key(format!("v1/leases/{}", lease_path(id)))
}

/// All leases, of every cluster.
#[must_use]
pub fn leases() -> Span {
    Span::prefix("v1/leases/")
}

/// All leases of a cluster.
#[must_use]
pub fn leases_of(cluster: &ClusterName) -> Span {
    Span::prefix(&format!("v1/leases/{cluster}/"))
}

/// All leases of a pod: every network and interface.
#[must_use]
pub fn leases_of_pod(cluster: &ClusterName, namespace: &Namespace, pod: &PodName) -> Span {
    Span::prefix(&format!("v1/leases/{cluster}/{namespace}/{pod}/"))
}

/// The lease that a path names.
#[must_use]
pub fn parse_lease_path(path: &str) -> Option<LeaseId> {
    let mut parts = path.split('/');
    let cluster = ClusterName::new(parts.next()?).ok()?;
    let (namespace, name) = (parts.next()?, parts.next()?);
    let network = NetworkName::new(parts.next()?).ok()?;
    let ifname = IfName::new(unescape(parts.next()?)?).ok()?;
    if parts.next().is_some() {
        return None;
    }
    let holder = if namespace == NO_NAMESPACE {
        Holder::Container(ContainerId::new(name).ok()?)
    } else {
        Holder::Pod { namespace: Namespace::new(namespace).ok()?, name: PodName::new(name).ok()? }
    };
    Some(LeaseId { cluster, holder, network, ifname })
}

/// The lease that a key is of.
#[must_use]
pub fn parse_lease(key: &Key) -> Option<LeaseId> {
    parse_lease_path(key.0.strip_prefix("v1/leases/")?)
}

fn hex(family: Family, number: u128) -> String {
    match family {
        Family::V4 => format!("{number:08x}"),
        Family::V6 => format!("{number:032x}"),
    }
}

fn of_address(kind: &str, domain: &DomainName, address: IpAddr) -> Key {
    let family = Family::of(address);
    Key(format!("v1/{kind}/{domain}/{}/{}", family.digit(), hex(family, number(address))))
}

fn of_range(kind: &str, domain: &DomainName, range: AddrRange) -> Span {
    let family = range.family();
    let folder = format!("v1/{kind}/{domain}/{}/", family.digit());
    Span {
        from: format!("{folder}{}", hex(family, range.first())),
        to: format!("{folder}{}\0", hex(family, range.last())),
    }
}

fn parse_address(kind: &str, key: &Key) -> Option<(DomainName, IpAddr)> {
    let mut parts = key.0.strip_prefix("v1/")?.strip_prefix(kind)?.strip_prefix('/')?.split('/');
    let domain = DomainName::new(parts.next()?).ok()?;
    let (family, width) = match parts.next()? {
        "4" => (Family::V4, 8),
        "6" => (Family::V6, 32),
        _ => return None,
    };
    let text = parts.next().filter(|text| text.len() == width)?;
    if parts.next().is_some() || !text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return None;
    }
    Some((domain, family.address(u128::from_str_radix(text, 16).ok()?)))
}

/// Who holds an address.
#[must_use]
pub fn address(domain: &DomainName, address: IpAddr) -> Key {
    of_address("addresses", domain, address)
}

/// Who holds each address of a range.
#[must_use]
pub fn addresses_of(domain: &DomainName, range: AddrRange) -> Span {
    of_range("addresses", domain, range)
}

/// All addresses that are held, of all domains.
#[must_use]
pub fn addresses() -> Span {
    Span::prefix("v1/addresses/")
}

/// Domain and address of an address key.
#[must_use]
pub fn parse_held(key: &Key) -> Option<(DomainName, IpAddr)> {
    parse_address("addresses", key)
}

/// An address given back.
#[must_use]
pub fn released(domain: &DomainName, address: IpAddr) -> Key {
    of_address("released", domain, address)
}

/// The addresses of a range that were given back.
#[must_use]
pub fn released_of(domain: &DomainName, range: AddrRange) -> Span {
    of_range("released", domain, range)
}

/// All addresses given back, of all domains.
#[must_use]
pub fn all_released() -> Span {
    Span::prefix("v1/released/")
}

/// Domain and address of a released key.
#[must_use]
pub fn parse_released(key: &Key) -> Option<(DomainName, IpAddr)> {
    parse_address("released", key)
}

/// What an attachment's key is made of.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(missing_docs, reason = "the names are those of the domain")]
pub struct AttachmentId {
    pub cluster: ClusterName,
    pub node: NodeName,
    pub network: NetworkName,
    pub container: ContainerId,
    pub ifname: IfName,
}

/// An attachment.
#[must_use]
pub fn attachment(id: &AttachmentId) -> Key {
    let AttachmentId { cluster, node, network, container, ifname } = id;
    Key(format!("v1/attachments/{cluster}/{node}/{network}/{container}/{}", escape(ifname.as_str())))
}

/// All attachments of a network on a node.
#[must_use]
pub fn attachments_of(cluster: &ClusterName, node: &NodeName, network: &NetworkName) -> Span {
    Span::prefix(&format!("v1/attachments/{cluster}/{node}/{network}/"))
}

/// All attachments on a node.
#[must_use]
pub fn attachments_of_node(cluster: &ClusterName, node: &NodeName) -> Span {
    Span::prefix(&format!("v1/attachments/{cluster}/{node}/"))
}

/// All attachments.
#[must_use]
pub fn attachments() -> Span {
    Span::prefix("v1/attachments/")
}

/// What an attachment's key says.
#[must_use]
pub fn parse_attachment(key: &Key) -> Option<AttachmentId> {
    let mut parts = key.0.strip_prefix("v1/attachments/")?.split('/');
    let id = AttachmentId {
        cluster: ClusterName::new(parts.next()?).ok()?,
        node: NodeName::new(parts.next()?).ok()?,
        network: NetworkName::new(parts.next()?).ok()?,
        container: ContainerId::new(parts.next()?).ok()?,
        ifname: IfName::new(unescape(parts.next()?)?).ok()?,
    };
    parts.next().is_none().then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(cluster: &str, namespace: &str, name: &str, network: &str, ifname: &str) -> LeaseId {
        LeaseId {
            cluster: ClusterName::new(cluster).unwrap(),
            holder: Holder::Pod {
                namespace: Namespace::new(namespace).unwrap(),
                name: PodName::new(name).unwrap(),
            },
            network: NetworkName::new(network).unwrap(),
            ifname: IfName::new(ifname).unwrap(),
        }
    }

    #[test]
    fn b080_names_that_look_alike_have_keys_of_their_own() {
        let ids = [
            pod("c", "a", "b-c", "n", "eth0"),
            pod("c", "a-b", "c", "n", "eth0"),
            pod("c", "a", "b.c", "n", "eth0"),
            pod("c", "a.b", "c", "n", "eth0"),
            pod("c", "b", "b-c", "n", "eth0"),
            pod("c", "a", "b-c", "n", "%65th0"),
            pod("c", "a", "b-c", "n", "vlan100@x"),
            pod("c", "a", "b-c", "n", "é"),
            pod("c", "a", &"x".repeat(253), "n", "eth0"),
        ];
        let keys: std::collections::BTreeSet<Key> = ids.iter().map(lease).collect();
        assert_eq!(keys.len(), ids.len());
        for id in &ids {
            assert_eq!(parse_lease(&lease(id)).as_ref(), Some(id));
        }
    }

    #[test]
    fn a_container_is_its_own_holder() {
        let id = LeaseId {
            cluster: ClusterName::new("local").unwrap(),
            holder: Holder::Container(ContainerId::new("c1").unwrap()),
            network: NetworkName::new("n").unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        };
        assert_eq!(lease(&id).as_str(), "v1/leases/local/_/c1/n/eth0");
        assert_eq!(parse_lease(&lease(&id)), Some(id));
    }

    #[test]
    fn addresses_sort_as_numbers_and_a_range_is_an_interval() {
        let domain = DomainName::new("default").unwrap();
        let range = AddrRange::parse("10.0.0.9-10.0.1.2").unwrap();
        let span = addresses_of(&domain, range);
        for (text, inside) in [
            ("10.0.0.8", false),
            ("10.0.0.9", true),
            ("10.0.0.255", true),
            ("10.0.1.2", true),
            ("10.0.1.3", false),
        ] {
            let key = address(&domain, text.parse().unwrap());
            assert_eq!(span.contains(key.as_str()), inside, "{text}");
            assert_eq!(parse_held(&key), Some((domain.clone(), text.parse().unwrap())));
            assert_eq!(parse_released(&key), None);
        }
        let key = released(&domain, "fd00::1".parse().unwrap());
        assert_eq!(key.as_str(), "v1/released/default/6/fd000000000000000000000000000001");
        assert_eq!(parse_released(&key), Some((domain, "fd00::1".parse().unwrap())));
    }

    #[test]
    fn a_prefix_holds_its_own_and_no_neighbour() {
        let span = leases_of(&ClusterName::new("prod").unwrap());
        assert!(span.contains("v1/leases/prod/shop/db-0/n/eth0"));
        assert!(!span.contains("v1/leases/prod-a/shop/db-0/n/eth0"));
        assert!(!span.contains("v1/leases/proda/shop/db-0/n/eth0"));
    }

    #[test]
    fn serves_keys_name_their_pool() {
        let pool = PoolName::new("p").unwrap();
        for text in ["shop/db", "shop/*", "*/*"] {
            let serves = crate::domain::pool::parse_serve(text).unwrap();
            let key = serve(&serves, &pool);
            assert!(serve_of(&serves).contains(key.as_str()));
            assert_eq!(parse_serve(&key), Some((serves, pool.clone())));
        }
    }
}
