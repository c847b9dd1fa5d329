//! Copies between memories.
//!
//! # Safety
//!
//! Addresses of this process come from [`Entered`] regions or live mappings, with the lengths that were checked there.
//! Other processes may change the bytes meanwhile; they are only ever copied, never looked at.
//!
//! [`Entered`]: polyrail_transport::memory::Entered

use std::io;
use std::ops::Range;

use crate::crew::Task;

/// Bytes that are copied at a time. Of longer ranges C libraries keep the caches clear, which is slower here: either
/// side has just used the bytes, or is about to.
const COPY_BYTES: usize = 512 << 10;

/// A copy that can be made piece by piece, by several threads at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    from: Source,
    to: *mut u8,
}

/// Where bytes are.
#[derive(Clone, Copy, Debug)]
enum Source {
    Here(*const u8),
    /// At this address of another process.
    There(i32, u64),
}

// SAFETY: it only says where. Whoever has a piece copied promises that the memory is there.
unsafe impl Send for Transfer {}

impl Transfer {
    /// Within this process's address space.
    pub(crate) fn here(from: *const u8, to: *mut u8) -> Self {
        let from = Source::Here(from);
        Self { from, to }
    }

    /// From another process's memory.
    pub(crate) fn pull(pid: i32, from: u64, to: *mut u8) -> Self {
        let from = Source::There(pid, from);
        Self { from, to }
    }
}

impl Task for Transfer {
    /// Allowed while the bytes are mapped, those at the destination for writing.
    unsafe fn piece(&self, range: Range<u64>) -> io::Result<()> {
        let (start, length) = (range.start as usize, (range.end - range.start) as usize);
        // SAFETY: inside the destination, by the caller's promise.
        let to = unsafe { self.to.add(start) };
        match self.from {
            // SAFETY: the caller's promise, for both.
            Source::Here(from) => unsafe { copy(from.add(start), to, length) },
            Source::There(pid, from) => {
                let from = from.wrapping_add(range.start);
                // SAFETY: the caller's promise.
                unsafe { pull(pid, from, to, length) }?;
            }
        }
        Ok(())
    }
}

/// Copies within this process's address space. The ranges may overlap if they are no longer than [`COPY_BYTES`].
///
/// # Safety
///
/// Both ranges are mapped, `from` for reading and `to` for writing.
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    for done in (0..length).step_by(COPY_BYTES) {
        let bytes = COPY_BYTES.min(length - done);
        // SAFETY: still inside the caller's ranges.
        unsafe { std::ptr::copy(from.add(done), to.add(done), bytes) }
    }
}

/// Copies from another process's memory. Fewer bytes than asked for are an error. The address is the peer's word, whatever it
/// is: the kernel says what is not there.
///
/// # Safety
///
/// `to` is mapped for writing.
pub(crate) unsafe fn pull(pid: i32, from: u64, to: *mut u8, length: usize) -> io::Result<()> {
    let mut done = 0;
    while done < length {
        let local = libc::iovec {
            // SAFETY: still inside the caller's range.
            iov_base: unsafe { to.add(done) }.cast(),
            iov_len: length - done,
        };
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(from.wrapping_add(done as u64) as usize),
            iov_len: length - done,
        };
        // SAFETY: one range each; the kernel writes to `local` only, which the caller promises is mapped.
        let moved = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
        match moved {
            1.. => done += moved as usize,
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}
