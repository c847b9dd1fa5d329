//! What engines are made of: their workers' limits and tables, rails and plans.

use polyrail_core::orchestrator::Config;
use polyrail_core::plan::{PLAN_TRANSPORTS_MAX, Plan, PlanPath, PlanRail, PlanTransport};
use polyrail_core::rail::documented::DocumentedConfig;
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::health::{HealthMode, ResetConfig};
use polyrail_core::rail::policies::{PoliciesConfig, TransportConfig};
use polyrail_core::rail::select::Policy;
use polyrail_core::rail::{RailConfig, Shared};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{DeviceId, PeerId, PlanId, RailId, Rate, SegmentRef, TransportId};
use polyrail_core::work::Place;

use super::World;
use super::worker::WorkerMemory;
use crate::setup::{PlanOf, Setup};

const LOCAL: SegmentRef = SegmentRef(1);
/// The segment that requests name on the peer's side.
pub(super) const REMOTE: SegmentRef = SegmentRef(2);
const SCRATCH: SegmentRef = SegmentRef(3);

/// A worker's limits, as the scenario has them.
pub(super) fn config(setup: &Setup, worker: u16, policy: Policy) -> Config<PoliciesConfig> {
    let limits = &setup.limits;
    let us = Duration::from_micros;
    let health = match limits.reset_cooldown_us {
        0 => HealthMode::Decay,
        cooldown => HealthMode::Reset(ResetConfig {
            rail_cooldown: us(cooldown),
            ..ResetConfig::DEFAULT
        }),
    };
    let usual = TransportConfig {
        policy,
        health,
        documented: DocumentedConfig {
            numa_penalties: limits.numa_penalties,
            ..DocumentedConfig::DEFAULT
        },
    };
    let policy = PoliciesConfig {
        usual,
        ..PoliciesConfig::new(worker, policy)
    };
    Config {
        progress_floor: us(limits.progress_floor_us),
        open_timeout: us(limits.open_timeout_us),
        peer_silence: us(limits.peer_silence_us),
        fence_timeout: us(limits.fence_timeout_us),
        cancel_grace: us(limits.cancel_grace_us),
        message_interval: us(limits.message_interval_us),
        failover_attempts_max: limits.failover_attempts,
        signal_interval_works: limits.signal_interval_works,
        ..Config::new(worker, policy)
    }
}

pub(super) fn worker_memory(setup: &Setup, worker: usize) -> WorkerMemory {
    let engine = &setup.engines[worker / usize::from(*setup.engine.workers.get_ref())];
    let own = || {
        setup
            .submitters
            .iter()
            .filter(|submitter| submitter.worker == worker)
    };
    let requests: usize = own().map(|submitter| submitter.batch as usize).sum();
    WorkerMemory::new(
        setup.plans.len(),
        engine.peers.len(),
        engine.rails.len(),
        requests + setup.limits.spare_rows as usize,
        setup.limits.attempts as usize,
        own().count(),
    )
}

/// Tells what an engine's workers share of its devices and rails, as wrongly as the scenario wants.
pub(super) fn install(setup: &Setup, engine: &crate::setup::Engine, shared: &Shared<'_>) {
    let said = &setup.engine;
    let told = |told: f64, truth: u64, factor: f64| match told > 0.0 {
        true => told as u64,
        false => (truth as f64 * factor) as u64,
    };
    let told_rate = said.told_gbits_per_sec * 125_000_000.0;
    let told_delay = said.told_delay_us * 1_000.0;
    let believed = |bytes_per_sec: u64, delay_ns: u64| EstimateConfig {
        rate_nominal: Rate::from_bytes_per_sec(told(
            told_rate,
            bytes_per_sec,
            said.believed_rate_factor,
        )),
        delay_base: Duration::from_nanos(told(told_delay, delay_ns, said.believed_delay_factor)),
        tier: 0,
        slice_span: Duration::ZERO,
        batch_span: Duration::ZERO,
    };
    for (number, rail) in engine.rails.iter().copied().enumerate() {
        let device = setup.rails[rail].from;
        let row = &setup.devices[device];
        shared.install_device(
            DeviceId(device as u16),
            believed(row.bytes_per_sec, row.delay_ns),
        );
        let peer = PeerId(engine.rail_peers[number]);
        let to = setup.rails[rail].to;
        let there = engine.rails.iter().map(|rail| setup.rails[*rail]);
        let is_shared = there
            .filter(|other| other.to == to)
            .any(|other| other.from != device);
        let far = is_shared.then_some(DeviceId(to as u16));
        if let Some(far) = far {
            let row = &setup.devices[to];
            shared.install_device(far, believed(row.bytes_per_sec, row.delay_ns));
        }
        let tier = setup
            .plans
            .iter()
            .flat_map(|plan| &plan.rails)
            .find(|row| usize::from(row.0) == number);
        let estimate = EstimateConfig {
            tier: tier.map_or(0, |row| row.1),
            batch_span: Duration::from_micros(said.batch_us),
            ..believed(setup.nominal(rail), setup.delay_ns(rail))
        };
        let config = RailConfig {
            peer,
            device: DeviceId(device as u16),
            far,
            estimate,
        };
        let id = RailId(number as u16);
        match engine.front_of(number, &setup.rails) {
            Some(front) => shared.install_spare(id, front, config),
            None => shared.install_rail(id, config),
        };
    }
}

pub(super) fn plan_id(index: u32, generation: u32) -> PlanId {
    PlanId { index, generation }
}

impl World<'_> {
    /// Makes the plans known that a worker needs, or new ones for one of its peers; those whose ends have not agreed
    /// on what they are come later.
    pub(super) fn install_plans(&mut self, worker: u32, of_peer: Option<u16>, now: Instant) {
        let number = worker;
        for (index, plan) in self.setup.plans.iter().enumerate() {
            let worker = &mut self.workers[number as usize];
            if plan.engine != worker.engine || of_peer.is_some_and(|peer| peer != plan.peer) {
                continue;
            }
            let Some(path) = self.paths.agreed(plan.engine, usize::from(plan.peer)) else {
                continue;
            };
            worker.generations[index] += u32::from(of_peer.is_some());
            let id = plan_id(index as u32, worker.generations[index]);
            let plan = core_plan(self.setup, plan, path);
            worker.core.install_plan(now, id, &plan);
            self.note_known(number, plan.peer, now.as_nanos());
        }
    }
}

fn core_plan(setup: &Setup, plan: &PlanOf, path: Option<PlanPath>) -> Plan {
    let place = |segment| Place { segment, offset: 0 };
    let engine = &setup.engines[plan.engine];
    let rail_of = |number: u16| setup.rails[engine.rails[usize::from(number)]];
    let of_rank = |rank: u8| {
        let rails = plan
            .rails
            .iter()
            .filter(move |row| rail_of(row.0).rank == rank);
        rails
            .map(|(rail, tier)| PlanRail {
                rail: RailId(*rail),
                tier: *tier,
                class: rail_of(*rail).class,
            })
            .collect()
    };
    let transports = (0..PLAN_TRANSPORTS_MAX as u8).map(|rank| PlanTransport {
        transport: TransportId(rank),
        rails: of_rank(rank),
    });
    Plan {
        peer: PeerId(plan.peer),
        local: LOCAL,
        remote: REMOTE,
        transports: transports.filter(|row| !row.rails.is_empty()).collect(),
        scratch_local: place(SCRATCH),
        scratch_remote: place(SCRATCH),
        scratch_bytes: setup.limits.slice_bytes,
        path,
    }
}
