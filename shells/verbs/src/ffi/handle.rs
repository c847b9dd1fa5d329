//! Owners of the library's objects.

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use polyrail_transport::memory::{Pinned, Region};

use super::raw::{self, Calls};

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
        log::error!("verbs: {error}");
    }
}

/// An open device.
pub(crate) struct Context {
    pub(super) calls: Calls,
    raw: NonNull<raw::Context>,
}

// SAFETY: the library's objects may be used from any thread, by several at once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Something that no work asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A port carries packets again.
    PortActive,
    /// It does not any more.
    PortDown,
    /// The device is of no use any more.
    DeviceFatal,
    /// This queue pair, or any of a completion queue, is in error.
    QueuePair(Option<u32>),
    /// Nothing that anybody acts on.
    Other,
}

impl Context {
    /// Whether the library can register memory of other devices.
    pub(crate) fn registers_dma_bufs(&self) -> bool {
        self.calls.reg_dmabuf_mr.is_some()
    }

    /// Opens the device of this name.
    pub(crate) fn open(calls: &Calls, name: &str) -> io::Result<Self> {
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
        let context = Self { calls: *calls, raw };
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

    /// Readable when [`Self::event`] has something.
    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context, which is borrowed.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }

    /// What has happened, if anything has.
    pub(crate) fn event(&self) -> Option<Event> {
        let mut event = MaybeUninit::<raw::AsyncEvent>::zeroed();
        // SAFETY: it fills the event if it answers 0. An event is acknowledged once, after its last use; the queue
        // pair that it names is not destroyed before.
        unsafe {
            if (self.calls.get_async_event)(self.raw.as_ptr(), event.as_mut_ptr()) != 0 {
                return None;
            }
            let mut event = event.assume_init();
            let what = match event.event_type {
                raw::EVENT_PORT_ACTIVE => Event::PortActive,
                raw::EVENT_PORT_ERR => Event::PortDown,
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
    _pinned: Pinned,
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
        let (call, raw) = if region.device().is_some() {
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
                    address as u64,
                    buffer.fd.as_raw_fd(),
                    access as c_int,
                )
            };
            ("ibv_reg_dmabuf_mr", raw)
        } else {
            // SAFETY: the range is mapped, and pinned until after it is deregistered.
            let raw = unsafe {
                (pd.context.calls.reg_mr_iova2)(
                    pd.raw.as_ptr(),
                    address.cast(),
                    length,
                    address as u64,
                    access,
                )
            };
            ("ibv_reg_mr", raw)
        };
        Ok(Self {
            raw: made(call, raw)?,
            pd: pd.clone(),
            _pinned: pinned,
        })
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

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: it is registered. When this returns the device touches the memory no more; then it is unpinned.
        let answer = unsafe { (self.pd.context.calls.dereg_mr)(self.raw.as_ptr()) };
        ended("ibv_dereg_mr", answer);
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
