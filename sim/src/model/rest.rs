//! What must come right once nothing goes wrong any more.

use polyrail_core::rail::health::RailState;
use polyrail_core::report::Status;
use polyrail_core::units::RailId;
use polyrail_core::work::Cause;

use super::World;
use super::luck::HELD_DELAYS;
use crate::setup::{Cut, Incident, Setup};

/// Beyond core's own limits, everything has this long to come right.
const SLACK_NS: u64 = 3_000_000_000;
/// Cooldowns double with every trip.
const COOLDOWN_DOUBLINGS: u32 = 8;
/// A rail that flaps can be away for so long.
const AWAY_US_MAX: u64 = 1_000_000;
/// With control messages lost more often than this, proof may be late whatever the rails do.
const FRAMES_LOST_ONE_IN_MIN: u32 = 8;

/// A request that did not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) submitter: u32,
    pub(crate) number: u64,
    pub(crate) status: Status,
    pub(crate) cause: Option<Cause>,
}

impl Setup {
    /// How long after the last trouble, or the last report, everything must have come right.
    pub(crate) fn rest_ns(&self) -> u64 {
        self.waits_ns() + SLACK_NS
    }

    /// What core's own limits can add up to.
    pub(super) fn waits_ns(&self) -> u64 {
        let limits = &self.limits;
        let waits = limits.fence_timeout_us + limits.peer_silence_us + limits.open_timeout_us;
        let cooldown = limits.reset_cooldown_us << COOLDOWN_DOUBLINGS;
        (3 * waits + limits.cancel_grace_us + cooldown) * 1_000
    }

    /// Whether a submitter's peer can always be reached: over a rail that nothing happens to, with nothing in
    /// the way of proof.
    pub(super) fn is_always_served(&self, submitter: u32) -> bool {
        let row = &self.submitters[submitter as usize];
        let engine = &self.engines[row.engine];
        let far = engine.peers[usize::from(row.peer)];
        let lost = self.trouble.frame_lost_one_in;
        let classes = self.classes_of(row.engine, usize::from(row.peer));
        let untouched = |rail: usize| {
            self.spared[rail]
                && classes.contains(self.rails[rail].class)
                && self.intervals.iter().all(|row| row.cuts[rail] == Cut::No)
        };
        let harmless = |(_, host, incident): &(u64, usize, Incident)| match incident {
            Incident::Stalls { .. } => false,
            Incident::AgentDies | Incident::AgentStarts => true,
            Incident::Muted(_) => *host != far && *host != engine.host,
            Incident::Down | Incident::Back { .. } => *host != far,
        };
        let rails = &self.plans[row.plan as usize].rails;
        // A lane that this side holds for longer than reports wait leaves one open.
        let held_us = match self.trouble.held_one_in {
            0 => 0,
            _ => HELD_DELAYS * self.trouble.late_us,
        };
        held_us < self.limits.fence_timeout_us
            && (lost == 0 || lost >= FRAMES_LOST_ONE_IN_MIN)
            && self.trouble.stall_one_in == 0
            && self.incidents.iter().all(harmless)
            && rails
                .iter()
                .any(|(number, _)| untouched(engine.rails[usize::from(*number)]))
    }

    /// Whether a request had a right to complete.
    fn must_complete(&self, failure: &Failure) -> bool {
        let Some(row) = self.submitters.get(failure.submitter as usize) else {
            return true;
        };
        let own = match failure.cause {
            Some(Cause::Cancelled) => row.cancel_one_in != 0,
            Some(Cause::DeadlineExceeded) => row.deadline_ns != 0,
            Some(Cause::FailoverLimit) => true,
            Some(cause) => cause.is_callers(),
            None => false,
        };
        let calm = row.starts_at >= self.calm_at() + self.rest_ns();
        // A rail that was suspected wrongly, time and again, is away for longer than quick limits allow.
        let away =
            failure.cause == Some(Cause::NoRail) && self.limits.fence_timeout_us < AWAY_US_MAX;
        // Without a budget nothing goes over to another transport, whatever becomes of its own.
        let stays = failure.cause == Some(Cause::NoRail) && self.limits.failover_attempts == 0;
        !own && (calm || (!away && !stays && self.is_always_served(failure.submitter)))
    }
}

impl World<'_> {
    /// What has not come to rest, in words; `None`: all has.
    pub(super) fn unrest(&self) -> Option<String> {
        for (index, worker) in self.workers.iter().enumerate() {
            let left = worker.core.requests();
            if left > 0 {
                return Some(format!("worker {index} has {left} requests left at rest"));
            }
        }
        for (engine, shared) in self.setup.engines.iter().zip(self.shared) {
            for (number, rail) in engine.rails.iter().enumerate() {
                let Some(view) = shared.view(RailId(number as u16)) else {
                    continue;
                };
                let name = || self.setup.rail_name(*rail);
                if view.inflight_bytes > 0 {
                    let bytes = view.inflight_bytes;
                    return Some(format!(
                        "rail {} has {bytes} bytes in flight at rest",
                        name()
                    ));
                }
                let cut = self.cuts[*rail] != Cut::No;
                if view.state != RailState::Healthy && !cut {
                    return Some(format!("rail {} is {} at rest", name(), view.state.name()));
                }
            }
        }
        None
    }

    /// Requests that failed and must not have.
    pub(super) fn judge_failures(&mut self) {
        let failures = std::mem::take(&mut self.history.failures);
        for failure in &failures {
            if self.setup.must_complete(failure) {
                let Failure {
                    number,
                    status,
                    cause,
                    ..
                } = failure;
                let cause = cause.map_or("no cause", Cause::text);
                let text = format!(
                    "request {number} ended {} ({cause}) with a way open",
                    status.name()
                );
                self.ledger.violation(self.now, text);
            }
        }
        self.history.failures = failures;
    }
}
