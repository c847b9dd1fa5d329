//! A trace that Perfetto and `chrome://tracing` open: an object with `traceEvents`, times in microseconds, as the Trace Event
//! Format of the Chromium project has it. Runs and flight recordings are written by this alone.
//!
//! Spans of one track never overlap: what waits behind something else is drawn from when that had ended.

use std::collections::BTreeMap;

use polyrail_core::rail::health::RailState;
use serde::Serialize;
use serde_json::Value;

/// A process and a track of it.
pub(crate) type Track = (usize, usize);

/// One event.
#[derive(Serialize)]
struct Event {
    name: String,
    cat: &'static str,
    ph: &'static str,
    pid: usize,
    tid: usize,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// The scope of an instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    args: Value,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    display_time_unit: &'static str,
    other_data: BTreeMap<&'static str, String>,
    trace_events: Vec<Event>,
}

/// A trace that is being written. Times are nanoseconds.
#[derive(Default)]
pub(crate) struct Trace {
    /// Names of processes and tracks.
    names: Vec<Event>,
    events: Vec<Event>,
    /// By track: when what was drawn on it last ended.
    ended: BTreeMap<Track, u64>,
    other_data: BTreeMap<&'static str, String>,
}

pub(crate) fn us(ns: u64) -> f64 {
    ns as f64 / 1_000.0
}

fn event(ph: &'static str, cat: &'static str, name: String, (pid, tid): Track, at: u64) -> Event {
    Event {
        name,
        cat,
        ph,
        pid,
        tid,
        ts: us(at),
        dur: None,
        s: None,
        args: Value::Null,
    }
}

impl Trace {
    /// Says something about the whole.
    pub(crate) fn about(&mut self, key: &'static str, value: String) {
        self.other_data.insert(key, value);
    }

    /// Names a process.
    pub(crate) fn process(&mut self, process: usize, name: &str) {
        self.name("process_name", (process, 0), name);
    }

    /// Names a track.
    pub(crate) fn track(&mut self, track: Track, name: &str) {
        self.name("thread_name", track, name);
    }

    fn name(&mut self, what: &str, track: Track, name: &str) {
        self.names.push(Event {
            args: serde_json::json!({ "name": name }),
            ..event("M", "track", what.to_owned(), track, 0)
        });
    }

    /// Draws a span. It begins later if the one before it on its track has not ended by then. Its track has to have a name.
    pub(crate) fn span(
        &mut self,
        cat: &'static str,
        name: &str,
        track: Track,
        (from, to): (u64, u64),
        args: Value,
    ) {
        let before = self.ended.entry(track).or_insert(0);
        let to = to.max(from);
        let from = from.max(*before).min(to);
        *before = to.max(*before);
        self.events.push(Event {
            dur: Some(us(to - from)),
            args,
            ..event("X", cat, name.to_owned(), track, from)
        });
    }

    /// A counter has a value from now on; those of one name and process are one curve.
    pub(crate) fn counter(
        &mut self,
        cat: &'static str,
        name: &str,
        (track, at): (Track, u64),
        (unit, value): (&str, f64),
    ) {
        self.events.push(Event {
            args: serde_json::json!({ unit: value }),
            ..event("C", cat, name.to_owned(), track, at)
        });
    }

    /// Something happens, of interest to its track (`t`), its process (`p`) or all (`g`).
    pub(crate) fn instant(
        &mut self,
        cat: &'static str,
        name: String,
        (track, at): (Track, u64),
        scope: &'static str,
        args: Value,
    ) {
        self.events.push(Event {
            s: Some(scope),
            args,
            ..event("i", cat, name, track, at)
        });
    }

    /// A rail goes to a state: a curve, and an instant.
    pub(crate) fn rail_state(&mut self, rail: &str, track: Track, at: u64, state: RailState) {
        let level = match state {
            RailState::Healthy => 2.0,
            RailState::Probing => 1.0,
            RailState::Paused => 0.0,
        };
        let unit = "2 healthy, 1 probing, 0 paused";
        self.counter("rail", &format!("{rail} state"), (track, at), (unit, level));
        let name = format!("{rail} {}", state.name());
        self.instant("rail", name, (track, at), "p", Value::Null);
    }

    /// Ends where `count` more of `what` are left out, and says so there and in `otherData`.
    pub(crate) fn cut(&mut self, track: Track, at: u64, count: u64, what: &str) {
        let note = format!("cut here: {count} more {what} are left out");
        self.instant("note", note.clone(), (track, at), "g", Value::Null);
        self.about("note", note);
    }

    /// The file's text, its events in order of time.
    pub(crate) fn text(mut self) -> String {
        self.events.sort_by(|a, b| a.ts.total_cmp(&b.ts));
        self.names.append(&mut self.events);
        let file = File {
            display_time_unit: "ns",
            other_data: self.other_data,
            trace_events: self.names,
        };
        // Plain fields always serialise.
        serde_json::to_string(&file).unwrap_or_default()
    }
}
