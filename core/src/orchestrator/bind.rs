//! Late binding: a slice gets its rail at the moment a rail can take it.

use super::attempt::{Attempt, Load, Marks};
use super::board::{self, Pace, Seen, Unfilled, View, Way, position_of, unfilled};
use super::lane::{Lane, Phase, kib_of};
use super::path::Lead;
use super::peer::Peer;
use super::post::Run;
use super::{Orchestrator, Policy, Reason};
use crate::path::Preference;
use crate::path::class::ClassSet;
use crate::plan::{NO_RAILS, PLAN_RAILS_MAX, PlanRail, PlanRails, of_rails};
use crate::rail::select::{self, Candidate, Usable};
use crate::rail::spray::{Line, Lone, Room, Slices, Spot};
use crate::rail::{Healthy, Shared};
use crate::slice;
use crate::time::{Duration, Instant};
use crate::units::{LaneId, PeerId, RailId, RequestId};
use crate::work::{Op, POST_MAX, PostBatch};

/// Slices bound in one go, before they are handed out.
const BIND_MAX: u32 = 64;
/// Slices of one peer before it is another's turn.
pub(super) const TURN_MAX: u32 = 16;
/// An idle rail's speed is looked at after this long without a completion.
const RATE_PROBE_INTERVAL: Duration = Duration::from_millis(5);
/// If the first lane to a peer is not open by then, another one is tried too.
const OPEN_PATIENCE: Duration = Duration::from_millis(10);
/// When all room is taken by other workers, look again after this long. One of them may give room back between this
/// worker's look and its announcement that it waits: then neither sees the other, and nobody is woken.
const BIND_RETRY: Duration = Duration::from_millis(1);

/// What became of a try to bind slices of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// All have a rail that there was a turn for.
    Yes,
    /// Something must happen first: a completion, or a lane that opens.
    Wait,
    /// Nothing is left of the request but copies that no rail takes now, or slices that there is no row to cut in.
    OnlyCopies,
    /// It stood in front because of slices to be sent again, and none of them can go now: the rest waits where it belongs.
    Behind,
    /// No rail is usable.
    NoRail,
}

/// The next slice of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub(super) request: RequestId,
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) avoid: Option<RailId>,
    /// It is the front of the queue of slices to be sent again.
    pub(super) again: bool,
}

/// A request that slices are taken from, in a row.
struct Cut {
    /// Its row.
    request: u32,
    op: Op,
    length: u64,
    /// Bytes bound so far.
    cursor: u64,
    /// Bytes that its peer has to bind.
    unbound_bytes: u64,
    /// Slices that may be bound before it is another's turn.
    turn: u32,
}

impl Cut {
    fn rest(&self) -> u64 {
        self.length - self.cursor
    }

    fn is_over(&self) -> bool {
        self.rest() == 0 || self.turn == 0
    }

    fn next_length(&self, usual: u32) -> u32 {
        slice::next_length(self.rest(), usual)
    }

    /// The first one of its next slices on a rail, with so many bytes in flight there before them.
    fn attempt(&self, rail: RailId, slices: Slices, ahead_bytes: u64) -> Attempt {
        let load = Load::Slice(self.request);
        let mut attempt = Attempt::new(load, self.op, self.cursor, slices.length);
        attempt.bind_to(rail, ahead_bytes, slices.bytes());
        attempt
    }

    /// So many of its slices have been bound.
    fn bound(&mut self, slices: Slices) {
        let bytes = slices.bytes();
        self.cursor += bytes;
        self.unbound_bytes -= bytes;
        self.turn -= slices.count;
    }

    /// Slices that are of the length of the next one, no more than there is a turn for.
    fn slices_max(&self, length: u32) -> u32 {
        whole(self.rest(), length).min(u64::from(self.turn)) as u32
    }
}

/// Whether nothing has gone over a rail for so long that it may be slower by now than it was.
fn may_be_slow(now: Instant, spot: &Spot) -> bool {
    spot.load.inflight_bytes == 0 && now.since(spot.used_at) >= RATE_PROBE_INTERVAL
}

/// Slices of a request in line.
struct Need {
    /// Bytes of the next one.
    length: u32,
    /// How many there is a turn for.
    slices_max: u32,
    /// Bytes left of the request.
    rest_bytes: u64,
    /// And of all that its peer has to bind.
    unbound_bytes: u64,
}

impl Need {
    /// How many [`Self::closely`] says, where a bound tells it that is found quicker: only this worker has something on the
    /// rail, its device has nothing else, and even a whole window would leave so much that all rails are busy for longer.
    #[inline(always)] // see `Orchestrator::refill`
    fn whole_room(
        &self,
        rail: &Healthy<'_>,
        lane: &Lane,
        op: Op,
        line: Line,
        pace: &mut Pace,
    ) -> Option<u32> {
        if !line.has_all() {
            return None;
        }
        let length = u64::from(self.length.max(1));
        let room_bytes = rail.own_room(lane.inflight_bytes)?;
        let count = (room_bytes / length).min(lane.room_works(op) as u64);
        let mut count = count.min(u64::from(self.slices_max));
        let is_right = rail.slice_bytes() <= self.length && self.length <= lane.work_bytes_max();
        if (count + 1) * length > self.rest_bytes {
            // The last slice of a request may be of another length.
            count = count.min(whole(self.rest_bytes, self.length));
        }
        if count == 0 || !is_right {
            return None;
        }
        let bytes = count * length;
        let rest = self.unbound_bytes.saturating_sub(bytes - length);
        pace.has_plenty(rail.fill_span(), rest)
            .then_some(count as u32)
    }

    /// How many of them go to the only rail that may have room, if that cannot be told at once. `Some(None)`: the next one
    /// waits. `None`: it has no room for one of this length after all, or wants another length.
    #[inline(never)]
    fn closely(
        &self,
        shared: &Shared<'_>,
        lanes: &[Lane],
        (rails, position, rail): (&PlanRails, usize, &Healthy<'_>),
        (op, line): (Op, Line),
        pace: &mut Pace,
    ) -> Option<Option<Slices>> {
        let row = *rails.get(position)?;
        let lane = lanes.get(row.rail.index())?;
        let spot = board::spot(rail, position as u8, row, lane, op);
        let (length, unbound_bytes) = (self.length, self.unbound_bytes);
        let (turn, rest_bytes) = (self.slices_max, self.rest_bytes);
        let plenty = pace.plenty_run(&spot, line, length, unbound_bytes, turn, rest_bytes);
        if plenty.is_some() {
            return Some(plenty);
        }
        let lone = Lone::new(spot, line, self.length)?;
        let look = || board::look(rails, lanes, shared, None, 1 << position, self.length);
        let slices_max = whole(self.rest_bytes, self.length).min(u64::from(self.slices_max)) as u32;
        Some(pace.lone_run(&lone, self.unbound_bytes, slices_max, look))
    }
}

/// Slices that are of this length, of so many bytes.
fn whole(bytes: u64, length: u32) -> u64 {
    let length = u64::from(length.max(1));
    let whole = bytes / length;
    // The last one may have another length.
    whole - u64::from(whole * length != bytes)
}

/// What [`Shared::reserve`] may fill a rail up to, after [`Room::takes`] has said yes: loose, because it only has to
/// stop workers that decide at the same moment.
fn inflight_limit(shared: &Shared<'_>, window_bytes: u64) -> u64 {
    2 * window_bytes + u64::from(shared.slice_bytes())
}

/// Whether so many works more of a lane go into what is handed out together.
fn takes(out: &PostBatch, lane: LaneId, works: u32) -> bool {
    let same = out.works.is_empty() || out.lane == lane;
    same && out.works.len() + works as usize <= POST_MAX
}

impl Orchestrator<'_> {
    /// Binds slices while rails have room, a bounded number, peers in turn. What goes to the first lane that it can all be
    /// handed out on at once is in `out` then, and nowhere else; the others are among those with something to post.
    pub(super) fn bind(&mut self, now: Instant, out: &mut PostBatch) {
        if !core::mem::take(&mut self.bindable) {
            return;
        }
        if core::mem::take(&mut self.bindable_all) {
            self.roomy = None;
            while let Some(index) = self.waiting.pop_front(self.peers) {
                self.ready_again(PeerId(index as u16));
            }
        }
        let mut budget = BIND_MAX;
        match self.roomy.take() {
            Some(peer) if self.ready.is_empty() => self.bind_roomy(now, peer, &mut budget, out),
            roomy => {
                if let Some(peer) = roomy {
                    self.waiting.remove(self.peers, u32::from(peer.0));
                    self.ready_again(peer);
                }
                self.bind_ready(now, &mut budget, out);
            }
        }
        if !self.shared.has_one_worker() {
            self.say_waiting();
        }
    }

    /// Binds slices of the peers that are ready.
    #[inline(never)]
    fn bind_ready(&mut self, now: Instant, budget: &mut u32, out: &mut PostBatch) {
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front(self.peers) else {
                break;
            };
            let peer = PeerId(index as u16);
            self.bind_peer_by_policy(now, peer, budget, out);
            match self.peers.get(peer.index()) {
                Some(row) if row.pending.is_empty() => {}
                Some(row) if row.waits_for_room => {
                    self.ready.remove(self.peers, index);
                    self.waiting.push_back(self.peers, index);
                }
                _ => self.ready.push_back(self.peers, index),
            }
        }
    }

    /// The same for the only one, which stays among those that wait for room: mostly it does so again.
    fn bind_roomy(&mut self, now: Instant, peer: PeerId, budget: &mut u32, out: &mut PostBatch) {
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.waits_for_room = false;
        }
        self.bind_peer_by_policy(now, peer, budget, out);
        let index = u32::from(peer.0);
        match self.peers.get(peer.index()) {
            Some(row) if row.waits_for_room && !row.pending.is_empty() => {}
            Some(row) if row.pending.is_empty() => self.waiting.remove(self.peers, index),
            _ => {
                self.waiting.remove(self.peers, index);
                self.ready.push_back(self.peers, index);
            }
        }
    }

    #[inline(always)] // both that call it are loops of their own
    fn bind_peer_by_policy(
        &mut self,
        now: Instant,
        peer: PeerId,
        budget: &mut u32,
        out: &mut PostBatch,
    ) {
        match self.config.policy {
            Policy::Documented => self.bind_assigned(now, peer, budget),
            _ => self.bind_peer(now, peer, budget, out),
        }
    }

    /// Tells the other workers since when this one has waited for room.
    #[inline(never)]
    fn say_waiting(&mut self) {
        let oldest = self
            .unbound
            .front()
            .and_then(|index| self.requests.at(index));
        // Nobody else's have waited for longer than urgent ones.
        let since = oldest.map(|row| match self.urgent {
            0 => row.submitted_at,
            _ => Instant::ZERO,
        });
        self.shared.set_waiting(self.config.worker, since);
    }

    /// Something happened that may let any peer's slices go.
    pub(super) fn bind_all(&mut self) {
        self.bindable = true;
        self.bindable_all = true;
    }

    /// Something happened that may let a peer's slices go.
    pub(super) fn bind_again(&mut self, peer: PeerId) {
        self.bindable = true;
        if self
            .peers
            .get(peer.index())
            .is_some_and(|row| row.waits_for_room)
        {
            self.stop_waiting(peer);
        }
    }

    /// A peer that waited for room may find some. The first one stays where it is in line: see [`Self::bind_roomy`].
    #[inline]
    pub(super) fn stop_waiting(&mut self, peer: PeerId) {
        if self.roomy == Some(peer) {
            return;
        }
        if self.roomy.is_none() && self.ready.is_empty() {
            self.roomy = Some(peer);
            return;
        }
        self.wait_no_more(peer);
    }

    /// A peer that waited for room is among those that are ready, and so is the one that stood out.
    #[inline(never)]
    pub(super) fn wait_no_more(&mut self, peer: PeerId) {
        for peer in self.roomy.take().into_iter().chain([peer]) {
            let row = self.peers.get(peer.index());
            if row.is_some_and(|row| row.waits_for_room) {
                self.waiting.remove(self.peers, u32::from(peer.0));
                self.ready_again(peer);
            }
        }
    }

    fn ready_again(&mut self, peer: PeerId) {
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.waits_for_room = false;
        }
        self.ready.push_back(self.peers, u32::from(peer.0));
    }

    /// Binds slices of one peer's requests, in the order in which they go, a bounded number.
    #[inline(always)] // both that call it are loops of their own
    fn bind_peer(&mut self, now: Instant, peer: PeerId, budget: &mut u32, out: &mut PostBatch) {
        if !self.shared.has_one_worker() {
            self.line = self.shared.line(self.config.worker);
        }
        if self.board.is_used() {
            self.board.clear(self.line);
        }
        self.promote(now, peer);
        let given = TURN_MAX.min(*budget);
        let Some(first) = self.first_pending(peer).filter(|_| given > 0) else {
            return;
        };
        let mut turn = given;
        let refilled = self.refill(now, peer, first, &mut turn, out);
        if refilled == Some(Bound::Wait) && turn < given {
            // It has something in flight, so it is tried again.
            *budget -= given - turn;
            return;
        }
        let turns = (given, turn);
        self.bind_pending(now, peer, (first, refilled), turns, budget, out);
    }

    /// Goes on with `first`, which has been tried to be refilled, and those behind it.
    #[inline(never)]
    fn bind_pending(
        &mut self,
        now: Instant,
        peer: PeerId,
        (first, refilled): (u32, Option<Bound>),
        (given, after_first): (u32, u32),
        budget: &mut u32,
        out: &mut PostBatch,
    ) {
        let (mut some_stuck, mut lacks_credit) = (false, None);
        // It stands in front because of what is to be sent again, and waits for room: only what is urgent passes it.
        let mut waits_in_front = None;
        let (mut left, mut turn) = (given, after_first);
        let (mut next, mut refilled) = (Some(first), refilled);
        for _ in 0..TURN_MAX {
            let Some(index) = next else {
                break;
            };
            let Some(request) = self.requests.id_at(index) else {
                break;
            };
            let mut behind = self.pending_after(peer, index);
            let bound =
                refilled.unwrap_or_else(|| self.bind_request(now, peer, request, &mut turn));
            if turn < left {
                self.served(now, peer, index, left - turn);
                if !some_stuck && let Some(row) = self.peers.get_mut(peer.index()) {
                    row.stuck_since = Instant::MAX;
                }
            }
            match bound {
                // Its rest is for the next turn.
                Bound::Yes if turn == 0 => break,
                Bound::Yes => self.leave_line_for_good(peer, index),
                Bound::OnlyCopies => {}
                Bound::Behind => {
                    self.go_home(peer, index);
                    self.bindable = true;
                }
                Bound::Wait if self.lacks_read_credit(request) => {
                    lacks_credit.get_or_insert(request);
                    behind = self.pass(peer, index);
                }
                Bound::Wait if self.stands_in_front(request) => {
                    waits_in_front.get_or_insert(request);
                }
                Bound::Wait => {
                    *budget -= given - turn;
                    return self.wait_for_room(now, peer, request);
                }
                Bound::NoRail => {
                    some_stuck = true;
                    self.stuck(now, peer, request);
                }
            }
            if waits_in_front.is_some() {
                behind = self.urgent_from(peer, behind);
            }
            next = behind;
            left = turn;
            let Some(index) = next.filter(|_| turn > 0) else {
                break;
            };
            // A refill would forget that something is stuck, and what it binds would not be on the board.
            refilled = match some_stuck || self.board.is_used() {
                true => None,
                false => self.refill(now, peer, index, &mut turn, out),
            };
        }
        *budget -= given - turn;
        match (next, waits_in_front.or(lacks_credit)) {
            (None, Some(request)) => self.wait_for_room(now, peer, request),
            // There is more to bind than one turn allows.
            _ => self.bindable |= next.is_some(),
        }
    }

    /// Whether a request waits for a credit that only reads need: a write would find room where it finds none.
    fn lacks_read_credit(&self, request: RequestId) -> bool {
        let Some(row) = self.requests.get(request).filter(|row| row.op == Op::Read) else {
            return false;
        };
        let rails = self
            .plan(row.plan)
            .map_or(&NO_RAILS, |plan| plan.rails(row.failover.rank()));
        let open = rails
            .iter()
            .filter_map(|rail| self.lanes.get(rail.rail.index()));
        let (mut writes, mut reads) = (0, 0);
        for lane in open {
            writes += lane.room_works(Op::Write);
            reads += lane.room_works(Op::Read);
        }
        writes > 0 && reads == 0
    }

    /// Whether a request stands before others for no other reason than that slices of it are to be sent again.
    fn stands_in_front(&self, request: RequestId) -> bool {
        let row = self.requests.get(request);
        row.is_some_and(|row| row.class != row.home && row.turn == 0)
    }

    /// The first one from `index` on, of those that stand in front, that is urgent by itself.
    fn urgent_from(&mut self, peer: PeerId, mut index: Option<u32>) -> Option<u32> {
        for _ in 0..TURN_MAX {
            let row = index.and_then(|index| self.requests.at(index))?;
            if !row.class.is_urgent() {
                return None;
            }
            if row.home.is_urgent() {
                return index;
            }
            index = self.pending_after(peer, index?);
        }
        None
    }

    /// A request that stood in front waits where it belongs from now on.
    fn go_home(&mut self, peer: PeerId, index: u32) {
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.pending.go_home(&mut self.requests, index);
        }
    }

    /// What goes after a request that waits for a credit that only reads need.
    fn pass(&mut self, peer: PeerId, index: u32) -> Option<u32> {
        let row = self.peers.get_mut(peer.index())?;
        row.pending.pass(&mut self.requests, index)
    }

    pub(super) fn first_pending(&self, peer: PeerId) -> Option<u32> {
        self.peers.get(peer.index())?.pending.front()
    }

    pub(super) fn pending_after(&mut self, peer: PeerId, index: u32) -> Option<u32> {
        let pending = &self.peers.get(peer.index())?.pending;
        pending.after(&mut self.requests, index)
    }

    /// Lets requests of a peer that have waited for long go before others.
    #[inline]
    pub(super) fn promote(&mut self, now: Instant, peer: PeerId) {
        let patience = self.config.priority_promotion;
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.pending.promote(now, &mut self.requests, patience);
        }
    }

    /// So many slices of a request got rails.
    pub(super) fn served(&mut self, now: Instant, peer: PeerId, index: u32, slices: u32) {
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.pending.served(now, &mut self.requests, index, slices);
        }
    }

    /// A request's next slice waits for room, and those behind it with it.
    fn wait_for_room(&mut self, now: Instant, peer: PeerId, request: RequestId) {
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.waits_for_room = true;
        }
        self.retry_if_idle(now, request);
    }

    /// For a request with nothing in flight no completion will come to try again.
    pub(super) fn retry_if_idle(&mut self, now: Instant, request: RequestId) {
        if self.requests.get(request).is_some_and(|row| row.held == 0) {
            self.arm(now + BIND_RETRY, Reason::Bind);
        }
    }

    /// A request has no rail to go to. That may end; until then time runs.
    pub(super) fn stuck(&mut self, now: Instant, peer: PeerId, request: RequestId) {
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.stuck_since = row.stuck_since.min(now);
        }
        if let Some(due) = self.stuck_until(peer, request) {
            self.arm(due.max(now), Reason::Peer);
        }
        self.retry_if_idle(now, request);
    }

    /// Binds slices of a request, as many as `turn` says; takes off it what was bound.
    pub(super) fn bind_request(
        &mut self,
        now: Instant,
        peer: PeerId,
        request: RequestId,
        turn: &mut u32,
    ) -> Bound {
        if !self.has_unbound(request) {
            return Bound::Yes;
        }
        let row = self.peers.get(peer.index());
        if !row.is_some_and(Peer::is_reachable) {
            return Bound::NoRail;
        }
        let bound = self.bind_on_transport(now, peer, request, turn);
        if bound == Bound::NoRail && self.fail_over(now, request) {
            return self.bind_on_transport(now, peer, request, turn);
        }
        bound
    }

    pub(super) fn has_unbound(&self, request: RequestId) -> bool {
        self.requests
            .get(request)
            .is_some_and(|row| row.has_unbound())
    }

    /// Binds slices of a request to rails of the transport that it goes over.
    fn bind_on_transport(
        &mut self,
        now: Instant,
        peer: PeerId,
        request: RequestId,
        turn: &mut u32,
    ) -> Bound {
        let Some(row) = self.requests.get(request) else {
            return Bound::NoRail;
        };
        let way = Way {
            peer,
            plan: row.plan,
            rank: row.failover.rank(),
            op: row.op,
        };
        if self.config.policy == Policy::Spray && row.waiting.is_empty() {
            return self.spray(now, way, request, turn);
        }
        self.bind_each(now, way, request, turn)
    }

    /// Binds slices of a request one by one: those to be sent again, and all of a baseline.
    #[inline(never)]
    fn bind_each(&mut self, now: Instant, way: Way, request: RequestId, turn: &mut u32) -> Bound {
        while *turn > 0 {
            let mut some_copies = false;
            if let Some(again) = self.next_again(request) {
                match self.bind_next(now, way, again) {
                    Bound::Yes => {
                        *turn -= 1;
                        continue;
                    }
                    // A copy that must avoid the one rail with room does not hold up the rest, nor other requests.
                    _ if again.avoid.is_some() => some_copies = true,
                    bound => return bound,
                }
            }
            if self.stands_in_front(request) && !self.is_cut(request) {
                // Slices that were never sent have no business there.
                return Bound::Behind;
            }
            if self.config.policy == Policy::Spray && !self.is_cut(request) {
                match self.spray(now, way, request, turn) {
                    Bound::Yes if some_copies => continue,
                    bound => return bound,
                }
            }
            let bound = match self.next_new(request) {
                Some(new) if self.config.policy == Policy::Documented => self.bind_share(now, new),
                Some(new) => self.bind_next(now, way, new),
                None if some_copies => Bound::OnlyCopies,
                None => return Bound::Yes,
            };
            if bound != Bound::Yes {
                return bound;
            }
            *turn -= 1;
        }
        Bound::Yes
    }

    /// Whether all of a request has been bound once.
    fn is_cut(&self, request: RequestId) -> bool {
        let row = self.requests.get(request);
        row.is_none_or(|row| row.cursor == row.length)
    }

    /// Binds slices that were never sent, by [`Policy::Spray`].
    #[inline(never)]
    fn spray(&mut self, now: Instant, way: Way, request: RequestId, turn: &mut u32) -> Bound {
        let (Some(row), Some(peer)) =
            (self.requests.get(request), self.peers.get(way.peer.index()))
        else {
            return Bound::NoRail;
        };
        let mut cut = Cut {
            request: request.index,
            op: row.op,
            length: row.length,
            cursor: row.cursor,
            unbound_bytes: peer.unbound_bytes,
            turn: *turn,
        };
        let line = Line {
            is_urgent: row.home.is_urgent(),
            ..self.line
        };
        let is_steered = peer.steering.is_some();
        let is_fresh = is_steered || !self.board.is_of(way) || self.board.line() != line;
        if is_fresh {
            // What is bound without it would not be on it.
            self.board.clear(line);
        }
        let bound = self.spray_over(now, way, is_steered, &mut cut);
        let bound_slices = *turn - cut.turn;
        *turn = cut.turn;
        if let Some(row) = self.requests.get_mut(request) {
            row.cursor = cut.cursor;
            row.held += bound_slices;
        }
        if let Some(row) = self.peers.get_mut(way.peer.index()) {
            row.unbound_bytes = cut.unbound_bytes;
        }
        bound
    }

    /// By far the most usual: one lane has got room again, and the others have none. Binds what goes there of a request,
    /// without a board, on which nothing may be. If the rest waits, so does the peer from then on. `None`: what is left takes
    /// a look at all rails.
    #[inline(always)] // calls on the way there and back would be a tenth of it
    fn refill(
        &mut self,
        now: Instant,
        peer: PeerId,
        request: u32,
        turn: &mut u32,
        out: &mut PostBatch,
    ) -> Option<Bound> {
        let shared = self.shared;
        let row = self.requests.at_mut(request)?;
        let peer_row = self.peers.get_mut(peer.index())?;
        if !(row.is_plain() && peer_row.is_free() && self.config.policy == Policy::Spray) {
            return None;
        }
        let rank = row.failover.rank();
        let rest = row.length - row.cursor;
        let length = slice::next_length(rest, shared.slice_bytes());
        let slice_kib = kib_of(length);
        let plan = self.plans.get_mut(row.plan.index as usize)?;
        let (rails, pace) = plan.rails_and_pace(row.plan.generation, rank)?;
        let known = peer_row.lone(pace, slice_kib);
        let known = known.filter(|_| shared.has_one_worker());
        let position = match known.and_then(|known| position_of(rails, self.lanes, known)) {
            Some(position) => position,
            None => match unfilled(rails, self.lanes, shared, length) {
                Unfilled::None => return Some(Bound::Wait),
                Unfilled::One(position) => position,
                Unfilled::Several => return None,
            },
        };
        let rail = *rails.get(position)?;
        let lane = self.lanes.get_mut(rail.rail.index())?;
        let healthy = shared.healthy(rail.rail).filter(|_| lane.is_open())?;
        if healthy.may_be_slow(now, RATE_PROBE_INTERVAL) && healthy.rests(now, RATE_PROBE_INTERVAL)
        {
            return None;
        }
        let need = Need {
            length,
            slices_max: *turn,
            rest_bytes: rest,
            unbound_bytes: peer_row.unbound_bytes,
        };
        let slices = match need.whole_room(&healthy, lane, row.op, self.line, pace) {
            Some(count) => Slices { length, count },
            None => {
                let lanes = &*self.lanes;
                let at = (rails, position, &healthy);
                match need.closely(shared, lanes, at, (row.op, self.line), pace) {
                    Some(Some(slices)) => slices,
                    Some(None) => return Some(Bound::Wait),
                    None => return None,
                }
            }
        };
        let window_bytes = healthy.window_bytes();
        let limit = inflight_limit(shared, window_bytes);
        let Some(ahead_bytes) = healthy.reserve(now, slices.bytes(), limit) else {
            self.arm(now + BIND_RETRY, Reason::Bind);
            return None;
        };
        let lane = self.lanes.get_mut(rail.rail.index())?;
        lane.position = position as u8;
        let run = Run {
            now,
            rail: rail.rail,
            ahead_bytes,
            slices,
            request: row,
            row: request,
        };
        let attempts = &mut self.attempts;
        let id = LaneId::new(self.config.worker, rail.rail);
        let at_once = lane.posts_at_once() && takes(out, id, slices.count);
        let count = if at_once {
            (out.lane, out.epoch) = (id, lane.epoch);
            lane.post_run(attempts, &run, window_bytes, &mut out.works)
        } else {
            lane.bind_run(attempts, run.attempt(), slices.count, window_bytes)
        };
        let is_filled = lane.is_filled(slice_kib);
        if !at_once {
            self.posts.push_back(self.lanes, u32::from(rail.rail.0));
        }
        let bytes = u64::from(length) * u64::from(count);
        if count != slices.count {
            shared.release(rail.rail, slices.bytes() - bytes);
            if count == 0 {
                // No row is free but the last one.
                return None;
            }
        }
        row.cursor += bytes;
        row.held += count;
        peer_row.unbound_bytes -= bytes;
        *turn -= count;
        let rest = rest - bytes;
        if rest == 0 || *turn == 0 {
            return Some(Bound::Yes);
        }
        // What is left may begin with a shorter slice than the lane is filled for.
        if rest < u64::from(length) || !is_filled {
            return None;
        }
        pace.note_filled(peer_row.rooms, slice_kib);
        peer_row.stuck_since = Instant::MAX;
        peer_row.waits_for_room = true;
        if peer_row.pending.served_at(now, row, count) {
            let requests = &mut self.requests;
            peer_row.pending.served_above(now, requests, request);
        }
        Some(Bound::Wait)
    }

    /// How fast the rails of a way are together.
    fn pace_mut(&mut self, way: Way) -> Option<&mut Pace> {
        let row = self.plans.get_mut(way.plan.index as usize)?;
        row.paces.get_mut(usize::from(way.rank))
    }

    /// Binds slices to whichever rails suit them best.
    #[inline(never)]
    fn spray_over(&mut self, now: Instant, way: Way, is_steered: bool, cut: &mut Cut) -> Bound {
        let usual = self.shared.slice_bytes();
        // A request that is steered has rails of its own.
        let preference = match is_steered {
            true => self.preference(now, way.peer, cut.length),
            false => None,
        };
        let bound = loop {
            if cut.is_over() {
                break Bound::Yes;
            }
            let length = cut.next_length(usual);
            if self.board.length() != length {
                let usable = self.survey(now, way, preference, length, cut.unbound_bytes);
                if self.board.is_empty() {
                    break if usable { Bound::Wait } else { Bound::NoRail };
                }
            }
            if !self.spray_run(now, length, cut) {
                break Bound::Wait;
            }
        };
        if !is_steered {
            self.remember_pace(way);
        }
        bound
    }

    /// Looks at all rails of a way and puts those with room for a slice on the board. Opens lanes that are
    /// wanted. Whether any rail is usable or about to be.
    fn survey(
        &mut self,
        now: Instant,
        way: Way,
        preference: Option<Preference>,
        length: u32,
        unbound_bytes: u64,
    ) -> bool {
        let lead = preference.map(|preference| self.lead(way, preference, length));
        let mut seen = self.fill_board(way, lead, length);
        if self.probe_idle(now, way.peer) {
            seen = self.fill_board(way, lead, length);
        }
        if let Some(lead) = lead {
            // How fast all rails are together says nothing of those of some classes.
            self.board.believe(None);
            return self.open_more(now, way, Some(lead.wants), lead.some_open, unbound_bytes);
        }
        let row = self.plans.get_mut(way.plan.index as usize);
        let pace = row.and_then(|row| row.paces.get_mut(usize::from(way.rank)));
        self.board.believe(pace);
        seen.all_open() || self.open_more(now, way, None, seen.open > 0, unbound_bytes)
    }

    fn fill_board(&mut self, way: Way, lead: Option<Lead>, length: u32) -> Seen {
        let tables = (&*self.plans, &mut *self.lanes, self.shared);
        self.board.fill(tables, way, lead, length)
    }

    /// Binds one slice of what is being cut, and those behind it that go to the same rail. `false`: the next one waits.
    fn spray_run(&mut self, now: Instant, length: u32, cut: &mut Cut) -> bool {
        let slices_max = cut.slices_max(length);
        let mut run = self.board.run(cut.unbound_bytes, slices_max);
        let mut once = None;
        if run.is_none() {
            once = self.choose(length, cut.rest(), cut.unbound_bytes);
            // It may have had to look at all rails, which says more.
            run = once.and_then(|_| self.board.run(cut.unbound_bytes, slices_max));
        }
        let Some((index, slices)) = run.or(once) else {
            return false;
        };
        let Some(spot) = self.board.spot(index) else {
            return false;
        };
        let (rail, window_bytes) = (spot.rail, spot.window_bytes);
        let bound = self.bind_run(now, rail, window_bytes, slices, cut);
        let Some((bound, ahead_bytes)) = bound else {
            return false;
        };
        self.board.take(now, index, bound, ahead_bytes);
        if let Some((way, lead)) = self.board.lead() {
            self.led(way, &lead, rail, slices.length);
            if lead.takes_turns() {
                // What is on the board is not what the next slice may take.
                let line = self.board.line();
                self.board.clear(line);
            }
        }
        bound == slices
    }

    /// Binds slices in a row to a rail, as many as there are rows for. Which, and how many bytes were in flight there
    /// before them; `None`: none.
    #[inline(always)] // what it is given and gives stays in registers
    fn bind_run(
        &mut self,
        now: Instant,
        rail: RailId,
        window_bytes: u64,
        slices: Slices,
        cut: &mut Cut,
    ) -> Option<(Slices, u64)> {
        let limit = inflight_limit(self.shared, window_bytes);
        let Some(ahead_bytes) = self.shared.reserve(now, rail, slices.bytes(), limit) else {
            self.arm(now + BIND_RETRY, Reason::Bind);
            return None;
        };
        let count = self.bind_new(rail, window_bytes, slices, cut, ahead_bytes);
        let bound = Slices { count, ..slices };
        let bytes = bound.bytes();
        if bound != slices {
            self.shared.release(rail, slices.bytes() - bytes);
        }
        if count == 0 {
            return None;
        }
        self.posts.push_back(self.lanes, u32::from(rail.0));
        cut.bound(bound);
        Some((bound, ahead_bytes))
    }

    /// Chooses for one slice of a request that has `rest` bytes left. Gives an index on the board, and how long the
    /// slice is there.
    fn choose(&mut self, length: u32, rest: u64, unbound_bytes: u64) -> Option<(usize, Slices)> {
        let view = View {
            plans: self.plans,
            lanes: self.lanes,
            shared: self.shared,
        };
        let index = self.board.choose(&view, unbound_bytes)?;
        let spot = self.board.spot(index)?;
        let length = if spot.slice_bytes > length && u64::from(length) < rest {
            self.board.lengthened(&view, spot, length, rest)
        } else {
            length.min(spot.work_bytes_max)
        };
        Some((index, Slices { length, count: 1 }))
    }

    /// Rows for slices in a row that were never sent, on one lane. How many there were rows for.
    #[inline]
    fn bind_new(
        &mut self,
        rail: RailId,
        window_bytes: u64,
        slices: Slices,
        cut: &Cut,
        ahead_bytes: u64,
    ) -> u32 {
        let attempt = cut.attempt(rail, slices, ahead_bytes);
        if !self.attempts.has_two() {
            self.evict_lost();
        }
        let Some(lane) = self.lanes.get_mut(rail.index()) else {
            return 0;
        };
        lane.bind_run(&mut self.attempts, attempt, slices.count, window_bytes)
    }

    /// Keeps what a look has shown for the next boards.
    fn remember_pace(&mut self, way: Way) {
        let Some(seen) = self.board.seen_pace() else {
            return;
        };
        if let Some(pace) = self.pace_mut(way) {
            *pace = seen;
        }
    }

    /// The first slice to be sent again; copies of what has arrived meanwhile are dropped on the way.
    fn next_again(&mut self, request: RequestId) -> Option<Next> {
        loop {
            let row = self.requests.get(request)?;
            let index = row.waiting.front()?;
            let attempt = self.attempts.at(index)?;
            if !attempt.is(Marks::DONE) {
                return Some(Next {
                    request,
                    op: attempt.op(),
                    offset: attempt.offset,
                    length: attempt.length,
                    avoid: self.avoided(attempt),
                    again: true,
                });
            }
            self.pop_waiting(request);
            self.remove_attempt(index, super::attempt::End::Ended);
        }
    }

    /// The next slice that was never sent.
    fn next_new(&self, request: RequestId) -> Option<Next> {
        let row = self.requests.get(request)?;
        let length = slice::next_length(row.length - row.cursor, self.shared.slice_bytes());
        (length > 0).then_some(Next {
            request,
            op: row.op,
            offset: row.cursor,
            length,
            avoid: None,
            again: false,
        })
    }

    /// Binds one slice, by whatever policy: of a baseline, or one that is sent again.
    #[inline(never)]
    fn bind_next(&mut self, now: Instant, way: Way, next: Next) -> Bound {
        // What is on the board will not be true any more.
        let row = self.requests.get(next.request);
        let line = Line {
            is_urgent: row.is_some_and(|row| row.home.is_urgent()),
            ..self.line
        };
        self.board.clear(line);
        let lead = self.lead_next(now, way, &next);
        let classes = lead.map(|lead| lead.takes.or_else(lead.wants));
        let rails = self.wanted(&self.allowed(way, classes));
        let mut candidates = heapless::Vec::<Candidate, PLAN_RAILS_MAX>::new();
        for rail in rails.iter().filter(|rail| next.avoid != Some(rail.rail)) {
            if let Some(candidate) = self.candidate(*rail, &next, line) {
                let _ = candidates.push(candidate);
            }
        }
        // With a candidate for every rail there is none left to open.
        let all_open = lead.is_none() && !rails.is_empty() && candidates.len() == rails.len();
        let is_open = |rail: &PlanRail| self.view().open_on(rail.rail).is_some();
        let some_open = match lead {
            None => !candidates.is_empty(),
            // An open lane that the policy does not want is no help.
            Some(lead) => {
                let wanted = self.wanted(&self.allowed(way, Some(lead.wants)));
                lead.some_open && wanted.iter().any(is_open)
            }
        };
        let wants = lead.map(|lead| lead.wants);
        let unbound_bytes = self
            .peers
            .get(way.peer.index())
            .map_or(0, |row| row.unbound_bytes);
        let usable = all_open || self.open_more(now, way, wants, some_open, unbound_bytes);
        if candidates.is_empty() {
            return if usable { Bound::Wait } else { Bound::NoRail };
        }
        let chosen = match self.config.policy {
            Policy::RoundRobin => select::round_robin(&candidates, self.cursor),
            // Only slices to be sent again come here, and they have waited enough.
            Policy::Spray => select::least_predicted(&candidates),
            Policy::FixedTier1 | Policy::BestTwo => select::least_predicted(&candidates),
            Policy::Documented => self.best_with_room(&candidates, next.length),
        };
        let chosen = chosen.and_then(|index| candidates.get(index).copied());
        let bound = chosen.and_then(|candidate| self.bind_to(now, candidate.rail, next));
        let (Some(candidate), Some(length)) = (chosen, bound) else {
            let full = next.again && self.attempts.is_full();
            if full && chosen.is_some() {
                self.pass_over(next.request);
                self.arm(now + BIND_RETRY, Reason::Bind);
                return Bound::OnlyCopies;
            }
            return Bound::Wait;
        };
        if let Some(lead) = lead {
            self.led(way, &lead, candidate.rail, length);
        }
        Bound::Yes
    }

    /// The rails of a way, of some classes or of all.
    fn allowed(&self, way: Way, classes: Option<ClassSet>) -> PlanRails {
        let rails = self.view().rails(way);
        match classes {
            None => of_rails(rails.iter().copied()),
            Some(classes) => {
                let allowed = rails.iter().filter(|rail| classes.contains(rail.class));
                of_rails(allowed.copied())
            }
        }
    }

    /// The rails of a plan that the policy uses while they stand as they do.
    fn wanted(&self, rails: &PlanRails) -> PlanRails {
        if self.config.policy == Policy::Spray {
            return rails.clone();
        }
        let usable = rails.iter().map(|rail| Usable {
            rail: *rail,
            rate_nominal: self.shared.rate_nominal(rail.rail),
        });
        let mut usable = of_rails(usable.filter(|usable| self.is_healthy(usable.rail.rail)));
        select::retain_wanted(self.config.policy, &mut usable);
        of_rails(usable.iter().map(|usable| usable.rail))
    }

    pub(super) fn is_healthy(&self, rail: RailId) -> bool {
        self.shared
            .health(rail)
            .is_some_and(|health| health.is_healthy())
    }

    /// Binds a slice to a rail that has been seen to have room, and tells its length. `None`: another worker was
    /// quicker, or the table is full.
    pub(super) fn bind_to(&mut self, now: Instant, rail: RailId, mut next: Next) -> Option<u32> {
        if let Some(lane) = self.lanes.get(rail.index()) {
            // Cut for the rail that takes it.
            next.length = next.length.min(lane.work_bytes_max());
        }
        let bytes = u64::from(next.length);
        let limit = match self.config.policy {
            // The document has no windows: what is given to a device is posted.
            Policy::Documented => u64::MAX,
            _ => inflight_limit(self.shared, self.shared.window_bytes(rail)),
        };
        let Some(ahead_bytes) = self.shared.reserve(now, rail, bytes, limit) else {
            self.arm(now + BIND_RETRY, Reason::Bind);
            return None;
        };
        let index = if next.again {
            self.take_again(next)
        } else {
            self.take_new(next)
        };
        match index {
            Some(index) => self.put_on_lane(index, rail, ahead_bytes),
            None => self.shared.release(rail, bytes),
        }
        self.cursor = rail;
        index.map(|_| next.length)
    }

    /// A row for a slice that was never sent.
    fn take_new(&mut self, next: Next) -> Option<u32> {
        let slice = Load::Slice(next.request.index);
        let attempt = Attempt::new(slice, next.op, next.offset, next.length);
        let index = self.new_attempt(attempt)?.index;
        let bytes = u64::from(next.length);
        if let Some(row) = self.requests.get_mut(next.request) {
            row.cursor += bytes;
            let peer = row.peer;
            if let Some(row) = self.peers.get_mut(peer.index()) {
                row.unbound_bytes -= bytes;
            }
        }
        Some(index)
    }

    /// Whether a lane and its rail's window take the slice now.
    fn has_room(&self, lane: &Lane, room: Room, next: &Next, line: Line) -> bool {
        let length = next.length.min(lane.work_bytes_max());
        let has_window = || self.config.policy == Policy::Documented || room.takes(length, line);
        lane.room_works(next.op) > 0 && has_window()
    }

    /// A healthy rail with an open lane, as the baselines see it.
    pub(super) fn candidate(&self, rail: PlanRail, next: &Next, line: Line) -> Option<Candidate> {
        let PlanRail { rail, tier, .. } = rail;
        let (lane, room) = self.view().open_on(rail)?;
        Some(Candidate {
            rail,
            tier,
            has_room: self.has_room(lane, room, next, line),
            predicted: self.shared.load(rail)?.predicted(next.length),
        })
    }

    /// Opens lanes as they are wanted: the first one to a peer, another if that takes long, all once more than
    /// one slice waits. Of some classes, or of all. Whether any rail is usable or about to be.
    #[inline(never)]
    fn open_more(
        &mut self,
        now: Instant,
        way: Way,
        classes: Option<ClassSet>,
        some_open: bool,
        unbound_bytes: u64,
    ) -> bool {
        let rails = self.wanted(&self.allowed(way, classes));
        let mut best: Option<(RailId, Duration)> = None;
        let (mut usable, mut patient) = (some_open, some_open);
        // Each peer begins elsewhere, or the first slices of many would all queue at one device.
        let first = usize::from(way.peer.0) % rails.len().max(1);
        let in_turn = rails.iter().skip(first).chain(rails.iter().take(first));
        for PlanRail { rail, .. } in in_turn.copied() {
            let healthy = self.is_healthy(rail);
            let Some(lane) = self.lanes.get(rail.index()).filter(|_| healthy) else {
                continue;
            };
            // A fence in progress ends, or is given up; either way the rail is not lost.
            usable = true;
            match lane.phase {
                Phase::Closed => {
                    let length = self.shared.slice_bytes();
                    let load = self.shared.load(rail);
                    let predicted = load.map_or(Duration::MAX, |load| load.predicted(length));
                    if best.is_none_or(|(_, time)| predicted < time) {
                        best = Some((rail, predicted));
                    }
                }
                Phase::Opening { since, .. } => {
                    if now < since + OPEN_PATIENCE {
                        patient = true;
                        self.arm(since + OPEN_PATIENCE, Reason::Bind);
                    }
                }
                Phase::Open | Phase::Fencing(_) => {}
            }
        }
        let Some((best, _)) = best else {
            return usable;
        };
        let by = now + self.config.open_timeout;
        if some_open && unbound_bytes > u64::from(self.shared.slice_bytes()) {
            for rail in &rails {
                if self.is_healthy(rail.rail) {
                    self.open_lane(now, rail.rail, by);
                }
            }
        } else if !patient {
            self.open_lane(now, best, by);
        }
        usable
    }

    /// Sends a scratch slice over rails that have stood idle while there was work, to see how fast they are
    /// now: they may have been slow when they were last used. Whether any was.
    fn probe_idle(&mut self, now: Instant, peer: PeerId) -> bool {
        let bytes_max = self.scratch_bytes(peer);
        let mut some_probed = false;
        for index in 0..self.board.len() {
            let is_idle = |spot: &&Spot| may_be_slow(now, spot) && bytes_max > 0;
            let Some(spot) = self.board.spot(index).filter(is_idle) else {
                continue;
            };
            let (rail, work_bytes_max) = (spot.rail, spot.work_bytes_max);
            let shared = self.shared;
            if shared.claim_rate_probe(now, rail, RATE_PROBE_INTERVAL) {
                let bytes = shared.rate_probe_bytes(rail);
                let bytes = bytes.min(bytes_max).min(work_bytes_max);
                self.post_probe(now, rail, Load::RateProbe, bytes);
                some_probed = true;
            }
        }
        some_probed
    }
}
