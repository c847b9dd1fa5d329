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
#[derive(Clone, Copy, Debug)]
struct Level {
    delay_ns: u64,
    /// What they add to those of shorter delays, in bytes per nanosecond.
    rate: f64,
    routes: u64,
}

/// The turns of a class in one interval.
pub(super) struct Turns<'a> {
    setup: &'a Setup,
    class: &'a Class,
    levels: Vec<Level>,
}

impl<'a> Turns<'a> {
    pub(super) fn new(setup: &'a Setup, class: &'a Class, flow: Flow<'_>) -> Self {
        let mut turns = Self {
            setup,
            class,
            levels: Vec::new(),
        };
        let mut routes = flow.routes(class);
        routes.sort_by_key(|route| setup.routes[*route].delay_ns);
        let mut before = 0.0;
        let base = |route: &usize| setup.routes[*route].delay_ns;
        let mut end = 0;
        for group in routes.chunk_by(|a, b| base(a) == base(b)) {
            end += group.len();
            let delays = group.iter().map(|route| turns.delay_ns(*route));
            let delay_ns = delays.min().unwrap_or(0);
            let most = turns.lane_rate(group[0], delay_ns);
            let rate = flow.together(&routes[..end], most) as f64 / NS_PER_SEC;
            turns.levels.push(Level {
                delay_ns,
                rate: (rate - before).max(0.0),
                routes: group.len() as u64,
            });
            before = rate.max(before);
        }
        turns
    }

    /// From posting the last slices of a batch to the sight of their end, without service: the delay, what chance adds to
    /// the latest of them in the mean, and what one costs the worker.
    fn delay_ns(&self, route: usize) -> u64 {
        let base_ns = self.setup.routes[route].delay_ns;
        let mean_ns = base_ns as f64 * f64::from(self.setup.jitter.delay_percent) / 100.0;
        let slice = f64::from(self.setup.limits.slice_bytes);
        let of_batch = (self.class.batch * self.class.block) as f64 / slice;
        // Those that are under way at a time; earlier ones have arrived by then.
        let rail = self.setup.routes[route].rail as usize;
        let under_way = self.setup.nominal(rail) as f64 * mean_ns / NS_PER_SEC / slice;
        let latest_ns = mean_ns * harmonic(of_batch.min(under_way) as u64 + 1);
        let cost_ns = self.setup.engine.post_ns + self.setup.engine.completion_ns;
        base_ns + latest_ns as u64 + cost_ns
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
    fn lane_rate(&self, route: usize, delay_ns: u64) -> u64 {
        let rail = self.setup.rails[self.setup.routes[route].rail as usize];
        let device = &self.setup.devices[rail.from];
        let works = match self.class.op {
            Op::Read => device.queue_depth.min(device.reads_max),
            Op::Write => device.queue_depth,
        };
        let slice = self.slice_bytes_max(route);
        let bytes = (u64::from(works) * slice * self.class.workers) as f64;
        let service_ns =
            slice as f64 * NS_PER_SEC / self.setup.nominal(rail_of(self, route)) as f64;
        let holds_ns = self
            .looked(delay_ns.saturating_add(service_ns as u64))
            .max(1);
        (bytes * NS_PER_SEC / holds_ns as f64) as u64
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
        let bytes = (count * self.class.block * self.class.batch) as f64;
        let pieces = self.class.block.div_ceil(self.part_bytes());
        let part = self.class.block as f64 / pieces as f64;
        let passes = |turn_ns: u64| {
            let of_level = |level: &Level| {
                let open_ns = turn_ns.saturating_sub(level.delay_ns) as f64;
                let each = level.rate / level.routes as f64 * open_ns / part;
                // A thousandth of a slice is left to rounding.
                let own = (each + 0.001).floor() * part * level.routes as f64;
                (own * count as f64).min(level.rate * (turn_ns + pause_ns) as f64)
            };
            self.levels.iter().map(of_level).sum::<f64>() * 1.000_001 >= bytes
        };
        let (mut low, mut high) = (0, TURN_NS_MAX);
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

    fn part_bytes(&self) -> u64 {
        PART_BYTES.min(u64::from(self.setup.limits.slice_bytes))
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

fn rail_of(turns: &Turns<'_>, route: usize) -> usize {
    turns.setup.routes[route].rail as usize
}
