//! Structures: how long they are, and where each field is.

use std::mem::{offset_of, size_of};

use ibverbs_sys as sys;

use crate::raw;

/// How long a field is.
const fn length<Structure, Field>(_: fn(&Structure) -> &Field) -> usize {
    size_of::<Field>()
}

/// A row for each structure: ours is as long as theirs (`whole`), or the beginning of it (`start`), because the library makes
/// it or writes no more of it. Then each field, but those that only fill what lies between.
macro_rules! compare {
    ($($ours:ident is $part:ident $theirs:ident { $($field:ident = $($path:ident).+),* $(,)? } fills { $($filler:ident),* })*) => {
        /// The structures that are compared, for [`crate::complete`].
        pub(crate) const COMPARED: &[&str] = &[$(stringify!($ours)),*];

        #[test]
        #[allow(unused_unsafe)] // most fields are not of a union
        fn each_field_is_where_the_headers_is() {
            $({
                // Each field of ours is in the row.
                let _ = |whole: raw::$ours| {
                    let raw::$ours { $($field: _,)* $($filler: _,)* } = whole;
                };
                let name = stringify!($ours);
                let (ours, theirs) = (size_of::<raw::$ours>(), size_of::<sys::$theirs>());
                match stringify!($part) {
                    "whole" => assert_eq!(ours, theirs, "{name}"),
                    _ => assert!(ours <= theirs, "{name}: {ours} of {theirs}"),
                }
                assert_eq!(align_of::<raw::$ours>(), align_of::<sys::$theirs>(), "{name}");
                $(
                    let field = concat!(stringify!($ours), ".", stringify!($field));
                    let ours = offset_of!(raw::$ours, $field);
                    assert_eq!(ours, offset_of!(sys::$theirs, $($path).+), "{field}");
                    let ours = length(|whole: &raw::$ours| &whole.$field);
                    // SAFETY: of a field of a union only the type is asked; it is not called.
                    let theirs = length(|whole: &sys::$theirs| unsafe { &whole.$($path).+ });
                    assert_eq!(ours, theirs, "{field}");
                )*
            })*
        }
    };
}

compare! {
    ContextOps is whole ibv_context_ops {
        poll_cq = poll_cq, req_notify_cq = req_notify_cq, post_send = post_send, post_recv = post_recv,
    } fills { _before, _between, _behind }
    Context is start ibv_context {
        _device = device, ops = ops, _cmd_fd = cmd_fd, async_fd = async_fd, num_comp_vectors = num_comp_vectors,
    } fills {}
    CompChannel is start ibv_comp_channel { _context = context, fd = fd, _refcnt = refcnt } fills {}
    Cq is start ibv_cq { context = context, _channel = channel } fills {}
    Qp is start ibv_qp { context = context, _handle = handle, qp_num = qp_num } fills { _before }
    Mr is start ibv_mr {
        _context = context, _pd = pd, addr = addr, length = length, _handle = handle, lkey = lkey, rkey = rkey,
    } fills {}
    Sge is whole ibv_sge { addr = addr, length = length, lkey = lkey } fills {}
    SendWr is whole ibv_send_wr {
        wr_id = wr_id, next = next, sg_list = sg_list, num_sge = num_sge, opcode = opcode, send_flags = send_flags,
        imm_data = __bindgen_anon_1.imm_data, remote_addr = wr.rdma.remote_addr, rkey = wr.rdma.rkey,
    } fills { _rest }
    RecvWr is whole ibv_recv_wr {
        wr_id = wr_id, next = next, sg_list = sg_list, num_sge = num_sge,
    } fills {}
    QpCap is whole ibv_qp_cap {
        max_send_wr = max_send_wr, max_recv_wr = max_recv_wr, max_send_sge = max_send_sge, max_recv_sge = max_recv_sge,
        max_inline_data = max_inline_data,
    } fills {}
    QpInitAttr is whole ibv_qp_init_attr {
        qp_context = qp_context, send_cq = send_cq, recv_cq = recv_cq, srq = srq, cap = cap, qp_type = qp_type,
        sq_sig_all = sq_sig_all,
    } fills {}
    GlobalRoute is whole ibv_global_route {
        dgid = dgid, flow_label = flow_label, sgid_index = sgid_index, hop_limit = hop_limit,
        traffic_class = traffic_class,
    } fills {}
    AhAttr is whole ibv_ah_attr {
        grh = grh, dlid = dlid, sl = sl, src_path_bits = src_path_bits, static_rate = static_rate,
        is_global = is_global, port_num = port_num,
    } fills {}
    QpAttr is whole ibv_qp_attr {
        qp_state = qp_state, cur_qp_state = cur_qp_state, path_mtu = path_mtu, path_mig_state = path_mig_state,
        qkey = qkey, rq_psn = rq_psn, sq_psn = sq_psn, dest_qp_num = dest_qp_num, qp_access_flags = qp_access_flags,
        cap = cap, ah_attr = ah_attr, alt_ah_attr = alt_ah_attr, pkey_index = pkey_index,
        alt_pkey_index = alt_pkey_index, en_sqd_async_notify = en_sqd_async_notify, sq_draining = sq_draining,
        max_rd_atomic = max_rd_atomic, max_dest_rd_atomic = max_dest_rd_atomic, min_rnr_timer = min_rnr_timer,
        port_num = port_num, timeout = timeout, retry_cnt = retry_cnt, rnr_retry = rnr_retry,
        alt_port_num = alt_port_num, alt_timeout = alt_timeout, rate_limit = rate_limit,
    } fills {}
    DeviceAttr is whole ibv_device_attr {
        max_mr_size = max_mr_size, max_qp = max_qp, max_qp_wr = max_qp_wr, max_sge = max_sge, max_sge_rd = max_sge_rd,
        max_cq = max_cq, max_cqe = max_cqe, max_mr = max_mr, max_pd = max_pd, max_qp_rd_atom = max_qp_rd_atom,
        max_ee_rd_atom = max_ee_rd_atom, max_res_rd_atom = max_res_rd_atom,
        max_qp_init_rd_atom = max_qp_init_rd_atom,
    } fills { _before, _between, _flags, _behind }
    PortAttr is start ibv_port_attr {
        state = state, max_mtu = max_mtu, active_mtu = active_mtu, gid_tbl_len = gid_tbl_len,
        port_cap_flags = port_cap_flags, max_msg_sz = max_msg_sz, bad_pkey_cntr = bad_pkey_cntr,
        qkey_viol_cntr = qkey_viol_cntr, pkey_tbl_len = pkey_tbl_len, lid = lid, sm_lid = sm_lid,
        flags = flags,
    } fills { _between, _behind }
    AsyncEvent is whole ibv_async_event { element = element, event_type = event_type } fills {}
}

/// Written by hand there too, and with fields of its own, which it reads for others.
#[test]
fn a_completion_is_read_alike() {
    let ours = raw::Wc {
        wr_id: 0x0102_0304_0506_0708,
        status: 0,
        opcode: 129,
        vendor_err: 3,
        byte_len: 4,
        imm_data: 5,
        qp_num: 6,
        src_qp: 7,
        wc_flags: 8,
        pkey_index: 9,
        slid: 10,
        sl: 11,
        dlid_path_bits: 12,
    };
    assert_eq!(size_of::<raw::Wc>(), size_of::<sys::ibv_wc>());
    // SAFETY: both are plain data of one length, and the numbers of status and opcode are the header's.
    let read = |ours: raw::Wc| unsafe { std::mem::transmute::<raw::Wc, sys::ibv_wc>(ours) };
    let theirs = read(ours);
    assert_eq!(
        (theirs.wr_id(), theirs.len(), theirs.is_valid()),
        (ours.wr_id, 4, true)
    );
    assert_eq!(theirs.opcode(), 129);
    assert_eq!(
        (
            theirs.imm_data,
            theirs.qp_num,
            theirs.src_qp,
            theirs.wc_flags.0
        ),
        (5, 6, 7, 8)
    );
    assert_eq!(
        (
            theirs.pkey_index,
            theirs.slid,
            theirs.sl,
            theirs.dlid_path_bits
        ),
        (9, 10, 11, 12)
    );
    let failed = read(raw::Wc { status: 12, ..ours });
    assert_eq!(
        failed.error(),
        Some((12, 3)),
        "its status and what the vendor says"
    );
}
