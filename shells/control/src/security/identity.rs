//! The key pair of a cluster, and what TLS is told of it.
//!
//! Both sides show it as a raw public key (RFC 7250) and sign the handshake with it. There are no certificates, so there is
//! nothing to parse, to expire or to be signed by anybody else, and clocks do not matter.

use std::fmt;
use std::sync::Arc;

use ring::digest::{SHA256, digest};
use ring::hkdf::{HKDF_SHA256, Salt};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, ring as ring_provider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, ResolvesServerCert,
};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    ServerConfig, SignatureScheme,
};
use zeroize::Zeroizing;

use super::expiry::Expiry;
use super::file::Secret;

/// Says what the bytes inside TLS are, so that nothing else is taken for them.
pub(super) const PROTOCOL: &[u8] = b"polyrail-control";

/// Sets these bytes of HKDF apart from all others.
const SALT: &[u8] = b"polyrail cluster key 1";
const IDENTITY: &[u8] = b"identity: Ed25519 seed";

/// A private key of Ed25519 as PKCS #8 (RFC 8410) up to its 32 bytes.
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

const SEED_BYTES: usize = 32;

/// What people tell keys apart by: the beginning of a hash of the public key. No secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint([u8; 8]);

impl Fingerprint {
    pub(super) fn of(public_key: &[u8]) -> Self {
        let hash = digest(&SHA256, public_key);
        Self(hash.as_ref().first_chunk().copied().unwrap_or_default())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// By what an engine proves that it is a member, and wants it proved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Membership {
    /// One key, which all members have.
    ClusterKey,
    /// Certificates of an authority.
    Certificates,
}

impl Membership {
    /// The one that this is not.
    pub(super) fn other(self) -> Self {
        match self {
            Self::ClusterKey => Self::Certificates,
            Self::Certificates => Self::ClusterKey,
        }
    }
}

impl fmt::Display for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterKey => "a cluster key (security/key_file)",
            Self::Certificates => "certificates (security/certificate)",
        })
    }
}

/// A cluster's key as an engine uses it: it makes both sides of TLS, and accepts who has the same.
pub struct ClusterKey {
    fingerprint: Fingerprint,
    pub(super) way: Membership,
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    /// Of certificates: until when the first one is valid, and what of that has been said.
    pub(super) expiry: Option<Expiry>,
}

impl ClusterKey {
    /// The key that comes from a secret, the same each time.
    pub fn new(secret: &Secret) -> Result<Self, Error> {
        let provider = provider();
        let signer = provider
            .key_provider
            .load_private_key(private_key(secret)?)?;
        let public_key = signer.public_key();
        let public_key =
            public_key.ok_or_else(|| Error::General("a key pair without a public key".into()))?;
        let public_key = public_key.to_vec();
        let fingerprint = Fingerprint::of(&public_key);
        let shown = CertificateDer::from(public_key.clone());
        let members = Arc::new(Members {
            public_key,
            provider: provider.clone(),
        });
        let shown = Arc::new(CertifiedKey::new(vec![shown], signer));
        Ok(Self {
            fingerprint,
            way: Membership::ClusterKey,
            client: Arc::new(client(
                &provider,
                members.clone(),
                Arc::new(AlwaysResolvesClientRawPublicKeys::new(shown.clone())),
            )?),
            server: Arc::new(server(
                &provider,
                members,
                Arc::new(AlwaysResolvesServerRawPublicKeys::new(shown)),
            )?),
            expiry: None,
        })
    }

    /// Both sides of TLS out of the certificates that they show and those that they accept.
    pub(super) fn assemble<V, S>(
        fingerprint: Fingerprint,
        provider: &Arc<CryptoProvider>,
        accepts: &Arc<V>,
        shown: Arc<S>,
    ) -> Result<Self, Error>
    where
        V: ServerCertVerifier + ClientCertVerifier + 'static,
        S: ResolvesClientCert + ResolvesServerCert + 'static,
    {
        Ok(Self {
            fingerprint,
            way: Membership::Certificates,
            client: Arc::new(client(provider, accepts.clone(), shown.clone())?),
            server: Arc::new(server(provider, accepts.clone(), shown)?),
            expiry: None,
        })
    }

    /// What people tell it from others by.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl ClusterKey {
    /// Until when the certificate is valid, in seconds since 1970; `None`: it is a cluster's key, which does not end.
    pub fn ends_at(&self) -> Option<u64> {
        self.expiry.as_ref().map(|expiry| expiry.ends_at)
    }

    /// Says in the log that the certificate has ended, or ends within a week: once a day at most.
    pub fn remind(&self) {
        if let Some(expiry) = &self.expiry {
            expiry.remind(UnixTime::now().as_secs(), |text| log::warn!("{text}"));
        }
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterKey({})", self.fingerprint)
    }
}

/// What TLS computes with.
pub(super) fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring_provider::default_provider();
    provider.kx_groups = vec![ring_provider::kx_group::X25519];
    Arc::new(provider)
}

pub(super) fn no_tls12() -> Error {
    Error::General("TLS 1.2 is not spoken here".into())
}

fn private_key(secret: &Secret) -> Result<PrivateKeyDer<'static>, Error> {
    let unable = |_| Error::General("no key comes from the secret".into());
    let mut seed = Zeroizing::new([0; SEED_BYTES]);
    let root = Salt::new(HKDF_SHA256, SALT).extract(secret.bytes());
    let expanded = root.expand(&[IDENTITY], HKDF_SHA256).map_err(unable)?;
    expanded.fill(&mut *seed).map_err(unable)?;
    // Whoever takes it overwrites it.
    let mut document = Vec::with_capacity(PKCS8_PREFIX.len() + SEED_BYTES);
    document.extend_from_slice(&PKCS8_PREFIX);
    document.extend_from_slice(&*seed);
    Ok(PrivatePkcs8KeyDer::from(document).into())
}

fn client(
    provider: &Arc<CryptoProvider>,
    accepts: Arc<dyn ServerCertVerifier>,
    shown: Arc<dyn ResolvesClientCert>,
) -> Result<ClientConfig, Error> {
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(accepts)
        .with_client_cert_resolver(shown);
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.enable_sni = false;
    // Each connection proves the key anew.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn server(
    provider: &Arc<CryptoProvider>,
    accepts: Arc<dyn ClientCertVerifier>,
    shown: Arc<dyn ResolvesServerCert>,
) -> Result<ServerConfig, Error> {
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(accepts)
        .with_cert_resolver(shown);
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Accepts who shows the cluster's public key, and nobody else. That it holds the private one too, TLS finds out by its
/// signature of the handshake, which `rustls` checks.
#[derive(Debug)]
struct Members {
    public_key: Vec<u8>,
    provider: Arc<CryptoProvider>,
}

impl Members {
    fn check(
        &self,
        shown: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
    ) -> Result<(), Error> {
        if shown.as_ref() == self.public_key && others.is_empty() {
            return Ok(());
        }
        let other = OtherKey(Fingerprint::of(shown));
        let error = CertificateError::Other(OtherError(Arc::new(other)));
        Err(Error::InvalidCertificate(error))
    }

    fn check_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let public_key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &public_key, signed, algorithms)
    }
}

/// The key that somebody showed instead of ours.
#[derive(Debug)]
pub(super) struct OtherKey(pub(super) Fingerprint);

impl fmt::Display for OtherKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "another cluster key, {}", self.0)
    }
}

impl std::error::Error for OtherKey {}

impl ServerCertVerifier for Members {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(shown, others)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Members {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(shown, others)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
