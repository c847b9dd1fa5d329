//! What a completion's status says: of its work, and of those posted before it that asked for no completion.
//!
//! | status | whose | works before it | of a write, after it | of a read, after it |
//! |---|---|---|---|---|
//! | 1 LOC_LEN, 4 LOC_PROT, 8 LOC_ACCESS | the request's | unknown | packets on their way land | nothing |
//! | 2 LOC_QP_OP, 3 LOC_EEC_OP, 7 BAD_RESP, 19 FATAL, 20 RESP_TIMEOUT and what else there is | the rail's | unknown | the same | nothing |
//! | 5 WR_FLUSH | a neighbour's | unknown | the same | nothing |
//! | 9 REM_INV_REQ, 10 REM_ACCESS | the request's | carried out | nothing | nothing |
//! | 11 REM_OP | the rail's | carried out | nothing | nothing |
//! | 12 RETRY_EXC, 13 RNR_RETRY_EXC | the rail's | carried out | packets on their way land | nothing |
//!
//! That is of works, at the initiator. At the target a place for an immediate fails, with any status, once nothing comes to its
//! queue pair any more: the peer is hung up on, and its lane breaks.
//!
//! What the peer's device answers, or does not answer, it says of the oldest work that has no answer yet. What this side's device
//! meets, it may meet before works ahead have their answers. Whatever the status is, both sides' queue pairs are destroyed before
//! a report counts on more.

use std::ffi::c_int;

use polyrail_core::work::Cause;

/// Why a work failed, of a status that is not 0. `port_down`: the device's port carries no packets, for which some
/// devices have no status but that of a work they could not carry out.
///
/// What a device or its peer's makes of works that are as they should be is no request's fault: 2, 7 and 11 come of queue pairs
/// in disorder, addresses that have gone and errors of the bus, and somewhere else the same work is well.
///
/// Source: `enum ibv_wc_status` of libibverbs.
pub(crate) fn cause(status: c_int, port_down: bool) -> Cause {
    match status {
        1 => Cause::LocalLength,
        2 | 3 if port_down => Cause::DeviceDown,
        4 | 8 => Cause::LocalProtection,
        5 => Cause::Flushed,
        9 => Cause::RemoteInvalidRequest,
        10 => Cause::RemoteAccess,
        12 | 20 => Cause::RetryExceeded,
        13 => Cause::RnrRetryExceeded,
        // Among them what reliable connections of ours never have, and what nobody can say more of.
        _ => Cause::Fatal,
    }
}

/// Whether all works that were posted before one of this status have been carried out.
pub(crate) fn covers(status: c_int) -> bool {
    matches!(status, 0 | 9..=13)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_its_cause() {
        // (status, port down, cause, whether works before it have been carried out)
        let cases = [
            (1, false, Cause::LocalLength, false),
            (2, false, Cause::Fatal, false),
            (2, true, Cause::DeviceDown, false),
            (3, true, Cause::DeviceDown, false),
            (4, true, Cause::LocalProtection, false),
            (5, false, Cause::Flushed, false),
            (6, false, Cause::Fatal, false),
            (7, false, Cause::Fatal, false),
            (8, false, Cause::LocalProtection, false),
            (9, false, Cause::RemoteInvalidRequest, true),
            (10, false, Cause::RemoteAccess, true),
            (11, true, Cause::Fatal, true),
            (12, false, Cause::RetryExceeded, true),
            (13, false, Cause::RnrRetryExceeded, true),
            (19, false, Cause::Fatal, false),
            (20, false, Cause::RetryExceeded, false),
            (99, false, Cause::Fatal, false),
        ];
        for (status, down, expected, before) in cases {
            let seen = (cause(status, down), covers(status));
            assert_eq!(seen, (expected, before), "status {status}");
        }
    }
}
