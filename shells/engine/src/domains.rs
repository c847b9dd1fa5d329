//! Trust domains: which peers may know of which segments.

use std::net::IpAddr;
use std::ptr::NonNull;

use ipnet::IpNet;
use polyrail_control::security::fits;
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
    who: Vec<Who>,
}

/// Somebody who is in a domain: by name, by address, or by both.
#[derive(Debug)]
struct Who {
    name: Option<String>,
    prefix: Option<IpNet>,
    domain: TrustDomain,
}

impl Who {
    fn is(&self, address: IpAddr, member: Option<&str>) -> bool {
        let by_name = self.name.as_ref();
        by_name.is_none_or(|pattern| member.is_some_and(|member| fits(pattern, member)))
            && self.prefix.is_none_or(|prefix| prefix.contains(&address))
    }

    /// How much is said: of a name first, addresses only narrow.
    fn says(&self) -> (bool, usize, u8) {
        let is_whole = self.name.as_ref().is_some_and(|name| !name.contains('*'));
        let length = self.name.as_ref().map_or(0, String::len);
        let bits = self.prefix.map_or(0, |prefix| prefix.prefix_len() + 1);
        (is_whole, length, bits)
    }
}

/// Each of a list, or nothing said once where it is empty.
fn each<T: Clone>(list: &[T]) -> Vec<Option<T>> {
    match list {
        [] => vec![None],
        list => list.iter().cloned().map(Some).collect(),
    }
}

impl Domains {
    pub(crate) fn new(config: &SecurityConfig) -> Self {
        let mut who = Vec::new();
        for (place, said) in config.domains.values().enumerate() {
            let domain = TrustDomain(place as u16 + 1);
            // Of whom nothing is said is nobody.
            if said.names.is_empty() && said.peers.is_empty() {
                continue;
            }
            for name in each(&said.names) {
                who.extend(each(&said.peers).into_iter().map(|prefix| Who {
                    name: name.clone(),
                    prefix,
                    domain,
                }));
            }
        }
        who.sort_by_key(|one| std::cmp::Reverse(one.says()));
        Self {
            names: config.domains.keys().cloned().collect(),
            who,
        }
    }

    /// The domain of whoever comes from this address, and has proved to be of this name, if it has one.
    pub(crate) fn of(&self, address: IpAddr, member: Option<&str>) -> TrustDomain {
        let found = self.who.iter().find(|one| one.is(address, member));
        found.map_or(TrustDomain::COMMON, |one| one.domain)
    }

    /// What a domain is called; `None`: it is the common one.
    pub(crate) fn name(&self, domain: TrustDomain) -> Option<&str> {
        let place = usize::from(domain.whole().0).checked_sub(1)?;
        Some(self.names.get(place)?)
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
    /// A peer is in the domain that the name of its certificate says, or its address, or else in the common one, as are segments
    /// that are registered without a domain. It can open segments of its own domain, and is told of no others; their owner checks that
    /// again for each operation, whatever key a peer has got hold of. Over RDMA, where nobody could check, each domain
    /// has protection domains of its own. Files and memory of GPUs are for the common domain only.
    ///
    /// Without certificates domains keep apart whom the network tells apart: an address is believed.
    ///
    /// Example: [guide](crate::guide#trust).
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
    ///
    /// Example: [guide](crate::guide#trust).
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
    ///
    /// Example: [guide](crate::guide#trust).
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
    ///
    /// Example: [guide](crate::guide#trust).
    pub fn register_region(&self, name: &str, region: Region) -> Result<SegmentId, RegisterError> {
        self.engine.register_region_in(self.domain, name, region)
    }
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.engine.inner.domains.name(self.domain);
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
            let address = address.parse().unwrap();
            assert_eq!(domains.of(address, None), domain, "{address}");
            let member = Some("spiffe://example/a");
            assert_eq!(domains.of(address, member), domain, "{address}");
        }
        assert_eq!(domains.named("narrow"), Some(narrow));
        assert_eq!(domains.named("no"), None);
    }

    #[test]
    fn a_name_says_more_than_an_address_and_addresses_narrow_it() {
        let text = r#"{ "security": {
            "certificate": "c", "key": "k", "roots": "r",
            "domains": {
                "all": { "names": ["spiffe://example/*"] },
                "by-address": { "peers": ["10.0.0.0/8"] },
                "one": { "names": ["spiffe://example/red/7"] },
                "red": { "names": ["spiffe://example/red/*", "*.red.example"], "peers": ["10.1.0.0/16"] } } } }"#;
        let config = Config::from_json(text).unwrap();
        config.check().unwrap();
        let domains = Domains::new(&config.security);
        let named = |name: &str| domains.named(name).unwrap_or(TrustDomain::COMMON);
        // (address, name, domain)
        let cases = [
            ("10.1.0.1", Some("spiffe://example/red/1"), "red"),
            ("10.2.0.1", Some("spiffe://example/red/1"), "all"),
            ("192.0.2.1", Some("spiffe://example/red/1"), "all"),
            ("192.0.2.1", Some("spiffe://example/red/7"), "one"),
            ("10.1.0.1", Some("spiffe://example/red/7"), "one"),
            ("10.1.0.1", Some("a.red.example"), "red"),
            ("10.1.0.1", Some("red.example"), "by-address"),
            ("10.1.0.1", Some("spiffe://other/red/1"), "by-address"),
            ("10.1.0.1", None, "by-address"),
            ("192.0.2.1", Some("spiffe://other/red/1"), "common"),
            ("192.0.2.1", None, "common"),
        ];
        for (address, member, domain) in cases {
            let of = domains.of(address.parse().unwrap(), member);
            assert_eq!(of, named(domain), "{address} {member:?}");
        }
    }

    #[test]
    fn names_that_nobody_could_have_or_that_are_of_two_are_refused() {
        let pki = r#""certificate": "c", "key": "k", "roots": "r","#;
        // (before the domains, of red, of blue, what is said)
        let cases = [
            ("", r#""names": ["a"]"#, "", "security/domains/red/names"),
            (
                pki,
                r#""names": ["a"]"#,
                r#""names": ["b", "a"]"#,
                "a is said of domain",
            ),
            (
                pki,
                r#""names": ["a"], "peers": ["10.0.0.0/8"]"#,
                r#""names": ["a"], "peers": ["10.0.0.0/8"]"#,
                "a is said of domain",
            ),
            (pki, r#""names": ["a*b"]"#, "", "may begin or end with"),
            (pki, r#""names": ["*"]"#, "", "may begin or end with"),
            (pki, r#""names": "a""#, "", "a list of words"),
        ];
        for (before, red, blue, said) in cases {
            let text = format!(
                r#"{{ "security": {{ {before} "domains": {{ "red": {{ {red} }}, "blue": {{ {blue} }} }} }} }}"#
            );
            let checked = Config::from_json(&text).and_then(|config| config.check());
            let error = checked.unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        let apart = r#"{ "security": { "certificate": "c", "key": "k", "roots": "r", "domains": {
            "red": { "names": ["a"], "peers": ["10.0.0.0/8"] },
            "blue": { "names": ["a"], "peers": ["10.1.0.0/16"] },
            "green": { "peers": ["10.0.0.0/8"] } } } }"#;
        let checked = Config::from_json(apart).and_then(|config| config.check());
        checked.unwrap();
    }
}
