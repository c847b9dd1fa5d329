//! What is moved over a link with delay, and how long that took.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::{Duration, Instant};

use polyrail::Op;
use serde_json::{Value, json};

/// Blocks of a batch lie so far apart, so that nobody takes two for one.
pub(crate) const GAP_BYTES: u64 = 4096;

/// Memory that any load fits into.
pub(crate) const MEMORY_BYTES: u64 = 72 << 20;

/// Batches of blocks: one at a time, the next when all of its blocks are there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Load {
    pub(crate) is_read: bool,
    pub(crate) block: u32,
    pub(crate) batch: u32,
}

impl Load {
    pub(crate) fn op(self) -> Op {
        if self.is_read { Op::Read } else { Op::Write }
    }

    /// Of one batch.
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.block) * u64::from(self.batch)
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = if self.is_read { "read" } else { "write" };
        write!(f, "{op}-{}x{}", self.block, self.batch)
    }
}

impl FromStr for Load {
    type Err = String;

    /// Such as `write-65536x16`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("not such as write-65536x16: \"{text}\"");
        let (op, size) = text.split_once('-').ok_or_else(wrong)?;
        let (block, batch) = size.split_once('x').ok_or_else(wrong)?;
        let load = Self {
            is_read: op == "read",
            block: block.parse().map_err(|_| wrong())?,
            batch: batch.parse().map_err(|_| wrong())?,
        };
        let end = load.bytes() + GAP_BYTES * u64::from(load.batch);
        let known = load.is_read || op == "write";
        (known && load.bytes() > 0 && end <= MEMORY_BYTES)
            .then_some(load)
            .ok_or_else(wrong)
    }
}

/// How long a load runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Span {
    /// One batch, measured.
    Once,
    /// Half of this for nothing, then this measured; no batch is cut short, and two at least are measured.
    Time(Duration),
}

/// Runs batches. What is measured, as an initiator tells it: mean GB/s, and the middle and the longest batch in µs.
pub(crate) fn measure(
    load: Load,
    span: Span,
    mut once: impl FnMut() -> io::Result<()>,
) -> io::Result<Value> {
    let (time, least) = match span {
        Span::Once => (Duration::ZERO, 1),
        Span::Time(time) => {
            let start = Instant::now();
            while start.elapsed() < time / 2 {
                once()?;
            }
            (time, 2)
        }
    };
    let mut batches = Vec::new();
    let start = Instant::now();
    while batches.len() < least || start.elapsed() < time {
        let before = Instant::now();
        once()?;
        batches.push(before.elapsed().as_secs_f64() * 1e6);
    }
    let seconds = start.elapsed().as_secs_f64();
    let bytes = load.bytes() as f64 * batches.len() as f64;
    batches.sort_by(f64::total_cmp);
    Ok(json!({
        "gbytes_per_sec": bytes / seconds / 1e9,
        "p50_us": batches[batches.len() / 2],
        "max_us": batches[batches.len() - 1],
        "batches": batches.len(),
    }))
}
