//! What is written is what is read, and what is not whole is known for it.

mod disks;

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use polyrail_core::batch::BatchReport;
use polyrail_core::message::{Frame, Message};
use polyrail_core::orchestrator::{
    Cancelled, Config, Event, LaneAction, Proof, Reason, Request, SubmitError,
};
use polyrail_core::path::class::RailClass;
use polyrail_core::path::config::{PathConfig, PathMode};
use polyrail_core::path::island::PathClass;
use polyrail_core::path::share::Shares;
use polyrail_core::plan::{Plan, PlanPath, PlanRail, PlanTransport};
use polyrail_core::rail::RailConfig;
use polyrail_core::rail::documented::DocumentedConfig;
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::health::{HealthMode, RailState};
use polyrail_core::rail::policies::{PoliciesConfig, TransportConfig};
use polyrail_core::rail::select::Policy;
use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{
    BatchId, DeviceId, Epoch, LaneId, PeerId, PlanId, RailId, Rate, RequestId, SegmentRef,
    TransportId,
};
use polyrail_core::work::{
    Cause, Completion, LaneFact, LaneLimits, Op, Outcome, Place, Priority, Scope, Stop, Work,
};
use quickcheck::{Arbitrary, Gen, QuickCheck};

use crate::block::{self, BLOCK_BYTES_MAX, HEAD_BYTES, Kind, START_BYTES};
use crate::{
    Answer, Call, Capacities, Header, Install, Posts, Reader, Recorder, RecordingError, Step,
};

const WORKERS: u16 = 3;

/// A file that a test can look into.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn header() -> Header {
    let capacities = Capacities {
        rails: 4,
        devices: 4,
        peers: 2,
        plans: 2,
        requests: 16,
        attempts: 64,
        batches: 16,
    };
    Header {
        version: "0.1.0".into(),
        engine: "test".into(),
        started_ms: 1,
        before: 0,
        slice_bytes: 65_536,
        capacities,
        workers: (0..WORKERS)
            .map(|worker| Config::new(worker, PoliciesConfig::new(worker, Policy::Spray)))
            .collect(),
        transports: Vec::new(),
    }
}

type Told = (Step<'static>, Answer<'static>);

/// The file of a recording of these calls, closed.
fn file_of(told: &[Told]) -> Vec<u8> {
    let memory = Memory::default();
    let recorder = Recorder::start(memory.clone(), PathBuf::from("test"), &header()).unwrap();
    for (step, answer) in told {
        recorder.note(step, answer);
    }
    recorder.close();
    let bytes = memory.0.lock().unwrap();
    bytes.clone()
}

/// A call in bytes: core's types cannot all be compared.
fn in_bytes((step, answer): &Told) -> (Vec<u8>, Vec<u8>) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    block::append(&mut first, step);
    block::append(&mut second, answer);
    (first, second)
}

/// All calls of a file, or those before the error.
fn read(file: &[u8]) -> (Vec<Told>, Result<(), RecordingError>) {
    let mut told = Vec::new();
    let mut reader = match Reader::new(file) {
        Ok(reader) => reader,
        Err(error) => return (told, Err(error)),
    };
    loop {
        match reader.next_entry() {
            Ok(Some(entry)) => {
                assert_eq!(entry.number, told.len() as u64);
                let one = (entry.step, entry.answer);
                assert_eq!(in_bytes(&one).1, entry.answer_bytes);
                told.push(one);
            }
            Ok(None) => return (told, Ok(())),
            Err(error) => return (told, Err(error)),
        }
    }
}

fn some_calls(count: u32) -> Vec<Told> {
    (0..count)
        .map(|i| {
            let now = Instant::from_nanos(u64::from(i));
            let call = Call::HandleTimeout { now };
            (Step::Worker(0, call), Answer::Nothing)
        })
        .collect()
}

#[derive(Clone, Debug)]
struct Anything(Told);

impl Arbitrary for Anything {
    fn arbitrary(g: &mut Gen) -> Self {
        let step = match u8::arbitrary(g) % 8 {
            0 => Step::Shared(Install::Device(DeviceId(u16::arbitrary(g)), estimate(g))),
            1 => Step::Shared(Install::Rail(
                RailId(u16::arbitrary(g)),
                RailConfig {
                    peer: PeerId(u16::arbitrary(g)),
                    device: DeviceId(u16::arbitrary(g)),
                    far: Option::<u16>::arbitrary(g).map(DeviceId),
                    estimate: estimate(g),
                },
                String::arbitrary(g).into(),
            )),
            2 => Step::Shared(Install::Others(
                DeviceId(u16::arbitrary(g)),
                u64::arbitrary(g),
            )),
            _ => Step::Worker(u16::arbitrary(g) % WORKERS, call(g)),
        };
        Self((step, answer(g)))
    }
}

fn estimate(g: &mut Gen) -> EstimateConfig {
    EstimateConfig {
        slice_span: Duration::from_nanos(u64::arbitrary(g)),
        batch_span: Duration::from_nanos(u64::arbitrary(g)),
        rate_nominal: Rate::from_bits(u64::arbitrary(g)),
        delay_base: Duration::from_nanos(u64::arbitrary(g)),
        tier: u8::arbitrary(g),
    }
}

fn instant(g: &mut Gen) -> Instant {
    Instant::from_nanos(u64::arbitrary(g))
}

fn lane(g: &mut Gen) -> (LaneId, Epoch) {
    (LaneId(u32::arbitrary(g)), Epoch(u32::arbitrary(g)))
}

fn place(g: &mut Gen) -> Place {
    Place {
        segment: SegmentRef(u32::arbitrary(g)),
        offset: u64::arbitrary(g),
    }
}

fn cause(g: &mut Gen) -> Cause {
    *g.choose(&[Cause::Reset, Cause::Silent, Cause::NoRail, Cause::ShutDown])
        .unwrap()
}

fn op(g: &mut Gen) -> Op {
    *g.choose(&[Op::Write, Op::Read]).unwrap()
}

fn scope(g: &mut Gen) -> Scope {
    *g.choose(&[Scope::Local, Scope::Remote]).unwrap()
}

fn completion(g: &mut Gen) -> Completion {
    let (lane, epoch) = lane(g);
    Completion {
        lane,
        epoch,
        cookie: u64::arbitrary(g),
        at: instant(g),
        outcome: match bool::arbitrary(g) {
            true => Outcome::Success,
            false => Outcome::Error(cause(g)),
        },
    }
}

fn fact(g: &mut Gen) -> LaneFact {
    match u8::arbitrary(g) % 6 {
        0 => LaneFact::Opened {
            limits: LaneLimits {
                works_max: u16::arbitrary(g),
                work_bytes_max: u32::arbitrary(g),
                reads_max: u16::arbitrary(g),
                covers: bool::arbitrary(g),
                counts: bool::arbitrary(g),
                patience_ms: u16::arbitrary(g),
            },
        },
        1 => LaneFact::OpenFailed(cause(g)),
        2 => LaneFact::Writable,
        3 => LaneFact::Broken(cause(g)),
        4 => LaneFact::Fenced {
            scope: scope(g),
            delivered: Option::arbitrary(g),
        },
        _ => LaneFact::Unfenceable { scope: scope(g) },
    }
}

fn path(g: &mut Gen) -> Option<PlanPath> {
    let config = PathConfig {
        mode: *g.choose(&[PathMode::Vanilla, PathMode::Advanced])?,
        small_bytes_max: u64::arbitrary(g),
        hint_strict: bool::arbitrary(g),
        ..PathConfig::DEFAULT
    };
    let class = *g.choose(&[PathClass::IntraIsland, PathClass::InterIsland])?;
    bool::arbitrary(g).then_some(PlanPath { config, class })
}

fn plan(g: &mut Gen) -> Plan {
    Plan {
        peer: PeerId(u16::arbitrary(g)),
        local: SegmentRef(u32::arbitrary(g)),
        remote: SegmentRef(u32::arbitrary(g)),
        transports: (0..u8::arbitrary(g) % 5)
            .map(|transport| PlanTransport {
                transport: TransportId(transport),
                rails: (0..u16::arbitrary(g) % 17)
                    .map(|rail| PlanRail {
                        rail: RailId(rail),
                        tier: u8::arbitrary(g),
                        class: RailClass(u8::arbitrary(g)),
                    })
                    .collect(),
            })
            .collect(),
        scratch_local: place(g),
        scratch_remote: place(g),
        scratch_bytes: u32::arbitrary(g),
        path: path(g),
    }
}

fn call(g: &mut Gen) -> Call<'static> {
    let now = instant(g);
    let (lane, epoch) = lane(g);
    let id = RequestId::from_bits(u64::arbitrary(g));
    let batch = BatchId::from_bits(u64::arbitrary(g));
    let plan_id = PlanId::from_bits(u64::arbitrary(g));
    let peer = PeerId(u16::arbitrary(g));
    match u8::arbitrary(g) % 23 {
        0 => Call::InstallPlan {
            now,
            id: plan_id,
            plan: Cow::Owned(plan(g)),
        },
        1 => Call::RetirePlan { id: plan_id },
        2 => Call::OpenBatch {
            tag: u64::arbitrary(g),
        },
        3 => Call::Submit {
            now,
            request: Request {
                tag: u64::arbitrary(g),
                plan: plan_id,
                batch,
                local_offset: u64::arbitrary(g),
                remote_offset: u64::arbitrary(g),
                length: u64::arbitrary(g),
                deadline: instant(g),
                priority: *g.choose(&Priority::ALL).unwrap_or(&Priority::Normal),
                op: op(g),
            },
        },
        4 => Call::SealBatch { id: batch },
        5 => Call::Cancel { now, id },
        6 => Call::ShutDown { now },
        7 => Call::Take { id },
        8 => Call::TakeBatch { id: batch },
        9 => Call::HandlePosted {
            now,
            lane,
            number: u32::arbitrary(g),
            accepted: usize::arbitrary(g),
            stop: match u8::arbitrary(g) % 4 {
                0 => Stop::All,
                1 => Stop::Full,
                2 => Stop::Rejected(cause(g)),
                _ => Stop::Unknown,
            },
        },
        10 => Call::HandleCompletions {
            now,
            completions: (0..u8::arbitrary(g) % 40).map(|_| completion(g)).collect(),
        },
        11 => Call::HandleLane {
            now,
            lane,
            epoch,
            fact: fact(g),
        },
        12 => Call::HandleFrame {
            now,
            peer,
            frame: match bool::arbitrary(g) {
                true => Frame::Alive,
                false => Frame::Fenced {
                    lane,
                    epoch,
                    delivered: u32::arbitrary(g),
                },
            },
        },
        13 => Call::HandlePeerGone {
            now,
            peer,
            proof: Proof::ProcessGone,
        },
        14 => Call::HandleTimeout { now },
        21 => Call::ForgetPeer { now, peer },
        22 => Call::HandleHint {
            now,
            peer,
            hint: Option::arbitrary(g).map(|share: u16| Shares::pair(u32::from(share))),
        },
        15 => Call::HandleWake,
        16 => Call::PollPost { now },
        17 => Call::PollLane,
        18 => Call::PollMessage { now },
        19 => Call::PollEvent,
        _ => Call::PollTimeout,
    }
}

fn report(g: &mut Gen) -> Report {
    Report {
        status: *g
            .choose(&[Status::Completed, Status::Failed, Status::Indeterminate])
            .unwrap(),
        delivered_bytes: u64::arbitrary(g),
        cause: bool::arbitrary(g).then(|| cause(g)),
        local: Local::Held,
        remote: Remote::Unknown,
    }
}

fn answer(g: &mut Gen) -> Answer<'static> {
    let (lane, epoch) = lane(g);
    let peer = PeerId(u16::arbitrary(g));
    let some = bool::arbitrary(g);
    match u8::arbitrary(g) % 13 {
        0 => Answer::Nothing,
        1 => Answer::Bool(some),
        2 => Answer::BatchId(some.then(|| BatchId::from_bits(u64::arbitrary(g)))),
        3 => Answer::Submitted(match some {
            true => Ok(RequestId::from_bits(u64::arbitrary(g))),
            false => Err(SubmitError::Full),
        }),
        4 => Answer::Cancelled(Cancelled::Stale),
        5 => Answer::Report(some.then(|| report(g))),
        6 => Answer::BatchReport(some.then(|| BatchReport {
            status: Status::Failed,
            requests: u32::arbitrary(g),
            ended: u32::arbitrary(g),
            failed: u32::arbitrary(g),
            delivered_bytes: u64::arbitrary(g),
        })),
        7 => Answer::Posts(some.then(|| {
            Posts {
                lane,
                epoch,
                works: (0..u8::arbitrary(g) % 33)
                    .map(|_| Work {
                        cookie: u64::arbitrary(g),
                        op: op(g),
                        local: place(g),
                        remote: place(g),
                        length: u32::arbitrary(g),
                        signal: bool::arbitrary(g),
                    })
                    .collect(),
            }
        })),
        8 => Answer::Lane(some.then(|| LaneAction::Fence {
            lane,
            epoch,
            scope: scope(g),
        })),
        9 => Answer::Message(some.then_some(Message::Fence { peer, lane, epoch })),
        10 => Answer::Event(some.then(|| Event::RailChanged {
            rail: RailId(u16::arbitrary(g)),
            state: RailState::Probing,
            cause: bool::arbitrary(g).then(|| cause(g)),
            expired: bool::arbitrary(g),
        })),
        11 => Answer::Event(some.then(|| Event::Failover {
            tag: u64::arbitrary(g),
            from: TransportId(u8::arbitrary(g)),
            to: TransportId(u8::arbitrary(g)),
            attempt: u8::arbitrary(g),
        })),
        _ => Answer::Timeout(some.then(|| (instant(g), Reason::Progress))),
    }
}

#[test]
fn what_is_read_is_what_was_written() {
    fn same(told: Vec<Anything>) -> bool {
        let told: Vec<Told> = told.into_iter().map(|one| one.0).collect();
        let (found, end) = read(&file_of(&told));
        let all = |told: &[Told]| told.iter().map(in_bytes).collect::<Vec<_>>();
        end.is_ok() && all(&found) == all(&told)
    }
    QuickCheck::new().quickcheck(same as fn(_) -> _);
}

#[test]
fn a_recording_of_many_blocks_is_one_sequence() {
    let told = some_calls(200_000);
    let file = file_of(&told);
    assert!(file.len() > 10 * 65_536, "{}", file.len());
    let (found, end) = read(&file);
    assert!(end.is_ok() && found.len() == told.len());
    assert_eq!(in_bytes(&found[150_000]), in_bytes(&told[150_000]));
}

/// Where each block of a file starts, and the end.
fn blocks(file: &[u8]) -> Vec<usize> {
    let (mut starts, mut at) = (vec![START_BYTES], START_BYTES);
    while at < file.len() {
        let head = file[at..].first_chunk::<HEAD_BYTES>().unwrap();
        at += HEAD_BYTES + block::head(head).unwrap().0 as usize;
        starts.push(at);
    }
    starts
}

#[test]
fn a_file_cut_anywhere_is_good_up_to_its_last_whole_block() {
    let file = file_of(&some_calls(20));
    let blocks = blocks(&file);
    let [header, calls, end, length] = blocks[..] else {
        panic!("{blocks:?}");
    };
    assert_eq!(length, file.len());
    for cut in 0..length {
        let (found, error) = read(&file[..cut]);
        let at = match cut {
            _ if cut < header => 0,
            _ if cut < calls => header,
            _ if cut < end => calls,
            _ => end,
        };
        match error {
            Err(RecordingError::Truncated { offset }) => assert_eq!(offset, at as u64, "{cut}"),
            other => panic!("cut at {cut}: {other:?}"),
        }
        assert_eq!(found.len(), if cut < end { 0 } else { 20 }, "{cut}");
    }
}

#[test]
fn no_changed_byte_goes_unnoticed() {
    let file = file_of(&some_calls(20));
    for at in 0..file.len() {
        for flip in [1, 0x80] {
            let mut file = file.clone();
            file[at] ^= flip;
            let (_, error) = read(&file);
            let error = error.expect_err("it was changed");
            assert!(!error.is_truncation(), "byte {at}: {error:?}");
            assert!(error.to_string().contains("byte"), "{error}");
        }
    }
}

#[test]
fn blocks_that_are_missing_or_too_many_are_noticed() {
    let file = file_of(&some_calls(50_000));
    let blocks = blocks(&file);
    let (second, third) = (blocks[2], blocks[3]);
    let without = [&file[..second], &file[third..]].concat();
    let (_, error) = read(&without);
    assert!(
        matches!(error, Err(RecordingError::Gap { offset, expected, found })
            if offset == second as u64 && expected < found),
        "{error:?}"
    );
    let end = blocks[blocks.len() - 2];
    let twice = [&file[..end], &file[blocks[blocks.len() - 3]..]].concat();
    assert!(matches!(read(&twice).1, Err(RecordingError::Gap { .. })));
    let longer = [&file[..], &[0]].concat();
    assert!(matches!(
        read(&longer).1,
        Err(RecordingError::Malformed { .. })
    ));
    let another = [&file[..second], &file[START_BYTES..]].concat();
    assert!(matches!(
        read(&another).1,
        Err(RecordingError::Malformed { .. })
    ));
}

/// A file with one block of this content, good checksums and all.
fn file_with(kind: Kind, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    block::begin(&mut bytes, kind);
    bytes.extend_from_slice(content);
    block::finish(&mut bytes);
    [&block::start()[..], &bytes].concat()
}

#[test]
fn sizes_are_limits_before_they_are_sizes() {
    let with = |change: fn(&mut Header)| {
        let mut header = header();
        change(&mut header);
        let mut bytes = Vec::new();
        block::append(&mut bytes, &header);
        read(&file_with(Kind::Header, &bytes)).1.unwrap_err()
    };
    // (name, what makes the header impossible)
    type Change = fn(&mut Header);
    let cases: [(&str, Change); 9] = [
        ("no workers", |h| h.workers.clear()),
        ("many workers", |h| {
            h.workers = (0..65)
                .map(|worker| Config::new(worker, PoliciesConfig::new(worker, Policy::Spray)))
                .collect();
        }),
        ("two workers of a number", |h| h.workers[1].worker = 0),
        ("a table without rows", |h| h.capacities.rails = 0),
        ("a table too large", |h| h.capacities.requests = u32::MAX),
        ("all tables together too large", |h| {
            let workers = 0..64;
            h.workers = workers
                .map(|n| Config::new(n, PoliciesConfig::new(n, Policy::Spray)))
                .collect();
            h.capacities.requests = 1 << 16;
        }),
        ("no slice", |h| h.slice_bytes = 0),
        ("a transport that cuts nothing", |h| {
            let mut documented = DocumentedConfig::DEFAULT;
            documented.max_slice_count = 0;
            h.transports = vec![TransportConfig {
                policy: Policy::Documented,
                health: HealthMode::Decay,
                documented,
            }];
        }),
        ("a long name", |h| h.engine = "x".repeat(256)),
    ];
    for (name, change) in cases {
        let error = with(change);
        assert!(
            matches!(error, RecordingError::Header(_)),
            "{name}: {error}"
        );
    }
    assert!(with(|_| {}).is_truncation(), "only the calls are missing");

    let mut long = file_with(Kind::Calls, &[]);
    long[START_BYTES..START_BYTES + 4].copy_from_slice(&(BLOCK_BYTES_MAX as u32 + 1).to_le_bytes());
    let check = crc32fast::hash(&long[START_BYTES..START_BYTES + 8]);
    long[START_BYTES + 8..START_BYTES + 12].copy_from_slice(&check.to_le_bytes());
    let error = read(&long).1.unwrap_err();
    assert!(matches!(error, RecordingError::TooLong { .. }), "{error}");
}

#[test]
fn a_worker_that_there_is_not_is_no_worker() {
    let told = [(Step::Worker(WORKERS, Call::HandleWake), Answer::Nothing)];
    let error = read(&file_of(&told)).1.unwrap_err();
    assert!(error.to_string().contains("no worker"), "{error}");
}

#[test]
fn other_files_are_not_recordings() {
    let text = b"name = \"a scenario\"\n";
    assert!(matches!(read(text).1, Err(RecordingError::NotARecording)));
    for (version, words) in [
        (1, "format 1,"),
        (1, "an older polyrail"),
        (99, "a newer polyrail"),
    ] {
        let mut other = file_of(&[]);
        other[8] = version;
        let error = read(&other).1.unwrap_err();
        assert!(matches!(error, RecordingError::Version { found } if found == version.into()));
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_recording_that_says_that_it_was_cut_is_checked_like_any_other() {
    let mut header_bytes = Vec::new();
    block::append(&mut header_bytes, &header());
    let mut file = file_with(Kind::Header, &header_bytes);
    let cut = |calls: u64| file_with(Kind::Cut, &calls.to_le_bytes())[START_BYTES..].to_vec();
    let length = file.len() as u64;
    file.extend(cut(0));
    let error = read(&file).1.unwrap_err();
    assert!(
        matches!(error, RecordingError::Cut { offset } if offset == length),
        "{error:?}"
    );
    file.truncate(length as usize);
    file.extend(cut(1));
    assert!(matches!(read(&file).1, Err(RecordingError::Gap { .. })));
}

#[test]
fn recordings_of_one_name_stand_side_by_side() {
    let folder = std::env::temp_dir().join(format!("polyrail-record-{}", std::process::id()));
    let header = Header {
        engine: "../a b".into(),
        ..header()
    };
    for expected in ["___a_b.flight", "___a_b-2.flight"] {
        let recorder = Recorder::create(&folder, &header).unwrap();
        assert_eq!(recorder.path(), folder.join(expected));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
