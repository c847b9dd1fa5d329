//! How many queue pairs a connection has of each class, and those of a suppressed class not at all.
//!
//! Source: MPIB path isolation document, "QP Layout" and "Connection setup". We differ in two points: what is suppressed is not
//! there, where the document keeps null entries that every user has to test; and no queue pair is set apart for control
//! messages ("CTS routing"), since control connections run over every class that is there.

use super::class::{CLASSES_MAX, ClassSet, RailClass};
use super::config::{PathConfig, PathMode};
use super::island::PathClass;

/// The queue pairs of one connection. Both ends have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QueuePairs {
    counts: [u16; CLASSES_MAX],
}

impl QueuePairs {
    /// Those of a connection of this class. Between islands mode `Vanilla` has only primary ones: others could not be
    /// connected, and trying to would only cost a timeout.
    pub fn new(config: &PathConfig, class: PathClass) -> Self {
        let suppressed = config.mode == PathMode::Vanilla && class == PathClass::InterIsland;
        let mut counts = config.queue_pairs;
        if suppressed {
            let supplementary = counts.iter_mut().skip(1);
            supplementary.for_each(|count| *count = 0);
        }
        debug_assert!(counts[0] > 0, "the configuration has not been checked");
        Self { counts }
    }

    /// The classes that have any.
    pub fn classes(&self) -> ClassSet {
        let there = RailClass::all().filter(|class| self.count(*class) > 0);
        there.collect()
    }

    /// How many a class has.
    pub fn count(&self, class: RailClass) -> u16 {
        self.counts.get(class.index()).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::PathClass::{InterIsland, IntraIsland};
    use super::PathMode::{Advanced, Vanilla};
    use super::*;

    #[test]
    fn each_mode_and_class_has_its_queue_pairs() {
        // (mode, class, counts, those of classes 0 to 3)
        let (pair, alone, three) = ([2, 4, 0, 0], [2, 0, 0, 0], [2, 0, 3, 1]);
        let cases = [
            (Vanilla, IntraIsland, pair, pair),
            (Vanilla, InterIsland, pair, alone),
            (Advanced, IntraIsland, pair, pair),
            (Advanced, InterIsland, pair, pair),
            (Vanilla, IntraIsland, alone, alone),
            (Advanced, InterIsland, alone, alone),
            (Vanilla, IntraIsland, three, three),
            (Vanilla, InterIsland, three, alone),
            (Advanced, InterIsland, three, three),
        ];
        for (mode, class, counts, expected) in cases {
            let mut queue_pairs = [0; CLASSES_MAX];
            queue_pairs[..4].copy_from_slice(&counts);
            let config = PathConfig {
                mode,
                queue_pairs,
                ..PathConfig::DEFAULT
            };
            let pairs = QueuePairs::new(&config, class);
            let name = (mode, class, counts);
            let found = [0, 1, 2, 3].map(|class| pairs.count(RailClass(class)));
            assert_eq!(found, expected, "{name:?}");
            assert_eq!(pairs.count(RailClass(200)), 0);
            let there = RailClass::all().filter(|class| pairs.count(*class) > 0);
            assert_eq!(pairs.classes(), there.collect(), "{name:?}");
        }
    }
}
