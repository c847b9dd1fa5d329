//! Engines that are about to end: what is under way with them ends well, and nothing more begins.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{
    Access, DeliveryStatus, FileTerms, Op, OpenError, Request, SubmitError, Terms, Undrained,
};

use crate::fixture::*;

/// More requests than are staged to one peer at a time.
const FILE_REQUESTS: u64 = 48;

#[test]
fn what_is_staged_or_prepared_or_told_ends_well_before_a_peer_is_left() {
    let pair = Pair::new(MIB);
    let folder = tempfile::tempdir().unwrap();
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(folder.path().join("file"));
    let terms = FileTerms {
        bytes: Some(FILE_REQUESTS * MIB),
        ..FileTerms::default()
    };
    let there = pair.target.register_file(file.unwrap(), &terms).unwrap();
    pair.target
        .offer_file(there, "file", Access::RemoteReadWrite)
        .unwrap();
    let remote = pair.initiator.open_segment(&address(&pair.target, "file"));
    let remote = remote.unwrap();
    let request = |number: u64| Request {
        op: Op::Write,
        local: pair.local,
        local_offset: 0,
        remote,
        remote_offset: number * MIB,
        length: MIB,
    };
    let staged: Vec<_> = (0..FILE_REQUESTS).map(request).collect();
    let staged = pair.initiator.submit(&staged).unwrap();
    let notifying = Terms {
        notification: Some(b"there"),
        ..Terms::default()
    };
    let told = pair
        .initiator
        .submit_with(&[pair.write_all()], &notifying)
        .unwrap();
    let mut prepared = pair
        .initiator
        .prepare_transfer(&[pair.write_all()])
        .unwrap();

    thread::scope(|scope| {
        let drained = scope.spawn(|| pair.target.drain(PATIENCE));
        until("nothing more begins", || match prepared.post() {
            Ok(batch) => {
                completed(&batch);
                false
            }
            Err(error) => {
                assert!(matches!(error, SubmitError::PeerLost { .. }), "{error}");
                true
            }
        });
        let refused = pair.initiator.submit(&[request(0)]);
        assert!(matches!(refused, Err(SubmitError::PeerLost { .. })));
        completed(&staged);
        completed(&told);
        let delivery = told.delivery().unwrap();
        assert_eq!(delivery.wait(PATIENCE), Ok(DeliveryStatus::Delivered));
        assert_eq!(drained.join().unwrap(), Undrained::default());
    });
    let opened = pair.initiator.open_segment(&address(&pair.target, "mem"));
    let text = opened.unwrap_err().to_string();
    assert!(text.contains("about to end"), "{text}");
    assert_eq!(pair.target.stats().sessions, []);
    // All memory is free again.
    pair.initiator.unregister(pair.local).unwrap();
}

#[test]
fn an_engine_that_is_about_to_end_lets_its_own_requests_end_and_takes_no_more() {
    let pair = Pair::new(64 * MIB);
    let batch = pair.submit(pair.write_all());
    thread::scope(|scope| {
        let drained = scope.spawn(|| pair.initiator.drain(PATIENCE));
        until("nothing more begins", || {
            match pair.initiator.submit(&[pair.write(0, 4096)]) {
                Ok(batch) => {
                    completed(&batch);
                    false
                }
                Err(error) => {
                    assert!(matches!(error, SubmitError::ShutDown), "{error}");
                    true
                }
            }
        });
        completed(&batch);
        assert!(drained.join().unwrap().is_nothing());
    });
    let opened = pair.initiator.open_segment(&address(&pair.target, "mem"));
    assert!(matches!(opened, Err(OpenError::ShutDown)));
    assert!(pair.initiator.notify(pair.remote, b"late").is_err());
    pair.initiator.shutdown();
    // The other one noticed nothing but that it left.
    until("it has left", || pair.target.stats().sessions.is_empty());
}

#[test]
fn whoever_shuts_an_engine_down_waits_for_nobody() {
    let pair = Pair::new(MIB);
    // A rail that swallows everything keeps this one under way.
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.cut(rail));
    let batch = pair.submit(pair.write_all());
    let start = Instant::now();
    thread::scope(|scope| {
        let drained = scope.spawn(|| pair.target.drain(10 * PATIENCE));
        until("it is told", || {
            let refused = pair.initiator.submit(&[pair.write(0, 4096)]);
            refused.is_err()
        });
        pair.target.shutdown();
        assert_eq!(drained.join().unwrap().sessions, 1);
    });
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    // Whose request it was is told the truth.
    assert_ne!(ended(&batch).failed, 0);
}

#[test]
fn nothing_is_waited_for_where_nothing_is_under_way() {
    let target = target("alone");
    let start = Instant::now();
    assert!(target.drain(10 * PATIENCE).is_nothing());
    assert!(start.elapsed() < Duration::from_secs(5));
}
