//! A segment at one end of a request, wherever its bytes are.

use std::fs::File;
use std::os::unix::fs::FileExt;

use polyrail::{Engine, Op, Request, SegmentId};

use crate::fixture::*;

/// A segment at one end, and how to look at what is in it.
pub(crate) struct End {
    pub(crate) segment: SegmentId,
    looks: Looks,
}

enum Looks {
    Memory(Engine, SegmentId),
    File(File),
}

impl End {
    /// Memory of an engine's, by its own number.
    pub(crate) fn memory(engine: &Engine, segment: SegmentId) -> Self {
        Self {
            segment,
            looks: Looks::Memory(engine.clone(), segment),
        }
    }

    /// A file, which the engine that has `segment` need not have open itself.
    pub(crate) fn file(segment: SegmentId, file: File) -> Self {
        Self {
            segment,
            looks: Looks::File(file),
        }
    }

    /// The same end, as another engine numbers it.
    pub(crate) fn known_as(self, segment: SegmentId) -> Self {
        Self { segment, ..self }
    }

    /// Fills all of it.
    pub(crate) fn fill(&self, seed: u64) -> Vec<u8> {
        let bytes = pattern(seed, self.length());
        match &self.looks {
            Looks::Memory(engine, segment) => put(&engine.region(*segment).unwrap(), 0, &bytes),
            Looks::File(file) => file.write_all_at(&bytes, 0).unwrap(),
        }
        bytes
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        match &self.looks {
            Looks::Memory(engine, segment) => bytes(&engine.region(*segment).unwrap()),
            Looks::File(file) => {
                let mut bytes = vec![0; self.length() as usize];
                file.read_exact_at(&mut bytes, 0).unwrap();
                bytes
            }
        }
    }

    fn length(&self) -> u64 {
        match &self.looks {
            Looks::Memory(engine, segment) => engine.region(*segment).unwrap().bytes(),
            Looks::File(file) => file.metadata().unwrap().len(),
        }
    }
}

/// Writes pieces of one end to the other, at odd offsets and of odd lengths, in one batch: each lands where it belongs, and
/// nothing else changes.
pub(crate) fn check_pieces(engine: &Engine, near: &End, far: &End) {
    let sent = near.fill(1);
    let mut expected = far.fill(2);
    let last = sent.len() as u64 - 1;
    // (local offset, remote offset, length)
    let pieces = [
        (3, 0, 1),
        (7, 4096, 4095),
        (123_457, 65_537, MIB + 1),
        (MIB, 2 * MIB, 3 * MIB),
        (last, last, 1),
    ];
    let requests = pieces.map(|(local_offset, remote_offset, length)| Request {
        op: Op::Write,
        local: near.segment,
        local_offset,
        remote: far.segment,
        remote_offset,
        length,
    });
    completed(&engine.submit(&requests).unwrap());
    for (from, to, length) in pieces {
        let (from, to, length) = (from as usize, to as usize, length as usize);
        expected[to..to + length].copy_from_slice(&sent[from..from + length]);
    }
    assert!(far.bytes() == expected);
}
