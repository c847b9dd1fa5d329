//! Whom a limit for each address takes for one.

use std::net::IpAddr;

/// An address, or the 64 bits of IPv6 that one host may choose its own from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place(u64);

impl Place {
    /// Where somebody with this address is.
    pub fn of(remote: IpAddr) -> Self {
        match remote.to_canonical() {
            IpAddr::V4(address) => Self(address.to_bits().into()),
            IpAddr::V6(address) => Self((address.to_bits() >> 64) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_one_ipv6_network_are_one_place() {
        let place = |text: &str| Place::of(text.parse().unwrap());
        assert_eq!(place("2001:db8::1"), place("2001:db8::ffff:2"));
        assert_ne!(place("2001:db8:0:1::1"), place("2001:db8::1"));
        assert_eq!(place("::ffff:192.0.2.1"), place("192.0.2.1"));
        assert_ne!(place("192.0.2.1"), place("192.0.2.2"));
    }
}
