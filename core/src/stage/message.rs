//! What two engines say to each other about staging slots, as plain types.
//!
//! The one that asks repeats itself until it is answered; the owner of the slots answers each time what is true now.
//! So every message may be lost, doubled or overtaken. A ticket names its slot: nobody can speak of a slot that he
//! has not been given, and what is said of a ticket's earlier use changes nothing.
//!
//! To join: one variant `Stage(StageMessage)` each of [`crate::message::Message`] (with the peer, as
//! [`super::Staged::poll_message`] gives it) and [`crate::message::Frame`]; the types are ready for the codec.

use crate::units::{PoolId, Ticket};
use crate::work::{Cause, Place};

/// A question about a slot of the receiver, or the answer to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum StageMessage {
    /// Give this ticket a slot of that pool, or a place in the line for one. Answered by [`Self::Waiting`],
    /// [`Self::Reserved`] or [`Self::Lost`].
    Reserve {
        /// For which chunk.
        ticket: Ticket,
        /// A pool of the receiver.
        pool: PoolId,
    },
    /// Copy between the ticket's slot and this place: from the slot if it is of a pool for what comes in, to it
    /// otherwise. Answered by [`Self::Going`] or [`Self::Went`]. A slot of a pool for what comes in is free once
    /// the copy has ended well.
    Go {
        /// Whose slot.
        ticket: Ticket,
        /// Which attempt: the same number again is the same attempt.
        attempt: u32,
        /// A place of the receiver. Who hands the message in has checked that the sender may use it.
        place: Place,
        /// Bytes, at most a slot's.
        length: u32,
    },
    /// The ticket needs nothing any more. Answered by [`Self::Freed`], or by [`Self::Going`] while a copy runs.
    Free {
        /// Which.
        ticket: Ticket,
        /// Every attempt of the sender that named the slot has ended. If not, the slot is not to be used again.
        fenced: bool,
    },
    /// The ticket is in the line for a slot.
    Waiting {
        /// Which.
        ticket: Ticket,
    },
    /// The ticket has this slot of the pool.
    Reserved {
        /// Which.
        ticket: Ticket,
        /// The slot's number in its pool.
        slot: u32,
    },
    /// This attempt is being carried out.
    Going {
        /// Whose.
        ticket: Ticket,
        /// Which.
        attempt: u32,
    },
    /// This attempt has ended.
    Went {
        /// Whose.
        ticket: Ticket,
        /// Which.
        attempt: u32,
        /// How.
        end: CopyEnd,
    },
    /// The ticket has nothing any more.
    Freed {
        /// Which.
        ticket: Ticket,
    },
    /// There is no such pool, or none of its slots can be used any more.
    Lost {
        /// Whose.
        ticket: Ticket,
    },
}

impl StageMessage {
    /// Whether it is for the owner of the slot; the others are the owner's.
    pub const fn is_question(&self) -> bool {
        matches!(
            self,
            Self::Reserve { .. } | Self::Go { .. } | Self::Free { .. }
        )
    }
}

/// How a copy on the owner's side ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum CopyEnd {
    /// The bytes are there.
    Done,
    /// It failed, and nothing of it can move any more. It may be tried again.
    Failed(Cause),
    /// It failed, and bytes of it may still move. Its slot is quarantined.
    Unfenced(Cause),
}
