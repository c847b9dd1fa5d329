//! What an endpoint has attached, and which row it has in the tables that a ring shares with the kernel.
//!
//! For each entry of a ring the kernel looks its file up, and for those past the page cache each page of its memory. It need
//! not for what has a row in a table of *fixed* files or buffers. A row keeps the file open and the pages where they are,
//! so it is given back once what has it is detached, and no transfer uses it any more.
//!
//! Only memory that [`Region::allocate`] made gets a row, and not before all of its pages are there: to fill a row is to
//! touch them, on the thread that serves all lanes of a worker, and that took 112 ms for 64 MiB that nobody had touched, 1.6 ms
//! otherwise. A program may give pages of its own back to the kernel
//! (`madvise`, or another mapping in their place) and touch new ones there; the disk would go on with the old ones.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use polyrail_transport::memory::Region;
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use crate::file::FileRange;

/// Rows of each table of a ring. A file that is read or written in both ways has two.
pub(crate) const ROWS: u32 = 128;

/// Bytes of the largest region that gets a row.
pub(crate) const REGION_BYTES_MAX: u64 = 64 << 20;

/// Bytes of all regions that may have a row in one ring: none of them can be swapped out.
pub(crate) const REGIONS_BYTES_MAX: u64 = 256 << 20;

/// What of `RLIMIT_MEMLOCK` one ring uses at most. RDMA devices of the process need it more, and other programs of the same user
/// count against it too.
const LIMIT_SHARE: u64 = 8;

/// Bytes of all regions that may have a row in a ring of this thread's.
pub(crate) fn regions_bytes_max() -> u64 {
    let sets = rustix::thread::capabilities(None);
    let may_all = sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    match getrlimit(Resource::Memlock).current {
        Some(limit) if !may_all => REGIONS_BYTES_MAX.min(limit / LIMIT_SHARE),
        _ => REGIONS_BYTES_MAX,
    }
}

/// Where something is in a table; empty while it is not there.
pub(crate) type Row = OnceLock<u32>;

/// A file that is attached.
pub(crate) struct OpenFile {
    pub(crate) range: Arc<FileRange>,
    /// By the side that a descriptor is for.
    pub(crate) rows: [Row; 2],
}

/// Memory that is attached.
pub(crate) struct Memory {
    pub(crate) region: Arc<Region>,
    pub(crate) row: Row,
    /// Bytes that go to or from it before it is looked at again whether its pages are there.
    look_in: AtomicU64,
    /// The kernel did not take an entry for its row.
    refused: AtomicBool,
}

/// One of them.
pub(crate) enum Attached {
    File(Arc<OpenFile>),
    Memory(Arc<Memory>),
}

impl OpenFile {
    pub(crate) fn new(range: Arc<FileRange>) -> Self {
        Self {
            range,
            rows: Default::default(),
        }
    }
}

impl Memory {
    pub(crate) fn new(region: Arc<Region>) -> Self {
        Self {
            region,
            row: Row::new(),
            look_in: AtomicU64::new(0),
            refused: AtomicBool::new(false),
        }
    }

    /// Whether it is to get a row now that so many bytes go to or from it, where there is room for so many.
    pub(crate) fn is_due(&self, bytes: u32, room_bytes: u64) -> bool {
        self.fits(room_bytes) && self.is_looked_at(bytes) && self.region.is_resident()
    }

    fn fits(&self, room_bytes: u64) -> bool {
        self.region.is_allocated() && self.region.bytes() <= REGION_BYTES_MAX.min(room_bytes)
    }

    /// At its first use, and whenever as many bytes have gone to or from it as it has: all may be touched then.
    fn is_looked_at(&self, bytes: u32) -> bool {
        let left = self.look_in.load(Relaxed);
        let is_now = left == 0;
        let left = if is_now { self.region.bytes() } else { left };
        self.look_in
            .store(left.saturating_sub(bytes.into()), Relaxed);
        is_now
    }

    /// Its row, if it has one that may be used.
    pub(crate) fn usable_row(&self) -> Option<u32> {
        let row = self.row.get().copied();
        row.filter(|_| !self.refused.load(Relaxed))
    }

    /// From now on it is used without.
    pub(crate) fn refuse(&self) {
        if !self.refused.swap(true, Relaxed) {
            log::debug!("{:?}: the kernel refuses it as a fixed buffer", self.region);
        }
    }
}

impl Attached {
    /// Whether no transfer uses it. It is detached, so none will.
    pub(crate) fn is_idle(&self) -> bool {
        let users = match self {
            Self::File(file) => Arc::strong_count(file),
            Self::Memory(memory) => Arc::strong_count(memory),
        };
        users == 1
    }
}

/// Which rows of a table are free.
#[derive(Debug)]
pub(crate) struct Table {
    what: &'static str,
    free: Vec<u32>,
    /// The kernel has refused to fill a row, and is not asked again.
    closed: bool,
}

impl Table {
    /// That of a ring whose kernel has made one, or would not.
    pub(crate) fn new(what: &'static str, made: io::Result<()>) -> Self {
        let mut table = Self {
            what,
            free: (0..ROWS).rev().collect(),
            closed: false,
        };
        if let Err(error) = made {
            table.close(&error);
        }
        table
    }

    fn close(&mut self, error: &io::Error) {
        log::debug!("io_uring goes on without more fixed {}: {error}", self.what);
        self.closed = true;
    }

    /// Whether an empty row may be filled.
    pub(crate) fn has_room(&self) -> bool {
        !self.closed && !self.free.is_empty()
    }

    /// The row, filled now if it is empty. `None`: there is no room, or the kernel refuses.
    pub(crate) fn row(
        &mut self,
        row: &Row,
        fill: impl FnOnce(u32) -> io::Result<()>,
    ) -> Option<u32> {
        if let Some(row) = row.get() {
            return Some(*row);
        }
        let number = self.free.last().copied().filter(|_| self.has_room())?;
        if let Err(error) = fill(number) {
            self.close(&error);
            return None;
        }
        self.free.pop();
        Some(*row.get_or_init(|| number))
    }

    /// A row is free again, if `empty` succeeds.
    pub(crate) fn give_back(&mut self, row: &Row, empty: impl FnOnce(u32) -> io::Result<()>) {
        let Some(number) = row.get().copied() else {
            return;
        };
        match empty(number) {
            Ok(()) => self.free.push(number),
            Err(error) => self.close(&error),
        }
    }

    /// How many rows are filled.
    #[cfg(test)]
    pub(crate) fn filled(&self) -> usize {
        ROWS as usize - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use polyrail_transport::memory::Access;

    use super::*;

    #[test]
    fn a_table_has_rows_until_it_is_full_or_the_kernel_refuses() {
        let rows: Vec<Row> = (0..=ROWS).map(|_| Row::new()).collect();
        let mut table = Table::new("files", Ok(()));
        let found: Vec<_> = rows.iter().map(|row| table.row(row, |_| Ok(()))).collect();
        let expected: Vec<_> = (0..ROWS).map(Some).chain([None]).collect();
        assert_eq!(found, expected);
        assert!(!table.has_room());
        let never = |_| unreachable!("it is there already");
        assert_eq!(table.row(&rows[5], never), Some(5));
        table.give_back(&rows[ROWS as usize], never);
        assert_eq!(table.filled(), ROWS as usize);
        table.give_back(&rows[5], |_| Ok(()));
        assert_eq!(table.row(&rows[ROWS as usize], |_| Ok(())), Some(5));
        table.give_back(&rows[7], |_| Ok(()));
        let refused = |_| Err(io::ErrorKind::OutOfMemory.into());
        assert_eq!(table.row(&Row::new(), refused), None);
        assert_eq!(table.row(&Row::new(), never), None, "asked again");
        assert_eq!(table.row(&rows[8], never), Some(8), "what is there stays");
    }

    #[test]
    fn only_small_memory_of_our_own_gets_a_row() {
        let own = |bytes| Region::allocate(bytes, Access::Local).unwrap();
        let mut bytes = vec![0_u8; 4096];
        let base = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the vector outlives the region.
        let program = unsafe { Region::new(base, 4096, Access::Local, None) }.unwrap();
        let max = REGION_BYTES_MAX;
        // (name, region, bytes of room, whether it fits)
        let cases = [
            ("a byte", own(1), max, true),
            ("the largest", own(max), 4 * max, true),
            ("a larger one", own(max + 1), 4 * max, false),
            ("the last", own(4096), 4096, true),
            ("one too many", own(4096), 4095, false),
            ("a program's", program, max, false),
        ];
        for (name, region, room, fits) in cases {
            assert_eq!(Memory::new(Arc::new(region)).fits(room), fits, "{name}");
        }
    }

    #[test]
    fn memory_is_looked_at_when_all_of_it_may_have_been_touched() {
        let region = Region::allocate(100, Access::Local).unwrap();
        let memory = Memory::new(Arc::new(region));
        let looks = [10, 80, 9, 1, 1, 1000, 1000].map(|bytes| memory.is_looked_at(bytes));
        assert_eq!(looks, [true, false, false, false, true, false, true]);
        assert!(!memory.is_due(1, 100), "no page is there");
        memory.region.store(&[1], 99).unwrap();
        let due = [99, 1, 1].map(|bytes| memory.is_due(bytes, 100));
        assert_eq!(due, [false, true, false]);
    }

    #[test]
    fn a_row_that_was_refused_is_not_used() {
        let region = Region::allocate(1, Access::Local).unwrap();
        let memory = Memory::new(Arc::new(region));
        assert_eq!(memory.usable_row(), None);
        let row = memory.row.get_or_init(|| 3);
        assert_eq!(memory.usable_row(), Some(*row));
        memory.refuse();
        assert_eq!(memory.usable_row(), None);
    }
}
