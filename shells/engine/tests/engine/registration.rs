//! Memory that is taken back.

use polyrail::{Access, Cause, Op, RegisterError, Request, Status};

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
