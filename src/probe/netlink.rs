//! The few rtnetlink requests that a temporary macvlan needs.
//!
//! By hand: netlink-packet-route and what it needs are six crates, one of them a proc macro, for four fixed messages.

use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};

/// From the kernel's headers; libc lacks them, or has another type.
const AF_INET6: u16 = 10;
const IFF_UP: u32 = 1;
const IFLA_MACVLAN_MODE: u16 = 1;
const MACVLAN_MODE_BRIDGE: u32 = 4;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;

/// A socket in the network namespace that its thread had when it was made.
pub(super) struct Netlink(Socket);

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let route = Protocol::from(libc::NETLINK_ROUTE);
        Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(route)).map(Self)
    }

    /// Makes a macvlan on our own namespace's link number `master`, at once inside another namespace.
    pub(super) fn add_macvlan(&self, master: i32, name: &str, namespace: BorrowedFd<'_>) -> io::Result<()> {
        let mut data = Attributes::default();
        data.put(IFLA_MACVLAN_MODE, &MACVLAN_MODE_BRIDGE.to_ne_bytes());
        let mut info = Attributes::default();
        info.put(libc::IFLA_INFO_KIND, b"macvlan");
        info.put(libc::IFLA_INFO_DATA, &data.0);
        let mut link = Attributes::default();
        link.put(libc::IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
        link.put(libc::IFLA_LINK, &master.to_ne_bytes());
        link.put(libc::IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes());
        link.put(libc::IFLA_LINKINFO, &info.0);
        self.request(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL, 0, 0, &link)
    }

    /// The kernel gives the link no IPv6 address of its own making, and so says nothing on it.
    pub(super) fn no_link_local(&self, index: i32) -> io::Result<()> {
        let mut inet6 = Attributes::default();
        inet6.put(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
        let mut families = Attributes::default();
        families.put(AF_INET6, &inet6.0);
        let mut link = Attributes::default();
        link.put(libc::IFLA_AF_SPEC, &families.0);
        self.request(libc::RTM_SETLINK, 0, index, 0, &link)
    }

    pub(super) fn up(&self, index: i32) -> io::Result<()> {
        self.request(libc::RTM_SETLINK, 0, index, IFF_UP, &Attributes::default())
    }

    pub(super) fn delete(&self, index: i32) -> io::Result<()> {
        self.request(libc::RTM_DELLINK, 0, index, 0, &Attributes::default())
    }

    /// `set`: which of the link's flags.
    fn request(
        &self,
        kind: u16,
        flags: libc::c_int,
        index: i32,
        set: u32,
        attributes: &Attributes,
    ) -> io::Result<()> {
        const HEADERS: usize = 32; // nlmsghdr and ifinfomsg, 16 bytes each
        let length = u32::try_from(HEADERS + attributes.0.len()).map_err(io::Error::other)?;
        let flags = u16::try_from(flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK).map_err(io::Error::other)?;
        let message = [
            &length.to_ne_bytes()[..],
            &kind.to_ne_bytes(),
            &flags.to_ne_bytes(),
            &[0; 8], // sequence, port: one request at a time
            &[0; 4], // any family, any type
            &index.to_ne_bytes(),
            &set.to_ne_bytes(), // the flags
            &set.to_ne_bytes(), // and which of them are meant
            &attributes.0,
        ]
        .concat();
        self.0.send(&message)?;

        // The kernel has worked it off and answered before `send` returned: nlmsghdr, then minus errno.
        let mut answer = [0; 4096];
        let length = (&self.0).read(&mut answer)?;
        let errno =
            answer[..length].get(16..20).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
        match errno {
            Some(0) => Ok(()),
            Some(errno) => Err(io::Error::from_raw_os_error(-errno)),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the kernel's answer is cut")),
        }
    }
}

/// Length, type and value one after the other, each padded to 4 bytes.
#[derive(Default)]
struct Attributes(Vec<u8>);

impl Attributes {
    fn put(&mut self, kind: u16, value: &[u8]) {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "names of links and nested numbers: below 100 bytes"
        )]
        let length = (4 + value.len()) as u16;
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}
