//! Slots that requests pass through: nobody has all of them, and what was reported without proof is settled.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use polyrail::{
    Access, Config, Engine, Faults, FileTerms, Local, Op, RailId, Remote, Request, SegmentId,
    Status,
};

use crate::fixture::*;
use crate::silence::{BYTES, far};

fn file(folder: &tempfile::TempDir, name: &str, bytes: u64) -> File {
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(folder.path().join(name)).unwrap();
    file.set_len(bytes).unwrap();
    file
}

fn register(engine: &Engine, file: File) -> SegmentId {
    engine.register_file(file, &FileTerms::default()).unwrap()
}

fn bytes_over_tcp(engine: &Engine) -> u64 {
    let rails = engine.rails();
    let tcp = rails.iter().filter(|rail| rail.name.starts_with("tcp:"));
    tcp.map(|rail| rail.bytes).sum()
}

#[test]
fn a_staged_write_to_a_silent_peer_is_settled_when_that_is_back() {
    // It stayed unknown for ever, and whoever waited for the truth waited in vain.
    let mut far = far();
    let folder = tempfile::tempdir().unwrap();
    far.write.local = register(&far.initiator, file(&folder, "near", BYTES));
    completed(&far.initiator.submit(&[far.write]).unwrap());
    far.slow_down();
    let before = bytes_over_tcp(&far.initiator);
    let batch = far.initiator.submit(&[far.write]).unwrap();
    until("some has moved", || bytes_over_tcp(&far.initiator) > before);
    far.link.cut();
    far.link.restore_speed();
    assert_eq!(ended(&batch).status, Status::Indeterminate);
    let report = batch.report(0).unwrap();
    let open = (Local::Released, Remote::Unknown);
    assert_eq!((report.local, report.remote), open);

    far.link.restore();
    batch.wait_released(PATIENCE).unwrap();
    assert_eq!(batch.report(0).unwrap().remote, Remote::Settled);
    until("requests work again", || {
        let again = far.initiator.submit(&[far.write]).unwrap();
        ended(&again).status == Status::Completed
    });
    far.initiator.unregister(far.write.local).unwrap();
}

#[test]
fn a_peer_that_keeps_its_slots_leaves_some_to_others() {
    // One that lived and moved next to nothing had all of them.
    const LARGE: u64 = 64 * MIB;
    let folder = tempfile::tempdir().unwrap();
    let target = target("target");
    let there = register(&target, file(&folder, "far", LARGE));
    target
        .offer_file(there, "file", Access::RemoteReadWrite)
        .unwrap();
    let begin = |name: &str, bytes| {
        let faults = Arc::new(Faults::new());
        let config = Config::named(name).without("shm");
        let engine = initiator_with(config, &faults, None);
        let request = Request {
            op: Op::Write,
            local: engine.allocate("here", bytes, Access::Local).unwrap(),
            local_offset: 0,
            remote: engine.open_segment(&address(&target, "file")).unwrap(),
            remote_offset: 0,
            length: bytes,
        };
        (engine, faults, request)
    };
    let (slow, faults, large) = begin("slow", LARGE);
    let small = Request {
        length: 4096,
        ..large
    };
    completed(&slow.submit(&[small]).unwrap());
    for (number, rail) in (0..).zip(slow.rails()) {
        if rail.name.starts_with("tcp:") {
            // Its hops take minutes, and nobody takes it for silent.
            faults.slow(RailId(number), Some(30_000));
        }
    }
    let keeps = slow.submit(&[large]).unwrap();
    let before = bytes_over_tcp(&slow);
    until("it has slots", || bytes_over_tcp(&slow) > before);
    let (other, _, request) = begin("other", 9 * MIB);
    for _ in 0..3 {
        completed(&other.submit(&[request]).unwrap());
    }
    assert_eq!(keeps.status().status, Status::Pending);
    keeps.cancel();
    let _ = keeps.wait(Duration::from_secs(60));
}
