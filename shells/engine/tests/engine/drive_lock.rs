//! Who waits drives the worker: whoever does, and whoever stops, batches go on and end.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::time::Duration;

use polyrail::{Status, WaitError};

use crate::fixture::*;

#[test]
fn a_batch_that_nobody_waits_for_ends_after_many_that_were() {
    let pair = Pair::new(MIB);
    for round in 0..20 {
        // The worker's thread leaves the work to this one.
        for _ in 0..50 {
            completed(&pair.submit(pair.write(0, 4096)));
        }
        fill(&pair.source(), round);
        let batch = pair.submit(pair.write_all());
        let expected = pattern(round, MIB);
        until("its bytes arrive although nobody asks for it", || {
            bytes(&pair.destination()) == expected
        });
        completed(&batch);
    }
}

#[test]
fn what_is_under_way_ends_when_a_program_that_always_came_back_stays_away() {
    let pair = Pair::new(MIB);
    for round in 0..30 {
        // Nothing is touched that is on its way.
        fill(&pair.source(), round);
        // Many on their way, and whoever has waited for one submits the next and waits again: nobody else is needed.
        let mut line = VecDeque::new();
        for _ in 0..100 {
            if line.len() == 8 {
                completed(&line.pop_front().unwrap());
            }
            line.push_back(pair.submit(pair.write(0, 4096)));
        }
        let batch = pair.submit(pair.write_all());
        match round % 3 {
            0 => until("it goes on although nobody asks for it", || {
                bytes(&pair.destination()) == pattern(round, MIB)
            }),
            1 => {
                let (sender, ended) = mpsc::channel();
                batch.on_done(move |status| sender.send(status.status).unwrap());
                let status = ended.recv_timeout(PATIENCE).unwrap();
                assert_eq!(status, Status::Completed);
            }
            _ => std::thread::scope(|scope| {
                scope.spawn(|| completed(&batch));
                completed(&line[7]);
            }),
        }
        completed(&batch);
        line.iter().for_each(completed);
    }
}

#[test]
fn threads_that_wait_at_one_worker_all_see_their_batches_end() {
    let pair = Pair::new(MIB);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let pair = &pair;
            scope.spawn(move || {
                for round in 0..200 {
                    let length = if (thread + round) % 3 == 0 {
                        131_072
                    } else {
                        512
                    };
                    completed(&pair.submit(pair.write(thread * 131_072, length)));
                }
            });
        }
    });
}

#[test]
fn a_wait_that_is_given_up_leaves_the_batch_to_the_worker() {
    let pair = Pair::new(MIB);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.slow(rail, Some(1_000_000)));
    fill(&pair.source(), 7);
    let batch = pair.submit(pair.write_all());
    let given_up = batch.wait(Duration::from_millis(1)).unwrap_err();
    let WaitError::TimedOut { status, .. } = given_up else {
        panic!("{given_up:?}")
    };
    assert_eq!(status.status, Status::Pending);
    pair.each_rail(|faults, rail| faults.slow(rail, None));
    until("it goes on by itself", || {
        bytes(&pair.destination()) == pattern(7, MIB)
    });
    completed(&batch);
}

#[test]
fn a_shutdown_ends_the_wait_of_who_drives() {
    let pair = Pair::new(MIB);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.slow(rail, Some(1_000)));
    let batch = pair.submit(pair.write_all());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| ended(&batch));
        pair.initiator.shutdown();
        let status = waiter.join().unwrap().status;
        assert!(
            matches!(status, Status::ShutDown | Status::Indeterminate),
            "{status:?}"
        );
    });
}
