//! Staged routes beside their own stages: a file here and one of another process, by way of both memories.
//!
//! Each stage is moved alone by the same engines: file to memory, memory to memory over TCP, memory to file. A pipeline
//! can be no faster than the slowest of them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polyrail::{Access, Config, Engine, FileTerms, Op, Request, SegmentId, StagingConfig, Status};

use crate::child::{self, Child};

/// Longer than any transfer takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// How to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A folder for the two files, which are made anew and removed.
    folder: PathBuf,
    /// Their size in MiB.
    #[arg(long, default_value_t = 512)]
    mib: u64,
    /// Rounds; the table has the medians.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Measure only what has this in its name.
    #[arg(long, default_value = "")]
    only: String,
    /// Rails between the two, over loopback.
    #[arg(long, default_value_t = 1)]
    rails: u8,
    /// Slots of a mebibyte for each direction, at either end.
    #[arg(long, default_value_t = 16)]
    slots: u32,
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

fn config(name: &str, rails: u8, slots: u32) -> Config {
    Config {
        staging: StagingConfig {
            slots,
            ..StagingConfig::default()
        },
        rails: (1..=rails).map(|host| [127, 0, 0, host].into()).collect(),
        ..Config::named(name).without("shm")
    }
}

/// A file all of whose blocks are there.
fn made(path: &Path, bytes: u64) -> io::Result<File> {
    let mut options = File::options();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    let block: Vec<u8> = (0..1_u32 << 20).map(|at| (at * 7) as u8).collect();
    for offset in (0..bytes).step_by(block.len()) {
        std::os::unix::fs::FileExt::write_all_at(&file, &block, offset)?;
    }
    file.sync_all()?;
    Ok(file)
}

/// Offers a file and memory of the same size until the input ends.
pub(crate) fn serve(path: &Path, mib: u64, rails: u8, slots: u32) -> io::Result<()> {
    let bytes = mib << 20;
    let config = Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        ..config("target", rails, slots)
    };
    let engine = Engine::new(config).map_err(other)?;
    let access = Access::RemoteReadWrite;
    let file = made(path, bytes)?;
    let file = engine
        .register_file(file, &FileTerms::default())
        .map_err(other)?;
    engine.offer_file(file, "file", access).map_err(other)?;
    engine.allocate("memory", bytes, access).map_err(other)?;
    let address = engine.listening().ok_or_else(|| other("not listening"))?;
    child::say_address(address)?;
    child::wait_for_end()?;
    engine.shutdown();
    std::fs::remove_file(path)
}

/// Both ends.
struct Ends {
    engine: Engine,
    file: SegmentId,
    memory: SegmentId,
    file_there: SegmentId,
    memory_there: SegmentId,
    bytes: u64,
    _target: Child,
}

impl Ends {
    fn start(args: &Args) -> io::Result<Self> {
        let bytes = args.mib << 20;
        let there = args.folder.join("polyrail-staged-there");
        let words = [
            "target".to_owned(),
            "staged".to_owned(),
            there.display().to_string(),
            args.mib.to_string(),
            args.rails.to_string(),
            args.slots.to_string(),
        ];
        let target = Child::start(&words)?;
        let engine = Engine::new(config("initiator", args.rails, args.slots)).map_err(other)?;
        let here = args.folder.join("polyrail-staged-here");
        made(&here, bytes)?;
        let open = |name: &str| {
            let name = format!("{}/{name}", target.address);
            engine.open_segment(&name).map_err(other)
        };
        Ok(Self {
            file: engine
                .open_file(&here, &FileTerms::default())
                .map_err(other)?,
            memory: engine
                .allocate("memory", bytes, Access::Local)
                .map_err(other)?,
            file_there: open("file")?,
            memory_there: open("memory")?,
            bytes,
            engine,
            _target: target,
        })
    }

    /// Moves everything between two segments, and says how many bytes a second that was.
    fn rate(&self, op: Op, local: SegmentId, remote: SegmentId) -> io::Result<f64> {
        let request = Request {
            op,
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            length: self.bytes,
        };
        let start = Instant::now();
        let batch = self.engine.submit(&[request]).map_err(other)?;
        let ended = batch.wait(PATIENCE).map_err(other)?;
        match ended.status {
            Status::Completed => Ok(self.bytes as f64 / start.elapsed().as_secs_f64()),
            status => Err(other(format!(
                "a transfer ended {}: {:?}",
                status.name(),
                batch.report(0)
            ))),
        }
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Prints a table.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    let ends = Ends::start(args)?;
    let Ends {
        file,
        memory,
        file_there,
        memory_there,
        ..
    } = ends;
    let read_disk = (Op::Read, memory, file);
    let write_disk = (Op::Write, memory, file);
    let write_net = (Op::Write, memory, memory_there);
    let read_net = (Op::Read, memory, memory_there);
    // (what, the staged transfer, its stages; the other disk is the same one)
    let cases = [
        (
            "write, file → memory",
            (Op::Write, file, memory_there),
            &[read_disk, write_net][..],
        ),
        (
            "write, memory → file",
            (Op::Write, memory, file_there),
            &[write_net, write_disk],
        ),
        (
            "write, file → file",
            (Op::Write, file, file_there),
            &[read_disk, write_net, write_disk],
        ),
        (
            "read, file ← memory",
            (Op::Read, file, memory_there),
            &[read_net, write_disk],
        ),
        (
            "read, memory ← file",
            (Op::Read, memory, file_there),
            &[read_disk, read_net],
        ),
        (
            "read, file ← file",
            (Op::Read, file, file_there),
            &[read_disk, read_net, write_disk],
        ),
    ];
    println!("| what | staged, GB/s | stages alone, GB/s | of the slowest, least to greatest |");
    println!("|---|---|---|---|");
    let only = cases.iter().filter(|case| case.0.contains(&args.only));
    for (what, staged, stages) in only {
        let rate = |(op, local, remote)| ends.rate(op, local, remote);
        // Lanes open, slots are taken, rates are learned.
        rate(*staged)?;
        let mut rounds = Vec::new();
        for _ in 0..args.rounds {
            let alone: Vec<_> = stages
                .iter()
                .map(|stage| rate(*stage))
                .collect::<Result<_, _>>()?;
            let slowest = alone.iter().copied().fold(f64::INFINITY, f64::min);
            let staged = rate(*staged)?;
            rounds.push((staged, alone, staged / slowest));
        }
        let alone: Vec<_> = (0..stages.len())
            .map(|stage| median(rounds.iter().map(|round| round.1[stage]).collect()))
            .map(|rate| format!("{:.2}", rate / 1e9))
            .collect();
        let mut ratios: Vec<f64> = rounds.iter().map(|round| round.2).collect();
        ratios.sort_by(f64::total_cmp);
        println!(
            "| {what} | {:.2} | {} | {:.2}, {:.2} to {:.2} |",
            median(rounds.iter().map(|round| round.0).collect()) / 1e9,
            alone.join(", "),
            ratios[ratios.len() / 2],
            ratios[0],
            ratios[ratios.len() - 1],
        );
    }
    ends.engine.shutdown();
    std::fs::remove_file(args.folder.join("polyrail-staged-here"))
}
