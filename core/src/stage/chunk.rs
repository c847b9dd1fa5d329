//! The life of a chunk of ours: slots from the last hop backwards, then stage by stage towards the destination, and
//! every slot back as soon as nothing names it.

use super::Staged;
use super::claim::{Chunk, Remote, Role, Run, Step};
use super::pool::Suspect;
use super::route::StagedRequest;
use super::unproven::By;
use crate::report::{self, Local, Report, Status};
use crate::time::Instant;
use crate::units::{PeerId, StageId, StagedId};
use crate::work::{Cause, Op};

impl Staged<'_> {
    /// Puts a chunk into an idle row.
    pub(super) fn begin_chunk(
        &mut self,
        now: Instant,
        row: u32,
        request: StagedId,
        offset: u64,
        length: u32,
    ) {
        if let Some(claim) = self.claim_mut(row) {
            debug_assert!(
                matches!(claim.role, Role::Idle) && claim.has_nothing() && claim.run != Run::Out,
                "row {row} is to carry a chunk, and is {:?}",
                claim.role
            );
            debug_assert!(length > 0, "a chunk of no bytes");
            claim.generation = claim.generation.wrapping_add(1);
            claim.role = Role::Chunk(Chunk {
                request: Some(request),
                offset,
                length,
                step: Step::Acquire,
                remote: Remote::None,
                unfenced: false,
                failures: 0,
                again: false,
                heard_at: now,
            });
        }
        self.acquire(now, row);
    }

    /// Asks for the next slot that the chunk needs, the one nearest to the destination first; with all of them the
    /// first stage begins.
    pub(super) fn acquire(&mut self, now: Instant, row: u32) {
        let (Some(chunk), Some(route)) = (self.chunk(row), self.route_of(row)) else {
            return;
        };
        debug_assert!(
            chunk.step == Step::Acquire,
            "row {row} gets slots in step {:?}",
            chunk.step
        );
        let has_slot = self.claim(row).is_some_and(|claim| claim.slot.is_some());
        let local = route.local_pool.filter(|_| !has_slot);
        let remote = route.remote_pool.filter(|_| chunk.remote == Remote::None);
        let remote_first = route.op == Op::Write;
        match (local, remote) {
            (Some(pool), remote) if remote.is_none() || !remote_first => {
                if let Some(claim) = self.claim_mut(row) {
                    claim.waits = Some(pool);
                }
                let party = self.party(row);
                self.pools.wait(self.claims, pool, party, row);
            }
            (_, Some(_)) => {
                self.set_remote(row, Remote::Asked);
                self.say(now, row);
            }
            _ => self.run(now, row, first_step(&route)),
        }
    }

    /// Begins a stage, or an attempt at it anew.
    pub(super) fn run(&mut self, now: Instant, row: u32, step: Step) {
        let Some(claim) = self.claim_mut(row) else {
            return;
        };
        debug_assert!(
            claim.run != Run::Out,
            "row {row} begins {step:?} while a hop of it is out"
        );
        claim.attempt = claim.attempt.wrapping_add(1);
        if let Role::Chunk(chunk) = &mut claim.role {
            chunk.step = step;
        }
        if step == Step::Go {
            self.say(now, row);
        } else {
            claim.run = Run::Ready;
            self.ready.push_back(&mut *self.claims, row);
        }
    }

    /// The report of a stage that this engine carried out.
    pub(super) fn handle_chunk_stage(&mut self, now: Instant, row: u32, report: &Report) {
        let Some(chunk) = self.chunk(row) else {
            return;
        };
        let unclean = self.quarantine_unfenced(row, &chunk, report);
        if report.status == Status::Completed && !unclean {
            return self.step_done(now, row);
        }
        let cause = report.cause.unwrap_or(Cause::Fatal);
        if !self.may_repeat(row, cause) {
            self.fail(now, row, cause);
            if chunk.step == Step::Network {
                self.end_alike_hops(now, row, &chunk, cause);
            }
        } else if unclean {
            self.restart(now, row);
        } else {
            self.run(now, row, chunk.step);
        }
    }

    /// A hop has failed for good. Those who wait for the same peer or rail end with it.
    fn end_alike_hops(&mut self, now: Instant, row: u32, chunk: &Chunk, cause: Cause) {
        let peer = self.peer(row);
        match cause {
            Cause::PeerSilent => self.end_alike(now, peer, cause, |_| true),
            // The rails that there are to a peer depend on what they are to join.
            Cause::NoRail => {
                let request = chunk.request.and_then(|id| self.requests.get(id));
                if let Some(joined) = request.map(|request| request.route.joined()) {
                    self.end_alike(now, peer, cause, |route| route.joined() == joined);
                }
            }
            _ => {}
        }
    }

    /// What an attempt without proof named is not used again. `true`: there was something.
    fn quarantine_unfenced(&mut self, row: u32, chunk: &Chunk, report: &Report) -> bool {
        let local = report.local == Local::Held;
        let remote = report.remote == report::Remote::Unknown;
        let peer = self.peer(row);
        let Some(route) = self.route_of(row) else {
            return local || remote;
        };
        let (near, far, peer) = match (chunk.step, route.op) {
            // Both ends are on this side.
            (Step::Copy, _) => (local || remote, false, None),
            // Who may still write here still reads there, and must not find another chunk's bytes.
            (_, Op::Read) => (local, local || remote, Some(peer)),
            (_, Op::Write) => (local, remote, Some(peer)),
        };
        if near {
            self.drop_slot(row, peer);
        }
        if let (true, Some(chunk)) = (far, self.chunk_mut(row)) {
            chunk.unfenced = true;
        }
        let near_end = chunk.step == Step::Copy || route.local_pool.is_none();
        let far_end = route.remote_pool.is_none();
        let by = By::Hop(StageId {
            index: row,
            generation: self.claim(row).map_or(0, |claim| claim.attempt),
        });
        self.taint(chunk.request, near && near_end, far && far_end, by);
        near || far
    }

    /// The slot of this side is quarantined.
    fn drop_slot(&mut self, row: u32, peer: Option<PeerId>) {
        let party = self.party(row);
        let Some(claim) = self.claim_mut(row) else {
            return;
        };
        let stage = Some(StageId {
            index: row,
            generation: claim.attempt,
        });
        if let Some((pool, slot)) = claim.slot.take() {
            let suspect = Suspect { stage, peer };
            self.pools.quarantine(pool, party, slot, suspect);
        }
    }

    /// Counts a failure. Whether the chunk may be tried once more: not if it has waited as long as anything may.
    pub(super) fn may_repeat(&mut self, row: u32, cause: Cause) -> bool {
        let failures_max = self.config.stage_attempts_max.max(1);
        let goes_on = self.goes_on(row);
        let Some(chunk) = self.chunk_mut(row) else {
            return false;
        };
        chunk.failures = chunk.failures.saturating_add(1);
        let has_waited = matches!(cause, Cause::PeerSilent | Cause::NoRail);
        goes_on && !has_waited && !cause.is_callers() && chunk.failures < failures_max
    }

    /// A stage has ended well: on to the next one, and back with what is not needed any more.
    pub(super) fn step_done(&mut self, now: Instant, row: u32) {
        let (Some(chunk), Some(route)) = (self.chunk(row), self.route_of(row)) else {
            return;
        };
        if chunk.step == Step::Network {
            self.heard(now, route.peer);
        }
        let next = match (route.op, chunk.step) {
            (Op::Write, Step::Copy) | (Op::Read, Step::Go) => Some(Step::Network),
            (Op::Write, Step::Network) => {
                self.free_slot(row);
                route.remote_pool.map(|_| Step::Go)
            }
            (Op::Read, Step::Network) => {
                self.free_remote(now, row);
                route.local_pool.map(|_| Step::Copy)
            }
            (Op::Write, Step::Go) => {
                self.set_remote(row, Remote::None);
                None
            }
            (Op::Read, Step::Copy) | (_, Step::Acquire | Step::Recall | Step::GiveBack) => None,
        };
        match next {
            Some(step) if self.goes_on(row) => self.run(now, row, step),
            Some(_) => self.detach(now, row),
            None => self.delivered(now, row, &chunk),
        }
    }

    pub(super) fn delivered(&mut self, now: Instant, row: u32, chunk: &Chunk) {
        if let Some(request) = chunk.request.and_then(|id| self.requests.get_mut(id)) {
            request.delivered_bytes += u64::from(chunk.length);
            let (delivered, begun) = (request.delivered_bytes, request.begun_bytes);
            debug_assert!(delivered <= begun, "{delivered} bytes of {begun}");
        }
        self.detach(now, row);
    }

    /// Nothing of the chunk names the request's memory any more, and nothing will.
    pub(super) fn detach(&mut self, now: Instant, row: u32) {
        let id = self.chunk_mut(row).and_then(|chunk| {
            chunk.step = Step::GiveBack;
            chunk.request.take()
        });
        self.give_back(now, row);
        if let Some(id) = id {
            if let Some(request) = self.requests.get_mut(id) {
                debug_assert!(
                    request.chunks > 0,
                    "request {} has no chunk, and one ends",
                    id.index
                );
                request.chunks = request.chunks.saturating_sub(1);
            }
            self.settle_request(id);
        }
    }

    /// The chunk is carried out anew with other slots.
    pub(super) fn restart(&mut self, now: Instant, row: u32) {
        if let Some(chunk) = self.chunk_mut(row) {
            chunk.again = true;
            chunk.step = Step::GiveBack;
        }
        self.give_back(now, row);
    }

    /// The chunk cannot be carried out, and with it its request.
    pub(super) fn fail(&mut self, now: Instant, row: u32, cause: Cause) {
        let id = self.chunk_mut(row).and_then(|chunk| {
            chunk.step = Step::GiveBack;
            chunk.request
        });
        if let Some(id) = id {
            self.end(now, id, cause);
        }
    }

    /// Gives back all slots, and the row once there are none.
    fn give_back(&mut self, now: Instant, row: u32) {
        self.free_slot(row);
        self.free_remote(now, row);
        self.settle_row(now, row);
    }

    fn free_slot(&mut self, row: u32) {
        let party = self.party(row);
        let Some(claim) = self.claim_mut(row) else {
            return;
        };
        let (slot, waits) = (claim.slot.take(), claim.waits.take());
        if let Some((pool, slot)) = slot {
            self.pools.free(pool, party, slot);
        }
        if let Some(pool) = waits {
            self.pools.leave(self.claims, pool, party, row);
        }
    }

    pub(super) fn free_remote(&mut self, now: Instant, row: u32) {
        let remote = self.chunk(row).map(|chunk| chunk.remote);
        if matches!(remote, Some(Remote::Asked | Remote::Held(_))) {
            self.set_remote(row, Remote::Freeing);
            self.say(now, row);
        }
    }

    /// A row that has nothing any more is idle, or begins its chunk anew.
    pub(super) fn settle_row(&mut self, now: Instant, row: u32) {
        let peer = self.peer(row);
        let Some(chunk) = self.chunk(row) else {
            return;
        };
        if chunk.step != Step::GiveBack || chunk.remote != Remote::None {
            return;
        }
        self.outbox.remove(&mut *self.claims, row);
        self.sent.remove(&mut *self.claims, row);
        let Some(claim) = self.claim_mut(row) else {
            return;
        };
        if let (Some(_), true) = (chunk.request, chunk.again) {
            claim.generation = claim.generation.wrapping_add(1);
            claim.role = Role::Chunk(Chunk {
                step: Step::Acquire,
                again: false,
                unfenced: false,
                heard_at: now,
                ..chunk
            });
            return self.acquire(now, row);
        }
        debug_assert!(claim.has_nothing(), "row {row} still has a slot");
        debug_assert!(claim.run != Run::Out, "a hop of row {row} is still out");
        claim.role = Role::Idle;
        if let Some(queues) = self.peers.get_mut(peer.index()) {
            let before = queues.idle.len();
            queues.idle.push_back(&mut *self.claims, row);
            debug_assert!(queues.idle.len() > before, "row {row} is idle already");
        }
        self.calling.push_back(&mut *self.peers, peer.0.into());
    }

    /// Says what there is to say, at once.
    pub(super) fn say(&mut self, now: Instant, row: u32) {
        if let Some(chunk) = self.chunk_mut(row) {
            chunk.heard_at = now;
        }
        self.sent.remove(&mut *self.claims, row);
        self.outbox.push_back(&mut *self.claims, row);
    }

    pub(super) fn set_remote(&mut self, row: u32, remote: Remote) {
        if let Some(chunk) = self.chunk_mut(row) {
            chunk.remote = remote;
        }
    }
}

fn first_step(route: &StagedRequest) -> Step {
    match route.op {
        Op::Write if route.local_pool.is_some() => Step::Copy,
        Op::Read if route.remote_pool.is_some() => Step::Go,
        Op::Write | Op::Read => Step::Network,
    }
}
