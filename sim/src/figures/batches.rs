//! Figure 9, second: one thread with larger and larger batches.

use polyrail_core::rail::select::Policy;

use super::fabric::{Load, MIB, eight_rails, scenario};
use super::{Axis, COMPETITORS, Cell, Chart, Figure, Plan, Seen, Statement, THROUGHPUT};
use super::{p90, throughput};

const BATCHES: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const WRITES: &str = "writes";

pub(super) const PLAN: Plan = Plan {
    name: "9-batches",
    cells,
    make,
};

fn cells() -> Vec<Cell> {
    let fabric = eight_rails(100);
    let cell = |policy: Policy, batch: u64| {
        let load = Load {
            batch,
            ..Load::new("write", 4 * MIB, 1)
        };
        Cell {
            group: WRITES,
            x: batch as f64,
            policy,
            text: scenario(60 + 2 * batch, 1, &fabric, &[load]),
        }
    };
    let all = COMPETITORS.iter();
    all.flat_map(|policy| BATCHES.map(|batch| cell(*policy, batch)))
        .collect()
}

fn make(seen: &Seen) -> Figure {
    let chart = |y, of| Chart {
        y,
        x: Axis::Count("requests of a batch"),
        curves: seen.curves(WRITES, &COMPETITORS, of),
    };
    let turns = seen.ratios(WRITES, Policy::RoundRobin, 0.0, throughput);
    let tails = seen.ratios(WRITES, Policy::RoundRobin, 0.0, p90);
    let two = seen.ratios(WRITES, Policy::BestTwo, 0.0, throughput);
    let less = (1.0 - tails.mean) * 100.0;
    Figure {
        name: PLAN.name,
        title: "Larger and larger batches",
        fabric: "One thread writes batches of 4 MiB from memory of the first socket: four rails of 200 Gb/s near it, and four of \
                 100 Gb/s with 2 µs more on the second.",
        charts: vec![
            chart(THROUGHPUT, throughput),
            chart("p90 of a batch, µs", p90),
        ],
        statements: vec![
            Statement::new(
                "1.16 to 2.72 times the throughput of Mooncake TE.",
                turns.least >= 1.16,
                format!("{} round-robin", turns.words()),
            ),
            Statement::new(
                "The 90th percentile is 27 % lower in the mean.",
                less >= 27.0,
                format!("{less:.0} % lower than round-robin's"),
            ),
            Statement::new(
                "NIXL uses one rail here, and stays behind.",
                two.least > 1.0,
                format!("{} best-two", two.words()),
            ),
        ],
    }
}
