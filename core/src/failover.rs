//! When a request leaves one transport for another.
//!
//! A transport whose every rail to the peer is unusable is left for the next one that has a usable rail; a
//! slice that fails while its transport has others stays (that is a reroute). A switch that the request itself
//! caused uses its budget; one that a neighbour's failure caused does not.
//!
//! Source: TENT failover document, "Cross-transport failover" and "Configuration", for the ranked list and the
//! budget. We differ: a request that has nowhere else to go is not left with a transport whose lanes carry nothing for ever (a
//! budget of its own, [`BARREN_ROUNDS_MAX`]), a request may come back to a better transport that has recovered, which uses the budget
//! as any switch does, and what fails while it is posted fails over too, because a post answers for each work.

use crate::work::Cause;

/// How often a request that has no other transport may lose all its rails to lanes that ended without carrying anything, in a row.
/// With the waits between, which double from 10 ms on, that takes more than a second.
pub const BARREN_ROUNDS_MAX: u8 = 7;

/// Where one request stands in its plan's ranking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Failover {
    rank: u8,
    used: u8,
    /// Something of the request failed on its present transport.
    faulted: bool,
    /// And it was the first one on a lane that ended without having carried anything, for this cause.
    barren: Option<Cause>,
    /// Times in a row that this left it without a rail.
    rounds: u8,
}

/// What to do with a request whose transport has no usable rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Wait: there is no other transport that is usable now, or it may not be used.
    Stay,
    /// It goes on with the transport at this rank.
    Switch(u8),
    /// Another one is usable, but the budget is used up: it fails.
    Exhausted,
    /// There is no other, and lanes of this one end again and again without carrying anything: it fails, for the cause of
    /// the last one.
    Barren(Cause),
}

impl Failover {
    /// A request that starts with the transport at `rank`.
    pub const fn new(rank: u8) -> Self {
        Self {
            rank,
            used: 0,
            faulted: false,
            barren: None,
            rounds: 0,
        }
    }

    /// The rank of its transport, 0 the best.
    pub const fn rank(&self) -> u8 {
        self.rank
    }

    /// Switches that have used its budget.
    pub const fn used(&self) -> u8 {
        self.used
    }

    /// A work of the request was the first in error on its lane.
    pub fn handle_fault(&mut self) {
        self.faulted = true;
    }

    /// A lane on which it was the first ended without having carried anything, and its rail was paused for that.
    pub fn handle_barren(&mut self, cause: Cause) {
        self.barren = Some(cause);
    }

    /// Bytes of it arrived.
    pub fn handle_progress(&mut self) {
        self.rounds = 0;
    }

    /// It goes on with the transport at another rank because its own is slow, if its budget allows that: a rail that it has made
    /// fail may be why. Whether it does.
    pub fn leave(&mut self, attempts_max: u8, rank: u8) -> bool {
        let may = attempts_max > 0 && !(self.faulted && self.used >= attempts_max);
        if may {
            self.switch(rank);
            debug_assert!(
                self.used <= attempts_max,
                "{} switches of its own, and {attempts_max} at most",
                self.used
            );
        }
        may
    }

    fn switch(&mut self, rank: u8) {
        debug_assert!(rank != self.rank, "it goes on with what it leaves");
        self.used += u8::from(self.faulted);
        self.faulted = false;
        self.barren = None;
        self.rank = rank;
    }

    /// Its transport has no usable rail: chooses among `ranks` transports the next usable one, worse ones first
    /// and then again from the best. With `attempts_max` 0 nothing ever switches, and a fault is final.
    pub fn decide(
        &mut self,
        attempts_max: u8,
        ranks: u8,
        usable: impl FnMut(&u8) -> bool,
    ) -> Decision {
        let others = (self.rank.saturating_add(1)..ranks).chain(0..self.rank);
        let Some(next) = others.into_iter().find(usable) else {
            return self.stay();
        };
        if self.faulted && self.used >= attempts_max {
            return Decision::Exhausted;
        }
        if attempts_max == 0 {
            return Decision::Stay;
        }
        self.switch(next);
        debug_assert!(
            self.used <= attempts_max && next < ranks,
            "{} switches of its own of {attempts_max}, now to rank {next} of {ranks}",
            self.used
        );
        Decision::Switch(next)
    }

    /// There is nowhere else to go.
    fn stay(&mut self) -> Decision {
        let Some(cause) = self.barren.take() else {
            return Decision::Stay;
        };
        self.rounds = self.rounds.saturating_add(1);
        match self.rounds > BARREN_ROUNDS_MAX {
            true => Decision::Barren(cause),
            false => Decision::Stay,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::Decision::{Exhausted, Stay, Switch};
    use super::*;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    #[test]
    fn a_request_goes_down_the_ranking_within_its_budget() {
        // (name, rank, used, its own fault, budget, usable ranks, decision, used then)
        let cases = [
            ("to the next one", 0, 0, true, 3, &[1, 2][..], Switch(1), 1),
            ("past an unusable one", 0, 0, true, 3, &[2], Switch(2), 1),
            ("worse ones first", 1, 1, true, 3, &[0, 2], Switch(2), 2),
            ("and back to the best", 2, 1, true, 3, &[0], Switch(0), 2),
            ("nobody is usable", 0, 0, true, 3, &[], Stay, 0),
            ("the last of the budget", 0, 2, true, 3, &[1], Switch(1), 3),
            ("used up", 1, 3, true, 3, &[0], Exhausted, 3),
            ("used up, not by this", 1, 3, false, 3, &[0], Switch(0), 3),
            ("a neighbour's is free", 0, 0, false, 3, &[1], Switch(1), 0),
            ("none: a fault is final", 0, 0, true, 0, &[1], Exhausted, 0),
            ("none: a neighbour's", 0, 0, false, 0, &[1], Stay, 0),
            ("one is allowed", 0, 0, true, 1, &[1], Switch(1), 1),
            ("one was", 1, 1, true, 1, &[0], Exhausted, 1),
        ];
        for (name, rank, used, faulted, budget, usable, decision, then) in cases {
            let mut failover = Failover {
                rank,
                used,
                faulted,
                ..Failover::new(rank)
            };
            let decided = failover.decide(budget, 3, |rank| usable.contains(rank));
            assert_eq!((decided, failover.used()), (decision, then), "{name}");
            if let Switch(to) = decision {
                assert_eq!((failover.rank(), failover.faulted), (to, false), "{name}");
            }
        }
    }

    #[test]
    fn a_fault_counts_once_for_each_transport() {
        let mut failover = Failover::new(0);
        failover.handle_fault();
        failover.handle_fault();
        assert_eq!(failover.decide(3, 2, |_| true), Switch(1));
        assert_eq!(failover.decide(3, 2, |_| true), Switch(0));
        assert_eq!(failover.used(), 1);
    }

    #[test]
    fn who_has_nowhere_to_go_does_not_stay_with_lanes_that_carry_nothing() {
        let mut failover = Failover::new(0);
        let round = |failover: &mut Failover| {
            failover.handle_fault();
            failover.handle_barren(Cause::Flushed);
            failover.decide(3, 1, |_| false)
        };
        for _ in 0..BARREN_ROUNDS_MAX {
            assert_eq!(round(&mut failover), Stay);
        }
        // What is looked at twice counts once, and bytes that arrive begin the count anew.
        assert_eq!(failover.decide(3, 1, |_| false), Stay);
        failover.handle_progress();
        for _ in 0..BARREN_ROUNDS_MAX {
            assert_eq!(round(&mut failover), Stay);
        }
        assert_eq!(round(&mut failover), Decision::Barren(Cause::Flushed));
    }

    quickcheck! {
        fn own_switches_keep_to_the_budget_and_usable_ranks(budget: u8, ranks: u8, steps: Vec<(bool, u8)>) -> bool {
            let (budget, ranks) = (budget % 5, ranks % 5);
            let mut failover = Failover::new(0);
            steps.into_iter().all(|(faults, usable)| {
                if faults { failover.handle_fault() }
                let before = failover;
                let is_usable = |rank: &u8| usable >> rank & 1 == 1;
                let others = (0..ranks).filter(|rank| *rank != before.rank).any(|rank| is_usable(&rank));
                let legal = match failover.decide(budget, ranks, is_usable) {
                    Switch(to) => {
                        to == failover.rank && to < ranks && to != before.rank && is_usable(&to)
                            && failover.used == before.used + u8::from(before.faulted)
                    }
                    Exhausted => others && before.faulted && before.used >= budget && failover == before,
                    Stay => (!others || budget == 0) && failover == before,
                    Decision::Barren(_) => false,
                };
                legal && failover.used <= budget
            })
        }
    }
}
