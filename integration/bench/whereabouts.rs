//! The same crowd by whereabouts, which keeps its addresses in the Kubernetes API: a real one, on an etcd in memory.

use std::{fs, time::Duration};

use serde_json::json;

use super::{
    crowds::{self, Nodes},
    measure::{AT_ONCE, Bench, Ran, together},
    report::{Row, Unit, shown},
    world,
};
use crate::support::{
    apiserver::Apiserver,
    call::Call,
    etcd::Etcd,
    parts::{Part, Version, built, lacks},
};

/// Once: it takes minutes.
pub(crate) fn crowd(bench: &Bench) -> Vec<Row> {
    let (name, work) = ("crowd-whereabouts", "1 000 on 1 000 ÷ whereabouts' 1 000 on a real API server");
    let program = built("whereabouts-0.9").join("whereabouts");
    if !program.is_file() {
        let why = "whereabouts is not built (scripts/parts --whereabouts)";
        return vec![Row::skipped(name, work, Unit::Ratio, 0.02, why)];
    }
    if lacks(&[Part::Apiserver]) {
        return vec![Row::skipped(name, work, Unit::Ratio, 0.02, "no kube-apiserver (scripts/parts)")];
    }
    let etcd = Etcd::with(Version::V36).on_disk().start();
    let nodes = Nodes::on(&etcd);
    world::pool(nodes.first(), "tight", &crowds::range(1, bench.callers));
    let (ours, all) = nodes.ask("tight", AT_ONCE, bench.callers);
    let ours_leased = all.iter().filter_map(Ran::leased).count();

    let server = Apiserver::start();
    for entry in fs::read_dir(built("whereabouts-0.9")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            server.apply(&fs::read_to_string(path).unwrap());
        }
    }
    let settings = nodes.first().folder().join("whereabouts.conf");
    let kubernetes = json!({ "kubeconfig": server.kubeconfig() });
    let document = json!({ "datastore": "kubernetes", "kubernetes": kubernetes, "log_level": "error" });
    fs::write(&settings, document.to_string()).unwrap();
    let (start, end) = crowds::ends(1, bench.callers);
    let ipam = json!({
        "type": "whereabouts", "range": "10.1.0.0/16", "range_start": start, "range_end": end,
        "configuration_path": settings,
    });
    let (theirs, all) = together(AT_ONCE, bench.callers, |number| {
        let call =
            Call::add(nodes.first()).pod(&format!("default/web-{number}")).container(&format!("c{number}"));
        call.binary(&program)
            .field("ipam", ipam.clone())
            .env("WHEREABOUTS_NAMESPACE", "default")
            .command_line()
    });
    let theirs_leased = all.iter().filter_map(Ran::leased).count();
    let mut figures = format!(
        "{} ÷ {} (once); leased {ours_leased} and {theirs_leased} of {}",
        shown(ours),
        shown(theirs),
        bench.callers
    );
    if let Some(failed) = all.iter().find(|ran| ran.leased().is_none()) {
        figures += &format!("; one was told: {}", failed.said());
    }
    if theirs_leased == 0 || ours_leased < bench.callers {
        // Failing is fast.
        return vec![Row::skipped(name, work, Unit::Ratio, 0.02, &figures)];
    }
    let ratio = |one: Duration, other: Duration| one.as_secs_f64() / other.as_secs_f64();
    vec![Row::new(name, work, Unit::Ratio, 0.02, ratio(ours, theirs), figures)]
}
