//! Scenarios by name or from a file.

use polyrail_sim::Setup;
use polyrail_sim::scenario::{self, Scenario};

use crate::exit::Failure;

/// A scenario, checked.
pub(super) struct Loaded {
    /// What it was asked for by.
    pub(super) name: String,
    pub(super) setup: Setup,
}

impl Loaded {
    /// The scenario of the library, else the file, of this name.
    pub(super) fn new(name: &str, seed: Option<u64>) -> Result<Self, Failure> {
        let text = match scenario::text(name) {
            Some(text) => text.to_owned(),
            None => std::fs::read_to_string(name).map_err(|error| {
                Failure::Usage(format!("{name} is no scenario of the library (see `polyrail sim list`), and as a file: {error}"))
            })?,
        };
        let setup = Scenario::parse(&text)
            .and_then(|scenario| Setup::new(&text, &scenario, seed))
            .map_err(|error| Failure::Usage(format!("{name}: {error}")))?;
        Ok(Self {
            name: name.to_owned(),
            setup,
        })
    }
}
