//! Every way in which an operation can be refused, in words that say what, where, and what would be right.

use std::fmt::Display;
use std::net::TcpListener;
use std::time::Duration;

use polyrail::{
    Access, CallError, Config, Engine, EngineError, OpenError, RegisterError, Request, SubmitError,
};

use crate::fixture::*;

/// Asserts that an error's text has all of `parts`.
fn says(name: &str, error: &dyn Display, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{name}: no \"{part}\" in: {text}");
    }
}

#[test]
fn requests_that_cannot_be_taken() {
    use SubmitError::*;
    let pair = Pair::new(MIB);
    let allow = Access::RemoteRead;
    pair.target.allocate("fixed", MIB, allow).unwrap();
    let fixed = pair.initiator.open_segment(&address(&pair.target, "fixed"));
    let fixed = fixed.unwrap();
    let gone = pair.initiator.allocate("gone", MIB, Access::Local).unwrap();
    pair.initiator.unregister(gone).unwrap();
    let good = pair.write(0, 10);
    let (local, remote) = (pair.local, pair.remote);
    let past = |segment, offset, length| OutOfRange {
        index: 1,
        segment,
        offset,
        length,
        segment_bytes: MIB,
    };
    let stale = |segment| Stale { index: 1, segment };
    let id = |segment| format!("{segment:?}");
    // (name, the second request of the batch, error, what its text says)
    let cases: [(&str, Request, SubmitError, Vec<String>); 11] = [
        (
            "unregistered",
            Request {
                local: gone,
                ..good
            },
            stale(gone),
            vec![id(gone)],
        ),
        (
            "remote as local",
            Request {
                local: remote,
                ..good
            },
            stale(remote),
            vec![id(remote)],
        ),
        (
            "local as remote",
            Request {
                remote: local,
                ..good
            },
            stale(local),
            vec![id(local)],
        ),
        (
            "no bytes",
            Request { length: 0, ..good },
            Empty { index: 1 },
            vec!["length of 0".into()],
        ),
        (
            "past the end here",
            Request {
                local_offset: MIB - 9,
                ..good
            },
            past(local, MIB - 9, 10),
            vec![id(local), "1048576".into(), "1048567".into()],
        ),
        (
            "past the end there",
            Request {
                remote_offset: MIB,
                ..good
            },
            past(remote, MIB, 10),
            vec![id(remote), "1048576".into()],
        ),
        (
            "overflow here",
            Request {
                local_offset: u64::MAX,
                ..good
            },
            past(local, u64::MAX, 10),
            vec![u64::MAX.to_string()],
        ),
        (
            "overflow there",
            Request {
                remote_offset: u64::MAX - 4,
                ..good
            },
            past(remote, u64::MAX - 4, 10),
            vec![],
        ),
        (
            "overflow by length",
            Request {
                length: u64::MAX,
                local_offset: 1,
                ..good
            },
            past(local, 1, u64::MAX),
            vec![],
        ),
        (
            "longer than the segment",
            Request {
                length: MIB + 1,
                ..good
            },
            past(local, 0, MIB + 1),
            vec!["1048577".into()],
        ),
        (
            "written but only readable",
            Request {
                remote: fixed,
                ..good
            },
            Forbidden {
                index: 1,
                segment: fixed,
            },
            vec![id(fixed), "owner".into()],
        ),
    ];
    for (name, bad, expected, parts) in cases {
        let error = pair.initiator.submit(&[good, bad]).unwrap_err();
        assert_eq!(error, expected, "{name}");
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        says(name, &error, &[&["request 1"], &parts[..]].concat());
    }
    for requests in [0, 1_000_001] {
        let batch = vec![good; requests];
        let limit = 1_000_000;
        let error = pair.initiator.submit(&batch).unwrap_err();
        assert_eq!(error, BatchSize { requests, limit });
        says(
            "batch size",
            &error,
            &[&requests.to_string(), "1 to 1000000"],
        );
    }
    // None of them left anything behind.
    let read = Request {
        op: polyrail::Op::Read,
        remote: fixed,
        ..good
    };
    completed(&pair.submit(read));
    pair.initiator.unregister(local).unwrap();
    pair.initiator.shutdown();
    assert_eq!(pair.initiator.submit(&[good]).unwrap_err(), ShutDown);
}

#[test]
fn segments_that_cannot_be() {
    use RegisterError::*;
    let engine = Engine::new(Config::named("engine")).unwrap();
    let id = engine.allocate("mem", 1, Access::Local).unwrap();
    let long = "n".repeat(300);
    let allocate = |name: &str, bytes| engine.allocate(name, bytes, Access::Local).unwrap_err();
    let error = allocate("mem", 1);
    assert!(matches!(&error, NameTaken { name } if name == "mem"));
    says("taken", &error, &["\"mem\"", "exists"]);
    for bad in ["", &long, "/a", "tab\there", "\u{1}scratch"] {
        let error = allocate(bad, 1);
        assert!(matches!(&error, BadName { name } if name == bad), "{error}");
        let shown = bad.escape_debug().to_string();
        says(
            "bad name",
            &error,
            &[&shown, "1 to 255 bytes", "'/'", "control"],
        );
    }
    for bytes in [0, u64::MAX] {
        let error = allocate("size", bytes);
        assert!(matches!(error, BadSize { bytes: of } if of == bytes));
        says("bad size", &error, &[&bytes.to_string(), "1 to"]);
    }
    let error = allocate("size", 1 << 62);
    assert!(
        matches!(error, System { bytes, .. } if bytes == 1 << 62),
        "{error}"
    );
    says("too much", &error, &["4611686018427387904"]);
    engine.unregister(id).unwrap();
    let error = engine.unregister(id).unwrap_err();
    assert!(matches!(error, Stale { segment } if segment == id));
    says("unregistered twice", &error, &[&format!("{id:?}")]);
    assert!(engine.allocate(&"n".repeat(255), 1, Access::Local).is_ok());
    assert_eq!(
        (engine.local_segment("mem"), engine.region(id).is_none()),
        (None, true)
    );
}

#[test]
fn segments_that_cannot_be_opened() {
    let pair = Pair::new(MIB);
    pair.target.allocate("own", MIB, Access::Local).unwrap();
    let at = pair.target.listening().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let open = |text: &str| pair.initiator.open_segment(text).unwrap_err();
    let no_port = [
        "127.0.0.1/mem",
        "127.0.0.1:/mem",
        "127.0.0.1:70000/mem",
        "127.0.0.1:-1/mem",
    ];
    for text in ["", "/", "mem", "127.0.0.1:80", "127.0.0.1:80/", ":80/mem"]
        .iter()
        .chain(&no_port)
    {
        let error = open(text);
        assert!(
            matches!(&error, OpenError::BadAddress { text: of } if of == text),
            "{error}"
        );
        says(text, &error, &[text, "HOST:PORT/SEGMENT"]);
        assert!(error.is_usage());
    }
    for name in ["none", "own", "\u{1}scratch2", "a/b"] {
        let error = open(&format!("{at}/{name}"));
        assert!(matches!(error, OpenError::NoSuchSegment { .. }), "{error}");
        says(name, &error, &[&at.to_string(), name, "no segment"]);
    }
    let error = open(&format!("{at}/{}", "n".repeat(300)));
    says("long name", &error, &["300", "255"]);
    let error = open("no such host:80/mem");
    assert!(matches!(error, OpenError::Unresolved { .. }));
    says("host", &error, &["no such host:80"]);
    let error = open(&format!("127.0.0.1:{port}/mem"));
    assert!(matches!(error, OpenError::Connect(_)), "{error}");
    says(
        "closed port",
        &error,
        &[&format!("127.0.0.1:{port}"), "refused"],
    );

    let three = Config {
        rails: rails()[..3].to_vec(),
        ..Config::named("three")
    };
    let three = Engine::new(three).unwrap();
    for _ in 0..2 {
        let error = three.open_segment(&format!("{at}/mem")).unwrap_err();
        assert!(
            matches!(error, OpenError::Rails { .. }) && error.is_usage(),
            "{error}"
        );
        says("rails", &error, &[&at.to_string(), "3", "4"]);
    }
    assert!(three.rails().is_empty(), "nothing is left of what failed");
    three.shutdown();
    let error = three.open_segment(&format!("{at}/mem")).unwrap_err();
    assert!(matches!(error, OpenError::ShutDown), "{error}");
}

#[test]
fn engines_that_cannot_start() {
    let engine = target("first");
    let taken = engine.listening().unwrap();
    let base = Config::named("second");
    let foreign = "192.0.2.7".parse().unwrap();
    type Check = fn(&EngineError) -> bool;
    // (name, config, variant, usage, what its text says)
    let cases: [(&str, Config, Check, bool, Vec<String>); 8] = [
        (
            "port in use",
            Config {
                listen: Some(taken),
                ..base.clone()
            },
            |error| matches!(error, EngineError::Listen { .. }),
            false,
            vec![taken.to_string(), "in use".into()],
        ),
        (
            "everybody",
            Config {
                listen: Some("0.0.0.0:0".parse().unwrap()),
                ..base.clone()
            },
            |error| matches!(error, EngineError::Insecure { .. }),
            true,
            vec!["0.0.0.0:0".into(), "--insecure".into()],
        ),
        (
            "foreign rail",
            Config {
                rails: vec![foreign],
                ..base.clone()
            },
            |error| matches!(error, EngineError::Rail { .. }),
            false,
            vec!["192.0.2.7".into(), "this machine".into()],
        ),
        (
            "no name",
            Config::named(""),
            |error| matches!(error, EngineError::Config { .. }),
            true,
            vec!["0 bytes".into(), "1 to 255".into()],
        ),
        (
            "long name",
            Config::named("n".repeat(300)),
            |error| matches!(error, EngineError::Config { .. }),
            true,
            vec!["300 bytes".into(), "1 to 255".into()],
        ),
        (
            "workers",
            Config {
                workers: 65,
                ..base.clone()
            },
            |error| matches!(error, EngineError::Config { .. }),
            true,
            vec!["65 workers".into(), "1 to 64".into()],
        ),
        (
            "rails",
            Config {
                rails: vec!["127.0.0.1".parse().unwrap(); 17],
                ..base.clone()
            },
            |error| matches!(error, EngineError::Config { .. }),
            true,
            vec!["17 rails".into(), "16".into()],
        ),
        (
            "a rail twice",
            Config {
                rails: vec!["127.0.0.1".parse().unwrap(); 2],
                ..base
            },
            |error| matches!(error, EngineError::Config { .. }),
            true,
            vec!["127.0.0.1".into(), "twice".into()],
        ),
    ];
    for (name, config, check, usage, parts) in cases {
        let error = Engine::new(config).err().expect(name);
        assert!(check(&error), "{name}: {error:?}");
        assert_eq!(error.is_usage(), usage, "{name}");
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        says(name, &error, &parts);
    }
}

#[test]
fn calls_that_nobody_takes() {
    let pair = Pair::new(MIB);
    let call = |id| pair.initiator.call(id, 1, b"", Duration::from_secs(5));
    let error = call(pair.local).unwrap_err();
    assert!(matches!(error, CallError::Stale { .. }));
    says("local", &error, &[&format!("{:?}", pair.local)]);
    let error = call(pair.remote).unwrap_err();
    assert!(matches!(error, CallError::Ask(_)));
    says("no calls", &error, &["\"target\"", "takes no calls"]);
}
