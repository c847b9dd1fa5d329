//! One field of a configuration as text sees it: its type, its limits, and how it is read and set.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde_json::Value;

/// What a key stands for in a `T`. The limits belong to the type.
pub(super) enum Field<T: 'static> {
    /// One word of printable ASCII, at most 255 bytes.
    Word {
        get: fn(&T) -> String,
        set: fn(&mut T, String),
    },
    /// An address and a port, or nothing.
    Address {
        get: fn(&T) -> Option<SocketAddr>,
        set: fn(&mut T, Option<SocketAddr>),
    },
    /// Addresses, each once.
    Addresses {
        most: usize,
        get: fn(&T) -> Vec<IpAddr>,
        set: fn(&mut T, Vec<IpAddr>),
    },
    /// What addresses begin with, each once.
    Prefixes {
        get: fn(&T) -> Vec<IpNet>,
        set: fn(&mut T, Vec<IpNet>),
    },
    /// Words, of which each may begin or end with `*`.
    Patterns {
        get: fn(&T) -> Vec<String>,
        set: fn(&mut T, Vec<String>),
    },
    /// One of a few words, by position.
    Choice {
        words: &'static [&'static str],
        get: fn(&T) -> Option<usize>,
        set: fn(&mut T, usize),
    },
    /// Yes or no.
    Flag {
        get: fn(&T) -> bool,
        set: fn(&mut T, bool),
    },
    /// A whole number of some unit.
    Whole {
        unit: &'static str,
        least: u64,
        most: u64,
        get: fn(&T) -> u64,
        set: fn(&mut T, u64),
    },
    /// A number of some unit.
    Number {
        unit: &'static str,
        range: Span,
        get: fn(&T) -> f64,
        set: fn(&mut T, f64),
    },
    /// One to three numbers; the last one also stands for those that are left out.
    Numbers {
        range: Span,
        get: fn(&T) -> [f64; 3],
        set: fn(&mut T, [f64; 3]),
    },
}

/// A range of numbers.
#[derive(Clone, Copy)]
pub(super) enum Span {
    /// Both ends belong to it.
    Closed(f64, f64),
    /// The lower end does not.
    Above(f64, f64),
}

impl Span {
    fn contains(self, value: f64) -> bool {
        match self {
            Self::Closed(least, most) => value >= least && value <= most,
            Self::Above(least, most) => value > least && value <= most,
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(least, most) => write!(f, "from {least} to {most}"),
            Self::Above(least, most) => write!(f, "above {least}, up to {most}"),
        }
    }
}

/// Bytes of a word.
const WORD_BYTES_MAX: usize = 255;
/// Prefixes of one list.
const PREFIXES_MAX: usize = 256;
/// Characters of a wrong value that an error repeats.
const SHOWN_MAX: usize = 60;

impl<T> Field<T> {
    /// Sets it. The error says what is wrong and what would be right; nothing is set then.
    pub(super) fn apply(&self, to: &mut T, value: &Value) -> Result<(), String> {
        let wrong = || self.wrong(value);
        match self {
            Self::Word { set, .. } => {
                let word = value.as_str().filter(|word| is_word(word));
                set(to, word.ok_or_else(wrong)?.to_owned());
            }
            Self::Address { set, .. } => {
                let address = value.as_str().and_then(|text| text.parse().ok());
                set(to, Some(address.ok_or_else(wrong)?));
            }
            Self::Addresses { most, set, .. } => {
                let addresses = value.as_array().and_then(|list| addresses(list));
                let addresses = addresses
                    .filter(|addresses| addresses.len() <= *most)
                    .ok_or_else(wrong)?;
                if let Some(twice) = twice(&addresses) {
                    return Err(format!("{twice} is listed twice; each address is one rail"));
                }
                set(to, addresses);
            }
            Self::Prefixes { set, .. } => {
                let prefixes = value.as_array().and_then(|list| prefixes(list));
                let prefixes = prefixes.filter(|prefixes| prefixes.len() <= PREFIXES_MAX);
                set(to, prefixes.ok_or_else(wrong)?);
            }
            Self::Patterns { set, .. } => {
                let patterns = value.as_array().and_then(|list| patterns(list));
                let patterns = patterns.filter(|patterns| patterns.len() <= PREFIXES_MAX);
                set(to, patterns.ok_or_else(wrong)?);
            }
            Self::Choice { words, set, .. } => {
                let word = value.as_str();
                let position = words.iter().position(|known| Some(*known) == word);
                set(to, position.ok_or_else(wrong)?);
            }
            Self::Flag { set, .. } => set(to, value.as_bool().ok_or_else(wrong)?),
            Self::Whole {
                least, most, set, ..
            } => {
                let number = value.as_u64();
                let number = number.filter(|number| (*least..=*most).contains(number));
                set(to, number.ok_or_else(wrong)?);
            }
            Self::Number { range, set, .. } => {
                let number = value.as_f64().filter(|number| range.contains(*number));
                set(to, number.ok_or_else(wrong)?);
            }
            Self::Numbers { range, set, .. } => {
                let numbers = value.as_array().and_then(|list| three(list, *range));
                set(to, numbers.ok_or_else(wrong)?);
            }
        }
        Ok(())
    }

    /// Its value as JSON has it; `null` where there is none.
    pub(super) fn value(&self, of: &T) -> Value {
        match self {
            Self::Word { get, .. } => get(of).into(),
            Self::Address { get, .. } => get(of).map(|address| address.to_string()).into(),
            Self::Addresses { get, .. } => {
                let texts = get(of).into_iter().map(|address| address.to_string());
                texts.collect::<Vec<_>>().into()
            }
            Self::Prefixes { get, .. } => {
                let texts = get(of).into_iter().map(|prefix| prefix.to_string());
                texts.collect::<Vec<_>>().into()
            }
            Self::Patterns { get, .. } => get(of).into(),
            Self::Choice { words, get, .. } => get(of)
                .and_then(|position| words.get(position).copied())
                .into(),
            Self::Flag { get, .. } => get(of).into(),
            Self::Whole { get, .. } => get(of).into(),
            Self::Number { get, .. } => get(of).into(),
            Self::Numbers { get, .. } => get(of).to_vec().into(),
        }
    }

    /// Whether a value that a program has set itself is one that text could have set.
    pub(super) fn check(&self, of: &T) -> Result<(), String>
    where
        T: Clone,
    {
        match (self, self.value(of)) {
            // Not listening is what no text can say, and a policy of the simulator has no name here.
            (Self::Address { .. } | Self::Choice { .. }, Value::Null) => Ok(()),
            // A name of more than one word is no trouble to a program; the engine knows its own limit.
            (Self::Word { .. }, _) => Ok(()),
            (_, value) => self.apply(&mut of.clone(), &value),
        }
    }

    /// What a value as a text, such as that of an environment variable, is in JSON: words and addresses as they are, lists
    /// also without brackets.
    pub(super) fn parse_text(&self, text: &str) -> Value {
        let literal = |text: &str| serde_json::from_str(text).ok();
        let value = match self {
            Self::Word { .. } | Self::Address { .. } | Self::Choice { .. } => None,
            Self::Addresses { .. } | Self::Prefixes { .. } | Self::Patterns { .. }
                if !text.starts_with('[') =>
            {
                Some(text.split(',').map(str::trim).collect::<Vec<_>>().into())
            }
            Self::Numbers { .. } if !text.starts_with('[') => literal(&format!("[{text}]")),
            Self::Flag { .. } if text == "1" => Some(true.into()),
            Self::Flag { .. } if text == "0" => Some(false.into()),
            Self::Addresses { .. }
            | Self::Prefixes { .. }
            | Self::Patterns { .. }
            | Self::Numbers { .. }
            | Self::Flag { .. }
            | Self::Whole { .. }
            | Self::Number { .. } => literal(text),
        };
        value.unwrap_or_else(|| text.into())
    }

    /// Its type and unit in words.
    pub(super) fn kind(&self) -> String {
        match self {
            Self::Word { .. } => "word".into(),
            Self::Address { .. } => "`ADDRESS:PORT`".into(),
            Self::Addresses { .. } => "list of addresses".into(),
            Self::Prefixes { .. } => "list of prefixes".into(),
            Self::Patterns { .. } => "list of words".into(),
            Self::Choice { .. } => "word".into(),
            Self::Flag { .. } => "bool".into(),
            Self::Whole { unit: "", .. } => "whole number".into(),
            Self::Whole { unit, .. } => format!("whole number of {unit}"),
            Self::Number { unit: "", .. } => "number".into(),
            Self::Number { unit, .. } => format!("number of {unit}"),
            Self::Numbers { .. } => "list of numbers".into(),
        }
    }

    /// The values that it can have, in words.
    pub(super) fn range(&self) -> String {
        match self {
            Self::Word { .. } => {
                format!("1 to {WORD_BYTES_MAX} printable ASCII characters without spaces")
            }
            Self::Address { .. } => "port 0 for any".into(),
            Self::Addresses { most, .. } => {
                format!("at most {most}, each once, such as [\"10.0.0.1\", \"10.0.1.1\"]")
            }
            Self::Prefixes { .. } => {
                format!("at most {PREFIXES_MAX}, such as [\"10.0.1.0/24\", \"10.0.2.7\"]")
            }
            Self::Patterns { .. } => {
                format!(
                    "at most {PREFIXES_MAX}, each may begin or end with `*`, such as [\"spiffe://example/red/*\"]"
                )
            }
            Self::Choice { words, .. } => words.join(", "),
            Self::Flag { .. } => "true or false".into(),
            Self::Whole { least, most, .. } => format!("from {least} to {most}"),
            Self::Number { range, .. } => range.to_string(),
            Self::Numbers { range, .. } => format!("1 to 3 numbers, each {range}"),
        }
    }

    /// What is wrong with a value, and what would be right.
    fn wrong(&self, value: &Value) -> String {
        let right = match self {
            Self::Word { .. } => self.range(),
            Self::Address { .. } => "ADDRESS:PORT, such as \"127.0.0.1:7000\"".into(),
            Self::Addresses { .. } => format!("a list of addresses, {}", self.range()),
            Self::Prefixes { .. } => {
                format!("a list of what addresses begin with, {}", self.range())
            }
            Self::Patterns { .. } => format!("a list of words, {}", self.range()),
            Self::Choice { words, .. } => match words {
                [only] => format!("\"{only}\", the only one there is"),
                words => format!("one of {}", words.join(", ")),
            },
            Self::Flag { .. } => self.range(),
            Self::Whole { .. } | Self::Number { .. } => {
                format!("a {} {}", self.kind(), self.range())
            }
            Self::Numbers { .. } => self.range(),
        };
        let what = match (self, value) {
            (Self::Word { .. } | Self::Address { .. } | Self::Choice { .. }, Value::String(_))
            | (
                Self::Addresses { .. }
                | Self::Prefixes { .. }
                | Self::Patterns { .. }
                | Self::Numbers { .. },
                Value::Array(_),
            )
            | (Self::Number { .. }, Value::Number(_)) => "is not possible",
            (Self::Whole { .. }, Value::Number(number)) if number.is_f64() => "is not whole",
            (Self::Whole { .. }, Value::Number(_)) => "is not possible",
            (_, value) => type_of(value),
        };
        format!("{} {what}; give {right}", show(value))
    }
}

fn is_word(text: &str) -> bool {
    (1..=WORD_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn addresses(list: &[Value]) -> Option<Vec<IpAddr>> {
    let address = |value: &Value| value.as_str()?.parse().ok();
    list.iter().map(address).collect()
}

/// Of an address without a number of bits, all of them.
fn prefixes(list: &[Value]) -> Option<Vec<IpNet>> {
    let prefix = |value: &Value| {
        let text = value.as_str()?;
        let whole = text.parse::<IpAddr>().map(IpNet::from);
        Some(whole.or_else(|_| text.parse()).ok()?.trunc())
    };
    list.iter().map(prefix).collect()
}

fn patterns(list: &[Value]) -> Option<Vec<String>> {
    let pattern = |value: &Value| {
        let text = value.as_str().filter(|text| is_word(text))?;
        let inner = text.strip_prefix('*').unwrap_or(text);
        let inner = inner.strip_suffix('*').unwrap_or(inner);
        (!inner.is_empty() && !inner.contains('*')).then(|| text.to_owned())
    };
    list.iter().map(pattern).collect()
}

fn twice(addresses: &[IpAddr]) -> Option<IpAddr> {
    let again = |(index, address): &(usize, &IpAddr)| addresses[..*index].contains(address);
    addresses
        .iter()
        .enumerate()
        .find(again)
        .map(|(_, address)| *address)
}

fn three(list: &[Value], range: Span) -> Option<[f64; 3]> {
    let number = |value: &Value| value.as_f64().filter(|number| range.contains(*number));
    let numbers: Vec<f64> = list.iter().map(number).collect::<Option<_>>()?;
    match numbers[..] {
        [one] => Some([one; 3]),
        [one, two] => Some([one, two, two]),
        [one, two, three] => Some([one, two, three]),
        _ => None,
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "is nothing",
        Value::Bool(_) => "is a bool",
        Value::Number(_) => "is a number",
        Value::String(_) => "is a string",
        Value::Array(_) => "is a list",
        Value::Object(_) => "is an object",
    }
}

/// A value as it was written, or its beginning.
fn show(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
