//! What may be in the memory of targets: which part of it is whose, and what each slot of it can hold.

use std::time::Duration;

use polyrail::{Batch, Local, ReleaseError, Remote, Report, Status};

/// Bytes of the slots of an area, each after the other.
pub(crate) const SLOTS: [usize; 9] = [
    4 << 10,
    4 << 10,
    4 << 10,
    4 << 10,
    64 << 10,
    64 << 10,
    256 << 10,
    256 << 10,
    2 << 20,
];

/// Bytes at the beginning of a segment that hold its stamp.
pub(crate) const STAMP_BYTES: usize = 4 << 10;

/// Areas of a segment. Each life of an initiator has its own: what a life that was killed has still under way reaches no
/// memory that another one looks at.
pub(crate) const AREAS: usize = 12;

/// Bytes of a segment.
pub(crate) const SEGMENT_BYTES: u64 = (STAMP_BYTES + AREAS * area_bytes()) as u64;

/// What is in memory of an initiator that nobody may write to any more.
pub(crate) const POISON: u8 = 0xee;

/// Bytes of an area.
pub(crate) const fn area_bytes() -> usize {
    let (mut sum, mut slot) = (0, 0);
    while slot < SLOTS.len() {
        sum += SLOTS[slot];
        slot += 1;
    }
    sum
}

/// Where a slot begins in an area.
pub(crate) fn slot_offset(slot: usize) -> usize {
    SLOTS[..slot].iter().sum()
}

/// What a write moves, each word of it unlike all other words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark(u64);

impl Mark {
    /// What is in a segment that is new: zeros.
    pub(crate) const ZEROS: Self = Self(0);

    /// That of a write; no other write has its `life` and `number`.
    pub(crate) fn new(life: u64, number: u64) -> Self {
        Self(mixed(life << 40 | number) | 1)
    }

    fn word(self, index: usize) -> u64 {
        match self {
            Self::ZEROS => 0,
            Self(seed) => mixed(seed ^ (index as u64) << 20),
        }
    }

    /// All bytes of it.
    pub(crate) fn bytes(self, length: usize) -> Vec<u8> {
        let words = (0..length / 8).map(|index| self.word(index));
        words.flat_map(u64::to_le_bytes).collect()
    }
}

/// The last step of splitmix64.
fn mixed(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// A request whose memory is not free on both sides.
pub(crate) struct Open {
    pub(crate) batch: Batch,
    /// What it writes.
    pub(crate) mark: Option<Mark>,
    /// What its report says of this side.
    pub(crate) local: Local,
}

/// What a slot can hold, as its owner knows it.
pub(crate) struct Ledger {
    /// Each word is one of these. `None`: nothing is known.
    marks: Option<Vec<Mark>>,
    /// So many bytes of a write at least are there, which has not completed.
    delivered: Option<(Mark, u64)>,
    /// A request whose memory is not free on both sides; until it is, nothing is moved here.
    pub(crate) open: Option<Open>,
    /// Of writes of which nobody will ever know whether they are over.
    ghosts: Vec<Mark>,
}

impl Ledger {
    pub(crate) fn new(marks: Option<Vec<Mark>>) -> Self {
        Self {
            marks,
            delivered: None,
            open: None,
            ghosts: Vec::new(),
        }
    }

    /// Whether nothing is open here any more, as far as anybody will know. Only then is memory touched again.
    pub(crate) fn is_settled(&mut self) -> bool {
        let Some(Open { batch, mark, .. }) = &self.open else {
            return true;
        };
        match batch.wait_released(Duration::ZERO) {
            Ok(_) => {}
            Err(ReleaseError::Unprovable { .. }) => self.ghosts.extend(*mark),
            Err(_) => return false,
        }
        self.open = None;
        true
    }

    /// The segment is another one, and new. What may still reach the old one is nobody's matter: of a process on another
    /// host that was killed there is no proof.
    pub(crate) fn renew(&mut self) {
        self.open.take_if(|open| open.local == Local::Released);
        self.marks = Some(vec![Mark::ZEROS]);
        self.delivered = None;
        self.ghosts.clear();
    }

    /// A write has ended so.
    pub(crate) fn written(&mut self, mark: Mark, report: &Report) {
        self.delivered = None;
        match report.status {
            Status::Completed => self.marks = Some(vec![mark]),
            _ => {
                if let Some(marks) = &mut self.marks {
                    marks.push(mark);
                }
                if report.remote == Remote::Settled {
                    self.delivered = Some((mark, report.delivered_bytes));
                }
            }
        }
    }

    /// What is wrong with what was found there.
    pub(crate) fn check(&mut self, found: &[u8]) -> Option<String> {
        let Some(marks) = &self.marks else {
            return None;
        };
        let (words, _) = found.as_chunks::<8>();
        let is_known = |(index, word): (usize, u64)| {
            let mut known = marks.iter().chain(&self.ghosts);
            known.any(|mark| mark.word(index) == word)
        };
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        if let Some((index, word)) = words.clone().enumerate().find(|word| !is_known(*word)) {
            let zero = if word == 0 { ", which is zero" } else { "" };
            return Some(format!(
                "word {index} of {} is {word:#x}{zero}, and none of {} writes'",
                found.len() / 8,
                marks.len()
            ));
        }
        let (mark, at_least) = self.delivered?;
        let there = words.enumerate();
        let there = 8 * there
            .filter(|(index, word)| mark.word(*index) == *word)
            .count() as u64;
        (there < at_least).then(|| {
            format!("{there} bytes of a write are there, and {at_least} were reported as delivered")
        })
    }
}
