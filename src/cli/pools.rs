//! `leasehold pool`.

use serde_json::json;

use super::{
    End, Ended, FAILED, Failure, ListRow, Listing, USAGE,
    args::{Create, Format, Global, PoolCommand},
    connect::Site,
    data, dry, list, now, print, render, warn,
};
use crate::{
    admin::{
        Error,
        pools::{self, Change, Rules, Step, Wanted},
    },
    domain::{
        addr::{AddrRange, Family, Prefix, parse_address},
        lease::Timestamp,
        names::PoolName,
        pool::Fault,
    },
    store::record::{DnsDocument, PoolDocument, RangeDocument, RetentionDocument, RouteDocument},
};

pub(crate) async fn run(site: &Site, global: &Global, command: &PoolCommand) -> Ended {
    match command {
        PoolCommand::List(watch) => {
            list(global, watch.watch, || async {
                let (revision, rows) = pools::list(&site.store, &site.scope, now()).await?;
                let rows = rows.iter().map(|row| ListRow {
                    cells: data::pool_cells(row),
                    name: format!("pool/{}", row.name),
                    json: data::pool_json(row),
                });
                Ok(Listing { revision, columns: data::POOLS, rows: rows.collect() })
            })
            .await
        }
        PoolCommand::Show { name } => show(site, global, name, now()).await,
        PoolCommand::Create(args) => {
            let wanted = from_flags(args, global)?;
            let rules = Rules { only_new: true, dry: args.write.dry_run, ..Rules::default() };
            let steps = match pools::apply(&site.store, &[wanted], rules).await {
                Err(Error::Faults { faults }) => return Err(wrong_flags(faults)),
                applied => applied?,
            };
            report(global, &steps, args.write.dry_run, false)?;
            Ok(End::Done)
        }
        PoolCommand::Apply(args) => {
            let wanted = super::documents::read(&args.files.files)?;
            let dry = args.write.dry_run;
            let rules = Rules { prune: args.files.prune, force: args.files.force, only_new: false, dry };
            let steps = pools::apply(&site.store, &wanted, rules).await?;
            report(global, &steps, dry, false)?;
            Ok(End::Done)
        }
        PoolCommand::Diff(files) => {
            let wanted = super::documents::read(&files.files)?;
            let rules = Rules { prune: files.prune, force: files.force, only_new: false, dry: true };
            let steps = pools::apply(&site.store, &wanted, rules).await?;
            report(global, &steps, true, true)?;
            let differs = steps.iter().any(|step| step.change != Change::Unchanged);
            Ok(if differs { End::Look } else { End::Done })
        }
        PoolCommand::Delete { names, force, write } => {
            let steps = pools::delete(&site.store, names, *force, write.dry_run).await?;
            report(global, &steps, write.dry_run, false)?;
            Ok(End::Done)
        }
    }
}

/// Data: a line a pool, as kubectl says it. Talk: what is seldom meant.
fn report(global: &Global, steps: &[Step], is_dry: bool, diff: bool) -> Ended {
    for step in steps {
        warn(step.warnings.iter().map(|warning| format!("pool {}: {warning}", step.name)));
        let what =
            if step.change == Change::Deleted { "stays with its pod" } else { "lies outside now, and stays" };
        warn(step.outside.iter().map(|(id, address)| {
            format!("pool {}: the lease of {id}, {address}, {what} until its next start", step.name)
        }));
    }
    let text = match global.output {
        Format::Json | Format::Yaml => {
            let items = steps.iter().map(|step| {
                let fields = match &step.change {
                    Change::Changed(fields) => {
                        fields.iter().map(|f| json!({"field": f.field, "old": f.old, "new": f.new})).collect()
                    }
                    Change::Created | Change::Unchanged | Change::Deleted => Vec::new(),
                };
                json!({
                    "name": step.name.as_str(),
                    "change": step.change.as_str(),
                    "fields": fields,
                    "warnings": step.warnings,
                    "outside": step.outside.iter().map(|(id, a)| json!({
                        "pod": id.holder.to_string(), "address": a.to_string(),
                    })).collect::<Vec<_>>(),
                })
            });
            render::document(&json!({"dryRun": is_dry, "items": items.collect::<Vec<_>>()}), global.output)
                .map_err(|text| Failure { text, hint: None, code: FAILED })?
        }
        Format::Name => steps.iter().map(|step| format!("pool/{}\n", step.name)).collect(),
        Format::Table | Format::Wide => {
            let mut out = String::new();
            for step in steps {
                if diff && step.change == Change::Unchanged {
                    continue;
                }
                let line = format!("pool/{} {}", step.name, step.change.as_str());
                out.push_str(&if diff { line } else { dry(is_dry, &line) });
                out.push('\n');
                if let (Change::Changed(fields), true) = (&step.change, diff || is_dry) {
                    for field in fields {
                        out.push_str(&format!("  {field}\n"));
                    }
                }
            }
            out
        }
    };
    print(&text)
}

async fn show(site: &Site, global: &Global, name: &PoolName, now: Timestamp) -> Ended {
    let (_, document) = pools::show(&site.store, name).await?;
    let value = serde_json::to_value(&document).map_err(|error| Failure {
        text: error.to_string(),
        hint: None,
        code: FAILED,
    })?;
    let text = match global.output {
        Format::Json | Format::Yaml => render::document(&value, global.output).map_err(|text| Failure {
            text,
            hint: None,
            code: FAILED,
        })?,
        Format::Name => format!("pool/{name}\n"),
        Format::Table | Format::Wide => {
            let (_, rows) = pools::list(&site.store, &Default::default(), now).await?;
            let row = rows.iter().find(|row| row.name == *name);
            let counts = row.map(|row| row.counts).unwrap_or_default();
            let Some(pool) = row.and_then(|row| row.pool.as_ref()) else {
                let why = row.and_then(|row| row.unreadable.clone()).unwrap_or_default();
                return Err(
                    Error::wrong(format!("pool {name} cannot be read: {why}"), "apply it anew").into()
                );
            };
            let or = |items: Vec<String>, other: &str| {
                if items.is_empty() { other.to_owned() } else { items.join(", ") }
            };
            let ranges: Vec<String> = pool
                .ranges()
                .iter()
                .map(|range| {
                    let gateway = range.gateway().map_or_else(String::new, |g| format!(", gateway {g}"));
                    let exclude: Vec<String> = range.exclude().iter().map(ToString::to_string).collect();
                    let exclude = if exclude.is_empty() {
                        String::new()
                    } else {
                        format!(", without {}", exclude.join(" "))
                    };
                    format!(
                        "{} in {}{gateway}{exclude}: {} usable",
                        range.bounds(),
                        range.subnet(),
                        range.usable().size()
                    )
                })
                .collect();
            let routes: Vec<String> = pool
                .routes()
                .iter()
                .map(|route| {
                    route.gw.map_or_else(|| route.dst.to_string(), |gw| format!("{} via {gw}", route.dst))
                })
                .collect();
            let retention = pool.retention();
            render::pairs(&[
                ("name", name.to_string()),
                ("networks", or(data::networks(pool), "none")),
                ("serves", or(pool.serves().iter().map(ToString::to_string).collect(), "nobody")),
                (
                    "clusters",
                    or(pool.clusters().iter().map(ToString::to_string).collect(), "every registered one"),
                ),
                ("nodes", or(pool.nodes().iter().map(ToString::to_string).collect(), "every node")),
                ("priority", pool.priority().to_string()),
                ("domain", pool.domain().to_string()),
                ("ranges", ranges.join("\n")),
                ("routes", or(routes, "none: a gateway alone makes no route")),
                ("sticky", pool.sticky().as_str().into()),
                (
                    "retention",
                    format!(
                        "whenDeleted {}, whenScaled {}, holdFor {}",
                        retention.when_deleted.as_str(),
                        retention.when_scaled.as_str(),
                        crate::domain::pool::format_duration(retention.hold_for)
                    ),
                ),
                ("nodeLost", pool.node_lost().as_str().into()),
                ("coolDown", crate::domain::pool::format_duration(pool.cool_down())),
                ("probe", pool.probe().as_str().into()),
                (
                    "addresses",
                    format!(
                        "{} usable: {} bound, {} held, {} cooling, {} reserved, {} declined, {} free ({}% used)",
                        counts.size,
                        counts.bound,
                        counts.held,
                        counts.cooling,
                        counts.reserved,
                        counts.declined,
                        counts.free,
                        counts.used()
                    ),
                ),
                (
                    "outside",
                    if counts.outside == 0 {
                        String::new()
                    } else {
                        format!("{} leases: `leasehold lease list --pool {name}`", counts.outside)
                    },
                ),
            ])
        }
    };
    print(&text)
}

/// The document that flags describe. A range belongs to the subnet that holds it, and so does a gateway.
fn from_flags(args: &Create, global: &Global) -> Result<Wanted, Failure> {
    let mut faults = Vec::new();
    let mut fault = |field: &str, value: &str, problem: &str| {
        faults.push(Fault { field: field.into(), value: value.into(), problem: problem.into() });
    };
    let mut ranges: Vec<(Option<Prefix>, RangeDocument)> = Vec::new();
    let subnets: Vec<(Option<Prefix>, &String)> =
        args.subnets.iter().map(|text| (Prefix::parse(text).ok(), text)).collect();
    let mut used = vec![false; subnets.len()];
    for text in &args.ranges {
        match AddrRange::parse(text) {
            Err(error) => fault("--range", text, &error.to_string()),
            Ok(range) => {
                let first = range.family().address(range.first());
                let last = range.family().address(range.last());
                match subnets.iter().position(|(prefix, _)| prefix.is_some_and(|p| p.contains(first))) {
                    None => fault("--range", text, "begins in no --subnet"),
                    Some(index) => {
                        used[index] = true;
                        ranges.push((
                            subnets[index].0,
                            RangeDocument {
                                subnet: subnets[index].1.clone(),
                                start: Some(first.to_string()),
                                end: Some(last.to_string()),
                                ..RangeDocument::default()
                            },
                        ));
                    }
                }
            }
        }
    }
    for ((prefix, text), _) in subnets.iter().zip(&used).filter(|(_, used)| !**used) {
        ranges.push((*prefix, RangeDocument { subnet: (*text).clone(), ..RangeDocument::default() }));
    }
    for text in &args.gateways {
        let Ok(gateway) = parse_address(text) else {
            fault("--gateway", text, "is no address");
            continue;
        };
        let mut placed = false;
        for (prefix, range) in &mut ranges {
            let inside = prefix.is_some_and(|p| p.contains(gateway));
            let link_local = text.to_ascii_lowercase().starts_with("fe80:")
                && prefix.is_some_and(|p| p.family() == Family::V6);
            if inside || link_local {
                range.gateway = Some(text.clone());
                placed = true;
            }
        }
        if !placed {
            fault("--gateway", text, "is in no --subnet");
        }
    }
    for text in &args.excludes {
        match AddrRange::parse(text) {
            Err(error) => fault("--exclude", text, &error.to_string()),
            Ok(hole) => {
                let mut placed = false;
                let first = hole.family().address(hole.first());
                for (prefix, range) in &mut ranges {
                    if prefix.is_some_and(|p| p.contains(first)) {
                        range.exclude.push(text.clone());
                        placed = true;
                    }
                }
                if !placed {
                    fault("--exclude", text, "is in no --subnet");
                }
            }
        }
    }
    let mut routes: Vec<RouteDocument> = Vec::new();
    if args.default_route {
        for (family, dst) in [(Family::V4, "0.0.0.0/0"), (Family::V6, "::/0")] {
            let has = |(p, r): &(Option<Prefix>, RangeDocument)| {
                r.gateway.is_some() && p.is_some_and(|p| p.family() == family)
            };
            if ranges.iter().any(has) {
                routes.push(RouteDocument { dst: dst.into(), ..RouteDocument::default() });
            }
        }
    }
    for text in &args.routes {
        let (dst, gw) =
            text.split_once(',').map_or((text.as_str(), None), |(dst, gw)| (dst, Some(gw.to_owned())));
        routes.push(RouteDocument { dst: dst.into(), gw, ..RouteDocument::default() });
    }
    let retention = (args.when_deleted.is_some() || args.when_scaled.is_some() || args.hold_for.is_some())
        .then(|| RetentionDocument {
            when_deleted: args.when_deleted.clone(),
            when_scaled: args.when_scaled.clone(),
            hold_for: args.hold_for.clone(),
        });
    let dns = (!args.nameservers.is_empty())
        .then(|| DnsDocument { nameservers: args.nameservers.clone(), ..DnsDocument::default() });
    let document = PoolDocument {
        v: None,
        name: args.name.clone(),
        networks: args.networks.clone(),
        serves: args.serves.clone(),
        clusters: args.clusters.clone(),
        nodes: args.nodes.clone(),
        priority: args.priority,
        domain: global.domain.as_ref().map(ToString::to_string),
        ranges: ranges.into_iter().map(|(_, range)| range).collect(),
        routes,
        dns,
        sticky: args.sticky.clone(),
        retention,
        node_lost: args.node_lost.clone(),
        cool_down: args.cool_down.clone(),
        probe: args.probe.clone(),
    };
    let origin = "flags";
    let mut all: Vec<crate::admin::DocumentFault> = faults
        .into_iter()
        .map(|fault| crate::admin::DocumentFault { origin: origin.into(), fault })
        .collect();
    match Wanted::read(origin, document) {
        Ok(wanted) if all.is_empty() => Ok(wanted),
        Ok(_) => Err(wrong_flags(all)),
        Err(more) => {
            all.extend(more);
            Err(wrong_flags(all))
        }
    }
}

fn wrong_flags(faults: Vec<crate::admin::DocumentFault>) -> Failure {
    let hint = Some("correct the flags; nothing was changed".into());
    Failure { hint, code: USAGE, ..Error::Faults { faults }.into() }
}
