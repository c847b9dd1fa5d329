//! Threads that make a large copy together with the one that has it to make.
//!
//! That one, the *leader*, cuts the copy into pieces, and all who are there take one after the other. It returns when no
//! helper is at a piece any more. So a copy by several threads is one call, as a copy by one thread is: what the leader
//! has entered before it and leaves after it, and whom it looks after then, is the same. One copy at a time is
//! made so, and whoever has another one meanwhile makes it alone.
//!
//! Pieces are taken in order, so that those that were taken are the beginning of the copy. The leader stops when it has
//! done its share itself, however many help and however late they come.
//!
//! Helpers are threads of their own. A worker that has nothing to do sleeps in its epoll, or has released its drive lock to who
//! waits: it would have to be called through a descriptor, and what comes for it meanwhile would wait for a piece.
//!
//! **Invariant:** a helper is at a piece only while its leader is in [`Member::make`].
//!
//! **Invariant:** with one thread nobody helps, and nothing is shared.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use polyrail_transport::peek::Peek;

use crate::sys::Transfer;

/// Bytes of the shortest copy that is cut.
pub(crate) const CUT_BYTES_MIN: u64 = 512 << 10;

/// Bytes of the shortest copy that sleeping helpers are woken for, unless its leader has had one just before: to wake
/// somebody takes as long as to copy half a mebibyte, and who was woken finds the next one by itself.
const WAKE_BYTES_MIN: u64 = 2 << 20;

/// Bytes of a piece: the fewer, the sooner all are done; the more, the faster each.
const PIECE_BYTES_MIN: u64 = 128 << 10;
const PIECE_BYTES_MAX: u64 = 512 << 10;

/// Pieces for each thread in what is left, if they are not too short for that: the last ones are the shortest, and nobody
/// waits for long.
const PIECES_EACH: u64 = 2;

/// What pieces are whole numbers of.
const PAGE_BYTES: u64 = 4096;

/// How long a helper looks for the next copy before it sleeps: as long as a few mebibytes take, so that one that is made
/// in turns finds it awake.
const SPIN: Duration = Duration::from_micros(100);

/// How long a leader spins for helpers that are at their last pieces, and lets others run then, before it sleeps.
const LEADER_SPIN: Duration = Duration::from_micros(20);
const LEADER_YIELD: Duration = Duration::from_millis(1);

/// Who has had something large to copy so shortly ago most likely comes back with more, and has a processor for it.
const RECENT: Duration = Duration::from_micros(100);

/// A leader that has lost time with helpers, because others had their processors, goes on alone for so many times as long
/// as it has waited: no more than such a part is ever lost.
const ALONE_TIMES: u64 = 32;

/// No more pieces are to be taken.
const CLOSED: u64 = u64::MAX;

/// Something of which several threads can do pieces at once.
pub(crate) trait Task: Clone + Send + 'static {
    /// Does these bytes of it.
    ///
    /// # Safety
    ///
    /// Whoever made it allows that now.
    unsafe fn piece(&self, range: Range<u64>) -> io::Result<()>;

    /// Where a piece that begins at `start` ends, of a task of `length` bytes: best after `bytes` of them, or where else another
    /// thread can go on without getting in the way of this one.
    ///
    /// # Safety
    ///
    /// As of [`Self::piece`].
    unsafe fn piece_end(&self, start: u64, bytes: u64, length: u64) -> u64 {
        length.min(start + bytes)
    }
}

/// What came of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Made {
    /// Bytes that are done, from the beginning on.
    pub(crate) bytes: u64,
    /// What that counts against the leader's share.
    pub(crate) own: u64,
}

/// The threads of an engine that copy, and how they find each other.
pub(crate) struct CopyThreads<T: Task = Transfer> {
    common: Arc<Common<T>>,
    /// Who leads holds it.
    helpers: Mutex<Helpers>,
    /// Members so far.
    members: AtomicU64,
}

/// The threads that help.
#[derive(Default)]
struct Helpers {
    threads: Vec<JoinHandle<()>>,
    /// No more could be started.
    is_all: bool,
}

/// The copy threads, as one thread at a time uses it that has something to copy.
pub(crate) struct Member<T: Task = Transfer> {
    copy_threads: Arc<CopyThreads<T>>,
    /// Tells it from others.
    number: u64,
}

impl<T: Task> Clone for Member<T> {
    fn clone(&self) -> Self {
        Self {
            copy_threads: self.copy_threads.clone(),
            number: self.number,
        }
    }
}

impl<T: Task> Member<T> {
    /// Bytes that may get done while a leader does its share.
    pub(crate) fn reach(&self, share: u64) -> u64 {
        self.copy_threads.reach(share)
    }

    /// Does a task of `length` bytes, or the beginning of it: the caller does `share` bytes itself at most. It says for how
    /// many helpers there are processors, so far as it knows, if it is asked. After an error nobody knows which bytes are
    /// done.
    ///
    /// # Safety
    ///
    /// Each piece of the task is allowed, on any thread, until this returns.
    pub(crate) unsafe fn make(
        &self,
        task: &T,
        length: u64,
        share: u64,
        spare: impl FnOnce() -> usize,
    ) -> io::Result<Made> {
        let copy_threads = &*self.copy_threads;
        let is_cut = copy_threads.common.threads > 1 && length >= CUT_BYTES_MIN;
        let busy = is_cut.then(|| Busy::new(&copy_threads.common, self.number));
        if let Some(busy) = &busy
            && let helpers @ 1.. = busy.helpers().min(spare())
            && let Ok(mut hired) = copy_threads.helpers.try_lock()
        {
            let wakes = busy.wakes(length);
            if wakes {
                copy_threads.hire(&mut hired, helpers);
            }
            if wakes || copy_threads.common.asleep.load(Relaxed) < hired.threads.len() {
                // SAFETY: the caller's promise.
                return unsafe { copy_threads.lead(task, length, share, helpers, busy) };
            }
        }
        let bytes = length.min(share);
        // SAFETY: the caller's promise.
        unsafe { task.piece(0..bytes) }?;
        Ok(Made { bytes, own: bytes })
    }
}

/// What leaders and helpers share.
struct Common<T> {
    /// Threads that are to copy at once, at most.
    threads: usize,
    /// Threads that have something large to copy now, as leaders or alone.
    busy: AtomicUsize,
    /// Who of them has done so last, and until when, as [`Self::now`] says.
    last_by: AtomicU64,
    last_at: AtomicU64,
    start: Instant,
    /// Until when nobody leads.
    alone_until: AtomicU64,
    /// How often something has changed that helpers would want to know.
    calls: AtomicU64,
    /// Where the next piece begins.
    cursor: AtomicU64,
    /// Helpers that are at the task. Changes under the lock.
    inside: AtomicUsize,
    /// Helpers that sleep. Changes under the lock.
    asleep: AtomicUsize,
    state: Mutex<State<T>>,
    called: Condvar,
    left: Condvar,
}

struct State<T> {
    /// What there is to help with.
    job: Option<Job<T>>,
    /// What went wrong with a piece of it.
    error: Option<io::Error>,
    /// The leader sleeps until nobody is inside.
    leader_sleeps: bool,
    /// The copy threads is no more.
    over: bool,
}

#[derive(Clone)]
struct Job<T> {
    /// Tells it from others.
    number: u64,
    task: T,
    length: u64,
    helpers: usize,
}

/// Bytes of a piece, if so many are left for so many threads.
fn piece_bytes(left: u64, threads: usize) -> u64 {
    let even = left / (PIECES_EACH * threads.max(1) as u64);
    let whole = even.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX) / PAGE_BYTES;
    whole * PAGE_BYTES
}

impl<T: Task> CopyThreads<T> {
    /// So many threads, or as many as there are processors if these are fewer. Helpers start when the first copy
    /// is large enough for them.
    pub(crate) fn new(threads: usize) -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self::of(threads.min(processors))
    }

    fn of(threads: usize) -> Self {
        let state = State {
            job: None,
            error: None,
            leader_sleeps: false,
            over: false,
        };
        let common = Common {
            threads: threads.max(1),
            busy: AtomicUsize::new(0),
            last_by: AtomicU64::new(0),
            last_at: AtomicU64::new(0),
            start: Instant::now(),
            alone_until: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            cursor: AtomicU64::new(CLOSED),
            inside: AtomicUsize::new(0),
            asleep: AtomicUsize::new(0),
            state: Mutex::new(state),
            called: Condvar::new(),
            left: Condvar::new(),
        };
        Self {
            common: Arc::new(common),
            helpers: Mutex::default(),
            members: AtomicU64::new(0),
        }
    }

    /// Another one who copies now and then.
    pub(crate) fn member(self: &Arc<Self>) -> Member<T> {
        Member {
            copy_threads: self.clone(),
            number: self.members.fetch_add(1, Relaxed),
        }
    }

    fn reach(&self, share: u64) -> u64 {
        share.saturating_mul(self.common.threads as u64)
    }

    /// Starts helpers that are not there yet.
    fn hire(&self, hired: &mut Helpers, helpers: usize) {
        while hired.threads.len() < helpers && !hired.is_all {
            let common = self.common.clone();
            let thread = thread::Builder::new()
                .name(format!("polyrail-copy-{}", hired.threads.len()))
                .spawn(move || common.help());
            match thread {
                Ok(thread) => hired.threads.push(thread),
                Err(error) => {
                    log::warn!("shm: one thread fewer helps with large copies: {error}");
                    hired.is_all = true;
                }
            }
        }
    }

    /// # Safety
    ///
    /// As of [`Member::make`].
    unsafe fn lead(
        &self,
        task: &T,
        length: u64,
        share: u64,
        helpers: usize,
        busy: &Busy<'_, T>,
    ) -> io::Result<Made> {
        let common = &*self.common;
        let wakes = busy.wakes(length);
        // No more gets done.
        let length = length.min(self.reach(share));
        let led = Led::begin(common, |number| Job {
            number,
            task: task.clone(),
            length,
            helpers,
        });
        if wakes {
            common.wake(helpers);
        }
        let mut own = 0;
        while own < share
            // SAFETY: the caller's promise.
            && let Some(range) = unsafe { common.take(task, length, (helpers + 1, share - own)) }
        {
            own += range.end - range.start;
            // SAFETY: the caller's promise.
            unsafe { task.piece(range) }?;
        }
        let bytes = common.close().min(length);
        let alone = common.now();
        drop(led);
        common.judge(own, alone - busy.since, bytes - own, common.now() - alone);
        match common.lock().error.take() {
            Some(error) => Err(error),
            None => {
                // Whoever leads and gets nothing to do is not done sooner for that.
                let own = own.max(bytes / common.threads as u64);
                Ok(Made { bytes, own })
            }
        }
    }
}

impl<T: Task> Drop for CopyThreads<T> {
    fn drop(&mut self) {
        let helpers = self.helpers.get_mut();
        let helpers = std::mem::take(helpers.unwrap_or_else(PoisonError::into_inner));
        self.common.lock().over = true;
        self.common.calls.fetch_add(1, Release);
        self.common.called.notify_all();
        for helper in helpers.threads {
            if helper.join().is_err() {
                log::error!("shm: a thread that helps with large copies panicked");
            }
        }
    }
}

impl<T> Common<T> {
    /// Nanoseconds since some time before the copy threads was made: what never was is not recent.
    fn now(&self) -> u64 {
        (self.start.elapsed() + RECENT).as_nanos() as u64
    }
}

impl<T: Task> Common<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next piece of a task of `length` bytes that so many threads do, `most` bytes at most.
    ///
    /// # Safety
    ///
    /// As of [`Task::piece`].
    unsafe fn take(
        &self,
        task: &T,
        length: u64,
        (threads, most): (usize, u64),
    ) -> Option<Range<u64>> {
        let mut end = 0;
        let next = |start: u64| {
            let left = length.checked_sub(start).filter(|left| *left > 0)?;
            // SAFETY: the caller's promise.
            let best = unsafe { task.piece_end(start, piece_bytes(left, threads), length) };
            end = best.min(start.saturating_add(most));
            Some(end)
        };
        let taken = self.cursor.fetch_update(Relaxed, Relaxed, next);
        taken.ok().map(|start| start..end)
    }

    /// Nobody takes a piece any more. How far they were taken.
    fn close(&self) -> u64 {
        self.cursor.swap(CLOSED, Relaxed)
    }

    /// The leader has done so many bytes in so long, then waited for the others. If it had been done with their bytes sooner,
    /// there are no copy threads for a while.
    fn judge(&self, own: u64, nanos: u64, others: u64, waited: u64) {
        let alone = u128::from(nanos) * u128::from(others);
        if u128::from(waited) * u128::from(own) > alone {
            let until = self.now() + waited * ALONE_TIMES;
            self.alone_until.store(until, Relaxed);
        }
    }

    /// A helper's thread.
    fn help(&self) {
        let mut peek = Peek::default();
        let mut last = 0;
        while let Some(job) = self.join(last, &mut peek) {
            last = job.number;
            let mut inside = Inside {
                common: self,
                ended: None,
            };
            inside.ended = Some(self.do_pieces(&job));
        }
    }

    fn do_pieces(&self, job: &Job<T>) -> io::Result<()> {
        // SAFETY: this thread is inside, so that the leader has not returned, whose caller allows it.
        let next = || unsafe { self.take(&job.task, job.length, (job.helpers + 1, u64::MAX)) };
        while self.has_room()
            && let Some(range) = next()
        {
            // SAFETY: as above.
            unsafe { job.task.piece(range) }?;
        }
        Ok(())
    }

    /// Whether no more threads copy than are to.
    fn has_room(&self) -> bool {
        self.busy.load(Relaxed) + self.inside.load(Relaxed) <= self.threads
    }

    /// Waits for another job than the last one, and joins those who are at it. `None`: there will be none.
    fn join(&self, last: u64, peek: &mut Peek) -> Option<Job<T>> {
        let before = self.calls.load(Acquire);
        let mut looked = !peek.is_due();
        loop {
            let mut state = self.lock();
            loop {
                if state.over {
                    return None;
                }
                let inside = self.inside.load(Relaxed);
                let job = state.job.as_ref();
                let job = job.filter(|job| job.number != last && inside < job.helpers);
                if let Some(job) = job {
                    self.inside.store(inside + 1, Relaxed);
                    return Some(job.clone());
                }
                if !looked {
                    break;
                }
                self.asleep.fetch_add(1, Relaxed);
                let woken = self.called.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                self.asleep.fetch_sub(1, Relaxed);
            }
            drop(state);
            peek.tell(self.look(before));
            looked = true;
        }
    }

    /// Looks for a while whether there is another call. Not if all processors are busy.
    fn look(&self, before: u64) -> bool {
        let until = Instant::now() + SPIN;
        while self.busy.load(Relaxed) < self.threads && Instant::now() < until {
            if self.calls.load(Acquire) != before {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Wakes helpers that sleep, so many at most. Those who are about to sleep see the job before.
    fn wake(&self, helpers: usize) {
        match self.asleep.load(Relaxed) {
            0 => {}
            asleep if asleep <= helpers => self.called.notify_all(),
            _ => (0..helpers).for_each(|_| self.called.notify_one()),
        }
    }

    /// Waits until no helper is inside.
    fn wait_until_left(&self) {
        if self.inside.load(Acquire) == 0 {
            return;
        }
        let start = Instant::now();
        while self.inside.load(Acquire) > 0 {
            match start.elapsed() {
                waited if waited < LEADER_SPIN => std::hint::spin_loop(),
                waited if waited < LEADER_YIELD => thread::yield_now(),
                _ => {
                    let mut state = self.lock();
                    state.leader_sleeps = true;
                    let inside = |_: &mut State<T>| self.inside.load(Relaxed) > 0;
                    let woken = self.left.wait_while(state, inside);
                    woken.unwrap_or_else(PoisonError::into_inner).leader_sleeps = false;
                }
            }
        }
    }
}

/// Somebody has something large to copy, until this is dropped.
struct Busy<'a, T> {
    common: &'a Common<T>,
    by: u64,
    /// Since when, as [`Common::now`] says.
    since: u64,
    /// Others who have, or have had just now.
    others: usize,
    /// The same one has had something just now.
    is_again: bool,
}

impl<'a, T> Busy<'a, T> {
    fn new(common: &'a Common<T>, by: u64) -> Self {
        let others = common.busy.fetch_add(1, Relaxed);
        let now = common.now();
        let ago = now.saturating_sub(common.last_at.load(Relaxed));
        let is_recent = ago < RECENT.as_nanos() as u64;
        let is_same = common.last_by.load(Relaxed) == by;
        Self {
            common,
            by,
            since: now,
            others: others + usize::from(is_recent && !is_same),
            is_again: is_recent && is_same,
        }
    }

    /// For how many helpers there are processors that nobody else copies on, nor seems to need.
    fn helpers(&self) -> usize {
        match self.since < self.common.alone_until.load(Relaxed) {
            true => 0,
            false => self.common.threads.saturating_sub(1 + self.others),
        }
    }

    /// Whether helpers are to be woken for so many bytes.
    fn wakes(&self, length: u64) -> bool {
        self.is_again || length >= WAKE_BYTES_MIN
    }
}

impl<T> Drop for Busy<'_, T> {
    fn drop(&mut self) {
        let common = self.common;
        common.last_by.store(self.by, Relaxed);
        common.last_at.store(common.now(), Relaxed);
        common.busy.fetch_sub(1, Relaxed);
    }
}

/// A leader is at a task. Dropping this ends it, and waits for helpers: also if the leader panics.
struct Led<'a, T: Task>(&'a Common<T>);

impl<'a, T: Task> Led<'a, T> {
    /// Makes a job known, whose number `job` is given.
    fn begin(common: &'a Common<T>, job: impl FnOnce(u64) -> Job<T>) -> Self {
        let number = common.calls.load(Relaxed) + 1;
        let job = job(number);
        let mut state = common.lock();
        common.cursor.store(0, Relaxed);
        state.job = Some(job);
        state.error = None;
        common.calls.store(number, Release);
        Self(common)
    }
}

impl<T: Task> Drop for Led<'_, T> {
    fn drop(&mut self) {
        self.0.close();
        self.0.lock().job = None;
        self.0.wait_until_left();
    }
}

/// A helper is at a task, until this is dropped.
struct Inside<'a, T: Task> {
    common: &'a Common<T>,
    /// How that has ended; `None`: it panics.
    ended: Option<io::Result<()>>,
}

impl<T: Task> Drop for Inside<'_, T> {
    fn drop(&mut self) {
        let mut state = self.common.lock();
        let panicked = || Err(io::Error::other("a thread that helped has panicked"));
        if let Err(error) = self.ended.take().unwrap_or_else(panicked) {
            self.common.close();
            state.error = Some(error);
        }
        let before = self.common.inside.fetch_sub(1, Release);
        if before == 1 && state.leader_sleeps {
            self.common.left.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicBool;

    use quickcheck::quickcheck;

    use super::*;

    /// Far beyond what anything here takes.
    const PATIENCE: Duration = Duration::from_secs(30);
    const LONG: u64 = 8 * CUT_BYTES_MIN;

    type Piece = dyn Fn(Range<u64>) -> io::Result<()> + Send + Sync;

    /// A task that touches no memory.
    #[derive(Clone)]
    struct Told(Arc<Piece>);

    impl Task for Told {
        unsafe fn piece(&self, range: Range<u64>) -> io::Result<()> {
            (self.0)(range)
        }
    }

    impl Told {
        fn new(piece: impl Fn(Range<u64>) -> io::Result<()> + Send + Sync + 'static) -> Self {
            Self(Arc::new(piece))
        }

        fn make(&self, member: &Member<Self>, length: u64, share: u64) -> io::Result<Made> {
            self.make_beside(usize::MAX, member, length, share)
        }

        fn make_beside(
            &self,
            spare: usize,
            member: &Member<Self>,
            length: u64,
            share: u64,
        ) -> io::Result<Made> {
            // SAFETY: it touches nothing.
            unsafe { member.make(self, length, share, || spare) }
        }
    }

    fn until(what: &str, mut seen: impl FnMut() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !seen() {
            assert!(Instant::now() < until, "not seen: {what}");
            thread::yield_now();
        }
    }

    fn is_helper() -> bool {
        let thread = thread::current();
        thread
            .name()
            .is_some_and(|name| name.starts_with("polyrail-copy-"))
    }

    /// A task whose leader has done no piece before a helper is at one. What helpers do with theirs is `piece`.
    fn helped(piece: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Told {
        let is_helped = AtomicBool::new(false);
        Told::new(move |_| {
            if is_helper() {
                is_helped.store(true, SeqCst);
                return piece();
            }
            until("help", || is_helped.load(SeqCst));
            Ok(())
        })
    }

    /// One of so many threads.
    fn member(threads: usize) -> Member<Told> {
        Arc::new(CopyThreads::of(threads)).member()
    }

    quickcheck! {
        fn pieces_cover_the_beginning_of_a_copy_once(copies: Vec<(u32, u32)>, threads: u8) -> bool {
            let threads = 1 + u64::from(threads) % 4;
            let member = member(threads as usize);
            copies.into_iter().all(|(length, share)| {
                let length = u64::from(length) % (6 << 20);
                let share = 1 + u64::from(share) % (3 << 20);
                let pieces = Arc::new(Mutex::new(Vec::new()));
                let noted = pieces.clone();
                let task = Told::new(move |range| {
                    noted.lock().unwrap().push((range, is_helper()));
                    Ok(())
                });
                let made = task.make(&member, length, share).unwrap();
                let mut pieces = pieces.lock().unwrap();
                let own = pieces.iter().filter(|(_, helper)| !helper);
                let own: u64 = own.map(|(range, _)| range.end - range.start).sum();
                pieces.sort_by_key(|(range, _)| range.start);
                let mut end = 0;
                let follow = pieces.iter().all(|(range, _)| {
                    let follows = range.start == end;
                    end = range.end;
                    follows
                });
                let counted = own.max(made.bytes / threads) == made.own && made.own <= share;
                // All of it, or what the leader's share allows.
                let far = end == made.bytes && (end == length || made.own == share);
                follow && counted && far
            })
        }
    }

    #[test]
    fn helpers_start_with_the_first_large_copy_and_end_with_the_engine() {
        // (threads, length, spare processors, helpers then)
        let cases = [
            (1, LONG, 9, 0),
            (3, WAKE_BYTES_MIN - 1, 9, 0),
            (2, WAKE_BYTES_MIN, 9, 1),
            (3, LONG, 9, 2),
            (3, LONG, 1, 1),
            (3, LONG, 0, 0),
        ];
        for (threads, length, spare, helpers) in cases {
            let member = member(threads);
            let task = Told::new(|_| Ok(()));
            let made = task.make_beside(spare, &member, length, LONG).unwrap();
            assert_eq!(
                (
                    made.bytes,
                    member.copy_threads.helpers.lock().unwrap().threads.len()
                ),
                (length, helpers),
                "{threads} {length}"
            );
            let common = Arc::downgrade(&member.copy_threads.common);
            drop(member);
            assert_eq!(common.strong_count(), 0, "{threads} {length}");
        }
    }

    #[test]
    fn no_more_threads_than_processors_copy() {
        let processors = thread::available_parallelism().unwrap().get();
        assert_eq!(
            CopyThreads::<Told>::new(64).common.threads,
            processors.min(64)
        );
        assert_eq!(CopyThreads::<Told>::new(0).common.threads, 1);
    }

    #[test]
    fn a_leader_does_its_share_and_says_how_far_that_has_come() {
        let member = member(2);
        let common = member.copy_threads.common.clone();
        // A helper that is at its first piece until the leader has done its share.
        let task = helped(move || {
            until("the share", || common.cursor.load(SeqCst) == CLOSED);
            Ok(())
        });
        let share = CUT_BYTES_MIN + 1;
        let made = task.make(&member, LONG, share).unwrap();
        assert_eq!(made.own, share);
        let others = made.bytes - share;
        assert!(
            (PIECE_BYTES_MIN..=PIECE_BYTES_MAX).contains(&others),
            "{others}"
        );
    }

    #[test]
    fn a_leader_waits_for_a_helper_however_long_it_takes() {
        let member = member(2);
        let common = member.copy_threads.common.clone();
        let left = Arc::new(AtomicBool::new(false));
        let leaves = left.clone();
        let task = helped(move || {
            until("a leader that sleeps", || common.lock().leader_sleeps);
            leaves.store(true, SeqCst);
            Ok(())
        });
        task.make(&member, LONG, LONG).unwrap();
        assert!(left.load(SeqCst));
    }

    #[test]
    fn what_fails_or_panics_at_a_helper_fails_at_the_leader() {
        let member = member(2);
        let fails = helped(|| Err(io::ErrorKind::UnexpectedEof.into()));
        let error = fails.make(&member, LONG, LONG).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let panics = helped(|| panic!("as a test wants it"));
        let error = panics.make(&member, LONG, LONG).unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
        // The next one is made without it.
        let made = Told::new(|_| Ok(())).make(&member, LONG, LONG).unwrap();
        assert_eq!(made.bytes, LONG);
    }

    #[test]
    fn what_fails_or_panics_at_the_leader_ends_when_no_helper_is_at_it() {
        for panics in [true, false] {
            let member = member(2);
            let common = member.copy_threads.common.clone();
            let [helps, left] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
            let leaves = left.clone();
            let task = Told::new(move |_| {
                if is_helper() {
                    helps.store(true, SeqCst);
                    until("its end", || common.lock().job.is_none());
                    leaves.store(true, SeqCst);
                    return Ok(());
                }
                until("help", || helps.load(SeqCst));
                match panics {
                    true => panic!("as a test wants it"),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                }
            });
            let make = || task.make(&member, LONG, LONG);
            let ended = catch_unwind(AssertUnwindSafe(make));
            assert!(left.load(SeqCst), "{panics}");
            assert_eq!(ended.is_err(), panics);
            assert!(ended.is_err() || ended.is_ok_and(|made| made.is_err()));
            let made = Told::new(|_| Ok(())).make(&member, LONG, LONG).unwrap();
            assert_eq!(made.bytes, LONG, "{panics}");
        }
    }

    #[test]
    fn who_finds_the_threads_taken_goes_on_alone() {
        let member = member(3);
        let others = Arc::new(AtomicUsize::new(0));
        let noted = others.clone();
        let alone = Told::new(move |_| {
            noted.fetch_add(usize::from(is_helper()), SeqCst);
            Ok(())
        });
        thread::scope(|scope| {
            let go = Arc::new(AtomicBool::new(false));
            let gone = go.clone();
            let first = helped(move || {
                until("the other leader", || gone.load(SeqCst));
                Ok(())
            });
            let (member, other) = (&member, member.copy_threads.member());
            let first = scope.spawn(move || first.make(member, LONG, LONG));
            until("a helper", || {
                member.copy_threads.common.inside.load(SeqCst) > 0
            });
            let made = alone.make(&other, LONG, CUT_BYTES_MIN).unwrap();
            assert_eq!((made.bytes, made.own), (CUT_BYTES_MIN, CUT_BYTES_MIN));
            go.store(true, SeqCst);
            assert_eq!(first.join().unwrap().unwrap().bytes, LONG);
        });
        assert_eq!(others.load(SeqCst), 0);
    }

    #[test]
    fn who_has_lost_time_with_helpers_goes_on_alone_for_a_while() {
        let second = 1_000_000_000;
        // (own bytes, nanoseconds that they took, others' bytes, nanoseconds that were waited then, helpers after it)
        let cases = [
            (1000, second, 1000, 0, 2),
            (1000, second, 1000, second, 2),
            (1000, second, 1000, second + 1, 0),
            (2000, second, 100, second / 10, 0),
            (1000, second, 0, 0, 2),
            (0, 0, 1000, second, 2),
        ];
        for (own, nanos, others, waited, helpers) in cases {
            let member = member(3);
            let common = &member.copy_threads.common;
            common.judge(own, nanos, others, waited);
            let found = Busy::new(common, member.number).helpers();
            assert_eq!(found, helpers, "{own} in {nanos}, {others} and {waited}");
        }
    }

    #[test]
    fn a_processor_is_left_to_each_who_copies_or_has_just_now() {
        let member = member(3);
        let helpers = |by| Busy::new(&member.copy_threads.common, by).helpers();
        assert_eq!(helpers(0), 2);
        let until = Instant::now() + PATIENCE;
        // Unless this thread was away meanwhile.
        while helpers(1) != 1 {
            assert!(Instant::now() < until);
            helpers(0);
        }
        let (first, second) = (
            Busy::new(&member.copy_threads.common, 0),
            Busy::new(&member.copy_threads.common, 1),
        );
        assert!(first.helpers() >= 1 && second.helpers() <= 1);
        assert_eq!(Busy::new(&member.copy_threads.common, 2).helpers(), 0);
        drop((first, second));
        assert_eq!(helpers(1), 2, "the second one was the last");
    }
}
