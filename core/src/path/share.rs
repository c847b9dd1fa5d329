//! How much of the bytes each class is to carry, in parts per 1024.
//!
//! Source: MPIB path isolation document, "Data path" and "`mpibGetSupBw()` in advanced mode", for the encoding
//! and its two ends; the rounding is the MPIB program's. We differ: shares are of any number of classes, and what
//! is published has to add up.

use core::fmt;

use super::class::{CLASSES_MAX, ClassSet, RailClass};

/// The share that means all of it. Larger ones mean the same.
pub const SHARE_ALL: u16 = 1024;
/// A supplementary class carries a multiple of so many bytes of a transfer that is split.
pub const SHARE_ALIGNMENT_BYTES: u64 = 128;

const SHARE_BITS: u32 = 10;

/// How many of `size` bytes a share of `share` parts per 1024 is, rounded down to [`SHARE_ALIGNMENT_BYTES`]; from
/// [`SHARE_ALL`] on, all of them. Good for every size.
pub const fn share_bytes(size: u64, share: u32) -> u64 {
    if share >= SHARE_ALL as u32 {
        return size;
    }
    // In two halves, so that nothing overflows: (a · 1024 + b) · s / 1024 = a · s + b · s / 1024.
    let (high, low) = (size >> SHARE_BITS, size & (SHARE_ALL as u64 - 1));
    let bytes = high * share as u64 + ((low * share as u64) >> SHARE_BITS);
    debug_assert!(bytes <= size, "a share of more than all");
    bytes - bytes % SHARE_ALIGNMENT_BYTES
}

/// What each class is to carry. Always adds up to [`SHARE_ALL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "[u16; CLASSES_MAX]", into = "[u16; CLASSES_MAX]")
)]
pub struct Shares([u16; CLASSES_MAX]);

/// Shares that do not add up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharesSum(pub u32);

impl fmt::Display for SharesSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the shares sum to {}, not to {SHARE_ALL}", self.0)
    }
}

impl Shares {
    /// Everything on the primary class: what holds where nobody has said anything.
    pub const PRIMARY: Self = {
        let mut parts = [0; CLASSES_MAX];
        parts[0] = SHARE_ALL;
        Self(parts)
    };

    /// Parts per 1024 of each class, which have to add up.
    pub fn new(parts: [u16; CLASSES_MAX]) -> Result<Self, SharesSum> {
        let sum = parts.iter().map(|part| u32::from(*part)).sum();
        if sum == u32::from(SHARE_ALL) {
            Ok(Self(parts))
        } else {
            Err(SharesSum(sum))
        }
    }

    /// The document's pair: `share` for the supplementary class, at most all, and the rest for the primary.
    pub fn pair(share: u32) -> Self {
        let share = share.min(u32::from(SHARE_ALL)) as u16;
        let mut parts = [0; CLASSES_MAX];
        let [primary, supplementary, ..] = &mut parts;
        (*primary, *supplementary) = (SHARE_ALL - share, share);
        Self(parts)
    }

    /// The parts of one class.
    pub fn of(&self, class: RailClass) -> u16 {
        self.0.get(class.index()).copied().unwrap_or(0)
    }

    /// The classes that are to carry something.
    pub fn classes(&self) -> ClassSet {
        RailClass::all()
            .filter(|class| self.of(*class) > 0)
            .collect()
    }

    /// All parts, by class.
    pub const fn parts(&self) -> [u16; CLASSES_MAX] {
        self.0
    }

    /// Splits a transfer of `size` bytes at once: each class its [`share_bytes`], and what rounding leaves to the
    /// first one that carries anything. No byte is lost or doubled.
    pub fn split(&self, size: u64) -> [u64; CLASSES_MAX] {
        let mut bytes = self.0.map(|part| share_bytes(size, u32::from(part)));
        let rest = size - bytes.iter().sum::<u64>();
        debug_assert!(
            self.0.iter().any(|part| *part > 0),
            "nobody carries the rest"
        );
        let first = self.0.iter().zip(&mut bytes).find(|(part, _)| **part > 0);
        if let Some((_, bytes)) = first {
            *bytes += rest;
        }
        debug_assert_eq!(
            bytes.iter().sum::<u64>(),
            size,
            "a byte is lost or doubled: {bytes:?}"
        );
        bytes
    }
}

impl TryFrom<[u16; CLASSES_MAX]> for Shares {
    type Error = SharesSum;
    fn try_from(parts: [u16; CLASSES_MAX]) -> Result<Self, SharesSum> {
        Self::new(parts)
    }
}

impl From<Shares> for [u16; CLASSES_MAX] {
    fn from(shares: Shares) -> Self {
        shares.0
    }
}

impl fmt::Display for Shares {
    /// `primary=768 supplementary=256`: those that are not 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, class) in self.classes().iter().enumerate() {
            let space = if number > 0 { " " } else { "" };
            write!(f, "{space}{class}={}", self.of(class))?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    extern crate std;
    use super::*;
    use quickcheck::{Arbitrary, Gen, quickcheck};
    use std::string::ToString;

    impl Arbitrary for Shares {
        fn arbitrary(g: &mut Gen) -> Self {
            let mut parts = [0; CLASSES_MAX];
            let mut rest = SHARE_ALL;
            let classes = 1 + usize::arbitrary(g) % CLASSES_MAX;
            for part in parts.iter_mut().take(classes - 1) {
                *part = u16::arbitrary(g) % (rest + 1);
                rest -= *part;
            }
            parts[classes - 1] = rest;
            parts.rotate_left(usize::arbitrary(g) % CLASSES_MAX);
            Self::new(parts).unwrap()
        }
    }

    #[test]
    fn bytes_of_a_share() {
        const MIB: u64 = 1 << 20;
        // (name, size, share, bytes)
        let cases = [
            ("none", MIB, 0, 0),
            ("a quarter", MIB, 256, 262_144),
            ("half", MIB, 512, 524_288),
            ("three quarters", MIB, 768, 786_432),
            ("all", MIB, 1024, MIB),
            ("more than all", MIB, 1025, MIB),
            ("the document's sentinel", MIB, u32::MAX, MIB),
            ("rounded down", 1000, 512, 384),
            ("less than a unit", 255, 512, 0),
            ("all of little", 1, 1024, 1),
            ("nothing of nothing", 0, 1024, 0),
            ("past 4 GiB", 6 << 32, 512, 3 << 32),
            ("half of the most", u64::MAX, 512, (1 << 63) - 128),
            (
                "nearly all of the most",
                u64::MAX,
                1023,
                u64::MAX - (1 << 54) - 127,
            ),
            ("the most", u64::MAX, 1024, u64::MAX),
        ];
        for (name, size, share, bytes) in cases {
            assert_eq!(share_bytes(size, share), bytes, "{name}");
        }
    }

    #[test]
    fn shares_have_to_add_up() {
        let parts = |first: [u16; 3]| {
            let mut parts = [0; CLASSES_MAX];
            parts[..3].copy_from_slice(&first);
            parts
        };
        // (parts, sum if wrong)
        let cases = [
            ([1024, 0, 0], None),
            ([512, 256, 256], None),
            ([512, 256, 255], Some(1023)),
            ([0, 0, 0], Some(0)),
            ([u16::MAX; 3], Some(3 * 65_535)),
        ];
        for (first, sum) in cases {
            assert_eq!(Shares::new(parts(first)).err(), sum.map(SharesSum));
        }
        let all = (512, [512, 512, 0]);
        for (share, first) in [
            (0, [1024, 0, 0]),
            all,
            (1024, [0, 1024, 0]),
            (9999, [0, 1024, 0]),
        ] {
            assert_eq!(Shares::pair(share).parts(), parts(first), "{share}");
        }
        assert_eq!(
            Shares::pair(256).to_string(),
            "primary=768 supplementary=256"
        );
    }

    #[test]
    fn the_pair_is_split_as_the_document_says() {
        // (share, primary bytes, supplementary bytes) of 1 MiB and one byte
        let cases = [
            (0, 1_048_577, 0),
            (256, 786_433, 262_144),
            (512, 524_289, 524_288),
            (1024, 0, 1_048_577),
        ];
        for (share, primary, supplementary) in cases {
            let bytes = Shares::pair(share).split((1 << 20) + 1);
            assert_eq!(bytes[..2], [primary, supplementary], "{share}");
        }
    }

    quickcheck! {
        fn a_split_loses_no_byte_and_uses_no_class_without_a_share(shares: Shares, size: u64) -> bool {
            let bytes = shares.split(size);
            let sum: u128 = bytes.iter().map(|bytes| u128::from(*bytes)).sum();
            sum == u128::from(size)
                && RailClass::all().all(|class| shares.of(class) > 0 || bytes[class.index()] == 0)
        }

        fn share_bytes_are_what_wide_arithmetic_says(size: u64, share: u16) -> bool {
            let share = share % SHARE_ALL;
            let exact = (u128::from(size) * u128::from(share)) >> 10;
            u128::from(share_bytes(size, u32::from(share))) == exact - exact % 128
        }
    }
}
