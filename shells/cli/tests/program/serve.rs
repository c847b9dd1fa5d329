//! `serve`: its first line, its end, and strangers at its port.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Target, finish, polyrail, run};

#[test]
fn the_first_line_says_where_and_who() {
    let target = Target::start("--name node-7 --memory 1MiB");
    assert!(
        target.line.starts_with("listening 127.0.0.1:"),
        "{target:?}"
    );
    assert!(target.line.ends_with(" name=node-7\n"), "{target:?}");
}

#[test]
fn signals_end_it_well() {
    for signal in [
        Signal::TERM,
        Signal::INT,
        Signal::QUIT,
        Signal::USR2,
        Signal::ALARM,
    ] {
        Target::start("--memory 1MiB").end(signal).expect(0);
    }
}

#[test]
fn memory_can_be_touched_before_anybody_is_let_in() {
    let resident = |flags: &str| {
        let target = Target::start(&format!("--memory 64MiB {flags}"));
        let path = format!("/proc/{}/status", target.pid());
        let status = std::fs::read_to_string(path).expect("it runs");
        // What may be shared with peers is counted apart.
        let lines = status.lines().filter(|line| line.starts_with("VmRSS:"));
        let kib = lines.map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        kib.flatten().sum::<u64>() / 1024
    };
    let (untouched, touched) = (resident(""), resident("--prefault"));
    assert!(
        touched >= untouched + 60,
        "{touched} MiB, and {untouched} without"
    );
}

#[test]
fn a_target_says_how_it_stands_when_a_signal_asks() {
    let (mut log, writer) = std::io::pipe().expect("a pipe");
    let target = Target::start_with("--memory 1MiB", writer.into(), "warn");
    target.signal(Signal::USR1);
    let mut text = String::new();
    let mut bytes = [0; 4096];
    while !text.contains("worker 0 holds 0 of") {
        let count = log.read(&mut bytes).expect("a pipe can be read");
        assert!(count > 0, "it ended without an answer: {text}");
        text += &String::from_utf8_lossy(&bytes[..count]);
    }
    target.end(Signal::TERM).expect(0);
}

#[test]
fn a_port_in_use_is_the_environments_fault_and_named() {
    let target = Target::start("--memory 1MiB");
    let address = target.address();
    run(&format!("serve --listen {address}"))
        .expect(3)
        .names(&[address]);
}

#[test]
fn memory_that_cannot_be_had_is_the_environments_fault_and_named() {
    run("serve --memory 1000000T")
        .expect(3)
        .names(&["--memory", "1000000TiB"]);
}

#[test]
fn memory_that_is_to_be_there_and_is_not_ends_nothing_by_a_signal() {
    // No address space has so much, so without a look at what is available the kernel would say so.
    run("serve --memory 1000TiB --prefault").expect(3).names(&[
        "--prefault",
        "1000TiB",
        "MemAvailable",
    ]);
}

#[test]
fn a_reader_that_left_is_no_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = polyrail("serve --memory 1MiB")
        .stdout(writer)
        .spawn()
        .unwrap();
    finish(child, "serve").expect(3).names(&["standard output"]);
}

/// The first bytes of a connection: magic, version, purpose, nothing, feature bits.
fn greeting(version: u16, purpose: u8) -> Vec<u8> {
    let [low, high] = version.to_le_bytes();
    let mut bytes = b"polyrail".to_vec();
    bytes.extend([low, high, purpose, 0]);
    bytes.extend([0; 8]);
    bytes
}

/// A cheap sequence of bytes without meaning.
fn noise(seed: u32) -> Vec<u8> {
    let step = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    let states = std::iter::successors(Some(seed), step);
    states
        .take(10_000)
        .map(|state| (state >> 24) as u8)
        .collect()
}

/// Says something, reads what comes back for a moment, and goes away.
fn say(address: &str, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).expect("it still listens");
    stream
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    // The other end may hang up while we speak; that is its right.
    let _ = stream.write_all(bytes);
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.shutdown(Shutdown::Both);
}

#[test]
fn strangers_at_the_port_harm_nobody() {
    let target = Target::start("--memory 16MiB");
    let address = target.address();
    let with = |tail: &[u8]| [greeting(1, 1), tail.to_vec()].concat();
    let mut talks = vec![
        // Nothing at all, then less and less of what should be there.
        vec![],
        greeting(1, 1),
        greeting(1, 1)[..7].to_vec(),
        greeting(1, 1)[..19].to_vec(),
        // Another version of the protocol, and purposes that do not exist.
        greeting(999, 1),
        greeting(0, 1),
        greeting(1, 0),
        greeting(1, 255),
        // A frame of four gigabytes, an empty one, one that ends early, one that makes no sense.
        with(&[0xff; 4]),
        with(&[0; 4]),
        with(&[100, 0, 0, 0, 1, 2, 3]),
        with(&[8, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        // A lane of a session that does not exist.
        [greeting(1, 2), vec![60, 0, 0, 0], vec![7; 60]].concat(),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
    ];
    for seed in 0..8 {
        talks.push(noise(seed));
        talks.push(with(&noise(seed)));
        talks.push([greeting(1, 2), noise(seed)].concat());
    }
    for talk in &talks {
        say(address, talk);
    }
    let line =
        format!("bench --target {address} --op mix --buffer 8MiB --seconds 0.5 --verify --json");
    let ended = run(&line).expect(0);
    assert!(ended.stdout.contains("\"verified\":true"), "{ended:?}");
    target.end(Signal::TERM).expect(0);
}
