//! A slot of ours in a peer's use: asked for, copied from or to, given back. What peers say is checked against the
//! row, and answered by what is true of it now.

use super::claim::{Claim, Copying, Lease, LeaseState, Role, Run};
use super::message::{CopyEnd, StageMessage};
use super::pool::Suspect;
use super::route::Direction;
use super::{Refusal, Staged};
use crate::report::{Local, Remote, Report, Status};
use crate::units::{PeerId, PoolId, StageId, Ticket};
use crate::work::{Cause, Place};

impl Lease {
    const fn new(pool: PoolId, state: LeaseState) -> Self {
        Self {
            pool,
            state,
            copy: None,
            freed: None,
            orphaned: None,
        }
    }

    /// Whether its row may be used for another ticket.
    const fn is_over(&self) -> bool {
        matches!(self.state, LeaseState::Over { .. } | LeaseState::Lost)
    }
}

/// What a ticket is to its row.
enum Standing {
    /// The row is this ticket's.
    Current(Lease),
    /// It is a later one than the row's, which is over.
    Fresh,
}

impl Staged<'_> {
    /// Which way bytes pass through the slot that a peer's ticket has, or waits for; `None`: it has none. A peer may
    /// only name places to copy to that it may write to, and to copy from that it may read.
    pub fn direction(&self, peer: PeerId, ticket: Ticket) -> Option<Direction> {
        let row = self.row_of(self.lease_rows(peer), ticket).ok()?;
        let claim = self.claim(row)?;
        match claim.role {
            Role::Lease(lease) if claim.generation == ticket.generation => {
                self.pools.direction(lease.pool)
            }
            Role::Lease(_) | Role::Chunk(_) | Role::Idle => None,
        }
    }

    /// A question of a peer's about a slot of ours.
    pub(super) fn handle_question(
        &mut self,
        peer: PeerId,
        ticket: Ticket,
        message: &StageMessage,
    ) -> Result<(), Refusal> {
        let row = self.row_of(self.lease_rows(peer), ticket)?;
        let standing = self.claim(row).map(|claim| standing(claim, ticket));
        let answer = match (*message, standing.ok_or(Refusal::UnknownTicket)??) {
            (StageMessage::Reserve { pool, .. }, Standing::Fresh) => {
                self.reserve(row, ticket, pool);
                Ok(())
            }
            (
                StageMessage::Go {
                    attempt,
                    place,
                    length,
                    ..
                },
                Standing::Current(lease),
            ) => {
                let copy = Copying {
                    attempt,
                    place,
                    length,
                    end: None,
                };
                self.go(row, &lease, copy)
            }
            (StageMessage::Go { .. }, Standing::Fresh) => Err(Refusal::OutOfTurn),
            (StageMessage::Free { .. }, Standing::Fresh) => {
                // It overtook its own question, which must not take a slot any more when it comes.
                self.occupy(
                    row,
                    ticket,
                    Lease::new(PoolId(0), LeaseState::Over { asked: true }),
                );
                Ok(())
            }
            (StageMessage::Free { fenced, .. }, Standing::Current(lease)) => {
                self.free(peer, row, &lease, fenced);
                Ok(())
            }
            _ => Ok(()),
        };
        if answer.is_ok() {
            self.answer(row);
        }
        answer
    }

    fn occupy(&mut self, row: u32, ticket: Ticket, lease: Lease) {
        if let Some(claim) = self.claim_mut(row) {
            debug_assert!(claim.has_nothing(), "row {row} still has a slot");
            claim.generation = ticket.generation;
            claim.role = Role::Lease(lease);
        }
    }

    fn reserve(&mut self, row: u32, ticket: Ticket, pool: PoolId) {
        if self.pools.config(pool).is_none() {
            return self.occupy(row, ticket, Lease::new(pool, LeaseState::Lost));
        }
        self.occupy(row, ticket, Lease::new(pool, LeaseState::Waiting));
        if let Some(claim) = self.claim_mut(row) {
            claim.waits = Some(pool);
        }
        let party = self.party(row);
        self.pools.wait(self.claims, pool, party, row);
    }

    fn go(&mut self, row: u32, lease: &Lease, copy: Copying) -> Result<(), Refusal> {
        let before = lease.copy.map(|copy| copy.attempt);
        if before == Some(copy.attempt) {
            return Ok(());
        }
        let is_later = before.is_none_or(|before| is_later(copy.attempt, before));
        let done = lease
            .copy
            .is_some_and(|copy| copy.end == Some(CopyEnd::Done));
        match lease.state {
            LeaseState::Held if is_later && !done => {}
            LeaseState::Going => return Err(Refusal::SlotBusy),
            _ => return Err(Refusal::OutOfTurn),
        }
        let slot_bytes = self
            .pools
            .config(lease.pool)
            .map_or(0, |pool| pool.slot_bytes);
        if copy.length == 0 || copy.length > slot_bytes {
            return Err(Refusal::LengthOutOfRange);
        }
        if let Some(claim) = self.claim_mut(row) {
            claim.attempt = claim.attempt.wrapping_add(1);
            claim.run = Run::Ready;
            claim.role = Role::Lease(Lease {
                state: LeaseState::Going,
                copy: Some(copy),
                ..*lease
            });
        }
        self.ready.push_back(&mut *self.claims, row);
        Ok(())
    }

    fn free(&mut self, peer: PeerId, row: u32, lease: &Lease, fenced: bool) {
        let state = if lease.state == LeaseState::Going && self.call_off(row) {
            LeaseState::Held
        } else {
            lease.state
        };
        match state {
            LeaseState::Going => {
                self.revoke(row);
                // Only now is it the copy's end that decides, but the peer's first word about proof counts.
                self.set_lease(row, |lease| {
                    lease.freed.get_or_insert(fenced);
                });
                return;
            }
            LeaseState::Waiting => self.leave_line(row),
            LeaseState::Held => self.return_slot(row, (!fenced).then_some(peer)),
            LeaseState::Over { .. } | LeaseState::Lost => {}
        }
        self.set_lease(row, |lease| lease.state = LeaseState::Over { asked: true });
    }

    /// The report of a copy that a peer had asked for.
    pub(super) fn handle_copy(&mut self, row: u32, report: &Report) {
        let Some(lease) = self.lease(row) else {
            return;
        };
        debug_assert!(
            lease.state == LeaseState::Going && lease.copy.is_some(),
            "a copy of row {row} has ended, which is {:?}",
            lease.state
        );
        let cause = report.cause.unwrap_or(Cause::Fatal);
        let clean = report.local == Local::Released && report.remote == Remote::Settled;
        let end = match (clean, report.status) {
            (false, _) => CopyEnd::Unfenced(cause),
            (true, Status::Completed) => CopyEnd::Done,
            (true, _) => CopyEnd::Failed(cause),
        };
        let peer = self.peer(row);
        let is_in = self.pools.direction(lease.pool) == Some(Direction::In);
        let state = match (end, lease.orphaned, lease.freed) {
            (CopyEnd::Unfenced(_), _, freed) => {
                self.quarantine(row, None);
                LeaseState::Over {
                    asked: freed.is_some(),
                }
            }
            (_, Some(proof), _) | (_, None, Some(proof)) => {
                self.return_slot(row, (!proof).then_some(peer));
                LeaseState::Over { asked: true }
            }
            (CopyEnd::Done, None, None) if is_in => {
                self.return_slot(row, None);
                LeaseState::Over { asked: false }
            }
            _ => LeaseState::Held,
        };
        self.set_lease(row, |lease| {
            lease.state = state;
            if let Some(copy) = &mut lease.copy {
                copy.end = Some(end);
            }
        });
        if lease.orphaned.is_some() {
            self.vacate(row);
        } else {
            self.answer(row);
        }
    }

    /// The peer's session is over. Without proof that its process is gone, it may still write to its slots.
    pub(super) fn forget_lease(&mut self, row: u32, proof: bool) {
        let Some(lease) = self.lease(row) else {
            return;
        };
        let state = if lease.state == LeaseState::Going && self.call_off(row) {
            LeaseState::Held
        } else {
            lease.state
        };
        match state {
            LeaseState::Going => {
                self.revoke(row);
                return self.set_lease(row, |lease| {
                    lease.orphaned = Some(lease.orphaned == Some(true) || proof);
                });
            }
            LeaseState::Waiting => self.leave_line(row),
            LeaseState::Held => {
                let peer = self.peer(row);
                self.return_slot(row, (!proof).then_some(peer));
            }
            LeaseState::Over { .. } | LeaseState::Lost => {}
        }
        self.vacate(row);
    }

    /// A copy that nobody has been told of does not begin. `false`: somebody has.
    fn call_off(&mut self, row: u32) -> bool {
        let Some(claim) = self.claim_mut(row).filter(|claim| claim.run == Run::Ready) else {
            return false;
        };
        claim.run = Run::No;
        self.ready.remove(&mut *self.claims, row);
        self.set_lease(row, |lease| {
            if let Some(copy) = &mut lease.copy {
                copy.end = Some(CopyEnd::Failed(Cause::Cancelled));
            }
        });
        true
    }

    fn vacate(&mut self, row: u32) {
        self.outbox.remove(&mut *self.claims, row);
        if let Some(claim) = self.claim_mut(row) {
            debug_assert!(claim.has_nothing(), "row {row} still has a slot");
            debug_assert!(claim.run != Run::Out, "a copy of row {row} is still out");
            claim.role = Role::Idle;
        }
    }

    fn leave_line(&mut self, row: u32) {
        debug_assert!(
            self.claim(row).is_some_and(|claim| claim.waits.is_some()),
            "row {row} waits for no slot"
        );
        let party = self.party(row);
        if let Some(pool) = self.claim_mut(row).and_then(|claim| claim.waits.take()) {
            self.pools.leave(self.claims, pool, party, row);
        }
    }

    /// Frees the row's slot, unless this peer may still be touching it.
    fn return_slot(&mut self, row: u32, suspect: Option<PeerId>) {
        debug_assert!(
            self.claim(row).is_some_and(|claim| claim.slot.is_some()),
            "row {row} has no slot to give back"
        );
        if suspect.is_some() {
            return self.quarantine(row, suspect);
        }
        let party = self.party(row);
        if let Some((pool, slot)) = self.claim_mut(row).and_then(|claim| claim.slot.take()) {
            self.pools.free(pool, party, slot);
        }
    }

    /// Without a peer to suspect, it is our own copy.
    fn quarantine(&mut self, row: u32, peer: Option<PeerId>) {
        let party = self.party(row);
        let Some(claim) = self.claim_mut(row) else {
            return;
        };
        let stage = peer.is_none().then_some(StageId {
            index: row,
            generation: claim.attempt,
        });
        if let Some((pool, slot)) = claim.slot.take() {
            self.pools
                .quarantine(pool, party, slot, Suspect { stage, peer });
        }
    }

    /// Has the peer told what is true of its ticket.
    pub(super) fn answer(&mut self, row: u32) {
        self.outbox.push_back(&mut *self.claims, row);
    }

    /// What is true of a peer's ticket.
    pub(super) fn statement(&self, row: u32, lease: &Lease) -> Option<StageMessage> {
        let ticket = self.ticket(row);
        let went = lease.copy.and_then(|copy| {
            Some(StageMessage::Went {
                ticket,
                attempt: copy.attempt,
                end: copy.end?,
            })
        });
        let end = lease.copy.and_then(|copy| copy.end);
        let is_unfenced = matches!(end, Some(CopyEnd::Unfenced(_)));
        match lease.state {
            LeaseState::Waiting => Some(StageMessage::Waiting { ticket }),
            LeaseState::Lost => Some(StageMessage::Lost { ticket }),
            // It has to know that bytes may still move.
            LeaseState::Over { asked: true } if is_unfenced => went,
            LeaseState::Over { asked: true } => Some(StageMessage::Freed { ticket }),
            LeaseState::Over { asked: false } => went,
            LeaseState::Going => lease.copy.map(|copy| StageMessage::Going {
                ticket,
                attempt: copy.attempt,
            }),
            LeaseState::Held => went.or_else(|| {
                let (_, slot) = self.claim(row)?.slot?;
                Some(StageMessage::Reserved { ticket, slot })
            }),
        }
    }

    fn lease(&self, row: u32) -> Option<Lease> {
        match self.claim(row)?.role {
            Role::Lease(lease) => Some(lease),
            Role::Idle | Role::Chunk(_) => None,
        }
    }

    pub(super) fn set_lease(&mut self, row: u32, change: impl FnOnce(&mut Lease)) {
        if let Some(Claim {
            role: Role::Lease(lease),
            ..
        }) = self.claim_mut(row)
        {
            change(lease);
        }
    }

    /// The place of a copy, and how much.
    pub(super) fn copy_of(&self, row: u32) -> Option<(Lease, Place, u32)> {
        let lease = self.lease(row)?;
        let copy = lease.copy?;
        Some((lease, copy.place, copy.length))
    }
}

fn standing(claim: &Claim, ticket: Ticket) -> Result<Standing, Refusal> {
    match claim.role {
        Role::Idle | Role::Chunk(_) => Ok(Standing::Fresh),
        Role::Lease(lease) if lease.orphaned.is_some() => Err(Refusal::TicketInUse),
        Role::Lease(lease) if claim.generation == ticket.generation => Ok(Standing::Current(lease)),
        Role::Lease(_) if !is_later(ticket.generation, claim.generation) => {
            Err(Refusal::StaleTicket)
        }
        Role::Lease(lease) if lease.is_over() => Ok(Standing::Fresh),
        Role::Lease(_) => Err(Refusal::TicketInUse),
    }
}

/// Numbers that count on for ever: half of them are later than any one.
const fn is_later(number: u32, than: u32) -> bool {
    (number.wrapping_sub(than) as i32) > 0
}
