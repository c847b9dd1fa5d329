//! Section `security`: the cluster's key, and trust domains.

use std::collections::BTreeMap;
use std::time::Duration;

use ipnet::IpNet;
use polyrail_control::security::fits;

/// Who is a member, and who may know of which segments. Without it nobody is asked for a key, and there is one trust domain, in
/// which all are.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SecurityConfig {
    /// The file of the cluster's key, as [`crate::keygen`] makes one; empty: there is none. With it control connections are
    /// within TLS, and only engines with the same key are spoken with.
    pub key_file: String,
    /// Certificates in the key's place: the file of this engine's certificate with its chain, as PEM; empty: there is none. It names
    /// whom it is of by one URI `spiffe://…` or a DNS name.
    pub certificate: String,
    /// The file of its private key, as PEM.
    pub key: String,
    /// The file of the roots that peers' certificates have to be under, as PEM.
    pub roots: String,
    /// Whom certificates may name that this engine opens segments of; empty: anybody. A name may begin or end with `*`, which
    /// stands for anything.
    pub targets: Vec<String>,
    /// How long sessions of peers go on that began with a key, or with a certificate, which a [reload](crate::Engine::reload) has
    /// replaced; zero: until they end by themselves.
    pub old_key: Duration,
    /// What bytes of requests go in from host to host.
    pub payload: Payload,
    /// Segments of this engine, by their names, that only peers may use whose sessions encrypt; a peer's do if either end has
    /// [`Payload::Encrypt`]. Memory of the host only. A name may begin or end with `*`, which stands for anything.
    pub encrypted_segments: Vec<String>,
    /// Trust domains by their names: see [`crate::Engine::domain`].
    pub domains: BTreeMap<String, DomainConfig>,
}

impl SecurityConfig {
    /// Whether only peers whose sessions encrypt may use a segment of this name.
    pub(crate) fn is_encrypted(&self, segment: &str) -> bool {
        let mut patterns = self.encrypted_segments.iter();
        patterns.any(|pattern| fits(pattern, segment))
    }
}

/// What bytes of requests go in from host to host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Payload {
    /// As they are, unless a peer wants them to be encrypted.
    #[default]
    Off,
    /// Encrypted, by keys that each lane has of its own; by TCP, which is the transport that can. What passes no wire goes as it
    /// is.
    Encrypt,
}

/// A trust domain.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DomainConfig {
    /// Whose addresses begin so is in it; of domains that both fit, in the one that says more bits. All addresses that a
    /// peer comes from have to be of one domain.
    pub peers: Vec<IpNet>,
    /// Whose certificate names it so is in it, if it comes from an address that fits as well where there are some; of domains that
    /// both fit, in the one whose name says more. A name may begin or end with `*`, which stands for anything.
    pub names: Vec<String>,
}
