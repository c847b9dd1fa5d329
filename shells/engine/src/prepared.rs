//! Requests that are checked once and posted many times.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use polyrail_core::batch::BatchReport;
use polyrail_core::report::Status;
use polyrail_core::units::PlanId;

use crate::batch::{Batch, Shared};
use crate::engine::Engine;
use crate::error::SubmitError;
use crate::post::{List, Order, Post, Submission};
use crate::request::{Prepared, Request, Terms, check_size};
use crate::segments::{Holds, SegmentId};
use crate::standing::said_of;

/// Batches of one transfer that are kept to be used again.
const SPARES_MAX: usize = 64;
/// As many are there from the start as it takes if each post is waited for: that of the program, one that a thread of
/// each worker has just told of and not let go of yet, and these for threads that wait and look.
const SPARES_MORE: usize = 3;

/// Requests that are ready to be posted, as often as one likes: what [`Engine::prepare_transfer`] gives.
///
/// What a submission does for each request is done once: its segments are looked up and its range checked. A post
/// then looks whether the segments are still there, once for each pair of them, and hands the requests over. It
/// allocates nothing, as long as the program drops the batches that it is done with: their memory is used again. What
/// overlaps more than a few times takes more of them at first. A notification is copied, so a post that carries one allocates.
///
/// Segments that [stand](crate::OpenTerms::standing) are followed: the first post after their owner is back checks all anew. That one
/// allocates.
///
/// Posts may overlap, and nothing keeps their order; wait for one before the next if they move the same bytes.
pub struct PreparedTransfer {
    engine: Engine,
    /// What is posted.
    requests: Vec<Request>,
    /// What the program named; `None`: the same, because no segment of it stands.
    named: Option<Named>,
    /// If they are the pieces of paged requests: the first of each.
    firsts: Option<Arc<[u32]>>,
    way: Way,
    /// Batches of earlier posts, the oldest first. One that nobody else knows any more is used again.
    spares: VecDeque<Arc<Shared>>,
}

/// How a post stands when it returns: see [`PreparedTransfer::post_or_finish`].
#[derive(Debug)]
pub enum Posted {
    /// All of it has been moved: there is nothing to wait for.
    Finished(BatchReport),
    /// It goes on, or has ended by now.
    Going(Batch),
}

/// What became of a post.
enum Gone {
    /// This thread has carried it out, with the drive lock of that worker.
    AtOnce(Arc<Post>),
    ToWorker(Batch),
}

/// Requests as the program named them, some of whose segments stand.
struct Named {
    requests: Vec<Request>,
    /// Those segments, and what each led to when it was looked up.
    ends: Vec<(SegmentId, SegmentId)>,
}

/// How its requests go.
enum Way {
    /// To a worker, as they are.
    Direct {
        submissions: Arc<Vec<Submission>>,
        /// The pairs of segments that occur, and the plan that each had last.
        pairs: Vec<Pair>,
    },
    /// Through slots: each post is prepared anew by whoever stages.
    Staged,
}

struct Pair {
    ids: (SegmentId, SegmentId),
    plan: PlanId,
    /// The first request with these segments.
    index: usize,
}

impl Engine {
    /// Checks requests like [`Self::submit`] and keeps them, to be posted many times.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use polyrail::{Access, Config, Engine, Op, Request, Status};
    /// # let target = Engine::new(Config { listen: Some("127.0.0.1:0".parse()?), ..Config::named("target") })?;
    /// # target.allocate("mem", 1 << 20, Access::RemoteReadWrite)?;
    /// # let engine = Engine::new(Config::named("initiator"))?;
    /// # let local = engine.allocate("here", 1 << 20, Access::Local)?;
    /// # let remote = engine.open_segment(&format!("{}/mem", target.listening().unwrap()))?;
    /// # let request = Request { op: Op::Write, local, local_offset: 0, remote, remote_offset: 0, length: 65_536 };
    /// let mut transfer = engine.prepare_transfer(&[request])?;
    /// for _ in 0..10 {
    ///     let batch = transfer.post()?;
    ///     assert_eq!(batch.wait(Duration::from_secs(5))?.status, Status::Completed);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare_transfer(&self, requests: &[Request]) -> Result<PreparedTransfer, SubmitError> {
        self.prepare_pieces(requests, None)
    }

    /// The same, of the pieces of paged requests if there are `firsts`: those where one begins.
    pub(crate) fn prepare_pieces(
        &self,
        requests: &[Request],
        firsts: Option<&Arc<[u32]>>,
    ) -> Result<PreparedTransfer, SubmitError> {
        if !self.inner.is_ours() {
            return Err(SubmitError::Forked);
        }
        if self.is_closing() {
            return Err(SubmitError::ShutDown);
        }
        check_size(requests)?;
        self.bound(requests, |bound| {
            let mut transfer = self.prepare_bound(bound, firsts)?;
            transfer.named = Named::of(requests, bound);
            Ok(transfer)
        })
    }

    fn prepare_bound(
        &self,
        requests: &[Request],
        firsts: Option<&Arc<[u32]>>,
    ) -> Result<PreparedTransfer, SubmitError> {
        let Prepared {
            submissions,
            held,
            stager,
        } = self.prepare(requests)?;
        held.release_all();
        let mut transfer = PreparedTransfer {
            engine: self.clone(),
            requests: requests.to_vec(),
            named: None,
            firsts: firsts.cloned(),
            way: Way::Staged,
            spares: VecDeque::new(),
        };
        if stager.is_none() {
            transfer.add_spares(held);
            transfer.way = Way::Direct {
                pairs: pairs(requests, &submissions),
                submissions: Arc::new(submissions),
            };
        }
        Ok(transfer)
    }
}

impl Named {
    /// `None`: none of the segments stands.
    fn of(named: &[Request], bound: &[Request]) -> Option<Self> {
        let both = named.iter().zip(bound);
        let mut ends: Vec<_> = both
            .map(|(named, bound)| (named.remote, bound.remote))
            .collect();
        ends.retain(|(named, bound)| named != bound);
        ends.sort_unstable();
        ends.dedup();
        (!ends.is_empty()).then(|| Self {
            requests: named.to_vec(),
            ends,
        })
    }
}

/// The pairs of segments that occur in requests.
fn pairs(requests: &[Request], submissions: &[Submission]) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = Vec::new();
    for (index, (request, submission)) in requests.iter().zip(submissions).enumerate() {
        let ids = (request.local, request.remote);
        if !pairs.iter().any(|pair| pair.ids == ids) {
            let plan = submission.plan;
            pairs.push(Pair { ids, plan, index });
        }
    }
    pairs
}

impl PreparedTransfer {
    /// Makes the batches that the first posts use.
    fn add_spares(&mut self, holds: Holds) {
        let spares = (self.engine.inner.workers.posts.len() + SPARES_MORE).min(SPARES_MAX);
        self.spares.reserve(SPARES_MAX);
        for _ in 0..spares {
            self.spares.push_back(Arc::new(Shared::spare(
                holds.clone(),
                self.requests.len(),
                self.firsts.clone(),
            )));
        }
    }

    /// Submits the requests as one batch, all or nothing.
    ///
    /// Example: [guide](crate::guide#the-same-transfer-again-and-again).
    pub fn post(&mut self) -> Result<Batch, SubmitError> {
        self.post_with(&Terms::default())
    }

    /// The same on other terms than usual.
    ///
    /// Example: [guide](crate::guide#the-same-transfer-again-and-again).
    pub fn post_with(&mut self, terms: &Terms<'_>) -> Result<Batch, SubmitError> {
        Ok(match self.post_anyhow(terms)? {
            Gone::ToWorker(batch) => batch,
            Gone::AtOnce(post) => self.carried(post),
        })
    }

    /// The same, but makes no batch of what this thread has carried out by itself before this returns (see [`Engine::submit`]):
    /// less to do, which is felt where a block is small.
    ///
    /// Example: [guide](crate::guide#the-same-transfer-again-and-again).
    pub fn post_or_finish(&mut self, terms: &Terms<'_>) -> Result<Posted, SubmitError> {
        Ok(match self.post_anyhow(terms)? {
            Gone::ToWorker(batch) => Posted::Going(batch),
            Gone::AtOnce(_) => {
                let firsts = self.firsts.as_ref();
                let requests = firsts.map_or(self.requests.len(), |firsts| firsts.len()) as u32;
                Posted::Finished(BatchReport {
                    status: Status::Completed,
                    requests,
                    ended: requests,
                    failed: 0,
                    delivered_bytes: self.requests.iter().map(|request| request.length).sum(),
                })
            }
        })
    }

    fn post_anyhow(&mut self, terms: &Terms<'_>) -> Result<Gone, SubmitError> {
        let Some(Named { requests, ends }) = &self.named else {
            return self.post_bound(terms);
        };
        if !self.engine.inner.is_ours() {
            return Err(SubmitError::Forked);
        }
        let segments = &self.engine.inner.segments;
        let leads = |(standing, now): &(SegmentId, SegmentId)| {
            segments.leads_to(*standing).as_ref() == Ok(now)
        };
        if !ends.iter().all(leads) {
            // They lead to another process, where all is checked anew.
            let anew = self.engine.prepare_pieces(requests, self.firsts.as_ref());
            *self = anew?;
        }
        let posted = self.post_bound(terms);
        posted.map_err(|error| match &self.named {
            Some(named) => said_of(error, &self.requests, &named.requests),
            None => error,
        })
    }

    fn post_bound(&mut self, terms: &Terms<'_>) -> Result<Gone, SubmitError> {
        let claim = self.engine.claim(&self.requests, self.firsts.as_deref())?;
        let engine = &self.engine;
        if !engine.inner.is_ours() {
            return Err(SubmitError::Forked);
        }
        if engine.is_closing() {
            return Err(SubmitError::ShutDown);
        }
        let Way::Direct { submissions, pairs } = &mut self.way else {
            let (pieces, firsts) = (&self.requests, self.firsts.as_ref());
            let posted = engine.submit_pieces(pieces, firsts, claim, terms);
            return posted.map(Gone::ToWorker);
        };
        let notification = engine.outgoing(&self.requests, terms)?;
        let sight = engine.sight(&self.requests, self.firsts.as_deref(), terms);
        if let Some(post) = engine.carry_at_once(&self.requests, terms) {
            return Ok(Gone::AtOnce(post.clone()));
        }
        let mut spare = unused(&mut self.spares);
        let held = hold(engine, &self.requests, submissions, pairs, spare.as_deref());
        let mut held = match held {
            Ok(held) => held,
            Err(error) => {
                self.spares.extend(spare);
                return Err(error);
            }
        };
        let post = engine.inner.workers.choose(submissions);
        let count = submissions.len();
        let make = |row, room, notification, due| {
            let mut batch = spare.take().unwrap_or_else(|| {
                let held = std::mem::take(&mut held);
                Arc::new(Shared::spare(held, count, self.firsts.clone()))
            });
            let list = List::Kept(submissions.clone());
            if let Some(batch) = Arc::get_mut(&mut batch) {
                batch.begin_again(row, room, notification, claim, Order { list, due, sight });
            }
            batch
        };
        let posted = engine.enqueue(post, count, terms, notification, make);
        match &posted {
            Ok(batch) => self.keep(batch),
            // Nothing was made: what was held is let go.
            Err(_) => {
                let held = spare.as_ref().map_or(&held, |spare| spare.holds());
                held.release_all();
                self.spares.extend(spare);
            }
        }
        posted.map(Gone::ToWorker)
    }

    /// The batch of a post that was carried out at once.
    fn carried(&mut self, post: Arc<Post>) -> Batch {
        let firsts = self.firsts.as_deref();
        let shared = match unused(&mut self.spares) {
            Some(mut spare) => {
                if let Some(again) = Arc::get_mut(&mut spare) {
                    again.carried_again(&self.requests, firsts);
                }
                spare
            }
            None => Arc::new(Shared::carried(&self.requests, firsts)),
        };
        let batch = Batch::new(shared, post);
        self.keep(&batch);
        batch
    }

    /// A batch is to be used again once nobody else knows it.
    fn keep(&mut self, batch: &Batch) {
        if self.spares.len() < SPARES_MAX {
            self.spares.push_back(batch.shared().clone());
        }
    }

    /// What it moves. Paged requests are shown as the ranges that they come to: blocks that lie one behind the other are one.
    ///
    /// Example: [guide](crate::guide#the-same-transfer-again-and-again).
    pub fn requests(&self) -> &[Request] {
        let named = self.named.as_ref();
        named.map_or(&self.requests, |named| &named.requests)
    }
}

/// An ended batch that nobody else knows. One that ended with something open is given up: what it holds stays held.
fn unused(spares: &mut VecDeque<Arc<Shared>>) -> Option<Arc<Shared>> {
    let alone = |spare: &mut Arc<Shared>| Arc::get_mut(spare).is_some();
    let place = spares.iter_mut().position(alone)?;
    let spare = spares.remove(place)?;
    spare.is_over().then_some(spare)
}

/// Looks whether all segments are still there, and marks them as in use: in the batch that there is, or else in the
/// answer.
fn hold(
    engine: &Engine,
    requests: &[Request],
    submissions: &mut Arc<Vec<Submission>>,
    pairs: &mut [Pair],
    spare: Option<&Shared>,
) -> Result<Holds, SubmitError> {
    loop {
        let known = engine.inner.segments.known();
        let changed = pairs
            .iter()
            .position(|pair| known.pair(pair.ids).map(|known| known.plan) != Some(pair.plan));
        let Some(changed) = changed else {
            let Some(spare) = spare else {
                // All of them were there just now.
                return Ok(known.hold(requests).unwrap_or_default());
            };
            spare.holds().again();
            return Ok(Holds::default());
        };
        drop(known);
        // Another plan was made for them, or one of them has gone.
        let pair = &mut pairs[changed];
        pair.plan = engine.pair(pair.index, &requests[pair.index])?;
        let submissions = Arc::make_mut(submissions).iter_mut();
        for (request, submission) in requests.iter().zip(submissions) {
            if (request.local, request.remote) == pair.ids {
                submission.plan = pair.plan;
            }
        }
    }
}

impl Drop for PreparedTransfer {
    fn drop(&mut self) {
        if !self.engine.inner.is_ours() {
            // A child's copies: see `fork`.
            std::mem::forget(std::mem::take(&mut self.spares));
        }
    }
}

impl fmt::Debug for PreparedTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PreparedTransfer({} requests)", self.requests.len())
    }
}
