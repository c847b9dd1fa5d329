//! Owners of the library's objects.

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use polyrail_core::work::{Op, POST_MAX};
use polyrail_transport::memory::{Pinned, Region};

use super::raw::{self, Calls};
use crate::gid::Gid;
use crate::wire::Side;

/// The answer of a function that gives a pointer.
fn made<T>(call: &'static str, answer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(answer).ok_or_else(|| named(call, io::Error::last_os_error()))
}

/// The answer of a function that gives 0 or an error's number.
fn checked(call: &'static str, answer: c_int) -> io::Result<()> {
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
fn ended(call: &'static str, answer: c_int) {
    if let Err(error) = checked(call, answer) {
        log::error!("verbs: {error}");
    }
}

/// An open device.
pub(crate) struct Context {
    calls: Calls,
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
    context: Arc<Context>,
    raw: NonNull<raw::Pd>,
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
    /// Registers all of a region.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        region: &Arc<Region>,
        reach: Reach,
        relaxed: bool,
    ) -> io::Result<Self> {
        let gone = || io::Error::other("the segment has been taken away");
        let pinned = region.pin(0, region.bytes()).ok_or_else(gone)?;
        let length = usize::try_from(region.bytes()).map_err(io::Error::other)?;
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
        // SAFETY: the range is mapped, and pinned until after it is deregistered.
        let raw = unsafe {
            (pd.context.calls.reg_mr_iova2)(
                pd.raw.as_ptr(),
                address.cast(),
                length,
                address as u64,
                access | relaxed,
            )
        };
        Ok(Self {
            raw: made("ibv_reg_mr", raw)?,
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
    raw: NonNull<raw::Cq>,
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

/// How a queue pair is connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    /// Whether packets carry GIDs: always on Ethernet.
    pub(crate) is_global: bool,
    /// Reads that may be on their way, from this end and to it.
    pub(crate) reads_max: u8,
    pub(crate) settings: crate::Settings,
}

/// One work, as a device takes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) id: u64,
    pub(crate) op: Op,
    pub(crate) local: raw::Sge,
    pub(crate) remote_address: u64,
    pub(crate) remote_key: u32,
    pub(crate) signal: bool,
}

/// A reliable connected queue pair.
pub(crate) struct Qp {
    pd: Arc<Pd>,
    raw: NonNull<raw::Qp>,
    _cq: Arc<Cq>,
}

// SAFETY: see `Context`.
unsafe impl Send for Qp {}
// SAFETY: see `Context`.
unsafe impl Sync for Qp {}

impl Qp {
    /// One that can hold so many works.
    pub(crate) fn new(pd: &Arc<Pd>, cq: &Arc<Cq>, works: u32) -> io::Result<Self> {
        let mut attributes = raw::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: cq.raw.as_ptr(),
            recv_cq: cq.raw.as_ptr(),
            srq: ptr::null_mut(),
            cap: raw::QpCap {
                max_send_wr: works,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: raw::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queue live, and are of one context; the queue pair holds both.
        let raw = unsafe { (pd.context.calls.create_qp)(pd.raw.as_ptr(), &mut attributes) };
        Ok(Self {
            raw: made("ibv_create_qp", raw)?,
            pd: pd.clone(),
            _cq: cq.clone(),
        })
    }

    /// Its number, which is its name to the peer.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: it lives.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    fn modify(&self, call: &'static str, mut to: raw::QpAttr, mask: c_int) -> io::Result<()> {
        // SAFETY: it lives, and the attributes that the mask names are set.
        let answer = unsafe { (self.pd.context.calls.modify_qp)(self.raw.as_ptr(), &mut to, mask) };
        checked(call, answer)
    }

    /// Binds it to a port. `serves`: a peer may read and write through it.
    pub(crate) fn init(&self, port: u8, serves: bool) -> io::Result<()> {
        let access = raw::ACCESS_REMOTE_READ | raw::ACCESS_REMOTE_WRITE;
        let to = raw::QpAttr {
            qp_state: raw::QPS_INIT,
            port_num: port,
            qp_access_flags: if serves { access } else { 0 },
            ..raw::QpAttr::default()
        };
        self.modify("ibv_modify_qp to INIT", to, raw::QP_TO_INIT)
    }

    /// Joins it with the peer's and lets it send.
    pub(crate) fn connect(&self, own: &Side, peer: &Side, path: &Path) -> io::Result<()> {
        let settings = &path.settings;
        let [high, low] = peer.gid.words();
        let to = raw::QpAttr {
            qp_state: raw::QPS_RTR,
            path_mtu: own.mtu.min(peer.mtu).into(),
            dest_qp_num: peer.queue_pair,
            rq_psn: peer.first_packet,
            max_dest_rd_atomic: path.reads_max,
            min_rnr_timer: 12,
            ah_attr: raw::AhAttr {
                grh: raw::GlobalRoute {
                    dgid: [high, low],
                    flow_label: 0,
                    sgid_index: path.gid_index,
                    hop_limit: 64,
                    traffic_class: settings.traffic_class,
                },
                dlid: peer.lid,
                sl: settings.service_level,
                is_global: u8::from(path.is_global || peer.gid.prefix() != own.gid.prefix()),
                port_num: path.port,
                ..raw::AhAttr::default()
            },
            ..raw::QpAttr::default()
        };
        self.modify("ibv_modify_qp to RTR", to, raw::QP_TO_RTR)?;
        let to = raw::QpAttr {
            qp_state: raw::QPS_RTS,
            timeout: settings.ack_timeout,
            retry_cnt: settings.retry_count,
            rnr_retry: 6,
            sq_psn: own.first_packet,
            max_rd_atomic: path.reads_max.min(peer.reads_max),
            ..raw::QpAttr::default()
        };
        self.modify("ibv_modify_qp to RTS", to, raw::QP_TO_RTS)
    }

    /// Posts works as one list. The number of works taken, and why not more. Whatever they name, the device checks
    /// it against what is registered in its domain.
    pub(crate) fn post(&self, works: &[Work]) -> (usize, io::Result<()>) {
        let count = works.len().min(POST_MAX);
        let mut ranges = [raw::Sge::default(); POST_MAX];
        let mut list = [MaybeUninit::<raw::SendWr>::uninit(); POST_MAX];
        let first = list.as_mut_ptr().cast::<raw::SendWr>();
        for (index, work) in works[..count].iter().enumerate() {
            ranges[index] = work.local;
            let next = match index + 1 < count {
                // SAFETY: inside the list.
                true => unsafe { first.add(index + 1) },
                false => ptr::null_mut(),
            };
            list[index].write(raw::SendWr {
                wr_id: work.id,
                next,
                sg_list: &mut ranges[index],
                num_sge: 1,
                opcode: match work.op {
                    Op::Write => raw::WR_RDMA_WRITE,
                    Op::Read => raw::WR_RDMA_READ,
                },
                send_flags: if work.signal { raw::SEND_SIGNALED } else { 0 },
                imm_data: 0,
                remote_addr: work.remote_address,
                rkey: work.remote_key,
                _rest: [0; 19],
            });
        }
        if count == 0 {
            return (0, Ok(()));
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the list has `count` works, the last without a next, each with one range; the library copies
        // them. Memory that
        // they name is registered, and so pinned, or the device refuses it.
        let answer = unsafe {
            let context = (*self.raw.as_ptr()).context;
            ((*context).ops.post_send)(self.raw.as_ptr(), first, &mut bad)
        };
        if answer == 0 {
            return (count, Ok(()));
        }
        let taken = (0..count).find(|index| bad == first.wrapping_add(*index));
        (taken.unwrap_or(0), checked("ibv_post_send", answer))
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: it lives, and this is its last use. When this returns the device moves nothing for it any more.
        let answer = unsafe { (self.pd.context.calls.destroy_qp)(self.raw.as_ptr()) };
        ended("ibv_destroy_qp", answer);
    }
}

impl Gid {
    /// As the library lays it out.
    fn words(self) -> [u64; 2] {
        let (high, low) = self.0.split_at(8);
        [high, low].map(|half| u64::from_ne_bytes(half.try_into().unwrap_or_default()))
    }
}
