//! A row of staging: one chunk of ours on its way, or one chunk of a peer's that uses a slot of ours.

use super::message::CopyEnd;
use crate::queue::{Link, Linked};
use crate::time::Instant;
use crate::units::{PoolId, StagedId};
use crate::work::Place;

/// The links of a row. In the line for a slot; a row not in use is in its peer's list with the same link.
pub(super) const WAITING: usize = 0;
/// Something to say.
pub(super) const OUTBOX: usize = 1;
/// Said, and to be repeated.
pub(super) const SENT: usize = 2;
/// A stage to begin.
pub(super) const READY: usize = 3;
/// A stage to be called back.
pub(super) const REVOKED: usize = 4;

/// A row. Rows are the caller's memory; their content is [`super::Staged`]'s business.
#[derive(Debug)]
pub struct Claim {
    waiting: Link,
    outbox: Link,
    sent: Link,
    ready: Link,
    revoked: Link,
    /// Of the ticket.
    pub(super) generation: u32,
    /// Of stages and of the peer's copies: counted on through all uses of the row.
    pub(super) attempt: u32,
    pub(super) run: Run,
    pub(super) resend_at: Instant,
    /// The pool of this side in whose line it is.
    pub(super) waits: Option<PoolId>,
    /// The slot of this side that it has.
    pub(super) slot: Option<(PoolId, u32)>,
    pub(super) role: Role,
}

impl Claim {
    /// Whether it neither has a slot nor waits for one.
    pub(super) const fn has_nothing(&self) -> bool {
        self.slot.is_none() && self.waits.is_none()
    }

    /// For the arrays that a caller hands in.
    pub const EMPTY: Self = Self {
        waiting: Link::NONE,
        outbox: Link::NONE,
        sent: Link::NONE,
        ready: Link::NONE,
        revoked: Link::NONE,
        generation: 0,
        attempt: 0,
        run: Run::No,
        resend_at: Instant::ZERO,
        waits: None,
        slot: None,
        role: Role::Idle,
    };
}

/// Whether a stage of the row is to be carried out by this engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Run {
    No,
    /// Nobody has been told yet.
    Ready,
    /// It has been handed out; only its report ends it.
    Out,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    Idle,
    Chunk(Chunk),
    Lease(Lease),
}

/// A part of a request of ours that is on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// `None`: it is only giving back what it has.
    pub(super) request: Option<StagedId>,
    /// From the request's start.
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) step: Step,
    pub(super) remote: Remote,
    /// An attempt of ours that named the peer's slot has ended without proof.
    pub(super) unfenced: bool,
    /// Stages that failed.
    pub(super) failures: u8,
    /// It begins anew when everything is given back.
    pub(super) again: bool,
    /// When the peer last said something about it, before it was asked to end its copy.
    pub(super) heard_at: Instant,
}

/// How far a chunk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// It has not all slots yet.
    Acquire,
    /// This engine copies between the near end and the local slot.
    Copy,
    Network,
    /// The peer copies between its slot and the far end.
    Go,
    /// Its request, a write, has ended meanwhile: the peer is asked to end its copy.
    Recall,
    GiveBack,
}

/// A chunk's claim on a slot of the peer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Remote {
    None,
    Asked,
    Held(u32),
    Freeing,
}

impl Chunk {
    /// Whether there is something to tell the peer, again and again until it answers.
    pub(super) fn asks(&self) -> bool {
        self.step == Step::Go || matches!(self.remote, Remote::Asked | Remote::Freeing)
    }
}

/// A peer's claim on a slot of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) pool: PoolId,
    pub(super) state: LeaseState,
    /// The copy asked for last.
    pub(super) copy: Option<Copying>,
    /// It was freed while a copy runs; whether with the peer's proof.
    pub(super) freed: Option<bool>,
    /// The peer went while a copy runs; whether with proof.
    pub(super) orphaned: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LeaseState {
    Waiting,
    Held,
    /// A copy runs.
    Going,
    /// It has nothing any more. `asked`: because the peer said so.
    Over {
        asked: bool,
    },
    Lost,
}

/// A copy between a slot of ours and the far end, which is ours too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Copying {
    pub(super) attempt: u32,
    pub(super) place: Place,
    pub(super) length: u32,
    /// `None`: it runs.
    pub(super) end: Option<CopyEnd>,
}

impl Linked<WAITING> for Claim {
    fn link(&mut self) -> &mut Link {
        &mut self.waiting
    }
}

impl Linked<OUTBOX> for Claim {
    fn link(&mut self) -> &mut Link {
        &mut self.outbox
    }
}

impl Linked<SENT> for Claim {
    fn link(&mut self) -> &mut Link {
        &mut self.sent
    }
}

impl Linked<READY> for Claim {
    fn link(&mut self) -> &mut Link {
        &mut self.ready
    }
}

impl Linked<REVOKED> for Claim {
    fn link(&mut self) -> &mut Link {
        &mut self.revoked
    }
}
