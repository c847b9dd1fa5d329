//! `polyrail agent`: says by hints which class of rails carries how much.

mod command;
mod lines;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_core::path::hint::{HintWriter, SLOTS_MAX};
use polyrail_core::path::share::Shares;
use polyrail_shared::hint::{AgentFile, default_path};
use polyrail_shared::{host_now, is_gone};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit::Failure;
use command::Command;
use lines::{Event, Reply, Socket};

/// Between heartbeats; readers believe an agent that is silent for five of them.
const BEAT: Duration = Duration::from_millis(100);
/// So often it is looked after dead clients: every so many beats.
const BEATS_PER_CENSUS: u32 = 5;

const HELP: &str = "\
Lines, each answered with `ok` or `error: line N: …`:
  set CLASS=SHARE …              What all connections do, in parts per 1024; the primary class has the rest
  set CLASS=SHARE … on SLOT.USE  What one connection does, named as `show` names it
  set none [on SLOT.USE]         Nothing is said any more
  show                           What is set, and which connections there are
  quit                           End, as on SIGINT and SIGTERM; engines then do what they do without an agent
A class is `primary`, `supplementary` or a number from 0 (the primary one) to 7.

Example:
  polyrail agent --socket /run/user/1000/hints.sock
  polyrail agent --file /dev/shm/hints
  set supplementary=256
  ok";

/// Runs an agent: publishes which class of rails is to carry how much, for engines of this user on this host.
///
/// The first line on standard output is `agent FILE slots=N`. Then it takes lines and answers each with `ok` or
/// `error: line N: …`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct AgentArgs {
    /// The file that engines map [default: /dev/shm/polyrail-hint-UID].
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Take lines from this Unix socket instead of standard input.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Connections that something can be said of alone.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=i64::from(SLOTS_MAX)))]
    slots: u32,
}

/// Runs the command.
pub(crate) fn run(args: &AgentArgs) -> Result<(), Failure> {
    let (tell, events) = channel();
    // Signals are caught before anybody can know that we run.
    catch_signals(tell.clone())?;
    let path = args.file.clone().unwrap_or_else(default_path);
    let environment = |error: &dyn std::fmt::Display| Failure::Environment(error.to_string());
    let file = AgentFile::create(&path, args.slots).map_err(|e| environment(&e))?;
    let mut hints = HintWriter::start(file, host_now()).map_err(|e| environment(&e))?;
    let _socket = match &args.socket {
        Some(socket) => Some(Socket::listen(socket, tell)?),
        None => {
            lines::serve_stdin(tell);
            None
        }
    };
    let mut out = io::stdout().lock();
    writeln!(out, "agent {} slots={}", path.display(), hints.slots())
        .and_then(|()| out.flush())
        .map_err(Failure::output)?;
    drop(out);
    let reason = serve(&events, &mut hints);
    log::info!("ending: {reason}");
    Ok(())
}

/// Beats and answers until it is told to end. The reason.
fn serve(events: &Receiver<Event>, hints: &mut HintWriter<AgentFile>) -> &'static str {
    let mut beats = 0_u32;
    let mut beat_at = Instant::now();
    loop {
        let wait = beat_at.saturating_duration_since(Instant::now());
        match events.recv_timeout(wait) {
            Ok(Event::Line { text, reply }) => {
                // Who asked may have gone.
                let _ = reply.send(answer(hints, &text));
            }
            Ok(Event::End(reason)) => return reason,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return "nobody could end it any more",
        }
        let now = Instant::now();
        if now >= beat_at {
            hints.beat(host_now());
            if beats.is_multiple_of(BEATS_PER_CENSUS) {
                free_slots_of_the_dead(hints);
            }
            beats = beats.wrapping_add(1);
            beat_at = now + BEAT;
        }
    }
}

fn answer(hints: &mut HintWriter<AgentFile>, line: &str) -> Reply {
    let command = Command::parse(line);
    let quit = matches!(command, Ok(Some(Command::Quit)));
    let text = command.and_then(|command| match command {
        None => Ok(String::new()),
        Some(Command::Quit) => Ok("ok\n".to_owned()),
        Some(Command::Show) => Ok(show(hints) + "ok\n"),
        Some(Command::Set { shares, connection }) => {
            match connection {
                None => hints.set_all(shares),
                Some(id) => hints
                    .set(id, shares)
                    .map_err(|e| format!("{e}; `show` lists those that there are"))?,
            }
            Ok("ok\n".to_owned())
        }
    });
    Reply { text, quit }
}

/// A line for all, then one for each connection.
fn show(hints: &HintWriter<AgentFile>) -> String {
    let said = |shares: Option<Shares>, otherwise: &str| {
        shares.map_or_else(|| otherwise.to_owned(), |shares| shares.to_string())
    };
    let mut text = format!("all: {}\n", said(hints.all(), "none"));
    for lease in hints.leases() {
        let (id, pid) = (lease.id, lease.pid);
        let who = lease
            .details
            .map_or_else(String::new, |(_, connection)| format!(" {connection}"));
        let shares = said(lease.shares, "as all");
        // A string takes whatever is written.
        let _ = writeln!(text, "{id}: {shares} (process {pid}{who})");
    }
    text
}

fn free_slots_of_the_dead(hints: &mut HintWriter<AgentFile>) {
    let clients: BTreeSet<_> = hints
        .leases()
        .map(|lease| (lease.pid, lease.details.map(|(started, _)| started)))
        .collect();
    for (pid, started) in clients {
        let is_it = |found| started.is_none_or(|started| started == found);
        if is_gone(pid, is_it) {
            let freed = hints.handle_client_gone(pid, started);
            log::info!("process {pid} is gone and had {freed} slots");
        }
    }
}

fn catch_signals(events: Sender<Event>) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|e| Failure::Environment(format!("cannot catch SIGINT and SIGTERM: {e}")))?;
    thread::spawn(move || {
        let reason = match signals.forever().next() {
            Some(SIGINT) => "SIGINT",
            _ => "SIGTERM",
        };
        // The receiver is gone only if we are ending already.
        let _ = events.send(Event::End(reason));
    });
    Ok(())
}
