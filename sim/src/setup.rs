//! From a scenario's names to numbers: servers, routes, engines, submitters, and how capacities change.

use std::collections::BTreeMap;
use std::ops::Range;

use polyrail_core::work::Op;
use toml::Spanned;

use crate::model::chance::{Chance, Jitter};
use crate::model::fabric::Route;
use crate::model::ledger::REQUEST_BYTES_MAX;
use crate::scenario::{Fault, FaultKind, Scenario, ScenarioError, WorkloadOp, size};

/// Rails of one engine to one peer, at most: what a plan can name.
const PEER_RAILS_MAX: usize = polyrail_core::plan::PLAN_RAILS_MAX;
/// Limits that keep a mistyped number from taking all memory.
const DEVICES_MAX: u16 = 1024;
const WORKERS_MAX: u16 = 64;
const PROCESSES_MAX: u16 = 64;
const SUBMITTERS_MAX: u32 = 4096;
const OUTSTANDING_MAX: u64 = 65_536;
const REPEATS_MAX: u32 = 10_000;
const DURATION_MS_MAX: u64 = 3_600_000;

const MS: f64 = 1_000_000.0;
/// One in parts per million.
pub(crate) const PPM: u64 = 1_000_000;

/// A device, by name and number.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    /// `host/device`.
    pub(crate) name: String,
    pub(crate) host: usize,
    pub(crate) numa: Option<u16>,
    pub(crate) bytes_per_sec: u64,
    pub(crate) delay_ns: u64,
    pub(crate) queue_depth: u16,
}

/// A rail: two devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rail {
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// One process on one host.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) host: usize,
    /// The host of each of its peers.
    pub(crate) peers: Vec<usize>,
    /// Its rails, by their number in it.
    pub(crate) rails: Vec<usize>,
    /// The peer at the far end of each.
    pub(crate) rail_peers: Vec<u16>,
    /// The first of its workers.
    pub(crate) first_worker: usize,
}

/// A closed loop.
#[derive(Clone, Debug)]
pub(crate) struct Submitter {
    pub(crate) engine: usize,
    /// Its worker, of all.
    pub(crate) worker: usize,
    pub(crate) peer: u16,
    /// Index of its plan in its engine.
    pub(crate) plan: u32,
    pub(crate) op: Op,
    pub(crate) block: u64,
    pub(crate) batch: u32,
    /// Batches, if they are counted.
    pub(crate) count: Option<u64>,
    pub(crate) starts_at: u64,
    /// No batch starts from then on.
    pub(crate) stops_at: u64,
}

/// A pair of hosts that a workload joins, in one direction: what the fluid limit calls a commodity.
#[derive(Clone, Debug)]
pub(crate) struct Commodity {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) starts_at: u64,
    /// Routes that can carry it.
    pub(crate) routes: Vec<usize>,
}

/// A plan of an engine: a peer, and which of its rails are how far from the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlanOf {
    pub(crate) engine: usize,
    pub(crate) peer: u16,
    /// The engine's rail numbers, and tiers.
    pub(crate) rails: Vec<(u16, u8)>,
}

/// How a rail is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cut {
    No,
    Silent,
    Error,
}

/// A span of time in which nothing changes.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub(crate) starts_at: u64,
    /// By server.
    pub(crate) bytes_per_sec: Vec<u64>,
    /// By rail.
    pub(crate) cuts: Vec<Cut>,
}

/// Everything a run needs, checked.
#[derive(Clone, Debug)]
pub struct Setup {
    pub(crate) name: String,
    pub(crate) seed: u64,
    pub(crate) ends_at: u64,
    pub(crate) engine: crate::scenario::Engine,
    pub(crate) jitter: Jitter,
    pub(crate) timing: crate::scenario::Timing,
    pub(crate) devices: Vec<Device>,
    pub(crate) rails: Vec<Rail>,
    /// By server: whether chance has a part in it.
    pub(crate) jitters: Vec<bool>,
    /// Two for each rail: from `from` to `to`, and back.
    pub(crate) routes: Vec<Route>,
    pub(crate) engines: Vec<Engine>,
    pub(crate) plans: Vec<PlanOf>,
    pub(crate) submitters: Vec<Submitter>,
    pub(crate) commodities: Vec<Commodity>,
    pub(crate) intervals: Vec<Interval>,
}

/// The number of a rail's route in one direction.
pub(crate) const fn route_of(rail: usize, back: bool) -> usize {
    2 * rail + back as usize
}

/// What a fault does to one thing.
#[derive(Clone, Copy, Debug)]
enum Effect {
    /// A resource has this many millionths of its nominal rate.
    Rate { resource: usize, ppm: u64 },
    /// A rail is cut.
    Cut { rail: usize, cut: Cut },
}

/// From when to when a fault does it.
struct Window {
    from: u64,
    to: u64,
    effect: Effect,
}

/// How long someone else's bursts last, and the pauses between them.
const BURST_NS_MIN: u64 = 2_000_000;
const BURST_NS_MAX: u64 = 6_000_000;
/// What the mildest of them leaves.
const BURST_LEFT_MAX_PPM: u64 = 600_000;
/// The stream of the first fault's luck.
const BURST_STREAM: u64 = 1 << 48;

struct Builder<'a> {
    text: &'a str,
    scenario: &'a Scenario,
    hosts: Vec<&'a str>,
    devices: Vec<Device>,
    rails: Vec<Rail>,
    /// By bottleneck: its rate and members.
    bottlenecks: Vec<(u64, Vec<usize>)>,
}

type Checked<T> = Result<T, ScenarioError>;

impl Setup {
    /// Checks a scenario and numbers what is in it. `text` is its file, for the lines of errors.
    pub fn new(text: &str, scenario: &Scenario, seed: Option<u64>) -> Result<Self, ScenarioError> {
        let builder = Builder {
            text,
            scenario,
            hosts: Vec::new(),
            devices: Vec::new(),
            rails: Vec::new(),
            bottlenecks: Vec::new(),
        };
        builder.build(seed.unwrap_or(scenario.seed))
    }

    /// The setup without its faults.
    pub fn undisturbed(&self) -> Self {
        Self {
            intervals: self.intervals[..1].to_vec(),
            ..self.clone()
        }
    }

    /// Lets submitters stop after so many milliseconds at the latest.
    pub fn shorten(&mut self, duration_ms: u64) {
        self.ends_at = self.ends_at.min(duration_ms.saturating_mul(1_000_000));
        for submitter in &mut self.submitters {
            submitter.stops_at = submitter.stops_at.min(self.ends_at);
        }
    }

    /// The commodity that a submitter's bytes belong to.
    pub(crate) fn commodity_of(&self, submitter: usize) -> usize {
        let row = &self.submitters[submitter];
        let engine = &self.engines[row.engine];
        let (near, far) = (engine.host, engine.peers[usize::from(row.peer)]);
        let ends = if row.op == Op::Read {
            (far, near)
        } else {
            (near, far)
        };
        self.commodities
            .iter()
            .position(|commodity| (commodity.from, commodity.to) == ends)
            .unwrap_or(0)
    }

    /// How many workers there are in all.
    pub(crate) fn workers(&self) -> usize {
        self.engines.len() * usize::from(*self.engine.workers.get_ref())
    }

    /// `host/device>host/device`.
    pub(crate) fn rail_name(&self, rail: usize) -> String {
        let Rail { from, to } = self.rails[rail];
        format!("{}>{}", self.devices[from].name, self.devices[to].name)
    }

    /// Base delay of a rail.
    pub(crate) fn delay_ns(&self, rail: usize) -> u64 {
        let Rail { from, to } = self.rails[rail];
        self.devices[from].delay_ns + self.devices[to].delay_ns
    }

    /// Nominal rate of a rail.
    pub(crate) fn nominal(&self, rail: usize) -> u64 {
        let Rail { from, to } = self.rails[rail];
        self.devices[from]
            .bytes_per_sec
            .min(self.devices[to].bytes_per_sec)
    }
}

impl<'a> Builder<'a> {
    fn error<T, U>(&self, at: &Spanned<U>, message: impl Into<String>) -> Checked<T> {
        Err(ScenarioError::at(self.text, at.span(), message))
    }

    fn build(mut self, seed: u64) -> Checked<Setup> {
        let scenario = self.scenario;
        if scenario.duration_ms == 0 || scenario.duration_ms > DURATION_MS_MAX {
            let text = format!("duration_ms is 1 to {DURATION_MS_MAX}");
            return Err(ScenarioError { line: 0, text });
        }
        self.within(&scenario.engine.workers, 1, WORKERS_MAX, "workers")?;
        self.hosts()?;
        self.devices()?;
        self.rails()?;
        self.bottlenecks()?;
        let ends_at = scenario.duration_ms * 1_000_000;
        let mut setup = Setup {
            name: scenario.name.clone(),
            seed,
            ends_at,
            engine: scenario.engine.clone(),
            jitter: Jitter {
                service_percent: scenario.jitter.service_percent.min(100),
                outlier_one_in: scenario.jitter.outlier_one_in,
                outlier_factor: scenario.jitter.outlier_factor.clamp(1, 1_000),
                delay_percent: scenario.jitter.delay_percent,
            },
            timing: scenario.timing.clone(),
            devices: self.devices.clone(),
            rails: self.rails.clone(),
            jitters: Vec::new(),
            routes: Vec::new(),
            engines: Vec::new(),
            plans: Vec::new(),
            submitters: Vec::new(),
            commodities: Vec::new(),
            intervals: Vec::new(),
        };
        self.workloads(&mut setup)?;
        self.servers(&mut setup, seed)?;
        for index in 0..setup.commodities.len() {
            let Commodity { from, to, .. } = setup.commodities[index];
            setup.commodities[index].routes = routes_between(&setup, from, to);
        }
        Ok(setup)
    }

    fn within<T: PartialOrd + std::fmt::Display + Copy>(
        &self,
        value: &Spanned<T>,
        min: T,
        max: T,
        what: &str,
    ) -> Checked<T> {
        let got = *value.get_ref();
        if got >= min && got <= max {
            return Ok(got);
        }
        self.error(value, format!("{what} is {min} to {max}, not {got}"))
    }

    fn hosts(&mut self) -> Checked<()> {
        for host in &self.scenario.host {
            let name = host.name.get_ref().as_str();
            if name.is_empty() || name.contains(['/', '>', '*']) {
                return self.error(
                    &host.name,
                    format!("{name:?} cannot name a host: '/', '>' and '*' have a meaning"),
                );
            }
            if self.hosts.contains(&name) {
                return self.error(&host.name, format!("there are two hosts {name:?}"));
            }
            self.hosts.push(name);
        }
        Ok(())
    }

    fn host(&self, name: &Spanned<String>) -> Checked<usize> {
        match self.hosts.iter().position(|host| host == name.get_ref()) {
            Some(host) => Ok(host),
            None => self.error(name, format!("there is no host {:?}", name.get_ref())),
        }
    }

    fn rate(&self, gbits: &Spanned<f64>) -> Checked<u64> {
        let rate = self.within(gbits, 0.001, 100_000.0, "rate_gbits_per_sec")?;
        Ok((rate * 125_000_000.0) as u64)
    }

    fn devices(&mut self) -> Checked<()> {
        for device in &self.scenario.device {
            let host = self.host(&device.host)?;
            if let Some(numa) = &device.numa {
                self.within(
                    numa,
                    0,
                    self.scenario.host[host].numa.saturating_sub(1),
                    "numa",
                )?;
            }
            self.within(&device.queue_depth, 1, 4096, "queue_depth")?;
            let delay_us = device.delay_us;
            if !(0.0..=1_000_000.0).contains(&delay_us) {
                return self.error(
                    &device.name,
                    format!("delay_us is 0 to 1000000, not {delay_us}"),
                );
            }
            let count = match &device.count {
                Some(count) => Some(self.within(count, 1, DEVICES_MAX, "count")?),
                None => None,
            };
            let bytes_per_sec = self.rate(&device.rate_gbits_per_sec)?;
            for number in 0..count.unwrap_or(1) {
                let number = count.map_or(String::new(), |_| number.to_string());
                let name = format!("{}/{}{number}", self.hosts[host], device.name.get_ref());
                if device.name.get_ref().contains(['/', '>', '*'])
                    || self.devices.iter().any(|other| other.name == name)
                {
                    return self.error(
                        &device.name,
                        format!(
                            "device {name:?} is there already, or its name has '/', '>' or '*'"
                        ),
                    );
                }
                self.devices.push(Device {
                    name,
                    host,
                    numa: device.numa.as_ref().map(|numa| *numa.get_ref()),
                    bytes_per_sec,
                    delay_ns: (delay_us * 1_000.0) as u64,
                    queue_depth: *device.queue_depth.get_ref(),
                });
            }
        }
        Ok(())
    }

    /// Devices that a name means, by number.
    fn named(&self, name: &str) -> Vec<usize> {
        let fits = |device: &Device| match name.strip_suffix('*') {
            Some(start) => device.name.starts_with(start),
            None => device.name == name,
        };
        (0..self.devices.len())
            .filter(|index| fits(&self.devices[*index]))
            .collect()
    }

    fn some_named(&self, name: &Spanned<String>) -> Checked<Vec<usize>> {
        let found = self.named(name.get_ref());
        if found.is_empty() {
            let known: Vec<_> = self
                .devices
                .iter()
                .map(|device| device.name.as_str())
                .take(8)
                .collect();
            return self.error(
                name,
                format!(
                    "there is no device {:?}; there are {} …",
                    name.get_ref(),
                    known.join(", ")
                ),
            );
        }
        Ok(found)
    }

    fn rails(&mut self) -> Checked<()> {
        for rail in &self.scenario.rail {
            let (from, to) = (self.some_named(&rail.from)?, self.some_named(&rail.to)?);
            if !rail.all && from.len() != to.len() {
                let text = format!(
                    "{} devices against {}: list as many on both sides, or say all = true",
                    from.len(),
                    to.len()
                );
                return self.error(&rail.from, text);
            }
            for (i, from) in from.iter().copied().enumerate() {
                for (j, to) in to.iter().copied().enumerate() {
                    if !rail.all && i != j {
                        continue;
                    }
                    if self.devices[from].host == self.devices[to].host {
                        return self.error(&rail.to, "a rail joins two hosts");
                    }
                    self.rails.push(Rail { from, to });
                }
            }
        }
        Ok(())
    }

    fn bottlenecks(&mut self) -> Checked<()> {
        for bottleneck in &self.scenario.bottleneck {
            let rate = self.rate(&bottleneck.rate_gbits_per_sec)?;
            let mut members = Vec::new();
            for member in &bottleneck.members {
                members.extend(self.some_named(member)?);
            }
            self.bottlenecks.push((rate, members));
        }
        Ok(())
    }

    fn workloads(&self, setup: &mut Setup) -> Checked<()> {
        let workers = usize::from(*self.scenario.engine.workers.get_ref());
        let mut engines: BTreeMap<(usize, u16), usize> = BTreeMap::new();
        for workload in &self.scenario.workload {
            let (from, to) = (self.host(&workload.from)?, self.host(&workload.to)?);
            let Some(block) = size(workload.block.get_ref())
                .filter(|block| (1..=REQUEST_BYTES_MAX / 2).contains(block))
            else {
                return self.error(
                    &workload.block,
                    "block is a size of 1 to 32GiB, like 65536 or \"64KiB\"",
                );
            };
            let batch = self.within(&workload.batch, 1, 4096, "batch")?;
            let threads = self.within(&workload.threads, 1, SUBMITTERS_MAX, "threads")?;
            let processes = self.within(&workload.processes, 1, PROCESSES_MAX, "processes")?;
            if u64::from(batch) * u64::from(threads) > OUTSTANDING_MAX {
                return self.error(
                    &workload.threads,
                    format!("threads × batch is at most {OUTSTANDING_MAX}"),
                );
            }
            if let (Some(_), Some(seconds)) = (&workload.count, &workload.seconds) {
                return self.error(seconds, "count or seconds, not both");
            }
            if !(0.0..=DURATION_MS_MAX as f64).contains(&workload.start_ms) {
                return self.error(
                    &workload.from,
                    format!("start_ms is 0 to {DURATION_MS_MAX}"),
                );
            }
            let starts_at = (workload.start_ms * MS) as u64;
            let stops_at = match (&workload.count, &workload.seconds) {
                (Some(_), _) => u64::MAX,
                (_, Some(seconds)) => {
                    let seconds = self.within(seconds, 0.000_001, 3_600.0, "seconds")?;
                    starts_at + (seconds * 1_000.0 * MS) as u64
                }
                _ => setup.ends_at,
            };
            let op = match workload.op {
                WorkloadOp::Write => Op::Write,
                WorkloadOp::Read => Op::Read,
            };
            for process in 0..processes {
                let engine = *engines.entry((from, process)).or_insert_with(|| {
                    let first_worker = setup.engines.len() * workers;
                    setup.engines.push(Engine {
                        host: from,
                        peers: Vec::new(),
                        rails: Vec::new(),
                        rail_peers: Vec::new(),
                        first_worker,
                    });
                    setup.engines.len() - 1
                });
                let plan = self.plan(setup, engine, to, workload)?;
                let peer = setup.plans[plan].peer;
                for thread in 0..threads {
                    setup.submitters.push(Submitter {
                        engine,
                        worker: engine * workers + thread as usize % workers,
                        peer,
                        plan: plan as u32,
                        op,
                        block,
                        batch,
                        count: workload.count.as_ref().map(|count| *count.get_ref()),
                        starts_at,
                        stops_at,
                    });
                }
            }
            let (from, to) = match op {
                Op::Write => (from, to),
                Op::Read => (to, from),
            };
            match setup
                .commodities
                .iter_mut()
                .find(|known| (known.from, known.to) == (from, to))
            {
                Some(known) => known.starts_at = known.starts_at.min(starts_at),
                None => setup.commodities.push(Commodity {
                    from,
                    to,
                    starts_at,
                    routes: Vec::new(),
                }),
            }
        }
        Ok(())
    }

    /// The plan of an engine for a workload, and with it the engine's rails to that peer.
    fn plan(
        &self,
        setup: &mut Setup,
        engine: usize,
        to: usize,
        workload: &crate::scenario::Workload,
    ) -> Checked<usize> {
        let row = &mut setup.engines[engine];
        let peer = match row.peers.iter().position(|peer| *peer == to) {
            Some(peer) => peer,
            None => {
                row.peers.push(to);
                let peer = row.peers.len() - 1;
                for (rail, ends) in self.rails.iter().enumerate() {
                    if (self.devices[ends.from].host, self.devices[ends.to].host) == (row.host, to)
                    {
                        row.rails.push(rail);
                        row.rail_peers.push(peer as u16);
                    }
                }
                peer
            }
        };
        let tier = |rail: usize| {
            polyrail_core::topology::tier(workload.numa, self.devices[self.rails[rail].from].numa)
        };
        let rails: Vec<_> = (0..row.rails.len())
            .filter(|number| usize::from(row.rail_peers[*number]) == peer)
            .map(|number| (number as u16, tier(row.rails[number])))
            .collect();
        if rails.is_empty() || rails.len() > PEER_RAILS_MAX {
            let text = format!(
                "{} rails lead from {} to {}; a plan has 1 to {PEER_RAILS_MAX}",
                rails.len(),
                workload.from.get_ref(),
                workload.to.get_ref()
            );
            return self.error(&workload.to, text);
        }
        let plan = PlanOf {
            engine,
            peer: peer as u16,
            rails,
        };
        Ok(match setup.plans.iter().position(|known| *known == plan) {
            Some(known) => known,
            None => {
                setup.plans.push(plan);
                setup.plans.len() - 1
            }
        })
    }

    /// Servers, routes over them, and how their rates change.
    fn servers(&self, setup: &mut Setup, seed: u64) -> Checked<()> {
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
        let Rail { from, to } = self.rails[rail];
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
            .chain(shared(to, 1))
            .chain([2 * to + 1])
            .collect()
    }

    /// What faults do and when, those that repeat or come in bursts written out.
    fn windows(&self, ends_at: u64, seed: u64) -> Checked<Vec<Window>> {
        let mut windows = Vec::new();
        for (number, fault) in self.scenario.fault.iter().enumerate() {
            let effects = self.effects(fault)?;
            let mut chance = Chance::new(seed, BURST_STREAM + number as u64);
            for span in self.spans(fault)? {
                if *fault.kind.get_ref() != FaultKind::Bursts {
                    let window = |effect: &Effect| Window {
                        from: span.start,
                        to: span.end,
                        effect: *effect,
                    };
                    windows.extend(effects.iter().map(window));
                    continue;
                }
                // Two resources, the directions of one device, share their fate.
                for pair in effects.chunks(2) {
                    let span = span.start..span.end.min(ends_at);
                    windows.extend(bursts(&mut chance, span, pair));
                }
            }
        }
        Ok(windows)
    }

    /// When a fault is there.
    fn spans(&self, fault: &Fault) -> Checked<Vec<Range<u64>>> {
        let times = match &fault.times {
            Some(times) => self.within(times, 1, REPEATS_MAX, "times")?,
            None => 1,
        };
        let given = [Some(fault.at_ms), fault.for_ms, fault.every_ms];
        if !given
            .into_iter()
            .flatten()
            .all(|ms| (0.0..=DURATION_MS_MAX as f64).contains(&ms))
        {
            return self.error(
                &fault.kind,
                format!("at_ms, for_ms and every_ms are 0 to {DURATION_MS_MAX}"),
            );
        }
        if times > 1 && (fault.every_ms.is_none() || fault.for_ms.is_none()) {
            return self.error(
                &fault.kind,
                "a fault that repeats needs for_ms and every_ms",
            );
        }
        let every = (fault.every_ms.unwrap_or(0.0) * MS) as u64;
        let span = |time: u64| {
            let from = (fault.at_ms * MS) as u64 + time * every;
            from..fault
                .for_ms
                .map_or(u64::MAX, |length| from + (length * MS) as u64)
        };
        Ok((0..u64::from(times)).map(span).collect())
    }

    /// What a fault does while it is there.
    fn effects(&self, fault: &Fault) -> Checked<Vec<Effect>> {
        let kind = *fault.kind.get_ref();
        let cut = match kind {
            FaultKind::Silent => Cut::Silent,
            FaultKind::Error => Cut::Error,
            FaultKind::Slow | FaultKind::Bursts => {
                let Some(factor) = &fault.factor else {
                    return self.error(&fault.kind, "this kind of fault needs a factor");
                };
                let ppm = (self.within(factor, 0.000_1, 100.0, "factor")? * PPM as f64) as u64;
                let resources = self.slowed(&fault.target)?;
                return Ok(resources
                    .into_iter()
                    .map(|resource| Effect::Rate { resource, ppm })
                    .collect());
            }
        };
        if let Some(factor) = &fault.factor {
            return self.error(factor, "a cut has no factor");
        }
        let rails = self.cut(&fault.target)?;
        Ok(rails
            .into_iter()
            .map(|rail| Effect::Cut { rail, cut })
            .collect())
    }

    /// Resources that a fault's target means, in pairs of directions.
    fn slowed(&self, target: &Spanned<String>) -> Checked<Vec<usize>> {
        let name = target.get_ref();
        if name.contains('>') {
            return self.error(target, "one rail cannot be slowed; slow its device");
        }
        let bottleneck = self
            .scenario
            .bottleneck
            .iter()
            .position(|row| row.name.get_ref() == name);
        let found = match bottleneck {
            Some(index) => vec![self.devices.len() + index],
            None => self.some_named(target)?,
        };
        Ok(found
            .into_iter()
            .flat_map(|index| [2 * index, 2 * index + 1])
            .collect())
    }

    /// Rails that a fault's target means.
    fn cut(&self, target: &Spanned<String>) -> Checked<Vec<usize>> {
        let name = target.get_ref();
        let found: Vec<usize> = match name.split_once('>') {
            Some((from, to)) => {
                let (from, to) = (self.named(from), self.named(to));
                let joins = |rail: &&Rail| from.contains(&rail.from) && to.contains(&rail.to);
                (0..self.rails.len())
                    .filter(|index| joins(&&self.rails[*index]))
                    .collect()
            }
            None => {
                let devices = self.some_named(target)?;
                let touches =
                    |rail: &Rail| devices.contains(&rail.from) || devices.contains(&rail.to);
                (0..self.rails.len())
                    .filter(|index| touches(&self.rails[*index]))
                    .collect()
            }
        };
        if found.is_empty() {
            return self.error(
                target,
                format!("no rail is {name:?}; write host/device or host/device>host/device"),
            );
        }
        Ok(found)
    }
}

/// Someone else's traffic on one device: on for 2 to 6 ms, off for as long, leaving a share drawn each time.
fn bursts(chance: &mut Chance, span: Range<u64>, directions: &[Effect]) -> Vec<Window> {
    let mut windows = Vec::new();
    let mut from = span.start + chance.below(BURST_NS_MAX);
    while from < span.end {
        let to = (from + BURST_NS_MIN + chance.below(BURST_NS_MAX - BURST_NS_MIN)).min(span.end);
        let draw = chance.below(PPM);
        for effect in directions {
            if let Effect::Rate { resource, ppm } = *effect {
                let left = ppm + BURST_LEFT_MAX_PPM.saturating_sub(ppm) * draw / PPM;
                let effect = Effect::Rate {
                    resource,
                    ppm: left,
                };
                windows.push(Window { from, to, effect });
            }
        }
        from = to + BURST_NS_MIN + chance.below(BURST_NS_MAX - BURST_NS_MIN);
    }
    windows
}

fn routes_between(setup: &Setup, from: usize, to: usize) -> Vec<usize> {
    let host = |device: usize| setup.devices[device].host;
    let ends = |rail: &Rail| (host(rail.from), host(rail.to));
    let fits = |(index, rail): (usize, &Rail)| match ends(rail) {
        pair if pair == (from, to) => Some(route_of(index, false)),
        pair if pair == (to, from) => Some(route_of(index, true)),
        _ => None,
    };
    setup.rails.iter().enumerate().filter_map(fits).collect()
}

/// What a route passes: a device or a bottleneck in one direction.
struct Resource {
    bytes_per_sec: u64,
    routes: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
name = "two"
duration_ms = 10
[[host]]
name = "a"
[[host]]
name = "b"
[[device]]
host = "a"
name = "nic"
count = 2
rate_gbits_per_sec = 200
[[device]]
host = "b"
name = "nic"
count = 2
rate_gbits_per_sec = 200
delay_us = 3
[[rail]]
from = "a/nic*"
to = "b/nic*"
[[workload]]
from = "a"
to = "b"
op = "write"
block = "1MiB"
"#;

    fn setup(text: &str) -> Checked<Setup> {
        Setup::new(text, &Scenario::parse(text)?, None)
    }

    #[test]
    fn rails_of_their_own_are_one_server_each() {
        let setup = setup(GOOD).unwrap();
        assert_eq!(setup.rails.len(), 2);
        assert_eq!(setup.rail_name(1), "a/nic1>b/nic1");
        assert_eq!(
            (setup.nominal(0), setup.delay_ns(0)),
            (25_000_000_000, 3_000)
        );
        assert!(setup.routes.iter().all(|route| route.servers.len() == 1));
        assert_eq!(setup.commodities[0].routes, [0, 2]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        // (name, what to replace, by what, line, part of the text)
        let cases = [
            (
                "unknown key",
                "delay_us = 3",
                "delai_us = 3",
                18,
                "unknown field",
            ),
            (
                "wrong type",
                "duration_ms = 10",
                "duration_ms = \"x\"",
                3,
                "invalid type",
            ),
            ("not TOML", "duration_ms = 10", "duration_ms =", 3, ""),
            ("missing key", "name = \"two\"\n", "", 1, "name"),
            (
                "no such host",
                "to = \"b\"\n",
                "to = \"c\"\n",
                24,
                "no host",
            ),
            (
                "no such device",
                "to = \"b/nic*\"",
                "to = \"b/eth*\"",
                21,
                "b/nic0",
            ),
            (
                "lists of different length",
                "to = \"b/nic*\"",
                "to = \"b/nic0\"",
                20,
                "2 devices against 1",
            ),
            (
                "two hosts of one name",
                "name = \"b\"",
                "name = \"a\"",
                7,
                "two hosts",
            ),
            (
                "out of range",
                "rate_gbits_per_sec = 200\n[[device]]",
                "rate_gbits_per_sec = 0\n[[device]]",
                12,
                "rate_gbits_per_sec",
            ),
            (
                "not a size",
                "block = \"1MiB\"",
                "block = \"1mb\"",
                26,
                "block",
            ),
            (
                "not a number",
                "delay_us = 3",
                "delay_us = nan",
                15,
                "delay_us",
            ),
        ];
        for (name, from, to, line, part) in cases {
            let text = GOOD.replace(from, to);
            let error = setup(&text).expect_err(name);
            assert!(
                error.line == line && error.text.contains(part),
                "{name}: {error}"
            );
        }
    }

    #[test]
    fn wrong_faults_are_said_too() {
        // (name, fault, part of the text)
        let cases = [
            (
                "unknown kind",
                "at_ms = 1\nkind = \"melt\"\ntarget = \"a/nic0\"",
                "unknown variant",
            ),
            (
                "no factor",
                "at_ms = 1\nkind = \"slow\"\ntarget = \"a/nic0\"",
                "needs a factor",
            ),
            (
                "cut with factor",
                "at_ms = 1\nkind = \"silent\"\ntarget = \"a/nic0\"\nfactor = 0.5",
                "no factor",
            ),
            (
                "no such rail",
                "at_ms = 1\nkind = \"silent\"\ntarget = \"a/nic0>b/nic1\"",
                "no rail",
            ),
            (
                "one rail slowed",
                "at_ms = 1\nkind = \"slow\"\nfactor = 0.5\ntarget = \"a/nic0>b/nic0\"",
                "slow its device",
            ),
            (
                "repeats without a period",
                "at_ms = 1\nkind = \"error\"\ntarget = \"a/nic0\"\ntimes = 2",
                "every_ms",
            ),
            (
                "before the start",
                "at_ms = -1\nkind = \"error\"\ntarget = \"a/nic0\"",
                "at_ms",
            ),
        ];
        for (name, fault, part) in cases {
            let text = format!("{GOOD}[[fault]]\n{fault}\n");
            let error = setup(&text).expect_err(name);
            assert!(
                error.line > 26 && error.text.contains(part),
                "{name}: {error}"
            );
        }
    }

    #[test]
    fn faults_make_intervals() {
        let faults = r#"
[[fault]]
at_ms = 2
for_ms = 3
kind = "slow"
target = "a/nic0"
factor = 0.25
[[fault]]
at_ms = 4
kind = "silent"
target = "a/nic1>b/nic1"
"#;
        let setup = setup(&format!("{GOOD}{faults}")).unwrap();
        let starts: Vec<_> = setup
            .intervals
            .iter()
            .map(|row| row.starts_at / 1_000_000)
            .collect();
        assert_eq!(starts, [0, 2, 4, 5]);
        let server = setup.routes[0].servers[0] as usize;
        let rates: Vec<_> = setup
            .intervals
            .iter()
            .map(|row| row.bytes_per_sec[server] / 1_000_000)
            .collect();
        assert_eq!(rates, [25_000, 6_250, 6_250, 25_000]);
        assert_eq!(setup.intervals[3].cuts, [Cut::No, Cut::Silent]);
    }
}
