//! What routes can pass together in one interval: the max-flow over their servers.

use std::collections::BTreeMap;

use petgraph::algo::dinics;
use petgraph::graph::{DiGraph, NodeIndex};

use super::classes::Class;
use crate::setup::{Cut, Interval, PPM, Setup};

/// A transport is left for the next one while it passes less than one part in so many of what that one does.
const LEFT_BELOW: u64 = 2;
/// Wider than any server.
const WIDE: u64 = u64::MAX / 4;
const NS_PER_SEC: u64 = 1_000_000_000;

/// One interval of a setup.
#[derive(Clone, Copy)]
pub(super) struct Flow<'a> {
    pub(super) starts_at: u64,
    setup: &'a Setup,
    row: &'a Interval,
    /// Things go wrong by chance.
    troubled: bool,
}

impl<'a> Flow<'a> {
    /// All of a setup, in order; the one in which trouble by chance ends is two.
    pub(super) fn all(setup: &'a Setup) -> Vec<Self> {
        let calm_at = (setup.trouble.until_ms * 1e6) as u64;
        let flow = |starts_at: u64, row: &'a Interval| Self {
            starts_at,
            setup,
            row,
            troubled: starts_at < calm_at,
        };
        let ends = setup.intervals.iter().skip(1).map(|row| row.starts_at);
        let rows = setup.intervals.iter().zip(ends.chain([u64::MAX]));
        let flows = rows.flat_map(|(row, ends_at)| {
            let splits = row.starts_at < calm_at && calm_at < ends_at;
            let second = splits.then(|| flow(calm_at, row));
            std::iter::once(flow(row.starts_at, row)).chain(second)
        });
        flows.collect()
    }

    /// Of a class's routes, those of the transport that its requests use, one at a time, if there is much to move: the first
    /// one that has usable rails, unless the next one passes more than twice as much.
    pub(super) fn routes(&self, class: &Class) -> Vec<usize> {
        self.transports(class).pop().unwrap_or_default()
    }

    /// The same behind those of the transports before it: with little to move, a nearer one may be faster.
    pub(super) fn transports(&self, class: &Class) -> Vec<Vec<usize>> {
        let usable = class.routes.iter().copied();
        let mut usable: Vec<_> = usable.filter(|route| self.is_usable(*route)).collect();
        let rank = |route: &usize| self.setup.rails[self.rail(*route)].rank;
        usable.sort_by_key(rank);
        let transports = usable.chunk_by(|one, other| rank(one) == rank(other));
        let mut transports: Vec<_> = transports.map(<[usize]>::to_vec).collect();
        let rate = |index: usize| self.together(&transports[index], u64::MAX);
        let better = |used: usize, next: usize| match rate(used) < rate(next) / LEFT_BELOW {
            true => next,
            false => used,
        };
        let used = (0..transports.len()).reduce(better);
        transports.truncate(used.map_or(0, |used| used + 1));
        transports
    }

    fn rail(&self, route: usize) -> usize {
        self.setup.routes[route].rail as usize
    }

    fn is_usable(&self, route: usize) -> bool {
        let rail = self.rail(route);
        self.row.cuts[rail] == Cut::No && self.setup.may_carry(rail, self.row)
    }

    /// What some routes pass together, in bytes per second, none of them more than `most`.
    pub(super) fn together(&self, routes: &[usize], most: u64) -> u64 {
        let mut network = Network::new();
        for route in routes {
            let enter = network.route(0, self, *route, NS_PER_SEC);
            network.edge(network.source, enter, most);
        }
        network.passes()
    }

    /// What one route passes, with the time taken off in which errors by chance keep its lane from working: each of them
    /// ends it with what is under way, and it has to be fenced and opened anew.
    fn route_rate(&self, route: usize) -> u64 {
        let servers = self.setup.routes[route].servers.iter();
        let rates = servers.map(|server| self.server_rate(*server));
        let rate = rates.min().unwrap_or(0);
        let setup = self.setup;
        let trouble = &setup.trouble;
        let one_in = [trouble.error_one_in, trouble.lost_one_in];
        if !self.troubled || setup.spared[self.rail(route)] || rate == 0 || one_in == [0, 0] {
            return rate;
        }
        let timing = &setup.timing;
        let anew_us = 2 * timing.control_us + timing.fence_us + timing.open_us;
        let delay_ns =
            setup.routes[route].delay_ns * (100 + u64::from(setup.jitter.delay_percent)) / 100;
        let anew_secs = (anew_us * 1_000 + delay_ns) as f64 / 1e9;
        let per_slice = one_in.iter().filter(|one_in| **one_in > 0);
        let per_slice: f64 = per_slice.map(|one_in| 1.0 / f64::from(*one_in)).sum();
        let slice_secs = f64::from(setup.limits.slice_bytes) / rate as f64;
        (rate as f64 * slice_secs / (slice_secs + per_slice * anew_secs)) as u64
    }

    /// A server's rate with chance taken into account.
    fn server_rate(&self, server: u32) -> u64 {
        let bytes_per_sec = self.row.bytes_per_sec[server as usize];
        if !self.setup.jitters[server as usize] {
            return bytes_per_sec;
        }
        let stretch = u128::from(PPM + self.setup.jitter.mean_excess_ppm());
        (u128::from(bytes_per_sec) * u128::from(PPM) / stretch) as u64
    }
}

/// Routes over servers, which are edges as wide as what they pass in a time.
pub(super) struct Network {
    graph: DiGraph<(), u64>,
    pub(super) source: NodeIndex,
    sink: NodeIndex,
    /// By interval and number: where bytes enter a server and leave it.
    servers: BTreeMap<(usize, u32), (NodeIndex, NodeIndex)>,
}

impl Network {
    pub(super) fn new() -> Self {
        let mut graph = DiGraph::new();
        let (source, sink) = (graph.add_node(()), graph.add_node(()));
        Self {
            graph,
            source,
            sink,
            servers: BTreeMap::new(),
        }
    }

    pub(super) fn node(&mut self) -> NodeIndex {
        self.graph.add_node(())
    }

    pub(super) fn edge(&mut self, from: NodeIndex, to: NodeIndex, bytes: u64) {
        self.graph.add_edge(from, to, bytes);
    }

    /// A route for so long in one interval: where bytes enter it.
    pub(super) fn route(
        &mut self,
        number: usize,
        flow: &Flow<'_>,
        route: usize,
        ns: u64,
    ) -> NodeIndex {
        let bytes = |rate: u64| (u128::from(rate) * u128::from(ns) / u128::from(NS_PER_SEC)) as u64;
        let enter = self.node();
        let mut before = self.node();
        self.edge(enter, before, bytes(flow.route_rate(route)));
        for server in &flow.setup.routes[route].servers {
            let graph = &mut self.graph;
            let (enter, leave) = *self.servers.entry((number, *server)).or_insert_with(|| {
                let ends = (graph.add_node(()), graph.add_node(()));
                graph.add_edge(ends.0, ends.1, bytes(flow.server_rate(*server)));
                ends
            });
            self.graph.update_edge(before, enter, WIDE);
            before = leave;
        }
        self.graph.update_edge(before, self.sink, WIDE);
        enter
    }

    /// The most that passes from the source to the sink.
    pub(super) fn passes(&self) -> u64 {
        dinics(&self.graph, self.source, self.sink).0
    }
}
