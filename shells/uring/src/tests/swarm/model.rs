//! What may be in a file: of each byte, whose it may be.
//!
//! Each write has bytes of its own. A byte may be of any write that had begun, unless another one is certain that began after
//! it had ended: one that had succeeded before the question was asked. What the disk has lost since is not certain.

use std::ops::Range;

/// A write. The first one is the file as it was.
struct Write {
    bytes: Range<usize>,
    begun: u64,
    /// When, and whether it succeeded.
    ended: Option<(u64, bool)>,
}

#[derive(Default)]
pub(super) struct Model {
    writes: Vec<Write>,
    lost: Vec<(Range<usize>, u64)>,
    /// When a sync succeeded.
    synced: Vec<u64>,
}

/// Numbers of writes, which are their bytes too.
pub(super) const WRITES_MAX: usize = 250;

impl Model {
    pub(super) fn new(bytes: usize) -> Self {
        let mut model = Self::default();
        model.begin(0, 0..bytes);
        model.end(0, 0, true);
        model
    }

    pub(super) fn writes(&self) -> usize {
        self.writes.len()
    }

    /// A write begins. Its bytes are all this number.
    pub(super) fn begin(&mut self, now: u64, bytes: Range<usize>) -> u8 {
        assert!(self.writes.len() < WRITES_MAX);
        let ended = None;
        let begun = now;
        self.writes.push(Write {
            bytes,
            begun,
            ended,
        });
        (self.writes.len() - 1) as u8
    }

    pub(super) fn end(&mut self, now: u64, write: u8, succeeded: bool) {
        self.writes[usize::from(write)].ended = Some((now, succeeded));
    }

    pub(super) fn lose(&mut self, now: u64, bytes: Range<usize>) {
        self.lost.push((bytes, now));
    }

    pub(super) fn sync(&mut self, now: u64) {
        self.synced.push(now);
    }

    pub(super) fn lost_since(&self, then: u64) -> bool {
        self.lost.iter().any(|(_, at)| *at >= then)
    }

    /// Whether bytes from `start` on, read from `asked` to `answered`, are what may be there. `Err`: what is wrong.
    pub(super) fn check_read(
        &self,
        start: usize,
        bytes: &[u8],
        (asked, answered): (u64, u64),
    ) -> Result<(), String> {
        self.check(start, bytes, asked, answered)
    }

    /// Whether the file may be that after a loss of power at this moment.
    pub(super) fn check_cut(&self, bytes: &[u8], now: u64) -> Result<(), String> {
        let synced = self.synced.last().copied().unwrap_or(0);
        self.check(0, bytes, synced, now)
    }

    /// Whether what a write wrote is there for sure, for one who asks then about these bytes.
    fn is_certain(&self, write: &Write, asked: u64, bytes: &Range<usize>) -> bool {
        let Some((ended, true)) = write.ended else {
            return false;
        };
        // What was on the disk before is not lost with what came later.
        let is_safe = |by: u64| self.synced.iter().any(|at| ended < *at && *at < by);
        let is_lost = self.lost.iter().any(|(lost, at)| {
            let meets = lost.start < bytes.end && bytes.start < lost.end;
            meets && *at >= write.begun && !is_safe(*at)
        });
        ended <= asked && !is_lost
    }

    fn check(&self, start: usize, bytes: &[u8], asked: u64, until: u64) -> Result<(), String> {
        let span = start..start + bytes.len();
        let lost = self.lost.iter().map(|(lost, _)| lost);
        let all = self.writes.iter().map(|write| &write.bytes).chain(lost);
        let mut borders: Vec<_> = all.flat_map(|bytes| [bytes.start, bytes.end]).collect();
        borders.extend([span.start, span.end]);
        borders.retain(|border| (span.start..=span.end).contains(border));
        borders.sort_unstable();
        borders.dedup();
        for part in borders.windows(2) {
            let part = part[0]..part[1];
            let over =
                |write: &&Write| write.bytes.start <= part.start && part.end <= write.bytes.end;
            let certain = self.writes.iter().filter(over);
            let certain = certain.filter(|write| self.is_certain(write, asked, &part));
            let latest = certain.map(|write| write.begun).max().unwrap_or(0);
            let allowed: [bool; 256] = std::array::from_fn(|number| {
                self.writes.get(number).is_some_and(|write| {
                    let is_over = write.ended.is_some_and(|(ended, _)| ended < latest);
                    over(&write) && write.begun <= until && !is_over
                })
            });
            let found = &bytes[part.start - start..part.end - start];
            let wrong = found.iter().position(|byte| !allowed[usize::from(*byte)]);
            if let Some(wrong) = wrong {
                let could: Vec<_> = (0..256).filter(|number| allowed[*number]).collect();
                let at = part.start + wrong;
                return Err(format!(
                    "byte {at} is of write {}, and may be of {could:?}",
                    found[wrong]
                ));
            }
        }
        Ok(())
    }
}
