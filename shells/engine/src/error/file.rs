//! Why a file is no segment, or is not on the disk.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::{FORKED, Limit, RegisterError};
use crate::segments::SegmentId;

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
    Full(Limit),
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
            Self::Full(limit) => limit.fmt(f),
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
