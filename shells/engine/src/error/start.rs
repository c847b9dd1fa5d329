//! Why an engine did not start.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use polyrail_control::security::KeyFileError;

use crate::security;

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
    /// The file of the cluster's key was not read or written.
    Key(KeyFileError),
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
    ///
    /// Example: [guide](crate::guide#starting).
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Insecure { .. } | Self::Config { .. } => true,
            Self::Key(error) => security::is_usage(error),
            _ => false,
        }
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Insecure { address } => write!(
                f,
                "listening on {address}, beyond loopback, would let anybody on that network read and write \
                 this memory: listen on 127.0.0.1, use security/key_file with security/payload encrypt, or set insecure (--insecure) on \
                 a network you trust"
            ),
            Self::Config { text } => f.write_str(text),
            Self::Listen { address, source } => write!(f, "cannot listen on {address}: {source}"),
            Self::Rail { address, source } => {
                write!(
                    f,
                    "rail {address} cannot be used, is it an address of this machine? {source}"
                )
            }
            Self::Key(error) => error.fmt(f),
            Self::Recording { folder, source } => {
                write!(f, "cannot record into {}: {source}", folder.display())
            }
            Self::System { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for EngineError {}
