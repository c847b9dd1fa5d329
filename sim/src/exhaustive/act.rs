//! What can happen.

/// How a post is answered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Answer {
    All,
    /// None is taken for want of room, or only the first.
    Full(u8),
    /// The first is refused, for the lane's reason or its own.
    Rejected,
    Refused,
    /// Nobody knows; so many were taken.
    Unknown(u8),
}

/// What has become of the bytes of a work that fails.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Bytes {
    Landed,
    OnTheWay,
    Gone,
}

/// Something that happens. Lanes by rail, works by their place among those of their lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Act {
    Posted(Answer),
    Opened(u8),
    OpenFailed(u8),
    Completes(u8, u8),
    /// Lands, and nobody says so.
    Unsaid(u8, u8),
    Fails(u8, u8, Bytes),
    /// Fails for a reason of its own.
    Errs(u8, u8),
    /// Fails with its lane.
    Flushed(u8, u8),
    /// Lands late.
    Lands(u8, u8),
    /// The last completion is said again.
    Again,
    LetGo(u8),
    Unfenceable(u8),
    Fenced(u8),
    Broken(u8),
    Writable(u8),
    Cancel(u8),
    Alive,
    SessionEnded,
    ProcessGone,
    ShutDown,
    Time,
}

impl Act {
    /// One of each kind.
    pub(super) const KINDS: [Self; 28] = [
        Self::Posted(Answer::All),
        Self::Posted(Answer::Full(0)),
        Self::Posted(Answer::Full(1)),
        Self::Posted(Answer::Rejected),
        Self::Posted(Answer::Refused),
        Self::Posted(Answer::Unknown(0)),
        Self::Opened(0),
        Self::OpenFailed(0),
        Self::Completes(0, 0),
        Self::Unsaid(0, 0),
        Self::Fails(0, 0, Bytes::Landed),
        Self::Fails(0, 0, Bytes::OnTheWay),
        Self::Fails(0, 0, Bytes::Gone),
        Self::Errs(0, 0),
        Self::Flushed(0, 0),
        Self::Lands(0, 0),
        Self::Again,
        Self::LetGo(0),
        Self::Unfenceable(0),
        Self::Fenced(0),
        Self::Broken(0),
        Self::Writable(0),
        Self::Cancel(0),
        Self::Alive,
        Self::SessionEnded,
        Self::ProcessGone,
        Self::ShutDown,
        Self::Time,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Posted(Answer::All) => "posted: all",
            Self::Posted(Answer::Full(0)) => "posted: full",
            Self::Posted(Answer::Full(_)) => "posted: in part",
            Self::Posted(Answer::Rejected) => "posted: rejected",
            Self::Posted(Answer::Refused) => "posted: refused",
            Self::Posted(Answer::Unknown(_)) => "posted: unknown",
            Self::Opened(_) => "lane: opened",
            Self::OpenFailed(_) => "lane: open failed",
            Self::Completes(..) => "work: success",
            Self::Unsaid(..) => "work: landed, not said",
            Self::Fails(_, _, Bytes::Landed) => "work: error, landed",
            Self::Fails(_, _, Bytes::OnTheWay) => "work: error, on the way",
            Self::Fails(_, _, Bytes::Gone) => "work: error, gone",
            Self::Errs(..) => "work: error of its own",
            Self::Flushed(..) => "work: flushed",
            Self::Lands(..) => "work: lands late",
            Self::Again => "work: said again",
            Self::LetGo(_) => "fence: local",
            Self::Unfenceable(_) => "fence: unfenceable",
            Self::Fenced(_) => "fence: remote",
            Self::Broken(_) => "lane: broken",
            Self::Writable(_) => "lane: writable",
            Self::Cancel(_) => "request: cancelled",
            Self::Alive => "peer: heard",
            Self::SessionEnded => "peer: session ended",
            Self::ProcessGone => "peer: process gone",
            Self::ShutDown => "engine: shut down",
            Self::Time => "timer",
        }
    }

    /// Whether it is one of those whose number is bounded because it need not happen.
    pub(super) const fn is_fault(self) -> bool {
        !matches!(
            self,
            Self::Posted(Answer::All)
                | Self::Opened(_)
                | Self::Completes(..)
                | Self::Flushed(..)
                | Self::Lands(..)
                | Self::LetGo(_)
                | Self::Unfenceable(_)
                | Self::Fenced(_)
                | Self::Writable(_)
                | Self::Time
        )
    }
}

/// How much of what need not happen may happen. More than this takes hours and tens of gigabytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Things that go wrong, cancellations, and what the peer does.
    pub faults: u8,
    /// Times that the earliest timer goes off.
    pub timers: u8,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            faults: 1,
            timers: 1,
        }
    }
}
