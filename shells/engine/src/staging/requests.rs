//! Requests that are staged or, being of the same batch as one that is, submitted from here.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::*;

use polyrail_core::orchestrator::Cancelled;
use polyrail_core::report::{Report, Status, Unbegun};
use polyrail_core::stage::{Event, StageRefused, Staged, StagedRequest};
use polyrail_core::time::Instant;
use polyrail_core::units::{PeerId, StagedId};
use polyrail_core::work::{Op, Priority};

use super::work::{CHUNKS, Work};
use super::{Route, Word};
use crate::batch::{Batch, Shared as BatchShared};
use crate::engine::Engine;
use crate::error::SubmitError;
use crate::intake::{End, Rest};
use crate::post::Arrival;
use crate::request::{Request, Terms};
use crate::rows::RowId;
use crate::segments::SegmentId;
use crate::stats;

/// Rows that requests of one priority to one peer may take: as many as can have a chunk on its way. Who never answers, and
/// what is urgent to nobody, leave the rest to others.
const SHARE: u16 = CHUNKS as u16;
/// Rows of all of so many peers.
pub(super) const fn rows_of(peers: usize) -> usize {
    peers * SHARE as usize
}

/// Attempts without proof that are remembered for their requests.
pub(super) const UNPROVEN: usize = 1_024;

/// What is taken in.
pub(super) type Intake = crate::intake::Intake<Missing, (), Running>;

/// Room that a request can be held back for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Missing {
    /// A row of core's, of the share of a peer and a priority.
    Row(PeerId, Priority),
    /// Room with a worker.
    Worker,
}

/// A request that was begun.
pub(super) enum Running {
    Staged(StagedId),
    /// As a batch of its own.
    Direct(Batch),
}

/// Why a request has not begun.
enum NotBegun {
    /// There is no room for it now.
    Missing(Missing),
    /// It has ended.
    Ended(Unbegun),
}

/// A request that core has.
struct Known {
    /// What it was submitted under.
    tag: u64,
    /// Whose share it takes.
    peer: PeerId,
    priority: Priority,
    begun: Instant,
    op: Op,
    length: u64,
}

/// Requests that core has.
pub(super) struct Requests {
    /// Each by its number.
    known: HashMap<StagedId, Known>,
    /// Rows that are taken, by peer and priority.
    taken: Box<[[u16; Priority::ALL.len()]]>,
    /// Those that were reported without proof, with their tags, the oldest first.
    unproven: VecDeque<(StagedId, u64)>,
}

impl Requests {
    pub(super) fn new(peers: usize) -> Self {
        Self {
            known: HashMap::new(),
            taken: vec![[0; Priority::ALL.len()]; peers].into(),
            unproven: VecDeque::new(),
        }
    }

    fn taken(&mut self, peer: PeerId, priority: Priority) -> Option<&mut u16> {
        self.taken.get_mut(peer.index())?.get_mut(priority as usize)
    }

    /// Whether a share has been used up.
    fn is_full(&mut self, peer: PeerId, priority: Priority) -> bool {
        self.taken(peer, priority)
            .is_some_and(|taken| *taken >= SHARE)
    }

    fn add(&mut self, now: Instant, id: StagedId, tag: u64, request: &StagedRequest) {
        let StagedRequest {
            peer,
            priority,
            op,
            length,
            ..
        } = *request;
        let known = Known {
            tag,
            peer,
            priority,
            begun: now,
            op,
            length,
        };
        self.known.insert(id, known);
        if let Some(taken) = self.taken(peer, priority) {
            *taken += 1;
        }
    }

    /// One has ended.
    fn remove(&mut self, id: StagedId) -> Option<Known> {
        let known = self.known.remove(&id)?;
        if let Some(taken) = self.taken(known.peer, known.priority) {
            *taken -= 1;
        }
        Some(known)
    }

    /// One has been reported without proof, and may be told of again.
    fn keep(&mut self, id: StagedId, tag: u64) {
        if self.unproven.len() >= UNPROVEN {
            self.unproven.pop_front();
        }
        self.unproven.push_back((id, tag));
    }

    /// The tag of one that was reported without proof.
    fn find(&self, id: StagedId) -> Option<u64> {
        let found = self.unproven.iter().find(|(kept, _)| *kept == id);
        found.map(|(_, tag)| *tag)
    }
}

impl Work {
    /// Begins what has been submitted and what there is room for again, and ends what is to end.
    pub(super) fn take_in(&mut self, core: &mut Staged<'_>, engine: &Engine, now: Instant) {
        self.intake.look_again();
        while let Some(arrival) = self.next_arrival(engine) {
            match self.submit(core, engine, now, &arrival) {
                Ok(running) => self.intake.note(arrival.row, running),
                Err(NotBegun::Missing(room)) => self.intake.hold_back(room, &arrival),
                Err(NotBegun::Ended(why)) => self.report(arrival.tag, why.report()),
            }
        }
        while let Some(end) = self.intake.next_end() {
            match end {
                End::Cancel(row) => self.cancel(core, now, row),
                End::ShutDown(at) => {
                    let held = self.intake.withdraw(None);
                    self.withdraw(&held, Unbegun::ShutDown);
                    self.ending_at = Some(at);
                    core.shut_down(now);
                }
            }
        }
        let overdue = self.intake.take_overdue(now);
        self.withdraw(&overdue, Unbegun::DeadlineExceeded);
    }

    fn next_arrival(&mut self, engine: &Engine) -> Option<Arrival> {
        self.intake
            .next(&self.post, |arrival| match route(engine, arrival) {
                Ok(Route::Staged { peer, .. }) => Missing::Row(peer, arrival.due.priority),
                Ok(Route::Direct) | Err(_) => Missing::Worker,
            })
    }

    fn submit(
        &mut self,
        core: &mut Staged<'_>,
        engine: &Engine,
        now: Instant,
        arrival: &Arrival,
    ) -> Result<Running, NotBegun> {
        if self.ending_at.is_some() {
            return Err(NotBegun::Ended(Unbegun::ShutDown));
        }
        let gone = |_| NotBegun::Ended(Unbegun::PeerLost);
        let route = route(engine, arrival).map_err(gone)?;
        match route.staged(&request(arrival), arrival.due) {
            Some(staged) => self.stage(core, now, arrival.tag, &staged),
            None => self.direct(engine, now, arrival),
        }
    }

    /// Hands a request to core.
    fn stage(
        &mut self,
        core: &mut Staged<'_>,
        now: Instant,
        tag: u64,
        request: &StagedRequest,
    ) -> Result<Running, NotBegun> {
        let StagedRequest { peer, priority, .. } = *request;
        let full = NotBegun::Missing(Missing::Row(peer, priority));
        if self.requests.is_full(peer, priority) {
            return Err(full);
        }
        match core.submit(now, request) {
            Ok(id) => {
                self.requests.add(now, id, tag, request);
                Ok(Running::Staged(id))
            }
            Err(StageRefused::Full | StageRefused::PeerFull) => Err(full),
            Err(refused) => {
                log::error!("core refused a staged request that was checked: {refused:?}");
                Err(NotBegun::Ended(Unbegun::Refused))
            }
        }
    }

    /// Submits a request that a transport carries, as a batch of its own.
    fn direct(
        &self,
        engine: &Engine,
        now: Instant,
        arrival: &Arrival,
    ) -> Result<Running, NotBegun> {
        let Arrival { tag, due, .. } = *arrival;
        let terms = terms(now, due.within(), due.priority);
        let request = [request(arrival)];
        match self.with_room(engine, || {
            engine.submit_pieces(&request, None, None, &terms)
        }) {
            Ok(batch) => {
                let words = self.words.clone();
                follow(batch.clone(), move |report| {
                    words.put(Word::Ended { tag, report });
                });
                Ok(Running::Direct(batch))
            }
            Err(SubmitError::Full(_)) => Err(NotBegun::Missing(Missing::Worker)),
            Err(error) => Err(NotBegun::Ended(not_begun(&error))),
        }
    }

    /// Does what needs room with a worker. If there is none, this thread is woken when some comes back.
    pub(super) fn with_room(
        &self,
        engine: &Engine,
        submit: impl Fn() -> Result<Batch, SubmitError>,
    ) -> Result<Batch, SubmitError> {
        match submit() {
            Err(SubmitError::Full(_)) => {}
            submitted => return submitted,
        }
        for worker in &engine.inner.workers.posts {
            worker.call_for_room(&self.post);
        }
        submit()
    }

    fn cancel(&mut self, core: &mut Staged<'_>, now: Instant, row: RowId) {
        let held = self.intake.withdraw(Some(row));
        self.withdraw(&held, Unbegun::Cancelled);
        for running in self.intake.requests(row) {
            match running {
                Running::Staged(id) => {
                    let _: Cancelled = core.cancel(now, *id);
                }
                Running::Direct(batch) => batch.cancel(),
            }
        }
    }

    /// Ends what was held back.
    fn withdraw(&mut self, held: &[Rest], why: Unbegun) {
        for Rest { row, batch, from } in held {
            let left = batch.pieces().saturating_sub(*from);
            let report = why.report();
            self.post.requests.count_unbegun(report.status, left);
            self.post.note_rest(batch, *from, report);
            self.finish_reported(*row, batch);
        }
    }

    fn count(&self, known: &Known, report: &Report) {
        let end = stats::End {
            over: stats::Over::Staging,
            op: known.op,
            length: known.length,
            status: report.status,
            delivered_bytes: report.delivered_bytes,
            took: Some(self.clock.now().since(known.begun)),
        };
        self.post.requests.count(&end, 1);
    }

    /// Reports what has ended in core. Whether there was anything: it has left room.
    pub(super) fn report_ended(&mut self, core: &mut Staged<'_>) -> bool {
        let mut any = false;
        while let Some(event) = core.poll_event() {
            match event {
                Event::Ended { request, report } => {
                    any = true;
                    if let Some(known) = self.requests.remove(request) {
                        if report.status == Status::Indeterminate {
                            self.requests.keep(request, known.tag);
                        }
                        self.count(&known, &report);
                        self.post.unsettled.reported(
                            self.clock.now(),
                            known.tag,
                            known.length,
                            &report,
                        );
                        self.report(known.tag, report);
                    }
                }
                Event::Settled {
                    request,
                    local,
                    remote,
                } => {
                    if let Some(tag) = self.requests.find(request) {
                        self.post.settle(tag, local, remote);
                    }
                }
            }
        }
        any
    }

    pub(super) fn report(&mut self, tag: u64, report: Report) {
        let (row, position) = RowId::from_tag(tag);
        if let Some(batch) = self.post.batch(row) {
            self.post.note(&batch, position, report);
            self.finish_reported(row, &batch);
        }
    }

    /// Tells of a batch if all its requests have been reported.
    fn finish_reported(&mut self, row: RowId, batch: &BatchShared) {
        if batch.is_reported() {
            self.intake.close(row);
            let ended = self.post.finish(row, |ticket| ticket.go(&self.plane));
            if let Some(ended) = ended {
                self.tells.store(true, Release);
                ended.tell();
                self.tells.store(false, Release);
            }
        }
    }
}

/// What was submitted, with the numbers of its segments where a worker's has that of its plan.
pub(super) fn request(arrival: &Arrival) -> Request {
    let submission = &arrival.submission;
    Request {
        op: submission.op,
        local: SegmentId(submission.plan.index),
        local_offset: submission.local_offset,
        remote: SegmentId(submission.plan.generation),
        remote_offset: submission.remote_offset,
        length: submission.length,
    }
}

/// Which way it goes.
fn route(engine: &Engine, arrival: &Arrival) -> Result<Route, SubmitError> {
    let through_slots = arrival.submission.through_slots;
    engine.route(arrival.position, &request(arrival), through_slots)
}

/// Tells how the one request of a batch has ended.
pub(super) fn follow(batch: Batch, tell: impl FnOnce(Report) + Send + 'static) {
    let ended = batch.clone();
    batch.on_done(move |_| {
        if let Some(report) = ended.report(0) {
            tell(report);
        }
    });
}

/// Nobody waits for room: this thread has others to serve.
pub(super) fn terms(now: Instant, deadline: Option<Instant>, priority: Priority) -> Terms<'static> {
    Terms {
        deadline: deadline.map(|at| at.since(now).into()),
        room_within: Some(std::time::Duration::ZERO),
        priority,
        ..Terms::default()
    }
}

/// Why no worker took a request.
pub(super) fn not_begun(error: &SubmitError) -> Unbegun {
    match error {
        SubmitError::PeerLost { .. } => Unbegun::PeerLost,
        SubmitError::ShutDown => Unbegun::ShutDown,
        SubmitError::Forbidden { .. } | SubmitError::OutOfRange { .. } => Unbegun::Denied,
        _ => Unbegun::Impossible,
    }
}
