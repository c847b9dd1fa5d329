//! No panic: one worker's engine, whole, under every policy.
#![cfg_attr(target_os = "none", no_std, no_main)]

use core::hint::black_box;

use polyrail_core::message::{Frame, Message};
use polyrail_core::orchestrator::{
    Config, Event, LaneAction, Orchestrator, Proof, Reason, Request, Store, Tables,
};
use polyrail_core::plan::Plan;
use polyrail_core::rail::chooser::Spray;
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::{Device, Rail, RailConfig, Shared, Waiting};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{
    BatchId, DeviceId, Epoch, LaneId, PeerId, PlanId, RailId, Rate, RequestId, SegmentRef,
};
use polyrail_core::work::{Completion, LaneFact, Op, Outcome, Place, PostBatch, Priority, Stop};

const RAILS: usize = 8;
type Memory = Store<2, 2, RAILS, 4, 16, 2>;

#[inline(never)]
fn install(shared: &Shared<'_>, rail: RailId, config: RailConfig) -> bool {
    shared.install_device(config.device, config.estimate) && shared.install_rail(rail, config)
}

#[inline(never)]
fn new<'a>(config: Config, shared: &'a Shared<'a>, tables: Tables<'a>) -> Orchestrator<'a> {
    Orchestrator::new(config, shared, tables)
}

#[inline(never)]
fn plans(core: &mut Orchestrator<'_>, now: Instant, id: PlanId, plan: &Plan) {
    core.install_plan(now, id, plan);
    core.retire_plan(id);
}

#[inline(never)]
fn batches(core: &mut Orchestrator<'_>, tag: u64, id: BatchId) {
    black_box(core.open_batch(tag));
    core.seal_batch(id);
    black_box(core.batch(id));
    black_box(core.take_batch(id));
}

#[inline(never)]
fn requests(core: &mut Orchestrator<'_>, now: Instant, request: &Request, id: RequestId) {
    if let Some(at_once) = black_box(core.at_once(request)) {
        let took = now.since(Instant::ZERO);
        core.handle_at_once(now, &at_once, at_once.is_measured.then_some(took));
    }
    let _ = black_box(core.submit(now, request));
    black_box(core.cancel(now, id));
    black_box(core.transport_of(id));
    black_box(core.take(id));
    core.shut_down(now);
}

#[inline(never)]
fn completions(core: &mut Orchestrator<'_>, now: Instant, completions: &[Completion]) {
    core.handle_completions(now, completions);
}

#[inline(never)]
fn lane(core: &mut Orchestrator<'_>, now: Instant, lane: LaneId, epoch: Epoch, fact: LaneFact) {
    core.handle_lane(now, lane, epoch, fact);
}

#[inline(never)]
fn peer(core: &mut Orchestrator<'_>, now: Instant, peer: PeerId, frame: &Frame, proof: Proof) {
    core.handle_frame(now, peer, frame);
    core.handle_peer_gone(now, peer, proof);
    black_box(core.forget_peer(now, peer));
}

#[inline(never)]
fn timeout(core: &mut Orchestrator<'_>, now: Instant) -> Option<(Instant, Reason)> {
    core.handle_wake();
    core.handle_timeout(now);
    core.poll_timeout()
}

#[inline(never)]
fn post(core: &mut Orchestrator<'_>, now: Instant, out: &mut PostBatch, stop: Stop) {
    if let Some(post) = core.poll_post(now, out) {
        core.handle_posted(now, post, black_box(1), stop);
    }
}

#[inline(never)]
fn polls(
    core: &mut Orchestrator<'_>,
    now: Instant,
) -> (Option<LaneAction>, Option<Message>, Option<Event>, bool) {
    (
        core.poll_lane(),
        core.poll_message(now),
        core.poll_event(),
        core.is_quiet(),
    )
}

fn plan() -> Plan {
    let place = Place {
        segment: SegmentRef(0),
        offset: 0,
    };
    Plan {
        peer: PeerId(0),
        local: SegmentRef(0),
        remote: SegmentRef(0),
        transports: heapless::Vec::new(),
        scratch_local: place,
        scratch_remote: place,
        scratch_bytes: 1,
        path: None,
    }
}

fn orchestrator() {
    let rails = [const { Rail::EMPTY }; RAILS];
    let devices = [const { Device::EMPTY }; RAILS];
    let waiting = [const { Waiting::NO }; 2];
    let shared = black_box(Shared::new(&rails, &devices, &waiting, black_box(1)));
    let config = RailConfig {
        peer: PeerId(0),
        device: DeviceId(0),
        far: None,
        estimate: EstimateConfig {
            rate_nominal: Rate::SLOWEST,
            delay_base: Duration::ZERO,
            tier: 0,
            slice_span: Duration::ZERO,
            batch_span: Duration::ZERO,
        },
    };
    black_box(install(&shared, black_box(RailId(0)), black_box(config)));
    let mut store = Memory::new();
    let config = black_box(Config::new(0, Spray));
    let mut core = new(config, &shared, black_box(store.tables()));
    let core = black_box(&mut core);
    let now = || black_box(Instant::ZERO);
    let request = Request {
        tag: 0,
        plan: PlanId::default(),
        batch: BatchId::default(),
        local_offset: 0,
        remote_offset: 0,
        length: 1,
        deadline: Instant::MAX,
        priority: Priority::Normal,
        op: Op::Write,
    };
    let completion = Completion {
        lane: LaneId(0),
        epoch: Epoch(1),
        cookie: 0,
        at: Instant::ZERO,
        outcome: Outcome::Success,
    };
    plans(
        core,
        now(),
        black_box(PlanId::default()),
        &black_box(plan()),
    );
    batches(core, black_box(0), black_box(BatchId::default()));
    let id = black_box(RequestId::default());
    requests(core, now(), &black_box(request), id);
    completions(core, now(), black_box(&[completion; 2]));
    let fact = black_box(LaneFact::Writable);
    lane(core, now(), black_box(LaneId(0)), black_box(Epoch(1)), fact);
    let proof = black_box(Proof::ProcessGone);
    peer(
        core,
        now(),
        black_box(PeerId(0)),
        &black_box(Frame::Alive),
        proof,
    );
    black_box(timeout(core, now()));
    let mut out = black_box(PostBatch::default());
    post(core, now(), &mut out, black_box(Stop::All));
    black_box(polls(core, now()));
}

polyrail_tests_bare::no_panic!(orchestrator);
