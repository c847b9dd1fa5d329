//! Why an operation of the engine did not happen. One enum for each operation.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use polyrail_control::plane::{AskError, ConnectError};
use polyrail_core::topology::LengthMismatch;

use crate::segments::SegmentId;

/// Why [`crate::Engine::new`] failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum EngineError {
    /// Listening beyond loopback would let anybody in.
    Insecure {
        /// Where it was to listen.
        address: SocketAddr,
    },
    /// A value is out of range.
    Config {
        /// Which, and what would be right.
        text: String,
    },
    /// An address cannot be listened on.
    Listen {
        /// Which.
        address: SocketAddr,
        /// The system's word for it.
        source: io::Error,
    },
    /// A rail address is not one of this machine.
    Rail {
        /// Which.
        address: IpAddr,
        /// The system's word for it.
        source: io::Error,
    },
    /// A flight recording cannot be left where it was asked for.
    Recording {
        /// In which folder.
        folder: PathBuf,
        /// The system's word for it.
        source: io::Error,
    },
    /// The system refused something else.
    System {
        /// What was tried.
        what: &'static str,
        /// The system's word for it.
        source: io::Error,
    },
}

impl EngineError {
    /// Whether the configuration is at fault rather than the machine.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Insecure { .. } | Self::Config { .. })
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Insecure { address } => write!(
                f,
                "listening on {address}, beyond loopback, would let anybody on that network read and write \
                 this memory: listen on 127.0.0.1, or say --insecure on a network you trust"
            ),
            Self::Config { text } => f.write_str(text),
            Self::Listen { address, source } => write!(f, "cannot listen on {address}: {source}"),
            Self::Rail { address, source } => {
                write!(
                    f,
                    "rail {address} cannot be used, is it an address of this machine? {source}"
                )
            }
            Self::Recording { folder, source } => {
                write!(f, "cannot record into {}: {source}", folder.display())
            }
            Self::System { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for EngineError {}

/// Why memory was not registered, or not given back.
#[derive(Debug)]
#[non_exhaustive]
pub enum RegisterError {
    /// A segment of this name exists.
    NameTaken {
        /// The name.
        name: String,
    },
    /// The name is empty, too long, or has a `/` or a control character.
    BadName {
        /// The name.
        name: String,
    },
    /// The size is 0 or more than there can be.
    BadSize {
        /// Bytes asked for.
        bytes: u64,
    },
    /// There is no room for another segment.
    Full {
        /// How many there can be.
        limit: usize,
    },
    /// The system refused the memory.
    System {
        /// Bytes asked for.
        bytes: u64,
        /// The system's word for it.
        source: io::Error,
    },
    /// No local segment has this id (any more).
    Stale {
        /// The id.
        segment: SegmentId,
    },
    /// Requests that use the segment have not ended. Wait for them, or cancel them, and try again.
    InUse {
        /// How many.
        requests: u64,
    },
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameTaken { name } => write!(f, "a segment named \"{name}\" exists already"),
            Self::BadName { name } => write!(
                f,
                "\"{}\" cannot name a segment: 1 to 255 bytes without '/' and control characters",
                name.escape_debug()
            ),
            Self::BadSize { bytes } => {
                write!(
                    f,
                    "a segment of {bytes} bytes is not possible: 1 to {}",
                    isize::MAX
                )
            }
            Self::Full { limit } => write!(
                f,
                "there are {limit} segments already, the most there can be"
            ),
            Self::System { bytes, source } => {
                write!(f, "cannot get {bytes} bytes of memory: {source}")
            }
            Self::Stale { segment } => {
                write!(f, "{segment:?} is no local segment, or not any more")
            }
            Self::InUse { requests } => {
                write!(f, "{requests} requests that use the segment have not ended")
            }
        }
    }
}

impl std::error::Error for RegisterError {}

/// Why a segment of a peer could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The text is not `HOST:PORT/SEGMENT`.
    BadAddress {
        /// The text.
        text: String,
    },
    /// The host's name means nothing here.
    Unresolved {
        /// The host and port.
        host: String,
        /// The system's word for it.
        source: io::Error,
    },
    /// The peer cannot be reached, or did not let us in.
    Connect(ConnectError),
    /// The peer let us in and then did not answer.
    Ask(AskError),
    /// The peer has no segment of this name that others may see.
    NoSuchSegment {
        /// The peer.
        peer: SocketAddr,
        /// The name.
        name: String,
    },
    /// The lists of rail addresses of the two sides do not fit.
    Rails {
        /// The peer.
        peer: SocketAddr,
        /// How they differ.
        mismatch: LengthMismatch,
    },
    /// There is no room for another peer, rail or segment.
    Full {
        /// Of what.
        what: &'static str,
        /// How many there can be.
        limit: usize,
    },
    /// The engine is shutting down.
    ShutDown,
}

impl OpenError {
    /// Whether what was asked for is at fault rather than the network or the peer.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::BadAddress { .. } | Self::NoSuchSegment { .. } | Self::Rails { .. }
        )
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadAddress { text } => {
                write!(
                    f,
                    "\"{}\" names no segment: HOST:PORT/SEGMENT expected",
                    text.escape_debug()
                )
            }
            Self::Unresolved { host, source } => write!(f, "cannot resolve \"{host}\": {source}"),
            Self::Connect(error) => error.fmt(f),
            Self::Ask(error) => error.fmt(f),
            Self::NoSuchSegment { peer, name } => {
                write!(
                    f,
                    "the engine at {peer} has no segment named \"{name}\" that peers may use"
                )
            }
            Self::Rails { peer, mismatch } => write!(f, "rails to {peer}: {mismatch}"),
            Self::Full { what, limit } => {
                write!(f, "there are {limit} {what} already, the most there can be")
            }
            Self::ShutDown => f.write_str("the engine is shutting down"),
        }
    }
}

impl std::error::Error for OpenError {}

/// Why [`crate::Engine::submit`] took nothing. `index` says which request of the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SubmitError {
    /// There is no room now: submit again when some request has ended.
    Full,
    /// The batch has no requests, or more than there can ever be room for.
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
    /// The owner of the segment does not allow it.
    Forbidden {
        /// Which request.
        index: usize,
        /// The segment.
        segment: SegmentId,
    },
    /// Too many pairs of segments are in use.
    Plans {
        /// The most there can be.
        limit: usize,
    },
    /// The engine is shutting down.
    ShutDown,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("no room now; submit again when a request has ended"),
            Self::BatchSize { requests, limit } => {
                write!(
                    f,
                    "a batch of {requests} requests: 1 to {limit} are possible"
                )
            }
            Self::Stale { index, segment } => {
                write!(
                    f,
                    "request {index}: {segment:?} does not exist on that side, or not any more"
                )
            }
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
            Self::Forbidden { index, segment } => {
                write!(
                    f,
                    "request {index}: the owner of {segment:?} does not allow that"
                )
            }
            Self::Plans { limit } => {
                write!(
                    f,
                    "{limit} pairs of segments are in use, the most there can be"
                )
            }
            Self::ShutDown => f.write_str("the engine is shutting down"),
        }
    }
}

impl std::error::Error for SubmitError {}

/// Why a peer's program did not answer a call.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallError {
    /// No remote segment has this id (any more), so there is no peer to ask.
    Stale {
        /// The id.
        segment: SegmentId,
    },
    /// The peer did not answer, or answered that it could not.
    Ask(AskError),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale { segment } => {
                write!(f, "{segment:?} is no segment of a peer, or not any more")
            }
            Self::Ask(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CallError {}
