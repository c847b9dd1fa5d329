//! What a chunk of ours asks of its peer, and what comes of the answers, or of none.

use super::claim::{Chunk, Remote, Step};
use super::message::{CopyEnd, StageMessage};
use super::route::behind;
use super::unproven::By;
use super::{Refusal, Staged};
use crate::orchestrator::Proof;
use crate::time::Instant;
use crate::units::{PeerId, Ticket};
use crate::work::{Cause, Op};

impl Staged<'_> {
    /// What a chunk asks of its peer.
    pub(super) fn question(&self, row: u32, chunk: &Chunk) -> Option<StageMessage> {
        let claim = self.claim(row)?;
        let ticket = self.ticket(row);
        let route = self.route_of(row);
        if chunk.step == Step::Go {
            return Some(StageMessage::Go {
                ticket,
                attempt: claim.attempt,
                place: behind(route?.remote, chunk.offset),
                length: chunk.length,
            });
        }
        match chunk.remote {
            Remote::Asked => Some(StageMessage::Reserve {
                ticket,
                pool: route?.remote_pool?.pool,
            }),
            Remote::Freeing => Some(StageMessage::Free {
                ticket,
                fenced: !chunk.unfenced,
            }),
            Remote::None | Remote::Held(_) => None,
        }
    }

    /// An answer about a chunk of ours.
    pub(super) fn handle_answer(
        &mut self,
        now: Instant,
        peer: PeerId,
        message: &StageMessage,
    ) -> Result<(), Refusal> {
        let ticket = ticket_of(message);
        let row = self.row_of(self.chunk_rows(peer), ticket)?;
        let current = self.claim(row).map(|claim| claim.generation) == Some(ticket.generation);
        let chunk = self
            .chunk(row)
            .filter(|_| current)
            .ok_or(Refusal::StaleTicket)?;
        // Who is to end a copy has so long for it, whatever it says.
        if let Some(chunk) = self.chunk_mut(row)
            && chunk.step != Step::Recall
        {
            chunk.heard_at = now;
        }
        self.heard(now, peer);
        match (*message, chunk.remote) {
            (StageMessage::Reserved { slot, .. }, Remote::Asked) => self.reserved(now, row, slot),
            (StageMessage::Lost { .. }, Remote::Asked) => {
                self.set_remote(row, Remote::None);
                self.fail(now, row, Cause::StagingLost);
                Ok(())
            }
            (StageMessage::Freed { .. }, Remote::Freeing) => {
                self.freed(now, row, true);
                Ok(())
            }
            (StageMessage::Freed { .. }, _) => Err(Refusal::OutOfTurn),
            (StageMessage::Went { attempt, end, .. }, remote) => {
                let expected = self.claim(row).map(|claim| claim.attempt) == Some(attempt);
                match (chunk.step, end) {
                    (Step::Go, _) if expected => self.handle_went(now, row, end),
                    (_, CopyEnd::Unfenced(_)) if remote == Remote::Freeing => {
                        self.freed(now, row, false);
                    }
                    (Step::Recall, CopyEnd::Done) if expected => {
                        self.delivered(now, row, &chunk);
                    }
                    (Step::Recall, CopyEnd::Failed(_)) if expected => self.detach(now, row),
                    _ => {}
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn reserved(&mut self, now: Instant, row: u32, slot: u32) -> Result<(), Refusal> {
        let pool = self.route_of(row).and_then(|route| route.remote_pool);
        if pool.is_none_or(|pool| slot >= pool.slots.slots) {
            self.fail(now, row, Cause::BadResponse);
            return Err(Refusal::SlotOutOfRange);
        }
        self.set_remote(row, Remote::Held(slot));
        self.acquire(now, row);
        Ok(())
    }

    /// The peer has let go of its slot; `proof`: nothing that it copied from there moves any more.
    fn freed(&mut self, now: Instant, row: u32, proof: bool) {
        self.set_remote(row, Remote::None);
        self.prove_copy(row, proof);
        let chunk = self.chunk(row);
        if let Some(chunk) = chunk.filter(|chunk| chunk.step == Step::Recall) {
            self.taint(chunk.request, false, !proof, By::Peer);
            self.detach(now, row);
        } else {
            self.settle_row(now, row);
        }
    }

    /// The request of a chunk that the peer copies has ended: the peer is asked to end the copy, too. Only what that
    /// writes to is waited for, so long as anything is.
    pub(super) fn recall(&mut self, now: Instant, row: u32, op: Op) {
        if op == Op::Read {
            return self.detach(now, row);
        }
        let heard_at = self.chunk(row).map(|chunk| chunk.heard_at);
        self.free_remote(now, row);
        // Whoever is silent already is not waited for anew.
        if let (Some(chunk), Some(heard_at)) = (self.chunk_mut(row), heard_at) {
            chunk.step = Step::Recall;
            chunk.heard_at = heard_at;
        }
    }

    /// The peer's copy has ended.
    fn handle_went(&mut self, now: Instant, row: u32, end: CopyEnd) {
        match end {
            CopyEnd::Done => self.step_done(now, row),
            CopyEnd::Failed(cause) if self.may_repeat(row, cause) => self.run(now, row, Step::Go),
            CopyEnd::Failed(cause) => self.fail(now, row, cause),
            CopyEnd::Unfenced(cause) => {
                let id = self.chunk(row).and_then(|chunk| chunk.request);
                self.taint(id, false, true, By::Peer);
                if self.may_repeat(row, cause) {
                    self.restart(now, row);
                } else {
                    self.fail(now, row, cause);
                }
            }
        }
    }

    /// What was said and not answered is said again; a peer that has been silent for too long is not waited for.
    pub(super) fn handle_unanswered(&mut self, now: Instant, row: u32) {
        let Some(chunk) = self.chunk(row).filter(Chunk::asks) else {
            return;
        };
        self.outbox.push_back(&mut *self.claims, row);
        let timeout = self.config.answer_timeout;
        let has_waited = now.since(chunk.heard_at) >= timeout;
        let copies = matches!(chunk.step, Step::Go | Step::Recall);
        if has_waited && copies {
            self.taint(chunk.request, false, true, By::Copy(row));
        }
        if has_waited && (copies || chunk.remote == Remote::Asked) {
            self.fail(now, row, Cause::PeerSilent);
        }
        let peer = self.peer(row);
        // It may have forgotten this chunk only. Those that are as old are looked for when there are some.
        let is_due = self.peers.get(peer.index()).is_some_and(|peer| {
            now.since(peer.heard_at) >= timeout && now.since(peer.oldest) >= timeout
        });
        if is_due {
            self.end_alike(now, peer, Cause::PeerSilent, |_| true);
        }
    }

    /// A sign of life.
    pub(super) fn heard(&mut self, now: Instant, peer: PeerId) {
        if let Some(peer) = self.peers.get_mut(peer.index()) {
            peer.heard_at = now;
        }
    }

    /// The peer's slots are of no concern any more. Its copies end with its process, not with a session.
    pub(super) fn forget_remote(&mut self, now: Instant, row: u32, proof: Option<Proof>) {
        let Some(chunk) = self.chunk(row) else {
            return;
        };
        self.set_remote(row, Remote::None);
        if matches!(chunk.step, Step::Go | Step::Recall) {
            let moves = proof != Some(Proof::ProcessGone);
            self.taint(chunk.request, false, moves, By::Peer);
            if let Some(chunk) = self.chunk_mut(row) {
                chunk.step = Step::GiveBack;
            }
        }
        if chunk.request.is_none() {
            self.settle_row(now, row);
        }
    }
}

/// Whom a message is about.
pub(super) fn ticket_of(message: &StageMessage) -> Ticket {
    match *message {
        StageMessage::Reserve { ticket, .. }
        | StageMessage::Go { ticket, .. }
        | StageMessage::Free { ticket, .. }
        | StageMessage::Waiting { ticket }
        | StageMessage::Reserved { ticket, .. }
        | StageMessage::Going { ticket, .. }
        | StageMessage::Went { ticket, .. }
        | StageMessage::Freed { ticket }
        | StageMessage::Lost { ticket } => ticket,
    }
}
