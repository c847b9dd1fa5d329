//! Tables of fixed capacity whose ids carry a generation, over memory that the caller owns.

use core::marker::PhantomData;

/// An id made of a row and the generation of its use. See [`crate::units`] for the ones core has.
pub trait Id: Copy {
    /// From its two halves.
    fn new(index: u32, generation: u32) -> Self;
    /// The row.
    fn index(self) -> u32;
    /// How often the row has been used.
    fn generation(self) -> u32;
}

/// "No row", in links between rows.
pub(crate) const NIL: u32 = u32::MAX;

/// One row: free, or a value. Rows are the caller's memory; their content is the table's business.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Row<T> {
    generation: u32,
    content: Content<T>,
}

/// What is in a row. The free list takes no room of its own.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
enum Content<T> {
    /// The next free row.
    Free(u32),
    Value(T),
}

impl<T> Row<T> {
    /// A free row, for the arrays that a caller hands in.
    pub const EMPTY: Self = Self {
        generation: 0,
        content: Content::Free(NIL),
    };

    fn value(&self) -> Option<&T> {
        match &self.content {
            Content::Value(value) => Some(value),
            Content::Free(_) => None,
        }
    }

    fn value_mut(&mut self) -> Option<&mut T> {
        match &mut self.content {
            Content::Value(value) => Some(value),
            Content::Free(_) => None,
        }
    }
}

/// Rows with a free list. Inserting, finding and removing are O(1).
#[derive(Debug)]
pub(crate) struct Table<'a, T, I> {
    rows: &'a mut [Row<T>],
    free: u32,
    used: usize,
    ids: PhantomData<fn() -> I>,
}

impl<'a, T, I: Id> Table<'a, T, I> {
    /// Takes over `rows`, whatever was in them.
    pub(crate) fn new(rows: &'a mut [Row<T>]) -> Self {
        let count = u32::try_from(rows.len()).unwrap_or(NIL - 1).min(NIL - 1);
        for (index, row) in rows.iter_mut().enumerate() {
            let next = index as u32 + 1;
            row.content = Content::Free(if next < count { next } else { NIL });
        }
        Self {
            rows,
            free: if count == 0 { NIL } else { 0 },
            used: 0,
            ids: PhantomData,
        }
    }

    /// For a snapshot: the rows up to the last one that has ever been used, the first free row, and how many are in use.
    #[cfg(feature = "serde")]
    pub(crate) fn parts(&self) -> (&[Row<T>], u32, usize) {
        let used = |row: &Row<T>| row.generation != 0 || row.value().is_some();
        let count = self.rows.iter().rposition(used).map_or(0, |last| last + 1);
        let rows = self.rows.get(..count).unwrap_or_default();
        (rows, self.free, self.used)
    }

    /// For reading one back: where the rows go.
    #[cfg(feature = "serde")]
    pub(crate) fn rows_mut(&mut self) -> &mut [Row<T>] {
        self.rows
    }

    /// And the rest of it.
    #[cfg(feature = "serde")]
    pub(crate) fn set_parts(&mut self, free: u32, used: usize) {
        (self.free, self.used) = (free, used);
    }

    /// Rows in use.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Rows in all.
    pub(crate) fn capacity(&self) -> usize {
        self.rows.len()
    }

    /// The row that the next value goes to; [`NIL`] if there is none.
    pub(crate) fn next_row(&self) -> u32 {
        self.free
    }

    /// Puts a value into a free row; gives it back if there is none.
    pub(crate) fn insert(&mut self, value: T) -> Result<I, T> {
        let index = self.free;
        let Some(row) = self.rows.get_mut(index as usize) else {
            debug_assert_eq!(
                self.used,
                self.rows.len(),
                "rows are free that are not among the free ones"
            );
            return Err(value);
        };
        let Content::Free(next) = row.content else {
            debug_assert!(false, "row {index} is in use and among the free ones");
            return Err(value);
        };
        debug_assert!(next != index, "row {index} is free twice");
        self.free = next;
        self.used += 1;
        row.generation = row.generation.wrapping_add(1);
        row.content = Content::Value(value);
        let id = I::new(index, row.generation);
        debug_assert!(
            self.used <= self.rows.len(),
            "{} rows are in use of {}",
            self.used,
            self.rows.len()
        );
        Ok(id)
    }

    /// The value of `id`, unless its row has been freed since.
    pub(crate) fn get(&self, id: I) -> Option<&T> {
        let row = self.rows.get(id.index() as usize)?;
        if row.generation == id.generation() {
            row.value()
        } else {
            None
        }
    }

    /// The value of `id`, unless its row has been freed since.
    pub(crate) fn get_mut(&mut self, id: I) -> Option<&mut T> {
        let row = self.rows.get_mut(id.index() as usize)?;
        if row.generation == id.generation() {
            row.value_mut()
        } else {
            None
        }
    }

    /// Frees the row of `id` and gives its value.
    pub(crate) fn remove(&mut self, id: I) -> Option<T> {
        let row = self.rows.get_mut(id.index() as usize)?;
        if row.generation != id.generation() {
            return None;
        }
        row.value()?;
        let content = core::mem::replace(&mut row.content, Content::Free(self.free));
        self.free = id.index();
        debug_assert!(self.used > 0, "more rows are freed than were in use");
        self.used -= 1;
        match content {
            Content::Value(value) => Some(value),
            Content::Free(_) => None,
        }
    }

    /// The value in a row, whatever its generation.
    pub(crate) fn at(&self, index: u32) -> Option<&T> {
        self.rows.get(index as usize)?.value()
    }

    /// The value in a row, whatever its generation.
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.rows.get_mut(index as usize)?.value_mut()
    }

    /// The value in a row, with the id under which it is in use.
    pub(crate) fn entry_mut(&mut self, index: u32) -> Option<(I, &mut T)> {
        let row = self.rows.get_mut(index as usize)?;
        let id = I::new(index, row.generation);
        row.value_mut().map(|value| (id, value))
    }

    /// The id under which a row is in use now.
    pub(crate) fn id_at(&self, index: u32) -> Option<I> {
        let row = self.rows.get(index as usize)?;
        row.value().map(|_| I::new(index, row.generation))
    }

    /// All values with their ids, in the order of rows.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        self.rows.iter().enumerate().filter_map(|(index, row)| {
            row.value()
                .map(|value| (I::new(index as u32, row.generation), value))
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::units::RequestId;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    #[test]
    fn a_stale_id_finds_nothing() {
        let mut rows = [const { Row::EMPTY }; 2];
        let mut table: Table<'_, &str, RequestId> = Table::new(&mut rows);
        let first = table.insert("first").unwrap();
        assert_eq!(table.remove(first), Some("first"));
        let second = table.insert("second").unwrap();
        assert_eq!(first.index, second.index);
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(second), Some(&"second"));
    }

    #[test]
    fn a_full_table_gives_the_value_back() {
        let mut rows = [const { Row::EMPTY }; 1];
        let mut table: Table<'_, u8, RequestId> = Table::new(&mut rows);
        let id = table.insert(1).unwrap();
        assert_eq!(table.insert(2), Err(2));
        table.remove(id);
        assert!(table.insert(3).is_ok());
        assert_eq!((table.len(), table.capacity()), (1, 1));
    }

    #[test]
    fn a_table_without_rows_is_full() {
        let mut table: Table<'_, u8, RequestId> = Table::new(&mut []);
        assert_eq!(table.insert(1), Err(1));
    }

    quickcheck! {
        fn ids_find_what_they_were_given_for_until_it_is_removed(ops: Vec<(bool, u8)>) -> bool {
            let mut rows = [const { Row::EMPTY }; 5];
            let mut table: Table<'_, usize, RequestId> = Table::new(&mut rows);
            // All ids ever given, with their values as long as they live.
            let mut given: Vec<(RequestId, Option<usize>)> = Vec::new();
            for (value, (inserts, pick)) in ops.into_iter().enumerate() {
                let live = given.iter().filter(|(_, value)| value.is_some()).count();
                if inserts {
                    match table.insert(value) {
                        Ok(id) => given.push((id, Some(value))),
                        Err(back) => if back != value || live < 5 { return false },
                    }
                } else if !given.is_empty() {
                    let count = given.len();
                    let (id, value) = &mut given[usize::from(pick) % count];
                    if table.remove(*id) != value.take() { return false }
                }
                let mut found: Vec<_> = table.iter().map(|(id, value)| (id, *value)).collect();
                let mut lives: Vec<_> = given.iter().filter_map(|(id, value)| Some((*id, (*value)?))).collect();
                found.sort_unstable();
                lives.sort_unstable();
                let all_found = given.iter().all(|(id, value)| table.get(*id) == value.as_ref());
                if !all_found || found != lives || table.len() != lives.len() { return false }
            }
            true
        }
    }
}
