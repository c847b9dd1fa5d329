//! One cell of a benchmark, and the bytes that its threads walk over.

use std::fmt;

use polyrail::Op;

use super::{Mode, name_of};
use crate::sample::Extent;
use crate::sizes::show_size;

/// What is measured at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cell {
    pub(super) mode: Mode,
    /// Bytes of a request.
    pub(super) block: u64,
    /// Requests of a batch.
    pub(super) batch: u64,
    /// Threads, each with one batch on its way.
    pub(super) threads: u64,
}

impl Cell {
    /// Whether the batches of all threads fit into a buffer side by side.
    pub(super) fn fits(self, buffer_bytes: u64) -> bool {
        self.block
            .checked_mul(self.batch)
            .and_then(|bytes| bytes.checked_mul(self.threads))
            .is_some_and(|bytes| bytes <= buffer_bytes)
    }

    /// What the `i`-th batch of a thread does.
    pub(super) fn op(self, i: u64) -> Op {
        match self.mode {
            Mode::Write => Op::Write,
            Mode::Read => Op::Read,
            Mode::Mix if i.is_multiple_of(2) => Op::Write,
            Mode::Mix => Op::Read,
        }
    }

    /// Where the `i`-th batch of a thread goes in a buffer that the cell fits into.
    ///
    /// A thread walks over its own part of the buffer, forwards in the target's memory and backwards in
    /// ours: were the two offsets the same, mixing them up would not show.
    pub(super) fn extent(self, buffer_bytes: u64, thread: u64, i: u64) -> Extent {
        let bytes = self.block * self.batch;
        let part_bytes = buffer_bytes / self.threads;
        let start = thread * part_bytes;
        let places = part_bytes / bytes;
        // By turns, a batch writes and one reads the same place.
        let step = if self.mode == Mode::Mix { i / 2 } else { i };
        let place = step % places;
        Extent {
            local: start + (places - 1 - place) * bytes,
            remote: start + place * bytes,
            block: self.block,
            requests: self.batch,
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mode,
            block,
            batch,
            threads,
        } = self;
        let (op, block) = (name_of(mode), show_size(*block));
        write!(f, "{op} of {block} × {batch} on {threads} thread(s)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(block: u64, batch: u64, threads: u64) -> Cell {
        Cell {
            mode: Mode::Write,
            block,
            batch,
            threads,
        }
    }

    #[test]
    fn a_cell_fits_if_all_its_batches_do() {
        assert!(cell(1024, 4, 2).fits(8192));
        assert!(!cell(1024, 4, 2).fits(8191));
        assert!(!cell(u64::MAX, 2, 1).fits(u64::MAX));
    }

    #[test]
    fn extents_stay_inside_their_threads_part() {
        // (buffer, block, batch, threads)
        let cases = [
            (8192, 1024, 4, 2),
            (10_000, 1000, 1, 3),
            (7, 1, 1, 7),
            (100, 33, 3, 1),
        ];
        for (buffer, block, batch, threads) in cases {
            let cell = cell(block, batch, threads);
            assert!(cell.fits(buffer));
            let part = buffer / threads;
            for thread in 0..threads {
                for i in 0..20 {
                    let extent = cell.extent(buffer, thread, i);
                    for start in [extent.local, extent.remote] {
                        assert!(start >= thread * part, "{cell}");
                        assert!(start + extent.bytes() <= (thread + 1) * part, "{cell}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_mix_takes_turns() {
        let cell = Cell {
            mode: Mode::Mix,
            ..cell(1024, 1, 1)
        };
        let ops: Vec<Op> = (0..4).map(|i| cell.op(i)).collect();
        assert_eq!(ops, [Op::Write, Op::Read, Op::Write, Op::Read]);
    }
}
