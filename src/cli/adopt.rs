//! `leasehold adopt`, and `leasehold check --against-pods`.
//!
//! The JSON of `adopt`: `revision`, `cluster`, `dryRun`, `pods`, `running`, `adopted` (with `--dry-run`: would be),
//! `leased`, `conflicts`, `failed`, `frozen`, and `items`, one an address that is not simply leased: `address`, `result`
//! (`adopted`, `to adopt`, `conflict`, `gone`, `failed`), `namespace`, `pod`, `network`, `ifname`, `pool`, `domain`, `kind`
//! (of a conflict), `why`, `do`.

use std::{io::Read as _, net::IpAddr, path::Path};

use serde_json::{Value, json};

use super::{
    End, Ended, FAILED, Failure, ListRow, Listing,
    args::{Adopt, Format, Global, KubernetesArgs},
    connect::{self, Site},
    dry, now, print, reap,
    render::{self, Column, say, text},
};
use crate::{
    admin::{Scope, known},
    domain::{names::NetworkName, words},
    reaper::adopt::{
        self, AdoptError, Adopted, Against, Difference, Fate, Report, Told, Trouble, Wanted, read_told,
    },
};

const COLUMNS: &[Column] = &[
    text("ADDRESS"),
    text("RESULT"),
    text("POD"),
    text("IF"),
    text("NETWORK"),
    text("POOL"),
    text("WHY"),
    text("DO"),
];

pub(crate) async fn run(site: &Site, global: &Global, args: &Adopt) -> Ended {
    let told = match &args.from {
        Some(path) => told(path)?,
        None => Vec::new(),
    };
    let cluster = reap::cluster(site, global)?;
    are_known(site, args.network.as_ref()).await?;
    let api = connect::api(&args.api)?;
    let kinds = reap::sticky_kinds(site, &[]);
    let wanted = Wanted {
        cluster: &cluster,
        domain: site.scope.domain.as_ref(),
        namespace: global.namespace.as_ref(),
        network: args.network.as_ref(),
        sticky_kinds: &kinds,
    };
    let is_dry = args.write.dry_run;
    let meter = reap::Meter::new();
    let done = adopt::adopt(&site.store, &api, &wanted, &told, now(), is_dry, &|step| meter.show(step)).await;
    meter.clear();
    let report = done.map_err(failure)?;
    for adopted in report.addresses.iter().filter(|adopted| adopted.fate == Fate::Adopted) {
        let whose = adopted.claim.pod.to_string();
        site.trail.by_hand("lease.adopted", &whose, &[adopted.claim.address], "leasehold adopt");
    }
    show(global, cluster.as_str(), is_dry, &report)?;
    talk(global, is_dry, &report);
    let failed = report.count(|fate| matches!(fate, Fate::Failed(_)));
    if failed > 0 {
        return Err(Failure {
            text: format!("not adopted: {}", words::count(failed, "address")),
            hint: Some("run it again: what is adopted stays so".into()),
            code: FAILED,
        });
    }
    // A namespace that is named has pods, or is mistyped.
    let missed = global.namespace.is_some() && report.pods == 0;
    Ok(if report.is_to_look_at() || missed { End::Look } else { End::Done })
}

/// What the API said of the namespace that was asked for.
pub(crate) fn no_pods(global: &Global) -> String {
    match &global.namespace {
        Some(name) => format!("the API shows no pods in namespace {name} (is that its name?)"),
        None => "the API shows no pods".into(),
    }
}

/// No pool of a mistyped domain or network has an address: nothing would be looked at, and nothing found.
async fn are_known(site: &Site, network: Option<&NetworkName>) -> Result<(), Failure> {
    let scope = Scope { domain: site.scope.domain.clone(), ..Scope::default() };
    Ok(known::check(&site.store, &scope, network).await?)
}

/// The file of a person.
fn told(path: &Path) -> Result<Vec<Told>, Failure> {
    let stdin = path == Path::new("-");
    let name = if stdin { "standard input".into() } else { path.display().to_string() };
    let read = if stdin {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    let text = read.map_err(|error| Failure {
        text: format!("--from {name} cannot be read: {error}"),
        hint: Some("--from takes a file, or - for standard input; nothing was adopted".into()),
        code: FAILED,
    })?;
    read_told(&text).map_err(|faults| Failure {
        text: faults.iter().map(|fault| format!("{name}, {fault}")).collect::<Vec<_>>().join("\n"),
        hint: Some("correct the file; nothing was adopted".into()),
        code: FAILED,
    })
}

fn failure(error: AdoptError) -> Failure {
    let hint = match error {
        AdoptError::Admin(error) => return error.into(),
        AdoptError::Api(_) => "nothing was done; run it again".into(),
        AdoptError::Unregistered(ref unknown) => reap::register(unknown),
        AdoptError::OtherCluster { .. } => {
            "nothing was done; name the right one: --context, --kubeconfig, --cluster".into()
        }
    };
    Failure { text: error.to_string(), hint: Some(hint), code: FAILED }
}

fn show(global: &Global, cluster: &str, is_dry: bool, report: &Report) -> Ended {
    let news = || report.addresses.iter().filter(|adopted| adopted.fate != Fate::Leased);
    if matches!(global.output, Format::Json | Format::Yaml) {
        let whole = document(cluster, is_dry, report, news().map(item).collect());
        let text = render::document(&whole, global.output).map_err(|text| Failure {
            text,
            hint: None,
            code: FAILED,
        })?;
        return print(&text);
    }
    let named = |adopted: &&Adopted| {
        global.output != Format::Name || matches!(adopted.fate, Fate::Adopted | Fate::Candidate)
    };
    let rows: Vec<ListRow> = news()
        .filter(named)
        .map(|adopted| ListRow {
            cells: cells(adopted),
            name: format!("lease/{}", adopted.claim.pod),
            json: Value::Null,
        })
        .collect();
    if rows.is_empty() {
        return Ok(End::Done);
    }
    print(&Listing { revision: report.revision, columns: COLUMNS, rows }.text(global, true)?)
}

/// Why, and what to do.
fn reason(fate: &Fate) -> (&str, &str) {
    match fate {
        Fate::Conflict(conflict) => (&conflict.why, &conflict.hint),
        Fate::Failed(why) => (why, "run it again"),
        Fate::Gone => ("the pod has gone meanwhile, or ended", ""),
        Fate::Adopted | Fate::Candidate | Fate::Leased => ("", ""),
    }
}

fn cells(adopted: &Adopted) -> Vec<String> {
    let claim = &adopted.claim;
    let pool = claim.from.as_ref().and_then(|from| from.pool.as_ref());
    let (why, what) = reason(&adopted.fate);
    vec![
        claim.address.to_string(),
        adopted.fate.as_str().into(),
        claim.pod.to_string(),
        claim.ifname.to_string(),
        claim.network.as_ref().map(ToString::to_string).unwrap_or_default(),
        pool.map(ToString::to_string).unwrap_or_default(),
        why.into(),
        what.into(),
    ]
}

fn item(adopted: &Adopted) -> Value {
    let claim = &adopted.claim;
    let (why, what) = reason(&adopted.fate);
    let kind = match &adopted.fate {
        Fate::Conflict(conflict) => Some(conflict.kind.as_str()),
        Fate::Adopted | Fate::Candidate | Fate::Leased | Fate::Gone | Fate::Failed(_) => None,
    };
    json!({
        "address": claim.address,
        "result": adopted.fate.as_str(),
        "namespace": claim.pod.namespace.as_str(),
        "pod": claim.pod.name.as_str(),
        "network": claim.network.as_ref().map(|network| network.as_str()),
        "ifname": claim.ifname.as_str(),
        "pool": claim.from.as_ref().and_then(|from| from.pool.as_ref()).map(|pool| pool.as_str()),
        "domain": claim.from.as_ref().map(|from| from.domain.as_str()),
        "kind": kind,
        "why": why,
        "do": what,
    })
}

fn document(cluster: &str, is_dry: bool, report: &Report, items: Vec<Value>) -> Value {
    json!({
        "revision": report.revision.0,
        "cluster": cluster,
        "dryRun": is_dry,
        "pods": report.pods,
        "running": report.running,
        "adopted": report.count(|fate| matches!(fate, Fate::Adopted | Fate::Candidate)),
        "leased": report.count(|fate| *fate == Fate::Leased),
        "conflicts": report.count(|fate| matches!(fate, Fate::Conflict(_))),
        "failed": report.count(|fate| matches!(fate, Fate::Failed(_))),
        "frozen": report.frozen,
        "items": items,
    })
}

fn talk(global: &Global, is_dry: bool, report: &Report) {
    if report.pods == 0 {
        say(&no_pods(global));
    }
    let adopted = report.count(|fate| matches!(fate, Fate::Adopted | Fate::Candidate));
    let conflicts = report.count(|fate| matches!(fate, Fate::Conflict(_)));
    let verb = dry(is_dry, if is_dry { "to adopt" } else { "adopted" });
    say(&format!(
        "{}, {} of them running: {} {verb}, {} leased before, {}",
        words::count(report.pods, "pod"),
        report.running,
        words::count(adopted, "address"),
        report.count(|fate| *fate == Fate::Leased),
        words::count(conflicts, "conflict"),
    ));
    let Some(frozen) = &report.frozen else { return };
    if is_dry || report.pods == 0 {
        say(&format!("the store is frozen: {frozen}"));
    } else if conflicts == 0 {
        say("the store is frozen; when every cluster of it is adopted: leasehold thaw");
    } else {
        say(
            "the store is frozen; thaw it when the conflicts are settled: a pod that runs without a lease may lose its address to another",
        );
    }
}

/// The audit against the pods.
pub(crate) async fn against(
    site: &Site,
    global: &Global,
    network: Option<&NetworkName>,
    api: &KubernetesArgs,
) -> Result<Against, Failure> {
    let cluster = reap::cluster(site, global)?;
    are_known(site, network).await?;
    let api = connect::api(api)?;
    let kinds = reap::sticky_kinds(site, &[]);
    let wanted = Wanted {
        cluster: &cluster,
        domain: site.scope.domain.as_ref(),
        namespace: global.namespace.as_ref(),
        network,
        sticky_kinds: &kinds,
    };
    let meter = reap::Meter::new();
    let found = adopt::against(&site.store, &api, &wanted, &|step| meter.show(step)).await;
    meter.clear();
    found.map_err(failure)
}

/// A difference, as a note of the audit.
pub(crate) fn difference(found: &Difference) -> ListRow {
    let severity = if found.trouble.is_danger() { "error" } else { "warning" };
    let repair = match found.trouble {
        Trouble::WithoutLease | Trouble::Held => "adopt",
        Trouble::Conflict(_) | Trouble::WithoutPod => "by hand",
    };
    let (pod, address): (_, IpAddr) = (&found.pod, found.address);
    let text = match found.trouble {
        Trouble::WithoutPod => format!("{address} of {pod} {}: {}", found.why, found.hint),
        Trouble::WithoutLease | Trouble::Held => {
            format!("{address}: {pod} {}: {}", found.why, found.hint)
        }
        Trouble::Conflict(_) => format!("{address}: {pod} runs with it; {}: {}", found.why, found.hint),
    };
    ListRow {
        cells: vec![severity.into(), repair.into(), text.clone()],
        name: format!("note/{}", found.trouble.as_str()),
        json: json!({
            "severity": severity,
            "kind": found.trouble.as_str(),
            "text": text,
            "repair": repair,
            "address": address,
            "namespace": pod.namespace.as_str(),
            "pod": pod.name.as_str(),
        }),
    }
}
