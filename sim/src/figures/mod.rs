//! The figures of the paper on TENT, made anew: the same axes, its competitors as policies, and each of its statements
//! beside what comes of it here.
//!
//! The fabric is simulated, so that times and rates are not the paper's. What is compared is the shape: who is ahead, from
//! where on, and by how much.

mod batches;
mod fabric;
mod failure;
mod penalties;
mod sizes;
mod slices;
mod threads;
mod tiers;

use polyrail_core::rail::select::Policy;

use crate::model::Options;
use crate::on_all_cores;
use crate::picture::Run;
use crate::report::{nearest_rank, ratio};
use crate::scenario::Scenario;
use crate::setup::Setup;

/// A figure.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// Its number in the paper, and what it varies where the paper has two under one number.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// What is simulated.
    pub fabric: &'static str,
    /// Its charts.
    pub charts: Vec<Chart>,
    /// What the paper says of it.
    pub statements: Vec<Statement>,
}

/// Curves over one axis.
#[derive(Clone, PartialEq, Debug)]
pub struct Chart {
    /// What is up, with its unit.
    pub y: &'static str,
    /// What is to the right.
    pub x: Axis,
    /// One for each policy, or each value of what is varied besides.
    pub curves: Vec<Curve>,
}

/// What is to the right in a chart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Axis {
    /// Bytes of a request; each step is twice as wide.
    Block,
    /// Something that is counted; each step is twice as wide.
    Count(&'static str),
    /// Something that is numbered.
    Number(&'static str),
    /// Milliseconds.
    Time,
}

/// A row of points.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    /// A policy's name, or a value of what is varied.
    pub name: String,
    /// By x.
    pub points: Vec<(f64, f64)>,
}

/// Something that the paper says, beside what is seen here.
#[derive(Clone, PartialEq, Debug)]
pub struct Statement {
    /// What the paper says.
    pub paper: &'static str,
    /// What is seen here.
    pub here: String,
    /// Whether it holds here.
    pub holds: bool,
    /// Why it need not hold on this fabric; without it, it has to.
    pub differs: Option<&'static str>,
}

impl Statement {
    fn new(paper: &'static str, holds: bool, here: String) -> Self {
        Self {
            paper,
            here,
            holds,
            differs: None,
        }
    }

    /// The same, where this fabric is not the paper's.
    fn but(self, differs: &'static str) -> Self {
        Self {
            differs: Some(differs),
            ..self
        }
    }

    /// Whether it is as it has to be.
    pub fn is_as_expected(&self) -> bool {
        self.holds || self.differs.is_some()
    }

    /// `holds` or `holds not`.
    pub fn verdict(&self) -> &'static str {
        match self.holds {
            true => "holds",
            false => "holds not",
        }
    }
}

/// The policies that stand for the paper's engines: Mooncake TE, NIXL, TENT as written down, and polyrail's own.
const COMPETITORS: [Policy; 4] = [
    Policy::RoundRobin,
    Policy::BestTwo,
    Policy::Documented,
    Policy::Spray,
];

type Progress<'a> = &'a (dyn Fn(u64) + Sync);

/// How a figure is made, and how many runs that takes.
struct Plan {
    name: &'static str,
    cells: fn() -> Vec<Cell>,
    make: fn(&Seen) -> Figure,
}

const PLANS: [Plan; 7] = [
    slices::PLAN,
    sizes::PLAN,
    tiers::PLAN,
    threads::PLAN,
    penalties::PLAN,
    batches::PLAN,
    failure::PLAN,
];

/// All names, in the paper's order.
pub fn names() -> impl Iterator<Item = &'static str> {
    PLANS.iter().map(|plan| plan.name)
}

/// Runs of the figures of these names; all of them is what [`make`] counts to.
pub fn runs(wanted: &[&str]) -> u64 {
    let plans = PLANS.iter().filter(|plan| wanted.contains(&plan.name));
    plans.map(|plan| (plan.cells)().len() as u64).sum()
}

/// Makes the figures of these names, on all cores. `progress` is told how many runs are done.
pub fn make(wanted: &[&str], progress: Progress<'_>) -> Vec<Figure> {
    let plans = || PLANS.iter().filter(|plan| wanted.contains(&plan.name));
    let cells: Vec<Cell> = plans().flat_map(|plan| (plan.cells)()).collect();
    let count = cells.len() as u64;
    let run = |number: u64| cells[number as usize].run();
    let mut points = on_all_cores(count, run, progress).into_iter();
    let figure = |plan: &Plan| {
        let count = (plan.cells)().len();
        (plan.make)(&Seen(points.by_ref().take(count).collect()))
    };
    plans().map(figure).collect()
}

/// One run of a figure.
struct Cell {
    /// Which chart or curve it is for, beside its policy.
    group: &'static str,
    x: f64,
    policy: Policy,
    /// The scenario's file.
    text: String,
}

/// What is seen of a cell.
#[derive(Clone, Debug)]
struct Point {
    group: &'static str,
    x: f64,
    policy: Policy,
    gbytes_per_sec: f64,
    p90_us: f64,
    p99_us: f64,
    failed: u64,
    /// Of all bytes, by rail.
    shares: Vec<f64>,
    /// Gigabytes a second in each bucket.
    over_time: Vec<f64>,
    bucket_ms: u64,
}

impl Cell {
    fn run(&self) -> Point {
        let setup = self.setup();
        let run = crate::run(&setup, Options::new(self.policy), &mut |_, _| {});
        self.seen(&run)
    }

    /// # Panics
    ///
    /// If the file is wrong, which a test of all cells rules out.
    fn setup(&self) -> Setup {
        let scenario = Scenario::parse(&self.text);
        let setup = scenario.and_then(|scenario| Setup::new(&self.text, &scenario, None));
        setup.unwrap_or_else(|error| panic!("{error}\n{}", self.text))
    }

    fn seen(&self, run: &Run) -> Point {
        let mut batch_ns = run.history.batch_ns.clone();
        batch_ns.sort_unstable();
        let percentile = |per_mille| nearest_rank(&batch_ns, per_mille) as f64 / 1e3;
        let outcome = &run.outcome;
        let bucket_ns = outcome.bucket_ms * 1_000_000;
        let rate = |bytes: &Vec<u64>| ratio(bytes.iter().sum(), bucket_ns);
        Point {
            group: self.group,
            x: self.x,
            policy: self.policy,
            gbytes_per_sec: outcome.report.gbytes_per_sec,
            p90_us: percentile(900),
            p99_us: percentile(990),
            failed: outcome.report.failed_requests,
            shares: outcome.report.rails.iter().map(|rail| rail.share).collect(),
            over_time: outcome.acknowledged.iter().map(rate).collect(),
            bucket_ms: outcome.bucket_ms,
        }
    }
}

/// All that is seen for a figure.
struct Seen(Vec<Point>);

impl Seen {
    /// Points of one group under one policy, by x.
    fn of(&self, group: &str, policy: Policy) -> impl Iterator<Item = &Point> {
        let of = move |point: &&Point| point.group == group && point.policy == policy;
        self.0.iter().filter(of)
    }

    /// One curve for each policy that there are points of.
    fn curves(&self, group: &str, policies: &[Policy], y: fn(&Point) -> f64) -> Vec<Curve> {
        let curve = |policy: &Policy| Curve {
            name: policy.name().to_owned(),
            points: self
                .of(group, *policy)
                .map(|point| (point.x, y(point)))
                .collect(),
        };
        policies.iter().map(curve).collect()
    }

    /// Of each x from `least` on: what `spray` has over what another policy has.
    fn ratios(&self, group: &str, other: Policy, least: f64, y: fn(&Point) -> f64) -> Ratios {
        let both = self.of(group, Policy::Spray).zip(self.of(group, other));
        let both = both.filter(|(spray, _)| spray.x >= least);
        let ratios: Vec<f64> = both.map(|(spray, other)| y(spray) / y(other)).collect();
        Ratios {
            least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            most: ratios.iter().copied().fold(0.0, f64::max),
            mean: ratios.iter().sum::<f64>() / ratios.len().max(1) as f64,
        }
    }
}

/// Quotients over the points of a curve.
#[derive(Clone, Copy, Debug)]
struct Ratios {
    least: f64,
    most: f64,
    mean: f64,
}

impl Ratios {
    /// From the least to the most.
    fn words(self) -> String {
        format!("{:.2} to {:.2} times", self.least, self.most)
    }
}

fn throughput(point: &Point) -> f64 {
    point.gbytes_per_sec
}

fn p99(point: &Point) -> f64 {
    point.p99_us
}

fn p90(point: &Point) -> f64 {
    point.p90_us
}

const THROUGHPUT: &str = "throughput, GB/s";
const P99: &str = "p99 of a request, µs";

impl Figure {
    /// One line for each point, under a line of names.
    pub fn csv(&self) -> String {
        let mut text = String::from("figure,chart,curve,x,y\n");
        for chart in &self.charts {
            for curve in &chart.curves {
                for (x, y) in &curve.points {
                    let row = format!("{},\"{}\",\"{}\",{x},{y}\n", self.name, chart.y, curve.name);
                    text += &row;
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_is_a_scenario_and_its_figure_needs_all_of_them() {
        for plan in &PLANS {
            let cells = (plan.cells)();
            assert_eq!(runs(&[plan.name]), cells.len() as u64);
            for cell in &cells {
                let mut setup = cell.setup();
                assert!(cell.x >= 0.0 && !setup.rails.is_empty(), "{}", plan.name);
                setup.shorten(1);
            }
        }
        assert_eq!(names().count(), 7);
        assert_eq!(runs(&["no such"]), 0);
    }

    /// Points as a run might have left them, without one.
    fn made_up(plan: &Plan) -> Figure {
        let point = |cell: &Cell| Point {
            group: cell.group,
            x: cell.x,
            policy: cell.policy,
            gbytes_per_sec: 10.0,
            p90_us: 5.0,
            p99_us: 7.0,
            failed: 0,
            shares: vec![0.125; 8],
            over_time: vec![10.0; 400],
            bucket_ms: 1,
        };
        (plan.make)(&Seen((plan.cells)().iter().map(point).collect()))
    }

    #[test]
    fn a_figure_has_each_curve_of_each_chart_and_says_all_in_its_file() {
        for plan in &PLANS {
            let figure = made_up(plan);
            assert_eq!(figure.name, plan.name);
            assert!(!figure.statements.is_empty());
            let mut points = 0;
            for chart in &figure.charts {
                assert!(chart.curves.len() >= 2, "{}: {}", plan.name, chart.y);
                for curve in &chart.curves {
                    assert!(curve.points.len() >= 4, "{}: {}", plan.name, curve.name);
                    points += curve.points.len();
                }
            }
            let file = figure.csv();
            assert_eq!(file.lines().count(), points + 1);
            let columns = file.lines().map(|line| line.matches(',').count());
            assert!(columns.min() >= Some(4), "{file}");
        }
    }

    #[test]
    fn where_all_are_equal_nobody_is_ahead() {
        let figure = made_up(&sizes::PLAN);
        assert!(figure.statements.iter().any(|statement| !statement.holds));
    }
}
