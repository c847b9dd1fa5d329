//! What is measured: so many blocks of so many bytes as one batch, written or read.

use std::fmt;
use std::str::FromStr;

/// Blocks of a batch lie this far apart on both sides, so that nobody can merge them into one transfer.
pub(crate) const GAP_BYTES: usize = 4 << 10;

/// Size of the memory at either end; the largest cell fits.
pub(crate) const BUFFER_BYTES: usize = 72 << 20;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// (bytes of a block, blocks of a batch)
const SIZES: [(usize, usize); 7] = [
    (4 * KIB, 1),
    (4 * KIB, 16),
    (64 * KIB, 1),
    (64 * KIB, 16),
    (MIB, 1),
    (MIB, 16),
    (64 * MIB, 1),
];

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    /// From the initiator to the target.
    Write,
    /// From the target to the initiator.
    Read,
}

/// One cell of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cell {
    pub(crate) op: Op,
    /// Bytes of a block.
    pub(crate) block: usize,
    /// Blocks of a batch.
    pub(crate) batch: usize,
}

impl Cell {
    /// All cells, writes first.
    pub(crate) fn all() -> Vec<Self> {
        let ops = [Op::Write, Op::Read].into_iter();
        ops.flat_map(|op| SIZES.map(|(block, batch)| Self { op, block, batch }))
            .collect()
    }

    /// Bytes of a batch.
    pub(crate) fn bytes(self) -> usize {
        self.block * self.batch
    }

    /// Where the `index`-th block begins, at either end.
    pub(crate) fn offset(self, index: usize) -> usize {
        index * (self.block + GAP_BYTES)
    }

    /// Whether it fits into the buffers.
    pub(crate) fn fits(self) -> bool {
        self.block
            .checked_add(GAP_BYTES)
            .and_then(|step| step.checked_mul(self.batch))
            .is_some_and(|bytes| bytes <= BUFFER_BYTES)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            Op::Write => "write",
            Op::Read => "read",
        };
        let Self { block, batch, .. } = self;
        if block % MIB == 0 {
            write!(f, "{op} {}M×{batch}", block / MIB)
        } else {
            write!(f, "{op} {}K×{batch}", block / KIB)
        }
    }
}

impl FromStr for Cell {
    type Err = String;

    /// `write BLOCK BATCH`, with plain numbers.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is no cell; say: write|read BYTES COUNT");
        let words: Vec<&str> = text.split_whitespace().collect();
        let [op, block, batch] = words[..] else {
            return Err(wrong());
        };
        let op = match op {
            "write" => Op::Write,
            "read" => Op::Read,
            _ => return Err(wrong()),
        };
        let number = |word: &str| word.parse().ok().filter(|n| *n > 0).ok_or_else(wrong);
        let cell = Self {
            op,
            block: number(block)?,
            batch: number(batch)?,
        };
        cell.fits()
            .then_some(cell)
            .ok_or_else(|| format!("{cell} does not fit into {BUFFER_BYTES} bytes"))
    }
}

impl Cell {
    /// As [`FromStr`] reads it.
    pub(crate) fn words(self) -> String {
        let op = match self.op {
            Op::Write => "write",
            Op::Read => "read",
        };
        format!("{op} {} {}", self.block, self.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_read_as_they_are_said_and_fit() {
        for cell in Cell::all() {
            assert_eq!(cell.words().parse(), Ok(cell));
            assert!(cell.offset(cell.batch - 1) + cell.block <= BUFFER_BYTES);
        }
        assert_eq!(Cell::all().len(), 14);
    }

    #[test]
    fn wrong_cells_are_errors() {
        let wrong = [
            "",
            "write 1",
            "copy 1 1",
            "write 0 1",
            "read 1 x",
            "write 67108864 2",
        ];
        for text in wrong {
            assert!(text.parse::<Cell>().is_err(), "{text}");
        }
    }
}
