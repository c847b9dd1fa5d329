//! Why metrics cannot be asked for.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Why metrics cannot be asked for at an address.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExposeError {
    /// It cannot be listened on: somebody else does, or it is none of this host.
    Listen {
        /// The address.
        at: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The thread that would answer could not be started.
    Thread(io::Error),
}

impl fmt::Display for ExposeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { at, source } => {
                write!(f, "cannot listen for metrics on {at}: {source}")
            }
            Self::Thread(error) => {
                write!(
                    f,
                    "cannot start the thread that answers about metrics: {error}"
                )
            }
        }
    }
}

impl std::error::Error for ExposeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Listen { source, .. } | Self::Thread(source) => Some(source),
        }
    }
}
