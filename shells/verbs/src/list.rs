//! Works of core as they become works of a device: short ones that lie together at the peer go as one.
//!
//! A slice is a work by itself. What is shorter, because requests are, joins the work before it by core's rule, up to a
//! slice in all: fewer works are carried out, and fewer packets sent.

use heapless::Vec;
use polyrail_core::send_queue::merge::{Join, MergeLimits, OpenWork, Piece};
use polyrail_core::slice::SLICE_BYTES;
use polyrail_core::work::{Op, POST_MAX, Work as CoreWork};
use polyrail_transport::memory::Region;

use crate::ffi::raw::Sge;
use crate::ffi::{Extras, Source, Work};
use crate::lane::Ends;

/// The most that a write may carry in itself.
pub(crate) const INLINE_MAX: usize = 256;

/// One post. Large: to be kept, and cleared for the next.
pub(crate) struct List {
    works: [Work; POST_MAX],
    /// So many of them.
    count: usize,
    pub(crate) ranges: Vec<Sge, POST_MAX>,
    /// Bytes that works carry themselves.
    pub(crate) bytes: Vec<u8, { POST_MAX * INLINE_MAX }>,
    /// Some work is made of several of core's.
    pub(crate) is_joined: bool,
    /// Behind the last one, at the peer.
    end: u64,
    /// The last one, once it is made of several.
    open: OpenWork,
    /// Bytes of the shortest of core's works.
    shortest: u32,
}

impl List {
    pub(crate) fn new() -> Self {
        Self {
            works: [NO_WORK; POST_MAX],
            count: 0,
            ranges: Vec::new(),
            bytes: Vec::new(),
            is_joined: false,
            end: 0,
            open: OpenWork::default(),
            shortest: u32::MAX,
        }
    }

    pub(crate) fn works(&self) -> &[Work] {
        &self.works[..self.count]
    }

    /// Bytes of one of the works.
    pub(crate) fn length(&self, work: &Work) -> u64 {
        match work.source {
            Source::Ranges(first, count) => {
                let ranges = self.ranges.iter().skip(first.into()).take(count.into());
                ranges.map(|range| u64::from(range.length)).sum()
            }
            Source::Range(_) | Source::Inline(..) => work.bytes(),
        }
    }

    /// Makes room for another post.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
        self.ranges.clear();
        self.bytes.clear();
        self.is_joined = false;
        self.shortest = u32::MAX;
    }

    /// Adds the last of these works, which completes under this number. A work may have so many ranges on this side.
    #[inline]
    pub(crate) fn add(&mut self, id: u64, works: &[CoreWork], ends: &Ends, ranges_max: u32) {
        let Some(work) = works.last() else { return };
        let address = ends.remote_address(work);
        let lies_behind = address == self.end;
        self.end = address.wrapping_add(work.length.into());
        self.shortest = self.shortest.min(work.length);
        if lies_behind && self.join(id, works, ends, ranges_max) {
            return;
        }
        // There is room for as many as core posts.
        let Some(row) = self.works.get_mut(self.count) else {
            return;
        };
        self.count += 1;
        *row = Work {
            id,
            op: work.op,
            source: Source::Range(ends.range(work)),
            remote_address: address,
            remote_key: ends.remote_key(),
            signal: work.signal,
            joined: 1,
        };
    }

    /// Makes the last of these works, which begins at the peer where the one before it ends, a part of the one before it.
    /// `false`: it cannot be.
    #[inline(never)]
    fn join(&mut self, id: u64, works: &[CoreWork], ends: &Ends, ranges_max: u32) -> bool {
        let last = self.works[..self.count].last_mut();
        let (Some(last), [.., before, work]) = (last, works) else {
            return false;
        };
        let range = ends.range(work);
        let before_range = match (last.source, self.ranges.last()) {
            (Source::Range(range), _) | (Source::Ranges(..), Some(&range)) => range,
            _ => return false,
        };
        // The one that asks for a completion is the last of its work.
        let same = last.op == work.op && last.remote_key == ends.remote_key() && !last.signal;
        if !same || before_range.lkey != range.lkey {
            return false;
        }
        let limits = MergeLimits {
            entries_max: ranges_max as u16,
            work_bytes_max: SLICE_BYTES,
        };
        if last.joined == 1 {
            self.open = OpenWork::default();
            self.open.join(&piece(before), &limits);
        }
        match (self.open.join(&piece(work), &limits), &mut last.source) {
            (Join::Work, _) => return false,
            (Join::Extend, Source::Range(range)) => range.length += work.length,
            (Join::Extend, _) => {
                if let Some(range) = self.ranges.last_mut() {
                    range.length += work.length;
                }
            }
            // There is room: each range is of a work of core's.
            (Join::Entry, Source::Ranges(_, count)) => {
                let _ = self.ranges.push(range);
                *count += 1;
            }
            (Join::Entry, source) => {
                *source = Source::Ranges(self.ranges.len() as u8, 2);
                let _ = self.ranges.push(before_range);
                let _ = self.ranges.push(range);
            }
        }
        (last.id, last.signal) = (id, work.signal);
        last.joined += 1;
        self.is_joined = true;
        true
    }

    /// Lets short writes carry their bytes themselves, so that the device need not read memory. `local` is the region that
    /// a work of core's writes from.
    pub(crate) fn carry<R: AsRef<Region>>(
        &mut self,
        extras: Extras,
        works: &[CoreWork],
        local: impl Fn(&CoreWork) -> Option<R>,
    ) {
        let most = extras.inline_bytes.min(INLINE_MAX as u32);
        if self.shortest > most {
            return;
        }
        let mut place = 0;
        for own in &mut self.works[..self.count] {
            let Some(work) = works.get(place) else { return };
            place += usize::from(own.joined);
            if own.op != Op::Write || own.joined > 1 || work.length > most {
                continue;
            }
            let begin = self.bytes.len();
            let end = begin + work.length as usize;
            // A GPU's would be fetched over the same bus. What is taken away meanwhile is the device's to refuse.
            let region = local(work).filter(|region| region.as_ref().device().is_none());
            if let Some(region) = region
                && self.bytes.resize(end, 0).is_ok()
            {
                let bytes = &mut self.bytes[begin..];
                match region.as_ref().load(work.local.offset, bytes) {
                    Ok(()) => own.source = Source::Inline(begin as u16, work.length as u16),
                    Err(_) => self.bytes.truncate(begin),
                }
            }
        }
    }
}

const NO_WORK: Work = Work {
    id: 0,
    op: Op::Write,
    source: Source::Inline(0, 0),
    remote_address: 0,
    remote_key: 0,
    signal: false,
    joined: 0,
};

fn piece(work: &CoreWork) -> Piece {
    Piece {
        local: work.local,
        remote: work.remote,
        length: work.length.into(),
    }
}
