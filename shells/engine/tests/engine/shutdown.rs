//! Ends: bounded, and truthful about what was going on.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{Access, Cause, Config, Engine, Faults, Local, Remote, Report, Status, SubmitError};

use crate::fixture::*;

/// How long an engine may take to end.
const END_MAX: Duration = Duration::from_secs(6);

fn ends_in_time(what: &str, end: impl FnOnce()) {
    let start = Instant::now();
    end();
    let took = start.elapsed();
    assert!(took < END_MAX, "{what}: {took:?}");
}

/// Asserts the rule that every report keeps.
fn truthful(report: Report) {
    let open = report.local == Local::Held || report.remote == Remote::Unknown;
    assert_ne!(report.status, Status::Pending);
    assert_eq!(report.status == Status::Indeterminate, open, "{report:?}");
    assert_eq!(
        report.status == Status::Completed,
        report.cause.is_none(),
        "{report:?}"
    );
}

#[test]
fn shutdown_ends_work_in_flight_and_in_line() {
    let pair = Pair::new(32 * MIB);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.slow(rail, Some(2_000_000)));
    let before = pair.moved_bytes();
    let first = pair.submit(pair.write_all());
    until("some has moved", || pair.moved_bytes() > before + 100_000);
    // More than a worker takes in one round.
    let many = pair
        .initiator
        .submit(&vec![pair.write(0, MIB); 5_000])
        .unwrap();
    ends_in_time("shutdown", || pair.initiator.shutdown());
    for batch in [&first, &many] {
        // No patience is needed: they have ended.
        let status = batch.wait(Duration::ZERO).unwrap();
        assert_eq!(status.ended, status.requests);
        assert_eq!(status.status, Status::ShutDown, "{:?}", batch.report(0));
        for index in 0..status.requests as usize {
            let report = batch.report(index).unwrap();
            truthful(report);
            assert_eq!(report.cause, Some(Cause::ShutDown));
        }
    }
    assert!(first.report(0).unwrap().delivered_bytes < pair.bytes);
    assert_eq!(
        pair.initiator.submit(&[pair.write_all()]).unwrap_err(),
        SubmitError::ShutDown
    );
    // Nothing touches the memory any more, so it can be taken back.
    poison(&pair.destination(), 0xee);
    pair.initiator.unregister(pair.local).unwrap();
    ends_in_time("again", || pair.initiator.shutdown());
    first.cancel();
    many.cancel();
    assert!(bytes(&pair.destination()).iter().all(|byte| *byte == 0xee));
}

#[test]
fn whoever_submits_while_the_engine_ends_is_told() {
    // A batch that came between the last look at the ring and the end of the worker was never reported.
    for _ in 0..20 {
        let pair = Pair::new(MIB);
        let pair = &pair;
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(move || {
                    let mut batches = Vec::new();
                    loop {
                        match pair.initiator.submit(&[pair.write(0, 100); 3]) {
                            Ok(batch) => batches.push(batch),
                            Err(SubmitError::Full(_)) => thread::yield_now(),
                            Err(SubmitError::ShutDown) => break,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    for batch in batches {
                        assert_eq!(ended(&batch).ended, 3);
                        (0..3).for_each(|index| truthful(batch.report(index).unwrap()));
                    }
                });
            }
            until("some has moved", || pair.moved_bytes() > 0);
            pair.initiator.shutdown();
        });
    }
}

#[test]
fn a_dropped_engine_ends_its_batches() {
    let pair = Pair::new(32 * MIB);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.slow(rail, Some(2_000_000)));
    let batch = pair.submit(pair.write_all());
    let Pair { initiator, .. } = pair;
    ends_in_time("drop", || drop(initiator));
    let status = batch.wait(Duration::ZERO).unwrap();
    assert_eq!(status.status, Status::ShutDown);
    truthful(batch.report(0).unwrap());
}

#[test]
fn shutdown_with_every_rail_cut_is_bounded() {
    let pair = Pair::new(8 * MIB);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.cut(rail));
    let batch = pair.submit(pair.write_all());
    ends_in_time("shutdown", || pair.initiator.shutdown());
    assert_ne!(
        batch.wait(Duration::ZERO).unwrap().status,
        Status::Completed
    );
    truthful(batch.report(0).unwrap());
}

#[test]
fn a_target_that_ends_while_it_is_written_to_ends_the_requests() {
    let pair = Pair::new(32 * MIB);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.slow(rail, Some(5_000_000)));
    let before = pair.moved_bytes();
    let batch = pair.submit(pair.write_all());
    until("some has moved", || pair.moved_bytes() > before + 200_000);
    ends_in_time("target", || pair.target.shutdown());
    let start = Instant::now();
    let status = ended(&batch);
    assert!(start.elapsed() < END_MAX, "{:?}", start.elapsed());
    assert!(
        matches!(
            status.status,
            Status::Failed | Status::Indeterminate | Status::PeerLost
        ),
        "{status:?}"
    );
    truthful(batch.report(0).unwrap());
    let late = pair.submit(pair.write(0, 1));
    let status = ended(&late);
    assert_eq!(status.status, Status::Failed, "{:?}", late.report(0));
    ends_in_time("initiator of a dead peer", || pair.initiator.shutdown());
}

#[test]
fn engines_without_anything_to_do_end_at_once() {
    for _ in 0..10 {
        let engine = target("idle");
        let start = Instant::now();
        let clone = engine.clone();
        drop(engine);
        drop(clone);
        assert!(
            start.elapsed() < Duration::from_secs(1),
            "{:?}",
            start.elapsed()
        );
    }
    let faults = Arc::new(Faults::new());
    let engine = initiator(&faults);
    engine.shutdown();
    engine.shutdown();
    let id = engine.allocate("after", 1, Access::Local).unwrap();
    engine.unregister(id).unwrap();
}

#[test]
fn a_port_is_free_when_its_engine_has_ended() {
    let engine = target("first");
    let at = engine.listening().unwrap();
    for _ in 0..5 {
        engine.shutdown();
        let next = Engine::new(Config {
            listen: Some(at),
            ..target_config("next")
        });
        next.unwrap().shutdown();
    }
}
