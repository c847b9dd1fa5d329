//! What workers share, as it stands, written and read: see [`crate::orchestrator::Orchestrator::snapshot_shared`].
//!
//! Whoever asks sees to it that nobody writes meanwhile.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeTuple, Serializer};
use spin::Mutex;

use super::device::Device;
use super::estimate::Estimate;
use super::health::RailHealth;
use super::row::Rail;
use super::shared::Shared;
use super::speed::Speed;
use crate::snapshot::{IntoSparse, Sparse, next_into};
use crate::sync::{AtomicU32, AtomicU64};

/// The cells of a row.
struct Cells<'c, const LONG: usize, const SHORT: usize> {
    long: [&'c AtomicU64; LONG],
    short: [&'c AtomicU32; SHORT],
    estimate: &'c Mutex<Option<Estimate>>,
}

impl<const LONG: usize, const SHORT: usize> Cells<'_, LONG, SHORT> {
    fn values(&self) -> ([u64; LONG], [u32; SHORT], Option<Estimate>) {
        let long = self.long.map(|cell| cell.load(Relaxed));
        let short = self.short.map(|cell| cell.load(Relaxed));
        (long, short, *self.estimate.lock())
    }

    fn put(&self, long: [u64; LONG], short: [u32; SHORT], estimate: Option<Estimate>) {
        let cells = self.long.into_iter().zip(long);
        cells.for_each(|(cell, value)| cell.store(value, Relaxed));
        let cells = self.short.into_iter().zip(short);
        cells.for_each(|(cell, value)| cell.store(value, Relaxed));
        *self.estimate.lock() = estimate;
    }
}

// Without `..`: a new field is here, or this does not compile.
impl Rail {
    fn cells(&self) -> Cells<'_, 8, 12> {
        let Self {
            inflight_bytes,
            used_at,
            done_bytes,
            done_at,
            probed_at,
            window_cap,
            ends,
            far,
            stands_in_for,
            sent_again,
            health: RailHealth { word, probe_at },
            speed:
                Speed {
                    rate,
                    delay_base,
                    delay_mean,
                    window_bytes,
                    slice_bytes,
                    part_bytes,
                    units,
                    units_shown,
                    estimate,
                },
        } = self;
        Cells {
            long: [
                inflight_bytes,
                used_at,
                done_bytes,
                done_at,
                probed_at,
                word,
                probe_at,
                rate,
            ],
            short: [
                window_cap,
                ends,
                far,
                stands_in_for,
                sent_again,
                delay_base,
                delay_mean,
                window_bytes,
                slice_bytes,
                part_bytes,
                units,
                units_shown,
            ],
            estimate,
        }
    }
}

impl Device {
    fn cells(&self) -> Cells<'_, 5, 2> {
        let Self {
            inflight_bytes,
            others_bytes,
            rate,
            free_at,
            kept_until,
            only_rail,
            window_bytes,
            estimate,
        } = self;
        Cells {
            long: [inflight_bytes, others_bytes, rate, free_at, kept_until],
            short: [only_rail, window_bytes],
            estimate,
        }
    }
}

/// Parts of a snapshot.
const PARTS: usize = 3;

/// What is shared, to be written.
pub(crate) struct Snapshot<'a>(Shared<'a>);

impl Serialize for Snapshot<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shared = self.0;
        let mut parts = serializer.serialize_tuple(PARTS)?;
        let rails = || {
            let used = (0..)
                .zip(shared.rails)
                .filter(|(_, row)| row.peer().is_some());
            used.map(|(index, row)| (index, row.cells().values()))
        };
        parts.serialize_element(&Sparse(rails))?;
        let devices = || {
            let rows = (0..).zip(shared.devices);
            let used = rows.filter(|(_, row)| row.estimate.lock().is_some());
            used.map(|(index, row)| (index, row.cells().values()))
        };
        parts.serialize_element(&Sparse(devices))?;
        let waiting = || {
            let rows = (0..).zip(shared.waiting);
            rows.map(|(index, row)| (index, row.since().load(Relaxed)))
        };
        parts.serialize_element(&Sparse(waiting))?;
        parts.end()
    }
}

/// Reads one back.
pub(crate) struct Restore<'a>(Shared<'a>);

impl<'de> DeserializeSeed<'de> for Restore<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_tuple(PARTS, self)
    }
}

impl<'de> Visitor<'de> for Restore<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rails, devices and who waits")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<(), A::Error> {
        let Self(shared) = self;
        let put = |index: u32, (long, short, estimate)| {
            let row = shared.rails.get(index as usize)?;
            row.cells().put(long, short, estimate);
            Some(())
        };
        next_into(&mut parts, IntoSparse::new(put))?;
        let put = |index: u32, (long, short, estimate)| {
            let row = shared.devices.get(index as usize)?;
            row.cells().put(long, short, estimate);
            Some(())
        };
        next_into(&mut parts, IntoSparse::new(put))?;
        let put = |index: u32, since| {
            let row = shared.waiting.get(index as usize)?;
            row.since().store(since, Relaxed);
            Some(())
        };
        next_into(&mut parts, IntoSparse::new(put))
    }
}

impl<'a> Shared<'a> {
    /// All of it.
    pub(crate) fn snapshot(&self) -> Snapshot<'a> {
        Snapshot(*self)
    }

    /// Where a snapshot is put, in tables of which nobody has used anything yet.
    pub(crate) fn restore(&self) -> Restore<'a> {
        Restore(*self)
    }
}
