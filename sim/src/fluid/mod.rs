//! What can be reached: the least time in which the goodput of a run could have passed.
//!
//! Bytes are a fluid that every server passes at its rate at the time, divided by the mean stretch of chance. Between
//! two changes of the fabric the most that can pass is the max-flow over the servers of all routes; the bytes are
//! through when its integral reaches them. This must hold for all of them together, for those of one sender, to one
//! receiver and of each pair; for the submitters of a workload, whose closed loops cannot go round faster than `turns`
//! says, and for all of them side by side; and for each submitter by itself. The largest of these times counts.
//!
//! Only what completed is counted. A request uses one transport at a time: of those that are the best for much or for
//! little, the one that passes more of what there is. Lanes have to open first. A lane on which a
//! work failed is fenced and opened anew, and its rail passes nothing meanwhile. While all submitters pause, no time
//! passes.

mod classes;
mod flow;
mod loops;
mod turns;

use crate::model::{Done, History};
use crate::setup::Setup;
use classes::Class;
use flow::Flow;
use loops::Loops;
use turns::Turns;

const NS_PER_SEC: u128 = 1_000_000_000;

/// Rates by interval.
pub(crate) struct Capacity {
    /// When each interval starts.
    starts: Vec<u64>,
    /// Bytes per second in each.
    rates: Vec<u64>,
}

impl Capacity {
    /// What all workloads together could pass.
    pub(crate) fn of_all(setup: &Setup) -> Self {
        let classes = Class::all(setup);
        let flows = Flow::all(setup);
        let starts = flows.iter().map(|flow| flow.starts_at).collect();
        Self::of(&flows, starts, &classes.iter().collect::<Vec<_>>())
    }

    /// What some classes together could pass.
    fn of(flows: &[Flow<'_>], starts: Vec<u64>, classes: &[&Class]) -> Self {
        let rate = |flow: &Flow<'_>| {
            let mut routes: Vec<_> = classes
                .iter()
                .flat_map(|class| flow.routes(class))
                .collect();
            routes.sort_unstable();
            routes.dedup();
            flow.together(&routes, u64::MAX)
        };
        let rates = flows.iter().map(rate).collect();
        Self { starts, rates }
    }

    /// By interval.
    pub(crate) fn rates(&self) -> &[u64] {
        &self.rates
    }

    /// When each interval starts, and its rate.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.starts.iter().copied().zip(self.rates.iter().copied())
    }

    /// Bytes that could pass between two instants.
    pub(crate) fn bytes_between(&self, from: u64, to: u64) -> u64 {
        let pieces = self.pieces(from).map(|(start, end, rate)| {
            let span = end.min(to).saturating_sub(start);
            (u128::from(rate) * u128::from(span) / NS_PER_SEC) as u64
        });
        pieces.sum()
    }

    /// When `bytes` could have passed, from `from` on; never: the end of time.
    fn passed_at(&self, from: u64, bytes: u64) -> u64 {
        if bytes == 0 {
            return from;
        }
        let mut left = u128::from(bytes) * NS_PER_SEC;
        for (start, end, rate) in self.pieces(from) {
            let most = u128::from(rate) * u128::from(end - start);
            if left <= most {
                return start + left.div_ceil(u128::from(rate)) as u64;
            }
            left -= most;
        }
        u64::MAX
    }

    /// Spans of one rate, from an instant to the end of time.
    fn pieces(&self, from: u64) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let rates = self.rates.iter().enumerate();
        rates.filter_map(move |(index, rate)| {
            let end = self.starts.get(index + 1).copied().unwrap_or(u64::MAX);
            let start = self.starts[index].max(from);
            (start < end).then_some((start, end, *rate))
        })
    }
}

/// A run's time without the spans in which nobody has work.
struct Clock {
    /// By span: from when to when, and how much was idle before it.
    idle: Vec<(u64, u64, u64)>,
}

impl Clock {
    fn new(history: &History) -> Self {
        let idle = history.idle.iter().scan(0, |sum, (from, to)| {
            let before = *sum;
            *sum += to - from;
            Some((*from, *to, before))
        });
        Self {
            idle: idle.collect(),
        }
    }

    /// The time at an instant.
    fn at(&self, instant: u64) -> u64 {
        let before = self.idle.partition_point(|span| span.0 < instant);
        match before.checked_sub(1).and_then(|last| self.idle.get(last)) {
            Some((from, to, idle)) => instant - idle - (instant.min(*to) - from),
            None => instant,
        }
    }

    /// How much was idle in all.
    fn idle_ns(&self) -> u64 {
        let last = self.idle.last();
        last.map_or(0, |(from, to, idle)| idle + to - from)
    }
}

/// What a run has to be measured by.
struct Bound<'a> {
    setup: &'a Setup,
    history: &'a History,
    clock: Clock,
    flows: Vec<Flow<'a>>,
    /// When intervals start, by the clock.
    starts: Vec<u64>,
}

/// The time of a run in which anybody had work, from its first submission to its last report.
pub(crate) fn busy_time(history: &History) -> u64 {
    let clock = Clock::new(history);
    clock.at(history.ended_at) - clock.at(history.began_at)
}

/// The least time for what a run got through, in nanoseconds from its first submission, pauses out; `None`: it got nothing
/// through, or more than could pass.
pub(crate) fn least_time(setup: &Setup, history: &History) -> Option<u64> {
    let clock = Clock::new(history);
    let flows = Flow::all(setup);
    let starts = flows.iter().map(|flow| clock.at(flow.starts_at));
    let bound = Bound {
        starts: starts.collect(),
        flows,
        setup,
        history,
        clock,
    };
    let classes = Class::all(setup);
    let groups = groups(&classes);
    let of_groups = groups.iter().map(|group| bound.of_group(group)).max();
    let loops: Vec<_> = classes.iter().map(|class| bound.loops(class)).collect();
    let of_loops = loops.iter().map(|loops| loops.ends_at(&bound.starts)).max();
    let ends_at = of_groups.max(of_loops)?.max(bound.of_workers());
    let ends_at = loops::side_by_side(&loops, &bound.flows, &bound.starts, ends_at);
    ends_at
        .checked_sub(bound.clock.at(history.began_at))
        .filter(|time| *time > 0 && ends_at != u64::MAX)
}

/// All classes; those of each sender, to each receiver, and of each pair, without doublets.
fn groups(classes: &[Class]) -> Vec<Vec<&Class>> {
    let mut keys: Vec<(Option<usize>, Option<usize>)> = vec![(None, None)];
    for class in classes {
        let (from, to) = (Some(class.from), Some(class.to));
        keys.extend([(from, None), (None, to), (from, to)]);
    }
    keys.sort_unstable();
    keys.dedup();
    let of_key = |(from, to): (Option<usize>, Option<usize>)| -> Vec<usize> {
        let fits = |class: &Class| {
            from.is_none_or(|from| class.from == from) && to.is_none_or(|to| class.to == to)
        };
        let numbers = 0..classes.len();
        numbers.filter(|number| fits(&classes[*number])).collect()
    };
    let mut groups: Vec<_> = keys.into_iter().map(of_key).collect();
    groups.sort();
    groups.dedup();
    let named = |group: Vec<usize>| group.into_iter().map(|number| &classes[number]).collect();
    groups.into_iter().map(named).collect()
}

impl Bound<'_> {
    /// When the first lane of a class can carry anything, by the clock.
    fn starts_at(&self, class: &Class) -> u64 {
        let began_at = class.starts_at.max(self.history.began_at);
        self.clock.at(began_at) + self.setup.timing.open_us * 1_000
    }

    /// What submitters got through.
    fn bytes(&self, class: &Class) -> u64 {
        let own = class.submitters.iter();
        own.map(|index| self.history.done[*index].good_bytes).sum()
    }

    /// When classes could be through that share the fabric.
    fn of_group(&self, classes: &[&Class]) -> u64 {
        let bytes: u64 = classes.iter().map(|class| self.bytes(class)).sum();
        if bytes == 0 {
            return 0;
        }
        let capacity = Capacity::of(&self.flows, self.starts.clone(), classes);
        let starts = classes.iter().map(|class| self.starts_at(class));
        let routes = classes.iter().flat_map(|class| &class.routes);
        let delays = routes.map(|route| self.setup.routes[*route].delay_ns);
        capacity
            .passed_at(starts.min().unwrap_or(0), bytes)
            .saturating_add(delays.min().unwrap_or(0))
    }

    /// When the busiest worker could be through, which posts each slice and sees its end.
    fn of_workers(&self) -> u64 {
        let engine = &self.setup.engine;
        // Any number of works may share a completion, where they can share one at all.
        let shares = self.setup.devices.iter().all(|device| device.covers);
        let cost_ns = match shares {
            true => engine.post_ns,
            false => engine.post_ns + engine.completion_ns,
        };
        let mut busy_ns = vec![0; self.setup.workers()];
        for (row, done) in self.setup.submitters.iter().zip(&self.history.done) {
            let longest = u64::from(self.setup.limits.slice_bytes);
            let slice = match row.in_a_row {
                true => longest,
                false => longest.min(row.block),
            };
            let requests = done.good_bytes.div_ceil(row.block);
            busy_ns[row.worker] +=
                done.good_bytes.div_ceil(slice) * cost_ns + requests * engine.request_ns;
        }
        let busiest_ns = busy_ns.into_iter().max().unwrap_or(0);
        self.clock.at(self.history.began_at) + busiest_ns
    }

    /// What the loops of a class had to do.
    fn loops<'b>(&'b self, class: &'b Class) -> Loops<'b> {
        let done: Vec<_> = class
            .submitters
            .iter()
            .map(|index| &self.history.done[*index])
            .collect();
        // While others worked.
        let paused_ns = |done: &&Done| done.paused_ns.saturating_sub(self.clock.idle_ns());
        let batches: u64 = done.iter().map(|done| done.batches).sum();
        let of_flow = |flow: &Flow<'_>| -> Vec<_> {
            let transports = flow.transports(class).into_iter();
            let turns = |routes| Turns::new(self.setup, class, *flow, routes);
            transports.map(turns).collect()
        };
        Loops {
            class,
            bytes: self.bytes(class),
            starts_at: self.starts_at(class),
            pause_ns: done.iter().map(paused_ns).sum::<u64>() / batches.max(1),
            each: done
                .iter()
                .map(|done| (done.good_bytes, paused_ns(done)))
                .collect(),
            turns: self.flows.iter().map(of_flow).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
