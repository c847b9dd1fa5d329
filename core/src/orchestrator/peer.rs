//! Peers: who is heard, who is silent, and what waits for a silent one.

use super::attempt::End;
use super::lane::{Lane, Phase};
use super::line::Lines;
use super::path::Steering;
use super::request::{Ending, RequestRow};
use super::{Chooser, Orchestrator, PlanRow, Reason};
use crate::failover::Decision;
use crate::plan::Plan;
use crate::queue::{Link, Linked};
use crate::report::Status;
use crate::time::Instant;
use crate::units::{PeerId, RailId, RequestId, SegmentRef};
use crate::work::{Cause, Place};

pub(super) const READY: usize = 0;
pub(super) const CHANGED: usize = 1;

/// What is proved of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Proof {
    /// Its process has ended: nothing of ours can move on its side, and nothing will come of requests.
    ProcessGone,
    /// It has ended the session with everything that belonged to it. Requests go on once there is a new one.
    SessionEnded,
}

/// Where probes read from and write to. Without a gap: there is one in each row.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Scratch {
    /// On this side, and on the peer's.
    segments: [SegmentRef; 2],
    offsets: [u64; 2],
    bytes: u32,
}

impl Scratch {
    fn of(plan: &Plan) -> Self {
        let (local, remote) = (plan.scratch_local, plan.scratch_remote);
        Self {
            segments: [local.segment, remote.segment],
            offsets: [local.offset, remote.offset],
            bytes: plan.scratch_bytes,
        }
    }
}

/// A row of the peers' table; opaque.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Peer {
    known: bool,
    gone: bool,
    /// Given up: its rows are freed as what refers to them ends.
    leaving: bool,
    silent: bool,
    heard_at: Instant,
    /// Since when there have been requests without a rail to go to; [`Instant::MAX`]: there are none.
    pub(super) stuck_since: Instant,
    /// No rail had room for the next slice, and none has got any since, of this worker's own bytes.
    pub(super) waits_for_room: bool,
    /// Requests with bytes to bind, in the order in which they go.
    pub(super) pending: Lines,
    /// Bytes of them.
    pub(super) unbound_bytes: u64,
    scratch: Option<Scratch>,
    /// Which classes its slices take; `None`: any.
    pub(super) steering: Option<Steering>,
    links: [Link; 2],
}

impl<const KIND: usize> Linked<KIND> for Peer {
    fn link(&mut self) -> &mut Link {
        &mut self.links[KIND]
    }
}

impl Peer {
    /// For the arrays that a caller hands in.
    pub const EMPTY: Self = Self {
        known: false,
        gone: false,
        leaving: false,
        silent: false,
        heard_at: Instant::ZERO,
        stuck_since: Instant::MAX,
        waits_for_room: false,
        pending: Lines::EMPTY,
        unbound_bytes: 0,
        scratch: None,
        steering: None,
        links: [Link::NONE; 2],
    };

    pub(super) fn is_silent(&self) -> bool {
        self.silent
    }

    /// Whether it is among those that may find room, or among those that wait for it.
    pub(super) fn is_in_line(&self) -> bool {
        let [link, _] = self.links;
        link.is_queued()
    }

    fn is_there(&self) -> bool {
        self.known && !self.gone
    }

    fn is_known(&self) -> bool {
        self.is_there() && !self.leaving
    }

    /// Whether slices may go to it.
    pub(super) fn is_reachable(&self) -> bool {
        self.is_known() && !self.silent
    }

    /// Whether slices may go to it, over whichever rails.
    pub(super) fn is_free(&self) -> bool {
        self.is_reachable() && self.steering.is_none()
    }

    /// How its requests end, if nothing can come of them any more.
    pub(super) fn is_lost_as(&self) -> Option<Status> {
        match (self.gone, self.leaving) {
            (true, _) => Some(Status::PeerLost),
            (false, true) => Some(Status::Failed),
            (false, false) => None,
        }
    }

    /// Where its probes read from and write to.
    pub(super) fn scratch(&self) -> Option<(Place, Place)> {
        let scratch = self.scratch?;
        let place = |segment, offset| Place { segment, offset };
        let [local, remote] = scratch.segments;
        let [local_offset, remote_offset] = scratch.offsets;
        Some((place(local, local_offset), place(remote, remote_offset)))
    }

    pub(super) fn heard_at(&self) -> Instant {
        self.heard_at
    }
}

impl<P: Chooser> Orchestrator<'_, P> {
    /// Learns of a peer and its rails from a plan.
    pub(super) fn know_peer(&mut self, now: Instant, plan: &Plan) {
        let Some(peer) = self.peers.get_mut(plan.peer.index()) else {
            return;
        };
        if !peer.known {
            peer.known = true;
            peer.heard_at = now;
        }
        peer.gone = false;
        peer.scratch = Some(Scratch::of(plan));
        if !matches!((&peer.steering, plan.path), (Some(old), Some(new)) if old.is_of(new)) {
            peer.steering = plan.path.map(Steering::new);
        }
        let at = peer.heard_at + self.config.peer_silence;
        self.peers_used = self.peers_used.max(plan.peer.index() + 1);
        self.arm(at, Reason::Peer);
        for row in plan.all_rails() {
            self.lanes_used = self.lanes_used.max(row.rail.index() + 1);
            // While the peer was not known, nobody looked for the return of its rails.
            self.arm_probe(row.rail);
        }
        self.bind_all();
    }

    pub(super) fn knows(&self, peer: PeerId) -> bool {
        self.peers.get(peer.index()).is_some_and(Peer::is_known)
    }

    pub(super) fn is_silent(&self, peer: PeerId) -> bool {
        self.peers.get(peer.index()).is_some_and(Peer::is_silent)
    }

    pub(super) fn scratch_bytes(&self, peer: PeerId) -> u32 {
        self.peers
            .get(peer.index())
            .and_then(|row| row.scratch)
            .map_or(0, |scratch| scratch.bytes)
    }

    /// A sign of life.
    pub(super) fn heard(&mut self, now: Instant, peer: PeerId) {
        let Some(row) = self.peers.get_mut(peer.index()).filter(|row| row.known) else {
            return;
        };
        row.heard_at = row.heard_at.max(now);
        if core::mem::take(&mut row.silent) {
            row.stuck_since = Instant::MAX;
            self.changed_peers.push_back(self.peers, u32::from(peer.0));
            self.bind_all();
        }
    }

    /// What is due for one peer at `now`; arms what is due later.
    pub(super) fn peer_timers(&mut self, now: Instant, peer: PeerId) {
        if !self.peers.get(peer.index()).is_some_and(Peer::is_there) {
            return;
        }
        match self.silent_from(now, peer) {
            Some(due) if due <= now => self.went_silent(now, peer),
            Some(due) => self.arm(due, Reason::Peer),
            None => {}
        }
        self.fail_stuck(now, peer);
    }

    /// When a peer counts as silent that does not yet, if nothing is heard of it until then.
    fn silent_from(&self, now: Instant, peer: PeerId) -> Option<Instant> {
        let silence = self.config.peer_silence;
        let row = self.peers.get(peer.index())?;
        if !row.is_there() || row.silent {
            return None;
        }
        let due = row.heard_at + silence;
        // It is asked less often then. What comes to it meanwhile is still reported within its bound.
        match due <= now && self.nothing_goes_to(peer) {
            true => Some(due + silence.min(self.config.fence_timeout.divided_by(2))),
            false => Some(due),
        }
    }

    /// Whether [`handle_timeout`](Self::handle_timeout) would count a peer as silent at `now`. A runtime that hears peers on
    /// another thread can have that one look first whether they have said something.
    pub fn finds_silence(&self, now: Instant) -> bool {
        let mut peers = (0..self.peers_used).map(|index| PeerId(index as u16));
        peers.any(|peer| self.silent_from(now, peer).is_some_and(|due| due <= now))
    }

    /// Whether nothing goes to a peer or waits for it, of this worker or another one.
    fn nothing_goes_to(&self, peer: PeerId) -> bool {
        let waits = |row: &Peer| row.pending.any().is_some();
        let mut rails = self.rails_of(peer);
        !self.peers.get(peer.index()).is_some_and(waits)
            && rails.all(|rail| self.shared.inflight_bytes(rail) == 0)
    }

    fn went_silent(&mut self, now: Instant, peer: PeerId) {
        let Some(row) = self.peers.get_mut(peer.index()) else {
            return;
        };
        debug_assert!(
            row.known && !row.silent,
            "peer {} goes silent, and was before",
            peer.0
        );
        row.silent = true;
        let give_up_at = row.heard_at + self.config.fence_timeout;
        self.changed_peers.push_back(self.peers, u32::from(peer.0));
        for rail in self.rails_of(peer) {
            self.start_fence(now, rail, Cause::PeerSilent);
            self.hasten_fence(rail, give_up_at);
        }
        self.bind_all();
    }

    /// When a request of a stuck peer has waited too long: the bound counts from the last sign of life of a
    /// silent peer, else from when there was no rail, but never from before the request came. `None`: the peer
    /// is not stuck.
    pub(super) fn stuck_until(&self, peer: PeerId, request: RequestId) -> Option<Instant> {
        let row = self.peers.get(peer.index())?;
        if row.stuck_since == Instant::MAX {
            return None;
        }
        let from = if row.silent {
            row.heard_at
        } else {
            row.stuck_since
        };
        let submitted_at = self
            .requests
            .get(request)
            .map_or(from, |row| row.submitted_at);
        Some(from.max(submitted_at) + self.config.fence_timeout)
    }

    /// Fails the requests of a peer that have waited too long for it, or for a rail to it.
    fn fail_stuck(&mut self, now: Instant, peer: PeerId) {
        let Some(row) = self
            .peers
            .get(peer.index())
            .filter(|row| row.stuck_since != Instant::MAX)
        else {
            return;
        };
        let cause = if row.silent {
            Cause::PeerSilent
        } else {
            Cause::NoRail
        };
        let mut next = row.pending.any();
        while let Some(index) = next {
            next = self.pending_after(peer, index);
            let Some(id) = self.requests.id_at(index) else {
                continue;
            };
            if cause == Cause::NoRail && self.has_rail(id) {
                continue;
            }
            match self.stuck_until(peer, id) {
                Some(due) if due <= now => self.fail_request(now, id, cause),
                Some(due) => self.arm(due, Reason::Peer),
                None => {}
            }
        }
    }

    /// Bytes of peers that wait to be bound.
    pub(super) fn bytes_in_line(&mut self) -> u64 {
        let mut bytes = 0_u64;
        for line in [self.ready, self.waiting] {
            let mut next = line.front();
            while let Some(index) = next {
                bytes = bytes.saturating_add(self.unbound_bytes(PeerId(index as u16)));
                next = line.after(self.peers, index);
            }
        }
        bytes
    }

    /// Whether a rail is healthy that a request may take: of its transport, or of one that it may go on with.
    pub(super) fn has_rail(&self, id: RequestId) -> bool {
        let Some((row, plan)) = self
            .requests
            .get(id)
            .and_then(|row| Some((row, self.plan(row.plan)?)))
        else {
            return false;
        };
        let mut failover = row.failover;
        let attempts_max = self.config.failover_attempts_max;
        let ranks = plan.transports.len() as u8;
        let mut goes_on =
            || failover.decide(attempts_max, ranks, |rank| self.is_usable(plan, *rank));
        self.is_usable(plan, row.failover.rank()) || matches!(goes_on(), Decision::Switch(_))
    }

    /// A peer, or a session with it, is gone.
    pub(super) fn peer_gone(&mut self, now: Instant, peer: PeerId, proof: Proof) {
        if proof == Proof::ProcessGone {
            if let Some(row) = self.peers.get_mut(peer.index()) {
                row.gone = true;
            }
            self.end_requests_of_gone(now, peer);
        }
        for rail in self.rails_of(peer) {
            self.remote_ended(now, rail);
        }
        self.bind_all();
    }

    /// Gives a peer up: see [`Orchestrator::forget_peer`].
    pub(super) fn give_up_peer(&mut self, now: Instant, peer: PeerId) -> bool {
        let Some(row) = self
            .peers
            .get_mut(peer.index())
            .filter(|row| row.known || row.leaving)
        else {
            return true;
        };
        if !core::mem::replace(&mut row.leaving, true) {
            self.end_with_peer(now, peer);
        }
        self.drop_unproven(peer);
        if !self.has_ended(peer) {
            return false;
        }
        for rail in self.rails_of(peer) {
            self.free_lane(rail);
        }
        let is_of_peer = |row: &&mut PlanRow| row.plan.as_ref().is_some_and(|p| p.peer == peer);
        let lost_as = self.peers.get(peer.index()).and_then(Peer::is_lost_as);
        for row in self.plans.iter_mut().filter(is_of_peer) {
            row.plan = None;
            row.lost = lost_as.map(|status| (row.generation, status));
        }
        let index = u32::from(peer.0);
        self.bind_again(peer);
        self.ready.remove(self.peers, index);
        self.changed_peers.remove(self.peers, index);
        if let Some(row) = self.peers.get_mut(peer.index()) {
            debug_assert!(
                row.pending.is_empty() && row.unbound_bytes == 0,
                "peer {} is forgotten with {} bytes to bind",
                peer.0,
                row.unbound_bytes
            );
            debug_assert!(
                row.links == [Link::NONE; 2],
                "peer {} is forgotten in a queue",
                peer.0
            );
            *row = Peer::EMPTY;
        }
        true
    }

    /// Ends what there is between this side and a peer that is given up.
    fn end_with_peer(&mut self, now: Instant, peer: PeerId) {
        let ending = Ending {
            status: Status::Failed,
            cause: Cause::PeerGone,
        };
        self.end_requests(now, Some(peer), ending);
        for rail in self.rails_of(peer) {
            match self.lanes.get(rail.index()).map(|lane| lane.phase) {
                Some(Phase::Open) => self.start_fence(now, rail, Cause::PeerGone),
                Some(Phase::Opening { .. }) => self.open_failed(now, rail, Cause::PeerGone),
                Some(Phase::Closed | Phase::Fencing(_)) | None => {}
            }
        }
    }

    /// Stops waiting for proof from a peer that is given up: of attempts whose reports do not wait for it any
    /// more either, and that nobody on this side carries out.
    fn drop_unproven(&mut self, peer: PeerId) {
        let is_open = |row: &RequestRow| row.peer == peer && (!row.is_taken() || row.has_news());
        if self.requests.iter().any(|(_, row)| is_open(row)) {
            return;
        }
        self.drop_handed_back(peer);
        for rail in self.rails_of(peer) {
            let phase = self.lanes.get(rail.index()).map(|lane| lane.phase);
            let is_over =
                matches!(phase, Some(Phase::Fencing(fence)) if fence.local && fence.given_up);
            if !is_over {
                continue;
            }
            while let Some(index) = self.first_posted(rail) {
                let request = self.remove_attempt(index, End::Ended);
                if let Some(request) = request {
                    self.forget_if_over(request);
                }
            }
            if let Some(lane) = self.lanes.get_mut(rail.index()) {
                lane.close();
            }
            self.actions.push_back(self.lanes, u32::from(rail.0));
        }
    }

    /// Whether nothing of a peer is left on this side: no request, and no lane with an attempt or with anything
    /// to be done about it.
    fn has_ended(&self, peer: PeerId) -> bool {
        let is_quiet = |rail: RailId| self.lanes.get(rail.index()).is_none_or(Lane::is_quiet);
        self.rails_of(peer).all(is_quiet) && self.requests.iter().all(|(_, row)| row.peer != peer)
    }
}
