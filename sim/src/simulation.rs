//! Scenarios of every kind, told apart by their files.

use crate::report::Outcome;
use crate::scenario::{Scenario, ScenarioError};
use crate::setup::Setup;
use crate::{Options, POLICIES, SplitPolicy, policy, posting, simulate, staging};

/// A scenario, checked and ready to run.
#[derive(Clone, Debug)]
pub enum Simulation {
    /// Engines on a fabric, under a policy for rails.
    Fabric(Box<Setup>),
    /// The same under settings, and what is seen of send queues.
    Posting(Box<posting::Setup>),
    /// Two hosts that stage, under settings of that.
    Staging(Box<staging::Setup>),
}

impl Simulation {
    /// Reads a scenario's file; `seed` instead of its own.
    pub fn new(text: &str, seed: Option<u64>) -> Result<Self, ScenarioError> {
        let tables = toml::from_str::<toml::Table>(text).unwrap_or_default();
        if tables.contains_key("slots") {
            return Ok(Self::Staging(Box::new(staging::Setup::new(text, seed)?)));
        }
        if tables.contains_key("setting") {
            return Ok(Self::Posting(Box::new(posting::Setup::new(text, seed)?)));
        }
        let setup = Setup::new(text, &Scenario::parse(text)?, seed)?;
        Ok(Self::Fabric(Box::new(setup)))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Fabric(setup) => &setup.name,
            Self::Posting(setup) => setup.name(),
            Self::Staging(setup) => &setup.name,
        }
    }

    /// What its chance starts from.
    pub fn seed(&self) -> u64 {
        match self {
            Self::Fabric(setup) => setup.seed,
            Self::Posting(setup) => setup.seed(),
            Self::Staging(setup) => setup.seed,
        }
    }

    /// What it shows, in one line.
    pub fn shows(&self) -> &str {
        match self {
            Self::Fabric(setup) => &setup.shows,
            Self::Posting(setup) => setup.shows(),
            Self::Staging(setup) => &setup.shows,
        }
    }

    /// What is compared in it, by name: policies for rails, or the settings of its file, the usual one first.
    pub fn variants(&self) -> Vec<&str> {
        match self {
            Self::Fabric(_) => POLICIES.iter().map(|policy| policy.name()).collect(),
            Self::Posting(setup) => setup.settings().collect(),
            Self::Staging(setup) => setup.settings().collect(),
        }
    }

    /// What [`Self::variant`] knows.
    pub fn known(&self) -> Vec<&str> {
        let mut known = self.variants();
        if let Self::Fabric(_) = self {
            known.extend(SplitPolicy::ALL.map(SplitPolicy::name));
        }
        known
    }

    /// The variant of this name. Where settings are compared, a policy for rails stands for the usual one.
    pub fn variant(&self, name: &str) -> Option<&str> {
        let known = self.known();
        let found = known.iter().find(|known| **known == name).copied();
        // Where there are no policies to compare, one stands for the usual setting.
        let usual = known.first().filter(|_| policy(name).is_some());
        found.or(usual.copied())
    }

    /// Runs one history of a variant; of the usual one if there is none of this name.
    pub fn run(&self, variant: &str, options: Options) -> Outcome {
        let place = self.variants().iter().position(|name| *name == variant);
        let place = place.unwrap_or(0);
        match self {
            Self::Fabric(setup) => {
                let named = Options::named(variant).unwrap_or(Options::new(POLICIES[place]));
                let options = Options {
                    policy: named.policy,
                    split: named.split,
                    ..options
                };
                simulate(setup, options, &mut |_, _| {})
            }
            Self::Posting(setup) => posting::run(setup, place).outcome,
            Self::Staging(setup) => staging::run(setup, place).outcome,
        }
    }
}
