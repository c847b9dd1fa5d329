//! What a completion's status says.

use std::ffi::c_int;

use polyrail_core::work::Cause;

/// Why a work failed; `None`: it did not. `port_down`: the device's port carries no packets, for which some devices
/// have no status but that of a work they could not carry out.
///
/// Source: `enum ibv_wc_status` of libibverbs.
pub(crate) fn cause(status: c_int, port_down: bool) -> Option<Cause> {
    Some(match status {
        0 => return None,
        1 => Cause::LocalLength,
        2 | 3 if port_down => Cause::DeviceDown,
        2 | 3 => Cause::LocalOperation,
        4 | 8 => Cause::LocalProtection,
        5 => Cause::Flushed,
        7 => Cause::BadResponse,
        9 => Cause::RemoteInvalidRequest,
        10 => Cause::RemoteAccess,
        11 => Cause::RemoteOperation,
        12 | 20 => Cause::RetryExceeded,
        13 => Cause::RnrRetryExceeded,
        // What reliable connections of ours never have, and what nobody can say more of.
        _ => Cause::Fatal,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_its_cause() {
        // (status, port down, cause)
        let cases = [
            (0, false, None),
            (0, true, None),
            (1, false, Some(Cause::LocalLength)),
            (2, false, Some(Cause::LocalOperation)),
            (2, true, Some(Cause::DeviceDown)),
            (4, true, Some(Cause::LocalProtection)),
            (5, false, Some(Cause::Flushed)),
            (7, false, Some(Cause::BadResponse)),
            (8, false, Some(Cause::LocalProtection)),
            (9, false, Some(Cause::RemoteInvalidRequest)),
            (10, false, Some(Cause::RemoteAccess)),
            (11, false, Some(Cause::RemoteOperation)),
            (12, false, Some(Cause::RetryExceeded)),
            (13, false, Some(Cause::RnrRetryExceeded)),
            (19, false, Some(Cause::Fatal)),
            (99, false, Some(Cause::Fatal)),
        ];
        for (status, down, expected) in cases {
            assert_eq!(cause(status, down), expected, "status {status}");
        }
    }
}
