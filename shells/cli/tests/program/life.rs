//! The life of `serve`: how it ends without anybody's requests failing, and what it takes while it runs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{
    Access, Batch, Config, Engine, Op, OpenError, Request, SegmentId, Status, SubmitError,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{BOUND, Target, polyrail, run};

const BYTES: u64 = 16 << 20;

/// An engine that moves bytes over the network, with memory of its own.
fn initiator(name: &str) -> (Engine, SegmentId) {
    let engine = Engine::new(Config::named(name).without("shm")).expect("an engine starts");
    let local = engine.allocate("here", BYTES, Access::Local);
    (engine, local.expect("memory"))
}

fn write(local: SegmentId, remote: SegmentId, length: u64) -> Request {
    Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length,
    }
}

#[track_caller]
fn completed(batch: &Batch) {
    let status = batch.wait(BOUND).expect("it ends");
    assert_eq!(status.status, Status::Completed, "{:?}", batch.report(0));
}

/// An address of this host that nobody listens at.
fn free() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}

/// The first line of an HTTP answer.
fn get(at: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(at).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer.lines().next().unwrap_or("").to_owned()
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + BOUND;
    while !is_so() {
        assert!(Instant::now() < until, "not in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_under_way_at_the_end_of_a_target_completes_and_what_comes_later_is_refused_before_it_begins()
 {
    let target = Target::start("--memory 16MiB --drain 30");
    let address = format!("{}/mem", target.address());
    let (engine, local) = initiator("under-way");
    let remote = engine.open_segment(&address).expect("it answers");
    let request = write(local, remote, BYTES);
    let moved = || -> u64 { engine.rails().iter().map(|rail| rail.bytes).sum() };
    let batches: Vec<_> = (0..4)
        .map(|_| engine.submit(&[request; 32]).expect("there is room"))
        .collect();
    until("something moves", || moved() > 0);
    target.signal(Signal::TERM);
    let mut error = None;
    until("nothing more begins", || {
        match engine.submit(&[write(local, remote, 4096)]) {
            Ok(batch) => {
                completed(&batch);
                false
            }
            Err(refused) => {
                error = Some(refused);
                true
            }
        }
    });
    assert!(
        matches!(error, Some(SubmitError::PeerLost { .. })),
        "{error:?}"
    );
    let under_way = batches
        .iter()
        .any(|batch| batch.status().status == Status::Pending);
    assert!(under_way, "it was refused while others were under way");
    // Nor is it opened anew as long as it ends.
    let opened = engine.open_segment(&address);
    assert!(
        matches!(opened, Err(OpenError::Leaving { .. })),
        "{opened:?}"
    );
    batches.iter().for_each(completed);
    assert_eq!(moved() % 4096, 0);
    target.end(Signal::CONT).expect(0);
}

/// A benchmark that has a session with a target, and is stopped.
struct Stopped(Child);

impl Stopped {
    fn with(target: &Target) -> Self {
        let line = format!(
            "bench --target {} --op write --buffer 8MiB --block 1MiB --seconds 60 --timeline 100 --json",
            target.address()
        );
        let child = polyrail(&line).spawn().expect("the program starts");
        Self(child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it is a child");
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sessions that a target has, as its metrics port says.
fn sessions(at: &str) -> usize {
    let text = run(&format!("top {at} --once --json")).expect(0).stdout;
    let stats: serde_json::Value = serde_json::from_str(&text).expect("one object");
    stats["sessions"].as_array().expect("a list").len()
}

#[test]
fn who_does_not_leave_is_waited_for_as_long_as_was_said_and_a_second_signal_waits_for_nobody() {
    for (drain, second) in [("1", false), ("60", true)] {
        let at = free();
        let (mut log, writer) = std::io::pipe().expect("a pipe");
        let flags = format!("--memory 8MiB --drain {drain} --metrics {at}");
        let mut target = Target::start_with(&flags, writer.into(), "warn");
        let stopped = Stopped::with(&target);
        until("it has a session", || sessions(&at) == 1);
        stopped.signal(Signal::STOP);
        let start = Instant::now();
        assert!(get(&at, "/ready").contains("200"));
        target.signal(Signal::TERM);
        until("it is not ready any more", || {
            get(&at, "/ready").contains("503")
        });
        assert!(get(&at, "/live").contains("200"));
        assert!(!target.has_ended());
        // Nobody new is let in.
        let (late, _) = initiator("late");
        let refused = late.open_segment(&format!("{}/mem", target.address()));
        let text = refused.expect_err("it is ending").to_string();
        assert!(text.contains("about to end"), "{text}");
        if second {
            target.signal(Signal::TERM);
        }
        until("it ends", || target.has_ended());
        let least = if second {
            Duration::ZERO
        } else {
            Duration::from_secs(1)
        };
        let took = start.elapsed();
        assert!((least..BOUND).contains(&took), "{second}: {took:?}");
        stopped.signal(Signal::KILL);
        drop(target);
        let mut text = String::new();
        log.read_to_string(&mut text).expect("a pipe can be read");
        assert!(text.contains("1 sessions of peers"), "{text}");
    }
}

#[test]
fn a_target_that_is_restarted_again_and_again_under_load_fails_no_request_of_those_who_wait_for_it()
{
    const INITIATORS: usize = 5;
    const RESTARTS: usize = 4;
    let listen = free();
    let flags = format!("--memory 16MiB --drain 30 --listen {listen}");
    let mut target = Some(Target::start(&flags));
    let is_over = AtomicBool::new(false);
    // Batches of each, and how many targets each has met.
    let done: [[AtomicU64; 2]; INITIATORS] = Default::default();
    let load = |number: usize| {
        let (engine, local) = initiator(&format!("initiator-{number}"));
        let address = format!("{listen}/mem");
        let wait_for_it = || {
            let start = Instant::now();
            loop {
                match engine.open_segment(&address) {
                    Ok(remote) => return remote,
                    Err(error) => {
                        assert!(!error.is_usage() && start.elapsed() < BOUND, "{error}");
                        thread::sleep(Duration::from_millis(10));
                    }
                }
            }
        };
        let mut remote = wait_for_it();
        let length = [4096, 256 << 10, BYTES][number % 3];
        let mut batches = Vec::new();
        while !is_over.load(Relaxed) {
            match engine.submit(&[write(local, remote, length); 4]) {
                Ok(batch) => batches.push(batch),
                Err(SubmitError::PeerLost { .. }) => {
                    // What is under way ends first, and well.
                    batches.drain(..).for_each(|batch| completed(&batch));
                    remote = wait_for_it();
                    done[number][1].fetch_add(1, Relaxed);
                }
                Err(error) => panic!("{error}"),
            }
            if batches.len() == 4 {
                completed(&batches.remove(0));
                done[number][0].fetch_add(1, Relaxed);
            }
        }
        batches.drain(..).for_each(|batch| completed(&batch));
    };
    /// Ends the load, also if the test fails.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    thread::scope(|scope| {
        let over = Over(&is_over);
        for number in 0..INITIATORS {
            let (load, is_over) = (&load, &is_over);
            scope.spawn(move || {
                let over = Over(is_over);
                load(number);
                drop(over);
            });
        }
        let all = |of: usize, least: u64| done.iter().all(|row| row[of].load(Relaxed) >= least);
        for restart in 1..=RESTARTS as u64 {
            let before: Vec<_> = done.iter().map(|row| row[0].load(Relaxed)).collect();
            until("everybody moves something", || {
                let more = |(row, before): (&[AtomicU64; 2], &u64)| row[0].load(Relaxed) > *before;
                done.iter().zip(&before).all(more)
            });
            let old = target.take().expect("it runs");
            old.end(Signal::TERM).expect(0);
            target = Some(Target::start(&flags));
            until("everybody is back", || all(1, restart));
        }
        drop(over);
    });
    let met = |row: &[AtomicU64; 2]| row[1].load(Relaxed) >= RESTARTS as u64;
    assert!(done.iter().all(met), "{done:?}");
    target.take().expect("it runs").end(Signal::TERM).expect(0);
}

#[test]
fn a_service_manager_is_told_how_it_stands() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).expect("a socket");
    manager.set_read_timeout(Some(BOUND)).expect("a time");
    let told = || {
        let mut bytes = [0; 4096];
        let count = manager.recv(&mut bytes).expect("it is told in time");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let mut child = polyrail("serve --memory 1MiB --name told")
        .env("NOTIFY_SOCKET", &socket)
        .spawn()
        .expect("the program starts");
    let signal = |signal| kill_process(Pid::from_child(&child), signal).expect("it is a child");
    let ready = told();
    assert!(
        ready.starts_with("READY=1\nSTATUS=listening at 127.0.0.1:"),
        "{ready}"
    );
    signal(Signal::HUP);
    assert!(told().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert!(told().starts_with("READY=1\n"));
    signal(Signal::TERM);
    assert!(told().starts_with("STOPPING=1\n"));
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn the_unit_file_uses_flags_that_there_are() {
    let unit = include_str!("../../polyrail.service");
    let help = run("serve --help").expect(0).stdout;
    let start = unit.lines().find(|line| line.starts_with("ExecStart="));
    let start = start.expect("it starts something");
    assert!(start.contains("polyrail serve "), "{start}");
    for flag in start
        .split_whitespace()
        .filter(|word| word.starts_with("--"))
    {
        assert!(help.contains(flag), "{flag}");
    }
}

#[test]
fn the_unit_file_leaves_all_that_a_file_can_say_to_the_file() {
    let unit = include_str!("../../polyrail.service");
    // Flags and the environment win over /etc/polyrail.json, so a key that they say could not be changed there.
    let keys = [
        "--listen",
        "--name",
        "--rails",
        "--metrics",
        "--insecure",
        "POLYRAIL_",
    ];
    for line in unit.lines().filter(|line| !line.starts_with('#')) {
        for key in keys {
            assert!(!line.contains(key), "{key} in {line}");
        }
    }
}

/// What a target has logged since the last part that was waited for.
struct Log {
    pipe: std::io::PipeReader,
    text: String,
}

impl Log {
    fn until(&mut self, part: &str) -> String {
        let mut bytes = [0; 4096];
        loop {
            if let Some(at) = self.text.find(part)
                && let Some(end) = self.text[at..].find('\n')
            {
                let rest = self.text.split_off(at + end + 1);
                return std::mem::replace(&mut self.text, rest);
            }
            // What never comes is a failure, and not a wait for ever.
            let mut ready = [PollFd::new(&self.pipe, PollFlags::IN)];
            let said = poll(&mut ready, Timespec::try_from(BOUND).ok().as_ref());
            assert_eq!(said, Ok(1), "nothing more, and no {part}: {}", self.text);
            let count = self.pipe.read(&mut bytes).expect("a pipe can be read");
            assert!(count > 0, "it ended without {part}: {}", self.text);
            self.text += &String::from_utf8_lossy(&bytes[..count]);
        }
    }
}

/// A target with this configuration in a file, which may change.
fn configured(text: &str, flags: &str) -> (tempfile::TempDir, impl Fn(&str) + use<>, Target, Log) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.json");
    std::fs::write(&path, text).expect("a file");
    let (pipe, writer) = std::io::pipe().expect("a pipe");
    let line = format!("serve --memory 1MiB --config {} {flags}", path.display());
    let child = polyrail(&line)
        .stderr(writer)
        .spawn()
        .expect("the program starts");
    let log = Log {
        pipe,
        text: String::new(),
    };
    let write = move |text: &str| std::fs::write(&path, text).expect("a file");
    (folder, write, Target::of(child), log)
}

#[test]
fn a_target_takes_what_can_change_from_its_configuration_and_says_what_cannot() {
    let (_folder, write, target, mut log) = configured("{}", "");
    let mut reload = |text: &str, says: &[&str]| {
        write(text);
        target.signal(Signal::HUP);
        let lines = says.iter().map(|part| log.until(part));
        lines.collect::<String>()
    };
    reload("{}", &["as it was"]);
    reload(
        r#"{ "policy": "documented" }"#,
        &["policy only counts from the next start on"],
    );
    let both = r#"{ "log_level": "info", "limits": { "segments": 64 }, "workers": 1 }"#;
    reload(
        both,
        &[
            "limits/segments, log_level as configured from now on",
            "policy, workers only",
        ],
    );
    reload(r#"{ "polcy": 1 }"#, &["goes on with what it had"]);
    reload(
        r#"{ "control": { "sessions_max": 1 } }"#,
        &["control/sessions_max"],
    );
    // It does what it says: one session, and no more.
    let first = initiator("first").0;
    let address = format!("{}/mem", target.address());
    first.open_segment(&address).expect("there is room for one");
    let refused = initiator("second").0.open_segment(&address);
    let text = refused.expect_err("there is none for another").to_string();
    assert!(text.contains("control/sessions_max"), "{text}");
    reload("{}", &["SIGHUP: control/sessions_max as configured"]);
    initiator("third")
        .0
        .open_segment(&address)
        .expect("there is room again");
    target.end(Signal::TERM).expect(0);
}

#[test]
fn a_log_level_counts_from_the_next_reload_on() {
    let (_folder, write, target, mut log) = configured("{}", "");
    write(r#"{ "log_level": "info" }"#);
    target.signal(Signal::HUP);
    let quiet = log.until("log_level as configured");
    assert!(!quiet.contains("INFO"), "{quiet}");
    let engine = initiator("seen").0;
    engine
        .open_segment(&format!("{}/mem", target.address()))
        .expect("it answers");
    log.until("a session of \"seen\" at 127.0.0.1");
    drop(engine);
    log.until("the session of \"seen\" at 127.0.0.1");
    target.end(Signal::TERM).expect(0);
}

#[test]
fn a_rail_can_be_added_while_it_runs() {
    let (_folder, write, target, mut log) =
        configured(r#"{ "rails": ["127.0.0.1"], "log_level": "info" }"#, "");
    let engine = Engine::new(Config {
        rails: vec![[127, 0, 0, 1].into(), [127, 0, 0, 5].into()],
        rail_map: polyrail::RailMap::All,
        ..Config::named("grows").without("shm")
    });
    let engine = engine.expect("an engine starts");
    engine
        .open_segment(&format!("{}/mem", target.address()))
        .expect("it answers");
    let names = || {
        engine
            .rails()
            .into_iter()
            .map(|rail| rail.name)
            .collect::<Vec<_>>()
    };
    assert!(
        names().iter().all(|name| name.ends_with(">127.0.0.1")),
        "{:?}",
        names()
    );
    write(r#"{ "rails": ["127.0.0.1", "127.0.0.7"], "log_level": "info" }"#);
    target.signal(Signal::HUP);
    log.until("127.0.0.7 is a rail from now on");
    until("there is a rail to it", || {
        names().iter().any(|name| name.ends_with(">127.0.0.7"))
    });
    // One that this host does not have is refused, and nothing else of that configuration counts.
    write(r#"{ "rails": ["127.0.0.1", "192.0.2.9"], "limits": { "segments": 100 } }"#);
    target.signal(Signal::HUP);
    let said = log.until("goes on with what it had");
    assert!(said.contains("192.0.2.9"), "{said}");
    target.end(Signal::TERM).expect(0);
}

#[test]
fn a_key_can_be_exchanged_while_it_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let [old, new] = ["old", "new"].map(|name| folder.path().join(name).display().to_string());
    for path in [&old, &new] {
        run(&format!("keygen {path}")).expect(0);
    }
    let with = |key: &str| format!(r#"{{ "security": {{ "key_file": "{key}" }} }}"#);
    let engine = |key: &str| {
        let mut config = Config::named("member").without("shm");
        config.security.key_file = key.to_owned();
        Engine::new(config).expect("an engine starts")
    };
    let (_config, write, target, mut log) = configured(&with(&old), "");
    let address = format!("{}/mem", target.address());
    let before = engine(&old);
    before.open_segment(&address).expect("they have one key");
    write(&with(&new));
    target.signal(Signal::HUP);
    log.until("the cluster's key is");
    log.until("security/key_file as configured");
    engine(&new)
        .open_segment(&address)
        .expect("they have one key");
    assert!(engine(&old).open_segment(&address).is_err());
    // Who is in stays in.
    before.open_segment(&address).expect("the session is there");
    write("{}");
    target.signal(Signal::HUP);
    log.until("whether there is a key cannot change");
    engine(&new)
        .open_segment(&address)
        .expect("it has its key still");
    target.end(Signal::TERM).expect(0);
}
