//! Attacks a real `polyrail serve`, at its port and from inside the host, while others go on transferring through it and must not
//! notice.
//!
//! ```text
//! cargo build --release && cargo run --release -p polyrail-tests-fuzz -- --seconds 300 --seed 1
//! ```
//!
//! The attackers know the languages spoken there ([`speech`]) and break them ([`mutate`]) in the ways of
//! [`attack`]; what they send is drawn from the seed, when it arrives is the kernel's business. Two good peers
//! ([`peers`]) check every byte that they move. In the end the target must be alive, answer, have as many
//! descriptors open as before and hardly more memory, have said nothing of a panic, and end by SIGTERM with 0.
//!
//! Out of bounds is what a peer that was let in may do: to write to memory that was offered for writing.

mod attack;
mod attacker;
mod inside;
mod mutate;
mod peers;
mod program;
mod speech;
mod wire;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use tempfile::TempDir;

use attack::Tally;
use attacker::{Attacker, Desertion};
use program::Target;

/// What the target's memory may grow by.
const GROWTH_MAX: u64 = 64 << 20;

/// How long what the attackers left behind may live on: sessions linger for ten seconds, strangers are heard
/// for two.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// The file that good peers read, and the one that attackers may write to.
const KNOWN: &str = "known.bin";
const VICTIM: &str = "victim.bin";

/// Attacks the port of a target that others use meanwhile.
#[derive(Parser)]
struct Args {
    /// How long to attack.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// What the attacks are drawn from; without it, the clock.
    #[arg(long)]
    seed: Option<u64>,
    /// Attackers at the same time.
    #[arg(long, default_value_t = 4)]
    attackers: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(seed_of_the_clock);
    println!("seed {seed}, {} s", args.seconds);
    match run(&args, seed) {
        Ok(()) => {
            println!("ok: seed {seed}, {} s", args.seconds);
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("FAILED: seed {seed}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn seed_of_the_clock() -> u64 {
    let now = std::time::UNIX_EPOCH.elapsed();
    now.map_or(0, |now| now.as_nanos() as u64)
}

fn run(args: &Args, seed: u64) -> Result<(), String> {
    let folder = TempDir::new().map_err(|e| format!("no folder: {e}"))?;
    let known = peers::write_files(folder.path())?;
    let target = Target::start(folder.path())?;
    peers::touch_all(&target, folder.path())?;
    let (descriptors, memory) = target.at_rest()?;
    println!("before: {descriptors} descriptors, {} KiB", memory / 1024);
    let attacked = attack_and_use(args, seed, &target, folder.path(), &known);
    let settled = attacked.and_then(|()| target.settle(descriptors, SETTLE_MAX));
    let answered = settled.and_then(|()| peers::read_known(&target, folder.path(), &known));
    let memory_after = target.memory()?;
    println!(
        "after: {} descriptors, {} KiB",
        target.descriptors()?,
        memory_after / 1024
    );
    target.end().and(answered)?;
    if memory_after > memory + GROWTH_MAX {
        let grown = (memory_after - memory) / 1024;
        return Err(format!("the target's memory grew by {grown} KiB"));
    }
    Ok(())
}

/// Attackers and good peers at the same time; what goes wrong for the peers or the target.
fn attack_and_use(
    args: &Args,
    seed: u64,
    target: &Target,
    folder: &std::path::Path,
    known: &[u8],
) -> Result<(), String> {
    let stop = AtomicBool::new(false);
    let desertion = Desertion::new();
    let until = Instant::now() + Duration::from_secs(args.seconds);
    thread::scope(|scope| {
        let attackers: Vec<_> = (0..args.attackers)
            .map(|index| {
                let ports: Vec<SocketAddr> = target.ports();
                let attacker = Attacker::new(ports, seed, index, &desertion);
                let stop = &stop;
                scope.spawn(move || attacker.attack_until(stop))
            })
            .collect();
        let moving = scope.spawn(|| peers::move_for(target, args.seconds));
        let reading = scope.spawn(|| peers::read_until(target, folder, known, &stop));
        let watched = target.watch_until(until);
        stop.store(true, Ordering::Relaxed);
        let mut tally = Tally::default();
        for attacker in attackers {
            let done = attacker.join().map_err(|_| "an attacker panicked")?;
            tally.add(&done);
        }
        println!("attacks: {tally}");
        let moved = moving.join().map_err(|_| "a good peer panicked")?;
        let read = reading.join().map_err(|_| "a good peer panicked")?;
        watched?;
        println!("moved: {}", moved?);
        println!("read: {} times {KNOWN}", read?);
        Ok(())
    })
}
