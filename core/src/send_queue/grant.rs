//! Credits as values: how many, and the proof of having taken them.

use crate::units::Epoch;

/// Works, and how many of them are reads, each of which needs a second credit (verbs `max_rd_atomic`). Where
/// a transport sets no limit on reads, none are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amount {
    /// Works.
    pub works: u16,
    /// Reads among them.
    pub reads: u8,
}

impl Amount {
    /// Works that are writes.
    pub const fn writes(works: u16) -> Self {
        Self { works, reads: 0 }
    }

    pub(super) const fn fits(self, room: Self) -> bool {
        self.works <= room.works && self.reads <= room.reads
    }

    pub(super) const fn plus(self, other: Self) -> Self {
        Self {
            works: self.works.saturating_add(other.works),
            reads: self.reads.saturating_add(other.reads),
        }
    }

    pub(super) const fn minus(self, other: Self) -> Self {
        Self {
            works: self.works.saturating_sub(other.works),
            reads: self.reads.saturating_sub(other.reads),
        }
    }
}

/// Credits taken from one lane; none by default. It is not copied, so it goes back at most once.
#[derive(PartialEq, Eq, Debug, Default)]
#[must_use = "credits that are not released are lost to the lane"]
pub struct Grant {
    pub(super) amount: Amount,
    pub(super) epoch: Epoch,
}

impl Grant {
    /// What it is worth.
    pub const fn amount(&self) -> Amount {
        self.amount
    }

    /// The lane's epoch when it was taken.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Keeps up to `works`, and reads up to that; gives the rest.
    pub fn split_off(&mut self, works: u16) -> Self {
        let kept = Amount {
            works: self.amount.works.min(works),
            reads: u8::try_from(works)
                .map_or(self.amount.reads, |most| self.amount.reads.min(most)),
        };
        let rest = self.amount.minus(kept);
        self.amount = kept;
        Self {
            amount: rest,
            epoch: self.epoch,
        }
    }
}
