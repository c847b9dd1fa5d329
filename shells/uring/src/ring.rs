//! io_uring: one ring for each worker.
//!
//! # Safety
//!
//! The kernel reads and writes memory on its own between the submission of an entry and its completion queue entry. Each
//! entry is made of a [`Transfer`], which keeps its memory pinned and its file open, and which stays in `asked` under the
//! entry's number until that completion has been seen. Who drops the ring waits for all of them, or leaks them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, squeue, types};
use polyrail_core::time::Duration;
use polyrail_core::work::Op;
use polyrail_transport::timespec;
use rustix::event::{PollFd, PollFlags};

use crate::endpoint::{Answered, Driver, Transfer, answer};
use crate::{END_MAX, TRANSFERS_MAX};

/// How long it sleeps at a time.
const LOOK: Duration = Duration::from_millis(10);

pub(crate) struct Ring {
    ring: IoUring,
    /// What the kernel has been asked for, by slot.
    asked: Vec<Option<Transfer>>,
    /// Entries that the kernel has not taken yet.
    unsubmitted: bool,
}

impl Ring {
    /// Fails where io_uring is forbidden.
    ///
    /// The kernel interrupts system calls of a thread that has made a ring, or asked for something by it, when the ring
    /// goes. So a thread of our own makes it: programs without files are never interrupted.
    pub(crate) fn new() -> io::Result<Self> {
        let maker = std::thread::Builder::new().name("polyrail-ring".into());
        let made = maker.spawn(Self::make)?.join();
        made.unwrap_or_else(|_| {
            Err(io::Error::other(
                "the thread that makes a ring has panicked",
            ))
        })
    }

    fn make() -> io::Result<Self> {
        let entries = TRANSFERS_MAX as u32;
        // A child of a fork has no part in it.
        let ring = IoUring::builder().dontfork().build(entries)?;
        Ok(Self {
            ring,
            asked: (0..TRANSFERS_MAX).map(|_| None).collect(),
            unsubmitted: false,
        })
    }

    fn in_flight(&self) -> bool {
        self.asked.iter().any(Option::is_some)
    }
}

fn entry(slot: u32, transfer: &Transfer) -> squeue::Entry {
    let call = transfer.call();
    let fd = types::Fd(call.fd);
    let entry = match call.op {
        Op::Read => opcode::Read::new(fd, call.address, call.bytes)
            .offset(call.offset)
            .build(),
        Op::Write => opcode::Write::new(fd, call.address, call.bytes)
            .offset(call.offset)
            .build(),
    };
    entry.user_data(slot.into())
}

impl Driver for Ring {
    fn ask(&mut self, slot: u32, transfer: Transfer) {
        let entry = entry(slot, &transfer);
        let row = &mut self.asked[slot as usize];
        debug_assert!(row.is_none(), "a slot has one transfer");
        *row = Some(transfer);
        // SAFETY: memory and file are kept by the transfer, which stays in its row until the completion.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // There are as many entries as slots.
        assert!(pushed.is_ok(), "the submission queue is full");
        self.unsubmitted = true;
    }

    fn flush(&mut self) {
        if !self.unsubmitted {
            return;
        }
        // The kernel may have no memory just now, or be interrupted: the next poll tries again.
        if let Err(error) = self.ring.submit() {
            log::debug!("io_uring_enter: {error}");
        }
        self.unsubmitted = !self.ring.submission().is_empty();
    }

    fn answers(&mut self, limit: usize, to: &mut Vec<Answered>) {
        for completion in self.ring.completion().take(limit) {
            let slot = completion.user_data() as u32;
            let row = self.asked.get_mut(slot as usize);
            if let Some(transfer) = row.and_then(Option::take) {
                let answer = answer(completion.result());
                to.push(Answered {
                    slot,
                    transfer,
                    answer,
                });
            }
        }
    }

    fn is_behind(&self) -> bool {
        self.unsubmitted
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the ring's, which lives as long as this borrow of it.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let start = std::time::Instant::now();
        let mut answered = Vec::new();
        while self.in_flight() && start.elapsed() < END_MAX {
            self.flush();
            let mut ring = [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)];
            let _ = rustix::event::poll(&mut ring, Some(&timespec(LOOK)));
            self.answers(TRANSFERS_MAX, &mut answered);
            answered.clear();
        }
        if self.in_flight() {
            log::error!("a disk does not answer: what it was asked for keeps its memory and file");
            self.asked.drain(..).for_each(std::mem::forget);
        }
    }
}
