//! Something that is done once, and that all who ask for it find done.

use crate::sync::{AtomicBool, Condvar, Mutex, Ordering::*, PoisonError};

/// Whether it is done.
#[derive(Default)]
pub(crate) struct Once {
    begun: AtomicBool,
    over: Mutex<bool>,
    changed: Condvar,
}

impl Once {
    /// Whether somebody has begun with it.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Acquire)
    }

    /// Whether it is done.
    pub(crate) fn is_over(&self) -> bool {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does it, or waits until whoever came first has done it. The answer goes to the one who did.
    pub(crate) fn run<R>(&self, act: impl FnOnce() -> R) -> Option<R> {
        if self.begun.swap(true, AcqRel) {
            let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
            while !*over {
                let waited = self.changed.wait(over);
                over = waited.unwrap_or_else(PoisonError::into_inner);
            }
            return None;
        }
        // Also if it panics: nobody is to wait for ever.
        let over = Over(self);
        let answer = act();
        drop(over);
        Some(answer)
    }
}

/// Says so when it is dropped.
struct Over<'a>(&'a Once);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        *self.0.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}
