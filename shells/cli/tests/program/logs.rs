//! What goes to the log: as JSON, and what `info` says.

use std::io::Read;

use polyrail::{Access, Config, Engine, Op, Request, Status};
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{BOUND, Target, polyrail, run};

/// The lines of a log, each of which is one object with what is always there.
fn lines(text: &str) -> Vec<Value> {
    let parsed = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        for field in ["time", "level", "target", "message"] {
            assert!(line[field].is_string(), "no {field} in {line}");
        }
        let time = line["time"].as_str().unwrap_or("");
        assert!(
            time.ends_with('Z') && time.len() == "2026-01-01T00:00:00.000Z".len(),
            "{line}"
        );
        line
    });
    parsed.collect()
}

#[track_caller]
fn only<'a>(lines: &'a [Value], event: &str) -> &'a Value {
    let found: Vec<_> = lines.iter().filter(|line| line["event"] == event).collect();
    assert_eq!(found.len(), 1, "{event} in {lines:?}");
    found[0]
}

#[test]
fn a_log_in_json_says_who_came_what_was_moved_and_how_it_ended() {
    const BYTES: u64 = 3 << 20;
    let (mut log, writer) = std::io::pipe().expect("a pipe");
    let child = polyrail("serve --memory 4MiB --name node-7 --log-format json")
        .env("POLYRAIL_LOG_LEVEL", "info")
        .stderr(writer)
        .spawn()
        .expect("the program starts");
    let target = Target::of(child);
    let engine = Engine::new(Config::named("mo\"ver")).expect("an engine starts");
    let local = engine
        .allocate("here", BYTES, Access::Local)
        .expect("memory");
    let remote = engine.open_segment(&format!("{}/mem", target.address()));
    let request = Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote: remote.expect("it answers"),
        remote_offset: 0,
        length: BYTES,
    };
    let batch = engine.submit(&[request]).expect("there is room");
    assert_eq!(
        batch.wait(BOUND).expect("it ends").status,
        Status::Completed
    );
    engine.shutdown();
    let address = target.address().to_owned();
    target.end(Signal::TERM).expect(0);
    let mut text = String::new();
    log.read_to_string(&mut text).expect("a pipe can be read");
    let lines = lines(&text);

    let listening = only(&lines, "listening");
    assert_eq!(
        (&listening["address"], &listening["name"]),
        (&address.into(), &"node-7".into())
    );
    assert!(
        listening["security"]
            .as_str()
            .is_some_and(|text| text.contains("key=none"))
    );
    let began = only(&lines, "session_began");
    assert!(
        began["peer"]
            .as_str()
            .is_some_and(|peer| peer.contains("mo")),
        "{began}"
    );
    assert!(
        began["address"]
            .as_str()
            .is_some_and(|at| at.starts_with("127.0.0.1:")),
        "{began}"
    );
    let ended = only(&lines, "session_ended");
    assert_eq!(
        (&ended["peer"], &ended["address"]),
        (&began["peer"], &began["address"])
    );
    assert_eq!(ended["bytes"], BYTES, "{ended}");
    assert_eq!(ended["why"], "it said goodbye");
    assert!(
        ended["seconds"]
            .as_f64()
            .is_some_and(|seconds| seconds > 0.0),
        "{ended}"
    );
    assert_eq!(
        (&ended["level"], &only(&lines, "ending")["level"]),
        (&"info".into(), &"info".into())
    );
    // That is all there is to say, whatever was moved.
    let place = |event: &str| lines.iter().position(|line| line["event"] == event);
    let between = place("session_ended").zip(place("session_began"));
    let between = between.map(|(ended, began)| ended - began);
    assert_eq!(between, Some(1), "{lines:?}");
}

#[test]
fn a_log_level_that_there_is_not_is_named_and_rust_log_wins() {
    polyrail("serve --memory 1MiB")
        .env("POLYRAIL_LOG_LEVEL", "loud")
        .output()
        .map(|out| {
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            assert_eq!(out.status.code(), Some(2), "{text}");
            assert!(
                text.contains("log_level") && text.contains("loud"),
                "{text}"
            );
        })
        .expect("the program starts");
    let (mut log, writer) = std::io::pipe().expect("a pipe");
    let child = polyrail("serve --memory 1MiB")
        .env("POLYRAIL_LOG_LEVEL", "trace")
        .env("RUST_LOG", "error")
        .stderr(writer)
        .spawn()
        .expect("the program starts");
    Target::of(child).end(Signal::TERM).expect(0);
    let mut text = String::new();
    log.read_to_string(&mut text).expect("a pipe can be read");
    assert_eq!(text, "");
}

#[test]
fn a_failure_is_one_line_where_people_call() {
    for format in ["text", "json"] {
        let ended = run(&format!(
            "cp 127.0.0.1:1/mem /tmp/nothing --log-format {format}"
        ))
        .expect(3);
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
        assert!(
            ended.stderr.starts_with("error: cannot open mem"),
            "{ended:?}"
        );
    }
}
