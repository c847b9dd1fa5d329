//! Lanes: opened when they are wanted, suspected when they stand still, fenced when they fail.

use super::attempt::{Attempt, Load, Marks};
use super::attempts::Attempts;
use super::fence::Fence;
use super::flight::Flight;
use super::load::Tally;
use super::post::{PROBE_BYTES, Run, Works};
use super::sequence::Sequence;
use super::{Chooser, LaneAction, Orchestrator, Reason};
use crate::queue::{Link, Linked};
use crate::rail::estimate::BATCH_WORKS;
use crate::rail::health::{Incident, RailState};
use crate::rail::spray::Slices;
use crate::send_queue::signal::{Amount, Cadence};
use crate::time::{Duration, Instant};
use crate::units::{Epoch, PeerId, RailId, TransportId};
use crate::work::{Cause, LaneFact, LaneLimits, Op, POST_MAX, Scope, Work};

pub(super) const POST: usize = 0;
pub(super) const ACTION: usize = 1;
pub(super) const MESSAGE: usize = 2;
pub(super) const CHANGED: usize = 3;

/// Copies sent elsewhere when a lane is suspected.
const SUSPECT_COPIES: usize = 4;
/// Progress is expected within this many times the predicted time of the oldest attempt.
const PROGRESS_FACTOR: u64 = 4;
/// The oldest work of a lane is given so many times as long as it takes to suspect one, if later works complete there meanwhile.
const OVERDUE_FACTOR: u64 = 8;
/// For a probe a lane may take so many times as long to open as it took last, and twice as long after each time that it has not,
const PROBE_OPEN_FACTOR: u64 = 8;
/// up to 2^16 microseconds, which it may take while that is not known; or as long as the probe interval, if that is longer.
const PROBE_OPEN_DOUBLINGS: u8 = 16;
/// Each second one that was late even so may take twice as long, each fourth four times as long, and so on, up to (time paused /
/// this): a rail on which to open a lane takes long comes back, and a look at one that is dark delays its return by little.
const PROBE_OPEN_PART: u64 = 8;

/// In place of the length of slices that a lane was seen to be filled for.
const NOT_FILLED: u16 = u16::MAX;

/// The whole KiB of a slice, for [`Lane::is_filled`].
pub(super) fn kib_of(slice_bytes: u32) -> u16 {
    (slice_bytes / 1024).min(u32::from(NOT_FILLED) - 1) as u16
}

/// How little a lane has carried.
#[derive(Clone, Copy, Debug)]
#[repr(align(4))] // written at once
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Idle {
    /// Times in a row that it has ended by itself without having carried a slice.
    barren: u8,
    /// It has carried one since it was opened.
    carried: bool,
    /// Times in a row that it was found full with nothing posted.
    refusals: u16,
}

impl Idle {
    const NEW: Self = Self {
        barren: 0,
        carried: false,
        refusals: 0,
    };
    const CARRIED: Self = Self {
        carried: true,
        ..Self::NEW
    };

    fn reopened(self) -> Self {
        Self {
            barren: self.barren,
            ..Self::NEW
        }
    }

    /// The lane has ended by itself.
    fn ended(self) -> Self {
        let barren = if self.carried {
            0
        } else {
            self.barren.saturating_add(1)
        };
        Self {
            barren,
            ..Self::NEW
        }
    }
}

/// From so many ends in a row on that came before anything was carried, the rail is to blame, whatever they are called.
const BARREN_MIN: u8 = 2;

/// What the end of a lane says of its rail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blame {
    pub(super) cause: Cause,
    /// Times in a row that the lane has ended by itself without having carried anything, with this one. 0: it has.
    times: u8,
}

impl Blame {
    /// Of a lane that did not fail by itself, or has carried something.
    pub(super) const fn of(cause: Cause) -> Self {
        Self { cause, times: 0 }
    }

    /// Whether it speaks against the rail.
    pub(super) fn counts(self) -> bool {
        self.cause.counts_against_rail() || self.is_repeated()
    }

    pub(super) fn is_barren(self) -> bool {
        self.times > 0
    }

    fn is_repeated(self) -> bool {
        self.times >= BARREN_MIN
    }
}

/// Where a lane stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Phase {
    /// No connection, and nothing in flight.
    Closed,
    /// Asked for at `since`, given up at `by`.
    Opening { since: Instant, by: Instant },
    /// Takes works.
    Open,
    /// Failed; what was posted may still write until both facts are there.
    Fencing(Fence),
}

/// What is to be said of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Wants(u8);

impl Wants {
    const NOTHING: Self = Self(0);
    const OPEN: Self = Self(1);
    pub(super) const FENCE: Self = Self(1 << 1);
    const CLOSE: Self = Self(1 << 2);

    fn add(&mut self, what: Self) {
        self.0 |= what.0;
    }

    /// Whether this was to be said. It is not any more.
    pub(super) fn take(&mut self, what: Self) -> bool {
        let wanted = self.0 & what.0 != 0;
        self.0 &= !what.0;
        wanted
    }
}

/// A row of the lanes' table; opaque.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Lane {
    pub(super) phase: Phase,
    /// Whose rail it is on.
    pub(super) transport: TransportId,
    pub(super) epoch: Epoch,
    pub(super) limits: LaneLimits,
    /// Which of its works ask for a completion, if not all do.
    pub(super) cadence: Cadence,
    /// Reads bound to it.
    pub(super) reads: u16,
    /// Attempts bound to it.
    pub(super) flight: Flight,
    /// Bytes of them.
    pub(super) inflight_bytes: u64,
    /// See [`Self::is_filled`]; KiB of the shortest slices that it was seen so for.
    filled_kib: u16,
    /// How long it may take to open for a probe: so many times doubled, a microsecond.
    open_doublings: u8,
    /// Times in a row that it took longer even so.
    opened_late: u8,
    pub(super) next_sequence: Sequence,
    /// The transport said that it has no room.
    pub(super) full: bool,
    idle: Idle,
    /// Last completion, or the first post after a pause. While it is being fenced: since when.
    pub(super) progress_at: Instant,
    /// Since when it has stood still, if that has been noticed; its oldest slices were sent elsewhere too.
    /// [`Instant::MAX`]: not noticed.
    suspect_since: Instant,
    /// What its rail was paused for, until that is told.
    pub(super) blamed: Option<Cause>,
    /// Its rail came back because its cooldown is over.
    pub(super) expired: bool,
    /// This worker has claimed the probe of its rail.
    pub(super) probing: bool,
    pub(super) wants: Wants,
    links: [Link; 4],
    pub(super) tally: Tally,
}

const _: () = assert!(size_of::<Lane>() <= 192);

impl Phase {
    pub(super) fn is_open(&self) -> bool {
        *self == Self::Open
    }

    pub(super) fn is_fencing(&self) -> bool {
        matches!(self, Self::Fencing(_))
    }
}

impl<const KIND: usize> Linked<KIND> for Lane {
    fn link(&mut self) -> &mut Link {
        &mut self.links[KIND]
    }
}

impl Lane {
    /// For the arrays that a caller hands in.
    pub const EMPTY: Self = Self {
        phase: Phase::Closed,
        transport: TransportId(0),
        epoch: Epoch(0),
        limits: LaneLimits::new(0, 1),
        cadence: Cadence::new(0),
        reads: 0,
        flight: Flight::EMPTY,
        inflight_bytes: 0,
        filled_kib: NOT_FILLED,
        open_doublings: PROBE_OPEN_DOUBLINGS,
        opened_late: 0,
        next_sequence: Sequence::FIRST,
        full: false,
        idle: Idle::NEW,
        progress_at: Instant::ZERO,
        suspect_since: Instant::MAX,
        blamed: None,
        expired: false,
        probing: false,
        wants: Wants::NOTHING,
        links: [Link::NONE; 4],
        tally: Tally::NEW,
    };

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn is_locally_fenced(&self) -> bool {
        match self.phase {
            Phase::Fencing(fence) => fence.local,
            Phase::Closed => true,
            Phase::Opening { .. } | Phase::Open => false,
        }
    }

    /// Whether no write of it can reach the peer's memory any more.
    pub(super) fn is_remotely_fenced(&self) -> bool {
        match self.phase {
            Phase::Fencing(fence) => fence.remote,
            Phase::Closed => true,
            Phase::Opening { .. } | Phase::Open => false,
        }
    }

    /// Whether it has been noticed to stand still, and it is not known yet why.
    pub(super) fn is_suspected(&self) -> bool {
        self.phase.is_open() && self.suspect_since != Instant::MAX
    }

    /// Whether it is being fenced, and nobody waits for the proof any more.
    pub(super) fn is_given_up(&self) -> bool {
        matches!(self.phase, Phase::Fencing(fence) if fence.given_up)
    }

    /// Whether it is closed, and nothing is to be done about it any more.
    pub(super) fn is_quiet(&self) -> bool {
        self.phase == Phase::Closed && self.flight.len() == 0 && self.wants == Wants::NOTHING
    }

    /// Takes no more works, and is to be fenced.
    pub(super) fn begin_fence(&mut self, fence: Fence) {
        debug_assert!(self.phase.is_open(), "{:?}", self.phase);
        debug_assert!(self.flight.bound() == 0 && self.flight.posted() > 0);
        self.phase = Phase::Fencing(fence);
        self.wants.add(Wants::FENCE);
        self.filled_kib = NOT_FILLED;
    }

    /// It has failed by itself.
    pub(super) fn end_by_itself(&mut self, cause: Cause) -> Blame {
        // The peer's silence is no lane's.
        if cause != Cause::PeerSilent {
            self.idle = self.idle.ended();
        }
        Blame {
            cause,
            times: self.idle.barren,
        }
    }

    /// Ends its epoch. Nothing is waited for any more, proved or not.
    pub(super) fn close(&mut self) {
        debug_assert!(self.flight.len() == 0, "{} are on it", self.flight.len());
        debug_assert!(self.phase != Phase::Closed, "it is closed already");
        debug_assert!(
            self.wants.0 & Wants::FENCE.0 == 0,
            "it is closed before it has been fenced"
        );
        self.phase = Phase::Closed;
        self.wants.add(Wants::CLOSE);
    }

    /// Works of this kind it can still take; none unless it is open.
    pub(super) fn room_works(&self, op: Op) -> usize {
        if self.phase != Phase::Open || self.full || self.probing {
            return 0;
        }
        let works = self.credits_free();
        match op {
            Op::Write => works,
            Op::Read => works.min(usize::from(
                self.limits.reads_max.saturating_sub(self.reads),
            )),
        }
    }

    /// Works of this kind that it takes while nothing is on it.
    pub(super) fn works_max(&self, op: Op) -> u32 {
        let works = u32::from(self.limits.works_max);
        match op {
            Op::Write => works,
            Op::Read => works.min(self.limits.reads_max.into()),
        }
    }

    pub(super) fn reads(&self) -> u64 {
        u64::from(self.reads)
    }

    fn credits_free(&self) -> usize {
        usize::from(self.limits.works_max).saturating_sub(self.flight.len())
    }

    /// It has bytes in flight while works are bound to it, and no more reads than works.
    fn check_load(&self) {
        let (works, bytes) = (self.flight.len(), self.inflight_bytes);
        debug_assert!(
            (bytes == 0) == (works == 0),
            "{bytes} bytes of {works} works"
        );
        debug_assert!(
            usize::from(self.reads) <= works,
            "{} reads of {works} works",
            self.reads
        );
    }
    /// So many attempts have been bound to it.
    pub(super) fn reserved(&mut self, op: Op, count: u32, bytes: u64) {
        self.inflight_bytes += bytes;
        if op == Op::Read {
            debug_assert!(
                count <= u32::from(u16::MAX - self.reads),
                "{count} reads beside {}",
                self.reads
            );
            self.reads += count as u16;
        }
        self.check_load();
    }

    /// Binds up to `count` slices in a row, the first of which is given, as far as there are rows. Tells how many.
    #[inline]
    pub(super) fn bind_run(
        &mut self,
        attempts: &mut Attempts<'_>,
        slice: Attempt,
        count: u32,
    ) -> u32 {
        let (op, length) = (slice.op(), slice.length);
        let count = self.flight.bind_run(attempts, slice, count);
        self.reserved(op, count, Slices { length, count }.bytes());
        count
    }

    /// Whether a slice that is bound to it now could be handed out at once, each work with a completion of its own.
    pub(super) fn posts_at_once(&self) -> bool {
        self.flight.bound() == 0 && !self.limits.covers
    }

    /// Binds slices in a row to it if it [posts at once](Self::posts_at_once), as far as there are rows, and hands them out
    /// as `works`. Tells how many.
    #[inline(never)] // see `Flight::post_run`
    pub(super) fn post_run(
        &mut self,
        attempts: &mut Attempts<'_>,
        run: &Run<'_>,
        works: &mut Works,
    ) -> u32 {
        if self.flight.posted() == 0 {
            self.progress_at = run.now;
        }
        self.tally.posted_at = run.now;
        let sequence = self.next_sequence;
        let count = self.flight.post_run(attempts, run, sequence, works);
        self.next_sequence = sequence.plus(count);
        self.check_room();
        let slices = Slices {
            count,
            ..run.slices
        };
        self.reserved(run.request.op, count, slices.bytes());
        count
    }

    /// So many attempts that were bound to it are not any more.
    pub(super) fn released(&mut self, op: Op, count: u32, bytes: u64) {
        debug_assert!(
            bytes <= self.inflight_bytes,
            "{bytes} of {}",
            self.inflight_bytes
        );
        debug_assert!(
            op != Op::Read || count <= self.reads.into(),
            "{count} of {} reads",
            self.reads
        );
        self.inflight_bytes -= bytes;
        self.tally.released(count, self.flight.len());
        self.filled_kib = NOT_FILLED;
        if op == Op::Read {
            self.reads -= count as u16;
        }
        self.check_load();
    }

    /// Whether it takes slices.
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open && !self.probing
    }

    /// Whether it is open, and nothing is on it or waits for room on it.
    fn is_idle(&self) -> bool {
        self.is_open() && self.flight.len() == 0 && !self.full
    }

    /// Whether a slice of so many KiB, rounded down, was seen to find no room beside what this worker has on it; true until
    /// some of that ends. Only an open lane is that.
    ///
    /// Where other workers learn of the rail too, it may have room again before that.
    pub(super) fn is_filled(&self, slice_kib: u16) -> bool {
        self.filled_kib <= slice_kib
    }

    /// Remembers that it is filled, for slices from this length on.
    pub(super) fn note_filled(&mut self, slice_bytes: u32) {
        if self.inflight_bytes > 0 {
            self.filled_kib = u16::try_from(slice_bytes.div_ceil(1024)).unwrap_or(NOT_FILLED);
        }
    }

    /// The first `count` of the bound works are handed out; `next` is behind them.
    pub(super) fn handed_out(&mut self, next: u32, count: u32) {
        self.next_sequence = self.next_sequence.plus(count);
        self.flight.hand_out(next, count);
        self.check_room();
    }

    /// Whether works may be handed out on it as they are: none longer than what it takes, but for probes.
    pub(super) fn fits(&self, works: &[Work]) -> bool {
        let most = self.limits.work_bytes_max.max(PROBE_BYTES);
        let fits = |work: &Work| (1..=most).contains(&work.length);
        let signals = |work: &Work| self.limits.covers || work.signal;
        works.len() <= self.flight.posted() && works.iter().all(|w| fits(w) && signals(w))
    }
    /// No more is posted than it holds.
    fn check_room(&self) {
        let (posted, most) = (self.flight.posted(), self.limits.works_max);
        debug_assert!(
            posted <= most.into(),
            "{posted} works posted, it holds {most}"
        );
    }

    /// Whether the first bound work asks for a completion when it is handed out, if its completions cover others: so that
    /// half of what the lane may hold completes while the other half is on its way. `window_works` fit the rail's window;
    /// `at_once`: nobody may wait for a neighbour's completion.
    pub(super) fn signals(&mut self, op: Op, window_works: usize, at_once: bool) -> bool {
        debug_assert!(self.limits.covers && self.flight.bound() > 0);
        let behind = self.flight.bound() - 1;
        let half = |works: usize| works.div_ceil(2).saturating_sub(1);
        let works = window_works.min(usize::from(self.limits.works_max));
        let free = Amount {
            works: u16::try_from(half(works)).unwrap_or(u16::MAX),
            reads: u8::try_from(half(self.limits.reads_max.into())).unwrap_or(u8::MAX),
        };
        self.cadence
            .next(op == Op::Read, free, behind == 0 || at_once)
    }

    /// Whether it waits for more works before it hands any out: its works are to share doorbells and completions.
    pub(super) fn gathers(&self) -> bool {
        self.limits.covers && (1..BATCH_WORKS as usize).contains(&self.flight.bound())
    }

    /// Of bound works so many are handed out together where they share doorbells and completions: whole lots, if `more`
    /// can be bound to join what is left of them.
    pub(super) fn works_at_once(&self, more: bool) -> usize {
        let lot = BATCH_WORKS as usize;
        match (self.flight.bound() / lot).min(POST_MAX / lot) {
            lots @ 1.. if more => lots * lot,
            _ => POST_MAX,
        }
    }

    /// How long it may take to open for a probe, if nothing speaks for more.
    fn open_span(&self) -> Duration {
        debug_assert!(
            self.open_doublings <= PROBE_OPEN_DOUBLINGS,
            "{} doublings",
            self.open_doublings
        );
        Duration::from_micros(1 << self.open_doublings)
    }

    /// The same of a rail that is paused for so long.
    fn look_span(&self, paused: Duration) -> Duration {
        let least = self.open_span();
        let doublings = match self.opened_late {
            0 => 0,
            late => late.trailing_zeros(),
        };
        let longer = least.times(1 << doublings);
        longer.min(paused.divided_by(PROBE_OPEN_PART)).max(least)
    }

    /// It has opened, and took so long.
    fn opened_in(&mut self, span: Duration) {
        let micros = span.times(PROBE_OPEN_FACTOR).as_nanos() / 1_000;
        let doublings = micros.checked_ilog2().map_or(0, |doublings| doublings + 1);
        self.open_doublings = doublings.min(PROBE_OPEN_DOUBLINGS.into()) as u8;
        self.opened_late = 0;
    }

    fn opens_late(&mut self) {
        if self.open_doublings < PROBE_OPEN_DOUBLINGS {
            self.open_doublings += 1;
        } else {
            self.opened_late = self.opened_late.wrapping_add(1);
        }
    }

    pub(super) fn work_bytes_max(&self) -> u32 {
        self.limits.work_bytes_max
    }
}

impl<P: Chooser> Orchestrator<'_, P> {
    /// Asks for a lane to be opened under a new epoch.
    pub(super) fn open_lane(&mut self, now: Instant, rail: RailId, by: Instant) {
        let Some(lane) = self
            .lanes
            .get_mut(rail.index())
            .filter(|lane| lane.phase == Phase::Closed)
        else {
            return;
        };
        debug_assert!(
            lane.flight.len() == 0,
            "{} are on a closed lane",
            lane.flight.len()
        );
        lane.epoch = Epoch(lane.epoch.0.wrapping_add(1));
        lane.phase = Phase::Opening { since: now, by };
        lane.next_sequence = Sequence::FIRST;
        lane.full = false;
        lane.idle = lane.idle.reopened();
        lane.suspect_since = Instant::MAX;
        lane.wants.add(Wants::OPEN);
        self.actions.push_back(self.lanes, u32::from(rail.0));
        self.arm(by, Reason::Opening);
    }

    /// By when a lane is to be open that slices wait for. For a spare the rest of its device waits, and perhaps a request that
    /// could go over another transport: it may take as long as a look may, or as is no wonder so far away.
    pub(super) fn open_by(&self, now: Instant, rail: RailId) -> Instant {
        let timeout = self.config.open_timeout;
        let lane = self.lanes.get(rail.index());
        let Some(lane) = lane.filter(|_| self.shared.front_of(rail).is_some()) else {
            return now + timeout;
        };
        let far = self.shared.delay_base(rail).times(PROBE_OPEN_FACTOR);
        now + lane.open_span().max(far).min(timeout)
    }

    /// Something about a lane of the present epoch.
    pub(super) fn lane_fact(&mut self, now: Instant, rail: RailId, fact: LaneFact) {
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        match (fact, lane.phase) {
            (LaneFact::Opened { limits }, Phase::Opening { .. }) => {
                self.lane_opened(now, rail, limits)
            }
            (LaneFact::OpenFailed(cause), Phase::Opening { .. }) => {
                self.open_failed(now, rail, cause)
            }
            (LaneFact::Writable, Phase::Open) => {
                lane.full = false;
                self.posts.push_back(self.lanes, u32::from(rail.0));
                self.bind_all();
            }
            (LaneFact::Broken(cause), Phase::Opening { .. }) => self.open_failed(now, rail, cause),
            (LaneFact::Broken(cause), Phase::Open) => self.break_lane(now, rail, cause),
            (LaneFact::Fenced { scope, delivered }, Phase::Fencing(fence)) => {
                self.fenced(rail, fence, scope, delivered);
            }
            (LaneFact::PortActive, phase) => self.port_active(now, rail, phase),
            (LaneFact::Crowded, Phase::Opening { .. }) => self.make_room(now, rail),
            // What cannot be fenced now stays unproven; `give_up_at` is what ends the wait.
            (LaneFact::Unfenceable { .. }, Phase::Fencing(_)) => {}
            // Late or doubled facts.
            (LaneFact::Opened { .. } | LaneFact::OpenFailed(_), _)
            | (LaneFact::Writable | LaneFact::Broken(_) | LaneFact::Crowded, _)
            | (LaneFact::Fenced { .. } | LaneFact::Unfenceable { .. }, _) => {
                self.counted.ignored.facts += 1
            }
        }
    }

    /// The lane of the same transport and device goes that has stood idle for longest. It is opened anew when there is something
    /// for it; nobody has failed.
    fn make_room(&mut self, now: Instant, rail: RailId) {
        let (transport, device) = (self.transport_on(rail), self.shared.device_of(rail));
        let rails = (0..self.lanes_used).map(|index| RailId(index as u16));
        let idle = rails.filter_map(|other| {
            let lane = self
                .lanes
                .get(other.index())
                .filter(|lane| lane.is_idle())?;
            let is_alike = lane.transport == transport && self.shared.device_of(other) == device;
            is_alike.then_some((lane.progress_at, other))
        });
        if let Some((_, idle)) = idle.min() {
            self.start_fence(now, idle, Cause::MadeRoom);
        }
    }

    fn lane_opened(&mut self, now: Instant, rail: RailId, limits: LaneLimits) {
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        if let Phase::Opening { since, .. } = lane.phase {
            lane.opened_in(now.since(since));
        }
        debug_assert!(
            lane.flight.len() == 0,
            "{} are on a lane that was not open",
            lane.flight.len()
        );
        lane.phase = Phase::Open;
        if limits.covers {
            self.shared.share_completions(rail);
        }
        lane.limits = LaneLimits {
            // None of them is 0 by contract: such a lane would be waited for for ever.
            work_bytes_max: limits.work_bytes_max.max(1),
            works_max: limits.works_max.max(1),
            reads_max: limits.reads_max.max(1),
            ..limits
        };
        lane.cadence = Cadence::new(self.config.signal_interval_works);
        lane.progress_at = now;
        if let Some(peer) = self.shared.peer(rail) {
            self.heard(now, peer);
            self.repeat_fences(now, peer);
        }
        if self
            .lanes
            .get(rail.index())
            .is_some_and(|lane| lane.probing)
        {
            let posted = self.post_probe(now, rail, Load::HealthProbe, PROBE_BYTES);
            if !posted {
                // Nothing would ever end the probe: it has failed, and the next one is tried later.
                self.start_fence(now, rail, Cause::Refused);
            }
        }
        self.bind_all();
    }

    /// A lane has not opened in time.
    fn opens_late(&mut self, now: Instant, rail: RailId) {
        if let Some(lane) = self.lanes.get_mut(rail.index()) {
            lane.opens_late();
        }
        self.open_failed(now, rail, Cause::Refused);
    }

    /// A lane could not be opened, or not in time.
    pub(super) fn open_failed(&mut self, now: Instant, rail: RailId, cause: Cause) {
        let decays = self.decays(rail);
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        log::debug!("lane {} not opened ({cause})", rail.0);
        lane.close();
        lane.wants.take(Wants::OPEN);
        // Whatever the cause: a lane that is asked for again at once fails again at once. Where no probe tells that a rail is good
        // again, one that is let in again and again and does not even open stays out longer each time.
        let blame = match decays {
            true => Blame::of(Cause::Refused),
            false => lane.end_by_itself(Cause::Refused),
        };
        self.actions.push_back(self.lanes, u32::from(rail.0));
        self.blame(now, rail, blame);
        self.bind_all();
    }

    /// The oldest attempt that a lane has handed out.
    pub(super) fn first_posted(&self, rail: RailId) -> Option<u32> {
        self.lanes.get(rail.index())?.flight.first_posted()
    }

    /// The one handed out after `index`.
    pub(super) fn posted_after(&mut self, rail: RailId, index: u32) -> Option<u32> {
        self.lanes
            .get(rail.index())?
            .flight
            .posted_after(&mut self.attempts, index)
    }

    /// Counts a failure against the rail if it is one, and ends a probe badly.
    pub(super) fn blame(&mut self, now: Instant, rail: RailId, blame: Blame) {
        let worker = self.config.worker;
        let mode = self.health_mode_of(rail);
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        if core::mem::take(&mut lane.probing) {
            // That it is paused was said when it erred.
            let mut is_news = true;
            if let Some(health) = self.shared.health(rail) {
                // Before others may probe. A dead rail is looked at more often: its causes are its own.
                if !blame.cause.counts_against_rail() {
                    health.defer_probe(now, blame.times);
                }
                is_news = !health.is_doubted();
                health.handle_probe_bad(now, worker);
            }
            if is_news {
                self.rail_changed(rail);
            }
        } else if blame.counts() {
            // To ask for a lane and not get it is as good as a look, and a bad one.
            let is_out = lane.suspect_since != Instant::MAX || blame.cause == Cause::Refused;
            let incident = match is_out {
                true => Incident::Silence,
                false => Incident::Error,
            };
            let is_new = self.shared.handle_incident(now, rail, mode, incident);
            if let Some(health) = self.shared.health(rail).filter(|_| blame.is_repeated()) {
                health.defer_probe(now, blame.times);
            }
            if is_new {
                lane.blamed = Some(blame.cause);
                self.rail_changed(rail);
            }
        }
        self.arm_probe(rail);
        self.hasten_lone(now, rail);
    }

    /// Whether no rail to a peer is healthy. Of a spare that is not known before its lane is open.
    fn is_without_rail(&self, peer: PeerId) -> bool {
        let is_known = |rail: RailId| {
            let lane = self.lanes.get(rail.index());
            self.shared.front_of(rail).is_none() || lane.is_some_and(|lane| lane.phase.is_open())
        };
        let mut healthy = self.rails_of(peer).filter(|rail| self.is_healthy(*rail));
        !healthy.any(is_known)
    }

    /// If no rail to a rail's peer is healthy, all are looked at soon. Not those whose lanes carry nothing when they are open.
    fn hasten_lone(&mut self, now: Instant, rail: RailId) {
        let peer = self.shared.peer(rail);
        let Some(peer) = peer.filter(|peer| self.is_without_rail(*peer)) else {
            return;
        };
        for rail in self.rails_of(peer) {
            let lane = self.lanes.get(rail.index());
            if lane.is_some_and(|lane| lane.idle.barren < BARREN_MIN)
                && self.decays(rail)
                && let Some(health) = self.shared.health(rail)
            {
                health.hasten_probe(now + health.lone_interval(now));
                self.arm_probe(rail);
            }
        }
    }

    /// The probe of a paused rail came back well.
    pub(super) fn probe_good(&mut self, now: Instant, rail: RailId) {
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        lane.probing = false;
        let health = self.shared.health(rail);
        let was_out = health.is_some_and(|health| !health.is_doubted());
        if health.is_some_and(|health| health.handle_probe_good(now, self.config.worker)) {
            if was_out {
                self.come_back(rail, false);
            } else {
                // It is as fast as it was.
                self.rail_changed(rail);
            }
        }
        self.bind_all();
    }

    /// A rail takes slices again.
    fn come_back(&mut self, rail: RailId, expired: bool) {
        self.shared.readmit(rail);
        if let Some(lane) = self.lanes.get_mut(rail.index()) {
            lane.expired = expired;
        }
        self.rail_changed(rail);
        self.bind_all();
    }

    /// A lane has carried a slice. In mode `reset` that is a sign of recovery, whoever had paused the rail.
    pub(super) fn rail_succeeded(&mut self, rail: RailId) {
        if !self.decays(rail)
            && self
                .shared
                .health(rail)
                .is_some_and(|health| health.handle_success())
        {
            self.come_back(rail, false);
        }
    }

    /// The next thing to do with a lane: end the old before beginning the new.
    pub(super) fn lane_action(&mut self, index: u32) -> Option<LaneAction> {
        let id = self.lane_id(RailId(index as u16));
        let lane = self.lanes.get_mut(index as usize)?;
        if lane.wants.take(Wants::FENCE) {
            return Some(LaneAction::Fence {
                lane: id,
                epoch: lane.epoch,
                scope: Scope::Local,
            });
        }
        if lane.wants.take(Wants::CLOSE) {
            // It may have been asked for anew since.
            let epoch = match lane.phase {
                Phase::Closed => lane.epoch,
                Phase::Opening { .. } | Phase::Open | Phase::Fencing(_) => {
                    Epoch(lane.epoch.0.wrapping_sub(1))
                }
            };
            return Some(LaneAction::Close { lane: id, epoch });
        }
        match (lane.wants.take(Wants::OPEN), lane.phase) {
            (true, Phase::Opening { by, .. }) => Some(LaneAction::Open {
                lane: id,
                epoch: lane.epoch,
                by,
            }),
            _ => None,
        }
    }

    /// A lane moved something: slices, if it has `carried` any.
    pub(super) fn lane_progressed(&mut self, now: Instant, rail: RailId, carried: bool) {
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        lane.progress_at = now;
        let suspected = core::mem::replace(&mut lane.suspect_since, Instant::MAX) != Instant::MAX;
        if suspected && lane.phase.is_fencing() {
            self.was_wrong(rail, 1);
        }
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        lane.tally.completed(now);
        if carried {
            lane.idle = Idle::CARRIED;
        }
        if core::mem::take(&mut lane.full) {
            self.posts.push_back(self.lanes, u32::from(rail.0));
        }
        self.last_progress = (now, rail);
    }

    /// A lane that was fenced because it stood still has moved after all, or may just be slow: its rail is given twice as much time
    /// from now on, so many times.
    #[cold]
    fn was_wrong(&self, rail: RailId, doublings: u8) {
        if let Some(health) = self.shared.health(rail) {
            health.handle_wrong_suspicion(doublings);
        }
    }

    /// If a lane was fenced because it stood still, and all that was on it has `arrived`, it did not, unless that was for a completion
    /// that has been lost.
    pub(super) fn all_had_arrived(&mut self, rail: RailId, arrived: Sequence) {
        let oldest = self
            .first_posted(rail)
            .and_then(|index| self.attempts.at(index));
        let has_lost = oldest.is_some_and(|oldest| oldest.is(Marks::OVERTAKEN));
        let lane = self.lanes.get_mut(rail.index());
        let is_wrong = |lane: &&mut Lane| {
            lane.next_sequence == arrived
                && lane.flight.posted() > 0
                && lane.suspect_since != Instant::MAX
                && !has_lost
        };
        if let Some(lane) = lane.filter(is_wrong) {
            lane.suspect_since = Instant::MAX;
            self.was_wrong(rail, 1);
        }
    }

    /// When a lane is suspected for lack of progress, and when the completion of its oldest work counts as lost because later ones have
    /// come; never, if none has. `None`: nothing is posted.
    fn progress_due(&self, rail: RailId) -> Option<(Instant, Instant)> {
        let lane = self.lanes.get(rail.index())?;
        let oldest = self.attempts.at(lane.flight.first_posted()?)?;
        let bytes = oldest
            .ahead_bytes()
            .saturating_add(u64::from(oldest.length));
        let delay = self
            .shared
            .delay_base(rail)
            .max(self.shared.delay_mean(rail));
        let passes = self.shared.rate(rail).time_for(bytes);
        // A rail that was suspected and was only slow is given more time.
        let health = self.shared.health(rail)?;
        let times = health.patience(lane.progress_at);
        let floor = self.config.progress_floor.times(times);
        let least = floor.max(Duration::from_millis(lane.limits.patience_ms.into()));
        let mut patience = (delay + passes).times(PROGRESS_FACTOR).max(least);
        if lane.probing {
            // The answer may take longer by now than it ever has.
            patience = patience.max(health.lone_interval(oldest.posted_at));
        }
        let due = lane.progress_at.max(oldest.posted_at) + patience;
        if !oldest.is(Marks::OVERTAKEN) {
            return Some((due, Instant::MAX));
        }
        // What was ahead of it has passed.
        let alone = delay.times(PROGRESS_FACTOR).max(least);
        let overdue_at = oldest.posted_at + passes + alone.times(OVERDUE_FACTOR);
        Some((due, overdue_at))
    }

    /// Arms the timer of a lane that has moved something, or been given something to move, at `now`.
    pub(super) fn arm_progress(&mut self, now: Instant, rail: RailId) {
        if self.next_timeout <= now + self.config.progress_floor {
            // No lane is due before that.
            return;
        }
        if let Some((due, overdue_at)) = self.progress_due(rail) {
            self.arm(due.min(overdue_at), Reason::Progress);
        }
    }

    /// What is due on one lane at `now`; arms what is due later.
    pub(super) fn lane_timers(&mut self, now: Instant, rail: RailId) {
        let Some(lane) = self.lanes.get(rail.index()) else {
            return;
        };
        match lane.phase {
            Phase::Opening { by, .. } if by <= now => self.opens_late(now, rail),
            Phase::Opening { by, .. } => self.arm(by, Reason::Opening),
            Phase::Open => self.check_progress(now, rail),
            Phase::Fencing(fence) => self.check_fence(now, rail, fence),
            Phase::Closed => self.check_probe(now, rail),
        }
    }

    /// A lane that said it was full with nothing posted has only `Writable` to wait for. If that is not said, what waits for it
    /// goes elsewhere, and it is asked by posting again; if it says so for too long, it stands still like any other.
    #[inline]
    pub(super) fn check_full(&mut self, now: Instant, rail: RailId) {
        let lane = self.lanes.get(rail.index());
        if lane.is_some_and(|lane| lane.full && lane.flight.posted() == 0) {
            self.stays_full(now, rail);
        }
    }

    #[cold]
    fn stays_full(&mut self, now: Instant, rail: RailId) {
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        let due = lane.progress_at + self.config.progress_floor;
        if now < due {
            return self.arm(due, Reason::Progress);
        }
        lane.progress_at = now;
        lane.idle.refusals = lane.idle.refusals.saturating_add(1);
        let refusals = lane.idle.refusals.into();
        let refused_for = self.config.progress_floor.times(refusals);
        let patience = Duration::from_millis(lane.limits.patience_ms.into());
        if refused_for >= self.config.fence_timeout.max(patience) {
            return self.break_lane(now, rail, Cause::Silent);
        }
        if lane.flight.bound() > 0 && !lane.probing {
            self.clear_lane(rail);
            self.arm(now + self.config.progress_floor, Reason::Progress);
        } else {
            lane.full = false;
            self.posts.push_back(self.lanes, u32::from(rail.0));
        }
        self.bind_all();
    }

    fn check_progress(&mut self, now: Instant, rail: RailId) {
        self.check_full(now, rail);
        let oldest = self
            .first_posted(rail)
            .and_then(|index| self.attempts.at(index));
        let Some((lane, oldest)) = self.lanes.get(rail.index()).zip(oldest) else {
            return;
        };
        let floor = self.config.progress_floor;
        let earliest = lane.progress_at.min(oldest.posted_at + floor) + floor;
        if now < earliest && self.next_timeout <= earliest {
            // Not due, and something is before it.
            return;
        }
        // What was sent elsewhere later has arrived.
        let has_arrived = oldest.is(Marks::DONE);
        let Some((due, overdue_at)) = self.progress_due(rail) else {
            return;
        };
        let is_overdue = overdue_at <= now;
        if now < due && !is_overdue {
            return self.arm(due.min(overdue_at), Reason::Progress);
        }
        let silent = self
            .shared
            .peer(rail)
            .is_some_and(|peer| self.is_silent(peer));
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        if lane.probing {
            if !self.shared.has_carried(rail)
                && let Some(health) = self.shared.health(rail)
            {
                // Or it would be looked at in vain for ever.
                health.handle_no_answer();
            }
            return self.start_fence(now, rail, Cause::Silent);
        }
        // A stalled process is not a dead link: nothing moves then, on no lane. But not for ever.
        let stood_since = lane.progress_at;
        let others_moved = self.last_progress.1 != rail && self.last_progress.0 > stood_since;
        let first = lane.suspect_since == Instant::MAX;
        lane.suspect_since = lane.suspect_since.min(stood_since);
        let too_long = now.since(lane.suspect_since) >= self.config.fence_timeout;
        if has_arrived || is_overdue || !first && (others_moved || silent || too_long) {
            let cause = if silent {
                Cause::PeerSilent
            } else {
                Cause::Silent
            };
            if !lane.idle.carried {
                // A rail that is far slower than believed would be fenced before its first completion, for ever.
                // If nothing came of it in all that time, as much as there is: or what is sent again and again would take all that it
                // carries.
                let doublings = if too_long && !others_moved { 3 } else { 1 };
                self.was_wrong(rail, doublings);
            }
            return self.break_lane(now, rail, cause);
        }
        // The timer runs anew either way, and the second firing decides.
        lane.progress_at = now;
        if first {
            self.send_oldest_elsewhere(rail);
        }
        self.arm_progress(now, rail);
    }

    fn send_oldest_elsewhere(&mut self, rail: RailId) {
        let mut next = self.first_posted(rail);
        for _ in 0..SUSPECT_COPIES {
            let Some(index) = next else {
                break;
            };
            self.duplicate(index);
            next = self.posted_after(rail, index);
        }
    }

    /// The port under a rail carries packets again: if it is paused, it is probed at once. An opening for a probe that began
    /// before that may have been lost, and is begun anew. A cooldown (mode `reset`) lasts as long as it does.
    fn port_active(&mut self, now: Instant, rail: RailId, phase: Phase) {
        if !self.decays(rail) {
            return;
        }
        let probing = self
            .lanes
            .get(rail.index())
            .is_some_and(|lane| lane.probing);
        if probing && matches!(phase, Phase::Opening { .. }) {
            self.open_failed(now, rail, Cause::Refused);
        }
        if let Some(health) = self.shared.health(rail) {
            health.hasten_probe(now);
        }
        self.arm_probe(rail);
    }

    /// Probes a paused rail by opening its lane anew, if that is due and nobody else does.
    fn check_probe(&mut self, now: Instant, rail: RailId) {
        let Some(peer) = self.shared.peer(rail).filter(|peer| self.knows(*peer)) else {
            return;
        };
        let Some(health) = self
            .shared
            .health(rail)
            .filter(|health| health.state() == RailState::Paused)
        else {
            return;
        };
        if !self.decays(rail) {
            if health.handle_expiry(now) {
                self.come_back(rail, true);
            }
            return self.arm_probe(rail);
        }
        if self.attempts.is_full() {
            // The lane would be opened for nothing.
            self.evict_lost();
        }
        if self.attempts.is_full() {
            return self.arm(now + health.lone_interval(now), Reason::Probe);
        }
        if self.scratch_bytes(peer) == 0 || !health.claim_probe(now, self.config.worker) {
            return self.arm_probe(rail);
        }
        let is_alone = self.is_without_rail(peer);
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return;
        };
        lane.probing = true;
        let interval = match is_alone {
            true => health.lone_interval(now),
            false => health.probe_interval(now),
        };
        let look = lane
            .look_span(health.paused_for(now))
            .min(self.config.open_timeout);
        let within = interval.max(look);
        self.open_lane(now, rail, now + within);
    }

    pub(super) fn arm_probe(&mut self, rail: RailId) {
        let closed = self
            .lanes
            .get(rail.index())
            .is_some_and(|lane| lane.phase == Phase::Closed);
        if let Some(at) = self
            .shared
            .health(rail)
            .and_then(|health| health.probe_at())
            .filter(|_| closed)
        {
            self.arm(at, Reason::Probe);
        }
    }

    /// Empties the row of a quiet lane, for another rail. Its epochs go on, so that what is still said of the
    /// old rail's means nothing to the new one.
    pub(super) fn free_lane(&mut self, rail: RailId) {
        let index = u32::from(rail.0);
        self.config.policy.forget(rail);
        self.posts.remove(self.lanes, index);
        self.actions.remove(self.lanes, index);
        self.messages.remove(self.lanes, index);
        self.changed_rails.remove(self.lanes, index);
        if let Some(lane) = self.lanes.get_mut(rail.index()) {
            debug_assert!(
                lane.is_quiet() && !lane.probing,
                "its row is emptied while it is {:?}, with {} on it",
                lane.phase,
                lane.flight.len()
            );
            *lane = Lane {
                epoch: lane.epoch,
                ..Lane::EMPTY
            };
        }
    }
}

impl<'a, P: Chooser> Orchestrator<'a, P> {
    /// Rails of a peer that this worker has a lane row for.
    pub(super) fn rails_of(&self, peer: PeerId) -> impl Iterator<Item = RailId> + use<'a, P> {
        let shared = self.shared;
        (0..self.lanes_used)
            .map(|index| RailId(index as u16))
            .filter(move |rail| shared.peer(*rail) == Some(peer))
    }
}
