//! How fast closed loops can go round: a batch waits for the slowest of its parts, and the next one for it.
//!
//! Batches of a class that all take the same time T: of each one, a rail carries at most what passes it in T less the
//! rail's delay, in whole slices. So a far rail counts only as far as batches last longer than its delay.

use polyrail_core::work::Op;

use super::classes::Class;
use super::flow::Flow;
use crate::setup::Setup;

/// Requests are not cut into smaller parts than this, so that their cost stays small.
const PART_BYTES: u64 = 8_192;
/// No slice is longer.
const SLICE_BYTES_MAX: u64 = 1 << 20;
const NS_PER_SEC: f64 = 1e9;
/// No batch takes longer, an hour.
const TURN_NS_MAX: u64 = 3_600_000_000_000;

/// Routes of one delay.
#[derive(Clone, Debug)]
struct Level {
    /// One of them.
    route: usize,
    /// What they add to those of shorter delays, in bytes per nanosecond.
    rate: f64,
    /// Each of them, and what it passes if nothing else does.
    own: Vec<(usize, f64)>,
}

/// The turns of a class over one transport in one interval.
pub(super) struct Turns<'a> {
    setup: &'a Setup,
    class: &'a Class,
    levels: Vec<Level>,
}

impl<'a> Turns<'a> {
    /// Over these routes.
    pub(super) fn new(
        setup: &'a Setup,
        class: &'a Class,
        flow: Flow<'_>,
        mut routes: Vec<usize>,
    ) -> Self {
        let mut turns = Self {
            setup,
            class,
            levels: Vec::new(),
        };
        routes.sort_by_key(|route| setup.routes[*route].delay_ns);
        let mut before = 0.0;
        let base = |route: &usize| setup.routes[*route].delay_ns;
        let mut end = 0;
        for group in routes.chunk_by(|a, b| base(a) == base(b)) {
            end += group.len();
            let most = turns.lane_rate(group[0]);
            let rate_of = |routes: &[usize]| flow.together(routes, most) as f64 / NS_PER_SEC;
            let rate = rate_of(&routes[..end]);
            turns.levels.push(Level {
                route: group[0],
                rate: (rate - before).max(0.0),
                own: group
                    .iter()
                    .map(|route| (*route, rate_of(&[*route])))
                    .collect(),
            });
            before = rate.max(before);
        }
        turns
    }

    /// From posting the last slices of a batch to the sight of their end, without service: the delay, what chance adds to
    /// the latest of them in the mean, at least one on each of so many routes, and what they cost the worker. What is on a lane
    /// arrives in order, so each waits for those of others before it as well.
    fn delay_ns(&self, route: usize, used: usize, count: u64, pause_ns: u64) -> u64 {
        let base_ns = self.setup.routes[route].delay_ns;
        let extra_ns = self.extra_ns(route);
        let slice = f64::from(self.setup.limits.slice_bytes).min(self.class.block as f64);
        let of_batch = (self.class.batch * self.class.block) as f64 / slice;
        // Those that are in flight at a time, on all routes; earlier ones have arrived by then.
        let rate = self.levels.iter().map(|level| level.rate).sum::<f64>();
        let in_flight = rate * extra_ns / slice;
        let of_one = harmonic((of_batch.min(in_flight).ceil() as u64).max(used as u64));
        let least_ns = base_ns as f64 + extra_ns;
        let at_once = count as f64 * least_ns / (least_ns + pause_ns as f64);
        let slices = self.class.batch * self.class.block.div_ceil(self.slice_bytes_max(route));
        let routes = self.routes().max(1) as u64;
        let on_lane = at_once * slices as f64 / (self.class.workers * routes) as f64;
        let latest_ns = extra_ns * of_one.max(in_order(on_lane));
        base_ns + latest_ns as u64 + self.cost_ns(used)
    }

    /// What chance adds to a route's delay in the mean.
    fn extra_ns(&self, route: usize) -> f64 {
        let base_ns = self.setup.routes[route].delay_ns as f64;
        base_ns * f64::from(self.setup.jitter.delay_percent) / 100.0
    }

    /// A time as a worker sees it that looks at multiples of `poll_us`.
    fn looked(&self, ns: u64) -> u64 {
        match self.setup.engine.poll_us * 1_000 {
            0 => ns,
            poll_ns => ns.next_multiple_of(poll_ns),
        }
    }

    fn slice_bytes_max(&self, route: usize) -> u64 {
        let rail = self.setup.rails[self.setup.routes[route].rail as usize];
        let work_bytes = u64::from(self.setup.devices[rail.from].work_bytes_max);
        SLICE_BYTES_MAX.min(self.class.block).min(work_bytes)
    }

    /// What the lanes of one route hold, over the time for which they hold it, in bytes per second.
    fn lane_rate(&self, route: usize) -> u64 {
        let number = self.setup.routes[route].rail as usize;
        let device = &self.setup.devices[self.setup.rails[number].from];
        let works = match self.class.op {
            Op::Read => device.queue_depth.min(device.reads_max),
            Op::Write => device.queue_depth,
        };
        let works = u64::from(works);
        let slice = self.slice_bytes_max(route);
        let bytes = (works * slice * self.class.workers) as f64;
        let service_ns = slice as f64 * NS_PER_SEC / self.setup.nominal(number) as f64;
        let extra_ns = self.extra_ns(route) * in_order(works as f64);
        let base_ns = self.setup.routes[route].delay_ns;
        let holds_ns = base_ns + (extra_ns + service_ns) as u64 + self.cost_ns(1);
        (bytes * NS_PER_SEC / self.looked(holds_ns).max(1) as f64) as u64
    }

    /// What a slice costs the worker, in the mean of so many on as many routes: it posts one after the other.
    fn cost_ns(&self, used: usize) -> u64 {
        let engine = &self.setup.engine;
        engine.post_ns * (used as u64 + 1) / 2 + engine.completion_ns
    }

    /// What so many submitters get through, in bytes per second, if each pauses for so long after each batch.
    pub(super) fn bytes_per_sec(&self, count: u64, pause_ns: u64) -> u64 {
        let bytes = (self.class.block * self.class.batch) as f64;
        let alone_ns = self.looked(self.turn_ns(1, 0));
        let turn_ns = self.turn_ns(count, pause_ns).max(alone_ns);
        if turn_ns >= TURN_NS_MAX {
            return 0;
        }
        (count as f64 * bytes * NS_PER_SEC / (turn_ns + pause_ns) as f64) as u64
    }

    /// The least time of a batch, if so many take the same.
    fn turn_ns(&self, count: u64, pause_ns: u64) -> u64 {
        let all = self.routes();
        // Each part costs the worker time, and where delays vary the last of many is later than one of few.
        let fewer = std::iter::successors(Some(1), |used| Some(used * 2));
        let used = fewer.take_while(|used| *used < all);
        let used = std::iter::once(all).chain(used);
        used.fold(TURN_NS_MAX, |least, used| {
            self.turn_of(used, count, pause_ns, least)
        })
    }

    /// The same if each is spread over so many routes, or `least` if that is less.
    fn turn_of(&self, used: usize, count: u64, pause_ns: u64, least: u64) -> u64 {
        let bytes = (self.class.block * self.class.batch) as f64;
        let delay_ns = |level: &Level| self.delay_ns(level.route, used, count, pause_ns);
        let levels = self.levels.iter().map(|level| (level, delay_ns(level)));
        let levels: Vec<_> = levels.collect();
        let passes = |turn_ns: u64| {
            let open_ns = |delay_ns: &u64| turn_ns.saturating_sub(*delay_ns) as f64;
            let of_level = |(level, delay_ns): &(&Level, u64)| {
                let whole = |span_ns: f64| {
                    let own = level.own.iter();
                    let own = own.map(|(_, rate)| self.whole(*rate, span_ns));
                    own.sum::<f64>().min(level.rate * span_ns)
                };
                let of_each = whole(open_ns(delay_ns)) * count as f64;
                of_each.min(whole((turn_ns + pause_ns) as f64))
            };
            let together = levels.iter().map(of_level).sum::<f64>();
            let mut own: Vec<_> = levels
                .iter()
                .flat_map(|(level, delay_ns)| {
                    let own = level.own.iter();
                    own.map(move |(_, rate)| self.whole(*rate, open_ns(delay_ns)))
                })
                .collect();
            own.sort_by(|one, other| other.total_cmp(one));
            let own = own.iter().take(used).sum::<f64>();
            own * 1.000_001 >= bytes && together * 1.000_001 >= count as f64 * bytes
        };
        if !passes(least - 1) {
            return least;
        }
        let (mut low, mut high) = (0, least - 1);
        while low + 1 < high {
            let middle = low.midpoint(high);
            if passes(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        high
    }

    fn routes(&self) -> usize {
        self.levels.iter().map(|level| level.own.len()).sum()
    }

    /// What each route carries, in bytes per second, if batches take `turn_ns` with their pause.
    pub(super) fn shares(
        &self,
        count: u64,
        turn_ns: f64,
        pause_ns: u64,
    ) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.levels.iter().flat_map(move |level| {
            let delay_ns = self.delay_ns(level.route, 1, count, pause_ns);
            let open_ns = (turn_ns - (pause_ns + delay_ns) as f64).max(0.0);
            level.own.iter().map(move |(route, rate)| {
                let of_each = self.whole(*rate, open_ns) * count as f64;
                let most = of_each.min(self.whole(*rate, turn_ns));
                (*route, most * NS_PER_SEC / turn_ns)
            })
        })
    }

    /// What passes in a time at a rate in bytes per nanosecond, in whole parts; a thousandth of one is left to rounding.
    fn whole(&self, rate: f64, span_ns: f64) -> f64 {
        let part_bytes = PART_BYTES.min(u64::from(self.setup.limits.slice_bytes));
        let pieces = self.class.block.div_ceil(part_bytes);
        let part = self.class.block as f64 / pieces as f64;
        (rate * span_ns / part + 0.001).floor() * part
    }
}

/// The mean of the longest of so many exponential times, as a multiple of their own mean.
fn harmonic(count: u64) -> f64 {
    const EULER: f64 = 0.577_215_664_9;
    match count {
        0..=32 => (1..=count).map(|number| 1.0 / number as f64).sum(),
        _ => libm::log(count as f64) + EULER,
    }
}

/// How long a window of so many slices keeps one of them, where they leave it in order, beside the mean of their exponential
/// times: 0.85 to 1.01 of what simulated windows of 1 to 256 slices did, with no other delay and with as much.
fn in_order(window: f64) -> f64 {
    let log = libm::log(window.max(1.0));
    (1.0 + 0.4 * log).max(0.1 + 0.85 * log)
}
