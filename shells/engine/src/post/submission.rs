//! A request on its way to whoever carries it out, and the words of the ring that it is there.

use polyrail_core::ring::Entry;
use polyrail_core::time::Instant;
use polyrail_core::units::PlanId;
use polyrail_core::work::{Op, Priority};

use crate::rows::RowId;

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

const READ: u64 = 1;
const LAST: u64 = 2;
const HIGH: u64 = 4;
const LOW: u64 = 8;
const SLOTS: u64 = 16;

/// What the flags of an entry say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flags {
    op: Op,
    /// It is the last request of its batch.
    last: bool,
    priority: Priority,
    /// As [`Submission::through_slots`] says.
    through_slots: bool,
}

impl Flags {
    fn to_bits(self) -> u64 {
        let op = if self.op == Op::Read { READ } else { 0 };
        let last = if self.last { LAST } else { 0 };
        let slots = if self.through_slots { SLOTS } else { 0 };
        let priority = match self.priority {
            Priority::High => HIGH,
            Priority::Normal => 0,
            Priority::Low => LOW,
        };
        op | last | priority | slots
    }

    fn from_bits(bits: u64) -> Self {
        let has = |flag: u64| bits & flag != 0;
        Self {
            op: if has(READ) { Op::Read } else { Op::Write },
            last: has(LAST),
            through_slots: has(SLOTS),
            priority: match (has(HIGH), has(LOW)) {
                (true, _) => Priority::High,
                (false, true) => Priority::Low,
                (false, false) => Priority::Normal,
            },
        }
    }
}

impl Submission {
    pub(crate) fn encode(&self, tag: u64, last: bool, due: Due) -> Entry {
        let flags = Flags {
            op: self.op,
            last,
            priority: due.priority,
            through_slots: self.through_slots,
        };
        let Self {
            plan,
            local_offset,
            remote_offset,
            length,
            ..
        } = *self;
        [
            tag,
            plan.to_bits(),
            local_offset,
            remote_offset,
            length,
            flags.to_bits(),
            due.deadline.as_nanos(),
            0,
        ]
    }
}

/// A submission as it comes out of the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) tag: u64,
    /// The batch and the position that the tag names.
    pub(crate) row: RowId,
    pub(crate) position: usize,
    pub(crate) submission: Submission,
    /// It is the last request of its batch.
    pub(crate) last: bool,
    pub(crate) due: Due,
}

impl Arrival {
    pub(crate) fn decode(entry: &Entry) -> Self {
        let [
            tag,
            plan,
            local_offset,
            remote_offset,
            length,
            flags,
            deadline,
            _,
        ] = *entry;
        let (row, position) = RowId::from_tag(tag);
        let Flags {
            op,
            last,
            priority,
            through_slots,
        } = Flags::from_bits(flags);
        Self {
            tag,
            row,
            position,
            submission: Submission {
                plan: PlanId::from_bits(plan),
                op,
                local_offset,
                remote_offset,
                length,
                through_slots,
            },
            last,
            due: Due {
                priority,
                deadline: Instant::from_nanos(deadline),
            },
        }
    }
}
