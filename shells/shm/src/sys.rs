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
use std::os::fd::RawFd;

use crate::crew::Task;
use crate::mark::Marks;
use crate::wire::Cookie;

/// Bytes that are copied at a time. Of longer ranges C libraries keep the caches clear, which is slower here: either
/// side has just used the bytes, or is about to.
const COPY_BYTES: usize = 512 << 10;

/// A copy that can be made piece by piece, by several threads at once: from where, and to where.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transfer {
    /// Within this process's address space.
    Here(*const u8, *mut u8),
    /// From this address of a process, by its number.
    Pull(i32, Cookie, u64, *mut u8),
    /// To this address of a process, by its number and its marks.
    Push(*const u8, i32, Marks, u64),
    /// From this address of a process, by a descriptor of its memory.
    Read(RawFd, u64, *mut u8),
    /// To this address of a process, by a descriptor of its memory.
    Write(*const u8, RawFd, u64),
}

// SAFETY: it only says where. Whoever has a piece copied promises that the memory is there.
unsafe impl Send for Transfer {}

impl Task for Transfer {
    /// Allowed while the bytes of this process are mapped, those at the destination for writing, and the descriptor is open.
    unsafe fn piece(&self, range: Range<u64>) -> io::Result<()> {
        let (start, length) = (range.start as usize, (range.end - range.start) as usize);
        let far = |at: u64| at.wrapping_add(range.start);
        // SAFETY: the caller's promise, for all of them.
        unsafe {
            match *self {
                Self::Here(from, to) => {
                    copy(from.add(start), to.add(start), length);
                    Ok(())
                }
                Self::Pull(pid, cookie, from, to) => {
                    pull(pid, &cookie, far(from), to.add(start), length)
                }
                Self::Push(from, pid, marks, to) => {
                    push(from.add(start), pid, &marks, far(to), length)
                }
                Self::Read(file, from, to) => read(file, far(from), to.add(start), length),
                Self::Write(from, file, to) => write(from.add(start), file, far(to), length),
            }
        }
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

/// Bytes of a cookie.
const COOKIE_BYTES: usize = 16;

/// Copies from another process's memory, of which the cookie proves that it is the right one: both come in one call, which
/// finds the memory once. Fewer bytes than asked for are an error. The address is the peer's word, whatever it is: the kernel
/// says what is not there.
///
/// # Safety
///
/// `to` is mapped for writing.
unsafe fn pull(pid: i32, cookie: &Cookie, from: u64, to: *mut u8, length: usize) -> io::Result<()> {
    all(length, |done| {
        let mut content = [0_u8; COOKIE_BYTES];
        let left = length - done;
        // SAFETY: still inside the caller's range.
        let rest = unsafe { to.add(done) };
        let local = [range(content.as_mut_ptr(), COOKIE_BYTES), range(rest, left)];
        let remote = [
            far_range(cookie.address, COOKIE_BYTES),
            far_range(from.wrapping_add(done as u64), left),
        ];
        // SAFETY: the kernel writes to `local` only, of which the caller promises the second one.
        let moved =
            unsafe { libc::process_vm_readv(pid, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
        match moved >= 0 && content != cookie.content {
            true => 0,
            false => behind(moved, COOKIE_BYTES),
        }
    })
}

/// Copies into another process's memory, if it has both marks: they are written to first, by the same call, which finds the
/// memory once and goes no further than to the first place that is not there. For the rest see [`pull`].
///
/// # Safety
///
/// `from` is mapped.
unsafe fn push(from: *const u8, pid: i32, marks: &Marks, to: u64, length: usize) -> io::Result<()> {
    all(length, |done| {
        let mut nothing = [0_u8; 2];
        let left = length - done;
        // SAFETY: still inside the caller's range, of which it is read only.
        let rest = unsafe { from.add(done) }.cast_mut();
        let local = [
            range(nothing.as_mut_ptr(), nothing.len()),
            range(rest, left),
        ];
        let remote = [
            far_range(marks[0], 1),
            far_range(marks[1], 1),
            far_range(to.wrapping_add(done as u64), left),
        ];
        // SAFETY: the kernel only reads `local`, of which the caller promises the second one.
        let moved =
            unsafe { libc::process_vm_writev(pid, local.as_ptr(), 2, remote.as_ptr(), 3, 0) };
        behind(moved, nothing.len())
    })
}

/// What a call has moved behind the first so many bytes.
fn behind(moved: isize, first: usize) -> isize {
    match moved {
        0.. => (moved - first as isize).max(0),
        error => error,
    }
}

fn range(base: *mut u8, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: base.cast(),
        iov_len: bytes,
    }
}

fn far_range(address: u64, bytes: usize) -> libc::iovec {
    range(std::ptr::without_provenance_mut(address as usize), bytes)
}

/// Copies from memory that a descriptor of `/proc/PID/mem` holds, with what [`pull`] says of errors.
///
/// # Safety
///
/// `to` is mapped for writing, and the descriptor is open.
unsafe fn read(file: RawFd, from: u64, to: *mut u8, length: usize) -> io::Result<()> {
    all(length, |done| {
        let at = from.wrapping_add(done as u64) as libc::off_t;
        // SAFETY: still inside the caller's range.
        unsafe { libc::pread(file, to.add(done).cast(), length - done, at) }
    })
}

/// Copies into memory that a descriptor of `/proc/PID/mem` holds, with what [`pull`] says of errors.
///
/// # Safety
///
/// `from` is mapped, and the descriptor is open.
unsafe fn write(from: *const u8, file: RawFd, to: u64, length: usize) -> io::Result<()> {
    all(length, |done| {
        let at = to.wrapping_add(done as u64) as libc::off_t;
        // SAFETY: still inside the caller's range, of which it is read only.
        unsafe { libc::pwrite(file, from.add(done).cast(), length - done, at) }
    })
}

/// Calls the kernel until `length` bytes are moved.
fn all(length: usize, mut call: impl FnMut(usize) -> isize) -> io::Result<()> {
    let mut done = 0;
    while done < length {
        match call(done) {
            moved @ 1.. => done += moved as usize,
            // Of memory that is no more, or not the one that was meant: the process has ended, or executes another program.
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}
