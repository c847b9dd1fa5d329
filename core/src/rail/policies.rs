//! All of core's policies behind the seam, for who lets a configuration choose: `Spray`, and the baselines that it is compared
//! with.

use core::sync::atomic::Ordering::*;

use super::Shared;
use super::chooser::{Binding, Chooser, Sharing};
use super::documented::{DocumentedConfig, Selector, Shares, Target, Targets};
use super::estimate::Sample;
use super::health::HealthMode;
use super::select::{self, Candidate, Policy, Usable};
use crate::plan::{PLAN_RAILS_MAX, PlanRail, of_rails};
use crate::sync::AtomicU64;
use crate::units::{RailId, TransportId};

/// How rails of a transport are chosen, paused and learned of.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TransportConfig {
    /// How rails are chosen.
    pub policy: Policy,
    /// How rails are paused and come back.
    pub health: HealthMode,
    /// Parameters of [`Policy::Documented`], which they turn into [`Policy::RoundRobin`] if they say so.
    pub documented: DocumentedConfig,
}

impl TransportConfig {
    /// A policy with the defaults.
    pub const fn new(policy: Policy) -> Self {
        Self {
            policy,
            health: HealthMode::Decay,
            documented: DocumentedConfig::DEFAULT,
        }
    }

    /// [`Policy::Documented`] without smart scheduling is another policy.
    pub const fn policy(&self) -> Policy {
        match self.policy {
            Policy::Documented => self.documented.policy(),
            policy => policy,
        }
    }

    fn binding(&self) -> Binding {
        match self.policy() {
            Policy::Spray => Binding::Runs,
            Policy::RoundRobin | Policy::FixedTier1 | Policy::BestTwo => Binding::Slices,
            Policy::Documented => Binding::Shares,
        }
    }
}

/// What one worker's [`Policies`] go by.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PoliciesConfig {
    /// Of all transports but those that have their own.
    pub usual: TransportConfig,
    /// Seed of this worker's random numbers. The same seed and calls give the same answers; workers should differ.
    pub seed: u64,
}

impl PoliciesConfig {
    /// A policy with the defaults, for a worker.
    pub const fn new(worker: u16, policy: Policy) -> Self {
        Self {
            usual: TransportConfig::new(policy),
            seed: worker as u64,
        }
    }
}

/// What `Documented` remembers of a rail. Workers share it; rows are the caller's memory.
#[derive(Debug)]
pub struct Given {
    /// Bytes of requests that only this rail is to carry and that are not in flight.
    assigned_bytes: AtomicU64,
    /// Bytes per second as they are learned, the bits of an `f64`; 0: nothing learned.
    bandwidth: AtomicU64,
}

impl Given {
    /// Of a rail that nothing is known of, for the arrays that a caller hands in.
    #[allow(clippy::declare_interior_mutable_const)] // a pattern to repeat, not a shared value
    pub const NOTHING: Self = Self {
        assigned_bytes: AtomicU64::new(0),
        bandwidth: AtomicU64::new(0),
    };
}

#[cfg(feature = "serde")]
impl Given {
    fn values(&self) -> [u64; 2] {
        [
            self.assigned_bytes.load(Relaxed),
            self.bandwidth.load(Relaxed),
        ]
    }
}

/// Memory for [`Policies`], owned by the caller. Without [`Policy::Documented`] it may all be empty.
#[derive(Debug, Default)]
pub struct PolicyTables<'a> {
    /// As many as there are rails, for all workers.
    pub rails: &'a [Given],
    /// As many as the worker has requests.
    pub shares: &'a mut [Shares],
}

/// Rows for the turns of [`Policy::RoundRobin`]; transports beyond share them.
const TURNS: usize = 8;

/// Where `RoundRobin` is, on each transport.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Turns([RailId; TURNS]);

impl Turns {
    /// The rail that took the last slice of a transport.
    fn last(&self, transport: TransportId) -> RailId {
        let [first, ..] = self.0;
        let last = self.0.get(transport.index() % TURNS);
        last.copied().unwrap_or(first)
    }

    fn took(&mut self, transport: TransportId, rail: RailId) {
        if let Some(last) = self.0.get_mut(transport.index() % TURNS) {
            *last = rail;
        }
    }
}

/// Any of core's policies, and any of its modes of health, for each transport.
#[derive(Debug)]
pub struct Policies<'a> {
    usual: TransportConfig,
    /// Settings of single transports, by number.
    transports: &'a [TransportConfig],
    shared: &'a Shared<'a>,
    rails: &'a [Given],
    shares: &'a mut [Shares],
    selector: Selector,
    turns: Turns,
    /// Some transport is [`Policy::Documented`]'s.
    some_share: bool,
}

impl<'a> Policies<'a> {
    /// The same for all transports, over tables whose content does not matter but for what other workers have put there.
    pub fn new(config: PoliciesConfig, shared: &'a Shared<'a>, tables: PolicyTables<'a>) -> Self {
        tables.shares.fill(Shares::NONE);
        Self {
            usual: config.usual,
            transports: &[],
            shared,
            rails: tables.rails,
            shares: tables.shares,
            selector: Selector::new(config.seed),
            // Before the first rail.
            turns: Turns([RailId(u16::MAX); TURNS]),
            some_share: config.usual.binding() == Binding::Shares,
        }
    }

    /// Gives transports settings of their own, by the numbers that plans have for them. Those beyond the list have the usual
    /// ones.
    pub fn with_transports(mut self, transports: &'a [TransportConfig]) -> Self {
        self.transports = transports;
        let mut own = transports.iter();
        self.some_share |= own.any(|own| own.binding() == Binding::Shares);
        self
    }

    /// The settings of a transport.
    pub fn of(&self, transport: TransportId) -> &TransportConfig {
        let own = self.transports.get(transport.index());
        own.unwrap_or(&self.usual)
    }

    /// Bytes per second as `Documented` has learned them.
    pub(crate) fn bandwidth(&self, transport: TransportId, rail: RailId) -> f64 {
        let row = self.rails.get(rail.index());
        match row.map_or(0, |row| row.bandwidth.load(Relaxed)) {
            0 => (self.of(transport).documented).theoretical(self.shared.rate_nominal(rail)),
            bits => f64::from_bits(bits),
        }
    }

    /// The best of the candidates with room, for a slice that is sent again ("prioritizing reliability").
    fn best_with_room(
        &mut self,
        transport: TransportId,
        candidates: &[Candidate],
        length: u32,
    ) -> Option<usize> {
        let rows = candidates.iter().enumerate();
        let with_room = rows.filter(|(_, candidate)| candidate.has_room);
        let target = |(position, candidate): (usize, &Candidate)| {
            self.target_of(transport, position, candidate.rail, candidate.tier)
        };
        let targets: Targets = of_rails(with_room.map(target));
        let best = self.best(transport, &targets, length)?;
        targets.get(best).map(|target| target.position)
    }

    fn target_of(&self, transport: TransportId, position: usize, rail: RailId, tier: u8) -> Target {
        let inflight_bytes = self.shared.inflight_bytes(rail);
        Target {
            position,
            tier,
            inflight_bytes: inflight_bytes.saturating_add(self.assigned_bytes(rail)),
            bandwidth: self.bandwidth(transport, rail),
        }
    }
}

/// What is in a snapshot.
#[cfg(feature = "serde")]
impl Policies<'_> {
    /// What this worker's remembers beside the shares of its requests.
    pub(crate) fn memory(&self) -> (impl serde::Serialize, impl serde::Serialize) {
        (self.selector, self.turns)
    }

    pub(crate) fn set_memory(&mut self, (selector, turns): (Selector, Turns)) {
        (self.selector, self.turns) = (selector, turns);
    }

    /// Shares of requests that have some.
    pub(crate) fn used_shares(&self) -> impl Iterator<Item = (u32, Shares)> {
        let rows = (0..).zip(self.shares.iter().copied());
        rows.filter(|(_, shares)| *shares != Shares::NONE)
    }

    pub(crate) fn put_shares(&mut self, row: u32, shares: Shares) -> Option<()> {
        self.shares.get_mut(row as usize).map(|to| *to = shares)
    }

    /// What workers share.
    pub(crate) fn given(&self) -> impl serde::Serialize {
        let rows = self.rails;
        let known = move || {
            let rows = (0..).zip(rows);
            let values = rows.map(|(index, row): (u32, &Given)| (index, row.values()));
            values.filter(|(_, values)| *values != [0; 2])
        };
        crate::snapshot::Sparse(known)
    }

    pub(crate) fn put_given(&self, rail: u32, [assigned, bandwidth]: [u64; 2]) -> Option<()> {
        let row = self.rails.get(rail as usize)?;
        row.assigned_bytes.store(assigned, Relaxed);
        row.bandwidth.store(bandwidth, Relaxed);
        Some(())
    }
}

impl Chooser for Policies<'_> {
    fn choose(
        &mut self,
        transport: TransportId,
        candidates: &[Candidate],
        length: u32,
    ) -> Option<usize> {
        match self.of(transport).policy() {
            Policy::RoundRobin => select::round_robin(candidates, self.turns.last(transport)),
            Policy::Spray | Policy::FixedTier1 | Policy::BestTwo => {
                select::least_predicted(candidates)
            }
            Policy::Documented => self.best_with_room(transport, candidates, length),
        }
    }

    fn took(&mut self, transport: TransportId, rail: RailId) {
        self.turns.took(transport, rail);
    }

    fn retain(&self, transport: TransportId, rails: &mut heapless::Vec<Usable, PLAN_RAILS_MAX>) {
        select::retain_wanted(self.of(transport).policy(), rails);
    }

    fn binding(&self, transport: TransportId) -> Binding {
        self.of(transport).binding()
    }

    fn health(&self, transport: TransportId) -> HealthMode {
        self.of(transport).health
    }
}

impl Sharing for Policies<'_> {
    fn share_rows(&self) -> Option<usize> {
        self.some_share.then_some(self.shares.len())
    }

    fn shares(&self, row: u32) -> Shares {
        let shares = self.shares.get(row as usize);
        shares.copied().unwrap_or(Shares::NONE)
    }

    fn set_shares(&mut self, row: u32, shares: Shares) {
        debug_assert!(
            (row as usize) < self.shares.len() || shares.is_empty(),
            "the shares of request {row} are not remembered"
        );
        if let Some(row) = self.shares.get_mut(row as usize) {
            *row = shares;
        }
    }

    fn give(&self, rail: RailId, bytes: u64) {
        if let Some(row) = self.rails.get(rail.index()) {
            row.assigned_bytes.fetch_add(bytes, Relaxed);
        }
    }

    fn take_back(&self, rail: RailId, bytes: u64) {
        if let Some(row) = self.rails.get(rail.index()) {
            let before = row.assigned_bytes.fetch_sub(bytes, Relaxed);
            debug_assert!(before >= bytes, "{bytes} bytes taken back of {before}");
        }
    }

    fn assigned_bytes(&self, rail: RailId) -> u64 {
        let row = self.rails.get(rail.index());
        row.map_or(0, |row| row.assigned_bytes.load(Relaxed))
    }

    fn target(&self, transport: TransportId, position: usize, rail: PlanRail) -> Target {
        self.target_of(transport, position, rail.rail, rail.tier)
    }

    fn allocate(
        &mut self,
        transport: TransportId,
        targets: &Targets,
        length: u64,
        slice_bytes: u32,
    ) -> Shares {
        let config = self.of(transport).documented;
        self.selector
            .allocate(&config, targets, length, slice_bytes)
    }

    fn best(
        &mut self,
        transport: TransportId,
        targets: &Targets,
        slice_bytes: u32,
    ) -> Option<usize> {
        let config = self.of(transport).documented;
        self.selector.best(&config, targets, slice_bytes)
    }

    /// A sample lost to another worker's is no matter.
    fn learn(&self, transport: TransportId, rail: RailId, sample: Sample) {
        let config = self.of(transport).documented;
        let old = self.bandwidth(transport, rail);
        let theoretical = config.theoretical(self.shared.rate_nominal(rail));
        let took = sample.seen_at.since(sample.posted_at);
        let learned = config.learned(old, theoretical, sample.bytes, took);
        if let Some(row) = self.rails.get(rail.index()) {
            row.bandwidth.store(learned.to_bits(), Relaxed);
        }
    }

    fn forget(&self, rail: RailId) {
        if let Some(row) = self.rails.get(rail.index()) {
            row.bandwidth.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_of_one_transport_are_not_moved_by_another() {
        let mut turns = Turns([RailId(u16::MAX); TURNS]);
        let [first, second] = [TransportId(0), TransportId(1)];
        turns.took(first, RailId(2));
        turns.took(second, RailId(9));
        assert_eq!(turns.last(first), RailId(2));
        assert_eq!(turns.last(second), RailId(9));
    }
}
