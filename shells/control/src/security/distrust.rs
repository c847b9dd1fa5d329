//! Why somebody is not taken for a member of the cluster.

use std::fmt;

use super::identity::{Fingerprint, Membership};

/// Why the other end of a connection has not proved that it holds the cluster's key.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Distrust {
    /// It speaks in clear to an engine with a key.
    Clear,
    /// It asks for a lane in clear and without a ticket, at an engine with a key.
    NoTicket,
    /// It holds another key.
    OtherKey {
        /// The key of this side.
        ours: Fingerprint,
        /// Its key; `None`: it has refused ours before it showed its own.
        theirs: Option<Fingerprint>,
    },
    /// One side has a cluster's key and the other certificates.
    OtherWay {
        /// What this side has.
        ours: Membership,
        /// Whether the other has shown what it has. If not, it has refused ours, which seldom has another cause.
        is_shown: bool,
    },
    /// The certificate that one side showed is not accepted by the other.
    Certificate {
        /// Whose, and what is wrong with it.
        text: String,
    },
    /// It has gone without a word before it had proved anything, as an engine without a key does that is too old to say so.
    Gone,
    /// What came is not TLS as this side speaks it.
    Tls {
        /// What is wrong with it.
        text: String,
    },
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clear => f.write_str(
                "it speaks in clear and this engine asks who is a member: both need the same cluster key (security/key_file), or \
                 certificates (security/certificate)",
            ),
            Self::NoTicket => f.write_str(
                "it asks for a lane without a ticket and this engine asks who is a member: both need the same cluster key \
                 (security/key_file), or certificates (security/certificate)",
            ),
            Self::OtherKey {
                ours,
                theirs: Some(theirs),
            } => write!(
                f,
                "it holds cluster key {theirs} and this engine {ours}: both need the same (security/key_file)"
            ),
            Self::OtherKey { ours, theirs: None } => write!(
                f,
                "it holds another cluster key than this engine, which has {ours}: both need the same (security/key_file)"
            ),
            Self::OtherWay {
                ours,
                is_shown: true,
            } => write!(
                f,
                "it goes by {} and this engine by {ours}: both need the same of the two",
                ours.other()
            ),
            Self::OtherWay {
                ours,
                is_shown: false,
            } => write!(
                f,
                "it does not go by {ours} as this engine does, but perhaps by {}: both need the same of the two",
                ours.other()
            ),
            Self::Certificate { text } => f.write_str(text),
            Self::Gone => f.write_str(
                "it went before it had proved that it is a member: has it a cluster key (security/key_file), or a certificate?",
            ),
            Self::Tls { text } => write!(f, "it does not prove that it is a member: {text}"),
        }
    }
}
