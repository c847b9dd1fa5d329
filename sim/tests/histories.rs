//! Histories: the same twice, correct while rails break, and not correct if peers do not keep their fences.

use polyrail_sim::scenario::Scenario;
use polyrail_sim::{Options, Outcome, POLICIES, Policy, Setup, SplitPolicy, simulate};

/// Four rails of 1 GB/s, two submitters that write and two that read, and whatever `faults` says.
fn text(faults: &str) -> String {
    format!(
        r#"
name = "four"
duration_ms = 30
[engine]
workers = 2
[[host]]
name = "a"
[[host]]
name = "b"
[[device]]
host = "a"
name = "nic"
count = 4
rate_gbits_per_sec = 8
delay_us = 10
[[device]]
host = "b"
name = "nic"
count = 4
rate_gbits_per_sec = 8
delay_us = 10
[[rail]]
from = "a/nic*"
to = "b/nic*"
[[workload]]
from = "a"
to = "b"
op = "write"
block = "1MiB"
batch = 2
threads = 2
[[workload]]
from = "a"
to = "b"
op = "read"
block = 200001
threads = 2
{faults}
"#
    )
}

/// That, checked.
fn setup(faults: &str, seed: u64) -> Setup {
    let text = text(faults);
    Setup::new(&text, &Scenario::parse(&text).unwrap(), Some(seed)).unwrap()
}

/// One block of 4 KiB at a time, as `engine` says.
fn one_by_one(engine: &str) -> Outcome {
    let host = |name: &str| {
        format!(
            "[[host]]\nname = \"{name}\"\n[[device]]\nhost = \"{name}\"\nname = \"n\"\nrate_gbits_per_sec = 100\ndelay_us = 1\n"
        )
    };
    let text = format!(
        "name = \"one\"\nduration_ms = 10\n[jitter]\nservice_percent = 0\noutlier_one_in = 0\n[engine]\n{engine}\n{}{}\
         [[rail]]\nfrom = \"a/n\"\nto = \"b/n\"\n\
         [[workload]]\nfrom = \"a\"\nto = \"b\"\nop = \"write\"\nblock = \"4KiB\"\ncount = 9\n",
        host("a"),
        host("b"),
    );
    let setup = Setup::new(&text, &Scenario::parse(&text).unwrap(), None).unwrap();
    run(&setup, Options::new(Policy::Spray))
}

#[test]
fn what_a_work_costs_its_worker_is_in_the_time_of_its_batch() {
    let usual = one_by_one("").report.p50_us;
    // (what, nanoseconds longer)
    let cases = [
        ("post_ns = 1120", 1_000.0),
        ("doorbell_ns = 700", 700.0),
        ("request_ns = 500", 500.0),
    ];
    for (engine, longer_ns) in cases {
        let longer = (one_by_one(engine).report.p50_us - usual) * 1_000.0;
        assert!((longer - longer_ns).abs() < 2.0, "{engine}: {longer} ns");
    }
}

fn fault(kind: &str, target: &str, at_ms: f64, for_ms: f64, every_ms: f64) -> String {
    format!(
        "[[fault]]\nkind = \"{kind}\"\ntarget = \"{target}\"\nat_ms = {at_ms}\nfor_ms = {for_ms}\nevery_ms = {every_ms}\ntimes = 3\n"
    )
}

fn run(setup: &Setup, options: Options) -> Outcome {
    simulate(setup, options, &mut |_, _| {})
}

#[test]
fn programs_that_name_a_rail_lose_nothing_either() {
    let faults = fault("error", "a/nic1", 2.0, 3.0, 10.0);
    for split in SplitPolicy::ALL {
        let options = Options {
            audit: true,
            ..Options::named(split.name()).expect("it has a name")
        };
        let report = run(&setup(&faults, 1), options).report;
        assert_eq!((report.violations, report.failed_requests), (0, 0));
        assert_eq!(report.policy, split.name());
        // Also what named the rail that was cut.
        assert!(
            report.rails[1].bytes > 0 && report.requests > 5,
            "{report:?}"
        );
    }
}

#[test]
fn one_seed_gives_one_history_and_another_seed_another() {
    let faults = fault("silent", "a/nic1", 2.0, 14.0, 20.0);
    for policy in POLICIES {
        let json = |seed| {
            run(&setup(&faults, seed), Options::new(*policy))
                .report
                .to_json()
        };
        assert_eq!(json(1), json(1));
        assert_ne!(json(1), json(2));
    }
}

#[test]
fn nothing_is_violated_while_rails_break() {
    // (name, faults)
    let cases = [
        ("no fault", String::new()),
        ("slowed", "[[fault]]\nkind = \"slow\"\nfactor = 0.01\ntarget = \"a/nic0\"\nat_ms = 5\nfor_ms = 10\n".to_owned()),
        ("silent", fault("silent", "a/nic1", 2.0, 12.0, 14.0)),
        ("failing", fault("error", "a/nic1", 2.0, 4.0, 8.0)),
        ("failing for less than a fence takes", fault("error", "b/nic*", 2.0, 0.3, 3.0)),
        ("all silent in turn", fault("silent", "a/nic*", 3.0, 7.0, 9.0)),
        ("two at a time", fault("silent", "a/nic1", 2.0, 12.0, 14.0) + &fault("error", "b/nic2", 3.0, 1.0, 9.0)),
    ];
    for (name, faults) in cases {
        for seed in 1..4 {
            let outcome = run(&setup(&faults, seed), Options::new(Policy::Spray));
            let report = &outcome.report;
            assert_eq!(
                (report.violations, report.failed_requests),
                (0, 0),
                "{name}, seed {seed}: {:?}",
                outcome.violation
            );
            assert!(report.requests > 20, "{name}, seed {seed}: {report:?}");
        }
    }
}

#[test]
fn core_keeps_its_invariants_at_every_step() {
    let mut setup = setup(&fault("error", "a/nic1", 2.0, 0.3, 3.0), 1);
    setup.shorten(8);
    let options = Options {
        audit: true,
        ..Options::new(Policy::Spray)
    };
    let outcome = run(&setup, options);
    assert_eq!(outcome.report.violations, 0, "{:?}", outcome.violation);
}

#[test]
fn a_missing_fence_shows_as_a_violation() {
    let setup = setup(&fault("silent", "a/nic1", 2.0, 14.0, 20.0), 1);
    let options = Options {
        ignore_fences: true,
        ..Options::new(Policy::Spray)
    };
    let outcome = run(&setup, options);
    assert!(outcome.report.violations > 0);
    assert!(
        outcome
            .violation
            .is_some_and(|text| text.contains("after its report"))
    );
    assert_eq!(
        run(&setup, Options::new(Policy::Spray)).report.violations,
        0
    );
}

/// The swarm's seed 10133: programs whose peer was away for a second tried each microsecond to submit, a million
/// times. And without a pause between batches, a program whose requests failed at once went round for ever in one
/// instant.
#[test]
fn programs_whose_peer_is_away_try_again_after_a_while() {
    let away = "[[fault]]\nkind = \"restart\"\ntarget = \"b\"\nat_ms = 5\nfor_ms = 200\n";
    // It is known to be another process, and nothing is heard of it for a second.
    let deaf = "[[fault]]\nkind = \"silent\"\ntarget = \"a/nic*\"\nat_ms = 150\nfor_ms = 1000\n";
    let path = "[timing]\ncontrol_us = 1\n[path]\nmode = \"advanced\"\n";
    let cases = [
        ("requests fail at once", away.to_owned(), "400"),
        (
            "a segment is waited for",
            [path, away, deaf].concat(),
            "1200",
        ),
    ];
    for (name, faults, duration_ms) in cases {
        let duration = format!("duration_ms = {duration_ms}");
        let mut text = text(&faults).replace("duration_ms = 30", &duration);
        for (host, address) in [("a", "10.0.1.2"), ("b", "10.0.1.102")] {
            let device = format!("[[device]]\nhost = \"{host}\"\n");
            text = text.replace(&device, &format!("{device}address = \"{address}\"\n"));
        }
        let setup = Setup::new(&text, &Scenario::parse(&text).unwrap(), None).unwrap();
        let options = Options {
            events_max: 500_000,
            ..Options::new(Policy::Spray)
        };
        let outcome = run(&setup, options);
        assert_eq!(outcome.violation, None, "{name}");
        // Four programs with six requests between them, which soon wait ten milliseconds between two tries.
        let failed = outcome.report.failed_requests;
        assert!((1..=200).contains(&failed), "{name}: {failed} failed");
    }
}
