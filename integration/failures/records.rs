//! Records, keys and entries of the journal that somebody else wrote, or that broke: nothing panics, and what is read
//! is written back as it was read. `LEASEHOLD_FUZZ` sets how many.

use std::fs;

use leasehold::{
    admin::read::Contents,
    domain::audit::audit,
    journal::Journal,
    store::{Entry, Key, Read, Revision, Store, keys, record},
};
use serde_json::{Value, json};

use crate::support::{
    call::{Call, Cli},
    chance::Chance,
    ground,
    host::HostFile,
    process::eventually,
};

const STRANGE: [&str; 16] = [
    "null",
    "true",
    "-1",
    "1e400",
    "18446744073709551615",
    "18446744073709551616",
    "\"\"",
    "\"_\"",
    "\"a/b\"",
    "\"\\u0000\"",
    "\"10.0.0.256\"",
    "\"fd00::1\"",
    "\"9999-12-31T23:59:59.999Z\"",
    "[]",
    "{}",
    "[[[[[[1]]]]]]",
];

/// What is in a store that was used for a while: every kind of record.
fn samples(host: &HostFile) -> Vec<Entry> {
    ground::pool(
        host,
        json!({
            "name": "lan", "networks": ["lan100"], "serves": ["*/*", "shop/db"], "sticky": "auto",
            "ranges": [
                { "subnet": "10.1.0.0/24", "gateway": "10.1.0.254", "exclude": ["10.1.0.7"] },
                { "subnet": "fd00:9::/64", "start": "fd00:9::1", "end": "fd00:9::ffff" },
            ],
        }),
    );
    for (pod, container) in [("shop/db-0", "A"), ("shop/db-1", "B"), ("shop/web-1", "C"), ("shop/web-2", "D")]
    {
        let _ = Call::add(host).pod(pod).uid("u1").container(container).run().addresses();
    }
    let _ = Call::add(host).container("nobody").run().addresses();
    for (pod, container) in [("shop/db-1", "B"), ("shop/web-2", "D")] {
        Call::del(host).pod(pod).container(container).run().is_silent();
    }
    for line in
        ["lease reserve 10.1.0.9 --reason router", "lease reserve shop/db-7 --address 10.1.0.11", "freeze"]
    {
        let _ = Cli::new(host).line(line).run().success();
    }
    ground::with_store(host, async |store| {
        store.read(&[Read::list(keys::everything())], None).await.unwrap().entries(0).to_vec()
    })
}

fn broken(chance: &mut Chance, value: &[u8]) -> Vec<u8> {
    let mut out = value.to_vec();
    for _ in 0..=chance.below(3) {
        let at = usize::try_from(chance.below(out.len().max(1) as u64)).unwrap();
        match chance.below(6) {
            0 => out.truncate(at),
            1 | 2 if !out.is_empty() => out[at] ^= 1 << chance.below(8),
            3 if !out.is_empty() => out[at] = b'0' + u8::try_from(chance.below(10)).unwrap(),
            4 => drop(out.drain(at..(at + 3).min(out.len()))),
            _ => {
                let Ok(mut document) = serde_json::from_slice::<Value>(&out) else { continue };
                let strange = STRANGE[usize::try_from(chance.below(16)).unwrap()];
                let strange = serde_json::from_str(strange).unwrap_or(Value::Null);
                replace(chance, &mut document, strange);
                out = document.to_string().into_bytes();
            }
        }
    }
    out
}

/// Puts a value somewhere into a document, or takes one away.
fn replace(chance: &mut Chance, document: &mut Value, strange: Value) {
    let mut at = document;
    loop {
        let deeper = match at {
            Value::Object(map) if !map.is_empty() => {
                let key = chance.one_of(&map.keys().cloned().collect::<Vec<_>>()).unwrap().clone();
                if chance.below(8) == 0 {
                    map.remove(&key);
                    return;
                }
                map.get_mut(&key)
            }
            Value::Array(list) if !list.is_empty() => {
                let index = usize::try_from(chance.below(list.len() as u64)).unwrap();
                list.get_mut(index)
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => None,
        };
        match deeper {
            Some(inner) if inner.is_object() || inner.is_array() => at = inner,
            Some(inner) => {
                *inner = strange;
                return;
            }
            None => return,
        }
    }
}

/// Everything reads it; what a lease or a released key said it says again.
fn read(entry: &Entry) {
    let key = &entry.key;
    let _ = (keys::parse_cluster(key), keys::parse_pool(key), keys::parse_serve(key));
    let _ = (keys::parse_held(key), keys::parse_attachment(key));
    let _ = (record::decode_meta(entry), record::decode_frozen(entry), record::decode_cluster(entry));
    let _ = (record::decode_pool(entry), record::decode_address(entry), record::decode_pointer(entry));
    let again = |value: Vec<u8>| Entry { value, ..entry.clone() };
    if let Ok(lease) = record::decode_lease(entry) {
        let written = record::encode_lease(&lease.value, Some(&lease.raw));
        assert_eq!(record::decode_lease(&again(written)).unwrap().value, lease.value);
    }
    if let Ok(released) = record::decode_released(entry) {
        let written = record::encode_released(&released.value, Some(&released.raw));
        assert_eq!(record::decode_released(&again(written)).unwrap().value, released.value);
    }
}

#[test]
fn no_record_breaks_it() {
    let count: u64 = std::env::var("LEASEHOLD_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let host = ground::on_local();
    let samples = samples(&host);
    assert!(samples.len() > 20, "{}", samples.len());
    let mut chance = Chance(0x5eed);
    let mut all = Vec::new();
    let mut good: u64 = 0;
    for _ in 0..count {
        let sample = chance.one_of(&samples).unwrap();
        let mut entry = Entry { value: broken(&mut chance, &sample.value), ..sample.clone() };
        if chance.below(4) == 0 {
            let text = broken(&mut chance, sample.key.as_str().as_bytes());
            entry.key = Key::new(String::from_utf8_lossy(&text));
        }
        read(&entry);
        good += u64::from(record::decode_lease(&entry).is_ok());
        all.push(entry);
        if all.len() == samples.len() {
            let contents = Contents::of(Revision(1), &all);
            let _ = audit(&contents.everything);
            all.clear();
        }
    }
    assert!(good > count / 100, "{good} of {count} can be read");
}

#[test]
fn no_entry_of_the_journal_breaks_it() {
    // Each is a file.
    const SLOWER: u64 = 50;
    let count: u64 = std::env::var("LEASEHOLD_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let host = ground::on_local();
    let journal = Journal::new(&host.state());
    fs::create_dir_all(journal.folder()).unwrap();
    let sample = json!({
        "v": 1, "cluster": "prod-a", "store": "s1", "node": "n1", "network": "lan100", "container": "c1",
        "ifname": "eth0", "holder": "shop/db-0", "why": "down", "at": "2026-01-01T00:00:00.000Z",
    });
    let sample = sample.to_string().into_bytes();
    let path = journal.folder().join("one.json");
    let mut chance = Chance(0x0dd);
    for _ in 0..count / SLOWER {
        fs::write(&path, broken(&mut chance, &sample)).unwrap();
        // A process that another test starts holds it until its exec.
        let _ = eventually("the lock", || journal.lock(&path).unwrap());
    }
    // And through the program.
    for _ in 0..20 {
        fs::write(&path, broken(&mut chance, &sample)).unwrap();
        Call::del(&host).run().is_silent();
    }
}
