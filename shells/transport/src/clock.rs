//! The engine's clock.

use polyrail_core::time::{Duration, Instant};

/// Reads the monotonic clock as core's [`Instant`]: nanoseconds since the engine started.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: std::time::Instant,
}

impl Clock {
    /// A clock that starts at zero now.
    pub fn start() -> Self {
        Self {
            start: std::time::Instant::now(),
        }
    }

    /// The time.
    pub fn now(&self) -> Instant {
        Instant::ZERO + Duration::from(self.start.elapsed())
    }

    /// What time it was at a moment after the start.
    pub fn at(&self, moment: std::time::Instant) -> Instant {
        Instant::ZERO + Duration::from(moment.saturating_duration_since(self.start))
    }

    /// How long until `at`; zero if it has passed.
    pub fn until(&self, at: Instant) -> std::time::Duration {
        at.since(self.now()).into()
    }
}
