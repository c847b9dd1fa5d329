//! A bounded number of chunks on their way at a time, each in a buffer of its own that is registered once: memory
//! stays the same however long a file is. A chunk comes into its buffer, is summed up, and goes out of it; files and
//! the network are both the engine's.

use std::sync::Arc;
use std::thread;

use polyrail::{Access, Batch, Engine, Op, Region, Request, SegmentId, Status, SubmitError};

use super::end::{End, Interrupted, LOOK, own, put_out, take_in};
use super::progress::Progress;
use crate::exit::Failure;
use crate::pattern::memory::{self, Span};
use crate::sample::Stall;

/// Bytes of a chunk.
pub(super) const CHUNK_BYTES: u64 = 4 << 20;
/// Chunks on their way at a time.
const CHUNKS: u64 = 16;
/// Of these, chunks on their way into their buffers.
const COMING: u64 = CHUNKS / 2;

/// What is to be copied, and between what.
pub(super) struct Pipeline<'a> {
    pub(super) engine: &'a Engine,
    pub(super) from: End<'a>,
    pub(super) to: End<'a>,
    /// How much at most: standard input may end before.
    pub(super) bytes: u64,
    /// Chunks that both sides have, to be summed up from the side where that costs less: `from`, if it is a file, else `to`.
    pub(super) there: Vec<bool>,
    /// `to` is zeros wherever nothing is written: chunks of zeros need not be.
    pub(super) skips_zeros: bool,
    pub(super) interrupted: &'a Interrupted,
}

/// How far it came.
#[derive(Clone, Copy, Default)]
pub(super) struct Done {
    /// The first so many bytes are there.
    pub(super) bytes: u64,
    /// Of them.
    pub(super) crc: u32,
}

/// The buffers.
struct Buffers {
    local: SegmentId,
    region: Arc<Region>,
}

/// A chunk's number and length.
#[derive(Clone, Copy, Default)]
struct Chunk {
    number: u64,
    bytes: u64,
}

/// A buffer, and the chunk that is in it.
#[derive(Default)]
struct Filled {
    chunk: Chunk,
    /// Of its bytes, once they are there.
    crc: u32,
    /// Its way into the buffer, and out of it, as far as those are the engine's.
    coming: Option<Batch>,
    going: Option<Batch>,
}

impl Pipeline<'_> {
    /// Copies everything; on failure, how far that came is left in `done`. The sum is of the bytes in their order.
    pub(super) fn run(&self, progress: &mut Progress, done: &mut Done) -> Result<(), Failure> {
        let count = self.bytes.div_ceil(CHUNK_BYTES);
        if count == 0 {
            return Ok(());
        }
        let buffers = self.buffers(count)?;
        self.run_in(&buffers, count, progress, done)?;
        // Of one that has failed something may be under way; the engine ends then.
        self.engine
            .unregister(buffers.local)
            .map_err(|error| Failure::Environment(format!("cannot give the buffers back: {error}")))
    }

    fn run_in(
        &self,
        buffers: &Buffers,
        count: u64,
        progress: &mut Progress,
        done: &mut Done,
    ) -> Result<(), Failure> {
        let mut filled: [Filled; CHUNKS as usize] = Default::default();
        // Standard input may end before.
        let mut last = count;
        let mut number = 0;
        while number < last + CHUNKS {
            if let Some(gone) = number.checked_sub(CHUNKS).filter(|gone| *gone < last) {
                let current = &mut filled[(gone % CHUNKS) as usize];
                debug_assert_eq!(current.chunk.number, gone);
                self.wait(&self.to, Op::Write, current.going.take())?;
                let bytes = current.chunk.bytes;
                done.crc = crc32c::crc32c_combine(done.crc, current.crc, bytes as usize);
                done.bytes += bytes;
                progress.add(bytes);
            }
            if number < last {
                let current = &mut filled[(number % CHUNKS) as usize];
                *current = self.begin(number, buffers)?;
                if current.chunk.bytes < CHUNK_BYTES {
                    last = number + u64::from(current.chunk.bytes > 0);
                }
            }
            if let Some(there) = number.checked_sub(COMING).filter(|there| *there < last) {
                let current = &mut filled[(there % CHUNKS) as usize];
                self.wait(self.origin(there), Op::Read, current.coming.take())?;
                let span = span(current.chunk);
                current.crc = memory::checksum(&buffers.region, span, 0).map_err(own)?;
                current.going = self.pass_on(current.chunk, current.crc, buffers)?;
            }
            number += 1;
        }
        Ok(())
    }

    /// Bytes that both sides had.
    pub(super) fn skipped(&self) -> u64 {
        let there = self.there.iter().zip(0..).filter(|(there, _)| **there);
        there
            .map(|(_, number)| (self.bytes - number * CHUNK_BYTES).min(CHUNK_BYTES))
            .sum()
    }

    /// Where a chunk comes from.
    fn origin(&self, number: u64) -> &End<'_> {
        match (self.is_there(number), &self.from) {
            (true, End::Segment(..)) => &self.to,
            _ => &self.from,
        }
    }

    fn is_there(&self, number: u64) -> bool {
        self.there.get(number as usize) == Some(&true)
    }

    /// Begins to fill a chunk's buffer.
    fn begin(&self, number: u64, buffers: &Buffers) -> Result<Filled, Failure> {
        let bytes = (self.bytes - number * CHUNK_BYTES).min(CHUNK_BYTES);
        let mut chunk = Chunk { number, bytes };
        let origin = self.origin(number);
        let coming = match origin.place() {
            Some(place) => Some(self.submit((Op::Read, origin, place), buffers, chunk)?),
            None => {
                chunk.bytes = take_in(&buffers.region, span(chunk), self.interrupted)?;
                None
            }
        };
        Ok(Filled {
            chunk,
            coming,
            ..Filled::default()
        })
    }

    /// Begins to empty it, if it has to go anywhere.
    fn pass_on(&self, chunk: Chunk, crc: u32, buffers: &Buffers) -> Result<Option<Batch>, Failure> {
        // The last chunk gives the file its length.
        let is_last = (chunk.number + 1) * CHUNK_BYTES >= self.bytes;
        let skips_zeros = self.skips_zeros && !is_last;
        let is_needless = self.is_there(chunk.number)
            || (skips_zeros && is_zeros(&buffers.region, span(chunk), crc)?);
        match self.to.place() {
            _ if is_needless => Ok(None),
            Some(place) => Ok(Some(self.submit(
                (Op::Write, &self.to, place),
                buffers,
                chunk,
            )?)),
            None => put_out(&buffers.region, span(chunk)).map(|()| None),
        }
    }

    fn buffers(&self, count: u64) -> Result<Buffers, Failure> {
        let bytes = count.min(CHUNKS) * CHUNK_BYTES;
        let failed = |e: &dyn std::fmt::Display| {
            Failure::Environment(format!("cannot allocate {bytes} bytes of buffers: {e}"))
        };
        let local = self.engine.allocate("buffers", bytes, Access::Local);
        let local = local.map_err(|e| failed(&e))?;
        let region = self.engine.region(local);
        Ok(Buffers {
            local,
            region: region.ok_or_else(|| failed(&"the engine does not know them"))?,
        })
    }

    /// Sends a chunk to or from an end, which begins at `place`.
    fn submit(
        &self,
        (op, end, place): (Op, &End<'_>, (SegmentId, u64)),
        buffers: &Buffers,
        chunk: Chunk,
    ) -> Result<Batch, Failure> {
        let span = span(chunk);
        let (remote, offset) = place;
        let request = Request {
            op,
            local: buffers.local,
            local_offset: span.offset,
            remote,
            remote_offset: offset + chunk.number * CHUNK_BYTES,
            length: span.bytes,
        };
        let mut stall = Stall::new(self.engine);
        loop {
            match self.engine.submit(&[request]) {
                Ok(batch) => return Ok(batch),
                Err(SubmitError::Full(_)) => self.look_around(end, &mut stall)?,
                Err(SubmitError::Forbidden { .. }) => return Err(end.refused(op)),
                Err(SubmitError::PeerLost { .. }) => {
                    return Err(lost(end, &"it has ended, or another one answers there now"));
                }
                Err(e) => return Err(lost(end, &e)),
            }
            thread::yield_now();
        }
    }

    /// Waits for a chunk at an end.
    fn wait(&self, end: &End<'_>, op: Op, batch: Option<Batch>) -> Result<(), Failure> {
        let Some(batch) = batch else {
            return self.interrupted.check();
        };
        let mut stall = Stall::new(self.engine);
        let status = loop {
            match batch.wait(LOOK) {
                Ok(status) => break status,
                Err(_) => self.look_around(end, &mut stall)?,
            }
        };
        if status.status == Status::Completed {
            return self.interrupted.check();
        }
        let cause = batch.report(0).and_then(|report| report.cause);
        Err(end.failed(op, status.status, cause))
    }

    /// An error if waiting on has no point.
    fn look_around(&self, end: &End<'_>, stall: &mut Stall) -> Result<(), Failure> {
        self.interrupted.check()?;
        match stall.is_over(self.engine) {
            true => Err(lost(end, &Stall::TEXT)),
            false => Ok(()),
        }
    }
}

/// Where a chunk is in the buffers.
fn span(chunk: Chunk) -> Span {
    Span {
        offset: chunk.number % CHUNKS * CHUNK_BYTES,
        bytes: chunk.bytes,
    }
}

/// Whether a buffer, of this sum, has zeros only.
fn is_zeros(region: &Region, span: Span, crc: u32) -> Result<bool, Failure> {
    // The sum of the zeros that are there in nearly all cases is known, and looked at first.
    thread_local!(static OF_CHUNK: u32 = crc32c::crc32c(&vec![0; CHUNK_BYTES as usize]));
    if span.bytes != CHUNK_BYTES || crc != OF_CHUNK.with(|crc| *crc) {
        return Ok(false);
    }
    let mut bytes = vec![0; span.bytes as usize];
    memory::copy_out(region, span, &mut bytes).map_err(own)?;
    Ok(bytes.iter().all(|byte| *byte == 0))
}

fn lost(end: &End<'_>, why: &dyn std::fmt::Display) -> Failure {
    Failure::Environment(match end.target() {
        Some(target) => format!("target {target}: {why}"),
        None => format!("{end}: {why}"),
    })
}
