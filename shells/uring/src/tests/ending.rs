//! Endpoints that end while the kernel still reads or writes for them.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use rustix::event::{PollFd, PollFlags};

use super::*;

#[test]
fn an_endpoint_that_ends_waits_for_the_kernel() {
    if !has_uring() {
        return;
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(reader));
    let mut bench = Bench::new(Way::Uring, 4096, FileRange::of(file, 1 << 20));
    bench.post(&[work(7, Op::Read, 0, 0, 4)]);
    let Bench {
        driven: Driven { endpoint, .. },
        region,
        ..
    } = bench;
    std::thread::scope(|scope| {
        let ended = scope.spawn(move || drop(endpoint));
        // Far less than it waits for the kernel, however long others have the processors.
        let begun = std::time::Instant::now();
        while begun.elapsed() < std::time::Duration::from_millis(20) {
            std::thread::yield_now();
        }
        assert!(!ended.is_finished(), "the kernel may still write there");
        writer.write_all(b"late").unwrap();
        ended.join().unwrap();
    });
    region.revoke();
}

/// Waits for something that a thread brings about.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(
            start.elapsed() < std::time::Duration::from_secs(60),
            "{what}"
        );
        std::thread::yield_now();
    }
}

/// Memory was once told to be free as soon as its worker had ended, while the kernel still wrote to it.
#[test]
fn memory_says_that_it_is_touched_until_the_kernel_lets_go_also_after_the_end_of_its_endpoint() {
    if !has_uring() {
        return;
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(reader));
    let mut bench = Bench::new(Way::Uring, 4096, FileRange::of(file, 1 << 20));
    assert!(!bench.region.is_touched());
    bench.post(&[work(7, Op::Read, 100, 0, 4)]);
    assert!(bench.region.is_touched());
    let Bench {
        driven: Driven { endpoint, .. },
        region,
        files,
    } = bench;
    drop(endpoint);
    let range = Arc::downgrade(files.0.lock().unwrap().values().next().unwrap());
    drop(files);
    assert!(
        region.is_touched() && range.upgrade().is_some(),
        "the kernel may still write there"
    );
    writer.write_all(b"late").unwrap();
    wait_until("the kernel has let go", || !region.is_touched());
    let mut bytes = [0; 4];
    region.load(100, &mut bytes).unwrap();
    assert_eq!(&bytes, b"late");
    region.revoke();
    wait_until("the file is let go of", || range.upgrade().is_none());
}

/// A page that the kernel waits for when it writes there, until [`Self::give`].
struct Page {
    base: NonNull<u8>,
    faults: OwnedFd,
}

impl Page {
    const BYTES: usize = 4096;

    fn ioctl<const N: usize>(fd: RawFd, what: libc::Ioctl, mut words: [u64; N]) -> io::Result<()> {
        // SAFETY: each takes a structure of so many words.
        let answer = unsafe { libc::ioctl(fd, what, words.as_mut_ptr()) };
        if answer == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    fn range(&self) -> [u64; 2] {
        [self.base.as_ptr() as u64, Self::BYTES as u64]
    }

    fn new() -> io::Result<Self> {
        const API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
        const REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
        // SAFETY: makes a descriptor.
        let fd =
            unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is a descriptor, and nobody else's.
        let faults = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        Self::ioctl(faults.as_raw_fd(), API, [0xaa, 0, 0])?;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            let (access, flags) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            );
            libc::mmap(std::ptr::null_mut(), Self::BYTES, access, flags, -1, 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        let base = NonNull::new(base.cast()).unwrap();
        let page = Self { base, faults };
        let [start, bytes] = page.range();
        Self::ioctl(page.faults.as_raw_fd(), REGISTER, [start, bytes, 1, 0])?;
        Ok(page)
    }

    /// Until somebody waits for it.
    fn wait(&self) {
        let mut faults = [PollFd::new(&self.faults, PollFlags::IN)];
        rustix::event::poll(&mut faults, None).unwrap();
        assert_eq!(faults[0].revents(), PollFlags::IN);
    }

    fn give(&self) {
        const ZERO_PAGE: libc::Ioctl = 0xc020_aa04_u32 as libc::Ioctl;
        let [start, bytes] = self.range();
        Self::ioctl(self.faults.as_raw_fd(), ZERO_PAGE, [start, bytes, 0, 0]).unwrap();
    }
}

/// The same where threads read. A page that is not there holds one of them up.
#[test]
fn memory_that_a_thread_still_reads_to_is_touched() {
    let page = match Page::new() {
        Ok(page) => page,
        Err(error) => {
            let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!must, "userfaultfd is not to be had: {error}");
            return eprintln!("not run, because userfaultfd is not to be had: {error}");
        }
    };
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"late").unwrap();
    let cached = FileTerms {
        cached: true,
        ..FileTerms::default()
    };
    let mut bench = Bench::new(Way::Pread, 4096, range(&file, cached));
    // SAFETY: it stays mapped.
    let region = unsafe { Region::new(page.base, Page::BYTES as u64, Access::Local, None) };
    let region = Arc::new(region.unwrap());
    bench.driven.endpoint.attach_local(MEMORY, region.clone());
    bench.post(&[work(7, Op::Read, 100, 0, 4), work(8, Op::Read, 200, 0, 4)]);
    page.wait();
    drop(bench);
    assert!(region.is_touched(), "the kernel may still write there");
    page.give();
    wait_until("the kernel has let go", || !region.is_touched());
    let mut bytes = [0; 4];
    region.load(100, &mut bytes).unwrap();
    assert_eq!(&bytes, b"late");
    region.revoke();
}
