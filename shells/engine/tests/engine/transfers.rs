//! Bytes go where they should, whatever their number and place, and whoever moves them at once.

use std::sync::Arc;
use std::thread;

use polyrail::{Access, Config, Engine, Faults, Hooks, Op, RailId, Request};

use crate::fixture::*;

#[test]
fn odd_sizes_and_offsets_move_exactly_those_bytes() {
    let pair = Pair::new(4 * MIB);
    let (source, destination) = (pair.source(), pair.destination());
    fill(&source, 1);
    let original = bytes(&source);
    // (length, offset here, offset there)
    let cases = [
        (1, 0, 0),
        (1, 4 * MIB - 1, 4 * MIB - 1),
        (7, 3, 5),
        (4095, 1, 4097),
        (65_535, 17, 0),
        (65_536, 0, 1),
        (65_537, 1, 65_535),
        (81_920, 3, 9),
        (81_921, 3, 9),
        (1_000_003, 77, 1_234_567),
        (4 * MIB, 0, 0),
    ];
    for (length, here, there) in cases {
        let request = Request {
            local_offset: here,
            remote_offset: there,
            length,
            ..pair.write_all()
        };
        poison(&destination, 0xee);
        completed(&pair.submit(request));
        let mut expected = vec![0xee; 4 * MIB as usize];
        expected[there as usize..][..length as usize]
            .copy_from_slice(&original[here as usize..][..length as usize]);
        assert!(bytes(&destination) == expected, "write {request:?}");

        poison(&source, 0xaa);
        let read = Op::Read;
        completed(&pair.submit(Request {
            op: read,
            ..request
        }));
        let mut expected = vec![0xaa; 4 * MIB as usize];
        expected[here as usize..][..length as usize]
            .copy_from_slice(&original[here as usize..][..length as usize]);
        assert!(bytes(&source) == expected, "read {request:?}");
        put(&source, 0, &original);
    }
}

#[test]
fn many_batches_of_many_threads_over_many_segments() {
    const THREADS: u64 = 4;
    const BATCHES: u64 = 40;
    const PIECES: u64 = 5;
    const PIECE: u64 = 3_001;
    const BYTES: u64 = BATCHES * PIECES * PIECE;
    let target = target("target");
    let config = Config {
        rails: rails(),
        workers: 2,
        ..Config::named("initiator").without("shm")
    };
    let initiator = Engine::new(config).unwrap();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (target, initiator) = (&target, &initiator);
            scope.spawn(move || {
                let name = format!("mem{number}");
                let access = Access::RemoteReadWrite;
                let there = target.allocate(&name, BYTES, access).unwrap();
                let local = initiator.allocate(&name, BYTES, Access::Local).unwrap();
                let back = initiator.allocate(&format!("back{number}"), BYTES, Access::Local);
                let back = back.unwrap();
                let remote = initiator.open_segment(&address(target, &name)).unwrap();
                fill(&initiator.region(local).unwrap(), number);
                for (op, local) in [(Op::Write, local), (Op::Read, back)] {
                    let batches: Vec<_> = (0..BATCHES)
                        .map(|batch| {
                            let piece = |piece| Request {
                                op,
                                local,
                                local_offset: (batch * PIECES + piece) * PIECE,
                                remote,
                                remote_offset: (batch * PIECES + piece) * PIECE,
                                length: PIECE,
                            };
                            let requests: Vec<_> = (0..PIECES).map(piece).collect();
                            initiator.submit(&requests).unwrap()
                        })
                        .collect();
                    batches.iter().for_each(completed);
                    assert!(batches.iter().all(|batch| {
                        let status = batch.status();
                        status.delivered_bytes == PIECES * PIECE && batch.report(5).is_none()
                    }));
                }
                let expected = pattern(number, BYTES);
                assert!(bytes(&target.region(there).unwrap()) == expected);
                assert!(bytes(&initiator.region(back).unwrap()) == expected);
            });
        }
    });
}

#[test]
fn two_engines_write_to_each_other_at_once() {
    const BYTES: u64 = 8 * MIB;
    let engines = [target("one"), target("two")];
    for engine in &engines {
        let access = Access::RemoteReadWrite;
        engine.allocate("in", BYTES, access).unwrap();
        engine.allocate("out", BYTES, Access::Local).unwrap();
    }
    thread::scope(|scope| {
        for (seed, from, to) in [(1, &engines[0], &engines[1]), (2, &engines[1], &engines[0])] {
            scope.spawn(move || {
                let local = from.local_segment("out").unwrap();
                let remote = from.open_segment(&address(to, "in")).unwrap();
                for round in 0..3 {
                    fill(&from.region(local).unwrap(), seed + round);
                    let request = Request {
                        op: Op::Write,
                        local,
                        local_offset: 0,
                        remote,
                        remote_offset: 0,
                        length: BYTES,
                    };
                    completed(&from.submit(&[request]).unwrap());
                    let there = to.region(to.local_segment("in").unwrap()).unwrap();
                    assert!(bytes(&there) == pattern(seed + round, BYTES));
                }
            });
        }
    });
}

#[test]
fn three_initiators_share_one_target() {
    const BYTES: u64 = 4 * MIB + 13;
    let target = target("target");
    let there = target
        .allocate("mem", 3 * BYTES, Access::RemoteReadWrite)
        .unwrap();
    thread::scope(|scope| {
        for number in 0..3 {
            let target = &target;
            scope.spawn(move || {
                let engine = initiator(&Arc::new(Faults::new()));
                let local = engine.allocate("here", BYTES, Access::Local).unwrap();
                fill(&engine.region(local).unwrap(), number);
                let remote = engine.open_segment(&address(target, "mem")).unwrap();
                let request = Request {
                    op: Op::Write,
                    local,
                    local_offset: 0,
                    remote,
                    remote_offset: number * BYTES,
                    length: BYTES,
                };
                completed(&engine.submit(&[request]).unwrap());
            });
        }
    });
    let region = target.region(there).unwrap();
    for number in 0..3 {
        assert!(get(&region, number * BYTES, BYTES) == pattern(number, BYTES));
    }
}

#[test]
fn a_segment_opened_again_is_the_same_and_one_of_another_address_too() {
    let pair = Pair::new(MIB);
    let port = pair.target.listening().unwrap().port();
    for host in ["127.0.0.1", "127.0.0.3", "localhost"] {
        let address = format!("{host}:{port}/mem");
        assert_eq!(pair.initiator.open_segment(&address).unwrap(), pair.remote);
    }
    let rails = pair.initiator.rails().len();
    assert_eq!(rails, RAILS + SPARES, "one session");
    assert_eq!(pair.initiator.segment_bytes(pair.remote), Some(MIB));
    assert_eq!(pair.initiator.segment_bytes(pair.local), Some(MIB));
}

/// Several workers share the rails: each has lanes of its own, and a window of all of theirs together. One rail
/// is cut under them and comes back.
#[test]
fn several_workers_share_rails_and_lose_one() {
    const BYTES: u64 = 16 * MIB;
    let target = target("target");
    let remote_memory = target
        .allocate("mem", BYTES, Access::RemoteReadWrite)
        .unwrap();
    let faults = Arc::new(Faults::new());
    let config = Config {
        workers: 3,
        rails: rails(),
        ..Config::named("initiator").without("shm")
    };
    let hooks = Hooks {
        faults: Some(faults.clone()),
        ..Hooks::default()
    };
    let engine = Engine::with_hooks(config, hooks).unwrap();
    let local = engine.allocate("here", BYTES, Access::Local).unwrap();
    let remote = engine.open_segment(&address(&target, "mem")).unwrap();
    let (source, destination) = (
        engine.region(local).unwrap(),
        target.region(remote_memory).unwrap(),
    );
    let piece = BYTES / 8;
    for round in 0..12 {
        fill(&source, round);
        poison(&destination, 0xee);
        let cut = RailId((round % 4) as u16);
        let batches: Vec<_> = (0..8)
            .map(|i| {
                let offset = i * piece;
                let (local_offset, remote_offset) = (offset, offset);
                let op = Op::Write;
                engine
                    .submit(&[Request {
                        op,
                        local,
                        local_offset,
                        remote,
                        remote_offset,
                        length: piece,
                    }])
                    .unwrap()
            })
            .collect();
        faults.cut(cut);
        for batch in &batches {
            completed(batch);
        }
        faults.restore(cut);
        assert!(bytes(&destination) == bytes(&source), "round {round}");
    }
    // Whether the spare of the one that was cut has been, too, is a matter of luck.
    let rails = engine.rails();
    assert!(
        rails[..RAILS].iter().all(|rail| rail.bytes > 0),
        "{rails:?}"
    );
}
