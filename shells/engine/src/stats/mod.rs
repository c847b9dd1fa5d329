//! What an engine has done so far, in numbers, and what it holds.

mod load;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::*};

use polyrail_core::units::TransportId;

pub use load::{Backlog, LaneStatus, Pressure, WorkerLoad};

/// Transports that are told apart in the counters: more than an engine has.
const TRANSPORTS_MAX: usize = 16;

/// What an engine has done since it started. See [`crate::Engine::stats`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Requests that went on with another transport, for each pair that occurred:
    /// `tent_transport_failover_total{from,to}`.
    pub failovers: Vec<FailoverCount>,
    /// Traffic of each local device, in the order in which they were first used.
    pub devices: Vec<DeviceTraffic>,
    /// Each worker's room and work, in their order.
    pub workers: Vec<WorkerLoad>,
    /// Each worker's lanes that are there or have carried something. Those of a worker that does not answer within 50 ms are
    /// missing.
    pub lanes: Vec<LaneStatus>,
}

impl Stats {
    /// All switches of transports.
    pub fn failovers_total(&self) -> u64 {
        self.failovers.iter().map(|row| row.count).sum()
    }
}

/// Switches from one transport to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailoverCount {
    /// The one that was left.
    pub from: &'static str,
    /// The one that was taken.
    pub to: &'static str,
    /// How often.
    pub count: u64,
}

/// Traffic of one local device over all its rails.
#[derive(Clone, Debug, PartialEq)]
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
    /// One line for each device, worker and lane, then the counter of failovers.
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
