//! Why a wait for a batch saw no end of it, or no proof that all has let go.

use std::fmt;
use std::time::Duration;

use polyrail_core::batch::BatchReport;

use super::FORKED;
use crate::stats::WorkerLoad;

/// Why [`crate::Batch::wait`] did not see the batch end.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WaitError {
    /// It has not ended in time. It goes on, and can be waited for again.
    TimedOut {
        /// How long was waited.
        after: Duration,
        /// How it stood then.
        status: BatchReport,
        /// How its worker did.
        load: Box<WorkerLoad>,
    },
    /// This process was forked from the one whose batch it is: only that one can wait for it.
    Forked,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut {
                after,
                status,
                load,
            } => write!(
                f,
                "not ended after {after:?}: {} of {} requests have; {load}",
                status.ended, status.requests
            ),
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl std::error::Error for WaitError {}

/// Why [`crate::Batch::wait_released`] has no proof that everything has let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReleaseError {
    /// No proof came in time. It may still come: wait again. Memory that is held must not be used.
    TimedOut {
        /// How long was waited.
        after: Duration,
        /// Requests whose memory on this side may still be touched.
        held: usize,
        /// Requests, those included, of which something may still happen on either side.
        unsettled: usize,
    },
    /// No proof will come, because the engine has ended, or newer batches needed the place. Memory on this
    /// side is free; what the peer's holds is unknown for good: write it anew, or give it up.
    Unprovable {
        /// Requests that are unsettled.
        requests: usize,
    },
    /// This process was forked from the one whose batch it is: only that one can wait for it.
    Forked,
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut {
                after,
                held,
                unsettled,
            } => write!(
                f,
                "after {after:?}, {unsettled} requests are not settled, {held} of them hold memory here"
            ),
            Self::Unprovable { requests } => write!(
                f,
                "{requests} requests are not settled, and no proof will come"
            ),
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl std::error::Error for ReleaseError {}
