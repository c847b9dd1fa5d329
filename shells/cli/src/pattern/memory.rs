//! Filling, poisoning and checking registered memory.
//!
//! A [`Region`] may be used by transports and by peers at the same time, so its bytes are copied from or to a buffer of
//! our own, chunk by chunk. It may be on a GPU: there each chunk is a copy of its own.

use std::fmt;
use std::io;

use polyrail::Region;
use serde::{Deserialize, Serialize};

use super::Pattern;

/// Bytes copied under one permission.
const CHUNK: usize = 16 * 1024;

/// Some bytes of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Span {
    /// Where they start.
    pub(crate) offset: u64,
    /// How many.
    pub(crate) bytes: u64,
}

/// Wrong bytes that a check found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Mismatch {
    /// The absolute offset of the first one.
    pub(crate) offset: u64,
    /// What it should be.
    pub(crate) expected: u8,
    /// What it is.
    pub(crate) got: u8,
    /// How many are wrong.
    pub(crate) wrong_bytes: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            offset,
            expected,
            got,
            wrong_bytes,
        } = self;
        write!(
            f,
            "wrong byte at offset {offset}: expected {expected:#04x}, got {got:#04x} ({wrong_bytes} wrong)"
        )
    }
}

/// Why memory could not be touched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum MemoryError {
    /// The span ends past the region.
    OutOfRange {
        /// The span.
        span: Span,
        /// The size of the region.
        region_bytes: u64,
    },
    /// The region was revoked, or its device failed.
    Failed {
        /// Which.
        why: String,
    },
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange {
                span: Span { offset, bytes },
                region_bytes,
            } => write!(
                f,
                "{bytes} bytes from offset {offset} on do not lie in a segment of {region_bytes} bytes"
            ),
            Self::Failed { why } => f.write_str(why),
        }
    }
}

/// Writes the pattern of the bytes from `absolute` on into `span`.
pub(crate) fn fill(
    region: &Region,
    span: Span,
    absolute: u64,
    pattern: Pattern,
) -> Result<(), MemoryError> {
    let mut buffer = [0; CHUNK];
    for_each_chunk(region, span, |place, at| {
        let chunk = &mut buffer[..place.bytes as usize];
        pattern.write(absolute + at, chunk);
        copy_in(region, place, chunk)
    })
}

/// Writes `value` all over `span`.
pub(crate) fn poison(region: &Region, span: Span, value: u8) -> Result<(), MemoryError> {
    let buffer = [value; CHUNK];
    for_each_chunk(region, span, |place, _| {
        copy_in(region, place, &buffer[..place.bytes as usize])
    })
}

/// Compares `span` with the pattern of the bytes from `absolute` on. `None`: every byte is right.
pub(crate) fn check(
    region: &Region,
    span: Span,
    absolute: u64,
    pattern: Pattern,
) -> Result<Option<Mismatch>, MemoryError> {
    let (mut is, mut should) = ([0; CHUNK], [0; CHUNK]);
    let mut found = None;
    for_each_chunk(region, span, |place, at| {
        let (is, should) = (
            &mut is[..place.bytes as usize],
            &mut should[..place.bytes as usize],
        );
        copy_out(region, place, is)?;
        pattern.write(absolute + at, should);
        if is != should {
            note_mismatch(&mut found, absolute + at, is, should);
        }
        Ok(())
    })?;
    Ok(found)
}

/// The CRC32C of bytes that have `crc` and of `span` behind them.
pub(crate) fn checksum(region: &Region, span: Span, crc: u32) -> Result<u32, MemoryError> {
    let mut buffer = [0; CHUNK];
    let mut crc = crc;
    for_each_chunk(region, span, |place, _| {
        let chunk = &mut buffer[..place.bytes as usize];
        copy_out(region, place, chunk)?;
        crc = crc32c::crc32c_append(crc, chunk);
        Ok(())
    })?;
    Ok(crc)
}

fn note_mismatch(found: &mut Option<Mismatch>, absolute: u64, is: &[u8], should: &[u8]) {
    for (offset, (&got, &expected)) in (absolute..).zip(is.iter().zip(should)) {
        if got != expected {
            let first = Mismatch {
                offset,
                expected,
                got,
                wrong_bytes: 0,
            };
            found.get_or_insert(first).wrong_bytes += 1;
        }
    }
}

/// Calls `touch` with each chunk of `span` and its distance from the start of `span`.
fn for_each_chunk(
    region: &Region,
    span: Span,
    mut touch: impl FnMut(Span, u64) -> Result<(), MemoryError>,
) -> Result<(), MemoryError> {
    if !region.contains(span.offset, span.bytes) {
        let region_bytes = region.bytes();
        return Err(MemoryError::OutOfRange { span, region_bytes });
    }
    let mut at = 0;
    while at < span.bytes {
        let bytes = (span.bytes - at).min(CHUNK as u64);
        touch(
            Span {
                offset: span.offset + at,
                bytes,
            },
            at,
        )?;
        at += bytes;
    }
    Ok(())
}

/// Copies `from` to `place`, which is as long.
pub(crate) fn copy_in(region: &Region, place: Span, from: &[u8]) -> Result<(), MemoryError> {
    region.store(from, place.offset).map_err(failed)
}

/// Copies `place` to `to`, which is as long.
pub(crate) fn copy_out(region: &Region, place: Span, to: &mut [u8]) -> Result<(), MemoryError> {
    region.load(place.offset, to).map_err(failed)
}

fn failed(error: io::Error) -> MemoryError {
    let why = error.to_string();
    MemoryError::Failed { why }
}

#[cfg(test)]
mod tests {
    use super::*;

    use polyrail::Access;

    const BYTES: u64 = 3 * CHUNK as u64 + 5;

    fn region() -> Region {
        Region::allocate(BYTES, Access::RemoteReadWrite).unwrap()
    }

    fn span(offset: u64, bytes: u64) -> Span {
        Span { offset, bytes }
    }

    #[test]
    fn what_was_filled_checks_where_it_belongs_and_nowhere_else() {
        let region = region();
        let pattern = Pattern::new(1, 2);
        fill(&region, span(3, BYTES - 3), 1000, pattern).unwrap();
        assert_eq!(check(&region, span(3, BYTES - 3), 1000, pattern), Ok(None));
        // (name, absolute offset asked for, pattern asked for)
        let wrong = [
            ("another place", 1001, pattern),
            ("an older sample", 1000, Pattern::new(1, 1)),
            ("another seed", 1000, Pattern::new(2, 2)),
        ];
        for (name, absolute, pattern) in wrong {
            let found = check(&region, span(3, 4096), absolute, pattern).unwrap();
            assert!(
                found.is_some_and(|f| f.wrong_bytes > 4000),
                "{name}: {found:?}"
            );
        }
    }

    #[test]
    fn one_wrong_byte_is_found_and_described() {
        let region = region();
        let pattern = Pattern::new(1, 2);
        for at in [0, 1, CHUNK as u64 - 1, CHUNK as u64, BYTES - 1] {
            fill(&region, span(0, BYTES), 0, pattern).unwrap();
            poison(&region, span(at, 1), !pattern.byte(at)).unwrap();
            let found = check(&region, span(0, BYTES), 0, pattern).unwrap();
            let expected = pattern.byte(at);
            let mismatch = Mismatch {
                offset: at,
                expected,
                got: !expected,
                wrong_bytes: 1,
            };
            assert_eq!(found, Some(mismatch));
        }
    }

    #[test]
    fn poison_stays_inside_its_span() {
        let region = region();
        let pattern = Pattern::new(1, 2);
        fill(&region, span(0, BYTES), 0, pattern).unwrap();
        poison(&region, span(10, BYTES - 20), 0xee).unwrap();
        assert_eq!(check(&region, span(0, 10), 0, pattern), Ok(None));
        assert_eq!(
            check(&region, span(BYTES - 10, 10), BYTES - 10, pattern),
            Ok(None)
        );
        assert!(
            check(&region, span(0, BYTES), 0, pattern)
                .unwrap()
                .is_some()
        );
    }

    #[test]
    fn spans_outside_are_errors_that_name_value_and_limit() {
        let region = region();
        let pattern = Pattern::new(0, 0);
        for span in [
            span(BYTES, 1),
            span(u64::MAX, 2),
            span(0, u64::MAX),
            span(1, BYTES),
        ] {
            let error = poison(&region, span, 0).unwrap_err();
            assert_eq!(fill(&region, span, 0, pattern), Err(error.clone()));
            assert_eq!(check(&region, span, 0, pattern), Err(error.clone()));
            let text = error.to_string();
            for part in [span.offset, span.bytes, BYTES] {
                assert!(text.contains(&part.to_string()), "{text}");
            }
        }
        region.revoke();
        let revoked = poison(&region, span(0, 1), 0);
        assert!(matches!(revoked, Err(MemoryError::Failed { .. })));
    }
}
