//! The ways in which a target goes dark.

use std::fmt;

use clap::ValueEnum;

use crate::fabric::Fault;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Links to the target that is lost.
    pub(crate) rails: usize,
    pub(crate) fault: Fault,
    pub(crate) transports: Transports,
    /// What is under way.
    pub(crate) load: Load,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (transports, load) = (self.transports.name(), self.load.name());
        write!(
            f,
            "{} rails, {:?}, transports {transports}, load {load}",
            self.rails, self.fault
        )
    }
}

/// The transports to the target that is lost. Between two network namespaces there is TCP, and TCP once more under
/// another name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Transports {
    One,
    Two,
    /// Two, and the better one does not let go of memory.
    Clinging,
}

impl Transports {
    /// As a flag.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Two => "two",
            Self::Clinging => "clinging",
        }
    }
}

/// What is under way to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Load {
    All,
    /// Only small requests, so that each rail has room for copies of them.
    Small,
}

impl Load {
    /// As a flag.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Small => "small",
        }
    }
}

/// Faults, transports and loads by turns; each with 1, 2 and 4 rails.
pub(crate) fn cases(repetitions: usize) -> impl Iterator<Item = Case> {
    let turns = [
        (Fault::Silent, Transports::One, Load::All),
        (Fault::CarrierDown, Transports::Two, Load::All),
        (Fault::Silent, Transports::Two, Load::Small),
        (Fault::CarrierDown, Transports::One, Load::Small),
        (Fault::Silent, Transports::Clinging, Load::All),
    ];
    let turns = turns.into_iter().cycle().take(repetitions);
    turns.flat_map(|(fault, transports, load)| {
        [1, 2, 4].map(|rails| Case {
            rails,
            fault,
            transports,
            load,
        })
    })
}
