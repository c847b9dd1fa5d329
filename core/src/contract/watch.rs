//! What a runtime owes core, kept call by call.

use heapless::Vec;

use super::{Breach, Rule};
use crate::orchestrator::{Event, LaneAction};
use crate::report::Report;
use crate::time::{Duration, Instant};
use crate::units::{BatchId, Epoch, LaneId, PeerId, RequestId};
use crate::work::{Completion, LaneFact, LaneLimits, Outcome, PostBatch, Scope, Stop};

/// A timer that is handled so late is told of, however the runtime sleeps.
const LATE_MAX: Duration = Duration::from_millis(100);

/// Which poll tells of lanes, among the four. It is called once in each turn, at least.
pub(super) const LANES: usize = 1;

/// Memory of a checker: one for each lane, and for each request, batch and work that is out. As many again let it tell what is
/// late from what is wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Row(Kept);

impl Row {
    /// For the array that a caller hands in.
    pub const EMPTY: Self = Self(Kept::Nothing);
}

#[derive(Clone, Copy, Debug, Default)]
enum Kept {
    #[default]
    Nothing,
    Lane(Lane),
    Work(Work),
    Request(RequestId, u64, Stage),
    /// A batch that has ended and was not taken, and the caller's word for it.
    Batch(BatchId, u64),
}

/// A lane since it was last asked to open.
#[derive(Clone, Copy, Debug)]
struct Lane {
    id: LaneId,
    epoch: Epoch,
    limits: LaneLimits,
    /// Asked to open, when and by when.
    opening: Option<(Instant, Instant)>,
    /// It was answered that it is open; and in an epoch before.
    is_open: bool,
    was_open: bool,
    /// Since when it is Full.
    full: Option<Instant>,
    /// Since when a fence of it is asked for, here.
    fencing: Option<Instant>,
    /// Since when one is asked for, of this peer.
    asking: Option<(Instant, PeerId)>,
    /// It has been asked to fence, or has said that it failed.
    has_ended: bool,
    /// It has said that it failed.
    has_failed: bool,
    /// When it was said to be broken, with no post out.
    broken: Option<Instant>,
    /// Works handed out and not handed back.
    posted: u32,
    /// The last of them that has completed, counted from 1.
    completed: u32,
}

/// A work that was handed out.
#[derive(Clone, Copy, Debug)]
struct Work {
    lane: LaneId,
    epoch: Epoch,
    cookie: u64,
    /// Its place among the lane's, counted from 1.
    place: u32,
    signal: bool,
    since: Instant,
    /// It has completed, or else its lane has ended. `None`: it is out.
    end: Option<bool>,
}

/// How a request stands with the runtime.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Open,
    /// The runtime was told that it has ended.
    Told,
    Taken(Report),
}

/// The post that is out.
#[derive(Clone, Copy, Debug)]
struct Posting {
    lane: LaneId,
    epoch: Epoch,
    number: u32,
    count: usize,
    since: Instant,
}

/// What it needs to know of the core beside the calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct About {
    pub(super) worker: u16,
    pub(super) lanes: usize,
    pub(super) fence_timeout: Duration,
}

/// See the [module](super).
#[derive(Debug)]
pub(super) struct Watch<'a> {
    about: About,
    rows: &'a mut [Row],
    /// The first row that may be used for something new.
    next: usize,
    told: Vec<Breach, { Rule::ALL.len() }>,
    pub(super) now: Instant,
    /// A timer that was due when the present turn began, until it is handled.
    due: Option<Instant>,
    /// A turn has ended since then.
    is_passed_over: bool,
    /// What each poll had to say when timers were last handled, until it has said all.
    unsaid: [bool; 4],
    turned_at: Instant,
    posting: Option<Posting>,
    /// Nothing is being broken on purpose.
    pub(super) is_calm: bool,
}

impl<'a> Watch<'a> {
    pub(super) fn new(about: About, rows: &'a mut [Row]) -> Self {
        rows.fill(Row::EMPTY);
        Self {
            about,
            rows,
            next: 0,
            told: Vec::new(),
            now: Instant::ZERO,
            due: None,
            is_passed_over: false,
            unsaid: [false; 4],
            turned_at: Instant::ZERO,
            posting: None,
            is_calm: false,
        }
    }

    /// Breaches so far, one of each clause.
    pub(super) fn told(&self) -> &[Breach] {
        &self.told
    }

    // What is told.

    pub(super) fn tell(&mut self, rule: Rule, lane: Option<LaneId>, number: u64, span: Duration) {
        if let Some(breach) = self.told.iter_mut().find(|breach| breach.rule == rule) {
            breach.times = breach.times.saturating_add(1);
            return;
        }
        let epoch = lane.and_then(|id| self.lane(id)).map(|lane| lane.epoch);
        let breach = Breach {
            rule,
            at: self.now,
            lane,
            epoch: epoch.unwrap_or_default(),
            number,
            span,
            times: 1,
        };
        log::warn!("{breach}");
        let _ = self.told.push(breach);
    }

    pub(super) fn has_told(&self, rule: Rule) -> bool {
        self.told.iter().any(|breach| breach.rule == rule)
    }

    fn tell_of(&mut self, rule: Rule, lane: LaneId, number: u64) {
        self.tell(rule, Some(lane), number, Duration::ZERO);
    }

    // Rows.

    fn lane(&mut self, id: LaneId) -> Option<&mut Lane> {
        self.rows.iter_mut().find_map(|row| match &mut row.0 {
            Kept::Lane(lane) if lane.id == id => Some(lane),
            _ => None,
        })
    }

    /// Works of a lane, of any epoch.
    fn works(&mut self, lane: LaneId) -> impl Iterator<Item = &mut Work> {
        self.rows
            .iter_mut()
            .filter_map(move |row| match &mut row.0 {
                Kept::Work(work) if work.lane == lane => Some(work),
                _ => None,
            })
    }

    /// The work of a lane that has been out for longest.
    fn oldest_out(&mut self, lane: LaneId) -> Option<Work> {
        let out = self.works(lane).filter(|work| work.end.is_none());
        out.map(|work| *work).min_by_key(|work| work.place)
    }

    /// Whether works are out on a lane.
    pub(super) fn is_busy(&mut self, lane: LaneId) -> bool {
        self.oldest_out(lane).is_some()
    }

    /// How a request has ended, once it is taken.
    pub(super) fn report(&self, id: RequestId) -> Option<Report> {
        self.rows.iter().find_map(|row| match row.0 {
            Kept::Request(request, _, Stage::Taken(report)) if request == id => Some(report),
            _ => None,
        })
    }

    /// Whether a request has ended, and the runtime was told so, and has not taken it.
    pub(super) fn is_told(&self, id: RequestId) -> bool {
        let is_it =
            |row: &Row| matches!(row.0, Kept::Request(other, _, Stage::Told) if other == id);
        self.rows.iter().any(is_it)
    }

    /// Keeps something in a free row, or else in one whose content has ended.
    fn keep(&mut self, kept: Kept) {
        let is_free = |row: &Row| match row.0 {
            Kept::Nothing => true,
            Kept::Work(work) => work.end.is_some(),
            _ => false,
        };
        // Who submitted it may not have looked yet.
        let is_taken = |row: &Row| matches!(row.0, Kept::Request(_, _, Stage::Taken(_)));
        let found = self.find(is_free).or_else(|| self.find(is_taken));
        match found.and_then(|index| self.rows.get_mut(index)) {
            Some(row) => *row = Row(kept),
            None => self.tell(Rule::RowsUsedUp, None, 0, Duration::ZERO),
        }
    }

    /// A row that is so: the one that was used longest ago, as far as that is known.
    fn find(&mut self, is_so: impl Fn(&Row) -> bool) -> Option<usize> {
        let later = self.rows.iter().skip(self.next).position(&is_so);
        let later = later.map(|index| index + self.next);
        let found = later.or_else(|| self.rows.iter().position(&is_so))?;
        self.next = found + 1;
        Some(found)
    }

    // Calls with facts.

    /// A call with the time. `due`: of core's timer before it.
    pub(super) fn time(&mut self, now: Instant, due: Option<Instant>) {
        if now < self.now {
            let back = self.now.since(now);
            self.tell(Rule::TimeWentBack, None, 0, back);
        } else if now > self.now {
            self.now = now;
            self.due = self.due.or(due.filter(|due| *due <= now));
        }
    }

    pub(super) fn posted(&mut self, accepted: usize, stop: Stop) {
        let Some(posting) = self.posting.take() else {
            return;
        };
        let Posting { lane, epoch, .. } = posting;
        if accepted > posting.count || (stop == Stop::All && accepted < posting.count) {
            self.tell_of(Rule::PostMiscounted, lane, accepted as u64);
        }
        let (count, now) = (posting.count as u32, self.now);
        let kept = match stop {
            Stop::Unknown => count,
            _ => u32::try_from(accepted).map_or(count, |accepted| accepted.min(count)),
        };
        let Some(row) = self.lane(lane).filter(|lane| lane.epoch == epoch) else {
            return;
        };
        row.posted -= count - kept;
        row.has_failed |= matches!(stop, Stop::Rejected(_) | Stop::Unknown);
        row.has_ended |= row.has_failed;
        row.full = match stop {
            Stop::Full if accepted == 0 => row.full.or(Some(now)),
            Stop::Full => Some(now),
            _ => None,
        };
        let last = row.posted;
        for row in &mut *self.rows {
            if let Kept::Work(work) = row.0
                && (work.lane, work.epoch) == (lane, epoch)
                && work.place > last
            {
                *row = Row::EMPTY;
            }
        }
    }

    /// Whether a lane can be this worker's; says so if it cannot.
    fn is_lane(&mut self, id: LaneId) -> bool {
        let is_lane = id.worker() == self.about.worker && id.rail().index() < self.about.lanes;
        if !is_lane {
            self.tell_of(Rule::LaneUnknown, id, 0);
        }
        is_lane
    }

    pub(super) fn completed(&mut self, said: &Completion) {
        let Completion { lane, epoch, .. } = *said;
        if !self.is_lane(lane) {
            return;
        }
        if said.at > self.now {
            let ahead = said.at.since(self.now);
            self.tell(Rule::CompletedInFuture, Some(lane), said.cookie, ahead);
        }
        // It was opened before anybody looked.
        let Some(present) = self.lane(lane).map(|lane| lane.epoch) else {
            return;
        };
        let named = |work: &&mut Work| work.cookie == said.cookie;
        let meant = self
            .works(lane)
            .find(|work| work.epoch == epoch && named(work));
        let before = meant.map(|work| (*work, work.end.replace(true)));
        let is_out = |work: &mut Work| work.end.is_none() && named(&work);
        match before {
            Some((work, None)) => self.ended(said, work),
            Some((_, Some(true))) => self.tell_of(Rule::CompletedTwice, lane, said.cookie),
            // It is late: its lane has ended.
            Some((_, Some(false))) => {}
            None if epoch > present || self.works(lane).any(is_out) => {
                self.tell_of(Rule::EpochWrong, lane, epoch.0.into());
            }
            // Of an older epoch it may just be late, too: what was known of that may be forgotten.
            None if epoch < present || self.has_told(Rule::RowsUsedUp) => {}
            None => self.tell_of(Rule::CompletedUnknown, lane, said.cookie),
        }
    }

    /// A work that was out has completed.
    fn ended(&mut self, said: &Completion, work: Work) {
        let Some(lane) = self.lane(said.lane).filter(|lane| lane.epoch == said.epoch) else {
            return;
        };
        lane.full = None;
        lane.completed = lane.completed.max(work.place);
        let has_failed = said.outcome != Outcome::Success;
        lane.has_failed |= has_failed;
        lane.has_ended |= has_failed;
        let (covers, broken) = (lane.limits.covers, lane.broken);
        if !has_failed && broken.is_some_and(|broken| said.at <= broken) {
            self.tell_of(Rule::BrokenFirst, said.lane, said.cookie);
        }
        let covered = |other: &&mut Work| {
            other.epoch == work.epoch && other.place < work.place && !other.signal
        };
        if covers {
            for other in self.works(said.lane).filter(covered) {
                other.end = Some(true);
            }
        }
    }

    pub(super) fn fact(&mut self, id: LaneId, epoch: Epoch, fact: LaneFact) {
        if !self.is_lane(id) {
            return;
        }
        let (now, is_posting) = (self.now, self.posting.is_some());
        // It was opened before anybody looked.
        let Some(lane) = self.lane(id) else {
            return;
        };
        if lane.epoch != epoch {
            // What is of an older one is late.
            if lane.epoch < epoch {
                self.tell_of(Rule::EpochWrong, id, epoch.0.into());
            }
            return;
        }
        match fact {
            LaneFact::Opened { .. } if lane.opening.is_none() => {
                // One that was given up meanwhile is late.
                if lane.is_open || lane.has_failed {
                    self.tell_of(Rule::OpenedTwice, id, 0);
                }
            }
            LaneFact::Opened { limits } => {
                (lane.opening, lane.is_open) = (None, true);
                lane.limits = limits;
            }
            LaneFact::OpenFailed(_) => {
                lane.opening = None;
                (lane.has_failed, lane.has_ended) = (true, true);
            }
            LaneFact::Writable => lane.full = None,
            LaneFact::Broken(_) => {
                lane.opening = None;
                (lane.has_failed, lane.has_ended) = (true, true);
                lane.broken = lane.broken.or((!is_posting).then_some(now));
            }
            LaneFact::Fenced { .. } if !lane.has_ended => {
                self.tell_of(Rule::FencedUnasked, id, 0);
            }
            LaneFact::Fenced { scope, .. } => {
                lane.answered(scope);
                if scope == Scope::Local {
                    self.end_works(id);
                }
            }
            LaneFact::Unfenceable { scope } => lane.answered(scope),
            LaneFact::PortActive | LaneFact::Crowded => {}
        }
    }

    /// What is out on a lane ends with it.
    fn end_works(&mut self, lane: LaneId) {
        let out = self.works(lane).filter(|work| work.end.is_none());
        out.for_each(|work| work.end = Some(false));
    }

    pub(super) fn peer_fenced(&mut self, id: LaneId, epoch: Epoch, delivered: u32) {
        if !self.is_lane(id) {
            return;
        }
        let Some(lane) = self.lane(id).filter(|lane| lane.epoch <= epoch) else {
            return;
        };
        let counts = lane.limits.counts && lane.epoch == epoch;
        let too_many = counts && delivered > lane.posted;
        let is_future = epoch > lane.epoch;
        lane.answered(Scope::Remote);
        if is_future {
            self.tell_of(Rule::EpochWrong, id, epoch.0.into());
        } else if too_many {
            self.tell_of(Rule::CountedTooMany, id, delivered.into());
        }
    }

    /// It answers nothing any more.
    pub(super) fn peer_gone(&mut self, peer: PeerId) {
        for row in &mut *self.rows {
            if let Kept::Lane(lane) = &mut row.0
                && lane.asking.is_some_and(|(_, asked)| asked == peer)
            {
                lane.asking = None;
            }
        }
    }

    /// The timers are handled now. `unsaid`: what each poll has to say after that.
    pub(super) fn turn(&mut self, unsaid: [bool; 4]) {
        if self.due.is_some_and(|due| self.now.since(due) > LATE_MAX) {
            self.late();
        }
        (self.due, self.is_passed_over) = (None, false);
        let is_posting = self.posting.is_some();
        self.overdue(Some(self.about.fence_timeout));
        // While a post is out nothing need be drained.
        if is_posting || self.now == self.turned_at {
            return;
        }
        self.not_drained();
        self.turned_at = self.now;
        self.unsaid = unsaid;
    }

    fn not_drained(&mut self) {
        for (poll, unsaid) in (0..).zip(core::mem::take(&mut self.unsaid)) {
            if unsaid {
                self.tell(Rule::NotDrained, None, poll, Duration::ZERO);
            }
        }
    }

    /// Tells of what has not been answered within `patience`; or at all, if there is none.
    fn overdue(&mut self, patience: Option<Duration>) {
        let now = self.now;
        // It is asked for a little after core has begun to wait.
        let patience = patience.unwrap_or_default();
        let patience = patience.minus(patience.divided_by(8));
        let late = |since: Instant| Some(now.since(since)).filter(|span| *span >= patience);
        let is_patient = patience > Duration::ZERO;
        if let Some(posting) = self.posting
            && let Some(span) = late(posting.since)
        {
            self.posting = None;
            let number = posting.number.into();
            self.tell(Rule::PostUnanswered, Some(posting.lane), number, span);
        }
        for index in 0..self.rows.len() {
            let Some(Row(Kept::Lane(lane))) = self.rows.get(index).copied() else {
                continue;
            };
            let mut after = lane;
            let id = Some(lane.id);
            if let Some((since, by)) = lane.opening
                && (by <= now || !is_patient)
            {
                after.opening = None;
                // One that has been open may be on a link that is dark now, and is left to core's timer.
                if self.is_calm || !lane.was_open || !is_patient {
                    self.tell(Rule::OpenUnanswered, id, 0, now.since(since));
                }
            }
            if let Some(span) = lane.fencing.and_then(late) {
                after.fencing = None;
                self.tell(Rule::FenceUnanswered, id, 0, span);
            }
            if let Some((since, peer)) = lane.asking
                && let Some(span) = late(since)
            {
                after.asking = None;
                self.tell(Rule::MessageUnanswered, id, peer.0.into(), span);
            }
            if let Some(span) = lane.full.and_then(late)
                && !self.is_busy(lane.id)
            {
                after.full = None;
                self.tell(Rule::FullForEver, id, 0, span);
            }
            if let Some(row) = self.rows.get_mut(index) {
                *row = Row(Kept::Lane(after));
            }
        }
    }

    // Polls.

    /// Works are asked for. A timer may fall due while a turn goes on, and is handled in the next one.
    pub(super) fn drains(&mut self) {
        if self.is_passed_over {
            self.late();
        }
    }

    /// The timer that is due has not been handled in time.
    fn late(&mut self) {
        if let Some(due) = self.due.take() {
            self.is_passed_over = false;
            self.tell(Rule::TimerLate, None, 0, self.now.since(due));
        }
    }

    /// A poll of these has given `None`.
    pub(super) fn drained(&mut self, poll: usize) {
        self.is_passed_over |= poll == LANES && self.due.is_some();
        if self.posting.is_none()
            && let Some(unsaid) = self.unsaid.get_mut(poll)
        {
            *unsaid = false;
        }
    }

    pub(super) fn works_out(&mut self, number: u32, batch: &PostBatch) {
        let (id, epoch, since) = (batch.lane, batch.epoch, self.now);
        self.posting = Some(Posting {
            lane: id,
            epoch,
            number,
            count: batch.works.len(),
            since,
        });
        if self.lane(id).is_none() {
            let limits = LaneLimits {
                covers: true,
                ..LaneLimits::new(1, 1)
            };
            self.keep(Kept::Lane(Lane {
                is_open: true,
                limits,
                ..Lane::new(id, epoch)
            }));
        }
        let count = batch.works.len() as u32;
        let first = self.lane(id).map_or(1, |lane| {
            lane.posted += count;
            lane.posted + 1 - count
        });
        for (place, work) in (first..).zip(&batch.works) {
            self.keep(Kept::Work(Work {
                lane: id,
                epoch,
                cookie: work.cookie,
                place,
                signal: work.signal,
                since,
                end: None,
            }));
        }
    }

    pub(super) fn action(&mut self, action: LaneAction) {
        let now = self.now;
        match action {
            LaneAction::Open {
                lane: id,
                epoch,
                by,
            } => {
                self.end_works(id);
                let before = self.lane(id).map(|lane| lane.is_open || lane.was_open);
                let fresh = Lane {
                    opening: Some((now, by)),
                    was_open: before.unwrap_or_default(),
                    ..Lane::new(id, epoch)
                };
                match self.lane(id) {
                    Some(lane) => *lane = fresh,
                    None => self.keep(Kept::Lane(fresh)),
                }
            }
            LaneAction::Fence { lane: id, .. } => {
                let (oldest, is_calm) = (self.oldest_out(id), self.is_calm);
                let Some(lane) = self.lane(id) else {
                    return;
                };
                let has_failed = lane.has_failed;
                lane.has_ended = true;
                lane.fencing = Some(now);
                // Core has waited for it in vain, although the lane goes on.
                let lost = oldest.filter(|work| is_calm || work.place < lane.completed);
                if let Some(work) = lost.filter(|_| !has_failed) {
                    let span = now.since(work.since);
                    self.tell(Rule::NeverCompleted, Some(id), work.cookie, span);
                }
            }
            LaneAction::Close { lane: id, .. } => {
                if let Some(lane) = self.lane(id) {
                    (lane.opening, lane.has_ended) = (None, true);
                }
            }
        }
    }

    pub(super) fn asks(&mut self, peer: PeerId, lane: LaneId) {
        let now = self.now;
        if let Some(lane) = self.lane(lane) {
            lane.has_ended = true;
            lane.asking = lane.asking.or(Some((now, peer)));
        }
    }

    pub(super) fn event(&mut self, event: Event) {
        match event {
            Event::RequestDone { request, .. } => self.request(request, Stage::Told),
            Event::BatchDone { batch, tag } => self.keep(Kept::Batch(batch, tag)),
            _ => {}
        }
    }

    // Requests.

    pub(super) fn submitted(&mut self, id: RequestId, tag: u64) {
        self.keep(Kept::Request(id, tag, Stage::Open));
    }

    fn request(&mut self, id: RequestId, now: Stage) {
        for row in &mut *self.rows {
            if let Kept::Request(request, _, stage) = &mut row.0
                && *request == id
            {
                *stage = now;
            }
        }
    }

    pub(super) fn took(&mut self, id: RequestId, report: Report) {
        self.request(id, Stage::Taken(report));
    }

    pub(super) fn took_batch(&mut self, id: BatchId) {
        for row in &mut *self.rows {
            if matches!(row.0, Kept::Batch(batch, _) if batch == id) {
                *row = Row::EMPTY;
            }
        }
    }

    /// Nothing has been under way for a while, so that no lane should be Full.
    pub(super) fn nothing_is_full(&mut self) {
        for index in 0..self.rows.len() {
            if let Some(Row(Kept::Lane(lane))) = self.rows.get(index).copied()
                && let Some(since) = lane.full
                && !self.is_busy(lane.id)
            {
                let span = self.now.since(since);
                self.tell(Rule::FullForEver, Some(lane.id), 0, span);
            }
        }
    }

    /// The runtime has ended: what is owed now stays so.
    pub(super) fn end(&mut self) {
        let is_open = |row: &Row| matches!(row.0, Kept::Request(_, _, Stage::Open));
        let is_stuck = self.rows.iter().any(is_open);
        let now = self.now;
        if is_stuck {
            self.overdue(None);
            self.not_drained();
        } else {
            // Lanes may still be opened, or fenced, for what comes next.
            self.overdue(Some(self.about.fence_timeout));
        }
        if let Some(posting) = self.posting.take() {
            let (lane, number) = (Some(posting.lane), posting.number.into());
            self.tell(Rule::PostUnanswered, lane, number, now.since(posting.since));
        }
        self.nothing_is_full();
        for index in 0..self.rows.len() {
            match self.rows.get(index).map(|row| row.0) {
                Some(Kept::Request(_, tag, Stage::Told) | Kept::Batch(_, tag)) => {
                    self.tell(Rule::NotTaken, None, tag, Duration::ZERO);
                }
                Some(Kept::Work(work)) if is_stuck && work.end.is_none() => {
                    let span = now.since(work.since);
                    self.tell(Rule::NeverCompleted, Some(work.lane), work.cookie, span);
                }
                _ => {}
            }
        }
    }
}

impl Lane {
    fn new(id: LaneId, epoch: Epoch) -> Self {
        Self {
            id,
            epoch,
            limits: LaneLimits::new(1, 1),
            opening: None,
            is_open: false,
            was_open: false,
            full: None,
            fencing: None,
            asking: None,
            has_ended: false,
            has_failed: false,
            broken: None,
            posted: 0,
            completed: 0,
        }
    }

    /// A fence of it holds, or cannot be given.
    fn answered(&mut self, scope: Scope) {
        match scope {
            Scope::Local => self.fencing = None,
            Scope::Remote => self.asking = None,
        }
    }
}
