//! Workers over NICs of 400 Gb/s: what one reaches with writes and reads of 4 KiB to 64 MiB over 1 to 8 of them, what keeps
//! reads from more, how long it may look away, and what several queue pairs a rail bring over bonds and equal-cost paths.
//!
//! `nics` prints the tables of `docs/rdma-model.md`. All is the library's scenario `nic-400g` with other values, so core
//! decides. Numbers are parts of what the NICs pass, if nothing else is said.

use std::fmt::Display;

use polyrail_core::random::Random;
use polyrail_sim::scenario::{self, Scenario};
use polyrail_sim::{Options, Policy, Setup, on_all_cores, simulate};

/// What a NIC passes, in GB/s: 392 Gb/s of payload.
const NIC: f64 = 49.0;
/// The same in the scenario's words.
const NIC_GBITS: &str = "392";

/// Sizes of requests, each with how many are in a batch and how many submitters there are: enough to fill eight NICs.
const SIZES: [Load; 4] = [
    ("4KiB", 256, 8),
    ("64KiB", 64, 8),
    ("1MiB", 16, 8),
    ("64MiB", 1, 8),
];
const LARGE: Load = SIZES[3];
const NICS: [u32; 4] = [1, 2, 4, 8];
const OPS: [&str; 2] = ["write", "read"];

type Load = (&'static str, u32, u32);

/// What a worker costs, and what that is in the scenario.
const COSTS: [(&str, u32); 4] = [
    ("engine.request_ns", 200),
    ("engine.post_ns", 140),
    ("engine.doorbell_ns", 350),
    ("engine.completion_ns", 200),
];

/// The rails of the scenario, which those of queue pairs take the place of.
const RAILS: &str = "[[rail]]\nfrom = \"a/nic*\"\nto = \"b/nic*\"\n";
const SEEDS: u64 = 20;

/// The scenario with some of its values changed.
#[derive(Clone)]
struct Case(String);

impl Case {
    fn new(op: &str, load: Load) -> Self {
        Self::over(RAILS, op, load)
    }

    /// Over other rails.
    fn over(rails: &str, op: &str, (block, batch, threads): Load) -> Self {
        let text = scenario::text("nic-400g").expect("a scenario of the library");
        assert!(text.contains(RAILS), "its rails are other ones");
        Self(text.replace(RAILS, rails))
            .with("workload.0.op", op)
            .with("workload.0.block", block)
            .with("workload.0.batch", batch)
            .with("workload.0.threads", threads)
    }

    fn with(self, path: &str, value: impl Display) -> Self {
        let text = scenario::set(&self.0, path, &value.to_string());
        Self(text.unwrap_or_else(|error| panic!("{error}")))
    }

    fn nics(self, count: u32) -> Self {
        self.with("device.*.count", count)
    }

    /// With a worker that costs so many times as much.
    fn costs(self, factor: u32) -> Self {
        let costs = COSTS.iter();
        costs.fold(self, |case, (path, ns)| case.with(path, ns * factor))
    }

    /// Its goodput in GB/s.
    fn run(&self) -> f64 {
        let scenario = Scenario::parse(&self.0).unwrap_or_else(|error| panic!("{error}"));
        let setup = Setup::new(&self.0, &scenario, None).unwrap_or_else(|error| panic!("{error}"));
        let outcome = simulate(&setup, Options::new(Policy::Spray), &mut |_, _| {});
        assert_eq!(outcome.report.violations, 0, "{}", self.0);
        outcome.report.goodput_gbytes_per_sec
    }
}

/// Runs all cases on all cores: GB/s of each.
fn rates(cases: &[Case]) -> Vec<f64> {
    let run = |number: u64| cases[number as usize].run();
    on_all_cores(cases.len() as u64, run, |_| {})
}

/// A table with a row for each name: what `cell` makes of the rates of its cases.
fn table(title: &str, first: &str, columns: &[String], rows: Vec<(String, Vec<String>)>) {
    println!("\n{title}\n");
    println!("| {first} | {} |", columns.join(" | "));
    println!("|---{}|", "|---".repeat(columns.len()));
    for (name, cells) in rows {
        println!("| {name} | {} |", cells.join(" | "));
    }
}

/// Parts of what one NIC passes.
fn parts(cases: impl Iterator<Item = Case>) -> Vec<String> {
    let got = rates(&cases.collect::<Vec<_>>());
    got.iter().map(|got| format!("{:.2}", got / NIC)).collect()
}

fn nics_of(count: u32) -> String {
    format!("{count} NIC{}", if count == 1 { "" } else { "s" })
}

/// One worker: sizes by NICs, and the same if the worker cost nothing.
fn one_worker() {
    let mut rows = Vec::new();
    for op in OPS {
        for size in SIZES {
            let case = |nics: &u32| Case::new(op, size).nics(*nics);
            let free = NICS.iter().map(|nics| case(nics).costs(0));
            let got = rates(&NICS.iter().map(case).chain(free).collect::<Vec<_>>());
            let cell = |(index, nics): (usize, &u32)| {
                let (wire, free) = (NIC * f64::from(*nics), got[index + NICS.len()]);
                let got = got[index];
                format!("{got:.1}: {:.2}, {:.2}", got / wire, free / wire)
            };
            let cells = NICS.iter().enumerate().map(cell).collect();
            rows.push((format!("{op} {}", size.0), cells));
        }
    }
    let columns = NICS.map(nics_of);
    let title = "One worker: GB/s, that as a part of the wire, and what part it were if a worker cost nothing.";
    table(title, "of", &columns, rows);
}

/// Workers that cost more, and several: GB/s of 64 MiB over eight NICs.
fn more_workers() {
    const WORKERS: [u32; 3] = [1, 2, 4];
    let mut rows = Vec::new();
    for op in OPS {
        for size in [SIZES[0], SIZES[1], LARGE] {
            for factor in [1, 2, 4] {
                let case = |workers: &u32| {
                    let case = Case::new(op, size).nics(8).costs(factor);
                    case.with("engine.workers", workers)
                };
                let got = rates(&WORKERS.iter().map(case).collect::<Vec<_>>());
                let cells = got.iter().map(|got| format!("{got:.0}")).collect();
                rows.push((format!("{op} {}, costs × {factor}", size.0), cells));
            }
        }
    }
    let columns = WORKERS.map(|workers| format!("workers: {workers}"));
    table("Eight NICs (392 GB/s): GB/s.", "of", &columns, rows);
}

/// Reads: how far the peer is, how many a queue pair may have on their way, and whether slices may be longer than usual.
fn reads() {
    const TRIPS_US: [f64; 5] = [3.2, 5.0, 10.0, 20.0, 40.0];
    let mut rows = Vec::new();
    for (reads, longest, what) in [
        (16, 64 << 10, "16, slices of 64 KiB"),
        (16, u32::MAX, "16, slices as core makes them"),
        (48, 64 << 10, "48, slices of 64 KiB"),
        (48, u32::MAX, "48, slices as core makes them"),
    ] {
        let case = |trip: &f64| {
            let case = Case::new("read", LARGE).with("device.*.delay_us", trip / 2.0);
            case.with("device.*.reads_max", reads)
                .with("device.*.work_bytes_max", longest)
        };
        rows.push((what.to_owned(), parts(TRIPS_US.iter().map(case))));
    }
    let columns = TRIPS_US.map(|trip| format!("{trip} µs"));
    let title = "Reads of 64 MiB over one NIC, by the time there and back.";
    table(title, "reads on their way", &columns, rows);
}

/// A worker that looks at times, and what a rail does at first.
fn looks() {
    const LOOKS_US: [u32; 5] = [0, 10, 20, 50, 100];
    let mut rows = Vec::new();
    for op in OPS {
        for size in &SIZES[1..] {
            let case = |look: &u32| Case::new(op, *size).with("engine.poll_us", look);
            rows.push((format!("{op} {}", size.0), parts(LOOKS_US.iter().map(case))));
        }
    }
    for block in ["4MiB", "64MiB"] {
        let case = |look: &u32| {
            let case = Case::new("write", (block, 1, 1)).with("engine.poll_us", look);
            case.with("workload.0.count", 1).with("timing.open_us", 1)
        };
        rows.push((
            format!("the first write, of {block}"),
            parts(LOOKS_US.iter().map(case)),
        ));
    }
    let columns = LOOKS_US.map(|look| match look {
        0 => "always".to_owned(),
        look => format!("each {look} µs"),
    });
    table("One NIC, by when its worker looks.", "of", &columns, rows);
}

/// Rails that are queue pairs: so many between each two NICs, each over the path that `path` says.
fn pairs(nics: u32, each: u32, mut path: impl FnMut(u32, u32) -> String) -> String {
    let mut text = String::new();
    for nic in 0..nics {
        for pair in 0..each {
            let over = path(nic, pair);
            text += &format!("[[rail]]\nfrom = \"a/nic{nic}\"\nto = \"b/nic{nic}\"\n{over}\n");
        }
    }
    text
}

/// Paths of a name and a rate in Gb/s.
fn paths(name: &str, count: u32, gbits: &str) -> String {
    let path = |number: u32| {
        format!("[[bottleneck]]\nname = \"{name}{number}\"\nrate_gbits_per_sec = {gbits}\n")
    };
    (0..count).map(path).collect()
}

/// Small reads: those of one queue pair.
fn small_reads() -> (String, Vec<String>) {
    let case = |each: &u32| {
        let rails = pairs(1, *each, |_, _| String::new());
        Case::over(&rails, "read", SIZES[0])
    };
    (
        "reads of 4 KiB, one NIC".to_owned(),
        parts(PAIRS.iter().map(case)),
    )
}

const PAIRS: [u32; 4] = [1, 2, 4, 8];

/// A bond of two ports with half the rate each: queue pairs take the ports alternately.
fn bond() -> (String, Vec<String>) {
    let case = |each: &u32| {
        let rails = pairs(1, *each, |_, pair| format!("over = \"port{}\"", pair % 2));
        Case::over(&(rails + &paths("port", 2, "196")), "write", LARGE)
    };
    (
        "bond of two ports, alternating".to_owned(),
        parts(PAIRS.iter().map(case)),
    )
}

/// NICs over as many equal-cost uplinks or a bond's ports: each queue pair has one that is drawn. Mean and least over
/// seeds, of what the NICs pass.
fn drawn(what: &str, nics: u32, uplinks: u32, gbits: &str) -> (String, Vec<String>) {
    let cell = |each: &u32| {
        if nics * each > 16 {
            return "too many".to_owned();
        }
        let case = |seed: u64| {
            let mut random = Random::new(seed);
            let rails = pairs(nics, *each, |_, _| {
                let uplink = random.next_u64() % u64::from(uplinks);
                format!("over = \"up{uplink}\"")
            });
            Case::over(&(rails + &paths("up", uplinks, gbits)), "write", LARGE).nics(nics)
        };
        let got = rates(&(1..=SEEDS).map(case).collect::<Vec<_>>());
        let wire = NIC * f64::from(nics);
        let mean = got.iter().sum::<f64>() / SEEDS as f64 / wire;
        let least = got.iter().copied().fold(f64::INFINITY, f64::min) / wire;
        format!("{mean:.2}, {least:.2}")
    };
    (what.to_owned(), PAIRS.iter().map(cell).collect())
}

fn queue_pairs() {
    let mut rows = vec![small_reads(), bond()];
    rows.push(drawn("bond of two ports, drawn", 1, 2, "196"));
    rows.push(drawn("2 NICs over 2 uplinks, drawn", 2, 2, NIC_GBITS));
    rows.push(drawn("4 NICs over 4 uplinks, drawn", 4, 4, NIC_GBITS));
    rows.push(drawn("4 NICs over 16 uplinks, drawn", 4, 16, NIC_GBITS));
    rows.push(drawn("8 NICs over 8 uplinks, drawn", 8, 8, NIC_GBITS));
    let columns = PAIRS.map(|pairs| pairs.to_string());
    let title = "Queue pairs a rail; mean and least over 20 draws. More than 16 rails to a peer there cannot be.";
    table(title, "queue pairs", &columns, rows);
}

fn main() {
    one_worker();
    more_workers();
    reads();
    looks();
    queue_pairs();
}
