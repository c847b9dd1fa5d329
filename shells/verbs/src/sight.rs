//! What a lane has written, and whether the peer's program can see it.
//!
//! A write has completed when the peer's device has it, which may be before its memory does. An immediate behind it is
//! told to the peer when all before it can be seen; the peer says so, and only then a notification goes out.

use polyrail_core::time::Instant;

/// The cookie of an immediate. Core has none like it.
pub(crate) const IMMEDIATE: u64 = u64::MAX;

/// Of one lane.
#[derive(Debug, Default)]
pub(crate) struct Sight {
    /// Something was written since the last immediate was posted.
    pub(crate) wrote: bool,
    /// The immediate that is on its way. One at a time: the peer has room for few.
    out: Option<Immediate>,
    /// Who waits for the one after it.
    next: Vec<u64>,
}

#[derive(Debug)]
struct Immediate {
    number: u32,
    /// Until when the peer may take to answer.
    by: Instant,
    /// Who waits for it.
    tickets: Vec<u64>,
}

/// What is to be done for a ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// Nothing: all can be seen.
    Nothing,
    /// Nothing more than is on its way.
    Waits,
    /// Post an immediate.
    Post,
}

impl Sight {
    /// Somebody wants all that was written to be seen.
    pub(crate) fn want(&mut self, ticket: u64) -> Wanted {
        match (&mut self.out, self.wrote) {
            (None, false) => Wanted::Nothing,
            (None, true) => {
                self.next.push(ticket);
                Wanted::Post
            }
            (Some(out), false) => {
                out.tickets.push(ticket);
                Wanted::Waits
            }
            (Some(_), true) => {
                self.next.push(ticket);
                Wanted::Waits
            }
        }
    }

    /// An immediate of this number has been posted, which may be answered until then.
    pub(crate) fn posted(&mut self, number: u32, by: Instant) {
        let tickets = std::mem::take(&mut self.next);
        self.out = Some(Immediate {
            number,
            by,
            tickets,
        });
        self.wrote = false;
    }

    /// The peer has seen an immediate. Who waited for it.
    pub(crate) fn seen(&mut self, number: u32) -> Vec<u64> {
        let out = self.out.take_if(|out| out.number == number);
        out.map_or_else(Vec::new, |out| out.tickets)
    }

    /// Whether another one is to be posted.
    pub(crate) fn wants_another(&self) -> bool {
        self.out.is_none() && !self.next.is_empty()
    }

    /// Until when the peer may take to answer. `None`: nothing is to be answered.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.out.as_ref().map(|out| out.by)
    }

    /// Nothing will be answered any more. Who waited.
    pub(crate) fn give_up(&mut self) -> Vec<u64> {
        let mut tickets = self.out.take().map_or_else(Vec::new, |out| out.tickets);
        tickets.append(&mut self.next);
        tickets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_immediate_answers_all_that_was_written_before_it() {
        let by = Instant::from_nanos(7);
        let mut sight = Sight::default();
        assert_eq!(sight.want(1), Wanted::Nothing);
        sight.wrote = true;
        assert_eq!(sight.want(2), Wanted::Post);
        sight.posted(10, by);
        assert_eq!((sight.want(3), sight.due()), (Wanted::Waits, Some(by)));
        sight.wrote = true;
        assert_eq!(sight.want(4), Wanted::Waits);
        assert_eq!(sight.seen(9), []);
        assert!(!sight.wants_another());
        assert_eq!(sight.seen(10), [2, 3]);
        assert!(sight.wants_another());
        sight.posted(11, by);
        assert!(!sight.wants_another() && !sight.wrote);
        assert_eq!(sight.give_up(), [4]);
        assert_eq!((sight.give_up(), sight.due()), (Vec::new(), None));
    }
}
