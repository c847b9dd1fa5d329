//! How requests come to whoever carries them out.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use polyrail_core::send_queue::credit::Grant;
use polyrail_core::time::Instant;

use crate::batch::{Batch, Shared as BatchShared};
use crate::delivery::Outgoing;
use crate::engine::Engine;
use crate::error::SubmitError;
use crate::overlap::Claim;
use crate::post::{Due, List, Order, Post};
use crate::request::{Prepared, Request, Terms, check_size};
use crate::room::{NoRoom, Room};
use crate::rows::{NoRow, RowId};
use crate::visible::Sight;

impl Engine {
    /// Submits requests as one batch, all or nothing. O(1) in their lengths, but for what this thread can copy by itself:
    /// up to [`crate::Config::at_once_bytes`] between memories of processes on this host are moved before it returns, if
    /// nothing else is under way with the worker, and the batch has ended then.
    ///
    /// There can be 1,000,000 of them. A batch takes room with a worker, which has some for
    /// [`limits.requests`](crate::LimitsConfig::requests), 16,384 if nothing else is said; a larger one takes a quarter of that,
    /// and has as many under way at a time.
    ///
    /// A program that has waited for a batch right after it submitted this or another one is expected to do so again,
    /// because then it drives the batch itself. Should it not, nor look at the batch, that begins, or goes on, up to
    /// 4 ms later.
    ///
    /// Example: [guide](crate::guide#batches).
    pub fn submit(&self, requests: &[Request]) -> Result<Batch, SubmitError> {
        self.submit_with(requests, &Terms::default())
    }

    /// Submits requests as one batch, all or nothing, and tells the peer's program `bytes` when it has
    /// completed: everything that was written is then visible there, and everything that was read has been.
    /// If it ends otherwise, the peer is told nothing. All requests must be between this engine and the same
    /// peer.
    ///
    /// The batch does not wait for the notification: [`Batch::delivery`] tells what becomes of it. If the peer
    /// has no room, it stays here, in line with the others to that peer, because the data has gone and cannot
    /// be taken back. So its place in the line is taken now: there are 16,384 to each peer, and
    /// [`SubmitError::Full`] when they are in use. Notifications to one peer arrive in the order in which
    /// their batches completed and [`Self::notify`] was called.
    ///
    /// Example: [guide](crate::guide#batches).
    pub fn submit_notifying(
        &self,
        requests: &[Request],
        bytes: &[u8],
    ) -> Result<Batch, SubmitError> {
        let terms = Terms {
            notification: Some(bytes),
            ..Terms::default()
        };
        self.submit_with(requests, &terms)
    }

    /// Submits requests as one batch, all or nothing, on other terms than usual.
    ///
    /// Example: [guide](crate::guide#batches).
    pub fn submit_with(
        &self,
        requests: &[Request],
        terms: &Terms<'_>,
    ) -> Result<Batch, SubmitError> {
        self.bound(requests, |requests| {
            let claim = self.claim(requests, None)?;
            self.submit_pieces(requests, None, claim, terms)
        })
    }

    /// What requests of the program's write, while it is looked whether others write to that. An error if nothing may begin.
    pub(crate) fn claim(
        &self,
        pieces: &[Request],
        firsts: Option<&[u32]>,
    ) -> Result<Option<Claim>, SubmitError> {
        if self.inner.ending.drains.load(Relaxed) {
            return Err(SubmitError::ShutDown);
        }
        self.inner.segments.check_leaving(pieces)?;
        let written = self.inner.written.as_ref();
        // A child's copy may be locked for ever.
        let written = written.filter(|_| self.inner.is_ours());
        written
            .map(|written| written.claim(pieces, firsts))
            .transpose()
    }

    /// The same, of the pieces of paged requests if there are `firsts`: those where one begins. Others may not write to what
    /// they [claim](Self::claim) until the batch is over.
    pub(crate) fn submit_pieces(
        &self,
        pieces: &[Request],
        firsts: Option<&Arc<[u32]>>,
        claim: Option<Claim>,
        terms: &Terms<'_>,
    ) -> Result<Batch, SubmitError> {
        let inner = &self.inner;
        let notification = self.outgoing(pieces, terms)?;
        if !inner.is_ours() {
            return Err(SubmitError::Forked);
        }
        if self.is_closing() {
            return Err(SubmitError::ShutDown);
        }
        check_size(pieces)?;
        if let Some(post) = self.carry_at_once(pieces, terms) {
            let carried = BatchShared::carried(pieces, firsts.map(|firsts| &firsts[..]));
            return Ok(Batch::new(Arc::new(carried), post.clone()));
        }
        let sight = self.sight(pieces, firsts.map(|firsts| &firsts[..]), terms);
        let prepared = self.prepare(pieces)?;
        self.submit_prepared(prepared, firsts, claim, terms, (notification, sight))
    }

    /// Submits a request through slots, whatever reaches both of its ends.
    pub(crate) fn submit_through_slots(
        &self,
        request: &Request,
        terms: &Terms<'_>,
    ) -> Result<Batch, SubmitError> {
        if self.is_closing() {
            return Err(SubmitError::ShutDown);
        }
        let prepared = self.prepare_staged(std::slice::from_ref(request), true)?;
        let sight = self.sight(std::slice::from_ref(request), None, terms);
        self.submit_prepared(prepared, None, None, terms, (None, sight))
    }

    fn submit_prepared(
        &self,
        prepared: Prepared,
        firsts: Option<&Arc<[u32]>>,
        claim: Option<Claim>,
        terms: &Terms<'_>,
        (notification, sight): (Option<Outgoing>, Option<Box<Sight>>),
    ) -> Result<Batch, SubmitError> {
        let inner = &self.inner;
        let Prepared {
            submissions,
            held,
            stager,
        } = prepared;
        let post = match &stager {
            Some(stager) => &stager.post,
            None => inner.workers.choose(&submissions),
        };
        let count = submissions.len();
        // Taken only if there is a row for the batch; else they are let go.
        let mut held = Some(held);
        let make = |row, room, notification, due| {
            let list = List::Once(submissions);
            let held = held.take().unwrap_or_default();
            let order = Order { list, due, sight };
            let batch = BatchShared::new(row, held, order, firsts.cloned());
            let batch = batch.taking(room).claiming(claim);
            Arc::new(match notification {
                Some(notification) => batch.notifying(notification),
                None => batch,
            })
        };
        let submitted = self.enqueue(post, count, terms, notification, make);
        submitted.inspect_err(|_| held.unwrap_or_default().release_all())
    }

    /// Submits a hop of what is staged, also where programs have taken all the room that there is for them: they may wait
    /// for it. Itself it does not wait.
    pub(crate) fn submit_hop(
        &self,
        request: &Request,
        terms: &Terms<'_>,
    ) -> Result<Batch, SubmitError> {
        let request = std::slice::from_ref(request);
        match self.submit_pieces(request, None, None, terms) {
            Err(SubmitError::Full(_)) => {}
            submitted => return submitted,
        }
        let prepared = self.prepare(request)?;
        if prepared.stager.is_some() {
            // What a worker takes for a plan would be two segments.
            prepared.held.release_all();
            return Err(SubmitError::Staging);
        }
        let post = self.inner.workers.choose(&prepared.submissions);
        let mut held = Some(prepared.held);
        let sight = self.sight(request, None, terms);
        let make = |row, room, _, due| {
            let list = List::Once(prepared.submissions);
            let order = Order { list, due, sight };
            let batch = BatchShared::new(row, held.take().unwrap_or_default(), order, None);
            Arc::new(batch.taking(room).for_hop())
        };
        let submitted = self.enqueue_in(&post.hop_room, post, 1, terms, None, make);
        submitted.inspect_err(|_| held.unwrap_or_default().release_all())
    }

    /// Hands a batch of so many requests to whoever carries them out. `make` makes it, once there is room.
    pub(crate) fn enqueue(
        &self,
        post: &Arc<Post>,
        requests: usize,
        terms: &Terms<'_>,
        notification: Option<Outgoing>,
        make: impl FnOnce(RowId, Grant, Option<Outgoing>, Due) -> Arc<BatchShared>,
    ) -> Result<Batch, SubmitError> {
        self.enqueue_in(&post.room, post, requests, terms, notification, make)
    }

    fn enqueue_in(
        &self,
        whole: &Room,
        post: &Arc<Post>,
        requests: usize,
        terms: &Terms<'_>,
        notification: Option<Outgoing>,
        make: impl FnOnce(RowId, Grant, Option<Outgoing>, Due) -> Arc<BatchShared>,
    ) -> Result<Batch, SubmitError> {
        let inner = &self.inner;
        let room = whole.take(
            &inner.clock,
            post.width(requests),
            self.inner.workers.patience(terms),
            // What is under way has to go on while this thread sleeps.
            || post.look_after(),
        );
        let room = room.map_err(|why| match why {
            NoRoom::Full(backlog) => SubmitError::Full(Some(backlog)),
            NoRoom::Closed => SubmitError::ShutDown,
        })?;
        let mut room = Some(room);
        let tells = notification.is_some();
        let due = Due {
            priority: terms.priority,
            deadline: terms
                .deadline
                .map_or(Instant::MAX, |within| inner.clock.now() + within.into()),
        };
        let make = |row| make(row, room.take().unwrap_or_default(), notification, due);
        match post.submit(make) {
            Ok(batch) => {
                if tells {
                    // Somebody on the other side waits for it, if nobody here does.
                    post.look_after();
                }
                Ok(Batch::new(batch, post.clone()))
            }
            Err(why) => {
                whole.give_back(room.unwrap_or_default());
                Err(match why {
                    NoRow::Full => SubmitError::Full(None),
                    NoRow::Closed => SubmitError::ShutDown,
                })
            }
        }
    }
}
