//! How neighbouring works become one with a scatter list: the rule, for transports that build such.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305). We differ: it is asked for one work after the other as they are posted, and
//! what comes of it is nobody's count before.

use crate::work::Place;

/// Bytes that lie together on both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where they are on this side.
    pub local: Place,
    /// Where they are on the peer.
    pub remote: Place,
    /// How many.
    pub length: u64,
}

/// What a work may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MergeLimits {
    /// Entries of its scatter list. 0 counts as 1.
    pub entries_max: u16,
    /// Its bytes: the lane's largest message. 0 counts as 1.
    pub work_bytes_max: u32,
}

/// How a piece joins the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Join {
    /// It makes the last entry of the scatter list longer.
    Extend,
    /// It is another entry of the same work.
    Entry,
    /// It begins a work.
    Work,
}

/// The work as it stands; without entries there is none yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenWork {
    /// Behind its last byte, on either side.
    local_end: Place,
    remote_end: Place,
    bytes: u64,
    entries: u16,
}

impl OpenWork {
    fn how(&self, piece: &Piece, limits: &MergeLimits) -> Join {
        let fits = self.bytes + piece.length <= u64::from(limits.work_bytes_max);
        if self.entries == 0 || self.remote_end != piece.remote || !fits {
            Join::Work
        } else if self.local_end == piece.local {
            Join::Extend
        } else if self.entries < limits.entries_max.max(1) {
            Join::Entry
        } else {
            Join::Work
        }
    }

    /// How a piece joins it, and from then on it is the work with that piece. A piece that is longer than a work may be is
    /// one by itself.
    #[inline]
    pub fn join(&mut self, piece: &Piece, limits: &MergeLimits) -> Join {
        let join = self.how(piece, limits);
        let (bytes, entries) = match join {
            Join::Extend => (self.bytes, self.entries),
            Join::Entry => (self.bytes, self.entries + 1),
            Join::Work => (0, 1),
        };
        *self = Self {
            local_end: after(piece.local, piece.length),
            remote_end: after(piece.remote, piece.length),
            bytes: bytes + piece.length,
            entries,
        };
        join
    }
}

const fn after(place: Place, bytes: u64) -> Place {
    Place {
        segment: place.segment,
        offset: place.offset.saturating_add(bytes),
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::units::SegmentRef;
    use Join::{Entry, Extend, Work};
    use quickcheck::quickcheck;
    use std::vec::Vec;

    fn place(segment: u32, offset: u64) -> Place {
        Place {
            segment: SegmentRef(segment),
            offset,
        }
    }

    fn piece(local: u64, remote: u64, length: u64) -> Piece {
        Piece {
            local: place(1, local),
            remote: place(2, remote),
            length,
        }
    }

    const LIMITS: MergeLimits = MergeLimits {
        entries_max: 2,
        work_bytes_max: 100,
    };

    /// How these join, in their order.
    fn joins(pieces: &[Piece], limits: &MergeLimits) -> Vec<Join> {
        let mut open = OpenWork::default();
        pieces
            .iter()
            .map(|piece| open.join(piece, limits))
            .collect()
    }

    #[test]
    fn pieces_join_by_one_rule() {
        // (name, pieces, how each joins)
        let cases: [(_, &[Piece], &[Join]); 7] = [
            (
                "near on both sides",
                &[piece(0, 0, 10), piece(10, 10, 10)],
                &[Work, Extend],
            ),
            (
                "near on the peer's",
                &[piece(0, 0, 10), piece(50, 10, 10)],
                &[Work, Entry],
            ),
            (
                "near on this side only",
                &[piece(0, 0, 10), piece(10, 50, 10)],
                &[Work, Work],
            ),
            (
                "the list is full",
                &[piece(0, 0, 10), piece(50, 10, 10), piece(90, 20, 10)],
                &[Work, Entry, Work],
            ),
            (
                "full lists can be extended",
                &[piece(0, 0, 10), piece(50, 10, 10), piece(60, 20, 10)],
                &[Work, Entry, Extend],
            ),
            (
                "the work is full",
                &[piece(0, 0, 60), piece(60, 60, 41)],
                &[Work, Work],
            ),
            (
                "longer than a work may be",
                &[piece(0, 0, 250), piece(250, 250, 50)],
                &[Work, Work],
            ),
        ];
        for (name, pieces, expected) in cases {
            assert_eq!(joins(pieces, &LIMITS), expected, "{name}");
        }
        let elsewhere = Piece {
            local: place(7, 10),
            ..piece(10, 10, 10)
        };
        assert_eq!(
            joins(&[piece(0, 0, 10), elsewhere], &LIMITS),
            [Work, Entry],
            "another segment is no neighbour"
        );
    }

    quickcheck! {
        fn works_keep_the_limits(spec: Vec<(u8, u8, u8)>, entries: u8, bytes: u8) -> bool {
            let limits = MergeLimits { entries_max: u16::from(entries % 4), work_bytes_max: 16 + u32::from(bytes % 40) };
            let (mut local, mut remote) = (0, 0);
            let pieces: Vec<Piece> = spec.iter().map(|(gap_here, gap_there, length)| {
                local += u64::from(gap_here % 2);
                remote += u64::from(gap_there % 3 / 2);
                let piece = piece(local, remote, 1 + u64::from(*length % 16));
                (local, remote) = (local + piece.length, remote + piece.length);
                piece
            }).collect();
            // Bytes and entries of each work, and where it ends at the peer.
            let mut works: Vec<(u64, u64, Place)> = Vec::new();
            for (piece, join) in pieces.iter().zip(joins(&pieces, &limits)) {
                if join == Work {
                    works.push((0, 0, piece.remote));
                }
                let Some(work) = works.last_mut() else { return false };
                if work.2 != piece.remote {
                    return false;
                }
                *work = (work.0 + piece.length, work.1 + u64::from(join != Extend), after(piece.remote, piece.length));
            }
            works.iter().all(|(bytes, entries, _)| {
                *bytes <= u64::from(limits.work_bytes_max) && *entries <= u64::from(limits.entries_max.max(1))
            })
        }
    }
}
