//! What a call asks for, what it is told to do next, and how it ends.

use core::ops::Range;

use super::admission::Token;
use super::grant::Amount;
use super::levels::{Revision, Snapshot};
use crate::time::Instant;
use crate::work::Cause;

/// What a call is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// Requests in it.
    pub requests: u32,
    /// A number that differs from call to call, so that small ones do not all begin at the first lane.
    pub number: u64,
    /// Works that one call to the transport takes. 0: any number.
    pub post_works_max: u16,
}

/// What to do next.
#[derive(Debug)]
pub enum Step<'a> {
    /// Hand these requests to the worker of that lane, with the token. Then go on.
    Submit {
        /// Its position among the lanes.
        lane: usize,
        /// Which requests.
        requests: Range<u32>,
        /// Their admission.
        token: Token<'a>,
    },
    /// Wait for the answer of the oldest chunk and hand it in with [`Dispatch::handle_answer`](super::dispatch::Dispatch::handle_answer).
    Collect,
    /// Wait until the revision of that lane differs, or it is `until`. Then go on.
    Wait {
        /// Its position among the lanes.
        lane: usize,
        /// The revision that was seen.
        revision: Revision,
        /// The end of the wait slice, or the deadline.
        until: Instant,
    },
    /// All chunks have been submitted and answered, or it ended early and those submitted have been answered.
    Done(Result<(), DispatchError>),
}

/// Why a call ended early. Chunks that had been submitted were answered before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DispatchError {
    /// There is no lane that takes works.
    NoLane,
    /// The lane of a static share takes none, or the last that did has just been closed.
    LaneClosed {
        /// Its position among the lanes.
        lane: usize,
    },
    /// One request makes more works than the lane of its share can hold, or than any can.
    TooLarge {
        /// Works it makes.
        asked: Amount,
        /// What the lane can hold.
        max: Amount,
    },
    /// The call's deadline passed. Try again later: nothing is wrong with the lanes.
    TimedOut {
        /// The lane waited for last: its position.
        lane: usize,
        /// Works that should have been open to admission.
        required_works: u16,
        /// How it stood.
        at: Snapshot,
    },
    /// A chunk failed.
    Chunk(Cause),
}
