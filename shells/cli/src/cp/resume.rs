//! What both sides of a copy have already.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::end::Interrupted;
use super::pipeline::CHUNK_BYTES;
use super::place::Segment;
use crate::calls::ask::Owner;
use crate::exit::Failure;
use crate::pattern::memory::Span;

/// Which chunks of `bytes` are the same in a file and in a target's segment: the target is asked for the sum of each chunk that
/// the file has whole.
pub(super) fn compare(
    file: &File,
    owner: Owner<'_>,
    segment: &Segment,
    bytes: u64,
    interrupted: &Interrupted,
) -> Result<Vec<bool>, Failure> {
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    let same = |number: u64| {
        interrupted.check()?;
        let offset = number * CHUNK_BYTES;
        let length = (bytes - offset).min(CHUNK_BYTES);
        let chunk = &mut buffer[..length as usize];
        // What the file does not have yet, or what cannot be read, is copied.
        if file.read_exact_at(chunk, offset).is_err() {
            return Ok(false);
        }
        let span = Span {
            offset: segment.offset + offset,
            bytes: length,
        };
        Ok(owner.checksum(&segment.name, span)? == crc32c::crc32c(chunk))
    };
    (0..bytes.div_ceil(CHUNK_BYTES)).map(same).collect()
}
