//! `polyrail cp`: a file to or from a target's segment.

mod pipeline;
mod place;
mod progress;
mod sink;

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use polyrail::{Engine, SegmentId};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::address::{self, Rails};
use crate::calls::ask::Owner;
use crate::exit::Failure;
use crate::pattern::memory::Span;
use crate::session;
use crate::settings::ConfigArgs;
use crate::sizes;
use crate::source::Source;
use pipeline::{File, Pipeline};
use place::{Place, Segment};
use progress::Progress;
use sink::Sink;

/// Copies a file to a target's segment, or bytes of a segment to a file.
///
/// A segment is written HOST:PORT/SEGMENT, with +OFFSET if it is not to start at its first byte. A file gets its
/// name only when all of it is there and on the disk; if the copy fails, what was there before stays. The
/// result is one line on standard output that says which transports carried the bytes, and ends with their CRC32C.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  polyrail cp weights.bin 10.0.0.2:7000/mem+4GiB --verify\n  \
    polyrail cp 10.0.0.2:7000/mem+4GiB weights.bin --length 1GiB"
)]
pub(crate) struct CpArgs {
    /// What to copy: a file or block device, or HOST:PORT/SEGMENT[+OFFSET].
    #[arg(value_name = "SRC", value_parser = place::place)]
    from: Place,
    /// Where to: the other of the two.
    #[arg(value_name = "DST", value_parser = place::place)]
    to: Place,
    /// How many bytes of a segment to copy; without it, all from the offset on.
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = sizes::size)]
    length: Option<u64>,
    /// Addresses of this host to use, one rail each; the i-th meets the target's i-th.
    #[arg(long, value_name = "A,B,…", value_parser = address::rails)]
    rails: Option<Rails>,
    /// Have the target sum up its memory afterwards, and compare.
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    settings: ConfigArgs,
}

/// A segment that is open.
struct Open<'a> {
    engine: Engine,
    remote: SegmentId,
    segment: &'a Segment,
    bytes: u64,
    /// Whether the owner is asked afterwards.
    verify: bool,
}

/// What was copied.
struct Copied {
    bytes: u64,
    crc: u32,
    /// How long it took, verification aside.
    elapsed: Duration,
    /// The transports that carried it.
    transports: String,
}

/// Runs the command.
pub(crate) fn run(args: &CpArgs) -> Result<(), Failure> {
    let copied = match (&args.from, &args.to) {
        (Place::File(path), Place::Segment(segment)) => upload(args, path, segment)?,
        (Place::Segment(segment), Place::File(path)) => download(args, segment, path)?,
        (Place::File(_), Place::File(_)) => {
            return Err(Failure::Usage(format!(
                "neither {} nor {} is a target's segment, which is written HOST:PORT/SEGMENT[+OFFSET]",
                args.from, args.to
            )));
        }
        (Place::Segment(_), Place::Segment(_)) => {
            return Err(Failure::Usage(format!(
                "{} and {} are both segments; one side has to be a file here",
                args.from, args.to
            )));
        }
    };
    let Copied {
        bytes,
        crc,
        elapsed,
        transports,
    } = copied;
    let seconds = elapsed.as_secs_f64();
    let speed = bytes as f64 / 1e9 / seconds;
    let verified = if args.verify {
        "verified by the target, "
    } else {
        ""
    };
    writeln!(
        io::stdout(),
        "copied {bytes} bytes in {seconds:.3} s, {speed:.3} GB/s, over {transports}, {verified}crc32c {crc:08x}"
    )
    .map_err(Failure::output)
}

fn upload(args: &CpArgs, path: &Path, segment: &Segment) -> Result<Copied, Failure> {
    if args.length.is_some() {
        return Err(Failure::Usage(format!(
            "--length is about a segment that is copied from; all of {} is copied",
            path.display()
        )));
    }
    let source = Source::open(path)?;
    let open = Open::new(args, segment)?;
    let end = segment.offset.checked_add(source.bytes);
    if end.is_none_or(|end| end > open.bytes) {
        return Err(Failure::Usage(format!(
            "{segment} is too small: it has {} bytes, and {} from offset {} on takes {}",
            open.bytes,
            path.display(),
            segment.offset,
            end.map_or_else(
                || "more than there can be".to_owned(),
                |end| end.to_string()
            )
        )));
    }
    let what = format!("{} to {segment}", path.display());
    open.copy(File::From(&source), source.bytes, &what)
}

fn download(args: &CpArgs, segment: &Segment, path: &Path) -> Result<Copied, Failure> {
    let sink = Sink::create(path)?;
    let open = Open::new(args, segment)?;
    let Some(rest) = open
        .bytes
        .checked_sub(segment.offset)
        .filter(|rest| *rest > 0)
    else {
        return Err(Failure::Usage(format!(
            "offset {} is past the end of {segment}, which has {} bytes",
            segment.offset, open.bytes
        )));
    };
    let bytes = args.length.unwrap_or(rest);
    if bytes > rest {
        return Err(Failure::Usage(format!(
            "--length {bytes} is more than the {rest} bytes that {segment} has from offset {} on",
            segment.offset
        )));
    }
    let what = format!("{segment} to {}", path.display());
    let copied = open.copy(File::To(&sink), bytes, &what)?;
    let started = Instant::now();
    sink.finish()?;
    Ok(Copied {
        elapsed: copied.elapsed + started.elapsed(),
        ..copied
    })
}

impl<'a> Open<'a> {
    fn new(args: &CpArgs, segment: &'a Segment) -> Result<Self, Failure> {
        let mut config = args.settings.load_initiator("cp")?;
        if let Some(rails) = &args.rails {
            config.use_rails(&rails.0);
        }
        let engine = Engine::new(config).map_err(|e| {
            Failure::from_engine(e.is_usage(), format!("cannot start an engine: {e}"))
        })?;
        let remote = engine.open_segment(&segment.address()).map_err(|e| {
            Failure::from_engine(e.is_usage(), format!("cannot open {segment}: {e}"))
        })?;
        Ok(Self {
            bytes: engine.segment_bytes(remote).unwrap_or(0),
            engine,
            remote,
            segment,
            verify: args.verify,
        })
    }

    fn copy(&self, file: File<'_>, bytes: u64, what: &str) -> Result<Copied, Failure> {
        let interrupted = interrupted()?;
        let pipeline = Pipeline {
            engine: &self.engine,
            file,
            remote: self.remote,
            offset: self.segment.offset,
            bytes,
            segment: self.segment,
            interrupted: &interrupted,
        };
        let started = Instant::now();
        let crc = pipeline.run(&mut Progress::start(what, bytes))?;
        let elapsed = started.elapsed();
        if self.verify {
            self.check(bytes, crc)?;
        }
        let rails = self.engine.rails();
        let carried = rails.iter().map(|rail| (&*rail.name, rail.bytes));
        Ok(Copied {
            bytes,
            crc,
            elapsed,
            transports: session::carriers(carried),
        })
    }

    /// Has the owner of the segment sum up what is in its memory now.
    fn check(&self, bytes: u64, crc: u32) -> Result<(), Failure> {
        let segment = self.segment;
        let owner = Owner {
            engine: &self.engine,
            remote: self.remote,
            target: &segment.target,
        };
        let span = Span {
            offset: segment.offset,
            bytes,
        };
        let there = owner.checksum(&segment.name, span)?;
        if there != crc {
            return Err(Failure::Verdict(format!(
                "{segment}: its memory has crc32c {there:08x}, what was copied {crc:08x}: it was changed \
                 meanwhile, or a byte is wrong"
            )));
        }
        Ok(())
    }
}

impl Drop for Open<'_> {
    /// The target hears of the end. A thread of the engine may have a share of it just now, and would say goodbye later than
    /// this process ends.
    fn drop(&mut self) {
        self.engine.shutdown();
    }
}

/// Becomes true with SIGINT or SIGTERM.
fn interrupted() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .map_err(|e| Failure::Environment(format!("cannot catch signals: {e}")))?;
    }
    Ok(flag)
}
