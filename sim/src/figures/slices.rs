//! Figure 2: reads that are cut into slices of 1 MiB, by four threads over eight rails.

use polyrail_core::rail::select::Policy;

use super::fabric::{Load, MIB, duration_ms, eight_rails, scenario};
use super::{Axis, Cell, Chart, Curve, Figure, P99, Plan, Seen, Statement, THROUGHPUT};
use super::{p99, throughput};

const POLICIES: [Policy; 3] = [Policy::RoundRobin, Policy::Documented, Policy::Spray];
const BLOCKS: [u64; 6] = [2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 64 * MIB];
const READS: &str = "reads";

pub(super) const PLAN: Plan = Plan {
    name: "2",
    cells,
    make,
};

fn cells() -> Vec<Cell> {
    let fabric = format!("[limits]\nslice_bytes = {MIB}\n{}", eight_rails(100));
    let cell = |policy: Policy, block: u64| Cell {
        group: READS,
        x: block as f64,
        policy,
        text: scenario(
            duration_ms(block),
            4,
            &fabric,
            &[Load {
                numa: None,
                ..Load::new("read", block, 4)
            }],
        ),
    };
    let all = POLICIES.iter();
    all.flat_map(|policy| BLOCKS.map(|block| cell(*policy, block)))
        .collect()
}

fn make(seen: &Seen) -> Figure {
    let chart = |y, of| Chart {
        y,
        x: Axis::Block,
        curves: seen.curves(READS, &POLICIES, of),
    };
    let rates = seen.ratios(READS, Policy::RoundRobin, 0.0, throughput);
    let tails = seen.ratios(READS, Policy::RoundRobin, 0.0, p99);
    let loads = balance(seen);
    let spread = |name: Policy| {
        let curve = loads.iter().find(|curve| curve.name == name.name());
        let values = curve.into_iter().flat_map(|curve| curve.points.iter());
        values.map(|(_, value)| *value).fold(0.0, f64::max)
    };
    let (spray, turns) = (spread(Policy::Spray), spread(Policy::RoundRobin));
    Figure {
        name: PLAN.name,
        title: "Slices by turns, and by what rails are seen to do",
        fabric: "Reads by four threads that may use every rail, cut into slices of 1 MiB: four rails of 200 Gb/s, and four of \
                 100 Gb/s with 2 µs more.",
        charts: vec![
            chart(THROUGHPUT, throughput),
            chart(P99, p99),
            Chart {
                y: "bytes over rate, as a multiple of the mean",
                x: Axis::Number("rail"),
                curves: loads,
            },
        ],
        statements: vec![
            Statement::new(
                "Steering slices by queued bytes and completion times raises throughput.",
                rates.least > 1.0,
                format!("{} that of round-robin", rates.words()),
            ),
            Statement::new(
                "It lowers the tail's latency.",
                tails.most < 1.0,
                format!("p99 is {} that of round-robin", tails.words()),
            ),
            Statement::new(
                "Progress stays balanced: no rail holds up the request.",
                spray < turns,
                format!(
                    "the busiest rail has {spray:.2} of the mean rail's work, by turns {turns:.2}"
                ),
            ),
        ],
    }
}

/// How much work each rail had with the largest blocks, by its rate.
fn balance(seen: &Seen) -> Vec<Curve> {
    let curve = |policy: &Policy| {
        let last = seen.of(READS, *policy).last();
        let shares = last.map_or(&[][..], |point| &point.shares);
        // The first four are twice as fast.
        let work = shares.iter().enumerate();
        let work: Vec<f64> = work
            .map(|(rail, share)| if rail < 4 { *share / 2.0 } else { *share })
            .collect();
        let mean = work.iter().sum::<f64>() / work.len().max(1) as f64;
        let points = work.iter().enumerate();
        Curve {
            name: policy.name().to_owned(),
            points: points
                .map(|(rail, work)| (rail as f64, work / mean))
                .collect(),
        }
    };
    POLICIES.iter().map(curve).collect()
}
