//! Rows of a run as tables.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::Value;

/// Reads what `compare --rows` wrote.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Value>> {
    let text = fs::read_to_string(path)?;
    text.lines()
        .map(|line| serde_json::from_str(line).map_err(io::Error::other))
        .collect()
}

/// One figure of all rounds: the median, the least, the greatest.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Spread {
    median: f64,
    least: f64,
    greatest: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            (values.get(middle.checked_sub(1)?)? + values[middle]) / 2.0
        };
        Some(Self {
            median,
            least: *values.first()?,
            greatest: *values.last()?,
        })
    }
}

/// All figures by who, cell and field, with everybody and all cells in the order in which they came.
struct Figures {
    values: BTreeMap<(String, String, &'static str), Vec<f64>>,
    who: Vec<String>,
    cells: Vec<String>,
}

const RATE: &str = "gbytes_per_sec";
const FIELDS: [&str; 5] = [RATE, "p50_us", "p99_us", "cpu_seconds_per_gbyte", "others"];

impl Figures {
    fn new(rows: &[Value]) -> Self {
        let mut it = Self {
            values: BTreeMap::new(),
            who: Vec::new(),
            cells: Vec::new(),
        };
        for row in rows {
            let (Some(who), Some(cell)) = (row["who"].as_str(), row["cell"].as_str()) else {
                continue;
            };
            for (list, name) in [(&mut it.who, who), (&mut it.cells, cell)] {
                if !list.iter().any(|known| known == name) {
                    list.push(name.into());
                }
            }
            for field in FIELDS {
                if let Some(value) = row[field].as_f64() {
                    let key = (who.to_owned(), cell.to_owned(), field);
                    it.values.entry(key).or_default().push(value);
                }
            }
        }
        it
    }

    fn spread(&self, who: &str, cell: &str, field: &'static str) -> Option<Spread> {
        let key = (who.to_owned(), cell.to_owned(), field);
        Spread::of(self.values.get(&key)?.clone())
    }

    /// The floor that moved most in a cell.
    fn floor(&self, cell: &str) -> Option<(&str, f64)> {
        self.who
            .iter()
            .filter(|who| who.starts_with("sockets"))
            .filter_map(|who| Some((who.as_str(), self.spread(who, cell, RATE)?.median)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Three figures tell enough.
fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

/// Three tables: rates and their ratios to the best floor, latencies, processor time.
pub(crate) fn markdown(rows: &[Value]) -> String {
    let figures = Figures::new(rows);
    let mut text = String::new();
    let _ = ratios(&mut text, &figures);
    let _ = values(&mut text, &figures);
    text
}

fn ratios(text: &mut String, figures: &Figures) -> std::fmt::Result {
    let others: Vec<&String> = figures
        .who
        .iter()
        .filter(|who| !who.starts_with("sockets"))
        .collect();
    write!(
        text,
        "GB/s, median (least–greatest), and the median's ratio to the best floor's\n\n"
    )?;
    write!(text, "| cell | best floor |")?;
    for who in &others {
        write!(text, " {who} |")?;
    }
    writeln!(text, "\n|---|---|{}", "---|".repeat(others.len()))?;
    for cell in &figures.cells {
        let floor = figures.floor(cell);
        let name = floor.map_or("none", |(who, _)| who);
        let rate = floor.map_or("-".into(), |(_, rate)| short(rate));
        write!(text, "| {cell} | {rate} {name} |")?;
        for who in &others {
            match figures.spread(who, cell, RATE) {
                None => write!(text, " - |")?,
                Some(Spread {
                    median,
                    least,
                    greatest,
                }) => {
                    let (m, l, g) = (short(median), short(least), short(greatest));
                    write!(text, " {m} ({l}–{g})")?;
                    match floor {
                        Some((_, rate)) => write!(text, " **{:.2}** |", median / rate)?,
                        None => write!(text, " |")?,
                    }
                }
            }
        }
        writeln!(text)?;
    }
    writeln!(text)
}

fn values(text: &mut String, figures: &Figures) -> std::fmt::Result {
    let titles = [
        (RATE, "GB/s"),
        ("p50_us", "p50 of a batch, µs"),
        ("p99_us", "p99 of a batch, µs"),
        (
            "cpu_seconds_per_gbyte",
            "processor seconds per GB, both processes",
        ),
        ("others", "share of the machine that others used meanwhile"),
    ];
    for (field, title) in titles {
        write!(text, "{title}, medians\n\n| cell |")?;
        for who in &figures.who {
            write!(text, " {who} |")?;
        }
        writeln!(text, "\n|---|{}", "---|".repeat(figures.who.len()))?;
        for cell in &figures.cells {
            write!(text, "| {cell} |")?;
            for who in &figures.who {
                match figures.spread(who, cell, field) {
                    Some(spread) => write!(text, " {} |", short(spread.median))?,
                    None => write!(text, " - |")?,
                }
            }
            writeln!(text)?;
        }
        writeln!(text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn medians_of_odd_and_even_counts() {
        let spread = |values: &[f64]| Spread::of(values.to_vec()).map(|s| s.median);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn ratios_are_to_the_best_floor() {
        let row = |who, rate| json!({"who": who, "cell": "write 4K×1", RATE: rate});
        let rows = [
            row("sockets-block-1", 1.0),
            row("sockets-spin-1", 2.0),
            row("polyrail", 1.5),
        ];
        let text = markdown(&rows);
        assert!(text.contains("2.00 sockets-spin-1"), "{text}");
        assert!(text.contains("1.50 (1.50–1.50) **0.75**"), "{text}");
    }
}
