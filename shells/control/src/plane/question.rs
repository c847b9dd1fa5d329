//! Something asked of a peer, until it is answered.

use polyrail_core::stage::StageMessage;
use polyrail_core::time::{Duration, Instant};

use super::mailbox::Asker;
use super::wires::{Key, Wires};
use super::{AskError, Ends};
use crate::codec::{Frame, STAGING};

/// After how long a question is first asked again over another connection; doubles each time. A frame more
/// costs less than to wait for one that a silent rail has swallowed, and nothing is carried out twice.
pub(super) const AGAIN_MIN: Duration = Duration::from_millis(20);
/// The longest it waits before it is asked again.
pub(super) const DESCRIBE_AGAIN_MAX: Duration = Duration::from_millis(100);
/// The same for calls, which take longer.
pub(super) const CALL_AGAIN_MAX: Duration = Duration::from_millis(200);

/// Something asked and not answered.
pub(super) struct Question<T> {
    /// What its answer carries.
    pub(super) number: u64,
    pub(super) frame: Frame,
    pub(super) asker: Asker<T>,
    pub(super) deadline: Instant,
    patience: Patience,
    pub(super) again: Instant,
    /// The connections that have had their turn; it went out on the last of them last.
    asked: Vec<Key>,
}

/// How long to wait before a question is asked again.
struct Patience {
    next: Duration,
    max: Duration,
}

impl Patience {
    fn new(max: Duration) -> Self {
        Self {
            next: AGAIN_MIN.min(max),
            max,
        }
    }

    /// This time; twice as long the next.
    fn take(&mut self) -> Duration {
        let now = self.next;
        self.next = now.times(2).min(self.max);
        now
    }
}

impl<T> Question<T> {
    pub(super) fn new(
        now: Instant,
        number: u64,
        frame: Frame,
        patience_max: Duration,
        asker: Asker<T>,
    ) -> Self {
        Self {
            number,
            frame,
            deadline: now + asker.timeout.into(),
            asker,
            patience: Patience::new(patience_max),
            again: now,
            asked: Vec::new(),
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

    /// The connection that it went out on and that has not answered in time.
    pub(super) fn overdue(&self, now: Instant) -> Option<Key> {
        self.asked.last().copied().filter(|_| self.again <= now)
    }

    /// Asks, if that is due: on the first of `open` that has not had its turn, so that all get theirs.
    pub(super) fn ask(&mut self, wires: &mut Wires, now: Instant, open: &[Key]) {
        if self.again > now {
            return;
        }
        let mut next = open.iter().find(|key| !self.asked.contains(key));
        if next.is_none() {
            // Another round, but not on the one that has just failed to answer, if there is a choice.
            let last = self.asked.pop();
            self.asked.clear();
            next = open.iter().find(|key| Some(**key) != last);
        }
        let Some(&key) = next.or(open.first()) else {
            return;
        };
        send(wires, key, &self.frame);
        self.asked.push(key);
        self.again = now + self.patience.take();
    }

    pub(super) fn forget_connection(&mut self, now: Instant, key: Key) {
        if self.asked.last() == Some(&key) {
            self.again = now;
        }
        self.asked.retain(|asked| *asked != key);
    }
}

/// Sends a message about a staging slot over the `turn`-th of these connections, counted around, if the other end stages.
pub(super) fn send_by_turns(wires: &mut Wires, open: &[Key], turn: usize, message: StageMessage) {
    let key = (!open.is_empty()).then(|| open[turn % open.len()]);
    if let Some(key) = key.filter(|key| wires.features(*key) & STAGING != 0) {
        send(wires, key, &Frame::Stage(message));
    }
}

/// Questions fit a frame: names and bodies were measured when they were asked.
pub(super) fn send(wires: &mut Wires, key: Key, frame: &Frame) {
    if let Err(error) = wires.send(key, frame) {
        log::warn!("control: {} cannot be sent: {error}", frame.kind());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_silent_rail_swallowed_is_asked_again_soon_and_then_less_and_less_often() {
        // It once was not asked again for 200 ms: a program that called a peer for each of its batches stood
        // still that long after a rail had gone silent, while the data had long been sent elsewhere.
        let mut patience = Patience::new(CALL_AGAIN_MAX);
        let taken: [Duration; 6] = std::array::from_fn(|_| patience.take());
        assert_eq!(
            taken,
            [20, 40, 80, 160, 200, 200].map(Duration::from_millis)
        );
    }
}
