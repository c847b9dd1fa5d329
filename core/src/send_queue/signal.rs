//! Which works ask for a completion of their own.
//!
//! A completion costs; one covers the works without before it. But credits come back only with completions,
//! so the works without must never be all there is.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), phase 1A, for the interval. We differ: it signals
//! under pressure only when a whole queue has gone without; we do when more works wait for a completion than
//! credits are free. After a partial post it ends the lane; we signal the next work, which covers the rest.

/// Works, and how many of them are reads, which queue pairs limit besides (verbs `max_rd_atomic`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Amount {
    /// Works.
    pub works: u16,
    /// Reads among them.
    pub reads: u8,
}

impl Amount {
    /// Works that are writes.
    pub const fn writes(works: u16) -> Self {
        Self { works, reads: 0 }
    }
}

/// When one lane last signalled. Owned by whoever posts on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Cadence {
    interval_works: u16,
    unsignalled: Amount,
    /// A partial post left works that nothing covers.
    owed: bool,
}

impl Cadence {
    /// Of a fresh lane. `interval_works` 0: no interval.
    pub const fn new(interval_works: u16) -> Self {
        Self {
            interval_works,
            unsignalled: Amount::writes(0),
            owed: false,
        }
    }

    /// Works that no signal covers yet.
    pub const fn unsignalled(&self) -> Amount {
        self.unsignalled
    }

    /// Whether a work is to be signalled: `read` or not, with so many credits left after it, those in hand for works
    /// that come after it among them. `last` if the lane might have nothing to post after it.
    pub const fn next(&mut self, read: bool, free: Amount, last: bool) -> bool {
        debug_assert!(
            self.unsignalled.reads as u16 <= self.unsignalled.works,
            "more reads than works go without a signal"
        );
        debug_assert!(
            !self.owed || self.unsignalled.works > 0,
            "a signal is owed to nobody"
        );
        let works = self.unsignalled.works.saturating_add(1);
        let reads = self.unsignalled.reads.saturating_add(read as u8);
        let due = self.interval_works > 0 && works >= self.interval_works;
        let pressed = works > free.works || read && reads > free.reads;
        let signal = last || due || pressed || self.owed;
        self.unsignalled = if signal {
            Amount::writes(0)
        } else {
            Amount { works, reads }
        };
        self.owed = self.owed && !signal;
        signal
    }

    /// The post ended early: no signal covers the works that went out, `uncovered`. The next work is
    /// signalled if there are any.
    pub const fn handle_partial_post(&mut self, uncovered: Amount) {
        self.unsignalled = uncovered;
        self.owed = uncovered.works > 0;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    const PLENTY: Amount = Amount {
        works: 1000,
        reads: 100,
    };

    #[test]
    fn what_is_signalled() {
        let free = |works, reads| Amount { works, reads };
        let without = |works, reads, owed| Cadence {
            interval_works: 4,
            unsignalled: Amount { works, reads },
            owed,
        };
        // (name, before, read, free after it, last, signal)
        let cases = [
            (
                "nothing asks for it",
                without(2, 0, false),
                false,
                PLENTY,
                false,
                false,
            ),
            (
                "the interval",
                without(3, 0, false),
                false,
                PLENTY,
                false,
                true,
            ),
            (
                "the last before a pause",
                without(0, 0, false),
                false,
                PLENTY,
                true,
                true,
            ),
            (
                "owed after a partial post",
                without(1, 0, true),
                false,
                PLENTY,
                false,
                true,
            ),
            (
                "as many free as wait",
                without(1, 0, false),
                false,
                free(2, 9),
                false,
                false,
            ),
            (
                "fewer free than wait",
                without(1, 0, false),
                false,
                free(1, 9),
                false,
                true,
            ),
            (
                "fewer reads free than wait",
                without(1, 1, false),
                true,
                free(99, 1),
                false,
                true,
            ),
            (
                "a write minds no reads",
                without(1, 1, false),
                false,
                free(99, 0),
                false,
                false,
            ),
        ];
        for (name, mut cadence, read, free, last, signal) in cases {
            assert_eq!(cadence.next(read, free, last), signal, "{name}");
            assert_eq!(cadence.unsignalled().works == 0, signal, "{name}");
            assert!(!(signal && cadence.owed), "{name}: paid");
        }
    }

    #[test]
    fn a_partial_post_is_covered_by_the_next_work() {
        let mut cadence = Cadence::new(0);
        assert!(!cadence.next(false, PLENTY, false));
        assert!(cadence.next(false, PLENTY, true));
        // Of the two only the first went out.
        cadence.handle_partial_post(Amount::writes(1));
        assert!(cadence.next(false, PLENTY, false));
        // And of that nothing did: the first is still uncovered.
        cadence.handle_partial_post(Amount::writes(1));
        assert!(cadence.next(false, PLENTY, false));
        // Now nothing at all is out.
        cadence.handle_partial_post(Amount::writes(0));
        assert!(!cadence.next(false, PLENTY, false));
    }

    quickcheck! {
        // A lane that posts whenever it can never has all credits with works that nothing will complete.
        fn a_full_lane_always_has_a_signal_out(max: u8, interval: u8, reads: Vec<bool>) -> bool {
            let (max_works, max_reads) = (u16::from(max).max(1), u8::max(max / 4, 1));
            let mut cadence = Cadence::new(u16::from(interval));
            let mut held = Amount::default();
            for read in reads.into_iter().cycle().take(600) {
                held.works += 1;
                held.reads += u8::from(read);
                let free = Amount { works: max_works - held.works, reads: max_reads - held.reads };
                cadence.next(read, free, false);
                let out = cadence.unsignalled();
                if free.works == 0 && out.works > 0 || read && free.reads == 0 && out.reads > 0 {
                    return false;
                }
                // The completion covers all before it; it comes as late as it can.
                if free.works == 0 || free.reads == 0 {
                    held = out;
                }
            }
            true
        }
    }
}
