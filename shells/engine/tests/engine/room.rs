//! Back-pressure: what does not fit is refused, and what fitted once fits again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail::{Batch, Request, Status, SubmitError, Terms};

use crate::fixture::*;

/// Requests that a worker holds; each [`Pair`] has one worker.
const REQUESTS: usize = 16_384;
/// Batches that a worker holds: one for each request.
const BATCHES: usize = REQUESTS;
/// The fewest requests that a worker can be configured to hold.
const FEW: usize = 64;

/// A pair whose initiator holds [`FEW`] requests, and waits for room as long as it takes.
fn with_few(bytes: u64) -> Pair {
    let mut config = initiator_config();
    config.limits.requests = FEW;
    config.send_queue.admission_timeout = PATIENCE;
    Pair::with(bytes, |faults| initiator_with(config, faults, None))
}

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
fn a_worker_that_holds_few_requests_carries_batches_of_any_size_side_by_side() {
    const SIZES: [u64; 5] = [1, FEW as u64, FEW as u64 + 1, 1_000, 100_000];
    let pair = with_few(SIZES.len() as u64 * MIB);
    let carries = |thread: usize| {
        let pair = &pair;
        move || {
            let offset = thread as u64 * MIB;
            for (round, size) in SIZES
                .iter()
                .cycle()
                .skip(thread)
                .take(SIZES.len())
                .enumerate()
            {
                let content = pattern((thread * SIZES.len() + round) as u64, MIB);
                put(&pair.source(), offset, &content);
                let begin = |index| MIB * index / size;
                let requests: Vec<_> = (0..*size)
                    .map(|index| pair.write(offset + begin(index), begin(index + 1) - begin(index)))
                    .collect();
                let batch = pair.initiator.submit(&requests).unwrap();
                let status = batch.wait(10 * PATIENCE).unwrap();
                assert_eq!(status.status, Status::Completed, "{size}: {status:?}");
                assert_eq!(u64::from(status.ended), *size);
                let there = get(&pair.destination(), offset, MIB);
                assert!(there == content, "thread {thread}, a batch of {size}");
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = [0, 1, 2, 3, 4].map(|thread| scope.spawn(carries(thread)));
        for thread in threads {
            thread.join().unwrap();
        }
    });
    let load = pair.initiator.stats().workers[0];
    assert_eq!((load.held, load.limit), (0, FEW as u32), "{load}");
    assert!(
        load.admission_waits > 0 && load.held_high <= FEW as u32,
        "{load}"
    );
}

#[test]
fn a_worker_has_as_many_on_rails_and_as_many_batches_as_it_is_configured_to_hold() {
    let pair = with_few(MIB);
    pair.warm_up();
    let on_rails = || -> u32 {
        let lanes = pair.initiator.stats().lanes;
        lanes.iter().map(|lane| lane.held).sum()
    };
    let held = || pair.initiator.stats().workers[0].held;
    let request = pair.write(0, 1);
    // (requests of each batch, batches that fit, of each in flight)
    let cases = [
        (FEW, 1, FEW),
        (1, FEW, 1),
        (FEW + 1, 4, FEW / 4),
        (1_000, 4, FEW / 4),
    ];
    for (requests, fit, width) in cases {
        let name = format!("batches of {requests}");
        until("nothing is on rails", || on_rails() == 0);
        pair.each_rail(|faults, rail| faults.cut(rail));
        let batches: Vec<_> = (0..fit)
            .map(|_| try_submit(&pair, &vec![request; requests]).unwrap())
            .collect();
        assert_eq!(held() as usize, fit * width, "{name}");
        // A rail may carry a look, too.
        until(&name, || on_rails() as usize >= FEW);
        let error = try_submit(&pair, &[request]).unwrap_err();
        let said = error.to_string();
        for part in ["worker 0 holds 64 of 64 requests", "(limits/requests)"] {
            assert!(said.contains(part), "{name}: {said}");
        }
        pair.each_rail(|faults, rail| faults.restore(rail));
        batches.iter().for_each(completed);
    }
}

#[test]
fn who_waits_with_few_requests_goes_on_beside_a_large_batch() {
    // As many had to be free as of 16,384: all of them, and a large batch keeps a quarter to its end.
    let pair = with_few(MIB);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.cut(rail));
    let request = pair.write(0, 1);
    let large = pair.initiator.submit(&[request; 1_000]).unwrap();
    let rest = pair.initiator.submit(&[request; FEW / 4 * 3]).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pair.submit(request));
        until("it waits", || {
            pair.initiator.stats().workers[0].waiting == 1
        });
        rest.cancel();
        let batch = waits.join().unwrap();
        assert_eq!(large.status().status, Status::Pending);
        pair.each_rail(|faults, rail| faults.restore(rail));
        completed(&batch);
        completed(&large);
    });
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
