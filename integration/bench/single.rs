//! One call at a time: ours, with and without TLS, and host-local's, in turns on the same disk.

use std::path::Path;

use serde_json::json;

use super::{
    crowds::bare,
    measure::{Bench, Ran, Times, in_turns, run, run_line},
    report::{Row, Unit, shown},
    world::{self, Hand, host_local},
};
use crate::support::{call::Call, etcd::Etcd, folder::Folder, host::HostFile, parts::Version};

/// A network that is asked again and again.
struct Way {
    add: Call,
    del: Call,
    added: Times,
    deleted: Times,
}

impl Way {
    fn ours(host: &HostFile, network: &str) -> Self {
        Self::new(|call| call.network(network), host)
    }

    fn host_local(host: &HostFile, data: &Path) -> Self {
        Self::new(|call| host_local(call, data, "10.1.0.0/22", None), host)
    }

    fn new(of: impl Fn(Call) -> Call, host: &HostFile) -> Self {
        let (add, del) = (of(Call::add(host)), of(Call::del(host)));
        Self { add, del, added: Times::default(), deleted: Times::default() }
    }

    fn hold(&self, count: usize) {
        for number in 0..count {
            run(&of_pod(&self.add, &format!("held-{number}"))).success();
        }
    }
}

/// What the least process takes that leaves something in etcd: with one commit, and with a read before it.
#[derive(Default)]
struct Floor {
    commit: Times,
    read_and_commit: Times,
}

impl Floor {
    fn measure(&mut self, bench: &Bench, etcd: &Etcd, name: &str) {
        for (verb, times) in [("txn", &mut self.commit), ("read-txn", &mut self.read_and_commit)] {
            let command = bare(bench, [verb, &etcd.endpoint(0), &format!("{verb}-{name}")]);
            times.push(run_line((command, b"{}".into())).success().took);
        }
    }

    /// Beside the time that an ADD is held against.
    fn beside(&self, theirs: &Times) -> String {
        let part = |times: &Times| {
            let ratio = times.median().as_secs_f64() / theirs.median().as_secs_f64();
            format!("{} = {ratio:.2}", shown(times.median()))
        };
        format!(
            "; a process that only commits {}, that reads and commits {}",
            part(&self.commit),
            part(&self.read_and_commit)
        )
    }
}

/// Of a pod with one container.
fn of_pod(call: &Call, name: &str) -> Call {
    call.clone().pod(&format!("shop/{name}")).container(name)
}

/// ADD and DEL of a new pod, nothing held and 110 held.
pub(crate) fn calls(bench: &Bench) -> Vec<Row> {
    let plain = Etcd::with(Version::V36).on_disk().start();
    let secure = Etcd::with(Version::V36).on_disk().tls().start();
    let (on_plain, on_secure) = (HostFile::on(&plain), HostFile::on(&secure));
    let folder = Folder::new();
    world::register(&[&on_plain, &on_secure]);
    let (mut measured, mut floors) = (Vec::new(), Vec::new());
    for (number, held) in [0, 110].into_iter().enumerate() {
        let network = format!("held-{held}");
        for host in [&on_plain, &on_secure] {
            world::pool(host, &network, &json!([{ "subnet": format!("10.{}.0.0/22", 1 + number) }]));
        }
        let mut ways = [
            Way::ours(&on_plain, &network),
            Way::ours(&on_secure, &network),
            Way::host_local(&on_plain, &folder.path().join(&network)),
        ];
        ways.iter().for_each(|way| way.hold(held));
        let mut floor = Floor::default();
        for turn in 0..=bench.runs {
            let name = format!("web-{turn}");
            floor.measure(bench, &plain, &format!("{network}-{turn}"));
            in_turns(turn, ways.len(), |which| {
                let way = &mut ways[which];
                let added = run(&of_pod(&way.add, &name)).success();
                if turn > 0 {
                    way.added.push(added.took); // the first fills caches
                }
            });
            in_turns(turn, ways.len(), |which| {
                let way = &mut ways[which];
                let deleted = run(&of_pod(&way.del, &name)).success();
                if turn > 0 {
                    way.deleted.push(deleted.took);
                }
            });
        }
        measured.push(ways);
        floors.push(floor);
    }
    let [none, many] = &measured[..] else { unreachable!() };
    let mut add = [
        Row::ratio("add-0", "ADD ÷ host-local ADD, nothing held", 0.70, &none[0].added, &none[2].added),
        Row::ratio("add-110", "the same, 110 held", 0.50, &many[0].added, &many[2].added),
    ];
    for ((row, floor), ways) in add.iter_mut().zip(&floors).zip([none, many]) {
        row.figures += &floor.beside(&ways[2].added);
    }
    let [add_0, add_110] = add;
    vec![
        add_0,
        add_110,
        Row::ratio(
            "mtls-0",
            "ADD by mTLS (ECDSA) ÷ host-local ADD, nothing held",
            1.1,
            &none[1].added,
            &none[2].added,
        ),
        Row::ratio("mtls-110", "the same, 110 held", 0.80, &many[1].added, &many[2].added),
        Row::ratio("del-0", "DEL ÷ host-local DEL, nothing held", 1.0, &none[0].deleted, &none[2].deleted),
        Row::ratio("del-110", "the same, 110 held", 1.0, &many[0].deleted, &many[2].deleted),
    ]
}

/// A pod that comes back, and a container that is asked about again.
pub(crate) fn sticky(bench: &Bench) -> Vec<Row> {
    let etcd = Etcd::with(Version::V36).on_disk().start();
    let host = HostFile::on(&etcd);
    world::register(&[&host]);
    world::pool(&host, "db", &json!([{ "subnet": "10.1.0.0/16" }]));
    let hand = Hand::on(&host);
    let (mut first, mut again, mut unchanged) = (Times::default(), Times::default(), Times::default());
    let mut written = 0;
    for turn in 0..=bench.runs {
        let call = |call: Call, container: &str| {
            let call = call.network("db").pod(&format!("shop/db-{turn}"));
            run(&call.container(&format!("{container}-{turn}"))).success()
        };
        let one = call(Call::add(&host), "c1");
        call(Call::del(&host), "c1");
        let two = call(Call::add(&host), "c2");
        let before = hand.revision();
        let three = call(Call::add(&host), "c2");
        written += hand.revision() - before;
        let same = |ran: &Ran| assert_eq!(ran.address(), one.address());
        same(&two);
        same(&three);
        if turn > 0 {
            first.push(one.took);
            again.push(two.took);
            unchanged.push(three.took);
        }
    }
    let mut writes = Row::ratio("unchanged", "unchanged container of a pod: writes", 0.0, &unchanged, &first);
    (writes.unit, writes.measured) = (Unit::Count, Some(written as f64));
    vec![Row::ratio("take-over", "sticky take-over ÷ first ADD", 1.0, &again, &first), writes]
}
