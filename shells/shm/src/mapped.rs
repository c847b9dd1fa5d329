//! Memory of a peer that this process maps.
//!
//! The first touch of a page has the kernel map it, which takes several times as long as to copy what goes there. So what is
//! written to a page first goes through the file that the memory is in, which maps nothing. `benches/LOG.md` has what
//! that saves.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::*};

use polyrail_transport::mapping::Mapping;
use rustix::process::{Resource, getrlimit};

use crate::sys::Way;

const PAGE_BYTES: u64 = 4096;

/// Memory of a peer, and what of it was never written to from here.
#[derive(Debug)]
pub(crate) struct Mapped {
    mapping: Mapping,
    first: Option<First>,
}

/// First writes.
#[derive(Debug)]
struct First {
    file: OwnedFd,
    /// A bit for each page that one was made to.
    pages: Box<[AtomicU64]>,
}

impl Mapped {
    /// Maps the memory in `file`. `keeps`: the file may be kept.
    pub(crate) fn of(file: &OwnedFd, bytes: u64, writable: bool, keeps: bool) -> io::Result<Self> {
        let mapping = Mapping::of_peer(file.as_fd(), bytes, writable)?;
        let first = (writable && keeps && may_be_written(bytes)).then(|| First::of(file, bytes));
        Ok(Self {
            mapping,
            first: first.transpose().unwrap_or_default(),
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// Whether the file is kept.
    pub(crate) fn keeps_file(&self) -> bool {
        self.first.is_some()
    }

    pub(crate) fn way_from(&self) -> Way {
        Way::Load(self.mapping.base().as_ptr())
    }

    /// The way to write that is always there.
    pub(crate) fn way_to(&self) -> Way {
        Way::Store(self.mapping.base().as_ptr())
    }

    /// The fastest way to write to these ranges, each from an offset on and so long, and inside: by the file if one of their
    /// pages was never written to.
    pub(crate) fn fastest_to(&self, ranges: impl Iterator<Item = (u64, u64)>) -> Way {
        let Some(first) = &self.first else {
            return self.way_to();
        };
        let mut is_first = false;
        for (offset, bytes) in ranges {
            is_first |= first.note(offset, bytes);
        }
        match is_first {
            true => Way::Write(first.file.as_raw_fd(), 0),
            false => self.way_to(),
        }
    }
}

impl First {
    fn of(file: &OwnedFd, bytes: u64) -> io::Result<Self> {
        let words = bytes.div_ceil(PAGE_BYTES).div_ceil(64);
        Ok(Self {
            file: file.try_clone()?,
            pages: (0..words).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// Notes that a range is written to. Whether one of its pages never was.
    fn note(&self, offset: u64, bytes: u64) -> bool {
        let (mut page, last) = (offset / PAGE_BYTES, (offset + bytes - 1) / PAGE_BYTES);
        let mut is_first = false;
        while page <= last {
            let (word, bit) = ((page / 64) as usize, page % 64);
            let count = (64 - bit).min(last - page + 1);
            let mask = (u64::MAX >> (64 - count)) << bit;
            let pages = &self.pages[word];
            if pages.load(Relaxed) & mask != mask {
                is_first = true;
                pages.fetch_or(mask, Relaxed);
            }
            page += count;
        }
        is_first
    }
}

/// Whether no write to a file of this size is beyond what this process may write to files: the kernel ends it by a signal then.
fn may_be_written(bytes: u64) -> bool {
    let most = getrlimit(Resource::Fsize).current;
    most.is_none_or(|most| bytes <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 200 * PAGE_BYTES;

    fn mapped(writable: bool, keeps: bool) -> Mapped {
        let (_, file) = Mapping::in_file(BYTES).unwrap();
        Mapped::of(&file, BYTES, writable, keeps).unwrap()
    }

    fn is_by_file(mapped: &Mapped, ranges: &[(u64, u64)]) -> bool {
        matches!(mapped.fastest_to(ranges.iter().copied()), Way::Write(..))
    }

    #[test]
    fn each_page_is_written_first_by_the_file_and_then_never_again() {
        let mapped = mapped(true, true);
        for (ranges, expected) in [
            (&[(0, 1)][..], true),
            (&[(0, PAGE_BYTES)], false),
            // One byte of the next page.
            (&[(1, PAGE_BYTES)], true),
            (&[(PAGE_BYTES, PAGE_BYTES)], false),
            // Over two words, of which the ends are known.
            (&[(63 * PAGE_BYTES, 1)], true),
            (&[(128 * PAGE_BYTES, 1)], true),
            (&[(63 * PAGE_BYTES, 66 * PAGE_BYTES)], true),
            (&[(63 * PAGE_BYTES, 66 * PAGE_BYTES)], false),
            // One of several is new.
            (&[(0, 9), (BYTES - 1, 1)], true),
            (&[(BYTES - 1, 1), (0, 9)], false),
            (&[(0, BYTES)], true),
            (&[(0, BYTES)], false),
        ] {
            assert_eq!(is_by_file(&mapped, ranges), expected, "{ranges:?}");
        }
    }

    #[test]
    fn without_the_file_it_is_written_as_it_is_mapped() {
        for (writable, keeps) in [(true, false), (false, true)] {
            let mapped = mapped(writable, keeps);
            assert!(!mapped.keeps_file());
            assert!(!is_by_file(&mapped, &[(0, BYTES)]));
        }
    }
}
