//! How requests become works: by core's own rule, for who counts them before and for who builds them.

use std::ops::Range;

use polyrail_core::send_queue::merge::{Join, Merge, MergeLimits, Piece, count_works};
use polyrail_core::units::SegmentRef;
use polyrail_core::work::Place;

use super::setup::{Caller, Setup};

/// One work of a chunk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub(super) bytes: u64,
    /// Requests whose last byte is in it.
    pub(super) requests: u32,
}

fn limits(setup: &Setup) -> MergeLimits {
    MergeLimits {
        entries_max: setup.engine.entries_max,
        work_bytes_max: setup.engine.work_bytes_max,
    }
}

/// Requests of a call: apart on this side; on the peer's so many in a row lie together.
fn pieces(caller: &Caller, requests: Range<u32>) -> impl Iterator<Item = Piece> {
    let (block, neighbours) = (caller.block, u64::from(caller.neighbours));
    requests.map(u64::from).map(move |request| Piece {
        local: Place {
            segment: SegmentRef(0),
            offset: 2 * request * block,
        },
        remote: Place {
            segment: SegmentRef(1),
            offset: (request + request / neighbours) * block,
        },
        length: block,
    })
}

/// How many works the requests make.
pub(super) fn count(setup: &Setup, caller: &Caller, requests: Range<u32>) -> usize {
    count_works(pieces(caller, requests), limits(setup))
}

/// The works that the requests make.
pub(super) fn build(setup: &Setup, caller: &Caller, requests: Range<u32>) -> Vec<Work> {
    let mut works: Vec<Work> = Vec::new();
    let mut done = 0;
    for joined in Merge::new(pieces(caller, requests), limits(setup)) {
        if joined.join == Join::Work {
            works.push(Work::default());
        }
        done += joined.piece.length;
        if let Some(work) = works.last_mut() {
            work.bytes += joined.piece.length;
            work.requests += u32::from(done.is_multiple_of(caller.block));
        }
    }
    works
}
