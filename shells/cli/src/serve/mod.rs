//! `polyrail serve`: a target.

mod file;
mod manager;
mod reload;
mod signals;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use polyrail::{Config, Engine, Exposed, Hooks};

use crate::address::{self, Rails};
use crate::calls::answer::ServedCalls;
use crate::exit::Failure;
use crate::kind::{MemoryKind, memory_kind};
use crate::recorded::recorded;
use crate::security;
use crate::settings::ConfigArgs;
use crate::sizes;
use file::{FileArg, Offered};
use reload::Said;
use signals::{Asked, Reason};

/// The name of the segment that a target offers.
pub(crate) const SEGMENT: &str = "mem";

/// Runs a target: offers a segment of memory named `mem` to peers until a signal ends it.
///
/// SIGINT, SIGTERM and the like end it: peers are told, begin nothing more with it and leave once what they have under way
/// has ended, which is waited for as long as --drain says. A second signal ends it without that, a third one at once. SIGHUP
/// reads the configuration again and takes what of it can change; SIGUSR1 says on standard error how it stands, and writes
/// the last calls on core to a file, if `recording/ring_mb` keeps them.
///
/// The first line on standard output is `listening HOST:PORT name=NAME`, the second one with --metrics or the key
/// `metrics` is `metrics http://HOST:PORT/metrics`. The last one, `security …`, says whether there is a cluster key and what
/// is in clear.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  polyrail serve --listen 127.0.0.1:7000 --memory 256MiB\n  \
    polyrail serve --listen 10.0.0.2:7000 --rails 10.0.0.2,10.0.1.2 --insecure\n  \
    polyrail serve --memory 1MiB --file weights.bin:ro --metrics 127.0.0.1:9090"
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
    /// Touch all of the segment before anybody is let in: memory that is not there is an error now and not in the middle of a
    /// transfer, and the first transfers are as fast as all others.
    #[arg(long)]
    prefault: bool,
    /// Where the segment is; `cuda:N` is memory of a GPU, in builds that have it.
    #[arg(long, value_name = "cpu|cuda:N", default_value = "cpu", value_parser = memory_kind)]
    memory_kind: MemoryKind,
    /// Also offer a file or block device, under its base name, or all files of a directory, as DIRECTORY/PATH; with `:ro`, for reading only. What peers wrote is put
    /// on the disk when this ends.
    #[arg(long, value_name = "PATH[:ro]", value_parser = file::file)]
    file: Vec<FileArg>,
    /// Answer HTTP here: `/metrics` as OpenMetrics, `/live` and `/ready`. The second line on standard output says where.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address::listen)]
    metrics: Option<SocketAddr>,
    /// How long what is under way may take to end after SIGTERM or SIGINT, in seconds; 0: it is cut.
    #[arg(long, value_name = "SECONDS", default_value = "10", allow_negative_numbers = true, value_parser = sizes::patience)]
    drain: Duration,
    /// Listen beyond loopback although nobody is asked for a key, or although lanes are in clear.
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
    let loaded = args.settings.load_whole()?;
    let mut said = Said::new(&loaded.effective);
    let mut config = config(args, loaded.config);
    if let Some(why) = security::out_of_reach(&config) {
        return Err(Failure::Usage(why));
    }
    args.memory_kind.check()?;
    if args.prefault && args.memory_kind == MemoryKind::Cpu {
        check_available(args.memory)?;
    }
    // Signals are caught before anybody can know that we run.
    let questions = signals::asked(args.end_with_stdin)?;
    let name = config.name.clone();
    let shown = config.clone();
    // Who asks for them by a flag wants to hear if they are not to be had. One variable of the environment is for many engines.
    let metrics = args.metrics.and_then(|_| config.metrics.take());
    let files = args.file.iter().map(Offered::all);
    let files = files.collect::<Result<Vec<_>, _>>()?.concat();
    let calls = ServedCalls::new(files.iter().map(Offered::summed));
    let engine = start(config, calls, args.record.clone())?;
    args.memory_kind
        .offer(&engine, args.memory, args.prefault)
        .map_err(|e| {
            let size = sizes::show_size(args.memory);
            Failure::Environment(format!("cannot offer --memory {size}: {e}"))
        })?;
    let segments: Vec<_> = files
        .iter()
        .map(|file| file.offer(&engine))
        .collect::<Result<_, _>>()?;
    let metrics = metrics.map(|at| engine.expose(at)).transpose();
    let metrics = metrics.map_err(|e| Failure::Environment(e.to_string()))?;
    let at = metrics.as_ref().map(Exposed::at);
    let at = at.or_else(|| engine.metrics_at());
    engine.let_in();
    let status = announce(&engine, &name, at, &security::line(engine.key(), &shown))?;
    manager::ready(&status);
    let reason = loop {
        match questions.asked.recv() {
            Ok(Asked::End(reason)) => break reason,
            Ok(Asked::Reload) => {
                manager::reloading();
                reload::reload(args, &engine, &mut said);
                manager::ready(&status);
            }
            Ok(Asked::Tell) => signals::tell(&engine),
            Ok(Asked::Drained(_)) => {}
            Err(_) => break Reason::Input,
        }
    };
    log::info!(event = "ending"; "ending: {reason}");
    manager::stopping();
    if reason != Reason::Input {
        signals::drain(&engine, args.drain, &questions);
    }
    engine.shutdown();
    if let Some(recorded) = recorded(&engine) {
        log::warn!("{recorded}");
    }
    let mut offered = files.iter().zip(segments);
    offered.try_for_each(|(file, segment)| match segment {
        Some(segment) => file.sync(&engine, segment),
        None => Ok(()),
    })
}

/// Memory that is not there would end this process by a signal, and perhaps others with it.
fn check_available(bytes: u64) -> Result<(), Failure> {
    match available_bytes() {
        Some(available) if available < bytes => Err(Failure::Environment(format!(
            "cannot offer --memory {} with --prefault: {} are available on this host (MemAvailable in /proc/meminfo)",
            sizes::show_size(bytes),
            sizes::show_size(available >> 20 << 20),
        ))),
        _ => Ok(()),
    }
}

/// What the kernel says could be taken without anything having to go.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// What flags make of what file and environment say.
fn config(args: &ServeArgs, mut config: Config) -> Config {
    const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    config.listen = args.listen.or(config.listen).or(Some(LOOPBACK));
    config.insecure |= args.insecure;
    config.metrics = args.metrics.or(config.metrics);
    if let Some(rails) = &args.rails {
        config.use_rails(&rails.0);
    }
    if let Some(name) = &args.name {
        config.name.clone_from(name);
    }
    config
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
        // Whoever comes early would be told that there is no such segment.
        lets_in_later: true,
        ..Hooks::default()
    };
    Engine::with_hooks(config, hooks).map_err(|e| {
        let place = listen.map_or_else(String::new, |listen| format!(" on {listen}"));
        Failure::from_engine(e.is_usage(), format!("cannot serve{place}: {e}"))
    })
}

fn announce(
    engine: &Engine,
    name: &str,
    metrics: Option<SocketAddr>,
    security: &str,
) -> Result<String, Failure> {
    let place = engine
        .listening()
        .ok_or_else(|| Failure::Environment("the engine does not listen".to_owned()))?;
    let metrics = metrics.map_or_else(String::new, |at| format!("metrics http://{at}/metrics\n"));
    let lines = format!("listening {place} name={name}\n{metrics}{security}\n");
    let mut out = io::stdout().lock();
    // In one go: who wants the first line may hang up behind it.
    out.write_all(lines.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Failure::output)?;
    let address = place.to_string();
    log::info!(event = "listening", address = address.as_str(), name = name, security = security;
        "listening at {place} as \"{name}\"; {security}");
    Ok(format!("listening at {place} as {name}"))
}
