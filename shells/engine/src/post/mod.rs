//! The post box of a worker: how any thread reaches it, and how it is woken.

mod alarm;
mod backlog;
mod command;
mod leftover;
mod pulse;
mod submission;
mod waiters;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::*, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polyrail_core::report::{Local, Remote, Report};
use polyrail_core::ring::{Entry, Ring, Slot};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::PeerId;
use polyrail_transport::clock::Clock;

pub(crate) use self::alarm::{Alarm, NOBODY, THREAD, WAITER};
use self::backlog::Backlog;
pub(crate) use self::command::Command;
use self::command::Commands;
pub(crate) use self::leftover::Begun;
use self::leftover::{Left, Leftover};
pub(crate) use self::pulse::Pulse;
pub(crate) use self::submission::{Arrival, Due, List, Order, Submission};
use self::waiters::{Asking, Rising, Waiters};
use crate::afterwards::Afterwards;
use crate::batch::{Ended, Shared as BatchShared};
use crate::config::SendQueueConfig;
use crate::delivery::Ticket;
use crate::drive_lock::{DriveLock, NotDriven};
use crate::room::Room;
use crate::rows::{BatchRows, NoRow, ROWS_MAX, RowId};
use crate::stats::{Fences, Requests, Unsettled, UnsettledStats};
use crate::wakers::WakerThread;
use crate::worker::Loop;

/// Requests of one batch.
pub(crate) const BATCH_MAX: usize = 1_000_000;
/// Hops of what is staged that a worker can hold beside the program's requests: those that were handed over to be staged keep
/// their room, and would wait for hops that find none.
const HOPS_MAX: usize = 64;
/// Requests of the program that a worker can be configured to have under way: tags name each batch, of which there can be as
/// many.
pub(crate) const REQUESTS_MAX: usize = ROWS_MAX - HOPS_MAX;
/// A waiter that finds its worker's thread at work asks for the drive lock for so long before it sleeps.
const ASK: std::time::Duration = std::time::Duration::from_micros(50);
/// How often it is looked whether somebody else has driven a worker to its end, and how long beyond its time.
const END_LOOK: std::time::Duration = std::time::Duration::from_millis(1);
const END_MORE: Duration = Duration::from_secs(3);
/// Who waits for a batch so soon after a submission had nothing else to do.
const AT_ONCE: std::time::Duration = std::time::Duration::from_micros(20);

/// Rows of requests of a worker that can have so many of the program's under way. There are as many batches as that, if each
/// has one request.
pub(crate) const fn rows(requests: usize) -> usize {
    requests + HOPS_MAX
}

/// How a worker is reached, from any thread.
pub(crate) struct Post {
    /// Batches that have not been taken in, each by its row's tag.
    pub(crate) ring: Ring<Box<[Slot]>, Box<[AtomicU64]>>,
    /// For requests.
    pub(crate) room: Room,
    /// For hops, where programs have taken all that.
    pub(crate) hop_room: Room,
    /// Requests of the program that can be under way.
    requests_max: usize,
    pub(crate) batches: Mutex<BatchRows>,
    commands: Commands,
    pub(crate) drive_lock: DriveLock,
    pub(crate) alarm: Alarm,
    pub(crate) pulse: Arc<Pulse>,
    /// Of interest where there are several workers.
    pub(crate) backlog: Backlog,
    pub(crate) waiters: Waiters,
    /// What has ended with the worker.
    pub(crate) requests: Requests,
    /// And waits for proof.
    pub(crate) unsettled: Unsettled,
    pub(crate) fences: Fences,
    leftover: Leftover,
    /// What wakes tasks of the program.
    pub(crate) waker_thread: Arc<WakerThread>,
}

impl Post {
    /// For so many requests of the program, from submission to report.
    pub(crate) fn new(
        requests: usize,
        config: &SendQueueConfig,
        pulse: Pulse,
        waker_thread: Arc<WakerThread>,
    ) -> io::Result<Self> {
        let pulse = Arc::new(pulse);
        let rows = rows(requests);
        let slots = (0..rows).map(|_| Slot::EMPTY).collect();
        let cells = (0..rows).map(|_| AtomicU64::new(0)).collect();
        Ok(Self {
            ring: Ring::new(slots, cells),
            room: Room::new(requests as u16, config, pulse.clone(), waker_thread.clone()),
            hop_room: Room::new(
                HOPS_MAX as u16,
                &SendQueueConfig::default(),
                pulse.clone(),
                waker_thread.clone(),
            ),
            requests_max: requests,
            batches: Mutex::new(BatchRows::new(rows)),
            commands: Commands::new(),
            drive_lock: DriveLock::default(),
            alarm: Alarm::new()?,
            pulse,
            backlog: Backlog::default(),
            waiters: Waiters::new(),
            requests: Requests::default(),
            unsettled: Unsettled::default(),
            fences: Fences::default(),
            leftover: Leftover::default(),
            waker_thread,
        })
    }

    /// How many requests a batch has under way at a time, and takes room for: all, if all fit. Of a larger one the others wait
    /// in its own list, so that room and tables are left for other batches.
    pub(crate) fn width(&self, requests: usize) -> u16 {
        match requests > self.requests_max {
            true => (self.requests_max / 4) as u16,
            false => requests as u16,
        }
    }

    /// Submits a batch that there is room for.
    pub(crate) fn submit(
        &self,
        make: impl FnOnce(RowId) -> Arc<BatchShared>,
    ) -> Result<Arc<BatchShared>, NoRow> {
        let batch = self.batches().add(make)?;
        let mut entry = Entry::default();
        entry[0] = batch.row.tag(0);
        // The ring is as large as the table.
        let pushed = self.ring.push(entry);
        debug_assert!(
            pushed.is_ok(),
            "the submission ring is smaller than the table of batches"
        );
        self.waiters.submitted();
        fence(SeqCst);
        // Who submitted last waited at once, and then drives itself. Should it not, the thread notices soon.
        let trusted = self.alarm.leased.load(Relaxed) && self.waiters.trusted.load(Relaxed);
        if !trusted || self.alarm.asleep.load(Relaxed) == WAITER {
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
            self.note(&batch, position, report);
        }
    }

    /// The same of a batch that is at hand.
    pub(crate) fn note(&self, batch: &BatchShared, position: usize, report: Report) {
        let room = batch.record(position, report);
        self.room_of(batch).give_back(room);
    }

    /// The requests of a batch from this position on never began: each has ended so.
    pub(crate) fn note_rest(&self, batch: &BatchShared, from: usize, report: Report) {
        let room = batch.record_rest(from, report);
        self.room_of(batch).give_back(room);
    }

    /// More is known of a request than was reported: what of its memory is free. Its handle is told through what it was given
    /// then.
    pub(crate) fn settle(&self, tag: u64, local: Local, remote: Remote) {
        self.unsettled.settle(tag, local, remote);
        let (row, position) = RowId::from_tag(tag);
        if let Some(batch) = self.batch(row) {
            batch.settle(position, local, remote);
            if batch.is_over() {
                self.batches().remove(row);
            }
        }
    }

    /// Who has to see what a batch has written before it ends: the first ticket, and the peers.
    pub(crate) fn sight(&self, row: RowId) -> Option<(u64, Vec<PeerId>)> {
        self.batch(row)?.sight()
    }

    /// Nobody has proved in time that what a batch has written can be seen.
    pub(crate) fn doubt(&self, row: RowId) {
        if let Some(batch) = self.batch(row) {
            batch.doubt();
        }
    }

    /// What was in doubt has been proved after all.
    pub(crate) fn believe(&self, row: RowId) {
        if let Some(batch) = self.batch(row) {
            batch.believe();
            if batch.is_over() {
                self.batches().remove(row);
            }
        }
    }

    /// Requests that were reported without proof, and wait for it still.
    pub(crate) fn unsettled(&self, now: Instant) -> UnsettledStats {
        let batches = self.batches();
        let is_known = |tag| {
            let batch = batches.get(RowId::from_tag(tag).0);
            batch.is_some_and(|batch| !batch.is_over())
        };
        self.unsettled.stats(now, is_known)
    }

    /// All requests of a batch have been reported: tells whoever waits, and the peer by `send`. The answer is for the
    /// program's code.
    pub(crate) fn finish(&self, row: RowId, send: impl FnOnce(Ticket)) -> Option<Ended> {
        let batch = self.batch(row)?;
        // First: whoever has waited for the batch finds the room that it took.
        self.room_of(&batch).give_back(batch.take_room());
        // Under the lock: they find its row free, too.
        let mut batches = self.batches();
        let mut ended = batch.finish();
        if ended.is_over() {
            batches.remove(row);
        } else {
            batches.keep(row);
        }
        drop(batches);
        self.waker_thread.room_came();
        ended.notify(send);
        Some(ended)
    }

    /// Where a batch has its room.
    fn room_of(&self, batch: &BatchShared) -> &Room {
        match batch.is_hop() {
            true => &self.hop_room,
            false => &self.room,
        }
    }

    /// The worker has ended: nothing is taken any more. Batches stay, with what has `begun` of each, until
    /// they are [abandoned](Self::abandon).
    pub(crate) fn close(&self, begun: impl Fn(RowId) -> Begun) {
        self.close_room();
        let rows = self.batches().close().into_iter();
        self.leftover.close(rows.map(|(row, batch)| Left {
            batch,
            begun: begun(row),
        }));
    }

    /// Whether the worker has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.leftover.is_closed()
    }

    /// Ends batches that the worker has left: whoever waits is told, and the peer by `send`. `go_on`: their memory may
    /// still be touched.
    pub(crate) fn abandon(&self, go_on: bool, send: impl Fn(Ticket)) -> Afterwards {
        let mut afterwards = Afterwards::default();
        for Left { batch, begun } in self.leftover.take() {
            let mut ended = batch.abandon(&begun, go_on);
            ended.notify(&send);
            afterwards.keep(ended);
        }
        afterwards
    }

    /// Drives the worker to its end, which it was told to come to until then, or waits until somebody else has. The answer
    /// is what the program is to be told then.
    pub(crate) fn end(&self, clock: &Clock, until: Instant) -> Afterwards {
        // Its transports take time of their own to let go.
        let patience = until + END_MORE;
        loop {
            let ended = self.drive_lock.drive(|driven| {
                driven.end();
                driven.take_afterwards()
            });
            match ended {
                Ok(afterwards) => return afterwards,
                Err(_) if self.is_closed() => return Afterwards::default(),
                Err(_) if clock.now() > patience => {
                    log::error!("a worker does not end: memory it uses is not free");
                    return Afterwards::default();
                }
                // Whoever has the drive lock leaves it, or drives to the end.
                Err(_) => std::thread::park_timeout(END_LOOK),
            }
        }
    }

    /// Rouses `caller` once room comes back. Who has found none asks for this, and then looks once more.
    pub(crate) fn call_for_room(&self, caller: &Arc<Self>) {
        self.room.call(caller);
        self.hop_room.call(caller);
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
        self.commands.put(command);
        self.rouse();
    }

    pub(crate) fn take_commands(&self) -> Vec<Command> {
        self.commands.take()
    }

    /// Nobody takes commands any more: what they hold is let go of.
    pub(crate) fn close_commands(&self) {
        self.commands.close();
    }

    /// Wakes whoever is to look at what has come, if they sleep or are about to.
    pub(crate) fn rouse(&self) {
        self.alarm.rouse();
    }

    /// Does something with the drive lock, if it is free; then, once it is free again, calls the program's code that is due.
    pub(crate) fn while_driving<R>(
        &self,
        act: impl FnOnce(&mut Loop<'_>) -> R,
    ) -> Result<R, NotDriven> {
        let (done, afterwards) = self
            .drive_lock
            .drive(|driven| (act(driven), driven.take_afterwards()))?;
        afterwards.carry_out();
        Ok(done)
    }

    /// Drives the worker until a batch has ended or the time since `start` is up. Does nothing if somebody
    /// else drives it; then that is who ends the batch.
    pub(crate) fn drive(
        &self,
        batch: &BatchShared,
        start: std::time::Instant,
        timeout: std::time::Duration,
    ) {
        let at_once = self.waiters.since_submission(start) <= AT_ONCE;
        let mut asking = None;
        let (mut now, mut left, mut asked) = (start, timeout, start);
        while batch.is_pending() {
            let mut rising = Rising::begin(self);
            let driven = self.drive_lock.drive(|driven| {
                let rouse = driven.drive(batch, now, left, at_once);
                (rouse, driven.take_afterwards())
            });
            match driven {
                Ok((rouse, afterwards)) => {
                    self.waiters.trusted.store(at_once, Relaxed);
                    rising.rouse = rouse;
                    drop(rising);
                    if afterwards.is_empty() {
                        return;
                    }
                    afterwards.carry_out();
                    now = std::time::Instant::now();
                    asked = now;
                    left = timeout.saturating_sub(now.saturating_duration_since(start));
                    if left.is_zero() {
                        return;
                    }
                }
                Err(why) => {
                    rising.rouse = false;
                    now = std::time::Instant::now();
                    left = timeout.saturating_sub(now.saturating_duration_since(start));
                    let asks_for = now.saturating_duration_since(asked);
                    let taken_for_long = self.waiters.drives.load(Relaxed) || asks_for > ASK;
                    if why == NotDriven::Gone || taken_for_long || left.is_zero() {
                        return;
                    }
                }
            }
            asking.get_or_insert_with(|| Asking::begin(self));
            std::hint::spin_loop();
        }
    }

    /// Does something with a worker that has nothing to do, and nobody else at it. Nothing may end by that: the program is
    /// not told here.
    pub(crate) fn drive_idle<R>(&self, act: impl FnOnce(&mut Loop<'_>) -> R) -> Option<R> {
        if !self.is_idle() || self.has_news() {
            return None;
        }
        let done = self.drive_lock.drive(act);
        // Whoever has submitted meanwhile has called the thread, and that has found the drive lock taken.
        fence(SeqCst);
        if self.has_news() {
            self.alarm.call_thread();
        }
        done.ok()
    }

    /// Looks at a worker that nobody drives.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Loop<'_>) -> R) -> Result<R, NotDriven> {
        let seen = self.drive_lock.drive(|driven| look(driven))?;
        // Its thread may have found the drive lock taken meanwhile.
        self.alarm.call_thread();
        Ok(seen)
    }

    /// Whether there is work, and nobody drives.
    pub(crate) fn is_left_alone(&self) -> bool {
        self.alarm.asleep.load(Relaxed) == THREAD && !self.is_idle()
    }

    /// Somebody looks at a batch that has not ended, and does not wait for it.
    pub(crate) fn look_after(&self) {
        if self.waiters.may_wait_at_once() {
            return;
        }
        self.waiters.watched.store(true, Relaxed);
        if self.alarm.leased.load(Relaxed) {
            self.rouse();
        }
    }

    /// Somebody is going to sleep until others have ended a batch.
    pub(crate) fn sleeps(&self) {
        self.waiters.watched.store(true, Relaxed);
        // Who releases the drive lock either sees that, or is seen to have left.
        fence(SeqCst);
        if self.is_left_alone() {
            self.rouse();
        }
    }

    /// Whether whoever releases the drive lock has to tell the thread of what is under way. Not if they come back soon, nobody
    /// else cares, and the thread looks again before long.
    pub(crate) fn needs_thread(&self, comes_back: bool) -> bool {
        fence(SeqCst);
        if self.is_idle() {
            self.waiters.watched.store(false, Relaxed);
            return false;
        }
        !comes_back || !self.alarm.leased.load(Relaxed) || self.waiters.watched.load(Relaxed)
    }

    pub(crate) fn has_news(&self) -> bool {
        self.commands.has_any() || !self.ring.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use polyrail_core::units::PlanId;
    use polyrail_core::work::{Op, Priority};

    use super::*;
    use crate::lock::lock;
    use crate::segments::Holds;

    #[test]
    fn who_has_seen_the_end_of_a_batch_finds_the_room_that_it_took() {
        // The last place came back after that: the next batch that needed all of them waited for it, asleep, each time.
        let clock = Clock::start();
        let post = Post::new(
            4,
            &SendQueueConfig::default(),
            Pulse::new(Some(0), clock),
            Arc::default(),
        )
        .unwrap();
        let order = || Order {
            list: List::Once(vec![Submission {
                plan: PlanId::default(),
                op: Op::Write,
                local_offset: 0,
                remote_offset: 0,
                length: 1,
                through_slots: false,
            }]),
            due: Due {
                priority: Priority::Normal,
                deadline: Instant::MAX,
            },
            sight: None,
        };
        let submit = || {
            let room = post.room.take(&clock, 1, std::time::Duration::ZERO, || {});
            let make = |row| BatchShared::new(row, Holds::default(), order(), None);
            post.submit(|row| Arc::new(make(row).taking(room.unwrap())))
        };
        let done = Report::moved(0);
        let batches: Mutex<Option<Arc<BatchShared>>> = Mutex::new(None);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                for _ in 0..5_000 {
                    let batch = submit().unwrap();
                    *lock(&batches) = Some(batch.clone());
                    while batch.is_pending() {
                        std::hint::spin_loop();
                    }
                    assert!(post.room.is_free());
                }
            });
            for _ in 0..5_000 {
                let batch = loop {
                    match lock(&batches).take() {
                        Some(batch) => break batch,
                        None if waits.is_finished() => return,
                        None => std::thread::yield_now(),
                    }
                };
                post.ring.pop();
                post.note(&batch, 0, done);
                drop(post.finish(batch.row, |_| {}));
            }
        });
    }
}
