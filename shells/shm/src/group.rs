//! Works that are moved by one copy: the first one that waits, and those behind it that are alike.
//!
//! A call of the kernel takes many ranges, and finds the peer's memory once for all of them; and several threads can share what one
//! of them would have to do alone.
//!
//! **Invariant:** the bytes of a group are those of its works in their order, so that what was moved first are the first works.

use polyrail_transport::memory::Entered;

use crate::lane::{End, Posted};
use crate::sys::{Span, Transfer, Way};

/// Ranges of a group, at most.
pub(crate) const SPANS_MAX: usize = 256;

/// Where the bytes of a group are, at both ends: in the target's segment by their offset.
#[derive(Debug, Default)]
pub(crate) struct Group {
    spans: heapless::Vec<Span, SPANS_MAX>,
    pub(crate) bytes: u64,
}

impl Group {
    /// Takes the `first` work, and `others` as long as they go on where it ends, or are like it and elsewhere: `most` bytes of them,
    /// in `spans` ranges at most. They end before `end` of the target's segment. `entered` is what they all are of on this side.
    pub(crate) fn gather<'a>(
        &mut self,
        first: &'a Posted,
        others: impl Iterator<Item = &'a Posted>,
        entered: Option<&Entered<'_>>,
        (most, end, spans): (u64, u64, usize),
    ) -> Result<(), End> {
        self.spread(first, first.local(entered, first.left().min(most))?, most);
        let mut before = first;
        for work in others {
            let left = most - self.bytes;
            let fits = work.end().is_some_and(|at| at <= end) && first.is_like(work);
            if left == 0 || !fits {
                break;
            }
            let Ok(near) = work.local(entered, work.left().min(left)) else {
                break;
            };
            match before.is_continued_by(work) {
                true => self.lengthen(work, left),
                false if self.spans.len() < spans.min(SPANS_MAX) => self.spread(work, near, left),
                false => break,
            }
            before = work;
        }
        Ok(())
    }

    /// Another range: `most` bytes of a work.
    fn spread(&mut self, work: &Posted, near: *mut u8, most: u64) {
        let bytes = work.left().min(most);
        let span = Span {
            near,
            far: work.remote_offset(),
            start: self.bytes,
            bytes,
        };
        if self.spans.push(span).is_ok() {
            self.bytes += bytes;
        }
    }

    /// More of the last range: `most` bytes of a work that goes on there.
    fn lengthen(&mut self, work: &Posted, most: u64) {
        let bytes = work.left().min(most);
        if let Some(last) = self.spans.last_mut() {
            last.bytes += bytes;
            self.bytes += bytes;
        }
    }

    /// Whether it is of one range.
    pub(crate) fn is_one(&self) -> bool {
        self.spans.len() <= 1
    }

    /// How it is moved by a way that begins where the target's segment does. It says where the ranges are while this lives.
    pub(crate) fn by(&self, way: Way) -> Transfer {
        Transfer::Many(way, self.spans.as_slice())
    }
}
