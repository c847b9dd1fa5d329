//! What was submitted to somebody who carries requests out, from the ring until it has begun: the same for workers and for
//! whoever stages.
//!
//! What there is no room for is held back, in one line for each kind of room that can be missing: who waits for one does not
//! stand in the way of those who need another. Within a line the order of submission is kept. The ring is emptied whatever
//! is held back, so that an [`End`] finds all that was submitted before it either begun or held back. How much can be held
//! back is bounded by the room that was taken for it when it was submitted.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;

use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::ring::{Entry, Ring, Slot};
use polyrail_core::time::Instant;
use polyrail_core::work::Cause;

use crate::post::{Arrival, Begun};
use crate::rows::RowId;

/// What ends requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Cancel(RowId),
    /// All, and whoever carries them out, at this time at the latest.
    ShutDown(Instant),
}

/// What has been taken in. `L` names the room that can be missing; of each batch there is a `B`, and of each request that has
/// begun an `R`.
pub(crate) struct Intake<L, B, R> {
    /// Batches by their row.
    open: Vec<Open<B, R>>,
    lines: Vec<Line<L>>,
    /// The first line that has not been tried since room came back.
    untried: usize,
    /// Nothing that is held back has an earlier deadline.
    deadline: Instant,
    ends: VecDeque<End>,
}

/// Requests that wait for the same room.
struct Line<L> {
    room: L,
    held: VecDeque<Entry>,
}

/// A batch of which something was taken.
struct Open<B, R> {
    row: RowId,
    batch: B,
    /// By position. `None`: it has not begun.
    requests: Vec<Option<R>>,
}

impl<B: Default, R> Default for Open<B, R> {
    fn default() -> Self {
        Self {
            row: RowId::default(),
            batch: B::default(),
            requests: Vec::new(),
        }
    }
}

impl<L, B, R> Default for Intake<L, B, R> {
    fn default() -> Self {
        Self {
            open: Vec::new(),
            lines: Vec::new(),
            untried: 0,
            deadline: Instant::MAX,
            ends: VecDeque::new(),
        }
    }
}

impl<L: Copy + PartialEq, B: Default, R> Intake<L, B, R> {
    /// The next request to begin, those first that were held back: `None` once all have been tried. `room` says which room a
    /// request needs; what needs room that others wait for is put behind them.
    pub(crate) fn next(
        &mut self,
        ring: &Ring<Box<[Slot]>, Box<[AtomicU64]>>,
        room: impl Fn(&Entry) -> L,
    ) -> Option<Entry> {
        while let Some(line) = self.lines.get_mut(self.untried) {
            match line.held.pop_front() {
                Some(entry) => return Some(entry),
                None => drop(self.lines.remove(self.untried)),
            }
        }
        loop {
            let entry = ring.pop()?;
            if self.lines.is_empty() {
                return Some(entry);
            }
            let room = room(&entry);
            match self.lines.iter_mut().find(|line| line.room == room) {
                Some(line) => line.held.push_back(entry),
                None => return Some(entry),
            }
            self.deadline = self.deadline.min(Arrival::decode(&entry).due.deadline);
        }
    }

    /// There is no room for what [`Self::next`] gave last.
    pub(crate) fn hold_back(&mut self, room: L, entry: Entry) {
        self.deadline = self.deadline.min(Arrival::decode(&entry).due.deadline);
        let index = self.lines.iter().position(|line| line.room == room);
        let index = index.unwrap_or_else(|| {
            self.lines.push(Line {
                room,
                held: VecDeque::new(),
            });
            self.lines.len() - 1
        });
        self.lines[index].held.push_front(entry);
        if index == self.untried {
            self.untried += 1;
        }
    }

    /// Room may have come back.
    pub(crate) fn look_again(&mut self) {
        self.untried = 0;
    }

    /// Whether something is held back for which room may have come back.
    pub(crate) fn is_ready(&self) -> bool {
        self.untried < self.lines.len()
    }

    /// Whether something is held back.
    pub(crate) fn holds_any(&self) -> bool {
        !self.lines.is_empty()
    }

    /// Whether something waits for this room.
    pub(crate) fn waits_for(&self, room: L) -> bool {
        self.lines.iter().any(|line| line.room == room)
    }

    /// When something that is held back is [overdue](Self::take_overdue).
    pub(crate) fn due(&self) -> Option<Instant> {
        (self.deadline != Instant::MAX).then_some(self.deadline)
    }

    /// Takes out what is held back although its deadline has passed.
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Vec<Entry> {
        match self.deadline <= now {
            true => self.take_held(|arrival| arrival.due.deadline <= now),
            false => Vec::new(),
        }
    }

    /// Takes out what is held back of a batch; `None`: of all.
    pub(crate) fn withdraw(&mut self, row: Option<RowId>) -> Vec<Entry> {
        self.take_held(|arrival| row.is_none_or(|row| arrival.row == row))
    }

    fn take_held(&mut self, is_it: impl Fn(&Arrival) -> bool) -> Vec<Entry> {
        let mut taken = Vec::new();
        let mut deadline = Instant::MAX;
        for line in &mut self.lines {
            line.held.retain(|entry| {
                let arrival = Arrival::decode(entry);
                let goes = is_it(&arrival);
                match goes {
                    true => taken.push(*entry),
                    false => deadline = deadline.min(arrival.due.deadline),
                }
                !goes
            });
        }
        self.lines.retain(|line| !line.held.is_empty());
        self.deadline = deadline;
        self.look_again();
        taken
    }

    /// The batch in a row, as it was noted before.
    pub(crate) fn batch(&mut self, row: RowId) -> &mut B {
        let index = usize::from(row.index);
        if self.open.len() <= index {
            self.open.resize_with(index + 1, Open::default);
        }
        let open = &mut self.open[index];
        if open.row != row {
            (open.row, open.batch) = (row, B::default());
            open.requests.clear();
        }
        &mut open.batch
    }

    /// A request of a batch that was asked for has begun.
    pub(crate) fn note(&mut self, row: RowId, position: usize, request: R) {
        let Some(open) = self.open.get_mut(usize::from(row.index)) else {
            return;
        };
        if open.requests.len() <= position {
            open.requests.resize_with(position, || None);
            return open.requests.push(Some(request));
        }
        open.requests[position] = Some(request);
    }

    /// Nothing more is asked about a batch.
    pub(crate) fn close(&mut self, row: RowId) {
        let open = self.open.get_mut(usize::from(row.index));
        if let Some(open) = open.filter(|open| open.row == row) {
            *open = Open::default();
        }
    }

    /// Which requests of a batch have begun.
    pub(crate) fn begun(&self, row: RowId) -> Begun {
        let open = self.find(row).into_iter();
        let begun = open.flat_map(|open| open.requests.iter().map(Option::is_some));
        Begun::At(begun.collect())
    }

    /// The requests of a batch that have begun.
    pub(crate) fn requests(&self, row: RowId) -> impl Iterator<Item = &R> {
        let open = self.find(row).into_iter();
        open.flat_map(|open| open.requests.iter().flatten())
    }

    fn find(&self, row: RowId) -> Option<&Open<B, R>> {
        let open = self.open.get(usize::from(row.index))?;
        (open.row == row).then_some(open)
    }

    /// Somebody asks for an end. It waits until what was submitted before has been taken in.
    pub(crate) fn ask(&mut self, end: End) {
        self.ends.push_back(end);
    }

    /// Whether something is asked for.
    pub(crate) fn is_asked(&self) -> bool {
        !self.ends.is_empty()
    }

    /// The next thing that is asked for, once the ring has been emptied.
    pub(crate) fn next_end(&mut self) -> Option<End> {
        self.ends.pop_front()
    }
}

/// How a request ends that has not begun: nothing of it has moved.
pub(crate) fn refused(status: Status, cause: Cause) -> Report {
    Report {
        status,
        delivered_bytes: 0,
        cause: Some(cause),
        local: Local::Released,
        remote: Remote::Settled,
    }
}

#[cfg(test)]
mod tests {
    use polyrail_core::units::PlanId;
    use polyrail_core::work::{Op, Priority};

    use super::*;
    use crate::post::{Due, Submission};

    type Row = u16;
    /// Lines by the plan's number.
    type Tested = Intake<u32, (), u64>;

    fn ring() -> Ring<Box<[Slot]>, Box<[AtomicU64]>> {
        let slots = (0..16).map(|_| Slot::EMPTY).collect();
        let cells = (0..16).map(|_| AtomicU64::new(0)).collect();
        Ring::new(slots, cells)
    }

    fn row(index: Row) -> RowId {
        RowId::from_tag(1 << 32 | u64::from(index)).0
    }

    fn entry(index: Row, position: usize, line: u32, deadline: Instant) -> Entry {
        let submission = Submission {
            plan: PlanId {
                index: line,
                generation: 1,
            },
            op: Op::Write,
            local_offset: 0,
            remote_offset: 0,
            length: 1,
            through_slots: false,
        };
        let due = Due {
            priority: Priority::Normal,
            deadline,
        };
        submission.encode(row(index).tag(position), false, due)
    }

    fn line(entry: &Entry) -> u32 {
        Arrival::decode(entry).submission.plan.index
    }

    /// Begins what a line that `has_room` is for, and holds back the rest: the batches and positions of what has begun.
    fn pass(
        intake: &mut Tested,
        ring: &Ring<Box<[Slot]>, Box<[AtomicU64]>>,
        has_room: impl Fn(u32) -> bool,
    ) -> Vec<(Row, usize)> {
        let mut begun = Vec::new();
        while let Some(entry) = intake.next(ring, line) {
            let Arrival { row, position, .. } = Arrival::decode(&entry);
            intake.batch(row);
            match has_room(line(&entry)) {
                true => {
                    intake.note(row, position, 0);
                    begun.push((row.index, position));
                }
                false => intake.hold_back(line(&entry), entry),
            }
        }
        begun
    }

    #[test]
    fn who_waits_for_room_holds_up_only_those_who_need_the_same() {
        let (mut intake, ring) = (Tested::default(), ring());
        for (batch, position, line) in [(1, 0, 7), (1, 1, 8), (2, 0, 7), (2, 1, 9)] {
            ring.push(entry(batch, position, line, Instant::MAX))
                .unwrap();
        }
        assert_eq!(pass(&mut intake, &ring, |line| line == 8), [(1, 1)]);
        assert!(intake.holds_any() && ring.is_empty());
        assert!(!intake.is_ready(), "they have been tried");
        ring.push(entry(3, 0, 7, Instant::MAX)).unwrap();
        ring.push(entry(3, 1, 8, Instant::MAX)).unwrap();
        // What comes later stays behind those that wait for the same.
        assert_eq!(pass(&mut intake, &ring, |_| true), [(3, 1)]);
        intake.look_again();
        assert!(intake.is_ready());
        assert_eq!(
            pass(&mut intake, &ring, |_| true),
            [(1, 0), (2, 0), (3, 0), (2, 1)]
        );
        assert!(!intake.holds_any());
    }

    #[test]
    fn what_has_begun_is_known_by_its_position() {
        // Staging counted what had begun, and took it for those at the front.
        let (mut intake, ring) = (Tested::default(), ring());
        for (position, line) in [(0, 7), (1, 8), (2, 7)] {
            ring.push(entry(1, position, line, Instant::MAX)).unwrap();
        }
        pass(&mut intake, &ring, |line| line == 8);
        let begun = |intake: &Tested| {
            let begun = intake.begun(row(1));
            [0, 1, 2, 3].map(|position| begun.has(position))
        };
        assert_eq!(begun(&intake), [false, true, false, false]);
        assert_eq!(intake.requests(row(1)).count(), 1);
        intake.look_again();
        pass(&mut intake, &ring, |_| true);
        assert_eq!(begun(&intake), [true, true, true, false]);
        // The next batch in that row has nothing to do with it.
        let next = RowId::from_tag(2 << 32 | 1).0;
        assert!(!intake.begun(next).has(0));
        intake.batch(next);
        assert_eq!(begun(&intake), [false; 4]);
    }

    #[test]
    fn what_is_withdrawn_or_overdue_does_not_begin() {
        let (mut intake, ring) = (Tested::default(), ring());
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        for (batch, deadline) in [(1, at(5)), (2, Instant::MAX), (3, at(9)), (2, at(20))] {
            ring.push(entry(batch, 0, 7, deadline)).unwrap();
        }
        pass(&mut intake, &ring, |_| false);
        let rows = |taken: Vec<Entry>| -> Vec<_> {
            let row = |entry| Arrival::decode(entry).row.index;
            taken.iter().map(row).collect()
        };
        assert_eq!(intake.due(), Some(at(5)));
        assert!(intake.take_overdue(at(4)).is_empty());
        assert_eq!(rows(intake.take_overdue(at(5))), [1]);
        assert_eq!(intake.due(), Some(at(9)));
        assert_eq!(rows(intake.withdraw(Some(row(2)))), [2, 2]);
        assert_eq!(rows(intake.withdraw(None)), [3]);
        assert!(intake.due().is_none() && !intake.holds_any());
        assert!(pass(&mut intake, &ring, |_| true).is_empty());
    }
}
