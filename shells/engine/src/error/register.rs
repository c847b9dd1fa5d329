//! Why memory was not registered, or not given back.

use std::fmt;
use std::io;

use polyrail_cuda::CudaError;

use super::{FORKED, Limit};
use crate::segments::SegmentId;

/// Why memory was not registered, or not given back.
#[derive(Debug)]
#[non_exhaustive]
pub enum RegisterError {
    /// A segment of this name exists.
    NameTaken {
        /// The name.
        name: String,
    },
    /// The name is empty, too long, begins with `/`, or has a control character.
    BadName {
        /// The name.
        name: String,
    },
    /// The size is 0 or more than there can be.
    BadSize {
        /// Bytes asked for.
        bytes: u64,
    },
    /// There is no room for another segment, or for the GPU that it is on.
    Full(Limit),
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
    /// Requests that use the segment have not ended, or have ended without proof and may still touch it. Wait for them, or cancel
    /// them, and try again.
    InUse {
        /// How many.
        requests: u64,
    },
    /// It may still be written to: a device was told to let go of it and has not proved that it has, or a peer on this host is in the
    /// midst of a write, was waited for, and has neither left it nor ended, as when it is stopped. Keep the memory, and try again
    /// later. What is on a device is over once that has been opened anew, which the engine tries by itself.
    Unprovable {
        /// The id, which is good for trying again only.
        segment: SegmentId,
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
    /// Only memory of the host can be for peers that encrypt, and the configuration says that what has this name is for them
    /// only ([`SecurityConfig::encrypted_segments`](crate::SecurityConfig::encrypted_segments)).
    NotEncrypted {
        /// The name.
        name: String,
    },
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
            Self::NotEncrypted { name } => write!(
                f,
                "\"{name}\" is for peers that encrypt only (security/encrypted_segments), and that can be memory of the host \
                 alone: what is on a GPU or in a file passes through slots that all peers share"
            ),
            Self::BadName { name } => write!(
                f,
                "\"{}\" cannot name a segment: 1 to 255 bytes without control characters, and no '/' in front",
                name.escape_debug()
            ),
            Self::BadSize { bytes } => {
                write!(
                    f,
                    "a segment of {bytes} bytes is not possible: 1 to {}",
                    isize::MAX
                )
            }
            Self::Full(limit) => limit.fmt(f),
            Self::System { bytes, source } => {
                write!(f, "cannot get {bytes} bytes of memory: {source}")
            }
            Self::Stale { segment } => {
                write!(f, "{segment:?} is no local segment, or not any more")
            }
            Self::InUse { requests } => {
                write!(
                    f,
                    "{requests} requests that use the segment have not ended, or may still touch it"
                )
            }
            Self::Unprovable { segment } => write!(
                f,
                "a device or a process of this host may still write to {segment:?}, and nothing proves that it does not: keep the memory, and unregister it again"
            ),
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
