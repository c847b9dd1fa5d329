//! How the program ends.

use std::fmt;
use std::io;

/// Why the program ends other than well. The text says what happened, where, and what would be right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// It ran, and the verdict is bad: a wrong byte, a failed request.
    Verdict(String),
    /// It was asked for something that makes no sense.
    Usage(String),
    /// The environment failed it: an address in use, a peer that is not there or was lost.
    Environment(String),
    /// A signal, of this number, asked it to end.
    Interrupted(u8, String),
}

impl Failure {
    /// The exit code that scripts rely on.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Verdict(_) => 1,
            Self::Usage(_) => 2,
            Self::Environment(_) => 3,
            // As shells say it.
            Self::Interrupted(signal, _) => 128 + signal,
        }
    }

    /// A mistake of whoever asked, or of the surroundings, as the engine's errors tell them apart.
    pub(crate) fn from_engine(is_usage: bool, text: String) -> Self {
        if is_usage {
            Self::Usage(text)
        } else {
            Self::Environment(text)
        }
    }

    /// A signal of this number came.
    pub(crate) fn interrupted(signal: u8) -> Self {
        let text = match signal {
            2 => "interrupted by SIGINT".to_owned(),
            15 => "interrupted by SIGTERM".to_owned(),
            other => format!("interrupted by signal {other}"),
        };
        Self::Interrupted(signal, text)
    }

    /// The same, with more to be said.
    pub(crate) fn and(self, more: &str) -> Self {
        let with = |text: String| format!("{text} ({more})");
        match self {
            Self::Verdict(text) => Self::Verdict(with(text)),
            Self::Usage(text) => Self::Usage(with(text)),
            Self::Environment(text) => Self::Environment(with(text)),
            Self::Interrupted(signal, text) => Self::Interrupted(signal, with(text)),
        }
    }

    /// Standard output could not be written, for instance because its reader left.
    pub(crate) fn output(error: io::Error) -> Self {
        Self::Environment(format!("cannot write to standard output: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verdict(text) | Self::Usage(text) | Self::Environment(text) => f.write_str(text),
            Self::Interrupted(_, text) => f.write_str(text),
        }
    }
}
