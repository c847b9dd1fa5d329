//! The clauses of the contract, and what is said of one that was broken.

use core::ffi::CStr;
use core::fmt;

use crate::report::Status;
use crate::time::{Duration, Instant};
use crate::units::{Epoch, LaneId};

/// One clause of the contract between a runtime and core. `docs/embedding.md` has them all in one table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// Time never goes back. `span`: by how much it did.
    TimeWentBack,
    /// `handle_timeout` is called when a timer is due, before the polls. `span`: how late it was.
    TimerLate,
    /// Each poll is called until it gives `None`. `number`: 0 works, 1 lanes, 2 messages, 3 events.
    NotDrained,
    /// What has ended is taken. `number`: the caller's word for the request or batch.
    NotTaken,
    /// Every post is answered. `number`: the post's. `span`: since when.
    PostUnanswered,
    /// An answer counts no more works than the post has, and `All` means all of them. `number`: what it counts.
    PostMiscounted,
    /// Who says `Full` says `Writable` or completes something later. `span`: since when.
    FullForEver,
    /// A lane that is asked to open for the first time, or while nothing is broken on purpose, answers by the time it was told.
    /// `span`: how long it was waited for.
    OpenUnanswered,
    /// A lane opens once, and only if it was asked to.
    OpenedTwice,
    /// A fence of a lane is answered. `span`: how long it was waited for.
    FenceUnanswered,
    /// A fence that the peer was asked for is answered. `number`: the peer. `span`: how long it was waited for.
    MessageUnanswered,
    /// A lane that nobody asked to fence, and that has not failed, says nothing of fences.
    FencedUnasked,
    /// A peer counts no more works than were posted. `number`: what it counts.
    CountedTooMany,
    /// A work completes once. `number`: its cookie, as below.
    CompletedTwice,
    /// What completes is out on that lane.
    CompletedUnknown,
    /// A completion says the epoch that its work was posted in, and nothing one that has not been. `number`: the epoch said.
    EpochWrong,
    /// A completion was not seen later than it is handed in. `span`: by how much it was.
    CompletedInFuture,
    /// Completions come before the word that their lane broke.
    BrokenFirst,
    /// Every work completes, or its lane says why not. `span`: since when it is out.
    NeverCompleted,
    /// Lanes are this worker's, on rails that it has.
    LaneUnknown,
    /// Of a script: a request with nothing in its way completes. `number`: its status.
    NotCompleted,
    /// Of a script: every request ends. `span`: how long it was waited for.
    NeverEnded,
    /// Of a script: the bytes of a completed request are where they should be, and no others are. `number`: the first that
    /// is not.
    BytesWrong,
    /// Of a script: nothing touches memory whose request is over. `number`: the first byte that changed.
    TouchedAfterReport,
    /// Not the runtime's fault: the checker was given too few rows, and may have missed something.
    RowsUsedUp,
}

impl Rule {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 25] = [
        Self::TimeWentBack,
        Self::TimerLate,
        Self::NotDrained,
        Self::NotTaken,
        Self::PostUnanswered,
        Self::PostMiscounted,
        Self::FullForEver,
        Self::OpenUnanswered,
        Self::OpenedTwice,
        Self::FenceUnanswered,
        Self::MessageUnanswered,
        Self::FencedUnasked,
        Self::CountedTooMany,
        Self::CompletedTwice,
        Self::CompletedUnknown,
        Self::EpochWrong,
        Self::CompletedInFuture,
        Self::BrokenFirst,
        Self::NeverCompleted,
        Self::LaneUnknown,
        Self::NotCompleted,
        Self::NeverEnded,
        Self::BytesWrong,
        Self::TouchedAfterReport,
        Self::RowsUsedUp,
    ];

    /// Its name, for people and tests.
    pub fn name(self) -> &'static str {
        self.name_in_c().to_str().unwrap_or_default()
    }

    /// Its name, for C.
    pub const fn name_in_c(self) -> &'static CStr {
        match self {
            Self::TimeWentBack => c"time-went-back",
            Self::TimerLate => c"timer-late",
            Self::NotDrained => c"not-drained",
            Self::NotTaken => c"not-taken",
            Self::PostUnanswered => c"post-unanswered",
            Self::PostMiscounted => c"post-miscounted",
            Self::FullForEver => c"full-for-ever",
            Self::OpenUnanswered => c"open-unanswered",
            Self::OpenedTwice => c"opened-twice",
            Self::FenceUnanswered => c"fence-unanswered",
            Self::MessageUnanswered => c"message-unanswered",
            Self::FencedUnasked => c"fenced-unasked",
            Self::CountedTooMany => c"counted-too-many",
            Self::CompletedTwice => c"completed-twice",
            Self::CompletedUnknown => c"completed-unknown",
            Self::EpochWrong => c"epoch-wrong",
            Self::CompletedInFuture => c"completed-in-future",
            Self::BrokenFirst => c"broken-first",
            Self::NeverCompleted => c"never-completed",
            Self::LaneUnknown => c"lane-unknown",
            Self::NotCompleted => c"not-completed",
            Self::NeverEnded => c"never-ended",
            Self::BytesWrong => c"bytes-wrong",
            Self::TouchedAfterReport => c"touched-after-report",
            Self::RowsUsedUp => c"rows-used-up",
        }
    }
}

/// How a clause was broken the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Breach {
    /// Which clause.
    pub rule: Rule,
    /// When that was noticed.
    pub at: Instant,
    /// On which lane, if on one.
    pub lane: Option<LaneId>,
    /// That lane's epoch.
    pub epoch: Epoch,
    /// What `rule` says: a work's cookie, a post's number, ...
    pub number: u64,
    /// What `rule` says: how late, how far back, ...
    pub span: Duration,
    /// How often it has been broken by now.
    pub times: u32,
}

/// What polls give, in the order of the numbers of [`Rule::NotDrained`].
const POLLS: [&str; 4] = ["poll_post", "poll_lane", "poll_message", "poll_event"];

impl fmt::Display for Breach {
    /// In one line: the name, what happened, when, where and how often.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, span) = (self.number, self.span);
        write!(f, "{}: ", self.rule.name())?;
        match self.rule {
            Rule::TimeWentBack => write!(f, "time went back by {span:?}"),
            Rule::TimerLate => write!(
                f,
                "handle_timeout was not called when due, late by {span:?}"
            ),
            Rule::NotDrained => {
                let poll = POLLS.get(number as usize).unwrap_or(&"a poll");
                write!(f, "{poll} had more to say, and was not called until None")
            }
            Rule::NotTaken => write!(f, "what ended as {number} was not taken"),
            Rule::PostUnanswered => write!(f, "post {number} was not answered within {span:?}"),
            Rule::PostMiscounted => write!(f, "a post was answered with {number} works"),
            Rule::FullForEver => write!(f, "Full for {span:?} with nothing out, and not Writable"),
            Rule::OpenUnanswered => write!(f, "Open was not answered within {span:?}"),
            Rule::OpenedTwice => write!(f, "Opened, though it was not being opened"),
            Rule::FenceUnanswered => write!(f, "Fence was not answered within {span:?}"),
            Rule::MessageUnanswered => {
                write!(f, "peer {number} did not answer Fence within {span:?}")
            }
            Rule::FencedUnasked => write!(f, "Fenced, though nobody asked and it had not failed"),
            Rule::CountedTooMany => {
                write!(f, "the peer counts {number} works, more than were posted")
            }
            Rule::CompletedTwice => write!(f, "work {number:#x} completed twice"),
            Rule::CompletedUnknown => {
                write!(
                    f,
                    "a completion of {number:#x}, which is no work that is out there"
                )
            }
            Rule::EpochWrong => write!(f, "epoch {number} was said of what is of another one"),
            Rule::CompletedInFuture => {
                write!(
                    f,
                    "work {number:#x} completed {span:?} after it was handed in"
                )
            }
            Rule::BrokenFirst => {
                write!(
                    f,
                    "work {number:#x} had completed before Broken, and came after it"
                )
            }
            Rule::NeverCompleted => {
                write!(
                    f,
                    "work {number:#x} has been out for {span:?} without a word"
                )
            }
            Rule::LaneUnknown => write!(f, "this worker has no such lane"),
            Rule::NotCompleted => {
                let status = Status::ALL
                    .get(number as usize)
                    .map_or("?", |status| status.name());
                write!(
                    f,
                    "nothing was broken on purpose, and a request ended as {status}"
                )
            }
            Rule::NeverEnded => write!(f, "a request has not ended within {span:?}"),
            Rule::BytesWrong => write!(f, "byte {number} is not what it should be"),
            Rule::TouchedAfterReport => {
                write!(f, "byte {number} was touched after its request was over")
            }
            Rule::RowsUsedUp => write!(f, "the checker has too few rows"),
        }?;
        if let Some(lane) = self.lane {
            let (rail, worker) = (lane.rail().0, lane.worker());
            write!(
                f,
                "; lane {rail} of worker {worker}, epoch {}",
                self.epoch.0
            )?;
        }
        write!(f, "; at {:?}", self.at)?;
        match self.times {
            1 => Ok(()),
            times => write!(f, "; {times} times"),
        }
    }
}
