//! Back-pressure: what does not fit is refused, and what fitted once fits again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail::{Batch, Request, Status, SubmitError, Terms};

use crate::fixture::*;

/// Requests that a worker holds; each [`Pair`] has one worker.
const REQUESTS: usize = 16_384;
/// Batches that a worker holds: one for each request.
const BATCHES: usize = REQUESTS;

#[test]
fn requests_are_refused_when_there_is_no_room_and_all_of_it_comes_back() {
    let pair = Pair::new(MIB);
    pair.warm_up();
    let request = pair.write(0, 1);
    for round in 0..4 {
        pair.each_rail(|faults, rail| faults.cut(rail));
        let most = pair
            .initiator
            .submit(&vec![request; REQUESTS - 10])
            .unwrap();
        let few = pair.initiator.submit(&[request; 10]).unwrap();
        for _ in 0..3 {
            let error = try_submit(&pair, &[request]).unwrap_err();
            assert!(
                matches!(error, SubmitError::Full(_)),
                "round {round}: {error}"
            );
        }
        pair.each_rail(|faults, rail| faults.restore(rail));
        completed(&most);
        completed(&few);
        // Not one less than at the start.
        completed(&pair.initiator.submit(&vec![request; REQUESTS]).unwrap());
    }
    pair.initiator.unregister(pair.local).unwrap();
}

#[test]
fn batches_are_refused_when_there_is_no_row_and_all_of_them_come_back() {
    let pair = Pair::new(MIB);
    pair.warm_up();
    let request = pair.write(0, 1);
    for round in 0..3 {
        pair.each_rail(|faults, rail| faults.cut(rail));
        let batches: Vec<_> = (0..BATCHES).map(|_| pair.submit(request)).collect();
        let error = try_submit(&pair, &[request]).unwrap_err();
        assert!(
            matches!(error, SubmitError::Full(_)),
            "round {round}: {error}"
        );
        pair.each_rail(|faults, rail| faults.restore(rail));
        batches.iter().for_each(completed);
        completed(&pair.submit(request));
    }
    pair.initiator.unregister(pair.local).unwrap();
}

/// Submits, and does not wait for room.
fn try_submit(pair: &Pair, requests: &[Request]) -> Result<Batch, SubmitError> {
    let terms = Terms {
        room_within: Some(Duration::ZERO),
        ..Terms::default()
    };
    pair.initiator.submit_with(requests, &terms)
}

/// A pair whose worker is full of requests that cannot end, and the batch they are.
fn full() -> (Pair, Batch) {
    let pair = Pair::new(MIB);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.cut(rail));
    let requests = vec![pair.write(0, 1); REQUESTS];
    let batch = pair.initiator.submit(&requests).unwrap();
    (pair, batch)
}

#[test]
fn submissions_wait_for_room_and_all_get_through() {
    let pair = Pair::new(MIB);
    fill(&pair.source(), 9);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let pair = &pair;
            scope.spawn(move || {
                // Twice as many in all as there is room for, and nobody looks at any before all are submitted.
                let offset = |piece: u64| (thread * 4096 + piece % 4096) * 64;
                let batches: Vec<_> = (0..8192)
                    .map(|piece| pair.submit(pair.write(offset(piece), 64)))
                    .collect();
                batches.iter().for_each(completed);
            });
        }
    });
    assert!(bytes(&pair.destination()) == pattern(9, MIB));
}

#[test]
fn nobody_waits_for_room_longer_than_they_want_to() {
    let (pair, batch) = full();
    let patience = Duration::from_millis(30);
    let terms = Terms {
        room_within: Some(patience),
        ..Terms::default()
    };
    let start = Instant::now();
    let request = pair.write(0, 1);
    let error = pair.initiator.submit_with(&[request], &terms).unwrap_err();
    assert!(matches!(error, SubmitError::Full(Some(_))), "{error}");
    assert!(start.elapsed() >= patience);
    // Who waits is told of a shutdown.
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let terms = Terms {
                room_within: Some(PATIENCE),
                ..Terms::default()
            };
            pair.initiator.submit_with(&[request], &terms).map(drop)
        });
        // Whether it waits already or comes too late, the answer is the same.
        pair.initiator.shutdown();
        assert_eq!(waits.join().unwrap(), Err(SubmitError::ShutDown));
    });
    assert_ne!(ended(&batch).status, Status::Completed);
}

/// The flow-control rework's case of a worker's end, by its name: what is queued gives its admission back and is told so.
#[test]
fn worker_shutdown_drains_tokens_and_promises() {
    let (pair, batch) = full();
    let request = pair.write(0, 1);
    let error = try_submit(&pair, &[request]).unwrap_err();
    assert!(matches!(error, SubmitError::Full(_)), "{error}");
    pair.initiator.shutdown();
    let report = ended(&batch);
    assert_ne!(report.status, Status::Completed);
    assert_eq!(report.ended as usize, REQUESTS, "each was told of");
    assert_eq!(
        try_submit(&pair, &[request]).unwrap_err(),
        SubmitError::ShutDown
    );
}

#[test]
fn a_callback_does_not_wait_for_the_room_that_it_holds_up() {
    let pair = Arc::new(Pair::new(MIB));
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.cut(rail));
    let request = pair.write(0, 1);
    let first = pair.submit(request);
    let rest = pair.initiator.submit(&vec![request; REQUESTS - 1]).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let submits = pair.clone();
    first.on_done(move |_| {
        // The one that has just ended left room for one, not for all.
        let start = Instant::now();
        let error = submits.initiator.submit(&vec![request; REQUESTS]).map(drop);
        let _ = tell.send((error, start.elapsed()));
    });
    pair.each_rail(|faults, rail| faults.restore(rail));
    let (answer, took) = told.recv_timeout(PATIENCE).unwrap();
    assert!(
        matches!(answer, Err(SubmitError::Full(Some(_)))),
        "{answer:?}"
    );
    assert!(took < Duration::from_millis(900), "{took:?}");
    completed(&rest);
}
