//! An open lane, seen from the initiator.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use polyrail_core::units::SegmentRef;
use polyrail_core::work::{Cause, Op, Outcome, Work};
use polyrail_transport::complain;
use polyrail_transport::memory::{Entered, Region, RegionKey};
use polyrail_transport::numbered::Numbered;
use polyrail_transport::packets::{self, nonsense};
use polyrail_transport::{RemoteRegion, Waits};

use crate::copy_threads::{Made, Member};
use crate::far::{Far, Mappings, Memory, Private};
use crate::group::{Group, SPANS_MAX};
use crate::mailbox::{GRANTS_MAX, Mailbox, OFFERS_MAX, Offer, Processor, Pulled, Withdrawn};
use crate::mapped::Mapped;
use crate::process::{OpenMemory, Process, is_hung_up};
use crate::stop::{self, Point};
use crate::sys::Way;
use crate::wire::{Answer, Request};
use crate::{WORK_BYTES_MAX, WORKS_MAX};

/// Bytes of the longest copy to or from private memory by the descriptor of that, where the process's mark and cookie are good for
/// longer ones: the kernel copies them twice, but touches nothing else.
const HELD_BYTES_MAX: u64 = 8 << 10;

/// The same for writes where there is no mark: longer ones are faster by the target's thread, which has to be told of them.
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
pub(crate) struct Posted {
    work: Work,
    key: RegionKey,
    /// Bytes of it.
    moved: u32,
}

impl Posted {
    /// One of which nothing is moved.
    pub(crate) fn new(work: Work, key: RegionKey) -> Self {
        let moved = 0;
        Self { work, key, moved }
    }

    /// Bytes that have not been moved.
    pub(crate) fn left(&self) -> u64 {
        u64::from(self.work.length - self.moved)
    }

    /// Where what has not been moved begins in memory of this side, of which so many bytes are needed.
    pub(crate) fn local(&self, entered: Option<&Entered<'_>>, length: u64) -> Result<*mut u8, End> {
        let offset = self.work.local.offset + u64::from(self.moved);
        let local = entered.and_then(|entered| entered.pointer(offset, length));
        local.ok_or(End::Broken(Cause::LocalProtection))
    }

    /// And in the target's segment.
    pub(crate) fn remote_offset(&self) -> u64 {
        self.work.remote.offset + u64::from(self.moved)
    }

    /// Where it ends in the target's segment.
    pub(crate) fn end(&self) -> Option<u64> {
        let length = self.work.length.into();
        self.work.remote.offset.checked_add(length)
    }

    /// Whether another work is of the same two segments, in the same direction.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let (work, other) = ((&self.work, self.key), (&other.work, other.key));
        let of = |(work, key): (&Work, RegionKey)| (work.op, work.local.segment, key);
        of(work) == of(other)
    }

    /// Whether another work that is like this one goes on where this one ends, at both ends.
    pub(crate) fn is_continued_by(&self, next: &Self) -> bool {
        let (work, other) = (&self.work, &next.work);
        self.end() == Some(other.remote.offset)
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

/// What became of works that were to be moved.
enum Carried {
    Moved(Made),
    /// The target does not allow it, or not any more.
    Refused,
    /// It is the target's to pull.
    Left,
}

/// The target's process, and the ways to its memory.
pub(crate) struct Peer {
    process: Process,
    /// It can pull from this process.
    pulls: bool,
    /// The kernel lets this process write to it by its number and its mark.
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

    /// The best way to write so many bytes to it, in one range or not, from this address on. `None`: it pulls them.
    fn way_to(&self, address: u64, bytes: u64, is_one: bool) -> Option<Way> {
        let held_max = match self.is_pushed_to {
            true => HELD_BYTES_MAX,
            false => UNMARKED_BYTES_MAX,
        };
        match &self.memory {
            Some(memory) if is_one && bytes <= held_max => Some(memory.way_to(address)),
            _ if self.is_pushed_to => self.process.way_to(address),
            _ => None,
        }
    }

    /// The best way to read so many bytes of it, in one range or not, from this address on.
    fn way_from(&self, address: u64, bytes: u64, is_one: bool) -> Way {
        match &self.memory {
            Some(memory) if is_one && bytes <= HELD_BYTES_MAX => memory.way_from(address),
            _ => self.process.way_from(address),
        }
    }
}

/// A lane that takes works.
pub(crate) struct Lane {
    pub(crate) socket: OwnedFd,
    mailbox: Mailbox,
    copy_threads: Member,
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
    /// Cookies of works that are offered, in the mailbox's order, from this row on.
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
    pub(crate) fn new(
        socket: OwnedFd,
        mailbox: Mailbox,
        peer: Option<Peer>,
        copy_threads: Member,
    ) -> Self {
        Self {
            socket,
            mailbox,
            copy_threads,
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
            self.mailbox.set_awaits(here);
        }
    }

    /// From here on it has to be called to them. Whether there is one that nobody calls to.
    pub(crate) fn look_no_more(&self) -> bool {
        if self.awaits.take().is_some() {
            self.mailbox.set_awaits(None);
        }
        self.is_offering() && self.mailbox.is_answered(self.first_row)
    }

    /// What it waits for, seen from the processor that this side runs on.
    pub(crate) fn waits(&self, here: Option<Processor>) -> Waits {
        match (self.mailbox.looked_at(), here) {
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
        while let Some((answer, file)) = packets::receive(&self.socket)? {
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
                    let mapped = mappings.map(key, &file, bytes, writable)?;
                    let memory = Memory::Shared(mapped);
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
            if let Some(grant) = grant.filter(|grant| self.mailbox.is_closed(*grant)) {
                self.lose(key, grant);
            }
        }
        if self.mailbox.take_untold() {
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
            Far::There { grant, .. } if self.mailbox.is_closed(*grant) => Some((*key, *grant)),
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
            let _ = packets::send(&self.socket, &Request::Offered, None);
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

    /// Carries on with the first work.
    fn step(&mut self, posted: &Posted, locals: &Locals, budget: u64) -> Result<Step, End> {
        let Posted { work, key, .. } = posted;
        match self.far.get(key) {
            None => return self.ask(*key),
            Some(Far::Nothing) => return Ok(Step::Failed(Cause::RemoteAccess)),
            Some(Far::There { .. }) => {}
        }
        let region = locals.get(&work.local.segment);
        let region = region.ok_or(End::Broken(Cause::LocalProtection))?;
        match self.carry(posted, self.queue.iter().skip(1), region, budget)? {
            Carried::Moved(made) => Ok(Step::Moved(made)),
            Carried::Refused => Ok(Step::Failed(Cause::RemoteAccess)),
            Carried::Left => self.offer(work, *key, region),
        }
    }

    /// What is behind a work's key, if the target allows the work, and where that ends.
    fn allows(&self, posted: &Posted) -> Option<(u16, u64, &Memory)> {
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
        (allowed && inside).then_some((*grant, *bytes, memory))
    }

    /// Moves the first of some works, and those that can be moved with it, or the first of their bytes: `share` bytes at most by
    /// this thread itself.
    fn carry<'a>(
        &self,
        first: &'a Posted,
        others: impl Iterator<Item = &'a Posted> + Clone,
        region: &Region,
        share: u64,
    ) -> Result<Carried, End> {
        let Some((grant, end, memory)) = self.allows(first) else {
            return Ok(Carried::Refused);
        };
        let op = first.work.op;
        let is_marked = self.peer.as_ref().is_some_and(|peer| peer.is_pushed_to);
        let takes_one = matches!((op, memory), (Op::Write, Memory::Private(_)) if !is_marked);
        let is_lone = !others
            .clone()
            .next()
            .is_some_and(|next| first.is_like(next));
        // Most works are alone, and room for many ranges costs time.
        let mut one = heapless::Vec::<_, 1>::new();
        let mut many: heapless::Vec<_, SPANS_MAX>;
        let spans = match takes_one || is_lone {
            true => one.as_mut_view(),
            false => {
                many = heapless::Vec::new();
                many.as_mut_view()
            }
        };
        let entered = region.enter();
        let most = self.copy_threads.reach(share);
        let group = Group::of(spans, first, others, entered.as_ref(), (most, end))?;
        match (op, memory) {
            (_, Memory::Shared(mapped)) => self.copy(op, grant, &group, mapped, share),
            (Op::Write, Memory::Private(far)) => self.write(grant, &group, far, share),
            (Op::Read, Memory::Private(far)) => self.pull(grant, &group, far, share),
        }
    }

    /// Carries out works that were checked, past what is posted, of which there is none. Whether it has; if not, all that is
    /// wrong is found when they are posted.
    pub(crate) fn carry_at_once(&self, works: &[Posted], locals: &Locals) -> bool {
        let mut left = works;
        while !self.is_posting()
            && let Some((first, others)) = left.split_first()
        {
            let Some(region) = locals.get(&first.work.local.segment) else {
                return false;
            };
            let carried = self.carry(first, others.iter(), region, u64::MAX);
            let Ok(Carried::Moved(made)) = carried else {
                return false;
            };
            let mut bytes = made.bytes;
            while let Some((done, others)) = left.split_first()
                && bytes >= done.left()
                && bytes > 0
            {
                bytes -= done.left();
                left = others;
            }
            if made.bytes == 0 || bytes > 0 {
                return false;
            }
        }
        left.is_empty()
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
        match packets::send(&self.socket, &Request::Map { key, grant }, None) {
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

    /// Copies to or from memory that both sides map.
    fn copy(
        &self,
        op: Op,
        grant: u16,
        group: &Group<'_>,
        mapped: &Mapped,
        share: u64,
    ) -> Result<Carried, End> {
        if !self.mailbox.enter(grant) {
            return Ok(Carried::Refused);
        }
        let way = match op {
            Op::Read => mapped.way_from(),
            Op::Write => mapped.fastest_to(group.far()),
        };
        // SAFETY: what is of this side is entered; the mapping and its file live, all works end inside it, and it is writable
        // where `allows` lets a write come here. For both.
        let made = unsafe {
            self.make(group, way, share).or_else(|error| match way {
                // A file may refuse what its mapping takes, as one that a peer has sealed since.
                Way::Write(..) => self.make(group, mapped.way_to(), share),
                _ => Err(error),
            })
        };
        // A write that has come too late for the target is one all the same; it waits for those that are inside.
        let still = self.mailbox.leave(grant);
        match made {
            Ok(made) if still || op == Op::Write => Ok(Carried::Moved(made)),
            Ok(_) => Ok(Carried::Refused),
            Err(error) => {
                complain!("shm: a copy has failed: {error}");
                Err(End::Broken(Cause::Reset))
            }
        }
    }

    /// Reads from the target's private memory.
    fn pull(
        &self,
        grant: u16,
        group: &Group<'_>,
        far: &Private,
        share: u64,
    ) -> Result<Carried, End> {
        let peer = self.peer.as_ref().ok_or(End::Broken(Cause::Reset))?;
        if !self.mailbox.enter(grant) {
            return Ok(Carried::Refused);
        }
        let way = peer.way_from(far.address, group.bytes, group.is_one());
        // SAFETY: what is of this side is entered.
        let pulled = unsafe { self.make(group, way, share) };
        let still = self.mailbox.leave(grant);
        if !peer.process.is_marked() && !self.is_sound() {
            return Err(End::Broken(Cause::Reset));
        }
        match (pulled, still) {
            (Ok(made), true) => Ok(Carried::Moved(made)),
            (_, false) => Ok(Carried::Refused),
            (Err(error), true) => {
                complain!("shm: the kernel does not read the peer's memory: {error}");
                Err(End::Broken(Cause::Reset))
            }
        }
    }

    /// Writes to the target's private memory.
    ///
    /// Between `enter` and `leave` the target does not have its memory back. All that a thread does there are calls of the
    /// kernel, and one that has begun ends before its thread can be stopped.
    fn write(
        &self,
        grant: u16,
        group: &Group<'_>,
        far: &Private,
        share: u64,
    ) -> Result<Carried, End> {
        let way = |peer: &Peer| peer.way_to(far.address, group.bytes, group.is_one());
        let way = self.peer.as_ref().and_then(way);
        let Some(way) = way.filter(|_| !far.is_pulled.get()) else {
            return Ok(Carried::Left);
        };
        stop::at(Point::Outside);
        if !self.mailbox.enter(grant) {
            return Ok(Carried::Refused);
        }
        stop::at(Point::Inside);
        // SAFETY: what is of this side is entered.
        let written = unsafe { self.make(group, way, share) };
        stop::at(Point::Written);
        // One that has come too late for the target is one all the same; it waits for those that are inside.
        self.mailbox.leave(grant);
        stop::at(Point::Left);
        Ok(Carried::Moved(written.unwrap_or_else(|error| {
            log::debug!("shm: the kernel does not write to the peer's memory: {error}");
            far.is_pulled.set(true);
            Made { bytes: 0, own: 0 }
        })))
    }

    /// Moves a group, `share` bytes at most by this thread itself.
    ///
    /// # Safety
    ///
    /// What is at both ends of it may be copied so.
    unsafe fn make(&self, group: &Group<'_>, way: Way, share: u64) -> io::Result<Made> {
        // SAFETY: the caller's promise, and the group lives until this returns.
        unsafe {
            self.copy_threads
                .make(&group.by(way), group.bytes, share, || usize::MAX)
        }
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
        self.calls |= self.mailbox.offer(row, &offer);
        self.offered.push_back(work.cookie);
        self.queue.pop_front();
        Ok(Step::Offered)
    }

    /// Completes offers that were carried out.
    pub(crate) fn collect(&mut self, done: &mut impl FnMut(u64, Outcome)) -> Result<(), End> {
        while let Some(cookie) = self.offered.front().copied()
            && let Some(pulled) = self.mailbox.answer(self.first_row)
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
            if packets::send(&self.socket, &Request::Unmap { grant }, None).is_ok() {
                self.grants_free.push(grant);
            }
        }
    }

    /// Takes back what is offered.
    pub(crate) fn withdraw(&self) -> Withdrawn {
        self.mailbox.withdraw()
    }
}

impl Drop for Lane {
    /// Nobody pulls from memory that is given back after this.
    fn drop(&mut self) {
        self.mailbox.withdraw();
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
