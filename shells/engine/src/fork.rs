//! What belongs to one process only, and what becomes of it in the copy that `fork` makes.
//!
//! A forked child gets the engine's memory and descriptors, but none of its threads, and locks as they
//! happened to be. Whatever it did with them would hang, or take what belongs to its parent: wake-ups, bytes
//! of connections, goodbyes. So every handle knows the process that made it, looks before it takes a lock,
//! and is neither used nor dropped in any other.

use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

/// Tells a process from those it was forked from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process(u64);

/// The word that holds the name of this process: on a page that the kernel zeroes in a child. Null: none yet.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// Where [`WORD`] leads if the kernel has no such pages: processes then go by their number.
static NO_WORD: AtomicU64 = AtomicU64::new(0);
/// The last name given. A child goes on counting where its parent was.
static NAMES: AtomicU64 = AtomicU64::new(0);

impl Process {
    /// The process that asks. One load, except for the first time.
    pub(crate) fn this() -> Self {
        let word = word();
        if std::ptr::eq(word, &NO_WORD) {
            return Self(u64::from(std::process::id()));
        }
        Self(match word.load(Relaxed) {
            0 => name(word),
            name => name,
        })
    }

    /// Whether it is the process that asks.
    pub(crate) fn is_this(self) -> bool {
        self == Self::this()
    }
}

/// Gives the process a name that none of its ancestors had.
fn name(word: &AtomicU64) -> u64 {
    let name = NAMES.fetch_add(1, Relaxed) + 1;
    match word.compare_exchange(0, name, Relaxed, Relaxed) {
        Ok(_) => name,
        Err(other) => other,
    }
}

/// Without a lock, because a lock may be held for ever in a child.
fn word() -> &'static AtomicU64 {
    let known = WORD.load(Acquire);
    let word = match known.is_null() {
        true => match map_word() {
            Some(fresh) => WORD
                .compare_exchange(null_mut(), fresh, AcqRel, Acquire)
                // Another thread was first: its page is used, and ours, of 4 KiB, stays unused.
                .map_or_else(|other| other, |_| fresh),
            None => return &NO_WORD,
        },
        false => known,
    };
    // SAFETY: it is the start of a page that is mapped readable and writable, zeroed, and never unmapped.
    unsafe { &*word }
}

/// A page of zeros that is zeros again in every child.
fn map_word() -> Option<*mut AtomicU64> {
    const BYTES: usize = 4096;
    // SAFETY: a fresh private anonymous mapping; no address is asked for, no descriptor is used.
    let page = unsafe {
        libc::mmap(
            null_mut(),
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the range was mapped just now and nobody else knows it.
    let wiped = unsafe { libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) };
    if wiped != 0 {
        // SAFETY: as above.
        unsafe { libc::munmap(page, BYTES) };
        return None;
    }
    Some(page.cast())
}

/// A shared handle that only counts in the process that made it: in a forked child it is leaked, not dropped.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    value: Arc<T>,
    process: Process,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: Arc<T>) -> Self {
        let process = Process::this();
        Self { value, process }
    }

    /// Whether this process made it. Anything else about it is only to be used if so.
    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_this()
    }
}

impl<T> Clone for Owned<T> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            process: self.process,
        }
    }
}

impl<T> Deref for Owned<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        &self.value
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.is_ours() {
            // One more reference that nobody has: the last one is never dropped here.
            std::mem::forget(self.value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `look` in a forked child; whether it said yes. It must neither allocate nor take locks.
    fn in_a_child(look: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls nothing but `look`, which keeps to that, and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = if look() { 0 } else { 1 };
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(code) }
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: the child is ours, and nobody else waits for it.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(waited, child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    #[test]
    fn a_child_is_another_process_and_so_is_its_child() {
        let parent = Process::this();
        assert!(parent.is_this());
        assert!(in_a_child(|| {
            let child = Process::this();
            !parent.is_this()
                && child.is_this()
                && in_a_child(|| !parent.is_this() && !child.is_this())
        }));
        assert!(parent.is_this(), "the child changes nothing here");
    }

    #[test]
    fn the_last_handle_is_dropped_here_and_leaked_in_a_child() {
        struct Witness(Arc<AtomicU64>);
        impl Drop for Witness {
            fn drop(&mut self) {
                self.0.fetch_add(1, Relaxed);
            }
        }
        let drops = Arc::new(AtomicU64::new(0));
        let owned = Owned::new(Arc::new(Witness(drops.clone())));
        let spare = owned.clone();
        let mut inherited = Some((owned, spare));
        assert!(in_a_child(|| {
            inherited.take();
            drops.load(Relaxed) == 0
        }));
        inherited.take();
        assert_eq!(drops.load(Relaxed), 1);
    }
}
