//! Records in the store that somebody else wrote, or that broke: no panic, nothing handed out, nothing lost silently.

use leasehold::{
    domain::lease::Timestamp,
    store::{Entry, Key, Revision, keys, record},
};

use super::world::{Dice, World, addresses, pool};

const PARTS: &[&str] = &[
    "",
    "{",
    "{}",
    "[]",
    "null",
    "\"\"",
    r#"{"v":1}"#,
    r#"{"v":2}"#,
    r#"{"v":-1}"#,
    r#"{"v":18446744073709551615}"#,
    r#"{"v":1e400}"#,
    r#"{"v":1,"lease":"prod/shop/p1/lan/eth0"}"#,
    r#"{"v":1,"lease":"//////"}"#,
    r#"{"v":1,"lease":17}"#,
    r#"{"v":1,"addresses":[{"address":"10.0.0.3","domain":"default"}]}"#,
    r#"{"v":1,"addresses":[{"address":"fd00::1","domain":"default","pool":"nowhere"}],"state":"held"}"#,
    r#"{"v":1,"addresses":[{"address":"10.0.0.3","domain":"other"},{"address":"10.0.0.3","domain":"other"}]}"#,
    r#"{"v":1,"state":"bound","container":"c","node":"n","bootClock":-5,"addresses":[{"address":"10.0.0.3","domain":"default"}]}"#,
    r#"{"v":1,"at":"9999-12-30T00:00:00Z","by":"shop/p1","cluster":"prod"}"#,
    r#"{"v":1,"at":"-009999-01-02T01:59:59Z","by":"shop/p1","cluster":"prod","unconfirmed":true}"#,
    r#"{"v":1,"at":"2023-11-14T22:13:20Z","by":"_/x","cluster":"prod","declined":{"mac":"m","at":"9999-12-30T00:00:00Z"}}"#,
    r#"{"v":1,"reason":"x","since":"never"}"#,
    r#"{"v":1,"name":"p","networks":["lan"],"serves":["*/*"],"ranges":[]}"#,
    r#"{"v":1,"name":"p","networks":["lan"],"serves":["*/*"],"ranges":[{"subnet":"10.0.0.0/32"}]}"#,
    r#"{"v":1,"name":"p","networks":["lan"],"serves":["*/*"],"ranges":[{"subnet":"::/0"}]}"#,
];

fn broken(dice: &mut Dice, value: &[u8]) -> Vec<u8> {
    let mut out = value.to_vec();
    match dice.below(5) {
        0 => return PARTS[dice.below(PARTS.len())].into(),
        1 => out.truncate(dice.below(out.len() + 1)),
        2 => {
            for _ in 0..1 + dice.below(4) {
                if !out.is_empty() {
                    let at = dice.below(out.len());
                    out[at] ^= 1 << dice.below(8);
                }
            }
        }
        3 => return (0..dice.below(40)).map(|_| u8::try_from(dice.below(256)).unwrap()).collect(),
        _ => {
            if !out.is_empty() {
                let at = dice.below(out.len());
                let digit = b'0' + u8::try_from(dice.below(10)).unwrap();
                out[at] = digit;
            }
        }
    }
    out
}

fn readable(key: &Key, value: &[u8]) -> bool {
    let entry = Entry { key: key.clone(), value: value.to_vec(), revision: Revision(1) };
    if keys::parse_lease(key).is_some() {
        record::decode_lease(&entry).is_ok()
    } else if keys::parse_released(key).is_some() {
        record::decode_released(&entry).is_ok()
    } else {
        true
    }
}

async fn play(dice: &mut Dice) {
    let world = World::new(&[pool("p", &["10.0.0.0/28"])]);
    let node = world.node("n1");
    for n in 0..6 {
        node.gets(&format!("shop/p{n}"), &format!("c{n}")).await;
    }
    for n in 4..6 {
        node.del(&format!("shop/p{n}"), &format!("c{n}")).await;
    }
    let mut all: Vec<(Key, Vec<u8>)> = world.store.dump().into_iter().collect();
    all.push((
        keys::frozen(),
        record::encode_frozen(&record::Frozen { why: "x".into(), by: "y".into(), at: Timestamp(1) }),
    ));
    let mut kept = Vec::new();
    for _ in 0..1 + dice.below(3) {
        let (key, value) = &all[dice.below(all.len())];
        let value = broken(dice, value);
        world.store.put(key, value.clone());
        kept.retain(|(known, _)| known != key);
        if !readable(key, &value) {
            kept.push((key.clone(), value));
        }
    }
    let before = world.store.dump();
    for n in 0..8 {
        let Ok(added) = node.add(&format!("shop/q{n}"), &format!("q{n}")).await else { continue };
        for address in addresses(&added).split(' ') {
            let domain = leasehold::domain::names::DomainName::new("default").unwrap();
            let address = super::world::ip(address);
            let taken = before.contains_key(&keys::address(&domain, address));
            assert!(!taken, "{address} has a holder\n{}", world.show());
            let released = keys::released(&domain, address);
            assert!(!kept.iter().any(|(key, _)| *key == released), "{address} cannot be read");
        }
    }
    for n in 0..6 {
        let _ = node.add(&format!("shop/p{n}"), &format!("d{n}")).await;
        let _ = node.try_del(Some(&format!("shop/p{n}")), &format!("c{n}")).await;
        let _ = node.try_del(None, &format!("d{n}")).await;
    }
    let _ = node.gc(&["q1"]).await;
    let after = world.store.dump();
    for (key, value) in kept {
        assert_eq!(after.get(&key), Some(&value), "{key} is lost");
    }
}

#[test]
fn broken_records_are_neither_handed_out_nor_lost() {
    let mut dice = Dice(0xF022);
    for _ in 0..800 {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(play(&mut dice));
    }
}
