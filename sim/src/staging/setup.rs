//! From a staging scenario's file to numbers.

use std::collections::BTreeMap;
use std::ops::Range;

use polyrail_core::stage::StagedConfig;
use polyrail_core::work::Op;

use super::scenario::{Expect, Fault, FaultKind, Scenario, Trouble, Where, Workload};
use crate::model::chance::Jitter;
use crate::scenario::{ScenarioError, WorkloadOp, size};
use crate::settings::{bytes_per_sec, expected, ns};

const THREADS_MAX: u32 = 256;
const SLOTS_MAX: u32 = 1024;

/// A staging scenario, checked, with times in nanoseconds.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its name.
    pub name: String,
    /// What it shows, in one line.
    pub shows: String,
    pub(crate) seed: u64,
    pub(super) ends_at: u64,
    pub(super) slot_bytes: u32,
    /// Bytes a second, and the delay, of copies and of the network.
    pub(super) copy: (u64, u64),
    pub(super) network: (u64, u64),
    pub(super) message_ns: u64,
    pub(super) jitter: Jitter,
    pub(super) trouble: Trouble,
    pub(super) threads: Vec<Thread>,
    pub(super) faults: Vec<Span>,
    /// When each host is stopped, in order.
    stops: [Vec<Range<u64>>; 2],
    pub(super) session_ns: u64,
    pub(super) settings: Vec<Setting>,
    pub(super) expect: BTreeMap<String, Expect>,
}

/// A thread of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thread {
    pub(super) host: usize,
    pub(super) op: Op,
    pub(super) block: u64,
    pub(super) count: u64,
    pub(super) local_gpu: bool,
    pub(super) remote_gpu: bool,
}

/// A fault, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) kind: FaultKind,
    pub(super) host: usize,
    pub(super) hop: Where,
    pub(super) factor: f64,
}

/// How one of the runs that are compared is set up.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) name: String,
    pub(super) slots: u32,
    pub(super) tickets: u32,
    pub(super) config: StagedConfig,
    pub(super) proof_ns: Option<u64>,
}

impl Setup {
    /// Reads a scenario's file; `seed` instead of its own.
    pub fn new(text: &str, seed: Option<u64>) -> Result<Self, ScenarioError> {
        let scenario: Scenario = crate::scenario::read(text)?;
        let wrong = |span: Range<usize>, message: &str| ScenarioError::at(text, span, message);
        let bytes = &scenario.slots.bytes;
        let slot_bytes = size(bytes.get_ref())
            .and_then(|bytes| u32::try_from(bytes).ok())
            .filter(|bytes| *bytes > 0)
            .ok_or_else(|| wrong(bytes.span(), "a size from 1 to 4 GiB, such as \"1MiB\""))?;
        let hops = &scenario.hops;
        let rate = |rate| bytes_per_sec(text, rate, 0.001..=100_000.0);
        let copy = rate(&hops.copy_gbits_per_sec)?;
        let network = rate(&hops.network_gbits_per_sec)?;
        let mut threads = Vec::new();
        for workload in &scenario.workload {
            let thread =
                thread(workload.get_ref()).map_err(|error| wrong(workload.span(), error))?;
            let count = workload.get_ref().threads.min(THREADS_MAX);
            threads.extend((0..count).map(|_| thread));
        }
        let mut faults = Vec::new();
        for fault in &scenario.fault {
            faults.push(span(fault.get_ref()).map_err(|error| wrong(fault.span(), error))?);
        }
        let stops = [0, 1].map(|host| stops(&faults, host));
        let stopped = stops.iter().flatten().map(|stop| stop.end - stop.start);
        let ends_at = ns(scenario.duration_ms) + stopped.sum::<u64>();
        let mut settings = Vec::new();
        for setting in &scenario.setting {
            let row = setting.get_ref();
            let tickets = row.tickets.unwrap_or(2 * row.slots);
            if !(1..=SLOTS_MAX).contains(&row.slots) || !(1..=2 * SLOTS_MAX).contains(&tickets) {
                return Err(wrong(
                    setting.span(),
                    "from 1 to 1024 slots, to 2048 tickets",
                ));
            }
            settings.push(Setting {
                name: row.name.clone(),
                slots: row.slots,
                tickets,
                config: StagedConfig {
                    stage_attempts_max: row.stage_attempts_max,
                    ..StagedConfig::DEFAULT
                },
                proof_ns: row.proof_us.map(|us| us.saturating_mul(1_000)),
            });
        }
        if threads.is_empty() {
            return Err(wrong(0..0, "at least one [[workload]]"));
        }
        let names: Vec<&str> = settings.iter().map(|row| row.name.as_str()).collect();
        let expect = expected(text, &names, scenario.expect)?;
        Ok(Self {
            name: scenario.name,
            shows: scenario.shows,
            seed: seed.unwrap_or(scenario.seed),
            ends_at,
            slot_bytes,
            copy: (copy, ns(hops.copy_delay_us / 1e3)),
            network: (network, ns(hops.network_delay_us / 1e3)),
            message_ns: ns(hops.message_us / 1e3),
            jitter: scenario.jitter.into(),
            trouble: scenario.trouble,
            threads,
            faults,
            stops,
            session_ns: ns(scenario.session_ms),
            settings,
            expect,
        })
    }

    /// The settings that are compared, in order; the first is what runs unless another is asked for.
    pub fn settings(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().map(|setting| setting.name.as_str())
    }

    /// The factor of a hop's rate at a time: of a host's copies, or of the network away from it.
    pub(super) fn factor(&self, at: u64, host: usize, hop: Where) -> f64 {
        let slow = self.fault(at, host, hop, FaultKind::Slow);
        slow.map_or(1.0, |fault| fault.factor)
    }

    /// When a host goes on that is stopped at a time.
    pub(super) fn stopped_until(&self, host: usize, at: u64) -> Option<u64> {
        let stop = self.stops[host].iter().find(|stop| stop.contains(&at));
        stop.map(|stop| stop.end)
    }

    /// For how long a host had been stopped by then.
    pub(super) fn stopped_ns(&self, host: usize, at: u64) -> u64 {
        let stops = self.stops[host].iter();
        stops
            .map(|stop| stop.end.min(at).saturating_sub(stop.start))
            .sum()
    }

    /// For how long hosts are stopped in all.
    pub(super) fn all_stopped_ns(&self) -> u64 {
        (0..2).map(|host| self.stopped_ns(host, u64::MAX)).sum()
    }

    /// When each stop of a host begins, and when it ends.
    pub(super) fn stops(&self, host: usize) -> impl Iterator<Item = &Range<u64>> {
        self.stops[host].iter()
    }

    /// The fault of this kind that a hop has at a time.
    pub(super) fn fault(&self, at: u64, host: usize, hop: Where, kind: FaultKind) -> Option<&Span> {
        self.faults.iter().find(|fault| {
            (fault.kind, fault.host, fault.hop) == (kind, host, hop)
                && (fault.from..fault.to).contains(&at)
        })
    }
}

fn thread(workload: &Workload) -> Result<Thread, &'static str> {
    let block = size(&workload.block).filter(|bytes| (1..=1 << 40).contains(bytes));
    if workload.from > 1 {
        return Err("the hosts are 0 and 1");
    }
    if !workload.local_gpu && !workload.remote_gpu {
        return Err("without a GPU on either side there is nothing to stage");
    }
    Ok(Thread {
        host: workload.from,
        op: match workload.op {
            WorkloadOp::Write => Op::Write,
            WorkloadOp::Read => Op::Read,
        },
        block: block.ok_or("block is a size from 1 to 1 TiB, such as \"16MiB\"")?,
        count: workload.count.unwrap_or(u64::MAX),
        local_gpu: workload.local_gpu,
        remote_gpu: workload.remote_gpu,
    })
}

/// When a host is stopped: spans that touch are one.
fn stops(faults: &[Span], host: usize) -> Vec<Range<u64>> {
    let mut spans: Vec<_> = faults
        .iter()
        .filter(|fault| (fault.kind, fault.host) == (FaultKind::Stop, host))
        .map(|fault| fault.from..fault.to)
        .collect();
    spans.sort_unstable_by_key(|span| span.start);
    let mut stops: Vec<Range<u64>> = Vec::new();
    for span in spans {
        match stops.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => stops.push(span),
        }
    }
    stops
}

fn span(fault: &Fault) -> Result<Span, &'static str> {
    if fault.host > 1 {
        return Err("the hosts are 0 and 1");
    }
    if !(1e-6..=1.0).contains(&fault.factor) {
        return Err("factor is above 0, at most 1");
    }
    Ok(Span {
        from: ns(fault.at_ms),
        to: ns(fault.at_ms + fault.for_ms),
        kind: fault.kind,
        host: fault.host,
        hop: fault.hop,
        factor: fault.factor,
    })
}
