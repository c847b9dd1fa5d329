//! Names of ports: 16 bytes, written like an IPv6 address. On Ethernet they are IP addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// A port's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The name that a port on Ethernet has by an address of its interface.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self(address.to_ipv6_mapped().octets()),
            IpAddr::V6(address) => Self(address.octets()),
        }
    }

    /// As the kernel writes it: eight groups of four digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let address: Ipv6Addr = text.trim().parse().ok()?;
        Some(Self(address.octets()))
    }

    /// A row of a table that is not in use.
    pub(crate) fn is_empty(&self) -> bool {
        self.0 == [0; 16]
    }

    /// The subnet.
    pub(crate) fn prefix(&self) -> [u8; 8] {
        self.0[..8].try_into().unwrap_or_default()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GID {self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_an_address_and_reads_like_one() {
        let kernel = "0000:0000:0000:0000:0000:ffff:0a4d:0001";
        let gid = Gid::parse(kernel).unwrap();
        assert_eq!(gid, Gid::of([10, 77, 0, 1].into()));
        assert_eq!(gid.to_string(), "::ffff:10.77.0.1");
        assert!(!gid.is_empty() && Gid::default().is_empty());
        assert_eq!(Gid::parse("no gid\n"), None);
        let six = "fe80::1".parse().unwrap();
        assert_eq!(Gid::of(six).prefix()[..2], [0xfe, 0x80]);
    }
}
