//! Handles: numbers that name what the library keeps for a program.
//!
//! A handle says which kind of thing it names, where that is in its table, and of which generation: a place that is
//! used again has another one. So whatever number a program comes with, it names a thing that exists or it is an
//! error. A place that has had all its generations is not used again.
//!
//! A forked child starts with empty tables. What its parent had stays where it is, untouched, because its locks may be
//! held for ever in the child; the parent's handles say there that they are the parent's.

use std::fmt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering::*};
use std::sync::{Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::failure::Failure;
use crate::words::{POLYRAIL_ERROR_FORKED, POLYRAIL_ERROR_FULL, POLYRAIL_ERROR_HANDLE};

/// Things of one kind that there can be at a time.
const PLACES_MAX: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 32;
const PROCESS_BITS: u32 = 4;
/// How many processes, each forked from the last one, have names of their own.
const PROCESSES: u8 = 1 << PROCESS_BITS;

/// Kinds of things, none of which is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    Engine = 1,
    Segment,
    Batch,
    Queue,
    Delivery,
    Prepared,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Engine,
        Self::Segment,
        Self::Batch,
        Self::Queue,
        Self::Delivery,
        Self::Prepared,
    ];

    fn of(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u64 == number)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Engine => "an engine",
            Self::Segment => "a segment",
            Self::Batch => "a batch",
            Self::Queue => "a queue",
            Self::Delivery => "a delivery",
            Self::Prepared => "a prepared transfer",
        })
    }
}

/// A handle taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Parts {
    kind: u64,
    process: u8,
    generation: u32,
    index: usize,
}

impl Parts {
    fn of(bits: u64) -> Self {
        Self {
            kind: bits >> (INDEX_BITS + GENERATION_BITS + PROCESS_BITS),
            process: (bits >> (INDEX_BITS + GENERATION_BITS)) as u8 % PROCESSES,
            generation: (bits >> INDEX_BITS) as u32,
            index: bits as usize % PLACES_MAX,
        }
    }

    fn bits(self) -> u64 {
        let high = self.kind << PROCESS_BITS | u64::from(self.process);
        (high << GENERATION_BITS | u64::from(self.generation)) << INDEX_BITS | self.index as u64
    }
}

/// Which of the processes that were forked from each other this is.
static PROCESS: AtomicU8 = AtomicU8::new(0);
static WATCH_FORKS: Once = Once::new();

/// What a table of some kind has to do in a child.
pub(crate) trait Inherited: Sync {
    /// Forgets what the parent had, without touching it.
    fn forget(&self);
}

/// Runs in a forked child before `fork` returns: nothing but atomics.
extern "C" fn in_child() {
    let name = PROCESS.load(Relaxed);
    PROCESS.store((name + 1) % PROCESSES, Relaxed);
    crate::engine::ENGINES.forget();
    crate::segment::SEGMENTS.forget();
    crate::batch::BATCHES.forget();
    crate::queue::QUEUES.forget();
    crate::notification::DELIVERIES.forget();
    crate::prepared::PREPARED.forget();
}

/// All things of one kind.
pub(crate) struct Table<T> {
    kind: Kind,
    /// Null: none yet in this process. Never freed.
    places: AtomicPtr<RwLock<Places<T>>>,
}

struct Places<T> {
    rows: Vec<Row<T>>,
    free: Vec<u32>,
}

struct Row<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Inherited for Table<T>
where
    T: Send + Sync,
{
    fn forget(&self) {
        self.places.store(null_mut(), Relaxed);
    }
}

impl<T: Clone> Table<T> {
    /// An empty one.
    pub(crate) const fn new(kind: Kind) -> Self {
        let places = AtomicPtr::new(null_mut());
        Self { kind, places }
    }

    fn places(&self) -> &'static RwLock<Places<T>>
    where
        T: 'static,
    {
        let mut known = self.places.load(Acquire);
        if known.is_null() {
            WATCH_FORKS.call_once(|| {
                // SAFETY: the handler only stores to atomics, as is allowed in a child. Should there be no memory to
                // note it, children have their parent's tables, whose engines tell them that they are not theirs.
                let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            });
            let places = Places {
                rows: Vec::new(),
                free: Vec::new(),
            };
            let fresh = Box::into_raw(Box::new(RwLock::new(places)));
            let first = self
                .places
                .compare_exchange(null_mut(), fresh, AcqRel, Acquire);
            known = first.map_or_else(
                |other| {
                    // SAFETY: it was made here and nobody else knows it.
                    drop(unsafe { Box::from_raw(fresh) });
                    other
                },
                |_| fresh,
            );
        }
        // SAFETY: it was made by `Box::into_raw` and is never freed.
        unsafe { &*known }
    }

    fn read(&self) -> RwLockReadGuard<'static, Places<T>>
    where
        T: 'static,
    {
        self.places().read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'static, Places<T>>
    where
        T: 'static,
    {
        self.places()
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a thing, and names it.
    pub(crate) fn add(&self, value: T) -> Result<u64, Failure>
    where
        T: 'static,
    {
        let mut places = self.write();
        let index = match places.free.pop() {
            Some(index) => index as usize,
            None if places.rows.len() < PLACES_MAX => {
                places.rows.push(Row {
                    generation: 0,
                    value: None,
                });
                // So that nothing is allocated where it is freed.
                let rows = places.rows.len();
                if places.free.capacity() < rows {
                    let more = places.rows.capacity() - places.free.len();
                    places.free.reserve(more);
                }
                rows - 1
            }
            None => {
                let text = format!(
                    "there are {PLACES_MAX} handles like that of {} already: free some",
                    self.kind
                );
                return Err(Failure::new(POLYRAIL_ERROR_FULL, text));
            }
        };
        let row = &mut places.rows[index];
        row.generation += 1;
        row.value = Some(value);
        let parts = Parts {
            kind: self.kind as u64,
            process: PROCESS.load(Relaxed),
            generation: row.generation,
            index,
        };
        Ok(parts.bits())
    }

    /// What a handle names.
    pub(crate) fn get(&self, bits: u64) -> Result<T, Failure>
    where
        T: 'static,
    {
        let parts = self.check(bits)?;
        let places = self.read();
        let row = places.rows.get(parts.index);
        let row = row.filter(|row| row.generation == parts.generation);
        let value = row.and_then(|row| row.value.clone());
        value.ok_or_else(|| self.stale(bits))
    }

    /// Takes out what a handle names: it names nothing from now on.
    pub(crate) fn take(&self, bits: u64) -> Result<T, Failure>
    where
        T: 'static,
    {
        let parts = self.check(bits)?;
        let mut places = self.write();
        let row = places.rows.get_mut(parts.index);
        let row = row.filter(|row| row.generation == parts.generation);
        let value = row.and_then(|row| row.value.take());
        let value = value.ok_or_else(|| self.stale(bits))?;
        if parts.generation < u32::MAX {
            places.free.push(parts.index as u32);
        }
        Ok(value)
    }

    /// Takes out all that are so.
    pub(crate) fn take_all(&self, are_so: impl Fn(&T) -> bool) -> Vec<T>
    where
        T: 'static,
    {
        let mut places = self.write();
        let Places { rows, free } = &mut *places;
        let mut taken = Vec::new();
        for (index, row) in (0..).zip(rows) {
            let Some(value) = row.value.take_if(|value| are_so(value)) else {
                continue;
            };
            taken.push(value);
            if row.generation < u32::MAX {
                free.push(index);
            }
        }
        taken
    }

    /// Whether a number can be a handle of this kind and process.
    fn check(&self, bits: u64) -> Result<Parts, Failure> {
        let kind = self.kind;
        let wrong = |text: String| Err(Failure::new(POLYRAIL_ERROR_HANDLE, text));
        if bits == 0 {
            return wrong(format!("a null handle: {kind} is needed"));
        }
        let parts = Parts::of(bits);
        match Kind::of(parts.kind) {
            None => return wrong(format!("{bits:#x} is no handle: {kind} is needed")),
            Some(other) if other != kind => {
                return wrong(format!("{bits:#x} names {other}: {kind} is needed"));
            }
            Some(_) => {}
        }
        if parts.process != PROCESS.load(Relaxed) {
            let text = format!(
                "{bits:#x} belongs to the process that this one was forked from: make {kind} in this process"
            );
            return Err(Failure::new(POLYRAIL_ERROR_FORKED, text));
        }
        Ok(parts)
    }

    fn stale(&self, bits: u64) -> Failure {
        let text = format!(
            "{bits:#x} names {} that has been freed, or never was",
            self.kind
        );
        Failure::new(POLYRAIL_ERROR_HANDLE, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: Table<u32> = Table::new(Kind::Queue);
    static OTHERS: Table<u32> = Table::new(Kind::Batch);

    fn said<T: fmt::Debug>(result: Result<T, Failure>) -> (i32, String) {
        let failure = result.unwrap_err();
        (failure.code, failure.text)
    }

    #[test]
    fn a_handle_names_its_thing_until_it_is_freed_and_never_another() {
        let one = TABLE.add(1).unwrap();
        let two = TABLE.add(2).unwrap();
        assert_eq!((TABLE.get(one).unwrap(), TABLE.get(two).unwrap()), (1, 2));
        assert_eq!(TABLE.take(one).unwrap(), 1);
        let three = TABLE.add(3).unwrap();
        for freed in [TABLE.get(one), TABLE.take(one)] {
            let (code, text) = said(freed);
            assert_eq!(code, POLYRAIL_ERROR_HANDLE);
            assert!(text.contains("has been freed"), "{text}");
        }
        assert_eq!(TABLE.get(three).unwrap(), 3);
        assert_eq!(TABLE.take_all(|value| *value == 2), [2]);
        assert!(TABLE.get(two).is_err() && TABLE.get(three).is_ok());
    }

    #[test]
    fn null_foreign_and_made_up_handles_are_errors() {
        let foreign = OTHERS.add(1).unwrap();
        let ours = TABLE.add(1).unwrap();
        let inherited = Parts {
            process: Parts::of(ours).process + 1,
            ..Parts::of(ours)
        };
        // (handle, code, words)
        let cases = [
            (0, POLYRAIL_ERROR_HANDLE, "a null handle"),
            (
                foreign,
                POLYRAIL_ERROR_HANDLE,
                "names a batch: a queue is needed",
            ),
            (7, POLYRAIL_ERROR_HANDLE, "is no handle"),
            (u64::MAX, POLYRAIL_ERROR_HANDLE, "is no handle"),
            (ours + 1, POLYRAIL_ERROR_HANDLE, "or never was"),
            (inherited.bits(), POLYRAIL_ERROR_FORKED, "forked"),
        ];
        for (bits, code, words) in cases {
            for answer in [TABLE.get(bits), TABLE.take(bits)] {
                let (told, text) = said(answer);
                assert_eq!(told, code, "{bits:#x}");
                assert!(text.contains(words), "{text}");
            }
        }
        assert_eq!(TABLE.take(ours).unwrap(), 1, "it was not touched");
    }

    #[test]
    fn parts_go_together_again() {
        let parts = Parts {
            kind: Kind::Prepared as u64,
            process: PROCESSES - 1,
            generation: u32::MAX,
            index: PLACES_MAX - 1,
        };
        assert_eq!(Parts::of(parts.bits()), parts);
    }

    #[test]
    fn a_place_whose_generations_are_used_up_is_not_used_again() {
        static LAST: Table<u32> = Table::new(Kind::Engine);
        let first = LAST.add(1).unwrap();
        LAST.write().rows[0].generation = u32::MAX;
        let last = Parts {
            generation: u32::MAX,
            ..Parts::of(first)
        };
        assert_eq!(LAST.take(last.bits()).unwrap(), 1);
        assert_eq!(Parts::of(LAST.add(2).unwrap()).index, 1);
    }
}
