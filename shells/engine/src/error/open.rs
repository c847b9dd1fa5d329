//! Why a segment of a peer was not opened.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use polyrail_control::plane::{AskError, ConnectError};
use polyrail_core::path::config::PathConfigError;
use polyrail_core::path::view::{Mismatch, PathView};
use polyrail_core::topology::LengthMismatch;

use super::{FORKED, Limit};

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
    /// The peer is about to end, and takes nothing new. Open the segment again once the peer has been started anew.
    Leaving {
        /// Where it is.
        peer: SocketAddr,
    },
    /// It was tried again and again for as long as was asked for ([`OpenTerms::within`](crate::OpenTerms::within)), in vain.
    NotInTime {
        /// How long.
        within: Duration,
        /// How often.
        tries: u32,
        /// Why the last try failed.
        last: Box<OpenError>,
    },
    /// The system refused a thread to wait on.
    System {
        /// In its words.
        source: io::Error,
    },
    /// There is no room for another peer, rail or segment.
    Full(Limit),
    /// The engine is shutting down.
    ShutDown,
    /// This process was forked from the engine's: make an engine in this one.
    Forked,
}

impl OpenError {
    /// Whether what was asked for is at fault rather than the network or the peer.
    ///
    /// Example: [guide](crate::guide#segments-of-peers).
    pub fn is_usage(&self) -> bool {
        match self {
            Self::NotInTime { last, .. } => last.is_usage(),
            error => error.is_wrong(),
        }
    }

    /// Whether it may open if it is tried again later: what [`OpenTerms::within`](crate::OpenTerms::within) waits for.
    ///
    /// Example: [guide](crate::guide#peers-that-come-and-go).
    pub fn may_pass(&self) -> bool {
        match self {
            Self::NotInTime { last, .. } => last.may_pass(),
            Self::Unresolved { .. }
            | Self::Ask(_)
            | Self::NoSuchSegment { .. }
            | Self::PeerLost { .. }
            | Self::Leaving { .. } => true,
            Self::Connect(error) => !matches!(
                error,
                ConnectError::Version { .. }
                    | ConnectError::NotPolyrail { .. }
                    | ConnectError::Distrusted { .. }
                    | ConnectError::ShutDown { .. }
            ),
            _ => false,
        }
    }

    fn is_wrong(&self) -> bool {
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
            Self::Rails { peer, mismatch } => write!(
                f,
                "rails to {peer}: {mismatch}; the latter is rail_map \"all\" or \"nearest\" on this side"
            ),
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
            Self::Leaving { peer } => {
                write!(
                    f,
                    "the engine at {peer} is about to end: try again once it has been started anew"
                )
            }
            Self::NotInTime {
                within,
                tries,
                last,
            } => write!(f, "not opened within {within:?}, in {tries} tries: {last}"),
            Self::System { source } => write!(f, "cannot start a thread: {source}"),
            Self::Full(limit) => limit.fmt(f),
            Self::ShutDown => f.write_str("the engine is shutting down"),
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl std::error::Error for OpenError {}
