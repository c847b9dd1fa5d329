//! Scenario files: what a fabric is, what happens to it, who moves what over it, and what is expected.
//!
//! TOML. Tables and keys that are not listed here are errors, with their line. Besides the tables that
//! `INTERFACES.md` fixes:
//!
//! - a name may end in `*` wherever devices are named: all devices of that host whose names start so;
//!   `[[device]] count = 8` makes `nic0` … `nic7` of `nic`; so does `[[host]] count`, and a `*` after a host
//!   that has a device, or sends or receives, means each of them;
//! - `[engine]`: workers of each engine, their cost per decision, how often they look (`poll_us`, 0: always),
//!   and by how much what they are told of rates and delays is wrong (`believed_…_factor`);
//! - `[jitter]`: what chance does to services and delays;
//! - `[timing]`: how long opening a lane, a control message, a fence and noticing an error take;
//! - `[trouble]`: what goes wrong by chance, until when; `[limits]`: those of core;
//! - `[room]`: what a submission has to take before its worker gets it; `[[setting]]`: ways to run the file that are compared,
//!   with bounds of their own in `[setting.expect]`;
//! - `[path]`: path isolation, `[[hint]]`: what agents say; then devices have an `address`, and rails a `class`;
//! - `[expect]`: bounds that the library's own test checks for policy `spray`.

mod isolation;
mod library;
mod parse;
mod queues;
mod set;
mod trouble;

pub(crate) use isolation::prefix;
pub use isolation::{Hint, IsolationMode, PathTable};
pub use library::{NAMES, text};
pub use parse::ScenarioError;
pub(crate) use parse::{read, size};
pub use queues::{Room, Setting, SettingExpect};
pub use set::{SetError, set};
pub use trouble::{Limits, Trouble};

use std::net::IpAddr;

use polyrail_core::work::Priority;
use serde::Deserialize;
use toml::Spanned;

use crate::model::chance::Jitter;

/// One scenario, as its file says it. Names are resolved by [`crate::setup`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name, in output.
    pub name: String,
    /// What it shows, in one line.
    #[serde(default)]
    pub shows: String,
    /// The seed unless another is asked for.
    #[serde(default = "one")]
    pub seed: u64,
    /// When submitters that have no end of their own stop.
    pub duration_ms: u64,
    /// How engines work.
    #[serde(default)]
    pub engine: Engine,
    /// What chance does.
    #[serde(default)]
    pub jitter: JitterTable,
    /// How long things take that are not transfers.
    #[serde(default)]
    pub timing: Timing,
    /// What goes wrong by chance.
    #[serde(default)]
    pub trouble: Trouble,
    /// Core's limits.
    #[serde(default)]
    pub limits: Limits,
    /// Room with each worker.
    #[serde(default)]
    pub room: Room,
    /// Ways to run it that are compared, in the place of policies.
    #[serde(default)]
    pub setting: Vec<Spanned<Setting>>,
    /// Path isolation; without it classes and addresses mean nothing.
    #[serde(default)]
    pub path: Option<PathTable>,
    /// What agents say.
    #[serde(default)]
    pub hint: Vec<Hint>,
    /// Machines.
    pub host: Vec<Host>,
    /// Their network interfaces.
    pub device: Vec<Device>,
    /// Which reach which.
    pub rail: Vec<Rail>,
    /// What devices share.
    #[serde(default)]
    pub bottleneck: Vec<Bottleneck>,
    /// What happens to the fabric.
    #[serde(default)]
    pub fault: Vec<Fault>,
    /// Who moves what.
    pub workload: Vec<Workload>,
    /// What must come of it under `spray`.
    #[serde(default)]
    pub expect: Expect,
}

pub(crate) fn one() -> u64 {
    1
}

/// How engines work.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Engine {
    /// Workers of each engine.
    pub workers: Spanned<u16>,
    /// What taking a request in costs its worker.
    pub request_ns: u64,
    /// What a posted work costs its worker.
    pub post_ns: u64,
    /// What telling a device of the works of a post costs besides; they leave together, then.
    pub doorbell_ns: u64,
    /// What a completion costs its worker.
    pub completion_ns: u64,
    /// For how long works may queue on a rail so that more of them share a completion, as `verbs/batch_us` says; 0: not for
    /// that.
    pub batch_us: u64,
    /// A worker looks for news at multiples of this; 0: as it comes.
    pub poll_us: u64,
    /// The nominal rate that engines are told, as a multiple of the true one.
    pub believed_rate_factor: f64,
    /// The base delay that engines are told, as a multiple of the true one.
    pub believed_delay_factor: f64,
    /// The nominal rate that engines are told of everything, in Gb/s, instead of the true ones; 0: the true ones.
    pub told_gbits_per_sec: f64,
    /// The base delay that engines are told of each rail, in microseconds, instead of the true ones; 0: the true ones.
    pub told_delay_us: f64,
    /// What waits for a device or a bottleneck when its lane is let go of does not wait any more, as devices and lossless
    /// fabrics have it; otherwise it passes still, and takes its time.
    pub drops_unsent: bool,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            workers: Spanned::new(0..0, 1),
            request_ns: 0,
            post_ns: 120,
            doorbell_ns: 0,
            completion_ns: 80,
            batch_us: 0,
            poll_us: 0,
            believed_rate_factor: 1.0,
            believed_delay_factor: 1.0,
            told_gbits_per_sec: 0.0,
            told_delay_us: 0.0,
            drops_unsent: false,
        }
    }
}

/// What chance does to services and delays.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JitterTable {
    /// Standard deviation of a service time, in percent.
    pub service_percent: u32,
    /// One slice in so many is an outlier; 0: none.
    pub outlier_one_in: u32,
    /// An outlier takes so many times as long.
    pub outlier_factor: u32,
    /// Mean of an exponential extra delay, in percent of the base delay.
    pub delay_percent: u32,
}

impl Default for JitterTable {
    fn default() -> Self {
        Self {
            service_percent: 10,
            outlier_one_in: 1_000,
            outlier_factor: 5,
            delay_percent: 0,
        }
    }
}

impl From<JitterTable> for Jitter {
    fn from(table: JitterTable) -> Self {
        Self {
            service_percent: table.service_percent.min(100),
            outlier_one_in: table.outlier_one_in,
            outlier_factor: table.outlier_factor.clamp(1, 1_000),
            delay_percent: table.delay_percent,
        }
    }
}

/// How long things take that are not transfers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timing {
    /// From asking for a lane to having it.
    pub open_us: u64,
    /// One control message, one way.
    pub control_us: u64,
    /// The peer's part of a fence.
    pub fence_us: u64,
    /// From a cut with errors to the first error.
    pub error_us: u64,
    /// Between heartbeats.
    pub heartbeat_ms: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            open_us: 50,
            control_us: 20,
            fence_us: 500,
            error_us: 100,
            heartbeat_ms: 500,
        }
    }
}

/// A machine, or several alike.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its name.
    pub name: Spanned<String>,
    /// How many NUMA nodes it has.
    #[serde(default = "one_node")]
    pub numa: u16,
    /// So many of them, numbered from 0.
    #[serde(default)]
    pub count: Option<Spanned<u16>>,
    /// Which islands it knows, if it is configured otherwise than `[path]` says.
    #[serde(default)]
    pub island_prefix_bits: Option<Spanned<u8>>,
}

fn one_node() -> u16 {
    1
}

/// A network interface, or several alike.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its host.
    pub host: Spanned<String>,
    /// Its name; with a `count` the numbers follow it.
    pub name: Spanned<String>,
    /// Its NUMA node.
    #[serde(default)]
    pub numa: Option<Spanned<u16>>,
    /// Its rate in each direction.
    pub rate_gbits_per_sec: Spanned<f64>,
    /// Its part of a rail's base delay, which is the sum of both ends'.
    #[serde(default)]
    pub delay_us: f64,
    /// Works that each of its lanes can hold.
    #[serde(default = "deep")]
    pub queue_depth: Spanned<u16>,
    /// The largest work that its lanes take, in bytes.
    #[serde(default = "unlimited")]
    pub work_bytes_max: u32,
    /// Reads among the works that each of its lanes can hold.
    #[serde(default)]
    pub reads_max: Option<Spanned<u16>>,
    /// A completion covers the works before it that asked for none, and these get none. Else each work gets one.
    #[serde(default)]
    pub covers: bool,
    /// Its address, which path isolation goes by; others of the table have those that follow.
    #[serde(default)]
    pub address: Option<Spanned<IpAddr>>,
    /// So many of them, numbered from 0.
    #[serde(default)]
    pub count: Option<Spanned<u16>>,
}

fn deep() -> Spanned<u16> {
    Spanned::new(0..0, 256)
}

fn unlimited() -> u32 {
    u32::MAX
}

/// Which device reaches which; with `*` on both sides the i-th the i-th.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rail {
    /// `host/device`.
    pub from: Spanned<String>,
    /// `host/device`.
    pub to: Spanned<String>,
    /// With `*`: every one with every one.
    #[serde(default)]
    pub all: bool,
    /// Rails of one rank are one transport; a request uses the best one, 0, that has a usable rail.
    #[serde(default)]
    pub rank: u8,
    /// For path isolation: 0 the primary class, all others supplementary.
    #[serde(default)]
    pub class: u8,
    /// A bottleneck that it passes, and other rails of its devices need not: the path that a queue pair's packets take.
    #[serde(default)]
    pub over: Option<Spanned<String>>,
    /// It stands in for the rail of the same rank and class that leads from the same device to the same host.
    #[serde(default)]
    pub spare: bool,
}

/// A limit that devices share, or rails that are `over` it, in each direction.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bottleneck {
    /// Its name.
    pub name: Spanned<String>,
    /// Its rate in each direction.
    pub rate_gbits_per_sec: Spanned<f64>,
    /// `host/device`, each.
    #[serde(default)]
    pub members: Vec<Spanned<String>>,
}

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The target's rate is multiplied by `factor`.
    Slow,
    /// Nothing arrives and nobody says so. What was on its way arrives when the target is restored, unless
    /// it has been fenced.
    Silent,
    /// As `silent`, but the near side sees its works fail after `[timing] error_us`.
    Error,
    /// Someone else's traffic: for 2 to 6 ms at a time a share drawn anew leaves between `factor` and 0.6.
    Bursts,
    /// A host's workers stand still.
    Stall,
    /// Nothing that a host says or is told on the control plane arrives; its rails go on. Without `for_ms`, for good.
    Mute,
    /// A host's process is gone as a peer, its rails with it; another one comes in its place, which is known
    /// with proof some time after.
    Restart,
    /// The same process ends its sessions and begins new ones.
    Reset,
    /// A host's process is gone as a peer for good, which is known with proof some time after. The rails that lead
    /// there fail.
    Death,
    /// A host's agent is killed. Another one is started when the fault ends, and says what is to be said then.
    AgentCrash,
}

/// Something that happens to the fabric.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// When it starts.
    pub at_ms: f64,
    /// What.
    pub kind: Spanned<FaultKind>,
    /// `host/device` (all its rails), `host/device>host/device` (one rail; not slowed), a bottleneck
    /// (slowed only), or a host (from `stall` on; an agent's is the one that it runs on).
    pub target: Spanned<String>,
    /// For how long; without it, to the end.
    #[serde(default)]
    pub for_ms: Option<f64>,
    /// For `slow` and `bursts`.
    #[serde(default)]
    pub factor: Option<Spanned<f64>>,
    /// Starts again every so often,
    #[serde(default)]
    pub every_ms: Option<f64>,
    /// and so many times in all.
    #[serde(default)]
    pub times: Option<Spanned<u32>>,
}

/// Which way bytes go, seen from `from`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadOp {
    /// Towards `to`.
    Write,
    /// From `to`.
    Read,
}

/// Submitters that each have one batch outstanding and submit the next when it is done.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// The host that submits.
    pub from: Spanned<String>,
    /// Its peer.
    pub to: Spanned<String>,
    /// Which way.
    pub op: WorkloadOp,
    /// Bytes of a request: a number, or text like `64KiB`.
    pub block: Spanned<toml::Value>,
    /// Requests of a batch; `[1, 255]`: drawn for each.
    #[serde(default = "one_each")]
    pub batch: Spanned<BatchSize>,
    /// Submitters, in each process.
    #[serde(default = "one_request")]
    pub threads: Spanned<u32>,
    /// Batches of each submitter.
    #[serde(default)]
    pub count: Option<Spanned<u64>>,
    /// For how long each submitter submits.
    #[serde(default)]
    pub seconds: Option<Spanned<f64>>,
    /// When they start.
    #[serde(default)]
    pub start_ms: f64,
    /// `host/device>host/device`: only these rails; without it, all that lead there.
    #[serde(default)]
    pub rails: Vec<Spanned<String>>,
    /// NUMA node of the memory; without it all devices are near.
    #[serde(default)]
    pub numa: Option<u16>,
    /// The longest time between the end of a batch and the next one.
    #[serde(default)]
    pub pause_us: u64,
    /// Requests must end within this; 0: they may take for ever.
    #[serde(default)]
    pub deadline_us: u64,
    /// Who goes first: `high`, `normal`, `low`, or `mixed` by turns.
    #[serde(default)]
    pub priority: Urgency,
    /// One request in so many is cancelled after a time that is drawn; 0: none.
    #[serde(default)]
    pub cancel_one_in: u32,
    /// The blocks of a batch lie one behind the other, on both sides; else far apart.
    #[serde(default)]
    pub in_a_row: bool,
    /// Processes, each with an engine of its own over the same devices.
    #[serde(default = "one_process")]
    pub processes: Spanned<u16>,
}

/// The priority of a workload's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Urgency {
    /// All of them high.
    High,
    /// All of them normal.
    #[default]
    Normal,
    /// All of them low.
    Low,
    /// One after the other.
    Mixed,
}

impl Urgency {
    /// The priority of one request.
    pub(crate) fn of(self, number: u64) -> Priority {
        match (self, number % 3) {
            (Self::High, _) | (Self::Mixed, 0) => Priority::High,
            (Self::Normal, _) | (Self::Mixed, 1) => Priority::Normal,
            (Self::Low | Self::Mixed, _) => Priority::Low,
        }
    }
}

/// Requests of a batch: so many, or from the one to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    expecting = "a number of requests, or the least and the most, as [1, 255]"
)]
pub enum BatchSize {
    /// Each batch has so many.
    Exactly(u32),
    /// Drawn for each batch.
    Between([u32; 2]),
}

impl BatchSize {
    /// The least and the most.
    pub(crate) const fn bounds(self) -> (u32, u32) {
        match self {
            Self::Exactly(count) => (count, count),
            Self::Between([least, most]) => (least, most),
        }
    }
}

fn one_each() -> Spanned<BatchSize> {
    Spanned::new(0..0, BatchSize::Exactly(1))
}

fn one_request() -> Spanned<u32> {
    Spanned::new(0..0, 1)
}

fn one_process() -> Spanned<u16> {
    Spanned::new(0..0, 1)
}

/// Bounds on what comes of a scenario under `spray`. Violations are always expected to be none, and so are
/// failed requests unless it says otherwise.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// Least efficiency.
    pub efficiency_min: Option<f64>,
    /// Most the median may be.
    pub p50_us_max: Option<f64>,
    /// Most the 99th percentile may be, as a multiple of that without faults divided by the share of capacity
    /// that is left at worst.
    pub p99_us_max_ratio: Option<f64>,
    /// Most the 99th percentile may be, as a part of what another policy has here.
    pub p99_us_max_ratio_to: std::collections::BTreeMap<String, f64>,
    /// Least throughput, as a multiple of what another policy has here.
    pub gbytes_per_sec_min_ratio_to: std::collections::BTreeMap<String, f64>,
    /// Least and most requests that fail, where what happens leaves no way for them.
    pub failed_requests: [u64; 2],
    /// Longest dip.
    pub dip_ms_max: Option<u64>,
    /// Longest time from a rail's restoration to its first good probe.
    pub found_ms_max: Option<f64>,
    /// Longest time from then until the rail carries 0.8 of its former share.
    pub share_back_ms_max: Option<f64>,
    /// Least share of a rail: `{ "a/nic0>b/nic0" = 0.1 }`.
    pub share_min: std::collections::BTreeMap<String, f64>,
    /// Shares of rails while something lasts.
    pub share: Vec<ExpectShare>,
}

/// How much of the bytes that are acknowledged between two times certain rails are to carry.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectShare {
    /// What their names, as in output, have in them, each of these.
    pub rails: Vec<String>,
    /// Among those that have these in them; without it, among all.
    #[serde(default)]
    pub of: Vec<String>,
    /// From when.
    pub from_ms: u64,
    /// Until when.
    pub to_ms: u64,
    /// Their least share. With it, something has to be acknowledged at all.
    #[serde(default)]
    pub min: f64,
    /// Their largest.
    #[serde(default = "all")]
    pub max: f64,
}

fn all() -> f64 {
    1.0
}
