//! A target that ends and comes back.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyrail::{
    Access, CallError, Config, Engine, Local, OpenError, Remote, Request, SegmentId, Status,
    SubmitError,
};

use crate::fixture::*;

/// A write of all of a [`small_target`]'s segment.
fn whole(local: SegmentId, remote: SegmentId) -> Request {
    Request {
        op: polyrail::Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length: 4096,
    }
}

/// A small target at an address that is known.
fn small_target(at: SocketAddr) -> (Engine, SegmentId) {
    let engine = Engine::new(Config {
        listen: Some(at),
        workers: 1,
        ..Config::named("target")
    });
    let engine = engine.unwrap();
    let there = engine
        .allocate("mem", 4096, Access::RemoteReadWrite)
        .unwrap();
    (engine, there)
}

/// Asserts that a segment is known to be lost with its peer.
fn is_lost(engine: &Engine, request: Request, at: SocketAddr) {
    let error = engine.submit(&[request]).unwrap_err();
    let segment = request.remote;
    assert_eq!(
        error,
        SubmitError::PeerLost {
            index: 0,
            segment,
            peer: at
        }
    );
    assert!(error.to_string().contains(&at.to_string()), "{error}");
    let error = engine.call(segment, 1, &[], PATIENCE).unwrap_err();
    assert!(
        matches!(error, CallError::PeerLost { peer, .. } if peer == at),
        "{error}"
    );
    assert_eq!(engine.segment_bytes(segment), None);
}

#[test]
fn a_target_that_was_started_anew_is_another_one() {
    let mut pair = Pair::new(MIB);
    let at = pair.target.listening().unwrap();
    for round in 0..2 {
        pair.exchange(round);
        pair.target.shutdown();
        let config = Config {
            listen: Some(at),
            ..target_config("target")
        };
        pair.target = Engine::new(config).unwrap();
        pair.there = pair
            .target
            .allocate("mem", MIB, Access::RemoteReadWrite)
            .unwrap();
        let start = Instant::now();
        let old = pair.initiator.submit(&[pair.write_all()]);
        // At once, whether the loss of the old one has been noticed or not.
        let remote = pair.initiator.open_segment(&format!("{at}/mem")).unwrap();
        assert_ne!(remote, pair.remote);
        completed(&pair.submit(Request {
            remote,
            ..pair.write_all()
        }));
        assert!(bytes(&pair.destination()) == pattern(round, MIB));
        if let Ok(old) = old {
            assert_ne!(ended(&old).status, Status::Completed);
            assert!(old.report(0).unwrap().cause.is_some());
        }
        assert!(
            start.elapsed() < Duration::from_secs(8),
            "{:?}",
            start.elapsed()
        );
        // And now that it has been noticed, the old segment is lost, and says so.
        is_lost(&pair.initiator, pair.write_all(), at);
        pair.remote = remote;
    }
}

#[test]
fn targets_can_be_started_anew_without_end() {
    // There are numbers for 64 peers and 256 rails: the 65th start of a target was answered with "full".
    const STARTS: u64 = 200;
    let initiator = Engine::new(Config {
        workers: 2,
        ..Config::named("initiator").without("shm")
    });
    let initiator = initiator.unwrap();
    let local = initiator.allocate("here", 4096, Access::Local).unwrap();
    let here = initiator.region(local).unwrap();
    let (mut target, mut there) = small_target("127.0.0.1:0".parse().unwrap());
    let at = target.listening().unwrap();
    let mut first = None;
    for start in 0..STARTS {
        let remote = initiator.open_segment(&format!("{at}/mem")).unwrap();
        let write = whole(local, remote);
        fill(&here, start);
        completed(&initiator.submit(&[write; 2]).unwrap());
        let arrived = bytes(&target.region(there).unwrap());
        assert!(arrived == pattern(start, 4096), "start {start}");
        first.get_or_insert(write);
        target.shutdown();
        (target, there) = small_target(at);
    }
    // Nobody has opened anything of the last one, and nobody has written to it.
    let fresh = bytes(&target.region(there).unwrap());
    assert!(fresh.iter().all(|byte| *byte == 0));
    is_lost(&initiator, first.unwrap(), at);
    assert!(
        initiator.rails().len() <= 2 * (RAILS + SPARES),
        "their places are used again: {}",
        initiator.rails().len()
    );
}

#[test]
fn writes_to_an_old_process_never_reach_the_memory_of_a_new_one() {
    let (target, _) = small_target("127.0.0.1:0".parse().unwrap());
    let at = target.listening().unwrap();
    let initiator = Engine::new(Config {
        workers: 1,
        ..Config::named("initiator").without("shm")
    });
    let initiator = initiator.unwrap();
    let local = initiator.allocate("here", 4096, Access::Local).unwrap();
    poison(&initiator.region(local).unwrap(), 0xaa);
    let remote = initiator.open_segment(&format!("{at}/mem")).unwrap();
    let write = whole(local, remote);
    completed(&initiator.submit(&[write]).unwrap());
    target.shutdown();
    let (target, there) = small_target(at);
    // Written to without a pause while the loss goes unnoticed, is noticed, and long after.
    let mut batches = Vec::new();
    until("the loss is noticed", || match initiator.submit(&[write]) {
        Ok(batch) => {
            batches.push(batch);
            false
        }
        Err(SubmitError::PeerLost { .. }) => true,
        Err(SubmitError::Full(_)) => false,
        Err(error) => panic!("{error}"),
    });
    for batch in &batches {
        assert_ne!(ended(batch).status, Status::Completed);
    }
    let memory = bytes(&target.region(there).unwrap());
    assert!(memory.iter().all(|byte| *byte == 0), "{memory:02x?}");
}

#[test]
fn the_operators_word_ends_what_waits_for_a_peer() {
    let pair = Pair::new(MIB);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.cut(rail));
    let batch = pair.submit(pair.write_all());
    let at = pair.target.listening().unwrap().to_string();
    assert!(pair.initiator.declare_lost(&at).unwrap());
    ended(&batch);
    let report = batch.report(0).unwrap();
    assert_eq!(
        (report.status, report.local, report.remote),
        (Status::PeerLost, Local::Released, Remote::Settled)
    );
    is_lost(&pair.initiator, pair.write_all(), at.parse().unwrap());
    assert!(
        !pair.initiator.declare_lost(&at).unwrap(),
        "it is lost already"
    );
    let error = pair.initiator.declare_lost("nobody.invalid:1").unwrap_err();
    assert!(matches!(error, OpenError::Unresolved { .. }), "{error}");
    // It was not true: the peer lives, and can be met again.
    pair.each_rail(|faults, rail| faults.restore(rail));
    let remote = pair.initiator.open_segment(&format!("{at}/mem")).unwrap();
    completed(&pair.submit(Request {
        remote,
        ..pair.write_all()
    }));
}
