//! What waits for proof: requests that were reported without it, and fences that peers have not answered.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::time::{Duration as CoreDuration, Instant};
use polyrail_core::units::{Epoch, LaneId};
use serde::Serialize;

use super::requests::Spread;
use crate::lock::lock;

/// A fence that core has not asked for again for so long is not waited for any more.
const FORGOTTEN: CoreDuration = CoreDuration::from_secs(10);

/// Requests that were reported as `Indeterminate`, and are so still.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct UnsettledStats {
    /// How many.
    pub requests: u64,
    /// Bytes of those whose memory here may still be touched.
    pub held_bytes: u64,
    /// Bytes of those that may still reach the peer's memory.
    pub unknown_bytes: u64,
    /// How long ago the first of them was reported; `None`: there is none.
    #[serde(serialize_with = "super::load::maybe_seconds")]
    pub oldest: Option<Duration>,
}

impl UnsettledStats {
    pub(crate) fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.held_bytes += other.held_bytes;
        self.unknown_bytes += other.unknown_bytes;
        self.oldest = self.oldest.max(other.oldest);
    }
}

/// Those of one worker, by the tags that they were submitted under.
#[derive(Default)]
pub(crate) struct Unsettled(Mutex<BTreeMap<u64, Open>>);

struct Open {
    since: Instant,
    bytes: u64,
    local: Local,
    remote: Remote,
}

impl Unsettled {
    /// A request has been reported.
    pub(crate) fn reported(&self, now: Instant, tag: u64, bytes: u64, report: &Report) {
        if report.status == Status::Indeterminate {
            let open = Open {
                since: now,
                bytes,
                local: report.local,
                remote: report.remote,
            };
            lock(&self.0).insert(tag, open);
        }
    }

    /// More has become known of one.
    pub(crate) fn settle(&self, tag: u64, local: Local, remote: Remote) {
        let mut all = lock(&self.0);
        if (local, remote) == (Local::Released, Remote::Settled) {
            all.remove(&tag);
        } else if let Some(open) = all.get_mut(&tag) {
            (open.local, open.remote) = (local, remote);
        }
    }

    /// How they stand. `is_known`: whether anybody could be told of one still.
    pub(crate) fn stats(&self, now: Instant, is_known: impl Fn(u64) -> bool) -> UnsettledStats {
        let mut all = lock(&self.0);
        all.retain(|tag, _| is_known(*tag));
        let bytes = |is_so: fn(&Open) -> bool| {
            let bytes = all
                .values()
                .filter(|open| is_so(open))
                .map(|open| open.bytes);
            bytes.sum()
        };
        let first = all.values().map(|open| open.since).min();
        UnsettledStats {
            requests: all.len() as u64,
            held_bytes: bytes(|open| open.local == Local::Held),
            unknown_bytes: bytes(|open| open.remote == Remote::Unknown),
            oldest: first.map(|since| now.since(since).into()),
        }
    }
}

/// Fences that peers were asked for: proof that a lane's works of an epoch reach memory no more.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct FenceStats {
    /// Those that are waited for.
    pub waiting: u64,
    /// How long the longest of them has been waited for; `None`: there is none.
    #[serde(serialize_with = "super::load::maybe_seconds")]
    pub oldest: Option<Duration>,
    /// Those that were given up unanswered.
    pub unanswered: u64,
    /// How long those took that were answered, all together, in seconds.
    pub sum_seconds: f64,
    /// How many of them took up to 1 µs, 2 µs, and so on, as [`crate::Latencies::counts`] has it; empty: none.
    pub counts: Vec<u64>,
}

impl FenceStats {
    pub(crate) fn add(&mut self, other: &Self) {
        self.waiting += other.waiting;
        self.oldest = self.oldest.max(other.oldest);
        self.unanswered += other.unanswered;
        self.sum_seconds += other.sum_seconds;
        self.counts
            .resize(self.counts.len().max(other.counts.len()), 0);
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum += count;
        }
    }
}

/// Those of one worker. There are few: nobody fences a lane that is well.
#[derive(Default)]
pub(crate) struct Fences(Mutex<Asked>);

#[derive(Default)]
struct Asked {
    /// Since when each is waited for, and when it was asked for last.
    waiting: HashMap<(LaneId, Epoch), (Instant, Instant)>,
    unanswered: u64,
    took: Spread,
}

impl Fences {
    /// A peer is asked, perhaps once more.
    pub(crate) fn asked(&self, now: Instant, lane: LaneId, epoch: Epoch) {
        let mut fences = lock(&self.0);
        fences.forget(now);
        let times = fences.waiting.entry((lane, epoch)).or_insert((now, now));
        times.1 = now;
    }

    /// A peer has answered, perhaps once more.
    pub(crate) fn answered(&self, now: Instant, lane: LaneId, epoch: Epoch) {
        let mut fences = lock(&self.0);
        if let Some((since, _)) = fences.waiting.remove(&(lane, epoch)) {
            fences.took.count(now.since(since));
        }
    }

    pub(crate) fn stats(&self, now: Instant) -> FenceStats {
        let mut fences = lock(&self.0);
        fences.forget(now);
        let mut took = Vec::new();
        fences.took.add_to(&mut took, None);
        let took = took.pop();
        let first = fences.waiting.values().map(|(since, _)| *since).min();
        FenceStats {
            waiting: fences.waiting.len() as u64,
            oldest: first.map(|since| now.since(since).into()),
            unanswered: fences.unanswered,
            sum_seconds: took.as_ref().map_or(0.0, |took| took.sum_seconds),
            counts: took.map_or_else(Vec::new, |took| took.counts),
        }
    }
}

impl Asked {
    fn forget(&mut self, now: Instant) {
        let before = self.waiting.len();
        self.waiting
            .retain(|_, (_, last)| now.since(*last) < FORGOTTEN);
        self.unanswered += (before - self.waiting.len()) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Instant = |ms| Instant::ZERO + CoreDuration::from_millis(ms);

    #[test]
    fn what_was_reported_without_proof_counts_until_there_is_some_or_nobody_waits_for_it() {
        let unsettled = Unsettled::default();
        let report = |status, local, remote| Report {
            status,
            delivered_bytes: 0,
            cause: None,
            local,
            remote,
        };
        let open = |local, remote| report(Status::Indeterminate, local, remote);
        unsettled.reported(MS(1), 1, 100, &open(Local::Held, Remote::Unknown));
        unsettled.reported(MS(3), 2, 10, &open(Local::Released, Remote::Unknown));
        let well = report(Status::Completed, Local::Released, Remote::Settled);
        unsettled.reported(MS(3), 3, 1, &well);
        let stats = |now| unsettled.stats(MS(now), |_| true);
        let expected = |requests, held_bytes, unknown_bytes, oldest: Option<u64>| UnsettledStats {
            requests,
            held_bytes,
            unknown_bytes,
            oldest: oldest.map(Duration::from_millis),
        };
        assert_eq!(stats(5), expected(2, 100, 110, Some(4)));
        unsettled.settle(1, Local::Released, Remote::Unknown);
        assert_eq!(stats(6), expected(2, 0, 110, Some(5)));
        unsettled.settle(1, Local::Released, Remote::Settled);
        assert_eq!(stats(7), expected(1, 0, 10, Some(4)));
        assert_eq!(unsettled.stats(MS(8), |_| false), UnsettledStats::default());
    }

    #[test]
    fn a_fence_is_waited_for_from_the_first_question_to_the_first_answer() {
        let fences = Fences::default();
        let (lane, epoch) = (LaneId(1), Epoch(2));
        fences.asked(MS(10), lane, epoch);
        fences.asked(MS(20), lane, epoch);
        let stats = fences.stats(MS(25));
        assert_eq!(
            (stats.waiting, stats.oldest),
            (1, Some(Duration::from_millis(15)))
        );
        fences.answered(MS(30), lane, epoch);
        fences.answered(MS(40), lane, epoch);
        fences.asked(MS(50), lane, Epoch(3));
        let stats = fences.stats(MS(20_000));
        assert_eq!((stats.waiting, stats.unanswered), (0, 1));
        assert_eq!(
            (stats.counts.iter().sum::<u64>(), stats.sum_seconds),
            (1, 0.02)
        );
    }
}
