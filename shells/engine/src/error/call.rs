//! Why a call was not answered.

use std::fmt;
use std::net::SocketAddr;

use polyrail_control::plane::AskError;

use super::FORKED;
use crate::segments::SegmentId;

/// Why a peer's program did not answer a call.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallError {
    /// No remote segment has this id (any more), so there is no peer to ask.
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
    /// The peer did not answer, or answered that it could not.
    Ask(AskError),
    /// This process was forked from the engine's: make an engine in this one.
    Forked,
}

impl fmt::Display for CallError {
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
            Self::Ask(error) => error.fmt(f),
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl std::error::Error for CallError {}
