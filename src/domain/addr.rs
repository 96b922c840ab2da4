//! Addresses of both families as one kind of number: arithmetic on `u128` that never overflows, and that never
//! walks a range address by address (a /64 has 2^64).

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use thiserror::Error;

/// An address family.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Family {
    /// IPv4, 32 bits.
    V4,
    /// IPv6, 128 bits.
    V6,
}

impl Family {
    /// The family of an address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Bits of an address: 32 or 128.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// `4` or `6`, as CNI writes it.
    #[must_use]
    pub const fn digit(self) -> &'static str {
        match self {
            Self::V4 => "4",
            Self::V6 => "6",
        }
    }

    /// The address that has this number in this family; bits above the family's width are dropped.
    #[must_use]
    pub fn address(self, number: u128) -> IpAddr {
        match self {
            #[expect(clippy::cast_possible_truncation, reason = "an IPv4 number has 32 bits")]
            Self::V4 => IpAddr::V4(Ipv4Addr::from(number as u32)),
            Self::V6 => IpAddr::V6(Ipv6Addr::from(number)),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// The number of an address.
#[must_use]
pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => u128::from(u32::from(a)),
        IpAddr::V6(a) => u128::from(a),
    }
}

/// An address in its one spelling: a v4-mapped IPv6 address is the IPv4 address that it maps (B098).
///
/// # Errors
/// [`AddrError::Address`] if the text is no address.
pub fn parse_address(text: &str) -> Result<IpAddr, AddrError> {
    // Go accepts no leading zeros either; Rust's parser refuses them, zones and brackets.
    let address: IpAddr = text.trim().parse().map_err(|_| AddrError::Address { text: text.into() })?;
    Ok(address.to_canonical())
}

/// Why a text or a pair of addresses is not what it should be.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum AddrError {
    /// Not an address.
    #[error("{text:?} is not an IPv4 or IPv6 address")]
    Address { text: String },
    /// Not a prefix in CIDR notation.
    #[error("{text:?} is not a subnet in CIDR notation, such as 10.0.0.0/24 or fd00:9::/64")]
    Prefix { text: String },
    /// A subnet with bits set in its host part.
    #[error("{text:?} has host bits set: the subnet is {subnet}")]
    HostBits { text: String, subnet: Prefix },
    /// A range that runs backwards.
    #[error("{first}-{last} runs backwards")]
    Backwards { first: IpAddr, last: IpAddr },
    /// A range with two families.
    #[error("{first}-{last} mixes IPv4 and IPv6")]
    Mixed { first: IpAddr, last: IpAddr },
}

/// A subnet: an address without host bits, and a length.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Prefix {
    family: Family,
    base: u128,
    length: u8,
}

impl Prefix {
    /// Reads CIDR notation and refuses host bits.
    ///
    /// # Errors
    /// [`AddrError::Prefix`], [`AddrError::HostBits`].
    pub fn parse(text: &str) -> Result<Self, AddrError> {
        let (address, prefix) = Self::parse_host(text)?;
        if number(address) != prefix.base {
            return Err(AddrError::HostBits { text: text.into(), subnet: prefix });
        }
        Ok(prefix)
    }

    /// Reads an address with a length, host bits kept beside the subnet (`10.9.0.77/24`).
    ///
    /// # Errors
    /// [`AddrError::Prefix`].
    pub fn parse_host(text: &str) -> Result<(IpAddr, Self), AddrError> {
        let error = || AddrError::Prefix { text: text.into() };
        let (address, length) = text.trim().split_once('/').ok_or_else(error)?;
        let plain: IpAddr = address.parse().map_err(|_| error())?;
        if length.is_empty() || length.len() > 3 || !length.bytes().all(|b| b.is_ascii_digit()) {
            return Err(error());
        }
        let mut length: u8 = length.parse().map_err(|_| error())?;
        let address = plain.to_canonical();
        if Family::of(plain) != Family::of(address) {
            length = length.checked_sub(96).ok_or_else(error)?;
        }
        let prefix = Self::of(address, length).ok_or_else(error)?;
        Ok((address, prefix))
    }

    /// The subnet of this length that holds the address; `None` if the family has fewer bits.
    #[must_use]
    pub fn of(address: IpAddr, length: u8) -> Option<Self> {
        let family = Family::of(address);
        if length > family.bits() {
            return None;
        }
        Some(Self { family, base: number(address) & !host_mask(family, length), length })
    }

    /// Its family.
    #[must_use]
    pub const fn family(self) -> Family {
        self.family
    }

    /// Bits of the network part.
    #[must_use]
    pub const fn length(self) -> u8 {
        self.length
    }

    /// The number of its first address.
    #[must_use]
    pub const fn first(self) -> u128 {
        self.base
    }

    /// The number of its last address.
    #[must_use]
    pub fn last(self) -> u128 {
        self.base | host_mask(self.family, self.length)
    }

    /// Is the address inside?
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        Family::of(address) == self.family && (self.first()..=self.last()).contains(&number(address))
    }

    /// All its addresses, first and last included.
    #[must_use]
    pub fn range(self) -> AddrRange {
        AddrRange { family: self.family, first: self.first(), last: self.last() }
    }
}

fn host_mask(family: Family, length: u8) -> u128 {
    let host = u32::from(family.bits().saturating_sub(length));
    1u128.checked_shl(host).map_or(u128::MAX, |bit| bit - 1)
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.family.address(self.base), self.length))
    }
}

/// A non-empty run of addresses of one family, both ends included.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AddrRange {
    family: Family,
    first: u128,
    last: u128,
}

impl AddrRange {
    /// From two addresses.
    ///
    /// # Errors
    /// [`AddrError::Mixed`], [`AddrError::Backwards`].
    pub fn new(first: IpAddr, last: IpAddr) -> Result<Self, AddrError> {
        let family = Family::of(first);
        if family != Family::of(last) {
            return Err(AddrError::Mixed { first, last });
        }
        if number(first) > number(last) {
            return Err(AddrError::Backwards { first, last });
        }
        Ok(Self { family, first: number(first), last: number(last) })
    }

    /// From two numbers of a family, if they do not run backwards.
    #[must_use]
    pub fn of_numbers(family: Family, first: u128, last: u128) -> Option<Self> {
        (first <= last).then_some(Self { family, first, last })
    }

    /// Reads `A-B`, `A`, or a subnet in CIDR notation.
    ///
    /// # Errors
    /// Any [`AddrError`].
    pub fn parse(text: &str) -> Result<Self, AddrError> {
        if text.contains('/') {
            return Prefix::parse(text).map(Prefix::range);
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Self::new(parse_address(first)?, parse_address(last)?)
    }

    /// Its family.
    #[must_use]
    pub const fn family(self) -> Family {
        self.family
    }

    /// The number of its first address.
    #[must_use]
    pub const fn first(self) -> u128 {
        self.first
    }

    /// The number of its last address.
    #[must_use]
    pub const fn last(self) -> u128 {
        self.last
    }

    /// How many addresses; all of IPv6 counts one less than it has.
    #[must_use]
    pub fn size(self) -> u128 {
        (self.last - self.first).saturating_add(1)
    }

    /// Is the address inside?
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        Family::of(address) == self.family && (self.first..=self.last).contains(&number(address))
    }

    /// Do they share an address?
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.family == other.family && self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for AddrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.family.address(self.first), self.family.address(self.last));
        if first == last { f.pad(&first.to_string()) } else { f.pad(&format!("{first}-{last}")) }
    }
}

/// A set of addresses of one family: runs in order, none touching another.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AddrSet {
    family: Family,
    runs: Vec<AddrRange>,
}

impl AddrSet {
    /// All addresses of a range but those in `holes`. May be empty.
    #[must_use]
    pub fn without(range: AddrRange, holes: &[AddrRange]) -> Self {
        let mut holes: Vec<AddrRange> = holes.iter().copied().filter(|h| h.overlaps(range)).collect();
        holes.sort_unstable();
        let mut runs = Vec::new();
        let mut next = Some(range.first);
        for hole in holes {
            let Some(from) = next else { break };
            if hole.first > from {
                runs.push(AddrRange { family: range.family, first: from, last: hole.first - 1 });
            }
            if hole.last >= from {
                next = hole.last.checked_add(1);
            }
        }
        if let Some(from) = next
            && from <= range.last
        {
            runs.push(AddrRange { family: range.family, first: from, last: range.last });
        }
        Self { family: range.family, runs }
    }

    /// Its family.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Its runs, in order.
    #[must_use]
    pub fn runs(&self) -> &[AddrRange] {
        &self.runs
    }

    /// Has it no address?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many addresses it has (all of IPv6 counts one less than it has).
    #[must_use]
    pub fn size(&self) -> u128 {
        self.runs.iter().fold(0u128, |sum, run| sum.saturating_add(run.size()))
    }

    /// Is the address in it?
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        Family::of(address) == self.family && self.contains_number(number(address))
    }

    /// Is the address with this number in it?
    #[must_use]
    pub fn contains_number(&self, number: u128) -> bool {
        self.runs
            .binary_search_by(|run| {
                if run.last < number {
                    std::cmp::Ordering::Less
                } else if run.first > number {
                    std::cmp::Ordering::Greater
                } else {
                    std::cmp::Ordering::Equal
                }
            })
            .is_ok()
    }

    /// The address at a position, counted from the lowest; `None` past the end.
    #[must_use]
    pub fn nth(&self, position: u128) -> Option<u128> {
        let mut left = position;
        for run in &self.runs {
            if left < run.size() {
                return Some(run.first + left);
            }
            left -= run.size();
        }
        None
    }

    /// The part of the set between two positions (both included), as runs.
    #[must_use]
    pub fn slice(&self, from: u128, to: u128) -> Vec<AddrRange> {
        let mut out = Vec::new();
        let mut start = 0u128;
        for run in &self.runs {
            let end = start.saturating_add(run.size() - 1);
            if from <= end && to >= start {
                let first = run.first + from.saturating_sub(start);
                let last = run.first + (to.min(end) - start);
                out.push(AddrRange { family: self.family, first, last });
            }
            start = end.saturating_add(1);
            if start > to {
                break;
            }
        }
        out
    }

    /// The position of an address; `None` if it is not in the set.
    #[must_use]
    pub fn position(&self, number: u128) -> Option<u128> {
        let mut before = 0u128;
        for run in &self.runs {
            if number < run.first {
                return None;
            }
            if number <= run.last {
                return Some(before + (number - run.first));
            }
            before = before.saturating_add(run.size());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn range(text: &str) -> AddrRange {
        AddrRange::parse(text).unwrap()
    }

    #[track_caller]
    fn refused(text: &str, why: &str) {
        assert_eq!(AddrRange::parse(text).unwrap_err().to_string(), why);
    }

    #[test]
    fn a_range_says_what_is_wrong_with_it() {
        refused("10.0.0.2-10.0.0.1", "10.0.0.2-10.0.0.1 runs backwards");
        refused("10.0.0.2-fd00::1", "10.0.0.2-fd00::1 mixes IPv4 and IPv6");
        refused("10.0.0.300", "\"10.0.0.300\" is not an IPv4 or IPv6 address");
        refused("10.0.0.1/24", "\"10.0.0.1/24\" has host bits set: the subnet is 10.0.0.0/24");
        refused(
            "10.0.0.0/33",
            "\"10.0.0.0/33\" is not a subnet in CIDR notation, such as 10.0.0.0/24 or fd00:9::/64",
        );
    }

    #[test]
    fn b098_an_address_has_one_spelling() {
        assert_eq!(parse_address("::ffff:10.9.0.77").unwrap().to_string(), "10.9.0.77");
        assert_eq!(parse_address("FD00:9:0:0::0001").unwrap().to_string(), "fd00:9::1");
        assert_eq!(Prefix::parse("::ffff:10.9.0.0/120").unwrap().to_string(), "10.9.0.0/24");
    }

    #[test]
    fn all_of_ipv6_does_not_overflow() {
        let all = range("::/0");
        assert_eq!(all.size(), u128::MAX);
        let set = AddrSet::without(all, &[range("::"), range("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")]);
        assert_eq!(set.size(), u128::MAX - 1);
        assert_eq!(set.nth(u128::MAX - 2), Some(u128::MAX - 1));
        assert_eq!(set.nth(u128::MAX - 1), None);
        assert_eq!(set.position(u128::MAX - 1), Some(u128::MAX - 2));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: Some(Box::new(proptest::test_runner::FileFailurePersistence::WithSource("regressions"))),
            ..ProptestConfig::default()
        })]

        #[test]
        fn a_set_with_holes_is_the_plain_set(first in 0u32..300, length in 0u32..300,
                                             holes in prop::collection::vec((0u32..600, 0u32..40), 0..8),
                                             cut in (0u128..600, 0u128..600)) {
            let v4 = |n: u32| IpAddr::V4(Ipv4Addr::from(n));
            let all = AddrRange::new(v4(first), v4(first + length)).unwrap();
            let holes: Vec<AddrRange> = holes.iter().map(|(a, n)| AddrRange::new(v4(*a), v4(a + n)).unwrap()).collect();
            let set = AddrSet::without(all, &holes);
            let plain: BTreeSet<u128> = (u128::from(first)..=u128::from(first + length))
                .filter(|n| !holes.iter().any(|h| (h.first..=h.last).contains(n))).collect();
            prop_assert_eq!(set.size(), plain.len() as u128);
            prop_assert_eq!(set.is_empty(), plain.is_empty());
            for (position, n) in plain.iter().enumerate() {
                prop_assert_eq!(set.nth(position as u128), Some(*n));
                prop_assert_eq!(set.position(*n), Some(position as u128));
            }
            prop_assert_eq!(set.nth(plain.len() as u128), None);
            for n in 0..700 {
                prop_assert_eq!(set.contains_number(n), plain.contains(&n));
            }
            for pair in set.runs().windows(2) {
                prop_assert!(pair[0].last + 1 < pair[1].first);
            }
            let (from, to) = (cut.0.min(cut.1), cut.0.max(cut.1));
            let sliced: Vec<u128> = set.slice(from, to).iter().flat_map(|r| r.first..=r.last).collect();
            let wanted: Vec<u128> = plain.iter().copied().enumerate()
                .filter(|(i, _)| (from..=to).contains(&(*i as u128))).map(|(_, n)| n).collect();
            prop_assert_eq!(sliced, wanted);
        }
    }
}
