//! Files and the network: what passes through memory on the way.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use polyrail::{
    Access, Batch, Cause, Config, Engine, FileError, FileTerms, Op, RailId, RegisterError, Request,
    SegmentId, StagingConfig, Status, SubmitError,
};

use crate::ends::{End, check_pieces};
use crate::fixture::*;

/// Several slots, and a bit.
const BYTES: u64 = 9 * MIB + 4097;

/// Two engines, and at each a file and memory.
struct Stage {
    folder: tempfile::TempDir,
    target: Engine,
    initiator: Engine,
    faults: Arc<polyrail::Faults>,
}

impl Stage {
    fn new() -> Self {
        let faults = Arc::new(polyrail::Faults::new());
        Self {
            folder: tempfile::tempdir().unwrap(),
            target: target("target"),
            initiator: initiator(&faults),
            faults,
        }
    }

    /// With other slots than usual, here and there.
    fn with(here: StagingConfig, there: StagingConfig) -> Self {
        let target = Config {
            listen: Some("127.0.0.1:0".parse().unwrap()),
            staging: there,
            ..Config::named("target")
        };
        let initiator = Config {
            staging: here,
            ..Config::named("initiator").without("shm")
        };
        Self {
            folder: tempfile::tempdir().unwrap(),
            target: Engine::new(target).unwrap(),
            initiator: Engine::new(initiator).unwrap(),
            faults: Arc::default(),
        }
    }

    fn open(&self, name: &str) -> File {
        let path = self.folder.path().join(name);
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false);
        let file = file.open(path).unwrap();
        if file.metadata().unwrap().len() == 0 {
            file.write_all_at(&pattern(99, BYTES), 0).unwrap();
        }
        file
    }

    fn near_file(&self) -> End {
        let file = self.open("near");
        let segment = self
            .initiator
            .register_file(file.try_clone().unwrap(), &FileTerms::default());
        End::file(segment.unwrap(), file)
    }

    fn near_memory(&self) -> End {
        let segment = self.initiator.allocate("here", BYTES, Access::Local);
        End::memory(&self.initiator, segment.unwrap())
    }

    /// The target's number of its file, and ours.
    fn far_file(&self, access: Access) -> (SegmentId, End) {
        let file = self.open("far");
        let there = self
            .target
            .register_file(file.try_clone().unwrap(), &FileTerms::default())
            .unwrap();
        self.target.offer_file(there, "file", access).unwrap();
        let segment = self
            .initiator
            .open_segment(&address(&self.target, "file"))
            .unwrap();
        assert_eq!(self.initiator.segment_bytes(segment), Some(BYTES));
        (there, End::file(segment, file))
    }

    fn far_memory(&self) -> End {
        let there = self
            .target
            .allocate("mem", BYTES, Access::RemoteReadWrite)
            .unwrap();
        let segment = self
            .initiator
            .open_segment(&address(&self.target, "mem"))
            .unwrap();
        End::memory(&self.target, there).known_as(segment)
    }

    fn submit(&self, request: Request) -> Batch {
        self.initiator.submit(&[request]).unwrap()
    }
}

fn request(op: Op, near: &End, far: &End) -> Request {
    Request {
        op,
        local: near.segment,
        local_offset: 0,
        remote: far.segment,
        remote_offset: 0,
        length: BYTES,
    }
}

#[test]
fn bytes_move_between_files_and_memory_of_two_hosts() {
    let stage = Stage::new();
    let nears = [stage.near_file(), stage.near_memory()];
    let fars = [
        stage.far_file(Access::RemoteReadWrite).1,
        stage.far_memory(),
    ];
    let mut seed = 0;
    for near in &nears {
        for far in &fars {
            seed += 1;
            let sent = near.fill(seed);
            completed(&stage.submit(request(Op::Write, near, far)));
            assert!(far.bytes() == sent, "write {seed}");

            let sent = far.fill(seed + 100);
            completed(&stage.submit(request(Op::Read, near, far)));
            assert!(near.bytes() == sent, "read {seed}");
        }
    }
}

#[test]
fn slots_may_be_of_any_number_and_size_at_either_end() {
    let config = |slots, slot_bytes| StagingConfig { slots, slot_bytes };
    let cases = [
        (config(1, 4096), config(64, 1 << 20)),
        (config(40, 64 << 10), config(3, 10_001)),
    ];
    for (seed, (here, there)) in (1..).zip(cases) {
        let stage = Stage::with(here, there);
        let near = stage.near_file();
        let (_, far) = stage.far_file(Access::RemoteReadWrite);
        let sent = near.fill(seed);
        completed(&stage.submit(request(Op::Write, &near, &far)));
        assert!(far.bytes() == sent, "{here:?} to {there:?}");
        let sent = far.fill(seed + 100);
        completed(&stage.submit(request(Op::Read, &near, &far)));
        assert!(near.bytes() == sent, "{there:?} to {here:?}");
        until("no slot is in use any more", || {
            let slots = stage.initiator.stats().slots;
            assert!(
                slots
                    .iter()
                    .all(|row| row.used + row.free + row.quarantined == here.slots)
            );
            slots.len() == 2 && slots.iter().all(|row| row.free == here.slots)
        });
    }
}

#[test]
fn slots_that_make_no_sense_are_refused() {
    let good = StagingConfig::default();
    for (bad, key) in [
        (StagingConfig { slots: 0, ..good }, "staging/slots"),
        (
            StagingConfig {
                slot_bytes: 4095,
                ..good
            },
            "staging/slot_bytes",
        ),
    ] {
        let config = Config {
            staging: bad,
            ..Config::named("bad")
        };
        let error = Engine::new(config).err().unwrap().to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn pieces_land_where_they_belong_and_nowhere_else() {
    let stage = Stage::new();
    let (near, far) = (stage.near_file(), stage.far_file(Access::RemoteReadWrite).1);
    check_pieces(&stage.initiator, &near, &far);
}

#[test]
fn one_batch_may_mix_what_is_staged_and_what_is_not() {
    let stage = Stage::new();
    let (file, memory) = (stage.near_file(), stage.near_memory());
    let far = [
        stage.far_file(Access::RemoteReadWrite).1,
        stage.far_memory(),
    ];
    let (first, second) = (file.fill(1), memory.fill(2));
    let requests = [
        request(Op::Write, &file, &far[0]),
        request(Op::Write, &memory, &far[1]),
    ];
    completed(&stage.initiator.submit(&requests).unwrap());
    assert!(far[0].bytes() == first && far[1].bytes() == second);
}

#[test]
fn two_engines_stage_towards_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let engines = [target("one"), target("two")];
    let files: Vec<_> = (0..2)
        .map(|number| {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, pattern(number, BYTES)).unwrap();
            File::options().read(true).write(true).open(path).unwrap()
        })
        .collect();
    let own: Vec<_> = engines
        .iter()
        .zip(&files)
        .map(|(engine, file)| {
            let segment = engine
                .register_file(file.try_clone().unwrap(), &FileTerms::default())
                .unwrap();
            engine
                .offer_file(segment, "file", Access::RemoteReadWrite)
                .unwrap();
            segment
        })
        .collect();
    // Each writes the first half of its file into the second half of the other's, several times at once.
    let half = BYTES / 2;
    let batches: Vec<_> = [(0, 1), (1, 0)]
        .into_iter()
        .flat_map(|(from, to): (usize, usize)| {
            let remote = engines[from]
                .open_segment(&address(&engines[to], "file"))
                .unwrap();
            let request = Request {
                op: Op::Write,
                local: own[from],
                local_offset: 0,
                remote,
                remote_offset: half,
                length: half,
            };
            let engine = engines[from].clone();
            (0..6).map(move |_| engine.submit(&[request]).unwrap())
        })
        .collect();
    for batch in &batches {
        completed(batch);
    }
    for (number, file) in files.iter().enumerate() {
        let mut bytes = vec![0; half as usize];
        file.read_exact_at(&mut bytes, half).unwrap();
        assert!(bytes == pattern(1 - number as u64, BYTES)[..half as usize]);
    }
}

#[test]
fn what_the_owner_does_not_allow_is_not_done() {
    let stage = Stage::new();
    let near = stage.near_memory();
    let (there, far) = stage.far_file(Access::RemoteRead);
    let refused = stage
        .initiator
        .submit(&[request(Op::Write, &near, &far)])
        .unwrap_err();
    assert!(
        matches!(refused, SubmitError::Forbidden { segment, .. } if segment == far.segment),
        "{refused}"
    );
    let sent = far.fill(5);
    completed(&stage.submit(request(Op::Read, &near, &far)));
    assert!(near.bytes() == sent);

    // A file is let go, and the name with it: what is asked of it then fails, and the name is free.
    stage.target.unregister(there).unwrap();
    let batch = stage.submit(request(Op::Read, &near, &far));
    assert_eq!(ended(&batch).status, Status::Failed);
    assert_eq!(
        batch.report(0).unwrap().cause,
        Some(Cause::RemoteAccess),
        "as docs/files.md says"
    );
    let name = address(&stage.target, "file");
    assert!(stage.initiator.open_segment(&name).is_err());
    assert!(matches!(
        stage.target.offer_file(there, "file", Access::RemoteRead),
        Err(FileError::Stale { .. })
    ));
    let (again, _) = stage.far_file(Access::RemoteRead);
    assert!(matches!(
        stage.target.offer_file(again, "/b", Access::RemoteRead),
        Err(FileError::Name(RegisterError::BadName { .. }))
    ));
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let stage = Stage::new();
    let near = stage.near_file();
    let far = stage.far_file(Access::RemoteReadWrite).1;
    let whole = request(Op::Write, &near, &far);
    let refused = |request| stage.initiator.submit(&[request]).unwrap_err();
    let empty = refused(Request { length: 0, ..whole });
    assert!(matches!(empty, SubmitError::Empty { index: 0 }), "{empty}");
    for (local_offset, remote_offset) in [(1, 0), (0, 1), (u64::MAX, 0)] {
        let past = refused(Request {
            local_offset,
            remote_offset,
            ..whole
        });
        assert!(matches!(past, SubmitError::OutOfRange { .. }), "{past}");
    }
    let two = refused(Request {
        remote: near.segment,
        ..whole
    });
    assert!(matches!(two, SubmitError::TwoFiles { .. }), "{two}");
    let far_first = refused(Request {
        local: far.segment,
        ..whole
    });
    assert!(
        matches!(far_first, SubmitError::Stale { .. }),
        "{far_first}"
    );
}

#[test]
fn a_cut_rail_is_not_noticed() {
    let stage = Stage::new();
    let (near, far) = (stage.near_file(), stage.far_file(Access::RemoteReadWrite).1);
    completed(&stage.submit(request(Op::Write, &near, &far)));
    let sent = near.fill(8);
    let batches: Vec<_> = (0..4)
        .map(|_| stage.submit(request(Op::Write, &near, &far)))
        .collect();
    let rails = stage.initiator.rails();
    let to_peer = rails.iter().position(|rail| rail.name.starts_with("tcp:"));
    stage.faults.cut(RailId(to_peer.unwrap() as u16));
    for batch in &batches {
        completed(batch);
    }
    assert!(far.bytes() == sent);
}

#[test]
fn a_request_can_be_cancelled_and_engines_end_with_requests_under_way() {
    let stage = Stage::new();
    let (near, far) = (stage.near_file(), stage.far_file(Access::RemoteReadWrite).1);
    for _ in 0..8 {
        let batch = stage.submit(request(Op::Write, &near, &far));
        batch.cancel();
        let status = ended(&batch).status;
        assert!(
            matches!(status, Status::Cancelled | Status::Completed),
            "{status:?}"
        );
    }
    let sent = near.fill(3);
    completed(&stage.submit(request(Op::Write, &near, &far)));
    assert!(far.bytes() == sent);

    let batches: Vec<_> = (0..8)
        .map(|_| stage.submit(request(Op::Write, &near, &far)))
        .collect();
    stage.initiator.shutdown();
    for batch in &batches {
        assert_ne!(ended(batch).status, Status::Pending);
    }
}

#[test]
fn the_end_of_the_other_host_ends_what_is_staged() {
    let stage = Stage::new();
    let (near, far) = (stage.near_file(), stage.far_file(Access::RemoteReadWrite).1);
    // Twenty times as many chunks as can be on their way. If each found out for itself, that would take longer than anybody
    // waits here.
    let requests: Vec<_> = (0..64)
        .map(|number| request([Op::Write, Op::Read][number % 2], &near, &far))
        .collect();
    let batch = stage.initiator.submit(&requests).unwrap();
    stage.target.shutdown();
    assert_eq!(ended(&batch).status, Status::Failed);
    for index in 0..requests.len() {
        let cause = batch.report(index).unwrap().cause;
        assert!(
            matches!(
                cause,
                Some(Cause::PeerSilent | Cause::PeerGone | Cause::NoRail)
            ),
            "{cause:?}"
        );
    }
}
