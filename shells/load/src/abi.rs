//! The table of functions of a transport, and the one that it is given. All of the promises of
//! [`Transport`](polyrail_transport::Transport) and [`Endpoint`](polyrail_transport::Endpoint), in C.
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_void};

/// What this header promises. A library of another number is not loaded.
pub const POLYRAIL_TRANSPORT_ABI: u32 = 1;
/// Bytes of a region's key, and of a session.
pub const POLYRAIL_TRANSPORT_KEY_BYTES: usize = 16;
/// Bytes of what a target draws for a lane to prove itself with.
pub const POLYRAIL_TRANSPORT_NONCE_BYTES: usize = 16;
/// Bytes of an initiator's ticket.
pub const POLYRAIL_TRANSPORT_TICKET_BYTES: usize = 49;
/// Bytes of a target's answer to a ticket.
pub const POLYRAIL_TRANSPORT_PROOF_BYTES: usize = 32;
/// Bytes that an address of a transport's own can have.
pub const POLYRAIL_TRANSPORT_ADDRESS_BYTES: usize = 255;
/// Never: a time that does not come.
pub const POLYRAIL_TRANSPORT_NEVER: u64 = u64::MAX;
/// What a library calls a count that it does not know.
pub const POLYRAIL_TRANSPORT_UNKNOWN: u32 = u32::MAX;

/// It moves bytes to and from host memory of the initiator.
pub const POLYRAIL_TRANSPORT_LOCAL_HOST: u32 = 1;
/// The same for memory of a device.
pub const POLYRAIL_TRANSPORT_LOCAL_DEVICE: u32 = 2;
/// The same for host memory that other processes can map.
pub const POLYRAIL_TRANSPORT_LOCAL_SHARED: u32 = 8;
/// It serves host memory of the target.
pub const POLYRAIL_TRANSPORT_REMOTE_HOST: u32 = 256;
/// The same for memory of a device.
pub const POLYRAIL_TRANSPORT_REMOTE_DEVICE: u32 = 512;
/// The same for host memory that other processes can map.
pub const POLYRAIL_TRANSPORT_REMOTE_SHARED: u32 = 2048;

/// From the local segment to the remote one.
pub const POLYRAIL_TRANSPORT_WRITE: u8 = 0;
/// From the remote segment to the local one.
pub const POLYRAIL_TRANSPORT_READ: u8 = 1;

/// All works were taken.
pub const POLYRAIL_TRANSPORT_STOP_ALL: u32 = 0;
/// The lane has no room for more; a completion or `POLYRAIL_TRANSPORT_WRITABLE` says when it has.
pub const POLYRAIL_TRANSPORT_STOP_FULL: u32 = 1;
/// The first work that was not taken was refused, for the cause.
pub const POLYRAIL_TRANSPORT_STOP_REJECTED: u32 = 2;
/// Nobody can say what became of the works from there on. They count as posted until a fence.
pub const POLYRAIL_TRANSPORT_STOP_UNKNOWN: u32 = 3;

/// A work has ended: well if the cause is 0.
pub const POLYRAIL_TRANSPORT_COMPLETION: u32 = 0;
/// A lane can take works, within its limits.
pub const POLYRAIL_TRANSPORT_OPENED: u32 = 1;
/// A lane could not be opened, for the cause.
pub const POLYRAIL_TRANSPORT_OPEN_FAILED: u32 = 2;
/// A lane has room again.
pub const POLYRAIL_TRANSPORT_WRITABLE: u32 = 3;
/// A lane is of no use any more, for the cause. What is posted on it has an unknown outcome.
pub const POLYRAIL_TRANSPORT_BROKEN: u32 = 4;
/// The fence of the scope holds.
pub const POLYRAIL_TRANSPORT_FENCED: u32 = 5;
/// The fence of the scope cannot be given now. A later `POLYRAIL_TRANSPORT_FENCED` is welcome.
pub const POLYRAIL_TRANSPORT_UNFENCEABLE: u32 = 6;

/// Nobody anywhere reads the source or writes the initiator's memory for that epoch any more.
pub const POLYRAIL_TRANSPORT_SCOPE_LOCAL: u32 = 0;
/// No further write of that epoch can reach the destination.
pub const POLYRAIL_TRANSPORT_SCOPE_REMOTE: u32 = 1;

/// Nothing went wrong.
pub const POLYRAIL_TRANSPORT_CAUSE_NONE: u32 = 0;
/// The link or the connection was reset. Speaks against the rail, like the next four.
pub const POLYRAIL_TRANSPORT_CAUSE_RESET: u32 = 1;
/// Transport retries were used up.
pub const POLYRAIL_TRANSPORT_CAUSE_RETRY_EXCEEDED: u32 = 5;
/// The device failed.
pub const POLYRAIL_TRANSPORT_CAUSE_FATAL: u32 = 7;
/// The port or the device went down.
pub const POLYRAIL_TRANSPORT_CAUSE_DEVICE_DOWN: u32 = 8;
/// Nobody answered in time when the lane was opened, or the peer refused it.
pub const POLYRAIL_TRANSPORT_CAUSE_REFUSED: u32 = 17;
/// The local range is not what was attached. Speaks against the request, like the next four.
pub const POLYRAIL_TRANSPORT_CAUSE_LOCAL_PROTECTION: u32 = 9;
/// The local queue refused the work.
pub const POLYRAIL_TRANSPORT_CAUSE_LOCAL_OPERATION: u32 = 11;
/// The peer's segment does not allow it: key, range or permission.
pub const POLYRAIL_TRANSPORT_CAUSE_REMOTE_ACCESS: u32 = 12;
/// The peer could not make sense of the work.
pub const POLYRAIL_TRANSPORT_CAUSE_REMOTE_INVALID_REQUEST: u32 = 13;
/// The peer failed while it carried the work out.
pub const POLYRAIL_TRANSPORT_CAUSE_REMOTE_OPERATION: u32 = 14;
/// Ended because a neighbour on the lane had failed.
pub const POLYRAIL_TRANSPORT_CAUSE_FLUSHED: u32 = 16;

/// Peers may do nothing with a region.
pub const POLYRAIL_TRANSPORT_ACCESS_LOCAL: u32 = 0;
/// They may read it.
pub const POLYRAIL_TRANSPORT_ACCESS_READ: u32 = 1;
/// They may read and write it.
pub const POLYRAIL_TRANSPORT_ACCESS_READ_WRITE: u32 = 2;

/// Registered memory of this process.
pub struct polyrail_transport_region {
    _opaque: [u8; 0],
}

/// What is known of a region.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_transport_region_info {
    /// Its first byte. Only to be touched between `enter` and `leave`, or while it is pinned.
    pub base: *mut c_void,
    /// Bytes.
    pub bytes: u64,
    /// What peers may do: `POLYRAIL_TRANSPORT_ACCESS_…`.
    pub access: u32,
    /// What other processes can map to share it, from its first byte on; -1: nothing.
    pub descriptor: c_int,
    /// Its name to peers.
    pub key: [u8; POLYRAIL_TRANSPORT_KEY_BYTES],
}

/// Permission to touch bytes of a region: on the stack of the thread that asked, which gives it back.
#[repr(C)]
pub struct polyrail_transport_entered {
    /// The first of the bytes.
    pub address: *mut c_void,
    /// The host's.
    pub opaque: [u64; 4],
}

/// Bytes of a region that may be touched until they are unpinned, from any thread.
pub struct polyrail_transport_pinned {
    _opaque: [u8; 0],
}

/// What the engine does for a transport. It lives as long as the transport.
#[repr(C)]
pub struct polyrail_transport_host {
    /// `sizeof(polyrail_transport_host)` as the engine knows it.
    pub size: usize,
    /// The first argument of functions that take it.
    pub context: *mut c_void,
    /// The region that a key of `POLYRAIL_TRANSPORT_KEY_BYTES` opens; null: it is not registered (any more). Asked for
    /// every work of a peer: what an answer says is not kept. Given back by `release_region`.
    pub find_region: unsafe extern "C" fn(
        context: *mut c_void,
        key: *const u8,
    ) -> *const polyrail_transport_region,
    /// Gives back what `find_region` gave.
    pub release_region: unsafe extern "C" fn(region: *const polyrail_transport_region),
    /// What is known of a region.
    pub look_region: unsafe extern "C" fn(
        region: *const polyrail_transport_region,
        info: *mut polyrail_transport_region_info,
    ),
    /// Asks to touch `length` bytes from `offset` on; good is 0. It is not when they leave the region, or when it is being
    /// taken back: then the work has failed. Never waits. Keep it short: whoever takes the region back waits for `leave`,
    /// which the same thread calls.
    pub enter: unsafe extern "C" fn(
        region: *const polyrail_transport_region,
        offset: u64,
        length: u64,
        entered: *mut polyrail_transport_entered,
    ) -> i32,
    /// Gives the permission back.
    pub leave: unsafe extern "C" fn(entered: *mut polyrail_transport_entered),
    /// The same for what goes on by itself, as a device does: whoever takes the region back waits for `unpin`. Null: no
    /// permission. `address` takes where the bytes are.
    pub pin: unsafe extern "C" fn(
        region: *const polyrail_transport_region,
        offset: u64,
        length: u64,
        address: *mut *mut c_void,
    ) -> *mut polyrail_transport_pinned,
    /// Gives it back.
    pub unpin: unsafe extern "C" fn(pinned: *mut polyrail_transport_pinned),
    /// Answers `fence_inbound` or `retire_session`, once: `delivered` is how many works of that epoch had been delivered
    /// whole, in the order of posting, or 0 if that is not known. From any thread, also before the question has returned.
    pub answer: unsafe extern "C" fn(context: *mut c_void, question: u64, delivered: u32),
    /// Says something to the engine's log: 1 is an error, 2 a warning, 3 what happened, 4 why.
    pub log: unsafe extern "C" fn(context: *mut c_void, level: u32, text: *const c_char),
    /// Target: draws `nonce`, of `POLYRAIL_TRANSPORT_NONCE_BYTES`, for one lane to prove itself with. It is said to
    /// whoever asks for that lane, and is good once. Good is 0.
    pub draw_nonce: unsafe extern "C" fn(context: *mut c_void, nonce: *mut u8) -> i32,
    /// Initiator: makes the ticket, of `POLYRAIL_TRANSPORT_TICKET_BYTES`, of a lane for the target that has said
    /// `nonce`; epoch 0: of no lane, for `reach`. Good is 0; 1: the session has no secret, and lanes of it need none;
    /// else there is none.
    pub make_ticket: unsafe extern "C" fn(
        context: *mut c_void,
        session: *const u8,
        lane: u32,
        epoch: u32,
        nonce: *const u8,
        ticket: *mut u8,
    ) -> i32,
    /// Target: whether a lane may come in that says `ticket` to `nonce`; both null: it says none. Asked before anything
    /// is kept of the lane, whether it says one or not. Good is 0, and `proof`, of `POLYRAIL_TRANSPORT_PROOF_BYTES`,
    /// takes what it is answered with; 1: it may, and there is nothing to prove; else it may not.
    pub check_ticket: unsafe extern "C" fn(
        context: *mut c_void,
        session: *const u8,
        lane: u32,
        epoch: u32,
        nonce: *const u8,
        ticket: *const u8,
        proof: *mut u8,
    ) -> i32,
    /// Initiator: whether `proof` is the target's answer to that ticket; null: it says none. Asked before anything else
    /// is said to the target. Good is 0 or, where there is nothing to prove, 1; else the lane is not to be opened.
    pub check_proof: unsafe extern "C" fn(
        context: *mut c_void,
        session: *const u8,
        lane: u32,
        epoch: u32,
        nonce: *const u8,
        ticket: *const u8,
        proof: *const u8,
    ) -> i32,
}

/// Where a rail runs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_transport_rail {
    /// The session that lanes on it join.
    pub session: [u8; POLYRAIL_TRANSPORT_KEY_BYTES],
    /// Where the peer's transport is, as its `address` says.
    pub address: *const u8,
    /// Bytes of that; 0: it has none of its own.
    pub address_length: usize,
    /// The local address to bind to, such as `10.0.0.1`, or null: whichever.
    pub local: *const c_char,
    /// The peer's address, such as `10.0.0.2:7000`.
    pub remote: *const c_char,
}

/// One thing to move.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_transport_work {
    /// Comes back in its completion. Means nothing else.
    pub cookie: u64,
    /// First byte in the local segment.
    pub local_offset: u64,
    /// First byte in the remote segment.
    pub remote_offset: u64,
    /// The segment on this side, attached before.
    pub local: u32,
    /// The segment on the peer's side, attached before.
    pub remote: u32,
    /// Bytes; never 0.
    pub length: u32,
    /// `POLYRAIL_TRANSPORT_WRITE` or `_READ`.
    pub op: u8,
    /// 1: it must produce a completion of its own; 0: that of a later one on the lane may cover it, if the lane said
    /// that they do.
    pub signal: u8,
}

/// The answer to a post.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_transport_posted {
    /// Works that were taken, counted from the front. Those after them are untouched, unless `stop` is unknown.
    pub accepted: usize,
    /// Why no more: `POLYRAIL_TRANSPORT_STOP_…`.
    pub stop: u32,
    /// Of a refusal.
    pub cause: u32,
}

/// Something that happened to a work or a lane.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_transport_event {
    /// `POLYRAIL_TRANSPORT_COMPLETION`, `_OPENED`, and so on.
    pub kind: u32,
    /// The lane.
    pub lane: u32,
    /// Its epoch when the work was posted, or the lane opened.
    pub epoch: u32,
    /// `POLYRAIL_TRANSPORT_CAUSE_…`; all numbers of `polyrail_cause_text` are possible.
    pub cause: u32,
    /// Of a completion: the work's.
    pub cookie: u64,
    /// Of a completion: when it was seen, in nanoseconds since the engine started, not later than the `now` of the
    /// call; 0: now.
    pub at: u64,
    /// Of a fence: `POLYRAIL_TRANSPORT_SCOPE_…`.
    pub scope: u32,
    /// Of a fence: works of that epoch that arrived whole, in order; or `POLYRAIL_TRANSPORT_UNKNOWN`.
    pub delivered: u32,
    /// Of an opened lane: bytes of the largest work, at least 1.
    pub work_bytes_max: u32,
    /// Of an opened lane: works that may be posted and not completed, at least 1.
    pub works_max: u16,
    /// Of an opened lane: reads among them, at least 1; 0: as many as works.
    pub reads_max: u16,
    /// Of an opened lane: 1 if works complete in order and a completion covers those before it; else each completes by
    /// itself.
    pub covers: u8,
}

/// A transport. All functions have to be there but those that say that they may be null. Functions of one endpoint are
/// called by one thread at a time, those of the transport by any, and none of them blocks but `create`, `reach` and
/// `destroy`. Nothing may be thrown out of them.
#[repr(C)]
pub struct polyrail_transport_table {
    /// `POLYRAIL_TRANSPORT_ABI`.
    pub abi: u32,
    /// `POLYRAIL_TRANSPORT_LOCAL_…` and `_REMOTE_…`.
    pub capabilities: u32,
    /// `sizeof(polyrail_transport_table)` as the library knows it. At least what this header has.
    pub size: usize,
    /// What it is called in rail names, configuration and output: 1 to 32 of a-z, 0-9, - and _. Transports of one name
    /// understand each other.
    pub name: *const c_char,

    /// Makes it, over what the engine does for it. Good is 0; else `why` takes the reason, with a zero at its end.
    pub create: Option<
        unsafe extern "C" fn(
            host: *const polyrail_transport_host,
            transport: *mut *mut c_void,
            why: *mut c_char,
            why_bytes: usize,
        ) -> i32,
    >,
    /// Ends it: its threads have ended and it calls the host no more when this returns. Its endpoints have been destroyed.
    pub destroy: Option<unsafe extern "C" fn(transport: *mut c_void)>,

    /// Writes where it is reached to `address`, of `POLYRAIL_TRANSPORT_ADDRESS_BYTES`, and answers how many bytes that
    /// are. At least 1: lanes of the engine's own port are not handed to libraries.
    pub address: Option<unsafe extern "C" fn(transport: *mut c_void, address: *mut u8) -> usize>,
    /// Asks a peer that has let this engine into `session` whether it is reached at its address, and for what memory.
    /// Good is 0; else `why` takes the reason. May block for a moment. Null: it always is.
    pub reach: Option<
        unsafe extern "C" fn(
            transport: *mut c_void,
            address: *const u8,
            address_length: usize,
            session: *const u8,
            capabilities: *mut u32,
            why: *mut c_char,
            why_bytes: usize,
        ) -> i32,
    >,
    /// Lets lanes of a session in. Those of others are refused.
    pub begin_session: Option<unsafe extern "C" fn(transport: *mut c_void, session: *const u8)>,
    /// Ends every inbound lane of this number up to this epoch, refuses such lanes from now on, and then answers: no more
    /// bytes of theirs reach memory. Also for a lane that never came, and again for one that was fenced before.
    pub fence_inbound: Option<
        unsafe extern "C" fn(
            transport: *mut c_void,
            session: *const u8,
            lane: u32,
            epoch: u32,
            question: u64,
        ),
    >,
    /// Ends everything of a session, forgets it, and then answers.
    pub retire_session:
        Option<unsafe extern "C" fn(transport: *mut c_void, session: *const u8, question: u64)>,

    /// Makes the initiator's half for one worker. Good is 0; else `why` takes the reason.
    pub endpoint_create: Option<
        unsafe extern "C" fn(
            transport: *mut c_void,
            worker: u16,
            endpoint: *mut *mut c_void,
            why: *mut c_char,
            why_bytes: usize,
        ) -> i32,
    >,
    /// Ends it: it touches no memory any more when this returns.
    pub endpoint_destroy: Option<unsafe extern "C" fn(endpoint: *mut c_void)>,
    /// A descriptor that polls readable when `poll` has something to do. Always the same one.
    pub descriptor: Option<unsafe extern "C" fn(endpoint: *mut c_void) -> c_int>,
    /// When `poll` has something to do although the descriptor says nothing, in nanoseconds since the engine started;
    /// or `POLYRAIL_TRANSPORT_NEVER`. Null: never.
    pub poll_timeout: Option<unsafe extern "C" fn(endpoint: *mut c_void) -> u64>,
    /// Names a local segment, before any work refers to it. The region is there until `detach_local` has returned.
    pub attach_local: Option<
        unsafe extern "C" fn(
            endpoint: *mut c_void,
            segment: u32,
            region: *const polyrail_transport_region,
        ),
    >,
    /// Forgets it. Works that still name it fail.
    pub detach_local: Option<unsafe extern "C" fn(endpoint: *mut c_void, segment: u32)>,
    /// Names a segment of a peer, by the key of its region and its size. Naming it again replaces it.
    pub attach_remote: Option<
        unsafe extern "C" fn(endpoint: *mut c_void, segment: u32, key: *const u8, bytes: u64),
    >,
    /// Forgets it: no work names it any more. May be null.
    pub detach_remote: Option<unsafe extern "C" fn(endpoint: *mut c_void, segment: u32)>,
    /// Says where a rail runs, before a lane is opened on it. What it points to is good during the call. Saying it again
    /// replaces it for lanes that are opened later.
    pub attach_rail: Option<
        unsafe extern "C" fn(
            endpoint: *mut c_void,
            rail: u16,
            address: *const polyrail_transport_rail,
        ),
    >,
    /// Forgets it. May be null.
    pub forget_rail: Option<unsafe extern "C" fn(endpoint: *mut c_void, rail: u16)>,
    /// Starts to open a lane; its rail is the lower 16 bits of its number. Ends in `_OPENED` or `_OPEN_FAILED`, at `by`
    /// at the latest. `now` and `by` are in nanoseconds since the engine started.
    pub open: Option<
        unsafe extern "C" fn(endpoint: *mut c_void, lane: u32, epoch: u32, now: u64, by: u64),
    >,
    /// Takes works, 32 at most. They are carried out in order, and each ends in one completion, unless the lane breaks.
    /// Those of another epoch than the lane has are refused. A work that makes no sense may be refused here, or
    /// complete with a cause. `now` is in nanoseconds since the engine started.
    pub post: Option<
        unsafe extern "C" fn(
            endpoint: *mut c_void,
            lane: u32,
            epoch: u32,
            works: *const polyrail_transport_work,
            count: usize,
            now: u64,
            posted: *mut polyrail_transport_posted,
        ),
    >,
    /// Moves what can be moved, and says what happened, in order: up to `capacity` events, and how many. Bounded work.
    /// `now` is in nanoseconds since the engine started.
    pub poll: Option<
        unsafe extern "C" fn(
            endpoint: *mut c_void,
            now: u64,
            events: *mut polyrail_transport_event,
            capacity: usize,
        ) -> usize,
    >,
    /// Ends a lane's epoch on this side and answers with `_FENCED` in a later `poll`; then nothing of this endpoint touches
    /// memory for it any more. One that is over already is answered again.
    pub fence:
        Option<unsafe extern "C" fn(endpoint: *mut c_void, lane: u32, epoch: u32, scope: u32)>,
    /// Closes a lane that has nothing posted, or gives up opening it. Answers nothing.
    pub close: Option<unsafe extern "C" fn(endpoint: *mut c_void, lane: u32, epoch: u32)>,
    /// 1: all of its lanes, and `reach`, prove themselves as the host's `make_ticket`, `check_ticket` and `check_proof`
    /// have it. 0: they do not, and where engines have a cluster key it moves nothing.
    pub tickets: u32,
}

/// How a library is asked for its table, which stays where it is.
pub type Entry = unsafe extern "C" fn() -> *const polyrail_transport_table;
