//! Why an operation of the engine did not happen. One enum for each operation.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use polyrail_control::codec::NOTIFICATION_BYTES_MAX;
use polyrail_control::plane::{AskError, ConnectError};
use polyrail_core::batch::BatchReport;
use polyrail_core::path::config::PathConfigError;
use polyrail_core::path::view::{Mismatch, PathView};
use polyrail_core::topology::LengthMismatch;
use polyrail_cuda::CudaError;

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
    /// It is to be on a GPU, and that cannot be.
    Gpu(CudaError),
    /// The configuration has no trust domain of this name.
    NoDomain {
        /// The name.
        name: String,
        /// Those that it has.
        known: Vec<String>,
    },
    /// Memory of a GPU can be of the common trust domain only.
    NotInDomain,
    /// This process was forked from the engine's: make an engine in this one.
    Forked,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameTaken { name } => write!(f, "a segment named \"{name}\" exists already"),
            Self::NoDomain { name, known } => {
                let known = match known.is_empty() {
                    true => "none".to_owned(),
                    false => known.join(", "),
                };
                write!(
                    f,
                    "the configuration has no trust domain \"{name}\" (security/domains); it has: {known}"
                )
            }
            Self::NotInDomain => write!(
                f,
                "memory of a GPU can be of the common trust domain only: peers may be staged to it, and slots are common"
            ),
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
            Self::Gpu(error) => error.fmt(f),
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl std::error::Error for RegisterError {}

impl From<CudaError> for RegisterError {
    fn from(error: CudaError) -> Self {
        Self::Gpu(error)
    }
}

/// Why a file is no segment, or could not be put on the disk.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be opened.
    Open {
        /// Which.
        path: PathBuf,
        /// The system's word for it.
        source: io::Error,
    },
    /// It is neither a regular file nor a block device.
    NoFile,
    /// It was not opened for reading, or not for writing although the terms are not read only.
    Access,
    /// The range is empty, or ends where no file can.
    BadSize,
    /// There are no such bytes in the file, and it cannot grow: the terms are read only, or it is a device.
    OutOfRange {
        /// Its size.
        file_bytes: u64,
    },
    /// There is no room for more.
    Full {
        /// Of what.
        what: &'static str,
        /// How many there can be.
        limit: usize,
    },
    /// No file's segment has this id (any more).
    Stale {
        /// The id.
        segment: SegmentId,
    },
    /// The system refused.
    System {
        /// What was tried.
        what: &'static str,
        /// The system's word for it.
        source: io::Error,
    },
    /// It cannot be offered under that name.
    Name(RegisterError),
    /// The engine is shutting down.
    ShutDown,
    /// This process was forked from the engine's: make an engine in this one.
    Forked,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, source } => write!(f, "cannot open {}: {source}", path.display()),
            Self::NoFile => f.write_str("it is neither a regular file nor a block device"),
            Self::Access => {
                f.write_str("it is not open for reading, or not for writing as the terms ask")
            }
            Self::BadSize => write!(
                f,
                "a range of a file has at least a byte and ends at {} at the latest",
                i64::MAX
            ),
            Self::OutOfRange { file_bytes } => {
                write!(
                    f,
                    "the range is not in the {file_bytes} bytes that there are"
                )
            }
            Self::Full { what, limit } => {
                write!(f, "there are {limit} {what} already, the most there can be")
            }
            Self::Stale { segment } => {
                write!(f, "{segment:?} is no file's segment, or not any more")
            }
            Self::System { what, source } => write!(f, "cannot {what}: {source}"),
            Self::Name(error) => error.fmt(f),
            Self::ShutDown => f.write_str("the engine is shutting down"),
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Open { source, .. } | Self::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

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
    /// The peer offers a file, but no slots that it could be staged through.
    NoSlots {
        /// The peer.
        peer: SocketAddr,
    },
    /// The lists of rail addresses of the two sides do not fit.
    Rails {
        /// The peer.
        peer: SocketAddr,
        /// How they differ.
        mismatch: LengthMismatch,
    },
    /// The two engines have no transport in common that is in working order.
    NoTransport {
        /// The peer.
        peer: SocketAddr,
        /// Ours.
        ours: Vec<&'static str>,
        /// What the peer offers.
        theirs: Vec<String>,
    },
    /// The two engines see their connection differently. Nothing is sent: give both the same `path`.
    PathMismatch {
        /// The peer.
        peer: SocketAddr,
        /// Both views.
        mismatch: Box<Mismatch>,
    },
    /// This engine isolates paths, and the peer does not, or cannot.
    PathUnknown {
        /// The peer.
        peer: SocketAddr,
        /// How this end sees the connection.
        ours: Box<PathView>,
    },
    /// The rails to the peer are none that paths can be isolated on: one has to be primary, and all to have a local
    /// address in `rails`.
    PathRails {
        /// The peer.
        peer: SocketAddr,
        /// What is wrong.
        error: PathConfigError,
    },
    /// The peer was lost while it was asked. Open the segment again.
    PeerLost {
        /// Where it was.
        peer: SocketAddr,
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
    /// This process was forked from the engine's: make an engine in this one.
    Forked,
}

impl OpenError {
    /// Whether what was asked for is at fault rather than the network or the peer.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::BadAddress { .. }
                | Self::NoSuchSegment { .. }
                | Self::NoSlots { .. }
                | Self::Rails { .. }
                | Self::PathMismatch { .. }
                | Self::PathUnknown { .. }
                | Self::PathRails { .. }
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
            Self::NoSlots { peer } => write!(
                f,
                "the engine at {peer} offers a file, but no memory that it could be staged through"
            ),
            Self::Rails { peer, mismatch } => write!(f, "rails to {peer}: {mismatch}"),
            Self::PathMismatch { peer, mismatch } => write!(f, "{peer}: {mismatch}"),
            Self::PathUnknown { peer, ours } => write!(
                f,
                "{peer} does no path isolation, and this engine does ({ours}): give both the same path/mode"
            ),
            Self::PathRails { peer, error } => write!(
                f,
                "the rails to {peer} cannot be isolated: {error}; of those in rails, path/supplementary names all, \
                 or rails is empty"
            ),
            Self::NoTransport { peer, ours, theirs } => {
                let ours = ours.join(", ");
                write!(
                    f,
                    "no transport in common with the engine at {peer}: here {ours}; there"
                )?;
                match theirs.is_empty() {
                    true => f.write_str(" none"),
                    // As many as one cares to read; what a peer says is not to be trusted.
                    false => theirs
                        .iter()
                        .take(8)
                        .try_for_each(|name| write!(f, " \"{}\"", name.escape_debug())),
                }
            }
            Self::PeerLost { peer } => {
                write!(f, "the engine at {peer} was lost while it was asked")
            }
            Self::Full { what, limit } => {
                write!(f, "there are {limit} {what} already, the most there can be")
            }
            Self::ShutDown => f.write_str("the engine is shutting down"),
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl std::error::Error for OpenError {}

/// Why [`crate::Engine::submit`] took nothing. `index` says which request of the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SubmitError {
    /// There is no room now, for requests or for the peer's notification: submit again when some request has
    /// ended, or some notification has been delivered.
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
    /// Too many pairs of segments are in use.
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
            Self::PeerLost {
                index,
                segment,
                peer,
            } => write!(
                f,
                "request {index}: {segment:?} was lost with the peer at {peer}; open it anew"
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
            Self::Forbidden { index, segment } => {
                write!(
                    f,
                    "request {index}: the owner of {segment:?} does not allow that"
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
                    "{limit} pairs of segments are in use, the most there can be"
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

/// Why [`crate::Batch::wait`] did not see the batch end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WaitError {
    /// It has not ended in time. It goes on, and can be waited for again.
    TimedOut {
        /// How long was waited.
        after: Duration,
        /// How it stood then.
        status: BatchReport,
    },
    /// This process was forked from the one whose batch it is: only that one can wait for it.
    Forked,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut { after, status } => write!(
                f,
                "not ended after {after:?}: {} of {} requests have",
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

/// What is said to a forked child.
const FORKED: &str =
    "it belongs to the process that this one was forked from; make an engine in this process";

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

/// Why [`crate::Notifications::wait`] has no notification.
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
            Self::TimedOut { after } => write!(f, "no notification within {after:?}"),
            Self::ShutDown => f.write_str("the engine has ended"),
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl std::error::Error for ReceiveError {}

/// What is said when a peer cannot be notified.
const UNSUPPORTED: &str = "the peer is of a build without notifications; upgrade it";
