//! A packet socket on a link, and the temporary macvlan below it.
//!
//! The temporary macvlan lives in a network namespace of its own, which only our sockets keep alive:
//! - a killed run leaves nothing behind, since the kernel takes the namespace and its links away with the process;
//! - names cannot collide, and udev, NetworkManager and networkd see no new link to configure;
//! - in the node's own namespace a link without an address answers ARP for **every** address of the node
//!   (`arp_ignore` is 0 by default), and the neighbours would learn a MAC that is gone half a second later.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::thread;
use std::time::Duration;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::libc;
use nix::net::if_::InterfaceFlags;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{LinkAddr, SockaddrStorage, bind};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep};

use super::netlink::Netlink;
use super::{Claim, Mac, ProbeError, Vantage, arp, claim, ndp};

/// Seen by nobody but us, in a namespace without other links.
const TEMPORARY: &str = "leasehold";

/// The kernel works off changes of carrier once a second; until then it drops what is sent, without an error.
const LINKWATCH: Duration = Duration::from_millis(1200);
const LINKWATCH_STEP: Duration = Duration::from_millis(20);

/// Larger than any ARP packet or neighbour advertisement of use.
const FRAME: usize = 1514;

/// A place to send probes from and hear answers at, open until it is dropped.
pub(super) struct Port {
    /// A packet socket. `send` and `recv` are the system's on whatever socket it is; tokio's `AsyncFd` needs `unsafe`.
    socket: UdpSocket,
    mac: Mac,
    /// The vantage's link in our own network namespace.
    link: Link,
    _temporary: Option<Temporary>,
}

impl Port {
    pub(super) async fn open(from: &Vantage) -> Result<Self, ProbeError> {
        let name = match from {
            Vantage::Macvlan { master: name } | Vantage::Interface { name } => name,
        };
        let link = Link::ready(name).await?;
        let (socket, mac, temporary) = match from {
            Vantage::Interface { .. } => {
                (listen(&link.address).map_err(|fault| fault.on(name))?, link.mac(), None)
            }
            Vantage::Macvlan { .. } => {
                let (socket, mac, temporary) = beside_us(&link).map_err(|fault| fault.on(name))?;
                (socket, mac, Some(temporary))
            }
        };
        let socket = UdpSocket::from_std(OwnedFd::from(socket).into())
            .map_err(|error| Fault::new("watch the packet socket", error).on(name))?;
        Ok(Self { socket, mac, link, _temporary: temporary })
    }

    pub(super) fn mac(&self) -> Mac {
        self.mac
    }

    /// What the link itself has: it hears none of its macvlans, nor of what is sent from itself.
    pub(super) fn own_claims(&self, addresses: &[IpAddr]) -> Vec<Claim> {
        let own = addresses.iter().filter(|address| self.link.own.contains(address));
        own.map(|&address| Claim { address, mac: self.link.mac() }).collect()
    }

    pub(super) async fn send(&self, frame: &[u8]) -> Result<(), ProbeError> {
        let sent = self.socket.send(frame).await;
        sent.map(drop).map_err(|error| Fault::new("send", error).on(&self.link.name))
    }

    /// Waits until somebody claims one of these addresses.
    pub(super) async fn hear(&self, addresses: &[IpAddr]) -> Result<Claim, ProbeError> {
        let mut frame = [0; FRAME];
        loop {
            let read = self.socket.recv(&mut frame).await;
            let length = read.map_err(|error| Fault::new("listen", error).on(&self.link.name))?;
            if let Some(claim) = claim(&frame[..length], self.mac)
                && addresses.contains(&claim.address)
            {
                return Ok(claim);
            }
        }
    }

    /// That the link still is what it was when it was opened.
    pub(super) fn check(&self) -> Result<(), ProbeError> {
        let link = Link::find(&self.link.name)?;
        link.check()?;
        if link.address.ifindex() != self.link.address.ifindex() {
            return Err(ProbeError::NoSuchLink { link: link.name });
        }
        Ok(())
    }
}

/// A link as this thread's network namespace shows it.
struct Link {
    name: String,
    flags: InterfaceFlags,
    address: LinkAddr,
    /// Its IP addresses.
    own: Vec<IpAddr>,
}

impl Link {
    /// Waits for a link that has just been brought up, as a bridge with its first pod.
    async fn ready(name: &str) -> Result<Self, ProbeError> {
        let deadline = Instant::now() + LINKWATCH;
        loop {
            let link = Self::find(name)?;
            match link.check() {
                Ok(()) => return Ok(link),
                Err(ProbeError::NoCarrier { .. })
                    if link.flags.contains(InterfaceFlags::IFF_LOWER_UP) && Instant::now() < deadline =>
                {
                    sleep(LINKWATCH_STEP).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn find(name: &str) -> Result<Self, ProbeError> {
        match Self::seek(name) {
            Ok(Some(link)) => Ok(link),
            Ok(None) => Err(ProbeError::NoSuchLink { link: name.to_owned() }),
            Err(error) => Err(Fault::new("list links", error).on(name)),
        }
    }

    fn seek(name: &str) -> io::Result<Option<Self>> {
        let of_link = getifaddrs()?.filter(|entry| entry.interface_name == name).collect::<Vec<_>>();
        let link_layer = |entry: &InterfaceAddress| {
            Some((entry.flags, *entry.address.as_ref().and_then(SockaddrStorage::as_link_addr)?))
        };
        let Some((flags, address)) = of_link.iter().find_map(link_layer) else { return Ok(None) };
        let ip = |entry: &InterfaceAddress| {
            let address = entry.address.as_ref()?;
            let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
        };
        Ok(Some(Self { name: name.to_owned(), flags, address, own: of_link.iter().filter_map(ip).collect() }))
    }

    fn check(&self) -> Result<(), ProbeError> {
        let link = self.name.clone();
        if self.address.hatype() != libc::ARPHRD_ETHER {
            return Err(ProbeError::NotEthernet { link });
        }
        if !self.flags.contains(InterfaceFlags::IFF_UP) {
            return Err(ProbeError::LinkDown { link });
        }
        // The carrier now, and what the kernel has made of it: either may be ahead of the other.
        if !self.flags.contains(InterfaceFlags::IFF_LOWER_UP | InterfaceFlags::IFF_RUNNING) {
            return Err(ProbeError::NoCarrier { link });
        }
        Ok(())
    }

    fn mac(&self) -> Mac {
        // `Option` on other systems only.
        Mac(self.address.addr().unwrap_or_default())
    }

    fn index(&self) -> io::Result<i32> {
        i32::try_from(self.address.ifindex()).map_err(io::Error::other)
    }
}

/// Our macvlan and, by its socket, the namespace that the macvlan is in.
struct Temporary {
    netlink: Netlink,
    index: i32,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Now, and not when the kernel gets round to the namespace: what the main plugin makes next on this master
        // may be of a kind that tolerates no macvlan. If this fails, the namespace's end does it.
        let _ = self.netlink.delete(self.index);
    }
}

/// Makes the temporary macvlan, on a thread that ends with it: it cannot leave the new namespace again.
fn beside_us(master: &Link) -> Result<(Socket, Mac, Temporary), Fault> {
    thread::scope(|scope| {
        let made = thread::Builder::new()
            .spawn_scoped(scope, || temporary_macvlan(master))
            .map_err(|error| Fault::new("start a thread", error))?;
        made.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn temporary_macvlan(master: &Link) -> Result<(Socket, Mac, Temporary), Fault> {
    let outside = Netlink::open().map_err(|error| Fault::new("open a netlink socket", error))?;
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|error| Fault::new("make a network namespace", error.into()))?;
    let namespace = File::open("/proc/thread-self/ns/net")
        .map_err(|error| Fault::new("open the network namespace just made", error))?;
    let netlink = Netlink::open().map_err(|error| Fault::new("open a netlink socket", error))?;

    let add = |index| outside.add_macvlan(index, TEMPORARY, namespace.as_fd());
    master.index().and_then(add).map_err(Fault::Macvlan)?;

    let find = || Link::seek(TEMPORARY)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
    let link = find().map_err(|error| Fault::new("find the temporary macvlan", error))?;
    let index = link.index().map_err(|error| Fault::new("find the temporary macvlan", error))?;
    let temporary = Temporary { netlink, index };
    // Refused where the kernel has no IPv6: then there is nothing to be silenced.
    let _ = temporary.netlink.no_link_local(index);
    temporary.netlink.up(index).map_err(|error| Fault::new("bring up the temporary macvlan", error))?;
    Ok((listen(&link.address)?, link.mac(), temporary))
}

/// A packet socket that hears ARP and neighbour advertisements on one link.
fn listen(link: &LinkAddr) -> Result<Socket, Fault> {
    let open = || {
        let every = Protocol::from(i32::from(ETH_P_ALL.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(every))?;
        // Before it is bound, so that a busy link cannot fill it with other traffic.
        socket.attach_filter(&FILTER)?;
        socket.set_nonblocking(true)?;
        bind(socket.as_raw_fd(), link)?;
        // It heard all links until it was bound. Bounded, should somebody flood this one.
        for _ in 0..1000 {
            if (&socket).read(&mut [0; FRAME]).is_err() {
                break;
            }
        }
        Ok(socket)
    };
    open().map_err(|error| Fault::new("open a packet socket", error))
}

const ETH_P_ALL: u16 = 3;

/// ARP, and ICMPv6's neighbour advertisements.
const FILTER: [SockFilter; 9] = {
    const LOAD_HALF: u16 = 0x28; // ldh [k]
    const LOAD_BYTE: u16 = 0x30; // ldb [k]
    const EQUAL: u16 = 0x15; // jeq #k, skip if so, skip if not
    const RETURN: u16 = 0x06; // so many bytes of it
    const WHOLE: u32 = u32::MAX;
    [
        SockFilter::new(LOAD_HALF, 0, 0, 12),
        SockFilter::new(EQUAL, 5, 0, arp::ETHERTYPE as u32),
        SockFilter::new(EQUAL, 0, 5, ndp::ETHERTYPE as u32),
        SockFilter::new(LOAD_BYTE, 0, 0, ndp::NEXT_HEADER_AT as u32),
        SockFilter::new(EQUAL, 0, 3, ndp::ICMPV6 as u32),
        SockFilter::new(LOAD_BYTE, 0, 0, ndp::TYPE_AT as u32),
        SockFilter::new(EQUAL, 0, 1, ndp::ADVERTISEMENT as u32),
        SockFilter::new(RETURN, 0, 0, WHOLE),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
};

/// An error before the name of the vantage's link is put to it.
enum Fault {
    Macvlan(io::Error),
    Step { step: &'static str, error: io::Error },
}

impl Fault {
    fn new(step: &'static str, error: io::Error) -> Self {
        Self::Step { step, error }
    }

    fn on(self, link: &str) -> ProbeError {
        let link = link.to_owned();
        match self {
            Self::Macvlan(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                ProbeError::NotPermitted { link, step: "make a temporary macvlan", source }
            }
            Self::Macvlan(source) => ProbeError::Macvlan { link, source },
            Self::Step { step, error: source } if source.kind() == io::ErrorKind::PermissionDenied => {
                ProbeError::NotPermitted { link, step, source }
            }
            Self::Step { step, error: source } => ProbeError::Io { link, step, source },
        }
    }
}
