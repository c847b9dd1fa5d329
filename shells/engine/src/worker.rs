//! One worker: a thread that drives one `Orchestrator` by its contract, or lets those who wait drive it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering::*, fence};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use polyrail_control::plane::Plane;
use polyrail_core::message::{Frame, Message};
use polyrail_core::orchestrator::rows::{Attempt, BatchRow, Lane, Peer, PlanRow, RequestRow};
use polyrail_core::orchestrator::{
    Config, Event, LaneAction, Orchestrator, Proof, Request, SubmitError, Tables,
};
use polyrail_core::rail::documented::Shares;
use polyrail_core::rail::health::RailState;
use polyrail_core::rail::select::Policy;
use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::ring::Entry;
use polyrail_core::table::Row;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{BatchId, PeerId, PlanId, RailId, RequestId, TransportId};
use polyrail_core::work::{Cause, PostBatch};
use polyrail_record::{Capacities, Recorded};
use polyrail_transport::clock::Clock;
use polyrail_transport::fault::Faults;
use polyrail_transport::peek::Peek;
use polyrail_transport::{Endpoint, Polled, timespec};
use rustix::event::epoll;

use crate::batch::Shared as BatchShared;
use crate::config::SendQueueConfig;
use crate::delivery::Ticket;
use crate::fabric::{DEVICES_MAX, Fabric, PEERS_MAX, RAILS_MAX};
use crate::files::AttachedDisks;
use crate::hints::{Hints, READ_INTERVAL};
use crate::leaving::Leaving;
use crate::lock::lock;
use crate::neighbours::Neighbours;
use crate::pace::{Idle, Pace, Pacer, Progress};
use crate::peers::Peers;
use crate::post::{BATCHES_MAX, Command, Flags, NOBODY, Post, ROWS_MAX, THREAD, WAITER};
use crate::rows::RowId;
use crate::seat::NoSeat;
use crate::staging::{EngineCell, Handover};
use crate::stats::Failovers;
use crate::transports::Catalog;

/// Pairs of segments that can be in use.
pub(crate) const PLANS_MAX: usize = 4_096;
/// Slices in flight, waiting to be sent again, or not yet proved to have ended.
const ATTEMPTS_MAX: usize = 16_384;
/// Submissions taken in one round.
const TAKE_MAX: usize = 256;
/// Who waits again so soon after a wait is expected to go on so: what is under way meanwhile need not be looked after.
const SOON: Duration = Duration::from_micros(50);
/// How often a worker looks whether it can let go of a lost peer.
const FORGET_INTERVAL: Duration = Duration::from_millis(5);
/// Plans of lost peers that are remembered for submissions that come late.
const FORGOTTEN_MAX: usize = 1024;
/// How long it waits for submissions that may name such a peer. Those that come later find its plans gone.
const FORGET_PATIENCE: Duration = Duration::from_secs(1);
/// How long a worker's thread leaves the work to those who wait, before it looks whether they still do.
const LEASE_MIN: Duration = Duration::from_millis(1);
/// The same, if they did whenever it looked: each look disturbs them. It bounds the delay of a batch that is
/// submitted after many that were waited for, and is neither waited for nor looked at. Core's usual timers are
/// longer: if the thread slept past one of them, whoever leaves the seat would have to wake it.
const LEASE_MAX: Duration = Duration::from_millis(4);
/// How long a shutdown waits for what is in flight.
const SHUTDOWN_MAX: Duration = Duration::from_millis(2_500);

/// The tables of a worker, and those it shares, as a recording has to know them.
pub(crate) const CAPACITIES: Capacities = Capacities {
    rails: RAILS_MAX as u32,
    devices: DEVICES_MAX as u32,
    peers: PEERS_MAX as u32,
    plans: PLANS_MAX as u32,
    requests: ROWS_MAX as u32,
    attempts: ATTEMPTS_MAX as u32,
    batches: BATCHES_MAX as u32,
};
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
    /// What an agent says, if one is asked.
    pub(crate) hints: Option<Arc<Hints>>,
    /// The engine itself, once it is there.
    pub(crate) engine: Arc<EngineCell>,
}

/// The post boxes of all workers.
pub(crate) fn posts(count: usize, config: &SendQueueConfig) -> io::Result<Vec<Arc<Post>>> {
    (0..count)
        .map(|_| Post::new(config).map(Arc::new))
        .collect()
}

impl Worker {
    /// Starts the thread of the worker behind `posts[config.worker]`.
    pub(crate) fn start(start: Start, posts: &[Arc<Post>]) -> io::Result<Self> {
        let number = usize::from(start.config.worker);
        let post = posts[number].clone();
        // A descriptor of its own: the thread tells the kernel about it while others use the endpoint.
        let moved = start.endpoint.fd().try_clone_to_owned()?;
        let bed = Bed::new(&post.wake, moved)?;
        let all = posts.to_vec();
        let own = post.clone();
        let thread = std::thread::Builder::new()
            .name(format!("polyrail-work-{number}"))
            .spawn(move || work(start, &own, &all, bed))?;
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
fn work(start: Start, post: &Post, posts: &[Arc<Post>], bed: Bed) {
    let mut plans = boxed(PLANS_MAX, || PlanRow::EMPTY);
    let mut peers = boxed(PEERS_MAX, || Peer::EMPTY);
    let mut lanes = boxed(RAILS_MAX, || Lane::EMPTY);
    let mut requests = boxed::<Row<RequestRow>>(ROWS_MAX, || Row::EMPTY);
    let shares_max = if start.config.policy == Policy::Documented {
        ROWS_MAX
    } else {
        0
    };
    let mut shares = boxed(shares_max, || Shares::NONE);
    let mut attempts = boxed(ATTEMPTS_MAX, || Attempt::EMPTY);
    let mut batches = boxed::<Row<BatchRow>>(BATCHES_MAX, || Row::EMPTY);
    let tables = Tables {
        plans: &mut plans,
        peers: &mut peers,
        lanes: &mut lanes,
        requests: &mut requests,
        shares: &mut shares,
        attempts: &mut attempts,
        batches: &mut batches,
    };
    let fabric = &start.fabric;
    let shared = fabric.shared();
    let core = Orchestrator::new(start.config, &shared, tables);
    let peer_silence = start.config.peer_silence;
    let failover_attempts_max = start.config.failover_attempts_max;
    let recorder = fabric.recorder().cloned();
    let core = Recorded::new(core, start.config.worker, recorder);
    let Start {
        peers: known_peers,
        transports,
        failovers,
        endpoint,
        plane,
        clock,
        faults,
        hints,
        engine,
        ..
    } = start;
    let handover = Handover::new(engine, posts[usize::from(start.config.worker)].clone());
    let mut driven = Loop {
        core,
        fabric,
        endpoint,
        plane,
        clock,
        known_peers,
        transports,
        failovers,
        failover_attempts_max,
        faults,
        hints,
        hints_at: Instant::ZERO,
        post,
        posts,
        // Lanes are bounded, so that this is enough for four full ones; with more it grows once.
        polled: Polled {
            completions: Vec::with_capacity(4 * usize::from(polyrail_tcp::WORKS_MAX)),
            lanes: Vec::new(),
            visible: Vec::new(),
        },
        postings: PostBatch::default(),
        open: Vec::new(),
        held_back: None,
        endings: VecDeque::new(),
        leaving: Vec::new(),
        leaving_since: Instant::ZERO,
        leaving_at: Instant::ZERO,
        gone: Vec::new(),
        forgotten: VecDeque::new(),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        pacer: Pacer::default(),
        done: Progress::default(),
        moved: false,
        disks: AttachedDisks::new(peer_silence),
        handover,
        looked: clock.now(),
        left_at: Instant::ZERO,
        peek: Peek::default(),
        ending_at: None,
        unseen: Vec::new(),
    };
    let published = post.seat.publish(&mut driven);
    serve(post, bed, clock);
    // Nobody drives it from here on, and what it borrows can go.
    drop(published);
}

/// What the thread does with a loop that others may drive too.
fn serve(post: &Post, mut bed: Bed, clock: Clock) {
    let mut drives = 0;
    let mut called = true;
    let mut lease = LEASE_MIN;
    loop {
        let before = std::mem::replace(&mut drives, post.drives.load(Relaxed));
        let due = Instant::from_nanos(post.due_at.load(Relaxed));
        let is_driven = before != drives && clock.now() < due;
        let leave_it = !called && post.leased.load(Relaxed) && is_driven && !post.is_left_alone();
        let turn = match leave_it {
            true => Ok(Turn::Lease),
            false => post.seat.drive(|driven| driven.run()),
        };
        called = match turn {
            Ok(Turn::Over) | Err(NoSeat::Gone) => return,
            Ok(Turn::Sleep(until)) => {
                lease = LEASE_MIN;
                bed.heed_endpoint(true);
                bed.sleep(until.map(|at| at.since(clock.now())))
            }
            Ok(Turn::Lease) | Err(NoSeat::Taken) => {
                lease = match called {
                    true => LEASE_MIN,
                    false => (lease + lease).min(LEASE_MAX),
                };
                let now = clock.now();
                let due = Instant::from_nanos(post.due_at.load(Relaxed));
                // What is overdue is done by whoever has the seat.
                let looks_at = match due > now {
                    true => due.min(now + lease),
                    false => now + lease,
                };
                post.looks_at.store(looks_at.as_nanos(), Relaxed);
                post.leased.store(true, Relaxed);
                bed.heed_endpoint(false);
                bed.sleep(Some(looks_at.since(now)))
            }
        };
    }
}

/// How the thread's turn ended.
enum Turn {
    /// There is nothing to do until then, unless it is called or the endpoint moves.
    Sleep(Option<Instant>),
    /// Somebody who waits takes over.
    Lease,
    /// The worker has ended.
    Over,
}

/// Something to sleep on: until somebody calls or the endpoint has something.
struct Bed {
    poller: OwnedFd,
    moved: OwnedFd,
    /// Whether the endpoint wakes.
    heeds: bool,
    call: Arc<OwnedFd>,
}

const CALLED: u64 = 0;
const MOVED: u64 = 1;

impl Bed {
    fn new(call: &Arc<OwnedFd>, moved: OwnedFd) -> io::Result<Self> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(&poller, call, epoll::EventData::new_u64(CALLED), readable)?;
        epoll::add(&poller, &moved, epoll::EventData::new_u64(MOVED), readable)?;
        Ok(Self {
            poller,
            moved,
            heeds: true,
            call: call.clone(),
        })
    }

    /// Whether what the endpoint has is to end the sleep.
    fn heed_endpoint(&mut self, heed: bool) {
        if self.heeds == heed {
            return;
        }
        let flags = match heed {
            true => epoll::EventFlags::IN,
            false => epoll::EventFlags::empty(),
        };
        let data = epoll::EventData::new_u64(MOVED);
        match epoll::modify(&self.poller, &self.moved, data, flags) {
            Ok(()) => self.heeds = heed,
            Err(error) => log::error!("worker cannot choose what wakes it: {error}"),
        }
    }

    /// Sleeps for so long at most. Whether somebody called.
    fn sleep(&self, longest: Option<Duration>) -> bool {
        let timeout = longest.map(timespec);
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 2];
        let called = match epoll::wait(&self.poller, &mut events, timeout.as_ref()) {
            Ok((events, _)) => events.iter().any(|event| event.data.u64() == CALLED),
            Err(rustix::io::Errno::INTR) => false,
            Err(error) => {
                log::error!("worker cannot sleep: {error}");
                std::thread::yield_now();
                false
            }
        };
        if called {
            let _ = rustix::io::read(self.call.as_fd(), &mut [0; 8]);
        }
        called
    }
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

pub(crate) struct Loop<'a> {
    core: Recorded<'a>,
    fabric: &'a Fabric,
    endpoint: Box<dyn Endpoint>,
    plane: Plane,
    clock: Clock,
    known_peers: Arc<Mutex<Peers>>,
    transports: Arc<Catalog>,
    failovers: Arc<Failovers>,
    failover_attempts_max: u8,
    faults: Option<Arc<Faults>>,
    hints: Option<Arc<Hints>>,
    /// When to read them again.
    hints_at: Instant,
    post: &'a Post,
    posts: &'a [Arc<Post>],
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
    /// Peers whose end is proved, until they are forgotten.
    gone: Vec<PeerId>,
    /// Plans of peers whose end was proved, the last forgotten ones: what is submitted to them late is told.
    forgotten: VecDeque<PlanId>,
    /// Processors that this process may use.
    processors: usize,
    pacer: Pacer,
    /// What was posted so far.
    done: Progress,
    /// The endpoint had something in the last round.
    moved: bool,
    disks: AttachedDisks,
    /// What goes on through slots.
    handover: Handover,
    /// When the last round looked.
    looked: Instant,
    /// When a waiter last left the seat.
    left_at: Instant,
    /// Whether looking once more before sleeping pays.
    peek: Peek,
    /// When a shutdown stops waiting.
    ending_at: Option<Instant>,
    /// Notifications that wait for what they tell of to be seen.
    unseen: Vec<Ticket>,
}

impl Loop<'_> {
    /// Drives on the worker's thread, until there is nothing to do or somebody who waits asks for the seat.
    fn run(&mut self) -> Turn {
        let post = self.post;
        post.asleep.store(NOBODY, Relaxed);
        post.leased.store(false, Relaxed);
        // Who submits either sees that, or is seen in the first round.
        fence(SeqCst);
        // A call for a waiter that was awake already: unheard, it would keep the endpoint's descriptor ready.
        let _ = rustix::io::read(&post.wake_waiter, &mut [0; 8]);
        let mut idle_since = None;
        loop {
            let (busy, now) = self.round(self.clock.now());
            if let Some(at) = self.ending_at {
                if post.is_idle() || now >= at {
                    return Turn::Over;
                }
            } else if post.asking.load(Relaxed) > 0 {
                post.asleep.store(THREAD, Relaxed);
                return Turn::Lease;
            }
            let idle = self.idle(THREAD);
            if !self.spins(now, busy, idle, &mut idle_since) && self.may_sleep(THREAD) {
                self.endpoint.arm();
                let until = self.due();
                let looks_at = until.unwrap_or(Instant::MAX);
                post.looks_at.store(looks_at.as_nanos(), Relaxed);
                return Turn::Sleep(until);
            }
        }
    }

    /// Drives from `start`, which is now, on the thread of somebody who waits for a batch, `at_once` after something was
    /// submitted. Whether the worker's thread is needed then.
    pub(crate) fn drive(
        &mut self,
        batch: &BatchShared,
        start: std::time::Instant,
        timeout: std::time::Duration,
        at_once: bool,
    ) -> bool {
        let post = self.post;
        post.asleep.store(NOBODY, Relaxed);
        post.waiter_drives.store(true, Relaxed);
        post.drives.fetch_add(1, Relaxed);
        // Whoever had the seat before may have read the clock later.
        let mut now = self.clock.at(start).max(self.looked);
        let until = now + Duration::from(timeout);
        let comes_back = at_once && now.since(self.left_at) <= SOON;
        self.pacer.begin(now, self.done);
        self.endpoint.announce(self.pacer.pace() == Pace::Spin);
        let mut idle_since = None;
        let mut peeking = false;
        let mut is_first = true;
        loop {
            let busy;
            (busy, now) = self.round(now);
            if std::mem::take(&mut peeking) {
                self.peek.tell(self.moved);
            }
            // It may have ended before the seat was free; since then it ends in a round that has something to do.
            let over = (busy || is_first) && !batch.is_pending();
            is_first = false;
            // A shutdown is the thread's business, because it ends with it.
            if over || self.ending_at.is_some() {
                break;
            }
            if now >= until {
                break;
            }
            self.count(now);
            let idle = self.idle(WAITER);
            if !self.spins(now, busy, idle, &mut idle_since) {
                // On one core the peer may have run while something was posted, and its answer be there.
                peeking = busy && !self.moved && self.peek.is_due();
                if !peeking && self.may_sleep(WAITER) {
                    let due = self.due().unwrap_or(Instant::MAX).min(until);
                    self.sleep_here(due.since(now));
                    post.asleep.store(NOBODY, Relaxed);
                    idle_since = None;
                }
            }
            now = self.clock.now();
        }
        self.left_at = self.looked;
        self.pacer.end(self.looked, self.done);
        post.waiter_drives.store(false, Relaxed);
        let may_sleep = self.may_sleep(THREAD);
        post.asleep.store(THREAD, Relaxed);
        let due = self.due().unwrap_or(Instant::MAX).as_nanos();
        post.due_at.store(due, Relaxed);
        // It is told once: from then on it looks by then.
        let looks_late = due < post.looks_at.load(Relaxed);
        if looks_late {
            post.looks_at.fetch_min(due, Relaxed);
        }
        !may_sleep || self.ending_at.is_some() || post.needs_thread(comes_back) || looks_late
    }

    /// Moves what a request is about, past all tables, if core and the lane's endpoint agree to that. Whether they have.
    pub(crate) fn carry_at_once(&mut self, now: Instant, request: &Request) -> bool {
        if self.ending_at.is_some() {
            return false;
        }
        let Some(way) = self.core.at_once(request) else {
            return false;
        };
        // Now and then core learns how long it takes.
        let start = way.is_measured.then(|| self.clock.now());
        let endpoint = &mut self.endpoint;
        if !endpoint.carry_at_once(now, way.lane, way.epoch, &way.work) {
            return false;
        }
        let took = start.map(|start| self.clock.now().since(start));
        self.core.handle_at_once(now, &way, took);
        true
    }

    /// Lets the pacer look at what was done.
    fn count(&mut self, now: Instant) {
        let before = self.pacer.pace();
        self.pacer.count(now, self.done);
        if self.pacer.pace() != before {
            self.endpoint.announce(self.pacer.pace() == Pace::Spin);
        }
    }

    /// Sleeps without leaving the seat.
    fn sleep_here(&mut self, longest: Duration) {
        self.endpoint.arm();
        let call = &self.post.wake_waiter;
        match self.endpoint.sleep(call.as_fd(), Some(longest)) {
            Ok(false) => {}
            Ok(true) => {
                let _ = rustix::io::read(call, &mut [0; 8]);
            }
            Err(error) => {
                log::error!("a waiter cannot sleep: {error}");
                std::thread::yield_now();
            }
        }
    }

    /// For how long to look again after the last thing that there was to do.
    fn idle(&self, who: u8) -> Idle {
        let waits = self.endpoint.waits();
        match who {
            WAITER => Idle::of_waiter(waits, self.pacer.pace(), || self.has_processors()),
            _ => Idle::of_thread(waits, self.pacer.pace()),
        }
    }

    /// Whether there are processors for all who wait for a worker, and for as many peers that are at their works.
    fn has_processors(&self) -> bool {
        let waiters = self.posts.iter();
        let waiters = waiters.filter(|post| post.waiter_drives.load(Relaxed));
        2 * waiters.count() <= self.processors
    }

    /// Whether to look again instead of sleeping.
    fn spins(
        &self,
        now: Instant,
        busy: bool,
        idle: Idle,
        idle_since: &mut Option<Instant>,
    ) -> bool {
        // What was posted just now is hardly there yet, and the sleep notices if it is.
        let due = || self.endpoint.poll_timeout().is_some_and(|at| at <= now);
        if busy && (self.moved || idle != Idle::Sleep || due()) {
            *idle_since = None;
            return true;
        }
        let since = *idle_since.get_or_insert(now);
        let longest = match idle {
            Idle::Sleep => return false,
            Idle::Spin(longest) => {
                std::hint::spin_loop();
                longest
            }
            Idle::Yield(longest) => {
                std::thread::yield_now();
                longest
            }
        };
        now.since(since) < longest
    }

    /// Announces who is going to sleep. `false`: something came before that, and it is withdrawn.
    fn may_sleep(&self, who: u8) -> bool {
        self.post.asleep.store(who, Relaxed);
        fence(SeqCst);
        let may = !self.post.has_news();
        if !may {
            self.post.asleep.store(NOBODY, Relaxed);
        }
        may
    }

    /// When there is something to do by itself.
    fn due(&mut self) -> Option<Instant> {
        let core = self.core.poll_timeout().map(|(at, _)| at);
        let leaving = (!self.leaving.is_empty()).then_some(self.leaving_at);
        let neighbours = self.fabric.neighbours();
        let heartbeat = neighbours.and_then(Neighbours::poll_timeout);
        let endpoint = self.endpoint.poll_timeout();
        let handover = self.handover.due();
        [core, endpoint, handover, self.ending_at, leaving, heartbeat]
            .into_iter()
            .flatten()
            .min()
    }

    /// Hands in what is known, and does what comes of it. Whether there was anything, and when that was.
    fn round(&mut self, start: Instant) -> (bool, Instant) {
        let mut busy = self.commands(start);
        self.heed_hints(start);
        busy |= self.submissions(start);
        self.endings(start);
        self.endpoint.poll(start, &mut self.polled);
        // No completion is from the future.
        let seen = self.polled.completions.iter().map(|seen| seen.at);
        let now = seen.fold(start, Instant::max);
        self.looked = now;
        self.moved = !self.polled.completions.is_empty() || !self.polled.lanes.is_empty();
        busy |= self.moved;
        self.core.handle_completions(now, &self.polled.completions);
        for report in &self.polled.lanes {
            self.core
                .handle_lane(now, report.lane, report.epoch, report.fact);
        }
        self.polled.completions.clear();
        self.polled.lanes.clear();
        for ticket in self.polled.visible.drain(..) {
            let place = self.unseen.iter().position(|held| held.number() == ticket);
            if let Some(place) = place {
                self.unseen.swap_remove(place).go(&self.plane);
            }
        }
        for disk in self.disks.heard(now) {
            self.core.handle_frame(now, *disk, &Frame::Alive);
        }
        self.core.handle_timeout(now);
        if let Some(neighbours) = self.fabric.neighbours() {
            neighbours.look(now, self.fabric);
        }
        busy |= self.drain(now);
        self.handover.hand_over(now);
        busy |= self.forget_peers(now);
        if let Some(neighbours) = self.fabric.neighbours() {
            neighbours.publish(now, busy, self.fabric);
        }
        (busy, now)
    }

    /// Tells core what an agent wants, now and then. Before what was submitted since: after a sleep, what was said
    /// last may be long over.
    fn heed_hints(&mut self, now: Instant) {
        let Some(hints) = &self.hints else {
            return;
        };
        if now < self.hints_at {
            return;
        }
        self.hints_at = now + READ_INTERVAL;
        let peers = lock(&self.known_peers).steered();
        for (peer, hint) in hints.read(peers) {
            self.core.handle_hint(now, peer, hint);
        }
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
            gone,
            forgotten,
            handover,
            ..
        } = self;
        leaving.retain(|lost| {
            let open = !core.forget_peer(now, lost.numbers.peer);
            if !open {
                let known = gone.len();
                gone.retain(|peer| *peer != lost.numbers.peer);
                if gone.len() < known {
                    forgotten.extend(&lost.plans);
                    let surplus = forgotten.len().saturating_sub(FORGOTTEN_MAX);
                    forgotten.drain(..surplus);
                }
                for plan in &lost.plans {
                    handover.forget(*plan);
                }
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
        while let Some(post) = self.core.poll_post(now, &mut self.postings) {
            let posted = self.endpoint.post(&self.postings);
            let accepted = self.postings.works.iter().take(posted.accepted);
            accepted.for_each(|work| self.done.add(work.length));
            self.core
                .handle_posted(now, post, posted.accepted, posted.stop);
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
                // Its endpoint says it unasked.
                Message::Fence { peer, .. } if self.disks.has(peer) => {}
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

    /// A batch has ended. Its notification goes out once what it tells of can be seen, not merely has arrived.
    fn finish(&mut self, row: RowId) {
        let Self {
            post,
            endpoint,
            known_peers,
            plane,
            unseen,
            ..
        } = self;
        post.finish(row, |ticket| {
            let session = lock(known_peers)
                .get(ticket.peer())
                .map(|peer| peer.session);
            let number = ticket.number();
            match session.is_some_and(|session| endpoint.make_visible(session, number)) {
                true => unseen.push(ticket),
                false => ticket.go(plane),
            }
        });
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
                let transports = &self.transports;
                let at_staged = || last.is_some_and(|last| transports.stages(last));
                if let Some(report) = self.core.take(request)
                    && !self.handover.takes(self.looked, tag, &report, at_staged)
                {
                    self.log_end(last, &report);
                    self.post.report(tag, report);
                }
            }
            Event::BatchDone { batch, tag } => {
                let (row, _) = RowId::from_tag(tag);
                if self.core.take_batch(batch).is_some() && self.handover.has_ended(row) {
                    self.finish(row);
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
    fn submissions(&mut self, now: Instant) -> bool {
        if self.held_back.is_none() && self.post.ring.is_empty() {
            return false;
        }
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
        let [
            tag,
            plan,
            local_offset,
            remote_offset,
            length,
            flags,
            deadline,
            _,
        ] = entry;
        let Flags {
            op, last, priority, ..
        } = Flags::from_bits(flags);
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
            deadline: Instant::from_nanos(deadline),
            priority,
            op,
        };
        match self.submit_to_core(now, &request) {
            Ok(id) => {
                self.handover.note(&entry);
                self.note(row, id);
            }
            Err(Refusal::Core(SubmitError::Full)) => {
                if position == 0 {
                    self.core.seal_batch(batch);
                    self.core.take_batch(batch);
                }
                return false;
            }
            // Only a lost peer's plans go while somebody still submits to them.
            Err(Refusal::Core(SubmitError::PlanMissing)) => {
                let proved = self.forgotten.contains(&request.plan);
                let status = match proved {
                    true => Status::PeerLost,
                    false => Status::Failed,
                };
                self.refuse(tag, status, Cause::PeerGone);
            }
            Err(Refusal::Core(error)) => {
                log::error!("core refused a request that was checked: {error:?}");
                self.refuse(tag, Status::Failed, Cause::LocalProtection);
            }
            Err(Refusal::ShuttingDown) => self.refuse(tag, Status::ShutDown, Cause::ShutDown),
        }
        if last {
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
            self.commands(now);
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
        self.post.report(tag, report);
        self.note(RowId::from_tag(tag).0, RequestId::default());
    }

    fn commands(&mut self, now: Instant) -> bool {
        let commands = self.post.take_commands();
        let busy = !commands.is_empty();
        for command in commands {
            self.command(now, command);
        }
        busy
    }

    /// What a peer has said, as core knows it: which works have arrived, the lane's transport has to read.
    fn understand(&self, frame: Frame) -> Frame {
        match frame {
            Frame::Fenced {
                lane,
                epoch,
                delivered,
            } => Frame::Fenced {
                lane,
                epoch,
                delivered: self.endpoint.arrived(lane, epoch, delivered),
            },
            other => other,
        }
    }

    fn command(&mut self, now: Instant, command: Command) {
        match command {
            Command::AttachLocal(segment, region) => self.endpoint.attach_local(segment, region),
            Command::DetachLocal(segment) => self.endpoint.detach_local(segment),
            Command::AttachRemote(segment, region) => self.endpoint.attach_remote(segment, region),
            Command::DetachRemote(segment) => self.endpoint.detach_remote(segment),
            Command::AttachRail(rail, address) => self.endpoint.attach_rail(rail, address),
            Command::AttachDisk(disk) => self.disks.add(disk),
            Command::InstallPlan(id, plan) => {
                self.handover.learn(id, &plan, &self.transports);
                let installed = self.core.install_plan(now, id, &plan);
                debug_assert!(installed, "the tables are as large as the engine's numbers");
            }
            Command::RetirePlan(id) => {
                self.handover.forget(id);
                self.core.retire_plan(id);
            }
            Command::StagedEnded(tag, report) => {
                self.post.report(tag, report);
                if self.handover.settle(tag) {
                    self.finish(RowId::from_tag(tag).0);
                }
            }
            Command::Frame(peer, frame) => {
                let frame = self.understand(frame);
                self.core.handle_frame(now, peer, &frame);
            }
            Command::PeerGone(peer, proof) => {
                if proof == Proof::ProcessGone && !self.gone.contains(&peer) {
                    self.gone.push(peer);
                }
                self.core.handle_peer_gone(now, peer, proof);
            }
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
    fn endings(&mut self, now: Instant) {
        if self.endings.is_empty() {
            return;
        }
        while self.submissions(now) {}
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
        self.handover.cancel(row);
        let open = self.open.get(usize::from(row.index));
        let Some(open) = open.filter(|open| open.row == row) else {
            return;
        };
        for id in open.requests.clone() {
            self.core.cancel(now, id);
        }
    }
}

impl Drop for Loop<'_> {
    /// However the thread ends: whoever still waits is told the truth about what is left.
    fn drop(&mut self) {
        for ticket in self.unseen.drain(..) {
            ticket.go(&self.plane);
        }
        let rows = self.post.batches().close();
        for (row, batch) in rows {
            let open = self.open.get(usize::from(row.index));
            let open = open.filter(|open| open.row == row);
            let ended = batch.abandon(open.map_or(0, |open| open.requests.len()));
            ended.tell(|ticket| ticket.go(&self.plane));
        }
    }
}
