//! What is wrong with a configuration, and where.

use std::fmt;

/// Where a value was said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// In a file, or in a text that a program has handed over.
    Text {
        /// The file, as it was named.
        name: String,
        /// Line and column, from 1; `None`: the file as a whole.
        at: Option<(usize, usize)>,
    },
    /// In an environment variable of this name.
    Variable(String),
    /// By the program, in the configuration itself.
    Program,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text { name, at: None } => f.write_str(name),
            Self::Text {
                name,
                at: Some((line, column)),
            } => write!(f, "{name}:{line}:{column}"),
            Self::Variable(name) => write!(f, "environment {name}"),
            Self::Program => f.write_str("configuration"),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// The key as a path, such as `transports/tcp/rail_cooldown_secs`; empty if it is about the whole.
    pub key: String,
    /// What it is, and what would be right.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, key, text } = self;
        if key.is_empty() {
            write!(f, "{place}: {text}")
        } else {
            write!(f, "{place}: {key}: {text}")
        }
    }
}

/// Everything that is wrong with a configuration, in the order of its sources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// At least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
