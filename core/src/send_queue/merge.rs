//! How neighbouring requests become one work with a scatter list: one rule for who counts works before they
//! are admitted and for who builds them.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), the estimate shared by admission and posting. We
//! differ: a work never exceeds the largest message of the lane, so a request that does is cut, and counted so.

use crate::work::Place;

/// Bytes that lie together on both sides: a request, or what is left of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where they are on this side.
    pub local: Place,
    /// Where they are on the peer.
    pub remote: Place,
    /// How many. A piece of none makes no work.
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

/// A piece, cut if it must be, and how it joins the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Joined {
    /// How.
    pub join: Join,
    /// What.
    pub piece: Piece,
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
    /// one by itself: see [`Merge`] for such.
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

/// Joins pieces in the order in which they come; see [`sort`].
#[derive(Clone, Debug)]
pub struct Merge<I> {
    pieces: I,
    limits: MergeLimits,
    /// What is left of a piece that was cut.
    rest: Option<Piece>,
    open: OpenWork,
}

impl<I: Iterator<Item = Piece>> Merge<I> {
    /// Pieces of one kind of operation, to one peer.
    pub fn new(pieces: I, limits: MergeLimits) -> Self {
        Self {
            pieces,
            limits: MergeLimits {
                entries_max: limits.entries_max.max(1),
                work_bytes_max: limits.work_bytes_max.max(1),
            },
            rest: None,
            open: OpenWork::default(),
        }
    }
}

impl<I: Iterator<Item = Piece>> Iterator for Merge<I> {
    type Item = Joined;

    fn next(&mut self) -> Option<Joined> {
        let piece = match self.rest.take() {
            Some(rest) => rest,
            None => self.pieces.find(|piece| piece.length > 0)?,
        };
        let length = piece.length.min(u64::from(self.limits.work_bytes_max));
        if length < piece.length {
            self.rest = Some(Piece {
                local: after(piece.local, length),
                remote: after(piece.remote, length),
                length: piece.length - length,
            });
        }
        let piece = Piece { length, ..piece };
        Some(Joined {
            join: self.open.join(&piece, &self.limits),
            piece,
        })
    }
}

/// Puts pieces in the order in which most of them merge: that of the peer's bytes.
pub fn sort(pieces: &mut [Piece]) {
    pieces.sort_unstable_by_key(|piece| (piece.remote.segment, piece.remote.offset));
}

/// How many works the pieces become, in the order in which they come.
pub fn count_works(pieces: impl Iterator<Item = Piece>, limits: MergeLimits) -> usize {
    Merge::new(pieces, limits)
        .filter(|joined| joined.join == Join::Work)
        .count()
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

    #[test]
    fn pieces_join_by_one_rule() {
        let elsewhere = |segment, piece| Piece {
            local: place(segment, 10),
            ..piece
        };
        // (name, pieces, how each joins)
        let cases: [(_, &[Piece], &[Join]); 9] = [
            ("nothing", &[], &[]),
            ("no bytes", &[piece(0, 0, 0)], &[]),
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
                "a piece is cut, its rest takes the next",
                &[piece(0, 0, 250), piece(250, 250, 50)],
                &[Work, Work, Work, Extend],
            ),
        ];
        for (name, pieces, expected) in cases {
            let got: Vec<_> = Merge::new(pieces.iter().copied(), LIMITS)
                .map(|joined| joined.join)
                .collect();
            assert_eq!(got, expected, "{name}");
        }
        let another = [piece(0, 0, 10), elsewhere(7, piece(10, 10, 10))];
        let joins = Merge::new(another.into_iter(), LIMITS).map(|joined| joined.join);
        assert_eq!(
            joins.collect::<Vec<_>>(),
            [Work, Entry],
            "another segment is no neighbour"
        );
    }

    #[test]
    fn sorting_finds_the_neighbours() {
        let mut pieces = [piece(20, 20, 10), piece(0, 0, 10), piece(10, 10, 10)];
        assert_eq!(count_works(pieces.into_iter(), LIMITS), 2);
        sort(&mut pieces);
        assert_eq!(count_works(pieces.into_iter(), LIMITS), 1);
    }

    quickcheck! {
        fn works_keep_the_limits_and_every_byte(spec: Vec<(u8, u8, u8)>, entries: u8, bytes: u8) -> bool {
            let limits = MergeLimits { entries_max: u16::from(entries % 4), work_bytes_max: u32::from(bytes % 40) };
            let (mut local, mut remote) = (0, 0);
            let pieces: Vec<Piece> = spec.iter().map(|(gap_here, gap_there, length)| {
                local += u64::from(gap_here % 2);
                remote += u64::from(gap_there % 3 / 2);
                let piece = piece(local, remote, u64::from(*length % 16));
                (local, remote) = (local + piece.length, remote + piece.length);
                piece
            }).collect();
            let mut works: Vec<(u64, u64)> = Vec::new();
            let mut bytes = Vec::new();
            for Joined { join, piece } in Merge::new(pieces.iter().copied(), limits) {
                if join == Work {
                    works.push((0, 0));
                }
                let Some(work) = works.last_mut() else { return false };
                work.0 += piece.length;
                work.1 += u64::from(join != Extend);
                bytes.extend((0..piece.length).map(|byte| (piece.local.offset + byte, piece.remote.offset + byte)));
            }
            let whole = pieces.iter().flat_map(|piece| {
                (0..piece.length).map(|byte| (piece.local.offset + byte, piece.remote.offset + byte))
            });
            bytes.iter().copied().eq(whole)
                && works.iter().all(|(bytes, entries)| {
                    *bytes <= u64::from(limits.work_bytes_max.max(1))
                        && *entries <= u64::from(limits.entries_max.max(1))
                })
                && works.len() == count_works(pieces.into_iter(), limits)
        }
    }
}
