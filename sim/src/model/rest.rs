//! What must come right once nothing goes wrong any more.

use polyrail_core::rail::health::RailState;
use polyrail_core::report::Status;
use polyrail_core::units::RailId;
use polyrail_core::work::Cause;

use super::World;
use super::luck::HELD_DELAYS;
use crate::setup::{Cut, Incident, Interval, Setup};

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
        let partly_gone_ns = match self.is_ending() {
            true => self.partly_gone_ns(),
            false => 0,
        };
        (self.waits_ns() + SLACK_NS).max(partly_gone_ns)
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
        let harmless = |(_, host, incident): &(u64, usize, Incident)| match incident {
            Incident::Stalls { .. } => false,
            Incident::AgentDies | Incident::AgentStarts => true,
            Incident::Muted(_) => *host != far && *host != engine.host,
            Incident::Down | Incident::Back { .. } | Incident::Dies => *host != far,
        };
        // A lane that this side holds for longer than reports wait leaves one open.
        let held_us = match self.trouble.held_one_in {
            0 => 0,
            _ => HELD_DELAYS * self.trouble.late_us,
        };
        held_us < self.limits.fence_timeout_us
            && (lost == 0 || lost >= FRAMES_LOST_ONE_IN_MIN)
            && self.trouble.stall_one_in == 0
            && self.incidents.iter().all(harmless)
            && self.untouched_rails(submitter).next().is_some()
    }

    /// The rails that a submitter's requests may take.
    pub(super) fn used_rails(&self, submitter: u32) -> impl Iterator<Item = usize> {
        let row = &self.submitters[submitter as usize];
        let engine = &self.engines[row.engine];
        let classes = self.classes_of(row.engine, usize::from(row.peer));
        let rails = self.plans[row.plan as usize].rails.iter();
        rails
            .map(|(number, _)| engine.rails[usize::from(*number)])
            .filter(move |rail| classes.contains(self.rails[*rail].class))
    }

    /// Those of them that nothing happens to.
    fn untouched_rails(&self, submitter: u32) -> impl Iterator<Item = usize> {
        self.used_rails(submitter).filter(|rail| {
            let is_whole = |row: &Interval| row.cuts[*rail] == Cut::No;
            self.spared[*rail] && self.intervals.iter().all(is_whole)
        })
    }

    /// Whether each of a submitter's transports has a rail that nothing happens to.
    fn is_served_by_all(&self, submitter: u32) -> bool {
        let rank = |rail: usize| self.rails[rail].rank;
        let is_served = |other| {
            let mut rails = self.untouched_rails(submitter);
            rails.any(|rail| rank(rail) == rank(other))
        };
        self.used_rails(submitter).all(is_served)
    }

    /// Whether there is no other transport that what a submitter moves could go over to.
    fn has_one_transport(&self, submitter: u32) -> bool {
        let mut ranks = self.used_rails(submitter).map(|rail| self.rails[rail].rank);
        let first = ranks.next();
        ranks.all(|rank| Some(rank) == first)
    }

    /// Whether a request had a right to complete.
    fn must_complete(&self, failure: &Failure) -> bool {
        let Some(row) = self.submitters.get(failure.submitter as usize) else {
            return true;
        };
        let own = match failure.cause {
            Some(Cause::Cancelled) => row.cancel_one_in != 0,
            Some(Cause::DeadlineExceeded) => row.deadline_ns != 0,
            _ => false,
        };
        let calm = row.starts_at >= self.calm_at() + self.rest_ns();
        let excused = match failure.cause {
            // A rail that was suspected wrongly, time and again, is away for longer than quick limits allow. And without
            // a budget nothing goes over to another transport, whatever becomes of its own.
            Some(Cause::NoRail) => {
                self.limits.fence_timeout_us < AWAY_US_MAX
                    || self.limits.failover_attempts == 0
                        && !self.is_served_by_all(failure.submitter)
            }
            // It has gone over as often as it may.
            Some(Cause::FailoverLimit) => !self.has_one_transport(failure.submitter),
            // It was made to look like the caller's doing.
            Some(cause) => {
                let made = self.trouble.refuse_one_in.max(self.trouble.false_one_in);
                cause.is_callers() && made != 0
            }
            None => false,
        };
        // Without a budget what was on a transport that is gone for good stays there.
        let of_rail = matches!(failure.cause, Some(Cause::NoRail | Cause::FailoverLimit));
        let stays =
            self.limits.failover_attempts == 0 && self.has_lost_transport(failure.submitter);
        let no_way = self.has_no_way(failure.submitter) || of_rail && stays;
        !own && !no_way && (calm || !excused && self.is_always_served(failure.submitter))
    }
}

impl World<'_> {
    /// What has not come to rest, in words; `None`: all has.
    pub(super) fn unrest(&self) -> Option<String> {
        for (index, worker) in self.workers.iter().enumerate() {
            let left = worker.core.requests();
            if left > self.may_be_left(index) {
                return Some(format!("worker {index} has {left} requests left at rest"));
            }
        }
        for (index, (engine, shared)) in self.setup.engines.iter().zip(self.shared).enumerate() {
            for (number, rail) in engine.rails.iter().enumerate() {
                let peer = usize::from(engine.rail_peers[number]);
                if self.gone[index][peer].unproven {
                    continue;
                }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    /// Two rails, of transports of these ranks, of which some are spared; the first one is cut from 10 to 110 ms.
    fn setup(ranks: [u8; 2], spared: &str, limits: &str) -> Setup {
        let mut text = format!(
            "name = \"x\"\nduration_ms = 10\n[limits]\n{limits}\n[trouble]\nspared = [{spared}]\n\
             [[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n\
             [[fault]]\nat_ms = 10\nfor_ms = 100\nkind = \"silent\"\ntarget = \"a/n0>b/n0\"\n"
        );
        for host in ["a", "b"] {
            for number in 0..2 {
                text += &format!(
                    "[[device]]\nhost = \"{host}\"\nname = \"n{number}\"\nrate_gbits_per_sec = 8\ndelay_us = 1\n"
                );
            }
        }
        for (number, rank) in ranks.iter().enumerate() {
            text +=
                &format!("[[rail]]\nfrom = \"a/n{number}\"\nto = \"b/n{number}\"\nrank = {rank}\n");
        }
        for start_ms in [0, 1_000_000] {
            text += &format!(
                "[[workload]]\nfrom = \"a\"\nto = \"b\"\nop = \"write\"\nblock = 1\ncount = 1\nstart_ms = {start_ms}\n"
            );
        }
        Setup::new(&text, &Scenario::parse(&text).unwrap(), None).unwrap()
    }

    const SECOND: &str = "\"a/n1>b/n1\"";

    #[test]
    fn a_failure_is_excused_only_where_the_design_allows_it() {
        use Cause::*;
        let none = "failover_attempts = 0";
        // (name, ranks, spared, limits, when it was submitted, cause, whether it must not be)
        let cases = [
            ("beside a good rail", [0, 0], SECOND, "", 0, NoRail, true),
            ("no good rail", [0, 0], "", "", 0, NoRail, false),
            (
                "no budget, one transport",
                [0, 0],
                SECOND,
                none,
                0,
                NoRail,
                true,
            ),
            ("no budget, two", [0, 1], SECOND, none, 0, NoRail, false),
            ("two, with a budget", [0, 1], SECOND, "", 0, NoRail, true),
            ("used up", [0, 1], SECOND, none, 0, FailoverLimit, false),
            (
                "nothing to use it on",
                [0, 0],
                SECOND,
                none,
                0,
                FailoverLimit,
                true,
            ),
            (
                "used up in the calm",
                [0, 1],
                SECOND,
                none,
                1,
                FailoverLimit,
                true,
            ),
            ("no good rail in the calm", [0, 0], "", "", 1, NoRail, true),
            (
                "an error nobody made",
                [0, 0],
                SECOND,
                "",
                0,
                RemoteAccess,
                true,
            ),
        ];
        for (name, ranks, spared, limits, submitter, cause, wrong) in cases {
            let failure = Failure {
                submitter,
                number: 0,
                status: Status::Failed,
                cause: Some(cause),
            };
            let setup = setup(ranks, spared, limits);
            assert_eq!(setup.must_complete(&failure), wrong, "{name}");
        }
    }

    #[test]
    fn patience_is_longer_only_while_a_transport_is_cut_off_in_mode_reset() {
        let reset = "reset_cooldown_us = 1000";
        // (name, ranks, spared, limits, how much longer in milliseconds; none: not limited)
        let cases = [
            ("mode decay", [0, 1], SECOND, "", Some(0)),
            ("one transport", [0, 0], SECOND, reset, Some(0)),
            ("the other transport", [0, 1], SECOND, reset, Some(100)),
            ("no good rail", [0, 0], "", reset, None),
        ];
        for (name, ranks, spared, limits, longer_ms) in cases {
            let setup = setup(ranks, spared, limits);
            let usual = setup.waits_ns() + super::super::checks::PATIENCE_NS;
            let longer = setup.patience_ns()[0].map(|most| (most - usual) / 1_000_000);
            assert_eq!(longer, longer_ms, "{name}");
        }
    }
}
