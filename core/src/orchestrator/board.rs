//! The rails that slices can take, as they stand while several are bound in a row.

use core::fmt;

use super::PlanRow;
use super::lane::{Lane, Phase};
use super::path::Lead;
use crate::plan::{NO_RAILS, PlanRail, PlanRails};
use crate::rail::Shared;
use crate::rail::spray::{Line, Look, Room, Spot, Spots};
use crate::slice;
use crate::time::{Duration, Instant};
use crate::units::{PeerId, PlanId, RailId, Rate};

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
}

/// How fast the rails of one transport of a plan are together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    rate: Rate,
    /// Boards that may still believe it.
    boards: u8,
}

impl Pace {
    pub(super) const UNKNOWN: Self = Self {
        rate: Rate::SLOWEST,
        boards: 0,
    };
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

/// What there is to look at.
pub(super) struct View<'b> {
    pub(super) plans: &'b [PlanRow],
    pub(super) lanes: &'b [Lane],
    pub(super) shared: &'b Shared<'b>,
}

impl<'b> View<'b> {
    /// The rails of a way.
    pub(super) fn rails(&self, way: Way) -> &'b PlanRails {
        self.plans
            .get(way.plan.index as usize)
            .filter(|row| row.generation == way.plan.generation)
            .and_then(|row| row.plan.as_ref())
            .map_or(&NO_RAILS, |plan| plan.rails(way.rank))
    }

    /// The lane on a healthy rail, if it is open for slices, and how full the rail is.
    pub(super) fn open_on(&self, rail: RailId) -> Option<(&'b Lane, Room)> {
        let lane = self
            .lanes
            .get(rail.index())
            .filter(|lane| matches!(lane.phase, Phase::Open) && !lane.probing)?;
        Some((lane, self.shared.room(rail, lane.inflight_bytes)?))
    }

    /// Looks at all open rails of a way that a slice may take, for the policy; `roomy` has a bit for those that it
    /// knows.
    fn look(&self, way: Way, lead: Option<&Lead>, roomy: u16, length: u32) -> Look {
        let (mut least, mut inflight_bytes, mut bytes_per_sec) = (Duration::MAX, 0_u64, 0_u64);
        for (position, rail) in self.rails(way).iter().enumerate() {
            let load = self
                .open_on(rail.rail)
                .filter(|_| is_allowed(lead, *rail))
                .and_then(|_| self.shared.load(rail.rail));
            let Some(load) = load else {
                continue;
            };
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
        let line = Line {
            waiting: 0,
            is_first: true,
            is_urgent: false,
        };
        Self {
            way: None,
            lead: None,
            spots: Spots::new(line),
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
        view: &View<'_>,
        way: Way,
        lead: Option<Lead>,
        length: u32,
    ) -> Seen {
        let line = self.spots.line();
        self.spots.clear(length, line);
        (self.way, self.lead) = (Some(way), lead);
        let rails = view.rails(way);
        let mut open = 0;
        for (position, rail) in (0..).zip(rails) {
            let Some((lane, room)) = view.open_on(rail.rail) else {
                continue;
            };
            open += 1;
            let takes = room.takes(length.min(lane.work_bytes_max()), line);
            if takes && lane.room_works() > 0 && is_allowed(lead.as_ref(), *rail) {
                self.put(view, position, *rail, lane, room);
            }
        }
        Seen {
            open,
            rails: rails.len(),
        }
    }

    fn put(&mut self, view: &View<'_>, position: u8, rail: PlanRail, lane: &Lane, room: Room) {
        let PlanRail { rail, tier, .. } = rail;
        if let Some(load) = view.shared.load(rail) {
            self.spots.push(Spot {
                rail,
                position,
                tier,
                device: view.shared.device_of(rail),
                works: lane.room_works() as u32,
                work_bytes_max: lane.work_bytes_max(),
                slice_bytes: view.shared.rail_slice_bytes(rail),
                used_at: view.shared.used_at(rail),
                own_bytes: room.own_bytes,
                window_bytes: room.window_bytes,
                load,
            });
        }
    }

    /// Believes what was seen of all rails not long ago, so that it need not look at them all.
    pub(super) fn believe(&mut self, pace: Option<&mut Pace>) {
        self.rate = pace.and_then(|pace| {
            pace.boards = pace.boards.checked_sub(1)?;
            Some(pace.rate)
        });
    }

    /// Tells how fast all rails are, if it had to look.
    pub(super) fn tell(&self, pace: &mut Pace) {
        if let Some(look) = self.spots.look() {
            *pace = Pace {
                rate: look.rate,
                boards: PACE_BOARDS,
            };
        }
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
        self.spots.choose(unbound_bytes, self.rate, |roomy| {
            view.look(way, lead, roomy, length)
        })
    }

    /// A rail on it takes a slice.
    pub(super) fn take(&mut self, now: Instant, index: usize, bytes: u32, ahead_bytes: u64) {
        self.spots.take(now, index, bytes, ahead_bytes);
    }

    /// How long a slice of a request that has `rest_bytes` left is on a rail that wants longer ones than usual,
    /// if there is room for that and enough is left for the other rails to even out.
    pub(super) fn lengthened(
        &self,
        view: &View<'_>,
        spot: &Spot,
        length: u32,
        rest_bytes: u64,
    ) -> u32 {
        let usual = view.shared.slice_bytes().max(1);
        let rails = self.way.map_or(1, |way| view.rails(way).len().max(1)) as u64;
        let part = rest_bytes / SPREAD / rails / u64::from(usual) * u64::from(usual);
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
