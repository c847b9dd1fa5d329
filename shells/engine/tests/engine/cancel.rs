//! Waiting, looking, and changing one's mind.

use std::thread;
use std::time::{Duration, Instant};

use polyrail::{Access, Local, Op, Remote, Request, Status, WaitError};

use crate::fixture::*;

/// Slow enough for a test to do things meanwhile.
const SLOW_BYTES_PER_SEC: u64 = 2_000_000;

#[test]
fn a_pending_batch_can_be_looked_at_and_waited_for_again() {
    let pair = Pair::new(MIB);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.cut(rail));
    let request = pair.write(0, 1000);
    let batch = pair.initiator.submit(&[request; 3]).unwrap();
    let status = batch.status();
    assert_eq!(
        (status.status, status.requests, status.ended),
        (Status::Pending, 3, 0)
    );
    assert_eq!(batch.report(0).unwrap().status, Status::Pending);
    assert_eq!(batch.report(3), None);
    let timeout = Duration::from_millis(10);
    for _ in 0..2 {
        let waited = batch.wait(timeout).unwrap_err();
        assert!(
            matches!(waited, WaitError::TimedOut { after, status, .. } if after == timeout && status.ended == 0),
            "{waited:?}"
        );
        assert!(waited.to_string().contains("0 of 3"), "{waited}");
    }
    assert!(batch.wait(Duration::ZERO).is_err());
    pair.each_rail(|faults, rail| faults.restore(rail));
    thread::scope(|scope| {
        for _ in 0..4 {
            let batch = batch.clone();
            scope.spawn(move || completed(&batch));
        }
    });
    assert_eq!(batch.status().delivered_bytes, 3000);
    assert_eq!(batch.wait(Duration::ZERO).unwrap(), batch.status());
    assert_eq!(batch.wait(Duration::MAX).unwrap(), batch.status());
}

#[test]
fn after_a_cancelled_report_nothing_moves_any_more() {
    for op in [Op::Write, Op::Read] {
        let pair = Pair::new(32 * MIB);
        pair.warm_up();
        let before = pair.moved_bytes();
        pair.each_rail(|faults, rail| faults.slow(rail, Some(SLOW_BYTES_PER_SEC)));
        let batch = pair.submit(Request {
            op,
            ..pair.write_all()
        });
        until("some of it has moved", || {
            pair.moved_bytes() > before + 200_000
        });
        let start = Instant::now();
        batch.cancel();
        assert_eq!(ended(&batch).status, Status::Cancelled);
        assert!(
            start.elapsed() < Duration::from_secs(3),
            "{:?}",
            start.elapsed()
        );
        let report = batch.report(0).unwrap();
        assert!(report.delivered_bytes < pair.bytes, "{report:?}");
        assert_eq!(
            (report.local, report.remote),
            (Local::Released, Remote::Settled)
        );

        let touched = match op {
            Op::Write => pair.destination(),
            Op::Read => pair.source(),
        };
        poison(&touched, 0xee);
        pair.each_rail(|faults, rail| faults.slow(rail, None));
        // Other traffic over the same rails, until each has carried some of it.
        let bystander = pair.bystander();
        (0..RAILS).for_each(|rail| pair.until_used(rail, bystander));
        assert!(bytes(&touched).iter().all(|byte| *byte == 0xee), "{op:?}");
    }
}

#[test]
fn a_batch_cancelled_at_once_ends_whatever_the_worker_has_seen_of_it() {
    // The worker once looked at a cancellation before the submission that it was about, if that was the
    // first between two segments: the cancellation was lost.
    let pair = Pair::new(64 * MIB);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.slow(rail, Some(100_000)));
    for round in 0..50 {
        let name = format!("new{round}");
        let local = pair
            .initiator
            .allocate(&name, 64 * MIB, Access::Local)
            .unwrap();
        let request = Request {
            local,
            ..pair.write_all()
        };
        let batch = pair.initiator.submit(&[request; 4]).unwrap();
        batch.cancel();
        let status = batch.wait(Duration::from_secs(10)).unwrap();
        assert_eq!((status.status, status.ended), (Status::Cancelled, 4));
        pair.initiator.unregister(local).unwrap();
    }
}

#[test]
fn cancelling_what_has_ended_changes_nothing() {
    let pair = Pair::new(MIB);
    let first = pair.submit(pair.write_all());
    completed(&first);
    // Its row is used again by now.
    let second = pair.submit(pair.write_all());
    first.cancel();
    completed(&second);
    first.cancel();
    second.cancel();
    assert_eq!(first.status().status, Status::Completed);
    pair.exchange(5);
}

#[test]
fn a_dropped_batch_goes_on() {
    let pair = Pair::new(8 * MIB);
    fill(&pair.source(), 3);
    let batch = pair.submit(pair.write_all());
    let clone = batch.clone();
    drop(batch);
    completed(&clone);
    drop(clone);
    assert!(bytes(&pair.destination()) == pattern(3, pair.bytes));
    fill(&pair.source(), 4);
    drop(pair.submit(pair.write_all()));
    let last = pattern(4, pair.bytes);
    until("all of it has arrived", || {
        bytes(&pair.destination()) == last
    });
}
