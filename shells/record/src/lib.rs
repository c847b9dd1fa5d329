//! The flight recorder: what an engine's workers hand in to core, and what core answers, in a file.
//!
//! Core has no clock, no randomness of its own and no threads, so a recording of its calls is all it takes to
//! make it decide the same once more. [`Recorder`] keeps one sequence for a whole engine: its workers share rails
//! and what is learned of them, so the order of their calls matters, and a recorded engine makes them one at a
//! time. A [`Ring`] keeps the last calls in memory instead, and how everything stood before them. [`Recorded`] is a worker's
//! core with one of the two beside it, or without. [`Reader`] gives the calls back; `polyrail-sim` makes them again and
//! compares the answers.
//!
//! The types of core are written as they are, so a recording is read by the version of polyrail that made it.
#![forbid(unsafe_code)]

mod block;
mod call;
mod cut;
mod error;
mod header;
mod journal;
mod reader;
mod recorded;
mod recorder;
mod ring;
#[cfg(test)]
mod tests;

pub use call::{Answer, Call, Install, Posts, Step};
pub use cut::Cut;
pub use error::RecordingError;
pub use header::{Capacities, Header, OutOfRange, WORKERS_MAX};
pub use journal::Journal;
pub use reader::{Entry, Reader};
pub use recorded::Recorded;
pub use recorder::Recorder;
pub use ring::{RING_FILES_MAX, Ring};

/// The bytes of an answer as a recording has them.
pub fn answer_bytes(answer: &Answer<'_>, bytes: &mut Vec<u8>) {
    bytes.clear();
    block::append(bytes, answer);
}
