//! `polyrail serve`: a target.

mod file;

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use polyrail::{Access, Config, Engine, Hooks};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::address::{self, Rails};
use crate::calls::answer::ServedCalls;
use crate::exit::Failure;
use crate::kind::{MemoryKind, memory_kind};
use crate::recorded::recorded;
use crate::settings::ConfigArgs;
use crate::sizes;
use file::{FileArg, Offered};

/// The name of the segment that a target offers.
pub(crate) const SEGMENT: &str = "mem";

/// Runs a target: offers a segment of memory named `mem` to peers until SIGINT or SIGTERM.
///
/// The first line on standard output is `listening HOST:PORT name=NAME`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  polyrail serve --listen 127.0.0.1:7000 --memory 256MiB\n  \
    polyrail serve --listen 10.0.0.2:7000 --rails 10.0.0.2,10.0.1.2 --insecure\n  \
    polyrail serve --memory 1MiB --file weights.bin:ro"
)]
pub(crate) struct ServeArgs {
    /// Where to listen; port 0 lets the kernel choose [default: 127.0.0.1:0].
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address::listen)]
    listen: Option<SocketAddr>,
    /// The name peers see [default: polyrail].
    #[arg(long, value_name = "NAME", value_parser = address::name)]
    name: Option<String>,
    /// Addresses of this host that rails may use; it listens there too, on the same port.
    #[arg(long, value_name = "A,B,…", value_parser = address::rails)]
    rails: Option<Rails>,
    /// Size of the segment.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", allow_negative_numbers = true, value_parser = sizes::size)]
    memory: u64,
    /// Where the segment is; `cuda:N` is memory of a GPU, in builds that have it.
    #[arg(long, value_name = "cpu|cuda:N", default_value = "cpu", value_parser = memory_kind)]
    memory_kind: MemoryKind,
    /// Also offer a file or block device, under its base name; with `:ro`, for reading only. What peers wrote is put
    /// on the disk when this ends by a signal.
    #[arg(long, value_name = "PATH[:ro]", value_parser = file::file)]
    file: Vec<FileArg>,
    /// Listen beyond loopback although nobody is asked for a key.
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    settings: ConfigArgs,
    /// Leave a flight recording of this engine in this folder, for `polyrail sim replay`.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// End also when standard input does: how a parent takes its target with it, whatever ends it.
    #[arg(long, hide = true)]
    end_with_stdin: bool,
}

/// Runs the command.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let config = config(args)?;
    check_reach(&config)?;
    args.memory_kind.check()?;
    // Signals are caught before anybody can know that we run.
    let ends = ends(args.end_with_stdin)?;
    let name = config.name.clone();
    let files: Vec<_> = args
        .file
        .iter()
        .map(Offered::open)
        .collect::<Result<_, _>>()?;
    let calls = ServedCalls::new(files.iter().map(Offered::summed));
    let engine = start(config, calls, args.record.clone())?;
    args.memory_kind
        .allocate(&engine, SEGMENT, args.memory, Access::RemoteReadWrite)
        .map_err(|e| {
            let size = sizes::show_size(args.memory);
            Failure::Environment(format!("cannot offer --memory {size}: {e}"))
        })?;
    let segments: Vec<_> = files
        .iter()
        .map(|file| file.offer(&engine))
        .collect::<Result<_, _>>()?;
    announce(&engine, &name)?;
    let reason = ends.recv().unwrap_or("nobody could end it any more");
    log::info!("ending: {reason}");
    engine.shutdown();
    if let Some(recorded) = recorded(&engine) {
        log::warn!("{recorded}");
    }
    let mut offered = files.iter().zip(segments);
    offered.try_for_each(|(file, segment)| file.sync(&engine, segment))
}

/// The engine checks this as well, but it cannot name our flags.
fn check_reach(config: &Config) -> Result<(), Failure> {
    let listen = config.listen.iter().map(SocketAddr::ip);
    let beyond = listen
        .chain(config.rails.iter().copied())
        .find(|address| !address.is_loopback());
    match beyond {
        Some(address) if !config.insecure => Err(Failure::Usage(format!(
            "{address} is beyond loopback, where anybody could use this memory; \
             give --insecure to accept that, or listen on 127.0.0.1"
        ))),
        _ => Ok(()),
    }
}

fn config(args: &ServeArgs) -> Result<Config, Failure> {
    const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let mut config = args.settings.load()?;
    config.listen = args.listen.or(config.listen).or(Some(LOOPBACK));
    config.insecure |= args.insecure;
    if let Some(rails) = &args.rails {
        config.use_rails(&rails.0);
    }
    if let Some(name) = &args.name {
        config.name.clone_from(name);
    }
    Ok(config)
}

fn start(
    config: Config,
    calls: ServedCalls,
    recording: Option<PathBuf>,
) -> Result<Engine, Failure> {
    let listen = config.listen;
    let hooks = Hooks {
        calls: Some(Arc::new(calls)),
        recording,
        ..Hooks::default()
    };
    Engine::with_hooks(config, hooks).map_err(|e| {
        let place = listen.map_or_else(String::new, |listen| format!(" on {listen}"));
        Failure::from_engine(e.is_usage(), format!("cannot serve{place}: {e}"))
    })
}

fn announce(engine: &Engine, name: &str) -> Result<(), Failure> {
    let place = engine
        .listening()
        .ok_or_else(|| Failure::Environment("the engine does not listen".to_owned()))?;
    let mut out = io::stdout().lock();
    writeln!(out, "listening {place} name={name}")
        .and_then(|()| out.flush())
        .map_err(Failure::output)
}

/// Receives why to end: a signal, or the end of standard input if that counts.
fn ends(with_stdin: bool) -> Result<std::sync::mpsc::Receiver<&'static str>, Failure> {
    let (tell, ends) = channel();
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|e| Failure::Environment(format!("cannot catch SIGINT and SIGTERM: {e}")))?;
    let tell_signal = tell.clone();
    thread::spawn(move || {
        let reason = match signals.forever().next() {
            Some(SIGINT) => "SIGINT",
            _ => "SIGTERM",
        };
        // The receiver is gone only if we are ending already.
        let _ = tell_signal.send(reason);
    });
    if with_stdin {
        thread::spawn(move || tell_at_end_of_stdin(&tell));
    }
    Ok(ends)
}

fn tell_at_end_of_stdin(tell: &Sender<&'static str>) {
    let mut ignored = [0; 64];
    // An error ends it as well: either way nobody holds the other end as agreed.
    while matches!(io::stdin().read(&mut ignored), Ok(1..)) {}
    let _ = tell.send("standard input ended");
}
