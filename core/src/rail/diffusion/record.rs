//! The record in shared memory, as words: whose rows they are, and what is written in them.
//!
//! | words | content |
//! |---|---|
//! | 1 | magic number and version of this layout |
//! | 1 | geometry: rows in the upper half, columns in the lower |
//! | columns | directory: the name hash of each column's device; 0: not taken |
//! | rows × (2 + columns) | a row: its lease, its heartbeat, and for each column bytes in flight |
//!
//! Zeros are a record in which nothing is taken yet, so whoever comes first needs no lock. A lease is one word with
//! the whole identity of its process, taken and given back by one compare-and-swap; there is no moment at which
//! it says half of it. Each taking counts its generation on, and every number in the row carries the generation
//! it was written under: what a dead process left there, or writes late, counts nothing for the next one.

use core::num::NonZeroU64;
use core::sync::atomic::Ordering::*;

use super::{Column, ROW_BYTES_MAX};
use crate::sync::AtomicU64;
use crate::time::{Duration, Instant};

/// "PRLOAD", and version 1 of the layout.
const MAGIC: u64 = 0x5052_4c4f_4144_0001;
const HEAD_WORDS: usize = 2;
const ROW_HEAD_WORDS: usize = 2;
/// Bits of a number in a row that say how much; those above say under which generation.
const BYTES_BITS: u32 = 48;
const PID_BITS: u32 = 22;
const STARTED_BITS: u32 = 26;
const GENERATION_BITS: u32 = 16;

const _: () = assert!(PID_BITS + STARTED_BITS + GENERATION_BITS == u64::BITS);
const _: () = assert!(BYTES_BITS + GENERATION_BITS == u64::BITS && ROW_BYTES_MAX < 1 << BYTES_BITS);

/// How large a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Processes that can take part. 1 to [`Self::ROWS_MAX`].
    pub rows: u16,
    /// Devices whose load can be published. 1 to [`Self::COLUMNS_MAX`].
    pub columns: u16,
}

impl Geometry {
    /// Most rows, which bounds what a look at the others costs, whatever the memory says.
    pub const ROWS_MAX: u16 = 1024;
    /// Most columns.
    pub const COLUMNS_MAX: u16 = 256;

    /// Words of a record of this size.
    pub const fn words(self) -> usize {
        HEAD_WORDS
            + self.columns as usize
            + self.rows as usize * (ROW_HEAD_WORDS + self.columns as usize)
    }

    const fn is_valid(self) -> bool {
        1 <= self.rows
            && self.rows <= Self::ROWS_MAX
            && 1 <= self.columns
            && self.columns <= Self::COLUMNS_MAX
    }

    const fn to_bits(self) -> u64 {
        (self.rows as u64) << 32 | self.columns as u64
    }
}

/// Why some memory is not used as a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordError {
    /// It holds something else, or the record of another version.
    NotThis {
        /// What its first word is.
        magic: u64,
    },
    /// It was made with other numbers of rows and columns.
    OtherGeometry {
        /// Its second word.
        geometry: u64,
    },
    /// A geometry without rows or columns, with too many, or for another number of words.
    WrongSize {
        /// Words that the geometry needs.
        needed: usize,
        /// Words that there are.
        found: usize,
    },
}

impl core::fmt::Display for RecordError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotThis { magic } => write!(f, "not a load record of this version: {magic:#x}"),
            Self::OtherGeometry { geometry } => {
                write!(f, "a load record of another geometry: {geometry:#x}")
            }
            Self::WrongSize { needed, found } => {
                write!(f, "{found} words for a load record of {needed}")
            }
        }
    }
}

/// A process of this host: its number and when it began, so that the next owner of the number is another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ProcessId(u64);

impl ProcessId {
    /// `started` in whatever unit the shell has, the same for all processes; its lower 26 bits count, which are a
    /// week of the kernel's ticks. `None`: the system numbers no process so (0, or 2^22 and more).
    pub const fn new(pid: u32, started: u64) -> Option<Self> {
        if pid == 0 || pid >> PID_BITS != 0 {
            return None;
        }
        let started = started & ((1 << STARTED_BITS) - 1);
        Some(Self((pid as u64) << STARTED_BITS | started))
    }

    /// Its number.
    pub const fn pid(self) -> u32 {
        (self.0 >> STARTED_BITS) as u32
    }

    /// Whether it began at that time, as far as the identity can tell.
    pub const fn began(self, started: u64) -> bool {
        (self.0 ^ started) & ((1 << STARTED_BITS) - 1) == 0
    }
}

/// The right to write into one row. Whoever has it gives it to [`Record::release`] once.
#[derive(Debug)]
pub(super) struct Lease {
    row: u16,
    word: u64,
}

impl Lease {
    pub(super) fn row(&self) -> u16 {
        self.row
    }
}

/// Who holds a row, as it was when it was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    row: u16,
    word: u64,
    /// The process.
    pub process: ProcessId,
    /// Its last heartbeat.
    pub beat_at: Instant,
}

const fn generation(lease: u64) -> u64 {
    lease & ((1 << GENERATION_BITS) - 1)
}

/// A lease that nobody holds, of this one's generation.
const fn free(lease: u64) -> u64 {
    generation(lease)
}

const fn holder(lease: u64) -> Option<ProcessId> {
    match lease >> GENERATION_BITS {
        0 => None,
        process => Some(ProcessId(process)),
    }
}

const fn taken(lease: u64, by: ProcessId) -> u64 {
    debug_assert!(
        by.0 != 0 && by.0 >> (PID_BITS + STARTED_BITS) == 0,
        "a process that does not fit a lease"
    );
    by.0 << GENERATION_BITS | generation(lease.wrapping_add(1))
}

/// A view of the words. All methods take `&self`; any number of views, in any number of processes, are the same.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    directory: &'a [AtomicU64],
    rows: &'a [AtomicU64],
    geometry: Geometry,
}

impl<'a> Record<'a> {
    /// Uses `words` as a record, and makes it one if they are zeros.
    pub fn new(words: &'a [AtomicU64], geometry: Geometry) -> Result<Self, RecordError> {
        let sized = (geometry.is_valid() && words.len() == geometry.words()).then_some(words);
        let parts = sized
            .and_then(|words| words.split_at_checked(HEAD_WORDS))
            .and_then(|(head, rest)| Some((head, rest.split_at_checked(geometry.columns.into())?)));
        let Some(([magic, size], (directory, rows))) = parts else {
            return Err(RecordError::WrongSize {
                needed: geometry.words(),
                found: words.len(),
            });
        };
        if let Err(magic) = make(magic, MAGIC) {
            return Err(RecordError::NotThis { magic });
        }
        if let Err(geometry) = make(size, geometry.to_bits()) {
            return Err(RecordError::OtherGeometry { geometry });
        }
        Ok(Self {
            directory,
            rows,
            geometry,
        })
    }

    /// Everybody who holds a row: for the shell to find those that have ended.
    pub fn holders(&self) -> impl Iterator<Item = Holder> + '_ {
        self.rows().filter_map(|row| {
            let (lease, beat, _) = self.row(row)?;
            let word = lease.load(Acquire);
            Some(Holder {
                row,
                word,
                process: holder(word)?,
                beat_at: Instant::from_nanos(beat.load(Acquire)),
            })
        })
    }

    /// Frees the row of a process that has ended: call it with proof of that only. `false`: somebody else did.
    pub fn reclaim(&self, dead: &Holder) -> bool {
        self.free(dead.row, dead.word)
    }

    pub(super) fn rows(&self) -> core::ops::Range<u16> {
        0..self.geometry.rows
    }

    /// Takes a free row, the first that it gets, with zeros in all columns.
    pub(super) fn lease(&self, now: Instant, by: ProcessId) -> Option<Lease> {
        let claimed = self.rows().find_map(|row| {
            let word = self.row(row)?.0.load(Relaxed);
            let next = taken(word, by);
            (holder(word).is_none() && self.swap(row, word, next))
                .then_some(Lease { row, word: next })
        });
        if let Some(lease) = &claimed {
            for column in 0..self.geometry.columns {
                self.store(lease, Column(column), 0);
            }
            self.beat(lease, now);
        }
        claimed
    }

    pub(super) fn release(&self, lease: Lease) {
        self.free(lease.row, lease.word);
    }

    pub(super) fn column(&self, name: NonZeroU64) -> Option<Column> {
        let position = self
            .directory
            .iter()
            .position(|word| make(word, name.get()).is_ok());
        position.and_then(|column| u16::try_from(column).ok().map(Column))
    }

    pub(super) fn store(&self, lease: &Lease, column: Column, bytes: u64) {
        debug_assert!(
            bytes <= ROW_BYTES_MAX,
            "{bytes} bytes in flight, which nobody believes"
        );
        let word = self
            .row(lease.row)
            .and_then(|(_, _, columns)| columns.get(usize::from(column.0)));
        if let Some(word) = word {
            word.store(generation(lease.word) << BYTES_BITS | bytes, Relaxed);
        }
    }

    /// Whether the lease still holds.
    pub(super) fn beat(&self, lease: &Lease, now: Instant) -> bool {
        self.row(lease.row).is_some_and(|(held, beat, _)| {
            beat.store(now.as_nanos(), Release);
            held.load(Relaxed) == lease.word
        })
    }

    /// Whether somebody holds a row and has beaten lately. Not more lately than now either, but for clocks that are
    /// read at slightly different moments.
    pub(super) fn is_fresh(&self, row: u16, now: Instant, stale_after: Duration) -> bool {
        self.row(row).is_some_and(|(lease, beat, _)| {
            let beat = Instant::from_nanos(beat.load(Acquire));
            holder(lease.load(Relaxed)).is_some()
                && now.since(beat).max(beat.since(now)) <= stale_after
        })
    }

    /// Adds what the holder of a row has in flight to the sums of the columns.
    pub(super) fn add_row(&self, row: u16, sums: &mut [u64]) {
        let Some((lease, _, columns)) = self.row(row) else {
            return;
        };
        let generation = generation(lease.load(Acquire));
        for (sum, word) in sums.iter_mut().zip(columns) {
            let word = word.load(Relaxed);
            let bytes = word & ((1 << BYTES_BITS) - 1);
            if word >> BYTES_BITS == generation && bytes <= ROW_BYTES_MAX {
                *sum = sum.saturating_add(bytes);
            }
        }
    }

    /// A row's lease, heartbeat and columns.
    fn row(&self, row: u16) -> Option<(&'a AtomicU64, &'a AtomicU64, &'a [AtomicU64])> {
        let words = ROW_HEAD_WORDS + usize::from(self.geometry.columns);
        let from = usize::from(row) * words;
        match self.rows.get(from..from + words)? {
            [lease, beat, columns @ ..] => Some((lease, beat, columns)),
            _ => None,
        }
    }

    fn free(&self, row: u16, word: u64) -> bool {
        self.swap(row, word, free(word))
    }

    fn swap(&self, row: u16, from: u64, to: u64) -> bool {
        self.row(row)
            .is_some_and(|(lease, _, _)| lease.compare_exchange(from, to, AcqRel, Acquire).is_ok())
    }
}

/// Writes `value` where there is nothing yet. The other value that is there already, if any.
fn make(word: &AtomicU64, value: u64) -> Result<(), u64> {
    match word.compare_exchange(0, value, AcqRel, Acquire) {
        Err(found) if found != value => Err(found),
        _ => Ok(()),
    }
}
