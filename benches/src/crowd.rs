//! Many initiators with several rails each at one target: how long they take to come in, what each costs there, what all of them cost
//! while nothing is moved, and what is left of the throughput that one of them has.

use std::io::{self, BufRead};
use std::process;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{Access, Config, Engine, LimitsConfig, Op, Request, SegmentId, Status};

use crate::child::{self, Child};
use crate::measure::cpu_of;

/// Longer than any transfer takes.
const PATIENCE: Duration = Duration::from_secs(60);
const BLOCK: u64 = 64 << 10;
const BATCH: u64 = 16;
/// How many engines of a process come in at a time.
const AT_A_TIME: usize = 2;

/// How to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Initiators: engines, in all processes together.
    #[arg(long, default_value_t = 1000)]
    engines: usize,
    /// Processes that they are in.
    #[arg(long, default_value_t = 8)]
    processes: usize,
    /// Rails of each, over loopback.
    #[arg(long, default_value_t = 8)]
    rails: u8,
    /// How long each measurement takes.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// All else is as `POLYRAIL_*` say, such as `POLYRAIL_SECURITY__KEY_FILE`.
fn config(name: &str, rails: u8) -> io::Result<Config> {
    Ok(Config {
        name: name.into(),
        workers: 1,
        rails: (1..=rails).map(|host| [127, 0, 0, host].into()).collect(),
        ..Config::from_env().map_err(other)?.without("shm")
    })
}

/// Offers memory until the input ends.
pub(crate) fn serve(rails: u8) -> io::Result<()> {
    let engine = Engine::new(Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        ..config("target", rails)?
    });
    let engine = engine.map_err(other)?;
    let access = Access::RemoteReadWrite;
    engine
        .allocate("memory", BLOCK * BATCH, access)
        .map_err(other)?;
    let address = engine.listening().ok_or_else(|| other("not listening"))?;
    child::say_address(address)?;
    child::wait_for_end()
}

/// One initiator.
struct Member {
    engine: Engine,
    /// Batches, each of other local memory.
    batches: Vec<Vec<Request>>,
    next: AtomicUsize,
}

impl Member {
    /// It has memory for so many batches.
    fn new(name: &str, target: &str, rails: u8, batches: usize) -> io::Result<Self> {
        let limits = LimitsConfig {
            peers: 8,
            rails: 64,
            pairs: 16,
            ..LimitsConfig::default()
        };
        let config = Config {
            limits,
            ..config(name, rails)?
        };
        let engine = Engine::new(config).map_err(other)?;
        let local = engine
            .allocate("memory", BLOCK * BATCH * batches as u64, Access::Local)
            .map_err(other)?;
        let start = Instant::now();
        let remote = loop {
            match engine.open_segment(&format!("{target}/memory")) {
                Ok(remote) => break remote,
                // This machine has the whole crowd to start.
                Err(_) if start.elapsed() < PATIENCE => {}
                Err(error) => return Err(other(error)),
            }
        };
        let member = Self {
            batches: (0..batches as u64)
                .map(|place| blocks(local, place, remote))
                .collect(),
            engine,
            next: AtomicUsize::new(0),
        };
        // For the same reason lanes may be late, and a batch without a rail fails.
        while let Err(error) = member.once() {
            if start.elapsed() > PATIENCE {
                return Err(error);
            }
        }
        Ok(member)
    }

    /// Writes the next part of its memory, in blocks. How many bytes.
    fn once(&self) -> io::Result<u64> {
        let place = self.next.fetch_add(1, Ordering::Relaxed) % self.batches.len();
        let batch = self.engine.submit(&self.batches[place]).map_err(other)?;
        let ended = batch.wait(PATIENCE).map_err(other)?;
        match ended.status {
            Status::Completed => Ok(BLOCK * BATCH),
            status => Err(other(format!(
                "a batch ended as {status:?}: {:?}",
                batch.report(0)
            ))),
        }
    }
}

fn blocks(local: SegmentId, place: u64, remote: SegmentId) -> Vec<Request> {
    let block = |number| Request {
        op: Op::Write,
        local,
        local_offset: (place * BATCH + number) * BLOCK,
        remote,
        remote_offset: number * BLOCK,
        length: BLOCK,
    };
    (0..BATCH).map(block).collect()
}

/// A process of initiators. It says when all are in, then moves blocks as its input says: `MEMBERS THREADS MILLISECONDS`.
pub(crate) fn members(target: &str, count: usize, rails: u8) -> io::Result<()> {
    let made = Mutex::new(Vec::with_capacity(count));
    let next = AtomicUsize::new(0);
    let come = || -> io::Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(());
            }
            let name = format!("{}-{number}", process::id());
            // One has as much memory as all together, or it would never leave the cache.
            let batches = if number == 0 { count } else { 1 };
            let member = Member::new(&name, target, rails, batches)?;
            made.lock().map_err(other)?.push(member);
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_A_TIME.min(count))
            .map(|_| scope.spawn(come))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| other("a thread panicked"))?)
    })?;
    let mut members = made.into_inner().map_err(other)?;
    members.sort_by_key(|member| std::cmp::Reverse(member.batches.len()));
    println!("in");
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<u64> = line
            .split(' ')
            .map_while(|word| word.parse().ok())
            .collect();
        let [active, threads, millis] = words[..] else {
            return Err(other(format!(
                "\"{line}\" is not MEMBERS THREADS MILLISECONDS"
            )));
        };
        let members = &members[..members.len().min(active as usize)];
        println!(
            "{}",
            moved(members, threads as usize, Duration::from_millis(millis))?
        );
    }
    Ok(())
}

/// Bytes that so many threads have written, each for all members in turn.
fn moved(members: &[Member], threads: usize, length: Duration) -> io::Result<u64> {
    let start = Instant::now();
    let next = AtomicUsize::new(0);
    let write = || -> io::Result<u64> {
        let mut bytes = 0;
        while start.elapsed() < length && !members.is_empty() {
            let turn = next.fetch_add(1, Ordering::Relaxed) % members.len();
            bytes += members[turn].once()?;
        }
        Ok(bytes)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(write)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| other("a thread panicked"))?)
            .sum()
    })
}

/// What the kernel says of a process: its memory in MiB, its descriptors and its threads.
fn size_of(pid: u32) -> io::Result<[f64; 3]> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let number = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let word = line.and_then(|rest| rest.split_whitespace().next());
        word.and_then(|word| word.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count() as f64;
    Ok([number("VmRSS:") / 1024.0, descriptors, number("Threads:")])
}

/// Bytes a second that some of each process's initiators write together, with as many threads in each.
fn rate(processes: &mut [Child], active: usize, threads: usize, args: &Args) -> io::Result<f64> {
    for process in processes.iter_mut() {
        process.tell(&format!("{active} {threads} {}", args.seconds * 1000))?;
    }
    let mut bytes = 0.0;
    for process in processes {
        bytes += process.line()?.parse::<f64>().map_err(other)?;
    }
    Ok(bytes / args.seconds as f64 / 1e9)
}

/// All of it, as a table.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    let words = ["target", "crowd", &args.rails.to_string()].map(str::to_owned);
    let target = Child::start(&words)?;
    let [memory_alone, descriptors_alone, threads] = size_of(target.pid())?;
    let each = args.engines.div_ceil(args.processes.max(1));
    let start = Instant::now();
    let cpu = cpu_of(target.pid())?;
    let mut processes = Vec::new();
    let words = [
        "target".to_owned(),
        "crowd-members".to_owned(),
        target.address.clone(),
        each.to_string(),
        args.rails.to_string(),
    ];
    for _ in 0..args.processes.max(1) {
        processes.push(Child::spawn(&words)?);
    }
    for process in &mut processes {
        process.line()?;
    }
    let (took, cpu) = (start.elapsed().as_secs_f64(), cpu_of(target.pid())? - cpu);
    let count = (each * processes.len()) as f64;
    println!(
        "{count} initiators of {} rails in {} processes",
        args.rails,
        processes.len()
    );
    println!("| what | seen |\n|---|---|");
    println!(
        "| until all are in and have written 1 MiB | {took:.1} s, {:.2} ms each; {:.2} ms of CPU time at the target |",
        took * 1e3 / count,
        cpu * 1e3 / count
    );
    let [memory, descriptors, now] = size_of(target.pid())?;
    println!(
        "| memory at the target | {memory_alone:.0} MiB alone, {memory:.0} MiB with all: {:.0} KiB each |",
        (memory - memory_alone) * 1024.0 / count
    );
    println!(
        "| descriptors at the target | {descriptors_alone:.0} alone, {descriptors:.0} with all: {:.1} each |",
        (descriptors - descriptors_alone) / count
    );
    println!("| threads at the target | {threads:.0} alone, {now:.0} with all |");
    thread::sleep(Duration::from_secs(2));
    let pids: Vec<u32> = processes.iter().map(Child::pid).collect();
    let all = || -> io::Result<f64> { pids.iter().map(|pid| cpu_of(*pid)).sum() };
    let (start, target_before, all_before) = (Instant::now(), cpu_of(target.pid())?, all()?);
    thread::sleep(Duration::from_secs(args.seconds * 2));
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "| CPU time while nothing is moved | {:.2} % of a processor at the target, {:.2} % for all initiators together |",
        (cpu_of(target.pid())? - target_before) / seconds * 100.0,
        (all()? - all_before) / seconds * 100.0
    );
    // The same number of threads, for one initiator, for one of each process and for all of them in turn, interleaved.
    let mut seen = [const { Vec::new() }; 3];
    let threads = processes.len();
    for _ in 0..3 {
        let ways = [(1, 1, threads), (threads, 1, 1), (threads, each, 1)];
        for (seen, (processes_at_it, active, threads)) in seen.iter_mut().zip(ways) {
            let before = cpu_of(target.pid())?;
            let rate = rate(&mut processes[..processes_at_it], active, threads, args)?;
            let cpu = cpu_of(target.pid())? - before;
            seen.push((rate, cpu * 1e3 / (rate * args.seconds as f64)));
        }
    }
    for (what, mut seen) in ["one initiator", "one of each process", "all in turn"]
        .into_iter()
        .zip(seen)
    {
        seen.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (rate, cpu) = seen[1];
        println!(
            "| 16 × 64 KiB by {what}, median of three | {rate:.2} GB/s, {cpu:.0} ms of CPU time at the target for each GB |"
        );
    }
    Ok(())
}
