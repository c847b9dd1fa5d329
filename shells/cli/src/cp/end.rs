//! One side of a copy: a file, a target's segment, or standard input or output.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use polyrail::{Cause, Engine, FileTerms, Op, Region, SegmentId, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::place::Segment;
use super::sink::Sink;
use crate::exit::Failure;
use crate::pattern::memory::{self, MemoryError, Span};
use crate::sample::verdict;
use crate::source::Source;

/// How often a wait looks around.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// One side.
pub(super) enum End<'a> {
    /// A file that is copied from, and the segment that it is to the engine.
    Source(&'a Source, SegmentId),
    /// A file that is copied to.
    Sink(&'a Sink, SegmentId),
    /// A target's segment.
    Segment(&'a Segment, SegmentId),
    /// Standard input or output.
    Standard,
}

impl<'a> End<'a> {
    /// A file that is copied from.
    pub(super) fn source(engine: &Engine, source: &'a Source) -> Result<Self, Failure> {
        // What is copied from has often been written just before.
        let terms = terms(source.bytes, true);
        let registered = engine.register_file(source.handle()?, &terms);
        let segment = registered.map_err(|error| source.failed(&error))?;
        Ok(Self::Source(source, segment))
    }

    /// A file that is to have so many bytes, at least one.
    pub(super) fn sink(engine: &Engine, sink: &'a Sink, bytes: u64) -> Result<Self, Failure> {
        let registered = engine.register_file(sink.handle()?, &terms(bytes, false));
        let segment = registered.map_err(|error| sink.failed(&error))?;
        Ok(Self::Sink(sink, segment))
    }

    /// Where its first byte is to the engine; `None`: it is nothing to the engine.
    pub(super) fn place(&self) -> Option<(SegmentId, u64)> {
        match self {
            Self::Source(_, segment) | Self::Sink(_, segment) => Some((*segment, 0)),
            Self::Segment(named, segment) => Some((*segment, named.offset)),
            Self::Standard => None,
        }
    }

    /// The target, if this is one's.
    pub(super) fn target(&self) -> Option<&'a str> {
        match self {
            Self::Segment(segment, _) => Some(&segment.target),
            _ => None,
        }
    }

    /// It refuses this.
    pub(super) fn refused(&self, op: Op) -> Failure {
        let name = self.to_string();
        Failure::Usage(match op {
            Op::Write => format!("{name} may only be read: its owner refuses"),
            Op::Read => format!("{name} may not be read: its owner refuses"),
        })
    }

    /// This failed there.
    pub(super) fn failed(&self, op: Op, status: Status, cause: Option<Cause>) -> Failure {
        match (self, cause) {
            (Self::Source(source, _), Some(cause)) => return source.failed(&cause),
            (Self::Sink(sink, _), Some(cause)) => return sink.failed(&cause),
            _ => {}
        }
        let does = match op {
            Op::Write => "write",
            Op::Read => "read",
        };
        let why = match cause {
            Some(cause) => format!("{cause} ({})", status.name()),
            None => status.name().to_owned(),
        };
        verdict(format!("cannot {does} {self}: {why}"), status, cause)
    }
}

impl std::fmt::Display for End<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Source(source, _) => source.path().display().fmt(f),
            Self::Sink(sink, _) => sink.path().display().fmt(f),
            Self::Segment(segment, _) => segment.fmt(f),
            Self::Standard => f.write_str("standard input or output"),
        }
    }
}

fn terms(bytes: u64, read_only: bool) -> FileTerms {
    FileTerms {
        bytes: Some(bytes),
        read_only,
        cached: read_only,
        ..FileTerms::default()
    }
}

/// Set by a signal, to its number.
pub(super) struct Interrupted(pub(super) std::sync::Arc<AtomicUsize>);

impl Interrupted {
    /// An error if there was one.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Failure::interrupted(signal as u8)),
        }
    }
}

/// Fills a buffer from standard input: how many bytes there were. Fewer than asked for only at its end.
pub(super) fn take_in(
    region: &Region,
    span: Span,
    interrupted: &Interrupted,
) -> Result<u64, Failure> {
    let cannot = |e: io::Error| Failure::Environment(format!("cannot read standard input: {e}"));
    let mut bytes = vec![0; span.bytes as usize];
    let mut taken = 0;
    while taken < bytes.len() {
        wait_for_input(interrupted).map_err(cannot)?;
        interrupted.check()?;
        // What `Stdin` keeps for later is not seen by whoever waits for input.
        match rustix::io::read(io::stdin(), &mut bytes[taken..]) {
            Ok(0) => break,
            Ok(count) => taken += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(cannot(e.into())),
        }
    }
    let place = Span {
        bytes: taken as u64,
        ..span
    };
    memory::copy_in(region, place, &bytes[..taken]).map_err(own)?;
    Ok(taken as u64)
}

/// Whether there is more of standard input.
pub(super) fn has_more(interrupted: &Interrupted) -> Result<bool, Failure> {
    let cannot = |e: io::Error| Failure::Environment(format!("cannot read standard input: {e}"));
    wait_for_input(interrupted).map_err(cannot)?;
    interrupted.check()?;
    let mut byte = [0];
    let read = rustix::io::read(io::stdin(), &mut byte);
    Ok(read.map_err(|e| cannot(e.into()))? > 0)
}

/// Until there is some, or a signal came.
fn wait_for_input(interrupted: &Interrupted) -> io::Result<()> {
    let look = Timespec {
        tv_sec: 0,
        tv_nsec: LOOK.subsec_nanos().into(),
    };
    while interrupted.check().is_ok() {
        let input = io::stdin();
        let mut fds = [PollFd::new(&input, PollFlags::IN)];
        match poll(&mut fds, Some(&look)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Puts a buffer out to standard output.
pub(super) fn put_out(region: &Region, span: Span) -> Result<(), Failure> {
    let mut bytes = vec![0; span.bytes as usize];
    memory::copy_out(region, span, &mut bytes).map_err(own)?;
    let mut out = io::stdout().lock();
    let put = out.write_all(&bytes).and_then(|()| out.flush());
    put.map_err(Failure::output)
}

/// Our own buffers failed.
pub(super) fn own(error: MemoryError) -> Failure {
    Failure::Environment(format!("own buffers: {error}"))
}
