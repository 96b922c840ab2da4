//! Neighbour solicitations as duplicate address detection sends them, and the advertisements that answer
//! (RFC 4861 §4.3, §4.4; RFC 4862 §5.4).

use std::net::Ipv6Addr;

use super::{Claim, Mac, source};

pub(super) const ETHERTYPE: u16 = 0x86dd;
pub(super) const ICMPV6: u8 = 58;
pub(super) const ADVERTISEMENT: u8 = 136;

/// Where the fields are in a frame without extension headers (neighbour discovery has none).
pub(super) const NEXT_HEADER_AT: u8 = 20;
pub(super) const TYPE_AT: u8 = 54;
const HOP_LIMIT_AT: usize = 21;
const TARGET_AT: usize = 62;
const OPTIONS_AT: usize = 78;

const SOLICITATION: u8 = 135;
const TARGET_LINK_LAYER_ADDRESS: u8 = 2;

/// A packet with another hop limit came over a router (RFC 4861 §7.1).
const HOP_LIMIT: u8 = 255;

/// Asks for an address without claiming one: the source is `::`, so the answer goes to all nodes.
pub(super) fn solicitation(from: Mac, address: Ipv6Addr) -> Vec<u8> {
    let [.., x, y, z] = address.octets();
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(x), u16::from_be_bytes([y, z]));
    let sum = checksum(Ipv6Addr::UNSPECIFIED, group, &message(0, address));
    let message = message(sum, address);
    [
        &[0x33, 0x33, 0xff, x, y, z][..],
        &from.0,
        &ETHERTYPE.to_be_bytes(),
        &[0x60, 0, 0, 0, 0, 24, ICMPV6, HOP_LIMIT],
        &Ipv6Addr::UNSPECIFIED.octets(),
        &group.octets(),
        &message,
    ]
    .concat()
}

/// An advertisement claims its target. Its checksum is not looked at: when in doubt somebody is there.
pub(super) fn claim(frame: &[u8]) -> Option<Claim> {
    if frame.get(12..14)? != ETHERTYPE.to_be_bytes()
        || *frame.get(usize::from(NEXT_HEADER_AT))? != ICMPV6
        || *frame.get(HOP_LIMIT_AT)? != HOP_LIMIT
        || *frame.get(usize::from(TYPE_AT))? != ADVERTISEMENT
    {
        return None;
    }
    let target = <[u8; 16]>::try_from(frame.get(TARGET_AT..OPTIONS_AT)?).ok()?;
    let mac = link_layer_address(frame.get(OPTIONS_AT..)?).or_else(|| source(frame))?;
    Some(Claim { address: Ipv6Addr::from(target).into(), mac })
}

fn message(sum: u16, target: Ipv6Addr) -> Vec<u8> {
    [&[SOLICITATION, 0][..], &sum.to_be_bytes(), &[0; 4], &target.octets()].concat()
}

/// RFC 4443 §2.3: over a pseudo-header and a message of even length with its sum zero.
fn checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let words = source.segments().into_iter().chain(destination.segments());
    let message = message.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    // The length of a solicitation without options, and the next header.
    let pseudo = [24, u16::from(ICMPV6)];
    let sum = words.chain(pseudo).chain(message).fold(0u16, |sum, word| {
        let (sum, carried) = sum.overflowing_add(word);
        sum + u16::from(carried)
    });
    !sum
}

fn link_layer_address(mut options: &[u8]) -> Option<Mac> {
    // Type, length in units of 8 bytes, value.
    while let [kind, units @ 1..=255, ..] = *options {
        let option = options.get(..usize::from(units) * 8)?;
        if kind == TARGET_LINK_LAYER_ADDRESS {
            return option.get(2..8)?.try_into().ok().map(Mac);
        }
        options = &options[option.len()..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
    const TARGET: Ipv6Addr = Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0x12, 0x3456);

    fn advertisement(options: &[u8]) -> Vec<u8> {
        let mut frame = solicitation(A, TARGET);
        frame[usize::from(TYPE_AT)] = ADVERTISEMENT;
        frame.extend(options);
        frame
    }

    #[test]
    fn a_solicitation_is_the_packet_of_rfc_4861() {
        let mut expected = vec![0x33, 0x33, 0xff, 0x12, 0x34, 0x56, 2, 0, 0, 0, 0, 0xa, 0x86, 0xdd];
        expected.extend([0x60, 0, 0, 0, 0, 24, 58, 255]);
        expected.extend([0; 16]);
        expected.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0x12, 0x34, 0x56]);
        // 0xff02 + 1 + 0xff12 + 0x3456 + 24 + 58 + 0x8700 + 0xfd00 + 9 + 0x12 + 0x3456 = 0x3eb2e; folded, inverted: 0x14ce
        expected.extend([135, 0, 0x14, 0xce, 0, 0, 0, 0]);
        expected.extend([0xfd, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0x56]);
        assert_eq!(solicitation(A, TARGET), expected);
    }

    #[test]
    fn a_solicitation_claims_nothing() {
        assert_eq!(claim(&solicitation(A, TARGET)), None);
    }

    #[test]
    fn an_advertisement_claims_its_target() {
        let claimed = |mac| Some(Claim { address: TARGET.into(), mac });
        assert_eq!(claim(&advertisement(&[])), claimed(A));
        assert_eq!(claim(&advertisement(&[2, 1, 2, 0, 0, 0, 0, 0xb])), claimed(B));
        assert_eq!(claim(&advertisement(&[14, 1, 0, 0, 0, 0, 0, 0, 2, 1, 2, 0, 0, 0, 0, 0xb])), claimed(B));
    }

    #[test]
    fn broken_options_leave_the_frames_source() {
        for options in [&[2, 0, 2, 0, 0, 0, 0, 0xb][..], &[2, 9, 0], &[2]] {
            assert_eq!(claim(&advertisement(options)).map(|claim| claim.mac), Some(A), "{options:?}");
        }
    }

    #[test]
    fn an_advertisement_from_beyond_a_router_claims_nothing() {
        let mut frame = advertisement(&[]);
        frame[HOP_LIMIT_AT] = 64;
        assert_eq!(claim(&frame), None);
    }

    #[test]
    fn a_cut_frame_claims_nothing() {
        for length in 0..OPTIONS_AT {
            assert_eq!(claim(&advertisement(&[])[..length]), None, "{length} bytes");
        }
    }
}
