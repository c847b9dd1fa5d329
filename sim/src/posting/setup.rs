//! From a posting scenario's file to numbers.

use std::collections::BTreeMap;
use std::ops::Range;

use polyrail_core::send_queue::SendQueueConfig;
use polyrail_core::send_queue::dispatch::DISPATCH_LANES_MAX;

use super::scenario::{Burst, Engine, Expect, Fault, Scenario, Trouble};
use crate::model::chance::Jitter;
use crate::scenario::{ScenarioError, WorkloadOp, size};
use crate::settings::{bytes_per_sec, expected, ns};

/// Chunks that one worker's inbox holds.
pub(super) const INBOX_TASKS: usize = 1024;
const CALLERS_MAX: u32 = 256;
const BATCH_MAX: u32 = 1 << 16;

/// A posting scenario, checked, with times in nanoseconds.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its name.
    pub name: String,
    /// What it shows, in one line.
    pub shows: String,
    pub(crate) seed: u64,
    pub(super) ends_at: u64,
    pub(super) engine: Engine,
    pub(super) jitter: Jitter,
    pub(super) trouble: Trouble,
    pub(super) pairs: Vec<Pair>,
    pub(super) callers: Vec<Caller>,
    pub(super) faults: Vec<Fault>,
    pub(super) settings: Vec<(String, SendQueueConfig)>,
    pub(super) expect: BTreeMap<String, Expect>,
}

/// A queue pair.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) name: String,
    pub(super) bytes_per_sec: u64,
    pub(super) delay_ns: u64,
    pub(super) depth: u16,
    pub(super) reads_max: u8,
}

/// A thread of the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    /// Requests of a call, from the one to the other.
    pub(super) batch: (u32, u32),
    pub(super) block: u64,
    pub(super) reads: bool,
    pub(super) neighbours: u32,
    pub(super) calls: u64,
    pub(super) starts_at: u64,
    pub(super) pause_ns: u64,
}

impl Setup {
    /// Reads a scenario's file; `seed` instead of its own.
    pub fn new(text: &str, seed: Option<u64>) -> Result<Self, ScenarioError> {
        let scenario: Scenario = crate::scenario::read(text)?;
        let wrong = |span: Range<usize>, message: String| ScenarioError::at(text, span, message);
        let mut pairs = Vec::new();
        for table in &scenario.queue_pair {
            let rate = bytes_per_sec(text, &table.rate_gbits_per_sec, 0.001..=10_000.0)?;
            if *table.depth.get_ref() == 0 {
                return Err(wrong(table.depth.span(), "at least 1".to_owned()));
            }
            let count = table.count.as_ref().map(|count| *count.get_ref());
            for number in 0..count.unwrap_or(1) {
                pairs.push(Pair {
                    name: match count {
                        Some(_) => format!("{}{number}", table.name),
                        None => table.name.clone(),
                    },
                    bytes_per_sec: rate,
                    delay_ns: (table.delay_us.clamp(0.0, 1e6) * 1e3) as u64,
                    depth: *table.depth.get_ref(),
                    reads_max: table.reads_max.max(1),
                });
            }
        }
        if pairs.is_empty() || pairs.len() > DISPATCH_LANES_MAX {
            let message = format!("{} queue pairs, of 1 to {DISPATCH_LANES_MAX}", pairs.len());
            return Err(wrong(0..0, message));
        }
        let workers = &scenario.engine.workers;
        if !(1..=64).contains(workers.get_ref()) {
            return Err(wrong(workers.span(), "from 1 to 64".to_owned()));
        }
        let mut callers = Vec::new();
        for burst in &scenario.burst {
            let caller = caller(burst.get_ref()).map_err(|error| wrong(burst.span(), error))?;
            callers.extend((0..burst.get_ref().callers).map(|_| caller));
        }
        let chunks = callers.len() * 2 * pairs.len();
        if callers.is_empty() || callers.len() > CALLERS_MAX as usize || chunks > INBOX_TASKS {
            let message = format!("{} callers over {} queue pairs", callers.len(), pairs.len());
            return Err(wrong(0..0, format!("{message} are none or too many")));
        }
        for fault in &scenario.fault {
            check_fault(
                fault.get_ref(),
                pairs.len(),
                usize::from(*workers.get_ref()),
            )
            .map_err(|error| wrong(fault.span(), error))?;
        }
        let mut settings = Vec::new();
        for setting in &scenario.setting {
            let config = setting.get_ref().config();
            config
                .check()
                .map_err(|error| wrong(setting.span(), error.to_string()))?;
            settings.push((setting.get_ref().name.clone(), config));
        }
        let names: Vec<&str> = settings.iter().map(|row| row.0.as_str()).collect();
        let expect = expected(text, &names, scenario.expect)?;
        Ok(Self {
            name: scenario.name,
            shows: scenario.shows,
            seed: seed.unwrap_or(scenario.seed),
            ends_at: ns(scenario.duration_ms),
            engine: scenario.engine,
            jitter: scenario.jitter.into(),
            trouble: scenario.trouble,
            pairs,
            callers,
            faults: scenario
                .fault
                .into_iter()
                .map(toml::Spanned::into_inner)
                .collect(),
            settings,
            expect,
        })
    }

    /// The settings that are compared, in order; the first is what runs unless another is asked for.
    pub fn settings(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().map(|(name, _)| name.as_str())
    }

    /// The names of its queue pairs, in order.
    pub(crate) fn pair_names(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|pair| pair.name.as_str())
    }

    /// Works that the deepest queue pair holds.
    pub(crate) fn depth_max(&self) -> u16 {
        self.pairs.iter().map(|pair| pair.depth).max().unwrap_or(0)
    }
}

fn caller(burst: &Burst) -> Result<Caller, String> {
    let block = size(&burst.block).filter(|bytes| (1..=1 << 32).contains(bytes));
    let batch = (burst.batch, burst.batch.max(burst.batch_max));
    if batch.0 == 0 || batch.1 > BATCH_MAX {
        return Err(format!("a call has 1 to {BATCH_MAX} requests"));
    }
    Ok(Caller {
        batch,
        block: block.ok_or("block is a size from 1 to 4 GiB, such as \"64KiB\"")?,
        reads: burst.op == WorkloadOp::Read,
        neighbours: burst.neighbours.max(1),
        calls: burst.count,
        starts_at: ns(burst.start_ms),
        pause_ns: burst.pause_us.saturating_mul(1_000),
    })
}

fn check_fault(fault: &Fault, pairs: usize, workers: usize) -> Result<(), String> {
    use super::scenario::FaultKind::*;
    let targets = match fault.kind {
        Slow | Fail | Silent | Degrade => pairs,
        WorkerStops => workers,
        PollerStalls => usize::MAX,
    };
    if fault.target >= targets {
        return Err(format!("there is no target {}", fault.target));
    }
    if !(1e-6..=1.0).contains(&fault.factor) {
        return Err("factor is above 0, at most 1".to_owned());
    }
    Ok(())
}
