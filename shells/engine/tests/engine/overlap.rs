//! Requests that write to the same bytes at once, where a program has asked to be told.

use polyrail::{
    Blocks, Config, Engine, Op, PagedRequest, Places, Request, Status, SubmitError, Terms,
};

use crate::fixture::*;

fn looking() -> Config {
    Config {
        check_overlap: true,
        ..initiator_config()
    }
}

/// The request refused, the other one, and whether that is on its way.
fn named(error: SubmitError) -> (usize, usize, bool) {
    let SubmitError::Overlap {
        index,
        other,
        under_way,
        ..
    } = error
    else {
        panic!("{error}");
    };
    (index, other, under_way)
}

#[test]
fn writes_to_the_same_bytes_are_refused_with_both_named() {
    let pair = Pair::with(MIB, |faults| initiator_with(looking(), faults, None));
    pair.warm_up();
    let write = |offset, length| pair.write(offset, length);
    let read = |offset, length| Request {
        op: Op::Read,
        ..pair.write(offset, length)
    };
    let submit = |requests: &[Request]| pair.initiator.submit(requests);
    let error = submit(&[write(0, 10), write(50, 10), write(9, 1)]).unwrap_err();
    let text = error.to_string();
    for part in [
        "request 2 writes bytes 9 to 10",
        "request 0 of the same batch bytes 0 to 10",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(named(error), (2, 0, false));
    // Reads write here, writes there; what touches does not overlap.
    completed(&submit(&[write(0, 10), read(0, 10), write(10, 10), read(10, 1)]).unwrap());

    pair.each_rail(|faults, rail| faults.cut(rail));
    let first = submit(&[write(100, 10), write(0, 10)]).unwrap();
    let error = submit(&[read(0, 10), write(105, 100)]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("request 0 of a batch on its way"),
        "{error}"
    );
    assert_eq!(named(error), (1, 0, true));
    // What was refused has claimed nothing.
    let second = submit(&[read(0, 10)]).unwrap();
    assert_eq!(named(submit(&[read(5, 1)]).unwrap_err()), (0, 0, true));
    pair.each_rail(|faults, rail| faults.restore(rail));
    completed(&first);
    completed(&second);
    // Whoever has waited may write there again.
    for _ in 0..100 {
        completed(&submit(&[write(100, 10), read(5, 1)]).unwrap());
    }
    pair.each_rail(|faults, rail| faults.cut(rail));
    let third = submit(&[write(0, 10)]).unwrap();
    third.cancel();
    assert_eq!(ended(&third).status, Status::Cancelled);
    pair.each_rail(|faults, rail| faults.restore(rail));
    completed(&submit(&[write(0, 10)]).unwrap());
}

#[test]
fn pages_and_prepared_transfers_are_looked_at_as_well() {
    let pair = Pair::with(MIB, |faults| initiator_with(looking(), faults, None));
    pair.warm_up();
    let paged = |table| {
        let blocks = |segment, places| Blocks {
            segment,
            base: 0,
            stride: 100,
            places,
        };
        PagedRequest {
            op: Op::Write,
            local: blocks(pair.local, Places::Rows(3)),
            remote: blocks(pair.remote, Places::Pages(table)),
            length: 100,
        }
    };
    let submit =
        |requests: &[PagedRequest<'_>]| pair.initiator.submit_paged(requests, &Terms::default());
    let error = submit(&[paged(&[1, 5, 6]), paged(&[3, 7, 6])]).unwrap_err();
    assert_eq!(named(error), (1, 0, false));
    let mut transfer = pair.initiator.prepare_paged(&[paged(&[1, 5, 6])]).unwrap();
    pair.each_rail(|faults, rail| faults.cut(rail));
    let posted = transfer.post().unwrap();
    assert_eq!(named(transfer.post().unwrap_err()), (0, 0, true));
    assert_eq!(
        named(submit(&[paged(&[2, 4, 5])]).unwrap_err()),
        (0, 0, true)
    );
    let beside = submit(&[paged(&[2, 4, 7])]).unwrap();
    pair.each_rail(|faults, rail| faults.restore(rail));
    completed(&posted);
    completed(&beside);
    completed(&transfer.post().unwrap());
}

#[test]
fn nobody_looks_unless_asked_and_what_is_copied_at_once_leaves_no_claim() {
    let pair = Pair::new(MIB);
    completed(&pair.initiator.submit(&[pair.write(0, 10); 2]).unwrap());
    let near = |_: &_| {
        Engine::new(Config {
            check_overlap: true,
            ..Config::named("near")
        })
        .unwrap()
    };
    let pair = Pair::with(MIB, near);
    for _ in 0..100 {
        completed(&pair.submit(pair.write(0, 10)));
    }
    let error = pair.initiator.submit(&[pair.write(0, 10); 2]).unwrap_err();
    assert_eq!(named(error), (1, 0, false));
}
