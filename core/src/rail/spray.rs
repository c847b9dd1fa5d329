//! How `Spray` chooses: by predicted completion, among rails that have room.
//!
//! A worker that binds several slices in a row looks at its rails once and keeps count of what it takes, so that
//! a slice costs little more than the rails that have room for it.
//!
//! Source: TENT (arXiv:2604.00368v1) eq. 1 for the prediction.

use crate::plan::PLAN_RAILS_MAX;
use crate::time::{Duration, Instant};
use crate::units::{DeviceId, RailId, Rate};

/// The workers that wait for room on rails, as one of them sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// How many do.
    pub waiting: u64,
    /// Nobody has waited longer than the one that asks.
    pub is_first: bool,
    /// What it asks for is to find room above the window too.
    pub is_urgent: bool,
}

/// How much is in flight on a rail, and how much may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes in flight, of all workers.
    pub inflight_bytes: u64,
    /// And of the one that asks.
    pub own_bytes: u64,
    /// The rail's window.
    pub window_bytes: u64,
}

impl Room {
    /// Bytes that the window still has room for: whoever has waited longest may use all of it, the others share.
    fn left_bytes(&self, length: u32, line: Line) -> u64 {
        let window = self.window_bytes;
        let above = window + window / 2;
        let (share, ceiling) = match (line.is_first, line.waiting) {
            _ if line.is_urgent => (above, above),
            (true, _) => (window, above),
            (false, 0 | 1) => (window.max(u64::from(length)), window),
            (false, waiting) => ((window / waiting).max(u64::from(length)), window),
        };
        let own = share.saturating_sub(self.own_bytes);
        own.min(ceiling.saturating_sub(self.inflight_bytes))
    }

    /// Whether it takes `length` bytes. An empty lane may always have one slice while the rail is not far over
    /// its window.
    pub fn takes(&self, length: u32, line: Line) -> bool {
        let (own, all, window) = (self.own_bytes, self.inflight_bytes, self.window_bytes);
        u64::from(length) <= self.left_bytes(length, line)
            || own == 0 && all < 2 * window
            || all == 0
    }
}

/// What predicting needs to know of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Its learned rate.
    pub rate: Rate,
    /// Its base delay β0.
    pub delay_base: Duration,
    /// Bytes in flight on it, of all workers.
    pub inflight_bytes: u64,
    /// Bytes in flight on its device, for all peers, and those of other processes, as far as they count.
    pub device_bytes: u64,
    /// The rate of its device.
    pub device_rate: Rate,
}

impl Load {
    /// Predicted time for the rail to finish a slice of this length: β0 plus the larger of its own and its
    /// device's queue, plus the slice itself.
    pub fn predicted(&self, length: u32) -> Duration {
        let wait = self.own_wait().max(self.device_wait());
        self.delay_base + wait + self.rate.time_for(u64::from(length))
    }

    fn own_wait(&self) -> Duration {
        self.rate.time_for(self.inflight_bytes)
    }

    /// A device is at least as fast as any of its rails, whatever slow peers have made it look like.
    fn device_wait(&self) -> Duration {
        if self.is_alone() {
            return Duration::ZERO;
        }
        let rate = self.device_rate.max(self.rate);
        rate.time_for(self.device_bytes)
    }

    /// Whether its device has nothing else to do, and never makes it wait for longer than its own queue.
    fn is_alone(&self) -> bool {
        self.device_bytes == self.inflight_bytes
    }
}

/// A healthy rail with an open lane that has room for a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The rail.
    pub rail: RailId,
    /// Its position in the plan.
    pub position: u8,
    /// Distance from the memory, 0 nearest.
    pub tier: u8,
    /// The local device it runs on.
    pub device: DeviceId,
    /// Works that its lane still takes.
    pub works: u32,
    /// Bytes of the longest work that it takes.
    pub work_bytes_max: u32,
    /// How long slices on it should be.
    pub slice_bytes: u32,
    /// When it last took a slice.
    pub used_at: Instant,
    /// Bytes in flight on it, of this worker.
    pub own_bytes: u64,
    /// Its window.
    pub window_bytes: u64,
    /// What predicting needs to know.
    pub load: Load,
}

impl Spot {
    /// How full it is.
    pub fn room(&self) -> Room {
        Room {
            inflight_bytes: self.load.inflight_bytes,
            own_bytes: self.own_bytes,
            window_bytes: self.window_bytes,
        }
    }
}

/// What is kept of a spot while slices are bound.
#[derive(Debug)]
struct Row {
    spot: Spot,
    /// Bytes that its window has room for.
    left_bytes: u64,
    own_wait: Duration,
    device_wait: Duration,
    /// What each slice adds to either.
    service: Duration,
    device_service: Duration,
}

impl Row {
    fn new(spot: Spot, length: u32, line: Line) -> Self {
        let Load {
            rate, device_rate, ..
        } = spot.load;
        let bytes = u64::from(length);
        let device_service = if spot.load.is_alone() {
            Duration::ZERO
        } else {
            device_rate.max(rate).time_for(bytes)
        };
        Self {
            spot,
            left_bytes: spot.room().left_bytes(length, line),
            own_wait: spot.load.own_wait(),
            device_wait: spot.load.device_wait(),
            service: rate.time_for(bytes),
            device_service,
        }
    }

    /// When the next slice would be finished.
    fn predicted(&self) -> Duration {
        self.spot.load.delay_base + self.own_wait.max(self.device_wait) + self.service
    }

    /// Takes a slice, which is mostly of the usual `length`. Whether it takes another one.
    fn take(&mut self, bytes: u32, length: u32, ahead_bytes: u64) -> bool {
        let spot = &mut self.spot;
        let (rate, device_rate) = (spot.load.rate, spot.load.device_rate);
        // What others have taken meanwhile.
        let surprise = ahead_bytes.saturating_sub(spot.load.inflight_bytes);
        if bytes == length && surprise == 0 {
            self.own_wait += self.service;
            self.device_wait += self.device_service;
        } else {
            let more = surprise.saturating_add(u64::from(bytes));
            self.own_wait += rate.time_for(more);
            if self.device_service != Duration::ZERO {
                self.device_wait += device_rate.max(rate).time_for(more);
            }
        }
        let bytes = u64::from(bytes);
        spot.works = spot.works.saturating_sub(1);
        spot.own_bytes += bytes;
        spot.load.inflight_bytes = ahead_bytes + bytes;
        spot.load.device_bytes += bytes;
        self.left_bytes = self.left_bytes.saturating_sub(bytes + surprise);
        let length = length.min(self.spot.work_bytes_max);
        self.spot.works > 0 && u64::from(length) <= self.left_bytes
    }
}

/// All rails of a plan at one look, those without room too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The least predicted time of those without room.
    pub least: Duration,
    /// Bytes in flight on all, of all workers.
    pub inflight_bytes: u64,
    /// How fast all are together.
    pub rate: Rate,
}

/// Predictions this close (in parts of 100 above the least) are the same.
const TOLERANCE_PERCENT: u64 = 5;
/// A rail may take a slice without a look at the others if what is left would keep all rails as known busy for
/// so many times as long as it needs.
const REST_PLENTY: u64 = 2;

/// By what a rail is chosen.
#[derive(Clone, Copy, Debug)]
struct Rank {
    /// When it would be finished with the next slice; never, if it has no room any more.
    time: Duration,
    /// When it last took one.
    used_at: Instant,
}

impl Rank {
    const NONE: Self = Self {
        time: Duration::MAX,
        used_at: Instant::ZERO,
    };
}

/// Rails with room for slices of one length, while one worker binds several in a row: `Spray`'s choice.
#[derive(Debug)]
pub struct Spots {
    rows: heapless::Vec<Row, PLAN_RAILS_MAX>,
    /// By what each is chosen, side by side: all of them are looked at for every slice.
    ranks: [Rank; PLAN_RAILS_MAX],
    /// Rows that have room still, one bit each.
    roomy: u16,
    /// Devices of the rows, one bit each, some of them the same.
    devices: u64,
    some_share_a_device: bool,
    tiers_differ: bool,
    length: u32,
    line: Line,
    look: Option<Look>,
}

const _: () = assert!(PLAN_RAILS_MAX <= u16::BITS as usize);

impl Spots {
    /// None, of a worker that stands so in line.
    pub fn new(line: Line) -> Self {
        Self {
            rows: heapless::Vec::new(),
            ranks: [Rank::NONE; PLAN_RAILS_MAX],
            roomy: 0,
            devices: 0,
            some_share_a_device: false,
            tiers_differ: false,
            length: 0,
            line,
            look: None,
        }
    }

    /// Empties it, for slices of `length` bytes.
    pub fn clear(&mut self, length: u32, line: Line) {
        self.rows.clear();
        self.roomy = 0;
        self.devices = 0;
        self.some_share_a_device = false;
        self.tiers_differ = false;
        self.length = length;
        self.line = line;
        self.look = None;
    }

    /// Rails in all.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// The length of the slices.
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// Who waits for room.
    pub const fn line(&self) -> Line {
        self.line
    }

    /// Whether none has room.
    pub const fn is_empty(&self) -> bool {
        self.roomy == 0
    }

    /// Adds a rail that has room.
    pub fn push(&mut self, spot: Spot) {
        let index = self.rows.len();
        let row = Row::new(spot, self.length, self.line);
        if let Some(rank) = self.ranks.get_mut(index) {
            (rank.time, rank.used_at) = (row.predicted(), spot.used_at);
            let first = self.rows.first();
            self.tiers_differ |= first.is_some_and(|first| first.spot.tier != spot.tier);
            let _ = self.rows.push(row);
            self.roomy |= 1 << index;
            let device = 1_u64.rotate_left(u32::from(spot.device.0));
            self.some_share_a_device |= self.devices & device != 0;
            self.devices |= device;
        }
    }

    /// Positions in the plan of those that have room still, one bit each.
    fn roomy_positions(&self) -> u16 {
        let roomy = |index: &usize| self.roomy & 1 << *index != 0;
        let rows = (0..self.rows.len())
            .filter(roomy)
            .filter_map(|index| self.get(index));
        rows.fold(0, |bits, spot| bits | 1 << spot.position)
    }

    /// Chooses for a slice, of a worker that has `unbound_bytes` left to bind (the slice included): the rail of
    /// the least predicted time; of those within 5 % the one that has not been used for longest. `None`: wait for
    /// the next completion; a slow rail takes a slice only if that ends before the rest would end without it.
    ///
    /// `rate` is how fast all rails of the plan are together, as known from an earlier look; `look` looks at
    /// all of them but those with a bit (by position in the plan) in its argument. Gives an index for [`Self::get`]
    /// and [`Self::take`].
    pub fn choose(
        &mut self,
        unbound_bytes: u64,
        rate: Option<Rate>,
        look: impl FnOnce(u16) -> Look,
    ) -> Option<usize> {
        let (least, chosen, time) = if self.roomy.is_power_of_two() {
            let only = self.roomy.trailing_zeros() as usize;
            let time = self.ranks.get(only)?.time;
            (time, only, time)
        } else {
            let (best, least) = self.best()?;
            let (chosen, time) = self.least_recently_used(best, least);
            (least, chosen, time)
        };
        let plenty = |rate: Rate| time.times(REST_PLENTY) <= rate.time_for(unbound_bytes);
        if self.look.is_some() || !rate.is_some_and(plenty) {
            let seen = match self.look {
                Some(seen) => seen,
                None => *self.look.insert(look(self.roomy_positions())),
            };
            let bytes = seen.inflight_bytes.saturating_add(unbound_bytes);
            if time > tolerated(least.min(seen.least)) && time > seen.rate.time_for(bytes) {
                return None;
            }
        }
        Some(chosen)
    }

    /// The rail that [`Self::choose`] chose.
    pub fn get(&self, index: usize) -> Option<&Spot> {
        self.rows.get(index).map(|row| &row.spot)
    }

    /// What [`Self::choose`] saw when it looked at all rails.
    pub const fn look(&self) -> Option<Look> {
        self.look
    }

    /// Those of the rows.
    fn ranks(&self) -> &[Rank] {
        self.ranks.get(..self.rows.len()).unwrap_or_default()
    }

    /// The least time, and the first row with it.
    fn best(&self) -> Option<(usize, Duration)> {
        let mut best = (0, Duration::MAX);
        for (index, rank) in self.ranks().iter().enumerate() {
            if rank.time < best.1 {
                best = (index, rank.time);
            }
        }
        (self.roomy != 0).then_some(best)
    }

    /// Among rails of the best one's tier that are as good, the one that has not been used for longest.
    fn least_recently_used(&self, best: usize, time: Duration) -> (usize, Duration) {
        let limit = tolerated(time);
        let mut chosen = (best, time);
        let first = self.ranks.get(best);
        let mut used_at = first.map_or(Instant::ZERO, |rank| rank.used_at);
        for (index, rank) in self.ranks().iter().enumerate() {
            let is_better = rank.time <= limit && rank.used_at < used_at;
            if is_better && (!self.tiers_differ || self.tier(index) == self.tier(best)) {
                chosen = (index, rank.time);
                used_at = rank.used_at;
            }
        }
        chosen
    }

    fn tier(&self, index: usize) -> Option<u8> {
        self.get(index).map(|spot| spot.tier)
    }

    /// A slice of `bytes` was bound to a rail of these, with `ahead_bytes` in flight there before it.
    pub fn take(&mut self, now: Instant, index: usize, bytes: u32, ahead_bytes: u64) {
        let (Some(row), Some(rank)) = (self.rows.get_mut(index), self.ranks.get_mut(index)) else {
            return;
        };
        let has_room = row.take(bytes, self.length, ahead_bytes);
        (rank.time, rank.used_at) = (row.predicted(), now);
        if let Some(look) = &mut self.look {
            look.inflight_bytes += u64::from(bytes);
            if !has_room {
                look.least = look.least.min(rank.time);
            }
        }
        if !has_room {
            self.roomy &= !(1 << index);
            rank.time = Duration::MAX;
        }
        if self.some_share_a_device {
            let device = row.spot.device;
            self.share_device(index, device, u64::from(bytes));
        }
    }

    /// Other rails of a device wait for what one of them took.
    fn share_device(&mut self, taker: usize, device: DeviceId, bytes: u64) {
        // Those without room wait too.
        self.look = None;
        let rows = self.rows.iter_mut().zip(&mut self.ranks).enumerate();
        for (index, (row, rank)) in rows {
            if row.spot.device == device && index != taker {
                row.spot.load.device_bytes += bytes;
                *row = Row {
                    left_bytes: row.left_bytes,
                    ..Row::new(row.spot, self.length, self.line)
                };
                if self.roomy & 1 << index != 0 {
                    rank.time = row.predicted();
                }
            }
        }
    }
}

fn tolerated(time: Duration) -> Duration {
    time.times(100 + TOLERANCE_PERCENT).divided_by(100)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    const SLICE: u32 = 65_536;
    const GB: u64 = 1_000_000_000;
    const ALONE: Line = Line {
        waiting: 1,
        is_first: true,
        is_urgent: false,
    };

    /// A rail, and whether it has room.
    type Seen = (Spot, bool);

    /// A rail of `rate` GB/s with `queued` slices in flight, and room for many.
    fn rail(number: u16, rate: u64, queued: u64) -> Seen {
        let bytes = queued * u64::from(SLICE);
        let rate = Rate::from_bytes_per_sec(rate * GB);
        let spot = Spot {
            rail: RailId(number),
            position: 0,
            tier: 0,
            device: DeviceId(number),
            works: 64,
            work_bytes_max: u32::MAX,
            slice_bytes: SLICE,
            used_at: Instant::from_nanos(u64::from(number)),
            own_bytes: bytes,
            window_bytes: 1 << 40,
            load: Load {
                rate,
                delay_base: Duration::from_micros(3),
                inflight_bytes: bytes,
                device_bytes: bytes,
                device_rate: rate,
            },
        };
        (spot, true)
    }

    fn full((spot, _): Seen) -> Seen {
        (spot, false)
    }

    fn far((spot, room): Seen) -> Seen {
        (Spot { tier: 1, ..spot }, room)
    }

    /// With more in flight on its device than its own.
    fn crowded((spot, room): Seen, bytes: u64) -> Seen {
        let load = Load {
            device_bytes: bytes,
            ..spot.load
        };
        (Spot { load, ..spot }, room)
    }

    fn spots(rails: &[Seen], line: Line) -> Spots {
        let mut spots = Spots::new(line);
        spots.clear(SLICE, line);
        for (position, (spot, _)) in (0..).zip(rails).filter(|(_, (_, room))| *room) {
            spots.push(Spot { position, ..*spot });
        }
        spots
    }

    /// What there is to see of those without a bit.
    fn look(rails: &[Seen], roomy: u16) -> Look {
        let others = rails
            .iter()
            .enumerate()
            .filter(|(position, _)| roomy & 1 << position == 0);
        let times = others.map(|(_, (spot, _))| spot.load.predicted(SLICE));
        let rates = rails.iter().map(|(spot, _)| spot.load.rate.bytes_per_sec());
        Look {
            least: times.min().unwrap_or(Duration::MAX),
            inflight_bytes: rails.iter().map(|(spot, _)| spot.load.inflight_bytes).sum(),
            rate: Rate::from_bytes_per_sec(rates.sum()),
        }
    }

    fn choose(spots: &mut Spots, rails: &[Seen], unbound: u64, rate: Option<Rate>) -> Option<u16> {
        let chosen = spots.choose(unbound, rate, |roomy| look(rails, roomy))?;
        spots.get(chosen).map(|spot| spot.rail.0)
    }

    #[test]
    fn takes_the_rail_that_ends_first_or_waits() {
        const MUCH: u64 = 1 << 30;
        let just_this = u64::from(SLICE);
        let busy_device = crowded(rail(0, 25, 0), 50_000 * 25);
        // (name, rails, unbound bytes, rail)
        let cases = [
            ("nothing to choose from", Vec::new(), MUCH, None),
            (
                "least queued",
                Vec::from([rail(0, 25, 4), rail(1, 25, 1)]),
                MUCH,
                Some(1),
            ),
            (
                "faster wins in spite of its queue",
                Vec::from([rail(0, 1, 0), rail(1, 25, 4)]),
                MUCH,
                Some(1),
            ),
            (
                "equal: least recently used",
                Vec::from([rail(5, 25, 1), rail(2, 25, 1)]),
                MUCH,
                Some(2),
            ),
            (
                "as good but of another tier",
                Vec::from([rail(5, 25, 1), far(rail(2, 25, 1))]),
                MUCH,
                Some(5),
            ),
            (
                "full rails do not count",
                Vec::from([full(rail(0, 25, 1)), rail(1, 25, 8)]),
                MUCH,
                Some(1),
            ),
            (
                "a slow rail helps with much",
                Vec::from([full(rail(0, 25, 9)), rail(1, 5, 0)]),
                MUCH,
                Some(1),
            ),
            (
                "but not with the tail",
                Vec::from([full(rail(0, 25, 2)), rail(1, 1, 0)]),
                just_this,
                None,
            ),
            (
                "a busy device makes its rails slow",
                Vec::from([busy_device, rail(1, 25, 4)]),
                MUCH,
                Some(1),
            ),
            (
                "all full",
                Vec::from([full(rail(0, 25, 1)), full(rail(1, 25, 1))]),
                MUCH,
                None,
            ),
        ];
        for (name, rails, unbound, chosen) in cases {
            // Whether it knows how fast all are, and need not look, or does not.
            for rate in [None, Some(look(&rails, 0).rate)] {
                let mut spots = spots(&rails, ALONE);
                assert_eq!(choose(&mut spots, &rails, unbound, rate), chosen, "{name}");
            }
        }
    }

    #[test]
    fn a_window_is_shared_by_those_who_wait() {
        let waiting = |waiting, is_first| Line {
            waiting,
            is_first,
            is_urgent: false,
        };
        let urgent = Line {
            is_urgent: true,
            ..waiting(2, false)
        };
        // (name, own bytes, in flight, window, line, takes 100 bytes)
        let cases = [
            (
                "an idle rail takes one, whatever its window",
                0,
                0,
                10,
                ALONE,
                true,
            ),
            ("up to the window", 300, 300, 400, ALONE, true),
            ("and no more", 301, 301, 400, ALONE, false),
            (
                "the first may use all of it",
                300,
                500,
                400,
                waiting(2, true),
                true,
            ),
            (
                "what is urgent goes above the window",
                500,
                500,
                400,
                urgent,
                true,
            ),
            ("but not without end", 501, 501, 400, urgent, false),
            (
                "up to half as much again in all",
                300,
                501,
                400,
                waiting(2, true),
                false,
            ),
            ("others their part", 100, 300, 400, waiting(2, false), true),
            ("and no more", 101, 300, 400, waiting(2, false), false),
            (
                "an empty lane may have one",
                0,
                799,
                400,
                waiting(2, false),
                true,
            ),
            (
                "but not far over the window",
                0,
                800,
                400,
                waiting(2, false),
                false,
            ),
        ];
        for (name, own_bytes, inflight_bytes, window_bytes, line, takes) in cases {
            let room = Room {
                inflight_bytes,
                own_bytes,
                window_bytes,
            };
            assert_eq!(room.takes(100, line), takes, "{name}");
        }
    }

    quickcheck! {
        /// Binding many in a row is the same as looking at everything anew for each.
        fn remembers_what_a_new_look_would_show(rails: Vec<(u8, u8, bool, u8, u8)>, slices: u8, rest: u32) -> bool {
            let mut rails: Vec<Seen> = (0..).zip(rails.iter().take(PLAN_RAILS_MAX)).map(|(i, (rate, queued, room, tier, device))| {
                // A power of two, so that no rounding makes the two differ.
                let (spot, _) = rail(i, 1 << (rate % 6), u64::from(*queued % 8));
                let spot = Spot { tier: *tier % 2, device: DeviceId(u16::from(*device % 4)), window_bytes: 8 * u64::from(SLICE), ..spot };
                (spot, *room && spot.room().takes(SLICE, ALONE))
            }).collect();
            let device_bytes = |rails: &[Seen], device| rails.iter().filter(|(spot, _)| spot.device == device)
                .map(|(spot, _)| spot.load.inflight_bytes).sum::<u64>();
            let update = |rails: &mut Vec<Seen>| for index in 0..rails.len() {
                rails[index].0.load.device_bytes = device_bytes(rails, rails[index].0.device);
            };
            update(&mut rails);
            let mut unbound = u64::from(rest) + u64::from(slices) * u64::from(SLICE);
            let mut remembered = spots(&rails, ALONE);
            for step in 0..slices {
                let fresh = choose(&mut spots(&rails, ALONE), &rails, unbound, None);
                if choose(&mut remembered, &rails, unbound, None) != fresh { return false }
                let (Some(chosen), Some(index)) = (fresh, remembered.rows.iter().position(|row| Some(row.spot.rail.0) == fresh)) else {
                    return fresh.is_none();
                };
                let now = Instant::from_nanos(1_000 + u64::from(step));
                let (spot, room) = &mut rails[usize::from(chosen)];
                remembered.take(now, index, SLICE, spot.load.inflight_bytes);
                spot.load.inflight_bytes += u64::from(SLICE);
                spot.own_bytes += u64::from(SLICE);
                spot.used_at = now;
                spot.works -= 1;
                *room = spot.works > 0 && spot.room().takes(SLICE, ALONE);
                update(&mut rails);
                unbound -= u64::from(SLICE);
            }
            true
        }
    }
}
