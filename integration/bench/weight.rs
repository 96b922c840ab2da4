//! What one ADD needs of memory, and a node of disk.

use serde_json::json;

use super::{
    measure::{Bench, run},
    report::{Row, Unit},
    world,
};
use crate::support::{
    call::Call,
    etcd::Etcd,
    host::HostFile,
    parts::{Version, leasehold},
};

pub(crate) fn memory(bench: &Bench) -> Vec<Row> {
    let etcd = Etcd::with(Version::V36).tls().start();
    let host = HostFile::on(&etcd);
    world::register(&[&host]);
    world::pool(&host, "lan100", &json!([{ "subnet": "10.1.0.0/24" }]));
    let mut most = 0.0_f64;
    for number in 0..10 {
        let call = Call::add(&host).pod(&format!("shop/web-{number}")).container(&format!("c{number}"));
        let ran = run(&call.under([bench.bare.display().to_string(), "cost".into()]));
        most = most.max(world::cost(&ran.output).mib);
    }
    vec![Row::new(
        "memory",
        "peak memory of one ADD",
        Unit::Mib,
        10.0,
        most,
        "the most of 10, by mTLS".into(),
    )]
}

pub(crate) fn binary(_: &Bench) -> Vec<Row> {
    let bytes = std::fs::metadata(leasehold()).unwrap().len();
    let figures = format!("{bytes} bytes");
    vec![Row::new("binary", "binary", Unit::Mib, 8.0, bytes as f64 / f64::from(1 << 20), figures)]
}
