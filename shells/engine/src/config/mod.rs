//! What an engine is started with, and where that may come from.
//!
//! [`Config`] is plain data. [`Config::from_json`], [`Config::from_file`], [`Config::from_env`] and
//! [`Sources`], which puts them together, fill it from text by one table of keys in [`keys`]: the table
//! also checks values that a program has set itself, and is what `docs/config.md` is printed from.

mod entry;
mod field;
mod keys;
mod nearest;
mod problem;
mod reference;
mod sources;
#[cfg(test)]
mod tests;
mod variables;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use polyrail_core::orchestrator::Config as CoreConfig;
use polyrail_core::path::config::PathConfig as CorePathConfig;
use polyrail_core::path::island::IslandPrefix;
use polyrail_core::rail::diffusion::{DiffusionConfig, WEIGHT_ONE, Weight};
use polyrail_core::rail::documented::DocumentedConfig;
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::health::{HealthMode as CoreHealthMode, ResetConfig};
use polyrail_core::rail::select::Policy;
use polyrail_core::send_queue::SendQueueConfig as CoreSendQueueConfig;
use polyrail_core::time::Duration as CoreDuration;
use polyrail_core::topology::RailMap;
use polyrail_core::units::Rate;

use crate::hints::AUTO;
use crate::known;

pub use problem::{ConfigError, Place, Problem};
pub use reference::reference;
pub use sources::{Effective, Loaded, Sources};

/// Bytes over TCP cost processor time, and so does each slice: short ones cost a fast rail a part of its rate,
/// long ones a slow rail its balance with others.
const TCP_SLICE_SPAN: CoreDuration = CoreDuration::from_micros(50);
/// Silences of the control plane's connections are cut after so many heartbeats.
const HEARTBEATS_MISSED: u32 = 3;

/// How an [`crate::Engine`] is to behave. [`Config::default`] is an initiator with one rail per address of
/// its peers.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The engine's name, for peers' logs and errors. At most 255 bytes.
    pub name: String,
    /// Where to listen; `None`: nobody can connect. Port 0 lets the kernel choose one, the same for all
    /// rails.
    pub listen: Option<SocketAddr>,
    /// Local rail addresses. An engine that listens listens there too, with the same port; an initiator
    /// binds its lanes there. Empty: one rail for each address of a peer, and the kernel chooses the
    /// local address.
    pub rails: Vec<IpAddr>,
    /// Which local rail address is joined with which remote one.
    pub rail_map: RailMap,
    /// How rails are chosen for slices.
    pub policy: Policy,
    /// Threads that move bytes; 0: one for every two cores, at least one. At most 64. Between processes of one host large
    /// copies are cut over as many, if they have a processor each.
    pub workers: usize,
    /// A batch of so many bytes at most is moved within `submit`, by the thread that calls it, if that can copy it by itself
    /// and nothing else is under way with the worker; 0: none is. Each request counts for 4 KiB at least.
    pub at_once_bytes: u64,
    /// Lets the engine listen beyond loopback although nothing keeps strangers out yet.
    pub insecure: bool,
    /// How often a request may move to another transport. Counts once there are two to choose from.
    pub max_failover_attempts: u8,
    /// Silence, and how long what is uncertain is waited for.
    pub health: HealthConfig,
    /// What [`Policy::Spray`] starts from, and whose load it sees.
    pub spray: SprayConfig,
    /// What happens to submissions that find no room, and which works ask for a completion.
    pub send_queue: SendQueueConfig,
    /// Which classes of rails bytes take.
    pub path: PathConfig,
    /// The memory that what no transport carries in one piece passes through.
    pub staging: StagingConfig,
    /// How queue pairs are made and connected.
    pub verbs: VerbsConfig,
    /// Who may know of which segments.
    pub security: SecurityConfig,
    /// Parameters of single transports, by name. Those that are not listed have the defaults.
    pub transports: BTreeMap<String, TransportConfig>,
}

/// The memory that what no transport carries in one piece passes through: slots, of which each holds a chunk. There
/// is as much for what comes in as for what goes out, and none before it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingConfig {
    /// Slots for each direction, which chunks to and from all peers share; 32 of one peer at most are on their way.
    pub slots: u32,
    /// Bytes of a slot. Chunks are as long as the smaller slots of the two ends. Only of multiples of 4096 do whole
    /// chunks of a file pass the page cache by.
    pub slot_bytes: u32,
}

impl Default for StagingConfig {
    fn default() -> Self {
        // Large enough for a disk and a network, small enough that the first hop of a long transfer is over soon.
        Self {
            slots: 16,
            slot_bytes: 1 << 20,
        }
    }
}

/// Who may know of which segments. Without it there is one trust domain, in which all are.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SecurityConfig {
    /// Trust domains by their names: see [`crate::Engine::domain`].
    pub domains: BTreeMap<String, DomainConfig>,
}

/// A trust domain.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DomainConfig {
    /// Whose addresses begin so is in it; of domains that both fit, in the one that says more bits. All addresses that a
    /// peer comes from have to be of one domain.
    pub peers: Vec<IpNet>,
}

/// How queue pairs of transport verbs are made and connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    /// Works that one queue pair may hold; devices that can hold fewer have fewer.
    pub queue_depth: u16,
    /// Queue pairs that one worker may have on one device, before idle ones make room for others.
    pub queue_pairs: u16,
    /// For how long works may queue on a rail so that several share a doorbell and a completion.
    pub batch: Duration,
    /// How long a packet is waited for before it is sent again: 4.096 µs × 2^this.
    pub ack_timeout: u8,
    /// How often it is sent again before the queue pair gives up. Some devices take 7 for "for ever".
    pub retry_count: u8,
    /// The row of a port's table of GIDs; 256: the one whose GID is the rail's address.
    pub gid_row: u16,
    /// The traffic class of packets, which switches choose their queue by.
    pub traffic_class: u8,
    /// The service level of packets.
    pub service_level: u8,
    /// Writes of up to so many bytes carry them themselves, which spares the device from reading memory.
    pub inline_bytes: u16,
    /// Moves bytes of GPUs' memory too, through its DMA-BUF.
    pub gpu_memory: bool,
    /// Lets devices write memory in another order than packets came in, where they can.
    pub relaxed_ordering: bool,
}

impl VerbsConfig {
    /// [`Self::gid_row`] of the rail's address.
    pub const GID_OF_RAIL: u16 = 256;

    #[cfg(feature = "verbs")]
    pub(crate) fn gid_index(&self) -> Option<u8> {
        u8::try_from(self.gid_row).ok()
    }
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            queue_depth: 128,
            queue_pairs: 1024,
            batch: Duration::from_micros(500),
            ack_timeout: 14,
            retry_count: 6,
            gid_row: Self::GID_OF_RAIL,
            traffic_class: 0,
            service_level: 0,
            inline_bytes: 64,
            gpu_memory: false,
            relaxed_ordering: true,
        }
    }
}

/// How an engine notices what does not work, and how long it waits for proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// How a rail that failed comes back.
    pub mode: HealthMode,
    /// Least time without a completion before a lane is suspected. Shorter notices sooner, and takes
    /// scheduling delays of a busy host for outages more often.
    pub progress_floor: Duration,
    /// How long a lane may take to open.
    pub open_timeout: Duration,
    /// How often a sign of life is sent to peers.
    pub heartbeat: Duration,
    /// A peer that nothing is heard from for so long is silent. At least twice the peer's heartbeat.
    pub peer_silence: Duration,
    /// How long proof is waited for before a report says `Indeterminate`.
    pub fence_timeout: Duration,
    /// How long posted bytes of a cancelled request may go on before their lanes are fenced.
    pub cancel_grace: Duration,
}

/// Which of two fabrics bytes take: a primary one that is routed everywhere, and a supplementary one that joins the
/// hosts of an island. Both ends of a connection need the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathConfig {
    /// Who says which class carries what.
    pub mode: IsolationMode,
    /// What makes the addresses of a primary rail's two ends one island.
    pub island_prefix: IslandPrefix,
    /// Those of [`Config::rails`] that are of the supplementary fabric. All others are primary.
    pub supplementary: Vec<IpAddr>,
    /// Mode `Advanced`: transfers to another island of up to so many bytes stay on primary rails.
    pub small_bytes_max: u64,
    /// Mode `Advanced`: the file of `polyrail agent`; `auto`: where that puts it by itself.
    pub hint_file: String,
    /// Mode `Advanced`: whether a class that a hint names is waited for while it has no room.
    pub hint_strict: bool,
    /// Mode `Advanced`: how long an agent may be silent before its hint counts for nothing.
    pub hint_age_max: Duration,
}

/// Who says which class of rails carries what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IsolationMode {
    /// Nobody: all rails are alike.
    #[default]
    Off,
    /// The topology: supplementary rails inside an island, primary ones between islands.
    Vanilla,
    /// An agent.
    Advanced,
}

/// How a rail that failed comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HealthMode {
    /// It pauses at its first incident, probes of scratch memory decide about its return, and the memory of
    /// incidents decays.
    #[default]
    Decay,
    /// It pauses after several errors, and a success or the end of its cooldown re-admits it: the TENT failover
    /// document. The parameters are those of transport tcp.
    Reset,
}

/// What [`Policy::Spray`] goes by besides what it learns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SprayConfig {
    /// Nominal rate in Gbit/s.
    pub nominal_bandwidth_gbps: f64,
    /// Base delay.
    pub base_delay: Duration,
    /// A request that has waited so long behind others of higher priority moves up by one step, for a turn.
    pub priority_promotion: Duration,
    /// Whether small requests that lie together on both sides go as one.
    pub merge_requests: bool,
    /// What bytes of other processes of this host count that are in flight on a device: 0, nothing, and this engine's
    /// own are not told either; 1, as much as our own.
    pub diffusion_weight: f64,
    /// A process that has not been heard of for so long has nothing in flight.
    pub diffusion_stale: Duration,
}

/// What happens to submissions that find no room, and which works ask for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendQueueConfig {
    /// A submission that its worker has no room for waits in line. Else it is refused at once.
    pub admission: bool,
    /// How long it waits.
    pub admission_timeout: Duration,
    /// Who has once not fit goes on when there is room for so many requests. 0: when it fits.
    pub admission_resume_watermark_works: u16,
    /// So many works at most go without a completion of their own, where one covers others. 0: as many as room allows.
    pub signal_interval_works: u16,
}

impl SendQueueConfig {
    /// The profile `mori`: what the MORI-IO flow-control rework has by default.
    pub fn mori() -> Self {
        Self::of(&CoreSendQueueConfig::MORI)
    }

    fn of(core: &CoreSendQueueConfig) -> Self {
        Self {
            admission: core.admission,
            admission_timeout: core.admission_timeout.into(),
            admission_resume_watermark_works: core.admission_resume_watermark_works,
            signal_interval_works: core.signal_interval_works,
        }
    }
}

impl Default for SendQueueConfig {
    fn default() -> Self {
        Self::of(&CoreSendQueueConfig::DEFAULT)
    }
}

/// Parameters of one transport, under the names of the TENT documents.
#[derive(Clone, Debug, PartialEq)]
pub struct TransportConfig {
    /// Whether it is used, where both ends have it.
    pub enable: bool,
    /// The shared library that it is loaded from; empty: it is built in. See [`crate::Engine::new`].
    pub library: String,
    /// Failures within [`Self::rail_error_window`] that pause a rail. Of health mode `reset` only.
    pub rail_error_threshold: u32,
    /// An older failure does not count any more. Of health mode `reset` only.
    pub rail_error_window: Duration,
    /// First pause; doubles with every further one. Of health mode `reset` only.
    pub rail_cooldown: Duration,
    /// Parameters of [`Policy::Documented`].
    pub documented: DocumentedConfig,
}

impl Config {
    /// The default, with a name.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// From a text in JSON; what it does not say has its default.
    ///
    /// ```
    /// let config = polyrail::Config::from_json(r#"{ "health": { "fence_timeout_ms": 500 } }"#)?;
    /// assert_eq!(config.health.fence_timeout.as_millis(), 500);
    /// let error = polyrail::Config::from_json(r#"{ "polcy": "spray" }"#).unwrap_err();
    /// assert!(error.to_string().contains("the nearest known one is policy"));
    /// # Ok::<(), polyrail::ConfigError>(())
    /// ```
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        Ok(Sources::new().json("JSON", text).load()?.config)
    }

    /// From a file in JSON.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Ok(Sources::new().file(path.as_ref()).load()?.config)
    }

    /// From the environment: `POLYRAIL_<KEY>`, with `/` in the key written `__`.
    pub fn from_env() -> Result<Self, ConfigError> {
        Ok(Sources::new().environment().load()?.config)
    }

    /// The same, without a transport of this name, whatever was said of it.
    pub fn without(mut self, name: &str) -> Self {
        self.transports.entry(name.into()).or_default().enable = false;
        self
    }

    /// Takes these rails, and what runs over rails only: transports inside a host stay out, unless the configuration
    /// says otherwise.
    pub fn use_rails(&mut self, rails: &[IpAddr]) {
        self.rails = rails.to_vec();
        for name in [known::SHM, known::CUDA_IPC, known::STAGED] {
            let inside = self.transports.entry(name.into());
            inside.or_insert(TransportConfig {
                enable: false,
                ..TransportConfig::default()
            });
        }
    }

    /// The parameters of a transport.
    pub fn transport(&self, name: &str) -> TransportConfig {
        self.transports.get(name).cloned().unwrap_or_default()
    }

    /// The policy that its parameters make of [`Self::policy`]: [`Policy::Documented`] without smart
    /// scheduling is [`Policy::RoundRobin`].
    pub fn effective_policy(&self) -> Policy {
        match self.policy {
            Policy::Documented => self.transport(known::TCP).documented.policy(),
            policy => policy,
        }
    }

    /// Checks what a program may have set itself, by the same rules as text.
    pub fn check(&self) -> Result<(), ConfigError> {
        sources::check(self)
    }

    /// How many workers that means on this machine.
    pub(crate) fn worker_count(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism()
                .map_or(1, |cores| cores.get() / 2)
                .max(1),
            count => count,
        }
    }

    /// What a worker's core is to know.
    pub(crate) fn core(&self, worker: u16) -> CoreConfig {
        let HealthConfig {
            mode,
            progress_floor,
            open_timeout,
            heartbeat: _,
            peer_silence,
            fence_timeout,
            cancel_grace,
        } = self.health;
        let tcp = self.transport(known::TCP);
        CoreConfig {
            health: match mode {
                HealthMode::Decay => CoreHealthMode::Decay,
                HealthMode::Reset => CoreHealthMode::Reset(ResetConfig {
                    rail_error_threshold: u16::try_from(tcp.rail_error_threshold)
                        .unwrap_or(u16::MAX),
                    rail_error_window: core_duration(tcp.rail_error_window),
                    rail_cooldown: core_duration(tcp.rail_cooldown),
                }),
            },
            failover_attempts_max: self.max_failover_attempts,
            progress_floor: core_duration(progress_floor),
            open_timeout: core_duration(open_timeout),
            peer_silence: core_duration(peer_silence),
            fence_timeout: core_duration(fence_timeout),
            cancel_grace: core_duration(cancel_grace),
            documented: tcp.documented,
            priority_promotion: core_duration(self.spray.priority_promotion),
            merge_requests: self.spray.merge_requests,
            signal_interval_works: self.send_queue.signal_interval_works,
            ..CoreConfig::new(worker, self.policy)
        }
    }

    /// What is assumed of a rail before its first completions. Too much or too little is corrected by them.
    pub(crate) fn estimate(&self) -> EstimateConfig {
        let bits_per_sec = self.spray.nominal_bandwidth_gbps * 1e9;
        EstimateConfig {
            rate_nominal: Rate::from_bits_per_sec(bits_per_sec as u64),
            delay_base: core_duration(self.spray.base_delay),
            tier: 0,
            slice_span: TCP_SLICE_SPAN,
            batch_span: CoreDuration::ZERO,
        }
    }

    /// How load is shared with other processes of this host; `None`: not at all.
    pub(crate) fn diffusion(&self) -> Option<DiffusionConfig> {
        // As little as somebody asks for is more than nothing.
        let parts = (self.spray.diffusion_weight * f64::from(WEIGHT_ONE)).ceil();
        Some(DiffusionConfig {
            weight: Weight::new(parts as u16)?,
            stale_after: core_duration(self.spray.diffusion_stale),
        })
    }

    /// Whether a device's own speed counts: nobody has said what rails carry.
    pub(crate) fn asks_devices(&self) -> bool {
        self.spray.nominal_bandwidth_gbps == SprayConfig::default().nominal_bandwidth_gbps
    }

    /// How long a control connection may be silent before it counts as dead.
    pub(crate) fn connection_silence(&self) -> Duration {
        self.health.heartbeat * HEARTBEATS_MISSED
    }
}

pub(crate) fn core_duration(duration: Duration) -> CoreDuration {
    CoreDuration::from_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "polyrail".into(),
            listen: None,
            rails: Vec::new(),
            rail_map: RailMap::default(),
            policy: Policy::default(),
            workers: 0,
            at_once_bytes: 1 << 20,
            insecure: false,
            max_failover_attempts: 3,
            health: HealthConfig::default(),
            spray: SprayConfig::default(),
            send_queue: SendQueueConfig::default(),
            path: PathConfig::default(),
            staging: StagingConfig::default(),
            verbs: VerbsConfig::default(),
            security: SecurityConfig::default(),
            transports: BTreeMap::new(),
        }
    }
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            mode: HealthMode::default(),
            progress_floor: Duration::from_millis(30),
            open_timeout: Duration::from_secs(1),
            heartbeat: Duration::from_millis(500),
            peer_silence: Duration::from_millis(1_200),
            fence_timeout: Duration::from_secs(2),
            cancel_grace: Duration::from_millis(100),
        }
    }
}

impl Default for PathConfig {
    fn default() -> Self {
        let core = CorePathConfig::DEFAULT;
        Self {
            mode: IsolationMode::Off,
            island_prefix: core.island_prefix,
            supplementary: Vec::new(),
            small_bytes_max: core.small_bytes_max,
            hint_file: AUTO.into(),
            hint_strict: core.hint_strict,
            hint_age_max: core.hint_age_max.into(),
        }
    }
}

impl Default for SprayConfig {
    fn default() -> Self {
        Self {
            nominal_bandwidth_gbps: 10.0,
            base_delay: Duration::from_micros(50),
            diffusion_weight: 0.0,
            diffusion_stale: Duration::from_millis(20),
            priority_promotion: Duration::from_millis(10),
            merge_requests: true,
        }
    }
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self {
            enable: true,
            library: String::new(),
            rail_error_threshold: 3,
            rail_error_window: Duration::from_secs(10),
            rail_cooldown: Duration::from_secs(30),
            documented: DocumentedConfig::DEFAULT,
        }
    }
}
