//! Memory of GPUs under real engines, over a driver in this process.

use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use polyrail::cuda::CudaError;
use polyrail::cuda::driver::{Driver, End as CopyEnd};
use polyrail::cuda::stub::{ILLEGAL_ADDRESS, Machine, Stub};
use polyrail::{
    Access, Batch, Cause, Config, Engine, FileTerms, Hooks, Local, Op, RegisterError, Remote,
    Request, SegmentId, Status, SubmitError,
};

use crate::ends::{End, check_pieces};
use crate::fixture::*;

/// Several slots, and a bit.
const BYTES: u64 = 5 * MIB + 4097;

fn stub() -> Arc<Stub> {
    Arc::new(Stub::new(Machine::default()))
}

/// Memory of the host, and of the first GPU.
fn host_and_gpu(engine: &Engine) -> (SegmentId, SegmentId) {
    let host = engine.allocate("host", BYTES, Access::Local).unwrap();
    let gpu = engine.allocate_on_gpu("gpu", 0, BYTES, Access::Local);
    (host, gpu.unwrap())
}

/// A request whose copy has begun and does not go on.
fn stopped_midway(engine: &Engine, stub: &Stub, requests: &[Request]) -> Batch {
    let copies = stub.counts().copies;
    stub.hold();
    let batch = engine.submit(requests).unwrap();
    until("a copy is on its way", || {
        let _ = batch.status();
        stub.counts().copies > copies
    });
    batch
}

/// An engine with GPUs.
fn engine_with(config: Config, stub: &Arc<Stub>) -> Engine {
    let hooks = Hooks {
        cuda: Some(stub.clone()),
        ..Hooks::default()
    };
    Engine::with_hooks(config, hooks).unwrap()
}

fn engine(stub: &Arc<Stub>) -> Engine {
    engine_with(initiator_config(), stub)
}

fn whole(op: Op, local: SegmentId, remote: SegmentId) -> Request {
    Request {
        op,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length: BYTES,
    }
}

fn content(engine: &Engine, segment: SegmentId) -> Vec<u8> {
    bytes(&engine.region(segment).unwrap())
}

fn fill_with(engine: &Engine, segment: SegmentId, seed: u64) -> Vec<u8> {
    let region = engine.region(segment).unwrap();
    fill(&region, seed);
    pattern(seed, region.bytes())
}

#[test]
fn bytes_move_between_host_and_gpus_of_one_engine() {
    let stub = stub();
    let engine = engine(&stub);
    let host = engine.allocate("host", BYTES, Access::Local).unwrap();
    let gpus = [0, 1].map(|ordinal| {
        let name = format!("gpu{ordinal}");
        engine
            .allocate_on_gpu(&name, ordinal, BYTES, Access::Local)
            .unwrap()
    });
    let more = engine
        .allocate_on_gpu("more", 0, BYTES, Access::Local)
        .unwrap();
    let pairs = [
        (host, gpus[0]),
        (host, gpus[1]),
        (gpus[0], gpus[1]),
        (gpus[1], gpus[0]),
        (gpus[0], more),
    ];
    let mut seed = 0;
    for (near, far) in pairs {
        for op in [Op::Write, Op::Read] {
            let (from, to) = match op {
                Op::Write => (near, far),
                Op::Read => (far, near),
            };
            seed += 1;
            let sent = fill_with(&engine, from, seed);
            completed(&engine.submit(&[whole(op, near, far)]).unwrap());
            assert!(content(&engine, to) == sent, "{op:?} {seed}");
        }
    }
    let rails = engine.rails();
    let names: Vec<_> = rails.iter().map(|rail| &rail.name[..]).collect();
    assert_eq!(names, ["cuda:gpu0", "cuda:gpu1"]);
    assert!(rails.iter().all(|rail| rail.bytes > 0));
}

#[test]
fn pieces_land_where_they_belong_and_nowhere_else() {
    let stub = stub();
    let engine = engine(&stub);
    let (host, gpu) = host_and_gpu(&engine);
    let [near, far] = [host, gpu].map(|segment| End::memory(&engine, segment));
    check_pieces(&engine, &near, &far);
}

#[test]
fn host_memory_is_pinned_while_it_is_a_segment_and_copies_are_large() {
    let stub = stub();
    let engine = engine(&stub);
    let (host, gpu) = host_and_gpu(&engine);
    assert_eq!(stub.counts().pinned, 1, "scratch; it has not met a GPU");
    for _ in 0..4 {
        completed(&engine.submit(&[whole(Op::Write, host, gpu)]).unwrap());
    }
    let counts = stub.counts();
    assert_eq!((counts.pinned, counts.unpinned), (2, 0));
    assert!(counts.copy_bytes_max >= MIB, "{counts:?}");
    engine.unregister(host).unwrap();
    engine.unregister(gpu).unwrap();
    assert_eq!(stub.counts().pinned, 1);
    drop(engine);
    let counts = stub.counts();
    assert_eq!((counts.allocations, counts.streams), (0, 0), "{counts:?}");
    assert_eq!(counts.pinned, 0);
}

/// Two engines on machines of their own, each with GPUs.
struct Stage {
    folder: tempfile::TempDir,
    stubs: [Arc<Stub>; 2],
    target: Engine,
    initiator: Engine,
}

impl Stage {
    /// One on which GPUs are reached through slots only, as on two hosts.
    fn new() -> Self {
        Self::with(initiator_config().without("cuda-ipc"))
    }

    /// One on which each reaches the other's GPUs.
    fn on_one_host() -> Self {
        Self::with(initiator_config())
    }

    fn with(config: Config) -> Self {
        let stubs = [stub(), stub()];
        Self {
            folder: tempfile::tempdir().unwrap(),
            target: engine_with(target_config("target"), &stubs[0]),
            initiator: engine_with(config, &stubs[1]),
            stubs,
        }
    }

    fn file(&self, name: &str) -> File {
        let path = self.folder.path().join(name);
        std::fs::write(&path, pattern(99, BYTES)).unwrap();
        File::options().read(true).write(true).open(path).unwrap()
    }

    /// Host memory, memory of a GPU, and a file.
    fn nears(&self) -> [(&'static str, End); 3] {
        let engine = &self.initiator;
        let file = self.file("near");
        let opened = engine.register_file(file.try_clone().unwrap(), &FileTerms::default());
        let memory = |segment| End::memory(engine, segment);
        let host = engine.allocate("host", BYTES, Access::Local).unwrap();
        [
            ("host", memory(host)),
            ("gpu", memory(self.near_gpu())),
            ("file", End::file(opened.unwrap(), file)),
        ]
    }

    fn near_gpu(&self) -> SegmentId {
        let engine = &self.initiator;
        engine
            .allocate_on_gpu("gpu", 1, BYTES, Access::Local)
            .unwrap()
    }

    fn open(&self, name: &str) -> SegmentId {
        self.initiator
            .open_segment(&address(&self.target, name))
            .unwrap()
    }

    fn far(&self, name: &str, there: SegmentId) -> End {
        End::memory(&self.target, there).known_as(self.open(name))
    }

    fn far_gpu(&self, access: Access) -> (SegmentId, End) {
        let there = self.target.allocate_on_gpu("gpu", 0, BYTES, access);
        let there = there.unwrap();
        (there, self.far("gpu", there))
    }

    fn fars(&self) -> [(&'static str, End); 3] {
        let access = Access::RemoteReadWrite;
        let host = self.target.allocate("host", BYTES, access).unwrap();
        let file = self.file("far");
        let opened = self
            .target
            .register_file(file.try_clone().unwrap(), &FileTerms::default())
            .unwrap();
        self.target.offer_file(opened, "file", access).unwrap();
        [
            ("host", self.far("host", host)),
            ("gpu", self.far_gpu(access).1),
            ("file", End::file(self.open("file"), file)),
        ]
    }

    fn submit(&self, request: Request) -> Batch {
        self.initiator.submit(&[request]).unwrap()
    }

    fn exchange_all(&self) {
        let (nears, fars) = (self.nears(), self.fars());
        let mut seed = 0;
        for (near_name, near) in &nears {
            for (far_name, far) in &fars {
                let case = format!("{near_name} and {far_name}");
                seed += 1;
                let sent = near.fill(seed);
                completed(&self.submit(whole(Op::Write, near.segment, far.segment)));
                assert!(far.bytes() == sent, "write, {case}");
                let sent = far.fill(seed + 100);
                completed(&self.submit(whole(Op::Read, near.segment, far.segment)));
                assert!(near.bytes() == sent, "read, {case}");
            }
        }
    }
}

#[test]
fn bytes_move_between_hosts_gpus_and_files_over_tcp() {
    Stage::new().exchange_all();
}

#[test]
fn bytes_move_between_hosts_gpus_and_files_over_shared_memory() {
    let config = Config {
        rails: rails(),
        workers: 1,
        ..Config::named("initiator").without("cuda-ipc")
    };
    let stage = Stage::with(config);
    stage.exchange_all();
    let rails = stage.initiator.rails();
    let shm = rails.iter().find(|rail| rail.name.starts_with("shm:"));
    assert!(shm.is_some_and(|rail| rail.bytes > BYTES), "{rails:?}");
}

#[test]
fn pieces_of_staged_gpus_land_where_they_belong_and_nowhere_else() {
    let stage = Stage::new();
    let near = End::memory(&stage.initiator, stage.near_gpu());
    let (_, far) = stage.far_gpu(Access::RemoteReadWrite);
    check_pieces(&stage.initiator, &near, &far);
    // Slots are the only host memory that is copied, and it is pinned.
    for stub in &stage.stubs {
        let counts = stub.counts();
        assert!(counts.pinned >= 1, "{counts:?}");
    }
}

#[test]
fn bytes_move_between_gpus_and_files_of_one_host() {
    let stage = Stage::new();
    let [_, (_, gpu), (_, file)] = stage.nears();
    let mut seed = 0;
    for (near, far) in [(&gpu, &file), (&file, &gpu)] {
        seed += 1;
        let sent = near.fill(seed);
        completed(&stage.submit(whole(Op::Write, near.segment, far.segment)));
        assert!(far.bytes() == sent, "write {seed}");
        let sent = far.fill(seed + 100);
        completed(&stage.submit(whole(Op::Read, near.segment, far.segment)));
        assert!(near.bytes() == sent, "read {seed}");
    }
    let two = whole(Op::Write, file.segment, file.segment);
    let refused = stage.initiator.submit(&[two]).unwrap_err();
    assert!(matches!(refused, SubmitError::TwoFiles { .. }), "{refused}");
}

#[test]
fn what_the_owner_does_not_allow_is_not_done() {
    let stage = Stage::new();
    let near = stage.near_gpu();
    let (there, far) = stage.far_gpu(Access::RemoteRead);
    let refused = stage
        .initiator
        .submit(&[whole(Op::Write, near, far.segment)])
        .unwrap_err();
    assert!(
        matches!(refused, SubmitError::Forbidden { segment, .. } if segment == far.segment),
        "{refused}"
    );
    let sent = far.fill(5);
    completed(&stage.submit(whole(Op::Read, near, far.segment)));
    assert!(content(&stage.initiator, near) == sent);
    // Its own engine may write to it, whatever peers may.
    let own = stage.target.allocate("own", BYTES, Access::Local).unwrap();
    let sent = fill_with(&stage.target, own, 6);
    let batch = stage.target.submit(&[whole(Op::Write, own, there)]);
    completed(&batch.unwrap());
    assert!(far.bytes() == sent);
    stage.target.unregister(there).unwrap();
    let batch = stage.submit(whole(Op::Read, near, far.segment));
    assert_eq!(ended(&batch).status, Status::Failed);
    let cause = batch.report(0).unwrap().cause;
    assert_eq!(cause, Some(Cause::RemoteAccess));
    let private = stage
        .target
        .allocate_on_gpu("private", 0, 4096, Access::Local);
    private.unwrap();
    let hidden = stage
        .initiator
        .open_segment(&address(&stage.target, "private"));
    assert!(hidden.is_err());
}

#[test]
fn an_address_says_by_itself_where_its_memory_is() {
    let stub = stub();
    let engine = engine(&stub);
    // (name, address, bytes)
    let pieces = stub.allocate_mapped(1, 4096, 4).unwrap();
    let mut here = vec![7_u8; 8192];
    let register = |name: &str, address: u64, bytes| {
        let base = NonNull::new(address as *mut u8).unwrap();
        // SAFETY: all of this lives until the engine has ended.
        unsafe { engine.register(name, base, bytes, Access::Local) }
    };
    let host = register("host", here.as_mut_ptr() as u64, 8192).unwrap();
    let gpu = register("gpu", pieces + 100, 4 * 4096 - 100).unwrap();
    assert!(engine.region(host).unwrap().device().is_none());
    let region = engine.region(gpu).unwrap();
    assert_eq!(region.device().unwrap().ordinal(), 1);
    let write = Request {
        length: 8192,
        ..whole(Op::Write, host, gpu)
    };
    completed(&engine.submit(&[write]).unwrap());
    assert_eq!(get(&region, 0, 8192), [7; 8192]);
    // Half of it is somewhere else.
    let error = register("past", pieces, 4 * 4096 + 1).unwrap_err();
    let foreign = CudaError::ForeignPointer {
        address: pieces + 4 * 4096,
    };
    assert!(
        matches!(&error, RegisterError::Gpu(error) if *error == foreign),
        "{error}"
    );
    drop(engine);
}

#[test]
fn without_a_driver_all_memory_is_the_hosts_and_the_rest_goes_on() {
    let engine = Engine::new(initiator_config()).unwrap();
    let error = engine.allocate_on_gpu("gpu", 0, 4096, Access::Local);
    let error = error.unwrap_err();
    assert!(matches!(error, RegisterError::Gpu(_)), "{error}");
    let mut here = vec![1_u8; 4096];
    let base = NonNull::new(here.as_mut_ptr()).unwrap();
    // SAFETY: it lives until the engine has ended.
    let own = unsafe { engine.register("own", base, 4096, Access::Local) }.unwrap();
    let target = target("target");
    let there = target
        .allocate("mem", 4096, Access::RemoteReadWrite)
        .unwrap();
    let remote = engine.open_segment(&address(&target, "mem")).unwrap();
    let write = Request {
        length: 4096,
        ..whole(Op::Write, own, remote)
    };
    completed(&engine.submit(&[write]).unwrap());
    assert_eq!(content(&target, there), [1; 4096]);
    drop(engine);
}

#[test]
fn a_configuration_can_do_without_gpus() {
    let stub = stub();
    let engine = engine_with(initiator_config().without("cuda"), &stub);
    let error = engine.allocate_on_gpu("gpu", 0, 4096, Access::Local);
    assert!(
        matches!(error, Err(RegisterError::Gpu(CudaError::SwitchedOff))),
        "{error:?}"
    );
}

#[test]
fn cuda_is_started_when_memory_of_a_gpu_is_asked_for_and_no_sooner() {
    // It was started with the engine: the program's children could not use it any more, and CUDA_VISIBLE_DEVICES was read.
    let stub = stub();
    let engine = engine(&stub);
    let target = target("target");
    let there = target.allocate("mem", BYTES, Access::RemoteReadWrite);
    let far = engine.open_segment(&address(&target, "mem")).unwrap();
    let host = engine.allocate("host", BYTES, Access::Local).unwrap();
    let sent = fill_with(&engine, host, 1);
    completed(&engine.submit(&[whole(Op::Write, host, far)]).unwrap());
    assert!(content(&target, there.unwrap()) == sent);
    let mut here = vec![1_u8; 4096];
    let base = NonNull::new(here.as_mut_ptr()).unwrap();
    // SAFETY: it lives until the segment has been taken back.
    let own = unsafe { engine.register("own", base, 4096, Access::Local) }.unwrap();
    engine.unregister(own).unwrap();
    engine.order_after(host, 0).unwrap_err();
    let _ = (engine.rails(), engine.stats());
    assert!(!stub.counts().begun);
    engine
        .allocate_on_gpu("gpu", 1, 4096, Access::Local)
        .unwrap();
    assert!(stub.counts().begun);
}

#[test]
fn failures_of_the_driver_are_told_apart() {
    let stub = stub();
    let engine = engine(&stub);
    let allocate = |ordinal, bytes| {
        let allocated = engine.allocate_on_gpu("gpu", ordinal, bytes, Access::Local);
        match allocated.unwrap_err() {
            RegisterError::Gpu(error) => error,
            other => panic!("{other}"),
        }
    };
    let too_much = 2 << 30;
    let none = CudaError::OutOfMemory { bytes: too_much };
    assert_eq!(allocate(0, too_much), none);
    let absent = CudaError::NoDevice {
        ordinal: 2,
        devices: 2,
    };
    assert_eq!(allocate(2, 1), absent);
    stub.lose(1, ILLEGAL_ADDRESS);
    let lost = CudaError::ContextLost {
        ordinal: 1,
        code: ILLEGAL_ADDRESS,
    };
    assert_eq!(allocate(1, 1), lost);
    let host = engine.allocate("host", 1, Access::Local).unwrap();
    let error = engine.order_after(host, 0).unwrap_err();
    assert!(
        matches!(error, RegisterError::Gpu(CudaError::ForeignPointer { .. })),
        "{error}"
    );
}

#[test]
fn a_lost_context_is_said_and_holds_what_it_may_still_write() {
    let stub = stub();
    let engine = engine(&stub);
    let (host, gpu) = host_and_gpu(&engine);
    completed(&engine.submit(&[whole(Op::Write, host, gpu)]).unwrap());
    let sent = fill_with(&engine, gpu, 3);
    fill_with(&engine, host, 4);
    let region = engine.region(host).unwrap();
    let batch = stopped_midway(&engine, &stub, &[whole(Op::Read, host, gpu)]);
    stub.lose(0, ILLEGAL_ADDRESS);
    assert_eq!(ended(&batch).status, Status::Indeterminate);
    let report = batch.report(0).unwrap();
    assert_eq!(
        (report.local, report.remote),
        (Local::Held, Remote::Settled),
        "{report:?}"
    );
    let kept = engine.unregister(host).unwrap_err();
    assert!(matches!(kept, RegisterError::InUse { .. }), "{kept}");
    // It comes after all, and finds what it was meant for.
    assert!(stub.haunt(0) > 0);
    let landed = bytes(&region);
    let wrong = landed.iter().zip(&sent).filter(|(a, b)| a == b).count();
    assert!(wrong > 0, "some of it has landed, late");
    // The other one goes on.
    stub.go_on();
    let other = engine
        .allocate_on_gpu("other", 1, BYTES, Access::Local)
        .unwrap();
    let spare = engine.allocate("spare", BYTES, Access::Local).unwrap();
    let sent = fill_with(&engine, spare, 9);
    completed(&engine.submit(&[whole(Op::Write, spare, other)]).unwrap());
    assert!(content(&engine, other) == sent);
    // And the engine ends, and whoever takes the memory back after it is not held up.
    engine.shutdown();
    region.revoke();
}

#[test]
fn the_end_of_an_engine_frees_nothing_that_a_device_still_writes_to() {
    // It was told to be free when its worker had ended, whatever a device had of it.
    for is_lost in [true, false] {
        let stub = stub();
        let engine = engine(&stub);
        let (host, gpu) = host_and_gpu(&engine);
        completed(&engine.submit(&[whole(Op::Write, host, gpu)]).unwrap());
        let region = engine.region(host).unwrap();
        let batch = stopped_midway(&engine, &stub, &[whole(Op::Read, host, gpu)]);
        let (tell, told) = channel();
        let known = batch.clone();
        batch.on_done(move |_| tell.send(known.report(0).unwrap()).unwrap());
        if is_lost {
            stub.lose(0, ILLEGAL_ADDRESS);
        }
        engine.shutdown();
        assert!(region.is_touched());
        let reports = [told.recv().unwrap(), batch.report(0).unwrap()];
        for report in reports {
            assert_eq!(report.status, Status::Indeterminate, "{report:?}");
            assert_eq!(report.local, Local::Held, "{report:?}");
        }
        let kept = engine.unregister(host).unwrap_err();
        assert!(matches!(kept, RegisterError::InUse { .. }), "{kept}");
    }
}

#[test]
fn what_is_cancelled_is_reported_when_its_copies_are_over() {
    let stub = stub();
    let engine = engine(&stub);
    let (host, gpu) = host_and_gpu(&engine);
    completed(&engine.submit(&[whole(Op::Write, host, gpu)]).unwrap());
    // More than any window takes: what has gone out when it is cancelled still completes.
    let requests = [whole(Op::Read, host, gpu); 64];
    let batch = stopped_midway(&engine, &stub, &requests);
    batch.cancel();
    assert!(batch.wait(Duration::from_millis(100)).is_err());
    assert!(engine.unregister(host).is_err(), "it may still be written");
    stub.go_on();
    assert_eq!(ended(&batch).status, Status::Cancelled);
    for index in 0..requests.len() {
        assert_eq!(batch.report(index).unwrap().local, Local::Released);
    }
    engine.unregister(host).unwrap();
}

#[test]
fn copies_begin_when_the_programs_stream_is_over() {
    let stub = stub();
    let engine = engine(&stub);
    let (host, gpu) = host_and_gpu(&engine);
    let theirs = stub.stream(0).unwrap();
    completed(&engine.submit(&[whole(Op::Write, host, gpu)]).unwrap());
    stub.hold();
    let mut made = pattern(8, BYTES);
    assert!(stub.pin(0, made.as_ptr() as u64, BYTES).unwrap());
    let from = CopyEnd {
        address: made.as_mut_ptr() as u64,
        ordinal: None,
    };
    let to = CopyEnd {
        address: engine.region(gpu).unwrap().base().as_ptr() as u64,
        ordinal: Some(0),
    };
    // SAFETY: both live until the stream is finished below.
    unsafe { stub.copy(0, theirs, to, from, BYTES) }.unwrap();
    engine.order_after(gpu, theirs.0).unwrap();
    let batch = engine.submit(&[whole(Op::Read, host, gpu)]).unwrap();
    assert!(batch.wait(Duration::from_millis(50)).is_err());
    stub.go_on();
    completed(&batch);
    assert!(content(&engine, host) == made);
    stub.finish(0, theirs).unwrap();
}

#[test]
fn the_end_of_the_other_host_ends_what_is_staged() {
    let stage = Stage::new();
    let near = stage.near_gpu();
    let (_, far) = stage.far_gpu(Access::RemoteReadWrite);
    let batches: Vec<_> = (0..8)
        .map(|_| stage.submit(whole(Op::Write, near, far.segment)))
        .collect();
    stage.target.shutdown();
    for batch in &batches {
        let status = ended(batch).status;
        assert!(
            !matches!(status, Status::Pending | Status::Cancelled),
            "{status:?}"
        );
    }
}

#[test]
fn two_engines_stage_their_gpus_towards_each_other() {
    let stubs = [stub(), stub()];
    let config = |n: usize| target_config(&n.to_string()).without("cuda-ipc");
    let engines = [0, 1].map(|n: usize| engine_with(config(n), &stubs[n]));
    let own = [0, 1].map(|n: usize| {
        let access = Access::RemoteReadWrite;
        let segment = engines[n].allocate_on_gpu("gpu", 0, BYTES, access);
        let segment = segment.unwrap();
        fill_with(&engines[n], segment, n as u64);
        segment
    });
    // Each writes the first half of its memory into the second half of the other's, several times at once.
    let half = BYTES / 2;
    let batches: Vec<_> = [(0, 1), (1, 0)]
        .into_iter()
        .flat_map(|(from, to): (usize, usize)| {
            let remote = engines[from]
                .open_segment(&address(&engines[to], "gpu"))
                .unwrap();
            let request = Request {
                remote_offset: half,
                length: half,
                ..whole(Op::Write, own[from], remote)
            };
            let engine = engines[from].clone();
            (0..6).map(move |_| engine.submit(&[request]).unwrap())
        })
        .collect();
    for batch in &batches {
        completed(batch);
    }
    for n in [0, 1] {
        let region = engines[n].region(own[n]).unwrap();
        let sent = pattern(1 - n as u64, BYTES);
        assert!(get(&region, half, half) == sent[..half as usize]);
    }
}

fn bytes_over(engine: &Engine, transport: &str) -> u64 {
    let rails = engine.rails();
    let of = rails.iter().filter(|rail| rail.name.starts_with(transport));
    of.map(|rail| rail.bytes).sum()
}

#[test]
fn bytes_move_between_gpus_of_two_engines_of_one_host_without_slots() {
    let stage = Stage::on_one_host();
    stage.exchange_all();
    // Host, GPU and file of one with the other's GPU, both ways, and nothing of that anywhere else.
    assert!(bytes_over(&stage.initiator, "cuda-ipc:") >= 6 * BYTES);
    let near = stage.initiator.local_segment("gpu").unwrap();
    let far = stage
        .initiator
        .open_segment(&address(&stage.target, "gpu"))
        .unwrap();
    let over_tcp = bytes_over(&stage.initiator, "tcp:");
    completed(&stage.submit(whole(Op::Write, near, far)));
    assert_eq!(bytes_over(&stage.initiator, "tcp:"), over_tcp);
    // Opened for the host and for its own GPU, both with its own GPU's context, and the target's with the target's.
    let counts = stage.stubs.each_ref().map(|stub| stub.counts());
    assert_eq!(counts[1].imported, 1);
    assert_eq!(counts.map(|counts| counts.contexts), [1, 1]);
}

#[test]
fn pieces_between_two_engines_land_where_they_belong_and_nowhere_else() {
    let stage = Stage::on_one_host();
    let near = End::memory(&stage.initiator, stage.near_gpu());
    let (_, far) = stage.far_gpu(Access::RemoteReadWrite);
    check_pieces(&stage.initiator, &near, &far);
    assert!(bytes_over(&stage.initiator, "cuda-ipc:") > 4 * MIB);
}

/// It was staged: two copies, three threads.
#[test]
fn host_memory_of_another_process_is_copied_to_straight_and_left_when_it_goes() {
    let stage = Stage::on_one_host();
    let near = stage.near_gpu();
    let there = stage
        .target
        .allocate("host", BYTES, Access::RemoteReadWrite);
    let there = there.unwrap();
    let far = stage.far("host", there);
    let own = End::memory(&stage.initiator, near);
    check_pieces(&stage.initiator, &own, &far);
    let direct = bytes_over(&stage.initiator, "cuda-ipc:");
    assert!(direct > 4 * MIB, "{direct}");
    for other in ["shm:", "tcp:", "staged:"] {
        assert_eq!(bytes_over(&stage.initiator, other), 0, "{other}");
    }
    assert_eq!(failovers(&stage.initiator), []);
    // The process that has the memory needs no GPU for that.
    assert_eq!(stage.stubs[0].counts().contexts, 0);
    let copied = || {
        let before = stage.stubs[1].counts().copies;
        completed(&stage.submit(whole(Op::Write, near, far.segment)));
        stage.stubs[1].counts().copies - before
    };
    // As few as there are batches of works, and not one for each slot that it passes.
    until("it is pinned", || copied() < BYTES / (256 << 10));
    let pinned = stage.stubs[1].counts().pinned;
    stage.target.unregister(there).unwrap();
    until("it is not pinned any more", || {
        stage.stubs[1].counts().pinned == pinned - 1
    });
    let again = stage.submit(whole(Op::Write, near, far.segment));
    let ended = again.wait(Duration::from_secs(30)).unwrap().status;
    assert_eq!(ended, Status::Failed);
}

#[test]
fn memory_that_others_have_open_is_left_before_it_goes() {
    let stage = Stage::on_one_host();
    let near = stage.near_gpu();
    let (there, far) = stage.far_gpu(Access::RemoteReadWrite);
    completed(&stage.submit(whole(Op::Write, near, far.segment)));
    let batch = stopped_midway(
        &stage.initiator,
        &stage.stubs[1],
        &[whole(Op::Write, near, far.segment)],
    );
    std::thread::scope(|scope| {
        let going = scope.spawn(|| stage.target.unregister(there));
        until("nobody else gets in", || {
            stage.target.local_segment("gpu").is_none()
        });
        assert!(batch.wait(Duration::from_millis(50)).is_err());
        assert!(!going.is_finished(), "it went while it was written to");
        stage.stubs[1].go_on();
        going.join().unwrap().unwrap();
    });
    assert_eq!(stage.stubs[1].counts().imported, 0);
    until("only scratch is left", || {
        stage.stubs[0].counts().allocations == 1
    });
    let status = ended(&batch).status;
    assert_ne!(status, Status::Indeterminate);
    let batch = stage.submit(whole(Op::Write, near, far.segment));
    assert_eq!(ended(&batch).status, Status::Failed);
    let cause = batch.report(0).unwrap().cause;
    assert_eq!(cause, Some(Cause::RemoteAccess));
}

#[test]
fn memory_that_a_peer_copies_to_behind_a_long_kernel_is_kept_until_it_has_left() {
    // It was said to be taken back after two seconds, and freed under the peer's copy.
    let stage = Stage::on_one_host();
    let near = stage.near_gpu();
    let (there, far) = stage.far_gpu(Access::RemoteReadWrite);
    let write = whole(Op::Write, near, far.segment);
    completed(&stage.submit(write));
    let [target_stub, initiator_stub] = &stage.stubs;
    // The kernel: a copy on a stream of the program's that stands still.
    let kernel = initiator_stub.stream(1).unwrap();
    let at = |address| CopyEnd {
        address,
        ordinal: Some(1),
    };
    let scratch = initiator_stub.allocate(1, 64, polyrail::cuda::Sharing::Process);
    let scratch = scratch.unwrap();
    initiator_stub.hold();
    // SAFETY: no end is on the host.
    unsafe { initiator_stub.copy(1, kernel, at(scratch), at(scratch), 64) }.unwrap();
    stage.initiator.order_after(near, kernel.0).unwrap();
    let copies = initiator_stub.counts().copies;
    let batch = stage.submit(write);
    until("the copy waits for the kernel", || {
        let _ = batch.status();
        initiator_stub.counts().copies > copies
    });
    let allocations = target_stub.counts().allocations;
    for _ in 0..2 {
        let kept = stage.target.unregister(there).unwrap_err();
        let said = matches!(kept, RegisterError::Unprovable { segment } if segment == there);
        assert!(said, "{kept}");
        assert_eq!(
            target_stub.counts().allocations,
            allocations,
            "it was freed"
        );
        assert_eq!(initiator_stub.counts().imported, 1, "the peer has left");
    }
    assert!(
        stage.target.local_segment("gpu").is_none(),
        "nobody gets in"
    );
    initiator_stub.go_on();
    let status = ended(&batch).status;
    assert_ne!(status, Status::Indeterminate);
    until("it is free", || stage.target.unregister(there).is_ok());
    assert_eq!(target_stub.counts().allocations, allocations - 1);
    let again = stage.target.unregister(there);
    assert!(matches!(again, Err(RegisterError::Stale { .. })));
}

#[test]
fn memory_that_a_peer_still_copies_to_outlives_the_engine() {
    let stage = Stage::on_one_host();
    let near = stage.near_gpu();
    let (there, far) = stage.far_gpu(Access::RemoteReadWrite);
    let write = whole(Op::Write, near, far.segment);
    completed(&stage.submit(write));
    let batch = stopped_midway(&stage.initiator, &stage.stubs[1], &[write]);
    let region = stage.target.region(there).unwrap();
    let Stage { target, stubs, .. } = &stage;
    let allocations = stubs[0].counts().allocations;
    target.shutdown();
    assert!(region.is_touched(), "the peer may still write there");
    let kept = target.unregister(there).unwrap_err();
    assert!(matches!(kept, RegisterError::Unprovable { .. }), "{kept}");
    assert_eq!(stubs[0].counts().allocations, allocations);
    stubs[1].go_on();
    ended(&batch);
}

#[test]
fn a_context_that_is_lost_while_it_writes_to_another_engine_says_so() {
    let stage = Stage::on_one_host();
    let near = stage.near_gpu();
    let (_, far) = stage.far_gpu(Access::RemoteReadWrite);
    completed(&stage.submit(whole(Op::Write, near, far.segment)));
    let batch = stopped_midway(
        &stage.initiator,
        &stage.stubs[1],
        &[whole(Op::Write, near, far.segment)],
    );
    stage.stubs[1].lose(1, ILLEGAL_ADDRESS);
    assert_eq!(ended(&batch).status, Status::Indeterminate);
    let report = batch.report(0).unwrap();
    assert_eq!(
        (report.local, report.remote),
        (Local::Held, Remote::Unknown),
        "{report:?}"
    );
    assert!(stage.initiator.unregister(near).is_err());
}

#[test]
fn memory_that_cannot_be_opened_by_others_goes_through_slots() {
    let stage = Stage::on_one_host();
    let near = stage.near_gpu();
    let pieces = stage.stubs[0].allocate_mapped(0, MIB, 6).unwrap();
    let base = NonNull::new(pieces as *mut u8).unwrap();
    // SAFETY: allocated until the driver ends.
    let there = unsafe {
        stage
            .target
            .register("pieces", base, BYTES, Access::RemoteReadWrite)
    };
    let far = stage.far("pieces", there.unwrap());
    let sent = fill_with(&stage.initiator, near, 4);
    completed(&stage.submit(whole(Op::Write, near, far.segment)));
    assert!(far.bytes() == sent);
    assert_eq!(bytes_over(&stage.initiator, "cuda-ipc:"), 0);
}

#[test]
fn an_engine_that_ends_has_left_what_it_had_open() {
    let stage = Stage::on_one_host();
    let near = stage.near_gpu();
    let (there, far) = stage.far_gpu(Access::RemoteReadWrite);
    completed(&stage.submit(whole(Op::Write, near, far.segment)));
    let Stage {
        initiator,
        target,
        stubs,
        ..
    } = stage;
    drop(initiator);
    assert_eq!(stubs[1].counts().imported, 0);
    target.unregister(there).unwrap();
    drop((far, target));
    // The thread that stages may be at work, and have the last handle.
    until("all of it has gone", || stubs[0].counts().allocations == 0);
}

fn failovers(engine: &Engine) -> Vec<(&'static str, &'static str)> {
    let failovers = engine.stats().failovers;
    failovers.iter().map(|row| (row.from, row.to)).collect()
}

#[test]
fn what_a_driver_refuses_to_open_is_staged_until_it_does_not() {
    // (whose driver refuses, what it does not do)
    for (side, name) in [(1, "opens nothing"), (0, "lets nothing be opened")] {
        let stage = Stage::on_one_host();
        let (nears, fars) = (stage.nears(), stage.fars());
        let (_, far) = &fars[1];
        stage.stubs[side].set_closed(true);
        let mut seed = 0;
        for (kind, near) in &nears {
            let case = format!("{name}, {kind}");
            seed += 1;
            let sent = near.fill(seed);
            completed(&stage.submit(whole(Op::Write, near.segment, far.segment)));
            assert!(far.bytes() == sent, "write, {case}");
            let sent = far.fill(seed + 100);
            completed(&stage.submit(whole(Op::Read, near.segment, far.segment)));
            assert!(near.bytes() == sent, "read, {case}");
        }
        assert_eq!(bytes_over(&stage.initiator, "cuda-ipc:"), 0, "{name}");
        assert_eq!(failovers(&stage.initiator)[0], ("cuda-ipc", "staged"));
        stage.stubs[side].set_closed(false);
        let (_, near) = &nears[1];
        until("it is copied directly again", || {
            completed(&stage.submit(whole(Op::Write, near.segment, far.segment)));
            bytes_over(&stage.initiator, "cuda-ipc:") > 0
        });
    }
}

#[test]
fn what_fails_on_its_way_goes_on_through_slots() {
    for op in [Op::Write, Op::Read] {
        let stage = Stage::on_one_host();
        let near = stage.near_gpu();
        let (_, far) = stage.far_gpu(Access::RemoteReadWrite);
        let copies = stage.stubs[1].counts().copies;
        let sent = match op {
            Op::Write => fill_with(&stage.initiator, near, 5),
            Op::Read => far.fill(5),
        };
        let before = stage.stubs[1].counts().copies;
        stage.stubs[1].hold();
        let batch = stage.submit(whole(op, near, far.segment));
        until("a copy is on its way", || {
            let _ = batch.status();
            stage.stubs[1].counts().copies > before.max(copies)
        });
        stage.stubs[1].set_closed(true);
        stage.stubs[1].go_on();
        completed(&batch);
        let direct = bytes_over(&stage.initiator, "cuda-ipc:");
        assert!((1..BYTES).contains(&direct), "{op:?}: {direct}");
        assert!(bytes_over(&stage.initiator, "tcp:") >= BYTES, "{op:?}");
        let got = match op {
            Op::Write => far.bytes(),
            Op::Read => content(&stage.initiator, near),
        };
        assert!(got == sent, "{op:?}");
        assert_eq!(failovers(&stage.initiator), [("cuda-ipc", "staged")]);
    }
}

#[test]
fn what_is_cancelled_behind_a_driver_that_refuses_ends_when_its_hops_have() {
    let stage = Stage::on_one_host();
    let near = stage.near_gpu();
    let (there, far) = stage.far_gpu(Access::RemoteReadWrite);
    stage.stubs[1].set_closed(true);
    completed(&stage.submit(whole(Op::Write, near, far.segment)));
    let copies = stage.stubs[0].counts().copies;
    stage.stubs[0].hold();
    let batch = stage.submit(whole(Op::Write, near, far.segment));
    until("a copy at the other end is on its way", || {
        let _ = batch.status();
        stage.stubs[0].counts().copies > copies
    });
    batch.cancel();
    assert!(batch.wait(Duration::from_millis(100)).is_err());
    stage.stubs[0].go_on();
    assert_eq!(ended(&batch).status, Status::Cancelled);
    let report = batch.report(0).unwrap();
    assert_eq!(
        (report.local, report.remote),
        (Local::Released, Remote::Settled)
    );
    stage.initiator.unregister(near).unwrap();
    stage.target.unregister(there).unwrap();
}

#[test]
fn what_nobody_may_read_is_not_tried_another_way() {
    let stage = Stage::on_one_host();
    let near = stage.near_gpu();
    let (there, far) = stage.far_gpu(Access::RemoteReadWrite);
    stage.stubs[1].set_closed(true);
    completed(&stage.submit(whole(Op::Write, near, far.segment)));
    stage.target.unregister(there).unwrap();
    let batch = stage.submit(whole(Op::Write, near, far.segment));
    assert_eq!(ended(&batch).status, Status::Failed);
    let cause = batch.report(0).unwrap().cause;
    assert_eq!(cause, Some(Cause::RemoteAccess));
    // And who has gone is gone, whatever way was taken.
    let other = stage
        .target
        .allocate_on_gpu("other", 1, BYTES, Access::RemoteReadWrite);
    let other = stage.far("other", other.unwrap());
    let batch = stage.submit(whole(Op::Write, near, other.segment));
    stage.target.shutdown();
    let status = ended(&batch).status;
    assert!(
        !matches!(status, Status::Pending | Status::Cancelled),
        "{status:?}"
    );
}

#[test]
fn as_many_requests_as_there_is_room_for_leave_room_for_their_hops() {
    let stage = Stage::on_one_host();
    let near = stage.near_gpu();
    let (_, far) = stage.far_gpu(Access::RemoteReadWrite);
    stage.stubs[1].set_closed(true);
    let sent = fill_with(&stage.initiator, near, 1);
    let before = far.fill(2);
    const REQUESTS: usize = 16_384;
    let requests: Vec<_> = (0..REQUESTS as u64)
        .map(|at| Request {
            local_offset: 2 * at,
            remote_offset: 2 * at,
            length: 1,
            ..whole(Op::Write, near, far.segment)
        })
        .collect();
    let batch = stage.initiator.submit(&requests).unwrap();
    // Several round trips each, and not optimised.
    batch.wait(8 * PATIENCE).unwrap();
    completed(&batch);
    let got = far.bytes();
    for at in 0..REQUESTS {
        assert_eq!(
            got[2 * at..][..2],
            [sent[2 * at], before[2 * at + 1]],
            "{at}"
        );
    }
}

#[test]
fn what_follows_a_batch_follows_it_through_slots_too() {
    let stage = Stage::on_one_host();
    let near = stage.near_gpu();
    let (_, far) = stage.far_gpu(Access::RemoteReadWrite);
    stage.stubs[1].set_closed(true);
    let write = whole(Op::Write, near, far.segment);
    let sent = fill_with(&stage.initiator, near, 1);
    let batch = stage.initiator.submit_notifying(&[write, write], b"there");
    completed(&batch.unwrap());
    let notifications = stage.target.notifications();
    let told = notifications.wait(PATIENCE).unwrap();
    assert_eq!(told.bytes, b"there");
    assert!(far.bytes() == sent);
    // And a transfer that is posted many times.
    let mut transfer = stage.initiator.prepare_transfer(&[write]).unwrap();
    for seed in 2..5 {
        let sent = fill_with(&stage.initiator, near, seed);
        completed(&transfer.post().unwrap());
        assert!(far.bytes() == sent, "{seed}");
    }
    assert_eq!(bytes_over(&stage.initiator, "cuda-ipc:"), 0);
}

#[test]
fn without_a_budget_for_failovers_the_first_fault_is_final() {
    let config = Config {
        max_failover_attempts: 0,
        ..initiator_config()
    };
    let stage = Stage::with(config);
    let near = stage.near_gpu();
    let (_, far) = stage.far_gpu(Access::RemoteReadWrite);
    stage.stubs[1].set_closed(true);
    let batch = stage.submit(whole(Op::Write, near, far.segment));
    assert_eq!(ended(&batch).status, Status::Failed);
    let cause = batch.report(0).unwrap().cause;
    assert_eq!(cause, Some(Cause::FailoverLimit));
    stage.initiator.unregister(near).unwrap();
}

#[test]
fn what_one_worker_was_refused_the_others_know() {
    let config = Config {
        workers: 3,
        ..initiator_config()
    };
    let stage = Stage::with(config);
    let near = stage.near_gpu();
    let (_, far) = stage.far_gpu(Access::RemoteReadWrite);
    stage.stubs[1].set_closed(true);
    let write = whole(Op::Write, near, far.segment);
    let sent = fill_with(&stage.initiator, near, 3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..4 {
                    completed(&stage.submit(write));
                }
            });
        }
    });
    assert!(far.bytes() == sent);
    // Those that were under way when the first was refused went on as well; newer ones did not try.
    let before = stage.initiator.stats().failovers_total();
    for _ in 0..8 {
        completed(&stage.submit(write));
    }
    assert_eq!(stage.initiator.stats().failovers_total(), before);
    assert_eq!(bytes_over(&stage.initiator, "cuda-ipc:"), 0);
}
