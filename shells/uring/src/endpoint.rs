//! The lanes of one worker over one way to ask the kernel.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef};
use polyrail_core::work::{
    Cause, Completion, LaneFact, LaneLimits, Outcome, PostBatch, Posted, Scope, Stop, Work,
};
use polyrail_transport::clock::Clock;
use polyrail_transport::memory::Region;
use polyrail_transport::numbered::Numbered;
use polyrail_transport::{Endpoint, LaneReport, Polled, RailAddress, RemoteRegion, Waits};
use rustix::io::Errno;

use crate::fixed::{Attached, Memory, OpenFile};
use crate::transfer::{PAUSE, Transfer};
use crate::{FileTable, PATIENCE_MS, TRANSFERS_MAX, WORK_BYTES_MAX, WORKS_MAX};

/// Transfers that one [`Endpoint::poll`] looks at.
const ENDED_MAX: usize = 128;

/// How often writes that wait for others of their file look.
const TURN_LOOK: Duration = Duration::from_micros(100);

/// A transfer of which the kernel has answered for a piece.
pub(crate) struct Answered {
    pub(crate) slot: u32,
    pub(crate) transfer: Transfer,
    /// Bytes moved; 0 at the end of the file.
    pub(crate) answer: Result<u32, Errno>,
}

/// A way to ask the kernel for pieces of transfers. Whoever drops it waits for those that have not ended, or leaks
/// what they need.
pub(crate) trait Driver: Send {
    /// Takes a transfer, in a slot that has none.
    fn ask(&mut self, slot: u32, transfer: Transfer);
    /// Lets the kernel know of what was taken.
    fn flush(&mut self);
    /// Appends answers, `limit` at most.
    fn answers(&mut self, limit: usize, to: &mut Vec<Answered>);
    /// Whether [`Self::flush`] is to be called again after a while, although nothing was taken since.
    fn is_behind(&self) -> bool {
        false
    }
    /// What transfers were about is detached. Some that were taken before may still use it.
    fn detach(&mut self, _: Attached) {}
    /// Polls readable when there are answers.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// Whose transfer is in a slot.
#[derive(Clone, Copy)]
struct Owner {
    lane: LaneId,
    cookie: u64,
}

/// A lane's latest epoch.
struct Slot {
    epoch: Epoch,
    open: bool,
    posted: u16,
    /// It is to be told when nothing is posted any more.
    fencing: bool,
}

pub(crate) struct FileEndpoint<D> {
    driver: D,
    files: Arc<dyn FileTable>,
    clock: Clock,
    /// As of the last poll.
    now: Instant,
    locals: Numbered<SegmentRef, Arc<Memory>>,
    remotes: Numbered<SegmentRef, Arc<OpenFile>>,
    lanes: Numbered<LaneId, Slot>,
    /// By the slot of their transfer.
    owners: Vec<Owner>,
    free: Vec<u32>,
    /// Writes that wait for others of their file, and whatever the kernel has no memory for just now.
    waiting: Vec<(u32, Transfer)>,
    answered: Vec<Answered>,
    /// What the next poll says first.
    facts: VecDeque<LaneReport>,
}

impl<D: Driver> FileEndpoint<D> {
    pub(crate) fn new(driver: D, files: Arc<dyn FileTable>, clock: Clock) -> Self {
        let nobody = Owner {
            lane: LaneId(0),
            cookie: 0,
        };
        Self {
            driver,
            files,
            clock,
            now: Instant::ZERO,
            locals: Numbered::default(),
            remotes: Numbered::default(),
            lanes: Numbered::default(),
            owners: vec![nobody; TRANSFERS_MAX],
            free: (0..TRANSFERS_MAX as u32).rev().collect(),
            waiting: Vec::new(),
            answered: Vec::with_capacity(ENDED_MAX),
            facts: VecDeque::new(),
        }
    }

    /// What it takes to carry a work out.
    fn transfer(&self, work: &Work) -> Result<Transfer, Cause> {
        let file = self.remotes.get(&work.remote.segment);
        let file = file.ok_or(Cause::RemoteAccess)?;
        file.range.check(work.op, work.remote.offset, work.length)?;
        let memory = self.locals.get(&work.local.segment);
        let memory = memory.ok_or(Cause::LocalProtection)?;
        let memory = (memory, work.local.offset);
        let file = (file, work.remote.offset);
        Transfer::new((work.op, work.length), memory, file).ok_or(Cause::LocalProtection)
    }

    /// Takes one work.
    fn take(&mut self, lane: LaneId, work: &Work) -> Stop {
        let Some(slot) = self.free.last().copied() else {
            return Stop::Full;
        };
        let transfer = match self.transfer(work) {
            Ok(transfer) => transfer,
            Err(cause) => return Stop::Rejected(cause),
        };
        self.free.pop();
        self.owners[slot as usize] = Owner {
            lane,
            cookie: work.cookie,
        };
        self.ask(slot, transfer);
        Stop::All
    }

    fn ask(&mut self, slot: u32, mut transfer: Transfer) {
        match transfer.begin(self.now) {
            true => self.driver.ask(slot, transfer),
            false => self.waiting.push((slot, transfer)),
        }
    }

    /// Asks again for those that wait.
    fn ask_waiting(&mut self) {
        for (slot, transfer) in std::mem::take(&mut self.waiting) {
            self.ask(slot, transfer);
        }
    }

    /// Nothing new is asked for with that, if there is any.
    fn detach(&mut self, attached: Option<Attached>) {
        if let Some(attached) = attached {
            self.driver.detach(attached);
        }
    }

    fn fenced(&mut self, lane: LaneId, epoch: Epoch) {
        // The kernel is the far end too.
        for scope in [Scope::Local, Scope::Remote] {
            let fact = LaneFact::Fenced {
                scope,
                delivered: None,
            };
            self.facts.push_back(LaneReport { lane, epoch, fact });
        }
    }

    /// A work has ended.
    fn end(&mut self, slot: u32, outcome: Outcome, at: Instant, out: &mut Polled) {
        let Owner { lane, cookie } = self.owners[slot as usize];
        self.free.push(slot);
        let Some(row) = self.lanes.get_mut(&lane) else {
            return;
        };
        row.posted -= 1;
        let epoch = row.epoch;
        out.completions.push(Completion {
            lane,
            epoch,
            cookie,
            at,
            outcome,
        });
        if row.posted == 0 && std::mem::take(&mut row.fencing) {
            self.fenced(lane, epoch);
        }
    }
}

impl<D: Driver> Endpoint for FileEndpoint<D> {
    fn attach_local(&mut self, segment: SegmentRef, region: Arc<Region>) {
        let memory = Arc::new(Memory::new(region));
        let before = self.locals.insert(segment, memory);
        self.detach(before.map(Attached::Memory));
    }

    fn detach_local(&mut self, segment: SegmentRef) {
        let memory = self.locals.remove(&segment);
        self.detach(memory.map(Attached::Memory));
    }

    fn attach_remote(&mut self, segment: SegmentRef, region: RemoteRegion) {
        if let Some(file) = self.files.find(&region.key) {
            let file = Arc::new(OpenFile::new(file));
            let before = self.remotes.insert(segment, file);
            self.detach(before.map(Attached::File));
        }
    }

    fn detach_remote(&mut self, segment: SegmentRef) {
        let file = self.remotes.remove(&segment);
        self.detach(file.map(Attached::File));
    }

    /// All rails are the same to it: a work's file says where it is.
    fn attach_rail(&mut self, _: RailId, _: RailAddress) {}

    fn open(&mut self, lane: LaneId, epoch: Epoch, _: Instant) {
        let slot = Slot {
            epoch,
            open: true,
            posted: 0,
            fencing: false,
        };
        // Core opens a lane only once nothing of an older epoch is posted.
        let before = self.lanes.insert(lane, slot);
        assert!(before.is_none_or(|before| before.posted == 0), "{lane:?}");
        let limits = LaneLimits {
            patience_ms: PATIENCE_MS,
            ..LaneLimits::new(WORKS_MAX, WORK_BYTES_MAX)
        };
        let fact = LaneFact::Opened { limits };
        self.facts.push_back(LaneReport { lane, epoch, fact });
    }

    fn post(&mut self, batch: &PostBatch) -> Posted {
        let is_open = |row: &&Slot| row.open && row.epoch == batch.epoch;
        let row = self.lanes.get(&batch.lane).filter(is_open);
        let Some(room) = row.map(|row| usize::from(WORKS_MAX - row.posted)) else {
            return Posted {
                accepted: 0,
                stop: Stop::Rejected(Cause::Flushed),
            };
        };
        let mut posted = Posted {
            accepted: 0,
            stop: Stop::All,
        };
        for work in &batch.works {
            posted.stop = match posted.accepted < room {
                true => self.take(batch.lane, work),
                false => Stop::Full,
            };
            if posted.stop != Stop::All {
                break;
            }
            posted.accepted += 1;
        }
        if let Some(row) = self.lanes.get_mut(&batch.lane) {
            row.posted += posted.accepted as u16;
        }
        self.driver.flush();
        posted
    }

    fn poll(&mut self, now: Instant, out: &mut Polled) {
        self.now = now;
        out.lanes.extend(self.facts.drain(..));
        if self.free.len() == TRANSFERS_MAX {
            return;
        }
        let mut answered = std::mem::take(&mut self.answered);
        self.driver.answers(ENDED_MAX, &mut answered);
        if !answered.is_empty() {
            let at = self.clock.now();
            for mut answered in answered.drain(..) {
                match answered.transfer.settle(answered.answer, now) {
                    Some(outcome) => {
                        drop(answered.transfer);
                        self.end(answered.slot, outcome, at, out);
                    }
                    None => self.ask(answered.slot, answered.transfer),
                }
            }
            out.lanes.extend(self.facts.drain(..));
        }
        self.answered = answered;
        self.ask_waiting();
        self.driver.flush();
    }

    fn fence(&mut self, lane: LaneId, epoch: Epoch, _: Scope) {
        if let Some(row) = self.lanes.get_mut(&lane).filter(|row| row.epoch == epoch) {
            row.open = false;
            row.fencing = row.posted > 0;
            if row.fencing {
                return;
            }
        }
        self.fenced(lane, epoch);
    }

    fn close(&mut self, lane: LaneId, epoch: Epoch) {
        if let Some(row) = self.lanes.get_mut(&lane).filter(|row| row.epoch == epoch) {
            row.open = false;
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.driver.fd()
    }

    /// Disks are not as quick as spinning is costly.
    fn waits(&self) -> Waits {
        match self.free.len() {
            TRANSFERS_MAX => Waits::Nothing,
            _ => Waits::Long,
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.facts.is_empty() {
            return Some(Instant::ZERO);
        }
        // Another worker's write may be what is waited for.
        let look = match (self.waiting.is_empty(), self.driver.is_behind()) {
            (false, _) => TURN_LOOK,
            (true, true) => PAUSE,
            (true, false) => return None,
        };
        Some(self.clock.now() + look)
    }
}

/// An answer as system calls give it: bytes, or a negative error number.
pub(crate) fn answer(raw: i32) -> Result<u32, Errno> {
    u32::try_from(raw).map_err(|_| Errno::from_raw_os_error(raw.wrapping_neg()))
}

/// What a system call that answers -1 has said.
pub(crate) fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}
