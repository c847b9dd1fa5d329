//! Which rails a policy uses, and how the baselines choose among them.
//!
//! Pure functions over a snapshot: no state but a cursor, so that a table can test them and a policy can be
//! swapped. `Spray` is ours, in [`super::spray`]; `RoundRobin` is the baseline mode of the TENT slice-spraying document, and
//! `Documented` its smart mode, in [`super::documented`]. `FixedTier1` and `BestTwo` say what a rail fixed
//! by distance or by its data sheet costs.

use crate::plan::{PLAN_RAILS_MAX, PlanRail};
use crate::time::Duration;
use crate::units::{RailId, Rate};

/// How rails are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Policy {
    /// The least predicted completion among rails with room, and only if waiting would not end sooner.
    #[default]
    Spray,
    /// Strictly in turn within the nearest tier.
    RoundRobin,
    /// Shares fixed when a request is submitted, by the smart mode of the TENT slice-spraying document.
    Documented,
    /// The least predicted completion within the nearest tier.
    FixedTier1,
    /// The least predicted completion among the two rails that are nominally the fastest.
    BestTwo,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Spray,
        Self::RoundRobin,
        Self::Documented,
        Self::FixedTier1,
        Self::BestTwo,
    ];

    /// The policy's name on command lines and in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spray => "spray",
            Self::RoundRobin => "round-robin",
            Self::Documented => "documented",
            Self::FixedTier1 => "fixed-tier1",
            Self::BestTwo => "best-two",
        }
    }
}

/// A healthy rail of a plan, whether or not it has a lane yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usable {
    /// The rail and its tier.
    pub rail: PlanRail,
    /// Its rate as installed.
    pub rate_nominal: Rate,
}

/// Keeps the rails that a policy uses as long as they are healthy; only these get lanes.
pub fn retain_wanted(policy: Policy, rails: &mut heapless::Vec<Usable, PLAN_RAILS_MAX>) {
    let were_some = !rails.is_empty();
    match policy {
        Policy::Spray | Policy::Documented => {}
        Policy::RoundRobin | Policy::FixedTier1 => {
            let nearest = rails.iter().map(|usable| usable.rail.tier).min();
            rails.retain(|usable| Some(usable.rail.tier) == nearest);
        }
        Policy::BestTwo => retain_fastest_two(rails),
    }
    debug_assert!(!rails.is_empty() || !were_some, "{policy:?} leaves no rail");
}

/// Keeps the two rails that are nominally the fastest, the first ones of equals. Not the learned rates: noise
/// would take turns with which two they are, and all rails would be used.
fn retain_fastest_two(rails: &mut heapless::Vec<Usable, PLAN_RAILS_MAX>) {
    let mut fastest: [Option<Usable>; 2] = [None; 2];
    for usable in rails.iter().copied() {
        let beats = |other: Option<Usable>| {
            other.is_none_or(|other| {
                usable.rate_nominal != other.rate_nominal
                    && usable.rate_nominal.max(other.rate_nominal) == usable.rate_nominal
            })
        };
        let [first, second] = fastest;
        if beats(first) {
            fastest = [Some(usable), first];
        } else if beats(second) {
            fastest = [first, Some(usable)];
        }
    }
    rails.retain(|usable| fastest.contains(&Some(*usable)));
}

/// A healthy rail with an open lane, as the baselines see it when a slice is to be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The rail.
    pub rail: RailId,
    /// Distance from the memory, 0 nearest.
    pub tier: u8,
    /// Whether it can take the slice now: window, credits and send queue.
    pub has_room: bool,
    /// How long it would take to finish the slice.
    pub predicted: Duration,
}

/// Chooses the least predicted completion among rails with room, whatever waiting would give.
pub fn least_predicted(candidates: &[Candidate]) -> Option<usize> {
    candidates
        .iter()
        .enumerate()
        .filter(|(_, candidate)| candidate.has_room)
        .min_by_key(|(_, candidate)| candidate.predicted)
        .map(|(index, _)| index)
}

/// Chooses in turn: the first rail behind `cursor` (by number, wrapping) in the nearest tier. If that one has
/// no room everything waits for it: that is what the baseline does, and what it costs.
pub fn round_robin(candidates: &[Candidate], cursor: RailId) -> Option<usize> {
    let tier = candidates.iter().map(|candidate| candidate.tier).min()?;
    let in_turn = |candidate: &Candidate| candidate.rail.0.wrapping_sub(cursor.0).wrapping_sub(1);
    let (index, next) = candidates
        .iter()
        .enumerate()
        .filter(|(_, candidate)| candidate.tier == tier)
        .min_by_key(|(_, candidate)| in_turn(candidate))?;
    next.has_room.then_some(index)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::path::class::RailClass;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    const GB: u64 = 1_000_000_000;

    /// A rail that would take so many microseconds.
    fn rail(number: u16, micros: u64) -> Candidate {
        Candidate {
            rail: RailId(number),
            tier: 0,
            has_room: true,
            predicted: Duration::from_micros(micros),
        }
    }

    fn full(candidate: Candidate) -> Candidate {
        Candidate {
            has_room: false,
            ..candidate
        }
    }

    fn far(candidate: Candidate) -> Candidate {
        Candidate {
            tier: 1,
            ..candidate
        }
    }

    #[test]
    fn round_robin_goes_in_turn_and_waits_for_a_full_rail() {
        let four = [rail(0, 3), rail(1, 3), rail(4, 900), rail(7, 3)];
        let mut cursor = RailId(0);
        let turns: Vec<u16> = (0..5)
            .map(|_| {
                cursor = four[round_robin(&four, cursor).unwrap()].rail;
                cursor.0
            })
            .collect();
        assert_eq!(turns, [1, 4, 7, 0, 1]);
        let blocked = [rail(0, 3), full(rail(1, 3))];
        assert_eq!(
            round_robin(&blocked, RailId(0)),
            None,
            "rail 1 is next and full"
        );
        let tiers = [far(rail(0, 3)), rail(1, 3)];
        assert_eq!(
            round_robin(&tiers, RailId(1)),
            Some(1),
            "only the nearest tier"
        );
        assert_eq!(round_robin(&[], RailId(0)), None);
    }

    #[test]
    fn least_predicted_never_waits_for_a_better_rail() {
        // (name, rails, choice)
        let cases = [
            ("nothing to choose from", Vec::new(), None),
            ("the least", Vec::from([rail(0, 40), rail(1, 10)]), Some(1)),
            (
                "the first of equals",
                Vec::from([rail(5, 7), rail(2, 7)]),
                Some(0),
            ),
            (
                "slow, but it has room",
                Vec::from([full(rail(0, 3)), rail(1, 90)]),
                Some(1),
            ),
            ("all full", Vec::from([full(rail(0, 3))]), None),
        ];
        for (name, rails, choice) in cases {
            assert_eq!(least_predicted(&rails), choice, "{name}");
        }
    }

    /// A rail of `rate` GB/s in a plan.
    fn usable(number: u16, tier: u8, rate: u64) -> Usable {
        Usable {
            rail: PlanRail {
                rail: RailId(number),
                tier,
                class: RailClass::PRIMARY,
            },
            rate_nominal: Rate::from_bytes_per_sec(rate * GB),
        }
    }

    #[test]
    fn fixed_policies_keep_to_their_rails() {
        use Policy::{BestTwo, Documented, FixedTier1, RoundRobin, Spray};
        let all = [
            usable(0, 1, 25),
            usable(1, 0, 10),
            usable(2, 2, 50),
            usable(3, 0, 25),
        ];
        let farther = [usable(4, 2, 25), usable(5, 1, 25), usable(6, 2, 25)];
        // (name, policy, healthy rails, those it uses)
        let cases = [
            ("spray", Spray, &all[..], &[0, 1, 2, 3][..]),
            ("documented", Documented, &all, &[0, 1, 2, 3]),
            ("round-robin, nearest", RoundRobin, &all, &[1, 3]),
            ("fixed, nearest", FixedTier1, &all, &[1, 3]),
            ("nearest healthy", FixedTier1, &farther, &[5]),
            ("two fastest, first of equals", BestTwo, &all, &[0, 2]),
            ("two of equals", BestTwo, &farther, &[4, 5]),
            ("only one", BestTwo, &farther[..1], &[4]),
            ("none", BestTwo, &[], &[]),
        ];
        for (name, policy, healthy, kept) in cases {
            let mut rails = healthy.iter().copied().collect();
            retain_wanted(policy, &mut rails);
            let rails: Vec<u16> = rails.iter().map(|usable| usable.rail.rail.0).collect();
            assert_eq!(rails, kept, "{name}");
        }
    }

    quickcheck! {
        fn best_two_keeps_two_that_none_left_out_beats(rates: Vec<u8>) -> bool {
            let mut rails: heapless::Vec<Usable, PLAN_RAILS_MAX> = rates.iter().take(PLAN_RAILS_MAX)
                .enumerate().map(|(i, rate)| usable(i as u16, 0, u64::from(*rate) + 1)).collect();
            let all = rails.clone();
            retain_wanted(Policy::BestTwo, &mut rails);
            let slowest = rails.iter().map(|usable| usable.rate_nominal.bytes_per_sec()).min();
            rails.len() == all.len().min(2) && all.iter().filter(|usable| !rails.contains(usable))
                .all(|usable| Some(usable.rate_nominal.bytes_per_sec()) <= slowest)
        }
    }
}
