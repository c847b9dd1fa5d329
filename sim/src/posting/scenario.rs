//! Scenario files of posting: queue pairs, who posts to them, what goes wrong, and settings that are compared.
//!
//! TOML, told from other scenarios by its `[[queue_pair]]`. Tables and keys that are not listed here are errors.

use std::collections::BTreeMap;

use polyrail_core::send_queue::SendQueueConfig;
use polyrail_core::send_queue::split::SplitPolicy;
use polyrail_core::time::Duration;
use serde::Deserialize;
use toml::Spanned;

use crate::scenario::{JitterTable, WorkloadOp};

/// One scenario, as its file says it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    /// Its name, in output.
    pub(super) name: String,
    /// What it shows, in one line.
    #[serde(default)]
    pub(super) shows: String,
    /// The seed unless another is asked for.
    #[serde(default = "crate::scenario::one")]
    pub(super) seed: u64,
    /// When callers begin no more calls.
    pub(super) duration_ms: f64,
    #[serde(default)]
    pub(super) engine: Engine,
    #[serde(default)]
    pub(super) jitter: JitterTable,
    #[serde(default)]
    pub(super) trouble: Trouble,
    pub(super) queue_pair: Vec<QueuePair>,
    pub(super) burst: Vec<Spanned<Burst>>,
    #[serde(default)]
    pub(super) fault: Vec<Spanned<Fault>>,
    pub(super) setting: Vec<Spanned<Setting>>,
    /// What must come of it, by setting.
    #[serde(default)]
    pub(super) expect: BTreeMap<Spanned<String>, Expect>,
}

/// The threads of an engine, and how long things take.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Engine {
    /// Threads that post; queue pairs are dealt out to them.
    pub(crate) workers: Spanned<u16>,
    /// What a posted work costs its worker.
    pub(crate) post_ns: u64,
    /// From the doorbell to the answer of a post.
    pub(crate) answer_ns: u64,
    /// What a completion costs the thread that polls.
    pub(crate) completion_ns: u64,
    /// From a change to a waiter that runs again.
    pub(crate) wake_ns: u64,
    /// What handing a chunk over costs the caller.
    pub(crate) submit_ns: u64,
    /// From asking for it to a queue pair that can move nothing any more.
    pub(crate) fence_us: u64,
    /// Building a queue pair anew.
    pub(crate) open_us: u64,
    /// From the end of a device to the event that tells of it.
    pub(crate) notice_us: u64,
    /// Works that one post takes. 0: any number.
    pub(crate) post_works_max: u16,
    /// Entries of a work's scatter list.
    pub(crate) entries_max: u16,
    /// Bytes of the largest work.
    pub(crate) work_bytes_max: u32,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            workers: Spanned::new(0..0, 4),
            post_ns: 120,
            answer_ns: 200,
            completion_ns: 80,
            wake_ns: 2_000,
            submit_ns: 300,
            fence_us: 500,
            open_us: 200,
            notice_us: 1_000,
            post_works_max: 0,
            entries_max: 1,
            work_bytes_max: u32::MAX,
        }
    }
}

/// What goes wrong by chance: one in so many, 0 none.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Trouble {
    /// Works end in error, with a cause that is drawn.
    pub(crate) error_one_in: u32,
    /// Posts are taken in part.
    pub(crate) partial_one_in: u32,
    /// Posts are refused from some work on.
    pub(crate) rejected_one_in: u32,
    /// Posts of which the transport cannot say what became of them.
    pub(crate) unknown_one_in: u32,
    /// Completions come again, some time later.
    pub(crate) repeated_one_in: u32,
    /// Queue pairs that are built anew do not open.
    pub(crate) unopened_one_in: u32,
}

/// A queue pair, or several alike.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueuePair {
    /// Its name; with a `count` the numbers follow it.
    pub(super) name: String,
    #[serde(default)]
    pub(super) count: Option<Spanned<u16>>,
    /// How fast it works off what is posted.
    pub(super) rate_gbits_per_sec: Spanned<f64>,
    /// From the end of a work to its completion.
    #[serde(default)]
    pub(super) delay_us: f64,
    /// Works that may be posted and not completed.
    pub(super) depth: Spanned<u16>,
    /// Reads among them.
    #[serde(default = "many_reads")]
    pub(super) reads_max: u8,
}

fn many_reads() -> u8 {
    u8::MAX
}

/// Threads of a program that make one call after the other, all beginning at once.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Burst {
    /// So many.
    pub(crate) callers: u32,
    /// Requests of a call; with `batch_max` a number from here to there that is drawn.
    pub(crate) batch: u32,
    #[serde(default)]
    pub(crate) batch_max: u32,
    /// Bytes of a request.
    pub(crate) block: toml::Value,
    /// Which way.
    #[serde(default = "write")]
    pub(crate) op: WorkloadOp,
    /// Requests in a row that lie together on the peer, and so may become one work.
    #[serde(default = "one_request")]
    pub(crate) neighbours: u32,
    /// Calls of each caller.
    pub(crate) count: u64,
    /// When the first begins.
    #[serde(default)]
    pub(crate) start_ms: f64,
    /// From the end of a call to the next one.
    #[serde(default)]
    pub(crate) pause_us: u64,
}

fn write() -> WorkloadOp {
    WorkloadOp::Write
}

fn one_request() -> u32 {
    1
}

/// What happens at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultKind {
    /// A queue pair works at `factor` of its rate.
    Slow,
    /// A queue pair's work in progress fails, and those behind it are flushed.
    Fail,
    /// A queue pair says nothing any more; an event tells so later.
    Silent,
    /// A queue pair is closed for a while, as when its rail is paused.
    Degrade,
    /// Nobody polls for completions.
    PollerStalls,
    /// A worker shuts down, and starts again.
    WorkerStops,
}

/// Something that happens.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    /// When.
    pub(crate) at_ms: f64,
    /// What.
    pub(crate) kind: FaultKind,
    /// To which queue pair, or worker, counted from 0.
    #[serde(default)]
    pub(crate) target: usize,
    /// For how long; without it, to the end.
    #[serde(default)]
    pub(crate) for_ms: Option<f64>,
    /// For `slow`.
    #[serde(default = "full")]
    pub(crate) factor: f64,
}

fn full() -> f64 {
    1.0
}

/// How send queues are set up in one of the runs that are compared: core's defaults, but for what is said here.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Setting {
    pub(super) name: String,
    /// Starts from the profile `mori` instead.
    #[serde(default)]
    pub(super) mori: bool,
    pub(super) reserve_timeout_us: Option<u64>,
    pub(super) signal_interval_works: Option<u16>,
    pub(super) resume_watermark_works: Option<u16>,
    pub(super) admission: Option<bool>,
    pub(super) admission_timeout_us: Option<u64>,
    pub(super) admission_resume_watermark_works: Option<u16>,
    pub(super) admission_wait_slice_us: Option<u64>,
    pub(super) admission_chunk_works: Option<u16>,
    pub(super) admission_chunks_max: Option<u16>,
    pub(super) split_policy: Option<SplitPolicy>,
    pub(super) enable_experimental_capacity: Option<bool>,
}

impl Setting {
    /// As core takes it.
    pub(super) fn config(&self) -> SendQueueConfig {
        let base = match self.mori {
            true => SendQueueConfig::MORI,
            false => SendQueueConfig::DEFAULT,
        };
        let time = |us: Option<u64>, or| us.map_or(or, Duration::from_micros);
        SendQueueConfig {
            reserve_timeout: time(self.reserve_timeout_us, base.reserve_timeout),
            signal_interval_works: self
                .signal_interval_works
                .unwrap_or(base.signal_interval_works),
            resume_watermark_works: self
                .resume_watermark_works
                .unwrap_or(base.resume_watermark_works),
            admission: self.admission.unwrap_or(base.admission),
            admission_timeout: time(self.admission_timeout_us, base.admission_timeout),
            admission_resume_watermark_works: self
                .admission_resume_watermark_works
                .unwrap_or(base.admission_resume_watermark_works),
            admission_wait_slice: time(self.admission_wait_slice_us, base.admission_wait_slice),
            admission_chunk_works: self
                .admission_chunk_works
                .unwrap_or(base.admission_chunk_works),
            admission_chunks_max: self
                .admission_chunks_max
                .unwrap_or(base.admission_chunks_max),
            split_policy: self.split_policy.unwrap_or(base.split_policy),
            enable_experimental_capacity: self
                .enable_experimental_capacity
                .unwrap_or(base.enable_experimental_capacity),
        }
    }
}

/// Bounds on what comes of one setting. Violations are always expected to be none, and so are failed requests
/// and queue-full errors unless it says otherwise.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Expect {
    /// Least efficiency.
    pub(crate) efficiency_min: Option<f64>,
    /// Least and most queue-full errors.
    pub(crate) queue_full_errors: [u64; 2],
    /// Least and most requests that fail.
    pub(crate) failed_requests: [u64; 2],
    /// Least number of times that a caller waits for admission.
    pub(crate) admission_waits_min: u64,
    /// Least and most queue pairs that end.
    pub(crate) ended_queue_pairs: [u64; 2],
    /// Least throughput, as a multiple of another setting's.
    pub(crate) gbytes_per_sec_min_ratio_to: BTreeMap<String, f64>,
    /// Most spread of depths, as a multiple of another setting's.
    pub(crate) depth_spread_max_ratio_to: BTreeMap<String, f64>,
    /// Most completions, as a multiple of another setting's.
    pub(crate) completions_max_ratio_to: BTreeMap<String, f64>,
}
