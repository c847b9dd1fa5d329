//! Files and block devices as segments.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polyrail::{
    Access, Cause, Config, Engine, FileError, FileTerms, HealthConfig, Op, RegisterError, Request,
    SegmentId, Status, SubmitError,
};

use crate::fixture::*;
use crate::large::{BYTES as HUGE, Repeated};

/// An engine, memory, and a folder for files.
struct Desk {
    engine: Engine,
    local: SegmentId,
    folder: tempfile::TempDir,
}

const MEMORY: u64 = 8 * MIB;

impl Desk {
    fn new() -> Self {
        Self::with(Config {
            workers: 2,
            ..Config::named("desk")
        })
    }

    fn with(config: Config) -> Self {
        let engine = Engine::new(config).unwrap();
        let local = engine.allocate("here", MEMORY, Access::Local).unwrap();
        let folder = tempfile::tempdir().unwrap();
        Self {
            engine,
            local,
            folder,
        }
    }

    /// A file with these bytes in it.
    fn file(&self, bytes: &[u8]) -> File {
        let path = self.folder.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        open(&path)
    }

    fn register(&self, file: &File, terms: FileTerms) -> SegmentId {
        let file = file.try_clone().unwrap();
        self.engine.register_file(file, &terms).unwrap()
    }

    fn request(&self, op: Op, remote: SegmentId, at: (u64, u64), length: u64) -> Request {
        Request {
            op,
            local: self.local,
            local_offset: at.0,
            remote,
            remote_offset: at.1,
            length,
        }
    }

    fn run(&self, requests: &[Request]) {
        completed(&self.engine.submit(requests).unwrap());
    }

    /// Why a request fails.
    fn fails(&self, request: Request) -> (Status, Option<Cause>) {
        let batch = self.engine.submit(&[request]).unwrap();
        assert_eq!(ended(&batch).status, Status::Failed);
        let report = batch.report(0).unwrap();
        (report.status, report.cause)
    }

    fn fill(&self, seed: u64) -> Vec<u8> {
        fill(&self.engine.region(self.local).unwrap(), seed);
        pattern(seed, MEMORY)
    }

    fn memory(&self) -> Vec<u8> {
        bytes(&self.engine.region(self.local).unwrap())
    }

    /// The transports that have carried something.
    fn carriers(&self) -> Vec<String> {
        let rails = self.engine.rails();
        let used = rails.iter().filter(|rail| rail.bytes > 0);
        used.map(|rail| rail.name.split_once(':').unwrap().0.into())
            .collect()
    }
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// Moves ranges of all kinds to a file and back.
fn there_and_back(desk: &Desk) {
    let file = desk.file(&pattern(0, 7 * MIB));
    moves(desk, &file);
}

/// The same, with a file of 7 MiB.
fn moves(desk: &Desk, file: &File) {
    // (in memory, in the segment, length)
    let ranges = [
        (0, 0, 1),
        (4096, 4096, 2 * MIB),
        (1, 3 * MIB + 1, MIB - 5),
        (5 * MIB + 77, 2 * MIB + 4099, 8191),
        (6 * MIB, 5 * MIB, 64 * 1024),
    ];
    let before = pattern(1, 7 * MIB);
    file.write_all_at(&before, 0).unwrap();
    let terms = FileTerms {
        offset: 3,
        ..FileTerms::default()
    };
    let segment = desk.register(file, terms);
    assert_eq!(desk.engine.segment_bytes(segment), Some(7 * MIB - 3));
    let source = desk.fill(2);
    let requests = |op| {
        let request = |(local, remote, length)| desk.request(op, segment, (local, remote), length);
        ranges.map(request)
    };
    desk.run(&requests(Op::Write));
    desk.engine.sync_file(segment).unwrap();
    let mut expected = before;
    for (local, remote, length) in ranges {
        let (local, remote, length) = (local as usize, remote as usize + 3, length as usize);
        expected[remote..][..length].copy_from_slice(&source[local..][..length]);
    }
    let mut there = vec![0; expected.len()];
    file.read_exact_at(&mut there, 0).unwrap();
    assert!(there == expected);
    let mut here = desk.fill(3);
    desk.run(&requests(Op::Read));
    for (local, _, length) in ranges {
        let range = local as usize..(local + length) as usize;
        here[range.clone()].copy_from_slice(&source[range]);
    }
    assert!(desk.memory() == here);
    desk.engine.unregister(segment).unwrap();
}

#[test]
fn bytes_go_to_a_file_and_back() {
    let desk = Desk::new();
    there_and_back(&desk);
    let expected = match forbidden() {
        true => "pread",
        false => "uring",
    };
    assert_eq!(desk.carriers(), [expected]);
}

/// Whether this machine has no io_uring, as many containers.
fn forbidden() -> bool {
    let engine = Engine::new(Config::named("asks")).unwrap();
    let mut transports = engine.transports().into_iter();
    let uring = transports.find(|transport| transport.name == "uring");
    uring.unwrap().missing.is_some()
}

/// Forbids io_uring to this thread, and to those that it starts.
fn forbid() {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        // The number of the system call.
        step(load, 0, 0, 0),
        step(equal, 0, 1, libc::SYS_io_uring_setup as u32),
        step(answer, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: numbers only.
    let asked = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(asked, 0, "{}", io::Error::last_os_error());
    let filter = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the program and its steps live until the kernel has copied them.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, filter, &program) };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

#[test]
fn where_io_uring_is_forbidden_pread_does_the_same() {
    forbid();
    let desk = Desk::new();
    let transports = desk.engine.transports();
    let uring = transports.iter().find(|known| known.name == "uring");
    assert!(uring.unwrap().missing.is_some(), "{transports:?}");
    there_and_back(&desk);
    assert_eq!(desk.carriers(), ["pread"]);
}

#[test]
fn a_request_on_a_file_may_be_longer_than_4_gib() {
    let here = Repeated::new();
    let desk = Desk::new();
    let file = desk.file(b"");
    // Nothing but a hole, and read past the page cache, which would take as much memory.
    file.set_len(HUGE).unwrap();
    let segment = desk.register(&file, FileTerms::default());
    // SAFETY: mapped until after the engine has ended.
    let local = unsafe { desk.engine.register("huge", here.base, HUGE, Access::Local) };
    let length = HUGE - 70_001;
    let batch = desk.engine.submit(&[Request {
        local: local.unwrap(),
        ..desk.request(Op::Read, segment, (0, 0), length)
    }]);
    let batch = batch.unwrap();
    completed(&batch);
    assert_eq!(batch.report(0).unwrap().delivered_bytes, length);
    desk.engine.shutdown();
}

#[test]
fn a_file_that_shrinks_fails_what_needs_the_rest_and_nothing_else() {
    let desk = Desk::new();
    let bytes = pattern(1, 4 * MIB);
    let file = desk.file(&bytes);
    let segment = desk.register(&file, FileTerms::default());
    desk.run(&[desk.request(Op::Read, segment, (0, 0), 4 * MIB)]);
    file.set_len(2 * MIB + 7).unwrap();
    let whole = desk.request(Op::Read, segment, (4 * MIB, 0), 4 * MIB);
    assert_eq!(desk.fails(whole), (Status::Failed, Some(Cause::EndOfFile)));
    // What is there is still to be had, by one request among others that fail.
    let there = desk.request(Op::Read, segment, (0, 0), 2 * MIB + 7);
    let gone = desk.request(Op::Read, segment, (4 * MIB, 3 * MIB), 10);
    let batch = desk.engine.submit(&[gone, there, gone]).unwrap();
    assert_eq!(ended(&batch).failed, 2);
    let statuses = [0, 1, 2].map(|index| batch.report(index).unwrap().status);
    assert_eq!(
        statuses,
        [Status::Failed, Status::Completed, Status::Failed]
    );
    assert!(desk.memory()[..2 * MIB as usize + 7] == bytes[..2 * MIB as usize + 7]);
    assert_eq!(
        desk.engine.stats().failovers,
        [],
        "no other way has more of the file"
    );
}

#[test]
fn a_file_grows_as_far_as_its_segment_goes() {
    let desk = Desk::new();
    let file = desk.file(b"short");
    let terms = FileTerms {
        bytes: Some(3 * MIB),
        ..FileTerms::default()
    };
    let segment = desk.register(&file, terms);
    let source = desk.fill(1);
    let behind = desk.request(Op::Read, segment, (7 * MIB, 0), 100);
    assert_eq!(desk.fails(behind).1, Some(Cause::EndOfFile));
    desk.run(&[desk.request(Op::Write, segment, (0, MIB + 1), 2 * MIB - 1)]);
    let mut expected = vec![0; 3 * MIB as usize];
    expected[..5].copy_from_slice(b"short");
    expected[MIB as usize + 1..].copy_from_slice(&source[..2 * MIB as usize - 1]);
    let there = std::fs::read(desk.folder.path().join("file")).unwrap();
    assert!(there == expected);
    let past = desk
        .engine
        .submit(&[desk.request(Op::Write, segment, (0, 3 * MIB), 1)]);
    assert!(matches!(past, Err(SubmitError::OutOfRange { .. })));
}

#[test]
fn what_may_not_be_written_is_not() {
    let desk = Desk::new();
    let bytes = pattern(1, 100_000);
    let path = desk.folder.path().join("file");
    std::fs::write(&path, &bytes).unwrap();
    let read_only = FileTerms {
        read_only: true,
        ..FileTerms::default()
    };
    let segment = desk.engine.open_file(&path, &read_only).unwrap();
    let write = desk
        .engine
        .submit(&[desk.request(Op::Write, segment, (0, 0), 10)]);
    assert!(matches!(write, Err(SubmitError::Forbidden { .. })));
    desk.run(&[desk.request(Op::Read, segment, (0, 0), 100_000)]);
    assert!(desk.memory()[..100_000] == bytes);
    // Open for reading, and asked for writing.
    let file = File::open(&path).unwrap();
    let refused = desk.engine.register_file(file, &FileTerms::default());
    assert!(matches!(refused, Err(FileError::Access)), "{refused:?}");
}

#[test]
fn files_that_are_none_are_refused() {
    let desk = Desk::new();
    desk.file(&[1; 100]);
    let path = desk.folder.path().join("file");
    let open = |path: &str, offset, bytes, read_only| {
        let terms = FileTerms {
            offset,
            bytes,
            read_only,
            ..FileTerms::default()
        };
        desk.engine.open_file(Path::new(path), &terms).unwrap_err()
    };
    let path = path.to_str().unwrap();
    assert!(matches!(
        open("/no/such/file", 0, None, true),
        FileError::Open { .. }
    ));
    assert!(matches!(
        open("/dev/null", 0, Some(10), false),
        FileError::NoFile
    ));
    assert!(matches!(open(path, 100, None, false), FileError::BadSize));
    let refused = open(path, 50, Some(51), true);
    assert!(
        matches!(refused, FileError::OutOfRange { file_bytes: 100 }),
        "{refused}"
    );
}

/// A file system of 1 MiB, taken away with it. `None`: this process may not make one.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = std::ffi::CString::new(folder.path().to_str().unwrap()).unwrap();
        let tmpfs = c"tmpfs".as_ptr();
        let size = c"size=1m".as_ptr().cast();
        // SAFETY: strings that end, and live until the call has returned.
        let mounted = unsafe { libc::mount(tmpfs, path.as_ptr(), tmpfs, 0, size) };
        (mounted == 0).then_some(Self(folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let path = std::ffi::CString::new(self.0.path().to_str().unwrap()).unwrap();
        // SAFETY: a string that ends. Whatever still uses it keeps it.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

#[test]
fn a_full_disk_is_a_failed_request_and_what_fits_is_there() {
    let Some(small) = Small::mount() else {
        let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(
            !must,
            "no file system can be mounted: {}",
            io::Error::last_os_error()
        );
        return;
    };
    let desk = Desk::new();
    let path = small.0.path().join("file");
    let source = desk.fill(1);
    std::fs::write(&path, &source[..1000]).unwrap();
    let terms = FileTerms {
        bytes: Some(4 * MIB),
        ..FileTerms::default()
    };
    let segment = desk.engine.open_file(&path, &terms).unwrap();
    let too_much = desk.request(Op::Write, segment, (0, 0), 4 * MIB);
    assert_eq!(desk.fails(too_much), (Status::Failed, Some(Cause::NoSpace)));
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(0)
        .unwrap();
    desk.run(&[desk.request(Op::Write, segment, (0, 0), MIB / 2)]);
    assert!(std::fs::read(&path).unwrap() == source[..MIB as usize / 2]);
    desk.engine.shutdown();
}

/// A block device of 7 MiB, over a file. It goes with its last user.
struct Device {
    path: PathBuf,
    file: File,
}

impl Device {
    fn make(folder: &Path) -> io::Result<Self> {
        const GET_FREE: libc::Ioctl = 0x4c82;
        const SET_FD: libc::Ioctl = 0x4c00;
        const SET_STATUS: libc::Ioctl = 0x4c04;
        /// `struct loop_info64`: its flags, of which 4 is that it goes with its last user, and its size.
        const FLAGS: usize = 52;
        const STATUS_BYTES: usize = 232;
        let path = folder.join("device");
        let file = File::options();
        let file = file
            .clone()
            .read(true)
            .write(true)
            .create(true)
            .open(path)?;
        file.set_len(7 * MIB)?;
        let control = File::options().read(true).open("/dev/loop-control")?;
        // Others may take the one that is free.
        for _ in 0..100 {
            // SAFETY: takes nothing.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = File::options().read(true).write(true).open(&path)?;
            // SAFETY: takes a descriptor, which is open.
            let set = unsafe { libc::ioctl(device.as_raw_fd(), SET_FD, file.as_raw_fd()) };
            if set != 0 {
                continue;
            }
            let mut status = [0_u8; STATUS_BYTES];
            status[FLAGS] = 4;
            // SAFETY: as many bytes as the structure has.
            unsafe { libc::ioctl(device.as_raw_fd(), SET_STATUS, status.as_ptr()) };
            return Ok(Self { path, file: device });
        }
        Err(io::Error::other("every free loop device is taken at once"))
    }
}

/// A device; `None`, with the reason printed, where none can be made.
fn device(folder: &Path) -> Option<Device> {
    let made = Device::make(folder).inspect_err(|error| {
        let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(!must, "no block device can be made: {error}");
        eprintln!("not run, because no block device can be made: {error}");
    });
    made.ok()
}

#[test]
fn a_disk_that_fails_fails_what_it_cannot_read_and_nothing_else() {
    for way in ["uring", "pread"] {
        let other = if way == "uring" { "pread" } else { "uring" };
        let desk = Desk::with(Config::named("desk").without(other));
        let Some(device) = device(desk.folder.path()) else {
            return;
        };
        let segment = desk.register(&device.file, FileTerms::default());
        let source = desk.fill(1);
        desk.run(&[desk.request(Op::Write, segment, (0, 0), 7 * MIB)]);
        // The second half of the device has nothing behind it any more: it answers EIO.
        let behind = desk.folder.path().join("device");
        let behind = File::options().write(true).open(behind).unwrap();
        behind.set_len(3 * MIB).unwrap();
        drop_caches(&device.file);
        let lost = desk.request(Op::Read, segment, (0, 4 * MIB), MIB);
        let failed = (Status::Failed, Some(Cause::MediaError));
        assert_eq!(desk.fails(lost), failed, "{way}");
        desk.run(&[desk.request(Op::Read, segment, (0, 0), 2 * MIB)]);
        let memory = desk.engine.region(desk.local).unwrap();
        assert!(get(&memory, 0, 2 * MIB) == source[..2 * MIB as usize]);
        desk.engine.shutdown();
    }
}

/// Nothing of a device is in the page cache any more.
fn drop_caches(device: &File) {
    device.sync_all().unwrap();
    rustix::fs::fadvise(device, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[test]
fn a_block_device_is_a_file_that_does_not_grow() {
    let desk = Desk::new();
    let Some(device) = device(desk.folder.path()) else {
        return;
    };
    moves(&desk, &device.file);
    let terms = FileTerms {
        bytes: Some(7 * MIB + 1),
        ..FileTerms::default()
    };
    let error = desk.engine.open_file(&device.path, &terms).unwrap_err();
    assert!(
        matches!(error, FileError::OutOfRange { file_bytes } if file_bytes == 7 * MIB),
        "{error}"
    );
    let segment = desk.register(&device.file, FileTerms::default());
    let behind = desk.request(Op::Write, segment, (0, 7 * MIB), 1);
    let refused = desk.engine.submit(&[behind]).unwrap_err();
    assert!(
        matches!(refused, SubmitError::OutOfRange { .. }),
        "{refused}"
    );
    let name = device.path.file_name().unwrap().to_str().unwrap();
    let rails = desk.engine.rails();
    assert!(
        rails.iter().any(|rail| rail.name.ends_with(name)),
        "{rails:?}"
    );
    desk.engine.shutdown();
}

/// Of two threads that synced what the disk had lost, one was told once that all was well, and so was every later one.
#[test]
fn what_a_disk_has_lost_is_told_to_everybody_who_syncs_it() {
    let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
    let small = Small::mount();
    let device = small.as_ref().map(|small| Device::make(small.0.path()));
    let Some(Ok(device)) = device else {
        assert!(!must, "no block device can be made on a small file system");
        return eprintln!("not run, because no block device can be made on a small file system");
    };
    let desk = Desk::new();
    // Through the cache it takes more than there is room for behind it.
    let terms = FileTerms {
        cached: true,
        ..FileTerms::default()
    };
    let segments = [(); 2].map(|()| desk.register(&device.file, terms));
    desk.fill(1);
    desk.run(&[desk.request(Op::Write, segments[0], (0, 0), 3 * MIB)]);
    // What the program asks for itself is told to it, and takes nothing from others.
    device.file.sync_all().unwrap_err();
    std::thread::scope(|scope| {
        let engine = &desk.engine;
        let sync = |segment| scope.spawn(move || engine.sync_file(segment));
        let all = [0, 0, 1, 0, 1].map(|number| sync(segments[number]));
        for told in all {
            told.join().unwrap().unwrap_err();
        }
    });
    for segment in segments {
        desk.engine.sync_file(segment).unwrap_err();
    }
    // A new segment is not told of what is over.
    let new = desk.register(&device.file, terms);
    desk.engine.sync_file(new).unwrap();
    desk.engine.sync_file(segments[0]).unwrap_err();
    desk.engine.shutdown();
}

#[test]
fn a_file_can_be_let_go_of_when_no_request_uses_it() {
    let desk = Desk::new();
    let file = desk.file(&pattern(1, MIB));
    let segment = desk.register(&file, FileTerms::default());
    let other = desk.register(&file, FileTerms::default());
    let read = desk.request(Op::Read, segment, (0, 0), MIB);
    let batch = desk.engine.submit(&[read]).unwrap();
    // It may have ended already; never is it let go of before.
    match desk.engine.unregister(segment) {
        Err(RegisterError::InUse { requests: 1 }) => {
            completed(&batch);
            desk.engine.unregister(segment).unwrap();
        }
        result => {
            result.unwrap();
            completed(&batch);
        }
    }
    assert!(matches!(
        desk.engine.submit(&[read]),
        Err(SubmitError::Stale { .. })
    ));
    assert!(matches!(
        desk.engine.sync_file(segment),
        Err(FileError::Stale { .. })
    ));
    let twice = desk.engine.unregister(segment);
    assert!(matches!(twice, Err(RegisterError::Stale { .. })));
    desk.run(&[desk.request(Op::Read, other, (0, 0), MIB)]);
}

#[test]
fn a_disk_that_nobody_has_used_for_long_is_not_silent() {
    let health = HealthConfig {
        heartbeat: Duration::from_millis(10),
        peer_silence: Duration::from_millis(50),
        ..Config::default().health
    };
    let desk = Desk::with(Config {
        health,
        workers: 1,
        ..Config::named("idle")
    });
    let file = desk.file(&pattern(1, MIB));
    let segment = desk.register(&file, FileTerms::default());
    let read = desk.request(Op::Read, segment, (0, 0), MIB);
    desk.run(&[read]);
    // A peer of which nothing is heard for so long is.
    let idle = std::time::Instant::now();
    let nobody = desk.engine.notifications();
    while idle.elapsed() < 4 * health.peer_silence {
        let _ = nobody.wait(health.peer_silence);
    }
    let started = std::time::Instant::now();
    desk.run(&[read]);
    assert!(
        started.elapsed() < health.fence_timeout,
        "it was waited for"
    );
    assert_eq!(desk.engine.stats().failovers, []);
}

#[test]
fn files_and_peers_are_served_side_by_side() {
    let pair = Pair::new(4 * MIB);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let bytes = pattern(9, 4 * MIB);
    std::fs::write(&path, &bytes).unwrap();
    let file = pair
        .initiator
        .open_file(&path, &FileTerms::default())
        .unwrap();
    for _ in 0..5 {
        // In from the file, out to the peer, and back to the file.
        let from_file = Request {
            op: Op::Read,
            remote: file,
            ..pair.write_all()
        };
        fill(&pair.source(), 0);
        completed(&pair.submit(from_file));
        completed(&pair.submit(pair.write_all()));
        assert!(crate::fixture::bytes(&pair.destination()) == bytes);
        completed(&pair.submit(Request {
            op: Op::Write,
            ..from_file
        }));
        assert!(std::fs::read(&path).unwrap() == bytes);
    }
    let rails = pair.initiator.rails();
    let used = |name: &str| {
        rails
            .iter()
            .any(|rail| rail.name.starts_with(name) && rail.bytes > 0)
    };
    assert!(
        used("tcp:") && (used("uring:") || used("pread:")),
        "{rails:?}"
    );
}
