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

/// Of all bytes that the kernel is asked for, one system call hands over one of so many shares, or one entry. The kernel
/// makes one request to the disk of neighbours that it is told of by one call. They end together, what the program asks for
/// then comes together again, and the disk would have one request at a time.
const SHARES: u64 = 4;

/// How long it sleeps at a time.
const LOOK: Duration = Duration::from_millis(10);

pub(crate) struct Ring {
    ring: IoUring,
    /// What the kernel has been asked for, or is to be, by slot.
    asked: Vec<Option<Transfer>>,
    /// Bytes of all that.
    asked_bytes: u64,
    /// Slots with what has no entry in the ring yet, in order, and bytes of each.
    untold: Vec<(u32, u32)>,
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
            asked_bytes: 0,
            untold: Vec::with_capacity(TRANSFERS_MAX),
            unsubmitted: false,
        })
    }

    /// Puts an entry into the ring.
    fn tell(&mut self, slot: u32) {
        let Some(transfer) = &self.asked[slot as usize] else {
            return;
        };
        let entry = entry(slot, transfer);
        // SAFETY: memory and file are kept by the transfer, which stays in its row until the completion.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // There are as many entries as slots.
        assert!(pushed.is_ok(), "the submission queue is full");
        self.unsubmitted = true;
    }

    /// Hands the kernel what is in the ring.
    fn submit(&mut self) {
        if !self.unsubmitted {
            return;
        }
        // The kernel may have no memory just now, or be interrupted: the next poll tries again.
        if let Err(error) = self.ring.submit() {
            log::debug!("io_uring_enter: {error}");
        }
        self.unsubmitted = !self.ring.submission().is_empty();
    }

    fn in_flight(&self) -> bool {
        self.asked.iter().any(Option::is_some)
    }
}

/// How many of these slots, each with its bytes, the next system call is about. At least one, if there is one.
fn together(asked_bytes: u64, untold: &[(u32, u32)]) -> usize {
    let mut left = asked_bytes / SHARES;
    let fit = untold.iter().take_while(|(_, bytes)| {
        let rest = left.checked_sub(u64::from(*bytes));
        left = rest.unwrap_or(left);
        rest.is_some()
    });
    fit.count().max(1).min(untold.len())
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
        let bytes = transfer.call().bytes;
        self.untold.push((slot, bytes));
        self.asked_bytes += u64::from(bytes);
        let row = &mut self.asked[slot as usize];
        debug_assert!(row.is_none(), "a slot has one transfer");
        *row = Some(transfer);
    }

    fn flush(&mut self) {
        let untold = std::mem::take(&mut self.untold);
        let mut rest = &untold[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(together(self.asked_bytes, rest));
            now.iter().for_each(|(slot, _)| self.tell(*slot));
            self.submit();
            rest = later;
        }
        self.submit();
        self.untold = untold;
        self.untold.clear();
    }

    fn answers(&mut self, limit: usize, to: &mut Vec<Answered>) {
        for completion in self.ring.completion().take(limit) {
            let slot = completion.user_data() as u32;
            let row = self.asked.get_mut(slot as usize);
            if let Some(transfer) = row.and_then(Option::take) {
                self.asked_bytes -= u64::from(transfer.call().bytes);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_told_of_a_share_at_a_time() {
        const BLOCK: u32 = 64 << 10;
        let all = |asked_bytes: u64, sizes: &[u32]| {
            let untold: Vec<_> = sizes.iter().map(|bytes| (0, *bytes)).collect();
            let (mut rest, mut calls) = (&untold[..], Vec::new());
            while !rest.is_empty() {
                let count = together(asked_bytes, rest);
                calls.push(count);
                rest = &rest[count..];
            }
            calls
        };
        let mib = 1 << 20;
        // (name, bytes under way with these, bytes of each entry, entries of each call)
        let cases: [(_, u64, &[u32], &[usize]); 6] = [
            ("nothing", mib, &[], &[]),
            ("the first 16 of 16", mib, &[BLOCK; 16], &[4, 4, 4, 4]),
            ("four more of 16", mib, &[BLOCK; 4], &[4]),
            ("one alone", BLOCK.into(), &[BLOCK], &[1]),
            ("two alone", 2 * u64::from(BLOCK), &[BLOCK; 2], &[1, 1]),
            (
                "a long one among short ones",
                mib,
                &[BLOCK, 700 << 10, BLOCK, BLOCK],
                &[1, 1, 2],
            ),
        ];
        for (name, asked_bytes, sizes, calls) in cases {
            assert_eq!(all(asked_bytes, sizes), calls, "{name}");
        }
        assert_eq!(together(mib, &[]), 0);
    }
}
