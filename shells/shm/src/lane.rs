//! An open lane, seen from the initiator.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use polyrail_core::units::SegmentRef;
use polyrail_core::work::{Cause, Op, Outcome, Work};
use polyrail_transport::mapping::Mapping;
use polyrail_transport::memory::{Entered, Region, RegionKey};
use polyrail_transport::numbered::Numbered;
use polyrail_transport::{RemoteRegion, Waits};

use crate::board::{Board, GRANTS_MAX, OFFERS_MAX, Offer, Processor, Pulled, Withdrawn};
use crate::crew::{Made, Member};
use crate::far::{Far, Mappings, Memory, Private};
use crate::process::{OpenMemory, Process, is_hung_up};
use crate::socket::{self, nonsense};
use crate::stop::{self, Point};
use crate::sys::Transfer;
use crate::wire::{Answer, Request};
use crate::{WORK_BYTES_MAX, WORKS_MAX};

/// Bytes of the longest copy to or from private memory by the descriptor of that, where the process's marks and cookie are good
/// for longer ones: the kernel copies them twice, but touches nothing else.
const HELD_BYTES_MAX: u64 = 8 << 10;

/// The same for writes where there are no marks: longer ones are faster by the target's thread, which has to be told of them.
pub(crate) const UNMARKED_BYTES_MAX: u64 = 64 << 10;

/// The initiator's segments.
pub(crate) type Locals = Numbered<SegmentRef, Arc<Region>>;

/// Why a lane can go on no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// What was posted has an unknown outcome.
    Broken(Cause),
    /// A work failed, and its completion said so.
    Failed,
}

/// A work that was taken and is not completed.
#[derive(Clone, Copy, Debug)]
struct Posted {
    work: Work,
    key: RegionKey,
    /// Bytes of it.
    moved: u32,
}

impl Posted {
    /// Bytes that have not been moved.
    fn left(&self) -> u64 {
        u64::from(self.work.length - self.moved)
    }

    /// Where what has not been moved begins in memory of this side, of which so many bytes are needed.
    fn local(&self, entered: Option<&Entered<'_>>, length: u64) -> Result<*mut u8, End> {
        let offset = self.work.local.offset + u64::from(self.moved);
        let local = entered.and_then(|entered| entered.pointer(offset, length));
        local.ok_or(End::Broken(Cause::LocalProtection))
    }

    /// And in the target's segment.
    fn remote_offset(&self) -> u64 {
        self.work.remote.offset + u64::from(self.moved)
    }

    /// Where it ends in the target's segment.
    fn end(&self) -> Option<u64> {
        let length = self.work.length.into();
        self.work.remote.offset.checked_add(length)
    }

    /// Whether another work goes on where this one ends, at both ends.
    fn is_continued_by(&self, next: &Self) -> bool {
        let (work, other) = (&self.work, &next.work);
        let same =
            (work.op, work.local.segment, self.key) == (other.op, other.local.segment, next.key);
        same && self.end() == Some(other.remote.offset)
            && work.local.offset + u64::from(work.length) == other.local.offset
    }
}

/// What the target was asked: what is behind a key, to be used under a grant.
#[derive(Clone, Copy, Debug)]
struct Question {
    key: RegionKey,
    grant: u16,
}

/// What became of the first work.
enum Step {
    /// It failed.
    Failed(Cause),
    /// So much was moved, of it and of works that go on where it ends.
    Moved(Made),
    /// The target carries it out.
    Offered,
    /// It is not known yet what is behind its key.
    Unknown,
    /// It waits until the target has pulled something.
    Waits,
}

/// The target's process, and the ways to its memory.
pub(crate) struct Peer {
    process: Process,
    /// It can pull from this process.
    pulls: bool,
    /// The kernel lets this process write to it by its number and its marks.
    is_pushed_to: bool,
    /// Its memory, opened, if it can be.
    memory: Option<OpenMemory>,
}

impl Peer {
    /// Tries them. `None`: what is private cannot be written, by either side.
    pub(crate) fn new(process: Process, pulls: bool) -> Option<Self> {
        let memory = OpenMemory::of(&process);
        let memory = memory.inspect_err(|error| log::debug!("shm: memory of a peer: {error}"));
        let is_pushed_to = process.is_pushed_to();
        let peer = Self {
            process,
            pulls,
            is_pushed_to,
            memory: memory.ok(),
        };
        (pulls || is_pushed_to).then_some(peer)
    }

    /// The best way to write so many bytes to it. `None`: it pulls them.
    fn write(&self, from: *const u8, to: u64, length: u64) -> Option<Transfer> {
        let held_max = match self.is_pushed_to {
            true => HELD_BYTES_MAX,
            false => UNMARKED_BYTES_MAX,
        };
        match &self.memory {
            Some(memory) if length <= held_max => Some(memory.write(from, to)),
            _ if self.is_pushed_to => self.process.push(from, to),
            _ => None,
        }
    }

    /// The best way to read so many bytes of it.
    fn read(&self, from: u64, to: *mut u8, length: u64) -> Transfer {
        match &self.memory {
            Some(memory) if length <= HELD_BYTES_MAX => memory.read(from, to),
            _ => self.process.pull(from, to),
        }
    }
}

/// A lane that takes works.
pub(crate) struct Lane {
    pub(crate) socket: OwnedFd,
    board: Board,
    crew: Member,
    /// The target's process, if its memory can be read.
    peer: Option<Peer>,
    far: Numbered<RegionKey, Far>,
    /// Numbers of grants that were used, and how many ever were.
    grants_free: Vec<u16>,
    grants: u16,
    /// Works to be carried out.
    queue: VecDeque<Posted>,
    /// One that has no answer yet.
    question: Option<Question>,
    /// Works that need an answer first. They do not hold up what comes behind them: a target that is stopped answers
    /// nothing, and what it has given before can be used meanwhile.
    unknown: VecDeque<Posted>,
    /// Cookies of works that are offered, in the board's order, from this row on.
    offered: VecDeque<u64>,
    first_row: usize,
    /// The target did not take a message; it is to be sent again.
    unsent: bool,
    /// The target has to be called to offers.
    calls: bool,
    /// Where the target was told that this side looks for answers by itself.
    awaits: Cell<Option<Processor>>,
}

impl Lane {
    pub(crate) fn new(socket: OwnedFd, board: Board, peer: Option<Peer>, crew: Member) -> Self {
        Self {
            socket,
            board,
            crew,
            peer,
            far: Numbered::default(),
            grants_free: Vec::new(),
            grants: 0,
            queue: VecDeque::new(),
            question: None,
            unknown: VecDeque::new(),
            offered: VecDeque::new(),
            first_row: 0,
            unsent: false,
            calls: false,
            awaits: Cell::new(None),
        }
    }

    /// Whether another work may be taken.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() + self.unknown.len() + self.offered.len() < WORKS_MAX.into()
    }

    /// Whether works were taken that are not completed.
    pub(crate) fn is_posting(&self) -> bool {
        !self.queue.is_empty() || !self.unknown.is_empty() || !self.offered.is_empty()
    }

    /// Whether there is something to do without word from the target.
    pub(crate) fn is_runnable(&self) -> bool {
        let more = !self.queue.is_empty() && self.offered.len() < OFFERS_MAX;
        more || (self.may_ask() && !self.unsent)
    }

    /// Whether works wait for an answer, and there is no question now.
    fn may_ask(&self) -> bool {
        !self.unknown.is_empty() && self.question.is_none()
    }

    /// Whether a message is to be sent again in a while.
    pub(crate) fn is_unsent(&self) -> bool {
        self.unsent
    }

    /// Whether it waits for a message of the target's: an offer's answer is none, while this side looks.
    pub(crate) fn awaits_message(&self) -> bool {
        self.question.is_some()
    }

    /// Whether the target has offers that it has not answered.
    pub(crate) fn is_offering(&self) -> bool {
        !self.offered.is_empty()
    }

    /// From here on this side looks for answers by itself, where it runs now.
    pub(crate) fn look(&self) {
        if !self.is_offering() {
            return;
        }
        let here = Processor::here();
        if self.awaits.replace(here) != here {
            self.board.set_awaits(here);
        }
    }

    /// From here on it has to be called to them. Whether there is one that nobody calls to.
    pub(crate) fn look_no_more(&self) -> bool {
        if self.awaits.take().is_some() {
            self.board.set_awaits(None);
        }
        self.is_offering() && self.board.is_answered(self.first_row)
    }

    /// What it waits for, seen from the processor that this side runs on.
    pub(crate) fn waits(&self, here: Option<Processor>) -> Waits {
        match (self.board.looked_at(), here) {
            _ if !self.is_offering() => Waits::Short,
            (None, _) | (_, None) => Waits::Short,
            (Some(there), Some(here)) if there == here => Waits::Here,
            (Some(_), Some(_)) => Waits::Near,
        }
    }

    /// Takes a work that was checked.
    pub(crate) fn push(&mut self, work: Work, key: RegionKey) {
        self.queue.push_back(Posted {
            work,
            key,
            moved: 0,
        });
    }

    /// Takes what the target says.
    pub(crate) fn hear(&mut self, mappings: &Mappings) -> io::Result<()> {
        while let Some((answer, file)) = socket::receive(&self.socket)? {
            let (key, far) = match (answer, file) {
                (Answer::Pulled, _) => continue,
                (Answer::Gone { key, grant }, _) => {
                    self.lose(key, grant);
                    continue;
                }
                (Answer::Nothing { grant }, _) => (self.answered(grant)?, Far::Nothing),
                (
                    Answer::Shared {
                        grant,
                        bytes,
                        writable,
                    },
                    Some(file),
                ) => {
                    let key = self.answered(grant)?;
                    let mapping = mappings.map(key, &file, bytes, writable)?;
                    let memory = Memory::Shared(mapping);
                    (key, there(grant, bytes, writable, memory))
                }
                (
                    Answer::Private {
                        grant,
                        bytes,
                        writable,
                        address,
                    },
                    _,
                ) => {
                    let memory = Memory::Private(Private {
                        address,
                        is_pulled: Cell::new(false),
                    });
                    (self.answered(grant)?, there(grant, bytes, writable, memory))
                }
                (
                    Answer::Shared { .. }
                    | Answer::Ready { .. }
                    | Answer::Refused { .. }
                    | Answer::Challenge { .. }
                    | Answer::Proved { .. },
                    _,
                ) => {
                    return Err(nonsense("an answer to nothing"));
                }
            };
            let grant = match far {
                Far::There { grant, .. } => Some(grant),
                Far::Nothing => None,
            };
            self.far.insert(key, far);
            // Taken back while it was given: that may have been said first.
            if let Some(grant) = grant.filter(|grant| self.board.is_closed(*grant)) {
                self.lose(key, grant);
            }
        }
        if self.board.take_untold() {
            self.lose_closed();
        }
        Ok(())
    }

    /// Lets go of what the target has taken back. Works that still name it fail.
    fn lose(&mut self, key: RegionKey, grant: u16) {
        let is_it = |far: &&Far| matches!(far, Far::There { grant: used, .. } if *used == grant);
        // What was let go of meanwhile, the target did not know to be.
        if self.far.get(&key).filter(is_it).is_some() {
            self.forget(key);
            self.far.insert(key, Far::Nothing);
        }
    }

    /// The same with all that it has taken back.
    fn lose_closed(&mut self) {
        let closed = |(key, far): (&RegionKey, &Far)| match far {
            Far::There { grant, .. } if self.board.is_closed(*grant) => Some((*key, *grant)),
            Far::There { .. } | Far::Nothing => None,
        };
        let closed: Vec<_> = self.far.iter().filter_map(closed).collect();
        for (key, grant) in closed {
            self.lose(key, grant);
        }
    }

    /// The key that was asked about with this grant. There is one question at a time.
    fn answered(&mut self, grant: u16) -> io::Result<RegionKey> {
        let question = self.question.take();
        let question = question.filter(|question| question.grant == grant);
        let key = question.map(|question| question.key);
        key.ok_or_else(|| nonsense("an answer to nothing"))
    }

    /// Moves what can be moved, `budget` bytes at most by itself. `done` is called for every work that ended.
    pub(crate) fn turn(
        &mut self,
        locals: &Locals,
        budget: &mut u64,
        mut done: impl FnMut(u64, Outcome),
    ) -> Result<(), End> {
        let ended = self.advance(locals, budget, &mut done);
        if std::mem::take(&mut self.calls) {
            // If it does not fit, there are messages that wake the target.
            let _ = socket::send(&self.socket, &Request::Offered, None);
        }
        ended
    }

    fn advance(
        &mut self,
        locals: &Locals,
        budget: &mut u64,
        done: &mut impl FnMut(u64, Outcome),
    ) -> Result<(), End> {
        if self.may_ask() {
            for posted in self.unknown.drain(..).rev() {
                self.queue.push_front(posted);
            }
        }
        while let Some(posted) = self.queue.front().copied()
            && *budget > 0
        {
            match self.step(&posted, locals, *budget)? {
                Step::Waits => return Ok(()),
                Step::Offered => {}
                Step::Unknown => {
                    self.queue.pop_front();
                    self.unknown.push_back(posted);
                }
                Step::Moved(made) => {
                    *budget = budget.saturating_sub(made.own);
                    self.complete(made.bytes, done);
                }
                Step::Failed(cause) => {
                    self.queue.pop_front();
                    done(posted.work.cookie, Outcome::Error(cause));
                    return Err(End::Failed);
                }
            }
        }
        Ok(())
    }

    /// So many bytes were moved, of the first works.
    fn complete(&mut self, mut bytes: u64, done: &mut impl FnMut(u64, Outcome)) {
        while bytes > 0
            && let Some(first) = self.queue.front_mut()
        {
            let left = first.left();
            if bytes < left {
                first.moved += bytes as u32;
                return;
            }
            bytes -= left;
            let cookie = first.work.cookie;
            self.queue.pop_front();
            done(cookie, Outcome::Success);
        }
    }

    /// Bytes that can be moved at once, `budget` at most: of the first work, and of those that go on where it ends at
    /// both ends. They end before `end` of the target's segment.
    fn run(&self, budget: u64, end: u64) -> u64 {
        let mut works = self.queue.iter();
        let Some(mut before) = works.next() else {
            return 0;
        };
        let mut bytes = before.left();
        for next in works {
            let goes_on = before.is_continued_by(next) && next.end().is_some_and(|at| at <= end);
            if bytes >= budget || !goes_on {
                break;
            }
            bytes += next.left();
            before = next;
        }
        bytes.min(budget)
    }

    /// Carries on with the first work.
    fn step(&mut self, posted: &Posted, locals: &Locals, budget: u64) -> Result<Step, End> {
        let Posted { work, key, .. } = posted;
        let end = match self.far.get(key) {
            None => return self.ask(*key),
            Some(Far::Nothing) => return Ok(Step::Failed(Cause::RemoteAccess)),
            Some(Far::There { bytes, .. }) => *bytes,
        };
        let region = locals.get(&work.local.segment);
        let region = region.ok_or(End::Broken(Cause::LocalProtection))?;
        let length = self.run(self.crew.reach(budget), end);
        if let (Op::Write, Some((_, Memory::Private(far)))) = (work.op, self.allows(posted))
            && !self.writes(far, length)
        {
            return self.offer(work, *key, region);
        }
        let made = self.carry(posted, region, length, budget)?;
        Ok(made.map_or(Step::Failed(Cause::RemoteAccess), Step::Moved))
    }

    /// What is behind a work's key, if the target allows the work.
    fn allows(&self, posted: &Posted) -> Option<(u16, &Memory)> {
        let Some(Far::There {
            grant,
            bytes,
            writable,
            memory,
        }) = self.far.get(&posted.key)
        else {
            return None;
        };
        let allowed = *writable || posted.work.op == Op::Read;
        let inside = posted.end().is_some_and(|end| end <= *bytes);
        (allowed && inside).then_some((*grant, memory))
    }

    /// Moves `length` bytes of a work, and of those that go on where it ends, or the first of them: `share` bytes at most
    /// by this thread itself. `None`: the target does not allow it, or not any more.
    fn carry(
        &self,
        posted: &Posted,
        region: &Region,
        length: u64,
        share: u64,
    ) -> Result<Option<Made>, End> {
        match self.allows(posted) {
            Some((grant, Memory::Shared(mapping))) => {
                self.copy(posted, grant, region, mapping, length, share)
            }
            Some((grant, Memory::Private(far))) if posted.work.op == Op::Read => {
                self.pull(posted, grant, region, far.address, length, share)
            }
            Some((grant, Memory::Private(far))) if self.writes(far, length) => {
                self.write(posted, grant, region, far, length, share)
            }
            Some((_, Memory::Private(_))) | None => Ok(None),
        }
    }

    /// Whether this side itself writes so many bytes to memory that only the target maps. If not, the target pulls them.
    fn writes(&self, far: &Private, length: u64) -> bool {
        let way = |peer: &Peer| peer.write(std::ptr::null(), 0, length).is_some();
        !far.is_pulled.get() && self.peer.as_ref().is_some_and(way)
    }

    /// Carries out a work that was checked, past what is posted, of which there is none. Whether it has; if not, all that
    /// is wrong is found when it is posted.
    pub(crate) fn carry_at_once(&self, work: Work, key: RegionKey, region: &Region) -> bool {
        let moved = 0;
        let posted = Posted { work, key, moved };
        let length = work.length.into();
        let carry = || match self.carry(&posted, region, length, u64::MAX) {
            Ok(Some(made)) => made.bytes == length,
            Ok(None) | Err(_) => false,
        };
        !self.is_posting() && carry()
    }

    /// Asks the target what is behind a key.
    fn ask(&mut self, key: RegionKey) -> Result<Step, End> {
        if self.question.is_some() {
            return Ok(Step::Unknown);
        }
        let grant = match self.grants_free.last() {
            Some(grant) => *grant,
            None if usize::from(self.grants) < GRANTS_MAX => self.grants,
            // The next lane begins with none.
            None => return Err(End::Broken(Cause::Flushed)),
        };
        match socket::send(&self.socket, &Request::Map { key, grant }, None) {
            Ok(()) => {
                if self.grants_free.pop().is_none() {
                    self.grants += 1;
                }
                self.unsent = false;
                self.question = Some(Question { key, grant });
                Ok(Step::Unknown)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.unsent = true;
                Ok(Step::Unknown)
            }
            Err(_) => Err(End::Broken(Cause::Reset)),
        }
    }

    /// Copies to or from memory that both sides map, `share` bytes at most by itself. `None`: the target does not allow it
    /// any more.
    fn copy(
        &self,
        posted: &Posted,
        grant: u16,
        region: &Region,
        mapping: &Mapping,
        length: u64,
        share: u64,
    ) -> Result<Option<Made>, End> {
        let entered = region.enter();
        let local = posted.local(entered.as_ref(), length)?;
        if !self.board.enter(grant) {
            return Ok(None);
        }
        let offset = posted.remote_offset();
        // SAFETY: all works of the run end inside the mapping, as `allows` and `run` have checked.
        let remote = unsafe { mapping.base().as_ptr().add(offset as usize) };
        let (from, to) = match posted.work.op {
            Op::Write => (local.cast_const(), remote),
            Op::Read => (remote.cast_const(), local),
        };
        let transfer = Transfer::Here(from, to);
        // SAFETY: `local` is entered; the mapping lives, and is writable where `allows` lets a write come here.
        let made = unsafe { self.crew.make(&transfer, length, share, || usize::MAX) };
        // A write that has come too late for the target is one all the same; it waits for those that are inside.
        let still = self.board.leave(grant);
        match made {
            Ok(made) => Ok((still || posted.work.op == Op::Write).then_some(made)),
            Err(error) => {
                log::error!("shm: a copy has failed: {error}");
                Err(End::Broken(Cause::Reset))
            }
        }
    }

    /// Reads from the target's private memory, `share` bytes at most by itself. `None`: the target does not allow it any
    /// more.
    fn pull(
        &self,
        posted: &Posted,
        grant: u16,
        region: &Region,
        address: u64,
        length: u64,
        share: u64,
    ) -> Result<Option<Made>, End> {
        let peer = self.peer.as_ref().ok_or(End::Broken(Cause::Reset))?;
        let entered = region.enter();
        let local = posted.local(entered.as_ref(), length)?;
        if !self.board.enter(grant) {
            return Ok(None);
        }
        let offset = posted.remote_offset();
        let transfer = peer.read(address.wrapping_add(offset), local, length);
        // SAFETY: `local` is entered.
        let pulled = unsafe { self.crew.make(&transfer, length, share, || usize::MAX) };
        let still = self.board.leave(grant);
        if !peer.process.is_marked() && !self.is_sound() {
            return Err(End::Broken(Cause::Reset));
        }
        match (pulled, still) {
            (Ok(made), true) => Ok(Some(made)),
            (_, false) => Ok(None),
            (Err(error), true) => {
                log::warn!("shm: the kernel does not read the peer's memory: {error}");
                Err(End::Broken(Cause::Reset))
            }
        }
    }

    /// Writes to the target's private memory, `share` bytes at most by itself. `None`: the target does not allow it any more.
    ///
    /// Between `enter` and `leave` the target does not have its memory back. All that a thread does there are calls of the
    /// kernel, and one that has begun ends before its thread can be stopped.
    fn write(
        &self,
        posted: &Posted,
        grant: u16,
        region: &Region,
        far: &Private,
        length: u64,
        share: u64,
    ) -> Result<Option<Made>, End> {
        let entered = region.enter();
        let local = posted.local(entered.as_ref(), length)?;
        let offset = posted.remote_offset();
        let to = far.address.wrapping_add(offset);
        let way = |peer: &Peer| peer.write(local, to, length);
        let transfer = self.peer.as_ref().and_then(way);
        let transfer = transfer.ok_or(End::Broken(Cause::Reset))?;
        stop::at(Point::Outside);
        if !self.board.enter(grant) {
            return Ok(None);
        }
        stop::at(Point::Inside);
        // SAFETY: `local` is entered.
        let written = unsafe { self.crew.make(&transfer, length, share, || usize::MAX) };
        stop::at(Point::Written);
        // One that has come too late for the target is one all the same; it waits for those that are inside.
        self.board.leave(grant);
        stop::at(Point::Left);
        Ok(Some(written.unwrap_or_else(|error| {
            log::debug!("shm: the kernel does not write to the peer's memory: {error}");
            far.is_pulled.set(true);
            Made { bytes: 0, own: 0 }
        })))
    }

    /// Offers the first work to the target, which pulls it.
    fn offer(&mut self, work: &Work, key: RegionKey, region: &Region) -> Result<Step, End> {
        if !self.peer.as_ref().is_some_and(|peer| peer.pulls) {
            return Err(End::Broken(Cause::Reset));
        }
        if self.offered.len() == OFFERS_MAX {
            return Ok(Step::Waits);
        }
        let row = self.first_row + self.offered.len();
        let source = region.base().as_ptr().addr() as u64 + work.local.offset;
        let offer = Offer {
            source,
            length: work.length,
            key,
            offset: work.remote.offset,
        };
        self.calls |= self.board.offer(row, &offer);
        self.offered.push_back(work.cookie);
        self.queue.pop_front();
        Ok(Step::Offered)
    }

    /// Completes offers that were carried out.
    pub(crate) fn collect(&mut self, done: &mut impl FnMut(u64, Outcome)) -> Result<(), End> {
        while let Some(cookie) = self.offered.front().copied()
            && let Some(pulled) = self.board.answer(self.first_row)
        {
            self.offered.pop_front();
            self.first_row += 1;
            match pulled {
                Pulled::Done => done(cookie, Outcome::Success),
                Pulled::Refused => {
                    done(cookie, Outcome::Error(Cause::RemoteAccess));
                    return Err(End::Failed);
                }
                Pulled::Failed => return Err(End::Broken(Cause::Reset)),
            }
        }
        Ok(())
    }

    /// Whether what was moved until now was moved from and to the peer: it has not hung up.
    pub(crate) fn is_sound(&self) -> bool {
        match &self.peer {
            Some(peer) => peer.process.is_there(&self.socket),
            None => !is_hung_up(&self.socket),
        }
    }

    /// Forgets a segment of the target.
    pub(crate) fn forget(&mut self, key: RegionKey) {
        if let Some(Far::There { grant, .. }) = self.far.remove(&key) {
            // One that cannot be said is not used again: its number would mean two segments.
            if socket::send(&self.socket, &Request::Unmap { grant }, None).is_ok() {
                self.grants_free.push(grant);
            }
        }
    }

    /// Takes back what is offered.
    pub(crate) fn withdraw(&self) -> Withdrawn {
        self.board.withdraw()
    }
}

impl Drop for Lane {
    /// Nobody pulls from memory that is given back after this.
    fn drop(&mut self) {
        self.board.withdraw();
    }
}

fn there(grant: u16, bytes: u64, writable: bool, memory: Memory) -> Far {
    Far::There {
        grant,
        bytes,
        writable,
        memory,
    }
}

/// The key that opens the far end of a work, or why the work may not be posted.
pub(crate) fn check(
    work: &Work,
    local: Option<&Arc<Region>>,
    remote: Option<&RemoteRegion>,
) -> Result<RegionKey, Cause> {
    let length = u64::from(work.length);
    if work.length == 0 || work.length > WORK_BYTES_MAX {
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
