//! One worker's core, in memory of the caller's.

use core::ptr::NonNull;

use polyrail_core::contract::Checked;
use polyrail_core::orchestrator::rows::{Attempt, BatchRow, Lane, Peer, PlanRow, RequestRow};
use polyrail_core::orchestrator::{Config, Orchestrator, Post, Tables};
use polyrail_core::rail::policies::{Policies, PoliciesConfig, PolicyTables};
use polyrail_core::rail::select::Policy;
use polyrail_core::table::Row;
use polyrail_core::time::Duration;

use crate::fabric::{check, polyrail_core_fabric, polyrail_core_limits};
use crate::memory::{ARGUMENT, Layouter, change, code, enough, fill, look};

/// The least predicted completion, and only if waiting would not end sooner.
pub const POLYRAIL_CORE_POLICY_SPRAY: u32 = 0;
/// Strictly in turn within the nearest tier.
pub const POLYRAIL_CORE_POLICY_ROUND_ROBIN: u32 = 1;

/// How a core behaves. A span of 0 is the usual one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_config {
    /// This worker's number, below `workers` of the limits.
    pub worker: u16,
    /// `POLYRAIL_CORE_POLICY_SPRAY` or `_ROUND_ROBIN`.
    pub policy: u32,
    /// Least time without a completion before a lane is suspected: 5 ms.
    pub progress_floor_ns: u64,
    /// How long a lane may take to open: 1 s.
    pub open_timeout_ns: u64,
    /// A peer that nothing is heard from for so long is silent: 1.2 s. Later while nothing goes to it.
    pub peer_silence_ns: u64,
    /// How long proof is waited for before a report says indeterminate: 2 s.
    pub fence_timeout_ns: u64,
    /// How long posted slices of a cancelled request may go on: 100 ms.
    pub cancel_grace_ns: u64,
    /// Of this worker's random numbers. The same seed and calls give the same answers.
    pub seed: u64,
}

/// One worker's core. Its memory is the caller's.
pub struct polyrail_core_worker {
    pub(crate) core: Checked<'static, Policies<'static>>,
    /// The post that is out, and how many works it has.
    pub(crate) post: Option<(Post, usize)>,
    /// How many there can be.
    pub(crate) peers: u32,
}

/// Where the parts of a core are.
struct Places {
    core: Option<NonNull<polyrail_core_worker>>,
    plans: Option<NonNull<PlanRow>>,
    peers: Option<NonNull<Peer>>,
    lanes: Option<NonNull<Lane>>,
    requests: Option<NonNull<Row<RequestRow>>>,
    attempts: Option<NonNull<Attempt>>,
    batches: Option<NonNull<Row<BatchRow>>>,
}

impl Places {
    fn lay_out(limits: &polyrail_core_limits, layouter: &mut Layouter) -> Option<Self> {
        Some(Self {
            core: layouter.rows(1)?,
            plans: layouter.rows(limits.plans as usize)?,
            peers: layouter.rows(limits.peers as usize)?,
            lanes: layouter.rows(limits.rails as usize)?,
            requests: layouter.rows(limits.requests as usize)?,
            attempts: layouter.rows(limits.attempts as usize)?,
            batches: layouter.rows(limits.batches as usize)?,
        })
    }
}

fn config(
    said: &polyrail_core_config,
    limits: &polyrail_core_limits,
) -> Option<Config<PoliciesConfig>> {
    let policy = match said.policy {
        POLYRAIL_CORE_POLICY_SPRAY => Policy::Spray,
        POLYRAIL_CORE_POLICY_ROUND_ROBIN => Policy::RoundRobin,
        _ => return None,
    };
    if u32::from(said.worker) >= limits.workers {
        return None;
    }
    let policy = PoliciesConfig {
        seed: said.seed,
        ..PoliciesConfig::new(said.worker, policy)
    };
    let usual = Config::new(said.worker, policy);
    let span = |nanos, usual| match nanos {
        0 => usual,
        nanos => Duration::from_nanos(nanos),
    };
    Some(Config {
        progress_floor: span(said.progress_floor_ns, usual.progress_floor),
        open_timeout: span(said.open_timeout_ns, usual.open_timeout),
        peer_silence: span(said.peer_silence_ns, usual.peer_silence),
        fence_timeout: span(said.fence_timeout_ns, usual.fence_timeout),
        cancel_grace: span(said.cancel_grace_ns, usual.cancel_grace),
        ..usual
    })
}

/// How many bytes of memory a core takes; 0: the limits are out of range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_size(limits: *const polyrail_core_limits) -> usize {
    // SAFETY: the contract of the crate.
    let limits = unsafe { look(limits) };
    let Some(limits) = limits.ok().filter(|limits| check(limits).is_ok()) else {
        return 0;
    };
    let mut layouter = Layouter::counting();
    Places::lay_out(limits, &mut layouter).map_or(0, |_| layouter.bytes())
}

/// Makes a worker's core in memory that begins at a multiple of `POLYRAIL_CORE_ALIGNMENT`, with the limits of its fabric.
/// There is nothing to free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_create(
    memory: *mut u8,
    bytes: usize,
    said: *const polyrail_core_config,
    fabric: *const polyrail_core_fabric,
    answer: *mut *mut polyrail_core_worker,
) -> i32 {
    let create = || {
        // SAFETY: the contract of the crate: the fabric is there as long as its cores are used.
        let (said, fabric, answer) = unsafe { (look(said)?, look(fabric)?, change(answer)?) };
        let limits = &fabric.limits;
        let config = config(said, limits).ok_or(ARGUMENT)?;
        // SAFETY: as above.
        let needed = unsafe { polyrail_core_size(limits) };
        let mut layouter = enough(memory, bytes, needed)?;
        let places = Places::lay_out(limits, &mut layouter).ok_or(ARGUMENT)?;
        let Places {
            core: Some(at),
            plans: Some(plans),
            peers: Some(peers),
            lanes: Some(lanes),
            requests: Some(requests),
            attempts: Some(attempts),
            batches: Some(batches),
        } = places
        else {
            return Err(ARGUMENT);
        };
        // SAFETY: the memory is the core's from now on, and has room for all of them.
        let tables = unsafe {
            Tables {
                plans: fill(plans, limits.plans as usize, || PlanRow::EMPTY),
                peers: fill(peers, limits.peers as usize, || Peer::EMPTY),
                lanes: fill(lanes, limits.rails as usize, || Lane::EMPTY),
                requests: fill(requests, limits.requests as usize, || Row::EMPTY),
                attempts: fill(attempts, limits.attempts as usize, || Attempt::EMPTY),
                batches: fill(batches, limits.batches as usize, || Row::EMPTY),
            }
        };
        // Neither of the two shares requests out.
        let policies = |policy| Policies::new(policy, &fabric.shared, PolicyTables::default());
        let core = Orchestrator::new(config.map_policy(policies), &fabric.shared, tables);
        let core = Checked::unwatched(core);
        let (post, peers) = (None, limits.peers);
        // SAFETY: as above.
        unsafe { at.write(polyrail_core_worker { core, post, peers }) };
        *answer = at.as_ptr();
        Ok(())
    };
    code(create())
}
