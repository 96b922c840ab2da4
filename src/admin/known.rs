//! What a filter names that the store does not know: mostly a slip, and nothing must look as if there were just no leases.

use std::collections::BTreeSet;

use super::{
    Error, Scope,
    read::{read_spans, stored_pools},
};
use crate::{
    domain::{
        names::{ClusterName, NetworkName},
        nearest::nearest,
        pool::{DEFAULT_DOMAIN, Networks, Pool},
    },
    store::{Store, StoreError, keys},
};

/// Does the store know the cluster and the domain of the scope, and the network? Networks and domains are what pools name.
///
/// # Errors
/// [`Error::Missing`] names the nearest; [`Error::Store`].
pub async fn check<S: Store>(store: &S, scope: &Scope, network: Option<&NetworkName>) -> Result<(), Error> {
    let found = match read_spans(store, &[keys::clusters(), keys::pools()]).await {
        Ok((_, found)) => found,
        // A node may read no cluster but its own: its person hears nothing of slips.
        Err(StoreError::Refused { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let clusters: BTreeSet<ClusterName> =
        found[0].iter().filter_map(|entry| keys::parse_cluster(&entry.key)).collect();
    if let Some(name) = scope.cluster.as_ref().filter(|name| !clusters.contains(name)) {
        return Err(no_such_cluster(name, &clusters));
    }
    // One that cannot be read may be of any.
    let read = stored_pools(&found[1]).into_iter().map(|stored| stored.pool);
    let Ok(pools) = read.collect::<Result<Vec<Pool>, _>>() else { return Ok(()) };
    let domains = pools.iter().map(|pool| pool.domain().as_str()).chain([DEFAULT_DOMAIN]);
    let domains: BTreeSet<&str> = domains.collect();
    if let Some(name) = scope.domain.as_ref().filter(|name| !domains.contains(name.as_str())) {
        let what = format!("no pool is of domain {name}");
        return Err(missing(what, name.as_str(), domains, "`leasehold pool list -o wide`"));
    }
    let mut networks = BTreeSet::new();
    for pool in &pools {
        match pool.networks() {
            Networks::Every => return Ok(()),
            Networks::Named(names) => networks.extend(names.iter().map(NetworkName::as_str)),
        }
    }
    match network.filter(|name| !networks.contains(name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let what = format!("no pool is for network {name}");
            Err(missing(what, name.as_str(), networks, "`leasehold pool list`"))
        }
    }
}

/// Nobody registered the cluster.
pub(crate) fn no_such_cluster(name: &ClusterName, known: &BTreeSet<ClusterName>) -> Error {
    let names = known.iter().map(ClusterName::as_str);
    missing(format!("no cluster {name} is registered"), name.as_str(), names, "`leasehold cluster list`")
}

/// There is no such thing; the nearest that there is is named.
pub(crate) fn missing<'a>(
    what: String,
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
    list: &str,
) -> Error {
    let hint = nearest(name, known).map_or_else(
        || format!("{list} shows those that there are"),
        |near| format!("did you mean {near}? {list} shows all"),
    );
    Error::missing(what, hint)
}

/// In a text: ` (did you mean prod-a?)`, if there is a near one.
pub(crate) fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or_else(String::new, |near| format!(" (did you mean {near}?)"))
}
