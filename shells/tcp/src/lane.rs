//! An open lane, seen from the initiator.

use std::collections::VecDeque;
use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use polyrail_core::time::Instant;
use polyrail_core::units::SegmentRef;
use polyrail_core::work::{Cause, LaneLimits, Op, Outcome, Work};
use polyrail_transport::RemoteRegion;
use polyrail_transport::complain;
use polyrail_transport::memory::{Region, RegionKey};
use polyrail_transport::numbered::Numbered;
use rustix::event::epoll::EventFlags;

use crate::inbox::Inbox;
use crate::opening::Opening;
use crate::sys::{self, Halt, MESSAGES_MAX, Message, Range};
use crate::wire::{ANSWER_BYTES, Answer, REQUEST_BYTES, Request, Status};
use crate::{LOOKS_SPINNING, ktls, turn_bytes};

/// The initiator's segments.
pub(crate) type Locals = Numbered<SegmentRef, Arc<Region>>;

/// Reads up to this length are small.
const SMALL_BYTES: u32 = 4 << 10;

/// Why a lane can go on no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// What was posted has an unknown outcome.
    Broken(Cause),
    /// A work failed, and its completion said so.
    Failed,
}

impl From<Halt> for End {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Memory => Self::Broken(Cause::LocalProtection),
            // Nobody hands `WouldBlock` up: it ends a turn, not a lane.
            Halt::Over | Halt::WouldBlock => Self::Broken(Cause::Reset),
        }
    }
}

/// A work that was taken and is not completed.
#[derive(Clone, Copy, Debug)]
struct Posted {
    work: Work,
    key: RegionKey,
}

impl Posted {
    /// How many bytes it is on the wire.
    fn bytes(&self) -> usize {
        match self.work.op {
            Op::Write => REQUEST_BYTES + self.work.length as usize,
            Op::Read => REQUEST_BYTES,
        }
    }
}

/// A lane that takes works.
///
/// `posted` holds the works in order. The first `unsent` of them are on the wire, of the next one
/// `sent_bytes`. Answers are for the first one, whose sequence number is `sequence`.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) stream: TcpStream,
    peer: SocketAddr,
    limits: LaneLimits,
    inbox: Inbox,
    posted: VecDeque<Posted>,
    unsent: usize,
    sent_bytes: usize,
    sequence: u32,
    /// Set while the payload that answers the first work arrives: the bytes that did.
    reading: Option<u32>,
    /// Payload of the first work that arrived together with its answer, which is still in the inbox.
    ahead: u32,
    /// How many bytes of works its keys are still good for, both ways together; `None`: it is not encrypted.
    allowance: Option<u64>,
}

impl Lane {
    /// What has become of an opening that was answered.
    pub(crate) fn new(opening: Opening, limits: LaneLimits) -> Self {
        Self::over(opening.stream, opening.peer, limits, opening.encrypted)
    }

    fn over(stream: TcpStream, peer: SocketAddr, limits: LaneLimits, encrypted: bool) -> Self {
        Self {
            stream,
            peer,
            limits,
            inbox: Inbox::new(),
            posted: VecDeque::with_capacity(limits.works_max.into()),
            unsent: 0,
            sent_bytes: 0,
            sequence: 0,
            reading: None,
            ahead: 0,
            allowance: encrypted.then_some(ktls::BYTES_MAX),
        }
    }

    pub(crate) fn limits(&self) -> LaneLimits {
        self.limits
    }

    /// Whether another work may be taken.
    pub(crate) fn has_room(&self) -> bool {
        self.posted.len() < self.limits.works_max.into()
    }

    /// Whether works were taken that are not completed.
    pub(crate) fn is_posting(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Takes a work that was checked.
    pub(crate) fn push(&mut self, work: Work, key: RegionKey) {
        self.posted.push_back(Posted { work, key });
    }

    /// What to wait for.
    pub(crate) fn interest(&self) -> EventFlags {
        if self.unsent < self.posted.len() {
            EventFlags::IN | EventFlags::OUT
        } else {
            EventFlags::IN
        }
    }

    /// Hands works to the socket with one call, and says whether this side spins. Gives the bytes it took.
    pub(crate) fn send(&mut self, locals: &Locals, spinning: bool) -> Result<usize, Halt> {
        let mut messages = heapless::Vec::<Message<'_, REQUEST_BYTES>, MESSAGES_MAX>::new();
        for (index, posted) in self.posted.iter().enumerate().skip(self.unsent) {
            let Posted { work, key } = posted;
            let payload = match work.op {
                Op::Read => None,
                Op::Write => match locals.get(&work.local.segment) {
                    Some(region) => Some(Range {
                        region,
                        offset: work.local.offset,
                        length: work.length,
                    }),
                    None if index == self.unsent => return Err(Halt::Memory),
                    None => break,
                },
            };
            let request = Request {
                op: work.op,
                spinning,
                length: work.length,
                sequence: self.sequence.wrapping_add(index as u32),
                key: *key,
                offset: work.remote.offset,
            };
            let header = request.encode();
            if messages.push(Message { header, payload }).is_err() {
                break;
            }
        }
        if messages.is_empty() {
            return Ok(0);
        }
        let sent = sys::send(&self.stream, &messages, self.sent_bytes)?;
        drop(messages);
        self.sent_bytes += sent;
        while let Some(posted) = self.posted.get(self.unsent)
            && self.sent_bytes >= posted.bytes()
        {
            self.sent_bytes -= posted.bytes();
            self.unsent += 1;
        }
        Ok(sent)
    }

    /// Receives answers and sends what is unsent, as far as the socket lets it and not much more than
    /// [`turn_bytes`] each way. `done` is called for every work that ended, in order.
    pub(crate) fn turn(
        &mut self,
        locals: &Locals,
        spinning: bool,
        mut done: impl FnMut(u64, Outcome),
    ) -> Result<(), End> {
        let budget = turn_bytes(spinning);
        let all_sent = self.unsent == self.posted.len();
        let looks = if spinning && all_sent {
            LOOKS_SPINNING
        } else {
            1
        };
        self.receive(locals, budget, looks, &mut done)?;
        if self.allowance == Some(0) {
            // What is in flight goes over another lane, as after any other end; the next one here has other keys.
            return Err(End::Broken(Cause::Reset));
        }
        let mut sent = 0;
        while self.unsent < self.posted.len() && sent < budget {
            match self.send(locals, spinning) {
                Ok(bytes) => sent += bytes,
                Err(Halt::WouldBlock) => break,
                Err(halt) => {
                    // The peer's last word may say why it hung up.
                    self.receive(locals, budget, 1, &mut done)?;
                    return Err(halt.into());
                }
            }
        }
        Ok(())
    }

    fn receive(
        &mut self,
        locals: &Locals,
        most: usize,
        mut looks: u32,
        done: &mut impl FnMut(u64, Outcome),
    ) -> Result<(), End> {
        let mut budget = most;
        loop {
            let halted = match self.reading {
                Some(arrived) => self.read(locals, arrived, &mut budget, done).err(),
                None => match self.inbox.header::<ANSWER_BYTES>() {
                    Some(header) => {
                        self.handle_answer(&header, done)?;
                        None
                    }
                    None => self.fill(locals, &mut budget).err(),
                },
            };
            match halted {
                None => {}
                Some(Halt::WouldBlock) => {
                    looks -= 1;
                    if looks == 0 || budget < most {
                        return Ok(());
                    }
                }
                Some(halt) => return Err(halt.into()),
            }
        }
    }

    /// Receives towards the next answer. If that is to a large read, its payload is received with it, straight to
    /// where it belongs: what else could come is refused afterwards, and only that work's own destination was
    /// written, which is nobody's before its completion. A small one's is copied, which costs less than telling the
    /// kernel at every look where it belongs.
    fn fill(&mut self, locals: &Locals, budget: &mut usize) -> Result<(), Halt> {
        let first = self.posted.front().filter(|_| self.unsent > 0);
        let read = first.filter(|posted| {
            let large = posted.work.length > SMALL_BYTES;
            posted.work.op == Op::Read && large && self.inbox.is_empty()
        });
        let Some(Posted { work, .. }) = read else {
            return self.inbox.fill(&self.stream, budget);
        };
        let range = Range {
            region: locals.get(&work.local.segment).ok_or(Halt::Memory)?,
            offset: work.local.offset,
            length: work.length,
        };
        let stream = &self.stream;
        self.ahead = self
            .inbox
            .fill_ahead::<ANSWER_BYTES>(stream, range, budget)?;
        Ok(())
    }

    /// Receives payload of the first work, a read of which `arrived` bytes are there.
    fn read(
        &mut self,
        locals: &Locals,
        arrived: u32,
        budget: &mut usize,
        done: &mut impl FnMut(u64, Outcome),
    ) -> Result<(), Halt> {
        let work = self.posted.front().ok_or(Halt::Memory)?.work;
        let region = locals.get(&work.local.segment).ok_or(Halt::Memory)?;
        let range = Range {
            region,
            offset: work.local.offset + u64::from(arrived),
            length: work.length - arrived,
        };
        let arrived = arrived + self.inbox.payload(&self.stream, range, budget)?;
        if arrived == work.length {
            self.finish(Outcome::Success, done);
        } else {
            self.reading = Some(arrived);
        }
        Ok(())
    }

    /// Checks an answer against the first work. Anything but the answer to just that ends the lane.
    fn handle_answer(
        &mut self,
        header: &[u8; ANSWER_BYTES],
        done: &mut impl FnMut(u64, Outcome),
    ) -> Result<(), End> {
        let answer = Answer::decode(header).map_err(|field| self.nonsense(field))?;
        let first = self.posted.front();
        let work = first
            .ok_or_else(|| self.nonsense("nothing was asked"))?
            .work;
        if (answer.op, answer.length, answer.sequence) != (work.op, work.length, self.sequence) {
            return Err(self.nonsense(format_args!("{answer:?} is for another work")));
        }
        match answer.status {
            // It may refuse a write before it has seen the bytes, but not before it has seen the header.
            Status::NotAllowed if self.unsent > 0 || self.sent_bytes >= REQUEST_BYTES => {
                self.finish(Outcome::Error(Cause::RemoteAccess), done);
                Err(End::Failed)
            }
            Status::Done if self.unsent > 0 => {
                match work.op {
                    Op::Read if self.ahead == work.length => self.finish(Outcome::Success, done),
                    Op::Read => self.reading = Some(std::mem::take(&mut self.ahead)),
                    Op::Write => self.finish(Outcome::Success, done),
                }
                Ok(())
            }
            Status::NotAllowed | Status::Done => Err(self.nonsense("it came before the work")),
        }
    }

    fn nonsense(&self, why: impl fmt::Display) -> End {
        complain!("tcp: answer of {} makes no sense: {why}", self.peer);
        End::Broken(Cause::BadResponse)
    }

    /// Ends the first work.
    fn finish(&mut self, outcome: Outcome, done: &mut impl FnMut(u64, Outcome)) {
        if let Some(posted) = self.posted.pop_front() {
            if let Some(allowance) = &mut self.allowance {
                let bytes = REQUEST_BYTES + ANSWER_BYTES + posted.work.length as usize;
                *allowance = allowance.saturating_sub(bytes as u64);
            }
            done(posted.work.cookie, outcome);
        }
        self.unsent = self.unsent.saturating_sub(1);
        self.sequence = self.sequence.wrapping_add(1);
        self.reading = None;
        self.ahead = 0;
    }
}

/// The key that opens the far end of a work, or why the work may not be posted.
pub(crate) fn check(
    work: &Work,
    limits: LaneLimits,
    local: Option<&Arc<Region>>,
    remote: Option<&RemoteRegion>,
) -> Result<RegionKey, Cause> {
    let length = u64::from(work.length);
    if work.length == 0 || work.length > limits.work_bytes_max {
        return Err(Cause::LocalLength);
    }
    if !local.is_some_and(|region| region.contains(work.local.offset, length)) {
        return Err(Cause::LocalProtection);
    }
    let end = work.remote.offset.checked_add(length);
    match remote {
        Some(remote) if end.is_some_and(|end| end <= remote.bytes) => Ok(remote.key),
        _ => Err(Cause::RemoteAccess),
    }
}

/// When a turn's completions were seen. Read once, when the first one is.
pub(crate) fn stamp(seen: &mut Option<Instant>, now: impl FnOnce() -> Instant) -> Instant {
    *seen.get_or_insert_with(now)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use polyrail_core::units::SegmentRef;
    use polyrail_core::work::Place;

    use super::*;

    #[test]
    fn a_lane_ends_when_its_keys_have_encrypted_what_they_may() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let limits = LaneLimits::new(4, 1 << 20);
        let mut lane = Lane::over(stream, listener.local_addr().unwrap(), limits, true);
        let place = Place {
            segment: SegmentRef(0),
            offset: 0,
        };
        let work = Work {
            cookie: 7,
            op: Op::Write,
            local: place,
            remote: place,
            length: 1 << 20,
            signal: true,
        };
        let locals = Locals::default();
        for (allowance, ends) in [(2 << 20, false), (1 << 20, true)] {
            lane.allowance = Some(allowance);
            lane.push(work, RegionKey::random().unwrap());
            lane.finish(Outcome::Success, &mut |_, _| {});
            let turned = lane.turn(&locals, false, |_, _| {});
            assert_eq!(turned.is_err(), ends, "{turned:?}");
        }
    }
}
