//! What devices' threads tell a worker, and how they wake it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};

use polyrail_core::units::{Epoch, LaneId};
use polyrail_core::work::Cause;
use polyrail_transport::memory::RegionKey;
use rustix::event::{EventfdFlags, eventfd};

use crate::completion::QueueRoom;
use crate::device::Device;
use crate::ffi::Qp;
use crate::packets::Tally;
use crate::wire::Answer;

/// A connected queue pair.
pub(crate) struct Made {
    pub(crate) qp: Qp,
    pub(crate) room: QueueRoom,
    /// What it was made on.
    pub(crate) device: Arc<Device>,
    pub(crate) tally: Tally,
}

/// One thing that a worker is told.
pub(crate) enum Said {
    /// A lane is connected.
    Opened(LaneId, Epoch, Box<Made>),
    /// It could not be.
    OpenFailed(LaneId, Epoch),
    /// What opens a region at the far end of a lane, or a piece of it.
    Told(LaneId, Epoch, RegionKey, Answer),
    /// This immediate has come, and all that was posted on the lane before it.
    Seen(LaneId, Epoch, u32),
    /// It is of no use any more.
    Broken(LaneId, Epoch, Cause),
    /// Its queue pair has been destroyed.
    Ended(LaneId, Epoch),
    /// The device was told to destroy its queue pair, and may go on with it. [`Self::Ended`] may follow.
    Unproven(LaneId, Epoch),
    /// A completion queue gets no lanes any more, or the last lane on one that gets none is gone.
    Forgotten,
    /// Memory of this side has been registered with a device, or could not be.
    Registered,
    /// The port of the device at this place carries packets again.
    PortActive(usize),
}

/// A worker's.
pub(crate) struct Mailbox {
    said: Mutex<Vec<Said>>,
    has: AtomicBool,
    wake: OwnedFd,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            said: Mutex::default(),
            has: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(crate) fn say(&self, said: Said) {
        let mut all = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(said);
        drop(all);
        self.has.store(true, Release);
        // Full means that it was woken already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Everything said since the last time.
    pub(crate) fn take(&self) -> Vec<Said> {
        if !self.has.load(Relaxed) || !self.has.swap(false, AcqRel) {
            return Vec::new();
        }
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        std::mem::take(&mut *self.said.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Readable when something was said.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
