//! Structures that begin with their size, as the side that compiled it knows it.
//!
//! A program of an older header has shorter structures: what it does not have keeps its default, or is not filled.
//! One of a newer header has longer ones: the rest has to be zeros where it is read, which mean "as before", and is
//! left alone where it is written.

use std::mem::offset_of;
use std::ptr;

use crate::failure::Failure;
use crate::words::POLYRAIL_ERROR_ARGUMENT;

/// The longest structure that anybody could mean. More is a size that was never set.
const SIZE_MAX: usize = 4096;

/// A structure that begins with its size.
///
/// # Safety
///
/// `repr(C)`, its first field is its size as `u32`, and every pattern of bits is a value.
pub(crate) unsafe trait Structure: Copy {
    /// What fields have that a program does not know.
    const DEFAULT: Self;
}

fn argument(text: String) -> Failure {
    Failure::new(POLYRAIL_ERROR_ARGUMENT, text)
}

/// The last part of a type's name.
fn name<T>() -> &'static str {
    std::any::type_name::<T>().rsplit(':').next().unwrap_or("?")
}

/// The size that the caller says, if it is one.
///
/// # Safety
///
/// `from` is null or leads to at least the size.
unsafe fn size<T: Structure>(from: *const T) -> Result<usize, Failure> {
    if from.is_null() {
        return Err(argument(format!("a null pointer to {}", name::<T>())));
    }
    // SAFETY: the caller's promise, and the trait's: it is the first field.
    let size = unsafe { from.cast::<u32>().read_unaligned() } as usize;
    if size < size_of::<u32>() * 2 || size > SIZE_MAX {
        let text = format!(
            "the size in {} is {size}: set it to sizeof({0}), {1} here",
            name::<T>(),
            size_of::<T>()
        );
        return Err(argument(text));
    }
    Ok(size)
}

/// What a caller's structure says.
///
/// # Safety
///
/// `from` is null or leads to as many bytes as it says.
pub(crate) unsafe fn read<T: Structure>(from: *const T) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    let said = unsafe { size(from) }?;
    let known = said.min(size_of::<T>());
    let mut value = T::DEFAULT;
    // SAFETY: both have as many bytes, and every pattern of bits is a value of `T`.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast::<u8>(), known) };
    let mut rest = known..said;
    // SAFETY: these bytes are the caller's, who says how many they are.
    if let Some(place) = rest.find(|place| unsafe { from.cast::<u8>().add(*place).read() } != 0) {
        let text = format!(
            "byte {place} of {} is not 0, and this library knows {known} bytes of it: the program needs a newer one",
            name::<T>()
        );
        return Err(argument(text));
    }
    Ok(value)
}

/// The same of one that may be null: everything has its default then.
///
/// # Safety
///
/// That of [`read`].
pub(crate) unsafe fn read_or_default<T: Structure>(from: *const T) -> Result<T, Failure> {
    match from.is_null() {
        true => Ok(T::DEFAULT),
        // SAFETY: the caller's promise.
        false => unsafe { read(from) },
    }
}

/// Fills a caller's structure, as far as both sides know it. Its size says then how far that is.
///
/// # Safety
///
/// `to` is null or leads to as many writable bytes as it says.
pub(crate) unsafe fn write<T: Structure>(to: *mut T, mut value: T) -> Result<(), Failure> {
    const { assert!(size_of::<T>() <= SIZE_MAX) };
    // SAFETY: the caller's promise.
    let known = unsafe { size(to) }?.min(size_of::<T>());
    // SAFETY: the first field, by the trait's promise.
    unsafe { (&raw mut value).cast::<u32>().write(known as u32) };
    // SAFETY: both have as many bytes.
    unsafe { ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), to.cast::<u8>(), known) };
    Ok(())
}

/// How far apart the structures of an array are: the first one says it.
///
/// # Safety
///
/// `first` leads to at least the size.
pub(crate) unsafe fn stride<T: Structure>(first: *const T) -> Result<usize, Failure> {
    // SAFETY: the caller's promise.
    let stride = unsafe { size(first) }?;
    if stride % align_of::<T>() != 0 {
        let text = format!(
            "the size in {} is {stride}, no multiple of {}",
            name::<T>(),
            align_of::<T>()
        );
        return Err(argument(text));
    }
    Ok(stride)
}

/// What the `index`-th structure of an array says. Its size has to be the first one's: nothing behind that is looked at.
///
/// # Safety
///
/// `first` leads to more than `index` structures of `stride` bytes.
pub(crate) unsafe fn read_row<T: Structure>(
    first: *const T,
    index: usize,
    stride: usize,
) -> Result<T, Failure> {
    // SAFETY: inside the caller's array.
    let row = unsafe { first.byte_add(index * stride) };
    // SAFETY: the first field.
    let said = unsafe { size(row) }?;
    if said != stride {
        let text = format!(
            "the size in {} {index} is {said}, and {stride} in the first one",
            name::<T>()
        );
        return Err(argument(text));
    }
    // SAFETY: it has as many bytes as it says.
    unsafe { read(row) }
}

/// Fills an array of the caller's with what there is, as far as it goes, and says how many there are.
///
/// # Safety
///
/// `rows` leads to `capacity` structures, the first of which says how long each is; `count` to a number.
pub(crate) unsafe fn write_all<T: Structure>(
    rows: *mut T,
    capacity: usize,
    count: *mut usize,
    values: impl ExactSizeIterator<Item = T>,
) -> Result<(), Failure> {
    if count.is_null() {
        return Err(argument("a null pointer to the count".into()));
    }
    let total = values.len();
    if capacity > 0 {
        // SAFETY: the caller's promise.
        let stride = unsafe { stride(rows) }?;
        for (index, value) in values.take(capacity).enumerate() {
            // SAFETY: inside the caller's array.
            let row = unsafe { rows.byte_add(index * stride) };
            // SAFETY: it is `stride` bytes long, the first field among them.
            unsafe { row.cast::<u32>().write(stride as u32) };
            // SAFETY: as above.
            unsafe { write(row, value) }?;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { count.write(total) };
    Ok(())
}

const _: () = assert!(offset_of!(crate::failure::polyrail_error, size) == 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Now {
        size: u32,
        first: u32,
        second: u32,
    }

    // SAFETY: numbers only.
    unsafe impl Structure for Now {
        const DEFAULT: Self = Self {
            size: 0,
            first: 1,
            second: 2,
        };
    }

    const SIZE: u32 = size_of::<Now>() as u32;

    fn said(words: &[u32]) -> Result<(u32, u32), String> {
        // SAFETY: each case has as many bytes as it says.
        let read = unsafe { read(words.as_ptr().cast::<Now>()) };
        read.map(|now| (now.first, now.second))
            .map_err(|failure| failure.text)
    }

    #[test]
    fn older_and_newer_programs_are_understood() {
        assert_eq!(said(&[SIZE, 8, 9]), Ok((8, 9)));
        assert_eq!(said(&[8, 8]), Ok((8, 2)), "an older program");
        assert_eq!(said(&[SIZE + 4, 8, 9, 0]), Ok((8, 9)), "a newer program");
        let error = said(&[SIZE + 4, 8, 9, 0x0100]).unwrap_err();
        assert!(error.contains("byte 13 of Now"), "{error}");
    }

    #[test]
    fn sizes_that_were_never_set_are_errors() {
        for size in [0, 4, u32::MAX] {
            let error = said(&[size, 0, 0]).unwrap_err();
            assert!(error.contains("sizeof(Now), 12 here"), "{error}");
        }
        // SAFETY: null is an error.
        let error = unsafe { read::<Now>(std::ptr::null()) }.unwrap_err();
        assert!(error.text.contains("null"), "{}", error.text);
    }

    #[test]
    fn what_is_written_ends_where_the_shorter_side_ends() {
        for (size, filled, left) in [
            (8, 8, [8, 8, 7, 7]),
            (SIZE, SIZE, [SIZE, 8, 9, 7]),
            (16, SIZE, [SIZE, 8, 9, 7]),
        ] {
            let mut words = [size, 7, 7, 7];
            let value = Now {
                size: 0,
                first: 8,
                second: 9,
            };
            // SAFETY: as many bytes as it says.
            unsafe { write(words.as_mut_ptr().cast::<Now>(), value) }.unwrap();
            assert_eq!((words[0], words), (filled, left));
        }
    }

    #[test]
    fn arrays_are_filled_by_the_callers_stride() {
        let rows = |first| Now {
            size: 0,
            first,
            second: 0,
        };
        let mut words = [16, 7, 7, 7, 7, 7, 7, 7];
        let mut count = 0;
        let values = [rows(4), rows(5), rows(6)].into_iter();
        // SAFETY: two structures of 16 bytes.
        unsafe { write_all(words.as_mut_ptr().cast::<Now>(), 2, &mut count, values) }.unwrap();
        assert_eq!((count, words), (3, [SIZE, 4, 0, 7, SIZE, 5, 0, 7]));
    }
}
