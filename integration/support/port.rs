//! TCP ports on 127.0.0.1 that no other test has, in this process or another.

use std::{
    net::{TcpListener, UdpSocket},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// A port, and the claim to it: the UDP socket of the same number, which nobody here needs. It is held from before a
/// server binds the TCP port until after it ended, so that a server that is killed and started again finds it free.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _claim: UdpSocket,
}

impl Port {
    pub(crate) fn claim() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Below the range that the kernel gives to outgoing connections, which would come in between.
        const FIRST: u32 = 12_000;
        const COUNT: u32 = 20_000;
        for _ in 0..COUNT {
            // Each process starts elsewhere: they meet seldom, and then the claim decides.
            let candidate = FIRST + (process::id() * 97 + NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
            let number = u16::try_from(candidate).unwrap();
            let Ok(claim) = UdpSocket::bind(("127.0.0.1", number)) else { continue };
            if TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Self { number, _claim: claim };
            }
        }
        panic!("no free port on 127.0.0.1");
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn url(&self, scheme: &str) -> String {
        format!("{scheme}://127.0.0.1:{}", self.number)
    }
}

#[test]
fn a_port_has_one_owner() {
    let ports: Vec<_> = (0..20).map(|_| Port::claim()).collect();
    let mut numbers: Vec<_> = ports.iter().map(Port::number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 20);
    assert_eq!(ports[0].url("http"), format!("http://127.0.0.1:{}", ports[0].number()));
}
