//! Asks the wire whether somebody answers on an address: ARP probes (RFC 5227), neighbour solicitation (RFC 4861, 4862).
//!
//! It says what it heard and decides nothing: it must not know a lease, a pool or a store.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use link::Port;

mod arp;
mod link;
mod ndp;
mod netlink;
mod route;
#[cfg(test)]
mod tests;

pub use route::default_route_interface;

/// As RFC 5227 `PROBE_NUM`: a lost frame, or a switch that is still learning, must not pass for silence.
const PROBES: u32 = 3;

/// The RFC waits 1 to 2 s between probes, for Wi-Fi and spanning tree. A sandbox on a wired segment answers in less
/// than a millisecond, and the whole ADD has 10 s.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// From the first probe on; leaves 200 ms for the answer to the last one (a host that must first be scheduled).
const LISTEN: Duration = Duration::from_millis(400);

/// Where a probe is sent from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Vantage {
    /// A temporary macvlan on this link: `master` itself does not hear its own macvlan children.
    Macvlan { master: String },
    /// The link itself, for example a bridge.
    Interface { name: String },
}

/// Somebody answers on an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Claim {
    pub address: IpAddr,
    pub mac: Mac,
}

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Mac(pub [u8; 6]);

/// Why nothing can be said. Never to be taken for silence.
#[derive(Debug, Error)]
pub enum ProbeError {
    #[error("link {link} does not exist here; create it, or name the right `master` or `bridge`")]
    NoSuchLink { link: String },
    #[error("link {link} is down, and a probe from it proves nothing; bring it up (ip link set {link} up)")]
    LinkDown { link: String },
    #[error(
        "link {link} has no carrier, and a probe from it proves nothing; look at its cable, switch or ports"
    )]
    NoCarrier { link: String },
    #[error(
        "link {link} is not Ethernet, and addresses on it cannot be probed; set the pool's `probe: never`"
    )]
    NotEthernet { link: String },
    #[error(
        "not allowed to {step} for a probe from {link}; run with CAP_NET_RAW, CAP_NET_ADMIN and CAP_SYS_ADMIN"
    )]
    NotPermitted { link: String, step: &'static str, source: io::Error },
    #[error(
        "cannot put a temporary macvlan on {link} to probe from; a macvlan in passthru mode, an ipvlan, a bridge or a \
         bond on {link} leaves no room for one"
    )]
    Macvlan { link: String, source: io::Error },
    #[error("cannot {step} for a probe from {link}")]
    Io { link: String, step: &'static str, source: io::Error },
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Who answers on these addresses. None: silence.
///
/// All addresses are asked at once; silence takes [`LISTEN`], and the first claim ends it, so another address may be
/// claimed too. Dropping the future ends the probe and takes its link away. Opening and closing block the thread, for
/// the kernel waits for other processors: 10 and 40 ms with a macvlan, 8 and 16 ms without (measured).
pub async fn probe(from: &Vantage, addresses: &[IpAddr]) -> Result<Vec<Claim>, ProbeError> {
    if addresses.is_empty() {
        return Ok(Vec::new());
    }
    let port = Port::open(from).await?;
    let mut claims = port.own_claims(addresses);

    let start = Instant::now();
    let mut next = start;
    for n in 1..=PROBES {
        if !claims.is_empty() {
            break;
        }
        for frame in addresses.iter().map(|&address| question(port.mac(), address)) {
            port.send(&frame).await?;
        }
        next += PROBE_INTERVAL;
        let until = if n == PROBES { start + LISTEN } else { next };
        if let Ok(heard) = timeout_at(until, port.hear(addresses)).await {
            claims.push(heard?);
        }
    }

    // A link that died meanwhile was silent for another reason.
    if claims.is_empty() {
        port.check()?;
    }
    Ok(claims)
}

fn question(from: Mac, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => arp::probe(from, address),
        IpAddr::V6(address) => ndp::solicitation(from, address),
    }
}

/// What a frame claims; none if it claims nothing, or is our own.
fn claim(frame: &[u8], own: Mac) -> Option<Claim> {
    let claim = arp::claim(frame).or_else(|| ndp::claim(frame))?;
    (claim.mac != own && source(frame) != Some(own)).then_some(claim)
}

fn source(frame: &[u8]) -> Option<Mac> {
    frame.get(6..12)?.try_into().ok().map(Mac)
}
