//! Queue pairs.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use polyrail_core::work::{Op, POST_MAX};

use super::handle::{Cq, Left, Pd, checked, made};
use super::raw;
use crate::gid::Gid;
use crate::wire::Side;

/// How a queue pair is connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    /// The row of its partition in the port's table.
    pub(crate) pkey_index: u16,
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
    pub(crate) source: Source,
    pub(crate) remote_address: u64,
    pub(crate) remote_key: u32,
    pub(crate) signal: bool,
    /// How many of core's works it is made of.
    pub(crate) joined: u8,
}

impl Work {
    /// Bytes of one that has not several ranges.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        match self.source {
            Source::Range(range) => range.length.into(),
            Source::Inline(_, length) => length.into(),
            Source::Ranges(..) => 0,
        }
    }
}

/// Where the bytes of a work are on this side.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// In one range.
    Range(raw::Sge),
    /// In so many ranges of a list, from this one on.
    Ranges(u8, u8),
    /// In the work itself: so many of a list of bytes, from this one on. Writes only.
    Inline(u16, u16),
}

/// What a queue pair may be asked for, besides works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extras {
    /// Ranges of one work.
    pub(crate) ranges: u32,
    /// Bytes that a write may carry in itself.
    pub(crate) inline_bytes: u32,
}

impl Extras {
    /// What every device can do.
    pub(crate) const NONE: Self = Self {
        ranges: 1,
        inline_bytes: 0,
    };
}

/// A reliable connected queue pair.
pub(crate) struct Qp {
    pd: Arc<Pd>,
    raw: NonNull<raw::Qp>,
    /// What it can do.
    pub(crate) extras: Extras,
    has_ended: bool,
    /// Packets may be on their way to it.
    was_connected: AtomicBool,
    _cq: Arc<Cq>,
}

// SAFETY: see `Context`.
unsafe impl Send for Qp {}
// SAFETY: see `Context`.
unsafe impl Sync for Qp {}

impl Qp {
    /// One that can hold so many works, and room for so many immediates. Devices that cannot do the extras do without.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        (works, receives): (u32, u32),
        extras: Extras,
    ) -> io::Result<Self> {
        Self::create(pd, cq, (works, receives), extras).or_else(|error| match extras {
            Extras::NONE => Err(error),
            _ => Self::create(pd, cq, (works, receives), Extras::NONE),
        })
    }

    fn create(
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        (works, receives): (u32, u32),
        extras: Extras,
    ) -> io::Result<Self> {
        let mut attributes = raw::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: cq.raw.as_ptr(),
            recv_cq: cq.raw.as_ptr(),
            srq: ptr::null_mut(),
            cap: raw::QpCap {
                max_send_wr: works,
                max_recv_wr: receives.max(1),
                max_send_sge: extras.ranges,
                max_recv_sge: 1,
                max_inline_data: extras.inline_bytes,
            },
            qp_type: raw::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queue live, and are of one context; the queue pair holds both.
        let raw = unsafe { (pd.context.calls.create_qp)(pd.raw.as_ptr(), &mut attributes) };
        Ok(Self {
            raw: made("ibv_create_qp", raw)?,
            pd: pd.clone(),
            // It says what came of it, which may be less.
            extras: Extras {
                ranges: extras.ranges.min(attributes.cap.max_send_sge.max(1)),
                inline_bytes: extras.inline_bytes.min(attributes.cap.max_inline_data),
            },
            has_ended: false,
            was_connected: AtomicBool::new(false),
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
    pub(crate) fn init(&self, path: &Path, serves: bool) -> io::Result<()> {
        let access = raw::ACCESS_REMOTE_READ | raw::ACCESS_REMOTE_WRITE;
        let to = raw::QpAttr {
            qp_state: raw::QPS_INIT,
            pkey_index: path.pkey_index,
            port_num: path.port,
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
        self.was_connected.store(true, Relaxed);
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

    /// The number of the packet that it expects from the peer next: those before it have come, in order. `None`: the
    /// device does not say.
    pub(crate) fn expected(&self) -> Option<u32> {
        let mut now = raw::QpAttr::default();
        let mut made = MaybeUninit::<raw::QpInitAttr>::zeroed();
        // SAFETY: it lives, and both are filled.
        let answer = unsafe {
            let query = self.pd.context.calls.query_qp;
            query(
                self.raw.as_ptr(),
                &mut now,
                raw::QP_EXPECTED,
                made.as_mut_ptr(),
            )
        };
        (answer == 0).then_some(now.rq_psn)
    }

    /// Posts works as one list. The number of works taken, and why not more. Whatever their ranges name, the device
    /// checks it against what is registered in its domain; bytes that are carried inline are copied before this returns.
    ///
    /// # Panics
    ///
    /// If a work names ranges or bytes that are not in the lists.
    pub(crate) fn post(
        &self,
        works: &[Work],
        ranges: &[raw::Sge],
        bytes: &[u8],
    ) -> (usize, io::Result<()>) {
        let count = works.len().min(POST_MAX);
        let mut carried_at = [raw::Sge::default(); POST_MAX];
        let mut list = [MaybeUninit::<raw::SendWr>::uninit(); POST_MAX];
        let first = list.as_mut_ptr().cast::<raw::SendWr>();
        for (index, work) in works[..count].iter().enumerate() {
            let mut flags = if work.signal { raw::SEND_SIGNALED } else { 0 };
            let several: &[raw::Sge];
            match work.source {
                Source::Range(ref range) => several = std::slice::from_ref(range),
                Source::Ranges(first, count) => {
                    let first = usize::from(first);
                    several = &ranges[first..first + usize::from(count)];
                }
                Source::Inline(first, length) => {
                    let first = usize::from(first);
                    let carried = &bytes[first..first + usize::from(length)];
                    carried_at[index] = raw::Sge {
                        addr: carried.as_ptr() as u64,
                        length: length.into(),
                        lkey: 0,
                    };
                    several = std::slice::from_ref(&carried_at[index]);
                    flags |= raw::SEND_INLINE;
                }
            }
            let next = match index + 1 < count {
                // SAFETY: inside the list.
                true => unsafe { first.add(index + 1) },
                false => ptr::null_mut(),
            };
            list[index].write(raw::SendWr {
                wr_id: work.id,
                next,
                // The library only reads it.
                sg_list: several.as_ptr().cast_mut(),
                num_sge: several.len() as c_int,
                opcode: match work.op {
                    Op::Write => raw::WR_RDMA_WRITE,
                    Op::Read => raw::WR_RDMA_READ,
                },
                send_flags: flags,
                imm_data: 0,
                remote_addr: work.remote_address,
                rkey: work.remote_key,
                _rest: [0; 19],
            });
        }
        if count == 0 {
            return (0, Ok(()));
        }
        // SAFETY: the list has `count` works, the last without a next, each with as many ranges as it says; of one that
        // is inline, the range is of `bytes`, which is borrowed.
        let (answer, bad) = unsafe { self.send(first) };
        if answer == 0 {
            return (count, Ok(()));
        }
        let taken = (0..count).find(|index| bad == first.wrapping_add(*index));
        (taken.unwrap_or(0), checked("ibv_post_send", answer))
    }

    /// Posts an immediate behind all that was posted, without bytes. It completes, under this number.
    pub(crate) fn post_immediate(&self, id: u64, immediate: u32) -> io::Result<()> {
        let mut work = raw::SendWr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
            opcode: raw::WR_RDMA_WRITE_WITH_IMM,
            send_flags: raw::SEND_SIGNALED,
            imm_data: immediate.to_be(),
            remote_addr: 0,
            rkey: 0,
            _rest: [0; 19],
        };
        // SAFETY: one work, of no bytes.
        let (answer, _) = unsafe { self.send(&mut work) };
        checked("ibv_post_send", answer)
    }

    /// Makes room for one more immediate.
    pub(crate) fn expect_immediate(&self) -> io::Result<()> {
        let mut room = raw::RecvWr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: it lives; the library copies the one row, which names no memory.
        let answer = unsafe {
            let context = (*self.raw.as_ptr()).context;
            ((*context).ops.post_recv)(self.raw.as_ptr(), &mut room, &mut bad)
        };
        checked("ibv_post_recv", answer)
    }

    /// Posts a list. The answer, and the first that was not taken.
    ///
    /// # Safety
    ///
    /// It is a list, each with as many ranges as it says; those of works that are inline can be read.
    unsafe fn send(&self, first: *mut raw::SendWr) -> (c_int, *mut raw::SendWr) {
        let mut bad = ptr::null_mut();
        // SAFETY: it lives; the library copies the list. Memory that works name is registered, and so pinned, or the
        // device refuses it.
        let answer = unsafe {
            let context = (*self.raw.as_ptr()).context;
            ((*context).ops.post_send)(self.raw.as_ptr(), first, &mut bad)
        };
        (answer, bad)
    }
}

impl Qp {
    /// Ends it. Whether the device moves nothing for it any more. If that cannot be proved, `then` is called once it can be,
    /// if ever.
    pub(crate) fn end(mut self, then: impl FnOnce() + Send + 'static) -> bool {
        let is_over = self.destroy();
        if !is_over {
            self.pd.context.leave(Left::Pair(Box::new(then)));
        }
        is_over
    }

    fn destroy(&mut self) -> bool {
        self.has_ended = true;
        if *self.was_connected.get_mut() {
            self.pd.context.note_ended(self.number());
        }
        // SAFETY: it lives, and this is its last use.
        let answer = unsafe { (self.pd.context.calls.destroy_qp)(self.raw.as_ptr()) };
        self.pd.context.lets_go("ibv_destroy_qp", answer)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if !self.has_ended && !self.destroy() {
            self.pd.context.leave(Left::Pair(Box::new(|| ())));
        }
    }
}

impl Gid {
    /// As the library lays it out.
    fn words(self) -> [u64; 2] {
        let (high, low) = self.0.split_at(8);
        [high, low].map(|half| u64::from_ne_bytes(half.try_into().unwrap_or_default()))
    }
}
