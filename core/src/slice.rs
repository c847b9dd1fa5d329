//! How a request is cut, at the moment a slice is bound to a rail.
//!
//! Source: TENT (arXiv:2604.00368v1) §4.2. We differ: the paper fixes the cut when the request arrives and
//! caps the number of slices; here a request is a cursor until a rail can take the next piece.

/// The usual slice: small enough to balance, large enough to amortise a posting.
pub const SLICE_BYTES: u32 = 64 * 1024;

/// Length of the next slice of a request that has `rest` bytes left to bind. Zero only for no rest.
///
/// A rest of up to 1.25 slices goes as one, so that no slice is a crumb. `slice_bytes` 0 counts as 1.
pub const fn next_length(rest: u64, slice_bytes: u32) -> u32 {
    let slice = if slice_bytes == 0 {
        1
    } else {
        slice_bytes as u64
    };
    let length = if rest <= slice + slice / 4 {
        rest
    } else {
        slice
    };
    if length > u32::MAX as u64 {
        u32::MAX
    } else {
        length as u32
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    #[test]
    fn cuts() {
        // (name, rest, slice, length)
        let cases = [
            ("nothing left", 0, 64, 0),
            ("less than a slice", 63, 64, 63),
            ("up to 1.25 slices go as one", 80, 64, 80),
            ("more than that is cut", 81, 64, 64),
            ("a slice of 0 counts as 1", 5, 0, 1),
            (
                "never more than a work can say",
                u64::MAX,
                u32::MAX,
                u32::MAX,
            ),
        ];
        for (name, rest, slice, length) in cases {
            assert_eq!(next_length(rest, slice), length, "{name}");
        }
    }

    quickcheck! {
        fn slices_cover_a_request_exactly(length: u32, slice: u16) -> bool {
            let (mut cuts, mut rest) = (Vec::new(), u64::from(length) % 1_000_000);
            let total = rest;
            let slice = u32::from(slice.max(64));
            while rest > 0 {
                let cut = next_length(rest, slice);
                cuts.push(cut);
                rest -= u64::from(cut);
            }
            cuts.iter().all(|cut| *cut > 0 && *cut <= slice + slice / 4)
                && cuts.iter().map(|cut| u64::from(*cut)).sum::<u64>() == total
        }
    }
}
