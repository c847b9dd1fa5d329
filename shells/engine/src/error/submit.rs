//! Why a batch was not taken.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;

use crate::parcel::NOTIFICATION_BYTES_MAX;

use super::{FORKED, UNSUPPORTED};
use crate::segments::SegmentId;
use crate::stats::Backlog;

/// Why [`crate::Engine::submit`] took nothing. `index` says which request of the batch.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SubmitError {
    /// There is no room now, for requests or for the peer's notification: submit again when some request has
    /// ended, or some notification has been delivered. With who holds a worker's room, if it is that.
    Full(Option<Box<Backlog>>),
    /// The batch has no requests, or more than one can have.
    BatchSize {
        /// How many.
        requests: usize,
        /// The most there can be.
        limit: usize,
    },
    /// The segment does not exist (any more), or is not on the side it was named for.
    Stale {
        /// Which request.
        index: usize,
        /// The id.
        segment: SegmentId,
    },
    /// The peer that owned the segment is lost, and the segment with it: its process has ended, or another
    /// one answers at its address. Open the segment anew once somebody serves it there.
    PeerLost {
        /// Which request.
        index: usize,
        /// The id.
        segment: SegmentId,
        /// Where the peer was.
        peer: SocketAddr,
    },
    /// The request names no bytes.
    Empty {
        /// Which request.
        index: usize,
    },
    /// The range ends past the segment.
    OutOfRange {
        /// Which request.
        index: usize,
        /// The segment.
        segment: SegmentId,
        /// First byte of the range.
        offset: u64,
        /// Its length.
        length: u64,
        /// The size of the segment.
        segment_bytes: u64,
    },
    /// A block of a paged request ends past the segment.
    BlockOutOfRange {
        /// Which request.
        index: usize,
        /// Which of its blocks.
        block: usize,
        /// The number of its page or row.
        number: u64,
        /// The segment.
        segment: SegmentId,
        /// First byte of the block.
        offset: u64,
        /// Its length.
        length: u64,
        /// The size of the segment.
        segment_bytes: u64,
    },
    /// A paged request names more blocks at one end than at the other.
    BlockCounts {
        /// Which request.
        index: usize,
        /// Blocks of this engine.
        local: usize,
        /// Blocks of the peer.
        remote: usize,
    },
    /// It writes to bytes that another request writes to, and `check_overlap` is on: submit it when the other one has ended.
    Overlap {
        /// Which request.
        index: usize,
        /// The segment that both write to.
        segment: SegmentId,
        /// What it writes of that.
        bytes: Range<u64>,
        /// The other one, by its place in its batch.
        other: usize,
        /// What that writes.
        other_bytes: Range<u64>,
        /// The other one is of a batch that is on its way; else of this one.
        under_way: bool,
    },
    /// The owner of the segment does not allow it.
    Forbidden {
        /// Which request.
        index: usize,
        /// The segment.
        segment: SegmentId,
    },
    /// Both segments are files of this host: read one into memory and write the other from there.
    TwoFiles {
        /// Which request.
        index: usize,
        /// The file named as the remote one.
        segment: SegmentId,
    },
    /// The request has to be staged, and the system refused the memory or the thread that this takes. The log says why.
    Staging,
    /// Too many pairs of segments are in use by requests that have not ended.
    Plans {
        /// The most there can be.
        limit: usize,
    },
    /// The notification is longer than one can be: write the rest into a segment.
    NotificationSize {
        /// Its length.
        bytes: usize,
    },
    /// The request is for another peer than those before it: a batch with a notification has one peer.
    NotificationPeers {
        /// Which request.
        index: usize,
    },
    /// The peer is of a build without notifications.
    NotificationUnsupported,
    /// The engine is shutting down.
    ShutDown,
    /// This process was forked from the engine's: make an engine in this one.
    Forked,
}

impl SubmitError {
    /// The request that it is about.
    pub(crate) fn index_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Stale { index, .. }
            | Self::PeerLost { index, .. }
            | Self::Empty { index }
            | Self::OutOfRange { index, .. }
            | Self::BlockOutOfRange { index, .. }
            | Self::BlockCounts { index, .. }
            | Self::Overlap { index, .. }
            | Self::Forbidden { index, .. }
            | Self::TwoFiles { index, .. }
            | Self::NotificationPeers { index } => Some(index),
            Self::Full(_)
            | Self::BatchSize { .. }
            | Self::Staging
            | Self::Plans { .. }
            | Self::NotificationSize { .. }
            | Self::NotificationUnsupported
            | Self::ShutDown
            | Self::Forked => None,
        }
    }

    /// The segment that it is about.
    pub(crate) fn segment_mut(&mut self) -> Option<&mut SegmentId> {
        match self {
            Self::Stale { segment, .. }
            | Self::PeerLost { segment, .. }
            | Self::OutOfRange { segment, .. }
            | Self::BlockOutOfRange { segment, .. }
            | Self::Overlap { segment, .. }
            | Self::Forbidden { segment, .. }
            | Self::TwoFiles { segment, .. } => Some(segment),
            _ => None,
        }
    }
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(None) => f.write_str(
                "no room now, as batches wait for proof of their end (limits/requests), or the peer takes no notifications; \
                 submit again when a request has ended",
            ),
            Self::Full(Some(backlog)) => {
                write!(
                    f,
                    "{backlog}; submit again when a request has ended (limits/requests)"
                )
            }
            Self::BatchSize { requests, limit } => {
                write!(
                    f,
                    "a batch of {requests} requests: 1 to {limit} are possible"
                )
            }
            Self::Stale { index, segment } => {
                write!(
                    f,
                    "request {index}: {segment:?} does not exist on that side, or not any more: it was unregistered or \
                     closed; the local one is of this engine, the remote one was opened"
                )
            }
            Self::PeerLost {
                index,
                segment,
                peer,
            } => write!(
                f,
                "request {index}: the peer at {peer} is lost or about to end, and {segment:?} with it; open it anew"
            ),
            Self::Empty { index } => write!(f, "request {index}: a length of 0 moves nothing"),
            Self::OutOfRange {
                index,
                segment,
                offset,
                length,
                segment_bytes,
            } => write!(
                f,
                "request {index}: {length} bytes from offset {offset} end past {segment:?} of \
                 {segment_bytes} bytes"
            ),
            Self::BlockOutOfRange {
                index,
                block,
                number,
                segment,
                offset,
                length,
                segment_bytes,
            } => write!(
                f,
                "request {index}: its block {block}, page or row {number}, of {length} bytes from offset {offset} ends past \
                 {segment:?} of {segment_bytes} bytes"
            ),
            Self::BlockCounts {
                index,
                local,
                remote,
            } => write!(
                f,
                "request {index}: {local} blocks here and {remote} there; as many are needed"
            ),
            Self::Overlap {
                index,
                segment,
                bytes,
                other,
                other_bytes,
                under_way,
            } => {
                let whose = match under_way {
                    true => "a batch on its way",
                    false => "the same batch",
                };
                write!(
                    f,
                    "request {index} writes bytes {} to {} of {segment:?}, and request {other} of {whose} bytes {} to {}",
                    bytes.start, bytes.end, other_bytes.start, other_bytes.end
                )
            }
            Self::Forbidden { index, segment } => {
                write!(
                    f,
                    "request {index}: it writes to {segment:?}, whose owner lets it be read only"
                )
            }
            Self::TwoFiles { index, segment } => write!(
                f,
                "request {index}: both of its segments are files of this host ({segment:?} is one); go through memory"
            ),
            Self::Staging => f.write_str(
                "the system refused what staging through memory takes; the log says why",
            ),
            Self::Plans { limit } => {
                write!(
                    f,
                    "requests under way use {limit} pairs of segments, the most there can be (limits/pairs)"
                )
            }
            Self::NotificationSize { bytes } => write!(
                f,
                "a notification of {bytes} bytes: {NOTIFICATION_BYTES_MAX} are possible"
            ),
            Self::NotificationPeers { index } => write!(
                f,
                "request {index} is for another peer than those before it; a batch that notifies has one"
            ),
            Self::NotificationUnsupported => f.write_str(UNSUPPORTED),
            Self::ShutDown => f.write_str("the engine is shutting down"),
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl std::error::Error for SubmitError {}
