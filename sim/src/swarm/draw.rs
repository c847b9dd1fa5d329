//! How a random scenario is drawn. Small ones find what large ones find, and can be read.

use super::Kind;
use crate::POLICIES;
use crate::Policy;
use crate::case::{Case, Device, Fault, Hint, Isolation, Knob, LAST_BATCH, Load, Rail, Target};
use crate::model::chance::Chance;

/// The streams that scenarios are drawn from.
const CASE_STREAM: u64 = 2;
const ENDING_STREAM: u64 = 3;
/// The stream that room with workers is drawn from.
const ROOM_STREAM: u64 = 6;
/// Works of each workload, about.
const WORKS_MAX: u64 = 500;

/// Dice for a scenario.
struct Draw {
    chance: Chance,
    /// How long things go wrong, about, in microseconds.
    span_us: u64,
    /// Something is gone for good in the end.
    ends: bool,
}

impl Case {
    /// The scenario of this seed.
    pub fn draw(kind: Kind, seed: u64) -> Self {
        let (stream, span_us_max) = match kind {
            Kind::Healing => (CASE_STREAM, 2_000_000),
            Kind::Endings => (ENDING_STREAM, 500_000),
        };
        let mut draw = Draw {
            chance: Chance::new(seed, stream),
            span_us: 0,
            ends: kind == Kind::Endings,
        };
        draw.span_us = draw.between(2_000, span_us_max);
        let mut case = draw.case(seed);
        draw.spares(&mut case);
        case.room = room(&mut Chance::new(seed, ROOM_STREAM), &case.loads);
        case
    }
}

/// Room that the batches of these just fit, or some more; mostly none. Who waits, waits for long or hardly.
fn room(chance: &mut Chance, loads: &[Load]) -> Vec<Knob> {
    if !chance.one_in(3) {
        return Vec::new();
    }
    let batch = loads
        .iter()
        .map(|load| load.batch)
        .max()
        .unwrap_or(1)
        .max(LAST_BATCH);
    let requests = batch + chance.one_of(&[0, 1, batch, 4 * batch]);
    let timeout_us = chance.one_of(&[100.0, 10_000.0, 60_000_000.0, 60_000_000.0]);
    let watermark = chance.between(1, 64) - 1;
    vec![
        ("requests", requests as f64),
        ("admission_timeout_us", timeout_us),
        ("admission_resume_watermark_works", watermark as f64),
    ]
}

impl Draw {
    fn one_in(&mut self, count: u64) -> bool {
        self.chance.one_in(count)
    }

    /// A number between two, both in: small ones are as likely as large ones.
    fn between(&mut self, least: u64, most: u64) -> u64 {
        self.chance.between(least, most)
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        self.chance.one_of(choices)
    }

    fn case(&mut self, seed: u64) -> Case {
        let policy = match self.one_in(2) {
            true => Policy::Spray,
            false => self.one_of(POLICIES),
        };
        let slice_bytes = self.one_of(&[512, 4_096, 16_384, 65_536]);
        let mut case = Case {
            duration_ms: 1_000,
            policy,
            hosts: match self.ends {
                true => 3,
                false => 2 + self.chance.below(2) as usize,
            },
            engine: self.engine(),
            jitter: self.jitter(),
            limits: vec![("slice_bytes", slice_bytes as f64)],
            ..Case::empty("swarm", seed)
        };
        self.limits(&mut case);
        let pairs = self.fabric(&mut case);
        if self.one_in(6) {
            self.small_works(&mut case);
        }
        if self.one_in(4) {
            self.isolation(&mut case, &pairs, slice_bytes);
        }
        for pair in &pairs {
            self.load(&mut case, *pair, slice_bytes);
        }
        if self.ends {
            self.ending(&mut case, &pairs);
            return case;
        }
        if self.strand(&mut case, &pairs) {
            return case;
        }
        if self.one_in(2) {
            for pair in pairs {
                self.spare(&mut case, pair);
            }
        }
        for _ in 0..self.chance.below(5) {
            self.fault(&mut case);
        }
        if !self.one_in(4) {
            self.trouble(&mut case);
        }
        case
    }

    /// Which rails stand in for others: any behind the first one from its device to a host. Where plans have some rails only,
    /// these might be spares alone.
    fn spares(&mut self, case: &mut Case) {
        if self.one_in(3) && case.loads.iter().all(|load| load.rails.is_empty()) {
            let rails = case.rails.iter().copied();
            case.spares = rails.filter(|_| !self.one_in(3)).collect();
        }
    }

    fn engine(&mut self) -> Vec<Knob> {
        let mut knobs = vec![("workers", 1.0 + self.chance.below(3) as f64)];
        if self.one_in(3) {
            knobs.push(("poll_us", self.between(5, 5_000) as f64));
        }
        if self.one_in(4) {
            let wrong = [0.1, 0.5, 2.0, 10.0];
            knobs.push(("believed_rate_factor", self.one_of(&wrong)));
            knobs.push(("believed_delay_factor", self.one_of(&wrong)));
        }
        knobs
    }

    fn jitter(&mut self) -> Vec<Knob> {
        match self.one_in(3) {
            true => vec![("delay_percent", self.between(10, 1_000) as f64)],
            false => Vec::new(),
        }
    }

    fn limits(&mut self, case: &mut Case) {
        if self.one_in(2) {
            // Everything a hundred times as fast, so that whatever takes time is seen to end.
            case.timing.push(("heartbeat_ms", 10.0));
            let quick = [
                ("progress_floor_us", 500.0),
                ("open_timeout_us", 20_000.0),
                ("peer_silence_us", 30_000.0),
                ("fence_timeout_us", 100_000.0),
                ("cancel_grace_us", 2_000.0),
                ("message_interval_us", 1_000.0),
            ];
            case.limits.extend(quick);
        }
        if self.one_in(3) {
            let cooldown = self.between(1_000, 16_000);
            case.limits.push(("reset_cooldown_us", cooldown as f64));
        }
        if self.one_in(3) {
            let attempts = self.chance.below(4);
            case.limits.push(("failover_attempts", attempts as f64));
        }
        let attempts = match self.one_in(4) {
            true => self.between(4, 64),
            false => 256,
        };
        case.limits.push(("attempts", attempts as f64));
        let spare = match self.one_in(4) {
            true => self.chance.below(3),
            false => 64,
        };
        case.limits.push(("spare_rows", spare as f64));
        if self.one_in(3) {
            case.timing
                .push(("fence_us", self.between(1, 50_000) as f64));
            case.timing
                .push(("control_us", self.between(1, 5_000) as f64));
            case.timing
                .push(("open_us", self.between(1, 10_000) as f64));
            case.timing
                .push(("error_us", self.between(1, 5_000) as f64));
        }
    }

    /// Devices and rails: which pairs of hosts they join.
    fn fabric(&mut self, case: &mut Case) -> Vec<(usize, usize)> {
        for host in 0..case.hosts {
            let alike = self.device(host);
            let same = self.one_in(2);
            for _ in 0..1 + self.chance.below(4) {
                let device = match same {
                    true => alike.clone(),
                    false => self.device(host),
                };
                case.devices.push(device);
            }
        }
        let mut pairs = vec![(0, 1)];
        if case.hosts > 2 {
            // Who has to do with another peer should not notice.
            let others = [(0, 2), (2, 1), (1, 2)];
            pairs.push(match self.ends {
                true => others[0],
                false => self.one_of(&others),
            });
        }
        if self.one_in(4) {
            pairs.push((1, 0));
        }
        let ranked = self.one_in(if self.ends { 2 } else { 4 });
        for pair in &pairs {
            for _ in 0..1 + self.chance.below(5) {
                let rank = if ranked {
                    self.chance.below(2) as u8
                } else {
                    0
                };
                let rail = Rail {
                    from: self.device_of(case, pair.0),
                    to: self.device_of(case, pair.1),
                    rank,
                    class: 0,
                };
                let known = |other: &Rail| (other.from, other.to) == (rail.from, rail.to);
                if !case.rails.iter().any(known) {
                    case.rails.push(rail);
                }
            }
        }
        if self.one_in(4) {
            let host = self.chance.below(case.hosts as u64) as usize;
            let members = (0..case.devices.len()).filter(|row| case.devices[*row].host == host);
            let gbits = self.between(1, 100) as f64;
            case.bottlenecks.push((gbits, members.collect()));
        }
        pairs
    }

    fn device(&mut self, host: usize) -> Device {
        let shallow = self.one_in(4);
        Device {
            host,
            numa: self.chance.below(2),
            gbits: self.between(1, 400) as f64,
            delay_us: self.between(1, 64) as f64 / 2.0,
            queue_depth: if shallow { self.between(1, 8) } else { 256 },
            work_bytes_max: u64::from(u32::MAX),
            reads_max: if self.one_in(4) {
                self.between(1, 4)
            } else {
                4_096
            },
            covers: self.one_in(3),
        }
    }

    /// The same limit everywhere, or each device its own, so that what was cut for one lane is too long for another.
    fn small_works(&mut self, case: &mut Case) {
        let most = self.between(256, 65_536);
        let alike = self.one_in(3);
        for device in &mut case.devices {
            device.work_bytes_max = match alike {
                true => most,
                false => self.between(256, 65_536),
            };
        }
    }

    /// Islands, rails of up to three classes, and agents that change their minds.
    fn isolation(&mut self, case: &mut Case, pairs: &[(usize, usize)], slice_bytes: u64) {
        let classes = self.between(2, 3);
        let hosts = |rail: &Rail| (case.devices[rail.from].host, case.devices[rail.to].host);
        let of: Vec<_> = case.rails.iter().map(hosts).collect();
        for (index, rail) in case.rails.iter_mut().enumerate() {
            // One of each pair of hosts has to be primary.
            if of[..index].contains(&of[index]) {
                rail.class = self.chance.below(classes) as u8;
            }
        }
        let mut isolation = Isolation {
            advanced: !self.one_in(3),
            strict: self.one_in(3),
            small_bytes_max: self.one_of(&[0, slice_bytes, 65_536]),
            hint_age_ms: self.between(5, 500),
            islands: (0..case.hosts).map(|_| self.chance.below(2)).collect(),
            hints: Vec::new(),
        };
        let said = match isolation.advanced {
            true => self.chance.below(6),
            false => 0,
        };
        for _ in 0..said {
            let (host, to) = self.one_of(pairs);
            isolation.hints.push(Hint {
                at_us: self.chance.below(self.span_us),
                host,
                to: self.one_in(3).then_some(to),
                shares: (!self.one_in(4)).then(|| self.shares()),
            });
        }
        case.isolation = Some(isolation);
        for _ in 0..said.min(self.chance.below(3)) {
            self.fault_of(case, "agent-crash");
        }
    }

    fn shares(&mut self) -> [u16; 3] {
        let first = self.one_of(&[0, 1, 256, 512, 1_023, 1_024]);
        let second = match self.one_in(3) {
            true => self.chance.below(1_025 - u64::from(first)) as u16,
            false => 1_024 - first,
        };
        [first, second, 1_024 - first - second]
    }

    fn device_of(&mut self, case: &Case, host: usize) -> usize {
        let own: Vec<_> = (0..case.devices.len())
            .filter(|row| case.devices[*row].host == host)
            .collect();
        self.one_of(&own)
    }

    fn load(&mut self, case: &mut Case, (from, to): (usize, usize), slice_bytes: u64) {
        for _ in 0..1 + self.chance.below(2) {
            let limits = case.devices.iter().map(|row| row.work_bytes_max);
            let work_bytes = limits.fold(slice_bytes, u64::min);
            // Small blocks in a row go as one.
            let in_a_row = self.one_in(4);
            let works = if in_a_row { 1 } else { self.between(1, 64) };
            let block = if in_a_row {
                let part = self.between(1, 12);
                self.between(1, (work_bytes / part).max(1))
            } else {
                works * work_bytes - self.chance.below(work_bytes)
            };
            let batch = self.between(1, if in_a_row { 40 } else { 8 });
            let threads = 1 + self.chance.below(4);
            let count = (WORKS_MAX / (works * batch * threads)).clamp(1, 30);
            let paced = self.one_in(2);
            let rails = self.some_rails(case, (from, to));
            case.loads.push(Load {
                from,
                to,
                reads: self.one_in(3),
                block,
                batch,
                threads,
                count,
                processes: 1 + u64::from(self.one_in(5)),
                numa: self.one_in(2).then(|| self.chance.below(2)),
                rails,
                pause_us: if paced { 2 * self.span_us / count } else { 0 },
                deadline_us: match self.one_in(6) {
                    true => self.between(20, self.span_us),
                    false => 0,
                },
                priority: self.one_in(3).then_some("mixed"),
                in_a_row,
                cancel_one_in: match self.one_in(4) {
                    true => self.between(1, 16),
                    false => 0,
                },
            });
        }
    }

    /// Some of the rails of a pair, for a plan of its own; mostly none, which stands for all.
    fn some_rails(&mut self, case: &Case, pair: (usize, usize)) -> Vec<Rail> {
        if case.isolation.is_some() || !self.one_in(4) {
            return Vec::new();
        }
        let host = |device: usize| case.devices[device].host;
        let joins = |rail: &&Rail| (host(rail.from), host(rail.to)) == pair;
        let rails = case.rails.iter().filter(joins).copied();
        rails.filter(|_| self.one_in(2)).collect()
    }

    /// Keeps one rail of a pair out of all trouble.
    fn spare(&mut self, case: &mut Case, pair: (usize, usize)) {
        let host = |device: usize| case.devices[device].host;
        let joins = |rail: &&Rail| (host(rail.from), host(rail.to)) == pair;
        let rails: Vec<_> = case.rails.iter().filter(joins).copied().collect();
        if !rails.is_empty() {
            case.spared.push(self.one_of(&rails));
        }
    }

    /// One transport loses all its rails for longer than core waits for one, and another one is spared. Nothing else
    /// happens then, so that what has to go over to it has a right to arrive. Whether there is such a pair of hosts.
    fn strand(&mut self, case: &mut Case, pairs: &[(usize, usize)]) -> bool {
        let lost = self.chance.below(2) as u8;
        if case.isolation.is_some() || self.one_in(2) {
            return false;
        }
        let host = |device: usize| case.devices[device].host;
        let of = |pair: (usize, usize), rank: u8| -> Vec<Rail> {
            let joins =
                |rail: &&Rail| (host(rail.from), host(rail.to)) == pair && rail.rank == rank;
            case.rails.iter().filter(joins).copied().collect()
        };
        let both = |pair: &&(usize, usize)| !of(**pair, 0).is_empty() && !of(**pair, 1).is_empty();
        let Some(pair) = pairs.iter().find(both) else {
            return false;
        };
        let (gone, left) = (of(*pair, lost), of(*pair, 1 - lost));
        case.spared.push(self.one_of(&left));
        let kind = self.one_of(&["silent", "error"]);
        let at_us = self.chance.below(self.span_us);
        for rail in gone {
            case.faults.push(Fault {
                kind,
                target: Target::Rail(rail),
                at_us,
                for_us: self.between(3_000_000, 4_000_000),
                every_us: 10_000_000,
                times: 1,
                factor: None,
            });
        }
        true
    }

    /// Something is gone for good: of the connection between the first two hosts, while they move something.
    fn ending(&mut self, case: &mut Case, pairs: &[(usize, usize)]) {
        let at_us = match self.one_in(2) {
            true => self.between(1, 2_000),
            false => self.chance.below(self.span_us),
        };
        let host = |device: usize| case.devices[device].host;
        let joins = |rail: &&Rail| (host(rail.from), host(rail.to)) == (0, 1);
        let rails: Vec<_> = case.rails.iter().filter(joins).copied().collect();
        let of_rank = |rank| rails.iter().filter(move |rail| rail.rank == rank).copied();
        let cut = self.one_of(&["silent", "silent", "error"]);
        let mut gone = Vec::new();
        let dark = (cut, Target::Devices(1));
        match self.chance.below(6) {
            0 | 1 => gone.push(dark),
            2 => {
                gone.push(("death", Target::Host(1)));
                if self.one_in(2) {
                    gone.push(dark);
                }
            }
            3 if case.isolation.is_none() && (0..2).all(|rank| of_rank(rank).count() > 0) => {
                let rank = self.chance.below(2) as u8;
                gone.extend(of_rank(rank).map(|rail| (cut, Target::Rail(rail))));
            }
            3 | 4 => {
                let first = self.chance.below(2) as usize;
                let half = rails.iter().skip(first).step_by(2);
                gone.extend(half.map(|rail| (cut, Target::Rail(*rail))));
            }
            _ => gone.push(("mute", Target::Host(1))),
        }
        if gone
            .iter()
            .any(|(_, target)| matches!(target, Target::Rail(_)))
        {
            // Mode `reset` lets cut rails back in after each cooldown: requests stay with a transport of several for ever.
            case.limits.retain(|(name, _)| *name != "reset_cooldown_us");
        }
        for (kind, target) in gone {
            // Not all of it at the very same time.
            let after_us = if self.one_in(4) {
                self.between(1, 20_000)
            } else {
                0
            };
            case.faults.push(Fault {
                kind,
                target,
                at_us: at_us + after_us,
                for_us: 0,
                every_us: 0,
                times: 1,
                factor: None,
            });
        }
        if self.one_in(4) {
            for pair in pairs {
                self.spare(case, *pair);
            }
        }
        if self.one_in(3) {
            self.fault(case);
        }
        if self.one_in(2) {
            self.trouble(case);
        }
    }

    fn fault(&mut self, case: &mut Case) {
        let kinds = [
            "silent", "error", "silent", "error", "slow", "bursts", "stall", "mute", "restart",
            "reset",
        ];
        let kind = self.one_of(&kinds);
        self.fault_of(case, kind);
    }

    fn fault_of(&mut self, case: &mut Case, kind: &'static str) {
        let Some(target) = self.target(case, kind) else {
            return;
        };
        // Some last longer than core waits for anything.
        let for_us = match self.one_in(3) {
            true => self.between(self.span_us / 2, self.span_us),
            false => self.between(10, self.span_us),
        };
        let times = match self.one_in(3) {
            true => self.between(2, 16),
            false => 1,
        };
        let factor = match kind {
            "slow" | "bursts" => Some(self.one_of(&[0.01, 0.1, 0.5])),
            _ => None,
        };
        let mute = matches!(kind, "mute" | "restart" | "reset" | "bursts");
        case.faults.push(Fault {
            kind,
            target,
            at_us: self.chance.below(self.span_us),
            for_us,
            every_us: for_us + self.between(1_000, self.span_us),
            times: if mute { 1 } else { times },
            factor,
        });
    }

    fn target(&mut self, case: &Case, kind: &str) -> Option<Target> {
        match kind {
            "stall" | "mute" | "restart" | "reset" | "agent-crash" => {
                return Some(Target::Host(self.chance.below(case.hosts as u64) as usize));
            }
            "slow" if !case.bottlenecks.is_empty() && self.one_in(2) => {
                return Some(Target::Bottleneck(0));
            }
            "slow" | "bursts" => {
                let rail = self.one_of(&case.rails);
                return Some(Target::Device(self.one_of(&[rail.from, rail.to])));
            }
            _ => {}
        }
        if case.spared.is_empty() && self.one_in(3) {
            let rail = self.one_of(&case.rails);
            return Some(Target::Devices(case.devices[rail.to].host));
        }
        let device = |rail: &Rail| {
            let touches = |spared: &Rail| spared.from == rail.from || spared.to == rail.from;
            !case.spared.iter().any(touches)
        };
        let open = |rail: &&Rail| !case.spared.contains(rail);
        let rails: Vec<_> = case.rails.iter().filter(open).copied().collect();
        if rails.is_empty() {
            return None;
        }
        let rail = self.one_of(&rails);
        match device(&rail) && self.one_in(2) {
            true => Some(Target::Device(rail.from)),
            false => Some(Target::Rail(rail)),
        }
    }

    fn trouble(&mut self, case: &mut Case) {
        let until_ms = self.span_us as f64 / 1_000.0;
        case.trouble.push(("until_ms", until_ms));
        case.trouble
            .push(("late_us", self.between(10, 20_000) as f64));
        let kinds = [
            "error_one_in",
            "refuse_one_in",
            "lost_one_in",
            "late_one_in",
            "twice_one_in",
            "full_one_in",
            "rejected_one_in",
            "unknown_one_in",
            "broken_one_in",
            "facts_one_in",
            "lie_one_in",
            "unopened_one_in",
            "held_one_in",
            "repeated_one_in",
            "frame_lost_one_in",
            "frame_late_one_in",
            "frame_twice_one_in",
            "stall_one_in",
            "agent_crash_one_in",
        ];
        let many = self.one_of(&[2, 4, 8]);
        for kind in kinds {
            if self.one_in(many) {
                // Of what happens to a lane only at its end there is less.
                let rarest = if kind == "held_one_in" { 8 } else { 128 };
                case.trouble.push((kind, self.between(2, rarest) as f64));
            }
        }
        if self.one_in(8) {
            let one_in = self.between(2, 128);
            case.trouble.push(("false_one_in", one_in as f64));
        }
    }
}
