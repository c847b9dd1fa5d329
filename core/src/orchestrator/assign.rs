//! Binding by [`Binding::Shares`]: a request gives its rails their shares when it is submitted, and each rail takes
//! its slices as it has room. No request waits for another, only for its own rails.

use super::bind::{Bound, Next};
use super::lane::Phase;
use super::settings::UNKNOWN;
use super::{Chooser, Orchestrator};
use crate::path::class::ClassSet;
use crate::plan::{PlanRail, PlanRails, of_rails};
use crate::rail::chooser::Binding;
use crate::rail::documented::{Shares, Targets};
use crate::time::Instant;
use crate::units::{RailId, RequestId, TransportId};

impl<P: Chooser> Orchestrator<'_, P> {
    /// Shares out what a request has not bound yet, if that is what the policy does.
    pub(super) fn assign(&mut self, now: Instant, id: RequestId) {
        if self.binding_for(id.index) != Binding::Shares {
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
        let transport = self.transport_of_rails(&rails);
        let policy = &mut self.config.policy;
        let shares = policy.allocate(transport, &targets, rest, slice_bytes);
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
        if self.config.policy.share_rows().is_none() {
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
        self.config.policy.shares(id.index)
    }

    /// The only place that writes shares, so that the rails know what is assigned to them.
    fn set_shares(&mut self, id: RequestId, shares: Shares) {
        let Some(row) = self.requests.get(id) else {
            return;
        };
        let before = self.shares_of(id);
        if let Some(plan) = self.plan(row.plan) {
            for (position, rail) in plan.rails(row.failover.rank()).iter().enumerate() {
                let policy = &self.config.policy;
                policy.give(rail.rail, shares.bytes(position));
                policy.take_back(rail.rail, before.bytes(position));
            }
        }
        self.config.policy.set_shares(id.index, shares);
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
                debug_assert!(
                    false,
                    "a share of rail {} of {}",
                    target.position,
                    rails.len()
                );
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

    fn transport_of_rails(&self, rails: &PlanRails) -> TransportId {
        let first = rails.first();
        first.map_or(UNKNOWN, |rail| self.transport_on(rail.rail))
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
        let transport = self.transport_of_rails(rails);
        let policy = &mut self.config.policy;
        let best = policy
            .best(transport, targets, shares.slice_bytes)
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
        let target = |(position, rail): (usize, &PlanRail)| {
            let transport = self.transport_on(rail.rail);
            self.config.policy.target(transport, position, *rail)
        };
        of_rails(usable.map(target))
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
