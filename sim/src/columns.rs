//! A history cut into spans of time, for charts, traces and series.

use crate::model::History;
use crate::setup::Setup;

/// Spans of time as wide as so many buckets of the history, between the first submission and the last report.
pub(crate) struct Columns {
    pub(crate) began_at: u64,
    pub(crate) ended_at: u64,
    pub(crate) bucket_ns: u64,
    buckets_each: u64,
}

impl Columns {
    /// At most so many.
    pub(crate) fn new(setup: &Setup, history: &History, columns_max: u64) -> Self {
        let (began_at, ended_at) = (history.began_at, history.ended_at.max(history.began_at + 1));
        let bucket_ns = setup.bucket_ns();
        let buckets = (ended_at - began_at).div_ceil(bucket_ns);
        Self {
            began_at,
            ended_at,
            bucket_ns,
            buckets_each: buckets.div_ceil(columns_max).max(1),
        }
    }

    /// From when to when each is, without a last one that is less than half there.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (u64, u64)> {
        let width = self.buckets_each * self.bucket_ns;
        let first = self.began_at / self.bucket_ns * self.bucket_ns;
        let (began_at, ended_at) = (self.began_at, self.ended_at);
        (0..)
            .map(move |index| (first + index * width, first + (index + 1) * width))
            .take_while(move |(from, _)| *from < ended_at)
            .map(move |(from, to)| (from.max(began_at), to.min(ended_at)))
            .filter(move |(from, to)| *from == began_at || (to - from) * 2 >= width)
    }

    /// Gigabytes a second of one rail in each.
    pub(crate) fn rates(&self, history: &History, rail: usize) -> Vec<f64> {
        let first = self.began_at / self.bucket_ns;
        let sum = |index: usize| -> u64 {
            let from = (first + index as u64 * self.buckets_each) as usize;
            let to = (from + self.buckets_each as usize).min(history.buckets.len());
            let rows = history.buckets.get(from..to).unwrap_or(&[]);
            rows.iter().map(|row| row[rail]).sum()
        };
        let spans = self.spans().enumerate();
        spans
            .map(|(index, (from, to))| sum(index) as f64 / (to - from).max(1) as f64)
            .collect()
    }
}
