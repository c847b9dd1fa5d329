//! Islands: which peers the supplementary fabric may reach, told by the addresses of rails.
//!
//! Source: MPIB path isolation document, "Island Classification". We differ in what is compared: the addresses of
//! primary *rails*, not those of a control connection, which may run over any network.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where a peer is, as seen from here. A fact of the topology: it holds for the life of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PathClass {
    /// In the same island: every class of rails reaches it.
    IntraIsland,
    /// In another one: only the primary class is sure to.
    InterIsland,
}

impl PathClass {
    /// The class in words, as errors and logs say it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::IntraIsland => "intra-island",
            Self::InterIsland => "inter-island",
        }
    }
}

/// How many leading bits of two addresses have to be equal for one island. 0: all are one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct IslandPrefix {
    /// Of IPv4 addresses: 0 to 32.
    pub v4_bits: u8,
    /// Of IPv6 addresses: 0 to 128.
    pub v6_bits: u8,
}

impl IslandPrefix {
    /// The document's /24, and for IPv6, of which it says nothing, one subnet.
    pub const DEFAULT: Self = Self {
        v4_bits: 24,
        v6_bits: 64,
    };

    /// Whether two addresses are of one island. The same whichever comes first.
    ///
    /// IPv4 addresses in IPv6 clothes count as IPv4. Addresses of two families are of one island only if there is
    /// one for all; the unspecified address is of none, because it says nothing.
    pub fn joins(&self, a: IpAddr, b: IpAddr) -> bool {
        match (a.to_canonical(), b.to_canonical()) {
            (a, b) if a.is_unspecified() || b.is_unspecified() => false,
            (IpAddr::V4(a), IpAddr::V4(b)) => self.joins_v4(a, b),
            (IpAddr::V6(a), IpAddr::V6(b)) => self.joins_v6(a, b),
            _ => self.v4_bits == 0 && self.v6_bits == 0,
        }
    }

    /// The class of a peer, from the (own, peer's) addresses of the primary rails to it: in the same island if any
    /// pair is. Without any pair it is in another, because nothing says otherwise.
    pub fn classify(&self, primary_rails: impl IntoIterator<Item = (IpAddr, IpAddr)>) -> PathClass {
        let mut pairs = primary_rails.into_iter();
        if pairs.any(|(own, peer)| self.joins(own, peer)) {
            PathClass::IntraIsland
        } else {
            PathClass::InterIsland
        }
    }

    fn joins_v4(&self, a: Ipv4Addr, b: Ipv4Addr) -> bool {
        (a.to_bits() ^ b.to_bits()).leading_zeros() >= u32::from(self.v4_bits)
    }

    fn joins_v6(&self, a: Ipv6Addr, b: Ipv6Addr) -> bool {
        (a.to_bits() ^ b.to_bits()).leading_zeros() >= u32::from(self.v6_bits)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::PathClass::{InterIsland, IntraIsland};
    use super::*;
    use quickcheck::quickcheck;
    use std::vec;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    const fn prefix(v4_bits: u8, v6_bits: u8) -> IslandPrefix {
        IslandPrefix { v4_bits, v6_bits }
    }

    #[test]
    fn islands_are_told_by_prefix() {
        const DEFAULT: IslandPrefix = IslandPrefix::DEFAULT;
        // (name, prefix, a, b, one island)
        let cases = [
            ("same /24", DEFAULT, "10.0.1.2", "10.0.1.250", true),
            ("next /24", DEFAULT, "10.0.1.255", "10.0.2.0", false),
            ("same address", DEFAULT, "10.0.1.2", "10.0.1.2", true),
            (
                "/0 is everybody",
                prefix(0, 64),
                "10.0.1.2",
                "192.168.0.1",
                true,
            ),
            (
                "/32 is one address",
                prefix(32, 64),
                "10.0.1.2",
                "10.0.1.2",
                true,
            ),
            ("/32 of two", prefix(32, 64), "10.0.1.2", "10.0.1.3", false),
            ("/31 of two", prefix(31, 64), "10.0.1.2", "10.0.1.3", true),
            ("/1", prefix(1, 64), "127.0.0.1", "128.0.0.1", false),
            ("/16", prefix(16, 64), "10.0.1.2", "10.0.2.2", true),
            (
                "IPv6 subnet",
                DEFAULT,
                "fd00::1:0:0:0:1",
                "fd00::1:0:0:0:2",
                true,
            ),
            (
                "IPv6 next subnet",
                DEFAULT,
                "fd00:0:0:1::1",
                "fd00:0:0:2::1",
                false,
            ),
            ("IPv6 /0", prefix(24, 0), "fd00::1", "2001:db8::1", true),
            ("IPv6 /128", prefix(24, 128), "fd00::1", "fd00::1", true),
            (
                "IPv6 /128 of two",
                prefix(24, 128),
                "fd00::1",
                "fd00::",
                false,
            ),
            (
                "IPv4 in IPv6 clothes",
                DEFAULT,
                "::ffff:10.0.1.2",
                "10.0.1.3",
                true,
            ),
            (
                "both in clothes",
                DEFAULT,
                "::ffff:10.0.1.2",
                "::ffff:10.0.2.2",
                false,
            ),
            ("two families", DEFAULT, "10.0.1.2", "fd00::1", false),
            (
                "two families, one /0",
                prefix(0, 64),
                "10.0.1.2",
                "fd00::1",
                false,
            ),
            (
                "two families, one for all",
                prefix(0, 0),
                "10.0.1.2",
                "fd00::1",
                true,
            ),
            ("no address", prefix(0, 0), "0.0.0.0", "10.0.1.2", false),
            ("no address at all", prefix(0, 0), "::", "::", false),
        ];
        for (name, prefix, a, b, one) in cases {
            assert_eq!(prefix.joins(ip(a), ip(b)), one, "{name}");
            assert_eq!(
                prefix.joins(ip(b), ip(a)),
                one,
                "{name}, the other way round"
            );
        }
    }

    #[test]
    fn one_pair_of_rails_in_one_island_is_enough() {
        let here = (ip("10.0.1.2"), ip("10.0.1.3"));
        let far = (ip("10.0.1.2"), ip("10.0.2.3"));
        for (pairs, class) in [
            (vec![here], IntraIsland),
            (vec![far], InterIsland),
            (vec![far, here], IntraIsland),
            (vec![], InterIsland),
        ] {
            assert_eq!(
                IslandPrefix::DEFAULT.classify(pairs.clone()),
                class,
                "{pairs:?}"
            );
        }
    }

    quickcheck! {
        /// Both ends of a connection, each with its own address first.
        fn both_sides_agree(rails: vec::Vec<(IpAddr, IpAddr)>, v4_bits: u8, v6_bits: u8) -> bool {
            let prefix = prefix(v4_bits % 33, v6_bits % 129);
            let turned = rails.iter().map(|(own, peer)| (*peer, *own));
            prefix.classify(rails.iter().copied()) == prefix.classify(turned)
        }

        fn a_longer_prefix_joins_no_more(a: IpAddr, b: IpAddr, bits: u8) -> bool {
            let (short, long) = (prefix(bits % 32, bits % 128), prefix(bits % 32 + 1, bits % 128 + 1));
            short.joins(a, b) || !long.joins(a, b)
        }
    }
}
