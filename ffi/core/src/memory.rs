//! Memory of the caller's, cut into tables.

use core::alloc::Layout;
use core::ptr::NonNull;
use core::slice;

/// What the functions of this header promise. Any change to it is another number.
pub const POLYRAIL_CORE_ABI: u32 = 3;

/// All is well; of a poll: there was something.
pub const POLYRAIL_CORE_OK: i32 = 0;
/// A poll had nothing.
pub const POLYRAIL_CORE_NONE: i32 = 1;
/// A pointer is null, or a number is out of range.
pub const POLYRAIL_CORE_ERROR_ARGUMENT: i32 = -1;
/// The memory is too small, or not aligned.
pub const POLYRAIL_CORE_ERROR_MEMORY: i32 = -2;
/// There is no free row now.
pub const POLYRAIL_CORE_ERROR_FULL: i32 = -3;
/// The tables have no such row: the limits are too low for it.
pub const POLYRAIL_CORE_ERROR_LIMIT: i32 = -4;
/// The plan, batch, request or post is not there, or not any more.
pub const POLYRAIL_CORE_ERROR_STALE: i32 = -5;
/// The request or batch has not ended.
pub const POLYRAIL_CORE_ERROR_PENDING: i32 = -6;
/// The request names no bytes, or ends past the largest offset.
pub const POLYRAIL_CORE_ERROR_RANGE: i32 = -7;

/// What memory for core begins at a multiple of.
pub const POLYRAIL_CORE_ALIGNMENT: usize = 128;

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) i32);

pub(crate) const ARGUMENT: Code = Code(POLYRAIL_CORE_ERROR_ARGUMENT);
pub(crate) const STALE: Code = Code(POLYRAIL_CORE_ERROR_STALE);
pub(crate) const LIMIT: Code = Code(POLYRAIL_CORE_ERROR_LIMIT);

/// What a function answers.
pub(crate) fn code(done: Result<(), Code>) -> i32 {
    done.map_or_else(|Code(code)| code, |()| POLYRAIL_CORE_OK)
}

/// What a poll answers.
pub(crate) fn polled(found: Result<Option<()>, Code>) -> i32 {
    match found {
        Ok(Some(())) => POLYRAIL_CORE_OK,
        Ok(None) => POLYRAIL_CORE_NONE,
        Err(Code(code)) => code,
    }
}

/// What a pointer of the caller's leads to.
///
/// # Safety
///
/// The contract of the crate.
pub(crate) unsafe fn look<'a, T>(at: *const T) -> Result<&'a T, Code> {
    // SAFETY: the caller's promise.
    unsafe { at.as_ref() }.ok_or(ARGUMENT)
}

/// The same, to be changed.
///
/// # Safety
///
/// The contract of the crate.
pub(crate) unsafe fn change<'a, T>(at: *mut T) -> Result<&'a mut T, Code> {
    // SAFETY: the caller's promise.
    unsafe { at.as_mut() }.ok_or(ARGUMENT)
}

/// The same for several.
///
/// # Safety
///
/// The contract of the crate.
pub(crate) unsafe fn several<'a, T>(at: *const T, count: usize) -> Result<&'a [T], Code> {
    match (at.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(ARGUMENT),
        // SAFETY: the caller's promise.
        (false, _) => Ok(unsafe { slice::from_raw_parts(at, count) }),
    }
}

/// Lays tables out one behind the other: first to find out how much they take, then in memory.
pub(crate) struct Layouter {
    base: Option<NonNull<u8>>,
    layout: Layout,
}

impl Layouter {
    /// Only counts.
    pub(crate) fn counting() -> Self {
        let layout = Layout::new::<()>();
        Self { base: None, layout }
    }

    /// Lays out in memory that has been found to be enough.
    fn placing(base: NonNull<u8>) -> Self {
        Self {
            base: Some(base),
            ..Self::counting()
        }
    }

    /// Room for so many rows; where it is, unless it only counts. `None`: more than there can be.
    pub(crate) fn rows<T>(&mut self, count: usize) -> Option<Option<NonNull<T>>> {
        const { assert!(align_of::<T>() <= POLYRAIL_CORE_ALIGNMENT) };
        let rows = Layout::array::<T>(count).ok()?;
        let (layout, offset) = self.layout.extend(rows).ok()?;
        self.layout = layout;
        // SAFETY: inside the memory, whose size was found by the same steps.
        Some(
            self.base
                .map(|base| unsafe { base.byte_add(offset) }.cast()),
        )
    }

    /// What it has come to.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.size()
    }
}

/// Makes rows of room for them.
///
/// # Safety
///
/// `at` is as many rows' room, which is nobody else's for as long as they are used.
pub(crate) unsafe fn fill<T>(
    at: NonNull<T>,
    count: usize,
    row: impl Fn() -> T,
) -> &'static mut [T] {
    for index in 0..count {
        // SAFETY: inside the room.
        unsafe { at.add(index).write(row()) };
    }
    // SAFETY: they have just been made, and are nobody else's.
    unsafe { slice::from_raw_parts_mut(at.as_ptr(), count) }
}

/// The caller's memory, if it is enough.
pub(crate) fn enough(memory: *mut u8, bytes: usize, needed: usize) -> Result<Layouter, Code> {
    let base = NonNull::new(memory).ok_or(ARGUMENT)?;
    let aligned = base.as_ptr().addr().is_multiple_of(POLYRAIL_CORE_ALIGNMENT);
    match aligned && bytes >= needed {
        true => Ok(Layouter::placing(base)),
        false => Err(Code(POLYRAIL_CORE_ERROR_MEMORY)),
    }
}

/// What this library promises: see `POLYRAIL_CORE_ABI`.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_core_abi() -> u32 {
    POLYRAIL_CORE_ABI
}
