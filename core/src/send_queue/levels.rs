//! What a lane's credits come to, as one word and as a snapshot.

use super::grant::Amount;
use crate::units::Epoch;

/// Where a lane stands with those who want to post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Takes works.
    Open,
    /// Takes none for now, for instance because its rail is paused. What is posted ends as usual.
    Degraded,
    /// Takes none before it is rebuilt under a new epoch.
    Terminal,
}

/// A number that changes with every change of a lane's credits, and when somebody leaves a line or ends a posting.
///
/// Who was refused waits until it differs from the one in the refusal: it was read before anything was
/// looked at, so a change in between is seen and no wake-up is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Revision(pub u32);

/// A lane's credits at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Held by works from reservation to completion.
    pub held: Amount,
    /// Works admitted and not yet reserved.
    pub admitted_works: u16,
    /// What the lane can hold.
    pub max: Amount,
    /// Where it stands.
    pub standing: Standing,
    /// Not later than the rest of it.
    pub revision: Revision,
}

impl Snapshot {
    /// Works held or admitted.
    pub const fn load(&self) -> u32 {
        self.held.works as u32 + self.admitted_works as u32
    }

    /// Credits that nobody holds.
    pub const fn free(&self) -> Amount {
        self.max.minus(self.held)
    }

    /// Works that can still be admitted.
    pub const fn admissible_works(&self) -> u16 {
        self.free().works.saturating_sub(self.admitted_works)
    }
}

/// What a lane's word holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Levels {
    pub(super) held: Amount,
    pub(super) admitted_works: u16,
    pub(super) standing: Standing,
    pub(super) epoch: u32,
}

/// Bits of the epoch that the word keeps. A release would have to be 4 million rebuilds late to pass.
pub(super) const EPOCH_BITS: u32 = 22;

impl Levels {
    pub(super) const fn new(epoch: Epoch) -> Self {
        Self {
            held: Amount { works: 0, reads: 0 },
            admitted_works: 0,
            standing: Standing::Open,
            epoch: Self::tag(epoch),
        }
    }

    const fn tag(epoch: Epoch) -> u32 {
        epoch.0 & ((1 << EPOCH_BITS) - 1)
    }

    pub(super) const fn is_of(self, epoch: Epoch) -> bool {
        self.epoch == Self::tag(epoch)
    }

    pub(super) const fn pack(self) -> u64 {
        let standing = match self.standing {
            Standing::Open => 0,
            Standing::Degraded => 1,
            Standing::Terminal => 2,
        };
        self.held.works as u64
            | (self.admitted_works as u64) << 16
            | (self.held.reads as u64) << 32
            | standing << 40
            | (self.epoch as u64) << 42
    }

    pub(super) const fn unpack(word: u64) -> Self {
        Self {
            held: Amount {
                works: word as u16,
                reads: (word >> 32) as u8,
            },
            admitted_works: (word >> 16) as u16,
            standing: match word >> 40 & 3 {
                0 => Standing::Open,
                1 => Standing::Degraded,
                _ => Standing::Terminal,
            },
            epoch: (word >> 42) as u32,
        }
    }
}
