//! polyrail and files: a lane is a queue of reads and writes of one disk.
//!
//! A [`FileRange`] is the remote side of a request here: bytes of a file or block device of this host (an NVMe-oF
//! target is one), named by their offset. [`FileTransport`] moves them to and from registered memory, in one of two
//! ways: by [`Way::Uring`], or by [`Way::Pread`] where the system forbids io_uring. Nobody is at the other end, so
//! there is nothing to admit: whoever carries a work out is the kernel.
//!
//! **A completed write** is in the file: whoever reads the file sees it. It survives a loss of power only after
//! [`FileRange::sync`], or at once if the file was opened with `O_SYNC` or `O_DSYNC`.
//!
//! **Fences.** A work has ended when the kernel has said so (by its completion queue entry, or by the return of the
//! system call). Nothing is cancelled: a cancelled work may still write. So a fence waits for the works of its lane, and then
//! both of its facts hold.
//!
//! **Direct and cached.** Whole pages whose memory is aligned pass the page cache by (`O_DIRECT`); a read's other bytes,
//! and a write that has any, go through it. A file is never written in both ways at once (`turns` says why). Files that
//! cannot be opened so go through the cache altogether.
//!
//! The parts: `file` is a range and how it is cut, `turns` who may write it, `durable` who is told what a
//! disk has lost, `transfer` a work on its way, `endpoint` the lanes, `ring` and `threads`
//! the two ways, `fixed` what a ring has told the kernel of in advance, with all `unsafe` of the crate in `ring` and `sys`.

mod durable;
mod endpoint;
mod file;
mod fixed;
mod ring;
mod sys;
mod threads;
mod transfer;
mod turns;

use std::fmt;
use std::io;
use std::sync::Arc;

use polyrail_core::transport::{Capabilities, MemoryKind};
use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::clock::Clock;
use polyrail_transport::memory::RegionKey;
use polyrail_transport::{Endpoint, FenceAnswer, InboundLane, RetireAnswer, SessionId, Transport};

use crate::endpoint::FileEndpoint;
use crate::ring::Ring;
use crate::threads::Threads;

pub use file::{FileRange, FileTerms, RangeError};

/// Works that may be posted on a lane and not completed.
pub const WORKS_MAX: u16 = 64;

/// How long a disk may stand still before that is held against it. It does so for seconds while it writes back, and the
/// way around a disk leads to the same disk.
const PATIENCE_MS: u16 = 5_000;

/// Works of all lanes of a worker that may be so.
const TRANSFERS_MAX: usize = 256;

/// How long whoever ends a worker waits for what the kernel still does for it.
const END_MAX: std::time::Duration = std::time::Duration::from_secs(2);

/// Bytes of the largest work.
pub const WORK_BYTES_MAX: u32 = 16 << 20;

/// Where endpoints find what is behind a remote segment.
pub trait FileTable: Send + Sync {
    /// The range that has this key. `None` once it is no longer registered.
    fn find(&self, key: &RegionKey) -> Option<Arc<FileRange>>;
}

/// How the kernel is asked to read and write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// By io_uring.
    Uring,
    /// By `pread` and `pwrite`, on threads.
    Pread,
}

/// Reads and writes of files. It has only an initiator's half.
pub struct FileTransport {
    way: Way,
    files: Arc<dyn FileTable>,
}

impl FileTransport {
    /// One of the two, over these files.
    pub fn new(way: Way, files: Arc<dyn FileTable>) -> Self {
        Self { way, files }
    }
}

impl fmt::Debug for FileTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileTransport({:?})", self.way)
    }
}

impl Transport for FileTransport {
    fn name(&self) -> &'static str {
        match self.way {
            Way::Uring => "uring",
            Way::Pread => "pread",
        }
    }

    fn is_within_host(&self) -> bool {
        true
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
            .with_local(MemoryKind::Host)
            .with_remote(MemoryKind::File)
    }

    /// Fails if this machine does not allow it.
    fn endpoint(&self, worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
        let files = self.files.clone();
        Ok(match self.way {
            Way::Uring => Box::new(FileEndpoint::new(Ring::new()?, files, clock)),
            Way::Pread => Box::new(FileEndpoint::new(Threads::new(worker)?, files, clock)),
        })
    }

    /// No peer has lanes here.
    fn admit(&self, _lane: InboundLane) {}

    fn fence_inbound(&self, _: SessionId, _: LaneId, _: Epoch, answer: FenceAnswer) {
        answer(0);
    }

    fn retire_session(&self, _: SessionId, answer: RetireAnswer) {
        answer();
    }
}

#[cfg(test)]
mod tests;
