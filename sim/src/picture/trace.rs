//! A run as a [trace](crate::trace).
//!
//! One process for each engine, with a track for each of its lanes and of its submitters; one process for the
//! fabric, with counters of each rail's throughput and state and a track of its faults. Works wait on a lane
//! behind each other, so a slice is drawn from when the one before it had ended, and its arguments say when it
//! was posted.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Run, faults};
use crate::columns::Columns;
use crate::setup::Setup;
use crate::trace::{Trace, us};

/// How many slices a run should be asked to keep for a trace of some ten megabytes.
pub const TRACED_SLICES_MAX: usize = 50_000;
/// Values of counters, and changes of states, of one trace.
const VALUES_MAX: usize = 50_000;
/// The process of the fabric; engines are numbered from the next on.
const FABRIC: usize = 1;
/// The first track of submitters, above those of lanes.
const SUBMITTERS: usize = 1_000_000;

/// The trace of a run. It holds as many slices as the run kept, see [`crate::Options::traced_slices_max`]; if
/// there were more, it ends where they do, and says so there and in `otherData`.
pub fn trace(setup: &Setup, run: &Run) -> String {
    let mut trace = Trace::default();
    let traced = &run.history.traced;
    let cut_at = match traced.left_out {
        0 => u64::MAX,
        _ => traced.slices.last().map_or(0, |row| row.0.ended_at),
    };
    lanes(setup, run, &mut trace);
    submitters(setup, run, &mut trace);
    fabric(setup, run, cut_at, &mut trace);
    let report = &run.outcome.report;
    trace.about("scenario", report.scenario.clone());
    trace.about("policy", report.policy.clone());
    trace.about("seed", report.seed.to_string());
    if traced.left_out > 0 {
        trace.cut((FABRIC, 0), cut_at, traced.left_out, "slices and batches");
    }
    trace.text()
}

/// Slices, by lane.
fn lanes(setup: &Setup, run: &Run, trace: &mut Trace) {
    for (index, engine) in setup.engines.iter().enumerate() {
        let device = setup
            .devices
            .iter()
            .find(|device| device.host == engine.host);
        let host = device
            .and_then(|device| device.name.split('/').next())
            .unwrap_or("");
        trace.process(
            FABRIC + 1 + index,
            &format!("engine {index} on host {host}"),
        );
    }
    let workers_each = usize::from(*setup.engine.workers.get_ref());
    // Lanes are numbered by worker, then by the rails of its engine.
    let rails_of = |worker: usize| &setup.engines[worker / workers_each].rails;
    let first_of =
        |worker: usize| -> usize { (0..worker).map(|worker| rails_of(worker).len()).sum() };
    let mut known = BTreeSet::new();
    for (span, probe) in &run.history.traced.slices {
        let worker = span.row as usize;
        let track = (FABRIC + 1 + worker / workers_each, span.lane as usize + 1);
        if known.insert(span.lane) {
            let rail = rails_of(worker)[span.lane as usize - first_of(worker)];
            let rail = setup.rail_name(rail);
            trace.track(track, &format!("worker {} {rail}", worker % workers_each));
        }
        let name = match (probe, span.good) {
            (true, true) => "probe",
            (true, false) => "failed probe",
            (false, true) => "slice",
            (false, false) => "failed slice",
        };
        let args = json!({ "bytes": span.bytes, "posted_us": us(span.began_at) });
        trace.span("slice", name, track, (span.began_at, span.ended_at), args);
    }
}

/// Batches, by submitter.
fn submitters(setup: &Setup, run: &Run, trace: &mut Trace) {
    let mut known = BTreeSet::new();
    for span in &run.history.traced.batches {
        let submitter = span.row as usize;
        let engine = setup.submitters[submitter].engine;
        let track = (FABRIC + 1 + engine, SUBMITTERS + submitter);
        if known.insert(submitter) {
            trace.track(track, &format!("submitter {submitter}"));
        }
        let name = if span.good { "batch" } else { "failed batch" };
        let args = json!({ "bytes": span.bytes });
        trace.span("batch", name, track, (span.began_at, span.ended_at), args);
    }
}

/// What happens to rails, and what core thinks of them.
fn fabric(setup: &Setup, run: &Run, cut_at: u64, trace: &mut Trace) {
    trace.process(FABRIC, "fabric");
    let end = run.history.ended_at.min(cut_at);
    let names: Vec<String> = (0..setup.rails.len())
        .map(|rail| setup.rail_name(rail))
        .collect();
    let values_max = (VALUES_MAX / names.len().max(1)) as u64;
    let columns = Columns::new(setup, &run.history, values_max);
    for (rail, name) in names.iter().enumerate() {
        let name = format!("{name} throughput");
        for ((from, _), rate) in columns.spans().zip(columns.rates(&run.history, rail)) {
            if from <= end {
                trace.counter("rail", &name, ((FABRIC, 0), from), ("GB/s", rate));
            }
        }
    }
    let changes = run.history.rail_states.iter().take(VALUES_MAX);
    for (at, rail, state) in changes.filter(|row| row.0 <= end) {
        trace.rail_state(&names[*rail], (FABRIC, 0), *at, *state);
    }
    for fault in faults(setup).iter().filter(|fault| fault.from < end) {
        let track = (FABRIC, fault.rail + 1);
        trace.track(track, &format!("faults of {}", names[fault.rail]));
        let span = (fault.from, fault.to.min(end));
        trace.span("fault", &fault.what.text(), track, span, Value::Null);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::scenario::Scenario;
    use crate::{Options, Policy, run};

    /// Four rails of 1 GB/s, one of them silent for a while.
    const FILE: &str = r#"
name = "silent"
duration_ms = 40
[[host]]
name = "a"
[[host]]
name = "b"
[[device]]
host = "a"
name = "nic"
count = 4
rate_gbits_per_sec = 8
[[device]]
host = "b"
name = "nic"
count = 4
rate_gbits_per_sec = 8
[[rail]]
from = "a/nic*"
to = "b/nic*"
[[workload]]
from = "a"
to = "b"
op = "write"
block = "1MiB"
threads = 3
[[fault]]
kind = "silent"
target = "a/nic1"
at_ms = 8
for_ms = 12
"#;

    fn traced(slices_max: usize) -> (Setup, Run, Value) {
        let scenario = Scenario::parse(FILE).expect("it parses");
        let setup = Setup::new(FILE, &scenario, None).expect("it is right");
        let options = Options {
            traced_slices_max: slices_max,
            ..Options::new(Policy::Spray)
        };
        let run = run(&setup, options, &mut |_, _| {});
        let trace = serde_json::from_str(&trace(&setup, &run)).expect("JSON");
        (setup, run, trace)
    }

    fn events(trace: &Value) -> &Vec<Value> {
        trace["traceEvents"].as_array().expect("an array")
    }

    fn track(event: &Value) -> (u64, u64) {
        (
            event["pid"].as_u64().expect("a process"),
            event["tid"].as_u64().expect("a track"),
        )
    }

    #[test]
    fn every_event_has_its_fields_in_order_of_time_on_a_track_with_a_name() {
        let (_, _, trace) = traced(usize::MAX);
        let mut named = BTreeSet::new();
        let mut last = 0.0;
        for event in events(&trace) {
            assert!(
                event["name"].is_string() && event["cat"].is_string(),
                "{event}"
            );
            let ts = event["ts"].as_f64().expect("a time");
            assert!(ts >= last, "{event} after {last}");
            last = ts;
            match event["ph"].as_str().expect("a phase") {
                "M" => {
                    assert!(event["args"]["name"].is_string(), "{event}");
                    named.insert(track(event));
                }
                "X" => {
                    assert!(event["dur"].as_f64().expect("a length") >= 0.0);
                    assert!(named.contains(&track(event)), "{event}");
                }
                "C" => assert!(
                    event["args"]
                        .as_object()
                        .expect("values")
                        .values()
                        .all(Value::is_number)
                ),
                "i" => assert!(["g", "p", "t"].contains(&event["s"].as_str().expect("a scope"))),
                other => panic!("{other}"),
            }
        }
        let states = events(&trace).iter().filter(|event| event["ph"] == "i");
        assert!(states.count() > 0, "the silent rail was noticed");
    }

    #[test]
    fn all_slices_and_batches_are_there_and_none_overlap_on_a_track() {
        let (_, run, trace) = traced(usize::MAX);
        let of = |cat: &str, name: &str| {
            events(&trace)
                .iter()
                .filter(|event| event["cat"] == cat && event["name"] == name)
                .count()
        };
        assert_eq!(of("slice", "slice") as u64, run.outcome.slices);
        assert_eq!(of("batch", "batch"), run.history.batch_ns.len());
        assert_eq!(of("fault", "silent"), 1);
        assert!(of("slice", "probe") > 0);
        let mut ends: BTreeMap<(u64, u64), f64> = BTreeMap::new();
        for event in events(&trace).iter().filter(|event| event["ph"] == "X") {
            let (ts, dur) = (
                event["ts"].as_f64().expect("a time"),
                event["dur"].as_f64().expect("a length"),
            );
            let end = ends.entry(track(event)).or_insert(0.0);
            // Sums of microseconds as doubles are exact to far below a nanosecond here.
            assert!(ts >= *end - 1e-4, "{event} before {end}");
            *end = ts + dur;
        }
    }

    #[test]
    fn a_trace_that_is_cut_says_so_where_it_ends() {
        let (_, run, trace) = traced(1_000);
        let slices = events(&trace)
            .iter()
            .filter(|event| event["cat"] == "slice");
        assert_eq!(slices.count(), 1_000);
        let note = trace["otherData"]["note"].as_str().expect("a note");
        assert!(note.contains(&run.history.traced.left_out.to_string()));
        let last = events(&trace)
            .iter()
            .rfind(|event| event["s"] == "g")
            .expect("an instant");
        let end = last["ts"].as_f64().expect("a time");
        assert!(
            events(&trace)
                .iter()
                .all(|event| event["ts"].as_f64().expect("a time") <= end)
        );
        assert!(traced(usize::MAX).2["otherData"]["note"].is_null());
    }
}
