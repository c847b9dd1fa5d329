//! Closed loops that differ, side by side: those with little to move want the near rails, and so do the others.

use std::collections::BTreeMap;

use super::Capacity;
use super::classes::Class;
use super::flow::{Flow, Network};
use super::turns::Turns;

/// The time is found to one part in so many.
const PARTS: u64 = 1 << 12;
/// It is looked for up to so many times as long as they need by themselves; beyond that only the other rules count.
const TIMES_MAX: u64 = 16;

/// What the loops of a class had to do.
pub(super) struct Loops<'a> {
    pub(super) class: &'a Class,
    pub(super) bytes: u64,
    /// When the first lane can carry anything.
    pub(super) starts_at: u64,
    /// Of each batch, in the mean.
    pub(super) pause_ns: u64,
    /// By submitter: bytes, and how long it paused.
    pub(super) each: Vec<(u64, u64)>,
    /// By interval and transport.
    pub(super) turns: Vec<Vec<Turns<'a>>>,
}

impl Loops<'_> {
    /// When they could be through, and each submitter if it were alone.
    pub(super) fn ends_at(&self, starts: &[u64]) -> u64 {
        let together = self.capacity(starts, self.class.count(), self.pause_ns);
        let alone = self.capacity(starts, 1, 0);
        let each = self.each.iter().map(|(bytes, paused_ns)| {
            let passed_at = alone.passed_at(self.starts_at, *bytes);
            passed_at.saturating_add(*paused_ns)
        });
        let together = together.passed_at(self.starts_at, self.bytes);
        each.max().unwrap_or(0).max(together)
    }

    /// What so many of them get through if each pauses for so long.
    fn capacity(&self, starts: &[u64], count: u64, pause_ns: u64) -> Capacity {
        let fastest = |turns: &Vec<Turns<'_>>| {
            let turns = turns.iter();
            let rates = turns.map(|turns| turns.bytes_per_sec(count, pause_ns));
            rates.max().unwrap_or(0)
        };
        Capacity {
            starts: starts.to_vec(),
            rates: self.turns.iter().map(fastest).collect(),
        }
    }

    /// How long a batch takes in the mean, if all end at an instant.
    fn turn_ns(&self, ends_at: u64) -> f64 {
        let span_ns = ends_at.saturating_sub(self.starts_at) as f64;
        let batch = (self.class.block * self.class.batch) as f64;
        self.class.count() as f64 * batch * span_ns / self.bytes as f64
    }
}

/// When all loops could be through that share the fabric, from `least` on.
pub(super) fn side_by_side(
    loops: &[Loops<'_>],
    flows: &[Flow<'_>],
    starts: &[u64],
    least: u64,
) -> u64 {
    let loops: Vec<_> = loops.iter().filter(|loops| loops.bytes > 0).collect();
    let fit = |ends_at: u64| do_fit(&loops, flows, starts, ends_at);
    if loops.len() < 2 || least == u64::MAX || fit(least) {
        return least;
    }
    let doubled = std::iter::successors(Some(least), |at| at.checked_mul(2));
    let mut above = doubled.take_while(|at| at / TIMES_MAX <= least);
    let Some(mut high) = above.find(|at| fit(*at)) else {
        return least;
    };
    let mut low = high / 2;
    while high - low > high / PARTS {
        let middle = low.midpoint(high);
        match fit(middle) {
            true => high = middle,
            false => low = middle,
        }
    }
    high
}

/// Whether all could be through at an instant. In each interval a rail carries of each loop what [`Turns::shares`] says of its
/// mean time, and of all together what passes it.
fn do_fit(loops: &[&Loops<'_>], flows: &[Flow<'_>], starts: &[u64], ends_at: u64) -> bool {
    let mut network = Network::new();
    let nodes: Vec<_> = loops
        .iter()
        .map(|loops| {
            let node = network.node();
            network.edge(network.source, node, loops.bytes);
            node
        })
        .collect();
    for (number, flow) in flows.iter().enumerate() {
        let until = starts
            .get(number + 1)
            .map_or(ends_at, |at| ends_at.min(*at));
        let span_ns = until.saturating_sub(starts[number]);
        if span_ns == 0 {
            continue;
        }
        let mut routes = BTreeMap::new();
        for (loops, node) in loops.iter().zip(&nodes) {
            let own_ns = until.saturating_sub(starts[number].max(loops.starts_at)) as f64;
            let turn_ns = loops.turn_ns(ends_at);
            for turns in &loops.turns[number] {
                for (route, rate) in turns.shares(loops.class.count(), turn_ns, loops.pause_ns) {
                    let enter = *routes
                        .entry(route)
                        .or_insert_with(|| network.route(number, flow, route, span_ns));
                    network.edge(*node, enter, (rate * own_ns / 1e9) as u64);
                }
            }
        }
    }
    let bytes: u64 = loops.iter().map(|loops| loops.bytes).sum();
    // What is lost to rounding.
    network.passes() as f64 * 1.000_01 >= bytes as f64
}
