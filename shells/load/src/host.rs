//! What the engine does for a library.
//!
//! # Safety
//!
//! A library calls these with what it was given: the context of its host, regions that it was lent, permissions that it
//! has not given back. Each says which.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use polyrail_transport::memory::{
    Access, Entered, Pinned, Region, RegionKey, RegionTable, TrustDomain,
};

use crate::abi::*;

/// Who waits for an answer of the library's.
type Answer = Box<dyn FnOnce(u32) + Send>;

/// The engine, as a library sees it.
pub(crate) struct Host {
    name: &'static str,
    regions: Arc<dyn RegionTable>,
    questions: Mutex<Questions>,
}

#[derive(Default)]
struct Questions {
    last: u64,
    open: HashMap<u64, Answer>,
}

impl Host {
    pub(crate) fn new(name: &'static str, regions: Arc<dyn RegionTable>) -> Self {
        Self {
            name,
            regions,
            questions: Mutex::default(),
        }
    }

    /// The table that the library is given. The host stays where it is as long as that is used.
    pub(crate) fn table(self: &Arc<Self>) -> polyrail_transport_host {
        polyrail_transport_host {
            size: size_of::<polyrail_transport_host>(),
            context: Arc::as_ptr(self).cast_mut().cast(),
            find_region,
            release_region,
            look_region,
            enter,
            leave,
            pin,
            unpin,
            answer,
            log: write_log,
        }
    }

    /// A number for a question whose answer is waited for.
    pub(crate) fn ask(&self, answer: Answer) -> u64 {
        let mut questions = self
            .questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        questions.last += 1;
        let number = questions.last;
        questions.open.insert(number, answer);
        number
    }

    fn answer(&self, number: u64, delivered: u32) {
        let mut questions = self
            .questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let answer = questions.open.remove(&number);
        drop(questions);
        match answer {
            Some(answer) => answer(delivered),
            None => log::error!(
                "transport {} answers question {number}, which is none or has its answer",
                self.name
            ),
        }
    }
}

/// A region as a library holds it.
pub(crate) fn lent(region: &Arc<Region>) -> *const polyrail_transport_region {
    Arc::as_ptr(region).cast()
}

/// # Safety
///
/// `context` is a host's.
unsafe fn host<'a>(context: *mut c_void) -> &'a Host {
    // SAFETY: the caller's promise.
    unsafe { &*context.cast::<Host>() }
}

/// # Safety
///
/// The region is lent to the library.
unsafe fn region<'a>(region: *const polyrail_transport_region) -> &'a Region {
    // SAFETY: the caller's promise.
    unsafe { &*region.cast::<Region>() }
}

/// The key leads to as many bytes as one has.
unsafe extern "C" fn find_region(
    context: *mut c_void,
    key: *const u8,
) -> *const polyrail_transport_region {
    // SAFETY: the library's promises.
    let (host, key) = unsafe {
        let key = slice::from_raw_parts(key, POLYRAIL_TRANSPORT_KEY_BYTES);
        (host(context), key)
    };
    let mut bytes = [0; POLYRAIL_TRANSPORT_KEY_BYTES];
    bytes.copy_from_slice(key);
    // Libraries know no trust domains, so what is of one is not for them.
    match host.regions.find(&RegionKey(bytes), TrustDomain::COMMON) {
        Some(region) => Arc::into_raw(region).cast(),
        None => null(),
    }
}

/// The region came from [`find_region`], and is not used any more.
unsafe extern "C" fn release_region(region: *const polyrail_transport_region) {
    // SAFETY: the library's promise.
    drop(unsafe { Arc::from_raw(region.cast::<Region>()) });
}

/// The region is lent, and the info can be written.
unsafe extern "C" fn look_region(
    lent: *const polyrail_transport_region,
    info: *mut polyrail_transport_region_info,
) {
    // SAFETY: the library's promise.
    let region = unsafe { region(lent) };
    let known = polyrail_transport_region_info {
        base: region.base().as_ptr().cast(),
        bytes: region.bytes(),
        access: match region.access() {
            Access::Local => POLYRAIL_TRANSPORT_ACCESS_LOCAL,
            Access::RemoteRead => POLYRAIL_TRANSPORT_ACCESS_READ,
            Access::RemoteReadWrite => POLYRAIL_TRANSPORT_ACCESS_READ_WRITE,
        },
        descriptor: region.file().map_or(-1, |file| file.as_raw_fd() as c_int),
        key: region.key().0,
    };
    // SAFETY: the library's promise.
    unsafe { info.write(known) };
}

/// Where a permission is kept while the library has it.
type Kept = MaybeUninit<[u64; 4]>;

const _: () = assert!(size_of::<Entered<'static>>() <= size_of::<Kept>());
const _: () = assert!(align_of::<Entered<'static>>() <= align_of::<Kept>());

/// The region is lent until the permission has been given back; `entered` can be written.
unsafe extern "C" fn enter(
    lent: *const polyrail_transport_region,
    offset: u64,
    length: u64,
    entered: *mut polyrail_transport_entered,
) -> i32 {
    // SAFETY: the library's promise.
    let region = unsafe { region(lent) };
    let Some(permission) = region.enter() else {
        return -1;
    };
    let Some(address) = permission.pointer(offset, length) else {
        return -1;
    };
    // SAFETY: there is room for it, as is looked at above, and `leave` takes it out again.
    unsafe {
        (*entered).address = address.cast();
        let kept = (&raw mut (*entered).opaque).cast::<ManuallyDrop<Entered<'_>>>();
        kept.write(ManuallyDrop::new(permission));
    }
    0
}

/// What [`enter`] filled on this thread, once.
unsafe extern "C" fn leave(entered: *mut polyrail_transport_entered) {
    // SAFETY: the library's promise.
    unsafe {
        let kept = (&raw mut (*entered).opaque).cast::<Entered<'_>>();
        drop(kept.read());
    }
}

/// The region is lent, and the address can be written.
unsafe extern "C" fn pin(
    lent: *const polyrail_transport_region,
    offset: u64,
    length: u64,
    address: *mut *mut c_void,
) -> *mut polyrail_transport_pinned {
    let held = lent.cast::<Region>();
    // SAFETY: a region that is lent is in an `Arc`, of which this is one more share.
    let region = unsafe {
        Arc::increment_strong_count(held);
        Arc::from_raw(held)
    };
    let Some(pinned) = region.pin(offset, length) else {
        return null_mut();
    };
    // SAFETY: the library's promise.
    unsafe { address.write(pinned.address().as_ptr().cast()) };
    Box::into_raw(Box::new(pinned)).cast()
}

/// What [`pin`] gave, once.
unsafe extern "C" fn unpin(pinned: *mut polyrail_transport_pinned) {
    // SAFETY: the library's promise.
    drop(unsafe { Box::from_raw(pinned.cast::<Pinned>()) });
}

unsafe extern "C" fn answer(context: *mut c_void, question: u64, delivered: u32) {
    // SAFETY: the library's promise.
    unsafe { host(context) }.answer(question, delivered);
}

/// The text ends with a zero.
unsafe extern "C" fn write_log(context: *mut c_void, level: u32, text: *const c_char) {
    // SAFETY: the library's promise.
    let (host, text) = unsafe { (host(context), CStr::from_ptr(text)) };
    let level = match level {
        1 => log::Level::Error,
        2 => log::Level::Warn,
        3 => log::Level::Info,
        _ => log::Level::Debug,
    };
    log::log!(level, "{}: {}", host.name, text.to_string_lossy());
}
