//! Gives pods that run with an address of a pool the lease that the store has lost, as after a restore from an old
//! snapshot. It works while the store is frozen: that is what it is for.
//!
//! What is made is a held lease: no container is known to it, so that no DEL ends it, and the pod's next ADD takes it
//! over. It is unconfirmed, since a sandbox answers on the address and nobody will say when that ends. While the pod
//! exists the reaper keeps it; where the pod is one that does not keep its address, the reaper ends it as it would end a
//! bound one. A lease that the store has, but as held since the pod went, becomes such a one if the pod runs.
//!
//! Each lease is a transaction of its own, and each compares all that it rests on: one that is killed half-way and run
//! again comes to the same end, and what changed meanwhile is looked at again. Nothing is overwritten: what is in doubt
//! is [shown](Conflict).

mod against;
mod plan;

use std::{collections::HashMap, net::IpAddr};

use futures_util::{StreamExt as _, stream};
use thiserror::Error;

use self::plan::{Adoption, How, adoptions, plan, runs};
pub use self::{
    against::{Against, Difference, Trouble, against},
    plan::{Claim, Conflict, Found, Kind},
};
use super::{Step, Unregistered};
use crate::{
    admin::{
        self,
        read::{Contents, read_everything},
    },
    domain::{
        addr::parse_address,
        kubernetes::PodKey,
        lease::{Holder, LeaseId, Timestamp},
        names::{ClusterName, DomainName, IfName, Namespace, NetworkName, Uid},
    },
    pods::{ApiError, Cluster},
    store::{
        Read, Revision, Store, StoreError, Txn, changes, keys,
        record::{self, RecordError},
    },
};

/// Requests in flight, as in a pass.
const AT_ONCE: usize = 16;
/// How often it is looked again at what changed meanwhile.
const ROUNDS: usize = 5;

/// Where it works, and on what.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The cluster, as it is registered.
    pub cluster: &'a ClusterName,
    /// Only pools of this domain.
    pub domain: Option<&'a DomainName>,
    /// Only pods of this namespace.
    pub namespace: Option<&'a Namespace>,
    /// Only this network; and the network of those addresses of which the API does not tell.
    pub network: Option<&'a NetworkName>,
    /// Kinds, such as `StatefulSet.apps`, whose pods keep their addresses.
    pub sticky_kinds: &'a [String],
}

impl Wanted<'_> {
    /// Is it about this pod?
    fn takes(&self, pod: &PodKey) -> bool {
        self.namespace.is_none_or(|only| *only == pod.namespace)
    }
}

/// What a person says of an address: a line `NS/POD ADDRESS [NETWORK [IFNAME]]`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Told {
    /// The pod.
    pub pod: PodKey,
    /// Its address.
    pub address: IpAddr,
    /// The CNI network.
    pub network: Option<NetworkName>,
    /// The interface; `eth0` if nothing is said.
    pub ifname: Option<IfName>,
}

/// Reads lines `NS/POD ADDRESS [NETWORK [IFNAME]]`; empty ones, and those that begin with `#`, say nothing.
///
/// # Errors
/// All faults, each with its line.
pub fn read_told(text: &str) -> Result<Vec<Told>, Vec<String>> {
    let (mut told, mut faults) = (Vec::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match read_line(line) {
            Ok(line) => told.push(line),
            Err(fault) => faults.push(format!("line {}: {fault}", index + 1)),
        }
    }
    if faults.is_empty() { Ok(told) } else { Err(faults) }
}

fn read_line(line: &str) -> Result<Told, String> {
    let mut words = line.split_whitespace();
    let (Some(pod), Some(address)) = (words.next(), words.next()) else {
        return Err(format!("{line}: must be NS/POD ADDRESS [NETWORK [IFNAME]]"));
    };
    let (network, ifname) = (words.next(), words.next());
    if let Some(more) = words.next() {
        return Err(format!("{more}: is one word too many, after NS/POD ADDRESS NETWORK IFNAME"));
    }
    let pod = match record::parse_holder(pod).map_err(|fault| format!("{pod}: {fault}"))? {
        Holder::Pod { namespace, name } => PodKey { namespace, name },
        Holder::Container(_) => return Err(format!("{pod}: is no pod")),
    };
    Ok(Told {
        pod,
        address: parse_address(address).map_err(|fault| fault.to_string())?,
        network: network.map(NetworkName::new).transpose().map_err(|fault| fault.to_string())?,
        ifname: ifname.map(IfName::new).transpose().map_err(|fault| fault.to_string())?,
    })
}

/// Why it was not begun.
#[derive(Debug, Error)]
pub enum AdoptError {
    /// The store.
    #[error(transparent)]
    Admin(#[from] admin::Error),
    /// The Kubernetes API.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The cluster.
    #[error(transparent)]
    Unregistered(#[from] Unregistered),
    /// Another cluster answers.
    #[error(
        "another cluster answers: kube-system has UID {found}, cluster {cluster} is registered with {registered}"
    )]
    OtherCluster {
        /// The name.
        cluster: ClusterName,
        /// Its UID in the store.
        registered: Uid,
        /// The UID that was answered.
        found: Uid,
    },
}

impl From<StoreError> for AdoptError {
    fn from(error: StoreError) -> Self {
        Self::Admin(error.into())
    }
}

/// What became of an address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fate {
    /// The pod has it from now on.
    Adopted,
    /// It would have it, but for `--dry-run`.
    Candidate,
    /// It had it before.
    Leased,
    /// It cannot have it.
    Conflict(Conflict),
    /// The pod has gone, or ended, since the pods were listed.
    Gone,
    /// The store, or the API, did not do it: why.
    Failed(String),
}

impl Fate {
    /// The word in tables and JSON.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Adopted => "adopted",
            Self::Candidate => "to adopt",
            Self::Leased => "leased",
            Self::Conflict(_) => "conflict",
            Self::Gone => "gone",
            Self::Failed(_) => "failed",
        }
    }
}

/// An address, and what became of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Adopted {
    /// The address, and who claims it.
    pub claim: Claim,
    /// What became of it.
    pub fate: Fate,
}

/// What was done.
#[derive(Clone, Debug)]
pub struct Report {
    /// The revision at which the store was read last.
    pub revision: Revision,
    /// How many pods were listed that it is about.
    pub pods: usize,
    /// How many of them run, with addresses of their own.
    pub running: usize,
    /// Every address of theirs that concerns a pool, sorted.
    pub addresses: Vec<Adopted>,
    /// Why the store is frozen, if it is.
    pub frozen: Option<String>,
}

impl Report {
    /// How many addresses ended like this.
    #[must_use]
    pub fn count(&self, is: impl Fn(&Fate) -> bool) -> usize {
        self.addresses.iter().filter(|adopted| is(&adopted.fate)).count()
    }

    /// Is there something that a person should look at?
    #[must_use]
    pub fn is_to_look_at(&self) -> bool {
        self.count(|fate| matches!(fate, Fate::Conflict(_) | Fate::Failed(_))) > 0
    }
}

/// Is it the cluster whose leases these are? A wrong one would have all its pods adopted.
async fn identify<K: Cluster>(api: &K, contents: &Contents, cluster: &ClusterName) -> Result<(), AdoptError> {
    let Some((_, registered)) = contents.clusters.iter().find(|(name, _)| name == cluster) else {
        let key = keys::cluster(cluster).to_string();
        if let Some(record) = contents.everything.unreadable.iter().find(|record| record.key == key) {
            let reason = record.reason.clone();
            return Err(admin::Error::from(RecordError::Invalid { key, reason }).into());
        }
        let known = contents.clusters.iter().map(|(name, _)| name.clone()).collect();
        return Err(Unregistered { cluster: cluster.clone(), known }.into());
    };
    let found = api.identity().await?;
    if found == registered.uid {
        return Ok(());
    }
    Err(AdoptError::OtherCluster { cluster: cluster.clone(), registered: registered.uid.clone(), found })
}

/// Adopts. `dry`: says what would be done, and writes nothing.
///
/// # Errors
/// [`AdoptError`]: store or pods could not be read in full, or it is another cluster. Nothing was written then.
pub async fn adopt<S: Store, K: Cluster>(
    store: &S,
    api: &K,
    wanted: &Wanted<'_>,
    told: &[Told],
    now: Timestamp,
    dry: bool,
    progress: &(dyn Fn(Step) + Sync),
) -> Result<Report, AdoptError> {
    let mut contents = read_everything(store).await?;
    identify(api, &contents, wanted.cluster).await?;
    let listed = api.pods(&|count| progress(Step::Pods(count))).await?;
    let pods = listed.items;
    let uids: HashMap<&PodKey, &Uid> = pods.iter().map(|pod| (&pod.key, &pod.uid)).collect();
    let mut ended: HashMap<LeaseId, Fate> = HashMap::new();
    let mut rounds = ROUNDS;
    let claims = loop {
        rounds -= 1;
        let claims = plan(&contents, &pods, told, wanted);
        let mut todo = adoptions(&contents, &pods, &claims, wanted, now);
        todo.retain(|adoption| !ended.contains_key(&adoption.id));
        if dry || todo.is_empty() {
            break claims;
        }
        let done = stream::iter(todo).map(|adoption| one(store, api, &uids, adoption, now));
        let done: Vec<_> = done.buffer_unordered(AT_ONCE).collect().await;
        for (id, fate) in done {
            match fate {
                Some(fate) => drop(ended.insert(id, fate)),
                None if rounds == 0 => {
                    let why = "the store changed each time: run it again".to_owned();
                    ended.insert(id, Fate::Failed(why));
                }
                // Somebody was faster: what is there now?
                None => {}
            }
        }
        // A store that fails is not asked once more.
        let next = read_everything(store).await;
        match next {
            Ok(next) => contents = next,
            Err(_) if !ended.is_empty() => break claims,
            Err(error) => return Err(error.into()),
        }
    };
    let addresses = claims
        .into_iter()
        .map(|claim| {
            let own = claim.lease(wanted.cluster).and_then(|id| ended.get(&id));
            let fate = match (&claim.found, own) {
                (Found::Free | Found::Held(_) | Found::Leased(_), Some(fate)) => fate.clone(),
                (Found::Leased(_), None) => Fate::Leased,
                (Found::Free | Found::Held(_), None) if dry => Fate::Candidate,
                (Found::Free | Found::Held(_), None) => {
                    Fate::Failed("the store was not read again: run it again".into())
                }
                (Found::Conflict(conflict), _) => Fate::Conflict(conflict.clone()),
            };
            Adopted { claim, fate }
        })
        .collect();
    let asked = || pods.iter().filter(|pod| wanted.takes(&pod.key));
    Ok(Report {
        revision: contents.revision,
        pods: asked().count(),
        running: asked().filter(|pod| runs(pod)).count(),
        addresses,
        frozen: contents.frozen.map(|frozen| frozen.why),
    })
}

/// Asks for the pod once more, and makes or marks its lease; `None` if something that it rests on has changed.
async fn one<S: Store, K: Cluster>(
    store: &S,
    api: &K,
    uids: &HashMap<&PodKey, &Uid>,
    adoption: Adoption,
    now: Timestamp,
) -> (LeaseId, Option<Fate>) {
    let Adoption { id, how } = adoption;
    let Holder::Pod { namespace, name } = &id.holder else { return (id, Some(Fate::Gone)) };
    let key = PodKey { namespace: namespace.clone(), name: name.clone() };
    let listed = uids.get(&key).copied();
    let fate = match api.pod(&key).await {
        // Another pod of this name has asked, or will ask, for itself.
        Ok(live) if live.found.as_ref().is_some_and(|pod| runs(pod) && listed == Some(&pod.uid)) => {
            let txn = match how {
                How::Make(txn) => Ok(Some(txn)),
                How::Mark => mark(store, &id, now).await,
            };
            let sent = match txn {
                Ok(Some(txn)) => admin::send(store, &txn).await.map_err(Into::into),
                Ok(None) => Ok(admin::Sent::Conflict),
                Err(error) => Err(error),
            };
            match sent {
                Ok(admin::Sent::Applied(_)) => Some(Fate::Adopted),
                Ok(admin::Sent::Conflict) => None,
                Err(error) => Some(Fate::Failed(error.to_string())),
            }
        }
        Ok(_) => Some(Fate::Gone),
        Err(error) => Some(Fate::Failed(error.to_string())),
    };
    (id, fate)
}

/// What marks a held lease as one of a pod that runs; `None` if it is not there any more, or says so already.
async fn mark<S: Store>(store: &S, id: &LeaseId, now: Timestamp) -> Result<Option<Txn>, admin::Error> {
    let snapshot = store.read(&[Read::Get(keys::lease(id))], None).await?;
    let Some(entry) = snapshot.entry(0) else { return Ok(None) };
    let stored = record::decode_lease(entry)?;
    Ok(stored.value.found_running(now).map(|lease| changes::note(&stored, &lease)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn faults(text: &str, wanted: &[&str]) {
        assert_eq!(read_told(text).unwrap_err(), wanted);
    }

    #[test]
    fn lines_of_a_person() {
        let told =
            read_told("# pods of the storage network\n\nshop/db-0  10.0.0.1\nshop/web 10.0.0.2 lan net1\n");
        let told = told.unwrap();
        assert_eq!(told.len(), 2);
        assert_eq!((told[0].network.as_ref(), told[0].ifname.as_ref()), (None, None));
        assert_eq!(told[1].ifname.as_ref().unwrap().as_str(), "net1");
        faults(
            "shop/db-0\nshop/db-0 10.0.0.300\ndb-0 10.0.0.1\n_/abc 10.0.0.1\nshop/a 10.0.0.1 lan eth0 more",
            &[
                "line 1: shop/db-0: must be NS/POD ADDRESS [NETWORK [IFNAME]]",
                "line 2: \"10.0.0.300\" is not an IPv4 or IPv6 address",
                "line 3: db-0: must be namespace/pod",
                "line 4: _/abc: is no pod",
                "line 5: more: is one word too many, after NS/POD ADDRESS NETWORK IFNAME",
            ],
        );
    }
}
