//! No panic: choosing a rail, as the baselines do.
#![cfg_attr(target_os = "none", no_std, no_main)]

use core::hint::black_box;

use polyrail_core::path::class::RailClass;
use polyrail_core::plan::{PLAN_RAILS_MAX, PlanRail};
use polyrail_core::rail::select::{self, Candidate, Policy, Usable};
use polyrail_core::time::Duration;
use polyrail_core::units::{RailId, Rate};

type Rails = heapless::Vec<Usable, PLAN_RAILS_MAX>;

#[inline(never)]
fn least_predicted(candidates: &[Candidate]) -> Option<usize> {
    select::least_predicted(candidates)
}

#[inline(never)]
fn round_robin(candidates: &[Candidate], cursor: RailId) -> Option<usize> {
    select::round_robin(candidates, cursor)
}

#[inline(never)]
fn retain_wanted(policy: Policy, rails: &mut Rails) {
    select::retain_wanted(policy, rails);
}

fn choose() {
    let candidate = Candidate {
        rail: RailId(0),
        tier: 0,
        has_room: true,
        predicted: Duration::ZERO,
    };
    let candidates = [candidate; 2];
    black_box(least_predicted(black_box(&candidates)));
    black_box(round_robin(black_box(&candidates), black_box(RailId(0))));
}

fn retain() {
    let usable = Usable {
        rail: PlanRail {
            rail: RailId(0),
            tier: 0,
            class: RailClass::PRIMARY,
        },
        rate_nominal: Rate::SLOWEST,
    };
    let mut rails = black_box(Rails::from([usable; 3]));
    retain_wanted(black_box(Policy::BestTwo), &mut rails);
    black_box(rails);
}

polyrail_tests_bare::no_panic!(choose, retain);
