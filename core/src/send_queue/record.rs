//! What the ledger keeps of a post, and what it tells about it.

use super::grant::Grant;
use crate::queue::{Link, Linked};
use crate::units::RecordId;

/// Where a record stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordState {
    /// Put in, not yet known to be posted.
    Tentative,
    /// The transport has taken it.
    Posted,
    /// No completion will cover it.
    Orphaned,
}

/// Works of one owner that were posted together.
#[derive(PartialEq, Eq, Debug)]
pub struct Record<O> {
    /// Whose they are.
    pub owner: O,
    /// Their credits.
    pub grant: Grant,
    /// The owner's requests that are in them; merging makes that another number than that of works. A request that
    /// makes several works counts with the last, and has ended when the records of all of them have.
    pub requests: u32,
    /// Whether the last of the works asks for a completion.
    pub signalled: bool,
}

/// Memory of one record.
#[derive(Debug)]
pub struct Slot<O> {
    pub(super) record: Record<O>,
    pub(super) state: RecordState,
    pub(super) link: Link,
}

impl<O> Linked<0> for Slot<O> {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// What became of a post: how the works that went out will be heard of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PostOutcome {
    /// All of them went out.
    Whole,
    /// None did.
    Nothing,
    /// Some did, and the last of those asks for a completion.
    Covered,
    /// Some did, and the last of those asks for none: signal the next work, or recover the lane.
    Uncovered,
    /// The transport does not know: what it did not vouch for is orphaned. Recover the lane.
    Unknown,
}

/// All orphans of one owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Orphans<O> {
    /// Whose they are.
    pub owner: O,
    /// The owner's requests in them.
    pub requests: u32,
}

/// A record as it was put in, to tell what became of the post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entered {
    /// The record. Its bits are the cookie of the works.
    pub id: RecordId,
    pub(super) works: u16,
    pub(super) requests: u32,
    pub(super) signalled: bool,
}
