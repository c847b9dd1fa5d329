//! Requests whose bytes lie in blocks: in pages by a table, as those of a KV cache, or in rows at equal distances.
//!
//! A request is moved as *pieces*: a run of blocks that lie one behind the other at both ends is one. What carries pieces out
//! knows nothing of this; its reports are put together by the batch.

use std::sync::Arc;

use polyrail_core::work::Op;

use crate::batch::Batch;
use crate::engine::Engine;
use crate::error::SubmitError;
use crate::post::BATCH_MAX;
use crate::prepared::PreparedTransfer;
use crate::request::{Request, Terms};
use crate::segments::SegmentId;

/// One read or write of many blocks of equal length between two segments. The n-th block of one end goes to the n-th of the
/// other, so both have as many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagedRequest<'a> {
    /// Write: from local to remote. Read: from remote to local.
    pub op: Op,
    /// Blocks of this engine, as [`Request::local`].
    pub local: Blocks<'a>,
    /// Blocks of a peer, as [`Request::remote`].
    pub remote: Blocks<'a>,
    /// Bytes of each block, at least 1.
    pub length: u64,
}

/// Where the blocks of one end lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks<'a> {
    /// The segment that they are in.
    pub segment: SegmentId,
    /// The first byte of page or row 0.
    pub base: u64,
    /// Bytes from the beginning of a page or row to that of the next. May be less than the length, and 0.
    pub stride: u64,
    /// Which they are.
    pub places: Places<'a>,
}

/// Which pages or rows blocks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Places<'a> {
    /// The pages with these numbers, in this order: a block table.
    Pages(&'a [u32]),
    /// So many rows, from 0 on.
    Rows(usize),
}

impl Places<'_> {
    fn count(&self) -> usize {
        match self {
            Self::Pages(table) => table.len(),
            Self::Rows(count) => *count,
        }
    }

    /// The number of the page or row that the n-th block is.
    fn at(&self, block: usize) -> u64 {
        match self {
            Self::Pages(table) => table.get(block).copied().unwrap_or(u32::MAX).into(),
            Self::Rows(_) => block as u64,
        }
    }
}

impl Blocks<'_> {
    /// Where the n-th block begins. Beyond what offsets can say: at the end of that, which no segment reaches.
    fn offset(&self, block: usize) -> u64 {
        let from_base = self.stride.saturating_mul(self.places.at(block));
        self.base.saturating_add(from_base)
    }

    /// The first block that ends past the segment.
    fn first_past(&self, length: u64, segment_bytes: u64) -> Option<usize> {
        let is_past = |block: &usize| {
            let end = self.offset(*block).checked_add(length);
            end.is_none_or(|end| end > segment_bytes)
        };
        (0..self.places.count()).find(is_past)
    }
}

impl PagedRequest<'_> {
    fn block(&self, block: usize) -> Request {
        Request {
            op: self.op,
            local: self.local.segment,
            local_offset: self.local.offset(block),
            remote: self.remote.segment,
            remote_offset: self.remote.offset(block),
            length: self.length,
        }
    }
}

/// The pieces that requests come to.
pub(crate) struct Pieces {
    pub(crate) list: Vec<Request>,
    /// The first one of each request.
    pub(crate) firsts: Arc<[u32]>,
}

impl Pieces {
    /// Those of requests, whose ranges have not been checked.
    fn of(requests: &[PagedRequest<'_>]) -> Result<Self, SubmitError> {
        let blocks = check_counts(requests)?;
        let mut list = Vec::with_capacity(blocks);
        let mut firsts = Vec::with_capacity(requests.len());
        for request in requests {
            firsts.push(list.len() as u32);
            let mut run = request.block(0);
            for block in 1..request.local.places.count() {
                let next = request.block(block);
                match is_followed(&run, &next) {
                    true => run.length += next.length,
                    false => list.push(std::mem::replace(&mut run, next)),
                }
            }
            list.push(run);
        }
        Ok(Self {
            list,
            firsts: firsts.into(),
        })
    }

    /// What was said of a piece, said of its request and block.
    fn explain(&self, requests: &[PagedRequest<'_>], error: SubmitError) -> SubmitError {
        // Who looks for that knows of requests.
        if let SubmitError::Overlap { .. } = error {
            return error;
        }
        let mut error = error;
        if let Some(index) = error.index_mut() {
            *index = request_of(&self.firsts, *index);
        }
        let SubmitError::OutOfRange {
            index,
            segment,
            segment_bytes,
            ..
        } = error
        else {
            return error;
        };
        let Some(PagedRequest {
            local,
            remote,
            length,
            ..
        }) = requests.get(index)
        else {
            return error;
        };
        let ends = [local, remote]
            .into_iter()
            .filter(|end| end.segment == segment);
        let mut past = ends.filter_map(|end| Some((end, end.first_past(*length, segment_bytes)?)));
        match past.next() {
            Some((end, block)) => SubmitError::BlockOutOfRange {
                index,
                block,
                number: end.places.at(block),
                segment,
                offset: end.offset(block),
                length: *length,
                segment_bytes,
            },
            None => error,
        }
    }
}

/// The request that a piece is of; `firsts` are the first pieces of each.
pub(crate) fn request_of(firsts: &[u32], piece: usize) -> usize {
    let behind = firsts.partition_point(|first| *first as usize <= piece);
    behind.saturating_sub(1)
}

/// Whether requests name as many blocks at both ends, and a batch can have them: how many.
fn check_counts(requests: &[PagedRequest<'_>]) -> Result<usize, SubmitError> {
    let mut blocks = 0_usize;
    for (index, request) in requests.iter().enumerate() {
        let [local, remote] = [request.local, request.remote].map(|end| end.places.count());
        if local != remote {
            return Err(SubmitError::BlockCounts {
                index,
                local,
                remote,
            });
        }
        if local == 0 || request.length == 0 {
            return Err(SubmitError::Empty { index });
        }
        blocks = blocks.saturating_add(local);
    }
    match blocks == 0 || blocks > BATCH_MAX {
        true => Err(SubmitError::BatchSize {
            requests: blocks,
            limit: BATCH_MAX,
        }),
        false => Ok(blocks),
    }
}

/// Whether a piece ends where a block begins, at both ends.
fn is_followed(piece: &Request, block: &Request) -> bool {
    let end = |offset: u64| offset.checked_add(piece.length);
    end(piece.local_offset) == Some(block.local_offset)
        && end(piece.remote_offset) == Some(block.remote_offset)
}

impl Engine {
    /// Submits requests for blocks as one batch, all or nothing: like [`Self::submit_with`], and for less than the same blocks
    /// cost one by one. Blocks that lie one behind the other at both ends go as one. Each request is reported once, as all of
    /// its blocks: `Completed` if each was. A batch has up to 1,000,000 blocks.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use polyrail::{Access, Blocks, Config, Engine, Op, PagedRequest, Places, Status, Terms};
    /// # let target = Engine::new(Config { listen: Some("127.0.0.1:0".parse()?), ..Config::named("target") })?;
    /// # target.allocate("mem", 1 << 20, Access::RemoteReadWrite)?;
    /// # let engine = Engine::new(Config::named("initiator"))?;
    /// # let cache = engine.allocate("cache", 1 << 20, Access::Local)?;
    /// # let peer = engine.open_segment(&format!("{}/mem", target.listening().unwrap()))?;
    /// // Pages 7, 3 and 4 of our cache to pages 0, 1 and 2 of the peer's; page 3 and 4 go as one.
    /// let pages = |segment, table| Blocks { segment, base: 0, stride: 4096, places: Places::Pages(table) };
    /// let request = PagedRequest {
    ///     op: Op::Write,
    ///     local: pages(cache, &[7, 3, 4]),
    ///     remote: pages(peer, &[0, 1, 2]),
    ///     length: 4096,
    /// };
    /// let batch = engine.submit_paged(&[request], &Terms::default())?;
    /// assert_eq!(batch.wait(Duration::from_secs(5))?.delivered_bytes, 3 * 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit_paged(
        &self,
        requests: &[PagedRequest<'_>],
        terms: &Terms<'_>,
    ) -> Result<Batch, SubmitError> {
        let pieces = Pieces::of(requests)?;
        let firsts = &pieces.firsts;
        let submitted = self.bound(&pieces.list, |list| {
            let claim = self.claim(list, Some(firsts))?;
            self.submit_pieces(list, Some(firsts), claim, terms)
        });
        submitted.map_err(|error| pieces.explain(requests, error))
    }

    /// Checks requests for blocks like [`Self::submit_paged`] and keeps them, to be posted many times. The tables may change then.
    ///
    /// Example: [guide](crate::guide#the-same-transfer-again-and-again).
    pub fn prepare_paged(
        &self,
        requests: &[PagedRequest<'_>],
    ) -> Result<PreparedTransfer, SubmitError> {
        let pieces = Pieces::of(requests)?;
        let prepared = self.prepare_pieces(&pieces.list, Some(&pieces.firsts));
        prepared.map_err(|error| pieces.explain(requests, error))
    }
}

#[cfg(test)]
mod tests {
    use quickcheck::quickcheck;

    use super::*;

    /// Pages here and there, the length and stride, and whether those there are rows.
    type Asked = (Vec<(u8, u8)>, u8, u8, bool);
    /// Pages here, places there; where each piece begins and how long it is.
    type Case = (&'static [u32], Places<'static>, &'static [(u64, u64)]);

    const HERE: SegmentId = SegmentId(1);
    const THERE: SegmentId = SegmentId(2);

    fn blocks(segment: SegmentId, base: u64, stride: u64, places: Places<'_>) -> Blocks<'_> {
        Blocks {
            segment,
            base,
            stride,
            places,
        }
    }

    #[test]
    fn what_lies_one_behind_the_other_at_both_ends_is_one_piece() {
        let request = |local, remote| PagedRequest {
            op: Op::Read,
            local: blocks(HERE, 100, 10, Places::Pages(local)),
            remote: blocks(THERE, 0, 10, remote),
            length: 10,
        };
        let cases: [Case; 4] = [
            (&[5], Places::Rows(1), &[(150, 10)]),
            (&[5, 6, 7], Places::Rows(3), &[(150, 30)]),
            (
                &[5, 6, 8, 9, 2],
                Places::Rows(5),
                &[(150, 20), (180, 20), (120, 10)],
            ),
            (
                &[5, 6, 7],
                Places::Pages(&[1, 2, 4]),
                &[(150, 20), (170, 10)],
            ),
        ];
        for (local, remote, expected) in cases {
            let pieces = Pieces::of(&[request(local, remote)]).unwrap();
            let got = pieces
                .list
                .iter()
                .map(|piece| (piece.local_offset, piece.length));
            assert!(
                got.eq(expected.iter().copied()),
                "{local:?} {:?}",
                pieces.list
            );
        }
        // Requests stay apart.
        let two = [
            request(&[1, 2], Places::Rows(2)),
            request(&[3], Places::Pages(&[2])),
        ];
        let pieces = Pieces::of(&two).unwrap();
        assert_eq!((pieces.list.len(), &pieces.firsts[..]), (2, &[0, 1][..]));
    }

    quickcheck! {
        /// Beside one copy for each block: the pieces of each request cover the same bytes in the same order.
        fn pieces_are_the_blocks(requests: Vec<Asked>) -> bool {
            let requests: Vec<_> = requests.into_iter().filter(|(pages, ..)| !pages.is_empty()).collect();
            let tables: Vec<[Vec<u32>; 2]> = requests.iter().map(|(pages, ..)| {
                [pages.iter().map(|(here, _)| u32::from(here % 8)).collect(), pages.iter().map(|(_, there)| u32::from(there % 8)).collect()]
            }).collect();
            let paged: Vec<_> = requests.iter().zip(&tables).map(|((_, length, stride, in_rows), [here, there])| PagedRequest {
                op: Op::Write,
                local: blocks(HERE, 3, u64::from(stride % 6), Places::Pages(here)),
                remote: blocks(THERE, 5, u64::from(stride % 4), match in_rows {
                    true => Places::Rows(there.len()),
                    false => Places::Pages(there),
                }),
                length: 1 + u64::from(length % 4),
            }).collect();
            if paged.is_empty() {
                return matches!(Pieces::of(&paged), Err(SubmitError::BatchSize { requests: 0, .. }));
            }
            let pieces = Pieces::of(&paged).unwrap();
            let bytes = |piece: &Request| {
                let (here, there) = (piece.local_offset, piece.remote_offset);
                (0..piece.length).map(move |byte| (here + byte, there + byte)).collect::<Vec<_>>()
            };
            let ends = pieces.firsts.iter().skip(1).map(|first| *first as usize).chain([pieces.list.len()]);
            pieces.firsts.iter().zip(ends).zip(paged.iter().zip(&tables)).all(|((first, end), (request, [here, there]))| {
                let got: Vec<_> = pieces.list[*first as usize..end].iter().flat_map(bytes).collect();
                let rows = matches!(request.remote.places, Places::Rows(_));
                let block = |block: usize| {
                    let there = if rows { block as u64 } else { u64::from(there[block]) };
                    let (here, there) = (3 + u64::from(here[block]) * request.local.stride, 5 + there * request.remote.stride);
                    (0..request.length).map(move |byte| (here + byte, there + byte))
                };
                got == (0..here.len()).flat_map(block).collect::<Vec<_>>()
            })
        }
    }
}
