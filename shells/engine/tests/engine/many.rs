//! Batches of more requests than a worker has tables for.

use std::time::Duration;

use polyrail::{Batch, Config, Local, RegisterError, Remote, Request, Status, SubmitError, Terms};

use crate::fixture::*;

/// The most that one batch can have.
const MOST: u64 = 1_000_000;
/// More than a worker can have under way.
const MANY: u64 = 50_000;
/// As many of a batch of so many are under way at a time.
const WIDTH: u32 = 4_096;
/// Bytes of a block, and from one to the next.
const BLOCK: u64 = 5;
const STEP: u64 = 8;

/// Writes of blocks with gaps between, so that each is a transfer of its own.
fn blocks(pair: &Pair, count: u64) -> Vec<Request> {
    let block = |index: u64| pair.write(index * STEP, BLOCK);
    (0..count).map(block).collect()
}

/// A pair whose rails carry nothing for the time being, and many blocks that are on their way.
fn cut(terms: &Terms<'_>) -> (Pair, Batch) {
    let pair = Pair::new(MANY * STEP);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.cut(rail));
    let requests = blocks(&pair, MANY);
    let batch = pair.initiator.submit_with(&requests, terms).unwrap();
    (pair, batch)
}

fn all_ended(batch: &Batch, status: Status) {
    let seen = ended(batch);
    assert_eq!((seen.status, seen.requests), (status, MANY as u32));
    assert_eq!((seen.ended, seen.failed), (MANY as u32, MANY as u32));
    for index in 0..MANY as usize {
        let report = batch.report(index).unwrap();
        let sides = (report.local, report.remote);
        assert_eq!(report.status, status, "{index}");
        assert_eq!(sides, (Local::Released, Remote::Settled), "{index}");
    }
}

#[test]
fn a_million_requests_are_one_batch_and_each_is_told_of() {
    carries_a_million(initiator_config());
}

#[test]
fn a_million_requests_are_one_batch_of_a_worker_that_holds_few() {
    let mut config = initiator_config();
    config.limits.requests = 64;
    carries_a_million(config);
}

fn carries_a_million(config: Config) {
    let pair = Pair::with(MOST * STEP, |faults| initiator_with(config, faults, None));
    fill(&pair.source(), 7);
    poison(&pair.destination(), 0xee);
    let requests = blocks(&pair, MOST);
    let batch = pair.initiator.submit(&requests).unwrap();
    // What has not begun keeps the memory registered as well.
    let error = pair.initiator.unregister(pair.local).unwrap_err();
    assert!(
        matches!(error, RegisterError::InUse { requests } if requests <= MOST),
        "{error:?}"
    );
    let status = batch.wait(10 * PATIENCE).unwrap();
    assert_eq!((status.status, status.failed), (Status::Completed, 0));
    assert_eq!(u64::from(status.ended), MOST);
    assert_eq!(status.delivered_bytes, MOST * BLOCK);
    let told = |index| batch.report(index as usize).unwrap().delivered_bytes;
    assert!((0..MOST).all(|index| told(index) == BLOCK));
    assert_eq!(batch.report(MOST as usize), None);
    let mut expected = pattern(7, pair.bytes);
    for gap in expected.chunks_mut(STEP as usize) {
        gap[BLOCK as usize..].fill(0xee);
    }
    assert!(bytes(&pair.destination()) == expected);
    drop(requests);
    pair.initiator.unregister(pair.local).unwrap();
}

#[test]
fn a_large_batch_leaves_room_for_others_and_ends_with_all_of_it_back() {
    let (pair, large) = cut(&Terms::default());
    let held = || pair.initiator.stats().workers[0].held;
    assert_eq!(held(), WIDTH);
    let small = pair.submit(pair.write(0, BLOCK));
    let terms = Terms {
        room_within: Some(Duration::ZERO),
        ..Terms::default()
    };
    let requests = blocks(&pair, MANY);
    let again = || pair.initiator.submit_with(&requests, &terms);
    let others = [again().unwrap(), again().unwrap()];
    // There is room for four but for the small one.
    let error = again().unwrap_err();
    assert!(matches!(error, SubmitError::Full(Some(_))), "{error}");
    pair.each_rail(|faults, rail| faults.restore(rail));
    completed(&small);
    completed(&large);
    others.iter().for_each(completed);
    until("all of it is back", || held() == 0);
    completed(&again().unwrap());
}

#[test]
fn what_of_a_large_batch_has_not_begun_is_cancelled_with_the_rest() {
    let (pair, batch) = cut(&Terms::default());
    batch.cancel();
    all_ended(&batch, Status::Cancelled);
    pair.each_rail(|faults, rail| faults.restore(rail));
    pair.exchange(3);
    pair.initiator.unregister(pair.local).unwrap();
}

#[test]
fn a_deadline_ends_also_what_of_a_large_batch_has_not_begun() {
    let terms = Terms {
        deadline: Some(Duration::from_millis(100)),
        ..Terms::default()
    };
    let (pair, batch) = cut(&terms);
    all_ended(&batch, Status::DeadlineExceeded);
    pair.each_rail(|faults, rail| faults.restore(rail));
    pair.exchange(3);
}

#[test]
fn a_shutdown_tells_of_every_request_of_a_large_batch() {
    let (pair, batch) = cut(&Terms::default());
    pair.initiator.shutdown();
    let seen = ended(&batch);
    assert_eq!((seen.ended, seen.failed), (MANY as u32, MANY as u32));
    for index in 0..MANY as usize {
        let report = batch.report(index).unwrap();
        // Those that never began are known to have moved nothing.
        let began = index < WIDTH as usize;
        let never = report.status == Status::ShutDown && report.remote == Remote::Settled;
        assert!(began || never, "{index}: {report:?}");
        assert_ne!(report.status, Status::Completed, "{index}");
    }
}

#[test]
fn a_large_batch_that_is_prepared_moves_what_the_memory_holds_then() {
    let pair = Pair::new(MANY * STEP);
    let mut transfer = pair
        .initiator
        .prepare_transfer(&blocks(&pair, MANY))
        .unwrap();
    for seed in 1..4 {
        fill(&pair.source(), seed);
        let batch = transfer.post().unwrap();
        completed(&batch);
        let expected = pattern(seed, pair.bytes);
        let got = bytes(&pair.destination());
        let block =
            |all: &[u8], index: u64| all[(index * STEP) as usize..][..BLOCK as usize].to_vec();
        assert!((0..MANY).all(|index| block(&got, index) == block(&expected, index)));
    }
    drop(transfer);
    pair.initiator.unregister(pair.local).unwrap();
}
