//! What the program is told when a request has ended.

use crate::work::Cause;

/// How a request stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Status {
    /// Not ended.
    Pending,
    /// Every byte is where it should be.
    Completed,
    /// It failed, and nothing of it can move any more.
    Failed,
    /// Cancelled by the program, and nothing of it can move any more.
    Cancelled,
    /// Its deadline passed, and nothing of it can move any more.
    DeadlineExceeded,
    /// The peer's process is gone, with proof.
    PeerLost,
    /// It ended without proof that nothing of it can move any more: see [`Report::local`] and
    /// [`Report::remote`] for what is open.
    Indeterminate,
    /// The engine shut down first, and nothing of it can move any more.
    ShutDown,
}

impl Status {
    /// The status in one word, as JSON, C and Python say it too.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::PeerLost => "PeerLost",
            Self::Indeterminate => "Indeterminate",
            Self::ShutDown => "ShutDown",
        }
    }
}

/// What is known of this side's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Local {
    /// Nobody reads the source or writes the destination on this side any more.
    Released,
    /// Somebody might. The engine keeps the memory until it knows better.
    Held,
}

/// What is known of the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Remote {
    /// No further write of this request can reach it.
    Settled,
    /// One might.
    Unknown,
}

/// How a request ended.
///
/// [`Status::Indeterminate`] if and only if `local` is `Held` or `remote` is `Unknown`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Report {
    /// How.
    pub status: Status,
    /// Bytes that are proven to have arrived: a lower bound.
    pub delivered_bytes: u64,
    /// Why, if not well.
    pub cause: Option<Cause>,
    /// What is known of this side's memory.
    pub local: Local,
    /// What is known of the peer's memory.
    pub remote: Remote,
}
