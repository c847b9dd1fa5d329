//! Queue pairs.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use polyrail_core::work::{Op, POST_MAX};

use super::handle::{Cq, Pd, checked, ended, made};
use super::raw;
use crate::gid::Gid;
use crate::wire::Side;

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
    /// One that can hold so many works, and room for so many immediates.
    pub(crate) fn new(pd: &Arc<Pd>, cq: &Arc<Cq>, works: u32, receives: u32) -> io::Result<Self> {
        let mut attributes = raw::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: cq.raw.as_ptr(),
            recv_cq: cq.raw.as_ptr(),
            srq: ptr::null_mut(),
            cap: raw::QpCap {
                max_send_wr: works,
                max_recv_wr: receives.max(1),
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
        // SAFETY: the list has `count` works, the last without a next, each with one range.
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
    /// It is a list, each with as many ranges as it says.
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
