//! The data that is moved, every byte of it verified.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;

use polyrail::Op;

use crate::exit::Failure;
use crate::sample::{Extent, Run};

/// Threads, each with one batch on its way, so that rails stay busy while others verify.
const THREADS: u64 = 6;

/// Bytes of a request.
const BLOCK: u64 = 256 * 1024;

/// Requests of a batch.
const BATCH: u64 = 8;

/// Places per thread that batches go to by turns.
const PLACES: u64 = 2;

/// Every so many batches, one reads.
const READ_EVERY: u64 = 8;

/// The memory that this takes at either end.
pub(super) const BUFFER_BYTES: u64 = THREADS * PLACES * BATCH * BLOCK;

/// What was moved so far.
#[derive(Debug, Default)]
pub(super) struct Totals {
    over: AtomicBool,
    bytes: AtomicU64,
    batches: AtomicU64,
    wrong_bytes: AtomicU64,
    failed_requests: AtomicU64,
}

impl Totals {
    /// Lets the threads end after the batches they have on their way.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn gbytes(&self) -> f64 {
        self.bytes.load(Ordering::Relaxed) as f64 / 1e9
    }

    /// The sums in words.
    pub(super) fn text(&self) -> String {
        format!(
            "verified {:.3} GB in {} batches; wrong bytes: {}; failed requests: {}",
            self.gbytes(),
            self.batches.load(Ordering::Relaxed),
            self.wrong_bytes.load(Ordering::Relaxed),
            self.failed_requests.load(Ordering::Relaxed)
        )
    }

    /// Good if something was moved and all of it well.
    pub(super) fn verdict(&self) -> Result<String, Failure> {
        let bad =
            self.wrong_bytes.load(Ordering::Relaxed) + self.failed_requests.load(Ordering::Relaxed);
        if bad > 0 || self.bytes.load(Ordering::Relaxed) == 0 {
            return Err(Failure::Verdict(self.text()));
        }
        Ok(format!(
            "{:.3} GB moved and verified over four unequal rails, one cut and restored; \
             no byte wrong, no request failed",
            self.gbytes()
        ))
    }
}

/// Starts the threads. They end after [`Totals::end`], or when the run is stopped.
pub(super) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: &'scope Run<'_>,
    totals: &'scope Totals,
) {
    for thread in 0..THREADS {
        scope.spawn(move || {
            for i in 0.. {
                if totals.is_over() || run.stopped() {
                    break;
                }
                let op = if i % READ_EVERY == READ_EVERY - 1 {
                    Op::Read
                } else {
                    Op::Write
                };
                if let Err(failure) = draw(run, totals, op, extent(thread, i)) {
                    run.note(failure);
                }
            }
        });
    }
}

/// Where the `i`-th batch of a thread goes; never to the same offset at either end.
fn extent(thread: u64, i: u64) -> Extent {
    let place = i % PLACES;
    let start = thread * PLACES;
    Extent {
        local: (start + PLACES - 1 - place) * BATCH * BLOCK,
        remote: (start + place) * BATCH * BLOCK,
        block: BLOCK,
        requests: BATCH,
    }
}

/// Moves one batch and verifies it.
fn draw(run: &Run<'_>, totals: &Totals, op: Op, extent: Extent) -> Result<(), Failure> {
    let sample = run.draw();
    run.prepare(op, extent, sample)?;
    let ended = run.transfer(&run.requests(op, extent));
    totals
        .failed_requests
        .fetch_add(ended.failed, Ordering::Relaxed);
    if let Some(failure) = ended.failure {
        return Err(failure);
    }
    match run.check(op, extent, sample)? {
        None => {
            totals.bytes.fetch_add(extent.bytes(), Ordering::Relaxed);
            totals.batches.fetch_add(1, Ordering::Relaxed);
        }
        Some(mismatch) => {
            totals
                .wrong_bytes
                .fetch_add(mismatch.wrong_bytes, Ordering::Relaxed);
            run.note_mismatch(op, sample, mismatch);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_different_threads_never_meet() {
        let mut taken = std::collections::HashMap::new();
        for thread in 0..THREADS {
            for i in 0..PLACES {
                let extent = extent(thread, i);
                assert!(extent.local + extent.bytes() <= BUFFER_BYTES);
                assert!(extent.remote + extent.bytes() <= BUFFER_BYTES);
                assert_ne!(extent.local, extent.remote);
                assert_eq!(taken.insert(extent.remote, thread), None);
            }
        }
    }

    #[test]
    fn the_verdict_is_good_only_if_something_moved_and_all_of_it_well() {
        let totals = Totals::default();
        assert!(totals.verdict().is_err());
        totals.bytes.store(1 << 30, Ordering::Relaxed);
        assert!(totals.verdict().is_ok());
        totals.wrong_bytes.store(1, Ordering::Relaxed);
        assert!(totals.verdict().is_err());
    }
}
