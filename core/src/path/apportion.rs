//! Which class takes the next slice, so that the bytes of each come out at its share: error diffusion.
//!
//! Each class has a claim: what it should have carried by now less what it has. A slice adds its length to the
//! claims by their shares, and is taken from the claim of the class that carries it. The next one goes to the class
//! whose turn is due first among those that it would not put a whole slice ahead (earliest deadline first), which
//! keeps slices of equal length within one slice of their shares at any time and for any number of classes.
//!
//! The MPIB program sends the first messages of each 1024 one way and the rest the other, which is a burst on either
//! fabric; a share of bytes spread as evenly as it can be is not.

use super::class::{CLASSES_MAX, ClassSet, RailClass};
use super::share::Shares;

/// A claim beyond this many bytes, or one slice if that is longer, is forgotten: a class that had no room for a
/// while catches up with a few slices, not with minutes of all there is.
pub const CATCH_UP_BYTES_MAX: u32 = 4 << 20;

/// The claims of the classes of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Apportionment {
    /// In bytes times parts per 1024. Their sum is zero.
    claims: [i64; CLASSES_MAX],
}

impl Apportionment {
    /// Nobody has a claim.
    pub const fn new() -> Self {
        Self {
            claims: [0; CLASSES_MAX],
        }
    }

    /// The class that should carry the next slice of `length` bytes. The shares are of the classes in `among`; of
    /// those only the ones in `room` are answered. `None` if nobody with a share has room.
    pub fn next(
        &self,
        shares: &Shares,
        length: u32,
        among: ClassSet,
        room: ClassSet,
    ) -> Option<RailClass> {
        let whole = whole(shares, among);
        let turns = among.and(room).and(shares.classes()).iter();
        let turns = turns.map(|class| (class, self.turn(shares, length, whole, class)));
        turns
            .reduce(|best, other| if other.1.before(&best.1) { other } else { best })
            .map(|(class, _)| class)
    }

    /// A slice of `length` bytes goes to `class`. `shares` and `among` as in [`Self::next`]. A class without a share
    /// in them at all has no claim, and neither has one that is not in `among` for this slice.
    pub fn charge(&mut self, shares: &Shares, length: u32, among: ClassSet, class: RailClass) {
        debug_assert!(among.contains(class), "class {class} has no turn");
        let whole = whole(shares, among);
        let claim_max = i64::from(length.max(CATCH_UP_BYTES_MAX)) << 10;
        let mut left = 0;
        for (claim, other) in self.claims.iter_mut().zip(RailClass::all()) {
            let part = i64::from(shares.of(other));
            if among.contains(other) {
                *claim += part * i64::from(length);
            }
            let kept = if part == 0 {
                0
            } else {
                (*claim).min(claim_max)
            };
            left += *claim - kept;
            *claim = kept;
        }
        if let Some(claim) = self.claims.get_mut(class.index()) {
            // What is forgotten of others was carried by this one.
            *claim += left - whole * i64::from(length);
        }
        debug_assert_eq!(self.claims.iter().sum::<i64>(), 0, "claims of all classes");
    }

    fn turn(&self, shares: &Shares, length: u32, whole: i64, class: RailClass) -> Turn {
        let part = i64::from(shares.of(class));
        let claim = self.claims.get(class.index()).copied().unwrap_or(0);
        Turn {
            part,
            claim: claim + part * i64::from(length),
            // Until a class has a slice less than it should.
            slack: whole * i64::from(length) - claim,
        }
    }
}

/// The sum of the shares of some classes.
fn whole(shares: &Shares, among: ClassSet) -> i64 {
    among.iter().map(|class| i64::from(shares.of(class))).sum()
}

/// How much a class is in need of the next slice.
#[derive(Clone, Copy)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Turn {
    part: i64,
    /// With the slice counted.
    claim: i64,
    slack: i64,
}

impl Turn {
    fn before(&self, other: &Self) -> bool {
        match (self.claim > 0, other.claim > 0) {
            (true, false) => true,
            (false, true) => false,
            // slack / part is the time until the turn is over; in whole numbers.
            (true, true) => self.slack * other.part < other.slack * self.part,
            // Only if some class with a claim has no room.
            (false, false) => self.claim > other.claim,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    const KIB64: u32 = 64 << 10;
    const MIB: u32 = 1 << 20;
    const ALL: ClassSet = ClassSet::PRIMARY.with(RailClass(1)).with(RailClass(2));

    fn everybody() -> ClassSet {
        RailClass::all().collect()
    }

    /// Sends slices as the claims say, and gives the bytes of each class.
    fn send(
        claims: &mut Apportionment,
        shares: &Shares,
        lengths: impl IntoIterator<Item = u32>,
        room: ClassSet,
        mut each: impl FnMut(RailClass),
    ) -> [u64; CLASSES_MAX] {
        let mut bytes = [0; CLASSES_MAX];
        for length in lengths {
            let class = claims.next(shares, length, everybody(), room).unwrap();
            claims.charge(shares, length, everybody(), class);
            bytes[class.index()] += u64::from(length);
            each(class);
        }
        assert_eq!(claims.claims.iter().sum::<i64>(), 0);
        bytes
    }

    #[test]
    fn slices_alternate_as_evenly_as_they_can() {
        // (share of the supplementary class, the classes of the first eight slices)
        let cases = [
            (0, [0, 0, 0, 0, 0, 0, 0, 0]),
            (128, [0, 0, 0, 0, 0, 0, 0, 1]),
            (256, [0, 0, 0, 1, 0, 0, 0, 1]),
            (512, [0, 1, 0, 1, 0, 1, 0, 1]),
            (768, [1, 1, 0, 1, 1, 1, 0, 1]),
            (1024, [1, 1, 1, 1, 1, 1, 1, 1]),
        ];
        for (share, expected) in cases {
            let mut seen = Vec::new();
            let mut claims = Apportionment::new();
            let shares = Shares::pair(share);
            send(&mut claims, &shares, [KIB64; 8], everybody(), |class| {
                seen.push(class.0)
            });
            assert_eq!(seen, expected, "{share}");
        }
    }

    #[test]
    fn a_class_without_room_yields_and_catches_up_a_little() {
        let half = Shares::pair(512);
        let primary = ClassSet::PRIMARY;
        let mut claims = Apportionment::new();
        // While the supplementary class has no room, nothing waits.
        let bytes = send(&mut claims, &half, [MIB; 64], primary, |_| ());
        assert_eq!(bytes[0], 64 << 20);
        // Then what it may catch up with, and half of the rest.
        let bytes = send(&mut claims, &half, [MIB; 16], everybody(), |_| ());
        let ahead = bytes[1] - (8 << 20);
        assert_eq!(ahead, u64::from(CATCH_UP_BYTES_MAX), "{bytes:?}");
    }

    #[test]
    fn nobody_with_a_share_and_room_is_nobody() {
        let claims = Apportionment::new();
        let next = |share, among, room| claims.next(&Shares::pair(share), KIB64, among, room);
        let (primary, second) = (ClassSet::PRIMARY, ClassSet::only(RailClass(1)));
        // (name, share of the second, among, room, class)
        let cases = [
            ("all of the second", 1024, ALL, ALL, Some(1)),
            ("which has no room", 1024, ALL, primary, None),
            ("which is not reachable", 1024, primary, ALL, None),
            (
                "a little, and the other has no room",
                1,
                ALL,
                second,
                Some(1),
            ),
            ("no room at all", 512, ALL, ClassSet::NONE, None),
            ("nobody there", 512, ClassSet::NONE, ALL, None),
        ];
        for (name, share, among, room, class) in cases {
            assert_eq!(next(share, among, room), class.map(RailClass), "{name}");
        }
    }

    #[test]
    fn slices_that_may_go_one_way_only_change_nothing_for_the_others() {
        let half = Shares::pair(512);
        let mut claims = Apportionment::new();
        let mut bytes = [0; CLASSES_MAX];
        for _ in 0..20 {
            claims.charge(&half, KIB64, ClassSet::PRIMARY, RailClass(0));
            let class = claims.next(&half, KIB64, ALL, ALL).unwrap();
            claims.charge(&half, KIB64, ALL, class);
            bytes[class.index()] += 1;
        }
        assert_eq!(bytes[..2], [10, 10]);
    }

    #[test]
    fn a_class_that_no_longer_has_a_share_leaves_no_claims_behind() {
        let mut claims = Apportionment::new();
        // The primary class has carried what the second had no room for; then it is to carry nothing.
        let half = Shares::pair(512);
        send(&mut claims, &half, [MIB; 32], ClassSet::PRIMARY, |_| ());
        let mut parts = [0; CLASSES_MAX];
        (parts[1], parts[2]) = (512, 512);
        let others = Shares::new(parts).unwrap();
        let bytes = send(&mut claims, &others, [MIB; 32], everybody(), |_| ());
        assert!(
            bytes[1].abs_diff(bytes[2]) <= 2 * u64::from(MIB),
            "{bytes:?}"
        );
    }

    #[test]
    fn claims_of_the_largest_slices_do_not_overflow() {
        let mut claims = Apportionment::new();
        let bytes = send(
            &mut claims,
            &Shares::pair(1),
            [u32::MAX; 64],
            ClassSet::only(RailClass(1)),
            |_| (),
        );
        assert_eq!(bytes[1], 64 * u64::from(u32::MAX));
    }

    quickcheck! {
        fn equal_slices_are_never_a_slice_off_their_shares(shares: Shares, length: u32) -> bool {
            let length = length.clamp(1, 1 << 20);
            let mut claims = Apportionment::new();
            let mut good = true;
            for _ in 0..if cfg!(miri) { 5 } else { 2_000 } {
                send(&mut claims, &shares, [length], everybody(), |_| ());
                let slice = i64::from(length) << 10;
                good &= claims.claims.iter().all(|claim| claim.abs() < slice);
            }
            good
        }

        fn over_a_long_run_two_classes_are_within_a_slice(share: u16, lengths: Vec<u32>) -> bool {
            let share = u32::from(share % 1025);
            let shares = Shares::pair(share);
            let lengths: Vec<u32> = lengths.iter().map(|length| length % (1 << 20) + 1).collect();
            let longest = u64::from(lengths.iter().copied().max().unwrap_or(0));
            let total: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
            let bytes = send(&mut Apportionment::new(), &shares, lengths, everybody(), |_| ());
            let exact = u128::from(total) * u128::from(share) / 1024;
            bytes.iter().sum::<u64>() == total && u128::from(bytes[1]).abs_diff(exact) <= u128::from(longest)
        }

        fn no_class_gets_a_longest_slice_more_than_its_share(shares: Shares, lengths: Vec<u32>) -> bool {
            let lengths: Vec<u32> = lengths.iter().map(|length| length % (1 << 20) + 1).collect();
            let longest = i64::from(lengths.iter().copied().max().unwrap_or(0)) << 10;
            let mut claims = Apportionment::new();
            lengths.iter().all(|length| {
                send(&mut claims, &shares, [*length], everybody(), |_| ());
                claims.claims.iter().all(|claim| *claim > -longest)
            })
        }

        fn other_shares_take_over_within_a_few_slices(first: Shares, then: Shares) -> bool {
            const SLICES: usize = if cfg!(miri) { 32 } else { 1024 };
            let mut claims = Apportionment::new();
            send(&mut claims, &first, [KIB64; SLICES / 8], everybody(), |_| ());
            let bytes = send(&mut claims, &then, [KIB64; SLICES], everybody(), |_| ());
            RailClass::all().all(|class| {
                let exact = u64::from(then.of(class)) * u64::from(KIB64) * SLICES as u64 / 1024;
                bytes[class.index()].abs_diff(exact) <= 2 * u64::from(KIB64)
            })
        }
    }
}
