//! Processes that are killed, seen from the other side: on one host the kernel says so, and nobody waits.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use polyrail::{
    Access, Cause, Config, Engine, Local, Op, OpenError, Remote, Request, SegmentId, Status,
    SubmitError,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{BOUND, Target, finish, polyrail, run};

const BYTES: u64 = 64 << 20;
/// Within what the best of a few deaths is reported.
const NOTICED: Duration = Duration::from_millis(100);
/// And each of them, on a machine that is busy with other things. Less than any bound of silence.
const NOTICED_MAX: Duration = Duration::from_millis(1_000);
/// A target lets go of what a dead initiator had within this. A session whose connections have merely ended
/// would be kept for ten seconds.
const FREED_MAX: Duration = Duration::from_secs(5);

fn initiator() -> (Engine, SegmentId) {
    let engine = Engine::new(Config::named("initiator").without("shm")).expect("an engine starts");
    let local = engine.allocate("here", BYTES, Access::Local);
    (engine, local.expect("memory"))
}

/// All of a segment, once.
fn whole(op: Op, local: SegmentId, remote: SegmentId) -> Request {
    Request {
        op,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length: BYTES,
    }
}

/// Kills a target, of which so many bytes are in memory, in the middle of a batch. How long it took until all of that
/// was reported, and whether its process had ended by then.
fn killed_in_the_middle(op: Op, resident_bytes: u64) -> (Duration, bool) {
    let mut target = Target::start(&format!("--memory {resident_bytes}"));
    let address = target.address().to_owned();
    let (engine, local) = initiator();
    let remote = engine
        .open_segment(&format!("{address}/mem"))
        .expect("the target answers");
    let request = whole(op, local, remote);
    for remote_offset in (0..resident_bytes).step_by(BYTES as usize) {
        let fill = Request {
            remote_offset,
            ..whole(Op::Write, local, remote)
        };
        let filled = engine.submit(&[fill]).expect("there is room");
        let ended = filled.wait(BOUND).expect("it ends");
        assert_eq!(ended.status, Status::Completed);
    }
    let moved = || -> u64 { engine.rails().iter().map(|rail| rail.bytes).sum() };
    let before = moved();
    let batch = engine.submit(&[request; 64]).expect("there is room");
    let until = Instant::now() + BOUND;
    while moved() < before + BYTES / 4 {
        assert!(Instant::now() < until, "nothing moves");
        std::thread::yield_now();
    }
    let start = Instant::now();
    target.signal(Signal::KILL);
    let status = batch.wait(BOUND).expect("it ends");
    let (took, had_ended) = (start.elapsed(), target.has_ended());
    assert_eq!(status.status, Status::PeerLost, "{:?}", batch.report(63));
    for index in 0..status.requests as usize {
        let report = batch.report(index).expect("it has so many");
        // Those that were through before stay so.
        let cause = match report.status {
            Status::Completed => None,
            _ => Some(Cause::PeerGone),
        };
        assert!(
            matches!(report.status, Status::PeerLost | Status::Completed),
            "{report:?}"
        );
        assert_eq!(
            (report.cause, report.local, report.remote),
            (cause, Local::Released, Remote::Settled)
        );
    }
    // Whoever comes now is told at once, with the place.
    let until = Instant::now() + BOUND;
    let error = loop {
        match engine.submit(&[request]) {
            Err(error) => break error,
            Ok(late) => assert_eq!(late.wait(BOUND).expect("it ends").status, Status::PeerLost),
        }
        assert!(Instant::now() < until, "the segment is not lost");
    };
    assert!(matches!(error, SubmitError::PeerLost { .. }), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
    // Memory is free, and opening it again says that nobody is there.
    engine.unregister(local).expect("nothing uses it");
    let error = engine.open_segment(&format!("{address}/mem")).unwrap_err();
    assert!(matches!(error, OpenError::Connect(_)), "{error}");
    (took, had_ended)
}

#[test]
fn a_killed_target_is_reported_at_once_and_with_proof() {
    for op in [Op::Write, Op::Read] {
        let took: Vec<_> = (0..3).map(|_| killed_in_the_middle(op, BYTES).0).collect();
        println!("{op:?}: reported {took:?} after the kill");
        assert!(took.iter().all(|took| *took < NOTICED_MAX), "{took:?}");
        assert!(took.iter().any(|took| *took < NOTICED), "{took:?}");
    }
}

#[test]
fn a_killed_target_is_not_waited_for_until_its_memory_is_gone() {
    // The kernel calls a process ended once it has taken its memory apart, 1.5 GiB here: after 72 to 158 ms.
    let seen: Vec<_> = (0..3)
        .map(|_| killed_in_the_middle(Op::Write, 24 * BYTES))
        .collect();
    println!("reported {seen:?} after the kill");
    assert!(seen.iter().any(|(took, _)| *took < NOTICED), "{seen:?}");
    assert!(seen.iter().any(|(_, had_ended)| !had_ended), "{seen:?}");
}

#[test]
fn a_target_that_dies_while_it_is_stopped_settles_what_was_open() {
    let target = Target::start(&format!("--memory {BYTES}"));
    let (engine, local) = initiator();
    let remote = engine
        .open_segment(&format!("{}/mem", target.address()))
        .expect("the target answers");
    let write = whole(Op::Write, local, remote);
    let batch = engine.submit(&[write; 64]).expect("there is room");
    let moved = || -> u64 { engine.rails().iter().map(|rail| rail.bytes).sum() };
    until("bytes move", BOUND, || moved() > BYTES / 4);
    target.signal(Signal::STOP);
    let status = batch.wait(BOUND).expect("it ends").status;
    assert_eq!(status, Status::Indeterminate);
    let open = |index| batch.report(index).expect("it has so many").remote == Remote::Unknown;
    assert!((0..64).any(open));
    target.signal(Signal::KILL);
    let took = until("it is settled", BOUND, || !(0..64).any(open));
    println!("settled {took:?} after the kill");
    assert_eq!(
        batch.status().status,
        Status::Indeterminate,
        "it was reported so"
    );
    engine.unregister(local).expect("nothing uses it");
}

#[test]
fn a_target_that_is_killed_and_started_again_is_another_one() {
    const ROUNDS: u8 = 8;
    let mut target = Target::start(&format!("--memory {BYTES}"));
    let address = target.address().to_owned();
    let (engine, local) = initiator();
    let region = engine.region(local).expect("it exists");
    let mut olds = Vec::new();
    for round in 1..=ROUNDS {
        let remote = engine
            .open_segment(&format!("{address}/mem"))
            .expect("the target answers");
        let write = whole(Op::Write, local, remote);
        let read = Request {
            op: Op::Read,
            ..write
        };
        // Nothing of what was under way to the one before has reached this one.
        fill(&region, 0xff);
        let batch = engine.submit(&[read]).expect("there is room");
        assert_eq!(
            batch.wait(BOUND).expect("it ends").status,
            Status::Completed
        );
        assert!(is_all(&region, 0), "round {round}");
        fill(&region, round);
        let batch = engine.submit(&[write; 16]).expect("there is room");
        // Its port is free once it has ended.
        target.end(Signal::KILL);
        target = Target::start(&format!("--memory {BYTES} --listen {address}"));
        assert_ne!(batch.wait(BOUND).expect("it ends").status, Status::Pending);
        olds.push(write);
        for old in &olds {
            let until = Instant::now() + BOUND;
            while !matches!(
                engine.submit(&[*old]),
                Err(SubmitError::PeerLost { peer, .. }) if peer.to_string() == address
            ) {
                assert!(Instant::now() < until, "round {round}: not lost");
            }
        }
    }
}

fn fill(region: &polyrail::Region, value: u8) {
    let entered = region.enter().expect("it is open");
    let start = entered.pointer(0, BYTES).expect("it is so large");
    // SAFETY: `BYTES` of memory that the region keeps mapped while it is entered.
    unsafe { std::ptr::write_bytes(start, value, BYTES as usize) };
}

fn is_all(region: &polyrail::Region, value: u8) -> bool {
    let entered = region.enter().expect("it is open");
    let start = entered.pointer(0, BYTES).expect("it is so large");
    let mut copy = vec![0; BYTES as usize];
    // SAFETY: as above, read into memory of our own.
    unsafe { std::ptr::copy_nonoverlapping(start, copy.as_mut_ptr(), copy.len()) };
    copy.iter().all(|byte| *byte == value)
}

#[test]
fn a_stranger_at_the_targets_port_is_the_environments_fault_and_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        use std::io::Write;
        // For as long as the test runs.
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    run(&format!("bench --target {address} --seconds 1"))
        .expect(3)
        .names(&[&address.to_string(), "\"HTTP/1.1\" instead of \"polyrail\""]);
}

/// A benchmark that would go on for a minute.
fn bench(target: &Target) -> Child {
    let address = target.address();
    let line = format!("bench --target {address} --op mix --block 1MiB --batch 8 --seconds 60");
    polyrail(&line)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts")
}

#[test]
fn a_benchmark_tells_that_its_target_is_lost() {
    // (flag, what it prints of a rail, what it does not)
    for (flag, says, never) in [
        (
            "",
            "tcp:127.0.0.1>127.0.0.1                  lost",
            "healthy",
        ),
        ("--json", "\"state\":\"paused\"", "\"healthy\""),
    ] {
        let target = Target::start("--memory 16MiB");
        let address = target.address();
        let line =
            format!("bench --target {address} --rails 127.0.0.1 --buffer 1MiB --seconds 60 {flag}");
        let mut child = polyrail(&line)
            .env("RUST_LOG", "info")
            .spawn()
            .expect("the program starts");
        // Byte by byte: what follows is for whoever collects the rest.
        let log = BufReader::with_capacity(1, child.stderr.as_mut().expect("it is piped"));
        let measures = |line: &String| line.contains("measuring");
        let mut lines = log.lines().map_while(Result::ok);
        assert!(lines.any(|line| measures(&line)), "{line}");
        drop(lines);
        target.end(Signal::KILL);
        // A request under way ends as `PeerLost`, the next one is refused, because its segment was lost with the peer.
        let ended = finish(child, &line).expect(3);
        let why = ended.stderr.lines().last().unwrap_or_default();
        let is_said = why.contains("PeerLost") || why.contains("is lost or about to end");
        assert!(is_said && why.starts_with("error: "), "{ended:?}");
        assert!(ended.stdout.contains(says), "{ended:?}");
        assert!(!ended.stdout.contains(never), "{ended:?}");
    }
}

/// Descriptors that a process has open.
fn descriptors(pid: u32) -> usize {
    let list = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    list.count()
}

fn resident_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).expect("it runs");
    let pages: u64 = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("a count of pages");
    pages * rustix::param::page_size() as u64
}

#[track_caller]
fn until(what: &str, limit: Duration, mut seen: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !seen() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
    start.elapsed()
}

#[test]
fn a_killed_initiator_leaves_nothing_at_its_target() {
    const KILLS: usize = 3;
    let (log, writer) = std::io::pipe().expect("a pipe");
    let target = Target::start_with("--memory 16MiB", writer.into(), "polyrail_control=debug");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            // The test may have seen enough.
            let _ = tell.send(line);
        }
    });
    let pid = target.pid();
    // One that ends well, so that what the first peer makes the target start counts as its own.
    let line = format!(
        "bench --target {} --block 1MiB --seconds 0.1",
        target.address()
    );
    finish(polyrail(&line).spawn().expect("the program starts"), &line).expect(0);
    // Sessions whose process the target watches: one that it does not know yet may only be away for a while.
    let (mut begun, mut forgotten) = (0, 0);
    let mut count = || {
        for line in told.try_iter() {
            begun += usize::from(line.contains(" is watched"));
            forgotten += usize::from(line.contains("is forgotten"));
        }
        (begun, forgotten)
    };
    until("the first session is forgotten", FREED_MAX, || {
        count() == (1, 1)
    });
    let before = descriptors(pid);
    let resident = resident_bytes(pid);
    for kill in 1..=KILLS {
        let mut bench = bench(&target);
        until("it moves bytes", BOUND, || {
            // A control connection and a lane at least.
            count().0 == 1 + kill && descriptors(pid) >= before + 2
        });
        kill_process(Pid::from_child(&bench), Signal::KILL).expect("a child can be signalled");
        let took = until("all is free", FREED_MAX, || {
            descriptors(pid) == before && count() == (1 + kill, 1 + kill)
        });
        println!(
            "kill {kill}: {before} descriptors again and the session forgotten after {took:?}"
        );
        bench.wait().expect("a child can be waited for");
    }
    let grown = resident_bytes(pid).saturating_sub(resident);
    println!("{grown} bytes more than before are resident");
    assert!(grown < 24 << 20, "{grown} bytes were kept");
    // And it serves whoever comes next.
    finish(polyrail(&line).spawn().expect("the program starts"), &line).expect(0);
    target.end(Signal::TERM).expect(0);
}
