//! An open lane on its worker: what it has posted, and what opens which region.

use std::collections::VecDeque;

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::SegmentRef;
use polyrail_core::work::{Cause, Op, Posted, Stop};
use polyrail_transport::RemoteRegion;
use polyrail_transport::memory::RegionKey;
use polyrail_transport::numbered::Numbered;

use crate::completion::Seat;
use crate::ffi::raw::Sge;
use crate::ffi::{Qp, Work};
use crate::registry::{Key, Registered};
use crate::sight::{IMMEDIATE, Sight};
use crate::wire::Grant;

/// How long a peer may take to answer what opens a region. It registers the region meanwhile, which takes a second for
/// some gigabytes; if it is late, the next lane finds it done.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// An open lane.
pub(crate) struct Lane {
    pub(crate) qp: Qp,
    pub(crate) seat: Seat,
    pub(crate) device: usize,
    /// Tells its completions from those of queue pairs before it.
    pub(crate) serial: u32,
    /// Cookies of works that are posted and not completed, in order.
    posted: VecDeque<u64>,
    /// The number of the first of them.
    first: u32,
    /// What opens regions of the peer, as far as it was asked; `None`: nothing does.
    grants: Numbered<RegionKey, Option<Grant>>,
    /// What it is being asked after, and until when it may answer.
    asked: Vec<(RegionKey, Instant)>,
    /// What the peer's program may not see yet.
    pub(crate) sight: Sight,
    /// The last post stopped for something that is awaited.
    pub(crate) blocked: bool,
}

/// What has to be waited for before a work can be posted, or why it cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unready {
    /// The peer has to be asked after this region.
    Ask(RegionKey),
    /// Something that is under way.
    Wait,
    /// It never can.
    Not(Cause),
}

/// Both ends of works of one pair of segments, on one lane.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    pair: (SegmentRef, SegmentRef),
    local_key: u32,
    local_address: u64,
    local_bytes: u64,
    grant: Grant,
}

impl Lane {
    pub(crate) fn new(qp: Qp, seat: Seat, device: usize, serial: u32) -> Self {
        Self {
            qp,
            seat,
            device,
            serial,
            posted: VecDeque::new(),
            first: 0,
            grants: Numbered::default(),
            asked: Vec::new(),
            sight: Sight::default(),
            blocked: false,
        }
    }

    pub(crate) fn posted(&self) -> usize {
        self.posted.len()
    }

    /// What the works between two segments have in common.
    pub(crate) fn ends(
        &self,
        pair: (SegmentRef, SegmentRef),
        local: Option<&Registered>,
        remote: Option<&RemoteRegion>,
    ) -> Result<Ends, Unready> {
        let local = local.ok_or(Unready::Not(Cause::LocalProtection))?;
        let remote = remote.ok_or(Unready::Not(Cause::RemoteAccess))?;
        let local_key = match local.key(self.device) {
            Key::Ready(key) => key,
            Key::Pending => return Err(Unready::Wait),
            Key::Gone => return Err(Unready::Not(Cause::LocalProtection)),
        };
        let grant = match self.grants.get(&remote.key) {
            Some(Some(grant)) => *grant,
            Some(None) => return Err(Unready::Not(Cause::RemoteAccess)),
            None if self.asks_after(&remote.key) => return Err(Unready::Wait),
            None => return Err(Unready::Ask(remote.key)),
        };
        Ok(Ends {
            pair,
            local_key,
            local_address: local.address(0),
            local_bytes: local.bytes,
            grant,
        })
    }

    fn asks_after(&self, key: &RegionKey) -> bool {
        self.asked.iter().any(|(asked, _)| asked == key)
    }

    /// The peer is being asked after a region, from now on.
    pub(crate) fn asks(&mut self, now: Instant, key: RegionKey) {
        self.asked.push((key, now + ANSWER_MAX));
    }

    /// Until when the peer may take to answer what it was asked first. `None`: nothing.
    pub(crate) fn answer_due(&self) -> Option<Instant> {
        let asked = self.asked.first().map(|(_, by)| *by);
        asked.into_iter().chain(self.sight.due()).min()
    }

    /// It is not waited for any more. Who waited for what was written to be seen.
    pub(crate) fn give_up_asking(&mut self) -> Vec<u64> {
        self.asked.clear();
        self.sight.give_up()
    }

    /// Posts an immediate behind everything, for those that want it. `false`: it cannot be posted.
    pub(crate) fn post_immediate(&mut self, now: Instant, number: u32) -> bool {
        if let Err(error) = self.qp.post_immediate(self.id(0), number) {
            log::debug!("verbs: {error}");
            return false;
        }
        self.posted.push_back(IMMEDIATE);
        self.sight.posted(number, now + ANSWER_MAX);
        true
    }

    /// It has answered.
    pub(crate) fn told(&mut self, key: RegionKey, grant: Option<Grant>) {
        self.asked.retain(|(asked, _)| *asked != key);
        self.grants.insert(key, grant);
    }

    /// Forgets what opens a region: the next time it is asked after.
    pub(crate) fn forget(&mut self, key: RegionKey) {
        self.grants.remove(&key);
    }

    /// The number that the next work completes under, and so many behind it.
    pub(crate) fn id(&self, behind: usize) -> u64 {
        let next = self.first.wrapping_add((self.posted.len() + behind) as u32);
        u64::from(self.serial) << 32 | u64::from(next)
    }

    /// Hands works to the device, in one list.
    pub(crate) fn post(
        &mut self,
        works: &[Work],
        cookies: impl Iterator<Item = u64>,
        stop: Stop,
    ) -> Posted {
        let (accepted, result) = self.qp.post(works);
        self.posted.extend(cookies.take(accepted));
        let mut taken = works[..accepted].iter();
        self.sight.wrote |= taken.any(|work| work.op == Op::Write);
        let stop = match result {
            Ok(()) => stop,
            // The device has less room than it said.
            Err(error) if error.kind() == std::io::ErrorKind::OutOfMemory => Stop::Full,
            Err(error) => {
                log::warn!("verbs: {error}");
                Stop::Rejected(Cause::Fatal)
            }
        };
        Posted { accepted, stop }
    }

    /// Takes the work that has completed under this number off the list, and those before it: its cookie, and that of
    /// the one before it if that is newly covered. `None`: there is none.
    pub(crate) fn complete(&mut self, id: u64) -> Option<(u64, Option<u64>)> {
        let place = (id as u32).wrapping_sub(self.first) as usize;
        let cookie = *self.posted.get(place)?;
        let before = place
            .checked_sub(1)
            .and_then(|before| self.posted.get(before).copied());
        self.posted.drain(..=place);
        self.first = self.first.wrapping_add(place as u32 + 1);
        Some((cookie, before))
    }
}

impl Ends {
    pub(crate) fn are(&self, pair: (SegmentRef, SegmentRef)) -> bool {
        self.pair == pair
    }

    /// A work of core's, as the device takes it.
    pub(crate) fn work(&self, id: u64, work: &polyrail_core::work::Work) -> Result<Work, Cause> {
        let fits = |offset: u64, bytes: u64| {
            let end = offset.checked_add(work.length.into());
            end.is_some_and(|end| end <= bytes)
        };
        if !fits(work.local.offset, self.local_bytes) {
            return Err(Cause::LocalProtection);
        }
        if !fits(work.remote.offset, self.grant.bytes) {
            return Err(Cause::RemoteAccess);
        }
        Ok(Work {
            id,
            op: work.op,
            local: Sge {
                addr: self.local_address + work.local.offset,
                length: work.length,
                lkey: self.local_key,
            },
            remote_address: self.grant.address + work.remote.offset,
            remote_key: self.grant.remote_key,
            signal: work.signal,
        })
    }
}
