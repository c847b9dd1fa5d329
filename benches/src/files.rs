//! Files: polyrail and fio by turns, both past the page cache and with the same bytes on their way.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use polyrail::{Access, Batch, Config, Engine, FileTerms, Op, Request, SegmentId, Status};
use serde_json::Value;

use crate::measure::cpu_of;

/// Blocks on their way at a time.
const DEPTH: usize = 16;
const PATIENCE: Duration = Duration::from_secs(30);
const SIZES: [u64; 2] = [64 << 10, 1 << 20];

/// How to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file to read and write, made anew and left behind.
    file: PathBuf,
    /// Its size in MiB.
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Measure only what has this in its name.
    #[arg(long, default_value = "")]
    only: String,
    /// Rounds; the table has the medians.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds that each measures a cell in a round.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
}

/// One figure of throughput and one of processor time.
#[derive(Clone, Copy, Debug)]
struct Figures {
    gbytes_per_sec: f64,
    cpu_seconds_per_gbyte: f64,
}

/// Prints a table.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    fill(&args.file, args.mib << 20)?;
    println!(
        "| | fio, GB/s | polyrail, GB/s | ratio | fio, CPU s/GB | polyrail, CPU s/GB | ratio |"
    );
    println!("|---|---|---|---|---|---|---|");
    for op in [Op::Read, Op::Write] {
        for block in SIZES {
            let name = if op == Op::Read { "read" } else { "write" };
            let name = format!("{name} {} KiB × {DEPTH}", block >> 10);
            if !name.contains(&args.only) {
                continue;
            }
            let mut rounds = Vec::new();
            for _ in 0..args.rounds {
                rounds.push((fio(args, op, block)?, polyrail(args, op, block)?));
            }
            row(&name, &rounds);
        }
    }
    Ok(())
}

/// Ratios are of each round; their median is not that of the medians.
fn row(name: &str, rounds: &[(Figures, Figures)]) {
    let of = |figure: fn(&Figures) -> f64| {
        let fio = median(rounds.iter().map(|(fio, _)| figure(fio)));
        let ours = median(rounds.iter().map(|(_, ours)| figure(ours)));
        let ratio = median(rounds.iter().map(|(fio, ours)| figure(ours) / figure(fio)));
        format!("{fio:.3} | {ours:.3} | {ratio:.2}")
    };
    let rate = of(|figures| figures.gbytes_per_sec);
    let cpu = of(|figures| figures.cpu_seconds_per_gbyte);
    println!("| {name} | {rate} | {cpu} |");
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at * 7) as u8).collect()
}

/// All blocks are there before anybody is measured.
fn fill(path: &Path, bytes: u64) -> io::Result<()> {
    let file = File::create(path)?;
    let block = pattern(1 << 20);
    for offset in (0..bytes).step_by(block.len()) {
        file.write_all_at(&block, offset)?;
    }
    file.sync_all()
}

fn fio(args: &Args, op: Op, block: u64) -> io::Result<Figures> {
    let rw = if op == Op::Read { "read" } else { "write" };
    let output = Command::new("fio")
        .args(["--name=files", "--ioengine=io_uring", "--direct=1"])
        .args(["--time_based", "--output-format=json"])
        .arg(format!("--filename={}", args.file.display()))
        .arg(format!("--size={}m", args.mib))
        .arg(format!("--rw={rw}"))
        .arg(format!("--bs={block}"))
        .arg(format!("--iodepth={DEPTH}"))
        .arg(format!("--runtime={}", args.seconds))
        .output()?;
    let said: Value = serde_json::from_slice(&output.stdout).map_err(io::Error::other)?;
    let job = &said["jobs"][0];
    let number = |value: &Value| {
        value
            .as_f64()
            .ok_or_else(|| io::Error::other("fio left something out"))
    };
    let rate = number(&job[rw]["bw_bytes"])?;
    let seconds = number(&job[rw]["runtime"])? / 1e3;
    let cpu = (number(&job["usr_cpu"])? + number(&job["sys_cpu"])?) / 100.0;
    Ok(Figures {
        gbytes_per_sec: rate / 1e9,
        cpu_seconds_per_gbyte: cpu * seconds / (rate * seconds / 1e9),
    })
}

fn polyrail(args: &Args, op: Op, block: u64) -> io::Result<Figures> {
    let engine = Engine::new(Config {
        workers: 1,
        ..Config::named("files")
    });
    let engine = engine.map_err(io::Error::other)?;
    let memory = DEPTH as u64 * block;
    let local = engine.allocate("memory", memory, Access::Local);
    let local = local.map_err(io::Error::other)?;
    // Memory that nobody has written is one page of zeros again and again, which no program writes to a disk.
    let region = engine.region(local);
    let region = region.ok_or_else(|| io::Error::other("no memory"))?;
    region.store(&pattern(memory), 0)?;
    let remote = engine.open_file(&args.file, &FileTerms::default());
    let remote = remote.map_err(io::Error::other)?;
    let blocks = (args.mib << 20) / block;
    let mut line = VecDeque::with_capacity(DEPTH);
    let mut moved = 0;
    let mut start = (Instant::now(), cpu_of(0)?);
    for number in 0.. {
        if line.len() == DEPTH {
            finish(line.pop_front())?;
            moved += block;
        }
        if number == 4 * DEPTH as u64 {
            // What came before opened lanes.
            start = (Instant::now(), cpu_of(0)?);
            moved = 0;
        }
        if start.0.elapsed() >= Duration::from_secs(args.seconds) {
            break;
        }
        line.push_back(submit(&engine, op, (local, remote), number, blocks, block)?);
    }
    let (seconds, cpu) = (start.0.elapsed().as_secs_f64(), cpu_of(0)? - start.1);
    line.into_iter().try_for_each(|batch| finish(Some(batch)))?;
    Ok(Figures {
        gbytes_per_sec: moved as f64 / 1e9 / seconds,
        cpu_seconds_per_gbyte: cpu / (moved as f64 / 1e9),
    })
}

fn submit(
    engine: &Engine,
    op: Op,
    (local, remote): (SegmentId, SegmentId),
    number: u64,
    blocks: u64,
    block: u64,
) -> io::Result<Batch> {
    let request = Request {
        op,
        local,
        local_offset: number % DEPTH as u64 * block,
        remote,
        remote_offset: number % blocks * block,
        length: block,
    };
    engine.submit(&[request]).map_err(io::Error::other)
}

fn finish(batch: Option<Batch>) -> io::Result<()> {
    let Some(batch) = batch else {
        return Ok(());
    };
    let status = batch.wait(PATIENCE).map_err(io::Error::other)?;
    match status.status {
        Status::Completed => Ok(()),
        other => Err(io::Error::other(format!(
            "a request ended as {}",
            other.name()
        ))),
    }
}
