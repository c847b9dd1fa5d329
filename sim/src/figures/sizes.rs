//! Figure 5: reads and writes between hosts by size of block.

use polyrail_core::rail::select::Policy;

use super::fabric::{KIB, Load, MIB, duration_ms, eight_rails, scenario};
use super::{Axis, COMPETITORS, Cell, Chart, Figure, Plan, Seen, Statement, p99, throughput};

const BLOCKS: [u64; 8] = [
    4 * KIB,
    16 * KIB,
    64 * KIB,
    256 * KIB,
    MIB,
    4 * MIB,
    16 * MIB,
    64 * MIB,
];
const OPS: [&str; 2] = ["read", "write"];

pub(super) const PLAN: Plan = Plan {
    name: "5",
    cells,
    make,
};

fn cells() -> Vec<Cell> {
    let fabric = eight_rails(200);
    let mut cells = Vec::new();
    for op in OPS {
        for policy in COMPETITORS {
            for block in BLOCKS {
                let near = Load::new(op, block, 6);
                let far = Load {
                    numa: Some(1),
                    ..Load::new(op, block, 2)
                };
                cells.push(Cell {
                    group: op,
                    x: block as f64,
                    policy,
                    text: scenario(duration_ms(block), 8, &fabric, &[near, far]),
                });
            }
        }
    }
    cells
}

fn make(seen: &Seen) -> Figure {
    let chart = |y, op, of| Chart {
        y,
        x: Axis::Block,
        curves: seen.curves(op, &COMPETITORS, of),
    };
    let large = MIB as f64;
    let ahead = |op| {
        let turns = seen.ratios(op, Policy::RoundRobin, large, throughput);
        let two = seen.ratios(op, Policy::BestTwo, large, throughput);
        (turns, two)
    };
    let statement = |paper, op| {
        let (turns, two) = ahead(op);
        Statement::new(
            paper,
            turns.least >= 1.0 && turns.most > 1.05,
            format!(
                "from 1 MiB on {} round-robin, and {} best-two",
                turns.words(),
                two.words()
            ),
        )
    };
    let tails = OPS.map(|op| seen.ratios(op, Policy::RoundRobin, large, p99));
    let tail = tails[0].most.max(tails[1].most);
    let two = OPS.map(|op| ahead(op).1.least);
    Figure {
        name: PLAN.name,
        title: "Reads and writes between hosts, by size",
        fabric: "Eight threads over eight rails of 200 Gb/s, four near each socket; six of them have their memory on the first \
                 socket and two on the second, and the other socket's rails take 2 µs more.",
        charts: vec![
            chart("throughput of reads, GB/s", "read", throughput),
            chart("throughput of writes, GB/s", "write", throughput),
            chart("p99 of a read, µs", "read", p99),
            chart("p99 of a write, µs", "write", p99),
        ],
        statements: vec![
            statement(
                "TENT has more throughput in reads than Mooncake TE.",
                "read",
            ),
            statement(
                "TENT has more throughput in writes than Mooncake TE.",
                "write",
            ),
            Statement::new(
                "Its 99th percentile is lower.",
                tail < 1.0,
                format!(
                    "from 1 MiB on p99 is {} (reads) and {} (writes) that of round-robin",
                    tails[0].words(),
                    tails[1].words()
                ),
            ),
            Statement::new(
                "With large blocks it is ahead of engines that use one or two rails.",
                two[0] > 1.0 && two[1] > 1.0,
                format!(
                    "at least {:.2} (reads) and {:.2} (writes) times best-two",
                    two[0], two[1]
                ),
            ),
        ],
    }
}
