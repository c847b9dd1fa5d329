//! Transfers that are prepared once and posted many times.

use polyrail::{NOTIFICATION_BYTES_MAX, Op, RegisterError, Request, Status, SubmitError, Terms};

use crate::fixture::*;

/// Requests of a transfer here.
const PARTS: u64 = 4;

/// Writes that move all of the memory.
fn parts(pair: &Pair) -> Vec<Request> {
    let length = pair.bytes / PARTS;
    (0..PARTS)
        .map(|part| pair.write(part * length, length))
        .collect()
}

#[test]
fn every_post_moves_what_the_memory_holds_then() {
    let pair = Pair::new(MIB);
    let mut transfer = pair.initiator.prepare_transfer(&parts(&pair)).unwrap();
    assert_eq!(transfer.requests(), parts(&pair));
    for seed in 0..20 {
        fill(&pair.source(), seed);
        let batch = transfer.post().unwrap();
        completed(&batch);
        assert!(bytes(&pair.destination()) == pattern(seed, pair.bytes));
        assert_eq!(batch.status().requests, PARTS as u32);
        assert_eq!(batch.status().delivered_bytes, pair.bytes);
    }
    drop(transfer);
    pair.initiator.unregister(pair.local).unwrap();
}

#[test]
fn posts_may_overlap_and_each_has_its_own_batch() {
    let pair = Pair::new(MIB);
    pair.warm_up();
    let mut transfer = pair.initiator.prepare_transfer(&parts(&pair)).unwrap();
    pair.each_rail(|faults, rail| faults.cut(rail));
    let batches: Vec<_> = (0..3).map(|_| transfer.post().unwrap()).collect();
    for batch in &batches {
        assert_eq!(batch.status().status, Status::Pending);
    }
    let error = pair.initiator.unregister(pair.local).unwrap_err();
    assert!(
        matches!(error, RegisterError::InUse { requests } if requests == 3 * PARTS),
        "{error:?}"
    );
    batches[1].cancel();
    assert_eq!(ended(&batches[1]).status, Status::Cancelled);
    pair.each_rail(|faults, rail| faults.restore(rail));
    completed(&batches[0]);
    completed(&batches[2]);
    // One that did not complete leaves nothing behind for those that come after it.
    drop(batches);
    for _ in 0..4 {
        completed(&transfer.post().unwrap());
    }
    pair.initiator.unregister(pair.local).unwrap();
}

#[test]
fn a_batch_that_is_kept_stays_as_it_ended() {
    let pair = Pair::new(MIB);
    let mut transfer = pair.initiator.prepare_transfer(&parts(&pair)).unwrap();
    let first = transfer.post().unwrap();
    completed(&first);
    pair.each_rail(|faults, rail| faults.cut(rail));
    let second = transfer.post().unwrap();
    assert_eq!(first.status().status, Status::Completed);
    assert_eq!(second.status().status, Status::Pending);
    pair.each_rail(|faults, rail| faults.restore(rail));
    completed(&second);
}

#[test]
fn what_cannot_be_posted_is_said_when_it_is_prepared() {
    let pair = Pair::new(MIB);
    let prepare = |request| pair.initiator.prepare_transfer(&[request]).unwrap_err();
    let good = pair.write(0, 4096);
    assert!(matches!(
        prepare(Request { length: 0, ..good }),
        SubmitError::Empty { index: 0 }
    ));
    let beyond = Request {
        remote_offset: MIB,
        ..good
    };
    assert!(matches!(
        prepare(beyond),
        SubmitError::OutOfRange { index: 0, .. }
    ));
    let turned = Request {
        local: pair.remote,
        remote: pair.local,
        ..good
    };
    assert!(matches!(
        prepare(turned),
        SubmitError::Stale { index: 0, .. }
    ));
    let none = pair.initiator.prepare_transfer(&[]).unwrap_err();
    assert!(matches!(none, SubmitError::BatchSize { requests: 0, .. }));
}

#[test]
fn segments_that_have_gone_since_are_errors() {
    let pair = Pair::new(MIB);
    let read = Request {
        op: Op::Read,
        ..pair.write(0, 4096)
    };
    let mut transfer = pair
        .initiator
        .prepare_transfer(&[pair.write(0, 1), read])
        .unwrap();
    completed(&transfer.post().unwrap());
    pair.initiator.unregister(pair.local).unwrap();
    for _ in 0..2 {
        let error = transfer.post().unwrap_err();
        assert!(
            matches!(error, SubmitError::Stale { index: 0, .. }),
            "{error:?}"
        );
    }
    pair.initiator.shutdown();
    assert!(matches!(transfer.post(), Err(SubmitError::ShutDown)));
}

#[test]
fn a_post_can_tell_the_peer_and_a_refused_one_holds_nothing() {
    let pair = Pair::new(MIB);
    let mut transfer = pair.initiator.prepare_transfer(&parts(&pair)).unwrap();
    for round in 0_u8..3 {
        let words = [round];
        let terms = Terms {
            notification: Some(&words),
            ..Terms::default()
        };
        let batch = transfer.post_with(&terms).unwrap();
        completed(&batch);
        assert!(batch.delivery().is_some());
        let told = pair.target.notifications().wait(PATIENCE).unwrap();
        assert_eq!(told.bytes, words);
        let batch = transfer.post().unwrap();
        completed(&batch);
        assert!(batch.delivery().is_none(), "what an earlier post told");
        let long = vec![0; NOTIFICATION_BYTES_MAX + 1];
        let terms = Terms {
            notification: Some(&long),
            ..Terms::default()
        };
        let refused = transfer.post_with(&terms).unwrap_err();
        assert!(matches!(
            refused,
            SubmitError::NotificationSize { bytes } if bytes == long.len()
        ));
    }
    pair.initiator.unregister(pair.local).unwrap();
}
