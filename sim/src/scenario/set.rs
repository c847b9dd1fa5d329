//! A scenario's text with one of its values changed: what `--set PATH=VALUE` does.

use std::fmt;

use toml::{Table, Value};

use super::{Scenario, ScenarioError, read};
use crate::staging;

/// Why a value cannot be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetError {
    /// Where it was to go, as far as that was understood.
    pub path: String,
    /// What is wrong, and what would be right.
    pub text: String,
}

impl fmt::Display for SetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.text)
    }
}

impl std::error::Error for SetError {}

/// The text of a scenario with `value` at `path`, and with the shape of a scenario.
///
/// A path is keys with points between; tables of an array are numbered from 0, as in `fault.0.factor`, and `*` is all of
/// them. Keys that the file leaves out can be set, tables of an array cannot be added. A value is one of TOML; what is none is
/// a text, so that texts need no quotes.
pub fn set(text: &str, path: &str, value: &str) -> Result<String, SetError> {
    let wrong = |text: String| SetError {
        path: path.to_owned(),
        text,
    };
    let table: Table = read(text).map_err(|error: ScenarioError| wrong(error.to_string()))?;
    let keys: Vec<&str> = path.split('.').collect();
    let mut all = Value::Table(table);
    put(&mut all, &keys, 0, &parsed(value))?;
    let changed = toml::to_string(&all).map_err(|error| wrong(error.to_string()))?;
    shape(&changed).map_err(|error| wrong(error.text))?;
    Ok(changed)
}

/// A value of TOML, else a text.
fn parsed(value: &str) -> Value {
    let table = toml::from_str::<Table>(&format!("value = {value}"));
    let mut table = table.unwrap_or_default();
    let one = table.remove("value").filter(|_| table.is_empty());
    one.unwrap_or_else(|| Value::String(value.to_owned()))
}

/// Whether a text has the shape of a scenario, of whichever kind.
fn shape(text: &str) -> Result<(), ScenarioError> {
    let tables: Table = read(text)?;
    match tables.contains_key("slots") {
        true => read::<staging::scenario::Scenario>(text).map(drop),
        false => Scenario::parse(text).map(drop),
    }
}

/// Puts a value where the keys from `depth` on say.
fn put(at: &mut Value, keys: &[&str], depth: usize, value: &Value) -> Result<(), SetError> {
    let wrong = |text: String| SetError {
        path: keys.join("."),
        text,
    };
    let here = keys[..depth].join(".");
    let Some(key) = keys.get(depth) else {
        *at = value.clone();
        return Ok(());
    };
    match at {
        _ if key.is_empty() => Err(wrong("a key is empty; right is fault.0.factor".to_owned())),
        Value::Table(table) => {
            // What there is not is known or unknown to the shape of the whole.
            let new = || match keys.get(depth + 1) {
                Some(next) if is_place(next) => Value::Array(Vec::new()),
                _ => Value::Table(Table::new()),
            };
            let slot = table.entry(*key).or_insert_with(new);
            put(slot, keys, depth + 1, value)
        }
        Value::Array(rows) if *key == "*" && !rows.is_empty() => rows
            .iter_mut()
            .try_for_each(|row| put(row, keys, depth + 1, value)),
        Value::Array(rows) => {
            let count = rows.len();
            let row = key
                .parse()
                .ok()
                .and_then(|place: usize| rows.get_mut(place));
            match (row, count) {
                (Some(row), _) => put(row, keys, depth + 1, value),
                (None, 0) => Err(wrong(none(&here))),
                (None, _) => Err(wrong(format!(
                    "{here} is {count} tables or values; right are {here}.0 to {here}.{}, or {here}.* for all",
                    count - 1
                ))),
            }
        }
        _ => Err(wrong(format!("{here} is a value, and has no key {key}"))),
    }
}

/// Whether a key is one of an array.
fn is_place(key: &str) -> bool {
    key == "*" || key.parse::<usize>().is_ok()
}

/// What to say of an array that a scenario has not: whether there could be one.
fn none(here: &str) -> String {
    let empty = format!("{here} = []");
    match Scenario::parse(&empty) {
        Err(error) if error.text.starts_with("unknown") => error.text,
        _ => format!("the file has no [[{here}]]; add one to it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::text;

    fn changed(path: &str, value: &str) -> Result<Scenario, String> {
        let file = text("silent-rail").expect("a scenario of the library");
        let changed = set(file, path, value).map_err(|error| error.to_string())?;
        Ok(Scenario::parse(&changed).expect("its shape was checked"))
    }

    #[test]
    fn values_go_where_paths_say() {
        let fault = changed("fault.0.at_ms", "7.5").expect("a key that is there");
        assert_eq!(fault.fault[0].at_ms, 7.5);
        let batch = changed("workload.0.batch", "[1, 9]").expect("a key that is not");
        assert_eq!(batch.workload[0].batch.get_ref().bounds(), (1, 9));
        let jitter = changed("jitter.outlier_factor", "9").expect("a table that is not");
        assert_eq!(jitter.jitter.outlier_factor, 9);
        let kind = changed("fault.0.kind", "error").expect("a text without quotes");
        assert_eq!(
            *kind.fault[0].kind.get_ref(),
            crate::scenario::FaultKind::Error
        );
        let all = changed("device.*.delay_us", "31").expect("all tables of an array");
        assert!(all.device.iter().all(|device| device.delay_us == 31.0));
    }

    #[test]
    fn a_wrong_path_or_value_is_named_with_what_would_be_right() {
        // (path, value, what the error names)
        let cases = [
            (
                "fault.0.factr",
                "1",
                ["fault.0.factr: ", "factr; the nearest known one is factor"],
            ),
            (
                "falt.0.factor",
                "1",
                ["falt.0.factor: ", "falt; the nearest known one is fault"],
            ),
            (
                "jiter.x",
                "1",
                ["jiter.x: ", "jiter; the nearest known one is jitter"],
            ),
            (
                "fault.0.kind",
                "silnt",
                ["fault.0.kind: ", "silnt; the nearest known one is silent"],
            ),
            (
                "fault.5.factor",
                "1",
                ["fault.5.factor: ", "fault.0 to fault.0"],
            ),
            (
                "fault.x.factor",
                "1",
                ["fault.x.factor: ", "fault.0 to fault.0"],
            ),
            ("hint.0.at_ms", "1", ["hint.0.at_ms: ", "no [[hint]]"]),
            ("name.x", "1", ["name.x: ", "name is a value"]),
            ("fault..factor", "1", ["fault..factor: ", "empty"]),
            (
                "fault.0.at_ms",
                "soon",
                ["fault.0.at_ms: ", "expected a number"],
            ),
            (
                "duration_ms",
                "1.5",
                ["duration_ms: ", "expected a whole number"],
            ),
            (
                "workload.0.batch",
                "soon",
                ["workload.0.batch: ", "[1, 255]"],
            ),
        ];
        for (path, value, parts) in cases {
            let error = changed(path, value).expect_err(path);
            for part in parts {
                assert!(error.contains(part), "{path}: \"{part}\" is not in {error}");
            }
        }
    }
}
