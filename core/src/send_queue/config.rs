//! How send queues are kept from overflowing.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), "New env vars", for the settings and for the
//! profile [`SendQueueConfig::MORI`].

use core::fmt;

use super::split::SplitPolicy;
use crate::time::Duration;

/// Settings of send queues. Checked once with [`Self::check`], then copied where they are needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
pub struct SendQueueConfig {
    /// How long a poster waits for credits.
    pub reserve_timeout: Duration,
    /// A work is signalled when so many have gone without. 0: only where it must be.
    pub signal_interval_works: u16,
    /// A poster who once did not fit waits until so many credits are free. 0: only until it fits.
    pub resume_watermark_works: u16,
    /// Whether works are admitted before a worker takes them, so that the program waits and not the worker.
    pub admission: bool,
    /// How long a whole batch may wait for admission. Not less than `admission_wait_slice`.
    pub admission_timeout: Duration,
    /// Who once was not admitted waits until so many works could be. 0: only until it fits.
    pub admission_resume_watermark_works: u16,
    /// Longest wait for a change without another look. Above 0.
    pub admission_wait_slice: Duration,
    /// Works that one admission covers at most. 0: what the other limits allow.
    pub admission_chunk_works: u16,
    /// Admissions of one batch that may be with workers at once, at most two for each lane. 0: one for each.
    pub admission_chunks_max: u16,
    /// Which lane takes the next chunk.
    pub split_policy: SplitPolicy,
    /// Opens `split_policy` `capacity`, which is an experiment.
    pub enable_experimental_capacity: bool,
}

impl SendQueueConfig {
    /// Ours: admission is on, chunks go to the least loaded lane, every 32nd work is signalled.
    pub const DEFAULT: Self = Self {
        signal_interval_works: 32,
        admission: true,
        split_policy: SplitPolicy::LeastLoaded,
        ..Self::MORI
    };

    /// The profile `mori`: the defaults of the flow-control rework.
    pub const MORI: Self = Self {
        reserve_timeout: Duration::from_micros(10_000),
        signal_interval_works: 0,
        resume_watermark_works: 0,
        admission: false,
        admission_timeout: Duration::from_micros(1_000_000),
        admission_resume_watermark_works: 2048,
        admission_wait_slice: Duration::from_micros(100),
        admission_chunk_works: 0,
        admission_chunks_max: 0,
        split_policy: SplitPolicy::Static,
        enable_experimental_capacity: false,
    };

    /// Says what is wrong, if anything is.
    pub const fn check(&self) -> Result<(), ConfigError> {
        let slice_us = self.admission_wait_slice.as_nanos() / 1_000;
        if slice_us == 0 {
            return Err(ConfigError {
                field: "admission_wait_slice",
                value: Value::Time(self.admission_wait_slice),
                expected: "at least 1us, or who waits spins",
            });
        }
        if self.admission_timeout.as_nanos() < self.admission_wait_slice.as_nanos() {
            return Err(ConfigError {
                field: "admission_timeout",
                value: Value::Time(self.admission_timeout),
                expected: "at least admission_wait_slice",
            });
        }
        if matches!(self.split_policy, SplitPolicy::Capacity) && !self.enable_experimental_capacity
        {
            return Err(ConfigError {
                field: "split_policy",
                value: Value::Word(self.split_policy.name()),
                expected: "static or least_loaded, or enable_experimental_capacity with it",
            });
        }
        Ok(())
    }

    /// The policy that counts: `capacity` behind a closed gate is `static`, as in the rework.
    pub const fn policy(&self) -> SplitPolicy {
        match self.split_policy {
            SplitPolicy::Capacity if !self.enable_experimental_capacity => SplitPolicy::Static,
            policy => policy,
        }
    }
}

impl Default for SendQueueConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A setting that makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// Which.
    pub field: &'static str,
    /// What it was.
    pub value: Value,
    /// What would be right.
    pub expected: &'static str,
}

/// The value of a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// A span of time.
    Time(Duration),
    /// A word.
    Word(&'static str),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is ", self.field)?;
        match self.value {
            Value::Time(time) => write!(f, "{time:?}")?,
            Value::Word(word) => write!(f, "`{word}`")?,
        }
        write!(f, "; expected {}", self.expected)
    }
}

impl core::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn the_profiles_are_sound() {
        assert_eq!(SendQueueConfig::DEFAULT.check(), Ok(()));
        assert_eq!(SendQueueConfig::MORI.check(), Ok(()));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        let config = SendQueueConfig::DEFAULT;
        let cases = [
            (
                SendQueueConfig {
                    admission_wait_slice: Duration::ZERO,
                    ..config
                },
                "admission_wait_slice is 0ns; expected at least 1us, or who waits spins",
            ),
            (
                SendQueueConfig {
                    admission_timeout: Duration::from_micros(99),
                    ..config
                },
                "admission_timeout is 99µs; expected at least admission_wait_slice",
            ),
            (
                SendQueueConfig {
                    split_policy: SplitPolicy::Capacity,
                    ..config
                },
                "split_policy is `capacity`; expected static or least_loaded, or \
                 enable_experimental_capacity with it",
            ),
        ];
        for (config, text) in cases {
            assert_eq!(config.check().unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn capacity_needs_its_gate() {
        let mut config = SendQueueConfig {
            split_policy: SplitPolicy::Capacity,
            ..SendQueueConfig::DEFAULT
        };
        assert_eq!(config.policy(), SplitPolicy::Static);
        config.enable_experimental_capacity = true;
        assert_eq!(
            (config.policy(), config.check()),
            (SplitPolicy::Capacity, Ok(()))
        );
    }
}
