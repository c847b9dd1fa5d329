//! What a batch's handles share with whoever carries it out.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use polyrail_core::batch::{Batch as Counters, BatchReport};
use polyrail_core::report::{Local, Remote, Report, Status, left_behind};
use polyrail_core::send_queue::credit::Grant;
use polyrail_core::units::PeerId;
use smallvec::smallvec;

use super::pieces::Pieces;
use super::state::{Reports, State, counters, is_open, moved};
use crate::delivery::{Outgoing, Slip, Ticket};
use crate::followers::Followers;
use crate::fork::Owned;
use crate::overlap::Claim;
use crate::post::{Begun, Order};
use crate::request::Request;
use crate::rows::RowId;
use crate::segments::Holds;

/// What a batch's handles and its worker share.
pub(crate) struct Shared {
    /// Its row with its worker.
    pub(crate) row: RowId,
    pub(super) state: Mutex<State>,
    pub(super) done: Condvar,
    /// The segments of its requests: what unregistering looks at.
    holds: Holds,
    /// What tells of its notification, if it carries one.
    pub(super) slip: Option<Owned<Slip>>,
    /// It is a hop that programs had left no room for: its room is that which is kept for such.
    hop: bool,
}

impl Shared {
    pub(crate) fn new(
        row: RowId,
        holds: Holds,
        mut order: Order,
        firsts: Option<Arc<[u32]>>,
    ) -> Self {
        let pieces = pieces(firsts, order.list.len());
        let requests = pieces
            .as_ref()
            .map_or(order.list.len(), |pieces| pieces.requests());
        let reports: Reports = smallvec![Report::PENDING; requests];
        let mut batch = Self::with_reports(row, reports);
        let state = batch.state_mut();
        state.sight = order.sight.take();
        (state.order, state.pieces) = (order, pieces);
        Self { holds, ..batch }
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
            holds: Holds::default(),
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
        self.state_mut().room = room;
        self
    }

    /// Others may not write to this until it is over.
    pub(crate) fn claiming(mut self, claim: Option<Claim>) -> Self {
        self.state_mut().claim = claim;
        self
    }

    /// The same, with something to tell the peer when it has ended well.
    pub(crate) fn notifying(mut self, notification: Outgoing) -> Self {
        self.slip = Some(Owned::new(notification.slip().clone()));
        self.state_mut().notification = Some(notification);
        self
    }

    /// One that has ended, to [begin again](Self::begin_again). Its segments are not held.
    pub(crate) fn spare(holds: Holds, count: usize, firsts: Option<Arc<[u32]>>) -> Self {
        let pieces = pieces(firsts, count);
        let requests = pieces.as_ref().map_or(count, |pieces| pieces.requests());
        let mut batch = Self::ended(smallvec![Report::moved(0); requests]);
        batch.state_mut().pieces = pieces;
        Self { holds, ..batch }
    }

    /// One whose pieces have been carried out; `firsts` are those of its requests, if they are paged.
    pub(crate) fn carried(pieces: &[Request], firsts: Option<&[u32]>) -> Self {
        Self::ended(moved(Reports::new(), pieces, firsts))
    }

    /// One that no worker has ever had a row for.
    fn ended(reports: Reports) -> Self {
        Self::with_state(RowId::default(), State::ended(reports))
    }

    /// The same requests once more, carried out. It has ended, and nobody else knows it.
    pub(crate) fn carried_again(&mut self, requests: &[Request], firsts: Option<&[u32]>) {
        self.row = RowId::default();
        self.slip = None;
        let state = self.state_mut();
        let reports = std::mem::take(&mut state.reports);
        let pieces = state.pieces.take();
        *state = State::ended(moved(reports, requests, firsts));
        state.pieces = pieces;
    }

    /// The same requests once more, in another row. It has ended, nobody else knows it, and its segments are held anew.
    pub(crate) fn begin_again(
        &mut self,
        row: RowId,
        room: Grant,
        notification: Option<Outgoing>,
        claim: Option<Claim>,
        mut order: Order,
    ) {
        self.row = row;
        self.slip = notification
            .as_ref()
            .map(|notification| Owned::new(notification.slip().clone()));
        let state = self.state_mut();
        let mut reports = std::mem::take(&mut state.reports);
        reports.fill(Report::PENDING);
        let mut pieces = state.pieces.take();
        if let Some(pieces) = &mut pieces {
            pieces.begin_again();
        }
        *state = State {
            room,
            sight: order.sight.take(),
            order,
            pieces,
            counters: counters(&reports),
            open: reports.len() as u32,
            reports,
            notification,
            claim,
            ..State::new()
        };
    }

    /// What its requests use.
    pub(crate) fn holds(&self) -> &Holds {
        &self.holds
    }

    fn state_mut(&mut self) -> &mut State {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it asks for, and how many of that may be under way at a time: for whoever carries it out, once.
    pub(crate) fn take_order(&self) -> (Order, usize) {
        let mut state = self.state();
        let order = std::mem::take(&mut state.order);
        // What takes no room, in tests, is not bounded by it.
        let width = usize::from(state.room.works());
        let width = if width == 0 { order.list.len() } else { width };
        (order, width)
    }

    /// Pieces that have been reported.
    pub(crate) fn reported(&self) -> usize {
        self.state().reported
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how a piece ended: the room that nobody needs any more. That of the last one goes with the batch's row.
    pub(crate) fn record(&self, piece: usize, report: Report) -> Grant {
        let mut state = self.state();
        let freed = state.record(piece, report);
        let room = state.spare_room();
        drop(state);
        if freed > 0 {
            self.holds.release(piece, freed);
        }
        room
    }

    /// The same of all pieces from this one on.
    pub(crate) fn record_rest(&self, from: usize, report: Report) -> Grant {
        let mut state = self.state();
        for piece in from..state.pieces() {
            self.holds.release(piece, state.record(piece, report));
        }
        state.spare_room()
    }

    /// More is known of a piece than was reported: what of its memory is free.
    pub(crate) fn settle(&self, piece: usize, local: Local, remote: Remote) {
        let mut state = self.state();
        let freed = state.settle(piece, local, remote);
        let over = state.is_over();
        let claim = state.claim.take_if(|_| over);
        let wakers = state.take_releases();
        drop(state);
        drop(claim);
        if freed {
            self.holds.release(piece, 1);
        }
        if over {
            self.done.notify_all();
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Who has to see what it has written before it ends: the first ticket, and the peers.
    pub(crate) fn sight(&self) -> Option<(u64, Vec<PeerId>)> {
        let state = self.state();
        let sight = state.sight.as_ref()?;
        Some((sight.ticket, sight.peers.clone()))
    }

    /// Nobody has proved in time that what it has written can be seen.
    pub(crate) fn doubt(&self) {
        self.state().doubt();
    }

    /// It has been proved after all.
    pub(crate) fn believe(&self) {
        let mut state = self.state();
        state.believe();
        let over = state.is_over();
        let claim = state.claim.take_if(|_| over);
        let wakers = state.take_releases();
        drop(state);
        drop(claim);
        self.done.notify_all();
        wakers.into_iter().for_each(Waker::wake);
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
        let mut state = self.state();
        state.closed = true;
        let claim = state.claim.take();
        let wakers = state.take_releases();
        drop(state);
        drop(claim);
        self.done.notify_all();
        wakers.into_iter().for_each(Waker::wake);
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
            counters,
            reports,
            pieces,
            ..
        } = &mut *state;
        for (index, report) in reports.iter_mut().enumerate() {
            if let Some(pieces) = pieces {
                self.abandon_pieces(pieces, index, report, counters, begun, go_on);
                continue;
            }
            let pending = report.status == Status::Pending;
            let was_held = report.local == Local::Held;
            let is_touched = || self.holds.is_touched(index);
            let has_begun = begun.has(index);
            if was_held && !((!pending || has_begun) && (go_on || is_touched())) {
                report.local = Local::Released;
                self.holds.release(index, 1);
            }
            if pending {
                let (status, cause, remote) = left_behind(has_begun);
                (report.status, report.cause, report.remote) = (status, Some(cause), remote);
                counters.end(report);
            }
        }
        state.open = state.reports.iter().filter(|r| is_open(r)).count() as u32;
        state.closed = true;
        self.end(state)
    }

    fn abandon_pieces(
        &self,
        pieces: &mut Pieces,
        index: usize,
        report: &mut Report,
        counters: &mut Counters,
        begun: &Begun,
        go_on: bool,
    ) {
        let pending = report.status == Status::Pending;
        let first = pieces.of(index).start;
        let is_kept = go_on || self.holds.is_touched(first);
        let freed = pieces.abandon(index, |piece| begun.has(piece), is_kept, report);
        self.holds.release(first, freed);
        if pending {
            counters.end(report);
        }
    }

    /// Pieces in all.
    pub(crate) fn pieces(&self) -> usize {
        self.state().pieces()
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
        let is_over = ended.is_over || state.closed;
        // First: whoever has waited for it may write there.
        drop(state.claim.take_if(|_| is_over));
        let wakers = state.take_releases();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        ended.followers.fill_trays(ended.report);
        if sleepers > 0 {
            self.done.notify_all();
        }
        ended
    }
}

/// Those of paged requests.
fn pieces(firsts: Option<Arc<[u32]>>, count: usize) -> Option<Box<Pieces>> {
    firsts.map(|firsts| Box::new(Pieces::new(firsts, count)))
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

    /// Calls the program's code. No lock may be held: it may do anything.
    pub(crate) fn tell(self) {
        self.followers.tell(self.report);
    }
}
