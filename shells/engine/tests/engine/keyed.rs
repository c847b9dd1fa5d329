//! Engines with a cluster key: lanes of all transports prove themselves, and who does not is counted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use polyrail::{
    Access, Config, Engine, FileTerms, Op, OpenError, Payload, Request, SecurityConfig,
};

use crate::fixture::{MIB, PATIENCE, address, bytes, completed, poison};

/// A folder with a key, and an engine that has it. Bytes go over TCP only, or over shared memory.
fn member(folder: &std::path::Path, name: &str, listens: bool, shm: bool) -> Engine {
    let key = folder.join("cluster.key");
    if !key.exists() {
        polyrail::keygen(&key).unwrap();
    }
    let config = Config {
        listen: listens.then(|| "127.0.0.1:0".parse().unwrap()),
        workers: 1,
        security: SecurityConfig {
            key_file: key.to_str().unwrap().into(),
            ..SecurityConfig::default()
        },
        ..Config::named(name)
    };
    Engine::new(config.without(if shm { "tcp" } else { "shm" })).unwrap()
}

/// Asks for a lane in clear, as an engine without a key does; all that is said to that.
fn asks_in_clear(at: SocketAddr) -> Vec<u8> {
    let mut stream = TcpStream::connect(at).unwrap();
    let greeting = b"polyrail\x01\0\x02\0\x3f\0\0\0\0\0\0\0";
    let join = [&[19, 0, 0, 0, 10][..], &[7; 16], &[1, 1]].concat();
    stream.write_all(&[&greeting[..], &join].concat()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut said = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut said);
    said
}

#[test]
fn members_move_bytes_and_whoever_proves_nothing_is_counted() {
    for shm in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let target = member(folder.path(), "target", true, shm);
        let owned = target
            .allocate("mem", MIB, Access::RemoteReadWrite)
            .unwrap();
        let at = target.listening().unwrap();
        let engine = member(folder.path(), "initiator", false, shm);
        let remote = engine.open_segment(&address(&target, "mem")).unwrap();
        let local = engine.allocate("local", MIB, Access::Local).unwrap();
        let (here, there) = (engine.region(local).unwrap(), target.region(owned).unwrap());
        let moves = |op, byte: u8| {
            let request = Request {
                op,
                local,
                local_offset: 0,
                remote,
                remote_offset: 0,
                length: MIB,
            };
            let (from, to) = match op {
                Op::Write => (&here, &there),
                Op::Read => (&there, &here),
            };
            poison(from, byte);
            completed(&engine.submit(&[request]).unwrap());
            assert!(bytes(to).iter().all(|moved| *moved == byte), "{shm} {op:?}");
        };
        moves(Op::Write, 7);
        for turn in 1..4 {
            let said = String::from_utf8_lossy(&asks_in_clear(at)).into_owned();
            assert!(said.contains("a lane needs a ticket"), "{said:?}");
            assert_eq!(target.stats().lanes_denied, turn);
            moves(Op::Read, 10 + turn as u8);
        }
        let page = target.metrics();
        assert!(page.contains("polyrail_lanes_denied_total 3"), "{page}");
        assert_eq!(engine.stats().lanes_denied, 0);
    }
}

#[test]
fn an_engine_that_is_to_encrypt_sends_nothing_that_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("cluster.key");
    polyrail::keygen(&key).unwrap();
    let config = |name: &str, payload, key_file: &str| Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        workers: 1,
        security: SecurityConfig {
            key_file: key_file.into(),
            payload,
            ..SecurityConfig::default()
        },
        ..Config::named(name)
    };
    let key_file = key.to_str().unwrap();
    let keyless = Engine::new(config("keyless", Payload::Encrypt, ""));
    let keyless = keyless.err().unwrap();
    let text = keyless.to_string();
    assert!(
        keyless.is_usage() && text.contains("security/key_file"),
        "{text}"
    );

    // Over TCP it depends on the kernel, and without one that can the engine does not start.
    match Engine::new(config("over tcp", Payload::Encrypt, key_file)) {
        Err(error) => {
            let text = error.to_string();
            assert!(!error.is_usage() && text.contains("modprobe tls"), "{text}");
        }
        Ok(engine) => {
            let missing = |name| {
                let transports = engine.transports().into_iter();
                transports
                    .filter(move |one| one.name == name)
                    .find_map(|one| one.missing)
            };
            assert_eq!(missing("tcp"), None);
        }
    }

    // What passes no wire goes as it is, whoever asks for encryption; its lanes prove themselves all the same.
    let pairs = [
        (Payload::Encrypt, Payload::Off),
        (Payload::Off, Payload::Encrypt),
    ];
    for (theirs, ours) in pairs {
        let target = config("target", theirs, key_file).without("tcp");
        let target = Engine::new(target).unwrap();
        let owned = target.allocate("mem", MIB, Access::RemoteReadWrite);
        let there = target.region(owned.unwrap()).unwrap();
        let engine = config("initiator", ours, key_file).without("tcp");
        let engine = Engine::new(engine).unwrap();
        let local = engine.allocate("local", MIB, Access::Local).unwrap();
        poison(&engine.region(local).unwrap(), 7);
        let remote = engine.open_segment(&address(&target, "mem")).unwrap();
        let request = Request {
            op: Op::Write,
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            length: MIB,
        };
        completed(&engine.submit(&[request]).unwrap());
        assert!(bytes(&there).iter().all(|byte| *byte == 7));
        assert_eq!(target.stats().lanes_denied, 0);
    }
}

#[test]
fn a_segment_can_be_for_peers_that_encrypt_only() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("cluster.key");
    polyrail::keygen(&key).unwrap();
    let config = |name: &str, payload, encrypted: &[&str], key_file: &str| {
        let config = Config {
            listen: Some("127.0.0.1:0".parse().unwrap()),
            workers: 1,
            security: SecurityConfig {
                key_file: key_file.into(),
                payload,
                encrypted_segments: encrypted.iter().map(|name| (*name).into()).collect(),
                ..SecurityConfig::default()
            },
            ..Config::named(name)
        };
        // A kernel without TLS can encrypt nothing over a wire; what is in this host needs none.
        config.without("tcp")
    };
    let key_file = key.to_str().unwrap();
    let keyless = Engine::new(config("keyless", Payload::Off, &["kv-*"], ""));
    let keyless = keyless.err().unwrap();
    let text = keyless.to_string();
    assert!(
        keyless.is_usage() && text.contains("security/encrypted_segments"),
        "{text}"
    );

    let target = Engine::new(config("target", Payload::Off, &["kv-*"], key_file)).unwrap();
    for name in ["kv-1", "weights"] {
        target.allocate(name, MIB, Access::RemoteReadWrite).unwrap();
    }
    // Slots that files pass through are for all.
    let path = folder.path().join("file");
    std::fs::write(&path, [1; 4096]).unwrap();
    let file = target.open_file(&path, &FileTerms::default()).unwrap();
    let offered = target.offer_file(file, "kv-file", Access::RemoteRead);
    let text = offered.unwrap_err().to_string();
    assert!(text.contains("security/encrypted_segments"), "{text}");
    target.offer_file(file, "file", Access::RemoteRead).unwrap();

    for (payload, names) in [
        (Payload::Off, &["weights"][..]),
        (Payload::Encrypt, &["weights", "kv-1"]),
    ] {
        let engine = Engine::new(config("initiator", payload, &[], key_file)).unwrap();
        let local = engine.allocate("local", MIB, Access::Local).unwrap();
        for name in ["kv-1", "weights", "kv-2"] {
            let opened = engine.open_segment(&address(&target, name));
            if !names.contains(&name) {
                let error = opened.unwrap_err();
                assert!(matches!(error, OpenError::NoSuchSegment { .. }), "{error}");
                continue;
            }
            let request = Request {
                op: Op::Write,
                local,
                local_offset: 0,
                remote: opened.unwrap(),
                remote_offset: 0,
                length: MIB,
            };
            completed(&engine.submit(&[request]).unwrap());
        }
    }
}
