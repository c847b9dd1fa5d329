//! Copies between memories.
//!
//! # Safety
//!
//! Addresses of this process come from [`Entered`] regions or live mappings, with the lengths that were checked there.
//! Other processes may change the bytes meanwhile; they are only ever copied, never looked at.
//!
//! [`Entered`]: polyrail_transport::memory::Entered

use std::io;
use std::ops::{Range, RangeInclusive};
use std::os::fd::RawFd;

use crate::copy_threads::Task;
use crate::wire::Cookie;

/// Bytes that are copied at a time. Of longer ranges C libraries keep the caches clear, which is slower here: either
/// side has just used the bytes, or is about to.
const COPY_BYTES: usize = 512 << 10;

/// Ranges that one call of the kernel is given, at most. It takes 1,024.
const CALL_SPANS_MAX: usize = 256;

/// Memory of another process that the kernel looks up under one lock: what one of its page tables is of. Of two threads that copy
/// from or to there, each waits for the other at every page.
const LOCKED_BYTES: u64 = 2 << 20;

/// Fewer bytes are not kept apart from others for their lock.
const APART_BYTES_MIN: u64 = 32 << 10;

/// The lists of one call, with room for what proves whose memory it is.
type Ranges = heapless::Vec<libc::iovec, { CALL_SPANS_MAX + 1 }>;

/// Bytes that are copied in one go, among others of a [`Transfer`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Where they are, or are to be, in memory of this process.
    pub(crate) near: *mut u8,
    /// And at the other end, from where the [`Way`] begins.
    pub(crate) far: u64,
    /// Bytes of the spans before it.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl Span {
    /// The first and only one, of so many bytes.
    fn alone(near: *mut u8, bytes: u64) -> Self {
        Self {
            near,
            far: 0,
            start: 0,
            bytes,
        }
    }
}

/// Where the other end of a copy is, and how the bytes get there or come from there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// From here on in this process's address space.
    Load(*const u8),
    /// To here and on in this process's address space.
    Store(*mut u8),
    /// From this address of a process, by its number.
    Pull(i32, Cookie, u64),
    /// To this address of a process, by its number and its mark.
    Push(i32, u64, u64),
    /// From this address of a process, by a descriptor of its memory.
    Read(RawFd, u64),
    /// To this address of a process, by a descriptor of its memory.
    Write(RawFd, u64),
}

/// A copy that can be made piece by piece, by several threads at once.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transfer {
    /// One range.
    One(Way, *mut u8),
    /// These, one behind the other.
    Many(Way, *const [Span]),
}

// SAFETY: it only says where. Whoever has a piece copied promises that the memory is there.
unsafe impl Send for Transfer {}

impl Task for Transfer {
    /// Allowed while the bytes of this process are mapped, those at the destination for writing, the spans are there, and the
    /// descriptor is open.
    unsafe fn piece(&self, range: Range<u64>) -> io::Result<()> {
        // SAFETY: the caller's promise, for both.
        unsafe {
            match *self {
                Self::One(way, near) => way.carry(&[Span::alone(near, range.end)], range),
                Self::Many(way, spans) => way.carry(&*spans, range),
            }
        }
    }

    unsafe fn piece_end(&self, start: u64, bytes: u64, length: u64) -> u64 {
        let (Self::One(way, _) | Self::Many(way, _)) = *self;
        let range = start + APART_BYTES_MIN..=start + bytes;
        let seam = match (way, *self) {
            (Way::Pull(.., base) | Way::Push(.., base), Self::One(_, near)) => {
                seam(&[Span::alone(near, length)], base, range)
            }
            (Way::Pull(.., base) | Way::Push(.., base), Self::Many(_, spans)) => {
                // SAFETY: the caller's promise.
                seam(unsafe { &*spans }, base, range)
            }
            _ => None,
        };
        // What is left behind it is worth another piece.
        let is_early = |end: &u64| length.saturating_sub(*end) >= bytes / 2;
        let seam = seam.filter(is_early);
        seam.unwrap_or(length.min(start + bytes))
    }
}

/// The last byte in a range that has another [lock](LOCKED_BYTES) than the byte before it, or the first such byte behind the range.
fn seam(spans: &[Span], base: u64, range: RangeInclusive<u64>) -> Option<u64> {
    let (from, to) = range.into_inner();
    let lock = |far: u64| base.wrapping_add(far) / LOCKED_BYTES;
    let first = spans.partition_point(|span| span.start + span.bytes <= from);
    let mut before = first
        .checked_sub(1)
        .map(|before| lock(spans[before].far.wrapping_add(spans[before].bytes - 1)));
    let mut last = None;
    for span in &spans[first..] {
        let is_other = before.is_some_and(|before| before != lock(span.far));
        let at_start = (span.start >= from && is_other).then_some(span.start);
        // Where the next lock begins.
        let at = from.max(span.start + 1);
        let far = base.wrapping_add(span.far).wrapping_add(at - span.start);
        let inside = at + far.wrapping_neg() % LOCKED_BYTES;
        let inside = (inside < span.start + span.bytes).then_some(inside);
        for seam in at_start.into_iter().chain(inside) {
            if seam > to {
                return last.or(Some(seam));
            }
            last = Some(seam);
        }
        before = Some(lock(span.far.wrapping_add(span.bytes - 1)));
    }
    last
}

/// What is inside `range` of spans, each cut to it.
fn within(spans: &[Span], range: Range<u64>) -> impl Iterator<Item = Span> {
    let first = spans.partition_point(|span| span.start + span.bytes <= range.start);
    let these = spans.iter().skip(first);
    let these = these.take_while(move |span| span.start < range.end);
    these.map(move |span| {
        let start = span.start.max(range.start);
        let end = (span.start + span.bytes).min(range.end);
        Span {
            near: span.near.wrapping_add((start - span.start) as usize),
            far: span.far.wrapping_add(start - span.start),
            start,
            bytes: end - start,
        }
    })
}

impl Way {
    /// Moves `range` of spans.
    ///
    /// # Safety
    ///
    /// As of [`Transfer::piece`].
    unsafe fn carry(self, spans: &[Span], range: Range<u64>) -> io::Result<()> {
        // SAFETY: the caller's promise, for all of them.
        unsafe {
            match self {
                Self::Pull(pid, cookie, base) => pull(pid, &cookie, base, spans, range),
                Self::Push(pid, mark, base) => push(pid, mark, base, spans, range),
                Self::Load(_) | Self::Store(_) | Self::Read(..) | Self::Write(..) => match spans {
                    // Most often by far, and as short as a copy can be.
                    [span] if range == (0..span.bytes) => self.carry_one(span),
                    _ => within(spans, range).try_for_each(|span| self.carry_one(&span)),
                },
            }
        }
    }

    /// Moves one span, by a way that takes one at a time.
    ///
    /// # Safety
    ///
    /// As of [`Transfer::piece`].
    unsafe fn carry_one(self, span: &Span) -> io::Result<()> {
        let Span {
            near, far, bytes, ..
        } = *span;
        let length = bytes as usize;
        // SAFETY: the caller's promise, for all of them.
        unsafe {
            match self {
                Self::Load(base) => copy(base.add(far as usize), near, length),
                Self::Store(base) => copy(near, base.add(far as usize), length),
                Self::Read(file, base) => read(file, base.wrapping_add(far), near, length)?,
                Self::Write(file, base) => write(near, file, base.wrapping_add(far), length)?,
                Self::Pull(..) | Self::Push(..) => return Err(io::ErrorKind::Unsupported.into()),
            }
        }
        Ok(())
    }
}

/// Copies within this process's address space. The ranges may overlap if they are no longer than [`COPY_BYTES`].
///
/// # Safety
///
/// Both ranges are mapped, `from` for reading and `to` for writing.
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    for done in (0..length).step_by(COPY_BYTES) {
        let bytes = COPY_BYTES.min(length - done);
        // SAFETY: still inside the caller's ranges.
        unsafe { std::ptr::copy(from.add(done), to.add(done), bytes) }
    }
}

/// Bytes of a cookie.
const COOKIE_BYTES: usize = 16;

/// Copies from another process's memory, of which the cookie proves that it is the right one: both come in one call, which
/// finds the memory once. Fewer bytes than asked for are an error. Addresses are the peer's word, whatever they are: the kernel
/// says what is not there.
///
/// # Safety
///
/// The near ends are mapped for writing.
unsafe fn pull(
    pid: i32,
    cookie: &Cookie,
    base: u64,
    spans: &[Span],
    range: Range<u64>,
) -> io::Result<()> {
    all(range, |left| {
        let mut content = [0_u8; COOKIE_BYTES];
        let mut local = Ranges::new();
        let mut remote = Ranges::new();
        let _ = local.push(near_range(content.as_mut_ptr(), COOKIE_BYTES));
        let _ = remote.push(far_range(cookie.address, COOKIE_BYTES));
        name(spans, left, base, &mut local, &mut remote);
        // SAFETY: the kernel writes to `local` only, of which the caller promises what is behind the first one.
        let moved = unsafe {
            libc::process_vm_readv(
                pid,
                at(&local),
                count(&local),
                at(&remote),
                count(&remote),
                0,
            )
        };
        match moved >= 0 && content != cookie.content {
            true => 0,
            false => behind(moved, COOKIE_BYTES),
        }
    })
}

/// Copies into another process's memory, if it has the mark: that is written to first, by the same call, which finds the memory
/// once and goes no further than to the first place that is not there. For the rest see [`pull`].
///
/// # Safety
///
/// The near ends are mapped.
unsafe fn push(
    pid: i32,
    mark: u64,
    base: u64,
    spans: &[Span],
    range: Range<u64>,
) -> io::Result<()> {
    all(range, |left| {
        let mut nothing = 0_u8;
        let mut local = Ranges::new();
        let mut remote = Ranges::new();
        let _ = local.push(near_range(&raw mut nothing, 1));
        let _ = remote.push(far_range(mark, 1));
        name(spans, left, base, &mut local, &mut remote);
        // SAFETY: the kernel only reads `local`, of which the caller promises what is behind the first one.
        let moved = unsafe {
            libc::process_vm_writev(
                pid,
                at(&local),
                count(&local),
                at(&remote),
                count(&remote),
                0,
            )
        };
        behind(moved, 1)
    })
}

/// Names as many spans as one call takes, at both ends.
fn name(spans: &[Span], left: Range<u64>, base: u64, local: &mut Ranges, remote: &mut Ranges) {
    for span in within(spans, left).take(CALL_SPANS_MAX) {
        let bytes = span.bytes as usize;
        let _ = local.push(near_range(span.near, bytes));
        let _ = remote.push(far_range(base.wrapping_add(span.far), bytes));
    }
}

fn at(ranges: &Ranges) -> *const libc::iovec {
    ranges.as_ptr()
}

fn count(ranges: &Ranges) -> libc::c_ulong {
    ranges.len() as libc::c_ulong
}

/// What a call has moved behind the first so many bytes.
fn behind(moved: isize, first: usize) -> isize {
    match moved {
        0.. => (moved - first as isize).max(0),
        error => error,
    }
}

fn near_range(base: *mut u8, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: base.cast(),
        iov_len: bytes,
    }
}

fn far_range(address: u64, bytes: usize) -> libc::iovec {
    near_range(std::ptr::without_provenance_mut(address as usize), bytes)
}

/// Copies from memory that a descriptor of `/proc/PID/mem` holds, with what [`pull`] says of errors.
///
/// # Safety
///
/// `to` is mapped for writing, and the descriptor is open.
unsafe fn read(file: RawFd, from: u64, to: *mut u8, length: usize) -> io::Result<()> {
    all(0..length as u64, |left| {
        let (done, at) = (
            left.start as usize,
            from.wrapping_add(left.start) as libc::off_t,
        );
        // SAFETY: still inside the caller's range.
        unsafe { libc::pread(file, to.add(done).cast(), length - done, at) }
    })
}

/// Copies into memory that a descriptor of `/proc/PID/mem` holds, with what [`pull`] says of errors.
///
/// # Safety
///
/// `from` is mapped, and the descriptor is open.
unsafe fn write(from: *const u8, file: RawFd, to: u64, length: usize) -> io::Result<()> {
    all(0..length as u64, |left| {
        let (done, at) = (
            left.start as usize,
            to.wrapping_add(left.start) as libc::off_t,
        );
        // SAFETY: still inside the caller's range, of which it is read only.
        unsafe { libc::pwrite(file, from.add(done).cast(), length - done, at) }
    })
}

/// Calls the kernel until all bytes of `range` are moved; `call` is told what is left of it.
fn all(range: Range<u64>, mut call: impl FnMut(Range<u64>) -> isize) -> io::Result<()> {
    let mut left = range;
    while left.start < left.end {
        match call(left.clone()) {
            moved @ 1.. => left.start += moved as u64,
            // Of memory that is no more, or not the one that was meant: the process has ended, or executes another program.
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use quickcheck::quickcheck;

    use super::*;
    use crate::mark::mark_of;
    use crate::process::OwnCookie;

    const BYTES: usize = 1 << 16;

    /// Spans of these lengths, with these gaps before them at either end, over memory that is as long at both ends.
    fn spans(near: *mut u8, blocks: &[(u8, u8, u8)]) -> Vec<Span> {
        let (mut here, mut far, mut start) = (0, 0, 0);
        let mut spans = Vec::new();
        for (gap, far_gap, bytes) in blocks {
            let [gap, far_gap, bytes] = [*gap, *far_gap, *bytes].map(u64::from);
            (here, far) = (here + gap, far + far_gap);
            if here.max(far) + bytes > BYTES as u64 {
                break;
            }
            let near = near.wrapping_add(here as usize);
            spans.push(Span {
                near,
                far,
                start,
                bytes,
            });
            (here, far, start) = (here + bytes, far + bytes, start + bytes);
        }
        spans
    }

    /// Moves a part of spans by each way, and compares with what one byte after the other does.
    fn moves(blocks: &[(u8, u8, u8)], cut: (u16, u16)) {
        let own = OwnCookie::new().unwrap();
        let (pid, cookie) = (std::process::id() as i32, own.cookie());
        let mark = mark_of(&cookie).unwrap();
        let source: Vec<u8> = (0..BYTES).map(|at| (at * 7 + at / 251) as u8).collect();
        for way in 0..4 {
            let (mut here, mut there) = match way % 2 == 0 {
                // Bytes come from there, or go there.
                true => (vec![0; BYTES], source.clone()),
                false => (source.clone(), vec![0; BYTES]),
            };
            let spans = spans(here.as_mut_ptr(), blocks);
            let all = spans.last().map_or(0, |span| span.start + span.bytes);
            let (one, other) = (u64::from(cut.0).min(all), u64::from(cut.1).min(all));
            let range = one.min(other)..one.max(other);
            let base = there.as_mut_ptr();
            let way = match way {
                0 => Way::Pull(pid, cookie, base.expose_provenance() as u64),
                1 => Way::Push(pid, mark, base.expose_provenance() as u64),
                2 => Way::Load(base),
                _ => Way::Store(base),
            };
            let is_from_there = matches!(way, Way::Pull(..) | Way::Load(_));
            let mut expected = vec![0; BYTES];
            for span in &spans {
                let near = span.near.addr() - here.as_ptr().addr();
                for at in 0..span.bytes {
                    let (near, far) = (near + at as usize, (span.far + at) as usize);
                    if range.contains(&(span.start + at)) {
                        match is_from_there {
                            true => expected[near] = source[far],
                            false => expected[far] = source[near],
                        }
                    }
                }
            }
            // SAFETY: both ends are longer than what any span reaches to.
            unsafe { Transfer::Many(way, spans.as_slice()).piece(range) }.unwrap();
            let to = if is_from_there { &here } else { &there };
            assert!(*to == expected, "{way:?}");
        }
    }

    /// Spans of these lengths, with these gaps before them at the far end, of memory that is not touched.
    fn far_spans(blocks: &[(u8, u8)]) -> Vec<Span> {
        let (mut far, mut start) = (0, 0);
        let spans = blocks.iter().map(|(gap, bytes)| {
            far += u64::from(*gap) << 15;
            let bytes = 1000 * (1 + u64::from(*bytes));
            let near = std::ptr::null_mut();
            let span = Span {
                near,
                far,
                start,
                bytes,
            };
            (far, start) = (far + bytes, start + bytes);
            span
        });
        spans.collect()
    }

    /// Looks at one byte after the other.
    fn seam_by_bytes(spans: &[Span], base: u64, range: RangeInclusive<u64>) -> Option<u64> {
        let places = spans
            .iter()
            .flat_map(|span| (0..span.bytes).map(|at| base.wrapping_add(span.far + at)));
        let locks: Vec<_> = places.map(|place| place / LOCKED_BYTES).collect();
        let is_seam = |at: &u64| locks[*at as usize] != locks[*at as usize - 1];
        let all = locks.len() as u64;
        let inside = (*range.start()..=(*range.end()).min(all - 1)).rev();
        let behind = range.end() + 1..all;
        inside.chain(behind).find(is_seam)
    }

    quickcheck! {
        fn a_seam_is_where_the_next_lock_begins(base: u64, blocks: Vec<(u8, u8)>, from: u32, length: u32) -> bool {
            let blocks = &blocks[..blocks.len().min(6)];
            let spans = far_spans(blocks);
            let all = spans.last().map_or(1, |span| span.start + span.bytes);
            let from = 1 + u64::from(from) % all;
            let range = from..=from + u64::from(length) % (1 << 19);
            spans.is_empty() || seam(&spans, base, range.clone()) == seam_by_bytes(&spans, base, range)
        }

        fn a_piece_of_spans_is_their_bytes_in_their_order(blocks: Vec<(u8, u8, u8)>, cut: (u16, u16)) -> bool {
            moves(&blocks, cut);
            true
        }
    }

    #[test]
    fn threads_are_kept_apart_in_another_process() {
        const KIB: u64 = 1 << 10;
        const MIB: u64 = 1 << 20;
        let pieces = |transfer: Transfer, bytes: u64| {
            let next = |start: &u64| {
                // SAFETY: the spans are there, and nothing is copied.
                let end = unsafe { transfer.piece_end(*start, 512 * KIB, bytes) };
                (*start < bytes).then_some(end)
            };
            std::iter::successors(Some(0), next)
                .skip(1)
                .collect::<Vec<_>>()
        };
        let near = std::ptr::null_mut();
        let push = |base| Transfer::One(Way::Push(1, 0, base), near);
        let eighths = |first: u64, last: u64| (first..=last).map(|at| at * 512 * KIB);
        // Each piece ends where a lock does; one that is left alone is cut as anything else.
        let one: Vec<_> = [2 * MIB].into_iter().chain(eighths(5, 8)).collect();
        assert_eq!(pieces(push(6 * MIB), 4 * MIB), one);
        let one = [
            300 * KIB,
            2348 * KIB,
            2860 * KIB,
            3372 * KIB,
            3884 * KIB,
            4 * MIB,
        ];
        assert_eq!(pieces(push(6 * MIB - 300 * KIB), 4 * MIB), one);
        // Not for a few bytes before it, or behind.
        assert_eq!(pieces(push(6 * MIB - KIB), 2 * MIB + 2 * KIB)[0], 512 * KIB);
        // Blocks that lie apart.
        let blocks: Vec<_> = (0..16).map(|_| (200, 63)).collect();
        let spans = far_spans(&blocks);
        let apart = Transfer::Many(Way::Push(1, 0, 6 * MIB), spans.as_slice());
        assert_eq!(pieces(apart, 1024 * 1000), [512_000, 1_024_000]);
        // Memory of this process has no such lock.
        let store = Transfer::One(Way::Store(near), near);
        assert_eq!(pieces(store, 4 * MIB), eighths(1, 8).collect::<Vec<_>>());
    }

    #[test]
    fn more_spans_than_one_call_takes_are_moved_by_several() {
        let blocks = vec![(1, 2, 50); 3 * CALL_SPANS_MAX + 5];
        moves(&blocks, (0, u16::MAX));
        moves(&blocks, (77, 33_333));
    }

    #[test]
    fn what_lies_behind_a_place_that_is_not_there_is_not_moved() {
        let own = OwnCookie::new().unwrap();
        let (pid, cookie) = (std::process::id() as i32, own.cookie());
        let mark = mark_of(&cookie).unwrap();
        let (mut here, mut there) = ([7_u8; 300], [0_u8; 300]);
        let base = there.as_mut_ptr().expose_provenance() as u64;
        let near = here.as_mut_ptr();
        let span = |number: u64, far: u64| Span {
            near: near.wrapping_add(100 * number as usize),
            far,
            start: 100 * number,
            bytes: 100,
        };
        // The middle one is at address 0.
        let spans = [span(0, 0), span(1, 0_u64.wrapping_sub(base)), span(2, 200)];
        let push = Transfer::Many(Way::Push(pid, mark, base), &raw const spans);
        // SAFETY: both are as long; nothing is at the address, and nothing is written there.
        let error = unsafe { push.piece(0..300) }.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let moved = there.map(|byte| byte == 7);
        assert!(moved[..100].iter().all(|moved| *moved));
        assert!(moved[100..].iter().all(|moved| !moved));
    }
}
