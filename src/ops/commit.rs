//! Reads and commits that do not give up too early. A commit that was not answered is sent again, the same,
//! elsewhere: whichever lands first, the other fails its compare and finds our own change in the else-branch.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::store::{Outcome, Read, Revision, Snapshot, Store, StoreError, Txn, Write};

/// A member that restarts or elects is back in a second or two: waiting that long is cheaper than failing a pod.
const UNREACHED_FOR: Duration = Duration::from_secs(3);
/// Between tries when nobody can be reached.
const PAUSE: Duration = Duration::from_millis(100);

fn too_late() -> StoreError {
    StoreError::NotReached { reason: "no endpoint answered before the deadline".into() }
}

/// One try alone may outlast `until`: where the leader is frozen the others answer only after an election, and then
/// with an error. So there is always a second one.
fn given_up(tries: u32, until: Instant, deadline: Instant) -> bool {
    const LEAST: u32 = 2;
    Instant::now() + PAUSE >= if tries < LEAST { deadline } else { until }
}

/// Reads until answered, for a moment.
///
/// # Errors
/// [`StoreError`]; the last one before the deadline.
pub async fn read<S: Store>(
    store: &S,
    reads: &[Read],
    at: Option<Revision>,
    deadline: Instant,
) -> Result<Snapshot, StoreError> {
    let until = deadline.min(Instant::now() + UNREACHED_FOR);
    let mut last = None;
    let mut tries = 0;
    loop {
        tries += 1;
        match timeout_at(deadline, store.read(reads, at)).await {
            Ok(Ok(snapshot)) => return Ok(snapshot),
            Ok(Err(error @ (StoreError::NotReached { .. } | StoreError::Unanswered { .. }))) => {
                last = Some(error)
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(last.unwrap_or_else(too_late)),
        }
        if given_up(tries, until, deadline) {
            return Err(last.unwrap_or_else(too_late));
        }
        sleep(PAUSE).await;
    }
}

/// How a commit ended that was sent until answered.
#[must_use]
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Sent {
    /// It stands, at this revision.
    Applied(Revision),
    /// Something compared has changed, and it was not we.
    Conflict(Snapshot),
}

/// Sends a transaction until it is answered or the deadline is over.
///
/// The else-branch tells our own change: if every written key that it gets stands as we wrote it, to the byte, an
/// earlier sending landed. [`shown`] adds such gets.
///
/// # Errors
/// [`StoreError::Unanswered`] if it may still land; [`StoreError::WentBack`] if nobody knows; any other error if it
/// cannot.
pub async fn surely<S: Store>(store: &S, txn: &Txn, deadline: Instant) -> Result<Sent, StoreError> {
    let began = Instant::now();
    let until = deadline.min(began + UNREACHED_FOR);
    let mut unanswered: Option<StoreError> = None;
    let mut tries = 0;
    loop {
        tries += 1;
        let error = match timeout_at(deadline, store.commit(txn)).await {
            Ok(Ok(Outcome::Applied(revision))) => return Ok(Sent::Applied(revision)),
            Ok(Ok(Outcome::Conflict(snapshot))) => {
                return Ok(match own_change(txn, &snapshot).filter(|_| unanswered.is_some()) {
                    Some(revision) => Sent::Applied(revision),
                    None => Sent::Conflict(snapshot),
                });
            }
            Ok(Err(error)) => error,
            Err(_) => {
                return Err(unanswered.unwrap_or_else(|| StoreError::Unanswered {
                    endpoint: "the store".into(),
                    waited: began.elapsed(),
                    reason: "the deadline is over".into(),
                }));
            }
        };
        match error {
            StoreError::Unanswered { .. } => unanswered = Some(error),
            // Nothing of this sending can stand, but an earlier one may.
            StoreError::NotReached { .. } => {
                if unanswered.is_none() && given_up(tries, until, deadline) {
                    return Err(error);
                }
            }
            StoreError::Refused { .. } | StoreError::Credentials { .. } | StoreError::Compacted(_) => {
                return Err(unanswered.unwrap_or(error));
            }
            // What it compares was read in another past, where the same revision may be another change.
            StoreError::WentBack { .. } => return Err(error),
        }
        if Instant::now() + PAUSE >= deadline {
            return Err(unanswered.unwrap_or_else(too_late));
        }
        sleep(PAUSE).await;
    }
}

/// The transaction, with an else-branch that shows whether an earlier sending of it landed.
#[must_use]
pub fn shown(mut txn: Txn) -> Txn {
    txn.otherwise.extend(txn.writes.iter().filter_map(Write::key).cloned().map(Read::Get));
    txn
}

/// The revision of our own change, if the else-branch shows it: each key that is written and asked for stands as it
/// was written.
fn own_change(txn: &Txn, snapshot: &Snapshot) -> Option<Revision> {
    let mut revision = None;
    for (index, read) in txn.otherwise.iter().enumerate() {
        let Read::Get(key) = read else { continue };
        let Some(write) = txn.writes.iter().find(|write| write.key() == Some(key)) else { continue };
        match (write, snapshot.entry(index)) {
            (Write::Put(_, value), Some(entry)) if entry.value == *value => {
                revision = revision.max(Some(entry.revision));
            }
            (Write::Delete(_), None) => revision = revision.max(Some(Revision::default())),
            (Write::Put(..) | Write::Delete(_) | Write::If(..), _) => return None,
        }
    }
    // Nothing but deletions: they stand at the latest now.
    revision.map(|revision| if revision == Revision::default() { snapshot.revision } else { revision })
}
