//! Completion queues that several lanes of one worker share.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Arc, Weak};

use polyrail_transport::complain;

use crate::device::Device;
use crate::ffi::Cq;
use crate::ffi::raw::Wc;
use crate::mailbox::{Mailbox, Said};

/// Polls in a row that find nothing, before a queue is asked to wake whoever sleeps.
const UNARMED_MAX: u32 = 32;

/// A completion queue with room for all that so many lanes can flush.
pub(crate) struct SharedQueue {
    pub(crate) cq: Arc<Cq>,
    /// The place of its device.
    pub(crate) device: usize,
    /// The worker that takes from it.
    mailbox: Weak<Mailbox>,
    taken: AtomicU32,
    lanes_max: u32,
    /// It gets no lanes any more.
    is_forgotten: AtomicBool,
}

/// A lane's room in a queue. Given back when it is dropped: not before all of the lane's completions were taken.
pub(crate) struct QueueRoom(Arc<SharedQueue>);

impl SharedQueue {
    pub(crate) fn new(device: &Device, mailbox: &Arc<Mailbox>) -> io::Result<Arc<Self>> {
        let lanes_max = device.lanes_per_queue.max(1);
        let depth = lanes_max * (u32::from(device.limits.works_max) + 1);
        Ok(Arc::new(Self {
            cq: Arc::new(Cq::new(&device.context, depth)?),
            device: device.number,
            mailbox: Arc::downgrade(mailbox),
            taken: AtomicU32::new(0),
            lanes_max,
            is_forgotten: AtomicBool::new(false),
        }))
    }

    /// Room for one more lane. Called by one thread only.
    pub(crate) fn room(self: &Arc<Self>) -> Option<QueueRoom> {
        if self.taken.load(SeqCst) >= self.lanes_max {
            return None;
        }
        self.taken.fetch_add(1, SeqCst);
        Some(QueueRoom(self.clone()))
    }

    /// Whether this is the worker that takes from it.
    pub(crate) fn is_of(&self, mailbox: &Arc<Mailbox>) -> bool {
        self.mailbox.as_ptr() == Arc::as_ptr(mailbox)
    }

    /// No lane gets room in it any more. Its worker gives it up once those that have some are gone.
    pub(crate) fn forget(&self) {
        self.is_forgotten.store(true, SeqCst);
        self.tell();
    }

    fn tell(&self) {
        if let Some(mailbox) = self.mailbox.upgrade() {
            mailbox.say(Said::Forgotten);
        }
    }
}

impl QueueRoom {
    pub(crate) fn queue(&self) -> &Arc<SharedQueue> {
        &self.0
    }
}

impl Drop for QueueRoom {
    fn drop(&mut self) {
        let left = self.0.taken.fetch_sub(1, SeqCst) - 1;
        // Whoever had it may be another thread, after the worker was told.
        if left == 0 && self.0.is_forgotten.load(SeqCst) {
            self.0.tell();
        }
    }
}

/// A completion queue as the worker that takes from it knows it.
pub(crate) struct Queue {
    shared: Arc<SharedQueue>,
    /// The next completion makes its descriptor readable.
    armed: bool,
    /// Polls in a row that found nothing.
    empty: u32,
    /// Works on it that are posted and not completed.
    pub(crate) posted: usize,
    /// Room of lanes that are over, kept until all of their completions have been taken.
    leaving: Vec<QueueRoom>,
}

impl Queue {
    pub(crate) fn new(shared: Arc<SharedQueue>) -> Self {
        Self {
            shared,
            armed: false,
            empty: 0,
            posted: 0,
            leaving: Vec::new(),
        }
    }

    /// Whether it is the one that this room is in.
    pub(crate) fn is_of(&self, room: &QueueRoom) -> bool {
        Arc::ptr_eq(&self.shared, room.queue())
    }

    /// Whether no lane is on it, nor will be.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.shared.is_forgotten.load(SeqCst) && self.shared.taken.load(SeqCst) == 0
    }

    /// Whether lanes that are over have left something on it that was not taken yet.
    pub(crate) fn is_left(&self) -> bool {
        !self.leaving.is_empty()
    }

    pub(crate) fn shared(&self) -> &Arc<SharedQueue> {
        &self.shared
    }

    /// Keeps a lane's room until what it left there has been taken.
    pub(crate) fn leave(&mut self, room: QueueRoom) {
        self.leaving.push(room);
    }

    /// Whether there may be something to take, or to hear.
    pub(crate) fn wants_a_look(&self) -> bool {
        self.posted > 0 || self.armed || !self.leaving.is_empty()
    }

    /// Whether works complete on it and nobody would be woken: it has to be looked at again at once.
    pub(crate) fn wakes_nobody(&self) -> bool {
        self.posted > 0 && !self.armed
    }

    /// Takes completions and tells how many. If there are none again and again, asks to be woken by the next.
    pub(crate) fn take(&mut self, out: &mut [Wc]) -> usize {
        loop {
            let count = self.shared.cq.poll(out).unwrap_or_else(|error| {
                complain!("verbs: {error}");
                0
            });
            if count < out.len() {
                self.leaving.clear();
            }
            if count > 0 {
                self.empty = 0;
                return count;
            }
            self.empty = self.empty.saturating_add(1);
            if self.armed {
                self.armed = !self.shared.cq.hear();
                return 0;
            }
            if self.empty <= UNARMED_MAX || self.posted == 0 {
                return 0;
            }
            match self.shared.cq.arm() {
                // What came before that wakes nobody, so it is looked for once more.
                Ok(()) => self.armed = true,
                Err(error) => {
                    complain!("verbs: {error}");
                    return 0;
                }
            }
        }
    }
}
