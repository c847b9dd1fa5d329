//! The detour of host memory that is not pinned as a whole, through slots of memory that is.
//!
//! A copy to or from pageable memory returns only when it is over, behind all that its stream waits for: the worker would stand
//! still, with all its lanes, until a program's kernels let it go on. One of memory of which a part is pinned is refused. So
//! what is not pinned as a whole is cut to the size of a slot, and the worker copies between slot and memory by itself: before
//! the device fetches from the slot, once what the copy had to wait for is over; and when the device has filled it.
//!
//! # Safety
//!
//! Slots are pinned and mapped as long as [`Slots`] lives, and for good if one is in use when it goes. A slot has one user, from
//! [`Slots::take`] to [`Slots::give`].

use std::sync::Arc;

use polyrail_core::time::Instant;
use polyrail_core::units::LaneId;
use polyrail_transport::memory::{Access, Region};

use crate::driver::{Answer, CudaError, End, Event};
use crate::far::Kept;
use crate::gpus::Gpus;

/// Bytes of a slot. The worker copies so much at a time, some ten microseconds.
pub(crate) const SLOT_BYTES: u64 = 256 << 10;

/// How many a worker has: enough for the device to have a copy while the worker makes the next.
const SLOTS: usize = 8;

/// The slots of one worker.
pub(crate) struct Slots {
    gpus: Arc<Gpus>,
    /// The device that they were pinned for first; all others can use them.
    ordinal: u32,
    region: Arc<Region>,
    free: Vec<usize>,
}

impl Slots {
    pub(crate) fn new(gpus: &Arc<Gpus>, ordinal: u32) -> Answer<Self> {
        let bytes = SLOT_BYTES * SLOTS as u64;
        let region = Region::allocate(bytes, Access::Local);
        let region = region.map_err(|_| CudaError::OutOfMemory { bytes })?;
        let address = region.base().as_ptr() as u64;
        gpus.driver().pin(ordinal, address, bytes)?;
        Ok(Self {
            gpus: gpus.clone(),
            ordinal,
            region: Arc::new(region),
            free: (0..SLOTS).collect(),
        })
    }

    /// One that nobody uses.
    pub(crate) fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    pub(crate) fn give(&mut self, slot: usize) {
        self.free.push(slot);
    }

    /// Where one begins.
    pub(crate) fn address(&self, slot: usize) -> u64 {
        self.region.base().as_ptr() as u64 + slot as u64 * SLOT_BYTES
    }

    /// Copies memory of the host into a slot.
    ///
    /// # Safety
    ///
    /// So many bytes, at most [`SLOT_BYTES`], can be read from there, and the slot is the caller's.
    pub(crate) unsafe fn fill(&self, slot: usize, from: u64, bytes: u64) {
        let to = self.address(slot) as *mut u8;
        // SAFETY: the caller's promise; the slot is as long, and nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to, bytes as usize) }
    }

    /// Copies what is in a slot to memory of the host.
    ///
    /// # Safety
    ///
    /// So many bytes, at most [`SLOT_BYTES`], can be written there, and the slot is the caller's.
    pub(crate) unsafe fn empty(&self, slot: usize, to: u64, bytes: u64) {
        let from = self.address(slot) as *const u8;
        // SAFETY: as in `fill`.
        unsafe { std::ptr::copy_nonoverlapping(from, to as *mut u8, bytes as usize) }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        if self.free.len() < SLOTS {
            // A device may still use one.
            std::mem::forget(self.region.clone());
            return;
        }
        let address = self.region.base().as_ptr() as u64;
        if let Err(error) = self.gpus.driver().unpin(self.ordinal, address) {
            log::debug!("cuda: {error}");
        }
    }
}

/// A work that takes the detour.
pub(crate) struct Detour {
    pub(crate) lane: LaneId,
    pub(crate) cookie: u64,
    /// Which of the device's streams.
    pub(crate) stream: usize,
    /// The end on the host.
    pub(crate) near: u64,
    pub(crate) far: End,
    pub(crate) bytes: u64,
    /// How many of them are in the stream, or have been.
    pub(crate) put: u64,
    pub(crate) kept: Vec<Kept>,
    /// What has to be over before memory of the host may be read.
    pub(crate) gate: Option<Event>,
    pub(crate) posted_at: Instant,
}

/// A slot that is in use by a copy, and where its bytes are to go when that is over.
pub(crate) struct Landing {
    pub(crate) slot: usize,
    pub(crate) to: Option<u64>,
    pub(crate) bytes: u64,
}
