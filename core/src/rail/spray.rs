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

impl Line {
    /// Whether the one that asks may fill a window on which nobody else has anything: nobody else waits, or for less long.
    pub(crate) fn has_all(&self) -> bool {
        self.is_first || self.waiting < 2
    }

    /// Of the only worker, for what is not urgent.
    pub const ALONE: Self = Self {
        waiting: 0,
        is_first: true,
        is_urgent: false,
    };
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

    /// Whether slices on it are as long as that.
    fn wants(&self, length: u32) -> bool {
        self.slice_bytes <= length && length <= self.work_bytes_max
    }

    /// What [`Lone::run`] says, where a bound tells it that is found quicker: it asks as if all that is on the rail or on
    /// its device went at the rate of the rail. `None`: ask that.
    #[inline(always)] // see `Lone::new`
    pub(crate) fn plenty_run(
        &self,
        line: Line,
        length: u32,
        unbound_bytes: u64,
        rate: Rate,
        slices_max: u32,
    ) -> Option<Slices> {
        let bytes = u64::from(length.max(1));
        let room = self.room().left_bytes(length, line) / bytes;
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let count = slices_max.min(self.works).min(room);
        if count == 0 || !self.wants(length) {
            return None;
        }
        let queued = self.load.inflight_bytes.max(self.load.device_bytes);
        let all = queued.saturating_add(u64::from(count) * bytes);
        let time = self.load.delay_base + self.load.rate.time_for(all);
        let rest = unbound_bytes.saturating_sub(u64::from(count - 1) * bytes);
        is_plenty(time, rate, rest).then_some(Slices { length, count })
    }
}

/// Slices in a row, of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices {
    /// Bytes of each.
    pub length: u32,
    /// How many.
    pub count: u32,
}

impl Slices {
    /// Bytes of all.
    pub fn bytes(self) -> u64 {
        u64::from(self.length) * u64::from(self.count)
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
    #[inline(always)] // see `Lone::new`
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

    /// How many slices of `length` bytes [`Spots::choose`] would choose it for, one after the other and at most
    /// `slices_max`, if no other rail has room, as far as one question can tell. `None`: that takes more of them.
    #[inline(always)] // see `Lone::new`
    fn run(&self, length: u32, unbound_bytes: u64, all: All, slices_max: u32) -> Option<Slices> {
        let bytes = u64::from(length.max(1));
        let room = u32::try_from(self.left_bytes / bytes).unwrap_or(u32::MAX);
        let count = slices_max.min(self.spot.works).min(room);
        if count == 0 || !self.spot.wants(length) {
            return None;
        }
        // The last of them ends no later than this.
        let before = u64::from(count - 1);
        let slowest = self.service.max(self.device_service);
        let time = self.predicted() + slowest.times(before);
        let goes = match all {
            // What a slice adds to those in flight it takes from the rest.
            All::Seen(look) => time <= look.time_for_all(unbound_bytes),
            All::Believed(rate) => {
                let rest = unbound_bytes.saturating_sub(before * bytes);
                is_plenty(time, rate, rest)
            }
        };
        goes.then_some(Slices { length, count })
    }

    /// Takes slices, which are mostly of the usual `length`. Whether it takes another one.
    fn take(&mut self, slices: Slices, length: u32, ahead_bytes: u64) -> bool {
        let spot = &mut self.spot;
        let (rate, device_rate) = (spot.load.rate, spot.load.device_rate);
        // What others have taken meanwhile.
        let surprise = ahead_bytes.saturating_sub(spot.load.inflight_bytes);
        let (taken, count) = (slices.bytes(), slices.count);
        if slices.length == length && surprise == 0 {
            self.own_wait += self.service.times(u64::from(count));
            self.device_wait += self.device_service.times(u64::from(count));
        } else {
            let more = surprise.saturating_add(taken);
            self.own_wait += rate.time_for(more);
            if self.device_service != Duration::ZERO {
                self.device_wait += device_rate.max(rate).time_for(more);
            }
        }
        spot.works = spot.works.saturating_sub(count);
        spot.own_bytes += taken;
        spot.load.inflight_bytes = ahead_bytes + taken;
        spot.load.device_bytes += taken;
        self.left_bytes = self.left_bytes.saturating_sub(taken + surprise);
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

impl Look {
    /// Whether a slice goes to a rail where it ends after `time`, `least` being the least time of those with room: not if
    /// one without room may well end it earlier, and all rails together all that is left.
    fn lets_go(&self, time: Duration, least: Duration, unbound_bytes: u64) -> bool {
        let is_late = time > tolerated(least.min(self.least));
        !(is_late && time > self.time_for_all(unbound_bytes))
    }

    /// How long all rails together take for what is in flight and what is left.
    fn time_for_all(&self, unbound_bytes: u64) -> Duration {
        let bytes = self.inflight_bytes.saturating_add(unbound_bytes);
        self.rate.time_for(bytes)
    }
}

/// What is known of all rails of a plan together.
#[derive(Clone, Copy)]
enum All {
    /// What a look at them has shown.
    Seen(Look),
    /// How fast they were when last looked at.
    Believed(Rate),
}

/// The only rail that has room for slices of one length: what [`Spots`] would say if nothing else were on them.
pub(crate) struct Lone {
    row: Row,
    length: u32,
}

impl Lone {
    /// `None`: it has no room for a slice of the usual length after all, or wants another length.
    #[inline(always)] // little of the spot is needed, and it need not be made then
    pub(crate) fn new(spot: Spot, line: Line, length: u32) -> Option<Self> {
        let row = Row::new(spot, length, line);
        let fits = spot.works > 0 && u64::from(length) <= row.left_bytes;
        (fits && spot.wants(length)).then_some(Self { row, length })
    }

    /// How many slices it takes in a row, at most `slices_max`, if all rails are as fast together as `rate`: see
    /// [`Spots::run`], but a single one will do.
    #[inline(always)]
    pub(crate) fn run(&self, unbound_bytes: u64, rate: Rate, slices_max: u32) -> Option<Slices> {
        let all = All::Believed(rate);
        self.row.run(self.length, unbound_bytes, all, slices_max)
    }

    /// How many it takes in a row, after a look at all rails. `None`: the next one waits for another rail.
    #[inline(always)]
    pub(crate) fn choose(&self, unbound_bytes: u64, look: Look, slices_max: u32) -> Option<Slices> {
        let (time, length) = (self.row.predicted(), self.length);
        let run = || {
            self.row
                .run(length, unbound_bytes, All::Seen(look), slices_max)
        };
        let goes = look.lets_go(time, time, unbound_bytes);
        goes.then(|| run().unwrap_or(Slices { length, count: 1 }))
    }
}

/// Predictions this close (in parts of 100 above the least) are the same.
const TOLERANCE_PERCENT: u64 = 5;
/// A rail may take a slice without a look at the others if what is left would keep all rails as known busy for
/// so many times as long as it needs.
const REST_PLENTY: u64 = 2;

/// By what rails are chosen, side by side: all of them are looked at for every slice.
#[derive(Debug)]
struct Ranks {
    /// When each would be finished with the next slice; never, if it has no room any more.
    times: [Duration; PLAN_RAILS_MAX],
    /// When each last took one, and behind that, in the lowest bits, its row and one.
    turns: [u64; PLAN_RAILS_MAX],
}

/// Bits of a turn that say whose it is.
const ROW_BITS: u32 = 5;

const _: () = assert!(PLAN_RAILS_MAX < 1 << ROW_BITS);

impl Ranks {
    const NONE: Self = Self {
        times: [Duration::MAX; PLAN_RAILS_MAX],
        turns: [0; PLAN_RAILS_MAX],
    };

    fn set(&mut self, index: usize, time: Duration, used_at: Instant) {
        if let (Some(rank), Some(turn)) = (self.times.get_mut(index), self.turns.get_mut(index)) {
            *rank = time;
            *turn = used_at.as_nanos() << ROW_BITS | (index as u64 + 1);
        }
    }

    fn time(&self, index: usize) -> Duration {
        self.times.get(index).copied().unwrap_or(Duration::MAX)
    }

    /// The least time of the first `count`, and the first row with it.
    fn best(&self, count: usize) -> (usize, Duration) {
        let mut best = (0, Duration::MAX);
        for (index, time) in self.times.iter().take(count).enumerate() {
            if *time < best.1 {
                best = (index, *time);
            }
        }
        best
    }

    /// Of the first `count`, the one that has not been used for longest among those up to a time: the best one, else the
    /// first.
    fn least_recently_used(&self, count: usize, best: usize, limit: Duration) -> usize {
        // Before all others that were used at the same time.
        let mut least = self
            .turns
            .get(best)
            .map_or(0, |turn| turn >> ROW_BITS << ROW_BITS);
        for (time, turn) in self.times.iter().zip(&self.turns).take(count) {
            let turn = if *time <= limit { *turn } else { u64::MAX };
            least = least.min(turn);
        }
        match least & ((1 << ROW_BITS) - 1) {
            0 => best,
            row => row as usize - 1,
        }
    }
}

/// Rails with room for slices of one length, while one worker binds several in a row: `Spray`'s choice.
#[derive(Debug)]
pub struct Spots {
    rows: heapless::Vec<Row, PLAN_RAILS_MAX>,
    ranks: Ranks,
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
            ranks: Ranks::NONE,
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
    #[inline]
    pub fn push(&mut self, spot: Spot) {
        let index = self.rows.len();
        let row = Row::new(spot, self.length, self.line);
        let predicted = row.predicted();
        if self.rows.push(row).is_err() {
            return;
        }
        self.ranks.set(index, predicted, spot.used_at);
        let first = self.rows.first();
        self.tiers_differ |= first.is_some_and(|first| first.spot.tier != spot.tier);
        self.roomy |= 1 << index;
        let device = 1_u64.rotate_left(u32::from(spot.device.0));
        self.some_share_a_device |= self.devices & device != 0;
        self.devices |= device;
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
    /// `rate` is how fast all rails of the plan are together, as known from an earlier look; `rails` how many they are,
    /// those without room too; `look` looks at all of them but those with a bit (by position in the plan) in its
    /// argument. Gives an index for [`Self::get`] and [`Self::take`].
    pub fn choose(
        &mut self,
        unbound_bytes: u64,
        rate: Option<Rate>,
        rails: usize,
        look: impl FnOnce(u16) -> Look,
    ) -> Option<usize> {
        let (least, chosen, time) = if self.roomy.is_power_of_two() {
            let only = self.roomy.trailing_zeros() as usize;
            let time = self.ranks.time(only);
            (time, only, time)
        } else if self.roomy == 0 {
            return None;
        } else {
            let count = self.rows.len();
            let (best, least) = self.ranks.best(count);
            let chosen = if self.tiers_differ {
                self.least_recently_used(best, tolerated(least))
            } else {
                let limit = tolerated(least);
                self.ranks.least_recently_used(count, best, limit)
            };
            (least, chosen, self.ranks.time(chosen))
        };
        let plenty = rate.is_some_and(|rate| is_plenty(time, rate, unbound_bytes));
        // If all have room, none without it is any quicker.
        let all_have_room = self.rows.len() == rails && self.roomy == low_bits(rails);
        if self.look.is_some() || !plenty && !all_have_room {
            let seen = match self.look {
                Some(seen) => seen,
                None => *self.look.insert(look(self.roomy_positions())),
            };
            if !seen.lets_go(time, least, unbound_bytes) {
                return None;
            }
        }
        Some(chosen)
    }

    /// If only one rail has room and takes several slices in a row: that rail, and how many [`Self::choose`] would choose
    /// it for, one after the other and at most `slices_max`, as far as one question can tell. Not for just one.
    #[inline]
    pub fn run(
        &self,
        unbound_bytes: u64,
        rate: Option<Rate>,
        slices_max: u32,
    ) -> Option<(usize, Slices)> {
        if slices_max < 2 || !self.roomy.is_power_of_two() {
            return None;
        }
        self.lone_run(unbound_bytes, rate, slices_max)
    }

    fn lone_run(
        &self,
        unbound_bytes: u64,
        rate: Option<Rate>,
        slices_max: u32,
    ) -> Option<(usize, Slices)> {
        let index = self.roomy.trailing_zeros() as usize;
        let row = self.rows.get(index)?;
        let all = self.look.map_or(All::Believed(rate?), All::Seen);
        let slices = row.run(self.length, unbound_bytes, all, slices_max)?;
        (slices.count > 1).then_some((index, slices))
    }

    /// The rail that [`Self::choose`] chose.
    pub fn get(&self, index: usize) -> Option<&Spot> {
        self.rows.get(index).map(|row| &row.spot)
    }

    /// What [`Self::choose`] saw when it looked at all rails.
    pub const fn look(&self) -> Option<Look> {
        self.look
    }

    /// Among rails of the best one's tier up to a time, the one that has not been used for longest.
    #[cold]
    fn least_recently_used(&self, best: usize, limit: Duration) -> usize {
        let mut chosen = best;
        let used_at = |index: usize| self.ranks.turns.get(index).map(|turn| turn >> ROW_BITS);
        for index in 0..self.rows.len() {
            let is_good = self.ranks.time(index) <= limit && self.tier(index) == self.tier(best);
            if is_good && used_at(index) < used_at(chosen) {
                chosen = index;
            }
        }
        chosen
    }

    fn tier(&self, index: usize) -> Option<u8> {
        self.get(index).map(|spot| spot.tier)
    }

    /// Slices were bound to a rail of these, with `ahead_bytes` in flight there before them.
    pub fn take(&mut self, now: Instant, index: usize, slices: Slices, ahead_bytes: u64) {
        let Some(row) = self.rows.get_mut(index) else {
            return;
        };
        let has_room = row.take(slices, self.length, ahead_bytes);
        let predicted = row.predicted();
        let bytes = slices.bytes();
        if let Some(look) = &mut self.look {
            look.inflight_bytes += bytes;
            if !has_room {
                look.least = look.least.min(predicted);
            }
        }
        if has_room {
            self.ranks.set(index, predicted, now);
        } else {
            self.roomy &= !(1 << index);
            self.ranks.set(index, Duration::MAX, now);
        }
        if self.some_share_a_device {
            let device = row.spot.device;
            self.share_device(index, device, bytes);
        }
    }

    /// Other rails of a device wait for what one of them took.
    fn share_device(&mut self, taker: usize, device: DeviceId, bytes: u64) {
        // Those without room wait too.
        self.look = None;
        let rows = self.rows.iter_mut().zip(&mut self.ranks.times).enumerate();
        for (index, (row, time)) in rows {
            if row.spot.device == device && index != taker {
                row.spot.load.device_bytes += bytes;
                *row = Row {
                    left_bytes: row.left_bytes,
                    ..Row::new(row.spot, self.length, self.line)
                };
                if self.roomy & 1 << index != 0 {
                    *time = row.predicted();
                }
            }
        }
    }
}

/// So many bits from the lowest on.
const fn low_bits(count: usize) -> u16 {
    ((1_u32 << (count & 31)) - 1) as u16
}

/// Whether a slice that ends after `time` may go without a look at the other rails.
pub(crate) fn is_plenty(time: Duration, rate: Rate, rest_bytes: u64) -> bool {
    time.times(REST_PLENTY) <= rate.time_for(rest_bytes)
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

    fn slices(count: u32) -> Slices {
        Slices {
            length: SLICE,
            count,
        }
    }

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
        let chosen = spots.choose(unbound, rate, rails.len(), |roomy| look(rails, roomy))?;
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
        // The bound that is found quicker never says anything else than the question it stands for.
        fn the_quick_bound_says_what_all_that_is_asked_says(
            loads: (u64, u64, u64, u64), window: u32, unbound: u32, works: u8, length: u32, slices_max: u8
        ) -> bool {
            let (rate, device_rate, queued, others) = loads;
            let gigs = |bytes: u64| Rate::from_bytes_per_sec(bytes % (40 * GB) + 1);
            let inflight_bytes = queued % (4 << 20);
            let load = Load {
                rate: gigs(rate),
                delay_base: Duration::from_micros(3),
                inflight_bytes,
                device_bytes: inflight_bytes + others % (4 << 20) * (others % 2),
                device_rate: gigs(device_rate),
            };
            let (spot, _) = rail(0, 1, 0);
            let spot = Spot {
                works: u32::from(works),
                own_bytes: inflight_bytes,
                window_bytes: u64::from(window),
                slice_bytes: 1,
                load,
                ..spot
            };
            let (length, slices_max) = (length % (2 * SLICE) + 1, u32::from(slices_max));
            let (unbound, all) = (u64::from(unbound) % (32 << 20), gigs(device_rate ^ rate));
            match spot.plenty_run(ALONE, length, unbound, all, slices_max) {
                None => true,
                quick => Lone::new(spot, ALONE, length).and_then(|lone| lone.run(unbound, all, slices_max)) == quick,
            }
        }

        /// Slices in a row go where each would have gone that was asked for alone, and leave the same behind.
        fn a_run_is_what_each_alone_would_choose(rails: Vec<(u8, u8, bool)>, rest: u32, rate: u8, known: bool, unbound: u32) -> bool {
            let rails: Vec<Seen> = (0..).zip(rails.iter().take(4)).map(|(i, (rate, queued, crowds))| {
                let seen = rail(i, 1 << (rate % 6), u64::from(*queued % 8));
                let (spot, _) = if *crowds { crowded(seen, 1 << 20) } else { seen };
                let spot = Spot { window_bytes: 12 * u64::from(SLICE), ..spot };
                (spot, i == 0 && spot.room().takes(SLICE, ALONE))
            }).collect();
            let rate = known.then(|| Rate::from_bytes_per_sec((1 + u64::from(rate)) * GB));
            let (mut together, mut alone) = (spots(&rails, ALONE), spots(&rails, ALONE));
            let mut unbound = u64::from(unbound).max(u64::from(SLICE) * 16);
            let now = Instant::from_nanos(1_000);
            for most in 2..2 + rest % 8 {
                let Some((index, Slices { count, .. })) = together.run(unbound, rate, most) else {
                    return choose(&mut together, &rails, unbound, rate) == choose(&mut alone, &rails, unbound, rate);
                };
                let ahead = together.get(index).map_or(0, |spot| spot.load.inflight_bytes);
                together.take(now, index, slices(count), ahead);
                for taken in 0..u64::from(count) {
                    if alone.choose(unbound, rate, rails.len(), |roomy| look(&rails, roomy)) != Some(index) { return false }
                    alone.take(now, index, slices(1), ahead + taken * u64::from(SLICE));
                    unbound -= u64::from(SLICE);
                }
                if count > most || together.get(index) != alone.get(index) || together.is_empty() != alone.is_empty() { return false }
            }
            true
        }

        /// Binding many in a row is the same as looking at everything anew for each.
        fn remembers_what_a_new_look_would_show(rails: Vec<(u8, u8, bool, u8, u8)>, many: u8, rest: u32) -> bool {
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
            let mut unbound = u64::from(rest) + u64::from(many) * u64::from(SLICE);
            let mut remembered = spots(&rails, ALONE);
            for step in 0..many {
                let fresh = choose(&mut spots(&rails, ALONE), &rails, unbound, None);
                if choose(&mut remembered, &rails, unbound, None) != fresh { return false }
                let (Some(chosen), Some(index)) = (fresh, remembered.rows.iter().position(|row| Some(row.spot.rail.0) == fresh)) else {
                    return fresh.is_none();
                };
                let now = Instant::from_nanos(1_000 + u64::from(step));
                let (spot, room) = &mut rails[usize::from(chosen)];
                remembered.take(now, index, slices(1), spot.load.inflight_bytes);
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
