//! Memory that is taken back.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use polyrail::{Access, Cause, Op, OpenError, RegisterError, Request, Status, SubmitError};

use crate::fixture::*;

#[test]
fn memory_in_use_cannot_be_taken_back_until_the_requests_have_ended() {
    let pair = Pair::new(MIB);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.cut(rail));
    let batch = pair.initiator.submit(&[pair.write(0, 100); 3]).unwrap();
    let error = pair.initiator.unregister(pair.local).unwrap_err();
    assert!(
        matches!(error, RegisterError::InUse { requests: 3 }),
        "{error}"
    );
    assert!(error.to_string().contains("3 requests"), "{error}");
    pair.each_rail(|faults, rail| faults.restore(rail));
    completed(&batch);
    pair.initiator.unregister(pair.local).unwrap();
}

#[test]
fn what_is_taken_back_under_a_peers_writes_is_not_touched_any_more() {
    for op in [Op::Write, Op::Read] {
        let pair = Pair::new(32 * MIB);
        pair.warm_up();
        let before = pair.moved_bytes();
        pair.each_rail(|faults, rail| faults.slow(rail, Some(5_000_000)));
        fill(&pair.source(), 2);
        let batch = pair.submit(Request {
            op,
            ..pair.write_all()
        });
        until("some has moved", || pair.moved_bytes() > before + 200_000);
        let region = pair.destination();
        pair.target.unregister(pair.there).unwrap();
        // The region is revoked, so it is looked at by its address; the mapping lives as long as `region`.
        // SAFETY: `region` owns that many bytes of mapped memory, and nobody writes them any more.
        let memory =
            unsafe { std::slice::from_raw_parts(region.base().as_ptr(), region.bytes() as usize) };
        let snapshot = memory.to_vec();
        let status = ended(&batch);
        assert_eq!(
            status.status,
            Status::Failed,
            "{op:?}: {:?}",
            batch.report(0)
        );
        let report = batch.report(0).unwrap();
        assert_eq!(report.cause, Some(Cause::RemoteAccess), "{op:?}");
        assert!(report.delivered_bytes < pair.bytes);
        let again = pair.submit(pair.write(0, 100));
        assert_eq!(ended(&again).status, Status::Failed);
        assert_eq!(again.report(0).unwrap().cause, Some(Cause::RemoteAccess));
        assert!(memory == &snapshot[..], "{op:?}: written after unregister");
    }
}

#[test]
fn memory_registered_anew_under_its_name_is_other_memory() {
    let pair = Pair::new(MIB);
    pair.exchange(1);
    pair.target.unregister(pair.there).unwrap();
    let new = pair
        .target
        .allocate("mem", MIB, Access::RemoteReadWrite)
        .unwrap();
    let address = address(&pair.target, "mem");
    let remote = pair.initiator.open_segment(&address).unwrap();
    assert_ne!(remote, pair.remote);
    let old = pair.submit(pair.write_all());
    assert_eq!(ended(&old).status, Status::Failed);
    assert_eq!(old.report(0).unwrap().cause, Some(Cause::RemoteAccess));
    assert!(
        bytes(&pair.target.region(new).unwrap())
            .iter()
            .all(|b| *b == 0)
    );
    completed(&pair.submit(Request {
        remote,
        ..pair.write_all()
    }));
    assert!(bytes(&pair.target.region(new).unwrap()) == pattern(1, MIB));
    assert_eq!(pair.initiator.open_segment(&address).unwrap(), remote);
}

#[test]
fn segments_come_and_go_without_end() {
    // There are 4,096 plans: each pair of segments uses one, and gives it back.
    let pair = Pair::new(4096);
    for round in 0..5000 {
        let local = pair
            .initiator
            .allocate("brief", 4096, Access::Local)
            .unwrap();
        let request = Request {
            local,
            ..pair.write_all()
        };
        let batch = pair.initiator.submit(&[request]);
        completed(&batch.unwrap_or_else(|error| panic!("round {round}: {error}")));
        pair.initiator.unregister(local).unwrap();
    }
}

#[test]
fn memory_of_the_program_is_its_own_again_after_unregister() {
    let pair = Pair::new(MIB);
    let mut memory = pattern(7, MIB);
    let base = std::ptr::NonNull::new(memory.as_mut_ptr()).unwrap();
    // SAFETY: `memory` lives, unmoved and untouched, until it is unregistered below.
    let local = unsafe { pair.initiator.register("own", base, MIB, Access::Local) }.unwrap();
    completed(&pair.submit(Request {
        local,
        ..pair.write_all()
    }));
    pair.initiator.unregister(local).unwrap();
    memory.fill(0);
    drop(memory);
    assert!(bytes(&pair.destination()) == pattern(7, MIB));
}

#[test]
fn memory_can_be_taken_back_under_a_peer_that_never_stops_writing() {
    const ROUNDS: usize = 5;
    let pair = Pair::new(4 * MIB);
    pair.warm_up();
    let bystander = pair.bystander();
    for round in 0..ROUNDS {
        let there = pair
            .target
            .allocate("brief", 4 * MIB, Access::RemoteReadWrite)
            .unwrap();
        let remote = pair
            .initiator
            .open_segment(&address(&pair.target, "brief"))
            .unwrap();
        let region = pair.target.region(there).unwrap();
        let write = Request {
            remote,
            ..pair.write_all()
        };
        let stop = AtomicBool::new(false);
        let refused = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    // Of everything that is written, only what goes to the memory taken back fails.
                    let batches = [write, bystander, write, bystander].map(|r| pair.submit(r));
                    for (index, batch) in batches.iter().enumerate() {
                        let status = ended(batch).status;
                        if index % 2 == 1 {
                            assert_eq!(status, Status::Completed, "{:?}", batch.report(0));
                        } else if status != Status::Completed {
                            let report = batch.report(0).unwrap();
                            let got = (status, report.cause);
                            assert_eq!(got, (Status::Failed, Some(Cause::RemoteAccess)));
                            refused.fetch_add(1, SeqCst);
                        }
                    }
                }
            });
            let before = pair.moved_bytes();
            until("it is written to", || pair.moved_bytes() > before + 9 * MIB);
            pair.target.unregister(there).unwrap();
            // It is the program's own: what it puts there stays.
            // SAFETY: `region` owns that many bytes of mapped memory, and nobody else touches them any more.
            let memory = unsafe {
                std::slice::from_raw_parts_mut(region.base().as_ptr(), region.bytes() as usize)
            };
            memory.fill(0x77);
            until("writes were refused", || refused.load(SeqCst) >= 6);
            stop.store(true, SeqCst);
            let touched = memory.iter().filter(|byte| **byte != 0x77).count();
            assert_eq!(touched, 0, "round {round}: written after unregister");
        });
    }
    pair.exchange(9);
}

#[test]
fn what_peers_may_not_do_is_said_before_anything_moves() {
    // The owner checks again, for peers that do not: `polyrail-tcp` tests that with ones that lie.
    let pair = Pair::new(MIB);
    pair.exchange(1);
    pair.target
        .allocate("read", MIB, Access::RemoteRead)
        .unwrap();
    pair.target.allocate("own", MIB, Access::Local).unwrap();
    let open = |name: &str| pair.initiator.open_segment(&address(&pair.target, name));
    let hidden = open("own").unwrap_err();
    assert!(
        matches!(hidden, OpenError::NoSuchSegment { .. }),
        "{hidden}"
    );
    let remote = open("read").unwrap();
    let write = Request {
        remote,
        ..pair.write_all()
    };
    let error = pair.initiator.submit(&[write]).unwrap_err();
    assert!(matches!(error, SubmitError::Forbidden { .. }), "{error}");
    completed(&pair.submit(Request {
        op: Op::Read,
        ..write
    }));
}

#[test]
fn memory_that_its_owner_has_taken_back_costs_a_batch_one_lane_and_not_one_for_each_request() {
    // It was 1.1 ms for each of them, and others waited meanwhile.
    const REFUSED: u64 = 50_000;
    let pair = Pair::new(MIB);
    pair.warm_up();
    let other = pair.bystander();
    completed(&pair.submit(other));
    pair.target.unregister(pair.there).unwrap();
    let mut requests: Vec<_> = (0..REFUSED).map(|at| pair.write(at * 3, 3)).collect();
    // What goes elsewhere is none of its business.
    requests.insert(0, other);
    let start = std::time::Instant::now();
    let batch = pair.initiator.submit(&requests).unwrap();
    completed(&pair.submit(other));
    let status = ended(&batch);
    let elapsed = start.elapsed();
    assert_eq!(
        (status.status, status.failed),
        (Status::Failed, REFUSED as u32)
    );
    let (first, report) = batch.first_failure().unwrap();
    assert_eq!((first, report.cause), (1, Some(Cause::RemoteAccess)));
    for index in 1..=REFUSED as usize {
        let report = batch.report(index).unwrap();
        assert_eq!(report.status, Status::Failed, "{index}");
        assert_eq!(report.cause, Some(Cause::RemoteAccess), "{index}");
    }
    assert!(elapsed < std::time::Duration::from_secs(10), "{elapsed:?}");
}
