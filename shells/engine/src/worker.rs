//! One worker: a thread that drives one `Orchestrator` by its contract, and the post box it is reached by.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use polyrail_control::plane::Plane;
use polyrail_core::message::{Frame, Message};
use polyrail_core::orchestrator::rows::{Attempt, BatchRow, Lane, Peer, PlanRow, RequestRow};
use polyrail_core::orchestrator::{
    Config, Event, LaneAction, Orchestrator, Proof, Request, SubmitError, Tables,
};
use polyrail_core::plan::Plan;
use polyrail_core::rail::health::RailState;
use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::ring::{Entry, Ring, Slot};
use polyrail_core::table::Row;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{BatchId, PeerId, PlanId, RailId, RequestId, SegmentRef, TransportId};
use polyrail_core::work::{Cause, Op, PostBatch};
use polyrail_record::{Capacities, Recorded};
use polyrail_transport::clock::Clock;
use polyrail_transport::fault::Faults;
use polyrail_transport::memory::Region;
use polyrail_transport::{Endpoint, Polled, RailAddress, RemoteRegion};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::batch::Shared as BatchShared;
use crate::engine::lock;
use crate::fabric::{DEVICES_MAX, Fabric, PEERS_MAX, RAILS_MAX};
use crate::leaving::Leaving;
use crate::peers::Peers;
use crate::rows::{BatchRows, NoRow, RowId};
use crate::stats::Failovers;
use crate::transports::Catalog;

/// Requests that one worker can hold, from submission to report.
pub(crate) const REQUESTS_MAX: usize = 16_384;
/// Batches that one worker can hold: as many as there can be with one request each.
pub(crate) const BATCHES_MAX: usize = REQUESTS_MAX;
/// Pairs of segments that can be in use.
pub(crate) const PLANS_MAX: usize = 4_096;
/// Slices in flight, waiting to be sent again, or not yet proved to have ended.
const ATTEMPTS_MAX: usize = 16_384;
/// Submissions taken in one round.
const TAKE_MAX: usize = 256;
/// Rounds without anything to do before the worker sleeps are bounded by this time.
const SPIN: Duration = Duration::from_micros(50);
/// How often a worker looks whether it can let go of a lost peer.
const FORGET_INTERVAL: Duration = Duration::from_millis(5);
/// How long it waits for submissions that may name such a peer. Those that come later still end as failed.
const FORGET_PATIENCE: Duration = Duration::from_secs(1);
/// How long a shutdown waits for what is in flight.
const SHUTDOWN_MAX: Duration = Duration::from_millis(2_500);

/// The tables of a worker, and those it shares, as a recording has to know them.
pub(crate) const CAPACITIES: Capacities = Capacities {
    rails: RAILS_MAX as u32,
    devices: DEVICES_MAX as u32,
    peers: PEERS_MAX as u32,
    plans: PLANS_MAX as u32,
    requests: REQUESTS_MAX as u32,
    attempts: ATTEMPTS_MAX as u32,
    batches: BATCHES_MAX as u32,
};

/// What a worker is told besides submissions.
pub(crate) enum Command {
    AttachLocal(SegmentRef, Arc<Region>),
    DetachLocal(SegmentRef),
    AttachRemote(SegmentRef, RemoteRegion),
    DetachRemote(SegmentRef),
    AttachRail(RailId, RailAddress),
    InstallPlan(PlanId, Box<Plan>),
    RetirePlan(PlanId),
    Frame(PeerId, Frame),
    PeerGone(PeerId, Proof),
    /// A peer is lost: let go of it as soon as nothing is open with it.
    ForgetPeer(Arc<Leaving>),
    Cancel(RowId),
    /// Another worker made room.
    Room,
    ShutDown,
}

/// How a worker is reached, from any thread.
pub(crate) struct Post {
    ring: Ring<Box<[Slot]>, Box<[AtomicU64]>>,
    /// Requests that can still be submitted.
    room: AtomicUsize,
    batches: Mutex<BatchRows>,
    commands: Mutex<Vec<Command>>,
    has_commands: AtomicBool,
    sleeping: AtomicBool,
    wake: OwnedFd,
}

/// One request on its way to its worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submission {
    pub(crate) plan: PlanId,
    pub(crate) op: Op,
    pub(crate) local_offset: u64,
    pub(crate) remote_offset: u64,
    pub(crate) length: u64,
}

const READ: u64 = 1;
const LAST: u64 = 2;

impl Submission {
    fn encode(&self, tag: u64, last: bool) -> Entry {
        let flags = if self.op == Op::Read { READ } else { 0 } | if last { LAST } else { 0 };
        let Self {
            plan,
            local_offset,
            remote_offset,
            length,
            ..
        } = *self;
        [
            tag,
            plan.to_bits(),
            local_offset,
            remote_offset,
            length,
            flags,
            0,
            0,
        ]
    }
}

impl Post {
    fn new() -> io::Result<Self> {
        let slots = (0..REQUESTS_MAX).map(|_| Slot::EMPTY).collect();
        let cells = (0..REQUESTS_MAX).map(|_| AtomicU64::new(0)).collect();
        Ok(Self {
            ring: Ring::new(slots, cells),
            room: AtomicUsize::new(REQUESTS_MAX),
            batches: Mutex::default(),
            commands: Mutex::default(),
            has_commands: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Takes room for a batch, all or nothing: `false`, there is none now.
    pub(crate) fn reserve(&self, requests: usize) -> bool {
        self.room
            .fetch_update(AcqRel, Acquire, |room| room.checked_sub(requests))
            .is_ok()
    }

    /// Gives back what [`Self::reserve`] took.
    pub(crate) fn unreserve(&self, requests: usize) {
        self.room.fetch_add(requests, AcqRel);
    }

    /// Submits a batch that room was reserved for.
    pub(crate) fn submit(
        &self,
        submissions: &[Submission],
        make: impl FnOnce(RowId) -> BatchShared,
    ) -> Result<Arc<BatchShared>, NoRow> {
        let batch = self.batches().add(make)?;
        let last = submissions.len() - 1;
        for (index, submission) in submissions.iter().enumerate() {
            let entry = submission.encode(batch.row.tag(index), index == last);
            // The ring is as large as the room.
            let pushed = self.ring.push(entry);
            debug_assert!(
                pushed.is_ok(),
                "the submission ring is smaller than the room"
            );
        }
        self.rouse();
        Ok(batch)
    }

    fn batches(&self) -> MutexGuard<'_, BatchRows> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn batch(&self, row: RowId) -> Option<Arc<BatchShared>> {
        self.batches().get(row)
    }

    /// Whether every request that room was taken for has been reported.
    fn is_idle(&self) -> bool {
        self.room.load(Acquire) == REQUESTS_MAX
    }

    pub(crate) fn cancel(&self, row: RowId) {
        self.send(Command::Cancel(row));
    }

    /// Tells the worker something.
    pub(crate) fn send(&self, command: Command) {
        self.commands
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(command);
        self.has_commands.store(true, Release);
        self.rouse();
    }

    fn take_commands(&self) -> Vec<Command> {
        if !self.has_commands.swap(false, AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes the worker if it sleeps or is about to.
    fn rouse(&self) {
        fence(SeqCst);
        if self.sleeping.load(Relaxed) {
            // Full means that it is awake already.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    fn has_news(&self) -> bool {
        self.has_commands.load(Acquire) || !self.ring.is_empty()
    }
}

/// A worker as the engine holds it.
pub(crate) struct Worker {
    pub(crate) post: Arc<Post>,
    pub(crate) thread: Option<JoinHandle<()>>,
}

/// What a worker needs to start.
pub(crate) struct Start {
    pub(crate) config: Config,
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) endpoint: Box<dyn Endpoint>,
    pub(crate) plane: Plane,
    pub(crate) clock: Clock,
    /// For their names, in logs.
    pub(crate) peers: Arc<Mutex<Peers>>,
    pub(crate) transports: Arc<Catalog>,
    pub(crate) failovers: Arc<Failovers>,
    /// What the program has plugged in, for tests.
    pub(crate) faults: Option<Arc<Faults>>,
}

/// The post boxes of all workers.
pub(crate) fn posts(count: usize) -> io::Result<Vec<Arc<Post>>> {
    (0..count).map(|_| Post::new().map(Arc::new)).collect()
}

impl Worker {
    /// Starts the thread of the worker behind `posts[config.worker]`.
    pub(crate) fn start(start: Start, posts: &[Arc<Post>]) -> io::Result<Self> {
        let number = usize::from(start.config.worker);
        let post = posts[number].clone();
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(&poller, &post.wake, epoll::EventData::new_u64(0), readable)?;
        epoll::add(
            &poller,
            start.endpoint.fd(),
            epoll::EventData::new_u64(1),
            readable,
        )?;
        let all = posts.to_vec();
        let own = post.clone();
        let thread = std::thread::Builder::new()
            .name(format!("polyrail-work-{number}"))
            .spawn(move || work(start, &own, &all, &poller))?;
        Ok(Self {
            post,
            thread: Some(thread),
        })
    }
}

fn boxed<T>(count: usize, row: impl Fn() -> T) -> Box<[T]> {
    (0..count).map(|_| row()).collect()
}

/// The thread: the tables, and the loop over them.
fn work(start: Start, post: &Post, posts: &[Arc<Post>], poller: &OwnedFd) {
    let mut plans = boxed(PLANS_MAX, || PlanRow::EMPTY);
    let mut peers = boxed(PEERS_MAX, || Peer::EMPTY);
    let mut lanes = boxed(RAILS_MAX, || Lane::EMPTY);
    let mut requests = boxed::<Row<RequestRow>>(REQUESTS_MAX, || Row::EMPTY);
    let mut attempts = boxed::<Row<Attempt>>(ATTEMPTS_MAX, || Row::EMPTY);
    let mut batches = boxed::<Row<BatchRow>>(BATCHES_MAX, || Row::EMPTY);
    let tables = Tables {
        plans: &mut plans,
        peers: &mut peers,
        lanes: &mut lanes,
        requests: &mut requests,
        attempts: &mut attempts,
        batches: &mut batches,
    };
    let shared = start.fabric.shared();
    let core = Orchestrator::new(start.config, &shared, tables);
    let failover_attempts_max = start.config.failover_attempts_max;
    let recorder = start.fabric.recorder().cloned();
    let core = Recorded::new(core, start.config.worker, recorder);
    let Start {
        peers: known_peers,
        transports,
        failovers,
        endpoint,
        plane,
        clock,
        faults,
        ..
    } = start;
    Loop {
        core,
        endpoint,
        plane,
        clock,
        known_peers,
        transports,
        failovers,
        failover_attempts_max,
        faults,
        post,
        posts,
        poller,
        polled: Polled::default(),
        postings: PostBatch::default(),
        open: Vec::new(),
        held_back: None,
        endings: VecDeque::new(),
        leaving: Vec::new(),
        leaving_since: Instant::ZERO,
        leaving_at: Instant::ZERO,
        ending_at: None,
    }
    .run();
}

/// A batch that core knows, or knew.
#[derive(Default)]
struct OpenBatch {
    row: RowId,
    id: BatchId,
    /// Those that core was asked to take, in order.
    requests: Vec<RequestId>,
}

/// Why a request did not begin.
enum Refusal {
    Core(SubmitError),
    ShuttingDown,
}

/// What ends requests.
enum Ending {
    Cancel(RowId),
    ShutDown,
}

struct Loop<'a> {
    core: Recorded<'a>,
    endpoint: Box<dyn Endpoint>,
    plane: Plane,
    clock: Clock,
    known_peers: Arc<Mutex<Peers>>,
    transports: Arc<Catalog>,
    failovers: Arc<Failovers>,
    failover_attempts_max: u8,
    faults: Option<Arc<Faults>>,
    post: &'a Post,
    posts: &'a [Arc<Post>],
    poller: &'a OwnedFd,
    polled: Polled,
    postings: PostBatch,
    /// Batches by their row with the worker.
    open: Vec<OpenBatch>,
    /// A submission that core has no row for now.
    held_back: Option<Entry>,
    /// Commands that wait until what was submitted before them is in core.
    endings: VecDeque<Ending>,
    /// Lost peers that something is open with, since when the last of them, and when to look again.
    leaving: Vec<Arc<Leaving>>,
    leaving_since: Instant,
    leaving_at: Instant,
    /// When a shutdown stops waiting.
    ending_at: Option<Instant>,
}

impl Loop<'_> {
    fn run(mut self) {
        let mut idle_since: Option<Instant> = None;
        loop {
            let busy = self.round();
            let now = self.clock.now();
            if let Some(at) = self.ending_at
                && (self.post.is_idle() || now >= at)
            {
                break;
            }
            if busy {
                idle_since = None;
                continue;
            }
            match idle_since {
                Some(since) if now.since(since) >= SPIN => {
                    self.sleep(now);
                    idle_since = None;
                }
                Some(_) => std::hint::spin_loop(),
                None => idle_since = Some(now),
            }
        }
    }

    /// Hands in what is known, and does what comes of it. Whether there was anything.
    fn round(&mut self) -> bool {
        let mut busy = self.commands();
        busy |= self.submissions();
        self.endings();
        self.endpoint.poll(self.clock.now(), &mut self.polled);
        // Read after the poll, so that no completion is from the future.
        let now = self.clock.now();
        busy |= !self.polled.completions.is_empty() || !self.polled.lanes.is_empty();
        self.core.handle_completions(now, &self.polled.completions);
        for report in &self.polled.lanes {
            self.core
                .handle_lane(now, report.lane, report.epoch, report.fact);
        }
        self.polled.completions.clear();
        self.polled.lanes.clear();
        self.core.handle_timeout(now);
        busy |= self.drain(now);
        busy | self.forget_peers(now)
    }

    /// Lets go of lost peers that nothing is open with any more. Whether there were any.
    fn forget_peers(&mut self, now: Instant) -> bool {
        if self.leaving.is_empty() || now < self.leaving_at {
            return false;
        }
        self.leaving_at = now + FORGET_INTERVAL;
        // Submissions on their way may name them.
        if self.has_submissions() && now < self.leaving_since + FORGET_PATIENCE {
            return false;
        }
        let count = self.leaving.len();
        let Self {
            core,
            endpoint,
            leaving,
            ..
        } = self;
        leaving.retain(|lost| {
            let open = !core.forget_peer(now, lost.numbers.peer);
            if !open {
                for rail in &lost.numbers.rails {
                    endpoint.forget_rail(*rail);
                }
                for segment in &lost.segments {
                    endpoint.detach_remote(*segment);
                }
            }
            open
        });
        // It ends requests and fences lanes of those that something is open with.
        self.drain(now) | (self.leaving.len() < count)
    }

    fn has_submissions(&self) -> bool {
        self.held_back.is_some() || !self.post.ring.is_empty()
    }

    /// Does everything that core asks for.
    fn drain(&mut self, now: Instant) -> bool {
        let mut busy = false;
        while let Some(lane) = self.core.poll_post(now, &mut self.postings) {
            let posted = self.endpoint.post(&self.postings);
            self.core
                .handle_posted(now, lane, self.postings.epoch, posted.accepted, posted.stop);
            busy = true;
        }
        while let Some(action) = self.core.poll_lane() {
            match action {
                LaneAction::Open { lane, epoch, by } => self.endpoint.open(lane, epoch, by),
                LaneAction::Fence { lane, epoch, scope } => self.endpoint.fence(lane, epoch, scope),
                LaneAction::Close { lane, epoch } => self.endpoint.close(lane, epoch),
            }
            busy = true;
        }
        while let Some(message) = self.core.poll_message(now) {
            match message {
                Message::Fence { .. } if self.fences_ignored() => {}
                Message::Fence { peer, lane, epoch } => self.plane.fence(peer, lane, epoch),
            }
            busy = true;
        }
        while let Some(event) = self.core.poll_event() {
            self.event(event);
            busy = true;
        }
        busy
    }

    /// See [`Faults::ignore_fences`]: only in tests.
    fn fences_ignored(&self) -> bool {
        let faults = self.faults.as_ref();
        faults.is_some_and(|faults| faults.fences_ignored())
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::RequestDone { request, tag } => {
                let last = self.core.transport_of(request);
                if let Some(report) = self.core.take(request) {
                    self.log_end(last, &report);
                    self.report(tag, report);
                }
            }
            Event::BatchDone { batch, tag } => {
                if self.core.take_batch(batch).is_some() {
                    self.finish(RowId::from_tag(tag).0);
                }
            }
            // Of a batch that has been reported; its handle is told through what it was given then.
            Event::Settled { tag } => self.settle(tag),
            Event::Failover {
                from, to, attempt, ..
            } => {
                self.failovers.add(from, to);
                log::warn!(
                    "Transport failover: {} -> {} (attempt {attempt}/{})",
                    self.transports.name(from),
                    self.transports.name(to),
                    self.failover_attempts_max,
                );
            }
            Event::RailChanged {
                rail,
                state,
                cause,
                expired,
            } => self.log_rail(rail, state, cause, expired),
            Event::PeerChanged { peer, silent } => self.log_peer(peer, silent),
            Event::WakeWorker { worker } => {
                if let Some(other) = self.posts.get(usize::from(worker)) {
                    other.send(Command::Room);
                }
            }
        }
    }

    fn log_rail(&self, rail: RailId, state: RailState, cause: Option<Cause>, expired: bool) {
        let peers = lock(&self.known_peers);
        let name = peers.rail_name(rail);
        match (state, cause) {
            (_, Some(cause)) => log::warn!("rail {name} is paused: {cause}"),
            (RailState::Healthy, None) => {
                let (local, remote) = name.split_once('>').unwrap_or((name, "?"));
                let how = match expired {
                    true => "cooldown expired",
                    false => "un-paused by successful transfer",
                };
                log::warn!("Rail recovered: local_nic={local} remote_nic={remote} ({how})");
            }
            (state, None) => log::debug!("rail {name} is {}", state.name()),
        }
    }

    /// The words that the TENT failover document gives to a request that no transport is left for.
    fn log_end(&self, last: Option<TransportId>, report: &Report) {
        let last = last.map_or("?", |transport| self.transports.name(transport));
        match report.cause {
            Some(Cause::FailoverLimit) => log::warn!(
                "Task failover limit reached ({}), last transport={last}",
                self.failover_attempts_max,
            ),
            Some(Cause::NoRail) => log::warn!("No more transports available after {last} failed"),
            _ => {}
        }
    }

    fn log_peer(&self, peer: PeerId, silent: bool) {
        let peers = lock(&self.known_peers);
        let Some(peer) = peers.get(peer) else {
            return;
        };
        let (name, address) = (peer.name.escape_debug(), peer.dialed);
        match silent {
            true => log::warn!("peer \"{name}\" at {address} is silent"),
            false => log::warn!("peer \"{name}\" at {address} is heard again"),
        }
    }

    fn report(&mut self, tag: u64, report: Report) {
        let (row, position) = RowId::from_tag(tag);
        if let Some(batch) = self.post.batch(row) {
            batch.record(position, report);
        }
        self.post.unreserve(1);
    }

    fn finish(&mut self, row: RowId) {
        let Some(batch) = self.post.batch(row) else {
            return;
        };
        // Under the lock: whoever has waited for the batch finds its row free.
        let mut batches = self.post.batches();
        let ended = batch.finish();
        if batch.is_over() {
            batches.remove(row);
        } else {
            batches.keep(row);
        }
        drop(batches);
        ended.tell(&self.plane);
    }

    fn settle(&mut self, tag: u64) {
        let (row, position) = RowId::from_tag(tag);
        if let Some(batch) = self.post.batch(row) {
            batch.settle(position);
            if batch.is_over() {
                self.post.batches().remove(row);
            }
        }
    }

    /// Takes submissions; what core has no row for stays in line.
    fn submissions(&mut self) -> bool {
        let now = self.clock.now();
        let mut busy = false;
        for _ in 0..TAKE_MAX {
            let Some(entry) = self.held_back.take().or_else(|| self.post.ring.pop()) else {
                break;
            };
            if !self.submit(now, entry) {
                self.held_back = Some(entry);
                break;
            }
            busy = true;
        }
        busy
    }

    /// Hands one submission to core. `false`: there is no row for it now.
    fn submit(&mut self, now: Instant, entry: Entry) -> bool {
        let [tag, plan, local_offset, remote_offset, length, flags, ..] = entry;
        let (row, position) = RowId::from_tag(tag);
        if position == 0 && !self.open_batch(row) {
            return false;
        }
        let Some(batch) = self.open.get(usize::from(row.index)).map(|open| open.id) else {
            return true;
        };
        let request = Request {
            tag,
            plan: PlanId::from_bits(plan),
            batch,
            local_offset,
            remote_offset,
            length,
            deadline: Instant::MAX,
            op: if flags & READ != 0 {
                Op::Read
            } else {
                Op::Write
            },
        };
        match self.submit_to_core(now, &request) {
            Ok(id) => self.note(row, id),
            Err(Refusal::Core(SubmitError::Full)) => {
                if position == 0 {
                    self.core.seal_batch(batch);
                    self.core.take_batch(batch);
                }
                return false;
            }
            // Only a lost peer's plans go while somebody still submits to them.
            Err(Refusal::Core(SubmitError::PlanMissing)) => {
                self.refuse(tag, Status::Failed, Cause::PeerGone);
            }
            Err(Refusal::Core(error)) => {
                log::error!("core refused a request that was checked: {error:?}");
                self.refuse(tag, Status::Failed, Cause::LocalProtection);
            }
            Err(Refusal::ShuttingDown) => self.refuse(tag, Status::ShutDown, Cause::ShutDown),
        }
        if flags & LAST != 0 {
            self.core.seal_batch(batch);
        }
        true
    }

    fn submit_to_core(&mut self, now: Instant, request: &Request) -> Result<RequestId, Refusal> {
        if self.ending_at.is_some() {
            return Err(Refusal::ShuttingDown);
        }
        let mut result = self.core.submit(now, request);
        if result == Err(SubmitError::PlanMissing) {
            // The plan was sent before the submission, but commands were looked at before it came.
            self.commands();
            result = self.core.submit(now, request);
        }
        result.map_err(Refusal::Core)
    }

    fn open_batch(&mut self, row: RowId) -> bool {
        let Some(id) = self.core.open_batch(row.tag(0)) else {
            return false;
        };
        let index = usize::from(row.index);
        if self.open.len() <= index {
            self.open.resize_with(index + 1, OpenBatch::default);
        }
        let open = &mut self.open[index];
        (open.row, open.id) = (row, id);
        open.requests.clear();
        true
    }

    fn note(&mut self, row: RowId, id: RequestId) {
        if let Some(open) = self.open.get_mut(usize::from(row.index)) {
            open.requests.push(id);
        }
    }

    /// Ends a request that core never had.
    fn refuse(&mut self, tag: u64, status: Status, cause: Cause) {
        let report = Report {
            status,
            delivered_bytes: 0,
            cause: Some(cause),
            local: Local::Released,
            remote: Remote::Settled,
        };
        self.report(tag, report);
        self.note(RowId::from_tag(tag).0, RequestId::default());
    }

    fn commands(&mut self) -> bool {
        let commands = self.post.take_commands();
        let busy = !commands.is_empty();
        let now = self.clock.now();
        for command in commands {
            self.command(now, command);
        }
        busy
    }

    fn command(&mut self, now: Instant, command: Command) {
        match command {
            Command::AttachLocal(segment, region) => self.endpoint.attach_local(segment, region),
            Command::DetachLocal(segment) => self.endpoint.detach_local(segment),
            Command::AttachRemote(segment, region) => self.endpoint.attach_remote(segment, region),
            Command::DetachRemote(segment) => self.endpoint.detach_remote(segment),
            Command::AttachRail(rail, address) => self.endpoint.attach_rail(rail, address),
            Command::InstallPlan(id, plan) => {
                let installed = self.core.install_plan(now, id, &plan);
                debug_assert!(installed, "the tables are as large as the engine's numbers");
            }
            Command::RetirePlan(id) => self.core.retire_plan(id),
            Command::Frame(peer, frame) => self.core.handle_frame(now, peer, &frame),
            Command::PeerGone(peer, proof) => self.core.handle_peer_gone(now, peer, proof),
            Command::ForgetPeer(lost) => {
                self.leaving.push(lost);
                self.leaving_since = now;
                self.leaving_at = now;
            }
            Command::Cancel(row) => self.endings.push_back(Ending::Cancel(row)),
            Command::Room => self.core.handle_wake(),
            Command::ShutDown => self.endings.push_back(Ending::ShutDown),
        }
    }

    /// Cancels what is to be cancelled and shuts down. What the program submitted before it asked for that is
    /// in the ring at least, so the ring goes first.
    fn endings(&mut self) {
        if self.endings.is_empty() {
            return;
        }
        while self.submissions() {}
        let now = self.clock.now();
        for _ in 0..self.endings.len() {
            match self.endings.pop_front() {
                Some(Ending::Cancel(row)) => self.cancel(now, row),
                Some(Ending::ShutDown) => {
                    self.core.shut_down(now);
                    self.ending_at = Some(now + SHUTDOWN_MAX);
                }
                None => break,
            }
        }
    }

    fn cancel(&mut self, now: Instant, row: RowId) {
        if self.post.batch(row).is_none() {
            return;
        }
        if self.held_back.is_some() {
            // It may be about this batch, or stand before it in line.
            self.endings.push_back(Ending::Cancel(row));
        }
        let open = self.open.get(usize::from(row.index));
        let Some(open) = open.filter(|open| open.row == row) else {
            return;
        };
        for id in open.requests.clone() {
            self.core.cancel(now, id);
        }
    }

    /// Sleeps until somebody has something for the worker, or a timer is due.
    fn sleep(&mut self, now: Instant) {
        self.post.sleeping.store(true, Relaxed);
        fence(SeqCst);
        if !self.post.has_news() {
            let core = self.core.poll_timeout().map(|(at, _)| at);
            let leaving = (!self.leaving.is_empty()).then_some(self.leaving_at);
            let until = [core, self.endpoint.poll_timeout(), self.ending_at, leaving]
                .into_iter()
                .flatten()
                .min();
            let timeout = until.map(|at| timespec(at.since(now)));
            let mut events = [const { std::mem::MaybeUninit::uninit() }; 2];
            if let Err(error) = epoll::wait(self.poller, &mut events, timeout.as_ref())
                && error != rustix::io::Errno::INTR
            {
                log::error!("worker cannot sleep: {error}");
                std::thread::yield_now();
            }
        }
        self.post.sleeping.store(false, Relaxed);
        let mut count = [0; 8];
        // Empty unless somebody called.
        let _ = rustix::io::read(self.post.wake.as_fd(), &mut count);
    }
}

impl Drop for Loop<'_> {
    /// However the thread ends: whoever still waits is told the truth about what is left.
    fn drop(&mut self) {
        let rows = self.post.batches().close();
        for (row, batch) in rows {
            let open = self.open.get(usize::from(row.index));
            let open = open.filter(|open| open.row == row);
            let ended = batch.abandon(open.map_or(0, |open| open.requests.len()));
            ended.tell(&self.plane);
        }
    }
}

fn timespec(span: Duration) -> Timespec {
    let nanos = span.as_nanos().min(3_600_000_000_000);
    Timespec {
        tv_sec: (nanos / 1_000_000_000) as _,
        tv_nsec: (nanos % 1_000_000_000) as _,
    }
}
