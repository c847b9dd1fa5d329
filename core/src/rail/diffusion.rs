//! Load that other processes of this host publish: how many bytes they have in flight on each device.
//!
//! Engines in several processes share a host's interfaces and see only their own queues. With a weight above zero
//! each writes its bytes in flight per device into a record in shared memory, reads the others', and counts them,
//! weighted, into the wait of a device. Without a weight there is no [`Diffusion`]: nothing is mapped, read or
//! written, and choices are made of this process's own load alone. That is the default.
//!
//! What is published is *bytes*, although a wait is a time: bytes in flight are an exact fact of the process that
//! posted them, and can be added up. The time they take follows from the device's rate as the reader has learned it,
//! the same that it uses for its own bytes; a publisher's estimate of it would carry its errors to everybody, and
//! would grow old even while nothing moves.
//!
//! The dead cast no load: a row counts while its heartbeat is recent, and the living free the rows of processes of
//! which the shell has proof that they have ended. Who else may write to the memory may write anything: a number that
//! no honest process publishes counts as nothing, so the worst a liar achieves is that a device looks busy.
//!
//! Source: TENT (arXiv:2604.00368v1) §4.2, global load diffusion. Of its global factor, which includes the own load,
//! the part that a weight ω adds is ω times the others' bytes: `(1 - ω)·own + ω·(own + others)`.

mod record;

use core::num::{NonZeroU16, NonZeroU64};

use record::Lease;
pub use record::{Geometry, Holder, ProcessId, Record, RecordError};

use crate::time::{Duration, Instant};

/// Weight 1, as parts: the others' bytes count like our own.
pub const WEIGHT_ONE: u16 = 1024;

/// More bytes in flight of one process on one device than this are no bytes in flight: 20 ms at 400 Gbit/s.
pub const ROW_BYTES_MAX: u64 = 1 << 30;

/// How much the others' load counts: more than nothing, at most as much as our own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weight(NonZeroU16);

impl Weight {
    /// From parts per [`WEIGHT_ONE`], more counting as that. `None` for 0: do without a [`Diffusion`] then.
    pub const fn new(parts: u16) -> Option<Self> {
        let parts = if parts > WEIGHT_ONE {
            WEIGHT_ONE
        } else {
            parts
        };
        match NonZeroU16::new(parts) {
            Some(parts) => Some(Self(parts)),
            None => None,
        }
    }

    const fn of(self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.0.get() as u64) / WEIGHT_ONE as u64
    }
}

/// A device's place in the record: the same for all processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Column(pub u16);

/// How the others' load is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiffusionConfig {
    /// What the others' bytes count.
    pub weight: Weight,
    /// A row whose heartbeat is older counts nothing. A process with bytes in flight calls [`Diffusion::publish`] or
    /// [`Diffusion::beat`] several times in this span; one without need not.
    pub stale_after: Duration,
}

/// One process's part in the record: its own row, and the sight of the others'.
///
/// Instants are of a clock that all processes of the host share (`CLOCK_MONOTONIC`), not of one that started with
/// the engine. All methods take `&self` and may be called from any thread; for one column one thread publishes at
/// a time.
#[derive(Debug)]
pub struct Diffusion<'a> {
    record: Record<'a>,
    lease: Lease,
    config: DiffusionConfig,
}

impl<'a> Diffusion<'a> {
    /// Takes a row for `own`. `None`: all are taken. The shell then looks through [`Record::holders`] for processes
    /// that have ended, gives their rows back with [`Record::reclaim`], and tries once more.
    pub fn join(
        now: Instant,
        record: Record<'a>,
        own: ProcessId,
        config: DiffusionConfig,
    ) -> Option<Self> {
        let lease = record.lease(now, own)?;
        Some(Self {
            record,
            lease,
            config,
        })
    }

    /// The record.
    pub fn record(&self) -> &Record<'a> {
        &self.record
    }

    /// The column of the device with this name, hashed by the shell in the same way in all processes; takes a new
    /// one for a name that nobody has used yet. `None`: all are taken, so this device's load is not shared.
    pub fn column(&self, name: NonZeroU64) -> Option<Column> {
        self.record.column(name)
    }

    /// Says how many bytes this process has in flight on a device: two stores. `false` if the row is not ours any
    /// more, because somebody took this process for dead: join anew.
    pub fn publish(&self, now: Instant, column: Column, inflight_bytes: u64) -> bool {
        self.record
            .store(&self.lease, column, inflight_bytes.min(ROW_BYTES_MAX));
        self.beat(now)
    }

    /// Says that this process lives and what it published still holds. `false` as in [`Self::publish`].
    pub fn beat(&self, now: Instant) -> bool {
        self.record.beat(&self.lease, now)
    }

    /// The weighted bytes that the others have in flight: `bytes[i]` becomes that of column `i`.
    ///
    /// One pass over all rows, two loads for each that is free or stale; so call it every so often (50 µs, say) and
    /// keep the answer, not for every slice.
    pub fn others(&self, now: Instant, bytes: &mut [u64]) {
        bytes.fill(0);
        for row in self.record.rows() {
            if row != self.lease.row() && self.record.is_fresh(row, now, self.config.stale_after) {
                self.record.add_row(row, bytes);
            }
        }
        for sum in bytes {
            *sum = self.config.weight.of(*sum);
        }
    }

    /// Gives the row back. What is dropped without this stays until somebody proves that the process has ended, and
    /// counts nothing once its heartbeat is old.
    pub fn leave(self) {
        self.record.release(self.lease);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
