//! A random scenario: drawn from a seed, made smaller part by part, written as a scenario file.

use std::fmt::Write;

use polyrail_core::rail::select::Policy;

/// A named number of one of a scenario's tables. What is not there is as usual.
pub(crate) type Knob = (&'static str, f64);

/// A network interface of a host.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) host: usize,
    pub(crate) numa: u64,
    pub(crate) gbits: f64,
    pub(crate) delay_us: f64,
    pub(crate) queue_depth: u64,
    pub(crate) work_bytes_max: u64,
    pub(crate) reads_max: u64,
    pub(crate) covers: bool,
}

/// Two devices, and the rank of their transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rail {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) rank: u8,
    pub(crate) class: u8,
}

/// Path isolation.
#[derive(Clone, Debug)]
pub(crate) struct Isolation {
    /// Agents say which class carries what; without this, the topology.
    pub(crate) advanced: bool,
    pub(crate) strict: bool,
    pub(crate) small_bytes_max: u64,
    pub(crate) hint_age_ms: u64,
    /// By host: its island.
    pub(crate) islands: Vec<u64>,
    pub(crate) hints: Vec<Hint>,
}

/// Something that an agent says.
#[derive(Clone, Debug)]
pub(crate) struct Hint {
    pub(crate) at_us: u64,
    pub(crate) host: usize,
    /// Of connections to this host; `None`: of all.
    pub(crate) to: Option<usize>,
    /// `None`: nothing any more.
    pub(crate) shares: Option<[u16; 3]>,
}

/// Closed loops between two hosts.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) reads: bool,
    pub(crate) block: u64,
    pub(crate) batch: u64,
    pub(crate) threads: u64,
    /// 0: as many as there is time for.
    pub(crate) count: u64,
    pub(crate) processes: u64,
    pub(crate) numa: Option<u64>,
    /// Only these; none: all.
    pub(crate) rails: Vec<Rail>,
    pub(crate) pause_us: u64,
    pub(crate) deadline_us: u64,
    /// Who goes first, if that is not as usual.
    pub(crate) priority: Option<&'static str>,
    pub(crate) in_a_row: bool,
    pub(crate) cancel_one_in: u64,
}

/// What a fault happens to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Host(usize),
    /// All devices of a host.
    Devices(usize),
    Device(usize),
    Rail(Rail),
    Bottleneck(usize),
}

/// Something that happens.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: &'static str,
    pub(crate) target: Target,
    pub(crate) at_us: u64,
    /// 0: for good.
    pub(crate) for_us: u64,
    pub(crate) every_us: u64,
    pub(crate) times: u64,
    pub(crate) factor: Option<f64>,
}

/// A random scenario.
#[derive(Clone, Debug)]
pub struct Case {
    /// What the name of its file begins with.
    pub(crate) name: &'static str,
    /// When submitters stop that do not count.
    pub(crate) duration_ms: u64,
    /// What it was drawn from, and what its own chance starts from.
    pub seed: u64,
    /// How rails are chosen.
    pub policy: Policy,
    pub(crate) hosts: usize,
    pub(crate) devices: Vec<Device>,
    pub(crate) rails: Vec<Rail>,
    /// Those of them that stand in for another one.
    pub(crate) spares: Vec<Rail>,
    /// Rates, and devices behind each.
    pub(crate) bottlenecks: Vec<(f64, Vec<usize>)>,
    pub(crate) loads: Vec<Load>,
    pub(crate) faults: Vec<Fault>,
    /// Rails on which nothing goes wrong.
    pub(crate) spared: Vec<Rail>,
    pub(crate) isolation: Option<Isolation>,
    pub(crate) engine: Vec<Knob>,
    pub(crate) jitter: Vec<Knob>,
    pub(crate) timing: Vec<Knob>,
    pub(crate) limits: Vec<Knob>,
    /// Room with workers; none: nobody asks for it.
    pub(crate) room: Vec<Knob>,
    pub(crate) trouble: Vec<Knob>,
}

/// Where the last requests go, which must all complete, unless something else is said.
const LAST_BLOCK: u64 = 10_000;
/// So many of them at a time.
pub(crate) const LAST_BATCH: u64 = 2;

impl Case {
    /// Two hosts, and nothing else yet.
    pub(crate) fn empty(name: &'static str, seed: u64) -> Self {
        Self {
            name,
            duration_ms: 0,
            seed,
            policy: Policy::Spray,
            hosts: 2,
            devices: Vec::new(),
            rails: Vec::new(),
            spares: Vec::new(),
            bottlenecks: Vec::new(),
            loads: Vec::new(),
            faults: Vec::new(),
            spared: Vec::new(),
            isolation: None,
            engine: Vec::new(),
            jitter: Vec::new(),
            timing: Vec::new(),
            limits: Vec::new(),
            room: Vec::new(),
            trouble: Vec::new(),
        }
    }

    /// Whether a rail stands in for another one, that is for the first of its kind.
    fn is_spare(&self, rail: &Rail) -> bool {
        let kind = |rail: &Rail| {
            let to = self.devices[rail.to].host;
            (rail.from, to, rail.rank, rail.class)
        };
        let first = self.rails.iter().find(|other| kind(other) == kind(rail));
        self.spares.contains(rail) && first != Some(rail)
    }

    /// As a scenario file. From `calm_ms` on, when everything has come right, each pair of hosts that moved
    /// something does so once more.
    pub(crate) fn text(&self, calm_ms: Option<u64>) -> String {
        let mut text = format!(
            "name = \"{}-{}\"\nseed = {}\nduration_ms = {}\n",
            self.name, self.seed, self.seed, self.duration_ms
        );
        let tables = [
            ("engine", &self.engine),
            ("jitter", &self.jitter),
            ("timing", &self.timing),
            ("limits", &self.limits),
            ("room", &self.room),
        ];
        for (name, knobs) in tables {
            if name == "engine" {
                text += "[engine]\ndrops_unsent = true\n";
            } else if !knobs.is_empty() {
                let _ = writeln!(text, "[{name}]");
            }
            for (key, value) in knobs {
                let _ = writeln!(text, "{key} = {value}");
            }
        }
        self.trouble_text(&mut text);
        if let Some(isolation) = &self.isolation {
            isolation_text(&mut text, isolation);
        }
        let used = |device: &usize| {
            let of_rail = |rail: &Rail| rail.from == *device || rail.to == *device;
            self.rails.iter().any(of_rail)
        };
        for host in 0..self.hosts {
            let _ = writeln!(text, "[[host]]\nname = \"h{host}\"\nnuma = 2");
        }
        for index in (0..self.devices.len()).filter(used) {
            self.device_text(&mut text, index);
        }
        for rail in &self.rails {
            let (from, to) = (self.device_name(rail.from), self.device_name(rail.to));
            let _ = writeln!(
                text,
                "[[rail]]\nfrom = {from:?}\nto = {to:?}\nrank = {}\nclass = {}",
                rail.rank, rail.class
            );
            if self.is_spare(rail) {
                text.push_str("spare = true\n");
            }
        }
        for (index, (gbits, members)) in self.bottlenecks.iter().enumerate() {
            let members = members.iter().filter(|row| used(row));
            let members: Vec<_> = members.map(|row| self.device_name(*row)).collect();
            let _ = writeln!(
                text,
                "[[bottleneck]]\nname = \"b{index}\"\nrate_gbits_per_sec = {gbits}\nmembers = {members:?}"
            );
        }
        for fault in &self.faults {
            self.fault_text(&mut text, fault);
        }
        for load in &self.loads {
            load_text(&mut text, load, None);
            let rails = load.rails.iter().filter(|rail| self.rails.contains(rail));
            let rails: Vec<_> = rails.map(|rail| self.rail_name(*rail)).collect();
            if !rails.is_empty() {
                let _ = writeln!(text, "rails = {rails:?}");
            }
        }
        let mut pairs: Vec<_> = self.loads.iter().map(|load| (load.from, load.to)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        for (from, to) in pairs.into_iter().filter(|_| calm_ms.is_some()) {
            let last = Load {
                from,
                to,
                reads: self.seed.is_multiple_of(2),
                block: LAST_BLOCK,
                batch: LAST_BATCH,
                threads: 2,
                count: 1,
                processes: 1,
                numa: None,
                rails: Vec::new(),
                pause_us: 0,
                deadline_us: 0,
                priority: None,
                in_a_row: false,
                cancel_one_in: 0,
            };
            load_text(&mut text, &last, calm_ms);
        }
        text
    }

    /// What goes wrong by chance, and where nothing does: requests that a spared rail carries must complete, also where
    /// only what has a time goes wrong.
    fn trouble_text(&self, text: &mut String) {
        text.push_str("[trouble]\n");
        for (key, value) in &self.trouble {
            let _ = writeln!(text, "{key} = {value}");
        }
        let spared = self.spared.iter().map(|rail| self.rail_name(*rail));
        let _ = writeln!(text, "spared = {:?}", spared.collect::<Vec<_>>());
    }

    fn device_name(&self, index: usize) -> String {
        format!("h{}/n{index}", self.devices[index].host)
    }

    fn rail_name(&self, rail: Rail) -> String {
        format!(
            "{}>{}",
            self.device_name(rail.from),
            self.device_name(rail.to)
        )
    }

    fn device_text(&self, text: &mut String, index: usize) {
        let Device {
            host,
            numa,
            gbits,
            delay_us,
            queue_depth,
            work_bytes_max,
            reads_max,
            covers,
        } = &self.devices[index];
        let _ = writeln!(
            text,
            "[[device]]\nhost = \"h{host}\"\nname = \"n{index}\"\nnuma = {numa}\n\
             rate_gbits_per_sec = {gbits}\ndelay_us = {delay_us}\nqueue_depth = {queue_depth}\n\
             work_bytes_max = {work_bytes_max}\nreads_max = {reads_max}\ncovers = {covers}"
        );
        if let Some(isolation) = &self.isolation {
            let island = isolation.islands[*host];
            let _ = writeln!(text, "address = \"10.0.{island}.{}\"", index + 1);
        }
    }

    fn fault_text(&self, text: &mut String, fault: &Fault) {
        let target = match fault.target {
            Target::Host(host) => format!("h{host}"),
            Target::Devices(host) => format!("h{host}/n*"),
            Target::Device(device) => self.device_name(device),
            Target::Rail(rail) => self.rail_name(rail),
            Target::Bottleneck(index) => format!("b{index}"),
        };
        let ms = |us: u64| us as f64 / 1_000.0;
        let _ = writeln!(
            text,
            "[[fault]]\nkind = {:?}\ntarget = {target:?}\nat_ms = {:?}",
            fault.kind,
            ms(fault.at_us)
        );
        if fault.for_us > 0 {
            let _ = writeln!(text, "for_ms = {:?}", ms(fault.for_us));
        }
        if fault.times > 1 {
            let every = ms(fault.every_us);
            let _ = writeln!(text, "every_ms = {every:?}\ntimes = {}", fault.times);
        }
        if let Some(factor) = fault.factor {
            let _ = writeln!(text, "factor = {factor:?}");
        }
    }
}

fn isolation_text(text: &mut String, isolation: &Isolation) {
    let Isolation {
        advanced,
        strict,
        small_bytes_max,
        hint_age_ms,
        hints,
        ..
    } = isolation;
    let mode = if *advanced { "advanced" } else { "vanilla" };
    let _ = writeln!(
        text,
        "[path]\nmode = \"{mode}\"\nhint_strict = {strict}\nsmall_bytes_max = {small_bytes_max}\n\
         hint_age_max_ms = {hint_age_ms}"
    );
    for hint in hints {
        let at_ms = hint.at_us as f64 / 1_000.0;
        let _ = writeln!(
            text,
            "[[hint]]\nat_ms = {at_ms:?}\nhost = \"h{}\"",
            hint.host
        );
        if let Some(to) = hint.to {
            let _ = writeln!(text, "to = \"h{to}\"");
        }
        if let Some(shares) = hint.shares {
            let _ = writeln!(text, "shares = {shares:?}");
        }
    }
}

fn load_text(text: &mut String, load: &Load, start_ms: Option<u64>) {
    let op = if load.reads { "read" } else { "write" };
    let _ = writeln!(
        text,
        "[[workload]]\nfrom = \"h{}\"\nto = \"h{}\"\nop = \"{op}\"\nblock = {}\nbatch = {}\nthreads = {}\n\
         processes = {}",
        load.from, load.to, load.block, load.batch, load.threads, load.processes
    );
    if let Some(numa) = load.numa {
        let _ = writeln!(text, "numa = {numa}");
    }
    if let Some(priority) = load.priority {
        let _ = writeln!(text, "priority = \"{priority}\"");
    }
    if load.in_a_row {
        text.push_str("in_a_row = true\n");
    }
    let rest = [
        ("count", load.count),
        ("pause_us", load.pause_us),
        ("deadline_us", load.deadline_us),
        ("cancel_one_in", load.cancel_one_in),
        ("start_ms", start_ms.unwrap_or(0)),
    ];
    for (key, value) in rest.into_iter().filter(|(_, value)| *value != 0) {
        let _ = writeln!(text, "{key} = {value}");
    }
}
