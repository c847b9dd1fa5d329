//! Ranges of the file, and what whoever syncs them is told.

use super::*;
use crate::turns::Side;

/// A range of the file, and what it has been told.
pub(super) struct Made {
    pub(super) range: Arc<FileRange>,
    pub(super) start: usize,
    at: u64,
    /// There was nothing that anybody was still to be told of when it was made.
    fresh: bool,
    troubles: u32,
    told: Option<Errno>,
}

impl History {
    /// Makes a range and lets all workers know. The first two can pass the cache by, and overlap; the last one cannot.
    pub(super) fn make(&mut self, number: usize) -> Made {
        let start = [0, 4096, 1000][number];
        let terms = FileTerms {
            cached: true,
            ..growing(start as u64, (FILE_BYTES - start) as u64)
        };
        let file = || self.file.try_clone().unwrap();
        let mut range = FileRange::new(file(), &terms).unwrap();
        if number < 2 {
            range = range.with_direct(file(), 512);
        }
        let range = Arc::new(range);
        let mut kernel = self.kernel.lock().unwrap();
        let mut others = self.made.iter().map(|made| made.range.synced());
        let fresh = !kernel.has_untold() && others.all(|fd| kernel.has_told(fd));
        for side in [Side::Direct, Side::Cached] {
            kernel.open(range.place(side, 0).0, side);
        }
        kernel.open(range.synced(), Side::Cached);
        self.files
            .0
            .lock()
            .unwrap()
            .insert(range.key(), range.clone());
        for worker in &mut self.workers {
            let region = RemoteRegion {
                key: range.key(),
                bytes: range.bytes(),
            };
            worker.endpoint.attach_remote(segment(number), region);
        }
        Made {
            range,
            start,
            at: self.now,
            fresh,
            troubles: kernel.troubles,
            told: None,
        }
    }

    /// Whoever syncs a range is told if bytes are gone that were written while there was this range, now and ever after.
    pub(super) fn sync(&mut self, number: usize) {
        let begun = self.now;
        let made = &self.made[number];
        let kernel = self.kernel.clone();
        let answer = made
            .range
            .sync_by(|fd| kernel.lock().unwrap().fsync(fd, true));
        self.tell(|| format!("sync of range {number}: {answer:?}"));
        let made_at = made.at;
        let is_known = self.model.lost_since(made_at);
        self.note_lost();
        let troubles = self.kernel.lock().unwrap().troubles;
        let made = &mut self.made[number];
        if let Some(told) = made.told {
            assert_eq!(answer, Err(told), "it was told something else before");
        }
        match answer {
            Ok(()) => {
                let is_known = is_known || self.model.lost_since(begun);
                assert!(!is_known, "nobody is told that bytes are gone");
                self.model.sync(self.now);
            }
            Err(error) => {
                let has_reason = !made.fresh || troubles > made.troubles;
                assert!(has_reason, "nothing was lost since it was made");
                made.told = Some(error);
            }
        }
        self.now += 1;
    }
}
