//! Why a notification was not sent, its fate is not known, or none has come.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::parcel::NOTIFICATION_BYTES_MAX;

use super::{FORKED, UNSUPPORTED};
use crate::segments::SegmentId;

/// Why [`crate::Engine::notify`] did not take a notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NotifyError {
    /// No remote segment has this id (any more), so there is no peer to tell.
    Stale {
        /// The id.
        segment: SegmentId,
    },
    /// The peer that owned the segment is lost, and the segment with it. Open it anew.
    PeerLost {
        /// The id.
        segment: SegmentId,
        /// Where the peer was.
        peer: SocketAddr,
    },
    /// It is longer than one can be: write the rest into a segment.
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Too many notifications to this peer are not delivered: try again when some are, because the peer's
    /// program does not take them as fast as they come.
    Full,
    /// The peer is of a build without notifications.
    Unsupported,
    /// The engine is shutting down.
    ShutDown,
    /// This process was forked from the engine's: make an engine in this one.
    Forked,
}

impl fmt::Display for NotifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale { segment } => {
                write!(f, "{segment:?} is no segment of a peer, or not any more")
            }
            Self::PeerLost { segment, peer } => {
                write!(
                    f,
                    "{segment:?} was lost with the peer at {peer}; open it anew"
                )
            }
            Self::TooLong { bytes } => write!(
                f,
                "a notification of {bytes} bytes: {NOTIFICATION_BYTES_MAX} are possible"
            ),
            Self::Full => f.write_str("no room now; try again when the peer has taken some"),
            Self::Unsupported => f.write_str(UNSUPPORTED),
            Self::ShutDown => f.write_str("the engine is shutting down"),
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl std::error::Error for NotifyError {}

/// Why [`crate::Delivery::wait`] cannot tell what became of a notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeliveryError {
    /// It was not known in time. It goes on, and can be waited for again.
    TimedOut {
        /// How long was waited.
        after: Duration,
    },
    /// This process was forked from the one whose notification it is: only that one can wait for it.
    Forked,
}

impl fmt::Display for DeliveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut { after } => write!(f, "not delivered after {after:?}"),
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl std::error::Error for DeliveryError {}

/// Why nothing was received: no notification, no event of a peer, or not so many batches with a tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReceiveError {
    /// None came in time.
    TimedOut {
        /// How long was waited.
        after: Duration,
    },
    /// The engine has ended, and none is left.
    ShutDown,
    /// This process was forked from the engine's: make an engine in this one.
    Forked,
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut { after } => {
                write!(
                    f,
                    "no notification, no event and no arrival within {after:?}"
                )
            }
            Self::ShutDown => f.write_str("the engine has ended"),
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl std::error::Error for ReceiveError {}
