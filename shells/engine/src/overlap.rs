//! Requests that write to the same bytes at once: refused, if the program has asked for that.
//!
//! Two such leave some of the bytes of each, in an order that nobody knows. The engine does not look by itself, because each
//! range that is written then costs a place in a table, under a lock that all threads share.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use polyrail_core::work::Op;

use crate::error::SubmitError;
use crate::lock::lock;
use crate::paged::request_of;
use crate::request::Request;
use crate::segments::SegmentId;

/// What is written on behalf of requests that are on their way.
#[derive(Default)]
pub(crate) struct Written {
    /// The ranges in each segment, none of which overlap, by their first byte.
    segments: Mutex<HashMap<SegmentId, BTreeMap<u64, Writer>>>,
}

/// Who writes a range.
#[derive(Clone, Copy)]
struct Writer {
    end: u64,
    /// The request's position in its batch.
    index: usize,
}

/// A range that a request writes.
#[derive(Clone, Copy)]
struct Range {
    segment: SegmentId,
    start: u64,
    end: u64,
    index: usize,
}

/// The ranges of one batch, until it is over.
pub(crate) struct Claim {
    written: Arc<Written>,
    ranges: Vec<(SegmentId, u64)>,
}

impl Written {
    /// Claims what requests write. With `firsts` these are pieces of requests of which each begins there.
    pub(crate) fn claim(
        self: &Arc<Self>,
        pieces: &[Request],
        firsts: Option<&[u32]>,
    ) -> Result<Claim, SubmitError> {
        let mut ranges: Vec<Range> = (0..).zip(pieces).filter_map(range).collect();
        if let Some(firsts) = firsts {
            for range in &mut ranges {
                range.index = request_of(firsts, range.index);
            }
        }
        ranges.sort_unstable_by_key(|range| (range.segment.0, range.start));
        let mut last: Option<Range> = None;
        for range in &ranges {
            let before = last.filter(|last| last.segment == range.segment);
            if let Some(before) = before.filter(|before| before.end > range.start) {
                let (first, second) = match before.index <= range.index {
                    true => (&before, range),
                    false => (range, &before),
                };
                return Err(overlap(second, first, false));
            }
            last = Some(*range);
        }
        let mut segments = lock(&self.segments);
        for range in &ranges {
            let known = segments.get(&range.segment);
            let before = known.and_then(|known| known.range(..range.end).next_back());
            if let Some((start, writer)) = before.filter(|(_, writer)| writer.end > range.start) {
                let other = Range {
                    start: *start,
                    end: writer.end,
                    index: writer.index,
                    ..*range
                };
                return Err(overlap(range, &other, true));
            }
        }
        for Range {
            segment,
            start,
            end,
            index,
        } in &ranges
        {
            let known = segments.entry(*segment).or_default();
            known.insert(
                *start,
                Writer {
                    end: *end,
                    index: *index,
                },
            );
        }
        drop(segments);
        let ranges = ranges.iter().map(|range| (range.segment, range.start));
        Ok(Claim {
            written: self.clone(),
            ranges: ranges.collect(),
        })
    }
}

/// What a request writes. `None`: nothing that could be; what is wrong with it is found elsewhere.
fn range((index, request): (usize, &Request)) -> Option<Range> {
    let (segment, start) = match request.op {
        Op::Write => (request.remote, request.remote_offset),
        Op::Read => (request.local, request.local_offset),
    };
    let end = start.checked_add(request.length)?;
    (end > start).then_some(Range {
        segment,
        start,
        end,
        index,
    })
}

fn overlap(range: &Range, other: &Range, under_way: bool) -> SubmitError {
    SubmitError::Overlap {
        index: range.index,
        segment: range.segment,
        bytes: range.start..range.end,
        other: other.index,
        other_bytes: other.start..other.end,
        under_way,
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut segments = lock(&self.written.segments);
        for (segment, start) in &self.ranges {
            let Some(known) = segments.get_mut(segment) else {
                continue;
            };
            known.remove(start);
            if known.is_empty() {
                segments.remove(segment);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quickcheck::quickcheck;

    use super::*;

    /// Where a request is, how long, and whether it reads.
    type Asked = (u8, u8, bool);
    /// What a request writes.
    type Bytes = (SegmentId, u64, u64);
    type Model = Vec<(Claim, Vec<Bytes>)>;

    quickcheck! {
        /// Beside a plain list of bytes and who writes them: a batch is refused if and only if it writes one twice or one
        /// that is being written, and the two that are named do.
        fn what_overlaps_is_refused(batches: Vec<(Vec<Asked>, bool)>) -> bool {
            let written = Arc::new(Written::default());
            let mut model = Model::new();
            batches.iter().all(|(requests, frees)| {
                if *frees && !model.is_empty() {
                    drop(model.remove(0));
                }
                let requests: Vec<Request> = requests.iter().map(|(at, length, reads)| Request {
                    op: if *reads { Op::Read } else { Op::Write },
                    local: SegmentId(1),
                    local_offset: u64::from(at % 64),
                    remote: SegmentId(2),
                    remote_offset: u64::from(at % 64),
                    length: u64::from(length % 5),
                }).collect();
                let ranges: Vec<_> = requests.iter().map(|request| {
                    let segment = if request.op == Op::Read { request.local } else { request.remote };
                    (segment, request.local_offset, request.local_offset + request.length)
                }).collect();
                let meet = |a: &Bytes, b: &Bytes| {
                    a.0 == b.0 && a.1.max(b.1) < a.2.min(b.2)
                };
                let under_way = || model.iter().flat_map(|(_, ranges)| ranges);
                let twice = ranges.iter().enumerate().any(|(at, a)| ranges[..at].iter().any(|b| meet(a, b)));
                let met = ranges.iter().any(|a| under_way().any(|b| meet(a, b)));
                match written.claim(&requests, None) {
                    Ok(claim) => {
                        model.push((claim, ranges));
                        !twice && !met
                    }
                    Err(SubmitError::Overlap { index, segment, bytes, other, other_bytes, under_way: late }) => {
                        let this = (segment, bytes.start, bytes.end);
                        let that = (segment, other_bytes.start, other_bytes.end);
                        let is_named = match late {
                            false => ranges[other] == that && other < index,
                            true => under_way().any(|range| *range == that),
                        };
                        is_named && ranges[index] == this && meet(&this, &that) && late != twice
                    }
                    Err(_) => false,
                }
            }) && {
                model.clear();
                lock(&written.segments).is_empty()
            }
        }
    }
}
