//! What a completion's status says.

use std::ffi::c_int;

use polyrail_core::work::Cause;

/// Why a work failed, of a status that is not 0. `port_down`: the device's port carries no packets, for which some devices
/// have no status but that of a work they could not carry out.
///
/// Source: `enum ibv_wc_status` of libibverbs.
pub(crate) fn cause(status: c_int, port_down: bool) -> Cause {
    match status {
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_its_cause() {
        // (status, port down, cause)
        let cases = [
            (1, false, Cause::LocalLength),
            (2, false, Cause::LocalOperation),
            (2, true, Cause::DeviceDown),
            (4, true, Cause::LocalProtection),
            (5, false, Cause::Flushed),
            (7, false, Cause::BadResponse),
            (8, false, Cause::LocalProtection),
            (9, false, Cause::RemoteInvalidRequest),
            (10, false, Cause::RemoteAccess),
            (11, false, Cause::RemoteOperation),
            (12, false, Cause::RetryExceeded),
            (13, false, Cause::RnrRetryExceeded),
            (19, false, Cause::Fatal),
            (99, false, Cause::Fatal),
        ];
        for (status, down, expected) in cases {
            assert_eq!(cause(status, down), expected, "status {status}");
        }
    }
}
