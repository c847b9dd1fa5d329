//! Which of its plan's transports a request goes over: the best one with a usable rail, and not one that is slow beside
//! another.

use super::bind::idle;
use super::open_rails::Way;
use super::{Chooser, Event, Orchestrator, Reason};
use crate::failover::{Decision, Failover};
use crate::plan::{PLAN_RAILS_MAX, PLAN_TRANSPORTS_MAX, Plan, PlanRail, of_rails};
use crate::rail::spray::Spot;
use crate::rail::{RATE_UNIT, units_of};
use crate::time::{Duration, Instant};
use crate::units::{DeviceId, PlanId, RailId, Rate, RequestId};
use crate::work::Cause;

/// Transports of a plan are compared no more often than this.
const COMPARE_INTERVAL: Duration = Duration::from_micros(100);
/// A transport is left once it has been slow for so much time in which something was in flight there, and four base delays: one
/// that had to wait for a processor is not slow. As long a transport is kept that has just come into use.
const SLOW_SPAN: Duration = Duration::from_millis(10);
/// One that is slower than that is left sooner, see [`is_plain`], but not before so small a part of it, and so many bytes.
const PLAIN_PARTS: u64 = 8;
const PLAIN_BYTES: u64 = 256 * 1024;
/// A transport that was left is tried again after this, and twice that after each change that proved wrong, up to the second.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A transport that is left within this after it came into use should not have.
const PROOF_SPAN: Duration = Duration::from_millis(100);

/// A transport that passes less than half of what another one does is left for it.
fn is_slow(units: u64, other: u64) -> bool {
    units.saturating_mul(2) < other
}

/// And used again from four fifths of it on.
fn is_back(units: u64, other: u64) -> bool {
    units.saturating_mul(5) >= other.saturating_mul(4)
}

/// It is plain that a transport is slow after a quarter of `span` if it passes a quarter of what another one does, after a ninth
/// if it passes a sixth, and so on.
fn is_plain(units: u64, other: u64, busy: Duration, span: Duration) -> bool {
    let times = (other / units.max(1)).min(1 << 16);
    busy.times(times * times) >= span.times(4)
}

/// How fast it is with so many bytes to move at a time: what is far away passes little of what it could.
fn with_load(units: u64, delay: Duration, bytes: u64) -> u64 {
    let rate = Rate::from_bytes_per_sec(units.saturating_mul(RATE_UNIT));
    let bytes = bytes.clamp(1, u32::MAX.into());
    let on_way = rate.bytes_in(delay);
    units.saturating_mul(bytes) / bytes.saturating_add(on_way)
}

/// How fast each transport of a plan is, in units of [`crate::rail::RATE_UNIT`]; 0: it has no rail that can be used at once.
type Speeds = [u64; PLAN_TRANSPORTS_MAX];

/// What is seen of the transport in use, beside its speed.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Seen {
    /// What it has carried until now.
    bytes: u64,
    /// Since when nothing has been in flight; `None`: something is.
    idle_since: Option<Instant>,
}

/// A time in which the transport in use was slow beside another one.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Slow {
    /// So long something was in flight there.
    busy: Duration,
    /// What it had carried when that began.
    bytes: u64,
}

/// How the transports of a plan compare.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Ranking {
    /// The one that new requests go over while it has a usable rail.
    preferred: u8,
    /// Those that are slow beside it, a bit each.
    slow_ranks: u8,
    compared_at: Instant,
    /// Since another one has been much faster; `None`: it is not.
    slow: Option<Slow>,
    /// When the one in use came into use.
    changed_at: Instant,
    /// How fast the one before it was then.
    units_before: u64,
    /// How long until the next change, after one that proved wrong, and until one that was left is tried again.
    pause: Duration,
    /// The last change was one back from what proved wrong.
    corrected: bool,
}

impl Ranking {
    pub(super) const NEW: Self = Self {
        preferred: 0,
        slow_ranks: 0,
        compared_at: Instant::ZERO,
        slow: None,
        changed_at: Instant::ZERO,
        units_before: 0,
        pause: PAUSE_FIRST,
        corrected: false,
    };

    /// The one so far is left for an earlier one that has come back or is tried again, or else for a later one that has been
    /// much faster for so long. Whether it is left for one that is only tried.
    fn compare(&mut self, now: Instant, speeds: &Speeds, span: Duration, seen: Seen) -> bool {
        let speed = |rank: usize| speeds.get(rank).copied().unwrap_or(0);
        let used = usize::from(self.preferred);
        let compared_at = core::mem::replace(&mut self.compared_at, now);
        let idle = now.since(seen.idle_since.unwrap_or(now).max(compared_at));
        let busy = now.since(compared_at).minus(idle);
        let is_proven = !self.corrected || now >= self.changed_at + self.pause;
        let is_better = |rank: &usize| speed(*rank) > 0 && is_back(speed(*rank), speed(used));
        let may_return = is_proven && now >= self.changed_at + span;
        let back = (0..used).find(is_better).filter(|_| may_return);
        let is_due = now >= self.changed_at + self.pause;
        let tried = (0..used).find(|rank| is_due && speed(*rank) > 0);
        // Of equal ones the better.
        let later = (used + 1..speeds.len())
            .rev()
            .max_by_key(|rank| speed(*rank))
            .filter(|rank| is_proven && is_slow(speed(used), speed(*rank)));
        if later.is_none() {
            self.slow = None;
        }
        let later = later.filter(|rank| self.stays_slow(busy, speed(*rank), span, seen.bytes));
        if let Some(best) = back.or(tried).or(later) {
            self.change(now, best as u8, speed(used));
        }
        let best = usize::from(self.preferred);
        // One without a usable rail may be about to have one: that is not the question here.
        let is_slow = |rank: &usize| speed(*rank) > 0 && is_slow(speed(*rank), speed(best));
        let slow = (0..speeds.len()).filter(is_slow);
        self.slow_ranks = slow.fold(0, |slow, rank| slow | 1 << rank);
        back.is_none() && tried.is_some()
    }

    /// Whether the one in use has been slow beside one that is so fast for long enough, and has carried as little in that time:
    /// what is learned of it is low for a while after one completion that was seen late.
    fn stays_slow(&mut self, busy: Duration, other: u64, span: Duration, bytes: u64) -> bool {
        let begun = Slow {
            busy: Duration::ZERO,
            bytes,
        };
        let Some(slow) = &mut self.slow else {
            self.slow = Some(begun);
            return false;
        };
        slow.busy += busy;
        let carried = bytes.saturating_sub(slow.bytes);
        let passed = units_of(Rate::from_bytes_in(carried, slow.busy));
        if slow.busy < span {
            // It has not stood still: so much passed, and so slowly.
            let is_seen = carried >= PLAIN_BYTES && slow.busy >= span.divided_by(PLAIN_PARTS);
            return is_seen && is_plain(passed, other, slow.busy, span);
        }
        self.slow = Some(begun);
        is_slow(passed, other)
    }

    /// Another one comes into use instead of one that is so fast.
    fn change(&mut self, now: Instant, rank: u8, units: u64) {
        debug_assert!(
            rank != self.preferred && usize::from(rank) < PLAN_TRANSPORTS_MAX,
            "rank {rank} comes into use instead of {}",
            self.preferred
        );
        let is_return = rank < self.preferred;
        self.corrected = match is_return {
            // What it was left for is not much faster than it was.
            true => !is_slow(self.units_before, units),
            false => self.changed_at != Instant::ZERO && now < self.changed_at + PROOF_SPAN,
        };
        if self.corrected {
            self.pause = self.pause.times(2).min(PAUSE_MAX);
        } else if now >= self.changed_at + self.pause.times(4) {
            self.pause = PAUSE_FIRST;
        }
        self.preferred = rank;
        self.units_before = units;
        self.changed_at = now;
        self.slow = None;
    }

    fn is_slow(&self, rank: u8) -> bool {
        self.slow_ranks >> rank & 1 != 0
    }
}

/// Transports that are slow, but not broken.
impl<P: Chooser> Orchestrator<'_, P> {
    /// The transport that a new request goes over: one with a usable rail; the very best if there is none.
    pub(super) fn best_rank(&self, id: PlanId) -> u8 {
        let Some(plan) = self.plan(id) else {
            return 0;
        };
        let preferred = self.ranking(id).map_or(0, |ranking| ranking.preferred);
        let ranks = 0..plan.transports.len() as u8;
        let mut by_preference = core::iter::once(preferred).chain(ranks);
        by_preference
            .find(|rank| self.is_usable(plan, *rank))
            .unwrap_or(0)
    }

    fn ranking(&self, id: PlanId) -> Option<&Ranking> {
        let row = self.plans.get(id.index as usize)?;
        Some(&row.ranking)
    }

    /// Compares the transports of a plan, if there are several and it is time to. One that may be better than the one in use
    /// is looked at before it is used.
    #[cold] // 6 instructions a slice fewer, with that of `leave_slow`
    pub(super) fn compare_transports(&mut self, now: Instant, way: Way) {
        let Some(plan) = self.plan(way.plan).filter(|plan| plan.transports.len() > 1) else {
            return;
        };
        let ranks = 0..plan.transports.len() as u8;
        let Some(ranking) = self.ranking(way.plan) else {
            return;
        };
        if now < ranking.compared_at + COMPARE_INTERVAL {
            return;
        }
        let preferred = ranking.preferred;
        let of_rank = |rank| Way { rank, ..way };
        let used = self.learned(of_rank(preferred));
        // Where the one in use is faster than was told, others may be as well. Of rails that share a device each has learned its
        // own part only.
        let passes = self.speed(of_rank(preferred), |rail| self.shared.units_together(rail));
        let told_of_used = self.told(of_rank(preferred)).max(1);
        let believed = |units: u64| units.max(units.saturating_mul(passes) / told_of_used);
        let mut speeds = Speeds::default();
        for (rank, speed) in ranks.zip(&mut speeds) {
            if self.is_handed_over(way.plan, rank) {
                // What has no lanes is not faster than what has.
                continue;
            }
            let is_used = rank == preferred || rank == way.rank;
            let may_be_better =
                || rank < preferred || is_slow(used, believed(self.told(of_rank(rank))));
            if is_used || may_be_better() && self.look_at(now, of_rank(rank)) {
                *speed = match rank > preferred {
                    // It is not left for what no look has come back from.
                    true => self.shown(of_rank(rank), believed),
                    false => self.learned(of_rank(rank)),
                };
            }
        }
        self.leave_out_far(way, preferred, &mut speeds);
        let rails = self.view().rails(of_rank(preferred)).iter();
        let farthest = rails.map(|rail| self.shared.delay_base(rail.rail)).max();
        let span = SLOW_SPAN + farthest.unwrap_or(Duration::ZERO).times(4);
        let seen = self.seen(of_rank(preferred));
        let Some(row) = self.plans.get_mut(way.plan.index as usize) else {
            return;
        };
        if used == 0 {
            // One that has no usable rail is left for that.
            row.ranking.compared_at = now;
            return;
        }
        if row.ranking.compare(now, &speeds, span, seen) {
            let rank = row.ranking.preferred;
            self.forget_speed(Way { rank, ..way });
        }
    }

    /// The one in use is not left for a faster one that would pass less of what there is to move now: that one is farther away, as
    /// was told, or as looks have shown.
    fn leave_out_far(&self, way: Way, preferred: u8, speeds: &mut Speeds) {
        let rails = self.plan(way.plan).into_iter().flat_map(Plan::all_rails);
        let inflight = rails.map(|rail| self.shared.inflight_bytes(rail.rail));
        let bytes = inflight.fold(self.unbound_bytes(way.peer), u64::saturating_add);
        let passes = |rank: u8, units| {
            let rails = self.view().rails(Way { rank, ..way }).iter();
            let seen = rails.filter(|rail| self.shared.units_shown(rail.rail) > 0);
            let nearest = seen.map(|rail| self.shared.delay_mean(rail.rail)).min();
            with_load(units, nearest.unwrap_or(Duration::ZERO), bytes)
        };
        let used = speeds.get(usize::from(preferred)).copied().unwrap_or(0);
        let used_passes = passes(preferred, used);
        let later = (0..).zip(speeds).filter(|(rank, _)| *rank > preferred);
        for (rank, speed) in later {
            if is_slow(used, *speed) && passes(rank, *speed) < used_passes {
                *speed = 0;
            }
        }
    }

    /// What the rails of a way have carried, and whether something is in flight there.
    fn seen(&self, way: Way) -> Seen {
        let mut seen = Seen::default();
        let mut idle_since = Some(Instant::ZERO);
        for rail in self.view().rails(way) {
            let (bytes, done_at) = self.shared.done(rail.rail);
            seen.bytes = seen.bytes.saturating_add(bytes);
            let is_idle = self.shared.inflight_bytes(rail.rail) == 0;
            idle_since = idle_since.filter(|_| is_idle).map(|at| at.max(done_at));
        }
        Seen { idle_since, ..seen }
    }

    /// The rails of a way start as after an outage: what is known of their speed is old.
    fn forget_speed(&self, way: Way) {
        for rail in self.view().rails(way) {
            if self.shared.inflight_bytes(rail.rail) == 0 {
                self.shared.readmit(rail.rail);
            }
        }
    }

    /// How fast the healthy rails of a way are together, as learned.
    fn learned(&self, way: Way) -> u64 {
        self.speed(way, |rail| self.shared.rate_units(rail))
    }

    /// The same, as was told.
    fn told(&self, way: Way) -> u64 {
        self.speed(way, |rail| self.shared.nominal_units(rail))
    }

    /// The same, as they have shown: by slices, or, if they have carried none, by looks. A look shows that a rail carries bytes. How
    /// fast, its device has told, whose own bytes look slow if they are farther away than was told. What processors carry
    /// is as fast as there are free ones: of that no more is believed than looks show, or was told.
    fn shown(&self, way: Way, believed: impl Fn(u64) -> u64) -> u64 {
        self.speed(way, |rail| {
            let shown = self.shared.units_shown(rail);
            if shown == 0 || self.shared.has_carried(rail) {
                return shown;
            }
            let told = believed(self.shared.nominal_units(rail));
            match self.shared.carries_itself(rail) {
                true => told,
                false => shown.min(told),
            }
        })
    }

    /// How fast the healthy rails of a way are together. Those that share a device are as fast as the fastest of them.
    fn speed(&self, way: Way, units: impl Fn(RailId) -> u64) -> u64 {
        let mut devices: heapless::Vec<(Option<DeviceId>, u64), PLAN_RAILS_MAX> =
            heapless::Vec::new();
        let healthy = self.view().rails_in_use(way);
        for rail in healthy.filter(|rail| self.is_healthy(rail.rail)) {
            let (device, units) = (self.shared.device_of(rail.rail), units(rail.rail));
            match devices.iter_mut().find(|(known, _)| *known == device) {
                Some((_, most)) => *most = units.max(*most),
                None => devices.push((device, units)).unwrap_or(()),
            }
        }
        devices.iter().map(|(_, units)| units).sum()
    }

    /// Opens the lanes of a way, and looks how fast those are now that are open. Whether any is.
    fn look_at(&mut self, now: Instant, way: Way) -> bool {
        let rails = self.allowed(way, None);
        let spots = |rail: &PlanRail| self.view().spot(*rail, way.op);
        let open: heapless::Vec<Spot, PLAN_RAILS_MAX> = of_rails(rails.iter().filter_map(spots));
        self.open_more(now, way, None, !open.is_empty(), true);
        let span = self.config.idle_look;
        for (rail, bytes_max) in open.iter().filter_map(|spot| idle(now, spot, span)) {
            self.probe_rate(now, way.peer, rail, (bytes_max, false));
        }
        !open.is_empty()
    }

    /// A request goes on over another transport if its own is slow beside that one.
    #[cold] // see `compare_transports`
    pub(super) fn leave_slow(&mut self, now: Instant, id: RequestId) {
        let Some(row) = self.requests.get(id) else {
            return;
        };
        let (plan, mut failover) = (row.plan, row.failover);
        let is_slow = self
            .ranking(plan)
            .is_some_and(|ranking| ranking.is_slow(failover.rank()));
        // The last switch is told before the next one.
        if !is_slow || row.switched_from.is_some() {
            return;
        }
        let best = self.best_rank(plan);
        let attempts_max = self.config.failover_attempts_max;
        let is_ours = !self.is_handed_over(plan, best);
        if best != failover.rank() && is_ours && failover.leave(attempts_max, best) {
            self.switch(now, id, failover);
        }
    }
}

/// Transports that have no usable rail.
impl<P: Chooser> Orchestrator<'_, P> {
    pub(super) fn is_usable(&self, plan: &Plan, rank: u8) -> bool {
        let mut rails = plan.rails(rank).iter();
        rails.any(|rail| self.is_healthy(rail.rail) && !self.view().stands_by(rail.rail))
    }

    /// The transport of a request has no usable rail: it goes on with another one, or fails if it has done that
    /// too often. Whether it may be bound again now.
    pub(super) fn fail_over(&mut self, now: Instant, id: RequestId) -> bool {
        let Some(row) = self
            .requests
            .get(id)
            // The last switch is told before the next one.
            .filter(|row| row.switched_from.is_none())
        else {
            return false;
        };
        let mut failover = row.failover;
        let Some(plan) = self.plan(row.plan) else {
            return false;
        };
        if let Some(until) = self.is_doubted_until(now, plan, failover.rank()) {
            // That is no reason yet to leave it.
            self.arm(until, Reason::Bind);
            return false;
        }
        let attempts_max = self.config.failover_attempts_max;
        let ranks = plan.transports.len() as u8;
        let decision = failover.decide(attempts_max, ranks, |rank| self.is_usable(plan, *rank));
        match decision {
            Decision::Stay => {
                if let Some(row) = self.requests.get_mut(id) {
                    row.failover = failover;
                }
                false
            }
            Decision::Exhausted => {
                self.fail_request(now, id, Cause::FailoverLimit);
                false
            }
            Decision::Barren(cause) => {
                self.fail_request(now, id, cause);
                false
            }
            Decision::Switch(_) => self.switch(now, id, failover),
        }
    }

    /// If a rail of a transport is being looked at because of an error: until when that is waited for.
    fn is_doubted_until(&self, now: Instant, plan: &Plan, rank: u8) -> Option<Instant> {
        let rails = plan.rails(rank).iter();
        let looks = rails.filter_map(|rail| self.shared.health(rail.rail)?.doubted_at());
        let ends = looks.filter(|erred_at| *erred_at <= now);
        ends.map(|erred_at| erred_at + self.config.progress_floor)
            .filter(|until| now < *until)
            .max()
    }

    /// Whether it may be bound there.
    fn switch(&mut self, now: Instant, id: RequestId, failover: Failover) -> bool {
        // Shares are counted by position among the rails that it leaves.
        self.unassign(id);
        if let Some(row) = self.requests.get_mut(id) {
            debug_assert!(
                row.switched_from.is_none() && row.failover.rank() != failover.rank(),
                "request {} goes from {} to {}, and its last switch was from {:?}",
                id.index,
                row.failover.rank(),
                failover.rank(),
                row.switched_from
            );
            row.switched_from = Some(row.failover.rank());
            row.failover = failover;
        }
        self.switched.push_back(&mut self.requests, id.index);
        if self.leaves(now, id) {
            return false;
        }
        self.change_line(id);
        self.assign(now, id);
        true
    }

    /// A request that takes other rails from now on stands in their line.
    fn change_line(&mut self, id: RequestId) {
        let (Some(row), Some(route)) = (self.requests.get(id), self.route_of(id.index)) else {
            return;
        };
        let peer = row.peer;
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.pending.reroute(&mut self.requests, id.index, route);
        }
    }

    /// A switch of transports, once.
    pub(super) fn failover_event(&mut self, index: u32) -> Option<Event> {
        let id = self.requests.id_at(index)?;
        let to = self.transport_of(id)?;
        let row = self.requests.get_mut(id)?;
        let (tag, attempt) = (row.tag, row.failover.used());
        let (plan, from) = (row.plan, row.switched_from.take()?);
        let from = self.transport_at(plan, from)?;
        self.bind_all();
        Some(Event::Failover {
            tag,
            from,
            to,
            attempt,
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::rail::RATE_UNIT;

    /// So long a transport has to be slow here.
    const SPAN: Duration = Duration::from_millis(3);
    /// It carries nothing, but is to.
    const BUSY: Seen = Seen {
        bytes: 0,
        idle_since: None,
    };

    #[test]
    fn a_transport_is_left_below_half_and_used_again_from_four_fifths() {
        // (name, used before, speeds, used then, those that are slow)
        let cases = [
            ("half is enough", 0, [50, 100, 0, 0], 0, 0),
            ("less is not", 0, [49, 100, 0, 0], 1, 0b1),
            ("the fastest one", 0, [10, 30, 100, 0], 2, 0b11),
            ("the first of those", 0, [10, 100, 100, 0], 1, 0b1),
            ("not back yet", 1, [79, 100, 0, 0], 1, 0),
            ("back", 1, [80, 100, 0, 0], 0, 0),
            ("the best that is back", 2, [80, 100, 100, 0], 0, 0),
            ("nor is the second one", 2, [10, 79, 100, 0], 2, 0b1),
            ("left again for a third", 1, [10, 20, 100, 0], 2, 0b11),
            ("what cannot be used is not slow", 0, [100, 0, 0, 0], 0, 0),
        ];
        for (name, preferred, speeds, then, slow) in cases {
            let mut ranking = Ranking {
                preferred,
                changed_at: at(950),
                ..Ranking::NEW
            };
            for millis in [1_000, 1_003] {
                assert!(
                    !ranking.compare(at(millis), &speeds, SPAN, BUSY),
                    "{name}: tried"
                );
            }
            assert_eq!(
                (ranking.preferred, ranking.slow_ranks),
                (then, slow),
                "{name}"
            );
        }
    }

    /// The speed of a first and of a second transport.
    type Step = (u64, [u64; 2]);

    #[test]
    fn a_transport_is_left_when_it_stays_slow_and_tried_again_after_a_while() {
        const SLOW: [u64; 2] = [1, 100];
        const WELL: [u64; 2] = [100, 100];
        // (name, from when in ms and the speeds until the next row, when which one comes into use)
        type Case = (&'static str, &'static [Step], &'static [(u64, u8)]);
        let cases: [Case; 6] = [
            ("slow for a moment", &[(0, SLOW), (3, WELL)], &[]),
            (
                "again and again",
                &[(0, SLOW), (2, WELL), (3, SLOW), (5, WELL)],
                &[],
            ),
            (
                "slow, then well",
                &[(0, SLOW), (50, WELL)],
                &[(3, 1), (50, 0)],
            ),
            (
                "slow for good",
                &[(0, SLOW)],
                &[
                    (3, 1),
                    (103, 0),
                    (107, 1),
                    (307, 0),
                    (311, 1),
                    (711, 0),
                    (715, 1),
                ],
            ),
            // As fast as was told it never is.
            (
                "the second one is no faster",
                &[(0, SLOW), (4, [1, 1]), (7, SLOW), (210, [1, 1])],
                &[(3, 1), (6, 0), (209, 1), (212, 0)],
            ),
            (
                "looks say it is well, and it is not",
                &[(0, SLOW), (20, WELL), (21, SLOW), (30, WELL), (150, SLOW)],
                &[
                    (3, 1),
                    (20, 0),
                    (24, 1),
                    (224, 0),
                    (228, 1),
                    (628, 0),
                    (632, 1),
                ],
            ),
        ];
        for (name, steps, changes) in cases {
            let mut ranking = Ranking::NEW;
            let mut seen = std::vec::Vec::new();
            for millis in 0..1_000 {
                let began = |(from, _): &&Step| *from <= millis;
                let (_, [first, second]) = steps.iter().rfind(began).unwrap();
                let before = ranking.preferred;
                // The first look is at 1 s.
                let at = at(1_000 + millis);
                ranking.compare(at, &[*first, *second, 0, 0], SPAN, BUSY);
                if ranking.preferred != before {
                    seen.push((millis, ranking.preferred));
                }
            }
            assert_eq!(seen, changes, "{name}");
        }
    }

    #[test]
    fn a_transport_that_carries_much_is_not_left_for_what_is_learned_of_it() {
        // (bytes that pass in a millisecond, whether it is left): the other one passes 100 units a second.
        let half = 100 * RATE_UNIT / 2 / 1_000;
        for (bytes, is_left) in [(half + 100, false), (half - 100, true)] {
            let mut ranking = Ranking::NEW;
            for millis in 0..20 {
                let seen = Seen {
                    bytes: millis * bytes,
                    ..BUSY
                };
                ranking.compare(at(1_000 + millis), &[1, 100, 0, 0], SPAN, seen);
            }
            assert_eq!(ranking.preferred == 1, is_left, "{bytes}");
        }
    }

    #[test]
    fn a_transport_that_is_much_slower_is_left_sooner_unless_it_stands_still() {
        // (part of the other one's rate, when it is left, in steps of 100 us): with 256 KiB, after 4 / part^2 of the span.
        let other = 40_000 * RATE_UNIT / 10_000;
        let cases = [(2, 30), (3, 14), (4, 8), (8, 9), (16, 18), (0, 30)];
        for (part, left_at) in cases {
            let bytes = other.checked_div(part).map_or(0, |bytes| bytes - 1_000);
            let mut ranking = Ranking::NEW;
            let left = (0..100).find(|step| {
                let seen = Seen {
                    bytes: step * bytes,
                    ..BUSY
                };
                let now = at(1_000) + Duration::from_micros(100 * step);
                ranking.compare(now, &[1, 40_000, 0, 0], SPAN, seen);
                ranking.preferred == 1
            });
            assert_eq!(left, Some(left_at), "one part in {part}");
        }
    }

    #[test]
    fn a_transport_that_has_little_to_move_is_not_slow() {
        // (for how much of each ms something is in flight, in us, when it is left)
        for (busy, left_at) in [(1_000, Some(3)), (500, Some(6)), (0, None)] {
            let mut ranking = Ranking::NEW;
            let left = (0..100).find(|millis| {
                let now = at(1_000 + millis);
                let seen = Seen {
                    idle_since: Some(at(999 + millis) + Duration::from_micros(busy)),
                    ..BUSY
                };
                ranking.compare(now, &[1, 100, 0, 0], SPAN, seen);
                ranking.preferred == 1
            });
            assert_eq!(left, left_at, "{busy}");
        }
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }
}
