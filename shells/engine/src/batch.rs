//! Batches as the program holds them.

use std::fmt;
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use polyrail_core::batch::{Batch as Counters, BatchReport};
use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::work::Cause;

use crate::rows::RowId;
use crate::segments::LocalSegment;
use crate::worker::Post;

/// A batch that was submitted. Dropping it changes nothing: the requests go on.
#[derive(Clone)]
pub struct Batch {
    shared: Arc<Shared>,
    post: Arc<Post>,
}

/// It has not ended in time. It goes on, and can be waited for again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitTimeout {
    /// How long was waited.
    pub after: Duration,
    /// How it stood then.
    pub status: BatchReport,
}

impl fmt::Display for WaitTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BatchReport {
            ended, requests, ..
        } = self.status;
        write!(
            f,
            "not ended after {:?}: {ended} of {requests} requests have",
            self.after
        )
    }
}

impl std::error::Error for WaitTimeout {}

/// What a batch's handles and its worker share.
pub(crate) struct Shared {
    /// Its row with its worker.
    pub(crate) row: RowId,
    /// When it was.
    pub(crate) submitted: Instant,
    state: Mutex<State>,
    done: Condvar,
    /// The local segments of its requests, in order: what unregistering looks at.
    holds: Vec<Arc<LocalSegment>>,
}

struct State {
    /// Of the batch, once it has ended.
    status: Status,
    counters: Counters,
    reports: Vec<Report>,
    /// Threads that sleep until it has ended.
    sleepers: u32,
}

const PENDING: Report = Report {
    status: Status::Pending,
    delivered_bytes: 0,
    cause: None,
    local: Local::Held,
    remote: Remote::Unknown,
};

impl Shared {
    pub(crate) fn new(row: RowId, holds: Vec<Arc<LocalSegment>>) -> Self {
        let reports = vec![PENDING; holds.len()];
        Self {
            holds,
            ..Self::with_reports(row, reports)
        }
    }

    pub(crate) fn with_reports(row: RowId, reports: Vec<Report>) -> Self {
        let mut counters = Counters::new(0);
        for _ in &reports {
            counters.add();
        }
        counters.seal();
        for report in reports
            .iter()
            .filter(|report| report.status != Status::Pending)
        {
            counters.end(report);
        }
        let state = State {
            status: Status::Pending,
            counters,
            reports,
            sleepers: 0,
        };
        Self {
            row,
            submitted: Instant::now(),
            state: Mutex::new(state),
            done: Condvar::new(),
            holds: Vec::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how a request ended.
    pub(crate) fn record(&self, index: usize, report: Report) {
        let mut state = self.state();
        if let Some(row) = state.reports.get_mut(index) {
            *row = report;
            state.counters.end(&report);
        }
        drop(state);
        // Memory that somebody may still touch stays registered until that is known to be over.
        if report.local == Local::Released {
            self.release(index);
        }
    }

    /// A request that had been reported with its memory held has let go of it.
    pub(crate) fn settle(&self, index: usize) {
        let mut state = self.state();
        let Some(report) = state.reports.get_mut(index) else {
            return;
        };
        let held = std::mem::replace(&mut report.local, Local::Released) == Local::Held;
        report.remote = Remote::Settled;
        drop(state);
        if held {
            self.release(index);
        }
    }

    fn release(&self, index: usize) {
        if let Some(segment) = self.holds.get(index) {
            segment.requests.fetch_sub(1, AcqRel);
        }
    }

    /// Whether it has not ended.
    pub(crate) fn is_pending(&self) -> bool {
        self.state().status == Status::Pending
    }

    /// Whether it has ended and nothing of it is open any more.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.state();
        state.status != Status::Pending
            && state
                .reports
                .iter()
                .all(|report| (report.local, report.remote) == (Local::Released, Remote::Settled))
    }

    /// Whether memory on this side may still be touched on its behalf.
    pub(crate) fn holds_memory(&self) -> bool {
        let held = |report: &Report| report.local == Local::Held;
        self.state().reports.iter().any(held)
    }

    /// The worker ends, perhaps before the batch does. Of the requests that have not been reported, the
    /// first `begun` are unknown for good, and the others never began. All memory on this side is free,
    /// because the transports end with the worker.
    pub(crate) fn abandon(&self, begun: usize) {
        let mut state = self.state();
        let State {
            status,
            counters,
            reports,
            ..
        } = &mut *state;
        for (index, report) in reports.iter_mut().enumerate() {
            let pending = report.status == Status::Pending;
            let held = std::mem::replace(&mut report.local, Local::Released) == Local::Held;
            if pending {
                report.cause = Some(Cause::ShutDown);
                (report.status, report.remote) = match index < begun {
                    true => (Status::Indeterminate, Remote::Unknown),
                    false => (Status::ShutDown, Remote::Settled),
                };
                counters.end(report);
            }
            if held {
                self.release(index);
            }
        }
        *status = counters.report().status;
        drop(state);
        self.done.notify_all();
    }

    /// All requests have ended.
    pub(crate) fn finish(&self) {
        let mut state = self.state();
        state.status = state.counters.report().status;
        let sleepers = state.sleepers;
        drop(state);
        if sleepers > 0 {
            self.done.notify_all();
        }
    }
}

impl State {
    /// The batch at a glance. It counts as ended only once its worker has said so.
    fn report(&self) -> BatchReport {
        BatchReport {
            status: self.status,
            ..self.counters.report()
        }
    }
}

impl Batch {
    pub(crate) fn new(shared: Arc<Shared>, post: Arc<Post>) -> Self {
        Self { shared, post }
    }

    /// How it stands. O(1), whatever its size.
    pub fn status(&self) -> BatchReport {
        let status = self.shared.state().report();
        if status.status == Status::Pending {
            self.post.look_after();
        }
        status
    }

    /// Waits until all requests have ended. Meanwhile this thread does its worker's work, if nobody else does.
    pub fn wait(&self, timeout: Duration) -> Result<BatchReport, WaitTimeout> {
        let start = Instant::now();
        if !timeout.is_zero() {
            self.post.drive(&self.shared, start, timeout);
        }
        let mut state = self.shared.state();
        while state.status == Status::Pending {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(WaitTimeout {
                    after: timeout,
                    status: state.report(),
                });
            }
            state.sleepers += 1;
            (state, _) = self
                .shared
                .done
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
            state.sleepers -= 1;
        }
        Ok(state.report())
    }

    /// Stops sending what has not been sent. Requests that have not ended end soon, as `Cancelled`, or as
    /// `Completed` if all their bytes were on the way.
    pub fn cancel(&self) {
        self.post.cancel(self.shared.row);
    }

    /// How its `index`-th request stands; `None`: it has fewer. An `Indeterminate` one is brought up to date
    /// when proof comes later, unless 4,096 newer batches needed its place: `local` and `remote` say what is
    /// known now.
    pub fn report(&self, index: usize) -> Option<Report> {
        self.shared.state().reports.get(index).copied()
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({:?})", self.status())
    }
}
