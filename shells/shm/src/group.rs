//! Works that are moved by one copy: the first one that waits, and those behind it that are alike.
//!
//! A call of the kernel takes many ranges, and finds the peer's memory once for all of them; and several threads can share what one
//! of them would have to do alone.
//!
//! **Invariant:** the bytes of a group are those of its works in their order, so that what was moved first are the first works.

use heapless::VecView;
use polyrail_transport::memory::Entered;

use crate::lane::{End, Posted};
use crate::sys::{Span, Transfer, Way};

/// Ranges of a group, at most.
pub(crate) const SPANS_MAX: usize = 256;

/// Where the bytes of a group are, at both ends: in the target's segment by their offset.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    spans: &'a mut VecView<Span>,
    pub(crate) bytes: u64,
}

impl<'a> Group<'a> {
    /// The `first` work, and `others` as long as they go on where it ends, or are like it and elsewhere: `most` bytes of them, in as
    /// many ranges as `spans` has room for. They end before `end` of the target's segment. `entered` is what they all are of on
    /// this side.
    pub(crate) fn of<'w>(
        spans: &'a mut VecView<Span>,
        first: &'w Posted,
        others: impl Iterator<Item = &'w Posted>,
        entered: Option<&Entered<'_>>,
        (most, end): (u64, u64),
    ) -> Result<Self, End> {
        let mut group = Self { spans, bytes: 0 };
        group.spread(first, first.local(entered, first.left().min(most))?, most);
        let mut before = first;
        for work in others {
            let left = most - group.bytes;
            let fits = work.end().is_some_and(|at| at <= end) && first.is_like(work);
            if left == 0 || !fits {
                break;
            }
            let Ok(near) = work.local(entered, work.left().min(left)) else {
                break;
            };
            match before.is_continued_by(work) {
                true => group.lengthen(work, left),
                false if !group.spans.is_full() => group.spread(work, near, left),
                false => break,
            }
            before = work;
        }
        Ok(group)
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

    /// Where its ranges are in the target's segment, and how long each is.
    pub(crate) fn far(&self) -> impl Iterator<Item = (u64, u64)> {
        self.spans.iter().map(|span| (span.far, span.bytes))
    }

    /// How it is moved by a way that begins where the target's segment does. It says where the ranges are while this lives.
    pub(crate) fn by(&self, way: Way) -> Transfer {
        Transfer::Many(way, self.spans.as_slice())
    }
}
