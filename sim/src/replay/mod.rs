//! A flight recording through core once more: what it decides is the same, byte for byte, or where it is not.
//!
//! The tables are as large as those of the engine that recorded, the workers' cores share what its workers did,
//! and every call is made in the order in which it was made there. So what is true of the replay is true of the
//! engine: a fault that was recorded can be looked at, step by step, for as long as it takes.

mod flight;
mod story;
mod timeline;

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};

use polyrail_core::orchestrator::{Orchestrator, Post};
use polyrail_core::rail::Shared;
use polyrail_core::rail::policies::Policies;
use polyrail_core::time::Instant;
use polyrail_core::work::PostBatch;
use polyrail_record::{Answer, Entry, Reader, RecordingError, Step, answer_bytes};
use serde::Serialize;

use crate::model::{SharedMemory, WorkerMemory};

pub use flight::Flight;
pub use story::{Change, RailStory, Silence, Story};

/// What a replay came to.
#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    /// Whether core answered every call as it had.
    pub equal: bool,
    /// The first call that it answered otherwise. Nothing after it was looked at.
    pub difference: Option<Difference>,
    /// Whether the recording was closed. If not, it breaks off at [`Self::bytes`]: the process was killed,
    /// records still, or its disk did not follow.
    pub complete: bool,
    /// Bytes of the recording that were replayed.
    pub bytes: u64,
    /// What happened.
    #[serde(flatten)]
    pub story: Story,
}

/// A call that core answered otherwise than it had.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Difference {
    /// The number of the call; the first is 0.
    pub call: u64,
    /// Where it lies in the recording.
    pub offset: u64,
    /// When it was made, in nanoseconds since the engine's start: the last time that its worker told core.
    pub at_ns: u64,
    /// On which worker's core; `None`: on what they share.
    pub worker: Option<u16>,
    /// The call.
    pub what: String,
    /// What it gave when it was recorded.
    pub expected: String,
    /// What it gives now.
    pub got: String,
}

/// What is told of while a recording is replayed: a line of the timeline.
pub type Tell<'a> = &'a mut dyn FnMut(String);

/// Replays a recording. `tell` is given a line for whatever is worth one, and `flight` draws it.
pub fn replay<R: Read>(
    reader: &mut Reader<R>,
    tell: Option<Tell<'_>>,
    mut flight: Option<&mut Flight>,
) -> Result<Replay, RecordingError> {
    let header = reader.header().clone();
    let tables = header.capacities;
    let memory = SharedMemory::new(
        tables.rails as usize,
        tables.devices as usize,
        header.workers.len(),
    );
    let shared = memory.shared(header.slice_bytes);
    let mut memories: Vec<_> = header
        .workers
        .iter()
        .map(|_| WorkerMemory::exact(&tables))
        .collect();
    let cores: Vec<_> = memories
        .iter_mut()
        .zip(&header.workers)
        .map(|(own, config)| own.recorded_core(*config, &shared, &memory.given, &header.transports))
        .collect();
    let mut stage = Stage {
        shared: &shared,
        out: cores.iter().map(|_| None).collect(),
        cores,
        posts: PostBatch::default(),
        bytes: Vec::new(),
    };
    let mut story = Story::new(&header);
    let mut timeline = tell.map(timeline::Timeline::new);
    let (mut difference, mut complete, mut bytes) = (None, true, 0);
    loop {
        let entry = match reader.next_entry() {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(RecordingError::Truncated { offset } | RecordingError::Cut { offset }) => {
                (complete, bytes) = (false, offset);
                break;
            }
            Err(error) => return Err(error),
        };
        let at = story.note(&entry);
        if let Some(timeline) = &mut timeline {
            timeline.note(&entry, at, &story);
        }
        if let Some(flight) = &mut flight {
            flight.note(&entry, at, &story);
        }
        difference = stage.play(&entry, at);
        if difference.is_some() {
            bytes = entry.offset;
            break;
        }
    }
    story.finish(&shared);
    if complete && difference.is_none() {
        bytes = reader.offset();
    }
    Ok(Replay {
        equal: difference.is_none(),
        difference,
        complete,
        bytes,
        story,
    })
}

/// The cores, and what they share.
struct Stage<'a> {
    shared: &'a Shared<'a>,
    cores: Vec<Orchestrator<'a, Policies<'a>>>,
    posts: PostBatch,
    /// By worker: the post that is out.
    out: Vec<Option<Post>>,
    /// Of the last answer.
    bytes: Vec<u8>,
}

impl Stage<'_> {
    /// Makes a call and compares what it gives.
    fn play(&mut self, entry: &Entry<'_>, at: Instant) -> Option<Difference> {
        // Nothing of the cores is used after a panic.
        let played = catch_unwind(AssertUnwindSafe(|| self.apply(&entry.step)));
        let got = match played {
            Ok(answer) => {
                answer_bytes(&answer, &mut self.bytes);
                if self.bytes == entry.answer_bytes {
                    return None;
                }
                format!("{answer:?}")
            }
            Err(_) => "a panic".to_owned(),
        };
        let (worker, what) = match &entry.step {
            Step::Shared(install) => (None, format!("{install:?}")),
            Step::Worker(worker, call) => (Some(*worker), format!("{call:?}")),
        };
        Some(Difference {
            call: entry.number,
            offset: entry.offset,
            at_ns: at.as_nanos(),
            worker,
            what,
            expected: format!("{:?}", entry.answer),
            got,
        })
    }

    fn apply(&mut self, step: &Step<'_>) -> Answer<'static> {
        match step {
            Step::Shared(install) => install.apply(self.shared).into(),
            // The reader gives no worker that there is not.
            Step::Worker(worker, call) => {
                let worker = usize::from(*worker);
                match self.cores.get_mut(worker).zip(self.out.get_mut(worker)) {
                    Some((core, out)) => call.apply(core, &mut self.posts, out),
                    None => Answer::Nothing,
                }
            }
        }
    }
}
