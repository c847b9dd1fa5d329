//! What a timeline of short buckets says about a rail that was cut and restored.
//!
//! A bucket of 10 ms holds a handful of slices, and the clock of a busy machine skips one now and then, so
//! single ones say little. Whether all together are back is read from their sum: a dip is a stretch in which they
//! fall behind [`BACK`] of what the other rails allow by more than [`NOISE`]'s worth, and it is over when they
//! fall behind no further. Whether the restored rail is back is read from means over a [`WINDOW`].

use std::time::Duration;

use serde_json::Value;

/// What the restored rail's rate is the mean over.
const WINDOW: Duration = Duration::from_millis(100);

/// Falling behind by this time's worth is no dip.
const NOISE: Duration = Duration::from_millis(25);

/// Of the first buckets, which are not typical yet.
const SETTLING: Duration = Duration::from_millis(300);

/// The part of what is possible that counts as back.
const BACK: f64 = 0.9;

/// The part of its former rate that counts as used.
const USED: f64 = 0.8;

/// More than probes move, in GB/s.
const PROBES: f64 = 0.001;

/// When a link broke and healed, since measuring started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Before the first command that broke it.
    pub(crate) cut: Duration,
    /// After the last command that healed it.
    pub(crate) restored: Duration,
}

/// How one run went. `None`: never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovery {
    /// GB/s of all rails before the cut.
    pub(crate) before: f64,
    /// The part of what the other rails allow that was reached between cut and restoration, once back.
    pub(crate) between: f64,
    /// What the cut rail still carried between a tenth of a second after the cut and the restoration, as part
    /// of what it did before.
    pub(crate) leaked: f64,
    /// The lowest mean over a window after the cut, as part of what the other rails allow.
    pub(crate) lowest: f64,
    /// From the cut until the last dip was over; zero if there was none.
    pub(crate) back: Option<Duration>,
    /// From the restoration until the rail carried more than probes.
    pub(crate) first_bytes: Option<Duration>,
    /// From the restoration until it carried [`USED`] of what it had before.
    pub(crate) used: Option<Duration>,
}

/// One bucket: its start, and GB/s of each rail.
struct Bucket {
    start: Duration,
    rails: Vec<f64>,
}

impl Bucket {
    fn total(&self) -> f64 {
        self.rails.iter().sum()
    }
}

/// The buckets of a run.
pub(crate) struct Moments(Vec<Bucket>);

impl Moments {
    /// The timeline of a cell.
    #[track_caller]
    pub(crate) fn of(cell: &Value) -> Self {
        let timeline = cell["timeline"].as_array();
        let timeline = timeline.expect("a timeline was asked for");
        Self(timeline.iter().map(bucket).collect())
    }

    /// How the rail's end and its return show.
    pub(crate) fn judge(&self, rail: usize, times: Times) -> Recovery {
        let total = |bucket: &Bucket| bucket.total();
        let of_rail = |bucket: &Bucket| bucket.rails[rail];
        let before = self.mean(SETTLING, times.cut, total);
        let rail_before = self.mean(SETTLING, times.cut, of_rail);
        let allowed = before - rail_before;
        let back = self.back(times, BACK * allowed);
        let from_back = times.cut + back.unwrap_or_default();
        Recovery {
            before,
            between: self.mean(from_back, times.restored, total) / allowed,
            leaked: self.mean(times.cut + WINDOW, times.restored, of_rail) / rail_before,
            lowest: self.lowest(times, total) / allowed,
            back,
            first_bytes: self.since(times.restored, |at| {
                self.at(at, of_rail).is_some_and(|rate| rate > PROBES)
            }),
            used: self.since(times.restored, |at| {
                self.reaches(at, of_rail, USED * rail_before)
            }),
        }
    }

    /// The buckets' lines around the cut and the restoration, for whoever has to find out why.
    pub(crate) fn show(&self, times: Times) -> String {
        let shown = |at: Duration| {
            (times.cut..times.restored).contains(&at)
                || (at >= times.restored && at < times.restored + WINDOW)
        };
        let line = |bucket: &Bucket| {
            let rates: Vec<String> = bucket.rails.iter().map(|r| format!("{r:.3}")).collect();
            format!("  {:5} ms  {}\n", bucket.start.as_millis(), rates.join(" "))
        };
        let buckets = self.0.iter().filter(|bucket| shown(bucket.start));
        buckets.map(line).collect()
    }

    /// When the last dip below `rate` was over, since the cut. `None`: not before the restoration.
    fn back(&self, times: Times, rate: f64) -> Option<Duration> {
        let noise = rate * NOISE.as_secs_f64();
        let (mut behind, mut least) = (0.0_f64, 0.0);
        // Of the dip that is on: how far behind it has got.
        let mut most = None;
        let (mut back, mut end) = (times.cut, times.cut);
        for (bucket, next) in self.0.iter().zip(self.0.iter().skip(1)) {
            if !(times.cut..times.restored).contains(&bucket.start) {
                continue;
            }
            end = next.start;
            behind += (rate - bucket.total()) * (end - bucket.start).as_secs_f64();
            least = behind.min(least);
            if behind > most.unwrap_or(least + noise) {
                most = Some(behind);
                back = end;
            } else if most.is_some_and(|most| behind < most - noise / 5.0) {
                most = None;
                least = behind;
            }
        }
        (back < end).then(|| back - times.cut)
    }

    /// From `from` until the first bucket of which `is` holds.
    fn since(&self, from: Duration, is: impl Fn(Duration) -> bool) -> Option<Duration> {
        let mut starts = self.0.iter().map(|bucket| bucket.start);
        starts
            .find(|start| *start >= from && is(*start))
            .map(|start| start - from)
    }

    fn lowest(&self, times: Times, rate: impl Fn(&Bucket) -> f64 + Copy) -> f64 {
        let starts = self.0.iter().map(|bucket| bucket.start);
        starts
            .filter(|start| (times.cut..times.restored).contains(start))
            .filter_map(|start| self.window(start, rate))
            .fold(f64::INFINITY, f64::min)
    }

    /// Whether the window that starts there has this rate, and its first bucket is no gap.
    fn reaches(&self, at: Duration, of: impl Fn(&Bucket) -> f64 + Copy, rate: f64) -> bool {
        self.at(at, of).is_some_and(|now| now >= rate / 2.0)
            && self.window(at, of).is_some_and(|mean| mean >= rate)
    }

    fn at(&self, at: Duration, rate: impl Fn(&Bucket) -> f64) -> Option<f64> {
        self.0.iter().find(|bucket| bucket.start == at).map(rate)
    }

    /// The mean over the window that starts there; `None` where the timeline ends before it does.
    fn window(&self, at: Duration, rate: impl Fn(&Bucket) -> f64) -> Option<f64> {
        let last = self.0.last()?.start;
        (at + WINDOW <= last).then(|| self.mean(at, at + WINDOW, rate))
    }

    fn mean(&self, from: Duration, to: Duration, rate: impl Fn(&Bucket) -> f64) -> f64 {
        let mut sum = 0.0;
        let mut length = 0.0;
        for (bucket, next) in self.0.iter().zip(self.0.iter().skip(1)) {
            if bucket.start >= from && bucket.start < to {
                let seconds = (next.start - bucket.start).as_secs_f64();
                sum += rate(bucket) * seconds;
                length += seconds;
            }
        }
        if length > 0.0 { sum / length } else { 0.0 }
    }
}

fn bucket(value: &Value) -> Bucket {
    let start = value["ms"].as_u64().expect("a bucket has a start");
    let rails = value["rails"].as_array().expect("a bucket has rails");
    Bucket {
        start: Duration::from_millis(start),
        rails: rails
            .iter()
            .map(|rate| rate.as_f64().unwrap_or_default())
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Two rails of 0.1; rail 1 is cut at 1000 and restored at 2000. `rates` says what they carry then.
    fn judge(rates: impl Fn(u64) -> [f64; 2]) -> Recovery {
        let buckets = (0..400).map(|index| Bucket {
            start: ms(index * 10),
            rails: rates(index * 10).to_vec(),
        });
        let times = Times {
            cut: ms(1000),
            restored: ms(2000),
        };
        Moments(buckets.collect()).judge(1, times)
    }

    #[test]
    fn dips_and_returns_are_seen_where_they_are() {
        let smooth = |at| match at {
            1000..2030 => [0.1, 0.0],
            2030..2100 => [0.1, 0.01],
            _ => [0.1, 0.1],
        };
        type Rates<'a> = &'a dyn Fn(u64) -> [f64; 2];
        let stalls = |at| match at {
            1000..1080 => [0.0, 0.0],
            _ => smooth(at),
        };
        let again = |at| match at {
            1000..1080 | 1700..1750 => [0.0, 0.0],
            _ => smooth(at),
        };
        let skips = |at| match at {
            1300 => [0.0, 0.0],
            1310 => [0.2, 0.0],
            _ => smooth(at),
        };
        let never = |at| match at {
            1000.. => [0.08, 0.0],
            _ => smooth(at),
        };
        // (name, rates, [back, first bytes, used])
        let cases: [(&str, Rates, Option<[u64; 3]>); 5] = [
            ("nobody notices", &smooth, Some([0, 30, 100])),
            ("80 ms of nothing", &stalls, Some([80, 30, 100])),
            ("a second dip counts", &again, Some([750, 30, 100])),
            ("a skip of the clock does not", &skips, Some([0, 30, 100])),
            ("too little for ever", &never, None),
        ];
        for (name, rates, expected) in cases {
            let recovery = judge(rates);
            let got = [recovery.back, recovery.first_bytes, recovery.used];
            let expected = match expected {
                Some(times) => times.map(|at| Some(ms(at))),
                None => [None; 3],
            };
            assert_eq!(got, expected, "{name}");
        }
    }
}
