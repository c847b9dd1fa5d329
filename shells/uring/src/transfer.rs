//! A work on its way through the kernel, piece by piece.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use polyrail_core::time::{Duration, Instant};
use polyrail_core::work::{Cause, Op, Outcome};
use polyrail_transport::memory::Pinned;
use rustix::io::Errno;

use crate::file::{Piece, cause_of};
use crate::fixed::{Memory, OpenFile};
use crate::turns::{Side, Turn};

/// How long the kernel is left alone that has no memory or no thread to spare just now.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

/// A work on its way, with what keeps its memory and its file where they are.
pub(crate) struct Transfer {
    op: Op,
    file: Arc<OpenFile>,
    offset: u64,
    memory: Arc<Memory>,
    pinned: Pinned,
    length: u32,
    done: u32,
    /// The next one, or the one that the kernel is asked for.
    piece: Piece,
    /// A write's.
    turn: Option<Turn>,
    /// The kernel is asked for the next piece not before that.
    not_before: Instant,
}

impl Transfer {
    /// Of so many bytes of memory, to or from where `offset` is in the file. `None`: they do not lie inside, or the memory is
    /// no longer registered.
    pub(crate) fn new(
        (op, length): (Op, u32),
        (memory, local): (&Arc<Memory>, u64),
        (file, offset): (&Arc<OpenFile>, u64),
    ) -> Option<Self> {
        Some(Self {
            op,
            file: file.clone(),
            offset,
            memory: memory.clone(),
            pinned: memory.region.pin(local, length.into())?,
            length,
            done: 0,
            piece: Piece {
                side: Side::Cached,
                bytes: 0,
            },
            turn: None,
            not_before: Instant::ZERO,
        })
    }

    /// Whether the kernel may be asked for the next piece now. A write may have to wait for others of its file.
    pub(crate) fn begin(&mut self, now: Instant) -> bool {
        if now < self.not_before {
            return false;
        }
        let (offset, address) = self.next();
        let rest = self.length - self.done;
        self.piece = self
            .file
            .range
            .piece(self.op, offset, address as usize, rest);
        if self.op == Op::Read {
            return true;
        }
        let side = self.piece.side;
        let turn = self.turn.take().filter(|turn| turn.side() == side);
        let turn = turn.unwrap_or_else(|| self.file.range.turns().wait(side));
        self.turn.insert(turn).begin(now)
    }

    /// Where the next piece starts, in the range and in memory.
    fn next(&self) -> (u64, *mut u8) {
        let address = self.pinned.address().as_ptr();
        let address = address.wrapping_add(self.done as usize);
        (self.offset + u64::from(self.done), address)
    }

    /// What to ask the kernel for.
    pub(crate) fn call(&self) -> Call<'_> {
        let (offset, address) = self.next();
        let (fd, offset) = self.file.range.place(self.piece.side, offset);
        Call {
            op: self.op,
            fd: fd.as_raw_fd(),
            offset,
            address,
            bytes: self.piece.bytes,
            kept: PhantomData,
        }
    }

    /// Which way the piece goes.
    pub(crate) fn side(&self) -> Side {
        self.piece.side
    }

    pub(crate) fn file(&self) -> &Arc<OpenFile> {
        &self.file
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The kernel has answered. `None`: the rest is to be asked for.
    pub(crate) fn settle(&mut self, answer: Result<u32, Errno>, now: Instant) -> Option<Outcome> {
        self.turn = None;
        let cause = match answer {
            Ok(0) if self.op == Op::Read => Cause::EndOfFile,
            Ok(0) => Cause::MediaError,
            Ok(bytes) => {
                self.done += bytes.min(self.length - self.done);
                return (self.done == self.length).then_some(Outcome::Success);
            }
            // A thread that ends takes what it has asked for back, as far as that has not begun.
            Err(Errno::INTR | Errno::CANCELED) => return None,
            Err(Errno::AGAIN) => {
                self.not_before = now + PAUSE;
                return None;
            }
            Err(Errno::INVAL) if self.piece.side == Side::Direct => {
                self.file.range.refuse_direct();
                return None;
            }
            Err(error) => cause_of(error),
        };
        Some(Outcome::Error(cause))
    }
}

/// A system call that moves a piece. File and memory are there as long as the transfer.
pub(crate) struct Call<'a> {
    pub(crate) op: Op,
    pub(crate) fd: RawFd,
    /// In the file.
    pub(crate) offset: u64,
    pub(crate) address: *mut u8,
    pub(crate) bytes: u32,
    kept: PhantomData<&'a Transfer>,
}

#[cfg(test)]
mod tests {
    use polyrail_transport::memory::{Access, Region};

    use super::*;
    use crate::file::FileRange;

    /// A kernel without memory was once asked again at once, and again.
    #[test]
    fn a_kernel_that_has_no_memory_is_left_alone_for_a_while() {
        let range = FileRange::of(tempfile::tempfile().unwrap(), 100);
        let file = Arc::new(OpenFile::new(Arc::new(range)));
        let region = Arc::new(Region::allocate(100, Access::Local).unwrap());
        let memory = Arc::new(Memory::new(region));
        let now = Instant::ZERO + Duration::from_secs(7);
        for (error, pause) in [
            (Errno::AGAIN, PAUSE),
            (Errno::INTR, Duration::ZERO),
            (Errno::CANCELED, Duration::ZERO),
        ] {
            for op in [Op::Read, Op::Write] {
                let mut transfer = Transfer::new((op, 100), (&memory, 0), (&file, 0)).unwrap();
                assert!(transfer.begin(now));
                assert_eq!(transfer.settle(Err(error), now), None, "{error}");
                let early = pause.minus(Duration::from_nanos(1));
                assert_eq!(
                    transfer.begin(now + early),
                    pause == Duration::ZERO,
                    "{error}"
                );
                assert!(transfer.begin(now + pause), "{error}");
            }
        }
    }

    /// A write that waits past the cache, of a file that turns out to refuse that, goes with those through the cache.
    #[test]
    fn a_write_has_the_turn_of_the_way_that_it_goes() {
        let file = || tempfile::tempfile().unwrap();
        let range = FileRange::of(file(), 1 << 20).with_direct(file(), 1);
        let range = Arc::new(range);
        let file = Arc::new(OpenFile::new(range.clone()));
        let region = Arc::new(Region::allocate(4096, Access::Local).unwrap());
        let memory = Arc::new(Memory::new(region));
        let now = Instant::ZERO;
        let mut cached = range.turns().wait(Side::Cached);
        assert!(cached.begin(now));
        let mut transfer = Transfer::new((Op::Write, 4096), (&memory, 0), (&file, 0)).unwrap();
        assert!(!transfer.begin(now));
        range.refuse_direct();
        assert!(transfer.begin(now), "both go through the cache");
        let mut direct = range.turns().wait(Side::Direct);
        drop(cached);
        assert!(!direct.begin(now));
        drop(transfer);
        assert!(direct.begin(now));
    }
}
