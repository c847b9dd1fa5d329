//! A worker: a serial processor that drives one [`Orchestrator`] by its contract.

use polyrail_core::message::Frame;
use polyrail_core::orchestrator::rows::{Attempt, BatchRow, Lane, Peer, PlanRow, RequestRow};
use polyrail_core::orchestrator::{Config, Orchestrator, Proof, Tables};
use polyrail_core::rail::chooser::Chooser;
use polyrail_core::rail::documented::Shares;
use polyrail_core::rail::policies::{
    Given, Policies, PoliciesConfig, PolicyTables, TransportConfig,
};
use polyrail_core::rail::{Device, Rail, Shared, Waiting};
use polyrail_core::table::Row;
use polyrail_core::units::{Epoch, LaneId, PeerId, RequestId};
use polyrail_core::work::{Completion, LaneFact, PostBatch};
use polyrail_record::Capacities;

use super::chosen::Chosen;

/// Batches beyond what the submitters need.
const SPARE_BATCHES: usize = 64;

/// A worker's core, whatever its policy is.
pub(crate) type Core<'a> = Orchestrator<'a, Chosen<'a>>;

/// The memory of what an engine's workers share.
pub(crate) struct SharedMemory {
    rails: Vec<Rail>,
    devices: Vec<Device>,
    waiting: Vec<Waiting>,
    pub(crate) given: Vec<Given>,
}

impl SharedMemory {
    /// Empty tables.
    pub(crate) fn new(rails: usize, devices: usize, workers: usize) -> Self {
        Self {
            rails: (0..rails).map(|_| Rail::EMPTY).collect(),
            devices: (0..devices).map(|_| Device::EMPTY).collect(),
            waiting: (0..workers).map(|_| Waiting::NO).collect(),
            given: (0..rails).map(|_| Given::NOTHING).collect(),
        }
    }

    /// A view of them.
    pub(crate) fn shared(&self, slice_bytes: u32) -> Shared<'_> {
        Shared::new(&self.rails, &self.devices, &self.waiting, slice_bytes)
    }
}

/// The memory of one worker's tables.
pub(crate) struct WorkerMemory {
    plans: Vec<PlanRow>,
    peers: Vec<Peer>,
    lanes: Vec<Lane>,
    requests: Vec<Row<RequestRow>>,
    shares: Vec<Shares>,
    attempts: Vec<Attempt>,
    batches: Vec<Row<BatchRow>>,
}

fn rows<T>(count: usize, row: impl Fn() -> T) -> Vec<T> {
    (0..count).map(|_| row()).collect()
}

impl WorkerMemory {
    /// Tables of just these sizes.
    pub(crate) fn exact(capacities: &Capacities) -> Self {
        Self {
            plans: rows(capacities.plans as usize, || PlanRow::EMPTY),
            peers: rows(capacities.peers as usize, || Peer::EMPTY),
            lanes: rows(capacities.rails as usize, || Lane::EMPTY),
            requests: rows(capacities.requests as usize, || Row::EMPTY),
            shares: rows(capacities.requests as usize, || Shares::NONE),
            attempts: rows(capacities.attempts as usize, || Attempt::EMPTY),
            batches: rows(capacities.batches as usize, || Row::EMPTY),
        }
    }

    /// Tables for so many of each.
    pub(crate) fn new(
        plans: usize,
        peers: usize,
        lanes: usize,
        requests: usize,
        attempts: usize,
        batches: usize,
    ) -> Self {
        Self {
            plans: rows(plans, || PlanRow::EMPTY),
            peers: rows(peers, || Peer::EMPTY),
            lanes: rows(lanes, || Lane::EMPTY),
            requests: rows(requests, || Row::EMPTY),
            shares: rows(requests, || Shares::NONE),
            attempts: rows(attempts, || Attempt::EMPTY),
            batches: rows(batches + SPARE_BATCHES, || Row::EMPTY),
        }
    }

    /// A core over them.
    pub(crate) fn core<'a>(
        &'a mut self,
        config: Config<PoliciesConfig>,
        shared: &'a Shared<'a>,
        given: &'a [Given],
        transports: &'a [TransportConfig],
    ) -> Core<'a> {
        self.core_by(config, shared, given, |policy, rows| {
            Chosen::Shipped(Policies::new(policy, shared, rows).with_transports(transports))
        })
    }

    /// A core over them with a policy of another crate's.
    pub(crate) fn own_core<'a>(
        &'a mut self,
        config: Config<PoliciesConfig>,
        shared: &'a Shared<'a>,
        policy: Box<dyn Chooser + 'a>,
    ) -> Core<'a> {
        self.core_by(config, shared, &[], |_, _| Chosen::Own(policy))
    }

    /// A core over them as engines have it, whose state can be read from a recording.
    pub(crate) fn recorded_core<'a>(
        &'a mut self,
        config: Config<PoliciesConfig>,
        shared: &'a Shared<'a>,
        given: &'a [Given],
        transports: &'a [TransportConfig],
    ) -> Orchestrator<'a, Policies<'a>> {
        self.core_by(config, shared, given, |policy, rows| {
            Policies::new(policy, shared, rows).with_transports(transports)
        })
    }

    fn core_by<'a, P: Chooser>(
        &'a mut self,
        config: Config<PoliciesConfig>,
        shared: &'a Shared<'a>,
        given: &'a [Given],
        policy: impl FnOnce(PoliciesConfig, PolicyTables<'a>) -> P,
    ) -> Orchestrator<'a, P> {
        let rows = PolicyTables {
            rails: given,
            shares: &mut self.shares,
        };
        let tables = Tables {
            plans: &mut self.plans,
            peers: &mut self.peers,
            lanes: &mut self.lanes,
            requests: &mut self.requests,
            attempts: &mut self.attempts,
            batches: &mut self.batches,
        };
        let config = config.map_policy(|config| policy(config, rows));
        Orchestrator::new(config, shared, tables)
    }
}

/// What came for a worker and has not been looked at.
#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) completions: Vec<Completion>,
    pub(crate) lanes: Vec<(LaneId, Epoch, LaneFact)>,
    pub(crate) frames: Vec<(PeerId, Frame)>,
    /// Submitters with a batch to submit.
    pub(crate) submitters: Vec<u32>,
    /// Requests to cancel.
    pub(crate) cancels: Vec<RequestId>,
    /// What became of peers.
    pub(crate) proofs: Vec<(PeerId, Proof)>,
    /// Peers that new plans are to be made for.
    pub(crate) replans: Vec<u16>,
    /// Another worker made room.
    pub(crate) woken: bool,
    /// Its timer went off.
    pub(crate) timer: bool,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.completions.is_empty()
            && self.lanes.is_empty()
            && self.frames.is_empty()
            && self.submitters.is_empty()
            && self.cancels.is_empty()
            && self.proofs.is_empty()
            && self.replans.is_empty()
            && !self.woken
            && !self.timer
    }
}

/// One worker.
pub(crate) struct Worker<'a> {
    pub(crate) core: Core<'a>,
    pub(crate) engine: usize,
    pub(crate) inbox: Inbox,
    pub(crate) postings: PostBatch,
    /// The last completion that it was told of.
    pub(crate) last_completion: Option<Completion>,
    /// It is in the middle of handing out what core wants posted.
    pub(crate) draining: bool,
    /// Its plans' generations.
    pub(crate) generations: Vec<u32>,
    /// Since when and until when it stands still, or did last.
    pub(crate) stalled_since: u64,
    pub(crate) stalled_until: u64,
    /// Until when it is busy with what it did last.
    pub(crate) busy_until: u64,
    /// Where in the interval between two looks it looks.
    pub(crate) looks_at: u64,
    /// When it goes on, if that is entered.
    pub(crate) step_at: Option<u64>,
    /// When its timer goes off, if that is entered.
    pub(crate) timer_at: Option<u64>,
}

impl Worker<'_> {
    /// It stands still from `now` on, and goes on at `until` at the earliest.
    pub(crate) fn stall(&mut self, now: u64, until: u64) {
        if self.stalled_until <= now {
            self.stalled_since = now;
        }
        self.stalled_until = self.stalled_until.max(until);
    }
}

impl<'a> Worker<'a> {
    /// One with nothing to do.
    pub(crate) fn new(core: Core<'a>, engine: usize, plans: usize) -> Self {
        Self {
            core,
            engine,
            inbox: Inbox::default(),
            postings: PostBatch::default(),
            last_completion: None,
            draining: false,
            generations: vec![1; plans],
            stalled_since: 0,
            stalled_until: 0,
            busy_until: 0,
            looks_at: 0,
            step_at: None,
            timer_at: None,
        }
    }

    /// Whether there is something to look at or to go on with.
    pub(crate) fn has_news(&self) -> bool {
        self.draining || !self.inbox.is_empty()
    }
}
