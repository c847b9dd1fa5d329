//! How `Spray` chooses: by predicted completion, among rails that have room.
//!
//! There is one question: how many slices in a row a rail takes now, given what is known of it and what is needed. All
//! that a worker binds goes through [`choose`] and [`Spot::run`].
//!
//! Source: TENT (arXiv:2604.00368v1) eq. 1 for the prediction.

use super::NIL;
use crate::slice;
use crate::time::{Duration, Instant};
use crate::units::{DeviceId, RailId, Rate};

/// The workers that wait for room on rails, as one of them sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Line {
    /// How many do.
    pub waiting: u64,
    /// Nobody has waited longer than the one that asks.
    pub is_first: bool,
    /// What it asks for is to find room above the window too.
    pub is_urgent: bool,
}

impl Line {
    /// Of the only worker, for what is not urgent.
    pub const ALONE: Self = Self {
        waiting: 0,
        is_first: true,
        is_urgent: false,
    };
}

/// How much is in flight on a rail and on its device, and how much may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes in flight, of all workers.
    pub inflight_bytes: u64,
    /// And of the one that asks.
    pub own_bytes: u64,
    /// The rail's window.
    pub window_bytes: u64,
    /// Bytes in flight on the device, of all workers and to all peers.
    pub device_bytes: u64,
    /// How many of those there may be, of what is not urgent.
    pub device_limit: u64,
    /// Something urgent has lately taken the device, and may come again: what is not urgent leaves room there.
    pub is_kept: bool,
}

impl Room {
    /// Bytes that the window still has room for: whoever has waited longest may use all of it, the others share. What is
    /// urgent goes above it, and is not held up by what others have on the device.
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
        let all = ceiling.saturating_sub(self.inflight_bytes);
        // An idle lane has its turn on the device, unless that is kept: so all peers and workers go on.
        let has_turn = line.is_urgent || self.own_bytes == 0 && !self.is_kept;
        match has_turn {
            true => own.min(all),
            false => own.min(all).min(self.device_left()),
        }
    }

    fn device_left(&self) -> u64 {
        self.device_limit.saturating_sub(self.device_bytes)
    }

    /// Whether an idle lane waits for what others have on its device.
    pub fn is_crowded(&self) -> bool {
        self.is_kept && self.device_bytes > 0 && self.device_left() == 0
    }

    /// Whether it takes `length` bytes. An empty lane may always have one slice while the rail is not far over
    /// its window, but on a device that is kept all take turns.
    pub fn takes(&self, length: u32, line: Line) -> bool {
        let (own, all, window) = (self.own_bytes, self.inflight_bytes, self.window_bytes);
        let is_idle = own == 0 && all < 2 * window || all == 0;
        let has_device = line.is_urgent || !self.is_crowded();
        u64::from(length) <= self.left_bytes(length, line) || is_idle && has_device
    }

    /// Slices of `length` bytes that it takes in a row.
    fn slices(&self, length: u32, line: Line) -> u64 {
        match self.left_bytes(length, line) / u64::from(length.max(1)) {
            0 => u64::from(self.takes(length, line)),
            room => room,
        }
    }
}

/// What predicting needs to know of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Its learned rate.
    pub rate: Rate,
    /// Its base delay β0.
    pub delay_base: Duration,
    /// How long its device took for those bytes that are in flight and have left it: nothing waits for them.
    pub sent: Duration,
    /// Bytes in flight on it, of all workers.
    pub inflight_bytes: u64,
    /// Bytes in flight on its device, for all peers, and those of other processes, as far as they count.
    pub device_bytes: u64,
    /// The rate of its device.
    pub device_rate: Rate,
    /// How long a slice waits at the peer's device, if others end at it, too.
    pub far_wait: Duration,
}

impl Load {
    /// Predicted time for the rail to finish so many bytes more: β0 plus the largest of its own queue and those of the devices at
    /// both ends, plus the bytes themselves. What has left a device is no queue: it is on its way, as these bytes will be for β0.
    /// A device is at least as fast as any of its rails, whatever slow peers have made it look like.
    pub fn predicted(&self, bytes: u64) -> Duration {
        let mut wait = self.rate.time_for(self.inflight_bytes);
        if self.device_bytes != self.inflight_bytes {
            let rate = self.device_rate.max(self.rate);
            wait = wait.max(rate.time_for(self.device_bytes));
        }
        let wait = wait.minus(self.sent).max(self.far_wait);
        self.delay_base + wait + self.rate.time_for(bytes)
    }
}

/// A healthy rail with an open lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The rail.
    pub rail: RailId,
    /// Distance from the memory, 0 nearest.
    pub tier: u8,
    /// The local device it runs on.
    pub device: DeviceId,
    /// The number of the peer's device that it ends at, if others do as well; the last number: none do.
    pub far: u32,
    /// Works that its lane still takes.
    pub works: u32,
    /// Bytes of the longest work that it takes.
    pub work_bytes_max: u32,
    /// How long slices on it should be.
    pub slice_bytes: u32,
    /// How short they may be where a request of few slices is cut for several rails.
    pub part_bytes: u32,
    /// When it last took a slice.
    pub used_at: Instant,
    /// How full it is.
    pub room: Room,
    /// What predicting needs to know.
    pub load: Load,
}

/// What is to be bound.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Bytes left of the request; at least 1.
    pub rest_bytes: u64,
    /// And of all that goes to the same peer.
    pub unbound_bytes: u64,
    /// Slices that there is a turn for; at least 1.
    pub slices_max: u32,
    /// The longest slice but for rails that want longer ones.
    pub slice_bytes: u32,
    /// And the longest for those: what [`share`] says, or what is made of small requests in a row, if that is longer.
    pub share_bytes: u32,
    /// When all that is left could have ended on the idle rails, if that is little: see [`end_of_few`].
    pub end: Option<Duration>,
    /// Who else waits.
    pub line: Line,
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

/// All rails of a request, those without room too, for who has to look at them.
pub trait Look {
    /// Bytes in flight on all, of all workers.
    fn inflight_bytes(&self) -> u64;
    /// Those without room for a slice of so many bytes, who would end one sooner than in a time.
    fn sooner(&self, length: u32, than: Duration) -> Sooner;
}

/// Rails without room that would end a slice sooner than another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sooner {
    /// The least predicted time of all rails without room, sooner or not; the longest there is: all have room.
    pub least: Duration,
    /// How fast the sooner ones are together, in bytes per second.
    pub bytes_per_sec: u64,
}

impl Sooner {
    /// Of rails without room.
    pub fn of(full: impl Iterator<Item = Load>, length: u32, than: Duration) -> Self {
        let none = Self {
            least: Duration::MAX,
            bytes_per_sec: 0,
        };
        full.fold(none, |sum, load| {
            let time = load.predicted(length.into());
            let rate = match time < than {
                true => load.rate.bytes_per_sec(),
                false => 0,
            };
            Self {
                least: sum.least.min(time),
                bytes_per_sec: sum.bytes_per_sec.saturating_add(rate),
            }
        })
    }
}

/// Predictions this close (in parts of 100 above the least) are the same.
const TOLERANCE_PERCENT: u64 = 5;
/// A rail may take slices without a look at the others if what is left would keep all rails busy for so many times as long
/// as it needs.
const REST_PLENTY: u64 = 2;
/// Parts of a request that is cut for several rails, and slices that are longer so that few works fill a window, are whole multiples of this many bytes.
const PART_STEP: u64 = 4 * 1024;
const FILLING_STEP: u64 = 64 * 1024;
/// And the latter no longer than this.
const FILLING_MAX: u64 = 1 << 20;
/// Of what is left of a request, a slice longer than usual takes at most one part in so many for each rail.
const SPREAD: u64 = 2;

fn tolerated(time: Duration) -> Duration {
    time.times(100 + TOLERANCE_PERCENT).divided_by(100)
}

/// Of what is left of a request, what one slice takes at most, in whole usual slices: the other rails are to even out.
pub fn share(rest_bytes: u64, slice_bytes: u32, rails: u32) -> u32 {
    // One rail alone has nothing to even out with.
    let parts = match u64::from(rails) {
        0 | 1 => 1,
        rails => SPREAD * rails,
    };
    let step = u64::from(slice_bytes.max(1));
    let part = rest_bytes / parts.max(1) / step * step;
    u32::try_from(part).unwrap_or(u32::MAX)
}

/// How long slices are by which all that is left goes at once, on these rails' lanes.
pub fn at_once(spots: &[Spot], rest_bytes: u64) -> u32 {
    let works: u64 = spots.iter().map(|spot| u64::from(spot.works)).sum();
    let each = rest_bytes.div_ceil(works.max(1));
    u32::try_from(each.next_multiple_of(PART_STEP)).unwrap_or(u32::MAX)
}

/// How long slices on a rail are whose lane takes so many works: as long as it wants, and so long that these fill its window.
pub fn filling(slice_bytes: u32, window_bytes: u64, works_max: u32) -> u32 {
    let works = u64::from(works_max.max(1));
    if window_bytes <= works * u64::from(slice_bytes) {
        return slice_bytes;
    }
    let each = (window_bytes / works).next_multiple_of(FILLING_STEP);
    u32::try_from(each.min(FILLING_MAX)).map_or(slice_bytes, |each| each.max(slice_bytes))
}

impl Spot {
    /// How long the next slice on it is: as long as the rail wants, and no longer than its lane takes.
    fn length(&self, need: &Need) -> u32 {
        let wanted = match need.end {
            Some(end) if self.is_idle() => self.slice_bytes.min(self.part(end)),
            _ => self.slice_bytes,
        };
        let length = match wanted > need.slice_bytes {
            true => self.lengthened(wanted, need),
            false => wanted,
        };
        slice::next_length(need.rest_bytes, length).min(self.work_bytes_max)
    }

    /// Whether nothing is in flight on it, of any worker.
    fn is_idle(&self) -> bool {
        self.load.inflight_bytes == 0
    }

    /// So many bytes it carries by a time, if it begins now.
    fn part(&self, end: Duration) -> u32 {
        let bytes = self.load.rate.bytes_in(end.minus(self.load.delay_base));
        let bytes = bytes
            .min(u64::from(u32::MAX) / 2)
            .next_multiple_of(PART_STEP);
        u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .max(self.part_bytes)
    }

    /// The same on a rail that wants longer ones than usual, if there is room for that.
    fn lengthened(&self, wanted: u32, need: &Need) -> u32 {
        let longer = need.share_bytes.min(wanted).max(need.slice_bytes);
        match self.room.takes(longer.min(self.work_bytes_max), need.line) {
            true => longer,
            false => need.slice_bytes,
        }
    }

    /// The longest run of slices that it has room for. `None`: it has room for none.
    fn most(&self, need: &Need) -> Option<Slices> {
        let length = self.length(need);
        let room = self.room.slices(length, need.line);
        // The last slice of a request may be of another length.
        let (bytes, each) = (need.rest_bytes, u64::from(length.max(1)));
        let whole = bytes / each - u64::from(bytes % each != 0 && bytes > each);
        let count = room
            .min(whole.max(1))
            .min(u64::from(self.works.min(need.slices_max))) as u32;
        debug_assert!(
            length > 0 && u64::from(length) * u64::from(count) <= need.rest_bytes,
            "{count} slices of {length} bytes, of {} that are left",
            need.rest_bytes
        );
        (count > 0).then_some(Slices { length, count })
    }

    /// Whether other rails as near, if they were open, would make a request of so many bytes noticeably shorter: it is long enough to
    /// be cut, and its bytes take at least half as long as what comes on top, in the mean. Where that varies, the last of several
    /// parts is later than a whole one.
    pub fn wants_help(&self, bytes: u64, delay_mean: Duration) -> bool {
        let own = self.load.rate.time_for(bytes);
        bytes >= 2 * u64::from(self.part_bytes) && own.times(2) >= delay_mean
    }

    /// Whether it has room for a slice.
    pub fn takes(&self, length: u32, line: Line) -> bool {
        self.works > 0 && self.room.takes(length, line)
    }

    /// When it would be finished with one more slice; never, if it has no room for one.
    pub fn time(&self, need: &Need) -> Duration {
        let length = self.length(need);
        match self.takes(length, need.line) {
            true => self.load.predicted(u64::from(length)),
            false => Duration::MAX,
        }
    }

    /// How many slices of what is needed it takes now, in a row. `None`: the next one waits, for room, or for a rail without
    /// room that would end it sooner even so. It does not wait for those if it ends one before all that is left would end
    /// on all rails together, or if they are busy for twice as long with what is left.
    ///
    /// `until` is when another rail with room would end a slice: so long is it this one's turn. `rate` is how fast all rails
    /// of the request are together; `all` are those.
    pub fn run(&self, need: &Need, until: Duration, rate: Rate, all: impl Look) -> Option<Slices> {
        debug_assert!(need.rest_bytes > 0 && need.slices_max > 0, "{need:?}");
        let most = self.most(need)?;
        let length = u64::from(most.length);
        let first = self.load.predicted(length);
        let each = self.load.rate.time_for(length).as_nanos().max(1);
        let by = |end: Duration| {
            let more = end.minus(first).as_nanos() / each;
            let count = u32::try_from(more + 1).unwrap_or(u32::MAX);
            Slices {
                count: count.min(most.count),
                ..most
            }
        };
        let turn = match until {
            Duration::MAX => most,
            until => by(until),
        };
        let rest = need.unbound_bytes.saturating_sub(turn.bytes());
        let time = self.load.predicted(turn.bytes());
        if time.times(REST_PLENTY) <= rate.time_for(rest) {
            return Some(turn);
        }
        let bytes = all.inflight_bytes().saturating_add(need.unbound_bytes);
        let end = rate.time_for(bytes);
        if first <= end {
            return Some(by(end.min(until)));
        }
        // When the sooner ones would be through with half of all that is left, without it and without those that are as late.
        let sooner = all.sooner(most.length, first);
        let rate = Rate::from_bytes_per_sec(sooner.bytes_per_sec);
        let half = rate.time_for(bytes).divided_by(REST_PLENTY);
        if first > half && first > tolerated(sooner.least) {
            return None;
        }
        Some(by(half.max(end).min(until)))
    }

    /// Slices were bound to it, with `ahead_bytes` in flight there before them.
    pub fn take(&mut self, now: Instant, slices: Slices, ahead_bytes: u64) {
        debug_assert!(slices.count > 0 && slices.count <= self.works, "{slices:?}");
        debug_assert!(
            slices.length <= self.work_bytes_max,
            "{slices:?}, and its lane takes {} bytes",
            self.work_bytes_max
        );
        let bytes = slices.bytes();
        self.used_at = now;
        self.works = self.works.saturating_sub(slices.count);
        self.room.own_bytes += bytes;
        self.room.inflight_bytes = ahead_bytes + bytes;
        self.load.inflight_bytes = ahead_bytes + bytes;
        self.share_device(bytes);
    }

    /// Bytes were bound to a rail on its device.
    pub fn share_device(&mut self, bytes: u64) {
        self.room.device_bytes += bytes;
        self.load.device_bytes += bytes;
    }

    /// Bytes were bound to a rail that ends at this device of the peer, be it this one.
    pub fn share_far(&mut self, far: u32, bytes: u64) {
        if far == self.far && self.has_far() {
            let rate = self.load.device_rate.max(self.load.rate);
            self.load.far_wait += rate.time_for(bytes);
        }
    }

    /// Whether others end at the same device of the peer.
    pub fn has_far(&self) -> bool {
        self.far != NIL
    }
}

/// When all that is left could have ended on the idle rails, if it is so little that they would not all get a slice of it; each
/// is to get a part then that ends at that time, and one that is farther away than that none.
pub fn end_of_few(spots: &[Spot], need: &Need) -> Option<Duration> {
    let enough = spots.len() as u64 * u64::from(need.slice_bytes);
    // Rails of one transport have parts alike; what is no longer than one is not cut.
    let is_whole = |spot: &Spot| need.rest_bytes <= u64::from(spot.part_bytes);
    if spots.len() < 2 || need.unbound_bytes >= enough || spots.first().is_some_and(is_whole) {
        return None;
    }
    let idle = || spots.iter().filter(|spot| spot.is_idle());
    if need.unbound_bytes >= idle().count() as u64 * u64::from(need.slice_bytes) {
        return None;
    }
    let mut end = Duration::MAX;
    loop {
        // By the end each of these has passed what it passes in all that time, but for its base delay.
        let near = idle().map(|spot| &spot.load);
        let near = near.filter(|load| load.delay_base < end);
        let (mut bytes, mut bytes_per_sec) = (need.unbound_bytes, 0_u64);
        let mut farthest = Duration::ZERO;
        for load in near {
            bytes = bytes.saturating_add(load.rate.bytes_in(load.delay_base));
            bytes_per_sec = bytes_per_sec.saturating_add(load.rate.bytes_per_sec());
            farthest = farthest.max(load.delay_base);
        }
        end = end.min(Rate::from_bytes_per_sec(bytes_per_sec).time_for(bytes));
        if farthest < end || bytes_per_sec == 0 {
            return Some(end);
        }
    }
}

/// The rail of the least predicted time among those with room, and the least of the others; of those of its tier within
/// 5 % it is the one that has not been used for longest, and of several used at one instant the one that ends first. Gives its
/// position.
///
/// `times` is when each would be finished with one more slice, by [`Spot::time`].
pub fn choose(spots: &[Spot], times: &[Duration]) -> Option<(usize, Duration)> {
    debug_assert_eq!(spots.len(), times.len(), "a time for each rail");
    let (mut best, mut least, mut second) = (0, Duration::MAX, Duration::MAX);
    for (index, time) in times.iter().copied().enumerate() {
        if time < least {
            (best, least, second) = (index, time, least);
        } else {
            second = second.min(time);
        }
    }
    if least == Duration::MAX {
        return None;
    }
    let (tier, limit) = (spots.get(best)?.tier, tolerated(least));
    let rows = times.iter().zip(spots).enumerate();
    let alike = rows.filter(|(_, (time, spot))| **time <= limit && spot.tier == tier);
    let (chosen, _) = alike.min_by_key(|(_, (time, spot))| (spot.used_at, **time))?;
    let until = if chosen == best { second } else { least };
    Some((chosen, until))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::plan::PLAN_RAILS_MAX;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    const SLICE: u32 = 65_536;
    const GB: u64 = 1_000_000_000;

    /// A rail, and whether it has room.
    type Seen = (Spot, bool);

    /// A rail of `rate` GB/s with `queued` slices in flight, and room for many.
    fn rail(number: u16, rate: u64, queued: u64) -> Seen {
        let bytes = queued * u64::from(SLICE);
        let rate = Rate::from_bytes_per_sec(rate * GB);
        let room = Room {
            inflight_bytes: bytes,
            own_bytes: bytes,
            window_bytes: 1 << 40,
            device_bytes: 0,
            device_limit: u64::MAX,
            is_kept: false,
        };
        let load = Load {
            rate,
            delay_base: Duration::from_micros(3),
            sent: Duration::ZERO,
            inflight_bytes: bytes,
            device_bytes: bytes,
            device_rate: rate,
            far_wait: Duration::ZERO,
        };
        let spot = Spot {
            rail: RailId(number),
            tier: 0,
            device: DeviceId(number),
            far: NIL,
            works: 64,
            work_bytes_max: u32::MAX,
            slice_bytes: SLICE,
            part_bytes: 8 * 1024,
            used_at: Instant::from_nanos(u64::from(number)),
            room,
            load,
        };
        (spot, true)
    }

    impl Look for &[Seen] {
        fn inflight_bytes(&self) -> u64 {
            self.iter().map(|(spot, _)| spot.load.inflight_bytes).sum()
        }

        fn sooner(&self, length: u32, than: Duration) -> Sooner {
            let full = self.iter().filter(|(_, room)| !room);
            Sooner::of(full.map(|(spot, _)| spot.load), length, than)
        }
    }

    fn full((spot, _): Seen) -> Seen {
        (spot, false)
    }

    fn far((spot, room): Seen) -> Seen {
        (Spot { tier: 1, ..spot }, room)
    }

    /// With more in flight on its device than its own.
    fn crowded((mut spot, room): Seen, bytes: u64) -> Seen {
        spot.load.device_bytes = bytes;
        (spot, room)
    }

    fn need(bytes: u64) -> Need {
        Need {
            rest_bytes: bytes,
            unbound_bytes: bytes,
            slices_max: 64,
            slice_bytes: SLICE,
            end: None,
            share_bytes: share(bytes, SLICE, 4),
            line: Line::ALONE,
        }
    }

    /// Which rail takes what is needed, and how much, as the open rails ask.
    fn chosen(rails: &[Seen], need: &Need) -> Option<(u16, Slices)> {
        let spots: Vec<Spot> = rails
            .iter()
            .filter(|(_, room)| *room)
            .map(|(spot, _)| *spot)
            .collect();
        let need = &Need {
            end: end_of_few(&spots, need),
            ..*need
        };
        let times: Vec<Duration> = spots.iter().map(|spot| spot.time(need)).collect();
        let (index, until) = choose(&spots, &times)?;
        let rates = rails.iter().map(|(spot, _)| spot.load.rate.bytes_per_sec());
        let rate = Rate::from_bytes_per_sec(rates.sum());
        let slices = spots[index].run(need, until, rate, rails)?;
        Some((spots[index].rail.0, slices))
    }

    #[test]
    fn takes_the_rail_that_ends_first_or_waits() {
        const MUCH: u64 = 1 << 30;
        let just_this = u64::from(SLICE);
        let busy_device = crowded(rail(0, 25, 0), 50_000 * 25);
        // (name, rails, bytes left, rail)
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
        for (name, rails, bytes, rail) in cases {
            let chosen = chosen(&rails, &need(bytes)).map(|(rail, _)| rail);
            assert_eq!(chosen, rail, "{name}");
        }
    }

    #[test]
    fn of_rails_used_at_one_instant_the_one_that_ends_first_is_next() {
        // All are a millisecond away, so that one slice more is alike; the first has had the most.
        let rails = [3, 1, 2].map(|queued| {
            let (mut spot, room) = rail(queued, 25, queued.into());
            spot.load.delay_base = Duration::from_millis(1);
            spot.used_at = Instant::from_nanos(7);
            (spot, room)
        });
        let chosen = chosen(&rails, &need(1 << 30)).map(|(rail, _)| rail);
        assert_eq!(chosen, Some(1));
    }

    #[test]
    fn a_far_rail_takes_its_part_of_what_keeps_the_near_one_busy_for_twice_as_long() {
        // A near one without room, and three of 1 ms, each of 12 GB/s: so much is 2.4 ms of the near one, and 0.6 of all.
        let far = |number| {
            let (mut spot, room) = rail(number, 12, 0);
            spot.load.delay_base = Duration::from_micros(1_000);
            (spot, room)
        };
        let rails = [full(rail(0, 12, 1)), far(1), far(2), far(3)];
        for (micros, taken) in [(2_400, true), (1_800, false)] {
            let chosen = chosen(&rails, &need(micros * 12_000));
            assert_eq!(chosen.is_some(), taken, "{micros}: {chosen:?}");
        }
    }

    #[test]
    fn a_window_is_shared_by_those_who_wait() {
        const ALONE: Line = Line::ALONE;
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
            let (spot, _) = rail(0, 1, 0);
            let room = Room {
                inflight_bytes,
                own_bytes,
                window_bytes,
                ..spot.room
            };
            assert_eq!(room.takes(100, line), takes, "{name}");
        }
    }

    #[test]
    fn a_device_is_shared_and_kept() {
        let urgent = Line {
            is_urgent: true,
            ..Line::ALONE
        };
        // (name, own bytes, on the device, its limit, kept, line, takes 100 bytes)
        let cases = [
            (
                "room on the device",
                100,
                300,
                400,
                false,
                Line::ALONE,
                true,
            ),
            ("none", 100, 301, 400, false, Line::ALONE, false),
            (
                "an idle lane goes on",
                0,
                900,
                400,
                false,
                Line::ALONE,
                true,
            ),
            (
                "but waits where something urgent may come",
                0,
                400,
                400,
                true,
                Line::ALONE,
                false,
            ),
            ("unless nothing is there", 0, 0, 50, true, Line::ALONE, true),
            (
                "what is urgent does not wait for others",
                100,
                900,
                400,
                true,
                urgent,
                true,
            ),
        ];
        for (name, own_bytes, device_bytes, device_limit, is_kept, line, takes) in cases {
            let room = Room {
                inflight_bytes: own_bytes,
                own_bytes,
                window_bytes: 1 << 20,
                device_bytes,
                device_limit,
                is_kept,
            };
            assert_eq!(room.takes(100, line), takes, "{name}");
        }
    }

    #[test]
    fn slices_are_as_long_as_rails_and_lanes_want_them() {
        let (spot, _) = rail(0, 12, 0);
        let deep = |works_max, window_bytes| Spot {
            slice_bytes: filling(SLICE, window_bytes, works_max),
            room: Room {
                window_bytes,
                ..spot.room
            },
            ..spot
        };
        let much = need(64 << 20);
        let alone = Need {
            share_bytes: share(much.rest_bytes, SLICE, 1),
            ..much
        };
        // (name, rail, need, KiB)
        let cases = [
            ("many works", deep(256, 1 << 20), alone, 64),
            ("few works fill the window", deep(4, 1 << 20), alone, 256),
            ("in whole steps", deep(4, 1_000_000), alone, 256),
            ("up to 1 MiB", deep(1, 1 << 24), alone, 1024),
            (
                "no more than a share",
                deep(1, 1 << 24),
                Need {
                    rest_bytes: 8 << 20,
                    share_bytes: share(8 << 20, SLICE, 16),
                    ..much
                },
                256,
            ),
        ];
        for (name, spot, need, kib) in cases {
            assert_eq!(spot.length(&need), kib * 1024, "{name}");
        }
    }

    #[test]
    fn what_works_that_are_left_can_take_at_once_is_as_long_as_that_needs() {
        let rails = [2, 2, 2, 1].map(|works| Spot {
            works,
            ..rail(0, 12, 0).0
        });
        // (bytes left, length of each)
        for (bytes, length) in [(1, 4_096), (1_168_642, 167_936), (u64::MAX, u32::MAX)] {
            assert_eq!(at_once(&rails, bytes), length, "{bytes}");
        }
        assert_eq!(at_once(&[], 5), 4_096);
    }

    #[test]
    fn only_idle_rails_get_parts_of_few_slices() {
        // The end of a long request, cut for busy rails too, lost its place among other workers' slices.
        let ((idle, _), (busy, _)) = (rail(0, 12, 0), rail(1, 12, 2));
        let few = need(u64::from(SLICE));
        assert_eq!(end_of_few(&[busy, busy], &few), None);
        let end = end_of_few(&[idle, idle, busy], &few);
        let half = idle.load.rate.time_for(u64::from(SLICE) / 2);
        let early = end.map(|end| end.minus(idle.load.delay_base));
        assert!(
            early.is_some_and(|span| span.minus(half) < Duration::from_nanos(10) && half <= span),
            "{end:?}"
        );
        let need = Need { end, ..few };
        assert_eq!(idle.length(&need), SLICE / 2);
        assert_eq!(busy.length(&need), SLICE);
    }

    #[test]
    fn parts_end_at_the_same_time_however_far_the_rails_are() {
        // (delays in us, bytes, of the nearest one): 12 KiB take 1.024 us.
        let cases = [
            ([3, 3], 48 * 1024, 24 * 1024),
            ([3, 4], 48 * 1024, 32 * 1024),
            ([3, 5], 48 * 1024, 36 * 1024),
            ([3, 1_000], 48 * 1024, 48 * 1024),
        ];
        for (delays, bytes, nearest) in cases {
            let mut rails = [rail(0, 12, 0), rail(1, 12, 0)];
            for ((spot, _), micros) in rails.iter_mut().zip(delays) {
                spot.load.delay_base = Duration::from_micros(micros);
            }
            let (number, slices) = chosen(&rails, &need(bytes)).expect("a rail");
            assert_eq!((number, slices.bytes()), (0, nearest), "{delays:?}");
        }
    }

    quickcheck! {
        /// Whatever rails look like, what is left goes somewhere if all of them are idle; and a run is of what there is.
        fn idle_rails_take_all_that_is_left(rails: Vec<(u8, u8, bool)>, bytes: u32, turn: u8) -> bool {
            let rails: Vec<Seen> = (0..).zip(rails.iter().take(PLAN_RAILS_MAX)).map(|(number, (rate, tier, shallow))| {
                let (spot, room) = rail(number, 1 + u64::from(rate % 50), 0);
                let works = if *shallow { 2 } else { 256 };
                let slice_bytes = filling(SLICE, spot.room.window_bytes, works);
                (Spot { tier: tier % 3, slice_bytes, works, ..spot }, room)
            }).collect();
            let share_bytes = share(u64::from(bytes) + 1, SLICE, rails.len() as u32);
            let need = Need { slices_max: 1 + u32::from(turn % 64), share_bytes, ..need(u64::from(bytes) + 1) };
            match chosen(&rails, &need) {
                None => rails.is_empty(),
                Some((_, slices)) => slices.count >= 1 && slices.length >= 1
                    && slices.bytes() <= need.rest_bytes && slices.count <= need.slices_max,
            }
        }

        /// A request of less than a slice for each of several idle rails of one speed is cut for all of them.
        fn a_request_of_few_slices_is_cut_for_all_rails(count: u8, bytes: u16) -> bool {
            let count = 2 + u16::from(count % 7);
            let rails: Vec<Seen> = (0..count).map(|number| rail(number, 12, 0)).collect();
            let bytes = u64::from(bytes) + u64::from(SLICE);
            let longest = bytes.div_ceil(u64::from(count)).max(8 * 1024) + 4096;
            match bytes < u64::from(count) * u64::from(SLICE) {
                true => chosen(&rails, &need(bytes)).is_some_and(|(_, slices)| slices.bytes() <= longest * 5 / 4),
                false => true,
            }
        }
    }
}
