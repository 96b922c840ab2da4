//! What stands in a store and in a node's journal.

use std::{collections::BTreeSet, sync::LazyLock};

use leasehold::{
    admin::{check::Plans, read::Contents},
    domain::{
        audit::audit,
        kubernetes::Answer,
        lease::{AddressHolder, Lease, Timestamp},
        names::ClusterName,
        reap::{Case, Policy, PoolPolicy, Verdict, verdict},
    },
    journal,
    store::{
        Entry, Key, Revision, Txn, Write, changes, keys,
        record::{self, Stored},
    },
};
use serde_json::Value;

const NOW: Timestamp = Timestamp(1_800_000_000_000);

pub(crate) fn journal(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Some(entry) = journal::Entry::parse(&text) {
        assert_eq!(journal::Entry::parse(&entry.text()).as_ref(), Some(&entry));
    }
    let memory = journal::Memory::parse(&text);
    if let Some(text) = memory.text() {
        assert_eq!(journal::Memory::parse(&text), memory);
    }
}

/// Lines of a key and a value.
pub(crate) fn records(input: &[u8]) {
    let mut seen = BTreeSet::new();
    let mut entries = Vec::new();
    for (line, revision) in input.split(|byte| *byte == b'\n').zip(1..) {
        let at = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
        let key = Key::new(String::from_utf8_lossy(&line[..at]));
        let value = line.get(at + 1..).unwrap_or_default().to_vec();
        if seen.insert(key.as_str().to_owned()) {
            entries.push(Entry { key, value, revision: Revision(revision) });
        }
    }
    for entry in &entries {
        key_holds(&entry.key);
        value_holds(entry);
    }
    let contents = Contents::of(Revision(i64::MAX), &entries);
    let notes = audit(&contents.everything);
    let plans = Plans::new(&contents, NOW);
    for note in &notes {
        assert!(!note.to_string().is_empty());
        plans.of(note).iter().for_each(txn_holds);
    }
}

/// A key says one thing, and that is said by no other key.
fn key_holds(key: &Key) {
    let told = [
        keys::parse_cluster(key).map(|name| keys::cluster(&name)),
        keys::parse_pool(key).map(|name| keys::pool(&name)),
        keys::parse_serve(key).map(|(serve, pool)| keys::serve(&serve, &pool)),
        keys::parse_lease(key).map(|id| keys::lease(&id)),
        keys::parse_held(key).map(|(domain, address)| keys::address(&domain, address)),
        keys::parse_released(key).map(|(domain, address)| keys::released(&domain, address)),
        keys::parse_attachment(key).map(|id| keys::attachment(&id)),
    ];
    let told: Vec<_> = told.into_iter().flatten().collect();
    assert!(told.len() <= 1 && told.iter().all(|again| again == key), "{key}: {told:?}");
}

/// What was read is written as it was read.
fn value_holds(entry: &Entry) {
    let again = |value: Vec<u8>| Entry { value, ..entry.clone() };
    let key = &entry.key;
    if keys::parse_lease(key).is_some() {
        let Ok(lease) = record::decode_lease(entry) else { return };
        let written = record::encode_lease(&lease.value, Some(&lease.raw));
        assert_eq!(record::decode_lease(&again(written.clone())).unwrap().value, lease.value);
        let twice = record::encode_lease(&lease.value, Some(&written));
        let [written, twice] = [written, twice].map(|text| serde_json::from_slice::<Value>(&text).unwrap());
        assert_eq!(twice, written);
        lease_holds(&lease);
    } else if keys::parse_released(key).is_some() {
        let Ok(released) = record::decode_released(entry) else { return };
        let written = record::encode_released(&released.value, Some(&released.raw));
        assert_eq!(record::decode_released(&again(written)).unwrap().value, released.value);
    } else if keys::parse_cluster(key).is_some() {
        let Ok(cluster) = record::decode_cluster(entry) else { return };
        let written = record::encode_cluster(&cluster.value, Some(&cluster.raw));
        assert_eq!(record::decode_cluster(&again(written)).unwrap().value, cluster.value);
    } else if keys::parse_held(key).is_some() {
        let Ok(holder) = record::decode_address(entry) else { return };
        let written = match &holder {
            AddressHolder::Lease(id) => record::encode_pointer(id),
            AddressHolder::Device { reason, since } => record::encode_device(reason, *since),
        };
        assert_eq!(record::decode_address(&again(written)).as_ref(), Ok(&holder));
    } else if keys::parse_attachment(key).is_some() {
        let Ok(id) = record::decode_pointer(entry) else { return };
        assert_eq!(record::decode_pointer(&again(record::encode_pointer(&id))).as_ref(), Ok(&id));
    } else if *key == keys::meta() {
        let Ok(meta) = record::decode_meta(entry) else { return };
        assert_eq!(record::decode_meta(&again(record::encode_meta(&meta))).as_ref(), Ok(&meta));
    } else if *key == keys::frozen() {
        let frozen = record::decode_frozen(entry);
        assert_eq!(record::decode_frozen(&again(record::encode_frozen(&frozen))), frozen);
    }
}

/// What ends it can be sent, and doubt does not end it.
fn lease_holds(lease: &Stored<Lease>) {
    static REAPER: LazyLock<(ClusterName, Policy)> =
        LazyLock::new(|| (ClusterName::new("prod").unwrap(), Policy::default()));
    let (cluster, policy) = &*REAPER;
    txn_holds(&changes::unbind(lease, true, NOW));
    txn_holds(&changes::give_back(lease, false, NOW));
    let pools = Answer::Present(PoolPolicy::default());
    let (pod, node, controller) = (Answer::Unknown("nobody asked".into()), Answer::Absent, Answer::Absent);
    let case = Case { lease: &lease.value, cluster, pools, pod, node, controller };
    assert!(!matches!(verdict(&case, policy, NOW), Verdict::Give(_)));
    let _ = verdict(&Case { pod: Answer::Absent, ..case }, policy, NOW);
}

/// etcd would take it: no key twice, and not too many.
fn txn_holds(txn: &Txn) {
    let mut keys = BTreeSet::new();
    for write in txn.writes.iter().flat_map(Write::parts) {
        let key = write.key().expect("a part is no condition");
        assert!(keys.insert(key.as_str().to_owned()), "{key} is written twice: {txn:?}");
    }
}
