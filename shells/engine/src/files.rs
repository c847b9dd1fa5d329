//! Files and block devices of this host as segments. To core, each disk is a peer that is always heard, with a rail for
//! each way to ask the kernel. A GPU of this host is one too: see `gpus`.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use polyrail_control::codec::{SegmentDescriptor, SegmentKind};
use polyrail_core::plan::{PLAN_TRANSPORTS_MAX, Plan, PlanTransport};
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::slice::SLICE_BYTES;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::transport::MemoryKind;
use polyrail_core::units::{PeerId, Rate, SegmentRef, TransportId};
use polyrail_core::work::Place;
use polyrail_transport::memory::{Access, RegionKey};
use polyrail_transport::numbered::Numbered;
use polyrail_transport::{RailAddress, RemoteRegion, SessionId};
use polyrail_uring::{FileRange, FileTable, FileTerms, RangeError};
use rustix::fs::{MemfdFlags, major, memfd_create, minor};

use crate::descriptors;
use crate::engine::Engine;
use crate::error::{FileError, Limit, RegisterError};
use crate::lock::lock;
use crate::memory::check_name;
use crate::peers::Numbers;
use crate::post::Command;
use crate::segments::SegmentId;

/// What is assumed of a disk that has not been used yet.
const DISK: EstimateConfig = EstimateConfig {
    rate_nominal: Rate::from_bytes_per_sec(2_000_000_000),
    delay_base: Duration::from_micros(100),
    tier: 0,
    // A disk does more for a long read or write than for as many bytes in short ones.
    slice_span: Duration::from_millis(4),
    batch_span: Duration::ZERO,
};

/// The files of an engine, and the disks that they are on.
#[derive(Debug, Default)]
pub(crate) struct Files {
    ranges: RwLock<Numbered<RegionKey, Arc<FileRange>>>,
    disks: Mutex<Vec<Disk>>,
    /// Held while a disk is made known, so that this does not happen twice.
    pub(crate) adding: Mutex<()>,
    /// It has been said that io_uring is forbidden.
    warned: AtomicBool,
}

/// What a disk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Medium {
    /// A block device, by its number.
    Block(u64),
    /// A GPU, by its number.
    Gpu(u32),
}

/// A disk, or a GPU, as core knows it.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    pub(crate) medium: Medium,
    pub(crate) peer: PeerId,
    _numbers: Arc<Numbers>,
    pub(crate) transports: heapless::Vec<PlanTransport, PLAN_TRANSPORTS_MAX>,
    /// What probes write to: memory, because they may not touch the program's files.
    scratch: SegmentId,
}

impl Files {
    pub(crate) fn disk(&self, is_it: impl Fn(&Disk) -> bool) -> Option<Disk> {
        lock(&self.disks).iter().find(|disk| is_it(disk)).cloned()
    }

    fn add(&self, range: FileRange) -> Arc<FileRange> {
        let range = Arc::new(range);
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        ranges.insert(range.key(), range.clone());
        range
    }

    fn remove(&self, key: &RegionKey) {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        ranges.remove(key);
    }
}

impl FileTable for Files {
    fn find(&self, key: &RegionKey) -> Option<Arc<FileRange>> {
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        ranges.get(key).cloned()
    }
}

impl Engine {
    /// Makes a file or block device that exists a segment: the remote one of requests, whose memory is here. A write
    /// has completed when it is in the file; [`Self::sync_file`] makes it survive a loss of power.
    ///
    /// Whole pages of a file go past the page cache where memory is aligned like them, unless the terms say otherwise. So
    /// a file is best read and written in such pieces, and not at the same time by other means.
    ///
    /// Example: [guide](crate::guide#files).
    pub fn open_file(&self, path: &Path, terms: &FileTerms) -> Result<SegmentId, FileError> {
        let mut options = File::options();
        let file = options.read(true).write(!terms.read_only).open(path);
        let file = file.map_err(|source| FileError::Open {
            path: path.into(),
            source,
        })?;
        self.register_file(file, terms)
    }

    /// The same for a file that is open: for reading, and also for writing unless the terms are read only.
    ///
    /// Example: [guide](crate::guide#files).
    pub fn register_file(&self, file: File, terms: &FileTerms) -> Result<SegmentId, FileError> {
        let inner = &self.inner;
        if !inner.is_ours() {
            return Err(FileError::Forked);
        }
        if self.is_closing() {
            return Err(FileError::ShutDown);
        }
        descriptors::check(file.as_fd())?;
        let range = FileRange::new(file, terms);
        let range = range.map_err(FileError::from_range)?;
        let disk = self.disk_of(range.device())?;
        self.add_file(disk.peer, range)
    }

    /// Lets peers open a file's segment under a name, and use it so far as both `access` and its own terms allow. What
    /// they read and write is staged through memory here, chunk by chunk.
    ///
    /// Example: [guide](crate::guide#files).
    pub fn offer_file(
        &self,
        segment: SegmentId,
        name: &str,
        access: Access,
    ) -> Result<(), FileError> {
        let inner = &self.inner;
        if !inner.is_ours() {
            return Err(FileError::Forked);
        }
        if self.is_closing() {
            return Err(FileError::ShutDown);
        }
        check_name(name).map_err(FileError::Name)?;
        if inner.config.security.is_encrypted(name) {
            let name = name.into();
            return Err(FileError::Name(RegisterError::NotEncrypted { name }));
        }
        let own = inner.segments.remote(segment);
        let own = own.filter(|own| own.is_file_here());
        let own = own.ok_or(FileError::Stale { segment })?;
        let access = match own.descriptor.access {
            Access::RemoteRead if access == Access::RemoteReadWrite => Access::RemoteRead,
            _ => access,
        };
        self.stager().map_err(|source| FileError::System {
            what: "start to stage",
            source,
        })?;
        inner
            .segments
            .offer(segment, name, access)
            .map_err(FileError::Name)
    }

    /// Waits until what requests that have completed wrote to a file is on the disk, so that it survives a loss of
    /// power. Blocks. If the disk failed meanwhile to store what it had taken, this fails, and so does every later call for
    /// this segment, because bytes of any request on it may be gone. To go on, write them to a segment made anew.
    ///
    /// Example: [guide](crate::guide#files).
    pub fn sync_file(&self, segment: SegmentId) -> Result<(), FileError> {
        let inner = &self.inner;
        if !inner.is_ours() {
            return Err(FileError::Forked);
        }
        let file = inner.segments.remote(segment);
        let range = file.and_then(|file| inner.files.find(&file.descriptor.key));
        let range = range.ok_or(FileError::Stale { segment })?;
        range.sync().map_err(|source| FileError::System {
            what: "put a file on the disk",
            source,
        })
    }

    /// Makes bytes of a file known to all workers.
    fn add_file(&self, disk: PeerId, range: FileRange) -> Result<SegmentId, FileError> {
        let inner = &self.inner;
        let range = inner.files.add(range);
        let region = RemoteRegion {
            key: range.key(),
            bytes: range.bytes(),
        };
        let descriptor = SegmentDescriptor {
            name: String::new(),
            generation: 0,
            bytes: range.bytes(),
            key: range.key(),
            access: range.access(),
            memory: MemoryKind::Host,
            kind: SegmentKind::Memory,
            numa_node: None,
        };
        let Ok(id) = inner.segments.add_file(disk, descriptor) else {
            inner.files.remove(&range.key());
            return Err(FileError::Full(inner.segments.limit()));
        };
        self.inner
            .workers
            .tell(|| Command::AttachRemote(id.segment_ref(), region.clone()));
        Ok(id)
    }

    /// Lets go of a file, unless requests use it.
    pub(crate) fn close_file(&self, segment: SegmentId) -> Result<(), RegisterError> {
        let (file, plans) = self.inner.segments.remove_file(segment)?;
        self.retire_plans(plans);
        self.inner.files.remove(&file.descriptor.key);
        self.inner
            .workers
            .tell(|| Command::DetachRemote(segment.segment_ref()));
        Ok(())
    }

    /// The disk that a file is on, made known if it is not.
    fn disk_of(&self, device: u64) -> Result<Disk, FileError> {
        let files = &self.inner.files;
        let _adding = lock(&files.adding);
        let medium = Medium::Block(device);
        let known = files.disk(|disk| disk.medium == medium);
        known.map_or_else(|| self.add_block_device(device), Ok)
    }

    fn add_block_device(&self, device: u64) -> Result<Disk, FileError> {
        let ways = self.inner.transports.of_files();
        self.warn_of_missing();
        let known = (Medium::Block(device), &disk_name(device)[..], DISK);
        self.add_disk(known, &ways, |peer| self.add_file(peer, scratch()?))
    }

    /// Makes a disk, or a GPU, known to core under its name: as one that these transports lead to, whose scratch `scratch`
    /// makes. Only while nobody else does the same.
    pub(crate) fn add_disk<E: From<Limit>>(
        &self,
        (medium, name, estimate): (Medium, &str, EstimateConfig),
        ways: &[TransportId],
        scratch: impl FnOnce(PeerId) -> Result<SegmentId, E>,
    ) -> Result<Disk, E> {
        let inner = &self.inner;
        let named = |way: &TransportId| (*way, inner.transports.name(*way));
        let ways: Vec<_> = ways.iter().map(named).collect();
        let numbers = lock(&inner.sessions.peers).take_numbers()?;
        let peer = numbers.peer;
        let installed = lock(&inner.sessions.peers).install_disk(
            &inner.fabric,
            &numbers,
            name,
            estimate,
            &ways,
        );
        let transports = installed?;
        let own: Arc<[u8]> = match medium {
            Medium::Block(_) => Arc::default(),
            Medium::Gpu(ordinal) => ordinal.to_le_bytes().as_slice().into(),
        };
        let disk = Disk {
            medium,
            peer,
            _numbers: Arc::new(numbers),
            transports,
            scratch: scratch(peer)?,
        };
        for PlanTransport { transport, rails } in &disk.transports {
            for rail in rails {
                let address = || RailAddress {
                    own: own.clone(),
                    ..nowhere(*transport)
                };
                self.inner
                    .workers
                    .tell(|| Command::AttachRail(rail.rail, address()));
            }
        }
        self.inner.workers.tell(|| Command::AttachDisk(peer));
        lock(&inner.files.disks).push(disk.clone());
        Ok(disk)
    }

    /// Says once why the best way to read and write files is not taken.
    fn warn_of_missing(&self) {
        let missing = self.inner.transports.status();
        let why = missing.into_iter().find_map(|status| match status.name {
            "uring" => status.missing,
            _ => None,
        });
        if let Some(why) = why
            && !self.inner.files.warned.swap(true, Relaxed)
        {
            log::warn!("io_uring is not to be had ({why}): files are read and written by pread");
        }
    }

    /// How bytes move between a segment and a file; `None`: the peer is no disk.
    pub(crate) fn plan_to_disk(
        &self,
        peer: PeerId,
        (local, remote): (SegmentId, SegmentId),
    ) -> Option<Plan> {
        let inner = &self.inner;
        let disk = inner.files.disk(|disk| disk.peer == peer)?;
        let place = |segment: SegmentRef| Place { segment, offset: 0 };
        Some(Plan {
            peer,
            local: local.segment_ref(),
            remote: remote.segment_ref(),
            transports: disk.transports,
            scratch_local: place(inner.plans.scratch.segment_ref()),
            scratch_remote: place(disk.scratch.segment_ref()),
            scratch_bytes: SLICE_BYTES,
            path: None,
        })
    }
}

impl FileError {
    fn from_range(error: RangeError) -> Self {
        match error {
            RangeError::NoFile => Self::NoFile,
            RangeError::Range { file_bytes } => Self::OutOfRange { file_bytes },
            RangeError::Size => Self::BadSize,
            RangeError::Access => Self::Access,
            RangeError::System(source) => Self::System {
                what: "look at a file",
                source,
            },
        }
    }
}

/// The address of a rail that leads to a disk: only the transport means something.
fn nowhere(transport: TransportId) -> RailAddress {
    RailAddress {
        transport,
        local: None,
        own: Arc::default(),
        remote: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        session: SessionId([0; 16]),
        secret: None,
    }
}

/// Memory that looks like a file.
fn scratch() -> Result<FileRange, FileError> {
    let failed = |source| FileError::System {
        what: "get memory for probes",
        source,
    };
    let memory = memfd_create("polyrail-scratch", MemfdFlags::CLOEXEC);
    let mut file = File::from(memory.map_err(|error| failed(error.into()))?);
    file.write_all(&[0; SLICE_BYTES as usize]).map_err(failed)?;
    FileRange::new(file, &FileTerms::default()).map_err(FileError::from_range)
}

/// What the kernel calls a block device. File systems without one have a number only.
fn disk_name(device: u64) -> String {
    let number = format!("{}:{}", major(device), minor(device));
    let link = std::fs::read_link(Path::new("/sys/dev/block").join(&number));
    let name = |link: PathBuf| Some(link.file_name()?.to_str()?.to_owned());
    link.ok().and_then(name).unwrap_or(number)
}

/// The disks that a worker knows. A disk has no heart that could stop: as long as this process lives, the kernel
/// answers for it.
#[derive(Debug)]
pub(crate) struct AttachedDisks {
    peers: Vec<PeerId>,
    /// Who is not heard for so long is silent.
    silence: Duration,
    heard_at: Instant,
}

impl AttachedDisks {
    pub(crate) fn new(silence: Duration) -> Self {
        Self {
            peers: Vec::new(),
            silence,
            heard_at: Instant::ZERO,
        }
    }

    pub(crate) fn add(&mut self, peer: PeerId) {
        self.peers.push(peer);
    }

    pub(crate) fn has(&self, peer: PeerId) -> bool {
        self.peers.contains(&peer)
    }

    /// Those that are to be heard now: well before core misses one, and whenever it is about to look.
    pub(crate) fn heard(&mut self, now: Instant) -> &[PeerId] {
        let interval = Duration::from_nanos(self.silence.as_nanos() / 2);
        if self.peers.is_empty() || now < self.heard_at + interval {
            return &[];
        }
        self.heard_at = now;
        &self.peers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_heard_before_they_are_missed() {
        let silence = Duration::from_millis(1_200);
        let mut disks = AttachedDisks::new(silence);
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        assert!(disks.heard(at(5_000)).is_empty());
        disks.add(PeerId(3));
        assert!(disks.has(PeerId(3)) && !disks.has(PeerId(4)));
        // (ms, heard)
        let cases = [
            (5_001, true),
            (5_002, false),
            (5_600, false),
            (5_601, true),
            (9_000, true),
        ];
        for (ms, heard) in cases {
            assert_eq!(!disks.heard(at(ms)).is_empty(), heard, "{ms}");
        }
    }
}
