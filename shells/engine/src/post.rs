//! The post box of a worker: how any thread reaches it, and how it is woken.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::*, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polyrail_core::message::Frame;
use polyrail_core::orchestrator::Proof;
use polyrail_core::plan::Plan;
use polyrail_core::report::Report;
use polyrail_core::ring::{Entry, Ring, Slot};
use polyrail_core::time::Instant;
use polyrail_core::units::{PeerId, PlanId, RailId, SegmentRef};
use polyrail_core::work::{Op, Priority};
use polyrail_transport::memory::Region;
use polyrail_transport::{RailAddress, RemoteRegion};
use rustix::event::{EventfdFlags, eventfd};

use crate::batch::Shared as BatchShared;
use crate::config::SendQueueConfig;
use crate::delivery::Ticket;
use crate::leaving::Leaving;
use crate::room::Room;
use crate::rows::{BatchRows, NoRow, RowId};
use crate::seat::{NoSeat, Seat};
use crate::worker::Loop;

/// Requests of the program that one worker can hold, from submission to report.
pub(crate) const REQUESTS_MAX: usize = 16_384;
/// Hops of what is staged that it can hold beside these: requests that were handed over to be staged keep their room, and
/// would wait for hops that find none.
pub(crate) const HOPS_MAX: usize = 64;
/// All of both.
pub(crate) const ROWS_MAX: usize = REQUESTS_MAX + HOPS_MAX;
/// Batches that one worker can hold: as many as there can be with one request each.
pub(crate) const BATCHES_MAX: usize = ROWS_MAX;
/// A waiter that finds its worker's thread at work asks for the seat for so long before it sleeps.
const ASK: std::time::Duration = std::time::Duration::from_micros(50);
/// Who waits for a batch so soon after a submission had nothing else to do.
const AT_ONCE: std::time::Duration = std::time::Duration::from_micros(20);

/// What a worker is told besides submissions.
pub(crate) enum Command {
    AttachLocal(SegmentRef, Arc<Region>),
    DetachLocal(SegmentRef),
    AttachRemote(SegmentRef, RemoteRegion),
    DetachRemote(SegmentRef),
    AttachRail(RailId, RailAddress),
    /// A disk is a peer that is always heard.
    AttachDisk(PeerId),
    InstallPlan(PlanId, Box<Plan>),
    RetirePlan(PlanId),
    Frame(PeerId, Frame),
    PeerGone(PeerId, Proof),
    /// A peer is lost: let go of it as soon as nothing is open with it.
    ForgetPeer(Arc<Leaving>),
    Cancel(RowId),
    /// A request that was handed over to be staged has ended so.
    StagedEnded(u64, Report),
    /// Another worker made room.
    Room,
    ShutDown,
}

/// How a worker is reached, from any thread.
pub(crate) struct Post {
    pub(crate) ring: Ring<Box<[Slot]>, Box<[AtomicU64]>>,
    /// For requests.
    pub(crate) room: Room,
    /// For hops, where programs have taken all that.
    pub(crate) hop_room: Room,
    pub(crate) batches: Mutex<BatchRows>,
    commands: Mutex<Vec<Command>>,
    has_commands: AtomicBool,
    pub(crate) seat: Seat,
    /// Who sleeps and has to be woken if something comes: one of [`NOBODY`], [`THREAD`], [`WAITER`]. Written by
    /// whoever has the seat.
    pub(crate) asleep: AtomicU8,
    /// A waiter drives.
    pub(crate) waiter_drives: AtomicBool,
    /// The thread sleeps, and looks again within [`LEASE_MAX`] by itself.
    pub(crate) leased: AtomicBool,
    /// When the thread looks again by itself, in nanoseconds of the engine's clock.
    pub(crate) looks_at: AtomicU64,
    /// When there was something to do by itself, as the last waiter that drove knew.
    pub(crate) due_at: AtomicU64,
    /// Who submitted last waited at once.
    trusted: AtomicBool,
    /// When somebody last submitted, in nanoseconds since `start`.
    submitted_at: AtomicU64,
    start: std::time::Instant,
    /// Somebody looks at batches, or sleeps for one, who does not drive. Until all have ended.
    watched: AtomicBool,
    /// Waiters that ask the thread for the seat.
    pub(crate) asking: AtomicU32,
    /// How often waiters have driven.
    pub(crate) drives: AtomicU64,
    /// Wakes the thread.
    pub(crate) wake: Arc<OwnedFd>,
    /// Wakes a waiter that drives.
    pub(crate) wake_waiter: OwnedFd,
}

/// Somebody drives and is awake.
pub(crate) const NOBODY: u8 = 0;
/// The worker's thread sleeps, and the seat is free.
pub(crate) const THREAD: u8 = 1;
/// A waiter that drives sleeps.
pub(crate) const WAITER: u8 = 2;

/// One request on its way to its worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submission {
    pub(crate) plan: PlanId,
    pub(crate) op: Op,
    pub(crate) local_offset: u64,
    pub(crate) remote_offset: u64,
    pub(crate) length: u64,
    /// Of one that is staged: no transport that reaches memory of GPUs is to carry it.
    pub(crate) through_slots: bool,
}

/// When the requests of a batch are due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) priority: Priority,
    /// `Instant::MAX`: never.
    pub(crate) deadline: Instant,
}

impl Due {
    /// The deadline, if there is one.
    pub(crate) fn within(self) -> Option<Instant> {
        (self.deadline != Instant::MAX).then_some(self.deadline)
    }
}

const READ: u64 = 1;
const LAST: u64 = 2;
const HIGH: u64 = 4;
const LOW: u64 = 8;
const SLOTS: u64 = 16;

/// What the flags of an entry say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) op: Op,
    /// It is the last request of its batch.
    pub(crate) last: bool,
    pub(crate) priority: Priority,
    /// As [`Submission::through_slots`] says.
    pub(crate) through_slots: bool,
}

impl Flags {
    fn to_bits(self) -> u64 {
        let op = if self.op == Op::Read { READ } else { 0 };
        let last = if self.last { LAST } else { 0 };
        let slots = if self.through_slots { SLOTS } else { 0 };
        let priority = match self.priority {
            Priority::High => HIGH,
            Priority::Normal => 0,
            Priority::Low => LOW,
        };
        op | last | priority | slots
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        let has = |flag: u64| bits & flag != 0;
        Self {
            op: if has(READ) { Op::Read } else { Op::Write },
            last: has(LAST),
            through_slots: has(SLOTS),
            priority: match (has(HIGH), has(LOW)) {
                (true, _) => Priority::High,
                (false, true) => Priority::Low,
                (false, false) => Priority::Normal,
            },
        }
    }
}

impl Submission {
    fn encode(&self, tag: u64, last: bool, due: Due) -> Entry {
        let flags = Flags {
            op: self.op,
            last,
            priority: due.priority,
            through_slots: self.through_slots,
        };
        let Self {
            plan,
            local_offset,
            remote_offset,
            length,
            ..
        } = *self;
        [
            tag,
            plan.to_bits(),
            local_offset,
            remote_offset,
            length,
            flags.to_bits(),
            due.deadline.as_nanos(),
            0,
        ]
    }
}

impl Post {
    pub(crate) fn new(config: &SendQueueConfig) -> io::Result<Self> {
        let slots = (0..ROWS_MAX).map(|_| Slot::EMPTY).collect();
        let cells = (0..ROWS_MAX).map(|_| AtomicU64::new(0)).collect();
        Ok(Self {
            ring: Ring::new(slots, cells),
            room: Room::new(REQUESTS_MAX as u16, config),
            hop_room: Room::new(HOPS_MAX as u16, &SendQueueConfig::default()),
            batches: Mutex::default(),
            commands: Mutex::default(),
            has_commands: AtomicBool::new(false),
            seat: Seat::default(),
            asleep: AtomicU8::new(NOBODY),
            waiter_drives: AtomicBool::new(false),
            leased: AtomicBool::new(false),
            looks_at: AtomicU64::new(u64::MAX),
            due_at: AtomicU64::new(u64::MAX),
            trusted: AtomicBool::new(false),
            submitted_at: AtomicU64::new(0),
            start: std::time::Instant::now(),
            watched: AtomicBool::new(false),
            asking: AtomicU32::new(0),
            drives: AtomicU64::new(0),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into(),
            wake_waiter: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Submits a batch that there is room for.
    pub(crate) fn submit(
        &self,
        submissions: &[Submission],
        due: Due,
        make: impl FnOnce(RowId) -> Arc<BatchShared>,
    ) -> Result<Arc<BatchShared>, NoRow> {
        let batch = self.batches().add(make)?;
        let last = submissions.len() - 1;
        for (index, submission) in submissions.iter().enumerate() {
            let entry = submission.encode(batch.row.tag(index), index == last, due);
            // The ring is as large as the room.
            let pushed = self.ring.push(entry);
            debug_assert!(
                pushed.is_ok(),
                "the submission ring is smaller than the room"
            );
        }
        self.submitted_at
            .store(self.nanos(std::time::Instant::now()), Relaxed);
        fence(SeqCst);
        // Who submitted last waited at once, and then drives itself. Should it not, the thread notices soon.
        let trusted = self.leased.load(Relaxed) && self.trusted.load(Relaxed);
        if !trusted || self.asleep.load(Relaxed) == WAITER {
            self.rouse();
        }
        Ok(batch)
    }

    pub(crate) fn batches(&self) -> MutexGuard<'_, BatchRows> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn batch(&self, row: RowId) -> Option<Arc<BatchShared>> {
        self.batches().get(row)
    }

    /// Notes how a request has ended, and gives back its room.
    pub(crate) fn report(&self, tag: u64, report: Report) {
        let (row, position) = RowId::from_tag(tag);
        if let Some(batch) = self.batch(row) {
            self.room_of(&batch)
                .give_back(batch.record(position, report));
        }
    }

    /// All requests of a batch have been reported: tells whoever wants to know, the peer by `send`.
    pub(crate) fn finish(&self, row: RowId, send: impl FnOnce(Ticket)) {
        // Under the lock: whoever has waited for the batch finds its row free.
        let mut batches = self.batches();
        let Some(batch) = batches.get(row) else {
            return;
        };
        let ended = batch.finish();
        if ended.is_over() {
            batches.remove(row);
        } else {
            batches.keep(row);
        }
        drop(batches);
        self.room_of(&batch).give_back(batch.take_room());
        ended.tell(send);
    }

    /// Where a batch has its room.
    fn room_of(&self, batch: &BatchShared) -> &Room {
        match batch.is_hop() {
            true => &self.hop_room,
            false => &self.room,
        }
    }

    /// Takes no more requests.
    pub(crate) fn close_room(&self) {
        self.room.close();
        self.hop_room.close();
    }

    /// Whether every request that room was taken for has been reported.
    pub(crate) fn is_idle(&self) -> bool {
        self.room.is_free() && self.hop_room.is_free()
    }

    pub(crate) fn cancel(&self, row: RowId) {
        self.send(Command::Cancel(row));
    }

    /// Tells the worker something.
    pub(crate) fn send(&self, command: Command) {
        self.commands
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(command);
        self.has_commands.store(true, Release);
        self.rouse();
    }

    pub(crate) fn take_commands(&self) -> Vec<Command> {
        if !self.has_commands.load(Relaxed) || !self.has_commands.swap(false, AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes whoever is to look at what has come, if they sleep or are about to.
    pub(crate) fn rouse(&self) {
        fence(SeqCst);
        let wake = match self.asleep.load(Relaxed) {
            NOBODY => return,
            WAITER => &self.wake_waiter,
            _ => &*self.wake,
        };
        call(wake);
    }

    /// Drives the worker until a batch has ended or the time since `start` is up. Does nothing if somebody
    /// else drives it; then that is who ends the batch.
    pub(crate) fn drive(
        &self,
        batch: &BatchShared,
        start: std::time::Instant,
        timeout: std::time::Duration,
    ) {
        let submitted = self.submitted_at.load(Relaxed);
        let since = self.nanos(start).saturating_sub(submitted);
        let at_once = std::time::Duration::from_nanos(since) <= AT_ONCE;
        let mut asking = None;
        let (mut now, mut left) = (start, timeout);
        while batch.is_pending() {
            let mut rising = Rising::begin(self);
            match self
                .seat
                .drive(|driven| driven.drive(batch, now, left, at_once))
            {
                Ok(rouse) => {
                    self.trusted.store(at_once, Relaxed);
                    rising.rouse = rouse;
                    return;
                }
                Err(why) => {
                    rising.rouse = false;
                    now = std::time::Instant::now();
                    let waited = now.saturating_duration_since(start);
                    left = timeout.saturating_sub(waited);
                    let taken_for_long = self.waiter_drives.load(Relaxed) || waited > ASK;
                    if why == NoSeat::Gone || taken_for_long || left.is_zero() {
                        return;
                    }
                }
            }
            asking.get_or_insert_with(|| Asking::begin(self));
            std::hint::spin_loop();
        }
    }

    /// Does something with a worker that has nothing to do, and nobody else at it.
    pub(crate) fn drive_idle<R>(&self, act: impl FnOnce(&mut Loop<'_>) -> R) -> Option<R> {
        if !self.is_idle() || self.has_news() {
            return None;
        }
        let done = self.seat.drive(act);
        // Whoever has submitted meanwhile has called the thread, and that has found the seat taken.
        fence(SeqCst);
        if self.has_news() {
            call(&self.wake);
        }
        done.ok()
    }

    /// Whether there is work, and nobody drives.
    pub(crate) fn is_left_alone(&self) -> bool {
        self.asleep.load(Relaxed) == THREAD && !self.is_idle()
    }

    /// Somebody looks at a batch that has not ended, and does not wait for it.
    pub(crate) fn look_after(&self) {
        self.watched.store(true, Relaxed);
        if self.leased.load(Relaxed) {
            self.rouse();
        }
    }

    /// Somebody is going to sleep until others have ended a batch.
    pub(crate) fn sleeps(&self) {
        self.watched.store(true, Relaxed);
        // Who leaves the seat either sees that, or is seen to have left.
        fence(SeqCst);
        if self.is_left_alone() {
            self.rouse();
        }
    }

    /// Whether whoever leaves the seat has to tell the thread of what is under way. Not if they come back soon, nobody
    /// else cares, and the thread looks again before long.
    pub(crate) fn needs_thread(&self, comes_back: bool) -> bool {
        fence(SeqCst);
        if self.is_idle() {
            self.watched.store(false, Relaxed);
            return false;
        }
        !comes_back || !self.leased.load(Relaxed) || self.watched.load(Relaxed)
    }

    fn nanos(&self, at: std::time::Instant) -> u64 {
        let since = at.saturating_duration_since(self.start);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn has_news(&self) -> bool {
        self.has_commands.load(Acquire) || !self.ring.is_empty()
    }
}

/// Wakes whoever sleeps on a descriptor.
fn call(wake: &OwnedFd) {
    // Full means that it was called already.
    let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
}

/// A waiter leaves the seat: the thread is woken if there is work for it, or if the waiter panicked.
struct Rising<'a> {
    post: &'a Post,
    rouse: bool,
}

impl<'a> Rising<'a> {
    fn begin(post: &'a Post) -> Self {
        Self { post, rouse: true }
    }
}

impl Drop for Rising<'_> {
    fn drop(&mut self) {
        if self.rouse {
            call(&self.post.wake);
        }
    }
}

/// A waiter that wants the seat.
struct Asking<'a>(&'a Post);

impl<'a> Asking<'a> {
    fn begin(post: &'a Post) -> Self {
        post.asking.fetch_add(1, Relaxed);
        Self(post)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Relaxed);
    }
}
