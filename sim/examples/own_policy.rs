//! A policy of one's own in the simulator, beside those of core: `docs/own-policy.md` walks through it.
//!
//! `cargo run --release -p polyrail-sim --example own_policy -- [SCENARIO.toml]` prints a table, and leaves
//! `own-policy.html` and `own-policy.csv`.

use polyrail_core::rail::Shared;
use polyrail_core::rail::chooser::{Chooser, Sharing};
use polyrail_core::rail::select::Candidate;
use polyrail_core::units::TransportId;
use polyrail_sim::report::{self, FIGURES};
use polyrail_sim::scenario::{self, Scenario, ScenarioError};
use polyrail_sim::{Options, OwnPolicy, POLICIES, Run, Setup, on_all_cores, picture, run, run_own};

/// Of some rails drawn at random, the one with the fewest bytes in flight.
#[derive(Debug)]
struct Choices<'a> {
    shared: &'a Shared<'a>,
    count: usize,
    draws: u64,
}

impl Sharing for Choices<'_> {}

impl Chooser for Choices<'_> {
    fn choose(&mut self, _: TransportId, rails: &[Candidate], _length: u32) -> Option<usize> {
        let places = 0..rails.len();
        let free: Vec<usize> = places.filter(|place| rails[*place].has_room).collect();
        if free.is_empty() {
            return None;
        }
        let drawn: Vec<usize> = (0..self.count)
            .map(|_| free[self.draw(free.len())])
            .collect();
        let view = |place: usize| self.shared.view(rails[place].rail);
        let inflight = |place: &usize| view(*place).map(|view| view.inflight_bytes);
        drawn.into_iter().min_by_key(inflight)
    }
}

impl Choices<'_> {
    /// A number below `count`; the same ones in each run.
    fn draw(&mut self, count: usize) -> usize {
        self.draws = self.draws.wrapping_mul(6_364_136_223_846_793_005);
        self.draws = self.draws.wrapping_add(1_442_695_040_888_963_407);
        (self.draws >> 33) as usize % count
    }
}

/// Runs a scenario under it, with so many rails drawn.
fn run_choices(setup: &Setup, count: usize) -> Run {
    let own = OwnPolicy {
        name: &format!("choices-{count}"),
        make: &|shared, worker| {
            let draws = u64::from(worker) + 1;
            Box::new(Choices {
                shared,
                count,
                draws,
            })
        },
    };
    run_own(setup, own, Options::new(Default::default()), &mut |_, _| {})
}

/// Runs a scenario under it, then under all of core's policies.
pub(crate) fn compare(text: &str) -> Result<(Setup, Vec<Run>), ScenarioError> {
    let setup = Setup::new(text, &Scenario::parse(text)?, None)?;
    let mut runs = vec![run_choices(&setup, 2)];
    for policy in POLICIES {
        runs.push(run(&setup, Options::new(*policy), &mut |_, _| {}));
    }
    Ok((setup, runs))
}

/// One to four rails drawn, each with so many seeds: CSV with the columns of `sim run --csv`.
pub(crate) fn sweep(text: &str, seeds: u64) -> Result<String, ScenarioError> {
    let scenario = Scenario::parse(text)?;
    let one = |number: u64| {
        let (count, seed) = (number / seeds + 1, number % seeds + 1);
        let setup = Setup::new(text, &scenario, Some(seed))?;
        let outcome = run_choices(&setup, count as usize).outcome;
        let figure = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        let figures = FIGURES.map(|column| figure((column.of)(&outcome)));
        Ok(format!("{count},{seed},{}\n", figures.join(",")))
    };
    let rows: Result<Vec<String>, ScenarioError> =
        on_all_cores(4 * seeds, one, |_| {}).into_iter().collect();
    let names = FIGURES.map(|column| column.name).join(",");
    Ok(format!("choices,seed,{names}\n{}", rows?.concat()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = match std::env::args().nth(1) {
        Some(file) => std::fs::read_to_string(file)?,
        None => scenario::text("slowed-rail").unwrap_or_default().to_owned(),
    };
    let (setup, runs) = compare(&text)?;
    let reports = runs.iter().map(|run| &run.outcome.report);
    print!("{}", report::table(reports));
    std::fs::write("own-policy.html", picture::page(&setup, &runs, 0))?;
    std::fs::write("own-policy.csv", sweep(&text, 3)?)?;
    Ok(())
}
