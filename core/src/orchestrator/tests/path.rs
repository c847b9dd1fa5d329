//! Peers that path isolation steers: one primary rail or more, then supplementary ones.

use super::*;
use crate::path::config::{PathConfig, PathMode};
use crate::path::island::PathClass;
use crate::path::share::Shares;
use crate::plan::PlanPath;
use PathClass::{InterIsland, IntraIsland};
use PathMode::{Advanced, Vanilla};

const MIB: u64 = 1 << 20;
const POLICIES: [Policy; 3] = [Policy::Spray, Policy::RoundRobin, Policy::Documented];

fn config(mode: PathMode) -> PathConfig {
    PathConfig {
        mode,
        ..PathConfig::DEFAULT
    }
}

impl World<'_> {
    /// One with a rail of each of these classes.
    fn steered(policy: Policy, classes: &[u8], config: PathConfig, class: PathClass) -> Self {
        let mut world = World::new(policy, classes.len() as u16);
        let mut plan = world.core.plan(PLAN).expect("the plan").clone();
        for (rail, class) in plan.transports[0].rails.iter_mut().zip(classes) {
            rail.class = RailClass(*class);
        }
        plan.path = Some(PlanPath { config, class });
        assert!(world.core.install_plan(Instant::ZERO, PLAN, &plan));
        world
    }

    /// How often lanes were opened on a rail.
    pub(super) fn opened(&self, rail: u16) -> usize {
        let lane = format!("Open {{ lane: {:?},", LaneId::new(0, RailId(rail)));
        self.log.iter().filter(|line| line.contains(&lane)).count()
    }

    fn bytes(&self, rails: &[u16]) -> Vec<u64> {
        rails.iter().map(|rail| self.done_bytes(*rail)).collect()
    }

    /// Runs, while an agent says every 10 ms that the supplementary class is to have this share.
    fn run_hinted(&mut self, share: u32, until: Instant) {
        while self.now < until {
            let hint = Some(Shares::pair(share));
            self.core.handle_hint(self.now, PEER, hint);
            self.run((self.now + Duration::from_millis(10)).min(until));
        }
    }
}

#[test]
fn inside_an_island_the_supplementary_rail_takes_all() {
    for policy in POLICIES {
        let mut world = World::steered(policy, &[0, 1], config(Vanilla), IntraIsland);
        world.submit(0, Op::Write, 16 * MIB);
        world.submit(1, Op::Read, 5);
        world.run_until_reported(2, Duration::from_secs(1));
        assert_eq!(world.reports[&0].status, Status::Completed, "{policy:?}");
        assert_eq!(world.bytes(&[0, 1]), [0, 16 * MIB + 5], "{policy:?}");
        assert_eq!((world.opened(0), world.opened(1)), (0, 1), "{policy:?}");
        assert_eq!(world.core.hint_reads(PEER), 0, "nobody asks in this mode");
    }
}

#[test]
fn between_islands_supplementary_lanes_are_never_opened() {
    for policy in POLICIES {
        let classes = [1, 0, 1, 2];
        let mut world = World::steered(policy, &classes, config(Vanilla), InterIsland);
        world.submit(0, Op::Write, 16 * MIB);
        world.run(ms(5));
        // Nor when nothing else is left: bytes there would arrive nowhere.
        world.links[1].cut = true;
        world.reset_rail(1);
        world.submit(1, Op::Write, MIB);
        world.run(ms(1_000));
        assert!(!world.reports.contains_key(&1), "{policy:?}");
        world.links[1].cut = false;
        world.run_until_reported(2, Duration::from_secs(20));
        let statuses = [0, 1].map(|tag| world.reports[&tag].status);
        assert_eq!(statuses, [Status::Completed; 2], "{policy:?}");
        for rail in [0, 2, 3] {
            assert_eq!(world.opened(rail), 0, "{policy:?}, rail {rail}");
        }
        assert!(world.opened(1) >= 2, "{policy:?}");
    }
}

#[test]
fn without_a_path_classes_mean_nothing() {
    let mut world = World::new(Policy::Spray, 2);
    let mut plan = world.core.plan(PLAN).expect("the plan").clone();
    plan.transports[0].rails[0].class = RailClass(200);
    assert!(world.core.install_plan(Instant::ZERO, PLAN, &plan));
    world.submit(0, Op::Write, 16 * MIB);
    world
        .core
        .handle_hint(world.now, PEER, Some(Shares::pair(0)));
    world.run_until_reported(1, Duration::from_secs(1));
    assert!(world.bytes(&[0, 1]).iter().all(|bytes| *bytes > MIB));
}

#[test]
fn a_hint_moves_bytes_between_classes_while_they_flow() {
    let mut world = World::steered(Policy::Spray, &[0, 1], config(Advanced), InterIsland);
    let mut tag = 0;
    for share in [512, 256, 0, 1024, 768] {
        let before = world.bytes(&[0, 1]);
        // Little at once, so that no class is ever without room.
        for _ in 0..64 {
            world.submit(tag, Op::Write, 2 * u64::from(SLICE));
            tag += 1;
            let until = world.now + Duration::from_millis(1);
            world.run_hinted(share, until);
        }
        let after = world.bytes(&[0, 1]);
        let moved = [0, 1].map(|rail| after[rail] - before[rail]);
        let all = 64 * 2 * u64::from(SLICE);
        assert_eq!(moved.iter().sum::<u64>(), all);
        let target = all * u64::from(share) / 1024;
        // A slice for this share, and one for what the last one left.
        let slack = match share {
            0 | 1024 => 0,
            _ => 2 * u64::from(SLICE),
        };
        assert!(moved[1].abs_diff(target) <= slack, "{share}: {moved:?}");
    }
    assert!(world.core.hint_reads(PEER) >= 5 * 64);
}

#[test]
fn a_hint_that_nothing_hinders_holds_within_a_slice() {
    let strict = PathConfig {
        hint_strict: true,
        ..config(Advanced)
    };
    for policy in [Policy::Spray, Policy::RoundRobin] {
        for share in [100, 512, 700, 1000] {
            let mut world = World::steered(policy, &[0, 1, 1], strict, IntraIsland);
            for tag in 0..4 {
                world.submit(tag, Op::Write, 16 * MIB);
            }
            world.run_hinted(share, ms(200));
            let bytes = world.bytes(&[0, 1, 2]);
            assert_eq!(bytes.iter().sum::<u64>(), 64 * MIB, "{policy:?} {share}");
            let target = 64 * MIB * u64::from(share) / 1024;
            let supplementary = bytes[1] + bytes[2];
            assert!(
                supplementary.abs_diff(target) <= u64::from(SLICE),
                "{policy:?} {share}: {supplementary}, not {target}"
            );
            // In turn over all classes, one may always be the same rail's.
            let all_rails = bytes[1] > 0 && bytes[2] > 0;
            assert!(all_rails || policy != Policy::Spray, "{policy:?} {share}");
        }
    }
}

#[test]
fn requests_of_one_slice_each_follow_a_hint_too() {
    let mut world = World::steered(Policy::Spray, &[0, 1], config(Advanced), IntraIsland);
    for tag in 0..40 {
        world.submit(tag, Op::Write, u64::from(SLICE));
        let until = world.now + Duration::from_millis(2);
        world.run_hinted(256, until);
        assert!(world.reports.contains_key(&tag));
    }
    let slice = u64::from(SLICE);
    let [primary, supplementary] = [0, 1].map(|rail| world.done_bytes(rail));
    assert_eq!(primary + supplementary, 40 * slice);
    assert!(
        supplementary.abs_diff(10 * slice) <= slice,
        "{supplementary}"
    );
}

#[test]
fn nobody_waits_for_a_class_without_room_unless_told_to() {
    // (strict, whether more than its share goes over the primary rail)
    for (hint_strict, yields) in [(false, true), (true, false)] {
        let config = PathConfig {
            hint_strict,
            ..config(Advanced)
        };
        let mut world = World::steered(Policy::Spray, &[0, 1], config, InterIsland);
        world.links[1].rate = Rate::from_bytes_per_sec(10_000_000);
        world.submit(0, Op::Write, 64 * MIB);
        world.run_hinted(512, ms(150));
        let [primary, supplementary] = [0, 1].map(|rail| world.done_bytes(rail));
        let is_more = primary > 4 * supplementary;
        assert_eq!(is_more, yields, "{primary} and {supplementary}");
    }
}

#[test]
fn without_a_fresh_hint_the_built_in_policy_holds() {
    for (class, rail) in [(IntraIsland, 1), (InterIsland, 0)] {
        let mut world = World::steered(Policy::Spray, &[0, 1], config(Advanced), class);
        let send = |world: &mut World<'_>, tag| {
            let before = [world.done_bytes(0), world.done_bytes(1)];
            world.submit(tag, Op::Write, 8 * MIB);
            world.run(world.now + Duration::from_millis(100));
            assert!(world.reports.contains_key(&tag));
            [0, 1].map(|rail| world.done_bytes(rail as u16) - before[rail])
        };
        let mut all_on_one = [0; 2];
        all_on_one[rail] = 8 * MIB;
        assert_eq!(send(&mut world, 0), all_on_one, "{class:?}: nothing said");
        world
            .core
            .handle_hint(world.now, PEER, Some(Shares::pair(512)));
        let shared = send(&mut world, 1);
        assert!(
            shared.iter().all(|bytes| *bytes > MIB),
            "{class:?}: {shared:?}"
        );
        world.run(world.now + PathConfig::DEFAULT.hint_age_max);
        assert_eq!(send(&mut world, 2), all_on_one, "{class:?}: too old");
        world
            .core
            .handle_hint(world.now, PEER, Some(Shares::pair(512)));
        world.core.handle_hint(world.now, PEER, None);
        assert_eq!(send(&mut world, 3), all_on_one, "{class:?}: taken back");
    }
}

#[test]
fn health_overrides_the_preferred_class_until_it_is_back() {
    for policy in POLICIES {
        let mut world = World::steered(policy, &[0, 1, 1], config(Vanilla), IntraIsland);
        world.submit(0, Op::Write, 4 * MIB);
        world.run_until_reported(1, Duration::from_secs(1));
        assert_eq!(world.done_bytes(0), 0, "{policy:?}");
        for rail in [1, 2] {
            world.links[usize::from(rail)].cut = true;
            world.reset_rail(rail);
        }
        world.submit(1, Op::Write, 4 * MIB);
        world.run_until_reported(2, Duration::from_secs(1));
        assert_eq!(world.reports[&1].status, Status::Completed, "{policy:?}");
        assert!(
            world.done_bytes(0) >= 4 * MIB - u64::from(SLICE),
            "{policy:?}"
        );
        world.links[1].cut = false;
        world.run(world.now + Duration::from_secs(10));
        let before = world.done_bytes(0);
        world.submit(2, Op::Write, 4 * MIB);
        world.run_until_reported(3, Duration::from_secs(1));
        assert_eq!(world.done_bytes(0), before, "{policy:?}: it is back");
    }
}

#[test]
fn a_preferred_rail_that_goes_silent_is_found_out() {
    // Nothing else of its class could show that it is the rail, not the peer: the copies go to the other class.
    let mut world = World::steered(Policy::Spray, &[0, 1], config(Vanilla), IntraIsland);
    world.submit(0, Op::Write, 64 * MIB);
    world.run(ms(10));
    world.links[1].cut = true;
    world.run_until_reported(1, Duration::from_secs(5));
    assert_eq!(world.reports[&0].status, Status::Completed);
    assert!(world.done_bytes(0) > MIB);
}

#[test]
fn small_transfers_to_other_islands_stay_on_the_primary_rail() {
    let mut world = World::steered(Policy::Spray, &[0, 1], config(Advanced), InterIsland);
    for tag in 0..8 {
        world.submit(tag, Op::Write, 64 << 10);
    }
    world.run_hinted(1024, ms(50));
    assert_eq!(world.bytes(&[0, 1]), [8 * (64 << 10), 0]);
    assert_eq!((world.opened(1), world.core.hint_reads(PEER)), (0, 0));
    world.submit(8, Op::Write, (64 << 10) + 1);
    let until = world.now + Duration::from_millis(50);
    world.run_hinted(1024, until);
    assert_eq!(world.done_bytes(1), (64 << 10) + 1);
}

#[test]
fn a_plan_that_is_installed_again_forgets_no_claims_and_another_path_does() {
    let mut world = World::steered(Policy::Spray, &[0, 1], config(Advanced), IntraIsland);
    let plan = world.core.plan(PLAN).expect("the plan").clone();
    world.submit(0, Op::Write, MIB);
    world.run_hinted(512, ms(20));
    let reads = world.core.hint_reads(PEER);
    assert!(reads > 0);
    assert!(world.core.install_plan(world.now, PLAN, &plan));
    assert_eq!(world.core.hint_reads(PEER), reads);
    let mut other = plan;
    other.path = Some(PlanPath {
        config: config(Vanilla),
        class: IntraIsland,
    });
    assert!(world.core.install_plan(world.now, PLAN, &other));
    assert_eq!(world.core.hint_reads(PEER), 0);
}

#[test]
fn an_open_lane_that_the_policy_does_not_want_keeps_none_closed() {
    let mut world = World::steered(Policy::BestTwo, &[0, 0, 0], config(Advanced), InterIsland);
    let health = |rail| world.core.shared.health(RailId(rail)).expect("a rail");
    for rail in [0, 1] {
        assert!(
            health(rail).handle_incident(Instant::ZERO, crate::rail::health::Incident::Silence)
        );
    }
    world.submit(0, Op::Write, 5);
    world.run_until_reported(1, Duration::from_millis(5));
    assert_eq!([0, 1, 2].map(|rail| world.opened(rail)), [0, 0, 1]);
    // Another worker finds the two better ones good again.
    for rail in [0, 1] {
        let health = world.core.shared.health(RailId(rail)).expect("a rail");
        assert!(health.claim_probe(ms(11), 1) && health.handle_probe_good(ms(11), 1));
    }
    world.submit(1, Op::Write, 5);
    world.run_until_reported(2, Duration::from_millis(50));
    assert_eq!(world.reports.len(), 2);
}
