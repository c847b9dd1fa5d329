//! Which queue pairs a connection has: contiguous, class after class, and those of a suppressed class not at all.
//!
//! Source: MPIB path isolation document, "QP Layout", "Connection setup" and "CTS routing". We differ in one point:
//! what is suppressed has no index, where the document keeps a null entry that every user has to test.

use core::ops::Range;

use super::class::{CLASSES_MAX, ClassSet, RailClass};
use super::config::{PathConfig, PathMode};
use super::island::PathClass;

/// The queue pairs of one connection. Both ends lay them out alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QueuePairs {
    counts: [u16; CLASSES_MAX],
    control: RailClass,
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
        let mut pairs = Self {
            counts,
            control: RailClass::PRIMARY,
        };
        pairs.control = pairs.choose_control(config.mode, class);
        pairs
    }

    /// How many there are.
    pub fn total(&self) -> u32 {
        self.counts.iter().map(|count| u32::from(*count)).sum()
    }

    /// The classes that have any.
    pub fn classes(&self) -> ClassSet {
        let there = RailClass::all().filter(|class| self.count(*class) > 0);
        there.collect()
    }

    /// The indices of a class's queue pairs; `None` for a class that has none.
    pub fn range(&self, class: RailClass) -> Option<Range<u32>> {
        let count = self.count(class);
        let before = self.counts.iter().take(class.index());
        let start = before.map(|count| u32::from(*count)).sum();
        (count > 0).then(|| start..start + u32::from(count))
    }

    /// The queue pair of a class for the `turn`-th use of it: one after the other.
    pub fn pick(&self, class: RailClass, turn: u64) -> Option<u32> {
        let range = self.range(class)?;
        let offset = turn.checked_rem(u64::from(self.count(class)))?;
        Some(range.start + offset as u32)
    }

    /// The class of a queue pair; `None` for one that is not there.
    pub fn class_of(&self, index: u32) -> Option<RailClass> {
        RailClass::all().find(|class| {
            self.range(*class)
                .is_some_and(|range| range.contains(&index))
        })
    }

    /// The queue pair that control messages take: the data's class in mode `Vanilla`, always the primary one in
    /// mode `Advanced`, whose agent steers data only.
    pub fn control(&self) -> Option<u32> {
        self.range(self.control).map(|range| range.start)
    }

    fn choose_control(&self, mode: PathMode, class: PathClass) -> RailClass {
        match (mode, class) {
            (PathMode::Vanilla, PathClass::IntraIsland) => {
                let supplementary = self.classes().and(ClassSet::SUPPLEMENTARY).iter().next();
                supplementary.unwrap_or(RailClass::PRIMARY)
            }
            (PathMode::Vanilla, PathClass::InterIsland) | (PathMode::Advanced, _) => {
                RailClass::PRIMARY
            }
        }
    }

    fn count(&self, class: RailClass) -> u16 {
        self.counts.get(class.index()).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::PathClass::{InterIsland, IntraIsland};
    use super::PathMode::{Advanced, Vanilla};
    use super::*;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    fn layout(mode: PathMode, class: PathClass, counts: [u16; CLASSES_MAX]) -> QueuePairs {
        let config = PathConfig {
            mode,
            queue_pairs: counts,
            ..PathConfig::DEFAULT
        };
        QueuePairs::new(&config, class)
    }

    #[test]
    fn each_mode_and_class_has_its_queue_pairs() {
        const PAIR: [u16; CLASSES_MAX] = [2, 4, 0, 0, 0, 0, 0, 0];
        const ALONE: [u16; CLASSES_MAX] = [2, 0, 0, 0, 0, 0, 0, 0];
        const THREE: [u16; CLASSES_MAX] = [2, 0, 3, 1, 0, 0, 0, 0];
        // (mode, class, counts, total, range of classes 1 and 2, control)
        let cases = [
            (Vanilla, IntraIsland, PAIR, 6, Some(2..6), None, 2),
            (Vanilla, InterIsland, PAIR, 2, None, None, 0),
            (Advanced, IntraIsland, PAIR, 6, Some(2..6), None, 0),
            (Advanced, InterIsland, PAIR, 6, Some(2..6), None, 0),
            (Vanilla, IntraIsland, ALONE, 2, None, None, 0),
            (Advanced, InterIsland, ALONE, 2, None, None, 0),
            (Vanilla, IntraIsland, THREE, 6, None, Some(2..5), 2),
            (Vanilla, InterIsland, THREE, 2, None, None, 0),
            (Advanced, InterIsland, THREE, 6, None, Some(2..5), 0),
        ];
        for (mode, class, counts, total, first, second, control) in cases {
            let pairs = layout(mode, class, counts);
            let name = (mode, class, counts);
            assert_eq!(pairs.total(), total, "{name:?}");
            assert_eq!(pairs.range(RailClass::PRIMARY), Some(0..2), "{name:?}");
            assert_eq!(pairs.range(RailClass(1)), first, "{name:?}");
            assert_eq!(pairs.range(RailClass(2)), second, "{name:?}");
            assert_eq!(pairs.control(), Some(control), "{name:?}");
        }
    }

    #[test]
    fn turns_go_round_inside_a_class() {
        let pairs = layout(Vanilla, IntraIsland, [2, 4, 0, 0, 0, 0, 0, 0]);
        let picks = |class| -> Vec<_> { (0..6).map(|turn| pairs.pick(class, turn)).collect() };
        let of = |indices: [u32; 6]| indices.map(Some).to_vec();
        assert_eq!(picks(RailClass(0)), of([0, 1, 0, 1, 0, 1]));
        assert_eq!(picks(RailClass(1)), of([2, 3, 4, 5, 2, 3]));
        assert_eq!(picks(RailClass(2)), [None; 6]);
        assert_eq!(picks(RailClass(200)), [None; 6]);
        assert_eq!(pairs.pick(RailClass(1), u64::MAX), Some(5));
    }

    quickcheck! {
        /// Every index belongs to one class that is there.
        fn every_index_has_one_class(mode: bool, class: bool, counts: (u8, u8, u8)) -> bool {
            let (mode, class) = (
                if mode { Vanilla } else { Advanced },
                if class { IntraIsland } else { InterIsland },
            );
            let (a, b, c) = counts;
            let counts = [u16::from(a).max(1), b.into(), c.into(), 0, 0, 0, 0, 0];
            let pairs = layout(mode, class, counts);
            let found = (0..pairs.total()).all(|index| {
                pairs.class_of(index).is_some_and(|class| pairs.classes().contains(class))
            });
            found && pairs.class_of(pairs.total()).is_none() && pairs.class_of(pairs.control().unwrap()).is_some()
        }
    }
}
