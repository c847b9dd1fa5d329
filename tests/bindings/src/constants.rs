//! Numbers: of states, kinds, flags and masks.

use ibverbs_sys as sys;
use sys::{
    ibv_access_flags as access, ibv_qp_attr_mask as mask, ibv_qp_state as state,
    ibv_qp_type as kind, ibv_send_flags as send, ibv_wc_opcode as done, ibv_wr_opcode as work,
};

use crate::raw;

macro_rules! compare {
    ($($name:ident = $theirs:expr;)*) => {
        /// The constants that are compared, for [`crate::complete`].
        pub(crate) const COMPARED: &[&str] = &[$(stringify!($name)),*];

        #[test]
        fn each_constant_is_the_headers() {
            $(assert_eq!(i64::from(raw::$name), i64::from($theirs), stringify!($name));)*
        }
    };
}

const fn all(masks: &[mask]) -> u32 {
    let (mut bits, mut at) = (0, 0);
    while at < masks.len() {
        bits |= masks[at].0;
        at += 1;
    }
    bits
}

compare! {
    FORK_DISABLED = sys::IBV_FORK_DISABLED;
    QPT_RC = kind::IBV_QPT_RC;
    QPS_INIT = state::IBV_QPS_INIT;
    QPS_RTR = state::IBV_QPS_RTR;
    QPS_RTS = state::IBV_QPS_RTS;
    QP_TO_INIT = all(&[
        mask::IBV_QP_STATE,
        mask::IBV_QP_PKEY_INDEX,
        mask::IBV_QP_PORT,
        mask::IBV_QP_ACCESS_FLAGS,
    ]);
    QP_TO_RTR = all(&[
        mask::IBV_QP_STATE,
        mask::IBV_QP_AV,
        mask::IBV_QP_PATH_MTU,
        mask::IBV_QP_DEST_QPN,
        mask::IBV_QP_RQ_PSN,
        mask::IBV_QP_MAX_DEST_RD_ATOMIC,
        mask::IBV_QP_MIN_RNR_TIMER,
    ]);
    QP_TO_RTS = all(&[
        mask::IBV_QP_STATE,
        mask::IBV_QP_TIMEOUT,
        mask::IBV_QP_RETRY_CNT,
        mask::IBV_QP_RNR_RETRY,
        mask::IBV_QP_SQ_PSN,
        mask::IBV_QP_MAX_QP_RD_ATOMIC,
    ]);
    QP_EXPECTED = mask::IBV_QP_RQ_PSN.0;
    WR_RDMA_WRITE = work::IBV_WR_RDMA_WRITE;
    WR_RDMA_WRITE_WITH_IMM = work::IBV_WR_RDMA_WRITE_WITH_IMM;
    WR_RDMA_READ = work::IBV_WR_RDMA_READ;
    SEND_SIGNALED = send::IBV_SEND_SIGNALED.0;
    SEND_INLINE = send::IBV_SEND_INLINE.0;
    WC_RECV_RDMA_WITH_IMM = done::IBV_WC_RECV_RDMA_WITH_IMM;
    ACCESS_LOCAL_WRITE = access::IBV_ACCESS_LOCAL_WRITE.0;
    ACCESS_REMOTE_WRITE = access::IBV_ACCESS_REMOTE_WRITE.0;
    ACCESS_REMOTE_READ = access::IBV_ACCESS_REMOTE_READ.0;
    ACCESS_RELAXED_ORDERING = access::IBV_ACCESS_RELAXED_ORDERING.0;
    PORT_ACTIVE = sys::ibv_port_state::IBV_PORT_ACTIVE;
    EVENT_CQ_ERR = sys::IBV_EVENT_CQ_ERR;
    EVENT_QP_FATAL = sys::IBV_EVENT_QP_FATAL;
    EVENT_QP_REQ_ERR = sys::IBV_EVENT_QP_REQ_ERR;
    EVENT_QP_ACCESS_ERR = sys::IBV_EVENT_QP_ACCESS_ERR;
    EVENT_DEVICE_FATAL = sys::IBV_EVENT_DEVICE_FATAL;
    EVENT_PORT_ACTIVE = sys::IBV_EVENT_PORT_ACTIVE;
    EVENT_GID_CHANGE = sys::IBV_EVENT_GID_CHANGE;
    EVENT_PORT_ERR = sys::IBV_EVENT_PORT_ERR;
}
