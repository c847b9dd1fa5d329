//! `pread` and `pwrite` on threads, for machines that forbid io_uring.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::endpoint::{Answered, Driver, Transfer};
use crate::sys;
use crate::{END_MAX, TRANSFERS_MAX};

/// Threads for each worker: as many pieces are read or written at a time.
const THREADS: usize = 4;

/// The threads of one worker. They start with the first transfer.
pub(crate) struct Threads {
    worker: u16,
    started: bool,
    shared: Arc<Shared>,
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
            if state.over && state.busy == 0 {
                self.idle.notify_all();
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
            started: false,
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                asked: Condvar::new(),
                idle: Condvar::new(),
                told: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            }),
        })
    }

    /// Starts the threads. Fewer than there should be will do.
    fn start(&mut self) {
        self.started = true;
        for number in 0..THREADS {
            let shared = self.shared.clone();
            let started = std::thread::Builder::new()
                .name(format!("polyrail-pread-{}.{number}", self.worker))
                .spawn(move || shared.serve());
            if let Err(error) = started {
                log::error!("cannot start a thread that reads and writes files: {error}");
                self.started = number > 0;
                return;
            }
        }
    }
}

impl Driver for Threads {
    fn ask(&mut self, slot: u32, transfer: Transfer) {
        if !self.started {
            self.start();
        }
        self.shared.lock().asked.push_back((slot, transfer));
        self.shared.asked.notify_one();
    }

    fn flush(&mut self) {}

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
