//! Memory to move, the same for everybody: anonymous, private, every page touched.

use std::io;

use crate::cell::BUFFER_BYTES;

/// [`BUFFER_BYTES`] of memory, page-aligned.
pub(crate) struct Buffer {
    base: *mut u8,
}

impl Buffer {
    /// Memory full of `fill`.
    pub(crate) fn new(fill: u8) -> io::Result<Self> {
        // SAFETY: a fresh private anonymous mapping; no address is asked for, no descriptor is used.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BUFFER_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base: *mut u8 = base.cast();
        // SAFETY: the whole range was just mapped for writing.
        unsafe { base.write_bytes(fill, BUFFER_BYTES) };
        Ok(Self { base })
    }

    /// Its first byte. Valid for [`BUFFER_BYTES`] while the buffer lives.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// A range of it, if it lies inside.
    pub(crate) fn range(&mut self, offset: usize, length: usize) -> Option<&mut [u8]> {
        let end = offset.checked_add(length)?;
        // SAFETY: the range lies in the mapping, which lives as long as `self`, and `self` is borrowed
        // exclusively; all bytes were written.
        (end <= BUFFER_BYTES)
            .then(|| unsafe { std::slice::from_raw_parts_mut(self.base.add(offset), length) })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody uses it any more.
        unsafe { libc::munmap(self.base.cast(), BUFFER_BYTES) };
    }
}
