//! Memory of another process on this host: polyrail by turns with whoever only copies.
//!
//! What a target's engine allocated is beside `memcpy` between two memories of this process; what its program
//! registered is beside `process_vm_readv` from the target and `process_vm_writev` to it. As many threads do either: with more workers than threads that
//! submit, each block is cut for either over as many.

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use polyrail::{Access, Config, Engine, Op, Region, Request, SegmentId, Status};

use crate::child::{self, Child};

/// Memory at either end. Blocks rotate through it, so that caches do for both what they do for rotating blocks.
const BYTES: u64 = 64 << 20;

/// Blocks of the largest batch.
const BATCH_MAX: u64 = 64;

const BLOCKS: [u64; 7] = [
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    8 << 20,
    64 << 20,
];

/// Longer than any batch takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// How to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds; the table has medians over them.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Milliseconds that each measures a cell in a round.
    #[arg(long, default_value_t = 100)]
    millis: u64,
    /// Blocks that are submitted together, side by side.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=BATCH_MAX))]
    batch: u64,
    /// Threads that move blocks, with as many workers.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Workers of either end, over which blocks of one thread are cut. Whoever only copies cuts them over as many.
    #[arg(long, conflicts_with = "threads")]
    workers: Option<usize>,
    /// Measure only what has this in its name.
    #[arg(long, default_value = "")]
    only: String,
    /// Measure only blocks of so many KiB.
    #[arg(long)]
    kib: Option<u64>,
    /// Count the processor time of both processes instead of the time that passes: for a machine that has other things
    /// to do.
    #[arg(long)]
    cpu: bool,
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// Memory of which every page is there.
fn touched(access: Access) -> io::Result<Region> {
    let region = Region::allocate(BYTES, access)?;
    let base = region.base();
    // SAFETY: the region is as large, writable and nobody else's.
    unsafe { base.write_bytes(1, BYTES as usize) };
    Ok(region)
}

/// Serves a segment of each kind until the input ends.
pub(crate) fn serve(workers: usize) -> io::Result<()> {
    let config = Config {
        workers,
        listen: Some(([127, 0, 0, 1], 0).into()),
        ..Config::named("target")
    };
    let engine = Engine::new(config).map_err(other)?;
    let access = Access::RemoteReadWrite;
    let shared = touched(access)?;
    engine.register_region("shared", shared).map_err(other)?;
    let private = touched(Access::Local)?;
    // SAFETY: the memory is mapped until the engine has ended.
    unsafe { engine.register("private", private.base(), BYTES, access) }.map_err(other)?;
    let address = engine.listening().ok_or_else(|| other("not listening"))?;
    println!("{address} {}", private.base().as_ptr().addr());
    child::wait_for_end()?;
    engine.shutdown();
    Ok(())
}

/// Makes somebody who only copies, with threads that spin as long as it is there.
type Bare<'a> = Box<dyn Fn() -> Mover<'a> + 'a>;

/// Somebody who moves a batch of blocks of so many bytes from an offset on, on one of several threads.
type Mover<'a> = Box<dyn Fn(u64, u64) + Sync + 'a>;

/// Moves bytes from an offset on.
type Piece = Box<dyn Fn(u64, u64) + Send + Sync>;

/// Bytes that a thread of a team moves in a row: fast by itself, and short enough.
const PIECE_BYTES: u64 = 512 << 10;

/// Threads that look for the next block all the time, and move pieces of it: the best that cutting can do.
struct Team {
    cut: Arc<Cut>,
    helpers: Vec<JoinHandle<()>>,
}

/// A block that several threads move.
struct Cut {
    piece: Piece,
    /// Counts blocks.
    block: AtomicU64,
    offset: AtomicU64,
    length: AtomicU64,
    /// Where the next piece begins in the block.
    next: AtomicU64,
    /// Helpers that have found no piece left.
    done: AtomicUsize,
    over: AtomicBool,
}

impl Cut {
    fn move_pieces(&self) {
        let (offset, length) = (self.offset.load(Relaxed), self.length.load(Relaxed));
        loop {
            let at = self.next.fetch_add(PIECE_BYTES, Relaxed);
            if at >= length {
                return;
            }
            (self.piece)(offset + at, PIECE_BYTES.min(length - at));
        }
    }

    fn help(&self) {
        let mut last = 0;
        while !self.over.load(Relaxed) {
            spin_while(|| self.block.load(Acquire) == last && !self.over.load(Relaxed));
            last = self.block.load(Acquire);
            self.move_pieces();
            self.done.fetch_add(1, Release);
        }
    }
}

/// Spins while something holds, and lets others run now and then: those who are waited for may need this processor.
fn spin_while(holds: impl Fn() -> bool) {
    let mut spins = 0_u32;
    while holds() {
        spins += 1;
        match spins % 128 {
            0 => thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
    }
}

impl Team {
    /// So many threads, with the one that calls [`Self::move_block`].
    fn new(threads: usize, piece: Piece) -> Self {
        let cut = Arc::new(Cut {
            piece,
            block: AtomicU64::new(0),
            offset: AtomicU64::new(0),
            length: AtomicU64::new(0),
            next: AtomicU64::new(0),
            done: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        });
        let start = |_| {
            let cut = cut.clone();
            thread::spawn(move || cut.help())
        };
        let helpers = (1..threads).map(start).collect();
        Self { cut, helpers }
    }

    fn move_block(&self, offset: u64, length: u64) {
        let cut = &*self.cut;
        if length <= PIECE_BYTES {
            return (cut.piece)(offset, length);
        }
        cut.offset.store(offset, Relaxed);
        cut.length.store(length, Relaxed);
        cut.next.store(0, Relaxed);
        cut.done.store(0, Relaxed);
        cut.block.fetch_add(1, Release);
        cut.move_pieces();
        spin_while(|| cut.done.load(Acquire) < self.helpers.len());
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.cut.over.store(true, Relaxed);
        for helper in self.helpers.drain(..) {
            let _ = helper.join();
        }
    }
}

/// Both ends, and what is at them.
struct Ends {
    engine: Engine,
    local: SegmentId,
    here: Arc<Region>,
    /// Memory to copy to and from here.
    beside: Region,
    /// Workers, over which blocks are cut; or one.
    team: usize,
    target: Child,
    /// Where the target's private memory is.
    there: usize,
    address: String,
}

impl Ends {
    fn start(args: &Args) -> io::Result<Self> {
        // Its own choice, unless it is told.
        let workers = args.workers.unwrap_or(0).to_string();
        let target = Child::start(&["target".into(), "shm".into(), workers])?;
        let (address, there) = target.address.split_once(' ').ok_or_else(|| other("no"))?;
        let config = Config {
            workers: args.workers.unwrap_or(args.threads),
            ..Config::named("initiator")
        };
        let engine = Engine::new(config).map_err(other)?;
        let local = engine
            .register_region("here", touched(Access::Local)?)
            .map_err(other)?;
        let here = engine.region(local).ok_or_else(|| other("no memory"))?;
        Ok(Self {
            here,
            local,
            beside: touched(Access::RemoteReadWrite)?,
            there: there.parse().map_err(other)?,
            address: address.to_owned(),
            team: args.workers.unwrap_or(1),
            engine,
            target,
        })
    }

    fn polyrail(&self, op: Op, segment: &str, batch: u64) -> io::Result<Mover<'_>> {
        let remote = self
            .engine
            .open_segment(&format!("{}/{segment}", self.address))
            .map_err(other)?;
        Ok(Box::new(move |offset, length| {
            let request = |block: u64| Request {
                op,
                local: self.local,
                local_offset: offset + block * length,
                remote,
                remote_offset: offset + block * length,
                length,
            };
            let batch = match batch {
                // A program with one block makes no list of it.
                1 => self.engine.submit(&[request(0)]),
                more => {
                    let requests: Vec<_> = (0..more).map(request).collect();
                    self.engine.submit(&requests)
                }
            };
            let batch = batch.expect("there is room");
            let ended = batch.wait(PATIENCE).expect("it ends");
            assert_eq!(ended.status, Status::Completed);
        }))
    }

    fn memcpy(&self, batch: u64) -> Bare<'_> {
        let address = |region: &Region| region.base().as_ptr().expose_provenance();
        let (from, to) = (address(&self.here), address(&self.beside));
        self.bare(batch, move |offset, length| {
            let from = std::ptr::with_exposed_provenance::<u8>(from + offset as usize);
            let to = std::ptr::with_exposed_provenance_mut(to + offset as usize);
            // SAFETY: both regions are as large as blocks reach, are there as long as whoever copies, and are only copied.
            unsafe {
                std::ptr::copy_nonoverlapping(black_box(from), black_box(to), length as usize)
            }
        })
    }

    /// Bare calls of the kernel for the target's private memory.
    fn bare_calls(&self, op: Op, batch: u64) -> Bare<'_> {
        let pid = self.target.pid() as libc::pid_t;
        let (there, here) = (self.there, self.here.base().as_ptr().expose_provenance());
        self.bare(batch, move |offset, length| {
            let iovec = |base: usize| libc::iovec {
                iov_base: std::ptr::with_exposed_provenance_mut(base + offset as usize),
                iov_len: length as usize,
            };
            let (here, there) = (iovec(here), iovec(there));
            // SAFETY: `here` is as large as blocks reach, and so is the target's memory.
            let moved = unsafe {
                match op {
                    Op::Read => libc::process_vm_readv(pid, &here, 1, &there, 1, 0),
                    Op::Write => libc::process_vm_writev(pid, &here, 1, &there, 1, 0),
                }
            };
            assert_eq!(moved, length as isize);
        })
    }

    /// Somebody who moves each block of a batch by itself: whole, or cut over as many threads as the engine.
    fn bare(&self, batch: u64, one: impl Fn(u64, u64) + Copy + Send + Sync + 'static) -> Bare<'_> {
        let team = self.team;
        Box::new(move || match team {
            1 => one_by_one(batch, one),
            _ => {
                let team = Team::new(team, Box::new(one));
                one_by_one(batch, move |offset, length| team.move_block(offset, length))
            }
        })
    }
}

/// Moves each block of a batch by itself.
fn one_by_one<'a>(batch: u64, one: impl Fn(u64, u64) + Sync + 'a) -> Mover<'a> {
    Box::new(move |offset, length| {
        for block in 0..batch {
            one(offset + block * length, length);
        }
    })
}

/// What counts as time.
enum Watch {
    Wall,
    /// The processor time of this process and of another one.
    Cpu(libc::clockid_t),
}

impl Watch {
    fn of(pid: u32) -> io::Result<Self> {
        let mut clock = 0;
        // SAFETY: writes one clock's number to where it is told.
        match unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) } {
            0 => Ok(Self::Cpu(clock)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    fn now(&self, start: Instant) -> f64 {
        match self {
            Self::Wall => start.elapsed().as_secs_f64(),
            Self::Cpu(other) => seconds(libc::CLOCK_PROCESS_CPUTIME_ID) + seconds(*other),
        }
    }
}

fn seconds(clock: libc::clockid_t) -> f64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to where it is told. It fails only if the other process has ended, and then it is 0.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Bytes a second of so many threads, each with blocks of its own.
fn rate(mover: &Mover<'_>, block: u64, args: &Args, watch: &Watch) -> f64 {
    let (threads, time) = (args.threads, Duration::from_millis(args.millis));
    let start = Instant::now();
    let before = watch.now(start);
    let moved: u64 = thread::scope(|scope| {
        let work = |thread: u64| {
            let bytes = block * args.batch;
            let batches = BYTES / bytes;
            let mut moved = 0;
            while start.elapsed() < time {
                // Threads begin apart from each other.
                let index = (moved + thread * batches / threads as u64) % batches;
                mover(index * bytes, block);
                moved += 1;
            }
            moved * bytes
        };
        let all: Vec<_> = (0..threads as u64)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        all.into_iter().map(|one| one.join().unwrap_or(0)).sum()
    });
    moved as f64 / (watch.now(start) - before)
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Runs all by turns and prints the table.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    let ends = Ends::start(args)?;
    let watch = match args.cpu {
        true => Watch::of(ends.target.pid())?,
        false => Watch::Wall,
    };
    let cases = [
        (
            "write, shared",
            ends.polyrail(Op::Write, "shared", args.batch)?,
            "memcpy",
            ends.memcpy(args.batch),
        ),
        (
            "read, shared",
            ends.polyrail(Op::Read, "shared", args.batch)?,
            "memcpy",
            ends.memcpy(args.batch),
        ),
        (
            "write, private",
            ends.polyrail(Op::Write, "private", args.batch)?,
            "process_vm_writev",
            ends.bare_calls(Op::Write, args.batch),
        ),
        (
            "read, private",
            ends.polyrail(Op::Read, "private", args.batch)?,
            "process_vm_readv",
            ends.bare_calls(Op::Read, args.batch),
        ),
    ];
    println!("| what | block | polyrail GB/s | beside | GB/s | ratio, least to greatest |");
    println!("|---|---|---|---|---|---|");
    let only = cases.iter().filter(|case| case.0.contains(&args.only));
    for (what, ours, name, bare) in only {
        let asked = |block: &u64| {
            let fits = block * args.batch * args.threads as u64 <= BYTES;
            fits && args.kib.is_none_or(|kib| *block == kib << 10)
        };
        for block in BLOCKS.into_iter().filter(asked) {
            let measure = |mover: &Mover<'_>| rate(mover, block, args, &watch);
            // Lanes open, pages are mapped, rates are learned.
            measure(ours);
            let bare = || measure(&bare());
            let rounds: Vec<_> = (0..args.rounds)
                .map(|round| match round % 2 {
                    0 => (measure(ours), bare()),
                    _ => {
                        let bare = bare();
                        (measure(ours), bare)
                    }
                })
                .collect();
            let mut ratios: Vec<f64> = rounds.iter().map(|(ours, bare)| ours / bare).collect();
            ratios.sort_by(f64::total_cmp);
            println!(
                "| {what} | {} KiB | {:.2} | {name} | {:.2} | {:.2}, {:.2} to {:.2} |",
                block >> 10,
                median(rounds.iter().map(|round| round.0).collect()) / 1e9,
                median(rounds.iter().map(|round| round.1).collect()) / 1e9,
                ratios[ratios.len() / 2],
                ratios[0],
                ratios[ratios.len() - 1],
            );
        }
    }
    drop(cases);
    ends.engine.shutdown();
    Ok(())
}
