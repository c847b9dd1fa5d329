//! What was submitted to somebody who carries requests out, until it has begun: the same for workers and for whoever stages.
//!
//! The ring brings batches, and each brings its requests as a list, of which one after the other begins: so a batch can have
//! more requests than anybody has tables for. No more of them are under way than the batch has room for.
//!
//! A batch whose next request there is no room for is held back, in one line for each kind of room that can be missing: who
//! waits for one does not stand in the way of those who need another. Within a batch, and within a line, the order of
//! submission is kept. The ring is emptied whatever is held back, so that an [`End`] finds all that was submitted before it.

use std::collections::VecDeque;
use std::sync::Arc;

use polyrail_core::time::Instant;

use crate::batch::Shared as BatchShared;
use crate::post::{Arrival, Begun, Order, Post};
use crate::rows::RowId;

/// Requests of which so many can be remembered without asking for memory stay so when their batch has ended.
const KEPT_MAX: usize = 4_096;

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
    /// The batch whose requests begin now, and the line that it has just left.
    current: Option<(RowId, Option<L>)>,
    lines: Vec<Line<L>>,
    /// The first line that has not been tried since room came back.
    untried: usize,
    /// Batches of which as many are under way as they have room for.
    paced: VecDeque<RowId>,
    /// Nothing that has not begun has an earlier deadline.
    deadline: Instant,
    ends: VecDeque<End>,
}

/// Batches whose next requests wait for the same room.
struct Line<L> {
    room: L,
    held: VecDeque<RowId>,
}

/// A batch that was taken in.
struct Open<B, R> {
    row: RowId,
    /// `None`: it has ended.
    shared: Option<Arc<BatchShared>>,
    order: Order,
    batch: B,
    /// The first request that has not begun.
    next: usize,
    /// Requests that may be under way at a time.
    width: usize,
    /// It may begin those before this one, as far as is known.
    allowed: usize,
    /// Those that have begun.
    requests: Vec<R>,
}

/// Requests of a batch, from one on, that are not to begin any more.
pub(crate) struct Rest {
    pub(crate) row: RowId,
    pub(crate) batch: Arc<BatchShared>,
    pub(crate) from: usize,
}

impl<B: Default, R> Default for Open<B, R> {
    fn default() -> Self {
        Self {
            row: RowId::default(),
            shared: None,
            order: Order::default(),
            batch: B::default(),
            next: 0,
            width: 0,
            allowed: 0,
            requests: Vec::new(),
        }
    }
}

impl<B, R> Open<B, R> {
    /// The next request to begin; `None`: all have.
    fn next(&self) -> Option<Arrival> {
        let submission = *self.order.list.get(self.next)?;
        Some(Arrival {
            tag: self.row.tag(self.next),
            row: self.row,
            position: self.next,
            submission,
            last: self.next + 1 == self.order.list.len(),
            due: self.order.due,
        })
    }

    /// Whether the next request may begin beside those that are under way.
    fn may_begin(&mut self) -> bool {
        if self.next >= self.allowed {
            let reported = self.shared.as_ref().map_or(0, |batch| batch.reported());
            self.allowed = reported + self.width;
        }
        self.next < self.allowed
    }

    /// The rest of it is not to begin.
    fn give_up(&mut self) -> Option<Rest> {
        let (row, from) = (self.row, self.next);
        self.next = self.order.list.len();
        let batch = self.shared.clone()?;
        Some(Rest { row, batch, from })
    }
}

impl<L, B, R> Default for Intake<L, B, R> {
    fn default() -> Self {
        Self {
            open: Vec::new(),
            current: None,
            lines: Vec::new(),
            untried: 0,
            paced: VecDeque::new(),
            deadline: Instant::MAX,
            ends: VecDeque::new(),
        }
    }
}

impl<L: Copy + PartialEq, B: Default, R> Intake<L, B, R> {
    /// The next request to begin, those first that were held back: `None` once all have been tried. `room` says which room a
    /// request needs; what needs room that others wait for is put behind them.
    pub(crate) fn next(&mut self, post: &Post, room: impl Fn(&Arrival) -> L) -> Option<Arrival> {
        loop {
            let (row, line) = match self.current {
                Some(current) => current,
                None => self.take_turn(post)?,
            };
            self.current = Some((row, line));
            let open = self.open.get_mut(usize::from(row.index))?;
            let Some(arrival) = open.next() else {
                self.current = None;
                continue;
            };
            if !open.may_begin() {
                self.deadline = self.deadline.min(arrival.due.deadline);
                self.paced.push_back(row);
                self.current = None;
                continue;
            }
            if !self.lines.is_empty() {
                let room = room(&arrival);
                let mut others = self.lines.iter_mut().filter(|line| line.room == room);
                if line != Some(room)
                    && let Some(others) = others.next()
                {
                    others.held.push_back(row);
                    self.deadline = self.deadline.min(arrival.due.deadline);
                    self.current = None;
                    continue;
                }
            }
            self.open[usize::from(row.index)].next += 1;
            if arrival.last {
                self.current = None;
            }
            return Some(arrival);
        }
    }

    /// The next batch to begin requests of.
    fn take_turn(&mut self, post: &Post) -> Option<(RowId, Option<L>)> {
        while let Some(line) = self.lines.get_mut(self.untried) {
            match line.held.pop_front() {
                Some(row) => return Some((row, Some(line.room))),
                None => drop(self.lines.remove(self.untried)),
            }
        }
        let open = &mut self.open;
        let mut may_begin = |row: &RowId| open[usize::from(row.index)].may_begin();
        if let Some(place) = self.paced.iter().position(&mut may_begin) {
            return Some((self.paced.remove(place)?, None));
        }
        loop {
            let [tag, ..] = post.ring.pop()?;
            let (row, _) = RowId::from_tag(tag);
            if let Some(batch) = post.batch(row) {
                self.add(row, batch);
                return Some((row, None));
            }
        }
    }

    /// A batch has come.
    fn add(&mut self, row: RowId, batch: Arc<BatchShared>) {
        let index = usize::from(row.index);
        if self.open.len() <= index {
            self.open.resize_with(index + 1, Open::default);
        }
        let open = &mut self.open[index];
        let (order, width) = batch.take_order();
        let mut requests = std::mem::take(&mut open.requests);
        requests.clear();
        *open = Open {
            row,
            shared: Some(batch),
            order,
            width,
            allowed: width,
            requests,
            ..Open::default()
        };
    }

    /// There is no room for what [`Self::next`] gave last.
    pub(crate) fn hold_back(&mut self, room: L, arrival: &Arrival) {
        self.deadline = self.deadline.min(arrival.due.deadline);
        self.open[usize::from(arrival.row.index)].next = arrival.position;
        self.current = None;
        let index = self.lines.iter().position(|line| line.room == room);
        let index = index.unwrap_or_else(|| {
            self.lines.push(Line {
                room,
                held: VecDeque::new(),
            });
            self.lines.len() - 1
        });
        self.lines[index].held.push_front(arrival.row);
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
        let may_begin = |row: &RowId| {
            let open = self.find(*row);
            open.is_some_and(|open| {
                let reported = open.shared.as_ref().map_or(0, |batch| batch.reported());
                open.next < reported + open.width
            })
        };
        self.current.is_some()
            || self.untried < self.lines.len()
            || self.paced.iter().any(may_begin)
    }

    /// Whether something is held back.
    pub(crate) fn holds_any(&self) -> bool {
        self.current.is_some() || !self.lines.is_empty() || !self.paced.is_empty()
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
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Vec<Rest> {
        match self.deadline <= now {
            true => self.take_held(|_, order| order.due.deadline <= now),
            false => Vec::new(),
        }
    }

    /// Takes out what is held back of a batch; `None`: of all.
    pub(crate) fn withdraw(&mut self, row: Option<RowId>) -> Vec<Rest> {
        self.take_held(|held, _| row.is_none_or(|row| row == held))
    }

    fn take_held(&mut self, is_it: impl Fn(RowId, &Order) -> bool) -> Vec<Rest> {
        let Self {
            open,
            current,
            lines,
            paced,
            ..
        } = self;
        let mut taken = Vec::new();
        let mut deadline = Instant::MAX;
        let mut stays = |row: &RowId| {
            let Some(open) = open.get_mut(usize::from(row.index)) else {
                return false;
            };
            let goes = is_it(*row, &open.order);
            match goes {
                true => taken.extend(open.give_up()),
                false => deadline = deadline.min(open.order.due.deadline),
            }
            !goes
        };
        *current = current.filter(|(row, _)| stays(row));
        lines
            .iter_mut()
            .for_each(|line| line.held.retain(&mut stays));
        paced.retain(&mut stays);
        lines.retain(|line| !line.held.is_empty());
        self.deadline = deadline;
        self.look_again();
        taken
    }

    /// What is kept of a batch, if it was taken in and has not ended.
    pub(crate) fn batch(&mut self, row: RowId) -> Option<&mut B> {
        let open = self.open.get_mut(usize::from(row.index))?;
        (open.row == row).then_some(&mut open.batch)
    }

    /// A batch that was taken in and has not ended.
    pub(crate) fn shared(&self, row: RowId) -> Option<&Arc<BatchShared>> {
        self.find(row)?.shared.as_ref()
    }

    /// A request of a batch has begun.
    pub(crate) fn note(&mut self, row: RowId, request: R) {
        if let Some(open) = self.open.get_mut(usize::from(row.index)) {
            open.requests.push(request);
        }
    }

    /// Nothing more is asked about a batch.
    pub(crate) fn close(&mut self, row: RowId) {
        let open = self.open.get_mut(usize::from(row.index));
        if let Some(open) = open.filter(|open| open.row == row) {
            let mut requests = std::mem::take(&mut open.requests);
            requests.clear();
            requests.shrink_to(KEPT_MAX);
            *open = Open {
                requests,
                ..Open::default()
            };
        }
    }

    /// Which requests of a batch have begun.
    pub(crate) fn begun(&self, row: RowId) -> Begun {
        Begun::Before(self.find(row).map_or(0, |open| open.next))
    }

    /// The requests of a batch that have begun.
    pub(crate) fn requests(&self, row: RowId) -> impl Iterator<Item = &R> {
        let open = self.find(row).into_iter();
        open.flat_map(|open| &open.requests)
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use polyrail_core::report::Report;
    use polyrail_core::units::PlanId;
    use polyrail_core::work::{Op, Priority};
    use polyrail_transport::clock::Clock;
    use quickcheck::quickcheck;

    use super::*;
    use crate::config::{LimitsConfig, SendQueueConfig};
    use crate::post::{Due, List, Pulse, Submission};
    use crate::segments::Holds;

    /// Lines by the plan's number.
    type Tested = Intake<u32, (), u64>;

    fn post() -> Post {
        let pulse = Pulse::new(Some(0), Clock::start());
        Post::new(
            LimitsConfig::REQUESTS,
            &SendQueueConfig::default(),
            pulse,
            Arc::default(),
        )
        .unwrap()
    }

    fn submission(line: u32) -> Submission {
        Submission {
            plan: PlanId {
                index: line,
                generation: 1,
            },
            op: Op::Write,
            local_offset: 0,
            remote_offset: 0,
            length: 1,
            through_slots: false,
        }
    }

    /// Submits a batch of requests that need these lines, and may have so many of them under way; 0: all.
    fn submit(post: &Post, lines: &[u32], width: u16, deadline: Instant) -> Arc<BatchShared> {
        let list = List::Once(lines.iter().copied().map(submission).collect());
        let due = Due {
            priority: Priority::Normal,
            deadline,
        };
        let room = post
            .room
            .take(&Clock::start(), width, std::time::Duration::ZERO, || {});
        let room = room.unwrap();
        let make = |row| {
            let batch = BatchShared::new(
                row,
                Holds::default(),
                Order {
                    list,
                    due,
                    sight: None,
                },
                None,
            );
            Arc::new(batch.taking(room))
        };
        post.submit(make).unwrap()
    }

    fn line(arrival: &Arrival) -> u32 {
        arrival.submission.plan.index
    }

    /// Begins what a line that `has_room` is for, and holds back the rest: the batches and positions of what has begun.
    fn pass(
        intake: &mut Tested,
        post: &Post,
        has_room: impl Fn(u32) -> bool,
    ) -> Vec<(RowId, usize)> {
        let mut begun = Vec::new();
        while let Some(arrival) = intake.next(post, line) {
            match has_room(line(&arrival)) {
                true => {
                    intake.note(arrival.row, 0);
                    begun.push((arrival.row, arrival.position));
                }
                false => intake.hold_back(line(&arrival), &arrival),
            }
        }
        begun
    }

    #[test]
    fn who_waits_for_room_holds_up_only_those_who_need_the_same() {
        let (mut intake, post) = (Tested::default(), post());
        let batch = |lines: &[u32]| submit(&post, lines, 0, Instant::MAX).row;
        let one = batch(&[8, 7, 8]);
        let two = batch(&[7]);
        let three = batch(&[8, 8]);
        let eight = |line| line == 8;
        assert_eq!(
            pass(&mut intake, &post, eight),
            [(one, 0), (three, 0), (three, 1)]
        );
        assert!(intake.holds_any() && post.ring.is_empty());
        assert!(!intake.is_ready(), "they have been tried");
        // What comes later stays behind those that wait for the same.
        let four = batch(&[7, 8]);
        assert_eq!(pass(&mut intake, &post, |_| true), []);
        intake.look_again();
        assert!(intake.is_ready());
        assert_eq!(
            pass(&mut intake, &post, |_| true),
            [(one, 1), (one, 2), (two, 0), (four, 0), (four, 1)]
        );
        assert!(!intake.holds_any() && !intake.is_ready());
    }

    #[test]
    fn no_more_of_a_batch_are_under_way_than_it_has_room_for() {
        let (mut intake, post) = (Tested::default(), post());
        let large = submit(&post, &[7; 10], 4, Instant::MAX);
        let small = submit(&post, &[7, 7], 2, Instant::MAX);
        let all = |batch: &BatchShared, positions: std::ops::Range<usize>| {
            let row = batch.row;
            positions
                .map(move |position| (row, position))
                .collect::<Vec<_>>()
        };
        let begun = pass(&mut intake, &post, |_| true);
        assert_eq!(begun, [all(&large, 0..4), all(&small, 0..2)].concat());
        assert!(intake.holds_any() && !intake.is_ready());
        assert!(matches!(intake.begun(large.row), Begun::Before(4)));
        let done = Report::moved(0);
        for position in [2, 0, 1] {
            post.note(&large, position, done);
        }
        // It keeps its room as long as there are others to begin.
        assert_eq!(post.room.load().held, 6);
        assert!(intake.is_ready());
        assert_eq!(pass(&mut intake, &post, |_| true), all(&large, 4..7));
        for position in 3..7 {
            post.note(&large, position, done);
        }
        assert_eq!((post.room.load().held, large.reported()), (5, 7));
        assert_eq!(pass(&mut intake, &post, |_| true), all(&large, 7..10));
        assert!(!intake.holds_any());
    }

    #[test]
    fn what_has_begun_is_known_by_its_position() {
        let (mut intake, post) = (Tested::default(), post());
        let row = submit(&post, &[8, 7, 8], 0, Instant::MAX).row;
        let begun = |intake: &Tested, row| {
            let begun = intake.begun(row);
            [0, 1, 2].map(|position| begun.has(position))
        };
        assert_eq!(begun(&intake, row), [false; 3]);
        pass(&mut intake, &post, |line| line == 8);
        assert_eq!(begun(&intake, row), [true, false, false]);
        assert_eq!(intake.requests(row).count(), 1);
        intake.look_again();
        pass(&mut intake, &post, |_| true);
        assert_eq!(begun(&intake, row), [true; 3]);
        // The next batch in that row has nothing to do with it.
        intake.close(row);
        post.batches().remove(row);
        let next = submit(&post, &[8, 7, 8], 0, Instant::MAX).row;
        assert_eq!((next.index, begun(&intake, next)), (row.index, [false; 3]));
        pass(&mut intake, &post, |_| false);
        assert_eq!(begun(&intake, next), [false; 3]);
    }

    #[test]
    fn what_is_withdrawn_or_overdue_does_not_begin() {
        let (mut intake, post) = (Tested::default(), post());
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let deadlines = [at(5), Instant::MAX, at(9), at(20)];
        let rows = deadlines.map(|deadline| submit(&post, &[7, 7], 0, deadline).row);
        // One that has begun as far as it may.
        let paced = submit(&post, &[8, 8, 8], 1, at(7)).row;
        pass(&mut intake, &post, |line| line == 8);
        let taken =
            |rest: Vec<Rest>| -> Vec<_> { rest.iter().map(|rest| (rest.row, rest.from)).collect() };
        assert_eq!(intake.due(), Some(at(5)));
        assert!(intake.take_overdue(at(4)).is_empty());
        assert_eq!(taken(intake.take_overdue(at(5))), [(rows[0], 0)]);
        assert_eq!(taken(intake.take_overdue(at(7))), [(paced, 1)]);
        assert_eq!(intake.due(), Some(at(9)));
        assert_eq!(taken(intake.withdraw(Some(rows[1]))), [(rows[1], 0)]);
        assert_eq!(taken(intake.withdraw(None)), [(rows[2], 0), (rows[3], 0)]);
        assert!(intake.due().is_none() && !intake.holds_any());
        assert!(pass(&mut intake, &post, |_| true).is_empty());
    }

    quickcheck! {
        /// Whatever lines have room in each pass, and whatever ends in between: each request begins once, those of a batch in
        /// order, and no more are under way than may be.
        fn every_request_begins_once(batches: Vec<(Vec<u8>, u8)>, passes: Vec<(u8, u8)>) -> bool {
            let (mut intake, post) = (Tested::default(), post());
            let batches: Vec<_> = batches.iter().take(20).filter(|(lines, _)| !lines.is_empty()).map(|(lines, width)| {
                let lines: Vec<u32> = lines.iter().map(|line| u32::from(line % 3)).collect();
                let width = 1 + u16::from(*width) % lines.len() as u16;
                (submit(&post, &lines, width, Instant::MAX), usize::from(width), lines.len())
            }).collect();
            let done = Report::moved(0);
            let begun = RefCell::new(Vec::new());
            let mut ended = 0;
            let mut step = |open: u8, ends: usize| {
                begun.borrow_mut().extend(pass(&mut intake, &post, |line| open & 1 << line != 0));
                let begun = begun.borrow();
                let until = (ended + ends).min(begun.len());
                for (row, position) in &begun[ended..until] {
                    post.note(&post.batch(*row).unwrap(), *position, done);
                }
                let under_way = |row: RowId| begun[ended..].iter().filter(|(begun, _)| *begun == row).count();
                let fits = batches.iter().all(|(batch, width, _)| under_way(batch.row) <= *width);
                ended = until;
                intake.look_again();
                fits
            };
            let fits = passes.iter().all(|(open, ends)| step(*open, usize::from(ends % 4)));
            // Then all lines have room, and all ends.
            let goes_on = (0..400).all(|_| step(7, 1_000));
            let begun = begun.borrow();
            fits && goes_on && batches.iter().all(|(batch, _, count)| {
                let positions = begun.iter().filter(|(row, _)| *row == batch.row).map(|(_, position)| *position);
                positions.eq(0..*count)
            })
        }
    }
}
