//! Values of the store: JSON with a `v` field, and what they mean.
//!
//! - A reader keeps fields that it does not know: a writer lays its fields over the record that it read.
//! - A record whose `v` is above [`VERSION`] is never written: [`RecordError::Newer`].
//! - What cannot be read is never handed out and never deleted silently: [`RecordError::Invalid`].
//! - Fields that an older writer did not know may be absent; only what makes the record what it is must be there.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::{
    Entry, Key, Revision,
    json::{Json, Object},
    keys::{lease_path, parse_lease, parse_lease_path},
};
use crate::domain::{
    addr::parse_address,
    lease::{
        AddressHolder, Binding, Declined, Holder, Lease, LeaseId, LeasedAddress, Released, Seen, Stamp,
        Timestamp,
    },
    names::{
        BootId, ClusterName, ContainerId, DomainName, Namespace, NodeName, PodName, PoolName, StoreId, Uid,
    },
    pool::{Dns, Draft, Pool, RangeDraft, RouteDraft},
};

/// The version of the records that this binary writes.
pub const VERSION: u64 = 1;

/// Why a record cannot be used.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum RecordError {
    /// It is not what its key says.
    #[error("record {key} cannot be read: {reason}")]
    Invalid {
        /// Where it stands.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// A newer leasehold wrote it.
    #[error(
        "record {key} has version {found}, this leasehold knows up to {VERSION}: upgrade it on this node"
    )]
    Newer {
        /// Where it stands.
        key: String,
        /// Its version.
        found: u64,
    },
}

/// Something read from the store, with what a later write of it needs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stored<T> {
    /// What it means.
    pub value: T,
    /// The revision of its last write.
    pub revision: Revision,
    /// Its bytes, for fields that we do not know, and for compares by value.
    pub raw: Vec<u8>,
}

fn object(entry: &Entry) -> Result<Object<'_>, RecordError> {
    let invalid = |reason: String| RecordError::Invalid { key: entry.key.to_string(), reason };
    let value: Json<'_> = serde_json::from_slice(&entry.value).map_err(|error| invalid(error.to_string()))?;
    let Json::Object(map) = value else { return Err(invalid("not a JSON object".into())) };
    let version = match map.get("v") {
        None | Some(Json::Null) => 0,
        Some(v) => v.as_u64().ok_or_else(|| invalid(format!("v is {v}")))?,
    };
    if version > VERSION {
        return Err(RecordError::Newer { key: entry.key.to_string(), found: version });
    }
    Ok(map)
}

/// Reads the fields of one record; what is wrong is said with the field's name.
struct Fields<'a> {
    key: &'a Key,
    map: &'a Object<'a>,
}

impl Fields<'_> {
    fn invalid(&self, field: &str, reason: impl std::fmt::Display) -> RecordError {
        RecordError::Invalid { key: self.key.to_string(), reason: format!("{field}: {reason}") }
    }

    fn text(&self, field: &str) -> Result<Option<&str>, RecordError> {
        match self.map.get(field) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::Text(text)) if text.is_empty() => Ok(None),
            Some(Json::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.invalid(field, format!("{other} is no text"))),
        }
    }

    fn name<T, E: std::fmt::Display>(
        &self,
        field: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, RecordError> {
        self.text(field)?.map(|text| parse(text).map_err(|error| self.invalid(field, error))).transpose()
    }

    fn need<T>(&self, field: &str, value: Option<T>) -> Result<T, RecordError> {
        value.ok_or_else(|| self.invalid(field, "is missing"))
    }

    fn flag(&self, field: &str) -> Result<bool, RecordError> {
        match self.map.get(field) {
            None | Some(Json::Null) => Ok(false),
            Some(Json::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.invalid(field, format!("{other} is neither true nor false"))),
        }
    }

    fn time(&self, field: &str) -> Result<Option<Timestamp>, RecordError> {
        self.name(field, parse_time)
    }
}

/// A moment as RFC 3339 in UTC, with milliseconds.
#[must_use]
pub fn format_time(at: Timestamp) -> String {
    jiff::Timestamp::from_millisecond(at.0).map_or_else(|_| at.0.to_string(), |t| format!("{t:.3}"))
}

/// Reads RFC 3339.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_time(text: &str) -> Result<Timestamp, String> {
    text.parse::<jiff::Timestamp>().map(|t| Timestamp(t.as_millisecond())).map_err(|error| error.to_string())
}

/// Lays our fields over those that we do not know of the record that was read.
fn over(previous: Option<&[u8]>, known: &[&str], ours: Value) -> Vec<u8> {
    let mut map = previous
        .and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok())
        .and_then(|value| match value {
            Value::Object(map) => Some(map),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => None,
        })
        .unwrap_or_default();
    for field in known {
        map.remove(*field);
    }
    let Value::Object(ours) = ours else { return Vec::new() };
    let mut out = Map::with_capacity(ours.len() + map.len());
    out.extend(ours.into_iter().filter(|(_, value)| !value.is_null()));
    out.extend(map);
    Value::Object(out).to_string().into_bytes()
}

const LEASE_FIELDS: &[&str] = &[
    "v",
    "state",
    "addresses",
    "container",
    "node",
    "uid",
    "bootId",
    "bootClock",
    "at",
    "since",
    "created",
    "sticky",
    "reserved",
    "unconfirmed",
    "controller",
    "missedAt",
    "doubtAt",
];

/// The bytes of a lease; `previous` are those that were read, if it was.
#[must_use]
pub fn encode_lease(lease: &Lease, previous: Option<&[u8]>) -> Vec<u8> {
    let addresses: Vec<Value> = lease
        .addresses
        .iter()
        .map(|a| {
            let mut map = Map::new();
            map.insert("address".into(), a.address.to_string().into());
            map.insert("domain".into(), a.domain.as_str().into());
            if let Some(pool) = &a.pool {
                map.insert("pool".into(), pool.as_str().into());
            }
            Value::Object(map)
        })
        .collect();
    let last = lease.last();
    let flag = |set: bool| if set { Value::Bool(true) } else { Value::Null };
    let seen = lease.seen.clone().unwrap_or_default();
    over(
        previous,
        LEASE_FIELDS,
        json!({
            "v": VERSION,
            "state": lease.state().as_str(),
            "addresses": addresses,
            "container": last.map(|s| s.container.as_str()),
            "node": last.map(|s| s.node.as_str()),
            "uid": last.and_then(|s| s.uid.as_ref()).map(Uid::as_str),
            "bootId": last.and_then(|s| s.boot.as_ref()).map(BootId::as_str),
            "bootClock": last.map(|s| s.boot_clock),
            "at": last.map(|s| format_time(s.at)),
            "since": format_time(lease.since),
            "created": format_time(lease.created),
            "sticky": flag(lease.sticky),
            "reserved": flag(lease.reserved),
            "unconfirmed": flag(lease.unconfirmed),
            "controller": seen.controller,
            "missedAt": seen.missed.map(format_time),
            "doubtAt": seen.doubt.map(format_time),
        }),
    )
}

/// Reads a lease that may be written again.
///
/// # Errors
/// [`RecordError`].
pub fn decode_lease(entry: &Entry) -> Result<Stored<Lease>, RecordError> {
    Ok(Stored { value: read_lease(entry)?, revision: entry.revision, raw: entry.value.clone() })
}

/// Reads a lease.
///
/// # Errors
/// [`RecordError`].
pub fn read_lease(entry: &Entry) -> Result<Lease, RecordError> {
    let map = object(entry)?;
    let fields = Fields { key: &entry.key, map: &map };
    let id = fields.need("key", parse_lease(&entry.key))?;
    let Some(Json::List(list)) = map.get("addresses") else {
        return Err(fields.invalid("addresses", "is no list"));
    };
    let mut addresses = Vec::with_capacity(list.len());
    for item in list {
        let Json::Object(item) = item else {
            return Err(fields.invalid("addresses", format!("{item} is no object")));
        };
        let item = Fields { key: &entry.key, map: item };
        let address = LeasedAddress {
            address: item.need("addresses.address", item.name("address", parse_address)?)?,
            domain: item.need("addresses.domain", item.name("domain", |t| DomainName::new(t))?)?,
            pool: item.name("pool", |t| PoolName::new(t))?,
        };
        // Twice the same would write one key twice in a transaction.
        let same = |a: &LeasedAddress| a.address == address.address && a.domain == address.domain;
        if addresses.iter().any(same) {
            return Err(fields.invalid("addresses", format!("{} is listed twice", address.address)));
        }
        addresses.push(address);
    }
    if addresses.is_empty() {
        return Err(fields.invalid("addresses", "is empty"));
    }
    let container = fields.name("container", |t| ContainerId::new(t))?;
    let node = fields.name("node", |t| NodeName::new(t))?;
    let since = fields.time("since")?;
    let at = fields.time("at")?;
    let clock = map.get("bootClock").and_then(Json::as_u64).unwrap_or(0);
    let stamp = match (container, node) {
        (Some(container), Some(node)) => Some(Stamp {
            container,
            node,
            uid: fields.name("uid", |t| Uid::new(t))?,
            boot: fields.name("bootId", |t| BootId::new(t))?,
            boot_clock: clock,
            at: at.or(since).unwrap_or(Timestamp(0)),
        }),
        (Some(_), None) | (None, Some(_)) | (None, None) => None,
    };
    let reserved = fields.flag("reserved")? || fields.text("state")? == Some("reserved");
    let binding = match (fields.text("state")?, stamp) {
        (Some("bound"), Some(stamp)) => Binding::Bound(stamp),
        (Some("bound"), None) => {
            return Err(fields.invalid("container", "a bound lease names its container and node"));
        }
        (Some("held" | "reserved") | None, stamp) => Binding::Idle(stamp),
        (Some(other), _) => {
            return Err(fields.invalid("state", format!("{other:?} is none of bound, held, reserved")));
        }
    };
    let seen = Seen {
        controller: fields.text("controller")?.map(Into::into),
        missed: fields.time("missedAt")?,
        doubt: fields.time("doubtAt")?,
    };
    let since = since.or(at).unwrap_or(Timestamp(0));
    Ok(Lease {
        id,
        addresses,
        binding,
        since,
        created: fields.time("created")?.unwrap_or(since),
        sticky: fields.flag("sticky")?,
        reserved,
        unconfirmed: fields.flag("unconfirmed")?,
        seen: (seen != Seen::default()).then_some(seen),
    })
}

/// The bytes of an address key that a lease holds, and of an attachment key.
#[must_use]
pub fn encode_pointer(id: &LeaseId) -> Vec<u8> {
    json!({"v": VERSION, "lease": lease_path(id)}).to_string().into_bytes()
}

/// The lease that an attachment names.
///
/// # Errors
/// [`RecordError`].
pub fn decode_pointer(entry: &Entry) -> Result<LeaseId, RecordError> {
    let map = object(entry)?;
    let fields = Fields { key: &entry.key, map: &map };
    let path = fields.need("lease", fields.text("lease")?)?;
    fields.need("lease", parse_lease_path(path))
}

/// The bytes of an address key of a device.
#[must_use]
pub fn encode_device(reason: &str, since: Timestamp) -> Vec<u8> {
    json!({"v": VERSION, "reason": reason, "since": format_time(since)}).to_string().into_bytes()
}

/// Who holds an address.
///
/// # Errors
/// [`RecordError`].
pub fn decode_address(entry: &Entry) -> Result<AddressHolder, RecordError> {
    let map = object(entry)?;
    let fields = Fields { key: &entry.key, map: &map };
    if map.get("lease").is_some() {
        return decode_pointer(entry).map(AddressHolder::Lease);
    }
    let reason = fields.need("reason", fields.text("reason")?)?.to_owned();
    Ok(AddressHolder::Device { reason, since: fields.time("since")?.unwrap_or(Timestamp(0)) })
}

const RELEASED_FIELDS: &[&str] = &["v", "at", "by", "cluster", "unconfirmed", "declined"];

/// The bytes of a released key.
#[must_use]
pub fn encode_released(released: &Released, previous: Option<&[u8]>) -> Vec<u8> {
    let declined = released.declined.as_ref().map(|d| json!({"mac": d.mac, "at": format_time(d.at)}));
    over(
        previous,
        RELEASED_FIELDS,
        json!({
            "v": VERSION,
            "at": format_time(released.at),
            "by": released.by.to_string(),
            "cluster": released.cluster.as_str(),
            "unconfirmed": if released.unconfirmed { Value::Bool(true) } else { Value::Null },
            "declined": declined,
        }),
    )
}

/// Reads a released key.
///
/// # Errors
/// [`RecordError`].
pub fn decode_released(entry: &Entry) -> Result<Stored<Released>, RecordError> {
    let map = object(entry)?;
    let fields = Fields { key: &entry.key, map: &map };
    let declined = match map.get("declined") {
        None | Some(Json::Null) => None,
        Some(Json::Object(inner)) => {
            let inner = Fields { key: &entry.key, map: inner };
            Some(Declined {
                mac: inner.need("declined.mac", inner.text("mac")?)?.to_owned(),
                at: inner.time("at")?.unwrap_or(Timestamp(0)),
            })
        }
        Some(other) => return Err(fields.invalid("declined", format!("{other} is no object"))),
    };
    let value = Released {
        at: fields.need("at", fields.time("at")?)?,
        by: fields.need("by", fields.name("by", parse_holder)?)?,
        cluster: fields.need("cluster", fields.name("cluster", |t| ClusterName::new(t))?)?,
        unconfirmed: fields.flag("unconfirmed")?,
        declined,
    };
    Ok(Stored { value, revision: entry.revision, raw: entry.value.clone() })
}

/// Reads `namespace/pod`, or `_/container`.
///
/// # Errors
/// What is accepted.
pub fn parse_holder(text: &str) -> Result<Holder, String> {
    let (namespace, name) = text.split_once('/').ok_or("must be namespace/pod")?;
    if namespace == "_" {
        return ContainerId::new(name).map(Holder::Container).map_err(|error| error.to_string());
    }
    let namespace = Namespace::new(namespace).map_err(|error| error.to_string())?;
    let name = PodName::new(name).map_err(|error| error.to_string())?;
    Ok(Holder::Pod { namespace, name })
}

/// What the store says of itself.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Meta {
    /// Drawn when the store was made, and anew by `thaw`.
    pub store: StoreId,
}

/// The bytes of `v1/meta`.
#[must_use]
pub fn encode_meta(meta: &Meta) -> Vec<u8> {
    json!({"v": VERSION, "schema": VERSION, "store": meta.store.as_str()}).to_string().into_bytes()
}

/// Reads `v1/meta`.
///
/// # Errors
/// [`RecordError`]; a schema above ours is `Newer`.
pub fn decode_meta(entry: &Entry) -> Result<Meta, RecordError> {
    let map = object(entry)?;
    let fields = Fields { key: &entry.key, map: &map };
    if let Some(found) = map.get("schema").and_then(Json::as_u64).filter(|schema| *schema > VERSION) {
        return Err(RecordError::Newer { key: entry.key.to_string(), found });
    }
    Ok(Meta { store: fields.need("store", fields.name("store", |t| StoreId::new(t))?)? })
}

/// Why nothing new is leased.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Frozen {
    /// The reason.
    pub why: String,
    /// Who froze it.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// The bytes of `v1/frozen`.
#[must_use]
pub fn encode_frozen(frozen: &Frozen) -> Vec<u8> {
    json!({"v": VERSION, "why": frozen.why, "by": frozen.by, "at": format_time(frozen.at)})
        .to_string()
        .into_bytes()
}

/// Reads `v1/frozen`. Whatever stands there freezes: what cannot be read is the reason then.
#[must_use]
pub fn decode_frozen(entry: &Entry) -> Frozen {
    let text =
        |map: &Object<'_>, field: &str| map.get(field).and_then(Json::as_str).unwrap_or("unknown").to_owned();
    match object(entry) {
        Ok(map) => Frozen {
            why: text(&map, "why"),
            by: text(&map, "by"),
            at: map.get("at").and_then(Json::as_str).and_then(|t| parse_time(t).ok()).unwrap_or(Timestamp(0)),
        },
        Err(error) => Frozen { why: error.to_string(), by: "unknown".into(), at: Timestamp(0) },
    }
}

/// A registered cluster.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cluster {
    /// The UID of its namespace kube-system.
    pub uid: Uid,
    /// When a reap last ended well.
    pub last_reap: Option<Timestamp>,
}

/// The bytes of a registered cluster.
#[must_use]
pub fn encode_cluster(cluster: &Cluster, previous: Option<&[u8]>) -> Vec<u8> {
    over(
        previous,
        &["v", "uid", "lastReap"],
        json!({"v": VERSION, "uid": cluster.uid.as_str(), "lastReap": cluster.last_reap.map(format_time)}),
    )
}

/// Reads a registered cluster.
///
/// # Errors
/// [`RecordError`].
pub fn decode_cluster(entry: &Entry) -> Result<Stored<Cluster>, RecordError> {
    let map = object(entry)?;
    let fields = Fields { key: &entry.key, map: &map };
    let value = Cluster {
        uid: fields.need("uid", fields.name("uid", |t| Uid::new(t))?)?,
        last_reap: fields.time("lastReap")?,
    };
    Ok(Stored { value, revision: entry.revision, raw: entry.value.clone() })
}

/// The bytes of an entry of the `serves` index: the key says all.
#[must_use]
pub fn encode_serve() -> Vec<u8> {
    json!({"v": VERSION}).to_string().into_bytes()
}

/// A pool document, field by field as people write it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are those of domain::pool::Pool")]
pub struct PoolDocument {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v: Option<u64>,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub networks: Vec<String>,
    #[serde(default)]
    pub serves: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    #[serde(default)]
    pub ranges: Vec<RangeDocument>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<DnsDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sticky: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_lost: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cool_down: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<String>,
}

/// A range of a pool document.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are those of domain::pool::Range")]
pub struct RangeDocument {
    #[serde(default)]
    pub subnet: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// A route of a pool document.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are those of domain::pool::Route")]
pub struct RouteDocument {
    #[serde(default)]
    pub dst: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u32>,
}

/// The dns of a pool document.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[expect(missing_docs, reason = "named by the CNI specification")]
pub struct DnsDocument {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// The retention of a pool document.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are those of domain::pool::Retention")]
pub struct RetentionDocument {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_deleted: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_scaled: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_for: Option<String>,
}

impl From<&RouteDocument> for RouteDraft {
    fn from(route: &RouteDocument) -> Self {
        let RouteDocument { dst, gw, mtu, advmss, priority, table, scope } = route.clone();
        Self { dst, gw, mtu, advmss, priority, table, scope }
    }
}

impl From<&PoolDocument> for Draft {
    fn from(document: &PoolDocument) -> Self {
        let document = document.clone();
        let retention = document.retention.unwrap_or_default();
        let dns = document.dns.unwrap_or_default();
        Self {
            name: document.name,
            networks: document.networks,
            serves: document.serves,
            clusters: document.clusters,
            nodes: document.nodes,
            priority: document.priority,
            domain: document.domain,
            ranges: document
                .ranges
                .into_iter()
                .map(|RangeDocument { subnet, start, end, gateway, exclude }| RangeDraft {
                    subnet,
                    start,
                    end,
                    gateway,
                    exclude,
                })
                .collect(),
            routes: document.routes.iter().map(RouteDraft::from).collect(),
            dns: Dns {
                nameservers: dns.nameservers,
                domain: dns.domain,
                search: dns.search,
                options: dns.options,
            },
            sticky: document.sticky,
            when_deleted: retention.when_deleted,
            when_scaled: retention.when_scaled,
            hold_for: retention.hold_for,
            node_lost: document.node_lost,
            cool_down: document.cool_down,
            probe: document.probe,
        }
    }
}

/// The bytes of a pool document.
#[must_use]
pub fn encode_pool(document: &PoolDocument) -> Vec<u8> {
    let mut document = document.clone();
    document.v = Some(VERSION);
    serde_json::to_vec(&document).unwrap_or_default()
}

/// Reads a pool's document.
///
/// # Errors
/// [`RecordError`]; every fault of the document is in the reason.
pub fn decode_pool(entry: &Entry) -> Result<Stored<Pool>, RecordError> {
    object(entry)?;
    let invalid = |reason: String| RecordError::Invalid { key: entry.key.to_string(), reason };
    let document: PoolDocument =
        serde_json::from_slice(&entry.value).map_err(|error| invalid(error.to_string()))?;
    let value = Pool::from_draft(&Draft::from(&document))
        .map_err(|faults| invalid(faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))?;
    if super::keys::pool(value.name()) != entry.key {
        return Err(invalid(format!("name: {} is not the name in its key", value.name())));
    }
    Ok(Stored { value, revision: entry.revision, raw: entry.value.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::keys;

    fn id() -> LeaseId {
        parse_lease_path("prod/shop/db-0/lan100/eth0").unwrap()
    }

    fn lease(binding: Binding) -> Lease {
        Lease {
            id: id(),
            addresses: vec![LeasedAddress {
                address: "10.0.0.1".parse().unwrap(),
                domain: DomainName::new("default").unwrap(),
                pool: Some(PoolName::new("shop-db").unwrap()),
            }],
            binding,
            since: Timestamp(1_700_000_000_123),
            created: Timestamp(1_600_000_000_000),
            sticky: true,
            reserved: false,
            unconfirmed: false,
            seen: Some(Seen {
                controller: Some("StatefulSet.apps/db".into()),
                missed: None,
                doubt: Some(Timestamp(7_000)),
            }),
        }
    }

    fn stamp() -> Stamp {
        Stamp {
            container: ContainerId::new("c1").unwrap(),
            node: NodeName::new("n1").unwrap(),
            uid: Some(Uid::new("u1").unwrap()),
            boot: Some(BootId::new("b1").unwrap()),
            boot_clock: 12_345,
            at: Timestamp(1_700_000_000_000),
        }
    }

    fn entry(key: Key, value: impl Into<Vec<u8>>) -> Entry {
        Entry { key, value: value.into(), revision: Revision(7) }
    }

    #[test]
    fn a_lease_comes_back_as_it_was() {
        let idle = Lease { unconfirmed: true, reserved: true, ..lease(Binding::Idle(Some(stamp()))) };
        for lease in [lease(Binding::Bound(stamp())), idle, lease(Binding::Idle(None))] {
            let bytes = encode_lease(&lease, None);
            assert_eq!(decode_lease(&entry(keys::lease(&id()), bytes)).unwrap().value, lease);
        }
    }

    #[test]
    fn b136_fields_of_a_later_minor_version_are_kept() {
        let old = br#"{"v":1,"addresses":[{"address":"10.0.0.1","domain":"default"}],"colour":"blue","sticky":true}"#;
        let mut read = decode_lease(&entry(keys::lease(&id()), &old[..])).unwrap();
        read.value.sticky = false;
        let written: Value = serde_json::from_slice(&encode_lease(&read.value, Some(&read.raw))).unwrap();
        assert_eq!(written["colour"], "blue");
        assert_eq!(written.get("sticky"), None);
        assert_eq!(written["state"], "held");
    }

    #[test]
    fn b136_an_old_record_without_the_newer_fields_is_read() {
        let old = br#"{"state":"bound","container":"c1","node":"n1","addresses":[{"address":"10.0.0.1","domain":"default"}]}"#;
        let read = decode_lease(&entry(keys::lease(&id()), &old[..])).unwrap().value;
        assert!(read.bound().is_some_and(|stamp| stamp.container.as_str() == "c1"));
        assert_eq!(read.bound().unwrap().uid, None);
    }

    #[test]
    fn a_newer_record_is_named_with_its_version() {
        let error = decode_lease(&entry(keys::lease(&id()), &br#"{"v":2}"#[..])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "record v1/leases/prod/shop/db-0/lan100/eth0 has version 2, this leasehold knows up to 1: upgrade it on this node"
        );
    }

    #[track_caller]
    fn invalid(value: &str, reason: &str) {
        match decode_lease(&entry(keys::lease(&id()), value)).unwrap_err() {
            RecordError::Invalid { reason: found, .. } => assert_eq!(found, reason),
            RecordError::Newer { .. } => panic!("newer"),
        }
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        invalid("[]", "not a JSON object");
        invalid(r#"{"v":1}"#, "addresses: is no list");
        invalid(r#"{"v":1,"addresses":[]}"#, "addresses: is empty");
        invalid(
            r#"{"v":1,"addresses":[{"address":"10.0.0.1","domain":"d"},{"address":"10.0.0.1","domain":"d"}]}"#,
            "addresses: 10.0.0.1 is listed twice",
        );
        invalid(
            r#"{"v":1,"addresses":[{"address":"x","domain":"d"}]}"#,
            "address: \"x\" is not an IPv4 or IPv6 address",
        );
        invalid(
            r#"{"v":1,"state":"bound","addresses":[{"address":"10.0.0.1","domain":"d"}]}"#,
            "container: a bound lease names its container and node",
        );
        invalid(
            r#"{"v":1,"state":"lent","addresses":[{"address":"10.0.0.1","domain":"d"}]}"#,
            "state: \"lent\" is none of bound, held, reserved",
        );
    }

    #[test]
    fn the_other_records_come_back_as_they_were() {
        let domain = DomainName::new("default").unwrap();
        let key = keys::released(&domain, "10.0.0.1".parse().unwrap());
        let released = Released {
            at: Timestamp(5),
            by: id().holder,
            cluster: id().cluster,
            unconfirmed: true,
            declined: Some(Declined { mac: "02:00:00:00:00:01".into(), at: Timestamp(6) }),
        };
        assert_eq!(decode_released(&entry(key, encode_released(&released, None))).unwrap().value, released);
        let key = keys::address(&domain, "10.0.0.1".parse().unwrap());
        assert_eq!(
            decode_address(&entry(key.clone(), encode_pointer(&id()))).unwrap(),
            AddressHolder::Lease(id())
        );
        assert_eq!(
            decode_address(&entry(key, encode_device("printer", Timestamp(9)))).unwrap(),
            AddressHolder::Device { reason: "printer".into(), since: Timestamp(9) }
        );
        let meta = Meta { store: StoreId::new("abc").unwrap() };
        assert_eq!(decode_meta(&entry(keys::meta(), encode_meta(&meta))).unwrap(), meta);
        let frozen = Frozen { why: "restored?".into(), by: "n1".into(), at: Timestamp(3) };
        assert_eq!(decode_frozen(&entry(keys::frozen(), encode_frozen(&frozen))), frozen);
        let cluster = Cluster { uid: Uid::new("u").unwrap(), last_reap: Some(Timestamp(4)) };
        let key = keys::cluster(&ClusterName::new("prod").unwrap());
        assert_eq!(decode_cluster(&entry(key, encode_cluster(&cluster, None))).unwrap().value, cluster);
    }

    #[test]
    fn a_pool_document_is_read_with_every_field() {
        let text = r#"{"v":1,"name":"shop-db","networks":["lan100"],"serves":["shop/db"],"clusters":["prod-a"],
            "nodes":["n*","rack=a"],"priority":5,"domain":"lan","ranges":[{"subnet":"10.0.0.0/22","start":"10.0.0.1",
            "end":"10.0.0.10","gateway":"10.0.0.254","exclude":["10.0.0.5"]},{"subnet":"fd00:9::/64"}],
            "routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"dns":{"nameservers":["10.0.0.53"]},"sticky":"never",
            "retention":{"whenDeleted":"Retain","whenScaled":"Delete","holdFor":"24h"},"nodeLost":"keep",
            "coolDown":"30s","probe":"always"}"#;
        let key = keys::pool(&PoolName::new("shop-db").unwrap());
        let pool = decode_pool(&entry(key, text)).unwrap().value;
        assert_eq!(pool.ranges()[0].usable().size(), 9);
        assert_eq!(pool.families().len(), 2);
        assert_eq!(pool.cool_down().as_secs(), 30);
        assert_eq!(pool.retention().hold_for.as_secs(), 86_400);
        assert_eq!(pool.routes().len(), 2);
        assert_eq!(pool.priority(), 5);
    }
}
