//! A new release, and new certificates, under load.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process::Command,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{PARTS, alone, image};
use crate::support::{
    parts::lacks,
    process::{report, run},
};

#[test]
fn an_upgrade_under_load_fails_no_pod() {
    if lacks(&PARTS) {
        return;
    }
    // Sixty-four a second of all, so that there are fifty on two cores that have more to do.
    const CALLERS: u32 = 8;
    const PAUSE: Duration = Duration::from_millis(125);
    alone("upgrade", |scene| {
        let site = scene.site;
        scene.pool("load", 20, "--cool-down 0s");
        scene.pool("db", 2, "");
        scene.stateful_set("db", 2, &json!({}));
        let before_it = scene.all_running(2);
        let machine = site.machine("node1");
        let before = machine.read("etc/cni/net.d/leasehold.d/config.json");
        let archive = image::release("0.1.1");
        for machine in &site.machines {
            machine.import(&archive);
        }

        let (over, done) = (AtomicBool::new(false), AtomicU32::new(0));
        let call = |command: &str, caller: u32, turn: u32| {
            scene.call_plugin(command, "node1", &format!("load-{caller}"), &format!("c{caller}-{turn}"));
        };
        let begun = Instant::now();
        thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS)
                .map(|caller| {
                    let (over, done, call) = (&over, &done, &call);
                    scope.spawn(move || {
                        let turns = (0..).take_while(|_| !over.load(Ordering::Relaxed));
                        for turn in turns {
                            let next = Instant::now() + PAUSE;
                            call("ADD", caller, turn);
                            call("DEL", caller, turn);
                            done.fetch_add(1, Ordering::Relaxed);
                            thread::sleep(next.saturating_duration_since(Instant::now()));
                        }
                    })
                })
                .collect();
            let changed = catch_unwind(AssertUnwindSafe(|| {
                site.renew_certificates();
                let set = "daemonset/leasehold-installer";
                let api = &site.api;
                let image = "installer=leasehold:0.1.1";
                api.kubectl(&["--namespace=leasehold", "set", "image", set, image]).success();
                site.wait("the new release", || {
                    let status = ["--namespace=leasehold", "rollout", "status", set, "--timeout=5s"];
                    (api.kubectl(&status).code() == Some(0)).then_some(())
                });
            }));
            over.store(true, Ordering::Relaxed);
            for caller in callers {
                caller.join().unwrap_or_else(|panic| resume_unwind(panic));
            }
            changed.unwrap_or_else(|panic| resume_unwind(panic));
        });
        let seconds = begun.elapsed().as_secs_f32();
        let done = done.into_inner();
        report(&format!("cluster: {done} ADDs in {seconds:.0} s, {:.0} a second", done as f32 / seconds));
        assert_ne!(machine.read("etc/cni/net.d/leasehold.d/config.json"), before, "another certificate");
        for machine in &site.machines {
            let installed = machine.run("sha256sum", &["/opt/cni/bin/leasehold"]);
            let sum = run(Command::new("sha256sum").arg(image::program("0.1.1")), b"");
            let first = |text: &str| text.split_whitespace().next().map(ToOwned::to_owned);
            assert_eq!(first(installed.success()), first(sum.success()), "{}", machine.name);
        }
        scene.kubectl("delete pod db-0");
        let after = scene.successor(&before_it[0]);
        assert_eq!(after.address, before_it[0].address);
        scene.answers(&after);
    });
}
