//! A kernel with one file on one disk: a page cache of large folios, a disk with a cache of its own, and faults.
//!
//! It goes on by steps that the history draws, so that reads and writes overlap in every way. What it does to a piece is what
//! Linux does: a write past the page cache writes back and throws away what the cache has of its range, writes
//! sector by sector, and throws away again what is clean; an error of writing back is told once to each descriptor.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

use oorandom::Rand32;
use polyrail_core::work::{Cause, Op};
use rustix::io::Errno;

use crate::endpoint::{Answered, Driver};
use crate::transfer::Transfer;
use crate::turns::Side;

const SECTOR: usize = 512;
/// Where a range of it ends at most.
pub(super) const FILE_BYTES: usize = 8 * 4096;

/// How often something happens, in thousandths.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Rates {
    /// A read or write fails.
    pub(super) error: u32,
    /// It does less than it was asked for.
    pub(super) short: u32,
    /// It does nothing, and is to be asked for again.
    pub(super) again: u32,
    /// It is refused past the page cache.
    pub(super) refuse: u32,
    /// What the page cache writes back is lost.
    pub(super) lose: u32,
    /// The disk cannot empty its cache.
    pub(super) flush: u32,
}

struct Folio {
    bytes: Vec<u8>,
    dirty: bool,
}

/// A piece that the kernel has been asked for.
struct Asked {
    worker: usize,
    slot: u32,
    transfer: Transfer,
    /// What has been done so far.
    begun: bool,
    done: usize,
    /// Sectors that a write past the cache has still to write.
    left: Vec<usize>,
    /// What it will do, at most.
    most: usize,
}

pub(super) struct Kernel {
    pub(super) random: Rand32,
    pub(super) rates: Rates,
    folio_bytes: usize,
    folios: Vec<Option<Folio>>,
    /// What the disk gives back.
    device: Vec<u8>,
    /// Of each sector, what a loss of power may leave there.
    versions: Vec<Vec<Vec<u8>>>,
    /// Bytes of the file.
    pub(super) len: usize,
    sides: HashMap<RawFd, Side>,
    /// Errors of writing back, and of how many each descriptor has been told.
    errors: Vec<Errno>,
    told: HashMap<RawFd, usize>,
    /// Somebody has been told of the last one.
    seen: bool,
    asked: Vec<Asked>,
    answered: Vec<Vec<Answered>>,
    /// Why works fail whose bytes are at this place of this worker's memory.
    pub(super) failed: HashMap<(usize, usize), Cause>,
    /// What has been lost and nobody has taken note of.
    pub(super) lost: Vec<Range<usize>>,
    /// Errors that some descriptor is to be told of.
    pub(super) troubles: u32,
}

fn fold(range: &Range<usize>, unit: usize) -> Range<usize> {
    range.start / unit..range.end.div_ceil(unit)
}

impl Kernel {
    pub(super) fn new(mut random: Rand32, rates: Rates, workers: usize, len: usize) -> Self {
        let folio_bytes = 4096 << random.rand_range(0..3);
        Self {
            random,
            rates,
            folio_bytes,
            folios: (0..FILE_BYTES / folio_bytes).map(|_| None).collect(),
            device: vec![0; FILE_BYTES],
            versions: vec![vec![vec![0; SECTOR]]; FILE_BYTES / SECTOR],
            len,
            sides: HashMap::new(),
            errors: Vec::new(),
            told: HashMap::new(),
            seen: true,
            asked: Vec::new(),
            answered: (0..workers).map(|_| Vec::new()).collect(),
            failed: HashMap::new(),
            lost: Vec::new(),
            troubles: 0,
        }
    }

    fn happens(&mut self, rate: u32) -> bool {
        self.random.rand_range(0..1000) < rate
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.rand_range(0..bound as u32) as usize
    }

    /// There is a descriptor. It is to be told of what nobody has been told of.
    pub(super) fn open(&mut self, fd: BorrowedFd<'_>, side: Side) {
        self.sides.insert(fd.as_raw_fd(), side);
        let known = self.errors.len() - usize::from(!self.seen);
        self.told.insert(fd.as_raw_fd(), known);
    }

    /// Whether there is an error that nobody has been told of.
    pub(super) fn has_untold(&self) -> bool {
        !self.seen
    }

    /// Whether this descriptor has been told of all errors.
    pub(super) fn has_told(&self, fd: BorrowedFd<'_>) -> bool {
        self.told[&fd.as_raw_fd()] == self.errors.len()
    }

    fn store(&mut self, sector: usize, bytes: &[u8]) {
        self.device[sector * SECTOR..][..SECTOR].copy_from_slice(bytes);
        self.versions[sector].push(bytes.to_vec());
    }

    /// A folio goes to the disk, or some of it is lost.
    fn write_back(&mut self, number: usize) -> Result<(), Errno> {
        let Some(folio) = self.folios[number].as_mut().filter(|folio| folio.dirty) else {
            return Ok(());
        };
        folio.dirty = false;
        let bytes = folio.bytes.clone();
        let fails = self.happens(self.rates.lose);
        for (at, bytes) in bytes.chunks(SECTOR).enumerate() {
            let start = number * self.folio_bytes + at * SECTOR;
            if self.device[start..][..SECTOR] == *bytes {
                continue;
            }
            match fails && self.happens(700) {
                true => self.lost.push(start..start + SECTOR),
                false => self.store(start / SECTOR, bytes),
            }
        }
        if !fails {
            return Ok(());
        }
        let error = [Errno::IO, Errno::NOSPC][self.below(2)];
        self.errors.push(error);
        (self.seen, self.troubles) = (false, self.troubles + 1);
        Err(error)
    }

    fn write_back_range(&mut self, range: &Range<usize>) -> Result<(), Errno> {
        let all = fold(range, self.folio_bytes);
        all.map(|number| self.write_back(number))
            .fold(Ok(()), Result::and)
    }

    /// Clean folios go; others stay.
    fn throw_away(&mut self, range: &Range<usize>) {
        for number in fold(range, self.folio_bytes) {
            self.folios[number].take_if(|folio| !folio.dirty);
        }
    }

    /// The kernel does something that nobody has asked for.
    pub(super) fn stir(&mut self) {
        let number = self.below(self.folios.len());
        match self.happens(500) {
            true => drop(self.write_back(number)),
            false => drop(self.folios[number].take_if(|folio| !folio.dirty)),
        }
    }

    /// The file's bytes are on the disk, or this descriptor is told that some are not.
    pub(super) fn fsync(&mut self, fd: BorrowedFd<'_>, may_fail: bool) -> Result<(), Errno> {
        let _ = self.write_back_range(&(0..FILE_BYTES));
        let told = self
            .told
            .get_mut(&fd.as_raw_fd())
            .expect("an open descriptor");
        if *told < self.errors.len() {
            *told = self.errors.len();
            self.seen = true;
            return Err(self.errors[*told - 1]);
        }
        let fails = may_fail && self.happens(self.rates.flush);
        for sector in 0..self.versions.len() {
            let all = self.versions[sector].len();
            let kept = match fails {
                true => self.below(all),
                false => all - 1,
            };
            if kept + 1 < all {
                self.lost.push(sector * SECTOR..(sector + 1) * SECTOR);
            }
            let bytes = self.versions[sector].swap_remove(kept);
            self.device[sector * SECTOR..][..SECTOR].copy_from_slice(&bytes);
            self.versions[sector] = vec![bytes];
        }
        self.troubles += u32::from(fails);
        if fails { Err(Errno::IO) } else { Ok(()) }
    }

    /// What is on the disk after a loss of power.
    pub(super) fn cut(&mut self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FILE_BYTES);
        for sector in 0..self.versions.len() {
            let kept = self.below(self.versions[sector].len());
            bytes.extend_from_slice(&self.versions[sector][kept]);
        }
        bytes
    }

    /// Pieces that have been asked for.
    pub(super) fn asked(&self) -> usize {
        self.asked.len()
    }

    /// Goes on with one piece. What it did, for people.
    pub(super) fn step(&mut self) -> String {
        let number = self.below(self.asked.len());
        let mut asked = self.asked.swap_remove(number);
        let call = asked.transfer.call();
        let side = self.sides[&call.fd];
        let (op, at, bytes) = (call.op, call.offset as usize, call.bytes as usize);
        let base = asked.transfer.memory().region.base().as_ptr() as usize;
        let local = call.address as usize - base;
        let span = at..at + bytes;
        if side == Side::Direct {
            let is_aligned = [at, bytes, local].iter().all(|at| at % SECTOR == 0);
            assert!(is_aligned, "{op:?} {span:?} from memory at {local}");
        }
        let answer = match (op, side) {
            _ if !asked.begun && self.happens(self.rates.again) => {
                let errors = [Errno::AGAIN, Errno::INTR, Errno::CANCELED];
                Some(Err(errors[self.below(3)]))
            }
            (_, Side::Direct) if !asked.begun && self.happens(self.rates.refuse) => {
                Some(Err(Errno::INVAL))
            }
            _ if !asked.begun => {
                asked.begun = true;
                self.begin(&mut asked, side, &span).err().map(Err)
            }
            (Op::Write, Side::Cached) => self.write_cached(&mut asked, &span, local),
            (Op::Write, Side::Direct) => self.write_direct(&mut asked, &span, local),
            (Op::Read, side) => self.read(&mut asked, &span, (local, side)),
        };
        let said = format!("{op:?} {side:?} {span:?}: {answer:?}");
        let Some(answer) = answer else {
            self.asked.push(asked);
            return said;
        };
        let cause = match answer {
            Err(Errno::NOSPC) => Some(Cause::NoSpace),
            Err(Errno::IO) => Some(Cause::MediaError),
            Ok(0) if op == Op::Write => Some(Cause::MediaError),
            _ => None,
        };
        if let Some(cause) = cause {
            self.failed
                .insert((asked.worker, local / super::ROOM), cause);
        }
        self.answered[asked.worker].push(Answered {
            slot: asked.slot,
            transfer: asked.transfer,
            answer,
        });
        said
    }

    fn begin(&mut self, asked: &mut Asked, side: Side, span: &Range<usize>) -> Result<(), Errno> {
        let bytes = span.len();
        let unit = if side == Side::Direct { SECTOR } else { 1 };
        asked.most = match self.happens(self.rates.short) {
            true => self.below(bytes / unit + 1) * unit,
            false => bytes,
        };
        if asked.transfer.call().op == Op::Read {
            // Nothing read would be the end of the file.
            asked.most = asked.most.max(unit.min(bytes));
        }
        if side == Side::Direct {
            self.write_back_range(span)?;
            self.throw_away(span);
        }
        asked.left = fold(span, SECTOR).collect();
        for last in (1..asked.left.len()).rev() {
            let other = self.below(last + 1);
            asked.left.swap(last, other);
        }
        Ok(())
    }

    fn error(&mut self, op: Op) -> Option<Errno> {
        let errors = [Errno::IO, Errno::NOSPC];
        let kinds = if op == Op::Write { 2 } else { 1 };
        self.happens(self.rates.error)
            .then(|| errors[self.below(kinds)])
    }

    fn folio(&mut self, number: usize) -> &mut Folio {
        let start = number * self.folio_bytes;
        let there = &self.device[start..][..self.folio_bytes];
        self.folios[number].get_or_insert_with(|| Folio {
            bytes: there.to_vec(),
            dirty: false,
        })
    }

    /// Goes on to the end of a folio.
    fn write_cached(
        &mut self,
        asked: &mut Asked,
        span: &Range<usize>,
        local: usize,
    ) -> Option<Result<u32, Errno>> {
        if let Some(error) = self.error(Op::Write) {
            // What has been written may be told, or not.
            let is_told = asked.done > 0 && self.happens(500);
            return Some(if is_told {
                Ok(asked.done as u32)
            } else {
                Err(error)
            });
        }
        let at = span.start + asked.done;
        let number = at / self.folio_bytes;
        let first = at % self.folio_bytes;
        let count = (self.folio_bytes - first).min(asked.most - asked.done);
        let mut bytes = vec![0; count];
        let from = (local + asked.done) as u64;
        asked
            .transfer
            .memory()
            .region
            .load(from, &mut bytes)
            .unwrap();
        let folio = self.folio(number);
        folio.bytes[first..][..count].copy_from_slice(&bytes);
        folio.dirty |= count > 0;
        asked.done += count;
        self.len = self.len.max(at + count);
        (asked.done == asked.most).then_some(Ok(asked.done as u32))
    }

    /// Writes some sectors.
    fn write_direct(
        &mut self,
        asked: &mut Asked,
        span: &Range<usize>,
        local: usize,
    ) -> Option<Result<u32, Errno>> {
        for _ in 0..=self.below(asked.left.len()) {
            let Some(sector) = asked.left.pop() else {
                break;
            };
            let done = sector * SECTOR - span.start;
            // Behind what it tells, some may have been written as well.
            if done < asked.most || self.happens(300) {
                let mut bytes = [0; SECTOR];
                let from = (local + done) as u64;
                asked
                    .transfer
                    .memory()
                    .region
                    .load(from, &mut bytes)
                    .unwrap();
                self.store(sector, &bytes);
            }
        }
        let error = self.error(Op::Write);
        if error.is_none() && !asked.left.is_empty() {
            return None;
        }
        self.throw_away(span);
        if let Some(error) = error {
            return Some(Err(error));
        }
        self.len = self.len.max(span.start + asked.most);
        Some(Ok(asked.most as u32))
    }

    /// Goes on to the end of a folio, or reads all that it will.
    fn read(
        &mut self,
        asked: &mut Asked,
        span: &Range<usize>,
        (local, side): (usize, Side),
    ) -> Option<Result<u32, Errno>> {
        if let Some(error) = self.error(Op::Read) {
            return Some(Err(error));
        }
        let end = (span.start + asked.most).min(self.len);
        let at = span.start + asked.done;
        if at >= end {
            return Some(Ok(asked.done as u32));
        }
        let bytes = match side {
            Side::Direct => self.device[at..end].to_vec(),
            Side::Cached => {
                let (number, first) = (at / self.folio_bytes, at % self.folio_bytes);
                let count = (self.folio_bytes - first).min(end - at);
                self.folio(number).bytes[first..][..count].to_vec()
            }
        };
        let to = (local + asked.done) as u64;
        asked.transfer.memory().region.store(&bytes, to).unwrap();
        asked.done += bytes.len();
        (at + bytes.len() == end).then_some(Ok(asked.done as u32))
    }
}

/// A worker's way to ask it.
pub(super) struct Fake {
    pub(super) kernel: Arc<Mutex<Kernel>>,
    pub(super) worker: usize,
    pub(super) fd: OwnedFd,
}

impl Driver for Fake {
    fn ask(&mut self, slot: u32, transfer: Transfer) {
        self.kernel.lock().unwrap().asked.push(Asked {
            worker: self.worker,
            slot,
            transfer,
            begun: false,
            done: 0,
            left: Vec::new(),
            most: 0,
        });
    }

    fn flush(&mut self) {}

    fn answers(&mut self, limit: usize, to: &mut Vec<Answered>) {
        let mut kernel = self.kernel.lock().unwrap();
        let all = &mut kernel.answered[self.worker];
        let count = all.len().min(limit);
        to.extend(all.drain(..count));
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
