//! All interleavings of an agent and its clients, by `loom`.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p polyrail-core --lib --release loom_tests`

extern crate std;
use super::*;
use crate::time::{Duration, Instant};
use core::sync::atomic::Ordering::Relaxed;
use loom::thread;
use std::sync::Arc;
use std::vec::Vec;

#[derive(Clone)]
struct Memory(Arc<Vec<AtomicU64>>);

impl core::ops::Deref for Memory {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

fn memory(slots: u32) -> Memory {
    let words: Vec<_> = (0..words_for(slots)).map(|_| AtomicU64::new(0)).collect();
    // Loom is to know them all before there are threads.
    words.iter().for_each(|word| {
        word.load(Relaxed);
    });
    Memory(Arc::new(words))
}

fn attach(memory: &Memory, pid: u32) -> Result<HintReader<Memory>, NoHint> {
    let connection = Connection {
        own: IpAddr::from([10, 0, 1, 2]),
        peer: IpAddr::from([10, 0, 2, 3]),
    };
    let client = Client { pid, started: 1 };
    HintReader::attach(memory.clone(), client, connection, Duration::MAX)
}

/// Shares that reach into both words of a block.
fn hint(part: u16) -> Option<Shares> {
    let mut parts = [0; CLASSES_MAX];
    (parts[0], parts[1], parts[7]) = (part, 1024 - 2 * part, part);
    Shares::new(parts).ok()
}

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Without a bound these take hours.
    builder.preemption_bound = Some(3);
    builder.check(test);
}

#[test]
fn a_block_is_read_whole_or_not_at_all() {
    model(|| {
        let memory = memory(0);
        Header::of(&memory).unwrap().all().write(1, hint(100));
        let writer = thread::spawn({
            let memory = memory.clone();
            move || {
                let block = Header::of(&memory).unwrap().all();
                block.write(2, hint(200));
            }
        });
        let block = Header::of(&memory).unwrap().all();
        if let Some(seen) = block.read() {
            let written = [(1, hint(100)), (2, hint(200))];
            assert!(written.contains(&seen), "{seen:?}");
        }
        writer.join().unwrap();
        assert_eq!(block.read(), Some((2, hint(200))));
    });
}

#[test]
fn a_reader_never_takes_another_agents_word_for_its_own() {
    model(|| {
        let memory = memory(1);
        let mut first = HintWriter::start(memory.clone(), Instant::ZERO).unwrap();
        first.set_all(hint(100));
        std::mem::forget(first);
        let reader = attach(&memory, 7).unwrap();
        let second = thread::spawn({
            let memory = memory.clone();
            move || {
                let mut second = HintWriter::start(memory, Instant::ZERO).unwrap();
                second.set_all(hint(200));
                std::mem::forget(second);
            }
        });
        let seen = reader.read(Instant::ZERO);
        assert!(seen.is_none() || seen == hint(100), "{seen:?}");
        second.join().unwrap();
        assert_eq!(reader.try_read(Instant::ZERO), Err(NoHint::Restarted));
    });
}

#[test]
fn a_slot_has_one_owner() {
    model(|| {
        let memory = memory(1);
        let agent = HintWriter::start(memory.clone(), Instant::ZERO).unwrap();
        let other = thread::spawn({
            let memory = memory.clone();
            move || attach(&memory, 8).unwrap()
        });
        let mine = attach(&memory, 7).unwrap();
        // Whatever can be seen of it now is of one of the two.
        for lease in agent.leases() {
            assert!(lease.client().is_none_or(|client| client.started == 1));
        }
        let other = other.join().unwrap();
        let owners = [&mine, &other].map(|reader| reader.connection_id().is_some());
        assert!(owners[0] != owners[1], "{owners:?}");
        drop((mine, other));
        assert_eq!(agent.leases().count(), 0);
    });
}

#[test]
fn what_is_said_of_one_lease_is_never_heard_by_the_next() {
    model(|| {
        let memory = memory(1);
        let mut agent = HintWriter::start(memory.clone(), Instant::ZERO).unwrap();
        let first = attach(&memory, 7).unwrap();
        let id = first.connection_id().unwrap();
        let turns = thread::spawn({
            let memory = memory.clone();
            move || {
                drop(first);
                let next = attach(&memory, 8).unwrap();
                assert_eq!(next.read(Instant::ZERO), None);
            }
        });
        let _ = agent.set(id, hint(100));
        turns.join().unwrap();
    });
}
