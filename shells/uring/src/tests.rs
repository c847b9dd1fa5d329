//! Both ways to ask the kernel, over real files.

mod ending;
mod fixed;
mod swarm;

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

use polyrail_conform::Driven;
use polyrail_core::time::Instant;
use polyrail_core::units::{RailId, SegmentRef};
use polyrail_core::work::{Cause, LaneFact, Op, Outcome, Place, Posted, Scope, Stop, Work};
use polyrail_transport::RemoteRegion;
use polyrail_transport::memory::{Access, Region};

use super::*;
use crate::turns::Side;

const MEMORY: SegmentRef = SegmentRef(1);
const FILE: SegmentRef = SegmentRef(2);
const EPOCH: Epoch = Epoch(1);

#[derive(Default)]
struct Files(Mutex<HashMap<RegionKey, Arc<FileRange>>>);

impl FileTable for Files {
    fn find(&self, key: &RegionKey) -> Option<Arc<FileRange>> {
        self.0.lock().unwrap().get(key).cloned()
    }
}

/// An endpoint with one lane, one piece of memory and one file.
struct Bench {
    driven: Driven,
    region: Arc<Region>,
    files: Arc<Files>,
}

impl Deref for Bench {
    type Target = Driven;

    fn deref(&self) -> &Driven {
        &self.driven
    }
}

impl DerefMut for Bench {
    fn deref_mut(&mut self) -> &mut Driven {
        &mut self.driven
    }
}

impl Bench {
    fn new(way: Way, memory_bytes: u64, range: FileRange) -> Self {
        let files = Arc::new(Files::default());
        let region = RemoteRegion {
            key: range.key(),
            bytes: range.bytes(),
        };
        files.0.lock().unwrap().insert(range.key(), Arc::new(range));
        let clock = Clock::start();
        let mut endpoint = FileTransport::new(way, files.clone())
            .endpoint(0, clock)
            .unwrap();
        endpoint.attach_remote(FILE, region);
        let region = Arc::new(Region::allocate(memory_bytes, Access::Local).unwrap());
        endpoint.attach_local(MEMORY, region.clone());
        let lane = LaneId::new(0, RailId(0));
        let mut bench = Self {
            driven: Driven::new(endpoint, clock, lane, EPOCH),
            region,
            files,
        };
        bench.open();
        bench
    }

    fn fill(&self, offset: u64, bytes: &[u8]) {
        let entered = self.region.enter().unwrap();
        let to = entered.pointer(offset, bytes.len() as u64).unwrap();
        // SAFETY: as many bytes from there on lie inside, and nothing is in flight.
        unsafe { to.copy_from(bytes.as_ptr(), bytes.len()) };
    }

    fn memory(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let entered = self.region.enter().unwrap();
        let from = entered.pointer(offset, length as u64).unwrap();
        // SAFETY: as above.
        unsafe { from.copy_to(bytes.as_mut_ptr(), length) };
        bytes
    }
}

fn work(cookie: u64, op: Op, local: u64, remote: u64, length: u32) -> Work {
    let place = |segment, offset| Place { segment, offset };
    Work {
        cookie,
        op,
        local: place(MEMORY, local),
        remote: place(FILE, remote),
        length,
        signal: true,
    }
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
    (0..length as u64).map(|at| byte(at + seed)).collect()
}

fn open(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true);
    options.open(path).unwrap()
}

fn range(file: &File, terms: FileTerms) -> FileRange {
    FileRange::new(file.try_clone().unwrap(), &terms).unwrap()
}

fn growing(offset: u64, bytes: u64) -> FileTerms {
    FileTerms {
        offset,
        bytes: Some(bytes),
        ..FileTerms::default()
    }
}

/// Both, or the one that this machine allows: many containers forbid io_uring.
fn ways() -> Vec<Way> {
    let mut ways = vec![Way::Pread];
    if has_uring() {
        ways.push(Way::Uring);
    }
    ways
}

fn has_uring() -> bool {
    let ring = Ring::new();
    let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
    match ring {
        Ok(_) => true,
        Err(error) => {
            assert!(!must, "io_uring is not to be had: {error}");
            eprintln!("only pread is tried, because io_uring is not to be had: {error}");
            false
        }
    }
}

#[test]
fn every_byte_goes_where_it_belongs() {
    const BYTES: usize = 3 << 20;
    // (file offset, memory offset, length): aligned, odd, unaligned, alike or not
    let cases = [
        (0, 0, 1),
        (0, 0, 65_536),
        (0, 0, BYTES as u32),
        (1, 1, 1 << 20),
        (4095, 4095, 8193),
        (4096, 1, 65_537),
        (777, 12_345, 1_000_003),
        (512, 512, 512),
        (8191, 0, 2),
    ];
    for (way, cached) in ways()
        .into_iter()
        .flat_map(|way| [(way, false), (way, true)])
    {
        for (offset, local, length) in cases {
            let folder = tempfile::tempdir().unwrap();
            let mut file = open(&folder.path().join("file"));
            let before = pattern(7, BYTES + 10_000);
            file.write_all(&before).unwrap();
            let terms = FileTerms {
                cached,
                ..FileTerms::default()
            };
            let mut bench = Bench::new(way, BYTES as u64 + 20_000, range(&file, terms));
            let new = pattern(99, length as usize);
            bench.fill(local, &new);
            let written = bench.run(&[work(1, Op::Write, local, offset, length)]);
            assert_eq!(written, [Outcome::Success]);
            let mut expected = before;
            expected[offset as usize..][..length as usize].copy_from_slice(&new);
            let mut there = Vec::new();
            file.rewind().unwrap();
            file.read_to_end(&mut there).unwrap();
            assert!(there == expected, "{way:?} wrote {length} at {offset}");
            bench.fill(0, &vec![0; BYTES + 20_000]);
            let read = bench.run(&[work(2, Op::Read, local, offset, length)]);
            assert_eq!(read, [Outcome::Success]);
            let mut memory = vec![0; BYTES + 20_000];
            memory[local as usize..][..length as usize].copy_from_slice(&new);
            assert!(
                bench.memory(0, BYTES + 20_000) == memory,
                "{way:?} read {length} at {offset}"
            );
        }
    }
}

/// A write to a file that was opened for appending once went to its end, wherever it was meant for.
#[test]
fn how_a_file_was_opened_does_not_matter() {
    use std::os::unix::fs::OpenOptionsExt;

    let length = 70_000;
    for (way, flag) in ways()
        .into_iter()
        .flat_map(|way| [libc::O_APPEND, libc::O_DIRECT, libc::O_NONBLOCK].map(|flag| (way, flag)))
    {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut expected = pattern(7, 200_000);
        std::fs::write(&path, &expected).unwrap();
        let mut options = File::options();
        let options = options.read(true).write(true).custom_flags(flag);
        let Ok(file) = options.open(&path) else {
            // Not every file system has O_DIRECT.
            continue;
        };
        let mut bench = Bench::new(way, 1 << 20, range(&file, FileTerms::default()));
        let new = pattern(99, length);
        bench.fill(5, &new);
        let works = [
            work(1, Op::Write, 5, 777, length as u32),
            work(2, Op::Read, 500_001, 777, length as u32),
        ];
        for work in works {
            assert_eq!(bench.run(&[work]), [Outcome::Success], "{way:?} {flag:#o}");
        }
        expected[777..777 + length].copy_from_slice(&new);
        assert!(
            std::fs::read(&path).unwrap() == expected,
            "{way:?} {flag:#o}"
        );
        assert!(bench.memory(500_001, length) == new, "{way:?} {flag:#o}");
    }
}

#[test]
fn more_works_than_there_is_room_for_all_end() {
    const WORK: u64 = 5_000;
    for way in ways() {
        let folder = tempfile::tempdir().unwrap();
        let file = open(&folder.path().join("file"));
        let count = 4 * u64::from(WORKS_MAX);
        let bytes = pattern(1, (count * WORK) as usize);
        let range = range(&file, growing(0, 1 << 30));
        let mut bench = Bench::new(way, count * WORK, range);
        bench.fill(0, &bytes);
        let works: Vec<_> = (0..count)
            .map(|number| work(number, Op::Write, number * WORK, number * WORK, WORK as u32))
            .collect();
        let outcomes = bench.run(&works);
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Success));
        let mut there = vec![0; bytes.len()];
        file.read_exact_at(&mut there, 0).unwrap();
        assert!(there == bytes, "{way:?}");
    }
}

#[test]
fn works_on_the_same_bytes_each_see_or_leave_all_of_them() {
    for way in ways() {
        let folder = tempfile::tempdir().unwrap();
        let file = open(&folder.path().join("file"));
        let bytes = pattern(3, 1 << 20);
        file.write_all_at(&bytes, 0).unwrap();
        let range = range(&file, FileTerms::default());
        let mut bench = Bench::new(way, 8 << 20, range);
        let reads = [
            (0, 300_000),
            (1, 299_999),
            (100_000, 200_001),
            (4096, 1 << 18),
        ];
        let read = |(number, (offset, length)): (u64, (u64, u32))| {
            work(number, Op::Read, number << 20, offset, length)
        };
        let works: Vec<_> = (0..).zip(reads).map(read).collect();
        assert_eq!(bench.run(&works), [Outcome::Success; 4]);
        for (number, (offset, length)) in (0..).zip(reads) {
            let got = bench.memory(number << 20, length as usize);
            assert!(
                got == bytes[offset as usize..][..length as usize],
                "{way:?}"
            );
        }
        // Overlapping writes of what belongs there leave just that.
        let new = pattern(4, 1 << 20);
        bench.fill(0, &new);
        let write = |(number, (offset, length)): (u64, (u64, u32))| {
            work(number, Op::Write, offset, offset, length)
        };
        let works: Vec<_> = (0..).zip(reads).map(write).collect();
        assert_eq!(bench.run(&works), [Outcome::Success; 4]);
        let mut there = vec![0; 300_001];
        file.read_exact_at(&mut there, 0).unwrap();
        assert!(
            there[..300_000] == new[..300_000] && there[300_000] == new[300_000],
            "{way:?}"
        );
    }
}

/// The page cache may hold a page, or a large folio, that is older than what was written past it. Reads through the cache
/// fill it here, and works with edges write through it, while their neighbours are written past it.
#[test]
fn writes_past_the_cache_and_through_it_leave_nothing_old() {
    const BLOCK: u64 = 16 << 10;
    const BLOCKS: u64 = 48;
    const BYTES: u64 = BLOCK * BLOCKS;
    for way in ways() {
        let folder = tempfile::tempdir().unwrap();
        let file = open(&folder.path().join("file"));
        for round in 0..40 {
            file.write_all_at(&pattern(round, BYTES as usize), 0)
                .unwrap();
            let new = pattern(round + 100, BYTES as usize);
            // Even blocks, each from its start; odd ones grow over the border by some bytes that are as they should be.
            let writer = |first: u64, over: u64| {
                let mut bench = Bench::new(way, BYTES, range(&file, FileTerms::default()));
                bench.fill(0, &new);
                let block = |number: u64| {
                    let start = number * BLOCK - over;
                    let end = ((number + 1) * BLOCK + over).min(BYTES);
                    work(number, Op::Write, start, start, (end - start) as u32)
                };
                let works: Vec<_> = (first..BLOCKS).step_by(2).map(block).collect();
                move || bench.run(&works)
            };
            let (mut even, mut odd) = (writer(0, 0), writer(1, 100));
            let read = || {
                let mut bytes = vec![0; 5000];
                for at in (0..BYTES - 5000).step_by(3000) {
                    file.read_exact_at(&mut bytes, at).unwrap();
                }
            };
            std::thread::scope(|scope| {
                let even = scope.spawn(&mut even);
                let odd = scope.spawn(&mut odd);
                scope.spawn(read);
                for outcomes in [even.join().unwrap(), odd.join().unwrap()] {
                    assert_eq!(outcomes, [Outcome::Success; BLOCKS as usize / 2]);
                }
            });
            let mut there = vec![0; BYTES as usize];
            file.read_exact_at(&mut there, 0).unwrap();
            let wrong = (0..BYTES as usize).find(|at| there[*at] != new[*at]);
            assert_eq!(wrong, None, "{way:?}, round {round}");
        }
    }
}

#[test]
fn a_write_waits_for_those_that_go_the_other_way_and_a_read_does_not() {
    for way in ways() {
        let folder = tempfile::tempdir().unwrap();
        let file = open(&folder.path().join("file"));
        let turns = range(&file, growing(0, 1)).turns().clone();
        let mut bench = Bench::new(way, 1 << 20, range(&file, growing(0, 1 << 20)));
        assert_eq!(
            bench.run(&[work(0, Op::Write, 0, 0, 10_000)]),
            [Outcome::Success]
        );
        let mut other = turns.wait(Side::Direct);
        assert!(other.begin(Instant::ZERO));
        assert_eq!(bench.post(&[work(1, Op::Write, 0, 0, 100)]).stop, Stop::All);
        assert_eq!(
            bench.run(&[work(2, Op::Read, 0, 0, 100)]),
            [Outcome::Success]
        );
        assert!(
            bench.driven.endpoint.poll_timeout().is_some(),
            "it looks again"
        );
        drop(other);
        while bench.driven.polled.completions.is_empty() {
            bench.poll();
        }
        assert_eq!(bench.driven.polled.completions[0].cookie, 1);
        assert_eq!(bench.driven.endpoint.poll_timeout(), None, "nothing waits");
    }
}

#[test]
fn a_file_that_has_shrunk_ends_the_work_and_what_was_before_its_end_is_right() {
    for way in ways() {
        let folder = tempfile::tempdir().unwrap();
        let file = open(&folder.path().join("file"));
        let bytes = pattern(5, 1 << 20);
        file.write_all_at(&bytes, 0).unwrap();
        let range = range(&file, FileTerms::default());
        let mut bench = Bench::new(way, 1 << 20, range);
        file.set_len(700_001).unwrap();
        let outcome = bench.run(&[work(1, Op::Read, 0, 0, 1 << 20)]);
        assert_eq!(outcome, [Outcome::Error(Cause::EndOfFile)], "{way:?}");
        assert!(bench.memory(0, 700_001) == bytes[..700_001], "{way:?}");
        assert_eq!(
            file.metadata().unwrap().len(),
            700_001,
            "reading does not grow it"
        );
    }
}

#[test]
fn a_range_behind_the_end_grows_the_file_also_past_four_gigabytes() {
    const FAR: u64 = (5 << 30) + 12_345;
    for way in ways() {
        let folder = tempfile::tempdir().unwrap();
        let file = open(&folder.path().join("file"));
        let range = range(&file, growing(10, 6 << 30));
        let mut bench = Bench::new(way, 1 << 20, range);
        let none = bench.run(&[work(1, Op::Read, 0, 0, 1)]);
        assert_eq!(none, [Outcome::Error(Cause::EndOfFile)], "{way:?}");
        let bytes = pattern(6, 100_000);
        bench.fill(0, &bytes);
        let far = bench.run(&[work(2, Op::Write, 0, FAR, 100_000)]);
        assert_eq!(far, [Outcome::Success], "{way:?}");
        assert_eq!(file.metadata().unwrap().len(), 10 + FAR + 100_000);
        let works = [
            work(3, Op::Read, 200_000, FAR + 7, 50_000),
            work(4, Op::Read, 300_000, 1 << 30, 1),
        ];
        assert_eq!(bench.run(&works), [Outcome::Success; 2]);
        assert!(bench.memory(200_000, 50_000) == bytes[7..50_007], "{way:?}");
        assert_eq!(bench.memory(300_000, 1), [0], "a hole");
    }
}

#[test]
fn what_the_disk_says_has_a_cause() {
    let files = [
        ("/dev/full", Op::Write, Cause::NoSpace),
        ("/proc/self/mem", Op::Read, Cause::MediaError),
    ];
    for way in ways() {
        for (path, op, cause) in files {
            let file = File::options().read(true).write(true).open(path).unwrap();
            let mut bench = Bench::new(way, 4096, FileRange::of(file, 1 << 20));
            let outcome = bench.run(&[work(1, op, 0, 0, 4096)]);
            assert_eq!(outcome, [Outcome::Error(cause)], "{way:?} {path}");
        }
    }
}

#[test]
fn works_that_may_not_run_are_refused_before_they_do() {
    for way in ways() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; 10_000]).unwrap();
        let read_only = FileTerms {
            read_only: true,
            ..FileTerms::default()
        };
        let range = range(&File::open(&path).unwrap(), read_only);
        let mut bench = Bench::new(way, 10_000, range);
        let outside = Place {
            segment: SegmentRef(9),
            offset: 0,
        };
        // (name, work, cause)
        let read = work(1, Op::Read, 0, 0, 10_000);
        let cases = [
            ("a write", work(1, Op::Write, 0, 0, 1), Cause::RemoteAccess),
            (
                "past the end",
                work(1, Op::Read, 0, 9_999, 2),
                Cause::RemoteAccess,
            ),
            (
                "past all ends",
                work(1, Op::Read, 0, u64::MAX, 2),
                Cause::RemoteAccess,
            ),
            (
                "past the memory",
                work(1, Op::Read, 1, 0, 10_000),
                Cause::LocalProtection,
            ),
            (
                "no such file",
                Work {
                    remote: outside,
                    ..read
                },
                Cause::RemoteAccess,
            ),
            (
                "no such memory",
                Work {
                    local: outside,
                    ..read
                },
                Cause::LocalProtection,
            ),
        ];
        for (name, work, cause) in cases {
            let posted = bench.post(&[work]);
            let expected = Posted {
                accepted: 0,
                stop: Stop::Rejected(cause),
            };
            assert_eq!(posted, expected, "{way:?}: {name}");
        }
        assert_eq!(bench.run(&[read]), [Outcome::Success]);
        assert_eq!(bench.memory(0, 10_000), [1; 10_000]);
    }
}

#[test]
fn a_fence_holds_only_once_the_kernel_has_let_go() {
    if !has_uring() {
        return;
    }
    // A pipe without bytes is a disk that does not answer. `pread` does not read pipes.
    let (reader, mut writer) = std::io::pipe().unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(reader));
    let mut bench = Bench::new(Way::Uring, 4096, FileRange::of(file, 1 << 20));
    let posted = bench.post(&[work(7, Op::Read, 0, 0, 4)]);
    assert_eq!(posted.stop, Stop::All);
    let lane = bench.driven.lane;
    bench.driven.endpoint.fence(lane, EPOCH, Scope::Local);
    let region = bench.region.clone();
    std::thread::scope(|scope| {
        let revoked = scope.spawn(move || region.revoke());
        // Many looks, for as long as a broken fence could take to show.
        for _ in 0..1_000 {
            bench.poll();
            std::thread::yield_now();
        }
        assert!(bench.driven.polled.lanes.is_empty() && bench.driven.polled.completions.is_empty());
        assert!(!revoked.is_finished(), "the kernel may still write there");
        let refused = bench.post(&[work(8, Op::Read, 0, 0, 4)]);
        assert_eq!(refused.stop, Stop::Rejected(Cause::Flushed));
        writer.write_all(b"late").unwrap();
        let facts = [bench.fact(), bench.fact()].map(|report| report.fact);
        let fenced = |scope| LaneFact::Fenced {
            scope,
            delivered: None,
        };
        assert_eq!(facts, [fenced(Scope::Local), fenced(Scope::Remote)]);
        assert_eq!(bench.driven.polled.completions[0].outcome, Outcome::Success);
        revoked.join().unwrap();
    });
    // Again: answered again.
    bench.driven.endpoint.fence(lane, EPOCH, Scope::Local);
    let fenced = bench.fact().fact;
    assert!(matches!(fenced, LaneFact::Fenced { .. }));
}
