//! Memory for tables of many rows: one range of large pages, so that to fill it takes few page faults. With pages of the usual size
//! most of what it took to start an engine were page faults of tables. Tables that are smaller than a large page in all take no
//! such page: it would be cleared for them as a whole.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use polyrail_transport::mapping::Mapping;

/// The large pages that the kernel gives for anonymous memory, and where they begin.
const LARGE_PAGE: usize = 2 << 20;

/// A range that tables take their memory from, one after the other.
pub(crate) struct TableMemory {
    mapping: Arc<Mapping>,
    /// Bytes of it that are taken.
    taken: usize,
}

/// What so many rows take of it at most.
pub(crate) const fn bytes_of<T>(rows: usize) -> usize {
    rows * size_of::<T>() + align_of::<T>()
}

impl TableMemory {
    /// With room for tables of so many bytes in all.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        if bytes < LARGE_PAGE {
            return Ok(Self {
                taken: 0,
                mapping: Arc::new(Mapping::private(bytes as u64)?),
            });
        }
        let mapping = Mapping::private((bytes + LARGE_PAGE) as u64)?;
        let base = mapping.base().as_ptr() as usize;
        Ok(Self {
            taken: base.next_multiple_of(LARGE_PAGE) - base,
            mapping: Arc::new(mapping),
        })
    }

    /// A table of so many rows.
    ///
    /// # Panics
    ///
    /// If there is no room for it.
    pub(crate) fn rows<T>(&mut self, count: usize, row: impl Fn() -> T) -> Rows<T> {
        let begin = self.taken.next_multiple_of(align_of::<T>());
        let end = begin + count * size_of::<T>();
        let bytes = self.mapping.bytes();
        assert!(end as u64 <= bytes, "{end} bytes of tables in {bytes}");
        self.taken = end;
        // SAFETY: it lies in the mapping, which begins at a page, and so at a multiple of what `begin` is one of.
        let first = unsafe { self.mapping.base().add(begin) }.cast::<T>();
        for index in 0..count {
            // SAFETY: so many rows lie in the mapping, and no other table has them.
            unsafe { first.add(index).write(row()) };
        }
        Rows {
            first,
            count,
            _mapping: self.mapping.clone(),
        }
    }
}

/// The rows of a table.
pub(crate) struct Rows<T> {
    first: NonNull<T>,
    count: usize,
    _mapping: Arc<Mapping>,
}

// SAFETY: the rows are nobody else's, as those of a `Box` are.
unsafe impl<T: Send> Send for Rows<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Rows<T> {}

impl<T> Deref for Rows<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: all of them were written, and live as long as the mapping.
        unsafe { slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl<T> DerefMut for Rows<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; nobody else has them.
        unsafe { slice::from_raw_parts_mut(self.first.as_ptr(), self.count) }
    }
}

impl<T> Drop for Rows<T> {
    fn drop(&mut self) {
        // SAFETY: they are dropped once, and the mapping after them.
        unsafe { ptr::drop_in_place(&mut **self) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_lie_beside_each_other_and_are_dropped_once() {
        let alive = Arc::new(());
        let mut memory =
            TableMemory::new(bytes_of::<u8>(3) + bytes_of::<Arc<()>>(5) + bytes_of::<u64>(0))
                .unwrap();
        let bytes = memory.rows(3, || 7_u8);
        let mut shared = memory.rows(5, || alive.clone());
        let none = memory.rows(0, || 0_u64);
        drop(memory);
        assert_eq!((&bytes[..], none.len()), (&[7; 3][..], 0));
        assert_eq!((shared.len(), Arc::strong_count(&alive)), (5, 6));
        shared[2] = Arc::new(());
        assert_eq!(Arc::strong_count(&alive), 5);
        drop((bytes, shared));
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn small_tables_take_no_large_page_and_others_begin_at_one() {
        for (bytes, is_large) in [(1, false), (LARGE_PAGE - 1, false), (LARGE_PAGE, true)] {
            let mut memory = TableMemory::new(bytes).unwrap();
            let has_one = memory.mapping.bytes() >= LARGE_PAGE as u64;
            assert_eq!(has_one, is_large, "{bytes}");
            let first = memory.rows(1, || 0_u8).first.as_ptr() as usize;
            assert!(!is_large || first.is_multiple_of(LARGE_PAGE), "{bytes}");
        }
    }

    #[test]
    #[should_panic(expected = "bytes of tables in")]
    fn a_table_that_has_no_room_is_none() {
        let mut memory = TableMemory::new(bytes_of::<u64>(4)).unwrap();
        memory.rows(LARGE_PAGE, || 0_u64);
    }
}
