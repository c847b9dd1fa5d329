//! What there is to be asked for: each family of numbers, once.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use polyrail_core::orchestrator::LaneState;
use polyrail_core::rail::health::RailState;

use crate::stats::{Latencies, Stats};

/// What all names begin with, and an underscore.
pub(super) const PREFIX: &str = "polyrail";

/// Rails that have rows of their own. What the others have is in rows of a rail that is called [`OTHER`].
const RAILS_MAX: usize = 256;
/// The label of whatever is not listed by itself.
const OTHER: &str = "other";

/// All families that [`crate::Engine::metrics`] has, in its order, as `docs/metrics.md` has them.
///
/// Example: [guide](crate::guide#looking-at-an-engine).
pub fn metrics_reference() -> String {
    let mut page = String::from(HEAD);
    for family in FAMILIES {
        let labels: Vec<_> = family
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        // Writing to a string does not fail.
        let _ = writeln!(
            page,
            "| `{PREFIX}_{}` | {} | {} | {}. |",
            family.name,
            family.kind.name(),
            labels.join(", "),
            family.help
        );
    }
    page
}

const HEAD: &str = "\
# Metrics

This page is for people who run engines under a monitoring system. `polyrail top --reference` prints this page.

`serve --metrics 127.0.0.1:9090`, the key `metrics` of any engine's configuration (`POLYRAIL_METRICS` in its
environment), or `Engine::expose` in a program answer HTTP: `/metrics` in OpenMetrics, which Prometheus reads;
`/stats`, the same and more, as one JSON object; `/live`, 200 as long as the process answers; `/ready`, 200 while the
engine takes requests and 503 once it is about to end ([operations.md](operations.md)). Nobody is asked who they are:
an address beyond loopback has to be allowed by `insecure`.

```
polyrail serve --memory 1GiB --metrics 127.0.0.1:9090
polyrail top 127.0.0.1:9090
```

`shells/cli/grafana.json` is a dashboard for Grafana, and `shells/cli/alerts.json` are rules for Prometheus (JSON is
YAML): `rule_files: [alerts.json]`. What to do about what they say: [failures.md](failures.md).

## Whom to scrape

The engine that submits has rails, requests, lanes and waits for room: the one in a program's process
(`POLYRAIL_METRICS=127.0.0.1:9091` in its environment), `cp` or `bench`. A target that only serves has
`polyrail_sessions`, limits, slots and `polyrail_lanes_denied_total`, and no rails. What each peer has moved is in
its `/stats`, in `polyrail top`, and in its log when a session ends.

## All of them

Deadlines that were missed, requests that were cancelled and those that nobody can tell the end of are outcomes of
`polyrail_requests_total`: `DeadlineExceeded`, `Cancelled`, `Indeterminate`. What is indeterminate is settled once
there is proof; `polyrail_unsettled_requests` is what is not.

Counters begin at 0 with the engine. A label `rail` is `TRANSPORT:LOCAL>REMOTE`; 256 rails have rows of their own, and
what the others have is in the row `other`.

| name | kind | labels | meaning |
|---|---|---|---|
";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

pub(super) struct Family {
    /// Without the prefix, and with the ending that its kind and unit ask for.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// `bytes`, `seconds` or nothing.
    pub(super) unit: &'static str,
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
    pub(super) rows: fn(&Stats, &mut Rows),
}

impl Family {
    /// The name without what the text's writer puts at its end by itself.
    pub(super) fn stem(&self) -> &'static str {
        let name = match self.kind {
            Kind::Counter => self.name.strip_suffix("_total"),
            Kind::Gauge | Kind::Histogram => None,
        };
        let name = name.unwrap_or(self.name);
        let stem = name.strip_suffix(self.unit);
        let stem = stem.and_then(|stem| stem.strip_suffix('_'));
        stem.filter(|_| !self.unit.is_empty()).unwrap_or(name)
    }
}

/// A number.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    Count(u64),
    /// A count of time.
    Seconds(f64),
    Now(f64),
    Spread {
        sum: f64,
        /// Upper bounds, and how many are below each and not below the one before.
        buckets: Vec<(f64, u64)>,
    },
}

type Labels<'a> = Vec<(&'static str, Cow<'a, str>)>;

/// The rows of a family.
#[derive(Default)]
pub(super) struct Rows(pub(super) Vec<(Vec<(&'static str, String)>, Value)>);

impl Rows {
    fn put(&mut self, labels: Labels<'_>, value: Value) {
        let labels = labels.into_iter();
        let labels = labels.map(|(key, value)| (key, value.into_owned()));
        self.0.push((labels.collect(), value));
    }

    fn count(&mut self, labels: Labels<'_>, count: u64) {
        self.put(labels, Value::Count(count));
    }

    fn now(&mut self, labels: Labels<'_>, now: impl Into<Whole>) {
        self.put(labels, Value::Now(now.into().0));
    }
}

/// A whole number, as text has it: exact up to 2^53.
struct Whole(f64);

impl From<u64> for Whole {
    fn from(number: u64) -> Self {
        Self(number as f64)
    }
}

impl From<u32> for Whole {
    fn from(number: u32) -> Self {
        Self(number.into())
    }
}

pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "build_info",
        kind: Kind::Gauge,
        unit: "",
        labels: &["version"],
        help: "Always 1; the label says which version this is",
        rows: |_, rows| rows.now(vec![("version", env!("CARGO_PKG_VERSION").into())], 1_u32),
    },
    Family {
        name: "requests_total",
        kind: Kind::Counter,
        unit: "",
        labels: &["transport", "op", "outcome"],
        help: "Requests that have ended, by the transport that they went over last, direction and status. What is staged \
               counts once as `staged`, and each of its chunks as a request of the transport that carries it",
        rows: |stats, rows| {
            for row in &stats.requests {
                for (outcome, count) in &row.outcomes {
                    let labels = vec![
                        ("transport", row.transport.into()),
                        ("op", row.op.into()),
                        ("outcome", (*outcome).into()),
                    ];
                    rows.count(labels, *count);
                }
            }
        },
    },
    Family {
        name: "request_bytes_total",
        kind: Kind::Counter,
        unit: "bytes",
        labels: &["transport", "op"],
        help: "Bytes that are proven to have arrived, of requests that have ended",
        rows: |stats, rows| {
            for row in &stats.requests {
                let labels = vec![("transport", row.transport.into()), ("op", row.op.into())];
                rows.count(labels, row.bytes);
            }
        },
    },
    Family {
        name: "request_duration_seconds",
        kind: Kind::Histogram,
        unit: "seconds",
        labels: &["transport", "op", "size"],
        help: "How long requests took that completed, from the worker's taking them in until it saw their end; one of 16 of \
               those that the submitting thread copies itself. `size`: up to so many bytes",
        rows: durations,
    },
    Family {
        name: "unsettled_requests",
        kind: Kind::Gauge,
        unit: "",
        labels: &[],
        help: "Requests that were reported as `Indeterminate` and are so still: nothing proves yet that they touch memory no more",
        rows: |stats, rows| rows.now(vec![], stats.unsettled.requests),
    },
    Family {
        name: "held_bytes",
        kind: Kind::Gauge,
        unit: "bytes",
        labels: &[],
        help: "Bytes of memory here that such requests hold",
        rows: |stats, rows| rows.now(vec![], stats.unsettled.held_bytes),
    },
    Family {
        name: "unknown_bytes",
        kind: Kind::Gauge,
        unit: "bytes",
        labels: &[],
        help: "Bytes of peers' memory that such requests may still reach",
        rows: |stats, rows| rows.now(vec![], stats.unsettled.unknown_bytes),
    },
    Family {
        name: "unsettled_oldest_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[],
        help: "How long ago the first of such requests was reported; 0: there is none",
        rows: |stats, rows| age(rows, stats.unsettled.oldest),
    },
    Family {
        name: "fences_waiting",
        kind: Kind::Gauge,
        unit: "",
        labels: &[],
        help: "Fences of lanes that peers were asked for and have not answered",
        rows: |stats, rows| rows.now(vec![], stats.fences.waiting),
    },
    Family {
        name: "fences_oldest_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[],
        help: "How long the first of them has been waited for; 0: there is none",
        rows: |stats, rows| age(rows, stats.fences.oldest),
    },
    Family {
        name: "fences_unanswered_total",
        kind: Kind::Counter,
        unit: "",
        labels: &[],
        help: "Fences that were given up without an answer",
        rows: |stats, rows| rows.count(vec![], stats.fences.unanswered),
    },
    Family {
        name: "fence_duration_seconds",
        kind: Kind::Histogram,
        unit: "seconds",
        labels: &[],
        help: "How long fences took that were answered, from the first question on",
        rows: |stats, rows| {
            let fences = &stats.fences;
            if !fences.counts.is_empty() {
                let buckets = Latencies::bounds().zip(fences.counts.iter().copied());
                let spread = Value::Spread {
                    sum: fences.sum_seconds,
                    buckets: buckets.collect(),
                };
                rows.put(vec![], spread);
            }
        },
    },
    Family {
        name: "sessions",
        kind: Kind::Gauge,
        unit: "",
        labels: &[],
        help: "Sessions that peers have with this engine",
        rows: |stats, rows| rows.now(vec![], stats.sessions.len() as u64),
    },
    Family {
        name: "rail_bytes_total",
        kind: Kind::Counter,
        unit: "bytes",
        labels: &["rail"],
        help: "Bytes acknowledged on a rail, reads and writes of this engine together",
        rows: |stats, rows| by_rail(stats, rows, |rail| rail.bytes, Rows::count),
    },
    Family {
        name: "rail_inflight_bytes",
        kind: Kind::Gauge,
        unit: "bytes",
        labels: &["rail"],
        help: "Bytes on their way on a rail",
        rows: |stats, rows| by_rail(stats, rows, |rail| rail.inflight_bytes, Rows::now),
    },
    Family {
        name: "rail_learned_bytes_per_second",
        kind: Kind::Gauge,
        unit: "",
        labels: &["rail"],
        help: "How fast a rail is taken to be, learned from what went over it",
        rows: |stats, rows| by_rail(stats, rows, |rail| rail.bytes_per_sec, Rows::now),
    },
    Family {
        name: "rails",
        kind: Kind::Gauge,
        unit: "",
        labels: &["state"],
        help: "Rails in each state; not counted are spares as long as they have carried nothing, and rails that an operator has taken out",
        rows: rails,
    },
    Family {
        name: "rail_is_healthy",
        kind: Kind::Gauge,
        unit: "",
        labels: &["rail"],
        help: "1 while a rail takes slices, 0 while it is paused or probed; those without a row of their own: how many do",
        rows: |stats, rows| {
            let healthy = |rail: &crate::RailStatus| u64::from(rail.state == RailState::Healthy);
            by_rail(stats, rows, healthy, Rows::now);
        },
    },
    Family {
        name: "rail_state_seconds_total",
        kind: Kind::Counter,
        unit: "seconds",
        labels: &["rail", "state"],
        help: "How long a rail has been in each state since it was made",
        rows: |stats, rows| {
            let seconds = |time: Duration| Value::Seconds(time.as_secs_f64());
            by_rail_and(stats, rows, "state", |rail| &rail.in_states, seconds);
        },
    },
    Family {
        name: "rail_pauses_total",
        kind: Kind::Counter,
        unit: "",
        labels: &["rail", "cause"],
        help: "How often a rail was paused for a fault, by cause. An error whose look was good counts too",
        rows: |stats, rows| by_rail_and(stats, rows, "cause", |rail| &rail.pauses, Value::Count),
    },
    Family {
        name: "rail_sent_again_total",
        kind: Kind::Counter,
        unit: "",
        labels: &["rail"],
        help: "Slices that went over a rail after they had been sent before, over this or another one",
        rows: |stats, rows| by_rail(stats, rows, |rail| rail.sent_again, Rows::count),
    },
    Family {
        name: "device_bytes_total",
        kind: Kind::Counter,
        unit: "bytes",
        labels: &["device"],
        help: "Bytes acknowledged on all rails of a local device",
        rows: |stats, rows| {
            for row in &stats.devices {
                rows.count(vec![("device", (&*row.device).into())], row.bytes);
            }
        },
    },
    Family {
        name: "transport_failovers_total",
        kind: Kind::Counter,
        unit: "",
        labels: &["from", "to"],
        help: "Requests that went on with another transport",
        rows: |stats, rows| {
            for row in &stats.failovers {
                rows.count(
                    vec![("from", row.from.into()), ("to", row.to.into())],
                    row.count,
                );
            }
        },
    },
    Family {
        name: "worker_held_requests",
        kind: Kind::Gauge,
        unit: "",
        labels: &["worker"],
        help: "Requests that a worker holds, from submission to report",
        rows: |stats, rows| by_worker(stats, rows, |load| load.held.into(), Rows::now),
    },
    Family {
        name: "worker_held_requests_max",
        kind: Kind::Gauge,
        unit: "",
        labels: &["worker"],
        help: "The most requests that a worker takes at a time",
        rows: |stats, rows| by_worker(stats, rows, |load| load.limit.into(), Rows::now),
    },
    Family {
        name: "worker_waiting_submissions",
        kind: Kind::Gauge,
        unit: "",
        labels: &["worker"],
        help: "Submissions that wait for room with a worker",
        rows: |stats, rows| by_worker(stats, rows, |load| load.waiting.into(), Rows::now),
    },
    Family {
        name: "worker_admission_waits_total",
        kind: Kind::Counter,
        unit: "",
        labels: &["worker"],
        help: "Submissions that have waited for room",
        rows: |stats, rows| by_worker(stats, rows, |load| load.admission_waits, Rows::count),
    },
    Family {
        name: "worker_admission_wait_seconds_total",
        kind: Kind::Counter,
        unit: "seconds",
        labels: &["worker"],
        help: "How long submissions have waited for room, all together",
        rows: |stats, rows| {
            for load in &stats.workers {
                let seconds = load.admission_waited.as_secs_f64();
                rows.put(vec![("worker", worker(load))], Value::Seconds(seconds));
            }
        },
    },
    Family {
        name: "worker_admission_timeouts_total",
        kind: Kind::Counter,
        unit: "",
        labels: &["worker"],
        help: "Submissions that waited for room in vain",
        rows: |stats, rows| by_worker(stats, rows, |load| load.admission_timeouts, Rows::count),
    },
    Family {
        name: "worker_completions_total",
        kind: Kind::Counter,
        unit: "",
        labels: &["worker"],
        help: "Works, of a slice each, that have completed",
        rows: |stats, rows| by_worker(stats, rows, |load| load.completions, Rows::count),
    },
    Family {
        name: "lanes",
        kind: Kind::Gauge,
        unit: "",
        labels: &["state"],
        help: "Lanes of all workers in each state",
        rows: lanes,
    },
    Family {
        name: "lane_held_works",
        kind: Kind::Gauge,
        unit: "",
        labels: &[],
        help: "Works that all lanes hold",
        rows: |stats, rows| {
            let held = stats
                .lanes
                .iter()
                .map(|lane| u64::from(lane.held))
                .sum::<u64>();
            rows.now(vec![], held);
        },
    },
    Family {
        name: "lanes_full",
        kind: Kind::Gauge,
        unit: "",
        labels: &[],
        help: "Lanes that take no more works now",
        rows: |stats, rows| {
            let full = stats.lanes.iter().filter(|lane| lane.full_for.is_some());
            rows.now(vec![], full.count() as u64);
        },
    },
    Family {
        name: "lanes_denied_total",
        kind: Kind::Counter,
        unit: "",
        labels: &[],
        help: "Lanes, and answers to this engine's own, that did not prove that they are of their session, where there is a \
               cluster key",
        rows: |stats, rows| rows.count(vec![], stats.lanes_denied),
    },
    Family {
        name: "certificate_ends_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[],
        help: "Until when this engine's certificate is valid, in seconds since 1970, where it has one",
        rows: |stats, rows| {
            if let Some(ends) = stats.certificate_ends {
                rows.now(vec![], ends);
            }
        },
    },
    Family {
        name: "staging_slots",
        kind: Kind::Gauge,
        unit: "",
        labels: &["direction", "state"],
        help: "Slots for what is staged: `used` by a chunk, `free`, or `quarantined`, because something may still touch them; \
               none before something is staged",
        rows: |stats, rows| {
            for slots in &stats.slots {
                let states = [
                    ("used", slots.used),
                    ("free", slots.free),
                    ("quarantined", slots.quarantined),
                ];
                for (state, count) in states {
                    let labels = vec![
                        ("direction", slots.direction.into()),
                        ("state", state.into()),
                    ];
                    rows.now(labels, count);
                }
            }
        },
    },
    Family {
        name: "hint_age_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[],
        help: "How long ago the agent of `path/hint_file` was last heard of, if one was",
        rows: |stats, rows| {
            if let Some(hint) = &stats.hint {
                rows.put(vec![], Value::Now(hint.age.as_secs_f64()));
            }
        },
    },
    Family {
        name: "hint_generation",
        kind: Kind::Gauge,
        unit: "",
        labels: &[],
        help: "How often an agent has begun the record of `path/hint_file`: another number is an agent that was started since",
        rows: |stats, rows| {
            if let Some(hint) = &stats.hint {
                rows.now(vec![], hint.generation);
            }
        },
    },
    Family {
        name: "limit_used",
        kind: Kind::Gauge,
        unit: "",
        labels: &["of"],
        help: "How many there are of what there can only be so many of",
        rows: |stats, rows| {
            for limit in &stats.limits {
                rows.now(vec![("of", limit.what.into())], limit.used);
            }
        },
    },
    Family {
        name: "limit_max",
        kind: Kind::Gauge,
        unit: "",
        labels: &["of"],
        help: "How many there can be",
        rows: |stats, rows| {
            for limit in &stats.limits {
                rows.now(vec![("of", limit.what.into())], limit.most);
            }
        },
    },
];

/// A row for each rail, and one for all that are too many.
fn by_rail(
    stats: &Stats,
    rows: &mut Rows,
    number: impl Fn(&crate::RailStatus) -> u64,
    put: impl Fn(&mut Rows, Labels<'_>, u64),
) {
    for (name, rails) in named(stats) {
        let sum = rails.iter().map(|rail| number(rail)).sum();
        put(rows, vec![("rail", name.into())], sum);
    }
}

/// The rails of each row. A rail that was made once more, for a peer that came back, has its name.
fn named(stats: &Stats) -> Vec<(&str, Vec<&crate::RailStatus>)> {
    let mut named: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    let mut others = Vec::new();
    for rail in counted(stats) {
        match named.contains_key(&*rail.name) || named.len() < RAILS_MAX {
            true => named.entry(&rail.name).or_default().push(rail),
            false => others.push(rail),
        }
    }
    let others = (!others.is_empty()).then_some((OTHER, others));
    named.into_iter().chain(others).collect()
}

/// A row for each rail and each of what there are several of it.
fn by_rail_and<T: std::ops::AddAssign + Default + Copy>(
    stats: &Stats,
    rows: &mut Rows,
    label: &'static str,
    numbers: impl Fn(&crate::RailStatus) -> &BTreeMap<&'static str, T>,
    value: impl Fn(T) -> Value,
) {
    for (name, rails) in named(stats) {
        let mut sums: BTreeMap<&str, T> = BTreeMap::new();
        for (of, number) in rails.iter().flat_map(|rail| numbers(rail)) {
            *sums.entry(of).or_default() += *number;
        }
        for (of, sum) in sums {
            rows.put(vec![("rail", name.into()), (label, of.into())], value(sum));
        }
    }
}

/// The rails that matter: spares stand behind others, and most of them never carry anything.
fn counted(stats: &Stats) -> impl Iterator<Item = &crate::RailStatus> {
    let is_idle = |rail: &&crate::RailStatus| rail.is_spare && rail.bytes == 0;
    stats.rails.iter().filter(move |rail| !is_idle(rail))
}

fn age(rows: &mut Rows, oldest: Option<Duration>) {
    let seconds = oldest.map_or(0.0, |oldest| oldest.as_secs_f64());
    rows.put(vec![], Value::Now(seconds));
}

fn rails(stats: &Stats, rows: &mut Rows) {
    for state in [RailState::Healthy, RailState::Paused, RailState::Probing] {
        let rails = counted(stats).filter(|rail| !rail.is_withdrawn && rail.state == state);
        let count = rails.count();
        rows.now(vec![("state", state.name().into())], count as u64);
    }
}

fn durations(stats: &Stats, rows: &mut Rows) {
    for row in &stats.requests {
        for times in &row.latencies {
            let size = times.up_to_bytes;
            let size = size.map_or_else(|| "any".to_owned(), |most| most.to_string());
            let labels = vec![
                ("transport", row.transport.into()),
                ("op", row.op.into()),
                ("size", size.into()),
            ];
            let buckets = Latencies::bounds().zip(times.counts.iter().copied());
            let spread = Value::Spread {
                sum: times.sum_seconds,
                buckets: buckets.collect(),
            };
            rows.put(labels, spread);
        }
    }
}

fn lanes(stats: &Stats, rows: &mut Rows) {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for lane in &stats.lanes {
        *counts.entry(LaneState::name(lane.state)).or_default() += 1;
    }
    for (state, count) in counts {
        rows.now(vec![("state", state.into())], count);
    }
}

fn by_worker(
    stats: &Stats,
    rows: &mut Rows,
    number: impl Fn(&crate::WorkerLoad) -> u64,
    put: impl Fn(&mut Rows, Labels<'_>, u64),
) {
    for load in &stats.workers {
        put(rows, vec![("worker", worker(load))], number(load));
    }
}

/// What a worker is called; the thread that carries what is staged has no number.
fn worker(load: &crate::WorkerLoad) -> Cow<'static, str> {
    match load.worker {
        Some(number) => number.to_string().into(),
        None => "staging".into(),
    }
}
