//! Scenarios by name or from a file.

use polyrail_sim::scenario::ScenarioError;
use polyrail_sim::{Simulation, scenario};

use crate::exit::Failure;

/// A scenario, checked.
pub(super) struct Loaded {
    /// What it was asked for by.
    pub(super) name: String,
    pub(super) simulation: Simulation,
    /// What its chance starts from.
    pub(super) seed: u64,
    text: String,
}

/// The text of the scenario of the library, else of the file, of this name.
pub(super) fn text(name: &str) -> Result<String, Failure> {
    match scenario::text(name) {
        Some(text) => Ok(text.to_owned()),
        None => std::fs::read_to_string(name).map_err(|error| {
            Failure::Usage(format!("{name} is no scenario of the library (see `polyrail sim list`), and as a file: {error}"))
        }),
    }
}

impl Loaded {
    /// The scenario of the library, else the file, of this name.
    pub(super) fn new(name: &str, seed: Option<u64>) -> Result<Self, Failure> {
        Self::of(name, text(name)?, seed)
            .map_err(|error| Failure::Usage(format!("{name}: {error}")))
    }

    /// The scenario of this text.
    pub(super) fn of(name: &str, text: String, seed: Option<u64>) -> Result<Self, ScenarioError> {
        let simulation = Simulation::new(&text, seed)?;
        Ok(Self {
            name: name.to_owned(),
            seed: simulation.seed(),
            simulation,
            text,
        })
    }

    /// The same with another seed.
    pub(super) fn with_seed(&self, seed: u64) -> Result<Simulation, Failure> {
        Simulation::new(&self.text, Some(seed))
            .map_err(|error| Failure::Usage(format!("{}: {error}", self.name)))
    }

    /// What is meant by `--policy`: one of what the scenario compares.
    pub(super) fn variant(&self, name: &str) -> Result<&str, Failure> {
        self.simulation.variant(name).ok_or_else(|| {
            let known = self.simulation.known().join(", ");
            Failure::Usage(format!("--policy {name}: {} knows {known}", self.name))
        })
    }
}
