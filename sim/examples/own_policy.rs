//! A policy of one's own in the simulator, beside those of core: `docs/own-policy.md` walks through it.
//!
//! `cargo run --release -p polyrail-sim --example own_policy -- [SCENARIO.toml]` prints a table and leaves
//! `own-policy.html`.

use polyrail_core::rail::Shared;
use polyrail_core::rail::chooser::{Chooser, Sharing};
use polyrail_core::rail::select::Candidate;
use polyrail_core::units::TransportId;
use polyrail_sim::scenario::{self, Scenario, ScenarioError};
use polyrail_sim::{Options, OwnPolicy, POLICIES, Run, Setup, picture, report, run, run_own};

/// Of two rails drawn at random, the one with fewer bytes in flight.
#[derive(Debug)]
struct TwoChoices<'a> {
    shared: &'a Shared<'a>,
    draws: u64,
}

impl TwoChoices<'_> {
    /// A number below `count`; the same ones in each run.
    fn draw(&mut self, count: usize) -> usize {
        self.draws = self.draws.wrapping_mul(6_364_136_223_846_793_005);
        self.draws = self.draws.wrapping_add(1_442_695_040_888_963_407);
        (self.draws >> 33) as usize % count
    }
}

impl Sharing for TwoChoices<'_> {}

impl Chooser for TwoChoices<'_> {
    fn choose(&mut self, _: TransportId, rails: &[Candidate], _length: u32) -> Option<usize> {
        let places = 0..rails.len();
        let free: Vec<usize> = places.filter(|place| rails[*place].has_room).collect();
        if free.is_empty() {
            return None;
        }
        let two = [0, 1].map(|_| free[self.draw(free.len())]);
        let view = |place: usize| self.shared.view(rails[place].rail);
        let inflight = |place: &usize| view(*place).map(|view| view.inflight_bytes);
        two.into_iter().min_by_key(inflight)
    }
}

/// Runs a scenario under it, then under all of core's policies.
pub(crate) fn compare(text: &str) -> Result<(Setup, Vec<Run>), ScenarioError> {
    let setup = Setup::new(text, &Scenario::parse(text)?, None)?;
    let own = OwnPolicy {
        name: "two-choices",
        make: &|shared, worker| {
            let draws = u64::from(worker) + 1;
            Box::new(TwoChoices { shared, draws })
        },
    };
    let usual = Options::new(Default::default());
    let mut runs = vec![run_own(&setup, own, usual, &mut |_, _| {})];
    runs.extend(
        POLICIES
            .iter()
            .map(|policy| run(&setup, Options::new(*policy), &mut |_, _| {})),
    );
    Ok((setup, runs))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = match std::env::args().nth(1) {
        Some(file) => std::fs::read_to_string(file)?,
        None => scenario::text("slowed-rail").unwrap_or_default().to_owned(),
    };
    let (setup, runs) = compare(&text)?;
    print!(
        "{}",
        report::table(runs.iter().map(|run| &run.outcome.report))
    );
    println!("{}", runs[0].outcome.to_json());
    std::fs::write("own-policy.html", picture::page(&setup, &runs, 0))?;
    Ok(())
}
