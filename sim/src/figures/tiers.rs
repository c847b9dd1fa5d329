//! Figure 6: writes of a GPU that has one near rail and three farther ones.

use polyrail_core::rail::select::Policy;

use super::fabric::{KIB, Load, MIB, duration_ms, gpu_tiers, scenario};
use super::{Axis, Cell, Chart, Figure, P99, Plan, Point, Seen, Statement, THROUGHPUT};
use super::{p99, throughput};

/// For GPUs Mooncake TE and UCCL-P2P use the near rail alone.
const POLICIES: [Policy; 4] = [
    Policy::FixedTier1,
    Policy::BestTwo,
    Policy::Documented,
    Policy::Spray,
];
const BLOCKS: [u64; 7] = [
    16 * KIB,
    64 * KIB,
    256 * KIB,
    MIB,
    4 * MIB,
    16 * MIB,
    64 * MIB,
];
const WRITES: &str = "writes";

pub(super) const PLAN: Plan = Plan {
    name: "6",
    cells,
    make,
};

fn cells() -> Vec<Cell> {
    let fabric = gpu_tiers();
    let cell = |policy: Policy, block: u64| Cell {
        group: WRITES,
        x: block as f64,
        policy,
        text: scenario(
            duration_ms(block),
            1,
            &fabric,
            &[Load::new("write", block, 1)],
        ),
    };
    let all = POLICIES.iter();
    all.flat_map(|policy| BLOCKS.map(|block| cell(*policy, block)))
        .collect()
}

fn near_share(point: &Point) -> f64 {
    point.shares.first().copied().unwrap_or(0.0)
}

fn make(seen: &Seen) -> Figure {
    let chart = |y, of| Chart {
        y,
        x: Axis::Block,
        curves: seen.curves(WRITES, &POLICIES, of),
    };
    let rates = seen.ratios(WRITES, Policy::FixedTier1, MIB as f64, throughput);
    let tails = seen.ratios(WRITES, Policy::FixedTier1, MIB as f64, p99);
    let shares: Vec<f64> = seen.of(WRITES, Policy::Spray).map(near_share).collect();
    let (small, large) = (shares.first(), shares.last());
    let (small, large) = (small.copied().unwrap_or(0.0), large.copied().unwrap_or(0.0));
    Figure {
        name: PLAN.name,
        title: "Writes of a GPU, by size",
        fabric: "One request at a time from a GPU with one near rail of 200 Gb/s, and three farther ones that share 320 Gb/s and \
                 take 2 µs more.",
        charts: vec![
            chart(THROUGHPUT, throughput),
            chart(P99, p99),
            chart("part of the bytes on the near rail", near_share),
        ],
        statements: vec![
            Statement::new(
                "Large blocks have more throughput than over the near rail alone.",
                rates.least > 1.0,
                format!("from 1 MiB on {}", rates.words()),
            ),
            Statement::new(
                "Their 99th percentile is lower.",
                tails.most < 1.0,
                format!("from 1 MiB on {}", tails.words()),
            ),
            Statement::new(
                "Small blocks stay on the near rail.",
                small > 0.95,
                format!("{small:.3} of blocks of 16 KiB"),
            ),
            Statement::new(
                "Of large ones about half the bytes are on the near rail, and the rest is spread over the farther ones.",
                (0.45..=0.55).contains(&large),
                format!("{large:.3} of blocks of 64 MiB"),
            )
            .but(
                "The near rail has 25 of the 65 GB/s that this GPU reaches: 0.385 of them is what ends first. The paper does \
                 not say what its farther rails reach together.",
            ),
        ],
    }
}
