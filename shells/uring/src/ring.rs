//! io_uring: one ring for each worker.
//!
//! # Safety
//!
//! The kernel reads and writes memory on its own between the submission of an entry and its completion queue entry. Each
//! entry is made of a [`Transfer`], which keeps its memory pinned and its file open, and which stays in `asked` under the
//! entry's number until that completion has been seen. Who drops the ring waits for all of them for a while, and then leaves
//! ring and transfers to a thread that waits for the rest ([`Left`]).
//!
//! What has a row of a table of the ring (`fixed`) is named by it in the entries. The table's owner is the kernel, which keeps
//! the file open, and the memory's pages, whatever becomes of this process's; the rows are given back once no transfer
//! names them.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, squeue, types};
use polyrail_core::time::Duration;
use polyrail_core::work::Op;
use polyrail_transport::timespec;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::endpoint::{Answered, Driver, answer};
use crate::fixed::{Attached, Memory, OpenFile, ROWS, Table, regions_bytes_max};
use crate::transfer::Transfer;
use crate::turns::Side;
use crate::{END_MAX, TRANSFERS_MAX};

/// Of all bytes that the kernel is asked for, one system call hands over one of so many shares, or one entry. The kernel
/// makes one request to the disk of neighbours that it is told of by one call. They end together, what the program asks for
/// then comes together again, and the disk would have one request at a time.
const SHARES: u64 = 4;

/// How long it sleeps at a time.
const LOOK: Duration = Duration::from_millis(10);

/// How long whoever waits for what is left sleeps at a time.
const LEFT_LOOK: Duration = Duration::from_secs(1);

pub(crate) struct Ring {
    /// Taken when this is dropped.
    ring: ManuallyDrop<IoUring>,
    /// What the kernel has been asked for, or is to be, by slot.
    asked: Vec<Option<Asked>>,
    /// Bytes of all that.
    asked_bytes: u64,
    /// Slots with what has no entry in the ring yet, in order, and bytes of each.
    untold: Vec<(u32, u32)>,
    /// Entries that the kernel has not taken yet.
    unsubmitted: bool,
    /// Rows of open files.
    files: Table,
    /// Rows of memory.
    buffers: Table,
    /// Bytes of memory that may get a row beside what has one.
    room_bytes: u64,
    /// What is detached and has rows that some transfer may still use.
    leaving: Vec<Attached>,
}

/// A transfer, and the rows by which the kernel is told what it is about.
struct Asked {
    transfer: Transfer,
    file: Option<u32>,
    buffer: Option<u16>,
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
        // Kernels before 5.19 have no empty rows.
        let files = ring.submitter().register_files_sparse(ROWS);
        let buffers = ring.submitter().register_buffers_sparse(ROWS);
        Ok(Self {
            ring: ManuallyDrop::new(ring),
            files: Table::new("files", files),
            buffers: Table::new("buffers", buffers),
            room_bytes: regions_bytes_max(),
            leaving: Vec::new(),
            asked: (0..TRANSFERS_MAX).map(|_| None).collect(),
            asked_bytes: 0,
            untold: Vec::with_capacity(TRANSFERS_MAX),
            unsubmitted: false,
        })
    }

    /// Puts an entry into the ring.
    fn tell(&mut self, slot: u32) {
        let Some(asked) = &self.asked[slot as usize] else {
            return;
        };
        let entry = entry(slot, asked);
        // SAFETY: memory and file, and rows that they have, are kept by the transfer, which stays in its slot until the
        // completion.
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
        // The kernel may have no memory just now, or be interrupted: a later poll tries again.
        if let Err(error) = self.ring.submit() {
            log::debug!("io_uring_enter: {error}");
        }
        self.unsubmitted = !self.ring.submission().is_empty();
    }

    fn in_flight(&self) -> bool {
        self.asked.iter().any(Option::is_some)
    }

    /// The row of the descriptor that is for this side. It gets one if there is room.
    fn file_row(&mut self, file: &OpenFile, side: Side) -> Option<u32> {
        let submitter = self.ring.submitter();
        self.files.row(&file.rows[side as usize], |row| {
            let (fd, _) = file.range.place(side, 0);
            submitter.register_files_update(row, &[fd.as_raw_fd()])?;
            Ok(())
        })
    }

    /// The row of memory to or from which so many bytes go. It gets one if there is room and it is due.
    fn buffer_row(&mut self, memory: &Memory, bytes: u32) -> Option<u16> {
        let is_empty = memory.row.get().is_none() && self.buffers.has_room();
        if is_empty && memory.is_due(bytes, self.room_bytes) {
            let (region, submitter) = (&memory.region, self.ring.submitter());
            let pages = libc::iovec {
                iov_base: region.base().as_ptr().cast(),
                iov_len: region.bytes() as usize,
            };
            let filled = self.buffers.row(&memory.row, |row| {
                // SAFETY: `memory` owns the region, whose memory is mapped as long as it lives. What is in the row stays
                // until `let_go`, which has `memory`.
                unsafe { submitter.register_buffers_update(row, &[pages], None) }
            });
            self.room_bytes -= filled.map_or(0, |_| region.bytes());
        }
        memory.usable_row().map(|row| row as u16)
    }

    /// Whether the kernel has made tables for it.
    #[cfg(test)]
    pub(crate) fn has_tables(&self) -> bool {
        self.files.has_room() && self.buffers.has_room()
    }

    /// Gives the rows back of what is detached and idle.
    fn let_go(&mut self) {
        let idle = |attached: &mut Attached| attached.is_idle();
        let gone: Vec<_> = self.leaving.extract_if(.., idle).collect();
        let submitter = self.ring.submitter();
        for attached in gone {
            match attached {
                Attached::File(file) => file.rows.iter().for_each(|row| {
                    let empty = |row| submitter.register_files_update(row, &[-1]).map(drop);
                    self.files.give_back(row, empty);
                }),
                Attached::Memory(memory) => self.buffers.give_back(&memory.row, |row| {
                    let none = libc::iovec {
                        iov_base: std::ptr::null_mut(),
                        iov_len: 0,
                    };
                    // SAFETY: the row becomes empty: there is no memory to be kept.
                    unsafe { submitter.register_buffers_update(row, &[none], None) }?;
                    self.room_bytes += memory.region.bytes();
                    Ok(())
                }),
            }
        }
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

fn entry(slot: u32, asked: &Asked) -> squeue::Entry {
    let call = asked.transfer.call();
    // The two kinds of descriptors have no type in common that can be named.
    macro_rules! entry {
        ($fd:expr) => {
            match (call.op, asked.buffer) {
                (Op::Read, None) => opcode::Read::new($fd, call.address, call.bytes)
                    .offset(call.offset)
                    .build(),
                (Op::Write, None) => opcode::Write::new($fd, call.address, call.bytes)
                    .offset(call.offset)
                    .build(),
                (Op::Read, Some(row)) => opcode::ReadFixed::new($fd, call.address, call.bytes, row)
                    .offset(call.offset)
                    .build(),
                (Op::Write, Some(row)) => {
                    opcode::WriteFixed::new($fd, call.address, call.bytes, row)
                        .offset(call.offset)
                        .build()
                }
            }
        };
    }
    let entry = match asked.file {
        Some(row) => entry!(types::Fixed(row)),
        None => entry!(types::Fd(call.fd)),
    };
    entry.user_data(slot.into())
}

/// Whether an entry that names a row of memory may have been refused for that.
fn is_refusal(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::OPNOTSUPP | Errno::FAULT)
}

impl Driver for Ring {
    fn ask(&mut self, slot: u32, transfer: Transfer) {
        let bytes = transfer.call().bytes;
        self.untold.push((slot, bytes));
        self.asked_bytes += u64::from(bytes);
        let side = transfer.side();
        // The cache is copied from and to: pages need not be looked up for that.
        let buffer = match side {
            Side::Direct => self.buffer_row(transfer.memory(), bytes),
            Side::Cached => None,
        };
        let asked = Asked {
            file: self.file_row(transfer.file(), side),
            buffer,
            transfer,
        };
        let row = &mut self.asked[slot as usize];
        debug_assert!(row.is_none(), "a slot has one transfer");
        *row = Some(asked);
    }

    fn flush(&mut self) {
        if !self.leaving.is_empty() {
            self.let_go();
        }
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
            if let Some(asked) = row.and_then(Option::take) {
                let transfer = asked.transfer;
                self.asked_bytes -= u64::from(transfer.call().bytes);
                let mut answer = answer(completion.result());
                if asked.buffer.is_some() && answer.is_err_and(is_refusal) {
                    transfer.memory().refuse();
                    // At once, without the row.
                    answer = Err(Errno::INTR);
                }
                to.push(Answered {
                    slot,
                    transfer,
                    answer,
                });
            }
        }
    }

    fn detach(&mut self, attached: Attached) {
        self.leaving.push(attached);
        self.let_go();
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
        let asked = std::mem::take(&mut self.asked);
        // SAFETY: nobody uses it after that.
        let ring = unsafe { ManuallyDrop::take(&mut self.ring) };
        let left = Left { ring, asked };
        if left.in_flight() {
            log::error!(
                "a disk does not answer: what it was asked for keeps its memory and file until it does"
            );
            let waits = std::thread::Builder::new().name("polyrail-ring-end".into());
            if let Err(error) = waits.spawn(move || left.wait()) {
                log::error!("nobody waits for a disk: memory and file are kept for good: {error}");
            }
            return;
        }
        // The kernel ends a ring some time after its last descriptor is closed. Files and pages are let go of now. It
        // refuses where there is no table.
        let _ = left.ring.submitter().unregister_buffers();
        let _ = left.ring.submitter().unregister_files();
    }
}

/// What is left of a ring whose worker has ended while the kernel still reads or writes for it. Memory stays pinned and files
/// open until the kernel has answered; if nobody is there to hear that, for good.
struct Left {
    ring: IoUring,
    asked: Vec<Option<Asked>>,
}

impl Left {
    fn in_flight(&self) -> bool {
        self.asked.iter().any(Option::is_some)
    }

    /// Waits for all answers, however long that takes.
    fn wait(mut self) {
        while self.in_flight() {
            // What the kernel did not take before is asked for as well: only its answer lets go of it.
            let _ = self.ring.submit();
            // SAFETY: the descriptor is the ring's, which lives longer.
            let fd = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
            let mut ring = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            let _ = rustix::event::poll(&mut ring, Some(&timespec(LEFT_LOOK)));
            for completion in self.ring.completion() {
                let row = self.asked.get_mut(completion.user_data() as usize);
                drop(row.and_then(Option::take));
            }
        }
        log::info!("a disk has answered at last: its memory and files are free");
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let asked = self.asked.drain(..);
        asked.flatten().for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use polyrail_transport::memory::{Access, Region};

    use super::*;
    use crate::file::FileRange;

    #[test]
    fn what_nobody_waits_for_is_kept_for_good() {
        let Ok(mut ring) = Ring::new() else {
            return;
        };
        let (reader, _writer) = std::io::pipe().unwrap();
        let range = FileRange::of(std::os::fd::OwnedFd::from(reader).into(), 4096);
        let file = Arc::new(OpenFile::new(Arc::new(range)));
        let region = Arc::new(Region::allocate(4096, Access::Local).unwrap());
        let memory = Arc::new(Memory::new(region.clone()));
        let mut transfer = Transfer::new((Op::Read, 4), (&memory, 0), (&file, 0)).unwrap();
        assert!(transfer.begin(polyrail_core::time::Instant::ZERO));
        ring.ask(3, transfer);
        ring.flush();
        let asked = std::mem::take(&mut ring.asked);
        drop((ring, memory, file));
        let other = IoUring::new(1).unwrap();
        drop(Left { ring: other, asked });
        assert!(region.is_touched());
    }

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
