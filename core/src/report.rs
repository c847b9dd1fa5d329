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
    /// All of them, in their order.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::DeadlineExceeded,
        Self::PeerLost,
        Self::Indeterminate,
        Self::ShutDown,
    ];

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

impl Report {
    /// Of a request that has not ended.
    pub const PENDING: Self = Self {
        status: Status::Pending,
        delivered_bytes: 0,
        cause: None,
        local: Local::Held,
        remote: Remote::Unknown,
    };

    /// Of a request whose bytes were moved before anybody could wait for it.
    pub const fn moved(bytes: u64) -> Self {
        Self {
            status: Status::Completed,
            delivered_bytes: bytes,
            cause: None,
            local: Local::Released,
            remote: Remote::Settled,
        }
    }

    /// Nobody has proved in time that what it wrote can be seen: some of it may still be on its way into the peer's memory. Whether
    /// that is news: nothing was known to be open there.
    pub fn doubt(&mut self) -> bool {
        let is_news = self.remote == Remote::Settled;
        if is_news {
            self.status = Status::Indeterminate;
            self.cause.get_or_insert(Cause::Silent);
            self.remote = Remote::Unknown;
        }
        is_news
    }

    /// Whether it leaves nothing open on either side.
    pub const fn is_proved(&self) -> bool {
        matches!(
            (self.local, self.remote),
            (Local::Released, Remote::Settled)
        )
    }
}

/// Why a request never begins: what whoever keeps it until then knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Unbegun {
    /// The program cancelled it first.
    Cancelled,
    /// Its deadline passed first.
    DeadlineExceeded,
    /// Whoever was to carry it out is shut down.
    ShutDown,
    /// The peer's process is gone, with proof.
    PeerLost,
    /// There is no plan for it any more, and nobody knows why.
    PlanGone,
    /// The memory that it names is not given to it.
    Denied,
    /// Nobody takes it as it is, although it was checked.
    Refused,
    /// Nobody here can carry it out.
    Impossible,
}

impl Unbegun {
    /// How it ends: nothing of it has moved.
    pub const fn report(self) -> Report {
        let (status, cause) = match self {
            Self::Cancelled => (Status::Cancelled, Cause::Cancelled),
            Self::DeadlineExceeded => (Status::DeadlineExceeded, Cause::DeadlineExceeded),
            Self::ShutDown => (Status::ShutDown, Cause::ShutDown),
            Self::PeerLost => (Status::PeerLost, Cause::PeerGone),
            Self::PlanGone => (Status::Failed, Cause::PeerGone),
            Self::Denied => (Status::Failed, Cause::RemoteAccess),
            Self::Refused => (Status::Failed, Cause::LocalProtection),
            Self::Impossible => (Status::Failed, Cause::LocalOperation),
        };
        Report {
            status,
            delivered_bytes: 0,
            cause: Some(cause),
            local: Local::Released,
            remote: Remote::Settled,
        }
    }
}

/// How a request stands that whoever carried it out has left behind without a word: a worker that has ended or panicked.
///
/// Nobody is left to say more of it. What `has_begun` may have moved anything, and may still on the peer's side; of this side's
/// memory whoever ends the worker knows.
pub const fn left_behind(has_begun: bool) -> (Status, Cause, Remote) {
    match has_begun {
        true => (Status::Indeterminate, Cause::ShutDown, Remote::Unknown),
        false => (Status::ShutDown, Cause::ShutDown, Remote::Settled),
    }
}
