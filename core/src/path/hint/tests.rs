//! What an agent writes and a client reads.

extern crate std;
use super::*;
use crate::time::{Duration, Instant};
use quickcheck::quickcheck;
use std::sync::Arc;
use std::vec::Vec;
use std::{format, thread};

const AGE_MAX: Duration = Duration::from_millis(500);
const ME: Client = Client {
    pid: 4_000_000,
    started: 77,
};

#[derive(Clone, Debug)]
struct Memory(Arc<Vec<AtomicU64>>);

impl core::ops::Deref for Memory {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

fn memory(slots: u32) -> Memory {
    let words = (0..words_for(slots)).map(|_| AtomicU64::new(0));
    Memory(Arc::new(words.collect()))
}

fn ms(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

fn connection(last: u8) -> Connection {
    Connection {
        own: IpAddr::from([10, 0, 1, 2]),
        peer: IpAddr::from([10, 0, 2, last]),
    }
}

fn attach(memory: &Memory) -> Result<HintReader<Memory>, NoHint> {
    HintReader::attach(memory.clone(), ME, connection(3), AGE_MAX)
}

/// Ends an agent that does not say so.
fn kill(agent: HintWriter<Memory>, memory: &Memory) {
    let generation = Header::of(memory).unwrap().generation();
    let alive = generation.load(Relaxed);
    drop(agent);
    generation.store(alive, Relaxed);
}

fn half() -> Option<Shares> {
    Some(Shares::pair(512))
}

fn quarter() -> Option<Shares> {
    Some(Shares::pair(256))
}

#[test]
fn what_is_said_of_one_connection_wins_over_what_is_said_of_all() {
    let memory = memory(4);
    let mut agent = HintWriter::start(memory.clone(), ms(0)).unwrap();
    let reader = attach(&memory).unwrap();
    let id = reader.connection_id().unwrap();
    assert_eq!(reader.try_read(ms(0)), Err(NoHint::Unset));
    agent.set_all(half());
    assert_eq!(reader.read(ms(0)), half());
    agent.set(id, quarter()).unwrap();
    assert_eq!(reader.read(ms(0)), quarter());
    // Another connection hears what holds for all.
    assert_eq!(attach(&memory).unwrap().read(ms(0)), half());
    agent.set(id, None).unwrap();
    assert_eq!(reader.read(ms(0)), half());
    agent.set(id, quarter()).unwrap();
    agent.set_all(None);
    assert_eq!(reader.try_read(ms(0)), Err(NoHint::Unset));
}

#[test]
fn a_hint_counts_while_its_agent_lives() {
    // (name, heartbeat at ms, read at ms, age in ms if stale)
    let cases = [
        ("fresh", 1_000, 1_000, None),
        ("old enough to be seen", 1_000, 1_500, None),
        ("stale", 1_000, 1_501, Some(501)),
        ("a little ahead", 1_000, 500, None),
        ("of another boot", 600_000, 1_000, Some(599_000)),
    ];
    for (name, beat, at, age) in cases {
        let memory = memory(1);
        let mut agent = HintWriter::start(memory.clone(), ms(0)).unwrap();
        agent.set_all(half());
        let reader = attach(&memory).unwrap();
        agent.beat(ms(beat));
        let stale = age.map(|age| NoHint::Stale {
            age: Duration::from_millis(age),
        });
        assert_eq!(reader.try_read(ms(at)).err(), stale, "{name}");
        assert_eq!(reader.read(ms(at)).is_some(), age.is_none(), "{name}");
        agent.beat(ms(at));
        assert_eq!(reader.read(ms(at)), half(), "{name}: heard of again");
    }
}

#[test]
fn an_agent_that_ends_or_starts_anew_is_noticed() {
    let memory = memory(2);
    let mut first = HintWriter::start(memory.clone(), ms(0)).unwrap();
    let reader = attach(&memory).unwrap();
    first.set_all(half());
    assert_eq!(reader.read(ms(0)), half());
    // Killed: it does not say goodbye, and another one takes the record over.
    kill(first, &memory);
    let mut second = HintWriter::start(memory.clone(), ms(0)).unwrap();
    second.set_all(quarter());
    assert_eq!(reader.try_read(ms(0)), Err(NoHint::Restarted));
    assert_eq!(second.leases().count(), 0);
    drop(reader);
    let reader = attach(&memory).unwrap();
    assert_eq!(reader.read(ms(0)), quarter());
    drop(second);
    assert_eq!(reader.try_read(ms(0)), Err(NoHint::Absent));
    assert_eq!(attach(&memory).unwrap_err(), NoHint::Absent);
    // Starts are counted across an end that was good.
    let mut third = HintWriter::start(memory.clone(), ms(0)).unwrap();
    third.set_all(quarter());
    assert_eq!(reader.try_read(ms(0)), Err(NoHint::Restarted));
}

#[test]
fn a_writer_that_died_at_its_work_holds_nobody_up() {
    let memory = memory(1);
    let mut agent = HintWriter::start(memory.clone(), ms(0)).unwrap();
    agent.set_all(half());
    let reader = attach(&memory).unwrap();
    let block = Header::of(&memory).unwrap().all();
    block.sequence.fetch_add(1, Relaxed);
    block.shares[0].store(0, Relaxed);
    assert_eq!(reader.try_read(ms(0)), Err(NoHint::Torn));
    kill(agent, &memory);
    let mut next = HintWriter::start(memory.clone(), ms(0)).unwrap();
    next.set_all(quarter());
    assert_eq!(attach(&memory).unwrap().read(ms(0)), quarter());
}

#[test]
fn slots_are_leased_given_back_and_taken_from_the_dead() {
    let memory = memory(3);
    let mut agent = HintWriter::start(memory.clone(), ms(0)).unwrap();
    let dead = Client {
        pid: 1_234_567,
        started: 5,
    };
    let as_dead = |last| HintReader::attach(memory.clone(), dead, connection(last), AGE_MAX);
    let (one, two) = (as_dead(1).unwrap(), as_dead(2).unwrap());
    let mine = attach(&memory).unwrap();
    let seen: Vec<_> = agent
        .leases()
        .map(|lease| {
            (
                format!("{}", lease.id),
                lease.client(),
                lease.details.unwrap().1,
            )
        })
        .collect();
    let expected =
        [(dead, 1), (dead, 2), (ME, 3)].map(|(client, last)| (Some(client), connection(last)));
    let ids = ["0.1", "1.1", "2.1"];
    assert_eq!(
        seen,
        ids.into_iter()
            .zip(expected)
            .map(|(id, (client, connection))| (id.into(), client, connection))
            .collect::<Vec<_>>()
    );
    // All are taken: what holds for all holds for it.
    agent.set_all(half());
    let fourth = attach(&memory).unwrap();
    assert_eq!((fourth.connection_id(), fourth.read(ms(0))), (None, half()));
    // The number alone does not make a process the same.
    assert_eq!(agent.handle_client_gone(dead.pid, Some(6)), 0);
    assert_eq!(agent.handle_client_gone(dead.pid, None), 0);
    assert_eq!(agent.handle_client_gone(dead.pid, Some(5)), 2);
    assert_eq!(agent.handle_client_gone(dead.pid, Some(5)), 0);
    // Were it alive after all, it would hear nothing that is not for it.
    let id = one.connection_id().unwrap();
    assert_eq!(agent.set(id, quarter()), Err(NoSuchConnection(id)));
    assert_eq!(two.try_read(ms(0)), Err(NoHint::Restarted));
    let again = attach(&memory).unwrap();
    assert_eq!(format!("{}", again.connection_id().unwrap()), "0.2");
    agent
        .set(again.connection_id().unwrap(), quarter())
        .unwrap();
    assert_eq!(again.read(ms(0)), quarter());
    // And gives back nothing that is another's by now.
    drop(one);
    assert_eq!(agent.leases().count(), 2);
    drop((again, mine));
    assert_eq!(agent.leases().count(), 0);
    // What was said of an earlier lease is not for the next.
    assert_eq!(attach(&memory).unwrap().read(ms(0)), half());
}

#[test]
fn a_client_that_died_before_it_said_who_it_is_loses_its_slot_too() {
    let memory = memory(1);
    let mut agent = HintWriter::start(memory.clone(), ms(0)).unwrap();
    let slot = Slot::of(&memory, 0).unwrap();
    slot.lease().store(lease_word(9, 42), Relaxed);
    let lease = agent.leases().next().unwrap();
    assert_eq!((lease.pid, lease.client()), (42, None));
    assert_eq!(agent.handle_client_gone(42, Some(1)), 0);
    assert_eq!(agent.handle_client_gone(42, None), 1);
    assert_eq!(attach(&memory).unwrap().connection_id().unwrap().uses, 10);
}

#[test]
fn memory_that_holds_no_record_is_no_agent() {
    let good = |words: &Memory| {
        let mut agent = HintWriter::start(words.clone(), ms(0)).unwrap();
        agent.set_all(half());
        kill(agent, words);
    };
    let short = |count| Memory(Arc::new((0..count).map(|_| AtomicU64::new(0)).collect()));
    for words in [0, 1, words_for(1) - 1] {
        let words_min = words_for(1);
        let error = HintWriter::start(short(words), ms(0)).unwrap_err();
        assert_eq!(error, TooShort { words, words_min });
        assert_eq!(attach(&short(words)).unwrap_err(), NoHint::Absent);
    }
    // (name, word, value)
    let cases = [
        ("another version", 0, MAGIC + 1),
        ("no generation", 1, 0),
        ("more slots than memory", 3, 3),
        ("far more", 3, u64::MAX),
    ];
    for (name, word, value) in cases {
        let memory = memory(2);
        good(&memory);
        assert!(attach(&memory).is_ok(), "{name}");
        memory[word].store(value, Relaxed);
        assert_eq!(attach(&memory).unwrap_err(), NoHint::Absent, "{name}");
    }
    // Shares that do not add up are none.
    let memory = memory(1);
    good(&memory);
    memory[10].store(511, Relaxed);
    assert_eq!(attach(&memory).unwrap().try_read(ms(0)), Err(NoHint::Unset));
}

#[test]
fn threads_never_read_halves_of_two_hints() {
    const ROUNDS: u16 = if cfg!(miri) { 50 } else { 50_000 };
    let memory = memory(1);
    let mut agent = HintWriter::start(memory.clone(), ms(0)).unwrap();
    let reader = attach(&memory).unwrap();
    // Each of them reaches into both words.
    let hint = |round: u16| {
        let part = round % 513;
        let mut parts = [0; CLASSES_MAX];
        (parts[0], parts[1], parts[7]) = (part, 1024 - 2 * part, part);
        Shares::new(parts).unwrap()
    };
    agent.set_all(Some(hint(0)));
    thread::scope(|scope| {
        let seen = scope.spawn(move || {
            let mut hints = 0;
            while hints < ROUNDS {
                match reader.try_read(ms(0)) {
                    Ok(shares) => {
                        let parts = shares.parts();
                        assert_eq!(parts[0], parts[7]);
                        hints += 1;
                    }
                    Err(NoHint::Torn) => thread::yield_now(),
                    Err(other) => panic!("{other}"),
                }
            }
        });
        let mut round = 0;
        while !seen.is_finished() {
            round = (round + 1) % 513;
            agent.set_all(Some(hint(round)));
            thread::yield_now();
        }
        seen.join().unwrap();
    });
}

quickcheck! {
    fn shares_travel_as_two_words(shares: Shares) -> bool {
        shares_of(share_words(Some(shares))) == Some(shares) && shares_of(share_words(None)).is_none()
    }

    fn addresses_travel_as_two_words(address: IpAddr) -> bool {
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        store_address([&words[0], &words[1]], address);
        load_address([&words[0], &words[1]]) == address.to_canonical()
    }

    fn ids_are_read_as_they_are_said(slot: u32, uses: u32) -> bool {
        let id = ConnectionId { slot, uses };
        format!("{id}").parse() == Ok(id)
    }

    /// A peer that shares the memory can write what it wants; nothing of it makes us fall.
    fn any_memory_is_read_without_harm(values: Vec<(u8, u64)>, now: u64) -> bool {
        let memory = memory(2);
        let agent = HintWriter::start(memory.clone(), ms(0)).unwrap();
        let reader = attach(&memory).unwrap();
        for (word, value) in values {
            memory[usize::from(word) % memory.len()].store(value, Relaxed);
        }
        let now = Instant::from_nanos(now);
        let _ = (attach(&memory), agent.leases().count());
        reader.read(now).is_none_or(|shares| Shares::new(shares.parts()).is_ok())
    }
}
