//! `polyrail sim replay`: a flight recording through core once more.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use polyrail_record::{Reader, RecordingError};
use polyrail_sim::replay::{Difference, Flight, Replay, replay};
use serde::Serialize;

use super::{pictures, print};
use crate::exit::Failure;

/// Of one call or answer, in words, so much is shown.
const SHOWN_MAX: usize = 1_200;

#[derive(Args)]
pub(super) struct ReplayArgs {
    /// The recording.
    file: PathBuf,
    /// Tells of everything but the ordinary, one line each: lanes, fences, rails, failures, cancellations.
    #[arg(long)]
    events: bool,
    /// One JSON object instead of text.
    #[arg(long, conflicts_with = "events")]
    json: bool,
    /// Writes a trace that Perfetto opens: requests, slices, lanes with their fences, and how rails stood.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// The JSON object.
#[derive(Serialize)]
struct Output<'a> {
    file: String,
    #[serde(flatten)]
    replay: &'a Replay,
}

/// Runs the command.
pub(super) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let bad = |error: RecordingError| bad_file(&args.file, &error);
    let input = File::open(&args.file).map_err(|error| bad_file(&args.file, &error))?;
    let mut reader = Reader::new(BufReader::new(input)).map_err(bad)?;
    let mut flight = args.trace.as_ref().map(|_| Flight::default());
    let replayed = if args.events {
        let mut written = Ok(());
        let mut tell = |line: String| {
            if written.is_ok() {
                written = writeln!(std::io::stdout(), "{line}");
            }
        };
        let replayed = replay(&mut reader, Some(&mut tell), flight.as_mut()).map_err(bad)?;
        written.map_err(Failure::output)?;
        replayed
    } else {
        replay(&mut reader, None, flight.as_mut()).map_err(bad)?
    };
    if let Some((file, flight)) = args.trace.as_ref().zip(flight) {
        pictures::write(file, &flight.text(&replayed))?;
    }
    if args.json {
        let output = Output {
            file: args.file.display().to_string(),
            replay: &replayed,
        };
        let json = serde_json::to_string(&output)
            .map_err(|error| Failure::Environment(format!("cannot write JSON: {error}")))?;
        print(&json)?;
    } else {
        print(text(&replayed).trim_end())?;
    }
    match &replayed.difference {
        None => Ok(()),
        Some(difference) => Err(Failure::Verdict(format!(
            "{}: core decides otherwise at call {}, byte {}",
            args.file.display(),
            difference.call,
            difference.offset
        ))),
    }
}

fn bad_file(file: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Usage(format!("{}: {error}", file.display()))
}

fn text(replay: &Replay) -> String {
    let story = &replay.story;
    let workers = match story.workers {
        1 => "1 worker".to_owned(),
        count => format!("{count} workers"),
    };
    let seconds = story.to_ns.saturating_sub(story.from_ns) as f64 / 1e9;
    let mut text = format!(
        "engine \"{}\", {workers}, {}, recorded by polyrail {}: {} calls on core in {seconds:.3} s\n",
        story.engine.escape_debug(),
        story.policy,
        story.version,
        story.calls,
    );
    text += &story.text();
    if !replay.complete {
        text += &format!(
            "The recording breaks off at byte {}: the engine was killed, or records still, or its disk did not follow.\n",
            replay.bytes
        );
    }
    match &replay.difference {
        None => text += "equal: core gives the same answers, byte for byte\n",
        Some(difference) => text += &different(difference, &story.version),
    }
    text
}

fn different(difference: &Difference, version: &str) -> String {
    let Difference {
        call,
        offset,
        at_ns,
        worker,
        what,
        expected,
        got,
    } = difference;
    let who = match worker {
        Some(worker) => format!("worker {worker}"),
        None => "the engine".to_owned(),
    };
    let mut text = format!(
        "different: call {call} at byte {offset}, of {who}, {:.6} s after the start\n",
        *at_ns as f64 / 1e9
    );
    for (name, value) in [("call", what), ("recorded", expected), ("now", got)] {
        text += &format!("  {name:<9} {}\n", shown(value));
    }
    let ours = env!("CARGO_PKG_VERSION");
    if version != ours {
        text += &format!("It was recorded by polyrail {version}, and this is {ours}.\n");
    }
    text
}

/// The beginning of something long.
fn shown(value: &str) -> String {
    match value.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}
