//! Figure 9, first: how much it matters what `documented` multiplies the predicted time of a farther rail by.

use polyrail_core::rail::select::Policy;

use super::fabric::{KIB, Load, MIB, duration_ms, gpu_tiers, scenario};
use super::{Axis, Cell, Chart, Curve, Figure, P99, Plan, Point, Seen, Statement, THROUGHPUT};
use super::{p99, throughput};

/// Names of groups, and the penalty of each.
const PENALTIES: [(&str, f64); 5] = [
    ("penalty 1", 1.0),
    ("penalty 3", 3.0),
    ("penalty 5", 5.0),
    ("penalty 10", 10.0),
    ("penalty 100", 100.0),
];
const BLOCKS: [u64; 6] = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB];

pub(super) const PLAN: Plan = Plan {
    name: "9-penalties",
    cells,
    make,
};

fn cells() -> Vec<Cell> {
    let cell = |(group, penalty): (&'static str, f64), policy: Policy, block: u64| {
        let limits = format!(
            "[limits]\nnuma_penalties = [1.0, {penalty:.1}, {penalty:.1}]\n{}",
            gpu_tiers()
        );
        let load = [Load::new("read", block, 1)];
        Cell {
            group,
            x: block as f64,
            policy,
            text: scenario(duration_ms(block), 1, &limits, &load),
        }
    };
    let documented = PENALTIES
        .iter()
        .flat_map(|penalty| BLOCKS.map(|block| cell(*penalty, Policy::Documented, block)));
    let spray = BLOCKS.map(|block| cell(PENALTIES[0], Policy::Spray, block));
    documented.chain(spray).collect()
}

fn curves(seen: &Seen, y: fn(&Point) -> f64) -> Vec<Curve> {
    let points = |group, policy| -> Vec<(f64, f64)> {
        seen.of(group, policy)
            .map(|point| (point.x, y(point)))
            .collect()
    };
    let documented = PENALTIES.iter().map(|(group, _)| Curve {
        name: format!("documented, {group}"),
        points: points(group, Policy::Documented),
    });
    let spray = Curve {
        name: Policy::Spray.name().to_owned(),
        points: points(PENALTIES[0].0, Policy::Spray),
    };
    documented.chain([spray]).collect()
}

fn make(seen: &Seen) -> Figure {
    let chart = |y, of| Chart {
        y,
        x: Axis::Block,
        curves: curves(seen, of),
    };
    // Of the largest blocks, where it matters most.
    let tail = |group| {
        let last = seen.of(group, Policy::Documented).last();
        last.map_or(f64::INFINITY, |point| point.p99_us)
    };
    let tails = PENALTIES.map(|(group, _)| tail(group));
    let best = tails.iter().copied().fold(f64::INFINITY, f64::min);
    let share = seen.of("penalty 100", Policy::Documented).last();
    let share = share.and_then(|point| point.shares.first().copied());
    let share = share.unwrap_or(0.0);
    let spray = seen.of(PENALTIES[0].0, Policy::Spray).last();
    let spray = spray.map_or(f64::INFINITY, |point| point.p99_us);
    Figure {
        name: PLAN.name,
        title: "The penalty of farther rails",
        fabric: "One read at a time into a GPU with one near rail of 200 Gb/s, and three farther ones that share 320 Gb/s and \
                 take 2 µs more.",
        charts: vec![chart(P99, p99), chart(THROUGHPUT, throughput)],
        statements: vec![
            Statement::new(
                "With a penalty that is too large hardly anything but the near rail is used.",
                share > 0.9,
                format!("{share:.3} of the bytes of blocks of 64 MiB with penalty 100"),
            ),
            Statement::new(
                "Penalties about 3 are best.",
                tails[1] <= best * 1.02,
                format!(
                    "p99 of 64 MiB with penalties 1, 3, 5, 10 and 100: {} µs",
                    tails.map(|tail| format!("{tail:.0}")).join(", ")
                ),
            )
            .but(
                "The farther rails are 2 µs farther here, and as fast. So 1 is best; with farther rails of half the rate (the \
                 fabric of figure 2) 10 is.",
            ),
            Statement::new(
                "A wrong penalty costs little, as completions correct it.",
                tails[3] <= best * 1.25,
                format!("penalty 10 has {:.2} times the best p99", tails[3] / best),
            )
            .but(
                "The penalty multiplies a time that is mostly the bytes', and no completion changes the penalty: the farther \
                 rails start as much later.",
            ),
            Statement::new(
                "No cluster needs tuning of its own.",
                spray <= best * 1.05,
                format!(
                    "spray, which knows no penalty, has {:.2} times the best p99",
                    spray / best
                ),
            ),
        ],
    }
}
