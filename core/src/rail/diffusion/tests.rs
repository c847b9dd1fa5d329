extern crate std;
use super::*;
use quickcheck::quickcheck;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::vec::Vec;

const SIZE: Geometry = Geometry {
    rows: 4,
    columns: 2,
};
const STALE_AFTER: Duration = Duration::from_millis(100);
/// Words before the first row.
const HEAD: usize = 4;

fn memory() -> Vec<AtomicU64> {
    (0..SIZE.words()).map(|_| AtomicU64::new(0)).collect()
}

fn ms(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

fn process(pid: u32) -> ProcessId {
    ProcessId::new(pid, u64::from(pid) * 1_000).unwrap()
}

fn name(hash: u64) -> NonZeroU64 {
    NonZeroU64::new(hash).unwrap()
}

fn config(parts: u16) -> DiffusionConfig {
    DiffusionConfig {
        weight: Weight::new(parts).unwrap(),
        stale_after: STALE_AFTER,
    }
}

fn join(words: &[AtomicU64], at: Instant, pid: u32) -> Option<Diffusion<'_>> {
    let record = Record::new(words, SIZE).unwrap();
    Diffusion::join(at, record, process(pid), config(WEIGHT_ONE))
}

fn others(of: &Diffusion<'_>, at: Instant) -> [u64; 2] {
    let mut bytes = [99; 2];
    of.others(at, &mut bytes);
    bytes
}

#[test]
fn everybody_sees_the_others_load_weighted_and_not_its_own() {
    let words = memory();
    let [a, b] = [1, 2].map(|pid| join(&words, ms(0), pid).unwrap());
    let record = Record::new(&words, SIZE).unwrap();
    let third = Diffusion::join(ms(0), record, process(3), config(256)).unwrap();
    // Each finds the device under its name, whoever asks first.
    let (fast, slow) = (a.column(name(7)).unwrap(), b.column(name(8)).unwrap());
    assert_eq!(
        (b.column(name(7)), a.column(name(8))),
        (Some(fast), Some(slow))
    );
    assert_ne!(fast, slow);
    assert_eq!(third.column(name(9)), None, "no column is left");
    assert!(
        a.publish(ms(1), fast, 1_000) && b.publish(ms(1), fast, 500) && b.publish(ms(1), slow, 40)
    );
    assert_eq!(others(&a, ms(2)), [500, 40]);
    assert_eq!(others(&b, ms(2)), [1_000, 0]);
    assert_eq!(others(&third, ms(2)), [375, 10], "a quarter");
    assert!(a.publish(ms(3), fast, 0));
    assert_eq!(others(&b, ms(3)), [0, 0]);
    // More or fewer columns than there are: no matter.
    let mut many = [1; 5];
    third.others(ms(3), &mut many);
    assert_eq!(many, [125, 10, 0, 0, 0]);
}

#[test]
fn a_weight_of_nothing_has_no_diffusion() {
    assert_eq!(Weight::new(0), None);
    assert_eq!(Weight::new(WEIGHT_ONE + 1), Weight::new(WEIGHT_ONE));
}

#[test]
fn only_a_recent_heartbeat_counts() {
    // (name, beat at ms, seen at ms, bytes)
    let cases = [
        ("just now", 1_000, 1_000, 64),
        ("old, but not too old", 1_000, 1_100, 64),
        ("too old", 1_000, 1_101, 0),
        ("clocks read in another order", 1_000, 990, 64),
        ("a time to come", 1_000, 899, 0),
    ];
    for (name, beat, seen, bytes) in cases {
        let words = memory();
        let [a, b] = [1, 2].map(|pid| join(&words, ms(0), pid).unwrap());
        assert!(a.publish(ms(500), Column(0), 64));
        assert!(a.beat(ms(beat)), "{name}");
        assert_eq!(others(&b, ms(seen)), [bytes, 0], "{name}");
    }
}

#[test]
fn the_row_of_the_dead_is_reclaimed_and_what_it_wrote_counts_nothing() {
    let words = memory();
    let dead = join(&words, ms(0), 1).unwrap();
    let rest = [2, 3, 4].map(|pid| join(&words, ms(0), pid).unwrap());
    assert!(dead.publish(ms(0), Column(1), 512));
    assert!(join(&words, ms(1), 5).is_none(), "all rows are taken");

    let record = rest[0].record();
    let holder = record.holders().find(|row| row.process.pid() == 1).unwrap();
    assert!(holder.process.began(1_000) && !holder.process.began(1_001));
    assert_eq!(record.holders().count(), 4);
    assert!(record.reclaim(&holder));
    assert!(!record.reclaim(&holder), "somebody was quicker");
    assert_eq!(others(&rest[0], ms(1)), [0, 0]);

    let heir = join(&words, ms(1), 5).unwrap();
    assert!(!record.reclaim(&holder), "the row is another's now");
    assert_eq!(others(&rest[0], ms(1)), [0, 0], "what the dead left there");
    assert!(
        !dead.publish(ms(1), Column(1), 512),
        "it learns that it was taken for dead"
    );
    assert_eq!(others(&rest[0], ms(1)), [0, 0], "what it wrote late");
    dead.leave();
    assert!(
        heir.publish(ms(2), Column(1), 3),
        "a late goodbye is not the heir's"
    );
    assert_eq!(others(&rest[0], ms(2)), [0, 3]);
    heir.leave();
    assert_eq!(others(&rest[0], ms(2)), [0, 0]);
    assert_eq!(record.holders().count(), 3);
}

#[test]
fn memory_that_is_no_such_record_is_refused() {
    let [none, wide] = [(0, 2), (4, 257)].map(|(rows, columns)| Geometry { rows, columns });
    // (name, first word, second word, geometry, words less, error)
    let wrong_size = |needed, found| Err(RecordError::WrongSize { needed, found });
    let found = SIZE.words();
    let cases = [
        ("zeros become one", 0, 0, SIZE, 0, Ok(())),
        (
            "something else",
            5,
            0,
            SIZE,
            0,
            Err(RecordError::NotThis { magic: 5 }),
        ),
        (
            "another geometry",
            0,
            9,
            SIZE,
            0,
            Err(RecordError::OtherGeometry { geometry: 9 }),
        ),
        ("too short", 0, 0, SIZE, 1, wrong_size(found, found - 1)),
        ("nothing at all", 0, 0, SIZE, found, wrong_size(found, 0)),
        ("no rows", 0, 0, none, found - 4, wrong_size(4, 4)),
        (
            "too many columns",
            0,
            0,
            wide,
            0,
            wrong_size(2 + 257 + 4 * 259, found),
        ),
    ];
    for (name, magic, size, geometry, less, expected) in cases {
        let words = memory();
        words[0].store(magic, Relaxed);
        words[1].store(size, Relaxed);
        let record = Record::new(&words[..found - less], geometry);
        assert_eq!(record.map(drop), expected, "{name}");
    }
    let words = memory();
    assert!(Record::new(&words, SIZE).is_ok() && Record::new(&words, SIZE).is_ok());
}

#[test]
fn processes_are_what_the_system_numbers_so() {
    assert_eq!(ProcessId::new(0, 1), None);
    assert_eq!(ProcessId::new(1 << 22, 1), None);
    let last = ProcessId::new((1 << 22) - 1, u64::MAX).unwrap();
    assert_eq!(last.pid(), (1 << 22) - 1);
    assert!(last.began(u64::MAX) && !last.began(u64::MAX - 1));
}

#[test]
fn absurd_numbers_count_as_nothing() {
    // What is published is bounded, so what is beyond is no process's.
    let words = memory();
    let [a, b] = [1, 2].map(|pid| join(&words, ms(0), pid).unwrap());
    assert!(a.publish(ms(0), Column(0), u64::MAX));
    assert_eq!(others(&b, ms(0)), [ROW_BYTES_MAX, 0]);
    let column = &words[HEAD + 2];
    let honest = column.load(Relaxed);
    column.store(honest + 1, Relaxed);
    assert_eq!(others(&b, ms(0)), [0, 0], "one byte more than anybody has");
    column.store(honest ^ 1 << 48, Relaxed);
    assert_eq!(others(&b, ms(0)), [0, 0], "written under another lease");
}

quickcheck! {
    fn whatever_the_memory_holds_is_bounded(garbage: Vec<(u8, u64)>, at: u64) -> bool {
        let words = memory();
        let own = join(&words, Instant::from_nanos(at), 1).unwrap();
        for (index, value) in garbage {
            words[usize::from(index) % words.len()].store(value, Relaxed);
        }
        let bytes = others(&own, Instant::from_nanos(at));
        own.column(name(at | 1));
        own.record().holders().count() <= 4
            && bytes.iter().all(|bytes| *bytes <= 3 * ROW_BYTES_MAX)
    }

    /// Against a plain model: processes come, publish, go silent, die, and are buried by others.
    fn the_sums_are_those_of_the_living(ops: Vec<(u8, u8, u16)>) -> bool {
        let words = memory();
        let watcher = join(&words, ms(0), 100).unwrap();
        let record = Record::new(&words, SIZE).unwrap();
        let mut now = 0;
        // The living: process, last sign of life, bytes. The dead count too until their heartbeat is old.
        let mut living: Vec<(Option<Diffusion<'_>>, u32, u64, [u64; 2])> = Vec::new();
        let mut pid = 100;
        for (op, who, value) in ops {
            let who = usize::from(who) % living.len().max(1);
            match op % 6 {
                0 => {
                    pid += 1;
                    let joined = join(&words, ms(now), pid);
                    if joined.is_some() != (living.len() < 3) { return false }
                    living.extend(joined.map(|one| (Some(one), pid, now, [0; 2])));
                }
                1 => if let Some((Some(one), _, beat, bytes)) = living.get_mut(who) {
                    let column = value % 2;
                    if !one.publish(ms(now), Column(column), u64::from(value)) { return false }
                    (*beat, bytes[usize::from(column)]) = (now, u64::from(value));
                },
                2 => if let Some((killed, ..)) = living.get_mut(who) { *killed = None },
                3 => if let Some((None, pid, ..)) = living.get(who) {
                    let dead = record.holders().find(|row| row.process == process(*pid)).unwrap();
                    if !record.reclaim(&dead) { return false }
                    living.remove(who);
                },
                4 => if living.get(who).is_some_and(|(one, ..)| one.is_some()) {
                    living.remove(who).0.unwrap().leave();
                },
                _ => now += u64::from(value % 70),
            }
            let expected = [0, 1].map(|column| living.iter()
                .filter(|(_, _, beat, _)| now - beat <= 100)
                .map(|(.., bytes)| bytes[column]).sum::<u64>());
            if others(&watcher, ms(now)) != expected || record.holders().count() != living.len() + 1 {
                return false;
            }
        }
        true
    }
}
