//! What the engine moves over links with delay, beside as many bare sockets over the same links: many runs by turns,
//! and the middle and the worst of them. Also the processes at the ends of the links.
//!
//! Needs root, or a user namespace of one's own, and `/dev/net/tun`.
//!
//! ```text
//! cargo run --release -p polyrail-tests-fabric --bin distance -- run --runs 20
//! cargo run --release -p polyrail-tests-fabric --bin distance -- run --delays-us 1000 --kinds plain --rails 1
//! cargo run --release -p polyrail-tests-fabric --bin distance -- hold --delay-us 1000
//! ```
//!
//! Each run of each kind of link has processes of its own, so a start that is unlucky shows. Ends with 1 if the worst run
//! of a load from 1 MiB × 16 up is below the bound.

mod bare;
mod course;
#[expect(dead_code, reason = "the tests of this package use more of it")]
mod fabric;
mod link;
mod load;
mod packet;
#[expect(dead_code, reason = "the tests of this package use more of it")]
mod party;
mod sides;
mod tun;
mod voice;
#[cfg(test)]
mod waiting;

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::io::stdin;
use std::net::IpAddr;
use std::process::ExitCode;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use clap::{Parser, Subcommand};

use bare::Route;
use course::{Course, Kind, Links, Pair};
use fabric::{End, Fabric};
use load::Load;
use sides::POLYRAIL;

/// Loads of so many bytes are held to the bound.
const BOUND_BYTES_MIN: u64 = 16 << 20;

/// How long nobody moves anything before the transfer after idleness.
const IDLENESS: Duration = Duration::from_secs(1);

/// How often a connection is reset, and how long each turn is measured.
const RESETS_INTERVAL: Duration = Duration::from_secs(1);
const RESETS_TIME: Duration = Duration::from_secs(2);

/// Moves bytes over links with delay, with the engine and with bare sockets.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Measures.
    Run(Plan),
    /// Measures what it costs when a connection of one rail is reset once a second.
    Resets {
        #[arg(long, default_value_t = 10)]
        runs: usize,
        /// Each way.
        #[arg(long, default_value_t = 100)]
        delay_us: u64,
        #[arg(long, default_value_t = 4)]
        rails: usize,
        #[arg(long, default_value = "write-1048576x16")]
        load: Load,
        /// The most that it may cost, as a part, in the middle of all runs.
        #[arg(long, default_value_t = 1.0)]
        bound: f64,
    },
    /// Lays one link, says what its ends are called, and keeps it until standard input ends.
    Hold {
        /// Each way.
        #[arg(long)]
        delay_us: u64,
        #[arg(long, value_enum, default_value = "plain")]
        kind: Kind,
        #[arg(long, default_value_t = 1)]
        rails: usize,
    },
    /// Offers memory.
    Target {
        #[arg(long, value_delimiter = ',')]
        rails: Vec<IpAddr>,
    },
    /// Moves what it is told.
    Initiator {
        #[arg(long)]
        target: String,
        #[arg(long, value_delimiter = ',')]
        rails: Vec<IpAddr>,
        #[arg(long, value_delimiter = ',')]
        routes: Vec<Route>,
    },
}

/// What is measured.
#[derive(clap::Args)]
struct Plan {
    /// Runs, each with links and processes of its own.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Delays each way in µs.
    #[arg(long, value_delimiter = ',', default_value = "5,100,1000,10000,50000")]
    delays_us: Vec<u64>,
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "plain,rate,jitter,loss,mtu"
    )]
    kinds: Vec<Kind>,
    /// Numbers of links: one as fast as the machine, more of unequal delay and rate.
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    rails: Vec<usize>,
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "write-4096x1,read-4096x1,write-65536x16,read-65536x16,write-1048576x16,read-1048576x16,write-67108864x1,read-67108864x1"
    )]
    loads: Vec<Load>,
    /// Also the first transfer, and the one after a second of idleness, of this load.
    #[arg(long, default_value = "write-1048576x16")]
    first: Load,
    /// The least ratio to bare sockets of any run, from 1 MiB × 16 up.
    #[arg(long, default_value_t = 0.0)]
    bound: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split('/').collect();
        let [target, rate, round_trip] = words[..] else {
            return Err(format!("not three parts: \"{text}\""));
        };
        let number = |text: &str| text.parse::<f64>().map_err(|e| e.to_string());
        Ok(Self {
            target: target
                .parse()
                .map_err(|_| format!("no address: {target}"))?,
            rate: number(rate)?,
            round_trip: number(round_trip)?,
        })
    }
}

fn main() -> ExitCode {
    env_logger::init();
    let done = match Args::parse().role {
        Role::Run(plan) => run(&plan),
        Role::Hold {
            delay_us,
            kind,
            rails,
        } => hold(Links {
            rails,
            delay: Duration::from_micros(delay_us),
            kind,
        }),
        Role::Resets {
            runs,
            delay_us,
            rails,
            load,
            bound,
        } => {
            let delay = Duration::from_micros(delay_us);
            // Four are slow enough as they are.
            let kind = if rails == 1 { Kind::Rate } else { Kind::Plain };
            resets(Links { rails, delay, kind }, load, runs, bound)
        }
        Role::Target { rails } => sides::target(&rails).map(|()| true),
        Role::Initiator {
            target,
            rails,
            routes,
        } => sides::initiator(&target, &rails, routes).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn hold(links: Links) -> Result<bool, Box<dyn Error>> {
    if let Some(fabric) = Fabric::distant(&links.shapes(), 1) {
        println!(
            "{} {}\n{} {}",
            fabric.host(End::Initiator),
            fabric.addresses(End::Initiator),
            fabric.host(End::Target),
            fabric.addresses(End::Target)
        );
        stdin().lines().for_each(drop);
    }
    Ok(true)
}

/// Whether resets cost no more than that. Runs with and without take turns over the same links.
fn resets(links: Links, load: Load, runs: usize, bound: f64) -> Result<bool, Box<dyn Error>> {
    let Some(mut course) = Course::start(&env::current_exe()?, links, 1) else {
        return Ok(true);
    };
    // Something else may have the processors for a while: many short turns, of which the middle counts.
    let mut costs = Vec::new();
    for _ in 0..runs {
        let without = course
            .carry(POLYRAIL, load, Some(RESETS_TIME))
            .gbytes_per_sec;
        let with = course
            .carry_reset(load, RESETS_TIME, RESETS_INTERVAL)
            .gbytes_per_sec;
        costs.push(1.0 - with / without);
    }
    costs.sort_by(f64::total_cmp);
    let all: Vec<String> = costs
        .iter()
        .map(|cost| format!("{:.1}", cost * 100.0))
        .collect();
    let middle = costs.get(costs.len() / 2).copied().unwrap_or_default();
    println!(
        "{links}, {load}: a reset each second costs {:.1} %, of {}",
        middle * 100.0,
        all.join(", ")
    );
    Ok(middle <= bound)
}

/// What is in a row of the table: when, and which load.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    First(Load),
    Steady(usize, Load),
    AfterIdleness(Load),
}

impl Row {
    const fn load(self) -> Load {
        match self {
            Self::First(load) | Self::Steady(_, load) | Self::AfterIdleness(load) => load,
        }
    }

    fn name(self) -> String {
        let load = self.load();
        let size = |bytes: u32| match bytes {
            0x10_0000.. => format!("{}M", bytes >> 20),
            _ => format!("{}K", bytes >> 10),
        };
        let op = if load.is_read { "read" } else { "write" };
        let name = format!("{op} {}×{}", size(load.block), load.batch);
        match self {
            Self::First(_) => format!("first {name}"),
            Self::Steady(..) => name,
            Self::AfterIdleness(_) => format!("{name} after a second"),
        }
    }
}

type Rows = BTreeMap<Row, Vec<Pair>>;

/// Whether the bound was kept.
fn run(plan: &Plan) -> Result<bool, Box<dyn Error>> {
    let program = env::current_exe()?;
    let mut good = true;
    println!(
        "| links | load | bare GB/s | polyrail GB/s | bare p50 µs | polyrail p50 µs | ratio | worst |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for &rails in &plan.rails {
        for &delay_us in &plan.delays_us {
            for &kind in &plan.kinds {
                if rails > 1 && kind == Kind::Rate {
                    // They have rates of their own.
                    continue;
                }
                let delay = Duration::from_micros(delay_us);
                let links = Links { rails, delay, kind };
                let mut rows = Rows::new();
                for run in 0..plan.runs {
                    let Some(mut course) = Course::start(&program, links, plan.seed + run as u64)
                    else {
                        return Ok(true);
                    };
                    play(&mut course, plan, links, run, &mut rows);
                }
                for (row, pairs) in &rows {
                    good &= show(links, *row, pairs, plan.bound);
                }
            }
        }
    }
    Ok(good)
}

/// One run of all loads over links of a kind.
fn play(course: &mut Course, plan: &Plan, links: Links, run: usize, rows: &mut Rows) {
    let swapped = run % 2 == 1;
    let mut note = |row: Row, pair: Pair| rows.entry(row).or_default().push(pair);
    note(
        Row::First(plan.first),
        course.compare(plan.first, None, swapped),
    );
    for (number, load) in plan.loads.iter().enumerate() {
        let pair = course.compare(*load, Some(links.time()), swapped);
        note(Row::Steady(number, *load), pair);
    }
    assert!(course.verify(), "other bytes are read than were written");
    thread::sleep(IDLENESS);
    note(
        Row::AfterIdleness(plan.first),
        course.compare(plan.first, None, swapped),
    );
}

/// Prints a row, and says whether the bound was kept.
fn show(links: Links, row: Row, pairs: &[Pair], bound: f64) -> bool {
    let middle = |of: &dyn Fn(&Pair) -> f64| {
        let mut values: Vec<f64> = pairs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let worst = pairs.iter().map(Pair::ratio).fold(f64::INFINITY, f64::min);
    println!(
        "| {links} | {} | {:.4} | {:.4} | {:.0} | {:.0} | {:.2} | {worst:.2} |",
        row.name(),
        middle(&|pair| pair.bare.gbytes_per_sec),
        middle(&|pair| pair.polyrail.gbytes_per_sec),
        middle(&|pair| pair.bare.p50_us),
        middle(&|pair| pair.polyrail.p50_us),
        middle(&Pair::ratio),
    );
    let is_held = matches!(row, Row::Steady(..)) && row.load().bytes() >= BOUND_BYTES_MIN;
    !is_held || worst >= bound
}
