//! Unequal links carry shares in proportion to their rates, and together what plain TCP gets out of them.

use std::time::Duration;

use crate::fabric::{Fabric, skip};
use crate::iperf;
use crate::program::{Bench, Target};

const RATES_MBIT: [u32; 4] = [400, 400, 400, 100];
const TOLERANCE: f64 = 0.03;
const EFFICIENCY_MIN: f64 = 0.95;

/// What a run came to.
#[derive(Debug)]
struct Figures {
    gbytes_per_sec: f64,
    shares: Vec<f64>,
}

impl Figures {
    #[track_caller]
    fn measure(fabric: &Fabric, policy: &str) -> Self {
        let target = Target::start(fabric);
        let flags = format!("--op write --block 4MiB --batch 4 --seconds 5 --policy {policy}");
        let ended = Bench::start(fabric, &target, &flags).finish(Duration::from_secs(30));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let cell = ended.cell();
        let share = |rail: usize| {
            cell["rails"][rail]["share"]
                .as_f64()
                .expect("each rail has a share")
        };
        Self {
            gbytes_per_sec: cell["gbytes_per_sec"].as_f64().expect("a number"),
            shares: (0..fabric.rails()).map(share).collect(),
        }
    }

    /// The largest distance of a share from what the rates say.
    fn worst_share(&self) -> f64 {
        let sum: u32 = RATES_MBIT.iter().sum();
        let fair = RATES_MBIT.map(|rate| f64::from(rate) / f64::from(sum));
        let distance = |(is, fair): (&f64, f64)| (is - fair).abs();
        self.shares
            .iter()
            .zip(fair)
            .map(distance)
            .fold(0.0, f64::max)
    }
}

#[test]
fn shares_follow_the_rates_and_goodput_is_that_of_plain_tcp() {
    let Some(fabric) = Fabric::new(&RATES_MBIT) else {
        return;
    };
    if !iperf::is_installed() {
        return skip("iperf3 is not installed");
    }
    let mut good = false;
    let mut best: f64 = 0.0;
    for round in 1..=3 {
        let plain = iperf::gbytes_per_sec(&fabric);
        let spray = Figures::measure(&fabric, "spray");
        let efficiency = spray.gbytes_per_sec / plain;
        let worst = spray.worst_share();
        println!(
            "round {round}: iperf3 {plain:.4} GB/s, spray {efficiency:.3} of it, \
             shares off by at most {:.1} points: {spray:?}",
            worst * 100.0
        );
        good |= worst <= TOLERANCE && efficiency >= EFFICIENCY_MIN;
        best = best.max(spray.gbytes_per_sec);
    }
    let turns = Figures::measure(&fabric, "round-robin");
    println!("round robin: {turns:?}");
    assert!(good, "no round was good, see above");
    assert!(
        turns.gbytes_per_sec < best,
        "round robin is no worse: {turns:?}"
    );
}
