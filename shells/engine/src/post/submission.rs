//! Requests on their way to whoever carries them out.

use std::ops::Deref;
use std::sync::Arc;

use polyrail_core::time::Instant;
use polyrail_core::units::PlanId;
use polyrail_core::work::{Op, Priority};

use crate::rows::RowId;
use crate::visible::Sight;

/// One request on its way to its worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submission {
    pub(crate) plan: PlanId,
    pub(crate) op: Op,
    pub(crate) local_offset: u64,
    pub(crate) remote_offset: u64,
    pub(crate) length: u64,
    /// Of one that is staged: no transport that reaches memory of GPUs is to carry it.
    pub(crate) through_slots: bool,
}

/// When the requests of a batch are due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) priority: Priority,
    /// `Instant::MAX`: never.
    pub(crate) deadline: Instant,
}

impl Due {
    /// The deadline, if there is one.
    pub(crate) fn within(self) -> Option<Instant> {
        (self.deadline != Instant::MAX).then_some(self.deadline)
    }
}

/// What a batch asks for, as whoever carries it out takes it.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) list: List,
    pub(crate) due: Due,
    /// Who has to see what it has written before it ends.
    pub(crate) sight: Option<Box<Sight>>,
}

/// The requests of a batch, one behind the other.
#[derive(Debug)]
pub(crate) enum List {
    /// Of this batch alone.
    Once(Vec<Submission>),
    /// Of all posts of a prepared transfer.
    Kept(Arc<Vec<Submission>>),
}

impl Deref for List {
    type Target = [Submission];

    fn deref(&self) -> &[Submission] {
        match self {
            Self::Once(list) => list,
            Self::Kept(list) => list,
        }
    }
}

impl Default for Order {
    /// Of a batch without requests.
    fn default() -> Self {
        Self {
            list: List::Once(Vec::new()),
            due: Due {
                priority: Priority::Normal,
                deadline: Instant::MAX,
            },
            sight: None,
        }
    }
}

/// A request whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// The batch and the position, as one word.
    pub(crate) tag: u64,
    pub(crate) row: RowId,
    pub(crate) position: usize,
    pub(crate) submission: Submission,
    /// It is the last request of its batch.
    pub(crate) last: bool,
    pub(crate) due: Due,
}
