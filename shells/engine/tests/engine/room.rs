//! Back-pressure: what does not fit is refused, and what fitted once fits again.

use polyrail::SubmitError;

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
            let error = pair.initiator.submit(&[request]).unwrap_err();
            assert_eq!(error, SubmitError::Full, "round {round}");
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
        let error = pair.initiator.submit(&[request]).unwrap_err();
        assert_eq!(error, SubmitError::Full, "round {round}");
        pair.each_rail(|faults, rail| faults.restore(rail));
        batches.iter().for_each(completed);
        completed(&pair.submit(request));
    }
    pair.initiator.unregister(pair.local).unwrap();
}

#[test]
fn whoever_tries_again_gets_everything_through() {
    let pair = Pair::new(MIB);
    fill(&pair.source(), 9);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let pair = &pair;
            scope.spawn(move || {
                let mut batches = Vec::new();
                for piece in 0..4096 {
                    let request = pair.write((thread * 4096 + piece) * 64, 64);
                    let batch = loop {
                        match pair.initiator.submit(&[request]) {
                            Ok(batch) => break batch,
                            Err(SubmitError::Full) => std::thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    };
                    batches.push(batch);
                }
                batches.iter().for_each(completed);
            });
        }
    });
    assert!(bytes(&pair.destination()) == pattern(9, MIB));
}
