//! Which class of rails a transfer takes: where the peer is, who may say, and how bytes are shared out.
//!
//! A connection is classified once ([`island`]), which decides what queue pairs it has ([`layout`]); both ends
//! compare what they see ([`view`]). A transfer asks [`Path::preference`]: the topology answers in mode `Vanilla`, an
//! agent's [`hint`] in mode `Advanced`. A slice then gets the classes that it may take *now* from [`Path::classes`],
//! and the policy chooses a rail inside of them. Reachability and health come before all of this: they are handed
//! in, and no preference overrides them.
//!
//! Source: MPIB path isolation document. We differ: any number of classes, of which its pair is the case of two; a
//! preference that leaves nothing reachable gives way to what is, because its rails fail alone and not with the
//! program.

pub mod apportion;
pub mod class;
pub mod config;
pub mod hint;
pub mod island;
pub mod layout;
pub mod share;
pub mod view;

use apportion::Apportionment;
use class::{ClassSet, RailClass};
use config::{PathConfig, PathMode};
use island::PathClass;
use layout::QueuePairs;
use share::Shares;

/// What one transfer should do, as far as classes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Preference {
    /// Any of these, and no others while one of them can be reached.
    Within(ClassSet),
    /// Each class its share of the bytes.
    Apportioned(Shares),
}

impl Preference {
    /// The classes that it names.
    pub(crate) fn classes(&self) -> ClassSet {
        match self {
            Self::Within(classes) => *classes,
            Self::Apportioned(shares) => shares.classes(),
        }
    }
}

/// One connection's class, queue pairs and claims.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Path {
    class: PathClass,
    mode: PathMode,
    small_bytes_max: u64,
    hint_strict: bool,
    queue_pairs: QueuePairs,
    claims: Apportionment,
    hint_reads: u64,
}

impl Path {
    /// A connection of this class. The configuration has been checked.
    pub fn new(config: &PathConfig, class: PathClass) -> Self {
        debug_assert_eq!(
            config.check(),
            Ok(()),
            "the configuration has not been checked"
        );
        Self {
            class,
            mode: config.mode,
            small_bytes_max: config.small_bytes_max,
            hint_strict: config.hint_strict,
            queue_pairs: QueuePairs::new(config, class),
            claims: Apportionment::new(),
            hint_reads: 0,
        }
    }

    /// Where the peer is.
    pub const fn class(&self) -> PathClass {
        self.class
    }

    /// The queue pairs that it has.
    pub const fn queue_pairs(&self) -> &QueuePairs {
        &self.queue_pairs
    }

    /// How often a hint has been asked for. Always 0 in mode `Vanilla`.
    pub const fn hint_reads(&self) -> u64 {
        self.hint_reads
    }

    /// What a transfer of `bytes` should do. `read_hint` is only called if the answer depends on it; `None` from it
    /// (no agent, a stale one, nothing said) means the same as mode `Vanilla`.
    pub fn preference(
        &mut self,
        bytes: u64,
        read_hint: impl FnOnce() -> Option<Shares>,
    ) -> Preference {
        let small = self.class == PathClass::InterIsland && bytes <= self.small_bytes_max;
        let hint = match self.mode {
            PathMode::Advanced if small => return Preference::Within(ClassSet::PRIMARY),
            PathMode::Advanced => {
                self.hint_reads = self.hint_reads.saturating_add(1);
                read_hint()
            }
            PathMode::Vanilla => None,
        };
        hint.map_or_else(|| self.by_topology(), Preference::Apportioned)
    }

    /// The classes that a slice of `length` bytes may take now: none, and it waits. `reachable` are those with a
    /// usable rail, `room` those with one that could take the slice.
    ///
    /// A class without room yields to others that the preference names; while there is a hint and
    /// `hint_strict`, it is waited for. Nothing that the preference names reachable: any other class will do.
    pub fn classes(
        &self,
        preference: &Preference,
        length: u32,
        reachable: ClassSet,
        room: ClassSet,
    ) -> ClassSet {
        let reachable = reachable.and(self.queue_pairs.classes());
        let among = preference.classes().and(reachable);
        let classes = match preference {
            Preference::Apportioned(shares) if !among.is_empty() => {
                let asked = if self.hint_strict { among } else { room };
                let class = self.claims.next(shares, length, among, asked);
                class.map_or(ClassSet::NONE, ClassSet::only).and(room)
            }
            _ => among.or_else(reachable).and(room),
        };
        debug_assert!(
            classes.and(reachable) == classes,
            "a slice may take {classes:?}, and {reachable:?} can be reached"
        );
        classes
    }

    /// A slice that [`Self::classes`] was asked about, with the same preference and `reachable`, was posted on a
    /// rail of `class`.
    pub fn handle_bound(
        &mut self,
        preference: &Preference,
        length: u32,
        reachable: ClassSet,
        class: RailClass,
    ) {
        let Preference::Apportioned(shares) = preference else {
            return;
        };
        let among = shares
            .classes()
            .and(reachable)
            .and(self.queue_pairs.classes());
        // Outside of them the shares did not decide.
        if among.contains(class) {
            self.claims.charge(shares, length, among, class);
        }
    }

    /// The built-in policy.
    fn by_topology(&self) -> Preference {
        let preferred = match self.class {
            PathClass::IntraIsland => ClassSet::SUPPLEMENTARY.and(self.queue_pairs.classes()),
            PathClass::InterIsland => ClassSet::NONE,
        };
        Preference::Within(preferred.or_else(ClassSet::PRIMARY))
    }
}

#[cfg(test)]
mod tests;
