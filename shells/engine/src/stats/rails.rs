//! How long rails have been in each state, and what they were paused for.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use polyrail_core::rail::health::RailState;
use polyrail_core::units::RailId;
use polyrail_core::work::Cause;

use crate::lock::lock;

/// What workers have said of each rail since it was installed, by its number.
#[derive(Default)]
pub(crate) struct RailTimes(Mutex<Vec<Times>>);

#[derive(Clone)]
struct Times {
    state: RailState,
    since: Instant,
    /// In states before this one.
    before: BTreeMap<&'static str, Duration>,
    pauses: BTreeMap<&'static str, u64>,
}

impl Times {
    fn new(now: Instant) -> Self {
        Self {
            state: RailState::Healthy,
            since: now,
            before: BTreeMap::new(),
            pauses: BTreeMap::new(),
        }
    }
}

/// The same of one rail, now.
#[derive(Default)]
pub(crate) struct RailHistory {
    /// In its present state.
    pub(crate) state_for: Duration,
    pub(crate) in_states: BTreeMap<&'static str, Duration>,
    pub(crate) pauses: BTreeMap<&'static str, u64>,
}

impl RailTimes {
    /// The number is a new rail's from now on.
    pub(crate) fn begin(&self, rail: RailId) {
        let (now, mut rails) = (Instant::now(), lock(&self.0));
        if rails.len() <= rail.index() {
            rails.resize(rail.index() + 1, Times::new(now));
        }
        rails[rail.index()] = Times::new(now);
    }

    /// A worker says so. Several may say the same; only the one that has noticed the incident knows the cause.
    pub(crate) fn changed(&self, rail: RailId, state: RailState, cause: Option<Cause>) {
        let (now, mut rails) = (Instant::now(), lock(&self.0));
        let Some(times) = rails.get_mut(rail.index()) else {
            return;
        };
        if let Some(cause) = cause {
            *times.pauses.entry(cause.text()).or_default() += 1;
        }
        if times.state != state {
            *times.before.entry(times.state.name()).or_default() += now - times.since;
            (times.state, times.since) = (state, now);
        }
    }

    pub(crate) fn of(&self, rail: RailId) -> RailHistory {
        let (now, rails) = (Instant::now(), lock(&self.0));
        let Some(times) = rails.get(rail.index()) else {
            return RailHistory::default();
        };
        let state_for = now.saturating_duration_since(times.since);
        let mut in_states = times.before.clone();
        *in_states.entry(times.state.name()).or_default() += state_for;
        RailHistory {
            state_for,
            in_states,
            pauses: times.pauses.clone(),
        }
    }
}
