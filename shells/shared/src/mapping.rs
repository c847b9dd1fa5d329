//! A file's pages as words that other processes use too.
//!
//! # Safety
//!
//! The pages are shared and writable, so all that is ever made of them is a slice of atomics, which other processes
//! may change at any time. They stay mapped as long as the [`Mapping`] lives, and the slice borrows from it. A file
//! that somebody makes shorter takes its pages away, and touching them ends the process by a signal; that is no
//! undefined behaviour, and whoever opens the file sees to it that only this user, or the administrator, can.

use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::AtomicU64;

use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Shared, writable pages of a file.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: what it gives out are atomics, which any thread may use; it is unmapped by its last owner.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `words` words of a file that has at least so many.
    pub(crate) fn new(file: BorrowedFd<'_>, words: usize) -> Result<Self> {
        let bytes = bytes(words)
            .filter(|bytes| *bytes > 0)
            .ok_or(Errno::INVAL)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, words })
    }
}

fn bytes(words: usize) -> Option<usize> {
    let bytes = words.checked_mul(size_of::<AtomicU64>())?;
    (bytes <= isize::MAX as usize).then_some(bytes)
}

impl Deref for Mapping {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `words` words from `base` on, which is aligned to a page, are mapped, readable and writable until
        // `drop`; any bits are valid, and everybody who maps the file treats them as atomics.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and the size are those of `new`; nobody borrows from it any more.
        let answer = unsafe { munmap(self.base.as_ptr().cast(), self.words * size_of::<u64>()) };
        debug_assert!(answer.is_ok(), "munmap: {answer:?}");
    }
}
