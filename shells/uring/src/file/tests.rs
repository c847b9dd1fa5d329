//! How ranges are cut, made and synced.

use super::*;

#[test]
fn nothing_is_written_behind_what_the_process_may() {
    let limited = FileRange {
        size_max: 10_000,
        ..range(None)
    };
    // (op, offset, length): the range starts at 8192.
    let cases = [
        (Op::Write, 1_807, 1, Ok(())),
        (Op::Write, 0, 1_808, Ok(())),
        (Op::Write, 1_807, 2, Err(Cause::NoSpace)),
        (Op::Write, 1 << 39, 1, Err(Cause::NoSpace)),
        (Op::Read, 1 << 39, 1, Ok(())),
        (Op::Write, 1 << 40, 1, Err(Cause::RemoteAccess)),
    ];
    for (op, offset, length, answer) in cases {
        let found = limited.check(op, offset, length);
        assert_eq!(found, answer, "{op:?} {length} at {offset}");
    }
}

fn range(direct: Option<(u64, u64)>) -> FileRange {
    let file = || File::open("/dev/null").unwrap();
    FileRange {
        cached: file().into(),
        direct: direct.map(|(align, memory_align)| Direct {
            fd: file().into(),
            align,
            memory_align,
            refused: AtomicBool::new(false),
        }),
        sync: None,
        durable: Durable::default(),
        start: 8192,
        bytes: 1 << 40,
        access: Access::RemoteReadWrite,
        key: RegionKey([0; 16]),
        device: 0,
        turns: Arc::default(),
        size_max: u64::MAX,
    }
}

#[test]
fn whole_pages_in_aligned_memory_pass_the_cache_by() {
    let pages = Some((4096, 512));
    // (name, rules, offset, address, length, a read's pieces: bytes, directly)
    let cases = [
        ("aligned", pages, 0, 0, 65_536, &[(65_536, true)][..]),
        ("less than a page", pages, 0, 0, 4095, &[(4095, false)]),
        (
            "an edge behind",
            pages,
            4096,
            512,
            8193,
            &[(8192, true), (1, false)],
        ),
        (
            "an edge before",
            pages,
            4095,
            4095,
            8193,
            &[(1, false), (8192, true)],
        ),
        (
            "edges",
            pages,
            1,
            1,
            12_288,
            &[(4095, false), (8192, true), (1, false)],
        ),
        ("other memory", pages, 0, 8, 65_536, &[(65_536, false)]),
        (
            "memory that is never aligned",
            pages,
            1,
            0,
            65_536,
            &[(65_536, false)],
        ),
        ("two half pages", pages, 2048, 2048, 4096, &[(4096, false)]),
        ("a byte", pages, 7, 7, 1, &[(1, false)]),
        ("no direct way", None, 0, 0, 65_536, &[(65_536, false)]),
    ];
    for (name, rules, offset, address, length, expected) in cases {
        let range = range(rules);
        let mut done = 0;
        let mut pieces = Vec::new();
        while done < length {
            let piece = range.piece(
                Op::Read,
                offset + u64::from(done),
                address + done as usize,
                length - done,
            );
            pieces.push((piece.bytes, piece.side == Side::Direct));
            done += piece.bytes;
        }
        assert_eq!(pieces, expected, "{name}");
        // A write goes one way.
        let whole = range.piece(Op::Write, offset, address, length);
        assert_eq!(whole.bytes, length, "{name}");
        let is_direct = expected == [(length, true)];
        assert_eq!(whole.side == Side::Direct, is_direct, "{name}");
    }
}

#[test]
fn a_file_that_refuses_direct_pieces_gets_them_through_the_cache() {
    let range = range(Some((4096, 512)));
    let side = || range.piece(Op::Write, 0, 0, 8192).side;
    assert_eq!(side(), Side::Direct);
    range.refuse_direct();
    assert_eq!(side(), Side::Cached);
}

/// Large writes of a program that had opened its file with `O_DSYNC` were once not durable as they completed, and small
/// ones were.
#[test]
fn writes_that_are_to_be_durable_at_once_are_so_in_both_ways() {
    use std::os::unix::fs::OpenOptionsExt;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, vec![0; 10_000]).unwrap();
    let durable = OFlags::SYNC | OFlags::DSYNC;
    for flags in [OFlags::empty(), OFlags::SYNC, OFlags::DSYNC] {
        for more in [OFlags::empty(), OFlags::APPEND] {
            let mut options = File::options();
            let options = options.read(true).write(true);
            let options = options.custom_flags((flags | more).bits() as i32);
            let range = FileRange::new(options.open(&path).unwrap(), &FileTerms::default());
            let range = range.unwrap();
            let kept = |fd: &OwnedFd| rustix::fs::fcntl_getfl(fd).unwrap() & durable;
            assert_eq!(kept(&range.cached), flags);
            match &range.direct {
                Some(direct) => assert_eq!(kept(&direct.fd), flags),
                None => eprintln!("the file system has no O_DIRECT"),
            }
        }
    }
}

#[test]
fn each_range_syncs_by_a_descriptor_of_its_own_and_an_error_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, vec![0; 10_000]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let range = || FileRange::new(file.try_clone().unwrap(), &FileTerms::default()).unwrap();
    let (one, other) = (range(), range());
    let own = one.sync.as_ref().unwrap().as_raw_fd();
    let says = std::cell::Cell::new(Err(Errno::INTR));
    let fsync = |fd: BorrowedFd<'_>| {
        assert_eq!(fd.as_raw_fd(), own);
        says.replace(Err(Errno::NOSPC))
    };
    assert_eq!(
        one.sync_by(fsync),
        Err(Errno::NOSPC),
        "after an interruption"
    );
    assert_eq!(one.sync_by(|_| Ok(())), Err(Errno::NOSPC));
    assert_eq!(one.sync().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(other.sync().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    range().sync().unwrap();
}

#[test]
fn only_ranges_that_can_be_read_and_written_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, vec![0; 10_000]).unwrap();
    let open = |write: bool| File::options().read(true).write(write).open(&path).unwrap();
    let new = |write, offset, bytes, read_only| {
        let terms = FileTerms {
            offset,
            bytes,
            read_only,
            ..FileTerms::default()
        };
        FileRange::new(open(write), &terms)
    };
    let bytes =
        |write, start, bytes, read_only| new(write, start, bytes, read_only).unwrap().bytes();
    assert_eq!(bytes(true, 0, None, false), 10_000);
    assert_eq!(bytes(false, 9_999, None, true), 1);
    assert_eq!(
        bytes(true, 5_000, Some(1 << 40), false),
        1 << 40,
        "it grows"
    );
    assert!(matches!(
        new(false, 0, None, false),
        Err(RangeError::Access)
    ));
    assert!(matches!(
        new(true, 10_000, None, false),
        Err(RangeError::Size)
    ));
    assert!(matches!(
        new(true, 0, Some(u64::MAX), false),
        Err(RangeError::Size)
    ));
    for (start, bytes) in [(0, Some(10_001)), (10_001, None)] {
        let refused = new(false, start, bytes, true);
        assert!(matches!(
            refused,
            Err(RangeError::Range { file_bytes: 10_000 })
        ));
    }
    let terms = FileTerms {
        bytes: Some(1),
        read_only: true,
        ..FileTerms::default()
    };
    for path in ["/dev/null", "/"] {
        let refused = FileRange::new(File::open(path).unwrap(), &terms);
        assert!(matches!(refused, Err(RangeError::NoFile)), "{path}");
    }
}
