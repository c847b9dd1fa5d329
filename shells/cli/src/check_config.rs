//! `polyrail check-config`: everything that is wrong with a configuration, or what it changes.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use polyrail::{Config, ConfigError, Loaded, Sources};

use crate::exit::Failure;
use crate::security;

/// Checks a configuration file together with the environment: every unknown key (with the nearest known one),
/// wrong type and value out of range, each with its place.
///
/// If nothing is wrong, prints the values that differ from their defaults and where each was said. Notes say what else is
/// needed to start with it on this host: a flag, or files of keys that can be read.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  polyrail check-config polyrail.json\n  \
    polyrail check-config --reference | less")]
pub(crate) struct CheckConfigArgs {
    /// The file; `-` for standard input.
    #[arg(required_unless_present = "reference")]
    file: Option<PathBuf>,
    /// Print all keys, with types, defaults and meanings, and check nothing.
    #[arg(long, conflicts_with = "file")]
    reference: bool,
}

/// Runs the command.
pub(crate) fn run(args: &CheckConfigArgs) -> Result<(), Failure> {
    let Some(file) = &args.file else {
        return print(&polyrail::reference());
    };
    let sources = match file.to_str() {
        Some("-") => Sources::new().json("standard input", &standard_input()?),
        _ => Sources::new().file(file),
    };
    match sources.environment().load() {
        Ok(mut loaded) => {
            loaded.notes.extend(hindrances(&loaded.config));
            print(&good(&loaded))
        }
        Err(error) => {
            print(&format!("{error}\n"))?;
            Err(bad(&file.display().to_string(), &error))
        }
    }
}

/// What keeps an engine with this from starting on this host, or without a flag besides.
fn hindrances(config: &Config) -> impl Iterator<Item = String> + use<> {
    let key = config.security.fingerprint().err();
    let key = key.map(|error| format!("no engine starts with it on this host: {error}"));
    security::out_of_reach(config).into_iter().chain(key)
}

fn standard_input() -> Result<String, Failure> {
    /// More than any configuration has.
    const BYTES_MAX: u64 = 1 << 20;
    let mut text = String::new();
    io::stdin()
        .take(BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|e| Failure::Usage(format!("cannot read standard input as text: {e}")))?;
    Ok(text)
}

fn good(loaded: &Loaded) -> String {
    let mut text = String::new();
    for value in &loaded.effective {
        let polyrail::Effective {
            key,
            value,
            default,
            place,
        } = value;
        let default = if default == "null" { "none" } else { default };
        text += &format!("{key} = {value} (default {default}), from {place}\n");
    }
    if loaded.effective.is_empty() {
        text += "every value is its default\n";
    }
    for note in &loaded.notes {
        text += &format!("note: {note}\n");
    }
    text + "ok\n"
}

fn bad(file: &str, error: &ConfigError) -> Failure {
    let count = error.problems.len();
    let problems = if count == 1 { "problem" } else { "problems" };
    Failure::Usage(format!(
        "{count} {problems} with {file} and the environment"
    ))
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Failure::output)
}
