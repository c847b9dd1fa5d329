//! The order of a lane's works.

/// The place of a work in the order in which its lane's epoch was given works.
///
/// 32 bits, so it wraps: a lane of 400 Gb/s with slices of 64 KiB comes round in an hour and a half. Two places of one epoch are
/// compared as RFC 1982 compares serial numbers, which is right as long as they are less than 2^31 works apart; a lane
/// holds 2^16 at most. There is no other order, so nothing can compare them as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Sequence(u32);

impl Sequence {
    /// Of an epoch's first work. It is just below the wrap, so that each lane comes round soon, and what is wrong there shows in
    /// every test.
    pub(super) const FIRST: Self = Self(0_u32.wrapping_sub(100));

    /// So many works later.
    #[inline(always)]
    pub(super) const fn plus(self, works: u32) -> Self {
        Self(self.0.wrapping_add(works))
    }

    /// So many works earlier.
    #[inline(always)]
    pub(super) const fn minus(self, works: u32) -> Self {
        Self(self.0.wrapping_sub(works))
    }

    /// Whether it was given before `other`.
    #[inline(always)]
    pub(super) const fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// The place behind the first `works` works of an epoch: what a peer means that has counted so many, from 0 and wrapping.
    pub(super) const fn after(works: u32) -> Self {
        Self::FIRST.plus(works)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;

    quickcheck! {
        /// Wherever a lane is, what is given later is later, and nothing is before itself.
        fn later_works_are_later(works: u32, ahead: u16) -> bool {
            let (first, second) = (Sequence::after(works), Sequence::after(works).plus(ahead.into()));
            first.is_before(second) == (ahead > 0) && !second.is_before(first) && second.minus(ahead.into()) == first
        }
    }

    #[test]
    fn a_lane_comes_round_within_its_first_works() {
        assert!(Sequence::FIRST.0 > Sequence::after(100).0);
        assert!(Sequence::FIRST.is_before(Sequence::after(100)));
    }
}
