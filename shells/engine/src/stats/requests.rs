//! Requests that have ended, counted by transport, direction and outcome, and how long they took.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use polyrail_core::report::Status;
use polyrail_core::time::Duration;
use polyrail_core::units::TransportId;
use polyrail_core::work::Op;
use serde::Serialize;

use super::TRANSPORTS_MAX;

/// Requests up to so many bytes are a class of their own; there is one more for those above.
pub(crate) const SIZES: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
const SIZE_CLASSES: usize = SIZES.len() + 1;
/// Times up to 1 µs, 2 µs, 4 µs and so on, and all above.
const TIMES: usize = 24;

/// Requests that have ended over one transport in one direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestStats {
    /// The transport that it went over last; `none`: it never began. What is staged counts once, and each of its chunks as a
    /// request of the transport that carries it.
    pub transport: &'static str,
    /// `read` or `write`; `any` of what never began.
    pub op: &'static str,
    /// How many ended in each way that occurred, by the name of the status.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Bytes that are proven to have arrived.
    pub bytes: u64,
    /// How long those that completed took, by their size.
    pub latencies: Vec<Latencies>,
}

/// How long requests of a size took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latencies {
    /// They have up to so many bytes, and more than those of the class before; `None`: any number.
    pub up_to_bytes: Option<u64>,
    /// All together, in seconds.
    pub sum_seconds: f64,
    /// How many took up to 1 µs, up to 2 µs, and so on, doubling; the last number is of all above. Each counts once.
    pub counts: Vec<u64>,
}

impl Latencies {
    /// The longest time that each of [`Self::counts`] counts, in seconds.
    ///
    /// Example: [guide](crate::guide#looking-at-an-engine).
    pub fn bounds() -> impl Iterator<Item = f64> {
        let bounded = (0..TIMES - 1).map(|power| f64::from(1 << power) / 1e6);
        bounded.chain([f64::INFINITY])
    }
}

/// The counters of one worker. Whoever drives it counts, so there is one writer at a time.
#[derive(Default)]
pub(crate) struct Requests {
    /// By transport; behind them what is staged, and what never began.
    rows: [OnceLock<Box<Row>>; TRANSPORTS_MAX + 2],
}

#[derive(Default)]
struct Row {
    reads: Ended,
    writes: Ended,
}

#[derive(Default)]
struct Ended {
    outcomes: [AtomicU64; Status::ALL.len()],
    bytes: AtomicU64,
    spreads: [Spread; SIZE_CLASSES],
}

#[derive(Default)]
pub(super) struct Spread {
    nanos: AtomicU64,
    counts: [AtomicU64; TIMES],
}

impl Requests {
    /// Counts requests that ended before they began.
    pub(crate) fn count_unbegun(&self, status: Status, times: usize) {
        let end = End {
            over: Over::Nothing,
            op: Op::Write,
            length: 0,
            status,
            delivered_bytes: 0,
            took: None,
        };
        self.count(&end, times as u64);
    }
}

/// What a request went over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Transport(TransportId),
    /// Slots of the thread that stages.
    Staging,
    /// Nothing: it never began.
    Nothing,
}

impl Over {
    fn row(self) -> usize {
        match self {
            Self::Transport(transport) => transport.index(),
            Self::Staging => TRANSPORTS_MAX,
            Self::Nothing => TRANSPORTS_MAX + 1,
        }
    }
}

/// A request has ended.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) over: Over,
    pub(crate) op: Op,
    pub(crate) length: u64,
    pub(crate) status: Status,
    pub(crate) delivered_bytes: u64,
    /// How long it took, if that was measured.
    pub(crate) took: Option<Duration>,
}

/// Without an atomic addition: there is one writer.
fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

impl Requests {
    /// Counts `times` requests that ended so.
    pub(crate) fn count(&self, end: &End, times: u64) {
        let Some(row) = self.rows.get(end.over.row()) else {
            return;
        };
        let row = row.get_or_init(Box::default);
        let ended = match end.op {
            Op::Read => &row.reads,
            Op::Write => &row.writes,
        };
        add(&ended.outcomes[end.status as usize], times);
        add(&ended.bytes, end.delivered_bytes);
        if let Some(took) = end.took.filter(|_| end.status == Status::Completed) {
            let class = SIZES.partition_point(|most| *most < end.length);
            ended.spreads[class].count(took);
        }
    }

    /// Adds what there is to the rows of all workers.
    pub(crate) fn add_to(
        &self,
        all: &mut Vec<RequestStats>,
        name: impl Fn(TransportId) -> &'static str,
    ) {
        for (number, row) in self.rows.iter().enumerate() {
            let Some(row) = row.get() else {
                continue;
            };
            let (transport, writes) = match number {
                TRANSPORTS_MAX => ("staged", "write"),
                number if number > TRANSPORTS_MAX => ("none", "any"),
                number => (name(TransportId(number as u8)), "write"),
            };
            for (op, ended) in [("read", &row.reads), (writes, &row.writes)] {
                ended.add_to(all, transport, op);
            }
        }
    }
}

impl Ended {
    fn add_to(&self, all: &mut Vec<RequestStats>, transport: &'static str, op: &'static str) {
        let outcomes = Status::ALL.into_iter().zip(&self.outcomes);
        let outcomes = outcomes.map(|(status, count)| (status.name(), count.load(Relaxed)));
        let mut outcomes = outcomes.filter(|(_, count)| *count > 0).peekable();
        if outcomes.peek().is_none() {
            return;
        }
        let known = all
            .iter()
            .position(|row| (row.transport, row.op) == (transport, op));
        let place = known.unwrap_or(all.len());
        if known.is_none() {
            all.push(RequestStats {
                transport,
                op,
                outcomes: BTreeMap::new(),
                bytes: 0,
                latencies: Vec::new(),
            });
        }
        let row = &mut all[place];
        for (status, count) in outcomes {
            *row.outcomes.entry(status).or_default() += count;
        }
        row.bytes += self.bytes.load(Relaxed);
        for (class, spread) in self.spreads.iter().enumerate() {
            spread.add_to(&mut row.latencies, SIZES.get(class).copied());
        }
    }
}

impl Spread {
    pub(super) fn count(&self, took: Duration) {
        let micros = took.as_nanos().div_ceil(1000).max(1);
        let power = micros.next_power_of_two().trailing_zeros() as usize;
        add(&self.counts[power.min(TIMES - 1)], 1);
        add(&self.nanos, took.as_nanos());
    }

    pub(super) fn add_to(&self, all: &mut Vec<Latencies>, up_to_bytes: Option<u64>) {
        let counts: Vec<_> = self
            .counts
            .iter()
            .map(|count| count.load(Relaxed))
            .collect();
        if counts.iter().all(|count| *count == 0) {
            return;
        }
        let seconds = self.nanos.load(Relaxed) as f64 / 1e9;
        match all.iter_mut().find(|row| row.up_to_bytes == up_to_bytes) {
            Some(row) => {
                row.sum_seconds += seconds;
                for (sum, count) in row.counts.iter_mut().zip(counts) {
                    *sum += count;
                }
            }
            None => all.push(Latencies {
                up_to_bytes,
                sum_seconds: seconds,
                counts,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use quickcheck::quickcheck;

    const WELL: End = End {
        over: Over::Transport(TransportId(1)),
        op: Op::Write,
        length: 4096,
        status: Status::Completed,
        delivered_bytes: 4096,
        took: None,
    };

    fn all(requests: &[&Requests]) -> Vec<RequestStats> {
        let mut all = Vec::new();
        let name = |transport: TransportId| if transport.0 == 1 { "tcp" } else { "shm" };
        for requests in requests {
            requests.add_to(&mut all, name);
        }
        all
    }

    #[test]
    fn requests_are_told_apart_and_workers_are_not() {
        let (one, two) = (Requests::default(), Requests::default());
        one.count(&WELL, 1);
        two.count(&WELL, 1);
        two.count(
            &End {
                op: Op::Read,
                ..WELL
            },
            1,
        );
        two.count_unbegun(Status::Cancelled, 7);
        let all = all(&[&one, &two]);
        let rows: Vec<_> = all
            .iter()
            .map(|row| (row.transport, row.op, row.outcomes.clone(), row.bytes))
            .collect();
        let expected = [
            ("tcp", "write", BTreeMap::from([("Completed", 2)]), 8192),
            ("tcp", "read", BTreeMap::from([("Completed", 1)]), 4096),
            ("none", "any", BTreeMap::from([("Cancelled", 7)]), 0),
        ];
        assert_eq!(rows, expected);
    }

    quickcheck! {
        fn each_time_is_counted_once_under_the_least_bound_that_holds_it(nanos: u64, length: u64) -> bool {
            let nanos = nanos >> (nanos % 40);
            let requests = Requests::default();
            requests.count(&End { length, took: Some(Duration::from_nanos(nanos)), ..WELL }, 1);
            let all = all(&[&requests]);
            let [row] = all[0].latencies.as_slice() else { return false };
            let at = row.counts.iter().position(|count| *count == 1).unwrap();
            let bounds: Vec<_> = Latencies::bounds().collect();
            let seconds = nanos as f64 / 1e9;
            let fits = seconds <= bounds[at] && (at == 0 || seconds > bounds[at - 1]);
            let class = SIZES.iter().copied().find(|most| length <= *most);
            fits && row.up_to_bytes == class && row.counts.iter().sum::<u64>() == 1 && bounds.len() == row.counts.len()
        }
    }
}
