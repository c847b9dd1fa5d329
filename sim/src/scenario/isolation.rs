//! Path isolation: which hosts are in one island, and what agents say.

use polyrail_core::path::config::{PathConfig, PathMode};
use polyrail_core::path::island::IslandPrefix;
use polyrail_core::time::Duration;
use serde::Deserialize;
use toml::Spanned;

/// Who says which class of rails carries what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IsolationMode {
    /// The topology alone.
    Vanilla,
    /// Agents, by hints.
    Advanced,
}

/// How hosts isolate paths.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathTable {
    /// Who says which class carries what.
    pub mode: IsolationMode,
    /// How many leading bits of two addresses are equal inside an island: of both kinds of addresses.
    #[serde(default = "island_bits")]
    pub island_prefix_bits: Spanned<u8>,
    /// Transfers to other islands that stay on the primary class.
    #[serde(default = "small_bytes")]
    pub small_bytes_max: u64,
    /// Wait for a class that a hint names.
    #[serde(default = "hint_strict")]
    pub hint_strict: bool,
    /// How long an agent may be silent. It beats five times as often.
    #[serde(default = "hint_age")]
    pub hint_age_max_ms: Spanned<u64>,
}

fn hint_strict() -> bool {
    PathConfig::DEFAULT.hint_strict
}

fn island_bits() -> Spanned<u8> {
    Spanned::new(0..0, IslandPrefix::DEFAULT.v4_bits)
}

fn small_bytes() -> u64 {
    PathConfig::DEFAULT.small_bytes_max
}

fn hint_age() -> Spanned<u64> {
    Spanned::new(
        0..0,
        PathConfig::DEFAULT.hint_age_max.as_nanos() / 1_000_000,
    )
}

impl PathTable {
    /// As core has it, with no queue pairs yet.
    pub(crate) fn config(&self) -> PathConfig {
        PathConfig {
            mode: match self.mode {
                IsolationMode::Vanilla => PathMode::Vanilla,
                IsolationMode::Advanced => PathMode::Advanced,
            },
            island_prefix: prefix(*self.island_prefix_bits.get_ref()),
            small_bytes_max: self.small_bytes_max,
            hint_strict: self.hint_strict,
            hint_age_max: Duration::from_millis(*self.hint_age_max_ms.get_ref()),
            ..PathConfig::DEFAULT
        }
    }
}

/// An island's prefix of so many bits.
pub(crate) fn prefix(bits: u8) -> IslandPrefix {
    IslandPrefix {
        v4_bits: bits,
        v6_bits: bits,
    }
}

/// What the agent of a host says from some time on. Hosts that none is for have no agent.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hint {
    /// From when.
    pub at_ms: Spanned<f64>,
    /// Whose agent.
    pub host: Spanned<String>,
    /// Of connections to this host; without it, of all, and what was said of some is over.
    #[serde(default)]
    pub to: Option<Spanned<String>>,
    /// Parts per 1024 of each class, from the primary one on, which have to add up; without it, nothing any more.
    #[serde(default)]
    pub shares: Option<Spanned<Vec<u16>>>,
}
