//! Memory from the kernel: of this process alone, or in a file without a name that other processes can map.
//!
//! # Safety
//!
//! A [`Mapping`] is a raw range; who uses it keeps to the contract of [`memory`](crate::memory). A file of memory
//! that was sealed against shrinking stays as long as it was mapped, whatever a peer does to it: so touching the
//! range never raises a signal.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Once;

use rustix::fs::{MemfdFlags, SealFlags};
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

/// What makes a file of memory safe to map for those who did not make it.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

impl Mapping {
    /// Zeroed memory of this process alone.
    pub fn private(bytes: u64) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::map(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, None)
    }

    /// Zeroed memory in a new file, on huge pages if the machine has set enough of them aside and they divide it.
    pub fn shared(bytes: u64) -> io::Result<(Self, OwnedFd)> {
        Self::on_huge_pages(bytes).or_else(|why| {
            static SAID: Once = Once::new();
            SAID.call_once(|| log::info!("shared memory without huge pages: {why}"));
            let file = rustix::fs::memfd_create("polyrail", memfd_flags())?;
            Self::filling(bytes, file, libc::MAP_NORESERVE)
        })
    }

    fn on_huge_pages(bytes: u64) -> io::Result<(Self, OwnedFd)> {
        let flags = memfd_flags() | MemfdFlags::HUGETLB;
        let file = rustix::fs::memfd_create("polyrail", flags)?;
        let page = rustix::fs::fstat(&file)?.st_blksize as u64;
        if !bytes.is_multiple_of(page.max(1)) {
            return Err(io::Error::other(format!(
                "{bytes} bytes are not a multiple of {page}"
            )));
        }
        // Pages are reserved here, or the first touch of one that is not there would raise a signal.
        Self::filling(bytes, file, 0)
    }

    /// Maps a new file that becomes so large.
    fn filling(bytes: u64, file: OwnedFd, flags: libc::c_int) -> io::Result<(Self, OwnedFd)> {
        let bytes_max = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        if bytes > bytes_max {
            // The kernel would end the process by a signal.
            return Err(io::Error::other(format!(
                "memory that is shared is a file, and files may have {bytes_max} bytes here (ulimit -f), not {bytes}"
            )));
        }
        rustix::fs::ftruncate(&file, checked(bytes)? as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let mapping = Self::map(bytes, access, libc::MAP_SHARED | flags, Some(file.as_fd()))?;
        Ok((mapping, file))
    }

    /// Maps `bytes` of a file of memory that somebody else made. An error if it is not that, or could become
    /// shorter.
    pub fn of_peer(file: BorrowedFd<'_>, bytes: u64, writable: bool) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(file)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::other(
                "its memory is not sealed: it could shrink",
            ));
        }
        let there = rustix::fs::fstat(file)?.st_size;
        if u64::try_from(there).is_ok_and(|there| there < bytes) {
            return Err(io::Error::other(format!(
                "its memory has {there} bytes, not {bytes}"
            )));
        }
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

fn memfd_flags() -> MemfdFlags {
    MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING
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
    use super::*;

    #[test]
    fn memory_of_a_peer_is_mapped_only_if_it_cannot_shrink() {
        let (mapping, file) = Mapping::shared(8192).unwrap();
        assert!(rustix::fs::ftruncate(&file, 4096).is_err(), "sealed");
        let theirs = Mapping::of_peer(file.as_fd(), 8192, true).unwrap();
        // SAFETY: both are mapped and nobody else's.
        unsafe {
            mapping.base().add(8191).write(7);
            assert_eq!(theirs.base().add(8191).read(), 7);
        }
        let open = rustix::fs::memfd_create("open", memfd_flags()).unwrap();
        rustix::fs::ftruncate(&open, 8192).unwrap();
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
    fn memory_is_shared_although_there_are_not_so_many_huge_pages() {
        // As many are set aside nowhere; of the others none is there before it is touched.
        const BYTES: u64 = 1 << 40;
        assert!(Mapping::on_huge_pages(BYTES).is_err());
        let (mapping, file) = Mapping::shared(BYTES).unwrap();
        let theirs = Mapping::of_peer(file.as_fd(), BYTES, true).unwrap();
        // SAFETY: both are mapped and nobody else's.
        unsafe {
            mapping.base().add(BYTES as usize - 1).write(7);
            assert_eq!(theirs.base().add(BYTES as usize - 1).read(), 7);
        }
    }

    #[test]
    fn memory_that_is_only_readable_there_cannot_be_mapped_for_writing() {
        use std::os::fd::AsRawFd;
        let (_mapping, file) = Mapping::shared(4096).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let readable = std::fs::File::open(path).unwrap();
        assert!(Mapping::of_peer(readable.as_fd(), 4096, false).is_ok());
        assert!(Mapping::of_peer(readable.as_fd(), 4096, true).is_err());
    }
}
