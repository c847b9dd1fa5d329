//! What must hold at any time besides what [`super::ledger`] sees: credits, causes of pauses, budgets, and that
//! nobody waits long who has a way open.

use polyrail_core::rail::health::RailState;
use polyrail_core::units::{PeerId, RailId};
use polyrail_core::work::{Cause, Completion, Op, Outcome, Work};

use super::agenda::LaneIndex;
use super::engines::REMOTE;
use super::{NearLane, OpenWork, World};
use crate::setup::{Cut, Interval, Submitter};

/// A lane that carries nothing opens at most so often within so long.
const OPENINGS_MAX: usize = 20;
const OPENINGS_NS: u64 = 10_000_000_000;
/// And is an incident when it ends so often in a row, for whatever cause.
const BARREN_ENDS: u32 = 2;
/// With a way open, a batch takes at most so many times as long as all bytes over the slowest part would.
pub(super) const SLOWER_MAX: u64 = 4;
/// And this.
pub(super) const PATIENCE_NS: u64 = 700_000_000;

/// A spare, as a worker left it.
#[derive(Clone, Copy, Default)]
pub(super) struct SpareSeen {
    /// It or the rail that it stands in for was out, or that may have stood still: something was in flight there.
    is_called: bool,
    inflight_bytes: u64,
}

impl NearLane {
    /// Forgets the works that a completion answers. Whether there are any.
    fn completed(&mut self, completion: &Completion) -> bool {
        let good = completion.outcome == Outcome::Success;
        let Some(place) = self
            .open_works
            .iter()
            .position(|work| work.cookie == completion.cookie)
        else {
            return false;
        };
        // That ends the lane: what is told of it after this is told too late to speak for it.
        self.failed |= !good;
        let work = self.open_works.remove(place);
        let mut carried = good && work.user;
        let mut before = place;
        self.open_works.retain(|work| {
            let is_before = before > 0;
            before = before.saturating_sub(1);
            let stays = work.signal || !is_before;
            carried |= good && work.user && !stays;
            stays
        });
        if carried {
            self.carries();
        }
        true
    }
}

impl NearLane {
    /// It has carried bytes of a program.
    pub(super) fn carries(&mut self) {
        if !self.failed {
            self.carried = true;
            self.ended = 0;
        }
    }

    /// It has opened.
    pub(super) fn opens(&mut self, now: u64) {
        (self.is_open, self.carried, self.failed) = (true, false, false);
        self.opened.push_back(now);
    }

    /// Its worker ends it. Whether it was opened too often for one that carries nothing; what is opened to probe a paused
    /// rail has times of its own.
    pub(super) fn ends(&mut self, now: u64) -> bool {
        if !std::mem::take(&mut self.is_open) {
            return false;
        }
        self.ended += u32::from(!self.carried);
        if self.probes {
            self.opened.pop_back();
        }
        while self
            .opened
            .front()
            .is_some_and(|at| at + OPENINGS_NS <= now)
        {
            self.opened.pop_front();
        }
        self.opened.len() > OPENINGS_MAX
    }
}

impl World<'_> {
    /// Works are handed out for a lane: there must be room for them, and for the reads among them.
    pub(super) fn count_works(&mut self, lane: LaneIndex, works: &[Work]) {
        let row = &mut self.lanes[lane as usize];
        let device = &self.setup.devices[self.setup.rails[row.rail as usize].from];
        if row.posted == 0 {
            row.probes = works.iter().all(|work| work.remote.segment != REMOTE);
        }
        row.open_works.extend(works.iter().map(|work| OpenWork {
            cookie: work.cookie,
            signal: work.signal,
            read: work.op == Op::Read,
            user: work.remote.segment == REMOTE,
        }));
        if self.setup.trouble.false_one_in != 0 {
            // What core was told of its room was not so.
            return;
        }
        let reads = row.open_works.iter().filter(|work| work.read).count();
        for (what, open, most) in [
            ("works", row.open_works.len(), device.queue_depth),
            ("reads", reads, device.reads_max),
        ] {
            if open > usize::from(most) {
                let text = format!("{open} {what} posted on lane {lane}, which takes {most}");
                self.ledger.violation(self.now, text);
            }
        }
    }

    /// A worker ends a lane: not so often one that carries nothing.
    ///
    /// What a program ends (it cancels, its deadline is over, its range is wrong) is no fault of the lane's, and in mode `reset`
    /// each slice that another worker's lane carries lets the rail back in.
    pub(super) fn lane_ends(&mut self, lane: LaneIndex) {
        let ends = |row: &Submitter| row.cancel_one_in != 0 || row.deadline_ns != 0;
        let programs_end = self.setup.submitters.iter().any(ends)
            || self.setup.trouble.error_one_in != 0
            || self.setup.trouble.rejected_one_in != 0;
        let is_excused = programs_end || self.setup.limits.reset_cooldown_us > 0;
        if self.lanes[lane as usize].ends(self.now) && !is_excused {
            let text =
                format!("lane {lane} carries nothing and has opened more than 20 times in 10 s");
            self.ledger.violation(self.now, text);
        }
    }

    /// Works that were handed out were not taken.
    pub(super) fn uncount_works(&mut self, lane: LaneIndex, count: usize) {
        let row = &mut self.lanes[lane as usize];
        let left = row.open_works.len() - count;
        row.open_works.truncate(left);
    }

    /// A worker is told of completions.
    pub(super) fn count_completions(&mut self, worker: u32) {
        let first = self.first_lane[worker as usize] as usize;
        let mut heard = Vec::new();
        for completion in &self.workers[worker as usize].inbox.completions {
            let row = &mut self.lanes[first + completion.lane.rail().index()];
            if completion.epoch.0 == row.epoch
                && row.completed(completion)
                && completion.outcome == Outcome::Success
            {
                heard.push(completion.lane.rail());
            }
        }
        let engine = &self.setup.engines[self.workers[worker as usize].engine];
        for rail in heard {
            self.note_heard(worker, PeerId(engine.rail_peers[rail.index()]));
        }
    }

    /// A worker has gone a step: it gives a spare nothing more while the rail that this stands in for is healthy and idle. What
    /// is there may end, and if the spare is out itself it is looked at.
    pub(super) fn check_spares(&mut self, engine: usize) {
        let (row, shared) = (&self.setup.engines[engine], &self.shared[engine]);
        for number in 0..row.rails.len() {
            let Some(front) = row.front_of(number, &self.setup.rails) else {
                continue;
            };
            let (Some(front), Some(spare)) =
                (shared.view(front), shared.view(RailId(number as u16)))
            else {
                continue;
            };
            let is_called = front.inflight_bytes > 0
                || [front.state, spare.state]
                    .iter()
                    .any(|state| *state != RailState::Healthy);
            let now = SpareSeen {
                is_called,
                inflight_bytes: spare.inflight_bytes,
            };
            let before = std::mem::replace(&mut self.spares[engine][number], now);
            let was_called = before.is_called || is_called;
            if !was_called && now.inflight_bytes > before.inflight_bytes {
                let name = self.setup.rail_name(row.rails[number]);
                let text = format!("spare {name} takes bytes, and the rail before it is healthy");
                self.ledger.violation(self.now, text);
            }
        }
    }

    /// A rail has been paused for this cause, if a worker noticed it: the causes that speak against one are
    /// few. A lane that ends twice in a row without having carried anything is an incident for whatever cause, and so in
    /// mode `reset` is one that does not open.
    pub(super) fn check_pause(
        &mut self,
        worker: u32,
        rail: RailId,
        state: RailState,
        cause: Option<Cause>,
    ) {
        let lane = self.first_lane[worker as usize] as usize + rail.index();
        // In mode `reset` core sees an opening fail that it gave up itself, which is not seen here.
        let unseen = u32::from(self.setup.limits.reset_cooldown_us > 0);
        if self.lanes[lane].ended + unseen >= BARREN_ENDS || self.setup.trouble.false_one_in != 0 {
            return;
        }
        let speaks = |cause: Cause| {
            matches!(
                cause,
                Cause::Reset
                    | Cause::Silent
                    | Cause::RetryExceeded
                    | Cause::RnrRetryExceeded
                    | Cause::Fatal
                    | Cause::DeviceDown
                    | Cause::Refused
            )
        };
        if let Some(cause) = cause.filter(|cause| !speaks(*cause)) {
            let text = format!("rail {} is {} for: {cause}", rail.0, state.name());
            self.ledger.violation(self.now, text);
        }
    }

    /// A request switched transports: what it causes itself is limited.
    pub(super) fn check_failover(&mut self, attempt: u8) {
        if attempt > self.setup.limits.failover_attempts {
            let text = format!("a request switched transports for the {attempt}th time");
            self.ledger.violation(self.now, text);
        }
    }

    /// A batch has taken so long. With a way open, that is limited.
    pub(super) fn check_patience(&mut self, submitter: u32, took_ns: u64) {
        let Some(most) = self.patience_ns[submitter as usize].filter(|most| took_ns > *most) else {
            return;
        };
        let text = format!("a batch took {took_ns} ns with a way open, more than {most}");
        self.ledger.violation(self.now, text);
    }
}

impl crate::setup::Setup {
    /// How long a batch of each submitter may take: of those that have a way open all the time, over a fabric
    /// whose rates do not change. Mode `reset` lets cut rails back in after each cooldown, so that a transport
    /// without a working one keeps its requests for as long as the cuts last.
    pub(super) fn patience_ns(&self) -> Vec<Option<u64>> {
        let rates = |row: &Interval| row.bytes_per_sec.clone();
        let steady = self
            .intervals
            .windows(2)
            .all(|pair| rates(&pair[0]) == rates(&pair[1]));
        let work_ns = self.work_ns().saturating_mul(SLOWER_MAX);
        let most = (self.waits_ns() + PATIENCE_NS).saturating_add(work_ns);
        (0..self.submitters.len())
            .map(|index| {
                let index = index as u32;
                let bounded = steady && self.is_always_served(index);
                let usual = bounded.then(|| most.saturating_add(self.stranded_ns(index)));
                let bystander = self.bystander_ns(index).filter(|_| steady);
                usual.into_iter().chain(bystander).min()
            })
            .collect()
    }

    /// How long a submitter's requests may stay with a transport that has no working rail: in mode `reset`, as long as
    /// all rails of one of its transports are cut.
    fn stranded_ns(&self, submitter: u32) -> u64 {
        if self.limits.reset_cooldown_us == 0 {
            return 0;
        }
        let rails: Vec<_> = self.used_rails(submitter).collect();
        let strands = |row: &Interval| {
            let works = |rank| {
                let mut of_rank = rails.iter().filter(|rail| self.rails[**rail].rank == rank);
                of_rank.any(|rail| row.cuts[*rail] == Cut::No)
            };
            rails.iter().any(|rail| !works(self.rails[*rail].rank))
        };
        let pairs = self.intervals.windows(2);
        let stranded = pairs.filter(|pair| strands(&pair[0]));
        stranded
            .map(|pair| pair[1].starts_at - pair[0].starts_at)
            .sum()
    }
}
