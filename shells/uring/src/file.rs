//! A range of a file or block device, and how works on it are cut.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use polyrail_core::work::{Cause, Op};
use polyrail_transport::memory::{Access, RegionKey};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::durable::Durable;
use crate::turns::{Side, Turns};

/// No page is smaller.
const PAGE_BYTES: u32 = 4096;

/// Bytes of a file or block device that works may name.
#[derive(Debug)]
pub struct FileRange {
    cached: OwnedFd,
    direct: Option<Direct>,
    /// The file once more, for `fsync` alone: the kernel tells each open file description once of what it has lost, and whoever
    /// shares the others would be told in place of us: the program, and writes that are to be durable at once. `None`: it
    /// cannot be opened again.
    sync: Option<OwnedFd>,
    durable: Durable,
    /// First byte in the file.
    start: u64,
    bytes: u64,
    access: Access,
    key: RegionKey,
    device: u64,
    turns: Arc<Turns>,
    /// Where this process may write to, at most. The kernel would end it by a signal that tries to write behind that.
    size_max: u64,
}

/// The same file, past the page cache.
#[derive(Debug)]
struct Direct {
    fd: OwnedFd,
    /// What offsets and lengths are multiples of: whole pages at least.
    align: u64,
    memory_align: u64,
    /// The file system refused it after all.
    refused: AtomicBool,
}

/// Which bytes of a file a segment has, and what may be done to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileTerms {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes; `None`: from there to the end that the file has now. A range that ends behind that end lets a regular file
    /// grow: what is written there makes it longer, and what is not there yet cannot be read
    /// ([`Cause::EndOfFile`]).
    pub bytes: Option<u64>,
    /// Only reads; the file need not be opened for more.
    pub read_only: bool,
    /// All of it goes through the page cache: for a file that is likely to be there, or is read again soon.
    pub cached: bool,
}

/// Why a file cannot be a segment.
#[derive(Debug)]
pub enum RangeError {
    /// It is neither a regular file nor a block device.
    NoFile,
    /// There are no such bytes in it, and it may not grow: it is read only, or a device.
    Range {
        /// Its size.
        file_bytes: u64,
    },
    /// The range is empty, or ends where no file can.
    Size,
    /// It was not opened for what is asked: for reading, and also for writing unless the range is read only.
    Access,
    /// The system refused.
    System(io::Error),
}

impl<E: Into<io::Error>> From<E> for RangeError {
    fn from(error: E) -> Self {
        Self::System(error.into())
    }
}

/// What the kernel can be asked for at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) side: Side,
    pub(crate) bytes: u32,
}

impl FileRange {
    /// These bytes of an open file.
    pub fn new(file: File, terms: &FileTerms) -> Result<Self, RangeError> {
        let FileTerms {
            offset: start,
            bytes,
            read_only,
            cached,
        } = *terms;
        let stat = rustix::fs::fstat(&file)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
            return Err(RangeError::NoFile);
        }
        let flags = rustix::fs::fcntl_getfl(&file)?;
        let mode = flags & OFlags::ACCMODE;
        if mode == OFlags::WRONLY || (mode == OFlags::RDONLY && !read_only) {
            return Err(RangeError::Access);
        }
        let file = plain(file, flags)?;
        let (file_bytes, device) = match kind {
            FileType::BlockDevice => (device_bytes(&file)?, stat.st_rdev),
            _ => (stat.st_size as u64, stat.st_dev),
        };
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => file_bytes
                .checked_sub(start)
                .ok_or(RangeError::Range { file_bytes })?,
        };
        let end = start.checked_add(bytes);
        let end = end.filter(|end| bytes > 0 && *end <= i64::MAX as u64);
        let end = end.ok_or(RangeError::Size)?;
        if end > file_bytes && (read_only || kind == FileType::BlockDevice) {
            return Err(RangeError::Range { file_bytes });
        }
        let access = match read_only {
            true => Access::RemoteRead,
            false => Access::RemoteReadWrite,
        };
        let kept = flags & KEPT;
        let turns = Turns::of(&stat, kind == FileType::BlockDevice);
        // Before there is a descriptor that is told of what comes.
        let durable = Durable::new(turns.losses());
        Ok(Self {
            direct: (!cached).then(|| Direct::of(&file, kept)).flatten(),
            sync: reopen(&file, mode).ok(),
            durable,
            cached: file.into(),
            start,
            bytes,
            access,
            key: RegionKey::random()?,
            device,
            turns,
            size_max: match kind {
                FileType::BlockDevice => u64::MAX,
                _ => getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX),
            },
        })
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it may be written.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Its name.
    pub fn key(&self) -> RegionKey {
        self.key
    }

    /// The device that the file is on, or is, as `stat` numbers it.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Waits until what has been written is where a loss of power leaves it, with what is needed to find it again. An error
    /// means that bytes may be gone which requests have written. From then on each call fails with that one: those that wait
    /// meanwhile, and all later ones, also of other ranges of the file. A range that is made after that starts afresh.
    pub fn sync(&self) -> io::Result<()> {
        Ok(self.sync_by(|file| rustix::fs::fsync(file))?)
    }

    pub(crate) fn sync_by(
        &self,
        fsync: impl Fn(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let whole = || loop {
            match fsync(self.synced()) {
                Err(Errno::INTR) => {}
                answer => return answer,
            }
        };
        self.durable.sync(self.turns.losses(), whole)
    }

    /// The descriptor for `fsync`.
    pub(crate) fn synced(&self) -> BorrowedFd<'_> {
        self.sync.as_ref().unwrap_or(&self.cached).as_fd()
    }

    /// Why a work may not run here, if so.
    pub(crate) fn check(&self, op: Op, offset: u64, length: u32) -> Result<(), Cause> {
        let end = offset.checked_add(length.into());
        let end = end.filter(|end| *end <= self.bytes);
        match (end, op) {
            (None, _) => Err(Cause::RemoteAccess),
            (Some(_), Op::Write) if !self.access.allows_remote_write() => Err(Cause::RemoteAccess),
            (Some(end), Op::Write) if self.start + end > self.size_max => Err(Cause::NoSpace),
            (Some(_), _) => Ok(()),
        }
    }

    /// Whose turn it is to write.
    pub(crate) fn turns(&self) -> &Arc<Turns> {
        &self.turns
    }

    /// The first piece of `rest` bytes from `offset` on, whose memory starts at `address`. A read passes the cache by
    /// with as many whole pages as it can, after what is before them; a write does with whole pages alone, because
    /// those at its edges would have to wait for the others.
    pub(crate) fn piece(&self, op: Op, offset: u64, address: usize, rest: u32) -> Piece {
        let cached = |bytes| Piece {
            side: Side::Cached,
            bytes,
        };
        let Some(direct) = self.direct.as_ref().filter(|d| !d.refused.load(Relaxed)) else {
            return cached(rest);
        };
        let offset = self.start + offset;
        let before = offset.next_multiple_of(direct.align) - offset;
        let whole = u64::from(rest).saturating_sub(before) / direct.align * direct.align;
        let is_aligned = (address as u64 + before).is_multiple_of(direct.memory_align);
        let has_edges = whole != u64::from(rest);
        if whole == 0 || !is_aligned || (op == Op::Write && has_edges) {
            return cached(rest);
        }
        match before {
            0 => Piece {
                side: Side::Direct,
                bytes: whole as u32,
            },
            before => cached(before as u32),
        }
    }

    /// The open file for one side, and where in it `offset` of the range is.
    pub(crate) fn place(&self, side: Side, offset: u64) -> (BorrowedFd<'_>, u64) {
        let direct = self.direct.as_ref().filter(|_| side == Side::Direct);
        let fd = direct.map_or(&self.cached, |direct| &direct.fd);
        (fd.as_fd(), self.start + offset)
    }

    /// A direct piece was not understood: from now on all go through the cache.
    pub(crate) fn refuse_direct(&self) {
        if let Some(direct) = &self.direct
            && !direct.refused.swap(true, Relaxed)
        {
            log::warn!("a file refuses direct reads or writes and goes through the page cache");
        }
    }
}

/// The same file without flags of whoever opened it by which writes would go to its end wherever they are meant for, pieces
/// that are no whole blocks would be refused, or reads would not wait for the disk.
fn plain(file: File, flags: OFlags) -> io::Result<File> {
    let unwanted = OFlags::APPEND | OFlags::DIRECT | OFlags::NONBLOCK;
    if !flags.intersects(unwanted) {
        return Ok(file);
    }
    Ok(reopen(&file, flags & KEPT)?.into())
}

/// What the program opened a file for: writes that are to be durable at once stay so.
const KEPT: OFlags = OFlags::ACCMODE.union(OFlags::SYNC).union(OFlags::DSYNC);

/// Another open file description of the same file.
fn reopen(file: &File, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
}

impl Direct {
    /// `None`: the file cannot be opened so, or only with rules that nobody can keep.
    fn of(file: &File, kept: OFlags) -> Option<Self> {
        let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
        let (memory_align, align) = match stat.stx_mask & StatxFlags::DIOALIGN.bits() {
            // Kernels before 6.1 do not say; every device is happy with pages.
            0 => (PAGE_BYTES, PAGE_BYTES),
            _ => (stat.stx_dio_mem_align, stat.stx_dio_offset_align),
        };
        if memory_align == 0 || align == 0 || !align.max(PAGE_BYTES).is_multiple_of(align) {
            return None;
        }
        let fd = reopen(file, kept | OFlags::DIRECT)
            .inspect_err(|error| log::debug!("a file goes through the page cache: {error}"));
        Some(Self {
            fd: fd.ok()?,
            align: align.max(PAGE_BYTES).into(),
            memory_align: memory_align.into(),
            refused: AtomicBool::new(false),
        })
    }
}

/// The size of a block device.
fn device_bytes(file: &File) -> io::Result<u64> {
    use std::io::{Seek, SeekFrom};
    let mut file = file.try_clone()?;
    let before = file.stream_position()?;
    let bytes = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(before))?;
    Ok(bytes)
}

/// What an error of the kernel means for a work.
pub(crate) fn cause_of(error: Errno) -> Cause {
    match error {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Cause::NoSpace,
        Errno::BADF | Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY => {
            Cause::RemoteAccess
        }
        Errno::FAULT => Cause::LocalProtection,
        _ => Cause::MediaError,
    }
}

#[cfg(test)]
impl FileRange {
    /// Of something that is no file, to see how it fails.
    pub(crate) fn of(file: File, bytes: u64) -> Self {
        Self {
            cached: file.into(),
            direct: None,
            sync: None,
            durable: Durable::default(),
            start: 0,
            bytes,
            access: Access::RemoteReadWrite,
            key: RegionKey::random().unwrap(),
            device: 0,
            turns: Arc::default(),
            size_max: u64::MAX,
        }
    }

    /// The same, with another that is taken for it past the page cache, from and to addresses that are aligned so.
    pub(crate) fn with_direct(self, direct: File, memory_align: u64) -> Self {
        let direct = Direct {
            fd: direct.into(),
            align: PAGE_BYTES.into(),
            memory_align,
            refused: AtomicBool::new(false),
        };
        Self {
            direct: Some(direct),
            ..self
        }
    }
}

#[cfg(test)]
mod tests;
