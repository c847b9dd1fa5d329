//! Binding for `Documented`: a request gives its rails their shares when it is submitted, and each rail takes
//! its slices as it has room. No request waits for another, only for its own rails.

use super::Orchestrator;
use super::bind::{Bound, Next};
use super::lane::Phase;
use crate::path::class::ClassSet;
use crate::plan::{PlanRails, of_rails};
use crate::rail::documented::{DocumentedConfig, Shares, Target, Targets};
use crate::rail::select::{Candidate, Policy};
use crate::time::Instant;
use crate::units::{RailId, RequestId};

impl Orchestrator<'_> {
    /// Shares out what a request has not bound yet, if that is what the policy does.
    pub(super) fn assign(&mut self, now: Instant, id: RequestId) {
        if self.policy_for(id.index) != Policy::Documented {
            return;
        }
        let Some(row) = self.requests.get(id) else {
            return;
        };
        let (rest, rank) = (row.length - row.cursor, row.failover.rank());
        let (peer, length) = (row.peer, row.length);
        let Some(plan) = self.plan(row.plan).filter(|_| rest > 0) else {
            return;
        };
        let rails = plan.rails(rank).clone();
        let classes = self.wished(now, peer, length, &rails);
        let targets = self.targets(&rails, classes);
        let slice_bytes = self.shared.slice_bytes();
        let config = self.documented_on(&rails);
        let shares = self.selector.allocate(&config, &targets, rest, slice_bytes);
        self.set_shares(id, shares);
    }

    /// Takes all shares of a request back.
    pub(super) fn unassign(&mut self, id: RequestId) {
        if !self.shares_of(id).is_empty() {
            self.set_shares(id, Shares::NONE);
        }
    }

    /// Takes back the shares of all requests with a plan that is about to be replaced: they are counted by
    /// position in it.
    pub(super) fn unassign_plan(&mut self, plan: u32) {
        if !self.some_has(Policy::Documented) {
            return;
        }
        for index in 0..self.requests.capacity() as u32 {
            if self
                .requests
                .at(index)
                .is_some_and(|row| row.plan.index == plan)
                && let Some(id) = self.requests.id_at(index)
            {
                self.unassign(id);
            }
        }
    }

    pub(super) fn shares_of(&self, id: RequestId) -> Shares {
        let shares = self.shares.get(id.index as usize);
        shares.copied().unwrap_or(Shares::NONE)
    }

    /// The only place that writes shares, so that the rails know what is assigned to them.
    fn set_shares(&mut self, id: RequestId, shares: Shares) {
        let Some(row) = self.requests.get(id) else {
            return;
        };
        let before = self.shares_of(id);
        if let Some(plan) = self.plan(row.plan) {
            for (position, rail) in plan.rails(row.failover.rank()).iter().enumerate() {
                self.shared.assign(rail.rail, shares.bytes(position));
                self.shared.unassign(rail.rail, before.bytes(position));
            }
        }
        if let Some(row) = self.shares.get_mut(id.index as usize) {
            *row = shares;
        }
    }

    /// Binds the next slice of a request to a rail that has a share of it, and room.
    pub(super) fn bind_share(&mut self, now: Instant, new: Next) -> Bound {
        let Some((plan, rank)) = self
            .requests
            .get(new.request)
            .and_then(|row| Some((self.plan(row.plan)?, row.failover.rank())))
        else {
            return Bound::NoRail;
        };
        let rails = plan.rails(rank).clone();
        let (peer, length) = (plan.peer, self.length(new.request));
        if !rails.iter().any(|rail| self.is_healthy(rail.rail)) {
            return Bound::NoRail;
        }
        let classes = self.wished(now, peer, length, &rails);
        let targets = self.targets(&rails, classes);
        if targets.is_empty() {
            // The lanes that are being fenced will be open again.
            return Bound::Wait;
        }
        self.reassign(now, new.request, &rails, &targets);
        for target in &targets {
            let Some(rail) = rails.get(target.position).copied() else {
                continue;
            };
            let shares = self.fitted_shares(new.request, rail.rail);
            if shares.count(target.position) == 0 {
                continue;
            }
            self.open_lane(now, rail.rail, self.open_by(now, rail.rail));
            let length = u32::try_from(self.rest(new.request))
                .unwrap_or(u32::MAX)
                .min(shares.slice_bytes);
            let next = Next { length, ..new };
            let has_room = self
                .candidate(rail, &next, self.shared.line(self.config.worker))
                .is_some_and(|candidate| candidate.has_room);
            if has_room && self.bind_to(now, rail.rail, next).is_some() {
                let mut left = shares;
                left.take_one(target.position);
                self.set_shares(new.request, left);
                return Bound::Yes;
            }
        }
        Bound::Wait
    }

    /// What the policy goes by on rails of one transport.
    fn documented_on(&self, rails: &PlanRails) -> DocumentedConfig {
        let first = rails.first();
        first.map_or(self.config.documented, |rail| self.documented_of(rail.rail))
    }

    fn length(&self, request: RequestId) -> u64 {
        self.requests.get(request).map_or(0, |row| row.length)
    }

    /// Bytes of a request that have no rail yet.
    fn rest(&self, request: RequestId) -> u64 {
        self.requests
            .get(request)
            .map_or(0, |row| row.length - row.cursor)
    }

    /// Gives the shares of rails that cannot be used to the best of those that can. A request that has no
    /// shares, because there was no rail for it or its plan has changed, gets them now.
    fn reassign(&mut self, now: Instant, request: RequestId, rails: &PlanRails, targets: &Targets) {
        let mut shares = self.shares_of(request);
        if shares.is_empty() {
            return self.assign(now, request);
        }
        let mut lost = 0_u16;
        for position in 0..crate::plan::PLAN_RAILS_MAX {
            if !targets.iter().any(|target| target.position == position) {
                lost = lost.saturating_add(shares.take_all(position));
            }
        }
        if lost == 0 {
            return;
        }
        let config = self.documented_on(rails);
        let best = self
            .selector
            .best(&config, targets, shares.slice_bytes)
            .and_then(|best| targets.get(best));
        if let Some(best) = best {
            shares.add(best.position, lost);
        }
        self.set_shares(request, shares);
    }

    /// The shares of a request, in slices that the rail's lane can take.
    fn fitted_shares(&mut self, request: RequestId, rail: RailId) -> Shares {
        let mut shares = self.shares_of(request);
        let limit = self
            .lanes
            .get(rail.index())
            .filter(|lane| lane.phase == Phase::Open)
            .map_or(u32::MAX, |lane| lane.work_bytes_max());
        if shares.slice_bytes > limit {
            shares.fit(limit);
            self.set_shares(request, shares);
        }
        shares
    }

    /// The healthy rails of a plan, of some classes or of all, as the document sees them. A lane that is being fenced
    /// has failed.
    fn targets(&self, rails: &PlanRails, classes: Option<ClassSet>) -> Targets {
        let is_usable = |rail: RailId| {
            let lane = self.lanes.get(rail.index());
            self.is_healthy(rail)
                && !self.view().stands_by(rail)
                && lane.is_some_and(|lane| !matches!(lane.phase, Phase::Fencing(_)))
        };
        let usable = rails
            .iter()
            .enumerate()
            .filter(|(_, rail)| classes.is_none_or(|classes| classes.contains(rail.class)))
            .filter(|(_, rail)| is_usable(rail.rail));
        of_rails(usable.map(|(position, rail)| self.target(position, rail.rail, rail.tier)))
    }

    fn target(&self, position: usize, rail: RailId, tier: u8) -> Target {
        let given = self.shared.assigned_bytes(rail);
        Target {
            position,
            tier,
            inflight_bytes: self.shared.inflight_bytes(rail).saturating_add(given),
            bandwidth: self.shared.bandwidth(rail, &self.documented_of(rail)),
        }
    }

    /// The best of the candidates with room, for a slice that is sent again ("prioritizing reliability"). The
    /// position in `candidates`.
    pub(super) fn best_with_room(
        &mut self,
        candidates: &[Candidate],
        length: u32,
    ) -> Option<usize> {
        let roomy = candidates
            .iter()
            .enumerate()
            .filter(|(_, candidate)| candidate.has_room);
        let targets: Targets =
            of_rails(roomy.map(|(position, candidate)| {
                self.target(position, candidate.rail, candidate.tier)
            }));
        let first = candidates.first()?;
        let config = self.documented_of(first.rail);
        let best = self.selector.best(&config, &targets, length)?;
        targets.get(best).map(|target| target.position)
    }

    /// Bytes that this worker's requests have assigned to a rail.
    pub(super) fn own_assigned_bytes(&self, rail: RailId) -> u64 {
        let of_request = |id: RequestId, row: &super::RequestRow| {
            let plan = self.plan(row.plan)?;
            let rails = plan.rails(row.failover.rank());
            let position = rails.iter().position(|other| other.rail == rail)?;
            Some(self.shares_of(id).bytes(position))
        };
        self.requests
            .iter()
            .filter_map(|(id, row)| of_request(id, row))
            .sum()
    }
}
