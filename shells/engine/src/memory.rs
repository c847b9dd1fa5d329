//! Memory of the program as segments.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use polyrail_control::codec::SegmentKind;
use polyrail_transport::memory::{Access, Region, TrustDomain};

use crate::descriptors;
use crate::engine::Engine;
use crate::error::RegisterError;
use crate::post::Command;
use crate::segments::{Segment, SegmentId};

impl Engine {
    /// Allocates memory and registers it as a segment. What peers may use can be mapped by those on the same host;
    /// so it is also shared with children of this process, while they live and have not executed another program. Its
    /// pages are not to be given back to the kernel by `madvise`: disks may go on with the old ones.
    ///
    /// Example: [guide](crate::guide#memory).
    pub fn allocate(
        &self,
        name: &str,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        self.allocate_in(TrustDomain::COMMON, name, bytes, access)
    }

    /// The same, with a page behind each address before anybody can know of it: memory that is not there ends the process now
    /// and not in the middle of a transfer, and the first transfers are as fast as all others.
    ///
    /// Example: [guide](crate::guide#memory).
    pub fn allocate_touched(
        &self,
        name: &str,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        self.add_allocated(TrustDomain::COMMON, name, bytes, access, touch)
    }

    pub(crate) fn allocate_in(
        &self,
        domain: TrustDomain,
        name: &str,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        self.add_allocated(domain, name, bytes, access, |_| Ok(()))
    }

    fn add_allocated(
        &self,
        domain: TrustDomain,
        name: &str,
        bytes: u64,
        access: Access,
        prepare: impl FnOnce(&Region) -> io::Result<()>,
    ) -> Result<SegmentId, RegisterError> {
        if !self.inner.is_ours() {
            return Err(RegisterError::Forked);
        }
        check_segment(name, bytes)?;
        let region = Region::allocate(bytes, access)
            .and_then(|region| prepare(&region).map(|()| region))
            .map_err(|source| RegisterError::System { bytes, source })?;
        region.file().map_or(Ok(()), descriptors::check)?;
        self.add_region(name, region, domain)
    }

    /// Registers memory of the program as a segment: the host's, or a GPU's, as CUDA's driver says of the address. Without
    /// a driver all is taken for the host's.
    ///
    /// # Safety
    ///
    /// The range is mapped (or allocated on a GPU), and readable and writable, until [`Self::unregister`] has returned or the engine
    /// has ended. The program accepts that the engine, and peers as far as `access` allows, read and write
    /// it meanwhile.
    ///
    /// Example: [guide](crate::guide#memory).
    pub unsafe fn register(
        &self,
        name: &str,
        base: NonNull<u8>,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        // SAFETY: the caller's promise.
        unsafe { self.register_in(TrustDomain::COMMON, name, base, bytes, access) }
    }

    /// # Safety
    ///
    /// That of [`Self::register`].
    pub(crate) unsafe fn register_in(
        &self,
        domain: TrustDomain,
        name: &str,
        base: NonNull<u8>,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        if !self.inner.is_ours() {
            return Err(RegisterError::Forked);
        }
        check_segment(name, bytes)?;
        // SAFETY: the caller promises the same for memory of GPUs.
        let on_gpu = unsafe { self.region_on_gpu(base.as_ptr() as u64, bytes, access) }?;
        if let Some(region) = on_gpu {
            return self.add_region(name, region, domain);
        }
        // SAFETY: the caller promises what `Region::new` asks for; `unregister` revokes the region before
        // it returns.
        let region = unsafe { Region::new(base, bytes, access, None) }
            .map_err(|source| RegisterError::System { bytes, source })?;
        self.add_region(name, region, domain)
    }

    /// Registers a region as a segment, so that peers find in it from the start what the program has put there.
    ///
    /// Example: [guide](crate::guide#memory).
    pub fn register_region(&self, name: &str, region: Region) -> Result<SegmentId, RegisterError> {
        self.register_region_in(TrustDomain::COMMON, name, region)
    }

    pub(crate) fn register_region_in(
        &self,
        domain: TrustDomain,
        name: &str,
        region: Region,
    ) -> Result<SegmentId, RegisterError> {
        check_segment(name, region.bytes())?;
        self.add_region(name, region, domain)
    }

    fn add_region(
        &self,
        name: &str,
        region: Region,
        domain: TrustDomain,
    ) -> Result<SegmentId, RegisterError> {
        let on = region.device().map(|device| device.ordinal());
        let encrypted = self.inner.config.security.is_encrypted(name);
        let domain = match encrypted {
            true => domain.encrypted(),
            false => domain,
        };
        match on {
            Some(_) if encrypted => Err(RegisterError::NotEncrypted { name: name.into() }),
            Some(_) if domain != TrustDomain::COMMON => Err(RegisterError::NotInDomain),
            Some(ordinal) => self.add_device_memory(name, region, ordinal),
            None => self.add_memory(name, region, SegmentKind::Memory, domain),
        }
    }

    /// Makes memory a segment, whatever its name.
    pub(crate) fn add_memory(
        &self,
        name: &str,
        region: Region,
        kind: SegmentKind,
        domain: TrustDomain,
    ) -> Result<SegmentId, RegisterError> {
        let segments = &self.inner.segments;
        let id = segments.add_local(name, region, kind, Some(domain))?;
        self.attach_local(id);
        Ok(id)
    }

    /// Takes a segment back. When it has returned without an error, nothing touches the memory any more: what
    /// peers still do on it fails on their side.
    ///
    /// [`RegisterError::Unprovable`]: a device, or a peer on this host, may still touch the memory. It is no segment any more, its
    /// name is free, and [`Self::segment_bytes`] still lists it; ask again until it succeeds.
    ///
    /// Example: [guide](crate::guide#memory).
    pub fn unregister(&self, segment: SegmentId) -> Result<(), RegisterError> {
        if !self.inner.is_ours() {
            return Err(RegisterError::Forked);
        }
        if segment == self.inner.plans.scratch {
            return Err(RegisterError::Stale { segment });
        }
        if self.inner.segments.is_file(segment) {
            return self.close_file(segment);
        }
        if let Some(taken) = self.inner.segments.take_back_kept(segment) {
            return taken;
        }
        let (local, plans) = {
            let has_ended = self.inner.ending.is_over();
            self.inner.segments.remove_local(segment, has_ended)?
        };
        let is_free = local.region.revoke();
        self.retire_plans(plans);
        self.inner
            .workers
            .tell(|| Command::DetachLocal(segment.segment_ref()));
        if local.region.device().is_some() {
            self.inner
                .workers
                .tell(|| Command::DetachRemote(segment.segment_ref()));
        }
        self.inner.segments.take_back(segment, local, is_free)
    }

    /// The memory of a local segment; `None`: there is no such segment (any more).
    ///
    /// Example: [guide](crate::guide#memory).
    pub fn region(&self, segment: SegmentId) -> Option<Arc<Region>> {
        if !self.inner.is_ours() {
            return None;
        }
        self.inner
            .segments
            .local(segment)
            .map(|local| local.region.clone())
    }

    /// The local segment of this name.
    ///
    /// Example: [guide](crate::guide#memory).
    pub fn local_segment(&self, name: &str) -> Option<SegmentId> {
        if !self.inner.is_ours() {
            return None;
        }
        self.inner.segments.by_name(name)
    }

    /// The size of a segment, on either side; also of one that [`Self::unregister`] cannot prove to be free.
    ///
    /// Example: [guide](crate::guide#memory).
    pub fn segment_bytes(&self, segment: SegmentId) -> Option<u64> {
        if !self.inner.is_ours() {
            return None;
        }
        let segments = &self.inner.segments;
        let segment = segments.leads_to(segment).ok()?;
        match segments.get(segment) {
            Some(Segment::Local(local) | Segment::Device(local, _)) => Some(local.region.bytes()),
            Some(Segment::Remote(remote)) => Some(remote.descriptor.bytes),
            None => segments.kept(segment).map(|kept| kept.region.bytes()),
        }
    }

    pub(crate) fn attach_local(&self, id: SegmentId) {
        if let Some(region) = self.region(id) {
            self.inner
                .workers
                .tell(|| Command::AttachLocal(id.segment_ref(), region.clone()));
        }
    }
}

/// Puts a page behind each address of a region that nobody knows yet.
fn touch(region: &Region) -> io::Result<()> {
    /// A page is at least so long.
    const PAGE: usize = 4096;
    (0..region.bytes())
        .step_by(PAGE)
        .try_for_each(|offset| region.store(&[0], offset))
}

/// Whether a segment can have this name.
pub(crate) fn check_name(name: &str) -> Result<(), RegisterError> {
    let limit = polyrail_control::codec::NAME_BYTES_MAX;
    let is_bad = name.is_empty() || name.len() > limit || name.chars().any(char::is_control);
    // `HOST:PORT/NAME` is to be read in one way only.
    match is_bad || name.starts_with('/') {
        true => Err(RegisterError::BadName { name: name.into() }),
        false => Ok(()),
    }
}

pub(crate) fn check_segment(name: &str, bytes: u64) -> Result<(), RegisterError> {
    check_name(name)?;
    if bytes == 0 || bytes > isize::MAX as u64 {
        return Err(RegisterError::BadSize { bytes });
    }
    Ok(())
}
