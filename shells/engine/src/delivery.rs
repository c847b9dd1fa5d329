//! Notifications that this program sends, until it is known what became of them.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use polyrail_control::plane::{Delivery as Outcome, Plane};
use polyrail_core::report::Status;
use polyrail_core::units::PeerId;

use crate::engine::lock;
use crate::error::DeliveryError;
use crate::fabric::PEERS_MAX;
use crate::fork::Owned;

/// Notifications to one peer that may not be confirmed yet, those of batches under way included.
pub(crate) const NOTIFICATIONS_MAX: usize = 16_384;

/// What became of a notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeliveryStatus {
    /// Its batch has not ended, or the peer has not confirmed it. One that the peer has no room for waits so.
    Pending,
    /// The peer's engine has it for its program, or the program has taken it. It gets it once.
    Delivered,
    /// It was not sent, because its batch did not complete.
    Withheld,
    /// It never reached the peer and will not: the session had ended, or this engine has.
    Undelivered,
    /// It was sent, and the session or this engine ended before the peer had confirmed it: the peer has it
    /// once or not at all.
    Unknown,
}

/// Tells what became of a notification. Clones tell of the same one; dropping them changes nothing.
#[derive(Clone)]
pub struct Delivery {
    slip: Owned<Slip>,
}

impl Delivery {
    pub(crate) fn new(slip: Owned<Slip>) -> Self {
        Self { slip }
    }

    /// How it stands. In a forked child: `Unknown`.
    pub fn status(&self) -> DeliveryStatus {
        match self.slip.is_ours() {
            true => *lock(&self.slip.status),
            false => DeliveryStatus::Unknown,
        }
    }

    /// Waits until it is not `Pending` any more.
    pub fn wait(&self, timeout: Duration) -> Result<DeliveryStatus, DeliveryError> {
        if !self.slip.is_ours() {
            return Err(DeliveryError::Forked);
        }
        let start = Instant::now();
        let mut status = lock(&self.slip.status);
        while *status == DeliveryStatus::Pending {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(DeliveryError::TimedOut { after: timeout });
            }
            (status, _) = self
                .slip
                .known
                .wait_timeout(status, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Ok(*status)
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delivery({:?})", self.status())
    }
}

/// What a notification and its handles share.
pub(crate) struct Slip {
    status: Mutex<DeliveryStatus>,
    known: Condvar,
}

impl Slip {
    fn set(&self, status: DeliveryStatus) {
        *lock(&self.status) = status;
        self.known.notify_all();
    }
}

/// How many notifications to each peer are not confirmed.
pub(crate) struct Outbox {
    counts: [AtomicUsize; PEERS_MAX],
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Self {
            counts: [const { AtomicUsize::new(0) }; PEERS_MAX],
        }
    }

    /// Takes a place for a notification; `None`: there is none now.
    fn take(self: &Arc<Self>, peer: PeerId) -> Option<Place> {
        let more = |count: usize| (count < NOTIFICATIONS_MAX).then_some(count + 1);
        let count = self.counts.get(usize::from(peer.0))?;
        count.fetch_update(AcqRel, Acquire, more).ok()?;
        Some(Place {
            outbox: self.clone(),
            peer,
        })
    }
}

/// A place in an [`Outbox`], given back when it is dropped.
struct Place {
    outbox: Arc<Outbox>,
    peer: PeerId,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(count) = self.outbox.counts.get(usize::from(self.peer.0)) {
            count.fetch_sub(1, AcqRel);
        }
    }
}

/// A notification that has not been sent.
pub(crate) struct Outgoing {
    peer: PeerId,
    bytes: Vec<u8>,
    place: Place,
    slip: Arc<Slip>,
}

impl Outgoing {
    /// `None`: there is no room for it now.
    pub(crate) fn new(outbox: &Arc<Outbox>, peer: PeerId, bytes: &[u8]) -> Option<Self> {
        let place = outbox.take(peer)?;
        let slip = Slip {
            status: Mutex::new(DeliveryStatus::Pending),
            known: Condvar::new(),
        };
        Some(Self {
            peer,
            bytes: bytes.to_vec(),
            place,
            slip: Arc::new(slip),
        })
    }

    pub(crate) fn slip(&self) -> &Arc<Slip> {
        &self.slip
    }

    /// Its batch has ended so: it goes out if all of it has arrived.
    pub(crate) fn follow(self, batch: Status, plane: &Plane) {
        match batch {
            Status::Completed => self.send(plane),
            _ => self.slip.set(DeliveryStatus::Withheld),
        }
    }

    /// Hands it to the control plane, which answers.
    pub(crate) fn send(self, plane: &Plane) {
        let Self {
            peer,
            bytes,
            place,
            slip,
        } = self;
        let answer = move |outcome| {
            // First, so that whoever has waited finds room.
            drop(place);
            slip.set(match outcome {
                Outcome::Delivered => DeliveryStatus::Delivered,
                Outcome::Undelivered => DeliveryStatus::Undelivered,
                Outcome::Unknown => DeliveryStatus::Unknown,
            });
        };
        plane.notify(peer, bytes, Box::new(answer));
    }
}
