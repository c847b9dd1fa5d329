//! What can go wrong between two engines, with both ends named.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use polyrail_core::units::PeerId;
use polyrail_transport::SessionId;

use crate::codec::{CodecError, NAME_BYTES_MAX, Refusal};
use crate::connection::Ended;
use crate::plane::CALL_BYTES_MAX;
use crate::security::Distrust;

/// The two ends of something that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The name of this engine.
    pub ours: String,
    /// The local address that was asked for; `None`: the kernel's choice.
    pub local: Option<IpAddr>,
    /// The name of the peer, once it has said it.
    pub theirs: Option<String>,
    /// The address of the peer.
    pub remote: SocketAddr,
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.ours.escape_debug())?;
        if let Some(local) = self.local {
            write!(f, " ({local})")?;
        }
        match &self.theirs {
            Some(theirs) => write!(f, " to \"{}\" ({})", theirs.escape_debug(), self.remote),
            None => write!(f, " to {}", self.remote),
        }
    }
}

/// Why [`Plane::connect`](crate::plane::Plane::connect) found no peer. Nothing is left of the attempt.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The operating system says that there is no way: refused, unreachable, or the local address is not
    /// one of this host.
    Unreachable {
        /// Between whom.
        ends: Box<Ends>,
        /// In its words.
        error: io::Error,
    },
    /// Nobody answered in time. Try again, or look for what drops packets; or, if the connection was made, for
    /// what other program listens there.
    TimedOut {
        /// Between whom.
        ends: Box<Ends>,
        /// How long it was waited for.
        after: Duration,
        /// Whether there was a connection, on which no greeting, or only a part of one, came.
        connected: bool,
    },
    /// The peer speaks another version: one of the two must be upgraded.
    Version {
        /// Between whom.
        ends: Box<Ends>,
        /// What this side speaks.
        ours: u16,
        /// What the peer speaks.
        theirs: u16,
    },
    /// Something else than polyrail listens there.
    NotPolyrail {
        /// Between whom.
        ends: Box<Ends>,
        /// The first bytes that came.
        got: [u8; 8],
    },
    /// The peer said no.
    Refused {
        /// Between whom.
        ends: Box<Ends>,
        /// Which no.
        reason: Refusal,
        /// In its words.
        text: String,
    },
    /// The peer has not proved that it holds the cluster's key. Both need the same `security/key_file`, or none.
    Distrusted {
        /// Between whom.
        ends: Box<Ends>,
        /// Why.
        why: Distrust,
    },
    /// The connection ended before the peer had said who it is.
    Ended {
        /// Between whom.
        ends: Box<Ends>,
        /// Why.
        why: Ended,
    },
    /// This peer has a session already, or is being connected. Disconnect it first, or use another id.
    Busy {
        /// Between whom.
        ends: Box<Ends>,
        /// The peer's id.
        peer: PeerId,
    },
    /// The peer was disconnected before it had said who it is.
    Disconnected {
        /// Between whom.
        ends: Box<Ends>,
    },
    /// The plane is shut down.
    ShutDown {
        /// Between whom.
        ends: Box<Ends>,
    },
}

impl ConnectError {
    /// The error for a connection that ended so.
    pub(super) fn from_ended(ends: Box<Ends>, why: Ended) -> Self {
        match why {
            Ended::Codec(CodecError::Version { ours, theirs }) => {
                Self::Version { ends, ours, theirs }
            }
            Ended::Codec(CodecError::NotPolyrail { got }) => Self::NotPolyrail { ends, got },
            Ended::Refused { reason, text } => Self::Refused { ends, reason, text },
            Ended::Distrusted(why) => Self::Distrusted { ends, why },
            Ended::HandshakeOverdue { handshake_max } => Self::TimedOut {
                ends,
                after: handshake_max.into(),
                connected: true,
            },
            why => Self::Ended { ends, why },
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { ends, error } => write!(f, "connecting {ends}: {error}"),
            Self::TimedOut {
                ends,
                after,
                connected: false,
            } => write!(f, "connecting {ends}: no answer within {after:?}"),
            Self::TimedOut {
                ends,
                after,
                connected: true,
            } => write!(
                f,
                "connecting {ends}: the connection was accepted, but no polyrail answered on it within {after:?}; \
                 does another program listen there, or is it not ready yet?"
            ),
            Self::Version { ends, ours, theirs } => write!(
                f,
                "connecting {ends}: the peer speaks protocol version {theirs}, this side speaks {ours}; \
                 both must be the same"
            ),
            Self::NotPolyrail { ends, got } => write!(
                f,
                "connecting {ends}: not a polyrail connection: it starts with \"{}\" instead of \
                 \"polyrail\"",
                got.escape_ascii()
            ),
            Self::Refused { ends, reason, text } => write!(
                f,
                "connecting {ends}: the peer refused ({reason}): {}",
                text.escape_debug()
            ),
            Self::Distrusted { ends, why } => write!(f, "connecting {ends}: {why}"),
            Self::Ended { ends, why } => write!(f, "connecting {ends}: {why}"),
            Self::Busy { ends, peer } => write!(
                f,
                "connecting {ends}: peer {} is in use; disconnect it first",
                peer.0
            ),
            Self::Disconnected { ends } => write!(f, "connecting {ends}: disconnected meanwhile"),
            Self::ShutDown { ends } => write!(f, "connecting {ends}: this engine is shut down"),
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreachable { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Why a question to a peer has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AskError {
    /// No answer in time. A call may have been carried out nevertheless.
    TimedOut {
        /// Between whom; the address is that of the first rail.
        ends: Box<Ends>,
        /// How long it was waited for.
        after: Duration,
        /// Connections that were open at the end.
        connections: usize,
    },
    /// The peer's program carried the call out, or tried, and says what went wrong.
    Failed {
        /// Between whom.
        ends: Box<Ends>,
        /// In its words.
        text: String,
    },
    /// The session ended before the answer came.
    SessionLost(SessionLoss),
    /// The peer was disconnected before the answer came.
    Disconnected {
        /// Between whom.
        ends: Box<Ends>,
    },
    /// There is no such peer: connect it first.
    NoPeer {
        /// The name of this engine.
        ours: String,
        /// The peer's id.
        peer: PeerId,
    },
    /// The call has too long a body.
    BodyTooLong {
        /// Its length; [`CALL_BYTES_MAX`] is the limit.
        bytes: usize,
    },
    /// The segment's name is too long.
    NameTooLong {
        /// Its length; [`NAME_BYTES_MAX`] is the limit.
        bytes: usize,
    },
    /// Too many questions wait for answers of this peer. Ask again later.
    Full {
        /// How many.
        waiting: usize,
    },
    /// The control thread does not do its work: a [`Handler`](crate::plane::Handler) blocks it.
    Stuck {
        /// The name of this engine.
        ours: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// The plane is shut down.
    ShutDown {
        /// The name of this engine.
        ours: String,
    },
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut {
                ends,
                after,
                connections,
            } => write!(
                f,
                "asking {ends}: no answer within {after:?} over {connections} open connections"
            ),
            Self::Failed { ends, text } => {
                write!(
                    f,
                    "asking {ends}: the peer's program failed: {}",
                    text.escape_debug()
                )
            }
            Self::SessionLost(loss) => write!(f, "no answer: {loss}"),
            Self::Disconnected { ends } => write!(f, "asking {ends}: disconnected meanwhile"),
            Self::NoPeer { ours, peer } => {
                write!(f, "\"{ours}\" has no peer {}; connect it first", peer.0)
            }
            Self::BodyTooLong { bytes } => write!(
                f,
                "call with a body of {bytes} bytes; {CALL_BYTES_MAX} is the limit"
            ),
            Self::NameTooLong { bytes } => write!(
                f,
                "segment name of {bytes} bytes; {NAME_BYTES_MAX} is the limit"
            ),
            Self::Full { waiting } => {
                write!(f, "{waiting} questions wait for this peer; ask again later")
            }
            Self::Stuck { ours, after } => write!(
                f,
                "the control thread of \"{ours}\" did nothing for {after:?}; does a handler block it?"
            ),
            Self::ShutDown { ours } => write!(f, "\"{ours}\" is shut down"),
        }
    }
}

impl std::error::Error for AskError {}

/// How a session was lost: the peer is there and does not know it, or its process has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SessionLoss {
    /// The same process has forgotten it. Proof that everything of the session has ended there.
    Forgotten {
        /// Between whom.
        ends: Box<Ends>,
        /// Which session.
        session: SessionId,
        /// The process that welcomed it and has forgotten it.
        incarnation: u64,
    },
    /// Another process answers at the address, and no connection to the old one is left. By itself no
    /// proof that the old one is gone.
    OtherIncarnation {
        /// Between whom; the name is the new one's.
        ends: Box<Ends>,
        /// Which session.
        session: SessionId,
        /// The name of the process that welcomed the session.
        old_name: String,
        /// Its incarnation.
        old: u64,
        /// The incarnation of the process that answers now.
        new: u64,
    },
    /// The kernel says that the peer's process has ended. Proof that nothing moves there any more.
    Exited {
        /// Between whom.
        ends: Box<Ends>,
        /// Which session.
        session: SessionId,
        /// The incarnation of the process that welcomed it and has ended.
        incarnation: u64,
        /// The process's number.
        pid: u32,
    },
}

impl SessionLoss {
    /// The incarnation that had welcomed the session.
    pub const fn incarnation(&self) -> u64 {
        match self {
            Self::Forgotten { incarnation, .. } | Self::Exited { incarnation, .. } => *incarnation,
            Self::OtherIncarnation { old, .. } => *old,
        }
    }

    /// Whether it proves that everything of the session has ended at the peer.
    pub const fn is_proof(&self) -> bool {
        matches!(self, Self::Forgotten { .. } | Self::Exited { .. })
    }
}

impl fmt::Display for SessionLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forgotten {
                ends,
                session,
                incarnation,
            } => write!(
                f,
                "{session:?} of {ends} was forgotten by the peer (incarnation {incarnation:016x})"
            ),
            Self::OtherIncarnation {
                ends,
                session,
                old_name,
                old,
                new,
            } => write!(
                f,
                "{session:?} of {ends}: incarnation {new:016x} answers there now; \"{}\", incarnation \
                 {old:016x}, had welcomed it",
                old_name.escape_debug()
            ),
            Self::Exited {
                ends, session, pid, ..
            } => write!(
                f,
                "{session:?} of {ends}: the peer's process {pid} has ended"
            ),
        }
    }
}
