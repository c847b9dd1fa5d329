//! Section `security`: trust domains.

use std::collections::BTreeMap;

use ipnet::IpNet;

/// Who may know of which segments. Without it there is one trust domain, in which all are.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SecurityConfig {
    /// Trust domains by their names: see [`crate::Engine::domain`].
    pub domains: BTreeMap<String, DomainConfig>,
}

/// A trust domain.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DomainConfig {
    /// Whose addresses begin so is in it; of domains that both fit, in the one that says more bits. All addresses that a
    /// peer comes from have to be of one domain.
    pub peers: Vec<IpNet>,
}
