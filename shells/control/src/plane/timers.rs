//! Who is to be woken when.

use std::collections::{BTreeSet, HashMap};

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::PeerId;
use polyrail_transport::SessionId;

use super::wires::Key;

/// Whom a timer wakes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Timer {
    /// One connection.
    Wire(Key),
    /// What is due with a peer: a connection to build, a question to send again.
    Peer(PeerId),
    /// The next heartbeat to a peer.
    Beat(PeerId),
    /// The end of a session's linger, or a look at whether it is silent, by the bytes of its [`SessionId`].
    Session([u8; 16]),
    /// Another look at a process that may have ended, by the watch on it.
    Exited(Key),
    /// The end of sessions that began with a key that was replaced.
    LeftKeys,
    /// Listening again after `accept` failed.
    Listeners,
    /// The end of the shutdown's patience.
    Shutdown,
}

impl Timer {
    pub(super) fn session(id: SessionId) -> Self {
        Self::Session(id.0)
    }
}

/// One instant per [`Timer`], in order.
#[derive(Debug, Default)]
pub(super) struct Timers {
    order: BTreeSet<(Instant, Timer)>,
    armed: HashMap<Timer, Instant>,
}

impl Timers {
    /// Arms a timer anew, or disarms it.
    pub(super) fn set(&mut self, timer: Timer, at: Option<Instant>) {
        let before = match at {
            Some(at) => self.armed.insert(timer, at),
            None => self.armed.remove(&timer),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, timer));
        }
        if let Some(at) = at {
            self.order.insert((at, timer));
        }
    }

    /// When the first is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Takes the first timer that is due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Timer> {
        let (at, timer) = *self.order.first()?;
        if at > now {
            return None;
        }
        self.set(timer, None);
        Some(timer)
    }
}

/// At `at` or up to `grid` later. Many timers that may be late so far fall together, and share a wake-up.
pub(super) fn on_grid(at: Instant, grid: Duration) -> Instant {
    let grid = grid.as_nanos().max(1);
    Instant::from_nanos(at.as_nanos().div_ceil(grid).saturating_mul(grid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_on_a_grid_fall_together_and_none_is_early_or_late_by_more() {
        let grid = Duration::from_millis(78);
        let instants =
            (0..1_000).map(|peer| Instant::ZERO + Duration::from_micros(1_250_000 + 1_000 * peer));
        let mut wakes = BTreeSet::new();
        for at in instants {
            let on = on_grid(at, grid);
            assert!(on >= at && on < at + grid, "{at:?} {on:?}");
            wakes.insert(on);
        }
        assert!(wakes.len() <= 14, "{} wake-ups in a second", wakes.len());
    }

    #[test]
    fn timers_fire_in_order_once_and_only_as_last_armed() {
        let at = |ms: u64| Some(Instant::from_nanos(ms * 1_000_000));
        let mut timers = Timers::default();
        timers.set(Timer::Wire(1), at(30));
        timers.set(Timer::Wire(2), at(20));
        timers.set(Timer::Listeners, at(10));
        timers.set(Timer::Wire(1), at(5));
        timers.set(Timer::Listeners, None);
        assert_eq!(timers.next(), at(5));
        let now = Instant::from_nanos(25_000_000);
        assert_eq!(timers.pop_due(now), Some(Timer::Wire(1)));
        assert_eq!(timers.pop_due(now), Some(Timer::Wire(2)));
        assert_eq!(timers.pop_due(now), None);
        assert_eq!(timers.next(), None);
    }
}
