//! From text to [`Scenario`], and what can be wrong with it.

use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;

use super::Scenario;

/// What is wrong with a scenario, and on which line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScenarioError {
    /// Counted from 1; 0 if no line is at fault.
    pub line: usize,
    /// What, and what would be right.
    pub text: String,
}

impl ScenarioError {
    /// An error at bytes `span` of a file.
    pub(crate) fn at(text: &str, span: Range<usize>, message: impl Into<String>) -> Self {
        let before = text.get(..span.start).unwrap_or_default();
        Self {
            line: before.matches('\n').count() + 1,
            text: message.into(),
        }
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.text),
            line => write!(f, "line {line}: {}", self.text),
        }
    }
}

impl std::error::Error for ScenarioError {}

impl Scenario {
    /// Reads a scenario file's text. Only its shape is checked; [`crate::setup::Setup::new`] checks the rest.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        read(text)
    }
}

/// Reads a scenario file of any kind.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, ScenarioError> {
    toml::from_str(text).map_err(|error| {
        let message = said(error.message());
        match error.span() {
            Some(span) => ScenarioError::at(text, span, message),
            None => ScenarioError {
                line: 0,
                text: message,
            },
        }
    })
}

/// What a message of the deserialiser says, with the known word that is nearest to an unknown one, and types of numbers in
/// words.
fn said(message: &str) -> String {
    let quoted = || message.split('`').skip(1).step_by(2);
    for (prefix, what) in [("unknown field `", "key"), ("unknown variant `", "word")] {
        if let Some(word) = quoted().next().filter(|_| message.starts_with(prefix)) {
            let known: Vec<_> = quoted().skip(1).collect();
            let nearest = known
                .iter()
                .min_by_key(|known| strsim::damerau_levenshtein(word, known));
            return match nearest {
                Some(nearest) => format!(
                    "unknown {what} {word}; the nearest known one is {nearest} (known here: {})",
                    known.join(", ")
                ),
                None => format!("unknown {what} {word}; none is known here"),
            };
        }
    }
    let Some((found, expected)) = message.rsplit_once("expected ") else {
        return message.to_owned();
    };
    let expected = match expected {
        "f64" => "a number",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" | "u64" => "a whole number, 0 or more",
        "string" | "a string" => "a text",
        other => other,
    };
    format!("{found}expected {expected}")
}

/// Bytes from a number or a text like `64KiB`: K, M, G, T and KiB… are 1024-based.
pub(crate) fn size(value: &toml::Value) -> Option<u64> {
    let text = match value {
        toml::Value::Integer(bytes) => return u64::try_from(*bytes).ok(),
        toml::Value::String(text) => text.trim(),
        _ => return None,
    };
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text.get(..digits)?.parse().ok()?;
    let shift = match text.get(digits..)?.trim() {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let text = |text: &str| size(&toml::Value::String(text.to_owned()));
        assert_eq!(text("64KiB"), Some(65_536));
        assert_eq!(text("4 M"), Some(4 << 20));
        assert_eq!(text("512"), Some(512));
        assert_eq!(size(&toml::Value::Integer(7)), Some(7));
        for wrong in ["", "KiB", "64kb", "-1", "99999999999T"] {
            assert_eq!(text(wrong), None, "{wrong}");
        }
        assert_eq!(size(&toml::Value::Integer(-1)), None);
    }
}
