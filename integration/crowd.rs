//! Many whole processes at once on a pool that is exactly as large.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    thread,
};

use serde_json::json;

use crate::support::{
    call::{Answer, Call},
    ground,
    parts::{Part, Version, require},
};

#[test]
fn b089_250_on_250_and_the_251st_is_told() {
    require!(Part::Etcd(Version::V36));
    let host = ground::on_etcd().with("deadlines", json!({ "add": "30s" }));
    let ranges = json!([{ "subnet": "10.0.0.0/24", "start": "10.0.0.2", "end": "10.0.0.251" }]);
    ground::pool(&host, json!({ "name": "exact", "networks": ["*"], "serves": ["*/*"], "ranges": ranges }));
    let left = Arc::new(Mutex::new((0..250).collect::<Vec<u32>>()));
    let workers: Vec<_> = (0..64)
        .map(|_| {
            let left = Arc::clone(&left);
            let call = Call::add(&host);
            thread::spawn(move || {
                let mut got = Vec::new();
                loop {
                    let next = left.lock().unwrap().pop();
                    let Some(number) = next else { return got };
                    let name = format!("c{number}");
                    let answer = call.clone().container(&name).pod(&format!("shop/web-{number}")).run();
                    got.extend(answer.addresses());
                }
            })
        })
        .collect();
    let got: Vec<String> = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
    assert_eq!((got.len(), got.iter().collect::<BTreeSet<_>>().len()), (250, 250));
    let late: Answer = Call::add(&host).container("late").run();
    let text = late.error_text(11);
    assert!(text.contains("250 of 250"), "{text}");
    assert_eq!(ground::leases(&host).len(), 250);
}
