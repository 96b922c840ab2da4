//! CHECK: the attachment has its lease, and what the runtime believes holds every address of it.

use std::net::IpAddr;

use super::{Context, Refusal, commit};
use crate::{
    domain::{lease::LeaseId, names::ContainerId},
    store::{Read, Store, keys, record},
};

/// Compares the lease with what the runtime believes. Addresses of other plugins are none of our business; a
/// runtime that believes nothing (`None`) is compared with nothing.
///
/// # Errors
/// [`Refusal::Check`] saying what differs.
pub async fn check<S: Store, W, C, L>(
    ctx: &Context<'_, S, W, C, L>,
    id: &LeaseId,
    container: &ContainerId,
    believed: Option<&[IpAddr]>,
) -> Result<(), Refusal> {
    let snapshot = commit::read(ctx.store, &[Read::Get(keys::lease(id))], None, ctx.deadline).await?;
    let Some(entry) = snapshot.entry(0) else {
        return Err(Refusal::Check(format!("{id} has no lease")));
    };
    let lease = record::decode_lease(entry)?.value;
    match lease.bound() {
        Some(stamp) if stamp.container == *container => {}
        Some(stamp) => {
            let text =
                format!("the lease of {id} is bound to container {} on node {}", stamp.container, stamp.node);
            return Err(Refusal::Check(text));
        }
        None => {
            return Err(Refusal::Check(format!(
                "the lease of {id} is {}, not bound",
                lease.state().as_str()
            )));
        }
    }
    let Some(believed) = believed else { return Ok(()) };
    match lease.addresses.iter().find(|held| !believed.contains(&held.address)) {
        Some(held) => {
            Err(Refusal::Check(format!("{id} leases {}, which prevResult does not have", held.address)))
        }
        None => Ok(()),
    }
}
