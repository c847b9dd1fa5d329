//! An endpoint that a test drives by hand, with one lane.

use std::os::fd::AsFd;

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{Epoch, LaneId};
use polyrail_core::work::{Completion, LaneFact, Outcome, POST_MAX, PostBatch, Posted, Stop, Work};
use polyrail_transport::clock::Clock;
use polyrail_transport::{Endpoint, LaneReport, Polled};
use rustix::event::{EventfdFlags, eventfd};

/// How long nothing may happen to whoever sleeps.
const PATIENCE: Duration = Duration::from_secs(5);

/// An endpoint with one lane, for tests of a transport's own: it panics where something is not as it should be.
pub struct Driven {
    /// It.
    pub endpoint: Box<dyn Endpoint>,
    /// What it tells the time by.
    pub clock: Clock,
    /// The lane.
    pub lane: LaneId,
    /// Its epoch.
    pub epoch: Epoch,
    /// What it has said and nobody has taken.
    pub polled: Polled,
}

impl std::fmt::Debug for Driven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driven({:?} {:?})", self.lane, self.epoch)
    }
}

impl Driven {
    /// It, with a lane that is not open yet.
    pub fn new(endpoint: Box<dyn Endpoint>, clock: Clock, lane: LaneId, epoch: Epoch) -> Self {
        Self {
            endpoint,
            clock,
            lane,
            epoch,
            polled: Polled::default(),
        }
    }

    /// Opens the lane.
    pub fn open(&mut self) {
        self.endpoint.open(self.lane, self.epoch, Instant::MAX);
        let fact = self.fact().fact;
        assert!(matches!(fact, LaneFact::Opened { .. }), "{fact:?}");
    }

    /// Looks once at what it has to say.
    pub fn poll(&mut self) {
        let now = self.clock.now();
        self.endpoint.poll(now, &mut self.polled);
    }

    /// The next fact about a lane.
    pub fn fact(&mut self) -> LaneReport {
        while self.polled.lanes.is_empty() {
            self.poll();
        }
        self.polled.lanes.remove(0)
    }

    /// Posts works, as many as one post takes.
    pub fn post(&mut self, works: &[Work]) -> Posted {
        let works = works.iter().copied().collect();
        self.endpoint.post(&PostBatch {
            lane: self.lane,
            epoch: self.epoch,
            works,
        })
    }

    /// Sleeps on its descriptor, as a worker does.
    pub fn sleep(&mut self) {
        let nobody = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
        let now = self.clock.now();
        let due = self.endpoint.poll_timeout();
        let longest = due.map_or(PATIENCE, |due| due.since(now));
        let slept = self.endpoint.sleep(nobody.as_fd(), Some(longest));
        slept.expect("it can be slept on");
    }

    /// Posts works, more of them as there is room, and waits for their outcomes, in order of their cookies.
    pub fn run(&mut self, works: &[Work]) -> Vec<Outcome> {
        let mut rest = works;
        let mut seen: Vec<Completion> = Vec::new();
        while seen.len() < works.len() {
            let next = &rest[..rest.len().min(POST_MAX)];
            if !next.is_empty() {
                let posted = self.post(next);
                assert!(matches!(posted.stop, Stop::All | Stop::Full), "{posted:?}");
                rest = &rest[posted.accepted..];
            }
            let before = seen.len();
            self.poll();
            seen.append(&mut self.polled.completions);
            if seen.len() == before {
                self.sleep();
            }
        }
        seen.sort_by_key(|seen| seen.cookie);
        seen.into_iter().map(|seen| seen.outcome).collect()
    }
}
