//! Rows of a ring's tables: what has one, what goes on without, and when it is given back.

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::ptr::NonNull;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;

use super::*;
use crate::fixed::{REGION_BYTES_MAX, ROWS, regions_bytes_max};

/// Files and regions that have a row, as the kernel says.
fn rows(bench: &Bench) -> (usize, usize) {
    let ring = bench.driven.endpoint.fd().as_raw_fd();
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{ring}")).unwrap();
    let count = |table: &str| {
        let lines = text.lines().skip_while(|line| !line.starts_with(table));
        let lines = lines.skip(1).map(str::trim);
        lines
            .take_while(|line| line.starts_with(|first: char| first.is_ascii_digit()))
            // Some kernels also show rows that are empty.
            .filter(|line| !line.ends_with("<none>") && !line.ends_with("/0"))
            .count()
    };
    assert!(text.contains("UserFiles:"), "{text}");
    (count("UserFiles:"), count("UserBufs:"))
}

/// Whether rings have tables.
fn has_tables() -> bool {
    let has = has_uring() && Ring::new().is_ok_and(|ring| ring.has_tables());
    if !has {
        eprintln!("fixed files and buffers are not tried: the kernel is before 5.19");
    }
    has
}

/// Whether they have, and this process may pin what tests want.
fn has_tables_for_memory() -> bool {
    let limit = getrlimit(Resource::Memlock).current;
    let may_pin = can_lock() || limit.is_none_or(|bytes| bytes >= 4 << 30);
    if !may_pin {
        eprintln!("fixed buffers are not tried: RLIMIT_MEMLOCK is below 4 GiB");
    }
    may_pin && has_tables()
}

fn can_lock() -> bool {
    let sets = rustix::thread::capabilities(None).unwrap();
    sets.effective.contains(CapabilitySet::IPC_LOCK)
}

/// Whether the file's pages go past the cache.
fn is_direct(range: &FileRange) -> bool {
    range.piece(Op::Read, 0, 0, 4096).side == Side::Direct
}

/// Lets all pages be there.
fn touch(region: &Region) {
    for offset in (0..region.bytes()).step_by(4096) {
        region.store(&[1], offset).unwrap();
    }
}

/// Runs the calling test in a process of its own, and there this.
fn alone(name: &str, body: impl FnOnce()) {
    const CHILD: &str = "POLYRAIL_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("tests::fixed::{name}")])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    let is_right = child.status.success() && text.contains("1 passed");
    assert!(is_right, "{text}");
}

/// Writes pieces of a file and reads them again, each in one work: aligned, with odd edges, small. `local` and `remote`
/// bytes of memory and file stay as they were.
fn go_to_and_fro(bench: &mut Bench, file: &File, local: u64, remote: u64) {
    // (memory offset, file offset, length)
    let pieces = [
        (0, 0, 65_536),
        (4096, 8192, 4096),
        (1, 1, 70_001),
        (4095, 4095, 8193),
        (77, 500, 3),
        (12_345, 777, 20_000),
    ];
    for (seed, (to, from, length)) in (0..).zip(pieces) {
        let (to, from) = (local + to, remote + from);
        let new = pattern(seed, length as usize);
        bench.fill(to, &new);
        let write = [work(1, Op::Write, to, from, length)];
        assert_eq!(bench.run(&write), [Outcome::Success], "{length} at {from}");
        let mut there = vec![0; length as usize];
        file.read_exact_at(&mut there, from).unwrap();
        assert!(there == new, "{length} written at {from}");
        bench.fill(to, &vec![0; length as usize]);
        let around = (bench.memory(to + u64::from(length), 4096), to.min(4096));
        let before = bench.memory(to - around.1, around.1 as usize);
        let read = [work(2, Op::Read, to, from, length)];
        assert_eq!(bench.run(&read), [Outcome::Success], "{length} at {from}");
        assert!(
            bench.memory(to, length as usize) == new,
            "{length} read at {from}"
        );
        assert!(bench.memory(to + u64::from(length), 4096) == around.0);
        assert!(bench.memory(to - around.1, around.1 as usize) == before);
    }
}

#[test]
fn files_and_memory_of_ours_get_rows_and_give_them_back() {
    if !has_tables_for_memory() {
        return;
    }
    let direct = FileTerms::default();
    let cached = FileTerms {
        cached: true,
        ..direct
    };
    let large = REGION_BYTES_MAX + 4096;
    // (name, terms, bytes of memory, where in it, files and regions with rows)
    let cases = [
        ("past the cache", direct, 1 << 20, 0, (2, 1)),
        ("odd memory", direct, 1_000_001, 0, (2, 1)),
        (
            "the end of the largest",
            direct,
            REGION_BYTES_MAX,
            REGION_BYTES_MAX - (1 << 20),
            (2, 1),
        ),
        ("too large", direct, large, large - (1 << 20), (2, 0)),
        ("through the cache", cached, 1 << 20, 0, (1, 0)),
    ];
    for (name, terms, bytes, local, expected) in cases {
        let folder = tempfile::tempdir().unwrap();
        let file = open(&folder.path().join("file"));
        file.write_all_at(&pattern(50, 1 << 20), 0).unwrap();
        let range = range(&file, terms);
        if !terms.cached && !is_direct(&range) {
            eprintln!("{name}: the file system has no O_DIRECT");
            continue;
        }
        let mut bench = Bench::new(Way::Uring, bytes, range);
        touch(&bench.region);
        assert_eq!(rows(&bench), (0, 0), "{name}: nothing was used yet");
        go_to_and_fro(&mut bench, &file, local, 0);
        assert_eq!(rows(&bench), expected, "{name}");
        bench.driven.endpoint.detach_local(MEMORY);
        assert_eq!(rows(&bench), (expected.0, 0), "{name}");
        bench.driven.endpoint.detach_remote(FILE);
        assert_eq!(rows(&bench), (0, 0), "{name}");
    }
}

#[test]
fn memory_gets_a_row_once_all_of_its_pages_are_there() {
    const BYTES: u64 = 8 << 20;
    const MIB: u32 = 1 << 20;
    if !has_tables_for_memory() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = open(&folder.path().join("file"));
    let bytes = pattern(50, MIB as usize);
    file.write_all_at(&bytes, 0).unwrap();
    let range = range(&file, FileTerms::default());
    if !is_direct(&range) {
        return;
    }
    let mut bench = Bench::new(Way::Uring, BYTES, range);
    let read = |bench: &mut Bench, at: u64| {
        let read = [work(1, Op::Read, at, 0, MIB)];
        assert_eq!(bench.run(&read), [Outcome::Success]);
        assert!(bench.memory(at, MIB as usize) == bytes, "at {at}");
        rows(bench).1
    };
    // Huge pages may be larger than one of these.
    for _ in 0..17 {
        assert_eq!(read(&mut bench, 0), 0, "most of it was never touched");
    }
    touch(&bench.region);
    let found: Vec<_> = (0..8).map(|at| read(&mut bench, at << 20)).collect();
    assert_eq!((found[0], found[7]), (0, 1));
}

#[test]
fn room_comes_back_with_the_rows() {
    if !has_tables_for_memory() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = open(&folder.path().join("file"));
    file.write_all_at(&pattern(50, 4096), 0).unwrap();
    let range = range(&file, FileTerms::default());
    if !is_direct(&range) {
        return;
    }
    let mut bench = Bench::new(Way::Uring, 1, range);
    // One more than there is room for at a time.
    for number in 0..=regions_bytes_max() / REGION_BYTES_MAX {
        let memory = Arc::new(Region::allocate(REGION_BYTES_MAX, Access::Local).unwrap());
        touch(&memory);
        bench.driven.endpoint.attach_local(MEMORY, memory);
        let read = [work(1, Op::Read, 0, 0, 4096)];
        assert_eq!(bench.run(&read), [Outcome::Success]);
        assert_eq!(rows(&bench).1, 1, "{number}");
        bench.driven.endpoint.detach_local(MEMORY);
    }
}

#[test]
fn memory_of_a_program_may_get_other_pages_and_has_no_row() {
    if !has_tables_for_memory() {
        return;
    }
    const BYTES: usize = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let file = open(&folder.path().join("file"));
    file.write_all_at(&pattern(50, BYTES), 0).unwrap();
    let range = range(&file, FileTerms::default());
    let mut bench = Bench::new(Way::Uring, 4096, range);
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let base = unsafe {
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        libc::mmap(std::ptr::null_mut(), BYTES, access, flags, -1, 0)
    };
    assert_ne!(base, libc::MAP_FAILED);
    let pointer = NonNull::new(base.cast()).unwrap();
    // SAFETY: it stays mapped until the end of this test, and the region is revoked before.
    let region = unsafe { Region::new(pointer, BYTES as u64, Access::Local, None) }.unwrap();
    bench.region = Arc::new(region);
    let region = bench.region.clone();
    touch(&region);
    bench.driven.endpoint.attach_local(MEMORY, region.clone());
    for _ in 0..2 {
        go_to_and_fro(&mut bench, &file, 0, 0);
        assert_eq!(rows(&bench).1, 0);
        // SAFETY: the range is the mapping, and nothing of it is in flight.
        let given_back = unsafe { libc::madvise(base, BYTES, libc::MADV_DONTNEED) };
        assert_eq!(given_back, 0);
    }
    region.revoke();
    drop(bench);
    // SAFETY: it is mapped, and nobody uses it any more.
    assert_eq!(unsafe { libc::munmap(base, BYTES) }, 0);
}

/// Makes a segment a range of a file.
fn attach(bench: &mut Bench, segment: SegmentRef, range: FileRange) {
    let region = RemoteRegion {
        key: range.key(),
        bytes: range.bytes(),
    };
    let mut files = bench.files.0.lock().unwrap();
    files.insert(range.key(), Arc::new(range));
    drop(files);
    bench.driven.endpoint.attach_remote(segment, region);
}

#[test]
fn files_without_a_row_do_as_well() {
    const MORE: usize = 7;
    if !has_tables() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let terms = FileTerms {
        cached: true,
        ..growing(0, 1 << 20)
    };
    let files: Vec<_> = (0..ROWS as usize + MORE)
        .map(|number| open(&folder.path().join(format!("file-{number}"))))
        .collect();
    let mut bench = Bench::new(Way::Uring, 1 << 20, range(&files[0], terms));
    let segment = |number: usize| SegmentRef(100 + number as u32);
    for (number, file) in files.iter().enumerate() {
        let range = range(file, terms);
        attach(&mut bench, segment(number), range);
    }
    let go = |bench: &mut Bench, number: usize, seed: u64| {
        let bytes = pattern(seed, 10_000);
        bench.fill(0, &bytes);
        for (op, local) in [(Op::Write, 0), (Op::Read, 20_000)] {
            let remote = Place {
                segment: segment(number),
                offset: 33,
            };
            let work = Work {
                remote,
                ..work(1, op, local, 0, 10_000)
            };
            assert_eq!(bench.run(&[work]), [Outcome::Success], "{op:?} {number}");
        }
        let mut there = vec![0; bytes.len()];
        files[number].read_exact_at(&mut there, 33).unwrap();
        assert!(
            there == bytes && bench.memory(20_000, 10_000) == bytes,
            "{number}"
        );
    };
    let all = ROWS as usize;
    for number in 0..files.len() {
        go(&mut bench, number, number as u64);
        assert_eq!(rows(&bench).0, (number + 1).min(all));
    }
    // Rows that come free go to those that had none.
    (0..MORE + 1).for_each(|number| bench.driven.endpoint.detach_remote(segment(number)));
    assert_eq!(rows(&bench).0, all - MORE - 1);
    for number in MORE + 1..files.len() {
        go(&mut bench, number, 1000 + number as u64);
    }
    assert_eq!(rows(&bench).0, all - 1);
}

/// A pipe that takes part as a disk that does not answer before somebody writes.
fn pipe() -> (FileRange, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let file = File::from(OwnedFd::from(reader));
    (
        FileRange::of(file.try_clone().unwrap(), 1 << 20).with_direct(file, 1),
        writer,
    )
}

#[test]
fn rows_stay_while_works_are_under_way() {
    if !has_tables_for_memory() {
        return;
    }
    let (range, mut writer) = pipe();
    let mut bench = Bench::new(Way::Uring, 1 << 20, range);
    touch(&bench.region);
    let posted = bench.post(&[work(7, Op::Read, 8192, 0, 4096)]);
    assert_eq!(posted.stop, Stop::All);
    assert_eq!(rows(&bench), (1, 1));
    let endpoint = &mut bench.driven.endpoint;
    endpoint.detach_remote(FILE);
    endpoint.detach_local(MEMORY);
    // Others in their place have rows of their own.
    let (range, mut other) = pipe();
    let memory = Arc::new(Region::allocate(1 << 20, Access::RemoteReadWrite).unwrap());
    touch(&memory);
    attach(&mut bench, FILE, range);
    bench.driven.endpoint.attach_local(MEMORY, memory.clone());
    assert_eq!(bench.post(&[work(8, Op::Read, 0, 0, 4096)]).stop, Stop::All);
    for _ in 0..100 {
        bench.poll();
    }
    assert_eq!(rows(&bench), (2, 2), "the kernel may still use them");
    let answer = |bench: &mut Bench| {
        while bench.driven.polled.completions.is_empty() {
            bench.poll();
        }
        let completion = bench.driven.polled.completions.remove(0);
        (completion.cookie, completion.outcome)
    };
    writer.write_all(&pattern(1, 4096)).unwrap();
    assert_eq!(answer(&mut bench), (7, Outcome::Success));
    assert_eq!(rows(&bench), (1, 1));
    assert!(bench.memory(8192, 4096) == pattern(1, 4096));
    other.write_all(&pattern(2, 4096)).unwrap();
    assert_eq!(answer(&mut bench), (8, Outcome::Success));
    assert_eq!(rows(&bench), (1, 1), "they are attached");
    let mut there = vec![0; 4096];
    memory.load(0, &mut there).unwrap();
    assert!(there == pattern(2, 4096));
}

#[test]
fn memory_that_the_kernel_refuses_in_a_row_goes_without() {
    if !has_tables_for_memory() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = open(&folder.path().join("file"));
    file.write_all_at(&pattern(50, 1 << 20), 0).unwrap();
    // No disk that wants aligned memory takes this, in a row or not.
    let direct = direct(&folder.path().join("file"));
    let range = FileRange::of(file.try_clone().unwrap(), 1 << 20).with_direct(direct, 1);
    let mut bench = Bench::new(Way::Uring, 1 << 20, range);
    touch(&bench.region);
    for at in 0..3 {
        go_to_and_fro(&mut bench, &file, at, 0);
    }
}

#[test]
fn works_whose_rows_do_not_do_are_carried_out_without() {
    const UNREGISTER_BUFFERS: libc::c_uint = 1;
    if !has_tables_for_memory() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = open(&folder.path().join("file"));
    file.write_all_at(&pattern(50, 1 << 20), 0).unwrap();
    let mut bench = Bench::new(Way::Uring, 1 << 20, range(&file, FileTerms::default()));
    touch(&bench.region);
    go_to_and_fro(&mut bench, &file, 0, 0);
    let ring = bench.driven.endpoint.fd().as_raw_fd();
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: the table goes, and the ring does not know; nothing is in flight.
    let gone = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring,
            UNREGISTER_BUFFERS,
            none,
            0,
        )
    };
    assert_eq!(gone, 0);
    go_to_and_fro(&mut bench, &file, 0, 0);
    // Other memory cannot get a row either.
    let memory = Arc::new(Region::allocate(1 << 20, Access::RemoteRead).unwrap());
    touch(&memory);
    bench.region = memory.clone();
    bench.driven.endpoint.attach_local(MEMORY, memory);
    go_to_and_fro(&mut bench, &file, 0, 0);
    assert_eq!(rows(&bench).1, 0);
}

/// A file past the page cache, where the file system has that.
fn direct(path: &Path) -> File {
    use std::os::unix::fs::OpenOptionsExt;

    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    options.open(path).unwrap_or_else(|_| open(path))
}

#[test]
fn who_may_not_pin_memory_does_without_rows() {
    alone("who_may_not_pin_memory_does_without_rows", || {
        let maximum = getrlimit(Resource::Memlock).maximum.unwrap_or(u64::MAX);
        // Rings themselves need some of it.
        if !has_uring() || maximum < 8 << 20 {
            return;
        }
        let limit = |bytes: u64| {
            let maximum = getrlimit(Resource::Memlock).maximum;
            let current = Some(bytes);
            setrlimit(Resource::Memlock, Rlimit { current, maximum }).unwrap();
        };
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        rustix::thread::set_capabilities(None, sets).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = open(&folder.path().join("file"));
        file.write_all_at(&pattern(50, 1 << 20), 0).unwrap();
        // (what the limit is as the ring is made, and as it is used): the ring knows, or the kernel refuses.
        for (made, used) in [(1 << 20, 1 << 20), (8 << 20, 64 << 10)] {
            limit(made);
            let mut bench = Bench::new(Way::Uring, 1 << 20, range(&file, FileTerms::default()));
            touch(&bench.region);
            limit(used);
            go_to_and_fro(&mut bench, &file, 0, 0);
            assert_eq!((rows(&bench).1, pinned()), (0, 0), "{made} {used}");
        }
    });
}

#[test]
fn a_ring_leaves_most_of_what_may_be_pinned_to_others() {
    alone("a_ring_leaves_most_of_what_may_be_pinned_to_others", || {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        rustix::thread::set_capabilities(None, sets).unwrap();
        let maximum = getrlimit(Resource::Memlock).maximum;
        let bytes = maximum.unwrap_or(u64::MAX).min(64 << 10);
        let current = Some(bytes);
        setrlimit(Resource::Memlock, Rlimit { current, maximum }).unwrap();
        assert_eq!(regions_bytes_max(), bytes / 8);
    });
}

/// KiB that cannot be moved or swapped out.
fn pinned() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let number = line.unwrap().trim().trim_end_matches(" kB");
    number.parse().unwrap()
}

#[test]
fn pages_are_let_go_of_with_the_memory_and_with_the_ring() {
    alone(
        "pages_are_let_go_of_with_the_memory_and_with_the_ring",
        || {
            if !has_tables_for_memory() {
                return;
            }
            let folder = tempfile::tempdir().unwrap();
            let file = open(&folder.path().join("file"));
            file.write_all_at(&pattern(50, 1 << 20), 0).unwrap();
            let range = || range(&file, FileTerms::default());
            if !is_direct(&range()) {
                return;
            }
            let mut bench = Bench::new(Way::Uring, 4 << 20, range());
            touch(&bench.region);
            go_to_and_fro(&mut bench, &file, 0, 0);
            assert_eq!(pinned(), 4 << 10);
            bench.region.revoke();
            bench.driven.endpoint.detach_local(MEMORY);
            assert_eq!(pinned(), 0);
            let mut bench = Bench::new(Way::Uring, 4 << 20, range());
            touch(&bench.region);
            go_to_and_fro(&mut bench, &file, 0, 0);
            assert_eq!(pinned(), 4 << 10);
            drop(bench);
            assert_eq!(pinned(), 0, "as soon as it has ended");
        },
    );
}
