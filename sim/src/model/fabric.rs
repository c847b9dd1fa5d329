//! The fabric: slices queue at servers in series, then travel.
//!
//! A *server* is a device in one direction, or a shared bottleneck in one direction. It serves slices in order
//! of arrival, one at a time, at its present rate. The next server on a slice's route starts on it as soon as
//! the one before has (bytes flow through), and the slice has passed when the last of them is done with it.
//! Then it travels for the rail's delay. Any set of routes can fill a server completely, which is what makes
//! the max-flow of the rates the limit of this model.

use std::collections::VecDeque;

use polyrail_core::work::{Op, Work};

use super::agenda::{Agenda, LaneIndex, What};
use super::chance::{Chance, Jitter, ONE};

/// A slice on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) lane: LaneIndex,
    pub(crate) epoch: u32,
    /// Its place among those of its lane's epoch.
    pub(crate) sequence: u32,
    pub(crate) cookie: u64,
    /// It asked for a completion.
    pub(crate) signal: bool,
    pub(crate) op: Op,
    pub(crate) length: u32,
    /// Where it goes on the side that is written; `None`: scratch.
    pub(crate) offset: Option<u64>,
    /// Index of its route.
    pub(crate) route: u32,
    /// Servers that it has started on, and those that are done with it.
    started: u8,
    done: u8,
    /// Its lane was let go of while it waited for a server: it passes the rest without taking time, and never arrives.
    pub(crate) dropped: bool,
    stretch: u32,
    /// Its place in the order of all that left.
    pub(crate) number: u64,
    /// When it left.
    pub(crate) left_at: u64,
}

impl Flight {
    /// One that has not left yet.
    pub(crate) fn new(
        lane: LaneIndex,
        (epoch, sequence): (u32, u32),
        route: u32,
        work: &Work,
        offset: Option<u64>,
    ) -> Self {
        Self {
            lane,
            epoch,
            sequence,
            cookie: work.cookie,
            signal: work.signal,
            op: work.op,
            length: work.length,
            offset,
            route,
            started: 0,
            done: 0,
            dropped: false,
            stretch: ONE,
            number: 0,
            left_at: 0,
        }
    }
}

/// Fraction bits of a cost.
const COST_BITS: u32 = 32;

#[derive(Debug)]
struct Server {
    /// Nanoseconds per byte, in fixed point.
    cost: u64,
    jitters: bool,
    queue: VecDeque<(u64, u32)>,
    serving: Option<u32>,
    ends_at: u64,
    /// What was left over from the last service, below a nanosecond.
    carry: u64,
    generation: u32,
}

impl Server {
    fn service_ns(&mut self, length: u32, stretch: u32) -> u64 {
        let stretch = if self.jitters { stretch } else { ONE };
        let cost =
            u128::from(length) * u128::from(self.cost) * u128::from(stretch) / u128::from(ONE);
        let cost = cost + u128::from(self.carry);
        self.carry = (cost & ((1 << COST_BITS) - 1)) as u64;
        (cost >> COST_BITS) as u64
    }
}

/// The way of one rail in one direction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// Servers in order.
    pub(crate) servers: Vec<u32>,
    /// Post to completion on an empty rail, without service.
    pub(crate) delay_ns: u64,
    /// Which rail.
    pub(crate) rail: u32,
}

/// Servers and what is on its way.
pub(crate) struct Fabric {
    servers: Vec<Server>,
    routes: Vec<Route>,
    /// Luck, by rail.
    chances: Vec<Chance>,
    jitter: Jitter,
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    launched: u64,
}

/// The stream of a rail's luck; others are below.
const RAIL_STREAM: u64 = 1 << 32;

impl Fabric {
    /// A fabric at rest. `jitters` says of each server whether chance has a part in its services.
    pub(crate) fn new(
        jitters: &[bool],
        routes: Vec<Route>,
        rails: usize,
        jitter: Jitter,
        seed: u64,
    ) -> Self {
        let server = |jitters: &bool| Server {
            cost: 0,
            jitters: *jitters,
            queue: VecDeque::new(),
            serving: None,
            ends_at: 0,
            carry: 0,
            generation: 0,
        };
        Self {
            servers: jitters.iter().map(server).collect(),
            routes,
            chances: (0..rails as u64)
                .map(|rail| Chance::new(seed, RAIL_STREAM + rail))
                .collect(),
            jitter,
            flights: Vec::new(),
            free: Vec::new(),
            launched: 0,
        }
    }

    /// Gives a server another rate; what it is at goes on with it.
    pub(crate) fn set_rate(
        &mut self,
        agenda: &mut Agenda,
        now: u64,
        index: usize,
        bytes_per_sec: u64,
    ) {
        let cost = ((1_000_000_000_u128 << COST_BITS) / u128::from(bytes_per_sec.max(1))) as u64;
        let server = &mut self.servers[index];
        let before = std::mem::replace(&mut server.cost, cost);
        if server.serving.is_some() && before != cost && before != 0 {
            let rest = u128::from(server.ends_at.saturating_sub(now)) * u128::from(cost)
                / u128::from(before);
            server.ends_at = now + rest as u64;
            server.generation = server.generation.wrapping_add(1);
            let what = What::Served {
                server: index as u32,
                generation: server.generation,
            };
            agenda.enter(server.ends_at, what);
        }
    }

    /// A slice leaves at `at`.
    pub(crate) fn launch(&mut self, agenda: &mut Agenda, at: u64, mut flight: Flight) {
        let route = &self.routes[flight.route as usize];
        self.launched += 1;
        (flight.number, flight.left_at) = (self.launched, at);
        flight.stretch = self.chances[route.rail as usize].stretch(&self.jitter);
        let first = route.servers[0];
        let index = match self.free.pop() {
            Some(index) => {
                self.flights[index as usize] = Some(flight);
                index
            }
            None => {
                self.flights.push(Some(flight));
                self.flights.len() as u32 - 1
            }
        };
        self.queue(agenda, first, at, index);
    }

    /// A server's time is up. The slice that has passed its whole route by that, and how long it travels.
    pub(crate) fn served(
        &mut self,
        agenda: &mut Agenda,
        now: u64,
        index: u32,
        generation: u32,
    ) -> Option<(u32, u64)> {
        let server = &mut self.servers[index as usize];
        if server.generation != generation {
            return None;
        }
        let served = server.serving.take()?;
        if let Some((arrived, next)) = server.queue.pop_front() {
            self.serve(agenda, index, arrived.max(now), next);
        }
        let flight = self.flights[served as usize].as_mut()?;
        flight.done += 1;
        let route = &self.routes[flight.route as usize];
        if usize::from(flight.done) < route.servers.len() {
            return None;
        }
        let extra = self.chances[route.rail as usize].extra_delay(&self.jitter, route.delay_ns);
        Some((served, route.delay_ns + extra))
    }

    /// A slice on its way.
    pub(crate) fn flight(&self, index: u32) -> Option<&Flight> {
        self.flights.get(index as usize)?.as_ref()
    }

    /// Takes a slice that has ended its way.
    pub(crate) fn land(&mut self, index: u32) -> Option<Flight> {
        let flight = self.flights.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(flight)
    }

    /// What is on its way on a lane's epoch, in any order.
    pub(crate) fn on_lane(&self, lane: LaneIndex, epoch: u32) -> impl Iterator<Item = &Flight> {
        self.flights
            .iter()
            .flatten()
            .filter(move |flight| flight.lane == lane && flight.epoch == epoch)
    }

    /// A lane is let go of: what waits for a server then passes it without taking time. What its last one has begun on is on its way.
    pub(crate) fn drop_waiting(&mut self, lane: LaneIndex, epoch: u32) {
        for flight in self.flights.iter_mut().flatten() {
            let is_of_lane = flight.lane == lane && flight.epoch <= epoch;
            let servers = &self.routes[flight.route as usize].servers;
            flight.dropped |= is_of_lane && usize::from(flight.started) < servers.len();
        }
    }

    /// The rail of a slice.
    pub(crate) fn rail_of(&self, flight: &Flight) -> u32 {
        self.routes[flight.route as usize].rail
    }

    fn queue(&mut self, agenda: &mut Agenda, server: u32, at: u64, flight: u32) {
        if self.servers[server as usize].serving.is_some() {
            self.servers[server as usize].queue.push_back((at, flight));
        } else {
            self.serve(agenda, server, at, flight);
        }
    }

    fn serve(&mut self, agenda: &mut Agenda, index: u32, at: u64, flight: u32) {
        let Some(row) = self.flights[flight as usize].as_mut() else {
            return;
        };
        let server = &mut self.servers[index as usize];
        server.serving = Some(flight);
        let length = if row.dropped { 0 } else { row.length };
        server.ends_at = at + server.service_ns(length, row.stretch);
        server.generation = server.generation.wrapping_add(1);
        agenda.enter(
            server.ends_at,
            What::Served {
                server: index,
                generation: server.generation,
            },
        );
        row.started += 1;
        let next = self.routes[row.route as usize]
            .servers
            .get(usize::from(row.started))
            .copied();
        if let Some(next) = next {
            self.queue(agenda, next, at, flight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(lane: LaneIndex, length: u32) -> Flight {
        Flight {
            lane,
            epoch: 0,
            sequence: 0,
            cookie: 0,
            signal: true,
            op: Op::Write,
            length,
            offset: None,
            route: 0,
            started: 0,
            done: 0,
            dropped: false,
            stretch: ONE,
            number: 0,
            left_at: 0,
        }
    }

    /// When the last slice of each lane has passed a device of 1 GB/s and a bottleneck of 100 MB/s behind it, where lane 1 is let go
    /// of after a slice of each of the three lanes has left.
    #[test]
    fn what_a_lane_left_before_a_bottleneck_takes_none_of_its_time() {
        let route = Route {
            servers: vec![0, 1],
            delay_ns: 0,
            rail: 0,
        };
        let mut fabric = Fabric::new(&[false; 2], vec![route], 1, Jitter::default(), 0);
        let mut agenda = Agenda::default();
        for (server, rate) in [(0, 1_000_000_000), (1, 100_000_000)] {
            fabric.set_rate(&mut agenda, 0, server, rate);
        }
        for lane in 0..3 {
            fabric.launch(&mut agenda, 0, flight(lane, 1_000_000));
        }
        let mut passed = Vec::new();
        while let Some((now, what)) = agenda.next() {
            let What::Served { server, generation } = what else {
                continue;
            };
            if let Some((flight, _)) = fabric.served(&mut agenda, now, server, generation) {
                let flight = fabric.land(flight).expect("it has passed");
                passed.push((flight.lane, flight.dropped, now));
            }
            // The device is done with all of them then; two wait for the bottleneck.
            if now == 3_000_000 {
                fabric.drop_waiting(1, 0);
            }
        }
        let expected = [
            (0, false, 10_000_000),
            (1, true, 10_000_000),
            (2, false, 20_000_000),
        ];
        assert_eq!(passed, expected);
    }
}
