//! A limit that was met.

use std::fmt;

use super::{FileError, OpenError, RegisterError};

/// A limit that was met: of what, which key of the configuration says it, and who has it all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Of what.
    pub what: &'static str,
    /// How many there can be.
    pub most: usize,
    /// The key of the configuration that says so; empty: none does.
    pub key: &'static str,
    /// Who has them, in words; empty: nobody keeps account.
    pub held_by: String,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            most,
            key,
            held_by,
        } = self;
        write!(f, "there are {most} {what} already, the most there can be")?;
        if !key.is_empty() {
            write!(f, " ({key})")?;
        }
        match held_by.is_empty() {
            true => Ok(()),
            false => write!(f, ": {held_by}"),
        }
    }
}

impl From<Limit> for OpenError {
    fn from(limit: Limit) -> Self {
        Self::Full(limit)
    }
}

impl From<Limit> for FileError {
    fn from(limit: Limit) -> Self {
        Self::Full(limit)
    }
}

impl From<Limit> for RegisterError {
    fn from(limit: Limit) -> Self {
        Self::Full(limit)
    }
}
