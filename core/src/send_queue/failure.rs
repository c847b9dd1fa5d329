//! The one way in which a lane ends, whatever showed that it has to.
//!
//! First the lane is closed, so that nobody begins to post; then those who are posting finish; then what no
//! completion will cover is orphaned and collected, each owner once, the one who caused it first and with the
//! cause, the others as flushed by it. Credits stay held: they come out with the orphans, and the caller
//! releases them when a fence has shown that nothing moves any more.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), phase 2. We differ: a fatal completion also closes
//! the lane first (there the guard is taken first, and posters slip in); what ended one owner's work is not
//! told to others as theirs; a device that goes without completions orphans the signalled works too.

use super::credit::{Credits, Revision};
use super::grant::Grant;
use super::ledger::{Ledger, Orphans};
use crate::work::Cause;

/// What showed that a lane may have to end. `O` is who owns works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<O> {
    /// No credits came in time for the rest of a call.
    ReserveFailed,
    /// The lane was closed between the reservation and the post.
    RecheckFailed,
    /// The transport refused a work of `owner`.
    PostFailed {
        /// Whose work it was.
        owner: O,
        /// Why.
        cause: Cause,
    },
    /// The transport does not know what became of a post.
    PostUnknown {
        /// Why.
        cause: Cause,
    },
    /// A work of `owner` came back in error. Its own record is the caller's to complete.
    CompletionFailed {
        /// Whose work it was.
        owner: O,
        /// Why.
        cause: Cause,
    },
    /// The device or the connection is gone: no completion will come, not even for signalled works.
    DeviceGone {
        /// Why.
        cause: Cause,
    },
}

/// Whether a completion with this cause ends its lane. A flush does not: it shows that something else has.
///
/// The verbs statuses are the rework's six (RETRY_EXC, RNR_RETRY_EXC, LOC_QP_OP, REM_ACCESS, REM_INV_REQ,
/// FATAL) and four more that put a reliable queue pair into error as well (LOC_PROT, LOC_LEN, REM_OP,
/// BAD_RESP). Other transports' lanes end when their connection does.
pub const fn ends_lane(cause: Cause) -> bool {
    match cause {
        Cause::RetryExceeded
        | Cause::RnrRetryExceeded
        | Cause::LocalOperation
        | Cause::RemoteAccess
        | Cause::RemoteInvalidRequest
        | Cause::Fatal
        | Cause::LocalProtection
        | Cause::LocalLength
        | Cause::RemoteOperation
        | Cause::BadResponse
        | Cause::Reset
        | Cause::Silent
        | Cause::PeerSilent
        | Cause::PeerGone
        | Cause::DeviceDown
        | Cause::EndOfFile
        | Cause::NoSpace
        | Cause::MediaError => true,
        Cause::Flushed
        | Cause::Refused
        | Cause::NoRail
        | Cause::FailoverLimit
        | Cause::Cancelled
        | Cause::DeadlineExceeded
        | Cause::ShutDown
        | Cause::StagingLost => false,
    }
}

/// A lane on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the lane is closed, but its orphans have not been collected"]
pub struct Recovery<O> {
    culprit: Option<O>,
    cause: Cause,
    /// Signalled works are orphans too.
    all: bool,
}

/// Owners whose works were orphaned, and what they are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed<O> {
    /// Who, and how many of its requests.
    pub orphans: Orphans<O>,
    /// Why: the root cause for the one who caused it, and for all when it was nobody's work.
    pub cause: Cause,
}

impl<O: Copy + Eq> Recovery<O> {
    /// Closes the lane, if it has to end. `None`: it lives, and nothing has changed. A reservation that fails
    /// and a refused work end it only when works are out that no signal covers; better signal the next one.
    pub fn begin(credits: &Credits, ledger: &mut Ledger<'_, O>, entry: Entry<O>) -> Option<Self> {
        let (culprit, cause) = match entry {
            Entry::ReserveFailed => (None, Cause::Silent),
            Entry::RecheckFailed => (None, Cause::Flushed),
            Entry::PostUnknown { cause } | Entry::DeviceGone { cause } => (None, cause),
            Entry::PostFailed { owner, cause } | Entry::CompletionFailed { owner, cause } => {
                (Some(owner), cause)
            }
        };
        let ends = match entry {
            Entry::ReserveFailed | Entry::RecheckFailed | Entry::PostFailed { .. } => {
                ledger.has_orphans() || ledger.uncovered().works > 0
            }
            Entry::CompletionFailed { cause, .. } => ends_lane(cause),
            Entry::PostUnknown { .. } | Entry::DeviceGone { .. } => true,
        };
        if !ends {
            return None;
        }
        credits.terminate();
        Some(Self {
            culprit,
            cause,
            all: matches!(entry, Entry::DeviceGone { .. }),
        })
    }

    /// Goes on once nobody posts any more; until then gives the revision that will change. Hands out every
    /// owner once; their credits go to `grants`. Calling it again hands out nothing twice.
    pub fn poll(
        &self,
        credits: &Credits,
        ledger: &mut Ledger<'_, O>,
        mut grants: impl FnMut(Grant),
        mut failed: impl FnMut(Failed<O>),
    ) -> Result<(), Revision> {
        let revision = credits.revision();
        if !credits.is_drained() {
            return Err(revision);
        }
        if self.all {
            ledger.orphan_all();
        } else {
            ledger.orphan_uncovered();
        }
        while let Some(orphans) = ledger.take_orphans(self.culprit, &mut grants) {
            let is_theirs = self.culprit.is_none_or(|owner| owner == orphans.owner);
            let cause = if is_theirs {
                self.cause
            } else {
                Cause::Flushed
            };
            failed(Failed { orphans, cause });
        }
        Ok(())
    }
}
