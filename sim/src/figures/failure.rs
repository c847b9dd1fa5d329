//! Figure 10: a rail fails under way and comes back.

use polyrail_core::rail::select::Policy;

use super::fabric::{Load, MIB, eight_alike, scenario};
use super::{Axis, Cell, Chart, Curve, Figure, Plan, Point, Seen, Statement, THROUGHPUT};

const POLICIES: [Policy; 3] = [Policy::RoundRobin, Policy::Documented, Policy::Spray];
const FAILS_MS: f64 = 100.0;
const BACK_MS: f64 = 300.0;
const ENDS_MS: u64 = 400;
/// Before these the run has not settled.
const SETTLED_MS: f64 = 10.0;
/// A dip ends when throughput is this part of what seven rails allow.
const WHOLE: f64 = 0.95;

/// With one submitter rails pause as they do by default, and with the paper's setting: all are tried each second.
const DECAY: &str = "decay";
const RESET: &str = "reset";

pub(super) const PLAN: Plan = Plan {
    name: "10",
    cells,
    make,
};

fn cells() -> Vec<Cell> {
    let fault = format!(
        "[[fault]]\nat_ms = {FAILS_MS:.1}\nfor_ms = {:.1}\nkind = \"error\"\ntarget = \"a/nic0\"\n",
        BACK_MS - FAILS_MS
    );
    let cell = |group, policy: Policy| {
        let limits = match group {
            RESET => "[limits]\nreset_cooldown_us = 1000000\n",
            _ => "",
        };
        let fabric = format!("{limits}{}{fault}", eight_alike());
        Cell {
            group,
            x: 0.0,
            policy,
            text: scenario(ENDS_MS, 1, &fabric, &[Load::new("write", 64 * MIB, 2)]),
        }
    };
    let decay = POLICIES.map(|policy| cell(DECAY, policy));
    decay
        .into_iter()
        .chain([cell(RESET, Policy::Spray)])
        .collect()
}

/// By time, without what follows the last submission.
fn curve(name: String, point: &Point) -> Curve {
    let times = (0..).map(|bucket| (bucket * point.bucket_ms) as f64);
    let points = times.zip(point.over_time.iter().copied());
    let points = points.filter(|(at, _)| *at >= SETTLED_MS && *at < ENDS_MS as f64);
    Curve {
        name,
        points: points.collect(),
    }
}

fn make(seen: &Seen) -> Figure {
    let one = |group, policy| seen.of(group, policy).next();
    let mut curves: Vec<Curve> = Vec::new();
    for policy in POLICIES {
        let point = one(DECAY, policy);
        curves.extend(point.map(|point| curve(policy.name().to_owned(), point)));
    }
    let reset = one(RESET, Policy::Spray);
    curves.extend(reset.map(|point| curve("spray, rails tried each second".to_owned(), point)));
    let spray = curves
        .iter()
        .find(|curve| curve.name == Policy::Spray.name());
    let points = spray.map_or(&[][..], |curve| &curve.points);
    let mean = |from: f64, to: f64| {
        let within = points.iter().filter(|(at, _)| *at >= from && *at < to);
        let values: Vec<f64> = within.map(|(_, rate)| *rate).collect();
        values.iter().sum::<f64>() / values.len().max(1) as f64
    };
    let before = mean(SETTLED_MS, FAILS_MS);
    let without = mean(FAILS_MS + 50.0, BACK_MS);
    // Milliseconds from this instant on until throughput is so much for good.
    let until = |from: f64, rate: f64| {
        let low = points
            .iter()
            .filter(|(at, _)| *at >= from && *at < from + 100.0);
        let last = low
            .filter(|(_, seen)| *seen < rate)
            .map(|(at, _)| *at + 1.0 - from);
        last.fold(0.0, f64::max)
    };
    let dip = until(FAILS_MS, WHOLE * before * 7.0 / 8.0);
    let back = until(BACK_MS, WHOLE * before);
    let failed: u64 = seen.0.iter().map(|point| point.failed).sum();
    Figure {
        name: PLAN.name,
        title: "A rail fails and comes back",
        fabric: "Two threads write blocks of 64 MiB over eight rails of 200 Gb/s. Rail 0 fails after 100 ms and is whole again \
                 after 300 ms.",
        charts: vec![Chart {
            y: THROUGHPUT,
            x: Axis::Time,
            curves,
        }],
        statements: vec![
            Statement::new(
                "Throughput dips for less than 50 ms.",
                dip < 50.0,
                format!("{dip:.0} ms below {WHOLE} of what seven rails allow"),
            ),
            Statement::new(
                "It then goes on with one rail less.",
                (0.85..0.9).contains(&(without / before)),
                format!("{:.3} of the throughput before, of 0.875", without / before),
            ),
            Statement::new(
                "Once the rail is restored, throughput is what it was within milliseconds.",
                back < 50.0,
                format!("after {back:.0} ms, with rails tried as they are by default"),
            ),
            Statement::new(
                "No transfer fails.",
                failed == 0,
                format!("{failed} requests failed"),
            ),
        ],
    }
}
