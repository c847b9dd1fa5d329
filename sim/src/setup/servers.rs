//! Servers, routes over them, and how their rates change.

use super::faults::Effect;
use super::{Builder, Checked, Cut, Interval, PPM, Rail, Setup, route_of};
use crate::model::fabric::Route;

impl Builder<'_> {
    /// Servers, routes over them, and how their rates change.
    pub(super) fn servers(&self, setup: &mut Setup, seed: u64) -> Checked<()> {
        let resources = self.resources();
        let windows = self.windows(setup.ends_at, seed)?;
        // Resources that serve the very same routes in a row are one server, as slow as the slowest.
        let mut servers: Vec<Vec<usize>> = Vec::new();
        let mut server_of = vec![0; resources.len()];
        for (index, resource) in resources.iter().enumerate() {
            let twin = servers
                .iter()
                .position(|server| resources[server[0]].routes == resource.routes);
            let server = twin.unwrap_or_else(|| {
                servers.push(Vec::new());
                servers.len() - 1
            });
            servers[server].push(index);
            server_of[index] = server;
        }
        for rail in 0..self.rails.len() {
            for back in [false, true] {
                let mut way: Vec<u32> = Vec::new();
                for resource in self.way(rail, back) {
                    let server = server_of[resource] as u32;
                    if !way.contains(&server) {
                        way.push(server);
                    }
                }
                setup.routes.push(Route {
                    servers: way,
                    delay_ns: setup.delay_ns(rail),
                    rail: rail as u32,
                });
            }
        }
        setup.jitters = servers
            .iter()
            .map(|server| server.iter().any(|index| *index < 2 * self.devices.len()))
            .collect();
        let mut boundaries: Vec<u64> = windows
            .iter()
            .flat_map(|window| [window.from, window.to])
            .chain([0])
            .collect();
        boundaries.sort_unstable();
        boundaries.dedup();
        boundaries.retain(|at| *at != u64::MAX);
        for starts_at in boundaries {
            let active = || {
                windows
                    .iter()
                    .filter(move |window| window.from <= starts_at && starts_at < window.to)
            };
            let mut rates: Vec<u64> = resources
                .iter()
                .map(|resource| resource.bytes_per_sec)
                .collect();
            let mut cuts = vec![Cut::No; self.rails.len()];
            for window in active() {
                match window.effect {
                    Effect::Rate { resource, ppm } => {
                        let rate = u128::from(resources[resource].bytes_per_sec) * u128::from(ppm)
                            / u128::from(PPM);
                        // Of two faults at a time the worse one counts.
                        rates[resource] = rates[resource].min((rate as u64).max(1));
                    }
                    Effect::Cut { rail, cut } => cuts[rail] = cut,
                }
            }
            setup.intervals.push(Interval {
                starts_at,
                bytes_per_sec: servers
                    .iter()
                    .map(|server| server.iter().map(|index| rates[*index]).min().unwrap_or(1))
                    .collect(),
                cuts,
            });
        }
        Ok(())
    }

    /// Each device in each direction, then each bottleneck in each direction.
    fn resources(&self) -> Vec<Resource> {
        let rates = self
            .devices
            .iter()
            .map(|device| device.bytes_per_sec)
            .chain(self.bottlenecks.iter().map(|row| row.0));
        let mut resources: Vec<Resource> = rates
            .flat_map(|rate| [rate, rate])
            .map(|bytes_per_sec| Resource {
                bytes_per_sec,
                routes: Vec::new(),
            })
            .collect();
        for rail in 0..self.rails.len() {
            for back in [false, true] {
                for resource in self.way(rail, back) {
                    resources[resource].routes.push(route_of(rail, back));
                }
            }
        }
        resources
    }

    /// Resources that a route passes, in order: even numbers send, odd ones receive.
    fn way(&self, rail: usize, back: bool) -> Vec<usize> {
        let Rail { from, to, over, .. } = self.rails[rail];
        let (from, to) = if back { (to, from) } else { (from, to) };
        let first = self.devices.len();
        let shared = |device: usize, receives: usize| {
            let member = move |(_, row): &(usize, &(u64, Vec<usize>))| row.1.contains(&device);
            self.bottlenecks
                .iter()
                .enumerate()
                .filter(member)
                .map(move |(index, _)| 2 * (first + index) + receives)
        };
        std::iter::once(2 * from)
            .chain(shared(from, 0))
            .chain(over.map(|index| 2 * (first + index) + usize::from(back)))
            .chain(shared(to, 1))
            .chain([2 * to + 1])
            .collect()
    }
}

/// What a route passes: a device or a bottleneck in one direction.
struct Resource {
    bytes_per_sec: u64,
    routes: Vec<usize>,
}
