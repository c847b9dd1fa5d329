//! `polyrail sim figures`: the figures of the paper on TENT.

use std::path::PathBuf;

use clap::Args;
use polyrail_sim::figures::{self, Figure};
use polyrail_sim::picture;

use super::pictures::write;
use super::{print, showing};
use crate::exit::Failure;

/// Arguments of `sim figures`.
#[derive(Args)]
pub(super) struct FiguresArgs {
    /// Where pages and CSV files go. Made if it is not there.
    folder: PathBuf,
    /// Only these, with commas between; without it all.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
}

pub(super) fn run(args: &FiguresArgs) -> Result<(), Failure> {
    let wanted = wanted(&args.only)?;
    std::fs::create_dir_all(&args.folder)
        .map_err(|error| Failure::Environment(format!("{}: {error}", args.folder.display())))?;
    let count = figures::runs(&wanted);
    let figures = showing("runs", count, |show| figures::make(&wanted, show));
    for figure in &figures {
        let file = |kind: &str| args.folder.join(format!("figure-{}.{kind}", figure.name));
        write(&file("html"), &picture::figure_page(figure))?;
        write(&file("csv"), &figure.csv())?;
        show(figure)?;
    }
    verdict(&figures)
}

/// Names of figures that there are.
fn wanted(only: &[String]) -> Result<Vec<&'static str>, Failure> {
    let known: Vec<&'static str> = figures::names().collect();
    if only.is_empty() {
        return Ok(known);
    }
    let find = |name: &String| {
        let found = known.iter().find(|known| *known == name);
        found.copied().ok_or_else(|| {
            let known = known.join(", ");
            Failure::Usage(format!(
                "--only {name}: there is no such figure; known are {known}"
            ))
        })
    };
    only.iter().map(find).collect()
}

fn show(figure: &Figure) -> Result<(), Failure> {
    print(&format!("figure {}: {}", figure.name, figure.title))?;
    for statement in &figure.statements {
        let verdict = statement.verdict();
        print(&format!(
            "  {verdict:<9}  {} Here: {}.",
            statement.paper, statement.here
        ))?;
        if let Some(why) = statement.differs.filter(|_| !statement.holds) {
            print(&format!("             {why}"))?;
        }
    }
    Ok(())
}

/// Bad if a statement that has to hold does not.
fn verdict(figures: &[Figure]) -> Result<(), Failure> {
    let all = figures.iter();
    let mut all = all.flat_map(|figure| figure.statements.iter().map(move |row| (figure, row)));
    match all.find(|(_, statement)| !statement.is_as_expected()) {
        Some((figure, statement)) => Err(Failure::Verdict(format!(
            "figure {}: \"{}\" does not hold: {}",
            figure.name, statement.paper, statement.here
        ))),
        None => Ok(()),
    }
}
