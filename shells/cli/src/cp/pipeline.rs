//! A bounded number of chunks on their way at a time, each in a buffer of its own that is registered once: memory
//! stays the same however long the file is. A chunk comes into its buffer, is summed up, and goes out of it; files and
//! the network are both the engine's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use polyrail::{
    Access, Batch, Cause, Engine, FileTerms, Op, Region, Request, SegmentId, Status, SubmitError,
};

use super::place::Segment;
use super::progress::Progress;
use super::sink::Sink;
use crate::exit::Failure;
use crate::pattern::memory::{self, Span};
use crate::sample::{Stall, verdict};
use crate::source::Source;

/// Bytes of a chunk.
const CHUNK_BYTES: u64 = 4 << 20;
/// Chunks on their way at a time.
const CHUNKS: u64 = 16;
/// Of these, chunks on their way into their buffers.
const COMING: u64 = CHUNKS / 2;
/// How often a wait looks around.
const LOOK: Duration = Duration::from_millis(100);

/// What is at this end.
pub(super) enum File<'a> {
    From(&'a Source),
    To(&'a Sink),
}

/// What is to be copied, and between what.
pub(super) struct Pipeline<'a> {
    pub(super) engine: &'a Engine,
    pub(super) file: File<'a>,
    pub(super) remote: SegmentId,
    /// First byte in it.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Where that is, for errors.
    pub(super) segment: &'a Segment,
    /// Set by a signal.
    pub(super) interrupted: &'a AtomicBool,
}

/// The buffers.
struct Buffers {
    local: SegmentId,
    region: Arc<Region>,
}

/// One of the two ways of a chunk: into its buffer, or out of it.
#[derive(Clone, Copy)]
struct Hop {
    op: Op,
    segment: SegmentId,
    /// First byte of the first chunk there.
    offset: u64,
}

/// What is on its way on one hop, by buffer.
type Batches = [Option<Batch>; CHUNKS as usize];

impl Pipeline<'_> {
    /// Copies everything. The answer is the CRC32C of the bytes, in the order of the file.
    pub(super) fn run(&self, progress: &mut Progress) -> Result<u32, Failure> {
        let count = self.bytes.div_ceil(CHUNK_BYTES);
        let Some(buffers) = self.buffers(count)? else {
            return Ok(0);
        };
        let [into, out_of] = self.hops()?;
        let (mut coming, mut going) = (Batches::default(), Batches::default());
        let mut crc = 0;
        for number in 0..count + CHUNKS {
            if let Some(gone) = number.checked_sub(CHUNKS) {
                self.wait(out_of, &mut going, gone)?;
                progress.add(self.length(gone));
            }
            if number < count {
                self.submit(into, &buffers, &mut coming, number)?;
            }
            let there = number.checked_sub(COMING);
            if let Some(there) = there.filter(|there| *there < count) {
                self.wait(into, &mut coming, there)?;
                let summed = memory::checksum(&buffers.region, self.span(there), crc);
                crc = summed.map_err(own)?;
                self.submit(out_of, &buffers, &mut going, there)?;
            }
        }
        Ok(crc)
    }

    /// The ways into the buffers and out of them.
    fn hops(&self) -> Result<[Hop; 2], Failure> {
        let hop = |op, segment, offset| Hop {
            op,
            segment,
            offset,
        };
        let file = self.register()?;
        Ok(match self.file {
            File::From(_) => [
                hop(Op::Read, file, 0),
                hop(Op::Write, self.remote, self.offset),
            ],
            File::To(_) => [
                hop(Op::Read, self.remote, self.offset),
                hop(Op::Write, file, 0),
            ],
        })
    }

    /// Makes the file a segment.
    fn register(&self) -> Result<SegmentId, Failure> {
        let (file, read_only) = match self.file {
            File::From(source) => (source.handle()?, true),
            File::To(sink) => (sink.handle()?, false),
        };
        let terms = FileTerms {
            bytes: Some(self.bytes),
            read_only,
            // What is copied from has often been written just before.
            cached: read_only,
            ..FileTerms::default()
        };
        let registered = self.engine.register_file(file, &terms);
        registered.map_err(|error| self.file_failed(&error))
    }

    fn file_failed(&self, why: &dyn std::fmt::Display) -> Failure {
        match self.file {
            File::From(source) => source.failed(why),
            File::To(sink) => sink.failed(why),
        }
    }

    /// `None`: there is nothing to copy.
    fn buffers(&self, count: u64) -> Result<Option<Buffers>, Failure> {
        let bytes = count.min(CHUNKS) * CHUNK_BYTES;
        if bytes == 0 {
            return Ok(None);
        }
        let failed = |e: &dyn std::fmt::Display| {
            Failure::Environment(format!("cannot allocate {bytes} bytes of buffers: {e}"))
        };
        let local = self.engine.allocate("buffers", bytes, Access::Local);
        let local = local.map_err(|e| failed(&e))?;
        let region = self.engine.region(local);
        Ok(Some(Buffers {
            local,
            region: region.ok_or_else(|| failed(&"the engine does not know them"))?,
        }))
    }

    /// The length of a chunk; the last one may be shorter.
    fn length(&self, number: u64) -> u64 {
        (self.bytes - number * CHUNK_BYTES).min(CHUNK_BYTES)
    }

    /// Where a chunk is in the buffers.
    fn span(&self, number: u64) -> Span {
        Span {
            offset: number % CHUNKS * CHUNK_BYTES,
            bytes: self.length(number),
        }
    }

    /// Sends a chunk on a hop.
    fn submit(
        &self,
        hop: Hop,
        buffers: &Buffers,
        batches: &mut Batches,
        number: u64,
    ) -> Result<(), Failure> {
        let span = self.span(number);
        let request = Request {
            op: hop.op,
            local: buffers.local,
            local_offset: span.offset,
            remote: hop.segment,
            remote_offset: hop.offset + number * CHUNK_BYTES,
            length: span.bytes,
        };
        let mut stall = Stall::new(self.engine);
        let batch = loop {
            match self.engine.submit(&[request]) {
                Ok(batch) => break batch,
                Err(SubmitError::Full(_)) => self.look_around(&mut stall)?,
                Err(SubmitError::Forbidden { .. }) => return Err(self.refused()),
                Err(SubmitError::PeerLost { .. }) => {
                    return Err(self.lost(&"it has ended, or another one answers there now"));
                }
                Err(e) => return Err(self.lost(&e)),
            }
            thread::yield_now();
        };
        batches[(number % CHUNKS) as usize] = Some(batch);
        Ok(())
    }

    /// Waits for a chunk on a hop.
    fn wait(&self, hop: Hop, batches: &mut Batches, number: u64) -> Result<(), Failure> {
        let Some(batch) = batches[(number % CHUNKS) as usize].take() else {
            return Ok(());
        };
        let mut stall = Stall::new(self.engine);
        let status = loop {
            match batch.wait(LOOK) {
                Ok(status) => break status,
                Err(_) => self.look_around(&mut stall)?,
            }
        };
        if status.status == Status::Completed {
            return self.check_interrupted();
        }
        let cause = batch.report(0).and_then(|report| report.cause);
        Err(match (hop.segment == self.remote, cause) {
            (false, Some(cause)) => self.file_failed(&cause),
            _ => self.far_failed(status.status, cause),
        })
    }

    /// An error if waiting on has no point.
    fn look_around(&self, stall: &mut Stall) -> Result<(), Failure> {
        self.check_interrupted()?;
        match stall.is_over(self.engine) {
            true => Err(self.lost(&Stall::TEXT)),
            false => Ok(()),
        }
    }

    fn check_interrupted(&self) -> Result<(), Failure> {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err(Failure::Environment("interrupted by a signal".to_owned())),
            false => Ok(()),
        }
    }

    fn refused(&self) -> Failure {
        let segment = self.segment;
        Failure::Usage(match self.file {
            File::From(_) => format!("{segment} may only be read: its owner refuses"),
            File::To(_) => format!("{segment} may not be read: its owner refuses"),
        })
    }

    fn far_failed(&self, status: Status, cause: Option<Cause>) -> Failure {
        let does = match self.file {
            File::From(_) => "write",
            File::To(_) => "read",
        };
        let why = match cause {
            Some(cause) => format!("{cause} ({})", status.name()),
            None => status.name().to_owned(),
        };
        verdict(
            format!("cannot {does} {}: {why}", self.segment),
            status,
            cause,
        )
    }

    fn lost(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::Environment(format!("target {}: {why}", self.segment.target))
    }
}

fn own(error: memory::MemoryError) -> Failure {
    Failure::Environment(format!("own buffers: {error}"))
}
