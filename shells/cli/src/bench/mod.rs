//! `polyrail bench`: measures a target's memory, cell by cell.
//!
//! The method is that of the benchmarks people compare with: one sample is one batch, from submit to
//! observed completion; each thread has its own part of the buffer and one batch on its way; about a second
//! of warm-up is not counted.

mod cell;
mod measure;
mod report;
mod table;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use polyrail::{Config, Hooks};

use crate::address::{self, Rails};
use crate::exit::Failure;
use crate::kind::{MemoryKind, memory_kind};
use crate::recorded::recorded;
use crate::session::Session;
use crate::settings::ConfigArgs;
use crate::sizes::{self, Doubling};
use crate::target::OwnTarget;
use cell::Cell;
use report::Report;

/// Measures writes or reads of a target's memory.
///
/// One sample is one batch, from submit to observed completion. About a second of warm-up is not counted.
/// Cells whose batches do not fit into the buffer are skipped.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  polyrail bench --op write --block 4KiB..1MiB --batch 1..16 --verify\n  \
    polyrail bench --target 10.0.0.2:7000 --rails 10.0.0.1,10.0.1.1 --op mix --block 1MiB --json"
)]
pub(crate) struct BenchArgs {
    /// The target; without it, one is started on this host for as long as this runs.
    #[arg(long, value_name = "HOST:PORT", value_parser = address::target)]
    target: Option<String>,
    /// What to do; `mix` writes and reads by turns.
    #[arg(long, value_enum, default_value = "write")]
    op: Mode,
    /// Bytes of one request, or a range that doubles.
    #[arg(long, value_name = "SIZE[..SIZE]", default_value = "64KiB", allow_negative_numbers = true, value_parser = sizes::size_range)]
    block: Doubling,
    /// Requests of one batch, or a range that doubles.
    #[arg(long, value_name = "N[..N]", default_value = "1", allow_negative_numbers = true, value_parser = sizes::count_range)]
    batch: Doubling,
    /// Threads that submit.
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true, value_parser = threads)]
    threads: u64,
    /// How long to measure each cell.
    #[arg(long, value_name = "S", default_value = "5", allow_negative_numbers = true, value_parser = sizes::seconds)]
    seconds: Duration,
    /// Which policy chooses rails [default: spray].
    #[arg(long, value_enum)]
    policy: Option<Policy>,
    /// Addresses of this host to use, one rail each; the i-th meets the target's i-th.
    #[arg(long, value_name = "A,B,…", value_parser = address::rails)]
    rails: Option<Rails>,
    /// What kind of memory to move bytes from and to.
    ///
    /// `cuda:N` is memory of a GPU, in builds that have it. A target that is started here has its memory there too.
    #[arg(long, value_name = "cpu|cuda:N", default_value = "cpu", value_parser = memory_kind)]
    memory: MemoryKind,
    /// Size of the buffer at either end; no more than the target has.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", allow_negative_numbers = true, value_parser = sizes::size)]
    buffer: u64,
    /// Check every byte of every sample. That takes time, but not the samples' time.
    #[arg(long)]
    verify: bool,
    /// Also show throughput per rail over time, in buckets of so many milliseconds.
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = sizes::milliseconds)]
    timeline: Option<Duration>,
    /// Leave a flight recording of the initiator in this folder, for `polyrail sim replay`. That costs time.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Print one JSON object a line per cell.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: ConfigArgs,
}

/// What the batches of a cell do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Mode {
    /// All write.
    Write,
    /// All read.
    Read,
    /// They write and read by turns.
    Mix,
}

/// The policies that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Policy {
    /// By predicted completion.
    Spray,
    /// By turns.
    RoundRobin,
    /// As the TENT slice-spraying document has it, for comparison.
    Documented,
}

/// The name of a value, as it is written on the command line and in the output.
fn name_of(value: &impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

fn threads(text: &str) -> Result<u64, String> {
    sizes::count(text, 1024)
}

/// Runs the command.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let config = config(args)?;
    args.memory.check()?;
    // Declared before the session, so dropped after it: the target outlives its initiator.
    let (_own, target) = match &args.target {
        Some(target) => (None, target.clone()),
        None => {
            let memory = (args.buffer, args.memory);
            let (own, address) = OwnTarget::start(&config.rails, memory, &args.settings)?;
            (Some(own), address)
        }
    };
    let hooks = Hooks {
        recording: args.record.clone(),
        ..Hooks::default()
    };
    let session = Session::open(config, hooks, &target, (args.buffer, args.memory))?;
    let verdict = measure_all(args, &session);
    session.engine.shutdown();
    if let Some(recorded) = recorded(&session.engine) {
        log::warn!("{recorded}");
    }
    verdict
}

fn config(args: &BenchArgs) -> Result<Config, Failure> {
    let mut config = args.settings.load_initiator("bench")?;
    if let Some(rails) = &args.rails {
        config.use_rails(&rails.0);
    }
    if let Some(policy) = args.policy {
        config.use_policy(match policy {
            Policy::Spray => polyrail::Policy::Spray,
            Policy::RoundRobin => polyrail::Policy::RoundRobin,
            Policy::Documented => polyrail::Policy::Documented,
        });
    }
    Ok(config)
}

/// Measures each cell and prints it at once. Goes on after a bad verdict, but not without a target.
fn measure_all(args: &BenchArgs, session: &Session) -> Result<(), Failure> {
    let mut verdict = Ok(());
    let mut first = true;
    for cell in cells(args) {
        if !cell.fits(session.bytes) {
            let buffer = sizes::show_size(session.bytes);
            log::warn!("skipped {cell}: it does not fit into the buffer of {buffer}");
            continue;
        }
        let (measured, failure) = measure::measure(session, cell, args);
        let report = Report::new(cell, args, &session.config, measured);
        print(args, &report, first).map_err(Failure::output)?;
        first = false;
        if let Some(failure) = failure {
            if matches!(failure, Failure::Environment(_)) {
                return Err(failure);
            }
            log::error!("{cell}: {failure}");
            verdict = verdict.and(Err(failure));
        }
    }
    if first {
        return Err(Failure::Usage(nothing_fits(args, session.bytes)));
    }
    if !args.json {
        writeln!(io::stdout(), "{}", session.engine.stats()).map_err(Failure::output)?;
    }
    verdict
}

fn cells(args: &BenchArgs) -> impl Iterator<Item = Cell> {
    args.block.values().flat_map(move |block| {
        args.batch.values().map(move |batch| Cell {
            mode: args.op,
            block,
            batch,
            threads: args.threads,
        })
    })
}

fn nothing_fits(args: &BenchArgs, bytes: u64) -> String {
    format!(
        "no cell fits: --block × --batch × --threads {} is above the buffer of {}; \
         lower one of them or raise --buffer (and the target's --memory)",
        args.threads,
        sizes::show_size(bytes)
    )
}

fn print(args: &BenchArgs, report: &Report, first: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)?;
    } else {
        if first {
            writeln!(out, "{}", table::header())?;
        }
        write!(out, "{}", table::row(report))?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    pub(super) fn parse(flags: &str) -> Result<BenchArgs, String> {
        let words = std::iter::once("bench").chain(flags.split_whitespace());
        match Line::try_parse_from(words) {
            Ok(line) => Ok(line.bench),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn defaults_are_those_that_were_fixed() {
        let args = parse("").unwrap();
        let cells: Vec<Cell> = cells(&args).collect();
        let expected = Cell {
            mode: Mode::Write,
            block: 65536,
            batch: 1,
            threads: 1,
        };
        assert_eq!(cells, [expected]);
        assert_eq!(args.seconds, Duration::from_secs(5));
        assert_eq!(args.policy, None, "the configuration says it");
        assert_eq!(args.buffer, 256 << 20);
    }

    #[test]
    fn cells_are_the_product_of_the_ranges() {
        let args = parse("--op mix --block 4K..16K --batch 1..2 --threads 3").unwrap();
        let cells: Vec<(u64, u64)> = cells(&args).map(|cell| (cell.block, cell.batch)).collect();
        let (k4, k8, k16) = (4096, 8192, 16384);
        assert_eq!(
            cells,
            [(k4, 1), (k4, 2), (k8, 1), (k8, 2), (k16, 1), (k16, 2)]
        );
    }

    #[test]
    fn wrong_values_are_errors_that_name_flag_and_value() {
        let wrong = [
            "--op copy",
            "--block 0",
            "--block 8K..4K",
            "--batch many",
            "--threads 0",
            "--threads 1025",
            "--seconds -1",
            "--policy best",
            "--rails 127.0.0.1,127.0.0.1",
            "--memory cuda:x",
            "--memory disk",
            "--buffer 1XB",
            "--timeline 0",
            "--target nowhere",
        ];
        for line in wrong {
            let (flag, value) = line.split_once(' ').unwrap();
            let error = parse(line).map(|_| line).unwrap_err();
            assert!(error.contains(flag), "{error}");
            assert!(error.contains(value.trim_start_matches('-')), "{error}");
        }
    }
}
