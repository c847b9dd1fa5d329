//! The batches of one worker: a bounded table whose rows are used again.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::batch::Shared;
use crate::post::BATCH_MAX;

/// Names a batch to its worker. A row that is used again has a new generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct RowId {
    pub(crate) index: u16,
    generation: u32,
}

/// Bits of a tag that name the row, and the position; the rest is of the generation.
const ROW_BITS: u32 = 15;
const POSITION_BITS: u32 = 20;
const GENERATION_MASK: u32 = u32::MAX >> (ROW_BITS + POSITION_BITS - 32);

/// Rows that tags can name.
pub(crate) const ROWS_MAX: usize = 1 << ROW_BITS;

const _: () = assert!(BATCH_MAX <= 1 << POSITION_BITS);

impl RowId {
    /// The name of the batch's `position`-th request in core and in the ring.
    pub(crate) fn tag(self, position: usize) -> u64 {
        let of_batch = u64::from(self.generation) << POSITION_BITS | position as u64;
        of_batch << ROW_BITS | u64::from(self.index)
    }

    /// The batch and the position that a tag names.
    pub(crate) fn from_tag(tag: u64) -> (Self, usize) {
        let of_batch = tag >> ROW_BITS;
        let row = Self {
            index: (tag & ((1 << ROW_BITS) - 1)) as u16,
            generation: (of_batch >> POSITION_BITS) as u32,
        };
        (row, (of_batch & ((1 << POSITION_BITS) - 1)) as usize)
    }
}

/// Why there is no row for a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoRow {
    /// All are in use.
    Full,
    /// The worker has ended.
    Closed,
}

/// Rows of batches that have not ended, and of those that ended with something unsettled.
///
/// The latter stay for the proof that may come, but only while nobody else needs their row: then the oldest
/// whose memory on this side is free goes, and its report stays as it is. So a peer that never comes back
/// cannot fill the table.
pub(crate) struct BatchRows {
    rows: Vec<Row>,
    most: usize,
    free: Vec<u16>,
    /// Ended and not settled, the oldest first.
    unsettled: VecDeque<RowId>,
    closed: bool,
}

#[derive(Default)]
struct Row {
    generation: u32,
    batch: Option<Arc<Shared>>,
}

impl BatchRows {
    /// For so many batches.
    pub(crate) fn new(most: usize) -> Self {
        debug_assert!(most <= ROWS_MAX, "{most} rows");
        Self {
            rows: Vec::new(),
            most: most.min(ROWS_MAX),
            free: Vec::new(),
            unsettled: VecDeque::new(),
            closed: false,
        }
    }

    /// Adds the batch that `make` makes for its row.
    pub(crate) fn add(
        &mut self,
        make: impl FnOnce(RowId) -> Arc<Shared>,
    ) -> Result<Arc<Shared>, NoRow> {
        if self.closed {
            return Err(NoRow::Closed);
        }
        let index = self
            .free_row()
            .or_else(|| {
                self.evict();
                self.free.pop()
            })
            .ok_or(NoRow::Full)?;
        let row = &mut self.rows[usize::from(index)];
        row.generation = row.generation.wrapping_add(1) & GENERATION_MASK;
        let generation = row.generation;
        let batch = make(RowId { index, generation });
        row.batch = Some(batch.clone());
        Ok(batch)
    }

    fn free_row(&mut self) -> Option<u16> {
        self.free.pop().or_else(|| {
            let index = self.rows.len();
            (index < self.most).then(|| {
                self.rows.push(Row::default());
                index as u16
            })
        })
    }

    /// Gives up the oldest batch that only waits for proof about the peer's side.
    fn evict(&mut self) {
        let idle = |id: &RowId| self.get(*id).is_none_or(|batch| !batch.holds_memory());
        if let Some(id) = self.unsettled.iter().copied().find(idle) {
            log::debug!("a batch without proof of its end makes room for another");
            if let Some(batch) = self.get(id) {
                batch.close();
            }
            self.remove(id);
        }
    }

    /// The batch of this name, unless its row was given up.
    pub(crate) fn get(&self, id: RowId) -> Option<Arc<Shared>> {
        self.row(id)?.batch.clone()
    }

    fn row(&self, id: RowId) -> Option<&Row> {
        let row = self.rows.get(usize::from(id.index))?;
        (row.generation == id.generation).then_some(row)
    }

    /// Keeps an ended batch for the proof that may come.
    pub(crate) fn keep(&mut self, id: RowId) {
        self.unsettled.push_back(id);
    }

    /// Frees a batch's row.
    pub(crate) fn remove(&mut self, id: RowId) {
        if self.row(id).is_none_or(|row| row.batch.is_none()) {
            return;
        }
        self.rows[usize::from(id.index)].batch = None;
        self.free.push(id.index);
        if let Some(place) = self.unsettled.iter().position(|kept| *kept == id) {
            self.unsettled.remove(place);
        }
    }

    /// Takes no batches from now on, and gives those that there are.
    pub(crate) fn close(&mut self) -> Vec<(RowId, Arc<Shared>)> {
        self.closed = true;
        let rows = std::mem::take(&mut self.rows).into_iter().zip(0..);
        rows.filter_map(|(row, index)| {
            let generation = row.generation;
            Some((RowId { index, generation }, row.batch?))
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use polyrail_core::report::{Local, Remote, Report, Status};

    use super::*;
    use crate::post::Order;
    use crate::segments::Holds;

    /// As many as tags can name.
    const MOST: usize = ROWS_MAX;

    fn add(rows: &mut BatchRows) -> Result<RowId, NoRow> {
        rows.add(|row| Arc::new(Shared::new(row, Holds::default(), Order::default(), None)))
            .map(|b| b.row)
    }

    fn full() -> (BatchRows, Vec<RowId>) {
        let mut rows = BatchRows::new(MOST);
        let ids = (0..MOST).map(|_| add(&mut rows).unwrap()).collect();
        (rows, ids)
    }

    #[test]
    fn tags_name_row_generation_and_position() {
        let row = RowId {
            index: (MOST - 1) as u16,
            generation: GENERATION_MASK - 1,
        };
        for position in [0, 1, 1 << 16, BATCH_MAX - 1] {
            assert_eq!(RowId::from_tag(row.tag(position)), (row, position));
        }
    }

    #[test]
    fn a_row_is_given_back_once_and_its_old_name_means_nothing() {
        let (mut rows, ids) = full();
        assert_eq!(add(&mut rows), Err(NoRow::Full));
        rows.remove(ids[7]);
        rows.remove(ids[7]);
        let new = add(&mut rows).unwrap();
        assert_eq!(
            (new.index, rows.get(ids[7]).is_none()),
            (ids[7].index, true)
        );
        rows.remove(ids[7]);
        assert!(rows.get(new).is_some(), "an old name removes nothing new");
        assert_eq!(add(&mut rows), Err(NoRow::Full));
    }

    #[test]
    fn batches_that_wait_for_proof_make_room_the_oldest_first() {
        // They kept their rows until proof came: as many writes to a peer that never came back as there are
        // rows, and the worker took nothing any more.
        let (mut rows, ids) = full();
        rows.keep(ids[5]);
        rows.keep(ids[3]);
        assert_eq!(add(&mut rows).unwrap().index, ids[5].index);
        assert!(rows.get(ids[5]).is_none() && rows.get(ids[3]).is_some());
        assert_eq!(add(&mut rows).unwrap().index, ids[3].index);
        assert_eq!(
            add(&mut rows),
            Err(NoRow::Full),
            "the others have not ended"
        );
    }

    #[test]
    fn a_batch_whose_memory_is_held_keeps_its_row() {
        let mut rows = BatchRows::new(MOST);
        let held = Report {
            status: Status::Indeterminate,
            delivered_bytes: 0,
            cause: None,
            local: Local::Held,
            remote: Remote::Unknown,
        };
        for _ in 0..MOST {
            let batch = rows
                .add(|row| Arc::new(Shared::with_reports(row, vec![held])))
                .unwrap();
            rows.keep(batch.row);
        }
        assert_eq!(add(&mut rows), Err(NoRow::Full));
    }

    #[test]
    fn a_closed_table_takes_nothing() {
        let (mut rows, _) = full();
        assert_eq!(rows.close().len(), MOST);
        assert_eq!(add(&mut rows), Err(NoRow::Closed));
    }
}
