//! What is measured of polyrail, and beside what. `README.md` of this folder says how to run it.

mod cell;
mod child;
mod compare;
mod crowd;
mod engine;
mod files;
mod measure;
mod memory;
mod null;
mod shm;
mod sockets;
mod spans;
mod staged;
mod table;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Floors, polyrail, and other engines beside it.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs everybody by turns and prints a table.
    Compare(compare::Args),
    /// Prints the table of an earlier run.
    Table {
        /// What `compare` wrote.
        rows: std::path::PathBuf,
    },
    /// Slices a second of the engine with no transport under it, by one thread and by two.
    Slices,
    /// What a request costs in batches of 100 to 1,000,000, with no transport under the engine.
    Batches,
    /// polyrail over shared memory by turns with bare copies, and the ratios.
    Shm(shm::Args),
    /// One large request by turns with two halves of it, each with a worker of its own.
    Spans(spans::Args),
    /// Reads and writes a file by turns with fio, which has to be installed.
    Files(files::Args),
    /// Moves files by way of both ends' memory, beside each stage of that alone.
    Staged(staged::Args),
    /// A thousand initiators of eight rails at one target: what they cost, and what is left of the throughput of one.
    Crowd(crowd::Args),
    /// Moves batches as its input says: `write|read BYTES COUNT MILLISECONDS`.
    Initiator {
        #[command(subcommand)]
        who: Who,
    },
    /// The other end of an initiator, which starts it.
    #[command(hide = true)]
    Target {
        #[command(subcommand)]
        who: Who,
    },
}

#[derive(Subcommand)]
enum Who {
    /// Bare sockets.
    Sockets(sockets::Style),
    /// polyrail.
    Polyrail(engine::Shape),
    /// polyrail over shared memory, with so many workers.
    Shm { workers: usize },
    /// polyrail with two workers and so many mebibytes.
    Spans {
        mib: u64,
        #[arg(long)]
        shm: bool,
    },
    /// polyrail with so many rails, for a crowd.
    Crowd {
        kind: crowd::Kind,
        #[command(flatten)]
        shape: crowd::Shape,
    },
    /// A part of that crowd.
    CrowdMembers {
        kind: crowd::Kind,
        target: String,
        engines: usize,
        #[command(flatten)]
        shape: crowd::Shape,
    },
    /// polyrail with a file.
    Staged {
        file: std::path::PathBuf,
        mib: u64,
        rails: u8,
        slots: u32,
    },
}

fn run(command: Command) -> io::Result<()> {
    match command {
        Command::Compare(args) => compare::run(&args),
        Command::Table { rows } => {
            print!("{}", table::markdown(&table::read(&rows)?));
            Ok(())
        }
        Command::Slices => null::run(),
        Command::Batches => null::batches(),
        Command::Shm(args) => shm::run(&args),
        Command::Spans(args) => spans::run(&args),
        Command::Files(args) => files::run(&args),
        Command::Staged(args) => staged::run(&args),
        Command::Crowd(args) => crowd::run(&args),
        Command::Initiator { who } => match who {
            Who::Sockets(style) => measure::answer_cells(&mut sockets::Sockets::start(style)?),
            Who::Polyrail(shape) => measure::answer_cells(&mut engine::Polyrail::start(shape)?),
            Who::Shm { .. }
            | Who::Spans { .. }
            | Who::Staged { .. }
            | Who::Crowd { .. }
            | Who::CrowdMembers { .. } => Err(io::Error::other(
                "say `shm`, `spans`, `staged` or `crowd`, which start their own",
            )),
        },
        Command::Target { who } => match who {
            Who::Sockets(style) => sockets::serve(style),
            Who::Polyrail(shape) => engine::serve(shape),
            Who::Shm { workers } => shm::serve(workers),
            Who::Spans { mib, shm } => spans::serve(mib, shm),
            Who::Crowd { kind, shape } => crowd::serve(kind, shape),
            Who::CrowdMembers {
                kind,
                target,
                engines,
                shape,
            } => crowd::members(kind, &target, engines, shape),
            Who::Staged {
                file,
                mib,
                rails,
                slots,
            } => staged::serve(&file, mib, rails, slots),
        },
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(3)
        }
    }
}
