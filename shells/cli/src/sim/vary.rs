//! `--set`, `--seeds`, `--csv`: the same scenarios with other values and other seeds.

use std::fmt::Write as _;

use clap::Args;
use polyrail_sim::report::FIGURES;
use polyrail_sim::scenario::ScenarioError;
use polyrail_sim::{Options, Outcome, Report, Spread, on_all_cores, report, scenario};

use super::load::{Loaded, text};
use super::{print, showing, verdict};
use crate::exit::Failure;

/// Runs of one command, at most.
const RUNS_MAX: u64 = 1_000_000;

/// What is varied, and how many runs are written.
#[derive(Args)]
pub(super) struct VaryArgs {
    /// Sets a value of the scenario's file: keys with points between, tables of an array by number from 0, `*` for all of them.
    /// Several values with commas between are tried one after the other, those of several --set each with each.
    #[arg(long = "set", value_name = "PATH=VALUE", value_parser = change)]
    pub(super) changes: Vec<Change>,
    /// So many seeds, from the scenario's own or --seed on; or from the one to the other, both included, as 1..20.
    #[arg(long, value_name = "N|A..B", value_parser = seeds)]
    pub(super) seeds: Option<Seeds>,
    /// One JSON object a run instead of a table.
    #[arg(long, conflicts_with = "csv")]
    pub(super) json: bool,
    /// One row of CSV a run instead of a table.
    #[arg(long)]
    pub(super) csv: bool,
}

/// A path, and the values that are tried there.
#[derive(Clone, Debug)]
pub(super) struct Change {
    path: String,
    values: Vec<String>,
}

/// Which seeds are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seeds {
    /// So many, from the scenario's own or the one that is asked for.
    Count(u64),
    /// From the one to the other.
    Range(u64, u64),
}

fn change(text: &str) -> Result<Change, String> {
    let (path, values) = text
        .split_once('=')
        .filter(|(path, values)| !path.trim().is_empty() && !values.trim().is_empty())
        .ok_or("right is PATH=VALUE, as fault.0.factor=0.05")?;
    Ok(Change {
        path: path.trim().to_owned(),
        values: at_commas(values),
    })
}

/// The parts between commas, but for those in brackets and in quotes.
fn at_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let (mut depth, mut quoted) = (0_usize, false);
    for letter in text.chars() {
        match letter {
            '"' => quoted = !quoted,
            '[' | '{' if !quoted => depth += 1,
            ']' | '}' if !quoted => depth = depth.saturating_sub(1),
            ',' if !quoted && depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(letter);
        }
    }
    parts.iter().map(|part| part.trim().to_owned()).collect()
}

fn seeds(text: &str) -> Result<Seeds, String> {
    let wrong = || {
        "right is a number from 1 on, or a range as 1..20 or 1..=20 (both are 20 seeds)".to_owned()
    };
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
    let Some((first, last)) = text.split_once("..") else {
        let count = number(text)?;
        return (1..=RUNS_MAX)
            .contains(&count)
            .then_some(Seeds::Count(count))
            .ok_or_else(wrong);
    };
    let (first, last) = (number(first)?, number(last.trim_start_matches('='))?);
    match last.checked_sub(first) {
        Some(more) if more < RUNS_MAX => Ok(Seeds::Range(first, last)),
        Some(_) => Err(format!("at most {RUNS_MAX} seeds")),
        None => Err(format!("{last} is before {first}; {}", wrong())),
    }
}

impl VaryArgs {
    /// Whether more than one run of a scenario and policy is asked for.
    pub(super) fn is_many(&self) -> bool {
        self.seeds.is_some() || self.changes.iter().any(|change| change.values.len() > 1)
    }

    /// One value of each change, in all combinations; the last one changes fastest. One empty one if nothing is set.
    fn combinations(&self) -> Result<Vec<Combination>, Failure> {
        let counts = self.changes.iter().map(|change| change.values.len() as u64);
        let count = counts.fold(1, u64::saturating_mul);
        if count > RUNS_MAX {
            return Err(Failure::Usage(format!(
                "--set: {count} combinations; at most {RUNS_MAX}"
            )));
        }
        let mut all = vec![Combination::new()];
        for Change { path, values } in &self.changes {
            let longer = |so_far: &Combination, value: &String| {
                let mut longer = so_far.clone();
                longer.push((path.clone(), value.clone()));
                longer
            };
            all = (all.iter())
                .flat_map(|so_far| values.iter().map(move |value| longer(so_far, value)))
                .collect();
        }
        Ok(all)
    }

    /// The scenarios of these names with each combination.
    pub(super) fn load(&self, names: &[String], seed: Option<u64>) -> Result<Vec<Varied>, Failure> {
        let mut all = Vec::new();
        for name in names {
            // A mistake of the file itself is told with its line.
            let text = text(name)?;
            Loaded::new(name, seed)?;
            for set in self.combinations()? {
                let changed = changed(name, &text, &set)?;
                let loaded = Loaded::of(name, changed.clone(), seed)
                    .map_err(|error| bad_set(name, &set, &changed, &error))?;
                all.push(Varied { loaded, set });
            }
        }
        Ok(all)
    }

    /// Which seeds a scenario is run with: the first, and how many.
    fn seeds_of(&self, loaded: &Loaded) -> (u64, u64) {
        match self.seeds {
            None => (loaded.seed, 1),
            Some(Seeds::Count(count)) => (loaded.seed, count),
            Some(Seeds::Range(first, last)) => (first, last - first + 1),
        }
    }

    /// Runs all cells with all seeds on all cores, and writes what came of them.
    pub(super) fn run(&self, cells: &[Cell<'_>], options: Options) -> Result<(), Failure> {
        let mut runs = Vec::new();
        for (index, (varied, _)) in cells.iter().enumerate() {
            let (first, count) = self.seeds_of(&varied.loaded);
            if runs.len() as u64 + count > RUNS_MAX {
                return Err(Failure::Usage(format!("more than {RUNS_MAX} runs")));
            }
            runs.extend((0..count).map(|number| (index, first.wrapping_add(number))));
        }
        let run = |number: u64| {
            let (index, seed) = runs[usize::try_from(number).unwrap_or(0)];
            let (varied, variant) = cells[index];
            let simulation = varied.loaded.with_seed(seed)?;
            Ok(Row::new(
                index,
                varied,
                &simulation.run(variant, options),
                self.json,
            ))
        };
        let count = runs.len() as u64;
        let rows = showing("runs", count, |show| on_all_cores(count, run, show));
        let rows = rows.into_iter().collect::<Result<Vec<_>, Failure>>()?;
        if self.json {
            rows.iter().try_for_each(|row| print(&row.json))?;
        } else if self.csv {
            self.csv(&rows)?;
        } else {
            tell(cells, &rows)?;
        }
        verdict(&rows.iter().map(|row| &row.report).collect::<Vec<_>>())
    }

    fn csv(&self, rows: &[Row<'_>]) -> Result<(), Failure> {
        let mut out = csv::Writer::from_writer(std::io::stdout().lock());
        let bad = |error: csv::Error| Failure::output(error.into());
        let paths = self.changes.iter().map(|change| change.path.as_str());
        let names = ["scenario", "policy", "seed"].into_iter().chain(paths);
        out.write_record(names.chain(FIGURES.iter().map(|figure| figure.name)))
            .map_err(bad)?;
        for row in rows {
            let Report {
                scenario,
                policy,
                seed,
                ..
            } = &row.report;
            let keys = [scenario.clone(), policy.clone(), seed.to_string()];
            let set = row.set.iter().map(|(_, value)| value.clone());
            let figures = row.figures.iter();
            let figures = figures.map(|one| one.map_or(String::new(), |value| value.to_string()));
            out.write_record(keys.into_iter().chain(set).chain(figures))
                .map_err(bad)?;
        }
        out.flush().map_err(Failure::output)
    }
}

/// Paths, and the value of each.
type Combination = Vec<(String, String)>;

/// A scenario with a combination of values.
pub(super) struct Varied {
    pub(super) loaded: Loaded,
    set: Combination,
}

/// A scenario with its values, and which of its variants is run.
pub(super) type Cell<'a> = (&'a Varied, &'a str);

/// What came of a run.
struct Row<'a> {
    /// Of which cell.
    cell: usize,
    report: Report,
    set: &'a Combination,
    figures: Vec<Option<f64>>,
    /// Empty unless it is asked for.
    json: String,
}

impl<'a> Row<'a> {
    fn new(cell: usize, varied: &'a Varied, outcome: &Outcome, with_json: bool) -> Self {
        let json = match with_json {
            true => json(outcome, &varied.set),
            false => String::new(),
        };
        Self {
            cell,
            report: outcome.report.clone(),
            set: &varied.set,
            figures: FIGURES.iter().map(|figure| (figure.of)(outcome)).collect(),
            json,
        }
    }
}

/// A run as a JSON object. What was set is in it, if anything was.
pub(super) fn json(outcome: &Outcome, set: &Combination) -> String {
    let mut json = outcome.to_json();
    if !set.is_empty() && json.pop() == Some('}') {
        let typed = |value: &str| serde_json::from_str(value).unwrap_or_else(|_| value.into());
        let set = set.iter().map(|(path, value)| (path.clone(), typed(value)));
        let set: serde_json::Map<String, serde_json::Value> = set.collect();
        let _ = write!(json, ",\"set\":{}}}", serde_json::Value::Object(set));
    }
    json
}

impl Varied {
    /// A run of it as a JSON object.
    pub(super) fn json(&self, outcome: &Outcome) -> String {
        json(outcome, &self.set)
    }
}

/// The text of a scenario with these values.
fn changed(name: &str, text: &str, set: &Combination) -> Result<String, Failure> {
    let mut changed = text.to_owned();
    for (path, value) in set {
        changed = scenario::set(&changed, path, value).map_err(|error| {
            Failure::Usage(format!("{name}: --set {path}={value}: {}", error.text))
        })?;
    }
    Ok(changed)
}

/// `fault.0.factor=0.05 seed=7`
fn words(set: &Combination) -> String {
    let words = set.iter().map(|(path, value)| format!("{path}={value}"));
    words.collect::<Vec<_>>().join(" ")
}

/// For people: one run of each cell as a table, several as how each figure is spread.
fn tell(cells: &[Cell<'_>], rows: &[Row<'_>]) -> Result<(), Failure> {
    if rows.len() == cells.len() {
        let mut text = String::new();
        for block in rows.chunk_by(|a, b| a.set == b.set) {
            if !block[0].set.is_empty() {
                let _ = writeln!(text, "{}", words(block[0].set));
            }
            text += &report::table(block.iter().map(|row| &row.report));
        }
        return print(text.trim_end());
    }
    for block in rows.chunk_by(|a, b| a.cell == b.cell) {
        let Report {
            scenario,
            policy,
            seed,
            ..
        } = &block[0].report;
        let count = block.len();
        let set = words(block[0].set);
        let with = if set.is_empty() { "" } else { ", " };
        print(&format!(
            "{scenario} under {policy}, {count} seeds from {seed}{with}{set}"
        ))?;
        print(&format!(
            "  {:<26} {:>12} {:>12} {:>12} {:>12} {:>12}",
            "", "least", "5th", "median", "95th", "most"
        ))?;
        for (place, figure) in FIGURES.iter().enumerate() {
            let row = Spread::of(block.iter().filter_map(|row| row.figures[place]));
            let name = figure.name;
            let line = match row.count {
                0 => format!("  {name:<26} {:>12}", "none"),
                _ => format!(
                    "  {name:<26} {:>12.4} {:>12.4} {:>12.4} {:>12.4} {:>12.4}",
                    row.least, row.p5, row.median, row.p95, row.most
                ),
            };
            print(&line)?;
        }
    }
    Ok(())
}

/// What was set has the right shape, but cannot be: with the line of what it came to, since no file has that.
fn bad_set(name: &str, set: &Combination, text: &str, error: &ScenarioError) -> Failure {
    let line = error.line.checked_sub(1);
    let line = line.and_then(|line| text.lines().nth(line));
    let place = line.map_or(String::new(), |line| format!("`{}`: ", line.trim()));
    Failure::Usage(format!(
        "{name} with --set {}: {place}{}",
        words(set).replace(' ', " --set "),
        error.text
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_number_or_a_range_with_both_ends() {
        assert_eq!(seeds("20"), Ok(Seeds::Count(20)));
        assert_eq!(seeds("1..20"), Ok(Seeds::Range(1, 20)));
        assert_eq!(seeds("5..=5"), Ok(Seeds::Range(5, 5)));
        for wrong in [
            "0",
            "",
            "-1",
            "20..1",
            "1..",
            "..3",
            "1..2..3",
            "0..18446744073709551615",
        ] {
            assert!(seeds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_are_parted_by_commas_but_not_within_brackets_or_quotes() {
        assert_eq!(at_commas("0.05, 0.1,0.5"), ["0.05", "0.1", "0.5"]);
        assert_eq!(at_commas("[1, 9],7"), ["[1, 9]", "7"]);
        assert_eq!(at_commas("\"a,b\""), ["\"a,b\""]);
    }
}
