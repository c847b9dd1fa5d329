//! Trust domains: who is told of which segments, and what a key that got around opens.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use polyrail::{
    Access, Caller, Calls, Config, DomainConfig, Engine, FileTerms, Hooks, Op, OpenError,
    RegisterError, Request, SecurityConfig, Status,
};

use crate::fixture::{MIB, PATIENCE, address};

/// A target on two rails, of which 127.0.0.5 is in domain red and 127.0.0.6 in domain blue.
fn target(shm: bool) -> Engine {
    target_with(shm, Hooks::default())
}

fn target_with(shm: bool, hooks: Hooks) -> Engine {
    let domain = |prefix: &str| DomainConfig {
        peers: vec![prefix.parse().unwrap()],
        ..DomainConfig::default()
    };
    let domains = [
        ("red".to_owned(), domain("127.0.0.5/32")),
        ("blue".to_owned(), domain("127.0.0.6/32")),
    ];
    let config = Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        rails: vec![[127, 0, 0, 1].into()],
        workers: 1,
        security: SecurityConfig {
            domains: BTreeMap::from(domains),
            ..SecurityConfig::default()
        },
        ..Config::named("target")
    };
    Engine::with_hooks(without(config, shm), hooks).unwrap()
}

/// Bytes go over TCP only, or over shared memory.
fn without(config: Config, shm: bool) -> Config {
    config.without(if shm { "tcp" } else { "shm" })
}

fn initiator(last: u8, shm: bool) -> Engine {
    let config = Config {
        rails: vec![[127, 0, 0, last].into()],
        workers: 1,
        ..Config::named("initiator")
    };
    Engine::new(without(config, shm)).unwrap()
}

#[test]
fn peers_are_told_of_segments_of_their_own_domain_and_move_bytes_there() {
    for shm in [false, true] {
        let target = target(shm);
        let allocate = |name: &str, access| match name {
            "common" => target.allocate(name, MIB, access),
            name => target.domain(name).unwrap().allocate(name, MIB, access),
        };
        let names = ["common", "red", "blue"];
        let own = names.map(|name| allocate(name, Access::RemoteReadWrite).unwrap());
        for (last, domain) in [(4, "common"), (5, "red"), (6, "blue")] {
            let initiator = initiator(last, shm);
            let local = initiator.allocate("here", MIB, Access::Local).unwrap();
            let region = initiator.region(local).unwrap();
            region.store(&[last; MIB as usize], 0).unwrap();
            for (name, own) in names.into_iter().zip(own) {
                let opened = initiator.open_segment(&address(&target, name));
                if name != domain {
                    let missing = matches!(opened, Err(OpenError::NoSuchSegment { .. }));
                    assert!(missing, "{domain} {name}: {opened:?}");
                    continue;
                }
                let remote = opened.unwrap();
                let request = |op| Request {
                    op,
                    local,
                    local_offset: 0,
                    remote,
                    remote_offset: 0,
                    length: MIB,
                };
                for op in [Op::Write, Op::Read] {
                    let batch = initiator.submit(&[request(op)]).unwrap();
                    let status = batch.wait(PATIENCE).unwrap().status;
                    assert_eq!(status, Status::Completed, "{domain} {op:?}");
                }
                let mut seen = vec![0; MIB as usize];
                target.region(own).unwrap().load(0, &mut seen).unwrap();
                assert!(seen.iter().all(|byte| *byte == last), "{domain}");
            }
            initiator.shutdown();
        }
    }
}

#[test]
fn files_are_for_the_common_domain() {
    let target = target(false);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[7; 8192]).unwrap();
    let terms = FileTerms::default();
    let opened = target.open_file(file.path(), &terms).unwrap();
    let offered = target.offer_file(opened, "file", Access::RemoteRead);
    offered.unwrap();
    let open = |last| {
        let initiator = initiator(last, false);
        initiator.open_segment(&address(&target, "file")).map(drop)
    };
    assert!(open(4).is_ok());
    let red = open(5);
    assert!(
        matches!(red, Err(OpenError::NoSuchSegment { .. })),
        "{red:?}"
    );
}

/// Says who calls, and what he may do with the segment that he names.
struct Who;

impl Calls for Who {
    fn call(
        &self,
        engine: &Engine,
        caller: &Caller,
        _: u16,
        name: &[u8],
    ) -> Result<Vec<u8>, String> {
        let access = engine.access_of(caller, std::str::from_utf8(name).unwrap());
        let (ip, _) = caller.address.rsplit_once(':').unwrap();
        let domain = caller.domain.as_deref();
        let who = (caller.peer.as_str(), caller.member.as_deref(), ip, domain);
        Ok(format!("{who:?} {access:?}").into_bytes())
    }
}

#[test]
fn a_program_is_told_who_calls_and_what_that_peer_may_open() {
    let hooks = Hooks {
        calls: Some(Arc::new(Who)),
        ..Hooks::default()
    };
    let target = target_with(false, hooks);
    target.allocate("common", MIB, Access::RemoteRead).unwrap();
    target.allocate("local", MIB, Access::Local).unwrap();
    let red = target.domain("red").unwrap();
    red.allocate("red", MIB, Access::RemoteReadWrite).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[7; 8192]).unwrap();
    let opened = target.open_file(file.path(), &FileTerms::default());
    let offered = target.offer_file(opened.unwrap(), "file", Access::RemoteReadWrite);
    offered.unwrap();
    for (last, own, domain, other) in [
        (4, "common", None, "red"),
        (5, "red", Some("red"), "common"),
    ] {
        let initiator = initiator(last, false);
        let remote = initiator.open_segment(&address(&target, own)).unwrap();
        let may = |name: &str| {
            let said = initiator.call(remote, 0, name.as_bytes(), PATIENCE);
            let said = String::from_utf8(said.unwrap()).unwrap();
            let ip = format!("127.0.0.{last}");
            let who = format!("{:?} ", ("initiator", None::<&str>, ip.as_str(), domain));
            said.strip_prefix(&who).expect(&said).to_owned()
        };
        let of_common = |access: &str| match domain {
            None => format!("Some({access})"),
            Some(_) => "None".to_owned(),
        };
        assert_eq!(may("common"), of_common("RemoteRead"));
        assert_eq!(may("file"), of_common("RemoteReadWrite"));
        assert_eq!(may(other), "None");
        let own = may("red") == "Some(RemoteReadWrite)";
        assert_eq!(own, domain.is_some());
        for name in ["local", "", "\u{1}scratch", "\u{1}slots-in"] {
            assert_eq!(may(name), "None", "{name:?}");
        }
    }
}

#[test]
fn a_domain_that_nobody_has_configured_is_named_with_those_that_are() {
    let error = target(false).domain("green").unwrap_err();
    assert!(matches!(error, RegisterError::NoDomain { .. }));
    let text = error.to_string();
    assert!(
        text.contains("\"green\"") && text.contains("blue, red"),
        "{text}"
    );
}
