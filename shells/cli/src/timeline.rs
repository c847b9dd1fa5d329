//! Bytes per rail over time.

use std::time::{Duration, Instant};

/// What passed on each rail in a stretch of time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bucket {
    /// When it starts, since recording started.
    pub(crate) start: Duration,
    /// How long it is. The clock of a busy machine ticks late, so it is measured.
    pub(crate) length: Duration,
    /// Bytes acknowledged in it, rail by rail.
    pub(crate) bytes: Vec<u64>,
}

impl Bucket {
    /// GB/s (10⁹ bytes a second), rail by rail.
    pub(crate) fn rates(&self) -> Vec<f64> {
        self.bytes
            .iter()
            .map(|bytes| gbytes_per_sec(*bytes, self.length))
            .collect()
    }

    /// GB/s of one rail; a rail that did not exist yet carried nothing.
    pub(crate) fn rate(&self, rail: usize) -> f64 {
        let bytes = self.bytes.get(rail).copied().unwrap_or(0);
        gbytes_per_sec(bytes, self.length)
    }

    /// GB/s of all rails together.
    pub(crate) fn total(&self) -> f64 {
        gbytes_per_sec(self.bytes.iter().sum(), self.length)
    }

    /// When it ends, since recording started.
    pub(crate) fn end(&self) -> Duration {
        self.start + self.length
    }
}

/// 10⁹ bytes a second; 0 in no time.
pub(crate) fn gbytes_per_sec(bytes: u64, time: Duration) -> f64 {
    if time.is_zero() {
        return 0.0;
    }
    bytes as f64 / time.as_secs_f64() / 1e9
}

/// Turns readings of the rails' byte counters into buckets.
#[derive(Debug)]
pub(crate) struct Recorder {
    every: Duration,
    started: Instant,
    last_at: Instant,
    last: Vec<u64>,
    buckets: Vec<Bucket>,
}

impl Recorder {
    /// Starts with a first reading; the next is due `every` later.
    pub(crate) fn new(every: Duration, now: Instant, bytes: Vec<u64>) -> Self {
        Self {
            every,
            started: now,
            last_at: now,
            last: bytes,
            buckets: Vec::new(),
        }
    }

    /// How long until the next reading is due.
    pub(crate) fn due_in(&self, now: Instant) -> Duration {
        (self.last_at + self.every).saturating_duration_since(now)
    }

    /// Takes a reading. Rails may have been added since the one before.
    pub(crate) fn tick(&mut self, now: Instant, bytes: Vec<u64>) {
        let before = self.last.iter().copied().chain(std::iter::repeat(0));
        let passed = bytes
            .iter()
            .zip(before)
            .map(|(now, before)| now.saturating_sub(before));
        self.buckets.push(Bucket {
            start: self.last_at - self.started,
            length: now - self.last_at,
            bytes: passed.collect(),
        });
        (self.last_at, self.last) = (now, bytes);
    }

    /// Takes the last reading, if the stretch since the one before is long enough to mean anything.
    pub(crate) fn finish(mut self, now: Instant, bytes: Vec<u64>) -> Vec<Bucket> {
        if now.duration_since(self.last_at) >= self.every / 2 {
            self.tick(now, bytes);
        }
        self.buckets
    }

    /// The buckets so far.
    pub(crate) fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn buckets_hold_what_passed_between_readings() {
        let start = Instant::now();
        let mut recorder = Recorder::new(ms(100), start, vec![1_000_000]);
        assert_eq!(recorder.due_in(start + ms(30)), ms(70));
        assert_eq!(recorder.due_in(start + ms(130)), ms(0));
        recorder.tick(start + ms(100), vec![101_000_000]);
        // Late, and a second rail has appeared.
        recorder.tick(start + ms(300), vec![101_000_000, 40_000_000]);
        let buckets = recorder.finish(start + ms(310), vec![102_000_000, 40_000_000]);
        let expected = [(0, 100, vec![100_000_000]), (100, 200, vec![0, 40_000_000])];
        let expected = expected.map(|(start, length, bytes)| Bucket {
            start: ms(start),
            length: ms(length),
            bytes,
        });
        assert_eq!(buckets, expected);
        assert!((buckets[0].total() - 1.0).abs() < 1e-9);
        assert!((buckets[1].rate(1) - 0.2).abs() < 1e-9);
        assert!(buckets[0].rate(1).abs() < 1e-9);
    }
}
