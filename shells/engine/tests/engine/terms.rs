//! Batches on other terms than usual: what matters more goes first, and what is late ends.

use std::time::{Duration, Instant};

use polyrail::{Cause, Local, Op, Priority, Remote, Request, Status, Terms};

use crate::fixture::*;
use crate::silence::far;

#[test]
fn what_matters_more_overtakes() {
    let far = far();
    far.slow_down();
    let low = Terms {
        priority: Priority::Low,
        ..Terms::default()
    };
    let high = Terms {
        priority: Priority::High,
        ..Terms::default()
    };
    let big = far.initiator.submit_with(&[far.write], &low).unwrap();
    let small = Request {
        length: 4096,
        ..far.write
    };
    let small = far.initiator.submit_with(&[small], &high).unwrap();
    assert_eq!(ended(&small).status, Status::Completed);
    assert_eq!(big.status().status, Status::Pending);
    far.link.restore_speed();
    assert_eq!(ended(&big).status, Status::Completed);
}

#[test]
fn a_deadline_ends_what_is_late_and_nothing_of_it_moves_after_that() {
    let far = far();
    far.slow_down();
    for op in [Op::Write, Op::Read] {
        let within = Terms {
            deadline: Some(Duration::from_millis(50)),
            ..Terms::default()
        };
        let start = Instant::now();
        let request = Request { op, ..far.write };
        let batch = far.initiator.submit_with(&[request], &within).unwrap();
        assert_eq!(ended(&batch).status, Status::DeadlineExceeded);
        assert!(start.elapsed() >= Duration::from_millis(50));
        let report = batch.report(0).unwrap();
        assert_eq!(report.cause, Some(Cause::DeadlineExceeded));
        assert_eq!(
            (report.local, report.remote),
            (Local::Released, Remote::Settled)
        );
    }
    // In time, it is as if there were none.
    far.link.restore_speed();
    let within = Terms {
        deadline: Some(Duration::from_secs(60)),
        ..Terms::default()
    };
    let batch = far.initiator.submit_with(&[far.write], &within).unwrap();
    assert_eq!(ended(&batch).status, Status::Completed);
}
