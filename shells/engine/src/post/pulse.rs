//! When a worker last looked for completions and found some: two stores a round, for people.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use polyrail_core::time::Instant;
use polyrail_transport::clock::Clock;

use crate::stats::WorkerLoad;

/// Beside the time of the last look: it sleeps since.
const ASLEEP: u64 = 1 << 63;

/// A worker's last signs.
#[derive(Debug)]
pub(crate) struct Pulse {
    worker: Option<u16>,
    clock: Clock,
    /// Nanoseconds; 0: never.
    looked_at: AtomicU64,
    completed_at: AtomicU64,
    completions: AtomicU64,
}

impl Pulse {
    /// Of a worker; `None`: of the thread that carries what is staged.
    pub(crate) fn new(worker: Option<u16>, clock: Clock) -> Self {
        Self {
            worker,
            clock,
            looked_at: AtomicU64::new(0),
            completed_at: AtomicU64::new(0),
            completions: AtomicU64::new(0),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// It looks for completions.
    pub(crate) fn looks(&self, now: Instant) {
        self.looked_at.store(now.as_nanos(), Relaxed);
    }

    /// So many have come.
    pub(crate) fn completed(&self, now: Instant, count: usize) {
        self.completed_at.store(now.as_nanos(), Relaxed);
        self.completions.fetch_add(count as u64, Relaxed);
    }

    /// It sleeps until it is woken.
    pub(crate) fn sleeps(&self) {
        self.looked_at.fetch_or(ASLEEP, Relaxed);
    }

    /// What it says of itself at `now`.
    pub(crate) fn load(&self, now: Instant) -> WorkerLoad {
        let ago = |nanos: u64| (nanos > 0).then(|| now.since(Instant::from_nanos(nanos)).into());
        let looked_at = self.looked_at.load(Relaxed);
        WorkerLoad {
            worker: self.worker,
            looked: ago(looked_at & !ASLEEP),
            sleeps: looked_at & ASLEEP != 0,
            completed: ago(self.completed_at.load(Relaxed)),
            completions: self.completions.load(Relaxed),
            ..WorkerLoad::default()
        }
    }
}
