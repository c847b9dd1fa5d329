//! What `bench`, `demo` and `cp` ask the program that owns the target's memory: to poison, fill, check and sum
//! it up, and for its processor time.
//!
//! A call is a method number and a body in postcard's format. [`answer`] is the owner's side, [`ask`] the
//! asker's. Only the owner can say what is really in its memory, so verification does not ask the engine
//! under test to read the bytes back.

pub(crate) mod answer;
pub(crate) mod ask;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::pattern::memory::Span;

/// Bytes that one call may be about. More take several calls, so that none keeps its peer busy for long.
pub(crate) const CALL_BYTES_MAX: u64 = 16 << 20;

/// What can be asked. The numbers are part of the wire format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Method {
    /// Body [`Poison`], answer `()`.
    Poison = 1,
    /// Body [`Painted`], answer `()`.
    Fill = 2,
    /// Body [`Painted`], answer `Option<Mismatch>`.
    Check = 3,
    /// Body `()`, answer the seconds as `f64`.
    CpuTime = 4,
    /// Body [`Summed`], answer the CRC32C as `u32`.
    Checksum = 5,
    /// Body [`Listed`], answer the names and sizes of files, as `Vec<(String, u64)>`, in the order of their names; fewer than
    /// there are, if a call does not hold them. Empty: there are no more.
    List = 6,
}

/// The files whose names begin so, behind this one.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Listed {
    prefix: String,
    after: String,
}

/// Overwrite a span with one value.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Poison {
    span: Span,
    value: u8,
}

/// A span and the pattern that is, or is to be, in it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Painted {
    span: Span,
    seed: u64,
    sample: u64,
}

/// A span of any segment, and the CRC32C of what comes before it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Summed {
    segment: String,
    span: Span,
    crc: u32,
}

/// Processor time that this process has used, in seconds, all threads together.
pub(crate) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
