//! Many initiators with several rails each at one target: how long they take to come in, what each costs there, what all of them cost
//! while nothing is moved, and what is left of the throughput that one of them has. As many bare connections beside them say how
//! much of that the kernel and the caches take from anybody.

mod bare;

use std::io::{self, BufRead};
use std::process;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{
    Access, Config, Engine, HealthConfig, LimitsConfig, Op, Request, SegmentId, Status,
};

use crate::child::{self, Child};
use crate::measure::cpu_of;

/// Longer than any transfer takes.
const PATIENCE: Duration = Duration::from_secs(60);
const BLOCK: u64 = 64 << 10;
const BATCH: u64 = 16;
/// How many engines of a process come in at a time.
const AT_A_TIME: usize = 2;
/// Times that each throughput is measured.
const ROUNDS: usize = 3;

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
    /// How long a peer may be silent. A thousand engines wait for two processors for longer than the usual 1,200 ms, and then
    /// make their lanes anew.
    #[arg(long, default_value_t = 5000)]
    silence_ms: u64,
    /// How long each measurement takes.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

impl Args {
    /// A [`Shape`], as it is said to a process.
    fn shape_words(&self) -> [String; 2] {
        [self.rails.to_string(), self.silence_ms.to_string()]
    }
}

/// How an engine of the crowd is set.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Shape {
    rails: u8,
    silence_ms: u64,
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// All else is as `POLYRAIL_*` say, such as `POLYRAIL_SECURITY__KEY_FILE`.
fn config(name: &str, shape: Shape) -> io::Result<Config> {
    Ok(Config {
        name: name.into(),
        workers: 1,
        rails: (1..=shape.rails)
            .map(|host| [127, 0, 0, host].into())
            .collect(),
        health: HealthConfig {
            peer_silence: Duration::from_millis(shape.silence_ms),
            ..HealthConfig::default()
        },
        ..Config::from_env().map_err(other)?.without("shm")
    })
}

/// Offers memory until the input ends.
pub(crate) fn serve(kind: Kind, shape: Shape) -> io::Result<()> {
    if kind == Kind::Bare {
        return bare::serve();
    }
    let engine = Engine::new(Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        ..config("target", shape)?
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

/// One of a crowd.
trait Initiator: Sync {
    /// How many batches it has memory for.
    fn batches(&self) -> usize;

    /// Writes the next part of its memory, in blocks, as one of so many threads that do so at once. How many bytes.
    fn once(&self, thread: usize, threads: usize) -> io::Result<u64>;
}

/// What a crowd is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Engines.
    Engines,
    /// Bare connections.
    Bare,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Engines => "engines",
            Self::Bare => "bare",
        }
    }
}

/// An initiator that is an engine.
struct Member {
    engine: Engine,
    /// Batches, each of other local memory.
    batches: Vec<Vec<Request>>,
    next: AtomicUsize,
}

impl Member {
    /// It has memory for so many batches.
    fn new(name: &str, target: &str, shape: Shape, batches: usize) -> io::Result<Self> {
        let limits = LimitsConfig {
            peers: 8,
            rails: 64,
            pairs: 16,
            ..LimitsConfig::default()
        };
        let config = Config {
            limits,
            ..config(name, shape)?
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
        while let Err(error) = member.once(0, 1) {
            if start.elapsed() > PATIENCE {
                return Err(error);
            }
        }
        Ok(member)
    }
}

impl Initiator for Member {
    fn batches(&self) -> usize {
        self.batches.len()
    }

    fn once(&self, _: usize, _: usize) -> io::Result<u64> {
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
pub(crate) fn members(kind: Kind, target: &str, count: usize, shape: Shape) -> io::Result<()> {
    let made: Mutex<Vec<Box<dyn Initiator + Send>>> = Mutex::new(Vec::with_capacity(count));
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
            let member: Box<dyn Initiator + Send> = match kind {
                Kind::Engines => Box::new(Member::new(&name, target, shape, batches)?),
                Kind::Bare => Box::new(bare::Bare::new(target, shape.rails, batches)?),
            };
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
    members.sort_by_key(|member| std::cmp::Reverse(member.batches()));
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
fn moved(
    members: &[Box<dyn Initiator + Send>],
    threads: usize,
    length: Duration,
) -> io::Result<u64> {
    let start = Instant::now();
    let next = AtomicUsize::new(0);
    let next = &next;
    let write = move |thread| -> io::Result<u64> {
        let mut bytes = 0;
        while start.elapsed() < length && !members.is_empty() {
            let turn = next.fetch_add(1, Ordering::Relaxed) % members.len();
            bytes += members[turn].once(thread, threads)?;
        }
        Ok(bytes)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || write(thread)))
            .collect();
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

/// A target, and processes with the same number of initiators each.
struct Crowd {
    target: Child,
    processes: Vec<Child>,
    each: usize,
}

impl Crowd {
    /// Only the target is there.
    fn of(kind: Kind, args: &Args) -> io::Result<Self> {
        let mut words = vec!["target".into(), "crowd".into(), kind.word().into()];
        words.extend(args.shape_words());
        Ok(Self {
            target: Child::start(&words)?,
            processes: Vec::new(),
            each: args.engines.div_ceil(args.processes.max(1)),
        })
    }

    fn count(&self) -> f64 {
        (self.each * self.processes.len()) as f64
    }

    /// Starts all others and waits until they are in.
    fn comes_in(&mut self, kind: Kind, args: &Args) -> io::Result<()> {
        let address = self.target.address.clone();
        let each = self.each.to_string();
        let mut words = vec!["target".into(), "crowd-members".into(), kind.word().into()];
        words.extend([address, each]);
        words.extend(args.shape_words());
        for _ in 0..args.processes.max(1) {
            self.processes.push(Child::spawn(&words)?);
        }
        self.processes
            .iter_mut()
            .try_for_each(|process| process.line().map(drop))
    }

    /// CPU time of the target, and of all others together.
    fn cpu(&self) -> io::Result<[f64; 2]> {
        let others = self.processes.iter().map(|process| cpu_of(process.pid()));
        Ok([cpu_of(self.target.pid())?, others.sum::<io::Result<_>>()?])
    }

    /// Lets some initiators of some processes write together, with as many threads in each process: bytes a second, and
    /// CPU time of the target and of the others for each GB.
    fn rate(
        &mut self,
        processes: usize,
        active: usize,
        threads: usize,
        seconds: u64,
    ) -> io::Result<[f64; 3]> {
        let before = self.cpu()?;
        for process in &mut self.processes[..processes] {
            process.tell(&format!("{active} {threads} {}", seconds * 1000))?;
        }
        let mut bytes = 0.0;
        for process in &mut self.processes[..processes] {
            bytes += process.line()?.parse::<f64>().map_err(other)?;
        }
        let [target, others] = self.cpu()?;
        let gigabytes = bytes / 1e9;
        Ok([
            gigabytes / seconds as f64,
            (target - before[0]) / gigabytes,
            (others - before[1]) / gigabytes,
        ])
    }
}

/// All of it, as a table.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    let mut crowd = Crowd::of(Kind::Engines, args)?;
    let [memory_alone, descriptors_alone, threads] = size_of(crowd.target.pid())?;
    let start = Instant::now();
    let [before, _] = crowd.cpu()?;
    crowd.comes_in(Kind::Engines, args)?;
    let (took, cpu) = (
        start.elapsed().as_secs_f64(),
        cpu_of(crowd.target.pid())? - before,
    );
    let count = crowd.count();
    println!(
        "{count} initiators of {} rails in {} processes",
        args.rails,
        crowd.processes.len()
    );
    println!("| what | seen |\n|---|---|");
    println!(
        "| until all are in and have written 1 MiB | {took:.1} s, {:.2} ms each; {:.2} ms of CPU time at the target |",
        took * 1e3 / count,
        cpu * 1e3 / count
    );
    let [memory, descriptors, now] = size_of(crowd.target.pid())?;
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
    let (start, before) = (Instant::now(), crowd.cpu()?);
    thread::sleep(Duration::from_secs(args.seconds * 2));
    let seconds = start.elapsed().as_secs_f64();
    let now = crowd.cpu()?;
    println!(
        "| CPU time while nothing is moved | {:.2} % of a processor at the target, {:.2} % for all initiators together |",
        (now[0] - before[0]) / seconds * 100.0,
        (now[1] - before[1]) / seconds * 100.0
    );
    let mut bare = Crowd::of(Kind::Bare, args)?;
    bare.comes_in(Kind::Bare, args)?;
    throughput(
        [("engines", crowd), ("bare connections", bare)],
        args.seconds,
    )
}

/// The same number of threads, for one initiator, for one of each process and for all of them in turn, interleaved. Bare
/// connections have no thread that serves several others, so there is no one initiator of them.
fn throughput(mut crowds: [(&str, Crowd); 2], seconds: u64) -> io::Result<()> {
    let mut seen = [const { [const { Vec::new() }; 2] }; 3];
    for _ in 0..ROUNDS {
        for (way, seen) in seen.iter_mut().enumerate() {
            let crowds = crowds.iter_mut().take(if way == 0 { 1 } else { 2 });
            for ((_, crowd), seen) in crowds.zip(seen) {
                let (count, each) = (crowd.processes.len(), crowd.each);
                let (processes, active, threads) = match way {
                    0 => (1, 1, count),
                    1 => (count, 1, 1),
                    _ => (count, each, 1),
                };
                seen.push(crowd.rate(processes, active, threads, seconds)?);
            }
        }
    }
    println!(
        "\n| 16 × 64 KiB, medians of {ROUNDS} | GB/s | of one initiator's | CPU s per GB at the target | at the others |"
    );
    println!("|---|---|---|---|---|");
    let ways = ["one initiator", "one of each process", "all in turn"];
    let mut alone = 1.0;
    for (what, seen) in ways.into_iter().zip(seen) {
        for (kind, mut seen) in crowds.iter().map(|crowd| crowd.0).zip(seen) {
            seen.sort_by(|a: &[f64; 3], b| a[0].total_cmp(&b[0]));
            let Some([rate, target, others]) = seen.get(ROUNDS / 2) else {
                continue;
            };
            if what == ways[0] {
                alone = *rate;
            }
            let share = rate / alone;
            println!("| {what}, {kind} | {rate:.2} | {share:.2} | {target:.3} | {others:.3} |");
        }
    }
    Ok(())
}
