//! The types of libibverbs, as far as they are used, laid out as its header has them on 64-bit machines.
//!
//! Written by hand: bindings that are made from the header need cmake, clang and rdma-core's packages, and link against a
//! library that the program has to start without. `layout` below has the numbers of rdma-core 44's header; they have
//! not changed since it began to promise a stable binary interface. `tests/bindings` compares all of this with what
//! `ibverbs-sys` makes from a later one.

use std::ffi::{c_char, c_int, c_void};

/// Opaque to us.
#[repr(C)]
pub(crate) struct Device {
    _opaque: [u8; 0],
}

/// Opaque to us.
#[repr(C)]
pub(crate) struct Pd {
    _opaque: [u8; 0],
}

/// What is called for every work, through the device that does it.
#[repr(C)]
pub(crate) struct ContextOps {
    pub(crate) _before: [*mut c_void; 11],
    pub(crate) poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    pub(crate) req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    pub(crate) _between: [*mut c_void; 12],
    pub(crate) post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub(crate) post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    pub(crate) _behind: [*mut c_void; 5],
}

/// An open device.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) _device: *mut Device,
    pub(crate) ops: ContextOps,
    pub(crate) _cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
}

/// A completion channel.
#[repr(C)]
pub(crate) struct CompChannel {
    pub(crate) _context: *mut Context,
    pub(crate) fd: c_int,
    pub(crate) _refcnt: c_int,
}

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
    pub(crate) _channel: *mut CompChannel,
}

/// A queue pair.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    pub(crate) _before: [*mut c_void; 5],
    pub(crate) _handle: u32,
    pub(crate) qp_num: u32,
}

/// Registered memory.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) _context: *mut Context,
    pub(crate) _pd: *mut Pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) _handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// One range of local memory.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// One work to post.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut SendWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: u32,
    pub(crate) imm_data: u32,
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    pub(crate) _rest: [u32; 19],
}

/// Room for one arrival.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut RecvWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
}

/// One completion.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// What a queue pair can hold.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// How a queue pair is to be made.
#[repr(C)]
pub(crate) struct QpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut c_void,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

/// The part of an address that crosses subnets. RoCE needs it always.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct GlobalRoute {
    pub(crate) dgid: [u64; 2],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// Where packets of a queue pair go.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct AhAttr {
    pub(crate) grh: GlobalRoute,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// What to change of a queue pair; a mask says which of it.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: u32,
    pub(crate) cap: QpCap,
    pub(crate) ah_attr: AhAttr,
    pub(crate) alt_ah_attr: AhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// What a device can do.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceAttr {
    pub(crate) _before: [u64; 10],
    pub(crate) max_mr_size: u64,
    pub(crate) _between: [u32; 5],
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) _flags: u32,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) _behind: [u32; 18],
}

/// How a port stands. The exported function fills a shorter one, from the same start.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct PortAttr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) _between: [u8; 9],
    pub(crate) flags: u8,
    pub(crate) _behind: [u8; 4],
}

/// Something that no work asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsyncEvent {
    /// A queue pair, a completion queue or a port's number, as the kind says.
    pub(crate) element: *mut c_void,
    pub(crate) event_type: c_int,
}

/// Of a port: it carries packets.
pub(crate) const PORT_ACTIVE: c_int = 4;
/// Of a port: packets have to carry GIDs, in one subnet too.
pub(crate) const PORT_GRH_REQUIRED: u8 = 1;

/// Nothing was done yet for processes that fork.
pub(crate) const FORK_DISABLED: u32 = 0;

pub(crate) const QPT_RC: c_int = 2;
pub(crate) const QPS_INIT: c_int = 1;
pub(crate) const QPS_RTR: c_int = 2;
pub(crate) const QPS_RTS: c_int = 3;

/// State, partition key, port, access.
pub(crate) const QP_TO_INIT: c_int = 0x39;
/// State, address, path MTU, destination, receive sequence, reads served, receiver-not-ready timer.
pub(crate) const QP_TO_RTR: c_int = 0x12_9181;
/// State, timeout, retries of both kinds, send sequence, reads asked for.
pub(crate) const QP_TO_RTS: c_int = 0x1_2e01;

/// The number of the packet that is expected next.
pub(crate) const QP_EXPECTED: c_int = 0x1000;

pub(crate) const WR_RDMA_WRITE: c_int = 0;
pub(crate) const WR_RDMA_WRITE_WITH_IMM: c_int = 1;
pub(crate) const WR_RDMA_READ: c_int = 4;
pub(crate) const SEND_SIGNALED: u32 = 2;
/// The work carries its bytes itself.
pub(crate) const SEND_INLINE: u32 = 8;
/// What a completion is of: an immediate that has come behind a write.
pub(crate) const WC_RECV_RDMA_WITH_IMM: c_int = 129;

pub(crate) const ACCESS_LOCAL_WRITE: u32 = 1;
pub(crate) const ACCESS_REMOTE_WRITE: u32 = 2;
pub(crate) const ACCESS_REMOTE_READ: u32 = 4;
/// Optional: ignored where the device or the kernel does not know it.
pub(crate) const ACCESS_RELAXED_ORDERING: u32 = 1 << 20;

pub(crate) const EVENT_CQ_ERR: c_int = 0;
pub(crate) const EVENT_QP_FATAL: c_int = 1;
pub(crate) const EVENT_QP_REQ_ERR: c_int = 2;
pub(crate) const EVENT_QP_ACCESS_ERR: c_int = 3;
pub(crate) const EVENT_DEVICE_FATAL: c_int = 8;
pub(crate) const EVENT_PORT_ACTIVE: c_int = 9;
pub(crate) const EVENT_PORT_ERR: c_int = 10;
pub(crate) const EVENT_GID_CHANGE: c_int = 18;

/// The functions of the library. The names are its own, without `ibv_`.
#[derive(Clone, Copy)]
pub(crate) struct Calls {
    pub(crate) get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut Device,
    pub(crate) free_device_list: unsafe extern "C" fn(*mut *mut Device),
    pub(crate) get_device_name: unsafe extern "C" fn(*mut Device) -> *const c_char,
    pub(crate) open_device: unsafe extern "C" fn(*mut Device) -> *mut Context,
    pub(crate) close_device: unsafe extern "C" fn(*mut Context) -> c_int,
    pub(crate) query_device: unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int,
    pub(crate) query_port: unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int,
    pub(crate) get_async_event: unsafe extern "C" fn(*mut Context, *mut AsyncEvent) -> c_int,
    pub(crate) ack_async_event: unsafe extern "C" fn(*mut AsyncEvent),
    pub(crate) alloc_pd: unsafe extern "C" fn(*mut Context) -> *mut Pd,
    pub(crate) dealloc_pd: unsafe extern "C" fn(*mut Pd) -> c_int,
    pub reg_mr_iova2: unsafe extern "C" fn(*mut Pd, *mut c_void, usize, u64, u32) -> *mut Mr,
    /// Since rdma-core 34.
    pub(crate) reg_dmabuf_mr:
        Option<unsafe extern "C" fn(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr>,
    pub(crate) dereg_mr: unsafe extern "C" fn(*mut Mr) -> c_int,
    pub(crate) create_comp_channel: unsafe extern "C" fn(*mut Context) -> *mut CompChannel,
    pub(crate) destroy_comp_channel: unsafe extern "C" fn(*mut CompChannel) -> c_int,
    pub(crate) create_cq:
        unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq,
    pub(crate) destroy_cq: unsafe extern "C" fn(*mut Cq) -> c_int,
    pub(crate) get_cq_event:
        unsafe extern "C" fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int,
    pub(crate) ack_cq_events: unsafe extern "C" fn(*mut Cq, u32),
    pub(crate) create_qp: unsafe extern "C" fn(*mut Pd, *mut QpInitAttr) -> *mut Qp,
    pub(crate) modify_qp: unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int) -> c_int,
    pub(crate) query_qp:
        unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int,
    pub(crate) destroy_qp: unsafe extern "C" fn(*mut Qp) -> c_int,
    pub(crate) fork_init: unsafe extern "C" fn() -> c_int,
    /// Older libraries do not have it.
    pub(crate) is_fork_initialized: Option<unsafe extern "C" fn() -> u32>,
}

/// Where the header has what, on 64-bit machines.
#[cfg(target_pointer_width = "64")]
mod layout {
    use super::*;
    use std::mem::{offset_of, size_of};

    const _: () = {
        assert!(size_of::<ContextOps>() == 256);
        assert!(offset_of!(ContextOps, poll_cq) == 88);
        assert!(offset_of!(ContextOps, req_notify_cq) == 96);
        assert!(offset_of!(ContextOps, post_send) == 200);
        assert!(offset_of!(ContextOps, post_recv) == 208);
        assert!(size_of::<RecvWr>() == 32);
        assert!(offset_of!(Wc, imm_data) == 24);
        assert!(offset_of!(Context, ops) == 8);
        assert!(offset_of!(Context, async_fd) == 268);
        assert!(offset_of!(Context, num_comp_vectors) == 272);
        assert!(offset_of!(CompChannel, fd) == 8);
        assert!(offset_of!(Qp, qp_num) == 52);
        assert!(offset_of!(Mr, lkey) == 36);
        assert!(offset_of!(Mr, rkey) == 40);
        assert!(size_of::<Sge>() == 16);
        assert!(size_of::<SendWr>() == 128);
        assert!(offset_of!(SendWr, remote_addr) == 40);
        assert!(offset_of!(SendWr, rkey) == 48);
        assert!(size_of::<Wc>() == 48);
        assert!(offset_of!(Wc, qp_num) == 28);
        assert!(size_of::<QpInitAttr>() == 64);
        assert!(offset_of!(QpInitAttr, cap) == 32);
        assert!(offset_of!(QpInitAttr, qp_type) == 52);
        assert!(size_of::<QpAttr>() == 144);
        assert!(offset_of!(QpAttr, rq_psn) == 20);
        assert!(offset_of!(QpAttr, ah_attr) == 56);
        assert!(offset_of!(QpAttr, pkey_index) == 120);
        assert!(offset_of!(QpAttr, max_rd_atomic) == 126);
        assert!(offset_of!(QpAttr, timeout) == 130);
        assert!(offset_of!(QpAttr, rnr_retry) == 132);
        assert!(size_of::<AhAttr>() == 32);
        assert!(offset_of!(AhAttr, dlid) == 24);
        assert!(offset_of!(AhAttr, is_global) == 29);
        assert!(size_of::<GlobalRoute>() == 24);
        assert!(size_of::<DeviceAttr>() == 232);
        assert!(offset_of!(DeviceAttr, max_mr_size) == 80);
        assert!(offset_of!(DeviceAttr, max_qp_wr) == 112);
        assert!(offset_of!(DeviceAttr, max_sge) == 120);
        assert!(offset_of!(DeviceAttr, max_sge_rd) == 124);
        assert!(offset_of!(DeviceAttr, max_cqe) == 132);
        assert!(offset_of!(DeviceAttr, max_qp_rd_atom) == 144);
        assert!(offset_of!(DeviceAttr, max_qp_init_rd_atom) == 156);
        assert!(size_of::<PortAttr>() == 52);
        assert!(offset_of!(PortAttr, lid) == 34);
        assert!(offset_of!(PortAttr, flags) == 47);
        assert!(offset_of!(AsyncEvent, event_type) == 8);
    };
}
