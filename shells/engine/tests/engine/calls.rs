//! What a program's own calls may do to an engine: anything.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use polyrail::{Access, CallError, Caller, Calls, Engine, Hooks, SegmentId};

use crate::fixture::*;

const ECHO: u16 = 0;
const PANIC: u16 = 1;
const SHUT_DOWN: u16 = 2;
const BLOCK: u16 = 3;
const TELL: u16 = 4;

struct Deeds {
    /// Sent when a call has begun to block, or is to tell.
    blocked: Mutex<Sender<()>>,
    /// What it waits for.
    released: Mutex<Receiver<()>>,
}

impl Calls for Deeds {
    fn call(
        &self,
        engine: &Engine,
        _: &Caller,
        method: u16,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        match method {
            PANIC => panic!("on purpose"),
            SHUT_DOWN => engine.shutdown(),
            BLOCK => {
                self.blocked.lock().unwrap().send(()).unwrap();
                let _ = self.released.lock().unwrap().recv();
            }
            TELL => self.blocked.lock().unwrap().send(()).unwrap(),
            _ => {}
        }
        Ok(body.to_vec())
    }
}

struct Called {
    target: Engine,
    initiator: Engine,
    remote: SegmentId,
    blocked: Receiver<()>,
    release: Sender<()>,
}

fn called() -> Called {
    let (begun, blocked) = channel();
    let (release, released) = channel();
    let deeds = Deeds {
        blocked: Mutex::new(begun),
        released: Mutex::new(released),
    };
    let hooks = Hooks {
        calls: Some(Arc::new(deeds)),
        ..Hooks::default()
    };
    let target = Engine::with_hooks(target_config("target"), hooks).unwrap();
    target
        .allocate("mem", MIB, Access::RemoteReadWrite)
        .unwrap();
    let initiator = Engine::new(polyrail::Config::named("initiator")).unwrap();
    let remote = initiator.open_segment(&address(&target, "mem")).unwrap();
    Called {
        target,
        initiator,
        remote,
        blocked,
        release,
    }
}

#[test]
fn a_call_that_panics_fails_and_the_next_is_carried_out() {
    let pair = called();
    let call = |method| pair.initiator.call(pair.remote, method, b"hello", PATIENCE);
    for _ in 0..3 {
        let error = call(PANIC).unwrap_err().to_string();
        assert!(error.contains("panicked"), "{error}");
        assert_eq!(call(ECHO).unwrap(), b"hello");
    }
    let forever = pair.initiator.call(pair.remote, ECHO, b"", Duration::MAX);
    assert_eq!(forever.unwrap(), b"");
}

#[test]
fn a_call_can_shut_its_engine_down() {
    let pair = called();
    let start = Instant::now();
    let answer = pair
        .initiator
        .call(pair.remote, SHUT_DOWN, b"", Duration::from_secs(1));
    // Whether the answer still gets out is another matter.
    drop(answer);
    until("it does not take batches any more", || {
        matches!(
            pair.target.submit(&[]),
            Err(polyrail::SubmitError::ShutDown)
        )
    });
    pair.target.shutdown();
    assert!(
        start.elapsed() < Duration::from_secs(8),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_call_that_blocks_does_not_keep_the_engine_from_ending() {
    // Shutdown once waited for the call, for as long as that liked.
    let pair = called();
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| pair.initiator.call(pair.remote, BLOCK, b"", PATIENCE));
        pair.blocked.recv_timeout(PATIENCE).unwrap();
        let start = Instant::now();
        pair.target.shutdown();
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
        pair.initiator.shutdown();
        assert!(asker.join().unwrap().is_err());
    });
}

#[test]
fn a_call_that_blocks_does_not_keep_the_engine_from_leaving_a_peer() {
    // Calls once ran on the thread that sees to peers.
    let pair = called();
    let other = target("other");
    other.allocate("mem", MIB, Access::RemoteReadWrite).unwrap();
    let theirs = pair.target.open_segment(&address(&other, "mem")).unwrap();
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| pair.initiator.call(pair.remote, BLOCK, b"", PATIENCE));
        pair.blocked.recv_timeout(PATIENCE).unwrap();
        let drained = scope.spawn(|| other.drain(PATIENCE));
        until("the other one is left", || {
            let asked = pair.target.call(theirs, ECHO, b"", PATIENCE);
            matches!(asked, Err(CallError::PeerLost { .. }))
        });
        assert!(!asker.is_finished());
        drained.join().unwrap();
        pair.release.send(()).unwrap();
        asker.join().unwrap().unwrap();
    });
}

#[test]
fn what_a_peer_asked_that_has_gone_is_not_carried_out() {
    let pair = called();
    let gone = Engine::new(polyrail::Config::named("gone")).unwrap();
    let remote = gone.open_segment(&address(&pair.target, "mem")).unwrap();
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| pair.initiator.call(pair.remote, BLOCK, b"", PATIENCE));
        pair.blocked.recv_timeout(PATIENCE).unwrap();
        let short = Duration::from_millis(50);
        let error = gone.call(remote, TELL, b"", short).unwrap_err();
        assert!(error.to_string().contains("no answer"), "{error}");
        gone.shutdown();
        let sessions = || pair.target.stats().sessions;
        until("its session is over", || sessions().len() == 1);
        pair.release.send(()).unwrap();
        asker.join().unwrap().unwrap();
    });
    let echo = pair.initiator.call(pair.remote, ECHO, b"", PATIENCE);
    echo.unwrap();
    assert!(pair.blocked.try_recv().is_err(), "it was carried out");
}
