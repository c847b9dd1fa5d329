//! What an engine has done, in numbers.

use std::ffi::c_char;
use std::time::Duration;

use crate::engine::{self, polyrail_engine};
use crate::failure::{guard, polyrail_error, write};
use crate::sized::{self, Structure};
use crate::words::{POLYRAIL_LANE_CLOSED, POLYRAIL_RAIL_HEALTHY, lane_state, rail_state};

/// Bytes of the name of a rail, device or transport, the zero at the end included.
pub const POLYRAIL_LABEL_BYTES: usize = 128;
/// Bytes of a reason, the zero at the end included.
pub const POLYRAIL_REASON_BYTES: usize = 256;

/// A rail as the program sees it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_rail {
    /// `sizeof(polyrail_rail)`.
    pub size: u32,
    /// `POLYRAIL_RAIL_HEALTHY`, `_PAUSED` or `_PROBING`.
    pub state: u32,
    /// Bytes acknowledged since the engine started, both directions.
    pub bytes: u64,
    /// `tcp:LOCAL>REMOTE`.
    pub name: [c_char; POLYRAIL_LABEL_BYTES],
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_rail {
    const DEFAULT: Self = Self {
        size: 0,
        state: POLYRAIL_RAIL_HEALTHY,
        bytes: 0,
        name: [0; POLYRAIL_LABEL_BYTES],
    };
}

/// Traffic of one local device over all its rails.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_device {
    /// `sizeof(polyrail_device)`.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes acknowledged, both directions.
    pub bytes: u64,
    /// Bytes in flight now.
    pub inflight_bytes: u64,
    /// How fast its rails are together, as learned.
    pub bytes_per_sec: u64,
    /// Its part of the bytes of all devices, 0 to 1.
    pub share: f64,
    /// Its address; `*`: whichever the kernel chooses.
    pub name: [c_char; POLYRAIL_LABEL_BYTES],
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_device {
    const DEFAULT: Self = Self {
        size: 0,
        reserved: 0,
        bytes: 0,
        inflight_bytes: 0,
        bytes_per_sec: 0,
        share: 0.0,
        name: [0; POLYRAIL_LABEL_BYTES],
    };
}

/// Requests that went on with another transport: `tent_transport_failover_total{from,to}`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_failover {
    /// `sizeof(polyrail_failover)`.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// How often.
    pub count: u64,
    /// The transport that was left.
    pub from: [c_char; POLYRAIL_LABEL_BYTES],
    /// The one that was taken.
    pub to: [c_char; POLYRAIL_LABEL_BYTES],
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_failover {
    const DEFAULT: Self = Self {
        size: 0,
        reserved: 0,
        count: 0,
        from: [0; POLYRAIL_LABEL_BYTES],
        to: [0; POLYRAIL_LABEL_BYTES],
    };
}

/// In place of a time: it never was, or is not so.
pub const POLYRAIL_NEVER: u64 = u64::MAX;

/// A worker's room for requests, and its work. Times are in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_worker {
    /// `sizeof(polyrail_worker)`.
    pub size: u32,
    /// Requests of the program that it holds, from submission to report.
    pub held: u32,
    /// The most that it takes.
    pub limit: u32,
    /// The most that it has held when somebody submitted.
    pub held_high: u32,
    /// Submissions that wait for room now.
    pub waiting: u32,
    /// 1: it sleeps until there is something to do.
    pub sleeps: u32,
    /// How long there has not been room for somebody; `POLYRAIL_NEVER`: whoever asked last found some.
    pub full_for: u64,
    /// How long ago it last looked for completions; `POLYRAIL_NEVER`: never.
    pub looked: u64,
    /// How long ago works of it last completed; `POLYRAIL_NEVER`: never.
    pub completed: u64,
    /// Completions so far.
    pub completions: u64,
    /// How often a submission has waited for room.
    pub admission_waits: u64,
    /// How long, all of them together.
    pub admission_waited: u64,
    /// How often in vain.
    pub admission_timeouts: u64,
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_worker {
    const DEFAULT: Self = Self {
        size: 0,
        held: 0,
        limit: 0,
        held_high: 0,
        waiting: 0,
        sleeps: 0,
        full_for: POLYRAIL_NEVER,
        looked: POLYRAIL_NEVER,
        completed: POLYRAIL_NEVER,
        completions: 0,
        admission_waits: 0,
        admission_waited: 0,
        admission_timeouts: 0,
    };
}

/// One worker's lane on one rail. Times are in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_lane {
    /// `sizeof(polyrail_lane)`.
    pub size: u32,
    /// Whose it is.
    pub worker: u32,
    /// `POLYRAIL_LANE_OPENING`, `_OPEN`, `_FENCING` or `_CLOSED`.
    pub state: u32,
    /// Works that it holds.
    pub held: u32,
    /// The most that it takes.
    pub limit: u32,
    /// The most works that it has held.
    pub held_high: u32,
    /// Bytes of the works that it holds.
    pub held_bytes: u64,
    /// How long ago works on it last completed; `POLYRAIL_NEVER`: never.
    pub completed: u64,
    /// How often works have ended there, several at a time counting once.
    pub releases: u64,
    /// How many works that was.
    pub released: u64,
    /// How long it has taken no more works; `POLYRAIL_NEVER`: it takes some.
    pub full_for: u64,
    /// Its rail, as `polyrail_rail` names it.
    pub rail: [c_char; POLYRAIL_LABEL_BYTES],
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_lane {
    const DEFAULT: Self = Self {
        size: 0,
        worker: 0,
        state: POLYRAIL_LANE_CLOSED,
        held: 0,
        limit: 0,
        held_high: 0,
        held_bytes: 0,
        completed: POLYRAIL_NEVER,
        releases: 0,
        released: 0,
        full_for: POLYRAIL_NEVER,
        rail: [0; POLYRAIL_LABEL_BYTES],
    };
}

/// What waits for proof. Times are in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_proof {
    /// `sizeof(polyrail_proof)`.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Requests that were reported as `POLYRAIL_STATUS_INDETERMINATE`, and are so still.
    pub unsettled_requests: u64,
    /// Bytes of those whose memory here may still be touched.
    pub held_bytes: u64,
    /// Bytes of those that may still reach the peer's memory.
    pub unknown_bytes: u64,
    /// How long ago the first of them was reported; `POLYRAIL_NEVER`: there is none.
    pub unsettled_oldest: u64,
    /// Fences that peers were asked for and have not answered.
    pub fences_waiting: u64,
    /// How long the first of them has been waited for; `POLYRAIL_NEVER`: there is none.
    pub fences_oldest: u64,
    /// Fences that were given up without an answer.
    pub fences_unanswered: u64,
    /// Fences that were answered.
    pub fences_answered: u64,
    /// How long those took, all together.
    pub fences_waited: u64,
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_proof {
    const DEFAULT: Self = Self {
        size: 0,
        reserved: 0,
        unsettled_requests: 0,
        held_bytes: 0,
        unknown_bytes: 0,
        unsettled_oldest: POLYRAIL_NEVER,
        fences_waiting: 0,
        fences_oldest: POLYRAIL_NEVER,
        fences_unanswered: 0,
        fences_answered: 0,
        fences_waited: 0,
    };
}

/// A transport that the engine knows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_transport_info {
    /// `sizeof(polyrail_transport_info)`.
    pub size: u32,
    /// 1: it is there; 0: the engine runs without it.
    pub available: u32,
    /// What it is called.
    pub name: [c_char; POLYRAIL_LABEL_BYTES],
    /// Why the engine runs without it; empty if it is there.
    pub missing: [c_char; POLYRAIL_REASON_BYTES],
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_transport_info {
    const DEFAULT: Self = Self {
        size: 0,
        available: 0,
        name: [0; POLYRAIL_LABEL_BYTES],
        missing: [0; POLYRAIL_REASON_BYTES],
    };
}

/// All rails, in the order in which they were made. Fills up to `capacity` rows, the first of which says how long each
/// is; `count` takes how many there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_rails(
    engine: polyrail_engine,
    rows: *mut polyrail_rail,
    capacity: usize,
    count: *mut usize,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let rails = engine::get(engine)?.rails();
        let values = rails.iter().map(|rail| {
            let mut row = polyrail_rail {
                state: rail_state(rail.state),
                bytes: rail.bytes,
                ..polyrail_rail::DEFAULT
            };
            write(&mut row.name, &rail.name);
            row
        });
        // SAFETY: the contract of the crate.
        unsafe { sized::write_all(rows, capacity, count, values) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Traffic of each local device, in the order in which they were first used. Fills rows like `polyrail_engine_rails`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_devices(
    engine: polyrail_engine,
    rows: *mut polyrail_device,
    capacity: usize,
    count: *mut usize,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let devices = engine::get(engine)?.stats().devices;
        let values = devices.iter().map(|device| {
            let mut row = polyrail_device {
                bytes: device.bytes,
                inflight_bytes: device.inflight_bytes,
                bytes_per_sec: device.bytes_per_sec,
                share: device.share,
                ..polyrail_device::DEFAULT
            };
            write(&mut row.name, &device.device);
            row
        });
        // SAFETY: the contract of the crate.
        unsafe { sized::write_all(rows, capacity, count, values) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Switches of transports, for each pair that occurred. Fills rows like `polyrail_engine_rails`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_failovers(
    engine: polyrail_engine,
    rows: *mut polyrail_failover,
    capacity: usize,
    count: *mut usize,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let failovers = engine::get(engine)?.stats().failovers;
        let values = failovers.iter().map(|failover| {
            let mut row = polyrail_failover {
                count: failover.count,
                ..polyrail_failover::DEFAULT
            };
            write(&mut row.from, failover.from);
            write(&mut row.to, failover.to);
            row
        });
        // SAFETY: the contract of the crate.
        unsafe { sized::write_all(rows, capacity, count, values) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

fn nanos(span: Option<Duration>) -> u64 {
    span.map_or(POLYRAIL_NEVER, |span| {
        u64::try_from(span.as_nanos()).unwrap_or(POLYRAIL_NEVER - 1)
    })
}

/// Each worker's room and work, in their order. Fills rows like `polyrail_engine_rails`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_workers(
    engine: polyrail_engine,
    rows: *mut polyrail_worker,
    capacity: usize,
    count: *mut usize,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let workers = engine::get(engine)?.stats().workers;
        let values = workers.iter().map(|load| polyrail_worker {
            held: load.held,
            limit: load.limit,
            held_high: load.held_high,
            waiting: load.waiting,
            sleeps: u32::from(load.sleeps),
            full_for: nanos(load.full_for),
            looked: nanos(load.looked),
            completed: nanos(load.completed),
            completions: load.completions,
            admission_waits: load.admission_waits,
            admission_waited: nanos(Some(load.admission_waited)),
            admission_timeouts: load.admission_timeouts,
            ..polyrail_worker::DEFAULT
        });
        // SAFETY: the contract of the crate.
        unsafe { sized::write_all(rows, capacity, count, values) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Each worker's lanes that are there or have carried something. Those of a worker that does not answer within 50 ms are
/// missing. Fills rows like `polyrail_engine_rails`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_lanes(
    engine: polyrail_engine,
    rows: *mut polyrail_lane,
    capacity: usize,
    count: *mut usize,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let lanes = engine::get(engine)?.stats().lanes;
        let values = lanes.iter().map(|lane| {
            let mut row = polyrail_lane {
                worker: lane.worker.into(),
                state: lane_state(lane.state),
                held: lane.held,
                limit: lane.limit,
                held_high: lane.held_high,
                held_bytes: lane.held_bytes,
                completed: nanos(lane.completed),
                releases: lane.releases,
                released: lane.released,
                full_for: nanos(lane.full_for),
                ..polyrail_lane::DEFAULT
            };
            write(&mut row.rail, &lane.rail);
            row
        });
        // SAFETY: the contract of the crate.
        unsafe { sized::write_all(rows, capacity, count, values) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// What waits for proof, in one row. Fills it like `polyrail_engine_rails`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_proof(
    engine: polyrail_engine,
    rows: *mut polyrail_proof,
    capacity: usize,
    count: *mut usize,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let stats = engine::get(engine)?.stats();
        let (unsettled, fences) = (stats.unsettled, stats.fences);
        let row = polyrail_proof {
            unsettled_requests: unsettled.requests,
            held_bytes: unsettled.held_bytes,
            unknown_bytes: unsettled.unknown_bytes,
            unsettled_oldest: nanos(unsettled.oldest),
            fences_waiting: fences.waiting,
            fences_oldest: nanos(fences.oldest),
            fences_unanswered: fences.unanswered,
            fences_answered: fences.counts.iter().sum(),
            fences_waited: (fences.sum_seconds * 1e9) as u64,
            ..polyrail_proof::DEFAULT
        };
        // SAFETY: the contract of the crate.
        unsafe { sized::write_all(rows, capacity, count, [row].into_iter()) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Its transports in order of preference, those too that it runs without. Fills rows like `polyrail_engine_rails`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_transports(
    engine: polyrail_engine,
    rows: *mut polyrail_transport_info,
    capacity: usize,
    count: *mut usize,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let transports = engine::get(engine)?.transports();
        let values = transports.iter().map(|transport| {
            let mut row = polyrail_transport_info {
                available: u32::from(transport.missing.is_none()),
                ..polyrail_transport_info::DEFAULT
            };
            write(&mut row.name, transport.name);
            write(&mut row.missing, transport.missing.as_deref().unwrap_or(""));
            row
        });
        // SAFETY: the contract of the crate.
        unsafe { sized::write_all(rows, capacity, count, values) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}
