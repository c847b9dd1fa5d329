//! What tables need to be written whole and read back, without memory of their own.

use core::fmt;
use core::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeSeq, Serializer};

/// Rows of a table with their numbers: those that there is something to say of.
pub(crate) struct Sparse<F>(pub(crate) F);

impl<F, I, T> Serialize for Sparse<F>
where
    F: Fn() -> I,
    I: Iterator<Item = (u32, T)>,
    T: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rows = serializer.serialize_seq(Some((self.0)().count()))?;
        for row in (self.0)() {
            rows.serialize_element(&row)?;
        }
        rows.end()
    }
}

/// Puts what [`Sparse`] has written, row by row, where the function says; `None`: there is no such row.
pub(crate) struct IntoSparse<T, F>(F, PhantomData<fn(T)>);

impl<T, F: FnMut(u32, T) -> Option<()>> IntoSparse<T, F> {
    pub(crate) fn new(put: F) -> Self {
        Self(put, PhantomData)
    }
}

impl<'de, T: serde::Deserialize<'de>, F: FnMut(u32, T) -> Option<()>> DeserializeSeed<'de>
    for IntoSparse<T, F>
{
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: serde::Deserialize<'de>, F: FnMut(u32, T) -> Option<()>> Visitor<'de>
    for IntoSparse<T, F>
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rows with their numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut rows: A) -> Result<(), A::Error> {
        while let Some((index, row)) = rows.next_element()? {
            (self.0)(index, row).ok_or_else(no_row)?;
        }
        Ok(())
    }
}

/// Puts rows that were written as a list into the first rows of a table. Returns how many they were.
pub(crate) struct IntoRows<'r, T>(pub(crate) &'r mut [T]);

impl<'de, T: serde::Deserialize<'de>> DeserializeSeed<'de> for IntoRows<'_, T> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: serde::Deserialize<'de>> Visitor<'de> for IntoRows<'_, T> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} rows", self.0.len())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<usize, A::Error> {
        let mut count = 0;
        while let Some(row) = rows.next_element()? {
            *self.0.get_mut(count).ok_or_else(no_row)? = row;
            count += 1;
        }
        Ok(count)
    }
}

/// The next element of a tuple, which has to be there.
pub(crate) fn next<'de, A: SeqAccess<'de>, T: serde::Deserialize<'de>>(
    parts: &mut A,
) -> Result<T, A::Error> {
    parts.next_element()?.ok_or_else(too_short)
}

/// The same for one that is read in place.
pub(crate) fn next_into<'de, A: SeqAccess<'de>, S: DeserializeSeed<'de>>(
    parts: &mut A,
    seed: S,
) -> Result<S::Value, A::Error> {
    parts.next_element_seed(seed)?.ok_or_else(too_short)
}

fn no_row<E: Error>() -> E {
    E::custom("more rows than the table has")
}

fn too_short<E: Error>() -> E {
    E::custom("a snapshot that ends early")
}
