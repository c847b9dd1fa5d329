//! The rails that slices can take, as they stand while several are bound in a row.

use core::fmt;

use super::PlanRow;
use super::lane::{Lane, kib_of};
use super::path::Lead;
use crate::plan::{NO_RAILS, PlanRail, PlanRails};
use crate::rail::spray::{self, Line, Lone, Look, Room, Slices, Spot, Spots};
use crate::rail::{Healthy, Shared};
use crate::slice;
use crate::time::{Duration, Instant};
use crate::units::{PeerId, PlanId, RailId, Rate};
use crate::work::Op;

/// Of what is left of a request, a long slice takes at most one part in so many for each rail.
const SPREAD: u64 = 2;
/// How fast all rails of a plan are together is looked at again after so many boards.
const PACE_BOARDS: u8 = 32;

/// Which rails a request's slices can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) peer: PeerId,
    pub(super) plan: PlanId,
    /// Of the transport in the plan.
    pub(super) rank: u8,
    pub(super) op: Op,
}

/// How fast the rails of one transport of a plan are together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    rate: Rate,
    /// Boards that may still believe it.
    boards: u8,
    /// All lanes of these rails were seen to be filled, for slices from so many KiB on; see [`Lane::is_filled`].
    filled_kib: u16,
    /// When lanes of the peer had got room so often. One of them may have it again as soon as that is one more.
    filled_rooms: u32,
}

impl Pace {
    pub(super) const UNKNOWN: Self = Self {
        rate: Rate::SLOWEST,
        boards: 0,
        filled_kib: u16::MAX,
        filled_rooms: 0,
    };

    /// As just seen.
    fn of(look: Look) -> Self {
        Self {
            rate: look.rate,
            boards: PACE_BOARDS,
            ..Self::UNKNOWN
        }
    }

    /// All lanes of its rails are filled, for slices from so many KiB on; the peer's lanes have got room so often.
    pub(super) fn note_filled(&mut self, rooms: u32, slice_kib: u16) {
        (self.filled_rooms, self.filled_kib) = (rooms, slice_kib);
    }

    /// Whether all of its lanes are filled for slices of so many KiB, but for the one of the peer's that got room last.
    pub(super) fn all_but_last_filled(&self, rooms: u32, slice_kib: u16) -> bool {
        self.filled_kib <= slice_kib && self.filled_rooms.wrapping_add(1) == rooms
    }

    /// Whether slices that end within a span may go without a closer look, by what is believed: so many bytes are left.
    #[inline]
    pub(super) fn has_plenty(&mut self, span: Duration, unbound_bytes: u64) -> bool {
        let plenty = self.boards > 0 && spray::is_plenty(span, self.rate, unbound_bytes);
        self.boards -= u8::from(plenty);
        plenty
    }

    /// How many slices of a request with `rest_bytes` left go to a rail that is the only one with room, at least one and at
    /// most `slices_max`, if there is so much left by what is believed that it needs no closer look: see
    /// [`Self::lone_run`], which says the same.
    #[inline(always)] // see `Lone::new`
    pub(super) fn plenty_run(
        &mut self,
        spot: &Spot,
        line: Line,
        length: u32,
        unbound_bytes: u64,
        slices_max: u32,
        rest_bytes: u64,
    ) -> Option<Slices> {
        let slices = spot.plenty_run(line, length, unbound_bytes, self.rate()?, slices_max)?;
        // The last slice of a request may be of another length.
        if slices.bytes() + u64::from(length) > rest_bytes {
            return None;
        }
        self.spend();
        Some(slices)
    }

    /// Up to how many slices go to a rail that is the only one with room. If that cannot be told by what is believed, as
    /// told by a `look`; `None`: the next one waits.
    #[inline(always)] // see `Lone::new`
    pub(super) fn lone_run(
        &mut self,
        lone: &Lone,
        unbound_bytes: u64,
        slices_max: u32,
        look: impl FnOnce() -> Look,
    ) -> Option<Slices> {
        let believed = self.rate();
        if let Some(slices) = believed.and_then(|rate| lone.run(unbound_bytes, rate, slices_max)) {
            self.spend();
            return Some(slices);
        }
        let look = look();
        *self = Self::of(look);
        lone.choose(unbound_bytes, look, slices_max)
    }

    /// What may still be believed.
    fn rate(&self) -> Option<Rate> {
        (self.boards > 0).then_some(self.rate)
    }

    /// One board less may believe it.
    fn spend(&mut self) {
        self.boards -= 1;
    }
}

/// How many rails a look has found.
pub(super) struct Seen {
    /// With an open lane.
    pub(super) open: usize,
    /// In all.
    rails: usize,
}

impl Seen {
    /// Whether there is no lane left to open.
    pub(super) fn all_open(&self) -> bool {
        self.open == self.rails && self.rails > 0
    }
}

/// Rails of a way whose lanes are not known to be filled.
pub(super) enum Unfilled {
    None,
    /// The one in this position of the plan.
    One(usize),
    /// Several, or there are no rails.
    Several,
}

/// What there is to look at.
pub(super) struct View<'b> {
    pub(super) plans: &'b [PlanRow],
    pub(super) lanes: &'b [Lane],
    pub(super) shared: &'b Shared<'b>,
}

impl<'b> View<'b> {
    /// The rails of a way.
    pub(super) fn rails(&self, way: Way) -> &'b PlanRails {
        rails_of(self.plans, way)
    }

    /// The lane on a rail, if it is open for slices.
    fn lane_on(&self, rail: RailId) -> Option<&'b Lane> {
        let lane = self.lanes.get(rail.index())?;
        lane.is_open().then_some(lane)
    }

    /// The lane on a healthy rail, if it is open for slices, and how full the rail is.
    pub(super) fn open_on(&self, rail: RailId) -> Option<(&'b Lane, Room)> {
        let lane = self.lane_on(rail)?;
        Some((lane, self.shared.room(rail, lane.inflight_bytes)?))
    }
}

/// Looks at all open ones of these rails that a slice may take, for the policy; `roomy` has a bit for those that it
/// knows.
#[inline(never)]
pub(super) fn look(
    rails: &PlanRails,
    lanes: &[Lane],
    shared: &Shared<'_>,
    lead: Option<&Lead>,
    roomy: u16,
    length: u32,
) -> Look {
    let (mut least, mut inflight_bytes, mut bytes_per_sec) = (Duration::MAX, 0_u64, 0_u64);
    for (position, rail) in rails.iter().enumerate() {
        let lane = lanes.get(rail.rail.index());
        let lane = lane.filter(|lane| lane.is_open() && is_allowed(lead, *rail));
        let Some(healthy) = lane.and_then(|_| shared.healthy(rail.rail)) else {
            continue;
        };
        let load = healthy.load();
        if roomy & 1 << position == 0 {
            least = least.min(load.predicted(length));
        }
        inflight_bytes = inflight_bytes.saturating_add(load.inflight_bytes);
        bytes_per_sec = bytes_per_sec.saturating_add(load.rate.bytes_per_sec());
    }
    Look {
        least,
        inflight_bytes,
        rate: Rate::from_bytes_per_sec(bytes_per_sec),
    }
}

/// Where a rail is among these, if its lane knows.
pub(super) fn position_of(rails: &PlanRails, lanes: &[Lane], rail: RailId) -> Option<usize> {
    let position = usize::from(lanes.get(rail.index())?.position);
    let is_there = rails.get(position).is_some_and(|row| row.rail == rail);
    is_there.then_some(position)
}

/// Which of these rails have lanes that are not known to be filled for slices of `length` bytes.
#[inline(never)]
pub(super) fn unfilled(
    rails: &PlanRails,
    lanes: &[Lane],
    shared: &Shared<'_>,
    length: u32,
) -> Unfilled {
    let (slice_kib, alone) = (kib_of(length), shared.has_one_worker());
    let mut unfilled = if rails.is_empty() {
        Unfilled::Several
    } else {
        Unfilled::None
    };
    for (position, rail) in rails.iter().enumerate() {
        let lane = lanes.get(rail.rail.index());
        let is_filled = |lane: &Lane| {
            let known = lane.is_filled(slice_kib);
            known && (alone || is_filled(shared, rail.rail, lane, length))
        };
        if !lane.is_some_and(is_filled) {
            if matches!(unfilled, Unfilled::One(..)) {
                return Unfilled::Several;
            }
            unfilled = Unfilled::One(position);
        }
    }
    unfilled
}

fn rails_of(plans: &[PlanRow], way: Way) -> &PlanRails {
    plans
        .get(way.plan.index as usize)
        .filter(|row| row.generation == way.plan.generation)
        .and_then(|row| row.plan.as_ref())
        .map_or(&NO_RAILS, |plan| plan.rails(way.rank))
}

/// Whether a lane that was filled still is: other workers may have learned meanwhile that its rail is faster.
fn is_filled(shared: &Shared<'_>, rail: RailId, lane: &Lane, length: u32) -> bool {
    let room = shared.room(rail, lane.inflight_bytes);
    let bytes = u64::from(length.min(lane.work_bytes_max()));
    room.is_some_and(|room| room.own_bytes + bytes > room.window_bytes)
}

/// How a healthy rail and the lane on it stand.
#[inline(always)] // see `Lone::new`
pub(super) fn spot(rail: &Healthy<'_>, position: u8, row: PlanRail, lane: &Lane, op: Op) -> Spot {
    let room = rail.room(lane.inflight_bytes);
    Spot {
        rail: row.rail,
        position,
        tier: row.tier,
        device: rail.device(),
        works: lane.room_works(op) as u32,
        work_bytes_max: lane.work_bytes_max(),
        slice_bytes: rail.slice_bytes(),
        used_at: rail.used_at(),
        own_bytes: room.own_bytes,
        window_bytes: room.window_bytes,
        load: rail.load(),
    }
}

/// Whether a slice may take a rail, as far as its class goes.
fn is_allowed(lead: Option<&Lead>, rail: PlanRail) -> bool {
    lead.is_none_or(|lead| lead.takes.contains(rail.class))
}

/// The rails of one way, for slices of one length. What it says is only true until something else happens.
pub(super) struct Board {
    way: Option<Way>,
    /// The classes of those that are on it; `None`: all.
    lead: Option<Lead>,
    spots: Spots,
    /// Rails of the way with an open lane, with room or without.
    open: u8,
    /// How fast they are together, if that was seen not long ago.
    rate: Option<Rate>,
}

impl fmt::Debug for Board {
    /// Nothing of what is on it: no decision depends on what an earlier one left there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Board")
    }
}

impl Board {
    /// Of nothing yet.
    pub(super) fn new() -> Self {
        Self {
            way: None,
            lead: None,
            spots: Spots::new(Line::ALONE),
            open: 0,
            rate: None,
        }
    }

    /// Wipes it, for a worker that stands so in line.
    pub(super) fn clear(&mut self, line: Line) {
        self.way = None;
        self.lead = None;
        self.spots.clear(0, line);
    }

    /// Who waits for room.
    pub(super) fn line(&self) -> Line {
        self.spots.line()
    }

    /// Whether there is something on it.
    pub(super) fn is_used(&self) -> bool {
        self.way.is_some()
    }

    /// Whether it shows the rails of this way.
    pub(super) fn is_of(&self, way: Way) -> bool {
        self.way == Some(way)
    }

    /// What led to the rails on it, if somebody steers.
    pub(super) fn lead(&self) -> Option<(Way, Lead)> {
        Some((self.way?, self.lead?))
    }

    /// The length of the slices that it shows room for; 0: none.
    pub(super) fn length(&self) -> u32 {
        self.spots.length()
    }

    /// Puts all rails of a way on it that a slice may take and that have room for it.
    pub(super) fn fill(
        &mut self,
        tables: (&[PlanRow], &mut [Lane], &Shared<'_>),
        way: Way,
        lead: Option<Lead>,
        length: u32,
    ) -> Seen {
        let (plans, lanes, shared) = tables;
        let line = self.spots.line();
        self.spots.clear(length, line);
        (self.way, self.lead) = (Some(way), lead);
        let rails = rails_of(plans, way);
        // Urgent ones find room where others do not: no lane is filled for slices of no length.
        let slice_kib = if line.is_urgent { 0 } else { kib_of(length) };
        let alone = shared.has_one_worker();
        let mut open = 0_u8;
        for (position, rail) in (0..).zip(rails) {
            let Some(lane) = lanes.get_mut(rail.rail.index()) else {
                continue;
            };
            // What most are while there is much to do.
            let is_filled =
                lane.is_filled(slice_kib) && (alone || is_filled(shared, rail.rail, lane, length));
            let is_open = is_filled || self.put(shared, way.op, position, *rail, lane);
            open += u8::from(is_open);
        }
        self.open = open;
        Seen {
            open: usize::from(open),
            rails: rails.len(),
        }
    }

    /// Puts a rail on it, if that has room. Whether its lane is open for slices. Apart, so that passing over those
    /// without room costs little.
    #[inline(never)]
    fn put(
        &mut self,
        shared: &Shared<'_>,
        op: Op,
        position: u8,
        row: PlanRail,
        lane: &mut Lane,
    ) -> bool {
        let (line, length) = (self.spots.line(), self.spots.length());
        let healthy = shared.healthy(row.rail).filter(|_| lane.is_open());
        let Some(healthy) = healthy else {
            return false;
        };
        let spot = spot(&healthy, position, row, lane, op);
        let bytes = length.min(spot.work_bytes_max);
        lane.note_room(bytes, spot.window_bytes);
        if spot.works > 0 && spot.room().takes(bytes, line) && is_allowed(self.lead.as_ref(), row) {
            self.spots.push(spot);
        }
        true
    }

    /// Believes what was seen of all rails not long ago, so that it need not look at them all.
    pub(super) fn believe(&mut self, pace: Option<&mut Pace>) {
        self.rate = pace.and_then(|pace| {
            let rate = pace.rate()?;
            pace.spend();
            Some(rate)
        });
    }

    /// How fast all rails are, if it had to look.
    pub(super) fn seen_pace(&self) -> Option<Pace> {
        self.spots.look().map(Pace::of)
    }

    /// Whether no rail on it has room.
    pub(super) fn is_empty(&self) -> bool {
        self.spots.is_empty()
    }

    /// Rails on it.
    pub(super) fn len(&self) -> usize {
        self.spots.len()
    }

    /// A rail on it.
    pub(super) fn spot(&self, index: usize) -> Option<&Spot> {
        self.spots.get(index)
    }

    /// Chooses a rail on it for a slice; see [`Spots::choose`].
    pub(super) fn choose(&mut self, view: &View<'_>, unbound_bytes: u64) -> Option<usize> {
        let way = self.way?;
        let length = self.spots.length();
        let lead = self.lead.as_ref();
        let open = usize::from(self.open);
        self.spots.choose(unbound_bytes, self.rate, open, |roomy| {
            look(
                view.rails(way),
                view.lanes,
                view.shared,
                lead,
                roomy,
                length,
            )
        })
    }

    /// The one rail on it that has room, if that takes several slices in a row, and these; see [`Spots::run`].
    pub(super) fn run(&self, unbound_bytes: u64, slices_max: u32) -> Option<(usize, Slices)> {
        match self.lead {
            // Each slice is led anew.
            Some(_) => None,
            None => self.spots.run(unbound_bytes, self.rate, slices_max),
        }
    }

    /// A rail on it takes slices.
    pub(super) fn take(&mut self, now: Instant, index: usize, slices: Slices, ahead_bytes: u64) {
        self.spots.take(now, index, slices, ahead_bytes);
    }

    /// How long a slice of a request that has `rest_bytes` left is on a rail that wants longer ones than usual,
    /// if there is room for that and enough is left for the other rails to even out.
    #[cold]
    pub(super) fn lengthened(
        &self,
        view: &View<'_>,
        spot: &Spot,
        length: u32,
        rest_bytes: u64,
    ) -> u32 {
        let usual = view.shared.slice_bytes().max(1);
        let rails = self.way.map_or(1, |way| view.rails(way).len().max(1)) as u64;
        // One rail alone has nothing to even out with.
        let parts = if rails > 1 { SPREAD * rails } else { 1 }.max(1);
        let part = rest_bytes / parts / u64::from(usual) * u64::from(usual);
        let wanted = u32::try_from(part)
            .unwrap_or(u32::MAX)
            .min(spot.slice_bytes);
        let longer = slice::next_length(rest_bytes, wanted.max(usual)).min(spot.work_bytes_max);
        if spot.room().takes(longer, self.spots.line()) {
            longer
        } else {
            length.min(spot.work_bytes_max)
        }
    }
}
