//! `cp`: files to and from a target, and everything that can be wrong with either side.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Ended, Target, finish, polyrail, run};

/// A folder that is gone with the test.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    /// A path in it, as text.
    fn path(&self, name: &str) -> String {
        let path: PathBuf = self.0.path().join(name);
        path.to_str().expect("a path in UTF-8").to_owned()
    }

    /// A file in it with bytes that tell where they belong.
    fn file(&self, name: &str, bytes: usize) -> (String, Vec<u8>) {
        let words = (0..bytes.div_ceil(8) as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut content: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        content.truncate(bytes);
        let path = self.path(name);
        fs::write(&path, &content).expect("a file");
        (path, content)
    }

    /// A file of zeros that takes no room.
    fn sparse(&self, name: &str, bytes: u64) -> String {
        let path = self.path(name);
        let file = File::create(&path).expect("a file");
        file.set_len(bytes).expect("a length");
        path
    }

    /// Everything in it.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).expect("a folder");
        let mut names: Vec<_> = entries
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("UTF-8")
            })
            .collect();
        names.sort_unstable();
        names
    }
}

/// The checksum at the end of the result.
fn checksum(ended: &Ended) -> &str {
    let line = ended.stdout.strip_suffix('\n').expect("one line");
    let (_, sum) = line.split_once("crc32c ").expect("a checksum");
    sum
}

#[test]
fn a_file_goes_there_and_back() {
    let (folder, target) = (Folder::new(), Target::start("--memory 256MiB"));
    let at = target.address();
    // More than all buffers together, and no whole number of anything; less than a chunk; nothing.
    for (bytes, offset) in [(100_000_003, 12_345), (5, 0), (0, 7)] {
        let (from, content) = folder.file("from", bytes);
        let to = folder.path("to");
        let up = run(&format!("cp {from} {at}/mem+{offset} --verify")).expect(0);
        assert!(
            up.stdout.contains(&format!("copied {bytes} bytes")),
            "{up:?}"
        );
        assert!(up.stdout.contains("verified by the target"), "{up:?}");
        assert_eq!(checksum(&up), format!("{:08x}", crc32c::crc32c(&content)));
        if bytes > 0 {
            let over = ["over shm+uring,", "over pread+shm,"];
            assert!(over.iter().any(|over| up.stdout.contains(over)), "{up:?}");
            let line = format!("cp {at}/mem+{offset} {to} --length {bytes} --verify");
            let down = run(&line).expect(0);
            assert_eq!(checksum(&down), checksum(&up));
            assert!(fs::read(&to).expect("the copy") == content);
        }
    }
    target.end(Signal::TERM).expect(0);
}

#[test]
fn rails_and_configurations_are_taken() {
    let folder = Folder::new();
    let target = Target::start("--memory 16MiB --rails 127.0.0.1,127.0.0.2");
    let (from, _) = folder.file("from", 1 << 20);
    let config = folder.path("config.json");
    fs::write(&config, r#"{ "rails": ["127.0.0.1"] }"#).expect("a file");
    let at = target.address();
    run(&format!("cp {from} {at}/mem --config {config}"))
        .expect(2)
        .names(&[
            "1 local rails against 2 remote ones",
            "rail_map \"all\" or \"nearest\" on this side",
        ]);
    let flags = format!("--config {config} --rails 127.0.0.1,127.0.0.2");
    run(&format!("cp {from} {at}/mem {flags}")).expect(0);
}

#[test]
fn offsets_beyond_four_gibibytes_are_reached() {
    let (folder, target) = (Folder::new(), Target::start("--memory 8GiB"));
    let at = target.address();
    let (from, content) = folder.file("from", 70_000);
    let to = folder.path("to");
    run(&format!("cp {from} {at}/mem+5GiB --verify")).expect(0);
    run(&format!("cp {at}/mem+5GiB {to} --length 70000")).expect(0);
    assert!(fs::read(&to).expect("the copy") == content);
    // What is at the same place modulo 4 GiB is untouched.
    run(&format!("cp {at}/mem+1GiB {to} --length 70000")).expect(0);
    assert!(
        fs::read(&to)
            .expect("the copy")
            .iter()
            .all(|byte| *byte == 0)
    );
}

#[test]
fn what_makes_no_sense_is_a_usage_error_that_says_what_would() {
    let (folder, target) = (Folder::new(), Target::start("--memory 1MiB"));
    let at = target.address();
    let (small, _) = folder.file("small", 1000);
    let large = folder.sparse("large", (1 << 20) + 1);
    let here = folder.path("");
    // (line, what the error names)
    let cases: [(String, &[&str]); 17] = [
        (format!("cp /no/such/file {at}/mem"), &["/no/such/file"]),
        (format!("cp {here} {at}/mem"), &["no regular file"]),
        (
            format!("cp /dev/zero {at}/mem"),
            &["/dev/zero", "no regular file"],
        ),
        (
            format!("cp {small} {small}"),
            &["neither", "HOST:PORT/SEGMENT"],
        ),
        (
            format!("cp {at}/mem {at}/mem+1"),
            &["too small", "1048576", "1048577"],
        ),
        ("cp - -".to_owned(), &["neither", "HOST:PORT/SEGMENT"]),
        (
            format!("cp {at}/mem {at}/mem --resume"),
            &["--resume", "file"],
        ),
        (
            format!("cp - {at}/mem --resume"),
            &["--resume", "standard input"],
        ),
        (
            format!("cp {large} {at}/mem"),
            &["too small", "1048576", "1048577"],
        ),
        (
            format!("cp {small} {at}/mem+1M"),
            &["too small", "1048576", "1049576"],
        ),
        (format!("cp {small} {at}/mem+4KX"), &["4KX", "4K"]),
        (
            format!("cp {at}/mem+1M {small}"),
            &["offset 1048576", "at the end"],
        ),
        (
            format!("cp {at}/mem+2M {small}"),
            &["offset 2097152", "past the end"],
        ),
        (
            format!("cp {at}/mem+1000K {small} --length 1M"),
            &["--length", "24576"],
        ),
        (
            format!("cp {small} {at}/mem --length 1001"),
            &["--length 1001", "1000"],
        ),
        (format!("cp {at}/mem {here}no/file"), &["no directory"]),
        (format!("cp {small} {at}/heap"), &["no segment", "heap"]),
    ];
    for (line, parts) in cases {
        run(&line).expect(2).names(parts);
    }
    assert_eq!(folder.names(), ["large", "small"], "nothing is left behind");
    assert_eq!(fs::read(&small).expect("it is as it was").len(), 1000);
}

#[test]
fn nobody_there_is_the_environments_fault() {
    let folder = Folder::new();
    let (from, _) = folder.file("from", 1000);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let closed = listener.local_addr().expect("an address");
    drop(listener);
    run(&format!("cp {from} {closed}/mem"))
        .expect(3)
        .names(&[&closed.to_string()]);
}

/// A copy that has begun to move bytes and would go on for longer than any test.
fn begun(line: &str) -> Child {
    let mut child = polyrail(line).spawn().expect("the program starts");
    let stderr = child.stderr.as_mut().expect("it is piped");
    // Byte by byte: what follows that line is for whoever collects the rest.
    let mut lines = BufReader::with_capacity(1, stderr).lines();
    let mut copies = lines.by_ref().map(|line| line.expect("a pipe can be read"));
    // A machine without the devices of some transport is warned of before.
    assert!(copies.any(|line| line.starts_with("copying ")), "it ended");
    child
}

/// A file and a memory that take minutes to fill, and pages only as far as they are reached.
const HUGE: u64 = 256 << 30;

#[test]
fn a_file_that_is_truncated_under_way_is_named() {
    let (folder, target) = (Folder::new(), Target::start("--memory 256GiB"));
    let from = folder.sparse("from", HUGE);
    let line = format!("cp {from} {}/mem", target.address());
    let child = begun(&line);
    File::options()
        .write(true)
        .open(&from)
        .and_then(|file| file.set_len(4097))
        .expect("it is cut");
    finish(child, &line)
        .expect(3)
        .names(&[&from, "truncated", "274877906944", "4097"]);
}

#[test]
fn a_target_that_dies_ends_the_copy_and_what_was_there_stays() {
    // Both ways.
    for upload in [true, false] {
        let (folder, target) = (Folder::new(), Target::start("--memory 256GiB"));
        let (to, content) = folder.file("to", 1000);
        let at = target.address().to_owned();
        let line = match upload {
            true => format!("cp {} {at}/mem", folder.sparse("from", HUGE)),
            false => format!("cp {at}/mem {to}"),
        };
        let child = begun(&line);
        target.end(Signal::KILL);
        let ended = finish(child, &line).expect(3).names(&[&at]);
        assert_eq!(ended.stdout, "");
        assert!(fs::read(&to).expect("it is as it was") == content);
        assert!(
            folder
                .names()
                .iter()
                .all(|name| !name.contains("polyrail-cp"))
        );
    }
}

#[test]
fn an_interrupted_copy_leaves_nothing() {
    let (folder, target) = (Folder::new(), Target::start("--memory 256GiB"));
    let line = format!("cp {}/mem {}", target.address(), folder.path("to"));
    let child = begun(&line);
    kill_process(Pid::from_child(&child), Signal::INT).expect("a child can be signalled");
    finish(child, &line)
        .expect(130)
        .names(&["interrupted by SIGINT", "the first ", "--resume"]);
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn a_copy_goes_on_where_it_stopped() {
    const BYTES: usize = 64 << 20;
    let (folder, target) = (Folder::new(), Target::start("--memory 64MiB"));
    let at = target.address();
    let (from, content) = folder.file("from", BYTES - 5);
    let json = |line: &str| -> serde_json::Value {
        let ended = run(&format!("{line} --resume --json")).expect(0);
        serde_json::from_str(&ended.stdout).expect("one object")
    };
    // The target has the first half and a byte that is wrong.
    run(&format!("cp {from} {at}/mem --length 32MiB")).expect(0);
    let wrong = folder.path("wrong");
    fs::write(&wrong, [!content[5 << 20]]).expect("a file");
    run(&format!("cp {wrong} {at}/mem+5M")).expect(0);
    let up = json(&format!("cp {from} {at}/mem --verify"));
    assert_eq!(
        up["skipped_bytes"],
        28 << 20,
        "all blocks but the one with the byte: {up}"
    );
    assert_eq!(up["crc32c"], format!("{:08x}", crc32c::crc32c(&content)));

    // A part that ends within a block, with one that is not the target's.
    let (part, to) = (folder.path("to.polyrail-part"), folder.path("to"));
    let mut had = content[..(10 << 20)].to_vec();
    had[0] ^= 1;
    fs::write(&part, had).expect("a file");
    let line = format!("cp {at}/mem {to} --length {}", BYTES - 5);
    let down = json(&line);
    assert_eq!(down["skipped_bytes"], 4 << 20, "{down}");
    assert_eq!(down["crc32c"], up["crc32c"]);
    assert!(fs::read(&to).expect("the copy") == content);
    assert!(!std::path::Path::new(&part).exists());
}

#[test]
fn a_part_is_kept_for_who_wants_to_go_on() {
    let (folder, target) = (Folder::new(), Target::start("--memory 256GiB"));
    let line = format!("cp {}/mem {} --resume", target.address(), folder.path("to"));
    let child = begun(&line);
    kill_process(Pid::from_child(&child), Signal::TERM).expect("a child can be signalled");
    finish(child, &line)
        .expect(143)
        .names(&["interrupted by SIGTERM", "are kept"]);
    assert_eq!(folder.names(), ["to.polyrail-part"]);
}

#[test]
fn bytes_come_from_pipes_go_into_pipes_and_between_targets() {
    let folder = Folder::new();
    let (one, two) = (
        Target::start("--memory 16MiB"),
        Target::start("--memory 16MiB"),
    );
    let (from, content) = folder.file("from", 9_000_001);
    let line = format!("cp - {}/mem+3 --verify", one.address());
    let input = File::open(&from).expect("it is there");
    let child = polyrail(&line)
        .stdin(input)
        .spawn()
        .expect("the program starts");
    let up = finish(child, &line).expect(0);
    assert!(up.stdout.contains("copied 9000001 bytes"), "{up:?}");
    let (one_at, two_at) = (one.address(), two.address());
    let over = format!("cp {one_at}/mem+3 {two_at}/mem+7 --length 9000001 --verify");
    assert_eq!(checksum(&run(&over).expect(0)), checksum(&up));
    let line = format!("cp {two_at}/mem+7 - --length 9000001");
    let to = folder.path("to");
    let out = File::create(&to).expect("a file");
    let child = polyrail(&line)
        .stdout(out)
        .spawn()
        .expect("the program starts");
    finish(child, &line)
        .expect(0)
        .names(&["copied 9000001 bytes"]);
    assert!(fs::read(&to).expect("the copy") == content);

    // More than there is room for, and less than was promised.
    let pour = |line: &str| {
        let input = File::open(&from).expect("it is there");
        let child = polyrail(line)
            .stdin(input)
            .spawn()
            .expect("the program starts");
        finish(child, line)
    };
    pour(&format!("cp - {one_at}/mem+8M"))
        .expect(2)
        .names(&["too small", "8388608"]);
    pour(&format!("cp - {one_at}/mem --length 10M"))
        .expect(3)
        .names(&["has ended after 9000001 of 10485760"]);
}

#[test]
fn a_directory_takes_a_file_of_the_segments_name_and_nothing_is_a_file_too() {
    let (folder, target) = (Folder::new(), Target::start("--memory 1MiB"));
    let at = target.address();
    let here = folder.path("");
    let ended = run(&format!("cp {at}/mem {here} --quiet")).expect(0);
    assert_eq!((ended.stdout, ended.stderr), (String::new(), String::new()));
    run(&format!("cp {at}/mem {here}empty --length 0")).expect(0);
    assert_eq!(folder.names(), ["empty", "mem"]);
    let length = |name: &str| fs::metadata(folder.path(name)).expect("a file").len();
    assert_eq!((length("empty"), length("mem")), (0, 1 << 20));
}

#[test]
fn zeros_take_no_room_in_a_file() {
    use std::os::unix::fs::MetadataExt;

    let (folder, target) = (Folder::new(), Target::start("--memory 64MiB"));
    let (at, to) = (target.address(), folder.path("to"));
    let (one, _) = folder.file("one", 1000);
    run(&format!("cp {one} {at}/mem+33M")).expect(0);
    run(&format!("cp {at}/mem {to} --verify")).expect(0);
    let taken = fs::metadata(&to).expect("a file").blocks() * 512;
    assert!(taken <= 8 << 20, "{taken} bytes");
    let copy = fs::read(&to).expect("the copy");
    assert_eq!(copy.len(), 64 << 20);
    assert!(copy[33 << 20..][..1000] == fs::read(&one).expect("it is there"));
}

#[test]
fn a_killed_copy_leaves_nothing() {
    use rustix::fs::{Mode, OFlags, open};

    let (folder, target) = (Folder::new(), Target::start("--memory 256GiB"));
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    if open(folder.0.path(), flags, Mode::RUSR).is_err() {
        return eprintln!("not run, because the file system has no files without a name");
    }
    let line = format!("cp {}/mem {}", target.address(), folder.path("to"));
    let child = begun(&line);
    kill_process(Pid::from_child(&child), Signal::KILL).expect("a child can be signalled");
    assert_eq!(finish(child, &line).code, None);
    assert_eq!(folder.names(), [""; 0]);
}

/// A file system of eight mebibytes, as long as it is not dropped; `None`: this test may not mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Option<Self> {
        use rustix::mount::{MountFlags, mount};

        let folder = tempfile::tempdir().expect("a folder");
        let options = c"size=8m";
        let mounted = mount(
            "polyrail",
            folder.path(),
            "tmpfs",
            MountFlags::empty(),
            options,
        );
        mounted.ok().map(|()| Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_at_either_end_is_said_with_the_file() {
    let Some(disk) = SmallDisk::new() else {
        let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(!must, "no file system can be mounted");
        return eprintln!("not run, because no file system can be mounted");
    };
    let there = disk.0.path().join("there");
    File::create(&there)
        .and_then(|file| file.set_len(64 << 20))
        .expect("it takes no room");
    let there = there.to_str().expect("UTF-8");
    let target = Target::start(&format!("--memory 64MiB --file {there}"));
    let at = target.address();
    let (folder, here) = (Folder::new(), disk.0.path().join("here"));
    let here = here.to_str().expect("UTF-8");
    let (from, _) = folder.file("from", 32 << 20);
    run(&format!("cp {from} {at}/mem")).expect(0);
    run(&format!("cp {at}/mem {here}"))
        .expect(3)
        .names(&["cannot write", here, "no space"]);
    run(&format!("cp {from} {at}/there"))
        .expect(1)
        .names(&["cannot write there", at, "no space"]);
    let names: Vec<_> = fs::read_dir(disk.0.path()).expect("a folder").collect();
    assert_eq!(names.len(), 1, "nothing of the copy that failed is left");
    target.end(Signal::TERM).expect(0);
}

#[test]
fn files_are_offered_under_their_names() {
    let folder = Folder::new();
    let (first, old) = folder.file("first", 3_000_001);
    let (second, second_content) = folder.file("second", 1000);
    let (patch, patch_content) = folder.file("patch", 500_000);
    let flags = format!("--memory 1MiB --file {first} --file {second}:ro");
    let target = Target::start(&flags);
    let at = target.address().to_owned();
    run(&format!("cp {patch} {at}/first+1M --verify")).expect(0);
    let to = folder.path("to");
    run(&format!("cp {at}/second {to} --verify")).expect(0);
    assert!(fs::read(&to).expect("the copy") == second_content);
    // That a part of it could be kept is no help to whoever may not write there.
    let other = folder.path("other");
    fs::write(&other, [1; 999]).expect("a file");
    for flags in ["", "--resume"] {
        let refused = run(&format!("cp {other} {at}/second {flags}")).expect(2);
        let error = refused.stderr.lines().last();
        let says = format!("error: second of target {at} may only be read: its owner refuses");
        assert_eq!(error, Some(says.as_str()), "{refused:?}");
    }
    target.end(Signal::TERM).expect(0);
    let mut expected = old;
    expected[1 << 20..(1 << 20) + 500_000].copy_from_slice(&patch_content);
    assert!(fs::read(&first).expect("the file") == expected);
}

/// The kernel ends a process that writes behind its limit, unless it takes care: a peer could end a target so.
#[test]
fn a_limit_on_the_size_of_files_ends_no_process() {
    // In blocks of half a kibibyte or a whole one, as shells have it: more than the slots, less than what is moved.
    let limited = |blocks: u32, line: &str| {
        let program = env!("CARGO_BIN_EXE_polyrail");
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("ulimit -f {blocks}; exec {program} {line}")])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        shell.spawn().expect("a shell starts")
    };
    let folder = Folder::new();
    let there = folder.sparse("there", 128 << 20);
    let mut serving = limited(40_000, &format!("serve --memory 1MiB --file {there}"));
    let mut line = String::new();
    // Byte by byte: what follows is for whoever collects the rest.
    BufReader::with_capacity(1, serving.stdout.as_mut().expect("it is piped"))
        .read_line(&mut line)
        .expect("a pipe can be read");
    let at = line.split(' ').nth(1).expect("it listens").to_owned();
    let (from, _) = folder.file("from", 1 << 20);
    run(&format!("cp {from} {at}/there+64M"))
        .expect(1)
        .names(&["cannot write there", "limit"]);
    run(&format!("cp {from} {at}/there")).expect(0);
    kill_process(Pid::from_child(&serving), Signal::TERM).expect("a child can be signalled");
    finish(serving, "serve").expect(0);

    let (target, to) = (Target::start("--memory 64MiB"), folder.path("to"));
    let line = format!("cp {}/mem {to}", target.address());
    finish(limited(40_000, &line), &line)
        .expect(3)
        .names(&["cannot write", &to, "limit"]);
    assert!(!std::path::Path::new(&to).exists());

    let line = "serve --memory 16MiB";
    finish(limited(1_000, line), line)
        .expect(3)
        .names(&["ulimit -f"]);
}

/// A block device over a file, as long as it is not dropped.
struct Device(String);

impl Device {
    /// `None`: this test may not make one.
    fn over(file: &str) -> Option<Self> {
        let made = Command::new("losetup")
            .args(["-f", "--show", file])
            .output();
        let made = made.ok().filter(|made| made.status.success())?;
        let path = String::from_utf8(made.stdout).expect("a path in UTF-8");
        Some(Self(path.trim().to_owned()))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn block_devices_are_offered_and_copied_from() {
    const BYTES: usize = 4 << 20;
    let folder = Folder::new();
    let (image, content) = folder.file("image", BYTES);
    let Some(device) = Device::over(&image) else {
        // Where the kernel has such devices, that is wrong.
        let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
        let must = must && std::path::Path::new("/dev/loop-control").exists();
        assert!(!must, "no block device can be made");
        return eprintln!("not run, because no block device can be made");
    };
    let target = Target::start(&format!("--memory 8MiB --file {}", device.0));
    let at = target.address().to_owned();
    let to = folder.path("to");
    let name = device.0.strip_prefix("/dev/").expect("it is a device");
    run(&format!("cp {at}/{name} {to} --verify")).expect(0);
    assert!(fs::read(&to).expect("the copy") == content);
    run(&format!("cp {} {at}/mem --verify", device.0)).expect(0);
    let (patch, patch_content) = folder.file("patch", 500_000);
    run(&format!("cp {patch} {at}/{name}+1M --verify")).expect(0);
    run(&format!("cp {at}/{name} {to}")).expect(0);
    let mut expected = content;
    expected[1 << 20..(1 << 20) + 500_000].copy_from_slice(&patch_content);
    assert!(fs::read(&to).expect("the copy") == expected);
    run(&format!("cp {image} {at}/{name}+1"))
        .expect(2)
        .names(&["too small"]);
    run(&format!("cp {at}/mem {}", device.0))
        .expect(2)
        .names(&[&device.0, "no regular file"]);
    target.end(Signal::TERM).expect(0);
}

#[test]
fn a_file_that_shrinks_while_it_is_offered_harms_nobody() {
    let folder = Folder::new();
    let (path, content) = folder.file("file", 1_000_000);
    let target = Target::start(&format!("--memory 1MiB --file {path}"));
    File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(1))
        .expect("it is cut");
    let to = folder.path("to");
    run(&format!("cp {}/file {to} --verify", target.address()))
        .expect(1)
        .names(&["the file ends before the range"]);
    let first = folder.path("first");
    run(&format!(
        "cp {}/file {first} --length 1 --verify",
        target.address()
    ))
    .expect(0);
    assert!(fs::read(&first).expect("the copy") == content[..1]);
    target.end(Signal::TERM).expect(0);
}

#[test]
fn files_that_cannot_be_offered_are_usage_errors() {
    let folder = Folder::new();
    let (mem, _) = folder.file("mem", 10);
    let empty = folder.sparse("empty", 0);
    // (file, what the error names)
    let cases: [(&str, &[&str]); 4] = [
        ("/no/such/file", &["/no/such/file"]),
        ("/dev/zero:ro", &["no regular file"]),
        (&mem, &["--file", "mem", "exists already"]),
        (&empty, &["--file", "empty"]),
    ];
    for (file, parts) in cases {
        run(&format!("serve --memory 1MiB --file {file}"))
            .expect(2)
            .names(parts);
    }
}

/// All files of a directory, by their paths in it.
fn tree(of: &std::path::Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let mut found = std::collections::BTreeMap::new();
    let mut left = vec![of.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                let name = path.strip_prefix(of).unwrap().display().to_string();
                found.insert(name, fs::read(path).unwrap());
            }
        }
    }
    found
}

#[test]
fn a_directory_comes_and_goes_with_all_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::create_dir_all(model.join("layers/deep")).unwrap();
    let bytes = |count: usize, seed: usize| {
        (0..count)
            .map(|i| (i * seed % 251) as u8)
            .collect::<Vec<_>>()
    };
    fs::write(model.join("config"), b"{}").unwrap();
    fs::write(model.join("layers/one"), bytes(5 << 20, 7)).unwrap();
    fs::write(model.join("layers/deep/two"), bytes(100_000, 11)).unwrap();
    fs::write(model.join("layers/deep/none"), b"").unwrap();
    std::os::unix::fs::symlink("config", model.join("link")).unwrap();
    let target = Target::start(&format!("--memory 1MiB --file {}", model.display()));
    let at = target.address();
    let mut expected = tree(&model);
    expected.remove("link");

    // Into a directory that is there, under its name, and into one that is not.
    let here = folder.path().join("here");
    fs::create_dir(&here).unwrap();
    let ended = run(&format!(
        "cp --recursive {at}/model {} --verify",
        here.display()
    ))
    .expect(0);
    assert_eq!(tree(&here.join("model")), expected);
    let line = format!("copied 4 files, {} bytes in ", (5 << 20) + 100_002);
    assert!(ended.stdout.starts_with(&line), "{ended:?}");
    assert!(ended.stdout.contains("verified by the target"), "{ended:?}");
    let other = folder.path().join("other");
    let ended = run(&format!(
        "cp -r {at}/model/layers {} --json --resume",
        other.display()
    ))
    .expect(0);
    let one: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(one["files"], 3);
    assert_eq!(tree(&other).len(), 3);
    assert_eq!(tree(&other)["deep/two"], expected["layers/deep/two"]);

    // And back, changed.
    let changed = bytes(5 << 20, 13);
    fs::write(here.join("model/layers/one"), &changed).unwrap();
    run(&format!(
        "cp --recursive {} {at}/model",
        here.join("model").display()
    ))
    .expect(0);
    run(&format!(
        "cp {at}/model/layers/one {}",
        folder.path().join("one").display()
    ))
    .expect(0);
    assert_eq!(fs::read(folder.path().join("one")).unwrap(), changed);
    // What does not fit is said before anything is written.
    fs::write(here.join("model/config"), b"{\"a\":1}").unwrap();
    fs::write(here.join("model/layers/one"), bytes(5 << 20, 17)).unwrap();
    run(&format!(
        "cp -r {} {at}/model",
        here.join("model").display()
    ))
    .expect(2)
    .names(&["config", "2 bytes", "7"]);
    fs::write(here.join("model/config"), b"{}").unwrap();
    fs::write(here.join("model/new"), b"new").unwrap();
    run(&format!(
        "cp -r {} {at}/model",
        here.join("model").display()
    ))
    .expect(2)
    .names(&["new", "makes no files"]);
    target.end(Signal::TERM).expect(0);
    assert_eq!(fs::read(model.join("layers/one")).unwrap(), changed);
}

#[test]
fn a_directory_that_cannot_be_copied_is_named() {
    let target = Target::start("--memory 1MiB");
    let at = target.address();
    // (words, exit code, what is named)
    let cases = [
        (
            format!("{at}/mem /tmp"),
            2,
            "offers no files in a directory mem",
        ),
        (format!("{at}/mem+1 /tmp"), 2, "has no offset"),
        (format!("/no/such/folder {at}/mem"), 2, "/no/such/folder"),
        (format!("- {at}/mem"), 2, "--recursive"),
        (format!("{at}/a /tmp --length 1"), 2, "--length"),
        ("127.0.0.1:1/a /tmp".to_owned(), 3, "127.0.0.1:1"),
    ];
    for (words, code, named) in cases {
        run(&format!("cp --recursive {words}"))
            .expect(code)
            .names(&[named]);
    }
}
