//! How an engine starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, RwLock};
use std::time::SystemTime;

use polyrail_control::codec::SegmentKind;
use polyrail_control::plane::{Plane, PlaneConfig};
use polyrail_control::security::ClusterKey;
use polyrail_core::rail::policies::TransportConfig as CoreTransport;
use polyrail_core::slice::SLICE_BYTES;
use polyrail_core::time::Instant;
use polyrail_cuda::Driver;
use polyrail_record::{Capacities, Header, Journal, Recorder, Ring};
use polyrail_transport::clock::Clock;
use polyrail_transport::fault::Faults;
use polyrail_transport::memory::{Access, Region, TrustDomain};
use polyrail_uring::FileTable;

use crate::answering::{Answering, Waiting};
use crate::calls::Calls;
use crate::config::{Config, CoreConfig, Payload};
use crate::delivery::Mail;
use crate::descriptors;
use crate::domains::Domains;
use crate::ending::Ending;
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::fabric::{Fabric, device_rows};
use crate::files::Files;
use crate::fork::Owned;
use crate::gpus::{self, Hardware};
use crate::guests::Guests;
use crate::hints::Hints;
use crate::listen::{self, Listening};
use crate::machine::{Changes, Machine};
use crate::neighbours::Neighbours;
use crate::notification::{Desk, Inbox};
use crate::peers::{News, Peers};
use crate::plans::Plans;
use crate::post::{Command, Post};
use crate::reception::Reception;
use crate::segments::{SCRATCH_NAME, SegmentId, Segments};
use crate::sessions::{Said, Sessions};
use crate::staging::{EngineCell, StagerCell, Staging};
use crate::stats::Failovers;
use crate::task::{Task, Tasks};
use crate::transports::{Plugin, Transports};
use crate::wakers::WakerThread;
use crate::watch::Watch;
use crate::worker::{self, Start};
use crate::workers::{WORKERS_MAX, Workers};

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
    /// Peers are let in only by [`Engine::let_in`]: for who wants to offer segments first. Until then nobody answers them: opening
    /// a segment fails after a second, unless it waits ([`OpenTerms::within`](crate::OpenTerms::within)) or follows a peer that
    /// it had before.
    pub lets_in_later: bool,
}

impl Engine {
    /// Starts an engine. It loads the libraries that the configuration names for transports
    /// ([`TransportConfig::library`](crate::TransportConfig::library)), whose code runs in this process from then on.
    ///
    /// Example: [guide](crate::guide#starting).
    pub fn new(config: Config) -> Result<Self, EngineError> {
        Self::with_hooks(config, Hooks::default())
    }

    /// Starts an engine with something plugged in.
    ///
    /// Example: [guide](crate::guide#starting).
    pub fn with_hooks(config: Config, hooks: Hooks) -> Result<Self, EngineError> {
        let machine = Machine::this(&config);
        let (named, within) = (!config.rails.is_empty(), !config.rails_within.is_empty());
        let engine = Self::on(machine, config, hooks)?;
        // Without it the engine does its work, and finds out about addresses that it knows by errors.
        let has_devices = engine.inner.transports.has_devices();
        if (named || within || has_devices)
            && let Err(error) = Changes::of_kernel().and_then(|changes| engine.watch(changes))
        {
            if within {
                return Err(system("follow the addresses of this machine")(error));
            }
            log::warn!("addresses that come and go are not seen: {error}");
        }
        Ok(engine)
    }

    /// Starts an engine that believes this of its machine.
    pub(crate) fn on(machine: Machine, config: Config, hooks: Hooks) -> Result<Self, EngineError> {
        check(&config)?;
        let key = config.security.key()?;
        listen::check_rails(&config.rails)?;
        descriptors::raise(config.limits.descriptors as u64);
        let mut listening = listen::listen(&config)?;
        let address = listening.address;
        let outside = match hooks.lets_in_later {
            true => std::mem::take(&mut listening.listeners),
            false => Vec::new(),
        };
        let own = address.iter().map(SocketAddr::ip);
        let entrances = own.chain(config.rails.iter().copied()).collect();
        let limits = config.limits;
        let segments = Arc::new(Segments::new(limits.segments));
        let scratch = add_scratch(&segments)?;
        let files = Arc::new(Files::default());
        let file_table: Arc<dyn FileTable> = files.clone();
        let hardware = Hardware {
            machine: Arc::new(machine),
            gpus: gpus::find(&config, &hooks),
        };
        let transports = Arc::new(Transports::install(
            &config,
            segments.clone(),
            &file_table,
            &hardware.gpus,
            &hooks.transports,
            hooks.faults.clone(),
        )?);
        let (tasks, task_queue) = channel();
        // Without them there is nobody to carry calls out.
        let waiting = hooks.calls.is_some().then(Arc::<Waiting>::default);
        let clock = Clock::start();
        let waker_thread = Arc::<WakerThread>::default();
        let shell = Shell {
            posts: worker::posts(
                config.worker_count(),
                limits.requests,
                &config.send_queue,
                clock,
                &waker_thread,
            )
            .map_err(system("create a worker's post box"))?,
            domains: Arc::new(Domains::new(&config.security)),
            inbox: Arc::new(Inbox::new().map_err(system("create a queue for notifications"))?),
            stager: Arc::default(),
            said: Arc::default(),
            calls: waiting.clone(),
            tasks,
            clock,
            transports,
            segments,
        };
        let cores: Vec<_> = (0..shell.posts.len())
            .map(|number| CoreConfig {
                hands_over: shell.transports.catalog.staged,
                ..config.core(number as u16)
            })
            .collect();
        let settings: Arc<[_]> = config
            .core_transports(&shell.transports.catalog.names())
            .into();
        let journal = start_recording(&config, &hooks, &cores, &settings)?;
        let neighbours = join_neighbours(&config, &shell.tasks);
        let workers = shell.posts.len();
        let fabric = Fabric::new(
            workers,
            limits.rails,
            device_rows(limits.rails, config.rail_map),
            worker::shares_out(&cores, &settings),
            config.slice_bytes,
            journal,
            neighbours,
        );
        let fabric = Arc::new(fabric.map_err(system("allocate tables"))?);
        key.iter().for_each(|key| key.remind());
        let membership = key.clone();
        let estimate = config.estimate();
        let machine = hardware.machine.clone();
        let locals = config.rails.clone();
        let peers = Peers::new(estimate, machine, config.asks_devices(), &limits, locals);
        let peers = Arc::new(Mutex::new(peers));
        let guests = Arc::<Guests>::default();
        let met = Met {
            peers: peers.clone(),
            guests: guests.clone(),
            fabric: fabric.clone(),
        };
        let plane = shell.start_plane(&config, met, &hardware.machine, listening, key)?;
        let whole = Arc::new(EngineCell::new());
        let news = News::new(waker_thread.clone())
            .map_err(system("create a queue for what is told of peers"))?;
        let sessions = Sessions::new(plane, peers, address, shell.said.clone(), news);
        let workers = shell.start_workers(
            &config,
            &hooks,
            &fabric,
            &sessions,
            &whole,
            (cores, settings),
        )?;
        let desk = Desk {
            inbox: shell.inbox,
            plane: sessions.plane.clone(),
            waker_thread: waker_thread.clone(),
        };
        let written = config.check_overlap.then(Arc::default);
        let inner = Arc::new(Inner {
            config,
            key: RwLock::new(membership),
            written,
            clock: shell.clock,
            transports: shell.transports.catalog.clone(),
            hardware,
            fabric,
            segments: shell.segments,
            domains: shell.domains,
            files,
            staging: Staging::new(shell.stager),
            sessions,
            plans: Plans::new(scratch, limits.pairs),
            workers,
            mail: Mail::new(desk, limits.peers),
            waker_thread: Owned::new(waker_thread),
            guests,
            outside: Mutex::new(outside),
            entrances: Mutex::new(entrances),
            tasks: Tasks::new(shell.tasks),
            answering: hooks
                .calls
                .zip(waiting)
                .map(|(calls, waiting)| Answering::new(calls, waiting)),
            watch: Watch::default(),
            ending: Ending::default(),
        });
        let engine = Self::whole(inner);
        let _ = whole.set(engine.downgrade());
        engine.attach_local(scratch);
        let tasks = &engine.inner.tasks;
        tasks
            .start(task_queue, engine.downgrade())
            .map_err(system("start a thread"))?;
        if let Some(answering) = &engine.inner.answering {
            let started = answering.start(engine.downgrade());
            started.map_err(system("start a thread"))?;
        }
        Ok(engine)
    }
}

/// What the threads of an engine share from before it is whole.
struct Shell {
    clock: Clock,
    segments: Arc<Segments>,
    transports: Arc<Transports>,
    domains: Arc<Domains>,
    posts: Vec<Arc<Post>>,
    stager: Arc<StagerCell>,
    said: Arc<Said>,
    tasks: Sender<Task>,
    calls: Option<Arc<Waiting>>,
    inbox: Arc<Inbox>,
}

/// Who is met, and what was moved with them.
struct Met {
    peers: Arc<Mutex<Peers>>,
    guests: Arc<Guests>,
    fabric: Arc<Fabric>,
}

impl Shell {
    /// Starts the control plane, which answers peers from then on.
    fn start_plane(
        &self,
        config: &Config,
        met: Met,
        machine: &Arc<Machine>,
        listening: Listening,
        key: Option<Arc<ClusterKey>>,
    ) -> Result<Plane, EngineError> {
        let reception = Reception {
            segments: self.segments.clone(),
            domains: self.domains.clone(),
            transports: self.transports.clone(),
            posts: self.posts.clone(),
            tasks: self.tasks.clone(),
            calls: self.calls.clone(),
            name: config.name.clone(),
            stager: self.stager.clone(),
            said: self.said.clone(),
            inbox: self.inbox.clone(),
            path: config.path.clone(),
            machine: machine.clone(),
            guests: met.guests,
            peers: met.peers,
            fabric: met.fabric,
        };
        let scratch = (self.segments).describe(SCRATCH_NAME, TrustDomain::COMMON, |_| None);
        let scratch = scratch.ok_or_else(|| EngineError::Config {
            text: "no memory for probes".into(),
        })?;
        let Listening {
            listeners, rails, ..
        } = listening;
        let rail_fact = |rail: &SocketAddr| machine.rail_fact(rail.ip());
        let plane_config = PlaneConfig {
            listeners,
            rail_facts: rails.iter().map(rail_fact).collect(),
            rails,
            transports: self.transports.catalog.offers(&config.rails),
            heartbeat: config.health.heartbeat,
            idle_heartbeat: config.idle_heartbeat(),
            encrypts: config.security.payload == Payload::Encrypt,
            silence_max: config.connection_silence(),
            sessions_max: config.control.sessions_max,
            connections_max: config.control.connections_max,
            handshakes_max: config.control.handshakes_max,
            key,
            ..PlaneConfig::new(config.name.clone(), random_u64()?, scratch, self.clock)
        };
        Plane::start(plane_config, Arc::new(reception)).map_err(system("start the control plane"))
    }

    /// Starts the workers.
    fn start_workers(
        &self,
        config: &Config,
        hooks: &Hooks,
        fabric: &Arc<Fabric>,
        sessions: &Sessions,
        whole: &Arc<EngineCell>,
        (cores, settings): (Vec<CoreConfig>, Arc<[CoreTransport]>),
    ) -> Result<Workers, EngineError> {
        let failovers = Arc::new(Failovers::default());
        let hints = Hints::new(&config.path).map(Arc::new);
        let mut threads = Vec::new();
        for core in cores {
            let endpoint = self.transports.endpoint(core.worker, self.clock);
            let started = endpoint.and_then(|endpoint| {
                let start = Start {
                    config: core,
                    limits: config.limits,
                    settings: settings.clone(),
                    fabric: fabric.clone(),
                    endpoint,
                    plane: sessions.plane.clone(),
                    clock: self.clock,
                    peers: sessions.peers.clone(),
                    transports: self.transports.catalog.clone(),
                    failovers: failovers.clone(),
                    faults: hooks.faults.clone(),
                    hints: hints.clone(),
                    engine: whole.clone(),
                };
                worker::start(start, &self.posts)
            });
            match started {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    // Those that run already would never end by themselves.
                    for post in &self.posts {
                        post.send(Command::ShutDown(Instant::ZERO));
                    }
                    return Err(system("start a worker")(source));
                }
            }
        }
        let posts = self.posts.clone();
        let send_queue = &config.send_queue;
        Ok(Workers::new(posts, threads, failovers, send_queue, hints))
    }
}

/// The other processes of this host, if they are to count. Without them the engine does its work all the same.
fn join_neighbours(config: &Config, tasks: &Sender<Task>) -> Option<Neighbours> {
    let joined = Neighbours::join(config.diffusion()?, tasks.clone());
    joined
        .inspect_err(|error| log::warn!("load is not shared with other processes: {error}"))
        .ok()
}

/// All calls on core in a file, if the program asks for it, or the last ones in memory, if the configuration does.
fn start_recording(
    config: &Config,
    hooks: &Hooks,
    cores: &[CoreConfig],
    settings: &[CoreTransport],
) -> Result<Option<Journal>, EngineError> {
    let ring_bytes = config.recording.ring_mb as usize * (1 << 20);
    if hooks.recording.is_none() && ring_bytes == 0 {
        return Ok(None);
    }
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let header = Header {
        version: env!("CARGO_PKG_VERSION").into(),
        engine: config.name.clone(),
        started_ms: since_1970.map_or(0, |time| time.as_millis() as u64),
        before: 0,
        slice_bytes: config.slice_bytes,
        capacities: Capacities {
            devices: device_rows(config.limits.rails, config.rail_map) as u32,
            ..worker::capacities(&config.limits)
        },
        workers: cores.to_vec(),
        transports: settings.to_vec(),
    };
    let folder = match &hooks.recording {
        Some(folder) => folder.clone(),
        None => PathBuf::from(&config.recording.folder),
    };
    let journal = match &hooks.recording {
        Some(folder) => Recorder::create(folder, &header).map(|all| Journal::Whole(Arc::new(all))),
        None => Ring::start(&folder, ring_bytes, header).map(|last| Journal::Ring(Arc::new(last))),
    };
    let journal = journal.map_err(|source| EngineError::Recording { folder, source })?;
    Ok(Some(journal))
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
    let exposed = config.metrics.filter(|at| !at.ip().is_loopback());
    if let Some(at) = exposed.filter(|_| !config.insecure) {
        let text = format!(
            "metrics: {at} is beyond loopback, where anybody could read them; use an address such as 127.0.0.1:{}, or say \
             insecure",
            at.port()
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

fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> EngineError {
    move |source| EngineError::System { what, source }
}
