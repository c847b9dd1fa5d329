//! Certificates of an authority at both ends.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd,
};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::*;

const TWO: [&str; 2] = ["spiffe://example/a", "spiffe://example/b"];

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            root,
        }
    }

    /// What somebody has whose certificate this authority signed, and who trusts `roots`.
    fn member(&self, params: &CertificateParams, roots: &str) -> Arc<ClusterKey> {
        let (certificate, key) = self.issue(params);
        let chain = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let identity = ClusterKey::certified_by(vec![chain], key.as_bytes(), roots.as_bytes(), &[]);
        Arc::new(identity.unwrap())
    }

    fn issue(&self, params: &CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

fn dns() -> CertificateParams {
    CertificateParams::new(vec!["alpha.example".into()]).unwrap()
}

fn spiffe(identities: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::new(vec![]).unwrap();
    let uri = |it: &&str| SanType::URI((*it).try_into().unwrap());
    params.subject_alt_names = identities.iter().map(uri).collect();
    params
}

fn ending(told: &[Event]) -> String {
    let ended = told.iter().find_map(|event| match event {
        Event::Ended(why) => Some(why.to_string()),
        _ => None,
    });
    ended.unwrap_or_default()
}

#[test]
fn members_of_one_authority_meet() {
    let authority = Authority::new("one");
    let one = authority.member(&dns(), &authority.root);
    let other = authority.member(&spiffe(&["spiffe://example/beta"]), &authority.root);
    for piece in [1, 100, 1 << 20] {
        let (mut initiator, mut target) = pair(Some(&one), Some(&other));
        let (here, there) = meet(&mut initiator, &mut target, piece);
        assert!(there.contains(&Event::Hello(hello())), "{there:?}");
        assert_eq!(ending(&here), "");
        let secrets = (
            initiator.export(b"s").unwrap(),
            target.export(b"s").unwrap(),
        );
        assert!(secrets.0.is_some() && secrets.0 == secrets.1);
    }
}

#[test]
fn a_certificate_that_is_not_right_is_refused_in_words_at_both_sides() {
    let authority = Authority::new("one");
    let (stranger, namesake) = (Authority::new("another"), Authority::new("one"));
    let good = authority.member(&dns(), &authority.root);
    let (mut expired, mut early) = (dns(), dns());
    expired.not_after = date_time_ymd(2020, 1, 1);
    early.not_before = date_time_ymd(4000, 1, 1);
    // (what is wrong, who has it, what the one says who does not accept it, what the other says)
    let cases = [
        (
            "other authority",
            stranger.member(&dns(), &authority.root),
            "its certificate is under none of security/roots",
            "this engine's certificate is under none of its security/roots",
        ),
        (
            "other authority of the same name",
            namesake.member(&dns(), &authority.root),
            "its certificate is under none of security/roots",
            "this engine's certificate is under none of its security/roots",
        ),
        (
            "no name",
            authority.member(&spiffe(&[]), &authority.root),
            "it names nobody",
            "does that name its holder, and is that one of its security/targets?",
        ),
        (
            "two names",
            authority.member(&spiffe(&TWO), &authority.root),
            "it names nobody",
            "does that name its holder, and is that one of its security/targets?",
        ),
        (
            "expired",
            authority.member(&expired, &authority.root),
            "its certificate has expired",
            "this engine's certificate has expired or is not valid yet",
        ),
        (
            "not valid yet",
            authority.member(&early, &authority.root),
            "its certificate is not valid yet",
            "this engine's certificate has expired or is not valid yet",
        ),
    ];
    for (name, wrong, refuses, refused) in cases {
        // Who is in the wrong is the target, and then the initiator.
        let (mut initiator, mut target) = pair(Some(&good), Some(&wrong));
        let (here, there) = meet(&mut initiator, &mut target, 1 << 20);
        assert!(ending(&here).contains(refuses), "{name}: {here:?}");
        assert!(ending(&there).contains(refused), "{name}: {there:?}");
        assert!(!there.contains(&Event::Hello(hello())), "{name}");
        let (mut initiator, mut target) = pair(Some(&wrong), Some(&good));
        let (here, there) = meet(&mut initiator, &mut target, 1 << 20);
        assert!(ending(&there).contains(refuses), "{name}: {there:?}");
        assert!(ending(&here).contains(refused), "{name}: {here:?}");
        assert!(!there.contains(&Event::Hello(hello())), "{name}");
    }
}

#[test]
fn a_certificate_that_names_nobody_or_two_is_of_no_use_to_its_owner() {
    let authority = Authority::new("one");
    for params in [spiffe(&[]), spiffe(&TWO), spiffe(&["https://example/a"])] {
        let (certificate, key) = authority.issue(&params);
        let root = authority.root.as_bytes();
        let error =
            ClusterKey::certified(certificate.as_bytes(), key.as_bytes(), root, &[]).unwrap_err();
        assert_eq!(error.what, "certificate", "{error}");
        assert!(error.to_string().contains("names nobody"), "{error}");
    }
}

#[test]
fn what_does_not_belong_together_is_said_by_its_key_and_shows_no_secret() {
    let authority = Authority::new("one");
    let (certificate, key) = authority.issue(&dns());
    let (_, other) = authority.issue(&dns());
    let root = authority.root.as_str();
    // (certificate, key, roots, which is wrong, why)
    let (no_key, none) = ("no private key is in it", "no certificate is in it");
    let cases = [
        ("", key.as_str(), root, "certificate", none),
        (&certificate, "", root, "key", no_key),
        (
            &certificate,
            &other,
            root,
            "key",
            "not that of security/certificate",
        ),
        (&certificate, &certificate, root, "key", no_key),
        (&certificate, &key, "", "roots", none),
        (&certificate, &key, &key, "roots", none),
    ];
    for (certificate, key, roots, what, why) in cases {
        let made = ClusterKey::certified(
            certificate.as_bytes(),
            key.as_bytes(),
            roots.as_bytes(),
            &[],
        );
        let error = made.unwrap_err();
        assert_eq!(error.what, what, "{error}");
        assert!(error.to_string().contains(why), "{error}");
        let line = key.lines().nth(1).unwrap_or("-----");
        assert!(!format!("{error} {error:?}").contains(line), "{error}");
    }
}

#[test]
fn certificates_and_a_cluster_key_do_not_meet_and_both_sides_say_what_each_has() {
    let authority = Authority::new("one");
    let certified = authority.member(&dns(), &authority.root);
    let key = key();
    // (the initiator, the target, what the initiator says, what the target says)
    let cases = [
        (
            &certified,
            &key,
            "it does not go by certificates (security/certificate) as this engine does, but perhaps by a cluster key \
             (security/key_file): both need the same of the two",
            "it goes by certificates (security/certificate) and this engine by a cluster key (security/key_file): both \
             need the same of the two",
        ),
        (
            &key,
            &certified,
            "it does not go by a cluster key (security/key_file) as this engine does, but perhaps by certificates \
             (security/certificate): both need the same of the two",
            "it goes by a cluster key (security/key_file) and this engine by certificates (security/certificate): both \
             need the same of the two",
        ),
    ];
    for (ours, theirs, says, is_told) in cases {
        let (mut initiator, mut target) = pair(Some(ours), Some(theirs));
        let (here, there) = meet(&mut initiator, &mut target, 1 << 20);
        assert!(!there.contains(&Event::Hello(hello())), "{there:?}");
        assert_eq!(ending(&here), says);
        assert_eq!(ending(&there), is_told);
    }
}

#[test]
fn when_a_certificate_ends_is_known_whoever_has_signed_it() {
    let (authority, other) = (Authority::new("one"), Authority::new("other"));
    let mut params = dns();
    params.not_after = date_time_ymd(2031, 2, 3);
    for roots in [&authority.root, &other.root] {
        // 2031-02-03, 00:00.
        assert_eq!(
            authority.member(&params, roots).ends_at(),
            Some(1_927_843_200)
        );
    }
    params.not_after = date_time_ymd(1999, 1, 1);
    let ended = authority.member(&params, &authority.root).ends_at();
    assert_eq!(ended, Some(915_148_800));
    assert_eq!(key().ends_at(), None);
}

/// Somebody under another root who shows so many certificates more, each with its own key: all of one name, or each of its own.
fn with_more(count: usize, are_alike: bool, roots: &str) -> Arc<ClusterKey> {
    let authority = Authority::new("x");
    let der = |params: &CertificateParams| {
        let (pem, key) = authority.issue(params);
        (CertificateDer::from_pem_slice(pem.as_bytes()).unwrap(), key)
    };
    let (first, key) = der(&dns());
    let more = (0..count).map(|number| {
        let name = match are_alike {
            true => "x".into(),
            false => format!("x{number}"),
        };
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        der(&params).0
    });
    let chain = std::iter::once(first).chain(more).collect();
    let shown = ClusterKey::certified_by(chain, key.as_bytes(), roots.as_bytes(), &[]);
    Arc::new(shown.unwrap())
}

#[test]
fn no_stranger_has_ways_to_a_root_looked_for_without_end() {
    let authority = Authority::new("one");
    let good = authority.member(&dns(), &authority.root);
    // (certificates beside the first, whether all have one name, what is said)
    for (count, are_alike, says) in [
        (0, false, "under none of security/roots"),
        (4, false, "under none of security/roots"),
        (5, false, "5 certificates beside its first; 4 are the limit"),
        (2, true, "two certificates of one name"),
        (
            20,
            true,
            "20 certificates beside its first; 4 are the limit",
        ),
    ] {
        let wrong = with_more(count, are_alike, &authority.root);
        let (mut initiator, mut target) = pair(Some(&wrong), Some(&good));
        let (_, there) = meet(&mut initiator, &mut target, 1 << 14);
        assert!(ending(&there).contains(says), "{count}: {there:?}");
        // As a target too: who dials it has it on the thread that all wait for.
        let (mut initiator, mut target) = pair(Some(&good), Some(&wrong));
        let (here, _) = meet(&mut initiator, &mut target, 1 << 14);
        assert!(ending(&here).contains(says), "{count}: {here:?}");
    }
}

#[test]
fn what_a_stranger_shows_is_said_in_one_short_line() {
    let (authority, other) = (Authority::new("one"), Authority::new("other"));
    let good = authority.member(&dns(), &authority.root);
    let mut params = dns();
    let purpose = |number| rcgen::ExtendedKeyUsagePurpose::Other(vec![1, 2, number]);
    params.extended_key_usages = (0..1500).map(purpose).collect();
    let (mut initiator, mut target) =
        pair(Some(&other.member(&params, &authority.root)), Some(&good));
    let (_, there) = meet(&mut initiator, &mut target, 1 << 14);
    let text = ending(&there);
    assert!(
        !text.is_empty() && text.len() < 600,
        "{} bytes: {text}",
        text.len()
    );
}

#[test]
fn only_who_is_among_the_targets_is_spoken_to_and_anybody_may_ask() {
    let authority = Authority::new("one");
    let member = |params: &CertificateParams, targets: &[&str]| {
        let (certificate, key) = authority.issue(params);
        let targets: Vec<_> = targets.iter().map(|name| (*name).to_owned()).collect();
        let (certificate, root) = (certificate.as_bytes(), authority.root.as_bytes());
        let made = ClusterKey::certified(certificate, key.as_bytes(), root, &targets);
        Arc::new(made.unwrap())
    };
    let beta = member(&spiffe(&["spiffe://example/beta"]), &[]);
    // (the initiator's targets, whether it speaks)
    for (targets, speaks) in [
        (&[][..], true),
        (&["spiffe://example/beta"], true),
        (&["spiffe://other/*", "spiffe://example/*"], true),
        (&["spiffe://example/gamma"], false),
        (&["spiffe://example/bet"], false),
    ] {
        let alpha = member(&dns(), targets);
        let (mut initiator, mut target) = pair(Some(&alpha), Some(&beta));
        let (here, there) = meet(&mut initiator, &mut target, 1 << 14);
        assert_eq!(
            there.contains(&Event::Hello(hello())),
            speaks,
            "{targets:?}: {there:?}"
        );
        let says = "spiffe://example/beta";
        let ending = ending(&here);
        assert_eq!(
            ending.contains(says) && ending.contains("security/targets"),
            !speaks,
            "{targets:?}: {ending}"
        );
        // They are no rule for who asks.
        let (mut initiator, mut target) = pair(Some(&beta), Some(&alpha));
        let (_, there) = meet(&mut initiator, &mut target, 1 << 14);
        assert!(
            there.contains(&Event::Hello(hello())),
            "{targets:?}: {there:?}"
        );
    }
}
