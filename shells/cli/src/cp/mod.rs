//! `polyrail cp`: bytes to, from and between targets' segments.

mod end;
mod pipeline;
mod place;
mod progress;
mod resume;
mod sink;
mod tree;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use polyrail::{Engine, SegmentId};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::address::{self, Rails};
use crate::calls::ask::Owner;
use crate::exit::Failure;
use crate::pattern::memory::Span;
use crate::session;
use crate::settings::ConfigArgs;
use crate::sizes;
use crate::source::Source;
use end::{End, Interrupted};
use pipeline::{Done, Pipeline};
use place::{Place, Segment};
use progress::Progress;
use sink::Sink;

/// Copies a file to a target's segment, bytes of a segment to a file, or bytes of one segment to another.
///
/// A segment is written HOST:PORT/SEGMENT, with +OFFSET if it is not to start at its first byte; `-` is standard input or
/// output, and a directory takes a file of the segment's name. A file gets its name only when all of it is there and on the
/// disk; if the copy fails, what was there before stays. The result is one line on standard output (on standard error if the
/// bytes went there) that says which transports carried the bytes, and ends with their CRC32C.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  polyrail cp weights.bin 10.0.0.2:7000/mem+4GiB --verify\n  \
    polyrail cp 10.0.0.2:7000/mem+4GiB weights.bin --length 1GiB --resume\n  \
    tar c model | polyrail cp - 10.0.0.2:7000/mem\n  \
    polyrail cp --recursive 10.0.0.2:7000/checkpoint ."
)]
pub(crate) struct CpArgs {
    /// What to copy: a file or block device, HOST:PORT/SEGMENT[+OFFSET], or `-`.
    #[arg(value_name = "SRC", value_parser = place::place)]
    from: Place,
    /// Where to; one of the two is a segment.
    #[arg(value_name = "DST", value_parser = place::place)]
    to: Place,
    /// How many bytes to copy; without it, all that there are.
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = sizes::bytes)]
    length: Option<u64>,
    /// Addresses of this host to use, one rail each; the i-th meets the target's i-th.
    #[arg(long, value_name = "A,B,…", value_parser = address::rails)]
    rails: Option<Rails>,
    /// Have the target sum up its memory afterwards, and compare.
    #[arg(long)]
    verify: bool,
    /// Go on where an earlier copy with --resume stopped: blocks of 4 MiB whose checksums are the same at both ends are not
    /// copied again. A file that is copied to is kept as DST.polyrail-part if the copy fails.
    #[arg(long)]
    resume: bool,
    /// Copy all files of a directory: of one that a target offers (serve --file DIRECTORY), or to the files of one.
    #[arg(long, short)]
    recursive: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
    /// Print nothing but errors.
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
    #[command(flatten)]
    settings: ConfigArgs,
}

/// An engine for a copy.
struct Copier<'a> {
    args: &'a CpArgs,
    engine: Engine,
    interrupted: Interrupted,
}

/// A target's segment that is open.
#[derive(Clone, Copy)]
struct Open<'a> {
    segment: &'a Segment,
    remote: SegmentId,
    /// How many there are from the offset on.
    bytes: u64,
}

/// What was copied.
#[derive(Serialize, Default)]
struct Copied {
    /// How many files, if it was a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<u64>,
    bytes: u64,
    /// Those of them that both ends had already.
    skipped_bytes: u64,
    /// How long it took, verification aside.
    seconds: f64,
    gb_per_sec: f64,
    /// The transports that carried it, with `+` between them.
    transports: String,
    verified: bool,
    /// Of a directory: nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    crc32c: String,
}

/// Runs the command.
pub(crate) fn run(args: &CpArgs) -> Result<(), Failure> {
    // What is wrong here is said before anybody is asked.
    let has_file = [&args.from, &args.to]
        .iter()
        .any(|place| matches!(place, Place::File(_)));
    if args.resume && !has_file {
        return Err(Failure::Usage(
            "--resume is for a copy from or to a file here, which can be compared with what is there: not for standard input \
             or output, nor for two segments"
                .into(),
        ));
    }
    if args.recursive {
        return tell(args, &copy_directory(args)?);
    }
    let to = match (&args.from, &args.to) {
        (Place::Segment(segment), Place::File(path)) => Some(named_for(path, segment)?),
        _ => None,
    };
    let copied = match (&args.from, &args.to, &to) {
        (Place::File(path), Place::Segment(segment), _) => upload(args, path, segment)?,
        (Place::Segment(segment), Place::File(_), Some(path)) => download(args, segment, path)?,
        (Place::Segment(from), Place::Segment(to), _) => across(args, from, to)?,
        (Place::Standard, Place::Segment(segment), _) => pour_in(args, segment)?,
        (Place::Segment(segment), Place::Standard, _) => pour_out(args, segment)?,
        _ => {
            return Err(Failure::Usage(format!(
                "neither {} nor {} is a target's segment, which is written HOST:PORT/SEGMENT[+OFFSET]",
                args.from, args.to
            )));
        }
    };
    tell(args, &copied)
}

fn copy_directory(args: &CpArgs) -> Result<Copied, Failure> {
    if args.length.is_some() {
        return Err(Failure::Usage(
            "--length is for one file, and not for --recursive".into(),
        ));
    }
    match (&args.from, &args.to) {
        (Place::File(path), Place::Segment(segment)) => tree::upload(args, path, segment),
        (Place::Segment(segment), Place::File(path)) => tree::download(args, segment, path),
        _ => Err(Failure::Usage(format!(
            "--recursive is for a directory here and one of a target, which is written HOST:PORT/DIRECTORY, and not for {} \
             and {}",
            args.from, args.to
        ))),
    }
}

fn tell(args: &CpArgs, copied: &Copied) -> Result<(), Failure> {
    let line = copied.line(args.json)?;
    match args.to {
        _ if args.quiet => Ok(()),
        Place::Standard => writeln!(io::stderr(), "{line}"),
        _ => writeln!(io::stdout(), "{line}"),
    }
    .map_err(Failure::output)
}

impl Copied {
    fn line(&self, json: bool) -> Result<String, Failure> {
        if json {
            let text = serde_json::to_string(self);
            return text.map_err(|e| Failure::Environment(format!("cannot write JSON: {e}")));
        }
        let Self {
            files,
            bytes,
            skipped_bytes,
            seconds,
            gb_per_sec,
            transports,
            verified,
            crc32c,
        } = self;
        let of = files.map_or_else(String::new, |files| format!("{files} files, "));
        let (rate, over) = match bytes {
            0 => (String::new(), String::new()),
            _ => (
                format!(", {}", rate(*gb_per_sec)),
                format!(", over {transports}"),
            ),
        };
        let crc32c = match crc32c.as_str() {
            "" => String::new(),
            crc32c => format!(", crc32c {crc32c}"),
        };
        let skipped = match skipped_bytes {
            0 => String::new(),
            skipped => format!(", {skipped} of them were there already"),
        };
        let verified = if *verified {
            ", verified by the target"
        } else {
            ""
        };
        Ok(format!(
            "copied {of}{bytes} bytes in {seconds:.3} s{rate}{over}{skipped}{verified}{crc32c}"
        ))
    }
}

/// Of little bytes one would see zeros only.
fn rate(gb_per_sec: f64) -> String {
    match gb_per_sec < 0.01 {
        true => format!("{:.3} MB/s", gb_per_sec * 1000.0),
        false => format!("{gb_per_sec:.3} GB/s"),
    }
}

/// The file that a segment is copied to: in a directory, one of its name.
fn named_for(path: &Path, segment: &Segment) -> Result<PathBuf, Failure> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let name = Path::new(&segment.name).file_name().ok_or_else(|| {
        Failure::Usage(format!(
            "{} is a directory, and {} is no name for a file in it: name one",
            path.display(),
            segment.name
        ))
    })?;
    Ok(path.join(name))
}

fn upload(args: &CpArgs, path: &Path, segment: &Segment) -> Result<Copied, Failure> {
    let source = Source::open(path)?;
    let bytes = args.length.unwrap_or(source.bytes);
    if bytes > source.bytes {
        return Err(Failure::Usage(format!(
            "--length {bytes} is more than the {} bytes that {} has",
            source.bytes,
            path.display()
        )));
    }
    Copier::new(args)?.send(&source, segment)
}

fn download(args: &CpArgs, segment: &Segment, path: &Path) -> Result<Copied, Failure> {
    let sink = match args.resume {
        true => Sink::resume(path)?,
        false => Sink::create(path)?,
    };
    Copier::new(args)?.fetch(segment, sink)
}

fn across(args: &CpArgs, from: &Segment, to: &Segment) -> Result<Copied, Failure> {
    let copier = Copier::new(args)?;
    let (from, to) = (copier.open(from)?, copier.open(to)?);
    let bytes = from.length(args.length)?;
    to.has_room(bytes, &from.segment)?;
    copier.copy(
        from.end(),
        to.end(),
        bytes,
        Vec::new(),
        &format!("{} to {}", from.segment, to.segment),
    )
}

fn pour_in(args: &CpArgs, segment: &Segment) -> Result<Copied, Failure> {
    let copier = Copier::new(args)?;
    let open = copier.open(segment)?;
    if let Some(bytes) = args.length {
        open.has_room(bytes, &"standard input")?;
    }
    let most = args.length.unwrap_or(open.bytes);
    let copied = copier.copy(
        End::Standard,
        open.end(),
        most,
        Vec::new(),
        &format!("standard input to {segment}"),
    )?;
    if args.length.is_none() && copied.bytes == most && end::has_more(&copier.interrupted)? {
        return Err(Failure::Usage(format!(
            "{segment} is too small: standard input has more than the {most} bytes that it has from offset {} on, \
             which are written",
            segment.offset
        )));
    }
    match args.length {
        Some(bytes) if copied.bytes < bytes => Err(Failure::Environment(format!(
            "standard input has ended after {} of {bytes} bytes, which are written to {segment}",
            copied.bytes
        ))),
        _ => Ok(copied),
    }
}

fn pour_out(args: &CpArgs, segment: &Segment) -> Result<Copied, Failure> {
    let copier = Copier::new(args)?;
    let open = copier.open(segment)?;
    let bytes = open.length(args.length)?;
    copier.copy(
        open.end(),
        End::Standard,
        bytes,
        Vec::new(),
        &format!("{segment} to standard output"),
    )
}

impl Copied {
    /// Another file of the same directory.
    fn add(&mut self, other: Self) {
        self.files = Some(self.files.unwrap_or(0) + 1);
        self.bytes += other.bytes;
        self.skipped_bytes += other.skipped_bytes;
        self.seconds += other.seconds;
        self.gb_per_sec = match self.bytes {
            0 => 0.0,
            bytes => bytes as f64 / 1e9 / self.seconds,
        };
        // Those of the engine until now.
        if !other.transports.is_empty() {
            self.transports = other.transports;
        }
        self.verified |= other.verified;
    }

    /// It has taken so much longer.
    fn and(self, further: Duration) -> Self {
        let seconds = self.seconds + further.as_secs_f64();
        Self {
            seconds,
            gb_per_sec: self.bytes as f64 / 1e9 / seconds,
            ..self
        }
    }
}

impl<'a> Open<'a> {
    fn end(self) -> End<'a> {
        End::Segment(self.segment, self.remote)
    }

    /// An error unless so many bytes have room.
    fn has_room(self, bytes: u64, of: &dyn std::fmt::Display) -> Result<(), Failure> {
        let Self { segment, .. } = self;
        if bytes <= self.bytes {
            return Ok(());
        }
        let all = segment.offset + self.bytes;
        let end = segment.offset.checked_add(bytes);
        let end = end.map_or_else(
            || "more than there can be".to_owned(),
            |end| end.to_string(),
        );
        Err(Failure::Usage(format!(
            "{segment} is too small: it has {all} bytes, and {of} from offset {} on would end at {end}",
            segment.offset
        )))
    }

    /// How much is copied from it, if so much is asked for.
    fn length(self, asked: Option<u64>) -> Result<u64, Failure> {
        let Self { segment, bytes, .. } = self;
        if bytes == 0 && asked != Some(0) {
            return Err(Failure::Usage(format!(
                "offset {} is at the end of {segment}: there is nothing to copy",
                segment.offset
            )));
        }
        match asked {
            Some(asked) if asked > bytes => Err(Failure::Usage(format!(
                "--length {asked} is more than the {bytes} bytes that {segment} has from offset {} on",
                segment.offset
            ))),
            asked => Ok(asked.unwrap_or(bytes)),
        }
    }
}

impl<'a> Copier<'a> {
    fn new(args: &'a CpArgs) -> Result<Self, Failure> {
        let mut config = args.settings.load_initiator("cp")?;
        if let Some(rails) = &args.rails {
            config.use_rails(&rails.0);
        }
        let engine = Engine::new(config).map_err(|e| {
            Failure::from_engine(e.is_usage(), format!("cannot start an engine: {e}"))
        })?;
        Ok(Self {
            args,
            engine,
            interrupted: interrupted()?,
        })
    }

    /// Copies a file to a segment.
    fn send(&self, source: &Source, segment: &Segment) -> Result<Copied, Failure> {
        let path = source.path().display();
        let bytes = self.args.length.unwrap_or(source.bytes);
        let open = self.open(segment)?;
        open.has_room(bytes, &path)?;
        let there = match self.args.resume {
            true => self.compare(&source.handle()?, open, bytes)?,
            false => Vec::new(),
        };
        let from = match source.bytes {
            // No segment has no byte.
            0 => End::Standard,
            _ => End::source(&self.engine, source)?,
        };
        let own = from.place();
        let what = format!("{path} to {segment}");
        let copied = self.copy(from, open.end(), bytes, there, &what)?;
        self.close(own, open);
        Ok(copied)
    }

    /// Copies a segment to a file.
    fn fetch(&self, segment: &Segment, sink: Sink) -> Result<Copied, Failure> {
        let open = self.open(segment)?;
        let bytes = open.length(self.args.length)?;
        let there = match self.args.resume {
            true => self.compare(sink.file(), open, bytes)?,
            false => Vec::new(),
        };
        sink.cut(bytes)?;
        let to = match bytes {
            0 => End::Standard,
            _ => End::sink(&self.engine, &sink, bytes)?,
        };
        let own = to.place();
        let what = format!("{segment} to {}", sink.path().display());
        let copied = self.copy(open.end(), to, bytes, there, &what)?;
        self.close(own, open);
        let started = Instant::now();
        sink.finish()?;
        Ok(copied.and(started.elapsed()))
    }

    /// Neither end is needed any more. One that stays open costs its row and nothing else.
    fn close(&self, own: Option<(SegmentId, u64)>, open: Open<'_>) {
        if let Some((file, _)) = own {
            let _ = self.engine.unregister(file);
        }
        let _ = self.engine.close_segment_later(open.remote);
    }

    fn open<'s>(&self, segment: &'s Segment) -> Result<Open<'s>, Failure> {
        let remote = self.engine.open_segment(&segment.address()).map_err(|e| {
            Failure::from_engine(e.is_usage(), format!("cannot open {segment}: {e}"))
        })?;
        let all = self.engine.segment_bytes(remote).unwrap_or(0);
        let bytes = all.checked_sub(segment.offset).ok_or_else(|| {
            Failure::Usage(format!(
                "offset {} is past the end of {segment}, which has {all} bytes",
                segment.offset
            ))
        })?;
        Ok(Open {
            segment,
            remote,
            bytes,
        })
    }

    fn owner<'s>(&'s self, open: Open<'s>) -> Owner<'s> {
        Owner {
            engine: &self.engine,
            remote: open.remote,
            target: &open.segment.target,
        }
    }

    /// The chunks that both have.
    fn compare(&self, file: &File, open: Open<'_>, bytes: u64) -> Result<Vec<bool>, Failure> {
        let owner = self.owner(open);
        resume::compare(file, owner, open.segment, bytes, &self.interrupted)
    }

    fn copy(
        &self,
        from: End<'_>,
        to: End<'_>,
        bytes: u64,
        there: Vec<bool>,
        what: &str,
    ) -> Result<Copied, Failure> {
        let is_known = !matches!(from, End::Standard) || bytes == 0 || self.args.length.is_some();
        let checked = self.to_check(&from, &to);
        let pipeline = Pipeline {
            engine: &self.engine,
            skips_zeros: matches!(to, End::Sink(..)) && !self.args.resume,
            from,
            to,
            bytes,
            there,
            interrupted: &self.interrupted,
        };
        let mut progress = Progress::start(what, is_known.then_some(bytes), self.args.quiet);
        let (started, mut done) = (Instant::now(), Done::default());
        let ended = pipeline.run(&mut progress, &mut done);
        drop(progress);
        ended.map_err(|failure| self.with_what_is_done(failure, &pipeline, done))?;
        let skipped = pipeline.skipped();
        let seconds = started.elapsed().as_secs_f64();
        if let Some(open) = checked {
            self.check(open, done)?;
        }
        let rails = self.engine.rails();
        let carried = rails.iter().map(|rail| (&*rail.name, rail.bytes));
        Ok(Copied {
            files: None,
            bytes: done.bytes,
            skipped_bytes: skipped,
            seconds,
            gb_per_sec: match done.bytes {
                0 => 0.0,
                bytes => bytes as f64 / 1e9 / seconds,
            },
            transports: session::carriers(carried),
            verified: checked.is_some(),
            crc32c: format!("{:08x}", done.crc),
        })
    }

    /// Whose owner is asked afterwards.
    fn to_check<'s>(&self, from: &End<'s>, to: &End<'s>) -> Option<Open<'s>> {
        let end = match to {
            End::Segment(..) => to,
            _ => from,
        };
        match end {
            End::Segment(segment, remote) if self.args.verify => Some(Open {
                segment,
                remote: *remote,
                bytes: 0,
            }),
            _ => None,
        }
    }

    /// Why it failed, how far it came, and what becomes of that, unless the same command would fail again.
    fn with_what_is_done(&self, failure: Failure, pipeline: &Pipeline<'_>, done: Done) -> Failure {
        if matches!(failure, Failure::Usage(_)) {
            return failure;
        }
        let Done { bytes, .. } = done;
        let what = match &pipeline.to {
            End::Sink(..) if self.args.resume => "are kept: the same command goes on there",
            End::Sink(..) => "had come and are dropped; with --resume they are kept",
            _ if matches!(pipeline.from, End::Source(..)) => {
                "are there; with --resume they are not copied again"
            }
            _ => "are there",
        };
        let all = pipeline.bytes;
        failure.and(&format!("the first {bytes} of {all} bytes {what}"))
    }

    /// Has the owner of the segment sum up what is in its memory now.
    fn check(&self, open: Open<'_>, done: Done) -> Result<(), Failure> {
        let Open { segment, .. } = open;
        let span = Span {
            offset: segment.offset,
            bytes: done.bytes,
        };
        let there = self.owner(open).checksum(&segment.name, span)?;
        if there != done.crc {
            return Err(Failure::Verdict(format!(
                "{segment}: its memory has crc32c {there:08x}, what was copied {:08x}: it was changed \
                 meanwhile, or a byte is wrong",
                done.crc
            )));
        }
        Ok(())
    }
}

impl Drop for Copier<'_> {
    /// The target hears of the end. A thread of the engine may have a share of it just now, and would say goodbye later than
    /// this process ends.
    fn drop(&mut self) {
        self.engine.shutdown();
    }
}

/// Has the number of the first signal, SIGINT or SIGTERM. A second one ends the process at once.
fn interrupted() -> Result<Interrupted, Failure> {
    let (number, again) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    for signal in [SIGINT, SIGTERM] {
        let code = 128 + signal;
        signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(&again))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&again)))
            .and_then(|_| {
                let number = Arc::clone(&number);
                signal_hook::flag::register_usize(signal, number, signal as usize)
            })
            .map_err(|e| Failure::Environment(format!("cannot catch signals: {e}")))?;
    }
    Ok(Interrupted(number))
}
