//! How long it takes until the loss of a rail, and its return, no longer show: many runs, and all values.
//!
//! One of four shaped links is cut in mid-transfer, by its carrier or silently, and restored a second later;
//! `bench --verify --timeline 10` on one side, a target on the other. Needs what the tests of this package
//! need.
//!
//! ```text
//! cargo build --release && cargo run --release -p polyrail-tests-fabric --bin recovery -- --runs 20
//! ```
//!
//! Ends with 1 if a request failed, a byte was wrong, or a bound was not kept.

#[expect(dead_code, reason = "the tests of this package use more of it")]
mod fabric;
#[expect(dead_code, reason = "the program `distance` uses it")]
mod link;
mod moments;
mod packet;
#[expect(dead_code, reason = "the tests of this package use more of it")]
mod program;
mod tun;
mod waiting;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};

use fabric::{Fabric, Fault};
use moments::{Moments, Recovery, Times};
use program::{Bench, Ended, Target};

const RATES_MBIT: [u32; 4] = [400; 4];

/// When things happen, since measuring started; what is left after that is for the rail to come back.
const CUT_AT: Duration = Duration::from_millis(1000);
const RESTORE_AT: Duration = Duration::from_millis(2000);
const SECONDS: u64 = 5;

/// A bound that most runs keep, and one that all do.
struct Bounds {
    what: &'static str,
    most: Duration,
    all: Duration,
}

const BACK: Bounds = Bounds {
    what: "at 0.9 of what the others allow, after the cut",
    most: Duration::from_millis(100),
    all: Duration::from_millis(300),
};

const USED: Bounds = Bounds {
    what: "at 0.8 of its former rate, after the restoration",
    most: Duration::from_secs(1),
    all: Duration::from_secs(2),
};

/// Runs `bench` over four links, cuts one, restores it, and says how long it took to recover.
#[derive(Parser)]
struct Args {
    /// Runs of each fault.
    #[arg(long, default_value_t = 20)]
    runs: usize,
    /// What is under way.
    #[arg(long, value_enum, default_value = "write")]
    op: Op,
    /// Only this fault, or none.
    #[arg(long, value_enum)]
    fault: Option<Cut>,
    /// Show the buckets and the log of each run that is late.
    #[arg(long)]
    verbose: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Op {
    Write,
    Read,
}

impl Op {
    const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

/// A [`Fault`] as a flag.
#[derive(Clone, Copy, ValueEnum)]
enum Cut {
    CarrierDown,
    Silent,
    /// No fault at all: what the clock of a busy machine alone looks like.
    None,
}

impl Cut {
    const fn fault(self) -> Option<Fault> {
        match self {
            Self::CarrierDown => Some(Fault::CarrierDown),
            Self::Silent => Some(Fault::Silent),
            Self::None => None,
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let faults = args.fault.map_or_else(
        || vec![Some(Fault::CarrierDown), Some(Fault::Silent)],
        |cut| vec![cut.fault()],
    );
    let mut good = true;
    for fault in faults {
        let Some(recoveries) = measure(&args, fault) else {
            return ExitCode::SUCCESS;
        };
        good &= conclude(&format!("{}, {}", args.op.name(), name(fault)), &recoveries);
    }
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// All runs of one fault, on rails by turns. `None`: this cannot run here, as has been said.
fn measure(args: &Args, fault: Option<Fault>) -> Option<Vec<Recovery>> {
    let mut recoveries = Vec::new();
    for run in 0..args.runs {
        let fabric = Fabric::new(&RATES_MBIT)?;
        let rail = run % RATES_MBIT.len();
        let (ended, times) = play(&fabric, args.op, rail, fault);
        let moments = Moments::of(&verified(&ended));
        let recovery = moments.judge(rail, times);
        let is_cut = recovery.leaked < 0.05;
        assert!(is_cut == fault.is_some(), "the cut was none: {recovery:?}");
        println!(
            "run {run}, rail {rail}, {}: {}",
            name(fault),
            show(&recovery)
        );
        if args.verbose && (is_late(&BACK, recovery.back) || is_late(&USED, recovery.used)) {
            println!("{times:?}\n{}{}", moments.show(times), ended.stderr);
        }
        recoveries.push(recovery);
    }
    Some(recoveries)
}

/// One run, with its cut and its restoration. The schedule is the experiment's; nothing waits for the engine.
fn play(fabric: &Fabric, op: Op, rail: usize, fault: Option<Fault>) -> (Ended, Times) {
    let target = Target::start(fabric);
    let flags = format!(
        "--op {} --block 1MiB --batch 8 --threads 4 --seconds {SECONDS} --verify --timeline 10",
        op.name()
    );
    let mut bench = Bench::start(fabric, &target, &flags);
    let measuring = bench.until_measuring();
    pause_until(measuring + CUT_AT);
    bench.expect_running();
    let cut = measuring.elapsed();
    if let Some(fault) = fault {
        fabric.cut(rail, fault);
    }
    pause_until(measuring + RESTORE_AT);
    bench.expect_running();
    if let Some(fault) = fault {
        fabric.restore(rail, fault);
    }
    let restored = measuring.elapsed();
    let ended = bench.finish(Duration::from_secs(30));
    (ended, Times { cut, restored })
}

fn pause_until(at: Instant) {
    thread::sleep(at.saturating_duration_since(Instant::now()));
}

/// The cell of a run in which nothing failed.
#[track_caller]
fn verified(ended: &Ended) -> serde_json::Value {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let cell = ended.cell();
    assert_eq!(cell["failed_requests"], 0, "{ended:?}");
    assert_eq!(cell["verified"], true, "{ended:?}");
    cell
}

fn name(fault: Option<Fault>) -> String {
    fault.map_or_else(|| "no fault".into(), |fault| format!("{fault:?}"))
}

fn show(recovery: &Recovery) -> String {
    format!(
        "{:.3} GB/s before; back after {}, lowest 100 ms {:.2}, then {:.2} of what the others allow; \
         restored: first bytes after {}, used after {}",
        recovery.before,
        text(recovery.back),
        recovery.lowest,
        recovery.between,
        text(recovery.first_bytes),
        text(recovery.used)
    )
}

fn text(time: Option<Duration>) -> String {
    time.map_or_else(|| "never".into(), |time| format!("{} ms", time.as_millis()))
}

/// Whether it took longer than it does in most runs.
fn is_late(bounds: &Bounds, time: Option<Duration>) -> bool {
    time.is_none_or(|time| time > bounds.most)
}

/// Prints all values, and whether the bounds were kept.
fn conclude(name: &str, recoveries: &[Recovery]) -> bool {
    let column = |of: fn(&Recovery) -> Option<Duration>| recoveries.iter().map(of).collect();
    println!("=== {name}: {} runs", recoveries.len());
    print_sorted(
        "first bytes, after the restoration",
        column(|r| r.first_bytes),
    );
    let back = keeps(&BACK, column(|r| r.back));
    let used = keeps(&USED, column(|r| r.used));
    back && used
}

/// Whether one run in twenty at most is over the one bound, and none over the other.
fn keeps(bounds: &Bounds, times: Vec<Option<Duration>>) -> bool {
    let late = times.iter().filter(|time| is_late(bounds, **time)).count();
    let worst_is_good = times
        .iter()
        .all(|time| time.is_some_and(|time| time <= bounds.all));
    let good = late <= times.len() / 20 && worst_is_good;
    print_sorted(bounds.what, times);
    let verdict = if good { "kept" } else { "NOT KEPT" };
    println!(
        "  {verdict}: {late} later than {} ms (one in twenty may be), none may be later than {} ms",
        bounds.most.as_millis(),
        bounds.all.as_millis()
    );
    good
}

fn print_sorted(what: &str, mut times: Vec<Option<Duration>>) {
    // Those that never came are the worst.
    times.sort_by_key(|time| time.unwrap_or(Duration::MAX));
    let all: Vec<String> = times.iter().copied().map(text).collect();
    let median = text(times.get(times.len() / 2).copied().flatten());
    let worst = text(times.last().copied().flatten());
    println!(
        "{what}: median {median}, worst {worst}\n  {}",
        all.join(", ")
    );
}
