//! ARP probes and the packets that claim an address (RFC 826, RFC 5227).

use std::net::Ipv4Addr;

use super::{Claim, Mac};

pub(super) const ETHERTYPE: u16 = 0x0806;

/// Ethernet, IPv4, with addresses of 6 and 4 bytes.
const PREAMBLE: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: [u8; 2] = [0, 1];

/// Asks for an address without claiming one: the sender's is 0.0.0.0, so nobody's cache changes.
pub(super) fn probe(from: Mac, address: Ipv4Addr) -> Vec<u8> {
    [
        &[0xff; 6][..],
        &from.0,
        &ETHERTYPE.to_be_bytes(),
        &PREAMBLE,
        &REQUEST,
        &from.0,
        &Ipv4Addr::UNSPECIFIED.octets(),
        &[0; 6],
        &address.octets(),
    ]
    .concat()
}

/// Any ARP packet claims its sender's address, request or reply; a probe has none.
pub(super) fn claim(frame: &[u8]) -> Option<Claim> {
    if frame.get(12..14)? != ETHERTYPE.to_be_bytes() || frame.get(14..20)? != PREAMBLE {
        return None;
    }
    let mac = Mac(frame.get(22..28)?.try_into().ok()?);
    let address = Ipv4Addr::from(<[u8; 4]>::try_from(frame.get(28..32)?).ok()?);
    (!address.is_unspecified()).then_some(Claim { address: address.into(), mac })
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);

    #[test]
    fn b121_a_probe_is_the_packet_of_rfc_5227_and_poisons_no_cache() {
        let frame = probe(A, Ipv4Addr::new(10, 0, 0, 7));
        let expected = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 0xa, 8, 6, // Ethernet
            0, 1, 8, 0, 6, 4, 0, 1, // request
            2, 0, 0, 0, 0, 0xa, 0, 0, 0, 0, // sender
            0, 0, 0, 0, 0, 0, 10, 0, 0, 7, // target
        ];
        assert_eq!(frame, expected);
    }

    #[test]
    fn a_probe_claims_nothing() {
        assert_eq!(claim(&probe(A, Ipv4Addr::new(10, 0, 0, 7))), None);
    }

    #[test]
    fn replies_requests_and_announcements_claim_the_senders_address() {
        let address = Ipv4Addr::new(10, 0, 0, 7);
        for operation in [1, 2] {
            let mut frame = probe(A, Ipv4Addr::new(10, 0, 0, 1));
            frame[21] = operation;
            frame[28..32].copy_from_slice(&address.octets());
            frame.extend([0; 18]); // Ethernet's padding
            assert_eq!(claim(&frame), Some(Claim { address: address.into(), mac: A }));
        }
    }

    #[test]
    fn a_cut_frame_claims_nothing() {
        let mut frame = probe(A, Ipv4Addr::new(10, 0, 0, 1));
        frame[31] = 7;
        for length in 0..32 {
            assert_eq!(claim(&frame[..length]), None, "{length} bytes");
        }
    }
}
