//! How many bytes wait for a worker, so that who submits can choose another one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Submission;

/// What core says of that, and what was submitted since.
#[derive(Debug, Default)]
pub(crate) struct Backlog(AtomicU64);

impl Backlog {
    /// This is submitted. The worker's next round says whether it waits.
    pub(crate) fn add(&self, submissions: &[Submission]) {
        let bytes = submissions.iter().map(|one| one.length);
        let bytes = bytes.fold(0, u64::saturating_add);
        self.0.fetch_add(bytes, Relaxed);
    }

    /// What waits by core's count. What has been submitted meanwhile is left out until the next round.
    pub(crate) fn publish(&self, bytes: u64) {
        self.0.store(bytes, Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
