//! Codes, and the numbers that stand for words: what the header has as constants.

use std::ffi::{CStr, c_char};

use polyrail::{Cause, DeliveryStatus, LaneState, RailState, Status};

use crate::failure::Failure;

/// What the functions of this header promise. It grows when something is added; nothing changes its meaning.
pub const POLYRAIL_ABI: u32 = 1;
/// Wait as long as it takes.
pub const POLYRAIL_FOREVER: u64 = u64::MAX;

/// All is well.
pub const POLYRAIL_OK: i32 = 0;
/// A pointer is null that may not be, a text is no UTF-8, a size was not set, a number stands for nothing.
pub const POLYRAIL_ERROR_ARGUMENT: i32 = -1;
/// A handle is null, freed, of another kind, or of another engine.
pub const POLYRAIL_ERROR_HANDLE: i32 = -2;
/// The configuration is at fault. The message lists everything that is wrong with it.
pub const POLYRAIL_ERROR_CONFIG: i32 = -3;
/// The system refused something.
pub const POLYRAIL_ERROR_SYSTEM: i32 = -4;
/// There is no room now. Try again when something has ended.
pub const POLYRAIL_ERROR_FULL: i32 = -5;
/// It did not happen in time. It goes on, and can be waited for again.
pub const POLYRAIL_ERROR_TIMED_OUT: i32 = -6;
/// There is no such segment, file or host.
pub const POLYRAIL_ERROR_NOT_FOUND: i32 = -7;
/// A range leaves its segment or is empty, or a size is not possible.
pub const POLYRAIL_ERROR_RANGE: i32 = -8;
/// The owner of a segment does not allow it.
pub const POLYRAIL_ERROR_FORBIDDEN: i32 = -9;
/// Requests that use it have not ended.
pub const POLYRAIL_ERROR_IN_USE: i32 = -10;
/// A name is taken, or cannot be one.
pub const POLYRAIL_ERROR_NAME: i32 = -11;
/// A peer cannot be reached, or does not let this engine in.
pub const POLYRAIL_ERROR_CONNECT: i32 = -12;
/// A peer did not answer, or answered that it could not.
pub const POLYRAIL_ERROR_PEER: i32 = -13;
/// The peer is lost, and its segments with it. Open them anew.
pub const POLYRAIL_ERROR_PEER_LOST: i32 = -14;
/// The two engines cannot work together: transports, rails, paths or builds do not fit.
pub const POLYRAIL_ERROR_INCOMPATIBLE: i32 = -15;
/// The engine has been stopped.
pub const POLYRAIL_ERROR_SHUT_DOWN: i32 = -16;
/// It belongs to the process that this one was forked from.
pub const POLYRAIL_ERROR_FORKED: i32 = -17;
/// A buffer is too short. How many bytes it takes has been said.
pub const POLYRAIL_ERROR_BUFFER: i32 = -18;
/// No proof will come that everything has let go.
pub const POLYRAIL_ERROR_UNPROVABLE: i32 = -19;
/// Nothing is waiting to be taken.
pub const POLYRAIL_ERROR_EMPTY: i32 = -20;
/// A defect of the library. It was caught; the call did nothing, or a part of its work.
pub const POLYRAIL_ERROR_PANIC: i32 = -21;

/// From the local segment to the remote one.
pub const POLYRAIL_WRITE: u32 = 0;
/// From the remote segment to the local one.
pub const POLYRAIL_READ: u32 = 1;

/// Peers may do nothing: only this process uses it, as source or destination.
pub const POLYRAIL_ACCESS_LOCAL: u32 = 0;
/// Peers may read it.
pub const POLYRAIL_ACCESS_REMOTE_READ: u32 = 1;
/// Peers may read and write it.
pub const POLYRAIL_ACCESS_REMOTE_READ_WRITE: u32 = 2;

/// The usual. Requests of up to one slice go before longer ones.
pub const POLYRAIL_PRIORITY_NORMAL: u32 = 0;
/// Before all others to the same peer.
pub const POLYRAIL_PRIORITY_HIGH: u32 = 1;
/// After all others.
pub const POLYRAIL_PRIORITY_LOW: u32 = 2;

/// It has not ended.
pub const POLYRAIL_STATUS_PENDING: u32 = 0;
/// Every byte is where it should be.
pub const POLYRAIL_STATUS_COMPLETED: u32 = 1;
/// It failed, and nothing of it can move any more.
pub const POLYRAIL_STATUS_FAILED: u32 = 2;
/// Cancelled by the program, and nothing of it can move any more.
pub const POLYRAIL_STATUS_CANCELLED: u32 = 3;
/// Its deadline passed, and nothing of it can move any more.
pub const POLYRAIL_STATUS_DEADLINE_EXCEEDED: u32 = 4;
/// The peer's process is gone, with proof.
pub const POLYRAIL_STATUS_PEER_LOST: u32 = 5;
/// It ended without proof that nothing of it can move any more.
pub const POLYRAIL_STATUS_INDETERMINATE: u32 = 6;
/// The engine was stopped first, and nothing of it can move any more.
pub const POLYRAIL_STATUS_SHUT_DOWN: u32 = 7;

/// Nobody reads the source or writes the destination on this side any more.
pub const POLYRAIL_LOCAL_RELEASED: u32 = 0;
/// Somebody might: the memory must not be used.
pub const POLYRAIL_LOCAL_HELD: u32 = 1;
/// No further write of the request can reach the peer's memory.
pub const POLYRAIL_REMOTE_SETTLED: u32 = 0;
/// One might.
pub const POLYRAIL_REMOTE_UNKNOWN: u32 = 1;

/// Its batch has not ended, or the peer has not confirmed it.
pub const POLYRAIL_DELIVERY_PENDING: u32 = 0;
/// The peer's engine has it for its program.
pub const POLYRAIL_DELIVERY_DELIVERED: u32 = 1;
/// It was not sent, because its batch did not complete.
pub const POLYRAIL_DELIVERY_WITHHELD: u32 = 2;
/// It never reached the peer and will not.
pub const POLYRAIL_DELIVERY_UNDELIVERED: u32 = 3;
/// The peer has it once or not at all.
pub const POLYRAIL_DELIVERY_UNKNOWN: u32 = 4;

/// The rail takes slices.
pub const POLYRAIL_RAIL_HEALTHY: u32 = 0;
/// It takes none; a probe is due at some time.
pub const POLYRAIL_RAIL_PAUSED: u32 = 1;
/// It is being probed.
pub const POLYRAIL_RAIL_PROBING: u32 = 2;

/// The lane has been asked for, and is not open yet.
pub const POLYRAIL_LANE_OPENING: u32 = 0;
/// It takes works.
pub const POLYRAIL_LANE_OPEN: u32 = 1;
/// It has failed; what was posted may still be under way.
pub const POLYRAIL_LANE_FENCING: u32 = 2;
/// There is none, and nothing is on it.
pub const POLYRAIL_LANE_CLOSED: u32 = 3;

/// Nothing went wrong.
pub const POLYRAIL_CAUSE_NONE: u32 = 0;

/// What causes are in words, at their numbers less 1: core's words, with a zero.
const CAUSES: [&CStr; Cause::ALL.len()] = [
    c"connection reset",
    c"no completion in time",
    c"peer silent",
    c"peer gone",
    c"transport retries exceeded",
    c"receiver-not-ready retries exceeded",
    c"device failed",
    c"device down",
    c"local range not registered",
    c"local length wrong",
    c"local queue refused the work",
    c"peer's segment does not allow it (key, range or permission)",
    c"peer could not make sense of the work",
    c"peer failed while carrying it out",
    c"peer's answer made no sense",
    c"flushed after a neighbour's failure",
    c"lane refused or not answered",
    c"no usable rail",
    c"Failover limit exceeded, all transports exhausted",
    c"cancelled",
    c"deadline exceeded",
    c"engine shut down",
    c"no usable staging slot",
    c"the file ends before the range",
    c"no space for the file (disk, quota or size limit)",
    c"the disk could not read or write these bytes",
    c"made room for another lane",
];

pub(crate) fn cause(cause: Option<Cause>) -> u32 {
    cause.map_or(POLYRAIL_CAUSE_NONE, Cause::number)
}

pub(crate) const fn status(status: Status) -> u32 {
    match status {
        Status::Pending => POLYRAIL_STATUS_PENDING,
        Status::Completed => POLYRAIL_STATUS_COMPLETED,
        Status::Failed => POLYRAIL_STATUS_FAILED,
        Status::Cancelled => POLYRAIL_STATUS_CANCELLED,
        Status::DeadlineExceeded => POLYRAIL_STATUS_DEADLINE_EXCEEDED,
        Status::PeerLost => POLYRAIL_STATUS_PEER_LOST,
        Status::Indeterminate => POLYRAIL_STATUS_INDETERMINATE,
        Status::ShutDown => POLYRAIL_STATUS_SHUT_DOWN,
    }
}

pub(crate) fn delivery(status: DeliveryStatus) -> u32 {
    match status {
        DeliveryStatus::Pending => POLYRAIL_DELIVERY_PENDING,
        DeliveryStatus::Delivered => POLYRAIL_DELIVERY_DELIVERED,
        DeliveryStatus::Withheld => POLYRAIL_DELIVERY_WITHHELD,
        DeliveryStatus::Undelivered => POLYRAIL_DELIVERY_UNDELIVERED,
        // What a later engine may say is not known here.
        _ => POLYRAIL_DELIVERY_UNKNOWN,
    }
}

pub(crate) const fn rail_state(state: RailState) -> u32 {
    match state {
        RailState::Healthy => POLYRAIL_RAIL_HEALTHY,
        RailState::Paused => POLYRAIL_RAIL_PAUSED,
        RailState::Probing => POLYRAIL_RAIL_PROBING,
    }
}

pub(crate) const fn lane_state(state: LaneState) -> u32 {
    match state {
        LaneState::Opening => POLYRAIL_LANE_OPENING,
        LaneState::Open => POLYRAIL_LANE_OPEN,
        LaneState::Fencing => POLYRAIL_LANE_FENCING,
        LaneState::Closed => POLYRAIL_LANE_CLOSED,
    }
}

/// One of several words that a number of the program's stands for.
pub(crate) fn choose<T>(what: &str, number: u32, words: &[(u32, T)]) -> Result<T, Failure>
where
    T: Copy,
{
    let found = words.iter().find(|(known, _)| *known == number);
    found.map(|(_, word)| *word).ok_or_else(|| {
        let known: Vec<_> = words.iter().map(|(known, _)| known.to_string()).collect();
        let text = format!("{what} {number}: {} are possible", known.join(", "));
        Failure::new(POLYRAIL_ERROR_ARGUMENT, text)
    })
}

/// What this library promises: compare it with `POLYRAIL_ABI`, which the program was compiled with. Less is too old.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_abi() -> u32 {
    POLYRAIL_ABI
}

/// The library's version, such as `0.1.0`. For ever.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// A status in one word, as JSON says it too. For ever.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_status_name(status: u32) -> *const c_char {
    let name = match status {
        POLYRAIL_STATUS_PENDING => c"Pending",
        POLYRAIL_STATUS_COMPLETED => c"Completed",
        POLYRAIL_STATUS_FAILED => c"Failed",
        POLYRAIL_STATUS_CANCELLED => c"Cancelled",
        POLYRAIL_STATUS_DEADLINE_EXCEEDED => c"DeadlineExceeded",
        POLYRAIL_STATUS_PEER_LOST => c"PeerLost",
        POLYRAIL_STATUS_INDETERMINATE => c"Indeterminate",
        POLYRAIL_STATUS_SHUT_DOWN => c"ShutDown",
        _ => c"?",
    };
    name.as_ptr()
}

/// The cause in a report, in words; empty for `POLYRAIL_CAUSE_NONE`. For ever.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_cause_text(cause: u32) -> *const c_char {
    let text = match cause {
        POLYRAIL_CAUSE_NONE => c"",
        _ => CAUSES.get(cause as usize - 1).copied().unwrap_or(c"?"),
    };
    text.as_ptr()
}

/// What a code stands for, in a word or two. For ever.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_code_name(code: i32) -> *const c_char {
    let name = match code {
        POLYRAIL_OK => c"ok",
        POLYRAIL_ERROR_ARGUMENT => c"bad argument",
        POLYRAIL_ERROR_HANDLE => c"bad handle",
        POLYRAIL_ERROR_CONFIG => c"bad configuration",
        POLYRAIL_ERROR_SYSTEM => c"refused by the system",
        POLYRAIL_ERROR_FULL => c"full",
        POLYRAIL_ERROR_TIMED_OUT => c"timed out",
        POLYRAIL_ERROR_NOT_FOUND => c"not found",
        POLYRAIL_ERROR_RANGE => c"out of range",
        POLYRAIL_ERROR_FORBIDDEN => c"forbidden",
        POLYRAIL_ERROR_IN_USE => c"in use",
        POLYRAIL_ERROR_NAME => c"bad name",
        POLYRAIL_ERROR_CONNECT => c"no connection",
        POLYRAIL_ERROR_PEER => c"peer did not answer",
        POLYRAIL_ERROR_PEER_LOST => c"peer lost",
        POLYRAIL_ERROR_INCOMPATIBLE => c"incompatible",
        POLYRAIL_ERROR_SHUT_DOWN => c"shut down",
        POLYRAIL_ERROR_FORKED => c"forked",
        POLYRAIL_ERROR_BUFFER => c"buffer too short",
        POLYRAIL_ERROR_UNPROVABLE => c"unprovable",
        POLYRAIL_ERROR_EMPTY => c"empty",
        POLYRAIL_ERROR_PANIC => c"panic",
        _ => c"?",
    };
    name.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(words: *const c_char) -> &'static str {
        // SAFETY: all of these are constants.
        unsafe { CStr::from_ptr(words) }.to_str().unwrap()
    }

    #[test]
    fn causes_have_cores_words() {
        for known in Cause::ALL {
            let number = cause(Some(known));
            assert_eq!(text(polyrail_cause_text(number)), known.text());
        }
        assert_eq!(text(polyrail_cause_text(cause(None))), "");
        assert_eq!(text(polyrail_cause_text(u32::MAX)), "?");
    }

    #[test]
    fn statuses_have_cores_names() {
        let all = [
            Status::Pending,
            Status::Completed,
            Status::Failed,
            Status::Cancelled,
            Status::DeadlineExceeded,
            Status::PeerLost,
            Status::Indeterminate,
            Status::ShutDown,
        ];
        for known in all {
            assert_eq!(text(polyrail_status_name(status(known))), known.name());
        }
    }

    #[test]
    fn codes_have_names() {
        for code in POLYRAIL_ERROR_PANIC..=POLYRAIL_OK {
            assert_ne!(text(polyrail_code_name(code)), "?", "{code}");
        }
        assert_eq!(text(polyrail_code_name(POLYRAIL_ERROR_PANIC - 1)), "?");
    }
}
