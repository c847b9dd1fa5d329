//! Batches that a worker has left behind.

use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex};

use crate::batch::Shared as BatchShared;
use crate::lock::lock;

/// Of one worker, once it has ended.
#[derive(Default)]
pub(super) struct Leftover {
    batches: Mutex<Vec<Left>>,
    is_closed: AtomicBool,
}

/// Which requests of a batch have begun.
pub(crate) enum Begun {
    /// All, as far as anybody knows.
    All,
    /// Those before this position.
    Before(usize),
}

impl Begun {
    pub(crate) fn has(&self, position: usize) -> bool {
        match self {
            Self::All => true,
            Self::Before(next) => position < *next,
        }
    }
}

/// A batch that was left.
pub(super) struct Left {
    pub(super) batch: Arc<BatchShared>,
    pub(super) begun: Begun,
}

impl Leftover {
    /// The worker has ended, and leaves these.
    pub(super) fn close(&self, left: impl Iterator<Item = Left>) {
        lock(&self.batches).extend(left);
        self.is_closed.store(true, Release);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Acquire)
    }

    /// All of them; nobody else gets them.
    pub(super) fn take(&self) -> Vec<Left> {
        std::mem::take(&mut *lock(&self.batches))
    }
}
