//! Segments: memory and files, here and at peers.

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::ptr::{NonNull, null_mut};

use polyrail::cuda::CudaError;
use polyrail::{
    Access, CloseError, Engine, FileError, FileTerms, OpenError, OpenTerms, RegisterError,
    SegmentId,
};

use crate::engine::{self, polyrail_engine};
use crate::failure::{Failure, guard, polyrail_error};
use crate::handle::{Kind, Table};
use crate::sized::{self, Structure};
use crate::text;
use crate::words::*;

/// A segment of an engine: memory or a file, here or at a peer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_segment {
    /// Its name; 0: none. Means nothing to programs.
    pub bits: u64,
}

/// Memory of this process: the local one of requests.
pub const POLYRAIL_SEGMENT_MEMORY: u32 = 0;
/// A file or block device of this host: the remote one of requests.
pub const POLYRAIL_SEGMENT_FILE: u32 = 1;
/// Something of a peer: the remote one of requests.
pub const POLYRAIL_SEGMENT_REMOTE: u32 = 2;

/// What is known of a segment.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_segment_info {
    /// `sizeof(polyrail_segment_info)`.
    pub size: u32,
    /// `POLYRAIL_SEGMENT_MEMORY`, `_FILE` or `_REMOTE`.
    pub kind: u32,
    /// The first byte, if it is memory of this process or its GPUs; else null.
    pub base: *mut c_void,
    /// Bytes.
    pub bytes: u64,
}

// SAFETY: `repr(C)`, begins with its size, numbers and a pointer.
unsafe impl Structure for polyrail_segment_info {
    const DEFAULT: Self = Self {
        size: 0,
        kind: POLYRAIL_SEGMENT_MEMORY,
        base: null_mut(),
        bytes: 0,
    };
}

/// Which bytes of a file are a segment, and how.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_file_terms {
    /// `sizeof(polyrail_file_terms)`.
    pub size: u32,
    /// 1: it is only read; 0: it is written too.
    pub read_only: u32,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes; 0: from there to the end that the file has now. A range that ends behind it lets a regular file grow.
    pub bytes: u64,
    /// 1: all of it goes through the page cache; 0: it goes past it where it can.
    pub cached: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_file_terms {
    const DEFAULT: Self = Self {
        size: 0,
        read_only: 0,
        offset: 0,
        bytes: 0,
        cached: 0,
        reserved: 0,
    };
}

/// How a segment of a peer is opened, beyond its name.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_open_terms {
    /// `sizeof(polyrail_open_terms)`.
    pub size: u32,
    /// 1: it follows its name. When its peer is lost and a process serves it at its address again, it leads there, and so do
    /// prepared transfers that name it. While the peer is away, submissions are `POLYRAIL_ERROR_PEER_LOST`. 0: it does not.
    pub standing: u32,
    /// How long to try again until the peer is there and has the segment; 0: one try.
    pub within_ns: u64,
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_open_terms {
    const DEFAULT: Self = Self {
        size: 0,
        standing: 0,
        within_ns: 0,
    };
}

/// A segment, and whose it is.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    engine: polyrail_engine,
    id: SegmentId,
    kind: u32,
}

pub(crate) static SEGMENTS: Table<Entry> = Table::new(Kind::Segment);

/// The segment that a handle names, with its engine.
pub(crate) fn get(segment: polyrail_segment) -> Result<(Engine, SegmentId), Failure> {
    let entry = SEGMENTS.get(segment.bits)?;
    Ok((engine::get(entry.engine)?, entry.id))
}

/// The same, for a segment that has to be of this engine.
pub(crate) fn get_of(
    engine: polyrail_engine,
    what: &str,
    segment: polyrail_segment,
) -> Result<SegmentId, Failure> {
    let entry = SEGMENTS.get(segment.bits)?;
    if entry.engine.bits != engine.bits {
        let text = format!(
            "the {what} segment {:#x} is of another engine than this one",
            segment.bits
        );
        return Err(Failure::new(POLYRAIL_ERROR_HANDLE, text));
    }
    Ok(entry.id)
}

/// Frees the handles of an engine that has ended, and takes back its memory.
pub(crate) fn free_all_of(engine: polyrail_engine, ended: &Engine) {
    for entry in SEGMENTS.take_all(|entry| entry.engine.bits == engine.bits) {
        if entry.kind == POLYRAIL_SEGMENT_MEMORY
            && let Some(region) = ended.region(entry.id)
        {
            region.revoke();
        }
    }
}

/// Gives a new segment its handle. Without one it would be lost, so it is taken back then.
fn add(
    handle: polyrail_engine,
    owner: &Engine,
    id: SegmentId,
    kind: u32,
    segment: &mut polyrail_segment,
) -> Result<(), Failure> {
    let entry = Entry {
        engine: handle,
        id,
        kind,
    };
    let added = SEGMENTS.add(entry).inspect_err(|_| match kind {
        POLYRAIL_SEGMENT_REMOTE => drop(owner.close_segment_later(id)),
        _ => drop(owner.unregister(id)),
    });
    segment.bits = added?;
    Ok(())
}

fn access(number: u32) -> Result<Access, Failure> {
    let known = [
        (POLYRAIL_ACCESS_LOCAL, Access::Local),
        (POLYRAIL_ACCESS_REMOTE_READ, Access::RemoteRead),
        (POLYRAIL_ACCESS_REMOTE_READ_WRITE, Access::RemoteReadWrite),
    ];
    choose("access", number, &known)
}

impl From<RegisterError> for Failure {
    fn from(error: RegisterError) -> Self {
        let code = match &error {
            RegisterError::NameTaken { .. } | RegisterError::BadName { .. } => POLYRAIL_ERROR_NAME,
            RegisterError::BadSize { .. } => POLYRAIL_ERROR_RANGE,
            RegisterError::Full { .. } => POLYRAIL_ERROR_FULL,
            RegisterError::Stale { .. } => POLYRAIL_ERROR_HANDLE,
            RegisterError::InUse { .. } => POLYRAIL_ERROR_IN_USE,
            RegisterError::Unprovable { .. } => POLYRAIL_ERROR_UNPROVABLE,
            RegisterError::NoDomain { .. } => POLYRAIL_ERROR_NOT_FOUND,
            RegisterError::NotInDomain | RegisterError::NotEncrypted { .. } => {
                POLYRAIL_ERROR_ARGUMENT
            }
            RegisterError::Forked => POLYRAIL_ERROR_FORKED,
            RegisterError::Gpu(CudaError::NoDevice { .. }) => POLYRAIL_ERROR_NOT_FOUND,
            RegisterError::Gpu(CudaError::ForeignPointer { .. }) => POLYRAIL_ERROR_ARGUMENT,
            _ => POLYRAIL_ERROR_SYSTEM,
        };
        Self::new(code, error.to_string())
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        let code = match error {
            FileError::Name(error) => return error.into(),
            FileError::Open { ref source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                POLYRAIL_ERROR_NOT_FOUND
            }
            FileError::NoFile => POLYRAIL_ERROR_ARGUMENT,
            FileError::Access => POLYRAIL_ERROR_FORBIDDEN,
            FileError::BadSize | FileError::OutOfRange { .. } => POLYRAIL_ERROR_RANGE,
            FileError::Full { .. } => POLYRAIL_ERROR_FULL,
            FileError::Stale { .. } => POLYRAIL_ERROR_HANDLE,
            FileError::ShutDown => POLYRAIL_ERROR_SHUT_DOWN,
            FileError::Forked => POLYRAIL_ERROR_FORKED,
            _ => POLYRAIL_ERROR_SYSTEM,
        };
        Self::new(code, error.to_string())
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self::new(open_code(&error), error.to_string())
    }
}

fn open_code(error: &OpenError) -> i32 {
    match error {
        OpenError::NotInTime { last, .. } => open_code(last),
        OpenError::BadAddress { .. } => POLYRAIL_ERROR_ARGUMENT,
        OpenError::Unresolved { .. } | OpenError::NoSuchSegment { .. } => POLYRAIL_ERROR_NOT_FOUND,
        OpenError::Connect(_) => POLYRAIL_ERROR_CONNECT,
        OpenError::PeerLost { .. } | OpenError::Leaving { .. } => POLYRAIL_ERROR_PEER_LOST,
        OpenError::Full { .. } => POLYRAIL_ERROR_FULL,
        OpenError::ShutDown => POLYRAIL_ERROR_SHUT_DOWN,
        OpenError::Forked => POLYRAIL_ERROR_FORKED,
        OpenError::Ask(_) => POLYRAIL_ERROR_PEER,
        _ => POLYRAIL_ERROR_INCOMPATIBLE,
    }
}

impl From<CloseError> for Failure {
    fn from(error: CloseError) -> Self {
        let code = match &error {
            CloseError::Stale { .. } => POLYRAIL_ERROR_HANDLE,
            CloseError::Own { .. } => POLYRAIL_ERROR_ARGUMENT,
            CloseError::InUse { .. } => POLYRAIL_ERROR_IN_USE,
            CloseError::Forked => POLYRAIL_ERROR_FORKED,
            _ => POLYRAIL_ERROR_SYSTEM,
        };
        Self::new(code, error.to_string())
    }
}

/// Allocates memory, zeroed, and registers it under a name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_segment_allocate(
    engine: polyrail_engine,
    name: *const c_char,
    bytes: u64,
    access_of_peers: u32,
    segment: *mut polyrail_segment,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let owner = engine::get(engine)?;
        // SAFETY: the contract of the crate.
        let name = unsafe { text::required("name", name) }?;
        // SAFETY: the contract of the crate.
        let segment = unsafe { text::out("segment", segment) }?;
        let id = owner.allocate(name, bytes, access(access_of_peers)?)?;
        add(engine, &owner, id, POLYRAIL_SEGMENT_MEMORY, segment)
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Allocates memory of a GPU, number 0 being `cuda:0`, and registers it under a name. `POLYRAIL_ERROR_SYSTEM`: this
/// library has no CUDA, or the machine no driver; the words say which.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_segment_allocate_on_gpu(
    engine: polyrail_engine,
    name: *const c_char,
    gpu: u32,
    bytes: u64,
    access_of_peers: u32,
    segment: *mut polyrail_segment,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let owner = engine::get(engine)?;
        // SAFETY: the contract of the crate.
        let name = unsafe { text::required("name", name) }?;
        // SAFETY: the contract of the crate.
        let segment = unsafe { text::out("segment", segment) }?;
        let id = owner.allocate_on_gpu(name, gpu, bytes, access(access_of_peers)?)?;
        add(engine, &owner, id, POLYRAIL_SEGMENT_MEMORY, segment)
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Lets what is submitted from now on to or from memory of this segment's GPU begin only when what is in a stream of the
/// program's now is over. `stream` is a `CUstream` or `cudaStream_t` of that GPU; null is the default one. Returns at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_segment_order_after(
    segment: polyrail_segment,
    stream: *mut c_void,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let (owner, id) = get(segment)?;
        owner.order_after(id, stream.addr() as u64)?;
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Registers memory of the program under a name: of this process, or of a GPU, which CUDA's driver tells apart by the
/// address. It stays mapped (or allocated), readable and writable until the segment or its engine has been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_segment_register(
    engine: polyrail_engine,
    name: *const c_char,
    base: *mut c_void,
    bytes: u64,
    access_of_peers: u32,
    segment: *mut polyrail_segment,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let owner = engine::get(engine)?;
        // SAFETY: the contract of the crate.
        let name = unsafe { text::required("name", name) }?;
        // SAFETY: the contract of the crate.
        let segment = unsafe { text::out("segment", segment) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| text::null("the memory"))?;
        let access = access(access_of_peers)?;
        // SAFETY: the program's promise about this range, and what the function above says of its end.
        let id = unsafe { owner.register(name, base, bytes, access) }?;
        add(engine, &owner, id, POLYRAIL_SEGMENT_MEMORY, segment)
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Opens a segment of a peer.
///
/// # Safety
///
/// The contract of the crate for the pointers.
unsafe fn open(
    engine: polyrail_engine,
    address: *const c_char,
    terms: &OpenTerms,
    segment: *mut polyrail_segment,
) -> Result<(), Failure> {
    let owner = engine::get(engine)?;
    // SAFETY: the contract of the crate.
    let address = unsafe { text::required("address", address) }?;
    // SAFETY: the contract of the crate.
    let segment = unsafe { text::out("segment", segment) }?;
    let id = owner.open_segment_with(address, terms)?;
    add(engine, &owner, id, POLYRAIL_SEGMENT_REMOTE, segment)
}

/// Opens a segment of a peer, named `HOST:PORT/SEGMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_segment_open(
    engine: polyrail_engine,
    address: *const c_char,
    segment: *mut polyrail_segment,
    error: *mut polyrail_error,
) -> i32 {
    // SAFETY: the contract of the crate.
    let body = || unsafe { open(engine, address, &OpenTerms::default(), segment) };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// The same on other terms, which may be null: until the peer is there, or to be followed when its process is started anew.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_segment_open_with(
    engine: polyrail_engine,
    address: *const c_char,
    terms: *const polyrail_open_terms,
    segment: *mut polyrail_segment,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        // SAFETY: the contract of the crate.
        let terms = unsafe { sized::read_or_default(terms) }?;
        let terms = OpenTerms {
            within: (terms.within_ns > 0).then(|| text::span(terms.within_ns)),
            standing: choose("standing", terms.standing, &[(0, false), (1, true)])?,
        };
        // SAFETY: the contract of the crate.
        unsafe { open(engine, address, &terms, segment) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Makes a file or block device that exists a segment. `terms` may be null: all of it, to be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_segment_open_file(
    engine: polyrail_engine,
    path: *const c_char,
    terms: *const polyrail_file_terms,
    segment: *mut polyrail_segment,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let owner = engine::get(engine)?;
        // SAFETY: the contract of the crate.
        let path = unsafe { text::required("path", path) }?;
        // SAFETY: the contract of the crate.
        let segment = unsafe { text::out("segment", segment) }?;
        // SAFETY: the contract of the crate.
        let terms = unsafe { sized::read_or_default(terms) }?;
        let flag = |what, number| choose(what, number, &[(0, false), (1, true)]);
        let terms = FileTerms {
            offset: terms.offset,
            bytes: (terms.bytes > 0).then_some(terms.bytes),
            read_only: flag("read_only", terms.read_only)?,
            cached: flag("cached", terms.cached)?,
        };
        let id = owner.open_file(Path::new(path), &terms)?;
        add(engine, &owner, id, POLYRAIL_SEGMENT_FILE, segment)
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Lets peers open a file's segment under a name, as far as both this access and its own terms allow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_segment_offer(
    file: polyrail_segment,
    name: *const c_char,
    access_of_peers: u32,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let (owner, id) = get(file)?;
        // SAFETY: the contract of the crate.
        let name = unsafe { text::required("name", name) }?;
        owner.offer_file(id, name, access(access_of_peers)?)?;
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Waits until what completed requests wrote to a file is on the disk. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_segment_sync(
    file: polyrail_segment,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let (owner, id) = get(file)?;
        owner.sync_file(id)?;
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// What is known of a segment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_segment_look(
    segment: polyrail_segment,
    info: *mut polyrail_segment_info,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let Entry { engine, id, kind } = SEGMENTS.get(segment.bits)?;
        let owner = engine::get(engine)?;
        let Some(bytes) = owner.segment_bytes(id) else {
            let text = "the segment was lost with its peer, or its owner has another one under its name: open it anew";
            return Err(Failure::new(POLYRAIL_ERROR_PEER_LOST, text));
        };
        let base = owner.region(id).map(|region| region.base());
        let value = polyrail_segment_info {
            size: 0,
            kind,
            base: base.map_or(null_mut(), |base| base.as_ptr().cast()),
            bytes,
        };
        // SAFETY: the contract of the crate.
        unsafe { sized::write(info, value) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Closes a segment of a peer, and frees its handle: what the engine maps of it is unmapped, and its owner keeps its
/// memory. One that was opened several times is closed with the last handle. `POLYRAIL_ERROR_IN_USE`: requests that use it
/// have not ended, and nothing has changed; wait for them, or cancel them. `POLYRAIL_ERROR_ARGUMENT`: it is memory or a
/// file of this engine, which `polyrail_segment_free` takes back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_segment_close(
    segment: polyrail_segment,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let (owner, id) = get(segment)?;
        owner.close_segment(id)?;
        SEGMENTS.take(segment.bits)?;
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Frees a segment's handle, and takes memory and files back: when it has returned, nothing of the engine touches them
/// any more. `POLYRAIL_ERROR_IN_USE`: requests that use it have not ended, and nothing has changed. `POLYRAIL_ERROR_UNPROVABLE`:
/// peers can use it no more, but one on this host may be in the midst of a write to it, as when it is stopped there: keep the
/// memory and the handle, and call this again later. A segment of a peer is closed as by `polyrail_segment_close`, but later if requests use it now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_segment_free(
    segment: polyrail_segment,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let entry = SEGMENTS.get(segment.bits)?;
        let owner = engine::get(entry.engine)?;
        match entry.kind {
            // One that is gone already needs no closing.
            POLYRAIL_SEGMENT_REMOTE => drop(owner.close_segment_later(entry.id)),
            _ => owner.unregister(entry.id)?,
        }
        SEGMENTS.take(segment.bits)?;
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}
