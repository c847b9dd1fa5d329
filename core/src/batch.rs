//! Batches: requests submitted together and awaited together, counted so that a batch of any size answers
//! in O(1) and ends in one event.
//!
//! Source: TENT (arXiv:2604.00368v1) §4.4.

use crate::report::{Report, Status};

/// A batch at a glance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BatchReport {
    /// `Pending` while it lasts; then `Completed` if every request did, else the status of the first one
    /// that ended otherwise, but `Indeterminate` if any did.
    pub status: Status,
    /// Requests in it so far.
    pub requests: u32,
    /// Requests that have ended.
    pub ended: u32,
    /// Requests that ended other than `Completed`.
    pub failed: u32,
    /// Bytes proven to have arrived, of the requests that have ended.
    pub delivered_bytes: u64,
}

impl BatchReport {
    /// How it stands for a process that has inherited it in a fork, and will hear no more of it.
    pub fn inherited(self) -> Self {
        let status = match self.status {
            Status::Pending => Status::Indeterminate,
            known => known,
        };
        Self { status, ..self }
    }
}

/// Whether something whose parts have ended as `before` says ends as one more part did: as the first that did not complete, but
/// `Indeterminate` if any is.
pub fn outweighs(part: Status, before: Status) -> bool {
    before == Status::Completed || part == Status::Indeterminate && before != part
}

/// The counters of one batch.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Batch {
    report: BatchReport,
    verdict: Status,
    sealed: bool,
    /// The caller's word for it.
    pub tag: u64,
}

impl Batch {
    /// An empty, open batch.
    pub const fn new(tag: u64) -> Self {
        let report = BatchReport {
            status: Status::Pending,
            requests: 0,
            ended: 0,
            failed: 0,
            delivered_bytes: 0,
        };
        Self {
            report,
            verdict: Status::Completed,
            sealed: false,
            tag,
        }
    }

    /// Counts a request in. No effect once sealed: `false`.
    pub fn add(&mut self) -> bool {
        if self.sealed {
            return false;
        }
        self.report.requests += 1;
        true
    }

    /// Counts requests that never begin, and have ended so. No effect once sealed.
    pub fn withdraw(&mut self, count: u32, report: &Report) {
        if self.sealed || count == 0 {
            return;
        }
        debug_assert!(
            !matches!(report.status, Status::Pending | Status::Completed),
            "what never began has ended as {:?}",
            report.status
        );
        self.report.requests += count;
        self.report.ended += count;
        self.report.failed += count;
        self.judge(report.status);
    }

    /// No more requests will come. `true` if the batch has ended by that.
    pub fn seal(&mut self) -> bool {
        self.sealed = true;
        self.settle()
    }

    /// Counts the end of a request. `true` if the batch has ended by that.
    pub fn end(&mut self, report: &Report) -> bool {
        self.report.ended += 1;
        debug_assert!(report.status != Status::Pending, "it has not ended");
        debug_assert!(
            self.report.ended <= self.report.requests,
            "{} ended of {}",
            self.report.ended,
            self.report.requests
        );
        debug_assert!(
            self.report.status == Status::Pending,
            "a request ends in a batch that has ended"
        );
        self.report.delivered_bytes = self
            .report
            .delivered_bytes
            .saturating_add(report.delivered_bytes);
        if report.status != Status::Completed {
            self.report.failed += 1;
            self.judge(report.status);
        }
        self.settle()
    }

    /// How it stands.
    pub const fn report(&self) -> BatchReport {
        self.report
    }

    fn judge(&mut self, status: Status) {
        if outweighs(status, self.verdict) {
            self.verdict = status;
        }
    }

    fn settle(&mut self) -> bool {
        let ends = self.sealed
            && self.report.status == Status::Pending
            && self.report.ended == self.report.requests;
        if ends {
            debug_assert!(
                (self.verdict == Status::Completed) == (self.report.failed == 0),
                "{} failed, and it is {:?}",
                self.report.failed,
                self.verdict
            );
            self.report.status = self.verdict;
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::report::{Local, Remote};
    use quickcheck::quickcheck;
    use std::vec::Vec;

    fn ended(status: Status) -> Report {
        Report {
            status,
            delivered_bytes: 10,
            cause: None,
            local: Local::Released,
            remote: Remote::Settled,
        }
    }

    #[test]
    fn a_batch_ends_once_and_only_when_sealed() {
        let mut batch = Batch::new(0);
        assert!(batch.add() && batch.add());
        assert!(!batch.end(&ended(Status::Completed)));
        assert!(!batch.end(&ended(Status::Completed)), "not sealed yet");
        assert!(batch.seal());
        assert!(!batch.add(), "sealed");
        assert_eq!(batch.report().status, Status::Completed);
        assert_eq!(batch.report().delivered_bytes, 20);
    }

    #[test]
    fn the_verdict_is_the_first_bad_end_unless_one_is_indeterminate() {
        use Status::{Cancelled, Completed, Failed, Indeterminate};
        // (name, how the requests end, verdict)
        let cases = [
            ("all well", [Completed, Completed, Completed], Completed),
            (
                "first bad one counts",
                [Completed, Failed, Cancelled],
                Failed,
            ),
            (
                "indeterminate outweighs",
                [Failed, Indeterminate, Completed],
                Indeterminate,
            ),
        ];
        for (name, ends, verdict) in cases {
            let mut batch = Batch::new(0);
            for _ in ends {
                batch.add();
            }
            batch.seal();
            for (i, status) in ends.into_iter().enumerate() {
                assert_eq!(batch.end(&ended(status)), i == 2, "{name}");
            }
            assert_eq!(batch.report().status, verdict, "{name}");
        }
    }

    #[test]
    fn an_empty_batch_ends_when_sealed() {
        assert!(Batch::new(0).seal());
    }

    quickcheck! {
        fn whatever_the_order_it_ends_once_with_the_verdict_of_all(ends: Vec<u8>, seal_after: u8) -> bool {
            use Status::{Cancelled, Completed, Failed, Indeterminate};
            let ends: Vec<Status> = ends
                .into_iter()
                .map(|end| [Completed, Failed, Cancelled, Indeterminate][usize::from(end % 4)])
                .collect();
            let sealed_at = usize::from(seal_after) % (ends.len() + 1);
            let mut batch = Batch::new(0);
            let counted = ends.iter().filter(|_| batch.add()).count();
            let mut endings = Vec::new();
            for (at, status) in ends.iter().enumerate() {
                if at == sealed_at { endings.push(batch.seal()) }
                endings.push(batch.end(&ended(*status)));
            }
            if sealed_at == ends.len() { endings.push(batch.seal()) }
            let first_bad = ends.iter().copied().find(|status| *status != Completed);
            let verdict = if ends.contains(&Indeterminate) { Indeterminate } else { first_bad.unwrap_or(Completed) };
            let report = batch.report();
            // Once, and by the last call.
            endings.iter().filter(|ended| **ended).count() == 1
                && endings.last() == Some(&true)
                && (report.requests, report.ended) == (counted as u32, counted as u32)
                && report.failed as usize == ends.iter().filter(|status| **status != Completed).count()
                && report.delivered_bytes == 10 * counted as u64
                && report.status == verdict
        }
    }
}
