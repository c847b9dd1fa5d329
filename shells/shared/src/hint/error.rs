//! What can be wrong with a hint file.

use std::fmt;
use std::io;
use std::path::PathBuf;

use rustix::process::geteuid;

/// Why a hint file cannot be used.
#[derive(Debug)]
pub enum HintFileError {
    /// The system refused something.
    System {
        /// Which file.
        path: PathBuf,
        /// What was to be done with it.
        what: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// Another agent has it. End that one, or give this one another file.
    InUse {
        /// Which file.
        path: PathBuf,
    },
    /// It is another user's, who could take the memory away under our feet. Have it removed, or give another one.
    Foreign {
        /// Which file.
        path: PathBuf,
        /// The number of that user.
        owner: u32,
    },
    /// It is there and holds something else. Remove it, or give another one.
    NotARecord {
        /// Which file.
        path: PathBuf,
    },
}

impl fmt::Display for HintFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System { path, what, error } => {
                write!(f, "cannot {what} {}: {error}", path.display())
            }
            Self::InUse { path } => write!(
                f,
                "another agent has {}; end it, or give another file",
                path.display()
            ),
            Self::Foreign { path, owner } => write!(
                f,
                "{} belongs to user {owner}, not {}: that user or root can remove it; or give a file of your own",
                path.display(),
                geteuid().as_raw()
            ),
            Self::NotARecord { path } => write!(
                f,
                "{} is there and is no hint record; remove it, or give another file",
                path.display()
            ),
        }
    }
}

impl std::error::Error for HintFileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System { error, .. } => Some(error),
            _ => None,
        }
    }
}
