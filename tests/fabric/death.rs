//! A target that dies or stops in mid-transfer: the benchmark says so and ends.

use std::time::Duration;

use crate::fabric::Fabric;
use crate::program::{Bench, Target};
use crate::waiting::until;

const BOUND: Duration = Duration::from_secs(10);
const MUCH: u64 = 4_000_000;

#[track_caller]
fn signal_in_mid_transfer(signal: &str) {
    let Some(fabric) = Fabric::new(&[400; 4]) else {
        return;
    };
    let target = Target::start(&fabric);
    let mut bench = Bench::start(&fabric, &target, "--block 1MiB --batch 8 --seconds 60");
    bench.until_measuring();
    let from = fabric.carried();
    until("all rails carry data", BOUND, || {
        bench.expect_running();
        let moved = |(now, from): (&u64, &u64)| *now >= from + MUCH;
        fabric.carried().iter().zip(&from).all(moved).then_some(())
    });
    target.signal(signal);
    let ended = bench.finish(BOUND);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let last = ended.stderr.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("error: ") && last.contains(&target.address),
        "{ended:?}"
    );
    println!("{signal}: {last}");
    let cell = ended.cell();
    assert!(cell["failed_requests"].as_u64() > Some(0), "{cell}");
}

#[test]
fn a_target_that_is_killed_ends_the_benchmark() {
    signal_in_mid_transfer("KILL");
}

#[test]
fn a_target_that_stops_ends_the_benchmark() {
    signal_in_mid_transfer("STOP");
}
