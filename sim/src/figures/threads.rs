//! Figure 7: reads of 4 MiB by more and more threads.

use polyrail_core::rail::select::Policy;

use super::fabric::{Load, MIB, eight_rails, scenario};
use super::{Axis, COMPETITORS, Cell, Chart, Figure, P99, Plan, Seen, Statement, THROUGHPUT};
use super::{p99, throughput};

const THREADS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
const READS: &str = "reads";

pub(super) const PLAN: Plan = Plan {
    name: "7",
    cells,
    make,
};

fn cells() -> Vec<Cell> {
    let fabric = eight_rails(200);
    let cell = |policy: Policy, threads: u64| {
        let near = Load::new("read", 4 * MIB, threads.div_ceil(2));
        let far = Load {
            numa: Some(1),
            ..Load::new("read", 4 * MIB, threads / 2)
        };
        let loads = [near, far];
        let loads = &loads[..if threads > 1 { 2 } else { 1 }];
        Cell {
            group: READS,
            x: threads as f64,
            policy,
            text: scenario(20, threads.min(16), &fabric, loads),
        }
    };
    let all = COMPETITORS.iter();
    all.flat_map(|policy| THREADS.map(|threads| cell(*policy, threads)))
        .collect()
}

fn make(seen: &Seen) -> Figure {
    let chart = |y, of| Chart {
        y,
        x: Axis::Count("threads"),
        curves: seen.curves(READS, &COMPETITORS, of),
    };
    let spray: Vec<(f64, f64)> = seen
        .of(READS, Policy::Spray)
        .map(|point| (point.x, point.gbytes_per_sec))
        .collect();
    let most = spray.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let at = |threads: f64| {
        let found = spray.iter().find(|(x, _)| *x == threads);
        found.map_or(0.0, |(_, rate)| *rate)
    };
    let turns = seen.ratios(READS, Policy::RoundRobin, 16.0, throughput);
    let two = seen.ratios(READS, Policy::BestTwo, 16.0, throughput);
    Figure {
        name: PLAN.name,
        title: "More and more threads",
        fabric: "Reads of 4 MiB over eight rails of 200 Gb/s, half of the threads with memory on each socket; the other socket's \
                 rails take 2 µs more.",
        charts: vec![chart(THROUGHPUT, throughput), chart(P99, p99)],
        statements: vec![
            Statement::new(
                "Sixteen threads fill the rails.",
                at(16.0) >= 0.97 * most,
                format!(
                    "{:.1} GB/s with 16 threads, {most:.1} at most, {:.1} with one",
                    at(16.0),
                    at(1.0)
                ),
            ),
            Statement::new(
                "It stays ahead of NIXL as threads are added.",
                two.least > 1.0,
                format!("from 16 threads on {} best-two", two.words()),
            ),
            Statement::new(
                "It is ahead of Mooncake TE when all GPUs move bytes.",
                turns.most > 1.05,
                format!("from 16 threads on {} round-robin", turns.words()),
            )
            .but(
                "With so many threads and equal rails taking turns fills them too; what costs Mooncake TE there is its threads, \
                 which the simulator does not have.",
            ),
        ],
    }
}
