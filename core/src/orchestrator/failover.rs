//! Which of its plan's transports a request goes over: the best one with a usable rail, and not one that is slow beside
//! another.

use super::bind::idle;
use super::board::Way;
use super::{Event, Orchestrator, Reason};
use crate::failover::{Decision, Failover};
use crate::plan::{PLAN_RAILS_MAX, PLAN_TRANSPORTS_MAX, Plan, PlanRail, of_rails};
use crate::rail::spray::Spot;
use crate::time::{Duration, Instant};
use crate::units::{DeviceId, PlanId, RailId, RequestId};
use crate::work::Cause;

/// Transports of a plan are compared no more often than this.
const COMPARE_INTERVAL: Duration = Duration::from_micros(100);

/// A transport that passes less than half of what another one does is left for it.
fn is_slow(units: u64, other: u64) -> bool {
    units.saturating_mul(2) < other
}

/// And used again from four fifths of it on.
fn is_back(units: u64, other: u64) -> bool {
    units.saturating_mul(5) >= other.saturating_mul(4)
}

/// How fast each transport of a plan is, in units of [`crate::rail::RATE_UNIT`]; 0: it has no rail that can be used at once.
type Speeds = [u64; PLAN_TRANSPORTS_MAX];

/// How the transports of a plan compare.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranking {
    /// The one that new requests go over while it has a usable rail.
    preferred: u8,
    /// Those that are slow beside it, a bit each.
    slow: u8,
    compared_at: Instant,
}

impl Ranking {
    pub(super) const NEW: Self = Self {
        preferred: 0,
        slow: 0,
        compared_at: Instant::ZERO,
    };

    /// The one so far is left for an earlier one that has come back, or else for a later one that is much faster.
    fn compare(&mut self, speeds: &Speeds) {
        let speed = |rank: usize| speeds.get(rank).copied().unwrap_or(0);
        let used = usize::from(self.preferred);
        let is_better = |rank: &usize| speed(*rank) > 0 && is_back(speed(*rank), speed(used));
        let earlier = (0..used).find(is_better);
        // Of equal ones the better.
        let fastest = (used + 1..speeds.len())
            .rev()
            .max_by_key(|rank| speed(*rank));
        let later = fastest.filter(|rank| is_slow(speed(used), speed(*rank)));
        let best = earlier.or(later).unwrap_or(used);
        self.preferred = best as u8;
        // One without a usable rail may be about to have one: that is not the question here.
        let is_slow = |rank: &usize| speed(*rank) > 0 && is_slow(speed(*rank), speed(best));
        let slow = (0..speeds.len()).filter(is_slow);
        self.slow = slow.fold(0, |slow, rank| slow | 1 << rank);
    }

    fn is_slow(&self, rank: u8) -> bool {
        self.slow >> rank & 1 != 0
    }
}

/// Transports that are slow, but not broken.
impl Orchestrator<'_> {
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
        let mut speeds = Speeds::default();
        for (rank, speed) in ranks.zip(&mut speeds) {
            let told = || self.speed(of_rank(rank), |rail| self.shared.nominal_units(rail));
            let is_used = rank == preferred || rank == way.rank;
            let may_be_better = || rank < preferred || is_slow(used, told());
            if is_used || may_be_better() && self.look_at(now, of_rank(rank)) {
                *speed = self.learned(of_rank(rank));
            }
        }
        if let Some(row) = self.plans.get_mut(way.plan.index as usize) {
            row.ranking.compared_at = now;
            // One that has no usable rail is left for that.
            if used > 0 {
                row.ranking.compare(&speeds);
            }
        }
    }

    /// How fast the healthy rails of a way are together, as learned.
    fn learned(&self, way: Way) -> u64 {
        self.speed(way, |rail| self.shared.rate_units(rail))
    }

    /// How fast the healthy rails of a way are together. Those that share a device are as fast as the fastest of them.
    fn speed(&self, way: Way, units: impl Fn(RailId) -> u64) -> u64 {
        let mut devices: heapless::Vec<(Option<DeviceId>, u64), PLAN_RAILS_MAX> =
            heapless::Vec::new();
        let healthy = self.view().rails(way).iter();
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
        let rails = self.view().rails(way).clone();
        let spots = |rail: &PlanRail| self.view().spot(*rail, way.op);
        let open: heapless::Vec<Spot, PLAN_RAILS_MAX> = of_rails(rails.iter().filter_map(spots));
        self.open_more(now, way, None, !open.is_empty(), true);
        for (rail, bytes_max) in open.iter().filter_map(|spot| idle(now, spot)) {
            self.probe_rate(now, way.peer, rail, bytes_max);
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
        if best != failover.rank() && failover.leave(attempts_max, best) {
            self.switch(now, id, failover);
        }
    }
}

/// Transports that have no usable rail.
impl Orchestrator<'_> {
    pub(super) fn is_usable(&self, plan: &Plan, rank: u8) -> bool {
        plan.rails(rank)
            .iter()
            .any(|rail| self.is_healthy(rail.rail))
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
            Decision::Switch(_) => {
                self.switch(now, id, failover);
                true
            }
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

    fn switch(&mut self, now: Instant, id: RequestId, failover: Failover) {
        // Shares are counted by position among the rails that it leaves.
        self.unassign(id);
        if let Some(row) = self.requests.get_mut(id) {
            row.switched_from = Some(row.failover.rank());
            row.failover = failover;
        }
        self.change_line(id);
        self.switched.push_back(&mut self.requests, id.index);
        self.assign(now, id);
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
    use super::*;

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
                ..Ranking::NEW
            };
            ranking.compare(&speeds);
            assert_eq!((ranking.preferred, ranking.slow), (then, slow), "{name}");
        }
    }
}
