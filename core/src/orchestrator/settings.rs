//! What is configured for single transports, where that differs from what is configured for all.

use super::{Config, Orchestrator};
use crate::plan::Plan;
use crate::rail::documented::DocumentedConfig;
use crate::rail::health::HealthMode;
use crate::rail::select::Policy;
use crate::units::{PlanId, RailId, TransportId};

/// How rails of one transport are chosen, paused and learned of.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TransportConfig {
    /// In place of [`Config::policy`].
    pub policy: Policy,
    /// In place of [`Config::health`].
    pub health: HealthMode,
    /// In place of [`Config::documented`].
    pub documented: DocumentedConfig,
}

impl TransportConfig {
    /// What is said of all transports.
    pub(super) fn of_all(config: &Config) -> Self {
        Self {
            policy: config.policy,
            health: config.health,
            documented: config.documented,
        }
    }

    /// [`Policy::Documented`] without smart scheduling is another policy.
    pub(super) fn policy(&self) -> Policy {
        match self.policy {
            Policy::Documented => self.documented.policy(),
            policy => policy,
        }
    }
}

/// Rows for the turns of [`Policy::RoundRobin`]; transports beyond share them.
const TURNS: usize = 8;

/// Where `RoundRobin` is, on each transport.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns([RailId; TURNS]);

impl Turns {
    /// Before the first rail.
    pub(super) const START: Self = Self([RailId(u16::MAX); TURNS]);

    /// The rail that took the last slice of a transport.
    pub(super) fn last(&self, transport: TransportId) -> RailId {
        let [first, ..] = self.0;
        let last = self.0.get(transport.index() % TURNS);
        last.copied().unwrap_or(first)
    }

    pub(super) fn took(&mut self, transport: TransportId, rail: RailId) {
        if let Some(last) = self.0.get_mut(transport.index() % TURNS) {
            *last = rail;
        }
    }
}

impl<'a> Orchestrator<'a> {
    /// Gives transports settings of their own, by the numbers that plans have for them. Those beyond the list have what
    /// [`Config`] says. To be called before the first plan is installed.
    pub fn with_transports(mut self, transports: &'a [TransportConfig]) -> Self {
        self.transports = transports;
        self
    }

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

    /// The settings of a rail's transport, if it has its own.
    fn own_settings(&self, rail: RailId) -> Option<&'a TransportConfig> {
        if self.transports.is_empty() {
            return None;
        }
        self.transports.get(self.transport_on(rail).index())
    }

    /// How a rail's transport chooses.
    pub(super) fn policy_of(&self, rail: RailId) -> Policy {
        let own = self.own_settings(rail);
        own.map_or(self.config.policy, TransportConfig::policy)
    }

    /// How a rail is paused and comes back.
    pub(super) fn health_mode_of(&self, rail: RailId) -> HealthMode {
        let own = self.own_settings(rail);
        own.map_or(self.config.health, |own| own.health)
    }

    /// Whether a rail comes back by probes.
    pub(super) fn decays(&self, rail: RailId) -> bool {
        self.health_mode_of(rail) == HealthMode::Decay
    }

    /// The parameters of [`Policy::Documented`] for a rail.
    pub(super) fn documented_of(&self, rail: RailId) -> DocumentedConfig {
        let own = self.own_settings(rail);
        own.map_or(self.config.documented, |own| own.documented)
    }

    /// How the transport at a rank of a plan chooses.
    pub(super) fn policy_at(&self, plan: PlanId, rank: u8) -> Policy {
        if self.transports.is_empty() {
            return self.config.policy;
        }
        let rails = self.plan(plan).map(|plan| plan.rails(rank));
        let first = rails.and_then(|rails| rails.first());
        first.map_or(self.config.policy, |rail| self.policy_of(rail.rail))
    }

    /// How the transport chooses that a request goes over.
    pub(super) fn policy_for(&self, index: u32) -> Policy {
        let row = self.requests.at(index);
        row.map_or(self.config.policy, |row| {
            self.policy_at(row.plan, row.failover.rank())
        })
    }

    /// Whether any transport has this policy.
    pub(super) fn some_has(&self, policy: Policy) -> bool {
        let mut own = self.transports.iter().map(TransportConfig::policy);
        self.config.policy == policy || own.any(|own| own == policy)
    }

    /// Whether all transports of a plan have this policy.
    pub(super) fn all_have(&self, plan: &Plan, policy: Policy) -> bool {
        let of = |rail: RailId| self.policy_of(rail) == policy;
        plan.all_rails().all(|rail| of(rail.rail))
    }
}
