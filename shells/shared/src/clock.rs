//! The clock that all processes of a host share.

use polyrail_core::time::{Duration, Instant};
use rustix::time::{ClockId, clock_gettime};

/// The host's monotonic clock, which heartbeats are told in. Its zero is not the engine's.
pub fn host_now() -> Instant {
    let now = clock_gettime(ClockId::Monotonic);
    // It is never negative.
    let secs = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    Instant::ZERO + Duration::from_secs(secs) + Duration::from_nanos(nanos)
}
