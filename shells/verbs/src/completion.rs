//! Completion queues that several lanes of one worker share.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::*};

use crate::device::Device;
use crate::ffi::Cq;

/// A completion queue with room for all that so many lanes can flush.
pub(crate) struct SharedQueue {
    pub(crate) cq: Arc<Cq>,
    taken: AtomicU32,
    seats: u32,
}

/// A lane's room in a queue. Given back when it is dropped: not before all of the lane's completions were taken.
pub(crate) struct Seat(Arc<SharedQueue>);

impl SharedQueue {
    pub(crate) fn new(device: &Device) -> io::Result<Arc<Self>> {
        let seats = device.lanes_per_queue.max(1);
        let depth = seats * u32::from(device.limits.works_max);
        Ok(Arc::new(Self {
            cq: Arc::new(Cq::new(&device.context, depth)?),
            taken: AtomicU32::new(0),
            seats,
        }))
    }

    /// Room for one more lane. Called by one thread only.
    pub(crate) fn seat(self: &Arc<Self>) -> Option<Seat> {
        if self.taken.load(Acquire) >= self.seats {
            return None;
        }
        self.taken.fetch_add(1, AcqRel);
        Some(Seat(self.clone()))
    }
}

impl Seat {
    pub(crate) fn queue(&self) -> &Arc<SharedQueue> {
        &self.0
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, AcqRel);
    }
}
