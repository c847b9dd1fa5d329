//! What a policy says of single transports, asked of it by rail, by plan and by request.

use super::{Chooser, Orchestrator};
use crate::plan::Plan;
use crate::rail::chooser::Binding;
use crate::rail::health::HealthMode;
use crate::units::{PlanId, RailId, TransportId};

/// In place of the transport of a rail that has none.
pub(super) const UNKNOWN: TransportId = TransportId(u8::MAX);

impl<P: Chooser> Orchestrator<'_, P> {
    /// The rails of a plan are these transports' from now on.
    pub(super) fn know_transports(&mut self, plan: &Plan) {
        for row in &plan.transports {
            for rail in &row.rails {
                if let Some(lane) = self.lanes.get_mut(rail.rail.index()) {
                    lane.transport = row.transport;
                }
            }
        }
    }

    pub(super) fn transport_on(&self, rail: RailId) -> TransportId {
        let lane = self.lanes.get(rail.index());
        lane.map_or(TransportId(0), |lane| lane.transport)
    }

    /// How slices on a rail are bound.
    pub(super) fn binding_of(&self, rail: RailId) -> Binding {
        self.config.policy.binding(self.transport_on(rail))
    }

    /// How a rail is paused and comes back.
    pub(super) fn health_mode_of(&self, rail: RailId) -> HealthMode {
        self.config.policy.health(self.transport_on(rail))
    }

    /// Whether a rail comes back by probes.
    pub(super) fn decays(&self, rail: RailId) -> bool {
        self.health_mode_of(rail) == HealthMode::Decay
    }

    /// How slices on the transport at a rank of a plan are bound.
    pub(super) fn binding_at(&self, plan: PlanId, rank: u8) -> Binding {
        let transport = self.transport_at(plan, rank);
        self.config.policy.binding(transport.unwrap_or(UNKNOWN))
    }

    /// How those of a request are.
    pub(super) fn binding_for(&self, index: u32) -> Binding {
        match self.requests.at(index) {
            Some(row) => self.binding_at(row.plan, row.failover.rank()),
            None => self.config.policy.binding(UNKNOWN),
        }
    }

    /// Whether all transports of a plan spray.
    pub(super) fn all_spray(&self, plan: &Plan) -> bool {
        let mut transports = plan.transports.iter();
        transports.all(|row| self.config.policy.binding(row.transport) == Binding::Runs)
    }
}
