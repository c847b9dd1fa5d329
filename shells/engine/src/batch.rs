//! Batches as the program holds them.

mod pieces;
mod shared;
mod state;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use polyrail_core::batch::{Batch as Counters, BatchReport};
use polyrail_core::report::{Report, Status};

pub(crate) use self::shared::{Ended, Shared};
use self::state::State;
use crate::completion::Tray;
use crate::delivery::Delivery;
use crate::error::{ReleaseError, WaitError};
use crate::fork::Owned;
use crate::post::Post;

/// A batch that was submitted. Clones are handles of the same one; dropping them changes nothing: the requests
/// go on.
///
/// There are five ways to learn that it has ended. Each tells once per batch and handle, all can be used
/// together, and what is not used costs nothing:
///
/// * [`Self::wait`] blocks;
/// * `batch.await`: a handle is a [`Future`] for any executor; it is woken, it does not poll;
/// * a [`CompletionQueue`](crate::CompletionQueue) has a descriptor for the program's own event loop;
/// * [`Self::on_done`] calls the program;
/// * [`Self::status`] looks.
///
/// In a forked child a batch of the parent's is of no use: [`Self::wait`] and [`Self::wait_released`] are
/// errors, [`Self::status`] and `.await` say `Indeterminate` for one that had not ended, [`Self::report`]
/// gives nothing, and the rest does nothing.
pub struct Batch {
    shared: Owned<Shared>,
    post: Owned<Post>,
    /// Where the waker of this handle is, once it has been awaited.
    waker: Option<usize>,
}

impl Batch {
    pub(crate) fn new(shared: Arc<Shared>, post: Arc<Post>) -> Self {
        Self {
            shared: Owned::new(shared),
            post: Owned::new(post),
            waker: None,
        }
    }

    /// Whether it went to this worker.
    #[cfg(test)]
    pub(crate) fn is_with(&self, post: &Arc<Post>) -> bool {
        Arc::ptr_eq(&self.post, post)
    }

    /// What it shares with its worker.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// How it stands. O(1), whatever its size.
    ///
    /// Example: [guide](crate::guide#ends-of-batches).
    pub fn status(&self) -> BatchReport {
        if !self.shared.is_ours() {
            return self.inherited_status();
        }
        let status = self.shared.state().report();
        if status.status == Status::Pending {
            self.post.look_after();
        }
        status
    }

    /// What a forked child can say. The lock may be held there for ever, by a thread that does not exist.
    fn inherited_status(&self) -> BatchReport {
        let nothing = Counters::new(0).report();
        let known = self.shared.state.try_lock();
        let report = known.map_or(nothing, |state| state.report());
        report.inherited()
    }

    /// Waits until all requests have ended. Meanwhile this thread does its worker's work, if nobody else does.
    ///
    /// Example: [guide](crate::guide#ends-of-batches).
    pub fn wait(&self, timeout: Duration) -> Result<BatchReport, WaitError> {
        if !self.shared.is_ours() {
            return Err(WaitError::Forked);
        }
        self.wait_for(timeout, |state| state.status != Status::Pending)
            .map(|state| state.report())
            .map_err(|state| WaitError::TimedOut {
                after: timeout,
                status: state.report(),
                load: Box::new(self.post.room.load()),
            })
    }

    /// Waits until all requests have ended, all memory on this side is `Released`, and everything is
    /// `Settled` on the peer's side. For a batch without an `Indeterminate` request that is when it ends.
    ///
    /// Example: [guide](crate::guide#ends-of-batches).
    pub fn wait_released(&self, timeout: Duration) -> Result<BatchReport, ReleaseError> {
        if !self.shared.is_ours() {
            return Err(ReleaseError::Forked);
        }
        match self.wait_for(timeout, |state| state.is_over() || state.closed) {
            Ok(state) if state.is_over() => Ok(state.report()),
            Ok(state) | Err(state) => Err(state.openness(timeout)),
        }
    }

    /// The same as [`Self::wait_released`] for tasks, for as long as it takes.
    ///
    /// Example: [guide](crate::guide#tasks).
    pub fn released(&self) -> Released {
        Released {
            batch: self.clone(),
            place: None,
        }
    }

    /// Waits until something is so; `Err`: it was not, in time.
    fn wait_for(
        &self,
        timeout: Duration,
        is_so: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'_, State>, MutexGuard<'_, State>> {
        let state = self.shared.state();
        if is_so(&state) {
            return Ok(state);
        }
        drop(state);
        let start = Instant::now();
        if !timeout.is_zero() {
            self.post.drive(&self.shared, start, timeout);
        }
        let mut state = self.shared.state();
        if !is_so(&state) {
            drop(state);
            self.post.sleeps();
            state = self.shared.state();
        }
        while !is_so(&state) {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(state);
            }
            state.sleepers += 1;
            (state, _) = self
                .shared
                .done
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
            state.sleepers -= 1;
        }
        Ok(state)
    }

    /// Calls `callback` once with how the batch ended: at once, on this thread, if it has ended; else when it
    /// does, on a thread of the engine or on one that waits for another batch. There it should be short: what else its
    /// thread does waits for it. It may use the engine, submit the next batch for instance, and end it
    /// ([`Engine::shutdown`](crate::Engine::shutdown), or its last handle dropped), but not wait for a batch. If it panics
    /// there, that is logged, and nothing else happens.
    ///
    /// Callbacks of one batch run in the order in which they were given.
    ///
    /// Example: [guide](crate::guide#ends-of-batches).
    pub fn on_done(&self, callback: impl FnOnce(BatchReport) + Send + 'static) {
        if !self.shared.is_ours() {
            return;
        }
        let mut state = self.shared.state();
        if state.status == Status::Pending {
            state.followers.add(Box::new(callback));
            drop(state);
            return self.post.look_after();
        }
        let report = state.report();
        drop(state);
        callback(report);
    }

    /// Fills the tray once the batch has ended, which may be now.
    pub(crate) fn fill(&self, tray: Tray) {
        if !self.shared.is_ours() {
            return;
        }
        let mut state = self.shared.state();
        if state.status == Status::Pending {
            state.followers.add_tray(tray);
            drop(state);
            return self.post.look_after();
        }
        let report = state.report();
        drop(state);
        tray.fill(report);
    }

    /// What becomes of the notification that it carries; `None`: it carries none.
    ///
    /// Example: [guide](crate::guide#telling-the-peers-program).
    pub fn delivery(&self) -> Option<Delivery> {
        self.shared.slip.clone().map(Delivery::new)
    }

    /// Stops sending what has not been sent. Requests that have not ended end soon, as `Cancelled`, or as
    /// `Completed` if all their bytes were on the way. A small request that goes as one with its neighbours, of other
    /// batches perhaps, is sent with them all the same, and ends when they do.
    ///
    /// Example: [guide](crate::guide#batches).
    pub fn cancel(&self) {
        if self.shared.is_ours() {
            self.post.cancel(self.shared.row);
        }
    }

    /// Its first request that ended other than well, by its index, and how; `None`: none has, so far. [`crate::advice`] says
    /// what can be done about its cause. O(n), if all are well.
    ///
    /// Example: [guide](crate::guide#batches).
    pub fn first_failure(&self) -> Option<(usize, Report)> {
        if !self.shared.is_ours() {
            return None;
        }
        let state = self.shared.state();
        let mut reports = state.reports.iter().copied().enumerate();
        reports.find(|(_, report)| !matches!(report.status, Status::Pending | Status::Completed))
    }

    /// How its `index`-th request stands; `None`: it has fewer. An `Indeterminate` one is brought up to date
    /// when proof comes later, unless newer batches needed its place, of which there can be a little more than
    /// [`limits.requests`](crate::LimitsConfig::requests): `local` and `remote` say what is
    /// known now. [`Self::wait_released`] waits for that.
    ///
    /// Example: [guide](crate::guide#batches).
    pub fn report(&self, index: usize) -> Option<Report> {
        if !self.shared.is_ours() {
            return None;
        }
        self.shared.state().reports.get(index).copied()
    }
}

/// Ends when the batch does. Ready for ever after: a handle can be awaited again.
impl Future for Batch {
    type Output = BatchReport;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<BatchReport> {
        let Self { shared, waker, .. } = &mut *self;
        if !shared.is_ours() {
            return Poll::Ready(self.inherited_status());
        }
        let mut state = shared.state();
        if state.status != Status::Pending {
            return Poll::Ready(state.report());
        }
        let old = state.followers.set_waker(waker, context.waker());
        drop(state);
        drop(old);
        self.post.look_after();
        Poll::Pending
    }
}

/// Ends when a batch has, and nothing of it is open any more: see [`Batch::released`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Released {
    batch: Batch,
    place: Option<usize>,
}

impl Future for Released {
    type Output = Result<BatchReport, ReleaseError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { batch, place } = &mut *self;
        if !batch.shared.is_ours() {
            return Poll::Ready(Err(ReleaseError::Forked));
        }
        let waker = batch.post.waker_thread.defer(context.waker());
        let mut state = batch.shared.state();
        if state.is_over() {
            return Poll::Ready(Ok(state.report()));
        }
        if state.closed {
            return Poll::Ready(Err(state.openness(Duration::ZERO)));
        }
        let old = state.releases.set(place, &waker);
        drop(state);
        drop(old);
        batch.post.look_after();
        Poll::Pending
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        let place = self.place.filter(|_| self.batch.shared.is_ours());
        let waker = place.and_then(|place| self.batch.shared.state().releases.take(place));
        drop(waker);
    }
}

impl Clone for Batch {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            post: self.post.clone(),
            waker: None,
        }
    }
}

impl Drop for Batch {
    /// Nobody awaits this handle any more.
    fn drop(&mut self) {
        let Some(place) = self.waker.filter(|_| self.shared.is_ours()) else {
            return;
        };
        let waker = self.shared.state().followers.take_waker(place);
        drop(waker);
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({:?})", self.status())
    }
}
