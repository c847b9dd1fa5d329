//! Certificates of an operator's authority, in place of a cluster's key: what TLS shows and accepts with them.
//!
//! Each side shows a chain that leads to one of the other's roots, is valid now, and names its holder. A name is the one
//! SPIFFE identity among the certificate's URIs, or, where it has none, the first of its DNS names.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, Error,
    RootCertStore, SignatureScheme,
};
use webpki::EndEntityCert;

use super::expiry::Expiry;
use super::identity::{ClusterKey, Fingerprint, OtherKey, no_tls12, provider};

const SPIFFE: &str = "spiffe://";

/// Certificates between the first of a chain and a root, at most. A stranger may show any, and each is another way to look
/// for a root.
const BETWEEN_MAX: usize = 4;

impl ClusterKey {
    /// Certificates instead of a key: the `certificate` with its chain, its private `key` and the `roots` that peers have to
    /// be under, each as PEM. `targets`: patterns of the names that connections may be made to; none: any name.
    pub fn certified(
        certificate: &[u8],
        key: &[u8],
        roots: &[u8],
        targets: &[String],
    ) -> Result<Self, BadPem> {
        let chain = certificates(certificate, "certificate")?;
        let name = chain.first().and_then(name_of);
        name.ok_or_else(|| bad("certificate", NoName))?;
        check_between(chain.get(1..).unwrap_or_default()).map_err(|why| bad("certificate", why))?;
        Self::certified_by(chain, key, roots, targets)
    }

    /// The same, whomever the chain names.
    pub(super) fn certified_by(
        chain: Vec<CertificateDer<'static>>,
        key: &[u8],
        roots: &[u8],
        targets: &[String],
    ) -> Result<Self, BadPem> {
        let provider = provider();
        let fingerprint = Fingerprint::of(chain.first().map_or(&[], |first| first.as_ref()));
        let algorithms = provider.signature_verification_algorithms.all;
        let expiry = chain
            .first()
            .and_then(|first| Expiry::of(first, algorithms));
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|why| match why {
            pem::Error::NoItemsFound => bad("key", "no private key is in it"),
            why => bad("key", why),
        })?;
        let shown = CertifiedKey::from_der(chain, key, &provider).map_err(|why| match why {
            Error::InconsistentKeys(_) => bad("key", "it is not that of security/certificate"),
            why => bad("key", why),
        })?;
        let mut store = RootCertStore::empty();
        for root in certificates(roots, "roots")? {
            store.add(root).map_err(|why| bad("roots", why))?;
        }
        let named = Named::new(store, provider.clone(), targets.to_vec());
        let named = named.map_err(|why| bad("roots", why))?;
        let shown = Arc::new(SingleCertAndKey::from(shown));
        let assembled = Self::assemble(fingerprint, &provider, &Arc::new(named), shown);
        let mut certified = assembled.map_err(|why| bad("certificate", why))?;
        certified.expiry = expiry;
        Ok(certified)
    }
}

/// All that are in a file, one at least.
fn certificates(file: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, BadPem> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(file).collect();
    match read {
        Ok(none) if none.is_empty() => Err(bad(what, "no certificate is in it")),
        read => read.map_err(|why| bad(what, why)),
    }
}

/// What is wrong with one of the three that [`ClusterKey::certified`] takes. Nothing of a key is in it.
#[derive(Debug)]
pub struct BadPem {
    /// Which of them.
    pub what: &'static str,
    why: String,
}

fn bad(what: &'static str, why: impl fmt::Display) -> BadPem {
    let why = why.to_string();
    BadPem { what, why }
}

impl fmt::Display for BadPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "security/{} cannot be used: {}", self.what, self.why)
    }
}

impl std::error::Error for BadPem {}

/// Whom a certificate names, if it names one.
pub(super) fn name_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    let mut identities = parsed.valid_uri_names().filter(|it| it.starts_with(SPIFFE));
    let name = match (identities.next(), identities.next()) {
        (Some(identity), None) => Some(identity),
        // Which of two it is nobody can say.
        (Some(_), Some(_)) => None,
        (None, _) => parsed.valid_dns_names().next(),
    };
    name.map(str::to_owned)
}

/// A certificate that does not say whose it is.
#[derive(Debug)]
struct NoName;

impl fmt::Display for NoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it names nobody: one URI spiffe://... or a DNS name has to be among its alternative names")
    }
}

/// What is wrong with a certificate that the peer showed, in words; `None`: it is not about certificates of an authority.
pub(super) fn explain(error: &Error) -> Option<String> {
    use CertificateError as Bad;
    let Error::InvalidCertificate(why) = error else {
        return explain_alert(error).map(Into::into);
    };
    Some(match why {
        // A cluster's key.
        Bad::Other(why) if why.0.is::<OtherKey>() => return None,
        Bad::NotValidForNameContext { presented, .. } => format!(
            "its certificate names \"{}\", whom security/targets does not name",
            presented.concat()
        ),
        Bad::NotValidForName => format!("its certificate is not accepted: {NoName}"),
        Bad::Expired | Bad::ExpiredContext { .. } => format!("its certificate has expired ({why})"),
        Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
            format!("its certificate is not valid yet ({why})")
        }
        Bad::UnknownIssuer => "its certificate is under none of security/roots".into(),
        why => format!("its certificate is not accepted ({why})"),
    })
}

/// What the peer's alert says of the certificate that this side showed.
fn explain_alert(error: &Error) -> Option<&'static str> {
    use AlertDescription as Alert;
    Some(match error {
        Error::AlertReceived(Alert::CertificateExpired) => {
            "it says that this engine's certificate has expired or is not valid yet, by its clock"
        }
        Error::AlertReceived(Alert::UnknownCA) => {
            "it says that this engine's certificate is under none of its security/roots"
        }
        Error::AlertReceived(Alert::BadCertificate | Alert::UnsupportedCertificate) => {
            "it does not accept this engine's certificate: does that name its holder, and is that one of its security/targets?"
        }
        _ => return None,
    })
}

/// A chain that another authority of the same name has signed is under none of our roots: `webpki` says of it that a
/// signature is wrong.
fn under_no_root(error: Error) -> Error {
    match error {
        Error::InvalidCertificate(CertificateError::BadSignature) => {
            Error::InvalidCertificate(CertificateError::UnknownIssuer)
        }
        other => other,
    }
}

/// Checks what is shown between the first certificate and a root before ways to a root are looked for, of which there are as many
/// as orders of certificates of one name.
fn check_between(others: &[CertificateDer<'_>]) -> Result<(), Error> {
    let count = others.len();
    if count > BETWEEN_MAX {
        let text = format!("{count} certificates beside its first; {BETWEEN_MAX} are the limit");
        return Err(Error::General(text));
    }
    let mut names = Vec::new();
    for other in others {
        let parsed = EndEntityCert::try_from(other);
        let parsed =
            parsed.map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let name = parsed.subject().to_vec();
        if names.contains(&name) {
            let text = "two certificates of one name beside its first";
            return Err(Error::General(text.into()));
        }
        names.push(name);
    }
    Ok(())
}

/// Whether a name is one of those that a pattern stands for: `*` at its beginning or its end stands for anything.
pub fn fits(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(rest), Some(_)) => name.contains(rest.trim_end_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(begin)) => name.starts_with(begin),
        (None, None) => name == pattern,
    }
}

/// Accepts who shows a certificate with a name, under one of the roots.
#[derive(Debug)]
struct Named {
    /// Patterns of the names that connections may be made to; none: any name.
    targets: Vec<String>,
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
}

impl Named {
    fn new(
        roots: RootCertStore,
        provider: Arc<CryptoProvider>,
        targets: Vec<String>,
    ) -> Result<Self, rustls::server::VerifierBuilderError> {
        let roots = Arc::new(roots);
        let clients =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build()?;
        Ok(Self {
            targets,
            provider,
            roots,
            clients,
        })
    }

    fn check_name(shown: &CertificateDer<'_>) -> Result<String, Error> {
        // The nearest of the errors that the peer's alert can tell from a certificate that is not trusted.
        let unnamed = || Error::InvalidCertificate(CertificateError::NotValidForName);
        name_of(shown).ok_or_else(unnamed)
    }

    /// Whether connections may be made to whom a certificate names.
    fn check_target(&self, name: String, asked: &ServerName<'_>) -> Result<(), Error> {
        let mut targets = self.targets.iter();
        if self.targets.is_empty() || targets.any(|pattern| fits(pattern, &name)) {
            return Ok(());
        }
        let why = CertificateError::NotValidForNameContext {
            expected: asked.to_owned(),
            presented: vec![name],
        };
        Err(Error::InvalidCertificate(why))
    }

    fn check_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, shown, signed, algorithms)
    }
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        asked: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        check_between(others)?;
        let parsed = rustls::server::ParsedCertificate::try_from(shown)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            others,
            now,
            algorithms,
        )
        .map_err(under_no_root)?;
        self.check_target(Self::check_name(shown)?, asked)?;
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
        self.clients.supported_verify_schemes()
    }
}

impl ClientCertVerifier for Named {
    /// Whose certificates are asked for is said to nobody who has proved nothing.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        check_between(others)?;
        let verified = self.clients.verify_client_cert(shown, others, now);
        let verified = verified.map_err(under_no_root)?;
        Self::check_name(shown)?;
        Ok(verified)
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
        self.clients.supported_verify_schemes()
    }
}
