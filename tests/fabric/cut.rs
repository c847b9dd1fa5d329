//! Any one link is cut in mid-transfer, either way, and comes back: nobody who moves data notices.

use std::time::Duration;

use serde_json::Value;

use crate::fabric::{Fabric, Fault};
use crate::program::{Bench, Ended, Target};
use crate::waiting::until;

const RATES_MBIT: [u32; 4] = [400; 4];

/// How soon the others have to have taken over, and a restored rail has to be back. Far above what it
/// takes: figures are printed, not asserted.
const RECOVERY_MAX: Duration = Duration::from_secs(5);

/// How long a single step may take.
const STEP: Duration = Duration::from_secs(8);

/// Bytes that are traffic: about a tenth of a second's. And bytes that are not.
const MUCH: u64 = 4_000_000;
const LITTLE: u64 = 250_000;

/// When the link broke and healed, since measuring started.
#[derive(Debug)]
struct Times {
    cut: Duration,
    restored: Duration,
}

#[track_caller]
fn cut_and_restore(op: &str, rail: usize, fault: Fault) {
    let Some(fabric) = Fabric::new(&RATES_MBIT) else {
        return;
    };
    let target = Target::start(&fabric);
    let flags =
        format!("--op {op} --block 1MiB --batch 8 --threads 2 --seconds 7 --verify --timeline 100");
    let mut bench = Bench::start(&fabric, &target, &flags);
    let times = play(&fabric, &mut bench, rail, fault);
    let ended = bench.finish(Duration::from_secs(30));
    judge(
        &format!("{op}, rail {rail}, {fault:?}"),
        &ended,
        rail,
        &times,
    );
}

/// Breaks the rail while it carries data, heals it when the others carry on without it, and waits until it
/// carries data again.
fn play(fabric: &Fabric, bench: &mut Bench, rail: usize, fault: Fault) -> Times {
    let measuring = bench.until_measuring();
    wait_for_bytes(fabric, bench, rail, 5 * MUCH, "the rail carries data");
    fabric.cut(rail, fault);
    let cut = measuring.elapsed();
    wait_for_others(fabric, bench, rail);
    fabric.restore(rail, fault);
    let restored = measuring.elapsed();
    wait_for_bytes(
        fabric,
        bench,
        rail,
        MUCH,
        "the restored rail carries data again",
    );
    Times { cut, restored }
}

/// Until the rail has carried so much from now on.
fn wait_for_bytes(fabric: &Fabric, bench: &mut Bench, rail: usize, bytes: u64, what: &str) {
    let from = fabric.carried()[rail];
    until(what, STEP, || {
        bench.expect_running();
        (fabric.carried()[rail] >= from + bytes).then_some(())
    });
}

/// Until, in one stretch, each other rail has carried what takes it half a second, and this one nothing to
/// speak of: long enough that the engine cannot have missed the cut.
fn wait_for_others(fabric: &Fabric, bench: &mut Bench, rail: usize) {
    let mut from = fabric.carried();
    until(
        "the others carry on while the rail stands still",
        STEP,
        || {
            bench.expect_running();
            let now = fabric.carried();
            let moved: Vec<u64> = now
                .iter()
                .zip(&from)
                .map(|(now, from)| now - from)
                .collect();
            if moved[rail] > LITTLE {
                // It was still under way; look at a new stretch.
                from = now;
                return None;
            }
            let others = (0..moved.len()).filter(|other| *other != rail);
            others
                .map(|other| moved[other])
                .all(|bytes| bytes >= 6 * MUCH)
                .then_some(())
        },
    );
}

#[track_caller]
fn judge(name: &str, ended: &Ended, rail: usize, times: &Times) {
    assert_eq!(ended.code, Some(0), "{name}: {ended:?}");
    let cell = ended.cell();
    assert_eq!(cell["failed_requests"], 0, "{name}");
    assert_eq!(cell["verified"], true, "{name}");
    let timeline = Timeline::of(&cell);
    let taken_over = timeline.taken_over_after(times);
    let back = timeline.carries_after(rail, times.restored);
    let text = |time: Option<Duration>| {
        time.map_or("never".to_owned(), |time| {
            format!("{} ms", time.as_millis())
        })
    };
    println!(
        "{name}: cut at {}; the others at 0.9 of their rate after {}; restored at {}; carries again after {}",
        text(Some(times.cut)),
        text(taken_over),
        text(Some(times.restored)),
        text(back)
    );
    for (what, time) in [("taken over", taken_over), ("back", back)] {
        let time = time.unwrap_or_else(|| panic!("{name}: never {what}: {cell}"));
        assert!(time <= RECOVERY_MAX, "{name}: {what} after {time:?}");
    }
}

/// The buckets of a cell.
struct Timeline<'a>(&'a [Value]);

impl<'a> Timeline<'a> {
    #[track_caller]
    fn of(cell: &'a Value) -> Self {
        Self(
            cell["timeline"]
                .as_array()
                .expect("a timeline was asked for"),
        )
    }

    fn buckets(&self) -> impl Iterator<Item = (Duration, &'a Value)> {
        self.0.iter().map(|bucket| {
            let start = bucket["ms"].as_u64().expect("a bucket has a start");
            (Duration::from_millis(start), bucket)
        })
    }

    /// From the cut until the dip that it made, if any, was over: until all together carried 0.9 of what
    /// the others did before. `None`: never.
    fn taken_over_after(&self, times: &Times) -> Option<Duration> {
        let total = |bucket: &Value| bucket["gbytes_per_sec"].as_f64().unwrap_or_default();
        let before = self.buckets().filter(|(start, _)| *start < times.cut);
        let rates: Vec<f64> = before.map(|(_, bucket)| total(bucket)).collect();
        let mean = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        let others = mean * (RATES_MBIT.len() - 1) as f64 / RATES_MBIT.len() as f64;
        let is_low = |(_, bucket): &(Duration, &Value)| total(bucket) < 0.9 * others;
        let mut dip = self
            .buckets()
            .skip_while(|(start, _)| *start < times.cut)
            .skip_while(|bucket| !is_low(bucket) && bucket.0 < times.restored)
            .peekable();
        match dip.peek()? {
            (start, _) if *start >= times.restored => Some(Duration::ZERO),
            _ => dip
                .find(|bucket| !is_low(bucket))
                .map(|(start, _)| start - times.cut),
        }
    }

    /// From `restored` until a bucket in which the rail carried data.
    fn carries_after(&self, rail: usize, restored: Duration) -> Option<Duration> {
        const PROBES: f64 = 0.001;
        let carries = |(start, bucket): &(Duration, &Value)| {
            let rate = bucket["rails"][rail].as_f64().unwrap_or_default();
            *start >= restored && rate > PROBES
        };
        self.buckets()
            .find(carries)
            .map(|(start, _)| start - restored)
    }
}

#[test]
fn writes_survive_the_loss_of_any_carrier() {
    for rail in 0..RATES_MBIT.len() {
        cut_and_restore("write", rail, Fault::CarrierDown);
    }
}

#[test]
fn writes_survive_the_silence_of_any_rail() {
    for rail in 0..RATES_MBIT.len() {
        cut_and_restore("write", rail, Fault::Silent);
    }
}

/// Rail 0 also has the first control connection.
#[test]
fn reads_survive_too() {
    cut_and_restore("read", 0, Fault::CarrierDown);
    cut_and_restore("read", 2, Fault::Silent);
}
