//! From a scenario's names to numbers: servers, routes, engines, submitters, and how capacities change.

mod faults;
mod isolation;
mod load;
mod names;
mod servers;

use std::net::IpAddr;

use polyrail_core::path::class::RailClass;
use polyrail_core::units::RailId;
use polyrail_core::work::Op;
use toml::Spanned;

use crate::model::chance::Jitter;
use crate::model::fabric::Route;
use crate::scenario::{Scenario, ScenarioError, Urgency};
pub(crate) use isolation::{Isolation, Said};

/// Limits that keep a mistyped number from taking all memory.
const DEVICES_MAX: u16 = 1024;
const HOSTS_MAX: u16 = 1024;
const WORKERS_MAX: u16 = 64;
const DURATION_MS_MAX: u64 = 86_400_000;
/// Runs up to here are counted by the millisecond, longer ones by the second.
const FINE_NS_MAX: u64 = 600_000_000_000;

/// No time of a table is above this.
const TIME_NS_MAX: u64 = 60_000_000_000;
/// Workers of all engines: each has tables of a megabyte.
const WORKERS_ALL_MAX: usize = 512;
/// Rails, and spans of faults, of one scenario.
const RAILS_MAX: usize = 4_096;
const WINDOWS_MAX: usize = 10_000;
/// Rows of a table that a scenario asks for.
const ROWS_MAX: u32 = 65_536;

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
    pub(crate) work_bytes_max: u32,
    pub(crate) reads_max: u16,
    /// A completion covers the works before it that asked for none.
    pub(crate) covers: bool,
    pub(crate) address: Option<IpAddr>,
}

/// A rail: two devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rail {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Of its transport, 0 the best.
    pub(crate) rank: u8,
    pub(crate) class: RailClass,
    /// The rail that it stands in for.
    pub(crate) stands_in_for: Option<usize>,
    /// The bottleneck that it passes besides those of its devices.
    pub(crate) over: Option<usize>,
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
    /// Which `[[workload]]` it is of.
    pub(crate) workload: usize,
    pub(crate) engine: usize,
    /// Its worker, of all.
    pub(crate) worker: usize,
    pub(crate) peer: u16,
    /// Index of its plan in its engine.
    pub(crate) plan: u32,
    pub(crate) op: Op,
    pub(crate) block: u64,
    /// Requests of a batch, at most and at least.
    pub(crate) batch: u32,
    pub(crate) batch_min: u32,
    /// Batches, if they are counted.
    pub(crate) count: Option<u64>,
    pub(crate) starts_at: u64,
    /// No batch starts from then on.
    pub(crate) stops_at: u64,
    pub(crate) pause_ns: u64,
    /// 0: none.
    pub(crate) deadline_ns: u64,
    pub(crate) priority: Urgency,
    pub(crate) cancel_one_in: u32,
    /// The blocks of a batch lie one behind the other.
    pub(crate) in_a_row: bool,
}

/// A plan of an engine: a peer, and which of its rails are how far from the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlanOf {
    pub(crate) engine: usize,
    pub(crate) peer: u16,
    /// The engine's rail numbers, and tiers.
    pub(crate) rails: Vec<(u16, u8)>,
}

/// Something that happens to a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Incident {
    /// Its workers stand still until then.
    Stalls { until: u64 },
    /// Its control plane is cut off, or is not any more.
    Muted(bool),
    /// As a peer it goes down: nothing that was sent to it lands any more.
    Down,
    /// And is back, in a new process or not.
    Back { restarted: bool },
    /// As a peer it is gone for good.
    Dies,
    /// Its agent is killed.
    AgentDies,
    /// Another agent is started.
    AgentStarts,
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
    pub(crate) shows: String,
    pub(crate) seed: u64,
    pub(crate) ends_at: u64,
    pub(crate) engine: crate::scenario::Engine,
    pub(crate) jitter: Jitter,
    pub(crate) timing: crate::scenario::Timing,
    pub(crate) trouble: crate::scenario::Trouble,
    pub(crate) limits: crate::scenario::Limits,
    pub(crate) room: crate::scenario::Room,
    /// By rail: nothing goes wrong by chance there.
    pub(crate) spared: Vec<bool>,
    /// What happens to which host, and when.
    pub(crate) incidents: Vec<(u64, usize, Incident)>,
    /// How many hosts.
    pub(crate) hosts: usize,
    /// How paths are isolated, if they are.
    pub(crate) isolation: Option<Isolation>,
    pub(crate) devices: Vec<Device>,
    pub(crate) rails: Vec<Rail>,
    /// By server: whether chance has a part in it.
    pub(crate) jitters: Vec<bool>,
    /// Two for each rail: from `from` to `to`, and back.
    pub(crate) routes: Vec<Route>,
    pub(crate) engines: Vec<Engine>,
    pub(crate) plans: Vec<PlanOf>,
    pub(crate) submitters: Vec<Submitter>,
    pub(crate) intervals: Vec<Interval>,
}

impl Engine {
    /// The rail that one of its rails stands in for, if that is a spare; both by their number in it.
    pub(crate) fn front_of(&self, number: usize, rails: &[Rail]) -> Option<RailId> {
        let front = rails[self.rails[number]].stands_in_for?;
        let position = self.rails.iter().position(|rail| *rail == front)?;
        Some(RailId(position as u16))
    }
}

/// The number of a rail's route in one direction.
pub(crate) const fn route_of(rail: usize, back: bool) -> usize {
    2 * rail + back as usize
}

/// Resolves a scenario's names, table by table.
struct Builder<'a> {
    text: &'a str,
    scenario: &'a Scenario,
    /// Their names, and how many NUMA nodes each has.
    hosts: Vec<(String, u16)>,
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

    /// The setup as it is at the start, for good: without the faults that come later.
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

    /// When everything that goes wrong is over.
    pub(crate) fn calm_at(&self) -> u64 {
        let changes = self.intervals.last().map(|row| row.starts_at);
        let ends = self
            .incidents
            .iter()
            .map(|(at, _, incident)| match incident {
                Incident::Stalls { until } => *until,
                _ => *at,
            });
        let chance = (self.trouble.until_ms * MS) as u64;
        changes
            .into_iter()
            .chain(ends)
            .chain([chance])
            .max()
            .unwrap_or(0)
    }

    /// The width of the buckets in which bytes are counted over time.
    pub(crate) fn bucket_ns(&self) -> u64 {
        match self.ends_at {
            0..=FINE_NS_MAX => 1_000_000,
            _ => 1_000_000_000,
        }
    }

    /// How many workers there are in all.
    pub(crate) fn workers(&self) -> usize {
        self.engines.len() * usize::from(*self.engine.workers.get_ref())
    }

    /// `host/device>host/device`.
    pub(crate) fn rail_name(&self, rail: usize) -> String {
        let Rail { from, to, .. } = self.rails[rail];
        format!("{}>{}", self.devices[from].name, self.devices[to].name)
    }

    /// Base delay of a rail.
    pub(crate) fn delay_ns(&self, rail: usize) -> u64 {
        let Rail { from, to, .. } = self.rails[rail];
        self.devices[from].delay_ns + self.devices[to].delay_ns
    }

    /// Nominal rate of a rail.
    pub(crate) fn nominal(&self, rail: usize) -> u64 {
        let Rail { from, to, .. } = self.rails[rail];
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
        self.limits()?;
        self.hosts()?;
        self.devices()?;
        self.rails()?;
        self.bottlenecks()?;
        let ends_at = scenario.duration_ms * 1_000_000;
        let mut setup = Setup {
            name: scenario.name.clone(),
            shows: scenario.shows.clone(),
            seed,
            ends_at,
            engine: scenario.engine.clone(),
            jitter: scenario.jitter.into(),
            timing: scenario.timing.clone(),
            trouble: scenario.trouble.clone(),
            limits: scenario.limits.clone(),
            room: scenario.room,
            spared: self.spared()?,
            incidents: self.incidents()?,
            hosts: self.hosts.len(),
            isolation: self.isolation()?,
            devices: self.devices.clone(),
            rails: self.rails.clone(),
            jitters: Vec::new(),
            routes: Vec::new(),
            engines: Vec::new(),
            plans: Vec::new(),
            submitters: Vec::new(),
            intervals: Vec::new(),
        };
        self.workloads(&mut setup)?;
        self.check_isolation(&setup)?;
        self.servers(&mut setup, seed)?;
        Ok(setup)
    }

    /// Numbers without a place of their own in the checks of tables.
    fn limits(&self) -> Checked<()> {
        let (engine, timing) = (&self.scenario.engine, &self.scenario.timing);
        let limits = &self.scenario.limits;
        let times_ns = [
            limits.progress_floor_us.saturating_mul(1_000),
            limits.open_timeout_us.saturating_mul(1_000),
            limits.peer_silence_us.saturating_mul(1_000),
            limits.fence_timeout_us.saturating_mul(1_000),
            limits.cancel_grace_us.saturating_mul(1_000),
            limits.message_interval_us.saturating_mul(1_000),
            limits.reset_cooldown_us.saturating_mul(1_000),
            self.scenario
                .room
                .admission_timeout_us
                .saturating_mul(1_000),
            self.scenario.room.wake_ns,
            self.scenario.trouble.late_us.saturating_mul(1_000),
            engine.request_ns,
            engine.post_ns,
            engine.doorbell_ns,
            engine.completion_ns,
            engine.batch_us.saturating_mul(1_000),
            engine.poll_us.saturating_mul(1_000),
            timing.open_us.saturating_mul(1_000),
            timing.control_us.saturating_mul(1_000),
            timing.fence_us.saturating_mul(1_000),
            timing.error_us.saturating_mul(1_000),
            timing.heartbeat_ms.saturating_mul(1_000_000),
        ];
        let factors = [engine.believed_rate_factor, engine.believed_delay_factor];
        let text = if times_ns.iter().any(|time| *time > TIME_NS_MAX) {
            "no time in [engine], [timing], [limits], [room] and [trouble] is above a minute"
        } else if !(0.0..=DURATION_MS_MAX as f64).contains(&self.scenario.trouble.until_ms) {
            "until_ms is 0 to 86400000"
        } else if limits.peer_silence_us < timing.heartbeat_ms.saturating_mul(2_000) {
            "peer_silence_us is at least twice heartbeat_ms"
        } else if limits.slice_bytes == 0
            || !(2..=ROWS_MAX).contains(&limits.attempts)
            || limits.spare_rows > ROWS_MAX
        {
            "slice_bytes is at least 1, attempts at least 2; there are at most 65536 rows of a kind"
        } else if !factors
            .iter()
            .all(|factor| (0.000_1..=10_000.0).contains(factor))
        {
            "believed factors are 0.0001 to 10000"
        } else if !(0.0..=100_000.0).contains(&engine.told_gbits_per_sec)
            || !(0.0..=1_000_000.0).contains(&engine.told_delay_us)
        {
            "told_gbits_per_sec is 0 to 100000, told_delay_us 0 to 1000000"
        } else if !limits
            .numa_penalties
            .iter()
            .all(|one| (1.0..=1e6).contains(one))
        {
            "numa_penalties are 1 to 1000000"
        } else if self.scenario.jitter.delay_percent > 100_000 {
            "delay_percent is at most 100000"
        } else {
            return Ok(());
        };
        Err(ScenarioError {
            line: 0,
            text: text.to_owned(),
        })
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
    }

    #[test]
    fn rails_over_paths_of_their_own_share_their_devices_only() {
        let paths = "[[bottleneck]]\nname = \"p\"\nrate_gbits_per_sec = 80\n\
                     [[rail]]\nfrom = \"a/nic0\"\nto = \"b/nic0\"\nover = \"p\"\n";
        let setup = setup(&format!("{GOOD}{paths}")).unwrap();
        assert_eq!(setup.rails.len(), 3);
        let servers = |rail, back| &setup.routes[route_of(rail, back)].servers;
        // (rail, the least rate on its way in Gb/s)
        for (rail, gbits) in [(0, 200), (1, 200), (2, 80)] {
            for back in [false, true] {
                let rates = servers(rail, back).iter();
                let rates = rates.map(|server| setup.intervals[0].bytes_per_sec[*server as usize]);
                assert_eq!(rates.min(), Some(gbits * 125_000_000), "{rail} {back}");
            }
        }
        let shared = servers(0, false).iter();
        let shared: Vec<_> = shared
            .filter(|server| servers(2, false).contains(server))
            .collect();
        assert_eq!(shared.len(), servers(0, false).len());
        assert_ne!(servers(2, false).last(), servers(2, true).last());
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
                "unknown key delai_us; the nearest known one is delay_us",
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
                "no such bottleneck",
                "to = \"b/nic*\"",
                "to = \"b/nic*\"\nover = \"spine\"",
                22,
                "no bottleneck \"spine\"",
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
                "unknown word melt; the nearest known one is mute",
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
