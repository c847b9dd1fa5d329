//! An open lane on its worker: what it has posted, and what opens which region.

use std::collections::VecDeque;
use std::sync::Arc;

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::SegmentRef;
use polyrail_core::work::{Cause, Op, Posted, Stop, Work as CoreWork};
use polyrail_transport::RemoteRegion;
use polyrail_transport::complain;
use polyrail_transport::memory::RegionKey;
use polyrail_transport::numbered::Numbered;

use crate::completion::QueueRoom;
use crate::device::Device;
use crate::ffi::Qp;
use crate::ffi::raw::Sge;
use crate::list::List;
use crate::mailbox::Made;
use crate::packets::Tally;
use crate::registry::{Key, Registered};
use crate::sight::{IMMEDIATE, Sight};
use crate::wire::{Answer, Grant, Granted};

/// How long a peer may say nothing while it is asked what opens a region. It registers the region meanwhile, which takes a second
/// for some gigabytes, and says every [`REMIND_INTERVAL`](crate::inbound::REMIND_INTERVAL) that it does.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Pieces of one region that are listened to.
const PIECES_MAX: usize = 1024;

/// An open lane.
pub(crate) struct Lane {
    pub(crate) qp: Qp,
    pub(crate) room: QueueRoom,
    /// What its queue pair was made on.
    pub(crate) device: Arc<Device>,
    /// Tells its completions from those of queue pairs before it.
    pub(crate) serial: u32,
    /// Cookies of works that are posted and not completed, in order.
    posted: VecDeque<u64>,
    /// Of those, which went as one: the number of the last, and how many.
    joined: VecDeque<(u32, u8)>,
    /// The number of the first of them.
    first: u32,
    /// Packets of works that are posted.
    pub(crate) tally: Tally,
    /// What opens regions of the peer, as far as it was asked.
    grants: Grants,
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

/// A work of the device's that has failed.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Failed {
    /// The cookie of the first of core's that it was made of.
    pub(crate) cookie: u64,
    /// Of the one before it, which has not.
    pub(crate) before: Option<u64>,
    /// Of the others that it was made of.
    pub(crate) rest: Vec<u64>,
}

/// Both ends of works of one pair of segments, on one lane: a piece of each, as the devices know them.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    pair: (SegmentRef, SegmentRef),
    local_key: u32,
    local_address: u64,
    /// Of the local piece.
    local_begin: u64,
    local_end: u64,
    grant: Grant,
}

impl Lane {
    pub(crate) fn new(made: Made, serial: u32) -> Self {
        let Made {
            qp,
            room,
            device,
            tally,
        } = made;
        Self {
            qp,
            room,
            device,
            serial,
            posted: VecDeque::new(),
            joined: VecDeque::new(),
            first: 0,
            tally,
            grants: Grants::default(),
            asked: Vec::new(),
            sight: Sight::default(),
            blocked: false,
        }
    }

    pub(crate) fn posted(&self) -> usize {
        self.posted.len()
    }

    /// What opens both ends of a work.
    pub(crate) fn ends(
        &self,
        work: &CoreWork,
        local: Option<&Arc<Registered>>,
        remote: Option<&RemoteRegion>,
    ) -> Result<Ends, Unready> {
        let local = local.ok_or(Unready::Not(Cause::LocalProtection))?;
        let remote = remote.ok_or(Unready::Not(Cause::RemoteAccess))?;
        let (local_key, local_begin, local_end) = match local.key(&self.device, work.local.offset) {
            Key::Ready(key, begin, end) => (key, begin, end),
            Key::Pending => return Err(Unready::Wait),
            // Another device may be able to, or this one later.
            Key::Failed => {
                local.retry(&self.device);
                return Err(Unready::Not(Cause::Fatal));
            }
            Key::Gone => return Err(Unready::Not(Cause::LocalProtection)),
        };
        let pieces = match self.grants.get(&remote.key) {
            Some(Granted::Pieces(pieces)) => pieces,
            Some(Granted::Failed) => return Err(Unready::Not(Cause::Fatal)),
            Some(Granted::Nothing) => return Err(Unready::Not(Cause::RemoteAccess)),
            None if self.asks_after(&remote.key) => return Err(Unready::Wait),
            None => return Err(Unready::Ask(remote.key)),
        };
        let behind = pieces.partition_point(|piece| piece.offset <= work.remote.offset);
        let piece = behind.checked_sub(1).and_then(|place| pieces.get(place));
        let ends = Ends {
            pair: (work.local.segment, work.remote.segment),
            local_key,
            local_address: local.address(0),
            local_begin,
            local_end,
            grant: *piece.ok_or(Unready::Not(Cause::RemoteAccess))?,
        };
        if !ends.holds_local(work) {
            return Err(Unready::Not(Cause::LocalProtection));
        }
        if !ends.holds_remote(work) {
            return Err(Unready::Not(Cause::RemoteAccess));
        }
        Ok(ends)
    }

    fn asks_after(&self, key: &RegionKey) -> bool {
        self.asked.iter().any(|(asked, _)| asked == key)
    }

    /// The peer is being asked after a region, from now on.
    pub(crate) fn asks(&mut self, now: Instant, key: RegionKey) {
        self.asked.push((key, now + ANSWER_MAX));
    }

    /// Until when the peer may say nothing of something that it was asked. `None`: nothing was.
    pub(crate) fn answer_due(&self) -> Option<Instant> {
        let asked = self.asked.iter().map(|(_, by)| *by);
        asked.chain(self.sight.due()).min()
    }

    /// The peer has had its time: nothing is asked of it any more.
    pub(crate) fn give_up_asking(&mut self) {
        self.asked.clear();
        self.sight.overdue();
    }

    /// Posts an immediate behind everything, for those that want it. `false`: it cannot be posted.
    pub(crate) fn post_immediate(&mut self, now: Instant, number: u32) -> bool {
        if let Err(error) = self.qp.post_immediate(self.id(0), number) {
            log::debug!("verbs: {error}");
            return false;
        }
        self.tally.posted_immediate();
        self.posted.push_back(IMMEDIATE);
        self.sight.posted(number, now + ANSWER_MAX);
        true
    }

    /// It has answered, or begun to. Whether that was all.
    pub(crate) fn told(&mut self, now: Instant, key: RegionKey, answer: Answer) -> bool {
        let asked = self.asked.iter_mut().filter(|(asked, _)| *asked == key);
        asked.for_each(|(_, by)| *by = now + ANSWER_MAX);
        let is_all = self.grants.told(key, answer);
        if is_all {
            self.asked.retain(|(asked, _)| *asked != key);
        }
        is_all
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
        list: &List,
        cookies: impl Iterator<Item = u64>,
        stop: Stop,
    ) -> Posted {
        let (taken, result) = self.qp.post(list.works(), &list.ranges, &list.bytes);
        let mut taken = list.works()[..taken].iter();
        let mut accepted = taken.len();
        if list.is_joined {
            accepted = taken.clone().map(|work| usize::from(work.joined)).sum();
            let joined = taken.clone().filter(|work| work.joined > 1);
            self.joined
                .extend(joined.map(|work| (work.id as u32, work.joined)));
        }
        if list.is_joined {
            for work in taken.clone() {
                self.tally.posted_as_one(work.joined, list.length(work));
            }
        } else {
            self.tally.posted(taken.clone().map(|work| work.bytes()));
        }
        self.posted.extend(cookies.take(accepted));
        self.sight.wrote |= taken.any(|work| work.op == Op::Write);
        let stop = match result {
            Ok(()) => stop,
            // The device has less room than it said.
            Err(error) if error.kind() == std::io::ErrorKind::OutOfMemory => Stop::Full,
            Err(error) => {
                complain!("verbs: {error}");
                Stop::Rejected(Cause::Fatal)
            }
        };
        Posted { accepted, stop }
    }

    /// Takes the work that has completed well under this number off the list, and those before it: its cookie. `None`:
    /// there is none.
    pub(crate) fn complete(&mut self, id: u64) -> Option<u64> {
        let last = (id as u32).wrapping_sub(self.first) as usize;
        let cookie = *self.posted.get(last)?;
        self.tally.completed(last + 1);
        self.take(last);
        Some(cookie)
    }

    /// The same of one that has failed.
    pub(crate) fn fail(&mut self, id: u64) -> Option<Failed> {
        let last = (id as u32).wrapping_sub(self.first) as usize;
        self.posted.get(last)?;
        self.tally.failed();
        let joined = self.joined.iter().find(|(of, _)| *of == id as u32);
        let others = joined.map_or(0, |(_, joined)| usize::from(*joined) - 1);
        let first = last.saturating_sub(others);
        let failed = Failed {
            cookie: *self.posted.get(first)?,
            before: first
                .checked_sub(1)
                .and_then(|before| self.posted.get(before).copied()),
            rest: self.posted.range(first + 1..=last).copied().collect(),
        };
        self.take(last);
        Some(failed)
    }

    /// Takes works up to this place off the list.
    fn take(&mut self, last: usize) {
        while let Some((number, _)) = self.joined.front()
            && number.wrapping_sub(self.first) as usize <= last
        {
            self.joined.pop_front();
        }
        self.posted.drain(..=last);
        self.first = self.first.wrapping_add(last as u32 + 1);
    }
}

/// What opens regions of a peer.
#[derive(Debug, Default)]
struct Grants {
    known: Numbered<RegionKey, Granted>,
    /// Those of which not all has been told.
    incomplete: Numbered<RegionKey, Vec<Grant>>,
}

impl Grants {
    fn get(&self, key: &RegionKey) -> Option<&Granted> {
        self.known.get(key)
    }

    fn remove(&mut self, key: &RegionKey) {
        self.known.remove(key);
        self.incomplete.remove(key);
    }

    /// Whether that was all.
    fn told(&mut self, key: RegionKey, answer: Answer) -> bool {
        let granted = match answer {
            Answer::Nothing => Granted::Nothing,
            Answer::Failed => Granted::Failed,
            Answer::NotYet => return false,
            Answer::More(grant) | Answer::Last(grant) => {
                let mut pieces = self.incomplete.remove(&key).unwrap_or_default();
                // They leave no gap, and go on.
                let fits = match pieces.last() {
                    None => grant.offset == 0,
                    Some(last) => {
                        (last.offset + 1..=last.offset + last.bytes).contains(&grant.offset)
                    }
                };
                pieces.push(grant);
                match answer {
                    _ if !fits || pieces.len() > PIECES_MAX => Granted::Nothing,
                    Answer::Last(_) => Granted::Pieces(pieces),
                    _ => {
                        self.incomplete.insert(key, pieces);
                        return false;
                    }
                }
            }
        };
        self.known.insert(key, granted);
        true
    }
}

impl Ends {
    /// Whether they are those of a work.
    pub(crate) fn hold(&self, work: &CoreWork) -> bool {
        self.pair == (work.local.segment, work.remote.segment)
            && self.holds_local(work)
            && self.holds_remote(work)
    }

    fn holds_local(&self, work: &CoreWork) -> bool {
        let bytes = self.local_end - self.local_begin;
        lies_in(work.local.offset, work.length, self.local_begin, bytes)
    }

    fn holds_remote(&self, work: &CoreWork) -> bool {
        let Grant { offset, bytes, .. } = self.grant;
        lies_in(work.remote.offset, work.length, offset, bytes)
    }

    /// Of a work that they hold, where it is on this side.
    pub(crate) fn range(&self, work: &CoreWork) -> Sge {
        Sge {
            addr: self.local_address + work.local.offset,
            length: work.length,
            lkey: self.local_key,
        }
    }

    /// And where it is at the peer.
    pub(crate) fn remote_address(&self, work: &CoreWork) -> u64 {
        self.grant.address + (work.remote.offset - self.grant.offset)
    }

    pub(crate) fn remote_key(&self) -> u32 {
        self.grant.remote_key
    }
}

/// Whether `length` bytes from `from` on are among `bytes` bytes from `begin` on.
fn lies_in(from: u64, length: u32, begin: u64, bytes: u64) -> bool {
    // What is before the beginning is far behind it, in this arithmetic.
    let room = bytes.checked_sub(length.into());
    room.is_some_and(|room| from.wrapping_sub(begin) <= room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_a_piece() {
        // (from, length, begin, bytes, whether)
        let cases = [
            (10, 5, 10, 5, true),
            (9, 5, 10, 6, false),
            (11, 5, 10, 5, false),
            (0, 6, 0, 5, false),
            (0, 0, 0, 0, true),
            (u64::MAX, 1, 0, 5, false),
            (5, u32::MAX, 5, u64::from(u32::MAX), true),
        ];
        for (from, length, begin, bytes, lies) in cases {
            assert_eq!(lies_in(from, length, begin, bytes), lies, "{from} {length}");
        }
    }

    #[test]
    fn pieces_that_do_not_fit_together_open_nothing() {
        let piece = |offset, bytes| Grant {
            remote_key: 1,
            address: 1 << 40,
            bytes,
            offset,
        };
        // (name, pieces, whether they open anything)
        let cases = [
            ("one", vec![piece(0, 10)], true),
            ("two that overlap", vec![piece(0, 10), piece(5, 10)], true),
            ("not the front", vec![piece(1, 10)], false),
            ("a gap", vec![piece(0, 10), piece(11, 10)], false),
            ("back again", vec![piece(0, 10), piece(0, 20)], false),
        ];
        for (name, pieces, opens) in cases {
            let mut grants = Grants::default();
            let key = RegionKey([1; 16]);
            let count = pieces.len();
            for (number, piece) in pieces.into_iter().enumerate() {
                grants.told(
                    key,
                    match number + 1 == count {
                        true => Answer::Last(piece),
                        false => Answer::More(piece),
                    },
                );
            }
            let granted = grants.get(&key).expect("it was told");
            assert_eq!(matches!(granted, Granted::Pieces(_)), opens, "{name}");
        }
    }
}
