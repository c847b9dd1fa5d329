//! How a recording lies in its file: a start, then blocks, each with its length and its checksums.
//!
//! ```text
//! file  = "prflight" version:u16 block*
//! block = length:u32 crc32(content):u32 crc32(the 8 bytes before):u32 content
//! content = 1 header | 2 first_call:u64 (step answer)* | 3 calls:u64 | 4 calls:u64
//! ```
//!
//! Integers are little-endian; header, steps and answers are in postcard's format. The first block is the
//! header, the last one, if the recording was closed (3) or cut (4), says how many calls there are.

use serde::Serialize;

/// What a recording starts with, before its version.
pub(crate) const MAGIC: [u8; 8] = *b"prflight";
/// The version of this format. Another one whenever a type of core that is written down changes.
pub(crate) const VERSION: u16 = 8;
/// Bytes of the start.
pub(crate) const START_BYTES: usize = MAGIC.len() + 2;
/// Bytes before a block's content.
pub(crate) const HEAD_BYTES: usize = 12;
/// No content is longer than this. Those with a state of a core are as long as what is under way there.
pub(crate) const BLOCK_BYTES_MAX: usize = 16 << 20;

/// What a block has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Header = 1,
    Calls = 2,
    End = 3,
    /// There were more calls, which nobody wrote down.
    Cut = 4,
}

impl Kind {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Header, Self::Calls, Self::End, Self::Cut]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// The start of a file.
pub(crate) fn start() -> [u8; START_BYTES] {
    let mut bytes = [0; START_BYTES];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[MAGIC.len()..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Begins a block in `bytes`, whatever was in it.
pub(crate) fn begin(bytes: &mut Vec<u8>, kind: Kind) {
    bytes.clear();
    bytes.extend_from_slice(&[0; HEAD_BYTES]);
    bytes.push(kind as u8);
}

/// A block of one piece.
pub(crate) fn whole(kind: Kind, content: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    begin(&mut bytes, kind);
    content(&mut bytes);
    finish(&mut bytes);
    bytes
}

/// A value in postcard's format.
pub(crate) fn bytes(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    append(&mut bytes, value);
    bytes
}

/// Completes the head of a block.
pub(crate) fn finish(bytes: &mut [u8]) {
    let Some((head, content)) = bytes.split_first_chunk_mut::<HEAD_BYTES>() else {
        return;
    };
    debug_assert!(content.len() <= BLOCK_BYTES_MAX);
    head[..4].copy_from_slice(&(content.len() as u32).to_le_bytes());
    head[4..8].copy_from_slice(&crc32fast::hash(content).to_le_bytes());
    let check = crc32fast::hash(&head[..8]);
    head[8..].copy_from_slice(&check.to_le_bytes());
}

/// Length and checksum of the content behind a head; `None`: the head is not what was written.
pub(crate) fn head(head: &[u8; HEAD_BYTES]) -> Option<(u32, u32)> {
    let word = |at: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&head[at..at + 4]);
        u32::from_le_bytes(word)
    };
    (crc32fast::hash(&head[..8]) == word(8)).then(|| (word(0), word(4)))
}

/// Appends a value in postcard's format.
pub(crate) fn append(bytes: &mut Vec<u8>, value: &impl Serialize) {
    let appended = postcard::serialize_with_flavor(value, Appending(bytes));
    debug_assert!(appended.is_ok(), "every type here can be written");
}

struct Appending<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Appending<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}
