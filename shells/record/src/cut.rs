//! Why a recording ends before its engine does.

use std::fmt;
use std::io;
use std::sync::Arc;

/// Why a recording does not have all that happened. What it has is good.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Cut {
    /// The disk did not follow: more was on its way than is kept in memory, or the rest was not there when the recording was
    /// closed.
    Behind,
    /// The file could not be written.
    Failed(Arc<io::Error>),
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Behind => f.write_str("its disk does not follow"),
            Self::Failed(error) => write!(f, "it cannot be written: {error}"),
        }
    }
}
