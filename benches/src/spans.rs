//! One large request by turns with two halves of it at the same time, each with a worker of its own: whether an engine should
//! cut lone requests into spans for workers that have nothing to do.

use std::io;
use std::time::{Duration, Instant};

use polyrail::{Access, Config, Engine, Op, Region, Request, SegmentId, Status};

use crate::child::{self, Child};

/// Longer than any request takes.
const PATIENCE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// How to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds; the table has medians over them.
    #[arg(long, default_value_t = 31)]
    rounds: usize,
    /// Mebibytes of a request.
    #[arg(long, value_delimiter = ',', default_values_t = [16, 64, 1024])]
    mib: Vec<u64>,
    /// Over shared memory instead of TCP over loopback.
    #[arg(long)]
    shm: bool,
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

fn config(name: &str, shm: bool) -> Config {
    let config = Config {
        workers: 2,
        ..Config::named(name)
    };
    match shm {
        true => config,
        false => config.without("shm"),
    }
}

/// Memory of which every page is there.
fn touched(bytes: u64, access: Access) -> io::Result<Region> {
    let region = Region::allocate(bytes, access)?;
    let base = region.base();
    // SAFETY: the region is as large, writable and nobody else's.
    unsafe { base.write_bytes(1, bytes as usize) };
    Ok(region)
}

/// Serves so many mebibytes until the input ends.
pub(crate) fn serve(mib: u64, shm: bool) -> io::Result<()> {
    let engine = Engine::new(Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        ..config("target", shm)
    });
    let engine = engine.map_err(other)?;
    let access = Access::RemoteReadWrite;
    let memory = touched(mib * MIB, access)?;
    engine.register_region("mem", memory).map_err(other)?;
    child::say_address(engine.listening().ok_or_else(|| other("not listening"))?)?;
    child::wait_for_end()?;
    engine.shutdown();
    Ok(())
}

/// An engine with two workers, and its target.
struct Ends {
    engine: Engine,
    local: SegmentId,
    remote: SegmentId,
    _target: Child,
}

impl Ends {
    fn start(mib: u64, shm: bool) -> io::Result<Self> {
        let mut words = vec!["target".into(), "spans".into(), mib.to_string()];
        words.extend(shm.then(|| "--shm".into()));
        let target = Child::start(&words)?;
        let engine = Engine::new(config("initiator", shm)).map_err(other)?;
        let local = engine.register_region("here", touched(mib * MIB, Access::Local)?);
        let remote = engine.open_segment(&format!("{}/mem", target.address));
        Ok(Self {
            local: local.map_err(other)?,
            remote: remote.map_err(other)?,
            engine,
            _target: target,
        })
    }

    /// Moves the bytes, as so many requests that are submitted one behind the other. How long it takes.
    fn moves(&self, op: Op, bytes: u64, parts: u64) -> io::Result<Duration> {
        let length = bytes / parts;
        let start = Instant::now();
        let submit = |part: u64| {
            self.engine.submit(&[Request {
                op,
                local: self.local,
                local_offset: part * length,
                remote: self.remote,
                remote_offset: part * length,
                length,
            }])
        };
        let batches: Result<Vec<_>, _> = (0..parts).map(submit).collect();
        for batch in batches.map_err(other)? {
            let status = batch.wait(PATIENCE).map_err(other)?.status;
            if status != Status::Completed {
                return Err(other(format!("it ended {status:?}")));
            }
        }
        Ok(start.elapsed())
    }
}

/// The lower quartile, the median and the upper quartile.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

pub(crate) fn run(args: &Args) -> io::Result<()> {
    println!("| op | MiB | whole GB/s | time of halves / whole: median | quartiles |");
    println!("|---|---|---|---|---|");
    for mib in &args.mib {
        let ends = Ends::start(*mib, args.shm)?;
        let bytes = mib * MIB;
        for op in [Op::Write, Op::Read] {
            // Lanes of both workers are open, and what they carry is learned.
            for parts in [1, 2, 2, 1] {
                ends.moves(op, bytes, parts)?;
            }
            let (mut rates, mut ratios) = (Vec::new(), Vec::new());
            for round in 0..args.rounds.max(1) {
                let order = if round % 2 == 0 { [1, 2] } else { [2, 1] };
                let [first, second] = order.map(|parts| ends.moves(op, bytes, parts));
                let (first, second) = (first?.as_secs_f64(), second?.as_secs_f64());
                let (whole, halves) = match round % 2 {
                    0 => (first, second),
                    _ => (second, first),
                };
                rates.push(bytes as f64 / whole / 1e9);
                ratios.push(halves / whole);
            }
            let [_, rate, _] = quartiles(rates);
            let [low, middle, high] = quartiles(ratios);
            println!("| {op:?} | {mib} | {rate:.2} | {middle:.2} | {low:.2} to {high:.2} |");
        }
        ends.engine.shutdown();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_of_the_sorted_values() {
        assert_eq!(quartiles(vec![5.0, 1.0, 4.0, 2.0, 3.0]), [2.0, 3.0, 4.0]);
        assert_eq!(quartiles(vec![7.0]), [7.0; 3]);
    }
}
