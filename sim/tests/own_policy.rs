//! The example of a policy of one's own: it decides, beside the shipped ones, and its page shows what it is.

use polyrail_core::rail::chooser::{Chooser, Sharing};
use polyrail_core::rail::select::Candidate;
use polyrail_core::units::TransportId;
use polyrail_sim::scenario::Scenario;
use polyrail_sim::{Options, OwnPolicy, POLICIES, Setup, picture, report, run_own, scenario};

#[path = "../examples/own_policy.rs"]
#[allow(dead_code)] // its `main`
mod example;

/// A scenario of the library, but shorter.
fn short(name: &str, duration_ms: &str) -> String {
    let text = scenario::text(name).expect("a scenario of the library");
    scenario::set(text, "duration_ms", duration_ms).expect("a key")
}

#[test]
fn a_policy_of_another_crate_has_its_row_its_json_and_its_page() {
    let text = short("slowed-rail", "8");
    let (setup, runs) = example::compare(&text).expect("it is right");
    let own = &runs[0].outcome.report;
    assert_eq!((own.violations, own.failed_requests), (0, 0));
    assert_eq!(own.policy, "choices-2");
    assert!(own.rails.iter().all(|rail| rail.bytes > 0), "{own:?}");
    let table = report::table(runs.iter().map(|run| &run.outcome.report));
    assert_eq!(table.lines().count(), 2 + POLICIES.len(), "{table}");
    let json = runs[0].outcome.to_json();
    assert!(json.contains("\"policy\":\"choices-2\""), "{json}");
    let page = picture::page(&setup, &runs, 0);
    assert!(page.contains("policy <b>choices-2</b>") && page.contains("round-robin"));
    // And once more, to the byte.
    let (_, again) = example::compare(&text).expect("it is right");
    assert_eq!(json, again[0].outcome.to_json());
}

/// Runs a scenario under a policy without a state.
fn run_under<P: Chooser + Copy + Sync + 'static>(text: &str, policy: P) -> report::Report {
    let parsed = Scenario::parse(text).expect("it parses");
    let setup = Setup::new(text, &parsed, None).expect("it is right");
    let own = OwnPolicy {
        name: "own",
        make: &|_, _| Box::new(policy),
    };
    let options = Options::new(Default::default());
    run_own(&setup, own, options, &mut |_, _| {}).outcome.report
}

/// Sends everything over one rail.
#[derive(Clone, Copy, Debug)]
struct Lowest;

impl Sharing for Lowest {}

impl Chooser for Lowest {
    fn choose(&mut self, _: TransportId, rails: &[Candidate], _: u32) -> Option<usize> {
        let place = (0..rails.len()).min_by_key(|place| rails[*place].rail)?;
        rails[place].has_room.then_some(place)
    }
}

#[test]
fn the_policy_is_what_chooses_each_rail() {
    let report = run_under(&short("slowed-rail", "8"), Lowest);
    assert_eq!((report.violations, report.failed_requests), (0, 0));
    // Until the other lanes are open too the first one to open is the lowest.
    let share = report.rails.first().map_or(0.0, |rail| rail.share);
    assert!(share > 0.9, "{report:?}");
}

/// Waits for ever.
#[derive(Clone, Copy, Debug)]
struct Never;

impl Sharing for Never {}

impl Chooser for Never {
    fn choose(&mut self, _: TransportId, _: &[Candidate], _: u32) -> Option<usize> {
        None
    }
}

#[test]
fn a_policy_that_never_answers_ends_in_a_verdict() {
    let report = run_under(&short("small-requests", "2"), Never);
    assert!(
        report.violations > 0 && report.gbytes_per_sec == 0.0,
        "{report:?}"
    );
}

#[test]
fn a_sweep_has_a_row_for_each_parameter_and_seed() {
    let csv = example::sweep(&short("slowed-rail", "4"), 2).expect("it is right");
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0][..3], ["choices", "seed", "gbytes_per_sec"]);
    let keys: Vec<_> = rows[1..].iter().map(|row| row[..2].join(" ")).collect();
    assert_eq!(
        keys,
        ["1 1", "1 2", "2 1", "2 2", "3 1", "3 2", "4 1", "4 2"]
    );
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{csv}");
    // What is varied matters.
    assert_ne!(rows[1][2], rows[5][2], "{csv}");
}

/// What the page shows is what is run here, and all of it.
#[test]
fn the_page_s_blocks_are_the_example() {
    let page = include_str!("../../docs/own-policy.md");
    let example = include_str!("../examples/own_policy.rs");
    let blocks = page.split("```rust\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap_or_default());
    let program = blocks.collect::<Vec<_>>().join("\n");
    let (_, code) = example.split_once("\n\n").expect("its comment, then code");
    assert_eq!(program, code);
}
