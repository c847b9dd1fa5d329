//! The engine as a program holds it.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use polyrail_control::codec::{
    NOTIFICATION_BYTES_MAX, NOTIFICATIONS, PATHS, SegmentDescriptor, SegmentKind,
};
use polyrail_control::plane::{
    AskError, ConnectError, Introduction, Plane, PlaneConfig, SessionLoss,
};
use polyrail_core::orchestrator::Proof;
use polyrail_core::plan::Plan;
use polyrail_core::rail::health::RailState;
use polyrail_core::send_queue::credit::Grant;
use polyrail_core::slice::SLICE_BYTES;
use polyrail_core::time::Instant;
use polyrail_core::transport::MemoryKind;
use polyrail_core::units::{PeerId, PlanId, RailId, SegmentRef};
use polyrail_core::work::{Op, Place, Priority};
use polyrail_cuda::{CudaError, Driver, Gpus};
use polyrail_record::{Cut as RecordingCut, Header, Recorder};
use polyrail_transport::clock::Clock;
use polyrail_transport::fault::Faults;
use polyrail_transport::memory::{Access, Region, TrustDomain};
use polyrail_transport::{RemoteRegion, SessionId};
use polyrail_uring::FileTable;

use crate::batch::{Batch, Shared as BatchShared};
use crate::config::Config;
use crate::delivery::{Delivery, Outbox, Outgoing};
use crate::domains::Domains;
use crate::errand::{self, Errand};
use crate::error::{CallError, EngineError, NotifyError, OpenError, RegisterError, SubmitError};
use crate::fabric::Fabric;
use crate::files::Files;
use crate::followers::holds_up_a_worker;
use crate::fork::Owned;
use crate::gpus;
use crate::hints::Hints;
use crate::leaving::Leaving;
use crate::listen::{self, Listening};
use crate::machine::{Machine, Whereabouts};
use crate::neighbours::Neighbours;
use crate::notification::{Desk, Inbox, Notifications};
use crate::path::PeerPath;
use crate::peers::{Numbers, Peer, Peers, RailPair};
use crate::post::{Command, Due, Post, REQUESTS_MAX, Submission};
use crate::reception::Reception;
use crate::room::{NoRoom, Room};
use crate::rows::{NoRow, RowId};
use crate::segments::{
    Hold, KnownPair, LocalSegment, NoPlan, Pairs, RemoteSegment, RemoteSlots, SCRATCH_NAME,
    Segment, SegmentId, Segments, SlotMemory,
};
use crate::staging::{EngineCell, IN, OUT, Route, Stager, StagerCell, Word, pool_name};
use crate::stats::{Failovers, Stats};
use crate::transports::{Catalog, Plugin, TransportStatus, Transports};
use crate::worker::{self, PLANS_MAX, Start, Worker};

/// How long a peer may take to let us in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The same on each of several ways that are tried in turn.
const RECONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a peer may take to describe a segment.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(3);
/// Workers that one engine can have.
pub(crate) const WORKERS_MAX: usize = 64;

/// One read or write between two segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Write: from local to remote. Read: from remote to local.
    pub op: Op,
    /// A segment of this engine: memory, or a file if the other one is a peer's.
    pub local: SegmentId,
    /// First byte in it.
    pub local_offset: u64,
    /// A segment of a peer, or a file of this host.
    pub remote: SegmentId,
    /// First byte in it.
    pub remote_offset: u64,
    /// Bytes, at least 1.
    pub length: u64,
}

/// How a batch is treated, beyond what it moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Terms<'a> {
    /// Who goes first where rails have no room for all.
    pub priority: Priority,
    /// From now on. Then nothing more of a request that has not ended is sent, and it ends as
    /// [`Status::DeadlineExceeded`](crate::Status::DeadlineExceeded) as soon as nothing of it can move any more. What is under way is waited for for
    /// `health/cancel_grace_ms`, and then for proof that it has stopped, for `health/fence_timeout_ms` at most: so the report comes
    /// 2.1 s after the deadline at the latest, by the defaults, and mostly at once. One whose bytes are all there by then is
    /// `Completed`. `None`: they may take for ever.
    pub deadline: Option<Duration>,
    /// What the peer's program is told once the batch has completed: see [`Engine::submit_notifying`].
    pub notification: Option<&'a [u8]>,
    /// How long to wait for room if there is none, before [`SubmitError::Full`]. `None`: as configured. Nobody waits
    /// in a callback or waker, because that would hold up the worker that makes room.
    pub room_within: Option<Duration>,
}

/// A rail as the program sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailStatus {
    /// `tcp:LOCAL>REMOTE`; `*` for a local address that the kernel chooses, or that there is none.
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
    /// Faults to inject into every worker's TCP, rail by rail.
    pub faults: Option<Arc<Faults>>,
    /// Transports beside those that the engine has, preferred to them in this order.
    pub transports: Vec<Plugin>,
    /// Carries out peers' calls; without it they are refused.
    pub calls: Option<Arc<dyn Calls>>,
    /// A driver of GPUs in place of CUDA's.
    pub cuda: Option<Arc<dyn Driver>>,
    /// A folder in which the engine leaves a flight recording, made if it is not there: see
    /// [`Engine::recording`]. Its workers then call core one at a time.
    pub recording: Option<PathBuf>,
}

/// An engine. Clones are handles of the same one; the last one dropped shuts it down.
///
/// # Fork
///
/// An engine belongs to the process that made it. The parent of a `fork` notices nothing. In the child there
/// are copies of its handles and none of its threads: operations answer `Forked`, what has no error says
/// nothing, and dropping handles, or ending the process, leaves the parent's connections and waiters alone.
/// The child can make an engine of its own. Descriptors are close-on-exec, so `fork` and `exec` leave nothing
/// behind. A child that does not exec keeps the parent's sockets open as long as it lives, so should the
/// parent die without a word, its peers notice that by silence, not at once. Memory that the program
/// registered stays what it was for the parent, whose pages the engine goes on using; the child sees its own
/// copy from the moment of the fork.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Owned<Inner>,
}

pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    calls: Option<Arc<dyn Calls>>,
    pub(crate) transports: Arc<Catalog>,
    pub(crate) machine: Arc<Machine>,
    failovers: Arc<Failovers>,
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) domains: Arc<Domains>,
    pub(crate) files: Arc<Files>,
    pub(crate) gpus: Result<Arc<Gpus>, CudaError>,
    pub(crate) stager: Arc<StagerCell>,
    /// Held while it is started, so that this does not happen twice.
    pub(crate) starting_stager: Mutex<()>,
    pub(crate) scratch: SegmentId,
    pub(crate) plane: Plane,
    listening: Option<SocketAddr>,
    pub(crate) posts: Vec<Arc<Post>>,
    /// How long a submission waits for room, if its terms do not say.
    patience: Duration,
    workers: Mutex<Vec<Worker>>,
    next_worker: AtomicUsize,
    /// Some plan has a transport that carries works out at once. Without, nobody looks for it on every submission.
    pub(crate) carries_at_once: AtomicBool,
    pub(crate) peers: Arc<Mutex<Peers>>,
    /// Held until all workers know of a peer's segment that is new, so that it is not made known twice, and nobody names
    /// it before.
    opening: Mutex<()>,
    /// By address, what is held while a session is made there, so that it is not made twice.
    dialing: Mutex<HashMap<SocketAddr, Arc<Mutex<()>>>>,
    plans: Arc<Mutex<PlanIds>>,
    outbox: Arc<Outbox>,
    desk: Owned<Desk>,
    errands: Sender<Errand>,
    errand_runner: Mutex<Option<errand::Runner>>,
    closing: AtomicBool,
}

/// Numbers for plans, reused with a new generation.
#[derive(Default)]
pub(crate) struct PlanIds {
    last: u32,
    free: Vec<PlanId>,
}

impl PlanIds {
    /// Lets others have the numbers of plans that are retired.
    pub(crate) fn free(&mut self, plans: impl IntoIterator<Item = PlanId>) {
        self.free.extend(plans);
    }

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
    /// Starts an engine. It loads the libraries that the configuration names for transports
    /// ([`TransportConfig::library`](crate::TransportConfig::library)), whose code runs in this process from then on.
    pub fn new(config: Config) -> Result<Self, EngineError> {
        Self::with_hooks(config, Hooks::default())
    }

    /// Starts an engine with something plugged in.
    pub fn with_hooks(config: Config, hooks: Hooks) -> Result<Self, EngineError> {
        let machine = Machine::this(&config);
        Self::on(machine, config, hooks)
    }

    /// Starts an engine that believes this of its machine.
    fn on(machine: Machine, config: Config, hooks: Hooks) -> Result<Self, EngineError> {
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
        let files = Arc::new(Files::default());
        let file_table: Arc<dyn FileTable> = files.clone();
        let gpus = gpus::find(&config, &hooks);
        let transports = Arc::new(Transports::install(
            &config,
            segments.clone(),
            &file_table,
            &gpus,
            &hooks.transports,
            hooks.faults.clone(),
        )?);
        let posts = worker::posts(config.worker_count(), &config.send_queue)
            .map_err(system("create a worker's post box"))?;
        let cores: Vec<_> = (0..posts.len())
            .map(|number| config.core(number as u16))
            .collect();
        let recorder = start_recording(&config, &hooks, &cores)?;
        let stager: Arc<StagerCell> = Arc::default();
        let (errands, errand_queue) = channel();
        let neighbours = join_neighbours(&config, &errands);
        let fabric = Arc::new(Fabric::new(posts.len(), recorder, neighbours));
        let inbox = Arc::new(Inbox::new().map_err(system("create a queue for notifications"))?);
        let domains = Arc::new(Domains::new(&config.security));
        let reception = Reception {
            segments: segments.clone(),
            domains: domains.clone(),
            transports: transports.clone(),
            posts: posts.clone(),
            errands: errands.clone(),
            stager: stager.clone(),
            inbox: inbox.clone(),
            path: config.path.clone(),
        };
        let described = segments
            .describe(SCRATCH_NAME, TrustDomain::COMMON)
            .ok_or_else(|| EngineError::Config {
                text: "no memory for probes".into(),
            })?;
        let rail_fact = |rail: &SocketAddr| machine.rail_fact(rail.ip());
        let plane_config = PlaneConfig {
            listeners,
            rail_facts: rails.iter().map(rail_fact).collect(),
            rails,
            transports: transports.catalog.offers(&config.rails),
            heartbeat: config.health.heartbeat,
            silence_max: config.connection_silence(),
            ..PlaneConfig::new(config.name.clone(), random_u64()?, described, clock)
        };
        let plane = Plane::start(plane_config, Arc::new(reception))
            .map_err(system("start the control plane"))?;
        let failovers = Arc::new(Failovers::default());
        let machine = Arc::new(machine);
        let peers = Peers::new(config.estimate(), machine.clone(), config.asks_devices());
        let peers = Arc::new(Mutex::new(peers));
        let hints = Hints::new(&config.path).map(Arc::new);
        let whole = Arc::new(EngineCell::new());
        let mut workers = Vec::new();
        for core in cores {
            let started = transports
                .endpoint(core.worker, clock)
                .and_then(|endpoint| {
                    let start = Start {
                        config: core,
                        fabric: fabric.clone(),
                        endpoint,
                        plane: plane.clone(),
                        clock,
                        peers: peers.clone(),
                        transports: transports.catalog.clone(),
                        failovers: failovers.clone(),
                        faults: hooks.faults.clone(),
                        hints: hints.clone(),
                        engine: whole.clone(),
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
        let desk = Desk {
            inbox,
            plane: plane.clone(),
        };
        let patience = match config.send_queue.admission {
            true => config.send_queue.admission_timeout,
            false => Duration::ZERO,
        };
        let inner = Arc::new(Inner {
            patience,
            config,
            clock,
            calls: hooks.calls,
            transports: transports.catalog.clone(),
            machine,
            failovers,
            fabric,
            segments,
            domains,
            files,
            gpus,
            stager,
            starting_stager: Mutex::default(),
            scratch,
            plane,
            listening: address,
            posts,
            workers: Mutex::new(workers),
            next_worker: AtomicUsize::new(0),
            carries_at_once: AtomicBool::new(false),
            peers,
            opening: Mutex::default(),
            dialing: Mutex::default(),
            plans: Arc::default(),
            outbox: Arc::new(Outbox::new()),
            desk: Owned::new(Arc::new(desk)),
            errands,
            errand_runner: Mutex::default(),
            closing: AtomicBool::new(false),
        });
        let engine = Self::from_inner(inner);
        let _ = whole.set(engine.downgrade());
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

    /// Allocates memory and registers it as a segment. What peers may use can be mapped by those on the same host;
    /// so it is also shared with children of this process, while they live and have not executed another program. Its
    /// pages are not to be given back to the kernel by `madvise`: disks may go on with the old ones.
    pub fn allocate(
        &self,
        name: &str,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        self.allocate_in(TrustDomain::COMMON, name, bytes, access)
    }

    pub(crate) fn allocate_in(
        &self,
        domain: TrustDomain,
        name: &str,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        if !self.inner.is_ours() {
            return Err(RegisterError::Forked);
        }
        check_segment(name, bytes)?;
        let region = Region::allocate(bytes, access)
            .map_err(|source| RegisterError::System { bytes, source })?;
        self.add_region(name, region, domain)
    }

    /// Registers memory of the program as a segment: the host's, or a GPU's, as CUDA's driver says of the address. Without
    /// a driver all is taken for the host's.
    ///
    /// # Safety
    ///
    /// The range is mapped (or allocated on a GPU), and readable and writable, until [`Self::unregister`] has returned or the engine
    /// has ended. The program accepts that the engine, and peers as far as `access` allows, read and write
    /// it meanwhile.
    pub unsafe fn register(
        &self,
        name: &str,
        base: NonNull<u8>,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        // SAFETY: the caller's promise.
        unsafe { self.register_in(TrustDomain::COMMON, name, base, bytes, access) }
    }

    /// # Safety
    ///
    /// That of [`Self::register`].
    pub(crate) unsafe fn register_in(
        &self,
        domain: TrustDomain,
        name: &str,
        base: NonNull<u8>,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        if !self.inner.is_ours() {
            return Err(RegisterError::Forked);
        }
        check_segment(name, bytes)?;
        // SAFETY: the caller promises the same for memory of GPUs.
        let on_gpu = unsafe { self.region_on_gpu(base.as_ptr() as u64, bytes, access) }?;
        if let Some(region) = on_gpu {
            return self.add_region(name, region, domain);
        }
        // SAFETY: the caller promises what `Region::new` asks for; `unregister` revokes the region before
        // it returns.
        let region = unsafe { Region::new(base, bytes, access, None) }
            .map_err(|source| RegisterError::System { bytes, source })?;
        self.add_region(name, region, domain)
    }

    /// Registers a region as a segment, so that peers find in it from the start what the program has put there.
    pub fn register_region(&self, name: &str, region: Region) -> Result<SegmentId, RegisterError> {
        self.register_region_in(TrustDomain::COMMON, name, region)
    }

    pub(crate) fn register_region_in(
        &self,
        domain: TrustDomain,
        name: &str,
        region: Region,
    ) -> Result<SegmentId, RegisterError> {
        check_segment(name, region.bytes())?;
        self.add_region(name, region, domain)
    }

    fn add_region(
        &self,
        name: &str,
        region: Region,
        domain: TrustDomain,
    ) -> Result<SegmentId, RegisterError> {
        let on = region.device().map(|device| device.ordinal());
        match on {
            Some(_) if domain != TrustDomain::COMMON => Err(RegisterError::NotInDomain),
            Some(ordinal) => self.add_device_memory(name, region, ordinal),
            None => self.add_memory(name, region, SegmentKind::Memory, domain),
        }
    }

    /// Makes memory a segment, whatever its name.
    pub(crate) fn add_memory(
        &self,
        name: &str,
        region: Region,
        kind: SegmentKind,
        domain: TrustDomain,
    ) -> Result<SegmentId, RegisterError> {
        let segments = &self.inner.segments;
        let id = segments.add_local(name, region, kind, Some(domain))?;
        self.attach_local(id);
        Ok(id)
    }

    /// Takes a segment back. When it has returned, nothing of this engine touches the memory any more: what
    /// peers still do on it fails on their side.
    pub fn unregister(&self, segment: SegmentId) -> Result<(), RegisterError> {
        if !self.inner.is_ours() {
            return Err(RegisterError::Forked);
        }
        if segment == self.inner.scratch {
            return Err(RegisterError::Stale { segment });
        }
        if self.inner.segments.is_file(segment) {
            return self.close_file(segment);
        }
        let (local, plans) = self.inner.segments.remove_local(segment)?;
        local.region.revoke();
        self.retire_plans(plans);
        self.tell_workers(|| Command::DetachLocal(segment.segment_ref()));
        if local.region.device().is_some() {
            self.tell_workers(|| Command::DetachRemote(segment.segment_ref()));
        }
        Ok(())
    }

    pub(crate) fn retire_plans(&self, plans: Vec<PlanId>) {
        for plan in &plans {
            self.tell_workers(|| Command::RetirePlan(*plan));
        }
        lock(&self.inner.plans).free(plans);
    }

    /// The memory of a local segment; `None`: there is no such segment (any more).
    pub fn region(&self, segment: SegmentId) -> Option<Arc<Region>> {
        if !self.inner.is_ours() {
            return None;
        }
        self.inner
            .segments
            .local(segment)
            .map(|local| local.region.clone())
    }

    /// The local segment of this name.
    pub fn local_segment(&self, name: &str) -> Option<SegmentId> {
        if !self.inner.is_ours() {
            return None;
        }
        self.inner.segments.by_name(name)
    }

    /// The size of a segment, on either side.
    pub fn segment_bytes(&self, segment: SegmentId) -> Option<u64> {
        if !self.inner.is_ours() {
            return None;
        }
        match self.inner.segments.get(segment)? {
            Segment::Local(local) | Segment::Device(local, _) => Some(local.region.bytes()),
            Segment::Remote(remote) => Some(remote.descriptor.bytes),
        }
    }

    /// Opens a segment of a peer, named `HOST:PORT/SEGMENT`. Makes a session with the peer if there is none.
    /// Opening it again gives the same id while it is the same memory.
    pub fn open_segment(&self, address: &str) -> Result<SegmentId, OpenError> {
        if !self.inner.is_ours() {
            return Err(OpenError::Forked);
        }
        let (host, name) = split_address(address)?;
        let remote = resolve(host)?;
        let inner = &self.inner;
        let mut peer = self.peer_at(remote)?;
        let mut described = inner.plane.describe(peer.id, name, DESCRIBE_TIMEOUT);
        match &described {
            // It has forgotten us, or was given up meanwhile.
            Err(
                AskError::SessionLost(SessionLoss::Forgotten { .. })
                | AskError::NoPeer { .. }
                | AskError::Disconnected { .. },
            ) => {
                self.reconnect(peer.id, peer.incarnation)
                    .map_err(OpenError::Connect)?;
                peer = self.peer_at(remote)?;
                described = inner.plane.describe(peer.id, name, DESCRIBE_TIMEOUT);
            }
            // It has ended, or another process answers there now.
            Err(AskError::SessionLost(_)) => {
                self.lose_peer(peer.id, peer.incarnation);
                peer = self.peer_at(remote)?;
                described = inner.plane.describe(peer.id, name, DESCRIBE_TIMEOUT);
            }
            _ => {}
        }
        let descriptor =
            described
                .map_err(OpenError::Ask)?
                .ok_or_else(|| OpenError::NoSuchSegment {
                    peer: remote,
                    name: name.into(),
                })?;
        let slots = match descriptor.kind {
            SegmentKind::File { .. } => Some(self.slots_of(peer.id, remote)?),
            SegmentKind::Memory | SegmentKind::Slots { .. } => None,
        };
        let id = self.add_segment(peer.id, descriptor, slots)?;
        // It may have been lost meanwhile, and its number be another's soon.
        let known = lock(&inner.peers).get(peer.id).map(|peer| peer.incarnation);
        if known != Some(peer.incarnation) {
            inner.segments.remove_remote(id);
            self.tell_workers(|| Command::DetachRemote(id.segment_ref()));
            return Err(OpenError::PeerLost { peer: remote });
        }
        Ok(id)
    }

    /// The slots of a peer that offers files.
    fn slots_of(&self, peer: PeerId, address: SocketAddr) -> Result<RemoteSlots, OpenError> {
        let of = |pool| {
            let asked = self
                .inner
                .plane
                .describe(peer, pool_name(pool), DESCRIBE_TIMEOUT);
            let memory = asked.map_err(OpenError::Ask)?;
            let none = OpenError::NoSlots { peer: address };
            let Some(memory) = memory else {
                return Err(none);
            };
            let SegmentKind::Slots { bytes: slot_bytes } = memory.kind else {
                return Err(none);
            };
            let slots = memory.bytes.checked_div(slot_bytes.into());
            let slots = slots.and_then(|slots| u32::try_from(slots).ok());
            let Some(slots) = slots.filter(|slots| *slots > 0) else {
                return Err(none);
            };
            Ok(SlotMemory {
                segment: self.add_segment(peer, memory, None)?,
                slot_bytes,
                slots,
            })
        };
        Ok(RemoteSlots([of(IN)?, of(OUT)?]))
    }

    /// Makes a peer's segment known, if it is not.
    fn add_segment(
        &self,
        peer: PeerId,
        descriptor: SegmentDescriptor,
        slots: Option<RemoteSlots>,
    ) -> Result<SegmentId, OpenError> {
        let segments = &self.inner.segments;
        let _opening = lock(&self.inner.opening);
        if let Some(id) = segments.find_remote(peer, &descriptor) {
            return Ok(id);
        }
        let region = RemoteRegion {
            key: descriptor.key,
            bytes: descriptor.bytes,
        };
        let id = segments
            .add_remote(peer, descriptor, false, slots)
            .ok_or(OpenError::Full {
                what: "segments",
                limit: crate::segments::SEGMENTS_MAX,
            })?;
        self.tell_workers(|| Command::AttachRemote(id.segment_ref(), region.clone()));
        Ok(id)
    }

    /// Takes the operator's word that the engine at `HOST:PORT` is gone and will write no more: as if its
    /// process had been seen to end. Requests to it end as `PeerLost`, and its segments are lost. `false`:
    /// there is no session with an engine there.
    ///
    /// Only right if it is true. What a process that does live still writes is written after its report.
    pub fn declare_lost(&self, address: &str) -> Result<bool, OpenError> {
        let remote = resolve(address)?;
        let peer = lock(&self.inner.peers).at(remote).cloned();
        let Some(peer) = peer else {
            return Ok(false);
        };
        self.tell_workers(|| Command::PeerGone(peer.id, Proof::ProcessGone));
        self.lose_peer(peer.id, peer.incarnation);
        Ok(true)
    }

    /// Submits requests as one batch, all or nothing. O(1) in their lengths, but for what this thread can copy by itself:
    /// up to [`Config::at_once_bytes`] between memories of processes on this host are moved before it returns, if nothing
    /// else is under way with the worker, and the batch has ended then.
    ///
    /// A program that has waited for a batch right after it submitted this or another one is expected to do so again,
    /// because then it drives the batch itself. Should it not, nor look at the batch, that begins, or goes on, up to
    /// 4 ms later.
    pub fn submit(&self, requests: &[Request]) -> Result<Batch, SubmitError> {
        self.submit_with(requests, &Terms::default())
    }

    /// Submits requests as one batch, all or nothing, and tells the peer's program `bytes` when it has
    /// completed: everything that was written is then visible there, and everything that was read has been.
    /// If it ends otherwise, the peer is told nothing. All requests must be between this engine and the same
    /// peer.
    ///
    /// The batch does not wait for the notification: [`Batch::delivery`] tells what becomes of it. If the peer
    /// has no room, it stays here, in line with the others to that peer, because the data has gone and cannot
    /// be taken back. So its place in the line is taken now: there are 16,384 to each peer, and
    /// [`SubmitError::Full`] when they are in use. Notifications to one peer arrive in the order in which
    /// their batches completed and [`Self::notify`] was called.
    pub fn submit_notifying(
        &self,
        requests: &[Request],
        bytes: &[u8],
    ) -> Result<Batch, SubmitError> {
        let terms = Terms {
            notification: Some(bytes),
            ..Terms::default()
        };
        self.submit_with(requests, &terms)
    }

    /// Submits requests as one batch, all or nothing, on other terms than usual.
    pub fn submit_with(
        &self,
        requests: &[Request],
        terms: &Terms<'_>,
    ) -> Result<Batch, SubmitError> {
        let notification = self.outgoing(requests, terms)?;
        self.submit_batch(requests, terms, notification)
    }

    /// The notification that the terms ask for, with its place in the line to the peer of all requests.
    pub(crate) fn outgoing(
        &self,
        requests: &[Request],
        terms: &Terms<'_>,
    ) -> Result<Option<Outgoing>, SubmitError> {
        let Some(bytes) = terms.notification else {
            return Ok(None);
        };
        if !self.inner.is_ours() {
            return Err(SubmitError::Forked);
        }
        let length = bytes.len();
        if length > NOTIFICATION_BYTES_MAX {
            return Err(SubmitError::NotificationSize { bytes: length });
        }
        let Some(peer) = self.one_peer(requests)? else {
            return Ok(None);
        };
        if !self.notifies(peer) {
            return Err(SubmitError::NotificationUnsupported);
        }
        let notification = Outgoing::new(&self.inner.outbox, peer, bytes);
        notification.map(Some).ok_or(SubmitError::Full)
    }

    /// The peer of all requests; `None`: there are none.
    fn one_peer(&self, requests: &[Request]) -> Result<Option<PeerId>, SubmitError> {
        let mut known: Option<(SegmentId, PeerId)> = None;
        for (index, Request { remote, .. }) in requests.iter().enumerate() {
            if known.is_some_and(|(segment, _)| segment == *remote) {
                continue;
            }
            let segment = *remote;
            let segments = &self.inner.segments;
            let remote = segments.remote(segment);
            let peer = remote.ok_or_else(|| segments.missing(index, segment))?.peer;
            if known.is_some_and(|(_, other)| other != peer) {
                return Err(SubmitError::NotificationPeers { index });
            }
            known = Some((segment, peer));
        }
        Ok(known.map(|(_, peer)| peer))
    }

    fn notifies(&self, peer: PeerId) -> bool {
        lock(&self.inner.peers)
            .get(peer)
            .is_some_and(|peer| peer.notifies)
    }

    /// Tells the program of the peer that owns `remote` something, by itself, at most
    /// [`NOTIFICATION_BYTES_MAX`](crate::NOTIFICATION_BYTES_MAX) bytes. It gets it once and after what was
    /// told it before, also if connections are lost meanwhile. Does not wait for batches under way; see
    /// [`Self::submit_notifying`].
    pub fn notify(&self, remote: SegmentId, bytes: &[u8]) -> Result<Delivery, NotifyError> {
        let inner = &self.inner;
        if !inner.is_ours() {
            return Err(NotifyError::Forked);
        }
        if self.is_closing() {
            return Err(NotifyError::ShutDown);
        }
        let length = bytes.len();
        if length > NOTIFICATION_BYTES_MAX {
            return Err(NotifyError::TooLong { bytes: length });
        }
        let segment = inner.segments.remote(remote);
        let segment = segment.ok_or_else(|| match inner.segments.lost(remote) {
            Some(peer) => NotifyError::PeerLost {
                segment: remote,
                peer,
            },
            None => NotifyError::Stale { segment: remote },
        });
        let peer = segment?.peer;
        if !self.notifies(peer) {
            return Err(NotifyError::Unsupported);
        }
        let outgoing = Outgoing::new(&inner.outbox, peer, bytes).ok_or(NotifyError::Full)?;
        let delivery = Delivery::new(Owned::new(outgoing.slip().clone()));
        outgoing.send(&inner.plane);
        Ok(delivery)
    }

    /// What the programs of peers that opened segments here tell this one.
    pub fn notifications(&self) -> Notifications {
        Notifications::new(self.inner.desk.clone())
    }

    fn submit_batch(
        &self,
        requests: &[Request],
        terms: &Terms<'_>,
        notification: Option<Outgoing>,
    ) -> Result<Batch, SubmitError> {
        let inner = &self.inner;
        if !inner.is_ours() {
            return Err(SubmitError::Forked);
        }
        if self.is_closing() {
            return Err(SubmitError::ShutDown);
        }
        check_size(requests)?;
        let make = || Arc::new(BatchShared::carried(requests));
        if let Some(batch) = self.carry_at_once(requests, terms, make) {
            return Ok(batch);
        }
        self.submit_prepared(self.prepare(requests)?, terms, notification)
    }

    /// Submits a request through slots, whatever reaches both of its ends.
    pub(crate) fn submit_through_slots(
        &self,
        request: &Request,
        terms: &Terms<'_>,
    ) -> Result<Batch, SubmitError> {
        if self.is_closing() {
            return Err(SubmitError::ShutDown);
        }
        let prepared = self.prepare_staged(std::slice::from_ref(request), true)?;
        self.submit_prepared(prepared, terms, None)
    }

    fn submit_prepared(
        &self,
        prepared: Prepared,
        terms: &Terms<'_>,
        notification: Option<Outgoing>,
    ) -> Result<Batch, SubmitError> {
        let inner = &self.inner;
        let Prepared {
            submissions,
            held,
            stager,
        } = prepared;
        let post = match &stager {
            Some(stager) => &stager.post,
            None => &inner.posts[self.choose_worker()],
        };
        // Taken only if there is a row for the batch; else they are let go.
        let mut held = Some(held);
        let make = |row, room, notification| {
            let batch = BatchShared::new(row, held.take().unwrap_or_default()).taking(room);
            Arc::new(match notification {
                Some(notification) => batch.notifying(notification),
                None => batch,
            })
        };
        let submitted = self.enqueue(post, &submissions, terms, notification, make);
        submitted.inspect_err(|_| release(&held.unwrap_or_default()))
    }

    /// Submits a hop of what is staged, also where programs have taken all the room that there is for them: they may wait
    /// for it. Itself it does not wait.
    pub(crate) fn submit_hop(
        &self,
        request: &Request,
        terms: &Terms<'_>,
    ) -> Result<Batch, SubmitError> {
        let request = std::slice::from_ref(request);
        match self.submit_with(request, terms) {
            Err(SubmitError::Full) => {}
            submitted => return submitted,
        }
        let prepared = self.prepare(request)?;
        let post = &self.inner.posts[self.choose_worker()];
        let mut held = Some(prepared.held);
        let make = |row, room, _| {
            let batch = BatchShared::new(row, held.take().unwrap_or_default());
            Arc::new(batch.taking(room).for_hop())
        };
        let submissions = &prepared.submissions;
        let submitted = self.enqueue_in(&post.hop_room, post, submissions, terms, None, make);
        submitted.inspect_err(|_| release(&held.unwrap_or_default()))
    }

    /// Hands submissions to whoever carries them out, as a batch that `make` makes once there is room.
    pub(crate) fn enqueue(
        &self,
        post: &Arc<Post>,
        submissions: &[Submission],
        terms: &Terms<'_>,
        notification: Option<Outgoing>,
        make: impl FnOnce(RowId, Grant, Option<Outgoing>) -> Arc<BatchShared>,
    ) -> Result<Batch, SubmitError> {
        self.enqueue_in(&post.room, post, submissions, terms, notification, make)
    }

    fn enqueue_in(
        &self,
        whole: &Room,
        post: &Arc<Post>,
        submissions: &[Submission],
        terms: &Terms<'_>,
        notification: Option<Outgoing>,
        make: impl FnOnce(RowId, Grant, Option<Outgoing>) -> Arc<BatchShared>,
    ) -> Result<Batch, SubmitError> {
        let inner = &self.inner;
        let room = whole.take(
            &inner.clock,
            submissions.len() as u16,
            self.patience(terms),
            // What is under way has to go on while this thread sleeps.
            || post.look_after(),
        );
        let room = room.map_err(|why| match why {
            NoRoom::Full => SubmitError::Full,
            NoRoom::Closed => SubmitError::ShutDown,
        })?;
        let mut room = Some(room);
        let tells = notification.is_some();
        let due = Due {
            priority: terms.priority,
            deadline: terms
                .deadline
                .map_or(Instant::MAX, |within| inner.clock.now() + within.into()),
        };
        let make = |row| make(row, room.take().unwrap_or_default(), notification);
        match post.submit(submissions, due, make) {
            Ok(batch) => {
                if tells {
                    // Somebody on the other side waits for it, if nobody here does.
                    post.look_after();
                }
                Ok(Batch::new(batch, post.clone()))
            }
            Err(why) => {
                whole.give_back(room.unwrap_or_default());
                Err(match why {
                    NoRow::Full => SubmitError::Full,
                    NoRow::Closed => SubmitError::ShutDown,
                })
            }
        }
    }

    /// How long a submission waits for room.
    fn patience(&self, terms: &Terms<'_>) -> Duration {
        if holds_up_a_worker() {
            return Duration::ZERO;
        }
        terms.room_within.unwrap_or(self.inner.patience)
    }

    /// Asks the program of the peer that owns `remote` to do something.
    pub fn call(
        &self,
        remote: SegmentId,
        method: u16,
        body: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, CallError> {
        if !self.inner.is_ours() {
            return Err(CallError::Forked);
        }
        let segments = &self.inner.segments;
        let segment = segments
            .remote(remote)
            .ok_or_else(|| match segments.lost(remote) {
                Some(peer) => CallError::PeerLost {
                    segment: remote,
                    peer,
                },
                None => CallError::Stale { segment: remote },
            })?;
        self.inner
            .plane
            .call(segment.peer, method, body.to_vec(), timeout)
            .map_err(CallError::Ask)
    }

    /// All rails, in the order in which they were made: for the first peer that of [`Config::rails`]. Those of a
    /// lost peer stay until a new peer needs their place.
    pub fn rails(&self) -> Vec<RailStatus> {
        if !self.inner.is_ours() {
            return Vec::new();
        }
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

    /// Its transports in order of preference, those too that it runs without.
    pub fn transports(&self) -> Vec<TransportStatus> {
        self.inner.transports.status()
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        let inner = &self.inner;
        let name = |transport| inner.transports.name(transport);
        Stats {
            failovers: inner.failovers.list(name),
            devices: lock(&inner.peers).traffic(inner.fabric.shared(), &inner.transports),
        }
    }

    /// The flight recording, if [`Hooks::recording`] asked for one: every call on core, and what it answered.
    /// `polyrail sim replay` makes the calls again. It is whole when [`Self::shutdown`] has returned, unless
    /// [`Self::recording_cut`] says otherwise.
    pub fn recording(&self) -> Option<&Path> {
        self.inner.fabric.recording()
    }

    /// Why the flight recording does not have all that happened, if so: its disk was full, or did not follow. The engine does
    /// not wait for it.
    pub fn recording_cut(&self) -> Option<RecordingCut> {
        self.inner.fabric.recording_cut()
    }

    /// Ends everything within a bound: what has not ended is reported `ShutDown`, or `Indeterminate` where it
    /// cannot be ended for sure. Later submissions are refused. Again: does nothing.
    pub fn shutdown(&self) {
        if self.inner.is_ours() {
            self.inner.shut_down();
        }
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        let inner = Owned::new(inner);
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

    /// Makes a new session with a peer that has forgotten the old one, over whichever of its addresses
    /// answers. Good also if there is nothing to do any more.
    pub(crate) fn reconnect(&self, id: PeerId, incarnation: u64) -> Result<(), ConnectError> {
        let find = || {
            let peers = lock(&self.inner.peers);
            let peer = peers.get(id);
            peer.filter(|peer| peer.incarnation == incarnation).cloned()
        };
        let Some(peer) = find() else {
            return Ok(());
        };
        let turn = self.turn_at(peer.dialed);
        let _dialing = lock(&turn);
        let Some(peer) = find() else {
            return Ok(());
        };
        let ways = self.ways_to(&peer);
        let timeout = match ways.len() {
            1 => CONNECT_TIMEOUT,
            _ => RECONNECT_TIMEOUT,
        };
        let mut failed = None;
        let mut is_another = false;
        for (local, remote) in ways {
            match self.inner.plane.connect(id, local, remote, timeout) {
                Ok(met) if met.incarnation == incarnation => {
                    self.renew_session(peer, met.session);
                    return Ok(());
                }
                Ok(_) => {
                    log::warn!("another engine answers at {remote} now");
                    self.inner.plane.disconnect(id);
                    is_another = true;
                }
                // Somebody else has made the session.
                Err(ConnectError::Busy { .. }) => return Ok(()),
                // It was given up while it was dialed.
                Err(_) if find().is_none() => return Ok(()),
                Err(error) => {
                    log::debug!("{error}");
                    failed = failed.or(Some(error));
                }
            }
        }
        if is_another {
            self.lose_peer(id, incarnation);
            return Ok(());
        }
        failed.map_or(Ok(()), Err)
    }

    /// Every address that a peer was ever reached at, those first that look best.
    fn ways_to(&self, peer: &Peer) -> Vec<(Option<IpAddr>, SocketAddr)> {
        let shared = self.inner.fabric.shared();
        let is_healthy = |rail: RailId| {
            let view = shared.view(rail);
            view.is_some_and(|view| view.state == RailState::Healthy)
        };
        let mut rails: Vec<_> = peer.rails.iter().collect();
        rails.sort_by_key(|rail| !is_healthy(rail.rail));
        let mut ways: Vec<_> = rails
            .iter()
            .filter(|rail| rail.pair.own.is_none())
            .map(|rail| (rail.pair.local, rail.pair.remote))
            .collect();
        if !ways.iter().any(|(_, remote)| *remote == peer.dialed) {
            ways.insert(0, (None, peer.dialed));
        }
        ways
    }

    fn renew_session(&self, mut peer: Peer, session: SessionId) {
        peer.session = session;
        let mut peers = lock(&self.inner.peers);
        let known = peers.get_mut(peer.id);
        let Some(known) = known.filter(|known| known.incarnation == peer.incarnation) else {
            // It was lost while it was dialed. Its number is still its own: `peer` has a share of it.
            return self.inner.plane.disconnect(peer.id);
        };
        known.session = session;
        self.attach_rails(&peer);
    }

    /// Gives up a peer whose process has ended, or whose address belongs to another one now. What is open with
    /// it ends by itself, and then its numbers are free.
    pub(crate) fn lose_peer(&self, id: PeerId, incarnation: u64) {
        let inner = &self.inner;
        let Some(peer) = lock(&inner.peers).remove(id, incarnation) else {
            return;
        };
        log::warn!(
            "peer \"{}\" at {} is lost: open its segments anew",
            peer.name.escape_debug(),
            peer.dialed
        );
        inner.plane.disconnect(id);
        if let Some(stager) = inner.stager.get() {
            stager.say(Word::PeerGone(id, false));
        }
        let (segments, plans) = inner.segments.remove_peer(id, peer.dialed);
        let segments = segments.into_iter().map(SegmentId::segment_ref).collect();
        let lost = Leaving::new(peer.numbers, segments, plans, &inner.plans);
        let lost = Arc::new(lost);
        self.tell_workers(|| Command::ForgetPeer(lost.clone()));
    }

    /// What whoever makes a session at an address holds meanwhile. Others wait only for their own.
    fn turn_at(&self, address: SocketAddr) -> Arc<Mutex<()>> {
        let mut dialing = lock(&self.inner.dialing);
        dialing.retain(|_, turn| Arc::strong_count(turn) > 1);
        dialing.entry(address).or_default().clone()
    }

    /// Frees what processes that have ended left in the host's load record.
    pub(crate) fn bury(&self) {
        if let Some(neighbours) = self.inner.fabric.neighbours() {
            neighbours.bury();
        }
    }

    pub(crate) fn tell_workers(&self, command: impl Fn() -> Command) {
        for post in &self.inner.posts {
            post.send(command());
        }
    }

    pub(crate) fn attach_local(&self, id: SegmentId) {
        if let Some(region) = self.region(id) {
            self.tell_workers(|| Command::AttachLocal(id.segment_ref(), region.clone()));
        }
    }

    /// The peer at an address; a new session if there is none.
    fn peer_at(&self, remote: SocketAddr) -> Result<Peer, OpenError> {
        let inner = &self.inner;
        let known = || lock(&inner.peers).at(remote).cloned();
        if self.is_closing() {
            return Err(OpenError::ShutDown);
        }
        if let Some(peer) = known() {
            return Ok(peer);
        }
        let turn = self.turn_at(remote);
        let _dialing = lock(&turn);
        if let Some(peer) = known() {
            return Ok(peer);
        }
        let numbers = lock(&inner.peers).take_numbers()?;
        let met = inner
            .plane
            .connect(
                numbers.peer,
                self.dials_from(remote),
                remote,
                CONNECT_TIMEOUT,
            )
            .map_err(OpenError::Connect)?;
        self.add_peer(numbers, remote, &met)
    }

    /// Where a peer is dialed from; `None`: where the kernel chooses. On loopback it chooses one address for all, and who
    /// has rails at another would be taken for somebody else there.
    fn dials_from(&self, remote: SocketAddr) -> Option<IpAddr> {
        let mut rails = self.inner.config.rails.iter();
        let near = |rail: &&IpAddr| rail.is_loopback() && rail.is_ipv4() == remote.is_ipv4();
        remote
            .ip()
            .is_loopback()
            .then(|| rails.find(near).copied())?
    }

    /// Adds the peer that has just introduced itself. If it is one that has told us that this is an address of
    /// its own while it was dialed, it is that one.
    fn add_peer(
        &self,
        mut numbers: Numbers,
        dialed: SocketAddr,
        met: &Introduction,
    ) -> Result<Peer, OpenError> {
        let inner = &self.inner;
        let met = &Introduction {
            transports: inner.transports.tried(&met.transports, met.session),
            ..met.clone()
        };
        let id = numbers.peer;
        let scratch = self
            .add_segment(id, met.scratch.clone(), None)
            .inspect_err(|_| inner.plane.disconnect(id))?;
        let forget = || {
            inner.plane.disconnect(id);
            inner.segments.remove_remote(scratch);
            self.tell_workers(|| Command::DetachRemote(scratch.segment_ref()));
        };
        // The peers are locked only now: whoever makes a plan holds the segments while it looks for the peer. Rails
        // are numbered once nobody else can add the same peer: what is not numbered need not be given back.
        let pairs = lock(&inner.peers).pair_rails(dialed, met, &inner.config, &inner.transports);
        let pairs = pairs.inspect_err(|_| forget())?;
        let path = self.compare_paths(id, dialed, met, &pairs);
        let path = path.inspect_err(|_| forget())?;
        let mut peers = lock(&inner.peers);
        if let Some(known) = peers.met(dialed, met.incarnation).cloned() {
            drop(peers);
            forget();
            return Ok(known);
        }
        let installed = peers.install_rails(
            &inner.fabric,
            &mut numbers,
            pairs,
            &inner.config.path,
            &inner.transports,
        );
        let rails = match installed {
            Ok(rails) => rails,
            Err(error) => {
                drop(peers);
                forget();
                return Err(error);
            }
        };
        let peer = Peer {
            id,
            numbers: Arc::new(numbers),
            name: met.name.clone(),
            dialed,
            session: met.session,
            incarnation: met.incarnation,
            rails,
            offers: met.transports.clone(),
            scratch,
            notifies: met.features & NOTIFICATIONS != 0,
            path,
        };
        self.attach_rails(&peer);
        peers.add(peer.clone());
        Ok(peer)
    }

    /// How this end sees a connection, if the other one sees it so too.
    fn compare_paths(
        &self,
        id: PeerId,
        dialed: SocketAddr,
        met: &Introduction,
        pairs: &[RailPair],
    ) -> Result<Option<PeerPath>, OpenError> {
        let address = |pair: &RailPair| Some((pair.local?, pair.remote.ip()));
        // Transports have the same addresses; each counts once.
        let mut networked = pairs.iter().filter(|pair| pair.own.is_none()).peekable();
        let first = networked.peek().map(|pair| pair.transport);
        let of_first = networked.filter(|pair| Some(pair.transport) == first);
        let ends: Vec<_> = of_first.filter_map(address).collect();
        let seen = self.inner.config.path.see(&ends);
        let seen = seen.map_err(|error| OpenError::PathRails {
            peer: dialed,
            error,
        })?;
        let Some(path) = seen else {
            return Ok(None);
        };
        let theirs = match met.features & PATHS {
            0 => None,
            _ => {
                let view = self.inner.plane.see_path(id, ends, DESCRIBE_TIMEOUT);
                view.map_err(OpenError::Ask)?
            }
        };
        let theirs = theirs.ok_or_else(|| OpenError::PathUnknown {
            peer: dialed,
            ours: Box::new(path.view),
        })?;
        let agreed = path.view.agree(&theirs);
        agreed.map_err(|mismatch| OpenError::PathMismatch {
            peer: dialed,
            mismatch: Box::new(mismatch),
        })?;
        Ok(Some(path))
    }

    fn attach_rails(&self, peer: &Peer) {
        for rail in &peer.rails {
            self.tell_workers(|| Command::AttachRail(rail.rail, rail.pair.address(peer.session)));
        }
        self.inner.plane.maintain(peer.id, peer.ways());
    }

    /// The worker that a batch goes to: that of the submitting thread, so that threads which wait for their
    /// batches do not meet; if that one is at work, the next one that is not.
    pub(crate) fn choose_worker(&self) -> usize {
        let posts = &self.inner.posts;
        let next = || self.inner.next_worker.fetch_add(1, Relaxed) % posts.len();
        self.idle_worker().unwrap_or_else(next)
    }

    /// That of the submitting thread, or the next one, if it has nothing to do. `None`: all have.
    pub(crate) fn idle_worker(&self) -> Option<usize> {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static THREAD: usize = THREADS.fetch_add(1, Relaxed);
        }
        let posts = &self.inner.posts;
        let home = THREAD.with(|thread| *thread);
        let mut others = (home..home + posts.len()).map(|number| number % posts.len());
        others.find(|number| posts[*number].is_idle())
    }

    /// Checks every request, finds its plan, and marks its local segment as in use.
    pub(crate) fn prepare(&self, requests: &[Request]) -> Result<Prepared, SubmitError> {
        loop {
            match self.prepare_known(requests) {
                Ok(prepared) => return prepared,
                Err(index) => match self.route(index, &requests[index], false)? {
                    Route::Staged { .. } => return self.prepare_staged(requests, false),
                    // Two segments that never met before; the next look knows them, unless one has gone meanwhile.
                    Route::Direct => drop(self.pair(index, &requests[index])?),
                },
            }
        }
    }

    /// The same, for segments that have a plan: looks once at what all threads share. `Err`: the first
    /// request whose segments have none.
    fn prepare_known(&self, requests: &[Request]) -> Result<Result<Prepared, SubmitError>, usize> {
        let known = self.inner.segments.known();
        let mut pairs = Pairs::of(&known);
        let mut submissions = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter().enumerate() {
            let found = pairs.find((request.local, request.remote)).ok_or(index)?;
            if let Err(error) = check_request(found, index, request) {
                return Ok(Err(error));
            }
            submissions.push(Submission {
                plan: found.plan,
                op: request.op,
                local_offset: request.local_offset,
                remote_offset: request.remote_offset,
                length: request.length,
                through_slots: false,
            });
        }
        // As large as needed at once: `collect` would have to guess.
        let mut held = Vec::with_capacity(requests.len());
        held.extend(
            requests
                .iter()
                .filter_map(|request| known.hold((request.local, request.remote))),
        );
        Ok(Ok(Prepared {
            submissions,
            held,
            stager: None,
        }))
    }

    /// The same for a batch with a request that is staged: all of it goes to whoever stages. `through_slots`: also what a
    /// transport could carry that reaches memory of GPUs.
    fn prepare_staged(
        &self,
        requests: &[Request],
        through_slots: bool,
    ) -> Result<Prepared, SubmitError> {
        let stager = self.stager().map_err(|error| {
            log::error!("cannot stage through memory: {error}");
            SubmitError::Staging
        })?;
        let segments = &self.inner.segments;
        for (index, request) in requests.iter().enumerate() {
            self.check_route(index, request, through_slots)?;
        }
        let known = segments.known();
        let mut held = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter().enumerate() {
            match known.hold((request.local, request.remote)) {
                Some(hold) => held.push(hold),
                // Gone since it was looked at.
                None => {
                    release(&held);
                    let segment = request.remote;
                    return Err(SubmitError::Stale { index, segment });
                }
            }
        }
        let submission = |request: &Request| Submission {
            plan: PlanId {
                index: request.local.0,
                generation: request.remote.0,
            },
            op: request.op,
            local_offset: request.local_offset,
            remote_offset: request.remote_offset,
            length: request.length,
            through_slots,
        };
        Ok(Prepared {
            submissions: requests.iter().map(submission).collect(),
            held,
            stager: Some(stager),
        })
    }

    /// The plan of a request's two segments, made if there is none.
    pub(crate) fn pair(&self, index: usize, request: &Request) -> Result<PlanId, SubmitError> {
        let inner = &self.inner;
        let stale = |segment| inner.segments.missing(index, segment);
        let local = inner
            .segments
            .local(request.local)
            .ok_or_else(|| stale(request.local))?;
        let remote = inner
            .segments
            .remote(request.remote)
            .ok_or_else(|| stale(request.remote))?;
        // Before anything is locked.
        let whereabouts = self.whereabouts(&local.region);
        self.pin_for_gpu(&local, &remote);
        let ids = (request.local, request.remote);
        inner
            .segments
            .plan(ids, || self.make_plan(ids, (&local, &whereabouts), &remote))
            .map_err(|why| match why {
                NoPlan::Stale(segment) => stale(segment),
                NoPlan::Full => SubmitError::Plans { limit: PLANS_MAX },
            })
    }

    fn make_plan(
        &self,
        ids: (SegmentId, SegmentId),
        (local, whereabouts): (&LocalSegment, &Whereabouts),
        remote: &RemoteSegment,
    ) -> Result<PlanId, NoPlan> {
        let inner = &self.inner;
        let known = lock(&inner.peers).get(remote.peer).cloned();
        let plan = match known {
            Some(peer) => {
                let here = (local.region.memory(), whereabouts);
                Some(self.plan_to(&peer, ids, here, remote.descriptor.memory))
            }
            None => self.plan_to_disk(remote.peer, ids),
        };
        // Of a peer that is lost, the segments are about to go as well.
        let plan = plan.ok_or(NoPlan::Stale(ids.1))?;
        let id = lock(&inner.plans).take().ok_or(NoPlan::Full)?;
        let mut transports = plan.transports.iter();
        if transports.any(|row| inner.transports.carries_at_once(row.transport)) {
            inner.carries_at_once.store(true, Relaxed);
        }
        self.tell_workers(|| Command::InstallPlan(id, Box::new(plan.clone())));
        Ok(id)
    }

    /// How bytes move between a segment whose memory is `here`, of that kind and in that place, and one of a peer.
    fn plan_to(
        &self,
        peer: &Peer,
        (local, remote): (SegmentId, SegmentId),
        here: (MemoryKind, &Whereabouts),
        there: MemoryKind,
    ) -> Plan {
        let inner = &self.inner;
        let place = |segment: SegmentRef| Place { segment, offset: 0 };
        Plan {
            peer: peer.id,
            local: local.segment_ref(),
            remote: remote.segment_ref(),
            transports: peer.plan_transports(&inner.transports, here, there),
            scratch_local: place(inner.scratch.segment_ref()),
            scratch_remote: place(peer.scratch.segment_ref()),
            scratch_bytes: SLICE_BYTES,
            path: peer.path.map(|path| path.plan),
        }
    }
}

pub(crate) fn release(holds: &[Hold]) {
    holds.iter().for_each(Hold::release);
}

/// What a submission needs.
pub(crate) struct Prepared {
    /// Its requests as workers take them; for whoever stages, with the two segments in the plan's place.
    pub(crate) submissions: Vec<Submission>,
    /// The segments that they hold.
    pub(crate) held: Vec<Hold>,
    /// Who stages them; `None`: a worker carries them out.
    pub(crate) stager: Option<Arc<Stager>>,
}

/// Whether so many requests can be a batch.
pub(crate) fn check_size(requests: &[Request]) -> Result<(), SubmitError> {
    match requests.is_empty() || requests.len() > REQUESTS_MAX {
        true => Err(SubmitError::BatchSize {
            requests: requests.len(),
            limit: REQUESTS_MAX,
        }),
        false => Ok(()),
    }
}

/// Whether a request may run between its segments.
pub(crate) fn check_request(
    pair: KnownPair<'_>,
    index: usize,
    request: &Request,
) -> Result<(), SubmitError> {
    let allowed = pair.remote.descriptor.access.allows(request.op);
    let bytes = [pair.local.region.bytes(), pair.remote.descriptor.bytes];
    check_ends(index, request, [true, allowed], bytes)
}

/// Whether a request may run between segments of these sizes, the local one first, and what it does to each is allowed.
pub(crate) fn check_ends(
    index: usize,
    request: &Request,
    allowed: [bool; 2],
    bytes: [u64; 2],
) -> Result<(), SubmitError> {
    let length = request.length;
    if length == 0 {
        return Err(SubmitError::Empty { index });
    }
    let segments = [request.local, request.remote];
    for (segment, allowed) in segments.into_iter().zip(allowed) {
        if !allowed {
            return Err(SubmitError::Forbidden { index, segment });
        }
    }
    let offsets = [request.local_offset, request.remote_offset];
    for ((segment, offset), segment_bytes) in segments.into_iter().zip(offsets).zip(bytes) {
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > segment_bytes) {
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
        // First: what it stages is carried out by workers.
        if let Some(stager) = self.stager.get() {
            stager.stop();
        }
        let workers = std::mem::take(&mut *lock(&self.workers));
        for worker in &workers {
            worker.post.close_room();
            worker.post.send(Command::ShutDown);
        }
        for thread in workers.into_iter().filter_map(|worker| worker.thread) {
            join(thread);
        }
        if let Ok(gpus) = &self.gpus {
            gpus.unpin_all();
        }
        self.fabric.end_recording();
        if let Some(neighbours) = self.fabric.neighbours() {
            neighbours.leave();
        }
        self.plane.shutdown();
        self.desk.inbox.close();
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

/// The other processes of this host, if they are to count. Without them the engine does its work all the same.
fn join_neighbours(config: &Config, errands: &Sender<Errand>) -> Option<Neighbours> {
    let joined = Neighbours::join(config.diffusion()?, errands.clone());
    joined
        .inspect_err(|error| log::warn!("load is not shared with other processes: {error}"))
        .ok()
}

fn start_recording(
    config: &Config,
    hooks: &Hooks,
    cores: &[polyrail_core::orchestrator::Config],
) -> Result<Option<Arc<Recorder>>, EngineError> {
    let Some(folder) = &hooks.recording else {
        return Ok(None);
    };
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let header = Header {
        version: env!("CARGO_PKG_VERSION").into(),
        engine: config.name.clone(),
        started_ms: since_1970.map_or(0, |time| time.as_millis() as u64),
        slice_bytes: SLICE_BYTES,
        capacities: worker::CAPACITIES,
        workers: cores.to_vec(),
    };
    let recorder = Recorder::create(folder, &header).map_err(|source| EngineError::Recording {
        folder: folder.clone(),
        source,
    })?;
    Ok(Some(Arc::new(recorder)))
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
    config.check().map_err(|error| EngineError::Config {
        text: error.to_string(),
    })
}

/// Whether a segment can have this name.
pub(crate) fn check_name(name: &str) -> Result<(), RegisterError> {
    let limit = polyrail_control::codec::NAME_BYTES_MAX;
    let good = |c: char| c != '/' && !c.is_control();
    match name.is_empty() || name.len() > limit || !name.chars().all(good) {
        true => Err(RegisterError::BadName { name: name.into() }),
        false => Ok(()),
    }
}

pub(crate) fn check_segment(name: &str, bytes: u64) -> Result<(), RegisterError> {
    check_name(name)?;
    if bytes == 0 || bytes > isize::MAX as u64 {
        return Err(RegisterError::BadSize { bytes });
    }
    Ok(())
}

fn add_scratch(segments: &Segments) -> Result<SegmentId, EngineError> {
    let region = Region::allocate(u64::from(SLICE_BYTES), Access::RemoteReadWrite)
        .map_err(system("get memory for probes"))?;
    segments
        .add_local(SCRATCH_NAME, region, SegmentKind::Memory, None)
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

#[cfg(test)]
mod tests {
    use super::*;

    use polyrail_core::plan::PlanRail;
    use polyrail_core::topology::RailMap;
    use polyrail_cuda::Distance;
    use polyrail_cuda::stub::{Machine as StubMachine, Stub};

    use crate::machine::{Device, DeviceState};

    const GIGABIT: u64 = 1_000_000_000;

    /// A machine with memory on node 1 and these devices: last number of the address, name, node, speed.
    fn machine(devices: &[(u8, &str, Option<u16>, Option<u64>)]) -> Machine {
        let device = |(host, name, numa_node, speed): &(u8, &str, _, _)| Device {
            name: (*name).into(),
            state: DeviceState::Up,
            speed_bits_per_sec: *speed,
            numa_node: *numa_node,
            addresses: vec![[127, 0, 0, *host].into()],
        };
        Machine {
            devices: devices.iter().map(device).collect(),
            memory_node: |_| Some(1),
            // By the last letter of its name, so that each can be had.
            gpu_distance: |gpu, name| {
                assert_eq!(gpu, "ffff:01:00.0");
                match name.chars().last()? {
                    's' => Some(Distance::Switch),
                    'b' => Some(Distance::Bridge),
                    'n' => Some(Distance::Node),
                    'y' => Some(Distance::System),
                    _ => None,
                }
            },
        }
    }

    /// An engine there that uses these addresses, mapped to the nearest ones.
    fn engine_on(machine: Machine, hosts: &[u8], listen: bool) -> Engine {
        engine_with(machine, hosts, listen, Hooks::default())
    }

    fn engine_with(machine: Machine, hosts: &[u8], listen: bool, hooks: Hooks) -> Engine {
        let config = Config {
            listen: listen.then(|| SocketAddr::from(([127, 0, 0, hosts[0]], 0))),
            rails: hosts.iter().map(|host| [127, 0, 0, *host].into()).collect(),
            rail_map: RailMap::Nearest,
            workers: 1,
            ..Config::named("one of two").without("shm")
        };
        Engine::on(machine, config, hooks).unwrap()
    }

    /// The rails of an engine that knows `here` to one that knows `there`: their names, tiers, and the rates in
    /// Gbit/s that they are assumed to have.
    fn rails_between(here: (Machine, &[u8]), there: (Machine, &[u8])) -> Vec<(String, u8, u64)> {
        let target = engine_on(there.0, there.1, true);
        let access = Access::RemoteReadWrite;
        target.allocate("mem", 4096, access).unwrap();
        let at = target.listening().unwrap();
        let engine = engine_on(here.0, here.1, false);
        let local = engine.allocate("here", 4096, Access::Local).unwrap();
        let remote = engine.open_segment(&format!("{at}/mem")).unwrap();
        let peer = lock(&engine.inner.peers).at(at).unwrap().clone();
        let region = engine.region(local).unwrap();
        let place = engine.whereabouts(&region);
        let plan = engine.plan_to(
            &peer,
            (local, remote),
            (MemoryKind::Host, &place),
            MemoryKind::Host,
        );
        let shared = engine.inner.fabric.shared();
        let rails = plan
            .all_rails()
            .map(|PlanRail { rail, tier, .. }| {
                let rate = shared.view(rail).unwrap().rate.bytes_per_sec();
                let name = lock(&engine.inner.peers).rail_name(rail).to_owned();
                (name, tier, rate * 8 / GIGABIT)
            })
            .collect();
        // And bytes move.
        let batch = engine.submit(&[Request {
            op: Op::Write,
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            length: 4096,
        }]);
        let report = batch.unwrap().wait(Duration::from_secs(5)).unwrap();
        assert_eq!(report.status, polyrail_core::report::Status::Completed);
        rails
    }

    #[test]
    fn rails_have_the_tier_and_rate_of_their_device() {
        let here = machine(&[
            (1, "eth0", Some(0), Some(100 * GIGABIT)),
            (2, "eth1", Some(1), Some(25 * GIGABIT)),
            (3, "eth2", None, None),
        ]);
        let rails = rails_between((here, &[1, 2, 3, 4]), (machine(&[]), &[1, 2, 3, 4]));
        let expected = [(1, 1, 100), (2, 0, 25), (3, 0, 10), (4, 0, 10)];
        let name = |host| format!("tcp:127.0.0.{host}>127.0.0.{host}");
        let expected = expected.map(|(host, tier, rate)| (name(host), tier, rate));
        assert_eq!(rails, expected);
    }

    #[test]
    fn tiers_of_a_gpus_memory_go_by_the_way_on_the_bus() {
        let names = ["mlx-s", "mlx-b", "mlx-n", "mlx-y", "eth0", "eth1"];
        let nodes = [0, 0, 0, 0, 0, 1].map(Some);
        let devices: Vec<_> = (1..)
            .zip(names)
            .zip(nodes)
            .map(|((host, name), node)| (host, name, node, None))
            .collect();
        let hosts = [1, 2, 3, 4, 5, 6];
        let target = engine_on(machine(&[]), &hosts, true);
        let access = Access::RemoteReadWrite;
        target.allocate("mem", 4096, access).unwrap();
        let at = target.listening().unwrap();
        let hooks = Hooks {
            cuda: Some(Arc::new(Stub::new(StubMachine::default()))),
            ..Hooks::default()
        };
        let engine = engine_with(machine(&devices), &hosts, false, hooks);
        let gpu = engine.allocate_on_gpu("gpu", 1, 4096, Access::Local);
        let gpu = gpu.unwrap();
        let remote = engine.open_segment(&format!("{at}/mem")).unwrap();
        let peer = lock(&engine.inner.peers).at(at).unwrap().clone();
        let place = engine.whereabouts(&engine.region(gpu).unwrap());
        let here = (MemoryKind::Host, &place);
        let plan = engine.plan_to(&peer, (gpu, remote), here, MemoryKind::Host);
        let tiers: Vec<_> = plan.all_rails().map(|rail| rail.tier).collect();
        // Where the bus says nothing, the node does, which is 1 for all memory here.
        assert_eq!(tiers, [0, 0, 1, 2, 1, 0]);
    }

    #[test]
    fn what_an_operator_says_of_rails_counts_more_than_their_devices() {
        let spray = |gbps| Config {
            spray: crate::config::SprayConfig {
                nominal_bandwidth_gbps: gbps,
                ..Default::default()
            },
            ..Config::default()
        };
        assert!(Config::default().asks_devices() && spray(10.0).asks_devices());
        assert!(!spray(40.0).asks_devices());
        let eth0 = machine(&[(1, "eth0", None, Some(100 * GIGABIT))]);
        for (asks_devices, gigabits) in [(true, 100), (false, 10)] {
            let peers = Peers::new(
                Config::default().estimate(),
                Arc::new(eth0.clone()),
                asks_devices,
            );
            let rate = peers.estimate(Some([127, 0, 0, 1].into())).rate_nominal;
            assert_eq!(rate.bytes_per_sec() * 8 / GIGABIT, gigabits);
        }
    }

    #[test]
    fn nothing_is_far_on_a_machine_that_says_nothing() {
        let rails = rails_between((machine(&[]), &[1, 2]), (machine(&[]), &[1, 2]));
        assert!(
            rails
                .iter()
                .all(|(_, tier, rate)| (*tier, *rate) == (0, 10)),
            "{rails:?}"
        );
    }

    #[test]
    fn rails_lead_to_the_devices_that_face_each_other() {
        let here = machine(&[
            (1, "eth0", Some(0), None),
            (2, "eth1", Some(1), None),
            (3, "ib0", Some(1), None),
        ]);
        // It lists them in another order, and calls one something else.
        let there = machine(&[(5, "mlx0", Some(1), None), (6, "eth0", Some(0), None)]);
        let rails = rails_between((here, &[1, 2, 3]), (there, &[5, 6]));
        let names: Vec<_> = rails.iter().map(|(name, ..)| &name[..]).collect();
        let expected = [
            "tcp:127.0.0.1>127.0.0.6",
            "tcp:127.0.0.2>127.0.0.5",
            "tcp:127.0.0.3>127.0.0.5",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_session_is_made_anew_over_any_address_of_the_peer() {
        // Only the address that was dialed first was tried, for ever.
        let rails = [[127, 0, 0, 1], [127, 0, 0, 2]].map(IpAddr::from).to_vec();
        let target = Engine::new(Config {
            listen: Some("127.0.0.1:0".parse().unwrap()),
            rails,
            workers: 1,
            ..Config::named("target")
        });
        let target = target.unwrap();
        let access = Access::RemoteReadWrite;
        target.allocate("mem", 4096, access).unwrap();
        let at = target.listening().unwrap();
        let engine = Engine::new(Config {
            workers: 1,
            ..Config::named("initiator").without("shm")
        });
        let engine = engine.unwrap();
        let segment = engine.open_segment(&format!("{at}/mem")).unwrap();
        let nobody = {
            let listener = std::net::TcpListener::bind("127.0.0.9:0").unwrap();
            listener.local_addr().unwrap()
        };
        let peer = {
            let mut peers = lock(&engine.inner.peers);
            let id = peers.at(at).unwrap().id;
            let peer = peers.get_mut(id).unwrap();
            peer.dialed = nobody;
            peer.rails[0].pair.remote = nobody;
            peer.clone()
        };
        engine.inner.plane.disconnect(peer.id);
        engine.reconnect(peer.id, peer.incarnation).unwrap();
        let mem = engine
            .inner
            .plane
            .describe(peer.id, "mem", DESCRIBE_TIMEOUT);
        assert_eq!(mem.unwrap().unwrap().bytes, 4096);
        assert_eq!(engine.segment_bytes(segment), Some(4096), "it is not lost");
        let renewed = lock(&engine.inner.peers).get(peer.id).unwrap().session;
        assert_ne!(renewed, peer.session);
        // A peer that this engine does not have any more needs no session.
        engine.lose_peer(peer.id, peer.incarnation);
        engine.reconnect(peer.id, peer.incarnation).unwrap();
    }

    #[test]
    fn a_peer_that_is_given_up_while_it_is_dialed_needs_no_session() {
        // Who opened a segment of a target that was being started anew was told that its own engine was shut down.
        let target = Engine::new(Config {
            listen: Some("127.0.0.1:0".parse().unwrap()),
            workers: 1,
            ..Config::named("target")
        });
        let target = target.unwrap();
        let access = Access::RemoteReadWrite;
        target.allocate("mem", 4096, access).unwrap();
        let at = target.listening().unwrap();
        let engine = Engine::new(Config {
            workers: 1,
            ..Config::named("initiator").without("shm")
        });
        let engine = engine.unwrap();
        engine.open_segment(&format!("{at}/mem")).unwrap();
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = {
            let mut peers = lock(&engine.inner.peers);
            let id = peers.at(at).unwrap().id;
            let peer = peers.get_mut(id).unwrap();
            peer.dialed = silent.local_addr().unwrap();
            for rail in &mut peer.rails {
                rail.pair.remote = peer.dialed;
            }
            peer.clone()
        };
        engine.inner.plane.disconnect(peer.id);
        std::thread::scope(|scope| {
            let dialing = scope.spawn(|| engine.reconnect(peer.id, peer.incarnation));
            let _dialed = silent.accept().unwrap();
            engine.lose_peer(peer.id, peer.incarnation);
            dialing.join().unwrap().unwrap();
        });
    }
}
