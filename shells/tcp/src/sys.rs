//! The system calls that move bytes between a socket and registered memory.
//!
//! # Safety
//!
//! The contract is that of [`polyrail_transport::memory`]: registered memory is only touched while an
//! [`Entered`] of its region lives, by the kernel or by a raw copy, and no reference to it is ever made.
//! Each function here holds what it entered for one system call and no longer. No call blocks, so a revoked
//! region is let go at once, whatever the peer does. Addresses come from [`Entered::pointer`], which checks
//! the whole range, and from ordinary borrows that outlive the call.
//!
//! The calls are made directly: the C library's are points where a thread can be cancelled, which costs two atomic
//! operations each.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::ptr;

use polyrail_core::work::POST_MAX;
use polyrail_transport::memory::{Entered, Region};
use rustix::net::RecvFlags;

/// Messages that one [`send`] takes.
pub(crate) const MESSAGES_MAX: usize = POST_MAX;

/// Different regions that one [`send`] holds.
const REGIONS_MAX: usize = 8;

/// Payload bytes that one [`send`] offers to the kernel.
const SEND_BYTES_MAX: usize = 1 << 20;

const NOTHING: libc::iovec = libc::iovec {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

/// A header and a payload for each message.
type Slots = heapless::Vec<libc::iovec, { 2 * MESSAGES_MAX }>;

/// Why a call moved nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Halt {
    /// The socket has nothing to give, or no room.
    WouldBlock,
    /// The connection has ended.
    Over,
    /// The memory may not be touched: revoked, or not mapped as its owner said.
    Memory,
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Self::WouldBlock,
            Some(libc::EFAULT) => Self::Memory,
            _ => Self::Over,
        }
    }
}

/// Registered memory, as source or destination.
#[derive(Clone, Copy)]
pub(crate) struct Range<'a> {
    pub(crate) region: &'a Region,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

/// A header and the payload that follows it.
pub(crate) struct Message<'a, const HEADER: usize> {
    pub(crate) header: [u8; HEADER],
    pub(crate) payload: Option<Range<'a>>,
}

/// Sends several messages with one call, without the first `skip` bytes, which went before. Gives the bytes
/// that the socket took.
///
/// Memory that may not be touched fails the call only for the first message; later ones wait for their turn.
pub(crate) fn send<const HEADER: usize>(
    stream: &TcpStream,
    messages: &[Message<'_, HEADER>],
    skip: usize,
) -> Result<usize, Halt> {
    let mut slots = Slots::new();
    let mut entered = heapless::Vec::<(&Region, Entered<'_>), REGIONS_MAX>::new();
    let mut room = SEND_BYTES_MAX;
    let mut skip = skip;
    for message in messages.iter().take(MESSAGES_MAX) {
        if room == 0 {
            break;
        }
        let payload = match message.payload {
            None => NOTHING,
            Some(range) => {
                let sent = skip.saturating_sub(HEADER);
                match slot(&mut entered, range, sent as u64, room) {
                    Some(payload) => payload,
                    None if slots.is_empty() => return Err(Halt::Memory),
                    None => break,
                }
            }
        };
        let header = &message.header[skip.min(HEADER)..];
        let header = libc::iovec {
            iov_base: header.as_ptr().cast_mut().cast(),
            iov_len: header.len(),
        };
        // There is room for two of each message.
        for part in [header, payload] {
            if part.iov_len > 0 {
                let _ = slots.push(part);
            }
        }
        skip = 0;
        // A payload that `room` cut short used it up, so nothing follows it.
        room -= payload.iov_len;
    }
    let call = header_of(&mut slots);
    // SAFETY: the slots name headers that `messages` keeps alive and ranges checked by `Entered::pointer`
    // whose regions `entered` holds until after the call; the kernel only reads them.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_sendmsg,
            stream.as_raw_fd(),
            &raw const call,
            libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
        )
    };
    drop(entered);
    answer(sent)
}

/// Receives into `before`, then into memory, and what comes after `range` is full into `rest`. Gives the bytes
/// received, of all together.
pub(crate) fn receive(
    stream: &TcpStream,
    before: &mut [u8],
    range: Range<'_>,
    rest: &mut [u8],
) -> Result<usize, Halt> {
    let entered = range.region.enter().ok_or(Halt::Memory)?;
    let length = range.length as usize;
    let target = entered
        .pointer(range.offset, length as u64)
        .ok_or(Halt::Memory)?;
    let mut slots = [
        libc::iovec {
            iov_base: before.as_mut_ptr().cast(),
            iov_len: before.len(),
        },
        libc::iovec {
            iov_base: target.cast(),
            iov_len: length,
        },
        libc::iovec {
            iov_base: rest.as_mut_ptr().cast(),
            iov_len: rest.len(),
        },
    ];
    let mut call = header_of(&mut slots);
    // SAFETY: the middle slot was checked by `Entered::pointer` and `entered` lives until after the call; the
    // others are exclusive borrows.
    let received = unsafe {
        libc::syscall(
            libc::SYS_recvmsg,
            stream.as_raw_fd(),
            &raw mut call,
            libc::MSG_DONTWAIT,
        )
    };
    drop(entered);
    match answer(received)? {
        0 => Err(Halt::Over),
        bytes => Ok(bytes),
    }
}

/// Receives into memory of this crate's own. Gives the bytes received.
pub(crate) fn receive_own(stream: &TcpStream, bytes: &mut [u8]) -> Result<usize, Halt> {
    match rustix::net::recv(stream, bytes, RecvFlags::DONTWAIT) {
        Ok((0, _)) => Err(Halt::Over),
        Ok((received, _)) => Ok(received),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// Copies bytes that were received together with a header to where they belong.
pub(crate) fn copy(bytes: &[u8], region: &Region, offset: u64) -> Result<(), Halt> {
    let entered = region.enter().ok_or(Halt::Memory)?;
    let target = entered
        .pointer(offset, bytes.len() as u64)
        .ok_or(Halt::Memory)?;
    // SAFETY: the range was checked by `Entered::pointer` and `entered` lives until after the copy; `bytes`
    // is this crate's own buffer, which is never registered memory.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    Ok(())
}

/// The rest of a range, at most `room` bytes of it; enters its region unless it was already. `None` if it
/// may not be touched, or too many regions are entered.
///
/// A region is never entered twice: its lock would wait for a [`Region::revoke`] that waits for us.
fn slot<'a>(
    entered: &mut heapless::Vec<(&'a Region, Entered<'a>), REGIONS_MAX>,
    range: Range<'a>,
    sent: u64,
    room: usize,
) -> Option<libc::iovec> {
    let known = entered
        .iter()
        .position(|(region, _)| ptr::eq(*region, range.region));
    let known = match known {
        Some(known) => known,
        None if entered.is_full() => return None,
        None => {
            entered.push((range.region, range.region.enter()?)).ok()?;
            entered.len() - 1
        }
    };
    let left = u64::from(range.length).checked_sub(sent)?;
    let base = entered[known].1.pointer(range.offset + sent, left)?;
    Some(libc::iovec {
        iov_base: base.cast(),
        iov_len: room.min(left as usize),
    })
}

fn header_of(slots: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a `msghdr` of zeros is one without name, slots and control data.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = slots.as_mut_ptr();
    header.msg_iovlen = slots.len() as _;
    header
}

fn answer(moved: libc::c_long) -> Result<usize, Halt> {
    usize::try_from(moved).map_err(|_| io::Error::last_os_error().into())
}
