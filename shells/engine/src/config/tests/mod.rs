//! Rules of configurations, one row each.

mod documents;
mod problems;
mod values;

use std::ffi::OsString;

use super::*;

/// All problems of a text, as lines.
fn problems(json: &str) -> Vec<String> {
    match Sources::new().json("f.json", json).load() {
        Ok(_) => Vec::new(),
        Err(ConfigError { problems }) => problems.iter().map(ToString::to_string).collect(),
    }
}

fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    let os = |(name, value): &(&str, &str)| (OsString::from(name), OsString::from(value));
    pairs.iter().map(os).collect()
}
