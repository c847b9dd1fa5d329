//! What a recording starts with: everything that core was given before its first call.

use std::ops::RangeInclusive;

use polyrail_core::orchestrator::Config;
use polyrail_core::rail::policies::{PoliciesConfig, TransportConfig};
use serde::{Deserialize, Serialize};

/// Workers that one engine can have, as far as a recording is concerned.
pub const WORKERS_MAX: usize = 64;
/// Rows of one table.
const TABLE_MAX: u32 = 1 << 16;
/// Rows of all tables of all workers: what reading a header may make a reader allocate.
const ROWS_MAX: u64 = 1 << 22;
/// Bytes of the engine's name and of the program's version.
const NAME_BYTES_MAX: usize = 255;
/// Transports that one engine can have, as far as a recording is concerned.
const TRANSPORTS_MAX: u64 = 256;

/// The start of a recording.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Header {
    /// Which version of polyrail recorded it. Another one may decide otherwise.
    pub version: String,
    /// The engine's name.
    pub engine: String,
    /// When it was started, in milliseconds since 1970; instants count from about then.
    pub started_ms: u64,
    /// Calls before the first one that is here. 0: it begins with the engine. Else it begins with how everything stood then.
    pub before: u64,
    /// The usual slice, in bytes.
    pub slice_bytes: u32,
    /// How many rows the tables have.
    pub capacities: Capacities,
    /// What each worker's core was started with: its seed, its policy, its limits.
    pub workers: Vec<Config<PoliciesConfig>>,
    /// What single transports have in place of that, by number.
    pub transports: Vec<TransportConfig>,
}

/// Rows of the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacities {
    /// Rails that all workers share, and lanes of each worker.
    pub rails: u32,
    /// Devices that all workers share.
    pub devices: u32,
    /// Peers of each worker.
    pub peers: u32,
    /// Plans of each worker.
    pub plans: u32,
    /// Requests of each worker.
    pub requests: u32,
    /// Attempts of each worker.
    pub attempts: u32,
    /// Batches of each worker.
    pub batches: u32,
}

/// Something in a header that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// What.
    pub what: &'static str,
    /// What it is.
    pub found: u64,
    /// The least it can be.
    pub least: u64,
    /// The most it can be.
    pub most: u64,
}

fn within(what: &'static str, found: u64, range: RangeInclusive<u64>) -> Result<(), OutOfRange> {
    if range.contains(&found) {
        return Ok(());
    }
    Err(OutOfRange {
        what,
        found,
        least: *range.start(),
        most: *range.end(),
    })
}

impl Header {
    /// Checks that tables of these sizes can be made, and that workers are numbered in order.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let names = [
            ("bytes of the version", &self.version),
            ("bytes of the engine's name", &self.engine),
        ];
        for (what, name) in names {
            within(what, name.len() as u64, 0..=NAME_BYTES_MAX as u64)?;
        }
        within("bytes of a slice", self.slice_bytes.into(), 1..=1 << 30)?;
        within("workers", self.workers.len() as u64, 1..=WORKERS_MAX as u64)?;
        for (number, config) in (0..).zip(&self.workers) {
            within("a worker's number", config.worker.into(), number..=number)?;
        }
        let workers = self.workers.iter();
        let of_workers = workers.map(|config| &config.policy.usual.documented);
        let of_transports = self.transports.iter().map(|own| &own.documented);
        for documented in of_workers.chain(of_transports) {
            let slices = documented.max_slice_count.into();
            within("slices of a request", slices, 1..=u16::MAX.into())?;
        }
        within(
            "transports",
            self.transports.len() as u64,
            0..=TRANSPORTS_MAX,
        )?;
        let mut rows = 0;
        for (what, count) in self.capacities.each() {
            within(what, count.into(), 1..=TABLE_MAX.into())?;
            rows += u64::from(count);
        }
        let rows = rows * self.workers.len() as u64;
        within("rows of all tables", rows, 1..=ROWS_MAX)
    }
}

impl Capacities {
    fn each(&self) -> [(&'static str, u32); 7] {
        [
            ("rails", self.rails),
            ("devices", self.devices),
            ("peers", self.peers),
            ("plans", self.plans),
            ("requests", self.requests),
            ("attempts", self.attempts),
            ("batches", self.batches),
        ]
    }
}
