//! How a trial is drawn: fabrics and loads far beyond what anybody tuned for, each run small enough for a moment.

use crate::case::{Case, Device, Knob, Load, Rail};
use crate::model::chance::Chance;

use super::Trial;
use super::trouble::Trouble;

/// The stream that trials are drawn from.
const ARENA_STREAM: u64 = 4;
/// Slices of 64 KiB in one run, about: a tenth of a second on one core.
const SLICES: f64 = 60_000.0;
const SLICE_BYTES: f64 = 65_536.0;
/// A run lasts for so many of the longest round trips, looks included: what has to be found out is found by then.
const ROUND_TRIPS: u64 = 200;
const DURATION_US_MIN: u64 = 20_000;
const DURATION_US_MAX: u64 = 20_000_000;
/// Waits of health are tens of milliseconds: a run with cuts or lost completions lasts for several.
const HEALTH_US_MIN: u64 = 300_000;
const ERRORS_US_MIN: u64 = 100_000;
const CHANGES_US_MIN: u64 = 60_000;
/// The longest delay of a rail, and the longest extra delay in the mean.
const DELAY_NS_MAX: u64 = 50_000_000;
/// Half of all trials have no longer one than this, before they are made unequal.
const NEAR_NS_MAX: u64 = 100_000;
const EXTRA_NS_MAX: u64 = 100_000_000;
/// What an engine takes for granted where it is told nothing.
const UNTOLD_DELAY_US: f64 = 50.0;
const UNTOLD_GBITS: f64 = 10.0;
/// No device is slower than this before all are made slower for a shorter run.
const GBITS_MIN: f64 = 1.0;
const RAILS_MAX: usize = 16;
const BLOCK_MIN: u64 = 4_096;
const BLOCK_MAX: u64 = 1 << 30;
/// Each submitter has time for about so many batches.
const BATCHES_MIN: f64 = 8.0;

/// Dice for a trial.
pub(super) struct Draw {
    pub(super) chance: Chance,
    pub(super) case: Case,
    features: Vec<&'static str>,
    /// Pairs of hosts between which bytes go.
    pub(super) pairs: Vec<(usize, usize)>,
    pub(super) trouble: Vec<Trouble>,
    pub(super) duration_us: u64,
}

/// The trial of this seed.
pub(super) fn draw(seed: u64) -> Trial {
    let mut draw = Draw {
        chance: Chance::new(seed, ARENA_STREAM),
        case: Case::empty("arena", seed),
        features: Vec::new(),
        pairs: Vec::new(),
        trouble: Vec::new(),
        duration_us: 0,
    };
    draw.fabric();
    draw.engine();
    draw.jitter();
    draw.trouble();
    draw.duration();
    draw.loads();
    draw.scale();
    draw.limits_of_loads();
    draw.faults();
    Trial {
        seed,
        text: draw.case.text(None),
        features: draw.features,
    }
}

impl Draw {
    pub(super) fn one_in(&mut self, count: u64) -> bool {
        self.chance.one_in(count)
    }

    pub(super) fn between(&mut self, least: u64, most: u64) -> u64 {
        self.chance.between(least, most)
    }

    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        self.chance.one_of(choices)
    }

    /// The trial has this feature if `when`; whether it has.
    pub(super) fn has(&mut self, feature: &'static str, when: bool) -> bool {
        if when && !self.features.contains(&feature) {
            self.features.push(feature);
        }
        when
    }

    /// With this feature in one trial of so many.
    fn has_one_in(&mut self, feature: &'static str, count: u64) -> bool {
        let when = self.one_in(count);
        self.has(feature, when)
    }

    /// A factor from a hundredth to a hundred.
    fn wrong(&mut self) -> f64 {
        let factor = self.between(10, 1_000) as f64 / 10.0;
        match self.one_in(2) {
            true => factor,
            false => 1.0 / factor,
        }
    }

    fn fabric(&mut self) {
        (self.case.hosts, self.pairs) = match self.chance.below(10) {
            0 => (3, vec![(0, 1), (0, 2)]),
            1 => (5, vec![(0, 1), (0, 2), (0, 3), (0, 4)]),
            2 => (3, vec![(0, 2), (1, 2)]),
            3 => (5, vec![(0, 4), (1, 4), (2, 4), (3, 4)]),
            4 => (2, vec![(0, 1), (1, 0)]),
            _ => (2, vec![(0, 1)]),
        };
        let (first, last) = (self.pairs[0], self.pairs[self.pairs.len() - 1]);
        let more = self.pairs.len() > 1;
        self.has("several peers", more && first.0 == last.0);
        self.has("incast", more && first.1 == last.1);
        self.has("both ways", more && first.0 == last.1);
        let each = self.between(1, 8) as usize;
        self.has("one rail", each == 1);
        let devices = self.devices(each);
        for host in 0..self.case.hosts {
            let own = devices.iter().map(|device| Device {
                host,
                ..device.clone()
            });
            self.case.devices.extend(own);
        }
        let far = self.has_one_in("far devices differ", 4);
        let all = each > 1 && each * each <= RAILS_MAX && self.has_one_in("each with each", 5);
        if far {
            let last = self.case.hosts - 1;
            for index in 0..self.case.devices.len() {
                if self.case.devices[index].host == last {
                    let gbits = self.case.devices[index].gbits * 8.0 / self.between(2, 64) as f64;
                    self.case.devices[index].gbits = gbits.max(GBITS_MIN);
                }
            }
        }
        self.rails(each, all);
        if self.has_one_in("hidden bottleneck", 5) {
            let host = self.one_of(&[first.0, first.1]);
            let own = self.case.devices.iter().enumerate();
            let own = own.filter(|(_, device)| device.host == host);
            let (members, rates): (Vec<_>, Vec<_>) =
                own.map(|(index, device)| (index, device.gbits)).unzip();
            let part = (1 + self.chance.below(18)) as f64 / 20.0;
            let gbits = rates.iter().sum::<f64>() * part;
            self.case.bottlenecks.push((gbits, members));
        }
    }

    /// The devices of a host.
    fn devices(&mut self, count: usize) -> Vec<Device> {
        let near = self.one_in(2);
        let delay_ns = self.between(500, if near { NEAR_NS_MAX } else { DELAY_NS_MAX } / 2);
        let shallow = self.has_one_in("shallow lanes", 4);
        let credits = self.one_in(4);
        let alike = Device {
            host: 0,
            numa: 0,
            gbits: self.between(1_000, 400_000) as f64 / 1_000.0,
            delay_us: delay_ns as f64 / 1_000.0,
            queue_depth: if shallow { self.between(1, 255) } else { 256 },
            work_bytes_max: u64::from(u32::MAX),
            reads_max: if credits { self.between(1, 256) } else { 4_096 },
            covers: self.one_in(3),
        };
        let skewed = count > 1 && self.has_one_in("unequal rates", 3);
        let unequal = count > 1 && self.has_one_in("unequal delays", 4);
        let numa = count > 1 && self.has_one_in("numa", 5);
        let mut devices = vec![alike; count];
        for (index, device) in devices.iter_mut().enumerate() {
            if skewed {
                let gbits = device.gbits / self.between(1, 100) as f64;
                device.gbits = gbits.max(GBITS_MIN);
            }
            if unequal {
                let delay_us = device.delay_us * self.between(1, 100) as f64;
                device.delay_us = delay_us.min(DELAY_NS_MAX as f64 / 2_000.0);
            }
            if numa {
                device.numa = (index % 2) as u64;
            }
        }
        let delay_us = 2.0 * devices.iter().map(|row| row.delay_us).fold(0.0, f64::max);
        self.has(
            match delay_us {
                ..10.0 => "delay to 10 µs",
                ..100.0 => "delay to 100 µs",
                ..1_000.0 => "delay to 1 ms",
                _ => "delay to 50 ms",
            },
            true,
        );
        devices
    }

    fn rails(&mut self, each: usize, all: bool) {
        let ranked = each > 1 && self.has_one_in("ranks", 5);
        let first = 1 + self.chance.below(each.max(2) as u64 - 1) as usize;
        for pair in 0..self.pairs.len() {
            let (from, to) = self.pairs[pair];
            for near in 0..each {
                for far in (0..each).filter(|far| all || *far == near) {
                    let rail = Rail {
                        from: from * each + near,
                        to: to * each + far,
                        rank: u8::from(ranked && near >= first),
                        class: 0,
                    };
                    self.case.rails.push(rail);
                }
            }
        }
    }

    fn engine(&mut self) {
        let mut knobs: Vec<Knob> = Vec::new();
        if self.has_one_in("workers", 4) {
            knobs.push(("workers", 2.0 + self.chance.below(3) as f64));
        }
        if self.has_one_in("looks", 4) {
            knobs.push(("poll_us", self.between(1, 5_000) as f64));
        }
        if self.has_one_in("delays untold", 5) {
            knobs.push(("told_delay_us", UNTOLD_DELAY_US));
        } else if self.has_one_in("delays told wrong", 4) {
            knobs.push(("believed_delay_factor", self.wrong()));
        }
        if self.has_one_in("rates untold", 5) {
            knobs.push(("told_gbits_per_sec", UNTOLD_GBITS));
        } else if self.has_one_in("rates told wrong", 4) {
            knobs.push(("believed_rate_factor", self.wrong()));
        }
        if self.has_one_in("slices cost time", 8) {
            knobs.push(("post_ns", self.between(200, 5_000) as f64));
            knobs.push(("completion_ns", self.between(200, 5_000) as f64));
        }
        self.case.engine = knobs;
    }

    fn delay_ns_max(&self) -> u64 {
        let delays = self.case.devices.iter().map(|row| row.delay_us * 2_000.0);
        delays.fold(0.0, f64::max) as u64
    }

    fn knob(knobs: &[Knob], name: &str) -> f64 {
        let knob = knobs.iter().find(|(key, _)| *key == name);
        knob.map_or(0.0, |(_, value)| *value)
    }

    fn jitter(&mut self) {
        let percent_max = EXTRA_NS_MAX * 100 / self.delay_ns_max().max(1);
        if self.has_one_in("extra delay", 3) {
            let percent = self.between(10, percent_max.clamp(10, 10_000));
            self.case.jitter.push(("delay_percent", percent as f64));
            self.has("extra delay above the base", percent > 100);
        }
        if self.has_one_in("unsteady services", 6) {
            let percent = self.between(1, 60);
            let one_in = self.between(50, 10_000);
            self.case.jitter.push(("service_percent", percent as f64));
            self.case.jitter.push(("outlier_one_in", one_in as f64));
        }
    }

    fn duration(&mut self) {
        let percent = Self::knob(&self.case.jitter, "delay_percent") as u64;
        let delay_us = self.delay_ns_max() / 1_000 * (100 + percent) / 100;
        let look_us = Self::knob(&self.case.engine, "poll_us") as u64;
        let round_trips = (delay_us + look_us) * ROUND_TRIPS;
        let least = self.trouble.iter().map(|kind| match kind {
            Trouble::Errors => ERRORS_US_MIN,
            Trouble::Slowdown | Trouble::Bursts | Trouble::Stall => CHANGES_US_MIN,
            Trouble::Lost | Trouble::Silence | Trouble::Outage | Trouble::Flapping => HEALTH_US_MIN,
        });
        let least = least.max().unwrap_or(DURATION_US_MIN);
        self.duration_us = round_trips.clamp(least, DURATION_US_MAX);
        self.case.duration_ms = self.duration_us.div_ceil(1_000);
    }

    fn loads(&mut self) {
        let pairs = self.pairs.clone();
        let threads = self.between(1, 16);
        let batch = if self.one_in(2) {
            1
        } else {
            self.between(1, 128)
        };
        let bytes = self.bytes_per_sec() * self.duration_us as f64 / 1e6;
        let bytes = bytes.min(SLICES * SLICE_BYTES);
        let outstanding = bytes / BATCHES_MIN / pairs.len() as f64;
        let block_max = outstanding / (threads * batch) as f64;
        let block = self.between(BLOCK_MIN, (block_max as u64).clamp(BLOCK_MIN, BLOCK_MAX));
        let reads = self.one_in(3);
        let credits = self.case.devices.iter().any(|row| row.reads_max < 4_096);
        self.has("reads", reads);
        self.has("read credits", reads && credits);
        self.has("small requests", block < 65_536);
        self.has("one submitter", threads == 1);
        self.has("batches", batch > 1);
        let mixed = self.has_one_in("mixed priorities", 10);
        let numa = self.features.contains(&"numa");
        let processes = match self.has_one_in("processes", 8) {
            true => 2 + self.chance.below(3),
            false => 1,
        };
        let bulk = Load {
            from: 0,
            to: 0,
            reads,
            block,
            batch,
            threads: threads.div_ceil(processes),
            count: 0,
            processes,
            numa: numa.then_some(0),
            rails: Vec::new(),
            pause_us: 0,
            deadline_us: 0,
            priority: mixed.then_some("mixed"),
            in_a_row: self.one_in(8),
            cancel_one_in: 0,
        };
        for (from, to) in &pairs {
            self.case.loads.push(Load {
                from: *from,
                to: *to,
                ..bulk.clone()
            });
        }
        if self.has_one_in("small beside large", 4) {
            self.small_load(&bulk, pairs[0]);
        }
    }

    /// Few small requests beside the others, urgent ones or not.
    fn small_load(&mut self, bulk: &Load, (from, to): (usize, usize)) {
        let block = self.between(BLOCK_MIN, (bulk.block / 4).clamp(BLOCK_MIN, 262_144));
        let priority = self.one_of(&[Some("high"), Some("high"), None, Some("low")]);
        self.has("urgent beside others", priority == Some("high"));
        let threads = self.between(1, 4);
        self.case.loads.push(Load {
            from,
            to,
            block,
            batch: 1,
            threads,
            processes: 1,
            priority,
            reads: bulk.reads,
            ..bulk.clone()
        });
    }

    /// What senders can send together, in bytes a second.
    fn bytes_per_sec(&self) -> f64 {
        let senders = self.pairs.iter().map(|(from, to)| {
            match self.case.loads.first().is_some_and(|load| load.reads) {
                true => *to,
                false => *from,
            }
        });
        let senders: Vec<_> = senders.collect();
        let devices = self.case.devices.iter();
        let own = devices.filter(|device| senders.contains(&device.host));
        own.map(|device| device.gbits).sum::<f64>() * 125_000_000.0
    }

    /// How many slices pass in a second, about.
    fn slices_per_sec(&self) -> f64 {
        let rate = self.bytes_per_sec();
        let delays = self.case.devices.iter().map(|row| row.delay_us * 2.0);
        let least_secs = delays.fold(f64::MAX, f64::min) / 1e6;
        let of_load = |load: &Load| {
            let outstanding = (load.block * load.batch * load.threads * load.processes) as f64;
            rate.min(outstanding / least_secs) / (load.block as f64).min(SLICE_BYTES)
        };
        let loads = self.case.loads.iter().map(of_load);
        loads.fold(0.0, f64::max)
    }

    /// Makes all rates so much lower that the run is short.
    fn scale(&mut self) {
        let slices = self.slices_per_sec() * self.duration_us as f64 / 1e6;
        let mut factor = (SLICES / slices).min(1.0);
        while factor < 1.0 {
            for device in &mut self.case.devices {
                device.gbits = (device.gbits * factor).max(0.001);
            }
            for (gbits, _) in &mut self.case.bottlenecks {
                *gbits = (*gbits * factor).max(0.001);
            }
            let slices = self.slices_per_sec() * self.duration_us as f64 / 1e6;
            // Where delays limit as well, lower rates help only in part at first.
            factor = match slices > SLICES * 1.2 {
                true => (SLICES / slices).min(0.9),
                false => 1.0,
            };
        }
    }

    /// Deadlines and pauses, as multiples of the time that a batch takes at best.
    fn limits_of_loads(&mut self) {
        let (deadlines, pauses) = (self.one_in(10), self.one_in(8));
        self.has("deadlines", deadlines);
        self.has("pauses", pauses);
        let rate = self.bytes_per_sec();
        let loads = self.case.loads.iter();
        let bytes = loads.map(|load| load.block * load.batch * load.threads * load.processes);
        let secs = bytes.sum::<u64>() as f64 / rate + self.delay_ns_max() as f64 / 1e9;
        let look_us = Self::knob(&self.case.engine, "poll_us") as u64;
        let batch_us = (secs * 1e6) as u64 + 2 * look_us + 1;
        for index in 0..self.case.loads.len() {
            if deadlines {
                self.case.loads[index].deadline_us = self.between(batch_us, batch_us * 64);
            }
            if pauses {
                let most = (batch_us * 8).min(self.duration_us / 20).max(2);
                self.case.loads[index].pause_us = self.between(most / 8 + 1, most);
            }
        }
    }
}
