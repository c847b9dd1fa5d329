//! How a worker chooses rails: by core's own policies, or by one of another crate.

use polyrail_core::plan::{PLAN_RAILS_MAX, PlanRail};
use polyrail_core::rail::chooser::{Binding, Chooser, Sharing};
use polyrail_core::rail::documented::{Shares, Target, Targets};
use polyrail_core::rail::estimate::Sample;
use polyrail_core::rail::health::HealthMode;
use polyrail_core::rail::policies::Policies;
use polyrail_core::rail::select::{Candidate, Usable};
use polyrail_core::units::{RailId, TransportId};

/// What core is compiled for here.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one a worker, asked for each slice
pub(crate) enum Chosen<'a> {
    /// Core's policies.
    Shipped(Policies<'a>),
    /// Another crate's.
    Own(Box<dyn Chooser + 'a>),
}

/// Asks whichever it is.
macro_rules! ask {
    ($self:ident, $policy:ident => $answer:expr) => {
        match $self {
            Self::Shipped($policy) => $answer,
            Self::Own($policy) => $answer,
        }
    };
}

impl Chooser for Chosen<'_> {
    fn choose(
        &mut self,
        transport: TransportId,
        candidates: &[Candidate],
        length: u32,
    ) -> Option<usize> {
        ask!(self, policy => policy.choose(transport, candidates, length))
    }

    fn took(&mut self, transport: TransportId, rail: RailId) {
        ask!(self, policy => policy.took(transport, rail));
    }

    fn retain(&self, transport: TransportId, rails: &mut heapless::Vec<Usable, PLAN_RAILS_MAX>) {
        ask!(self, policy => policy.retain(transport, rails));
    }

    fn binding(&self, transport: TransportId) -> Binding {
        ask!(self, policy => policy.binding(transport))
    }

    fn health(&self, transport: TransportId) -> HealthMode {
        ask!(self, policy => policy.health(transport))
    }
}

impl Sharing for Chosen<'_> {
    fn share_rows(&self) -> Option<usize> {
        ask!(self, policy => policy.share_rows())
    }

    fn shares(&self, row: u32) -> Shares {
        ask!(self, policy => policy.shares(row))
    }

    fn set_shares(&mut self, row: u32, shares: Shares) {
        ask!(self, policy => policy.set_shares(row, shares));
    }

    fn give(&self, rail: RailId, bytes: u64) {
        ask!(self, policy => policy.give(rail, bytes));
    }

    fn take_back(&self, rail: RailId, bytes: u64) {
        ask!(self, policy => policy.take_back(rail, bytes));
    }

    fn assigned_bytes(&self, rail: RailId) -> u64 {
        ask!(self, policy => policy.assigned_bytes(rail))
    }

    fn target(&self, transport: TransportId, position: usize, rail: PlanRail) -> Target {
        ask!(self, policy => policy.target(transport, position, rail))
    }

    fn allocate(
        &mut self,
        transport: TransportId,
        targets: &Targets,
        length: u64,
        slice_bytes: u32,
    ) -> Shares {
        ask!(self, policy => policy.allocate(transport, targets, length, slice_bytes))
    }

    fn best(
        &mut self,
        transport: TransportId,
        targets: &Targets,
        slice_bytes: u32,
    ) -> Option<usize> {
        ask!(self, policy => policy.best(transport, targets, slice_bytes))
    }

    fn learn(&self, transport: TransportId, rail: RailId, sample: Sample) {
        ask!(self, policy => policy.learn(transport, rail, sample));
    }

    fn forget(&self, rail: RailId) {
        ask!(self, policy => policy.forget(rail));
    }
}
