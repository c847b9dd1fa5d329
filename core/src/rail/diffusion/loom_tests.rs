//! Every order in which processes can take, give back and read rows, tried by loom.

use super::*;
use crate::sync::AtomicU64;
use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::Ordering::*;
use std::vec::Vec;

const NOW: Instant = Instant::from_nanos(1);
const CONFIG: DiffusionConfig = DiffusionConfig {
    weight: Weight(NonZeroU16::new(WEIGHT_ONE).unwrap()),
    stale_after: Duration::from_millis(1),
};

fn memory(size: Geometry) -> Arc<Vec<AtomicU64>> {
    let words: Vec<_> = (0..size.words()).map(|_| AtomicU64::new(0)).collect();
    // Loom knows of a word from its first use on.
    assert_eq!(words.iter().map(|word| word.load(Relaxed)).sum::<u64>(), 0);
    Arc::new(words)
}

fn join(words: &[AtomicU64], size: Geometry, pid: u32) -> Option<Diffusion<'_>> {
    let record = Record::new(words, size).unwrap();
    Diffusion::join(NOW, record, ProcessId::new(pid, 1).unwrap(), CONFIG)
}

fn others(of: &Diffusion<'_>) -> u64 {
    let mut bytes = [0];
    of.others(NOW, &mut bytes);
    bytes[0]
}

const ONE: Geometry = Geometry {
    rows: 1,
    columns: 1,
};
const TWO: Geometry = Geometry {
    rows: 2,
    columns: 1,
};

#[test]
fn one_row_is_taken_once() {
    loom::model(|| {
        let words = memory(ONE);
        let other = words.clone();
        let there = thread::spawn(move || join(&other, ONE, 1).is_some());
        let here = join(&words, ONE, 2).is_some();
        assert!(here ^ there.join().unwrap(), "exactly one has it");
    });
}

#[test]
fn one_name_gets_one_column_and_two_get_two() {
    const SIZE: Geometry = Geometry {
        rows: 1,
        columns: 2,
    };
    for (first, second) in [(7, 7), (7, 8)] {
        loom::model(move || {
            let words = memory(SIZE);
            let other = words.clone();
            let column = |words: &[AtomicU64], name| {
                let record = Record::new(words, SIZE).unwrap();
                record.column(NonZeroU64::new(name).unwrap()).unwrap()
            };
            let there = thread::spawn(move || column(&other, first));
            let here = column(&words, second);
            assert_eq!(here == there.join().unwrap(), first == second);
        });
    }
}

#[test]
fn the_dead_are_buried_once_and_the_row_has_one_heir() {
    loom::model(|| {
        let words = memory(ONE);
        let dead = join(&words, ONE, 1).unwrap();
        let holder = dead.record().holders().next().unwrap();
        let bury = move |words: &[AtomicU64], pid| {
            let record = Record::new(words, ONE).unwrap();
            let buried = record.reclaim(&holder);
            (buried, join(words, ONE, pid).is_some())
        };
        let other = words.clone();
        let there = thread::spawn(move || bury(&other, 2));
        let here = bury(&words, 3);
        let there = there.join().unwrap();
        assert!(here.0 ^ there.0, "one of the two buries it");
        assert!(here.1 ^ there.1, "and one has the row then");
        assert!(!dead.beat(NOW));
    });
}

#[test]
fn nobody_sees_the_load_of_the_dead_as_its_heirs() {
    loom::model(|| {
        let words = memory(TWO);
        let reader = join(&words, TWO, 1).unwrap();
        let dead = join(&words, TWO, 2).unwrap();
        dead.publish(NOW, Column(0), 500);
        let holder = dead.record().holders().nth(1).unwrap();
        assert!(dead.record().reclaim(&holder));
        let other = words.clone();
        let heir = thread::spawn(move || {
            join(&other, TWO, 3).unwrap().publish(NOW, Column(0), 7);
        });
        let seen = others(&reader);
        assert!(seen == 0 || seen == 7, "{seen}");
        heir.join().unwrap();
        assert_eq!(others(&reader), 7);
    });
}
