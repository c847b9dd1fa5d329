//! Engines with certificates of an authority.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use polyrail::{
    Access, Config, DomainConfig, Engine, EngineError, Op, Request, SecurityConfig, SegmentId,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};

use crate::fixture::{MIB, address, bytes, completed, poison};

/// What signs certificates.
struct Authority(Issuer<'static, KeyPair>);

impl Authority {
    /// A new one, and its own certificate in a file.
    fn new(root: &Path) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        fs::write(root, params.self_signed(&key).unwrap().pem()).unwrap();
        Self(Issuer::new(params, key))
    }

    /// A certificate with this name, and its key, in files `NAME.pem` and `NAME.key`.
    fn issue(&self, folder: &Path, name: &str, year: i32) {
        let mut params = CertificateParams::new(vec![format!("{name}.example")]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        fs::write(folder.join(format!("{name}.pem")), certificate.pem()).unwrap();
        let file = folder.join(format!("{name}.key"));
        fs::write(&file, key.serialize_pem()).unwrap();
        fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
    }
}

fn security(folder: &Path, name: &str) -> SecurityConfig {
    let file = |name: String| folder.join(name).to_str().unwrap().to_owned();
    SecurityConfig {
        certificate: file(format!("{name}.pem")),
        key: file(format!("{name}.key")),
        roots: file("roots.pem".into()),
        ..SecurityConfig::default()
    }
}

fn config(folder: &Path, name: &str, listens: bool) -> Config {
    Config {
        listen: listens.then(|| "127.0.0.1:0".parse().unwrap()),
        workers: 1,
        security: security(folder, name),
        ..Config::named(name)
    }
}

/// All of a segment, from its beginning to that of memory here, or the other way.
fn whole(op: Op, local: SegmentId, remote: SegmentId) -> Request {
    Request {
        op,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length: MIB,
    }
}

#[test]
fn members_of_an_authority_move_bytes_and_take_new_certificates_while_they_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let authority = Authority::new(&folder.join("roots.pem"));
    authority.issue(folder, "target", 2031);
    authority.issue(folder, "initiator", 2032);
    for transport in ["tcp", "shm"] {
        let without = |config: Config| config.without(transport);
        let target = Engine::new(without(config(folder, "target", true))).unwrap();
        let owned = target
            .allocate("mem", MIB, Access::RemoteReadWrite)
            .unwrap();
        let moves = |byte: u8| {
            let engine = Engine::new(without(config(folder, "initiator", false)))?;
            let remote = engine.open_segment(&address(&target, "mem"));
            let remote = remote.map_err(|error| EngineError::Config {
                text: error.to_string(),
            })?;
            let local = engine.allocate("local", MIB, Access::Local).unwrap();
            poison(&engine.region(local).unwrap(), byte);
            let request = whole(Op::Write, local, remote);
            completed(&engine.submit(&[request]).unwrap());
            let there = target.region(owned).unwrap();
            assert!(bytes(&there).iter().all(|moved| *moved == byte));
            Ok::<_, EngineError>(())
        };
        moves(7).unwrap();
        // 2031-01-01, 00:00.
        let page = target.metrics();
        assert!(
            page.contains("polyrail_certificate_ends_seconds 1924992000"),
            "{page}"
        );
        // A new authority: who does not know it yet is refused, in words, until it does.
        let old = fs::read(folder.join("roots.pem")).unwrap();
        let new = Authority::new(&folder.join("roots.pem"));
        new.issue(folder, "target", 2040);
        let before = target.key();
        target
            .reload(&without(config(folder, "target", true)))
            .unwrap();
        assert_ne!(target.key(), before);
        let error = moves(8).unwrap_err().to_string();
        assert!(error.contains("security/roots"), "{error}");
        new.issue(folder, "initiator", 2041);
        moves(9).unwrap();
        // 2040-01-01, 00:00.
        let page = target.metrics();
        assert!(
            page.contains("polyrail_certificate_ends_seconds 2208988800"),
            "{page}"
        );
        // Back, for the other transport.
        fs::write(folder.join("roots.pem"), old).unwrap();
        authority.issue(folder, "target", 2031);
        authority.issue(folder, "initiator", 2032);
    }
}

/// Addresses are the same, and so is what engines call themselves.
#[test]
fn peers_are_told_of_segments_of_the_domain_that_their_certificate_says() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let authority = Authority::new(&folder.join("roots.pem"));
    let names = ["target", "red", "blue", "other"];
    for name in names {
        authority.issue(folder, name, 2031);
    }
    for transport in ["tcp", "shm"] {
        let mut domains = config(folder, "target", true);
        for name in ["red", "blue"] {
            let domain = DomainConfig {
                names: vec![format!("{name}.*")],
                ..DomainConfig::default()
            };
            domains.security.domains.insert(name.into(), domain);
        }
        let target = Engine::new(domains.without(transport)).unwrap();
        for name in ["red", "blue"] {
            let domain = target.domain(name).unwrap();
            domain.allocate(name, MIB, Access::RemoteReadWrite).unwrap();
        }
        target
            .allocate("other", MIB, Access::RemoteReadWrite)
            .unwrap();
        for name in ["red", "blue", "other"] {
            let engine = Config {
                security: security(folder, name),
                ..config(folder, "initiator", false)
            };
            let engine = Engine::new(engine.without(transport)).unwrap();
            let local = engine.allocate("local", MIB, Access::Local).unwrap();
            for segment in ["red", "blue", "other"] {
                let opened = engine.open_segment(&address(&target, segment));
                assert_eq!(opened.is_ok(), segment == name, "{name} {segment}");
                let Ok(remote) = opened else { continue };
                let request = whole(Op::Read, local, remote);
                completed(&engine.submit(&[request]).unwrap());
            }
            let sessions = target.stats().sessions;
            let member = sessions.last().and_then(|session| session.member.clone());
            assert_eq!(member, Some(format!("{name}.example")));
        }
    }
}

#[test]
fn files_that_are_of_no_use_are_said_by_key_and_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let authority = Authority::new(&folder.join("roots.pem"));
    authority.issue(folder, "target", 2031);
    authority.issue(folder, "other", 2031);
    let good = security(folder, "target");
    let other = security(folder, "other");
    let key_file = folder.join("cluster.key");
    polyrail::keygen(&key_file).unwrap();
    let open = folder.join("open.key");
    fs::copy(&good.key, &open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o644)).unwrap();
    let open = open.to_str().unwrap().to_owned();
    let with = |change: &dyn Fn(&mut SecurityConfig)| {
        let mut security = good.clone();
        change(&mut security);
        security
    };
    // (what is configured, what is said)
    let cases: [(SecurityConfig, &[&str]); 9] = [
        (
            with(&|it| it.key.clear()),
            &["security/certificate", "security/key"],
        ),
        (
            with(&|it| it.certificate.clear()),
            &["security/certificate", "security/key"],
        ),
        (
            with(&|it| it.roots.clear()),
            &["security/certificate", "security/roots"],
        ),
        (
            with(&|it| it.key_file = key_file.to_str().unwrap().into()),
            &["security/key_file", "security/certificate"],
        ),
        (
            with(&|it| it.key = open.clone()),
            &["open.key", "0644", "chmod 600"],
        ),
        (
            with(&|it| it.key = other.key.clone()),
            &["security/key", "other.key"],
        ),
        (
            with(&|it| it.roots = "/none.pem".into()),
            &["security/roots", "/none.pem", "No such file"],
        ),
        (
            with(&|it| it.certificate = good.key.clone()),
            &["security/certificate", "no certificate"],
        ),
        (
            with(&|it| it.roots = good.key.clone()),
            &["security/roots", "target.key"],
        ),
    ];
    let secret = fs::read_to_string(&good.key).unwrap();
    let secret = secret.lines().nth(1).unwrap();
    for (security, said) in cases {
        let config = Config {
            security,
            ..config(folder, "target", true)
        };
        let error = Engine::new(config).err().unwrap();
        let text = error.to_string();
        assert!(error.is_usage(), "{text}");
        assert!(
            said.iter().all(|part| text.contains(part)),
            "{said:?}: {text}"
        );
        assert!(!format!("{text}{error:?}").contains(secret), "{text}");
    }
}
