//! Sessions: the lanes that transfers between two memories use, found again by a key.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), phase 2, session lifecycle.

use crate::table::{Row, Table};
use crate::units::{Epoch, LaneId, SessionId};

/// A lane as a session knows it. Under another epoch it is another lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionLane {
    /// The lane.
    pub lane: LaneId,
    /// Its epoch when the session was made.
    pub epoch: Epoch,
}

/// Memory of one session of up to `LANES` lanes.
#[derive(Debug)]
pub struct Session<K, const LANES: usize> {
    key: K,
    lanes: heapless::Vec<SessionLane, LANES>,
    transfers: u32,
    /// Not to be found any more; lives on for the transfers that use it.
    evicted: bool,
}

/// Why a session was not put in. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionError {
    /// No row is free. Try again when a transfer or a session has ended.
    Full,
    /// More lanes than a session can have.
    TooManyLanes,
    /// There is one with this key, and it is alive.
    Exists,
}

/// Sessions by key. Owned by whoever opens transfers.
///
/// A session is *alive* while none of its lanes is over. One that is not is evicted when it is looked for; the
/// transfers that use it go on to their end, and the last one frees it.
#[derive(Debug)]
pub struct Sessions<'a, K, const LANES: usize> {
    rows: Table<'a, Session<K, LANES>, SessionId>,
}

impl<'a, K: Copy + Eq, const LANES: usize> Sessions<'a, K, LANES> {
    /// None yet, over the caller's rows.
    pub fn new(rows: &'a mut [Row<Session<K, LANES>>]) -> Self {
        Self {
            rows: Table::new(rows),
        }
    }

    /// Rows in use, evicted sessions with transfers among them.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 0
    }

    /// The session of `key`. First evicts all that are no more alive: `is_over` says it of a lane.
    pub fn look_up(
        &mut self,
        key: K,
        mut is_over: impl FnMut(SessionLane) -> bool,
    ) -> Option<SessionId> {
        for index in 0..self.rows.capacity() as u32 {
            let dead =
                |session: &Session<K, LANES>| session.lanes.iter().any(|lane| is_over(*lane));
            if self.rows.at(index).is_some_and(dead)
                && let Some(id) = self.rows.id_at(index)
            {
                self.evict(id);
            }
        }
        self.rows
            .iter()
            .find(|(_, session)| session.key == key && !session.evicted)
            .map(|(id, _)| id)
    }

    /// Puts in a session, after [`Self::look_up`] found none.
    pub fn insert(&mut self, key: K, lanes: &[SessionLane]) -> Result<SessionId, SessionError> {
        let is_found = |session: &Session<K, LANES>| session.key == key && !session.evicted;
        if self.rows.iter().any(|(_, session)| is_found(session)) {
            return Err(SessionError::Exists);
        }
        let lanes = heapless::Vec::from_slice(lanes).map_err(|_| SessionError::TooManyLanes)?;
        let session = Session {
            key,
            lanes,
            transfers: 0,
            evicted: false,
        };
        self.rows.insert(session).map_err(|_| SessionError::Full)
    }

    /// Whether a session can be used: it has not been evicted, and none of its lanes is over.
    pub fn is_alive(&self, id: SessionId, mut is_over: impl FnMut(SessionLane) -> bool) -> bool {
        self.rows.get(id).is_some_and(|session| {
            !session.evicted && !session.lanes.iter().any(|lane| is_over(*lane))
        })
    }

    /// Its lanes, also after eviction as long as transfers use them.
    pub fn lanes(&self, id: SessionId) -> Option<&[SessionLane]> {
        self.rows.get(id).map(|session| session.lanes.as_slice())
    }

    /// A transfer begins to use it. `false`: it is gone or evicted, look it up anew.
    pub fn begin_transfer(&mut self, id: SessionId) -> bool {
        match self.rows.get_mut(id) {
            Some(session) if !session.evicted => {
                session.transfers = session.transfers.saturating_add(1);
                true
            }
            _ => false,
        }
    }

    /// A transfer has ended. `true` if that freed the session.
    pub fn end_transfer(&mut self, id: SessionId) -> bool {
        let Some(session) = self.rows.get_mut(id) else {
            return false;
        };
        session.transfers = session.transfers.saturating_sub(1);
        let over = session.evicted && session.transfers == 0;
        over && self.rows.remove(id).is_some()
    }

    fn evict(&mut self, id: SessionId) {
        let Some(session) = self.rows.get_mut(id) else {
            return;
        };
        session.evicted = true;
        if session.transfers == 0 {
            self.rows.remove(id);
        }
    }
}

/// Brings the lanes for a session up to number, counting only those that are not over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refill {
    wanted: u16,
    rounds: u16,
}

/// What is to be done for a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefillStep {
    /// There are enough.
    Enough,
    /// Build so many, and ask again.
    Build(u16),
    /// They keep failing.
    Short {
        /// Lanes asked for.
        wanted: u16,
        /// Lanes there are.
        healthy: u16,
        /// Rounds of building.
        rounds: u16,
    },
}

impl Refill {
    /// For a session of `wanted` lanes.
    pub const fn new(wanted: u16) -> Self {
        Self { wanted, rounds: 0 }
    }

    /// With so many healthy lanes now. Builds what is missing, in two rounds for each lane at most: a new
    /// lane may fail like the one before.
    pub fn poll(&mut self, healthy: u16) -> RefillStep {
        if healthy >= self.wanted {
            return RefillStep::Enough;
        }
        if self.rounds >= self.wanted.saturating_mul(2) {
            return RefillStep::Short {
                wanted: self.wanted,
                healthy,
                rounds: self.rounds,
            };
        }
        self.rounds += 1;
        RefillStep::Build(self.wanted - healthy)
    }
}
