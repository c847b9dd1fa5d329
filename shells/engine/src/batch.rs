//! Batches as the program holds them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use polyrail_core::batch::{Batch as Counters, BatchReport};
use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::send_queue::credit::Grant;
use polyrail_core::work::Cause;
use smallvec::{SmallVec, smallvec};

use crate::completion::Tray;
use crate::delivery::{Delivery, Outgoing, Slip, Ticket};
use crate::error::{ReleaseError, WaitError};
use crate::followers::Followers;
use crate::fork::Owned;
use crate::post::{Begun, Post};
use crate::request::Request;
use crate::rows::RowId;
use crate::segments::Hold;

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

/// What a batch's handles and its worker share.
pub(crate) struct Shared {
    /// Its row with its worker.
    pub(crate) row: RowId,
    state: Mutex<State>,
    done: Condvar,
    /// The segments of its requests, in order: what unregistering looks at.
    holds: Vec<Hold>,
    /// What tells of its notification, if it carries one.
    slip: Option<Owned<Slip>>,
    /// It is a hop that programs had left no room for: its room is that which is kept for such.
    hop: bool,
}

/// Most batches have one request.
pub(crate) type Reports = SmallVec<[Report; 1]>;

struct State {
    /// Of the batch, once it has ended.
    status: Status,
    /// What its requests that have not ended take of the worker's room.
    room: Grant,
    counters: Counters,
    reports: Reports,
    /// Requests whose memory is held or whose peer's side is not settled, those not ended included.
    open: u32,
    /// Nothing more will be told: what is open now stays so.
    closed: bool,
    followers: Followers,
    /// Sent when it has ended well.
    notification: Option<Outgoing>,
    /// Threads that sleep until it has ended.
    sleepers: u32,
}

const MOVED: Report = Report {
    status: Status::Completed,
    delivered_bytes: 0,
    cause: None,
    local: Local::Released,
    remote: Remote::Settled,
};

const PENDING: Report = Report {
    status: Status::Pending,
    delivered_bytes: 0,
    cause: None,
    local: Local::Held,
    remote: Remote::Unknown,
};

impl Shared {
    pub(crate) fn new(row: RowId, holds: Vec<Hold>) -> Self {
        let reports = smallvec![PENDING; holds.len()];
        Self {
            holds,
            ..Self::with_reports(row, reports)
        }
    }

    pub(crate) fn with_reports(row: RowId, reports: impl Into<Reports>) -> Self {
        let reports = reports.into();
        let state = State {
            counters: counters(&reports),
            open: reports.iter().filter(|report| is_open(report)).count() as u32,
            reports,
            ..State::new()
        };
        Self::with_state(row, state)
    }

    fn with_state(row: RowId, state: State) -> Self {
        Self {
            row,
            state: Mutex::new(state),
            done: Condvar::new(),
            holds: Vec::new(),
            slip: None,
            hop: false,
        }
    }

    /// Whether its room is the one that is kept for hops.
    pub(crate) fn is_hop(&self) -> bool {
        self.hop
    }

    /// It takes its room from there.
    pub(crate) fn for_hop(mut self) -> Self {
        self.hop = true;
        self
    }

    /// The room that it still takes: it takes none any more.
    pub(crate) fn take_room(&self) -> Grant {
        std::mem::take(&mut self.state().room)
    }

    /// It takes this room.
    pub(crate) fn taking(mut self, room: Grant) -> Self {
        self.state
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .room = room;
        self
    }

    /// The same, with something to tell the peer when it has ended well.
    pub(crate) fn notifying(mut self, notification: Outgoing) -> Self {
        self.slip = Some(Owned::new(notification.slip().clone()));
        self.state
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .notification = Some(notification);
        self
    }

    /// One that has ended, to [begin again](Self::begin_again). Its segments are not held.
    pub(crate) fn spare(holds: Vec<Hold>) -> Self {
        let reports = smallvec![MOVED; holds.len()];
        Self {
            holds,
            ..Self::ended(reports)
        }
    }

    /// One whose requests have been carried out.
    pub(crate) fn carried(requests: &[Request]) -> Self {
        Self::ended(moved(Reports::new(), requests))
    }

    /// One that no worker has ever had a row for.
    fn ended(reports: Reports) -> Self {
        Self::with_state(RowId::default(), State::ended(reports))
    }

    /// The same requests once more, carried out. It has ended, and nobody else knows it.
    pub(crate) fn carried_again(&mut self, requests: &[Request]) {
        self.row = RowId::default();
        self.slip = None;
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let reports = std::mem::take(&mut state.reports);
        *state = State::ended(moved(reports, requests));
    }

    /// The same requests once more, in another row. It has ended, nobody else knows it, and its segments are held anew.
    pub(crate) fn begin_again(&mut self, row: RowId, room: Grant, notification: Option<Outgoing>) {
        self.row = row;
        self.slip = notification
            .as_ref()
            .map(|notification| Owned::new(notification.slip().clone()));
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut reports = std::mem::take(&mut state.reports);
        reports.fill(PENDING);
        *state = State {
            room,
            counters: counters(&reports),
            open: reports.len() as u32,
            reports,
            notification,
            ..State::new()
        };
    }

    /// What its requests use.
    pub(crate) fn holds(&self) -> &[Hold] {
        &self.holds
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how a request ended: the room that it took. That of the last one goes with the batch's row.
    pub(crate) fn record(&self, index: usize, report: Report) -> Grant {
        let mut state = self.state();
        let others = state.room.amount().works.saturating_sub(1).max(1);
        let room = state.room.split_off(others);
        if let Some(row) = state.reports.get_mut(index) {
            let was_open = is_open(&std::mem::replace(row, report));
            state.counters.end(&report);
            state.close_one(was_open && !is_open(&report));
        }
        drop(state);
        // Memory that somebody may still touch stays registered until that is known to be over.
        if report.local == Local::Released {
            self.release(index);
        }
        room
    }

    /// More is known of a request than was reported: what of its memory is free.
    pub(crate) fn settle(&self, index: usize, local: Local, remote: Remote) {
        let mut state = self.state();
        let Some(report) = state.reports.get_mut(index) else {
            return;
        };
        let was_open = is_open(report);
        let was_held = report.local == Local::Held;
        (report.local, report.remote) = (local, remote);
        let is_settled = !is_open(report);
        state.close_one(was_open && is_settled);
        let over = state.is_over();
        drop(state);
        if was_held && local == Local::Released {
            self.release(index);
        }
        if over {
            self.done.notify_all();
        }
    }

    fn release(&self, index: usize) {
        if let Some(hold) = self.holds.get(index) {
            hold.release();
        }
    }

    /// Whether it has not ended.
    pub(crate) fn is_pending(&self) -> bool {
        self.state().status == Status::Pending
    }

    /// Whether all its requests have been reported.
    pub(crate) fn is_reported(&self) -> bool {
        let status = self.state().counters.report();
        status.ended == status.requests
    }

    /// Whether it has ended and nothing of it is open any more.
    pub(crate) fn is_over(&self) -> bool {
        self.state().is_over()
    }

    /// Nothing more will be told of it: whoever waits for proof waits in vain.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.done.notify_all();
    }

    /// Whether memory on this side may still be touched on its behalf.
    pub(crate) fn holds_memory(&self) -> bool {
        let held = |report: &Report| report.local == Local::Held;
        self.state().reports.iter().any(held)
    }

    /// The worker has ended, perhaps before the batch did. Of the requests that have not been reported, those
    /// that have `begun` are unknown for good, and the others never began. Memory on this side is free, because the
    /// transports have ended with the worker, but what the kernel or a device still has, and all of it if they `go_on`.
    pub(crate) fn abandon(&self, begun: &Begun, go_on: bool) -> Ended {
        let mut state = self.state();
        let State {
            counters, reports, ..
        } = &mut *state;
        for (index, report) in reports.iter_mut().enumerate() {
            let pending = report.status == Status::Pending;
            let was_held = report.local == Local::Held;
            let is_touched = || self.holds.get(index).is_some_and(Hold::is_touched);
            let has_begun = begun.has(index);
            if was_held && !((!pending || has_begun) && (go_on || is_touched())) {
                report.local = Local::Released;
                self.release(index);
            }
            if pending {
                report.cause = Some(Cause::ShutDown);
                (report.status, report.remote) = match has_begun {
                    true => (Status::Indeterminate, Remote::Unknown),
                    false => (Status::ShutDown, Remote::Settled),
                };
                counters.end(report);
            }
        }
        state.open = state.reports.iter().filter(|r| is_open(r)).count() as u32;
        state.closed = true;
        self.end(state)
    }

    /// All requests have ended. Whoever blocks is woken; the others are told by the answer.
    pub(crate) fn finish(&self) -> Ended {
        self.end(self.state())
    }

    fn end(&self, mut state: MutexGuard<'_, State>) -> Ended {
        state.status = state.counters.report().status;
        // In line before anybody can know: what the program tells the peer after that comes behind it.
        let ticket = match (state.notification.take(), state.status) {
            (Some(notification), Status::Completed) => Some(notification.send_after()),
            (notification, _) => {
                notification.into_iter().for_each(Outgoing::withhold);
                None
            }
        };
        let mut ended = Ended {
            is_over: state.is_over(),
            report: state.report(),
            followers: std::mem::take(&mut state.followers),
            ticket,
        };
        let sleepers = state.sleepers;
        drop(state);
        ended.followers.fill_trays(ended.report);
        if sleepers > 0 {
            self.done.notify_all();
        }
        ended
    }
}

/// Counts requests of which some may have ended.
fn counters(reports: &[Report]) -> Counters {
    let mut counters = Counters::new(0);
    for _ in reports {
        counters.add();
    }
    counters.seal();
    for report in reports
        .iter()
        .filter(|report| report.status != Status::Pending)
    {
        counters.end(report);
    }
    counters
}

/// A batch has just ended, and its followers do not know yet.
#[must_use = "followers wait to be told"]
pub(crate) struct Ended {
    is_over: bool,
    report: BatchReport,
    followers: Followers,
    ticket: Option<Ticket>,
}

impl Ended {
    /// Whether nothing of it is open any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Tells the peer by `send`, if all of it has arrived.
    pub(crate) fn notify(&mut self, send: impl FnOnce(Ticket)) {
        if let Some(ticket) = self.ticket.take() {
            send(ticket);
        }
    }

    /// Whether code of the program waits for it.
    pub(crate) fn has_followers(&self) -> bool {
        self.followers.has_code()
    }

    /// Calls the program's code. No lock and no seat may be held: it may do anything.
    pub(crate) fn tell(self) {
        self.followers.tell(self.report);
    }
}

/// How requests ended that were carried out whole, in place of what was reported before.
fn moved(mut reports: Reports, requests: &[Request]) -> Reports {
    reports.clear();
    reports.reserve(requests.len());
    for request in requests {
        reports.push(Report {
            delivered_bytes: request.length,
            ..MOVED
        });
    }
    reports
}

/// Whether something of the request can still move, or nobody knows.
fn is_open(report: &Report) -> bool {
    (report.local, report.remote) != (Local::Released, Remote::Settled)
}

impl State {
    /// Of a batch without requests, which has not ended.
    fn new() -> Self {
        Self {
            status: Status::Pending,
            room: Grant::default(),
            counters: Counters::new(0),
            reports: Reports::new(),
            open: 0,
            closed: false,
            followers: Followers::default(),
            notification: None,
            sleepers: 0,
        }
    }

    /// Of one whose requests have all ended, with nothing of them open.
    fn ended(reports: Reports) -> Self {
        let counters = counters(&reports);
        Self {
            status: counters.report().status,
            counters,
            reports,
            ..Self::new()
        }
    }

    fn close_one(&mut self, closed: bool) {
        self.open -= u32::from(closed);
    }

    /// Whether it has ended and nothing of it is open any more.
    fn is_over(&self) -> bool {
        self.status != Status::Pending && self.open == 0
    }

    /// What keeps it from being over.
    fn openness(&self, after: Duration) -> ReleaseError {
        let held = self.reports.iter().filter(|r| r.local == Local::Held);
        let held = held.count();
        match self.closed {
            true => ReleaseError::Unprovable {
                requests: self.open as usize,
            },
            false => ReleaseError::TimedOut {
                after,
                held,
                unsettled: self.open as usize,
            },
        }
    }

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
        Self {
            shared: Owned::new(shared),
            post: Owned::new(post),
            waker: None,
        }
    }

    /// What it shares with its worker.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// How it stands. O(1), whatever its size.
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
        let mut report = known.map_or(nothing, |state| state.report());
        if report.status == Status::Pending {
            report.status = Status::Indeterminate;
        }
        report
    }

    /// Waits until all requests have ended. Meanwhile this thread does its worker's work, if nobody else does.
    pub fn wait(&self, timeout: Duration) -> Result<BatchReport, WaitError> {
        if !self.shared.is_ours() {
            return Err(WaitError::Forked);
        }
        self.wait_for(timeout, |state| state.status != Status::Pending)
            .map(|state| state.report())
            .map_err(|state| WaitError::TimedOut {
                after: timeout,
                status: state.report(),
            })
    }

    /// Waits until all requests have ended, all memory on this side is `Released`, and everything is
    /// `Settled` on the peer's side. For a batch without an `Indeterminate` request that is when it ends.
    pub fn wait_released(&self, timeout: Duration) -> Result<BatchReport, ReleaseError> {
        if !self.shared.is_ours() {
            return Err(ReleaseError::Forked);
        }
        match self.wait_for(timeout, |state| state.is_over() || state.closed) {
            Ok(state) if state.is_over() => Ok(state.report()),
            Ok(state) | Err(state) => Err(state.openness(timeout)),
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
    /// does, on the thread that drives its worker, which is the worker's own or one that waits for another of
    /// its batches. There it must not block: every transfer of that worker waits for it. It may use the engine, submit the next batch for instance, but not wait for one. If it panics
    /// there, that is logged, and nothing else happens.
    ///
    /// Callbacks of one batch run in the order in which they were given.
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
    pub fn delivery(&self) -> Option<Delivery> {
        self.shared.slip.clone().map(Delivery::new)
    }

    /// Stops sending what has not been sent. Requests that have not ended end soon, as `Cancelled`, or as
    /// `Completed` if all their bytes were on the way.
    pub fn cancel(&self) {
        if self.shared.is_ours() {
            self.post.cancel(self.shared.row);
        }
    }

    /// How its `index`-th request stands; `None`: it has fewer. An `Indeterminate` one is brought up to date
    /// when proof comes later, unless 16,384 newer batches needed its place: `local` and `remote` say what is
    /// known now. [`Self::wait_released`] waits for that.
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
