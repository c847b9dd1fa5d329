//! What steers path isolation.
//!
//! Source: MPIB path isolation document, "Configuration Reference", for the names' meaning and the defaults;
//! `docs/path-isolation.md` maps its variables.

use core::fmt;

use super::class::{CLASSES_MAX, RailClass};
use super::island::IslandPrefix;
use crate::time::Duration;

/// Who says which class carries what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PathMode {
    /// The topology alone: supplementary rails inside an island, primary ones between islands. No agent is asked.
    #[default]
    Vanilla,
    /// An agent, by hints; a relay is taken to carry supplementary traffic between islands.
    Advanced,
}

impl PathMode {
    /// The mode in one word, as configurations say it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vanilla => "vanilla",
            Self::Advanced => "advanced",
        }
    }
}

/// Queue pairs to one peer that one class may have.
pub const QUEUE_PAIRS_MAX: u16 = 256;

/// What steers path isolation. Both ends of a connection need the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PathConfig {
    /// Who says which class carries what.
    pub mode: PathMode,
    /// What makes two addresses one island.
    pub island_prefix: IslandPrefix,
    /// Queue pairs to one peer, by class; 0 for a class that is not there. The primary has at least one, and none
    /// has more than [`QUEUE_PAIRS_MAX`].
    pub queue_pairs: [u16; CLASSES_MAX],
    /// Mode `Advanced`: transfers to another island of up to this many bytes stay on the primary class, because a
    /// relay's delay costs them more than its bandwidth gives. 0: none do.
    pub small_bytes_max: u64,
    /// Mode `Advanced`: a class that a hint names is waited for, so that bytes keep the hint's shares also while they queue. Else
    /// what it has no room for goes to the others: more passes, and shares follow what each class can carry.
    pub hint_strict: bool,
    /// A hint whose agent has not been heard of for longer counts for nothing. Above zero.
    pub hint_age_max: Duration,
}

impl PathConfig {
    /// The document's values. Of small transfers and of an agent's silence it only says that they matter: one slice
    /// of 64 KiB is about what 100 Gbit/s carry in 5 µs, and half a second is five beats of our agent's heart.
    pub const DEFAULT: Self = Self {
        mode: PathMode::Vanilla,
        island_prefix: IslandPrefix::DEFAULT,
        queue_pairs: [2, 4, 0, 0, 0, 0, 0, 0],
        small_bytes_max: 64 << 10,
        hint_strict: true,
        hint_age_max: Duration::from_millis(500),
    };

    /// Whether the values make sense; the first that does not.
    pub fn check(&self) -> Result<(), PathConfigError> {
        let IslandPrefix { v4_bits, v6_bits } = self.island_prefix;
        for (family, bits, max) in [("IPv4", v4_bits, 32), ("IPv6", v6_bits, 128)] {
            if bits > max {
                return Err(PathConfigError::Prefix { family, bits, max });
            }
        }
        for (class, count) in RailClass::all().zip(self.queue_pairs) {
            let min = u16::from(class == RailClass::PRIMARY);
            if !(min..=QUEUE_PAIRS_MAX).contains(&count) {
                return Err(PathConfigError::QueuePairs { class, count, min });
            }
        }
        if self.hint_age_max == Duration::ZERO {
            return Err(PathConfigError::HintAge);
        }
        Ok(())
    }
}

impl Default for PathConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What is wrong with a [`PathConfig`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathConfigError {
    /// No address has so many bits.
    Prefix {
        /// Which addresses.
        family: &'static str,
        /// Bits asked for.
        bits: u8,
        /// Bits there are.
        max: u8,
    },
    /// A class cannot have so many queue pairs.
    QueuePairs {
        /// Which class.
        class: RailClass,
        /// How many were asked for.
        count: u16,
        /// The least that it can have; the most is [`QUEUE_PAIRS_MAX`].
        min: u16,
    },
    /// A hint would be too old as soon as it is written.
    HintAge,
}

impl fmt::Display for PathConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix { family, bits, max } => write!(
                f,
                "an island's {family} prefix has {bits} bits; it can have 0 to {max}"
            ),
            Self::QueuePairs { class, count, min } => write!(
                f,
                "class {class} has {count} queue pairs; it can have {min} to {QUEUE_PAIRS_MAX}"
            ),
            Self::HintAge => f.write_str("a hint may be 0 ns old; give it longer than that"),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn the_defaults_are_the_documents() {
        let config = PathConfig::default();
        assert_eq!(config.check(), Ok(()));
        assert_eq!(
            (
                config.mode,
                config.island_prefix.v4_bits,
                &config.queue_pairs[..3]
            ),
            (PathMode::Vanilla, 24, &[2, 4, 0][..])
        );
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let with = |change: &dyn Fn(&mut PathConfig)| {
            let mut config = PathConfig::DEFAULT;
            change(&mut config);
            config
        };
        let prefix = |v4_bits, v6_bits| {
            with(&|config| config.island_prefix = IslandPrefix { v4_bits, v6_bits })
        };
        let pairs = |primary, supplementary| {
            with(&|config| config.queue_pairs = [primary, supplementary, 0, 0, 0, 0, 0, 0])
        };
        let deaf = with(&|config| config.hint_age_max = Duration::ZERO);
        // (config, what the error names; nothing: it is good)
        let cases: [(_, &[&str]); 10] = [
            (prefix(0, 0), &[]),
            (prefix(32, 128), &[]),
            (prefix(33, 64), &["IPv4", "33", "0 to 32"]),
            (prefix(24, 129), &["IPv6", "129", "0 to 128"]),
            (pairs(1, 0), &[]),
            (pairs(256, 256), &[]),
            (pairs(0, 4), &["primary", "0 queue pairs", "1 to 256"]),
            (pairs(257, 4), &["primary", "257"]),
            (pairs(2, 257), &["supplementary", "257", "0 to 256"]),
            (deaf, &["0 ns"]),
        ];
        for (config, parts) in cases {
            let error = config.check().err().map(|e| e.to_string());
            assert_eq!(error.is_none(), parts.is_empty(), "{config:?}: {error:?}");
            for part in parts {
                assert!(error.as_ref().unwrap().contains(part), "{error:?}");
            }
        }
    }
}
