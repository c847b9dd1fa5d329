//! Requests that no transport carries in one piece: in chunks, through staging slots on either host.
//!
//! Memory that the network cannot reach, such as a GPU's without direct access, is reached through buffers in host
//! memory: copy, network, copy. [`Staged`] keeps those hops going at the same time, each for another chunk. The
//! hops themselves are ordinary requests, which it hands out and whose reports it is given; they are bound to rails
//! like all others.
//!
//! The rules, and what each one is against:
//!
//! - A chunk gets the slot of its last hop first, then backwards, and each direction has pools of its own. Whoever
//!   waits for a slot for what goes out has all slots for what comes in that it needs, and whoever has a slot for
//!   what goes out needs nothing more: two hosts that stage towards each other cannot wait in a circle.
//! - A slot is free only when every attempt that named it has ended, in whichever session it began: hops of one that is over
//!   are called back, and nothing new is begun with that peer before they have ended. One whose attempt ends without proof is
//!   quarantined and counted; when a pool has no others left, requests through it fail with
//!   [`Cause::StagingLost`].
//! - A failed stage repeats its chunk's stage, with the same slots; where one of those was lost, its chunk. All
//!   others go on.
//! - A hop that has waited for a silent peer, or for a rail, as long as anything may is not repeated, and requests that have
//!   been there as long and need the same end with it: one after the other, a few chunks at a time, they would wait for ever.
//! - Slots go to peers in turn, and a peer's rows to its requests in turn: nobody starves, and nobody has more slots
//!   of a pool than [`StagedConfig::party_slots_max`].
//! - Questions are repeated until they are answered, and answers say what is true now: see [`StageMessage`].
//! - A request is reported when nothing names its own memory any more, or as [`Status::Indeterminate`], and then once more
//!   when that has come to be known. Slots may go on being given back after either.
//! - A peer that copies for us is waited for like everybody else: when a request has ended otherwise, it is asked to stop, and
//!   when it has not in [`StagedConfig::answer_timeout`], the request is reported without it.
//! - A peer has at most as many rows of requests as are left for others.
//!
//! A peer that goes silent with slots of ours in its hands keeps them until its session is over, since it may still
//! write to them; that is what the limit of slots is for.
//!
//! How it is joined to the rest: each [`Stage`] becomes a request of its own, a [`Hop::Copy`] one between two memories of
//! this host, and its final report goes to [`Staged::handle_stage`]; messages travel as frames, and whoever takes a
//! [`StageMessage::Go`] from one checks that this peer may use that place; what ends a peer ends it here too.
//!
//! Source: TENT (arXiv:2604.00368v1) §4.1, staged routes. We differ: slots are reserved against the direction of the
//! data, and repeated messages take the place of a call that waits, because a peer that stops in the middle
//! must not stop us.
//!
//! [`Status::Indeterminate`]: crate::report::Status::Indeterminate

mod answer;
mod audit;
mod chunk;
mod claim;
mod hop;
mod lease;
mod message;
mod pool;
mod request;
mod route;
mod rows;
mod session;
mod tables;
#[cfg(all(test, not(loom)))]
mod tests;
mod turns;
mod unproven;

pub use claim::Claim;
pub use hop::{Hop, Stage};
pub use message::{CopyEnd, StageMessage};
pub use pool::{Line, POOLS_MAX, PoolView, Slot, Suspect};
pub use request::Request;
pub use route::{Direction, PoolConfig, RemotePool, StageRefused, StagedRequest};
pub use tables::{PeerStaging, StagedConfig, StagedTables};
pub use unproven::Unproven;

use claim::{Chunk, LeaseState, OUTBOX, READY, REVOKED, Role, Run, SENT};
use pool::{Grant, Pools};
use request::ENDED;
use unproven::Proofs;

use crate::orchestrator::Cancelled;
use crate::queue::Queue;
use crate::report::{Local, Remote, Report};
use crate::table::Table;
use crate::time::Instant;
use crate::units::{PeerId, PoolId, StageId, StagedId};
use crate::work::Cause;

/// Why something that was handed in changed nothing. What a peer can cause is the peer's fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There is no row for that peer.
    UnknownPeer,
    /// A ticket's number is larger than that of any row.
    UnknownTicket,
    /// The ticket's row has another use now: late, or doubled on its way.
    StaleTicket,
    /// The ticket's row is still in use for an earlier one.
    TicketInUse,
    /// The ticket's slot is being copied by another attempt.
    SlotBusy,
    /// The ticket has nothing to which this could apply.
    OutOfTurn,
    /// A slot that the peer's pool does not have. The request it was for fails.
    SlotOutOfRange,
    /// No bytes, or more than a slot has.
    LengthOutOfRange,
    /// The stage is none that is being carried out, nor one of which more is to be known.
    StaleStage,
}

/// What there is to tell of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request has ended. Its row is free.
    Ended {
        /// Which.
        request: StagedId,
        /// How.
        report: Report,
    },
    /// More is known of the memory of a request that was reported as [`Status::Indeterminate`]. With both ends free there is
    /// nothing more to come.
    ///
    /// [`Status::Indeterminate`]: crate::report::Status::Indeterminate
    Settled {
        /// Which.
        request: StagedId,
        /// What is known of this side's memory now.
        local: Local,
        /// What is known of the peer's memory now.
        remote: Remote,
    },
}

/// Staged requests of one worker, and the use that peers make of its pools.
///
/// The order of calls: hand in facts ([`Self::submit`], `handle_*`), then drain [`Self::poll_revoke`], [`Self::poll_stage`],
/// [`Self::poll_message`] and [`Self::poll_event`]; call [`Self::handle_timeout`] when [`Self::poll_timeout`] says so.
/// Every stage handed out is answered by [`Self::handle_stage`] once, with its final report; and if that was without proof,
/// again when there is more. A step of a chunk is O(1); beginning, ending and the end of a peer are linear in the rows of a
/// peer.
#[derive(Debug)]
pub struct Staged<'a> {
    claims: &'a mut [Claim],
    peers: &'a mut [PeerStaging],
    requests: Table<'a, Request, StagedId>,
    pools: Pools<'a>,
    /// Rows of one party.
    tickets: u32,
    config: StagedConfig,
    outbox: Queue<OUTBOX>,
    sent: Queue<SENT>,
    ready: Queue<READY>,
    revoked: Queue<REVOKED>,
    ended: Queue<ENDED>,
    /// Peers for which a chunk may be begun.
    calling: Queue<0>,
    /// No request's deadline is earlier.
    deadline: Instant,
    proofs: Proofs<'a>,
}

impl<'a> Staged<'a> {
    /// Takes over the tables, whatever was in them. `None`: a pool makes no sense, there are more than
    /// [`POOLS_MAX`], or a table is too small for them.
    pub fn new(
        tables: StagedTables<'a>,
        pools: &[PoolConfig],
        config: StagedConfig,
    ) -> Option<Self> {
        let StagedTables {
            peers,
            claims,
            requests,
            slots,
            lines,
            unproven,
        } = tables;
        let parties = 2 * u32::from(u16::try_from(peers.len()).ok()?);
        let tickets = u32::try_from(claims.len()).ok()?.checked_div(parties)?;
        claims.fill_with(|| Claim::EMPTY);
        for (index, peer) in (0_u32..).zip(peers.iter_mut()) {
            *peer = PeerStaging::EMPTY;
            let first = (parties / 2 + index) * tickets;
            for row in first..first + tickets {
                peer.idle.push_back(&mut *claims, row);
            }
        }
        Some(Self {
            pools: Pools::new(pools, slots, lines, parties, config.party_slots_max)?,
            claims,
            peers,
            requests: Table::new(requests),
            tickets,
            config,
            outbox: Queue::EMPTY,
            sent: Queue::EMPTY,
            ready: Queue::EMPTY,
            revoked: Queue::EMPTY,
            ended: Queue::EMPTY,
            calling: Queue::EMPTY,
            deadline: Instant::MAX,
            proofs: Proofs::new(unproven),
        })
    }

    /// Takes a request.
    pub fn submit(
        &mut self,
        now: Instant,
        request: &StagedRequest,
    ) -> Result<StagedId, StageRefused> {
        let free = (self.requests.capacity() - self.requests.len()) as u32;
        let Some(peer) = self.peers.get(request.peer.index()) else {
            return Err(StageRefused::PeerUnknown);
        };
        let has = peer.requests;
        let local = request.local_pool.and_then(|pool| self.pools.config(pool));
        request.check(local)?;
        let row = Request::new(now, *request, request.chunk_bytes(local));
        if free > 0 && has >= free {
            return Err(StageRefused::PeerFull);
        }
        let id = self.requests.insert(row).map_err(|_| StageRefused::Full)?;
        self.meet(request.peer);
        if let Some(peer) = self.peers.get_mut(request.peer.index()) {
            peer.requests += 1;
            peer.oldest = peer.oldest.min(now);
        }
        self.deadline = self.deadline.min(request.deadline.unwrap_or(Instant::MAX));
        self.queue_turn(now, request.peer, id);
        self.settle(now);
        Ok(id)
    }

    /// Asks a request to end. What is being carried out is called back and waited for.
    pub fn cancel(&mut self, now: Instant, id: StagedId) -> Cancelled {
        match self.requests.get(id).map(|request| request.report) {
            None => Cancelled::Stale,
            Some(Some(_)) => Cancelled::AlreadyEnded,
            Some(None) => {
                self.end(now, id, Cause::Cancelled);
                self.settle(now);
                Cancelled::Marked
            }
        }
    }

    /// All requests end, as cancelled ones do, with this cause.
    pub fn shut_down(&mut self, now: Instant) {
        self.end_all(now, None, Cause::ShutDown);
        self.settle(now);
    }

    /// The next hop to carry out.
    pub fn poll_stage(&mut self) -> Option<Stage> {
        loop {
            let row = self.ready.pop_front(&mut *self.claims)?;
            let stage = self.stage(row);
            if let Some(claim) = self.claim_mut(row) {
                claim.run = if stage.is_some() { Run::Out } else { Run::No };
            }
            if stage.is_some() {
                return stage;
            }
        }
    }

    /// How a hop has ended, with its final report. If that was without proof, the stage is named again with what is known
    /// later: then its slot is used again, and its request settled.
    pub fn handle_stage(
        &mut self,
        now: Instant,
        id: StageId,
        report: &Report,
    ) -> Result<(), Refusal> {
        let claim = self.claim_mut(id.index).ok_or(Refusal::StaleStage)?;
        if claim.run != Run::Out || claim.attempt != id.generation {
            let known = self.handle_proof(id, report);
            self.settle(now);
            return known.then_some(()).ok_or(Refusal::StaleStage);
        }
        claim.run = Run::No;
        let role = claim.role;
        self.revoked.remove(&mut *self.claims, id.index);
        match role {
            Role::Chunk(_) => self.handle_chunk_stage(now, id.index, report),
            Role::Lease(_) => self.handle_copy(id.index, report),
            Role::Idle => debug_assert!(false, "a hop of row {} was out, which is idle", id.index),
        }
        self.let_in(self.peer(id.index));
        self.settle(now);
        Ok(())
    }

    /// The next message for a peer.
    pub fn poll_message(&mut self, now: Instant) -> Option<(PeerId, StageMessage)> {
        loop {
            let row = self.outbox.pop_front(&mut *self.claims)?;
            let role = self.claim(row)?.role;
            let message = match &role {
                Role::Idle => None,
                Role::Chunk(chunk) => self.question(row, chunk),
                Role::Lease(lease) => self.statement(row, lease),
            };
            let Some(message) = message else {
                continue;
            };
            if let Role::Chunk(_) = role {
                let resend_at = now + self.config.resend_after;
                if let Some(claim) = self.claim_mut(row) {
                    claim.resend_at = resend_at;
                }
                self.sent.remove(&mut *self.claims, row);
                debug_assert!(
                    (self.sent.back().and_then(|last| self.claim(last)))
                        .is_none_or(|last| last.resend_at <= resend_at),
                    "what is to be repeated first is not the first"
                );
                self.sent.push_back(&mut *self.claims, row);
            }
            return Some((self.peer(row), message));
        }
    }

    /// What a peer said. Lost, doubled or late messages change nothing; what no sound peer says is refused.
    pub fn handle_message(
        &mut self,
        now: Instant,
        peer: PeerId,
        message: &StageMessage,
    ) -> Result<(), Refusal> {
        if peer.index() >= self.peers.len() {
            return Err(Refusal::UnknownPeer);
        }
        self.meet(peer);
        let answer = match message {
            StageMessage::Reserve { ticket, .. }
            | StageMessage::Go { ticket, .. }
            | StageMessage::Free { ticket, .. } => self.handle_question(peer, *ticket, message),
            _ => self.handle_answer(now, peer, message),
        };
        self.settle(now);
        answer
    }

    /// The next thing to tell the program.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(row) = self.ended.pop_front(&mut self.requests) {
            let request = self.requests.id_at(row)?;
            let row = self.requests.remove(request)?;
            if let Some(peer) = self.peers.get_mut(row.route.peer.index()) {
                debug_assert!(
                    peer.requests > 0,
                    "a request of a peer that has none has ended"
                );
                peer.requests = peer.requests.saturating_sub(1);
            }
            let report = row.report?;
            return Some(Event::Ended { request, report });
        }
        let (request, local, remote) = self.next_proof()?;
        Some(Event::Settled {
            request,
            local,
            remote,
        })
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let resend = self.sent.front().and_then(|row| self.claim(row));
        let resend = resend.map_or(Instant::MAX, |claim| claim.resend_at);
        Some(resend.min(self.deadline)).filter(|at| *at != Instant::MAX)
    }

    /// Repeats what has not been answered, and ends what is overdue. Calling early or twice changes nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(row) = self.sent.front() {
            if self.claim(row).is_none_or(|claim| claim.resend_at > now) {
                break;
            }
            self.sent.remove(&mut *self.claims, row);
            self.handle_unanswered(now, row);
        }
        if self.deadline <= now {
            self.end_overdue(now);
        }
        self.settle(now);
    }

    /// How a pool stands.
    pub fn pool(&self, pool: PoolId) -> Option<PoolView> {
        self.pools.view(pool)
    }

    /// The quarantined slots of a pool, by number, and what may still be touching them.
    pub fn quarantined(&self, pool: PoolId) -> impl Iterator<Item = (u32, Suspect)> + '_ {
        self.pools.quarantined(pool)
    }

    /// There is proof that nothing touches this quarantined slot any more. `false`: it is none.
    pub fn restore(&mut self, now: Instant, pool: PoolId, slot: u32) -> bool {
        let restored = self.pools.restore(pool, slot);
        self.settle(now);
        restored
    }

    /// Begins what has become possible: chunks in idle rows, slots for those in line.
    fn settle(&mut self, now: Instant) {
        loop {
            if let Some(peer) = self.calling.pop_front(&mut *self.peers) {
                self.begin_chunks(now, PeerId(peer as u16));
            } else if let Some(pool) = self.pools.stirred() {
                match self.pools.grant(self.claims, pool) {
                    Some(Grant::Slot { claim, slot }) => self.granted(now, claim, pool, slot),
                    Some(Grant::Lost { claim }) => self.lost(now, claim),
                    None => {}
                }
            } else {
                return;
            }
        }
    }

    fn granted(&mut self, now: Instant, row: u32, pool: PoolId, slot: u32) {
        let Some(claim) = self.claim_mut(row) else {
            return;
        };
        debug_assert!(
            claim.waits == Some(pool) && claim.slot.is_none(),
            "row {row} does not wait for a slot"
        );
        claim.waits = None;
        claim.slot = Some((pool, slot));
        match claim.role {
            Role::Chunk(_) => self.acquire(now, row),
            Role::Lease(_) => {
                self.set_lease(row, |lease| lease.state = LeaseState::Held);
                self.answer(row);
            }
            Role::Idle => debug_assert!(false, "row {row} is idle, and has got a slot"),
        }
    }

    fn lost(&mut self, now: Instant, row: u32) {
        let Some(claim) = self.claim_mut(row) else {
            return;
        };
        debug_assert!(
            claim.waits.is_some(),
            "row {row} is told that no slot is left, and waits for none"
        );
        claim.waits = None;
        match claim.role {
            Role::Chunk(Chunk {
                request: Some(id), ..
            }) => self.end(now, id, Cause::StagingLost),
            Role::Lease(_) => {
                self.set_lease(row, |lease| lease.state = LeaseState::Lost);
                self.answer(row);
            }
            Role::Chunk(_) | Role::Idle => {}
        }
    }
}
