//! Memory from the kernel: of this process alone, or in a file without a name that other processes can map.
//!
//! # Safety
//!
//! A [`Mapping`] is a raw range; who uses it keeps to the contract of [`memory`](crate::memory).
//!
//! Touching a mapping of a file raises a signal (SIGBUS) where the file has no page and the kernel gives it none. Whoever has
//! the file open for writing can take pages away (`FALLOC_FL_PUNCH_HOLE`), sealed against shrinking or not, and so can
//! a peer that keeps to no rule, at any time. What is mapped here is therefore one of two kinds:
//!
//! - Memory on pages of the usual size, sealed against shrinking, while the kernel does not refuse pages
//!   (`vm.overcommit_memory` is not 2): a page that was taken away comes back zeroed at the next touch. A peer that may write
//!   could have written these zeros. Huge pages that were set aside (hugetlb) can run out, and are not mapped. Where the
//!   kernel may refuse pages nothing of this kind is made or mapped.
//! - Memory that is [fixed](Mapping::fix): it has all of its pages, and the kernel lets nobody take one away
//!   (`F_SEAL_FUTURE_WRITE`). So no rule of the kernel's about new pages matters.
//!
//! What is left: a host without any memory, where the kernel ends processes of its choice; pages that cannot be read back
//! from a swap device; an administrator who sets `vm.overcommit_memory` to 2 while engines run, or poisons pages. None of these
//! is in the hands of a peer.

use std::io::{
    self,
    ErrorKind::{NotFound, PermissionDenied},
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Once;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::process::{Resource, getrlimit};

/// Pages of a process's address space.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is only unmapped in `drop`; access to it follows the module's contract.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// A file of memory keeps its size.
const SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// `f_type` of files of memory on pages of the usual size.
const TMPFS_MAGIC: i64 = 0x0102_1994;

impl Mapping {
    /// Zeroed memory of this process alone.
    pub fn private(bytes: u64) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::map(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, None)
    }

    /// Zeroed memory that peers of this host can map by the file that comes with it, for writing too if `peers_write`:
    /// if not, nobody ever can but for this mapping. `None`: nobody can map it, because touching it could raise a signal
    /// then, or because the kernel cannot keep peers from writing (before Linux 5.1).
    pub fn shared(bytes: u64, peers_write: bool) -> io::Result<(Self, Option<OwnedFd>)> {
        static SAID: Once = Once::new();
        if let Some(why) = why_pages_stay_away()? {
            SAID.call_once(|| {
                log::info!("memory is not shared with processes of this host: {why}")
            });
            return Ok((Self::private(bytes)?, None));
        }
        let (mapping, file) = Self::in_file(bytes)?;
        let write = match peers_write {
            true => SealFlags::empty(),
            false => SealFlags::FUTURE_WRITE,
        };
        match rustix::fs::fcntl_add_seals(&file, SealFlags::SEAL | write) {
            Ok(()) => Ok((mapping, Some(file))),
            Err(rustix::io::Errno::INVAL) => {
                SAID.call_once(|| {
                    log::info!("memory that peers may only read is not shared: Linux 5.1 can");
                });
                Ok((mapping, None))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Zeroed memory in a new file, whose size is sealed and nothing else.
    pub fn in_file(bytes: u64) -> io::Result<(Self, OwnedFd)> {
        let bytes_max = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        if bytes > bytes_max {
            // The kernel would end the process by a signal.
            return Err(io::Error::other(format!(
                "memory that is shared is a file, and files may have {bytes_max} bytes here (ulimit -f), not {bytes}"
            )));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("polyrail", flags)?;
        rustix::fs::ftruncate(&file, checked(bytes)? as u64)?;
        rustix::fs::fcntl_add_seals(&file, SIZE)?;
        let mapping = Self::of_file(file.as_fd(), bytes, true)?;
        Ok((mapping, file))
    }

    /// Maps `bytes` of a file of memory that somebody else made. An error if it is not that, or if touching it could raise
    /// a signal.
    pub fn of_peer(file: BorrowedFd<'_>, bytes: u64, writable: bool) -> io::Result<Self> {
        check_file(file, bytes)?;
        if let Some(why) = why_pages_stay_away()? {
            return Err(io::Error::other(why));
        }
        Self::of_file(file, bytes, writable)
    }

    /// The same, for writing, and [fixes](Self::fix) it.
    pub fn of_peer_fixed(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Self> {
        check_file(file, bytes)?;
        let mapping = Self::of_file(file, bytes, true)?;
        mapping.fix(file)?;
        Ok(mapping)
    }

    /// Gives a file, which this maps, all of its pages for good: from here on nobody can map it anew for writing, nor take a
    /// page away. An error if its seals forbid that, or there is not enough memory.
    pub fn fix(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        // First, so that no page is taken away behind the second.
        let sealed = rustix::fs::fcntl_add_seals(file, SealFlags::FUTURE_WRITE);
        let seals = rustix::fs::fcntl_get_seals(file)?;
        if !seals.contains(SealFlags::FUTURE_WRITE) {
            let why = sealed.map_or_else(|error| error.to_string(), |()| "it is not".into());
            return Err(io::Error::other(format!(
                "its memory cannot be sealed against holes: {why}"
            )));
        }
        loop {
            match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, self.bytes()) {
                Err(rustix::io::Errno::INTR) => {}
                done => return Ok(done?),
            }
        }
    }

    fn of_file(file: BorrowedFd<'_>, bytes: u64, writable: bool) -> io::Result<Self> {
        let access = match writable {
            true => libc::PROT_READ | libc::PROT_WRITE,
            false => libc::PROT_READ,
        };
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        Self::map(bytes, access, flags, Some(file))
    }

    fn map(
        bytes: u64,
        access: libc::c_int,
        flags: libc::c_int,
        file: Option<BorrowedFd<'_>>,
    ) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        let bytes = checked(bytes)?;
        let file = file.map_or(-1, |file| file.as_raw_fd());
        // SAFETY: a fresh mapping; no address is asked for, and the descriptor, if any, is open.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, file, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap gave address 0"))?;
        let mapping = Self { base, bytes };
        mapping.advise_huge_pages();
        Ok(mapping)
    }

    /// Asks for huge pages where the kernel gives them as memory is touched: a device, or a copy, then has one page to
    /// look up in place of 512. A kernel that does not is no worse than before.
    fn advise_huge_pages(&self) {
        // SAFETY: the range is this mapping's, and the advice changes nothing that is in it.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, libc::MADV_HUGEPAGE) };
    }

    /// The first byte. Only to be dereferenced under the module's contract.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

/// Checks that a file is memory of so many bytes at least, on pages of the usual size, and cannot become shorter.
fn check_file(file: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let seals = rustix::fs::fcntl_get_seals(file)?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(io::Error::other(
            "its memory is not sealed: it could shrink",
        ));
    }
    // The type is narrower on some machines.
    #[allow(clippy::unnecessary_cast)]
    let kind = rustix::fs::fstatfs(file)?.f_type as i64;
    if kind != TMPFS_MAGIC {
        return Err(io::Error::other(
            "its memory is on huge pages that were set aside, which can run out",
        ));
    }
    let there = rustix::fs::fstat(file)?.st_size;
    if u64::try_from(there).is_ok_and(|there| there < bytes) {
        return Err(io::Error::other(format!(
            "its memory has {there} bytes, not {bytes}"
        )));
    }
    Ok(())
}

/// Why the kernel may not give a page of shared memory that was taken away anew when it is touched; `None`: it does.
fn why_pages_stay_away() -> io::Result<Option<String>> {
    const PATH: &str = "/proc/sys/vm/overcommit_memory";
    match std::fs::read_to_string(PATH) {
        Ok(mode) => Ok(why_refused(mode.trim())),
        Err(error) if matches!(error.kind(), NotFound | PermissionDenied) => {
            Ok(Some(format!("{PATH}: {error}")))
        }
        Err(error) => Err(error),
    }
}

fn why_refused(mode: &str) -> Option<String> {
    let says = || {
        format!(
            "vm.overcommit_memory is {mode}: a page of shared memory can be refused, by a signal; 0 or 1 would do"
        )
    };
    (!matches!(mode, "0" | "1")).then(says)
}

fn checked(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes > 0 && *bytes <= isize::MAX as usize)
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("cannot allocate {bytes} bytes: give 1 to {}", isize::MAX),
            )
        })
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` come from `mmap`, and nobody else unmaps them.
        let answer = unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(answer, 0, "munmap: {}", io::Error::last_os_error());
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::io::Errno;

    use super::*;

    fn shared(bytes: u64, peers_write: bool) -> (Mapping, OwnedFd) {
        let (mapping, file) = Mapping::shared(bytes, peers_write).unwrap();
        (mapping, file.unwrap())
    }

    fn memfd(flags: MemfdFlags, bytes: u64, seals: SealFlags) -> OwnedFd {
        let file = rustix::fs::memfd_create("test", flags | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    }

    fn punch(file: &OwnedFd, bytes: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, flags, 0, bytes)
    }

    #[test]
    fn memory_of_a_peer_is_mapped_only_if_it_cannot_shrink() {
        let (mapping, file) = shared(8192, true);
        assert!(rustix::fs::ftruncate(&file, 4096).is_err(), "sealed");
        let theirs = Mapping::of_peer(file.as_fd(), 8192, true).unwrap();
        // SAFETY: both are mapped and nobody else's.
        unsafe {
            mapping.base().add(8191).write(7);
            assert_eq!(theirs.base().add(8191).read(), 7);
        }
        let open = memfd(MemfdFlags::empty(), 8192, SealFlags::empty());
        let plain = std::fs::File::open("/proc/self/exe").unwrap();
        // (name, file, bytes, part of the reason)
        let cases = [
            ("too short", file.as_fd(), 8193, "8192 bytes"),
            ("can shrink", open.as_fd(), 8192, "not sealed"),
            ("no memory", plain.as_fd(), 1, "Invalid argument"),
            ("nothing", file.as_fd(), 0, "cannot allocate"),
        ];
        for (name, file, bytes, part) in cases {
            let error = Mapping::of_peer(file, bytes, true).unwrap_err().to_string();
            assert!(error.contains(part), "{name}: {error}");
        }
    }

    #[test]
    fn memory_on_huge_pages_that_can_run_out_is_not_mapped() {
        // They need not be there: that is what it is about.
        const BYTES: u64 = 2 << 20;
        let huge = memfd(MemfdFlags::HUGETLB, BYTES, SIZE);
        for error in [
            Mapping::of_peer(huge.as_fd(), BYTES, false).unwrap_err(),
            Mapping::of_peer(huge.as_fd(), BYTES, true).unwrap_err(),
            Mapping::of_peer_fixed(huge.as_fd(), 4096).unwrap_err(),
        ] {
            assert!(error.to_string().contains("huge pages"), "{error}");
        }
    }

    #[test]
    fn memory_is_shared_that_no_machine_has() {
        // None of its pages is there before it is touched.
        const BYTES: u64 = 1 << 40;
        let (mapping, file) = shared(BYTES, true);
        let theirs = Mapping::of_peer(file.as_fd(), BYTES, true).unwrap();
        // SAFETY: both are mapped and nobody else's.
        unsafe {
            mapping.base().add(BYTES as usize - 1).write(7);
            assert_eq!(theirs.base().add(BYTES as usize - 1).read(), 7);
        }
    }

    #[test]
    fn a_page_that_a_peer_takes_away_comes_back_zeroed() {
        const BYTES: u64 = 4 << 20;
        let (mapping, file) = shared(BYTES, true);
        let theirs = Mapping::of_peer(file.as_fd(), BYTES, true).unwrap();
        for offset in [0, BYTES as usize - 1] {
            // SAFETY: both are mapped and nobody else's.
            unsafe {
                mapping.base().add(offset).write(7);
                punch(&file, BYTES).unwrap();
                assert_eq!(theirs.base().add(offset).read(), 0);
                theirs.base().add(offset).write(8);
                assert_eq!(mapping.base().add(offset).read(), 8);
            }
        }
    }

    #[test]
    fn nobody_takes_a_page_of_fixed_memory_away() {
        const BYTES: u64 = 3 * 4096;
        let (mapping, file) = Mapping::in_file(BYTES).unwrap();
        let early = Mapping::of_peer(file.as_fd(), BYTES, true).unwrap();
        punch(&file, BYTES).unwrap();
        let theirs = Mapping::of_peer_fixed(file.as_fd(), BYTES).unwrap();
        // The other side does the same, however often.
        mapping.fix(file.as_fd()).unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        assert_eq!(stat.st_blocks * 512, BYTES as i64, "all pages are there");
        assert_eq!(punch(&file, BYTES), Err(Errno::PERM));
        // SAFETY: the range is `early`'s, and nothing is kept there.
        let removed =
            unsafe { libc::madvise(early.base().as_ptr().cast(), 4096, libc::MADV_REMOVE) };
        assert_eq!(
            (removed, Errno::from_io_error(&io::Error::last_os_error())),
            (-1, Some(Errno::PERM))
        );
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        // SAFETY: both are mapped and nobody else's.
        unsafe {
            mapping.base().add(8191).write(7);
            assert_eq!(theirs.base().add(8191).read(), 7);
        }
        // Whoever keeps it from being sealed is turned away.
        let closed = memfd(MemfdFlags::empty(), BYTES, SIZE | SealFlags::SEAL);
        let error = Mapping::of_peer_fixed(closed.as_fd(), BYTES).unwrap_err();
        assert!(error.to_string().contains("against holes"), "{error}");
    }

    #[test]
    fn memory_that_peers_may_only_read_is_written_by_nobody_else_however_it_is_opened() {
        let (mapping, file) = shared(4096, false);
        // SAFETY: it is mapped and nobody else's.
        unsafe { mapping.base().write(7) };
        let theirs = Mapping::of_peer(file.as_fd(), 4096, false).unwrap();
        assert!(Mapping::of_peer(file.as_fd(), 4096, true).is_err());
        // As it comes, and opened anew.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let readable = std::fs::File::open(&path).unwrap();
        assert!(Mapping::of_peer(readable.as_fd(), 4096, false).is_ok());
        let path = format!("/proc/self/fd/{}", readable.as_raw_fd());
        let writable = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path);
        let writable = writable.map_err(|error| Errno::from_io_error(&error));
        if let Ok(writable) = &writable {
            let error = Mapping::of_peer(writable.as_fd(), 4096, true).unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::PERM));
        }
        assert_eq!(rustix::io::pwrite(&file, b"peer", 0), Err(Errno::PERM));
        assert_eq!(punch(&file, 4096), Err(Errno::PERM));
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is `theirs`, which nobody uses meanwhile.
        let answer = unsafe { libc::mprotect(theirs.base().as_ptr().cast(), 4096, access) };
        assert_eq!(answer, -1, "it becomes writable later");
        // SAFETY: both are mapped and nobody else's.
        unsafe {
            assert_eq!(theirs.base().read(), 7);
            mapping.base().write(8);
            assert_eq!(theirs.base().read(), 8, "its owner still writes");
        }
    }

    #[test]
    fn where_the_kernel_may_refuse_pages_nothing_is_shared() {
        for mode in ["0", "1"] {
            assert_eq!(why_refused(mode), None);
        }
        for mode in ["2", "", "3"] {
            let why = why_refused(mode).unwrap();
            assert!(why.contains("vm.overcommit_memory"), "{why}");
        }
    }
}
