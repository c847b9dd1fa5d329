//! Room: what a submission takes before its worker gets it, and the reports of its requests give back.
//!
//! As in an engine: each worker has [`Credits`] for so many requests, who finds too few waits in line and is woken by what comes
//! back, or by its deadline and by nothing else. Under a split policy each lane has credits for as many works as it holds, and a
//! batch goes over in chunks, each to the lane that the policy names.

use std::collections::{BTreeMap, VecDeque};

use polyrail_core::rail::health::RailState;
use polyrail_core::send_queue::credit::{CreditLimits, Credits, Grant, Refused, Waiter};
use polyrail_core::send_queue::diagnostics::Diagnosis;
use polyrail_core::time::Instant;
use polyrail_core::units::RailId;

use super::World;
use super::agenda::What;
use crate::setup::{PlanOf, Setup};
use crate::spans::Spans;
use crate::split::{SplitPolicy, shares};

/// Works of a chunk, at most: what the rework's signal interval and one post come to.
const CHUNK_WORKS: u16 = 32;

/// What is counted of queues, for scenarios that are about them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Times that somebody was told that there is no room.
    pub(crate) refused: u64,
    /// Times that a submitter waited for room, and how long in all.
    pub(crate) waits: u64,
    pub(crate) waited_ns: u64,
    /// Times that a lane could take nothing more, and how long in all.
    pub(crate) fills: u64,
    pub(crate) filled_ns: u64,
    pub(crate) works: u64,
    pub(crate) completions: u64,
    /// Lanes that ended.
    pub(crate) ended: u64,
    /// Spread of the depths times nanoseconds, and the nanoseconds in which there was any depth.
    pub(crate) spread: (f64, u64),
    /// Works on each rail, or admitted to it, times nanoseconds.
    pub(crate) depths: Spans,
    /// Why the first one was refused.
    pub(crate) diagnosis: Option<String>,
}

/// Requests that have their room, on their way to a worker.
pub(super) struct Chunk {
    pub(super) requests: u32,
    /// Index of their plan in their engine.
    pub(super) plan: u32,
    /// The rest of the batch is not coming.
    pub(super) last: bool,
    room: Option<usize>,
    grant: Grant,
}

/// A batch that asks for room.
#[derive(Default)]
struct Asking<'a> {
    /// Since when it waits.
    since: Option<u64>,
    deadline: u64,
    waiter: Option<Waiter<'a>>,
    /// It is woken already.
    is_roused: bool,
    /// Requests to be admitted, to this lane of its plan or to any.
    left: VecDeque<(Option<usize>, u32)>,
    /// Some of it has been handed over.
    has_begun: bool,
    /// Batches before it.
    number: u64,
}

/// All room there is.
pub(super) struct Rooms<'a> {
    split: Option<SplitPolicy>,
    /// By worker; under a split policy by lane. None: nobody asks for room.
    credits: &'a [Credits],
    /// What is out of each, kept beside core.
    held: Vec<u64>,
    /// By submitter.
    asking: Vec<Asking<'a>>,
    pub(super) chunks: Vec<VecDeque<Chunk>>,
    /// Submitters that wait, in the order in which they came.
    line: Vec<u32>,
    /// What each request holds, by its number, and where.
    grants: BTreeMap<u64, (usize, Grant)>,
    pub(super) seen: Seen,
    /// By lane: since when it has been full.
    full_since: Vec<Option<u64>>,
}

impl Setup {
    /// The credits that submissions take.
    pub(super) fn credits(&self, split: Option<SplitPolicy>) -> Vec<Credits> {
        let credits = |works: u16| {
            let limits = CreditLimits {
                max_works: works,
                resume_watermark_works: self.room.admission_resume_watermark_works,
            };
            Credits::new(limits)
        };
        let workers = usize::from(*self.engine.workers.get_ref());
        match (split, self.room.requests) {
            (None, 0) => Vec::new(),
            (None, requests) => (0..self.workers()).map(|_| credits(requests)).collect(),
            (Some(_), _) => {
                let lanes = self
                    .engines
                    .iter()
                    .flat_map(|engine| (0..workers).flat_map(|_| &engine.rails).copied());
                let depth = |rail: usize| self.devices[self.rails[rail].from].queue_depth;
                lanes.map(|rail| credits(depth(rail))).collect()
            }
        }
    }

    /// The rails that a split policy shares a plan's requests among: those of the best transport that stand in for none.
    pub(super) fn lanes_of(&self, plan: u32) -> Vec<(u16, u8)> {
        let plan = &self.plans[plan as usize];
        let rail = |number: u16| self.rails[self.engines[plan.engine].rails[usize::from(number)]];
        let best = plan.rails.iter().map(|row| rail(row.0).rank).min();
        let rails = plan.rails.iter().filter(|row| {
            let rail = rail(row.0);
            Some(rail.rank) == best && rail.stands_in_for.is_none()
        });
        rails.copied().collect()
    }

    /// The plan that has this rail alone.
    fn plan_of_lane(&self, plan: u32, rail: (u16, u8)) -> PlanOf {
        let PlanOf { engine, peer, .. } = self.plans[plan as usize];
        PlanOf {
            engine,
            peer,
            rails: vec![rail],
        }
    }

    /// The same with a plan for each rail alone besides.
    pub(crate) fn split_by_lane(&self) -> Self {
        let mut setup = self.clone();
        for submitter in &self.submitters {
            for rail in self.lanes_of(submitter.plan) {
                let plan = self.plan_of_lane(submitter.plan, rail);
                if !setup.plans.contains(&plan) {
                    setup.plans.push(plan);
                }
            }
        }
        setup
    }
}

impl<'a> Rooms<'a> {
    pub(super) fn new(
        setup: &Setup,
        split: Option<SplitPolicy>,
        credits: &'a [Credits],
        lanes: usize,
    ) -> Self {
        let count = setup.submitters.len();
        Self {
            split,
            credits,
            held: vec![0; credits.len()],
            asking: (0..count).map(|_| Asking::default()).collect(),
            chunks: (0..count).map(|_| VecDeque::new()).collect(),
            line: Vec::new(),
            grants: BTreeMap::new(),
            seen: Seen {
                depths: Spans::new(setup.rails.len()),
                ..Seen::default()
            },
            full_since: vec![None; lanes],
        }
    }
}

impl<'a> World<'a> {
    /// A submitter has a batch of so many: asks for its room.
    pub(super) fn ask(&mut self, index: u32, requests: u32, now: u64) {
        let submitter = &self.setup.submitters[index as usize];
        if self.rooms.credits.is_empty() {
            let chunk = Chunk {
                requests,
                plan: submitter.plan,
                last: true,
                room: None,
                grant: Grant::default(),
            };
            return self.hand_over(index, chunk, now);
        }
        let lanes = self.setup.lanes_of(submitter.plan).len() as u32;
        let asking = &mut self.rooms.asking[index as usize];
        asking.number += 1;
        asking.has_begun = false;
        asking.deadline = now + self.setup.room.admission_timeout_us * 1_000;
        asking.left = match self.rooms.split {
            Some(SplitPolicy::Static) => shares(requests, lanes, asking.number - 1)
                .map(|(lane, count)| (Some(lane), count))
                .collect(),
            _ => [(None, requests)].into(),
        };
        self.look(index, now);
    }

    /// A submitter looks whether there is room.
    pub(super) fn looks(&mut self, index: u32) {
        let asking = &mut self.rooms.asking[index as usize];
        asking.is_roused = false;
        if asking.since.is_some() {
            self.look(index, self.now);
        }
    }

    fn look(&mut self, index: u32, now: u64) {
        let got = match self.rooms.split {
            None => self.take_whole(index, now),
            Some(policy) => self.take_chunks(index, policy, now),
        };
        let waits = got == Some(false) && self.setup.room.admission;
        let asking = &mut self.rooms.asking[index as usize];
        match (waits && now < asking.deadline, asking.since) {
            (true, None) => {
                asking.since = Some(now);
                let deadline = asking.deadline;
                self.rooms.seen.waits += 1;
                self.rooms.line.push(index);
                self.agenda
                    .enter(deadline, What::Looks { submitter: index });
            }
            (true, Some(_)) => {}
            (false, since) => {
                if let Some(since) = since {
                    asking.since = None;
                    self.rooms.seen.waited_ns += now.saturating_sub(since);
                    self.rooms.line.retain(|other| *other != index);
                }
                if got != Some(true) {
                    self.refuse(index, now);
                }
            }
        }
    }

    /// As an engine does it: all or nothing. `Some(false)`: not now; `None`: never.
    fn take_whole(&mut self, index: u32, now: u64) -> Option<bool> {
        let room = self.setup.submitters[index as usize].worker;
        let credits: &'a Credits = &self.rooms.credits[room];
        let asking = &mut self.rooms.asking[index as usize];
        let requests: u32 = asking.left.iter().map(|(_, count)| count).sum();
        let works = u16::try_from(requests).unwrap_or(u16::MAX);
        let answer = match &mut asking.waiter {
            Some(waiter) => waiter.poll(Instant::from_nanos(now)),
            None => match credits.reserve(works) {
                Err(Refused::Full { .. }) if self.setup.room.admission => {
                    let deadline = Instant::from_nanos(asking.deadline);
                    let waiter = asking.waiter.insert(credits.waiter(works, deadline));
                    waiter.poll(Instant::from_nanos(now))
                }
                answer => answer,
            },
        };
        match answer {
            Ok(grant) => {
                asking.waiter = None;
                asking.left.clear();
                let plan = self.setup.submitters[index as usize].plan;
                let chunk = Chunk {
                    requests,
                    plan,
                    last: true,
                    room: Some(room),
                    grant,
                };
                self.hand_over(index, chunk, now);
                self.rouse(room);
                Some(true)
            }
            Err(Refused::Full { .. }) if self.setup.room.admission => Some(false),
            Err(refused) => {
                asking.waiter = None;
                self.rouse(room);
                let at = Instant::from_nanos(now);
                let diagnosis = Diagnosis::of(at, credits, works, &refused);
                let seen = &mut self.rooms.seen.diagnosis;
                *seen = seen.take().or(diagnosis.map(|why| why.to_string()));
                None
            }
        }
    }

    /// A worker looks for news, as whoever waits for its room would know.
    pub(super) fn polled(&mut self, worker: u32, now: Instant) {
        if self.rooms.split.is_none()
            && let Some(credits) = self.rooms.credits.get(worker as usize)
        {
            credits.polled(now);
        }
    }

    /// As the rework's executor does it: chunk by chunk, as long as a lane has room. `Some(false)`: some are left.
    fn take_chunks(&mut self, index: u32, policy: SplitPolicy, now: u64) -> Option<bool> {
        let submitter = &self.setup.submitters[index as usize];
        let lanes = self.setup.lanes_of(submitter.plan);
        let first = self.first_lane[submitter.worker] as usize;
        let slice_bytes = u64::from(self.setup.limits.slice_bytes);
        let works_each = submitter.block.div_ceil(slice_bytes);
        let mut refused = 0;
        while let Some((own, left)) = self.rooms.asking[index as usize].left.pop_front() {
            let open = lanes.iter().enumerate().filter(|(place, row)| {
                own.map_or_else(
                    || self.is_healthy(submitter.engine, row.0),
                    |own| own == *place,
                )
            });
            let load = |(place, row): (usize, &(u16, u8))| {
                let at = self.rooms.credits[first + usize::from(row.0)].snapshot();
                (place, at.held_works, at.max_works)
            };
            let chosen = policy.choose(open.map(load));
            // Without one that is healthy all wait together.
            let place = chosen.or(own).unwrap_or(0);
            let (rail, tier) = lanes[place];
            let room = first + usize::from(rail);
            let credits = &self.rooms.credits[room];
            let at = credits.snapshot();
            let most = match policy {
                SplitPolicy::Capacity => CHUNK_WORKS.min(at.free_works()),
                SplitPolicy::Static | SplitPolicy::LeastLoaded => CHUNK_WORKS,
            };
            let most = u64::from(most.min(at.max_works));
            let requests = (most / works_each).clamp(1, u64::from(left)) as u32;
            let works = (u64::from(requests) * works_each).min(u64::from(at.max_works)) as u16;
            let Ok(grant) = credits.reserve(works) else {
                let asking = &mut self.rooms.asking[index as usize];
                refused += 1;
                if own.is_none() {
                    asking.left.push_front((own, left));
                    return Some(false);
                }
                asking.left.push_back((own, left));
                if refused > asking.left.len() {
                    return Some(false);
                }
                continue;
            };
            refused = 0;
            let asking = &mut self.rooms.asking[index as usize];
            if left > requests {
                asking.left.push_back((own, left - requests));
            }
            let plan = self.setup.plan_of_lane(submitter.plan, (rail, tier));
            let plan = self.setup.plans.iter().position(|known| *known == plan)?;
            let chunk = Chunk {
                requests,
                plan: plan as u32,
                last: asking.left.is_empty(),
                room: Some(room),
                grant,
            };
            self.hand_over(index, chunk, now);
        }
        Some(true)
    }

    fn is_healthy(&self, engine: usize, rail: u16) -> bool {
        let view = self.shared[engine].view(RailId(rail));
        view.is_none_or(|view| view.state == RailState::Healthy)
    }

    /// A chunk that has its room goes to the worker.
    fn hand_over(&mut self, index: u32, chunk: Chunk, now: u64) {
        let worker = self.setup.submitters[index as usize].worker;
        self.rooms.asking[index as usize].has_begun = true;
        if let Some(room) = chunk.room {
            self.rooms.held[room] += u64::from(chunk.grant.works());
            self.check_room(room);
        }
        self.rooms.chunks[index as usize].push_back(chunk);
        self.loops[index as usize].admitted_at = now;
        self.workers[worker].inbox.submitters.push(index);
        self.wake(worker as u32, now);
    }

    /// There was no room for what is left of a batch.
    fn refuse(&mut self, index: u32, now: u64) {
        let asking = &mut self.rooms.asking[index as usize];
        let left: u32 = asking.left.drain(..).map(|(_, count)| count).sum();
        self.rooms.seen.refused += 1;
        self.history.requests += u64::from(left);
        self.history.failed_requests += u64::from(left);
        let done = &mut self.history.done[index as usize];
        done.failed_requests += u64::from(left);
        self.last_report_at = self.last_report_at.max(now);
        if self.rooms.asking[index as usize].has_begun {
            // What is with the worker has yet to end.
            let chunk = Chunk {
                requests: 0,
                plan: self.setup.submitters[index as usize].plan,
                last: true,
                room: None,
                grant: Grant::default(),
            };
            return self.hand_over(index, chunk, now);
        }
        self.history.done[index as usize].batches += 1;
        self.loops[index as usize].turned_away();
        self.submit_next(index, now);
    }

    /// A submitter's peer is not there yet: it does not keep others from their room meanwhile, and asks again then. Who goes over in
    /// chunks keeps what it has.
    pub(super) fn put_back(&mut self, index: u32) {
        if self.rooms.split.is_some() || self.rooms.credits.is_empty() {
            return;
        }
        while let Some(chunk) = self.rooms.chunks[index as usize].pop_front() {
            if let Some(room) = chunk.room {
                self.give_back(room, chunk.grant);
            }
        }
    }

    /// A request of a chunk has a number now: from then on it holds its part of the room.
    pub(super) fn holds(&mut self, chunk: &mut Chunk, number: u64, left: u32) {
        let Some(room) = chunk.room else {
            return;
        };
        let works = chunk.grant.works();
        let own = works / u16::try_from(left.max(1)).unwrap_or(u16::MAX);
        let rest = chunk.grant.split_off(own);
        let own = std::mem::replace(&mut chunk.grant, rest);
        self.rooms.grants.insert(number, (room, own));
    }

    /// A request has been reported, or was not taken: its room comes back.
    pub(super) fn lets_go(&mut self, number: u64) {
        if let Some((room, grant)) = self.rooms.grants.remove(&number) {
            self.give_back(room, grant);
        }
    }

    fn give_back(&mut self, room: usize, grant: Grant) {
        self.rooms.held[room] -= u64::from(grant.works());
        self.rooms.credits[room].release(grant);
        self.check_room(room);
        self.rouse(room);
    }

    /// Wakes who waits for this room.
    fn rouse(&mut self, room: usize) {
        let is_split = self.rooms.split.is_some();
        let at = self.now + self.setup.room.wake_ns;
        for index in self.rooms.line.clone() {
            let worker = self.setup.submitters[index as usize].worker;
            let asking = &mut self.rooms.asking[index as usize];
            if (is_split || worker == room) && !std::mem::replace(&mut asking.is_roused, true) {
                self.agenda.enter(at, What::Looks { submitter: index });
            }
        }
    }

    /// Core knows what is out, and it is no more than there is.
    fn check_room(&mut self, room: usize) {
        let at = self.rooms.credits[room].snapshot();
        let held = self.rooms.held[room];
        if u64::from(at.held_works) != held || at.held_works > at.max_works {
            let text = format!("room {room}: core has {at:?}, and {held} are out");
            self.ledger.violation(self.now, text);
        }
    }

    /// In the end all room is back, and nobody waits for any.
    pub(super) fn check_rooms(&mut self) {
        let rooms = self.rooms.credits.iter().enumerate();
        let left = rooms
            .clone()
            .find(|(_, row)| !row.is_free() || row.waiting() > 0);
        if let Some((room, credits)) = left {
            let (at, waiting) = (credits.snapshot(), credits.waiting());
            let text = format!("room {room} is not at rest: {at:?}, {waiting} wait");
            self.ledger.violation(self.now, text);
        }
        if self.rooms.split.is_some() {
            // Who waits for chunks stands in no line of core's.
            return;
        }
        let reports = self.rooms.credits.iter().map(|row| row.counters().report());
        let (waits, waited_ns) = reports.fold((0, 0), |(waits, waited_ns), report| {
            let waited = report.waited.as_nanos();
            (waits + u64::from(report.waits), waited_ns + waited)
        });
        let seen = &self.rooms.seen;
        if (waits, waited_ns) != (seen.waits, seen.waited_ns) {
            let told = (seen.waits, seen.waited_ns);
            let text = format!("core has counted {waits} waits of {waited_ns} ns, of {told:?}");
            self.ledger.violation(self.now, text);
        }
    }

    /// Time passes, in which nothing changes: how full lanes and rails are.
    pub(super) fn watch(&mut self, until: u64) {
        let span = until - self.now;
        let mut depths = vec![0_u64; self.setup.rails.len()];
        for (index, lane) in self.lanes.iter().enumerate() {
            let rail = lane.rail as usize;
            let device = &self.setup.devices[self.setup.rails[rail].from];
            let posted = lane.open_works.len();
            depths[rail] += match self.rooms.split {
                Some(_) => self.rooms.held[index],
                None => posted as u64,
            };
            let is_full = posted >= usize::from(device.queue_depth);
            let since = &mut self.rooms.full_since[index];
            match (is_full, *since) {
                (true, None) => {
                    *since = Some(self.now);
                    self.rooms.seen.fills += 1;
                }
                (false, Some(at)) => {
                    *since = None;
                    self.rooms.seen.filled_ns += self.now - at;
                }
                _ => {}
            }
        }
        let sum: u64 = depths.iter().sum();
        if sum == 0 || span == 0 {
            return;
        }
        let mean = sum as f64 / depths.len() as f64;
        let square = |depth: &u64| (*depth as f64 - mean) * (*depth as f64 - mean);
        let variance = depths.iter().map(square).sum::<f64>() / depths.len() as f64;
        let seen = &mut self.rooms.seen;
        seen.spread.0 += libm::sqrt(variance) * span as f64;
        seen.spread.1 += span;
        seen.depths.hold(self.now, until, &depths);
    }
}
