//! Staged requests: which of them begins a chunk next, and how each one ends.

use super::Staged;
use super::claim::{Role, Run, Step};
use super::route::StagedRequest;
use crate::queue::{Link, Linked};
use crate::report::{Local, Remote, Report, Status};
use crate::time::Instant;
use crate::units::{PeerId, StagedId};
use crate::work::Cause;

/// The links of a request. In its peer's line for rows.
pub(super) const TURN: usize = 0;
/// Ended, and not told yet.
pub(super) const ENDED: usize = 1;

/// A staged request. Rows are the caller's memory, as [`crate::table::Row`]s of this.
#[derive(Debug)]
pub struct Request {
    turn: Link,
    ended: Link,
    pub(super) route: StagedRequest,
    pub(super) chunk_bytes: u32,
    /// Bytes from the start that chunks have been made of.
    pub(super) begun_bytes: u64,
    pub(super) delivered_bytes: u64,
    /// Chunks on their way.
    pub(super) chunks: u32,
    pub(super) since: Instant,
    /// Why it ends other than well.
    pub(super) ending: Option<Cause>,
    /// An attempt that names the near end has ended without proof.
    pub(super) held: bool,
    /// An attempt that writes to the far end has ended without proof.
    pub(super) unknown: bool,
    /// Not all that is open of it is remembered: nothing is told of it after its report.
    pub(super) untold: bool,
    pub(super) report: Option<Report>,
}

impl Request {
    pub(super) fn new(now: Instant, route: StagedRequest, chunk_bytes: u32) -> Self {
        Self {
            turn: Link::NONE,
            ended: Link::NONE,
            route,
            chunk_bytes,
            begun_bytes: 0,
            delivered_bytes: 0,
            chunks: 0,
            since: now,
            ending: None,
            held: false,
            unknown: false,
            untold: false,
            report: None,
        }
    }

    pub(super) fn wants_chunk(&self) -> bool {
        self.ending.is_none() && self.begun_bytes < self.route.length
    }

    fn has_ended(&self) -> bool {
        self.chunks == 0 && !self.wants_chunk()
    }

    fn make_report(&self) -> Report {
        let open = self.held || self.unknown;
        let status = match self.ending {
            _ if open => Status::Indeterminate,
            None => Status::Completed,
            Some(Cause::PeerGone) => Status::PeerLost,
            Some(Cause::Cancelled) => Status::Cancelled,
            Some(Cause::DeadlineExceeded) => Status::DeadlineExceeded,
            Some(Cause::ShutDown) => Status::ShutDown,
            Some(_) => Status::Failed,
        };
        Report {
            status,
            delivered_bytes: self.delivered_bytes,
            cause: self.ending,
            local: if self.held {
                Local::Held
            } else {
                Local::Released
            },
            remote: if self.unknown {
                Remote::Unknown
            } else {
                Remote::Settled
            },
        }
    }
}

impl Linked<TURN> for Request {
    fn link(&mut self) -> &mut Link {
        &mut self.turn
    }
}

impl Linked<ENDED> for Request {
    fn link(&mut self) -> &mut Link {
        &mut self.ended
    }
}

impl Staged<'_> {
    /// Gives the peer's idle rows to its requests, in turn.
    pub(super) fn begin_chunks(&mut self, now: Instant, peer: PeerId) {
        if self.is_held_off(peer) {
            return;
        }
        while let Some((id, row)) = self.next_turn(now, peer) {
            let Some(request) = self.requests.get_mut(id) else {
                return;
            };
            debug_assert!(
                request.wants_chunk() && request.chunk_bytes > 0,
                "a chunk of up to {} bytes is begun, and {} of {} have been",
                request.chunk_bytes,
                request.begun_bytes,
                request.route.length
            );
            let rest = request.route.length - request.begun_bytes;
            let length = rest.min(u64::from(request.chunk_bytes)) as u32;
            let offset = request.begun_bytes;
            request.begun_bytes += u64::from(length);
            request.chunks += 1;
            if request.wants_chunk() {
                self.queue_turn(now, peer, id);
            }
            self.begin_chunk(now, row, id, offset, length);
        }
    }

    /// A request whose turn it is, and a row for its chunk.
    fn next_turn(&mut self, now: Instant, peer: PeerId) -> Option<(StagedId, u32)> {
        let queues = self.peers.get_mut(peer.index())?;
        if queues.idle.is_empty() {
            return None;
        }
        let request = queues.turns.pop(&mut self.requests, now)?;
        let row = queues.idle.pop_front(&mut *self.claims)?;
        Some((self.requests.id_at(request)?, row))
    }

    /// Puts a request at the end of its peer's line for rows.
    pub(super) fn queue_turn(&mut self, now: Instant, peer: PeerId, id: StagedId) {
        let priority = self.requests.get(id).map(|request| request.route.priority);
        if let (Some(queues), Some(priority)) = (self.peers.get_mut(peer.index()), priority) {
            let turns = &mut queues.turns;
            turns.push(&mut self.requests, now, priority, id.index);
        }
        self.calling.push_back(&mut *self.peers, peer.0.into());
    }

    /// Ends a request other than well: what is being carried out is called back and waited for, all else is given back.
    pub(super) fn end(&mut self, now: Instant, id: StagedId, cause: Cause) {
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        let StagedRequest {
            peer, priority, op, ..
        } = request.route;
        let is_first = request
            .ending
            .replace(request.ending.unwrap_or(cause))
            .is_none();
        if let Some(queues) = self.peers.get_mut(peer.index()) {
            let turns = &mut queues.turns;
            turns.remove(&mut self.requests, priority, id.index);
        }
        for row in self.chunk_rows(peer) {
            let Some(chunk) = self.chunk(row).filter(|chunk| chunk.request == Some(id)) else {
                continue;
            };
            // A stage that nobody has been told of is not begun: `poll_stage` passes over it.
            let runs = self.claim(row).is_some_and(|claim| claim.run == Run::Out);
            match chunk.step {
                _ if runs && is_first => self.revoke(row),
                _ if runs => {}
                Step::Go => self.recall(now, row, op),
                Step::Recall => {}
                _ => self.detach(now, row),
            }
        }
        self.settle_request(id);
    }

    /// Reports a request if nothing of it is left.
    pub(super) fn settle_request(&mut self, id: StagedId) {
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        if request.has_ended() && request.report.is_none() {
            let report = request.make_report();
            debug_assert!(
                report.status != Status::Completed
                    || report.delivered_bytes == request.route.length,
                "all has arrived, and that is {} bytes of {}",
                report.delivered_bytes,
                request.route.length
            );
            request.report = Some(report);
            self.ended.push_back(&mut self.requests, id.index);
            self.note_report(id);
        }
    }

    /// Whether a chunk's request goes on.
    pub(super) fn goes_on(&self, row: u32) -> bool {
        let id = self.chunk(row).and_then(|chunk| chunk.request);
        let request = id.and_then(|id| self.requests.get(id));
        request.is_some_and(|request| request.ending.is_none() && !request.held && !request.unknown)
    }

    /// The requests whose deadline has passed end; the rest say when to look again.
    pub(super) fn end_overdue(&mut self, now: Instant) {
        let mut next = Instant::MAX;
        for row in 0..self.requests.capacity() as u32 {
            let request = self.requests.at(row).filter(|row| row.ending.is_none());
            let Some(at) = request.and_then(|request| request.route.deadline) else {
                continue;
            };
            match self.requests.id_at(row) {
                Some(id) if at <= now => self.end(now, id, Cause::DeadlineExceeded),
                _ => next = next.min(at),
            }
        }
        self.deadline = next;
    }

    /// All requests, or those to one peer, end.
    pub(super) fn end_all(&mut self, now: Instant, peer: Option<PeerId>, cause: Cause) {
        for row in 0..self.requests.capacity() as u32 {
            let request = self.requests.at(row).filter(|row| row.report.is_none());
            if request.is_some_and(|row| peer.is_none_or(|peer| row.route.peer == peer))
                && let Some(id) = self.requests.id_at(row)
            {
                self.end(now, id, cause);
            }
        }
    }

    /// Something for a peer has waited in vain for as long as it may. What has been there as long does not find out for itself,
    /// a few chunks after the others: it ends too, if `is_alike` says that it depends on the same.
    pub(super) fn end_alike(
        &mut self,
        now: Instant,
        peer: PeerId,
        cause: Cause,
        is_alike: impl Fn(&StagedRequest) -> bool,
    ) {
        let mut oldest = Instant::MAX;
        for row in 0..self.requests.capacity() as u32 {
            let request = self.requests.at(row).filter(|row| row.ending.is_none());
            let Some(request) = request.filter(|request| request.route.peer == peer) else {
                continue;
            };
            let is_old = now.since(request.since) >= self.config.answer_timeout;
            match self.requests.id_at(row) {
                Some(id) if is_old && is_alike(&request.route) => self.end(now, id, cause),
                _ => oldest = oldest.min(request.since),
            }
        }
        if let Some(peer) = self.peers.get_mut(peer.index()) {
            peer.oldest = oldest;
        }
    }

    /// The row is a chunk's of a request; `None` if it is something else.
    pub(super) fn route_of(&self, row: u32) -> Option<StagedRequest> {
        let Role::Chunk(chunk) = self.claim(row)?.role else {
            return None;
        };
        self.requests
            .get(chunk.request?)
            .map(|request| request.route)
    }
}
