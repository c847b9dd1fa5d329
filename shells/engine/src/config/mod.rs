//! What an engine is started with, and where that may come from.
//!
//! [`Config`] is plain data. [`Config::from_json`], [`Config::from_file`], [`Config::from_env`] and
//! [`Sources`], which puts them together, fill it from text by one table of keys in [`keys`]: the table
//! also checks values that a program has set itself, and is what `docs/config.md` is printed from.

mod check;
mod effect;
mod entry;
mod field;
mod key_path;
mod keys;
mod nearest;
mod problem;
mod reference;
mod sections;
mod sources;
#[cfg(test)]
mod tests;
mod variables;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use polyrail_core::rail::diffusion::{DiffusionConfig, WEIGHT_ONE, Weight};
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::health::{HealthMode as CoreHealthMode, ResetConfig};
use polyrail_core::rail::policies::{PoliciesConfig, TransportConfig as CoreTransport};
use polyrail_core::rail::select::Policy;
use polyrail_core::slice::SLICE_BYTES;
use polyrail_core::time::Duration as CoreDuration;
use polyrail_core::topology::RailMap;
use polyrail_core::units::Rate;

use crate::known;

pub use problem::{ConfigError, Place, Problem};
pub use reference::reference;
pub use sections::{
    ControlConfig, DomainConfig, HealthConfig, HealthMode, IsolationMode, LimitsConfig, PathConfig,
    Payload, RecordingConfig, SecurityConfig, SendQueueConfig, SprayConfig, StagingConfig,
    TransportConfig, VerbsConfig,
};
pub use sources::{Effective, Loaded, Sources};

/// What a worker's core is started with.
pub(crate) type CoreConfig = polyrail_core::orchestrator::Config<PoliciesConfig>;

/// Bytes over TCP cost processor time, and so does each slice: short ones cost a fast rail a part of its rate,
/// long ones a slow rail its balance with others.
const TCP_SLICE_SPAN: CoreDuration = CoreDuration::from_micros(50);
/// Silences of the control plane's connections are cut after so many heartbeats.
/// A peer that stands still for 2 s, as a machine that is moved, loses none.
const HEARTBEATS_MISSED: u32 = 5;

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
    /// Addresses of this host that begin so are rails too, also those that come later: behind [`Self::rails`], up to 16 in
    /// all. An engine that listens then does so everywhere. Not with path isolation.
    pub rails_within: Vec<IpNet>,
    /// Which local rail address is joined with which remote one.
    pub rail_map: RailMap,
    /// How rails are chosen for slices.
    pub policy: Policy,
    /// Bytes of the usual slice. Where each costs processor time, slices are as long as takes 50 µs, if that is longer.
    pub slice_bytes: u32,
    /// Threads that move bytes; 0: one for every two cores, at least one. At most 64. Between processes of one host large
    /// copies are cut over as many, and with 0 over two at least, if they have a processor each.
    pub workers: usize,
    /// A batch of so many bytes at most is moved within `submit`, by the thread that calls it, if that can copy it by itself
    /// and nothing else is under way with the worker; 0: none is. Each request counts for 4 KiB at least.
    pub at_once_bytes: u64,
    /// Refuses requests that write to the same bytes of a segment at once: [`crate::SubmitError::Overlap`].
    pub check_overlap: bool,
    /// Lets the engine listen beyond loopback although nothing keeps strangers out, or, with a cluster key, not from lanes.
    pub insecure: bool,
    /// Where the engine answers HTTP about itself, as [`crate::Engine::expose`] does; `None`: nowhere. If the port is taken, it
    /// runs without, and warns.
    pub metrics: Option<SocketAddr>,
    /// What the program `polyrail` writes to its log, unless `RUST_LOG` says it: `error`, `warn`, `info`, `debug` or `trace`;
    /// `None`: what is usual for its command. A program with this engine in it has a logger of its own.
    pub log_level: Option<log::Level>,
    /// How often a request may move to another transport. Counts once there are two to choose from.
    pub max_failover_attempts: u8,
    /// Silence, and how long what is uncertain is waited for.
    pub health: HealthConfig,
    /// How many peers may have how much of the control plane.
    pub control: ControlConfig,
    /// What [`Policy::Spray`] starts from, and whose load it sees.
    pub spray: SprayConfig,
    /// What happens to submissions that find no room, and which works ask for a completion.
    pub send_queue: SendQueueConfig,
    /// Which classes of rails bytes take.
    pub path: PathConfig,
    /// The memory that what no transport carries in one piece passes through.
    pub staging: StagingConfig,
    /// The last calls on core, for when something goes wrong.
    pub recording: RecordingConfig,
    /// How much of everything there can be.
    pub limits: LimitsConfig,
    /// How queue pairs are made and connected.
    pub verbs: VerbsConfig,
    /// Who may know of which segments.
    pub security: SecurityConfig,
    /// Parameters of single transports, by name. Those that are not listed have the defaults.
    pub transports: BTreeMap<String, TransportConfig>,
}

impl Config {
    /// The default, with a name.
    ///
    /// Example: [guide](crate::guide#configuration).
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
    ///
    /// Example: [guide](crate::guide#configuration).
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Ok(Sources::new().file(path.as_ref()).load()?.config)
    }

    /// From the environment: `POLYRAIL_<KEY>`, with `/` in the key written `__`.
    ///
    /// Example: [guide](crate::guide#configuration).
    pub fn from_env() -> Result<Self, ConfigError> {
        Ok(Sources::new().environment().load()?.config)
    }

    /// The same, without a transport of this name, whatever was said of it.
    ///
    /// Example: [guide](crate::guide#configuration).
    pub fn without(mut self, name: &str) -> Self {
        let name = known::real_name(name).to_owned();
        self.transports.entry(name).or_default().enable = false;
        self
    }

    /// Takes these rails, and what runs over rails only: transports inside a host stay out, unless the configuration
    /// says otherwise.
    ///
    /// Example: [guide](crate::guide#configuration).
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

    /// Has this policy choose the rails of all transports, whatever was said of smart scheduling.
    ///
    /// Example: [guide](crate::guide#configuration).
    pub fn use_policy(&mut self, policy: Policy) {
        self.policy = policy;
        for transport in self.transports.values_mut() {
            transport.documented.enable_smart_scheduling = true;
        }
    }

    /// The parameters of a transport.
    ///
    /// Example: [guide](crate::guide#configuration).
    pub fn transport(&self, name: &str) -> TransportConfig {
        self.said_of(name).cloned().unwrap_or_default()
    }

    /// Whether an address is a rail whenever it is there, without being named.
    pub(crate) fn finds_rail(&self, address: &IpAddr) -> bool {
        let mut within = self.rails_within.iter();
        within.any(|prefix| prefix.contains(address))
    }

    /// The parameters of a transport, if anything is said of it, under any of its names.
    pub(crate) fn said_of(&self, name: &str) -> Option<&TransportConfig> {
        let said = self.transports.get(name);
        said.or_else(|| self.transports.get(known::other_name(name)?))
    }

    /// How rails of a transport are chosen: by [`Self::policy`], or in turn without its smart scheduling.
    ///
    /// Example: [guide](crate::guide#configuration).
    pub fn policy_of(&self, name: &str) -> Policy {
        let is_smart = self.transport(name).documented.enable_smart_scheduling;
        match self.policy {
            Policy::Spray | Policy::Documented if !is_smart => Policy::RoundRobin,
            policy => policy,
        }
    }

    /// Checks what a program may have set itself, by the same rules as text.
    ///
    /// Example: [guide](crate::guide#configuration).
    pub fn check(&self) -> Result<(), ConfigError> {
        check::check(self)
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

    /// How many threads a large copy between processes of this host is cut over, where they have a processor each.
    pub(crate) fn copier_count(&self) -> usize {
        match self.workers {
            0 => self.worker_count().max(2),
            count => count,
        }
    }

    /// What a worker's core is to know.
    pub(crate) fn core(&self, worker: u16) -> CoreConfig {
        let HealthConfig {
            mode: _,
            progress_floor,
            open_timeout,
            heartbeat: _,
            peer_silence,
            fence_timeout,
            cancel_grace,
        } = self.health;
        let policy = PoliciesConfig {
            usual: self.core_transport(known::TCP),
            seed: worker.into(),
        };
        CoreConfig {
            failover_attempts_max: self.max_failover_attempts,
            progress_floor: core_duration(progress_floor),
            open_timeout: core_duration(open_timeout),
            peer_silence: core_duration(peer_silence),
            fence_timeout: core_duration(fence_timeout),
            cancel_grace: core_duration(cancel_grace),
            priority_promotion: core_duration(self.spray.priority_promotion),
            idle_look: core_duration(self.spray.idle_look),
            merge_requests: self.spray.merge_requests,
            signal_interval_works: self.send_queue.signal_interval_works,
            ..CoreConfig::new(worker, policy)
        }
    }

    /// What core is to know of transports by their numbers, which are their places among these names. None, if
    /// [`Self::core`] says it of all.
    pub(crate) fn core_transports(&self, names: &[&str]) -> Vec<CoreTransport> {
        let of_all = self.core_transport(known::TCP);
        let each = names.iter().map(|name| self.core_transport(name));
        let each: Vec<_> = each.collect();
        match each.iter().all(|own| *own == of_all) {
            true => Vec::new(),
            false => each,
        }
    }

    fn core_transport(&self, name: &str) -> CoreTransport {
        let said = self.transport(name);
        CoreTransport {
            policy: self.policy_of(name),
            health: match self.health.mode {
                HealthMode::Decay => CoreHealthMode::Decay,
                HealthMode::Reset => CoreHealthMode::Reset(ResetConfig {
                    rail_error_threshold: u16::try_from(said.rail_error_threshold)
                        .unwrap_or(u16::MAX),
                    rail_error_window: core_duration(said.rail_error_window),
                    rail_cooldown: core_duration(said.rail_cooldown),
                }),
            },
            documented: said.documented,
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

    /// Whether it may listen beyond loopback: somebody has said so, or nobody but members can do anything there.
    pub(crate) fn may_be_reached(&self) -> bool {
        self.insecure || self.security.payload == Payload::Encrypt
    }

    /// Whether a device's own speed counts: nobody has said what rails carry.
    pub(crate) fn asks_devices(&self) -> bool {
        self.spray.nominal_bandwidth_gbps == SprayConfig::default().nominal_bandwidth_gbps
    }

    /// How often a peer is asked for a sign of life with which nothing is in flight: half as often as others, if one of them
    /// may be lost and asked for again before the peer counts as silent.
    pub(crate) fn idle_heartbeat(&self) -> Duration {
        let often = self.health.heartbeat;
        let in_time = self.health.peer_silence.saturating_sub(often / 4);
        (often * 2).min(in_time)
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
            rails_within: Vec::new(),
            rail_map: RailMap::default(),
            policy: Policy::default(),
            slice_bytes: SLICE_BYTES,
            workers: 0,
            at_once_bytes: 1 << 20,
            check_overlap: false,
            insecure: false,
            metrics: None,
            log_level: None,
            max_failover_attempts: 3,
            health: HealthConfig::default(),
            control: ControlConfig::default(),
            spray: SprayConfig::default(),
            send_queue: SendQueueConfig::default(),
            path: PathConfig::default(),
            staging: StagingConfig::default(),
            recording: RecordingConfig::default(),
            limits: LimitsConfig::default(),
            verbs: VerbsConfig::default(),
            security: SecurityConfig::default(),
            transports: BTreeMap::new(),
        }
    }
}
