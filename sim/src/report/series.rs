//! A run over time: what its charts draw, in numbers, and no more of them than a line of JSON should have.

use serde::Serialize;

use super::{NS_PER_MS, rounded};
use crate::columns::Columns;
use crate::fluid::Capacity;
use crate::model::History;
use crate::picture::faults;
use crate::setup::Setup;

/// Spans of time, at most.
const SPANS_MAX: u64 = 200;
/// Numbers of all spans and rails together, at most, unless there are more rails than that.
const VALUES_MAX: u64 = 16_000;
/// Changes of rails, and faults, at most: the first ones.
const ROWS_MAX: usize = 1_000;

/// What happened when. Times are milliseconds from the start of the run.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Series {
    /// Throughput, in spans of equal length: at most 200, and fewer where there are more than 80 rails. The last one ends with
    /// the run.
    pub timeline: Vec<Moment>,
    /// When rails changed their states, the first 1,000 times.
    pub states: Vec<StateChange>,
    /// What was wrong with rails, the first 1,000 times.
    pub faults: Vec<FaultSpan>,
}

/// One span of time.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Moment {
    /// When it begins.
    pub ms: f64,
    /// Bytes acknowledged in it, over its length.
    pub gbytes_per_sec: f64,
    /// What the fabric allows in it.
    pub allowed_gbytes_per_sec: f64,
    /// What of it went over each rail, in the order of the report's rails.
    pub rails: Vec<f64>,
}

/// A rail went from one state to another.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StateChange {
    /// When.
    pub ms: f64,
    /// Which rail, `host/device>host/device`.
    pub rail: String,
    /// To what: `healthy`, `paused` or `probing`.
    pub state: &'static str,
}

/// Something was wrong with a rail.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FaultSpan {
    /// Which rail, `host/device>host/device`.
    pub rail: String,
    /// From when.
    pub from_ms: f64,
    /// Until when; nothing: to the end.
    pub to_ms: Option<f64>,
    /// `silent`, `fails`, or the part of its best rate that was left, as `× 0.2`.
    pub what: String,
}

fn ms(ns: u64) -> f64 {
    rounded(ns as f64 / NS_PER_MS, 3)
}

impl Series {
    pub(super) fn new(setup: &Setup, history: &History, capacity: &Capacity) -> Self {
        let rails = setup.rails.len();
        let spans_max = (VALUES_MAX / rails.max(1) as u64).clamp(1, SPANS_MAX);
        let columns = Columns::new(setup, history, spans_max);
        let rates: Vec<Vec<f64>> = (0..rails)
            .map(|rail| columns.rates(history, rail))
            .collect();
        let timeline = columns.spans().enumerate().map(|(index, (from, to))| {
            let rails = || rates.iter().map(|of_rail| of_rail[index]);
            let allowed = capacity.bytes_between(from, to) as f64 / (to - from).max(1) as f64;
            Moment {
                ms: ms(from),
                gbytes_per_sec: rounded(rails().sum(), 3),
                allowed_gbytes_per_sec: rounded(allowed, 3),
                rails: rails().map(|rate| rounded(rate, 3)).collect(),
            }
        });
        let changes = history.rail_states.iter().take(ROWS_MAX);
        let states = changes.map(|(at, rail, state)| StateChange {
            ms: ms(*at),
            rail: setup.rail_name(*rail),
            state: state.name(),
        });
        let faults = faults(setup).into_iter().take(ROWS_MAX);
        let faults = faults.map(|fault| FaultSpan {
            rail: setup.rail_name(fault.rail),
            from_ms: ms(fault.from),
            to_ms: (fault.to != u64::MAX).then(|| ms(fault.to)),
            what: fault.what.text(),
        });
        Self {
            timeline: timeline.collect(),
            states: states.collect(),
            faults: faults.collect(),
        }
    }
}
