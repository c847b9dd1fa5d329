//! The fluid limit: the least time in which the bytes of a run could have passed.
//!
//! Bytes are a fluid that every server passes at its rate at the time, divided by the mean stretch of chance.
//! Between two changes of the fabric the most that can pass is the max-flow over the servers of all routes;
//! the bytes are through when its integral reaches them. This must hold for all of them together, for those of
//! one sender, to one receiver and of each pair, and for each submitter by itself, which must also wait one
//! base delay for each batch, since the next depends on it. The largest of these times is the limit.

use std::collections::BTreeMap;

use petgraph::algo::ford_fulkerson;
use petgraph::graph::{DiGraph, NodeIndex};

use crate::model::History;
use crate::setup::{Cut, PPM, Setup};

const NS_PER_SEC: u128 = 1_000_000_000;

/// The capacities of a setup for the commodities in one group, by interval.
pub(crate) struct Capacity<'a> {
    setup: &'a Setup,
    /// Bytes per second in each interval.
    rates: Vec<u64>,
}

impl<'a> Capacity<'a> {
    /// What all commodities together could pass.
    pub(crate) fn of_all(setup: &'a Setup) -> Self {
        Self::of(setup, &(0..setup.commodities.len()).collect::<Vec<_>>())
    }

    /// What some commodities together could pass.
    fn of(setup: &'a Setup, commodities: &[usize]) -> Self {
        let rates = (0..setup.intervals.len())
            .map(|interval| max_flow(setup, interval, commodities))
            .collect();
        Self { setup, rates }
    }

    /// By interval.
    pub(crate) fn rates(&self) -> &[u64] {
        &self.rates
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
        let mut left = u128::from(bytes) * NS_PER_SEC;
        for (start, end, rate) in self.pieces(from) {
            let most = u128::from(rate) * u128::from(end - start);
            if left <= most {
                let span = if rate == 0 {
                    0
                } else {
                    left.div_ceil(u128::from(rate))
                };
                return start + span as u64;
            }
            left -= most;
        }
        u64::MAX
    }

    /// Spans of one rate, from an instant to the end of time.
    fn pieces(&self, from: u64) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let intervals = &self.setup.intervals;
        self.rates
            .iter()
            .enumerate()
            .filter_map(move |(index, rate)| {
                let end = intervals
                    .get(index + 1)
                    .map_or(u64::MAX, |next| next.starts_at);
                let start = intervals[index].starts_at.max(from);
                (start < end).then_some((start, end, *rate))
            })
    }
}

/// What could pass in one interval, in bytes per second.
fn max_flow(setup: &Setup, interval: usize, commodities: &[usize]) -> u64 {
    let row = &setup.intervals[interval];
    let mut graph = DiGraph::<(), u64>::new();
    let (source, sink) = (graph.add_node(()), graph.add_node(()));
    // A server is an edge between two nodes, as wide as its rate.
    let mut servers: BTreeMap<u32, (NodeIndex, NodeIndex)> = BTreeMap::new();
    let routes = commodities
        .iter()
        .flat_map(|index| &setup.commodities[*index].routes);
    for route in routes.map(|index| &setup.routes[*index]) {
        let rail = route.rail as usize;
        if row.cuts[rail] != Cut::No || !setup.may_carry(rail, row) {
            continue;
        }
        let mut before = source;
        for server in &route.servers {
            let (enter, leave) = *servers.entry(*server).or_insert_with(|| {
                let ends = (graph.add_node(()), graph.add_node(()));
                graph.add_edge(
                    ends.0,
                    ends.1,
                    mean_rate(setup, row.bytes_per_sec[*server as usize], *server),
                );
                ends
            });
            graph.update_edge(before, enter, u64::MAX / 4);
            before = leave;
        }
        graph.update_edge(before, sink, u64::MAX / 4);
    }
    ford_fulkerson(&graph, source, sink).0
}

/// A server's rate with chance taken into account.
fn mean_rate(setup: &Setup, bytes_per_sec: u64, server: u32) -> u64 {
    if !setup.jitters[server as usize] {
        return bytes_per_sec;
    }
    let stretch = u128::from(PPM + setup.jitter.mean_excess_ppm());
    (u128::from(bytes_per_sec) * u128::from(PPM) / stretch) as u64
}

/// The least time for what a run has moved, in nanoseconds from its first submission; `None`: it moved nothing,
/// or more than could pass.
pub(crate) fn least_time(setup: &Setup, history: &History) -> Option<u64> {
    let began_at = history.began_at;
    let all: Vec<usize> = (0..setup.commodities.len()).collect();
    let mut groups: Vec<Vec<usize>> = vec![all.clone()];
    let select = |fits: &dyn Fn(&crate::setup::Commodity) -> bool| -> Vec<usize> {
        all.iter()
            .copied()
            .filter(|index| fits(&setup.commodities[*index]))
            .collect()
    };
    for commodity in &setup.commodities {
        groups.push(select(&|other| other.from == commodity.from));
        groups.push(select(&|other| other.to == commodity.to));
        groups.push(select(&|other| {
            (other.from, other.to) == (commodity.from, commodity.to)
        }));
    }
    groups.sort();
    groups.dedup();
    let mut ends_at = 0;
    for group in &groups {
        let of_group = |index: &usize| group.contains(&setup.commodity_of(*index));
        let bytes = (0..history.done.len())
            .filter(of_group)
            .map(|index| history.done[index].bytes)
            .sum();
        let capacity = Capacity::of(setup, group);
        let starts_at = group
            .iter()
            .map(|index| setup.commodities[*index].starts_at)
            .min()
            .unwrap_or(0);
        let delay_ns = group
            .iter()
            .map(|index| least_delay(setup, *index))
            .min()
            .unwrap_or(0);
        if bytes > 0 {
            ends_at = ends_at.max(
                capacity
                    .passed_at(starts_at.max(began_at), bytes)
                    .saturating_add(delay_ns),
            );
        }
        if let [commodity] = group[..] {
            for (index, done) in history
                .done
                .iter()
                .enumerate()
                .filter(|(_, done)| done.batches > 0)
            {
                if setup.commodity_of(index) == commodity {
                    let starts_at = setup.submitters[index].starts_at.max(began_at);
                    let waits_ns = done.batches.saturating_mul(delay_ns);
                    ends_at = ends_at.max(
                        capacity
                            .passed_at(starts_at, done.bytes)
                            .saturating_add(waits_ns),
                    );
                }
            }
        }
    }
    ends_at
        .checked_sub(began_at)
        .filter(|time| *time > 0 && ends_at != u64::MAX)
}

fn least_delay(setup: &Setup, commodity: usize) -> u64 {
    let routes = setup.commodities[commodity].routes.iter();
    routes
        .map(|route| setup.routes[*route].delay_ns)
        .min()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Done;
    use crate::scenario::Scenario;

    /// Two hosts, or three, without jitter.
    fn setup(rest: &str) -> Setup {
        let text = format!(
            "name = \"x\"\nduration_ms = 10\n[jitter]\nservice_percent = 0\noutlier_one_in = 0\n\
             [[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n[[host]]\nname = \"c\"\n{rest}"
        );
        Setup::new(&text, &Scenario::parse(&text).unwrap(), None).unwrap()
    }

    fn nic(host: &str, name: &str, gbytes: u32, delay_us: u32) -> String {
        let gbits = 8 * gbytes;
        format!(
            "[[device]]\nhost = \"{host}\"\nname = \"{name}\"\nrate_gbits_per_sec = {gbits}\ndelay_us = {delay_us}\n"
        )
    }

    fn rail(from: &str, to: &str) -> String {
        format!("[[rail]]\nfrom = \"{from}\"\nto = \"{to}\"\n")
    }

    fn work(from: &str, to: &str) -> String {
        format!("[[workload]]\nfrom = \"{from}\"\nto = \"{to}\"\nop = \"write\"\nblock = 1\n")
    }

    fn moved(bytes: &[(u64, u64)]) -> History {
        let done = bytes
            .iter()
            .map(|(batches, bytes)| Done {
                batches: *batches,
                bytes: *bytes,
            })
            .collect();
        History {
            done,
            began_at: 0,
            ..History::default()
        }
    }

    const GB: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    /// Two rails of 10 and 5 GB/s.
    fn two_rails() -> String {
        [
            nic("a", "x", 10, 1),
            nic("a", "y", 20, 1),
            nic("b", "x", 10, 1),
            nic("b", "y", 5, 1),
        ]
        .concat()
            + &rail("a/x", "b/x")
            + &rail("a/y", "b/y")
            + &work("a", "b")
    }

    #[test]
    fn rails_add_up_and_the_slower_end_counts() {
        let setup = setup(&two_rails());
        assert_eq!(Capacity::of_all(&setup).rates(), [15 * GB]);
        // 15 MB at 15 GB/s and one delay of 2 µs.
        assert_eq!(
            least_time(&setup, &moved(&[(1, 15_000_000)])),
            Some(MS + 2_000)
        );
        // The same in ten dependent batches.
        assert_eq!(
            least_time(&setup, &moved(&[(10, 15_000_000)])),
            Some(MS + 20_000)
        );
    }

    #[test]
    fn a_bottleneck_limits_its_members_together() {
        let shared = "[[bottleneck]]\nname = \"switch\"\nrate_gbits_per_sec = 64\nmembers = [\"a/x\", \"a/y\"]\n";
        let setup = setup(&(two_rails() + shared));
        assert_eq!(Capacity::of_all(&setup).rates(), [8 * GB]);
    }

    #[test]
    fn capacities_change_with_faults() {
        let faults = "[[fault]]\nat_ms = 1\nfor_ms = 1\nkind = \"silent\"\ntarget = \"a/x>b/x\"\n\
                      [[fault]]\nat_ms = 3\nkind = \"slow\"\nfactor = 0.5\ntarget = \"b/y\"\n";
        let setup = setup(&(two_rails() + faults));
        let capacity = Capacity::of_all(&setup);
        assert_eq!(capacity.rates(), [15 * GB, 5 * GB, 15 * GB, 12_500_000_000]);
        // 15 MB in the first millisecond, 5 in the second, 15 in the third, and half a millisecond more.
        assert_eq!(capacity.passed_at(0, 41_250_000), 3 * MS + MS / 2);
        assert_eq!(capacity.bytes_between(MS / 2, 2 * MS), 12_500_000);
    }

    #[test]
    fn two_senders_into_one_receiver_share_it() {
        let text = [
            nic("a", "x", 10, 1),
            nic("b", "x", 10, 1),
            nic("c", "x", 12, 1),
        ]
        .concat()
            + &rail("a/x", "c/x")
            + &rail("b/x", "c/x")
            + &work("a", "c")
            + &work("b", "c");
        let setup = setup(&text);
        // Both at a time are limited by the receiver, one alone by itself.
        assert_eq!(
            least_time(&setup, &moved(&[(1, 6_000_000), (1, 6_000_000)])),
            Some(MS + 2_000)
        );
        assert_eq!(
            least_time(&setup, &moved(&[(1, 11_000_000), (1, 1_000_000)])),
            Some(MS + MS / 10 + 2_000)
        );
    }

    #[test]
    fn the_mean_of_outliers_is_taken_off() {
        let jitter =
            "name = \"x\"\nduration_ms = 10\n[jitter]\noutlier_one_in = 10\noutlier_factor = 11\n";
        let text =
            jitter.to_owned() + "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n" + &two_rails();
        let setup = Setup::new(&text, &Scenario::parse(&text).unwrap(), None).unwrap();
        assert_eq!(Capacity::of_all(&setup).rates(), [15 * GB / 2]);
    }
}
