//! Memory of a device that does not exist: a file of memory, and a range of addresses that lead nowhere.
//!
//! # Safety
//!
//! The range is reserved without any access, so whoever follows its addresses is stopped by a signal. The file's bytes
//! are mapped elsewhere, for the driver alone, as long as [`Memory`] lives.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use polyrail_transport::mapping::Mapping;

/// Where CUDA's allocations begin, if they are not small.
const ALIGNED_TO: usize = 2 << 20;

pub(super) struct Memory {
    reserved: (*mut libc::c_void, usize),
    /// Within that.
    range: NonNull<u8>,
    bytes: u64,
    bytes_here: Mapping,
    file: OwnedFd,
}

// SAFETY: addresses that are only followed by the driver, under the module's contract.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// New memory.
    pub(super) fn new(bytes: u64) -> io::Result<Self> {
        let (_, file) = Mapping::in_file(bytes)?;
        Self::of(file, bytes)
    }

    /// That of another process.
    pub(super) fn of(file: OwnedFd, bytes: u64) -> io::Result<Self> {
        let bytes_here = Mapping::of_peer(file.as_fd(), bytes, true)?;
        let reserved = bytes as usize + ALIGNED_TO;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping; no address is asked for.
        let place = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                reserved,
                libc::PROT_NONE,
                flags,
                -1,
                0,
            )
        };
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let range = place.cast::<u8>();
        let range = range.wrapping_add(range.align_offset(ALIGNED_TO));
        Ok(Self {
            reserved: (place, reserved),
            range: NonNull::new(range).ok_or_else(|| io::Error::other("mmap gave address 0"))?,
            bytes,
            bytes_here,
            file,
        })
    }

    /// The first address, as the program knows it.
    pub(super) fn address(&self) -> u64 {
        self.range.as_ptr() as u64
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the byte at an offset, which lies inside, can be followed to.
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        self.bytes_here
            .base()
            .as_ptr()
            .wrapping_add(offset as usize)
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `of` reserved it, and nobody else unmaps it.
        let answer = unsafe { libc::munmap(self.reserved.0, self.reserved.1) };
        debug_assert_eq!(answer, 0, "munmap: {}", io::Error::last_os_error());
    }
}
