//! Why a segment of a peer was not closed.

use std::fmt;

use super::FORKED;
use crate::segments::SegmentId;

/// Why [`crate::Engine::close_segment`] closed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CloseError {
    /// No segment has this id: it was closed before, or never was one of this engine.
    Stale {
        /// The id.
        segment: SegmentId,
    },
    /// It is memory or a file of this engine: [`crate::Engine::unregister`] takes it back.
    Own {
        /// The id.
        segment: SegmentId,
    },
    /// Requests that use it have not ended. Wait for them, or cancel them, and try again.
    InUse {
        /// How many.
        requests: u64,
    },
    /// This process was forked from the engine's: make an engine in this one.
    Forked,
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale { segment } => {
                write!(
                    f,
                    "{segment:?} is none of a peer's: it was closed before, or never was one"
                )
            }
            Self::Own { segment } => write!(
                f,
                "{segment:?} is this engine's own, not a peer's: unregister it"
            ),
            Self::InUse { requests } => {
                write!(f, "{requests} requests that use the segment have not ended")
            }
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl std::error::Error for CloseError {}
