//! Notifications to one peer, from when they may go out until the peer has them.
//!
//! They are numbered from 1 in each session, go out in order on one connection, and stay here until the peer
//! has confirmed their number. When no answer comes in time, or the connection is lost, they go out again on
//! the next one, from the first that is not confirmed; the peer takes each number once, and only the one that
//! follows the last. A peer without room says so, and says when it has some; it is asked again by itself too,
//! so nothing depends on that word.

use std::collections::VecDeque;

use polyrail_core::time::{Duration, Instant};

use super::question::send;
use super::wires::{Key, Wires};
use crate::codec::{Frame, NOTIFICATION_BYTES_MAX};
use crate::connection::OUT_BYTES_MAX;

/// Notifications that may be out and not confirmed.
const WINDOW: usize = 64;
/// After how long they are sent again, and a peer without room is asked again.
const AGAIN: Duration = Duration::from_millis(200);

// Sent twice they must not fill a connection that stands still for a moment.
const _: () = assert!(2 * WINDOW * (NOTIFICATION_BYTES_MAX + 64) < OUT_BYTES_MAX);

/// What became of a notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// The peer has it.
    Delivered,
    /// The peer never had it, and will not.
    Undelivered,
    /// The session ended after it was sent and before it was confirmed: the peer may have it.
    Unknown,
}

/// Called once, when it is known what became of a notification. On the control thread as a rule, so it must
/// not block.
pub type DeliveryAnswer = Box<dyn FnOnce(Delivery) + Send>;

/// A notification that is not confirmed. Dropped as it is, it answers as far as that is known.
pub(super) struct Notification {
    body: Vec<u8>,
    answer: Option<DeliveryAnswer>,
    /// It has been out, and so the peer may have it.
    sent: bool,
}

impl Notification {
    pub(super) fn new(body: Vec<u8>, answer: DeliveryAnswer) -> Self {
        Self {
            body,
            answer: Some(answer),
            sent: false,
        }
    }

    fn answer(&mut self, delivery: Delivery) {
        if let Some(answer) = self.answer.take() {
            answer(delivery);
        }
    }
}

impl Drop for Notification {
    fn drop(&mut self) {
        self.answer(match self.sent {
            true => Delivery::Unknown,
            false => Delivery::Undelivered,
        });
    }
}

/// The notifications of a session that are not confirmed, in order.
pub(super) struct Outbox {
    waiting: VecDeque<Notification>,
    /// The number of the first of them.
    first: u64,
    /// How many of them, from the first on, are out on `on`.
    out: usize,
    /// How many may be: one until the peer has confirmed something.
    window: usize,
    on: Option<Key>,
    /// The peer has no room.
    stalled: bool,
    /// When to send again, if some are out or the peer has no room.
    again: Instant,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            first: 1,
            out: 0,
            window: 1,
            on: None,
            stalled: false,
            again: Instant::ZERO,
        }
    }

    pub(super) fn push(&mut self, notification: Notification) {
        self.waiting.push_back(notification);
    }

    /// Sends what may be sent; `open` are the connections, the most reliable first.
    pub(super) fn send(&mut self, wires: &mut Wires, now: Instant, open: &[Key]) {
        if self.is_pending() && self.again <= now {
            let other = open.iter().find(|key| Some(**key) != self.on);
            self.rewind(other.copied().or(self.on));
        }
        if self.stalled {
            return;
        }
        let Some(key) = self.on.or(open.first().copied()) else {
            return;
        };
        self.on = Some(key);
        if self.out == 0 {
            self.again = now + AGAIN;
        }
        let first = self.first;
        let news = self.waiting.iter_mut().take(self.window).enumerate();
        for (index, notification) in news.skip(self.out) {
            notification.sent = true;
            let frame = Frame::Notify {
                number: first + index as u64,
                body: notification.body.clone(),
            };
            send(wires, key, &frame);
            self.out = index + 1;
        }
    }

    /// The peer has everything up to `number`, and room for more or not.
    pub(super) fn handle_notified(&mut self, now: Instant, number: u64, room: bool) {
        // A peer that confirms what was never sent is not believed.
        while self.first <= number && self.waiting.front().is_some_and(|first| first.sent) {
            if let Some(mut first) = self.waiting.pop_front() {
                first.answer(Delivery::Delivered);
            }
            self.first += 1;
            self.out = self.out.saturating_sub(1);
            self.window = WINDOW;
            self.again = now + AGAIN;
        }
        match room {
            true if self.stalled => self.rewind(self.on),
            true => {}
            false => {
                self.rewind(self.on);
                self.stalled = true;
                self.again = now + AGAIN;
            }
        }
    }

    /// A connection is gone, and what was out on it is to be sent again.
    pub(super) fn forget_connection(&mut self, key: Key) {
        if self.on == Some(key) {
            self.rewind(None);
        }
    }

    /// Starts again from the first, carefully.
    fn rewind(&mut self, on: Option<Key>) {
        (self.out, self.window, self.on, self.stalled) = (0, 1, on, false);
    }

    /// The connection that has not answered in time.
    pub(super) fn overdue(&self, now: Instant) -> Option<Key> {
        self.on.filter(|_| self.out > 0 && self.again <= now)
    }

    /// Whether something is expected of the peer.
    fn is_pending(&self) -> bool {
        self.stalled || self.out > 0
    }

    /// When [`Self::send`] has something to do again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.is_pending().then_some(self.again)
    }
}
