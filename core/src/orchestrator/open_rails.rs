//! The rails that slices of a request can take, as they stand while several are bound in a row.

use core::fmt;

use super::attempts::Attempts;
use super::lane::{Lane, Phase, kib_of};
use super::path::Lead;
use super::{Chooser, Orchestrator, PlanRow};
use crate::plan::{NO_RAILS, PLAN_RAILS_MAX, PlanRail, PlanRails, of_rails};
use crate::rail::health::RailHealth;
use crate::rail::spray::{self, Line, Look, Need, Slices, Sooner, Spot};
use crate::rail::{Healthy, RATE_UNIT, Shared};
use crate::slice;
use crate::time::{Duration, Instant};
use crate::units::{PeerId, PlanId, RailId, Rate};
use crate::work::Op;

/// Which rails a request's slices can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) peer: PeerId,
    pub(super) plan: PlanId,
    /// Of the transport in the plan.
    pub(super) rank: u8,
    pub(super) op: Op,
}

/// What there is to look at.
#[derive(Clone, Copy)]
pub(super) struct View<'b> {
    pub(super) plans: &'b [PlanRow],
    pub(super) lanes: &'b [Lane],
    pub(super) attempts: &'b Attempts<'b>,
    pub(super) shared: &'b Shared<'b>,
    pub(super) now: Instant,
}

impl<'b> View<'b> {
    /// For who cannot lend all of core, because the open rails are changed meanwhile.
    pub(super) fn new(
        (plans, lanes, attempts): (&'b [PlanRow], &'b [Lane], &'b Attempts<'b>),
        shared: &'b Shared<'b>,
        now: Instant,
    ) -> Self {
        Self {
            plans,
            lanes,
            attempts,
            shared,
            now,
        }
    }

    /// The rails of a way.
    pub(super) fn rails(&self, way: Way) -> &'b PlanRails {
        let row = self.plans.get(way.plan.index as usize);
        row.filter(|row| row.generation == way.plan.generation)
            .and_then(|row| row.plan.as_ref())
            .map_or(&NO_RAILS, |plan| plan.rails(way.rank))
    }

    /// Those of them that slices may take: all but the spares that are not needed.
    pub(super) fn rails_in_use(&self, way: Way) -> impl Iterator<Item = &'b PlanRail> + use<'b> {
        let view = *self;
        let rails = self.rails(way).iter();
        rails.filter(move |rail| !view.stands_by(rail.rail))
    }

    /// Whether a rail is a spare that is not needed: the one that it stands in for is healthy, and its lane does not stand still.
    pub(super) fn stands_by(&self, rail: RailId) -> bool {
        let front = self.shared.front_of(rail);
        front.is_some_and(|front| self.is_well(front))
    }

    fn is_well(&self, rail: RailId) -> bool {
        self.is_healthy(rail) && !self.lanes.get(rail.index()).is_some_and(Lane::is_suspected)
    }

    /// Whether a rail is healthy, and may carry something from here. It may not while nothing proves that the lane before the
    /// next one has ended, and nobody waits for that any more.
    pub(super) fn is_healthy(&self, rail: RailId) -> bool {
        let lane = self.lanes.get(rail.index());
        self.shared.health(rail).is_some_and(RailHealth::is_healthy)
            && !lane.is_some_and(Lane::is_given_up)
    }

    /// Whether a healthy rail's lane has not been opened.
    fn is_closed(&self, rail: RailId) -> bool {
        let lane = self.lanes.get(rail.index());
        lane.is_some_and(|lane| lane.phase == Phase::Closed) && self.is_healthy(rail)
    }

    /// A rail, if it is healthy and its lane open for slices.
    fn open(&self, rail: RailId) -> Option<(&'b Lane, Healthy<'b>)> {
        let lane = self.lanes.get(rail.index()).filter(|lane| lane.is_open())?;
        Some((lane, self.shared.healthy(rail)?))
    }

    /// How a rail stands that has no room. If its lane holds as many works as it may, it takes another one when the oldest has ended.
    fn full(&self, rail: RailId, op: Op) -> Option<spray::Load> {
        let (lane, healthy) = self.open(rail)?;
        let load = healthy.load(self.now);
        match lane.room_works(op) {
            0 => Some(self.without_works(lane, load)),
            _ => Some(load),
        }
    }

    #[cold]
    fn without_works(&self, lane: &Lane, load: spray::Load) -> spray::Load {
        let oldest = lane.flight.first_posted();
        let oldest = oldest.and_then(|index| self.attempts.at(index));
        // What is not posted yet is about to be.
        let waited = oldest.map_or(Duration::ZERO, |row| self.now.since(row.posted_at));
        spray::Load {
            delay_base: load.delay_base + load.delay_base.minus(waited),
            ..load
        }
    }

    /// How a rail stands, if it is healthy and its lane open for slices.
    #[inline(always)] // copied otherwise: up to 70 instructions a slice
    pub(super) fn spot(&self, rail: PlanRail, op: Op) -> Option<Spot> {
        let (lane, healthy) = self.open(rail.rail)?;
        let (wanted, part_bytes) = (healthy.slice_bytes(), healthy.part_bytes());
        let room = healthy.room(self.now, lane.inflight_bytes);
        // Where slices cost processor time they are as long as pays already.
        let slice_bytes = match part_bytes < self.shared.slice_bytes() {
            true => spray::filling(wanted, room.window_bytes, lane.works_max(op)),
            false => wanted,
        };
        Some(Spot {
            rail: rail.rail,
            tier: rail.tier,
            device: healthy.device(),
            far: healthy.far(),
            works: lane.room_works(op) as u32,
            work_bytes_max: lane.work_bytes_max(),
            slice_bytes,
            part_bytes,
            used_at: healthy.used_at(),
            room,
            load: healthy.load(self.now),
        })
    }
}

/// Whether a slice may take a rail, as far as its class goes.
fn is_allowed(lead: Option<&Lead>, rail: &PlanRail) -> bool {
    lead.is_none_or(|lead| lead.takes.contains(rail.class))
}

/// Takes one out of a row, and puts the last one in its place.
fn remove<T>(row: &mut heapless::Vec<T, PLAN_RAILS_MAX>, index: usize) {
    if index < row.len()
        && let Some(last) = row.pop()
        && let Some(place) = row.get_mut(index)
    {
        *place = last;
    }
}

/// The open rails of a way that may have room for slices. What it says is only true until something else happens.
pub(super) struct OpenRails {
    /// `None`: it shows nothing.
    way: Option<Way>,
    line: Line,
    /// The classes of those that are on it; `None`: all.
    pub(super) lead: Option<Lead>,
    pub(super) spots: heapless::Vec<Spot, PLAN_RAILS_MAX>,
    /// Open ones that had no room when it was filled, or have none any more.
    full: heapless::Vec<RailId, PLAN_RAILS_MAX>,
    /// When each of them would be finished with one more slice of what was asked for last: of this length, or on rails that
    /// want longer ones of up to that.
    times: heapless::Vec<Duration, PLAN_RAILS_MAX>,
    asked: Option<(u32, u32)>,
    /// The one that has taken slices since.
    taken: Option<usize>,
    /// Some want slices that are longer than usual.
    some_longer: bool,
    /// Rails of the way with an open lane, with room or without, and those without.
    pub(super) open: u8,
    closed: u8,
    /// The nearest tier of those without; the last number: there are none.
    closed_tier: u8,
    /// More lanes were asked for since it was filled.
    pub(super) asked_lanes: bool,
    /// How fast all open ones are together, in units of [`RATE_UNIT`].
    units: u64,
    some_share_a_device: bool,
    /// The time of the binding.
    pub(super) now: Instant,
}

impl fmt::Debug for OpenRails {
    /// Nothing of what is on it: no decision depends on what an earlier one left there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenRails")
    }
}

impl OpenRails {
    /// Of nothing yet.
    pub(super) const EMPTY: Self = Self {
        way: None,
        line: Line::ALONE,
        lead: None,
        spots: heapless::Vec::new(),
        full: heapless::Vec::new(),
        times: heapless::Vec::new(),
        asked: None,
        taken: None,
        some_longer: false,
        open: 0,
        closed: 0,
        closed_tier: u8::MAX,
        asked_lanes: false,
        units: 0,
        some_share_a_device: false,
        now: Instant::ZERO,
    };

    /// Something has changed that is not on it.
    pub(super) fn wipe(&mut self) {
        self.way = None;
    }

    /// Puts all rails of a way on it that a slice may take and that may have room for it. Lanes that are known to be filled
    /// for slices of so many bytes that are not urgent are passed over, which most are while there is much to do.
    pub(super) fn fill(
        &mut self,
        view: View<'_>,
        (way, line): (Way, Line),
        lead: Option<Lead>,
        length: u32,
    ) {
        (self.way, self.line, self.lead) = (Some(way), line, lead);
        (self.open, self.closed, self.units) = (0, 0, 0);
        self.closed_tier = u8::MAX;
        self.asked_lanes = false;
        self.some_share_a_device = false;
        self.some_longer = false;
        self.spots.clear();
        self.full.clear();
        self.asked = None;
        let passes_over = !line.is_urgent && view.shared.has_one_worker();
        let (kib, mut devices) = (kib_of(length), 0_u64);
        for rail in view.rails_in_use(way) {
            let lane = view.lanes.get(rail.rail.index());
            if passes_over && lane.is_some_and(|lane| lane.is_filled(kib)) {
                self.open += 1;
                self.units += view.shared.rate_units(rail.rail);
                let _ = self.full.push(rail.rail);
                continue;
            }
            let Some(spot) = view.spot(*rail, way.op) else {
                self.closed += 1;
                self.closed_tier = self.closed_tier.min(rail.tier);
                continue;
            };
            self.open += 1;
            if is_allowed(lead.as_ref(), rail) {
                self.units += view.shared.rate_units(rail.rail);
                let device = 1_u64.rotate_left(u32::from(spot.device.0));
                self.some_share_a_device |= devices & device != 0 || spot.has_far();
                devices |= device;
                self.some_longer |= spot.slice_bytes > view.shared.slice_bytes();
                let _ = self.spots.push(spot);
            }
        }
        debug_assert!(
            self.spots.len() + self.full.len() <= usize::from(self.open),
            "{} rails have room and {} have none, of {} that are open",
            self.spots.len(),
            self.full.len(),
            self.open
        );
    }

    /// Whether it shows the rails of this way, for who stands so in line, and all that are wanted. One more slice for rails that
    /// are all busy wants more lanes.
    pub(super) fn is_of(&self, way: Way, line: Line) -> bool {
        let is_shown = self.way == Some(way) && self.lead.is_none() && self.line == line;
        is_shown && (self.closed == 0 || self.asked_lanes || !self.is_busy())
    }

    /// Whether there is no lane left to open.
    pub(super) fn all_open(&self) -> bool {
        self.closed == 0 && self.open > 0
    }

    /// Whether something is in flight on each open rail.
    pub(super) fn is_busy(&self) -> bool {
        self.spots.iter().all(|spot| spot.load.inflight_bytes > 0)
    }

    /// Whether what is left, though no more than a slice, is to be cut for more rails than these, or to go over another one.
    pub(super) fn want_help(&self, view: View<'_>, bytes: u64) -> bool {
        let delay = |spot: &Spot| view.shared.delay_mean(spot.rail);
        let wants_help =
            |spot: &Spot| spot.tier >= self.closed_tier && spot.wants_help(bytes, delay(spot));
        self.spots.iter().any(wants_help) || self.are_slow(view, bytes)
    }

    /// Whether a rail whose lane is closed would take at most half as long as each of these: the port of the first one may have come
    /// up at a fraction of its rate, and of slices that come one at a time none asks for another.
    fn are_slow(&self, view: View<'_>, bytes: u64) -> bool {
        let time = |load: spray::Load| load.predicted(bytes);
        let own = self.spots.iter().map(|spot| time(spot.load)).min();
        let rails = self.way.into_iter().flat_map(|way| view.rails_in_use(way));
        let closed = rails.filter(|rail| view.is_closed(rail.rail));
        let loads = closed.filter_map(|rail| view.shared.load(view.now, rail.rail));
        let times = own.zip(loads.map(time).min());
        times.is_some_and(|(own, other)| other.times(2) <= own)
    }

    /// Whether a rail on it has no room because of what others have on its device.
    pub(super) fn is_crowded(&self) -> bool {
        self.spots.iter().any(|spot| spot.room.is_crowded())
    }

    /// Finds out when each would be finished with one more slice, unless that is known.
    fn ask_times(&mut self, need: &Need) {
        let length = slice::next_length(need.rest_bytes, need.slice_bytes);
        let asked = (length, need.share_bytes);
        if self.asked != Some(asked) || need.end.is_some() {
            self.times = of_rails(self.spots.iter().map(|spot| spot.time(need)));
        } else if let Some(index) = self.taken
            && let (Some(time), Some(spot)) = (self.times.get_mut(index), self.spots.get(index))
        {
            *time = spot.time(need);
        }
        debug_assert!(
            self.times.len() == self.spots.len(),
            "{} times for {} rails",
            self.times.len(),
            self.spots.len()
        );
        self.taken = None;
        self.asked = Some(asked).filter(|_| need.end.is_none());
    }

    /// A rail on it, and its window.
    pub(super) fn window(&self, index: usize) -> Option<(RailId, u64)> {
        let spot = self.spots.get(index)?;
        Some((spot.rail, spot.room.window_bytes))
    }

    /// How long slices are at most on rails that want longer ones than usual: a share of all that is left, or as much as goes at
    /// once on works that lanes still take. What does not go now goes a round trip later, but what takes longer than that is
    /// better shared.
    fn share(&self, shared: &Shared<'_>, need: &Need) -> u32 {
        let rails = u32::from(self.open + self.closed);
        let share = spray::share(need.unbound_bytes, need.slice_bytes, rails);
        // With so many works that is less.
        let works_max = 4 * rails;
        if self
            .spots
            .first()
            .is_none_or(|spot| spot.works >= works_max)
        {
            return share;
        }
        let on_way = self.spots.iter().map(|spot| {
            let delay = shared.delay_mean(spot.rail).max(spot.load.delay_base);
            spot.load.rate.bytes_in(delay)
        });
        let at_once = spray::at_once(&self.spots, need.unbound_bytes);
        let at_once = u64::from(at_once).min(on_way.max().unwrap_or(0));
        share.max(at_once as u32)
    }

    /// Which rail on it takes slices of what is needed, and how many in a row. `None`: the next one waits.
    pub(super) fn run(&mut self, view: View<'_>, need: &Need) -> Option<(usize, Slices)> {
        let need = &Need {
            end: spray::end_of_few(&self.spots, need),
            share_bytes: match self.some_longer {
                true => self.share(view.shared, need).max(need.share_bytes),
                false => 0,
            },
            ..*need
        };
        let (index, until) = match self.spots.as_slice() {
            [_] => (0, Duration::MAX),
            _ => {
                self.ask_times(need);
                spray::choose(&self.spots, &self.times)?
            }
        };
        let rate = Rate::from_bytes_per_sec(self.units.saturating_mul(RATE_UNIT));
        let all = All {
            open_rails: self,
            view,
        };
        let slices = self.spots.get(index)?.run(need, until, rate, all)?;
        Some((index, slices))
    }

    /// A rail on it has taken slices, with `ahead_bytes` in flight there before them. It is there no more if it has no room for
    /// another one. Whether its lane is filled then, for reads and for writes.
    pub(super) fn take(
        &mut self,
        now: Instant,
        index: usize,
        slices: Slices,
        ahead_bytes: u64,
    ) -> bool {
        let Some(spot) = self.spots.get_mut(index) else {
            return false;
        };
        spot.take(now, slices, ahead_bytes);
        let has_window = spot.room.takes(slices.length, self.line);
        let (rail, device, far) = (spot.rail, spot.device, spot.far);
        let has_works = spot.works > 0;
        let lacks_credits = self.way.is_some_and(|way| way.op == Op::Read) && !has_works;
        if self.some_share_a_device {
            self.asked = None;
            for (other, spot) in self.spots.iter_mut().enumerate() {
                if other != index && spot.device == device {
                    spot.share_device(slices.bytes());
                }
                spot.share_far(far, slices.bytes());
            }
        }
        if !(has_window && has_works) {
            debug_assert!(
                !self.full.contains(&rail),
                "rail {} had no room before",
                rail.0
            );
            let _ = self.full.push(rail);
            remove(&mut self.spots, index);
            remove(&mut self.times, index);
        } else {
            self.taken = Some(index);
        }
        !has_window || !has_works && !lacks_credits
    }
}

/// All open rails that a slice may take.
struct All<'b> {
    open_rails: &'b OpenRails,
    view: View<'b>,
}

impl All<'_> {
    fn op(&self) -> Op {
        self.open_rails.way.map_or(Op::Write, |way| way.op)
    }
}

impl Look for All<'_> {
    fn inflight_bytes(&self) -> u64 {
        let open_rails = self.open_rails;
        let spots = open_rails.spots.iter();
        let spots = spots.map(|spot| spot.load.inflight_bytes);
        let full = open_rails.full.iter();
        let full = full.map(|rail| self.view.shared.inflight_bytes(*rail));
        spots.chain(full).fold(0, u64::saturating_add)
    }

    fn sooner(&self, length: u32, than: Duration) -> Sooner {
        let (spots, line) = (self.open_rails.spots.iter(), self.open_rails.line);
        let filled = spots.filter(|spot| !spot.takes(length, line));
        let loads = filled.filter_map(|spot| match spot.works {
            0 => self.view.full(spot.rail, self.op()),
            _ => Some(spot.load),
        });
        let full = self.open_rails.full.iter();
        let full = full.filter_map(|rail| self.view.full(*rail, self.op()));
        Sooner::of(loads.chain(full), length, than)
    }
}

impl<P: Chooser> Orchestrator<'_, P> {
    /// What binding looks at.
    pub(super) fn view(&self) -> View<'_> {
        let tables = (&*self.plans, &*self.lanes, &self.attempts);
        View::new(tables, self.shared, self.open_rails.now)
    }
}
