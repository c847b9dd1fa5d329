//! The engine as a program holds it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use polyrail_control::plane::{AskError, ConnectError, Introduction, Plane, PlaneConfig};
use polyrail_core::orchestrator::Config as CoreConfig;
use polyrail_core::plan::Plan;
use polyrail_core::rail::health::RailState;
use polyrail_core::slice::SLICE_BYTES;
use polyrail_core::time::Duration as CoreDuration;
use polyrail_core::units::{PeerId, PlanId, RailId, SegmentRef};
use polyrail_core::work::{Op, Place};
use polyrail_tcp::TcpTransport;
use polyrail_transport::clock::Clock;
use polyrail_transport::fault::{FaultProxy, Faults};
use polyrail_transport::memory::{Access, Region};
use polyrail_transport::{Endpoint, RemoteRegion, Transport};

use crate::batch::{Batch, Shared as BatchShared};
use crate::config::Config;
use crate::errand::{self, Errand};
use crate::error::{CallError, EngineError, OpenError, RegisterError, SubmitError};
use crate::fabric::Fabric;
use crate::listen::{self, Listening};
use crate::peers::{Peer, Peers};
use crate::reception::Reception;
use crate::rows::NoRow;
use crate::segments::{
    KnownPair, LocalSegment, NoPlan, SCRATCH_NAME, Segment, SegmentId, Segments,
};
use crate::worker::{self, Command, PLANS_MAX, Post, REQUESTS_MAX, Start, Submission, Worker};

/// How long a peer may take to let us in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a peer may take to describe a segment.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(3);
/// Workers that one engine can have.
const WORKERS_MAX: usize = 64;
/// Silence of a TCP lane that is noticed: shorter takes scheduling delays of a busy host for outages.
const TCP_PROGRESS_FLOOR: CoreDuration = CoreDuration::from_millis(30);

/// One read or write between two segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Write: from local to remote. Read: from remote to local.
    pub op: Op,
    /// A segment of this engine.
    pub local: SegmentId,
    /// First byte in it.
    pub local_offset: u64,
    /// A segment of a peer.
    pub remote: SegmentId,
    /// First byte in it.
    pub remote_offset: u64,
    /// Bytes, at least 1.
    pub length: u64,
}

/// A rail as the program sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailStatus {
    /// `tcp:LOCAL>REMOTE`; `*` for a local address that the kernel chooses.
    pub name: String,
    /// Where it stands.
    pub state: RailState,
    /// Bytes acknowledged since the engine started, both directions.
    pub bytes: u64,
}

/// A program's own requests to a peer's program, over the control plane.
pub trait Calls: Send + Sync {
    /// Carries out a peer's call. One at a time; may block. The engine is the one that was called.
    fn call(&self, engine: &Engine, method: u16, body: &[u8]) -> Result<Vec<u8>, String>;
}

/// What a program can plug into an engine.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Faults to inject into every worker's transport, rail by rail.
    pub faults: Option<Arc<Faults>>,
    /// Carries out peers' calls; without it they are refused.
    pub calls: Option<Arc<dyn Calls>>,
    /// Puts something in the place of each worker's transport, or around it.
    pub endpoints: Option<Arc<dyn Endpoints>>,
}

/// Replaces what moves a worker's bytes: for measuring the engine without any transport, and for tests.
pub trait Endpoints: Send + Sync {
    /// What the worker uses instead of `endpoint`. Completions are stamped by `clock`.
    fn replace(&self, endpoint: Box<dyn Endpoint>, clock: Clock) -> Box<dyn Endpoint>;
}

/// An engine. Clones are handles of the same one; the last one dropped shuts it down.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    config: Config,
    calls: Option<Arc<dyn Calls>>,
    fabric: Arc<Fabric>,
    segments: Arc<Segments>,
    scratch: SegmentId,
    plane: Plane,
    listening: Option<SocketAddr>,
    posts: Vec<Arc<Post>>,
    workers: Mutex<Vec<Worker>>,
    next_worker: AtomicUsize,
    peers: Arc<Mutex<Peers>>,
    /// Held while a session is made, so that a peer is not dialed twice.
    dialing: Mutex<()>,
    plans: Mutex<PlanIds>,
    errands: Sender<Errand>,
    errand_runner: Mutex<Option<errand::Runner>>,
    closing: AtomicBool,
}

/// Numbers for plans, reused with a new generation.
#[derive(Default)]
struct PlanIds {
    last: u32,
    free: Vec<PlanId>,
}

impl PlanIds {
    fn take(&mut self) -> Option<PlanId> {
        if let Some(PlanId { index, generation }) = self.free.pop() {
            return Some(PlanId {
                index,
                generation: generation.wrapping_add(1),
            });
        }
        let index = self.last;
        (index < PLANS_MAX as u32).then(|| {
            self.last += 1;
            PlanId {
                index,
                generation: 1,
            }
        })
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> EngineError {
    move |source| EngineError::System { what, source }
}

impl Engine {
    /// Starts an engine.
    pub fn new(config: Config) -> Result<Self, EngineError> {
        Self::with_hooks(config, Hooks::default())
    }

    /// Starts an engine with something plugged in.
    pub fn with_hooks(config: Config, hooks: Hooks) -> Result<Self, EngineError> {
        check(&config)?;
        listen::check_rails(&config.rails)?;
        let Listening {
            listeners,
            address,
            rails,
        } = listen::listen(&config)?;
        let clock = Clock::start();
        let segments = Arc::new(Segments::default());
        let scratch = add_scratch(&segments)?;
        let transport = Arc::new(TcpTransport::new(segments.clone()));
        let posts =
            worker::posts(config.worker_count()).map_err(system("create a worker's post box"))?;
        let (errands, errand_queue) = channel();
        let reception = Reception {
            segments: segments.clone(),
            transport: transport.clone(),
            posts: posts.clone(),
            errands: errands.clone(),
        };
        let described = segments
            .describe(SCRATCH_NAME)
            .ok_or_else(|| EngineError::Config {
                text: "no memory for probes".into(),
            })?;
        let plane_config = PlaneConfig {
            listeners,
            rails,
            ..PlaneConfig::new(config.name.clone(), random_u64()?, described, clock)
        };
        let plane = Plane::start(plane_config, Arc::new(reception))
            .map_err(system("start the control plane"))?;
        let fabric = Arc::new(Fabric::new(posts.len()));
        let peers = Arc::new(Mutex::new(Peers::default()));
        let mut workers = Vec::new();
        for number in 0..posts.len() {
            let started = transport
                .endpoint(number as u16, clock)
                .and_then(|endpoint| {
                    let start = Start {
                        config: CoreConfig {
                            progress_floor: TCP_PROGRESS_FLOOR,
                            ..CoreConfig::new(number as u16, config.policy)
                        },
                        fabric: fabric.clone(),
                        endpoint: with_faults(
                            match &hooks.endpoints {
                                Some(endpoints) => endpoints.replace(endpoint, clock),
                                None => endpoint,
                            },
                            &hooks,
                            clock,
                        ),
                        plane: plane.clone(),
                        clock,
                        peers: peers.clone(),
                    };
                    Worker::start(start, &posts)
                });
            match started {
                Ok(worker) => workers.push(worker),
                Err(source) => {
                    // Those that run already would never end by themselves.
                    for worker in &workers {
                        worker.post.send(Command::ShutDown);
                    }
                    return Err(system("start a worker")(source));
                }
            }
        }
        let inner = Arc::new(Inner {
            config,
            calls: hooks.calls,
            fabric,
            segments,
            scratch,
            plane,
            listening: address,
            posts,
            workers: Mutex::new(workers),
            next_worker: AtomicUsize::new(0),
            peers,
            dialing: Mutex::default(),
            plans: Mutex::default(),
            errands,
            errand_runner: Mutex::default(),
            closing: AtomicBool::new(false),
        });
        let engine = Self { inner };
        engine.attach_local(scratch);
        let runner = errand::Runner::start(errand_queue, engine.downgrade())
            .map_err(system("start a thread"))?;
        *lock(&engine.inner.errand_runner) = Some(runner);
        Ok(engine)
    }

    /// Where it listens, with the port that it got.
    pub fn listening(&self) -> Option<SocketAddr> {
        self.inner.listening
    }

    /// Allocates memory and registers it as a segment.
    pub fn allocate(
        &self,
        name: &str,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        check_segment(name, bytes)?;
        let region = Region::allocate(bytes, access)
            .map_err(|source| RegisterError::System { bytes, source })?;
        self.add_region(name, region)
    }

    /// Registers memory of the program as a segment.
    ///
    /// # Safety
    ///
    /// The range is mapped, and readable and writable, until [`Self::unregister`] has returned or the engine
    /// has ended. The program accepts that the engine, and peers as far as `access` allows, read and write
    /// it meanwhile.
    pub unsafe fn register(
        &self,
        name: &str,
        base: NonNull<u8>,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        check_segment(name, bytes)?;
        // SAFETY: the caller promises what `Region::new` asks for; `unregister` revokes the region before
        // it returns.
        let region = unsafe { Region::new(base, bytes, access, None) }
            .map_err(|source| RegisterError::System { bytes, source })?;
        self.add_region(name, region)
    }

    fn add_region(&self, name: &str, region: Region) -> Result<SegmentId, RegisterError> {
        let id = self.inner.segments.add_local(name, region)?;
        self.attach_local(id);
        Ok(id)
    }

    /// Takes a segment back. When it has returned, nothing of this engine touches the memory any more: what
    /// peers still do on it fails on their side.
    pub fn unregister(&self, segment: SegmentId) -> Result<(), RegisterError> {
        if segment == self.inner.scratch {
            return Err(RegisterError::Stale { segment });
        }
        let (local, plans) = self.inner.segments.remove_local(segment)?;
        local.region.revoke();
        for plan in &plans {
            self.tell_workers(|| Command::RetirePlan(*plan));
        }
        lock(&self.inner.plans).free.extend(plans);
        self.tell_workers(|| Command::DetachLocal(segment.segment_ref()));
        Ok(())
    }

    /// The memory of a local segment; `None`: there is no such segment (any more).
    pub fn region(&self, segment: SegmentId) -> Option<Arc<Region>> {
        self.inner
            .segments
            .local(segment)
            .map(|local| local.region.clone())
    }

    /// The local segment of this name.
    pub fn local_segment(&self, name: &str) -> Option<SegmentId> {
        self.inner.segments.by_name(name)
    }

    /// The size of a segment, on either side.
    pub fn segment_bytes(&self, segment: SegmentId) -> Option<u64> {
        match self.inner.segments.get(segment)? {
            Segment::Local(local) => Some(local.region.bytes()),
            Segment::Remote(remote) => Some(remote.descriptor.bytes),
        }
    }

    /// Opens a segment of a peer, named `HOST:PORT/SEGMENT`. Makes a session with the peer if there is none.
    /// Opening it again gives the same id while it is the same memory.
    pub fn open_segment(&self, address: &str) -> Result<SegmentId, OpenError> {
        let (host, name) = split_address(address)?;
        let remote = resolve(host)?;
        let inner = &self.inner;
        let mut peer = self.peer_at(remote)?;
        let mut described = inner.plane.describe(peer, name, DESCRIBE_TIMEOUT);
        if let Err(AskError::SessionLost(_) | AskError::NoPeer { .. }) = described {
            // It has forgotten us, or another process answers there now.
            self.reconnect(peer);
            peer = self.peer_at(remote)?;
            described = inner.plane.describe(peer, name, DESCRIBE_TIMEOUT);
        }
        let descriptor =
            described
                .map_err(OpenError::Ask)?
                .ok_or_else(|| OpenError::NoSuchSegment {
                    peer: remote,
                    name: name.into(),
                })?;
        if let Some(id) = inner.segments.find_remote(peer, &descriptor) {
            return Ok(id);
        }
        let region = RemoteRegion {
            key: descriptor.key,
            bytes: descriptor.bytes,
        };
        let limit = crate::segments::SEGMENTS_MAX;
        let id = inner
            .segments
            .add_remote(peer, descriptor)
            .ok_or(OpenError::Full {
                what: "segments",
                limit,
            })?;
        self.tell_workers(|| Command::AttachRemote(id.segment_ref(), region.clone()));
        Ok(id)
    }

    /// Submits requests as one batch, all or nothing. O(1) in their lengths.
    ///
    /// A program that has waited for each batch right after it submitted it is expected to do so again, because
    /// then it drives the batch itself. Should it not, nor look at the batch, that begins up to 4 ms later.
    pub fn submit(&self, requests: &[Request]) -> Result<Batch, SubmitError> {
        let inner = &self.inner;
        if self.is_closing() {
            return Err(SubmitError::ShutDown);
        }
        if requests.is_empty() || requests.len() > REQUESTS_MAX {
            return Err(SubmitError::BatchSize {
                requests: requests.len(),
                limit: REQUESTS_MAX,
            });
        }
        let (submissions, held) = self.prepare(requests)?;
        let post = &inner.posts[self.choose_worker()];
        if !post.reserve(requests.len()) {
            release(&held);
            return Err(SubmitError::Full);
        }
        // Taken only if there is a row for the batch; else they are let go.
        let mut held = Some(held);
        let make = |row| BatchShared::new(row, held.take().unwrap_or_default());
        match post.submit(&submissions, make) {
            Ok(batch) => Ok(Batch::new(batch, post.clone())),
            Err(why) => {
                post.unreserve(requests.len());
                release(&held.unwrap_or_default());
                Err(match why {
                    NoRow::Full => SubmitError::Full,
                    NoRow::Closed => SubmitError::ShutDown,
                })
            }
        }
    }

    /// Asks the program of the peer that owns `remote` to do something.
    pub fn call(
        &self,
        remote: SegmentId,
        method: u16,
        body: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let segment = self
            .inner
            .segments
            .remote(remote)
            .ok_or(CallError::Stale { segment: remote })?;
        self.inner
            .plane
            .call(segment.peer, method, body.to_vec(), timeout)
            .map_err(CallError::Ask)
    }

    /// All rails, in the order in which they were made: for the first peer that of [`Config::rails`].
    pub fn rails(&self) -> Vec<RailStatus> {
        let shared = self.inner.fabric.shared();
        let peers = lock(&self.inner.peers);
        let status = |(number, name): (usize, &String)| {
            let view = shared.view(RailId(number as u16))?;
            Some(RailStatus {
                name: name.clone(),
                state: view.state,
                bytes: view.done_bytes,
            })
        };
        peers
            .rail_names()
            .iter()
            .enumerate()
            .filter_map(status)
            .collect()
    }

    /// Ends everything within a bound: what has not ended is reported `ShutDown`, or `Indeterminate` where it
    /// cannot be ended for sure. Later submissions are refused. Again: does nothing.
    pub fn shutdown(&self) {
        self.inner.shut_down();
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.inner)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.inner.closing.load(Acquire)
    }

    /// Carries out a peer's call.
    pub(crate) fn carry_out(&self, method: u16, body: &[u8]) -> Result<Vec<u8>, String> {
        match &self.inner.calls {
            Some(calls) => calls.call(self, method, body),
            None => Err(format!(
                "the program of engine \"{}\" takes no calls",
                self.inner.config.name
            )),
        }
    }

    /// Makes a new session with a peer that has forgotten the old one. `true`: done, or no use.
    pub(crate) fn reconnect(&self, id: PeerId) -> bool {
        let _dialing = lock(&self.inner.dialing);
        let Some(peer) = lock(&self.inner.peers).get(id).cloned() else {
            return true;
        };
        if peer.lost {
            return true;
        }
        let introduction = match self
            .inner
            .plane
            .connect(id, None, peer.dialed, CONNECT_TIMEOUT)
        {
            Ok(introduction) => introduction,
            // Somebody else has made the session.
            Err(ConnectError::Busy { .. }) => return true,
            Err(error) => {
                log::debug!("{error}");
                return false;
            }
        };
        if introduction.incarnation != peer.incarnation {
            log::warn!(
                "another engine answers at {} now: open its segments anew",
                peer.dialed
            );
            self.inner.plane.disconnect(id);
            self.forget_peer(id);
            return true;
        }
        if let Some(known) = lock(&self.inner.peers).get_mut(id) {
            known.session = introduction.session;
        }
        self.attach_rails(&Peer {
            session: introduction.session,
            ..peer
        });
        true
    }

    /// Gives up a peer whose address belongs to another process now.
    pub(crate) fn forget_peer(&self, id: PeerId) {
        if let Some(peer) = lock(&self.inner.peers).get_mut(id) {
            peer.lost = true;
        }
    }

    fn tell_workers(&self, command: impl Fn() -> Command) {
        for post in &self.inner.posts {
            post.send(command());
        }
    }

    fn attach_local(&self, id: SegmentId) {
        if let Some(region) = self.region(id) {
            self.tell_workers(|| Command::AttachLocal(id.segment_ref(), region.clone()));
        }
    }

    /// The peer at an address; a new session if there is none.
    fn peer_at(&self, remote: SocketAddr) -> Result<PeerId, OpenError> {
        let inner = &self.inner;
        let _dialing = lock(&inner.dialing);
        if self.is_closing() {
            return Err(OpenError::ShutDown);
        }
        if let Some(peer) = lock(&inner.peers).at(remote) {
            return Ok(peer.id);
        }
        let id = lock(&inner.peers).next_id()?;
        let introduction = inner
            .plane
            .connect(id, None, remote, CONNECT_TIMEOUT)
            .map_err(OpenError::Connect)?;
        self.add_peer(id, remote, &introduction)
            .inspect_err(|_| inner.plane.disconnect(id))?;
        Ok(id)
    }

    fn add_peer(
        &self,
        id: PeerId,
        dialed: SocketAddr,
        met: &Introduction,
    ) -> Result<(), OpenError> {
        let inner = &self.inner;
        let region = RemoteRegion {
            key: met.scratch.key,
            bytes: met.scratch.bytes,
        };
        let limit = crate::segments::SEGMENTS_MAX;
        let scratch =
            inner
                .segments
                .add_remote(id, met.scratch.clone())
                .ok_or(OpenError::Full {
                    what: "segments",
                    limit,
                })?;
        // Only now: whoever makes a plan holds the segments while it looks for the peer.
        let mut peers = lock(&inner.peers);
        let shared = inner.fabric.shared();
        let Config {
            rails, rail_map, ..
        } = &inner.config;
        let installed = peers.install_rails(shared, id, dialed, met, rails, *rail_map);
        let rails = match installed {
            Ok(rails) => rails,
            Err(error) => {
                drop(peers);
                inner.segments.remove_remote(scratch);
                return Err(error);
            }
        };
        self.tell_workers(|| Command::AttachRemote(scratch.segment_ref(), region.clone()));
        let (session, incarnation) = (met.session, met.incarnation);
        let peer = Peer {
            id,
            name: met.name.clone(),
            dialed,
            session,
            incarnation,
            rails,
            scratch,
            lost: false,
        };
        self.attach_rails(&peer);
        peers.add(peer);
        Ok(())
    }

    fn attach_rails(&self, peer: &Peer) {
        for rail in &peer.rails {
            self.tell_workers(|| Command::AttachRail(rail.rail, rail.address(peer.session)));
        }
        self.inner.plane.maintain(peer.id, peer.ways());
    }

    /// The worker that a batch goes to: that of the submitting thread, so that threads which wait for their
    /// batches do not meet; if that one is at work, the next one that is not.
    fn choose_worker(&self) -> usize {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static THREAD: usize = THREADS.fetch_add(1, Relaxed);
        }
        let posts = &self.inner.posts;
        let home = THREAD.with(|thread| *thread);
        let others = (home..home + posts.len()).map(|number| number % posts.len());
        let idle = others.into_iter().find(|number| posts[*number].is_idle());
        idle.unwrap_or_else(|| self.inner.next_worker.fetch_add(1, Relaxed) % posts.len())
    }

    /// Checks every request, finds its plan, and marks its local segment as in use.
    fn prepare(&self, requests: &[Request]) -> Result<Prepared, SubmitError> {
        loop {
            match self.prepare_known(requests) {
                Ok(prepared) => return prepared,
                // Two segments that never met before; the next look knows them, unless one has gone meanwhile.
                Err(index) => drop(self.pair(index, &requests[index])?),
            }
        }
    }

    /// The same, for segments that have a plan: looks once at what all threads share. `Err`: the first
    /// request whose segments have none.
    fn prepare_known(&self, requests: &[Request]) -> Result<Result<Prepared, SubmitError>, usize> {
        let known = self.inner.segments.known();
        let mut pair: Option<(SegmentId, SegmentId, KnownPair<'_>)> = None;
        let mut submissions = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter().enumerate() {
            let ids = (request.local, request.remote);
            let found = match pair {
                Some((local, remote, found)) if (local, remote) == ids => found,
                _ => known.pair(ids).ok_or(index)?,
            };
            if let Err(error) = check_request(found, index, request) {
                return Ok(Err(error));
            }
            submissions.push(Submission {
                plan: found.plan,
                op: request.op,
                local_offset: request.local_offset,
                remote_offset: request.remote_offset,
                length: request.length,
            });
            pair = Some((ids.0, ids.1, found));
        }
        // As large as needed at once: `collect` would have to guess.
        let mut held = Vec::with_capacity(requests.len());
        held.extend(
            requests
                .iter()
                .filter_map(|request| known.hold(request.local)),
        );
        Ok(Ok((submissions, held)))
    }

    /// The plan of a request's two segments, made if there is none.
    fn pair(&self, index: usize, request: &Request) -> Result<PlanId, SubmitError> {
        let inner = &self.inner;
        let stale = |segment| SubmitError::Stale { index, segment };
        if inner.segments.local(request.local).is_none() {
            return Err(stale(request.local));
        }
        let remote = inner
            .segments
            .remote(request.remote)
            .ok_or_else(|| stale(request.remote))?;
        let ids = (request.local, request.remote);
        inner
            .segments
            .plan(ids, || self.make_plan(ids, remote.peer))
            .map_err(|why| match why {
                NoPlan::Stale => stale(request.local),
                NoPlan::Full => SubmitError::Plans { limit: PLANS_MAX },
            })
    }

    fn make_plan(&self, (local, remote): (SegmentId, SegmentId), peer: PeerId) -> Option<PlanId> {
        let inner = &self.inner;
        let peer = lock(&inner.peers).get(peer).cloned()?;
        let place = |segment: SegmentRef| Place { segment, offset: 0 };
        let plan = Plan {
            peer: peer.id,
            local: local.segment_ref(),
            remote: remote.segment_ref(),
            rails: peer.plan_rails(),
            scratch_local: place(inner.scratch.segment_ref()),
            scratch_remote: place(peer.scratch.segment_ref()),
            scratch_bytes: SLICE_BYTES,
        };
        let id = lock(&inner.plans).take()?;
        self.tell_workers(|| Command::InstallPlan(id, Box::new(plan.clone())));
        Some(id)
    }
}

fn release(holds: &[Arc<LocalSegment>]) {
    for segment in holds {
        segment.requests.fetch_sub(1, AcqRel);
    }
}

/// What a submission needs: its requests as workers take them, and the local segments that they hold.
type Prepared = (Vec<Submission>, Vec<Arc<LocalSegment>>);

/// Whether a request may run between its segments.
fn check_request(pair: KnownPair<'_>, index: usize, request: &Request) -> Result<(), SubmitError> {
    let Request {
        op,
        local,
        local_offset,
        remote,
        remote_offset,
        length,
    } = *request;
    if length == 0 {
        return Err(SubmitError::Empty { index });
    }
    let access = pair.remote.descriptor.access;
    let allowed = match op {
        Op::Write => access.allows_remote_write(),
        Op::Read => access.allows_remote_read(),
    };
    if !allowed {
        return Err(SubmitError::Forbidden {
            index,
            segment: remote,
        });
    }
    let ranges = [
        (local, local_offset, pair.local.region.bytes()),
        (remote, remote_offset, pair.remote.descriptor.bytes),
    ];
    for (segment, offset, segment_bytes) in ranges {
        if offset
            .checked_add(length)
            .is_none_or(|end| end > segment_bytes)
        {
            return Err(SubmitError::OutOfRange {
                index,
                segment,
                offset,
                length,
                segment_bytes,
            });
        }
    }
    Ok(())
}

impl Inner {
    fn shut_down(&self) {
        if self.closing.swap(true, AcqRel) {
            return;
        }
        let workers = std::mem::take(&mut *lock(&self.workers));
        for worker in &workers {
            worker.post.send(Command::ShutDown);
        }
        for thread in workers.into_iter().filter_map(|worker| worker.thread) {
            join(thread);
        }
        self.plane.shutdown();
        let _ = self.errands.send(Errand::Stop);
        let runner = lock(&self.errand_runner).take();
        if let Some(runner) = runner {
            runner.join();
        }
    }
}

/// Waits for a thread, unless it is this one: the last handle of an engine may be dropped by a call.
fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
        log::error!("a thread of the engine has panicked");
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// An endpoint with the program's faults around it, if it has plugged in any.
fn with_faults(endpoint: Box<dyn Endpoint>, hooks: &Hooks, clock: Clock) -> Box<dyn Endpoint> {
    match &hooks.faults {
        Some(faults) => Box::new(FaultProxy::new(endpoint, faults.clone(), clock)),
        None => endpoint,
    }
}

fn check(config: &Config) -> Result<(), EngineError> {
    let limit = polyrail_control::codec::NAME_BYTES_MAX;
    if config.name.is_empty() || config.name.len() > limit {
        let text = format!(
            "an engine's name of {} bytes: 1 to {limit} are possible",
            config.name.len()
        );
        return Err(EngineError::Config { text });
    }
    if config.worker_count() > WORKERS_MAX {
        let text = format!(
            "{} workers: 1 to {WORKERS_MAX} are possible",
            config.workers
        );
        return Err(EngineError::Config { text });
    }
    let limit = polyrail_core::plan::PLAN_RAILS_MAX;
    if config.rails.len() > limit {
        let text = format!("{} rails: {limit} are possible", config.rails.len());
        return Err(EngineError::Config { text });
    }
    if let Some(twice) = config
        .rails
        .iter()
        .enumerate()
        .find(|(i, rail)| config.rails[..*i].contains(rail))
    {
        let text = format!("rail {} is listed twice: each address is one rail", twice.1);
        return Err(EngineError::Config { text });
    }
    Ok(())
}

fn check_segment(name: &str, bytes: u64) -> Result<(), RegisterError> {
    let limit = polyrail_control::codec::NAME_BYTES_MAX;
    let good = |c: char| c != '/' && !c.is_control();
    if name.is_empty() || name.len() > limit || !name.chars().all(good) {
        return Err(RegisterError::BadName { name: name.into() });
    }
    if bytes == 0 || bytes > isize::MAX as u64 {
        return Err(RegisterError::BadSize { bytes });
    }
    Ok(())
}

fn add_scratch(segments: &Segments) -> Result<SegmentId, EngineError> {
    let region = Region::allocate(u64::from(SLICE_BYTES), Access::RemoteReadWrite)
        .map_err(system("get memory for probes"))?;
    segments
        .add_local(SCRATCH_NAME, region)
        .map_err(|error| EngineError::Config {
            text: error.to_string(),
        })
}

fn random_u64() -> Result<u64, EngineError> {
    getrandom::u64().map_err(|error| EngineError::System {
        what: "draw a random number",
        source: std::io::Error::other(error.to_string()),
    })
}

/// `HOST:PORT/SEGMENT` in its two parts.
fn split_address(text: &str) -> Result<(&str, &str), OpenError> {
    let bad = || OpenError::BadAddress { text: text.into() };
    let (host, name) = text.split_once('/').ok_or_else(bad)?;
    let (name_of_host, port) = host.rsplit_once(':').ok_or_else(bad)?;
    if name.is_empty() || name_of_host.is_empty() || port.parse::<u16>().is_err() {
        return Err(bad());
    }
    Ok((host, name))
}

fn resolve(host: &str) -> Result<SocketAddr, OpenError> {
    let unresolved = |source| OpenError::Unresolved {
        host: host.into(),
        source,
    };
    let no_address = || std::io::Error::other("the name has no address");
    let mut addresses = host.to_socket_addrs().map_err(unresolved)?;
    addresses.next().ok_or_else(no_address).map_err(unresolved)
}
