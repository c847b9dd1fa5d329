//! The memory that staging works in, and its limits.

use super::claim::{Claim, WAITING};
use super::pool::{Line, Slot};
use super::request::Request;
use super::turns::Turns;
use super::unproven::Unproven;
use crate::queue::{Link, Linked, Queue};
use crate::table::Row;
use crate::time::{Duration, Instant};

/// Limits of [`super::Staged`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StagedConfig {
    /// Slots of one pool that one peer may have, and that our chunks for one peer may have. 0 counts as 1.
    pub party_slots_max: u32,
    /// Failures that one chunk survives, less one. 0 counts as 1.
    pub stage_attempts_max: u8,
    /// A question that has not been answered is repeated after this.
    pub resend_after: Duration,
    /// A peer that says nothing about a chunk for so long is not waited for. As long as hops wait for a silent peer, or for
    /// a rail: what has been in line for as long when one of them has waited in vain ends with it.
    pub answer_timeout: Duration,
}

impl StagedConfig {
    /// Three attempts; a question every 10 ms, for up to 2 s; up to all slots for one peer.
    pub const DEFAULT: Self = Self {
        party_slots_max: u32::MAX,
        stage_attempts_max: 3,
        resend_after: Duration::from_millis(10),
        answer_timeout: Duration::from_secs(2),
    };
}

/// What is kept of a peer. Rows are the caller's memory.
#[derive(Debug)]
pub struct PeerStaging {
    link: Link,
    /// Rows for chunks.
    pub(super) idle: Queue<WAITING>,
    /// Requests with bytes that no chunk has yet.
    pub(super) turns: Turns,
    /// Requests to it that have rows.
    pub(super) requests: u32,
    /// None of those that go on began earlier.
    pub(super) oldest: Instant,
    /// Hops of sessions that are over are still out.
    pub(super) held_off: bool,
    /// It has gone without proof: the number's next user is another.
    pub(super) gone: bool,
    /// When it last answered, or something of ours last arrived there or came from there.
    pub(super) heard_at: Instant,
}

impl PeerStaging {
    /// For the arrays that a caller hands in.
    pub const EMPTY: Self = Self {
        link: Link::NONE,
        idle: Queue::EMPTY,
        turns: Turns::NONE,
        requests: 0,
        oldest: Instant::MAX,
        held_off: false,
        gone: false,
        heard_at: Instant::ZERO,
    };
}

impl Linked<0> for PeerStaging {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// The memory of [`super::Staged`], which the caller owns.
#[derive(Debug)]
pub struct StagedTables<'a> {
    /// One for each peer.
    pub peers: &'a mut [PeerStaging],
    /// For each peer as many rows as chunks can be on their way to it, and as many again for its own. A peer may use as
    /// many of ours as it has itself: let both sides have the same number.
    pub claims: &'a mut [Claim],
    /// One for each request. A peer has at most as many as are left for others.
    pub requests: &'a mut [Row<Request>],
    /// One for each slot of all pools.
    pub slots: &'a mut [Slot],
    /// Two for each peer, for each pool.
    pub lines: &'a mut [Line],
    /// One for each attempt that ended without proof and is remembered after its request's report. Of a request with more
    /// than there is room for nothing is told after its report.
    pub unproven: &'a mut [Unproven],
}
