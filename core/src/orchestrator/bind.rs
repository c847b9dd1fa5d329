//! Late binding: a slice gets its rail at the moment a rail can take it.

use super::attempt::{Attempt, Load};
use super::lane::{Lane, Phase};
use super::{Orchestrator, Policy, Reason};
use crate::plan::{PLAN_RAILS_MAX, PlanRail};
use crate::rail::health::RailState;
use crate::rail::select::{self, Candidate, Usable};
use crate::rail::{Line, Room};
use crate::slice;
use crate::time::{Duration, Instant};
use crate::units::{PeerId, RailId, RequestId};
use crate::work::Op;

/// Of what is left of a request, a long slice takes at most one part in so many for each rail.
const SPREAD: u64 = 2;
/// Slices bound in one go, before they are handed out.
const BIND_MAX: u32 = 64;
/// Slices of one peer before it is another's turn.
pub(super) const TURN_MAX: u32 = 16;
/// An idle rail's speed is looked at after this long without a completion.
const RATE_PROBE_INTERVAL: Duration = Duration::from_millis(5);
/// If the first lane to a peer is not open by then, another one is tried too.
const OPEN_PATIENCE: Duration = Duration::from_millis(10);
/// When all room is taken by other workers, look again after this long.
const BIND_RETRY: Duration = Duration::from_millis(1);

/// What became of a try to bind the next slice of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// It has a rail.
    Yes,
    /// Something must happen first: a completion, or a lane that opens.
    Wait,
    /// Nothing but copies is left of the request, and no rail takes them now.
    OnlyCopies,
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

pub(super) type Rails = heapless::Vec<PlanRail, PLAN_RAILS_MAX>;

impl Orchestrator<'_> {
    /// Binds slices while rails have room, a bounded number, peers in turn.
    pub(super) fn bind(&mut self, now: Instant) {
        if !core::mem::take(&mut self.bindable) {
            return;
        }
        let all = core::mem::take(&mut self.bindable_all);
        let mut budget = BIND_MAX;
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front(self.peers) else {
                break;
            };
            let peer = PeerId(index as u16);
            let waits = self
                .peers
                .get(peer.index())
                .is_some_and(|row| row.waits_for_room);
            if waits && !all {
                self.ready.push_back(self.peers, index);
                continue;
            }
            match self.config.policy {
                Policy::Documented => self.bind_assigned(now, peer, &mut budget),
                _ => self.bind_peer(now, peer, &mut budget),
            }
            if self
                .peers
                .get(peer.index())
                .is_some_and(|row| !row.pending.is_empty())
            {
                self.ready.push_back(self.peers, index);
            }
        }
        self.say_waiting(now);
    }

    /// Something happened that may let any peer's slices go.
    pub(super) fn bind_all(&mut self) {
        self.bindable = true;
        self.bindable_all = true;
    }

    fn bind_peer(&mut self, now: Instant, peer: PeerId, budget: &mut u32) {
        let mut next = self
            .peers
            .get(peer.index())
            .and_then(|row| row.pending.front());
        let mut some_stuck = false;
        for _ in 0..TURN_MAX {
            let Some(index) = next else {
                return;
            };
            let behind = self
                .peers
                .get(peer.index())
                .and_then(|row| row.pending.after(&mut self.requests, index));
            let Some(request) = self.requests.id_at(index) else {
                return;
            };
            if !self
                .requests
                .get(request)
                .is_some_and(|row| row.has_unbound())
            {
                if let Some(row) = self.peers.get_mut(peer.index()) {
                    row.pending.remove(&mut self.requests, index);
                }
                next = behind;
                continue;
            }
            if *budget == 0 {
                break;
            }
            match self.bind_request(now, peer, request) {
                Bound::Yes => {
                    *budget -= 1;
                    if !some_stuck && let Some(row) = self.peers.get_mut(peer.index()) {
                        row.stuck_since = None;
                    }
                }
                Bound::OnlyCopies => next = behind,
                Bound::Wait => {
                    if let Some(row) = self.peers.get_mut(peer.index()) {
                        row.waits_for_room = true;
                    }
                    return;
                }
                Bound::NoRail => {
                    some_stuck = true;
                    self.stuck(now, peer, request);
                    next = behind;
                }
            }
        }
        // There is more to bind than one turn allows.
        self.bindable = true;
    }

    /// A request has no rail to go to. That may end; until then time runs.
    pub(super) fn stuck(&mut self, now: Instant, peer: PeerId, request: RequestId) {
        if let Some(row) = self.peers.get_mut(peer.index()) {
            row.stuck_since.get_or_insert(now);
        }
        if let Some(due) = self.stuck_until(peer, request) {
            self.arm(due.max(now), Reason::Peer);
        }
    }

    pub(super) fn bind_request(&mut self, now: Instant, peer: PeerId, request: RequestId) -> Bound {
        if !self.knows(peer) || self.is_silent(peer) {
            return Bound::NoRail;
        }
        let bound = self.bind_on_transport(now, peer, request);
        if bound == Bound::NoRail && self.fail_over(now, request) {
            return self.bind_on_transport(now, peer, request);
        }
        bound
    }

    /// Binds the next slice of a request to a rail of the transport that it goes over.
    fn bind_on_transport(&mut self, now: Instant, peer: PeerId, request: RequestId) -> Bound {
        let Some((plan, rank)) = self
            .requests
            .get(request)
            .and_then(|row| Some((self.plan(row.plan)?, row.failover.rank())))
        else {
            return Bound::NoRail;
        };
        let rails = self.wanted(plan.rails(rank));
        if let Some(again) = self.next_again(request) {
            let bound = self.bind_next(now, peer, &rails, again);
            // A copy that must avoid the one rail with room does not hold up the rest, nor other requests.
            if bound == Bound::Yes || again.avoid.is_none() {
                return bound;
            }
        }
        match self.next_new(request) {
            Some(new) if self.config.policy == Policy::Documented => {
                self.bind_share(now, &rails, new)
            }
            Some(new) => self.bind_next(now, peer, &rails, new),
            None => Bound::OnlyCopies,
        }
    }

    /// The rails of a plan that the policy uses while they stand as they do.
    fn wanted(&self, rails: &Rails) -> Rails {
        if self.config.policy == Policy::Spray {
            return rails.clone();
        }
        let mut usable = rails
            .iter()
            .map(|rail| Usable {
                rail: *rail,
                rate_nominal: self.shared.rate_nominal(rail.rail),
            })
            .filter(|usable| self.is_healthy(usable.rail.rail))
            .collect();
        select::retain_wanted(self.config.policy, &mut usable);
        usable.iter().map(|usable| usable.rail).collect()
    }

    pub(super) fn is_healthy(&self, rail: RailId) -> bool {
        self.shared
            .health(rail)
            .is_some_and(|health| health.state() == RailState::Healthy)
    }

    /// The first slice to be sent again; copies of what has arrived meanwhile are dropped on the way.
    fn next_again(&mut self, request: RequestId) -> Option<Next> {
        loop {
            let row = self.requests.get(request)?;
            let index = row.waiting.front()?;
            let attempt = self.attempts.at(index)?;
            if !attempt.done {
                return Some(Next {
                    request,
                    op: attempt.op,
                    offset: attempt.offset,
                    length: attempt.length,
                    avoid: attempt.avoid,
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

    fn bind_next(&mut self, now: Instant, peer: PeerId, rails: &Rails, next: Next) -> Bound {
        let line = self.shared.line(self.config.worker);
        if self.all_full(rails, &next, line) {
            return Bound::Wait;
        }
        let mut candidates = heapless::Vec::<Candidate, PLAN_RAILS_MAX>::new();
        for rail in rails.iter().filter(|rail| next.avoid != Some(rail.rail)) {
            if let Some(candidate) = self.candidate(*rail, &next, line) {
                let _ = candidates.push(candidate);
            }
        }
        // With a candidate for every rail there is none left to open.
        let all_open = !rails.is_empty() && candidates.len() == rails.len();
        let usable = all_open || self.open_more(now, peer, rails, !candidates.is_empty());
        if candidates.is_empty() {
            return if usable { Bound::Wait } else { Bound::NoRail };
        }
        self.probe_idle(now, peer, &candidates);
        let chosen = match self.config.policy {
            Policy::Spray => {
                let unbound = self
                    .peers
                    .get(peer.index())
                    .map_or(0, |row| row.unbound_bytes);
                select::spray(&candidates, next.length, unbound)
            }
            Policy::RoundRobin => select::round_robin(&candidates, self.cursor),
            Policy::FixedTier1 | Policy::BestTwo => {
                select::least_predicted(&candidates, next.length)
            }
            // Only slices to be sent again come here.
            Policy::Documented => self.best_with_room(&candidates, next.length),
        };
        let Some(rail) = chosen
            .and_then(|index| candidates.get(index))
            .map(|candidate| candidate.rail)
        else {
            return Bound::Wait;
        };
        let next = self.lengthened(rail, rails.len(), next, line);
        self.bind_to(now, rail, next)
    }

    /// A slice as long as the rail that takes it wants it, if there is room for that and enough is left for the
    /// other rails to even out.
    fn lengthened(&self, rail: RailId, rails: usize, next: Next, line: Line) -> Next {
        let wanted = self.shared.rail_slice_bytes(rail);
        if next.again || wanted <= next.length {
            return next;
        }
        let Some(row) = self.requests.get(next.request) else {
            return next;
        };
        let usual = self.shared.slice_bytes();
        let rest = row.length - row.cursor;
        let part = rest / (SPREAD * rails.max(1) as u64) / u64::from(usual) * u64::from(usual);
        let wanted = u32::try_from(part).unwrap_or(u32::MAX).min(wanted);
        let longer = Next {
            length: slice::next_length(rest, wanted.max(usual)),
            ..next
        };
        match self.open_on(rail) {
            Some((lane, room)) if self.has_room(lane, &room, &longer, line) => longer,
            _ => next,
        }
    }

    /// Binds a slice to a rail that has been seen to have room.
    pub(super) fn bind_to(&mut self, now: Instant, rail: RailId, mut next: Next) -> Bound {
        if let Some(lane) = self.lanes.get(rail.index()).filter(|_| !next.again) {
            // Cut for the rail that takes it.
            next.length = next.length.min(lane.work_bytes_max());
        }
        let limit = self.inflight_limit(rail);
        match self
            .shared
            .reserve(now, rail, u64::from(next.length), limit)
        {
            Some(ahead_bytes) => self.take_next(rail, ahead_bytes, next),
            None => {
                // Another worker was quicker.
                self.arm(now + BIND_RETRY, Reason::Bind);
                Bound::Wait
            }
        }
    }

    /// Moves the slice from its request to the lane.
    fn take_next(&mut self, rail: RailId, ahead_bytes: u64, next: Next) -> Bound {
        let index = if next.again {
            self.pop_waiting(next.request)
        } else {
            let attempt =
                Attempt::new(Load::Slice(next.request), next.op, next.offset, next.length);
            self.new_attempt(attempt).map(|id| id.index)
        };
        let Some(index) = index else {
            self.shared.release(rail, u64::from(next.length));
            return Bound::Wait;
        };
        if !next.again
            && let Some(row) = self.requests.get_mut(next.request)
        {
            row.cursor += u64::from(next.length);
            let peer = row.peer;
            if let Some(row) = self.peers.get_mut(peer.index()) {
                row.unbound_bytes -= u64::from(next.length);
            }
        }
        if let Some(row) = self.attempts.at_mut(index) {
            row.avoid = None;
        }
        self.put_on_lane(index, rail, ahead_bytes);
        self.cursor = rail;
        Bound::Yes
    }

    /// Whether every rail is healthy, has an open lane and has no room: the usual answer to a worker that tries
    /// because another one made room, found without predicting anything.
    fn all_full(&self, rails: &Rails, next: &Next, line: Line) -> bool {
        !rails.is_empty()
            && rails.iter().all(|rail| {
                self.open_on(rail.rail)
                    .is_some_and(|(lane, room)| !self.has_room(lane, &room, next, line))
            })
    }

    /// The lane on a healthy rail, if it is open for slices, and the rail's window.
    fn open_on(&self, rail: RailId) -> Option<(&Lane, Room)> {
        let lane = self
            .lanes
            .get(rail.index())
            .filter(|lane| lane.phase == Phase::Open && !lane.probing)?;
        Some((lane, self.shared.room(rail)?))
    }

    /// Whether a lane and its rail's window take the slice now.
    fn has_room(&self, lane: &Lane, room: &Room, next: &Next, line: Line) -> bool {
        // A slice that was sent before is cut already.
        let fits = !next.again || next.length <= lane.work_bytes_max();
        let length = next.length.min(lane.work_bytes_max());
        let has_window = || {
            self.config.policy == Policy::Documented
                || has_window(lane.inflight_bytes, room, length, line)
        };
        lane.room_works() > 0 && fits && has_window()
    }

    /// A healthy rail with an open lane, as the policy sees it.
    pub(super) fn candidate(&self, rail: PlanRail, next: &Next, line: Line) -> Option<Candidate> {
        let PlanRail { rail, tier } = rail;
        let (lane, room) = self.open_on(rail)?;
        let load = self.shared.load(rail)?;
        Some(Candidate {
            rail,
            tier,
            has_room: self.has_room(lane, &room, next, line),
            inflight_bytes: room.inflight_bytes,
            rate: load.rate,
            device_wait: load.device_wait,
            delay_base: load.delay_base,
            used_at: load.used_at,
        })
    }

    /// What [`crate::rail::Shared::reserve`] may fill a rail up to, after [`has_window`] has said yes:
    /// loose, because it only has to stop workers that decide at the same moment.
    fn inflight_limit(&self, rail: RailId) -> u64 {
        if self.config.policy == Policy::Documented {
            // The document has no windows: what is given to a device is posted.
            return u64::MAX;
        }
        2 * self.shared.window_bytes(rail) + u64::from(self.shared.slice_bytes())
    }

    /// Opens lanes as they are wanted: the first one to a peer, another if that takes long, all once more than
    /// one slice waits. Whether any rail is usable or about to be.
    fn open_more(&mut self, now: Instant, peer: PeerId, rails: &Rails, some_open: bool) -> bool {
        let mut best: Option<(RailId, Duration)> = None;
        let (mut usable, mut patient) = (some_open, some_open);
        for PlanRail { rail, .. } in rails.iter().copied() {
            let healthy = self.is_healthy(rail);
            let Some(lane) = self.lanes.get(rail.index()).filter(|_| healthy) else {
                continue;
            };
            // A fence in progress ends, or is given up; either way the rail is not lost.
            usable = true;
            match lane.phase {
                Phase::Closed => {
                    let length = self.shared.slice_bytes();
                    let predicted = self.shared.delay_base(rail)
                        + self.shared.rate(rail).time_for(u64::from(length));
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
        let unbound = self
            .peers
            .get(peer.index())
            .map_or(0, |row| row.unbound_bytes);
        if some_open && unbound > u64::from(self.shared.slice_bytes()) {
            for rail in rails {
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
    /// now: they may have been slow when they were last used.
    fn probe_idle(&mut self, now: Instant, peer: PeerId, candidates: &[Candidate]) {
        let bytes_max = self.scratch_bytes(peer);
        if self.config.policy != Policy::Spray || bytes_max == 0 {
            return;
        }
        for candidate in candidates
            .iter()
            .filter(|rail| rail.inflight_bytes == 0 && rail.has_room)
        {
            let rail = candidate.rail;
            let idle = now.since(candidate.used_at) >= RATE_PROBE_INTERVAL;
            if idle && self.shared.claim_rate_probe(now, rail, RATE_PROBE_INTERVAL) {
                let lane = self.lanes.get(rail.index());
                let limit = lane.map_or(bytes_max, |lane| lane.work_bytes_max().min(bytes_max));
                let bytes = self.shared.rate_probe_bytes(rail);
                self.post_probe(now, rail, Load::RateProbe, bytes.min(limit));
            }
        }
    }

    /// Tells the other workers since when this one has had bytes to bind.
    fn say_waiting(&mut self, now: Instant) {
        let mut since: Option<Instant> = None;
        let mut next = self.ready.front();
        let mut idle = false;
        while let Some(index) = next {
            let first = self
                .peers
                .get(index as usize)
                .and_then(|row| row.pending.front());
            if let Some(row) = first.and_then(|index| self.requests.at(index)) {
                since = Some(since.map_or(row.submitted_at, |since| since.min(row.submitted_at)));
                idle |= row.held == 0;
            }
            next = self.ready.after(self.peers, index);
        }
        self.shared.set_waiting(self.config.worker, since);
        // For one with nothing of its own in flight no completion will come to try again.
        if idle {
            self.arm(now + BIND_RETRY, Reason::Bind);
        }
    }
}

/// Whether a rail's window has room for a worker that has `own` bytes in flight there: whoever has waited longest
/// may use all of it, the others share. An empty lane may always have one slice while the rail is not far over
/// its window.
fn has_window(own: u64, room: &Room, length: u32, line: Line) -> bool {
    let length = u64::from(length);
    let (all, window) = (room.inflight_bytes, room.window_bytes);
    if all == 0 {
        return true;
    }
    let (share, ceiling) = if line.is_first {
        (window, window + window / 2)
    } else {
        ((window / line.waiting.max(1)).max(length), window)
    };
    (own + length <= share && all + length <= ceiling) || (own == 0 && all < 2 * window)
}
