//! Owners of the library's objects.
//!
//! What is told to end and may not have is left to the [`Context`]: the call failed, or the device had, whose driver then
//! says that all is well. The library's objects behind it are not freed, and neither are the queues and domains that they
//! were made with: the device may go on with them.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, c_int};
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use polyrail_transport::complain;
use polyrail_transport::memory::{Pinned, Region};

use super::raw::{self, Calls};
use crate::lock::lock;

/// The answer of a function that gives a pointer.
pub(super) fn made<T>(call: &'static str, answer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(answer).ok_or_else(|| named(call, io::Error::last_os_error()))
}

/// The answer of a function that gives 0 or an error's number.
pub(super) fn checked(call: &'static str, answer: c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        -1 => Err(named(call, io::Error::last_os_error())),
        number => Err(named(call, io::Error::from_raw_os_error(number.abs()))),
    }
}

/// An error that says which call it came from.
fn named(call: &'static str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{call}: {error}"))
}

/// What a destructor can do about an error: say it.
pub(super) fn ended(call: &'static str, answer: c_int) {
    if let Err(error) = checked(call, answer) {
        complain!("verbs: {error}");
    }
}

/// Numbers of queue pairs of a device that are remembered.
const ENDED_MAX: usize = 4096;
/// By devices, which all contexts of this process share: numbers of queue pairs that were connected and have ended, the oldest first.
static ENDED: Mutex<BTreeMap<String, VecDeque<(Instant, u32)>>> = Mutex::new(BTreeMap::new());

/// An open device.
pub(crate) struct Context {
    pub(super) calls: Calls,
    raw: NonNull<raw::Context>,
    /// The device is of no use any more: that it says to have let go of something proves nothing.
    failed: AtomicBool,
    /// It has failed to let go of something.
    in_doubt: AtomicBool,
    /// It has failed, and has been opened again: whatever it did for this, it does no more once this is closed.
    renewed: AtomicBool,
    left: Mutex<Vec<Left>>,
    /// What has happened and was not acted on.
    heard: Mutex<VecDeque<Event>>,
    /// What wakes the device's thread.
    wake: OnceLock<Arc<OwnedFd>>,
    /// The device's name.
    name: String,
    /// The kernel takes addresses of GPUs (`nvidia-peermem`).
    peer_memory: bool,
}

/// Something that the device was told to let go of, and may go on with until its context has been closed.
pub(super) enum Left {
    Memory(Pinned),
    /// A queue pair, and what is done once it is known to have ended.
    Pair(Box<dyn FnOnce() + Send>),
}

// SAFETY: the library's objects may be used from any thread, by several at once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Something that no work asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// This port carries packets again.
    PortActive(u8),
    /// It does not any more.
    PortDown(u8),
    /// It has other names than before.
    NamesChanged(u8),
    /// The device is of no use any more.
    DeviceFatal,
    /// This queue pair, or any of a completion queue, is in error.
    QueuePair(Option<u32>),
    /// Nothing that anybody acts on.
    Other,
}

impl Context {
    /// Whether memory of GPUs can be registered: as DMA-BUFs by the library, or by its address by the kernel.
    pub(crate) fn registers_gpus(&self) -> bool {
        self.calls.reg_dmabuf_mr.is_some() || self.peer_memory
    }

    /// Opens the device of this name. `peer_memory`: the kernel takes addresses of GPUs.
    pub(crate) fn open(calls: &Calls, name: &str, peer_memory: bool) -> io::Result<Self> {
        let mut opened = None;
        Self::each(calls, |found, device| {
            if found == name {
                // SAFETY: `each` gives devices of a list that is not freed yet.
                let answer = unsafe { (calls.open_device)(device) };
                opened = Some(made("ibv_open_device", answer));
            }
        })?;
        let missing = || Err(io::Error::new(io::ErrorKind::NotFound, "no such device"));
        let raw = opened.unwrap_or_else(missing)?;
        let context = Self {
            calls: *calls,
            raw,
            failed: AtomicBool::new(false),
            in_doubt: AtomicBool::new(false),
            renewed: AtomicBool::new(false),
            left: Mutex::default(),
            heard: Mutex::default(),
            wake: OnceLock::new(),
            name: name.to_owned(),
            peer_memory,
        };
        let fd = context.async_fd();
        let flags = rustix::fs::fcntl_getfl(fd)?;
        rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(context)
    }

    fn each(calls: &Calls, mut look: impl FnMut(&str, *mut raw::Device)) -> io::Result<()> {
        let mut count = 0;
        // SAFETY: it writes the number to `count`.
        let list = unsafe { (calls.get_device_list)(&mut count) };
        let list = made("ibv_get_device_list", list)?;
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has so many devices, each with a name that lives as long.
            unsafe {
                let device = *list.as_ptr().add(index);
                let name = CStr::from_ptr((calls.get_device_name)(device));
                look(&name.to_string_lossy(), device);
            }
        }
        // SAFETY: of the call above; nothing of it is used any more.
        unsafe { (calls.free_device_list)(list.as_ptr()) };
        Ok(())
    }

    /// What the device can do.
    pub(crate) fn attributes(&self) -> io::Result<raw::DeviceAttr> {
        let mut attributes = MaybeUninit::zeroed();
        // SAFETY: it fills what it is given; all zeroes are a value too.
        unsafe {
            let answer = (self.calls.query_device)(self.raw.as_ptr(), attributes.as_mut_ptr());
            checked("ibv_query_device", answer)?;
            Ok(attributes.assume_init())
        }
    }

    /// How a port stands.
    pub(crate) fn port(&self, port: u8) -> io::Result<raw::PortAttr> {
        let mut attributes = raw::PortAttr::default();
        // SAFETY: it fills what it is given, or the front of it.
        let answer = unsafe { (self.calls.query_port)(self.raw.as_ptr(), port, &mut attributes) };
        checked("ibv_query_port", answer)?;
        Ok(attributes)
    }

    /// The device is of no use any more.
    pub(crate) fn fail(&self) {
        self.failed.store(true, SeqCst);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(SeqCst)
    }

    /// Whether it failed to let go of something.
    fn is_in_doubt(&self) -> bool {
        self.in_doubt.load(SeqCst)
    }

    /// Whether it has failed, or not let go of something: what it may go on with is known to be over once it is opened anew.
    pub(crate) fn has_to_be_renewed(&self) -> bool {
        self.has_failed() || self.is_in_doubt()
    }

    /// The device has been opened anew since it failed.
    pub(crate) fn renew(&self) {
        self.renewed.store(true, SeqCst);
    }

    /// Whether the device may go on with something that it was told to let go of.
    pub(crate) fn has_left(&self) -> bool {
        !lock(&self.left).is_empty()
    }

    /// A queue pair that was connected has ended.
    pub(super) fn note_ended(&self, number: u32) {
        let mut ended = lock(&ENDED);
        let ended = ended.entry(self.name.clone()).or_default();
        if ended.len() == ENDED_MAX {
            ended.pop_front();
        }
        ended.push_back((Instant::now(), number));
    }

    /// Whether a queue pair of this number has ended so short ago.
    pub(crate) fn has_ended_within(&self, number: u32, span: Duration) -> bool {
        let mut ended = lock(&ENDED);
        let Some(ended) = ended.get_mut(&self.name) else {
            return false;
        };
        while ended.front().is_some_and(|(at, _)| at.elapsed() >= span) {
            ended.pop_front();
        }
        ended.iter().any(|(_, other)| *other == number)
    }

    /// Lets whoever finds that the device has failed, or has not let go of something, wake its thread.
    pub(crate) fn wake_with(&self, wake: &Arc<OwnedFd>) {
        let _ = self.wake.set(wake.clone());
    }

    fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            // Full means that it was woken already.
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }

    /// Whether the answer of a call proves that the device has let go. A device that has failed proves nothing; that it has
    /// may be known to nobody yet.
    pub(super) fn lets_go(&self, call: &'static str, answer: c_int) -> bool {
        if let Err(error) = checked(call, answer) {
            complain!("verbs: {error}; the device may go on with what it was for");
            self.in_doubt.store(true, SeqCst);
            self.wake();
            return false;
        }
        self.hear();
        !self.has_failed()
    }

    /// Keeps what the device may go on with until this has been closed.
    pub(super) fn leave(&self, left: Left) {
        lock(&self.left).push(left);
        self.wake();
    }

    /// Readable when [`Self::event`] has something.
    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context, which is borrowed.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }

    /// What has happened, if anything has.
    pub(crate) fn event(&self) -> Option<Event> {
        self.hear();
        lock(&self.heard).pop_front()
    }

    /// Whether something has happened that was heard already.
    pub(crate) fn has_heard(&self) -> bool {
        !lock(&self.heard).is_empty()
    }

    /// Hears what has happened, on any thread; the device's acts on it.
    fn hear(&self) {
        let mut heard = lock(&self.heard);
        let before = heard.len();
        while let Some(event) = self.next_event() {
            if event == Event::DeviceFatal {
                self.fail();
            }
            heard.push_back(event);
        }
        let is_news = heard.len() > before;
        drop(heard);
        if is_news {
            self.wake();
        }
    }

    fn next_event(&self) -> Option<Event> {
        let mut event = MaybeUninit::<raw::AsyncEvent>::zeroed();
        // SAFETY: it fills the event if it answers 0. An event is acknowledged once, after its last use; the queue
        // pair that it names is not destroyed before.
        unsafe {
            if (self.calls.get_async_event)(self.raw.as_ptr(), event.as_mut_ptr()) != 0 {
                // The kernel has taken the device away.
                if io::Error::last_os_error().raw_os_error() == Some(libc::EIO) {
                    self.fail();
                }
                return None;
            }
            let mut event = event.assume_init();
            // Where it is of a port, the element's first four bytes are its number.
            let port = event.element.addr() as u32 as u8;
            let what = match event.event_type {
                raw::EVENT_PORT_ACTIVE => Event::PortActive(port),
                raw::EVENT_PORT_ERR => Event::PortDown(port),
                raw::EVENT_GID_CHANGE => Event::NamesChanged(port),
                raw::EVENT_DEVICE_FATAL => Event::DeviceFatal,
                raw::EVENT_CQ_ERR => Event::QueuePair(None),
                raw::EVENT_QP_FATAL | raw::EVENT_QP_REQ_ERR | raw::EVENT_QP_ACCESS_ERR => {
                    Event::QueuePair(Some((*event.element.cast::<raw::Qp>()).qp_num))
                }
                _ => Event::Other,
            };
            (self.calls.ack_async_event)(&mut event);
            Some(what)
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it is open, and whatever was made from it held it.
        let answer = unsafe { (self.calls.close_device)(self.raw.as_ptr()) };
        ended("ibv_close_device", answer);
        // The kernel ends all that is left of a context with it. A device that has failed may not do as the kernel says,
        // before it has been reset; to be opened again it has to be.
        let is_over = answer == 0 && (!self.has_failed() || self.renewed.load(SeqCst));
        let left = mem::take(&mut *lock(&self.left));
        for left in left {
            match (left, is_over) {
                (Left::Memory(pinned), true) => drop(pinned),
                (Left::Memory(pinned), false) => pinned.forsake(),
                (Left::Pair(then), true) => then(),
                (Left::Pair(_), false) => {}
            }
        }
    }
}

/// A protection domain: queue pairs and memory of one reach each other.
pub(crate) struct Pd {
    pub(super) context: Arc<Context>,
    pub(super) raw: NonNull<raw::Pd>,
}

// SAFETY: see `Context`.
unsafe impl Send for Pd {}
// SAFETY: see `Context`.
unsafe impl Sync for Pd {}

impl Pd {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.calls.alloc_pd)(context.raw.as_ptr()) };
        Ok(Self {
            raw: made("ibv_alloc_pd", raw)?,
            context: context.clone(),
        })
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        if self.context.has_left() {
            return;
        }
        // SAFETY: it is allocated, and whatever was made from it held it.
        let answer = unsafe { (self.context.calls.dealloc_pd)(self.raw.as_ptr()) };
        ended("ibv_dealloc_pd", answer);
    }
}

/// What others may do with registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// This side's queue pairs read it and write it; peers do not.
    Own,
    /// Peers read it.
    Read,
    /// Peers read it and write it.
    ReadWrite,
}

/// Memory that a device may touch by itself.
pub(crate) struct Mr {
    pd: Arc<Pd>,
    raw: NonNull<raw::Mr>,
    /// What works name its first byte by.
    address: u64,
    /// `None`: it is left to the context.
    pinned: Option<Pinned>,
}

// SAFETY: see `Context`.
unsafe impl Send for Mr {}
// SAFETY: see `Context`.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers so many bytes of a region; of memory on a GPU, through its DMA-BUF.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        region: &Arc<Region>,
        (offset, bytes): (u64, u64),
        reach: Reach,
        relaxed: bool,
    ) -> io::Result<Self> {
        let gone = || io::Error::other("the segment has been taken away");
        let pinned = region.pin_any(offset, bytes).ok_or_else(gone)?;
        let length = usize::try_from(bytes).map_err(io::Error::other)?;
        let address = pinned.address().as_ptr();
        let named = match reach {
            Reach::Own => address as u64,
            Reach::Read | Reach::ReadWrite => told_address(address as u64, bytes)?,
        };
        let access = match reach {
            Reach::Own => raw::ACCESS_LOCAL_WRITE,
            Reach::Read => raw::ACCESS_REMOTE_READ,
            Reach::ReadWrite => {
                raw::ACCESS_LOCAL_WRITE | raw::ACCESS_REMOTE_READ | raw::ACCESS_REMOTE_WRITE
            }
        };
        let relaxed = if relaxed {
            raw::ACCESS_RELAXED_ORDERING
        } else {
            0
        };
        let access = access | relaxed;
        let by_address = || {
            // SAFETY: the range is mapped, or of a GPU and only looked up, and pinned until after it is deregistered.
            let raw = unsafe {
                (pd.context.calls.reg_mr_iova2)(
                    pd.raw.as_ptr(),
                    address.cast(),
                    length,
                    named,
                    access,
                )
            };
            made("ibv_reg_mr", raw)
        };
        let by_dma_buf = || {
            let missing = |what| io::Error::new(io::ErrorKind::Unsupported, what);
            let buffer = region.dma_buf();
            let buffer = buffer.ok_or_else(|| missing("the memory's device shares no DMA-BUF"))?;
            let register = pd.context.calls.reg_dmabuf_mr;
            let register = register.ok_or_else(|| missing("libibverbs registers no DMA-BUF"))?;
            // SAFETY: the descriptor is open, and the range behind it pinned until after it is deregistered.
            let raw = unsafe {
                register(
                    pd.raw.as_ptr(),
                    buffer.offset + offset,
                    length,
                    named,
                    buffer.fd.as_raw_fd(),
                    access as c_int,
                )
            };
            made("ibv_reg_dmabuf_mr", raw)
        };
        let raw = match (region.device(), pd.context.peer_memory) {
            (None, _) => by_address(),
            (Some(_), true) => by_dma_buf().or_else(|why| {
                let other = |error: io::Error| {
                    let text = format!("{why}; and by its address (nvidia-peermem): {error}");
                    io::Error::new(error.kind(), text)
                };
                by_address().map_err(other)
            }),
            (Some(_), false) => by_dma_buf().map_err(|why| {
                let text = format!("{why}; nvidia-peermem, the other way, is not loaded");
                io::Error::new(why.kind(), text)
            }),
        }?;
        Ok(Self {
            raw,
            pd: pd.clone(),
            address: named,
            pinned: Some(pinned),
        })
    }

    /// What works name its first byte by: this side's by its address, those of peers by another one, which nobody else has, had
    /// or can guess.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// What works of this side name it by.
    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: it is registered.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// What works of peers name it by.
    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: it is registered.
        unsafe { (*self.raw.as_ptr()).rkey }
    }
}

/// What peers are to name memory at this address by.
///
/// Devices give keys out again, and allocators addresses. A work of a peer's that was meant for what had both before is refused
/// all the same, because it does not name an address that is registered now.
fn told_address(address: u64, bytes: u64) -> io::Result<u64> {
    const MIB: u64 = 1 << 20;
    /// All of it can be named from any address below this.
    const END: u64 = 1 << 62;
    // The device's table of pages is as short as if it were named by its own address.
    let congruent_to = match bytes {
        ..0x4000_0000 => 2 * MIB,
        _ => 1024 * MIB,
    };
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    let random = u64::from_le_bytes(random) % END;
    Ok(random / congruent_to * congruent_to + address % congruent_to)
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: it is registered. When this returns the device touches the memory no more; then it is unpinned.
        // Unless it does not prove so.
        let answer = unsafe { (self.pd.context.calls.dereg_mr)(self.raw.as_ptr()) };
        let context = &self.pd.context;
        if !context.lets_go("ibv_dereg_mr", answer)
            && let Some(pinned) = self.pinned.take()
        {
            context.leave(Left::Memory(pinned.hold()));
        }
    }
}

/// A completion queue, with a channel of its own.
pub(crate) struct Cq {
    context: Arc<Context>,
    channel: NonNull<raw::CompChannel>,
    pub(super) raw: NonNull<raw::Cq>,
}

// SAFETY: see `Context`.
unsafe impl Send for Cq {}
// SAFETY: see `Context`.
unsafe impl Sync for Cq {}

impl Cq {
    /// A queue with room for so many completions.
    pub(crate) fn new(context: &Arc<Context>, depth: u32) -> io::Result<Self> {
        let calls = &context.calls;
        // SAFETY: the context is open.
        let channel = unsafe { (calls.create_comp_channel)(context.raw.as_ptr()) };
        let channel = made("ibv_create_comp_channel", channel)?;
        let depth = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: the channel is of the same context.
        let raw = unsafe {
            (calls.create_cq)(
                context.raw.as_ptr(),
                depth,
                ptr::null_mut(),
                channel.as_ptr(),
                0,
            )
        };
        let raw = match made("ibv_create_cq", raw) {
            Ok(raw) => raw,
            Err(error) => {
                // SAFETY: made above, and nothing uses it.
                let answer = unsafe { (calls.destroy_comp_channel)(channel.as_ptr()) };
                ended("ibv_destroy_comp_channel", answer);
                return Err(error);
            }
        };
        let cq = Self {
            context: context.clone(),
            channel,
            raw,
        };
        let flags = rustix::fs::fcntl_getfl(cq.fd())?;
        rustix::fs::fcntl_setfl(cq.fd(), flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(cq)
    }

    /// Readable after a completion, if [`Self::arm`] was called before it.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }

    /// Takes completions into `out` and tells how many.
    pub(crate) fn poll(&self, out: &mut [raw::Wc]) -> io::Result<usize> {
        let room = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue lives, and `out` has so much room.
        let answer = unsafe {
            let context = (*self.raw.as_ptr()).context;
            ((*context).ops.poll_cq)(self.raw.as_ptr(), room, out.as_mut_ptr())
        };
        let broken = |_| io::Error::other(format!("ibv_poll_cq: {answer}"));
        usize::try_from(answer).map_err(broken)
    }

    /// Lets the next completion make the descriptor readable.
    pub(crate) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue lives.
        let answer = unsafe {
            let context = (*self.raw.as_ptr()).context;
            ((*context).ops.req_notify_cq)(self.raw.as_ptr(), 0)
        };
        checked("ibv_req_notify_cq", answer)
    }

    /// Takes what made the descriptor readable away. Whether there was anything.
    pub(crate) fn hear(&self) -> bool {
        let (mut cq, mut data) = (ptr::null_mut(), ptr::null_mut());
        let mut heard = false;
        // SAFETY: the channel lives, and only this queue uses it. Each event is acknowledged once.
        unsafe {
            let get = self.context.calls.get_cq_event;
            while get(self.channel.as_ptr(), &mut cq, &mut data) == 0 {
                (self.context.calls.ack_cq_events)(self.raw.as_ptr(), 1);
                heard = true;
            }
        }
        heard
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if self.context.has_left() {
            return;
        }
        let calls = &self.context.calls;
        // SAFETY: queue pairs hold the queue, so none is left; all events are acknowledged.
        let answers = unsafe {
            [
                (calls.destroy_cq)(self.raw.as_ptr()),
                (calls.destroy_comp_channel)(self.channel.as_ptr()),
            ]
        };
        ended("ibv_destroy_cq", answers[0]);
        ended("ibv_destroy_comp_channel", answers[1]);
    }
}
