//! Trust domains: which peers may know of which segments.

use std::net::IpAddr;
use std::ptr::NonNull;

use ipnet::IpNet;
use polyrail_transport::memory::{Access, Region, TrustDomain};

use crate::config::SecurityConfig;
use crate::engine::Engine;
use crate::error::RegisterError;
use crate::segments::SegmentId;

/// Trust domains of one engine.
pub(crate) const DOMAINS_MAX: usize = 256;

/// Which domains there are, and who is in which.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    /// In the order of their numbers, from 1.
    names: Vec<String>,
    /// What says most comes first.
    peers: Vec<(IpNet, TrustDomain)>,
}

impl Domains {
    pub(crate) fn new(config: &SecurityConfig) -> Self {
        let number = |place: usize| TrustDomain(place as u16 + 1);
        let all = config.domains.values().enumerate();
        let peers = all.flat_map(|(place, domain)| {
            let prefixes = domain.peers.iter();
            prefixes.map(move |prefix| (*prefix, number(place)))
        });
        let mut peers: Vec<_> = peers.collect();
        peers.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.prefix_len()));
        Self {
            names: config.domains.keys().cloned().collect(),
            peers,
        }
    }

    /// The domain of whoever comes from this address.
    pub(crate) fn of(&self, address: IpAddr) -> TrustDomain {
        let mut fits = self.peers.iter();
        let found = fits.find(|(prefix, _)| prefix.contains(&address));
        found.map_or(TrustDomain::COMMON, |(_, domain)| *domain)
    }

    fn named(&self, name: &str) -> Option<TrustDomain> {
        let place = self.names.iter().position(|known| known == name)?;
        Some(TrustDomain(place as u16 + 1))
    }
}

/// A trust domain of an engine: what is registered here, peers of this domain are told of, and nobody else; see
/// [`Engine::domain`].
#[derive(Clone)]
pub struct Domain {
    engine: Engine,
    domain: TrustDomain,
}

impl Engine {
    /// A trust domain of the configuration
    /// ([`SecurityConfig::domains`](crate::SecurityConfig::domains)), to register segments in.
    ///
    /// A peer is in the domain that its address says, or else in the common one, as are segments that are registered
    /// without a domain. It can open segments of its own domain, and is told of no others; their owner checks that
    /// again for each operation, whatever key a peer has got hold of. Over RDMA, where nobody could check, each domain
    /// has protection domains of its own. Files and memory of GPUs are for the common domain only.
    ///
    /// Domains keep apart whom the network tells apart: an address is believed.
    pub fn domain(&self, name: &str) -> Result<Domain, RegisterError> {
        if !self.inner.is_ours() {
            return Err(RegisterError::Forked);
        }
        let domains = &self.inner.domains;
        let domain = domains.named(name).ok_or_else(|| RegisterError::NoDomain {
            name: name.into(),
            known: domains.names.clone(),
        })?;
        Ok(Domain {
            engine: self.clone(),
            domain,
        })
    }
}

impl Domain {
    /// As [`Engine::allocate`].
    pub fn allocate(
        &self,
        name: &str,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        self.engine.allocate_in(self.domain, name, bytes, access)
    }

    /// As [`Engine::register`], for memory of the host.
    ///
    /// # Safety
    ///
    /// That of [`Engine::register`].
    pub unsafe fn register(
        &self,
        name: &str,
        base: NonNull<u8>,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        // SAFETY: the caller's promise.
        unsafe {
            self.engine
                .register_in(self.domain, name, base, bytes, access)
        }
    }

    /// As [`Engine::register_region`], for memory of the host.
    pub fn register_region(&self, name: &str, region: Region) -> Result<SegmentId, RegisterError> {
        self.engine.register_region_in(self.domain, name, region)
    }
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = usize::from(self.domain.0).wrapping_sub(1);
        let name = self.engine.inner.domains.names.get(place);
        f.debug_tuple("Domain").field(&name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn an_address_is_in_the_domain_that_says_most_of_it() {
        let text = r#"{ "security": { "domains": {
            "wide": { "peers": ["10.0.0.0/8", "fd00::/8"] },
            "narrow": { "peers": ["10.1.0.0/16", "192.0.2.7"] } } } }"#;
        let domains = Domains::new(&Config::from_json(text).unwrap().security);
        let (narrow, wide) = (TrustDomain(1), TrustDomain(2));
        let cases = [
            ("10.0.0.1", wide),
            ("10.1.0.1", narrow),
            ("fd00::1", wide),
            ("192.0.2.7", narrow),
            ("192.0.2.8", TrustDomain::COMMON),
            ("::1", TrustDomain::COMMON),
        ];
        for (address, domain) in cases {
            assert_eq!(domains.of(address.parse().unwrap()), domain, "{address}");
        }
        assert_eq!(domains.named("narrow"), Some(narrow));
        assert_eq!(domains.named("no"), None);
    }
}
