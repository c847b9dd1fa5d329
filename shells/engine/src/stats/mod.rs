//! What an engine has done so far, in numbers, and what it holds.

mod load;
mod proof;
mod rails;
mod requests;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::*};

use polyrail_core::units::TransportId;
use serde::Serialize;

use crate::engine::RailStatus;
use crate::guests::SessionStatus;
use crate::transports::TransportStatus;

pub use proof::{FenceStats, UnsettledStats};
pub(crate) use proof::{Fences, Unsettled};
pub(crate) use rails::RailTimes;
pub(crate) use requests::{End, Over, Requests};
pub use requests::{Latencies, RequestStats};

pub use load::{Backlog, LaneStatus, Pressure, WorkerLoad};
pub(crate) use load::{all_seconds, seconds};

/// Transports that are told apart in the counters: more than an engine has.
const TRANSPORTS_MAX: usize = 16;

/// What an engine has done since it started. See [`crate::Engine::stats`]. Times are seconds where it is serialized.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Requests that went on with another transport, for each pair that occurred:
    /// `tent_transport_failover_total{from,to}`.
    pub failovers: Vec<FailoverCount>,
    /// Requests that have ended, by transport and direction.
    pub requests: Vec<RequestStats>,
    /// Requests that were reported as `Indeterminate`, and are so still.
    pub unsettled: UnsettledStats,
    /// Fences that peers were asked for.
    pub fences: FenceStats,
    /// Traffic of each local device, in the order in which they were first used.
    pub devices: Vec<DeviceTraffic>,
    /// Each worker's room and work, in their order.
    pub workers: Vec<WorkerLoad>,
    /// Each worker's lanes that are there or have carried something. Those of a worker that does not answer within 50 ms are
    /// missing.
    pub lanes: Vec<LaneStatus>,
    /// Lanes, and answers to this engine's own, that did not prove that they are of their session, where there is a
    /// cluster key: `docs/security.md`.
    pub lanes_denied: u64,
    /// Until when this engine's certificate (`security/certificate`) is valid, in seconds since 1970; `None`: it has none.
    pub certificate_ends: Option<u64>,
    /// All rails: see [`crate::Engine::rails`].
    pub rails: Vec<RailStatus>,
    /// How much is used of what there can only be so much of.
    pub limits: Vec<LimitUse>,
    /// Sessions that peers have with this engine, the oldest first.
    pub sessions: Vec<SessionStatus>,
    /// Its transports: see [`crate::Engine::transports`].
    pub transports: Vec<TransportStatus>,
    /// Slots for what is staged, of what comes in and of what goes out; none before something is.
    pub slots: Vec<SlotStats>,
    /// The agent that says how classes of rails are shared (`path/mode` `advanced`), if one was heard.
    pub hint: Option<HintStats>,
}

/// How slots of one direction stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SlotStats {
    /// `in` or `out`.
    pub direction: &'static str,
    /// Slots that a chunk has.
    pub used: u32,
    /// Slots that nobody has.
    pub free: u32,
    /// Slots that are not used again, because something may still touch them.
    pub quarantined: u32,
}

/// What is known of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HintStats {
    /// How often an agent has begun its record: another number is another agent, or the same started anew.
    pub generation: u64,
    /// How long ago it was last heard of.
    #[serde(serialize_with = "seconds")]
    pub age: std::time::Duration,
}

/// How much is used of what there can only be so much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LimitUse {
    /// Of what: `peers`, `rails`, `pairs`, `segments` (keys of section `limits`), or the process's `descriptors`.
    pub what: &'static str,
    /// How many there are.
    pub used: u64,
    /// How many there can be.
    pub most: u64,
}

impl LimitUse {
    pub(crate) fn new(what: &'static str, used: usize, most: usize) -> Self {
        Self {
            what,
            used: used as u64,
            most: most as u64,
        }
    }
}

impl Stats {
    /// All switches of transports.
    ///
    /// Example: [guide](crate::guide#looking-at-an-engine).
    pub fn failovers_total(&self) -> u64 {
        self.failovers.iter().map(|row| row.count).sum()
    }
}

/// Switches from one transport to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FailoverCount {
    /// The one that was left.
    pub from: &'static str,
    /// The one that was taken.
    pub to: &'static str,
    /// How often.
    pub count: u64,
}

/// Traffic of one local device over all its rails.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceTraffic {
    /// Its address; `*`: whichever the kernel chooses.
    pub device: String,
    /// Bytes acknowledged, both directions.
    pub bytes: u64,
    /// Its part of the bytes of all devices, 0 to 1.
    pub share: f64,
    /// Bytes in flight now.
    pub inflight_bytes: u64,
    /// How fast its rails are together, as learned, in bytes per second.
    pub bytes_per_sec: u64,
}

impl fmt::Display for Stats {
    /// One line for each device, worker, lane and session, then the counter of failovers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.devices {
            writeln!(
                f,
                "device {:<15} {:>5.1} %  {:>9.3} GB carried, {} bytes in flight, {:.3} GB/s learned",
                row.device,
                row.share * 100.0,
                row.bytes as f64 / 1e9,
                row.inflight_bytes,
                row.bytes_per_sec as f64 / 1e9,
            )?;
        }
        for worker in &self.workers {
            writeln!(f, "{worker}")?;
        }
        for lane in &self.lanes {
            writeln!(f, "{lane}")?;
        }
        for session in &self.sessions {
            writeln!(f, "{session}")?;
        }
        if self.failovers.is_empty() {
            return f.write_str("tent_transport_failover_total 0");
        }
        for (index, row) in self.failovers.iter().enumerate() {
            let FailoverCount { from, to, count } = row;
            let line_end = if index > 0 { "\n" } else { "" };
            write!(
                f,
                "{line_end}tent_transport_failover_total{{from=\"{from}\",to=\"{to}\"}} {count}"
            )?;
        }
        Ok(())
    }
}

/// Counts switches of transports, from all workers.
#[derive(Default)]
pub(crate) struct Failovers {
    counts: [[AtomicU64; TRANSPORTS_MAX]; TRANSPORTS_MAX],
}

impl Failovers {
    pub(crate) fn add(&self, from: TransportId, to: TransportId) {
        let row = self.counts.get(from.index());
        if let Some(count) = row.and_then(|row| row.get(to.index())) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Those that occurred.
    pub(crate) fn list(&self, name: impl Fn(TransportId) -> &'static str) -> Vec<FailoverCount> {
        let name = |index: usize| name(TransportId(index as u8));
        let rows = self.counts.iter().enumerate();
        rows.flat_map(|(from, row)| {
            row.iter()
                .enumerate()
                .map(move |(to, count)| (from, to, count))
        })
        .map(|(from, to, count)| (from, to, count.load(Relaxed)))
        .filter(|(_, _, count)| *count > 0)
        .map(|(from, to, count)| FailoverCount {
            from: name(from),
            to: name(to),
            count,
        })
        .collect()
    }
}
