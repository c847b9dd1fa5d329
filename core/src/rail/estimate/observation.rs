//! What the estimate learns from: completions.

use crate::time::Instant;

/// One completion, as the estimate sees it.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When the slice was posted.
    pub posted_at: Instant,
    /// When its completion was seen.
    pub seen_at: Instant,
    /// Bytes in flight on the rail before it.
    pub ahead_bytes: u64,
    /// Its length.
    pub bytes: u64,
}

/// Completions that were seen at the same instant, in their order: they are one observation, because only the
/// first of them has busy time.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    pub(super) first: Sample,
    pub(super) last: Sample,
    pub(super) bytes: u64,
    pub(super) count: u64,
}

impl Observation {
    /// Of one completion.
    pub fn new(sample: Sample) -> Self {
        Self {
            first: sample,
            last: sample,
            bytes: sample.bytes,
            count: 1,
        }
    }

    /// Of `count` completions seen at the same instant, of `bytes` in all, given the first and the last of them.
    pub(crate) fn of_several(first: Sample, last: Sample, bytes: u64, count: u64) -> Self {
        debug_assert!(
            count > 0 && first.seen_at == last.seen_at,
            "{count} completions"
        );
        debug_assert!(
            first.bytes.max(last.bytes) <= bytes,
            "{bytes} bytes in all, and one had {}",
            first.bytes.max(last.bytes)
        );
        Self {
            first,
            last,
            bytes,
            count,
        }
    }

    /// Adds a completion. `false`: it was seen at another instant, and is another observation.
    pub fn add(&mut self, sample: Sample) -> bool {
        self.join(&Self::new(sample))
    }

    /// Adds what came behind. `false`: see [`Self::add`].
    pub(crate) fn join(&mut self, more: &Self) -> bool {
        if more.first.seen_at != self.first.seen_at {
            return false;
        }
        self.last = more.last;
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.count += more.count;
        true
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When they were seen.
    pub fn seen_at(&self) -> Instant {
        self.first.seen_at
    }
}
