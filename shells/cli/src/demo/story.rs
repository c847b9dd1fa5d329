//! What happened, as measured.

use std::fmt::Write;
use std::time::Duration;

use super::script::CUT;
use super::{History, TICK};
use crate::chart;
use crate::timeline::Bucket;

/// Columns of the chart.
const CHART_WIDTH: usize = 72;

/// Room for the names of rails.
const NAME_WIDTH: usize = 28;

/// Bytes in a bucket from which a rail counts as used; a probe moves less.
const USED_BYTES: u64 = 64 * 1024;

/// A rail is back at this much of its former share.
const BACK: f64 = 0.8;

/// How the engine came over the cut. Times are as fine as the buckets.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Story {
    /// From the cut to the end of the last bucket in which the rail was used.
    pub(super) last_used: Option<Duration>,
    /// From the cut until the dip that it made, if any, was over: until the other rails together carried
    /// 0.9 of what they did before.
    pub(super) recovered: Option<Duration>,
    /// From the restore until the rail was used.
    pub(super) used_again: Option<Duration>,
    /// From the restore until it had 0.8 of its former share.
    pub(super) share_again: Option<Duration>,
}

impl Story {
    /// Reads it off the buckets.
    pub(super) fn new(history: &History) -> Self {
        let buckets = &history.buckets;
        let (cut_at, restored_at) = (history.cut_at, history.restored_at);
        let cut = CUT.index();
        let before: Vec<&Bucket> = buckets.iter().filter(|b| b.end() <= cut_at).collect();
        let during = || {
            buckets
                .iter()
                .filter(|b| b.start >= cut_at && b.end() <= restored_at)
        };
        let after = || buckets.iter().filter(|b| b.start >= restored_at);
        let others = mean(before.iter().map(|b| b.total() - b.rate(cut)));
        let former_share = mean(before.iter().map(|b| share(b, cut)));
        Self {
            last_used: during()
                .rfind(|b| is_used(b, cut))
                .map(|b| b.end() - cut_at),
            recovered: dip_end(during(), |b| b.total() - b.rate(cut) < 0.9 * others)
                .map(|end| end.saturating_sub(cut_at)),
            used_again: used_again(buckets, restored_at),
            share_again: after()
                .find(|b| is_used(b, cut) && share(b, cut) >= BACK * former_share)
                .map(|b| b.start - restored_at),
        }
    }

    /// In words.
    pub(super) fn text(&self, rail: &str) -> String {
        // A bucket says that it happened by its end.
        let within = |time: Option<Duration>| {
            time.map_or("not seen".to_owned(), |time| {
                format!("within {} ms", (time + TICK).as_millis())
            })
        };
        let last_used = self.last_used.map_or("at once".to_owned(), |time| {
            format!("{} ms after the cut", time.as_millis())
        });
        format!(
            "{rail} was left {last_used}; the others carried 0.9 of their former rate {}\n\
             once restored it was used again {}; with {BACK} of its former share {} \
             (looked at every {} ms)",
            within(self.recovered),
            within(self.used_again),
            within(self.share_again),
            TICK.as_millis()
        )
    }
}

/// When the first run of low buckets was over; at once if none is low, `None` if it was not.
fn dip_end<'a>(
    mut buckets: impl Iterator<Item = &'a Bucket> + Clone,
    is_low: impl Fn(&Bucket) -> bool,
) -> Option<Duration> {
    if !buckets.clone().any(&is_low) {
        return buckets.next().map(|_| Duration::ZERO);
    }
    buckets
        .skip_while(|b| !is_low(b))
        .find(|b| !is_low(b))
        .map(|b| b.start)
}

/// From the restore until the cut rail was used again.
pub(super) fn used_again(buckets: &[Bucket], restored_at: Duration) -> Option<Duration> {
    buckets
        .iter()
        .find(|b| b.start >= restored_at && is_used(b, CUT.index()))
        .map(|b| b.start - restored_at)
}

fn is_used(bucket: &Bucket, rail: usize) -> bool {
    bucket
        .bytes
        .get(rail)
        .is_some_and(|bytes| *bytes >= USED_BYTES)
}

fn share(bucket: &Bucket, rail: usize) -> f64 {
    let total = bucket.total();
    if total > 0.0 {
        bucket.rate(rail) / total
    } else {
        0.0
    }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1);
    values.sum::<f64>() / count as f64
}

/// Throughput over time, a row per rail, with the faults marked above it.
pub(super) fn chart(names: &[String], history: &History) -> String {
    let buckets = &history.buckets;
    let max = buckets.iter().flat_map(Bucket::rates).fold(0.0, f64::max);
    let mut text = format!("\nthroughput per rail over time, full bars are {max:.3} GB/s\n");
    // Writing to a string does not fail.
    let _ = writeln!(text, "{:NAME_WIDTH$}  {}", "", marks(history));
    for (i, name) in names.iter().enumerate() {
        let rates: Vec<f64> = buckets.iter().map(|bucket| bucket.rate(i)).collect();
        let bars = chart::bars(&rates, max, CHART_WIDTH);
        let _ = writeln!(text, "{name:<NAME_WIDTH$} |{bars}|");
    }
    text
}

/// A line with a mark where each fault began and ended.
fn marks(history: &History) -> String {
    let buckets = &history.buckets;
    let events = [(history.cut_at, "▼cut"), (history.restored_at, "▼restored")];
    let mut line = String::new();
    for (at, mark) in events {
        let Some(index) = buckets.iter().position(|b| b.start >= at) else {
            continue;
        };
        let column = chart::column(index, buckets.len(), CHART_WIDTH);
        let room = column.saturating_sub(line.chars().count());
        line.extend(std::iter::repeat_n(' ', room));
        line.push_str(mark);
    }
    line
}

/// Bytes and share of each rail, over the whole run.
pub(super) fn shares(names: &[String], buckets: &[Bucket]) -> String {
    let bytes = |rail: usize| -> u64 { buckets.iter().filter_map(|b| b.bytes.get(rail)).sum() };
    let total: u64 = (0..names.len()).map(bytes).sum();
    let mut text = String::new();
    for (i, name) in names.iter().enumerate() {
        let share = bytes(i) as f64 / total.max(1) as f64 * 100.0;
        let gbytes = bytes(i) as f64 / 1e9;
        let _ = writeln!(text, "{name:<NAME_WIDTH$} {gbytes:>7.3} GB  {share:>5.1} %");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Buckets of 100 ms; of each, the MB on the cut rail and on each of the other three.
    fn history(buckets: &[(u64, u64)]) -> History {
        let bucket = |(i, (cut, other)): (usize, &(u64, u64))| Bucket {
            start: ms(100 * i as u64),
            length: ms(100),
            bytes: [*other, *other, *cut, *other]
                .map(|mb| mb * 1_000_000)
                .to_vec(),
        };
        History {
            buckets: buckets.iter().enumerate().map(bucket).collect(),
            cut_at: ms(200),
            restored_at: ms(500),
        }
    }

    const COURSE: [(u64, u64); 9] = [
        (10, 10),
        (10, 10),
        // cut
        (5, 2),
        (0, 10),
        (0, 12),
        // restored
        (0, 12),
        (2, 11),
        (9, 10),
        (10, 10),
    ];

    #[test]
    fn the_story_is_read_off_the_buckets() {
        let story = Story::new(&history(&COURSE));
        let expected = Story {
            last_used: Some(ms(100)),
            recovered: Some(ms(100)),
            used_again: Some(ms(100)),
            share_again: Some(ms(200)),
        };
        assert_eq!(story, expected);
    }

    #[test]
    fn a_rail_that_stays_away_is_not_used_again() {
        let story = Story::new(&history(&COURSE[..6]));
        assert_eq!((story.used_again, story.share_again), (None, None));
        assert!(story.text("x").contains("not seen"));
    }

    #[test]
    fn a_run_that_ended_before_the_cut_has_no_story() {
        let mut history = history(&COURSE[..1]);
        (history.cut_at, history.restored_at) = (Duration::MAX, Duration::MAX);
        let story = Story::new(&history);
        assert_eq!((story.last_used, story.used_again), (None, None));
        assert!(!marks(&history).contains('▼'));
    }

    #[test]
    fn the_chart_marks_the_faults_where_they_began() {
        let names: Vec<String> = (0..4).map(|i| format!("rail{i}")).collect();
        let history = history(&COURSE);
        assert_eq!(marks(&history), "  ▼cut▼restored");
        let chart = chart(&names, &history);
        assert_eq!(
            chart
                .lines()
                .filter(|line| line.starts_with("rail"))
                .count(),
            4
        );
        assert!(shares(&names, &history.buckets).contains('%'));
    }
}
