//! What can be wrong with a recording.

use std::fmt;
use std::io;

use crate::block::{BLOCK_BYTES_MAX, VERSION};
use crate::header::OutOfRange;

/// Why a recording cannot be read (on). `offset` is the place in the file, in bytes.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecordingError {
    /// The system refused to give more of it.
    Read {
        /// Where.
        offset: u64,
        /// The system's word for it.
        source: io::Error,
    },
    /// It does not start as recordings do.
    NotARecording,
    /// Its format is another one.
    Version {
        /// The version it says.
        found: u16,
    },
    /// It breaks off here: the process was killed, or records still, or the disk was full. What came before is good.
    Truncated {
        /// Where the last whole block ends.
        offset: u64,
    },
    /// It was cut here: its disk did not follow the engine, which went on. What came before is good.
    Cut {
        /// Where the last block with calls ends.
        offset: u64,
    },
    /// A block says a length that no block has.
    TooLong {
        /// Where the block starts.
        offset: u64,
        /// The length it says.
        bytes: u32,
    },
    /// A block is not what was written.
    Checksum {
        /// Where the block starts.
        offset: u64,
    },
    /// What is there makes no sense.
    Malformed {
        /// Where.
        offset: u64,
        /// What should be there.
        expected: &'static str,
    },
    /// Calls are missing: a block does not go on where the last one ended.
    Gap {
        /// Where the block starts.
        offset: u64,
        /// The number of the call that should come.
        expected: u64,
        /// The number of the call that comes.
        found: u64,
    },
    /// The header asks for something that cannot be.
    Header(OutOfRange),
}

impl RecordingError {
    /// Whether everything before it was as it should be, so that only the rest is missing.
    pub fn is_truncation(&self) -> bool {
        matches!(self, Self::Truncated { .. } | Self::Cut { .. })
    }
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { offset, source } => {
                write!(f, "cannot be read from byte {offset} on: {source}")
            }
            Self::NotARecording => {
                f.write_str("not a flight recording: byte 0 starts no such file")
            }
            Self::Version { found } => {
                let other = if *found < VERSION {
                    "an older"
                } else {
                    "a newer"
                };
                write!(
                    f,
                    "byte 8: a recording in format {found}, and this program reads format {VERSION}: \
                     replay it with {other} polyrail, or record anew with this one"
                )
            }
            Self::Truncated { offset } => write!(f, "breaks off at byte {offset}"),
            Self::Cut { offset } => write!(
                f,
                "was cut at byte {offset}, because its disk did not follow"
            ),
            Self::TooLong { offset, bytes } => write!(
                f,
                "byte {offset}: a block of {bytes} bytes; {BLOCK_BYTES_MAX} is the limit"
            ),
            Self::Checksum { offset } => write!(
                f,
                "byte {offset}: the block that starts there is not what was written"
            ),
            Self::Malformed { offset, expected } => write!(f, "byte {offset}: no {expected}"),
            Self::Gap {
                offset,
                expected,
                found,
            } => write!(
                f,
                "byte {offset}: call {found} comes next, but call {expected} should"
            ),
            Self::Header(OutOfRange {
                what,
                found,
                least,
                most,
            }) => write!(
                f,
                "its header asks for {found} {what}; {least} to {most} are possible"
            ),
        }
    }
}

impl std::error::Error for RecordingError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } => Some(source),
            _ => None,
        }
    }
}
