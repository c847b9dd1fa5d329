//! Scenario files of staging: slots, hops, who moves what between two hosts, and what goes wrong.
//!
//! TOML, told from other scenarios by its `[slots]`. Both hosts, 0 and 1, are alike. Tables and keys that are not
//! listed here are errors.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use crate::scenario::{JitterTable, WorkloadOp};

/// One scenario, as its file says it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Its name, in output.
    pub(super) name: String,
    /// What it shows, in one line.
    #[serde(default)]
    pub(super) shows: String,
    /// The seed unless another is asked for.
    #[serde(default = "crate::scenario::one")]
    pub(super) seed: u64,
    /// When no more requests begin: so long after the start, and as long again as any host was stopped.
    pub(super) duration_ms: f64,
    /// For how long a host keeps its session with one that it does not hear: silence, and then as long as it may take
    /// to come back.
    #[serde(default = "usual_session_ms")]
    pub(super) session_ms: f64,
    pub(super) slots: Slots,
    pub(super) hops: Hops,
    #[serde(default)]
    pub(super) jitter: JitterTable,
    #[serde(default)]
    pub(super) trouble: Trouble,
    pub(super) workload: Vec<Spanned<Workload>>,
    #[serde(default)]
    pub(super) fault: Vec<Spanned<Fault>>,
    pub(super) setting: Vec<Spanned<Setting>>,
    /// What must come of it, by setting.
    #[serde(default)]
    pub(super) expect: BTreeMap<Spanned<String>, Expect>,
}

/// The slots of each host.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Slots {
    /// Of one slot.
    pub(super) bytes: Spanned<toml::Value>,
}

/// How fast hops are, in each direction, and how long they take besides.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hops {
    /// Between a GPU and slots of its host.
    pub(super) copy_gbits_per_sec: Spanned<f64>,
    #[serde(default)]
    pub(super) copy_delay_us: f64,
    /// Between slots of the two hosts.
    pub(super) network_gbits_per_sec: Spanned<f64>,
    #[serde(default)]
    pub(super) network_delay_us: f64,
    /// A control message, one way.
    #[serde(default)]
    pub(super) message_us: f64,
}

/// What goes wrong by chance: one in so many, 0 none.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Trouble {
    /// Hops fail, with proof.
    pub(crate) failed_one_in: u32,
    /// Hops fail without proof, and move their bytes all the same, later.
    pub(crate) unfenced_one_in: u32,
    /// Messages are lost.
    pub(crate) lost_one_in: u32,
    /// Messages come twice.
    pub(crate) repeated_one_in: u32,
    /// Messages take up to so much longer, and overtake each other.
    pub(crate) message_spread_us: u32,
    /// Requests are cancelled after a time that is drawn.
    pub(crate) cancelled_one_in: u32,
}

/// Threads that each have one request on its way and begin the next when it has ended.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workload {
    /// The host whose program it is.
    pub(crate) from: usize,
    /// Which way bytes go, seen from there.
    pub(crate) op: WorkloadOp,
    /// Bytes of a request.
    pub(crate) block: toml::Value,
    #[serde(default = "one_thread")]
    pub(crate) threads: u32,
    /// Requests of each thread.
    #[serde(default)]
    pub(crate) count: Option<u64>,
    /// Whether its own end is a GPU's memory, which needs a slot,
    #[serde(default = "yes")]
    pub(crate) local_gpu: bool,
    /// and the peer's.
    #[serde(default = "yes")]
    pub(crate) remote_gpu: bool,
}

fn one_thread() -> u32 {
    1
}

fn yes() -> bool {
    true
}

/// What happens at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultKind {
    /// The hop works at `factor` of its rate.
    Slow,
    /// What ends on the hop fails, with proof.
    Fail,
    /// What ends on the hop fails without proof.
    Unfenced,
    /// No message of the host arrives.
    Mute,
    /// The host's process is stopped, its clock too. If that takes longer than `session_ms`, the other one ends its
    /// session with it.
    Stop,
    /// The other host ends its session with this one, which hears of it up to `for_ms` later.
    Forget,
}

/// A hop, for faults.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Where {
    /// The network, in the direction away from the fault's host.
    #[default]
    Network,
    /// The copies of the fault's host.
    Copy,
}

/// Something that happens.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    /// When.
    pub(crate) at_ms: f64,
    /// For how long.
    pub(crate) for_ms: f64,
    /// What.
    pub(crate) kind: FaultKind,
    /// At which host.
    #[serde(default)]
    pub(crate) host: usize,
    /// On which hop.
    #[serde(default)]
    pub(crate) hop: Where,
    /// For `slow`.
    #[serde(default = "full")]
    pub(crate) factor: f64,
}

fn usual_session_ms() -> f64 {
    11_500.0
}

fn full() -> f64 {
    1.0
}

/// How staging is set up in one of the runs that are compared.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Setting {
    pub(super) name: String,
    /// Slots of each host, in each direction.
    pub(super) slots: u32,
    /// Chunks that each host may have on their way to the other; twice the slots if it is not said.
    pub(super) tickets: Option<u32>,
    /// Failures that one chunk survives, less one.
    #[serde(default = "three")]
    pub(super) stage_attempts_max: u8,
    /// From the last that moved without proof until there is proof that nothing moves any more. Without it there is
    /// none ever.
    #[serde(default)]
    pub(super) proof_us: Option<u64>,
}

fn three() -> u8 {
    3
}

/// Bounds on what comes of one setting. Violations are always expected to be none, and so are failed requests
/// unless it says otherwise.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Expect {
    /// Least and most efficiency.
    pub(crate) efficiency_min: Option<f64>,
    pub(crate) efficiency_max: Option<f64>,
    /// Least and most requests that fail.
    pub(crate) failed_requests: [u64; 2],
    /// Least number of hops that are done again.
    pub(crate) repeated_hops_min: u64,
    /// Least and most slots that are quarantined in the end.
    pub(crate) quarantined_slots: [u64; 2],
    /// Least number of requests that fail because no slot is left.
    pub(crate) staging_lost_min: u64,
}
