//! The program's code, kept until whoever drives a worker has released its drive lock: it may do anything, an end of the engine
//! included.

use crate::batch::Ended;

/// Ended batches whose followers do not know yet, in the order in which they ended.
#[derive(Default)]
#[must_use = "followers wait to be told"]
pub(crate) struct Afterwards {
    ended: Vec<Ended>,
}

impl Afterwards {
    pub(crate) fn is_empty(&self) -> bool {
        self.ended.is_empty()
    }

    /// Keeps a batch's followers, if it has any that are the program's.
    pub(crate) fn keep(&mut self, ended: Ended) {
        if ended.has_followers() {
            self.ended.push(ended);
        }
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.ended.append(&mut other.ended);
    }

    /// Tells them. No lock may be held.
    pub(crate) fn carry_out(self) {
        self.ended.into_iter().for_each(Ended::tell);
    }
}
