//! Standing segments: ids that follow a name from one process of its owner to the next.
//!
//! Such an id is none of core's or a transport's. It stands for the id that its name was opened under last, and that one
//! takes its place in requests when they are submitted. So all of a batch goes to one process, whatever comes later.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::*;

use super::remote::NoRoom;
use super::{SegmentId, Segments, Tables, TakenOut};
use crate::error::{CloseError, SubmitError};
use crate::request::Request;

/// A name that is followed.
#[derive(Debug)]
pub(super) struct Standing {
    /// `HOST:PORT/SEGMENT`, as the program said it.
    address: String,
    /// Where its owner was when it was opened last.
    owner: SocketAddr,
    /// What it was opened under last. It has gone if its owner was lost since.
    now: SegmentId,
    /// How often it was opened, and not closed.
    opens: u64,
}

impl Tables {
    /// What an id leads to: itself, unless it stands for another one. `Err`: the owner of that is away, and was there.
    fn leads_to(&self, id: SegmentId) -> Result<SegmentId, SocketAddr> {
        match self.standing.get(&id) {
            None => Ok(id),
            Some(standing) if self.segments.contains_key(&standing.now) => Ok(standing.now),
            Some(standing) => Err(standing.owner),
        }
    }

    /// Closes a standing segment once; the last time, what it leads to as well. `None`: it is none.
    pub(super) fn close_standing(
        &mut self,
        id: SegmentId,
        later: bool,
        out: &mut TakenOut,
    ) -> Option<Result<(), CloseError>> {
        let standing = self.standing.get_mut(&id)?;
        if standing.opens > 1 {
            standing.opens -= 1;
            return Some(Ok(()));
        }
        let now = standing.now;
        if self.segments.contains_key(&now)
            && let Err(error) = self.close(now, later, out)
        {
            return Some(Err(error));
        }
        self.standing.remove(&id);
        Some(Ok(()))
    }
}

impl Segments {
    /// Has an id stand for what a name was opened under now. With what is opened once too often by that, and is to be closed.
    pub(crate) fn stand(
        &self,
        address: &str,
        owner: SocketAddr,
        now: SegmentId,
    ) -> Result<(SegmentId, Option<SegmentId>), NoRoom> {
        self.write(|tables| {
            let mut all = tables.standing.iter_mut();
            if let Some((id, known)) = all.find(|(_, known)| known.address == address) {
                known.opens += 1;
                known.owner = owner;
                return Ok((*id, Some(std::mem::replace(&mut known.now, now))));
            }
            if tables.segments.len() + tables.standing.len() >= tables.most {
                return Err(NoRoom);
            }
            let id = tables.next_id();
            let standing = Standing {
                address: address.into(),
                owner,
                now,
                opens: 1,
            };
            tables.standing.insert(id, standing);
            self.any_standing.store(true, Release);
            Ok((id, None))
        })
    }

    /// Has a standing id lead to what its name was opened under now. `false`: it leads somewhere already, or was closed.
    pub(crate) fn follow(&self, id: SegmentId, owner: SocketAddr, now: SegmentId) -> bool {
        self.write(|tables| {
            let is_away = tables.leads_to(id).is_err();
            let known = tables.standing.get_mut(&id).filter(|_| is_away);
            known.is_some_and(|known| {
                (known.owner, known.now) = (owner, now);
                true
            })
        })
    }

    /// The standing segments whose owners are away, by where those were: ids and addresses.
    pub(crate) fn away(&self) -> Vec<(SocketAddr, SegmentId, String)> {
        if !self.any_standing.load(Acquire) {
            return Vec::new();
        }
        self.read(|tables| {
            let all = tables.standing.iter();
            let away = all.filter(|(_, known)| !tables.segments.contains_key(&known.now));
            away.map(|(id, known)| (known.owner, *id, known.address.clone()))
                .collect()
        })
    }

    /// Whether a segment stands for something of an owner that was there and is away.
    pub(crate) fn is_awaited(&self, owner: SocketAddr) -> bool {
        self.away().iter().any(|(at, ..)| *at == owner)
    }

    /// See [`Tables::leads_to`].
    pub(crate) fn leads_to(&self, id: SegmentId) -> Result<SegmentId, SocketAddr> {
        match self.any_standing.load(Acquire) {
            false => Ok(id),
            true => self.read(|tables| tables.leads_to(id)),
        }
    }

    /// Whether any segment stands. Without, nobody looks which on every submission.
    pub(crate) fn any_standing(&self) -> bool {
        self.any_standing.load(Acquire)
    }

    /// Requests with what standing segments lead to in their place, all looked up at once.
    pub(crate) fn bound<'a>(
        &self,
        requests: &'a [Request],
    ) -> Result<Cow<'a, [Request]>, SubmitError> {
        self.read(|tables| {
            let mut runs = requests.chunk_by(|a, b| a.remote == b.remote);
            let stands = |run: &[Request]| tables.standing.contains_key(&run[0].remote);
            if !runs.any(stands) {
                return Ok(Cow::Borrowed(requests));
            }
            let mut bound = Vec::with_capacity(requests.len());
            for run in requests.chunk_by(|a, b| a.remote == b.remote) {
                let (index, segment) = (bound.len(), run[0].remote);
                let remote = tables.leads_to(segment);
                let remote = remote.map_err(|peer| SubmitError::PeerLost {
                    index,
                    segment,
                    peer,
                })?;
                bound.extend(run.iter().map(|request| Request { remote, ..*request }));
            }
            Ok(Cow::Owned(bound))
        })
    }
}
