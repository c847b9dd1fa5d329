//! A complete runtime around core for a machine without an operating system: all memory in one place, one loop, no
//! allocator, no std. `docs/embedding.md` walks through it.
//!
//! It is a template. `device.rs` stands for your hardware: put your own in its place. `install` says which rails there are,
//! `turn` is the loop, and `contract.rs` holds both to what core asks of them.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

#[cfg(test)]
mod contract;
pub mod device;

use core::fmt::Write;

use polyrail_core::orchestrator::{Config, Event, Orchestrator, Proof, Request, Store};
use polyrail_core::path::class::RailClass;
use polyrail_core::plan::{Plan, PlanRail, PlanTransport};
use polyrail_core::rail::chooser::Spray;
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::{Device as DeviceRow, Rail, RailConfig, Shared, Waiting};
use polyrail_core::report::Status;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{
    BatchId, DeviceId, PeerId, PlanId, RailId, Rate, SegmentRef, TransportId,
};
use polyrail_core::work::{Op, Place, PostBatch, Priority};

use device::{Device, LINKS, MEMORY};

/// Core; in tests one whose calls are looked at.
#[cfg(not(test))]
pub type Core<'a> = Orchestrator<'a>;
#[cfg(test)]
pub type Core<'a> = polyrail_core::contract::Checked<'a>;

/// Bytes of a usual slice. Small, because the links here are slow.
const SLICE_BYTES: u32 = 1024;
/// Pairs of segments that requests name, and peers.
const PLANS: usize = 1;
const PEERS: usize = 1;
/// Requests and batches that may be open at a time.
const REQUESTS: usize = 8;
const BATCHES: usize = 8;
/// Slices in flight or waiting to be sent again: all links' queues, twice, since an attempt that has no proof of
/// its end keeps its row while its bytes go out again.
const ATTEMPTS: usize = 32;
const PEER: PeerId = PeerId(0);
const PLAN: PlanId = PlanId {
    index: 0,
    generation: 1,
};
/// Bytes of each request.
pub const REQUEST_BYTES: usize = 16 * 1024;
/// What is moved in all.
pub const TOTAL_BYTES: usize = 3 * REQUEST_BYTES;
/// How fast the links are.
pub const RATES: [Rate; LINKS] = [
    Rate::from_bytes_per_sec(100_000_000),
    Rate::from_bytes_per_sec(50_000_000),
];
/// When the second link's cable is pulled.
const CUT_AT: Instant = Instant::from_nanos(100_000);
/// Far more turns of the loop than it takes.
const TURNS_MAX: usize = 10_000;

/// All memory that core needs. It can be a static.
#[derive(Debug)]
pub struct Tables {
    /// A lane for each rail, and what else this worker has.
    store: Store<PLANS, PEERS, LINKS, REQUESTS, ATTEMPTS, BATCHES>,
    /// What several workers would share; here there is one.
    rails: [Rail; LINKS],
    devices: [DeviceRow; LINKS],
    waiting: [Waiting; 1],
}

impl Tables {
    /// Empty tables.
    pub const fn new() -> Self {
        Self {
            store: Store::new(),
            rails: [Rail::EMPTY; LINKS],
            devices: [DeviceRow::EMPTY; LINKS],
            waiting: [Waiting::NO],
        }
    }
}

impl Default for Tables {
    fn default() -> Self {
        Self::new()
    }
}

/// Says which rails there are, to core's shared tables and, as a plan, to the worker.
fn install(shared: &Shared<'_>, core: &mut Core<'_>) -> Option<()> {
    let mut transport = PlanTransport {
        transport: TransportId(0),
        rails: heapless::Vec::new(),
    };
    for (number, rate_nominal) in (0..).zip(RATES) {
        let estimate = EstimateConfig {
            rate_nominal,
            delay_base: Duration::from_micros(1),
            tier: 0,
            slice_span: Duration::ZERO,
            batch_span: Duration::ZERO,
        };
        let (rail, device) = (RailId(number), DeviceId(number));
        let config = RailConfig {
            peer: PEER,
            device,
            far: None,
            estimate,
        };
        let installed =
            shared.install_device(device, estimate) && shared.install_rail(rail, config);
        installed.then_some(())?;
        let class = RailClass::PRIMARY;
        let row = PlanRail {
            rail,
            tier: 0,
            class,
        };
        transport.rails.push(row).ok()?;
    }
    let scratch = Place {
        segment: SegmentRef(1),
        offset: 0,
    };
    let plan = Plan {
        peer: PEER,
        local: MEMORY,
        remote: MEMORY,
        transports: heapless::Vec::from_iter([transport]),
        scratch_local: scratch,
        scratch_remote: scratch,
        scratch_bytes: SLICE_BYTES,
        path: None,
    };
    core.install_plan(Instant::ZERO, PLAN, &plan).then_some(())
}

/// Asks for the whole memory to be written to the peer, in a batch of three requests.
fn submit(now: Instant, core: &mut Core<'_>) -> Option<BatchId> {
    let batch = core.open_batch(0)?;
    for tag in 0..(TOTAL_BYTES / REQUEST_BYTES) as u64 {
        let offset = tag * REQUEST_BYTES as u64;
        let request = Request {
            tag,
            plan: PLAN,
            batch,
            local_offset: offset,
            remote_offset: offset,
            length: REQUEST_BYTES as u64,
            deadline: Instant::MAX,
            priority: Priority::Normal,
            op: Op::Write,
        };
        core.submit(now, &request).ok()?;
    }
    core.seal_batch(batch);
    Some(batch)
}

/// Hands in what has happened: completions first, then what else is known of lanes, then what the peer said, then
/// the time.
fn hand_in(now: Instant, core: &mut Core<'_>, device: &mut Device<'_>) {
    while let Some(completion) = device.poll_completion(now) {
        core.handle_completions(now, &[completion]);
    }
    while let Some((lane, epoch, fact)) = device.poll_fact() {
        core.handle_lane(now, lane, epoch, fact);
    }
    while let Some(frame) = device.poll_frame() {
        core.handle_frame(now, PEER, &frame);
    }
    if device.poll_gone() {
        core.handle_peer_gone(now, PEER, Proof::ProcessGone);
    }
    core.handle_timeout(now);
}

/// Does what core wants done. Every batch is answered before the next one is asked for.
fn carry_out(now: Instant, core: &mut Core<'_>, device: &mut Device<'_>) {
    let mut batch = PostBatch::default();
    while let Some(post) = core.poll_post(now, &mut batch) {
        let posted = device.post(now, &batch);
        core.handle_posted(now, post, posted.accepted, posted.stop);
    }
    while let Some(action) = core.poll_lane() {
        device.act(action);
    }
    while let Some(message) = core.poll_message(now) {
        device.tell(message);
    }
}

/// Tells what happened. The status of the batch once it has ended.
fn tell(now: Instant, core: &mut Core<'_>, console: &mut dyn Write) -> Option<Status> {
    let mut ended = None;
    while let Some(event) = core.poll_event() {
        let _ = write!(console, "{now:?} ");
        let _ = match event {
            Event::RequestDone { request, tag } => match core.take(request) {
                Some(report) => writeln!(
                    console,
                    "request {tag}: {}, {} bytes",
                    report.status.name(),
                    report.delivered_bytes
                ),
                None => writeln!(console, "request {tag}: taken before"),
            },
            Event::BatchDone { batch, .. } => {
                ended = core.take_batch(batch).map(|report| report.status);
                writeln!(console, "batch done")
            }
            Event::RailChanged {
                rail, state, cause, ..
            } => {
                let cause = cause.map_or("", |cause| cause.text());
                writeln!(console, "rail {}: {} {cause}", rail.0, state.name())
            }
            other => writeln!(console, "{other:?}"),
        };
    }
    ended
}

/// When there is something to do again: a completion, or one of core's timers.
fn next_turn(core: &Core<'_>, device: &Device<'_>) -> Option<Instant> {
    let timeout = core.poll_timeout().map(|(at, _reason)| at);
    [timeout, device.next_at()].into_iter().flatten().min()
}

/// One turn of the loop. Sleeps until there is something to do, but no longer than `until`. The time after it, and the status of
/// a batch that has ended.
fn turn(
    now: Instant,
    until: Instant,
    core: &mut Core<'_>,
    device: &mut Device<'_>,
    console: &mut dyn Write,
) -> (Instant, Option<Status>) {
    hand_in(now, core, device);
    carry_out(now, core, device);
    let ended = tell(now, core, console);
    // What was just done may have had its answer at once; otherwise the processor sleeps until an interrupt.
    let after = match device.has_news() {
        true => now,
        false => next_turn(core, device).map_or(until, |next| next.min(until)),
    };
    (after.max(now), ended)
}

/// Makes a core in these tables, and lends it.
pub fn boot<T>(tables: &mut Tables, then: impl FnOnce(&Shared<'_>, Orchestrator<'_>) -> T) -> T {
    let shared = Shared::new(&tables.rails, &tables.devices, &tables.waiting, SLICE_BYTES);
    let config = Config::new(0, Spray);
    then(
        &shared,
        Orchestrator::new(config, &shared, tables.store.tables()),
    )
}

/// Moves all of our memory to the peer's, while one of two links fails. How the batch ended; `None`: it did not.
pub fn run(
    shared: &Shared<'_>,
    core: &mut Core<'_>,
    device: &mut Device<'_>,
    console: &mut dyn Write,
) -> Option<Status> {
    install(shared, core)?;
    let mut now = Instant::ZERO;
    submit(now, core)?;
    let mut is_cut = false;
    for _ in 0..TURNS_MAX {
        let (after, ended) = turn(now, Instant::MAX, core, device, console);
        if let Some(status) = ended {
            for (rail, view) in (0..).map_while(|rail| Some((rail, shared.view(RailId(rail))?))) {
                let _ = writeln!(console, "rail {rail} carried {} bytes", view.done_bytes);
            }
            return Some(status);
        }
        now = after;
        if !is_cut && now >= CUT_AT {
            is_cut = true;
            device.cut(1);
        }
    }
    None
}
