//! Requests whose bytes lie in pages and rows.

use std::time::Duration;

use polyrail::{
    Access, Blocks, Engine, Local, Op, PagedRequest, Places, RegisterError, Remote, SegmentId,
    Status, SubmitError, Terms,
};

use crate::fixture::*;

/// Bytes of a page.
const PAGE: u64 = 1000;

fn pages(segment: SegmentId, table: &[u32]) -> Blocks<'_> {
    Blocks {
        segment,
        base: 0,
        stride: PAGE,
        places: Places::Pages(table),
    }
}

fn request<'a>(pair: &Pair, op: Op, here: &'a [u32], there: &'a [u32]) -> PagedRequest<'a> {
    PagedRequest {
        op,
        local: pages(pair.local, here),
        remote: pages(pair.remote, there),
        length: PAGE,
    }
}

/// The numbers from 0 on, mixed.
fn mixed(count: u32, by: u32) -> Vec<u32> {
    (0..count).map(|index| index * by % count).collect()
}

/// What the far end of writes looks like, page by page.
fn moved(from: &[u8], to: &mut [u8], here: &[u32], there: &[u32]) {
    for (here, there) in here.iter().zip(there) {
        let [here, there] = [here, there].map(|page| u64::from(*page) * PAGE);
        let page = &from[here as usize..][..PAGE as usize];
        to[there as usize..][..PAGE as usize].copy_from_slice(page);
    }
}

fn paged(pair: &Pair, requests: &[PagedRequest<'_>]) -> Result<polyrail::Batch, SubmitError> {
    pair.initiator.submit_paged(requests, &Terms::default())
}

/// Over the network, and between processes of one host, also by the thread that submits.
fn pairs(bytes: u64) -> [Pair; 2] {
    let near = |_: &_| Engine::new(polyrail::Config::named("near")).unwrap();
    [Pair::new(bytes), Pair::with(bytes, near)]
}

#[test]
fn pages_go_where_their_tables_say_and_nowhere_else() {
    for pair in pairs(2000 * PAGE) {
        let (here, there) = (mixed(1000, 7), mixed(1000, 13));
        // Every other one of the peer's.
        let there: Vec<u32> = there.iter().map(|page| 2 * page).collect();
        for op in [Op::Write, Op::Read, Op::Write] {
            fill(&pair.source(), 1);
            fill(&pair.destination(), 2);
            let (mut ours, mut theirs) = (pattern(1, pair.bytes), pattern(2, pair.bytes));
            match op {
                Op::Write => moved(&ours, &mut theirs, &here, &there),
                Op::Read => moved(&theirs, &mut ours, &there, &here),
            }
            let halves = [
                request(&pair, op, &here[..3], &there[..3]),
                request(&pair, op, &here[3..], &there[3..]),
            ];
            let batch = paged(&pair, &halves).unwrap();
            completed(&batch);
            assert_eq!(batch.status().requests, 2);
            let told = [0, 1].map(|index| batch.report(index).unwrap());
            let delivered = told.map(|report| report.delivered_bytes);
            assert_eq!(delivered, [3 * PAGE, 997 * PAGE]);
            assert_eq!(told[1].status, Status::Completed);
            assert_eq!(batch.report(2), None);
            assert!(bytes(&pair.source()) == ours, "{op:?}");
            assert!(bytes(&pair.destination()) == theirs, "{op:?}");
        }
        pair.initiator.unregister(pair.local).unwrap();
    }
}

#[test]
fn rows_are_gathered_and_scattered() {
    for pair in pairs(MIB) {
        fill(&pair.source(), 5);
        poison(&pair.destination(), 0xee);
        // A column of 24 bytes of 100 rows, to one place; the first of these rows four times, behind that.
        let rows = |segment, base, stride, count| Blocks {
            segment,
            base,
            stride,
            places: Places::Rows(count),
        };
        let column = PagedRequest {
            op: Op::Write,
            local: rows(pair.local, 40, 1024, 100),
            remote: rows(pair.remote, 7, 24, 100),
            length: 24,
        };
        let repeated = PagedRequest {
            local: rows(pair.local, 40, 0, 4),
            remote: rows(pair.remote, 2407, 24, 4),
            ..column
        };
        completed(&paged(&pair, &[column, repeated]).unwrap());
        let from = pattern(5, pair.bytes);
        let row = |row: usize| &from[40 + 1024 * row..][..24];
        let mut expected = vec![0xee; MIB as usize];
        let rows = (0..100).chain([0; 4]);
        for (at, index) in rows.enumerate() {
            expected[7 + 24 * at..][..24].copy_from_slice(row(index));
        }
        assert!(bytes(&pair.destination()) == expected);
    }
}

#[test]
fn a_prepared_one_keeps_its_tables_and_posts_what_the_memory_holds_then() {
    for pair in pairs(100 * PAGE) {
        let (mut here, there) = (mixed(100, 7), mixed(100, 1));
        let parts = [request(&pair, Op::Write, &here, &there)];
        let prepared = pair.initiator.prepare_paged(&parts);
        let mut transfer = prepared.unwrap();
        let kept = here.clone();
        here.fill(u32::MAX);
        for seed in 0..10 {
            fill(&pair.source(), seed);
            let batch = transfer.post().unwrap();
            completed(&batch);
            assert_eq!(batch.status().requests, 1);
            assert_eq!(batch.report(0).unwrap().delivered_bytes, 100 * PAGE);
            let mut expected = vec![0; pair.bytes as usize];
            moved(&pattern(seed, pair.bytes), &mut expected, &kept, &there);
            assert!(bytes(&pair.destination()) == expected, "{seed}");
        }
        drop(transfer);
        pair.initiator.unregister(pair.local).unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused_by_request_block_and_page() {
    let pair = Pair::new(10 * PAGE);
    let good = request(&pair, Op::Write, &[0], &[0]);
    let bytes = pair.bytes;
    let past = |block, number, segment, offset| SubmitError::BlockOutOfRange {
        index: 1,
        block,
        number,
        segment,
        offset,
        length: PAGE,
        segment_bytes: bytes,
    };
    let everything = u64::from(u32::MAX) * PAGE;
    let far = Blocks {
        stride: u64::MAX,
        ..pages(pair.remote, &[0, 2])
    };
    let fixed = pair.target.allocate("fixed", bytes, Access::RemoteRead);
    fixed.unwrap();
    let fixed = pair.initiator.open_segment(&address(&pair.target, "fixed"));
    let fixed = fixed.unwrap();
    let cases = [
        (
            request(&pair, Op::Write, &[4, 5, 10], &[1, 2, 3]),
            past(2, 10, pair.local, 10 * PAGE),
        ),
        (
            request(&pair, Op::Read, &[4, 5], &[8, u32::MAX]),
            past(1, u32::MAX.into(), pair.remote, everything),
        ),
        (
            PagedRequest {
                local: pages(pair.local, &[1, 2]),
                remote: far,
                ..good
            },
            past(1, 2, pair.remote, u64::MAX),
        ),
        (
            request(&pair, Op::Write, &[1, 2], &[1]),
            SubmitError::BlockCounts {
                index: 1,
                local: 2,
                remote: 1,
            },
        ),
        (
            request(&pair, Op::Write, &[], &[]),
            SubmitError::Empty { index: 1 },
        ),
        (
            PagedRequest { length: 0, ..good },
            SubmitError::Empty { index: 1 },
        ),
        (
            PagedRequest {
                remote: pages(fixed, &[0]),
                ..good
            },
            SubmitError::Forbidden {
                index: 1,
                segment: fixed,
            },
        ),
    ];
    for (bad, expected) in cases {
        let error = paged(&pair, &[good, bad]).unwrap_err();
        assert_eq!(error, expected);
        let prepared = pair.initiator.prepare_paged(&[good, bad]);
        assert_eq!(prepared.map(drop), Err(expected));
    }
    let words = past(1, 4_294_967_295, pair.remote, everything).to_string();
    for part in ["request 1", "block 1", "row 4294967295", "10000 bytes"] {
        assert!(words.contains(part), "{words}");
    }
    let rows = |segment| Blocks {
        places: Places::Rows(1_000_001),
        stride: 0,
        ..pages(segment, &[])
    };
    let many = PagedRequest {
        local: rows(pair.local),
        remote: rows(pair.remote),
        ..good
    };
    let refused = |requests: &[PagedRequest<'_>], count| {
        let error = paged(&pair, requests).unwrap_err();
        let limit = 1_000_000;
        assert_eq!(
            error,
            SubmitError::BatchSize {
                requests: count,
                limit
            }
        );
    };
    refused(&[many], 1_000_001);
    refused(&[], 0);
    completed(&paged(&pair, &[good]).unwrap());
    pair.initiator.unregister(pair.local).unwrap();
}

#[test]
fn a_table_of_more_pages_than_can_be_under_way_goes_and_can_be_cancelled() {
    const PAGES: u32 = 40_000;
    let pair = Pair::new(u64::from(PAGES) * 8);
    pair.warm_up();
    let (here, there) = (mixed(PAGES, 7), mixed(PAGES, 13));
    let blocks = |segment, table| Blocks {
        stride: 8,
        ..pages(segment, table)
    };
    let whole = PagedRequest {
        op: Op::Write,
        local: blocks(pair.local, &here),
        remote: blocks(pair.remote, &there),
        length: 8,
    };
    fill(&pair.source(), 9);
    completed(&paged(&pair, &[whole]).unwrap());
    let (from, to) = (pattern(9, pair.bytes), bytes(&pair.destination()));
    let word = |all: &[u8], page: u32| all[page as usize * 8..][..8].to_vec();
    let mut pairs = here.iter().zip(&there);
    assert!(pairs.all(|(here, there)| word(&from, *here) == word(&to, *there)));

    pair.each_rail(|faults, rail| faults.cut(rail));
    let batch = paged(&pair, &[whole, whole]).unwrap();
    let error = pair.initiator.unregister(pair.local).unwrap_err();
    assert!(matches!(error, RegisterError::InUse { .. }), "{error}");
    batch.cancel();
    let status = ended(&batch);
    assert_eq!((status.status, status.failed), (Status::Cancelled, 2));
    let terms = Terms {
        deadline: Some(Duration::from_millis(50)),
        ..Terms::default()
    };
    let late = pair.initiator.submit_paged(&[whole], &terms).unwrap();
    assert_eq!(ended(&late).status, Status::DeadlineExceeded);
    for batch in [&batch, &late] {
        let report = batch.report(0).unwrap();
        let sides = (report.local, report.remote);
        assert_eq!(sides, (Local::Released, Remote::Settled));
    }
    pair.each_rail(|faults, rail| faults.restore(rail));
    completed(&paged(&pair, &[whole]).unwrap());
    pair.initiator.unregister(pair.local).unwrap();
}
