//! `pread` and `pwrite` on threads, for machines that forbid io_uring.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use rustix::event::{EventfdFlags, eventfd};

use crate::endpoint::{Answered, Driver};
use crate::sys;
use crate::transfer::Transfer;
use crate::{END_MAX, TRANSFERS_MAX};

/// Threads for each worker: as many pieces are read or written at a time.
const THREADS: usize = 4;

/// The threads of one worker. They start with the first transfer, or as soon after it as the system has a thread to spare.
pub(crate) struct Threads {
    worker: u16,
    /// Threads that there are.
    started: usize,
    /// It has been said that there is none.
    warned: bool,
    start: Start,
    shared: Arc<Shared>,
}

/// Starts a thread that serves.
type Start = fn(Builder, Arc<Shared>) -> io::Result<()>;

fn start(builder: Builder, shared: Arc<Shared>) -> io::Result<()> {
    builder.spawn(move || shared.serve()).map(drop)
}

struct Shared {
    state: Mutex<State>,
    /// There is something to do, or nobody wants anything any more.
    asked: Condvar,
    /// No thread reads or writes any more, and nobody wants anything.
    idle: Condvar,
    /// Readable while there are answers.
    told: OwnedFd,
}

struct State {
    asked: VecDeque<(u32, Transfer)>,
    /// Threads that read or write now.
    busy: usize,
    answered: Vec<Answered>,
    over: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread, until nobody wants anything any more.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            let idle = |state: &mut State| state.asked.is_empty() && !state.over;
            let woken = self.asked.wait_while(state, idle);
            state = woken.unwrap_or_else(PoisonError::into_inner);
            let Some((slot, transfer)) = state.asked.pop_front() else {
                return;
            };
            state.busy += 1;
            drop(state);
            let answer = sys::carry_out(&transfer);
            state = self.lock();
            state.busy -= 1;
            if state.over {
                // Memory and file are let go of now, whatever other threads still wait for.
                drop(transfer);
                self.idle.notify_all();
                continue;
            }
            state.answered.push(Answered {
                slot,
                transfer,
                answer,
            });
            if state.answered.len() == 1 {
                let _ = rustix::io::write(&self.told, &1_u64.to_ne_bytes());
            }
        }
    }
}

impl Threads {
    pub(crate) fn new(worker: u16) -> io::Result<Self> {
        let state = State {
            asked: VecDeque::with_capacity(TRANSFERS_MAX),
            answered: Vec::with_capacity(TRANSFERS_MAX),
            busy: 0,
            over: false,
        };
        Ok(Self {
            worker,
            started: 0,
            warned: false,
            start,
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                asked: Condvar::new(),
                idle: Condvar::new(),
                told: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            }),
        })
    }

    /// Starts the threads, unless there are some. Fewer than there should be will do.
    fn start(&mut self) {
        for number in self.started..THREADS {
            let name = format!("polyrail-pread-{}.{number}", self.worker);
            if let Err(error) = (self.start)(Builder::new().name(name), self.shared.clone()) {
                if !std::mem::replace(&mut self.warned, true) {
                    log::error!("cannot start a thread that reads and writes files: {error}");
                }
                return;
            }
            self.started += 1;
        }
    }
}

impl Driver for Threads {
    fn ask(&mut self, slot: u32, transfer: Transfer) {
        self.shared.lock().asked.push_back((slot, transfer));
        self.shared.asked.notify_one();
    }

    fn flush(&mut self) {
        if self.is_behind() {
            self.start();
        }
    }

    fn is_behind(&self) -> bool {
        self.started == 0 && !self.shared.lock().asked.is_empty()
    }

    fn answers(&mut self, limit: usize, to: &mut Vec<Answered>) {
        let mut state = self.shared.lock();
        let count = state.answered.len().min(limit);
        to.extend(state.answered.drain(..count));
        if count > 0 && state.answered.is_empty() {
            let _ = rustix::io::read(&self.shared.told, &mut [0; 8]);
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.shared.told.as_fd()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.asked.clear();
        state.over = true;
        self.shared.asked.notify_all();
        let busy = |state: &mut State| state.busy > 0;
        let waited = self.shared.idle.wait_timeout_while(state, END_MAX, busy);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.busy > 0 {
            log::error!("a disk does not answer: what it was asked for keeps its memory and file");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write;

    use polyrail_core::time::Instant;
    use polyrail_core::work::Op;
    use polyrail_transport::memory::{Access, Region};

    use super::*;
    use crate::file::FileRange;
    use crate::fixed::{Memory, OpenFile};

    thread_local! {
        /// Threads that the system still refuses.
        static REFUSED: Cell<u32> = const { Cell::new(0) };
    }

    fn start_later(builder: Builder, shared: Arc<Shared>) -> io::Result<()> {
        match REFUSED.get() {
            0 => start(builder, shared),
            left => {
                REFUSED.set(left - 1);
                Err(io::ErrorKind::WouldBlock.into())
            }
        }
    }

    /// What had been asked for once waited for the next transfer, and its fence for ever.
    #[test]
    fn what_waits_for_a_thread_is_carried_out_once_there_is_one() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"bytes").unwrap();
        let file = Arc::new(OpenFile::new(Arc::new(FileRange::of(file, 5))));
        let region = Arc::new(Region::allocate(5, Access::Local).unwrap());
        let memory = Arc::new(Memory::new(region.clone()));
        let mut threads = Threads::new(0).unwrap();
        threads.start = start_later;
        REFUSED.set(2);
        let mut transfer = Transfer::new((Op::Read, 5), (&memory, 0), (&file, 0)).unwrap();
        assert!(transfer.begin(Instant::ZERO));
        assert!(!threads.is_behind());
        threads.ask(3, transfer);
        for _ in 0..2 {
            threads.flush();
            assert!(threads.is_behind(), "it is to be tried again");
        }
        threads.flush();
        assert!(!threads.is_behind());
        let mut answered = Vec::new();
        while answered.is_empty() {
            threads.answers(1, &mut answered);
            std::thread::yield_now();
        }
        assert_eq!((answered[0].slot, answered[0].answer), (3, Ok(5)));
        let mut bytes = [0; 5];
        region.load(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"bytes");
    }
}
