//! What crosses the edge between core and a transport: works out, completions and lane facts in.

use crate::time::Instant;
use crate::units::{Epoch, LaneId, SegmentRef};

/// Works that one [`PostBatch`] can carry.
pub const POST_MAX: usize = 32;

/// Which way bytes go, seen from the engine that asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Op {
    /// From the local segment to the remote one.
    Write,
    /// From the remote segment to the local one.
    Read,
}

/// A byte of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Place {
    /// Which segment.
    pub segment: SegmentRef,
    /// Bytes from its start.
    pub offset: u64,
}

impl Place {
    /// The one so many bytes behind it.
    pub(crate) const fn plus(self, bytes: u64) -> Self {
        debug_assert!(
            self.offset.checked_add(bytes).is_some(),
            "a place past the largest offset"
        );
        Self {
            segment: self.segment,
            offset: self.offset + bytes,
        }
    }
}

/// One thing for a transport to move: a slice of a request, or a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Work {
    /// Comes back in the [`Completion`]. Means nothing to a transport, and is never `u64::MAX`, which that may have for works
    /// of its own.
    pub cookie: u64,
    /// Write or read.
    pub op: Op,
    /// Where the bytes are, or will be, on this side.
    pub local: Place,
    /// Where they will be, or are, on the peer.
    pub remote: Place,
    /// Bytes; never 0.
    pub length: u32,
    /// Whether this work must produce a completion of its own. A transport may complete others too.
    pub signal: bool,
}

/// Up to [`POST_MAX`] works of one lane, in the order in which they are to be posted.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PostBatch {
    /// The lane.
    pub lane: LaneId,
    /// The epoch that core believes the lane has. A transport refuses any other.
    pub epoch: Epoch,
    /// The works.
    pub works: heapless::Vec<Work, POST_MAX>,
}

/// Why a transport stopped taking works of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Stop {
    /// It did not stop: all were taken.
    All,
    /// The lane has no room. [`LaneFact::Writable`] or a completion says when to try again.
    Full,
    /// The first work not taken was refused for this reason.
    Rejected(Cause),
    /// The transport cannot say what became of the works from `accepted` on: they are orphans.
    Unknown,
}

/// The answer to one [`PostBatch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Posted {
    /// Works taken, counted from the front. Those after them are untouched, unless `stop` is `Unknown`.
    pub accepted: usize,
    /// Why it stopped there.
    pub stop: Stop,
}

/// How one work ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Outcome {
    /// The bytes are where they should be, and nothing will touch either side for this work any more.
    Success,
    /// It failed. The lane takes no more works until it is fenced.
    Error(Cause),
}

/// The answer about one work. It also covers the works posted before it on the same lane, as far as
/// those asked for no completion of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Completion {
    /// The lane.
    pub lane: LaneId,
    /// The lane's epoch when the work was posted.
    pub epoch: Epoch,
    /// The work's cookie.
    pub cookie: u64,
    /// When the transport saw it; never later than the `now` it is handed in with.
    pub at: Instant,
    /// How it ended.
    pub outcome: Outcome,
}

/// Which of the two facts a fence is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Scope {
    /// Nobody anywhere still reads the source or writes the initiator's memory.
    Local,
    /// No further write can reach the destination.
    Remote,
}

/// Who goes first when rails have no room for all.
///
/// The order holds for what waits for a rail. A slice that has one is not overtaken, but no more are in flight than
/// the rails' windows hold, and `High` finds room above these. Who has waited for long moves up, so that nothing
/// starves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Priority {
    /// Before all others to the same peer.
    High,
    /// The usual. Requests of up to one slice go before longer ones.
    #[default]
    Normal,
    /// After all others.
    Low,
}

impl Priority {
    /// All of them, the first one first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// The priority's name in configuration and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

/// What a lane can take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LaneLimits {
    /// Works that may be posted and not completed. At least 1.
    pub works_max: u16,
    /// Bytes of the largest work. At least 1.
    pub work_bytes_max: u32,
    /// Reads among them: a read holds a second credit where the device limits those (`max_rd_atomic`). At least 1.
    pub reads_max: u16,
    /// Whether works complete in order and a completion covers those before it that asked for none. Else every work
    /// must complete by itself, and asks for it.
    pub covers: bool,
    /// Whether its peer counts the works that arrived whole, in the order of posting, and says how many with its fence
    /// ([`LaneFact::Fenced`], [`Frame::Fenced`](crate::message::Frame::Fenced)). Writes of such a lane that fails are not sent
    /// again before that is known, unless it takes longer than `progress_floor`: only what the peer does not have travels
    /// twice. What a peer says of a lane without this is not believed.
    pub counts: bool,
    /// It may stand still for so many milliseconds and is not suspected: for what stalls by nature, and has no better
    /// way around.
    pub patience_ms: u16,
}

impl LaneLimits {
    /// A lane that limits reads like all works, completes each by itself, and whose peer counts nothing.
    pub const fn new(works_max: u16, work_bytes_max: u32) -> Self {
        Self {
            works_max,
            work_bytes_max,
            reads_max: works_max,
            covers: false,
            counts: false,
            patience_ms: 0,
        }
    }
}

/// What a transport reports about a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum LaneFact {
    /// It can take works.
    Opened {
        /// Its limits.
        limits: LaneLimits,
    },
    /// It could not be opened. The peer refused it, or nobody answered in time.
    OpenFailed(Cause),
    /// It has room again after [`Stop::Full`].
    Writable,
    /// It is of no use any more; what was posted and not completed has an unknown outcome.
    Broken(Cause),
    /// The fence of this scope holds: see [`Scope`]. `delivered` counts the works of this epoch that
    /// reached their destination whole, in the order of posting, if the transport knows ([`LaneLimits::counts`]).
    Fenced {
        /// Which fact.
        scope: Scope,
        /// Works delivered, in order, from the first of the epoch; `None` if unknown.
        delivered: Option<u32>,
    },
    /// The fence of this scope cannot be given now. A later [`LaneFact::Fenced`] is still welcome.
    Unfenceable {
        /// Which fact.
        scope: Scope,
    },
    /// The port under it carries packets again. If its rail is paused, that is worth a probe at once.
    PortActive,
    /// It is being opened, and with it there are more lanes on its device than there should be: one that stands idle is to
    /// make room. The one that has done so for longest goes; if none does, there are more for a while.
    Crowded,
}

/// Why something ended other than well. One list for works, lanes, rails and reports.
///
/// Source: InfiniBand verbs, for the names in parentheses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Cause {
    /// The link or the connection was reset.
    Reset,
    /// Nothing was heard on the lane for too long while the rest moved.
    Silent,
    /// Nothing was heard from the peer for too long.
    PeerSilent,
    /// The peer's process is gone, with proof.
    PeerGone,
    /// Transport retries were used up (verbs RETRY_EXC).
    RetryExceeded,
    /// Receiver-not-ready retries were used up (verbs RNR_RETRY_EXC).
    RnrRetryExceeded,
    /// The device failed (verbs FATAL).
    Fatal,
    /// The port or the device went down.
    DeviceDown,
    /// The local range is not what the transport registered (verbs LOC_PROT).
    LocalProtection,
    /// The local range has the wrong length (verbs LOC_LEN).
    LocalLength,
    /// The local queue pair refused the work (verbs LOC_QP_OP).
    LocalOperation,
    /// The peer's segment does not allow it: key, range or permission (verbs REM_ACCESS).
    RemoteAccess,
    /// The peer could not make sense of the work (verbs REM_INV_REQ).
    RemoteInvalidRequest,
    /// The peer failed while it carried the work out (verbs REM_OP).
    RemoteOperation,
    /// The peer's answer made no sense (verbs BAD_RESP).
    BadResponse,
    /// Ended because a neighbour on the lane had failed (verbs WR_FLUSH).
    Flushed,
    /// Nobody answered in time when the lane was opened, or the peer refused it.
    Refused,
    /// No rail to the peer has been usable for too long.
    NoRail,
    /// It has switched transports as often as it may.
    FailoverLimit,
    /// The program cancelled it.
    Cancelled,
    /// Its deadline passed.
    DeadlineExceeded,
    /// The engine is shutting down.
    ShutDown,
    /// All staging slots that it could pass through are quarantined.
    StagingLost,
    /// The file ends before the range does: it has been shortened, or has not grown so far.
    EndOfFile,
    /// The file cannot grow: the disk or the quota is full, or a limit on its size is reached.
    NoSpace,
    /// The disk, or the file system on it, could not read or write these bytes.
    MediaError,
    /// A lane stood idle, and made room for another one.
    MadeRoom,
}

impl Cause {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 27] = [
        Self::Reset,
        Self::Silent,
        Self::PeerSilent,
        Self::PeerGone,
        Self::RetryExceeded,
        Self::RnrRetryExceeded,
        Self::Fatal,
        Self::DeviceDown,
        Self::LocalProtection,
        Self::LocalLength,
        Self::LocalOperation,
        Self::RemoteAccess,
        Self::RemoteInvalidRequest,
        Self::RemoteOperation,
        Self::BadResponse,
        Self::Flushed,
        Self::Refused,
        Self::NoRail,
        Self::FailoverLimit,
        Self::Cancelled,
        Self::DeadlineExceeded,
        Self::ShutDown,
        Self::StagingLost,
        Self::EndOfFile,
        Self::NoSpace,
        Self::MediaError,
        Self::MadeRoom,
    ];

    /// Its number in C, where 0 is none. New causes come last, so that numbers stay.
    pub const fn number(self) -> u32 {
        self as u32 + 1
    }

    /// The inverse of [`Self::number`]; `None`: 0, or one that nobody has.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get((number as usize).checked_sub(1)?).copied()
    }

    /// Whether this speaks against the rail. Everything else speaks against the lane or the request.
    ///
    /// Every fatal outcome rebuilds the lane; only these count in the rail's health.
    pub const fn counts_against_rail(self) -> bool {
        matches!(
            self,
            Self::Reset
                | Self::Silent
                | Self::RetryExceeded
                | Self::RnrRetryExceeded
                | Self::Fatal
                | Self::DeviceDown
                | Self::Refused
        )
    }

    /// Whether this is the fault of the request itself: sending it elsewhere would fail again.
    pub const fn is_callers(self) -> bool {
        matches!(
            self,
            Self::LocalProtection
                | Self::LocalLength
                | Self::LocalOperation
                | Self::RemoteAccess
                | Self::RemoteInvalidRequest
                | Self::RemoteOperation
                | Self::BadResponse
                | Self::EndOfFile
                | Self::NoSpace
                | Self::MediaError
        )
    }

    /// Whether a peer whose process is ending may cause this too: its memory goes before its connections do, so that it seems
    /// to refuse what it was willing to take.
    pub const fn is_of_ended_process(self) -> bool {
        matches!(
            self,
            Self::RemoteAccess | Self::RemoteInvalidRequest | Self::RemoteOperation
        )
    }

    /// The cause in words, for logs and error messages.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Reset => "connection reset",
            Self::Silent => "no completion in time",
            Self::PeerSilent => "peer silent",
            Self::PeerGone => "peer gone",
            Self::RetryExceeded => "transport retries exceeded",
            Self::RnrRetryExceeded => "receiver-not-ready retries exceeded",
            Self::Fatal => "device failed",
            Self::DeviceDown => "device down",
            Self::LocalProtection => "local range not registered",
            Self::LocalLength => "local length wrong",
            Self::LocalOperation => "local queue refused the work",
            Self::RemoteAccess => "peer's segment does not allow it (key, range or permission)",
            Self::RemoteInvalidRequest => "peer could not make sense of the work",
            Self::RemoteOperation => "peer failed while carrying it out",
            Self::BadResponse => "peer's answer made no sense",
            Self::Flushed => "flushed after a neighbour's failure",
            Self::Refused => "lane refused or not answered",
            Self::NoRail => "no usable rail",
            Self::FailoverLimit => "Failover limit exceeded, all transports exhausted",
            Self::Cancelled => "cancelled",
            Self::DeadlineExceeded => "deadline exceeded",
            Self::ShutDown => "engine shut down",
            Self::StagingLost => "no usable staging slot",
            Self::EndOfFile => "the file ends before the range",
            Self::NoSpace => "no space for the file (disk, quota or size limit)",
            Self::MediaError => "the disk could not read or write these bytes",
            Self::MadeRoom => "made room for another lane",
        }
    }
}

impl core::fmt::Display for Cause {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::Cause::{self, *};
    use std::collections::BTreeSet;

    #[test]
    fn each_cause_has_a_number_that_leads_back_to_it() {
        for (number, cause) in (1..).zip(Cause::ALL) {
            assert_eq!(cause.number(), number, "{cause:?}");
            assert_eq!(Cause::from_number(number), Some(cause));
        }
        let none = [0, Cause::ALL.len() as u32 + 1, u32::MAX];
        assert!(
            none.iter()
                .all(|number| Cause::from_number(*number).is_none())
        );
    }

    #[test]
    fn each_cause_speaks_against_one_thing() {
        // (whom it speaks against, causes)
        let cases = [
            (
                "the rail",
                &[
                    Reset,
                    Silent,
                    RetryExceeded,
                    RnrRetryExceeded,
                    Fatal,
                    DeviceDown,
                    Refused,
                ][..],
            ),
            (
                "the request",
                &[
                    LocalProtection,
                    LocalLength,
                    LocalOperation,
                    RemoteAccess,
                    RemoteInvalidRequest,
                    RemoteOperation,
                    BadResponse,
                    EndOfFile,
                    NoSpace,
                    MediaError,
                ],
            ),
            (
                "neither",
                &[
                    PeerSilent,
                    PeerGone,
                    Flushed,
                    NoRail,
                    FailoverLimit,
                    Cancelled,
                    DeadlineExceeded,
                    ShutDown,
                    MadeRoom,
                ],
            ),
        ];
        let mut texts = BTreeSet::new();
        for (whom, causes) in cases {
            for cause in causes {
                assert_eq!(cause.counts_against_rail(), whom == "the rail", "{cause:?}");
                assert_eq!(cause.is_callers(), whom == "the request", "{cause:?}");
                assert!(texts.insert(cause.text()), "{cause:?} reads like another");
            }
        }
    }
}
