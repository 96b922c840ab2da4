//! How the time of an ADD grows: with the leases that are held, and with those who ask at once. As two pictures.

use std::{fs, net::Ipv4Addr, path::Path, time::Duration};

use serde_json::json;

use super::{
    crowds::{self, Nodes},
    measure::{Bench, Times, in_turns, run},
    plot::{Line, plot},
    world::{self, Hand, host_local},
};
use crate::support::{call::Call, etcd::Etcd, folder::Folder, host::HostFile, parts::Version};

pub(crate) fn draw(bench: &Bench, folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("growth-held.svg"), held(bench)).unwrap();
    fs::write(folder.join("growth-callers.svg"), callers(bench)).unwrap();
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// host-local looks at every file: more would take an hour to make.
const LOCAL: u32 = 1_000;

/// One caller; more and more leases in one /16.
fn held(bench: &Bench) -> String {
    let etcd = Etcd::with(Version::V36).on_disk().start();
    let (host, data) = (HostFile::on(&etcd), Folder::new());
    world::register(&[&host]);
    world::pool(&host, "n16", &json!([{ "subnet": "10.16.0.0/16" }]));
    let hand = Hand::on(&host);
    let local = |call: Call| host_local(call, data.path(), "10.16.0.0/16", None);
    let (mut ours, mut theirs, mut present) = (Vec::new(), Vec::new(), 0_u32);
    for target in [1, 10, 100, 1_000, 10_000, 60_000] {
        // From below: an ADD of ours begins anywhere, host-local's after the last.
        hand.bind((present..target).map(|number| {
            let address = Ipv4Addr::from(0x0a10_0001 + number).into();
            world::lease("n16", address, &format!("shop/other-{number}"), "other")
        }));
        for number in present..target.min(LOCAL) {
            let call = local(Call::add(&host)).pod("shop/other").container(&format!("other{number}"));
            run(&call).success();
        }
        present = target;
        let mut times = [Times::default(), Times::default()];
        for turn in 0..bench.runs {
            let (pod, container) = (format!("shop/web-{turn}"), format!("c{target}-{turn}"));
            in_turns(turn, 2, |which| {
                let of = |call: Call| {
                    let call = call.pod(&pod).container(&container).network("n16");
                    if which == 0 { call } else { local(call) }
                };
                if which == 1 && target > LOCAL {
                    return;
                }
                let added = run(&of(Call::add(&host))).success();
                run(&of(Call::del(&host))).success();
                if which == 0 {
                    hand.forget(added.address());
                }
                times[which].push(added.took);
            });
        }
        ours.push((f64::from(target), millis(times[0].median())));
        if target <= LOCAL {
            theirs.push((f64::from(target), millis(times[1].median())));
        }
    }
    let lines = [Line { name: "leasehold, etcd", points: ours }, Line { name: "host-local", points: theirs }];
    plot("One ADD, by the leases that are held in a /16", "leases held", "ms (median)", &lines)
}

/// More and more callers, who always have twice the addresses they need: the time of all of them for each.
fn callers(bench: &Bench) -> String {
    let etcd = Etcd::with(Version::V36).on_disk().start();
    let (nodes, data) = (Nodes::on(&etcd), Folder::new());
    let mut points = [Vec::new(), Vec::new(), Vec::new()];
    for (number, at_once) in [1, 2, 4, 8, 16, 32, 64, 128].into_iter().enumerate() {
        let count = bench.callers.min(at_once * 50);
        let pool = format!("callers-{at_once}");
        world::pool(nodes.first(), &pool, &crowds::range(number, 2 * count));
        let ours = nodes.ask(&pool, at_once, count).0;
        let bare = crowds::bare_transactions(bench, &etcd, &pool, (at_once, count));
        let local = crowds::host_local_alone(&nodes, &data.path().join(&pool), number, (at_once, count));
        for (points, took) in points.iter_mut().zip([ours, bare, local]) {
            points.push((at_once as f64, millis(took) / count as f64));
        }
    }
    let [ours, bare, local] = points;
    let lines = [
        Line { name: "leasehold, etcd", points: ours },
        Line { name: "a bare etcd transaction", points: bare },
        Line { name: "host-local", points: local },
    ];
    plot("ADDs at once on ten nodes, by how many run together", "running at once", "ms for each", &lines)
}
