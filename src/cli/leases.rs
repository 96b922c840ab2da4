//! `leasehold lease`.

use super::{
    End, Ended, FAILED, Failure, ListRow, Listing,
    args::{Format, Global, LeaseCommand, LeaseList, Release, Reserve},
    connect::Site,
    data, dry, filters, list, now, print, render,
    render::say,
};
use crate::{
    admin::{
        Error, Halted,
        leases::{self, Filter, RowState, Target},
    },
    domain::{
        addr::{AddrRange, parse_address},
        lease::{Holder, Timestamp},
        names::{Namespace, WorkloadName},
        nearest::nearest,
    },
    store::record::{format_time, parse_holder},
};

pub(crate) async fn run(site: &Site, global: &Global, command: &LeaseCommand) -> Ended {
    match command {
        LeaseCommand::List(args) => {
            let filter = filter(global, args)?;
            list(global, args.watch.watch, || async {
                let now = now();
                let (revision, rows) = leases::list(&site.store, &site.scope, &filter, now).await?;
                Ok(listing(revision, rows, now, global.output, args.watch.watch))
            })
            .await
        }
        LeaseCommand::Show { target } => show(site, global, target).await,
        LeaseCommand::Reserve(args) => reserve(site, global, args).await,
        LeaseCommand::Move { from, to, network, write } => {
            let only = global.namespace.as_ref();
            let (from, to) = (holder(only, from)?, holder(only, to)?);
            let moved = leases::move_leases(
                &site.store,
                &site.scope,
                &from,
                &to,
                network.as_ref(),
                now(),
                write.dry_run,
            );
            let mut out = String::new();
            let (moved, halted) = done(moved.await);
            for moved in moved {
                let within =
                    moved.cluster.as_ref().map_or_else(String::new, |name| format!(" in cluster {name}"));
                let line = format!(
                    "lease/{} moved to {}{within}: {}",
                    moved.from.holder,
                    moved.to.holder,
                    addresses(&moved.addresses)
                );
                out.push_str(&dry(write.dry_run, &line));
                out.push('\n');
                if !write.dry_run {
                    let why = format!("leasehold lease move, from {}", moved.from.holder);
                    site.trail.by_hand("lease.moved", &moved.to.to_string(), &moved.addresses, &why);
                }
            }
            ends(&out, halted)
        }
        LeaseCommand::Release(args) => release(site, global, args).await,
        LeaseCommand::Confirm { address, write } => {
            let address =
                parse_address(address).map_err(|error| Failure::usage(&format!("{address}: {error}")))?;
            let confirmed = leases::confirm(&site.store, &site.scope, address, now(), write.dry_run).await?;
            if !write.dry_run {
                let why = "leasehold lease confirm";
                site.trail.by_hand("lease.confirmed", &confirmed.whose, &confirmed.addresses, why);
            }
            let all = addresses(&confirmed.addresses);
            let line = format!("{all} confirmed: nobody answers there (held by {})", confirmed.whose);
            print(&format!("{}\n", dry(write.dry_run, &line)))
        }
    }
}

fn listing(
    revision: crate::store::Revision,
    rows: Vec<leases::Row>,
    now: Timestamp,
    format: Format,
    watch: bool,
) -> Listing {
    // 65 000 rows: what is neither printed nor compared is not made.
    let documents = format == Format::Json || format == Format::Yaml;
    let mut clusters = rows.iter().filter_map(leases::Row::cluster);
    let several = clusters.next().is_some_and(|first| clusters.any(|other| other != first));
    let of = |row: &leases::Row| ListRow {
        cells: if documents && !watch {
            Vec::new()
        } else {
            data::lease_cells(row, now, format == Format::Wide, several)
        },
        name: if format == Format::Name || watch { data::lease_name(row) } else { String::new() },
        json: if documents || watch { data::lease_json(row) } else { serde_json::Value::Null },
    };
    let columns = if several { data::LEASES_OF_SEVERAL } else { data::LEASES };
    let listing = Listing { revision, columns, rows: rows.iter().map(of).collect() };
    if !watch {
        // The process ends with it: rows are not taken apart for that.
        std::mem::forget(rows);
    }
    listing
}

fn filter(global: &Global, args: &LeaseList) -> Result<Filter, Failure> {
    let states = args
        .state
        .iter()
        .map(|text| {
            RowState::ALL.into_iter().find(|state| state.as_str() == text.trim()).ok_or_else(|| {
                let all = RowState::ALL.map(RowState::as_str);
                let near =
                    nearest(text, all).map_or_else(String::new, |near| format!("; did you mean {near}?"));
                Failure::usage(&format!("--state {text}: must be one of: {}{near}", all.join(", ")))
            })
        })
        .collect::<Result<_, _>>()?;
    let workload = match &args.workload {
        None => None,
        Some(text) => {
            let (namespace, name) = match text.split_once('/') {
                Some((namespace, name)) => {
                    let namespace = named(Namespace::new(namespace))?;
                    filters::within(global.namespace.as_ref(), Some(&namespace), text)?;
                    (Some(namespace), name)
                }
                None => (global.namespace.clone(), text.as_str()),
            };
            Some((namespace, named(WorkloadName::new(name))?))
        }
    };
    Ok(Filter {
        namespace: global.namespace.clone(),
        pool: args.pool.clone(),
        node: args.node.clone(),
        states,
        network: args.network.clone(),
        workload,
        doubtful: args.doubtful,
    })
}

fn named<T>(result: Result<T, crate::domain::names::NameError>) -> Result<T, Failure> {
    result.map_err(|error| Failure::usage(&error.to_string()))
}

fn holder(only: Option<&Namespace>, text: &str) -> Result<Holder, Failure> {
    let holder = parse_holder(text).map_err(|problem| Failure::usage(&format!("{text}: {problem}")))?;
    filters::within(only, holder.namespace(), text)?;
    Ok(holder)
}

fn target(only: Option<&Namespace>, text: &str) -> Result<Target, Failure> {
    let target = Target::parse(text).map_err(|problem| Failure::usage(&format!("{text}: {problem}")))?;
    if let Target::Holder(holder) = &target {
        filters::within(only, holder.namespace(), text)?;
    }
    Ok(target)
}

fn workload(only: Option<&Namespace>, text: &str) -> Result<(Namespace, WorkloadName), Failure> {
    let (namespace, name) = text
        .split_once('/')
        .ok_or_else(|| Failure::usage(&format!("{text}: a workload is written NAMESPACE/NAME")))?;
    let namespace = named(Namespace::new(namespace))?;
    filters::within(only, Some(&namespace), text)?;
    Ok((namespace, named(WorkloadName::new(name))?))
}

fn addresses(all: &[std::net::IpAddr]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

async fn show(site: &Site, global: &Global, text: &str) -> Ended {
    let now = now();
    let (revision, rows) =
        leases::show(&site.store, &site.scope, &target(global.namespace.as_ref(), text)?, now).await?;
    let text = match global.output {
        Format::Json | Format::Yaml => {
            let items = rows.iter().map(data::lease_json).collect();
            render::document(&render::items(revision, items), global.output).map_err(|text| Failure {
                text,
                hint: None,
                code: FAILED,
            })?
        }
        Format::Name => rows.iter().map(|row| data::lease_name(row) + "\n").collect(),
        Format::Table | Format::Wide => rows.iter().map(|row| page(row, now)).collect::<Vec<_>>().join("\n"),
    };
    print(&text)
}

/// All about one address.
fn page(row: &leases::Row, now: Timestamp) -> String {
    let lease = row.lease.as_ref();
    let stamp = lease.and_then(|lease| lease.bound());
    let last = lease.filter(|lease| lease.bound().is_none()).and_then(|lease| lease.last());
    let ago = |at: Timestamp| format!("{} ({} ago)", format_time(at), leases::age(now.since(at)));
    let text = |value: Option<String>| value.unwrap_or_default();
    let mut marks = Vec::new();
    if lease.is_some_and(|lease| lease.sticky) {
        marks.push("sticky");
    }
    if lease.is_some_and(|lease| lease.reserved) {
        marks.push("reserved");
    }
    if row.unconfirmed {
        marks.push("unconfirmed");
    }
    if row.outside {
        marks.push("outside its pool");
    }
    if row.doubtful {
        marks.push("doubtful");
    }
    render::pairs(&[
        ("address", text(row.place.as_ref().map(ToString::to_string))),
        ("state", row.state.as_str().into()),
        (
            if row.by.is_some() && row.key.is_none() { "last pod" } else { "pod" },
            text(row.holder().map(ToString::to_string)),
        ),
        ("cluster", text(row.cluster().map(ToString::to_string))),
        ("network", text(lease.map(|lease| format!("{} {}", lease.id.network, lease.id.ifname)))),
        ("pool", text(row.pool.as_ref().map(ToString::to_string))),
        ("node", text(stamp.map(|stamp| stamp.node.to_string()))),
        ("last node", text(last.map(|stamp| stamp.node.to_string()))),
        ("container", text(stamp.map(|stamp| stamp.container.to_string()))),
        ("uid", text(stamp.and_then(|stamp| stamp.uid.as_ref()).map(ToString::to_string))),
        ("acquired", text(lease.map(|lease| ago(lease.created)))),
        ("since", text(row.since.map(ago))),
        ("marks", marks.join(", ")),
        ("key", text(row.key.clone())),
        ("why", row.why.clone()),
    ])
}

async fn reserve(site: &Site, global: &Global, args: &Reserve) -> Ended {
    let only = global.namespace.as_ref();
    let what = match (parse_address(&args.target), args.address.is_empty(), &args.addresses, &args.reason) {
        (Ok(_), true, None, Some(_)) if only.is_some() || global.cluster.is_some() => {
            return Err(Failure::usage(
                "a device is in no namespace and no cluster: leave -n and --cluster out",
            ));
        }
        (Ok(address), true, None, Some(reason)) => {
            leases::Reserve::Device { address, reason: reason.trim().to_owned() }
        }
        (Ok(_), _, _, _) => {
            return Err(Failure::usage(
                "an address is reserved with --reason TEXT (for a pod: NS/POD --address A)",
            ));
        }
        (Err(_), false, None, None) => {
            leases::Reserve::Pod { holder: holder(only, &args.target)?, addresses: args.address.clone() }
        }
        (Err(_), true, Some(run), None) => {
            let (namespace, name) = workload(only, &args.target)?;
            let addresses =
                AddrRange::parse(run).map_err(|error| Failure::usage(&format!("--addresses: {error}")))?;
            leases::Reserve::Workload { namespace, name, addresses }
        }
        (Err(_), _, _, _) => {
            return Err(Failure::usage(
                "say what: NS/POD --address A, NS/WORKLOAD --addresses A-B, or ADDRESS --reason TEXT",
            ));
        }
    };
    if matches!(&what, leases::Reserve::Device { reason, .. } if reason.is_empty()) {
        return Err(Failure::usage("--reason is empty: say what has the address"));
    }
    let is_dry = args.write.dry_run;
    let made =
        leases::reserve(&site.store, &site.scope, &what, args.network.as_ref(), &args.ifname, now(), is_dry);
    let (made, halted) = done(made.await);
    let mut warned = None;
    let mut out = String::new();
    for reserved in &made {
        if reserved.warning.is_some() && warned != reserved.warning {
            say(&format!("warning: {}", reserved.warning.as_deref().unwrap_or_default()));
            warned.clone_from(&reserved.warning);
        }
        let how = if reserved.marked { "reserved (it has it already)" } else { "reserved" };
        let line = format!("{} {how} for {}", addresses(&reserved.addresses), reserved.whom);
        out.push_str(&dry(is_dry, &line));
        out.push('\n');
        if !is_dry {
            let why = "leasehold lease reserve";
            site.trail.by_hand("lease.reserved", &reserved.whom, &reserved.addresses, why);
        }
    }
    ends(&out, halted)
}

async fn release(site: &Site, global: &Global, args: &Release) -> Ended {
    let only = global.namespace.as_ref();
    let target = match (&args.target, &args.workload) {
        (Some(text), None) => target(only, text)?,
        (None, Some(text)) => {
            let (namespace, name) = workload(only, text)?;
            Target::Workload(namespace, name)
        }
        (Some(_), Some(_)) | (None, None) => {
            return Err(Error::wrong("say what", "ADDRESS, NS/POD or --workload NS/WORKLOAD").into());
        }
    };
    let is_dry = args.write.dry_run;
    let gone =
        leases::release(&site.store, &site.scope, &target, args.network.as_ref(), args.force, now(), is_dry);
    let (gone, halted) = done(gone.await);
    let mut out = String::new();
    for gone in gone {
        let was = if gone.bound { ", which uses it" } else { "" };
        let probe = if gone.unconfirmed { "; it is probed before its next use" } else { "" };
        let line = format!("{} released from {}{was}{probe}", addresses(&gone.addresses), gone.whose);
        out.push_str(&dry(is_dry, &line));
        out.push('\n');
        if !is_dry {
            let why = if args.force { "leasehold lease release --force" } else { "leasehold lease release" };
            site.trail.by_hand("lease.released", &gone.whose, &gone.addresses, why);
        }
    }
    ends(&out, halted)
}

/// What was done, and why not more.
fn done<T>(result: Result<Vec<T>, Halted<T>>) -> (Vec<T>, Option<Error>) {
    match result {
        Ok(all) => (all, None),
        Err(Halted { done, error }) => (done, Some(error)),
    }
}

/// Tells what was done, also before a failure.
fn ends(done: &str, halted: Option<Error>) -> Ended {
    let printed = if done.is_empty() && halted.is_some() { Ok(End::Done) } else { print(done) };
    halted.map_or(printed, |error| Err(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_has_a_namespace() {
        assert!(workload(None, "shop/db").is_ok());
        assert!(workload(None, "db").is_err());
    }
}
