//! Something asked of a peer, until it is answered.

use polyrail_core::time::{Duration, Instant};

use super::mailbox::Asker;
use super::wires::{Key, Wires};
use super::{AskError, Ends};
use crate::codec::Frame;

/// After how long a question is asked again over another connection.
pub(super) const DESCRIBE_AGAIN: Duration = Duration::from_millis(100);
/// The same for calls, which take longer.
pub(super) const CALL_AGAIN: Duration = Duration::from_millis(200);

/// Something asked and not answered.
pub(super) struct Question<T> {
    /// What its answer carries.
    pub(super) number: u64,
    pub(super) frame: Frame,
    pub(super) asker: Asker<T>,
    pub(super) deadline: Instant,
    /// How long to wait before it is asked again.
    pub(super) patience: Duration,
    pub(super) again: Instant,
    /// The connection that it went out on last.
    pub(super) sent_on: Option<Key>,
}

impl<T> Question<T> {
    pub(super) fn new(
        now: Instant,
        number: u64,
        frame: Frame,
        patience: Duration,
        asker: Asker<T>,
    ) -> Self {
        Self {
            number,
            frame,
            deadline: now + asker.timeout.into(),
            asker,
            patience,
            again: now,
            sent_on: None,
        }
    }

    /// When something is to be done about it.
    pub(super) fn due(&self, can_ask: bool) -> Instant {
        if can_ask {
            self.again.min(self.deadline)
        } else {
            self.deadline
        }
    }

    /// Whether its time was over, and its asker told so.
    pub(super) fn expire(&self, now: Instant, ends: &Ends, connections: usize) -> bool {
        let over = self.deadline <= now;
        if over {
            let error = AskError::TimedOut {
                ends: Box::new(ends.clone()),
                after: self.asker.timeout,
                connections,
            };
            self.asker.answer(Err(error));
        }
        over
    }

    /// Asks, if that is due: on the next open connection after the last one, so that all get their turn.
    pub(super) fn ask(&mut self, wires: &mut Wires, now: Instant, open: &[Key]) {
        if self.again > now {
            return;
        }
        let next = open.iter().find(|key| Some(**key) > self.sent_on);
        let Some(&key) = next.or(open.first()) else {
            return;
        };
        send(wires, key, &self.frame);
        self.sent_on = Some(key);
        self.again = now + self.patience;
    }

    pub(super) fn forget_connection(&mut self, now: Instant, key: Key) {
        if self.sent_on == Some(key) {
            self.again = now;
        }
    }
}

/// Questions fit a frame: names and bodies were measured when they were asked.
pub(super) fn send(wires: &mut Wires, key: Key, frame: &Frame) {
    if let Err(error) = wires.send(key, frame) {
        log::warn!("control: {} cannot be sent: {error}", frame.kind());
    }
}
