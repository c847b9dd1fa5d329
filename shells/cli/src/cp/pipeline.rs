//! A bounded number of chunks on their way at a time, each in a buffer of its own that is registered once: memory
//! stays the same however long the file is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use polyrail::{Access, Batch, Engine, Op, Region, Request, SegmentId, Status, SubmitError};

use super::progress::Progress;
use super::sink::Sink;
use crate::exit::Failure;
use crate::pattern::memory::{self, Span};
use crate::sample::{Stall, why_failed};
use crate::source::Source;

/// Bytes of a chunk.
const CHUNK_BYTES: u64 = 4 << 20;
/// Chunks on their way at a time.
const CHUNKS: usize = 16;
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
    /// `HOST:PORT`, for errors.
    pub(super) target: &'a str,
    /// Set by a signal.
    pub(super) interrupted: &'a AtomicBool,
}

/// The buffers.
struct Buffers {
    local: SegmentId,
    region: Arc<Region>,
    /// What goes through the processor: read or to be written, and summed up.
    chunk: Vec<u8>,
}

impl Pipeline<'_> {
    /// Copies everything. The answer is the CRC32C of the bytes, in the order of the file.
    pub(super) fn run(&self, progress: &mut Progress) -> Result<u32, Failure> {
        let count = self.bytes.div_ceil(CHUNK_BYTES);
        let Some(mut buffers) = self.buffers(count)? else {
            return Ok(0);
        };
        let mut crc = 0;
        let mut batches: [Option<Batch>; CHUNKS] = Default::default();
        let slots = CHUNKS as u64;
        for number in 0..count + slots {
            if let Some(done) = number.checked_sub(slots)
                && let Some(batch) = batches[(done % slots) as usize].take()
            {
                self.wait(&batch)?;
                if let File::To(sink) = self.file {
                    let bytes = self.take(&mut buffers, done)?;
                    crc = crc32c::crc32c_append(crc, bytes);
                    sink.write(done * CHUNK_BYTES, bytes)?;
                }
                progress.add(self.length(done));
            }
            if number < count {
                if let File::From(source) = self.file {
                    let bytes = self.put(&mut buffers, number, source)?;
                    crc = crc32c::crc32c_append(crc, bytes);
                }
                let batch = self.submit(&buffers, number)?;
                batches[(number % slots) as usize] = Some(batch);
            }
        }
        Ok(crc)
    }

    /// `None`: there is nothing to copy.
    fn buffers(&self, count: u64) -> Result<Option<Buffers>, Failure> {
        let bytes = count.min(CHUNKS as u64) * CHUNK_BYTES;
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
            chunk: vec![0; CHUNK_BYTES as usize],
        }))
    }

    /// The length of a chunk; the last one may be shorter.
    fn length(&self, number: u64) -> u64 {
        (self.bytes - number * CHUNK_BYTES).min(CHUNK_BYTES)
    }

    /// Where a chunk is in the buffers.
    fn span(&self, number: u64) -> Span {
        Span {
            offset: number % CHUNKS as u64 * CHUNK_BYTES,
            bytes: self.length(number),
        }
    }

    /// Reads a chunk of the file into its buffer.
    fn put<'b>(
        &self,
        buffers: &'b mut Buffers,
        number: u64,
        source: &Source,
    ) -> Result<&'b [u8], Failure> {
        let span = self.span(number);
        let chunk = &mut buffers.chunk[..span.bytes as usize];
        source.read(number * CHUNK_BYTES, chunk)?;
        memory::copy_in(&buffers.region, span, chunk).map_err(own)?;
        Ok(chunk)
    }

    /// A chunk that has come into its buffer.
    fn take<'b>(&self, buffers: &'b mut Buffers, number: u64) -> Result<&'b [u8], Failure> {
        let span = self.span(number);
        let chunk = &mut buffers.chunk[..span.bytes as usize];
        memory::copy_out(&buffers.region, span, chunk).map_err(own)?;
        Ok(chunk)
    }

    fn submit(&self, buffers: &Buffers, number: u64) -> Result<Batch, Failure> {
        let span = self.span(number);
        let request = Request {
            op: match self.file {
                File::From(_) => Op::Write,
                File::To(_) => Op::Read,
            },
            local: buffers.local,
            local_offset: span.offset,
            remote: self.remote,
            remote_offset: self.offset + number * CHUNK_BYTES,
            length: span.bytes,
        };
        let mut stall = Stall::new(self.engine);
        loop {
            match self.engine.submit(&[request]) {
                Ok(batch) => return Ok(batch),
                Err(SubmitError::Full) => self.look_around(&mut stall)?,
                Err(e @ SubmitError::Forbidden { .. }) => {
                    let target = self.target;
                    return Err(Failure::Usage(format!("target {target} refuses: {e}")));
                }
                Err(e) => return Err(self.lost(&e)),
            }
            thread::yield_now();
        }
    }

    fn wait(&self, batch: &Batch) -> Result<(), Failure> {
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
        Err(why_failed(self.target, 1, status.status, cause))
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

    fn lost(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::Environment(format!("target {}: {why}", self.target))
    }
}

fn own(error: memory::MemoryError) -> Failure {
    Failure::Environment(format!("own buffers: {error}"))
}
