//! Late binding: a slice gets its rail at the moment a rail can take it.
//!
//! [`Orchestrator::bind`] goes through the peers that may find room, `bind_peer` through the requests of one in the order
//! of their [`line`](super::line), `bind_request` through the slices of one: first those to be sent again, then new ones. A
//! slice goes to the rail that the policy chooses of the [`open_rails`](super::open_rails), and `place` puts it there.

use super::attempt::{Attempt, Load, Marks, Stage};
use super::lane::Phase;
use super::line::{Held, Route};
use super::open_rails::{View, Way};
use super::path::Lead;
use super::peer::Peer;
use super::post::Run;
use super::settings::UNKNOWN;
use super::{Chooser, Orchestrator, Reason};
use crate::path::class::ClassSet;
use crate::plan::{PLAN_RAILS_MAX, PlanRail, PlanRails, of_rails};
use crate::rail::Shared;
use crate::rail::chooser::Binding;
use crate::rail::select::{Candidate, Usable};
use crate::rail::spray::{self, Line, Need, Slices, Spot};
use crate::slice;
use crate::time::{Duration, Instant};
use crate::units::{LaneId, PeerId, RailId, RequestId};
use crate::work::{Op, POST_MAX, PostBatch};

/// Slices bound in one go, before they are handed out.
const BIND_MAX: u32 = 64;
/// Slices of one peer before it is another's turn.
pub(super) const TURN_MAX: u32 = 16;
/// Requests of one peer that are tried in a turn.
const TRIES_MAX: u32 = 32;
/// The same where each request waits for rails of its own.
const WALK_MAX: u32 = 256;
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
    /// Something must happen first that those behind it in its line wait for too: a completion, or a lane that opens.
    Wait,
    /// It waits, and holds up nobody: copies that no rail takes, or slices that there is no row to cut in.
    Alone,
    /// It stood in front because of slices to be sent again, and has none: the rest waits where it belongs.
    Behind,
    /// No rail is usable.
    NoRail,
}

/// The next slice of a request, for a policy that binds one by one.
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

/// What is left of a turn, and where its first works go.
pub(super) struct Turn<'o> {
    /// Slices that may still be bound.
    pub(super) slices: u32,
    /// Of the first lane that can post them at once.
    out: &'o mut PostBatch,
}

/// What [`Shared::reserve`] may fill a rail up to, after [`spray::Room::takes`] has said yes: loose, because it only has to
/// stop workers that decide at the same moment.
fn inflight_limit(shared: &Shared<'_>, window_bytes: u64) -> u64 {
    2 * window_bytes + u64::from(shared.slice_bytes())
}

/// A rail that has stood idle for so long, and the longest work that it takes.
pub(super) fn idle(now: Instant, spot: &Spot, span: Duration) -> Option<(RailId, u32)> {
    let is_new = spot.used_at == Instant::ZERO;
    let is_idle = spot.load.inflight_bytes == 0 && (is_new || now.since(spot.used_at) >= span);
    is_idle.then_some((spot.rail, spot.work_bytes_max))
}

/// Whether so many works more of a lane go into what is handed out together.
fn takes(out: &PostBatch, lane: LaneId, works: u32) -> bool {
    let same = out.works.is_empty() || out.lane == lane;
    same && out.works.len() + works as usize <= POST_MAX
}

/// Peers that have something to bind, in turn.
impl<P: Chooser> Orchestrator<'_, P> {
    /// Binds slices while rails have room, a bounded number, peers in turn. What goes to the first lane that it can all be
    /// handed out on at once is in `out` then, and nowhere else; the others are among those with something to post.
    pub(super) fn bind(&mut self, now: Instant, out: &mut PostBatch) {
        if !core::mem::take(&mut self.bindable) {
            return;
        }
        if core::mem::take(&mut self.bindable_all) {
            while let Some(index) = self.waiting.pop_front(self.peers) {
                self.ready_again(PeerId(index as u16));
            }
        }
        let mut budget = BIND_MAX;
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front(self.peers) else {
                break;
            };
            self.bind_peer(now, PeerId(index as u16), &mut budget, out);
            match self.peers.get(index as usize) {
                Some(row) if row.pending.is_empty() => {}
                Some(row) if row.waits_for_room => self.waiting.push_back(self.peers, index),
                _ => self.ready.push_back(self.peers, index),
            }
        }
        if !self.shared.has_one_worker() {
            self.say_waiting();
        }
    }

    /// Tells the other workers since when this one has waited for room.
    #[cold]
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
        let row = self.peers.get(peer.index());
        if row.is_some_and(|row| row.waits_for_room) {
            self.waiting.remove(self.peers, u32::from(peer.0));
            self.ready_again(peer);
        }
    }

    /// A device that peers share has room again: one of those that have waited for it goes next.
    pub(super) fn bind_next_peer(&mut self) {
        match self.waiting.pop_front(self.peers) {
            Some(index) => self.ready_again(PeerId(index as u16)),
            None => self.crowded = false,
        }
    }

    fn ready_again(&mut self, peer: PeerId) {
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.waits_for_room = false;
        }
        self.ready.push_back(self.peers, u32::from(peer.0));
    }
}

/// Requests of one peer, in the order in which they go.
impl<P: Chooser> Orchestrator<'_, P> {
    /// Binds slices of a peer's requests, a bounded number. A request that waits holds up those behind it in its line.
    fn bind_peer(&mut self, now: Instant, peer: PeerId, budget: &mut u32, out: &mut PostBatch) {
        if !self.shared.has_one_worker() {
            self.line = self.shared.line(self.config.worker);
        }
        debug_assert!(
            !(self.peers.get(peer.index())).is_some_and(|row| row.waits_for_room),
            "peer {} waits for room, and it is its turn",
            peer.0
        );
        self.promote(now, peer);
        let given = TURN_MAX.min(*budget);
        let mut turn = Turn { slices: given, out };
        self.open_rails.wipe();
        self.open_rails.now = now;
        let (mut held, mut some_stuck) = (Held::default(), false);
        let mut next = self.first_pending(peer, held);
        for _ in 0..self.tries_max() {
            let Some(index) = next.filter(|_| turn.slices > 0) else {
                break;
            };
            let behind = self.pending_behind(peer, index);
            let bound = self.try_request(now, peer, index, &mut turn);
            some_stuck |= bound == Bound::NoRail;
            if turn.slices < given && !some_stuck {
                self.nothing_stuck(peer);
            }
            let holds = match bound {
                Bound::Wait => self.binding_for(index) != Binding::Shares,
                Bound::Alone | Bound::NoRail => false,
                Bound::Yes | Bound::Behind => {
                    next = self.first_pending(peer, held);
                    continue;
                }
            };
            next = behind.filter(|_| !holds);
            if next.is_none() {
                if let Some(row) = self.requests.at(index) {
                    held.hold(row);
                }
                next = self.first_pending(peer, held);
            }
        }
        debug_assert!(
            turn.slices <= given,
            "{} slices are left of a turn of {given}",
            turn.slices
        );
        *budget -= given - turn.slices;
        self.end_turn(peer, next);
    }

    fn tries_max(&self) -> u32 {
        match self.config.policy.share_rows() {
            Some(_) => WALK_MAX,
            None => TRIES_MAX,
        }
    }

    /// A peer's turn is over; there is something that may still find room, or not.
    fn end_turn(&mut self, peer: PeerId, next: Option<u32>) {
        let Some(row) = self.peers.get_mut(peer.index()) else {
            return;
        };
        // What has to be sent again since its turn began has put it among the others, and is looked at first.
        row.waits_for_room = next.is_none() && !row.is_in_line();
        self.bindable |= next.is_some();
    }

    fn nothing_stuck(&mut self, peer: PeerId) {
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.stuck_since = Instant::MAX;
        }
    }

    /// Binds slices of a request, and puts it where it belongs then.
    fn try_request(
        &mut self,
        now: Instant,
        peer: PeerId,
        index: u32,
        turn: &mut Turn<'_>,
    ) -> Bound {
        let Some(request) = self.requests.id_at(index) else {
            return Bound::Alone;
        };
        let (slices, bytes) = (turn.slices, self.unbound_bytes(peer));
        let bound = self.bind_request(now, peer, request, turn);
        if turn.slices < slices {
            let served = (
                slices - turn.slices,
                bytes.saturating_sub(self.unbound_bytes(peer)),
            );
            if let Some(row) = self.peers.get_mut(peer.index()) {
                row.pending.served(now, &mut self.requests, index, served);
            }
        }
        match bound {
            Bound::Yes if !self.has_unbound(request) => self.leave_line_for_good(peer, index),
            Bound::Yes => {}
            Bound::Behind => {
                if let Some(row) = self.peers.get_mut(peer.index()) {
                    row.pending.go_home(&mut self.requests, index);
                }
            }
            Bound::Wait | Bound::Alone => self.retry_if_idle(now, request),
            Bound::NoRail => self.stuck(now, peer, request),
        }
        bound
    }

    pub(super) fn unbound_bytes(&self, peer: PeerId) -> u64 {
        let row = self.peers.get(peer.index());
        row.map_or(0, |row| row.unbound_bytes)
    }

    fn first_pending(&self, peer: PeerId, held: Held) -> Option<u32> {
        let row = self.peers.get(peer.index())?;
        row.pending.first(&self.requests, held)
    }

    fn pending_behind(&mut self, peer: PeerId, index: u32) -> Option<u32> {
        let pending = &self.peers.get(peer.index())?.pending;
        pending.behind(&mut self.requests, index)
    }

    /// The request of a peer after another one, to go through them all.
    pub(super) fn pending_after(&mut self, peer: PeerId, index: u32) -> Option<u32> {
        let pending = &self.peers.get(peer.index())?.pending;
        pending.after(&mut self.requests, index)
    }

    /// Lets requests of a peer that have waited for long go before others.
    fn promote(&mut self, now: Instant, peer: PeerId) {
        let patience = self.config.priority_promotion;
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.pending.promote(now, &mut self.requests, patience);
        }
    }

    /// In which line a request stands: one for all, where rails go in turn or are few; that is what such a policy costs.
    pub(super) fn route_of(&self, index: u32) -> Option<Route> {
        let row = self.requests.at(index)?;
        if self.binding_for(index) == Binding::Slices {
            return Some(Route::new(0, row.op));
        }
        let plan = self.plans.get(row.plan.index as usize)?;
        let rails = plan.routes.get(usize::from(row.failover.rank()));
        Some(Route::new(rails.copied().unwrap_or(0), row.op))
    }

    /// For a request with nothing in flight no completion will come to try again.
    fn retry_if_idle(&mut self, now: Instant, request: RequestId) {
        if self.requests.get(request).is_some_and(|row| row.held == 0) {
            self.arm(now + BIND_RETRY, Reason::Bind);
        }
    }

    /// A request has no rail to go to. That may end; until then time runs.
    fn stuck(&mut self, now: Instant, peer: PeerId, request: RequestId) {
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.stuck_since = row.stuck_since.min(now);
        }
        // One that another transport has a rail for only waits for a look at its own, and is not ended by that.
        let is_over = || self.is_silent(peer) || !self.has_rail(request);
        let due = self.stuck_until(peer, request);
        if let Some(due) = due.filter(|due| now < *due || is_over()) {
            self.arm(due.max(now), Reason::Peer);
        }
        // A rail may come back by another worker's probe. Of a peer that is heard again this one hears by itself.
        if !self.is_silent(peer) {
            self.retry_if_idle(now, request);
        }
    }
}

/// Slices of one request.
impl<P: Chooser> Orchestrator<'_, P> {
    /// Binds slices of a request to rails of the transport that it goes over, or of the next one if that has none.
    fn bind_request(
        &mut self,
        now: Instant,
        peer: PeerId,
        request: RequestId,
        turn: &mut Turn<'_>,
    ) -> Bound {
        if !self.has_unbound(request) {
            return Bound::Yes;
        }
        if !self.peers.get(peer.index()).is_some_and(Peer::is_reachable) {
            return Bound::NoRail;
        }
        if self.compares {
            self.leave_slow(now, request);
        }
        let bound = self.bind_slices(now, peer, request, turn);
        if bound == Bound::NoRail && self.fail_over(now, request) {
            return self.bind_slices(now, peer, request, turn);
        }
        bound
    }

    pub(super) fn has_unbound(&self, request: RequestId) -> bool {
        let row = self.requests.get(request);
        row.is_some_and(|row| row.has_unbound())
    }

    /// First those to be sent again, then new ones.
    fn bind_slices(
        &mut self,
        now: Instant,
        peer: PeerId,
        request: RequestId,
        turn: &mut Turn<'_>,
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
        let mut some_copies = false;
        while turn.slices > 0 {
            if let Some(again) = self.next_again(request).filter(|_| !some_copies) {
                self.open_rails.wipe();
                match self.bind_next(now, way, again) {
                    Bound::Yes => turn.slices -= 1,
                    Bound::NoRail => return Bound::NoRail,
                    // A copy that must avoid the one rail with room does not hold up the rest, nor other requests.
                    _ if again.avoid.is_some() => some_copies = true,
                    bound => return bound,
                }
                continue;
            }
            if self.is_cut(request) {
                return if some_copies {
                    Bound::Alone
                } else {
                    Bound::Yes
                };
            }
            if self.stands_in_front(request) {
                // Slices that were never sent have no business there.
                return Bound::Behind;
            }
            if !self.has_row() {
                return Bound::Wait;
            }
            let bound = match self.binding_at(way.plan, way.rank) {
                Binding::Runs => self.spray(now, way, request, turn),
                _ => self.bind_new(now, way, request, turn),
            };
            if bound != Bound::Yes {
                return bound;
            }
        }
        Bound::Yes
    }

    /// Whether there is a row for one more slice that was never sent.
    fn has_row(&mut self) -> bool {
        if !self.attempts.has_two() {
            self.evict_lost();
        }
        self.attempts.has_two()
    }

    /// Whether a request stands before others for no other reason than that slices of it are to be sent again.
    fn stands_in_front(&self, request: RequestId) -> bool {
        let row = self.requests.get(request);
        row.is_some_and(|row| row.class == super::line::Class::AGAIN)
    }

    /// Whether all of a request has been bound once.
    fn is_cut(&self, request: RequestId) -> bool {
        let row = self.requests.get(request);
        row.is_none_or(|row| row.cursor == row.length)
    }

    /// What is needed for new slices of a request.
    fn need(&self, way: Way, request: RequestId, slices_max: u32) -> Option<Need> {
        let row = self.requests.get(request)?;
        Some(Need {
            rest_bytes: row.length - row.cursor,
            unbound_bytes: self.unbound_bytes(way.peer),
            slices_max,
            slice_bytes: self.shared.slice_bytes(),
            end: None,
            share_bytes: row.made_bytes(),
            line: self.line_of(request),
        })
    }

    /// Binds new slices in a row to the rail that suits them best, as [`Binding::Runs`] says.
    fn spray(&mut self, now: Instant, way: Way, request: RequestId, turn: &mut Turn<'_>) -> Bound {
        let Some(mut need) = self.need(way, request, turn.slices) else {
            return Bound::NoRail;
        };
        let usable = self.open_rails.is_of(way, need.line) || self.survey(now, way, request, &need);
        let lead = self.open_rails.lead;
        if lead.is_some() {
            // Each slice is led anew.
            need.slices_max = 1;
        }
        let tables = (&*self.plans, &*self.lanes, &self.attempts);
        let view = View::new(tables, self.shared, now);
        let Some((index, slices)) = self.open_rails.run(view, &need) else {
            self.crowded |= self.open_rails.is_crowded();
            return if usable { Bound::Wait } else { Bound::NoRail };
        };
        let Some((rail, window_bytes)) = self.open_rails.window(index) else {
            return Bound::Wait;
        };
        let placed = self.place(now, (rail, window_bytes), request, slices, turn.out);
        let Some((slices, ahead_bytes)) = placed else {
            return Bound::Wait;
        };
        debug_assert!(
            slices.count <= turn.slices,
            "{} slices of {}",
            slices.count,
            turn.slices
        );
        turn.slices -= slices.count;
        let is_filled = self.open_rails.take(now, index, slices, ahead_bytes);
        if let Some(lane) = self.lanes.get_mut(rail.index()).filter(|_| is_filled) {
            lane.note_filled(slices.length);
        }
        if need.line.is_urgent {
            self.shared.keep(now, rail);
        }
        if let Some(lead) = lead {
            self.led(way, &lead, rail, slices.length);
        }
        // Another look would show no more.
        let is_full = lead.is_none() && self.open_rails.spots.is_empty();
        match is_full && slices.bytes() < need.rest_bytes {
            true => Bound::Wait,
            false => Bound::Yes,
        }
    }

    /// Looks at all rails of a way for who needs something there. Opens lanes that are wanted, and sends a scratch slice over
    /// those that have stood idle. Whether any rail is usable or about to be.
    fn survey(&mut self, now: Instant, way: Way, request: RequestId, need: &Need) -> bool {
        if self.compares {
            self.compare_transports(now, way);
        }
        let length = slice::next_length(need.rest_bytes, need.slice_bytes);
        let lead = match self.is_steered(way.peer) {
            true => self.lead_new(now, way, request, (length, need.line)),
            false => None,
        };
        let place = (way, need.line);
        self.fill_open_rails(now, place, lead, length);
        if self.probe_idle(now, way.peer) {
            self.fill_open_rails(now, place, lead, length);
        }
        let (wants, some_open) = match lead {
            Some(lead) => (Some(lead.wants), lead.some_open),
            None if self.open_rails.all_open() => return true,
            None => (None, self.open_rails.open > 0),
        };
        let is_more = need.unbound_bytes > u64::from(need.slice_bytes)
            || self.open_rails.is_busy()
            || self.open_rails.want_help(self.view(), need.unbound_bytes);
        self.open_rails.asked_lanes = is_more;
        self.open_more(now, way, wants, some_open, is_more)
    }

    fn fill_open_rails(
        &mut self,
        now: Instant,
        place: (Way, Line),
        lead: Option<Lead>,
        length: u32,
    ) {
        let tables = (&*self.plans, &*self.lanes, &self.attempts);
        let view = View::new(tables, self.shared, now);
        self.open_rails.fill(view, place, lead, length);
    }

    /// What the next new slice of a request may do.
    fn lead_new(
        &mut self,
        now: Instant,
        way: Way,
        request: RequestId,
        (length, line): (u32, Line),
    ) -> Option<Lead> {
        let bytes = self.requests.get(request)?.length;
        let preference = self.preference(now, way.peer, bytes)?;
        Some(self.lead(way, preference, length, line))
    }

    fn is_steered(&self, peer: PeerId) -> bool {
        let row = self.peers.get(peer.index());
        row.is_some_and(|row| row.steering.is_some())
    }

    /// Puts new slices of a request in a row on a rail, as many as there are rows for, and hands them out at once if it can.
    /// Which, and how many bytes were in flight there before; `None`: none.
    fn place(
        &mut self,
        now: Instant,
        (rail, window_bytes): (RailId, u64),
        request: RequestId,
        slices: Slices,
        out: &mut PostBatch,
    ) -> Option<(Slices, u64)> {
        let limit = inflight_limit(self.shared, window_bytes);
        let ahead = self.shared.reserve(now, rail, slices.bytes(), limit);
        let Some(ahead_bytes) = ahead else {
            self.arm(now + BIND_RETRY, Reason::Bind);
            return None;
        };
        let (lane, row) = (
            self.lanes.get_mut(rail.index())?,
            self.requests.get_mut(request)?,
        );
        debug_assert!(lane.is_open(), "slices for a lane that is {:?}", lane.phase);
        debug_assert!(
            slices.bytes() <= row.length - row.cursor,
            "{} bytes of {} that are left",
            slices.bytes(),
            row.length - row.cursor
        );
        let run = Run {
            now,
            rail,
            ahead_bytes,
            slices,
            request: row,
            row: request.index,
        };
        let id = LaneId::new(self.config.worker, rail);
        let at_once = lane.posts_at_once() && takes(out, id, slices.count);
        let attempts = &mut self.attempts;
        let count = if at_once {
            (out.lane, out.epoch) = (id, lane.epoch);
            lane.post_run(attempts, &run, &mut out.works)
        } else {
            lane.bind_run(attempts, run.attempt(), slices.count)
        };
        let bound = Slices { count, ..slices };
        let bytes = bound.bytes();
        row.cursor += bytes;
        row.held += count;
        if let Some(peer) = self.peers.get_mut(row.peer.index()) {
            debug_assert!(
                peer.unbound_bytes >= bytes,
                "{bytes} bytes of {} that wait",
                peer.unbound_bytes
            );
            peer.unbound_bytes -= bytes;
        }
        if !at_once && count > 0 {
            self.posts.push_back(self.lanes, u32::from(rail.0));
        }
        if count < slices.count {
            self.shared.release(rail, slices.bytes() - bytes);
        }
        (count > 0).then_some((bound, ahead_bytes))
    }

    /// Sends a scratch slice over rails that have stood idle while there was work, to see how fast they are
    /// now: they may have been slow when they were last used. Whether any was.
    fn probe_idle(&mut self, now: Instant, peer: PeerId) -> bool {
        let mut some_probed = false;
        for index in 0..self.open_rails.spots.len() {
            let spot = self.open_rails.spots.get(index);
            let looked_at = spot.and_then(|spot| idle(now, spot, self.config.idle_look));
            if let Some((rail, bytes_max)) = looked_at {
                some_probed |= self.probe_rate(now, peer, rail, (bytes_max, true));
            }
        }
        some_probed
    }

    /// Sends a scratch slice of at most so many bytes over one of them, if no worker has lately. Whether it did.
    pub(super) fn probe_rate(
        &mut self,
        now: Instant,
        peer: PeerId,
        rail: RailId,
        (bytes_max, in_use): (u32, bool),
    ) -> bool {
        let bytes_max = self.scratch_bytes(peer).min(bytes_max);
        if bytes_max == 0 {
            return false;
        }
        let interval = self.config.idle_look;
        let Some(bytes) = self.shared.claim_rate_probe(now, rail, (interval, in_use)) else {
            return false;
        };
        let bytes = bytes.min(bytes_max);
        self.post_probe(now, rail, Load::RateProbe, bytes);
        true
    }
}

/// One slice at a time: those that are sent again, and all of the other policies.
impl<P: Chooser> Orchestrator<'_, P> {
    /// The first slice to be sent again; copies of what has arrived meanwhile are dropped on the way.
    fn next_again(&mut self, request: RequestId) -> Option<Next> {
        loop {
            let row = self.requests.get(request)?;
            let index = row.waiting.front()?;
            let attempt = self.attempts.at(index)?;
            debug_assert!(
                attempt.is_of(request.index) && attempt.stage() == Stage::Waiting,
                "row {index}, {:?}, waits for request {}",
                attempt.stage(),
                request.index
            );
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

    /// Binds the next slice that was never sent.
    fn bind_new(
        &mut self,
        now: Instant,
        way: Way,
        request: RequestId,
        turn: &mut Turn<'_>,
    ) -> Bound {
        let Some(row) = self.requests.get(request) else {
            return Bound::NoRail;
        };
        let next = Next {
            request,
            op: row.op,
            offset: row.cursor,
            length: slice::next_length(row.length - row.cursor, self.shared.slice_bytes()),
            avoid: None,
            again: false,
        };
        let bound = match self.binding_at(way.plan, way.rank) {
            Binding::Shares => self.bind_share(now, next),
            _ => self.bind_next(now, way, next),
        };
        turn.slices -= u32::from(bound == Bound::Yes);
        bound
    }

    fn line_of(&self, request: RequestId) -> Line {
        let row = self.requests.get(request);
        Line {
            is_urgent: row.is_some_and(|row| row.home.is_urgent()),
            ..self.line
        }
    }

    /// Binds one slice to a rail that the policy chooses. Spray sends one again where it ends first: it has waited enough.
    fn bind_next(&mut self, now: Instant, way: Way, next: Next) -> Bound {
        let line = self.line_of(next.request);
        let lead = self.lead_next(now, way, &next, line);
        let classes = lead.map(|lead| lead.takes.or_else(lead.wants));
        let rails = self.wanted(&self.allowed(way, classes));
        let others = rails.iter().filter(|rail| next.avoid != Some(rail.rail));
        let candidates: heapless::Vec<Candidate, PLAN_RAILS_MAX> =
            of_rails(others.filter_map(|rail| self.candidate(*rail, &next, line)));
        // With a candidate for every rail there is none left to open.
        let all_open = lead.is_none() && !rails.is_empty() && candidates.len() == rails.len();
        let some_open = self.some_open(way, lead.as_ref(), &candidates);
        let wants = lead.map(|lead| lead.wants);
        let is_more = self.unbound_bytes(way.peer) > u64::from(self.shared.slice_bytes());
        let usable = all_open || self.open_more(now, way, wants, some_open, is_more);
        if candidates.is_empty() {
            return if usable { Bound::Wait } else { Bound::NoRail };
        }
        let transport = self.transport_at(way.plan, way.rank).unwrap_or(UNKNOWN);
        let policy = &mut self.config.policy;
        let chosen = policy.choose(transport, &candidates, next.length);
        let chosen = chosen.and_then(|index| candidates.get(index).copied());
        // Whoever chose: a window is not overrun.
        let chosen = chosen.filter(|candidate| candidate.has_room);
        let bound = chosen.and_then(|candidate| self.bind_to(now, candidate.rail, next));
        let (Some(candidate), Some(length)) = (chosen, bound) else {
            if next.again && chosen.is_some() && self.attempts.is_full() {
                self.pass_over(next.request);
                self.arm(now + BIND_RETRY, Reason::Bind);
                return Bound::Alone;
            }
            return Bound::Wait;
        };
        if next.again {
            self.shared.count_again(candidate.rail);
        }
        if let Some(lead) = lead {
            self.led(way, &lead, candidate.rail, length);
        }
        Bound::Yes
    }

    /// Whether a lane is open that the next slice may take. An open one that path isolation does not want is no help.
    fn some_open(&self, way: Way, lead: Option<&Lead>, candidates: &[Candidate]) -> bool {
        let Some(lead) = lead else {
            return !candidates.is_empty();
        };
        let wanted = self.wanted(&self.allowed(way, Some(lead.wants)));
        let is_open = |rail: &PlanRail| self.view().spot(*rail, way.op).is_some();
        lead.some_open && wanted.iter().any(is_open)
    }

    /// The rails of a way that are in use, of some classes or of all.
    pub(super) fn allowed(&self, way: Way, classes: Option<ClassSet>) -> PlanRails {
        let rails = self.view().rails_in_use(way);
        let allowed = rails.filter(|rail| classes.is_none_or(|set| set.contains(rail.class)));
        of_rails(allowed.copied())
    }

    /// The rails of a plan that the policy uses while they stand as they do.
    fn wanted(&self, rails: &PlanRails) -> PlanRails {
        let first = rails.first();
        let transport = first.map_or(UNKNOWN, |rail| self.transport_on(rail.rail));
        let policy = &self.config.policy;
        if policy.binding(transport) == Binding::Runs {
            return rails.clone();
        }
        let usable = rails.iter().map(|rail| Usable {
            rail: *rail,
            rate_nominal: self.shared.rate_nominal(rail.rail),
        });
        let mut usable = of_rails(usable.filter(|usable| self.is_healthy(usable.rail.rail)));
        policy.retain(transport, &mut usable);
        of_rails(usable.iter().map(|usable| usable.rail))
    }

    pub(super) fn is_healthy(&self, rail: RailId) -> bool {
        self.view().is_healthy(rail)
    }

    /// A healthy rail with an open lane, for one slice.
    pub(super) fn candidate(&self, rail: PlanRail, next: &Next, line: Line) -> Option<Candidate> {
        let spot = self.view().spot(rail, next.op)?;
        let length = next.length.min(spot.work_bytes_max);
        // The document has no windows: what is given to a device is posted.
        let has_window =
            self.binding_of(rail.rail) == Binding::Shares || spot.room.takes(length, line);
        Some(Candidate {
            rail: rail.rail,
            tier: rail.tier,
            has_room: spot.works > 0 && has_window,
            predicted: spot.load.predicted(u64::from(next.length)),
        })
    }

    /// Binds a slice to a rail that has been seen to have room, and tells its length. `None`: another worker was
    /// quicker, or the table is full.
    pub(super) fn bind_to(&mut self, now: Instant, rail: RailId, mut next: Next) -> Option<u32> {
        if let Some(lane) = self.lanes.get(rail.index()) {
            // Cut for the rail that takes it.
            next.length = next.length.min(lane.work_bytes_max());
        }
        debug_assert!(
            next.length > 0,
            "a slice of no bytes of request {}",
            next.request.index
        );
        let bytes = u64::from(next.length);
        let limit = match self.binding_of(rail) {
            Binding::Shares => u64::MAX,
            _ => inflight_limit(self.shared, self.shared.window_bytes(rail)),
        };
        let Some(ahead_bytes) = self.shared.reserve(now, rail, bytes, limit) else {
            self.arm(now + BIND_RETRY, Reason::Bind);
            return None;
        };
        let index = match next.again {
            true => self.take_again(next),
            false => self.take_new(next),
        };
        match index {
            Some(index) => self.put_on_lane(index, rail, ahead_bytes),
            None => self.shared.release(rail, bytes),
        }
        let transport = self.transport_on(rail);
        self.config.policy.took(transport, rail);
        index.map(|_| next.length)
    }

    /// A row for a slice that was never sent.
    fn take_new(&mut self, next: Next) -> Option<u32> {
        let slice = Load::Slice(next.request.index);
        let attempt = Attempt::new(slice, next.op, next.offset, next.length);
        let index = self.new_attempt(attempt)?.index;
        let bytes = u64::from(next.length);
        if let Some(row) = self.requests.get_mut(next.request) {
            debug_assert!(
                { row.cursor } == next.offset && bytes <= row.length - row.cursor,
                "{bytes} bytes at {} of {}, and {} are bound",
                next.offset,
                { row.length },
                { row.cursor }
            );
            row.cursor += bytes;
            let peer = row.peer;
            if let Some(row) = self.peers.get_mut(peer.index()) {
                debug_assert!(
                    row.unbound_bytes >= bytes,
                    "{bytes} bytes of {} that wait",
                    row.unbound_bytes
                );
                row.unbound_bytes -= bytes;
            }
        }
        Some(index)
    }
}

/// Lanes that are wanted.
impl<P: Chooser> Orchestrator<'_, P> {
    /// Opens lanes as they are wanted: the first one to a peer, another if that takes long, all once there is more than one
    /// slice at a time. Of some classes, or of all. Whether any rail is usable or about to be.
    pub(super) fn open_more(
        &mut self,
        now: Instant,
        way: Way,
        classes: Option<ClassSet>,
        some_open: bool,
        is_more: bool,
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
            // A fence in progress ends, or is given up.
            usable = true;
            match lane.phase {
                Phase::Closed => {
                    let length = self.shared.slice_bytes();
                    let load = self.shared.load(now, rail);
                    let predicted = |load: spray::Load| load.predicted(u64::from(length));
                    let predicted = load.map_or(Duration::MAX, predicted);
                    if best.is_none_or(|(_, time)| predicted < time) {
                        best = Some((rail, predicted));
                    }
                }
                Phase::Opening { since, .. } if now < since + OPEN_PATIENCE => {
                    patient = true;
                    self.arm(since + OPEN_PATIENCE, Reason::Bind);
                }
                Phase::Opening { .. } | Phase::Open | Phase::Fencing(_) => {}
            }
        }
        let Some((best, _)) = best else {
            return usable;
        };
        if some_open && is_more {
            for row in &rails {
                if self.is_healthy(row.rail) {
                    self.open_lane(now, row.rail, self.open_by(now, row.rail));
                }
            }
        } else if !patient {
            self.open_lane(now, best, self.open_by(now, best));
        }
        usable
    }
}
